/* Large memory for reuse: for workspaces of kernels and for the arrays that ops return. Thread-safe. */
#ifndef ROT_POOL_H
#define ROT_POOL_H

#include <stddef.h>

/* To be called before the rest: a child forked while another thread is in here goes on all the same. */
void pool_survive_fork(void);

/* `bytes` of memory starting a cache line, as malloc leaves it; NULL if there is none. For pool_give. */
void *pool_take(size_t bytes);

/* Gives memory of pool_take back; NULL is nothing. */
void pool_give(void *memory);

/* As realloc: memory of `bytes` that begins with what was there; NULL, and nothing changed, if there is none. */
void *pool_resize(void *memory, size_t bytes);

/* Whether what is given back is kept at all: not under a sanitizer. */
int pool_keeps(void);

/* Returns what is kept for reuse to the system; how much that was, in bytes. */
size_t pool_release(void);

#endif
