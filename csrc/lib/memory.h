/* Memory that is freed all at once, and errors that are written once. */
#ifndef ROT_MEMORY_H
#define ROT_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rotrnn.h"

/* A list of blocks of memory; all zeros is an empty list. */
typedef struct {
    struct arena_block *last;
} arena;

/* Zeroed memory for `count` items of `size` bytes, aligned to a cache line; NULL if memory is exhausted. */
void *arena_take(arena *a, int64_t count, size_t size);
void arena_free(arena *a);

/* Writes a status and its message, unless `error` has an earlier error. Returns false, for callers that pass it on.
 */
__attribute__((format(printf, 3, 4))) bool failed(rotrnn_error *error, rotrnn_status status, const char *format, ...);

#endif
