/* Made from csrc/kernels.list by csrc/generate.py: change those. */

#include "entries.h"
#include "extents.h"
#include "kernels.h"

static void sizes_scan_forward(int64_t *sizes, const void *memory) {
    const scan_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t N = args->N;
    const int64_t varying = args->varying;
    sizes[0] = EXTENT(B, T, N);
    sizes[1] = EXTENT(B, N);
    sizes[2] = EXTENT(varying ? B*T : 1, N);
    sizes[3] = EXTENT(B, T, N);
    sizes[4] = EXTENT(B, N);
    sizes[5] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_scan_forward[] = {
    {"h", "B, T, N", offsetof(scan_forward_args, h), ROT_WRITE, ROT_CALLS, false},
    {"hT", "B, N", offsetof(scan_forward_args, hT), ROT_WRITE, ROT_CALLS, true},
    {"a", "varying ? B*T : 1, N", offsetof(scan_forward_args, a), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, N", offsetof(scan_forward_args, x), ROT_READ, ROT_CALLS, false},
    {"h0", "B, N", offsetof(scan_forward_args, h0), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(scan_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(scan_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(scan_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(scan_forward_args, N), ROT_INT, ROT_CALLS, false},
    {"varying", "", offsetof(scan_forward_args, varying), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(scan_forward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_scan_backward(int64_t *sizes, const void *memory) {
    const scan_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t N = args->N;
    const int64_t varying = args->varying;
    sizes[0] = EXTENT(B, T, N);
    sizes[1] = EXTENT(varying ? B*T : 1, N);
    sizes[2] = EXTENT(B, N);
    sizes[3] = EXTENT(B, T, N);
    sizes[4] = EXTENT(B, N);
    sizes[5] = EXTENT(varying ? B*T : 1, N);
    sizes[6] = EXTENT(B, T, N);
    sizes[7] = EXTENT(B, N);
    sizes[8] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_scan_backward[] = {
    {"dx", "B, T, N", offsetof(scan_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"da", "varying ? B*T : 1, N", offsetof(scan_backward_args, da), ROT_WRITE, ROT_CALLS, false},
    {"dh0", "B, N", offsetof(scan_backward_args, dh0), ROT_WRITE, ROT_CALLS, true},
    {"dh", "B, T, N", offsetof(scan_backward_args, dh), ROT_READ, ROT_CALLS, false},
    {"dhT", "B, N", offsetof(scan_backward_args, dhT), ROT_READ, ROT_CALLS, true},
    {"a", "varying ? B*T : 1, N", offsetof(scan_backward_args, a), ROT_READ, ROT_CALLS, false},
    {"h", "B, T, N", offsetof(scan_backward_args, h), ROT_READ, ROT_CALLS, false},
    {"h0", "B, N", offsetof(scan_backward_args, h0), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(scan_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(scan_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(scan_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(scan_backward_args, N), ROT_INT, ROT_CALLS, false},
    {"varying", "", offsetof(scan_backward_args, varying), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(scan_backward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_window_forward(int64_t *sizes, const void *memory) {
    const window_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t N = args->N;
    const int64_t L = args->L;
    const int64_t varying = args->varying;
    sizes[0] = EXTENT(B, T, N);
    sizes[1] = EXTENT(B, L-1, N);
    sizes[2] = EXTENT(varying ? B*T : 1, N);
    sizes[3] = EXTENT(B, T, N);
    sizes[4] = EXTENT(B, L-1, N);
    sizes[5] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_window_forward[] = {
    {"h", "B, T, N", offsetof(window_forward_args, h), ROT_WRITE, ROT_CALLS, false},
    {"last", "B, L-1, N", offsetof(window_forward_args, last), ROT_WRITE, ROT_CALLS, true},
    {"a", "varying ? B*T : 1, N", offsetof(window_forward_args, a), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, N", offsetof(window_forward_args, x), ROT_READ, ROT_CALLS, false},
    {"past", "B, L-1, N", offsetof(window_forward_args, past), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(window_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(window_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(window_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(window_forward_args, N), ROT_INT, ROT_CALLS, false},
    {"L", "", offsetof(window_forward_args, L), ROT_INT, ROT_CALLS, false},
    {"varying", "", offsetof(window_forward_args, varying), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(window_forward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_window_backward(int64_t *sizes, const void *memory) {
    const window_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t N = args->N;
    const int64_t L = args->L;
    const int64_t varying = args->varying;
    sizes[0] = EXTENT(B, T, N);
    sizes[1] = EXTENT(varying ? B*T : 1, N);
    sizes[2] = EXTENT(B, L-1, N);
    sizes[3] = EXTENT(B, T, N);
    sizes[4] = EXTENT(B, L-1, N);
    sizes[5] = EXTENT(varying ? B*T : 1, N);
    sizes[6] = EXTENT(B, T, N);
    sizes[7] = EXTENT(B, L-1, N);
    sizes[8] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_window_backward[] = {
    {"dx", "B, T, N", offsetof(window_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"da", "varying ? B*T : 1, N", offsetof(window_backward_args, da), ROT_WRITE, ROT_CALLS, false},
    {"dpast", "B, L-1, N", offsetof(window_backward_args, dpast), ROT_WRITE, ROT_CALLS, false},
    {"dh", "B, T, N", offsetof(window_backward_args, dh), ROT_READ, ROT_CALLS, false},
    {"dlast", "B, L-1, N", offsetof(window_backward_args, dlast), ROT_READ, ROT_CALLS, true},
    {"a", "varying ? B*T : 1, N", offsetof(window_backward_args, a), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, N", offsetof(window_backward_args, x), ROT_READ, ROT_CALLS, false},
    {"past", "B, L-1, N", offsetof(window_backward_args, past), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(window_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(window_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(window_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(window_backward_args, N), ROT_INT, ROT_CALLS, false},
    {"L", "", offsetof(window_backward_args, L), ROT_INT, ROT_CALLS, false},
    {"varying", "", offsetof(window_backward_args, varying), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(window_backward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_tiir(int64_t *sizes, const void *memory) {
    const tiir_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t N = args->N;
    const int64_t L = args->L;
    sizes[0] = EXTENT(B, T, N);
    sizes[1] = EXTENT(B, L+1, N);
    sizes[2] = EXTENT(B, 2, N);
    sizes[3] = EXTENT(B);
    sizes[4] = EXTENT(N);
    sizes[5] = EXTENT(N);
    sizes[6] = EXTENT(B, T, N);
    (void)args;
}

static const rot_argument arguments_tiir[] = {
    {"h", "B, T, N", offsetof(tiir_args, h), ROT_WRITE, ROT_CALLS, false},
    {"delay", "B, L+1, N", offsetof(tiir_args, delay), ROT_WRITE, ROT_CALLS, false},
    {"sums", "B, 2, N", offsetof(tiir_args, sums), ROT_WRITE, ROT_CALLS, false},
    {"position", "B", offsetof(tiir_args, position), ROT_READ, ROT_INT64, false},
    {"a", "N", offsetof(tiir_args, a), ROT_READ, ROT_CALLS, false},
    {"power", "N", offsetof(tiir_args, power), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, N", offsetof(tiir_args, x), ROT_READ, ROT_CALLS, false},
    {"B", "", offsetof(tiir_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(tiir_args, T), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(tiir_args, N), ROT_INT, ROT_CALLS, false},
    {"L", "", offsetof(tiir_args, L), ROT_INT, ROT_CALLS, false},
    {"resets", "", offsetof(tiir_args, resets), ROT_INT, ROT_CALLS, false},
};

static void sizes_matmul(int64_t *sizes, const void *memory) {
    const matmul_args *const args = memory;
    const int64_t M = args->M;
    const int64_t d_in = args->d_in;
    const int64_t d_out = args->d_out;
    sizes[0] = EXTENT(M, d_out);
    sizes[1] = EXTENT(M, d_in);
    sizes[2] = EXTENT(d_in, d_out);
    sizes[3] = EXTENT(d_out);
    (void)args;
}

static const rot_argument arguments_matmul[] = {
    {"y", "M, d_out", offsetof(matmul_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "M, d_in", offsetof(matmul_args, x), ROT_READ, ROT_CALLS, false},
    {"w", "d_in, d_out", offsetof(matmul_args, w), ROT_READ, ROT_CALLS, false},
    {"bias", "d_out", offsetof(matmul_args, bias), ROT_READ, ROT_CALLS, true},
    {"M", "", offsetof(matmul_args, M), ROT_INT, ROT_CALLS, false},
    {"d_in", "", offsetof(matmul_args, d_in), ROT_INT, ROT_CALLS, false},
    {"d_out", "", offsetof(matmul_args, d_out), ROT_INT, ROT_CALLS, false},
    {"transposed", "", offsetof(matmul_args, transposed), ROT_INT, ROT_CALLS, false},
};

static void sizes_matmul_weight_grad(int64_t *sizes, const void *memory) {
    const matmul_weight_grad_args *const args = memory;
    const int64_t M = args->M;
    const int64_t d_in = args->d_in;
    const int64_t d_out = args->d_out;
    sizes[0] = EXTENT(d_out, d_in);
    sizes[1] = EXTENT(d_out);
    sizes[2] = EXTENT(M, d_in);
    sizes[3] = EXTENT(M, d_out);
    (void)args;
}

static const rot_argument arguments_matmul_weight_grad[] = {
    {"dw", "d_out, d_in", offsetof(matmul_weight_grad_args, dw), ROT_WRITE, ROT_CALLS, false},
    {"dbias", "d_out", offsetof(matmul_weight_grad_args, dbias), ROT_WRITE, ROT_CALLS, true},
    {"x", "M, d_in", offsetof(matmul_weight_grad_args, x), ROT_READ, ROT_CALLS, false},
    {"dy", "M, d_out", offsetof(matmul_weight_grad_args, dy), ROT_READ, ROT_CALLS, false},
    {"M", "", offsetof(matmul_weight_grad_args, M), ROT_INT, ROT_CALLS, false},
    {"d_in", "", offsetof(matmul_weight_grad_args, d_in), ROT_INT, ROT_CALLS, false},
    {"d_out", "", offsetof(matmul_weight_grad_args, d_out), ROT_INT, ROT_CALLS, false},
};

static void sizes_matmul_stack(int64_t *sizes, const void *memory) {
    const matmul_stack_args *const args = memory;
    const int64_t G = args->G;
    const int64_t M = args->M;
    const int64_t d_in = args->d_in;
    const int64_t d_out = args->d_out;
    sizes[0] = EXTENT(G, M, d_out);
    sizes[1] = EXTENT(G, M, d_in);
    sizes[2] = EXTENT(G, d_in, d_out);
    (void)args;
}

static const rot_argument arguments_matmul_stack[] = {
    {"y", "G, M, d_out", offsetof(matmul_stack_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "G, M, d_in", offsetof(matmul_stack_args, x), ROT_READ, ROT_CALLS, false},
    {"w", "G, d_in, d_out", offsetof(matmul_stack_args, w), ROT_READ, ROT_CALLS, false},
    {"G", "", offsetof(matmul_stack_args, G), ROT_INT, ROT_CALLS, false},
    {"M", "", offsetof(matmul_stack_args, M), ROT_INT, ROT_CALLS, false},
    {"d_in", "", offsetof(matmul_stack_args, d_in), ROT_INT, ROT_CALLS, false},
    {"d_out", "", offsetof(matmul_stack_args, d_out), ROT_INT, ROT_CALLS, false},
};

static void sizes_mix_forward(int64_t *sizes, const void *memory) {
    const mix_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t R = args->R;
    const int64_t D = args->D;
    const int64_t u_varying = args->u_varying;
    const int64_t alpha_varying = args->alpha_varying;
    const int64_t form = args->form;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(u_varying ? B*T : 1, mixer_vectors(form, R, D));
    sizes[2] = EXTENT(alpha_varying ? B*T : 1, mixer_gains(form, R, D));
    sizes[3] = EXTENT(B, T, D);
    sizes[4] = EXTENT(B, T, D);
    sizes[5] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_mix_forward[] = {
    {"y", "B, T, D", offsetof(mix_forward_args, y), ROT_WRITE, ROT_CALLS, false},
    {"u", "u_varying ? B*T : 1, mixer_vectors(form, R, D)", offsetof(mix_forward_args, u), ROT_READ, ROT_CALLS, false},
    {"alpha", "alpha_varying ? B*T : 1, mixer_gains(form, R, D)", offsetof(mix_forward_args, alpha), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(mix_forward_args, x), ROT_READ, ROT_CALLS, false},
    {"origin", "B, T, D", offsetof(mix_forward_args, origin), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(mix_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(mix_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(mix_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"R", "", offsetof(mix_forward_args, R), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(mix_forward_args, D), ROT_INT, ROT_CALLS, false},
    {"u_varying", "", offsetof(mix_forward_args, u_varying), ROT_INT, ROT_CALLS, false},
    {"alpha_varying", "", offsetof(mix_forward_args, alpha_varying), ROT_INT, ROT_CALLS, false},
    {"form", "", offsetof(mix_forward_args, form), ROT_INT, ROT_CALLS, false},
};

static void sizes_mix_backward(int64_t *sizes, const void *memory) {
    const mix_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t R = args->R;
    const int64_t D = args->D;
    const int64_t u_varying = args->u_varying;
    const int64_t alpha_varying = args->alpha_varying;
    const int64_t form = args->form;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(u_varying ? B*T : 1, mixer_vectors(form, R, D));
    sizes[2] = EXTENT(alpha_varying ? B*T : 1, mixer_gains(form, R, D));
    sizes[3] = EXTENT(B, T, D);
    sizes[4] = EXTENT(B, T, D);
    sizes[5] = EXTENT(u_varying ? B*T : 1, mixer_vectors(form, R, D));
    sizes[6] = EXTENT(alpha_varying ? B*T : 1, mixer_gains(form, R, D));
    sizes[7] = EXTENT(B, T, D);
    sizes[8] = EXTENT(B, T, D);
    sizes[9] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_mix_backward[] = {
    {"dx", "B, T, D", offsetof(mix_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"du", "u_varying ? B*T : 1, mixer_vectors(form, R, D)", offsetof(mix_backward_args, du), ROT_WRITE, ROT_CALLS, false},
    {"dalpha", "alpha_varying ? B*T : 1, mixer_gains(form, R, D)", offsetof(mix_backward_args, dalpha), ROT_WRITE, ROT_CALLS, false},
    {"dorigin", "B, T, D", offsetof(mix_backward_args, dorigin), ROT_WRITE, ROT_CALLS, true},
    {"dy", "B, T, D", offsetof(mix_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"u", "u_varying ? B*T : 1, mixer_vectors(form, R, D)", offsetof(mix_backward_args, u), ROT_READ, ROT_CALLS, false},
    {"alpha", "alpha_varying ? B*T : 1, mixer_gains(form, R, D)", offsetof(mix_backward_args, alpha), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(mix_backward_args, x), ROT_READ, ROT_CALLS, false},
    {"origin", "B, T, D", offsetof(mix_backward_args, origin), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(mix_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(mix_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(mix_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"R", "", offsetof(mix_backward_args, R), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(mix_backward_args, D), ROT_INT, ROT_CALLS, false},
    {"u_varying", "", offsetof(mix_backward_args, u_varying), ROT_INT, ROT_CALLS, false},
    {"alpha_varying", "", offsetof(mix_backward_args, alpha_varying), ROT_INT, ROT_CALLS, false},
    {"form", "", offsetof(mix_backward_args, form), ROT_INT, ROT_CALLS, false},
};

static void sizes_relax(int64_t *sizes, const void *memory) {
    const relax_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(B);
    sizes[4] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_relax[] = {
    {"residual", "B", offsetof(relax_args, residual), ROT_WRITE, ROT_CALLS, false},
    {"y", "B, T, D", offsetof(relax_args, y), ROT_WRITE, ROT_CALLS, false},
    {"f", "B, T, D", offsetof(relax_args, f), ROT_READ, ROT_CALLS, false},
    {"s", "B", offsetof(relax_args, s), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(relax_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(relax_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(relax_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(relax_args, D), ROT_INT, ROT_CALLS, false},
    {"each_step", "", offsetof(relax_args, each_step), ROT_INT, ROT_CALLS, false},
};

static void sizes_mixer_prepare(int64_t *sizes, const void *memory) {
    const mixer_prepare_args *const args = memory;
    const int64_t M = args->M;
    const int64_t R = args->R;
    const int64_t D = args->D;
    const int64_t form = args->form;
    sizes[0] = EXTENT(M, mixer_ready(form, R, D));
    sizes[1] = EXTENT(M, mixer_vectors(form, R, D));
    (void)args;
}

static const rot_argument arguments_mixer_prepare[] = {
    {"w", "M, mixer_ready(form, R, D)", offsetof(mixer_prepare_args, w), ROT_WRITE, ROT_CALLS, false},
    {"u", "M, mixer_vectors(form, R, D)", offsetof(mixer_prepare_args, u), ROT_READ, ROT_CALLS, false},
    {"M", "", offsetof(mixer_prepare_args, M), ROT_INT, ROT_CALLS, false},
    {"R", "", offsetof(mixer_prepare_args, R), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(mixer_prepare_args, D), ROT_INT, ROT_CALLS, false},
    {"form", "", offsetof(mixer_prepare_args, form), ROT_INT, ROT_CALLS, false},
};

static void sizes_depth_pass(int64_t *sizes, const void *memory) {
    const depth_pass_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t R = args->R;
    const int64_t D = args->D;
    const int64_t varying = args->varying;
    const int64_t w_varying = args->w_varying;
    const int64_t alpha_varying = args->alpha_varying;
    const int64_t form = args->form;
    sizes[0] = EXTENT(B);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(varying ? B*T : 1, D);
    sizes[4] = EXTENT(w_varying ? B*T : 1, mixer_ready(form, R, D));
    sizes[5] = EXTENT(alpha_varying ? B*T : 1, mixer_gains(form, R, D));
    sizes[6] = EXTENT(B, D);
    sizes[7] = EXTENT(B);
    sizes[8] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_depth_pass[] = {
    {"residual", "B", offsetof(depth_pass_args, residual), ROT_WRITE, ROT_CALLS, false},
    {"y", "B, T, D", offsetof(depth_pass_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(depth_pass_args, x), ROT_READ, ROT_CALLS, false},
    {"lam", "varying ? B*T : 1, D", offsetof(depth_pass_args, lam), ROT_READ, ROT_CALLS, false},
    {"w", "w_varying ? B*T : 1, mixer_ready(form, R, D)", offsetof(depth_pass_args, w), ROT_READ, ROT_CALLS, false},
    {"alpha", "alpha_varying ? B*T : 1, mixer_gains(form, R, D)", offsetof(depth_pass_args, alpha), ROT_READ, ROT_CALLS, false},
    {"h0", "B, D", offsetof(depth_pass_args, h0), ROT_READ, ROT_CALLS, true},
    {"s", "B", offsetof(depth_pass_args, s), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(depth_pass_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(depth_pass_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(depth_pass_args, T), ROT_INT, ROT_CALLS, false},
    {"R", "", offsetof(depth_pass_args, R), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(depth_pass_args, D), ROT_INT, ROT_CALLS, false},
    {"varying", "", offsetof(depth_pass_args, varying), ROT_INT, ROT_CALLS, false},
    {"w_varying", "", offsetof(depth_pass_args, w_varying), ROT_INT, ROT_CALLS, false},
    {"alpha_varying", "", offsetof(depth_pass_args, alpha_varying), ROT_INT, ROT_CALLS, false},
    {"form", "", offsetof(depth_pass_args, form), ROT_INT, ROT_CALLS, false},
    {"scaled", "", offsetof(depth_pass_args, scaled), ROT_INT, ROT_CALLS, false},
    {"adjoint", "", offsetof(depth_pass_args, adjoint), ROT_INT, ROT_CALLS, false},
};

static void sizes_lagged_forward(int64_t *sizes, const void *memory) {
    const lagged_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t K = args->K;
    const int64_t n = args->n;
    sizes[0] = EXTENT(B, T, n);
    sizes[1] = EXTENT(B, T, K);
    sizes[2] = EXTENT(B, T, K);
    sizes[3] = EXTENT(B, K);
    sizes[4] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_lagged_forward[] = {
    {"out", "B, T, n", offsetof(lagged_forward_args, out), ROT_WRITE, ROT_CALLS, false},
    {"base", "B, T, K", offsetof(lagged_forward_args, base), ROT_READ, ROT_CALLS, false},
    {"late", "B, T, K", offsetof(lagged_forward_args, late), ROT_READ, ROT_CALLS, true},
    {"first", "B, K", offsetof(lagged_forward_args, first), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(lagged_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(lagged_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(lagged_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"K", "", offsetof(lagged_forward_args, K), ROT_INT, ROT_CALLS, false},
    {"lo", "", offsetof(lagged_forward_args, lo), ROT_INT, ROT_CALLS, false},
    {"n", "", offsetof(lagged_forward_args, n), ROT_INT, ROT_CALLS, false},
    {"function", "", offsetof(lagged_forward_args, function), ROT_INT, ROT_CALLS, false},
};

static void sizes_lagged_product(int64_t *sizes, const void *memory) {
    const lagged_product_args *const args = memory;
    const int64_t ranges = args->ranges;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t K = args->K;
    const int64_t E = args->E;
    sizes[0] = EXTENT(B, T, K);
    sizes[1] = EXTENT(B, T, K);
    sizes[2] = EXTENT(B, T, E);
    sizes[3] = EXTENT(K, E);
    sizes[4] = EXTENT(B, K);
    sizes[5] = EXTENT(B);
    sizes[6] = EXTENT(ranges);
    sizes[7] = EXTENT(ranges);
    (void)args;
}

static const rot_argument arguments_lagged_product[] = {
    {"out", "B, T, K", offsetof(lagged_product_args, out), ROT_WRITE, ROT_CALLS, false},
    {"base", "B, T, K", offsetof(lagged_product_args, base), ROT_READ, ROT_CALLS, false},
    {"y", "B, T, E", offsetof(lagged_product_args, y), ROT_READ, ROT_CALLS, false},
    {"v", "K, E", offsetof(lagged_product_args, v), ROT_READ, ROT_CALLS, false},
    {"first", "B, K", offsetof(lagged_product_args, first), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(lagged_product_args, lengths), ROT_READ, ROT_INT64, true},
    {"widths", "ranges", offsetof(lagged_product_args, widths), ROT_READ, ROT_INT64, false},
    {"functions", "ranges", offsetof(lagged_product_args, functions), ROT_READ, ROT_INT64, false},
    {"ranges", "", offsetof(lagged_product_args, ranges), ROT_INT, ROT_CALLS, false},
    {"B", "", offsetof(lagged_product_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(lagged_product_args, T), ROT_INT, ROT_CALLS, false},
    {"K", "", offsetof(lagged_product_args, K), ROT_INT, ROT_CALLS, false},
    {"E", "", offsetof(lagged_product_args, E), ROT_INT, ROT_CALLS, false},
};

static void sizes_lagged_backward(int64_t *sizes, const void *memory) {
    const lagged_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t K = args->K;
    const int64_t n = args->n;
    sizes[0] = EXTENT(B, T, K);
    sizes[1] = EXTENT(B, T, K);
    sizes[2] = EXTENT(B, K);
    sizes[3] = EXTENT(B, T, n);
    sizes[4] = EXTENT(B, T, K);
    sizes[5] = EXTENT(B, T, K);
    sizes[6] = EXTENT(B, K);
    sizes[7] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_lagged_backward[] = {
    {"dbase", "B, T, K", offsetof(lagged_backward_args, dbase), ROT_WRITE, ROT_CALLS, false},
    {"dlate", "B, T, K", offsetof(lagged_backward_args, dlate), ROT_WRITE, ROT_CALLS, true},
    {"dfirst", "B, K", offsetof(lagged_backward_args, dfirst), ROT_WRITE, ROT_CALLS, true},
    {"dout", "B, T, n", offsetof(lagged_backward_args, dout), ROT_READ, ROT_CALLS, false},
    {"base", "B, T, K", offsetof(lagged_backward_args, base), ROT_READ, ROT_CALLS, false},
    {"late", "B, T, K", offsetof(lagged_backward_args, late), ROT_READ, ROT_CALLS, true},
    {"first", "B, K", offsetof(lagged_backward_args, first), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(lagged_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(lagged_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(lagged_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"K", "", offsetof(lagged_backward_args, K), ROT_INT, ROT_CALLS, false},
    {"lo", "", offsetof(lagged_backward_args, lo), ROT_INT, ROT_CALLS, false},
    {"n", "", offsetof(lagged_backward_args, n), ROT_INT, ROT_CALLS, false},
    {"function", "", offsetof(lagged_backward_args, function), ROT_INT, ROT_CALLS, false},
};

static void sizes_elementwise(int64_t *sizes, const void *memory) {
    const elementwise_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_elementwise[] = {
    {"y", "B, T, D", offsetof(elementwise_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(elementwise_args, x), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(elementwise_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(elementwise_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(elementwise_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(elementwise_args, D), ROT_INT, ROT_CALLS, false},
    {"function", "", offsetof(elementwise_args, function), ROT_INT, ROT_CALLS, false},
};

static void sizes_elementwise_backward(int64_t *sizes, const void *memory) {
    const elementwise_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_elementwise_backward[] = {
    {"dx", "B, T, D", offsetof(elementwise_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(elementwise_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(elementwise_backward_args, x), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(elementwise_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(elementwise_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(elementwise_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(elementwise_backward_args, D), ROT_INT, ROT_CALLS, false},
    {"function", "", offsetof(elementwise_backward_args, function), ROT_INT, ROT_CALLS, false},
};

static void sizes_glu_forward(int64_t *sizes, const void *memory) {
    const glu_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_glu_forward[] = {
    {"y", "B, T, D", offsetof(glu_forward_args, y), ROT_WRITE, ROT_CALLS, false},
    {"value", "B, T, D", offsetof(glu_forward_args, value), ROT_READ, ROT_CALLS, false},
    {"gate", "B, T, D", offsetof(glu_forward_args, gate), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(glu_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(glu_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(glu_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(glu_forward_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_glu_backward(int64_t *sizes, const void *memory) {
    const glu_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(B, T, D);
    sizes[4] = EXTENT(B, T, D);
    sizes[5] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_glu_backward[] = {
    {"dvalue", "B, T, D", offsetof(glu_backward_args, dvalue), ROT_WRITE, ROT_CALLS, false},
    {"dgate", "B, T, D", offsetof(glu_backward_args, dgate), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(glu_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"value", "B, T, D", offsetof(glu_backward_args, value), ROT_READ, ROT_CALLS, false},
    {"gate", "B, T, D", offsetof(glu_backward_args, gate), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(glu_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(glu_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(glu_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(glu_backward_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_mask_padding(int64_t *sizes, const void *memory) {
    const mask_padding_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_mask_padding[] = {
    {"y", "B, T, D", offsetof(mask_padding_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(mask_padding_args, x), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(mask_padding_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(mask_padding_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(mask_padding_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(mask_padding_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_dropout(int64_t *sizes, const void *memory) {
    const dropout_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B);
    sizes[3] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_dropout[] = {
    {"y", "B, T, D", offsetof(dropout_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(dropout_args, x), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(dropout_args, lengths), ROT_READ, ROT_INT64, true},
    {"places", "B", offsetof(dropout_args, places), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(dropout_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(dropout_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(dropout_args, D), ROT_INT, ROT_CALLS, false},
    {"rate", "", offsetof(dropout_args, rate), ROT_FLOAT, ROT_CALLS, false},
    {"seed", "", offsetof(dropout_args, seed), ROT_INT, ROT_CALLS, false},
    {"step", "", offsetof(dropout_args, step), ROT_INT, ROT_CALLS, false},
    {"site", "", offsetof(dropout_args, site), ROT_INT, ROT_CALLS, false},
    {"over_time", "", offsetof(dropout_args, over_time), ROT_INT, ROT_CALLS, false},
};

static void sizes_channel_moments(int64_t *sizes, const void *memory) {
    const channel_moments_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(D);
    sizes[1] = EXTENT(D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_channel_moments[] = {
    {"mean", "D", offsetof(channel_moments_args, mean), ROT_WRITE, ROT_CALLS, false},
    {"var", "D", offsetof(channel_moments_args, var), ROT_WRITE, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(channel_moments_args, x), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(channel_moments_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(channel_moments_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(channel_moments_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(channel_moments_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_channel_affine(int64_t *sizes, const void *memory) {
    const channel_affine_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(D);
    sizes[3] = EXTENT(D);
    sizes[4] = EXTENT(D);
    sizes[5] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_channel_affine[] = {
    {"y", "B, T, D", offsetof(channel_affine_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(channel_affine_args, x), ROT_READ, ROT_CALLS, false},
    {"center", "D", offsetof(channel_affine_args, center), ROT_READ, ROT_CALLS, false},
    {"gain", "D", offsetof(channel_affine_args, gain), ROT_READ, ROT_CALLS, false},
    {"offset", "D", offsetof(channel_affine_args, offset), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(channel_affine_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(channel_affine_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(channel_affine_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(channel_affine_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_channel_sums(int64_t *sizes, const void *memory) {
    const channel_sums_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(D);
    sizes[1] = EXTENT(D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(B, T, D);
    sizes[4] = EXTENT(D);
    sizes[5] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_channel_sums[] = {
    {"sum", "D", offsetof(channel_sums_args, sum), ROT_WRITE, ROT_CALLS, false},
    {"product", "D", offsetof(channel_sums_args, product), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(channel_sums_args, dy), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(channel_sums_args, x), ROT_READ, ROT_CALLS, false},
    {"center", "D", offsetof(channel_sums_args, center), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(channel_sums_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(channel_sums_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(channel_sums_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(channel_sums_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_channel_adjoint(int64_t *sizes, const void *memory) {
    const channel_adjoint_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(D);
    sizes[4] = EXTENT(D);
    sizes[5] = EXTENT(D);
    sizes[6] = EXTENT(D);
    sizes[7] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_channel_adjoint[] = {
    {"dx", "B, T, D", offsetof(channel_adjoint_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(channel_adjoint_args, dy), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(channel_adjoint_args, x), ROT_READ, ROT_CALLS, false},
    {"center", "D", offsetof(channel_adjoint_args, center), ROT_READ, ROT_CALLS, false},
    {"gain", "D", offsetof(channel_adjoint_args, gain), ROT_READ, ROT_CALLS, false},
    {"slope", "D", offsetof(channel_adjoint_args, slope), ROT_READ, ROT_CALLS, false},
    {"offset", "D", offsetof(channel_adjoint_args, offset), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(channel_adjoint_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(channel_adjoint_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(channel_adjoint_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(channel_adjoint_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_layer_norm_forward(int64_t *sizes, const void *memory) {
    const layer_norm_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T);
    sizes[2] = EXTENT(B, T);
    sizes[3] = EXTENT(B, T, D);
    sizes[4] = EXTENT(D);
    sizes[5] = EXTENT(D);
    sizes[6] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_layer_norm_forward[] = {
    {"y", "B, T, D", offsetof(layer_norm_forward_args, y), ROT_WRITE, ROT_CALLS, false},
    {"mean", "B, T", offsetof(layer_norm_forward_args, mean), ROT_WRITE, ROT_CALLS, false},
    {"rstd", "B, T", offsetof(layer_norm_forward_args, rstd), ROT_WRITE, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(layer_norm_forward_args, x), ROT_READ, ROT_CALLS, false},
    {"scale", "D", offsetof(layer_norm_forward_args, scale), ROT_READ, ROT_CALLS, false},
    {"bias", "D", offsetof(layer_norm_forward_args, bias), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(layer_norm_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(layer_norm_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(layer_norm_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(layer_norm_forward_args, D), ROT_INT, ROT_CALLS, false},
    {"eps", "", offsetof(layer_norm_forward_args, eps), ROT_FLOAT, ROT_CALLS, false},
};

static void sizes_layer_norm_backward(int64_t *sizes, const void *memory) {
    const layer_norm_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(D);
    sizes[2] = EXTENT(D);
    sizes[3] = EXTENT(B, T, D);
    sizes[4] = EXTENT(B, T, D);
    sizes[5] = EXTENT(D);
    sizes[6] = EXTENT(B, T);
    sizes[7] = EXTENT(B, T);
    sizes[8] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_layer_norm_backward[] = {
    {"dx", "B, T, D", offsetof(layer_norm_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"dscale", "D", offsetof(layer_norm_backward_args, dscale), ROT_WRITE, ROT_CALLS, false},
    {"dbias", "D", offsetof(layer_norm_backward_args, dbias), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(layer_norm_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(layer_norm_backward_args, x), ROT_READ, ROT_CALLS, false},
    {"scale", "D", offsetof(layer_norm_backward_args, scale), ROT_READ, ROT_CALLS, false},
    {"mean", "B, T", offsetof(layer_norm_backward_args, mean), ROT_READ, ROT_CALLS, false},
    {"rstd", "B, T", offsetof(layer_norm_backward_args, rstd), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(layer_norm_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(layer_norm_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(layer_norm_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(layer_norm_backward_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_embedding_forward(int64_t *sizes, const void *memory) {
    const embedding_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    const int64_t V = args->V;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, T);
    sizes[2] = EXTENT(V, D);
    sizes[3] = EXTENT(D);
    sizes[4] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_embedding_forward[] = {
    {"y", "B, T, D", offsetof(embedding_forward_args, y), ROT_WRITE, ROT_CALLS, false},
    {"ids", "B, T", offsetof(embedding_forward_args, ids), ROT_READ, ROT_INT64, false},
    {"table", "V, D", offsetof(embedding_forward_args, table), ROT_READ, ROT_CALLS, false},
    {"bias", "D", offsetof(embedding_forward_args, bias), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(embedding_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(embedding_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(embedding_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(embedding_forward_args, D), ROT_INT, ROT_CALLS, false},
    {"V", "", offsetof(embedding_forward_args, V), ROT_INT, ROT_CALLS, false},
};

static void sizes_embedding_backward(int64_t *sizes, const void *memory) {
    const embedding_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    const int64_t V = args->V;
    sizes[0] = EXTENT(V, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B, T);
    sizes[3] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_embedding_backward[] = {
    {"dtable", "V, D", offsetof(embedding_backward_args, dtable), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(embedding_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"ids", "B, T", offsetof(embedding_backward_args, ids), ROT_READ, ROT_INT64, false},
    {"lengths", "B", offsetof(embedding_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(embedding_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(embedding_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(embedding_backward_args, D), ROT_INT, ROT_CALLS, false},
    {"V", "", offsetof(embedding_backward_args, V), ROT_INT, ROT_CALLS, false},
};

static void sizes_mean_pool_forward(int64_t *sizes, const void *memory) {
    const mean_pool_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, D);
    sizes[1] = EXTENT(B, T, D);
    sizes[2] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_mean_pool_forward[] = {
    {"y", "B, D", offsetof(mean_pool_forward_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "B, T, D", offsetof(mean_pool_forward_args, x), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(mean_pool_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(mean_pool_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(mean_pool_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(mean_pool_forward_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_mean_pool_backward(int64_t *sizes, const void *memory) {
    const mean_pool_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, D);
    sizes[2] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_mean_pool_backward[] = {
    {"dx", "B, T, D", offsetof(mean_pool_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, D", offsetof(mean_pool_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(mean_pool_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(mean_pool_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(mean_pool_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(mean_pool_backward_args, D), ROT_INT, ROT_CALLS, false},
};

static void sizes_cross_entropy(int64_t *sizes, const void *memory) {
    const cross_entropy_args *const args = memory;
    const int64_t B = args->B;
    const int64_t C = args->C;
    sizes[0] = EXTENT(B);
    sizes[1] = EXTENT(B, C);
    sizes[2] = EXTENT(B, C);
    sizes[3] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_cross_entropy[] = {
    {"loss", "B", offsetof(cross_entropy_args, loss), ROT_WRITE, ROT_CALLS, false},
    {"dlogits", "B, C", offsetof(cross_entropy_args, dlogits), ROT_WRITE, ROT_CALLS, false},
    {"logits", "B, C", offsetof(cross_entropy_args, logits), ROT_READ, ROT_CALLS, false},
    {"labels", "B", offsetof(cross_entropy_args, labels), ROT_READ, ROT_INT64, false},
    {"B", "", offsetof(cross_entropy_args, B), ROT_INT, ROT_CALLS, false},
    {"C", "", offsetof(cross_entropy_args, C), ROT_INT, ROT_CALLS, false},
};

static void sizes_adamw(int64_t *sizes, const void *memory) {
    const adamw_args *const args = memory;
    const int64_t n = args->n;
    sizes[0] = EXTENT(n);
    sizes[1] = EXTENT(n);
    sizes[2] = EXTENT(n);
    sizes[3] = EXTENT(2);
    sizes[4] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_adamw[] = {
    {"p", "n", offsetof(adamw_args, p), ROT_WRITE, ROT_CALLS, false},
    {"m", "n", offsetof(adamw_args, m), ROT_WRITE, ROT_CALLS, false},
    {"v", "n", offsetof(adamw_args, v), ROT_WRITE, ROT_CALLS, false},
    {"norms", "2", offsetof(adamw_args, norms), ROT_WRITE, ROT_FLOAT64, false},
    {"grad", "n", offsetof(adamw_args, grad), ROT_READ, ROT_CALLS, false},
    {"n", "", offsetof(adamw_args, n), ROT_INT, ROT_CALLS, false},
    {"lr", "", offsetof(adamw_args, lr), ROT_FLOAT, ROT_CALLS, false},
    {"beta1", "", offsetof(adamw_args, beta1), ROT_FLOAT, ROT_CALLS, false},
    {"beta2", "", offsetof(adamw_args, beta2), ROT_FLOAT, ROT_CALLS, false},
    {"eps", "", offsetof(adamw_args, eps), ROT_FLOAT, ROT_CALLS, false},
    {"decay", "", offsetof(adamw_args, decay), ROT_FLOAT, ROT_CALLS, false},
    {"scale", "", offsetof(adamw_args, scale), ROT_FLOAT, ROT_CALLS, false},
    {"step", "", offsetof(adamw_args, step), ROT_INT, ROT_CALLS, false},
};

static void sizes_norm(int64_t *sizes, const void *memory) {
    const norm_args *const args = memory;
    const int64_t n = args->n;
    sizes[0] = EXTENT(1);
    sizes[1] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_norm[] = {
    {"norm", "1", offsetof(norm_args, norm), ROT_WRITE, ROT_FLOAT64, false},
    {"x", "n", offsetof(norm_args, x), ROT_READ, ROT_CALLS, false},
    {"n", "", offsetof(norm_args, n), ROT_INT, ROT_CALLS, false},
};

static void sizes_block_forward(int64_t *sizes, const void *memory) {
    const block_forward_args *const args = memory;
    const int64_t B = args->b.B;
    const int64_t T = args->b.T;
    const int64_t D = args->b.D;
    const int64_t L = args->b.L;
    const int64_t K = args->b.K;
    const int64_t tile = args->b.tile;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(L, D);
    sizes[2] = EXTENT(L);
    sizes[3] = EXTENT(K, D, L);
    sizes[4] = EXTENT(D);
    sizes[5] = EXTENT(K, B, L);
    sizes[6] = EXTENT(D);
    sizes[7] = EXTENT(D);
    sizes[8] = EXTENT(D);
    sizes[9] = EXTENT(D, D);
    sizes[10] = EXTENT(D);
    sizes[11] = EXTENT(D, D);
    sizes[12] = EXTENT(D);
    sizes[13] = EXTENT(B);
    sizes[14] = EXTENT(B);
    sizes[15] = EXTENT(B, T, D);
    sizes[16] = EXTENT(K, B, L);
    sizes[17] = EXTENT(K, B, tiles(T, tile), L);
    sizes[18] = EXTENT(D);
    sizes[19] = EXTENT(D);
    sizes[20] = EXTENT(B, T, D);
    (void)args;
}

static const rot_argument arguments_block_forward[] = {
    {"x", "B, T, D", offsetof(block_forward_args, b.x), ROT_READ, ROT_CALLS, false},
    {"w_in", "L, D", offsetof(block_forward_args, b.w_in), ROT_READ, ROT_CALLS, false},
    {"a", "L", offsetof(block_forward_args, b.a), ROT_READ, ROT_CALLS, false},
    {"w_out", "K, D, L", offsetof(block_forward_args, b.w_out), ROT_READ, ROT_CALLS, false},
    {"skip", "D", offsetof(block_forward_args, b.skip), ROT_READ, ROT_CALLS, false},
    {"h0", "K, B, L", offsetof(block_forward_args, b.h0), ROT_READ, ROT_CALLS, true},
    {"center", "D", offsetof(block_forward_args, b.center), ROT_READ, ROT_CALLS, true},
    {"gain", "D", offsetof(block_forward_args, b.gain), ROT_READ, ROT_CALLS, true},
    {"offset", "D", offsetof(block_forward_args, b.offset), ROT_READ, ROT_CALLS, true},
    {"w_value", "D, D", offsetof(block_forward_args, b.w_value), ROT_READ, ROT_CALLS, true},
    {"b_value", "D", offsetof(block_forward_args, b.b_value), ROT_READ, ROT_CALLS, true},
    {"w_gate", "D, D", offsetof(block_forward_args, b.w_gate), ROT_READ, ROT_CALLS, true},
    {"b_gate", "D", offsetof(block_forward_args, b.b_gate), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(block_forward_args, b.lengths), ROT_READ, ROT_INT64, true},
    {"places", "B", offsetof(block_forward_args, b.places), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(block_forward_args, b.B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(block_forward_args, b.T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(block_forward_args, b.D), ROT_INT, ROT_CALLS, false},
    {"L", "", offsetof(block_forward_args, b.L), ROT_INT, ROT_CALLS, false},
    {"K", "", offsetof(block_forward_args, b.K), ROT_INT, ROT_CALLS, false},
    {"tile", "", offsetof(block_forward_args, b.tile), ROT_INT, ROT_CALLS, false},
    {"norm", "", offsetof(block_forward_args, b.norm), ROT_INT, ROT_CALLS, false},
    {"gate", "", offsetof(block_forward_args, b.gate), ROT_INT, ROT_CALLS, false},
    {"eps", "", offsetof(block_forward_args, b.eps), ROT_FLOAT, ROT_CALLS, false},
    {"rate", "", offsetof(block_forward_args, b.rate), ROT_FLOAT, ROT_CALLS, false},
    {"seed", "", offsetof(block_forward_args, b.seed), ROT_INT, ROT_CALLS, false},
    {"step", "", offsetof(block_forward_args, b.step), ROT_INT, ROT_CALLS, false},
    {"site", "", offsetof(block_forward_args, b.site), ROT_INT, ROT_CALLS, false},
    {"over_time", "", offsetof(block_forward_args, b.over_time), ROT_INT, ROT_CALLS, false},
    {"y", "B, T, D", offsetof(block_forward_args, out.y), ROT_WRITE, ROT_CALLS, false},
    {"hT", "K, B, L", offsetof(block_forward_args, out.hT), ROT_WRITE, ROT_CALLS, false},
    {"carries", "K, B, tiles(T, tile), L", offsetof(block_forward_args, out.carries), ROT_WRITE, ROT_CALLS, false},
    {"mean", "D", offsetof(block_forward_args, out.mean), ROT_WRITE, ROT_CALLS, true},
    {"var", "D", offsetof(block_forward_args, out.var), ROT_WRITE, ROT_CALLS, true},
    {"layer", "B, T, D", offsetof(block_forward_args, out.layer), ROT_WRITE, ROT_CALLS, true},
};

static void sizes_block_backward(int64_t *sizes, const void *memory) {
    const block_backward_args *const args = memory;
    const int64_t B = args->b.B;
    const int64_t T = args->b.T;
    const int64_t D = args->b.D;
    const int64_t L = args->b.L;
    const int64_t K = args->b.K;
    const int64_t tile = args->b.tile;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(L, D);
    sizes[2] = EXTENT(L);
    sizes[3] = EXTENT(K, D, L);
    sizes[4] = EXTENT(D);
    sizes[5] = EXTENT(K, B, L);
    sizes[6] = EXTENT(D);
    sizes[7] = EXTENT(D);
    sizes[8] = EXTENT(D);
    sizes[9] = EXTENT(D, D);
    sizes[10] = EXTENT(D);
    sizes[11] = EXTENT(D, D);
    sizes[12] = EXTENT(D);
    sizes[13] = EXTENT(B);
    sizes[14] = EXTENT(B);
    sizes[15] = EXTENT(B, T, D);
    sizes[16] = EXTENT(K, B, tiles(T, tile), L);
    sizes[17] = EXTENT(K, B, L);
    sizes[18] = EXTENT(B, T, D);
    sizes[19] = EXTENT(B, T, D);
    sizes[20] = EXTENT(D);
    sizes[21] = EXTENT(D);
    sizes[22] = EXTENT(D);
    sizes[23] = EXTENT(B, T, D);
    sizes[24] = EXTENT(L, D);
    sizes[25] = EXTENT(L);
    sizes[26] = EXTENT(K, D, L);
    sizes[27] = EXTENT(D);
    sizes[28] = EXTENT(K, B, L);
    sizes[29] = EXTENT(D);
    sizes[30] = EXTENT(D);
    sizes[31] = EXTENT(D, D);
    sizes[32] = EXTENT(D);
    sizes[33] = EXTENT(D, D);
    sizes[34] = EXTENT(D);
    (void)args;
}

static const rot_argument arguments_block_backward[] = {
    {"x", "B, T, D", offsetof(block_backward_args, b.x), ROT_READ, ROT_CALLS, false},
    {"w_in", "L, D", offsetof(block_backward_args, b.w_in), ROT_READ, ROT_CALLS, false},
    {"a", "L", offsetof(block_backward_args, b.a), ROT_READ, ROT_CALLS, false},
    {"w_out", "K, D, L", offsetof(block_backward_args, b.w_out), ROT_READ, ROT_CALLS, false},
    {"skip", "D", offsetof(block_backward_args, b.skip), ROT_READ, ROT_CALLS, false},
    {"h0", "K, B, L", offsetof(block_backward_args, b.h0), ROT_READ, ROT_CALLS, true},
    {"center", "D", offsetof(block_backward_args, b.center), ROT_READ, ROT_CALLS, true},
    {"gain", "D", offsetof(block_backward_args, b.gain), ROT_READ, ROT_CALLS, true},
    {"offset", "D", offsetof(block_backward_args, b.offset), ROT_READ, ROT_CALLS, true},
    {"w_value", "D, D", offsetof(block_backward_args, b.w_value), ROT_READ, ROT_CALLS, true},
    {"b_value", "D", offsetof(block_backward_args, b.b_value), ROT_READ, ROT_CALLS, true},
    {"w_gate", "D, D", offsetof(block_backward_args, b.w_gate), ROT_READ, ROT_CALLS, true},
    {"b_gate", "D", offsetof(block_backward_args, b.b_gate), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(block_backward_args, b.lengths), ROT_READ, ROT_INT64, true},
    {"places", "B", offsetof(block_backward_args, b.places), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(block_backward_args, b.B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(block_backward_args, b.T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(block_backward_args, b.D), ROT_INT, ROT_CALLS, false},
    {"L", "", offsetof(block_backward_args, b.L), ROT_INT, ROT_CALLS, false},
    {"K", "", offsetof(block_backward_args, b.K), ROT_INT, ROT_CALLS, false},
    {"tile", "", offsetof(block_backward_args, b.tile), ROT_INT, ROT_CALLS, false},
    {"norm", "", offsetof(block_backward_args, b.norm), ROT_INT, ROT_CALLS, false},
    {"gate", "", offsetof(block_backward_args, b.gate), ROT_INT, ROT_CALLS, false},
    {"eps", "", offsetof(block_backward_args, b.eps), ROT_FLOAT, ROT_CALLS, false},
    {"rate", "", offsetof(block_backward_args, b.rate), ROT_FLOAT, ROT_CALLS, false},
    {"seed", "", offsetof(block_backward_args, b.seed), ROT_INT, ROT_CALLS, false},
    {"step", "", offsetof(block_backward_args, b.step), ROT_INT, ROT_CALLS, false},
    {"site", "", offsetof(block_backward_args, b.site), ROT_INT, ROT_CALLS, false},
    {"over_time", "", offsetof(block_backward_args, b.over_time), ROT_INT, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(block_backward_args, in.dy), ROT_READ, ROT_CALLS, false},
    {"carries", "K, B, tiles(T, tile), L", offsetof(block_backward_args, in.carries), ROT_READ, ROT_CALLS, false},
    {"dhT", "K, B, L", offsetof(block_backward_args, in.dhT), ROT_READ, ROT_CALLS, true},
    {"layer", "B, T, D", offsetof(block_backward_args, in.layer), ROT_READ, ROT_CALLS, true},
    {"later_y", "B, T, D", offsetof(block_backward_args, in.later_y), ROT_READ, ROT_CALLS, true},
    {"later_center", "D", offsetof(block_backward_args, in.later_center), ROT_READ, ROT_CALLS, true},
    {"later_slope", "D", offsetof(block_backward_args, in.later_slope), ROT_READ, ROT_CALLS, true},
    {"later_shift", "D", offsetof(block_backward_args, in.later_shift), ROT_READ, ROT_CALLS, true},
    {"dx", "B, T, D", offsetof(block_backward_args, out.dx), ROT_WRITE, ROT_CALLS, false},
    {"dw_in", "L, D", offsetof(block_backward_args, out.dw_in), ROT_WRITE, ROT_CALLS, false},
    {"da", "L", offsetof(block_backward_args, out.da), ROT_WRITE, ROT_CALLS, false},
    {"dw_out", "K, D, L", offsetof(block_backward_args, out.dw_out), ROT_WRITE, ROT_CALLS, false},
    {"dskip", "D", offsetof(block_backward_args, out.dskip), ROT_WRITE, ROT_CALLS, false},
    {"dh0", "K, B, L", offsetof(block_backward_args, out.dh0), ROT_WRITE, ROT_CALLS, false},
    {"d_norm_sum", "D", offsetof(block_backward_args, out.d_norm_sum), ROT_WRITE, ROT_CALLS, true},
    {"d_norm_product", "D", offsetof(block_backward_args, out.d_norm_product), ROT_WRITE, ROT_CALLS, true},
    {"dw_value", "D, D", offsetof(block_backward_args, out.dw_value), ROT_WRITE, ROT_CALLS, true},
    {"db_value", "D", offsetof(block_backward_args, out.db_value), ROT_WRITE, ROT_CALLS, true},
    {"dw_gate", "D, D", offsetof(block_backward_args, out.dw_gate), ROT_WRITE, ROT_CALLS, true},
    {"db_gate", "D", offsetof(block_backward_args, out.db_gate), ROT_WRITE, ROT_CALLS, true},
};

static void sizes_orthogonal_forward(int64_t *sizes, const void *memory) {
    const orthogonal_forward_args *const args = memory;
    const int64_t G = args->G;
    const int64_t n = args->n;
    sizes[0] = EXTENT(G, n, n);
    sizes[1] = EXTENT(G, n, n);
    (void)args;
}

static const rot_argument arguments_orthogonal_forward[] = {
    {"P", "G, n, n", offsetof(orthogonal_forward_args, P), ROT_WRITE, ROT_CALLS, false},
    {"M", "G, n, n", offsetof(orthogonal_forward_args, M), ROT_READ, ROT_CALLS, false},
    {"G", "", offsetof(orthogonal_forward_args, G), ROT_INT, ROT_CALLS, false},
    {"n", "", offsetof(orthogonal_forward_args, n), ROT_INT, ROT_CALLS, false},
};

static void sizes_orthogonal_backward(int64_t *sizes, const void *memory) {
    const orthogonal_backward_args *const args = memory;
    const int64_t G = args->G;
    const int64_t n = args->n;
    sizes[0] = EXTENT(G, n, n);
    sizes[1] = EXTENT(G, n, n);
    sizes[2] = EXTENT(G, n, n);
    (void)args;
}

static const rot_argument arguments_orthogonal_backward[] = {
    {"dM", "G, n, n", offsetof(orthogonal_backward_args, dM), ROT_WRITE, ROT_CALLS, false},
    {"dP", "G, n, n", offsetof(orthogonal_backward_args, dP), ROT_READ, ROT_CALLS, false},
    {"M", "G, n, n", offsetof(orthogonal_backward_args, M), ROT_READ, ROT_CALLS, false},
    {"G", "", offsetof(orthogonal_backward_args, G), ROT_INT, ROT_CALLS, false},
    {"n", "", offsetof(orthogonal_backward_args, n), ROT_INT, ROT_CALLS, false},
};

static void sizes_attention_forward(int64_t *sizes, const void *memory) {
    const attention_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t S = args->S;
    const int64_t D = args->D;
    const int64_t H = args->H;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, H, T);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(B, S, D);
    sizes[4] = EXTENT(B, S, D);
    sizes[5] = EXTENT(B);
    sizes[6] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_attention_forward[] = {
    {"y", "B, T, D", offsetof(attention_forward_args, y), ROT_WRITE, ROT_CALLS, false},
    {"norm", "B, H, T", offsetof(attention_forward_args, norm), ROT_WRITE, ROT_CALLS, false},
    {"q", "B, T, D", offsetof(attention_forward_args, q), ROT_READ, ROT_CALLS, false},
    {"k", "B, S, D", offsetof(attention_forward_args, k), ROT_READ, ROT_CALLS, false},
    {"v", "B, S, D", offsetof(attention_forward_args, v), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(attention_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"past", "B", offsetof(attention_forward_args, past), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(attention_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(attention_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"S", "", offsetof(attention_forward_args, S), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(attention_forward_args, D), ROT_INT, ROT_CALLS, false},
    {"H", "", offsetof(attention_forward_args, H), ROT_INT, ROT_CALLS, false},
    {"window", "", offsetof(attention_forward_args, window), ROT_INT, ROT_CALLS, false},
};

static void sizes_attention_backward(int64_t *sizes, const void *memory) {
    const attention_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t S = args->S;
    const int64_t D = args->D;
    const int64_t H = args->H;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, S, D);
    sizes[2] = EXTENT(B, S, D);
    sizes[3] = EXTENT(B, T, D);
    sizes[4] = EXTENT(B, T, D);
    sizes[5] = EXTENT(B, S, D);
    sizes[6] = EXTENT(B, S, D);
    sizes[7] = EXTENT(B, T, D);
    sizes[8] = EXTENT(B, H, T);
    sizes[9] = EXTENT(B);
    sizes[10] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_attention_backward[] = {
    {"dq", "B, T, D", offsetof(attention_backward_args, dq), ROT_WRITE, ROT_CALLS, false},
    {"dk", "B, S, D", offsetof(attention_backward_args, dk), ROT_WRITE, ROT_CALLS, false},
    {"dv", "B, S, D", offsetof(attention_backward_args, dv), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(attention_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"q", "B, T, D", offsetof(attention_backward_args, q), ROT_READ, ROT_CALLS, false},
    {"k", "B, S, D", offsetof(attention_backward_args, k), ROT_READ, ROT_CALLS, false},
    {"v", "B, S, D", offsetof(attention_backward_args, v), ROT_READ, ROT_CALLS, false},
    {"y", "B, T, D", offsetof(attention_backward_args, y), ROT_READ, ROT_CALLS, false},
    {"norm", "B, H, T", offsetof(attention_backward_args, norm), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(attention_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"past", "B", offsetof(attention_backward_args, past), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(attention_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(attention_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"S", "", offsetof(attention_backward_args, S), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(attention_backward_args, D), ROT_INT, ROT_CALLS, false},
    {"H", "", offsetof(attention_backward_args, H), ROT_INT, ROT_CALLS, false},
    {"window", "", offsetof(attention_backward_args, window), ROT_INT, ROT_CALLS, false},
};

static void sizes_rnn_forward(int64_t *sizes, const void *memory) {
    const rnn_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t N = args->N;
    const int64_t cell = args->cell;
    sizes[0] = EXTENT(B, T, N);
    sizes[1] = EXTENT(B, N);
    sizes[2] = EXTENT(B, T, N);
    sizes[3] = EXTENT(B, N);
    sizes[4] = EXTENT(B, T, 4*N);
    sizes[5] = EXTENT(gates_of(cell)*N, N);
    sizes[6] = EXTENT(B, T, gates_of(cell)*N);
    sizes[7] = EXTENT(B, N);
    sizes[8] = EXTENT(B, N);
    sizes[9] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_rnn_forward[] = {
    {"h", "B, T, N", offsetof(rnn_forward_args, h), ROT_WRITE, ROT_CALLS, false},
    {"hT", "B, N", offsetof(rnn_forward_args, hT), ROT_WRITE, ROT_CALLS, false},
    {"c", "B, T, N", offsetof(rnn_forward_args, c), ROT_WRITE, ROT_CALLS, true},
    {"cT", "B, N", offsetof(rnn_forward_args, cT), ROT_WRITE, ROT_CALLS, true},
    {"gates", "B, T, 4*N", offsetof(rnn_forward_args, gates), ROT_WRITE, ROT_CALLS, true},
    {"w", "gates_of(cell)*N, N", offsetof(rnn_forward_args, w), ROT_READ, ROT_CALLS, false},
    {"x", "B, T, gates_of(cell)*N", offsetof(rnn_forward_args, x), ROT_READ, ROT_CALLS, false},
    {"h0", "B, N", offsetof(rnn_forward_args, h0), ROT_READ, ROT_CALLS, true},
    {"c0", "B, N", offsetof(rnn_forward_args, c0), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(rnn_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(rnn_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(rnn_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(rnn_forward_args, N), ROT_INT, ROT_CALLS, false},
    {"cell", "", offsetof(rnn_forward_args, cell), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(rnn_forward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_rnn_backward(int64_t *sizes, const void *memory) {
    const rnn_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t N = args->N;
    const int64_t cell = args->cell;
    sizes[0] = EXTENT(B, T, gates_of(cell)*N);
    sizes[1] = EXTENT(B, N);
    sizes[2] = EXTENT(B, N);
    sizes[3] = EXTENT(B, T, N);
    sizes[4] = EXTENT(B, N);
    sizes[5] = EXTENT(B, N);
    sizes[6] = EXTENT(gates_of(cell)*N, N);
    sizes[7] = EXTENT(B, T, N);
    sizes[8] = EXTENT(B, T, N);
    sizes[9] = EXTENT(B, T, 4*N);
    sizes[10] = EXTENT(B, N);
    sizes[11] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_rnn_backward[] = {
    {"dx", "B, T, gates_of(cell)*N", offsetof(rnn_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"dh0", "B, N", offsetof(rnn_backward_args, dh0), ROT_WRITE, ROT_CALLS, false},
    {"dc0", "B, N", offsetof(rnn_backward_args, dc0), ROT_WRITE, ROT_CALLS, true},
    {"dh", "B, T, N", offsetof(rnn_backward_args, dh), ROT_READ, ROT_CALLS, false},
    {"dhT", "B, N", offsetof(rnn_backward_args, dhT), ROT_READ, ROT_CALLS, true},
    {"dcT", "B, N", offsetof(rnn_backward_args, dcT), ROT_READ, ROT_CALLS, true},
    {"w", "gates_of(cell)*N, N", offsetof(rnn_backward_args, w), ROT_READ, ROT_CALLS, false},
    {"h", "B, T, N", offsetof(rnn_backward_args, h), ROT_READ, ROT_CALLS, false},
    {"c", "B, T, N", offsetof(rnn_backward_args, c), ROT_READ, ROT_CALLS, true},
    {"gates", "B, T, 4*N", offsetof(rnn_backward_args, gates), ROT_READ, ROT_CALLS, true},
    {"c0", "B, N", offsetof(rnn_backward_args, c0), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(rnn_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(rnn_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(rnn_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(rnn_backward_args, N), ROT_INT, ROT_CALLS, false},
    {"cell", "", offsetof(rnn_backward_args, cell), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(rnn_backward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_bank_forward(int64_t *sizes, const void *memory) {
    const bank_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    const int64_t N = args->N;
    const int64_t tile = args->tile;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, D, N, 2);
    sizes[2] = EXTENT(B, tiles(T, tile), N, 2, D);
    sizes[3] = EXTENT(D, N, 2);
    sizes[4] = EXTENT(D, N, 2);
    sizes[5] = EXTENT(D);
    sizes[6] = EXTENT(B, T, D);
    sizes[7] = EXTENT(B, D, N, 2);
    sizes[8] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_bank_forward[] = {
    {"y", "B, T, D", offsetof(bank_forward_args, y), ROT_WRITE, ROT_CALLS, false},
    {"hT", "B, D, N, 2", offsetof(bank_forward_args, hT), ROT_WRITE, ROT_CALLS, false},
    {"carries", "B, tiles(T, tile), N, 2, D", offsetof(bank_forward_args, carries), ROT_WRITE, ROT_CALLS, false},
    {"a", "D, N, 2", offsetof(bank_forward_args, a), ROT_READ, ROT_CALLS, false},
    {"c", "D, N, 2", offsetof(bank_forward_args, c), ROT_READ, ROT_CALLS, false},
    {"skip", "D", offsetof(bank_forward_args, skip), ROT_READ, ROT_CALLS, false},
    {"u", "B, T, D", offsetof(bank_forward_args, u), ROT_READ, ROT_CALLS, false},
    {"h0", "B, D, N, 2", offsetof(bank_forward_args, h0), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(bank_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(bank_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(bank_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(bank_forward_args, D), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(bank_forward_args, N), ROT_INT, ROT_CALLS, false},
    {"tile", "", offsetof(bank_forward_args, tile), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(bank_forward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_bank_backward(int64_t *sizes, const void *memory) {
    const bank_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    const int64_t N = args->N;
    const int64_t tile = args->tile;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(D, N, 2);
    sizes[2] = EXTENT(D, N, 2);
    sizes[3] = EXTENT(D);
    sizes[4] = EXTENT(B, D, N, 2);
    sizes[5] = EXTENT(B, T, D);
    sizes[6] = EXTENT(B, D, N, 2);
    sizes[7] = EXTENT(B, tiles(T, tile), N, 2, D);
    sizes[8] = EXTENT(D, N, 2);
    sizes[9] = EXTENT(D, N, 2);
    sizes[10] = EXTENT(D);
    sizes[11] = EXTENT(B, T, D);
    sizes[12] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_bank_backward[] = {
    {"du", "B, T, D", offsetof(bank_backward_args, du), ROT_WRITE, ROT_CALLS, false},
    {"da", "D, N, 2", offsetof(bank_backward_args, da), ROT_WRITE, ROT_CALLS, false},
    {"dc", "D, N, 2", offsetof(bank_backward_args, dc), ROT_WRITE, ROT_CALLS, false},
    {"dskip", "D", offsetof(bank_backward_args, dskip), ROT_WRITE, ROT_CALLS, false},
    {"dh0", "B, D, N, 2", offsetof(bank_backward_args, dh0), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(bank_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"dhT", "B, D, N, 2", offsetof(bank_backward_args, dhT), ROT_READ, ROT_CALLS, true},
    {"carries", "B, tiles(T, tile), N, 2, D", offsetof(bank_backward_args, carries), ROT_READ, ROT_CALLS, false},
    {"a", "D, N, 2", offsetof(bank_backward_args, a), ROT_READ, ROT_CALLS, false},
    {"c", "D, N, 2", offsetof(bank_backward_args, c), ROT_READ, ROT_CALLS, false},
    {"skip", "D", offsetof(bank_backward_args, skip), ROT_READ, ROT_CALLS, false},
    {"u", "B, T, D", offsetof(bank_backward_args, u), ROT_READ, ROT_CALLS, false},
    {"lengths", "B", offsetof(bank_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(bank_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(bank_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(bank_backward_args, D), ROT_INT, ROT_CALLS, false},
    {"N", "", offsetof(bank_backward_args, N), ROT_INT, ROT_CALLS, false},
    {"tile", "", offsetof(bank_backward_args, tile), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(bank_backward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_selective_forward(int64_t *sizes, const void *memory) {
    const selective_forward_args *const args = memory;
    const int64_t batch = args->batch;
    const int64_t T = args->T;
    const int64_t D = args->D;
    const int64_t S = args->S;
    sizes[0] = EXTENT(batch, T, D);
    sizes[1] = EXTENT(batch, D, S);
    sizes[2] = EXTENT(batch, tiles(T, SELECTIVE_TILE), S, D);
    sizes[3] = EXTENT(batch, T, D);
    sizes[4] = EXTENT(batch, T, D);
    sizes[5] = EXTENT(D, S);
    sizes[6] = EXTENT(batch, T, S);
    sizes[7] = EXTENT(batch, T, S);
    sizes[8] = EXTENT(D);
    sizes[9] = EXTENT(batch, D, S);
    sizes[10] = EXTENT(batch);
    (void)args;
}

static const rot_argument arguments_selective_forward[] = {
    {"y", "batch, T, D", offsetof(selective_forward_args, y), ROT_WRITE, ROT_CALLS, true},
    {"hT", "batch, D, S", offsetof(selective_forward_args, hT), ROT_WRITE, ROT_CALLS, true},
    {"carries", "batch, tiles(T, SELECTIVE_TILE), S, D", offsetof(selective_forward_args, carries), ROT_WRITE, ROT_CALLS, true},
    {"x", "batch, T, D", offsetof(selective_forward_args, x), ROT_READ, ROT_CALLS, false},
    {"delta", "batch, T, D", offsetof(selective_forward_args, delta), ROT_READ, ROT_CALLS, false},
    {"A", "D, S", offsetof(selective_forward_args, A), ROT_READ, ROT_CALLS, false},
    {"B", "batch, T, S", offsetof(selective_forward_args, B), ROT_READ, ROT_CALLS, false},
    {"C", "batch, T, S", offsetof(selective_forward_args, C), ROT_READ, ROT_CALLS, false},
    {"skip", "D", offsetof(selective_forward_args, skip), ROT_READ, ROT_CALLS, true},
    {"h0", "batch, D, S", offsetof(selective_forward_args, h0), ROT_READ, ROT_CALLS, true},
    {"lengths", "batch", offsetof(selective_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"batch", "", offsetof(selective_forward_args, batch), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(selective_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(selective_forward_args, D), ROT_INT, ROT_CALLS, false},
    {"S", "", offsetof(selective_forward_args, S), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(selective_forward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_selective_backward(int64_t *sizes, const void *memory) {
    const selective_backward_args *const args = memory;
    const int64_t batch = args->batch;
    const int64_t T = args->T;
    const int64_t D = args->D;
    const int64_t S = args->S;
    sizes[0] = EXTENT(batch, T, D);
    sizes[1] = EXTENT(batch, T, D);
    sizes[2] = EXTENT(D, S);
    sizes[3] = EXTENT(batch, T, S);
    sizes[4] = EXTENT(batch, T, S);
    sizes[5] = EXTENT(D);
    sizes[6] = EXTENT(batch, D, S);
    sizes[7] = EXTENT(batch, T, D);
    sizes[8] = EXTENT(batch, D, S);
    sizes[9] = EXTENT(batch, tiles(T, SELECTIVE_TILE), S, D);
    sizes[10] = EXTENT(batch, T, D);
    sizes[11] = EXTENT(batch, T, D);
    sizes[12] = EXTENT(D, S);
    sizes[13] = EXTENT(batch, T, S);
    sizes[14] = EXTENT(batch, T, S);
    sizes[15] = EXTENT(D);
    sizes[16] = EXTENT(batch);
    (void)args;
}

static const rot_argument arguments_selective_backward[] = {
    {"dx", "batch, T, D", offsetof(selective_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"ddelta", "batch, T, D", offsetof(selective_backward_args, ddelta), ROT_WRITE, ROT_CALLS, false},
    {"dA", "D, S", offsetof(selective_backward_args, dA), ROT_WRITE, ROT_CALLS, false},
    {"dB", "batch, T, S", offsetof(selective_backward_args, dB), ROT_WRITE, ROT_CALLS, false},
    {"dC", "batch, T, S", offsetof(selective_backward_args, dC), ROT_WRITE, ROT_CALLS, false},
    {"dskip", "D", offsetof(selective_backward_args, dskip), ROT_WRITE, ROT_CALLS, true},
    {"dh0", "batch, D, S", offsetof(selective_backward_args, dh0), ROT_WRITE, ROT_CALLS, false},
    {"dy", "batch, T, D", offsetof(selective_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"dhT", "batch, D, S", offsetof(selective_backward_args, dhT), ROT_READ, ROT_CALLS, true},
    {"carries", "batch, tiles(T, SELECTIVE_TILE), S, D", offsetof(selective_backward_args, carries), ROT_READ, ROT_CALLS, false},
    {"x", "batch, T, D", offsetof(selective_backward_args, x), ROT_READ, ROT_CALLS, false},
    {"delta", "batch, T, D", offsetof(selective_backward_args, delta), ROT_READ, ROT_CALLS, false},
    {"A", "D, S", offsetof(selective_backward_args, A), ROT_READ, ROT_CALLS, false},
    {"B", "batch, T, S", offsetof(selective_backward_args, B), ROT_READ, ROT_CALLS, false},
    {"C", "batch, T, S", offsetof(selective_backward_args, C), ROT_READ, ROT_CALLS, false},
    {"skip", "D", offsetof(selective_backward_args, skip), ROT_READ, ROT_CALLS, true},
    {"lengths", "batch", offsetof(selective_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"batch", "", offsetof(selective_backward_args, batch), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(selective_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(selective_backward_args, D), ROT_INT, ROT_CALLS, false},
    {"S", "", offsetof(selective_backward_args, S), ROT_INT, ROT_CALLS, false},
    {"reverse", "", offsetof(selective_backward_args, reverse), ROT_INT, ROT_CALLS, false},
};

static void sizes_conv_forward(int64_t *sizes, const void *memory) {
    const conv_forward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    const int64_t taps = args->taps;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(B, taps-1, D);
    sizes[2] = EXTENT(B, T, D);
    sizes[3] = EXTENT(D, taps);
    sizes[4] = EXTENT(D);
    sizes[5] = EXTENT(B, taps-1, D);
    sizes[6] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_conv_forward[] = {
    {"y", "B, T, D", offsetof(conv_forward_args, y), ROT_WRITE, ROT_CALLS, false},
    {"final", "B, taps-1, D", offsetof(conv_forward_args, final), ROT_WRITE, ROT_CALLS, true},
    {"x", "B, T, D", offsetof(conv_forward_args, x), ROT_READ, ROT_CALLS, false},
    {"w", "D, taps", offsetof(conv_forward_args, w), ROT_READ, ROT_CALLS, false},
    {"bias", "D", offsetof(conv_forward_args, bias), ROT_READ, ROT_CALLS, true},
    {"state", "B, taps-1, D", offsetof(conv_forward_args, state), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(conv_forward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(conv_forward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(conv_forward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(conv_forward_args, D), ROT_INT, ROT_CALLS, false},
    {"taps", "", offsetof(conv_forward_args, taps), ROT_INT, ROT_CALLS, false},
};

static void sizes_conv_backward(int64_t *sizes, const void *memory) {
    const conv_backward_args *const args = memory;
    const int64_t B = args->B;
    const int64_t T = args->T;
    const int64_t D = args->D;
    const int64_t taps = args->taps;
    sizes[0] = EXTENT(B, T, D);
    sizes[1] = EXTENT(D, taps);
    sizes[2] = EXTENT(D);
    sizes[3] = EXTENT(B, taps-1, D);
    sizes[4] = EXTENT(B, T, D);
    sizes[5] = EXTENT(B, taps-1, D);
    sizes[6] = EXTENT(B, T, D);
    sizes[7] = EXTENT(D, taps);
    sizes[8] = EXTENT(B, taps-1, D);
    sizes[9] = EXTENT(B);
    (void)args;
}

static const rot_argument arguments_conv_backward[] = {
    {"dx", "B, T, D", offsetof(conv_backward_args, dx), ROT_WRITE, ROT_CALLS, false},
    {"dw", "D, taps", offsetof(conv_backward_args, dw), ROT_WRITE, ROT_CALLS, false},
    {"dbias", "D", offsetof(conv_backward_args, dbias), ROT_WRITE, ROT_CALLS, false},
    {"dstate", "B, taps-1, D", offsetof(conv_backward_args, dstate), ROT_WRITE, ROT_CALLS, false},
    {"dy", "B, T, D", offsetof(conv_backward_args, dy), ROT_READ, ROT_CALLS, false},
    {"dfinal", "B, taps-1, D", offsetof(conv_backward_args, dfinal), ROT_READ, ROT_CALLS, true},
    {"x", "B, T, D", offsetof(conv_backward_args, x), ROT_READ, ROT_CALLS, false},
    {"w", "D, taps", offsetof(conv_backward_args, w), ROT_READ, ROT_CALLS, false},
    {"state", "B, taps-1, D", offsetof(conv_backward_args, state), ROT_READ, ROT_CALLS, true},
    {"lengths", "B", offsetof(conv_backward_args, lengths), ROT_READ, ROT_INT64, true},
    {"B", "", offsetof(conv_backward_args, B), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(conv_backward_args, T), ROT_INT, ROT_CALLS, false},
    {"D", "", offsetof(conv_backward_args, D), ROT_INT, ROT_CALLS, false},
    {"taps", "", offsetof(conv_backward_args, taps), ROT_INT, ROT_CALLS, false},
};

static void sizes_copy(int64_t *sizes, const void *memory) {
    const copy_args *const args = memory;
    const int64_t n = args->n;
    sizes[0] = EXTENT(n);
    sizes[1] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_copy[] = {
    {"y", "n", offsetof(copy_args, y), ROT_WRITE, ROT_CALLS, false},
    {"x", "n", offsetof(copy_args, x), ROT_READ, ROT_CALLS, false},
    {"n", "", offsetof(copy_args, n), ROT_INT, ROT_CALLS, false},
};

static void sizes_philox(int64_t *sizes, const void *memory) {
    const philox_args *const args = memory;
    const int64_t n = args->n;
    sizes[0] = EXTENT(n, 4);
    sizes[1] = EXTENT(n, 4);
    sizes[2] = EXTENT(n, 2);
    (void)args;
}

static const rot_argument arguments_philox[] = {
    {"out", "n, 4", offsetof(philox_args, out), ROT_WRITE, ROT_INT64, false},
    {"counter", "n, 4", offsetof(philox_args, counter), ROT_READ, ROT_INT64, false},
    {"key", "n, 2", offsetof(philox_args, key), ROT_READ, ROT_INT64, false},
    {"n", "", offsetof(philox_args, n), ROT_INT, ROT_CALLS, false},
};

static void sizes_listops_sample(int64_t *sizes, const void *memory) {
    const listops_sample_args *const args = memory;
    const int64_t n = args->n;
    const int64_t max_length = args->max_length;
    sizes[0] = EXTENT(n, max_length);
    sizes[1] = EXTENT(n);
    sizes[2] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_listops_sample[] = {
    {"tokens", "n, max_length", offsetof(listops_sample_args, tokens), ROT_WRITE, ROT_UINT8, false},
    {"lengths", "n", offsetof(listops_sample_args, lengths), ROT_WRITE, ROT_INT64, false},
    {"values", "n", offsetof(listops_sample_args, values), ROT_WRITE, ROT_UINT8, false},
    {"n", "", offsetof(listops_sample_args, n), ROT_INT, ROT_CALLS, false},
    {"seed", "", offsetof(listops_sample_args, seed), ROT_INT, ROT_CALLS, false},
    {"first", "", offsetof(listops_sample_args, first), ROT_INT, ROT_CALLS, false},
    {"max_depth", "", offsetof(listops_sample_args, max_depth), ROT_INT, ROT_CALLS, false},
    {"max_args", "", offsetof(listops_sample_args, max_args), ROT_INT, ROT_CALLS, false},
    {"min_length", "", offsetof(listops_sample_args, min_length), ROT_INT, ROT_CALLS, false},
    {"max_length", "", offsetof(listops_sample_args, max_length), ROT_INT, ROT_CALLS, false},
};

static void sizes_listops_parse(int64_t *sizes, const void *memory) {
    const listops_parse_args *const args = memory;
    const int64_t size = args->size;
    sizes[0] = EXTENT(size);
    sizes[1] = EXTENT(4);
    sizes[2] = EXTENT(size);
    (void)args;
}

static const rot_argument arguments_listops_parse[] = {
    {"tokens", "size", offsetof(listops_parse_args, tokens), ROT_WRITE, ROT_UINT8, false},
    {"result", "4", offsetof(listops_parse_args, result), ROT_WRITE, ROT_INT64, false},
    {"text", "size", offsetof(listops_parse_args, text), ROT_READ, ROT_UINT8, false},
    {"size", "", offsetof(listops_parse_args, size), ROT_INT, ROT_CALLS, false},
};

static void sizes_listops_render(int64_t *sizes, const void *memory) {
    const listops_render_args *const args = memory;
    const int64_t n = args->n;
    sizes[0] = EXTENT(8*n);
    sizes[1] = EXTENT(1);
    sizes[2] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_listops_render[] = {
    {"text", "8*n", offsetof(listops_render_args, text), ROT_WRITE, ROT_UINT8, false},
    {"start", "1", offsetof(listops_render_args, start), ROT_WRITE, ROT_INT64, false},
    {"tokens", "n", offsetof(listops_render_args, tokens), ROT_READ, ROT_UINT8, false},
    {"n", "", offsetof(listops_render_args, n), ROT_INT, ROT_CALLS, false},
};

static void sizes_word_sample(int64_t *sizes, const void *memory) {
    const word_sample_args *const args = memory;
    const int64_t n = args->n;
    const int64_t T = args->T;
    sizes[0] = EXTENT(n, T);
    sizes[1] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_word_sample[] = {
    {"elements", "n, T", offsetof(word_sample_args, elements), ROT_WRITE, ROT_INT64, false},
    {"row", "n", offsetof(word_sample_args, row), ROT_READ, ROT_INT64, false},
    {"n", "", offsetof(word_sample_args, n), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(word_sample_args, T), ROT_INT, ROT_CALLS, false},
    {"order", "", offsetof(word_sample_args, order), ROT_INT, ROT_CALLS, false},
    {"count", "", offsetof(word_sample_args, count), ROT_INT, ROT_CALLS, false},
    {"seed", "", offsetof(word_sample_args, seed), ROT_INT, ROT_CALLS, false},
};

static void sizes_word_states(int64_t *sizes, const void *memory) {
    const word_states_args *const args = memory;
    const int64_t n = args->n;
    const int64_t T = args->T;
    const int64_t F = args->F;
    sizes[0] = EXTENT(n, T);
    sizes[1] = EXTENT(n, T);
    sizes[2] = EXTENT(F, 3);
    (void)args;
}

static const rot_argument arguments_word_states[] = {
    {"states", "n, T", offsetof(word_states_args, states), ROT_WRITE, ROT_INT64, false},
    {"elements", "n, T", offsetof(word_states_args, elements), ROT_READ, ROT_INT64, false},
    {"factors", "F, 3", offsetof(word_states_args, factors), ROT_READ, ROT_INT64, false},
    {"n", "", offsetof(word_states_args, n), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(word_states_args, T), ROT_INT, ROT_CALLS, false},
    {"F", "", offsetof(word_states_args, F), ROT_INT, ROT_CALLS, false},
};

static void sizes_copy_rows(int64_t *sizes, const void *memory) {
    const copy_rows_args *const args = memory;
    const int64_t n = args->n;
    const int64_t T = args->T;
    sizes[0] = EXTENT(n, T);
    sizes[1] = EXTENT(n, T);
    sizes[2] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_copy_rows[] = {
    {"tokens", "n, T", offsetof(copy_rows_args, tokens), ROT_WRITE, ROT_INT64, false},
    {"labels", "n, T", offsetof(copy_rows_args, labels), ROT_WRITE, ROT_INT64, false},
    {"stream", "n", offsetof(copy_rows_args, stream), ROT_READ, ROT_INT64, false},
    {"n", "", offsetof(copy_rows_args, n), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(copy_rows_args, T), ROT_INT, ROT_CALLS, false},
    {"seed", "", offsetof(copy_rows_args, seed), ROT_INT, ROT_CALLS, false},
    {"letters", "", offsetof(copy_rows_args, letters), ROT_INT, ROT_CALLS, false},
    {"variant", "", offsetof(copy_rows_args, variant), ROT_INT, ROT_CALLS, false},
    {"gram", "", offsetof(copy_rows_args, gram), ROT_INT, ROT_CALLS, false},
    {"answer", "", offsetof(copy_rows_args, answer), ROT_INT, ROT_CALLS, false},
    {"low", "", offsetof(copy_rows_args, low), ROT_INT, ROT_CALLS, false},
    {"high", "", offsetof(copy_rows_args, high), ROT_INT, ROT_CALLS, false},
};

static void sizes_copy_strings(int64_t *sizes, const void *memory) {
    const copy_strings_args *const args = memory;
    const int64_t n = args->n;
    const int64_t T = args->T;
    sizes[0] = EXTENT(n, T);
    sizes[1] = EXTENT(n, T);
    sizes[2] = EXTENT(n);
    sizes[3] = EXTENT(n);
    sizes[4] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_copy_strings[] = {
    {"tokens", "n, T", offsetof(copy_strings_args, tokens), ROT_WRITE, ROT_INT64, false},
    {"labels", "n, T", offsetof(copy_strings_args, labels), ROT_WRITE, ROT_INT64, false},
    {"sizes", "n", offsetof(copy_strings_args, sizes), ROT_WRITE, ROT_INT64, false},
    {"stream", "n", offsetof(copy_strings_args, stream), ROT_READ, ROT_INT64, false},
    {"length", "n", offsetof(copy_strings_args, length), ROT_READ, ROT_INT64, false},
    {"n", "", offsetof(copy_strings_args, n), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(copy_strings_args, T), ROT_INT, ROT_CALLS, false},
    {"seed", "", offsetof(copy_strings_args, seed), ROT_INT, ROT_CALLS, false},
    {"letters", "", offsetof(copy_strings_args, letters), ROT_INT, ROT_CALLS, false},
    {"variant", "", offsetof(copy_strings_args, variant), ROT_INT, ROT_CALLS, false},
    {"gram", "", offsetof(copy_strings_args, gram), ROT_INT, ROT_CALLS, false},
    {"answer", "", offsetof(copy_strings_args, answer), ROT_INT, ROT_CALLS, false},
};

static void sizes_delayed_copy(int64_t *sizes, const void *memory) {
    const delayed_copy_args *const args = memory;
    const int64_t n = args->n;
    const int64_t length = args->length;
    const int64_t delay = args->delay;
    const int64_t bits = args->bits;
    sizes[0] = EXTENT(n, 2*length + delay + 1, bits + 1);
    sizes[1] = EXTENT(n, 2*length + delay + 1, bits);
    sizes[2] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_delayed_copy[] = {
    {"inputs", "n, 2*length + delay + 1, bits + 1", offsetof(delayed_copy_args, inputs), ROT_WRITE, ROT_UINT8, false},
    {"labels", "n, 2*length + delay + 1, bits", offsetof(delayed_copy_args, labels), ROT_WRITE, ROT_INT64, false},
    {"stream", "n", offsetof(delayed_copy_args, stream), ROT_READ, ROT_INT64, false},
    {"n", "", offsetof(delayed_copy_args, n), ROT_INT, ROT_CALLS, false},
    {"length", "", offsetof(delayed_copy_args, length), ROT_INT, ROT_CALLS, false},
    {"delay", "", offsetof(delayed_copy_args, delay), ROT_INT, ROT_CALLS, false},
    {"bits", "", offsetof(delayed_copy_args, bits), ROT_INT, ROT_CALLS, false},
    {"seed", "", offsetof(delayed_copy_args, seed), ROT_INT, ROT_CALLS, false},
};

static void sizes_brackets_sample(int64_t *sizes, const void *memory) {
    const brackets_sample_args *const args = memory;
    const int64_t n = args->n;
    const int64_t T = args->T;
    sizes[0] = EXTENT(n, T);
    sizes[1] = EXTENT(n, T);
    sizes[2] = EXTENT(n);
    sizes[3] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_brackets_sample[] = {
    {"tokens", "n, T", offsetof(brackets_sample_args, tokens), ROT_WRITE, ROT_INT64, false},
    {"labels", "n, T", offsetof(brackets_sample_args, labels), ROT_WRITE, ROT_INT64, false},
    {"sizes", "n", offsetof(brackets_sample_args, sizes), ROT_WRITE, ROT_INT64, false},
    {"stream", "n", offsetof(brackets_sample_args, stream), ROT_READ, ROT_INT64, false},
    {"n", "", offsetof(brackets_sample_args, n), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(brackets_sample_args, T), ROT_INT, ROT_CALLS, false},
    {"seed", "", offsetof(brackets_sample_args, seed), ROT_INT, ROT_CALLS, false},
    {"low", "", offsetof(brackets_sample_args, low), ROT_INT, ROT_CALLS, false},
    {"high", "", offsetof(brackets_sample_args, high), ROT_INT, ROT_CALLS, false},
    {"modulus", "", offsetof(brackets_sample_args, modulus), ROT_INT, ROT_CALLS, false},
    {"operators", "", offsetof(brackets_sample_args, operators), ROT_INT, ROT_CALLS, false},
};

static void sizes_regular_sample(int64_t *sizes, const void *memory) {
    const regular_sample_args *const args = memory;
    const int64_t n = args->n;
    const int64_t T = args->T;
    sizes[0] = EXTENT(n, T);
    sizes[1] = EXTENT(n, T);
    sizes[2] = EXTENT(n);
    sizes[3] = EXTENT(n);
    sizes[4] = EXTENT(n);
    (void)args;
}

static const rot_argument arguments_regular_sample[] = {
    {"tokens", "n, T", offsetof(regular_sample_args, tokens), ROT_WRITE, ROT_INT64, false},
    {"labels", "n, T", offsetof(regular_sample_args, labels), ROT_WRITE, ROT_INT64, false},
    {"sizes", "n", offsetof(regular_sample_args, sizes), ROT_WRITE, ROT_INT64, false},
    {"stream", "n", offsetof(regular_sample_args, stream), ROT_READ, ROT_INT64, false},
    {"length", "n", offsetof(regular_sample_args, length), ROT_READ, ROT_INT64, true},
    {"n", "", offsetof(regular_sample_args, n), ROT_INT, ROT_CALLS, false},
    {"T", "", offsetof(regular_sample_args, T), ROT_INT, ROT_CALLS, false},
    {"seed", "", offsetof(regular_sample_args, seed), ROT_INT, ROT_CALLS, false},
    {"low", "", offsetof(regular_sample_args, low), ROT_INT, ROT_CALLS, false},
    {"high", "", offsetof(regular_sample_args, high), ROT_INT, ROT_CALLS, false},
    {"language", "", offsetof(regular_sample_args, language), ROT_INT, ROT_CALLS, false},
    {"modulus", "", offsetof(regular_sample_args, modulus), ROT_INT, ROT_CALLS, false},
};

static void sizes_pathfinder(int64_t *sizes, const void *memory) {
    const pathfinder_args *const args = memory;
    const int64_t n = args->in.n;
    const int64_t window = args->in.window;
    const int64_t S = args->in.S;
    const int64_t C = args->in.C;
    const int64_t probes_most = args->in.probes_most;
    const int64_t E = args->in.E;
    const int64_t contour_length = args->in.contour_length;
    const int64_t distractors = args->in.distractors;
    const int64_t distractor_length = args->in.distractor_length;
    sizes[0] = EXTENT(n);
    sizes[1] = EXTENT(360 + C, S, S);
    sizes[2] = EXTENT(360 + C, S, S);
    sizes[3] = EXTENT(E, E, E, E);
    sizes[4] = EXTENT(360, 2, 2);
    sizes[5] = EXTENT(360 + C, 2);
    sizes[6] = EXTENT(360, 2);
    sizes[7] = EXTENT(C, 2);
    sizes[8] = EXTENT(360 + C, C);
    sizes[9] = EXTENT(360, probes_most, 2);
    sizes[10] = EXTENT(360);
    sizes[11] = EXTENT(n, window, window);
    sizes[12] = EXTENT(n, 4);
    sizes[13] = EXTENT(n, 2*contour_length + distractors*distractor_length, 3);
    (void)args;
}

static const rot_argument arguments_pathfinder[] = {
    {"index", "n", offsetof(pathfinder_args, in.index), ROT_READ, ROT_INT64, false},
    {"lines", "360 + C, S, S", offsetof(pathfinder_args, in.lines), ROT_READ, ROT_UINT8, false},
    {"masks", "360 + C, S, S", offsetof(pathfinder_args, in.masks), ROT_READ, ROT_UINT8, false},
    {"markers", "E, E, E, E", offsetof(pathfinder_args, in.markers), ROT_READ, ROT_UINT8, false},
    {"seed_steps", "360, 2, 2", offsetof(pathfinder_args, in.seed_steps), ROT_READ, ROT_FLOAT64, false},
    {"steps", "360 + C, 2", offsetof(pathfinder_args, in.steps), ROT_READ, ROT_FLOAT64, false},
    {"ring", "360, 2", offsetof(pathfinder_args, in.ring), ROT_READ, ROT_FLOAT64, false},
    {"ends", "C, 2", offsetof(pathfinder_args, in.ends), ROT_READ, ROT_INT64, false},
    {"weights", "360 + C, C", offsetof(pathfinder_args, in.weights), ROT_READ, ROT_INT64, false},
    {"probes", "360, probes_most, 2", offsetof(pathfinder_args, in.probes), ROT_READ, ROT_INT64, false},
    {"probe_counts", "360", offsetof(pathfinder_args, in.probe_counts), ROT_READ, ROT_INT64, false},
    {"n", "", offsetof(pathfinder_args, in.n), ROT_INT, ROT_CALLS, false},
    {"seed", "", offsetof(pathfinder_args, in.seed), ROT_INT, ROT_CALLS, false},
    {"window", "", offsetof(pathfinder_args, in.window), ROT_INT, ROT_CALLS, false},
    {"padding", "", offsetof(pathfinder_args, in.padding), ROT_INT, ROT_CALLS, false},
    {"seed_distance", "", offsetof(pathfinder_args, in.seed_distance), ROT_INT, ROT_CALLS, false},
    {"margin", "", offsetof(pathfinder_args, in.margin), ROT_INT, ROT_CALLS, false},
    {"S", "", offsetof(pathfinder_args, in.S), ROT_INT, ROT_CALLS, false},
    {"C", "", offsetof(pathfinder_args, in.C), ROT_INT, ROT_CALLS, false},
    {"probes_most", "", offsetof(pathfinder_args, in.probes_most), ROT_INT, ROT_CALLS, false},
    {"E", "", offsetof(pathfinder_args, in.E), ROT_INT, ROT_CALLS, false},
    {"contour_length", "", offsetof(pathfinder_args, in.contour_length), ROT_INT, ROT_CALLS, false},
    {"distractors", "", offsetof(pathfinder_args, in.distractors), ROT_INT, ROT_CALLS, false},
    {"distractor_length", "", offsetof(pathfinder_args, in.distractor_length), ROT_INT, ROT_CALLS, false},
    {"target_shade", "", offsetof(pathfinder_args, in.target_shade), ROT_INT, ROT_CALLS, false},
    {"distractor_shade", "", offsetof(pathfinder_args, in.distractor_shade), ROT_INT, ROT_CALLS, false},
    {"images", "n, window, window", offsetof(pathfinder_args, out.images), ROT_WRITE, ROT_UINT8, false},
    {"facts", "n, 4", offsetof(pathfinder_args, out.facts), ROT_WRITE, ROT_INT64, false},
    {"paddles", "n, 2*contour_length + distractors*distractor_length, 3", offsetof(pathfinder_args, out.paddles), ROT_WRITE, ROT_INT64, false},
};

const rot_kernel ROT_LIST[ROT_KERNELS] = {
    {"scan_forward", arguments_scan_forward, 11, sizes_scan_forward, sizeof(scan_forward_args)},
    {"scan_backward", arguments_scan_backward, 14, sizes_scan_backward, sizeof(scan_backward_args)},
    {"window_forward", arguments_window_forward, 12, sizes_window_forward, sizeof(window_forward_args)},
    {"window_backward", arguments_window_backward, 15, sizes_window_backward, sizeof(window_backward_args)},
    {"tiir", arguments_tiir, 12, sizes_tiir, sizeof(tiir_args)},
    {"matmul", arguments_matmul, 8, sizes_matmul, sizeof(matmul_args)},
    {"matmul_weight_grad", arguments_matmul_weight_grad, 7, sizes_matmul_weight_grad, sizeof(matmul_weight_grad_args)},
    {"matmul_stack", arguments_matmul_stack, 7, sizes_matmul_stack, sizeof(matmul_stack_args)},
    {"mix_forward", arguments_mix_forward, 13, sizes_mix_forward, sizeof(mix_forward_args)},
    {"mix_backward", arguments_mix_backward, 17, sizes_mix_backward, sizeof(mix_backward_args)},
    {"relax", arguments_relax, 9, sizes_relax, sizeof(relax_args)},
    {"mixer_prepare", arguments_mixer_prepare, 6, sizes_mixer_prepare, sizeof(mixer_prepare_args)},
    {"depth_pass", arguments_depth_pass, 19, sizes_depth_pass, sizeof(depth_pass_args)},
    {"lagged_forward", arguments_lagged_forward, 11, sizes_lagged_forward, sizeof(lagged_forward_args)},
    {"lagged_product", arguments_lagged_product, 13, sizes_lagged_product, sizeof(lagged_product_args)},
    {"lagged_backward", arguments_lagged_backward, 14, sizes_lagged_backward, sizeof(lagged_backward_args)},
    {"elementwise", arguments_elementwise, 7, sizes_elementwise, sizeof(elementwise_args)},
    {"elementwise_backward", arguments_elementwise_backward, 8, sizes_elementwise_backward, sizeof(elementwise_backward_args)},
    {"glu_forward", arguments_glu_forward, 7, sizes_glu_forward, sizeof(glu_forward_args)},
    {"glu_backward", arguments_glu_backward, 9, sizes_glu_backward, sizeof(glu_backward_args)},
    {"mask_padding", arguments_mask_padding, 6, sizes_mask_padding, sizeof(mask_padding_args)},
    {"dropout", arguments_dropout, 12, sizes_dropout, sizeof(dropout_args)},
    {"channel_moments", arguments_channel_moments, 7, sizes_channel_moments, sizeof(channel_moments_args)},
    {"channel_affine", arguments_channel_affine, 9, sizes_channel_affine, sizeof(channel_affine_args)},
    {"channel_sums", arguments_channel_sums, 9, sizes_channel_sums, sizeof(channel_sums_args)},
    {"channel_adjoint", arguments_channel_adjoint, 11, sizes_channel_adjoint, sizeof(channel_adjoint_args)},
    {"layer_norm_forward", arguments_layer_norm_forward, 11, sizes_layer_norm_forward, sizeof(layer_norm_forward_args)},
    {"layer_norm_backward", arguments_layer_norm_backward, 12, sizes_layer_norm_backward, sizeof(layer_norm_backward_args)},
    {"embedding_forward", arguments_embedding_forward, 9, sizes_embedding_forward, sizeof(embedding_forward_args)},
    {"embedding_backward", arguments_embedding_backward, 8, sizes_embedding_backward, sizeof(embedding_backward_args)},
    {"mean_pool_forward", arguments_mean_pool_forward, 6, sizes_mean_pool_forward, sizeof(mean_pool_forward_args)},
    {"mean_pool_backward", arguments_mean_pool_backward, 6, sizes_mean_pool_backward, sizeof(mean_pool_backward_args)},
    {"cross_entropy", arguments_cross_entropy, 6, sizes_cross_entropy, sizeof(cross_entropy_args)},
    {"adamw", arguments_adamw, 13, sizes_adamw, sizeof(adamw_args)},
    {"norm", arguments_norm, 3, sizes_norm, sizeof(norm_args)},
    {"block_forward", arguments_block_forward, 35, sizes_block_forward, sizeof(block_forward_args)},
    {"block_backward", arguments_block_backward, 49, sizes_block_backward, sizeof(block_backward_args)},
    {"orthogonal_forward", arguments_orthogonal_forward, 4, sizes_orthogonal_forward, sizeof(orthogonal_forward_args)},
    {"orthogonal_backward", arguments_orthogonal_backward, 5, sizes_orthogonal_backward, sizeof(orthogonal_backward_args)},
    {"attention_forward", arguments_attention_forward, 13, sizes_attention_forward, sizeof(attention_forward_args)},
    {"attention_backward", arguments_attention_backward, 17, sizes_attention_backward, sizeof(attention_backward_args)},
    {"rnn_forward", arguments_rnn_forward, 15, sizes_rnn_forward, sizeof(rnn_forward_args)},
    {"rnn_backward", arguments_rnn_backward, 17, sizes_rnn_backward, sizeof(rnn_backward_args)},
    {"bank_forward", arguments_bank_forward, 15, sizes_bank_forward, sizeof(bank_forward_args)},
    {"bank_backward", arguments_bank_backward, 19, sizes_bank_backward, sizeof(bank_backward_args)},
    {"selective_forward", arguments_selective_forward, 16, sizes_selective_forward, sizeof(selective_forward_args)},
    {"selective_backward", arguments_selective_backward, 22, sizes_selective_backward, sizeof(selective_backward_args)},
    {"conv_forward", arguments_conv_forward, 11, sizes_conv_forward, sizeof(conv_forward_args)},
    {"conv_backward", arguments_conv_backward, 14, sizes_conv_backward, sizeof(conv_backward_args)},
    {"copy", arguments_copy, 3, sizes_copy, sizeof(copy_args)},
    {"philox", arguments_philox, 4, sizes_philox, sizeof(philox_args)},
    {"listops_sample", arguments_listops_sample, 10, sizes_listops_sample, sizeof(listops_sample_args)},
    {"listops_parse", arguments_listops_parse, 4, sizes_listops_parse, sizeof(listops_parse_args)},
    {"listops_render", arguments_listops_render, 4, sizes_listops_render, sizeof(listops_render_args)},
    {"word_sample", arguments_word_sample, 7, sizes_word_sample, sizeof(word_sample_args)},
    {"word_states", arguments_word_states, 6, sizes_word_states, sizeof(word_states_args)},
    {"copy_rows", arguments_copy_rows, 12, sizes_copy_rows, sizeof(copy_rows_args)},
    {"copy_strings", arguments_copy_strings, 12, sizes_copy_strings, sizeof(copy_strings_args)},
    {"delayed_copy", arguments_delayed_copy, 8, sizes_delayed_copy, sizeof(delayed_copy_args)},
    {"brackets_sample", arguments_brackets_sample, 11, sizes_brackets_sample, sizeof(brackets_sample_args)},
    {"regular_sample", arguments_regular_sample, 12, sizes_regular_sample, sizeof(regular_sample_args)},
    {"pathfinder", arguments_pathfinder, 29, sizes_pathfinder, sizeof(pathfinder_args)},
};

union any_args {
    scan_forward_args scan_forward;
    scan_backward_args scan_backward;
    window_forward_args window_forward;
    window_backward_args window_backward;
    tiir_args tiir;
    matmul_args matmul;
    matmul_weight_grad_args matmul_weight_grad;
    matmul_stack_args matmul_stack;
    mix_forward_args mix_forward;
    mix_backward_args mix_backward;
    relax_args relax;
    mixer_prepare_args mixer_prepare;
    depth_pass_args depth_pass;
    lagged_forward_args lagged_forward;
    lagged_product_args lagged_product;
    lagged_backward_args lagged_backward;
    elementwise_args elementwise;
    elementwise_backward_args elementwise_backward;
    glu_forward_args glu_forward;
    glu_backward_args glu_backward;
    mask_padding_args mask_padding;
    dropout_args dropout;
    channel_moments_args channel_moments;
    channel_affine_args channel_affine;
    channel_sums_args channel_sums;
    channel_adjoint_args channel_adjoint;
    layer_norm_forward_args layer_norm_forward;
    layer_norm_backward_args layer_norm_backward;
    embedding_forward_args embedding_forward;
    embedding_backward_args embedding_backward;
    mean_pool_forward_args mean_pool_forward;
    mean_pool_backward_args mean_pool_backward;
    cross_entropy_args cross_entropy;
    adamw_args adamw;
    norm_args norm;
    block_forward_args block_forward;
    block_backward_args block_backward;
    orthogonal_forward_args orthogonal_forward;
    orthogonal_backward_args orthogonal_backward;
    attention_forward_args attention_forward;
    attention_backward_args attention_backward;
    rnn_forward_args rnn_forward;
    rnn_backward_args rnn_backward;
    bank_forward_args bank_forward;
    bank_backward_args bank_backward;
    selective_forward_args selective_forward;
    selective_backward_args selective_backward;
    conv_forward_args conv_forward;
    conv_backward_args conv_backward;
    copy_args copy;
    philox_args philox;
    listops_sample_args listops_sample;
    listops_parse_args listops_parse;
    listops_render_args listops_render;
    word_sample_args word_sample;
    word_states_args word_states;
    copy_rows_args copy_rows;
    copy_strings_args copy_strings;
    delayed_copy_args delayed_copy;
    brackets_sample_args brackets_sample;
    regular_sample_args regular_sample;
    pathfinder_args pathfinder;
};

_Static_assert(sizeof(union any_args) <= ROT_ARGS_BYTES, "ROT_ARGS_BYTES of entries.h is too small");
_Static_assert(49 <= ROT_MOST_ARGUMENTS, "ROT_MOST_ARGUMENTS of entries.h is too small");

const rot_number ROT_NUMBERS[] = {
    {"NORM", "none", NORM_NONE},
    {"NORM", "channel", NORM_CHANNEL},
    {"NORM", "row", NORM_ROW},
    {"GATE", "none", GATE_NONE},
    {"GATE", "full", GATE_FULL},
    {"GATE", "half1", GATE_HALF1},
    {"GATE", "half2", GATE_HALF2},
    {"FUNCTION", "exp", FUNCTION_EXP},
    {"FUNCTION", "sigmoid", FUNCTION_SIGMOID},
    {"FUNCTION", "tanh", FUNCTION_TANH},
    {"FUNCTION", "gelu", FUNCTION_GELU},
    {"FUNCTION", "silu", FUNCTION_SILU},
    {"FUNCTION", "softplus", FUNCTION_SOFTPLUS},
    {"LAGGED", "linear", LAGGED_LINEAR},
    {"LAGGED", "sigmoid", LAGGED_SIGMOID},
    {"LAGGED", "silu", LAGGED_SILU},
    {"LAGGED", "softplus", LAGGED_SOFTPLUS},
    {"LAGGED", "unit", LAGGED_UNIT},
    {"CELL", "identity", CELL_IDENTITY},
    {"CELL", "tanh", CELL_TANH},
    {"CELL", "relu", CELL_RELU},
    {"CELL", "lstm", CELL_LSTM},
    {"MIXER", "householder", MIXER_HOUSEHOLDER},
    {"MIXER", "dplr", MIXER_DPLR},
    {"MIXER", "low_rank", MIXER_LOW_RANK},
    {"MIXER", "kronecker", MIXER_KRONECKER},
    {"COPY", "copy", COPY_COPY},
    {"COPY", "prefix", COPY_PREFIX},
    {"COPY", "suffix", COPY_SUFFIX},
    {"COPY", "duplicate", COPY_DUPLICATE},
    {"REGULAR", "parity", REGULAR_PARITY},
    {"REGULAR", "even_pairs", REGULAR_EVEN_PAIRS},
    {"REGULAR", "cycle", REGULAR_CYCLE},
    {"REGULAR", "arithmetic", REGULAR_ARITHMETIC},
    {"EXPECTED", "nothing", EXPECTED_NOTHING},
    {"EXPECTED", "argument", EXPECTED_ARGUMENT},
    {"EXPECTED", "operator", EXPECTED_OPERATOR},
    {"EXPECTED", "more_parentheses", EXPECTED_MORE_PARENTHESES},
    {"EXPECTED", "less_depth", EXPECTED_LESS_DEPTH},
    {"EXPECTED", "argument_end", EXPECTED_ARGUMENT_END},
    {"EXPECTED", "bracket", EXPECTED_BRACKET},
    {"EXPECTED", "node_end", EXPECTED_NODE_END},
    {"EXPECTED", "the_end", EXPECTED_THE_END},
    {"GROUP", "cyclic", GROUP_CYCLIC},
    {"GROUP", "symmetric", GROUP_SYMMETRIC},
    {"GROUP", "alternating", GROUP_ALTERNATING},
    {"SELECTIVE_TILE", NULL, SELECTIVE_TILE},
    {"ORTHOGONAL_LARGEST", NULL, ORTHOGONAL_LARGEST},
    {"COPY_MAX_LENGTH", NULL, COPY_MAX_LENGTH},
    {NULL, NULL, 0},
};
