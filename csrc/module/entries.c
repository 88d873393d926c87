/* One row per kernel: name, signature (entries.h), call. The compiler checks each call against kernels.h. */
#include "entries.h"

#include "kernels.h"

#define P(i) s[i].p
#define I(i) s[i].n
#define F(i) s[i].d
#define CALL(name, ...)                                                                                                \
    static int call_##name(const rot_slot *s) { return K(name)(__VA_ARGS__); }

CALL(scan_forward, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8), I(9), I(10))
CALL(scan_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), I(9), I(10), I(11), I(12), I(13))
CALL(window_forward, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8), I(9), I(10), I(11))
CALL(window_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), I(9), I(10), I(11), I(12), I(13), I(14))
CALL(tiir, P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(7), I(8), I(9), I(10), I(11))
#if ROT_DATA /* generators have no dtype: one variant has them for all */
CALL(listops_sample, P(0), P(1), P(2), I(3), I(4), I(5), I(6), I(7), I(8), I(9))
CALL(listops_parse, P(0), P(1), P(2), I(3))
CALL(listops_render, P(0), P(1), P(2), I(3))
CALL(word_sample, P(0), P(1), I(2), I(3), I(4), I(5), I(6))
CALL(word_states, P(0), P(1), P(2), I(3), I(4), I(5))
CALL(copy_rows, P(0), P(1), P(2), I(3), I(4), I(5), I(6), I(7), I(8), I(9), I(10), I(11))
CALL(copy_strings, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7), I(8), I(9), I(10), I(11))
CALL(delayed_copy, P(0), P(1), P(2), I(3), I(4), I(5), I(6), I(7))
CALL(brackets_sample, P(0), P(1), P(2), P(3), I(4), I(5), I(6), I(7), I(8), I(9), I(10))
CALL(regular_sample, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7), I(8), I(9), I(10), I(11))

static int call_pathfinder(const rot_slot *s) {
    const pathfinder_out out = {.images = P(0), .facts = P(1), .paddles = P(2)};
    const pathfinder_in in = {.index = P(3),
                              .lines = P(4),
                              .masks = P(5),
                              .markers = P(6),
                              .seed_steps = P(7),
                              .steps = P(8),
                              .ring = P(9),
                              .ends = P(10),
                              .weights = P(11),
                              .probes = P(12),
                              .probe_counts = P(13),
                              .n = I(14),
                              .seed = I(15),
                              .window = I(16),
                              .padding = I(17),
                              .seed_distance = I(18),
                              .margin = I(19),
                              .S = I(20),
                              .C = I(21),
                              .K = I(22),
                              .E = I(23),
                              .contour_length = I(24),
                              .distractors = I(25),
                              .distractor_length = I(26),
                              .target_shade = I(27),
                              .distractor_shade = I(28)};
    return K(pathfinder)(&in, &out);
}
#endif
#if ROT_KIND == ROT_IS_f32 /* no dtype either */
CALL(philox, P(0), P(1), P(2), I(3))
#endif
#if !ROT_COMPLEX
CALL(matmul, P(0), P(1), P(2), P(3), I(4), I(5), I(6), I(7))
CALL(matmul_weight_grad, P(0), P(1), P(2), P(3), I(4), I(5), I(6))
CALL(matmul_stack, P(0), P(1), P(2), I(3), I(4), I(5), I(6))
CALL(mix_forward, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8), I(9), I(10), I(11), I(12))
CALL(mix_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), I(10), I(11), I(12), I(13), I(14), I(15),
     I(16))
CALL(copy, P(0), P(1), I(2))
CALL(elementwise, P(0), P(1), P(2), I(3), I(4), I(5), I(6))
CALL(elementwise_backward, P(0), P(1), P(2), P(3), I(4), I(5), I(6), I(7))
CALL(glu_forward, P(0), P(1), P(2), P(3), I(4), I(5), I(6))
CALL(glu_backward, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8))
CALL(mask_padding, P(0), P(1), P(2), I(3), I(4), I(5))
CALL(dropout, P(0), P(1), P(2), P(3), I(4), I(5), I(6), F(7), I(8), I(9), I(10), I(11))
CALL(channel_moments, P(0), P(1), P(2), P(3), I(4), I(5), I(6))
CALL(channel_affine, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8))
CALL(channel_sums, P(0), P(1), P(2), P(3), P(4), P(5), I(6), I(7), I(8))
CALL(channel_adjoint, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), I(8), I(9), I(10))
CALL(layer_norm_forward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(7), I(8), I(9), F(10))
CALL(layer_norm_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), I(9), I(10), I(11))
CALL(embedding_forward, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7))
CALL(embedding_backward, P(0), P(1), P(2), P(3), I(4), I(5), I(6), I(7))
CALL(mean_pool_forward, P(0), P(1), P(2), I(3), I(4), I(5))
CALL(mean_pool_backward, P(0), P(1), P(2), I(3), I(4), I(5))
CALL(cross_entropy, P(0), P(1), P(2), P(3), I(4), I(5))
CALL(adamw, P(0), P(1), P(2), P(3), P(4), I(5), F(6), F(7), F(8), F(9), F(10), F(11), I(12))
CALL(norm, P(0), P(1), I(2))

