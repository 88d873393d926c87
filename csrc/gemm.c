/* The products of activations with weights: y = x w^T + bias, and dw = dy^T x, dbias = sum of dy.
 *
 * Not a general BLAS. A small register tile (MR rows x NR columns) runs over weights packed once per call into
 * panels of NR columns; rows are cut into blocks by the shapes alone and every sum has one order, so that, unlike a
 * BLAS, the result is the same bits for any number of threads.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "workspace.h"

#if defined(__AVX512F__)
enum { VECTOR = 64, NV = 4 };
#elif defined(__AVX2__)
enum { VECTOR = 32, NV = 2 };
#elif defined(__aarch64__)
enum { VECTOR = 16, NV = 4 };
#else
enum { VECTOR = 16, NV = 1 };
#endif
typedef real vec __attribute__((vector_size(VECTOR), aligned(sizeof(real)), may_alias));

enum {
    LANES = VECTOR / sizeof(real),
    NR = NV * LANES,
    MR = 6,
    ROWS = 20 * MR,   /* rows of one task of matmul */
    CHUNK = 256,      /* rows of x packed at a time in the weight gradient */
    GROUP_ROWS = 512, /* least rows that get a partial sum of their own */
    MAX_GROUPS = 16,
    SERIAL = 1 << 19, /* products below which threads do not pay */
};

static int64_t panels_of(int64_t columns) { return (columns + NR - 1) / NR; }

static void add(real *restrict sum, const real *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
}

/* panels[p][k][NR] <- w[k][p*NR ...], zero beyond the last column. w(k, n) = w[k*row + n*column]. */
static void pack(real *restrict panels, const real *restrict w, int64_t depth, int64_t N, int64_t row, int64_t column) {
    for (int64_t p = 0; p < panels_of(N); p++) {
        const int64_t n = N - p * NR < NR ? N - p * NR : NR;
        for (int64_t k = 0; k < depth; k++, panels += NR) {
            for (int64_t j = 0; j < n; j++) panels[j] = w[k * row + (p * NR + j) * column];
            for (int64_t j = n; j < NR; j++) panels[j] = 0;
        }
    }
}

/* acc[i][:] += sum_k x[i*row + k*step] panel[k][:], for i < rows <= MR. acc is (MR, NR), contiguous. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
static ALWAYS_INLINE void tile_rows(real *restrict acc, int64_t acc_row, const real *restrict x, int64_t row,
                                    int64_t step, const real *restrict panel, int64_t depth, const int rows) {
    vec sum[MR][NV];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < NV; v++) sum[i][v] = *(const vec *)(acc + i * acc_row + v * LANES);
    for (int64_t k = 0; k < depth; k++, panel += NR, x += step) {
        vec b[NV];
        for (int v = 0; v < NV; v++) b[v] = *(const vec *)(panel + v * LANES);
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < NV; v++) sum[i][v] += x[i * row] * b[v];
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < NV; v++) *(vec *)(acc + i * acc_row + v * LANES) = sum[i][v];
}

static void tile(real *restrict acc, int64_t acc_row, const real *restrict x, int64_t row, int64_t step,
                 const real *restrict panel, int64_t depth, int64_t rows) {
    switch (rows) { /* the number of rows is a constant in each, so that the sums stay in registers */
    case 6: tile_rows(acc, acc_row, x, row, step, panel, depth, 6); break;
    case 5: tile_rows(acc, acc_row, x, row, step, panel, depth, 5); break;
    case 4: tile_rows(acc, acc_row, x, row, step, panel, depth, 4); break;
    case 3: tile_rows(acc, acc_row, x, row, step, panel, depth, 3); break;
    case 2: tile_rows(acc, acc_row, x, row, step, panel, depth, 2); break;
    default: tile_rows(acc, acc_row, x, row, step, panel, depth, 1); break;
    }
}

/* y(i, n) += sum_k x(i, k) panel(k, n) for `rows` rows and `columns` <= NR columns of y. */
static void tile_into(real *y, int64_t y_row, const real *x, int64_t row, int64_t step, const real *panel,
                      int64_t depth, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i += MR) {
        const int64_t mr = rows - i < MR ? rows - i : MR;
        if (columns == NR) {
            tile(y + i * y_row, y_row, x + i * row, row, step, panel, depth, mr);
        } else {
            real edge[MR * NR] = {0};
            for (int64_t r = 0; r < mr; r++) memcpy(edge + r * NR, y + (i + r) * y_row, (size_t)columns * sizeof(real));
            tile(edge, NR, x + i * row, row, step, panel, depth, mr);
            for (int64_t r = 0; r < mr; r++) memcpy(y + (i + r) * y_row, edge + r * NR, (size_t)columns * sizeof(real));
        }
    }
}

