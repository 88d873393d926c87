/* Transitions in double precision, for states that do not decay: rounding errors of their products would never decay,
 * and where they have the same sign in each turn they would add up. */
#ifndef ROT_EXACT_H
#define ROT_EXACT_H

#include "real.h"

typedef struct {
    double re, im;
} exact;

ROT_INLINE exact exact_of(cplx z) {
    const exact r = {(double)z.re, (double)z.im};
    return r;
}
ROT_INLINE cplx exact_rounded(exact z) {
    const cplx r = {(real)z.re, (real)z.im};
    return r;
}

ROT_INLINE exact exact_add(exact a, exact b) {
    const exact r = {a.re + b.re, a.im + b.im};
    return r;
}
ROT_INLINE exact exact_mul(exact a, exact b) {
    const exact r = {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    return r;
}

ROT_INLINE exact exact_power(exact a, int64_t n) {
    exact power = {1, 0};
    for (; n; n /= 2, a = exact_mul(a, a))
        if (n % 2) power = exact_mul(power, a);
    return power;
}

/* a h + x */
ROT_INLINE exact exact_step(exact a, exact h, cplx x) { return exact_add(exact_mul(a, h), exact_of(x)); }

#endif