/* The fused block's arguments are too many for a list: 15 arrays and 14 numbers from s on. */
static block_in block_from(const rot_slot *s) {
    const block_in b = {.x = P(0),
                        .w_in = P(1),
                        .a = P(2),
                        .w_out = P(3),
                        .skip = P(4),
                        .h0 = P(5),
                        .center = P(6),
                        .gain = P(7),
                        .offset = P(8),
                        .w_value = P(9),
                        .b_value = P(10),
                        .w_gate = P(11),
                        .b_gate = P(12),
                        .lengths = P(13),
                        .places = P(14),
                        .B = I(15),
                        .T = I(16),
                        .D = I(17),
                        .L = I(18),
                        .K = I(19),
                        .tile = I(20),
                        .norm = I(21),
                        .gate = I(22),
                        .eps = F(23),
                        .rate = F(24),
                        .seed = I(25),
                        .step = I(26),
                        .site = I(27),
                        .over_time = I(28)};
    return b;
}
#define BLOCK_SIGNATURE "rrrrrRRRRRRRRIInnnnnnnnddnnnn"
static int call_block_forward(const rot_slot *s) {
    const block_in b = block_from(s + 6);
    const block_out out = {.y = P(0), .hT = P(1), .carries = P(2), .mean = P(3), .var = P(4), .layer = P(5)};
    return K(block_forward)(&b, &out);
}
static int call_block_backward(const rot_slot *s) {
    const block_in b = block_from(s + 20);
    const block_adjoint_out out = {.dx = P(0),
                                   .dw_in = P(1),
                                   .da = P(2),
                                   .dw_out = P(3),
                                   .dskip = P(4),
                                   .dh0 = P(5),
                                   .d_norm_sum = P(6),
                                   .d_norm_product = P(7),
                                   .dw_value = P(8),
                                   .db_value = P(9),
                                   .dw_gate = P(10),
                                   .db_gate = P(11)};
    const block_adjoint_in in = {.dy = P(12),
                                 .carries = P(13),
                                 .dhT = P(14),
                                 .layer = P(15),
                                 .y = P(16),
                                 .later_center = P(17),
                                 .later_slope = P(18),
                                 .later_shift = P(19)};
    return K(block_backward)(&b, &in, &out);
}
CALL(orthogonal_forward, P(0), P(1), I(2), I(3))
CALL(orthogonal_backward, P(0), P(1), P(2), I(3), I(4))
CALL(rnn_forward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), I(10), I(11), I(12), I(13), I(14))
CALL(rnn_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), P(11), I(12), I(13), I(14), I(15),
     I(16))
CALL(attention_forward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(7), I(8), I(9), I(10), I(11), I(12))
CALL(attention_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), I(11), I(12), I(13), I(14),
     I(15), I(16))
CALL(bank_forward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), I(9), I(10), I(11), I(12), I(13), I(14))
CALL(bank_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), P(11), P(12), I(13), I(14),
     I(15), I(16), I(17), I(18))
CALL(selective_forward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), I(11), I(12), I(13), I(14),
     I(15))
CALL(selective_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), P(10), P(11), P(12), P(13), P(14),
     P(15), P(16), I(17), I(18), I(19), I(20), I(21))
CALL(conv_forward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), I(7), I(8), I(9), I(10))
CALL(conv_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), P(9), I(10), I(11), I(12), I(13))
CALL(relax, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7), I(8))
CALL(mixer_prepare, P(0), P(1), I(2), I(3), I(4), I(5))
CALL(depth_pass, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), P(8), I(9), I(10), I(11), I(12), I(13), I(14), I(15),
     I(16), I(17), I(18))
