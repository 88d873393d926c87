/* Real 2 x 2 recurrences: each lane has a state (z, x) and a matrix M, and reads one number u of a step,
 *
 *   h_t = M h_{t-1} + f u_t,   h = (z, x)
 *
 * (oscillator_step of steps.h, with its adjoint): oscillators. A complex state in place of (z, x) would need distinct
 * eigenvalues of M. Arrays are (2, N) for two numbers of each lane; m is (2, 2, N). If M and f are `varying`, each step
 * of each sequence has its own.
 *
 * A task is a strip of lanes of a sequence. Sums over time are in double, and sums of sequences are added in order, so
 * results have the same bits for any number of threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 */
#include <string.h>

#include "kernels.h"
#include "lanes.h"
#include "stop.h"
#include "workspace.h"

enum { STRIP = 64, SERIAL = 32768, SUMS = 6 }; /* SUMS: four for M, two for f */

/* Lane j of a strip of (2,2,N), and of (2,N). */
static oscillator_map map_at(const real *m, int64_t N, int64_t j) {
    return (oscillator_map){m[j], m[N + j], m[2 * N + j], m[3 * N + j]};
}
static oscillator_pair pair_at(const real *x, int64_t N, int64_t j) { return (oscillator_pair){x[j], x[N + j]}; }
static void set_pair(real *x, int64_t N, int64_t j, oscillator_pair one) { x[j] = one.z, x[N + j] = one.x; }

/* Two rows of n numbers, N apart; zeros if `from` is NULL. */
static void take_pair(real *restrict to, const real *restrict from, int64_t stride, int64_t N, int64_t n) {
    for (int i = 0; i < 2; i++) copy_or_zero_row(to + i * stride, from ? from + i * N : NULL, n);
}

static void step_strip(real *restrict h, real *restrict out, const real *restrict m, const real *restrict f,
                       const real *restrict u, int64_t N, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const oscillator_pair now = oscillator_step(map_at(m, N, j), pair_at(h, STRIP, j), pair_at(f, N, j), u[j]);
        set_pair(h, STRIP, j, now);
        set_pair(out, N, j, now);
    }
}

/* h (B,T,2,N), hT (B,2,N); m (2,2,N), f (2,N), or (B,T,2,2,N), (B,T,2,N); u (B,T,N), h0 (B,2,N) or NULL for zeros. */
KERNEL(oscillator_scan_forward) {
    const int64_t strips = pieces_of(N, STRIP);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL)
    for (int64_t task = 0; task < B * strips; task++) {
        if (stopped(stop)) continue;
        const int64_t b = task / strips, lo = task % strips * STRIP, n = least(N - lo, STRIP);
        const int64_t all = steps_of(lengths, b, T);
        real state[2 * STRIP];
        take_pair(state, h0 ? h0 + b * 2 * N + lo : NULL, STRIP, N, n);
        for (int64_t t = 0; t < T; t++) {
            const int64_t at = b * T + t, own = varying ? at * 2 * N : 0;
            real *const out = h + at * 2 * N + lo;
            if (t < all)
                step_strip(state, out, m + 2 * own + lo, f + own + lo, u + at * N + lo, N, n);
            else
                take_pair(out, NULL, N, N, n);
        }
        for (int i = 0; i < 2; i++) copy_row(hT + (b * 2 + i) * N + lo, state + i * STRIP, n);
    }
    return ROT_OK;
}

/* g: the gradient that reaches h_t from later steps, replaced by the gradient that reaches h_{t-1}; sums (SUMS, N). */
static void step_back(real *restrict g, double *restrict sums, real *restrict du, const real *restrict dh,
                      const real *restrict m, const real *restrict f, const real *restrict u,
                      const real *restrict before, int64_t stride, int64_t N, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const oscillator_pair later = pair_at(g, STRIP, j), given = pair_at(dh, N, j), in = pair_at(f, N, j);
        const oscillator_pair now = {given.z + later.z, given.x + later.x};
        const oscillator_pair h_prev = pair_at(before, stride, j);
        du[j] = oscillator_input_adjoint(now, in);
        set_pair(g, STRIP, j, oscillator_step_adjoint(map_at(m, N, j), now));
        sums[j] += (double)(now.z * h_prev.z);
        sums[N + j] += (double)(now.z * h_prev.x);
        sums[2 * N + j] += (double)(now.x * h_prev.z);
        sums[3 * N + j] += (double)(now.x * h_prev.x);
        sums[4 * N + j] += (double)(now.z * u[j]);
        sums[5 * N + j] += (double)(now.x * u[j]);
    }
}

/* Rows of `sums` as the gradients of M and f; they are zero then. */
static void store_sums(real *restrict dm, real *restrict df, double *restrict sums, int64_t N, int64_t n) {
    for (int i = 0; i < SUMS; i++) {
        double *const sum = sums + i * N;
        real *const to = i < 4 ? dm + i * N : df + (i - 4) * N;
        for (int64_t j = 0; j < n; j++) to[j] = (real)sum[j], sum[j] = 0;
    }
}

/* dm and df in the shapes of m and f, du (B,T,N), dh0 (B,2,N), all overwritten; dh (B,T,2,N), dhT (B,2,N) or NULL, and
 * forward's inputs and outputs. */
KERNEL(oscillator_scan_backward) {
    const int64_t strips = pieces_of(N, STRIP);
    double *const sums = WORKSPACE(double, B, SUMS, N);
    if (!sums) return ROT_NO_MEMORY;
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL)
    for (int64_t task = 0; task < B * strips; task++) {
        if (stopped(stop)) continue;
        const int64_t b = task / strips, lo = task % strips * STRIP, n = least(N - lo, STRIP);
        const int64_t all = steps_of(lengths, b, T);
        double *const sum = sums + b * SUMS * N + lo;
        real g[2 * STRIP], first[2 * STRIP];
        take_pair(g, dhT ? dhT + b * 2 * N + lo : NULL, STRIP, N, n);
        take_pair(first, h0 ? h0 + b * 2 * N + lo : NULL, STRIP, N, n);
        for (int i = 0; i < SUMS; i++) memset(sum + i * N, 0, (size_t)n * sizeof *sum);
        for (int64_t t = T - 1; t >= 0; t--) {
            const int64_t at = b * T + t, own = varying ? at * 2 * N : 0;
            real *const out = du + at * N + lo;
            if (t < all)
                step_back(g, sum, out, dh + at * 2 * N + lo, m + 2 * own + lo, f + own + lo, u + at * N + lo,
                          t ? h + (at - 1) * 2 * N + lo : first, t ? N : STRIP, N, n);
            else
                zero_row(out, n);
            if (varying) store_sums(dm + 2 * own + lo, df + own + lo, sum, N, n);
        }
        for (int i = 0; i < 2; i++) copy_row(dh0 + (b * 2 + i) * N + lo, g + i * STRIP, n);
    }
    for (int64_t i = 0; !varying && i < SUMS * N; i++) {
        double total = 0;
        for (int64_t b = 0; b < B; b++) total += sums[b * SUMS * N + i];
        *(i < 4 * N ? dm + i : df + (i - 4 * N)) = (real)total;
    }
    pool_give(sums);
    return ROT_OK;
}
