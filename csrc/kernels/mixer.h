/* Channel mixers, a token at a time: v <- Q v and its adjoint. mixer.c walks over tokens with them.
 *
 * Q depends on vectors u and gains alpha; mixer_prepare computes the numbers that depend on u alone:
 *   MIXER_HOUSEHOLDER   Q = prod_{i=0..R-1} (I - 2 alpha_i w_i w_i^T),   w = u / |u|, u (R,D), alpha (R)
 *   MIXER_DPLR          Q = I - 2 sum_i alpha_i w_i w_i^T
 *   MIXER_LOW_RANK      Q = sum_i alpha_i w_i w_i^T
 *   MIXER_KRONECKER     Q v = v - 2 Left^T X Right^T,  v read as a matrix X (R, D/R);  Left = diag(alpha_left) W,
 *                       W = rownormalise(U U^T), Right likewise; u has the rows of the two upper triangular U, left
 *                       first, and alpha has R + D/R gains
 *   MIXER_MONARCH       Q = I - blockdiag(alpha_k U_k U_k^T), with D/R blocks of R channels; u has the rows of each
 *                       upper triangular U_k
 *   MIXER_GRAM          Q = alpha U U^T, U upper triangular, R = D
 *   MIXER_MATRIX        Q = u (D,D), without gains, R = D
 *   MIXER_ROTATION      Q = R_0 .. R_{R-1}; each R_k turns D/2 planes by the angles of row k of u (R,D/2), without
 *                       gains, D even; plane i of R_k has the lanes i and D/2 + (i + s) mod D/2, with s of plane_shift
 *
 * Squares of large and of small numbers overflow and vanish. So a triangle U is first multiplied by a power of two that
 * brings its largest number near 1. W does not depend on the power. Gains of Monarch and Gram that are `normalised`,
 * by mixer_gains.h, belong to the multiplied U; with other gains, U is taken as it is.
 */
#ifndef ROT_MIXER_H
#define ROT_MIXER_H

#include <math.h>
#include <string.h>

#include "kernels.h"
#include "lanes.h"
#include "magnitude.h"
#include "rotation.h"

/* A function that is slow to compile is compiled once per file: the time of a call is negligible beside its loops. */
#define APART __attribute__((noinline, unused)) static

enum { MIX_SUMS = 128 / sizeof(real) };

typedef struct {
    int64_t form, R, D;
} mixer;

/* Squared norms from MIX_SMALL to MIX_LARGE are exact to rounding; a vector outside that range is first scaled by
 * MIX_GROW or MIX_SHRINK. */
#if ROT_DOUBLE
static const real MIX_SMALL = 0x1p-900, MIX_LARGE = 0x1p900, MIX_GROW = 0x1p800, MIX_SHRINK = 0x1p-600;
#else
static const real MIX_SMALL = 0x1p-100f, MIX_LARGE = 0x1p100f, MIX_GROW = 0x1p100f, MIX_SHRINK = 0x1p-70f;
#endif

#if ROT_DEVICE
ROT_ROW real dot(const real *restrict a, const real *restrict b, int64_t n) {
    real sum = 0;
    EACH_OF_ROW(j, n) sum += a[j] * b[j];
    return warp_sum(sum);
}
#else
/* a . b in several partial sums: the loop can be vectorised without reordering. */
ROT_ROW real dot(const real *restrict a, const real *restrict b, int64_t n) {
    real sum[MIX_SUMS] = {0};
    int64_t j = 0;
    for (; j + MIX_SUMS <= n; j += MIX_SUMS)
        for (int k = 0; k < MIX_SUMS; k++) sum[k] += a[j + k] * b[j + k];
    for (int k = 0; j + k < n; k++) sum[k] += a[j + k] * b[j + k];
    for (int half = MIX_SUMS / 2; half; half /= 2)
        for (int k = 0; k < half; k++) sum[k] += sum[half + k];
    return sum[0];
}
#endif

ROT_ROW void scale_row(real *restrict out, real factor, const real *restrict x, int64_t n) {
    EACH_OF_ROW(j, n) out[j] = factor * x[j];
}

ROT_ROW void add_scaled(real *restrict sum, real factor, const real *restrict x, int64_t n) {
    EACH_OF_ROW(j, n) sum[j] += factor * x[j];
}

