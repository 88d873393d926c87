/* The step in depth of the vector-state Fixed-Point RNN, a token at a time, and how its fixed point is found: by damped
 * or accelerated iteration, a tile of time after the other, or directly.
 *
 *   F_t = lam_t F_{t-1} + gain_t [y_t + Q_t (x_t - y_t)],  gain_t = 1 - |lam_t| if `scaled`, else 1,
 *
 * or, with `adjoint`, its adjoint in y, where x is the gradient that comes in and time runs down:
 *
 *   F_t = lam_{t+1} F_{t+1} + x_t + (I - Q_t^T) (gain_t y_t).
 *
 * No step depends on later ones of its walk. So a tile can be solved before the next one is begun, which takes up the F
 * that the first has handed on; a tile of all steps is the iteration over the whole sequence.
 */
#ifndef ROT_DEPTH_H
#define ROT_DEPTH_H

#include "anderson.h"
#include "direct.h"
#include "steps.h"
#if !ROT_DEVICE
#include "stop.h"
#endif

enum { DEPTH_LINE = 64 / sizeof(real), DEPTH_AHEAD = 4, DEPTH_STOP_STEPS = 16, DEPTH_MEMORY = ANDERSON_ROWS + 1 };

/* What a step consists of. A size is 0 if all tokens have the same lam, w (from mixer_prepare) or alpha. */
typedef struct {
    mixer m;
    bool scaled, adjoint;
    const real *x, *lam, *w, *alpha;
    int64_t lam_size, w_size, alpha_size;
    struct rot_stop *stop; /* of the call, on the CPU */
} depth;

/* --------------------------------------------------------------------------------------------------- one application
 */

/* v <- x - y */
ROT_ROW void apart_row(real *restrict v, const real *restrict x, const real *restrict y, int64_t n) {
    EACH_OF_ROW(i, n) v[i] = x[i] - y[i];
}

/* v <- w <- (1 - |lam|) y, or y if not scaled */
ROT_ROW void gained_row(real *restrict v, real *restrict w, const real *restrict lam, const real *restrict y, int64_t n,
                        bool scaled) {
    EACH_OF_ROW(i, n) v[i] = w[i] = depth_input(lam[i], y[i], scaled);
}

/* h <- lam h + (1 - |lam|) (v + y), or lam h + v + y, then y <- s h + (1 - s) y. */
ROT_ROW spread depth_row(real *restrict y, real *restrict h, const real *restrict lam, const real *restrict v, real s,
                         int64_t n, bool scaled) {
    spread widest = {0, 0};
    EACH_OF_ROW(i, n) {
        const real x = v[i] + y[i], f = scan_step(lam[i], h[i], depth_input(lam[i], x, scaled));
        h[i] = f;
        y[i] = relax(&widest, y[i], f, s);
    }
    return widest;
}

/* h <- lam h + x + (w - v), without lam h if lam is NULL, then y <- s h + (1 - s) y. */
ROT_ROW spread depth_adjoint_row(real *restrict y, real *restrict h, const real *restrict lam, const real *restrict x,
                                 const real *restrict w, const real *restrict v, real s, int64_t n) {
    spread widest = {0, 0};
    EACH_OF_ROW(i, n) {
        const real pull = x[i] + (w[i] - v[i]), f = lam ? scan_step_adjoint(lam[i], h[i], pull) : pull;
        h[i] = f;
        y[i] = relax(&widest, y[i], f, s);
    }
    return widest;
}

ROT_INLINE int64_t depth_room(mixer m) { return 2 * m.D + mixer_scratch(m); }

/* h (D) <- F_t of the old y (D) and the F before it in the walk, h, then y <- s h + (1 - s) y. `later` is lam_{t+1} of
 * the adjoint, NULL at the last step. */
ROT_ROW spread depth_token(const depth *p, int64_t t, real *y, real *h, const real *later, real s, real *room) {
    const int64_t D = p->m.D;
    const real *const x = p->x + t * D, *const lam = p->lam + t * p->lam_size, *const w = p->w + t * p->w_size;
    const real *const alpha = p->alpha + t * p->alpha_size;
    real *const v = room, *const g = v + D, *const scratch = g + D;
    if (p->adjoint) {
        gained_row(v, g, lam, y, D, p->scaled);
        mixer_apply_transposed(v, w, alpha, scratch, p->m);
        return depth_adjoint_row(y, h, later, x, g, v, s, D);
    }
    apart_row(v, x, y, D);
    mixer_apply(v, w, alpha, scratch, p->m);
    return depth_row(y, h, lam, v, s, D, p->scaled);
}

/* -------------------------------------------------------------------------------------------- the exact fixed point */

