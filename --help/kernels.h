/* Made from csrc/kernels.list by csrc/generate.py: change those. */

#ifndef ROT_KERNELS_H
#define ROT_KERNELS_H

#include "real.h"

/* The definition of a kernel: KERNEL(name) { ... } has its arguments by name, as kernels.list has them. */
#define KERNEL(name)                                              \
    static inline int body_##name(ROT_PARAMETERS_##name);         \
    int K(name)(const name##_args *args) {                        \
        return body_##name(ROT_VALUES_##name);                    \
    }                                                             \
    static inline int body_##name(ROT_PARAMETERS_##name)

enum { NORM_NONE, NORM_CHANNEL, NORM_ROW };

enum { GATE_NONE, GATE_FULL, GATE_HALF1, GATE_HALF2 };

enum { FUNCTION_EXP, FUNCTION_SIGMOID, FUNCTION_TANH, FUNCTION_GELU, FUNCTION_SILU, FUNCTION_SOFTPLUS };

enum { LAGGED_LINEAR, LAGGED_SIGMOID, LAGGED_SILU, LAGGED_SOFTPLUS, LAGGED_UNIT };

enum { CELL_IDENTITY, CELL_TANH, CELL_RELU, CELL_LSTM };

enum { MIXER_HOUSEHOLDER, MIXER_DPLR, MIXER_LOW_RANK, MIXER_KRONECKER };

enum { COPY_COPY, COPY_PREFIX, COPY_SUFFIX, COPY_DUPLICATE };

enum { REGULAR_PARITY, REGULAR_EVEN_PAIRS, REGULAR_CYCLE, REGULAR_ARITHMETIC };

enum { EXPECTED_NOTHING, EXPECTED_ARGUMENT, EXPECTED_OPERATOR, EXPECTED_MORE_PARENTHESES, EXPECTED_LESS_DEPTH, EXPECTED_ARGUMENT_END, EXPECTED_BRACKET, EXPECTED_NODE_END, EXPECTED_THE_END };

enum { GROUP_CYCLIC, GROUP_SYMMETRIC, GROUP_ALTERNATING };

enum { SELECTIVE_TILE = 32 };

enum { ORTHOGONAL_LARGEST = 1000000 };

enum { COPY_MAX_LENGTH = 4096 };

#define ROT_LANE_KERNELS(X) X(scan_forward) X(scan_backward) X(window_forward) X(window_backward) X(tiir)

#define ROT_REAL_KERNELS(X) X(matmul) X(matmul_weight_grad) X(matmul_stack) X(mix_forward) X(mix_backward) X(relax) X(mixer_prepare) X(depth_pass) X(lagged_forward) X(lagged_product) X(lagged_backward) X(elementwise) X(elementwise_backward) X(glu_forward) X(glu_backward) X(mask_padding) X(dropout) X(channel_moments) X(channel_affine) X(channel_sums) X(channel_adjoint) X(layer_norm_forward) X(layer_norm_backward) X(embedding_forward) X(embedding_backward) X(mean_pool_forward) X(mean_pool_backward) X(cross_entropy) X(adamw) X(norm) X(block_forward) X(block_backward) X(orthogonal_forward) X(orthogonal_backward) X(attention_forward) X(attention_backward) X(rnn_forward) X(rnn_backward) X(bank_forward) X(bank_backward) X(selective_forward) X(selective_backward) X(conv_forward) X(conv_backward) X(copy) X(philox)

#define ROT_ONCE_KERNELS(X) X(listops_sample) X(listops_parse) X(listops_render) X(word_sample) X(word_states) X(copy_rows) X(copy_strings) X(delayed_copy) X(brackets_sample) X(regular_sample) X(pathfinder)

enum { PLACE_scan_forward, PLACE_scan_backward, PLACE_window_forward, PLACE_window_backward, PLACE_tiir, PLACE_matmul, PLACE_matmul_weight_grad, PLACE_matmul_stack, PLACE_mix_forward, PLACE_mix_backward, PLACE_relax, PLACE_mixer_prepare, PLACE_depth_pass, PLACE_lagged_forward, PLACE_lagged_product, PLACE_lagged_backward, PLACE_elementwise, PLACE_elementwise_backward, PLACE_glu_forward, PLACE_glu_backward, PLACE_mask_padding, PLACE_dropout, PLACE_channel_moments, PLACE_channel_affine, PLACE_channel_sums, PLACE_channel_adjoint, PLACE_layer_norm_forward, PLACE_layer_norm_backward, PLACE_embedding_forward, PLACE_embedding_backward, PLACE_mean_pool_forward, PLACE_mean_pool_backward, PLACE_cross_entropy, PLACE_adamw, PLACE_norm, PLACE_block_forward, PLACE_block_backward, PLACE_orthogonal_forward, PLACE_orthogonal_backward, PLACE_attention_forward, PLACE_attention_backward, PLACE_rnn_forward, PLACE_rnn_backward, PLACE_bank_forward, PLACE_bank_backward, PLACE_selective_forward, PLACE_selective_backward, PLACE_conv_forward, PLACE_conv_backward, PLACE_copy, PLACE_philox, PLACE_listops_sample, PLACE_listops_parse, PLACE_listops_render, PLACE_word_sample, PLACE_word_states, PLACE_copy_rows, PLACE_copy_strings, PLACE_delayed_copy, PLACE_brackets_sample, PLACE_regular_sample, PLACE_pathfinder, ROT_KERNELS };

typedef struct {
    lane *h;
    lane *hT;
    const lane *a;
    const lane *x;
    const lane *h0;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t N;
    int64_t varying;
    int64_t reverse;
} scan_forward_args;
#define ROT_PARAMETERS_scan_forward lane *restrict h, lane *restrict hT, const lane *restrict a, const lane *restrict x, const lane *restrict h0, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t varying, int64_t reverse
#define ROT_VALUES_scan_forward args->h, args->hT, args->a, args->x, args->h0, args->lengths, args->B, args->T, args->N, args->varying, args->reverse
int K(scan_forward)(const scan_forward_args *args);

