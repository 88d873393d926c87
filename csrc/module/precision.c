#include "precision.h"

#include <stdatomic.h>

static _Thread_local int current = PRECISION_FLOAT32;
static atomic_bool pairs;

int precision_of_call(void) { return current; }

int use_precision(int precision) {
    const int before = current;
    current = precision;
    return before;
}

bool bf16_pairs(void) { return atomic_load(&pairs); }

bool use_bf16_pairs(bool use) { return atomic_exchange(&pairs, use); }
