/* The layers whose recurrence depends on the input or is not linear: minGRU, the simple recurrent network, the LSTM and
 * Mamba. Their equations are in python/rotrnn/nn/layers/. */
#include <math.h>

#include "build.h"
#include "kernels.h"

void build_min_gru(builder *b, const part *p, rows y, rows x) {
    const int64_t N = integer_of(b, p, "d_state", 1), D = x.width;
    const weights W_z = weights_of(b, p, "W_z", N, D), W_c = weights_of(b, p, "W_c", N, D);
    const double *const b_z = vector_of(b, p, "b_z", N), *const b_c = vector_of(b, p, "b_c", N);
    const weights W_out = weights_of(b, p, "W_out", D, N);
    if (!good(b)) return;
    const rows gate = take_rows(b, N), h = take_rows(b, N);
    emit_dense(b, gate, x, W_z, b_z);
    emit_dense(b, h, x, W_c, b_c);
    op *const step = emit(b, OP_MIN_GRU, h, gate);
    step->negative = flag_of(b, p, "negative");
    step->state = take_state(b, N, b->run->number);
    emit_dense(b, y, h, W_out, NULL);
}

void build_rnn(builder *b, const part *p, rows y, rows x) {
    static const int64_t cells[] = {CELL_IDENTITY, CELL_TANH, CELL_RELU};
    const int64_t N = integer_of(b, p, "d_state", 1), D = x.width;
    const int64_t cell = cells[choice_of(b, p, "activation", "identity tanh relu")];
    ignore(p, "initialisation");
    if (flag_of(b, p, "bidirectional")) unsupported(b, p, " that runs in both directions");
    const weights A = weights_of(b, p, "A", N, N), B = weights_of(b, p, "B", N, D), C = weights_of(b, p, "C", D, N);
    const double *const skip = vector_of(b, p, "D", D);
    if (!good(b)) return;
    const rows h = take_rows(b, N);
    emit_dense(b, h, x, B, NULL);
    op *const step = emit(b, OP_RNN, h, h);
    step->w[0] = packed_of(b, A, N, N);
    step->choice = cell;
    step->state = take_state(b, N, b->run->number);
    emit_dense(b, y, h, C, NULL);
    emit_skip(b, y, x, skip);
}

void build_lstm(builder *b, const part *p, rows y, rows x) {
    const int64_t N = integer_of(b, p, "d_state", 1), D = x.width;
    const bool projection = flag_of(b, p, "projection");
    ignore(p, "forget_bias");
    const weights w_ih = weights_of(b, p, "weight_ih", 4 * N, D);
    const weights w_hh = weights_of(b, p, "weight_hh", 4 * N, N);
    const double *const bias = vector_of(b, p, "bias", 4 * N);
    const weights C = projection ? weights_of(b, p, "C", D, N) : computed(NULL);
    if (!projection) check_width(b, p, "d_state", D);
    if (!good(b)) return;
    const rows gates = take_rows(b, 4 * N), h = projection ? take_rows(b, N) : y;
    emit_dense(b, gates, x, w_ih, bias);
    op *const step = emit(b, OP_LSTM, h, gates);
    step->w[0] = packed_of(b, w_hh, 4 * N, N);
    step->state = take_state(b, 2 * N, b->run->number);
    if (projection) emit_dense(b, y, h, C, NULL);
}

void emit_conv(builder *b, rows u, rows value, const double *w, const double *shift, int64_t taps) {
    const int64_t D = u.width;
    double *const by_tap = good(b) ? spare(b, taps * D) : NULL;
    if (!good(b)) return;
    for (int64_t d = 0; d < D; d++)
        for (int64_t k = 0; k < taps; k++) by_tap[k * D + d] = w[d * taps + k];
    op *const conv = emit(b, OP_CONV, u, value);
    conv->count = taps;
    conv->w[0] = stored(b, by_tap, taps * D);
    conv->w[1] = stored(b, shift, D);
    conv->state = take_state(b, (taps - 1) * D, b->run->number);
}

