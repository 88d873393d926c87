/* Products of activations with weights: y = x w^T + bias, and dw = dy^T x, dbias = sum of dy.
 *
 * Operands are rounded to the call's precision (gemm_tile.h); sums of dy are not.
 *
 * Not a general BLAS. Weights are packed once per call (gemm_tile.h). The division of rows into blocks depends on the
 * shapes alone and every sum has one order. Unlike a BLAS, results therefore have the same bits for any number of
 * threads.
 */
#include <string.h>

#include "gemm_tile.h"
#include "kernels.h"
#include "lanes.h"
#include "stop.h"
#include "workspace.h"

enum {
    ROWS = 20 * MR,   /* rows of one task of matmul */
    CHUNK = 256,      /* rows of x packed at a time in the weight gradient */
    GROUP_ROWS = 512, /* smallest number of rows with their own partial sum */
    MAX_GROUPS = 16,
    SERIAL = 1 << 19, /* multiplications below which one thread is used */
};

/* One row y (out) = x (in) w^T + bias (out) or NULL, w (out,in): packing w would cost more than the product. */
static void matvec(real *restrict y, const real *restrict x, const real *restrict w, const real *restrict bias,
                   int64_t in, int64_t out) {
    for (int64_t o = 0; o < out; o++, w += in) {
        vec sums[2] = {{0}};
        int64_t k = 0;
        for (; k + 2 * LANES <= in; k += 2 * LANES)
            for (int v = 0; v < 2; v++) sums[v] += load(x + k + v * LANES) * load(w + k + v * LANES);
        real sum = bias ? bias[o] : 0;
        for (int lane = 0; lane < LANES; lane++) sum += sums[0][lane] + sums[1][lane];
        for (; k < in; k++) sum += x[k] * w[k];
        y[o] = sum;
    }
}

/* y (M,d_out) = x (M,d_in) w + bias (d_out) or NULL; w is (d_in,d_out), or (d_out,d_in) when `transposed`. */
KERNEL(matmul) {
    const rounding how = rounding_of_call();
    if (M == 1 && transposed && how == ROUND_NONE) {
        matvec(y, x, w, bias, d_in, d_out);
        return ROT_OK;
    }
    const int64_t blocks = pieces_of(M, ROWS);
    real *const packed = WORKSPACE(real, packed_columns(d_out), d_in);
    if (!packed) return ROT_NO_MEMORY;
    pack_rounded(packed, w, d_in, d_out, transposed ? 1 : d_out, transposed ? d_in : 1, how);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (M * d_in * d_out > SERIAL)
    for (int64_t block = 0; block < blocks; block++) {
        if (stopped(stop)) continue;
        const int64_t m = block * ROWS, rows = least(M - m, ROWS);
        product(y + m * d_out, d_out, bias, 0, (gemm_view){x + m * d_in, d_in, 1}, packed, rows, d_in, d_out, how);
    }
    pool_give(packed);
    return ROT_OK;
}

/* dw (d_out,d_in) and dbias (d_out) or NULL, overwritten; x (M,d_in), dy (M,d_out).
 *   dw = sum_m dy_m x_m^T,   dbias = sum_m dy_m:  rows in order within a group, groups in order. */
KERNEL(matmul_weight_grad) {
    const int64_t groups = parts_of(M, GROUP_ROWS, MAX_GROUPS), per_group = pieces_of(M, groups);
    const int64_t room = packed_columns(d_in) * CHUNK;
    real *const sums = WORKSPACE(real, groups, d_in + 1, d_out);
    real *const packed = WORKSPACE(real, groups, packed_columns(d_in), CHUNK);
    if (!sums || !packed) {
        pool_give(sums);
        pool_give(packed);
        return ROT_NO_MEMORY;
    }
    const int64_t size = (d_in + 1) * d_out;
    const rounding how = rounding_of_call();
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (M * d_in * d_out > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        real *const dw_sum = sums + group * size, *const dbias_sum = dw_sum + d_in * d_out;
        const int64_t end = least((group + 1) * per_group, M);
        zero_row(dw_sum, size);
        for (int64_t m = group * per_group; m < end && !stopped(stop); m += CHUNK) {
            const int64_t rows = least(end - m, CHUNK);
            pack_rounded(packed + group * room, x + m * d_in, rows, d_in, d_in, 1, how);
            add_weight_grad(dw_sum, dy + m * d_out, packed + group * room, rows, d_in, d_out, how);
            for (int64_t i = m; dbias && i < m + rows; i++) add_row(dbias_sum, dy + i * d_out, d_out);
        }
    }
    zero_row(dw, d_in * d_out);
#pragma omp parallel for schedule(static) if (groups * d_in * d_out > SERIAL)
    for (int64_t o = 0; o < d_out; o++)
        for (int64_t group = 0; group < groups; group++) add_row(dw + o * d_in, sums + group * size + o * d_in, d_in);
    if (dbias) {
        zero_row(dbias, d_out);
        for (int64_t group = 0; group < groups; group++) add_row(dbias, sums + group * size + d_in * d_out, d_out);
    }
    pool_give(sums);
    pool_give(packed);
    return ROT_OK;
}

/* y (G,M,d_out) = x (G,M,d_in) w (G,d_in,d_out), G independent products. */
KERNEL(matmul_stack) {
    const int64_t size = packed_columns(d_out) * d_in, blocks = pieces_of(M, ROWS);
    real *const packed = WORKSPACE(real, G, packed_columns(d_out), d_in);
    if (!packed) return ROT_NO_MEMORY;
    const rounding how = rounding_of_call();
    for (int64_t g = 0; g < G; g++) pack_rounded(packed + g * size, w + g * d_in * d_out, d_in, d_out, d_out, 1, how);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for collapse(2) schedule(static) if (G * M * d_in * d_out > SERIAL)
    for (int64_t g = 0; g < G; g++) {
        for (int64_t block = 0; block < blocks; block++) {
            if (stopped(stop)) continue;
            const int64_t m = block * ROWS, rows = least(M - m, ROWS);
            product(y + (g * M + m) * d_out, d_out, NULL, 0, (gemm_view){x + (g * M + m) * d_in, d_in, 1},
                    packed + g * size, rows, d_in, d_out, how);
        }
    }
    pool_give(packed);
    return ROT_OK;
}
