/* AdamW's update in place and the Euclidean norm, on a GPU (csrc/kernels/optim.c).
 *
 * Squares are summed in double: by thread, block, and then over the blocks, in one order.
 */
#include "adamw.h"
#include "device.h"
#include "sgd.h"

namespace {

enum { THREADS = 256, BLOCK = 16 * THREADS };

struct block_scratch {
    double sums[32];
};

ROT_DEVICE_ONLY double square(real x) { return (double)x * (double)x; }

/* Arrays of the update, each (n) */
struct adamw_arrays {
    real *p, *m, *v;
    const real *grad;
};

/* A block updates the numbers first..end-1, if `updates`. sums: of the squares of p, and `blocks` further on of v,
 * after the update */
ROT_DEVICE_ONLY void update_part(adamw_arrays of, int64_t first, int64_t end, adamw_rule rule, bool updates,
                                 double *sums, int64_t blocks) {
    block_scratch &s = shared_memory<block_scratch>();
    double of_p = 0, of_v = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        real p = of.p[i], m = of.m[i], v = of.v[i];
        if (updates) {
            adamw_step(&p, &m, &v, of.grad[i], rule);
            of.p[i] = p, of.m[i] = m, of.v[i] = v;
        }
        of_p += square(p), of_v += square(v);
    }
    of_p = block_sum(of_p, s.sums, THREADS);
    of_v = block_sum(of_v, s.sums, THREADS);
    if (threadIdx.x == 0) sums[0] = of_p, sums[blocks] = of_v;
}

/* sums (2,blocks) */
GLOBAL(THREADS) adamw_kernel(adamw_arrays of, int64_t n, adamw_rule rule, double *sums) {
    const int64_t first = (int64_t)blockIdx.x * BLOCK;
    update_part(of, first, least(first + BLOCK, n), rule, true, sums + blockIdx.x, gridDim.x);
}

/* sums (2,blocks): of the squares of p and of m after the update */
GLOBAL(THREADS) sgd_kernel(real *p, real *m, const real *grad, int64_t n, sgd_rule rule, double *sums) {
    block_scratch &s = shared_memory<block_scratch>();
    const int64_t first = (int64_t)blockIdx.x * BLOCK, end = least(first + BLOCK, n);
    double of_p = 0, of_m = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS) {
        real one = p[i], moment = m[i];
        sgd_step(&one, &moment, grad[i], rule);
        p[i] = one, m[i] = moment;
        of_p += square(one), of_m += square(moment);
    }
    of_p = block_sum(of_p, s.sums, THREADS);
    of_m = block_sum(of_m, s.sums, THREADS);
    if (threadIdx.x == 0) sums[blockIdx.x] = of_p, sums[gridDim.x + blockIdx.x] = of_m;
}

/* sums (blocks) */
GLOBAL(THREADS) sum_squares(const real *x, int64_t n, double *sums) {
    block_scratch &s = shared_memory<block_scratch>();
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, end = least(((int64_t)blockIdx.x + 1) * BLOCK, n);
    double sum = 0;
    pipelined<8>(
        pieces_of(most(end - first, 0), THREADS), [&](int64_t k) { return x[first + k * THREADS]; },
        [&](int64_t, real one) { sum += square(one); });
    sum = block_sum(sum, s.sums, THREADS);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/* sqrt(sum of sums (blocks)), in every thread of a block */
ROT_DEVICE_ONLY double root_of(const double *sums, int64_t blocks) {
    block_scratch &s = shared_memory<block_scratch>();
    double sum = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += THREADS) sum += sums[i];
    return sqrt(block_sum(sum, s.sums, THREADS));
}

/* norm[k] = sqrt(sum of sums[k]) for sums (grid,blocks) */
GLOBAL(THREADS) root_of_sum(double *norm, const double *sums, int64_t blocks) {
    const double root = root_of(sums + blockIdx.x * blocks, blocks);
    if (threadIdx.x == 0) norm[blockIdx.x] = root;
}

/* ---- all groups at once: each begins with a new block ---- */

struct adamw_table {
    const int64_t *ends; /* (groups) */
    const double *rules; /* (groups,4) */
    int64_t n, groups;
};

/* The numbers of a group. An end before the last group's end, or outside of the vector, is moved to the nearest valid
 * end: groups then share no numbers, and have no more blocks than there are sums. */
struct adamw_group {
    int64_t begin, end;
};
/* Group g, from the group before it; the first from {0, 0}. */
ROT_DEVICE_ONLY adamw_group group_after(adamw_group last, const adamw_table &table, int64_t g) {
    return {last.end, most(least(table.ends[g], table.n), last.end)};
}
ROT_DEVICE_ONLY int64_t blocks_of(adamw_group group) { return pieces_of(group.end - group.begin, BLOCK); }

/* norms[0] <- the norm of the gradients, from sums (blocks) of their squares (adamw_norm) */
GLOBAL(THREADS)
norm_of_gradients(double *norms, const double *sums, int64_t blocks, const double *loss, int64_t groups) {
    const double norm = root_of(sums, blocks);
    if (threadIdx.x == 0) norms[0] = adamw_norm(norm, loss[0], norms, 1 + 2 * groups);
}

