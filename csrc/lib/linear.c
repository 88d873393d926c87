/* The layers with a constant transition, diagonal: LRU, S5, RotRNN, RopeMemory and the bank of S4D; or diagonal plus
 * rank one, the banks of S4 and Liquid-S4.
 *
 * Their parameters are folded as in python/rotrnn/nn/layers/, but in double, and with planes stored as (2, N): all real
 * parts, then all imaginary parts.
 */
#include <math.h>
#include <string.h>

#include "build.h"
#include "choose.h"
#include "kernels.h"

#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif

static exact scaled(double s, exact z) { return (exact){s * z.re, s * z.im}; }

static exact quotient(exact a, exact b) {
    const double square = b.re * b.re + b.im * b.im;
    return scaled(1 / square, exact_mul(a, (exact){b.re, -b.im}));
}

static exact polar(double modulus, double angle) { return (exact){modulus * cos(angle), modulus * sin(angle)}; }

static exact exp_of(exact z) { return polar(exp(z.re), z.im); }

/* (e^z - 1) / z, and 1 at zero. */
static exact phi(exact z) {
    const double half = sin(z.im / 2);
    const exact expm1_z = {expm1(z.re) * cos(z.im) - 2 * half * half, exp(z.re) * sin(z.im)};
    return hypot(z.re, z.im) < 1e-30 ? (exact){1, 0} : quotient(expm1_z, z);
}

/* e^x with x clipped, as layers/linear.py. */
static double bounded_exp(double x) { return exp(x < -80 ? -80 : x > 80 ? 80 : x); }

/* A system y = w_out scan(a, w_in u) + skip u, folded: a (2, N), w_in (2, N, D), w_out (D, 2, N), skip (D). */
typedef struct {
    int64_t N, D;
    double *a, *w_in, *w_out;
    const double *skip;
} linear_system;

static linear_system new_system(builder *b, const part *p, int64_t N, int64_t D) {
    linear_system s = {.N = N, .D = D};
    if (!good(b)) return s;
    s.a = spare(b, 2 * N);
    s.w_in = spare(b, 2 * N * D);
    s.w_out = spare(b, 2 * N * D);
    s.skip = vector_of(b, p, "D", D);
    return s;
}

/* Sets the transition of plane i. */
static void set_transition(linear_system *s, int64_t i, exact a) { s->a[i] = a.re, s->a[s->N + i] = a.im; }

/* w_in = gain B, w_out = weight C, from the arrays B_re, B_im (N, D) and C_re, C_im (D, N); gain (N). */
static void fold_projections(builder *b, const part *p, linear_system *s, const exact *gain, double weight) {
    const int64_t N = s->N, D = s->D;
    const double *const B_re = matrix_of(b, p, "B_re", N, D), *const B_im = matrix_of(b, p, "B_im", N, D);
    const double *const C_re = matrix_of(b, p, "C_re", D, N), *const C_im = matrix_of(b, p, "C_im", D, N);
    if (!good(b)) return;
    for (int64_t i = 0; i < N * D; i++) {
        const exact w = exact_mul(gain[i / D], (exact){B_re[i], B_im[i]});
        s->w_in[i] = w.re, s->w_in[N * D + i] = w.im;
    }
    for (int64_t d = 0; d < D; d++) {
        for (int64_t i = 0; i < N; i++) {
            s->w_out[d * 2 * N + i] = weight * C_re[d * N + i];
            s->w_out[d * 2 * N + N + i] = -weight * C_im[d * N + i];
        }
    }
}

/* `lasting`: states do not decay, so they are kept in double, but for a window, which forgets them. */
static void emit_system(builder *b, const linear_system *s, rows y, rows x, int64_t window, bool lasting) {
    if (!good(b)) return;
    const int64_t N = s->N;
    const rows planes = take_rows(b, 2 * N);
    emit_dense(b, planes, x, computed(s->w_in), NULL);
    const bool exactly = lasting && !window;
    op *const scan = emit(b, window ? OP_WINDOW_SCAN : exactly ? OP_EXACT_SCAN : OP_SCAN, planes, planes);
    scan->w[0] = exactly ? stored_exact(b, s->a, 2 * N) : stored(b, s->a, 2 * N);
    if (window) {
        double *const power = spare(b, 2 * N);
        for (int64_t i = 0; power && i < N; i++) {
            const exact a = exact_power((exact){s->a[i], s->a[N + i]}, window);
            power[i] = a.re, power[N + i] = a.im;
        }
        scan->w[1] = stored(b, power, 2 * N);
        scan->window = window;
        scan->state = take_state(b, (window + 3) * 2 * N, b->run->number); /* two sums, and a ring of window + 1 */
    } else
        scan->state = take_state(b, 2 * N, exactly ? sizeof(double) : b->run->number);
    emit_dense(b, y, planes, computed(s->w_out), NULL);
    emit_skip(b, y, x, s->skip);
}

