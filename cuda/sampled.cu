/* Diagonal systems in continuous time at uneven times, and their adjoints, on a GPU (csrc/kernels/sampled.c has the
 * equations). A thread walks through the time of a lane of a sequence, or of one state after the other of a channel of
 * a bank; sums of sequences and of lanes are added in order. */
#include "device.h"
#include "sampled.h"

namespace {

enum { AHEAD = 4, SUMS = 3 };

struct arrival {
    cplx x, dh, before;
    real dt;
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
        const sampled_lane k = sampled_lane_of(read_pair(lam, j), step[j]);
        cplx now = pair_or_zero(h0, i);
        pipelined<AHEAD>(
            all,
            [&](int64_t t) {
                const arrival one = {read_pair(x, (b * T + t) * N + j), {0, 0}, {0, 0}, dt[b * T + t]};
                return one;
            },
            [&](int64_t t, arrival one) {
                const sampled_terms by = sampled_terms_of(which, k, one.dt);
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
        const sampled_lane k = sampled_lane_of(read_pair(lam, j), step[j]);
        const cplx zero = {0, 0};
        cplx g = pair_or_zero(dhT, i);
        double total[SUMS] = {0, 0, 0};
        pipelined<AHEAD>(
            all,
            [&](int64_t back) {
                const int64_t t = all - 1 - back, at = (b * T + t) * N + j;
                const arrival one = {read_pair(x, at), read_pair(dh, at),
                                     t ? read_pair(h, at - N) : pair_or_zero(h0, i), dt[b * T + t]};
                return one;
            },
            [&](int64_t back, arrival one) {
                const int64_t at = (b * T + all - 1 - back) * N + j;
                const sampled_terms by = sampled_terms_of(which, k, one.dt);
                const cplx now = cplx_add(one.dh, g);
                const cplx da = cplx_conj_product(one.before, now), dgain = cplx_conj_product(one.x, now);
                const sampled_adjoints d = sampled_adjoint(which, k, one.dt, by, da, dgain);
                write_pair(dx, at, cplx_conj_product(by.gain, now));
                g = cplx_conj_product(by.a, now);
                total[0] += (double)d.dlam.re, total[1] += (double)d.dlam.im;
                total[2] += (double)d.dsigma * (double)one.dt;
                of_step[at] = d.dsigma * k.step;
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

/* ---- the bank ---- */

KERNEL(sampled_bank_forward) {
    const int which = (int)method;
    const int64_t tiles = pieces_of(T, SAMPLED_TILE);
    each(B * D, [=] __device__(int64_t i) {
        const int64_t b = i / D, d = i % D, all = steps_of(lengths, b, T);
        for (int64_t t = 0; t < T; t++) {
            const int64_t at = (b * T + t) * D + d;
            y[at] = t < all ? skip[d] * u[at] : 0;
        }
        for (int64_t n = 0; n < N; n++) {
            const sampled_lane k = sampled_lane_of(read_pair(lam, d * N + n), step[d]);
            const cplx readout = read_pair(c, d * N + n);
            cplx now = pair_or_zero(h0, i * N + n);
            for (int64_t t = 0; t < all; t++) {
                if (t % SAMPLED_TILE == 0) {
                    real *const carry = carries + ((b * tiles + t / SAMPLED_TILE) * N + n) * 2 * D + d;
                    carry[0] = now.re, carry[D] = now.im;
                }
                const int64_t at = (b * T + t) * D + d;
                const sampled_terms by = sampled_terms_of(which, k, dt[b * T + t]);
                now = plane_step(by.a, now, cplx_scaled(u[at], by.gain));
                y[at] += bank_output(readout, now);
            }
            write_pair(hT, i * N + n, now);
        }
    });
    return runtime_status();
}

KERNEL(sampled_bank_backward) {
    enum { ROWS = 5 }; /* sums of a state: two for dlam, two for dc, one for dstep */
    const int which = (int)method;
    const int64_t tiles = pieces_of(T, SAMPLED_TILE);
    double *const sums = workspace_of<double>(B, D, N, (int64_t)ROWS), *const skips = workspace_of<double>(B, D);
    each(B * D, [=] __device__(int64_t i) {
        const int64_t b = i / D, d = i % D, all = steps_of(lengths, b, T);
        double dot = 0;
        for (int64_t t = 0; t < T; t++) {
            const int64_t at = (b * T + t) * D + d;
            du[at] = t < all ? skip[d] * dy[at] : 0;
            if (t < all) dot += (double)dy[at] * (double)u[at];
        }
        skips[i] = dot;
        for (int64_t n = 0; n < N; n++) {
            const sampled_lane k = sampled_lane_of(read_pair(lam, d * N + n), step[d]);
            const cplx readout = read_pair(c, d * N + n);
            cplx q = pair_or_zero(dhT, i * N + n);
            double total[ROWS] = {0};
            for (int64_t tile = pieces_of(all, SAMPLED_TILE) - 1; tile >= 0; tile--) {
                const real *const carry = carries + ((b * tiles + tile) * N + n) * 2 * D + d;
                const int64_t first = tile * SAMPLED_TILE, steps = least(all - first, SAMPLED_TILE);
                cplx past[SAMPLED_TILE + 1];
                past[0].re = carry[0], past[0].im = carry[D];
                for (int64_t s = 0; s < steps; s++) {
                    const sampled_terms by = sampled_terms_of(which, k, dt[b * T + first + s]);
                    past[s + 1] = plane_step(by.a, past[s], cplx_scaled(u[(b * T + first + s) * D + d], by.gain));
                }
                for (int64_t s = steps - 1; s >= 0; s--) {
                    const int64_t at = (b * T + first + s) * D + d;
                    const real interval = dt[b * T + first + s];
                    const sampled_terms by = sampled_terms_of(which, k, interval);
                    const cplx g = bank_state_adjoint(readout, q, dy[at]), zero = {0, 0};
                    const cplx dc = bank_output_adjoint(dy[at], past[s + 1], zero);
                    const cplx da = cplx_conj_product(past[s], g), dgain = cplx_scaled(u[at], g);
                    const sampled_adjoints of = sampled_adjoint(which, k, interval, by, da, dgain);
                    total[0] += (double)of.dlam.re, total[1] += (double)of.dlam.im;
                    total[2] += (double)dc.re, total[3] += (double)dc.im;
                    total[4] += (double)of.dsigma * (double)interval;
                    du[at] += cplx_conj_product(by.gain, g).re;
                    q = bank_past_adjoint(by.a, g);
                }
            }
            write_pair(dh0, i * N + n, q);
            for (int row = 0; row < ROWS; row++) sums[(i * N + n) * ROWS + row] = total[row];
        }
    });
    each(D, [=] __device__(int64_t d) {
        double of_step = 0, of_skip = 0;
        for (int64_t b = 0; b < B; b++) of_skip += skips[b * D + d];
        for (int64_t n = 0; n < N; n++) {
            double total[ROWS] = {0};
            for (int64_t b = 0; b < B; b++)
                for (int row = 0; row < ROWS; row++) total[row] += sums[((b * D + d) * N + n) * ROWS + row];
            const cplx of_lam = {(real)total[0], (real)total[1]}, of_c = {(real)total[2], (real)total[3]};
            write_pair(dlam, d * N + n, of_lam), write_pair(dc, d * N + n, of_c);
            of_step += total[4];
        }
        dskip[d] = (real)of_skip, dstep[d] = (real)of_step;
    });
    return runtime_status();
}
