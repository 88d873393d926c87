/* A plain copy, y = x with ordinary stores: the benchmarks' baseline for memory bandwidth. */
#include <string.h>

#include "kernels.h"

/* y (n) = x (n), one contiguous part per thread. The empty asm keeps the compiler from calling memcpy, which would use
 * streaming stores for large n. */
KERNEL(copy) {
    enum { LINE = 256 / sizeof(real) };
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n / LINE; i++) {
        memcpy(y + i * LINE, x + i * LINE, LINE * sizeof(real));
        __asm__ volatile("" ::: "memory");
    }
    memcpy(y + n / LINE * LINE, x + n / LINE * LINE, (size_t)(n % LINE) * sizeof(real));
    return ROT_OK;
}