/* All of these layers have to run forward in time. */
static void check_streams(builder *b, const part *p) {
    if (flag_of(b, p, "bidirectional")) unsupported(b, p, " that runs in both directions");
}

void build_lru(builder *b, const part *p, rows y, rows x) {
    enum { REAL_IMAG, EXP, STABLE_EXP, LOG_PHASE };
    static const char *const names[][2] = {
        {"lambda_re", "lambda_im"}, {"nu", "theta"}, {"nu_log", "theta"}, {"nu_log", "theta_log"}};
    const int64_t N = integer_of(b, p, "d_state", 1),
                  form = choice_of(b, p, "form", "real_imag exp stable_exp log_phase");
    const bool gamma = flag_of(b, p, "gamma");
    check_streams(b, p);
    ignore(p, "r_min r_max max_phase");
    const double *const first = vector_of(b, p, names[form][0], N);
    const double *const second = vector_of(b, p, names[form][1], N);
    const double *const gamma_log = gamma ? vector_of(b, p, "gamma_log", N) : NULL;
    linear_system s = new_system(b, p, N, x.width);
    exact *const gain = (exact *)spare(b, 2 * N);
    if (!good(b)) return;
    for (int64_t i = 0; i < N; i++) {
        const double nu = form >= STABLE_EXP ? bounded_exp(first[i]) : first[i];
        const double theta = form == LOG_PHASE ? bounded_exp(second[i]) : second[i];
        set_transition(&s, i, form == REAL_IMAG ? (exact){first[i], second[i]} : polar(exp(-nu), theta));
        gain[i] = (exact){gamma ? exp(gamma_log[i]) : 1, 0};
    }
    fold_projections(b, p, &s, gain, 1);
    emit_system(b, &s, y, x, window_of(b, p), false);
}

/* Discretisations of x' = lambda x + B u (layers/continuous.py), in this order. */
enum { ZOH, BILINEAR, FIRST_ORDER };

static int64_t discretisation_of(builder *b, const part *p) {
    return choice_of(b, p, "discretisation", "zoh bilinear first_order");
}

static exact transition_of(int64_t method, exact lambda, double step) {
    const exact z = scaled(step, lambda);
    if (method != BILINEAR) return exp_of(z);
    return quotient((exact){1 + z.re / 2, z.im / 2}, (exact){1 - z.re / 2, -z.im / 2});
}

static exact gain_of(int64_t method, exact lambda, double step) {
    const exact z = scaled(step, lambda);
    if (method == FIRST_ORDER) return (exact){step, 0};
    return scaled(step, method == ZOH ? phi(z) : quotient((exact){1, 0}, (exact){1 - z.re / 2, -z.im / 2}));
}

void build_s5(builder *b, const part *p, rows y, rows x) {
    const double clipped = -1e-4; /* the largest real part of an eigenvalue with clip_eigs */
    const int64_t weight = flag_of(b, p, "conjugate") ? 2 : 1, N = integer_of(b, p, "d_state", weight) / weight;
    const int64_t method = discretisation_of(b, p);
    const bool clip = flag_of(b, p, "clip_eigs");
    const double scale = number_of(b, p, "step_scale");
    check_streams(b, p);
    ignore(p, "blocks c_init dt_min dt_max");
    const double *const re = vector_of(b, p, "lambda_re", N), *const im = vector_of(b, p, "lambda_im", N);
    const double *const log_step = vector_of(b, p, "log_step", N);
    linear_system s = new_system(b, p, N, x.width);
    exact *const gain = (exact *)spare(b, 2 * N);
    if (!good(b)) return;
    for (int64_t i = 0; i < N; i++) {
        const exact lambda = {clip && re[i] > clipped ? clipped : re[i], im[i]};
        const double step = scale * exp(log_step[i]);
        set_transition(&s, i, transition_of(method, lambda, step));
        gain[i] = gain_of(method, lambda, step);
    }
    fold_projections(b, p, &s, gain, (double)weight);
    emit_system(b, &s, y, x, window_of(b, p), false);
}

