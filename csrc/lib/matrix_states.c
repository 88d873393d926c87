/* The layers whose heads have a matrix state: Mamba-2 and DeltaNet. Their equations are in python/rotrnn/nn/layers/. */
#include <math.h>
#include <string.h>

#include "build.h"
#include "kernels.h"

/* -exp(A_log) */
static double *rates_of(builder *b, const part *p, int64_t H) {
    const double *const A_log = vector_of(b, p, "A_log", H);
    double *const rates = good(b) ? spare(b, H) : NULL;
    for (int64_t i = 0; rates && i < H; i++) rates[i] = -exp(A_log[i]);
    return rates;
}

/* P of the setting d_head, where "auto" is the greatest common divisor of the channels and 64. */
static int64_t head_width_of(builder *b, const part *p, int64_t inner) {
    if (!json_is(json_member(p->settings, "d_head"), "auto")) return integer_of(b, p, "d_head", 1);
    int64_t width = 64;
    while (inner % width) width /= 2;
    return width;
}

/* The scan of Mamba-2, y <- scan(u), where u also has B and C of G groups, and delta the step sizes of H heads. */
static void build_heads(builder *b, const part *p, rows y, rows u, rows delta, int64_t G, int64_t N) {
    const int64_t H = delta.width;
    const double *const A = rates_of(b, p, H), *const skip = vector_of(b, p, "D", H);
    if (!good(b)) return;
    op *const scan = emit(b, OP_SSD, y, u);
    scan->z = delta;
    scan->count = N;
    scan->choice = G;
    scan->negative = flag_of(b, p, "negative");
    scan->w[0] = stored(b, A, H);
    scan->w[1] = stored(b, skip, H);
    scan->state = take_state(b, N * y.width, b->run->number);
}

void build_mamba2(builder *b, const part *p, rows y, rows x) {
    const int64_t N = integer_of(b, p, "d_state", 1), taps = integer_of(b, p, "d_conv", 0), D = x.width;
    const int64_t inner = integer_of(b, p, "expand", 1) * D, G = integer_of(b, p, "groups", 1);
    const int64_t P = head_width_of(b, p, inner), H = inner / P, K = inner + 2 * G * N;
    const bool bias = flag_of(b, p, "bias");
    const double eps = number_of(b, p, "norm_eps");
    ignore(p, "dt_min dt_max dt_init_floor A_min A_max");
    if (P * H != inner || H % G)
        failed(b->error, ROTRNN_DAMAGED, "%s has heads that do not divide its channels, or groups its heads", p->name);
    const weights w_in = weights_of(b, p, "in_proj", inner + K + H, D);
    const double *const b_in = bias ? vector_of(b, p, "in_bias", inner + K + H) : NULL;
    const double *const dt_bias = vector_of(b, p, "dt_bias", H), *const scale = vector_of(b, p, "norm", inner);
    const weights w_out = weights_of(b, p, "out_proj", D, inner);
    const double *const b_out = bias ? vector_of(b, p, "out_bias", D) : NULL;
    double *const shift = good(b) ? spare(b, H) : NULL;
    if (!good(b)) return;
    for (int64_t i = 0; i < H; i++) shift[i] = dt_bias[i] + (bias ? b_in[inner + K + i] : 0);
    const rows gate = take_rows(b, inner), convolved = take_rows(b, K), u = take_rows(b, K), delta = take_rows(b, H);
    const rows scanned = take_rows(b, inner), normed = take_rows(b, inner);
    emit_dense(b, gate, x, w_in, b_in);
    emit_dense(b, convolved, x, from_row(w_in, inner, D), bias ? b_in + inner : NULL);
    emit_dense(b, delta, x, from_row(w_in, inner + K, D), shift);
    emit(b, OP_SOFTPLUS, delta, delta);
    build_conv(b, p, u, convolved, taps);
    build_heads(b, p, scanned, u, delta, G, N);
    emit(b, OP_GATE, scanned, gate);
    emit_rms_norm(b, normed, scanned, scale, G, eps);
    emit_dense(b, y, normed, w_out, b_out);
}

/* SiLU(conv(w x)) of `width` rows of qkv_proj and of conv_w, from `first` on. */
static rows build_projection(builder *b, rows x, weights w, const double *taps_w, int64_t first, int64_t width,
                             int64_t taps) {
    const rows value = take_rows(b, width), u = take_rows(b, width);
    emit_dense(b, value, x, from_row(w, first, x.width), NULL);
    emit_silu_conv(b, u, value, taps ? taps_w + first * taps : NULL, NULL, taps);
    return u;
}

