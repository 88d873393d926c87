/* Functions for recurrences with several states for each channel (selective.cu, bank.cu). A block walks WIDTH channels
 * of a sequence through time, a lane for each, and its warps divide the states. A warp's sums for a channel stay in
 * shared memory until the tile ends; then the sums of all warps are added in order. */
#ifndef ROT_CUDA_CHANNELS_H
#define ROT_CUDA_CHANNELS_H

#include "device.h"

enum { WIDTH = 32 };

/* Place of a thread. Lanes beyond the last channel are not live: they read zeros and write nothing. */
struct spot {
    int64_t b, d;
    int lane, warp;
    bool live;
};

ROT_DEVICE_ONLY spot spot_of(int64_t D) {
    const int64_t groups = pieces_of(D, WIDTH);
    spot at;
    at.lane = (int)(threadIdx.x % WIDTH), at.warp = (int)(threadIdx.x / WIDTH);
    at.b = blockIdx.x / groups, at.d = blockIdx.x % groups * WIDTH + at.lane;
    at.live = at.d < D;
    return at;
}

/* to (steps, WIDTH), shared <- the block's channels of x (B,T,D) in the steps of a walk; asynchronous. */
ROT_DEVICE_ONLY void load_rows(real (*to)[WIDTH], const real *x, walk w, spot at, int64_t D) {
    for (int64_t k = at.warp; k < w.steps; k += blockDim.x / WIDTH) {
        if (at.live)
            copy_async(&to[k][at.lane], x + (w.first + k * w.stride) * D + at.d);
        else
            to[k][at.lane] = 0;
    }
}

/* Zeros in the block's channels of y (B,T,D) after `steps` steps */
ROT_DEVICE_ONLY void zero_rows(real *y, int64_t steps, spot at, int64_t T, int64_t D) {
    for (int64_t t = steps + at.warp; at.live && t < T; t += blockDim.x / WIDTH) y[(at.b * T + t) * D + at.d] = 0;
}

/* The sum of `count` numbers that are `apart`, one after the other */
template <class T> ROT_DEVICE_ONLY T ordered_sum(const T *x, int64_t count, int64_t apart) {
    T total = 0;
    pipelined<8>(count, [&](int64_t i) { return x[i * apart]; }, [&](int64_t, T one) { total += one; });
    return total;
}

#endif
