/* Tests kernels against plain loops in double, without Python, so that they run in an emulator (cross.py).
 *
 * Compiled and linked once per dtype, ROT_DTYPE. Sizes are prime or odd, so that every loop has a remainder that does
 * not fill a register. Prints each value that is wrong, and exits with a failure if there is one.
 */
#include "kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { FUNCTIONS = 6 };
static const double EPS = ROT_DOUBLE ? 0x1p-52 : 0x1p-23;
static _Thread_local int failures, checks; /* races.c runs the tests in several threads */

/* ---- numbers ---- */

static _Thread_local uint64_t state = 1;
static double uniform(void) { /* in [-1, 1) */
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(state >> 32) * 0x1p-31;
}

/* A lane in double; the imaginary part of a real one is zero. */
typedef struct {
    double re, im;
} wide;

#if ROT_COMPLEX
static wide widen(lane x) { return (wide){(double)x.re, (double)x.im}; }
static lane narrow(wide x) { return (lane){(real)x.re, (real)x.im}; }
#else
static wide widen(lane x) { return (wide){(double)x, 0}; }
static lane narrow(wide x) { return (lane)x.re; }
#endif
/* a b + c, and conj(a) b + c */
static wide fma_wide(wide a, wide b, wide c) {
    return (wide){a.re * b.re - a.im * b.im + c.re, a.re * b.im + a.im * b.re + c.im};
}
static wide fma_conj(wide a, wide b, wide c) { return fma_wide((wide){a.re, -a.im}, b, c); }

static void *room(int64_t n, size_t size) {
    void *const memory = calloc((size_t)n + 1, size);
    if (!memory) exit(99);
    return memory;
}
static lane *lanes(int64_t n, double size) {
    lane *const x = room(n, sizeof(lane));
    for (int64_t i = 0; i < n; i++) {
        const double re = size * uniform();
        x[i] = narrow((wide){re, size * uniform()});
    }
    return x;
}
static wide *wides(int64_t n) { return room(n, sizeof(wide)); }

static void report(const char *name, int64_t i, double got, double expected) {
    if (failures++ < 20) printf("%s[%lld]: got %.9g, expected %.9g\n", name, (long long)i, got, expected);
}

/* |got - expected| <= tolerance (1 + |expected|) */
static void expect(const char *name, int64_t i, double got, double expected, double tolerance) {
    checks++;
    if (!(fabs(got - expected) <= tolerance * (1 + fabs(expected)))) report(name, i, got, expected);
}
static void expect_lanes(const char *name, const lane *got, const wide *expected, int64_t n, double tolerance) {
    for (int64_t i = 0; i < n; i++) {
        expect(name, i, widen(got[i]).re, expected[i].re, tolerance);
        expect(name, i, widen(got[i]).im, expected[i].im, tolerance);
    }
}
static void expect_status(const char *name, int status) {
    checks++;
    if (status != ROT_OK) report(name, -1, status, ROT_OK);
}

/* ---- recurrences ---- */

