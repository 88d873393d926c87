/* Every kernel's prototype: outputs, inputs, what forward saved, dims. Compiled once per variant (real.h).
 *
 * Arrays are C-contiguous and validated by the caller; "or NULL" marks the optional ones. Kernels return a status
 * code, never print, never exit, keep no state, and give the same bits for any number of threads.
 */
#ifndef ROT_KERNELS_H
#define ROT_KERNELS_H

#include "block.h"
#include "pathfinder.h"
#include "real.h"

/* scan.c */
int K(scan_forward)(lane *restrict h, lane *restrict hT, const lane *restrict a, const lane *restrict x,
                    const lane *restrict h0, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N,
                    int64_t varying, int64_t reverse);
int K(scan_backward)(lane *restrict dx, lane *restrict da, lane *restrict dh0, const lane *restrict dh,
                     const lane *restrict dhT, const lane *restrict a, const lane *restrict h, const lane *restrict h0,
                     const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t varying,
                     int64_t reverse);

/* window.c */
int K(window_forward)(lane *restrict h, lane *restrict last, const lane *restrict a, const lane *restrict x,
                      const lane *restrict past, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N,
                      int64_t L, int64_t varying, int64_t reverse);
int K(window_backward)(lane *restrict dx, lane *restrict da, lane *restrict dpast, const lane *restrict dh,
                       const lane *restrict dlast, const lane *restrict a, const lane *restrict x,
                       const lane *restrict past, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N,
                       int64_t L, int64_t varying, int64_t reverse);
int K(tiir)(lane *restrict h, lane *restrict delay, lane *restrict sums, const int64_t *restrict position,
            const lane *restrict a, const lane *restrict power, const lane *restrict x, int64_t B, int64_t T, int64_t N,
            int64_t L, int64_t resets);

#if !ROT_COMPLEX
/* gemm.c */
int K(matmul)(real *restrict y, const real *restrict x, const real *restrict w, const real *restrict bias, int64_t M,
              int64_t in, int64_t out, int64_t transposed);
int K(matmul_weight_grad)(real *restrict dw, real *restrict dbias, const real *restrict x, const real *restrict dy,
                          int64_t M, int64_t in, int64_t out);
int K(matmul_stack)(real *restrict y, const real *restrict x, const real *restrict w, int64_t G, int64_t M, int64_t in,
                    int64_t out);

/* philox.c */
int K(philox)(int64_t *restrict out, const int64_t *restrict counter, const int64_t *restrict key, int64_t n);

/* listops.c */
int K(listops_sample)(uint8_t *restrict tokens, int64_t *restrict lengths, uint8_t *restrict values, int64_t n,
                      int64_t seed, int64_t first, int64_t max_depth, int64_t max_args, int64_t min_length,
                      int64_t max_length);
int K(listops_parse)(uint8_t *restrict tokens, int64_t *restrict result, const uint8_t *restrict text, int64_t size);
int K(listops_render)(uint8_t *restrict text, int64_t *restrict start, const uint8_t *restrict tokens, int64_t n);

/* word_problem.c */
int K(word_sample)(int64_t *restrict elements, const int64_t *restrict row, int64_t n, int64_t T, int64_t order,
                   int64_t count, int64_t seed);
int K(word_states)(int64_t *restrict states, const int64_t *restrict elements, const int64_t *restrict factors,
                   int64_t n, int64_t T, int64_t F);

/* string_copy.c */
int K(copy_rows)(int64_t *restrict tokens, int64_t *restrict labels, const int64_t *restrict stream, int64_t n,
                 int64_t T, int64_t seed, int64_t letters, int64_t variant, int64_t gram, int64_t answer, int64_t low,
                 int64_t high);
int K(copy_strings)(int64_t *restrict tokens, int64_t *restrict labels, int64_t *restrict sizes,
                    const int64_t *restrict stream, const int64_t *restrict length, int64_t n, int64_t T, int64_t seed,
                    int64_t letters, int64_t variant, int64_t gram, int64_t answer);

/* delayed_copy.c */
int K(delayed_copy)(uint8_t *restrict inputs, int64_t *restrict labels, const int64_t *restrict stream, int64_t n,
                    int64_t length, int64_t delay, int64_t bits, int64_t seed);

/* brackets.c */
int K(brackets_sample)(int64_t *restrict tokens, int64_t *restrict labels, int64_t *restrict sizes,
                       const int64_t *restrict stream, int64_t n, int64_t T, int64_t seed, int64_t low, int64_t high,
                       int64_t modulus, int64_t operators);

/* regular.c */
int K(regular_sample)(int64_t *restrict tokens, int64_t *restrict labels, int64_t *restrict sizes,
                      const int64_t *restrict stream, const int64_t *restrict length, int64_t n, int64_t T,
                      int64_t seed, int64_t low, int64_t high, int64_t language, int64_t m);

