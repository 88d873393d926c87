/* The generator of philox.h as a kernel, for tests and for random numbers in Python. */
#include "philox.h"
#include "kernels.h"

/* out (n,4); counter (n,4), key (n,2): 32-bit words held in int64. Counter i uses lane i modulo the number of lanes.
 */
KERNEL(philox) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t lane = i % PHILOX_LANES;
        philox_lanes c;
        uint32_t words[PHILOX_LANES][4];
        memset(&c, 0, sizeof c);
        for (int k = 0; k < 4; k++) {
            const uint64_t word = (uint32_t)counter[4 * i + k];
            memcpy((uint64_t *)&c.v[k] + lane, &word, sizeof word);
        }
        philox_store(words[0], philox_rounds(c, (uint32_t)key[2 * i], (uint32_t)key[2 * i + 1]));
        for (int k = 0; k < 4; k++) out[4 * i + k] = words[lane][k];
    }
    return ROT_OK;
}
