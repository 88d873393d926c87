/* Functions of a base and a lagged input, each for a range of columns, and their adjoints:
 *
 *   p_t = base_t + late_{t-1},  late_{-1} = first;   out_t = f(p_t at columns lo .. lo + n - 1)
 *
 * base and late are (B,T,columns), first (B,columns); late and first may be NULL, which means zero. Functions:
 *   LAGGED_LINEAR p,   LAGGED_SIGMOID s(p),   LAGGED_SILU p s(p),   LAGGED_SOFTPLUS log(1 + e^p),
 *   LAGGED_UNIT p / max(|p|, eps) over the range, zero for zero
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are zero in every output.
 */
#include "lagged.h"
#include "gemm_tile.h"
#include "kernels.h"
#include "lanes.h"
#include "stop.h"
#include "workspace.h"

enum { ROWS = 64, SERIAL = 32768 };

/* out (B,T,n) */
KERNEL(lagged_forward) {
    const range r = {base, late, first, lengths, B, T, columns, lo, n, function, (real)eps};
    const int64_t pieces = pieces_of(T, ROWS);
    real *const rows = WORKSPACE(real, B, pieces, n);
    if (!rows) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(dynamic) if (B * T * n > SERIAL)
    for (int64_t piece = 0; piece < B * pieces; piece++) {
        const int64_t b = piece / pieces, from = piece % pieces * ROWS, to = least(from + ROWS, T);
        for (int64_t t = from; t < to; t++) lagged_row(out + (b * T + t) * n, rows + piece * n, &r, b, t);
    }
    pool_give(rows);
    return ROT_OK;
}

/* The same for all ranges, with late = y V^T computed in the same pass: y (B,T,E), v (columns,E). `out` holds one range
 * after the other, each (B,T,width); their widths sum to columns. */
KERNEL(lagged_product) {
    int64_t rest = columns;
    for (int64_t i = 0; i < ranges; i++) rest -= widths[i] <= rest ? widths[i] : rest + 1;
    if (rest) return ROT_OUT_OF_RANGE;
    const range whole = {base, NULL, first, lengths, B, T, columns, 0, columns, LAGGED_LINEAR, 0};
    const int64_t rows = 10 * MR, pieces = pieces_of(T, rows);
    real *const packed = WORKSPACE(real, packed_columns(columns), E), *const scratch = WORKSPACE(real, most_threads(),
                                                                                                 rows, columns);
    if (!packed || !scratch) {
        pool_give(packed);
        pool_give(scratch);
        return ROT_NO_MEMORY;
    }
    const rounding how = rounding_of_call();
    pack_rounded(packed, v, E, columns, 1, E, how);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (B * T * columns > SERIAL)
    for (int64_t piece = 0; piece < B * pieces; piece++) {
        if (stopped(stop)) continue;
        const int64_t b = piece / pieces, from = piece % pieces * rows, to = least(from + rows, T);
        const int64_t valid = steps_of(lengths, b, T), some = least(to, valid) - from;
        real *const p = scratch + thread_number() * rows * columns;
        const int64_t skip = from == 0; /* the first step has no output before it */
        if (skip && some > 0) sum_row(p, &whole, b, 0);
        if (some > skip) {
            const gemm_view before = {y + (b * T + from + skip - 1) * E, E, 1};
            product(p + skip * columns, columns, base + (b * T + from + skip) * columns, columns, before, packed,
                    some - skip, E, columns, how);
        }
        int64_t lo = 0;
        for (int64_t i = 0; i < ranges; lo += widths[i], i++) {
            const int64_t n = widths[i];
            const size_t row = (size_t)n * sizeof(real);
            real *const at = out + B * T * lo + (b * T + from) * n;
            for (int64_t t = 0; t < to - from; t++) {
                if (t >= some)
                    memset(at + t * n, 0, row);
                else if (functions[i] == LAGGED_LINEAR)
                    memcpy(at + t * n, p + t * columns + lo, row);
                else
                    map_row(at + t * n, p + t * columns + lo, n, functions[i], (real)eps);
            }
        }
    }
    pool_give(packed);
    pool_give(scratch);
    return ROT_OK;
}

/* The range's columns of dbase (B,T,columns), dlate (B,T,columns) or NULL and dfirst (B,columns) or NULL, overwritten:
 *   dbase_t = f'(p_t)^T dout_t,   dlate_t = dbase_{t+1}, 0 at the last step,   dfirst = dbase_0. */
KERNEL(lagged_backward) {
    const range r = {base, late, first, lengths, B, T, columns, lo, n, function, (real)eps};
    const int64_t pieces = pieces_of(T, ROWS);
    const size_t row = (size_t)n * sizeof(real);
    real *const rows = WORKSPACE(real, B, pieces, 2, n);
    if (!rows) return ROT_NO_MEMORY;
    for (int64_t b = 0; b < B; b++) {
        if (dfirst) memset(dfirst + b * columns + lo, 0, row);
        if (dlate && T) memset(dlate + (b * T + T - 1) * columns + lo, 0, row);
    }
#pragma omp parallel for schedule(dynamic) if (B * T * n > SERIAL)
    for (int64_t piece = 0; piece < B * pieces; piece++) {
        const int64_t b = piece / pieces, from = piece % pieces * ROWS, to = least(from + ROWS, T);
        const int64_t valid = steps_of(lengths, b, T);
        real *const p = rows + piece * 2 * n;
        for (int64_t t = from; t < to; t++) {
            real *const dp = dbase + (b * T + t) * columns + lo;
            if (t >= valid) {
                memset(dp, 0, row);
            } else if (function == LAGGED_LINEAR) {
                memcpy(dp, dout + (b * T + t) * n, row);
            } else {
                sum_row(p, &r, b, t);
                map_row_adjoint(dp, dout + (b * T + t) * n, p, p + n, n, function, r.eps);
            }
            if (t && dlate) memcpy(dlate + (b * T + t - 1) * columns + lo, dp, row);
            if (!t && dfirst) memcpy(dfirst + b * columns + lo, dp, row);
        }
    }
    pool_give(rows);
    return ROT_OK;
}
