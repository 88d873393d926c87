/* Steps that the CPU runs on a register of channels at a time, and a device on one channel per thread.
 *
 * A template without an include guard: steps.h includes it for `real`, and vector.h for `vec`, a register of them.
 * `number` is that type, and OF(bank_step) the name of its function: bank_step, bank_step_vec. A value that all
 * channels share is a `real`.
 */
#ifndef number
#include "steps.h"
#else

/* S4D's bank of recurrences, one state n of a channel, with the real input u:
 *
 *   h_t = a h_{t-1} + u_t      y_t = Re sum_n c_n h_{n,t} + skip u_t
 *
 * Adjoint, with q_{t+1} the gradient that reaches h_t from later steps:
 *
 *   g_t = conj(c) dy_t + q_{t+1}      du_t = Re sum_n g_{n,t} + skip dy_t      q_t = conj(a) g_t
 *   da += g_t conj(h_{t-1})           dc += dy_t conj(h_t) */
ROT_ALWAYS_INLINE OF(cplx) OF(bank_step)(OF(cplx) a, OF(cplx) h_prev, number u) {
    const OF(cplx) h = {a.re * h_prev.re + (u - a.im * h_prev.im), a.re * h_prev.im + a.im * h_prev.re};
    return h;
}
/* A state's term of y. */
ROT_ALWAYS_INLINE number OF(bank_output)(OF(cplx) c, OF(cplx) h) { return c.re * h.re - c.im * h.im; }

ROT_ALWAYS_INLINE OF(cplx) OF(bank_state_adjoint)(OF(cplx) c, OF(cplx) q_next, number dy) {
    const OF(cplx) g = {c.re * dy + q_next.re, q_next.im - c.im * dy};
    return g;
}
ROT_ALWAYS_INLINE OF(cplx) OF(bank_past_adjoint)(OF(cplx) a, OF(cplx) g) {
    const OF(cplx) q = {a.re * g.re + a.im * g.im, a.re * g.im - a.im * g.re};
    return q;
}
ROT_ALWAYS_INLINE OF(cplx) OF(bank_transition_adjoint)(OF(cplx) g, OF(cplx) h_prev, OF(cplx) da) {
    da.re += g.re * h_prev.re + g.im * h_prev.im;
    da.im += g.im * h_prev.re - g.re * h_prev.im;
    return da;
}
ROT_ALWAYS_INLINE OF(cplx) OF(bank_output_adjoint)(number dy, OF(cplx) h, OF(cplx) dc) {
    dc.re += dy * h.re;
    dc.im -= dy * h.im;
    return dc;
}

/* S4's bank, whose states also feed back through one real number s for each channel (dplr_bank.c):
 *
 *   s_t = Re sum_n q_n h_{n,t-1}      h_t = a h_{t-1} + p s_t + gain u_t      y_t = Re sum_n c_n h_{n,t} + skip u_t
 *
 * Adjoint, with r_{t+1} the gradient that reaches h_t from later steps; steps of the bank above do the rest:
 *
 *   g_t = conj(c) dy_t + r_{t+1}     r_t = conj(a) g_t + conj(q) ds_t
 *   du_t = Re sum_n conj(gain_n) g_{n,t} + skip dy_t     ds_t = Re sum_n conj(p_n) g_{n,t}
 *   da += g_t conj(h_{t-1})   dp += g_t s_t   dgain += g_t u_t
 *   dc += dy_t conj(h_t)   dq += ds_t conj(h_{t-1}) */
ROT_ALWAYS_INLINE OF(cplx) OF(dplr_step)(OF(cplx) a, OF(cplx) p, OF(cplx) gain, OF(cplx) h_prev, number s, number u) {
    const OF(cplx) h = {a.re * h_prev.re + (gain.re * u + (p.re * s - a.im * h_prev.im)),
                        a.re * h_prev.im + (gain.im * u + (p.im * s + a.im * h_prev.re))};
    return h;
}
/* sum + Re c h, and the adjoint of a real input: sum + Re conj(gain) g. */
ROT_ALWAYS_INLINE number OF(dplr_output)(number sum, OF(cplx) c, OF(cplx) h) {
    return (sum + c.re * h.re) - c.im * h.im;
}
ROT_ALWAYS_INLINE number OF(dplr_input_adjoint)(number sum, OF(cplx) gain, OF(cplx) g) {
    return (sum + gain.re * g.re) + gain.im * g.im;
}
/* sum + g u: a further input of a state, and the adjoint of a gain. */
ROT_ALWAYS_INLINE OF(cplx) OF(dplr_product)(OF(cplx) sum, OF(cplx) g, number u) {
    sum.re += g.re * u;
    sum.im += g.im * u;
    return sum;
}

