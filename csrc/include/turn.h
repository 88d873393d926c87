/* Threads that do pieces of work in turn: each waits until the pieces before its own are done.
 *
 * For loops with schedule(static, 1): each thread takes its pieces in order, so the piece that others wait for is
 * always in the hands of a thread that need not wait. (OpenMP's `ordered` would do, but libgomp has it last to the end
 * of the iteration.)
 */
#ifndef ROT_TURN_H
#define ROT_TURN_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

typedef atomic_int_fast64_t rot_turn; /* how many pieces are done */

/* Waits until `count` pieces are done: awake at first, for that is a matter of microseconds. */
static inline void await(const rot_turn *turn, int64_t count) {
    enum { LOOKS = 10000 };
    for (int64_t looks = 0; atomic_load_explicit(turn, memory_order_acquire) < count; looks++)
        if (looks > LOOKS) sched_yield();
}

static inline void pass_turn(rot_turn *turn, int64_t count) {
    atomic_store_explicit(turn, count, memory_order_release);
}

#endif
