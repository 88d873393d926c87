/* exp, tanh, sigmoid, ReLU, GELU, SiLU, softplus and decay_gain of one real, each with its derivative or its adjoint,
 * for host and device; written so that compilers vectorise loops over them. `f_adjoint(dy, ...)` is dy f'(x).
 *
 * All use one exponential. With n = round(x / ln 2) and r = x - n ln 2, |r| <= ln 2 / 2,
 *
 *     e^x = 2^n (1 + p(r)),     p(r) = e^r - 1 = r + r^2 q(r)
 *
 * where q is the Chebyshev interpolant of (e^r - 1 - r) / r^2: relative error of p 5e-10 (float), 5e-19 (double).
 * Compiled without -ffinite-math-only. A clamp is written `x > hi ? hi : x`: one min instruction, which propagates NaN.
 * e^x below 2^-125.5 (float) or 2^-1021.5 (double) is zero, because subnormal results would be slow.
 */
#ifndef ROT_VMATH_H
#define ROT_VMATH_H

#include <math.h>
#include <string.h>

#include "real.h"

#if ROT_DOUBLE
typedef uint64_t real_bits;
#define ROT_ABS       fabs
#define ROT_SQRT      sqrt
#define ROT_COPYSIGN  copysign
#define ROT_MANTISSA  52
#define ROT_ROUND     (0x1.8p52 + 1022) /* adding it rounds to an integer in the last bits, biased for 2^(n-1) */
#define ROT_EXP_HIGH  710.0
#define ROT_EXP_LOW   (-708.3)
#define ROT_EXP2_LOW  (-1023.0) /* 2^n has the bits of 0 here, and of infinity at n = ROT_EXP2_HIGH */
#define ROT_EXP2_HIGH 1024.0
#define ROT_LOG2E     0x1.71547652b82fep0
#define ROT_LN2_HIGH  0x1.62e42fefa2p-1 /* short enough that n times it is exact */
#define ROT_LN2_LOW   0x1.9ef35793c7673p-41
#define ROT_SHIFT     (0x1.8p52 + 1023) /* as ROT_ROUND, biased for 2^n */
#else
typedef uint32_t real_bits;
#define ROT_ABS       fabsf
#define ROT_SQRT      sqrtf
#define ROT_COPYSIGN  copysignf
#define ROT_MANTISSA  23
#define ROT_ROUND     (0x1.8p23f + 126)
#define ROT_EXP_HIGH  89.0f
#define ROT_EXP_LOW   (-87.3f)
#define ROT_EXP2_LOW  (-127.0f)
#define ROT_EXP2_HIGH 128.0f
#define ROT_LOG2E     0x1.715476p0f
#define ROT_LN2_HIGH  0x1.62e4p-1f
#define ROT_LN2_LOW   0x1.7f7d1cp-20f
#define ROT_SHIFT     (0x1.8p23f + 127)
#endif

ROT_INLINE real vmath_q(real r) {
#if ROT_DOUBLE
    real q = 0x1.1f731ea5352cap-29;
    q = q * r + 0x1.af4e196027428p-26;
    q = q * r + 0x1.27e4db57442fbp-22;
    q = q * r + 0x1.71de021a90822p-19;
    q = q * r + 0x1.a01a01a6dcaffp-16;
    q = q * r + 0x1.a01a01abef415p-13;
    q = q * r + 0x1.6c16c16c162ccp-10;
    q = q * r + 0x1.11111111100cep-7;
    q = q * r + 0x1.5555555555556p-5;
    q = q * r + 0x1.5555555555557p-3;
    return q * r + 0.5;
#else
    real q = 0x1.a12528p-13f;
    q = q * r + 0x1.6d4362p-10f;
    q = q * r + 0x1.1110e0p-7f;
    q = q * r + 0x1.5554e8p-5f;
    q = q * r + 0x1.555556p-3f;
    return q * r + 0.5f;
#endif
}

