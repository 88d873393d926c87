/* Diagonal scan  h_t = a_t h_{t-1} + x_t  over (B, T, N), and its adjoint. Compiled for real and complex lanes.
 *
 * Sequential in time, SIMD across lanes, threads over (sequence, block of lanes). If there are few of these and `a` is
 * constant, time is divided too, into segments of n steps. Each segment is first run from zero to get its last state f.
 * The true states between segments follow by  s <- a^n s + f.  From these each segment is run again, while x is still
 * in cache. The division depends on the shapes alone and every sum has one order, so results have the same bits for any
 * number of threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 * `varying`: a is (B, T, N), else (N). `reverse`: time runs from lengths[b]-1 down to 0, by indexing.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "lanes.h"
#include "turn.h"
#include "workspace.h"

enum {
    BLOCK = 16384 / sizeof(lane),    /* lanes of one task: usually whole rows, which are fastest to read */
    NARROW = 1024 / sizeof(lane),    /* the same, if wider blocks give too few tasks */
    SPAN = 128 / sizeof(lane),       /* lanes of a row taken at a time */
    SUM_STEPS = 128,                 /* steps of one partial sum */
    SEGMENT = 131072 / sizeof(lane), /* approximate size of a segment, steps times lanes of its block */
    SEGMENT_STEPS = 32,              /* smallest number of steps of a segment */
    FEW = 4,                         /* sequences times blocks of lanes below which time is divided */
    SERIAL = 32768,                  /* total number of lanes below which one thread is used */
};

static const lane ZEROS[BLOCK];

/* Division of the work: lanes of a block, and steps of a segment, a power of two unless there is only one segment. */
typedef struct {
    int64_t blocks, lanes, segments, steps;
} cut;

static cut cut_of(int64_t B, int64_t T, int64_t N, int64_t varying) {
    const int64_t lanes = varying && B < FEW ? NARROW : BLOCK;
    cut c = {.blocks = pieces_of(N, lanes), .lanes = lanes, .segments = 1, .steps = T};
    if (varying || B * c.blocks >= FEW || B * T * N <= SERIAL) return c;
    int64_t steps = SEGMENT_STEPS;
    while (2 * steps * least(N, lanes) <= SEGMENT) steps *= 2;
    if (steps < T) c.segments = pieces_of(T, steps), c.steps = steps;
    return c;
}

/* One piece of the work: n lanes from lo on of sequence b, the steps w of one segment, and the rows of padding in its
 * range of time. The walk is in lanes. `first`: no segment comes before it; `last`: it ends with the last valid step,
 * or no step is valid; `more`: a later segment has steps. */
typedef struct {
    int64_t b, lo, n;
    walk w;
    int64_t padding, padding_end;
    bool first, last, more;
} piece;

/* The i-th piece; `down`: time runs to lower addresses. */
static piece piece_of(cut c, int64_t i, const int64_t *lengths, int64_t T, int64_t N, bool down) {
    const int64_t segment = i % c.segments, k = i / c.segments % c.blocks, b = i / c.segments / c.blocks;
    const int64_t lo = k * c.lanes, from = segment * c.steps, all = steps_of(lengths, b, T);
    const int64_t steps = least(most(all - from, 0), c.steps), t = down && steps ? all - 1 - from : from;
    const piece p = {.b = b,
                     .lo = lo,
                     .n = least(N - lo, c.lanes),
                     .w = {(b * T + t) * N + lo, down ? -N : N, steps},
                     .padding = most(from, all),
                     .padding_end = least(from + c.steps, T),
                     .first = segment == 0,
                     .last = from + steps == all && (steps || segment == 0),
                     .more = from + c.steps < all};
    return p;
}

static void zero_padding_of(lane *rows, piece p, int64_t T, int64_t N) {
    zero_rows(rows + (p.b * T + p.padding) * N + p.lo, p.padding_end - p.padding, p.n, N);
}

/* The i-th span of lanes in a row of n. The hardware prefetcher follows a walk in one direction, so a walk to lower
 * addresses also reads each row from its end. */
typedef struct {
    int64_t lo, lanes;
} span;

static span span_of(int64_t i, int64_t n, bool down) {
    const int64_t left = n - i, lanes = least(left, SPAN);
    const span s = {down ? left - lanes : i, lanes};
    return s;
}

