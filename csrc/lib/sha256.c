#include "sha256.h"

#include <stdbool.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#endif

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotated(uint32_t x, int by) { return x >> by | x << (32 - by); }

static void add_block(uint32_t state[8], const uint8_t *block) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++) {
        const uint8_t *const at = block + 4 * i;
        w[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[i - 7] +
               (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        const uint32_t one = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) + choice + K[i] + w[i];
        const uint32_t two = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) + majority;
        s[7] = s[6], s[6] = s[5], s[5] = s[4], s[4] = s[3] + one; /* in registers, unlike memmove */
        s[3] = s[2], s[2] = s[1], s[1] = s[0], s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

static void add_blocks(uint32_t state[8], const uint8_t *from, size_t blocks) {
    for (; blocks; blocks--, from += 64) add_block(state, from);
}

#ifdef __x86_64__
static bool has_instructions(void) {
    unsigned a, b, c, d;
    const bool sse = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSSE3) && (c & bit_SSE4_1);
    return sse && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29);
}

/* The same by the processor's instructions for SHA, two rounds at a time. They need the state as A B E F and
 * C D G H. */
__attribute__((target("sha,ssse3,sse4.1"))) static void add_blocks_fast(uint32_t state[8], const uint8_t *from,
                                                                        size_t blocks) {
    const __m128i order = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
    const int *const s = (const int *)state;
    __m128i abef = _mm_set_epi32(s[0], s[1], s[4], s[5]), cdgh = _mm_set_epi32(s[2], s[3], s[6], s[7]);
    for (; blocks; blocks--, from += 64) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];
        for (int i = 0; i < 16; i++) {
            __m128i *const next = w + i % 4;
            if (i < 4) {
                *next = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(from + 16 * i)), order);
            } else {
                const __m128i last = w[(i + 3) % 4], middle = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
                const __m128i sum = _mm_add_epi32(_mm_sha256msg1_epu32(*next, w[(i + 1) % 4]), middle);
                *next = _mm_sha256msg2_epu32(sum, last);
            }
            const __m128i wk = _mm_add_epi32(*next, _mm_loadu_si128((const __m128i *)(K + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, wk);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(wk, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    uint32_t first[4], second[4]; /* F E B A, H G D C */
    _mm_storeu_si128((__m128i *)first, abef);
    _mm_storeu_si128((__m128i *)second, cdgh);
    for (int i = 0; i < 2; i++) {
        state[i] = first[3 - i], state[4 + i] = first[1 - i];
        state[2 + i] = second[3 - i], state[6 + i] = second[1 - i];
    }
}
#endif

void sha256_start(sha256 *s) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->state, start, sizeof start);
    s->count = 0;
    s->add_blocks = add_blocks;
#ifdef __x86_64__
    if (has_instructions()) s->add_blocks = add_blocks_fast;
#endif
}

void sha256_add(sha256 *s, const void *bytes, size_t count) {
    const uint8_t *from = bytes;
    while (count) {
        const size_t filled = s->count % 64;
        if (!filled && count >= 64) {
            const size_t whole = count / 64 * 64;
            s->add_blocks(s->state, from, whole / 64);
            s->count += whole, from += whole, count -= whole;
            continue;
        }
        const size_t room = 64 - filled, n = count < room ? count : room;
        memcpy(s->block + filled, from, n);
        s->count += n, from += n, count -= n;
        if (n == room) s->add_blocks(s->state, s->block, 1);
    }
}

void sha256_end(sha256 *s, uint8_t digest[SHA256_BYTES]) {
    static const uint8_t padding[64] = {0x80};
    const uint64_t bits = s->count * 8;
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(s, padding, 1 + (119 - s->count % 64) % 64);
    sha256_add(s, length, sizeof length);
    for (int i = 0; i < SHA256_BYTES; i++) digest[i] = (uint8_t)(s->state[i / 4] >> (24 - 8 * (i % 4)));
}
