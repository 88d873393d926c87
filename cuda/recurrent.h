/* Functions for dense recurrences (rnn.cu, slstm.cu): each step is a launch, and its warps multiply rows of weights
 * with states of sequences.
 *
 * A block that walked a few sequences alone would read all weights at each step, 4 MB for an LSTM of 512 units: at 64
 * bytes a cycle this takes tens of microseconds. A launch costs a few microseconds and spreads the reads over all
 * processors. A warp computes COLUMNS x ROWS dot products of rows of weights with states of sequences; its lanes divide
 * the terms, and at the end each lane has one of the sums. All reads are of whole rows, and every sum has one order.
 *
 * If the call's precision rounds operands of products, the weights are rounded once. Operands of the next step's
 * product, states or gradients of gates, are rounded when they are written.
 */
#ifndef ROT_CUDA_RECURRENT_H
#define ROT_CUDA_RECURRENT_H

#include "padding.h"

enum {
    COLUMNS = 4, /* of a warp: the gates of a unit of an LSTM, or units */
    ROWS = 8,    /* sequences of a warp */
    WARPS = 4,
    THREADS = WARPS * 32,
    AHEAD = sizeof(real) == 4 ? 4 : 2, /* terms of a dot product that a lane reads at once */
};
static_assert(COLUMNS * ROWS == 32, "a sum for each lane");

/* The sequences of a call, and how products round their operands. */
struct batch_plan {
    int64_t B, T;
    const int64_t *lengths;
    int precision;
};

/* The work of a thread: sequence b, number `row` of its warp's sequences; and column c of the group of columns from
 * `first` on. */
struct spot {
    int64_t b, first;
    int row, c;
    int64_t steps; /* of the sequence; negative if there is no sequence */
};

/* groups: number of groups of columns */
ROT_DEVICE_ONLY spot spot_of(batch_plan p, int64_t groups) {
    const int64_t warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    spot at;
    at.row = (int)(threadIdx.x % ROWS), at.c = (int)(threadIdx.x % 32 / ROWS);
    at.b = warp / groups * ROWS + at.row, at.first = warp % groups;
    at.steps = at.b < p.B ? steps_of(p.lengths, at.b, p.T) : -2;
    return at;
}

static inline int64_t blocks_of(const batch_plan &p, int64_t groups) {
    return pieces_of(groups * pieces_of(p.B, ROWS), WARPS);
}

/* Sums of 2 HALF numbers over groups of 2 HALF lanes; lane i of a group gets the sum of v[i]. In each round lanes
 * exchange half of the remaining numbers. */
template <int HALF> ROT_DEVICE_ONLY real sum_of_lane(real *v) {
    const bool high = threadIdx.x & HALF;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const real keep = high ? v[i + HALF] : v[i], give = high ? v[i] : v[i + HALF];
        v[i] = keep + __shfl_xor_sync(~0u, give, HALF);
    }
    if constexpr (HALF > 1) return sum_of_lane<HALF / 2>(v);
    return v[0];
}

/* The thread's dot product of w + c apart and of its sequence's row of x, both of `inner` numbers; sequences are
 * `row_apart` in x. Zero if `has` is false. */
ROT_DEVICE_ONLY real product_of(const real *__restrict w, int64_t apart, int columns, const real *__restrict x,
                                int64_t row_apart, spot at, int64_t inner, bool has) {
    const uint32_t rows = __ballot_sync(~0u, has);
    if (!rows) return 0;
    const int lane = (int)(threadIdx.x % 32);
    const real *const from = x + (at.b - at.row) * row_apart;
    real sum[COLUMNS * ROWS] = {0};
#pragma unroll AHEAD
    for (int64_t i = lane; i < inner; i += 32) {
        real weight[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) weight[c] = w[least(c, columns - 1) * apart + i];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            if (!(rows >> r & 1)) continue;
            const real state = from[r * row_apart + i];
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) sum[c * ROWS + r] += weight[c] * state;
        }
    }
    return sum_of_lane<16>(sum);
}

/* The four gates of a unit; each lane has one gate. All lanes of the warp call it. */
ROT_DEVICE_ONLY lstm_gates gates_of_lanes(real z, int row) {
    lstm_gates all;
    all.i = __shfl_sync(~0u, z, row), all.f = __shfl_sync(~0u, z, ROWS + row);
    all.g = __shfl_sync(~0u, z, 2 * ROWS + row), all.o = __shfl_sync(~0u, z, 3 * ROWS + row);
    return all;
}

/* Numbers as operands of products: unchanged, or rounded in an array of the call. */
static inline const real *operands(const real *x, int64_t count, const batch_plan &p) {
    if (p.precision == PRECISION_FLOAT32) return x;
    real *const y = workspace_of<real>(count);
    const int precision = p.precision;
    each(count, [=] __device__(int64_t i) { y[i] = operand_of(x[i], precision); });
    return y;
}

#endif
