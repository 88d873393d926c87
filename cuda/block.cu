/* A residual block, or a linear layer alone, on a GPU (csrc/kernels/block.c has the equations).
 *
 * The matrix library computes products, of padding too. Between them is a scan of each direction, and each pass has two
 * walks over rows. (One kernel for both products and the scan, and products without the padding, were slower on an
 * H200: docs/gpu.md.)
 *
 *   v = W x                            W = W_in diag(gain): the channel norm is part of the weights, and its constant
 *   h <- scan of v + c                 c = W_in (offset - gain center) is added by the scan, if nothing is rounded
 *   out = W_out h                      of each direction
 *   layer = out + skip xn   z = mask GELU(layer)
 *   value, gate = W_v z, W_g z         one product
 *   y = x + mask value s(gate)         with the moments of y
 *
 * and in backward, where they were not kept, z and the second product again, then
 *
 *   dvalue, dgate                      from dy and the terms of `later`, with the sums of the biases' gradients
 *   dz = W_v^T dvalue + W_g^T dgate    and the gradient of both weights, a product each
 *   dlayer = mask GELU'(layer) dz      with the sum of skip's gradient
 *   dh = W_out^T dlayer                and the gradient of W_out, for each direction
 *   g <- adjoint scan of dh            with the sums of a's gradient, and of g, for the gradient of W_in by the norm
 *   r = W_in^T g                       and sum g x^T
 *   dx = dy + gain (r + skip dlayer)   with the norm's sums
 *
 * The normed input xn is an array with the row norm, and when operands are rounded: a rounding error of W_in diag(gain)
 * or of x would be multiplied by the mean of x, which xn does not have. Every state is saved: `carries` has the states
 * before each step, and hT the last state. Arrays that belong to states (results of their products, and gradients) are
 * such pairs too: one product works on all states before steps, and a small one on the last states (rows_of_states).
 *
 * Arrays that a product sums over rows have zeros in the padding: states, z and all gradients, and a copy of x.
 *
 * Arrays between kernels (operands and results of products, dvalue, g of one direction) and arrays saved for backward
 * are stored as S: real, or bf16 if `every_bf16` takes the states. Numbers stored rounded are rounded for every other
 * use, too; but sums (of biases, da, and the norm's) use the numbers before rounding. x, y, their gradients, the state
 * within a scan and the gradients of parameters are real, and so is every sum before it is stored.
 */
#include "carries.h"
#include "masks.h"
#include "row_walk.h"

enum {
    AHEAD = sizeof(real) == 4 ? 32 : 16, /* steps read ahead of their use, of one array */
    SUM_STEPS = 128,                     /* steps of one partial sum of the scan's adjoint */
    ROW_THREADS = 256,                   /* of kernels whose warps have a row each */
};

/* ------------------------------------------------------------------------------------------------- rows of states */

/* Rows of n numbers that belong to one direction's states: before (B,T,n) to the states before each step, last (B,n) to
 * the final states. */
template <class S> struct rows_of_states { S *before, *last; };

/* The order of time in a direction */
struct direction {
    int64_t T;
    bool reverse;
};
ROT_DEVICE_ONLY int64_t first_step(direction d, int64_t steps) { return d.reverse ? steps - 1 : 0; }
ROT_DEVICE_ONLY int64_t last_step(direction d, int64_t steps) { return d.reverse ? 0 : steps - 1; }

/* The row that belongs to the state after step t of sequence b, which has `steps` steps. */
template <class S>
ROT_DEVICE_ONLY S *row_after(rows_of_states<S> r, direction d, int64_t b, int64_t t, int64_t steps, int64_t n) {
    return t == last_step(d, steps) ? r.last + b * n : r.before + (b * d.T + t + (d.reverse ? -1 : 1)) * n;
}

/* ------------------------------------------------------------------------------------------------------ products */

/* A stored matrix, with the distance between its rows, or its transpose */
template <class S> struct matrix {
    const S *at;
    int64_t apart;
    bool turned;
};

/* c (rows,columns) = a b, or c += */
template <class S, class C>
static void multiply(C *c, matrix<S> a, matrix<S> b, int64_t rows, int64_t columns, int64_t inner, bool keep) {
    runtime_product p = {};
    p.bf16 = is_rounded<S>, p.bf16_result = is_rounded<C>;
    p.a = a.at, p.lda = most(a.apart, 1), p.a_turned = a.turned;
    p.b = b.at, p.ldb = most(b.apart, 1), p.b_turned = b.turned;
    p.c = c, p.ldc = most(columns, 1), p.keep = keep;
    p.rows = rows, p.columns = columns, p.inner = inner, p.count = 1;
    multiply_matrices(p);
}

/* y = x w^T for x (rows,in), w (out,in) */
template <class S> static void project(S *y, const S *x, const S *w, int64_t rows, int64_t in, int64_t out) {
    multiply<S>(y, {x, in, false}, {w, in, true}, rows, out, in, false);
}

/* dx = dy w for dy (rows,out) */
template <class S> static void project_adjoint(S *dx, const S *dy, const S *w, int64_t rows, int64_t in, int64_t out) {
    multiply<S>(dx, {dy, out, false}, {w, in, false}, rows, in, out, false);
}

