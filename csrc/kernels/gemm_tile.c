/* The tile of gemm_tile.h itself, compiled once for all kernels of a variant. */
#include "gemm_tile.h"

#ifdef ROT_PAIRS /* the variant for pairs of bfloat16 */
#include <immintrin.h>
typedef __m512 sum_vec;
#else
typedef vec sum_vec;
#endif

/* sum + x w; with pairs, the sum of a pair's two products, where numbers below float32's normal ones count as zero */
ROT_ALWAYS_INLINE sum_vec plus_product(sum_vec sum, const real *x, vec w) {
#ifdef ROT_PAIRS
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_ps(*x), (__m512bh)w);
#else
    return sum + *x * w;
#endif
}

/* y(i, :) = start(i, :) + sum_k x(i, k) panel(k, :) for i < rows <= MR and the panel's first vectors. `start` may be y
 * itself. */
ROT_ALWAYS_INLINE void tile_rows(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                                 const real *panel, int64_t depth, const int vectors, const int rows) {
    sum_vec sum[MR][NV];
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] = (sum_vec)load(start + i * start_row + v * LANES);
    for (int64_t k = 0; k < depth; k++, panel += NR, x.at += x.step) {
        vec b[NV];
        for (int v = 0; v < vectors; v++) b[v] = load(panel + v * LANES);
        for (int i = 0; i < rows; i++)
            for (int v = 0; v < vectors; v++) sum[i][v] = plus_product(sum[i][v], x.at + i * x.row, b[v]);
    }
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors; v++) store(y + i * y_row + v * LANES, (vec)sum[i][v]);
}

