/* Windowed scans over (B, T, N): the sum over the last `window` inputs, each aged (multiplied) by the transitions
 * since,
 *
 *   h_t = sum_{k<window} (prod_{i=t-k+1..t} a_i) x_{t-k},
 *
 * and its adjoint, in work that does not grow with the window. Compiled for real and complex lanes.
 *
 * Time is divided into blocks of `window` steps, so that a window begins in the block where it ends or in the one
 * before. At step r of a block (from 0), let s be a step of the block before, and A_s = prod_{i>s} a_i over that block,
 * the factor that ages an input from s to the block's end:
 *
 *   P_r = a_r P_{r-1} + x_r,  P_{-1} = 0      the inputs of this block
 *   C_r = a_r C_{r-1},        C_{-1} = 1      ages the block before to step r
 *   S_r = sum_{s>r} A_s x_s                   the inputs of the block before that step r still sees
 *   h_r = P_r + C_r S_r
 *
 * Nothing is subtracted or divided, so an error, or a NaN, lasts no longer than its window, even with |a| = 1. Blocks
 * do not depend on each other: a task is a run of blocks, of a strip of lanes, of a sequence. The division depends on
 * the shapes alone and every sum has one order, so results have the same bits for any number of threads.
 *
 * `past` (B, window-1, N) or NULL for zeros: the inputs before the first step, the oldest first, each aged to just
 * before it. `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 * `varying`: a is (B, T, N), else (N). `reverse`: time runs from lengths[b]-1 down to 0, by indexing.
 */
#include <string.h>

#include "kernels.h"
#include "lanes.h"
#include "workspace.h"

enum {
    ROOM = 131072 / sizeof(lane),   /* approximate size of a workspace, steps of a block times lanes of a piece */
    NARROW = 512 / sizeof(lane),    /* lanes of a piece, at least and */
    WIDE = 16384 / sizeof(lane),    /* at most */
    PIECE = 1048576 / sizeof(lane), /* approximate size of a piece, steps times lanes */
    SUM_STEPS = 128,                /* steps of one partial sum */
    SERIAL = 32768,                 /* total number of lanes below which one thread is used */
};

static const lane ZEROS[WIDE];
#if ROT_COMPLEX
static const lane ONE = {1, 0};
#else
static const lane ONE = 1;
#endif

/* Division of the work: lanes of a strip, blocks of a run; `rows`: steps of the longest block. */
typedef struct {
    int64_t lanes, strips, blocks, runs, rows;
} cut;

static cut cut_of(int64_t T, int64_t N, int64_t window) {
    cut c = {.rows = least(window, most(T, 1))};
    c.lanes = least(most(N, 1), most(NARROW, least(WIDE, ROOM / c.rows)));
    c.strips = pieces_of(N, c.lanes);
    c.blocks = most(1, PIECE / (c.rows * c.lanes));
    c.runs = pieces_of(T, c.rows * c.blocks);
    return c;
}

/* A row of lanes for each step, in scan order: that of step k is k strides further on. */
typedef struct {
    const lane *first;
    ptrdiff_t stride;
} steps_in;
typedef struct {
    lane *first;
    ptrdiff_t stride;
} steps_out;

static const lane *in_row(steps_in x, int64_t k) { return x.first + k * x.stride; }
static lane *out_row(steps_out y, int64_t k) { return y.first + k * y.stride; }
static steps_in in_from(steps_in x, int64_t k) { return (steps_in){in_row(x, k), x.stride}; }
static steps_out out_from(steps_out y, int64_t k) { return (steps_out){out_row(y, k), y.stride}; }

/* n lanes from lo on of sequence b, whose `steps` steps begin at `first`, `stride` apart. */
typedef struct {
    int64_t b, lo, n, steps;
    ptrdiff_t first, stride;
} strip;

/* The i-th of all strips of all sequences. */
static strip strip_of(cut c, int64_t i, const int64_t *lengths, int64_t T, int64_t N, int64_t reverse) {
    const int64_t b = i / c.strips, lo = i % c.strips * c.lanes;
    const int64_t steps = steps_of(lengths, b, T), t = reverse && steps ? steps - 1 : 0;
    const strip s = {b, lo, least(N - lo, c.lanes), steps, (b * T + t) * N + lo, reverse ? -N : N};
    return s;
}

