/* The scalar memory of the sLSTM and its adjoint on a GPU (csrc/kernels/slstm.c has the equations). Like in the LSTM,
 * each step is a launch: the product of the last outputs and the weights (recurrent.h), and the cell, in one kernel. A
 * warp works on one head; weights and outputs of the heads are separate.
 */
#include "recurrent.h"

enum { GATES = COLUMNS }; /* of a unit */

/* N: units of all heads, H P */
struct plan : batch_plan {
    int64_t H, P, N;
    bool exponential;
};

static plan plan_of(int64_t B, int64_t T, int64_t H, int64_t P, const int64_t *lengths, bool exponential) {
    const plan p = {{B, T, lengths, precision_of_products()}, H, P, H * P, exponential};
    return p;
}

/* Scaled memories c, n and their levels m, of every step or of one step; NULL for zeros. */
struct memories {
    const real *c, *n, *m;
};

ROT_DEVICE_ONLY slstm_memory memory_at(memories of, int64_t i) {
    const slstm_memory one = {lane_or_zero(of.c, i), lane_or_zero(of.n, i), lane_or_zero(of.m, i)};
    return one;
}

/* The memory of unit u before step k. */
ROT_DEVICE_ONLY slstm_memory memory_before(plan p, spot at, int64_t k, int64_t u, memories steps, memories first) {
    return k ? memory_at(steps, (at.b * p.T + k - 1) * p.N + u) : memory_at(first, at.b * p.N + u);
}

/* ---- forward ---- */

/* h and its memory */
struct outputs {
    real *h, *c, *n, *m;
};

/* Writes the part of a memory and its output that belongs to column c. */
ROT_DEVICE_ONLY void write_part(outputs to, int64_t i, int c, real h, slstm_memory now) {
    if (c == 0) to.h[i] = h;
    if (c == 1) to.c[i] = now.c;
    if (c == 2) to.n[i] = now.n;
    if (c == 3) to.m[i] = now.m;
}

/* Step k: each lane has a gate of unit u of all heads, then all four. `after` (B,N) is read by the next step's product,
 * `before` by this one's; NULL for zeros. */
GLOBAL(THREADS)
step_forward(plan p, int64_t k, outputs out, outputs last, real *gates, real *after, const real *w, const real *x,
             const real *before, memories first) {
    const spot at = spot_of(p, p.N);
    const int64_t u = at.first, head = u / p.P, j = u % p.P, place = at.b * p.T + k,
                  gate = (place * GATES + at.c) * p.N + u;
    const bool active = k < at.steps;
    const real *const rows = w + (head * GATES * p.P + j) * p.P;
    real z = product_of(rows, p.P * p.P, GATES, before + head * p.P, p.N, at, p.P, before && active);
    if (active) z += x[gate];
    const lstm_gates raw = gates_of_lanes(z, at.row);
    if (!active) return;
    const memories steps = {out.c, out.n, out.m};
    const slstm_memory earlier = memory_before(p, at, k, u, steps, first);
    real h;
    const slstm_memory now = slstm_step(&h, raw, earlier, p.exponential);
    gates[gate] = z;
    write_part(out, place * p.N + u, at.c, h, now);
    if (at.c == 0) after[at.b * p.N + u] = operand_of(h, p.precision);
    if (k == at.steps - 1) write_part(last, at.b * p.N + u, at.c, h, now);
}

KERNEL(slstm_forward) {
    const plan p = plan_of(B, T, H, P, lengths, exponential);
    const int64_t N = p.N;
    const outputs out = {h, c, n, m}, last = {hT, cT, nT, mT};
    const memories first = {c0, n0, m0};
    const real *const weights = operands(w, N * GATES * P, p), *const start = h0 ? operands(h0, B * N, p) : NULL;
    real *const states[] = {workspace_of<real>(B, N), workspace_of<real>(B, N)};
    each(B * N, [=] __device__(int64_t i) {
        if (steps_of(lengths, i / N, T)) return;
        const slstm_memory one = memory_at(first, i);
        hT[i] = h0 ? h0[i] : 0, cT[i] = one.c, nT[i] = one.n, mT[i] = one.m;
    });
    for (int64_t k = 0; k < T; k++)
        launch(step_forward, blocks_of(p, N), THREADS, 0, p, k, out, last, gates, states[(k + 1) % 2], weights, x,
               k ? (const real *)states[k % 2] : start, first);
    real *const steps[] = {h, c, n, m};
    for (real *const y : steps) zero_padding(y, lengths, B, T, N);
    zero_padding(gates, lengths, B, T, GATES * N);
    return runtime_status();
}

