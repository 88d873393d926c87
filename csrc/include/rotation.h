/* Angles that add up over time, and the rotations by them, for host and device. Loops over them vectorise. */
#ifndef ROT_ROTATION_H
#define ROT_ROTATION_H

#include <math.h>

#include "vmath.h"

/* 2 pi as two numbers, and the first as two of 26 bits */
#define ROT_TURN_HIGH  0x1.921fb54442d18p2
#define ROT_TURN_UPPER 0x1.921fb58p2
#define ROT_TURN_LOWER (ROT_TURN_HIGH - ROT_TURN_UPPER)
#define ROT_TURN_LOW   0x1.1a62633145c07p-52
#define ROT_PI         (ROT_TURN_HIGH / 2)

/* c - n ROT_TURN_HIGH, exactly if it is small. Where products and sums do not fuse, the rounding error of the product
 * is computed too, after Dekker (1971): it is 0 for a small n. */
ROT_INLINE double less_turns(double c, double n) {
#if defined __FMA__ || defined __ARM_FEATURE_FMA || defined __CUDACC__
    return fma(-n, ROT_TURN_HIGH, c); /* c - n ROT_TURN_HIGH is two operations where the compiler does not optimise */
#else
    const double whole = n > -0x1p53 && n < 0x1p53 ? n : 0; /* or the shift might overflow */
    const double shift = whole * 0x1p27, upper = (whole + shift) - shift, lower = whole - upper;
    const double product = whole * ROT_TURN_HIGH;
    const double first = upper * ROT_TURN_UPPER - product, both = upper * ROT_TURN_LOWER + lower * ROT_TURN_UPPER;
    return (c - product) - ((first + both) + lower * ROT_TURN_LOWER);
#endif
}

/* An angle less whole turns, from -pi to pi. Beyond 2^50 turns the rounding error is more than a turn: the result is
 * any angle. */
ROT_INLINE double within_half_turn(double c) {
    const double n = (c * (1 / ROT_TURN_HIGH) + 0x1.8p52) - 0x1.8p52;
    const double near = less_turns(c, n) - n * ROT_TURN_LOW; /* or a turn from it, by the rounding of c (1 / 2 pi) */
    const double turn = near < -ROT_PI ? 1 : near > ROT_PI ? -1 : 0;
    const double r = (near + turn * ROT_TURN_HIGH) + turn * ROT_TURN_LOW;
    const double least = r < -ROT_PI ? -ROT_PI : r;
    return least > ROT_PI ? ROT_PI : least;
}

/* sin r and cos r - 1, |r| <= pi / 2: r w s(w) + r and w k(w) with w = r^2. s and k are Chebyshev interpolants; errors
 * of sin r and cos r 9e-10 (float), 3e-20 (double). */
typedef struct {
    real sin, cos_less_one;
} arc;

ROT_INLINE arc arc_of(real r) {
    const real w = r * r;
#if ROT_DOUBLE
    real s = -0x1.275efdfb3f368p-57, k = -0x1.5dc6b1f3dde1cp-53;
    s = s * w + 0x1.9507fd43389a8p-49, k = k * w + 0x1.ae4f727bd24e8p-45;
    s = s * w - 0x1.ae7ee3a0f8421p-41, k = k * w - 0x1.9396d38f74134p-37;
    s = s * w + 0x1.612460b69da84p-33, k = k * w + 0x1.1eed8e52c102ep-29;
    s = s * w - 0x1.ae64567e731ecp-26, k = k * w - 0x1.27e4fb7662fedp-22;
    s = s * w + 0x1.71de3a556b9b4p-19, k = k * w + 0x1.a01a01a017cbdp-16;
    s = s * w - 0x1.a01a01a01a00dp-13, k = k * w - 0x1.6c16c16c16bf5p-10;
    s = s * w + 0x1.1111111111111p-7, k = k * w + 0x1.5555555555555p-5;
    s = s * w - 0x1.5555555555555p-3, k = k * w - 0.5;
#else
    real s = -0x1.9db16p-26f, k = -0x1.1a5dbap-22f;
    s = s * w + 0x1.71968ep-19f, k = k * w + 0x1.9fa5fcp-16f;
    s = s * w - 0x1.a01906p-13f, k = k * w - 0x1.6c152ap-10f;
    s = s * w + 0x1.11111p-7f, k = k * w + 0x1.555552p-5f;
    s = s * w - 0x1.555556p-3f, k = k * w - 0.5f;
#endif
    const arc one = {r + r * (w * s), w * k};
    return one;
}

/* cos and sin of c / 2, |c| <= pi */
ROT_INLINE cplx half_unit_of(real c) {
    const arc one = arc_of(c / 2);
    const cplx half = {1 + one.cos_less_one, one.sin};
    return half;
}

/* An angle, in half turns, less whole half turns: |rest| <= 1/2, and `odd` has its last bit set if they are odd. Beyond
 * 2^22 half turns (float) or 2^51 their rounding error is a quarter or more: the rest is then 0. */
typedef struct {
    real rest, odd;
} half_turns;

ROT_INLINE half_turns half_turns_of(real x) {
    const real most = ROT_DOUBLE ? 0x1p51 : 0x1p22, shift = 3 * most, c = clamp(x, -most, most), odd = c + shift;
    const half_turns one = {c - (odd - shift), odd};
    return one;
}

/* x, or -x if the last bit of `odd` is set */
ROT_INLINE real signed_by(real odd, real x) {
    real_bits of_odd, of_x;
    memcpy(&of_odd, &odd, sizeof odd);
    memcpy(&of_x, &x, sizeof x);
    of_x ^= of_odd << (8 * sizeof x - 1);
    memcpy(&x, &of_x, sizeof x);
    return x;
}

/* (cos c, sin c), |c| <= pi */
ROT_INLINE cplx unit_of(real c) {
    const cplx half = half_unit_of(c), unit = {1 - 2 * half.im * half.im, 2 * half.im * half.re};
    return unit;
}

/* An angle in the state is a number and its rounding error: streams in float32 then do not drift. */
ROT_INLINE real angle_rest(double c) { return (real)(c - (double)(real)c); }

/* The pair x turned by the unit, and the gradient of the angle from the turned pair and its gradient. */
ROT_INLINE cplx turn_step(cplx unit, cplx x) {
    const cplx y = {unit.re * x.re - unit.im * x.im, unit.im * x.re + unit.re * x.im};
    return y;
}
ROT_INLINE real turn_angle_adjoint(cplx y, cplx dy) { return y.re * dy.im - y.im * dy.re; }

/* The places of the two numbers of pair i in a vector of N lanes: (2i, 2i+1), or (i, i + N/2) of halves. */
ROT_INLINE int64_t pair_first(int64_t i, bool halves) { return halves ? i : 2 * i; }
ROT_INLINE int64_t pair_apart(int64_t N, bool halves) { return halves ? N / 2 : 1; }

#endif