/* Sums of at most T decaying terms below one: a few rounding errors per step. */
static void test_scan(int64_t B, int64_t T, int64_t N) {
    lane *const a = lanes(N, 0.7), *const x = lanes(B * T * N, 1), *const h0 = lanes(B * N, 1);
    lane *const h = lanes(B * T * N, 0), *const hT = lanes(B * N, 0), *const dh = lanes(B * T * N, 1);
    lane *const dx = lanes(B * T * N, 0), *const da = lanes(N, 0), *const dh0 = lanes(B * N, 0);
    wide *const wh = wides(B * T * N), *const wdx = wides(B * T * N), *const wda = wides(N), *const wdh0 = wides(B * N);
    expect_status("scan_forward", K(scan_forward)(&(scan_forward_args){
                                      .h = h, .hT = hT, .a = a, .x = x, .h0 = h0, .B = B, .T = T, .N = N}));
    expect_status("scan_backward",
                  K(scan_backward)(&(scan_backward_args){
                      .dx = dx, .da = da, .dh0 = dh0, .dh = dh, .a = a, .h = h, .h0 = h0, .B = B, .T = T, .N = N}));
    for (int64_t b = 0; b < B; b++)
        for (int64_t n = 0; n < N; n++) {
            wide now = widen(h0[b * N + n]), g = {0, 0};
            const wide w = widen(a[n]);
            for (int64_t t = 0; t < T; t++) {
                const int64_t i = (b * T + t) * N + n;
                wh[i] = now = fma_wide(w, now, widen(x[i]));
            }
            for (int64_t t = T - 1; t >= 0; t--) {
                const int64_t i = (b * T + t) * N + n;
                wdx[i] = g = fma_conj(w, g, widen(dh[i]));
                wda[n] = fma_conj(t ? wh[i - N] : widen(h0[b * N + n]), g, wda[n]);
            }
            wdh0[b * N + n] = fma_conj(w, g, (wide){0, 0});
        }
    expect_lanes("scan h", h, wh, B * T * N, 32 * EPS);
    expect_lanes("scan dx", dx, wdx, B * T * N, 32 * EPS);
    expect_lanes("scan dh0", dh0, wdh0, B * N, 32 * EPS);
    expect_lanes("scan da", da, wda, N, 32 * EPS * (double)(B * T));
}

static void test_window(int64_t B, int64_t T, int64_t N, int64_t L) {
    lane *const a = lanes(N, 0.7), *const x = lanes(B * T * N, 1), *const h = lanes(B * T * N, 0);
    wide *const wh = wides(B * T * N);
    expect_status("window_forward",
                  K(window_forward)(&(window_forward_args){.h = h, .a = a, .x = x, .B = B, .T = T, .N = N, .L = L}));
    for (int64_t i = 0; i < B * T * N; i++) {
        const int64_t t = i / N % T;
        for (int64_t k = t < L - 1 ? t : L - 1; k >= 0; k--)
            wh[i] = fma_wide(widen(a[i % N]), wh[i], widen(x[i - k * N]));
    }
    expect_lanes("window h", h, wh, B * T * N, 64 * EPS);
}

#if !ROT_COMPLEX
/* ---- products ---- */

static void test_matmul(int64_t M, int64_t in, int64_t out) {
    real *const x = lanes(M * in, 1), *const w = lanes(in * out, 1), *const bias = lanes(out, 1);
    real *const y = lanes(M * out, 0), *const dw = lanes(in * out, 0), *const dbias = lanes(out, 0);
    for (int transposed = 0; transposed < 2; transposed++) {
        expect_status(
            "matmul",
            K(matmul)(&(matmul_args){
                .y = y, .x = x, .w = w, .bias = bias, .M = M, .d_in = in, .d_out = out, .transposed = transposed}));
        for (int64_t i = 0; i < M * out; i++) {
            const int64_t m = i / out, o = i % out;
            double sum = (double)bias[o];
            for (int64_t k = 0; k < in; k++)
                sum += (double)x[m * in + k] * (double)w[transposed ? o * in + k : k * out + o];
            expect(transposed ? "matmul w^T" : "matmul w", i, (double)y[i], sum, EPS * (double)(in + 2));
        }
    }
    expect_status("matmul_weight_grad",
                  K(matmul_weight_grad)(&(matmul_weight_grad_args){
                      .dw = dw, .dbias = dbias, .x = x, .dy = y, .M = M, .d_in = in, .d_out = out}));
    for (int64_t o = 0; o < out; o++) {
        double sum = 0;
        for (int64_t m = 0; m < M; m++) sum += (double)y[m * out + o];
        expect("matmul dbias", o, (double)dbias[o], sum, 8 * EPS * (double)(M + in));
        for (int64_t k = 0; k < in; k++) {
            sum = 0;
            for (int64_t m = 0; m < M; m++) sum += (double)y[m * out + o] * (double)x[m * in + k];
            expect("matmul dw", o * in + k, (double)dw[o * in + k], sum, 8 * EPS * (double)(M + in));
        }
    }
}

