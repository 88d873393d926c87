/* Batch norm of one channel, for host and device. */
#ifndef ROT_BATCH_NORM_H
#define ROT_BATCH_NORM_H

#include "vmath.h"

/* The gain; and the term slope (x - mean) + shift of dx, through the statistics over n steps, from the gradients of
 * scale and bias:
 *   gain = scale r   slope = -scale r^2 dscale / n   shift = -scale r dbias / n,   r = 1 / sqrt(var + eps) */
ROT_INLINE real channel_gain(real scale, real var, real eps) { return scale / ROT_SQRT(var + eps); }
typedef struct {
    real slope, shift;
} channel_terms;
ROT_INLINE channel_terms statistics_adjoint(real scale, real var, real eps, real dscale, real dbias, real n) {
    const real rstd = channel_gain(1, var, eps);
    const channel_terms d = {-scale * (rstd * rstd) * dscale / n, -scale * rstd * dbias / n};
    return d;
}
/* A running average. On the CPU its two products are rounded, and not fused with the sum. */
ROT_INLINE real running_average(real average, real batch, real momentum, real rest) {
#if ROT_DEVICE
    return momentum * average + rest * batch;
#else
    const volatile real kept = momentum * average, added = rest * batch;
    return kept + added;
#endif
}
/* Both running moments of a channel. A batch whose moments overflow is left out: an infinite average would never be
 * finite again. */
ROT_INLINE void update_running(real *mean, real *var, real batch_mean, real batch_var, real momentum, real rest) {
    if (!isfinite(batch_mean) || !isfinite(batch_var)) return;
    *mean = running_average(*mean, batch_mean, momentum, rest);
    *var = running_average(*var, batch_var, momentum, rest);
}

#endif
