/* Element types and names of one compiled variant.
 *
 * Each kernel file is compiled once per dtype (ROT_DTYPE: f32, f64; scans also c64, c128) and once per instruction set
 * (ROT_ISA: base, avx2, avx512, or neon; cuda for a GPU; gemm_tile.c also for avx512_bf16, gemm_amx.c for avx512_amx).
 * `real` is the scalar, `lane` the scalar or complex number that a kernel works on, and K(scan_forward) the name in
 * this variant, e.g. scan_forward_f32_avx2.
 *
 * Sizes of arrays have the same letters in all files:
 *   B  sequences of a batch           T  time steps                   D  channels, the model's width
 *   N  state lanes: of a sequence, or of each channel where channels have states of their own
 *   P  planes or channels of a head   L  real lanes of N planes, 2N   H  heads
 *   R  reflections of a mixer         M  rows of a matrix (B*T)       C  classes
 *   S  keys that queries attend to    V  rows of an embedding table
 *   G  matrices of a stack, gates of a cell, or groups of heads
 * Exceptions: L is the window in window.c; S the states of a channel in selective.c; R the Householder steps of a token
 * in delta.c. K(name) is the macro above; the size K is directions, keys, taps, matrices or columns, as a file says.
 * Matrices of a paper keep the paper's letters (A, B, C of the selective scan; P, C, S of window.c). Other sizes have
 * names: directions, taps, columns.
 *
 * All headers compile as C11, as C++17 and as device code: no compound literals, no designated initialisers, no VLAs.
 */
#ifndef ROT_REAL_H
#define ROT_REAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define restrict __restrict /* the same promise in gcc, clang and nvcc */
#endif

/* Device code: compiled by nvcc, or by a C++ compiler for the harness that runs it on the host (cuda/device.h) */
#if defined(__CUDACC__) || (defined(ROT_HOST_DEVICE) && defined(__cplusplus))
#define ROT_DEVICE 1
#else
#define ROT_DEVICE 0
#endif

/* ROT_INLINE: a function for host and device. ROT_ALWAYS_INLINE: the same, inlined whatever its size, for functions
 * that work on registers. */
#ifdef __CUDACC__
#define ROT_INLINE        static __host__ __device__ __forceinline__
#define ROT_ALWAYS_INLINE static __host__ __device__ __forceinline__
#else
#define ROT_INLINE        static inline
#define ROT_ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

#ifndef ROT_DTYPE
#define ROT_DTYPE f32
#endif
#ifndef ROT_ISA
#define ROT_ISA base
#endif

#define ROT_PASTE_(name, dtype, isa) name##_##dtype##_##isa
#define ROT_PASTE(name, dtype, isa)  ROT_PASTE_(name, dtype, isa)
#define K(name)                      ROT_PASTE(name, ROT_DTYPE, ROT_ISA)

#define ROT_IS_f32     1
#define ROT_IS_f64     2
#define ROT_IS_c64     3
#define ROT_IS_c128    4
#define ROT_CAT_(a, b) a##b
#define ROT_CAT(a, b)  ROT_CAT_(a, b)
#define ROT_KIND       ROT_CAT(ROT_IS_, ROT_DTYPE)
#define ROT_COMPLEX    (ROT_KIND == ROT_IS_c64 || ROT_KIND == ROT_IS_c128)
#define ROT_DOUBLE     (ROT_KIND == ROT_IS_f64 || ROT_KIND == ROT_IS_c128)

#if ROT_DOUBLE
typedef double real;
#else
typedef float real;
#endif

/* A complex number is a struct: `_Complex` multiplies by calling __mulsc3, and nvcc compiles a struct. */
typedef struct {
    real re, im;
} cplx;

#if ROT_COMPLEX
typedef cplx lane;
#else
typedef real lane;
#endif

/* Status codes of kernels; door.c raises the matching Python exception, and cuda/module.c that of ROT_DEVICE_FAILED. */
enum {
    ROT_OK = 0,
    ROT_NO_MEMORY = 1,
    ROT_OUT_OF_RANGE = 2,
    ROT_EXHAUSTED = 3,
    ROT_NO_KERNEL = 4,
    ROT_DEVICE_FAILED = 5
};

#endif