/* y (D) <- the fixed point of step t with the F before it in the walk, h, and `later` as above: that of direct.h for
 * carried = lam F_{t-1}, and its adjoint, of g = x + lam_{t+1} F_{t+1}. But 1 - gain = |lam| is not computed as a
 * difference here, neither in E of low rank, which must be scaled: where |lam| is small, little would be left. Returns
 * what solve_small does. */
ROT_ROW real direct_token(const depth *p, int64_t t, real *y, const real *h, const real *later, real *room) {
    const int64_t D = p->m.D;
    const bool low = p->m.form == MIXER_LOW_RANK;
    const real *const x = p->x + t * D, *const lam = p->lam + t * p->lam_size, *const w = p->w + t * p->w_size;
    real *const gain = room, *const right = gain + D;
    EACH_OF_ROW(n, D) {
        const real sign = lam[n] < 0 ? -1 : 1, size = sign * lam[n];
        gain[n] = depth_input(lam[n], low ? 1 / size : 1, p->scaled);
        if (p->adjoint) {
            y[n] = later ? scan_step_adjoint(later[n], h[n], x[n]) : x[n];
            right[n] = gain[n] * y[n];
        } else {
            const real from = p->scaled ? h[n] - sign * x[n] : h[n]; /* base = lam from */
            right[n] = low ? sign * from : lam[n] * from;
            y[n] = x[n] + right[n];
        }
    }
#if !ROT_DEVICE
    if (!has_vectors(p->m.form)) {
        real *const e = p->adjoint ? y : right, *const kept = right + D;
        const bool plain = p->m.form == MIXER_ROTATION && !p->scaled; /* the system of Q, whose inverse is Q^T */
        real growth = 1;
        for (int64_t n = 0; n < D; n++) kept[n] = p->scaled ? ROT_ABS(lam[n]) : 0;
        if (plain && p->adjoint)
            apply_rotation(e, w, p->m);
        else if (plain)
            apply_rotation_transposed(e, w, p->m);
        else
            growth = solve_formed(e, kept, gain, w, p->alpha + t * p->alpha_size, p->adjoint, kept + D, p->m);
        for (int64_t n = 0; n < D && !p->adjoint; n++) y[n] = x[n] + e[n];
        return growth;
    }
#endif
    real growth = 1;
    const real *const alpha = p->alpha + t * p->alpha_size;
    const real *const sum = direct_sum(&growth, gain, right, w, alpha, p->adjoint, right + D, p->m);
    EACH_OF_ROW(n, D) {
        if (p->adjoint)
            y[n] = low ? (y[n] + sum[n]) / ROT_ABS(lam[n]) : y[n] + sum[n];
        else
            y[n] += gain[n] * sum[n];
    }
    return growth;
}

/* ------------------------------------------------------------------------------------------------- tile after tile */

#if ROT_DEVICE
/* The maxima over the warp's threads, which must all call it. */
ROT_DEVICE_ONLY spread row_widest(spread s) {
    for (int d = 16; d; d /= 2) {
        const spread other = {__shfl_xor_sync(~0u, s.apart, d), __shfl_xor_sync(~0u, s.size, d)};
        widen_spread(&s, other);
    }
    return s;
}
ROT_ROW void prefetch_token(const depth *, const real *, int64_t, bool) {}
ROT_ROW bool call_stops(const depth *) { return false; }
#else
static inline spread row_widest(spread s) { return s; }

/* Prefetches the row of n numbers at x. The hardware prefetcher does not follow so many streams, and a row's cache
 * lines must be fetched in the direction of the walk. */
static inline void prefetch_row(const real *x, int64_t n, bool down) {
    for (int64_t i = 0; i < n; i += DEPTH_LINE) __builtin_prefetch(x + (down ? n - 1 - i : i));
}

static inline void prefetch_token(const depth *p, const real *y, int64_t t, bool down) {
    prefetch_row(y + t * p->m.D, p->m.D, down);
    prefetch_row(p->x + t * p->m.D, p->m.D, down);
    if (p->lam_size) prefetch_row(p->lam + t * p->m.D, p->m.D, down);
    if (p->w_size) prefetch_row(p->w + t * p->w_size, p->w_size, down);
}

static inline bool call_stops(const depth *p) { return stopped(p->stop); }
#endif

/* One application along a walk of tokens, each solved first if `direct`. h is F before the walk, then that of its last
 * step; `later` as in depth_token, for its first step. F is written to `out`, if there, the row of the first step.
 * room: depth_room, and direct_room if direct. */
