/* Large memory for reuse: for workspaces of kernels and for the arrays that ops return. Thread-safe. */
#ifndef ROT_POOL_H
#define ROT_POOL_H

#include <stddef.h>

/* Call once, before the rest. Keeps the pool usable in a child that is forked while another thread holds its lock. */
void pool_survive_fork(void);

/* `bytes` of uninitialised memory, aligned to a cache line, or NULL if there is none. Returned by pool_give. */
void *pool_take(size_t bytes);

/* Returns memory of pool_take; NULL does nothing. */
void pool_give(void *memory);

/* As realloc: memory of `bytes` with the old contents at its start, or NULL, with nothing changed, if there is none. */
void *pool_resize(void *memory, size_t bytes);

/* Whether returned memory is kept for reuse at all: not under a sanitizer. */
int pool_keeps(void);

/* Frees all memory kept for reuse; returns how many bytes that was. */
size_t pool_release(void);

#endif