/* 2^x = 2^n 2^f with n = round(x), to a few units in the last place, in half the time of vmath_exp. Infinite from
 * 2^127.5 (float) or 2^1023.5 (double) on, zero below 2^-126.5 or 2^-1022.5. q is the Chebyshev interpolant of
 * (2^f - 1) / f on |f| <= 1/2: relative error of 2^f 9e-9 (float), 2e-17 (double). */
ROT_ALWAYS_INLINE number OF(exp2_of)(number x) {
    const number clamped = OF(clamp)(x, ROT_EXP2_LOW, ROT_EXP2_HIGH), shifted = clamped + ROT_SHIFT;
    const number f = clamped - (shifted - ROT_SHIFT);
#if ROT_DOUBLE
    number q = f * 0x1.e9d3fe3952179p-32 + 0x1.e6063f7217bc6p-28;
    q = q * f + 0x1.b524fae627834p-24;
    q = q * f + 0x1.62bfd47773353p-20;
    q = q * f + 0x1.ffcbfc670dcd4p-17;
    q = q * f + 0x1.430913096fd9fp-13;
    q = q * f + 0x1.5d87fe78a5276p-10;
    q = q * f + 0x1.3b2ab6fba1ddap-7;
    q = q * f + 0x1.c6b08d704a0c2p-5;
    q = q * f + 0x1.ebfbdff82c598p-3;
    q = q * f + 0x1.62e42fefa39efp-1;
#else
    number q = f * 0x1.44138ap-13f + 0x1.5f0890p-10f;
    q = q * f + 0x1.3b2a54p-7f;
    q = q * f + 0x1.c6af6cp-5f;
    q = q * f + 0x1.ebfbe0p-3f;
    q = q * f + 0x1.62e430p-1f;
#endif
    return OF(power_of_last_bits)(shifted) * (f * q + 1);
}

/* The selective scan, one state s of a channel, with e_t = exp(delta_t A_s) and u_t = delta_t x_t (steps.h), and the
 * transition a_t = e_t, or 2 e_t - 1 if it may be `negative` (Grazzi et al. 2024):
 *
 *   h_t = a_t h_{t-1} + u_t B_{t,s}      y_t = sum_s h_{s,t} C_{t,s} + skip x_t
 *
 * in two parts, because backward needs the first alone: moved_t = a_t h_{t-1}, then h_t = moved_t + u_t B_{t,s}.
 * Adjoint, with q_{t+1} the gradient that reaches h_t from the next step:
 *
 *   g_t = q_{t+1} + dy_t C_{t,s}    q_t = a_t g_t    du_t += g_t B_{t,s}    dB_{t,s} += g_t u_t    dC_{t,s} += dy_t h_t
 *   and with the gradient of the exponent, p_t = g_t e_t h_{t-1} = g_t moved_t, or g_t 2 e_t h_{t-1}:
 *   ddelta_t += p_t A_s    dA_s += p_t delta_t
 *
 * The caller sums over states, channels and steps. */
ROT_ALWAYS_INLINE number OF(selective_decay)(number delta, number A) { return OF(exp2_of)(delta * (A * ROT_LOG2E)); }
ROT_ALWAYS_INLINE number OF(selective_transition)(number e, bool negative) {
    if (negative) e = 2 * e - 1;
    return e;
}
ROT_ALWAYS_INLINE number OF(selective_move)(number e, number h_prev, bool negative) {
    return OF(selective_transition)(e, negative) * h_prev;
}
/* u = delta x, and its adjoint: ddelta += x du, dx = delta du + skip dy */
ROT_ALWAYS_INLINE number OF(selective_input)(number delta, number x) { return delta * x; }
ROT_ALWAYS_INLINE number OF(selective_step)(number moved, number u, real b) { return moved + u * b; }
ROT_ALWAYS_INLINE number OF(selective_output)(number y, number h, real c) { return y + h * c; }

