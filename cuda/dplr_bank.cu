/* S4's bank of recurrences and its adjoint on a GPU (csrc/kernels/dplr_bank.c has the equations).
 *
 * All states of a channel wait for their sum at each step. A warp therefore walks a channel of a sequence through all
 * of time: its lanes divide the states, and a step ends with a sum over lanes. A tile has a step for each lane, which
 * holds that step's numbers. States lie in the warp's room (warps.h), each read and written by one lane alone. Backward
 * first repeats forward within a tile, from the states before it. Sums over tiles and sequences are in double, in one
 * order.
 */
#include "warps.h"

enum { TILE = DPLR_TILE, ALL_LANES = 32 };
static_assert(TILE == ALL_LANES, "a step for each lane");

/* Coefficients, in the order of their gradients' sums. */
enum { A, P, Q, GAIN, C, COEFFICIENTS };

struct plan {
    int64_t B, T, D, N, tiles;
    const int64_t *lengths;
    bool reverse;
};

/* Coefficients (D,N), skip (D), u (B,T,D) */
struct inputs {
    const real *of[COEFFICIENTS], *skip, *u;
};

/* A channel of a sequence; `pairs`: the place of its states in (D,N,2); `state`: in (B,D,N,2). */
struct spot {
    int64_t b, d, pairs, state, steps;
    int lane;
};

ROT_DEVICE_ONLY spot spot_of(plan p, int64_t row) {
    spot at;
    at.b = row / p.D, at.d = row % p.D, at.pairs = at.d * p.N * 2, at.state = row * p.N * 2;
    at.steps = steps_of(p.lengths, at.b, p.T), at.lane = (int)(threadIdx.x % ALL_LANES);
    return at;
}

ROT_DEVICE_ONLY cplx read_pair(const real *p) {
    const cplx z = {p[0], p[1]};
    return z;
}
ROT_DEVICE_ONLY void write_pair(real *p, cplx z) { p[0] = z.re, p[1] = z.im; }

ROT_DEVICE_ONLY cplx coefficient(const inputs &in, spot at, int which, int64_t n) {
    return read_pair(in.of[which] + at.pairs + 2 * n);
}

/* The index in (B,tiles,N,2,D) of the real part of state n before a tile; the imaginary part is D further on. */
ROT_DEVICE_ONLY int64_t carry_of(plan p, spot at, int64_t tile, int64_t n) {
    return (((at.b * p.tiles + tile) * p.N + n) * 2) * p.D + at.d;
}

/* The lane's step of a tile in (B,T,D) */
ROT_DEVICE_ONLY int64_t place_of(plan p, spot at, walk w) { return (w.first + at.lane * w.stride) * p.D + at.d; }

/* The number of x (B,T,D) at the lane's step; zero beyond the tile's steps. */
ROT_DEVICE_ONLY real step_of(const real *x, plan p, spot at, walk w) {
    return at.lane < w.steps ? x[place_of(p, at, w)] : 0;
}

ROT_DEVICE_ONLY void zero_padding_of(real *y, plan p, spot at) {
    for (int64_t t = at.steps + at.lane; t < p.T; t += ALL_LANES) y[(at.b * p.T + t) * p.D + at.d] = 0;
}

/* Re sum_n q_n h_n, of states (N, 2) */
ROT_DEVICE_ONLY real feedback(const inputs &in, plan p, spot at, const real *h) {
    real sum = 0;
    for (int64_t n = at.lane; n < p.N; n += ALL_LANES)
        sum = dplr_output(sum, coefficient(in, at, Q, n), read_pair(h + 2 * n));
    return warp_sum(sum);
}

/* The lane's share of a step of all states, from `before` to `after`, which may be the same array. */
ROT_DEVICE_ONLY void move(const inputs &in, plan p, spot at, real *after, const real *before, real s, real u) {
    for (int64_t n = at.lane; n < p.N; n += ALL_LANES)
        write_pair(after + 2 * n, dplr_step(coefficient(in, at, A, n), coefficient(in, at, P, n),
                                            coefficient(in, at, GAIN, n), read_pair(before + 2 * n), s, u));
}

/* ---- forward ---- */