/* w <- u / |u|, or 0 for the zero vector. Returns 1 / |u|, or 0. */
ROT_ROW real normalise(real *restrict w, const real *restrict u, int64_t n) {
    real square = dot(u, u, n), scale = 1;
    if (square < MIX_SMALL || square > MIX_LARGE) {
        scale = square < MIX_SMALL ? MIX_GROW : MIX_SHRINK;
        scale_row(w, scale, u, n);
        square = dot(w, w, n);
    }
    const real inverse = square == 0 ? 0 : 1 / ROT_SQRT(square);
    EACH_OF_ROW(j, n) w[j] = scale * u[j] * inverse;
    return scale * inverse;
}

/* du += the gradient of u, from dw for w = u / |u|:  (dw - w (w . dw)) / |u| */
ROT_ROW void normalise_adjoint(real *restrict du, const real *restrict dw, const real *restrict w, real inverse,
                               int64_t n) {
    const real along = dot(w, dw, n);
    EACH_OF_ROW(j, n) du[j] += inverse * (dw[j] - along * w[j]);
}

ROT_INLINE int64_t triangle(int64_t n) { return n * (n + 1) / 2; }
ROT_INLINE int64_t factor_room(int64_t n) { return 2 * n * (n + 1); }
ROT_INLINE int64_t gram_room(int64_t n) { return 2 * n * n + 1; }

/* Whether a mixer is made of vectors, for any R. In the other forms R divides D, or is D. A mixture is none of them. */
ROT_INLINE bool has_vectors(int64_t form) { return form <= MIXER_LOW_RANK; }
ROT_INLINE bool mixer_fits(int64_t form, int64_t R, int64_t D) {
    if (has_vectors(form)) return true;
    if (form == MIXER_ROTATION) return D % 2 == 0;
    if (form > MIXER_ROTATION) return false;
    return R >= 1 && (form == MIXER_GRAM || form == MIXER_MATRIX ? D == R : D % R == 0);
}

/* Sizes: of u and alpha of one token, of the numbers prepared from u, and of the adjoint's scratch. */
ROT_INLINE int64_t mixer_columns(mixer m) { return m.R ? m.D / m.R : 0; }
ROT_INLINE int64_t mixer_u(mixer m) {
    const int64_t a = m.R, b = mixer_columns(m);
    switch (m.form) {
    case MIXER_KRONECKER: return triangle(a) + triangle(b);
    case MIXER_MONARCH:
    case MIXER_GRAM: return b * triangle(a);
    case MIXER_ROTATION: return a * (m.D / 2);
    default: return a * m.D;
    }
}
ROT_INLINE int64_t mixer_alpha(mixer m) {
    const int64_t a = m.R, b = mixer_columns(m);
    switch (m.form) {
    case MIXER_KRONECKER: return a + b;
    case MIXER_MONARCH:
    case MIXER_GRAM: return b;
    case MIXER_MATRIX:
    case MIXER_ROTATION: return 0;
    default: return a;
    }
}
ROT_INLINE int64_t mixer_prepared(mixer m) {
    const int64_t a = m.R, b = mixer_columns(m);
    switch (m.form) {
    case MIXER_KRONECKER: return factor_room(a) + factor_room(b);
    case MIXER_MONARCH:
    case MIXER_GRAM: return b * gram_room(a);
    case MIXER_MATRIX:
    case MIXER_ROTATION: return a * m.D;
    default: return a * (m.D + 1);
    }
}
ROT_INLINE int64_t mixer_scratch(mixer m) {
    const int64_t a = m.R, b = mixer_columns(m);
    switch (m.form) {
    case MIXER_KRONECKER: return 4 * m.D + 3 * (a * a + b * b);
    case MIXER_MONARCH:
    case MIXER_GRAM: return a * a + 2 * a;
    case MIXER_MATRIX:
    case MIXER_ROTATION: return m.D;
    default: return a * (m.D + 1);
    }
}

/* ------------------------------------------------------------------------------------ Householder, DPLR, low rank */

/* All three use the step  v <- v - 2 g s w  of steps.h; low rank has gain -alpha / 2, and v = 0. */
ROT_INLINE real mixer_unit(mixer m) { return m.form == MIXER_LOW_RANK ? (real)-0.5 : 1; }

/* v <- v - 2 gain w s */
ROT_ROW void reflect_row(real *restrict v, const real *restrict w, real gain, real s, int64_t D) {
    EACH_OF_ROW(j, D) v[j] = reflect_step(v[j], w[j], gain, s);
}

