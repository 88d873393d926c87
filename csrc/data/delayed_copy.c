/* Patterns of random bits to repeat after a delay: `length` steps of pattern, `delay` empty steps, the cue in its own
 * channel, and `length` steps for the answer. */
#include "kernels.h"
#include "philox.h"

enum { SERIAL = 1 << 14 };

/* inputs (n,T,K+1), labels (n,T,K), T = 2 length + delay + 1, K <= 32: a row's pattern comes from its stream, one
 * word per step. Inputs are zero except for the pattern and the cue; labels are -1 before the answer. */
KERNEL(delayed_copy) {
    const int64_t cue = length + delay, T = cue + 1 + length;
#pragma omp parallel for schedule(static) if (n * T * bits > SERIAL)
    for (int64_t i = 0; i < n; i++) {
        philox_stream random = {.seed = (uint64_t)seed, .number = (uint64_t)stream[i]};
        uint8_t *const x = inputs + i * T * (bits + 1);
        int64_t *const y = labels + i * T * bits;
        for (int64_t j = 0; j < T * (bits + 1); j++) x[j] = 0;
        for (int64_t j = 0; j < (cue + 1) * bits; j++) y[j] = -1;
        x[cue * (bits + 1) + bits] = 1;
        for (int64_t t = 0; t < length; t++) {
            const uint32_t word = philox_draw(&random);
            for (int64_t k = 0; k < bits; k++) {
                const uint8_t bit = (uint8_t)(word >> k & 1);
                x[t * (bits + 1) + k] = bit;
                y[(cue + 1 + t) * bits + k] = bit;
            }
        }
    }
    return ROT_OK;
}
