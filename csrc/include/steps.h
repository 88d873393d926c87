/* One step of each recurrence, norm, gate and cell, and its adjoint, for host and device. Every formula is written
 * once, here; kernels loop over the data and call it. Elementwise functions are in vmath.h, AdamW in adamw.h, rows of
 * a mixer in mixer.h.
 *
 * Gradients of complex numbers are stored as dz = dL/dRe z + i dL/dIm z, so h = a b gives da = dh conj(b).
 */
#ifndef ROT_STEPS_H
#define ROT_STEPS_H

#include "vmath.h"

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

/* h_t = a_t h_{t-1} + x_t of a plane, also in kernels of real lanes. The adjoint of lanes, below, holds here too. */
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

/* A real 2 x 2 recurrence (oscillator.c):  h_t = M h_{t-1} + f u_t,  h = (z, x). Adjoint, with g_t the gradient that
 * reaches h_t:  g_{t-1} gets M^T g_t,   du_t = f . g_t,   dM += g_t h_{t-1}^T,   df += g_t u_t */
typedef struct {
    real z, x;
} oscillator_pair;
typedef struct {
    real zz, zx, xz, xx;
} oscillator_map;
ROT_INLINE oscillator_pair oscillator_step(oscillator_map m, oscillator_pair h_prev, oscillator_pair f, real u) {
    const oscillator_pair h = {m.zz * h_prev.z + (m.zx * h_prev.x + f.z * u),
                               m.xz * h_prev.z + (m.xx * h_prev.x + f.x * u)};
    return h;
}
ROT_INLINE oscillator_pair oscillator_step_adjoint(oscillator_map m, oscillator_pair g) {
    const oscillator_pair past = {m.zz * g.z + m.xz * g.x, m.zx * g.z + m.xx * g.x};
    return past;
}
ROT_INLINE real oscillator_input_adjoint(oscillator_pair g, oscillator_pair f) { return f.z * g.z + f.x * g.x; }

/* A window of w steps with a constant transition, as a truncated infinite impulse response; power = a^w (window.c). No
 * adjoint: for inference only.  h_t = a h_{t-1} + x_t - a^w x_{t-w} */
ROT_INLINE lane tiir_step(lane a, lane power, lane h_prev, lane x, lane oldest) {
    return lane_sub(scan_step(a, h_prev, x), lane_mul(power, oldest));
}
/* The same for a plane, also in kernels of real lanes. */
ROT_INLINE cplx plane_tiir_step(cplx a, cplx power, cplx h_prev, cplx x, cplx oldest) {
    const cplx minus = {-power.re, -power.im};
    return cplx_fma(minus, oldest, plane_step(a, h_prev, x));
}

/* One generalised reflection  y = v - 2 alpha s w,  s = w . v, |w| = 1; with g the gradient of y and q = w . g:
 * dv is the same step on g;  dalpha = -2 s q;  dw less its part along w = -2 alpha (s (g - q w) + q (v - s w)) */
ROT_INLINE real reflect_step(real v, real w, real alpha, real s) { return v - 2 * alpha * s * w; }
ROT_INLINE real reflect_gain_adjoint(real s, real q) { return -2 * s * q; }
ROT_INLINE real reflect_direction_adjoint(real v, real g, real w, real alpha, real s, real q) {
    return -2 * alpha * (s * (g - q * w) + q * (v - s * w));
}

/* Scales the input of a Fixed-Point RNN; each step in depth is then a contraction (Theorem 3.2 of the paper, for lam >=
 * 0; a scan with lam multiplies its input by 1 / (1 - |lam|) at most). It is its own adjoint. Without `scaled` the
 * input is unchanged. */
ROT_INLINE real depth_input(real lam, real x, bool scaled) { return scaled ? (1 - ROT_ABS(lam)) * x : x; }

/* One damped step towards a fixed point y = f(y). RESIDUAL_FLOOR keeps |y - f| / |f| finite if f is zero. */
ROT_INLINE real relax_step(real y, real f, real s) { return s * f + (1 - s) * y; }
#define RESIDUAL_FLOOR 1e-8

/* log2 of the transition exp(delta A) of a head of Mamba-2 (ssd.c). In double, because the decay over some steps is a
 * difference of two sums of these numbers, which may be large. Bounded to keep sums finite: 2^-4096 is 0, and 2^4096
 * infinite. */