ROT_ALWAYS_INLINE void tile_vectors(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                                    const real *panel, int64_t depth, const int vectors, int64_t rows) {
    switch (rows) { /* a constant number of rows keeps the sums in registers */
    case 6: tile_rows(y, y_row, start, start_row, x, panel, depth, vectors, 6); break;
    case 5: tile_rows(y, y_row, start, start_row, x, panel, depth, vectors, 5); break;
    case 4: tile_rows(y, y_row, start, start_row, x, panel, depth, vectors, 4); break;
    case 3: tile_rows(y, y_row, start, start_row, x, panel, depth, vectors, 3); break;
    case 2: tile_rows(y, y_row, start, start_row, x, panel, depth, vectors, 2); break;
    default: tile_rows(y, y_row, start, start_row, x, panel, depth, vectors, 1); break;
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
    static const real zeros[NR] = {0};
    for (int64_t n = 0; n < columns; n += NR, packed += panel) {
        const int64_t width = least(columns - n, NR);
        const bool whole = width == vectors_for(width) * LANES;
        for (int64_t i = 0; i < rows; i += MR) {
            const int64_t mr = least(rows - i, MR);
            const gemm_view part = {x.at + i * x.row, x.row, x.step};
            const real *const from = start ? start + i * start_row + n : zeros;
            if (width == NR) {
                /* prefetch the next rows of y: the hardware prefetcher does not foresee them */
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

#ifndef ROT_PAIRS

#if defined(ROT_X86) && defined(__AVX512F__) && !ROT_DOUBLE
enum { HAS_PAIRS = 1 };
#define PRODUCT_OF_PAIRS gemm_product_f32_avx512_bf16
GEMM_PRODUCT(PRODUCT_OF_PAIRS);
#else
enum { HAS_PAIRS = 0 };
#define PRODUCT_OF_PAIRS K(gemm_product) /* never called */
#endif

rounding K(gemm_rounding)(void) {
    static const rounding OF[PRECISIONS] = {
        [PRECISION_FLOAT32] = ROUND_NONE, [PRECISION_TF32] = ROUND_TF32, [PRECISION_BF16] = ROUND_BF16};
    const rounding how = OF[precision_of_call()];
    return how == ROUND_BF16 && HAS_PAIRS && bf16_pairs() ? ROUND_BF16_PAIRS : how;
}

/* One number of bfloat16, and two, stored where a float32 may be. */
typedef uint16_t half __attribute__((may_alias));
typedef uint32_t pair __attribute__((may_alias));
static pair pair_of(real low, real high) { return bf16_bits((float)low) | bf16_bits((float)high) << 16; }

static void round_row(real *y, const real *x, int64_t n, rounding how) {
    if (how == ROUND_TF32)
        for (int64_t j = 0; j < n; j++) y[j] = (real)tf32_of((float)x[j]);
    else
        for (int64_t j = 0; j < n; j++) y[j] = (real)bf16_of((float)x[j]);
}

/* y[j] = the pair of x[2j] and x[2j+1]: on x86, bfloat16 numbers in their order */
static void pair_row(real *y, const real *x, int64_t n) {
    half *const to = (half *)y;
    for (int64_t j = 0; j < n; j++) to[j] = (half)bf16_bits((float)x[j]);
    if (n % 2) to[n] = 0;
}

/* y[j] = the pair of low[j] and high[j]; high NULL for zeros. y may be low. */
static void pair_rows(real *y, const real *low, const real *high, int64_t n) {
    pair *const to = (pair *)y;
    if (high)
        for (int64_t j = 0; j < n; j++) to[j] = pair_of(low[j], high[j]);
    else
        for (int64_t j = 0; j < n; j++) to[j] = pair_of(low[j], 0);
}

void K(gemm_round)(real *panels, int64_t depth, int64_t columns, rounding how) {
    if (how != ROUND_BF16_PAIRS) {
        round_row(panels, panels, packed_columns(columns) * depth, how);
        return;
    }
    for (int64_t n = 0; n < columns; n += NR, panels += depth * NR)
        for (int64_t k = 0; k < depth; k += 2)
            pair_rows(panels + k / 2 * NR, panels + k * NR, k + 1 < depth ? panels + (k + 1) * NR : NULL, NR);
}

/* Rows and numbers of x that are rounded at a time: they stay in the first cache beside a panel's rows. */
enum { ROUNDED_ROWS = 4 * MR, ROUNDED_DEPTH = 128 };

/* x (rows, depth) rounded into `room`, with its consecutive numbers next to each other again. */
static gemm_view round_left(real *room, gemm_view x, int64_t rows, int64_t depth, rounding how) {
    const bool pairs = how == ROUND_BF16_PAIRS;
    if (x.step == 1) {
        for (int64_t i = 0; i < rows; i++) {
            if (pairs)
                pair_row(room + i * ROUNDED_DEPTH, x.at + i * x.row, depth);
            else
                round_row(room + i * ROUNDED_DEPTH, x.at + i * x.row, depth, how);
        }
        return (gemm_view){room, ROUNDED_DEPTH, 1};
    }
    for (int64_t k = 0; k < depth; k += pairs ? 2 : 1) {
        const real *const one = x.at + k * x.step;
        if (pairs)
            pair_rows(room + k / 2 * ROUNDED_ROWS, one, k + 1 < depth ? one + x.step : NULL, rows);
        else
            round_row(room + k * ROUNDED_ROWS, one, rows, how);
    }
    return (gemm_view){room, 1, ROUNDED_ROWS};
}

void K(gemm_rounded_product)(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                             const real *packed, int64_t rows, int64_t depth, int64_t columns, rounding how) {
    const int64_t each = how == ROUND_BF16_PAIRS ? 2 : 1; /* numbers of a word */
    real room[ROUNDED_ROWS * ROUNDED_DEPTH];
    for (int64_t i = 0; i < rows; i += ROUNDED_ROWS) {
        const int64_t n = least(rows - i, ROUNDED_ROWS);
        real *const to = y + i * y_row;
        const real *from = start ? start + i * start_row : NULL;
        int64_t from_row = start_row;
        for (int64_t k = 0; k == 0 || k < depth; k += ROUNDED_DEPTH, from = to, from_row = y_row) {
            const int64_t part = least(depth - k, ROUNDED_DEPTH);
            const gemm_view left =
                round_left(room, (gemm_view){x.at + i * x.row + k * x.step, x.row, x.step}, n, part, how);
            (each == 2 ? PRODUCT_OF_PAIRS : K(gemm_product))(to, y_row, from, from_row, left, packed + k / each * NR,
                                                             depth * NR, n, pieces_of(part, each), columns);
        }
    }
}

#endif