/* dw = dy^T x */
template <class S>
static void weight_gradient(real *dw, const S *dy, const S *x, int64_t rows, int64_t in, int64_t out) {
    multiply<S>(dw, {dy, out, true}, {x, in, false}, out, in, rows, false);
}

/* dw += dy^T x for n rows without padding */
template <class S>
static void add_weight_gradient(real *dw, const S *dy, const S *x, int64_t n, int64_t in, int64_t out) {
    multiply<S>(dw, {dy, out, true}, {x, in, false}, out, in, n, true);
}

/* to <- from, rounded */
template <class S> static void round_numbers(S *to, const real *from, int64_t count) {
    each(count, [=] __device__(int64_t i) { write<1>(to + i, read<1>(from + i)); });
}

/* -------------------------------------------------------------------------------------------------------- a call */

/* The layer's input at a place: x; its channel norm if there is a center; or its row norm if there are a mean and rstd
 * (M), with the scale as gain and the bias as offset. */
struct entrance {
    const real *x, *center, *gain, *offset;
    real *mean, *rstd;
};
template <int V> ROT_DEVICE_ONLY pack<V> entering(entrance e, place p) {
    pack<V> x = read<V>(e.x + p.at);
    if (!e.center && !e.mean) return x;
    const pack<V> gain = read<V>(e.gain + p.column), offset = read<V>(e.offset + p.column);
    if (e.mean) {
        const real mean = e.mean[p.row], rstd = e.rstd[p.row];
#pragma unroll
        for (int i = 0; i < V; i++)
            x.of[i] = layer_norm_step(layer_norm_xhat(x.of[i], mean, rstd), gain.of[i], offset.of[i]);
        return x;
    }
    const pack<V> center = read<V>(e.center + p.column);
#pragma unroll
    for (int i = 0; i < V; i++) x.of[i] = channel_norm(x.of[i], center.of[i], gain.of[i], offset.of[i]);
    return x;
}

/* The same as stored as S, from its array if that is there */
template <int V, class S> ROT_DEVICE_ONLY pack<V> entered(entrance e, const S *rows, place p) {
    if constexpr (is_rounded<S>) return rows ? read<V>(rows + p.at) : as_stored<S>(entering<V>(e, p));
    return entering<V>(e, p);
}

/* The gradient of the block's output at a place: dy, with the terms of `later`. */
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

/* Rows of the gate's product: the `wide` numbers of a step are values and gates in the full form, else gates alone. */
template <class S> struct gating {
    int64_t form, D, wide;
    const real *b_value, *b_gate;
    const S *other; /* the value in a half form: z, or the layer's output */
};
template <int V> struct value_and_gate { pack<V> value, gate; };
template <class S> ROT_DEVICE_ONLY int64_t value_at(gating<S> g, place p) { return p.row * g.wide + p.column; }
template <class S> ROT_DEVICE_ONLY int64_t gate_at(gating<S> g, place p) {
    return p.row * g.wide + g.wide - g.D + p.column;
}