/* pathfinder.c */
int K(pathfinder)(const pathfinder_in *in, const pathfinder_out *out);

/* mixer.c */
int K(mix_forward)(real *restrict y, const real *restrict u, const real *restrict alpha, const real *restrict x,
                   const real *restrict origin, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t R,
                   int64_t D, int64_t u_varying, int64_t alpha_varying, int64_t form);
int K(mix_backward)(real *restrict dx, real *restrict du, real *restrict dalpha, real *restrict dorigin,
                    const real *restrict dy, const real *restrict u, const real *restrict alpha, const real *restrict x,
                    const real *restrict origin, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t R,
                    int64_t D, int64_t u_varying, int64_t alpha_varying, int64_t form);

/* copy.c */
int K(copy)(real *restrict y, const real *restrict x, int64_t n);

/* pointwise.c */
int K(elementwise)(real *restrict y, const real *restrict x, const int64_t *restrict lengths, int64_t B, int64_t T,
                   int64_t D, int64_t function);
int K(elementwise_backward)(real *restrict dx, const real *restrict dy, const real *restrict x,
                            const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t function);
int K(glu_forward)(real *restrict y, const real *restrict value, const real *restrict gate,
                   const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D);
int K(glu_backward)(real *restrict dvalue, real *restrict dgate, const real *restrict dy, const real *restrict value,
                    const real *restrict gate, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D);
int K(mask_padding)(real *restrict y, const real *restrict x, const int64_t *restrict lengths, int64_t B, int64_t T,
                    int64_t D);
int K(dropout)(real *restrict y, const real *restrict x, const int64_t *restrict lengths,
               const int64_t *restrict places, int64_t B, int64_t T, int64_t D, double rate, int64_t seed, int64_t step,
               int64_t site, int64_t over_time);
int K(channel_moments)(real *restrict mean, real *restrict var, const real *restrict x, const int64_t *restrict lengths,
                       int64_t B, int64_t T, int64_t D);
int K(channel_affine)(real *restrict y, const real *restrict x, const real *restrict center, const real *restrict gain,
                      const real *restrict offset, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D);
int K(channel_sums)(real *restrict sum, real *restrict product, const real *restrict dy, const real *restrict x,
                    const real *restrict center, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D);
int K(channel_adjoint)(real *restrict dx, const real *restrict dy, const real *restrict x, const real *restrict center,
                       const real *restrict gain, const real *restrict slope, const real *restrict offset,
                       const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D);
int K(layer_norm_forward)(real *restrict y, real *restrict mean, real *restrict rstd, const real *restrict x,
                          const real *restrict scale, const real *restrict bias, const int64_t *restrict lengths,
                          int64_t B, int64_t T, int64_t D, double eps);
int K(layer_norm_backward)(real *restrict dx, real *restrict dscale, real *restrict dbias, const real *restrict dy,
                           const real *restrict x, const real *restrict scale, const real *restrict mean,
                           const real *restrict rstd, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D);
int K(embedding_forward)(real *restrict y, const int64_t *restrict ids, const real *restrict table,
                         const real *restrict bias, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D);
int K(embedding_backward)(real *restrict dtable, const real *restrict dy, const int64_t *restrict ids,
                          const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t V);
int K(mean_pool_forward)(real *restrict y, const real *restrict x, const int64_t *restrict lengths, int64_t B,
                         int64_t T, int64_t D);
int K(mean_pool_backward)(real *restrict dx, const real *restrict dy, const int64_t *restrict lengths, int64_t B,
                          int64_t T, int64_t D);
int K(cross_entropy)(real *restrict loss, real *restrict dlogits, const real *restrict logits,
                     const int64_t *restrict labels, int64_t B, int64_t C);

/* optim.c */
int K(adamw)(real *restrict p, real *restrict m, real *restrict v, double *restrict norms, const real *restrict grad,
             int64_t n, double lr, double beta1, double beta2, double eps, double decay, double scale, int64_t step);
int K(norm)(double *restrict norm, const real *restrict x, int64_t n);

/* block.c */
int K(block_forward)(const block_in *b, const block_out *out);
int K(block_backward)(const block_in *b, const block_adjoint_in *in, const block_adjoint_out *out);
/* orthogonal.c */
int K(orthogonal_forward)(real *restrict P, const real *restrict M, int64_t G, int64_t n);
int K(orthogonal_backward)(real *restrict dM, const real *restrict dP, const real *restrict M, int64_t G, int64_t n);

/* attention.c */
int K(attention_forward)(real *restrict y, real *restrict norm, const real *restrict q, const real *restrict k,
                         const real *restrict v, const int64_t *restrict lengths, const int64_t *restrict past,
                         int64_t B, int64_t T, int64_t S, int64_t D, int64_t H, int64_t window);
