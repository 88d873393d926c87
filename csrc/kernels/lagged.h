/* Rows of lagged.c: the sum of a step's own part and a part from the previous step, and functions of it. */
#ifndef ROT_LAGGED_H
#define ROT_LAGGED_H

#include "lanes.h"
#include "mixer.h"

/* One range of columns, and the number of valid steps of each sequence. */
typedef struct {
    const real *base, *late, *first;
    const int64_t *lengths;
    int64_t B, T, columns, lo, n, function;
    real eps; /* least divisor of LAGGED_UNIT */
} range;

/* p (n) of step t of sequence b */
ROT_ROW void sum_row(real *restrict p, const range *r, int64_t b, int64_t t) {
    const int64_t at = (b * r->T + t) * r->columns + r->lo;
    const real *const base = r->base + at;
    const real *const late = t          ? (r->late ? r->late + at - r->columns : NULL)
                             : r->first ? r->first + b * r->columns + r->lo
                                        : NULL;
    if (late)
        EACH_OF_ROW(j, r->n) p[j] = base[j] + late[j];
    else
        copy_row(p, base, r->n);
}

/* out = f(p), other than LAGGED_LINEAR */
ROT_ROW void map_row(real *restrict out, const real *restrict p, int64_t n, int64_t function, real eps) {
    real inverse;
    switch (function) {
    case LAGGED_SIGMOID: EACH_OF_ROW(j, n) out[j] = sigmoid(p[j]); break;
    case LAGGED_SILU: EACH_OF_ROW(j, n) out[j] = silu(p[j]); break;
    case LAGGED_SOFTPLUS: EACH_OF_ROW(j, n) out[j] = softplus(p[j]); break;
    default:
        inverse = normalise(out, p, n);
        if (inverse * eps > 1) scale_row(out, 1 / eps, p, n);
        break;
    }
}

/* out (n) = f(p) of step t of sequence b; zero for padding. p (n) is scratch. */
ROT_ROW void lagged_row(real *restrict out, real *restrict p, const range *r, int64_t b, int64_t t) {
    if (t >= steps_of(r->lengths, b, r->T)) {
        zero_row(out, r->n);
    } else if (r->function == LAGGED_LINEAR) {
        sum_row(out, r, b, t);
    } else {
        sum_row(p, r, b, t);
        map_row(out, p, r->n, r->function, r->eps);
    }
}

/* dp (n) of dout; w (n) is scratch. */
ROT_ROW void map_row_adjoint(real *restrict dp, const real *restrict dout, const real *restrict p, real *restrict w,
                             int64_t n, int64_t function, real eps) {
    real inverse;
    switch (function) {
    case LAGGED_SIGMOID: EACH_OF_ROW(j, n) dp[j] = sigmoid_adjoint(dout[j], p[j]); break;
    case LAGGED_SILU: EACH_OF_ROW(j, n) dp[j] = dout[j] * silu_slope(p[j]); break;
    case LAGGED_SOFTPLUS: EACH_OF_ROW(j, n) dp[j] = softplus_adjoint(dout[j], p[j]); break;
    default:
        inverse = normalise(w, p, n);
        if (inverse * eps > 1) {
            scale_row(dp, 1 / eps, dout, n);
        } else {
            zero_row(dp, n);
            normalise_adjoint(dp, dout, w, inverse, n);
        }
        break;
    }
}

#endif
