/* A residual block, or a linear layer alone, on a GPU (csrc/kernels/block.c has the equations).
 *
 * Products are the matrix library's. Between them are a scan of each direction, and in each pass two walks over rows:
 *
 *   v = W x                            W = W_in diag(gain): the channel norm is part of the weights, and its constant
 *   h <- scan of v + c                 c = W_in (offset - gain center) is added by the scan
 *   out = W_out h                      of each direction
 *   layer = out + skip xn   z = mask GELU(layer)
 *   value, gate = W_v z, W_g z         one product
 *   y = x + mask value s(gate)         with the moments of y
 *
 * and backward z and the second product again, then
 *
 *   dvalue, dgate                      from dy and what `later` adds, with the sums of the biases' gradients
 *   dz = W_v^T dvalue + W_g^T dgate    and the gradient of both weights, a product each
 *   dlayer = mask GELU'(layer) dz      with the sum of skip's gradient
 *   dh = W_out^T dlayer                and the gradient of W_out, of each direction
 *   g <- adjoint scan of dh            with the sums of a's gradient, and of g, for the gradient of W_in by the norm
 *   r = W_in^T g                       and sum g x^T
 *   dx = dy + gain (r + skip dlayer)   with the norm's sums
 *
 * The normed input is an array only with the row norm. Every state is kept: `carries` has those before each step, and
 * hT the last one. Arrays that belong to states, their products' results and gradients, are such pairs, too, so that
 * one product works on all states before steps and a small one on the last: rows_of_states.
 *
 * What is summed over rows by a product has zeros in the padding: states, z and all gradients, and a copy of x.
 */
#include "exact.h"
#include "masks.h"
#include "row_walk.h"
#include "scan.h"

enum {
    SCAN_THREADS = 64,                  /* of a block: with few planes there is a block for every processor */
    AHEAD = sizeof(real) == 4 ? 16 : 8, /* steps read ahead of their use, of one array */
    SUM_STEPS = 128,                    /* steps of one partial sum of the scan's adjoint */
    ROW_THREADS = 256,                  /* of kernels whose warps have a row each */
};

/* ------------------------------------------------------------------------------------------------- rows of states */

/* Rows of n numbers that belong to one direction's states: before (B,T,n) to those before each step, last (B,n) to the
 * final ones. */
struct rows_of_states {
    real *before, *last;
};

/* Time as a direction runs through it */
struct direction {
    int64_t T;
    bool reverse;
};
ROT_DEVICE_ONLY int64_t first_step(direction d, int64_t steps) { return d.reverse ? steps - 1 : 0; }
ROT_DEVICE_ONLY int64_t last_step(direction d, int64_t steps) { return d.reverse ? 0 : steps - 1; }

/* The row that belongs to the state after step t of sequence b, which has so many steps. */
ROT_DEVICE_ONLY real *row_after(rows_of_states r, direction d, int64_t b, int64_t t, int64_t steps, int64_t n) {
    return t == last_step(d, steps) ? r.last + b * n : r.before + (b * d.T + t + (d.reverse ? -1 : 1)) * n;
}

/* ------------------------------------------------------------------------------------------------------ products */

/* A stored matrix, whose rows are so far apart, or its transpose */
struct matrix {
    const real *at;
    int64_t apart;
    bool turned;
};

/* c (rows,columns) = a b, or c += */
static void multiply(real *c, matrix a, matrix b, int64_t rows, int64_t columns, int64_t inner, bool keep) {
    runtime_product p = {};
    p.a = a.at, p.lda = most(a.apart, 1), p.a_turned = a.turned;
    p.b = b.at, p.ldb = most(b.apart, 1), p.b_turned = b.turned;
    p.c = c, p.ldc = most(columns, 1), p.keep = keep;
    p.rows = rows, p.columns = columns, p.inner = inner, p.count = 1;
    multiply_matrices(p);
}

/* y = x w^T for x (M,in), w (out,in) */
static void project(real *y, const real *x, const real *w, int64_t M, int64_t in, int64_t out) {
    multiply(y, {x, in, false}, {w, in, true}, M, out, in, false);
}

/* dx = dy w for dy (M,out) */
static void project_adjoint(real *dx, const real *dy, const real *w, int64_t M, int64_t in, int64_t out) {
    multiply(dx, {dy, out, false}, {w, in, false}, M, in, out, false);
}

/* dw = dy^T x, or dw += */
static void weight_gradient(real *dw, const real *dy, const real *x, int64_t M, int64_t in, int64_t out, bool keep) {
    multiply(dw, {dy, out, true}, {x, in, false}, out, in, M, keep);
}

/* -------------------------------------------------------------------------------------------------------- a call */

/* What enters the layer at a place: x, or its channel norm if there is a center. */
struct entrance {
    const real *x, *center, *gain, *offset;
};
template <int V> ROT_DEVICE_ONLY pack<V> entering(entrance e, place p) {
    pack<V> x = read<V>(e.x + p.at);
    if (!e.center) return x;
    const pack<V> center = read<V>(e.center + p.column), gain = read<V>(e.gain + p.column);
    const pack<V> offset = read<V>(e.offset + p.column);
#pragma unroll
    for (int i = 0; i < V; i++) x.of[i] = channel_norm(x.of[i], center.of[i], gain.of[i], offset.of[i]);
    return x;
}

