/* Blocks of channels, for recurrences with several states for each channel: their numbers for a step are a cache line.
 */
#ifndef ROT_CHANNELS_H
#define ROT_CHANNELS_H

#include "cuts.h"
#include "lanes.h"
#include "vector.h"

#ifndef LINES
#define LINES 1
#endif

enum {
    VECTORS = LINES * 64 / VECTOR_BYTES, /* registers of a block of LINES cache lines */
    WIDTH = VECTORS * LANES,             /* channels of a block */
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

/* Copies n channels of a block. A whole block or register, the usual cases, needs no call of memcpy. */
static inline void copy_block(real *restrict to, const real *restrict from, int64_t n) {
    if (n == WIDTH)
        copy_row(to, from, WIDTH);
    else if (n == LANES)
        copy_row(to, from, LANES);
    else
        copy_row(to, from, n);
}

/* The same, with zeros after them. */
static inline void load_block(real *restrict to, const real *restrict from, int64_t n) {
    if (n < WIDTH) zero_row(to, WIDTH);
    copy_block(to, from, n);
}

/* Sums of neighbours of a and b, in parts of 16 bytes: in float {a0 + a1, a2 + a3, b0 + b1, b2 + b3} of each. */
ROT_ALWAYS_INLINE vec add_within_parts(vec a, vec b) {
#if defined(__AVX2__) && ROT_DOUBLE
    return (vec)INTRINSIC(unpacklo_pd)(a, b) + (vec)INTRINSIC(unpackhi_pd)(a, b);
#elif defined(__AVX2__)
    return (vec)INTRINSIC(shuffle_ps)(a, b, 0x88) + (vec)INTRINSIC(shuffle_ps)(a, b, 0xdd);
#elif ROT_DOUBLE
    const vec even = {a[0], b[0]}, odd = {a[1], b[1]};
    return even + odd;
#else
    const vec even = {a[0], a[2], b[0], b[2]}, odd = {a[1], a[3], b[1], b[3]};
    return even + odd;
#endif
}

/* Sums of neighbouring parts of a and b. */
#if defined(__AVX512F__)
ROT_ALWAYS_INLINE vec add_parts(vec a, vec b) {
    return (vec)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x88) +
           (vec)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xdd);
}
#elif defined(__AVX2__)
ROT_ALWAYS_INLINE vec add_parts(vec a, vec b) {
    return (vec)_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x20) +
           (vec)_mm256_permute2f128_ps((__m256)a, (__m256)b, 0x31);
}
#endif

/* The sums within parts of as many registers as a part has numbers. */
ROT_ALWAYS_INLINE vec totals_of_parts(const real *x) {
    const vec first = add_within_parts(load(x), load(x + LANES));
    return ROT_DOUBLE ? first : add_within_parts(first, add_within_parts(load(x + 2 * LANES), load(x + 3 * LANES)));
}

/* The sums over each of LANES registers. */
ROT_ALWAYS_INLINE vec totals_of_group(const real *x) {
#if defined(__AVX2__)
    enum { NEXT = 16 / sizeof(real) * LANES };
    const vec half = add_parts(totals_of_parts(x), totals_of_parts(x + NEXT));
#endif
#if defined(__AVX512F__)
    return add_parts(half, add_parts(totals_of_parts(x + 2 * NEXT), totals_of_parts(x + 3 * NEXT)));
#elif defined(__AVX2__)
    return half;
#else
    return totals_of_parts(x);
#endif
}

/* sums <- the sums over each of n registers of x, pairwise; both have room for whole groups of LANES, and what x has
 * after n registers is overwritten. */
static inline void register_totals(real *restrict sums, real *restrict x, int64_t n) {
    zero_row(x + n * LANES, (LANES - n % LANES) % LANES * LANES);
    for (int64_t i = 0; i < n; i += LANES) store(sums + i, totals_of_group(x + i * LANES));
}

#endif
