/* The tile of gemm_tile.h itself, compiled once for all kernels of a variant. */
#include "gemm_tile.h"

#ifdef ROT_PAIRS /* the variant for pairs of bfloat16 */
#include <immintrin.h>
typedef __m512 sum_vec;
#else
typedef vec sum_vec;
#endif

/* sum + x w; with pairs, the sum of a pair's two products, where subnormal numbers count as zero */
ROT_ALWAYS_INLINE sum_vec plus_product(sum_vec sum, const real *x, vec w) {
#ifdef ROT_PAIRS
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_ps(*x), (__m512bh)w);
#else
    return sum + *x * w;
#endif
}

static const real ZEROS[ROW_COLUMNS] = {0};

/* y(i, :) = start(i, :) + sum_k x(i, k) panel(k, :) for i < rows <= MR and the first vectors of the panel, or of
 * several panels. `start` may be y itself. */
ROT_ALWAYS_INLINE void tile_rows(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                                 const real *panel, int64_t stride, int64_t depth, const int vectors, const int rows) {
    sum_vec sum[MR][ROW_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] = (sum_vec)load(start + i * start_row + v * LANES);
    for (int64_t k = 0; k < depth; k++, panel += NR, x.at += x.step) {
        vec b[ROW_VECTORS];
        for (int v = 0; v < vectors; v++) b[v] = load(panel + v / NV * stride + v % NV * LANES);
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < vectors; v++) sum[i][v] = plus_product(sum[i][v], x.at + i * x.row, b[v]);
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) store(y + i * y_row + v * LANES, (vec)sum[i][v]);
}

ROT_ALWAYS_INLINE void tile_vectors(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                                    const real *panel, int64_t depth, const int vectors, int64_t rows) {
    switch (rows) { /* a constant number of rows keeps the sums in registers */
    case 6: tile_rows(y, y_row, start, start_row, x, panel, 0, depth, vectors, 6); break;
    case 5: tile_rows(y, y_row, start, start_row, x, panel, 0, depth, vectors, 5); break;
    case 4: tile_rows(y, y_row, start, start_row, x, panel, 0, depth, vectors, 4); break;
    case 3: tile_rows(y, y_row, start, start_row, x, panel, 0, depth, vectors, 3); break;
    case 2: tile_rows(y, y_row, start, start_row, x, panel, 0, depth, vectors, 2); break;
    default: tile_rows(y, y_row, start, start_row, x, panel, 0, depth, vectors, 1); break;
    }
}

/* The same for a panel with `columns` < NR, or at an edge. A separate function keeps the code of whole panels small. */
__attribute__((noinline)) static void narrow_tile(real *y, int64_t y_row, const real *start, int64_t start_row,
                                                  gemm_view x, const real *panel, int64_t depth, int64_t rows,
                                                  int64_t columns) {
    const int64_t vectors = vectors_for(columns);
    if (vectors == NV)
        tile_vectors(y, y_row, start, start_row, x, panel, depth, NV, rows);
    else if (vectors == 1)
        tile_vectors(y, y_row, start, start_row, x, panel, depth, 1, rows);
    else
        tile_vectors(y, y_row, start, start_row, x, panel, depth, (NV + 1) / 2, rows);
}

GEMM_PRODUCT(K(gemm_product)) {
    int64_t n = 0;
    if (rows == 1)
        for (; n + ROW_COLUMNS <= columns; n += ROW_COLUMNS, packed += ROW_VECTORS / NV * panel)
            tile_rows(y + n, 0, start ? start + n : ZEROS, 0, x, packed, panel, depth, ROW_VECTORS, 1);
    for (; n < columns; n += NR, packed += panel) {
        const int64_t width = least(columns - n, NR);
        const bool whole = width == vectors_for(width) * LANES;
        for (int64_t i = 0; i < rows; i += MR) {
            const int64_t mr = least(rows - i, MR);
            const gemm_view part = {x.at + i * x.row, x.row, x.step};
            const real *const from = start ? start + i * start_row + n : ZEROS;
            if (width == NR) {
                /* prefetch the next rows of y: the hardware prefetcher does not */
                for (int64_t r = mr; r < 2 * mr && i + r < rows; r++)
                    for (int64_t v = 0; v < NR; v += GEMM_LINE) __builtin_prefetch(y + (i + r) * y_row + n + v, 1);
                tile_vectors(y + i * y_row + n, y_row, from, start ? start_row : 0, part, packed, depth, NV, mr);
                continue;
            }
            if (whole) {
                narrow_tile(y + i * y_row + n, y_row, from, start ? start_row : 0, part, packed, depth, mr, width);
                continue;
            }
            real edge[MR * NR] = {0};
            for (int64_t r = 0; start && r < mr; r++)
                memcpy(edge + r * NR, from + r * start_row, (size_t)width * sizeof(real));
            narrow_tile(edge, NR, edge, NR, part, packed, depth, mr, width);
            for (int64_t r = 0; r < mr; r++)
                memcpy(y + (i + r) * y_row + n, edge + r * NR, (size_t)width * sizeof(real));
        }
    }
}

#if !ROT_DOUBLE && !defined(ROT_PAIRS)
void K(gemm_half_row)(real *y, const real *start, gemm_view x, const uint32_t *words, int64_t stride, int64_t depth) {
    vec sum[ROW_VECTORS];
    if (!start) start = ZEROS;
    for (int v = 0; v < ROW_VECTORS; v++) sum[v] = load(start + v * LANES);
    for (int64_t k = 0; k < depth; k += 2, words += NR, x.at += 2 * x.step) {
        const real one = x.at[0], other = k + 1 < depth ? x.at[x.step] : 0;
        for (int v = 0; v < ROW_VECTORS; v++) {
            const bits_vec both = load_words(words + v / NV * stride + v % NV * LANES);
            sum[v] = sum[v] + one * first_of(both);
            sum[v] = sum[v] + other * second_of(both);
        }
    }
    for (int v = 0; v < ROW_VECTORS; v++) store(y + v * LANES, sum[v]);
}
#endif
