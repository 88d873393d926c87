/* Anderson acceleration of y = F(y), for n numbers: instead of y <- f = F(y), a step that the last ANDERSON_DEPTH
 * differences of residuals r = f - y and of images f are combined for (Walker & Ni 2011). Q has the differences of
 * residuals, made orthonormal, and P the same combinations of the differences of images:
 *
 *   y <- f - P Q^T r.
 *
 * Where F is affine, F(y) = J y + c, P - Q = S has the columns S = -(I - J)^-1 Q, so the distance of y from the fixed
 * point, (I - J)^-1 r, is at most |S|_F |r| where r is in the span of Q. `anderson_step` multiplies the residual by
 * max(1, |S|_F). It is assumed that I - J does not shrink what is outside of this span, and for other F, that F is
 * affine as far as iterates differ.
 */
#ifndef ROT_ANDERSON_H
#define ROT_ANDERSON_H

#include "mixer.h"

enum { ANDERSON_DEPTH = 5, ANDERSON_ROWS = 2 * ANDERSON_DEPTH + 2 };

#if ROT_DOUBLE
static const real ANDERSON_LEAST = 0x1p-40 /* of squares */, ANDERSON_NOISE = 0x1p-47;
#else
static const real ANDERSON_LEAST = 0x1p-20f, ANDERSON_NOISE = 0x1p-18f;
#endif

/* The number of steps taken, and |P - Q|^2 of each column, 0 where there is none. */
typedef struct {
    int64_t count;
    real square[ANDERSON_DEPTH];
} anderson;

/* y (n) <- the next iterate, for f (n) = F(y). Returns the residual times max(1, |S|_F), or as it is where it is
 * rounding alone, as its differences are then. A difference that is nearly a combination of the others is left out.
 * rows: (ANDERSON_ROWS, n) */
ROT_ROW real anderson_step(anderson *a, real *restrict y, const real *restrict f, real residual, int64_t n,
                           real *rows) {
    real *const r = rows, *const last = r + n, *const Q = last + n, *const P = Q + ANDERSON_DEPTH * n;
    join_row();
    if (a->count) {
        const int64_t slot = a->count % ANDERSON_DEPTH;
        real *const q = Q + slot * n, *const p = P + slot * n;
        EACH_OF_ROW(i, n) {
            q[i] = f[i] - y[i] - r[i];
            p[i] = f[i] - last[i];
        }
        const real whole = dot(q, q, n);
        a->square[slot] = 0;
        for (int64_t k = 0; k < ANDERSON_DEPTH; k++) {
            if (a->square[k] == 0) continue;
            const real along = dot(Q + k * n, q, n);
            add_scaled(q, -along, Q + k * n, n);
            add_scaled(p, -along, P + k * n, n);
        }
        const real rest = dot(q, q, n);
        if (rest > ANDERSON_LEAST * whole && rest < INFINITY) {
            const real inverse = 1 / ROT_SQRT(rest);
            EACH_OF_ROW(i, n) {
                q[i] *= inverse;
                p[i] *= inverse;
                r[i] = p[i] - q[i];
            }
            a->square[slot] = dot(r, r, n);
        }
    }
    EACH_OF_ROW(i, n) {
        r[i] = f[i] - y[i];
        y[i] = last[i] = f[i];
    }
    real square = 0;
    for (int64_t k = 0; k < ANDERSON_DEPTH; k++) {
        if (a->square[k] == 0) continue;
        add_scaled(y, -dot(Q + k * n, r, n), P + k * n, n);
        square += a->square[k];
    }
    a->count++;
    join_row();
    return square > 1 && residual > ANDERSON_NOISE ? ROT_SQRT(square) * residual : residual;
}

#endif
