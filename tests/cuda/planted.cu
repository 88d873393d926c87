/* Kernels of which is known what they read and write, for the test of what counts it (host_traffic.h). Each takes n
 * numbers, in blocks of THREADS. */
#include "device.h"

namespace {

enum { THREADS = 64 };

/* y = x */
GLOBAL(THREADS) plain(float *y, const float *x) {
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    y[i] = x[i];
}

/* Every thread reads its number, and that of the block's first thread; by itself, and through shared memory. */
GLOBAL(THREADS) repeated(float *y, const float *x) {
    float *const shared = &shared_memory<float>();
    const int first = (int)blockIdx.x * THREADS, me = (int)threadIdx.x;
    shared[me] = x[first + me];
    __syncthreads();
    y[first + me] = warp_sum(shared[me]) + x[first];
}

/* Every fourth number */
GLOBAL(THREADS) strided(float *y, const float *x) {
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i % 4 == 0) y[i] = x[i];
}

/* y += x by four numbers, x by asynchronous copies */
GLOBAL(THREADS) copied(float *y, const float *x) {
    float4 *const shared = &shared_memory<float4>();
    const int i = (int)(blockIdx.x * THREADS + threadIdx.x), me = (int)threadIdx.x;
    if (me < THREADS / 4) copy_async(&shared[me], (const float4 *)x + blockIdx.x * (THREADS / 4) + me);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    y[i] += ((const float *)shared)[me];
}

typedef void (*kernel)(float *, const float *);
const kernel KERNELS[] = {plain, repeated, strided, copied};

} // namespace

extern "C" __attribute__((visibility("default"))) int planted(int which, float *y, const float *x, int64_t n) {
    runtime_begin(NULL, PRECISION_FLOAT32, NULL, NULL);
    launch(KERNELS[which], n / THREADS, THREADS, THREADS * sizeof(float), y, x);
    return runtime_status();
}
