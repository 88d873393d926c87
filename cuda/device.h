/* The parts of CUDA that kernels use: include only this file, with no macros set. Compiled by nvcc, or, with
 * ROT_HOST_DEVICE, as plain C++ for the harness of tests/cuda. The harness runs a kernel's threads on the host in
 * random order, and finds races, wrong barriers and reads of uninitialised memory.
 *
 *   GLOBAL(threads) name(...) { ... }     a kernel for blocks of at most `threads` threads, a power of two
 *   GLOBAL2(threads, least)               the same, with registers for `least` such blocks on a processor; with 1 the
 *                                         compiler does not spill registers to make room for more blocks
 *   shared_memory<type>()                 its dynamic shared memory, one struct; uninitialised
 *   launch(name, grid, threads, bytes of shared memory, arguments...)   (runtime.h)
 *   copy_async, copy_commit, copy_wait<n> copies from global to shared memory
 *
 * and CUDA's names: threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __syncwarp, __shfl_*_sync, __ballot_sync,
 * __ldg, __ldcs, __stcs. Nothing else: no <<<>>>, no __shared__, no atomics on floating-point numbers (sums have one
 * order), no waiting for another block.
 *
 * An entry of the kernel list is defined as on the CPU, KERNEL(scan_forward) { ... }: it runs on the host, launches
 * kernels on the call's stream, and ends with `return runtime_status()`. The division of work depends on the shapes
 * alone.
 */
#ifndef ROT_CUDA_DEVICE_H
#define ROT_CUDA_DEVICE_H

#include "cuts.h"
#include "kernels.h"
#include "magnitude.h"
#include "sizes.h"
#include "steps.h"

#ifdef ROT_HOST_DEVICE
#include "host_device.h"
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define GLOBAL(threads)         static __global__ void __launch_bounds__(threads)
#define GLOBAL2(threads, least) static __global__ void __launch_bounds__(threads, least)
#define ROT_DEVICE_ONLY         static __device__ __forceinline__

template <class T> ROT_DEVICE_ONLY T &shared_memory() {
    extern __shared__ __align__(128) unsigned char rot_shared[];
    return *reinterpret_cast<T *>(rot_shared);
}

/* Copies 4, 8 or 16 bytes to shared memory. The thread sees them after copy_wait; other threads need a barrier too.
 * copy_wait<n> waits for all but the last n groups closed by copy_commit. */
template <class T> ROT_DEVICE_ONLY void copy_async(T *to, const T *from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "cp.async copies 4, 8 or 16 bytes");
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    if (sizeof(T) == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(sizeof(T)) : "memory");
}
ROT_DEVICE_ONLY void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> ROT_DEVICE_ONLY void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