static void step_lanes(lane *restrict h, const lane *restrict a, const lane *restrict prev, const lane *restrict x,
                       int64_t n) {
    for (int64_t j = 0; j < n; j++) h[j] = scan_step(a[j], prev[j], x[j]);
}

static void step_row(lane *restrict h, const lane *restrict a, const lane *restrict prev, const lane *restrict x,
                     int64_t n, bool down) {
    for (int64_t i = 0; i < n; i += SPAN) {
        const span s = span_of(i, n, down);
        if (s.lanes == SPAN) /* a constant removes the loop over lanes */
            step_lanes(h + s.lo, a + s.lo, prev + s.lo, x + s.lo, SPAN);
        else
            step_lanes(h + s.lo, a + s.lo, prev + s.lo, x + s.lo, s.lanes);
    }
}

/* h <- the states of the steps of p, state <- the last state. */
static void run_forward(lane *restrict h, lane *restrict state, const lane *restrict a, const lane *restrict x, piece p,
                        bool varying) {
    const lane *prev = state;
    ptrdiff_t row = p.w.first;
    for (int64_t k = 0; k < p.w.steps; k++, row += p.w.stride) {
        step_row(h + row, a + (varying ? row : p.lo), prev, x + row, p.n, p.w.stride < 0);
        prev = h + row;
    }
    if (p.w.steps) copy_row(state, prev, p.n);
}

/* state <- the last state of p, an even number of steps, from zero. */
static void run_from_zero(lane *restrict state, const lane *restrict a, const lane *restrict x, piece p) {
    const bool down = p.w.stride < 0;
    lane other[BLOCK];
    zero_row(state, p.n);
    ptrdiff_t row = p.w.first;
    for (int64_t k = 0; k < p.w.steps; k += 2, row += 2 * p.w.stride) {
        step_row(other, a + p.lo, state, x + row, p.n, down);
        step_row(state, a + p.lo, other, x + row + p.w.stride, p.n, down);
    }
}