static steps_in in_of(const lane *x, strip s) { return (steps_in){x + s.first, s.stride}; }
static steps_out out_of(lane *y, strip s) { return (steps_out){y + s.first, s.stride}; }
static steps_in transitions_of(const lane *a, strip s, int64_t varying) {
    return varying ? in_of(a, s) : (steps_in){a + s.lo, 0};
}
/* Offset of the strip in (B, window-1, N). */
static ptrdiff_t past_offset(strip s, int64_t N, int64_t window) { return s.b * (window - 1) * N + s.lo; }
static steps_in past_of(const lane *past, strip s, int64_t N, int64_t window) {
    return (steps_in){past ? past + past_offset(s, N, window) : NULL, N};
}

static void one_row(lane *y, int64_t n) {
    for (int64_t j = 0; j < n; j++) y[j] = ONE;
}
/* y <- a y */
static void age_row(lane *restrict y, const lane *restrict a, int64_t n) {
    for (int64_t j = 0; j < n; j++) y[j] = lane_mul(a[j], y[j]);
}
/* sum += conj(a) x */
static void add_adjoint(lane *restrict sum, const lane *restrict a, const lane *restrict x, int64_t n) {
    for (int64_t j = 0; j < n; j++) sum[j] = lane_fma_conj(a[j], x[j], sum[j]);
}

/* Zeroes the padding among the rows of time from <= t < to. */
static void zero_padding_of(lane *y, strip s, int64_t from, int64_t to, int64_t T, int64_t N) {
    const int64_t t = most(from, s.steps);
    zero_rows(y + (s.b * T + t) * N + s.lo, to - t, s.n, N);
}

/* ages <- A_0 .. A_{count-1} of `count` steps; `all`, unless NULL, <- the product over all of them. */
static void ages_of(lane *restrict ages, lane *restrict all, steps_in a, int64_t count, int64_t n) {
    lane age[WIDE];
    one_row(age, n);
    for (int64_t s = count - 1; s >= 0; s--) {
        copy_row(ages + s * n, age, n);
        age_row(age, in_row(a, s), n);
    }
    if (all) copy_row(all, age, n);
}

/* sum <- sum + A x,  A <- a A */
static void see_row(lane *restrict sum, lane *restrict A, const lane *restrict a, const lane *restrict x, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        sum[j] = scan_step(A[j], x[j], sum[j]);
        A[j] = lane_mul(a[j], A[j]);
    }
}

/* S_0 .. S_{count-1} of a whole block. */
static void seen_of_block(lane *restrict S, steps_in a, steps_in x, int64_t window, int64_t count, int64_t n) {
    lane sum[WIDE], A[WIDE];
    zero_row(sum, n), one_row(A, n);
    for (int64_t s = window - 1; s >= 0; s--) {
        if (s < count) copy_row(S + s * n, sum, n);
        if (s) see_row(sum, A, in_row(a, s), in_row(x, s), n);
    }
}

/* The same of the block before the first step, whose step s is row s-1 of `past`, which is already aged. */
static void seen_of_past(lane *restrict S, steps_in past, int64_t window, int64_t count, int64_t n) {
    lane sum[WIDE];
    zero_row(sum, n);
    for (int64_t s = window - 1; s >= 0; s--) {
        if (s < count) copy_row(S + s * n, sum, n);
        if (s) add_row(sum, in_row(past, s - 1), n);
    }
}

/* S for the `count` steps of the block from step `from` on. Returns whether there is a block before it. */
static bool seen_before(lane *S, steps_in a, steps_in x, steps_in past, int64_t from, int64_t window, int64_t count,
                        int64_t n) {
    if (from)
        seen_of_block(S, in_from(a, from - window), in_from(x, from - window), window, count, n);
    else if (past.first)
        seen_of_past(S, past, window, count, n);
    return from || past.first;
}

