/* Dense recurrences, the simple recurrent network and the LSTM, and their adjoints on a GPU (csrc/kernels/rnn.c has the
 * equations).
 *
 * A launch for each step: product of the states and the weights, and the cell, in one kernel. A block that walked a few
 * sequences alone would read all weights at each step, 4 MB for an LSTM of 512 units: at 64 bytes a cycle tens of
 * microseconds, where a launch costs a few and spreads the reads over all processors. A warp computes COLUMNS x ROWS
 * dot products of rows of weights with states of sequences; its lanes divide the terms, and in the end each lane has
 * one of the sums. So all reads are of whole rows, and every sum has one order.
 *
 * Where the call's precision rounds operands of products, the weights are rounded once, and what a step leaves for the
 * next one's product, states or gradients of gates, is rounded as it is written.
 */
#include "device.h"

enum {
    COLUMNS = 4, /* of a warp: the gates of a unit of an LSTM, or units */
    ROWS = 8,    /* sequences of a warp */
    WARPS = 4,
    THREADS = WARPS * 32,
    AHEAD = sizeof(real) == 4 ? 4 : 2, /* terms of a dot product whose operands a lane reads at once */
};
static_assert(COLUMNS * ROWS == 32, "a sum for each lane");

struct plan {
    int64_t B, T, N, gates, cell;
    const int64_t *lengths;
    bool reverse;
    int precision;
};

/* What a thread works on: sequence b, `row` of those of its warp; and column c of those from `first` on. */
struct spot {
    int64_t b, first;
    int row, c;
    int64_t steps; /* of the sequence; negative if there is none */
};

/* groups: of columns */
ROT_DEVICE_ONLY spot spot_of(plan p, int64_t groups) {
    const int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    spot at;
    at.row = (int)(threadIdx.x % ROWS), at.c = (int)(threadIdx.x % 32 / ROWS);
    at.b = warp / groups * ROWS + at.row, at.first = warp % groups;
    at.steps = at.b < p.B ? steps_of(p.lengths, at.b, p.T) : -2;
    return at;
}

/* Index in (B,T) of step k of the thread's sequence. */
ROT_DEVICE_ONLY int64_t place_of(plan p, spot at, int64_t k) { return at.b * p.T + (p.reverse ? at.steps - 1 - k : k); }

static int64_t blocks_of(const plan &p, int64_t groups) { return pieces_of(groups * pieces_of(p.B, ROWS), WARPS); }

/* Sums of 2 HALF numbers each over groups of 2 HALF lanes; lane i of a group gets that of v[i]. Lanes exchange the
 * numbers that are not theirs, half of what is left at a time. */
template <int HALF> ROT_DEVICE_ONLY real sum_of_lane(real *v) {
    const bool high = threadIdx.x & HALF;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const real keep = high ? v[i + HALF] : v[i], give = high ? v[i] : v[i + HALF];
        v[i] = keep + __shfl_xor_sync(~0u, give, HALF);
    }
    if constexpr (HALF > 1) return sum_of_lane<HALF / 2>(v);
    return v[0];
}

/* The thread's dot product of w + c apart and the row of x, which is (B,inner); zero if `has` is false. */
ROT_DEVICE_ONLY real product_of(const real *__restrict w, int64_t apart, int columns, const real *__restrict x, spot at,
                                int64_t inner, bool has) {
    const uint32_t rows = __ballot_sync(~0u, has);
    if (!rows) return 0;
    const int lane = (int)(threadIdx.x % 32);
    const real *const from = x + (at.b - at.row) * inner;
    real sum[COLUMNS * ROWS] = {0};
#pragma unroll AHEAD
    for (int64_t i = lane; i < inner; i += 32) {
        real weight[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) weight[c] = w[least(c, columns - 1) * apart + i];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (!(rows >> r & 1)) continue;
            const real state = from[r * inner + i];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sum[c * ROWS + r] += weight[c] * state;
        }
    }
    return sum_of_lane<16>(sum);
}

