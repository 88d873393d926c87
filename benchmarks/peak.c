/* Multiply-adds of float32 in registers, as fast as a core makes them: the peak that benchmarks/peak.py measures. */
#include <stdint.h>

#ifdef __AVX512F__
typedef float vec __attribute__((vector_size(64)));
#else
typedef float vec __attribute__((vector_size(32)));
#endif
enum { CHAINS = 12 }; /* sums that do not wait for each other, more than a multiply-add takes cycles, times two units */

/* Returns the number of multiply-adds in `rounds` rounds. The asm hides from the compiler that the factors are
 * constant; the sums stay in registers. */
int64_t multiply_adds(int64_t rounds, float *out) {
    vec sums[CHAINS], a = {0}, b = {0};
    a += 0.999f, b += 0.001f;
    for (int c = 0; c < CHAINS; c++) sums[c] = b * (float)c;
    for (int64_t r = 0; r < rounds; r++) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++) sums[c] = sums[c] * a + b;
#ifdef __x86_64__
        __asm__ volatile("" : "+x"(a), "+x"(b));
#endif
    }
    for (int c = 1; c < CHAINS; c++) sums[0] += sums[c];
    *out = sums[0][0];
    return rounds * CHAINS * (int64_t)(sizeof(vec) / sizeof(float));
}