typedef struct {
    lane *dx;
    lane *da;
    lane *dh0;
    const lane *dh;
    const lane *dhT;
    const lane *a;
    const lane *h;
    const lane *h0;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t N;
    int64_t varying;
    int64_t reverse;
} scan_backward_args;
#define ROT_PARAMETERS_scan_backward lane *restrict dx, lane *restrict da, lane *restrict dh0, const lane *restrict dh, const lane *restrict dhT, const lane *restrict a, const lane *restrict h, const lane *restrict h0, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t varying, int64_t reverse
#define ROT_VALUES_scan_backward args->dx, args->da, args->dh0, args->dh, args->dhT, args->a, args->h, args->h0, args->lengths, args->B, args->T, args->N, args->varying, args->reverse
int K(scan_backward)(const scan_backward_args *args);

typedef struct {
    lane *h;
    lane *last;
    const lane *a;
    const lane *x;
    const lane *past;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t N;
    int64_t L;
    int64_t varying;
    int64_t reverse;
} window_forward_args;
#define ROT_PARAMETERS_window_forward lane *restrict h, lane *restrict last, const lane *restrict a, const lane *restrict x, const lane *restrict past, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t L, int64_t varying, int64_t reverse
#define ROT_VALUES_window_forward args->h, args->last, args->a, args->x, args->past, args->lengths, args->B, args->T, args->N, args->L, args->varying, args->reverse
int K(window_forward)(const window_forward_args *args);

typedef struct {
    lane *dx;
    lane *da;
    lane *dpast;
    const lane *dh;
    const lane *dlast;
    const lane *a;
    const lane *x;
    const lane *past;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t N;
    int64_t L;
    int64_t varying;
    int64_t reverse;
} window_backward_args;
#define ROT_PARAMETERS_window_backward lane *restrict dx, lane *restrict da, lane *restrict dpast, const lane *restrict dh, const lane *restrict dlast, const lane *restrict a, const lane *restrict x, const lane *restrict past, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t L, int64_t varying, int64_t reverse
#define ROT_VALUES_window_backward args->dx, args->da, args->dpast, args->dh, args->dlast, args->a, args->x, args->past, args->lengths, args->B, args->T, args->N, args->L, args->varying, args->reverse
int K(window_backward)(const window_backward_args *args);

typedef struct {
    lane *h;
    lane *delay;
    lane *sums;
    const int64_t *position;
    const lane *a;
    const lane *power;
    const lane *x;
    int64_t B;
    int64_t T;
    int64_t N;
    int64_t L;
    int64_t resets;
} tiir_args;
#define ROT_PARAMETERS_tiir lane *restrict h, lane *restrict delay, lane *restrict sums, const int64_t *restrict position, const lane *restrict a, const lane *restrict power, const lane *restrict x, int64_t B, int64_t T, int64_t N, int64_t L, int64_t resets
#define ROT_VALUES_tiir args->h, args->delay, args->sums, args->position, args->a, args->power, args->x, args->B, args->T, args->N, args->L, args->resets
int K(tiir)(const tiir_args *args);

#if !ROT_COMPLEX

typedef struct {
    const real *x;
    const real *w_in;
    const real *a;
    const real *w_out;
    const real *skip;
    const real *h0;
    const real *center;
    const real *gain;
    const real *offset;
    const real *w_value;
    const real *b_value;
    const real *w_gate;
    const real *b_gate;
    const int64_t *lengths;
    const int64_t *places;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t L;
    int64_t K;
    int64_t tile;
    int64_t norm;
    int64_t gate;
    double eps;
    double rate;
    int64_t seed;
    int64_t step;
    int64_t site;
    int64_t over_time;
} block_in;

typedef struct {
    real *y;
    real *hT;
    real *carries;
    real *mean;
    real *var;
    real *layer;
} block_out;

typedef struct {
    const real *dy;
    const real *carries;
    const real *dhT;
    const real *layer;
    const real *later_y;
    const real *later_center;
    const real *later_slope;
    const real *later_shift;
} block_adjoint_in;

typedef struct {
    real *dx;
    real *dw_in;
    real *da;
    real *dw_out;
    real *dskip;
    real *dh0;
    real *d_norm_sum;
    real *d_norm_product;
    real *dw_value;
    real *db_value;
    real *dw_gate;
    real *db_gate;
} block_adjoint_out;

typedef struct {
    real *y;
    const real *x;
    const real *w;
    const real *bias;
    int64_t M;
    int64_t d_in;
    int64_t d_out;
    int64_t transposed;
} matmul_args;
#define ROT_PARAMETERS_matmul real *restrict y, const real *restrict x, const real *restrict w, const real *restrict bias, int64_t M, int64_t d_in, int64_t d_out, int64_t transposed
#define ROT_VALUES_matmul args->y, args->x, args->w, args->bias, args->M, args->d_in, args->d_out, args->transposed
int K(matmul)(const matmul_args *args);

typedef struct {
    real *dw;
    real *dbias;
    const real *x;
    const real *dy;
    int64_t M;
    int64_t d_in;
    int64_t d_out;
} matmul_weight_grad_args;
#define ROT_PARAMETERS_matmul_weight_grad real *restrict dw, real *restrict dbias, const real *restrict x, const real *restrict dy, int64_t M, int64_t d_in, int64_t d_out
#define ROT_VALUES_matmul_weight_grad args->dw, args->dbias, args->x, args->dy, args->M, args->d_in, args->d_out
int K(matmul_weight_grad)(const matmul_weight_grad_args *args);

