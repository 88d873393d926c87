/* Diagonal scan and its adjoint on a GPU (csrc/kernels/scan.c has the equations).
 *
 * One thread walks one lane of a sequence through time. If there are few lanes, time is divided into segments: a first
 * pass gets the last state of each segment from zero, and the product of its transitions; a second pass gets the true
 * states between segments,  s <- (product) s + last;  a third pass walks the segments from these states. The division
 * depends on the shapes alone, and every sum has one order.
 */
#include "scan.h"

enum {
    THREADS = 64,         /* of a block: even few lanes then give every processor a block */
    AHEAD = sizeof(lane) == 16 ? 16 : 32, /* steps read ahead, of one array: 8,192 lanes keep 2 MB in flight */
    SUM_STEPS = 128,      /* steps of one partial sum */
};

/* Kernels have two forms: a transition for each step, or one transition for all steps, in a register. */

struct step_of_scan {
    lane a, x;
};

/* use(t, its transition and input) for the steps of a piece, in the order of its walk */
template <bool VARYING, class Use>
ROT_DEVICE_ONLY void walk_forward(piece p, const lane *a, const lane *x, Use use) {
    if constexpr (VARYING) {
        pipelined<AHEAD / 2>(
            p.w.steps,
            [&](int64_t t) {
                const int64_t at = p.w.first + t * p.w.stride;
                const step_of_scan step = {read_lane(a + at), read_lane(x + at)};
                return step;
            },
            use);
    } else {
        const lane constant = read_lane(a + p.n);
        pipelined<AHEAD>(
            p.w.steps, [&](int64_t t) { return read_lane(x + p.w.first + t * p.w.stride); },
            [&](int64_t t, lane here) {
                const step_of_scan step = {constant, here};
                use(t, step);
            });
    }
}

/* Results of the passes over segments: (B, segments, N) each. */
struct between {
    lane *last, *product;
};

/* ---- forward ---- */

template <bool VARYING>
GLOBAL(THREADS)
ends_forward(cut c, between out, const lane *a, const lane *x, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    lane s = no_lane(), product = no_lane();
    walk_forward<VARYING>(p, a, x, [&](int64_t t, step_of_scan step) {
        s = scan_step(step.a, s, step.x);
        product = t ? lane_mul(step.a, product) : step.a;
    });
    out.last[i] = s, out.product[i] = product;
}

