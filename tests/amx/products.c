/* Products of bfloat16 by AMX for test_amx.py: csrc/kernels/gemm_amx.c with tiles in plain C (tiles.h), which it either
 * calls in place of the compiler's intrinsics (plain/immintrin.h), or reaches by the instructions themselves (trap.c).
 */
#include <immintrin.h>
#include <stdlib.h>

#include "gemm_tile.h"
#include "tiles.h"

const char *amx_fault;
_Thread_local bool amx_configured;
_Thread_local int64_t amx_products;
_Thread_local amx_tile amx_tiles[AMX_TILES];

/* The other kernels of products, which are not to be called. */
GEMM_PRODUCT(gemm_product_f32_avx512);
GEMM_PRODUCT(gemm_product_f32_avx512_bf16);
#define ENDS                                                                                                           \
    {                                                                                                                  \
        (void)y, (void)y_row, (void)start, (void)start_row, (void)x, (void)packed, (void)panel, (void)rows;            \
        (void)depth, (void)columns;                                                                                    \
        abort();                                                                                                       \
    }
GEMM_PRODUCT(gemm_product_f32_avx512)
ENDS GEMM_PRODUCT(gemm_product_f32_avx512_bf16) ENDS

#define SHOWN __attribute__((visibility("default")))

    /* y (rows,columns) = start + x w with x(i, k) = x[i*x_row + k*x_step] and w (depth,columns); how many TDPBF16PS
     * that took in `products`. Returns what went wrong, or NULL. */
    SHOWN const char *product_by_tiles(float *y, const float *start, int64_t start_row, const float *x, int64_t x_row,
                                       int64_t x_step, const float *w, int64_t rows, int64_t depth, int64_t columns,
                                       int64_t *products);
const char *product_by_tiles(float *y, const float *start, int64_t start_row, const float *x, int64_t x_row,
                             int64_t x_step, const float *w, int64_t rows, int64_t depth, int64_t columns,
                             int64_t *products) {
    const gemm_view view = {x, x_row, x_step};
    float *const packed = (float *)malloc(sizeof(float) * (size_t)(packed_columns(columns) * depth + 1));
    if (!packed) return "no memory";
    use_precision(PRECISION_BF16);
    use_bf16_by(BF16_BY_TILES);
    amx_fault = NULL;
    amx_products = 0;
    const rounding how = rounding_of_call();
    pack_rounded(packed, w, depth, columns, columns, 1, how);
    product(y, columns, start, start_row, view, packed, rows, depth, columns, how);
    free(packed);
    *products = amx_products;
    return amx_configured ? "tiles are configured after the product" : amx_fault;
}

/* After a configuration of 64 bytes, one TDPBF16PS: y (16,16), x and w (16,32). Returns what went wrong, or NULL. */
SHOWN const char *one_product(float *y, const uint16_t *x, const uint16_t *w, const uint8_t *config);
const char *one_product(float *y, const uint16_t *x, const uint16_t *w, const uint8_t *config) {
    amx_fault = NULL;
    __asm__ volatile("" : : "r"(config), "r"(x), "r"(w), "r"(y) : "memory");
    _tile_loadconfig(config);
    _tile_loadd(0, y, 64);
    _tile_loadd(1, x, 64);
    _tile_loadd(2, w, 64);
    _tile_dpbf16ps(0, 1, 2);
    _tile_stored(0, y, 64);
    _tile_release();
    return amx_fault;
}