typedef struct {
    real *y;
    const real *x;
    const real *w;
    int64_t G;
    int64_t M;
    int64_t d_in;
    int64_t d_out;
} matmul_stack_args;
#define ROT_PARAMETERS_matmul_stack real *restrict y, const real *restrict x, const real *restrict w, int64_t G, int64_t M, int64_t d_in, int64_t d_out
#define ROT_VALUES_matmul_stack args->y, args->x, args->w, args->G, args->M, args->d_in, args->d_out
int K(matmul_stack)(const matmul_stack_args *args);

typedef struct {
    real *y;
    const real *u;
    const real *alpha;
    const real *x;
    const real *origin;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t R;
    int64_t D;
    int64_t u_varying;
    int64_t alpha_varying;
    int64_t form;
} mix_forward_args;
#define ROT_PARAMETERS_mix_forward real *restrict y, const real *restrict u, const real *restrict alpha, const real *restrict x, const real *restrict origin, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t R, int64_t D, int64_t u_varying, int64_t alpha_varying, int64_t form
#define ROT_VALUES_mix_forward args->y, args->u, args->alpha, args->x, args->origin, args->lengths, args->B, args->T, args->R, args->D, args->u_varying, args->alpha_varying, args->form
int K(mix_forward)(const mix_forward_args *args);

typedef struct {
    real *dx;
    real *du;
    real *dalpha;
    real *dorigin;
    const real *dy;
    const real *u;
    const real *alpha;
    const real *x;
    const real *origin;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t R;
    int64_t D;
    int64_t u_varying;
    int64_t alpha_varying;
    int64_t form;
} mix_backward_args;
#define ROT_PARAMETERS_mix_backward real *restrict dx, real *restrict du, real *restrict dalpha, real *restrict dorigin, const real *restrict dy, const real *restrict u, const real *restrict alpha, const real *restrict x, const real *restrict origin, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t R, int64_t D, int64_t u_varying, int64_t alpha_varying, int64_t form
#define ROT_VALUES_mix_backward args->dx, args->du, args->dalpha, args->dorigin, args->dy, args->u, args->alpha, args->x, args->origin, args->lengths, args->B, args->T, args->R, args->D, args->u_varying, args->alpha_varying, args->form
int K(mix_backward)(const mix_backward_args *args);

typedef struct {
    real *residual;
    real *y;
    const real *f;
    const real *s;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t each_step;
} relax_args;
#define ROT_PARAMETERS_relax real *restrict residual, real *restrict y, const real *restrict f, const real *restrict s, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t each_step
#define ROT_VALUES_relax args->residual, args->y, args->f, args->s, args->lengths, args->B, args->T, args->D, args->each_step
int K(relax)(const relax_args *args);

typedef struct {
    real *w;
    const real *u;
    int64_t M;
    int64_t R;
    int64_t D;
    int64_t form;
} mixer_prepare_args;
#define ROT_PARAMETERS_mixer_prepare real *restrict w, const real *restrict u, int64_t M, int64_t R, int64_t D, int64_t form
#define ROT_VALUES_mixer_prepare args->w, args->u, args->M, args->R, args->D, args->form
int K(mixer_prepare)(const mixer_prepare_args *args);

typedef struct {
    real *residual;
    real *y;
    const real *x;
    const real *lam;
    const real *w;
    const real *alpha;
    const real *h0;
    const real *s;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t R;
    int64_t D;
    int64_t varying;
    int64_t w_varying;
    int64_t alpha_varying;
    int64_t form;
    int64_t scaled;
    int64_t adjoint;
} depth_pass_args;
#define ROT_PARAMETERS_depth_pass real *restrict residual, real *restrict y, const real *restrict x, const real *restrict lam, const real *restrict w, const real *restrict alpha, const real *restrict h0, const real *restrict s, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t R, int64_t D, int64_t varying, int64_t w_varying, int64_t alpha_varying, int64_t form, int64_t scaled, int64_t adjoint
#define ROT_VALUES_depth_pass args->residual, args->y, args->x, args->lam, args->w, args->alpha, args->h0, args->s, args->lengths, args->B, args->T, args->R, args->D, args->varying, args->w_varying, args->alpha_varying, args->form, args->scaled, args->adjoint
int K(depth_pass)(const depth_pass_args *args);

typedef struct {
    real *out;
    const real *base;
    const real *late;
    const real *first;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t K;
    int64_t lo;
    int64_t n;
    int64_t function;
} lagged_forward_args;
#define ROT_PARAMETERS_lagged_forward real *restrict out, const real *restrict base, const real *restrict late, const real *restrict first, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t K, int64_t lo, int64_t n, int64_t function
#define ROT_VALUES_lagged_forward args->out, args->base, args->late, args->first, args->lengths, args->B, args->T, args->K, args->lo, args->n, args->function
int K(lagged_forward)(const lagged_forward_args *args);

typedef struct {
    real *out;
    const real *base;
    const real *y;
    const real *v;
    const real *first;
    const int64_t *lengths;
    const int64_t *widths;
    const int64_t *functions;
    int64_t ranges;
    int64_t B;
    int64_t T;
    int64_t K;
    int64_t E;
} lagged_product_args;
#define ROT_PARAMETERS_lagged_product real *restrict out, const real *restrict base, const real *restrict y, const real *restrict v, const real *restrict first, const int64_t *restrict lengths, const int64_t *restrict widths, const int64_t *restrict functions, int64_t ranges, int64_t B, int64_t T, int64_t K, int64_t E
#define ROT_VALUES_lagged_product args->out, args->base, args->y, args->v, args->first, args->lengths, args->widths, args->functions, args->ranges, args->B, args->T, args->K, args->E
int K(lagged_product)(const lagged_product_args *args);