ROT_DEVICE_ONLY real activate(real z, int64_t cell) {
    return cell == CELL_TANH ? vmath_tanh(z) : cell == CELL_RELU ? relu(z) : z;
}
ROT_DEVICE_ONLY real activate_adjoint(real g, real h, int64_t cell) {
    return cell == CELL_TANH ? tanh_adjoint(g, h) : cell == CELL_RELU ? relu_adjoint(g, h) : g;
}

/* y (B,T,n) <- 0 in padding */
static void zero_padding(real *y, plan p, int64_t n) {
    if (!p.lengths) return;
    each(p.B * p.T * n, [=] __device__(int64_t i) {
        if (i / n % p.T >= p.lengths[i / n / p.T]) y[i] = 0;
    });
}

/* Numbers as operands of products: themselves, or rounded in an array of the call. */
static const real *operands(const real *x, int64_t count, plan p) {
    if (p.precision == PRECISION_FLOAT32) return x;
    real *const y = workspace_of<real>(count);
    each(count, [=] __device__(int64_t i) { y[i] = operand_of(x[i], p.precision); });
    return y;
}

/* ---- forward ---- */

struct outputs {
    real *h, *hT, *c, *cT, *gates;
};

/* Step k of the simple network: after (B,N) from `before`, NULL for zeros. */
GLOBAL(THREADS)
step_forward(plan p, int64_t k, outputs out, real *after, const real *w, const real *x, const real *before) {
    const int64_t groups = pieces_of(p.N, COLUMNS);
    const spot at = spot_of(p, groups);
    const int64_t j0 = at.first * COLUMNS, j = j0 + at.c, place = place_of(p, at, k);
    const bool active = k < at.steps;
    const real z = product_of(w + j0 * p.N, p.N, (int)least(p.N - j0, COLUMNS), before, at, p.N, before && active);
    if (!active || j >= p.N) return;
    const real h = activate(x[place * p.N + j] + z, p.cell);
    out.h[place * p.N + j] = h, after[at.b * p.N + j] = operand_of(h, p.precision);
    if (k == at.steps - 1) out.hT[at.b * p.N + j] = h;
}

/* Step k of the LSTM: each lane has a gate of unit j, then all four. */
GLOBAL(THREADS)
step_lstm(plan p, int64_t k, outputs out, real *after, const real *w, const real *x, const real *before,
          const real *c0) {
    const spot at = spot_of(p, p.N);
    const int64_t j = at.first, place = place_of(p, at, k), state = at.b * p.N + j;
    const bool active = k < at.steps;
    real z = product_of(w + j * p.N, p.N * p.N, COLUMNS, before, at, p.N, before && active);
    if (active) z += x[(place * 4 + at.c) * p.N + j];
    lstm_gates all;
    all.i = __shfl_sync(~0u, z, at.row), all.f = __shfl_sync(~0u, z, ROWS + at.row);
    all.g = __shfl_sync(~0u, z, 2 * ROWS + at.row), all.o = __shfl_sync(~0u, z, 3 * ROWS + at.row);
    if (!active) return;
    const lstm_gates gates = lstm_gates_of(all);
    const real c_prev = k ? out.c[place_of(p, at, k - 1) * p.N + j] : c0 ? c0[state] : 0;
    const real c = lstm_cell(gates, c_prev), h = lstm_output(gates, c);
    out.gates[(place * 4 + at.c) * p.N + j] = at.c == 0 ? gates.i : at.c == 1 ? gates.f : at.c == 2 ? gates.g : gates.o;
    if (at.c == 0) out.h[place * p.N + j] = h, after[state] = operand_of(h, p.precision);
    if (at.c == 1) out.c[place * p.N + j] = c;
    if (k != at.steps - 1) return;
    if (at.c == 0) out.hT[state] = h;
    if (at.c == 1) out.cT[state] = c;
}

