/* Momentum's update of one number (Sutskever et al. 2013, as torch.optim.SGD has it), for host and device. */
#ifndef ROT_SGD_H
#define ROT_SGD_H

#include "vmath.h"

typedef struct {
    real scale; /* of the gradient, for clipping */
    real momentum, decay, rate;
} sgd_rule;

ROT_INLINE sgd_rule sgd_rule_of(double scale, double momentum, double decay, double lr) {
    const sgd_rule rule = {(real)scale, (real)momentum, (real)decay, (real)lr};
    return rule;
}

/* m <- momentum m + g + decay p,   p <- p - lr m */
ROT_INLINE void sgd_step(real *p, real *m, real grad, sgd_rule rule) {
    *m = rule.momentum * *m + (rule.scale * grad + rule.decay * *p);
    *p -= rule.rate * *m;
}

#endif