void build_rope_memory(builder *b, const part *p, rows y, rows x) {
    const int64_t N = integer_of(b, p, "d_state", 1), length = integer_of(b, p, "length", 1);
    check_streams(b, p);
    linear_system s = new_system(b, p, N, x.width);
    exact *const gain = (exact *)spare(b, 2 * N);
    if (!good(b)) return;
    for (int64_t i = 0; i < N; i++) {
        set_transition(&s, i, polar(1, 2 * M_PI / (double)length));
        gain[i] = (exact){1, 0};
    }
    fold_projections(b, p, &s, gain, 1);
    emit_system(b, &s, y, x, window_of(b, p), true);
}

/* Rows or columns j < W of a head's lanes: lane j belongs to plane j / 2, as its real part if j is even. */
static int64_t lane_of(int64_t head, int64_t j, int64_t W, int64_t N) {
    return head * ((W + 1) / 2) + j / 2 + j % 2 * N;
}

/* One head of RotRNN: w_in = xi P^T B, w_out = C P; P (W, W), B (W, D), C (D, all lanes). */
static void fold_head(linear_system *s, int64_t head, int64_t W, const double *P, const double *B, const double *C,
                      int64_t lanes, double xi) {
    for (int64_t j = 0; j < W; j++) {
        const int64_t lane = lane_of(head, j, W, s->N);
        for (int64_t k = 0; k < W; k++) {
            for (int64_t d = 0; d < s->D; d++) {
                s->w_in[lane * s->D + d] += xi * P[k * W + j] * B[k * s->D + d];
                s->w_out[d * 2 * s->N + lane] += C[d * lanes + head * W + k] * P[k * W + j];
            }
        }
    }
}

/* The folded system of RotRNN, where xi_t and the transition are those of the decay exp(-exp(gamma_log)). */
static linear_system fold_rotrnn(builder *b, const part *p, int64_t D, bool alpha, double c) {
    const int64_t lanes = integer_of(b, p, "d_state", 1), H = integer_of(b, p, "heads", 1), W = lanes / H;
    const int64_t planes = (W + 1) / 2;
    ignore(p, "gamma_init theta_max");
    if (W * H != lanes) failed(b->error, ROTRNN_DAMAGED, "%s has heads that do not divide its states", p->name);
    const double *const theta = matrix_of(b, p, "theta", H, W / 2), *const gamma_log = vector_of(b, p, "gamma_log", H);
    const double *const M = stack_of(b, p, "M", H, W, W), *const B = stack_of(b, p, "B", H, W, D);
    const double *const C = matrix_of(b, p, "C", D, lanes);
    linear_system s = new_system(b, p, H * planes, D);
    double *const P = good(b) ? spare(b, H * W * W) : NULL;
    if (!good(b)) return s;
    if (!rotations_of(b, p, P, M, H, W)) return s;
    for (int64_t h = 0; h < H; h++) {
        double norm = 0;
        for (int64_t i = 0; i < W * D; i++) norm = hypot(norm, B[h * W * D + i]); /* squares might overflow */
        const double decay = bounded_exp(gamma_log[h]), gamma = exp(-decay), root = sqrt(c);
        const double xi = alpha ? root / hypot(root * gamma, norm) : root * sqrt(-expm1(-2 * decay)) / norm;
        if (!isfinite(xi)) failed(b->error, ROTRNN_DAMAGED, "%s.B of head %lld is zero", p->name, (long long)h);
        for (int64_t i = 0; i < planes; i++) {
            const double angle = 2 * i + 1 < W ? theta[h * (W / 2) + i] : 0; /* an odd lane is not turned */
            set_transition(&s, h * planes + i, polar(alpha ? xi * gamma : gamma, angle));
        }
        fold_head(&s, h, W, P + h * W * W, B + h * W * D, C, lanes, xi);
    }
    return s;
}

