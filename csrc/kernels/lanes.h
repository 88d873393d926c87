/* Rows of n lanes; in kernels of real lanes, of n reals.
 *
 * In device code a warp works on a row together, and each thread on its own share of the numbers. All threads of a warp
 * call functions of rows, with the same arguments. A thread may read the numbers that it wrote itself; numbers of other
 * threads only after join_row. Device code includes cuda/device.h first (cuda/warps.h).
 */
#ifndef ROT_LANES_H
#define ROT_LANES_H

#include <string.h>

#include "cuts.h"
#include "steps.h"

#if ROT_DEVICE
#define ROT_ROW           ROT_DEVICE_ONLY
#define EACH_OF_ROW(j, n) for (int64_t j = threadIdx.x % 32; j < (n); j += 32)
#else
#define ROT_ROW           static inline
#define EACH_OF_ROW(j, n) for (int64_t j = 0; j < (n); j++)
#endif

#if ROT_DEVICE
ROT_ROW void copy_row(lane *restrict y, const lane *restrict x, int64_t n) { EACH_OF_ROW(j, n) y[j] = x[j]; }
ROT_ROW void zero_row(lane *y, int64_t n) { EACH_OF_ROW(j, n) y[j] = no_lane(); }
ROT_ROW void join_row(void) { __syncwarp(); }
#else
ROT_ROW void copy_row(lane *restrict y, const lane *restrict x, int64_t n) { memcpy(y, x, (size_t)n * sizeof(lane)); }
ROT_ROW void zero_row(lane *y, int64_t n) { memset(y, 0, (size_t)n * sizeof(lane)); }
ROT_ROW void join_row(void) {}
#endif

/* set_one sets one number of a row, which all threads may then read. The next function adds to a number that no thread
 * reads before join_row. */
ROT_ROW void set_one(lane *at, lane x) {
    join_row();
    EACH_OF_ROW(j, 1) at[j] = x;
    join_row();
}
ROT_ROW void add_to_one(lane *at, lane x) { EACH_OF_ROW(j, 1) at[j] = lane_add(at[j], x); }

/* x or NULL, for zeros */
ROT_ROW void copy_or_zero_row(lane *restrict y, const lane *restrict x, int64_t n) {
    if (x)
        copy_row(y, x, n);
    else
        zero_row(y, n);
}

ROT_ROW void add_row(lane *restrict sum, const lane *restrict x, int64_t n) {
    EACH_OF_ROW(j, n) sum[j] = lane_add(sum[j], x[j]);
}

/* Zeroes the first n lanes of `rows` rows that begin `stride` apart; does nothing if `rows` is negative. */
ROT_ROW void zero_rows(lane *y, int64_t rows, int64_t n, int64_t stride) {
    for (int64_t r = 0; r < rows; r++) zero_row(y + r * stride, n);
}

/* Zeroes the steps of sequence b of y (B,T,n) after its `all` valid steps. */
ROT_ROW void zero_padding(lane *y, int64_t b, int64_t all, int64_t T, int64_t n) {
    zero_row(y + (b * T + all) * n, (T - all) * n);
}

#endif
