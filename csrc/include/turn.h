/* Threads that do pieces of work in turn: each waits until the pieces before its own are done.
 *
 * For loops with schedule(static, 1): each thread takes its pieces in order, so the piece that others wait for is
 * always in the hands of a thread that need not wait. (OpenMP's `ordered` would do, but libgomp has it last to the end
 * of the iteration.)
 */
#ifndef ROT_TURN_H
#define ROT_TURN_H

#include <sched.h>
#include <stdint.h>

typedef int64_t rot_turn; /* how many pieces are done; read and written atomically, by these two alone */

/* Waits until `count` pieces are done. It spins first, since the wait is mostly a few microseconds, then yields. */
static inline void await(const rot_turn *turn, int64_t count) {
    enum { LOOKS = 10000 };
    for (int64_t looks = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) < count; looks++)
        if (looks > LOOKS) sched_yield();
}

static inline void pass_turn(rot_turn *turn, int64_t count) { __atomic_store_n(turn, count, __ATOMIC_RELEASE); }

#endif