#define SSD_LARGEST 4096
#define LOG2_OF_E   0x1.71547652b82fep0
ROT_INLINE double ssd_exponent(real delta, real A) {
    const double x = (double)delta * (double)A * LOG2_OF_E;
    return x < -SSD_LARGEST ? -SSD_LARGEST : x > SSD_LARGEST ? SSD_LARGEST : x;
}

/* The transition a = 2 exp(delta A) - 1, which may be negative. Its size is at least 2^-60: less than the rounding of
 * any sum that it enters, and its logarithm has a finite value and derivative. */
ROT_INLINE double ssd_signed(real delta, real A) {
    const double x = ssd_exponent(delta, A), a = 2 * exp2(x < 1000 ? x : 1000) - 1;
    return fabs(a) < 0x1p-60 ? (a < 0 ? -0x1p-60 : 0x1p-60) : a;
}
/* log2 |a| of either transition, and d log |a| / d (delta A). */
ROT_INLINE double ssd_size(real delta, real A, bool negative) {
    return negative ? log2(fabs(ssd_signed(delta, A))) : ssd_exponent(delta, A);
}
ROT_INLINE double ssd_slope(real delta, real A, bool negative) {
    if (!negative) return 1;
    const double a = ssd_signed(delta, A);
    return (a + 1) / a;
}

/* Channel norm:  y = gain (x - center) + offset. Its adjoint through the statistics has the same form in x:
 *   dx = gain dy + slope (x - center) + shift */
ROT_INLINE real channel_norm(real x, real center, real gain, real offset) { return gain * (x - center) + offset; }
ROT_INLINE real channel_norm_adjoint(real direct, real x, real center, real slope, real shift) {
    return direct + channel_norm(x, center, slope, shift);
}

/* Gated linear unit (Dauphin et al. 2017):  y = value s(gate)
 *   dvalue = dy s(gate)   dgate = dy value s(gate) s(-gate) */
typedef struct {
    real value, gate;
} glu_parts;

ROT_INLINE real glu(real value, real gate) { return vmath_gated(value, gate); }
ROT_INLINE glu_parts glu_adjoint(real dy, real value, real gate) {
    const sigmoid_parts s = vmath_sigmoid_parts(gate);
    const glu_parts d = {dy * s.on, dy * value * (s.on * s.off)};
    return d;
}

/* SwiGLU (Shazeer 2020):  y = value SiLU(gate), the unit above for value * gate; gate gets both gradients
 *   dvalue = dy SiLU(gate)   dgate = dy value (s(gate) + gate s(gate) s(-gate)) */
ROT_INLINE real swiglu(real value, real gate) { return glu(value * gate, gate); }
ROT_INLINE glu_parts swiglu_adjoint(real dy, real value, real gate) {
    const glu_parts of_product = glu_adjoint(dy, value * gate, gate);
    const glu_parts d = {of_product.value * gate, of_product.gate + of_product.value * value};
    return d;
}

/* LSTM (Hochreiter and Schmidhuber 1997, Gers et al. 2000), with z = W x + U h_{t-1} for its gates:
 *
 *   i, f, o = s(z_i), s(z_f), s(z_o)   g = tanh(z_g)   c_t = f c_{t-1} + i g   h_t = o tanh(c_t)
 *
 * Adjoint, with dh the total gradient of h_t and q_{t+1} the gradient that reaches c_t from c_{t+1}:
 *
 *   dc = q_{t+1} + dh o (1 - tanh(c_t)^2)   q_t = dc f
 *   di = dc g   df = dc c_{t-1}   dg = dc i   do = dh tanh(c_t),   then dz by each function's adjoint */
typedef struct {
    real i, f, g, o;
} lstm_gates;

ROT_INLINE lstm_gates lstm_gates_of(lstm_gates z) {
    const lstm_gates gates = {sigmoid(z.i), sigmoid(z.f), vmath_tanh(z.g), sigmoid(z.o)};
    return gates;
}
ROT_INLINE real lstm_cell(lstm_gates at, real c_prev) { return at.f * c_prev + at.i * at.g; }
ROT_INLINE real lstm_output(lstm_gates at, real c) { return at.o * vmath_tanh(c); }