/* Householder products: against the loop, and the adjoint identity <Q x, dy> = <x, Q^T dy>. */
static void test_mix(int64_t M, int64_t R, int64_t D) {
    real *const u = lanes(M * R * D, 1), *const alpha = lanes(M * R, 1), *const x = lanes(M * D, 1);
    real *const y = lanes(M * D, 0), *const dy = lanes(M * D, 1), *const dx = lanes(M * D, 0);
    real *const du = lanes(M * R * D, 0), *const dalpha = lanes(M * R, 0);
    double *const v = room(D, sizeof(double));
    expect_status("mix_forward", K(mix_forward)(&(mix_forward_args){.y = y,
                                                                    .u = u,
                                                                    .alpha = alpha,
                                                                    .x = x,
                                                                    .B = 1,
                                                                    .T = M,
                                                                    .R = R,
                                                                    .D = D,
                                                                    .u_varying = 1,
                                                                    .alpha_varying = 1}));
    expect_status("mix_backward", K(mix_backward)(&(mix_backward_args){.dx = dx,
                                                                       .du = du,
                                                                       .dalpha = dalpha,
                                                                       .dy = dy,
                                                                       .u = u,
                                                                       .alpha = alpha,
                                                                       .x = x,
                                                                       .B = 1,
                                                                       .T = M,
                                                                       .R = R,
                                                                       .D = D,
                                                                       .u_varying = 1,
                                                                       .alpha_varying = 1}));
    for (int64_t m = 0; m < M; m++) {
        double left = 0, right = 0;
        for (int64_t d = 0; d < D; d++) v[d] = (double)x[m * D + d];
        for (int64_t r = R - 1; r >= 0; r--) {
            const real *const w = u + (m * R + r) * D;
            double s = 0, square = 0;
            for (int64_t d = 0; d < D; d++) s += (double)w[d] * v[d], square += (double)w[d] * (double)w[d];
            for (int64_t d = 0; d < D; d++) v[d] -= 2 * (double)alpha[m * R + r] * s / square * (double)w[d];
        }
        for (int64_t i = m * D; i < (m + 1) * D; i++) {
            expect("mix y", i, (double)y[i], v[i - m * D], 4 * EPS * (double)(R * D));
            left += (double)y[i] * (double)dy[i];
            right += (double)x[i] * (double)dx[i];
        }
        expect("mix adjoint", m, left, right, 4 * EPS * (double)(R * D));
    }
}

/* ---- functions ---- */

static double exact(int function, double x) {
    const double sigmoid = 1 / (1 + exp(-x));
    switch (function) {
    case 0: return exp(x);
    case 1: return sigmoid;
    case 2: return tanh(x);
    case 3: return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case 4: return x * sigmoid;
    default: return (x > 0 ? x : 0) + log1p(exp(-fabs(x)));
    }
}

static void test_functions(int64_t n) {
    real *const x = lanes(n, 12), *const y = lanes(n, 0), *const dy = lanes(n, 1), *const dx = lanes(n, 0);
    const double step = 0x1p-18;
    for (int function = 0; function < FUNCTIONS; function++) {
        expect_status("elementwise", K(elementwise)(&(elementwise_args){
                                         .y = y, .x = x, .B = 1, .T = 1, .D = n, .function = function}));
        for (int64_t i = 0; i < n; i++) expect("elementwise", i, (double)y[i], exact(function, (double)x[i]), 8 * EPS);
        if (function < 3) continue; /* their derivatives are computed from y, elsewhere */
        expect_status("elementwise_backward",
                      K(elementwise_backward)(&(elementwise_backward_args){
                          .dx = dx, .dy = dy, .x = x, .B = 1, .T = 1, .D = n, .function = function}));
        for (int64_t i = 0; i < n;
             i++) { /* error of the difference: step^2 times the third derivative, plus EPS / step */
            const double at = (double)x[i],
                         slope = (exact(function, at + step) - exact(function, at - step)) / (2 * step);
            expect("elementwise slope", i, (double)dx[i], (double)dy[i] * slope, 8 * EPS + 1e-9);
        }
    }
}