/* The gradient of the block's output at a place: dy, with what `later` adds. */
struct arrival {
    const real *dy, *y, *center, *slope, *shift;
};
template <int V> ROT_DEVICE_ONLY pack<V> arriving(arrival a, place p) {
    pack<V> dy = read<V>(a.dy + p.at);
    if (!a.y) return dy;
    const pack<V> y = read<V>(a.y + p.at), center = read<V>(a.center + p.column);
    const pack<V> slope = read<V>(a.slope + p.column), shift = read<V>(a.shift + p.column);
#pragma unroll
    for (int i = 0; i < V; i++)
        dy.of[i] = channel_norm_adjoint(dy.of[i], y.of[i], center.of[i], slope.of[i], shift.of[i]);
    return dy;
}

/* One of the block's two dropouts */
struct dropping {
    bool on, over_time;
    mask_key key;
    const int64_t *places;
    int64_t D;
};
template <int V> ROT_DEVICE_ONLY void drop(dropping d, place p, pack<V> &x) {
    if (!d.on) return;
    uint32_t words[4];
    const int64_t i = (d.over_time ? 0 : p.t * d.D) + p.column;
    draw_words(words, d.key, batch_place(d.places, p.b), i / 4 * 4);
    if (V == 4) {
#pragma unroll
        for (int k = 0; k < V; k++) x.of[k] *= mask_factor(words[k], d.key);
    } else {
        const uint32_t low = i % 2 ? words[1] : words[0], high = i % 2 ? words[3] : words[2];
        x.of[0] *= mask_factor(i % 4 < 2 ? low : high, d.key);
    }
}

/* Rows of the gate's product: its `wide` numbers of a step are values and gates in the full form, else gates alone. */
struct gating {
    int64_t form, D, wide;
    const real *b_value, *b_gate, *other; /* the value in a half form: z, or the layer's output */
};
template <int V> struct value_and_gate {
    pack<V> value, gate;
};
ROT_DEVICE_ONLY int64_t value_at(gating g, place p) { return p.row * g.wide + p.column; }
ROT_DEVICE_ONLY int64_t gate_at(gating g, place p) { return p.row * g.wide + g.wide - g.D + p.column; }

template <int V> ROT_DEVICE_ONLY value_and_gate<V> gates(gating g, const real *product, place p) {
    const bool full = g.form == GATE_FULL;
    value_and_gate<V> r;
    r.gate = read<V>(product + gate_at(g, p)), r.value = read<V>(full ? product + value_at(g, p) : g.other + p.at);
    const pack<V> b_gate = read<V>(g.b_gate + p.column);
#pragma unroll
    for (int i = 0; i < V; i++) r.gate.of[i] += b_gate.of[i];
    if (!full) return r;
    const pack<V> b_value = read<V>(g.b_value + p.column);
#pragma unroll
    for (int i = 0; i < V; i++) r.value.of[i] += b_value.of[i];
    return r;
}

/* ------------------------------------------------------------------------------------------------ walks over rows */

namespace { /* the same names are other functions in each dtype */

template <int V> ROT_DEVICE_ONLY void write_if(real *to, int64_t at, pack<V> x) {
    if (to) write<V>(to + at, x);
}

/* y = x, with zeros in the padding */
struct mask_walk {
    enum { SUMS = 0 };
    real *y;
    const real *x;
    template <int V> __device__ void step(place p, pack<V> *) const {
        const pack<V> zero = {};
        write<V>(y + p.at, p.valid ? read<V>(x + p.at) : zero);
    }
};

/* layer = out + skip xn, or as it was kept;  z = mask GELU(layer). Padding is zero. */
struct layer_walk {
    enum { SUMS = 0 };
    real *layer, *z; /* or NULL */
    const real *kept;
    entrance in;
    const real *skip;
    rows_of_states out[2];
    int64_t directions, T, D;
    dropping mask;

    template <int V> __device__ pack<V> output(place p) const {
        if (kept) return read<V>(kept + p.at);
        const pack<V> xn = entering<V>(in, p), factor = read<V>(skip + p.column);
        pack<V> y;
#pragma unroll
        for (int i = 0; i < V; i++) y.of[i] = factor.of[i] * xn.of[i];
#pragma unroll
        for (int k = 1; k >= 0; k--) {
            if (k >= directions) continue;
            const direction d = {T, k == 1};
            const pack<V> one = read<V>(row_after(out[k], d, p.b, p.t, p.steps, D) + p.column);
#pragma unroll
            for (int i = 0; i < V; i++) y.of[i] += one.of[i];
        }
        return y;
    }

    template <int V> __device__ void step(place p, pack<V> *) const {
        const pack<V> zero = {}, y = p.valid ? output<V>(p) : zero;
        write_if<V>(layer, p.at, y);
        if (!z) return;
        pack<V> active = zero;
        if (p.valid) {
#pragma unroll
            for (int i = 0; i < V; i++) active.of[i] = gelu(y.of[i]);
            drop<V>(mask, p, active);
        }
        write<V>(z + p.at, active);
    }
};

/* y = x + mask value s(gate); padding is zero. */
struct gate_walk {
    real *y;
    const real *x, *product;
    gating gate;
    dropping mask;