typedef struct {
    lstm_gates dz;
    real q;
} lstm_parts;

ROT_INLINE lstm_parts lstm_adjoint(lstm_gates at, real c, real c_prev, real dh, real q_next) {
    const real out = vmath_tanh(c), dc = q_next + tanh_adjoint(dh * at.o, out);
    const lstm_parts d = {{sigmoid_adjoint_by_y(dc * at.g, at.i), sigmoid_adjoint_by_y(dc * c_prev, at.f),
                           tanh_adjoint(dc * at.i, at.g), sigmoid_adjoint_by_y(dh * out, at.o)},
                          dc * at.f};
    return d;
}

/* GRU (Cho et al. 2014) with PyTorch's reset, after the product: x and u = U h_{t-1} + b for its gates r, z, n:
 *
 *   r, z = s(x_r + u_r), s(x_z + u_z)   n = tanh(x_n + r u_n)   h_t = (1 - z) n + z h_{t-1}
 *
 * `u` is u_n. Adjoint, with dh the total gradient of h_t: gradients of x, of u_n in `u`, and in `h` of h_{t-1} without
 * the product:
 *
 *   dz = dh (h_{t-1} - n)   dn = dh (1 - z)   dx_n = dn (1 - n^2)   du_n = dx_n r   dr = dx_n u_n   dh z */
typedef struct {
    real r, z, n, u;
} gru_gates;

ROT_INLINE gru_gates gru_gates_of(real r, real z, real n, real u) {
    const real reset = sigmoid(r);
    const gru_gates gates = {reset, sigmoid(z), vmath_tanh(n + reset * u), u};
    return gates;
}
ROT_INLINE real gru_output(gru_gates at, real h_prev) { return (1 - at.z) * at.n + at.z * h_prev; }

typedef struct {
    gru_gates dx;
    real h;
} gru_parts;

ROT_INLINE gru_parts gru_adjoint(gru_gates at, real h_prev, real dh) {
    const real dn = tanh_adjoint(dh * (1 - at.z), at.n);
    const gru_parts d = {
        {sigmoid_adjoint_by_y(dn * at.u, at.r), sigmoid_adjoint_by_y(dh * (h_prev - at.n), at.z), dn, dn * at.r},
        dh * at.z};
    return d;
}

#define number   real
#define OF(name) name
#include "number_steps.h"
#undef number
#undef OF

/* Exponents of 2 for the exponential gates (Beck et al. 2024, mlstm.c), in double, because differences of large ones
 * matter: of a gate, from its logarithm, bounded to keep sums finite; and of the level m of a scaled state. */
#define GATE_LARGEST 65536
ROT_INLINE double level_exponent(real m) { return (double)m * LOG2_OF_E; }
ROT_INLINE real level_of_exponent(double exponent) { return (real)(exponent / LOG2_OF_E); }
ROT_INLINE double bounded(double x, double largest) { return x < -largest ? -largest : x > largest ? largest : x; }
ROT_INLINE double gate_exponent(real log_gate) { return bounded(level_exponent(log_gate), GATE_LARGEST); }

/* The mLSTM's denominator max(|n . q|, 1) is max(|n . q|, e^{-m}) for numbers scaled by e^{-m}. e^{-m} is at least the
 * root of the smallest number: this avoids 0 / 0 and keeps gradients finite. */
#define ROOT_OF_SMALLEST ((real)(ROT_DOUBLE ? 0x1p-511 : 0x1p-63))
ROT_INLINE real least_denominator(double exponent) {
    const real one = exp2_of((real)-exponent);
    return one < ROOT_OF_SMALLEST ? ROOT_OF_SMALLEST : one;
}
ROT_INLINE real denominator_of(real dot, real least) { return ROT_ABS(dot) > least ? ROT_ABS(dot) : least; }

/* sLSTM (Beck et al. 2024, equations 8 to 17), raw the gates before their functions, with g the paper's z:
 *
 *   i = exp(raw.i)   f = s(raw.f) or exp(raw.f)   g = tanh(raw.g)   o = s(raw.o)
 *   c_t = f c_{t-1} + i g    n_t = f n_{t-1} + i    h_t = o c_t / n_t
 *
 * where c and n are stored scaled by e^{-m}, and so are i and f, with the level m_t = max(log f + m_{t-1}, log i). n =
 * 0 before the first step, and only there: there is no past. log i and log f are bounded to keep the rounding error of
 * a level small beside 1, because it changes the scale of the whole state. */