/* Powers a^n are in double: every segment uses them, and they must be as accurate as single steps. */
#if ROT_COMPLEX
typedef struct {
    double re, im;
} wide;
static wide wide_of(lane a) { return (wide){a.re, a.im}; }
static wide wide_mul(wide a, wide b) { return (wide){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
static lane narrow(wide a) { return (lane){(real)a.re, (real)a.im}; }
static bool is_finite(wide a) { return isfinite(a.re) && isfinite(a.im); }
static lane conjugate(lane a) { return (lane){a.re, -a.im}; }
#else
typedef double wide;
static wide wide_of(lane a) { return a; }
static wide wide_mul(wide a, wide b) { return a * b; }
static lane narrow(wide a) { return (lane)a; }
static bool is_finite(wide a) { return isfinite(a); }
static lane conjugate(lane a) { return a; }
#endif

/* power <- a^n and, unless NULL, below <- a^(n-1) = a a^2 a^4 ... a^(n/2), n = `steps`, a power of two. */
static void powers_of(wide *restrict power, wide *restrict below, const lane *restrict a, int64_t steps, int64_t N) {
    for (int64_t j = 0; j < N; j++) power[j] = wide_of(a[j]);
    for (int64_t k = 1; k < steps; k *= 2) {
        for (int64_t j = 0; below && j < N; j++) below[j] = k > 1 ? wide_mul(below[j], power[j]) : power[j];
        for (int64_t j = 0; j < N; j++) power[j] = wide_mul(power[j], power[j]);
    }
}

/* carry <- a^n state + last. If the product is not finite, it is computed in single steps, as in the recurrence: a^n
 * may overflow where the state is zero, or underflow where it is infinite. */
static void pass_on(lane *restrict carry, const lane *restrict state, const lane *restrict last, const lane *restrict a,
                    const wide *restrict power, int64_t steps, int64_t n) {
    bool finite = true;
    for (int64_t j = 0; j < n; j++) {
        const wide moved = wide_mul(power[j], wide_of(state[j]));
        carry[j] = lane_add(narrow(moved), last[j]);
        finite &= is_finite(moved);
    }
    for (int64_t j = 0; !finite && j < n; j++) {
        wide moved = wide_mul(power[j], wide_of(state[j]));
        if (is_finite(moved)) continue;
        moved = wide_of(state[j]);
        for (int64_t k = 0; k < steps; k++) moved = wide_mul(wide_of(a[j]), moved);
        carry[j] = lane_add(narrow(moved), last[j]);
    }
}

/* h (B,T,N), hT (B,N) or NULL; a (N) or (B,T,N), x (B,T,N), h0 (B,N) or NULL. */
KERNEL(scan_forward) {
    const cut c = cut_of(B, T, N, varying);
    const int64_t pieces = B * c.blocks * c.segments;
    if (c.segments == 1) {
#pragma omp parallel for schedule(dynamic) if (B * T * N > SERIAL)
        for (int64_t i = 0; i < pieces; i++) {
            const piece p = piece_of(c, i, lengths, T, N, reverse);
            lane state[BLOCK];
            copy_row(state, h0 ? h0 + p.b * N + p.lo : ZEROS, p.n);
            run_forward(h, state, a, x, p, varying);
            if (hT) copy_row(hT + p.b * N + p.lo, state, p.n);
            zero_padding_of(h, p, T, N);
        }
        return ROT_OK;
    }
    wide *const power = WORKSPACE(wide, N);
    if (!power) return ROT_NO_MEMORY;
    powers_of(power, NULL, a, c.steps, N);
    lane carry[BLOCK];
    rot_turn turn = 0;
#pragma omp parallel for schedule(static, 1)
    for (int64_t i = 0; i < pieces; i++) {
        const piece p = piece_of(c, i, lengths, T, N, reverse);
        lane state[BLOCK], last[BLOCK];
        if (p.more) run_from_zero(last, a, x, p);
        await(&turn, i);
        copy_row(state, p.first ? h0 ? h0 + p.b * N + p.lo : ZEROS : carry, p.n);
        if (p.more) pass_on(carry, state, last, a + p.lo, power + p.lo, c.steps, p.n);
        pass_turn(&turn, i + 1);
        run_forward(h, state, a, x, p, false);
        if (hT && p.last) copy_row(hT + p.b * N + p.lo, state, p.n);
        zero_padding_of(h, p, T, N);
    }
    pool_give(power);
    return ROT_OK;
}

/* g <- dh + conj(a_next) g, or dh + g without a_next;  dx <- g;  da += g conj(h_prev). */
static void adjoint_lanes(lane *restrict g, lane *restrict dx, lane *restrict da, const lane *restrict a_next,
                          const lane *restrict dh, const lane *restrict h_prev, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const lane gj = a_next ? scan_step_adjoint(a_next[j], g[j], dh[j]) : lane_add(dh[j], g[j]);
        g[j] = gj;
        dx[j] = gj;
        da[j] = scan_transition_adjoint(gj, h_prev[j], da[j]);
    }
}

static void adjoint_row(lane *restrict g, lane *restrict dx, lane *restrict da, const lane *restrict a_next,
                        const lane *restrict dh, const lane *restrict h_prev, int64_t n, bool down) {
    for (int64_t i = 0; i < n; i += SPAN) {
        const span s = span_of(i, n, down);
        const lane *const as = a_next ? a_next + s.lo : NULL;
        if (s.lanes == SPAN)
            adjoint_lanes(g + s.lo, dx + s.lo, da + s.lo, as, dh + s.lo, h_prev + s.lo, SPAN);
        else
            adjoint_lanes(g + s.lo, dx + s.lo, da + s.lo, as, dh + s.lo, h_prev + s.lo, s.lanes);
    }
}

/* The adjoint of the steps of p, last step first. On entry g is the gradient of the state after them, not yet
 * multiplied by its transition; on return, the gradient of the first step's state. `start` is the state before the
 * sequence. A varying da is overwritten; a constant da gets the sum over the steps added. */
static void run_backward(lane *restrict g, lane *restrict dx, lane *restrict da, const lane *restrict a,
                         const lane *restrict dh, const lane *restrict h, const lane *restrict start, piece p,
                         bool varying) {
    lane run[BLOCK];
    zero_row(run, p.n);
    const lane *a_next = p.first ? NULL : a + p.lo; /* dhT is added without a product */
    ptrdiff_t row = p.w.first;
    for (int64_t k = 1; k <= p.w.steps; k++, row += p.w.stride) {
        const lane *const h_prev = p.last && k == p.w.steps ? start : h + row + p.w.stride;
        if (varying) zero_row(da + row, p.n);
        adjoint_row(g, dx + row, varying ? da + row : run, a_next, dh + row, h_prev, p.n, p.w.stride < 0);
        if (!varying && (k % SUM_STEPS == 0 || k == p.w.steps)) {
            add_row(da, run, p.n);
            zero_row(run, p.n);
        }
        a_next = a + (varying ? row : p.lo);
    }
}

/* After the last step of the backward walk: dh0 <- conj(a_0) g_0, or g if there is no step; zeros in padding. */
static void end_backward(lane *restrict dx, lane *restrict dh0, const lane *restrict g, const lane *restrict a, piece p,
                         int64_t T, int64_t N, bool varying) {
    zero_padding_of(dx, p, T, N);
    if (!dh0 || !p.last) return;
    const lane *const a_first = a + (varying ? p.w.first + most(p.w.steps - 1, 0) * p.w.stride : p.lo);
    for (int64_t j = 0; j < p.n; j++)
        dh0[p.b * N + p.lo + j] = p.w.steps ? lane_fma_conj(a_first[j], g[j], ZEROS[j]) : g[j];
}

/* dx (B,T,N), da like a, dh0 (B,N) or NULL, all overwritten; dh (B,T,N), dhT (B,N) or NULL, h as forward wrote it.
 *
 *   g_t = dh_t + conj(a_{t+1}) g_{t+1}     with boundary g_{T-1} = dh_{T-1} + dhT
 *   dx_t = g_t,   da_t = g_t conj(h_{t-1})  with h_{-1} = h0,   dh0 = conj(a_0) g_0   (dh0 = dhT if no steps)
 *
 * For a constant `a`, da is summed over runs of SUM_STEPS, then segments, then b, always in that order. */
KERNEL(scan_backward) {
    const cut c = cut_of(B, T, N, varying);
    const int64_t pieces = B * c.blocks * c.segments;
    /* For a constant a: sums of da; conj(a) for the passes from zero, and its powers */
    lane *const sums = varying ? NULL : WORKSPACE(lane, B, c.segments, N), *const turned = WORKSPACE(lane, N);
    wide *const power = WORKSPACE(wide, N), *const below = WORKSPACE(wide, N);
    int status = ROT_NO_MEMORY;
    if ((!varying && !sums) || !turned || !power || !below) goto end;
    status = ROT_OK;
    if (c.segments == 1) {
#pragma omp parallel for schedule(dynamic) if (B * T * N > SERIAL)
        for (int64_t i = 0; i < pieces; i++) {
            const piece p = piece_of(c, i, lengths, T, N, !reverse);
            lane *const sum = varying ? da : sums + p.b * N + p.lo;
            lane g[BLOCK];
            copy_row(g, dhT ? dhT + p.b * N + p.lo : ZEROS, p.n);
            if (!varying) zero_row(sum, p.n);
            run_backward(g, dx, sum, a, dh, h, h0 ? h0 + p.b * N + p.lo : ZEROS, p, varying);
            end_backward(dx, dh0, g, a, p, T, N, varying);
            if (varying) zero_padding_of(da, p, T, N);
        }
    } else {
        for (int64_t j = 0; j < N; j++) turned[j] = conjugate(a[j]);
        powers_of(power, below, turned, c.steps, N);
        lane carry[BLOCK];
        rot_turn turn = 0;
#pragma omp parallel for schedule(static, 1)
        for (int64_t i = 0; i < pieces; i++) {
            const piece p = piece_of(c, i, lengths, T, N, !reverse);
            lane *const sum = sums + (p.b * c.segments + i % c.segments) * N + p.lo;
            lane g[BLOCK], last[BLOCK];
            zero_row(sum, p.n);
            if (p.more) run_from_zero(last, turned, dh, p);
            await(&turn, i);
            copy_row(g, p.first ? dhT ? dhT + p.b * N + p.lo : ZEROS : carry, p.n);
            const wide *const moves = p.first ? below : power; /* no product for dhT */
            if (p.more) pass_on(carry, g, last, turned + p.lo, moves + p.lo, c.steps - p.first, p.n);
            pass_turn(&turn, i + 1);
            run_backward(g, dx, sum, a, dh, h, h0 ? h0 + p.b * N + p.lo : ZEROS, p, false);
            end_backward(dx, dh0, g, a, p, T, N, false);
        }
    }
    if (!varying) {
        zero_row(da, N);
        for (int64_t i = 0; i < B * c.segments; i++) add_row(da, sums + i * N, N);
    }
end:
    pool_give(sums), pool_give(turned), pool_give(power), pool_give(below);
    return status;
}
