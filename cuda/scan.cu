/* Diagonal scan and its adjoint on a GPU (csrc/kernels/scan.c has the equations).
 *
 * One thread walks one lane of a sequence through time. If there are few lanes, time is divided into segments: a first
 * pass gets the last state of each segment from zero, and the product of its transitions; a second the true states
 * between segments,  s <- (product) s + last;  a third walks the segments from these. The division depends on the shapes
 * alone, and every sum has one order.
 */
#include "scan.h"

enum {
    THREADS = 64,         /* of a block: with few lanes there is a block for every processor */
    AHEAD = sizeof(lane) == 4 ? 16 : 8, /* steps read ahead of their use */
    SUM_STEPS = 128,      /* steps of one partial sum */
};

struct step_of_scan {
    lane a, x;
};

/* use(t, its transition and input) for the steps of a piece, in the order of its walk */
template <class Use> ROT_DEVICE_ONLY void walk_forward(cut c, piece p, const lane *a, const lane *x, Use use) {
    const lane constant = c.varying ? no_lane() : read_lane(a + p.n);
    pipelined<AHEAD>(
        p.w.steps,
        [&](int64_t t) {
            const int64_t at = p.w.first + t * p.w.stride;
            const step_of_scan step = {c.varying ? read_lane(a + at) : constant, read_lane(x + at)};
            return step;
        },
        use);
}

/* What the passes over segments leave: (B, segments, N) each. */
struct between {
    lane *last, *product;
};

/* ---- forward ---- */

GLOBAL(THREADS) ends_forward(cut c, between out, const lane *a, const lane *x, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    lane s = no_lane(), product = no_lane();
    walk_forward(c, p, a, x, [&](int64_t t, step_of_scan step) {
        s = scan_step(step.a, s, step.x);
        product = t ? lane_mul(step.a, product) : step.a;
    });
    out.last[i] = s, out.product[i] = product;
}

GLOBAL(THREADS) run_forward(cut c, lane *h, lane *hT, const lane *a, const lane *x, const lane *start, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    lane s = lane_or_zero(start, i);
    walk_forward(c, p, a, x, [&](int64_t t, step_of_scan step) {
        s = scan_step(step.a, s, step.x);
        write_lane(h + p.w.first + t * p.w.stride, s);
    });
    if (hT && p.last) write_lane(hT + p.b * c.N + p.n, s);
    zero_padding(h, c, p);
}

/* ---- between segments: last <- the state before each segment, from start (B,N) or NULL ---- */

GLOBAL(THREADS) pass_on(cut c, between io, const lane *start) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= c.B * c.N) return;
    const int64_t b = i / c.N, n = i % c.N;
    lane s = lane_or_zero(start, i);
    for (int64_t k = 0; k < c.segments; k++) {
        const int64_t at = (b * c.segments + k) * c.N + n;
        const lane last = io.last[at];
        io.last[at] = s;
        s = is_zero(s) ? last : scan_step(io.product[at], s, last); /* the product may have overflowed */
    }
}

KERNEL(scan_forward) {
    const cut c = cut_of(B, T, N, lengths, varying, reverse);
    const int64_t count = B * N * c.segments, blocks = pieces_of(count, THREADS);
    const lane *start = h0;
    if (c.segments > 1) {
        const between io = {workspace_of<lane>(count), workspace_of<lane>(count)};
        launch(ends_forward, blocks, THREADS, 0, c, io, a, x, count);
        launch(pass_on, pieces_of(B * N, THREADS), THREADS, 0, c, io, h0);
        start = io.last;
    }
    launch(run_forward, blocks, THREADS, 0, c, h, hT, a, x, start, count);
    return runtime_status();
}

/* ---- backward: the walk goes from the last step to the first ---- */

struct step_of_adjoint {
    lane dh, a, h_prev;
};

/* The transition from a step to the one walked before it; the first has none, so that dhT is added without a product. */
ROT_DEVICE_ONLY lane next_transition(cut c, const lane *a, piece p, int64_t t) {
    return read_lane(a + (c.varying ? p.w.first + (t - 1) * p.w.stride : p.n));
}

