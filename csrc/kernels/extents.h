/* Functions that csrc/kernels.list uses in the shapes of arrays. */
#ifndef ROT_EXTENTS_H
#define ROT_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

#include "entries.h"
#include "kernels.h"
#include "members.h"
#include "sizes.h"

/* The product of the arguments; -1, which is no array's size, if it overflows or an argument is negative; ROT_IMMENSE
 * if it is zero, but the axes before the zero have more than MOST_EMPTY rows, over which a kernel would loop. */
#define EXTENT(...) extent((const int64_t[]){__VA_ARGS__}, sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

enum { MOST_EMPTY = 1 << 24 };

static inline int64_t extent(const int64_t *factors, size_t count) {
    int64_t product = 1;
    for (size_t i = 0; i < count; i++) {
        const int64_t rows = product;
        if (factors[i] < 0 || __builtin_mul_overflow(product, factors[i], &product)) return -1;
        if (!product && rows > MOST_EMPTY) return ROT_IMMENSE;
    }
    return product;
}

/* Sizes for one token of a mixer (mixer.h): its vectors u, its gains alpha, and the numbers prepared from u. They are
 * sums of at most four products of two of R + 1, D + 1 and D / R, which do not overflow up to 2^30; -1 beyond. */
static inline bool mixer_counts(int64_t R, int64_t D) { return R <= 1 << 30 && D <= 1 << 30; }
static inline int64_t mixer_vectors(int64_t form, int64_t R, int64_t D) {
    const mixer m = {form, R, D};
    return mixer_counts(R, D) ? mixer_u(m) : -1;
}
static inline int64_t mixer_gains(int64_t form, int64_t R, int64_t D) {
    const mixer m = {form, R, D};
    return mixer_counts(R, D) ? mixer_alpha(m) : -1;
}
static inline int64_t mixer_ready(int64_t form, int64_t R, int64_t D) {
    const mixer m = {form, R, D};
    return mixer_counts(R, D) ? mixer_prepared(m) : -1;
}

/* a b + c; -1 if one of them is negative, or the result above MOST_NUMBERS. */
static inline int64_t product_plus(int64_t a, int64_t b, int64_t c) {
    int64_t sum = -1;
    const bool fits = a >= 0 && b >= 0 && c >= 0 && !__builtin_mul_overflow(a, b, &sum) &&
                      !__builtin_add_overflow(sum, c, &sum) && sum <= MOST_NUMBERS;
    return fits ? sum : -1;
}

/* Bars of an image of the task Pathfinder: of its two contours and of its distractors. */
static inline int64_t pathfinder_bars(int64_t contour_length, int64_t distractors, int64_t distractor_length) {
    return product_plus(distractors, distractor_length, product_plus(2, contour_length, 0));
}

/* Columns of a step of Bedouin (selective_solve.c): delta (E) if it is one of them, u and alpha of the mixer, B and C
 * (S each). A matrix is no column. */
static inline int64_t solve_columns(int64_t form, int64_t R, int64_t E, int64_t S, bool delta) {
    const mixing m = {form, R, E, 0};
    if (!mixer_counts(R, E)) return -1;
    const mixing_sizes sizes = sizes_of(&m, 0);
    return product_plus(delta, E, product_plus(2, S, (form == MIXER_MATRIX ? 0 : sizes.u) + sizes.alpha));
}

#endif