KERNEL(rnn_forward) {
    const plan p = {B, T, N, gates_of(cell), cell, lengths, (bool)reverse, precision_of_products()};
    const outputs out = {h, hT, c, cT, gates};
    const real *const weights = operands(w, p.gates * N * N, p), *const first = h0 ? operands(h0, B * N, p) : NULL;
    real *const states[] = {workspace_of<real>(B, N), workspace_of<real>(B, N)};
    each(B * N, [=] __device__(int64_t i) {
        if (steps_of(lengths, i / N, T)) return;
        hT[i] = h0 ? h0[i] : 0;
        if (cell == CELL_LSTM) cT[i] = c0 ? c0[i] : 0;
    });
    for (int64_t k = 0; k < T; k++) {
        const real *const before = k ? states[k % 2] : first;
        real *const after = states[(k + 1) % 2];
        if (cell == CELL_LSTM)
            launch(step_lstm, blocks_of(p, N), THREADS, 0, p, k, out, after, weights, x, before, c0);
        else
            launch(step_forward, blocks_of(p, pieces_of(N, COLUMNS)), THREADS, 0, p, k, out, after, weights, x, before);
    }
    zero_padding(h, p, N);
    if (cell == CELL_LSTM) zero_padding(c, p, N), zero_padding(gates, p, 4 * N);
    return runtime_status();
}

/* ---- backward ---- */

/* What the steps read; dc (B,N) is read and written: the gradient that reaches c from later steps. */
struct saved {
    const real *dh, *dhT, *h, *c, *gates, *c0;
};

/* Step k, or -1 for dh0: dz_k (B, gates N) from `later`, that of step k + 1. turned (N, gates N): w^T */
GLOBAL(THREADS)
step_backward(plan p, int64_t k, real *dx, real *dh0, real *dc, real *dz, saved in, const real *turned,
              const real *later) {
    const int64_t inner = p.gates * p.N, groups = pieces_of(p.N, COLUMNS);
    const spot at = spot_of(p, groups);
    const int64_t j0 = at.first * COLUMNS, j = j0 + at.c, state = at.b * p.N + j;
    const bool follows = k + 1 < at.steps; /* there is a step k + 1 */
    real g = product_of(turned + j0 * inner, inner, (int)least(p.N - j0, COLUMNS), later, at, inner, follows);
    if (at.b >= p.B || j >= p.N || k >= at.steps) return;
    if (!follows && in.dhT) g = in.dhT[state];
    if (k < 0) {
        dh0[state] = g;
        return;
    }
    const int64_t place = place_of(p, at, k);
    g += in.dh[place * p.N + j];
    if (p.cell != CELL_LSTM) {
        const real d = activate_adjoint(g, in.h[place * p.N + j], p.cell);
        dx[place * p.N + j] = d, dz[state] = operand_of(d, p.precision);
        return;
    }
    const real *const of = in.gates + place * inner + j;
    const lstm_gates gates = {of[0], of[p.N], of[2 * p.N], of[3 * p.N]};
    const real c_prev = k ? in.c[place_of(p, at, k - 1) * p.N + j] : in.c0 ? in.c0[state] : 0;
    const lstm_parts d = lstm_adjoint(gates, in.c[place * p.N + j], c_prev, g, dc[state]);
    const real gradients[] = {d.dz.i, d.dz.f, d.dz.g, d.dz.o};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        dx[place * inner + i * p.N + j] = gradients[i];
        dz[at.b * inner + i * p.N + j] = operand_of(gradients[i], p.precision);
    }
    dc[state] = d.q;
}

KERNEL(rnn_backward) {
    const plan p = {B, T, N, gates_of(cell), cell, lengths, (bool)reverse, precision_of_products()};
    const saved in = {dh, dhT, h, c, gates, c0};
    const int64_t inner = p.gates * N;
    real *const turned = workspace_of<real>(N, inner);
    real *const dz[] = {workspace_of<real>(B, inner), workspace_of<real>(B, inner)};
    each(inner * N, [=] __device__(int64_t i) { turned[i % N * inner + i / N] = operand_of(w[i], p.precision); });
    if (cell == CELL_LSTM) each(B * N, [=] __device__(int64_t i) { dc0[i] = dcT ? dcT[i] : 0; });
    for (int64_t k = T - 1; k >= -1; k--)
        launch(step_backward, blocks_of(p, pieces_of(N, COLUMNS)), THREADS, 0, p, k, dx, dh0, dc0, dz[(k + 1) % 2], in,
               (const real *)turned, (const real *)dz[(k + 2) % 2]);
    zero_padding(dx, p, inner);
    return runtime_status();
}