GLOBAL(THREADS) ends_backward(cut c, between out, const lane *dh, const lane *a, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    lane g = no_lane(), product = no_lane();
    pipelined<AHEAD>(
        p.w.steps,
        [&](int64_t t) {
            step_of_adjoint step;
            step.dh = read_lane(dh + p.w.first + t * p.w.stride);
            step.a = p.first && t == 0 ? no_lane() : next_transition(c, a, p, t);
            return step;
        },
        [&](int64_t t, step_of_adjoint step) {
            const bool joined = !(p.first && t == 0);
            g = joined ? scan_step_adjoint(step.a, g, step.dh) : step.dh;
            product = t ? lane_conj_mul(step.a, product) : joined ? lane_conj_mul(step.a, lane_one()) : lane_one();
        });
    out.last[i] = g, out.product[i] = product;
}

/* sums (B, segments, N): of a constant da */
GLOBAL(THREADS) run_backward(cut c, lane *dx, lane *da, lane *sums, lane *dh0, const lane *dh, const lane *a, const lane *h,
                             const lane *h0, const lane *start, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    const int64_t state = p.b * c.N + p.n;
    const lane before = lane_or_zero(h0, state);
    lane g = lane_or_zero(start, i), total = no_lane(), run = no_lane();
    pipelined<AHEAD>(
        p.w.steps,
        [&](int64_t t) {
            const int64_t at = p.w.first + t * p.w.stride;
            step_of_adjoint step;
            step.dh = read_lane(dh + at);
            step.a = p.first && t == 0 ? no_lane() : next_transition(c, a, p, t);
            step.h_prev = p.last && t == p.w.steps - 1 ? before : read_lane(h + at + p.w.stride);
            return step;
        },
        [&](int64_t t, step_of_adjoint step) {
            const int64_t at = p.w.first + t * p.w.stride;
            g = p.first && t == 0 ? lane_add(step.dh, g) : scan_step_adjoint(step.a, g, step.dh);
            write_lane(dx + at, g);
            run = scan_transition_adjoint(g, step.h_prev, c.varying ? no_lane() : run);
            if (c.varying) write_lane(da + at, run);
            if (t % SUM_STEPS == SUM_STEPS - 1) total = lane_add(total, run), run = no_lane();
        });
    if (!c.varying) sums[i] = lane_add(total, run);
    if (dh0 && p.last) {
        const int64_t at = p.w.first + most(p.w.steps - 1, 0) * p.w.stride;
        const lane first = p.w.steps ? read_lane(a + (c.varying ? at : p.n)) : no_lane();
        write_lane(dh0 + state, p.w.steps ? lane_fma_conj(first, g, no_lane()) : g);
    }
    zero_padding(dx, c, p);
    if (c.varying) zero_padding(da, c, p);
}

/* da (N): the sums over sequences and segments, in order */
GLOBAL(THREADS) sum_transitions(lane *da, const lane *sums, int64_t rows, int64_t N) {
    const int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (n >= N) return;
    lane total = no_lane();
    pipelined<16>(
        rows, [&](int64_t row) { return read_lane(sums + row * N + n); },
        [&](int64_t, lane one) { total = lane_add(total, one); });
    write_lane(da + n, total);
}

KERNEL(scan_backward) {
    const cut c = cut_of(B, T, N, lengths, varying, !reverse);
    const int64_t count = B * N * c.segments, blocks = pieces_of(count, THREADS);
    const lane *start = dhT;
    if (c.segments > 1) {
        const between io = {workspace_of<lane>(count), workspace_of<lane>(count)};
        launch(ends_backward, blocks, THREADS, 0, c, io, dh, a, count);
        launch(pass_on, pieces_of(B * N, THREADS), THREADS, 0, c, io, dhT);
        start = io.last;
    }
    lane *const sums = varying ? NULL : workspace_of<lane>(count);
    launch(run_backward, blocks, THREADS, 0, c, dx, da, sums, dh0, dh, a, h, h0, start, count);
    if (!varying) launch(sum_transitions, pieces_of(N, THREADS), THREADS, 0, da, (const lane *)sums, B * c.segments, N);
    return runtime_status();
}
