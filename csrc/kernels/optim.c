/* The optimiser's passes over an array of n numbers: AdamW's update in place, and the Euclidean norm.
 *
 * The size of blocks and the order of sums do not depend on the number of threads, so results have the same bits for
 * any number.
 */
#include <math.h>

#include "adamw.h"
#include "cuts.h"
#include "kernels.h"
#include "workspace.h"

enum {
    BLOCK = 16384,
    SERIAL = 8, /* number of blocks up to which one thread is used */
    SUMS = 16,
};

static int64_t size_of_block(int64_t block, int64_t n) { return least(n - block * BLOCK, BLOCK); }

static void update(real *restrict p, real *restrict m, real *restrict v, const real *restrict grad, int64_t n,
                   adamw_rule rule) {
    for (int64_t i = 0; i < n; i++) adamw_step(p + i, m + i, v + i, grad[i], rule);
}

static double sum_of_squares(const real *restrict x, int64_t n) {
    double sum[SUMS] = {0};
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int k = 0; k < SUMS; k++) sum[k] += (double)x[i + k] * (double)x[i + k];
    for (int k = 0; i + k < n; k++) sum[k] += (double)x[i + k] * (double)x[i + k];
    double total = 0;
    for (int k = 0; k < SUMS; k++) total += sum[k];
    return total;
}

/* The root of sums[0] + sums[step] + ..., `blocks` of them. */
static double root_of_sum(const double *sums, int64_t blocks, int64_t step) {
    double total = 0;
    for (int64_t block = 0; block < blocks; block++) total += sums[block * step];
    return sqrt(total);
}

/* p, m, v (n) are updated in place with grad (n); `step` counts updates from 1. norms (2), double in every variant:
 * |p| and |v| after the update, summed as in `norm`. */
KERNEL(adamw) {
    const adamw_rule rule = adamw_rule_of(lr, beta1, beta2, eps, decay, scale, step);
    const int64_t blocks = pieces_of(n, BLOCK);
    double *const sums = WORKSPACE(double, blocks, 2);
    if (!sums) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(static) if (blocks > SERIAL)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t lo = block * BLOCK, size = size_of_block(block, n);
        update(p + lo, m + lo, v + lo, grad + lo, size, rule);
        sums[2 * block] = sum_of_squares(p + lo, size);
        sums[2 * block + 1] = sum_of_squares(v + lo, size);
    }
    for (int k = 0; k < 2; k++) norms[k] = root_of_sum(sums + k, blocks, 2);
    pool_give(sums);
    return ROT_OK;
}

/* norm (1), double in every variant, = |x| over x (n): summed within a block, then block by block. */
KERNEL(norm) {
    const int64_t blocks = pieces_of(n, BLOCK);
    double *const sums = WORKSPACE(double, blocks);
    if (!sums) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(static) if (blocks > SERIAL)
    for (int64_t block = 0; block < blocks; block++)
        sums[block] = sum_of_squares(x + block * BLOCK, size_of_block(block, n));
    norm[0] = root_of_sum(sums, blocks, 1);
    pool_give(sums);
    return ROT_OK;
}