typedef struct {
    real *dbase;
    real *dlate;
    real *dfirst;
    const real *dout;
    const real *base;
    const real *late;
    const real *first;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t K;
    int64_t lo;
    int64_t n;
    int64_t function;
} lagged_backward_args;
#define ROT_PARAMETERS_lagged_backward real *restrict dbase, real *restrict dlate, real *restrict dfirst, const real *restrict dout, const real *restrict base, const real *restrict late, const real *restrict first, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t K, int64_t lo, int64_t n, int64_t function
#define ROT_VALUES_lagged_backward args->dbase, args->dlate, args->dfirst, args->dout, args->base, args->late, args->first, args->lengths, args->B, args->T, args->K, args->lo, args->n, args->function
int K(lagged_backward)(const lagged_backward_args *args);

typedef struct {
    real *y;
    const real *x;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t function;
} elementwise_args;
#define ROT_PARAMETERS_elementwise real *restrict y, const real *restrict x, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t function
#define ROT_VALUES_elementwise args->y, args->x, args->lengths, args->B, args->T, args->D, args->function
int K(elementwise)(const elementwise_args *args);

typedef struct {
    real *dx;
    const real *dy;
    const real *x;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t function;
} elementwise_backward_args;
#define ROT_PARAMETERS_elementwise_backward real *restrict dx, const real *restrict dy, const real *restrict x, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t function
#define ROT_VALUES_elementwise_backward args->dx, args->dy, args->x, args->lengths, args->B, args->T, args->D, args->function
int K(elementwise_backward)(const elementwise_backward_args *args);

typedef struct {
    real *y;
    const real *value;
    const real *gate;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} glu_forward_args;
#define ROT_PARAMETERS_glu_forward real *restrict y, const real *restrict value, const real *restrict gate, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_glu_forward args->y, args->value, args->gate, args->lengths, args->B, args->T, args->D
int K(glu_forward)(const glu_forward_args *args);

typedef struct {
    real *dvalue;
    real *dgate;
    const real *dy;
    const real *value;
    const real *gate;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} glu_backward_args;
#define ROT_PARAMETERS_glu_backward real *restrict dvalue, real *restrict dgate, const real *restrict dy, const real *restrict value, const real *restrict gate, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_glu_backward args->dvalue, args->dgate, args->dy, args->value, args->gate, args->lengths, args->B, args->T, args->D
int K(glu_backward)(const glu_backward_args *args);

typedef struct {
    real *y;
    const real *x;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} mask_padding_args;
#define ROT_PARAMETERS_mask_padding real *restrict y, const real *restrict x, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_mask_padding args->y, args->x, args->lengths, args->B, args->T, args->D
int K(mask_padding)(const mask_padding_args *args);

typedef struct {
    real *y;
    const real *x;
    const int64_t *lengths;
    const int64_t *places;
    int64_t B;
    int64_t T;
    int64_t D;
    double rate;
    int64_t seed;
    int64_t step;
    int64_t site;
    int64_t over_time;
} dropout_args;
#define ROT_PARAMETERS_dropout real *restrict y, const real *restrict x, const int64_t *restrict lengths, const int64_t *restrict places, int64_t B, int64_t T, int64_t D, double rate, int64_t seed, int64_t step, int64_t site, int64_t over_time
#define ROT_VALUES_dropout args->y, args->x, args->lengths, args->places, args->B, args->T, args->D, args->rate, args->seed, args->step, args->site, args->over_time
int K(dropout)(const dropout_args *args);

typedef struct {
    real *mean;
    real *var;
    const real *x;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} channel_moments_args;
#define ROT_PARAMETERS_channel_moments real *restrict mean, real *restrict var, const real *restrict x, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_channel_moments args->mean, args->var, args->x, args->lengths, args->B, args->T, args->D
int K(channel_moments)(const channel_moments_args *args);

typedef struct {
    real *y;
    const real *x;
    const real *center;
    const real *gain;
    const real *offset;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} channel_affine_args;
#define ROT_PARAMETERS_channel_affine real *restrict y, const real *restrict x, const real *restrict center, const real *restrict gain, const real *restrict offset, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_channel_affine args->y, args->x, args->center, args->gain, args->offset, args->lengths, args->B, args->T, args->D
int K(channel_affine)(const channel_affine_args *args);

typedef struct {
    real *sum;
    real *product;
    const real *dy;
    const real *x;
    const real *center;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} channel_sums_args;
#define ROT_PARAMETERS_channel_sums real *restrict sum, real *restrict product, const real *restrict dy, const real *restrict x, const real *restrict center, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_channel_sums args->sum, args->product, args->dy, args->x, args->center, args->lengths, args->B, args->T, args->D
int K(channel_sums)(const channel_sums_args *args);

typedef struct {
    real *dx;
    const real *dy;
    const real *x;
    const real *center;
    const real *gain;
    const real *slope;
    const real *offset;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} channel_adjoint_args;
#define ROT_PARAMETERS_channel_adjoint real *restrict dx, const real *restrict dy, const real *restrict x, const real *restrict center, const real *restrict gain, const real *restrict slope, const real *restrict offset, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_channel_adjoint args->dx, args->dy, args->x, args->center, args->gain, args->slope, args->offset, args->lengths, args->B, args->T, args->D
int K(channel_adjoint)(const channel_adjoint_args *args);

typedef struct {
    real *y;
    real *mean;
    real *rstd;
    const real *x;
    const real *scale;
    const real *bias;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    double eps;
} layer_norm_forward_args;
#define ROT_PARAMETERS_layer_norm_forward real *restrict y, real *restrict mean, real *restrict rstd, const real *restrict x, const real *restrict scale, const real *restrict bias, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, double eps
#define ROT_VALUES_layer_norm_forward args->y, args->mean, args->rstd, args->x, args->scale, args->bias, args->lengths, args->B, args->T, args->D, args->eps
int K(layer_norm_forward)(const layer_norm_forward_args *args);

