/* Fixed points in depth  y = F(y)  of sequences (B, T, D): `relax`, the damped step after any F, and
 * `depth_pass`, a whole iteration of the vector-state Fixed-Point RNN, each in one pass over memory.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor written; a sequence that has converged is
 * passed with length 0. Maxima do not depend on order, so results have the same bits for any number of threads.
 */
#include "kernels.h"
#include "lanes.h"
#include "mixer.h"
#include "residual.h"
#include "stop.h"
#include "workspace.h"

enum { PIECE = 65536 / sizeof(real), SERIAL = 32768, LINE = 64 / sizeof(real), AHEAD = 4, STOP_STEPS = 16 };

/* y <- s f + (1 - s) y over n numbers. */
static spread relax_row(real *restrict y, const real *restrict f, real s, int64_t n) {
    spread widest = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        y[i] = relax(&widest, y[i], f[i], s);
    }
    return widest;
}

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
            widen(&widest[i], (spread){magnitude_of(own), 0});
        }
    }
    for (int64_t b = 0; b < B; b++) {
        spread all = {0, 0};
        for (int64_t i = b * pieces; i < (b + 1) * pieces; i++) widen(&all, widest[i]);
        residual[b] = each_step ? number_of(all.apart) : residual_of(all, TINY);
    }
    pool_give(widest);
    return ROT_OK;
}

/* w (M, mixer_prepared) from u (M, ...): what M tokens' mixers precompute once for all iterations. */
KERNEL(mixer_prepare) {
    const mixer m = {form, R, D};
#pragma omp parallel for schedule(static) if (M * mixer_u(m) > SERIAL)
    for (int64_t t = 0; t < M; t++) mixer_prepare(w + t * mixer_prepared(m), u + t * mixer_u(m), m);
    return ROT_OK;
}

/* Prefetches the row of n numbers at x, used AHEAD steps later. The hardware prefetcher does not follow so many
 * streams, and a row's cache lines must be fetched in the direction of the walk. */
static void prefetch_row(const real *x, int64_t n, bool down) {
    for (int64_t i = 0; i < n; i += LINE) __builtin_prefetch(x + (down ? n - 1 - i : i));
}

/* v <- x - y */
static void apart_row(real *restrict v, const real *restrict x, const real *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) v[i] = x[i] - y[i];
}

/* v <- w <- (1 - lam) y, or y if not scaled */
static void gained_row(real *restrict v, real *restrict w, const real *restrict lam, const real *restrict y, int64_t n,
                       bool scaled) {
    for (int64_t i = 0; i < n; i++) v[i] = w[i] = depth_input(lam[i], y[i], scaled);
}

/* h <- lam h + (1 - lam) (v + y), or lam h + v + y, then y <- s h + (1 - s) y. */
static spread depth_row(real *restrict y, real *restrict h, const real *restrict lam, const real *restrict v, real s,
                        int64_t n, bool scaled) {
    spread widest = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        const real x = v[i] + y[i], f = scan_step(lam[i], h[i], depth_input(lam[i], x, scaled));
        h[i] = f;
        y[i] = relax(&widest, y[i], f, s);
    }
    return widest;
}

/* h <- lam h + x + (w - v), without lam h if lam is NULL, then y <- s h + (1 - s) y. */
static spread depth_adjoint_row(real *restrict y, real *restrict h, const real *restrict lam, const real *restrict x,
                                const real *restrict w, const real *restrict v, real s, int64_t n) {
    spread widest = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        const real pull = x[i] + (w[i] - v[i]), f = lam ? scan_step_adjoint(lam[i], h[i], pull) : pull;
        h[i] = f;
        y[i] = relax(&widest, y[i], f, s);
    }
    return widest;
}

/* One damped step  y_b <- s_b F(y) + (1 - s_b) y  in place, and its residual (B) as in `relax`, where
 *
 *   F_t = lam_t F_{t-1} + gain_t [y_t + Q_t (x_t - y_t)],  F_{-1} = h0,  gain_t = 1 - lam_t if `scaled`, else 1,
 *
 * or, with `adjoint`, its adjoint in y, where x is the gradient that comes in:  F_t = lam_{t+1} F_{t+1} + x_t +
 * (I - Q_t^T) (gain_t y_t),  F_T = 0.  y, x (B,T,D); lam (B,T,D) if `varying`, else (D); Q is that of alpha and w
 * (from mixer_prepare), of every token if varying, else of one; h0 (B,D) or NULL; s (B). */
KERNEL(depth_pass) {
    const mixer m = {form, R, D};
    const int64_t room = mixer_scratch(m) + 3 * D, w_size = w_varying ? mixer_prepared(m) : 0;
    const int64_t alpha_size = alpha_varying ? mixer_alpha(m) : 0;
    real *const rooms = WORKSPACE(real, B, room);
    if (!rooms) return ROT_NO_MEMORY;
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (B > 1 && B * T * D > SERIAL)
    for (int64_t b = 0; b < B; b++) {
        real *const h = rooms + b * room, *const v = h + D, *const g = v + D, *const scratch = g + D;
        const int64_t steps = steps_of(lengths, b, T);
        const real *later = NULL;
        spread widest = {0, 0};
        copy_or_zero_row(h, h0 ? h0 + b * D : NULL, D);
        for (int64_t k = 0; k < steps && !(k % STOP_STEPS == 0 && stopped(stop)); k++) {
            const int64_t t = b * T + (adjoint ? steps - 1 - k : k), at = t * D;
            if (k + AHEAD < steps) {
                const int64_t next = adjoint ? t - AHEAD : t + AHEAD;
                prefetch_row(y + next * D, D, adjoint);
                prefetch_row(x + next * D, D, adjoint);
                if (varying) prefetch_row(lam + next * D, D, adjoint);
                if (w_varying) prefetch_row(w + next * w_size, w_size, adjoint);
            }
            const real *const a = lam + (varying ? at : 0);
            if (adjoint) {
                gained_row(v, g, a, y + at, D, scaled);
                mixer_apply_transposed(v, w + t * w_size, alpha + t * alpha_size, scratch, m);
                widen(&widest, depth_adjoint_row(y + at, h, later, x + at, g, v, s[b], D));
                later = a;
            } else {
                apart_row(v, x + at, y + at, D);
                mixer_apply(v, w + t * w_size, alpha + t * alpha_size, scratch, m);
                widen(&widest, depth_row(y + at, h, a, v, s[b], D, scaled));
            }
        }
        residual[b] = residual_of(widest, TINY);
    }
    pool_give(rooms);
    return ROT_OK;
}
