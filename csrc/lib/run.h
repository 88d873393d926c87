/* The implementations in this build, and functions that the files with instructions share. */
#ifndef ROT_RUN_H
#define ROT_RUN_H

#include "gemm_tile.h"
#include "program.h"
#include "real.h"

extern const implementation K(rot_run);

typedef void instruction(const op *o, const frame *f);

/* The instructions in iterate.c. */
instruction K(rot_run_fixed_point), K(rot_run_matrix_fixed_point);

static inline real *rows_of(const frame *f, rows r) { return (real *)f->scratch + r.place * f->room; }
static inline void *state_of(const frame *f, int64_t b, int64_t place) {
    return (char *)f->state + b * f->state_bytes + place;
}

/* The counts at the beginning of a sequence's state: the steps before the chunk, and the steps so far in which a layer
 * that iterates did not reach its fixed point. */
static inline int64_t *steps_read(const frame *f, int64_t b) { return state_of(f, b, 0); }
static inline int64_t *steps_unsettled(const frame *f, int64_t b) { return state_of(f, b, sizeof(int64_t)); }

/* A loop with independent iterations, although the compiler cannot see whether arrays are separate or the same. */
#define EACH(i, n) _Pragma("omp simd") for (int64_t i = 0; i < (n); i++)

/* z += w x for step t of all sequences at once: `columns` of z (B n, width) from `at` on, x (B, N). */
static inline void add_product(const frame *f, rows z, int64_t at, int64_t columns, int64_t t, const void *w,
                               gemm_view x, int64_t N) {
    real *const to = rows_of(f, z) + t * z.width + at;
    const int64_t row = f->n * z.width;
    unrounded_product(to, row, to, row, x, w, f->B, N, columns);
}

/* The same, where x are the states h (N) at `state`. */
static inline void add_recurrence(const frame *f, rows z, int64_t at, int64_t columns, int64_t t, const void *w,
                                  int64_t state, int64_t N) {
    const int64_t states = f->state_bytes / (int64_t)sizeof(real);
    add_product(f, z, at, columns, t, w, (gemm_view){state_of(f, 0, state), states, 1}, N);
}

#endif
