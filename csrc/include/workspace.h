/* The memory that a kernel takes for itself. */
#ifndef ROT_WORKSPACE_H
#define ROT_WORKSPACE_H

#include <stddef.h>
#include <stdint.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "pool.h"

/* WORKSPACE(type, n, m, ...): room for n*m*... items, starting a cache line, for pool_give; NULL if there is none or
 * the number of bytes overflows. Factors are not negative; their product is taken nowhere else before this is known. */
#define WORKSPACE(type, ...)                                                                                           \
    workspace((const int64_t[]){(int64_t)sizeof(type), __VA_ARGS__},                                                   \
              sizeof((const int64_t[]){0, __VA_ARGS__}) / sizeof(int64_t))

static inline void *workspace(const int64_t *factors, size_t count) {
    size_t bytes = 1;
    for (size_t i = 0; i < count; i++)
        if (__builtin_mul_overflow(bytes, (size_t)factors[i], &bytes)) return NULL;
    return pool_take(bytes);
}

/* Which thread of a parallel loop runs here, of at most how many: for room that each has to itself. */
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