static void test_adamw(int64_t n) {
    real *const p = lanes(n, 1), *const m = lanes(n, 0.1), *const v = lanes(n, 0), *const g = lanes(n, 1);
    double *const wp = room(n, sizeof(double)), norms[2], norm, square = 0;
    for (int64_t i = 0; i < n; i++) {
        const double grad = 0.5 * (double)g[i], first = 0.9 * (double)m[i] + 0.1 * grad, second = 0.001 * grad * grad;
        const double part = first / (1 - pow(0.9, 3)) / (sqrt(second / (1 - pow(0.999, 3))) + 1e-8);
        wp[i] = (double)p[i] - 0.01 * (part + 0.1 * (double)p[i]);
    }
    expect_status("adamw", K(adamw)(&(adamw_args){.p = p,
                                                  .m = m,
                                                  .v = v,
                                                  .norms = norms,
                                                  .grad = g,
                                                  .n = n,
                                                  .lr = 0.01,
                                                  .beta1 = 0.9,
                                                  .beta2 = 0.999,
                                                  .eps = 1e-8,
                                                  .decay = 0.1,
                                                  .scale = 0.5,
                                                  .step = 3}));
    expect_status("norm", K(norm)(&(norm_args){.norm = &norm, .x = p, .n = n}));
    for (int64_t i = 0; i < n; i++) {
        expect("adamw p", i, (double)p[i], wp[i], 16 * EPS);
        square += (double)p[i] * (double)p[i];
    }
    expect("norm", 0, norm, sqrt(square), 64 * EPS);
    expect("adamw norm", 0, norms[0], norm, 0);
}

static void test_sgd(int64_t n) {
    real *const p = lanes(n, 1), *const m = lanes(n, 0.1), *const g = lanes(n, 1);
    double *const wp = room(n, sizeof(double)), *const wm = room(n, sizeof(double)), norms[2], square[2] = {0};
    for (int64_t i = 0; i < n; i++) {
        wm[i] = 0.9 * (double)m[i] + 0.5 * (double)g[i] + 0.1 * (double)p[i];
        wp[i] = (double)p[i] - 0.01 * wm[i];
    }
    expect_status("sgd", K(sgd)(&(sgd_args){.p = p,
                                            .m = m,
                                            .norms = norms,
                                            .grad = g,
                                            .n = n,
                                            .lr = 0.01,
                                            .momentum = 0.9,
                                            .decay = 0.1,
                                            .scale = 0.5}));
    for (int64_t i = 0; i < n; i++) {
        expect("sgd p", i, (double)p[i], wp[i], 8 * EPS);
        expect("sgd m", i, (double)m[i], wm[i], 8 * EPS);
        square[0] += (double)p[i] * (double)p[i], square[1] += (double)m[i] * (double)m[i];
    }
    for (int k = 0; k < 2; k++) expect("sgd norm", k, norms[k], sqrt(square[k]), 64 * EPS);
}

