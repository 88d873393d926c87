/* Functions that csrc/kernels.list uses in the shapes of arrays. */
#ifndef ROT_EXTENTS_H
#define ROT_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"
#include "mixer.h"
#include "sizes.h"

/* The product of the arguments, or -1, which no array's size equals, if it overflows or an argument is negative. */
#define EXTENT(...) extent((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static inline int64_t extent(const int64_t *factors, size_t count) {
    int64_t product = 1;
    for (size_t i = 0; i < count; i++)
        if (factors[i] < 0 || __builtin_mul_overflow(product, factors[i], &product)) return -1;
    return product;
}

/* Sizes for one token of a mixer (mixer.h): its vectors u, its gains alpha, and what is precomputed from u. */
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
