/* Opens models where one allocation fails, each in turn: oom FILE ... Prints, for each file, what a status says that is
 * not that there is no memory, and blocks that are not given back; nothing where all is well.
 */
#include <stdio.h>
#include <stdlib.h>

#include "rotrnn.h"

static long left, blocks; /* allocations before the one that fails; blocks that are not free */

/* The linker gives the library's calls to these (--wrap). */
void *__real_malloc(size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_calloc(size_t count, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void __real_free(void *memory);

static void *counted(void *memory) { return blocks += memory != NULL, memory; }
void *__wrap_malloc(size_t size) { return left-- ? counted(__real_malloc(size)) : NULL; }
void *__wrap_calloc(size_t count, size_t size) { return left-- ? counted(__real_calloc(count, size)) : NULL; }
void *__wrap_realloc(void *memory, size_t size) {
    if (!left--) return NULL;
    return memory ? __real_realloc(memory, size) : counted(__real_malloc(size));
}
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    if (!left--) return 12; /* ENOMEM */
    const int status = __real_posix_memalign(memory, alignment, size);
    return counted(status ? NULL : *memory), status;
}
void __wrap_free(void *memory) {
    blocks -= memory != NULL;
    __real_free(memory);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        for (long fails = 0, done = 0; !done; fails++) {
            rotrnn_model *model = NULL;
            rotrnn_stream *stream = NULL;
            rotrnn_error error = {.status = ROTRNN_OK};
            left = fails;
            rotrnn_status status = rotrnn_model_open(&model, argv[i], &error);
            if (!status) status = rotrnn_stream_new(&stream, model, 2, 64, &error);
            done = left >= 0; /* there was no such allocation */
            left = -1;
            rotrnn_stream_free(stream);
            rotrnn_model_free(model);
            if (blocks || status != (done ? ROTRNN_OK : ROTRNN_NO_MEMORY))
                printf("%s: allocation %ld: status %d, %ld blocks left: %s\n", argv[i], fails, (int)status, blocks,
                       error.text);
            if (done && !fails) printf("%s: allocates nothing\n", argv[i]);
            blocks = 0;
        }
    return 0;
}
