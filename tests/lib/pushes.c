/* Pushes steps where every allocation is counted and, on Linux, where every system call but a write ends the program:
 * pushes FILE STEPS. Prints "ok" if a push does neither. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef __linux__
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif

#include "rotrnn.h"

static int allocations;

/* The linker gives the library's calls to these (--wrap). */
void *__real_malloc(size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_calloc(size_t count, size_t size);
int __real_posix_memalign(void **memory, size_t alignment, size_t size);
void *__wrap_malloc(size_t size) { return allocations++, __real_malloc(size); }
void *__wrap_realloc(void *memory, size_t size) { return allocations++, __real_realloc(memory, size); }
void *__wrap_calloc(size_t count, size_t size) { return allocations++, __real_calloc(count, size); }
int __wrap_posix_memalign(void **memory, size_t alignment, size_t size) {
    return allocations++, __real_posix_memalign(memory, alignment, size);
}

static void say(const char *text, size_t length) {
    if (write(STDOUT_FILENO, text, length) < 0) abort();
}

int main(int argc, char **argv) {
    rotrnn_model *model;
    rotrnn_stream *stream;
    rotrnn_error error;
    if (argc != 3) return 2;
    const int64_t steps = atoll(argv[2]);
    if (rotrnn_model_open(&model, argv[1], &error) || rotrnn_stream_new(&stream, model, 2, 4 * steps, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    const rotrnn_facts facts = rotrnn_model_facts(model);
    const size_t count = (size_t)(2 * steps * (facts.inputs + facts.outputs + 1));
    float *const input = calloc(count, sizeof *input), *const output = calloc(count, sizeof *output);
    int32_t *const tokens = calloc(count, sizeof *tokens);
    if (!input || !output || !tokens || !allocations) return 1;
#ifdef __linux__
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)) return 3;
#endif
    allocations = 0;
    int failures = 0;
    for (int i = 0; i < 3; i++) {
        failures += facts.reads_tokens ? rotrnn_push_tokens(stream, tokens, steps, output)
                                       : rotrnn_push_features(stream, input, steps, output);
        failures += rotrnn_stream_reset(stream);
    }
    if (failures || allocations)
        say("pushes failed, or allocated\n", 28);
    else
        say("ok\n", 3);
#ifdef __linux__
    syscall(SYS_exit, 0); /* exit_group, which exit would call, is not among the calls that are left */
#endif
    return 0;
}