CALL(lagged_forward, P(0), P(1), P(2), P(3), P(4), I(5), I(6), I(7), I(8), I(9), I(10))
CALL(lagged_product, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), I(8), I(9), I(10), I(11), I(12))
CALL(lagged_backward, P(0), P(1), P(2), P(3), P(4), P(5), P(6), P(7), I(8), I(9), I(10), I(11), I(12), I(13))
#endif

#define ROW(name, signature)                                                                                           \
    { #name, signature, call_##name }

extern const rot_entry K(rot_table)[];
const rot_entry K(rot_table)[] = {
    ROW(scan_forward, "wWrrRInnnnn"),
    ROW(scan_backward, "wwWrRrrRInnnnn"),
    ROW(window_forward, "wWrrRInnnnnn"),
    ROW(window_backward, "wwwrRrrRInnnnnn"),
    ROW(tiir, "wwwirrrnnnnn"),
#if ROT_DATA
    ROW(listops_sample, "cjcnnnnnnn"),
    ROW(listops_parse, "cjbn"),
    ROW(listops_render, "cjbn"),
    ROW(word_sample, "jinnnnn"),
    ROW(word_states, "jiinnn"),
    ROW(copy_rows, "jjinnnnnnnnn"),
    ROW(copy_strings, "jjjiinnnnnnn"),
    ROW(delayed_copy, "cjinnnnn"),
    ROW(brackets_sample, "jjjinnnnnnn"),
    ROW(regular_sample, "jjjiInnnnnnn"),
    ROW(pathfinder, "cjjibbbfffiiiinnnnnnnnnnnnnnn"),
#endif
#if ROT_KIND == ROT_IS_f32
    ROW(philox, "jiin"),
#endif
#if !ROT_COMPLEX
    ROW(matmul, "wrrRnnnn"),
    ROW(matmul_weight_grad, "wWrrnnn"),
    ROW(matmul_stack, "wrrnnnn"),
    ROW(mix_forward, "wrrrRInnnnnnn"),
    ROW(mix_backward, "wwwWrrrrRInnnnnnn"),
    ROW(copy, "wrn"),
    ROW(elementwise, "wrInnnn"),
    ROW(elementwise_backward, "wrrInnnn"),
    ROW(glu_forward, "wrrInnn"),
    ROW(glu_backward, "wwrrrInnn"),
    ROW(mask_padding, "wrInnn"),
    ROW(dropout, "wrIInnndnnnn"),
    ROW(channel_moments, "wwrInnn"),
    ROW(channel_affine, "wrrrrInnn"),
    ROW(channel_sums, "wwrrrInnn"),
    ROW(channel_adjoint, "wrrrrrrInnn"),
    ROW(layer_norm_forward, "wwwrrrInnnd"),
    ROW(layer_norm_backward, "wwwrrrrrInnn"),
    ROW(embedding_forward, "wirRInnn"),
    ROW(embedding_backward, "wriInnnn"),
    ROW(mean_pool_forward, "wrInnn"),
    ROW(mean_pool_backward, "wrInnn"),
    ROW(cross_entropy, "wwrinn"),
    ROW(adamw, "wwwernddddddn"),
    ROW(norm, "ern"),
    ROW(block_forward, "wwwWWW" BLOCK_SIGNATURE),
    ROW(block_backward, "wwwwwwWWWWWWrrRRRRRR" BLOCK_SIGNATURE),
    ROW(orthogonal_forward, "wrnn"),
    ROW(orthogonal_backward, "wrrnn"),
    ROW(rnn_forward, "wwWWWrrRRInnnnn"),
    ROW(rnn_backward, "wwWrRRrrRRRInnnnn"),
    ROW(attention_forward, "wwrrrIInnnnnn"),
    ROW(attention_backward, "wwwrrrrrrIInnnnnn"),
    ROW(bank_forward, "wwwrrrrRInnnnnn"),
    ROW(bank_backward, "wwwwwrRrrrrrInnnnnn"),
    ROW(selective_forward, "WWWrrrrrRRInnnnn"),
    ROW(selective_backward, "wwwwwWwrRrrrrrrRInnnnn"),
    ROW(conv_forward, "wWrrRRInnnn"),
    ROW(conv_backward, "wwwwrRrrRInnnn"),
    ROW(relax, "wwrrInnnn"),
    ROW(mixer_prepare, "wrnnnn"),
    ROW(depth_pass, "wwrrrrRrInnnnnnnnnn"),
    ROW(lagged_forward, "wrRRInnnnnn"),
    ROW(lagged_product, "wrrrRIiinnnnn"),
    ROW(lagged_backward, "wWWrrRRInnnnnn"),
#endif
    {0, 0, 0},
};
