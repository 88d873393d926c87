/* The random numbers of dropout masks, for host and device. */
#ifndef ROT_DROPOUT_H
#define ROT_DROPOUT_H

#include "philox.h"

/* Index of a call's sequence b in the whole batch; places (B) or NULL. */
ROT_INLINE int64_t batch_place(const int64_t *places, int64_t b) { return places ? places[b] : b; }

/* A dropout mask: the key of its random numbers, and the factor of the kept elements. */
typedef struct {
    uint64_t seed, stream;
    uint32_t threshold;
    real scale;
} dropout_key;

ROT_INLINE dropout_key dropout_key_of(double rate, int64_t seed, int64_t step, int64_t site) {
    const double threshold = rate * 0x1p32;
    const dropout_key key = {(uint64_t)seed, (uint64_t)site << 32 | (uint64_t)step,
                             threshold < 0x1p32 - 1 ? (uint32_t)threshold : UINT32_MAX, (real)(1 / (1 - rate))};
    return key;
}

/* words (PHILOX_LANES, 4): draws for elements i, i+1, ... of the sequence at `place` of its batch, 0 <= place < 2^32; i
 * is a multiple of 4, at most 2^34. */
ROT_INLINE void dropout_draw(uint32_t *words, dropout_key key, int64_t place, int64_t i) {
    philox_at(words, key.seed, key.stream, (uint64_t)place << 32 | (uint64_t)(i / 4));
}

/* The factor of the element. */
ROT_INLINE real dropout_factor(uint32_t word, dropout_key key) { return word >= key.threshold ? key.scale : 0; }

#endif