typedef struct {
    real c, n, m;
} slstm_memory;

ROT_INLINE double slstm_log_gate(real x) { return bounded((double)x, GATE_LARGEST / LOG2_OF_E); }
ROT_INLINE double slstm_past(real raw_f, slstm_memory before, bool exponential) {
    const double log_f = slstm_log_gate(exponential ? raw_f : -softplus(-raw_f));
    return before.n == 0 ? -(double)INFINITY : log_f + (double)before.m;
}
ROT_INLINE bool slstm_keeps_level(real raw_i, double past) { return past > slstm_log_gate(raw_i); }
ROT_INLINE real slstm_level(real raw_i, double past) {
    return (real)(slstm_keeps_level(raw_i, past) ? past : slstm_log_gate(raw_i));
}
ROT_INLINE lstm_gates slstm_gates_of(lstm_gates raw, double past, real level) {
    const lstm_gates gates = {vmath_exp((real)(slstm_log_gate(raw.i) - (double)level)),
                              vmath_exp((real)(past - (double)level)), vmath_tanh(raw.g), sigmoid(raw.o)};
    return gates;
}
ROT_INLINE slstm_memory slstm_step(real *h, lstm_gates raw, slstm_memory before, bool exponential) {
    const double past = slstm_past(raw.f, before, exponential);
    const real level = slstm_level(raw.i, past);
    const lstm_gates at = slstm_gates_of(raw, past, level);
    const slstm_memory now = {at.f * before.c + at.i * at.g, at.f * before.n + at.i, level};
    *h = at.o * (now.c / now.n);
    return now;
}

/* Its adjoint, with dh the total gradient of h_t, and `later` the gradients that reach the scaled c_t and n_t and the
 * level m_t from later steps (m_t: only from the final state, because h does not depend on it; mlstm.c):
 *
 *   dc = later.c + dh o / n_t    dn = later.n - dh o c_t / n_t^2
 *   dlog i = i (dc g + dn)    dlog f = f (dc c_{t-1} + dn n_{t-1})    dg = dc i    do = dh c_t / n_t
 *   and back to the step before f dc, f dn;  m's goes to the gate that set it, or to log f and on to m_{t-1} */
typedef struct {
    lstm_gates draw;
    slstm_memory earlier;
} slstm_parts;

ROT_INLINE slstm_parts slstm_adjoint(lstm_gates raw, slstm_memory now, slstm_memory before, real dh, slstm_memory later,
                                     bool exponential) {
    const double past = slstm_past(raw.f, before, exponential);
    const lstm_gates at = slstm_gates_of(raw, past, now.m);
    const real mean = now.c / now.n, share = dh * at.o / now.n;
    const real dc = later.c + share, dn = later.n - share * mean;
    const bool old = slstm_keeps_level(raw.i, past);
    const real dlog_f = at.f * (dc * before.c + dn * before.n) + (old ? later.m : 0);
    const slstm_parts d = {{at.i * (dc * at.g + dn) + (old ? 0 : later.m),
                            exponential ? dlog_f : softplus_adjoint(dlog_f, -raw.f), tanh_adjoint(dc * at.i, at.g),
                            sigmoid_adjoint(dh * mean, raw.o)},
                           {at.f * dc, at.f * dn, old ? later.m : 0}};
    return d;
}

/* The target t_c of a class in a row: its share times its weight, where a part `smoothing` of the share is spread
 * evenly over all C classes (Szegedy et al. 2016, section 7). Cross-entropy, with W the sum of t_c and log S + m the
 * log-sum of e^(z_c):
 *
 *   loss = sum_c t_c (log S + m - z_c)     dz_c = W e^(z_c - m) / S - t_c */
ROT_INLINE double entropy_target(double share, double weight, double smoothing, int64_t C) {
    return weight * ((1 - smoothing) * share + smoothing / (double)C);
}
ROT_INLINE double entropy_adjoint(double whole, double shifted, double sum, double target) {
    return whole * (shifted / sum) - target;
}

#endif
