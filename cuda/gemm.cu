/* Products of activations with weights on a GPU (csrc/kernels/gemm.c): cuBLAS, and sums around it. */
#include "sums.h"

enum {
    GROUP_ROWS = 512, /* smallest number of rows with their own partial sum */
    MAX_GROUPS = 64,
    MIN_GROUPS = 4, /* if there are enough rows: no sum is much longer than on the CPU */
    TILE = 128,     /* approximate rows and columns of a block of cuBLAS */
    ENOUGH = 256,   /* such blocks that use the whole GPU */
};

KERNEL(matmul) {
    runtime_product p = {};
    p.a = x, p.b = w, p.c = y, p.b_turned = transposed, p.count = 1;
    p.rows = M, p.columns = d_out, p.inner = d_in;
    p.lda = d_in, p.ldb = transposed ? d_in : d_out, p.ldc = d_out;
    multiply_matrices(p);
    if (bias) each(M * d_out, [=] __device__(int64_t i) { y[i] += bias[i % d_out]; });
    return runtime_status();
}

/* Number of groups of rows with a partial sum each. */
static int64_t groups_of(int64_t M, int64_t d_in, int64_t d_out) {
    const int64_t blocks = most(pieces_of(d_in, TILE) * pieces_of(d_out, TILE), 1);
    return parts_of(M, GROUP_ROWS, least(most(ENOUGH / blocks, MIN_GROUPS), MAX_GROUPS));
}

KERNEL(matmul_weight_grad) {
    const int64_t groups = groups_of(M, d_in, d_out), rows = M / groups, size = d_in * d_out, done = groups * rows;
    real *const sums = groups == 1 ? dw : workspace_of<real>(groups, size);
    runtime_product p = {};
    p.a = dy, p.b = x, p.c = sums, p.a_turned = true, p.count = groups;
    p.rows = d_out, p.columns = d_in, p.inner = rows;
    p.lda = d_out, p.ldb = d_in, p.ldc = d_in;
    p.a_apart = rows * d_out, p.b_apart = rows * d_in, p.c_apart = size;
    multiply_matrices(p);
    p.a = dy + done * d_out, p.b = x + done * d_in, p.inner = M - done, p.count = 1, p.keep = true; /* the rest */
    multiply_matrices(p);
    if (groups > 1) sum_rows(dw, sums, groups, size);
    if (dbias) sum_rows(dbias, dy, M, d_out);
    return runtime_status();
}

KERNEL(matmul_stack) {
    runtime_product p = {};
    p.a = x, p.b = w, p.c = y, p.count = G;
    p.rows = M, p.columns = d_out, p.inner = d_in;
    p.lda = d_in, p.ldb = d_out, p.ldc = d_out;
    p.a_apart = M * d_in, p.b_apart = d_in * d_out, p.c_apart = M * d_out;
    multiply_matrices(p);
    return runtime_status();
}
