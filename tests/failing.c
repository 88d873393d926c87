/* An allocator where one allocation of the calling thread fails: preloaded by allocations.py, for glibc.
 *
 * fail_at(n): the n-th allocation from here on fails, from 0; -1 for none. Returns whether the one before was reached.
 * blocks_in_use(): how many blocks are allocated, in all threads.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

#define CALLER __builtin_return_address(0)

static _Thread_local long left = -1;
static _Thread_local int reached;
static atomic_long blocks;

int fail_at(long n) {
    const int before = reached;
    reached = 0;
    left = n;
    return before;
}
long blocks_in_use(void) { return blocks; }

/* Whether this allocation of a caller fails. Those of OpenMP's runtime, which ends the process, do not. */
static int fails(const void *caller) {
    Dl_info at;
    if (left < 0 || (dladdr(caller, &at) && at.dli_fname && strstr(at.dli_fname, "libgomp")) || left--) return 0;
    reached = 1;
    errno = ENOMEM;
    return 1;
}
static void *counted(void *memory) {
    if (memory) blocks++;
    return memory;
}

void *malloc(size_t size) { return fails(CALLER) ? NULL : counted(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return fails(CALLER) ? NULL : counted(__libc_calloc(count, size)); }
void *realloc(void *memory, size_t size) {
    if (fails(CALLER)) return NULL;
    return memory ? __libc_realloc(memory, size) : counted(__libc_malloc(size));
}
void *aligned_alloc(size_t alignment, size_t size) {
    return fails(CALLER) ? NULL : counted(__libc_memalign(alignment, size));
}
int posix_memalign(void **memory, size_t alignment, size_t size) {
    *memory = fails(CALLER) ? NULL : counted(__libc_memalign(alignment, size));
    return *memory ? 0 : ENOMEM;
}
void free(void *memory) {
    if (memory) blocks--;
    __libc_free(memory);
}
