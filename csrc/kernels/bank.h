/* Functions for recurrences with a bank of N complex states for each channel (bank.c, dplr_bank.c). A task is a
 * sequence, or a slot of sequences, and a block of CHANNELS channels. SIMD goes across channels. Every coefficient of a
 * state is a row of the block. Complex numbers are stored as (re, im) pairs. */
#ifndef ROT_BANK_H
#define ROT_BANK_H

#include <string.h>

#include "cuts.h"
#include "vector.h"
#include "workspace.h"

enum {
    CHANNELS = 128 / sizeof(real), /* channels of a block */
    SLOTS = 16,                    /* partial sums of the gradients of coefficients */
    SERIAL = 65536,                /* total number of states below which one thread is used */
};

/* Rows of a block: the parts of a coefficient, of a state or of its sums. */
enum { RE, IM, PARTS };

/* Rows (steps, lanes) of a matrix as vectors, zero beyond `lanes`, and back. */
static inline void gather(vec *restrict to, const real *restrict x, walk w, int64_t D, int64_t lanes) {
    x += w.first * D;
    for (int64_t k = 0; k < w.steps; k++, x += w.stride * D) {
        if (lanes == LANES) {
            to[k] = load(x);
            continue;
        }
        memset(to + k, 0, sizeof *to);
        memcpy(to + k, x, (size_t)lanes * sizeof(real));
    }
}

static inline void scatter(real *restrict x, const vec *restrict from, walk w, int64_t D, int64_t lanes) {
    x += w.first * D;
    for (int64_t k = 0; k < w.steps; k++, x += w.stride * D) memcpy(x, from + k, (size_t)lanes * sizeof(real));
}

/* rows (count, PARTS, CHANNELS) <- channels lo .. lo+n-1 of x (D, count, PARTS) or zeros, and back. */
static inline void to_rows(real *restrict rows, const real *restrict x, int64_t lo, int64_t n, int64_t count) {
    memset(rows, 0, (size_t)(count * PARTS * CHANNELS) * sizeof(real));
    for (int64_t j = 0; x && j < n; j++)
        for (int64_t k = 0; k < count * PARTS; k++) rows[k * CHANNELS + j] = x[(lo + j) * count * PARTS + k];
}

static inline void from_rows(real *restrict x, const real *restrict rows, int64_t lo, int64_t n, int64_t count) {
    for (int64_t j = 0; j < n; j++)
        for (int64_t k = 0; k < count * PARTS; k++) x[(lo + j) * count * PARTS + k] = rows[k * CHANNELS + j];
}

/* The place of the states before tile i of sequence b in carries (B,tiles,N,2,D), for the block that begins at channel
 * lo. */
ROT_INLINE int64_t carry_of(int64_t b, int64_t i, int64_t tiles, int64_t N, int64_t D, int64_t lo) {
    return (b * tiles + i) * N * PARTS * D + lo;
}

static inline void save_states(real *restrict carry, const real *restrict states, int64_t N, int64_t D, int64_t n) {
    for (int64_t k = 0; k < N * PARTS; k++) memcpy(carry + k * D, states + k * CHANNELS, (size_t)n * sizeof(real));
}

/* A complex state or coefficient, of LANES channels. */
ROT_ALWAYS_INLINE cplx_vec load_pair(const real *rows) {
    const cplx_vec h = {load(rows), load(rows + CHANNELS)};
    return h;
}

ROT_ALWAYS_INLINE void store_pair(real *rows, cplx_vec h) { store(rows, h.re), store(rows + CHANNELS, h.im); }

/* The same for the first lanes of a carry, with zeros after them. */
ROT_ALWAYS_INLINE cplx_vec load_carry(const real *carry, int64_t D, int64_t lanes) {
    cplx_vec h = {{0}, {0}};
    memcpy(&h.re, carry + RE * D, (size_t)lanes * sizeof(real));
    memcpy(&h.im, carry + IM * D, (size_t)lanes * sizeof(real));
    return h;
}

/* Coefficients of the states: rows (blocks, states, count, PARTS, CHANNELS) <- `count` arrays (D,N,2), zero beyond D
 * and N; `states` is at least N. Then follows skip (blocks, CHANNELS). NULL if memory is exhausted. */
static inline real *pack_coefficients(const real *const *arrays, int64_t count, const real *restrict skip, int64_t D,
                                      int64_t N, int64_t states) {
    const int64_t blocks = pieces_of(D, CHANNELS), width = count * PARTS * CHANNELS, size = states * width;
    const int64_t sizes[] = {(int64_t)sizeof(real), blocks, states * count * PARTS + 1, CHANNELS};
    real *const packed = (real *)workspace(sizes, sizeof sizes / sizeof *sizes);
    if (!packed) return NULL;
    memset(packed, 0, (size_t)(blocks * (size + CHANNELS)) * sizeof(real));
    for (int64_t d = 0; d < D; d++) {
        real *const rows = packed + d / CHANNELS * size + d % CHANNELS;
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < count * PARTS; k++)
                rows[n * width + k * CHANNELS] = arrays[k / PARTS][(d * N + n) * PARTS + k % PARTS];
    }
    for (int64_t d = 0; d < D; d++) packed[blocks * size + d] = skip[d];
    return packed;
}

/* to (lanes) += from */
static inline void add_wide(double *restrict to, const vec *restrict from) {
    real of[LANES];
    memcpy(of, from, sizeof of);
    for (int j = 0; j < LANES; j++) to[j] += (double)of[j];
}

/* Size of a block's sums: a row for every part of every coefficient, and a last row for skip. */
ROT_INLINE int64_t sums_of(int64_t count, int64_t states) { return (states * count * PARTS + 1) * CHANNELS; }

/* Gradients of `count` coefficients (D,N,2) and of skip (D) <- sums (slots, blocks, sums_of), slot after slot. */
static inline void add_slots(real *const *gradients, int64_t count, real *restrict dskip, const double *restrict sums,
                             int64_t slots, int64_t D, int64_t N, int64_t states) {
    const int64_t blocks = pieces_of(D, CHANNELS), size = sums_of(count, states), width = count * PARTS;
    for (int64_t d = 0; d < D; d++) {
        for (int64_t k = 0; k <= N * width; k++) {
            const int64_t row = k == N * width ? states * width : k;
            const double *const of = sums + d / CHANNELS * size + row * CHANNELS + d % CHANNELS;
            double sum = 0;
            for (int64_t slot = 0; slot < slots; slot++) sum += of[slot * blocks * size];
            if (k == N * width)
                dskip[d] = (real)sum;
            else
                gradients[k % width / PARTS][(d * N + k / width) * PARTS + k % PARTS] = (real)sum;
        }
    }
}

#endif