typedef struct {
    real *dx;
    real *dscale;
    real *dbias;
    const real *dy;
    const real *x;
    const real *scale;
    const real *mean;
    const real *rstd;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} layer_norm_backward_args;
#define ROT_PARAMETERS_layer_norm_backward real *restrict dx, real *restrict dscale, real *restrict dbias, const real *restrict dy, const real *restrict x, const real *restrict scale, const real *restrict mean, const real *restrict rstd, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_layer_norm_backward args->dx, args->dscale, args->dbias, args->dy, args->x, args->scale, args->mean, args->rstd, args->lengths, args->B, args->T, args->D
int K(layer_norm_backward)(const layer_norm_backward_args *args);

typedef struct {
    real *y;
    const int64_t *ids;
    const real *table;
    const real *bias;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t V;
} embedding_forward_args;
#define ROT_PARAMETERS_embedding_forward real *restrict y, const int64_t *restrict ids, const real *restrict table, const real *restrict bias, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t V
#define ROT_VALUES_embedding_forward args->y, args->ids, args->table, args->bias, args->lengths, args->B, args->T, args->D, args->V
int K(embedding_forward)(const embedding_forward_args *args);

typedef struct {
    real *dtable;
    const real *dy;
    const int64_t *ids;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t V;
} embedding_backward_args;
#define ROT_PARAMETERS_embedding_backward real *restrict dtable, const real *restrict dy, const int64_t *restrict ids, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t V
#define ROT_VALUES_embedding_backward args->dtable, args->dy, args->ids, args->lengths, args->B, args->T, args->D, args->V
int K(embedding_backward)(const embedding_backward_args *args);

typedef struct {
    real *y;
    const real *x;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} mean_pool_forward_args;
#define ROT_PARAMETERS_mean_pool_forward real *restrict y, const real *restrict x, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_mean_pool_forward args->y, args->x, args->lengths, args->B, args->T, args->D
int K(mean_pool_forward)(const mean_pool_forward_args *args);

typedef struct {
    real *dx;
    const real *dy;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
} mean_pool_backward_args;
#define ROT_PARAMETERS_mean_pool_backward real *restrict dx, const real *restrict dy, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D
#define ROT_VALUES_mean_pool_backward args->dx, args->dy, args->lengths, args->B, args->T, args->D
int K(mean_pool_backward)(const mean_pool_backward_args *args);

typedef struct {
    real *loss;
    real *dlogits;
    const real *logits;
    const int64_t *labels;
    int64_t B;
    int64_t C;
} cross_entropy_args;
#define ROT_PARAMETERS_cross_entropy real *restrict loss, real *restrict dlogits, const real *restrict logits, const int64_t *restrict labels, int64_t B, int64_t C
#define ROT_VALUES_cross_entropy args->loss, args->dlogits, args->logits, args->labels, args->B, args->C
int K(cross_entropy)(const cross_entropy_args *args);

typedef struct {
    real *p;
    real *m;
    real *v;
    double *norms;
    const real *grad;
    int64_t n;
    double lr;
    double beta1;
    double beta2;
    double eps;
    double decay;
    double scale;
    int64_t step;
} adamw_args;
#define ROT_PARAMETERS_adamw real *restrict p, real *restrict m, real *restrict v, double *restrict norms, const real *restrict grad, int64_t n, double lr, double beta1, double beta2, double eps, double decay, double scale, int64_t step
#define ROT_VALUES_adamw args->p, args->m, args->v, args->norms, args->grad, args->n, args->lr, args->beta1, args->beta2, args->eps, args->decay, args->scale, args->step
int K(adamw)(const adamw_args *args);

typedef struct {
    double *norm;
    const real *x;
    int64_t n;
} norm_args;
#define ROT_PARAMETERS_norm double *restrict norm, const real *restrict x, int64_t n
#define ROT_VALUES_norm args->norm, args->x, args->n
int K(norm)(const norm_args *args);

typedef struct {
    block_in b;
    block_out out;
} block_forward_args;
#define ROT_PARAMETERS_block_forward const block_in *restrict b, const block_out *restrict out
#define ROT_VALUES_block_forward &args->b, &args->out
int K(block_forward)(const block_forward_args *args);

typedef struct {
    block_in b;
    block_adjoint_in in;
    block_adjoint_out out;
} block_backward_args;
#define ROT_PARAMETERS_block_backward const block_in *restrict b, const block_adjoint_in *restrict in, const block_adjoint_out *restrict out
#define ROT_VALUES_block_backward &args->b, &args->in, &args->out
int K(block_backward)(const block_backward_args *args);

typedef struct {
    real *P;
    const real *M;
    int64_t G;
    int64_t n;
} orthogonal_forward_args;
#define ROT_PARAMETERS_orthogonal_forward real *restrict P, const real *restrict M, int64_t G, int64_t n
#define ROT_VALUES_orthogonal_forward args->P, args->M, args->G, args->n
int K(orthogonal_forward)(const orthogonal_forward_args *args);

typedef struct {
    real *dM;
    const real *dP;
    const real *M;
    int64_t G;
    int64_t n;
} orthogonal_backward_args;
#define ROT_PARAMETERS_orthogonal_backward real *restrict dM, const real *restrict dP, const real *restrict M, int64_t G, int64_t n
#define ROT_VALUES_orthogonal_backward args->dM, args->dP, args->M, args->G, args->n
int K(orthogonal_backward)(const orthogonal_backward_args *args);

