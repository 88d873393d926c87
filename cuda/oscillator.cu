/* Real 2 x 2 recurrences and their adjoint on a GPU (csrc/kernels/oscillator.c has the equations). A thread walks
 * through the time of a lane of a sequence; sums of sequences are added in order. */
#include "device.h"

namespace {

enum { AHEAD = 8, SUMS = 6 };

struct arrival {
    real u, dz, dx, z, x;
};

} // namespace

KERNEL(oscillator_scan_forward) {
    each(B * N, [=] __device__(int64_t i) {
        const int64_t b = i / N, j = i % N, all = steps_of(lengths, b, T);
        const oscillator_map by = {m[j], m[N + j], m[2 * N + j], m[3 * N + j]};
        const oscillator_pair in = {f[j], f[N + j]};
        const real *const from = u + b * T * N + j;
        real *const out = h + b * T * 2 * N + j;
        oscillator_pair now = {h0 ? h0[b * 2 * N + j] : 0, h0 ? h0[b * 2 * N + N + j] : 0};
        pipelined<AHEAD>(
            all, [&](int64_t t) { return from[t * N]; },
            [&](int64_t t, real one) {
                now = oscillator_step(by, now, in, one);
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
        const oscillator_map by = {m[j], m[N + j], m[2 * N + j], m[3 * N + j]};
        const oscillator_pair in = {f[j], f[N + j]};
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
                const oscillator_pair now = {one.dz + g.z, one.dx + g.x};
                du[(b * T + all - 1 - k) * N + j] = oscillator_input_adjoint(now, in);
                g = oscillator_step_adjoint(by, now);
                total[0] += (double)(now.z * one.z), total[1] += (double)(now.z * one.x);
                total[2] += (double)(now.x * one.z), total[3] += (double)(now.x * one.x);
                total[4] += (double)(now.z * one.u), total[5] += (double)(now.x * one.u);
            });
        for (int64_t t = all; t < T; t++) du[(b * T + t) * N + j] = 0;
        dh0[first] = g.z, dh0[first + N] = g.x;
        for (int s = 0; s < SUMS; s++) sums[(b * SUMS + s) * N + j] = total[s];
    });
    each(SUMS * N, [=] __device__(int64_t i) {
        double total = 0;
        for (int64_t b = 0; b < B; b++) total += sums[b * SUMS * N + i];
        *(i < 4 * N ? dm + i : df + (i - 4 * N)) = (real)total;
    });
    return runtime_status();
}
