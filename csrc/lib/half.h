/* Matrices in bfloat16: panels as in gemm_tile.h, but of words, in which the numbers k and k + 1 of a column share one,
 * the first in its low half, with a zero beside an unpaired last number. Sums are float32. A product has the bits of
 * the product with these numbers as float32, from half the memory.
 */
#ifndef ROT_HALF_H
#define ROT_HALF_H

#include "run.h"

/* sum += x, x in bfloat16 */
static void add_half_row(real *restrict sum, const uint16_t *restrict x, int64_t n) {
    EACH(d, n) sum[d] += (real)bf16_value(x[d]);
}

#if ROT_DOUBLE
static void (*const pack_half)(void *, const double *, int64_t, int64_t) = NULL;
#else
/* Other rows and columns are products with panels that are widened a part at a time. A sum goes on from part to part.
 */
static void half_product(real *y, int64_t y_row, const real *start, gemm_view x, const uint32_t *packed, int64_t rows,
                         int64_t depth, int64_t columns) {
    enum { PART = 4096 / NR }; /* even */
    const int64_t stride = pieces_of(depth, 2) * NR;
    real wide[PART * NR];
    int64_t n = 0;
    if (rows == 1)
        for (; n + ROW_COLUMNS <= columns; n += ROW_COLUMNS, packed += ROW_VECTORS / NV * stride)
            K(gemm_half_row)(y + n, start ? start + n : NULL, x, packed, stride, depth);
    for (; n < columns; n += NR, packed += stride) {
        const real *from = start ? start + n : NULL;
        for (int64_t k = 0, row = 0; k == 0 || k < depth; k += PART, from = y + n, row = y_row) {
            const int64_t part = least(depth - k, PART);
            for (int64_t i = 0; i < part; i += 2)
                for (int64_t j = 0; j < NR; j += LANES) {
                    const bits_vec both = load_words(packed + (k + i) / 2 * NR + j);
                    store(wide + i * NR + j, first_of(both));
                    store(wide + (i + 1) * NR + j, second_of(both));
                }
            const gemm_view some = {x.at + k * x.step, x.row, x.step};
            K(gemm_product)(y + n, y_row, from, row, some, wide, 0, rows, part, least(columns - n, NR));
        }
    }
}

/* As half_product expects it; `to` is zero. */
static void pack_half(void *to, const double *w, int64_t out, int64_t in) {
    uint32_t *panels = to;
    for (int64_t o = 0; o < out; o += NR, panels += pieces_of(in, 2) * NR) {
        const int64_t columns = least(NR, out - o);
        for (int64_t j = 0; j < columns; j++)
            for (int64_t k = 0; k < in; k++)
                panels[k / 2 * NR + j] |= bf16_bits((float)w[(o + j) * in + k]) << k % 2 * 16;
    }
}
#endif

#endif