/* P <- a P + x,  C <- a C,  h <- P + C S */
static void window_row(lane *restrict h, lane *restrict P, lane *restrict C, const lane *restrict a,
                       const lane *restrict x, const lane *restrict S, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        P[j] = scan_step(a[j], P[j], x[j]);
        C[j] = lane_mul(a[j], C[j]);
        h[j] = scan_step(C[j], S[j], P[j]);
    }
}

/* h of the `steps` steps of the block from step `from` on. */
static void forward_block(steps_out h, lane *S, steps_in a, steps_in x, steps_in past, int64_t from, int64_t steps,
                          int64_t window, int64_t n) {
    const bool before = seen_before(S, a, x, past, from, window, steps, n);
    lane P[WIDE], C[WIDE];
    zero_row(P, n), one_row(C, n);
    h = out_from(h, from), a = in_from(a, from), x = in_from(x, from);
    for (int64_t r = 0; r < steps; r++)
        window_row(out_row(h, r), P, C, in_row(a, r), in_row(x, r), before ? S + r * n : ZEROS, n);
}

/* The last window-1 inputs, each aged to the last step; without steps, the past unchanged. */
static void write_last(lane *last, strip s, steps_in a, steps_in x, steps_in past, int64_t N, int64_t window) {
    lane age[WIDE];
    one_row(age, s.n);
    const steps_out rows = {last + past_offset(s, N, window), N};
    for (int64_t k = 1; k < window; k++) {
        const int64_t t = s.steps - k;
        lane *const row = out_row(rows, window - 1 - k);
        if (t < 0 && !past.first) {
            zero_row(row, s.n);
            continue;
        }
        copy_row(row, t < 0 ? in_row(past, window - 1 + t) : in_row(x, t), s.n);
        if (s.steps) age_row(row, age, s.n);
        if (t >= 0) age_row(age, in_row(a, t), s.n);
    }
}

/* h (B,T,N), last (B,L-1,N) or NULL; a (N) or (B,T,N), x (B,T,N), past (B,L-1,N) or NULL. */
KERNEL(window_forward) {
    const cut c = cut_of(T, N, L);
    const int64_t span = c.rows * c.blocks; /* steps of a run */
    int status = ROT_OK;
#pragma omp parallel if (B * T * N > SERIAL)
    {
        lane *const S = WORKSPACE(lane, c.rows, c.lanes);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < B * c.strips * c.runs; i++) {
            if (!S) continue;
            const strip s = strip_of(c, i / c.runs, lengths, T, N, reverse);
            const int64_t begin = i % c.runs * span, end = least(begin + span, T);
            for (int64_t from = begin; from < least(end, s.steps); from += c.rows)
                forward_block(out_of(h, s), S, transitions_of(a, s, varying), in_of(x, s), past_of(past, s, N, L), from,
                              least(c.rows, s.steps - from), L, s.n);
            zero_padding_of(h, s, begin, end, T, N);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < (last ? B * c.strips : 0); i++) {
            const strip s = strip_of(c, i, lengths, T, N, reverse);
            write_last(last, s, transitions_of(a, s, varying), in_of(x, s), past_of(past, s, N, L), N, L);
        }
        if (!S) {
#pragma omp atomic write
            status = ROT_NO_MEMORY;
        }
        pool_give(S);
    }
    return status;
}

/* Where the gradient of the transition goes: a row per step, or for a constant one all into the row `sum`, by way of
 * `run` for at most SUM_STEPS steps. */
typedef struct {
    steps_out rows;
    lane *sum, *run;
    bool varying;
} transition_sum;

static lane *da_row(const transition_sum *da, int64_t k) { return da->varying ? out_row(da->rows, k) : da->run; }

/* After step `done` of a pass; `last`: it was the last one. */
static void flush(const transition_sum *da, int64_t done, bool last, int64_t n) {
    if (da->varying || !(last || done % SUM_STEPS == SUM_STEPS - 1)) return;
    add_row(da->sum, da->run, n);
    zero_row(da->run, n);
}

/* P <- a P_prev + x,  C <- a C_prev */
static void own_row(lane *restrict P, lane *restrict C, const lane *restrict a, const lane *restrict x,
                    const lane *restrict P_prev, const lane *restrict C_prev, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        P[j] = scan_step(a[j], P_prev[j], x[j]);
        C[j] = lane_mul(a[j], C_prev[j]);
    }
}