    template <int V> __device__ pack<V> step(place p) const {
        pack<V> r = {};
        if (p.valid) {
            const value_and_gate<V> g = gates<V>(gate, product, p);
            const pack<V> before = read<V>(x + p.at);
#pragma unroll
            for (int i = 0; i < V; i++) r.of[i] = glu(g.value.of[i], g.gate.of[i]);
            drop<V>(mask, p, r);
#pragma unroll
            for (int i = 0; i < V; i++) r.of[i] += before.of[i];
        }
        write<V>(y + p.at, r);
        return r;
    }
};

/* The gate's product <- its gradient; in a half form, `dvalue` is that of the value. Sums: of both. */
struct gate_adjoint_walk {
    enum { SUMS = 2 };
    real *product, *dvalue;
    arrival dy;
    gating gate;
    dropping mask;

    template <int V> __device__ void step(place p, pack<V> *sums) const {
        pack<V> value = {}, slope = {};
        if (p.valid) {
            const value_and_gate<V> g = gates<V>(gate, product, p);
            pack<V> d = arriving<V>(dy, p);
            drop<V>(mask, p, d);
#pragma unroll
            for (int i = 0; i < V; i++) {
                const glu_parts parts = glu_adjoint(d.of[i], g.value.of[i], g.gate.of[i]);
                value.of[i] = parts.value, slope.of[i] = parts.gate;
                sums[0].of[i] += parts.value, sums[1].of[i] += parts.gate;
            }
        }
        write<V>(gate.form == GATE_FULL ? product + value_at(gate, p) : dvalue + p.at, value);
        write<V>(product + gate_at(gate, p), slope);
    }
};

/* The gradient of the layer's output, as the rows of the states after each step: from dz, through dropout and GELU, or
 * without a gate dy itself. The states before all steps have zeros, as does padding. Sum: of the gradient times xn. */
struct layer_adjoint_walk {
    enum { SUMS = 1 };
    rows_of_states out[2];
    int64_t directions, T, D, form;
    arrival dy;
    const real *dz, *layer, *dvalue;
    entrance in;
    dropping mask;

    template <int V> __device__ pack<V> gradient(place p) const {
        if (form == GATE_NONE) return arriving<V>(dy, p);
        pack<V> d = read<V>(dz + p.at), direct = {};
        const pack<V> y = read<V>(layer + p.at);
        if (dvalue) direct = read<V>(dvalue + p.at);
        if (form == GATE_HALF1)
#pragma unroll
            for (int i = 0; i < V; i++) d.of[i] += direct.of[i];
        drop<V>(mask, p, d);
#pragma unroll
        for (int i = 0; i < V; i++) d.of[i] *= gelu_slope(y.of[i]);
        if (form == GATE_HALF2)
#pragma unroll
            for (int i = 0; i < V; i++) d.of[i] += direct.of[i];
        return d;
    }

    template <int V> __device__ void step(place p, pack<V> *sums) const {
        const pack<V> zero = {};
        pack<V> d = zero;
        if (p.valid) {
            const pack<V> xn = entering<V>(in, p);
            d = gradient<V>(p);
#pragma unroll
            for (int i = 0; i < V; i++) sums[0].of[i] += d.of[i] * xn.of[i];
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const direction way = {T, k == 1};
            if (k >= directions) continue;
            if (p.valid) write<V>(row_after(out[k], way, p.b, p.t, p.steps, D) + p.column, d);
            if (!p.valid || p.t == first_step(way, p.steps)) write<V>(out[k].before + p.at, zero);
        }
    }
};

/* The gradient of the norm's output, dxn = r + skip dlayer. With the channel norm dx = dy + gain dxn, and sums of dxn
 * and dxn (x - center); with the row norm dx = dxn, and sums of dxn and dxn xhat; else dx = dxn + dy, or without a gate
 * dx = dxn. Padding is zero. */
struct input_adjoint_walk {
    enum { SUMS = 2 };
    real *dx;
    const real *r, *skip, *x, *center, *gain, *mean, *rstd;
    rows_of_states dlayer;
    arrival dy; /* dy NULL: none */
    int64_t norm, T, D;

    template <int V> __device__ void step(place p, pack<V> *sums) const {
        pack<V> d = {};
        if (p.valid) {
            const direction forward = {T, false};
            const pack<V> factor = read<V>(skip + p.column);
            const pack<V> out = read<V>(row_after(dlayer, forward, p.b, p.t, p.steps, D) + p.column);
            d = read<V>(r + p.at);
#pragma unroll
            for (int i = 0; i < V; i++) d.of[i] += factor.of[i] * out.of[i];
            if (norm != NORM_NONE) add_to_sums<V>(p, d, sums);
            if (norm == NORM_CHANNEL) {
                const pack<V> by = read<V>(gain + p.column);
#pragma unroll
                for (int i = 0; i < V; i++) d.of[i] *= by.of[i];
            }
            if (dy.dy && norm != NORM_ROW) {
                const pack<V> direct = arriving<V>(dy, p);
#pragma unroll
                for (int i = 0; i < V; i++) d.of[i] += direct.of[i];
            }
        }
        write<V>(dx + p.at, d);
    }

    template <int V> __device__ void add_to_sums(place p, pack<V> d, pack<V> *sums) const {
        const pack<V> here = read<V>(x + p.at);
        pack<V> middle = {};
        if (norm == NORM_CHANNEL) middle = read<V>(center + p.column);
#pragma unroll
        for (int i = 0; i < V; i++) {
            const real apart =
                norm == NORM_ROW ? layer_norm_xhat(here.of[i], mean[p.row], rstd[p.row]) : here.of[i] - middle.of[i];
            sums[0].of[i] += d.of[i], sums[1].of[i] += d.of[i] * apart;
        }
    }
};

}

