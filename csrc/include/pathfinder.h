/* What pathfinder.c draws images from: pictures and moves as rotrnn.tasks.paddles makes them. P paddles of side S, C
 * pixels of the circle around a pivot, at most K probes, markers for E pixels a side. */
#ifndef ROT_PATHFINDER_H
#define ROT_PATHFINDER_H

#include "real.h"

typedef struct {
    const int64_t *index;         /* (n) which images */
    const uint8_t *lines, *masks; /* (P,S,S) a paddle, and what it takes */
    const uint8_t *markers;       /* (E,E,E,E) */
    const double *seed_steps;     /* (360,2,2) from tail to head, and back to the pivot */
    const double *steps;          /* (P,2) from a pivot to the next */
    const double *ring;           /* (360,2) from the first contour's tail to the second's */
    const int64_t *ends;          /* (C,2) */
    const int64_t *weights;       /* (P,C) of 2^24 */
    const int64_t *probes;        /* (360,K,2) */
    const int64_t *probe_counts;  /* (360) */
    int64_t n, seed, window, padding, seed_distance, margin, S, C, K, E;
    int64_t contour_length, distractors, distractor_length;
    int64_t target_shade, distractor_shade; /* of a full pixel, in twentieths of a marker's */
} pathfinder_in;

typedef struct {
    uint8_t *images; /* (n,window,window) */
    int64_t *facts;  /* (n,4) label, pairs of contours tried, distractors drawn, contour of the first marker */
    int64_t
        *paddles; /* (n,2 contour_length + distractors distractor_length,3) paddle, and the pixel it starts at; -1 */
} pathfinder_out;

#endif
