/* AdamW's update of one number (Loshchilov and Hutter 2019, algorithm 2), for host and device. */
#ifndef ROT_ADAMW_H
#define ROT_ADAMW_H

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

/* now: lr, 1 - beta1^t, 1 - beta2^t, scale */
ROT_INLINE adamw_rule adamw_rule_of(const double *now, double beta1, double beta2, double eps, double decay) {
    const adamw_rule rule = {(real)now[3],
                             (real)beta1,
                             (real)(1 - beta1),
                             (real)beta2,
                             (real)(1 - beta2),
                             (real)(now[0] / now[1]),
                             (real)(1 / sqrt(now[2])),
                             (real)eps,
                             (real)(now[0] * decay)};
    return rule;
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
