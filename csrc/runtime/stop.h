/* Stopping a long kernel, by Ctrl-C for example.
 *
 * A kernel that may run for seconds takes the call's `stop` before its parallel loop, asks `stopped(stop)` between
 * tiles, and skips the rest of its work once that is true. Its outputs are then incomplete, and the caller of the
 * kernel knows. Only the thread that made the call runs `poll`. A loop of a single task must therefore not give the
 * task to another thread.
 */
#ifndef ROT_STOP_H
#define ROT_STOP_H

#include <stdbool.h>
#include <stddef.h>

typedef struct rot_stop {
    void (*poll)(struct rot_stop *stop); /* sets `set` if the call should stop; called often */
    int set;                             /* access it only by `stopped` and stop_now */
} rot_stop;

/* The stop of the calling thread's running call; NULL if it has none, as in C without Python. */
rot_stop *stop_of_call(void);

/* Sets the stop of the calling thread's later calls; NULL for none. Returns the previous stop. */
rot_stop *stop_calls_by(rot_stop *stop);

static inline void stop_now(rot_stop *stop) { __atomic_store_n(&stop->set, 1, __ATOMIC_RELAXED); }

/* Whether to stop; for all threads of the call. */
static inline bool stopped(rot_stop *stop) {
    if (!stop) return false;
    if (stop == stop_of_call()) stop->poll(stop);
    return __atomic_load_n(&stop->set, __ATOMIC_RELAXED);
}

#endif
