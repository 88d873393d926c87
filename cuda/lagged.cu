/* Functions of a base and a lagged input on a GPU (csrc/kernels/lagged.c has the equations): a warp takes one step of a
 * sequence after the other.
 */
#include "warps.h"

#include "lagged.h"

GLOBAL2(BLOCK, BLOCKS) lagged_rows(crew c, range r, stride apart, real *out) {
    if (warp_of() >= c.count) return;
    real *const p = room_of(c);
    for (token at = first_token(apart); at.row < r.B * r.T; at = next_token(at, apart)) {
        real *const to = out + at.row * r.n;
        if (at.t >= steps_of(r.lengths, at.b, r.T)) {
            zero_row(to, r.n);
        } else if (r.function == LAGGED_LINEAR) {
            sum_row(to, &r, at.b, at.t);
        } else {
            sum_row(p, &r, at.b, at.t);
            map_row(to, p, r.n, r.function, r.eps);
        }
    }
}

KERNEL(lagged_forward) {
    const range r = {base, late, first, lengths, B, T, columns, lo, n, function, (real)eps};
    const crew c = crew_of(B * T, n);
    launch(lagged_rows, crew_blocks(c), BLOCK, c.shared, c, r, stride_of(c, T), out);
    return runtime_status();
}

/* All ranges. The host cannot see their widths: they are limited to the existing columns. */
GLOBAL2(BLOCK, BLOCKS)
lagged_ranges(crew c, range whole, stride apart, real *out, const int64_t *widths, const int64_t *functions,
              int64_t ranges) {
    if (warp_of() >= c.count) return;
    real *const p = room_of(c);
    for (token at = first_token(apart); at.row < whole.B * whole.T; at = next_token(at, apart)) {
        const bool valid = at.t < steps_of(whole.lengths, at.b, whole.T);
        join_row();
        if (valid) sum_row(p, &whole, at.b, at.t);
        join_row();
        int64_t lo = 0;
        for (int64_t i = 0; i < ranges; i++) {
            const int64_t n = least(most(widths[i], 0), whole.columns - lo);
            real *const to = out + whole.B * whole.T * lo + at.row * n;
            if (!valid)
                zero_row(to, n);
            else if (functions[i] == LAGGED_LINEAR)
                copy_row(to, p + lo, n);
            else
                map_row(to, p + lo, n, functions[i], whole.eps);
            lo += n;
        }
    }
}

KERNEL(lagged_product) {
    real *const late = workspace_of<real>(B, T, columns);
    runtime_product product = {};
    product.a = y, product.b = v, product.c = late;
    product.rows = B * T, product.columns = columns, product.inner = E;
    product.lda = product.ldb = most(E, 1), product.ldc = most(columns, 1);
    product.b_turned = true, product.count = 1;
    multiply_matrices(product);
    const range whole = {base, late, first, lengths, B, T, columns, 0, columns, LAGGED_LINEAR, (real)eps};
    const crew c = crew_of(B * T, columns);
    launch(lagged_ranges, crew_blocks(c), BLOCK, c.shared, c, whole, stride_of(c, T), out, widths, functions, ranges);
    return runtime_status();
}

GLOBAL2(BLOCK, BLOCKS)
lagged_rows_backward(crew c, range r, stride apart, real *dbase, real *dlate, real *dfirst, const real *dout) {
    if (warp_of() >= c.count) return;
    real *const p = room_of(c), *const w = p + r.n;
    for (token at = first_token(apart); at.row < r.B * r.T; at = next_token(at, apart)) {
        const int64_t here = at.row * r.columns + r.lo;
        real *const dp = dbase + here;
        if (at.t >= steps_of(r.lengths, at.b, r.T)) {
            zero_row(dp, r.n);
        } else if (r.function == LAGGED_LINEAR) {
            copy_row(dp, dout + at.row * r.n, r.n);
        } else {
            sum_row(p, &r, at.b, at.t);
            map_row_adjoint(dp, dout + at.row * r.n, p, w, r.n, r.function, r.eps);
        }
        if (dlate && at.t) copy_row(dlate + here - r.columns, dp, r.n);
        if (dlate && at.t == r.T - 1) zero_row(dlate + here, r.n);
        if (dfirst && !at.t) copy_row(dfirst + at.b * r.columns + r.lo, dp, r.n);
    }
}

KERNEL(lagged_backward) {
    const range r = {base, late, first, lengths, B, T, columns, lo, n, function, (real)eps};
    const crew c = crew_of(B * T, 2 * n);
    launch(lagged_rows_backward, crew_blocks(c), BLOCK, c.shared, c, r, stride_of(c, T), dbase, dlate, dfirst, dout);
    if (dfirst && !T) each(B * n, [=] __device__(int64_t i) { dfirst[i / n * columns + lo + i % n] = 0; });
    return runtime_status();
}
