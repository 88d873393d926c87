/* Threads that take turns: each waits until all earlier pieces of work are done.
 *
 * For loops with schedule(static, 1): each thread takes its pieces in order, so the thread that holds the next piece
 * never waits. (OpenMP's `ordered` would do, but libgomp extends it to the end of the iteration.)
 */
#ifndef ROT_TURN_H
#define ROT_TURN_H

#include <sched.h>
#include <stdint.h>

typedef int64_t rot_turn; /* number of pieces done; access it only by these two functions, which are atomic */

/* Waits until `count` pieces are done. Spins first, because most waits are a few microseconds, then yields. */
static inline void await(const rot_turn *turn, int64_t count) {
    enum { LOOKS = 10000 };
    for (int64_t looks = 0; __atomic_load_n(turn, __ATOMIC_ACQUIRE) < count; looks++)
        if (looks > LOOKS) sched_yield();
}

static inline void pass_turn(rot_turn *turn, int64_t count) { __atomic_store_n(turn, count, __ATOMIC_RELEASE); }

#endif