/* The inputs of this block:  g <- dh + conj(a_next) g,  dx <- g,  da += g conj(P_prev) */
static void own_row_adjoint(lane *restrict g, lane *restrict dx, lane *restrict da, const lane *restrict a_next,
                            const lane *restrict dh, const lane *restrict P_prev, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        g[j] = scan_step_adjoint(a_next[j], g[j], dh[j]);
        dx[j] = g[j];
        da[j] = scan_transition_adjoint(g[j], P_prev[j], da[j]);
    }
}

/* The factor C that ages the block before:  q <- dh conj(S) + conj(a_next) q,  da += q conj(C_prev) */
static void reach_row_adjoint(lane *restrict q, lane *restrict da, const lane *restrict a_next, const lane *restrict dh,
                              const lane *restrict S, const lane *restrict C_prev, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        q[j] = scan_step_adjoint(a_next[j], q[j], lane_conj_mul(S[j], dh[j]));
        da[j] = scan_transition_adjoint(q[j], C_prev[j], da[j]);
    }
}

/* The part of this step in later ones, with V the gradient of A x and e that of A of the step before:
 * dx += conj(A) V,  da += e conj(A),  e <- V conj(x) + conj(a) e */
static void seen_row(lane *restrict e, lane *restrict dx, lane *restrict da, const lane *restrict a,
                     const lane *restrict x, const lane *restrict A, const lane *restrict V, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        dx[j] = lane_fma_conj(A[j], V[j], dx[j]);
        da[j] = lane_fma_conj(A[j], e[j], da[j]);
        e[j] = scan_step_adjoint(a[j], e[j], lane_conj_mul(x[j], V[j]));
    }
}

/* seen_row for `steps` steps; on entry e is the gradient of A of the step before them. */
static void seen_rows(lane *e, steps_out dx, const transition_sum *da, int64_t from, steps_in a, steps_in x,
                      const lane *A, steps_in V, int64_t steps, int64_t n) {
    for (int64_t r = 0; r < steps; r++) {
        seen_row(e, out_row(dx, r), da_row(da, from + r), in_row(a, r), in_row(x, r), A + r * n, in_row(V, r), n);
        flush(da, r, r == steps - 1, n);
    }
}

/* C <- a C,  sum <- sum + conj(C) dh */
static void see_row_adjoint(lane *restrict sum, lane *restrict C, const lane *restrict a, const lane *restrict dh,
                            int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        C[j] = lane_mul(a[j], C[j]);
        sum[j] = lane_fma_conj(C[j], dh[j], sum[j]);
    }
}

/* V_1 .. V_count of a block, from a and dh of the block after it, of `steps` steps:
 * V_r = sum_{s<r} conj(C_s) dh_s */
static void seen_gradients(steps_out V, steps_in a, steps_in dh, int64_t steps, int64_t count, int64_t n) {
    lane sum[WIDE], C[WIDE];
    zero_row(sum, n), one_row(C, n);
    for (int64_t r = 0; r < count; r++) {
        if (r < steps) see_row_adjoint(sum, C, in_row(a, r), in_row(dh, r), n);
        copy_row(out_row(V, r), sum, n);
    }
}

/* dx and da of the `steps` steps of the block from step `from` on, with `after` steps in the block after it.
 * S, P, C: memory for as many rows each. */