void build_rotrnn(builder *b, const part *p, rows y, rows x) {
    enum { INPUT, ALPHA };
    const bool alpha = choice_of(b, p, "normalise", "input alpha") == ALPHA;
    check_streams(b, p);
    const linear_system s = fold_rotrnn(b, p, x.width, alpha, number_of(b, p, "c"));
    emit_system(b, &s, y, x, window_of(b, p), false);
}

/* The decays of heads that depend on the input: numbers z (H) of each row, to be added to gamma_log. The transition is
 * then the unit rotation, and the input is multiplied by the ratio of sqrt(1 - gamma_t^2) to that of the mean. */
static void emit_decays(builder *b, const part *p, linear_system *s, op *scan, rows z) {
    const double *const gamma_log = vector_of(b, p, "gamma_log", z.width);
    double *const scale = spare(b, z.width);
    if (!good(b)) return;
    for (int64_t h = 0; h < z.width; h++) {
        const double mean = fmin(fmax(exp(gamma_log[h]), SLOWEST_DECAY), FASTEST_DECAY);
        scale[h] = sqrt(-1 / expm1(-2 * mean));
    }
    for (int64_t i = 0; i < s->N; i++) {
        const double modulus = hypot(s->a[i], s->a[s->N + i]);
        s->a[i] /= modulus, s->a[s->N + i] /= modulus;
    }
    scan->z = z;
    scan->count = z.width;
    scan->w[1] = stored(b, gamma_log, z.width);
    scan->w[2] = stored(b, scale, z.width);
}

void build_selective_rotrnn(builder *b, const part *p, rows y, rows x) {
    enum { CONSTANT, INPUT, RANDOM };
    const int64_t D = x.width, H = integer_of(b, p, "heads", 1), W = integer_of(b, p, "d_state", 1) / H;
    const int64_t gamma = choice_of(b, p, "gamma", "constant input random"), planes = (W + 1) / 2;
    ignore(p, "selectivity gamma_spread site");
    if (window_of(b, p)) unsupported(b, p, " with a window");
    linear_system s = fold_rotrnn(b, p, D, false, 1);
    const double *const W_theta = stack_of(b, p, "W_theta", H, W / 2, D);
    const weights W_gamma = gamma == INPUT ? weights_of(b, p, "W_gamma", H, D) : computed(NULL);
    double *const turns = good(b) ? spare(b, s.N * D) : NULL; /* W_theta, zero for the odd lanes of heads */
    if (!good(b)) return;
    for (int64_t h = 0; h < H; h++)
        memcpy(turns + h * planes * D, W_theta + h * (W / 2) * D, (size_t)(W / 2 * D) * sizeof *turns);
    const rows lanes = take_rows(b, 2 * s.N), angles = take_rows(b, s.N), decays = take_rows(b, H);
    emit_dense(b, lanes, x, computed(s.w_in), NULL);
    emit_dense(b, angles, x, computed(turns), NULL);
    if (gamma == INPUT) emit_dense(b, decays, x, W_gamma, NULL);
    op *const scan = emit(b, OP_TURNING_SCAN, lanes, angles);
    if (gamma == INPUT) emit_decays(b, p, &s, scan, decays);
    scan->w[0] = stored(b, s.a, 2 * s.N);
    scan->state = take_state(b, 2 * s.N, b->run->number);
    emit_dense(b, y, lanes, computed(s.w_out), NULL);
    emit_skip(b, y, x, s.skip);
}

/* A bank with a window is a convolution with the response of its filters, Re sum_n c_n a_n^lag + skip at lag 0. */
static void emit_response(builder *b, rows y, rows x, const double *k, const double *skip, int64_t N, int64_t window) {
    const int64_t D = x.width, longest = (int64_t)1 << 26; /* numbers of a response */
    if (window > longest / D) failed(b->error, ROTRNN_NO_MEMORY, "a window of %lld is too long", (long long)window);
    double *const taps = good(b) ? spare(b, window * D) : NULL; /* oldest first */
    if (!good(b)) return;
    for (int64_t d = 0; d < D; d++) {
        for (int64_t n = 0; n < N; n++) {
            const double *const at = k + n * 4 * D + d;
            exact term = {at[2 * D], at[3 * D]};
            for (int64_t lag = 0; lag < window; lag++, term = exact_mul(term, (exact){at[0], at[D]}))
                taps[(window - 1 - lag) * D + d] += term.re;
        }
        taps[(window - 1) * D + d] += skip[d];
    }
    op *const conv = emit(b, OP_CONV, y, x);
    conv->count = window;
    conv->w[0] = stored(b, taps, window * D);
    conv->state = take_state(b, (window - 1) * D, b->run->number);
}

