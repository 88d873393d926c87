/* The one kernel of all matrix products: a register tile of MR rows by NR columns over packed panels.
 *
 * y = start + x w, where w (depth, columns) was packed into panels of NR columns. Every element of y is one sum in the
 * order of depth, whichever rows and columns are computed together, so results do not depend on the division of work.
 *
 * Where a precision rounds operands (precision.h), w is rounded in its panels, and x a few rows at a time in a buffer.
 * Processors with AVX512-BF16 multiply pairs of bfloat16, in a separate variant of this kernel; processors with AMX
 * multiply tiles of pairs (gemm_amx.c); others multiply the rounded numbers as float32.
 */
#ifndef ROT_GEMM_TILE_H
#define ROT_GEMM_TILE_H

#include <string.h>

#include "cuts.h"
#include "precision.h"
#include "vector.h"

/* Vectors of a panel, with MR rows of them in registers. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { NV = 4 };
#elif defined(__AVX2__)
enum { NV = 2 };
#else
enum { NV = 1 };
#endif
enum { NR = NV * LANES, MR = 6 };
enum { GEMM_LINE = 64 / sizeof(real) }; /* numbers of a cache line */

/* Sums that are computed at once for one row: more than a processor's additions take cycles, so that none waits for the
 * one before. They are of several panels, `stride` numbers apart. */
enum { ROW_VECTORS = 8, ROW_COLUMNS = ROW_VECTORS * LANES };

/* Number of columns of a packed matrix, a multiple of NR. */
static inline int64_t packed_columns(int64_t columns) { return pieces_of(columns, NR) * NR; }

/* panels[p][k][NR] <- w(k, p*NR ...), zero beyond the last column; w(k, n) = w[k*row + n*column]. */
static inline void pack(real *restrict panels, const real *restrict w, int64_t depth, int64_t columns, int64_t row,
                        int64_t column) {
    for (int64_t first = 0; first < columns; first += NR, panels += depth * NR) {
        const int64_t n = least(columns - first, NR);
        const real *const from = w + first * column;
        if (n < NR) memset(panels, 0, (size_t)(depth * NR) * sizeof(real));
        if (column == 1 && n == NR) { /* registers: for so few numbers a call of memcpy is slower */
            for (int64_t k = 0; k < depth; k++)
                for (int v = 0; v < NV; v++) store(panels + k * NR + v * LANES, load(from + k * row + v * LANES));
            continue;
        }
        if (column == 1) {
            for (int64_t k = 0; k < depth; k++) memcpy(panels + k * NR, from + k * row, (size_t)n * sizeof(real));
            continue;
        }
        for (int64_t k = 0; k < depth; k += GEMM_LINE) { /* a cache line of each column at a time */
            const int64_t line = least(depth - k, GEMM_LINE);
            for (int64_t j = 0; j < n; j++)
                for (int64_t i = 0; i < line; i++) panels[(k + i) * NR + j] = from[(k + i) * row + j * column];
        }
    }
}

/* How products round their operands. With ROUND_BF16_PAIRS, numbers k and k+1 of a row of x, and of a column of w,
 * share one word as large as a float32, the first in its low half; an unpaired last number has a zero beside it. The
 * same with ROUND_BF16_TILES, where AMX multiplies them. */
typedef enum { ROUND_NONE, ROUND_TF32, ROUND_BF16, ROUND_BF16_PAIRS, ROUND_BF16_TILES } rounding;

/* The rounding of the calling thread's products in this variant. An entry asks once, because its worker threads have
 * their own precision. */
rounding K(gemm_rounding)(void);
static inline rounding rounding_of_call(void) { return ROT_DOUBLE ? ROUND_NONE : K(gemm_rounding)(); }

/* Whether blocks store their activations in bfloat16. */
static inline bool stores_bf16(rounding how) { return how >= ROUND_BF16; }

/* Rounds `columns` packed columns in place, as products with `how` expect them. */
void K(gemm_round)(real *panels, int64_t depth, int64_t columns, rounding how);
static inline void round_packed(real *panels, int64_t depth, int64_t columns, rounding how) {
    if (how != ROUND_NONE) K(gemm_round)(panels, depth, columns, how);
}

/* The panels of w for products with `how`. */
static inline void pack_rounded(real *restrict panels, const real *restrict w, int64_t depth, int64_t columns,
                                int64_t row, int64_t column, rounding how) {
    pack(panels, w, depth, columns, row, column);
    round_packed(panels, depth, columns, how);
}

/* A view of x: x(i, k) = at[i*row + k*step], where row or step is 1. */
typedef struct {
    const real *at;
    int64_t row, step;
} gemm_view;

/* Number of vectors to compute for `columns` <= NR of a panel: one, half or all, the fewest that suffice. */
static inline int64_t vectors_for(int64_t columns) { return columns <= LANES ? 1 : columns <= NR / 2 ? NV / 2 : NV; }

/* y(i, n) = start(i, n) + sum_k x(i, k) w(k, n) for `rows` rows and `columns` columns of y. w is packed, in panels that
 * begin `panel` numbers apart. `start` is y itself, or one row for all (start_row 0), or NULL for zero. In the variants
 * for pairs, x and w hold pairs, and depth counts them. */
#define GEMM_PRODUCT(name)                                                                                             \
    void name(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x, const real *packed,           \
              int64_t panel, int64_t rows, int64_t depth, int64_t columns)
GEMM_PRODUCT(K(gemm_product));

static inline void unrounded_product(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                                     const real *packed, int64_t rows, int64_t depth, int64_t columns) {
    K(gemm_product)(y, y_row, start, start_row, x, packed, depth * NR, rows, depth, columns);
}

#if !ROT_DOUBLE
/* The numbers at k and at k + 1 of LANES columns in bfloat16: a word has both, the first in its low half. */
ROT_ALWAYS_INLINE vec first_of(bits_vec words) { return (vec)(words << 16); }
ROT_ALWAYS_INLINE vec second_of(bits_vec words) {
    const bits_vec none = {0};
    return (vec)(words & (none + 0xffff0000u));
}
ROT_ALWAYS_INLINE bits_vec load_words(const uint32_t *words) { return (bits_vec)load((const real *)words); }

/* ROW_COLUMNS columns of one row of y, w in panels of such words (csrc/lib/half.h), which begin `stride` words apart.
 */
void K(gemm_half_row)(real *y, const real *start, gemm_view x, const uint32_t *words, int64_t stride, int64_t depth);
#endif

/* The same with operands rounded by `how`, and w packed by pack_rounded (gemm_rounded.c). */
void K(gemm_rounded_product)(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                             const real *packed, int64_t rows, int64_t depth, int64_t columns, rounding how);

static inline void product(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                           const real *packed, int64_t rows, int64_t depth, int64_t columns, rounding how) {
    if (how == ROUND_NONE)
        unrounded_product(y, y_row, start, start_row, x, packed, rows, depth, columns);
    else
        K(gemm_rounded_product)(y, y_row, start, start_row, x, packed, rows, depth, columns, how);
}

/* dw (out,in) += dy^T x over `rows` rows of dy (rows,out) and x (rows,in), x packed. */
static inline void add_weight_grad(real *dw, const real *dy, const real *packed_x, int64_t rows, int64_t in,
                                   int64_t out, rounding how) {
    const gemm_view transposed = {dy, 1, out};
    product(dw, in, dw, in, transposed, packed_x, out, rows, in, how);
}

#endif
