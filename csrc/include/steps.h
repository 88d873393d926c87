/* One step of each recurrence, and its adjoint: the formulas, once, for host and device.
 *
 * Gradients of complex numbers are stored as dz = dL/dRe z + i dL/dIm z, so h = a b gives da = dh conj(b).
 */
#ifndef ROT_STEPS_H
#define ROT_STEPS_H

#include "real.h"

#ifdef __CUDACC__
#define ROT_INLINE static __host__ __device__ __forceinline__
#else
#define ROT_INLINE static inline
#endif

/* a*b + c */
ROT_INLINE cplx cplx_fma(cplx a, cplx b, cplx c) {
    cplx r = {a.re * b.re - a.im * b.im + c.re, a.re * b.im + a.im * b.re + c.im};
    return r;
}
/* conj(a)*b + c */
ROT_INLINE cplx cplx_fma_conj(cplx a, cplx b, cplx c) {
    cplx r = {a.re * b.re + a.im * b.im + c.re, a.re * b.im - a.im * b.re + c.im};
    return r;
}
ROT_INLINE cplx cplx_add(cplx a, cplx b) {
    cplx r = {a.re + b.re, a.im + b.im};
    return r;
}

/* Of a plane, in kernels of real lanes too:  h_t = a_t h_{t-1} + x_t  and its adjoint, as of lanes below. */
ROT_INLINE cplx plane_step(cplx a, cplx h_prev, cplx x) { return cplx_fma(a, h_prev, x); }
ROT_INLINE cplx plane_step_adjoint(cplx a_next, cplx g_next, cplx dh) { return cplx_fma_conj(a_next, g_next, dh); }
ROT_INLINE cplx plane_transition_adjoint(cplx g, cplx h_prev, cplx da) { return cplx_fma_conj(h_prev, g, da); }

/* h_t = a_t h_{t-1} + x_t
 * g_t = dh_t + conj(a_{t+1}) g_{t+1};   dx_t = g_t;   da_t = g_t conj(h_{t-1});   dh0 = conj(a_0) g_0 */
#if ROT_COMPLEX
ROT_INLINE lane lane_fma_conj(lane a, lane b, lane c) { return cplx_fma_conj(a, b, c); }
ROT_INLINE lane lane_add(lane a, lane b) { return cplx_add(a, b); }
ROT_INLINE lane lane_sub(lane a, lane b) {
    lane r = {a.re - b.re, a.im - b.im};
    return r;
}
ROT_INLINE lane lane_mul(lane a, lane b) {
    lane r = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return r;
}
ROT_INLINE lane lane_conj_mul(lane a, lane b) {
    lane r = {a.re * b.re + a.im * b.im, a.re * b.im - a.im * b.re};
    return r;
}
ROT_INLINE lane scan_step(lane a, lane h_prev, lane x) { return plane_step(a, h_prev, x); }
#else
ROT_INLINE lane lane_fma_conj(lane a, lane b, lane c) { return a * b + c; }
ROT_INLINE lane lane_add(lane a, lane b) { return a + b; }
ROT_INLINE lane lane_sub(lane a, lane b) { return a - b; }
ROT_INLINE lane lane_mul(lane a, lane b) { return a * b; }
ROT_INLINE lane lane_conj_mul(lane a, lane b) { return a * b; }
ROT_INLINE lane scan_step(lane a, lane h_prev, lane x) { return a * h_prev + x; }
#endif
ROT_INLINE lane scan_step_adjoint(lane a_next, lane g_next, lane dh) { return lane_fma_conj(a_next, g_next, dh); }
ROT_INLINE lane scan_transition_adjoint(lane g, lane h_prev, lane da) { return lane_fma_conj(h_prev, g, da); }

/* One generalised reflection  y = v - 2 alpha s w,  s = w . v, |w| = 1; with g the gradient of y and q = w . g:
 * dv is the same step on g;  dalpha = -2 s q;  dw less its part along w = -2 alpha (s (g - q w) + q (v - s w)) */
ROT_INLINE real reflect_step(real v, real w, real alpha, real s) { return v - 2 * alpha * s * w; }
ROT_INLINE real reflect_gain_adjoint(real s, real q) { return -2 * s * q; }
ROT_INLINE real reflect_direction_adjoint(real v, real g, real w, real alpha, real s, real q) {
    return -2 * alpha * (s * (g - q * w) + q * (v - s * w));
}

/* What scales the input of a Fixed-Point RNN so that each step in depth contracts (its Theorem 3.2). */
ROT_INLINE real depth_gain(real lam) { return 1 - lam; }

/* One damped step towards a fixed point y = f(y), and what keeps the residual |y - f| / |f| finite at zero. */
ROT_INLINE real relax_step(real y, real f, real s) { return s * f + (1 - s) * y; }
#define RESIDUAL_FLOOR 1e-8

#endif
