/* Products of pairs of bfloat16 (gemm_tile.h) by AMX, the matrix unit of Intel's server processors from 2023 on.
 *
 * TDPBF16PS multiplies a tile of A, 16 rows of up to 16 pairs, by a tile of B, as many rows of 16 pairs, and adds the
 * product to 16 by 16 sums. First and second numbers of the pairs have separate sums, from zero, which are added to
 * each other and then to the tile's sum. An element is one sum, in an order set by depth alone. Subnormal numbers count
 * as zero.
 *
 * Tiles are registers that a program configures first. They are configured here for each call and released at its end,
 * so no other code finds them in use.
 */
#include <immintrin.h>

#include "gemm_tile.h"

/* Compilers do not see the memory that a load of tiles reads, and gcc does not see all of a configuration. This macro
 * makes them write all memory, the address `at` included, first. */
#define WRITTEN(at) __asm__ volatile("" : : "r"(at) : "memory")

enum { SIDE = 16, BLOCK = 2 * SIDE }; /* rows of a tile, and words in a row; rows of two by two tiles */
_Static_assert(NR % BLOCK == 0 && sizeof(real) == 4, "a block of tiles lies in one panel of float32");

/* The operand of LDTILECFG: for each of eight tiles the bytes of a row and the number of rows. */
typedef struct {
    uint8_t palette, start_row, zero[14];
    uint16_t bytes[8], more_zeros[8];
    uint8_t rows[8], last_zeros[8];
} tile_shapes;

/* Tiles 0 to 3 are y, two by two; 4 and 5 are x, its first SIDE rows and the other rows; 6 and 7 are w. The numbers of
 * tiles are part of an instruction, so they must be literals. */
static void shape_tiles(int64_t rows, int64_t others, int64_t depth) {
    const uint8_t first = (uint8_t)rows, second = (uint8_t)others, pairs = (uint8_t)depth;
    const uint16_t whole = SIDE * sizeof(float), part = (uint16_t)(depth * (int64_t)sizeof(float));
    const tile_shapes shapes = {.palette = 1,
                                .bytes = {whole, whole, whole, whole, part, part, whole, whole},
                                .rows = {first, first, second, second, first, second, pairs, pairs}};
    WRITTEN(&shapes);
    _tile_loadconfig(&shapes);
}

/* y = start + x panel for a block of two by two tiles, with `pairs` in a tile's row. Tiles of the lower half begin
 * `lower` rows below the upper half. */
static void block_of_tiles(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x, const real *panel,
                           int64_t depth, int64_t pairs, int64_t lower) {
    const size_t bytes = sizeof(real), y_bytes = (size_t)y_row * bytes, start_bytes = (size_t)start_row * bytes;
    const size_t x_bytes = (size_t)x.row * bytes, panel_bytes = NR * bytes;
    const real *const below = start + lower * start_row;
    _tile_loadd(0, start, start_bytes);
    _tile_loadd(1, start + SIDE, start_bytes);
    _tile_loadd(2, below, start_bytes);
    _tile_loadd(3, below + SIDE, start_bytes);
    for (int64_t k = 0; k < depth; k += pairs, panel += pairs * NR) {
        _tile_loadd(4, x.at + k, x_bytes);
        _tile_loadd(5, x.at + lower * x.row + k, x_bytes);
        _tile_loadd(6, panel, panel_bytes);
        _tile_loadd(7, panel + SIDE, panel_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, y, y_bytes);
    _tile_stored(1, y + SIDE, y_bytes);
    _tile_stored(2, y + lower * y_row, y_bytes);
    _tile_stored(3, y + lower * y_row + SIDE, y_bytes);
}

/* The product for rows <= BLOCK, and a depth that is a multiple of `pairs`. With at most SIDE rows both halves are the
 * same rows. */
static void rows_of_tiles(real *y, int64_t y_row, const real *start, int64_t start_row, gemm_view x, const real *packed,
                          int64_t panel, int64_t rows, int64_t depth, int64_t pairs, int64_t columns) {
    static const real zeros[BLOCK] = {0};
    const int64_t lower = rows > SIDE ? SIDE : 0;
    shape_tiles(least(rows, SIDE), rows - lower, pairs);
    for (int64_t n = 0; n < columns; n += BLOCK) {
        const int64_t width = least(columns - n, BLOCK);
        const real *const from = start ? start + n : zeros, *const w = packed + n / NR * panel + n % NR;
        if (width == BLOCK) {
            block_of_tiles(y + n, y_row, from, start_row, x, w, depth, pairs, lower);
            continue;
        }
        real edge[BLOCK * BLOCK] = {0};
        for (int64_t i = 0; i < rows; i++) memcpy(edge + i * BLOCK, from + i * start_row, (size_t)width * sizeof(real));
        WRITTEN(edge);
        block_of_tiles(edge, BLOCK, edge, BLOCK, x, w, depth, pairs, lower);
        for (int64_t i = 0; i < rows; i++) memcpy(y + i * y_row + n, edge + i * BLOCK, (size_t)width * sizeof(real));
    }
}

/* Consecutive pairs of x are next to each other (x.step 1). The last pairs, if they fill no tile, have shorter
 * tiles. */
GEMM_PRODUCT(K(gemm_product)) {
    const int64_t whole = depth / SIDE * SIDE, rest = depth - whole;
    for (int64_t i = 0; i < rows; i += BLOCK) {
        const int64_t n = least(rows - i, BLOCK);
        const gemm_view first = {x.at + i * x.row, x.row, x.step}, last = {first.at + whole, x.row, x.step};
        const real *const from = start ? start + i * start_row : NULL;
        real *const to = y + i * y_row;
        rows_of_tiles(to, y_row, from, start ? start_row : 0, first, packed, panel, n, whole, SIDE, columns);
        if (rest) rows_of_tiles(to, y_row, to, y_row, last, packed + whole * NR, panel, n, rest, rest, columns);
    }
    _tile_release();
}
