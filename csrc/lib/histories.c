/* The layers that keep what they have read: attention, and the memory of Wrope. Without a window they need a capacity.
 */
#include <math.h>

#include "build.h"

void build_attention(builder *b, const part *p, rows y, rows x) {
    const int64_t D = x.width, H = integer_of(b, p, "heads", 1), window = window_of(b, p), pairs = D / H / 2;
    const int64_t groups = is_null(b, p, "kv_heads") ? H : integer_of(b, p, "kv_heads", 1), K = D / H * groups;
    const bool rotary = flag_of(b, p, "rotary"), bias = flag_of(b, p, "bias");
    const double base = number_of(b, p, "base");
    if (D % H || H % groups || (rotary && D / H % 2))
        failed(b->error, ROTRNN_DAMAGED, "%s has heads of a wrong width", p->name);
    double *const frequencies = good(b) ? spare(b, pairs + 1) : NULL;
    if (!good(b)) return;
    const rows q = take_rows(b, D), k = take_rows(b, K), v = take_rows(b, K);
    build_map(b, p, "w_q", "b_q", bias, q, x);
    build_map(b, p, "w_k", "b_k", bias, k, x);
    build_map(b, p, "w_v", "b_v", bias, v, x);
    for (int64_t i = 0; i < pairs; i++) frequencies[i] = pow(base, -(double)i / (double)pairs);
    for (int i = 0; rotary && i < 2; i++) {
        op *const turn = emit(b, OP_ROTARY, i ? k : q, i ? k : q);
        turn->count = i ? groups : H;
        turn->w[0] = stored_exact(b, frequencies, pairs);
    }
    op *const attend = emit(b, OP_ATTENTION, q, k);
    attend->z = v;
    attend->count = H;
    attend->window = window;
    attend->state = good(b) ? take_history(b, window, 2 * K) : 0;
    build_map(b, p, "w_out", "b_out", bias, y, q);
}

void build_wrope_memory(builder *b, const part *p, rows y, rows x) {
    const int64_t N = integer_of(b, p, "d_state", 1), D = x.width, window = window_of(b, p);
    const int64_t form = choice_of(b, p, "form", "uniform warped blend blend_printed");
    const int64_t length = integer_of(b, p, "length", 1);
    const double *const B_re = matrix_of(b, p, "B_re", N, D), *const B_im = matrix_of(b, p, "B_im", N, D);
    const double *const C_re = matrix_of(b, p, "C_re", D, N), *const C_im = matrix_of(b, p, "C_im", D, N);
    const double *const skip = vector_of(b, p, "D", D);
    double *const w_in = good(b) ? spare(b, 2 * N * D) : NULL, *const w_out = good(b) ? spare(b, 2 * N * D) : NULL;
    if (!good(b)) return;
    for (int64_t i = 0; i < N * D; i++) {
        w_in[i] = B_re[i], w_in[N * D + i] = B_im[i];
        w_out[i / N * 2 * N + i % N] = C_re[i], w_out[i / N * 2 * N + N + i % N] = -C_im[i];
    }
    const rows planes = take_rows(b, 2 * N);
    emit_dense(b, planes, x, computed(w_in), NULL);
    op *const read = emit(b, OP_WROPE, planes, planes);
    read->choice = form;
    read->eps = (double)length;
    read->window = window;
    read->state = take_history(b, window, 2 * N + 2); /* each step's state, and the weight of the age that is new */
    emit_dense(b, y, planes, computed(w_out), NULL);
    emit_skip(b, y, x, skip);
}
