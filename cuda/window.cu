/* Windowed scans on a GPU (csrc/kernels/window.c has the equations, and the names P, C, S, A, V, g, q, e).
 *
 * Time is divided into blocks of `window` steps, which do not depend on each other: a thread has one lane of a run of
 * blocks. Of the sums over a block, some are made from its first step on (P, C, V, e) and some from its last (S, g, q,
 * A), so a thread walks through the block both ways and leaves the sums of one way in memory for the other: S in h; g,
 * q and A in dx and workspaces.
 */
#include "sums.h"

namespace {

enum {
    THREADS = 64,
    AHEAD = sizeof(lane) == 16 ? 2 : 4, /* steps read ahead of their use; more would not fit in registers */
    RUN_STEPS = 32,                     /* of a thread, at least */
};

/* Division of time: `block` steps of a block, the window or all steps; `span`: of a run of blocks. */
struct cut {
    int64_t B, T, N, window, block, span, runs;
    const int64_t *lengths;
    bool varying, reverse;
};

static cut cut_of(int64_t B, int64_t T, int64_t N, int64_t window, const int64_t *lengths, bool varying, bool reverse) {
    cut c = {B, T, N, window, least(window, most(T, 1)), 0, 0, lengths, varying, reverse};
    c.span = c.block * pieces_of(RUN_STEPS, c.block);
    c.runs = pieces_of(T, c.span);
    return c;
}

/* One lane of a sequence in scan order: that of step k of (B,T,N) is at first + k stride. */
struct strand {
    int64_t b, n, first, stride, steps;
};

ROT_DEVICE_ONLY strand strand_of(cut c, int64_t b, int64_t n) {
    const int64_t steps = steps_of(c.lengths, b, c.T), t = c.reverse && steps ? steps - 1 : 0;
    const strand s = {b, n, (b * c.T + t) * c.N + n, c.reverse ? -c.N : c.N, steps};
    return s;
}
ROT_DEVICE_ONLY int64_t at_step(strand s, int64_t k) { return s.first + k * s.stride; }
/* Where row i of (B,window-1,N) is. */
ROT_DEVICE_ONLY int64_t at_past(cut c, strand s, int64_t i) { return (s.b * (c.window - 1) + i) * c.N + s.n; }

/* A transition and an input of a step. */
struct pair {
    lane a, x;
};

/* What is read, with the constant transition of the lane unless it varies. */
struct inputs {
    const lane *a, *x, *past;
    lane constant;
};

ROT_DEVICE_ONLY inputs inputs_of(cut c, strand s, const lane *a, const lane *x, const lane *past) {
    const inputs in = {a, x, past, c.varying ? no_lane() : read_lane(a + s.n)};
    return in;
}
ROT_DEVICE_ONLY lane transition(cut c, strand s, inputs in, int64_t k) {
    return c.varying ? read_lane(in.a + at_step(s, k)) : in.constant;
}
ROT_DEVICE_ONLY pair pair_of(cut c, strand s, inputs in, int64_t k) {
    const pair p = {transition(c, s, in, k), read_lane(in.x + at_step(s, k))};
    return p;
}

/* use(r, S_r, load(r)) for r = window-1 .. 0, for the block from step `from` on: the inputs before it that it sees.
 * Without any (at the first block without a past), S is zero, and only the block's own steps are walked. */
template <class Load, class Use>
ROT_DEVICE_ONLY void walk_seen(cut c, strand s, inputs in, int64_t from, Load load, Use use) {
    typedef decltype(load((int64_t)0)) own;
    struct seen {
        pair p;
        own mine;
    };
    const bool before = from || in.past;
    const int64_t last = (before ? c.window : least(s.steps, c.block)) - 1;
    lane sum = no_lane(), A = lane_one();
    pipelined<AHEAD>(
        last + 1,
        [&](int64_t i) {
            const pair none = {lane_one(), no_lane()};
            seen step = {none, load(last - i)};
            if (from)
                step.p = pair_of(c, s, in, from - 1 - i);
            else if (in.past && i < last)
                step.p.x = read_lane(in.past + at_past(c, s, last - 1 - i)); /* aged already */
            return step;
        },
        [&](int64_t i, seen step) {
            use(last - i, sum, step.mine);
            sum = scan_step(A, step.p.x, sum), A = lane_mul(step.p.a, A);
        });
}

/* work(from, steps) for each block of the run */
template <class Work> ROT_DEVICE_ONLY void each_block(cut c, strand s, int64_t run, Work work) {
    const int64_t begin = run * c.span, end = least(begin + c.span, s.steps);
    for (int64_t from = begin; from < end; from += c.block) work(from, least(c.block, s.steps - from));
}
ROT_DEVICE_ONLY void zero_padding(lane *rows, cut c, strand s, int64_t run) {
    const int64_t begin = run * c.span, end = least(begin + c.span, c.T);
    for (int64_t t = most(begin, s.steps); t < end; t++) write_lane(rows + (s.b * c.T + t) * c.N + s.n, no_lane());
}

/* The lane and the run of blocks of this thread; its number is that of (B, runs, N). */
struct place {
    strand s;
    int64_t i, run;
    bool there;
};
ROT_DEVICE_ONLY place place_of(cut c, int64_t runs) {
    place p;
    p.i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    p.there = p.i < c.B * runs * c.N;
    if (!p.there) return p;
    p.run = p.i / c.N % runs;
    p.s = strand_of(c, p.i / c.N / runs, p.i % c.N);
    return p;
}

/* ---- forward ---- */

struct nothing {};
struct pair_and_seen {
    pair p;
    lane S;
};

GLOBAL(THREADS) forward(cut c, lane *h, const lane *a, const lane *x, const lane *past) {
    const place at = place_of(c, c.runs);
    if (!at.there) return;
    const strand s = at.s;
    const inputs in = inputs_of(c, s, a, x, past);
    each_block(c, s, at.run, [&](int64_t from, int64_t steps) {
        walk_seen(
            c, s, in, from, [](int64_t) { return nothing(); },
            [&](int64_t r, lane S, nothing) {
                if (r < steps) keep_lane(h + at_step(s, from + r), S);
            });
        lane P = no_lane(), C = lane_one();
        pipelined<AHEAD>(
            steps,
            [&](int64_t r) {
                const pair_and_seen step = {pair_of(c, s, in, from + r), read_lane(h + at_step(s, from + r))};
                return step;
            },
            [&](int64_t r, pair_and_seen step) {
                P = scan_step(step.p.a, P, step.p.x), C = lane_mul(step.p.a, C);
                write_lane(h + at_step(s, from + r), scan_step(C, step.S, P));
            });
    });
    zero_padding(h, c, s, at.run);
}

/* The last window-1 inputs, each aged to the last step; without steps, the past unchanged. */
GLOBAL(THREADS) write_last(cut c, lane *last, const lane *a, const lane *x, const lane *past) {
    const place at = place_of(c, 1);
    if (!at.there) return;
    const strand s = at.s;
    const inputs in = inputs_of(c, s, a, x, past);
    const int64_t own = least(s.steps, c.window - 1), older = c.window - 1 - own;
    lane age = lane_one();
    pipelined<AHEAD>(
        own, [&](int64_t i) { return pair_of(c, s, in, s.steps - 1 - i); },
        [&](int64_t i, pair p) {
            write_lane(last + at_past(c, s, c.window - 2 - i), lane_mul(age, p.x));
            age = lane_mul(p.a, age);
        });
    pipelined<AHEAD>(
        older, [&](int64_t i) { return past ? read_lane(past + at_past(c, s, own + i)) : no_lane(); },
        [&](int64_t i, lane one) {
            write_lane(last + at_past(c, s, i), past && s.steps ? lane_mul(age, one) : one);
        });
}

}

