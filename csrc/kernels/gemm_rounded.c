/* Products whose operands a precision rounds (gemm_tile.h), by the tile. */
#include "gemm_tile.h"

typedef GEMM_PRODUCT((*tile_product));

#if defined(ROT_AVX512) && defined(__AVX512F__) && !ROT_DOUBLE
GEMM_PRODUCT(gemm_product_f32_avx512_bf16);
GEMM_PRODUCT(gemm_product_f32_avx512_amx);
#endif

/* The kernel for operands rounded by `how`; gemm_product if there is no kernel for pairs. */
static tile_product product_of(rounding how) {
#if defined(ROT_AVX512) && defined(__AVX512F__) && !ROT_DOUBLE
    if (how == ROUND_BF16_PAIRS) return gemm_product_f32_avx512_bf16;
#ifdef ROT_AMX
    if (how == ROUND_BF16_TILES) return gemm_product_f32_avx512_amx;
#endif
#endif
    (void)how;
    return K(gemm_product);
}

static bool in_pairs(rounding how) { return how >= ROUND_BF16_PAIRS; }

rounding K(gemm_rounding)(void) {
    static const rounding OF[PRECISIONS] = {
        [PRECISION_FLOAT32] = ROUND_NONE, [PRECISION_TF32] = ROUND_TF32, [PRECISION_BF16] = ROUND_BF16};
    static const rounding BF16_BY[] = {
        [BF16_BY_FLOAT32] = ROUND_BF16, [BF16_BY_PAIRS] = ROUND_BF16_PAIRS, [BF16_BY_TILES] = ROUND_BF16_TILES};
    const rounding how = OF[precision_of_call()], by = BF16_BY[bf16_by()];
    return how == ROUND_BF16 && product_of(by) != K(gemm_product) ? by : how;
}

/* One bfloat16 number, and two, in the place of a float32. */
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
    if (!in_pairs(how)) {
        round_row(panels, panels, packed_columns(columns) * depth, how);
        return;
    }
    for (int64_t n = 0; n < columns; n += NR, panels += depth * NR)
        for (int64_t k = 0; k < depth; k += 2)
            pair_rows(panels + k / 2 * NR, panels + k * NR, k + 1 < depth ? panels + (k + 1) * NR : NULL, NR);
}

/* Rows and numbers of x rounded at a time: they stay in level 1 cache beside a panel's rows. The number of rows is a
 * multiple of the kernel's. */
enum { ROUNDED_ROWS = 4 * MR, TILED_ROWS = 32, MOST_ROWS = ROUNDED_ROWS > TILED_ROWS ? ROUNDED_ROWS : TILED_ROWS };
enum { ROUNDED_DEPTH = 128 };

/* x (rows, depth) rounded into `room`, with consecutive numbers of a row adjacent, as in x. */
static gemm_view round_rows(real *room, gemm_view x, int64_t rows, int64_t depth, rounding how) {
    for (int64_t i = 0; i < rows; i++) {
        if (in_pairs(how))
            pair_row(room + i * ROUNDED_DEPTH, x.at + i * x.row, depth);
        else
            round_row(room + i * ROUNDED_DEPTH, x.at + i * x.row, depth, how);
    }
    return (gemm_view){room, ROUNDED_DEPTH, 1};
}

/* The same for x with consecutive rows adjacent, as they then are in `room`. */
static gemm_view round_columns(real *room, gemm_view x, int64_t rows, int64_t depth, rounding how) {
    for (int64_t k = 0; k < depth; k += in_pairs(how) ? 2 : 1) {
        const real *const one = x.at + k * x.step;
        if (in_pairs(how))
            pair_rows(room + k / 2 * ROUNDED_ROWS, one, k + 1 < depth ? one + x.step : NULL, rows);
        else
            round_row(room + k * ROUNDED_ROWS, one, rows, how);
    }
    return (gemm_view){room, 1, ROUNDED_ROWS};
}

/* The same for tiles, which need adjacent numbers of a row: columns become rows. */
static gemm_view tile_columns(real *room, gemm_view x, int64_t rows, int64_t depth) {
    for (int64_t k = 0; k < depth; k += 2) {
        const real *const one = x.at + k * x.step;
        real column[TILED_ROWS];
        pair_rows(column, one, k + 1 < depth ? one + x.step : NULL, rows);
        for (int64_t i = 0; i < rows; i++) ((pair *)room)[i * ROUNDED_DEPTH + k / 2] = ((const pair *)column)[i];
    }
    return (gemm_view){room, ROUNDED_DEPTH, 1};
}

static gemm_view round_left(real *room, gemm_view x, int64_t rows, int64_t depth, rounding how) {
    if (x.step == 1) return round_rows(room, x, rows, depth, how);
    return how == ROUND_BF16_TILES ? tile_columns(room, x, rows, depth) : round_columns(room, x, rows, depth, how);
}

void K(gemm_rounded_product)(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x,
                             const real *packed, int64_t rows, int64_t depth, int64_t columns, rounding how) {
    const tile_product multiply = product_of(how);
    const int64_t each = in_pairs(how) ? 2 : 1; /* numbers of a word */
    const int64_t height = how == ROUND_BF16_TILES ? TILED_ROWS : ROUNDED_ROWS;
    real room[MOST_ROWS * ROUNDED_DEPTH];
    for (int64_t i = 0; i < rows; i += height) {
        const int64_t n = least(rows - i, height);
        real *const to = y + i * y_row;
        const real *from = start ? start + i * start_row : NULL;
        int64_t from_row = start_row;
        for (int64_t k = 0; k == 0 || k < depth; k += ROUNDED_DEPTH, from = to, from_row = y_row) {
            const int64_t part = least(depth - k, ROUNDED_DEPTH);
            const gemm_view left =
                round_left(room, (gemm_view){x.at + i * x.row + k * x.step, x.row, x.step}, n, part, how);
            multiply(to, y_row, from, from_row, left, packed + k / each * NR, depth * NR, n, pieces_of(part, each),
                     columns);
        }
    }
}
