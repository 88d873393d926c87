/* Philox-4x32-10, a counter-based random number generator, for host and device.
 *
 * J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011: a keyed
 * bijection of 128-bit counters whose output for counters 0, 1, 2, ... is a random stream. There is no state: the
 * number at any place of any stream is computed where it is needed, by any thread, on any device.
 */
#ifndef ROT_PHILOX_H
#define ROT_PHILOX_H

#include "steps.h"

typedef struct {
    uint32_t v[4];
} philox4;

/* The bijection itself: ten rounds of two 32x32 -> 64 bit products. */
ROT_INLINE philox4 philox_block(philox4 counter, uint32_t key0, uint32_t key1) {
    philox4 c = counter;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c.v[0], p1 = (uint64_t)0xCD9E8D57u * c.v[2];
        const philox4 next = {
            {(uint32_t)(p1 >> 32) ^ c.v[1] ^ key0, (uint32_t)p1, (uint32_t)(p0 >> 32) ^ c.v[3] ^ key1, (uint32_t)p0}};
        c = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

/* Block `index` (four 32-bit numbers) of stream `stream` under the key `seed`. */
ROT_INLINE philox4 philox_at(uint64_t seed, uint64_t stream, uint64_t index) {
    const philox4 counter = {{(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)}};
    return philox_block(counter, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/* Uniform on the 2^24 multiples of 2^-24 in [0, 1): exact in float and double alike. */
ROT_INLINE real philox_uniform(uint32_t x) { return (real)(x >> 8) * (real)0x1p-24; }

/* Uniform on {0, ..., n-1}; each probability is off by less than 2^-32. */
ROT_INLINE uint32_t philox_below(uint32_t x, uint32_t n) { return (uint32_t)(((uint64_t)x * n) >> 32); }

#endif