/* y (M,out) = x (M,in) w + bias (out) or NULL; w is (in,out), or (out,in) when `transposed`. */
int K(matmul)(real *restrict y, const real *restrict x, const real *restrict w, const real *restrict bias, int64_t M,
              int64_t in, int64_t out, int64_t transposed) {
    const int64_t panels = panels_of(out), blocks = (M + ROWS - 1) / ROWS;
    real *const packed = WORKSPACE(real, panels, in, NR);
    if (!packed) return ROT_NO_MEMORY;
    pack(packed, w, in, out, transposed ? 1 : out, transposed ? in : 1);
#pragma omp parallel for schedule(static) if (M * in * out > SERIAL)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t m = block * ROWS, rows = M - m < ROWS ? M - m : ROWS;
        for (int64_t i = m; i < m + rows; i++) {
            if (bias)
                memcpy(y + i * out, bias, (size_t)out * sizeof(real));
            else
                memset(y + i * out, 0, (size_t)out * sizeof(real));
        }
        for (int64_t p = 0; p < panels; p++) {
            const int64_t columns = out - p * NR < NR ? out - p * NR : NR;
            tile_into(y + m * out + p * NR, out, x + m * in, in, 1, packed + p * in * NR, in, rows, columns);
        }
    }
    free(packed);
    return ROT_OK;
}

/* dw (out,in) and dbias (out) or NULL, overwritten; x (M,in), dy (M,out).
 *   dw = sum_m dy_m x_m^T,   dbias = sum_m dy_m:  rows in order within a group, groups in order. */
int K(matmul_weight_grad)(real *restrict dw, real *restrict dbias, const real *restrict x, const real *restrict dy,
                          int64_t M, int64_t in, int64_t out) {
    int64_t groups = M / GROUP_ROWS;
    groups = groups < 1 ? 1 : groups > MAX_GROUPS ? MAX_GROUPS : groups;
    const int64_t panels = panels_of(in), per_group = (M + groups - 1) / groups;
    real *const sums = WORKSPACE(real, groups, in + 1, out);
    real *const packed = WORKSPACE(real, groups, panels, CHUNK, NR);
    if (!sums || !packed) {
        free(sums);
        free(packed);
        return ROT_NO_MEMORY;
    }
    const int64_t size = (in + 1) * out;
#pragma omp parallel for schedule(static) if (M * in * out > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        real *const dw_sum = sums + group * size, *const dbias_sum = dw_sum + in * out;
        real *const panel = packed + group * panels * CHUNK * NR;
        const int64_t end = (group + 1) * per_group < M ? (group + 1) * per_group : M;
        memset(dw_sum, 0, (size_t)size * sizeof(real));
        for (int64_t m = group * per_group; m < end; m += CHUNK) {
            const int64_t rows = end - m < CHUNK ? end - m : CHUNK;
            pack(panel, x + m * in, rows, in, in, 1);
            for (int64_t p = 0; p < panels; p++) {
                const int64_t columns = in - p * NR < NR ? in - p * NR : NR;
                tile_into(dw_sum + p * NR, in, dy + m * out, 1, out, panel + p * rows * NR, rows, out, columns);
            }
            for (int64_t i = m; i < m + rows; i++) add(dbias_sum, dy + i * out, out);
        }
    }
    memset(dw, 0, (size_t)(in * out) * sizeof(real));
#pragma omp parallel for schedule(static) if (groups * in * out > SERIAL)
    for (int64_t o = 0; o < out; o++)
        for (int64_t group = 0; group < groups; group++) add(dw + o * in, sums + group * size + o * in, in);
    if (dbias) {
        memset(dbias, 0, (size_t)out * sizeof(real));
        for (int64_t group = 0; group < groups; group++) add(dbias, sums + group * size + in * out, out);
    }
    free(sums);
    free(packed);
    return ROT_OK;
}

/* y (G,M,out) = x (G,M,in) w (G,in,out), each of the G pairs on its own. */
int K(matmul_stack)(real *restrict y, const real *restrict x, const real *restrict w, int64_t G, int64_t M, int64_t in,
                    int64_t out) {
    const int64_t panels = panels_of(out), blocks = (M + ROWS - 1) / ROWS;
    real *const packed = WORKSPACE(real, G, panels, in, NR);
    if (!packed) return ROT_NO_MEMORY;
    const int64_t size = panels * in * NR;
    for (int64_t g = 0; g < G; g++) pack(packed + g * size, w + g * in * out, in, out, out, 1);
    memset(y, 0, (size_t)(G * M * out) * sizeof(real));
#pragma omp parallel for collapse(2) schedule(static) if (G * M * in * out > SERIAL)
    for (int64_t g = 0; g < G; g++) {
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t m = block * ROWS, rows = M - m < ROWS ? M - m : ROWS;
            for (int64_t p = 0; p < panels; p++) {
                const int64_t columns = out - p * NR < NR ? out - p * NR : NR;
                tile_into(y + (g * M + m) * out + p * NR, out, x + (g * M + m) * in, in, 1,
                          packed + g * size + p * in * NR, in, rows, columns);
            }
        }
    }
    free(packed);
    return ROT_OK;
}