ROT_ROW spread depth_walk(const depth *p, walk along, real *y, real *out, real *h, const real *later, bool direct,
                          real s, real *room) {
    const int64_t D = p->m.D;
    const spread none = {0, 0};
    spread widest = none;
    for (int64_t k = 0; k < along.steps; k++) {
        if (k % DEPTH_STOP_STEPS == DEPTH_STOP_STEPS - 1 && call_stops(p)) return none; /* ends the iteration, too */
        const int64_t t = along.first + k * along.stride;
        if (k + DEPTH_AHEAD < along.steps) prefetch_token(p, y, t + DEPTH_AHEAD * along.stride, p->adjoint);
        const real growth = direct ? direct_token(p, t, y + t * D, h, later, room) : 0;
        widen_spread(&widest, solved_spread(depth_token(p, t, y + t * D, h, later, s, room), growth));
        if (out) copy_row(out + k * along.stride * D, h, D);
        later = p->adjoint ? p->lam + t * p->lam_size : NULL;
    }
    return row_widest(widest);
}

/* The rules of rotrnn.nn.fixed_points.iteration.Progress for one sequence: an iteration goes on until the residual is
 * below tol, `most` times at most; the step size, at first `first`, shrinks after `patience` residuals without a new
 * lowest one, and is `first` again after each `cycle` in which the lowest one has not fallen to a tenth. */
typedef struct {
    double tol;
    real first, shrink;
    int64_t most, patience, cycle;
} depth_rules;

/* What a sequence needed: the largest number of iterations of a tile, all its tokens' iterations, and the largest
 * residual (NaN if there was one). */
typedef struct {
    int64_t iterations, applied;
    magnitude residual;
} depth_report;

/* Iterates y over a tile; h (D) is F before it and stays so; `now` is overwritten. With `memory`, (DEPTH_MEMORY, D) for
 * each step, iterates are those of Anderson acceleration, and residuals are what it returns. */
ROT_ROW void iterate_tile(depth_report *report, const depth *p, walk along, depth_rules r, real *y, const real *h,
                          const real *later, real *now, real *memory, real *room) {
    const int64_t n = along.steps * p->m.D, end = (along.steps - 1) * p->m.D, first = along.first * p->m.D;
    real *const tile = y + first - (along.stride < 0 ? end : 0); /* the earliest step */
    real *const image = memory ? memory + (along.stride < 0 ? end : 0) : NULL;
    anderson steps = {0, {0}};
    real s = memory ? 0 : r.first, residual = 0;
    double lowest = INFINITY, before = 1;
    int64_t count = 0, waited = 0;
    do {
        copy_row(now, h, p->m.D);
        residual = residual_of(depth_walk(p, along, y, image, now, later, false, s, room), TINY);
        if (memory) residual = anderson_step(&steps, tile, memory, residual, n, memory + n);
        count++;
        waited = residual < lowest ? 0 : waited + 1;
        if (residual < lowest) lowest = residual;
        if (waited == r.patience) {
            s *= r.shrink;
            waited = 0;
        }
        if (count % r.cycle == 0 && !memory) {
            if (lowest > before / 10) s = r.first, waited = 0;
            before = lowest;
        }
        if (count % DEPTH_STOP_STEPS == 0 && call_stops(p)) break;
    } while (residual >= r.tol && count < r.most); /* false for NaN, too */
    report->iterations = most(report->iterations, count);
    report->applied += count * along.steps;
    report->residual = larger(report->residual, magnitude_of(residual));
}

ROT_INLINE int64_t solve_room(mixer m, bool direct) {
    return 2 * m.D + most(depth_room(m), direct ? direct_room(m) : 0);
}

/* Solves sequence b of T steps, of which `steps` are valid, by tiles, or by one walk if `direct`. y becomes the last
 * iterate, and out, if there, F(y), which is also what a tile hands on to the next. h0 (D) or NULL. memory: NULL, or
 * (DEPTH_MEMORY, D) for each step of a tile; room: solve_room */
ROT_ROW depth_report solve_sequence(const depth *p, int64_t b, int64_t T, int64_t steps, int64_t tile, depth_rules r,
                                    bool direct, real *y, real *out, const real *h0, real *memory, real *room) {
    real *const h = room, *const now = h + p->m.D, *const rest = now + p->m.D;
    depth_report report = {0, 0, 0};
    tile = least(tile, most(steps, 1)); /* any larger one is the same, and may be too large to add to */
    copy_or_zero_row(h, h0, p->m.D);
    for (int64_t i = 0; i < pieces_of(steps, tile) && !call_stops(p); i++) {
        const walk along = walk_of(b, i, tile, steps, T, p->adjoint);
        const real *const later = p->adjoint && i ? p->lam + (along.first + 1) * p->lam_size : NULL;
        if (!direct) iterate_tile(&report, p, along, r, y, h, later, now, memory, rest);
        real *const image = out ? out + along.first * p->m.D : NULL;
        const spread last = depth_walk(p, along, y, image, h, later, direct, 0, rest);
        if (direct) {
            report.iterations = 1;
            report.applied += along.steps;
            report.residual = larger(report.residual, magnitude_of(residual_of(last, TINY)));
        }
    }
    return report;
}

#endif