/* --------------------------------------------------------------------------------------------------------- norms */

/* This warp's row, and how many numbers its lanes take. */
ROT_DEVICE_ONLY int64_t row_of_warp() { return (int64_t)blockIdx.x * (ROW_THREADS / 32) + threadIdx.x / 32; }

/* folded (L,D) = w diag(gain),  constant (L) = w (offset - gain center) */
GLOBAL(ROW_THREADS)
fold_norm(real *folded, real *constant, const real *w, const real *center, const real *gain, const real *offset,
          int64_t L, int64_t D) {
    const int64_t l = row_of_warp();
    if (l >= L) return;
    double sum = 0;
    for (int64_t d = threadIdx.x % 32; d < D; d += 32) {
        const real x = w[l * D + d];
        folded[l * D + d] = x * gain[d];
        sum += (double)x * (double)channel_norm(0, center[d], gain[d], offset[d]);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) constant[l] = (real)sum;
}

/* xn (rows,D), mean, rstd (rows) of the row norm; padding is zero. */
GLOBAL(ROW_THREADS)
norm_rows(real *xn, real *mean, real *rstd, const real *x, const real *scale, const real *bias, const int64_t *lengths,
          int64_t rows, int64_t T, int64_t D, real eps) {
    const int64_t row = row_of_warp(), lane = threadIdx.x % 32;
    if (row >= rows) return;
    const bool valid = row % T < steps_of(lengths, row / T, T);
    real sum = 0, squares = 0;
    for (int64_t d = lane; valid && d < D; d += 32) sum += x[row * D + d];
    const real middle = warp_sum(sum) / (real)D;
    for (int64_t d = lane; valid && d < D; d += 32) squares += (x[row * D + d] - middle) * (x[row * D + d] - middle);
    const real by = (real)(1 / sqrt((double)(warp_sum(squares) / (real)D + eps)));
    for (int64_t d = lane; d < D; d += 32)
        xn[row * D + d] = valid ? layer_norm_step(layer_norm_xhat(x[row * D + d], middle, by), scale[d], bias[d]) : 0;
    if (lane == 0) mean[row] = middle, rstd[row] = by;
}

/* dx <- dy + the adjoint of the row norm at dxn, which dx has */
GLOBAL(ROW_THREADS)
norm_rows_adjoint(real *dx, arrival dy, const real *x, const real *mean, const real *rstd, const real *scale,
                  const int64_t *lengths, int64_t rows, int64_t T, int64_t D) {
    const int64_t row = row_of_warp(), lane = threadIdx.x % 32;
    if (row >= rows || row % T >= steps_of(lengths, row / T, T)) return;
    const real middle = mean[row], by = rstd[row];
    real sum = 0, product = 0;
    for (int64_t d = lane; d < D; d += 32) {
        const real g = dx[row * D + d] * scale[d];
        sum += g, product += g * layer_norm_xhat(x[row * D + d], middle, by);
    }
    sum = warp_sum(sum) / (real)D, product = warp_sum(product) / (real)D;
    for (int64_t d = lane; d < D; d += 32) {
        place p = {};
        p.at = row * D + d, p.column = d;
        const real xhat = layer_norm_xhat(x[p.at], middle, by), direct = dy.dy ? arriving<1>(dy, p).of[0] : 0;
        dx[p.at] = layer_norm_step_adjoint(dx[p.at] * scale[d], xhat, by, sum, product) + direct;
    }
}

/* --------------------------------------------------------------------------------------------------------- scans */

/* A plane of arrays whose rows have pairs side by side */
ROT_DEVICE_ONLY cplx read_plane(const cplx *p) {
    const pack<2> x = read<2>((const real *)p);
    const cplx z = {x.of[0], x.of[1]};
    return z;
}
ROT_DEVICE_ONLY void write_plane(cplx *p, cplx z) {
    const pack<2> x = {{z.re, z.im}};
    write<2>((real *)p, x);
}

/* States of two kinds: as the arrays have them, and exact ones, in double precision. */
ROT_DEVICE_ONLY cplx step_of_state(cplx a, cplx h, cplx v) { return plane_step(a, h, v); }
ROT_DEVICE_ONLY exact step_of_state(exact a, exact h, cplx v) { return exact_step(a, h, v); }
ROT_DEVICE_ONLY cplx rounded(cplx h) { return h; }
ROT_DEVICE_ONLY cplx rounded(exact h) { return exact_rounded(h); }
ROT_DEVICE_ONLY exact widened(cplx h) { return exact_of(h); }
ROT_DEVICE_ONLY exact widened(exact h) { return h; }
ROT_DEVICE_ONLY void assign(cplx &h, exact x) { h = exact_rounded(x); }
ROT_DEVICE_ONLY void assign(exact &h, exact x) { h = x; }

ROT_DEVICE_ONLY exact conjugate(exact a) {
    const exact r = {a.re, -a.im};
    return r;
}

/* The state before a segment: from those between segments, or from the first one's; or NULL for zero. */
ROT_DEVICE_ONLY exact state_before(cut c, piece p, const exact *between, const cplx *first, int64_t i) {
    const exact zero = {0, 0};
    return between ? between[i] : first ? exact_of(first[p.b * c.N + p.n]) : zero;
}

