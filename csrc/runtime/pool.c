/* New memory is expensive: the system zeroes each page when it is first touched. For an array of a training step this
 * takes a tenth of the time of the layer that fills it. Freed large blocks are therefore kept for the next request of
 * about the same size. Memory in use plus memory kept never exceeds the peak of memory in use by more than a sixteenth:
 * room for workspaces that alternate at a training step's peak.
 */
#define _DEFAULT_SOURCE
#include "pool.h"

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "platform.h"

#if defined(__has_feature)
#define ROT_HAS_FEATURE(feature) __has_feature(feature)
#else
#define ROT_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || ROT_HAS_FEATURE(address_sanitizer)
enum { WATCHED = 1 }; /* nothing is kept: use after free is found */
#else
enum { WATCHED = 0 };
#endif
enum { KEPT = 64 }; /* largest number of blocks */
enum { LINE = 64, LARGE = 1 << 20, HUGE_PAGE = 1 << 21 };

/* Header of a block, in a separate cache line. */
typedef struct {
    size_t bytes; /* size of the block, header included */
} header;

static platform_lock mutex = PLATFORM_LOCK_INIT;
static header *kept[KEPT]; /* oldest first */
static size_t count, kept_bytes, in_use, peak;

static void lock(void) { platform_take(&mutex); }
static void unlock(void) { platform_release(&mutex); }

void pool_survive_fork(void) {
    static atomic_flag done = ATOMIC_FLAG_INIT; /* the module may be initialised again */
    if (!atomic_flag_test_and_set(&done)) platform_around_forks(lock, unlock);
}

static header *remove_piece(size_t i) {
    header *const piece = kept[i];
    kept_bytes -= piece->bytes;
    for (count--; i < count; i++) kept[i] = kept[i + 1];
    return piece;
}

/* Removes blocks, the oldest first, until the blocks left plus the memory in use are at most 17/16 of the peak. */
static size_t remove_excess(header **removed) {
    size_t n = 0;
    while (count && in_use + kept_bytes > peak + peak / 16) removed[n++] = remove_piece(0);
    return n;
}

static void free_all(header **pieces, size_t n) {
    while (n) platform_free(pieces[--n]);
}

/* The smallest kept block that holds `bytes` and wastes at most a quarter, or NULL. Of equal ones, the last that was
 * freed: it may still be in a cache. */
static header *find(size_t bytes) {
    size_t best = count;
    for (size_t i = 0; i < count; i++) {
        const size_t size = kept[i]->bytes;
        if (size >= bytes && size - bytes <= bytes / 4 && (best == count || size <= kept[best]->bytes)) best = i;
    }
    return best < count ? remove_piece(best) : NULL;
}

static header *new_piece(size_t bytes) {
    const size_t alignment = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : LINE;
    header *const piece = platform_memory(alignment, bytes);
    if (!piece) return NULL;
    piece->bytes = bytes;
    if (alignment == HUGE_PAGE) platform_large_pages(piece, bytes);
    return piece;
}

void *pool_take(size_t bytes) {
    if (bytes > PTRDIFF_MAX - 2 * LINE) return NULL;
    const size_t whole = (bytes + 2 * LINE - 1) / LINE * LINE;
    header *piece = NULL, *removed[KEPT];
    size_t excess = 0;
    if (whole >= LARGE) {
        lock();
        piece = find(whole);
        in_use += piece ? piece->bytes : whole;
        if (in_use > peak) peak = in_use;
        excess = remove_excess(removed);
        unlock();
    }
    free_all(removed, excess);
    if (!piece) piece = new_piece(whole);
    if (!piece && pool_release()) piece = new_piece(whole);
    if (piece) return (char *)piece + LINE;
    if (whole >= LARGE) {
        lock();
        in_use -= whole;
        unlock();
    }
    return NULL;
}

void pool_give(void *memory) {
    if (!memory) return;
    header *const piece = (header *)(void *)((char *)memory - LINE), *removed[KEPT];
    size_t excess = 0;
    if (piece->bytes < LARGE || WATCHED) {
        platform_free(piece);
        return;
    }
    lock();
    in_use -= piece->bytes;
    if (count == KEPT) removed[excess++] = remove_piece(0);
    kept[count++] = piece;
    kept_bytes += piece->bytes;
    excess += remove_excess(removed + excess);
    unlock();
    free_all(removed, excess);
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

int pool_keeps(void) { return !WATCHED; }

size_t pool_release(void) {
    header *removed[KEPT];
    size_t n = 0;
    lock();
    const size_t bytes = kept_bytes;
    peak = in_use;
    while (count) removed[n++] = remove_piece(0);
    unlock();
    free_all(removed, n);
    return bytes;
}