static void backward_block(steps_out dx, const transition_sum *da, steps_in dh, steps_in a, steps_in x, steps_in past,
                           lane *restrict S, lane *restrict P, lane *restrict C, int64_t from, int64_t steps,
                           int64_t after, int64_t window, int64_t n) {
    const bool before = seen_before(S, a, x, past, from, window, steps, n);
    const steps_in a_own = in_from(a, from), x_own = in_from(x, from), dh_own = in_from(dh, from);
    dx = out_from(dx, from);
    zero_row(P, n), one_row(C, n); /* row r is that of step r-1 */
    for (int64_t r = 0; r + 1 < steps; r++) {
        lane *const P_r = P + (r + 1) * n, *const C_r = C + (r + 1) * n;
        own_row(P_r, C_r, in_row(a_own, r), in_row(x_own, r), P_r - n, C_r - n, n);
    }
    lane g[WIDE], q[WIDE];
    zero_row(g, n), zero_row(q, n);
    for (int64_t r = steps - 1; r >= 0; r--) {
        const lane *const a_next = r + 1 < steps ? in_row(a_own, r + 1) : ZEROS;
        lane *const sum = da_row(da, from + r);
        if (da->varying) zero_row(sum, n);
        own_row_adjoint(g, out_row(dx, r), sum, a_next, in_row(dh_own, r), P + r * n, n);
        if (before) reach_row_adjoint(q, sum, a_next, in_row(dh_own, r), S + r * n, C + r * n, n);
        flush(da, steps - 1 - r, r == 0, n);
    }
    if (!after) return;
    zero_row(S, n); /* V_0 */
    seen_gradients((steps_out){S + n, n}, in_from(a_own, window), in_from(dh_own, window), after, window - 1, n);
    ages_of(P, NULL, a_own, window, n);
    zero_row(q, n);
    seen_rows(q, dx, da, from, a_own, x_own, P, (steps_in){S, n}, window, n);
}

/* dpast, and the adjoint of write_last unless dlast is NULL; A: memory for min(steps, window-1) rows. */
static void backward_ends(lane *dpast, steps_out dx, const transition_sum *da, steps_in dh, const lane *dlast, strip s,
                          steps_in a, steps_in x, steps_in past, lane *A, int64_t N, int64_t window) {
    const int64_t n = s.n, own = least(s.steps, window - 1),
                  older = window - 1 - own; /* rows of `last`: of x, of past */
    const steps_out to = {dpast + past_offset(s, N, window), N};
    const steps_in from = past_of(dlast, s, N, window);
    seen_gradients(to, a, dh, s.steps, window - 1, n);
    if (!dlast) return;
    lane all[WIDE], e[WIDE];
    a = in_from(a, s.steps - own), x = in_from(x, s.steps - own);
    ages_of(A, all, a, own, n);
    zero_row(e, n);
    for (int64_t i = 0; i < older; i++) {
        lane *const row = out_row(to, s.steps + i);
        if (s.steps)
            add_adjoint(row, all, in_row(from, i), n);
        else
            copy_row(row, in_row(from, i), n);
        if (past.first) add_adjoint(e, in_row(past, s.steps + i), in_row(from, i), n);
    }
    seen_rows(e, out_from(dx, s.steps - own), da, s.steps - own, a, x, A, in_from(from, older), own, n);
}

/* dx (B,T,N), da like a, dpast (B,L-1,N), all overwritten; dh (B,T,N), dlast (B,L-1,N) or NULL, the rest as in forward.
 * With g, q, e, V the gradients of P, C, A and A x of a block:
 *
 *   g_r = dh_r + conj(a_{r+1}) g_{r+1},          q_r = dh_r conj(S_r) + conj(a_{r+1}) q_{r+1}
 *   V_r = sum_{s<r} conj(C_s) dh_s  over the block after,   e_r = V_r conj(x_r) + conj(a_r) e_{r-1}
 *   dx_r = g_r + conj(A_r) V_r,   da_r = g_r conj(P_{r-1}) + q_r conj(C_{r-1}) + e_{r-1} conj(A_r)
 *
 * For a constant `a`, da is summed over runs of SUM_STEPS, then pieces, then b, always in that order. */
