/* Householder mixer  y_t = Q_t x_t,  Q = prod_{i=0..R-1} (I - 2 alpha_i w_i w_i^T),  w = u / |u|, and its adjoint.
 *
 * O(D R) a token: Q is never formed. The M = B*T tokens are cut into groups by the shapes alone; the gradients of
 * constant u and alpha sum in order within a group, then over groups, so results are the same bits for any number of
 * threads. `u_varying`: u is (B,T,R,D), else (R,D); `alpha_varying`: alpha is (B,T,R), else (R).
 * `lengths` (B) or NULL: tokens at t >= lengths[b] are neither read nor counted, and are written as zero.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "steps.h"
#include "workspace.h"

enum { SUMS = 128 / sizeof(real), GROUP_ROWS = 128, MAX_GROUPS = 64, SERIAL = 32768 };

/* Squared norms from SMALL to LARGE are exact to rounding; a vector beyond is scaled by GROW or SHRINK first. */
#if ROT_DOUBLE
static const real SMALL = 0x1p-900, LARGE = 0x1p900, GROW = 0x1p800, SHRINK = 0x1p-600;
#else
static const real SMALL = 0x1p-100f, LARGE = 0x1p100f, GROW = 0x1p100f, SHRINK = 0x1p-70f;
#endif

/* Several sums side by side, for a loop that can be vectorised in the order that it is written in. */
static real dot(const real *restrict a, const real *restrict b, int64_t n) {
    real sum[SUMS] = {0};
    int64_t j = 0;
    for (; j + SUMS <= n; j += SUMS)
        for (int k = 0; k < SUMS; k++) sum[k] += a[j + k] * b[j + k];
    for (int k = 0; j + k < n; k++) sum[k] += a[j + k] * b[j + k];
    for (int half = SUMS / 2; half; half /= 2)
        for (int k = 0; k < half; k++) sum[k] += sum[half + k];
    return sum[0];
}

static void scale_row(real *restrict out, real factor, const real *restrict x, int64_t n) {
    for (int64_t j = 0; j < n; j++) out[j] = factor * x[j];
}

static void add_row(real *restrict sum, const real *restrict x, int64_t n) {
    for (int64_t j = 0; j < n; j++) sum[j] += x[j];
}

/* w <- u / |u|, or 0 for the zero vector. Returns 1 / |u|, or 0. */
static real normalise(real *restrict w, const real *restrict u, int64_t n) {
    real square = dot(u, u, n), scale = 1;
    if (square < SMALL || square > LARGE) {
        scale = square < SMALL ? GROW : SHRINK;
        scale_row(w, scale, u, n);
        square = dot(w, w, n);
    }
    const real inverse = square == 0 ? 0 : 1 / (real)sqrt((double)square);
    for (int64_t j = 0; j < n; j++) w[j] = scale * u[j] * inverse;
    return scale * inverse;
}

/* w (R,D) and inverse (R) of u (R,D). */
static void normalise_all(real *w, real *inverse, const real *u, int64_t R, int64_t D) {
    for (int64_t i = 0; i < R; i++) inverse[i] = normalise(w + i * D, u + i * D, D);
}

/* v <- v - 2 alpha w (w . v). Returns w . v. */
static real reflect(real *restrict v, const real *restrict w, real alpha, int64_t D) {
    const real s = dot(w, v, D);
    for (int64_t j = 0; j < D; j++) v[j] = reflect_step(v[j], w[j], alpha, s);
    return s;
}

static int64_t groups_of(int64_t tokens) {
    const int64_t groups = tokens / GROUP_ROWS;
    return groups < 1 ? 1 : groups > MAX_GROUPS ? MAX_GROUPS : groups;
}

static bool is_padding(const int64_t *lengths, int64_t token, int64_t T) {
    return lengths && token % T >= lengths[token / T];
}

/* y (B,T,D); u, alpha as above, x (B,T,D). Reflection R-1 acts first. */
int K(householder_forward)(real *restrict y, const real *restrict u, const real *restrict alpha, const real *restrict x,
                           const int64_t *restrict lengths, int64_t B, int64_t T, int64_t R, int64_t D,
                           int64_t u_varying, int64_t alpha_varying) {
    const int64_t M = B * T, groups = groups_of(M), per_group = (M + groups - 1) / groups;
    real *const rows = WORKSPACE(real, u_varying ? groups : 1, R, D + 1);
    if (!rows) return ROT_NO_MEMORY;
    const int64_t size = R * (D + 1);
    if (!u_varying) normalise_all(rows, rows + R * D, u, R, D);
#pragma omp parallel for schedule(dynamic) if (M * R * D > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        real *const w = rows + (u_varying ? group * size : 0);
        const int64_t end = (group + 1) * per_group < M ? (group + 1) * per_group : M;
        for (int64_t m = group * per_group; m < end; m++) {
            real *const v = y + m * D;
            if (is_padding(lengths, m, T)) {
                memset(v, 0, (size_t)D * sizeof(real));
                continue;
            }
            if (u_varying) normalise_all(w, w + R * D, u + m * R * D, R, D);
            const real *const gain = alpha + (alpha_varying ? m * R : 0);
            memcpy(v, x + m * D, (size_t)D * sizeof(real));
            for (int64_t i = R - 1; i >= 0; i--) reflect(v, w + i * D, gain[i], D);
        }
    }
    pool_give(rows);
    return ROT_OK;
}