GLOBAL2(BLOCK, BLOCKS) run_forward(crew c, plan p, inputs in, real *y, real *hT, real *carries, const real *h0) {
    if (warp_of() >= c.count) return;
    real *const h = room_of(c);
    for (int64_t row = warp_of(); row < p.B * p.D; row += c.count) {
        const spot at = spot_of(p, row);
        for (int64_t i = at.lane; i < p.N; i += ALL_LANES) {
            const cplx zero = {0, 0};
            write_pair(h + 2 * i, h0 ? read_pair(h0 + at.state + 2 * i) : zero);
        }
        real s = feedback(in, p, at, h);
        for (int64_t tile = 0; tile * TILE < at.steps; tile++) {
            const walk w = walk_of(at.b, tile, TILE, at.steps, p.T, p.reverse);
            for (int64_t n = at.lane; n < p.N; n += ALL_LANES) {
                real *const before = carries + carry_of(p, at, tile, n);
                before[0] = h[2 * n], before[p.D] = h[2 * n + 1];
            }
            const real u = step_of(in.u, p, at, w);
            real out = in.skip[at.d] * u;
            for (int k = 0; k < w.steps; k++) {
                move(in, p, at, h, h, s, __shfl_sync(~0u, u, k));
                real sum = 0;
                for (int64_t n = at.lane; n < p.N; n += ALL_LANES)
                    sum = dplr_output(sum, coefficient(in, at, C, n), read_pair(h + 2 * n));
                sum = warp_sum(sum);
                if (at.lane == k) out += sum;
                s = feedback(in, p, at, h);
            }
            if (at.lane < w.steps) y[place_of(p, at, w)] = out;
        }
        for (int64_t i = at.lane; i < p.N; i += ALL_LANES) write_pair(hT + at.state + 2 * i, read_pair(h + 2 * i));
        zero_padding_of(y, p, at);
    }
}

static inputs inputs_of(const real *a, const real *p, const real *q, const real *gain, const real *c, const real *skip,
                        const real *u) {
    const inputs in = {{a, p, q, gain, c}, skip, u};
    return in;
}

KERNEL(dplr_bank_forward) {
    const plan z = {B, T, D, N, pieces_of(T, TILE), lengths, (bool)reverse};
    const crew room = crew_of(B * D, 2 * N);
    launch(run_forward, crew_blocks(room), BLOCK, room.shared, room, z, inputs_of(a, p, q, gain, c, skip, u), y, hT,
           carries, h0);
    return runtime_status();
}

/* ---- backward ---- */

/* A warp's room: states before each step of a tile and the last state (TILE + 1, N, 2); the gradient that reaches a
 * state (N, 2); a tile's sums (N, COEFFICIENTS, 2). */
ROT_INLINE int64_t room_size(int64_t N) { return 2 * N * (TILE + 1 + 1 + COEFFICIENTS); }

/* Sums over a sequence: of the coefficients (B,N,COEFFICIENTS,2,D), and of dskip (B,D). */
struct sums {
    double *coefficients, *skip;
};

struct gradients {
    real *of[COEFFICIENTS];
};

/* A state's terms of a step's gradients, added to sums (COEFFICIENTS, 2). */
ROT_DEVICE_ONLY void add_gradients(real *sums, cplx g, cplx past, cplx now, real u, real dy, real s, real ds) {
    write_pair(sums + 2 * A, bank_transition_adjoint(g, past, read_pair(sums + 2 * A)));
    write_pair(sums + 2 * P, dplr_product(read_pair(sums + 2 * P), g, s));
    write_pair(sums + 2 * Q, bank_output_adjoint(ds, past, read_pair(sums + 2 * Q)));
    write_pair(sums + 2 * GAIN, dplr_product(read_pair(sums + 2 * GAIN), g, u));
    write_pair(sums + 2 * C, bank_output_adjoint(dy, now, read_pair(sums + 2 * C)));
}