typedef struct {
    real *y;
    real *norm;
    const real *q;
    const real *k;
    const real *v;
    const int64_t *lengths;
    const int64_t *past;
    int64_t B;
    int64_t T;
    int64_t S;
    int64_t D;
    int64_t H;
    int64_t window;
} attention_forward_args;
#define ROT_PARAMETERS_attention_forward real *restrict y, real *restrict norm, const real *restrict q, const real *restrict k, const real *restrict v, const int64_t *restrict lengths, const int64_t *restrict past, int64_t B, int64_t T, int64_t S, int64_t D, int64_t H, int64_t window
#define ROT_VALUES_attention_forward args->y, args->norm, args->q, args->k, args->v, args->lengths, args->past, args->B, args->T, args->S, args->D, args->H, args->window
int K(attention_forward)(const attention_forward_args *args);

typedef struct {
    real *dq;
    real *dk;
    real *dv;
    const real *dy;
    const real *q;
    const real *k;
    const real *v;
    const real *y;
    const real *norm;
    const int64_t *lengths;
    const int64_t *past;
    int64_t B;
    int64_t T;
    int64_t S;
    int64_t D;
    int64_t H;
    int64_t window;
} attention_backward_args;
#define ROT_PARAMETERS_attention_backward real *restrict dq, real *restrict dk, real *restrict dv, const real *restrict dy, const real *restrict q, const real *restrict k, const real *restrict v, const real *restrict y, const real *restrict norm, const int64_t *restrict lengths, const int64_t *restrict past, int64_t B, int64_t T, int64_t S, int64_t D, int64_t H, int64_t window
#define ROT_VALUES_attention_backward args->dq, args->dk, args->dv, args->dy, args->q, args->k, args->v, args->y, args->norm, args->lengths, args->past, args->B, args->T, args->S, args->D, args->H, args->window
int K(attention_backward)(const attention_backward_args *args);

typedef struct {
    real *h;
    real *hT;
    real *c;
    real *cT;
    real *gates;
    const real *w;
    const real *x;
    const real *h0;
    const real *c0;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t N;
    int64_t cell;
    int64_t reverse;
} rnn_forward_args;
#define ROT_PARAMETERS_rnn_forward real *restrict h, real *restrict hT, real *restrict c, real *restrict cT, real *restrict gates, const real *restrict w, const real *restrict x, const real *restrict h0, const real *restrict c0, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t cell, int64_t reverse
#define ROT_VALUES_rnn_forward args->h, args->hT, args->c, args->cT, args->gates, args->w, args->x, args->h0, args->c0, args->lengths, args->B, args->T, args->N, args->cell, args->reverse
int K(rnn_forward)(const rnn_forward_args *args);

typedef struct {
    real *dx;
    real *dh0;
    real *dc0;
    const real *dh;
    const real *dhT;
    const real *dcT;
    const real *w;
    const real *h;
    const real *c;
    const real *gates;
    const real *c0;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t N;
    int64_t cell;
    int64_t reverse;
} rnn_backward_args;
#define ROT_PARAMETERS_rnn_backward real *restrict dx, real *restrict dh0, real *restrict dc0, const real *restrict dh, const real *restrict dhT, const real *restrict dcT, const real *restrict w, const real *restrict h, const real *restrict c, const real *restrict gates, const real *restrict c0, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t cell, int64_t reverse
#define ROT_VALUES_rnn_backward args->dx, args->dh0, args->dc0, args->dh, args->dhT, args->dcT, args->w, args->h, args->c, args->gates, args->c0, args->lengths, args->B, args->T, args->N, args->cell, args->reverse
int K(rnn_backward)(const rnn_backward_args *args);

typedef struct {
    real *y;
    real *hT;
    real *carries;
    const real *a;
    const real *c;
    const real *skip;
    const real *u;
    const real *h0;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t N;
    int64_t tile;
    int64_t reverse;
} bank_forward_args;
#define ROT_PARAMETERS_bank_forward real *restrict y, real *restrict hT, real *restrict carries, const real *restrict a, const real *restrict c, const real *restrict skip, const real *restrict u, const real *restrict h0, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t N, int64_t tile, int64_t reverse
#define ROT_VALUES_bank_forward args->y, args->hT, args->carries, args->a, args->c, args->skip, args->u, args->h0, args->lengths, args->B, args->T, args->D, args->N, args->tile, args->reverse
int K(bank_forward)(const bank_forward_args *args);

typedef struct {
    real *du;
    real *da;
    real *dc;
    real *dskip;
    real *dh0;
    const real *dy;
    const real *dhT;
    const real *carries;
    const real *a;
    const real *c;
    const real *skip;
    const real *u;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t N;
    int64_t tile;
    int64_t reverse;
} bank_backward_args;
#define ROT_PARAMETERS_bank_backward real *restrict du, real *restrict da, real *restrict dc, real *restrict dskip, real *restrict dh0, const real *restrict dy, const real *restrict dhT, const real *restrict carries, const real *restrict a, const real *restrict c, const real *restrict skip, const real *restrict u, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t N, int64_t tile, int64_t reverse
#define ROT_VALUES_bank_backward args->du, args->da, args->dc, args->dskip, args->dh0, args->dy, args->dhT, args->carries, args->a, args->c, args->skip, args->u, args->lengths, args->B, args->T, args->D, args->N, args->tile, args->reverse
int K(bank_backward)(const bank_backward_args *args);

typedef struct {
    real *y;
    real *hT;
    real *carries;
    const real *x;
    const real *delta;
    const real *A;
    const real *B;
    const real *C;
    const real *skip;
    const real *h0;
    const int64_t *lengths;
    int64_t batch;
    int64_t T;
    int64_t D;
    int64_t S;
    int64_t reverse;
} selective_forward_args;
#define ROT_PARAMETERS_selective_forward real *restrict y, real *restrict hT, real *restrict carries, const real *restrict x, const real *restrict delta, const real *restrict A, const real *restrict B, const real *restrict C, const real *restrict skip, const real *restrict h0, const int64_t *restrict lengths, int64_t batch, int64_t T, int64_t D, int64_t S, int64_t reverse
#define ROT_VALUES_selective_forward args->y, args->hT, args->carries, args->x, args->delta, args->A, args->B, args->C, args->skip, args->h0, args->lengths, args->batch, args->T, args->D, args->S, args->reverse
int K(selective_forward)(const selective_forward_args *args);