/* ---- backward ---- */

struct saved {
    const real *dh, *dhT, *gates;
    memories steps, first;
};

/* dh0, and the gradients that reach the memory from later steps, (B,N) each; at the end the gradients before the first
 * step. */
struct gradients {
    real *dh, *dc, *dn, *dm;
};

/* Step k, or -1 for the gradients before the first step: dz_k (B,H,4,P) from `later`, dz of step k + 1. turned
 * (H,P,4P): the heads' w^T */
GLOBAL2(THREADS, sizeof(real) == 4 ? 4 : 3)
step_backward(plan p, int64_t k, real *dx, gradients d, real *dz, saved in, const real *turned, const real *later) {
    const int64_t inner = GATES * p.P, groups = pieces_of(p.P, COLUMNS);
    const spot at = spot_of(p, p.H * groups);
    const int64_t head = at.first / groups, j0 = at.first % groups * COLUMNS, j = j0 + at.c, u = head * p.P + j;
    const int64_t state = at.b * p.N + u;
    const bool follows = k + 1 < at.steps; /* there is a step k + 1 */
    real g = product_of(turned + (head * p.P + j0) * inner, inner, (int)least(p.P - j0, COLUMNS), later + head * inner,
                        GATES * p.N, at, inner, follows);
    if (at.b >= p.B || j >= p.P || k >= at.steps) return;
    if (!follows && in.dhT) g = in.dhT[state];
    if (k < 0) {
        const slstm_memory first = memory_at(in.first, state);
        d.dh[state] = g;
        if (follows) d.dm[state] += d.dc[state] * first.c + d.dn[state] * first.n;
        return;
    }
    const int64_t place = at.b * p.T + k;
    const real *const of = in.gates + place * GATES * p.N + u;
    const lstm_gates raw = {of[0], of[p.N], of[2 * p.N], of[3 * p.N]};
    const slstm_memory now = memory_at(in.steps, place * p.N + u);
    slstm_memory after = {d.dc[state], d.dn[state], d.dm[state]};
    if (!follows) after.m -= after.c * now.c + after.n * now.n; /* the gradient through the scaled final memory */
    const slstm_parts parts = slstm_adjoint(raw, now, memory_before(p, at, k, u, in.steps, in.first),
                                            g + in.dh[place * p.N + u], after, p.exponential);
    const real of_gates[] = {parts.draw.i, parts.draw.f, parts.draw.g, parts.draw.o};
#pragma unroll
    for (int i = 0; i < GATES; i++) {
        dx[(place * GATES + i) * p.N + u] = of_gates[i];
        dz[at.b * GATES * p.N + head * inner + i * p.P + j] = operand_of(of_gates[i], p.precision);
    }
    d.dc[state] = parts.earlier.c, d.dn[state] = parts.earlier.n, d.dm[state] = parts.earlier.m;
}

KERNEL(slstm_backward) {
    const plan p = plan_of(B, T, H, P, lengths, exponential);
    const int64_t N = p.N, inner = GATES * P;
    const saved in = {dh, dhT, gates, {c, n, m}, {c0, n0, m0}};
    const gradients d = {dh0, dc0, dn0, dm0};
    real *const turned = workspace_of<real>(H, P, inner);
    real *const dz[] = {workspace_of<real>(B, GATES, N), workspace_of<real>(B, GATES, N)};
    each(N * inner, [=] __device__(int64_t i) {
        const int64_t head = i / (inner * P), row = i / P % inner;
        turned[(head * P + i % P) * inner + row] = operand_of(w[i], p.precision);
    });
    copy_or_zero(dc0, dcT, B * N), copy_or_zero(dn0, dnT, B * N), copy_or_zero(dm0, dmT, B * N);
    for (int64_t k = T - 1; k >= -1; k--)
        launch(step_backward, blocks_of(p, H * pieces_of(P, COLUMNS)), THREADS, 0, p, k, dx, d, dz[(k + 1) % 2], in,
               (const real *)turned, (const real *)dz[(k + 2) % 2]);
    zero_padding(dx, lengths, B, T, GATES * N);
    return runtime_status();
}
