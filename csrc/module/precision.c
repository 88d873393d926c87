#include "precision.h"

static _Thread_local int current = PRECISION_FLOAT32;

int precision_of_call(void) { return current; }

int use_precision(int precision) {
    const int before = current;
    current = precision;
    return before;
}
