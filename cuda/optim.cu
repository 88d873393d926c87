/* AdamW's update in place and the Euclidean norm, on a GPU (csrc/kernels/optim.c).
 *
 * Squares are summed in double: by thread, block, and then over the blocks, in one order.
 */
#include "adamw.h"
#include "device.h"

namespace {

enum { THREADS = 256, BLOCK = 16 * THREADS };

struct block_scratch {
    double sums[32];
};

ROT_DEVICE_ONLY double square(real x) { return (double)x * (double)x; }

/* given: what `now` (4) would hold (adamw.h), where it is NULL */
struct adamw_settings {
    const double *now;
    double given[4], beta1, beta2, eps, decay;
};

/* sums (2,blocks): of the squares of p and of v after the update */
GLOBAL(THREADS) adamw_kernel(real *p, real *m, real *v, const real *grad, int64_t n, adamw_settings by, double *sums) {
    block_scratch &s = shared_memory<block_scratch>();
    double now[4];
#pragma unroll
    for (int k = 0; k < 4; k++) now[k] = by.now ? by.now[k] : by.given[k];
    const adamw_rule rule = adamw_rule_of(now, by.beta1, by.beta2, by.eps, by.decay);
    const bool updates = !by.now || isfinite(now[3]);
    const int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, end = least(((int64_t)blockIdx.x + 1) * BLOCK, n);
    double of_p = 0, of_v = 0;
    for (int64_t i = first; i < end; i += THREADS) {
        real own_p = p[i], own_m = m[i], own_v = v[i];
        if (updates) adamw_step(&own_p, &own_m, &own_v, grad[i], rule);
        p[i] = own_p, m[i] = own_m, v[i] = own_v;
        of_p += square(own_p), of_v += square(own_v);
    }
    of_p = block_sum(of_p, s.sums, THREADS);
    of_v = block_sum(of_v, s.sums, THREADS);
    if (threadIdx.x == 0) sums[blockIdx.x] = of_p, sums[gridDim.x + blockIdx.x] = of_v;
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

/* norm[k] = sqrt(sum of sums[k]) for sums (grid,blocks) */
GLOBAL(THREADS) root_of_sum(double *norm, const double *sums, int64_t blocks) {
    block_scratch &s = shared_memory<block_scratch>();
    double sum = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += THREADS) sum += sums[blockIdx.x * blocks + i];
    sum = block_sum(sum, s.sums, THREADS);
    if (threadIdx.x == 0) norm[blockIdx.x] = sqrt(sum);
}

}

KERNEL(adamw) {
    const double t = (double)step;
    const adamw_settings settings = {
        now, {lr, 1 - pow(beta1, t), 1 - pow(beta2, t), scale}, beta1, beta2, eps, decay};
    const int64_t blocks = pieces_of(n, BLOCK);
    double *const sums = workspace_of<double>(2, blocks);
    launch(adamw_kernel, blocks, THREADS, sizeof(block_scratch), p, m, v, grad, n, settings, sums);
    launch(root_of_sum, 2, THREADS, sizeof(block_scratch), norms, sums, blocks);
    return runtime_status();
}

KERNEL(norm) {
    const int64_t blocks = pieces_of(n, BLOCK);
    double *const sums = workspace_of<double>(blocks);
    launch(sum_squares, blocks, THREADS, sizeof(block_scratch), x, n, sums);
    launch(root_of_sum, 1, THREADS, sizeof(block_scratch), norm, sums, blocks);
    return runtime_status();
}
