/* The products of activations with weights: y = x w^T + bias, and dw = dy^T x, dbias = sum of dy.
 *
 * Not a general BLAS. Weights are packed once per call (gemm_tile.h); rows are cut into blocks by the shapes alone and
 * every sum has one order, so that, unlike a BLAS, the result is the same bits for any number of threads.
 */
#include <string.h>

#include "gemm_tile.h"
#include "kernels.h"
#include "lanes.h"
#include "workspace.h"

enum {
    ROWS = 20 * MR,   /* rows of one task of matmul */
    CHUNK = 256,      /* rows of x packed at a time in the weight gradient */
    GROUP_ROWS = 512, /* least rows that get a partial sum of their own */
    MAX_GROUPS = 16,
    SERIAL = 1 << 19, /* products below which threads do not pay */
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

/* y (M,out) = x (M,in) w + bias (out) or NULL; w is (in,out), or (out,in) when `transposed`. */
int K(matmul)(real *restrict y, const real *restrict x, const real *restrict w, const real *restrict bias, int64_t M,
              int64_t in, int64_t out, int64_t transposed) {
    if (M == 1 && transposed) {
        matvec(y, x, w, bias, in, out);
        return ROT_OK;
    }
    const int64_t blocks = pieces_of(M, ROWS);
    real *const packed = WORKSPACE(real, packed_columns(out), in);
    if (!packed) return ROT_NO_MEMORY;
    pack(packed, w, in, out, transposed ? 1 : out, transposed ? in : 1);
#pragma omp parallel for schedule(static) if (M * in * out > SERIAL)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t m = block * ROWS, rows = least(M - m, ROWS);
        product(y + m * out, out, bias, 0, (gemm_view){x + m * in, in, 1}, packed, rows, in, out);
    }
    pool_give(packed);
    return ROT_OK;
}

/* dw (out,in) and dbias (out) or NULL, overwritten; x (M,in), dy (M,out).
 *   dw = sum_m dy_m x_m^T,   dbias = sum_m dy_m:  rows in order within a group, groups in order. */
int K(matmul_weight_grad)(real *restrict dw, real *restrict dbias, const real *restrict x, const real *restrict dy,
                          int64_t M, int64_t in, int64_t out) {
    const int64_t groups = parts_of(M, GROUP_ROWS, MAX_GROUPS), per_group = pieces_of(M, groups),
                  room = packed_columns(in) * CHUNK;
    real *const sums = WORKSPACE(real, groups, in + 1, out);
    real *const packed = WORKSPACE(real, groups, packed_columns(in), CHUNK);
    if (!sums || !packed) {
        pool_give(sums);
        pool_give(packed);
        return ROT_NO_MEMORY;
    }
    const int64_t size = (in + 1) * out;
#pragma omp parallel for schedule(static) if (M * in * out > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        real *const dw_sum = sums + group * size, *const dbias_sum = dw_sum + in * out;
        const int64_t end = least((group + 1) * per_group, M);
        zero_row(dw_sum, size);
        for (int64_t m = group * per_group; m < end; m += CHUNK) {
            const int64_t rows = least(end - m, CHUNK);
            pack(packed + group * room, x + m * in, rows, in, in, 1);
            add_weight_grad(dw_sum, dy + m * out, packed + group * room, rows, in, out);
            for (int64_t i = m; i < m + rows; i++) add_row(dbias_sum, dy + i * out, out);
        }
    }
    zero_row(dw, in * out);
#pragma omp parallel for schedule(static) if (groups * in * out > SERIAL)
    for (int64_t o = 0; o < out; o++)
        for (int64_t group = 0; group < groups; group++) add_row(dw + o * in, sums + group * size + o * in, in);
    if (dbias) {
        zero_row(dbias, out);
        for (int64_t group = 0; group < groups; group++) add_row(dbias, sums + group * size + in * out, out);
    }
    pool_give(sums);
    pool_give(packed);
    return ROT_OK;
}

/* y (G,M,out) = x (G,M,in) w (G,in,out), each of the G pairs on its own. */
int K(matmul_stack)(real *restrict y, const real *restrict x, const real *restrict w, int64_t G, int64_t M, int64_t in,
                    int64_t out) {
    const int64_t size = packed_columns(out) * in, blocks = pieces_of(M, ROWS);
    real *const packed = WORKSPACE(real, G, packed_columns(out), in);
    if (!packed) return ROT_NO_MEMORY;
    for (int64_t g = 0; g < G; g++) pack(packed + g * size, w + g * in * out, in, out, out, 1);
#pragma omp parallel for collapse(2) schedule(static) if (G * M * in * out > SERIAL)
    for (int64_t g = 0; g < G; g++) {
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t m = block * ROWS, rows = least(M - m, ROWS);
            product(y + (g * M + m) * out, out, NULL, 0, (gemm_view){x + (g * M + m) * in, in, 1}, packed + g * size,
                    rows, in, out);
        }
    }
    pool_give(packed);
    return ROT_OK;
}
