/* Philox-4x32-10, a counter-based random number generator, for host and device.
 *
 * J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011: a keyed
 * bijection of 128-bit counters whose output for counters 0, 1, 2, ... is a random stream. There is no state: any
 * thread, on any device, can compute the number at any index of any stream.
 */
#ifndef ROT_PHILOX_H
#define ROT_PHILOX_H

#include <assert.h>
#include <string.h>

#include "real.h"
#if defined(__aarch64__) && !ROT_DEVICE
#include <arm_neon.h>
#endif

/* As many counters as a register has 64-bit lanes. Word k of each counter is in the low half of a lane of v[k]; the
 * high halves are arbitrary. Multiplying the low halves is one instruction, which clang finds and gcc does not (gcc 12
 * uses three, and takes twice the time). On a device there is one lane per thread.
 */
#if ROT_DEVICE
typedef uint64_t philox_word;
#else
#if defined(__AVX512F__)
enum { PHILOX_BYTES = 64 };
#elif defined(__AVX2__)
enum { PHILOX_BYTES = 32 };
#else
enum { PHILOX_BYTES = 16 };
#endif
typedef uint64_t philox_word __attribute__((vector_size(PHILOX_BYTES), may_alias));
#endif
enum { PHILOX_LANES = sizeof(philox_word) / sizeof(uint64_t) };

typedef struct {
    philox_word v[4];
} philox_lanes;

/* Builtins where the compiler has them: including the header of intrinsics takes longer than compiling a kernel. */
#if defined(__has_builtin) && !ROT_DEVICE
#define ROT_HAS_BUILTIN(name) __has_builtin(name)
#else
#define ROT_HAS_BUILTIN(name) 0
#endif

ROT_INLINE philox_word philox_product(philox_word x, uint32_t factor) {
#if defined(__AVX512F__) && ROT_HAS_BUILTIN(__builtin_ia32_pmuludq512_mask)
    typedef int halves __attribute__((vector_size(PHILOX_BYTES)));
    typedef long long product __attribute__((vector_size(PHILOX_BYTES)));
    const philox_word factors = (x ^ x) + factor;
    return (philox_word)__builtin_ia32_pmuludq512_mask((halves)x, (halves)factors, (product)factors, 0xFF);
#elif defined(__AVX2__) && !defined(__AVX512F__) && ROT_HAS_BUILTIN(__builtin_ia32_pmuludq256)
    typedef int halves __attribute__((vector_size(PHILOX_BYTES)));
    return (philox_word)__builtin_ia32_pmuludq256((halves)x, (halves)((x ^ x) + factor));
#elif defined(__SSE2__) && !defined(__AVX2__) && ROT_HAS_BUILTIN(__builtin_ia32_pmuludq128)
    typedef int halves __attribute__((vector_size(PHILOX_BYTES)));
    return (philox_word)__builtin_ia32_pmuludq128((halves)x, (halves)((x ^ x) + factor));
#elif defined(__aarch64__) && !ROT_DEVICE
    return vmull_u32(vmovn_u64(x), vdup_n_u32(factor));
#else
    return (x & 0xFFFFFFFFu) * factor;
#endif
}

/* The bijection itself: ten rounds of two 32x32 -> 64 bit products. */
ROT_INLINE philox_lanes philox_rounds(philox_lanes c, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; round++) {
        const philox_word p0 = philox_product(c.v[0], 0xD2511F53u), p1 = philox_product(c.v[2], 0xCD9E8D57u);
        const philox_lanes next = {{(p1 >> 32) ^ c.v[1] ^ key0, p1, (p0 >> 32) ^ c.v[3] ^ key1, p0}};
        c = next;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return c;
}

/* words (PHILOX_LANES, 4): the words of each counter, written in pairs as the halves of 64 bits. */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the low half of 64 bits comes first");
ROT_INLINE void philox_store(uint32_t *words, philox_lanes c) {
    const philox_word first = (c.v[0] & 0xFFFFFFFFu) | c.v[1] << 32, second = (c.v[2] & 0xFFFFFFFFu) | c.v[3] << 32;
    uint64_t firsts[PHILOX_LANES], seconds[PHILOX_LANES], pairs[PHILOX_LANES][2];
    memcpy(firsts, &first, sizeof firsts);
    memcpy(seconds, &second, sizeof seconds);
    for (int lane = 0; lane < PHILOX_LANES; lane++) {
        pairs[lane][0] = firsts[lane];
        pairs[lane][1] = seconds[lane];
    }
    memcpy(words, pairs, sizeof pairs);
}

/* words (PHILOX_LANES, 4): blocks `index`, `index` + 1, ... of stream `stream` with the key `seed`. */
ROT_INLINE void philox_at(uint32_t *words, uint64_t seed, uint64_t stream, uint64_t index) {
    static const uint64_t LANES[] = {0, 1, 2, 3, 4, 5, 6, 7};
    philox_word first;
    memcpy(&first, LANES, sizeof first);
    first += index;
    const philox_word none = first ^ first;
    const philox_lanes counters = {{first, first >> 32, none | (uint32_t)stream, none | stream >> 32}};
    philox_store(words, philox_rounds(counters, (uint32_t)seed, (uint32_t)(seed >> 32)));
}

/* Draws one word after another, from blocks 0, 1, ... of stream `number` with the key `seed`. Initialise with
 * {.seed, .number}.
 */
enum { PHILOX_WORDS = 4 * PHILOX_LANES };

typedef struct {
    uint64_t seed, number, drawn;
    uint32_t words[PHILOX_WORDS]; /* the block drawn last */
} philox_stream;

ROT_INLINE uint32_t philox_draw(philox_stream *s) {
    if (s->drawn % PHILOX_WORDS == 0) philox_at(s->words, s->seed, s->number, s->drawn / 4);
    return s->words[s->drawn++ % PHILOX_WORDS];
}

/* Uniform on the 2^24 multiples of 2^-24 in [0, 1): exact in float and double alike. */
ROT_INLINE real philox_uniform(uint32_t x) { return (real)(x >> 8) * (real)0x1p-24; }

/* Uniform on {0, ..., n-1}; each probability is off by less than 2^-32. */
ROT_INLINE uint32_t philox_below(uint32_t x, uint32_t n) { return (uint32_t)(((uint64_t)x * n) >> 32); }

#endif