typedef struct {
    real *dx;
    real *ddelta;
    real *dA;
    real *dB;
    real *dC;
    real *dskip;
    real *dh0;
    const real *dy;
    const real *dhT;
    const real *carries;
    const real *x;
    const real *delta;
    const real *A;
    const real *B;
    const real *C;
    const real *skip;
    const int64_t *lengths;
    int64_t batch;
    int64_t T;
    int64_t D;
    int64_t S;
    int64_t reverse;
} selective_backward_args;
#define ROT_PARAMETERS_selective_backward real *restrict dx, real *restrict ddelta, real *restrict dA, real *restrict dB, real *restrict dC, real *restrict dskip, real *restrict dh0, const real *restrict dy, const real *restrict dhT, const real *restrict carries, const real *restrict x, const real *restrict delta, const real *restrict A, const real *restrict B, const real *restrict C, const real *restrict skip, const int64_t *restrict lengths, int64_t batch, int64_t T, int64_t D, int64_t S, int64_t reverse
#define ROT_VALUES_selective_backward args->dx, args->ddelta, args->dA, args->dB, args->dC, args->dskip, args->dh0, args->dy, args->dhT, args->carries, args->x, args->delta, args->A, args->B, args->C, args->skip, args->lengths, args->batch, args->T, args->D, args->S, args->reverse
int K(selective_backward)(const selective_backward_args *args);

typedef struct {
    real *y;
    real *final;
    const real *x;
    const real *w;
    const real *bias;
    const real *state;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t taps;
} conv_forward_args;
#define ROT_PARAMETERS_conv_forward real *restrict y, real *restrict final, const real *restrict x, const real *restrict w, const real *restrict bias, const real *restrict state, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t taps
#define ROT_VALUES_conv_forward args->y, args->final, args->x, args->w, args->bias, args->state, args->lengths, args->B, args->T, args->D, args->taps
int K(conv_forward)(const conv_forward_args *args);

typedef struct {
    real *dx;
    real *dw;
    real *dbias;
    real *dstate;
    const real *dy;
    const real *dfinal;
    const real *x;
    const real *w;
    const real *state;
    const int64_t *lengths;
    int64_t B;
    int64_t T;
    int64_t D;
    int64_t taps;
} conv_backward_args;
#define ROT_PARAMETERS_conv_backward real *restrict dx, real *restrict dw, real *restrict dbias, real *restrict dstate, const real *restrict dy, const real *restrict dfinal, const real *restrict x, const real *restrict w, const real *restrict state, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t taps
#define ROT_VALUES_conv_backward args->dx, args->dw, args->dbias, args->dstate, args->dy, args->dfinal, args->x, args->w, args->state, args->lengths, args->B, args->T, args->D, args->taps
int K(conv_backward)(const conv_backward_args *args);

typedef struct {
    real *y;
    const real *x;
    int64_t n;
} copy_args;
#define ROT_PARAMETERS_copy real *restrict y, const real *restrict x, int64_t n
#define ROT_VALUES_copy args->y, args->x, args->n
int K(copy)(const copy_args *args);

typedef struct {
    int64_t *out;
    const int64_t *counter;
    const int64_t *key;
    int64_t n;
} philox_args;
#define ROT_PARAMETERS_philox int64_t *restrict out, const int64_t *restrict counter, const int64_t *restrict key, int64_t n
#define ROT_VALUES_philox args->out, args->counter, args->key, args->n
int K(philox)(const philox_args *args);

#endif

typedef struct {
    const int64_t *index;
    const uint8_t *lines;
    const uint8_t *masks;
    const uint8_t *markers;
    const double *seed_steps;
    const double *steps;
    const double *ring;
    const int64_t *ends;
    const int64_t *weights;
    const int64_t *probes;
    const int64_t *probe_counts;
    int64_t n;
    int64_t seed;
    int64_t window;
    int64_t padding;
    int64_t seed_distance;
    int64_t margin;
    int64_t S;
    int64_t C;
    int64_t probes_most;
    int64_t E;
    int64_t contour_length;
    int64_t distractors;
    int64_t distractor_length;
    int64_t target_shade;
    int64_t distractor_shade;
} pathfinder_in;

typedef struct {
    uint8_t *images;
    int64_t *facts;
    int64_t *paddles;
} pathfinder_out;

typedef struct {
    uint8_t *tokens;
    int64_t *lengths;
    uint8_t *values;
    int64_t n;
    int64_t seed;
    int64_t first;
    int64_t max_depth;
    int64_t max_args;
    int64_t min_length;
    int64_t max_length;
} listops_sample_args;
#define ROT_PARAMETERS_listops_sample uint8_t *restrict tokens, int64_t *restrict lengths, uint8_t *restrict values, int64_t n, int64_t seed, int64_t first, int64_t max_depth, int64_t max_args, int64_t min_length, int64_t max_length
#define ROT_VALUES_listops_sample args->tokens, args->lengths, args->values, args->n, args->seed, args->first, args->max_depth, args->max_args, args->min_length, args->max_length
int K(listops_sample)(const listops_sample_args *args);

typedef struct {
    uint8_t *tokens;
    int64_t *result;
    const uint8_t *text;
    int64_t size;
} listops_parse_args;
#define ROT_PARAMETERS_listops_parse uint8_t *restrict tokens, int64_t *restrict result, const uint8_t *restrict text, int64_t size
#define ROT_VALUES_listops_parse args->tokens, args->result, args->text, args->size
int K(listops_parse)(const listops_parse_args *args);

