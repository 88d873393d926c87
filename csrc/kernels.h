/* Every kernel's prototype: outputs, inputs, what forward saved, dims. Compiled once per variant (real.h).
 *
 * Arrays are C-contiguous and validated by the caller; "or NULL" marks the optional ones. Kernels return a status
 * code, never print, never exit, keep no state, and give the same bits for any number of threads.
 */
#ifndef ROT_KERNELS_H
#define ROT_KERNELS_H

#include "real.h"

/* scan.c */
int K(scan_forward)(lane *h, lane *hT, const lane *a, const lane *x, const lane *h0, const int64_t *lengths, int64_t B,
                    int64_t T, int64_t N, int64_t varying, int64_t reverse);
int K(scan_backward)(lane *dx, lane *da, lane *dh0, const lane *dh, const lane *dhT, const lane *a, const lane *h,
                     const lane *h0, const int64_t *lengths, int64_t B, int64_t T, int64_t N, int64_t varying,
                     int64_t reverse);

#if !ROT_COMPLEX
/* gemm.c */
int K(matmul)(real *y, const real *x, const real *w, const real *bias, int64_t M, int64_t in, int64_t out,
              int64_t transposed);
int K(matmul_weight_grad)(real *dw, real *dbias, const real *x, const real *dy, int64_t M, int64_t in, int64_t out);
int K(matmul_stack)(real *y, const real *x, const real *w, int64_t G, int64_t M, int64_t in, int64_t out);

/* philox.c */
int K(philox)(int64_t *out, const int64_t *counter, const int64_t *key, int64_t n);

/* listops.c */
int K(listops_sample)(uint8_t *tokens, int64_t *lengths, uint8_t *values, int64_t n, int64_t seed, int64_t first,
                      int64_t max_depth, int64_t max_args, int64_t min_length, int64_t max_length);
int K(listops_parse)(uint8_t *tokens, int64_t *result, const uint8_t *text, int64_t size);
int K(listops_render)(uint8_t *text, int64_t *start, const uint8_t *tokens, int64_t n);

/* mixer.c */
int K(householder_forward)(real *y, const real *u, const real *alpha, const real *x, const int64_t *lengths, int64_t B,
                           int64_t T, int64_t R, int64_t D, int64_t u_varying, int64_t alpha_varying);
int K(householder_backward)(real *dx, real *du, real *dalpha, const real *dy, const real *u, const real *alpha,
                            const real *x, const int64_t *lengths, int64_t B, int64_t T, int64_t R, int64_t D,
                            int64_t u_varying, int64_t alpha_varying);

/* copy.c */
int K(copy)(real *y, const real *x, int64_t n);

/* pointwise.c */
int K(elementwise)(real *y, const real *x, const int64_t *lengths, int64_t B, int64_t T, int64_t D, int64_t function);
int K(gelu_backward)(real *dx, const real *dy, const real *x, const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(glu_forward)(real *y, const real *value, const real *gate, const int64_t *lengths, int64_t B, int64_t T,
                   int64_t D);
int K(glu_backward)(real *dvalue, real *dgate, const real *dy, const real *value, const real *gate,
                    const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(mask_padding)(real *y, const real *x, const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(dropout)(real *y, const real *x, const int64_t *lengths, int64_t B, int64_t T, int64_t D, double rate,
               int64_t seed, int64_t step, int64_t site, int64_t over_time);
int K(channel_moments)(real *mean, real *var, const real *x, const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(channel_affine)(real *y, const real *x, const real *center, const real *gain, const real *offset,
                      const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(channel_sums)(real *sum, real *product, const real *dy, const real *x, const real *center, const int64_t *lengths,
                    int64_t B, int64_t T, int64_t D);
int K(channel_adjoint)(real *dx, const real *dy, const real *x, const real *center, const real *gain, const real *slope,
                       const real *offset, const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(layer_norm_forward)(real *y, real *mean, real *rstd, const real *x, const real *scale, const real *bias,
                          const int64_t *lengths, int64_t B, int64_t T, int64_t D, double eps);
int K(layer_norm_backward)(real *dx, real *dscale, real *dbias, const real *dy, const real *x, const real *scale,
                           const real *mean, const real *rstd, const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(embedding_forward)(real *y, const int64_t *ids, const real *table, const real *bias, const int64_t *lengths,
                         int64_t B, int64_t T, int64_t D);
int K(embedding_backward)(real *dtable, const real *dy, const int64_t *ids, const int64_t *lengths, int64_t B,
                          int64_t T, int64_t D, int64_t V);
int K(mean_pool_forward)(real *y, const real *x, const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(mean_pool_backward)(real *dx, const real *dy, const int64_t *lengths, int64_t B, int64_t T, int64_t D);
int K(cross_entropy)(real *loss, real *dlogits, const real *logits, const int64_t *labels, int64_t B, int64_t C);

/* optim.c */
int K(adamw)(real *p, real *m, real *v, const real *grad, int64_t n, double lr, double beta1, double beta2, double eps,
             double decay, double scale, int64_t step);
int K(norm)(real *norm, const real *x, int64_t n);
#endif

#endif