/* w (R,D), then 1 / |u| (R) */
ROT_ROW void prepare_vectors(real *w, const real *u, mixer m) {
    for (int64_t i = 0; i < m.R; i++) set_one(w + m.R * m.D + i, normalise(w + i * m.D, u + i * m.D, m.D));
}

/* v <- Q v = Q^T v of MIXER_DPLR and low rank; s (R) <- w . v */
ROT_ROW void apply_sum(real *restrict v, real *restrict s, const real *w, const real *alpha, mixer m) {
    for (int64_t i = 0; i < m.R; i++) set_one(s + i, dot(w + i * m.D, v, m.D));
    if (m.form == MIXER_LOW_RANK) zero_row(v, m.D);
    for (int64_t i = 0; i < m.R; i++) reflect_row(v, w + i * m.D, mixer_unit(m) * alpha[i], s[i], m.D);
}

/* The last reflection acts first. */
ROT_ROW void apply_product(real *restrict v, const real *w, const real *alpha, mixer m) {
    for (int64_t i = m.R - 1; i >= 0; i--) reflect_row(v, w + i * m.D, alpha[i], dot(w + i * m.D, v, m.D), m.D);
}

/* v <- Q^T v: the first reflection acts first. */
ROT_ROW void apply_product_transposed(real *restrict v, const real *w, const real *alpha, mixer m) {
    for (int64_t i = 0; i < m.R; i++) reflect_row(v, w + i * m.D, alpha[i], dot(w + i * m.D, v, m.D), m.D);
}

/* du += inverse * (gradient of w, less its part along w), with s = w . v, q = w . g. */
ROT_ROW void add_direction(real *restrict du, const real *restrict v, const real *restrict g, const real *restrict w,
                           real gain, real inverse, real s, real q, int64_t D) {
    EACH_OF_ROW(j, D) du[j] += inverse * reflect_direction_adjoint(v[j], g[j], w[j], gain, s, q);
}

/* g (D) <- Q^T g; du and dalpha are added to; v (D) is the input of Q; scratch (R (D + 1)).
 * With q_i = w_i . g and s_i = w_i . v, each term is independent. */
ROT_ROW void adjoint_sum(real *g, real *du, real *dalpha, const real *v, const real *w, const real *alpha,
                         real *scratch, mixer m) {
    const real *const inverse = w + m.R * m.D;
    for (int64_t i = 0; i < m.R; i++) {
        const real s = dot(w + i * m.D, v, m.D), q = dot(w + i * m.D, g, m.D);
        add_to_one(dalpha + i, mixer_unit(m) * reflect_gain_adjoint(s, q));
        add_direction(du + i * m.D, v, g, w + i * m.D, mixer_unit(m) * alpha[i], inverse[i], s, q, m.D);
    }
    apply_sum(g, scratch, w, alpha, m);
}

/* The same for the product: one reflection after another, each with its own input. */
ROT_ROW void adjoint_product(real *g, real *du, real *dalpha, const real *x, const real *w, const real *alpha,
                             real *scratch, mixer m) {
    const int64_t R = m.R, D = m.D;
    real *const v = scratch, *const s = scratch + R * D;
    for (int64_t i = R - 1; i >= 0; i--) { /* v_i, the input of reflection i, becomes v_{i-1} */
        copy_row(v + i * D, i == R - 1 ? x : v + (i + 1) * D, D);
        if (i < R - 1) reflect_row(v + i * D, w + (i + 1) * D, alpha[i + 1], s[i + 1], D);
        set_one(s + i, dot(w + i * D, v + i * D, D));
    }
    for (int64_t i = 0; i < R; i++) {
        const real q = dot(w + i * D, g, D);
        add_to_one(dalpha + i, reflect_gain_adjoint(s[i], q));
        add_direction(du + i * D, v + i * D, g, w + i * D, alpha[i], w[R * D + i], s[i], q, D);
        reflect_row(g, w + i * D, alpha[i], q, D);
    }
}

/* -------------------------------------------------------------------------------------------------------- triangles */

/* The power of two by which the largest |number| of x (n) is near 1. */
ROT_ROW real power_of_row(const real *x, int64_t n) {
    magnitude largest = 0;
    EACH_OF_ROW(j, n) largest = larger(largest, magnitude_of(x[j]));
#if ROT_DEVICE
    largest = warp_largest(largest);
#endif
    return power_to_one(largest);
}

