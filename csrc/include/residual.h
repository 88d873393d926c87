/* The residual of an iterate y and its image f, |y - f| / |f| with maxima over numbers, and the damped step to f. */
#ifndef ROT_RESIDUAL_H
#define ROT_RESIDUAL_H

#include "magnitude.h"
#include "steps.h"

/* Distance of an iterate from its image, and magnitude of the image: maxima over steps and channels. */
typedef struct {
    magnitude apart, size;
} spread;

ROT_INLINE void widen_spread(spread *s, spread other) {
    s->apart = larger(s->apart, other.apart);
    s->size = larger(s->size, other.size);
}

/* TINY is the default floor of the divisor. */
ROT_INLINE real residual_of(spread s, real floor) { return real_of(s.apart) / (real_of(s.size) + floor); }

/* The damped step of one number; updates the residual's maxima. */
ROT_INLINE real relax(spread *widest, real y, real f, real s) {
    widest->apart = larger(widest->apart, magnitude_of(y - f));
    widest->size = larger(widest->size, magnitude_of(f));
    return relax_step(y, f, s);
}

/* y <- s f + (1 - s) y over n numbers. */
ROT_INLINE spread relax_row(real *restrict y, const real *restrict f, real s, int64_t n) {
    spread widest = {0, 0};
    for (int64_t i = 0; i < n; i++) y[i] = relax(&widest, y[i], f[i], s);
    return widest;
}

#endif
