/* Dropout's masks on a GPU (dropout.h). The number at runtime_counter, if it is set, is added to the step of the
 * key. */
#ifndef ROT_CUDA_MASKS_H
#define ROT_CUDA_MASKS_H

#include "device.h"
#include "dropout.h"

namespace { /* the size differs between dtypes */
struct mask_key {
    dropout_key key;
    const int64_t *counter;
};
}

static inline mask_key mask_key_of(double rate, int64_t seed, int64_t step, int64_t site) {
    const mask_key mask = {dropout_key_of(rate, seed, step, site), runtime_counter()};
    return mask;
}

/* Like dropout_draw. */
ROT_DEVICE_ONLY void draw_words(uint32_t *words, mask_key mask, int64_t place, int64_t i) {
    if (mask.counter) mask.key.stream += (uint64_t)*mask.counter;
    dropout_draw(words, mask.key, place, i);
}

ROT_DEVICE_ONLY real mask_factor(uint32_t word, mask_key mask) { return dropout_factor(word, mask.key); }

#endif