/* Two groups, updated as each alone would be; then a loss that is not finite, after which nothing is. */
static void test_adamw_groups(int64_t n) {
    const int64_t ends[2] = {n / 3, n};
    const double rules[8] = {0.01, 1 - pow(0.9, 3), 1 - pow(0.999, 3), 0.1,
                             0.02, 1 - pow(0.9, 3), 1 - pow(0.999, 3), 0};
    double norms[5] = {0}, alone[2], loss = 1;
    real *const p = lanes(n, 1), *const m = lanes(n, 0.1), *const v = lanes(n, 0), *const g = lanes(n, 1);
    real *const own_p = room(n, sizeof(real)), *const own_m = room(n, sizeof(real)),
                *const own_v = room(n, sizeof(real));
    for (int64_t i = 0; i < n; i++) own_p[i] = p[i], own_m[i] = m[i], own_v[i] = v[i];
    adamw_groups_args groups = {.p = p,
                                .m = m,
                                .v = v,
                                .norms = norms,
                                .grad = g,
                                .ends = ends,
                                .rules = rules,
                                .loss = &loss,
                                .n = n,
                                .groups = 2,
                                .beta1 = 0.9,
                                .beta2 = 0.999,
                                .eps = 1e-8,
                                .clip = 0};
    expect_status("adamw_groups", K(adamw_groups)(&groups));
    for (int64_t k = 0, first = 0; k < 2; first = ends[k++]) {
        expect_status("adamw", K(adamw)(&(adamw_args){.p = own_p + first,
                                                      .m = own_m + first,
                                                      .v = own_v + first,
                                                      .norms = alone,
                                                      .grad = g + first,
                                                      .n = ends[k] - first,
                                                      .lr = rules[4 * k],
                                                      .beta1 = 0.9,
                                                      .beta2 = 0.999,
                                                      .eps = 1e-8,
                                                      .decay = rules[4 * k + 3],
                                                      .scale = 1,
                                                      .step = 3}));
        for (int which = 0; which < 2; which++)
            expect("adamw_groups norm", k, norms[1 + 2 * k + which], alone[which], 0);
    }
    loss = INFINITY;
    for (int call = 0; call < 2; call++, loss = 1) expect_status("adamw_groups", K(adamw_groups)(&groups));
    for (int64_t i = 0; i < n; i++) expect("adamw_groups p", i, (double)p[i], (double)own_p[i], 0);
}

/* ---- block ---- */

enum { D = 13, LANES = 10, B = 2, T = 11, TILE = 6, TILES = (T + TILE - 1) / TILE };

/* The arrays of a block, contiguous in one buffer: x, w_in, w_out, skip, gain, offset, and the gate's. */
enum {
    X = 0,
    W_IN = X + B * T * D,
    W_OUT = W_IN + LANES * D,
    SKIP = W_OUT + D * LANES,
    GAIN = SKIP + D,
    OFFSET = GAIN + D,
    W_VALUE = OFFSET + D,
    B_VALUE = W_VALUE + D * D,
    W_GATE = B_VALUE + D,
    B_GATE = W_GATE + D * D,
    ALL = B_GATE + D
};

static block_in block_of(const real *p, const real *a) {
    return (block_in){.x = p + X,
                      .w_in = p + W_IN,
                      .a = a,
                      .w_out = p + W_OUT,
                      .skip = p + SKIP,
                      .gain = p + GAIN,
                      .offset = p + OFFSET,
                      .w_value = p + W_VALUE,
                      .b_value = p + B_VALUE,
                      .w_gate = p + W_GATE,
                      .b_gate = p + B_GATE,
                      .B = B,
                      .T = T,
                      .D = D,
                      .L = LANES,
                      .directions = 1,
                      .tile = TILE,
                      .norm = NORM_ROW,
                      .gate = GATE_FULL,
                      .eps = 1e-5};
}

/* sum of dy times the block's output, by loops */
static double block_loss(const double *p, const real *a, const real *dy, double *y) {
    double loss = 0;
    for (int64_t b = 0; b < B; b++) {
        double h[LANES] = {0};
        for (int64_t t = 0; t < T; t++) {
            const double *const x = p + X + (b * T + t) * D;
            double mean = 0, var = 0, xn[D], z[D];
            for (int64_t d = 0; d < D; d++) mean += x[d] / D;
            for (int64_t d = 0; d < D; d++) var += (x[d] - mean) * (x[d] - mean) / D;
            for (int64_t d = 0; d < D; d++) xn[d] = (x[d] - mean) / sqrt(var + 1e-5) * p[GAIN + d] + p[OFFSET + d];
            for (int64_t n = 0; n < LANES; n += 2) {
                const double re = h[n], im = h[n + 1], a_re = (double)a[n], a_im = (double)a[n + 1];
                h[n] = a_re * re - a_im * im;
                h[n + 1] = a_re * im + a_im * re;
            }
            for (int64_t n = 0; n < LANES; n++)
                for (int64_t d = 0; d < D; d++) h[n] += p[W_IN + n * D + d] * xn[d];
            for (int64_t d = 0; d < D; d++) {
                double out = p[SKIP + d] * xn[d];
                for (int64_t n = 0; n < LANES; n++) out += p[W_OUT + d * LANES + n] * h[n];
                z[d] = exact(3, out);
            }
            for (int64_t d = 0; d < D; d++) {
                double value = p[B_VALUE + d], gate = p[B_GATE + d];
                for (int64_t k = 0; k < D; k++)
                    value += p[W_VALUE + d * D + k] * z[k], gate += p[W_GATE + d * D + k] * z[k];
                const int64_t i = (b * T + t) * D + d;
                y[i] = x[d] + value * exact(1, gate);
                loss += y[i] * (double)dy[i];
            }
        }
    }
    return loss;
}