KERNEL(window_forward) {
    const cut c = cut_of(B, T, N, L, lengths, varying, reverse);
    launch(forward, pieces_of(B * c.runs * N, THREADS), THREADS, 0, c, h, a, x, past);
    if (last && L > 1) launch(write_last, pieces_of(B * N, THREADS), THREADS, 0, c, last, a, x, past);
    return runtime_status();
}

namespace {

/* ---- backward ---- */

/* Where the gradient of the transition goes: a number per step, or for a constant one the sum over steps, of at most
 * ROWS_OF_SUM at a time. */
struct transition_sum {
    lane *da;
    lane total, run;
};

ROT_DEVICE_ONLY void add_transition(transition_sum &sum, int64_t done, lane one) {
    sum.run = lane_add(sum.run, one);
    if (done % ROWS_OF_SUM == ROWS_OF_SUM - 1) sum.total = lane_add(sum.total, sum.run), sum.run = no_lane();
}

/* What the walk from a block's last step leaves for each step (B,T,N): g in dx, q in da if that varies. */
struct left {
    lane *g, *q, *A;
};

struct step_back {
    lane dh, a;
};

/* From the block's last step to its first:  g <- dh + conj(a_next) g,  q <- dh conj(S) + conj(a_next) q,  A <- a A */
ROT_DEVICE_ONLY void walk_back(cut c, strand s, inputs in, left out, const lane *dh, int64_t from, int64_t steps) {
    lane g = no_lane(), q = no_lane(), A = lane_one(), a_next = no_lane();
    walk_seen(
        c, s, in, from,
        [&](int64_t r) {
            step_back step = {no_lane(), no_lane()};
            if (r < steps) step.dh = read_lane(dh + at_step(s, from + r)), step.a = transition(c, s, in, from + r);
            return step;
        },
        [&](int64_t r, lane S, step_back step) {
            if (r >= steps) return;
            const int64_t at = at_step(s, from + r);
            g = scan_step_adjoint(a_next, g, step.dh);
            q = scan_step_adjoint(a_next, q, lane_conj_mul(S, step.dh));
            keep_lane(out.g + at, g), keep_lane(out.q + at, q), keep_lane(out.A + at, A);
            A = lane_mul(step.a, A), a_next = step.a;
        });
}

/* A step of this block, with what walk_back left, and the one as far from the start of the block after it. */
struct step_on {
    pair p;
    lane g, q, A, later_a, later_dh;
};

/* From the first step to the last, with V, C and `later_C` of the block after, which has `after` steps:
 *   da = g conj(P_prev) + q conj(C_prev) + e_prev conj(A)    dx = g + conj(A) V    e = V conj(x) + conj(a) e_prev */
ROT_DEVICE_ONLY void walk_on(cut c, strand s, inputs in, left there, transition_sum &sum, lane *dx, const lane *dh,
                             int64_t from, int64_t steps, int64_t after) {
    lane P = no_lane(), C = lane_one(), V = no_lane(), later_C = lane_one(), e = no_lane();
    pipelined<AHEAD>(
        steps,
        [&](int64_t r) {
            const int64_t at = at_step(s, from + r), later = from + c.block + r;
            step_on step = {pair_of(c, s, in, from + r), read_lane(there.g + at), read_lane(there.q + at),
                            read_lane(there.A + at), no_lane(), no_lane()};
            if (r < after)
                step.later_a = transition(c, s, in, later), step.later_dh = read_lane(dh + at_step(s, later));
            return step;
        },
        [&](int64_t r, step_on step) {
            const int64_t at = at_step(s, from + r);
            const pair p = step.p;
            lane da = scan_transition_adjoint(step.q, C, scan_transition_adjoint(step.g, P, no_lane()));
            if (after) da = lane_fma_conj(step.A, e, da);
            write_lane(dx + at, after ? lane_fma_conj(step.A, V, step.g) : step.g);
            if (c.varying)
                write_lane(sum.da + at, da);
            else
                add_transition(sum, from + r, da);
            e = scan_step_adjoint(p.a, e, lane_conj_mul(p.x, V));
            P = scan_step(p.a, P, p.x), C = lane_mul(p.a, C);
            if (r < after) later_C = lane_mul(step.later_a, later_C), V = lane_fma_conj(later_C, step.later_dh, V);
        });
}

/* dx, and da (B,T,N) or its sums (B,runs,N) */
GLOBAL(THREADS) backward(cut c, lane *dx, lane *da, lane *sums, left there, const lane *dh, const lane *a,
                         const lane *x, const lane *past) {
    const place at = place_of(c, c.runs);
    if (!at.there) return;
    const strand s = at.s;
    const inputs in = inputs_of(c, s, a, x, past);
    transition_sum sum = {da, no_lane(), no_lane()};
    each_block(c, s, at.run, [&](int64_t from, int64_t steps) {
        walk_back(c, s, in, there, dh, from, steps);
        walk_on(c, s, in, there, sum, dx, dh, from, steps, least(c.block, s.steps - from - steps));
    });
    zero_padding(dx, c, s, at.run);
    if (c.varying)
        zero_padding(da, c, s, at.run);
    else
        sums[at.i] = lane_add(sum.total, sum.run);
}

/* dpast <- V_1 .. V_{window-1} of the first block, and for the rows of the past that are in `last` its aged gradient.
 * Returns the gradient of the age of these rows. */
ROT_DEVICE_ONLY lane past_adjoint(cut c, strand s, inputs in, lane *dpast, const lane *dh, const lane *dlast) {
    const int64_t own = least(s.steps, c.window - 1), older = c.window - 1 - own;
    lane V = no_lane(), C = lane_one(), e = no_lane();
    pipelined<AHEAD>(
        own,
        [&](int64_t r) {
            const step_back step = {read_lane(dh + at_step(s, r)), transition(c, s, in, r)};
            return step;
        },
        [&](int64_t r, step_back step) {
            C = lane_mul(step.a, C), V = lane_fma_conj(C, step.dh, V);
            write_lane(dpast + at_past(c, s, r), V);
        });
    pipelined<AHEAD>(
        older,
        [&](int64_t i) {
            pair p = {no_lane(), no_lane()}; /* of dlast and past */
            if (dlast) p.a = read_lane(dlast + at_past(c, s, i));
            if (dlast && in.past) p.x = read_lane(in.past + at_past(c, s, own + i));
            return p;
        },
        [&](int64_t i, pair p) {
            write_lane(dpast + at_past(c, s, own + i), lane_fma_conj(C, p.a, V));
            e = lane_fma_conj(p.x, p.a, e);
        });
    return e;
}

struct step_of_last {
    pair p;
    lane A, dlast, dx, da;
};

/* dpast, and the adjoint of write_last unless dlast is NULL, whose part of a constant da is in sums (B,N). A (B,T,N):
 * memory. */
GLOBAL(THREADS) backward_ends(cut c, lane *dpast, lane *dx, lane *da, lane *sums, lane *A, const lane *dh,
                              const lane *dlast, const lane *a, const lane *x, const lane *past) {
    const place at = place_of(c, 1);
    if (!at.there) return;
    const strand s = at.s;
    const inputs in = inputs_of(c, s, a, x, past);
    const int64_t own = dlast ? least(s.steps, c.window - 1) : 0, first = s.steps - own;
    lane e = past_adjoint(c, s, in, dpast, dh, dlast), age = lane_one();
    pipelined<AHEAD>(
        own, [&](int64_t i) { return transition(c, s, in, s.steps - 1 - i); },
        [&](int64_t i, lane a_k) {
            keep_lane(A + at_step(s, s.steps - 1 - i), age);
            age = lane_mul(a_k, age);
        });
    transition_sum sum = {da, no_lane(), no_lane()};
    pipelined<AHEAD>(
        own,
        [&](int64_t i) {
            const int64_t k = at_step(s, first + i);
            const step_of_last step = {pair_of(c, s, in, first + i), read_lane(A + k),
                                       read_lane(dlast + at_past(c, s, c.window - 1 - own + i)), read_lane(dx + k),
                                       c.varying ? read_lane(da + k) : no_lane()};
            return step;
        },
        [&](int64_t i, step_of_last step) {
            const int64_t k = at_step(s, first + i);
            write_lane(dx + k, lane_fma_conj(step.A, step.dlast, step.dx));
            const lane one = lane_fma_conj(step.A, e, step.da);
            if (c.varying)
                write_lane(da + k, one);
            else
                add_transition(sum, i, one);
            e = scan_step_adjoint(step.p.a, e, lane_conj_mul(step.p.x, step.dlast));
        });
    if (!c.varying) sums[at.i] = lane_add(sum.total, sum.run);
}

}

