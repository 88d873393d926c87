/* Causal depthwise convolution  y_t = bias + sum_{k<taps} w_k x_{t-(taps-1)+k}  over (B, T, D), and its adjoint.
 *
 * With the taps-1 earlier inputs (`state`) in front, the inputs of a sequence are z_0, z_1, ..., and y_t = bias + sum_k
 * w_k z_{t+k}. A task is a sequence and a run of RUN steps. Sums over steps are taken within a run, and the runs' sums
 * are added in order, so results have the same bits for any number of threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 */
#include <string.h>

#include "kernels.h"
#include "lanes.h"
#include "stop.h"
#include "workspace.h"

enum { RUN = 128, SERIAL = 32768 };

/* The inputs of one sequence: x (T,D) after state (taps-1,D), which may be NULL for zeros. */
typedef struct {
    const real *x, *state;
    int64_t taps, D;
} inputs;

/* z_i, or NULL if it is zero. */
static const real *input_at(inputs z, int64_t i) {
    const int64_t before = z.taps - 1;
    return i >= before ? z.x + (i - before) * z.D : z.state ? z.state + i * z.D : NULL;
}

static void add_product(real *restrict sum, const real *restrict x, const real *restrict y, int64_t n) {
    for (int64_t d = 0; d < n; d++) sum[d] += x[d] * y[d];
}

/* (rows, columns) <- (columns, rows) */
static void transpose(real *restrict to, const real *restrict from, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[i * columns + j] = from[j * rows + i];
}

/* y (B,T,D), final (B,taps-1,D), the last taps-1 inputs, or NULL; x (B,T,D), w (D,taps), bias (D) or NULL, state
 * (B,taps-1,D) or NULL; taps >= 1. */
KERNEL(conv_forward) {
    const int64_t runs = pieces_of(T, RUN), tail = (taps - 1) * D;
    real *const weights = WORKSPACE(real, taps, D);
    if (!weights) return ROT_NO_MEMORY;
    transpose(weights, w, taps, D);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (B * T * D > SERIAL)
    for (int64_t task = 0; task < B * runs; task++) {
        if (stopped(stop)) continue;
        const int64_t b = task / runs, from = task % runs * RUN, to = least(from + RUN, T);
        const int64_t all = steps_of(lengths, b, T);
        const inputs z = {x + b * T * D, state ? state + b * tail : NULL, taps, D};
        for (int64_t t = from; t < to; t++) {
            real *const out = y + (b * T + t) * D;
            copy_or_zero_row(out, t < all ? bias : NULL, D);
            for (int64_t k = 0; k < taps && t < all; k++)
                if (input_at(z, t + k)) add_product(out, weights + k * D, input_at(z, t + k), D);
        }
    }
    for (int64_t b = 0; final && b < B; b++) {
        const int64_t all = steps_of(lengths, b, T);
        const inputs z = {x + b * T * D, state ? state + b * tail : NULL, taps, D};
        for (int64_t i = 0; i < taps - 1; i++) copy_or_zero_row(final + b * tail + i * D, input_at(z, all + i), D);
    }
    pool_give(weights);
    return ROT_OK;
}

/* dz (D) <- sum_k w_k dy_{i-k} over the valid steps, plus row i - all of dfinal if z_i is in the final state. */
static void input_adjoint(real *restrict dz, const real *restrict dy, const real *restrict dfinal,
                          const real *restrict weights, int64_t i, int64_t all, int64_t taps, int64_t D) {
    copy_or_zero_row(dz, dfinal && i >= all ? dfinal + (i - all) * D : NULL, D);
    for (int64_t k = 0; k < taps; k++)
        if (i - k >= 0 && i - k < all) add_product(dz, weights + k * D, dy + (i - k) * D, D);
}

/* dx (B,T,D), dw (D,taps), dbias (D), dstate (B,taps-1,D), all overwritten; dy (B,T,D), dfinal (B,taps-1,D) or NULL,
 * the rest as in forward. */
KERNEL(conv_backward) {
    const int64_t runs = pieces_of(T, RUN), tail = (taps - 1) * D, size = (taps + 1) * D;
    real *const weights = WORKSPACE(real, taps, D);
    real *const sums = WORKSPACE(real, 1 + B * runs, taps + 1, D); /* dw (taps,D), then dbias; the total comes first */
    if (!weights || !sums) {
        pool_give(weights), pool_give(sums);
        return ROT_NO_MEMORY;
    }
    transpose(weights, w, taps, D);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (B * T * D > SERIAL)
    for (int64_t task = 0; task < B * runs; task++) {
        if (stopped(stop)) continue;
        const int64_t b = task / runs, from = task % runs * RUN, to = least(from + RUN, T);
        const int64_t all = steps_of(lengths, b, T);
        const inputs z = {x + b * T * D, state ? state + b * tail : NULL, taps, D};
        const real *const grad = dy + b * T * D, *const last = dfinal ? dfinal + b * tail : NULL;
        real *const sum = sums + (1 + task) * size;
        zero_row(sum, size);
        for (int64_t t = from; t < to; t++) {
            if (t >= all) {
                zero_row(dx + (b * T + t) * D, D);
                continue;
            }
            input_adjoint(dx + (b * T + t) * D, grad, last, weights, t + taps - 1, all, taps, D);
            for (int64_t k = 0; k < taps; k++)
                if (input_at(z, t + k)) add_product(sum + k * D, grad + t * D, input_at(z, t + k), D);
            add_row(sum + taps * D, grad + t * D, D);
        }
    }
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < taps - 1; i++)
            input_adjoint(dstate + b * tail + i * D, dy + b * T * D, dfinal ? dfinal + b * tail : NULL, weights, i,
                          steps_of(lengths, b, T), taps, D);
    zero_row(sums, size);
    for (int64_t task = 0; task < B * runs; task++) add_row(sums, sums + (1 + task) * size, size);
    transpose(dw, sums, D, taps);
    memcpy(dbias, sums + taps * D, (size_t)D * sizeof(real));
    pool_give(weights), pool_give(sums);
    return ROT_OK;
}
