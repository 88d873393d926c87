/* A diagonal system in continuous time at uneven times, and its adjoint, on a GPU (csrc/kernels/sampled.c has the
 * equations). A thread walks through the time of a lane of a sequence; sums of sequences and of lanes are added in
 * order. */
#include "device.h"
#include "sampled.h"

namespace {

enum { AHEAD = 4, SUMS = 3 };

struct arrival {
    cplx x, dh, before;
    double dt;
};

ROT_DEVICE_ONLY cplx read_pair(const real *from, int64_t i) {
    const cplx z = {from[2 * i], from[2 * i + 1]};
    return z;
}
ROT_DEVICE_ONLY cplx pair_or_zero(const real *from, int64_t i) {
    const cplx zero = {0, 0};
    return from ? read_pair(from, i) : zero;
}
ROT_DEVICE_ONLY void write_pair(real *to, int64_t i, cplx z) { to[2 * i] = z.re, to[2 * i + 1] = z.im; }

} // namespace

KERNEL(sampled_scan_forward) {
    const int which = (int)method;
    each(B * N, [=] __device__(int64_t i) {
        const int64_t b = i / N, j = i % N, all = steps_of(lengths, b, T);
        const sampled_lane k = sampled_lane_of(read_pair(lam, j));
        const double size = (double)step[j];
        cplx now = pair_or_zero(h0, i);
        pipelined<AHEAD>(
            all,
            [&](int64_t t) {
                const arrival one = {read_pair(x, (b * T + t) * N + j), {0, 0}, {0, 0}, (double)dt[b * T + t]};
                return one;
            },
            [&](int64_t t, arrival one) {
                const sampled_terms by = sampled_terms_of(which, k, size * one.dt);
                now = plane_step(by.a, now, cplx_product(by.gain, one.x));
                write_pair(h, (b * T + t) * N + j, now);
            });
        const cplx zero = {0, 0};
        for (int64_t t = all; t < T; t++) write_pair(h, (b * T + t) * N + j, zero);
        write_pair(hT, i, now);
    });
    return runtime_status();
}

KERNEL(sampled_scan_backward) {
    const int which = (int)method;
    double *const sums = workspace_of<double>(B, (int64_t)SUMS, N);
    real *const of_step = workspace_of<real>(B, T, N);
    each(B * N, [=] __device__(int64_t i) {
        const int64_t b = i / N, j = i % N, all = steps_of(lengths, b, T);
        const sampled_lane k = sampled_lane_of(read_pair(lam, j));
        const double size = (double)step[j];
        const cplx zero = {0, 0};
        cplx g = pair_or_zero(dhT, i);
        double total[SUMS] = {0, 0, 0};
        pipelined<AHEAD>(
            all,
            [&](int64_t back) {
                const int64_t t = all - 1 - back, at = (b * T + t) * N + j;
                const arrival one = {read_pair(x, at), read_pair(dh, at),
                                     t ? read_pair(h, at - N) : pair_or_zero(h0, i), (double)dt[b * T + t]};
                return one;
            },
            [&](int64_t back, arrival one) {
                const int64_t at = (b * T + all - 1 - back) * N + j;
                const double sigma = size * one.dt;
                const sampled_terms by = sampled_terms_of(which, k, sigma);
                const cplx now = cplx_add(one.dh, g);
                const cplx da = plane_transition_adjoint(now, one.before, zero);
                const cplx dgain = plane_transition_adjoint(now, one.x, zero);
                const sampled_adjoints d = sampled_adjoint(which, k, sigma, by, da, dgain);
                write_pair(dx, at, cplx_conj_product(by.gain, now));
                g = cplx_conj_product(by.a, now);
                total[0] += (double)d.dlam.re, total[1] += (double)d.dlam.im;
                total[2] += (double)d.dsigma * one.dt;
                of_step[at] = (real)((double)d.dsigma * size);
            });
        for (int64_t t = all; t < T; t++) write_pair(dx, (b * T + t) * N + j, zero), of_step[(b * T + t) * N + j] = 0;
        write_pair(dh0, i, g);
        for (int s = 0; s < SUMS; s++) sums[(b * SUMS + s) * N + j] = total[s];
    });
    each(N, [=] __device__(int64_t i) {
        double total[SUMS] = {0, 0, 0};
        for (int64_t b = 0; b < B; b++)
            for (int s = 0; s < SUMS; s++) total[s] += sums[(b * SUMS + s) * N + i];
        dlam[2 * i] = (real)total[0], dlam[2 * i + 1] = (real)total[1], dstep[i] = (real)total[2];
    });
    each(B * T, [=] __device__(int64_t i) {
        double total = 0;
        for (int64_t j = 0; j < N; j++) total += (double)of_step[i * N + j];
        ddt[i] = (real)total;
    });
    return runtime_status();
}