/* between (B,segments,N): the last state of each segment from zero */
template <class S>
GLOBAL(SCAN_THREADS)
ends_of_states(cut c, exact *between, const S *a, const cplx *v, const cplx *constant, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    const S turn = a[p.n];
    const cplx zero = {0, 0}, plus = constant ? constant[p.n] : zero;
    S h = {0, 0};
    pipelined<AHEAD>(
        p.w.steps, [&](int64_t t) { return read_plane(v + p.w.first + t * p.w.stride); },
        [&](int64_t, cplx x) { h = step_of_state(turn, h, cplx_add(x, plus)); });
    between[i] = widened(h);
}

/* between <- the states before each segment, from `first` (B,N) or NULL; backward, with the conjugate transition */
template <class S> GLOBAL(SCAN_THREADS) pass_on(cut c, exact *between, const S *a, const cplx *first, bool backward) {
    const int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    if (i >= c.B * c.N) return;
    const int64_t b = i / c.N, n = i % c.N;
    const exact turn = exact_power(backward ? conjugate(widened(a[n])) : widened(a[n]), c.steps);
    exact h = {0, 0};
    if (first) h = exact_of(first[i]);
    exact *const mine = between + b * c.segments * c.N + n;
    pipelined<8>(
        c.segments, [&](int64_t k) { return mine[k * c.N]; },
        [&](int64_t k, exact last) {
            mine[k * c.N] = h;
            h = h.re == 0 && h.im == 0 ? last : exact_add(exact_mul(turn, h), last); /* the power may be infinite */
        });
}

/* The states before each step, and the last */
template <class S>
GLOBAL(SCAN_THREADS)
run_states(cut c, cplx *before, cplx *last, const S *a, const cplx *v, const cplx *constant, const cplx *first,
           const exact *between, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    const S turn = a[p.n];
    const cplx zero = {0, 0}, plus = constant ? constant[p.n] : zero;
    S h;
    assign(h, state_before(c, p, between, first, i));
    pipelined<AHEAD>(
        p.w.steps, [&](int64_t t) { return read_plane(v + p.w.first + t * p.w.stride); },
        [&](int64_t t, cplx x) {
            write_plane(before + p.w.first + t * p.w.stride, rounded(h));
            h = step_of_state(turn, h, cplx_add(x, plus));
        });
    if (p.last) last[p.b * c.N + p.n] = rounded(h);
    zero_padding(before, c, p);
}

template <class S>
static void scan(cut c, rows_of_states h, const S *a, const real *v, const real *constant, const real *first) {
    const int64_t count = c.B * c.N * c.segments, blocks = pieces_of(count, SCAN_THREADS);
    const cplx *const from = (const cplx *)first, *const x = (const cplx *)v, *const plus = (const cplx *)constant;
    exact *between = NULL;
    if (c.segments > 1) {
        between = workspace_of<exact>(count);
        launch(ends_of_states<S>, blocks, SCAN_THREADS, 0, c, between, a, x, plus, count);
        launch(pass_on<S>, pieces_of(c.B * c.N, SCAN_THREADS), SCAN_THREADS, 0, c, between, a, from, false);
    }
    launch(run_states<S>, blocks, SCAN_THREADS, 0, c, (cplx *)h.before, (cplx *)h.last, a, x, plus, from, between,
           count);
}

/* Backward, q is the gradient of the state after a step from later steps:  g = dh + q,  q <- conj(a) g. */
ROT_DEVICE_ONLY cplx past_adjoint(cplx a, cplx g) {
    const cplx zero = {0, 0};
    return plane_step_adjoint(a, g, zero);
}

/* The gradient of the state after step t of the piece's walk, from the rows of the states before each step. */
ROT_DEVICE_ONLY cplx gradient_after(cut c, const cplx *before, const cplx *last, piece p, int64_t t) {
    return p.first && t == 0 ? last[p.b * c.N + p.n] : read_plane(before + p.w.first + (t - 1) * p.w.stride);
}

/* between (B,segments,N): q at the end of each segment's walk from zero */
GLOBAL(SCAN_THREADS)
ends_of_adjoint(cut c, exact *between, const cplx *a, const cplx *dh, const cplx *dh_last, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    const cplx turn = a[p.n];
    cplx q = {0, 0};
    pipelined<AHEAD>(
        p.w.steps, [&](int64_t t) { return gradient_after(c, dh, dh_last, p, t); },
        [&](int64_t, cplx d) { q = past_adjoint(turn, cplx_add(d, q)); });
    between[i] = exact_of(q);
}

struct step_of_adjoint {
    cplx dh, h, g;
};

/* g (B,T,N), or g += with ADD, and q at the first step as dh0. Sums (B,segments,N): da, and of this direction's g. */
template <bool ADD>
GLOBAL(SCAN_THREADS)
run_adjoint(cut c, cplx *g, cplx *dh0, cplx *da, cplx *sums, const cplx *a, const cplx *dh, const cplx *dh_last,
            const cplx *before, const cplx *dhT, const exact *between, int64_t count) {
    const int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    if (i >= count) return;
    const piece p = piece_of(c, i);
    const cplx turn = a[p.n], zero = {0, 0};
    cplx q = exact_rounded(state_before(c, p, between, dhT, i));
    cplx total = zero, run = zero, sum = zero, run_sum = zero;
    pipelined<ADD ? AHEAD / 4 : AHEAD / 2>(
        p.w.steps,
        [&](int64_t t) {
            const int64_t at = p.w.first + t * p.w.stride;
            step_of_adjoint step;
            step.dh = gradient_after(c, dh, dh_last, p, t);
            step.h = read_plane(before + at);
            step.g = ADD ? read_plane(g + at) : zero;
            return step;
        },
        [&](int64_t t, step_of_adjoint step) {
            const cplx here = cplx_add(step.dh, q);
            q = past_adjoint(turn, here);
            write_plane(g + p.w.first + t * p.w.stride, cplx_add(here, step.g));
            run = plane_transition_adjoint(here, step.h, run);
            run_sum = cplx_add(run_sum, here);
            if (t % SUM_STEPS == SUM_STEPS - 1) {
                total = cplx_add(total, run), run = zero;
                sum = cplx_add(sum, run_sum), run_sum = zero;
            }
        });
    da[i] = cplx_add(total, run), sums[i] = cplx_add(sum, run_sum);
    if (p.last) dh0[p.b * c.N + p.n] = q;
    if (!ADD) zero_padding(g, c, p);
}

