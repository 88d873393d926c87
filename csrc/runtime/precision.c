#include "precision.h"

#include <stdatomic.h>

static _Thread_local int current = PRECISION_FLOAT32;
static atomic_int by = BF16_BY_FLOAT32;

int precision_of_call(void) { return current; }

int use_precision(int precision) {
    const int before = current;
    current = precision;
    return before;
}

int bf16_by(void) { return atomic_load(&by); }

int use_bf16_by(int way) { return atomic_exchange(&by, way); }
