/* Constants for the exponential of a skew-symmetric matrix on every device (orthogonal.c). */
#ifndef ROT_ORTHOGONAL_H
#define ROT_ORTHOGONAL_H

#include <math.h>

#include "real.h"

/* Terms of the series: at norm 1 the remainder and its derivative are below 1e-17. */
enum { TERMS = 20 };

/* Number of halvings of A = -A^T until |A|_2 <= 1, from |X|_F^2, X = A^2: eigenvalues +-iw add 2 w^4 to it, so
 * |A|_2 <= (|X|_F^2 / 2)^(1/4). */
ROT_INLINE int halvings_of(double square) {
    const double norm = sqrt(sqrt(square / 2));
    return norm > 1 ? (int)ceil(log2(norm)) : 0;
}

#endif