void build_s4d(builder *b, const part *p, rows y, rows x) {
    const int64_t weight = flag_of(b, p, "conjugate") ? 2 : 1, N = integer_of(b, p, "d_state", weight) / weight;
    const int64_t D = x.width, method = discretisation_of(b, p);
    const int64_t window = window_of(b, p);
    const bool tied = flag_of(b, p, "tied");
    check_streams(b, p);
    ignore(p, "frequencies dt_min dt_max");
    const double *const log_re = matrix_of(b, p, "log_A_re", D, N), *const im = matrix_of(b, p, "A_im", D, N);
    const double *const steps = vector_of(b, p, "log_step", D);
    const double *const steps_in = tied ? steps : vector_of(b, p, "log_step_input", D);
    const double *const B_re = matrix_of(b, p, "B_re", D, N), *const B_im = matrix_of(b, p, "B_im", D, N);
    const double *const C_re = matrix_of(b, p, "C_re", D, N), *const C_im = matrix_of(b, p, "C_im", D, N);
    const double *const skip = vector_of(b, p, "D", D);
    double *const k = good(b) ? spare(b, 4 * N * D) : NULL; /* (N, 4, D): a and c */
    if (!good(b)) return;
    for (int64_t d = 0; d < D; d++) {
        for (int64_t n = 0; n < N; n++) {
            const int64_t i = d * N + n;
            const exact A = {-bounded_exp(log_re[i]), im[i]}, a = transition_of(method, A, exp(steps[d]));
            const exact gain = scaled((double)weight, gain_of(method, A, exp(steps_in[d])));
            const exact c = exact_mul((exact){C_re[i], C_im[i]}, exact_mul(gain, (exact){B_re[i], B_im[i]}));
            double *const at = k + n * 4 * D + d;
            at[0] = a.re, at[D] = a.im, at[2 * D] = c.re, at[3 * D] = c.im;
        }
    }
    if (window) {
        emit_response(b, y, x, k, skip, N, window);
        return;
    }
    op *const bank = emit(b, OP_BANK, y, x);
    bank->count = N;
    bank->w[0] = stored(b, k, 4 * N * D);
    bank->w[1] = stored(b, skip, D);
    bank->state = take_state(b, 2 * N * D, b->run->number);
}

#if LIB_S4
/* A channel of the bank of S4 (layers/s4.py) from its parameters of N states: coefficients
 * k (N, DPLR_GAIN + inputs, 2, D). The gains of further inputs are powers of the first, element by element. */

typedef struct {
    const double *log_re, *im, *P_re, *P_im, *B_re, *B_im, *C_re, *C_im;
} dplr_parameters;

static void set_pair(double *k, int64_t which, int64_t D, exact z) {
    k[2 * which * D] = z.re, k[(2 * which + 1) * D] = z.im;
}

