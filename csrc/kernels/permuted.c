/* Scans of PD-SSM: each step applies a diagonal D, then a matrix P with a single 1 in each column, to complex states h,
 * stored as (2, N), real parts and imaginary parts:
 *
 *   h_t = P_t D_t h_{t-1} + x_t,   P_t[i, j] = 1 for i = p_t[j], else 0,   p_t[j] = argmax_i M_t[i, j],
 *   M_t = sum_k w_t[k] M[k]
 *
 * A step scatters N numbers. M_t (N, N) is only computed for a strip of columns of one step at a time.
 *
 * A task of the choice is a step; a task of the scan is a sequence. Sums over steps are in double and in the order of
 * steps, so results have the same bits for any number of threads.
 *
 * If M_t has a NaN, h_t is NaN: no row is right.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 */
#include "permuted.h"

#include "kernels.h"
#include "stop.h"
#include "workspace.h"

enum { SERIAL = 32768 };

/* h (B,T,2,N), hT (B,2,N), p (B,T,N); w (B,T,choices), m (choices,N,N), d, x (B,T,2,N), h0 (B,2,N) or NULL for zeros.
 */
KERNEL(permuted_scan_forward) {
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL / 8)
    for (int64_t at = 0; at < B * T; at++) {
        if (stopped(stop)) continue;
        if (at % T < steps_of(lengths, at / T, T)) {
            bool numbers = true;
            for (int64_t lo = 0; lo < N; lo += STRIP)
                numbers &= choose_rows(p + at * N + lo, w + at * choices, m + lo, choices, N, least(N - lo, STRIP));
            if (N) h[at * 2 * N] = numbers ? 0 : 1; /* for the scan */
        } else
            memset(p + at * N, 0, (size_t)N * sizeof *p);
    }
    if (stopped(stop)) return ROT_OK;
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL)
    for (int64_t b = 0; b < B; b++) {
        if (stopped(stop)) continue;
        const int64_t all = steps_of(lengths, b, T);
        real *const last = hT + b * 2 * N;
        copy_or_zero_row(last, h0 ? h0 + b * 2 * N : NULL, 2 * N);
        const real *h_prev = last;
        for (int64_t t = 0; t < all; t++) {
            const int64_t at = b * T + t;
            real *const out = h + at * 2 * N;
            const bool lost = N && out[0] != 0;
            copy_row(out, x + at * 2 * N, 2 * N);
            scatter_lanes(out, h_prev, p + at * N, d + at * 2 * N, N, N);
            if (lost) lose_lanes(out, N);
            h_prev = out;
        }
        if (all) copy_row(last, h_prev, 2 * N);
        zero_padding(h, b, all, T, 2 * N);
    }
    return ROT_OK;
}

/* The state before a step; NULL for zeros. */
static const real *state_before(const real *h, const real *h0, int64_t b, int64_t t, int64_t T, int64_t N) {
    if (t) return h + (b * T + t - 1) * 2 * N;
    return h0 ? h0 + b * 2 * N : NULL;
}
static cplx lane_before(const real *h_prev, int64_t N, int64_t j) {
    const cplx zero = {0, 0};
    return h_prev ? pair_of(h_prev, N, j) : zero;
}

/* For the columns from `lo` on, n of them, of one step: the gradient G_ij = Re(g_i conj((D h_prev)_j)) of P, used as
 * the gradient of the softmax of each column of M_t:  dM_t[i, j] = S_ij (G_ij - sum_i' S_i'j G_i'j). `soft` (N, STRIP)
 * is memory; dm[k] (N, STRIP) gets w[k] dM_t added, and dw[k] the sum of dM_t M[k]. */
