#include "stop.h"

static _Thread_local rot_stop *current;

rot_stop *stop_of_call(void) { return current; }

rot_stop *stop_calls_by(rot_stop *stop) {
    rot_stop *const before = current;
    current = stop;
    return before;
}
