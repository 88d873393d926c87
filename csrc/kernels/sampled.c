/* A diagonal system in continuous time, x' = lambda x + u, at uneven times, and the adjoint: each step has a size
 * sigma_t = step dt_t, with an interval dt_t of a sequence and a step size of each lane,
 *
 *   h_t = a(lambda, sigma_t) h_{t-1} + gain(lambda, sigma_t) x_t
 *   g_t = dh_t + conj(a_{t+1}) g_{t+1},  g_{T-1} = dh_{T-1} + dhT;   dh0 = conj(a_0) g_0
 *   dx_t = conj(gain_t) g_t;   da_t = g_t conj(h_{t-1}),  dgain_t = g_t conj(x_t),  which give dlambda and dsigma_t
 *
 * (sampled.h has a, gain and their adjoint). Complex numbers are (re, im) pairs. A task is a strip of lanes of a
 * sequence. Sums over time are in double, and sums of sequences and strips are added in order, so results have the same
 * bits for any number of threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 */
#include <string.h>

#include "cuts.h"
#include "kernels.h"
#include "sampled.h"
#include "stop.h"
#include "workspace.h"

enum { STRIP = 64, SERIAL = 4096, SUMS = 3 }; /* SUMS: two for lambda, one for the step size */

/* Lanes of a strip. */
typedef struct {
    real re[STRIP], im[STRIP], inverse_re[STRIP], inverse_im[STRIP], still[STRIP];
    double step[STRIP];
} strip;

static sampled_lane lane_at(const strip *k, int64_t j) {
    const sampled_lane one = {{k->re[j], k->im[j]}, {k->inverse_re[j], k->inverse_im[j]}, k->still[j]};
    return one;
}

static cplx pair_at(const real *x, int64_t j) {
    const cplx z = {x[2 * j], x[2 * j + 1]};
    return z;
}
static void set_pair(real *x, int64_t j, cplx z) { x[2 * j] = z.re, x[2 * j + 1] = z.im; }

static void load_strip(strip *k, const real *lam, const real *step, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const sampled_lane one = sampled_lane_of(pair_at(lam, j));
        k->re[j] = one.lam.re, k->im[j] = one.lam.im, k->still[j] = one.still;
        k->inverse_re[j] = one.inverse.re, k->inverse_im[j] = one.inverse.im;
        k->step[j] = (double)step[j];
    }
}

static void copy_or_zero(real *restrict to, const real *restrict from, int64_t n) {
    if (from)
        memcpy(to, from, (size_t)(2 * n) * sizeof *to);
    else
        memset(to, 0, (size_t)(2 * n) * sizeof *to);
}

ROT_ALWAYS_INLINE void step_strip(const int method, real *restrict state, real *restrict out, const strip *restrict k,
                                  double dt, const real *restrict x, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const sampled_terms t = sampled_terms_of(method, lane_at(k, j), k->step[j] * dt);
        const cplx now = plane_step(t.a, pair_at(state, j), cplx_product(t.gain, pair_at(x, j)));
        set_pair(state, j, now);
        set_pair(out, j, now);
    }
}

static void step_by(int64_t method, real *state, real *out, const strip *k, double dt, const real *x, int64_t n) {
    if (method == SAMPLING_ZOH)
        step_strip(SAMPLING_ZOH, state, out, k, dt, x, n);
    else if (method == SAMPLING_BILINEAR)
        step_strip(SAMPLING_BILINEAR, state, out, k, dt, x, n);
    else
        step_strip(SAMPLING_FIRST_ORDER, state, out, k, dt, x, n);
}

/* h (B,T,N,2), hT (B,N,2); lam (N,2), step (N), dt (B,T), x (B,T,N,2), h0 (B,N,2) or NULL for zeros. */
KERNEL(sampled_scan_forward) {
    const int64_t strips = pieces_of(N, STRIP);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL)
    for (int64_t task = 0; task < B * strips; task++) {
        if (stopped(stop)) continue;
        const int64_t b = task / strips, lo = task % strips * STRIP, n = least(N - lo, STRIP);
        const int64_t all = steps_of(lengths, b, T);
        strip k;
        real state[2 * STRIP];
        load_strip(&k, lam + 2 * lo, step + lo, n);
        copy_or_zero(state, h0 ? h0 + 2 * (b * N + lo) : NULL, n);
        for (int64_t t = 0; t < T; t++) {
            const int64_t at = 2 * ((b * T + t) * N + lo);
            if (t < all)
                step_by(method, state, h + at, &k, (double)dt[b * T + t], x + at, n);
            else
                copy_or_zero(h + at, NULL, n);
        }
        copy_or_zero(hT + 2 * (b * N + lo), state, n);
    }
    return ROT_OK;
}