/* g <- g - 2 alpha q w;  du += inverse * (gradient of w, less its part along w), with s = w . v, q = w . g. */
static void adjoint_row(real *restrict g, real *restrict du, const real *restrict v, const real *restrict w, real alpha,
                        real inverse, real s, real q, int64_t D) {
    for (int64_t j = 0; j < D; j++) {
        du[j] += inverse * reflect_direction_adjoint(v[j], g[j], w[j], alpha, s, q);
        g[j] = reflect_step(g[j], w[j], alpha, q);
    }
}

/* One token: dx (D) is written, du (R,D) and dalpha (R) are added to. v (R,D) and s (R) are scratch. */
static void token_adjoint(real *dx, real *du, real *dalpha, const real *dy, const real *w, const real *inverse,
                          const real *alpha, const real *x, real *v, real *s, int64_t R, int64_t D) {
    const size_t row = (size_t)D * sizeof(real);
    for (int64_t i = R - 1; i >= 0; i--) { /* v_i, what reflection i was given, becomes v_{i-1} */
        memcpy(v + i * D, i == R - 1 ? x : v + (i + 1) * D, row);
        if (i < R - 1) s[i + 1] = reflect(v + i * D, w + (i + 1) * D, alpha[i + 1], D);
    }
    if (R) s[0] = dot(w, v, D);
    memcpy(dx, dy, row);
    for (int64_t i = 0; i < R; i++) {
        const real q = dot(w + i * D, dx, D);
        dalpha[i] += reflect_gain_adjoint(s[i], q);
        adjoint_row(dx, du + i * D, v + i * D, w + i * D, alpha[i], inverse[i], s[i], q, D);
    }
}

/* dx (B,T,D), du like u, dalpha like alpha, all overwritten; dy (B,T,D), the rest as in forward. Each reflection is
 * y = v - 2 alpha s w with s = w . v; with g the gradient of y and q = w . g:
 *
 *   dv = g - 2 alpha q w,   dalpha = -2 s q,   dw = -2 alpha (s g + q v),   du = (dw - w (w . dw)) / |u|
 */
int K(householder_backward)(real *restrict dx, real *restrict du, real *restrict dalpha, const real *restrict dy,
                            const real *restrict u, const real *restrict alpha, const real *restrict x,
                            const int64_t *restrict lengths, int64_t B, int64_t T, int64_t R, int64_t D,
                            int64_t u_varying, int64_t alpha_varying) {
    const int64_t M = B * T, groups = groups_of(M), per_group = (M + groups - 1) / groups;
    real *const rows = WORKSPACE(real, u_varying ? groups : 1, R, D + 1);
    real *const scratch = WORKSPACE(real, groups, R, D + 1);
    real *const sums = WORKSPACE(real, groups, R, D + 1); /* of du, then dalpha */
    if (!rows || !scratch || !sums) {
        pool_give(rows);
        pool_give(scratch);
        pool_give(sums);
        return ROT_NO_MEMORY;
    }
    const int64_t size = R * (D + 1);
    if (u_varying) memset(du, 0, (size_t)(M * R * D) * sizeof(real));
    if (alpha_varying) memset(dalpha, 0, (size_t)(M * R) * sizeof(real));
    if (!u_varying) normalise_all(rows, rows + R * D, u, R, D);
#pragma omp parallel for schedule(dynamic) if (M * R * D > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        real *const w = rows + (u_varying ? group * size : 0), *const v = scratch + group * size;
        real *const sum = sums + group * size;
        memset(sum, 0, (size_t)size * sizeof(real));
        const int64_t end = (group + 1) * per_group < M ? (group + 1) * per_group : M;
        for (int64_t m = group * per_group; m < end; m++) {
            if (is_padding(lengths, m, T)) {
                memset(dx + m * D, 0, (size_t)D * sizeof(real));
                continue;
            }
            if (u_varying) normalise_all(w, w + R * D, u + m * R * D, R, D);
            token_adjoint(dx + m * D, u_varying ? du + m * R * D : sum, alpha_varying ? dalpha + m * R : sum + R * D,
                          dy + m * D, w, w + R * D, alpha + (alpha_varying ? m * R : 0), x + m * D, v, v + R * D, R, D);
        }
    }
    if (!u_varying) {
        memset(du, 0, (size_t)(R * D) * sizeof(real));
        for (int64_t group = 0; group < groups; group++) add_row(du, sums + group * size, R * D);
    }
    if (!alpha_varying) {
        memset(dalpha, 0, (size_t)R * sizeof(real));
        for (int64_t group = 0; group < groups; group++) add_row(dalpha, sums + group * size + R * D, R);
    }
    pool_give(rows);
    pool_give(scratch);
    pool_give(sums);
    return ROT_OK;
}