static void scan_adjoint(cut c, real *g, real *dh0, real *da, real *sums, const real *a, rows_of_states dh,
                         const real *before, const real *dhT, bool add) {
    const int64_t count = c.B * c.N * c.segments, blocks = pieces_of(count, SCAN_THREADS);
    const cplx *const turn = (const cplx *)a, *const d = (const cplx *)dh.before, *const d_last = (const cplx *)dh.last;
    const cplx *const last = (const cplx *)dhT;
    exact *between = NULL;
    if (c.segments > 1) {
        between = workspace_of<exact>(count);
        launch(ends_of_adjoint, blocks, SCAN_THREADS, 0, c, between, turn, d, d_last, count);
        launch(pass_on<cplx>, pieces_of(c.B * c.N, SCAN_THREADS), SCAN_THREADS, 0, c, between, turn, last, true);
    }
    launch(add ? run_adjoint<true> : run_adjoint<false>, blocks, SCAN_THREADS, 0, c, (cplx *)g, (cplx *)dh0, (cplx *)da,
           (cplx *)sums, turn, d, d_last, (const cplx *)before, last, (const exact *)between, count);
}

/* ---------------------------------------------------------------------------------------------- parts of a block */

/* The input of the layer's products: rows (M,D), weights with the norm folded in, and its constant, or NULL. */
struct input {
    const real *rows, *w, *constant;
    entrance at;       /* the same for walks */
    real *mean, *rstd; /* (M), of the row norm */
};

static input input_of(const block_in *b) {
    const int64_t M = b->B * b->T, L = b->L, D = b->D;
    const entrance plain = {b->x, NULL, NULL, NULL}, normed = {b->x, b->center, b->gain, b->offset};
    input in = {b->x, b->w_in, NULL, plain, NULL, NULL};
    if (b->norm == NORM_CHANNEL) {
        real *const folded = workspace_of<real>(L, D), *const constant = workspace_of<real>(L);
        launch(fold_norm, pieces_of(L, ROW_THREADS / 32), ROW_THREADS, 0, folded, constant, b->w_in, b->center, b->gain,
               b->offset, L, D);
        in.w = folded, in.constant = constant, in.at = normed;
    } else if (b->norm == NORM_ROW) {
        real *const xn = workspace_of<real>(M, D);
        in.mean = workspace_of<real>(M), in.rstd = workspace_of<real>(M);
        launch(norm_rows, pieces_of(M, ROW_THREADS / 32), ROW_THREADS, 0, xn, in.mean, in.rstd, b->x, b->gain,
               b->offset, b->lengths, M, b->T, D, (real)b->eps);
        in.rows = in.at.x = xn;
    }
    return in;
}

static dropping dropping_of(const block_in *b, int64_t which) {
    const dropping d = {b->rate > 0, b->over_time != 0, mask_key_of(b->rate, b->seed, b->step, b->site + which),
                        b->places, b->D};
    return d;
}

/* Weights (wide,D) of the gate's product: W_value above W_gate, or W_gate */
static const real *gate_weights(const block_in *b, int64_t wide) {
    const int64_t size = b->D * b->D;
    if (b->gate != GATE_FULL) return b->w_gate;
    real *const w = workspace_of<real>(wide, b->D);
    runtime_copy(w, b->w_value, size * (int64_t)sizeof(real));
    runtime_copy(w + size, b->w_gate, size * (int64_t)sizeof(real));
    return w;
}

static int64_t gate_width(const block_in *b) { return b->gate == GATE_FULL ? 2 * b->D : b->D; }

static rows_of_states new_rows(const block_in *b, int64_t n) {
    const rows_of_states r = {workspace_of<real>(b->B, b->T, n), workspace_of<real>(b->B, n)};
    return r;
}

static cut scan_cut(const block_in *b, bool down) { return cut_of(b->B, b->T, b->L / 2, b->lengths, false, down); }

/* out[k] <- W_out h of each direction k, from carries and hT (directions,B,...) */
static void output_products(const block_in *b, rows_of_states *out, const real *carries, const real *hT) {
    const int64_t M = b->B * b->T, L = b->L, D = b->D;
    for (int64_t k = 0; k < b->directions; k++) {
        out[k] = new_rows(b, D);
        project(out[k].before, carries + k * M * L, b->w_out + k * D * L, M, L, D);
        project(out[k].last, hT + k * b->B * L, b->w_out + k * D * L, b->B, L, D);
    }
}

/* Whether planes of an array can be read as one. Those of a workspace can. */
static bool has_planes(const real *p) { return (uintptr_t)p % pack_alignment(2) == 0; }

