/* Fixed points in depth  y = F(y)  of sequences (B, T, D): `relax`, the damped step after any F, and, for the F of the
 * vector-state Fixed-Point RNN (depth.h), `depth_pass`, a whole iteration, each in one pass over memory; `depth_solve`,
 * all iterations.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor written; a sequence that has converged is
 * passed with length 0. Maxima do not depend on order, so results have the same bits for any number of threads.
 */
#include "depth.h"
#include "kernels.h"
#include "lanes.h"
#include "mixer.h"
#include "residual.h"
#include "stop.h"
#include "workspace.h"

enum { PIECE = 65536 / sizeof(real), SERIAL = 32768 };

/* y (B,T,D) <- s_b f + (1 - s_b) y in place, and residual (B) = max |y - f| / max |f| of the old y, with maxima over a
 * sequence's steps and channels. With `each_step`, the largest residual of a step, where the divisor is
 * max |f| + RESIDUAL_FLOOR. NaN if any value is NaN, 0 if there are no steps. f (B,T,D), s (B). */
KERNEL(relax) {
    const int64_t rows = PIECE / (D + 1) + 1, pieces = pieces_of(T, rows);
    spread *const widest = WORKSPACE(spread, B, pieces); /* with each_step, `apart` holds a residual */
    if (!widest) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(dynamic) if (B * T * D > SERIAL)
    for (int64_t i = 0; i < B * pieces; i++) {
        const int64_t b = i / pieces, from = i % pieces * rows, all = steps_of(lengths, b, T);
        const int64_t count = least(most(all - from, 0), rows), at = (b * T + from) * D;
        if (!each_step) {
            widest[i] = relax_row(y + at, f + at, s[b], count * D);
            continue;
        }
        widest[i] = (spread){0, 0};
        for (int64_t t = 0; t < count; t++) {
            const real own = residual_of(relax_row(y + at + t * D, f + at + t * D, s[b], D), (real)RESIDUAL_FLOOR);
            widen_spread(&widest[i], (spread){magnitude_of(own), 0});
        }
    }
    for (int64_t b = 0; b < B; b++) {
        spread all = {0, 0};
        for (int64_t i = b * pieces; i < (b + 1) * pieces; i++) widen_spread(&all, widest[i]);
        residual[b] = each_step ? real_of(all.apart) : residual_of(all, TINY);
    }
    pool_give(widest);
    return ROT_OK;
}

/* w (M, mixer_prepared) from u (M, ...): what M tokens' mixers precompute once for all iterations. */
KERNEL(mixer_prepare) {
    const mixer m = {form, R, D};
#pragma omp parallel for schedule(static) if (M * mixer_u(m) > SERIAL)
    for (int64_t t = 0; t < M; t++) mixer_prepare(w + t * mixer_prepared(m), u + t * mixer_u(m), normalised, m);
    return ROT_OK;
}

/* One damped step  y_b <- s_b F(y) + (1 - s_b) y  in place, and its residual (B) as in `relax`, where
 *
 *   F_t = lam_t F_{t-1} + gain_t [y_t + Q_t (x_t - y_t)],  F_{-1} = h0,  gain_t = 1 - |lam_t| if `scaled`, else 1,
 *
 * or, with `adjoint`, its adjoint in y, where x is the gradient that comes in:  F_t = lam_{t+1} F_{t+1} + x_t +
 * (I - Q_t^T) (gain_t y_t),  F_T = 0.  y, x (B,T,D); lam (B,T,D) if `varying`, else (D); Q is that of alpha and w
 * (from mixer_prepare), of every token if varying, else of one; h0 (B,D) or NULL; s (B). */
KERNEL(depth_pass) {
    const mixer m = {form, R, D};
    const depth p = {m,
                     scaled,
                     adjoint,
                     x,
                     lam,
                     w,
                     alpha,
                     varying ? D : 0,
                     w_varying ? mixer_prepared(m) : 0,
                     alpha_varying ? mixer_alpha(m) : 0,
                     stop_of_call()};
    const int64_t room = D + depth_room(m);
    real *const rooms = WORKSPACE(real, B, room);
    if (!rooms) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(dynamic) if (B > 1 && B * T * D > SERIAL)
    for (int64_t b = 0; b < B; b++) {
        real *const h = rooms + b * room;
        const walk along = walk_of(b, 0, T, steps_of(lengths, b, T), T, adjoint);
        copy_or_zero_row(h, h0 ? h0 + b * D : NULL, D);
        residual[b] = residual_of(depth_walk(&p, along, y, NULL, h, NULL, false, s[b], h + D), TINY);
    }
    pool_give(rooms);
    return ROT_OK;
}

/* The fixed point of the same F, tile by tile, with Anderson acceleration if `accelerate`, or, if
 * `direct`, exactly (depth.h). y (B,T,D) is the first iterate and
 * becomes the last one, and h (B,T,D) or NULL is F of that. For each sequence: `iterations`, the most of a tile;
 * `applied`, the sum over its tokens; and `residual`, the largest of a tile. */
KERNEL(depth_solve) {
    const mixer m = {form, R, D};
    const depth p = {m,
                     scaled,
                     adjoint,
                     x,
                     lam,
                     w,
                     alpha,
                     varying ? D : 0,
                     w_varying ? mixer_prepared(m) : 0,
                     alpha_varying ? mixer_alpha(m) : 0,
                     stop_of_call()};
    const depth_rules rules = {tol, (real)first, (real)shrink, limit, patience, cycle};
    const int64_t room = solve_room(m, direct);
    const int64_t together = accelerate && !direct ? least(tile, T) : 0;
    real *const rooms = WORKSPACE(real, B, room), *const memories = WORKSPACE(real, B, DEPTH_MEMORY, together, D);
    if (!rooms || !memories) {
        pool_give(rooms), pool_give(memories);
        return ROT_NO_MEMORY;
    }
#pragma omp parallel for schedule(dynamic) if (B > 1 && B * T * D > SERIAL)
    for (int64_t b = 0; b < B; b++) {
        const int64_t steps = steps_of(lengths, b, T);
        const real *const before = h0 ? h0 + b * D : NULL;
        real *const memory = together ? memories + b * DEPTH_MEMORY * together * D : NULL;
        const depth_report report =
            solve_sequence(&p, b, T, steps, tile, rules, direct, y, h, before, memory, rooms + b * room);
        iterations[b] = report.iterations;
        applied[b] = report.applied;
        residual[b] = real_of(report.residual);
        if (h) zero_padding(h, b, steps, T, D);
    }
    pool_give(rooms), pool_give(memories);
    return ROT_OK;
}
