/* The generator of philox.h by itself, for whoever checks it or needs its numbers in Python. */
#include "philox.h"
#include "kernels.h"

/* out (n,4); counter (n,4), key (n,2): 32-bit words held in int64. */
int K(philox)(int64_t *restrict out, const int64_t *restrict counter, const int64_t *restrict key, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        philox4 c;
        for (int j = 0; j < 4; j++) c.v[j] = (uint32_t)counter[4 * i + j];
        c = philox_block(c, (uint32_t)key[2 * i], (uint32_t)key[2 * i + 1]);
        for (int j = 0; j < 4; j++) out[4 * i + j] = c.v[j];
    }
    return ROT_OK;
}
