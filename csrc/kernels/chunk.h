/* Scans whose transition is one number for each head (ssd.c, mlstm.c), in chunks of CHUNK steps as products of
 * matrices: products with the square (CHUNK,CHUNK) of a chunk's pairs of steps (k,j), of which only the lower triangle
 * counts, and rows of a chunk. Products with a triangle are computed in bands of BAND rows, up to the diagonal. */
#ifndef ROT_CHUNK_H
#define ROT_CHUNK_H

#include <assert.h>

#include "gemm_tile.h"
#include "kernels.h"
#include "mixer.h"
#include "rows.h"

enum { CHUNK = SSD_CHUNK, SQUARE = CHUNK * CHUNK, BAND = 16 };
static_assert(CHUNK % BAND == 0 && BAND % LANES == 0, "a row of a band is whole vectors");

/* The numbers of a chunk in rows (B*T, width): the place of its first step, and the distance to the next step. */
typedef struct {
    int64_t first, row;
} place;

static inline place place_of(walk w, int64_t width, int64_t at) {
    const place a = {w.first * width + at, w.stride * width};
    return a;
}

/* ---- products with lower triangles, band by band ---- */

/* Number of columns in the band of row k: in whole vectors, and at most n */
static inline int64_t whole_band(int64_t k) { return (k / BAND + 1) * BAND; }
static inline int64_t band_of(int64_t k, int64_t n) { return least(whole_band(k), n); }

/* square (n,n) <- x w, x (n,depth), w (depth,n) packed */
static inline void lower_product(real *square, gemm_view x, const real *packed, int64_t n, int64_t depth) {
    for (int64_t k = 0; k < n; k += BAND) {
        const gemm_view band = {x.at + k * x.row, x.row, x.step};
        const int64_t columns = band_of(k, n);
        unrounded_product(square + k * CHUNK, CHUNK, NULL, 0, band, packed, columns - k, depth, columns);
    }
}

/* y (rows,columns) += x w, w (depth,columns) packed in panels of n rows; depth may be less */
static inline void add_band(real *y, int64_t row, gemm_view x, const real *packed, int64_t n, int64_t rows,
                            int64_t depth, int64_t columns) {
    K(gemm_product)(y, row, y, row, x, packed, n * NR, rows, depth, columns);
}

/* y (n,columns) += square w, w (n,columns) packed; the square is zero above the diagonal */
static inline void add_lower(real *y, int64_t row, const real *square, const real *packed, int64_t n, int64_t columns) {
    for (int64_t k = 0; k < n; k += BAND) {
        const gemm_view band = {square + k * CHUNK, CHUNK, 1};
        const int64_t end = band_of(k, n);
        add_band(y + k * row, row, band, packed, n, end - k, end, columns);
    }
}

/* y += square^T w */
static inline void add_lower_transposed(real *y, int64_t row, const real *square, const real *packed, int64_t n,
                                        int64_t columns) {
    for (int64_t k = 0; k < n; k += BAND) {
        const gemm_view band = {square + k * CHUNK + k, 1, CHUNK};
        add_band(y + k * row, row, band, packed + k * NR, n, band_of(k, n) - k, n - k, columns);
    }
}

/* z <- x y of squares; any two may be the same */
static inline void multiply_lower(real *z, const real *x, const real *y, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = 0; j < band_of(k, n); j++) z[k * CHUNK + j] = x[k * CHUNK + j] * y[k * CHUNK + j];
}

/* ---- rows of a chunk ---- */

/* z (n,width) <- factor_k x_k, rows of x `row` apart; z may be x */
static inline void scale_rows(real *z, const real *factor, const real *x, int64_t row, int64_t n, int64_t width) {
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = 0; j < width; j++) z[k * width + j] = factor[k] * x[k * row + j];
}

static inline void scale_state(real *h, real factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) h[i] *= factor;
}

/* dlog[i], the gradient of the logarithm of step i's transition. The transition is a factor of every decay past step i:
 * in `pairs` (k,j), from step j to step k, if j < i <= k; in `since`, from the state before the chunk to step k, if i
 * <= k; in `until`, from step j to the state after the chunk, if j < i; and in `whole`, from the state before the chunk
 * to the state after it. Each term is a decayed number times its gradient. Only sums of terms: no difference of two
 * sums cancels. */
static inline void decays_adjoint(real *restrict dlog, const real *restrict pairs, const real *restrict since,
                                  const real *restrict until, real whole, int64_t n) {
    real later[CHUNK] = {0}, sum = 0; /* sums of pairs (k,j) over k >= i, for each j */
    for (int64_t i = n - 1; i >= 0; i--) {
        add_row(later, pairs + i * CHUNK, i);
        sum += since[i];
        dlog[i] = whole + sum + row_sum(later, i);
    }
    sum = 0;
    for (int64_t i = 0; i < n; i++) {
        dlog[i] += sum;
        sum += until[i];
    }
}

#endif
