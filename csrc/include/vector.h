/* Vectors as long as a register of this instruction set, and the steps of number_steps.h on them. On a device a vector
 * has one number, and each thread works on its own. */
#ifndef ROT_VECTOR_H
#define ROT_VECTOR_H

#include <string.h>
#if defined(__AVX2__) && !ROT_DEVICE
#include <immintrin.h>
#endif

#include "steps.h"

#if ROT_DEVICE
enum { VECTOR_BYTES = sizeof(real) };
#elif defined(__AVX512F__)
enum { VECTOR_BYTES = 64 };
#elif defined(__AVX2__)
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif
enum { LANES = VECTOR_BYTES / sizeof(real) };

/* An unaligned vector: a load through a pointer to it takes any LANES consecutive numbers of an array. */
#if ROT_DEVICE
typedef real vec;
#else
typedef real vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias));
#endif
typedef struct {
    vec re, im;
} cplx_vec;

ROT_ALWAYS_INLINE vec load(const real *x) { return *(const vec *)x; }
ROT_ALWAYS_INLINE void store(real *x, vec v) { *(vec *)x = v; }

/* A store to an aligned address that bypasses the caches, where the processor has such a store. Other threads see it
 * after end_of_stores_past_caches. */
#if !defined(__AVX2__)
ROT_ALWAYS_INLINE void store_past_caches(real *x, vec v) { store(x, v); }
ROT_ALWAYS_INLINE void end_of_stores_past_caches(void) {}
#else
#if defined(__AVX512F__)
ROT_ALWAYS_INLINE void store_past_caches(real *x, vec v) { _mm512_stream_si512((__m512i *)x, (__m512i)v); }
#else
ROT_ALWAYS_INLINE void store_past_caches(real *x, vec v) { _mm256_stream_si256((__m256i *)x, (__m256i)v); }
#endif
ROT_ALWAYS_INLINE void end_of_stores_past_caches(void) { _mm_sfence(); }
#endif

/* Like the functions in vmath.h. */
#if ROT_DEVICE
ROT_ALWAYS_INLINE vec clamp_vec(vec x, real low, real high) { return clamp(x, low, high); }
ROT_ALWAYS_INLINE vec power_of_last_bits_vec(vec x) { return power_of_last_bits(x); }
#else
typedef real_bits bits_vec __attribute__((vector_size(VECTOR_BYTES)));

/* where ? x : y, `where` a comparison of vectors */
#define SELECT(where, x, y) ((vec)(((bits_vec)(where) & (bits_vec)(x)) | (~(bits_vec)(where) & (bits_vec)(y))))

#if defined(__AVX512F__)
#define INTRINSIC(name) _mm512_##name
#elif defined(__AVX2__)
#define INTRINSIC(name) _mm256_##name
#endif

ROT_ALWAYS_INLINE vec clamp_vec(vec x, real low, real high) {
    const vec zero = {0}, lows = zero + low, highs = zero + high;
#if defined(__AVX2__) && ROT_DOUBLE
    return INTRINSIC(min_pd)(highs, INTRINSIC(max_pd)(lows, x)); /* the second operand if one is NaN */
#elif defined(__AVX2__)
    return INTRINSIC(min_ps)(highs, INTRINSIC(max_ps)(lows, x));
#else
    const vec least = SELECT(x < lows, lows, x);
    return SELECT(least > highs, highs, least);
#endif
}
ROT_ALWAYS_INLINE vec power_of_last_bits_vec(vec x) { return (vec)((bits_vec)x << ROT_MANTISSA); }
#endif

/* The sum of the lanes, pairwise. */
static inline real lane_total(vec lanes) {
    real sum[LANES];
    memcpy(sum, &lanes, sizeof sum);
    for (int width = LANES / 2; width; width /= 2)
        for (int k = 0; k < width; k++) sum[k] += sum[k + width];
    return sum[0];
}

#define number   vec
#define OF(name) name##_vec
#include "number_steps.h"
#undef number
#undef OF

#endif