static void test_block(void) {
    real *const p = lanes(ALL, 0.6), *const a = lanes(LANES, 0.6), *const dy = lanes(B * T * D, 1),
                *const g = lanes(ALL, 0);
    real *const y = lanes(B * T * D, 0), *const hT = lanes(B * LANES, 0), *const carries = lanes(B * TILES * LANES, 0);
    real *const da = lanes(LANES, 0), *const dh0 = lanes(B * LANES, 0);
    double *const at = room(ALL, sizeof(double)), *const expected = room(B * T * D, sizeof(double)),
                  *const y_near = room(B * T * D, sizeof(double));
    const block_in in = block_of(p, a);
    const block_out out = {.y = y, .hT = hT, .carries = carries};
    const block_adjoint_in back = {.dy = dy, .carries = carries};
    const block_adjoint_out grads = {.dx = g + X,
                                     .dw_in = g + W_IN,
                                     .da = da,
                                     .dw_out = g + W_OUT,
                                     .dskip = g + SKIP,
                                     .dh0 = dh0,
                                     .d_norm_sum = g + OFFSET,
                                     .d_norm_product = g + GAIN,
                                     .dw_value = g + W_VALUE,
                                     .db_value = g + B_VALUE,
                                     .dw_gate = g + W_GATE,
                                     .db_gate = g + B_GATE};
    expect_status("block_forward", K(block_forward)(&(block_forward_args){.b = in, .out = out}));
    expect_status("block_backward", K(block_backward)(&(block_backward_args){.b = in, .in = back, .out = grads}));
    for (int64_t i = 0; i < ALL; i++) at[i] = (double)p[i];
    (void)block_loss(at, a, dy, expected);
    for (int64_t i = 0; i < B * T * D; i++) expect("block y", i, (double)y[i], expected[i], 256 * EPS);
    for (int64_t i = 0; i < ALL; i++) { /* central differences in double, with an error below 1e-8 */
        const double step = 0x1p-17, here = at[i];
        at[i] = here + step;
        const double above = block_loss(at, a, dy, y_near);
        at[i] = here - step;
        const double below = block_loss(at, a, dy, y_near);
        at[i] = here;
        expect("block gradient", i, (double)g[i], (above - below) / (2 * step), 4096 * EPS + 1e-8);
    }
}

/* The published known answer of Philox-4x32-10 for counter and key all ones. */
static void test_philox(void) {
#if !ROT_DOUBLE
    int64_t counter[4], key[2], got[4];
    const int64_t expected[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    for (int i = 0; i < 4; i++) counter[i] = key[i % 2] = 0xffffffff;
    expect_status("philox", K(philox)(&(philox_args){.out = got, .counter = counter, .key = key, .n = 1}));
    for (int i = 0; i < 4; i++) expect("philox", i, (double)got[i], (double)expected[i], 0);
#endif
}
#endif

#ifndef ROT_RACES
int main(void) {
    test_scan(2, 37, 19);
    test_scan(1, 301, 5);
    test_window(2, 41, 7, 5);
#if !ROT_COMPLEX
    test_matmul(1, 37, 11);
    test_matmul(29, 37, 67);
    test_mix(5, 3, 41);
    test_functions(1001);
    test_adamw(1003);
    test_sgd(1003);
    test_adamw_groups(1003);
    test_block();
    test_philox();
#endif
    printf("%d of %d checks failed\n", failures, checks);
    return failures != 0;
}
#endif
