/* Sums over the rows of a matrix, in one order and with the error of a short sum. */
#ifndef ROT_CUDA_SUMS_H
#define ROT_CUDA_SUMS_H

#include "device.h"

enum { ROWS_OF_SUM = 64, SUM_THREADS = 128 };

/* sums (pieces, columns) of ROWS_OF_SUM rows each of x (rows, columns): a thread for each. */
GLOBAL(SUM_THREADS) sum_pieces(lane *sums, const lane *x, int64_t rows, int64_t columns, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (i >= count) return;
    const int64_t column = i % columns, first = i / columns * ROWS_OF_SUM;
    lane total = no_lane();
    pipelined<8>(
        least(rows - first, ROWS_OF_SUM), [&](int64_t row) { return read_lane(x + (first + row) * columns + column); },
        [&](int64_t, lane one) { total = lane_add(total, one); });
    sums[i] = total;
}

/* sum (columns) <- the sum of the rows of x (rows, columns), by a tree with ROWS_OF_SUM branches at each node. */
static void sum_rows(lane *sum, const lane *x, int64_t rows, int64_t columns) {
    if (!rows) return runtime_zero(sum, columns * (int64_t)sizeof(lane));
    for (int64_t pieces = 0; pieces != 1; rows = pieces) {
        pieces = pieces_of(rows, ROWS_OF_SUM);
        const int64_t count = pieces * columns;
        lane *const sums = pieces == 1 ? sum : workspace_of<lane>(count);
        launch(sum_pieces, pieces_of(count, SUM_THREADS), SUM_THREADS, 0, sums, x, rows, columns, count);
        x = sums;
    }
}

#endif
