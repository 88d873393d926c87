#include "memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum { LINE = 64 };

typedef struct arena_block {
    struct arena_block *before;
} arena_block;

void *arena_take(arena *a, int64_t count, size_t size) {
    size_t bytes;
    if (count < 0 || __builtin_mul_overflow(count, size, &bytes)) return NULL; /* size_t may have 32 bits */
    if (__builtin_add_overflow(bytes, (size_t)2 * LINE, &bytes)) return NULL;  /* a line for the list, one to spare */
    arena_block *const block = calloc(1, bytes); /* large memory is not touched before use */
    if (!block) return NULL;
    block->before = a->last;
    a->last = block;
    return (char *)block + (2 * LINE - (uintptr_t)block % LINE);
}

void arena_free(arena *a) {
    while (a->last) {
        arena_block *const before = a->last->before;
        free(a->last);
        a->last = before;
    }
}

bool failed(rotrnn_error *error, rotrnn_status status, const char *format, ...) {
    if (error->status != ROTRNN_OK) return false;
    va_list values;
    va_start(values, format);
    error->status = status;
    (void)vsnprintf(error->text, sizeof error->text, format, values);
    va_end(values);
    for (char *at = error->text; *at; at++) /* names in a file may contain any bytes */
        if (*at < ' ' || *at > '~') *at = '?';
    return false;
}