KERNEL(block_forward) {
    if (b->tile != 1) return ROT_NO_KERNEL;
    const int64_t M = b->B * b->T, L = b->L, D = b->D, wide = gate_width(b), size = b->directions * M * L;
    const bool fours =
        by_four(D, {b->x, b->skip, b->center, b->gain, b->offset, b->b_value, b->b_gate, out->y, out->layer});
    const rows_cut rows = cut_rows(b->B, b->T, D, b->lengths, fours);
    const outputs none = {};
    const input in = input_of(b);

    real *const v = workspace_of<real>(M, L);
    real *const carries = has_planes(out->carries) ? out->carries : workspace_of<real>(size);
    project(v, in.rows, in.w, M, D, L);
    for (int64_t k = 0; k < b->directions; k++) {
        const rows_of_states h = {carries + k * M * L, out->hT + k * b->B * L};
        const real *const first = b->h0 ? b->h0 + k * b->B * L : NULL;
        if (b->exact)
            scan(scan_cut(b, k == 1), h, (const exact *)b->exact, v, in.constant, first);
        else
            scan(scan_cut(b, k == 1), h, (const cplx *)b->a, v, in.constant, first);
    }
    if (carries != out->carries) runtime_copy(out->carries, carries, size * (int64_t)sizeof(real));

    layer_walk layer = {out->layer, NULL, NULL, in.at, b->skip, {}, b->directions, b->T, D, dropping_of(b, 0)};
    output_products(b, layer.out, carries, out->hT);
    if (b->gate == GATE_NONE) {
        layer.layer = out->y;
        walk_through(rows, layer, none);
        return runtime_status();
    }
    if (b->gate == GATE_HALF2 && !layer.layer) layer.layer = workspace_of<real>(M, D);
    layer.z = workspace_of<real>(M, D);
    walk_through(rows, layer, none);

    real *const product = workspace_of<real>(M, wide);
    project(product, layer.z, gate_weights(b, wide), M, D, wide);
    const gating gate = {b->gate, D, wide, b->b_value, b->b_gate, b->gate == GATE_HALF1 ? layer.z : layer.layer};
    const gate_walk last = {out->y, b->x, product, gate, dropping_of(b, 1)};
    walk_with_moments(rows, last, out->mean, out->var);
    return runtime_status();
}

/* ------------------------------------------------------------------------------------------------------ backward */

/* The final states (directions,B,L), one step after those before the last: backward is not given them. */
static real *final_states(const block_in *b, input in, const real *carries) {
    const int64_t T = b->T, L = b->L, D = b->D, count = b->directions * b->B, B = b->B, N = L / 2;
    const int64_t *const lengths = b->lengths;
    const cplx *const a = (const cplx *)b->a, *const constant = (const cplx *)in.constant;
    const cplx *const h = (const cplx *)carries;
    const real *const from = in.rows;
    real *const x = workspace_of<real>(count, D), *const v = workspace_of<real>(count, L);
    each(count * D, [=] __device__(int64_t i) {
        const int64_t b = i / D % B, steps = steps_of(lengths, b, T);
        const direction way = {T, i / D / B == 1};
        x[i] = steps ? from[(b * T + last_step(way, steps)) * D + i % D] : 0;
    });
    project(v, x, in.w, count, D, L);
    each(count * N, [=] __device__(int64_t i) {
        const int64_t n = i % N, k = i / N / B, b = i / N % B, steps = steps_of(lengths, b, T);
        const direction way = {T, k == 1};
        const cplx zero = {0, 0}, x = ((cplx *)v)[i], plus = constant ? constant[n] : zero;
        ((cplx *)v)[i] =
            steps ? plane_step(a[n], h[((k * B + b) * T + last_step(way, steps)) * N + n], cplx_add(x, plus)) : zero;
    });
    return v;
}

/* The gate's adjoint: from dy to dz; the gradient of the value in a half form goes to `dvalue`. */
static real *gate_adjoint(const block_in *b, const block_adjoint_out *out, rows_cut rows, arrival dy, const real *layer,
                          const real *z, real *dvalue) {
    const int64_t M = b->B * b->T, D = b->D, wide = gate_width(b), bytes = D * D * (int64_t)sizeof(real);
    const real *const w = gate_weights(b, wide);
    real *const product = workspace_of<real>(M, wide), *const dz = workspace_of<real>(M, D);
    const gating gate = {b->gate, D, wide, b->b_value, b->b_gate, b->gate == GATE_HALF1 ? z : layer};
    const gate_adjoint_walk adjoint = {product, dvalue, dy, gate, dropping_of(b, 1)};
    const outputs biases = {b->gate == GATE_FULL ? out->db_value : NULL, out->db_gate};
    project(product, z, w, M, D, wide);
    walk_through(rows, adjoint, biases);
    project_adjoint(dz, product, w, M, D, wide);
    if (b->gate == GATE_FULL) {
        real *const dw = workspace_of<real>(wide, D);
        weight_gradient(dw, product, z, M, D, wide, false);
        if (out->dw_value) runtime_copy(out->dw_value, dw, bytes);
        if (out->dw_gate) runtime_copy(out->dw_gate, dw + D * D, bytes);
    } else if (out->dw_gate) {
        weight_gradient(out->dw_gate, product, z, M, D, D, false);
    }
    return dz;
}

