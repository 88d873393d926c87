/* Real 2 x 2 recurrences and their adjoint on a GPU (csrc/kernels/oscillator.c has the equations). A thread walks
 * through the time of a lane of a sequence; sums of sequences are added in order. */
#include "device.h"

namespace {

enum { AHEAD = 8, SUMS = 6 };

struct arrival {
    real u, dz, dx, z, x;
};

struct oscillator {
    oscillator_map m;
    oscillator_pair f;
};

/* Lane j of M and f; `at` is the step's place in (B,T) if each step has its own, else 0. */
__device__ oscillator oscillator_at(const real *m, const real *f, int64_t at, int64_t N, int64_t j) {
    const real *const of_m = m + at * 4 * N + j, *const of_f = f + at * 2 * N + j;
    return {{of_m[0], of_m[N], of_m[2 * N], of_m[3 * N]}, {of_f[0], of_f[N]}};
}

/* Number s of six of the gradients of M and f, at a step's place in (B,T). */
__device__ real *gradient_at(real *dm, real *df, int64_t at, int s, int64_t N, int64_t j) {
    return s < 4 ? dm + (at * 4 + s) * N + j : df + (at * 2 + s - 4) * N + j;
}

} // namespace

KERNEL(oscillator_scan_forward) {
    each(B * N, [=] __device__(int64_t i) {
        const int64_t b = i / N, j = i % N, all = steps_of(lengths, b, T);
        const oscillator same = varying ? oscillator{} : oscillator_at(m, f, 0, N, j);
        const real *const from = u + b * T * N + j;
        real *const out = h + b * T * 2 * N + j;
        oscillator_pair now = {h0 ? h0[b * 2 * N + j] : 0, h0 ? h0[b * 2 * N + N + j] : 0};
        pipelined<AHEAD>(
            all, [&](int64_t t) { return from[t * N]; },
            [&](int64_t t, real one) {
                const oscillator by = varying ? oscillator_at(m, f, b * T + t, N, j) : same;
                now = oscillator_step(by.m, now, by.f, one);
                out[t * 2 * N] = now.z, out[t * 2 * N + N] = now.x;
            });
        for (int64_t t = all; t < T; t++) out[t * 2 * N] = out[t * 2 * N + N] = 0;
        hT[b * 2 * N + j] = now.z, hT[b * 2 * N + N + j] = now.x;
    });
    return runtime_status();
}

KERNEL(oscillator_scan_backward) {
    double *const sums = workspace_of<double>(B, (int64_t)SUMS, N);
    each(B * N, [=] __device__(int64_t i) {
        const int64_t b = i / N, j = i % N, all = steps_of(lengths, b, T), first = b * 2 * N + j;
        const oscillator same = varying ? oscillator{} : oscillator_at(m, f, 0, N, j);
        oscillator_pair g = {dhT ? dhT[first] : 0, dhT ? dhT[first + N] : 0};
        double total[SUMS] = {0, 0, 0, 0, 0, 0};
        pipelined<AHEAD>(
            all,
            [&](int64_t k) {
                const int64_t t = all - 1 - k, at = (b * T + t) * 2 * N + j;
                const real *const before = t ? h + at - 2 * N : h0 ? h0 + first : NULL;
                const arrival one = {u[(b * T + t) * N + j], dh[at], dh[at + N], before ? before[0] : 0,
                                     before ? before[N] : 0};
                return one;
            },
            [&](int64_t k, arrival one) {
                const int64_t at = b * T + all - 1 - k;
                const oscillator by = varying ? oscillator_at(m, f, at, N, j) : same;
                const oscillator_pair now = {one.dz + g.z, one.dx + g.x};
                const real own[SUMS] = {now.z * one.z, now.z * one.x, now.x * one.z,
                                        now.x * one.x, now.z * one.u, now.x * one.u};
                du[at * N + j] = oscillator_input_adjoint(now, by.f);
                g = oscillator_step_adjoint(by.m, now);
                for (int s = 0; s < SUMS; s++)
                    if (varying)
                        *gradient_at(dm, df, at, s, N, j) = own[s];
                    else
                        total[s] += (double)own[s];
            });
        for (int64_t t = all; t < T; t++) {
            du[(b * T + t) * N + j] = 0;
            for (int s = 0; varying && s < SUMS; s++) *gradient_at(dm, df, b * T + t, s, N, j) = 0;
        }
        dh0[first] = g.z, dh0[first + N] = g.x;
        for (int s = 0; s < SUMS; s++) sums[(b * SUMS + s) * N + j] = total[s];
    });
    if (varying) return runtime_status();
    each(SUMS * N, [=] __device__(int64_t i) {
        double total = 0;
        for (int64_t b = 0; b < B; b++) total += sums[b * SUMS * N + i];
        *(i < 4 * N ? dm + i : df + (i - 4 * N)) = (real)total;
    });
    return runtime_status();
}
