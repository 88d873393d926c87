/* Numbers of the system of a diagonal layer, for host and device (kernels/diagonal.c). */
#ifndef ROT_DIAGONAL_H
#define ROT_DIAGONAL_H

#include <math.h>

#include "steps.h"

/* A rate, or its exponential if `log`. Beyond 80 a decay e^{-e^x} is 0 or 1 anyway, and its gradient stays finite. */
ROT_INLINE double rate_of(real x, bool log) { return log ? exp((double)clamp(x, -80, 80)) : (double)x; }

/* exp(-nu + i theta), in float32 with parts that are rounded once: a modulus exceeds 1 by a rounding at most */
ROT_INLINE cplx polar(double nu, double theta) {
    const double modulus = exp(-nu);
    const cplx a = {(real)(modulus * cos(theta)), (real)(modulus * sin(theta))};
    return a;
}
/* The gradients of nu and theta, as (re, im), from a and its gradient */
ROT_INLINE cplx polar_adjoint(cplx a, cplx da) {
    const cplx g = {-(a.re * da.re + a.im * da.im), a.re * da.im - a.im * da.re};
    return g;
}

/* An entry of gain B, where `turn` is the complex gain, or NULL */
ROT_INLINE cplx with_gain(const real *gain, const real *turn, int64_t n, cplx b) {
    const cplx scaled = {gain ? gain[n] * b.re : 0, gain ? gain[n] * b.im : 0};
    if (!turn) return scaled;
    const cplx own = {turn[2 * n], turn[2 * n + 1]}, zero = {0, 0};
    return cplx_fma(own, b, zero);
}
/* The gradient of B's entry, from the gradient of gain B */
ROT_INLINE cplx with_gain_adjoint(const real *gain, const real *turn, int64_t n, cplx g) {
    const cplx scaled = {gain ? gain[n] * g.re : 0, gain ? gain[n] * g.im : 0};
    if (!turn) return scaled;
    const cplx own = {turn[2 * n], turn[2 * n + 1]}, zero = {0, 0};
    return cplx_fma_conj(own, g, zero);
}

#endif
