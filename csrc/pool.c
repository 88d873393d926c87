/* Fresh memory is dear: the system zeroes each page that a program first touches, which for an array of a training step
 * takes as long as a tenth of the layer that fills it. So large pieces that are given back are kept for the next
 * request of about their size. All that is in use and kept together never exceeds what once was in use at a time:
 * keeping never makes a program's memory larger than its own peak.
 */
#define _DEFAULT_SOURCE
#include "pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
enum { KEPT = 0 }; /* so that a use after it was given back is found */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
enum { KEPT = 0 };
#else
enum { KEPT = 64 };
#endif
#else
enum { KEPT = 64 }; /* pieces at most */
#endif
enum { LINE = 64, LARGE = 1 << 20, HUGE_PAGE = 1 << 21 };

/* What stands before each piece, in a cache line of its own. */
typedef struct {
    size_t bytes; /* of the piece, header included */
} header;

static struct {
    atomic_flag busy;
    header *pieces[KEPT + 1]; /* from the longest kept to the latest */
    size_t count, bytes, in_use, peak;
} pool = {.busy = ATOMIC_FLAG_INIT};

static void lock(void) {
    while (atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire)) {
    }
}

static void unlock(void) { atomic_flag_clear_explicit(&pool.busy, memory_order_release); }

void pool_survive_fork(void) { (void)pthread_atfork(lock, unlock, unlock); }

static header *remove_piece(size_t i) {
    header *const piece = pool.pieces[i];
    pool.bytes -= piece->bytes;
    for (pool.count--; i < pool.count; i++) pool.pieces[i] = pool.pieces[i + 1];
    return piece;
}

/* The smallest kept piece that holds `bytes` and wastes no more than a quarter, or NULL. */
static header *find(size_t bytes) {
    size_t best = pool.count;
    for (size_t i = 0; i < pool.count; i++) {
        const size_t size = pool.pieces[i]->bytes;
        if (size >= bytes && size - bytes <= bytes / 4 && (best == pool.count || size < pool.pieces[best]->bytes))
            best = i;
    }
    return best < pool.count ? remove_piece(best) : NULL;
}

static header *new_piece(size_t bytes) {
    const size_t alignment = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : LINE;
    void *memory;
    if (posix_memalign(&memory, alignment, bytes)) return NULL;
    header *const piece = memory;
    piece->bytes = bytes;
#ifdef MADV_HUGEPAGE
    if (alignment == HUGE_PAGE) (void)madvise(piece, bytes, MADV_HUGEPAGE);
#endif
    return piece;
}

void *pool_take(size_t bytes) {
    if (bytes > PTRDIFF_MAX - 2 * LINE) return NULL;
    const size_t whole = (bytes + 2 * LINE - 1) / LINE * LINE;
    header *piece = NULL;
    if (whole >= LARGE) {
        lock();
        piece = find(whole);
        unlock();
    }
    if (!piece) piece = new_piece(whole);
    if (!piece && pool_release()) piece = new_piece(whole);
    if (!piece) return NULL;
    if (whole >= LARGE) {
        lock();
        pool.in_use += piece->bytes;
        if (pool.in_use > pool.peak) pool.peak = pool.in_use;
        unlock();
    }
    return (char *)piece + LINE;
}

void pool_give(void *memory) {
    if (!memory) return;
    header *const piece = (header *)(void *)((char *)memory - LINE);
    header *spare[KEPT + 1];
    size_t spares = 0;
    if (piece->bytes < LARGE) {
        free(piece);
        return;
    }
    lock();
    pool.in_use -= piece->bytes;
    pool.pieces[pool.count++] = piece;
    pool.bytes += piece->bytes;
    while (pool.count && (pool.count > KEPT || pool.in_use + pool.bytes > pool.peak)) spare[spares++] = remove_piece(0);
    unlock();
    while (spares) free(spare[--spares]);
}

void *pool_resize(void *memory, size_t bytes) {
    void *const moved = pool_take(bytes);
    if (moved && memory) {
        const size_t room = ((header *)(void *)((char *)memory - LINE))->bytes - LINE;
        memcpy(moved, memory, room < bytes ? room : bytes);
        pool_give(memory);
    }
    return moved;
}

size_t pool_release(void) {
    header *spare[KEPT + 1];
    size_t spares = 0, bytes;
    lock();
    bytes = pool.bytes;
    pool.peak = pool.in_use;
    while (pool.count) spare[spares++] = remove_piece(0);
    unlock();
    while (spares) free(spare[--spares]);
    return bytes;
}