ROT_ALWAYS_INLINE number OF(selective_state_adjoint)(number q_next, number dy, real c) { return q_next + dy * c; }
ROT_ALWAYS_INLINE number OF(selective_past_adjoint)(number e, number g, bool negative) {
    return g * OF(selective_transition)(e, negative);
}
ROT_ALWAYS_INLINE number OF(selective_input_adjoint)(number du, number g, real b) { return du + g * b; }
/* The gradient p of the exponent delta A; its terms are ddelta += p A and dA += p delta. Only one of moved and h_prev
 * is used. */
ROT_ALWAYS_INLINE number OF(selective_exponent_adjoint)(number g, number moved, number e, number h_prev,
                                                        bool negative) {
    if (negative) moved = 2 * e * h_prev;
    return g * moved;
}

/* One Householder step of the delta rule, for one value channel with state h (keys). The decay a is one number, or one
 * for each key:
 *
 *   error = v - a k . h_prev      u = beta error      h_s = a h_prev_s + k_s u      y = q . h
 *
 * Adjoint, with g the gradient of h, which includes q dy from y; g_prev is the gradient of h_prev:
 *
 *   du = k . g      dv = beta du      dbeta += du error      dq_s += h_s dy
 *   dk_s += g_s u - a h_prev_s dv,   m_s = g_s - k_s dv  of  a h_prev_s,   da += m_s h_prev_s,   g_prev_s = a m_s
 *
 * In general the state is read at a key e, and the value read is erased at a key f:
 *
 *   p = e . h_prev      error = v - p      and with f  error = v,  h_s <- h_s - f_s p
 *
 * where dv is also -dp, or with f  dp = -f . g  and  df_s -= g_s p;  and with e
 *
 *   dk_s += g_s u      de_s += h_prev_s dp      da += g_s h_prev_s      g_prev_s = a g_s + e_s dp
 *
 * The caller sums over keys, channels and steps. */
ROT_ALWAYS_INLINE number OF(delta_error)(number v, real a, number product) { return v - a * product; }
ROT_ALWAYS_INLINE number OF(delta_step)(number h_prev, real a, real k, number u) { return a * h_prev + k * u; }
ROT_ALWAYS_INLINE number OF(delta_erase)(number h, real f, number p) { return h - f * p; }
ROT_ALWAYS_INLINE number OF(delta_output_adjoint)(number g, number dy, real q) { return g + q * dy; }
ROT_ALWAYS_INLINE number OF(delta_key_adjoint)(number g, number u, number h_prev, real a, number dv) {
    return g * u - a * h_prev * dv;
}
ROT_ALWAYS_INLINE number OF(delta_moved_adjoint)(number g, real k, number dv) { return g - k * dv; }
ROT_ALWAYS_INLINE number OF(delta_past_adjoint)(number g, real a, real e, number dp) { return a * g + e * dp; }

/* Layer norm (Ba et al. 2016) of a row of D channels, <> the mean over them:
 *
 *   xhat = (x - mean) rstd     y = xhat scale + bias
 *
 * and its adjoint with g = dy scale:  dx = rstd (g - <g> - xhat <g xhat>),  dscale += dy xhat,  dbias += dy. */
ROT_ALWAYS_INLINE number OF(layer_norm_xhat)(number x, real mean, real rstd) { return (x - mean) * rstd; }
ROT_ALWAYS_INLINE number OF(layer_norm_step)(number xhat, number scale, number bias) { return xhat * scale + bias; }
ROT_ALWAYS_INLINE number OF(layer_norm_step_adjoint)(number g, number xhat, real rstd, real mean_g, real mean_g_xhat) {
    return rstd * (g - mean_g - xhat * mean_g_xhat);
}

#endif