GLOBAL2(BLOCK, BLOCKS)
run_backward(crew c, plan p, inputs in, real *du, real *dh0, sums out, const real *dy, const real *dhT,
             const real *carries) {
    if (warp_of() >= c.count) return;
    real *const past = room_of(c), *const r = past + 2 * p.N * (TILE + 1), *const of_tile = r + 2 * p.N;
    for (int64_t row = warp_of(); row < p.B * p.D; row += c.count) {
        const spot at = spot_of(p, row);
        const int64_t width = 2 * COEFFICIENTS;
        double *const total = out.coefficients + at.b * p.N * width * p.D + at.d;
        double total_skip = 0;
        for (int64_t n = at.lane; n < p.N; n += ALL_LANES) {
            const cplx zero = {0, 0};
            write_pair(r + 2 * n, dhT ? read_pair(dhT + at.state + 2 * n) : zero);
            for (int64_t i = 0; i < width; i++) total[(n * width + i) * p.D] = 0;
        }
        for (int64_t tile = pieces_of(at.steps, TILE) - 1; tile >= 0; tile--) {
            const walk w = walk_of(at.b, tile, TILE, at.steps, p.T, p.reverse);
            const real u = step_of(in.u, p, at, w), dout = step_of(dy, p, at, w);
            real din = in.skip[at.d] * dout, s = 0;
            total_skip += (double)warp_sum(dout * u);
            for (int64_t n = at.lane; n < p.N; n += ALL_LANES) {
                const real *const before = carries + carry_of(p, at, tile, n);
                past[2 * n] = before[0], past[2 * n + 1] = before[p.D];
                for (int64_t i = 0; i < width; i++) of_tile[n * width + i] = 0;
            }
            for (int k = 0; k < w.steps; k++) {
                const real fed = feedback(in, p, at, past + 2 * p.N * k);
                if (at.lane == k) s = fed;
                move(in, p, at, past + 2 * p.N * (k + 1), past + 2 * p.N * k, fed, __shfl_sync(~0u, u, k));
            }
            for (int k = (int)w.steps - 1; k >= 0; k--) {
                const real dy_k = __shfl_sync(~0u, dout, k), u_k = __shfl_sync(~0u, u, k), s_k = __shfl_sync(~0u, s, k);
                real du_k = 0, ds_k = 0;
                for (int64_t n = at.lane; n < p.N; n += ALL_LANES) {
                    const cplx g = bank_state_adjoint(coefficient(in, at, C, n), read_pair(r + 2 * n), dy_k);
                    write_pair(r + 2 * n, g);
                    du_k = dplr_input_adjoint(du_k, coefficient(in, at, GAIN, n), g);
                    ds_k = dplr_input_adjoint(ds_k, coefficient(in, at, P, n), g);
                }
                du_k = warp_sum(du_k), ds_k = warp_sum(ds_k);
                if (at.lane == k) din += du_k;
                for (int64_t n = at.lane; n < p.N; n += ALL_LANES) {
                    const cplx g = read_pair(r + 2 * n), direct = bank_past_adjoint(coefficient(in, at, A, n), g);
                    const real *const before = past + 2 * (p.N * k + n);
                    add_gradients(of_tile + n * width, g, read_pair(before), read_pair(before + 2 * p.N), u_k, dy_k,
                                  s_k, ds_k);
                    write_pair(r + 2 * n, bank_state_adjoint(coefficient(in, at, Q, n), direct, ds_k));
                }
            }
            if (at.lane < w.steps) du[place_of(p, at, w)] = din;
            for (int64_t n = at.lane; n < p.N; n += ALL_LANES)
                for (int64_t i = 0; i < width; i++) total[(n * width + i) * p.D] += (double)of_tile[n * width + i];
        }
        for (int64_t n = at.lane; n < p.N; n += ALL_LANES) write_pair(dh0 + at.state + 2 * n, read_pair(r + 2 * n));
        if (at.lane == 0) out.skip[at.b * p.D + at.d] = total_skip;
        zero_padding_of(du, p, at);
    }
}

/* The sum over sequences of x (B,count) */
ROT_DEVICE_ONLY double sum_of_sequences(const double *x, int64_t B, int64_t count) {
    double total = 0;
    pipelined<8>(
        B, [&](int64_t b) { return x[b * count]; }, [&](int64_t, double one) { total += one; });
    return total;
}

KERNEL(dplr_bank_backward) {
    const plan z = {B, T, D, N, pieces_of(T, TILE), lengths, (bool)reverse};
    const crew room = crew_of(B * D, room_size(N));
    const sums out = {workspace_of<double>(B, N, 2 * COEFFICIENTS, D), workspace_of<double>(B, D)};
    launch(run_backward, crew_blocks(room), BLOCK, room.shared, room, z, inputs_of(a, p, q, gain, c, skip, u), du, dh0,
           out, dy, dhT, carries);
    const gradients to = {{da, dp, dq, dgain, dc}};
    each(N * 2 * COEFFICIENTS * D, [=] __device__(int64_t i) {
        const int64_t d = i % z.D, part = i / z.D % 2, which = i / z.D / 2 % COEFFICIENTS,
                      n = i / z.D / 2 / COEFFICIENTS;
        const double sum = sum_of_sequences(out.coefficients + i, z.B, z.N * 2 * COEFFICIENTS * z.D);
        to.of[which][(d * z.N + n) * 2 + part] = (real)sum;
    });
    each(D, [=] __device__(int64_t d) { dskip[d] = (real)sum_of_sequences(out.skip + d, z.B, z.D); });
    return runtime_status();
}