/* x rounded to the 10 bits of TF32, ties away from zero */
ROT_DEVICE_ONLY float to_tf32(float x) {
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

/* Two numbers in bfloat16, the first in the low half; ties to even. */
ROT_DEVICE_ONLY uint32_t to_bf16(float low, float high) {
    uint32_t bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
#endif

#include "runtime.h"

/* ---- lanes in memory: a complex number is read and written at once; keep_lane: a lane that is read again soon ---- */

#if ROT_COMPLEX
#if ROT_DOUBLE
typedef double2 lane_pair;
#else
typedef float2 lane_pair;
#endif
ROT_DEVICE_ONLY lane read_lane(const lane *p) {
    const lane_pair v = *(const lane_pair *)p;
    const lane x = {v.x, v.y};
    return x;
}
ROT_DEVICE_ONLY void write_lane(lane *p, lane x) {
    lane_pair v;
    v.x = x.re, v.y = x.im;
    __stcs((lane_pair *)p, v);
}
ROT_DEVICE_ONLY void keep_lane(lane *p, lane x) {
    lane_pair v;
    v.x = x.re, v.y = x.im;
    *(lane_pair *)p = v;
}
ROT_DEVICE_ONLY lane no_lane() {
    const lane zero = {0, 0};
    return zero;
}
ROT_DEVICE_ONLY lane lane_one() {
    const lane one = {1, 0};
    return one;
}
ROT_DEVICE_ONLY bool is_zero(lane x) { return x.re == 0 && x.im == 0; }
#else
ROT_DEVICE_ONLY lane read_lane(const lane *p) { return *p; }
ROT_DEVICE_ONLY void write_lane(lane *p, lane x) { __stcs(p, x); }
ROT_DEVICE_ONLY void keep_lane(lane *p, lane x) { *p = x; }
ROT_DEVICE_ONLY lane no_lane() { return 0; }
ROT_DEVICE_ONLY lane lane_one() { return 1; }
ROT_DEVICE_ONLY bool is_zero(lane x) { return x == 0; }
#endif
/* A number of an array; zero if the array is NULL */
ROT_DEVICE_ONLY lane lane_or_zero(const lane *p, int64_t i) { return p ? read_lane(p + i) : no_lane(); }

/* ---- products ---- */

/* How products of this dtype round their operands in this call (precision.h), and x as an operand. */
static inline int precision_of_products(void) { return ROT_DOUBLE ? PRECISION_FLOAT32 : precision_of_call(); }
ROT_DEVICE_ONLY real operand_of(real x, int precision) {
    if (precision == PRECISION_BF16) return (real)bf16_value(to_bf16((float)x, 0));
    if (precision == PRECISION_TF32) return (real)to_tf32((float)x);
    return x;
}

/* c = a b + keep c for matrices of this dtype or bfloat16, c without gaps between its rows. An empty sum, which cuBLAS
 * does not accept, is zero. */
static inline void multiply_matrices(runtime_product p) {
    p.wide = ROT_DOUBLE;
    if (p.inner)
        runtime_multiply(&p);
    else if (!p.keep)
        runtime_zero(p.c, p.count * p.rows * p.columns * (int64_t)(p.bf16_result ? sizeof(uint16_t) : sizeof(real)));
}

/* ---- loops and sums ---- */

/* use(t, load(t)) for t in 0..steps-1, with U to 2 U loads in flight: a thread that walks through time alone should not
 * wait for memory at each step. */
template <int U, class Load, class Use> ROT_DEVICE_ONLY void pipelined(int64_t steps, Load load, Use use) {
    decltype(load((int64_t)0)) next[U];
    int64_t t = 0;
    if (steps >= U) {
#pragma unroll
        for (int u = 0; u < U; u++) next[u] = load(u);
        for (; t + 2 * U <= steps; t += U) { /* whole groups, without conditions */
            decltype(load((int64_t)0)) here[U];
#pragma unroll
            for (int u = 0; u < U; u++) here[u] = next[u];
#pragma unroll
            for (int u = 0; u < U; u++) next[u] = load(t + U + u);
#pragma unroll
            for (int u = 0; u < U; u++) use(t + u, here[u]);
        }
#pragma unroll
        for (int u = 0; u < U; u++) use(t + u, next[u]);
        t += U;
    }
#pragma unroll
    for (int u = 0; u < U; u++)
        if (t + u < steps) next[u] = load(t + u);
#pragma unroll
    for (int u = 0; u < U; u++)
        if (t + u < steps) use(t + u, next[u]);
}

enum { EACH_THREADS = 256, EACH_BLOCKS = 8192 };

template <class F> GLOBAL(EACH_THREADS) each_kernel(int64_t n, F f) {
    const int64_t stride = (int64_t)gridDim.x * EACH_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * EACH_THREADS + threadIdx.x; i < n; i += stride) f(i);
}

/* f(i) for i in 0..n-1, each by some thread:  each(n, [=] __device__(int64_t i) { y[i] = x[i]; }) */
template <class F> static void each(int64_t n, F f) {
    launch(each_kernel<F>, least(pieces_of(n, EACH_THREADS), EACH_BLOCKS), EACH_THREADS, 0, n, f);
}

/* The sum over the warp's lanes, in every lane; pairwise, in one order. All lanes must call it. */
template <class T> ROT_DEVICE_ONLY T warp_sum(T x) {
    for (int d = 16; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

/* The largest of the warp's lanes, in every lane. All lanes must call it. */
template <class T> ROT_DEVICE_ONLY T warp_largest(T x) {
    for (int d = 16; d; d /= 2) {
        const T other = __shfl_xor_sync(~0u, x, d);
        x = x > other ? x : other;
    }
    return x;
}

/* The mean of a row, in every lane; `sum` is a lane's part. In double if the sum overflows. All lanes must call it. */
ROT_DEVICE_ONLY real row_mean(real sum, const real *x, int64_t n) {
    const real mean = warp_sum(sum) / (real)n;
    if (isfinite(mean)) return mean;
    double wide = 0;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32) wide += x[i];
    return (real)(warp_sum(wide) / (double)n);
}

/* 1 / sqrt(mean (x - center)^2 + eps) of a row, in every lane, like row_rstd in csrc/kernels/rows.h; `squares` is a
 * lane's part of the sum of squares. In double, of numbers near 1, if this sum is out of range. All lanes must call it.
 */
ROT_DEVICE_ONLY real row_rstd(real squares, const real *x, real center, int64_t n, real eps) {
    const real square = warp_sum(squares) / (real)n;
    if (squares_in_range(square, eps)) return (real)(1 / sqrt((double)(square + eps)));
    magnitude largest = magnitude_of(ROT_SQRT(eps));
    for (int64_t i = threadIdx.x % 32; i < n; i += 32) largest = larger(largest, magnitude_of(x[i] - center));
    const double power = (double)power_to_one(warp_largest(largest));
    double sum = 0;
    for (int64_t i = threadIdx.x % 32; i < n; i += 32) {
        const double c = power * ((double)x[i] - center);
        sum += c * c;
    }
    return (real)(power / sqrt(warp_sum(sum) / (double)n + power * eps * power));
}

/* The sum over a block of `threads` threads, a multiple of 32, in every thread. `scratch` (32), shared, is free again
 * after the next barrier. All threads must call it. */
template <class T> ROT_DEVICE_ONLY T block_sum(T x, T *scratch, int threads) {
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
    __syncthreads();
    const int lane = (int)(threadIdx.x % 32);
    return warp_sum(lane < threads / 32 ? scratch[lane] : (T)0);
}

#endif
