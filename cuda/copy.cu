/* A plain copy, y = x: the benchmarks' baseline for memory bandwidth. */
#include "device.h"

KERNEL(copy) {
    each(n, [=] __device__(int64_t i) { y[i] = x[i]; });
    return runtime_status();
}