typedef struct {
    uint8_t *text;
    int64_t *start;
    const uint8_t *tokens;
    int64_t n;
} listops_render_args;
#define ROT_PARAMETERS_listops_render uint8_t *restrict text, int64_t *restrict start, const uint8_t *restrict tokens, int64_t n
#define ROT_VALUES_listops_render args->text, args->start, args->tokens, args->n
int K(listops_render)(const listops_render_args *args);

typedef struct {
    int64_t *elements;
    const int64_t *row;
    int64_t n;
    int64_t T;
    int64_t order;
    int64_t count;
    int64_t seed;
} word_sample_args;
#define ROT_PARAMETERS_word_sample int64_t *restrict elements, const int64_t *restrict row, int64_t n, int64_t T, int64_t order, int64_t count, int64_t seed
#define ROT_VALUES_word_sample args->elements, args->row, args->n, args->T, args->order, args->count, args->seed
int K(word_sample)(const word_sample_args *args);

typedef struct {
    int64_t *states;
    const int64_t *elements;
    const int64_t *factors;
    int64_t n;
    int64_t T;
    int64_t F;
} word_states_args;
#define ROT_PARAMETERS_word_states int64_t *restrict states, const int64_t *restrict elements, const int64_t *restrict factors, int64_t n, int64_t T, int64_t F
#define ROT_VALUES_word_states args->states, args->elements, args->factors, args->n, args->T, args->F
int K(word_states)(const word_states_args *args);

typedef struct {
    int64_t *tokens;
    int64_t *labels;
    const int64_t *stream;
    int64_t n;
    int64_t T;
    int64_t seed;
    int64_t letters;
    int64_t variant;
    int64_t gram;
    int64_t answer;
    int64_t low;
    int64_t high;
} copy_rows_args;
#define ROT_PARAMETERS_copy_rows int64_t *restrict tokens, int64_t *restrict labels, const int64_t *restrict stream, int64_t n, int64_t T, int64_t seed, int64_t letters, int64_t variant, int64_t gram, int64_t answer, int64_t low, int64_t high
#define ROT_VALUES_copy_rows args->tokens, args->labels, args->stream, args->n, args->T, args->seed, args->letters, args->variant, args->gram, args->answer, args->low, args->high
int K(copy_rows)(const copy_rows_args *args);

typedef struct {
    int64_t *tokens;
    int64_t *labels;
    int64_t *sizes;
    const int64_t *stream;
    const int64_t *length;
    int64_t n;
    int64_t T;
    int64_t seed;
    int64_t letters;
    int64_t variant;
    int64_t gram;
    int64_t answer;
} copy_strings_args;
#define ROT_PARAMETERS_copy_strings int64_t *restrict tokens, int64_t *restrict labels, int64_t *restrict sizes, const int64_t *restrict stream, const int64_t *restrict length, int64_t n, int64_t T, int64_t seed, int64_t letters, int64_t variant, int64_t gram, int64_t answer
#define ROT_VALUES_copy_strings args->tokens, args->labels, args->sizes, args->stream, args->length, args->n, args->T, args->seed, args->letters, args->variant, args->gram, args->answer
int K(copy_strings)(const copy_strings_args *args);

typedef struct {
    uint8_t *inputs;
    int64_t *labels;
    const int64_t *stream;
    int64_t n;
    int64_t length;
    int64_t delay;
    int64_t bits;
    int64_t seed;
} delayed_copy_args;
#define ROT_PARAMETERS_delayed_copy uint8_t *restrict inputs, int64_t *restrict labels, const int64_t *restrict stream, int64_t n, int64_t length, int64_t delay, int64_t bits, int64_t seed
#define ROT_VALUES_delayed_copy args->inputs, args->labels, args->stream, args->n, args->length, args->delay, args->bits, args->seed
int K(delayed_copy)(const delayed_copy_args *args);

typedef struct {
    int64_t *tokens;
    int64_t *labels;
    int64_t *sizes;
    const int64_t *stream;
    int64_t n;
    int64_t T;
    int64_t seed;
    int64_t low;
    int64_t high;
    int64_t modulus;
    int64_t operators;
} brackets_sample_args;
#define ROT_PARAMETERS_brackets_sample int64_t *restrict tokens, int64_t *restrict labels, int64_t *restrict sizes, const int64_t *restrict stream, int64_t n, int64_t T, int64_t seed, int64_t low, int64_t high, int64_t modulus, int64_t operators
#define ROT_VALUES_brackets_sample args->tokens, args->labels, args->sizes, args->stream, args->n, args->T, args->seed, args->low, args->high, args->modulus, args->operators
int K(brackets_sample)(const brackets_sample_args *args);

typedef struct {
    int64_t *tokens;
    int64_t *labels;
    int64_t *sizes;
    const int64_t *stream;
    const int64_t *length;
    int64_t n;
    int64_t T;
    int64_t seed;
    int64_t low;
    int64_t high;
    int64_t language;
    int64_t modulus;
} regular_sample_args;
#define ROT_PARAMETERS_regular_sample int64_t *restrict tokens, int64_t *restrict labels, int64_t *restrict sizes, const int64_t *restrict stream, const int64_t *restrict length, int64_t n, int64_t T, int64_t seed, int64_t low, int64_t high, int64_t language, int64_t modulus
#define ROT_VALUES_regular_sample args->tokens, args->labels, args->sizes, args->stream, args->length, args->n, args->T, args->seed, args->low, args->high, args->language, args->modulus
int K(regular_sample)(const regular_sample_args *args);

typedef struct {
    pathfinder_in in;
    pathfinder_out out;
} pathfinder_args;
#define ROT_PARAMETERS_pathfinder const pathfinder_in *restrict in, const pathfinder_out *restrict out
#define ROT_VALUES_pathfinder &args->in, &args->out
int K(pathfinder)(const pathfinder_args *args);

#endif
