/* Functions of a few rows (rows, D) that kernels share: channel and layer norm, moments, dropout. */
#ifndef ROT_ROWS_H
#define ROT_ROWS_H

#include <math.h>
#include <string.h>

#include "dropout.h"
#include "lanes.h"
#include "magnitude.h"
#include "moments.h"
#include "vector.h"

/* ----------------------------------------------------------------------------------------------- channel norm */

/* y = gain (x - center) + offset, the vectors (D) */
static inline void affine_rows(real *restrict y, const real *restrict x, const real *restrict center,
                               const real *restrict gain, const real *restrict offset, int64_t rows, int64_t D) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++) y[r * D + d] = channel_norm(x[r * D + d], center[d], gain[d], offset[d]);
}

/* dx = direct + slope (x - center) + shift, the vectors (D) */
static inline void add_statistics_adjoint(real *restrict dx, const real *restrict direct, const real *restrict x,
                                          const real *restrict center, const real *restrict slope,
                                          const real *restrict shift, int64_t rows, int64_t D) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++)
            dx[r * D + d] = channel_norm_adjoint(direct[r * D + d], x[r * D + d], center[d], slope[d], shift[d]);
}

/* ---------------------------------------------------------------------------------------------------- dropout */

enum { DRAW = 1024 }; /* random numbers drawn at once */

/* Draws for elements lo .. lo+n-1, n <= DRAW, of the sequence at `place` of its batch, 0 <= place < 2^32, lo+n <= 2^34:
 * scale where the random number reaches the threshold, else 0. Returns a pointer to the first draw in `drawn` (DRAW +
 * 4). */
static inline const real *draw_mask(real *restrict drawn, const dropout_key *key, int64_t place, int64_t lo,
                                    int64_t n) {
    uint32_t words[DRAW + 4 * PHILOX_LANES]; /* whole registers of counters, so a few more than are used */
    const dropout_key mine = *key;
    const int64_t skip = lo % 4, used = skip + n;
    for (int64_t i = 0; i < used; i += 4 * PHILOX_LANES) dropout_draw(words + i, mine, place, lo - skip + i);
    for (int64_t i = skip; i < used; i++) drawn[i] = dropout_factor(words[i], mine);
    return drawn + skip;
}

/* ----------------------------------------------------------------------------------------------------- moments */

enum { COLUMNS = 64 }; /* columns whose sums are merged at once */

/* part (3, D) of some rows: mean, squares and rest (moments.h); two passes while the rows are in cache. */
static inline void moments_rows(real *restrict part, const real *restrict x, int64_t rows, int64_t D) {
    real *restrict mean = part, *restrict squares = part + D, *restrict rest = part + 2 * D;
    memset(part, 0, (size_t)(3 * D) * sizeof(real));
    if (!rows) return;
    const real share = 1 / (real)rows;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++) mean[d] += x[r * D + d];
    for (int64_t d = 0; d < D; d++) mean[d] *= share;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t d = 0; d < D; d++) {
            const real c = x[r * D + d] - mean[d];
            rest[d] += c;
            squares[d] += c * c;
        }
    }
}

/* mean, var (D) of all n > 0 rows from `parts` (count, 3, D), of rows[c] rows each. */
static inline void merge_moments(real *restrict mean, real *restrict var, const real *restrict parts,
                                 const int64_t *restrict rows, int64_t count, int64_t D) {
#pragma omp parallel for schedule(static) if (count * D > 32768)
    for (int64_t lo = 0; lo < D; lo += COLUMNS) {
        const int64_t width = least(D - lo, COLUMNS);
        double m[COLUMNS] = {0}, v[COLUMNS] = {0}, n = 0;
        for (int64_t c = 0; c < count; c++) {
            const real *const part = parts + c * 3 * D + lo;
            const double weight = (double)rows[c];
            n += weight;
            for (int64_t d = 0; d < width; d++) m[d] += part_sum(weight, part[d], part[2 * D + d]);
        }
        for (int64_t d = 0; d < width; d++) m[d] /= n;
        for (int64_t c = 0; c < count; c++) {
            const real *const part = parts + c * 3 * D + lo;
            const double weight = (double)rows[c];
            for (int64_t d = 0; d < width; d++)
                v[d] += part_squares(weight, part[d], part[D + d], part[2 * D + d], m[d]);
        }
        for (int64_t d = 0; d < width; d++) {
            mean[lo + d] = (real)m[d];
            var[lo + d] = variance_of(v[d], n);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- layer norm */

static inline real row_sum(const real *x, int64_t n) {
    vec lanes = {0};
    real rest = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) lanes += load(x + i);
    for (; i < n; i++) rest += x[i];
    return lane_total(lanes) + rest;
}

static inline real row_squares(const real *x, real center, int64_t n) {
    vec lanes = {0};
    real rest = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const vec c = load(x + i) - center;
        lanes += c * c;
    }
    for (; i < n; i++) rest += (x[i] - center) * (x[i] - center);
    return lane_total(lanes) + rest;
}

static inline real row_mean(const real *x, int64_t n) {
    const real mean = row_sum(x, n) / (real)n;
    if (isfinite(mean)) return mean;
    double sum = 0; /* a sum in float overflows */
    for (int64_t i = 0; i < n; i++) sum += x[i];
    return (real)(sum / (double)n);
}

/* 1 / sqrt(square + eps) for the mean of (x - center)^2, where `square` is in range. Elsewhere it is computed from
 * numbers near 1, in double. */
static inline real rstd_of(real square, const real *x, real center, int64_t n, real eps) {
    if (squares_in_range(square, eps)) return (real)(1 / sqrt((double)(square + eps)));
    magnitude largest = magnitude_of(ROT_SQRT(eps));
    for (int64_t i = 0; i < n; i++) largest = larger(largest, magnitude_of(x[i] - center));
    const double power = (double)power_to_one(largest);
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double c = power * ((double)x[i] - center);
        sum += c * c;
    }
    return (real)(power / sqrt(sum / (double)n + power * eps * power));
}