/* sums (2,blocks) */
GLOBAL(THREADS)
adamw_groups_kernel(adamw_arrays of, adamw_table table, double beta1, double beta2, double eps, double clip,
                    const double *norms, double *sums) {
    adamw_group group = {0, 0};
    int64_t g = 0, block = blockIdx.x;
    for (; g < table.groups; g++) {
        group = group_after(group, table, g);
        if (block < blocks_of(group)) break;
        block -= blocks_of(group);
    }
    if (g == table.groups) return;
    const int64_t first = group.begin + block * BLOCK, end = least(first + BLOCK, group.end);
    const adamw_rule rule = adamw_rule_of(table.rules + 4 * g, adamw_scale(norms[0], clip), beta1, beta2, eps);
    update_part(of, first, end, rule, isfinite(norms[0]), sums + blockIdx.x, gridDim.x);
}

/* norms (groups,2) <- |p| and |v| from sums (2,blocks) */
GLOBAL(THREADS) norms_of_groups(double *norms, const double *sums, int64_t blocks, adamw_table table) {
    const int64_t number = blockIdx.x / 2, of_v = blockIdx.x % 2;
    adamw_group group = group_after({0, 0}, table, 0);
    int64_t first = 0;
    for (int64_t g = 1; g <= number; g++) {
        first += blocks_of(group);
        group = group_after(group, table, g);
    }
    const double norm = root_of(sums + of_v * blocks + first, blocks_of(group));
    if (threadIdx.x == 0) norms[blockIdx.x] = norm;
}

/* ---- parts of a vector ---- */

struct parts_table {
    const real *from[PARTS_AT_ONCE];
    int64_t counts[PARTS_AT_ONCE], to[PARTS_AT_ONCE];
};

/* A row of blocks for each part */
GLOBAL(THREADS) place_kernel(real *flat, parts_table table) {
    const int64_t part = blockIdx.x % PARTS_AT_ONCE, row = gridDim.x / PARTS_AT_ONCE * THREADS;
    const real *const from = table.from[part];
    if (!from) return;
    for (int64_t i = blockIdx.x / PARTS_AT_ONCE * THREADS + threadIdx.x; i < table.counts[part]; i += row)
        flat[table.to[part] + i] = from[i];
}

} // namespace

KERNEL(adamw) {
    const double t = (double)step, of[4] = {lr, 1 - pow(beta1, t), 1 - pow(beta2, t), decay};
    const int64_t blocks = pieces_of(n, BLOCK);
    double *const sums = workspace_of<double>(2, blocks);
    const adamw_arrays arrays = {p, m, v, grad};
    launch(adamw_kernel, blocks, THREADS, sizeof(block_scratch), arrays, n, adamw_rule_of(of, scale, beta1, beta2, eps),
           sums);
    launch(root_of_sum, 2, THREADS, sizeof(block_scratch), norms, sums, blocks);
    return runtime_status();
}

KERNEL(sgd) {
    const int64_t blocks = pieces_of(n, BLOCK);
    double *const sums = workspace_of<double>(2, blocks);
    launch(sgd_kernel, blocks, THREADS, sizeof(block_scratch), p, m, grad, n, sgd_rule_of(scale, momentum, decay, lr),
           sums);
    launch(root_of_sum, 2, THREADS, sizeof(block_scratch), norms, sums, blocks);
    return runtime_status();
}

KERNEL(adamw_groups) {
    const int64_t of_grad = pieces_of(n, BLOCK), blocks = of_grad + groups; /* each group may end inside a block */
    double *const sums = workspace_of<double>(2, blocks);
    const adamw_arrays arrays = {p, m, v, grad};
    const adamw_table table = {ends, rules, n, groups};
    launch(sum_squares, of_grad, THREADS, sizeof(block_scratch), grad, n, sums);
    launch(norm_of_gradients, 1, THREADS, sizeof(block_scratch), norms, sums, of_grad, loss, groups);
    launch(adamw_groups_kernel, blocks, THREADS, sizeof(block_scratch), arrays, table, beta1, beta2, eps, clip, norms,
           sums);
    launch(norms_of_groups, 2 * groups, THREADS, sizeof(block_scratch), norms + 1, sums, blocks, table);
    return runtime_status();
}

KERNEL(place_parts) {
    (void)n;
    parts_table table = {{x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15},
                         {n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14, n15},
                         {}};
    int64_t to = at, largest = 0;
    for (int k = 0; k < PARTS_AT_ONCE; to += part_room(table.counts[k++]))
        table.to[k] = to, largest = most(largest, table.counts[k]);
    const int64_t blocks = most(least(pieces_of(largest, BLOCK), EACH_BLOCKS / PARTS_AT_ONCE), 1);
    launch(place_kernel, PARTS_AT_ONCE * blocks, THREADS, 0, flat, table);
    return runtime_status();
}

KERNEL(norm) {
    const int64_t blocks = pieces_of(n, BLOCK);
    double *const sums = workspace_of<double>(blocks);
    launch(sum_squares, blocks, THREADS, sizeof(block_scratch), x, n, sums);
    launch(root_of_sum, 1, THREADS, sizeof(block_scratch), norm, sums, blocks);
    return runtime_status();
}