KERNEL(window_backward) {
    const cut c = cut_of(T, N, L);
    const int64_t span = c.rows * c.blocks; /* steps of a run */
    const int64_t room = c.rows * c.lanes;
    lane *const sums = WORKSPACE(lane, B, c.runs + 1, N); /* for a constant transition: of the runs, then of the ends */
    if (!sums) return ROT_NO_MEMORY;
    int status = ROT_OK;
#pragma omp parallel if (B * T * N > SERIAL)
    {
        lane *const S = WORKSPACE(lane, 3, c.rows, c.lanes); /* and P, C */
        lane run[WIDE];
        zero_row(run, WIDE);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < B * c.strips * c.runs; i++) {
            if (!S) continue;
            const strip s = strip_of(c, i / c.runs, lengths, T, N, reverse);
            lane *const sum = sums + (s.b * (c.runs + 1) + i % c.runs) * N + s.lo;
            const transition_sum to = {varying ? out_of(da, s) : (steps_out){0}, sum, run, varying};
            zero_row(sum, s.n);
            const int64_t begin = i % c.runs * span, end = least(begin + span, T);
            for (int64_t from = begin; from < least(end, s.steps); from += c.rows) {
                const int64_t left = s.steps - from, steps = least(c.rows, left);
                backward_block(out_of(dx, s), &to, in_of(dh, s), transitions_of(a, s, varying), in_of(x, s),
                               past_of(past, s, N, L), S, S + room, S + 2 * room, from, steps,
                               least(c.rows, left - steps), L, s.n);
            }
            zero_padding_of(dx, s, begin, end, T, N);
            if (varying) zero_padding_of(da, s, begin, end, T, N);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < B * c.strips; i++) {
            if (!S) continue;
            const strip s = strip_of(c, i, lengths, T, N, reverse);
            lane *const sum = sums + (s.b * (c.runs + 1) + c.runs) * N + s.lo;
            const transition_sum to = {varying ? out_of(da, s) : (steps_out){0}, sum, run, varying};
            zero_row(sum, s.n);
            backward_ends(dpast, out_of(dx, s), &to, in_of(dh, s), dlast, s, transitions_of(a, s, varying), in_of(x, s),
                          past_of(past, s, N, L), S, N, L);
        }
        if (!S) {
#pragma omp atomic write
            status = ROT_NO_MEMORY;
        }
        pool_give(S);
    }
    if (!varying) {
        zero_row(da, N);
        for (int64_t i = 0; i < B * (c.runs + 1); i++) add_row(da, sums + i * N, N);
    }
    pool_give(sums);
    return status;
}

/* read <- a read + x - power oldest,  next <- a next + x,  h <- read,  kept <- x */
static void tiir_row(lane *restrict h, lane *restrict read, lane *restrict next, lane *restrict kept,
                     const lane *restrict a, const lane *restrict power, const lane *restrict x,
                     const lane *restrict oldest, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        read[j] = tiir_step(a[j], power[j], read[j], x[j], oldest[j]);
        next[j] = scan_step(a[j], next[j], x[j]);
        h[j] = read[j];
        kept[j] = x[j];
    }
}

/* The same window for a constant transition, in a stream without end (truncated infinite impulse response):
 *
 *   h_t = a h_{t-1} + x_t - a^L x_{t-L}
 *
 * Its rounding errors decay as slowly as |a|^t. With `resets` two copies take turns: at every L-th input one is cleared
 * and sums the block's inputs, while the other, which summed the block before, gives the output and drops that block's
 * inputs one by one. So no error is older than 2L steps.
 *
 * h (B,T,N); x (B,T,N), a, power = a^L (N). In and out: delay (B,L+1,N), a ring, where the k-th input of the stream has
 * row k mod (L+1), and sums (B,2,N), the copy that is read and the one that sums. position (B): inputs so far. */
KERNEL(tiir) {
    const int64_t strips = pieces_of(N, WIDE);
#pragma omp parallel for schedule(static) if (B * T * N > SERIAL)
    for (int64_t i = 0; i < B * strips; i++) {
        const int64_t b = i / strips, lo = i % strips * WIDE, n = least(N - lo, WIDE);
        lane *const ring = delay + b * (L + 1) * N + lo, *const read = sums + 2 * b * N + lo, *const next = read + N;
        for (int64_t t = 0; t < T; t++) {
            const int64_t k = position[b] + t, row = (b * T + t) * N + lo;
            tiir_row(h + row, read, next, ring + k % (L + 1) * N, a + lo, power + lo, x + row,
                     ring + (k + 1) % (L + 1) * N, n);
            if (!resets || (k + 1) % L) continue;
            copy_row(read, next, n);
            zero_row(next, n);
        }
    }
    return ROT_OK;
}
