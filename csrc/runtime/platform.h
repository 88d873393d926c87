/* All differences between operating systems: aligned memory, large pages, a lock, forks, files, a clock, and a
 * permission. */
#ifndef ROT_PLATFORM_H
#define ROT_PLATFORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <malloc.h>
#include <windows.h>
typedef SRWLOCK platform_lock;
#define PLATFORM_LOCK_INIT SRWLOCK_INIT
#else
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef ROT_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef __wasi__ /* WebAssembly: one thread, and no forks */
typedef char platform_lock;
#define PLATFORM_LOCK_INIT 0
#else
#include <pthread.h>
typedef pthread_mutex_t platform_lock;
#define PLATFORM_LOCK_INIT PTHREAD_MUTEX_INITIALIZER
#endif
#endif

/* `bytes` of memory at a multiple of `alignment`, a power of two; NULL if memory is exhausted. Free it by
 * platform_free. */
static inline void *platform_memory(size_t alignment, size_t bytes) {
#ifdef _WIN32
    return _aligned_malloc(bytes, alignment);
#else
    void *memory;
    return posix_memalign(&memory, alignment, bytes) ? NULL : memory;
#endif
}

static inline void platform_free(void *memory) {
#ifdef _WIN32
    _aligned_free(memory);
#else
    free(memory);
#endif
}

/* Asks for large pages, on systems that have them, if a whole page of 2 MiB lies in the memory. */
static inline void platform_large_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const size_t page = (size_t)1 << 21, before = -(uintptr_t)memory % page;
    if (bytes >= before + page) (void)madvise((char *)memory + before, bytes - before, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

static inline void platform_take(platform_lock *lock) {
#ifdef _WIN32
    AcquireSRWLockExclusive(lock);
#elif defined(__wasi__)
    (void)lock;
#else
    (void)pthread_mutex_lock(lock);
#endif
}

static inline void platform_release(platform_lock *lock) {
#ifdef _WIN32
    ReleaseSRWLockExclusive(lock);
#elif defined(__wasi__)
    (void)lock;
#else
    (void)pthread_mutex_unlock(lock);
#endif
}

/* Whether the path leads to a pipe or a device, which may have no end, or nobody who writes. */
static inline bool platform_is_special(const char *path) {
#ifdef _WIN32
    (void)path;
    return false;
#else
    struct stat found;
    return !stat(path, &found) && !S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode);
#endif
}

/* Registers `before` to be called before each fork, and `after` after it in both processes. Windows and WebAssembly
 * have no fork. */
static inline void platform_around_forks(void (*before)(void), void (*after)(void)) {
#if defined(_WIN32) || defined(__wasi__)
    (void)before, (void)after;
#else
    (void)pthread_atfork(before, after, after);
#endif
}

/* A clock that never goes back. */
static inline int64_t platform_milliseconds(void) {
#ifdef _WIN32
    return (int64_t)GetTickCount64();
#else
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
#endif
}

#ifdef ROT_AMX
/* Asks Linux for permission to use the registers of AMX. Returns whether the process has it. */
static inline bool platform_permits_tiles(void) {
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: since Linux 5.16 */
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

#endif