/* -------------------------------------------------------------------------------------------------------- Kronecker */

#if ROT_DEVICE
#include "kronecker.h"
#else

/* W (n,n), 1/|rows of U U^T| (n), U (n,n), its upper triangle given by rows times the power of two that follows (n):
 *   W = rownormalise(U U^T) */
APART void prepare_factor(real *restrict w, const real *restrict rows, int64_t n) {
    real *const inverse = w + n * n, *const U = inverse + n, *const product = U + n * n;
    const real power = power_of_row(rows, triangle(n));
    zero_row(U, n * n);
    for (int64_t i = 0; i < n; rows += n - i, i++) scale_row(U + i * n + i, power, rows, n - i);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            const int64_t from = i > j ? i : j;
            product[j] = dot(U + i * n + from, U + j * n + from, n - from);
        }
        inverse[i] = normalise(w + i * n, product, n);
    }
    for (int64_t j = 0; j < n; j++) product[j] = power;
}

/* rows += the gradient of the triangle, from dE for E = U U^T:  dU = (dE + dE^T) U;  room (n) is scratch. The power by
 * which U was multiplied follows U. */
APART void adjoint_triangle(real *restrict rows, const real *restrict dE, const real *restrict U, real *restrict room,
                            int64_t n) {
    for (int64_t i = 0; i < n; rows += n - i, i++) {
        zero_row(room, n);
        for (int64_t j = 0; j < n; j++) add_scaled(room + j, dE[i * n + j] + dE[j * n + i], U + j * n + j, n - j);
        add_scaled(rows, U[n * n], room + i, n - i);
    }
}

/* rows += the gradient of the triangle, from dW; dE (n,n) and room (n) are scratch:
 *   E = U U^T,   dE_i = (dW_i - W_i (W_i . dW_i)) / |E_i| */
APART void adjoint_factor(real *restrict rows, const real *restrict dW, const real *restrict w, real *restrict dE,
                          real *restrict room, int64_t n) {
    const real *const inverse = w + n * n, *const U = inverse + n;
    zero_row(dE, n * n);
    for (int64_t i = 0; i < n; i++) normalise_adjoint(dE + i * n, dW + i * n, w + i * n, inverse[i], n);
    adjoint_triangle(rows, dE, U, room, n);
}

/* inner (a,b) = X Right^T without the right gains, and gained = diag(left) inner diag(right) */
static inline void kronecker_inner(real *restrict inner, real *restrict gained, const real *x, const real *right_w,
                                   const real *left, const real *right, int64_t a, int64_t b) {
    for (int64_t i = 0; i < a; i++)
        for (int64_t k = 0; k < b; k++) {
            inner[i * b + k] = dot(x + i * b, right_w + k * b, b);
            gained[i * b + k] = left[i] * inner[i * b + k] * right[k];
        }
}

static inline void apply_kronecker(real *restrict v, const real *w, const real *alpha, real *scratch, mixer m) {
    const int64_t a = m.R, b = mixer_columns(m);
    const real *const left_w = w, *const right_w = w + factor_room(a);
    real *const inner = scratch, *const gained = scratch + m.D;
    kronecker_inner(inner, gained, v, right_w, alpha, alpha + a, a, b);
    for (int64_t p = 0; p < a; p++)
        for (int64_t i = 0; i < a; i++) add_scaled(v + p * b, -2 * left_w[i * a + p], gained + i * b, b);
}

/* Q^T X = X - 2 Left X Right;  outer (a,b) = W_left X, with W_left the left factor without its gains */
static inline void apply_kronecker_transposed(real *restrict v, const real *w, const real *alpha, real *scratch,
                                              mixer m) {
    const int64_t a = m.R, b = mixer_columns(m);
    const real *const left_w = w, *const right_w = w + factor_room(a);
    real *const outer = scratch;
    zero_row(outer, m.D);
    for (int64_t i = 0; i < a; i++)
        for (int64_t p = 0; p < a; p++) add_scaled(outer + i * b, left_w[i * a + p], v + p * b, b);
    for (int64_t i = 0; i < a; i++)
        for (int64_t k = 0; k < b; k++)
            add_scaled(v + i * b, -2 * alpha[i] * outer[i * b + k] * alpha[a + k], right_w + k * b, b);
}

