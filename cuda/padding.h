/* Zeros in the padding of arrays (B,T,width), and for a missing array. */
#ifndef ROT_CUDA_PADDING_H
#define ROT_CUDA_PADDING_H

#include "device.h"

/* y (B,T,width) <- 0 in the padding */
static inline void zero_padding(real *y, const int64_t *lengths, int64_t B, int64_t T, int64_t width) {
    if (!lengths) return;
    each(B * T * width, [=] __device__(int64_t i) {
        if (i / width % T >= lengths[i / width / T]) y[i] = 0;
    });
}

static inline void copy_or_zero(real *y, const real *x, int64_t n) {
    each(n, [=] __device__(int64_t i) { y[i] = x ? x[i] : 0; });
}

#endif