KERNEL(window_backward) {
    const cut c = cut_of(B, T, N, L, lengths, varying, reverse);
    const int64_t count = B * c.runs * N;
    lane *const sums = varying ? NULL : workspace_of<lane>(count + B * N); /* of the runs, then of the ends */
    const left there = {dx, varying ? da : workspace_of<lane>(B, T, N), workspace_of<lane>(B, T, N)};
    launch(backward, pieces_of(count, THREADS), THREADS, 0, c, dx, da, sums, there, dh, a, x, past);
    lane *const ends = varying ? NULL : sums + count;
    launch(backward_ends, pieces_of(B * N, THREADS), THREADS, 0, c, dpast, dx, da, ends, there.A, dh, dlast, a, x,
           past);
    if (!varying) sum_rows(da, sums, B * (c.runs + 1), N);
    return runtime_status();
}

namespace {

/* ---- a stream ---- */

struct stream {
    int64_t B, T, N, L;
    const int64_t *position;
    bool resets;
};

/* An input of a step, and the one that leaves the window. */
struct inputs_of_window {
    lane newest, oldest;
};

/* What leaves the window is in x if it came in this call, else in the ring, in a row that is written later if at all.
 * The ring's rows and the turn are counted on, so that a step has no division. */
GLOBAL(THREADS) tiir_steps(stream c, lane *h, lane *delay, lane *sums, const lane *a, const lane *power,
                           const lane *x) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= c.B * c.N) return;
    const int64_t b = i / c.N, n = i % c.N, rows = c.L + 1, first = b * c.T * c.N + n, start = c.position[b] % rows;
    const lane a_n = read_lane(a + n), power_n = read_lane(power + n);
    lane *const ring = delay + b * rows * c.N + n, *const both = sums + 2 * b * c.N + n;
    lane read = read_lane(both), next = read_lane(both + c.N);
    int64_t row = start, turn = c.position[b] % c.L;
    pipelined<AHEAD>(
        c.T,
        [&](int64_t t) {
            const int64_t later = start + t + 1, old = later < rows ? later : later - rows; /* a row if t < L */
            const lane *const oldest = t < c.L ? ring + old * c.N : x + first + (t - c.L) * c.N;
            const inputs_of_window in = {read_lane(x + first + t * c.N), read_lane(oldest)};
            return in;
        },
        [&](int64_t t, inputs_of_window in) {
            read = tiir_step(a_n, power_n, read, in.newest, in.oldest);
            next = scan_step(a_n, next, in.newest);
            write_lane(h + first + t * c.N, read);
            if (t >= c.T - rows) keep_lane(ring + row * c.N, in.newest);
            row = row + 1 == rows ? 0 : row + 1, turn = turn + 1 == c.L ? 0 : turn + 1;
            if (c.resets && turn == 0) read = next, next = no_lane();
        });
    keep_lane(both, read), keep_lane(both + c.N, next);
}

}

KERNEL(tiir) {
    const stream c = {B, T, N, L, position, (bool)resets};
    launch(tiir_steps, pieces_of(B * N, THREADS), THREADS, 0, c, h, delay, sums, a, power, x);
    return runtime_status();
}
