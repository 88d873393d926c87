/* What csrc/kernels.list says sizes of arrays with. */
#ifndef ROT_EXTENTS_H
#define ROT_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"
#include "mixer.h"
#include "sizes.h"

/* The product of what is given, or -1 if it overflows or one is negative: no array has that size. */
#define EXTENT(...) extent((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static inline int64_t extent(const int64_t *factors, size_t count) {
    int64_t product = 1;
    for (size_t i = 0; i < count; i++)
        if (factors[i] < 0 || __builtin_mul_overflow(product, factors[i], &product)) return -1;
    return product;
}

/* Of one token's mixer (mixer.h): its vectors u, its gains alpha, and what is prepared from u. */
static inline int64_t mixer_vectors(int64_t form, int64_t R, int64_t D) {
    const mixer m = {form, R, D};
    return mixer_u(m);
}
static inline int64_t mixer_gains(int64_t form, int64_t R, int64_t D) {
    const mixer m = {form, R, D};
    return mixer_alpha(m);
}
static inline int64_t mixer_ready(int64_t form, int64_t R, int64_t D) {
    const mixer m = {form, R, D};
    return mixer_prepared(m);
}

#endif
