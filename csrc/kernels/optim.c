/* The optimiser's passes over an array of n numbers: AdamW's update in place, and the Euclidean norm.
 *
 * The size of blocks and the order of sums do not depend on the number of threads, so results have the same bits for
 * any number.
 */
#include <math.h>
#include <string.h>

#include "adamw.h"
#include "cuts.h"
#include "kernels.h"
#include "sgd.h"
#include "sizes.h"
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

/* |x| over x (n): summed within a block, then block by block. sums: room for the blocks. */
static double norm_of(const real *x, int64_t n, double *sums) {
    const int64_t blocks = pieces_of(n, BLOCK);
#pragma omp parallel for schedule(static) if (blocks > SERIAL)
    for (int64_t block = 0; block < blocks; block++)
        sums[block] = sum_of_squares(x + block * BLOCK, size_of_block(block, n));
    return root_of_sum(sums, blocks, 1);
}

/* p, m, v (n) are updated in place with grad (n), if `updates`. norms (2) <- |p| and |v| after it. sums: room for two
 * numbers a block. */
static void update_all(real *p, real *m, real *v, const real *grad, int64_t n, adamw_rule rule, bool updates,
                       double *norms, double *sums) {
    const int64_t blocks = pieces_of(n, BLOCK);
#pragma omp parallel for schedule(static) if (blocks > SERIAL)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t lo = block * BLOCK, size = size_of_block(block, n);
        if (updates) update(p + lo, m + lo, v + lo, grad + lo, size, rule);
        sums[2 * block] = sum_of_squares(p + lo, size);
        sums[2 * block + 1] = sum_of_squares(v + lo, size);
    }
    for (int k = 0; k < 2; k++) norms[k] = root_of_sum(sums + k, blocks, 2);
}

/* p, m, v (n) are updated in place with grad (n); `step` counts updates from 1. norms (2), double in every variant:
 * |p| and |v| after the update, summed as in `norm`. */
KERNEL(adamw) {
    const double t = (double)step, of[4] = {lr, 1 - pow(beta1, t), 1 - pow(beta2, t), decay};
    double *const sums = WORKSPACE(double, pieces_of(n, BLOCK), 2);
    if (!sums) return ROT_NO_MEMORY;
    update_all(p, m, v, grad, n, adamw_rule_of(of, scale, beta1, beta2, eps), true, norms, sums);
    pool_give(sums);
    return ROT_OK;
}

static void descend(real *restrict p, real *restrict m, const real *restrict grad, int64_t n, sgd_rule rule) {
    for (int64_t i = 0; i < n; i++) sgd_step(p + i, m + i, grad[i], rule);
}

/* p, m (n) are updated in place with grad (n). norms (2), double in every variant: |p| and |m| after the update. */
KERNEL(sgd) {
    const int64_t blocks = pieces_of(n, BLOCK);
    const sgd_rule rule = sgd_rule_of(scale, momentum, decay, lr);
    double *const sums = WORKSPACE(double, blocks, 2);
    if (!sums) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(static) if (blocks > SERIAL)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t lo = block * BLOCK, size = size_of_block(block, n);
        descend(p + lo, m + lo, grad + lo, size, rule);
        sums[2 * block] = sum_of_squares(p + lo, size);
        sums[2 * block + 1] = sum_of_squares(m + lo, size);
    }
    for (int k = 0; k < 2; k++) norms[k] = root_of_sum(sums + k, blocks, 2);
    pool_give(sums);
    return ROT_OK;
}

/* Like `adamw` for each group, with gradients scaled by the norm over all groups. Nothing is updated if adamw_norm is
 * not finite. */
KERNEL(adamw_groups) {
    double *const sums = WORKSPACE(double, pieces_of(n, BLOCK), 2);
    if (!sums) return ROT_NO_MEMORY;
    norms[0] = adamw_norm(norm_of(grad, n, sums), loss[0], norms, 1 + 2 * groups);
    const double scale = adamw_scale(norms[0], clip);
    for (int64_t g = 0, first = 0; g < groups; first = ends[g++])
        update_all(p + first, m + first, v + first, grad + first, most(ends[g] - first, 0),
                   adamw_rule_of(rules + 4 * g, scale, beta1, beta2, eps), isfinite(norms[0]), norms + 1 + 2 * g, sums);
    pool_give(sums);
    return ROT_OK;
}

/* flat (n) <- the parts from `at` on. */
KERNEL(place_parts) {
    (void)n;
    const real *const from[PARTS_AT_ONCE] = {x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15};
    const int64_t counts[PARTS_AT_ONCE] = {n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15};
    for (int64_t k = 0, to = at; k < PARTS_AT_ONCE; to += part_room(counts[k++]))
        if (from[k]) memcpy(flat + to, from[k], (size_t)counts[k] * sizeof(real));
    return ROT_OK;
}

/* norm (1), double in every variant. */
KERNEL(norm) {
    double *const sums = WORKSPACE(double, pieces_of(n, BLOCK));
    if (!sums) return ROT_NO_MEMORY;
    norm[0] = norm_of(x, n, sums);
    pool_give(sums);
    return ROT_OK;
}
