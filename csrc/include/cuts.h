/* Whole numbers by which work is cut, and steps in the order they are taken. */
#ifndef ROT_CUTS_H
#define ROT_CUTS_H

#include "real.h"

ROT_INLINE int64_t least(int64_t x, int64_t y) { return x < y ? x : y; }
ROT_INLINE int64_t most(int64_t x, int64_t y) { return x > y ? x : y; }

/* How many pieces of at most `size` cover n. */
ROT_INLINE int64_t pieces_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

/* Parts that n things are summed in: one for every `each` of them, from 1 to `limit` parts. */
ROT_INLINE int64_t parts_of(int64_t n, int64_t each, int64_t limit) { return least(most(n / each, 1), limit); }

/* The valid steps of sequence b; lengths (B) or NULL for T of each. */
ROT_INLINE int64_t steps_of(const int64_t *lengths, int64_t b, int64_t T) { return lengths ? lengths[b] : T; }

/* Steps in the order they are taken: the k-th begins at first + k stride, counted in rows or in numbers. */
typedef struct {
    ptrdiff_t first, stride;
    int64_t steps;
} walk;

/* Those of tile i, at most `tile` of them, of sequence b with `all` valid steps, in rows of (B*T). Time runs from all-1
 * down with `reverse`, and tiles are counted in the order they are taken. */
ROT_INLINE walk walk_of(int64_t b, int64_t i, int64_t tile, int64_t all, int64_t T, bool reverse) {
    const int64_t done = i * tile;
    const walk w = {b * T + (reverse ? all - 1 - done : done), reverse ? -1 : 1, least(most(all - done, 0), tile)};
    return w;
}

#endif
