/* A pool of large blocks of memory, for workspaces of kernels and arrays that ops return. Thread-safe. */
#ifndef ROT_POOL_H
#define ROT_POOL_H

#include <stddef.h>

/* Call once, before the other functions. A child forked while another thread holds the lock can then use the pool. */
void pool_survive_fork(void);

/* `bytes` of uninitialised memory, aligned to a cache line, or NULL if memory is exhausted. Free it with pool_give. */
void *pool_take(size_t bytes);

/* Frees memory of pool_take; NULL is ignored. */
void pool_give(void *memory);

/* Like realloc: `bytes` of memory that begin with the old contents. NULL if memory is exhausted; `memory` is then
 * unchanged. */
void *pool_resize(void *memory, size_t bytes);

/* Whether freed memory is kept for reuse: not under a sanitizer. */
int pool_keeps(void);

/* Frees all memory that is kept for reuse. Returns the number of bytes freed. */
size_t pool_release(void);

#endif