/* g <- Q^T g; du and dalpha are added to; v is the input of Q. With Y = Left^T X Right^T, dY = -2 g:
 *   dgained = W_left dY,  dinner = diag(left) dgained diag(right),  dX = dinner W_right
 *   dW_left = gained dY^T,  dW_right = dinner^T X */
static inline void adjoint_kronecker(real *g, real *du, real *dalpha, const real *v, const real *w, const real *alpha,
                                     real *scratch, mixer m) {
    const int64_t a = m.R, b = mixer_columns(m), D = m.D;
    const real *const left_w = w, *const right_w = w + factor_room(a), *const left = alpha, *const right = alpha + a;
    real *const inner = scratch, *const gained = inner + D, *const dinner = gained + D, *const dgained = dinner + D;
    real *const dW_left = dgained + D, *const dW_right = dW_left + a * a;
    real *const spare = dW_right + b * b; /* 2 (a a + b b) */
    kronecker_inner(inner, gained, v, right_w, left, right, a, b);
    zero_row(dgained, D);
    zero_row(dW_right, b * b);
    for (int64_t i = 0; i < a; i++) {
        for (int64_t p = 0; p < a; p++) {
            add_scaled(dgained + i * b, -2 * left_w[i * a + p], g + p * b, b);
            dW_left[i * a + p] = -2 * dot(gained + i * b, g + p * b, b);
        }
        for (int64_t k = 0; k < b; k++) {
            const real d = dgained[i * b + k];
            dalpha[i] += d * inner[i * b + k] * right[k];
            dalpha[a + k] += d * inner[i * b + k] * left[i];
            dinner[i * b + k] = left[i] * d * right[k];
        }
        for (int64_t k = 0; k < b; k++) add_scaled(dW_right + k * b, dinner[i * b + k], v + i * b, b);
    }
    for (int64_t i = 0; i < a; i++)
        for (int64_t k = 0; k < b; k++) add_scaled(g + i * b, dinner[i * b + k], right_w + k * b, b);
    adjoint_factor(du, dW_left, left_w, spare, spare + a * a, a);
    adjoint_factor(du + triangle(a), dW_right, right_w, spare, spare + b * b, b);
}
#endif

/* -------------------------------------------------------------------------------------------------- Monarch, Gram */

/* G = U U^T (n,n), then U (n,n), its upper triangle given by rows times the power that follows, 1 unless `normalised`
 */
ROT_ROW void prepare_gram(real *restrict w, const real *restrict rows, bool normalised, int64_t n) {
    real *const U = w + n * n;
    const real power = normalised ? power_of_row(rows, triangle(n)) : 1;
    join_row();
    zero_row(U, n * n);
    set_one(U + n * n, power);
    for (int64_t i = 0; i < n; rows += n - i, i++) scale_row(U + i * n + i, power, rows, n - i);
    join_row();
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            const int64_t from = i > j ? i : j;
            set_one(w + i * n + j, dot(U + i * n + from, U + j * n + from, n - from));
        }
}

/* y (n) <- G x */
ROT_ROW void gram_times(real *restrict y, const real *restrict G, const real *restrict x, int64_t n) {
    join_row();
    for (int64_t i = 0; i < n; i++) set_one(y + i, dot(G + i * n, x, n));
}

/* A block is Q = kept I + factor alpha G */
ROT_INLINE real gram_kept(mixer m) { return m.form == MIXER_GRAM ? 0 : 1; }
ROT_INLINE real gram_factor(mixer m) { return m.form == MIXER_GRAM ? 1 : -1; }

/* v <- Q v = Q^T v */
ROT_ROW void apply_gram(real *v, const real *w, const real *alpha, real *scratch, mixer m) {
    const int64_t n = m.R;
    for (int64_t k = 0; k < mixer_columns(m); k++) {
        real *const part = v + k * n;
        gram_times(scratch, w + k * gram_room(n), part, n);
        EACH_OF_ROW(i, n) part[i] = gram_kept(m) * part[i] + gram_factor(m) * alpha[k] * scratch[i];
    }
    join_row();
}

