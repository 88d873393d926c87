/* The generator of philox.h as a kernel (csrc/kernels/philox.c). */
#include "device.h"
#include "philox.h"

KERNEL(philox) {
    each(n, [=] __device__(int64_t i) {
        philox_lanes c;
        uint32_t words[4];
        for (int k = 0; k < 4; k++) c.v[k] = (uint32_t)counter[4 * i + k];
        philox_store(words, philox_rounds(c, (uint32_t)key[2 * i], (uint32_t)key[2 * i + 1]));
        for (int k = 0; k < 4; k++) out[4 * i + k] = words[k];
    });
    return runtime_status();
}
