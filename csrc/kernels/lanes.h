/* Rows of n lanes; in kernels of real lanes, of n reals. */
#ifndef ROT_LANES_H
#define ROT_LANES_H

#include <string.h>

#include "cuts.h"
#include "steps.h"

static inline void copy_row(lane *restrict y, const lane *restrict x, int64_t n) {
    memcpy(y, x, (size_t)n * sizeof(lane));
}

static inline void zero_row(lane *y, int64_t n) { memset(y, 0, (size_t)n * sizeof(lane)); }

/* x or NULL, for zeros */
static inline void copy_or_zero_row(lane *restrict y, const lane *restrict x, int64_t n) {
    if (x)
        copy_row(y, x, n);
    else
        zero_row(y, n);
}

static inline void add_row(lane *restrict sum, const lane *restrict x, int64_t n) {
    for (int64_t j = 0; j < n; j++) sum[j] = lane_add(sum[j], x[j]);
}

/* The first n lanes of `rows` rows that begin `stride` apart; none where `rows` is negative. */
static inline void zero_rows(lane *y, int64_t rows, int64_t n, int64_t stride) {
    for (int64_t r = 0; r < rows; r++) zero_row(y + r * stride, n);
}

/* The steps of sequence b of y (B,T,n) from its `all` valid ones on. */
static inline void zero_padding(lane *y, int64_t b, int64_t all, int64_t T, int64_t n) {
    zero_row(y + (b * T + all) * n, (T - all) * n);
}

#endif
