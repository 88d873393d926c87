/* Blocks of sequences that dense recurrences (rnn.c, slstm.c) advance together, a step at a time. They are sorted by
 * length, longest first: sequences with a k-th step come first. */
#ifndef ROT_ABREAST_H
#define ROT_ABREAST_H

#include "cuts.h"

enum {
    ROWS = 4,        /* sequences of a block: enough arithmetic to hide reading the weights from cache */
    STOP_STEPS = 16, /* steps between two checks of `stopped` */
};

static inline int64_t rows_of(int64_t B) { return B > 2 * ROWS ? (int64_t)ROWS : B > 1 ? (B + 1) / 2 : 1; }

/* The sequences of a block and their numbers of steps, longest first. */
typedef struct {
    int64_t count, b[ROWS], steps[ROWS];
} block;

static inline block block_of(int64_t index, int64_t B, int64_t T, const int64_t *lengths) {
    const int64_t rows = rows_of(B), first = index * rows;
    block s;
    s.count = least(B - first, rows);
    for (int64_t i = 0; i < s.count; i++) {
        const int64_t steps = steps_of(lengths, first + i, T);
        int64_t r = i;
        for (; r > 0 && s.steps[r - 1] < steps; r--) s.b[r] = s.b[r - 1], s.steps[r] = s.steps[r - 1];
        s.b[r] = first + i, s.steps[r] = steps;
    }
    return s;
}

/* Number of sequences that have a step k. */
static inline int64_t active_at(const block *s, int64_t k) {
    int64_t n = s->count;
    while (n > 0 && s->steps[n - 1] <= k) n--;
    return n;
}

/* Index in (B,T) of step k of the block's r-th sequence. */
static inline int64_t place_of(const block *s, int64_t r, int64_t k, int64_t T, int64_t reverse) {
    return s->b[r] * T + (reverse ? s->steps[r] - 1 - k : k);
}

#endif
