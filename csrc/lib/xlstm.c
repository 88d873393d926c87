/* The layers with exponential gates: mLSTM, whose heads have a matrix memory, and sLSTM, with a scalar one of each
 * channel. Their equations are in python/rotrnn/nn/layers/.
 */
#include <math.h>
#include <string.h>

#include "build.h"
#include "kernels.h"

/* Layer norm of each head, with a scale for each channel. */
static rows build_head_norm(builder *b, const part *p, rows x, int64_t heads) {
    const rows y = take_rows(b, x.width);
    emit_layer_norm(b, y, x, vector_of(b, p, "norm", x.width), NULL, heads, number_of(b, p, "norm_eps"));
    return y;
}

/* The divisor of the keys, W_k u / sqrt(keys) + b_k, is in the input gate and in this bias: i v k^T is the same. */
static void build_keys(builder *b, const part *p, rows k, rows x, int64_t keys, bool biased) {
    const weights w = weights_of(b, p, "k_proj", k.width, x.width);
    const double *const shift = biased ? vector_of(b, p, "k_bias", k.width) : NULL;
    double *const bias = good(b) && shift ? spare(b, k.width) : NULL;
    for (int64_t i = 0; bias && i < k.width; i++) bias[i] = shift[i] * sqrt((double)keys);
    emit_dense(b, k, x, w, bias);
}

/* The gates i of each head, then f, before their functions. */
static void build_gates(builder *b, const part *p, rows gates, rows x, int64_t keys) {
    const int64_t D = x.width, H = gates.width / 2;
    const double *const i_proj = matrix_of(b, p, "i_proj", H, D), *const f_proj = matrix_of(b, p, "f_proj", H, D);
    const double *const i_bias = vector_of(b, p, "i_bias", H), *const f_bias = vector_of(b, p, "f_bias", H);
    double *const w = good(b) ? spare(b, 2 * H * D) : NULL, *const bias = good(b) ? spare(b, 2 * H) : NULL;
    if (!good(b)) return;
    memcpy(w, i_proj, (size_t)(H * D) * sizeof *w);
    memcpy(w + H * D, f_proj, (size_t)(H * D) * sizeof *w);
    for (int64_t h = 0; h < H; h++) bias[h] = i_bias[h] - log((double)keys) / 2, bias[H + h] = f_bias[h];
    emit_dense(b, gates, x, computed(w), bias);
}

static bool is_exponential(builder *b, const part *p) { return choice_of(b, p, "forget", "sigmoid exp"); }

void build_mlstm(builder *b, const part *p, rows y, rows x) {
    const int64_t H = integer_of(b, p, "heads", 1), N = integer_of(b, p, "d_state", 1);
    const int64_t inner = integer_of(b, p, "expand", 1) * x.width, P = inner / H;
    const bool bias = flag_of(b, p, "bias"), exponential = is_exponential(b, p);
    if (P * H != inner) failed(b->error, ROTRNN_DAMAGED, "%s has heads that do not divide its values", p->name);
    if (!good(b)) return;
    const rows q = take_rows(b, H * N), k = take_rows(b, H * N), gates = take_rows(b, 2 * H);
    const rows read = take_rows(b, inner), on = take_rows(b, inner);
    build_map(b, p, "q_proj", "q_bias", bias, q, x);
    build_keys(b, p, k, x, N, bias);
    build_map(b, p, "v_proj", "v_bias", bias, read, x);
    build_map(b, p, "o_proj", "o_bias", bias, on, x);
    build_gates(b, p, gates, x, N);
    if (!good(b)) return;
    op *const step = emit(b, OP_MLSTM, read, q);
    step->z = k;
    step->v = gates;
    step->count = H;
    step->choice = exponential;
    step->state = take_state(b, H * (N * (P + 1) + 1), b->run->number);
    const rows normed = build_head_norm(b, p, read, H);
    emit(b, OP_GLU, normed, on)->z = normed;
    build_map(b, p, "out_proj", "out_bias", bias, y, normed);
}

void build_slstm(builder *b, const part *p, rows y, rows x) {
    const int64_t N = integer_of(b, p, "d_state", 1), H = integer_of(b, p, "heads", 1), P = N / H;
    const bool exponential = is_exponential(b, p);
    if (P * H != N) failed(b->error, ROTRNN_DAMAGED, "%s has heads that do not divide its channels", p->name);
    const weights w_in = weights_of(b, p, "in_proj", 4 * N, x.width);
    const weights R = stacked_weights_of(b, p, "recurrent", H, 4 * P, P);
    const double *const bias = vector_of(b, p, "bias", 4 * N);
    if (!good(b)) return;
    const rows gates = take_rows(b, 4 * N), h = take_rows(b, N);
    emit_dense(b, gates, x, w_in, bias);
    for (int64_t head = 0; head < H; head++) {
        op *const step = emit(b, OP_SLSTM, h, gates);
        step->from = head * P;
        step->count = P;
        step->choice = exponential;
        for (int64_t i = 0; i < 4; i++) step->w[i] = packed_of(b, from_row(R, (4 * head + i) * P, P), P, P);
        step->state = take_state(b, 4 * P, b->run->number);
    }
    const rows normed = build_head_norm(b, p, h, H);
    build_map(b, p, "out_proj", "", false, y, normed);
}