/* dw_in = g^T xn, g (M,L): with the channel norm from g^T x and the sums of g (L) */
static void input_weight_gradient(const block_in *b, input in, rows_cut rows, real *dw, const real *g,
                                  const real *sum) {
    const int64_t M = b->B * b->T, L = b->L, D = b->D;
    const real *const center = b->center, *const gain = b->gain, *const offset = b->offset, *x = in.rows;
    if (b->lengths && b->norm != NORM_ROW) {
        const outputs none = {};
        const mask_walk masked = {workspace_of<real>(M, D), x};
        walk_through(rows, masked, none);
        x = masked.y;
    }
    weight_gradient(dw, g, x, M, D, L, false);
    if (b->norm == NORM_CHANNEL)
        each(L * D, [=] __device__(int64_t i) {
            const int64_t d = i % D;
            dw[i] = gain[d] * (dw[i] - sum[i / D] * center[d]) + sum[i / D] * offset[d];
        });
}

KERNEL(block_backward) {
    if (b->tile != 1) return ROT_NO_KERNEL;
    const int64_t M = b->B * b->T, B = b->B, T = b->T, L = b->L, D = b->D, K = b->directions;
    const bool fours =
        by_four(D, {b->x, b->skip, b->center, b->gain, b->offset, b->b_value, b->b_gate, in->dy, in->layer, in->later_y,
                    in->later_center, in->later_slope, in->later_shift, out->dx});
    const rows_cut rows = cut_rows(B, T, D, b->lengths, fours);
    const arrival dy = {in->dy, in->later_y, in->later_center, in->later_slope, in->later_shift}, nowhere = {};
    const outputs none = {};
    const input from = input_of(b);
    const real *carries = in->carries;
    if (!has_planes(carries)) {
        real *const copy = workspace_of<real>(K * M * L);
        runtime_copy(copy, carries, K * M * L * (int64_t)sizeof(real));
        carries = copy;
    }
    const real *const hT = final_states(b, from, carries);

    /* to the gradient of the layer's output */
    layer_adjoint_walk adjoint = {{}, K, T, D, b->gate, dy, NULL, NULL, NULL, from.at, dropping_of(b, 0)};
    if (b->gate != GATE_NONE) {
        layer_walk again = {NULL, NULL, in->layer, from.at, b->skip, {}, K, T, D, dropping_of(b, 0)};
        again.z = workspace_of<real>(M, D);
        if (!in->layer) {
            again.layer = workspace_of<real>(M, D);
            output_products(b, again.out, carries, hT);
        }
        walk_through(rows, again, none);
        real *const dvalue = b->gate == GATE_FULL ? NULL : workspace_of<real>(M, D);
        adjoint.layer = in->layer ? in->layer : again.layer, adjoint.dvalue = dvalue;
        adjoint.dz = gate_adjoint(b, out, rows, dy, adjoint.layer, again.z, dvalue);
    }
    for (int64_t k = 0; k < K; k++) {
        adjoint.out[k] = new_rows(b, D);
        runtime_zero(adjoint.out[k].last, B * D * (int64_t)sizeof(real)); /* some sequences may have no steps */
    }
    const outputs dskip = {out->dskip, NULL};
    walk_through(rows, adjoint, dskip);

    /* through the scans */
    const int64_t segments = scan_cut(b, false).segments;
    const rows_of_states dh = new_rows(b, L);
    real *const g = workspace_of<real>(M, L), *const sum = workspace_of<real>(L);
    real *const da = workspace_of<real>(K, B * segments, L), *const sums = workspace_of<real>(K, B * segments, L);
    for (int64_t k = 0; k < K; k++) {
        const rows_of_states d = adjoint.out[k];
        const real *const w = b->w_out + k * D * L, *const h = carries + k * M * L;
        const int64_t parts = k * B * segments * L;
        weight_gradient(out->dw_out + k * D * L, d.before, h, M, L, D, false);
        weight_gradient(out->dw_out + k * D * L, d.last, hT + k * B * L, B, L, D, true);
        project_adjoint(dh.before, d.before, w, M, L, D);
        project_adjoint(dh.last, d.last, w, B, L, D);
        scan_adjoint(scan_cut(b, k == 0), g, out->dh0 + k * B * L, da + parts, sums + parts, b->a, dh, h,
                     in->dhT ? in->dhT + k * B * L : NULL, k == 1);
    }
    const outputs da_out = {out->da, NULL}, sum_out = {sum, NULL};
    sum_parts(da_out, da, K * B * segments, 1, L);
    sum_parts(sum_out, sums, K * B * segments, 1, L);

    /* to the input */
    input_weight_gradient(b, from, rows, out->dw_in, g, sum);
    real *const r = workspace_of<real>(M, D);
    project_adjoint(r, g, b->w_in, M, D, L);
    const int64_t norm = b->gate == GATE_NONE ? (int64_t)NORM_NONE : b->norm;
    const arrival direct = b->gate == GATE_NONE ? nowhere : dy;
    const input_adjoint_walk last = {out->dx,   r,         b->skip,        b->x,   b->center, b->gain,
                                     from.mean, from.rstd, adjoint.out[0], direct, norm,      T,       D};
    const outputs norm_sums = {out->d_norm_sum, out->d_norm_product};
    walk_through(rows, last, norm_sums);
    if (norm == NORM_ROW)
        launch(norm_rows_adjoint, pieces_of(M, ROW_THREADS / 32), ROW_THREADS, 0, out->dx, direct, b->x,
               (const real *)from.mean, (const real *)from.rstd, b->gain, b->lengths, M, T, D);
    return runtime_status();
}
