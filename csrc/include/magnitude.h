/* Magnitudes of numbers, and the power of two that brings numbers near 1, where their squares are in range. */
#ifndef ROT_MAGNITUDE_H
#define ROT_MAGNITUDE_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "real.h"

/* Magnitudes as integers, which sort like the numbers, then infinity, then NaN: a maximum keeps NaN. */
#if ROT_DOUBLE
typedef int64_t magnitude;
static const magnitude WITHOUT_SIGN = INT64_MAX;
#else
typedef int32_t magnitude;
static const magnitude WITHOUT_SIGN = INT32_MAX;
#endif

ROT_INLINE magnitude magnitude_of(real x) {
    magnitude bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & WITHOUT_SIGN;
}

ROT_INLINE real real_of(magnitude bits) {
    real x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

ROT_INLINE magnitude larger(magnitude a, magnitude b) { return a > b ? a : b; }

/* The distance of 1 from the next number. */
#define EPSILON ((real)(sizeof(real) == sizeof(float) ? FLT_EPSILON : DBL_EPSILON))

/* The least normal number. */
#define TINY ((real)(sizeof(real) == sizeof(float) ? FLT_MIN : DBL_MIN))

/* The power of two that brings `largest` to 1 or above and below 2, or nearest to that of the powers that are normal
 * numbers with normal inverses; 1 if it is 0 or not finite. */
ROT_INLINE real power_to_one(magnitude largest) {
    const magnitude one = magnitude_of(1), infinite = magnitude_of((real)INFINITY), least = magnitude_of(TINY);
    if (largest == 0 || largest >= infinite) return 1;
    return real_of(larger(2 * one - larger(largest & infinite, least), least)); /* exponents are high bits */
}

/* Whether the mean `square` of squares, plus eps, has all its digits: it is finite, and squares that vanished are less
 * than its rounding. */
ROT_INLINE bool squares_in_range(real square, real eps) { return isfinite(square) && square + eps >= TINY / EPSILON; }

#endif
