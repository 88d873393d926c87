/* Diagonal systems in continuous time at uneven times, and their adjoints, on a GPU (csrc/kernels/sampled.c has the
 * equations). A thread walks through the time of a lane of a sequence. A warp walks through the time of a channel of a
 * bank: a lane has a state, 32 states at a time, and a step ends with a sum over lanes. A tile has a step for each
 * lane, which holds that step's numbers. Sums of sequences and of lanes are added in one order. */
#include "sampled.h"
#include "warps.h"

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

namespace {

enum { TILE = SAMPLED_TILE, LANES = 32 };
static_assert(TILE == LANES, "a step for each lane");

/* Up to LANES states of a channel d of a sequence, one for each lane: the lane's state, if it has one. */
struct member {
    int64_t n;
    bool there;
    sampled_lane k;
    cplx readout;
};

ROT_DEVICE_ONLY member member_of(int64_t n, int64_t d, int64_t N, const real *lam, const real *step, const real *c) {
    const cplx zero = {0, 0};
    member m = {n, n < N, sampled_lane_of(zero, step[d]), zero};
    if (m.there) m.k = sampled_lane_of(read_pair(lam, d * N + n), step[d]), m.readout = read_pair(c, d * N + n);
    return m;
}

/* The lane's step of the tile that begins with step `first` of sequence b: whether the sequence has it, and where it is
 * in (B,T) and, for channel d, in (B,T,D). */
struct moment {
    int64_t steps, row, at;
    bool there;
};

ROT_DEVICE_ONLY moment moment_of(int64_t b, int64_t first, int lane, int64_t all, int64_t T, int64_t D, int64_t d) {
    const int64_t row = b * T + first + lane;
    const moment m = {least(all - first, SAMPLED_TILE), row, row * D + d, first + lane < all};
    return m;
}

} // namespace

KERNEL(sampled_bank_forward) {
    const int which = (int)method;
    const int64_t tiles = pieces_of(T, SAMPLED_TILE);
    each_warp(B * D, [=] __device__(int64_t i, int lane) {
        const int64_t b = i / D, d = i % D, all = steps_of(lengths, b, T);
        const cplx zero = {0, 0};
        for (int64_t from = 0; from == 0 || from < N; from += LANES) {
            const member m = member_of(from + lane, d, N, lam, step, c);
            cplx now = m.there ? pair_or_zero(h0, i * N + m.n) : zero;
            for (int64_t first = 0; first < all; first += SAMPLED_TILE) {
                if (m.there) {
                    real *const carry = carries + ((b * tiles + first / SAMPLED_TILE) * N + m.n) * 2 * D + d;
                    carry[0] = now.re, carry[D] = now.im;
                }
                const moment p = moment_of(b, first, lane, all, T, D, d);
                const real in = p.there ? u[p.at] : 0, interval = p.there ? dt[p.row] : 0;
                real out = !p.there ? 0 : from ? y[p.at] : skip[d] * in;
                for (int s = 0; s < p.steps; s++) {
                    const sampled_terms by = sampled_terms_of(which, m.k, __shfl_sync(~0u, interval, s));
                    now = plane_step(by.a, now, cplx_scaled(__shfl_sync(~0u, in, s), by.gain));
                    const real sum = warp_sum(m.there ? bank_output(m.readout, now) : 0);
                    if (lane == s) out += sum;
                }
                if (p.there) y[p.at] = out;
            }
            if (m.there) write_pair(hT, i * N + m.n, now);
        }
        for (int64_t t = all + lane; t < T; t += LANES) y[(b * T + t) * D + d] = 0;
    });
    return runtime_status();
}

KERNEL(sampled_bank_backward) {
    enum { ROWS = 5 }; /* sums of a state: two for dlam, two for dc, one for dstep */
    const int which = (int)method;
    const int64_t tiles = pieces_of(T, SAMPLED_TILE);
    double *const sums = workspace_of<double>(B, D, N, (int64_t)ROWS), *const skips = workspace_of<double>(B, D);
    each_warp(B * D, [=] __device__(int64_t i, int lane) {
        const int64_t b = i / D, d = i % D, all = steps_of(lengths, b, T);
        const cplx zero = {0, 0};
        double dot = 0;
        for (int64_t from = 0; from == 0 || from < N; from += LANES) {
            const member m = member_of(from + lane, d, N, lam, step, c);
            cplx q = m.there ? pair_or_zero(dhT, i * N + m.n) : zero;
            double total[ROWS] = {0};
            for (int64_t tile = pieces_of(all, SAMPLED_TILE) - 1; tile >= 0; tile--) {
                const moment p = moment_of(b, tile * SAMPLED_TILE, lane, all, T, D, d);
                const real in = p.there ? u[p.at] : 0, dout = p.there ? dy[p.at] : 0;
                const real interval = p.there ? dt[p.row] : 0;
                real din = !p.there ? 0 : from ? du[p.at] : skip[d] * dout;
                if (from == 0) dot += (double)dout * (double)in;
                cplx past[SAMPLED_TILE + 1] = {zero};
                if (m.there) {
                    const real *const carry = carries + ((b * tiles + tile) * N + m.n) * 2 * D + d;
                    past[0].re = carry[0], past[0].im = carry[D];
                }
                for (int s = 0; s < p.steps; s++) {
                    const sampled_terms by = sampled_terms_of(which, m.k, __shfl_sync(~0u, interval, s));
                    past[s + 1] = plane_step(by.a, past[s], cplx_scaled(__shfl_sync(~0u, in, s), by.gain));
                }
                for (int s = (int)p.steps - 1; s >= 0; s--) {
                    const real dt_s = __shfl_sync(~0u, interval, s), u_s = __shfl_sync(~0u, in, s);
                    const real dy_s = __shfl_sync(~0u, dout, s);
                    const sampled_terms by = sampled_terms_of(which, m.k, dt_s);
                    const cplx g = bank_state_adjoint(m.readout, q, dy_s);
                    const cplx dc_s = bank_output_adjoint(dy_s, past[s + 1], zero);
                    const cplx da = cplx_conj_product(past[s], g), dgain = cplx_scaled(u_s, g);
                    const sampled_adjoints of = sampled_adjoint(which, m.k, dt_s, by, da, dgain);
                    total[0] += (double)of.dlam.re, total[1] += (double)of.dlam.im;
                    total[2] += (double)dc_s.re, total[3] += (double)dc_s.im;
                    total[4] += (double)of.dsigma * (double)dt_s;
                    const real sum = warp_sum(m.there ? cplx_conj_product(by.gain, g).re : 0);
                    if (lane == s) din += sum;
                    q = bank_past_adjoint(by.a, g);
                }
                if (p.there) du[p.at] = din;
            }
            if (m.there) {
                write_pair(dh0, i * N + m.n, q);
                for (int row = 0; row < ROWS; row++) sums[(i * N + m.n) * ROWS + row] = total[row];
            }
        }
        dot = warp_sum(dot);
        if (lane == 0) skips[i] = dot;
        for (int64_t t = all + lane; t < T; t += LANES) du[(b * T + t) * D + d] = 0;
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