/* g <- Q^T g; du and dalpha are added to; v is the input of Q:  dalpha = factor g . G v,  dG = factor alpha g v^T. */
ROT_ROW void adjoint_gram(real *g, real *du, real *dalpha, const real *v, const real *w, const real *alpha,
                          real *scratch, mixer m) {
    const int64_t n = m.R;
    real *const product = scratch, *const room = product + n, *const dG = room + n;
    for (int64_t k = 0; k < mixer_columns(m); k++) {
        const real *const G = w + k * gram_room(n), *const part = g + k * n, *const x = v + k * n;
        gram_times(product, G, x, n);
        add_to_one(dalpha + k, gram_factor(m) * dot(product, part, n));
        for (int64_t i = 0; i < n; i++) scale_row(dG + i * n, gram_factor(m) * alpha[k] * part[i], x, n);
        adjoint_triangle(du + k * triangle(n), dG, G + n * n, room, n);
    }
    apply_gram(g, w, alpha, scratch, m);
}

/* ----------------------------------------------------------------------------------------------------- a matrix */

/* v <- Q v */
ROT_ROW void apply_matrix(real *v, const real *w, real *scratch, int64_t n) {
    gram_times(scratch, w, v, n);
    copy_row(v, scratch, n);
    join_row();
}

/* v <- Q^T v */
ROT_ROW void apply_matrix_transposed(real *v, const real *w, real *scratch, int64_t n) {
    copy_row(scratch, v, n);
    join_row();
    zero_row(v, n);
    for (int64_t i = 0; i < n; i++) add_scaled(v, scratch[i], w + i * n, n);
    join_row();
}

/* g <- Q^T g; du is added to:  dQ = g v^T */
ROT_ROW void adjoint_matrix(real *g, real *du, const real *v, const real *w, real *scratch, int64_t n) {
    join_row();
    for (int64_t i = 0; i < n; i++) add_scaled(du + i * n, g[i], v, n);
    apply_matrix_transposed(g, w, scratch, n);
}

/* -------------------------------------------------------------------------------------------------------- rotation */

/* Factors 0, 1, 2, .. have shifts 0, 1, 3, 7, .., repeated from ceil(log2 D) on. The first m factors reach 2^m
 * lanes from each lane, for every even D. */
ROT_INLINE int64_t plane_shift(int64_t k, int64_t D) {
    int64_t levels = 1;
    while (levels < 62 && (int64_t)1 << levels < D) levels++;
    return D < 2 ? 0 : (((int64_t)1 << k % levels) - 1) % (D / 2);
}

/* An angle of a layer: between -largest and largest, and close to u near zero. */
ROT_INLINE real bounded_angle(real u, real largest) { return largest * vmath_tanh(u / largest); }

/* w: for each factor the cosines (D/2) and sines (D/2) of its angles */
ROT_ROW void prepare_rotation(real *restrict w, const real *restrict u, mixer m) {
    const int64_t half = m.D / 2;
    for (int64_t k = 0; k < m.R; k++, w += m.D, u += half) EACH_OF_ROW(i, half) {
            const cplx unit = unit_of((real)within_half_turn((double)u[i]));
            w[i] = unit.re;
            w[half + i] = unit.im;
        }
}

/* The pairs (x_i, y_i) turned by the angles of cosines c and sines sign s. */
ROT_ROW void turn_pairs(real *restrict x, real *restrict y, const real *restrict c, const real *restrict s, real sign,
                        int64_t n) {
    EACH_OF_ROW(i, n) {
        const cplx unit = {c[i], sign * s[i]}, pair = {x[i], y[i]}, turned = turn_step(unit, pair);
        x[i] = turned.re;
        y[i] = turned.im;
    }
}

/* v <- R_k v, or R_k^T v with sign -1 */
ROT_ROW void turn_planes(real *v, const real *w, real sign, int64_t k, mixer m) {
    const int64_t half = m.D / 2, shift = plane_shift(k, m.D), rest = half - shift;
    const real *const c = w + k * m.D, *const s = c + half;
    join_row();
    turn_pairs(v, v + half + shift, c, s, sign, rest);
    turn_pairs(v + rest, v + half, c + rest, s + rest, sign, shift);
    join_row();
}

/* The last factor acts first. */
ROT_ROW void apply_rotation(real *v, const real *w, mixer m) {
    for (int64_t k = m.R - 1; k >= 0; k--) turn_planes(v, w, 1, k, m);
}

ROT_ROW void apply_rotation_transposed(real *v, const real *w, mixer m) {
    for (int64_t k = 0; k < m.R; k++) turn_planes(v, w, -1, k, m);
}