static void soften_columns(double *restrict dm, double *restrict dw, real *restrict soft, const real *restrict g,
                           const real *restrict d, const real *restrict h_prev, const real *restrict w,
                           const real *restrict m, int64_t choices, int64_t N, int64_t lo, int64_t n) {
    real re[STRIP], im[STRIP], high[STRIP], sum[STRIP], mean[STRIP];
    for (int64_t j = 0; j < n; j++) {
        const cplx zero = {0, 0}, z = cplx_fma(pair_of(d, N, lo + j), lane_before(h_prev, N, lo + j), zero);
        re[j] = z.re, im[j] = z.im, sum[j] = mean[j] = 0;
    }
    for (int64_t i = 0; i < N; i++) {
        real *const row = soft + i * STRIP;
        mix_row(row, w, m + i * N + lo, choices, N, n);
        for (int64_t j = 0; j < n; j++) high[j] = i && high[j] > row[j] ? high[j] : row[j];
    }
    for (int64_t i = 0; i < N; i++) {
        real *const row = soft + i * STRIP;
        const real g_re = g[i], g_im = g[N + i];
        for (int64_t j = 0; j < n; j++) {
            row[j] = vmath_exp(row[j] - high[j]);
            sum[j] += row[j];
            mean[j] += row[j] * (g_re * re[j] + g_im * im[j]);
        }
    }
    for (int64_t j = 0; j < n; j++) sum[j] = 1 / sum[j], mean[j] *= sum[j];
    for (int64_t i = 0; i < N; i++) {
        real *const row = soft + i * STRIP;
        const real g_re = g[i], g_im = g[N + i];
        for (int64_t j = 0; j < n; j++) row[j] *= sum[j] * (g_re * re[j] + g_im * im[j] - mean[j]);
    }
    for (int64_t k = 0; k < choices; k++) {
        const real *const own = m + k * N * N + lo;
        double *const to = dm + k * N * STRIP;
        double total = 0;
        for (int64_t i = 0; i < N; i++) {
            const real *const row = soft + i * STRIP;
            real part = 0;
            for (int64_t j = 0; j < n; j++) {
                to[i * STRIP + j] += (double)(w[k] * row[j]);
                part += row[j] * own[i * N + j];
            }
            total += (double)part;
        }
        dw[k] = total;
    }
}

/* dw, dm, dd, dx, dh0, all overwritten; dh (B,T,2,N), dhT (B,2,N) or NULL, and forward's inputs and outputs.
 *
 *   g_t = dh_t + conj(D_{t+1}) P_{t+1}^T g_{t+1}, which begins with dhT;   dx_t = g_t;   dh0 = conj(D_1) P_1^T g_1;
 *   dD_t[j] = g_t[p_t[j]] conj(h_{t-1}[j])
 *
 * and dM and dw straight through the choice (soften_columns), with g_t. */
KERNEL(permuted_scan_backward) {
    const int64_t strips = pieces_of(N, STRIP);
    double *const sums = WORKSPACE(double, strips, choices, N, STRIP);
    double *const parts = WORKSPACE(double, strips, B, T, choices);
    real *const soft = WORKSPACE(real, strips, N, STRIP);
    if (!sums || !parts || !soft) {
        pool_give(sums), pool_give(parts), pool_give(soft);
        return ROT_NO_MEMORY;
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL)
    for (int64_t b = 0; b < B; b++) {
        if (stopped(stop)) continue;
        const int64_t all = steps_of(lengths, b, T);
        real *const g = dh0 + b * 2 * N; /* of the state after the step, from later steps; then before it */
        copy_or_zero_row(g, dhT ? dhT + b * 2 * N : NULL, 2 * N);
        for (int64_t t = all - 1; t >= 0; t--) {
            const int64_t at = b * T + t, row = at * 2 * N;
            const real *const h_prev = state_before(h, h0, b, t, T, N);
            for (int64_t j = 0; j < 2 * N; j++) dx[row + j] = dh[row + j] + g[j];
            for (int64_t j = 0; j < N; j++) {
                const cplx zero = {0, 0}, now = pair_of(dx + row, N, p[at * N + j]);
                set_pair(dd + row, N, j, cplx_fma_conj(lane_before(h_prev, N, j), now, zero));
                set_pair(g, N, j, cplx_fma_conj(pair_of(d + row, N, j), now, zero));
            }
        }
        zero_padding(dx, b, all, T, 2 * N);
        zero_padding(dd, b, all, T, 2 * N);
    }
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL / 8)
    for (int64_t s = 0; s < strips; s++) {
        const int64_t lo = s * STRIP, n = least(N - lo, STRIP);
        double *const sum = sums + s * choices * N * STRIP;
        memset(sum, 0, (size_t)(choices * N * STRIP) * sizeof *sum);
        for (int64_t at = 0; at < B * T; at++) {
            const int64_t b = at / T, t = at % T;
            if (t >= steps_of(lengths, b, T) || stopped(stop)) continue;
            soften_columns(sum, parts + (s * B * T + at) * choices, soft + s * N * STRIP, dx + at * 2 * N,
                           d + at * 2 * N, state_before(h, h0, b, t, T, N), w + at * choices, m, choices, N, lo, n);
        }
        for (int64_t i = 0; i < choices * N; i++)
            for (int64_t j = 0; j < n; j++) dm[i * N + lo + j] = (real)sum[i * STRIP + j];
    }
    for (int64_t at = 0; at < B * T && !stopped(stop); at++)
        for (int64_t k = 0; k < choices; k++) {
            double total = 0;
            if (at % T < steps_of(lengths, at / T, T))
                for (int64_t s = 0; s < strips; s++) total += parts[(s * B * T + at) * choices + k];
            dw[at * choices + k] = (real)total;
        }
    pool_give(sums), pool_give(parts), pool_give(soft);
    return ROT_OK;
}
