/* Host functions for entries while they launch kernels: the call's stream, memory, matrix products, and the first
 * failure. After a failure, launches of the call do nothing.
 *
 * runtime.cu implements them for CUDA, tests/cuda/host_runtime.cpp for the harness.
 */
#ifndef ROT_CUDA_RUNTIME_H
#define ROT_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "precision.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns `bytes` of device memory, valid until the call ends, or NULL with an exception set. */
typedef void *(*runtime_allocate)(void *context, size_t bytes);

/* Begins a call of this thread on a stream, on the current device, in a precision (precision.h). runtime_status is the
 * call's status so far, and runtime_precision its precision. */
void runtime_begin(void *stream, int precision, runtime_allocate allocate, void *context);
int runtime_status(void);
int runtime_precision(void);

/* A number in device memory that is added to the step in the keys of random numbers, or NULL. With it, a recorded
 * sequence of launches draws new random numbers each time it runs. */
void runtime_use_counter(const int64_t *counter);
const int64_t *runtime_counter(void);

/* The reason why a call failed with ROT_DEVICE_FAILED. */
const char *runtime_error(void);

/* Number of the current device; -1 with a reason in runtime_error if there is none. */
int runtime_device(void);

/* Whether the current device can run the kernels; if not, runtime_error has the reason: a driver older than the CUDA
 * that they were built by, or a GPU that they were not built for. */
bool runtime_runs(void);

/* The path of the matrix library; call it before the first product. */
void runtime_use_blas(const char *path);

/* Memory of the call: `bytes`, uninitialised, aligned to 256 bytes; NULL if memory is exhausted; the call has then
 * failed. */
void *runtime_memory(int64_t bytes);

/* Sets memory to zero, and copies it on the device, in the order of the stream. */
void runtime_zero(void *memory, int64_t bytes);
void runtime_copy(void *to, const void *from, int64_t bytes);

/* c (rows, columns) = a b + keep c, for `count` matrices, a_apart, b_apart and c_apart numbers apart; all row-major. a
 * is (rows, inner), or (inner, rows) if a_turned; b (inner, columns), or (columns, inner). lda, ldb, ldc: distances
 * between stored rows. `wide`: double. `bf16`: a and b are bfloat16, and c float, or bfloat16 if `bf16_result`, rounded
 * from a sum in float. Otherwise float, rounded to the precision. */
typedef struct {
    const void *a, *b;
    void *c;
    int64_t rows, columns, inner, lda, ldb, ldc;
    bool a_turned, b_turned, keep, wide, bf16, bf16_result;
    int64_t count, a_apart, b_apart, c_apart;
} runtime_product;
void runtime_multiply(const runtime_product *product);

#ifdef __cplusplus
}

/* Numbers of memory of the call: an array of n*m*... items of a type, or NULL. */
template <class T, class... N> static T *workspace_of(N... sizes) {
    const int64_t factors[] = {(int64_t)sizeof(T), (int64_t)sizes...};
    int64_t bytes = 1;
    for (const int64_t factor : factors)
        if (factor < 0 || __builtin_mul_overflow(bytes, factor, &bytes)) return (T *)runtime_memory(-1);
    return (T *)runtime_memory(bytes);
}

enum { MOST_SHARED = 99 * 1024 }; /* bytes of shared memory for a block, on every GPU from compute capability 8.0 on */

/* launch(kernel, blocks or dim3, threads, bytes of shared memory, arguments...): nothing if there are no blocks. */
#ifdef ROT_HOST_DEVICE
#include "host_launch.h"
#else
#include <cuda_runtime.h>
bool runtime_can_launch(int64_t blocks);
void runtime_launched(cudaError_t error, const char *what);
cudaStream_t runtime_stream(void);

template <class... P, class... A>
static void launch_grid(void (*kernel)(P...), dim3 grid, int64_t blocks, int threads, size_t shared, A... args) {
    if (!runtime_can_launch(blocks)) return;
    if (shared > 48 * 1024) { /* always the same limit: a graph may hold launches with more than the last one's */
        const cudaError_t set = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MOST_SHARED);
        if (set != cudaSuccess) return runtime_launched(set, "cudaFuncSetAttribute");
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = dim3((unsigned)threads), config.dynamicSmemBytes = shared;
    config.stream = runtime_stream();
    runtime_launched(cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...), "cudaLaunchKernelEx");
}
#endif

template <class... P, class... A>
static void launch(void (*kernel)(P...), int64_t blocks, int threads, size_t shared, A... args) {
    launch_grid(kernel, dim3((unsigned)blocks), blocks, threads, shared, args...);
}
#endif

#endif