/* g: the gradient that reaches h_t from later steps, replaced by the gradient that reaches h_{t-1}; sums (SUMS, N).
 * Returns the gradient of dt_t. */
ROT_ALWAYS_INLINE double step_back(const int method, real *restrict g, double *restrict sums, real *restrict dx,
                                   const real *restrict dh, const strip *restrict k, double dt, const real *restrict x,
                                   const real *restrict before, int64_t N, int64_t n) {
    double of_step[STRIP], total = 0;
    for (int64_t j = 0; j < n; j++) {
        const double sigma = k->step[j] * dt;
        const sampled_terms t = sampled_terms_of(method, lane_at(k, j), sigma);
        const cplx now = cplx_add(pair_at(dh, j), pair_at(g, j)), zero = {0, 0};
        const cplx da = plane_transition_adjoint(now, pair_at(before, j), zero);
        const cplx dgain = plane_transition_adjoint(now, pair_at(x, j), zero);
        const sampled_adjoints d = sampled_adjoint(method, lane_at(k, j), sigma, t, da, dgain);
        set_pair(dx, j, cplx_conj_product(t.gain, now));
        set_pair(g, j, cplx_conj_product(t.a, now));
        sums[j] += (double)d.dlam.re;
        sums[N + j] += (double)d.dlam.im;
        sums[2 * N + j] += (double)d.dsigma * dt;
        of_step[j] = (double)d.dsigma * k->step[j];
    }
    for (int64_t j = 0; j < n; j++) total += of_step[j];
    return total;
}

static double back_by(int64_t method, real *g, double *sums, real *dx, const real *dh, const strip *k, double dt,
                      const real *x, const real *before, int64_t N, int64_t n) {
    if (method == SAMPLING_ZOH) return step_back(SAMPLING_ZOH, g, sums, dx, dh, k, dt, x, before, N, n);
    if (method == SAMPLING_BILINEAR) return step_back(SAMPLING_BILINEAR, g, sums, dx, dh, k, dt, x, before, N, n);
    return step_back(SAMPLING_FIRST_ORDER, g, sums, dx, dh, k, dt, x, before, N, n);
}

/* dlam (N,2), dstep (N), ddt (B,T), dx (B,T,N,2), dh0 (B,N,2), all overwritten; dh (B,T,N,2), dhT (B,N,2) or NULL, and
 * forward's inputs and outputs. */
KERNEL(sampled_scan_backward) {
    const int64_t strips = pieces_of(N, STRIP);
    double *const sums = WORKSPACE(double, B, SUMS, N), *const of_dt = WORKSPACE(double, B, strips, T);
    if (!sums || !of_dt) {
        pool_give(sums);
        pool_give(of_dt);
        return ROT_NO_MEMORY;
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL)
    for (int64_t task = 0; task < B * strips; task++) {
        if (stopped(stop)) continue;
        const int64_t b = task / strips, lo = task % strips * STRIP, n = least(N - lo, STRIP);
        const int64_t all = steps_of(lengths, b, T);
        double *const sum = sums + b * SUMS * N + lo;
        strip k;
        real g[2 * STRIP], first[2 * STRIP];
        load_strip(&k, lam + 2 * lo, step + lo, n);
        copy_or_zero(g, dhT ? dhT + 2 * (b * N + lo) : NULL, n);
        copy_or_zero(first, h0 ? h0 + 2 * (b * N + lo) : NULL, n);
        for (int i = 0; i < SUMS; i++) memset(sum + i * N, 0, (size_t)n * sizeof *sum);
        for (int64_t t = T - 1; t >= 0; t--) {
            const int64_t at = 2 * ((b * T + t) * N + lo);
            double *const of_step = of_dt + task * T + t;
            *of_step = 0;
            if (t < all)
                *of_step = back_by(method, g, sum, dx + at, dh + at, &k, (double)dt[b * T + t], x + at,
                                   t ? h + at - 2 * N : first, N, n);
            else
                copy_or_zero(dx + at, NULL, n);
        }
        copy_or_zero(dh0 + 2 * (b * N + lo), g, n);
    }
    for (int64_t i = 0; i < N; i++) {
        double total[SUMS] = {0, 0, 0};
        for (int64_t b = 0; b < B; b++)
            for (int s = 0; s < SUMS; s++) total[s] += sums[(b * SUMS + s) * N + i];
        dlam[2 * i] = (real)total[0], dlam[2 * i + 1] = (real)total[1], dstep[i] = (real)total[2];
    }
    for (int64_t i = 0; i < B * T; i++) {
        double total = 0;
        for (int64_t s = 0; s < strips; s++) total += of_dt[(i / T * strips + s) * T + i % T];
        ddt[i] = (real)total;
    }
    pool_give(sums);
    pool_give(of_dt);
    return ROT_OK;
}
