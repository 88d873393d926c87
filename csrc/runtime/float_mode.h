/* The processor's mode of arithmetic: kernels run with gradual underflow and rounding to nearest, whatever a library
 * set in the calling thread (-ffast-math does at load, torch.set_flush_denormal on request). Otherwise results would
 * depend on which thread computes them.
 */
#ifndef ROT_FLOAT_MODE_H
#define ROT_FLOAT_MODE_H

#include <stdint.h>

typedef uint64_t float_mode;

#if defined(__x86_64__) || defined(__SSE2__)
enum {
    FLOAT_MODE_BITS = 0xE040,   /* MXCSR: flush to zero, rounding, denormals are zero */
    FLOAT_MODE_FLUSH = 0x8040,  /* subnormal numbers are zero: for streams of the C library */
    FLOAT_MODE_MASKED = 0x1F80, /* no exception raises a signal */
    FLOAT_MODE_TRAPS = 0
};
static inline float_mode float_mode_now(void) { return __builtin_ia32_stmxcsr(); }
static inline void float_mode_set(float_mode mode) { __builtin_ia32_ldmxcsr((uint32_t)mode); }
#elif defined(__aarch64__)
enum {
    FLOAT_MODE_BITS = 0x1C80000,  /* FPCR: flush to zero, rounding, flush to zero of half precision */
    FLOAT_MODE_FLUSH = 0x1000000, /* subnormal numbers are zero */
    FLOAT_MODE_MASKED = 0,
    FLOAT_MODE_TRAPS = 0x9F00 /* exceptions raise signals, on processors that can */
};
static inline float_mode float_mode_now(void) {
    float_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void float_mode_set(float_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
enum { FLOAT_MODE_BITS = 0, FLOAT_MODE_FLUSH = 0, FLOAT_MODE_MASKED = 0, FLOAT_MODE_TRAPS = 0 };
static inline float_mode float_mode_now(void) { return 0; }
static inline void float_mode_set(float_mode mode) { (void)mode; }
#endif

/* Makes the mode of this thread the mode of the C library, with `flush` FLOAT_MODE_FLUSH or 0: the usual one, where
 * infinities and NaN raise no signal, even if the caller asked for it (feenableexcept). Returns the previous mode. */
static inline float_mode float_mode_quiet(float_mode flush) {
    const float_mode before = float_mode_now();
    float_mode_set((before & ~(float_mode)(FLOAT_MODE_BITS | FLOAT_MODE_TRAPS)) | FLOAT_MODE_MASKED | flush);
    return before;
}

/* Makes the mode the usual one in this thread. Returns the previous mode, for float_mode_set. If that was another mode,
 * OpenMP's threads may have inherited it, and are set to the usual mode too. */
static inline float_mode float_mode_usual(void) {
    const float_mode before = float_mode_now(), usual = before & ~(float_mode)FLOAT_MODE_BITS;
    if (usual == before) return before;
    float_mode_set(usual);
#ifdef _OPENMP
#pragma omp parallel
    float_mode_set(float_mode_now() & ~(float_mode)FLOAT_MODE_BITS);
#endif
    return before;
}

#endif
