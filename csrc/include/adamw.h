/* AdamW's update of one number (Loshchilov and Hutter 2019, algorithm 2), for host and device. */
#ifndef ROT_ADAMW_H
#define ROT_ADAMW_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmath.h"

/* Constants of step t, the same for every element of an array; computed in double precision, then rounded. */
typedef struct {
    real scale;         /* of the gradient, for clipping */
    real beta1, fresh1; /* 1 - beta1 */
    real beta2, fresh2; /* 1 - beta2 */
    real rate;          /* lr / (1 - beta1^t) */
    real unbias;        /* 1 / sqrt(1 - beta2^t) */
    real eps, shrink;   /* lr * decay */
} adamw_rule;

/* of: lr, 1 - beta1^t, 1 - beta2^t, decay */
ROT_INLINE adamw_rule adamw_rule_of(const double *of, double scale, double beta1, double beta2, double eps) {
    const adamw_rule rule = {(real)scale,          (real)beta1,           (real)(1 - beta1),       (real)beta2,
                             (real)(1 - beta2),    (real)(of[0] / of[1]), (real)(1 / sqrt(of[2])), (real)eps,
                             (real)(of[0] * of[3])};
    return rule;
}

/* The factor of gradients whose norm is above `clip`; 0 is no limit. */
ROT_INLINE double adamw_scale(double norm, double clip) { return clip > 0 && clip < norm ? clip / norm : 1; }

/* The norm of the gradients; NaN if the loss or a norm after the last update is not finite. Nothing is then updated:
 * after a failed update, later updates change nothing. */
ROT_INLINE double adamw_norm(double norm, double loss, const double *last, int64_t norms) {
    bool finite = isfinite(loss);
    for (int64_t k = 0; k < norms; k++) finite = finite && isfinite(last[k]);
    return finite ? norm : (double)NAN;
}

/* m <- beta1 m + (1 - beta1) g,   v <- beta2 v + (1 - beta2) g^2,
 * p <- p - lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + decay p) */
ROT_INLINE void adamw_step(real *p, real *m, real *v, real grad, adamw_rule rule) {
    const real g = rule.scale * grad;
    *m = rule.beta1 * *m + rule.fresh1 * g;
    *v = rule.beta2 * *v + rule.fresh2 * g * g;
    *p -= rule.rate * *m / (ROT_SQRT(*v) * rule.unbias + rule.eps) + rule.shrink * *p;
}

#endif