int K(attention_backward)(real *restrict dq, real *restrict dk, real *restrict dv, const real *restrict dy,
                          const real *restrict q, const real *restrict k, const real *restrict v,
                          const real *restrict y, const real *restrict norm, const int64_t *restrict lengths,
                          const int64_t *restrict past, int64_t B, int64_t T, int64_t S, int64_t D, int64_t H,
                          int64_t window);

/* rnn.c */
int K(rnn_forward)(real *restrict h, real *restrict hT, real *restrict c, real *restrict cT, real *restrict gates,
                   const real *restrict w, const real *restrict x, const real *restrict h0, const real *restrict c0,
                   const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t cell, int64_t reverse);
int K(rnn_backward)(real *restrict dx, real *restrict dh0, real *restrict dc0, const real *restrict dh,
                    const real *restrict dhT, const real *restrict dcT, const real *restrict w, const real *restrict h,
                    const real *restrict c, const real *restrict gates, const real *restrict c0,
                    const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t cell, int64_t reverse);
/* bank.c */
int K(bank_forward)(real *restrict y, real *restrict hT, real *restrict carries, const real *restrict a,
                    const real *restrict c, const real *restrict skip, const real *restrict u, const real *restrict h0,
                    const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t N, int64_t tile,
                    int64_t reverse);
int K(bank_backward)(real *restrict du, real *restrict da, real *restrict dc, real *restrict dskip, real *restrict dh0,
                     const real *restrict dy, const real *restrict dhT, const real *restrict carries,
                     const real *restrict a, const real *restrict c, const real *restrict skip, const real *restrict u,
                     const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t N, int64_t tile,
                     int64_t reverse);
/* selective.c */
enum { SELECTIVE_TILE = 32 }; /* steps between two states of its carries */
int K(selective_forward)(real *restrict y, real *restrict hT, real *restrict carries, const real *restrict x,
                         const real *restrict delta, const real *restrict A, const real *restrict B,
                         const real *restrict C, const real *restrict skip, const real *restrict h0,
                         const int64_t *restrict lengths, int64_t batch, int64_t T, int64_t D, int64_t S,
                         int64_t reverse);
int K(selective_backward)(real *restrict dx, real *restrict ddelta, real *restrict dA, real *restrict dB,
                          real *restrict dC, real *restrict dskip, real *restrict dh0, const real *restrict dy,
                          const real *restrict dhT, const real *restrict carries, const real *restrict x,
                          const real *restrict delta, const real *restrict A, const real *restrict B,
                          const real *restrict C, const real *restrict skip, const int64_t *restrict lengths,
                          int64_t batch, int64_t T, int64_t D, int64_t S, int64_t reverse);

/* conv.c */
int K(conv_forward)(real *restrict y, real *restrict final, const real *restrict x, const real *restrict w,
                    const real *restrict bias, const real *restrict state, const int64_t *restrict lengths, int64_t B,
                    int64_t T, int64_t D, int64_t taps);
int K(conv_backward)(real *restrict dx, real *restrict dw, real *restrict dbias, real *restrict dstate,
                     const real *restrict dy, const real *restrict dfinal, const real *restrict x,
                     const real *restrict w, const real *restrict state, const int64_t *restrict lengths, int64_t B,
                     int64_t T, int64_t D, int64_t taps);
/* fixed_point.c */
int K(relax)(real *restrict residual, real *restrict y, const real *restrict f, const real *restrict s,
             const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t each_step);
int K(mixer_prepare)(real *restrict w, const real *restrict u, int64_t M, int64_t R, int64_t D, int64_t form);
int K(depth_pass)(real *restrict residual, real *restrict y, const real *restrict x, const real *restrict lam,
                  const real *restrict w, const real *restrict alpha, const real *restrict h0, const real *restrict s,
                  const int64_t *restrict lengths, int64_t B, int64_t T, int64_t R, int64_t D, int64_t varying,
                  int64_t w_varying, int64_t alpha_varying, int64_t form, int64_t scaled, int64_t adjoint);

/* lagged.c */
int K(lagged_forward)(real *restrict out, const real *restrict base, const real *restrict late,
                      const real *restrict first, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t K,
                      int64_t lo, int64_t n, int64_t function);
int K(lagged_product)(real *restrict out, const real *restrict base, const real *restrict y, const real *restrict v,
                      const real *restrict first, const int64_t *restrict lengths, const int64_t *restrict widths,
                      const int64_t *restrict functions, int64_t ranges, int64_t B, int64_t T, int64_t K, int64_t E);
int K(lagged_backward)(real *restrict dbase, real *restrict dlate, real *restrict dfirst, const real *restrict dout,
                       const real *restrict base, const real *restrict late, const real *restrict first,
                       const int64_t *restrict lengths, int64_t B, int64_t T, int64_t K, int64_t lo, int64_t n,
                       int64_t function);
#endif

#endif