/* du (n) += the gradients of the angles by which the pairs (x, y) were turned, with their gradients dx and dy */
ROT_ROW void add_angles(real *restrict du, const real *restrict x, const real *restrict y, const real *restrict dx,
                        const real *restrict dy, int64_t n) {
    EACH_OF_ROW(i, n) {
        const cplx turned = {x[i], y[i]}, grad = {dx[i], dy[i]};
        du[i] += turn_angle_adjoint(turned, grad);
    }
}

/* g <- Q^T g; du is added to. Q v is turned back factor by factor beside g. */
ROT_ROW void adjoint_rotation(real *g, real *du, const real *v, const real *w, real *turned, mixer m) {
    const int64_t half = m.D / 2;
    copy_row(turned, v, m.D);
    apply_rotation(turned, w, m);
    for (int64_t k = 0; k < m.R; k++, du += half) {
        const int64_t shift = plane_shift(k, m.D), rest = half - shift;
        join_row();
        add_angles(du, turned, turned + half + shift, g, g + half + shift, rest);
        add_angles(du + rest, turned + rest, turned + half, g + rest, g + half, shift);
        turn_planes(turned, w, -1, k, m);
        turn_planes(g, w, -1, k, m);
    }
}

/* ---------------------------------------------------------------------------------------------------- any form */

ROT_ROW void mixer_prepare(real *w, const real *u, bool normalised, mixer m) {
    if (m.form == MIXER_KRONECKER) {
        prepare_factor(w, u, m.R);
        prepare_factor(w + factor_room(m.R), u + triangle(m.R), mixer_columns(m));
    } else if (has_vectors(m.form)) {
        prepare_vectors(w, u, m);
    } else if (m.form == MIXER_MATRIX) {
        copy_row(w, u, m.R * m.D);
    } else if (m.form == MIXER_ROTATION) {
        prepare_rotation(w, u, m);
    } else {
        for (int64_t k = 0; k < mixer_columns(m); k++)
            prepare_gram(w + k * gram_room(m.R), u + k * triangle(m.R), normalised, m.R);
    }
}

ROT_ROW void mixer_apply(real *v, const real *w, const real *alpha, real *scratch, mixer m) {
    switch (m.form) {
    case MIXER_HOUSEHOLDER: apply_product(v, w, alpha, m); break;
    case MIXER_MATRIX: apply_matrix(v, w, scratch, m.D); break;
    case MIXER_ROTATION: apply_rotation(v, w, m); break;
    case MIXER_KRONECKER: apply_kronecker(v, w, alpha, scratch, m); break;
    case MIXER_MONARCH:
    case MIXER_GRAM: apply_gram(v, w, alpha, scratch, m); break;
    default: apply_sum(v, scratch, w, alpha, m); break;
    }
}

ROT_ROW void mixer_apply_transposed(real *v, const real *w, const real *alpha, real *scratch, mixer m) {
    switch (m.form) {
    case MIXER_HOUSEHOLDER: apply_product_transposed(v, w, alpha, m); break;
    case MIXER_MATRIX: apply_matrix_transposed(v, w, scratch, m.D); break;
    case MIXER_ROTATION: apply_rotation_transposed(v, w, m); break;
    case MIXER_KRONECKER: apply_kronecker_transposed(v, w, alpha, scratch, m); break;
    case MIXER_MONARCH:
    case MIXER_GRAM: apply_gram(v, w, alpha, scratch, m); break;
    default: apply_sum(v, scratch, w, alpha, m); break; /* Q is symmetric */
    }
}

ROT_ROW void mixer_adjoint(real *g, real *du, real *dalpha, const real *v, const real *w, const real *alpha,
                           real *scratch, mixer m) {
    switch (m.form) {
    case MIXER_HOUSEHOLDER: adjoint_product(g, du, dalpha, v, w, alpha, scratch, m); break;
    case MIXER_MATRIX: adjoint_matrix(g, du, v, w, scratch, m.D); break;
    case MIXER_ROTATION: adjoint_rotation(g, du, v, w, scratch, m); break;
    case MIXER_KRONECKER: adjoint_kronecker(g, du, dalpha, v, w, alpha, scratch, m); break;
    case MIXER_MONARCH:
    case MIXER_GRAM: adjoint_gram(g, du, dalpha, v, w, alpha, scratch, m); break;
    default: adjoint_sum(g, du, dalpha, v, w, alpha, scratch, m); break;
    }
}

#endif
