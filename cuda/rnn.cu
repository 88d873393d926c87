/* Dense recurrences, the simple recurrent network, the LSTM and the GRU, and their adjoints on a GPU
 * (csrc/kernels/rnn.c has the equations). Each step is a launch: the product of the states and the weights
 * (recurrent.h), and the cell, in one kernel.
 */
#include "recurrent.h"

struct plan : batch_plan {
    int64_t N, gates, cell;
    bool reverse;
};

/* Index in (B,T) of step k of the thread's sequence. */
ROT_DEVICE_ONLY int64_t place_of(plan p, spot at, int64_t k) { return at.b * p.T + (p.reverse ? at.steps - 1 - k : k); }

ROT_DEVICE_ONLY real activate(real z, int64_t cell) {
    return cell == CELL_TANH ? vmath_tanh(z) : cell == CELL_RELU ? relu(z) : z;
}
ROT_DEVICE_ONLY real activate_adjoint(real g, real h, int64_t cell) {
    return cell == CELL_TANH ? tanh_adjoint(g, h) : cell == CELL_RELU ? relu_adjoint(g, h) : g;
}

/* ---- forward ---- */

struct outputs {
    real *h, *hT, *c, *cT, *gates;
};

/* Step k of the simple network: `after` (B,N) from `before`, NULL for zeros. */
GLOBAL(THREADS)
step_forward(plan p, int64_t k, outputs out, real *after, const real *w, const real *x, const real *before) {
    const int64_t groups = pieces_of(p.N, COLUMNS);
    const spot at = spot_of(p, groups);
    const int64_t j0 = at.first * COLUMNS, j = j0 + at.c, place = place_of(p, at, k);
    const bool active = k < at.steps;
    const real z = product_of(w + j0 * p.N, p.N, (int)least(p.N - j0, COLUMNS), before, p.N, at, p.N, before && active);
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
    real z = product_of(w + j * p.N, p.N * p.N, COLUMNS, before, p.N, at, p.N, before && active);
    if (active) z += x[(place * 4 + at.c) * p.N + j];
    const lstm_gates all = gates_of_lanes(z, at.row);
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

/* Step k of the GRU: each lane has a gate of unit j, the fourth x_n, then all. */
GLOBAL(THREADS)
step_gru(plan p, int64_t k, outputs out, real *after, const real *w, const real *x, const real *bias,
         const real *before, const real *h0) {
    const spot at = spot_of(p, p.N);
    const int64_t j = at.first, place = place_of(p, at, k), state = at.b * p.N + j;
    const bool active = k < at.steps;
    real z = product_of(w + j * p.N, p.N * p.N, 3, before, p.N, at, p.N, before && active);
    if (active && at.c < 3) z += bias[at.c * p.N + j];
    if (active && at.c < 2) z += x[(place * 3 + at.c) * p.N + j];
    if (active && at.c == 3) z = x[(place * 3 + 2) * p.N + j];
    const lstm_gates all = gates_of_lanes(z, at.row);
    if (!active) return;
    const gru_gates gates = gru_gates_of(all.i, all.f, all.o, all.g);
    const real h_prev = k ? out.h[place_of(p, at, k - 1) * p.N + j] : h0 ? h0[state] : 0;
    const real h = gru_output(gates, h_prev);
    out.gates[(place * 4 + at.c) * p.N + j] = at.c == 0 ? gates.r : at.c == 1 ? gates.z : at.c == 2 ? gates.n : gates.u;
    if (at.c) return;
    out.h[place * p.N + j] = h, after[state] = operand_of(h, p.precision);
    if (k == at.steps - 1) out.hT[state] = h;
}

KERNEL(rnn_forward) {
    const plan p = {{B, T, lengths, precision_of_products()}, N, gates_of(cell), cell, (bool)reverse};
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
        else if (cell == CELL_GRU)
            launch(step_gru, blocks_of(p, N), THREADS, 0, p, k, out, after, weights, x, bias, before, h0);
        else
            launch(step_forward, blocks_of(p, pieces_of(N, COLUMNS)), THREADS, 0, p, k, out, after, weights, x, before);
    }
    zero_padding(h, lengths, B, T, N);
    if (cell == CELL_LSTM) zero_padding(c, lengths, B, T, N);
    if (cell == CELL_LSTM || cell == CELL_GRU) zero_padding(gates, lengths, B, T, 4 * N);
    return runtime_status();
}

