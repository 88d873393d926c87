/* Causal depthwise convolution and its adjoint on a GPU (csrc/kernels/conv.c has the equations).
 *
 * A thread computes one number; its neighbours' reads of the same inputs are served by the cache. The gradients of the
 * weights are sums over steps by channel (columns.h), of a few taps at a time.
 */
#include "columns.h"

enum { TAPS_AT_ONCE = 5 }; /* four taps, as usual, and the bias */

/* The inputs z_0, z_1, ... of each sequence: x (B,T,D) after state (B,taps-1,D), which may be NULL for zeros. */
struct inputs {
    const real *x, *state;
    int64_t T, D, taps;
};

/* Number of the first input of a sequence that there is. */
ROT_DEVICE_ONLY int64_t first_input(inputs z) { return z.state ? 0 : z.taps - 1; }

/* z_i, i >= first_input */
ROT_DEVICE_ONLY real input_at(inputs z, int64_t b, int64_t i, int64_t d) {
    const int64_t before = z.taps - 1;
    return *(i < before ? z.state + (b * before + i) * z.D + d : z.x + (b * z.T + i - before) * z.D + d);
}

/* weights (taps,D) <- w (D,taps): neighbouring threads read neighbouring numbers */
static const real *weights_of(const real *w, int64_t D, int64_t taps) {
    real *const weights = workspace_of<real>(taps, D);
    each(taps * D, [=] __device__(int64_t i) { weights[i] = w[i % D * taps + i / D]; });
    return weights;
}

KERNEL(conv_forward) {
    const real *const weights = weights_of(w, D, taps);
    const inputs z = {x, state, T, D, taps};
    const extent e = {B, T, D, lengths};
    map(
        e, y,
        [=] __device__(place p) {
            const int64_t t = p.row - p.b * T;
            real sum = bias ? bias[p.d] : 0;
            for (int64_t k = most(first_input(z) - t, 0); k < taps; k++)
                sum += weights[k * D + p.d] * input_at(z, p.b, t + k, p.d);
            return sum;
        },
        [=] __device__(place, real sum) { return sum; });
    const int64_t tail = (taps - 1) * D;
    if (final)
        each(B * tail, [=] __device__(int64_t at) {
            const int64_t b = at / tail, i = steps_of(lengths, b, T) + at % tail / D;
            final[at] = i < first_input(z) ? 0 : input_at(z, b, i, at % D);
        });
    return runtime_status();
}

/* What the gradient of an input is made of. */
struct gradients {
    const real *dy, *dfinal, *weights;
    const int64_t *lengths;
    int64_t T, D, taps;
};

/* dz_i = sum_k w_k dy_{i-k} over the valid steps, plus row i - all of dfinal if z_i is in the final state. */
ROT_DEVICE_ONLY real input_adjoint(gradients g, int64_t b, int64_t i, int64_t d) {
    const int64_t all = steps_of(g.lengths, b, g.T);
    real dz = g.dfinal && i >= all ? g.dfinal[(b * (g.taps - 1) + i - all) * g.D + d] : 0;
    for (int64_t k = most(i - all + 1, 0); k < least(g.taps, i + 1); k++)
        dz += g.weights[k * g.D + d] * g.dy[(b * g.T + i - k) * g.D + d];
    return dz;
}

/* dw (D,taps) of taps k0 .. k0+TAPS_AT_ONCE-1; tap number `taps` is the bias, whose input is 1. */
static void sum_taps(extent e, inputs z, real *dw, real *dbias, const real *dy, int64_t k0) {
    sum_columns<TAPS_AT_ONCE>(
        e, false,
        [=] __device__(place p) {
            const real g = dy[p.i];
            const int64_t t = p.row - p.b * z.T;
            terms<TAPS_AT_ONCE> one;
#pragma unroll
            for (int n = 0; n < TAPS_AT_ONCE; n++) {
                const int64_t k = k0 + n;
                one.of[n] = k < z.taps && t + k >= first_input(z) ? g * input_at(z, p.b, t + k, p.d) : k == z.taps ? g : 0;
            }
            return one;
        },
        [=] __device__(int64_t, int64_t at, double total) {
            const int64_t k = k0 + at / z.D, d = at % z.D;
            if (k < z.taps) dw[d * z.taps + k] = (real)total;
            if (k == z.taps) dbias[d] = (real)total;
        });
}

KERNEL(conv_backward) {
    const gradients g = {dy, dfinal, weights_of(w, D, taps), lengths, T, D, taps};
    const inputs z = {x, state, T, D, taps};
    const extent e = {B, T, D, lengths};
    map(
        e, dx, [=] __device__(place p) { return input_adjoint(g, p.b, p.row - p.b * T + taps - 1, p.d); },
        [=] __device__(place, real dz) { return dz; });
    const int64_t tail = (taps - 1) * D;
    each(B * tail,
         [=] __device__(int64_t at) { dstate[at] = input_adjoint(g, at / tail, at % tail / D, at % D); });
    for (int64_t k0 = 0; k0 <= taps; k0 += TAPS_AT_ONCE) sum_taps(e, z, dw, dbias, dy, k0);
    return runtime_status();
}