static void set_channel(double *k, const dplr_parameters *of, double step, int64_t N, int64_t D, int64_t inputs) {
    double kappa = 0, beta = 0;
    for (int64_t n = 0; n < N; n++) {
        const exact P = {of->P_re[n], of->P_im[n]}, B = {of->B_re[n], of->B_im[n]};
        const exact G = gain_of(BILINEAR, (exact){-bounded_exp(of->log_re[n]), of->im[n]}, step);
        const exact GB = exact_mul(G, B);
        kappa += (P.re * P.re + P.im * P.im) * G.re;
        beta += P.re * GB.re + P.im * GB.im;
    }
    const double w = 1 / (1 + kappa);
    for (int64_t n = 0; n < N; n++, k += 2 * (DPLR_GAIN + inputs) * D) {
        const exact A = {-bounded_exp(of->log_re[n]), of->im[n]}, G = gain_of(BILINEAR, A, step);
        const exact P = {of->P_re[n], of->P_im[n]};
        const exact gain = exact_mul(G, (exact){of->B_re[n] - beta * w * P.re, of->B_im[n] - beta * w * P.im});
        set_pair(k, DPLR_A, D, transition_of(BILINEAR, A, step));
        set_pair(k, DPLR_P, D, scaled(-2 * w / step, exact_mul(G, P)));
        set_pair(k, DPLR_Q, D, exact_mul(G, (exact){P.re, -P.im}));
        set_pair(k, DPLR_C, D, (exact){2 * of->C_re[n], 2 * of->C_im[n]});
        exact power = gain;
        for (int64_t i = 0; i < inputs; i++, power = exact_mul(power, gain)) set_pair(k, DPLR_GAIN + i, D, power);
    }
}

/* y <- the bank's output from `inputs` rows of inputs x, of which the first `drives` drive the states. The others have
 * a direct path, the response at once that they would have by the states. */
static void build_dplr_bank(builder *b, const part *p, rows y, rows x, int64_t inputs, int64_t drives) {
    const int64_t N = integer_of(b, p, "d_state", 2) / 2, D = y.width, width = 2 * (DPLR_GAIN + inputs) * D;
    check_streams(b, p);
    ignore(p, "dt_min dt_max");
    const dplr_parameters all = {matrix_of(b, p, "log_A_re", D, N), matrix_of(b, p, "A_im", D, N),
                                 matrix_of(b, p, "P_re", D, N),     matrix_of(b, p, "P_im", D, N),
                                 matrix_of(b, p, "B_re", D, N),     matrix_of(b, p, "B_im", D, N),
                                 matrix_of(b, p, "C_re", D, N),     matrix_of(b, p, "C_im", D, N)};
    const double *const steps = vector_of(b, p, "log_step", D), *const skip = vector_of(b, p, "D", D);
    double *const k = good(b) ? spare(b, N * width) : NULL, *const skips = good(b) ? spare(b, inputs * D) : NULL;
    if (!good(b)) return;
    for (int64_t d = 0; d < D; d++) {
        const int64_t i = d * N;
        const dplr_parameters of = {all.log_re + i, all.im + i,   all.P_re + i, all.P_im + i,
                                    all.B_re + i,   all.B_im + i, all.C_re + i, all.C_im + i};
        set_channel(k + d, &of, exp(steps[d]), N, D, inputs);
        skips[d] = skip[d];
        for (int64_t n = 0; n < N; n++) {
            const double *const c = k + n * width + 2 * DPLR_C * D + d, *const gains = c + 2 * (DPLR_GAIN - DPLR_C) * D;
            for (int64_t m = drives; m < inputs; m++)
                skips[m * D + d] += c[0] * gains[2 * m * D] - c[D] * gains[(2 * m + 1) * D];
        }
    }
    op *const bank = emit(b, OP_DPLR_BANK, y, x);
    bank->z = take_rows(b, D);
    bank->count = N;
    bank->choice = drives;
    bank->w[0] = stored(b, k, N * width);
    bank->w[1] = stored(b, skips, inputs * D);
    bank->state = take_state(b, 2 * N * D, b->run->number);
}

void build_s4(builder *b, const part *p, rows y, rows x) { build_dplr_bank(b, p, y, x, 1, 1); }

void build_liquid_s4(builder *b, const part *p, rows y, rows x) {
    enum { PB, KB };
    const int64_t degree = integer_of(b, p, "degree", 2), kernel = choice_of(b, p, "kernel", "pb kb");
    if (!good(b)) return;
    if (degree > ((int64_t)1 << 20) / x.width)
        failed(b->error, ROTRNN_NO_MEMORY, "a degree of %lld is too high", (long long)degree);
    if (!good(b)) return;
    const rows inputs = take_rows(b, degree * x.width);
    op *const products = emit(b, OP_PRODUCTS, inputs, x);
    products->count = degree;
    products->state = take_state(b, (degree - 1) * x.width, b->run->number);
    build_dplr_bank(b, p, y, inputs, degree, kernel == KB ? degree : 1);
}
#endif
