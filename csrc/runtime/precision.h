/* How products of float32 matrices round their operands: not at all, to TF32 (10 bits after the point, ties away from
 * zero), or to bfloat16 (7 bits, ties to even). Products of rounded operands are exact, and sums are float32. In bf16 a
 * block also stores its activations rounded (block.c), and on a GPU the results of its products (block.cu). Products of
 * float64 matrices are not rounded.
 *
 * Each thread has its own precision. An entry reads it once and passes it to its worker threads.
 */
#ifndef ROT_PRECISION_H
#define ROT_PRECISION_H

#include <stdint.h>
#include <string.h>

#include "real.h"

enum { PRECISION_FLOAT32, PRECISION_TF32, PRECISION_BF16, PRECISIONS };

#ifdef __cplusplus
extern "C" {
#endif

/* The precision of calls that the calling thread makes; float32 in a new thread. */
int precision_of_call(void);

/* Sets it, and returns the previous precision. */
int use_precision(int precision);

/* Instructions that multiply bfloat16, slowest first: float32; AVX512-BF16, on pairs; AMX, on tiles. */
enum { BF16_BY_FLOAT32, BF16_BY_PAIRS, BF16_BY_TILES, BF16_WAYS };

/* The instructions in use in all threads, initially BF16_BY_FLOAT32. use_bf16_by returns the previous value. */
int bf16_by(void);
int use_bf16_by(int way);

#ifdef __cplusplus
}
#endif

/* x rounded to TF32; infinities and NaN stay. */
ROT_INLINE float tf32_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u) bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* The bits of x rounded to bfloat16, and the number of such bits. */
ROT_INLINE uint32_t bf16_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
ROT_INLINE float bf16_value(uint32_t bits) {
    float x;
    bits <<= 16;
    memcpy(&x, &bits, sizeof bits);
    return x;
}
ROT_INLINE float bf16_of(float x) { return bf16_value(bf16_bits(x)); }

#endif
