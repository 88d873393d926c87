/* Helpers that split work into pieces, and walks over time steps in either direction. */
#ifndef ROT_CUTS_H
#define ROT_CUTS_H

#include "real.h"

ROT_INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
ROT_INLINE int64_t most(int64_t x, int64_t y) { return x > y ? x : y; }

/* ceil(n / size): the number of pieces of at most `size` that cover n. */
ROT_INLINE int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Number of partial sums for n terms: one per `each` terms, at least 1 and at most `limit`. */
ROT_INLINE int64_t parts_of(int64_t n, int64_t each, int64_t limit) { return least(most(n / each, 1), limit); }

/* Number of valid steps of sequence b; lengths (B), or NULL if every sequence has T. */
ROT_INLINE int64_t steps_of(const int64_t *lengths, int64_t b, int64_t T) { return lengths ? lengths[b] : T; }

/* A walk over time steps: the k-th begins at first + k stride, counted in rows or in elements. */
typedef struct {
    ptrdiff_t first, stride;
    int64_t steps;
} walk;

/* The walk over tile i (at most `tile` steps) of sequence b, which has `all` valid steps; in rows of (B*T). With
 * `reverse`, time runs from all-1 down to 0. Tiles are numbered in the order of the walk. */
ROT_INLINE walk walk_of(int64_t b, int64_t i, int64_t tile, int64_t all, int64_t T, bool reverse) {
    const int64_t done = i * tile;
    const walk w = {b * T + (reverse ? all - 1 - done : done), reverse ? -1 : 1, least(most(all - done, 0), tile)};
    return w;
}

#endif