template <bool VARYING>
GLOBAL(THREADS)
run_forward(cut c, lane *h, lane *hT, const lane *a, const lane *x, const lane *start, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    lane s = lane_or_zero(start, i);
    walk_forward<VARYING>(p, a, x, [&](int64_t t, step_of_scan step) {
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
    const cut c = cut_of(B, T, N, lengths, reverse);
    const int64_t count = B * N * c.segments, blocks = pieces_of(count, THREADS);
    const lane *start = h0;
    if (c.segments > 1) {
        const between io = {workspace_of<lane>(count), workspace_of<lane>(count)};
        launch(varying ? ends_forward<true> : ends_forward<false>, blocks, THREADS, 0, c, io, a, x, count);
        launch(pass_on, pieces_of(B * N, THREADS), THREADS, 0, c, io, h0);
        start = io.last;
    }
    launch(varying ? run_forward<true> : run_forward<false>, blocks, THREADS, 0, c, h, hT, a, x, start, count);
    return runtime_status();
}

/* ---- backward: the walk goes from the last step to the first ---- */

/* The inputs of an adjoint step: with VARYING also the transition to the step walked before it. The first step has
 * none: dhT is added without a product. */
template <bool VARYING> struct step_of_adjoint {
    lane dh, h_prev;
};
template <> struct step_of_adjoint<true> {
    lane dh, h_prev, a;
};
template <class Step> ROT_DEVICE_ONLY void read_transition(Step &, const lane *, piece, int64_t) {}
ROT_DEVICE_ONLY void read_transition(step_of_adjoint<true> &step, const lane *a, piece p, int64_t t) {
    step.a = p.first && t == 0 ? no_lane() : read_lane(a + p.w.first + (t - 1) * p.w.stride);
}
template <class Step> ROT_DEVICE_ONLY lane transition_of(const Step &, lane constant) { return constant; }
ROT_DEVICE_ONLY lane transition_of(const step_of_adjoint<true> &step, lane) { return step.a; }
template <bool VARYING> ROT_DEVICE_ONLY lane constant_transition(const lane *a, piece p) {
    return VARYING ? no_lane() : read_lane(a + p.n);
}

template <bool VARYING>
GLOBAL(THREADS)
ends_backward(cut c, between out, const lane *dh, const lane *a, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    const lane constant = constant_transition<VARYING>(a, p);
    lane g = no_lane(), product = lane_one();
    pipelined<AHEAD / 2>(
        p.w.steps,
        [&](int64_t t) {
            step_of_adjoint<VARYING> step;
            step.dh = read_lane(dh + p.w.first + t * p.w.stride);
            read_transition(step, a, p, t);
            return step;
        },
        [&](int64_t t, step_of_adjoint<VARYING> step) {
            const bool joined = !(p.first && t == 0);
            const lane turn = transition_of(step, constant);
            g = joined ? scan_step_adjoint(turn, g, step.dh) : step.dh;
            product = joined ? lane_conj_mul(turn, product) : product;
        });
    out.last[i] = g, out.product[i] = p.w.steps ? product : no_lane();
}

/* sums (B, segments, N): of a constant da */
template <bool VARYING>
GLOBAL(THREADS)
run_backward(cut c, lane *dx, lane *da, lane *sums, lane *dh0, const lane *dh, const lane *a, const lane *h, const lane *h0,
             const lane *start, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    const int64_t state = p.b * c.N + p.n;
    const lane before = lane_or_zero(h0, state), constant = constant_transition<VARYING>(a, p);
    lane g = lane_or_zero(start, i), total = no_lane(), run = no_lane();
    pipelined<VARYING ? AHEAD / 4 : AHEAD / 2>(
        p.w.steps,
        [&](int64_t t) {
            const int64_t at = p.w.first + t * p.w.stride;
            step_of_adjoint<VARYING> step;
            step.dh = read_lane(dh + at);
            read_transition(step, a, p, t);
            step.h_prev = p.last && t == p.w.steps - 1 ? before : read_lane(h + at + p.w.stride);
            return step;
        },
        [&](int64_t t, step_of_adjoint<VARYING> step) {
            const int64_t at = p.w.first + t * p.w.stride;
            g = p.first && t == 0 ? lane_add(step.dh, g) : scan_step_adjoint(transition_of(step, constant), g, step.dh);
            write_lane(dx + at, g);
            run = scan_transition_adjoint(g, step.h_prev, VARYING ? no_lane() : run);
            if (VARYING) write_lane(da + at, run);
            if (t % SUM_STEPS == SUM_STEPS - 1) total = lane_add(total, run), run = no_lane();
        });
    if (!VARYING) sums[i] = lane_add(total, run);
    if (dh0 && p.last) {
        const int64_t at = p.w.first + most(p.w.steps - 1, 0) * p.w.stride;
        const lane first = p.w.steps ? read_lane(a + (VARYING ? at : p.n)) : no_lane();
        write_lane(dh0 + state, p.w.steps ? lane_fma_conj(first, g, no_lane()) : g);
    }
    zero_padding(dx, c, p);
    if (VARYING) zero_padding(da, c, p);
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
    const cut c = cut_of(B, T, N, lengths, !reverse);
    const int64_t count = B * N * c.segments, blocks = pieces_of(count, THREADS);
    const lane *start = dhT;
    if (c.segments > 1) {
        const between io = {workspace_of<lane>(count), workspace_of<lane>(count)};
        launch(varying ? ends_backward<true> : ends_backward<false>, blocks, THREADS, 0, c, io, dh, a, count);
        launch(pass_on, pieces_of(B * N, THREADS), THREADS, 0, c, io, dhT);
        start = io.last;
    }
    lane *const sums = varying ? NULL : workspace_of<lane>(count);
    launch(varying ? run_backward<true> : run_backward<false>, blocks, THREADS, 0, c, dx, da, sums, dh0, dh, a, h, h0, start,
           count);
    if (!varying) launch(sum_transitions, pieces_of(N, THREADS), THREADS, 0, da, (const lane *)sums, B * c.segments, N);
    return runtime_status();
}