/* What opens the state: beta_proj x, n of each head, and with `gate` decay_proj x + dt_bias behind it. */
static rows build_openings(builder *b, const part *p, rows x, int64_t n, int64_t H, bool gate) {
    const int64_t D = x.width, both = (n + gate) * H;
    const double *const beta = matrix_of(b, p, "beta_proj", n * H, D);
    const double *const decay = gate ? matrix_of(b, p, "decay_proj", H, D) : NULL;
    const double *const dt_bias = gate ? vector_of(b, p, "dt_bias", H) : NULL;
    double *const w = good(b) ? spare(b, both * D) : NULL, *const bias = good(b) ? spare(b, both) : NULL;
    const rows open = take_rows(b, good(b) ? both : 0);
    if (!good(b)) return open;
    memcpy(w, beta, (size_t)(n * H * D) * sizeof *w);
    if (gate) memcpy(w + n * H * D, decay, (size_t)(H * D) * sizeof *w);
    if (gate) memcpy(bias + n * H, dt_bias, (size_t)H * sizeof *bias);
    emit_dense(b, open, x, computed(w), bias);
    return open;
}

/* Vectors of `keys` channels divided by their lengths, as in delta_net.py: RMS norm with the scale 1 / sqrt(keys). */
static rows build_units(builder *b, rows x, int64_t keys) {
    const double unit_eps = 1e-6, scale = 1 / sqrt((double)keys);
    double *const scales = spare(b, x.width);
    for (int64_t i = 0; scales && i < x.width; i++) scales[i] = scale;
    const rows y = take_rows(b, x.width);
    emit_rms_norm(b, y, x, scales, x.width / keys, unit_eps / (double)keys);
    return y;
}

/* RMS norm by heads with one scale for all. */
static rows build_head_norm(builder *b, rows x, const double *scale, int64_t heads, double eps) {
    double *const scales = spare(b, x.width);
    for (int64_t i = 0; scales && i < x.width; i++) scales[i] = scale[i % (x.width / heads)];
    const rows y = take_rows(b, x.width);
    emit_rms_norm(b, y, x, scales, heads, eps);
    return y;
}

void build_delta_net(builder *b, const part *p, rows y, rows x) {
    const int64_t H = integer_of(b, p, "heads", 1), keys = integer_of(b, p, "d_state", 1), D = x.width;
    const int64_t inner = integer_of(b, p, "expand", 1) * D, n = integer_of(b, p, "steps", 1), V = inner / H;
    const int64_t taps = integer_of(b, p, "d_conv", 0);
    const bool gate = flag_of(b, p, "gate"), negative = flag_of(b, p, "negative");
    const bool output_gate = flag_of(b, p, "output_gate");
    const double eps = number_of(b, p, "norm_eps");
    ignore(p, "dt_min dt_max");
    if (V * H != inner) failed(b->error, ROTRNN_DAMAGED, "%s has heads that do not divide its values", p->name);
    /* these first: they bound heads, steps and values by the size of the file */
    const weights w_out = weights_of(b, p, "out_proj", D, inner);
    const weights w_gate = output_gate ? weights_of(b, p, "gate_proj", inner, D) : computed(NULL);
    const rows open = build_openings(b, p, x, n, H, gate);
    const double *const rates = gate ? rates_of(b, p, H) : NULL, *const scale = vector_of(b, p, "norm", V);
    if (!good(b)) return;
    const int64_t both = (n + 1) * H * keys, all = both + n * inner;
    const weights w_in = weights_of(b, p, "qkv_proj", all, D);
    const double *const taps_w = taps ? matrix_of(b, p, "conv_w", all, taps) : NULL;
    if (!good(b)) return;
    const rows qk = build_projection(b, x, w_in, taps_w, 0, both, taps);
    const rows v = build_projection(b, x, w_in, taps_w, both, n * inner, taps), read = take_rows(b, inner);
    op *const rule = emit(b, OP_DELTA, read, build_units(b, qk, keys));
    rule->z = v;
    rule->v = open;
    rule->from = n * H;
    rule->count = H;
    rule->choice = negative;
    rule->w[0] = stored(b, rates, H);
    rule->state = take_state(b, H * keys * V, b->run->number);
    const rows normed = build_head_norm(b, read, scale, H, eps);
    if (output_gate) {
        const rows on = take_rows(b, inner);
        emit_dense(b, on, x, w_gate, NULL);
        emit(b, OP_GATE, normed, on);
    }
    emit_dense(b, y, normed, w_out, NULL);
}
