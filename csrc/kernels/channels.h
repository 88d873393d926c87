/* Blocks of channels, for recurrences with several states for each channel: their numbers for a step are a cache line.
 */
#ifndef ROT_CHANNELS_H
#define ROT_CHANNELS_H

#include "cuts.h"
#include "lanes.h"
#include "vector.h"

enum {
    VECTORS = 64 / VECTOR_BYTES, /* registers of a block: a cache line */
    WIDTH = VECTORS * LANES,     /* channels of a block */
};

static inline vec at(const real *row, int v) { return load(row + v * LANES); }
static inline void put(real *row, int v, vec value) { store(row + v * LANES, value); }

/* The n channels of a block, from lo on. */
typedef struct {
    int64_t lo, n;
} span;

static inline span span_of(int64_t D, int64_t block) {
    const int64_t lo = block * WIDTH;
    const span s = {lo, least(D - lo, WIDTH)};
    return s;
}

/* Copies n channels of a block. A whole block, the usual case, needs no call of memcpy. */
static inline void copy_block(real *restrict to, const real *restrict from, int64_t n) {
    if (n == WIDTH)
        copy_row(to, from, WIDTH);
    else
        copy_row(to, from, n);
}

/* The same, with zeros after them. There are usually none, so no call of memset. */
static inline void load_block(real *restrict to, const real *restrict from, int64_t n) {
    copy_block(to, from, n);
    for (int64_t j = n; j < WIDTH; j++) to[j] = 0;
}

static inline void add_pairs(real *restrict sums, const real *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sums[i] = x[2 * i] + x[2 * i + 1];
}

/* The sums over each of n registers (n, LANES), in one of the two arrays, which are overwritten. */
static inline const real *register_totals(real *spread, real *other, int64_t n) {
    real *sums = spread, *next = other;
    for (int64_t width = LANES / 2; width; width /= 2) {
        add_pairs(next, sums, n * width);
        real *const swap = sums;
        sums = next, next = swap;
    }
    return sums;
}

#endif
