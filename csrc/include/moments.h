/* Mean and variance of rows read in parts, for host and device.
 *
 * A part with r rows has its rounded mean m, the sum of squares about m, and `rest`, the sum of differences from m,
 * which is nonzero only by rounding. With a = m - mean, summed over parts in double precision:
 *
 *   mean = sum (r m + rest) / n,   var = sum (squares + 2 a rest + r a^2) / n. */
#ifndef ROT_MOMENTS_H
#define ROT_MOMENTS_H

#include "real.h"

ROT_INLINE double part_sum(double rows, real mean, real rest) { return rows * (double)mean + (double)rest; }

ROT_INLINE double part_squares(double rows, real mean, real squares, real rest, double center) {
    const double apart = (double)mean - center;
    return (double)squares + apart * (2 * (double)rest + rows * apart);
}

/* Rounding may give less than zero; NaN stays. */
ROT_INLINE real variance_of(double squares, double n) { return (real)(squares < 0 ? 0 : squares / n); }

#endif
