/* A step of a permuted scan on rows, for the kernel and the C library (permuted.c has the equations). */
#ifndef ROT_PERMUTED_H
#define ROT_PERMUTED_H

#include <math.h>

#include "lanes.h"

enum { STRIP = 16 }; /* columns processed at a time */

/* n numbers from one place on in a row of M_t = sum_k w[k] M[k]; `m` points to the place in M[0]. */
ROT_INLINE void mix_row(real *restrict row, const real *restrict w, const real *restrict m, int64_t choices, int64_t N,
                        int64_t n) {
    for (int64_t j = 0; j < n; j++) row[j] = 0;
    for (int64_t k = 0; k < choices; k++)
        for (int64_t j = 0; j < n; j++) row[j] += w[k] * m[k * N * N + j];
}

/* p (n), n <= STRIP: for each of n columns from one place on, the row of M_t's largest number, the first row if several
 * are equal; `m` points to the place in M[0]. Returns false if any number is NaN: then no row is right. */
ROT_INLINE bool choose_rows(int64_t *restrict p, const real *restrict w, const real *restrict m, int64_t choices,
                            int64_t N, int64_t n) {
    real best[STRIP], row[STRIP];
    bool numbers = true;
    mix_row(best, w, m, choices, N, n);
    for (int64_t j = 0; j < n; j++) p[j] = 0, numbers &= !isnan(best[j]);
    for (int64_t i = 1; i < N; i++) {
        mix_row(row, w, m + i * N, choices, N, n);
        for (int64_t j = 0; j < n; j++) {
            numbers &= !isnan(row[j]);
            if (row[j] > best[j]) best[j] = row[j], p[j] = i;
        }
    }
    return numbers;
}

ROT_INLINE cplx pair_of(const real *x, int64_t N, int64_t j) {
    const cplx one = {x[j], x[N + j]};
    return one;
}
ROT_INLINE void set_pair(real *x, int64_t N, int64_t j, cplx one) { x[j] = one.re, x[N + j] = one.im; }

/* The state after a step with NaN in M_t. */
ROT_INLINE void lose_lanes(real *h, int64_t N) {
    for (int64_t j = 0; j < 2 * N; j++) h[j] = (real)NAN;
}

/* h (2,N) += P D h_prev, for n columns; h_prev, p and d point to the first column. */
ROT_INLINE void scatter_lanes(real *restrict h, const real *restrict h_prev, const int64_t *restrict p,
                              const real *restrict d, int64_t N, int64_t n) {
    for (int64_t j = 0; j < n; j++)
        set_pair(h, N, p[j], cplx_fma(pair_of(d, N, j), pair_of(h_prev, N, j), pair_of(h, N, p[j])));
}

#endif