void emit_silu_conv(builder *b, rows u, rows value, const double *w, const double *shift, int64_t taps) {
    if (taps) emit_conv(b, u, value, w, shift, taps);
    emit(b, OP_SILU, u, taps ? u : value);
}

void build_conv(builder *b, const part *p, rows u, rows value, int64_t taps) {
    const bool bias = flag_of(b, p, "conv_bias");
    const double *const w = taps ? matrix_of(b, p, "conv_w", u.width, taps) : NULL;
    emit_silu_conv(b, u, value, w, taps && bias ? vector_of(b, p, "conv_bias", u.width) : NULL, taps);
}

/* rank, the setting dt_rank, where "auto" is a sixteenth of the width. */
static int64_t rank_of(builder *b, const part *p, int64_t D) {
    return json_is(json_member(p->settings, "dt_rank"), "auto") ? (D + 15) / 16 : integer_of(b, p, "dt_rank", 1);
}

/* The scan of Mamba, y <- scan(u), with the step sizes and directions that are computed from u. */
static void build_selection(builder *b, const part *p, rows y, rows u, int64_t R, int64_t S) {
    const int64_t D = u.width;
    const weights x_proj = weights_of(b, p, "x_proj", R + 2 * S, D);
    const weights dt_proj = weights_of(b, p, "dt_proj", D, R);
    const double *const dt_bias = vector_of(b, p, "dt_bias", D);
    const double *const A_log = matrix_of(b, p, "A_log", D, S), *const skip = vector_of(b, p, "D", D);
    double *const A = good(b) ? spare(b, S * D) : NULL; /* (S, D) */
    if (!good(b)) return;
    for (int64_t d = 0; d < D; d++)
        for (int64_t s = 0; s < S; s++) A[s * D + d] = -exp(A_log[d * S + s]);
    const rows selected = take_rows(b, R + 2 * S), delta = take_rows(b, D);
    emit_dense(b, selected, u, x_proj, NULL);
    op *const steps = emit(b, OP_DENSE, delta, selected); /* of the first R numbers alone */
    steps->count = R;
    steps->w[0] = packed_of(b, dt_proj, D, R);
    steps->w[1] = stored(b, dt_bias, D);
    emit(b, OP_SOFTPLUS, delta, delta);
    op *const scan = emit(b, OP_SELECTIVE, y, u);
    scan->z = delta;
    scan->v = selected;
    scan->from = R;
    scan->count = S;
    scan->w[0] = stored(b, A, S * D);
    scan->w[1] = stored(b, skip, D);
    scan->negative = flag_of(b, p, "negative");
    scan->state = take_state(b, S * D, b->run->number);
}

void build_mamba(builder *b, const part *p, rows y, rows x) {
    const int64_t S = integer_of(b, p, "d_state", 1), taps = integer_of(b, p, "d_conv", 0), D = x.width;
    const int64_t inner = integer_of(b, p, "expand", 1) * D, R = rank_of(b, p, D);
    const bool bias = flag_of(b, p, "bias");
    if (!is_null(b, p, "window")) unsupported(b, p, " with a window");
    ignore(p, "dt_min dt_max dt_init dt_scale dt_init_floor");
    const weights w_in = weights_of(b, p, "in_proj", 2 * inner, D);
    const double *const b_in = bias ? vector_of(b, p, "in_bias", 2 * inner) : NULL;
    const weights w_out = weights_of(b, p, "out_proj", D, inner);
    const double *const b_out = bias ? vector_of(b, p, "out_bias", D) : NULL;
    if (!good(b)) return;
    const rows value = take_rows(b, inner), gate = take_rows(b, inner), u = take_rows(b, inner);
    emit_dense(b, value, x, w_in, b_in);
    emit_dense(b, gate, x, from_row(w_in, inner, D), bias ? b_in + inner : NULL);
    build_conv(b, p, u, value, taps);
    build_selection(b, p, value, u, R, S);
    emit(b, OP_GATE, value, gate);
    emit_dense(b, y, value, w_out, b_out);
}
