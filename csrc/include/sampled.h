/* One lane of x' = lambda x + u over a time sigma, for host and device: the transition a and the gain of the input, as
 * functions of lambda and sigma, and their adjoint. With z = lambda sigma,
 *
 *   zoh           a = e^z                        gain = (e^z - 1) / lambda       u is constant meanwhile
 *   bilinear      a = (1 + z/2) / (1 - z/2)      gain = sigma / (1 - z/2)        trapezoidal rule
 *   first_order   a = e^z                        gain = sigma
 *
 * e^z - 1 is accurate near zero. Angles are counted in half turns. Loops over lanes vectorise. Gradients are
 * dL/dRe + i dL/dIm. */
#ifndef ROT_SAMPLED_H
#define ROT_SAMPLED_H

#include "kernels.h"
#include "rotation.h"
#include "steps.h"

/* `inverse` is 1 / lambda, zero for lambda = 0, where the gain is sigma: `still` is then `step`, else 0. An interval of
 * 1 is the time `step`; the logarithm of the transition is then `decay`, and its angle `turns` half turns. */
typedef struct {
    cplx lam, inverse;
    real still, step, decay, turns;
} sampled_lane;

typedef struct {
    cplx a, gain;
} sampled_terms;

typedef struct {
    cplx dlam;
    real dsigma;
} sampled_adjoints;

ROT_INLINE cplx cplx_scaled(real s, cplx z) {
    const cplx r = {s * z.re, s * z.im};
    return r;
}
ROT_INLINE cplx cplx_product(cplx a, cplx b) {
    const cplx r = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return r;
}
/* conj(a) b */
ROT_INLINE cplx cplx_conj_product(cplx a, cplx b) {
    const cplx r = {a.re * b.re + a.im * b.im, a.re * b.im - a.im * b.re};
    return r;
}

ROT_INLINE sampled_lane sampled_lane_of(cplx lam, real step) {
    const double re = (double)lam.re, im = (double)lam.im, larger = re * re > im * im ? re : im;
    const bool still = larger == 0;
    const double u = still ? 0 : re / larger, v = still ? 0 : im / larger, norm = still ? 1 : (u * u + v * v) * larger;
    const sampled_lane one = {lam,
                              {(real)(u / norm), (real)(-v / norm)},
                              still ? step : (real)0,
                              step,
                              (real)(re * (double)step),
                              (real)(im * (double)step / ROT_PI)};
    return one;
}

/* 1 / (1 - z/2), also where the square of z overflows */
ROT_INLINE cplx sampled_implicit(cplx z) {
    const real re = 1 - z.re / 2, im = -z.im / 2, size = ROT_ABS(re) > ROT_ABS(im) ? ROT_ABS(re) : ROT_ABS(im);
    const real u = re / size, v = im / size, norm = (u * u + v * v) * size;
    const cplx w = {u / norm, -v / norm};
    return w;
}

ROT_ALWAYS_INLINE sampled_terms sampled_terms_of(const int method, sampled_lane k, real dt) {
    const real s = k.step * dt;
    sampled_terms t;
    if (method == SAMPLING_BILINEAR) {
        const cplx z = cplx_scaled(s, k.lam), more = {1 + z.re / 2, z.im / 2}, w = sampled_implicit(z);
        t.a = cplx_product(more, w), t.gain = cplx_scaled(s, w);
        return t;
    }
    const exp_parts e = vmath_parts(k.decay * dt); /* e^z = size e^(ir), size = +-e^(Re z) */
    const half_turns angle = half_turns_of(k.turns * dt);
    const arc r = arc_of((real)ROT_PI * angle.rest);
    const real half = signed_by(angle.odd, e.half), size = 2 * (half + half * e.p);
    t.a.re = size + size * r.cos_less_one, t.a.im = size * r.sin;
    if (method == SAMPLING_ZOH) {
        const real grown = 2 * (half * e.p + (half - (real)0.5));
        const cplx less_one = {grown + size * r.cos_less_one, t.a.im};
        t.gain = cplx_product(less_one, k.inverse);
        t.gain.re += k.still * dt;
    } else {
        t.gain.re = s, t.gain.im = 0;
    }
    return t;
}

/* ((e^z - 1) / z)' = sum_k (k+1)/(k+2)! z^k: at |z| <= 1/2 the next term is below the rounding of the first */
ROT_ALWAYS_INLINE cplx sampled_slope(cplx z) {
    enum { TERMS = ROT_DOUBLE ? 16 : 9 };
    cplx sum = {1, 0};
    for (int k = TERMS - 2; k >= 0; k--) {
        const cplx one = {1, 0};
        sum = cplx_fma(cplx_scaled((real)(k + 2) / (real)((k + 1) * (k + 3)), z), sum, one);
    }
    return cplx_scaled((real)0.5, sum);
}

/* From the terms of the forward step and the gradients of a and gain. */
ROT_ALWAYS_INLINE sampled_adjoints sampled_adjoint(const int method, sampled_lane k, real dt, sampled_terms t, cplx da,
                                                   cplx dgain) {
    const real s = k.step * dt;
    const cplx z = cplx_scaled(s, k.lam);
    cplx dz, through_a, slope; /* dz: of a; through_a = s dz; slope: of the gain, by lambda */
    sampled_adjoints r;
    if (method == SAMPLING_BILINEAR) {
        const cplx w = sampled_implicit(z), square = cplx_product(w, w), gain = cplx_scaled(s, w);
        dz = cplx_conj_product(square, da);
        through_a = cplx_conj_product(cplx_product(gain, w), da); /* s w^2, where w^2 may be too small */
        slope = cplx_scaled((real)0.5, cplx_product(gain, gain)); /* s^2 w^2 / 2, where s^2 may be too large */
        r.dsigma = cplx_conj_product(square, dgain).re;
    } else if (method == SAMPLING_ZOH) {
        const bool near_zero = z.re * z.re + z.im * z.im < (real)0.25;
        const cplx small = {near_zero ? z.re : 0, near_zero ? z.im : 0};
        const cplx difference = {s * t.a.re - t.gain.re, s * t.a.im - t.gain.im};
        const cplx series = cplx_scaled(s * s, sampled_slope(small)), away = cplx_product(difference, k.inverse);
        slope.re = near_zero ? series.re : away.re, slope.im = near_zero ? series.im : away.im;
        dz = cplx_conj_product(t.a, da);
        through_a = cplx_scaled(s, dz);
        r.dsigma = cplx_conj_product(t.a, dgain).re;
    } else {
        slope.re = slope.im = 0;
        dz = cplx_conj_product(t.a, da);
        through_a = cplx_scaled(s, dz);
        r.dsigma = dgain.re;
    }
    r.dsigma += cplx_conj_product(k.lam, dz).re;
    r.dlam = cplx_fma_conj(slope, dgain, through_a);
    return r;
}

#endif