/* x within [low, high]; NaN stays. */
ROT_INLINE real clamp(real x, real low, real high) {
    const real least = x < low ? low : x;
    return least > high ? high : least;
}

/* The number whose exponent, biased, is in the last bits of x. */
ROT_INLINE real power_of_last_bits(real x) {
    real_bits bits;
    real power;
    memcpy(&bits, &x, sizeof bits);
    bits <<= ROT_MANTISSA;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* e^x = 2 half (1 + p). half is 2^(n-1): the largest finite result then does not overflow on the way. */
typedef struct {
    real half, p;
} exp_parts;

ROT_INLINE exp_parts vmath_parts(real x) {
    const real clamped = clamp(x, ROT_EXP_LOW, ROT_EXP_HIGH);
    const real shifted = clamped * ROT_LOG2E + ROT_ROUND, n = shifted - ROT_ROUND;
    const real r = (clamped - n * ROT_LN2_HIGH) - n * ROT_LN2_LOW;
    const exp_parts parts = {power_of_last_bits(shifted), r + r * r * vmath_q(r)};
    return parts;
}

ROT_INLINE real vmath_exp(real x) {
    const exp_parts e = vmath_parts(x);
    return 2 * (e.half + e.half * e.p);
}

/* tanh |x| = m / (m + 2) with m = e^(2|x|) - 1, which is accurate near zero; from |x| = 20 on it is 1. */
ROT_INLINE real vmath_tanh(real x) {
    const real a = ROT_ABS(x);
    const exp_parts e = vmath_parts(2 * (a > 20 ? 20 : a));
    const real expm1 = 2 * (e.half * e.p + (e.half - (real)0.5));
    return ROT_COPYSIGN(expm1 / (expm1 + 2), x);
}

/* From y = tanh(x):  dy (1 - y^2), in a form that stays accurate near |y| = 1. */
ROT_INLINE real tanh_adjoint(real dy, real y) { return dy * (1 - y) * (1 + y); }

/* v s(x), s(x) = 1 / (1 + e^-x): e^-x may overflow to infinity, and v / infinity is then the correct 0. */
ROT_INLINE real vmath_gated(real v, real x) { return v / (1 + vmath_exp(-x)); }

ROT_INLINE real sigmoid(real x) { return vmath_gated(1, x); }

/* s(x) and s(-x) = 1 - s(x), each to full relative accuracy. */
typedef struct {
    real on, off;
} sigmoid_parts;

ROT_INLINE sigmoid_parts vmath_sigmoid_parts(real x) {
    const real e = vmath_exp(-ROT_ABS(x)), large = 1 / (1 + e), small = e * large;
    const sigmoid_parts s = {x < 0 ? small : large, x < 0 ? large : small};
    return s;
}

/* s' = s(x) s(-x): from x, and, where only y = s(x) was saved, from y. */
ROT_INLINE real sigmoid_adjoint(real dy, real x) {
    const sigmoid_parts s = vmath_sigmoid_parts(x);
    return dy * (s.on * s.off);
}
ROT_INLINE real sigmoid_adjoint_by_y(real dy, real y) { return dy * y * (1 - y); }

/* max(x, 0), and its adjoint from y = max(x, 0); NaN is propagated. */
ROT_INLINE real relu(real x) { return x < 0 ? 0 : x; }
ROT_INLINE real relu_adjoint(real dy, real y) { return y <= 0 ? 0 : dy; }

/* GELU(x) = x/2 (1 + tanh(u/2)) = x s(u), u = x (c + d x^2), c = sqrt(8/pi), d = 0.044715 c: the tanh form of Hendrycks
 * and Gimpel 2016. Its slope is s(u) + x s(u) s(-u) u'. Beyond |x| = 64, in either dtype, s(u) is 0 or 1, and so is the
 * slope. Clamps keep 0 times infinity out of the products: GELU(-infinity) is its limit, -0. */
#define ROT_GELU_LINEAR ((real)1.5957691216057307117597842397375)
#define ROT_GELU_CUBIC  ((real)0.071354816272600248777440935059862)

ROT_INLINE real gelu(real x) { return vmath_gated(x < -64 ? -64 : x, x * (ROT_GELU_LINEAR + ROT_GELU_CUBIC * x * x)); }

ROT_INLINE real gelu_slope(real x) {
    const real low = x < -64 ? -64 : x, c = low > 64 ? 64 : low;
    const sigmoid_parts s = vmath_sigmoid_parts(c * (ROT_GELU_LINEAR + ROT_GELU_CUBIC * c * c));
    return s.on + c * (ROT_GELU_LINEAR + 3 * ROT_GELU_CUBIC * c * c) * (s.on * s.off);
}

/* SiLU(x) = x s(x), its slope s(x) (1 + x s(-x)). Beyond |x| = 1000, in either dtype, s(x) is 0 or 1; clamped like
 * GELU, with the same limit at -infinity. */
ROT_INLINE real silu(real x) { return vmath_gated(x < -1000 ? -1000 : x, x); }

ROT_INLINE real silu_slope(real x) {
    const real low = x < -1000 ? -1000 : x, c = low > 1000 ? 1000 : low;
    const sigmoid_parts s = vmath_sigmoid_parts(c);
    return s.on * (1 + c * s.off);
}

/* log(1 + e), 0 <= e <= 1, is 2 atanh z with z = e / (2 + e) <= 1/3:  2 z (1 + w q(w)),  w = z^2, where q is the
 * Chebyshev interpolant of (atanh(z) / z - 1) / w; relative error of the result 1e-9 (float), 8e-18 (double). */
ROT_INLINE real vmath_log1p(real e) {
    const real z = e / (2 + e), w = z * z;
#if ROT_DOUBLE
    real q = 0x1.4b0a20186cabep-4;
    q = q * w + 0x1.687a75b33d5dcp-5;
    q = q * w + 0x1.eb905cdbf9224p-5;
    q = q * w + 0x1.10ac75f79c097p-4;
    q = q * w + 0x1.3b18b292a43f9p-4;
    q = q * w + 0x1.745cf0b0f986ep-4;
    q = q * w + 0x1.c71c727142831p-4;
    q = q * w + 0x1.24924923d44d8p-3;
    q = q * w + 0x1.999999999a3ddp-3;
    q = q * w + 0x1.5555555555555p-2;
#else
    real q = 0x1.dba260p-4f;
    q = q * w + 0x1.bc8cf8p-4f;
    q = q * w + 0x1.24c926p-3f;
    q = q * w + 0x1.9998d4p-3f;
    q = q * w + 0x1.555556p-2f;
#endif
    return 2 * (z + z * (w * q));
}

/* log(1 + e^x) without overflow, and accurate where it is small; its derivative is s(x). */
ROT_INLINE real softplus(real x) { return (x > 0 ? x : 0) + vmath_log1p(vmath_exp(-ROT_ABS(x))); }
ROT_INLINE real softplus_adjoint(real dy, real x) { return vmath_gated(dy, x); }

/* sqrt(1 - e^(2x)), x <= 0, the gain of an input beside a decay e^x that keeps the variance: with t = tanh(-x), which
 * is accurate near zero, 1 - e^(2x) = 2 t / (1 + t). Its slope -e^(2x) / sqrt(1 - e^(2x)) is unbounded at zero; as in
 * the RG-LRU's code (De et al. 2024), sqrt(v) has the slope 1 / sqrt(max(4 v, 1e-6)). */
ROT_INLINE real decay_gain(real x) {
    const real t = vmath_tanh(-x);
    return ROT_SQRT(2 * t / (1 + t));
}
ROT_INLINE real decay_gain_adjoint(real dy, real x) {
    const real t = vmath_tanh(-x), y = ROT_SQRT(2 * t / (1 + t)), least = (real)5e-4;
    return -dy * ((1 - t) / (1 + t)) / (y < least ? least : y);
}

#endif