template <int V, class S> ROT_DEVICE_ONLY value_and_gate<V> gates(gating<S> g, const S *product, place p) {
    const bool full = g.form == GATE_FULL;
    value_and_gate<V> r;
    r.gate = read<V>(product + gate_at(g, p));
    r.value = full ? read<V>(product + value_at(g, p)) : read<V>(g.other + p.at);
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

template <int V, class S> ROT_DEVICE_ONLY void write_if(S *to, int64_t at, pack<V> x) {
    if (to) write<V>(to + at, x);
}

/* The layer's input as an array, with zeros in the padding */
template <class S> struct entrance_walk {
    enum { SUMS = 0 };
    S *xn;
    entrance in;
    template <int V> __device__ void step(place p, pack<V> *) const {
        const pack<V> zero = {};
        write<V>(xn + p.at, p.valid ? entering<V>(in, p) : zero);
    }
};

/* layer = out + skip xn, or as saved;  z = mask GELU(layer). Without a gate the output is y. Padding is zero. */
template <class S> struct layer_walk {
    enum { SUMS = 0 };
    real *y;
    S *layer, *z; /* or NULL */
    const S *kept;
    entrance in;
    const S *rows; /* of the layer's input, or NULL */
    const real *skip;
    rows_of_states<S> out[2];
    int64_t directions, T, D;
    dropping mask;

    template <int V> __device__ pack<V> output(place p) const {
        if (kept) return read<V>(kept + p.at);
        const pack<V> xn = entered<V, S>(in, rows, p), factor = read<V>(skip + p.column);
        pack<V> sum;
#pragma unroll
        for (int i = 0; i < V; i++) sum.of[i] = factor.of[i] * xn.of[i];
#pragma unroll
        for (int k = 1; k >= 0; k--) {
            if (k >= directions) continue;
            const direction d = {T, k == 1};
            const pack<V> one = read<V>(row_after(out[k], d, p.b, p.t, p.steps, D) + p.column);
#pragma unroll
            for (int i = 0; i < V; i++) sum.of[i] += one.of[i];
        }
        return sum;
    }

    template <int V> __device__ void step(place p, pack<V> *) const {
        const pack<V> zero = {}, whole = p.valid ? output<V>(p) : zero;
        write_if<V>(y, p.at, whole);
        write_if<V>(layer, p.at, whole);
        if (!z) return;
        pack<V> active = zero;
        if (p.valid) {
            const pack<V> here = as_stored<S>(whole);
#pragma unroll
            for (int i = 0; i < V; i++) active.of[i] = gelu(here.of[i]);
            drop<V>(mask, p, active);
        }
        write<V>(z + p.at, active);
    }
};

/* y = x + mask value s(gate); padding is zero. */
template <class S> struct gate_walk {
    real *y;
    const real *x;
    const S *product;
    gating<S> gate;
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

/* The gradient of the gate's product; in a half form, `dvalue` is the gradient of the value. Sums: of both. */
template <class S> struct gate_adjoint_walk {
    enum { SUMS = 2 };
    const S *product;
    S *dproduct, *dvalue; /* dproduct may be product */
    arrival dy;
    gating<S> gate;
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
        if (gate.form == GATE_FULL)
            write<V>(dproduct + value_at(gate, p), value);
        else
            write<V>(dvalue + p.at, value);
        write<V>(dproduct + gate_at(gate, p), slope);
    }
};

/* The gradient of the layer's output, in the rows of the states after each step: from dz, through dropout and GELU, or
 * without a gate dy itself. Rows of the states before all steps are zero, like the padding. Also the layer's input, for
 * the gradient of W_in. Sum: of the gradient times xn. */
template <class S> struct layer_adjoint_walk {
    enum { SUMS = 1 };
    rows_of_states<S> out[2];
    int64_t directions, T, D, form;
    arrival dy;
    const S *dz, *dvalue, *layer;
    S *xn; /* or NULL */
    entrance in;
    const S *rows; /* of the layer's input, or NULL */
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
        pack<V> d = zero, x = zero;
        if (p.valid) {
            x = entered<V, S>(in, rows, p), d = as_stored<S>(gradient<V>(p));
#pragma unroll
            for (int i = 0; i < V; i++) sums[0].of[i] += d.of[i] * x.of[i];
        }
        write_if<V>(xn, p.at, x);
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
template <class S> struct input_adjoint_walk {
    enum { SUMS = 2 };
    real *dx;
    const S *r;
    const real *skip, *x, *center, *gain, *mean, *rstd;
    rows_of_states<S> dlayer;
    arrival dy; /* dy: NULL for none */
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

} // namespace

/* --------------------------------------------------------------------------------------------------------- norms */

/* This warp's row. */
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

/* xn (rows,D), or NULL, and mean, rstd (rows) of the row norm; padding is zero. */
template <class S>
GLOBAL(ROW_THREADS)
norm_rows(S *xn, real *mean, real *rstd, const real *x, const real *scale, const real *bias, const int64_t *lengths,
          int64_t rows, int64_t T, int64_t D, real eps) {
    const int64_t row = row_of_warp(), lane = threadIdx.x % 32;
    if (row >= rows) return;
    const bool valid = row % T < steps_of(lengths, row / T, T);
    real sum = 0, squares = 0;
    for (int64_t d = lane; valid && d < D; d += 32) sum += x[row * D + d];
    const real middle = valid ? row_mean(sum, x + row * D, D) : 0;
    for (int64_t d = lane; valid && d < D; d += 32) squares += (x[row * D + d] - middle) * (x[row * D + d] - middle);
    const real by = valid ? row_rstd(squares, x + row * D, middle, D, eps) : 0;
    for (int64_t d = lane; xn && d < D; d += 32) {
        pack<1> here = {};
        if (valid) here.of[0] = layer_norm_step(layer_norm_xhat(x[row * D + d], middle, by), scale[d], bias[d]);
        write<1>(xn + row * D + d, here);
    }
    if (lane == 0) mean[row] = middle, rstd[row] = by;
}

/* dx <- dy + the adjoint of the row norm at dxn; on entry dx holds dxn */
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

/* Rows with adjacent pairs, of numbers stored as S, are planes. */
struct plane_bf16 {
    bf16 re, im;
};
template <class S> using plane = typename std::conditional<is_rounded<S>, plane_bf16, cplx>::type;

template <class P> ROT_DEVICE_ONLY cplx read_plane(const P *p) {
    const pack<2> x = read<2>(&p->re);
    const cplx z = {x.of[0], x.of[1]};
    return z;
}
template <class P> ROT_DEVICE_ONLY void write_plane(P *p, cplx z) {
    const pack<2> x = {{z.re, z.im}};
    write<2>(&p->re, x);
}

/* Two kinds of states: the arrays' states, and exact states in double precision. */
ROT_DEVICE_ONLY cplx step_of_state(cplx a, cplx h, cplx v) { return plane_step(a, h, v); }
ROT_DEVICE_ONLY exact step_of_state(exact a, exact h, cplx v) { return exact_step(a, h, v); }
ROT_DEVICE_ONLY cplx rounded(cplx h) { return h; }
ROT_DEVICE_ONLY cplx rounded(exact h) { return exact_rounded(h); }
ROT_DEVICE_ONLY void assign(cplx &h, exact x) { h = exact_rounded(x); }
ROT_DEVICE_ONLY void assign(exact &h, exact x) { h = x; }

/* The state before a segment: from the states between segments, or from the first state, NULL for zero. */
ROT_DEVICE_ONLY exact state_before(cut c, piece p, const exact *between, const cplx *first, int64_t i) {
    const exact zero = {0, 0};
    return between ? between[i] : first ? exact_of(first[p.b * c.N + p.n]) : zero;
}

/* between (B,segments,N): the last state of each segment from zero */
template <class S, class H>
GLOBAL(SCAN_THREADS)
ends_of_states(cut c, exact *between, const S *a, const H *v, const cplx *constant, int64_t count) {
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

/* The states before each step, and the last state */
template <class S, class H>
GLOBAL(SCAN_THREADS)
run_states(cut c, H *before, cplx *last, const S *a, const H *v, const cplx *constant, const cplx *first,
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

template <class S, class H>
static void scan(cut c, H *before, real *last, const S *a, const H *v, const real *constant, const real *first) {
    const int64_t count = c.B * c.N * c.segments, blocks = pieces_of(count, SCAN_THREADS);
    const cplx *const from = (const cplx *)first, *const plus = (const cplx *)constant;
    const plane<H> *const x = (const plane<H> *)v;
    exact *between = NULL;
    if (c.segments > 1) {
        between = workspace_of<exact>(count);
        launch(ends_of_states<S, plane<H>>, blocks, SCAN_THREADS, 0, c, between, a, x, plus, count);
        launch(pass_on<S>, pieces_of(c.B * c.N, SCAN_THREADS), SCAN_THREADS, 0, c, between, a, from, false);
    }
    launch(run_states<S, plane<H>>, blocks, SCAN_THREADS, 0, c, (plane<H> *)before, (cplx *)last, a, x, plus, from,
           between, count);
}

/* In backward, q is the gradient that reaches the state after a step from later steps:  g = dh + q,  q <- conj(a) g. */
ROT_DEVICE_ONLY cplx past_adjoint(cplx a, cplx g) {
    const cplx zero = {0, 0};
    return plane_step_adjoint(a, g, zero);
}

/* The gradient of the state after step t of the piece's walk, from the rows for states before each step. */
template <class H> ROT_DEVICE_ONLY cplx gradient_after(cut c, const H *before, const H *last, piece p, int64_t t) {
    return read_plane(p.first && t == 0 ? last + p.b * c.N + p.n : before + p.w.first + (t - 1) * p.w.stride);
}

/* between (B,segments,N): q at the end of each segment's walk from zero */
template <class H>
GLOBAL(SCAN_THREADS)
ends_of_adjoint(cut c, exact *between, const cplx *a, const H *dh, const H *dh_last, int64_t count) {
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

/* g (B,T,N), added to g with ADD, and q at the first step as dh0. Sums (B,segments,N): of da, and of this direction's
 * g. */
template <bool ADD, class H>
GLOBAL(SCAN_THREADS)
run_adjoint(cut c, H *g, cplx *dh0, cplx *da, cplx *sums, const cplx *a, const H *dh, const H *dh_last, const H *before,
            const cplx *dhT, const exact *between, int64_t count) {
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

/* `add`: to g of the other direction */
template <class H>
static void scan_adjoint(cut c, H *g, bool add, real *dh0, real *da, real *sums, const real *a, rows_of_states<H> dh,
                         const H *before, const real *dhT) {
    const int64_t count = c.B * c.N * c.segments, blocks = pieces_of(count, SCAN_THREADS);
    const cplx *const turn = (const cplx *)a, *const last = (const cplx *)dhT;
    const plane<H> *const d = (const plane<H> *)dh.before, *const d_last = (const plane<H> *)dh.last;
    exact *between = NULL;
    if (c.segments > 1) {
        between = workspace_of<exact>(count);
        launch(ends_of_adjoint<plane<H>>, blocks, SCAN_THREADS, 0, c, between, turn, d, d_last, count);
        launch(pass_on<cplx>, pieces_of(c.B * c.N, SCAN_THREADS), SCAN_THREADS, 0, c, between, turn, last, true);
    }
    const auto run = add ? run_adjoint<true, plane<H>> : run_adjoint<false, plane<H>>;
    launch(run, blocks, SCAN_THREADS, 0, c, (plane<H> *)g, (cplx *)dh0, (cplx *)da, (cplx *)sums, turn, d, d_last,
           (const plane<H> *)before, last, (const exact *)between, count);
}

/* ---------------------------------------------------------------------------------------------- parts of a block */

/* The input of the layer's products: rows (M,D), with zeros in the padding unless they are x, and weights. The channel
 * norm is in the weights and their constant if nothing is rounded; otherwise the constant is NULL. */
template <class S> struct input {
    const S *rows, *w;
    const real *constant;
    entrance at; /* for walks */
};

/* The layer's input; the row norm's mean and rstd are arrays of the call. */
static entrance entrance_of(const block_in *b) {
    const int64_t M = b->B * b->T;
    entrance e = {b->x, NULL, NULL, NULL, NULL, NULL};
    if (b->norm != NORM_NONE) e.gain = b->gain, e.offset = b->offset;
    if (b->norm == NORM_CHANNEL) e.center = b->center;
    if (b->norm == NORM_ROW) e.mean = workspace_of<real>(M), e.rstd = workspace_of<real>(M);
    return e;
}

/* The row norm's mean and rstd, and its result in xn, or NULL */
template <class S> static void norm_all_rows(const block_in *b, entrance e, S *xn) {
    const int64_t M = b->B * b->T;
    launch(norm_rows<S>, pieces_of(M, ROW_THREADS / 32), ROW_THREADS, 0, xn, e.mean, e.rstd, b->x, b->gain, b->offset,
           b->lengths, M, b->T, b->D, (real)b->eps);
}

/* The layer's input in xn, zero in the padding; and the row norm's mean and rstd. */
template <class S> static const S *enter_rows(const block_in *b, rows_cut rows, entrance e, S *xn) {
    const outputs none = {};
    if (b->norm == NORM_ROW)
        norm_all_rows(b, e, xn);
    else
        walk_through(rows, entrance_walk<S>{xn, e}, none);
    return xn;
}
template <class S> static const S *entering_rows(const block_in *b, rows_cut rows, entrance e) {
    return enter_rows(b, rows, e, workspace_of<S>(b->B * b->T, b->D));
}

/* The input of products that are not rounded, or are in TF32 */
static input<real> input_of(const block_in *b, rows_cut rows) {
    const int64_t L = b->L, D = b->D;
    const entrance e = entrance_of(b);
    const bool folds = b->norm == NORM_CHANNEL && precision_of_products() == PRECISION_FLOAT32;
    if (b->norm == NORM_NONE) return {b->x, b->w_in, NULL, e};
    if (!folds) return {entering_rows<real>(b, rows, e), b->w_in, NULL, e};
    real *const folded = workspace_of<real>(L, D), *const constant = workspace_of<real>(L);
    launch(fold_norm, pieces_of(L, ROW_THREADS / 32), ROW_THREADS, 0, folded, constant, b->w_in, b->center, b->gain,
           b->offset, L, D);
    return {b->x, folded, constant, e};
}

/* Forward's, with weights that are stored as S, and whose rows go to `normed` if it is there */
template <class S> static input<S> input_of(const block_in *b, rows_cut rows, const S *w_in, S *normed) {
    if constexpr (is_rounded<S>) {
        const entrance e = entrance_of(b);
        S *const xn = normed ? normed : workspace_of<S>(b->B * b->T, b->D);
        return {enter_rows(b, rows, e, xn), w_in, NULL, e};
    } else {
        return input_of(b, rows);
    }
}

/* Backward's, of forward's rows if they are there. Rows may be NULL, for a walk to write. */
template <class S> static input<S> input_again(const block_in *b, rows_cut rows, const S *w_in, const S *normed) {
    if constexpr (is_rounded<S>) {
        const entrance e = entrance_of(b);
        if (normed && b->norm == NORM_ROW) norm_all_rows<S>(b, e, NULL);
        const S *const xn = normed || b->norm != NORM_ROW ? normed : entering_rows<S>(b, rows, e);
        return {xn, w_in, NULL, e};
    } else {
        return input_of(b, rows);
    }
}

static dropping dropping_of(const block_in *b, int64_t which) {
    const dropping d = {b->rate > 0, b->over_time != 0, mask_key_of(b->rate, b->seed, b->step, b->site + which),
                        b->places, b->D};
    return d;
}

static int64_t gate_width(const block_in *b) { return b->gate == GATE_FULL ? 2 * b->D : b->D; }

/* Weights of products, stored as S. The gate's (wide,D) are W_value above W_gate, or W_gate. */
template <class S> struct weights { const S *in, *out, *gate; };
template <class S> static weights<S> weights_of(const block_in *b) {
    const int64_t size = b->D * b->D, in = b->L * b->D, out = b->directions * in, both = in + out;
    const int64_t gate = b->gate == GATE_NONE ? 0 : gate_width(b) * b->D, first = gate - size; /* of W_gate */
    if constexpr (is_rounded<S>) {
        S *const w_in = workspace_of<S>(in), *const w_out = workspace_of<S>(out), *const w = workspace_of<S>(gate);
        const real *const from_in = b->w_in, *const from_out = b->w_out, *const value = b->w_value;
        const real *const w_gate = b->w_gate;
        each(both + gate, [=] __device__(int64_t i) {
            if (i < in)
                write<1>(w_in + i, read<1>(from_in + i));
            else if (i < both)
                write<1>(w_out + i - in, read<1>(from_out + i - in));
            else
                write<1>(w + i - both, read<1>(i - both < first ? value + i - both : w_gate + i - both - first));
        });
        return {w_in, w_out, w};
    } else {
        if (b->gate != GATE_FULL) return {b->w_in, b->w_out, b->w_gate};
        real *const w = workspace_of<real>(gate);
        runtime_copy(w, b->w_value, size * (int64_t)sizeof(real));
        runtime_copy(w + first, b->w_gate, size * (int64_t)sizeof(real));
        return {b->w_in, b->w_out, w};
    }
}

template <class S> static rows_of_states<S> new_rows(const block_in *b, int64_t n) {
    return {workspace_of<S>(b->B, b->T, n), workspace_of<S>(b->B, n)};
}

static cut scan_cut(const block_in *b, bool down) { return cut_of(b->B, b->T, b->L / 2, b->lengths, down); }

/* Every state, stored as S; direction k begins k before_apart and k last_apart numbers after direction 0. */
template <class S> struct all_states {
    S *before, *last;
    int64_t before_apart, last_apart;
};
template <class S> static rows_of_states<S> states_of(all_states<S> h, int64_t k) {
    return {h.before + k * h.before_apart, h.last + k * h.last_apart};
}

/* Real states before steps in one array, with the last states in another; or all states in one array in bf16, for each
 * direction the states before steps (B,T,L) and then the last states (B,L). */
template <class S> static all_states<S> states_in(const block_in *b, S *kept, S *last) {
    const int64_t before = b->B * b->T * b->L, after = b->B * b->L;
    if (is_rounded<S>) return {kept, kept + before, before + after, before + after};
    return {kept, last, before, after};
}

/* out[k] <- W_out h for each direction k */
template <class S>
static void output_products(const block_in *b, rows_of_states<S> *out, all_states<const S> h, const S *w_out) {
    const int64_t L = b->L, D = b->D;
    for (int64_t k = 0; k < b->directions; k++) {
        const rows_of_states<const S> states = states_of(h, k);
        out[k] = new_rows<S>(b, D);
        project<S>(out[k].before, states.before, w_out + k * D * L, b->B * b->T, L, D);
        project<S>(out[k].last, states.last, w_out + k * D * L, b->B, L, D);
    }
}

/* Whether planes of an array can be read at once. Planes of a workspace can. */
template <class S> static bool has_planes(const S *p) { return (uintptr_t)p % (2 * sizeof(S)) == 0; }

/* The number of numbers in the saved states. */
template <class S> static int64_t kept_numbers(const block_in *b) {
    const int64_t rows = is_rounded<S> ? b->T + 1 : b->T;
    return b->directions * b->B * rows * b->L;
}

/* ------------------------------------------------------------------------------------------------------- forward */

/* Scans v, and saves the states. */
template <class S>
static void scan_all(const block_in *b, all_states<S> h, real *hT, const S *v, const real *constant) {
    const int64_t size = b->B * b->L;
    for (int64_t k = 0; k < b->directions; k++) {
        const rows_of_states<S> states = states_of(h, k);
        const real *const first = b->h0 ? b->h0 + k * size : NULL;
        real *const last = hT + k * size;
        if (b->exact)
            scan(scan_cut(b, k == 1), states.before, last, (const exact *)b->exact, v, constant, first);
        else
            scan(scan_cut(b, k == 1), states.before, last, (const cplx *)b->a, v, constant, first);
        if constexpr (is_rounded<S>) round_numbers(states.last, last, size);
    }
}

/* What forward saves for backward: the states, and, or NULL, the layer's output; the gate's input and then its product;
 * and the layer's input. */
template <class S> struct saved { S *states, *layer, *gated, *normed; };
template <class S> static S *product_in(const block_in *b, S *gated) {
    return gated ? gated + b->B * b->T * b->D : NULL;
}

template <class S> static int forward(const block_in *b, const block_out *out, saved<S> kept) {
    const int64_t M = b->B * b->T, L = b->L, D = b->D, wide = gate_width(b), size = kept_numbers<S>(b);
    const bool fours = by_four(D, {b->x, b->skip, b->center, b->gain, b->offset, b->b_value, b->b_gate, out->y,
                                   kept.layer, kept.gated, kept.normed});
    const rows_cut rows = cut_rows(b->B, b->T, D, b->lengths, fours);
    const outputs none = {};
    const weights<S> w = weights_of<S>(b);
    const input<S> in = input_of<S>(b, rows, w.in, kept.normed);

    layer_walk<S> layer = {NULL,    kept.layer, NULL,          NULL, in.at, in.rows,
                           b->skip, {},         b->directions, b->T, D,     dropping_of(b, 0)};
    S *const states = has_planes(kept.states) ? kept.states : workspace_of<S>(size);
    const all_states<S> h = states_in(b, states, (S *)out->hT);
    S *const v = workspace_of<S>(M, L);
    project<S>(v, in.rows, in.w, M, D, L);
    scan_all(b, h, out->hT, v, in.constant);
    output_products<S>(b, layer.out, states_in<const S>(b, states, (const S *)out->hT), w.out);
    if (states != kept.states) runtime_copy(kept.states, states, size * (int64_t)sizeof(S));
    if (b->gate == GATE_NONE) {
        layer.y = out->y;
        walk_through(rows, layer, none);
        return runtime_status();
    }
    if (b->gate == GATE_HALF2 && !layer.layer) layer.layer = workspace_of<S>(M, D);
    layer.z = kept.gated ? kept.gated : workspace_of<S>(M, D);
    walk_through(rows, layer, none);

    S *const product = kept.gated ? product_in(b, kept.gated) : workspace_of<S>(M, wide);
    project<S>(product, layer.z, w.gate, M, D, wide);
    const gating<S> gate = {b->gate, D, wide, b->b_value, b->b_gate, b->gate == GATE_HALF1 ? layer.z : layer.layer};
    const gate_walk<S> last = {out->y, b->x, product, gate, dropping_of(b, 1)};
    walk_with_moments(rows, last, out->mean, out->var);
    return runtime_status();
}

KERNEL(block_forward) {
    if (b->tile != 1 || out->states || out->states_bf16 || out->products) return ROT_NO_KERNEL;
    if (out->carries && out->layer_bf16) return ROT_NO_KERNEL;
    if (out->carries) return forward<real>(b, out, {out->carries, out->layer, out->gated, NULL});
#if ROT_DOUBLE
    return ROT_NO_KERNEL;
#else
    return forward<bf16>(
        b, out, {(bf16 *)out->every_bf16, (bf16 *)out->layer_bf16, (bf16 *)out->gated_bf16, (bf16 *)out->normed_bf16});
#endif
}

/* ------------------------------------------------------------------------------------------------------ backward */

/* The final states (directions,B,L), recomputed by one step, because backward is not given them. */
static real *final_states(const block_in *b, input<real> in, const real *carries) {
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
    project<real>(v, x, in.w, count, D, L);
    each(count * N, [=] __device__(int64_t i) {
        const int64_t n = i % N, k = i / N / B, b = i / N % B, steps = steps_of(lengths, b, T);
        const direction way = {T, k == 1};
        const cplx zero = {0, 0}, x = ((cplx *)v)[i], plus = constant ? constant[n] : zero;
        ((cplx *)v)[i] =
            steps ? plane_step(a[n], h[((k * B + b) * T + last_step(way, steps)) * N + n], cplx_add(x, plus)) : zero;
    });
    return v;
}

/* The gate's adjoint: from dy to dz; the gradient of the value in a half form goes to `dvalue`. `kept`: the gate's
 * product, or NULL. */
template <class S>
static S *gate_adjoint(const block_in *b, const block_adjoint_out *out, rows_cut rows, arrival dy, const S *layer,
                       const S *w, const S *z, const S *kept, S *dvalue) {
    const int64_t M = b->B * b->T, D = b->D, wide = gate_width(b), size = D * D;
    S *const product = workspace_of<S>(M, wide), *const dz = workspace_of<S>(M, D);
    const gating<S> gate = {b->gate, D, wide, b->b_value, b->b_gate, b->gate == GATE_HALF1 ? z : layer};
    const gate_adjoint_walk<S> adjoint = {kept ? kept : product, product, dvalue, dy, gate, dropping_of(b, 1)};
    const outputs biases = {b->gate == GATE_FULL ? out->db_value : NULL, out->db_gate};
    if (!kept) project<S>(product, z, w, M, D, wide);
    walk_through(rows, adjoint, biases);
    project_adjoint<S>(dz, product, w, M, D, wide);
    if (b->gate == GATE_FULL) {
        const bool adjacent = out->dw_value && out->dw_gate == out->dw_value + size;
        real *const dw = adjacent ? out->dw_value : workspace_of<real>(wide, D);
        weight_gradient<S>(dw, product, z, M, D, wide);
        if (out->dw_value && !adjacent) runtime_copy(out->dw_value, dw, size * (int64_t)sizeof(real));
        if (out->dw_gate && !adjacent) runtime_copy(out->dw_gate, dw + size, size * (int64_t)sizeof(real));
    } else if (out->dw_gate) {
        weight_gradient<S>(out->dw_gate, product, z, M, D, D);
    }
    return dz;
}

/* dw <- gain (dw - sum center) + sum offset: from g^T x, the gradient for the normed x, with the sums of g (L) */
static void unfold_gradient(const block_in *b, real *dw, const real *sum) {
    const int64_t D = b->D;
    const real *const center = b->center, *const gain = b->gain, *const offset = b->offset;
    each(b->L * D, [=] __device__(int64_t i) {
        const int64_t d = i % D;
        dw[i] = gain[d] * (dw[i] - sum[i / D] * center[d]) + sum[i / D] * offset[d];
    });
}

/* dw_in = g^T xn, g (M,L), with its sums over rows (L) */
template <class S>
static void input_weight_gradient(const block_in *b, input<S> in, rows_cut rows, real *dw, const S *g,
                                  const real *sum) {
    const S *x = in.rows;
    const entrance plain = {b->x, NULL, NULL, NULL, NULL, NULL};
    if (in.rows == (const S *)b->x && b->lengths) x = entering_rows<S>(b, rows, plain);
    weight_gradient<S>(dw, g, x, b->B * b->T, b->D, b->L);
    if (in.constant) unfold_gradient(b, dw, sum);
}

/* Through the scans and their products: from the rows of dlayer to g (M,L), its sums over rows (L) or NULL, r = W_in^T
 * g, and the gradients of a, W_out and h0. */
template <class S>
static const S *scans_adjoint(const block_in *b, const block_adjoint_in *in, const block_adjoint_out *out,
                              all_states<const S> h, const rows_of_states<S> *dlayer, weights<S> w, real *sum, S *r) {
    const int64_t M = b->B * b->T, B = b->B, L = b->L, D = b->D, K = b->directions;
    const int64_t pieces = B * scan_cut(b, false).segments;
    const rows_of_states<S> dh = new_rows<S>(b, L);
    S *const g = workspace_of<S>(M, L);
    real *const da = workspace_of<real>(K, pieces, L), *const sums = workspace_of<real>(K, pieces, L);
    for (int64_t k = 0; k < K; k++) {
        const rows_of_states<S> d = dlayer[k];
        const rows_of_states<const S> states = states_of(h, k);
        const S *const w_out = w.out + k * D * L;
        const real *const dhT = in->dhT ? in->dhT + k * B * L : NULL;
        real *const dh0 = out->dh0 + k * B * L, *const dw = out->dw_out + k * D * L;
        real *const da_k = da + k * pieces * L, *const sums_k = sums + k * pieces * L;
        weight_gradient<S>(dw, d.before, states.before, M, L, D);
        add_weight_gradient<S>(dw, d.last, states.last, B, L, D);
        project_adjoint<S>(dh.before, d.before, w_out, M, L, D);
        project_adjoint<S>(dh.last, d.last, w_out, B, L, D);
        scan_adjoint(scan_cut(b, k == 0), g, k == 1, dh0, da_k, sums_k, b->a, dh, states.before, dhT);
    }
    const outputs da_out = {out->da, NULL}, sum_out = {sum, NULL};
    sum_parts(da_out, da, K * pieces, 1, L);
    if (sum) sum_parts(sum_out, sums, K * pieces, 1, L);
    project_adjoint<S>(r, g, w.in, M, D, L);
    return g;
}

template <class S>
static int backward(const block_in *b, const block_adjoint_in *in, const block_adjoint_out *out, saved<const S> kept) {
    const int64_t M = b->B * b->T, B = b->B, T = b->T, L = b->L, D = b->D, K = b->directions;
    const bool fours =
        by_four(D, {b->x, b->skip, b->center, b->gain, b->offset, b->b_value, b->b_gate, in->dy, kept.layer, kept.gated,
                    kept.normed, in->later_y, in->later_center, in->later_slope, in->later_shift, out->dx});
    const rows_cut rows = cut_rows(B, T, D, b->lengths, fours);
    const arrival dy = {in->dy, in->later_y, in->later_center, in->later_slope, in->later_shift}, nowhere = {};
    const outputs none = {};
    const weights<S> w = weights_of<S>(b);
    input<S> from = input_again<S>(b, rows, w.in, kept.normed);
    if (!has_planes(kept.states)) {
        S *const copy = workspace_of<S>(kept_numbers<S>(b));
        runtime_copy(copy, kept.states, kept_numbers<S>(b) * (int64_t)sizeof(S));
        kept.states = copy;
    }
    const S *last = NULL;
    if constexpr (!is_rounded<S>) last = final_states(b, from, kept.states);
    const all_states<const S> h = states_in(b, kept.states, last);

    /* to the gradient of the layer's output */
    layer_adjoint_walk<S> adjoint = {{},   K,    T,       D,         b->gate,          dy, NULL, NULL,
                                     NULL, NULL, from.at, from.rows, dropping_of(b, 0)};
    if (b->gate != GATE_NONE) {
        layer_walk<S> again = {NULL,    NULL, NULL, kept.layer, from.at, from.rows,
                               b->skip, {},   K,    T,          D,       dropping_of(b, 0)};
        const S *z = kept.gated;
        if (!z) z = again.z = workspace_of<S>(M, D);
        if (!kept.layer) {
            again.layer = workspace_of<S>(M, D);
            output_products<S>(b, again.out, h, w.out);
        }
        if (again.z || again.layer) walk_through(rows, again, none);
        S *const dvalue = b->gate == GATE_FULL ? NULL : workspace_of<S>(M, D);
        adjoint.layer = kept.layer ? kept.layer : again.layer, adjoint.dvalue = dvalue;
        adjoint.dz = gate_adjoint<S>(b, out, rows, dy, adjoint.layer, w.gate, z, product_in(b, kept.gated), dvalue);
    }
    for (int64_t k = 0; k < K; k++) {
        adjoint.out[k] = new_rows<S>(b, D);
        runtime_zero(adjoint.out[k].last, B * D * (int64_t)sizeof(S)); /* some sequences may have no steps */
    }
    const outputs dskip = {out->dskip, NULL};
    if (!from.rows) from.rows = adjoint.xn = workspace_of<S>(M, D);
    walk_through(rows, adjoint, dskip);

    /* through the scans, to the input */
    real *const sum = from.constant ? workspace_of<real>(L) : NULL;
    S *const r = workspace_of<S>(M, D);
    const S *const g = scans_adjoint<S>(b, in, out, h, adjoint.out, w, sum, r);
    input_weight_gradient<S>(b, from, rows, out->dw_in, g, sum);
    const int64_t norm = b->gate == GATE_NONE ? (int64_t)NORM_NONE : b->norm;
    const arrival direct = b->gate == GATE_NONE ? nowhere : dy;
    const input_adjoint_walk<S> end = {
        out->dx, r, b->skip, b->x, b->center, b->gain, from.at.mean, from.at.rstd, adjoint.out[0], direct, norm, T, D};
    const outputs norm_sums = {out->d_norm_sum, out->d_norm_product};
    walk_through(rows, end, norm_sums);
    if (norm == NORM_ROW)
        launch(norm_rows_adjoint, pieces_of(M, ROW_THREADS / 32), ROW_THREADS, 0, out->dx, direct, b->x,
               (const real *)from.at.mean, (const real *)from.at.rstd, b->gain, b->lengths, M, T, D);
    return runtime_status();
}

KERNEL(block_backward) {
    if (b->tile != 1) return ROT_NO_KERNEL;
    if (in->carries) return backward<real>(b, in, out, {in->carries, in->layer, in->gated, NULL});
#if ROT_DOUBLE
    return ROT_NO_KERNEL;
#else
    return backward<bf16>(b, in, out,
                          {(const bf16 *)in->every_bf16, (const bf16 *)in->layer_bf16, (const bf16 *)in->gated_bf16,
                           (const bf16 *)in->normed_bf16});
#endif
}