/* ---- backward ---- */

/* The inputs of the steps. dc (B,N) is read and written: the gradient that reaches c from later steps, or for the GRU
 * the gradient that reaches h other than through the product. */
struct saved {
    const real *dh, *dhT, *h, *c, *gates, *c0;
};

/* Step k, or -1 for dh0: dz_k (B, gates N) from `later`, dz of step k + 1. turned (N, gates N): w^T */
GLOBAL(THREADS)
step_backward(plan p, int64_t k, real *dx, real *dh0, real *dc, real *dz, saved in, const real *turned,
              const real *later) {
    const int64_t inner = p.gates * p.N, groups = pieces_of(p.N, COLUMNS);
    const spot at = spot_of(p, groups);
    const int64_t j0 = at.first * COLUMNS, j = j0 + at.c, state = at.b * p.N + j;
    const bool follows = k + 1 < at.steps; /* there is a step k + 1 */
    real g = product_of(turned + j0 * inner, inner, (int)least(p.N - j0, COLUMNS), later, inner, at, inner, follows);
    if (at.b >= p.B || j >= p.N || k >= at.steps) return;
    if (!follows && in.dhT) g = in.dhT[state];
    if (follows && p.cell == CELL_GRU) g += dc[state];
    if (k < 0) {
        dh0[state] = g;
        return;
    }
    const int64_t place = place_of(p, at, k);
    g += in.dh[place * p.N + j];
    const real *const of = in.gates + place * 4 * p.N + j;
    if (p.cell == CELL_GRU) {
        const gru_gates gates = {of[0], of[p.N], of[2 * p.N], of[3 * p.N]};
        const real h_prev = k ? in.h[place_of(p, at, k - 1) * p.N + j] : in.c0 ? in.c0[state] : 0;
        const gru_parts d = gru_adjoint(gates, h_prev, g);
        const real gradients[] = {d.dx.r, d.dx.z, d.dx.u};
#pragma unroll
        for (int i = 0; i < 3; i++) {
            dx[place * inner + i * p.N + j] = i == 2 ? d.dx.n : gradients[i];
            dz[at.b * inner + i * p.N + j] = operand_of(gradients[i], p.precision);
        }
        dc[state] = d.h;
        return;
    }
    if (p.cell != CELL_LSTM) {
        const real d = activate_adjoint(g, in.h[place * p.N + j], p.cell);
        dx[place * p.N + j] = d, dz[state] = operand_of(d, p.precision);
        return;
    }
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
    const plan p = {{B, T, lengths, precision_of_products()}, N, gates_of(cell), cell, (bool)reverse};
    const saved in = {dh, dhT, h, c, gates, c0};
    const int64_t inner = p.gates * N;
    real *const turned = workspace_of<real>(N, inner);
    real *const dz[] = {workspace_of<real>(B, inner), workspace_of<real>(B, inner)};
    each(inner * N, [=] __device__(int64_t i) { turned[i % N * inner + i / N] = operand_of(w[i], p.precision); });
    real *const carry = cell == CELL_GRU ? workspace_of<real>(B, N) : dc0; /* read only after a step has written it */
    if (cell == CELL_LSTM) each(B * N, [=] __device__(int64_t i) { dc0[i] = dcT ? dcT[i] : 0; });
    for (int64_t k = T - 1; k >= -1; k--)
        launch(step_backward, blocks_of(p, pieces_of(N, COLUMNS)), THREADS, 0, p, k, dx, dh0, carry, dz[(k + 1) % 2],
               in, (const real *)turned, (const real *)dz[(k + 2) % 2]);
    zero_padding(dx, lengths, B, T, inner);
    return runtime_status();
}
