/* Temporary memory of a kernel, and the number of its threads. */
#ifndef ROT_WORKSPACE_H
#define ROT_WORKSPACE_H

#include <stddef.h>
#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "pool.h"

/* WORKSPACE(type, n, m, ...): memory for n*m*... items, aligned to a cache line, to be freed by pool_give; NULL if
 * there is no memory or the number of bytes overflows. Sizes must not be negative. Kernels multiply sizes only after
 * this check.
 */
#define WORKSPACE(type, ...)                                                                                           \
    workspace((const int64_t[]){(int64_t)sizeof(type), __VA_ARGS__},                                                   \
              sizeof((const int64_t[]){0, __VA_ARGS__}) / sizeof(int64_t))

static inline void *workspace(const int64_t *factors, size_t count) {
    size_t bytes = 1;
    for (size_t i = 0; i < count; i++)
        if (__builtin_mul_overflow(bytes, (size_t)factors[i], &bytes)) return NULL;
    return pool_take(bytes);
}

/* The calling thread's number in a parallel loop, and the largest number of threads: to index per-thread memory. */
static inline int64_t thread_number(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}
static inline int64_t most_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

#endif