static inline real row_rstd(const real *x, real center, int64_t n, real eps) {
    return rstd_of(row_squares(x, center, n) / (real)n, x, center, n, eps);
}

typedef struct {
    real mean, rstd;
} row_moments;

/* y (D) of x (D), one row; rstd = 1 / sqrt(var + eps), over its D channels. */
static inline row_moments layer_norm_row(real *restrict y, const real *restrict x, const real *restrict scale,
                                         const real *restrict bias, int64_t D, real eps) {
    const real mean = row_mean(x, D);
    const row_moments m = {mean, row_rstd(x, mean, D, eps)};
    for (int64_t d = 0; d < D; d++) y[d] = layer_norm_step(layer_norm_xhat(x[d], m.mean, m.rstd), scale[d], bias[d]);
    return m;
}

/* The same without mean and bias; returns rstd = 1 / sqrt(mean x^2 + eps). */
static inline real rms_norm_row(real *restrict y, const real *restrict x, const real *restrict scale, int64_t D,
                                real eps) {
    const real rstd = row_rstd(x, 0, D, eps);
    for (int64_t d = 0; d < D; d++) y[d] = layer_norm_step(layer_norm_xhat(x[d], 0, rstd), scale[d], 0);
    return rstd;
}

#define UNIT_RMS_EPS 1e-5

/* y (D) = x / sqrt(mean x^2 + UNIT_RMS_EPS) */
static inline void unit_rms_row(real *restrict y, const real *restrict x, int64_t D) {
    const real rstd = row_rstd(x, 0, D, (real)UNIT_RMS_EPS);
    for (int64_t d = 0; d < D; d++) y[d] = layer_norm_xhat(x[d], 0, rstd);
}

/* Its adjoint, in place. */
static inline void unit_rms_row_adjoint(real *restrict dy, const real *restrict x, int64_t D) {
    const real rstd = row_rstd(x, 0, D, (real)UNIT_RMS_EPS);
    real along = 0;
    for (int64_t d = 0; d < D; d++) along += dy[d] * layer_norm_xhat(x[d], 0, rstd);
    along /= (real)D;
    for (int64_t d = 0; d < D; d++)
        dy[d] = layer_norm_step_adjoint(dy[d], layer_norm_xhat(x[d], 0, rstd), rstd, 0, along);
}

/* The adjoint of layer_norm_row: dx is overwritten, dscale and dbias (D) are added to. */
static inline void layer_norm_row_adjoint(real *restrict dx, real *restrict dscale, real *restrict dbias,
                                          const real *restrict dy, const real *restrict x, const real *restrict scale,
                                          row_moments m, int64_t D) {
    vec sums = {0}, products = {0};
    real sum_rest = 0, product_rest = 0;
    int64_t i = 0;
    for (; i + LANES <= D; i += LANES) {
        const vec d = load(dy + i), xhat = layer_norm_xhat_vec(load(x + i), m.mean, m.rstd);
        const vec g = d * load(scale + i);
        store(dscale + i, load(dscale + i) + d * xhat);
        store(dbias + i, load(dbias + i) + d);
        sums += g;
        products += g * xhat;
    }
    for (; i < D; i++) {
        const real xhat = layer_norm_xhat(x[i], m.mean, m.rstd), g = dy[i] * scale[i];
        dscale[i] += dy[i] * xhat;
        dbias[i] += dy[i];
        sum_rest += g;
        product_rest += g * xhat;
    }
    const real sum = (lane_total(sums) + sum_rest) / (real)D;
    const real product = (lane_total(products) + product_rest) / (real)D;
    for (int64_t d = 0; d < D; d++) {
        const real xhat = layer_norm_xhat(x[d], m.mean, m.rstd);
        dx[d] = layer_norm_step_adjoint(dy[d] * scale[d], xhat, m.rstd, sum, product);
    }
}

#endif
