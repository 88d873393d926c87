/* A linear layer's two products and the scan between them in one kernel, on tensor cores: neither the scan's input nor
 * its result comes from memory.
 *
 *   v = first x + c   h_t = a h_{t-1} + v_t   y = second h     with first (L,D), second (D,L), and the states h kept
 *
 * Its adjoint is the same with time turned round: from x = dy, first = second^T, second = first^T and conj(a) come
 * h = g and y = dx; then also the sums over steps of g conj(h before the step), the gradient of a, and of g. The
 * gradients of both matrices are products of arrays that are kept. Of two directions the second one's y is of both g.
 *
 * A block walks through a segment of a sequence in tiles of 128 steps, in walking order, and through the lanes in
 * slices of 32; a warp has 32 steps of a tile. Accumulators of mma.sync are spread such that a thread has a plane
 * (lanes 2i, 2i+1) at four rows: these are made four steps that follow each other, so that the scan is three steps of a
 * thread, and three over eight threads. The states then lie as the left operand of the second product has to, once its
 * lanes are counted alike.
 *
 * Few sequences have fewer blocks than a GPU has room for: then time is cut into segments, and a first pass, without
 * the second product, finds what each hands to the next. Steps of padding cost nothing but zeros.
 *
 * Matrices are packed before into words, rounded, in the order in which lanes need them: a lane reads its part of two
 * fragments, 16 bytes, beside its neighbour's. x is packed likewise in shared memory.
 */
#ifndef ROT_CUDA_ENGINE_H
#define ROT_CUDA_ENGINE_H

#include "carries.h"
#include "row_walk.h"

enum {
    ENGINE_WARPS = 4,
    ENGINE_THREADS = 32 * ENGINE_WARPS,
    ENGINE_ROWS = 32,                         /* steps of a warp */
    ENGINE_TILE = ENGINE_ROWS * ENGINE_WARPS, /* steps of a block */
    ENGINE_SLICE = 32,                        /* lanes of a step between two barriers */
    ENGINE_PLANES = ENGINE_SLICE / 2,
    ENGINE_BLOCKS = 256,   /* blocks that fill a GPU: its processors take two each */
    ENGINE_CHANNELS = 128, /* most channels: a thread's sums of the second product are half as many registers again */
};

/* ------------------------------------------------------------------------------------------------------ operands */

/* Kinds of operands, and how arrays of them are stored: a word has WIDTH numbers that are neighbours along the sum; mma
 * multiplies 8 words. In the second product word q of half `half` of a step has the lanes `lane` + 0..WIDTH-1 of a
 * slice.
 */
struct engine_tf32 {
    typedef float word, stored;
    enum { WIDTH = 1 };
    ROT_DEVICE_ONLY word of(const float *x) { return to_tf32(x[0]); }
    ROT_DEVICE_ONLY int lane(int step, int half, int q) { return 8 * step + 2 * q + half; }
    ROT_DEVICE_ONLY void multiply(float *c, const word *a, const word *b) { mma_tf32(c, a, b); }
};
struct engine_bf16 {
    typedef uint32_t word;
    typedef bf16 stored;
    enum { WIDTH = 2 };
    ROT_DEVICE_ONLY word of(const float *x) { return to_bf16(x[0], x[1]); }
    ROT_DEVICE_ONLY int lane(int step, int half, int q) { return 16 * step + 8 * half + 2 * q; }
    ROT_DEVICE_ONLY void multiply(float *c, const word *a, const word *b) { mma_bf16(c, a, b); }
};

/* A lane's four words of one left operand, or of two right ones */
template <class Kind> struct alignas(16) quad {
    typename Kind::word of[4];
};

/* A matrix with element (i,j) at i down + j right, of `rows` and `columns` */
template <class S> struct strided {
    const S *at;
    int64_t down, right, rows, columns;
};
template <class S> ROT_DEVICE_ONLY float element_or_zero(strided<S> m, int64_t i, int64_t j) {
    return i < m.rows && j < m.columns ? read<1>(m.at + i * m.down + j * m.right).of[0] : 0;
}

/* Sizes of a slice's packed matrices, for at most W channels: steps of both products, and quads of each matrix */
template <class Kind, int W> struct engine_sizes {
    enum {
        STEPS = W / (8 * Kind::WIDTH),
        LANE_STEPS = ENGINE_SLICE / (8 * Kind::WIDTH),
        QUADS = ENGINE_SLICE * W / (4 * Kind::WIDTH),
    };
};

/* Packs (L,D) for the first product: quads (slice, pair of steps, eight lanes, lane of the warp). */
template <class Kind, int W> static const quad<Kind> *pack_first(strided<typename Kind::stored> m) {
    constexpr int QUADS = engine_sizes<Kind, W>::QUADS;
    const int64_t count = pieces_of(m.rows, ENGINE_SLICE) * QUADS;
    quad<Kind> *const packed = workspace_of<quad<Kind>>(count);
    each(count, [=] __device__(int64_t i) {
        const int lane = (int)(i % 32), q = lane % 4, eight = (int)(i / 32 % 4), pair = (int)(i % QUADS / 128);
        const int64_t row = i / QUADS * ENGINE_SLICE + 8 * eight + lane / 4;
        quad<Kind> r;
        for (int k = 0; k < 4; k++) {
            const int64_t slot = (2 * pair + k / 2) * 8 + k % 2 * 4 + q;
            float x[2];
            for (int u = 0; u < Kind::WIDTH; u++) x[u] = element_or_zero(m, row, slot * Kind::WIDTH + u);
            r.of[k] = Kind::of(x);
        }
        packed[i] = r;
    });
    return packed;
}

/* Packs (D,L) for the second product: quads (slice, step, sixteen channels, lane of the warp). */
template <class Kind, int W> static const quad<Kind> *pack_second(strided<typename Kind::stored> m) {
    constexpr int QUADS = engine_sizes<Kind, W>::QUADS;
    const int64_t count = pieces_of(m.columns, ENGINE_SLICE) * QUADS;
    quad<Kind> *const packed = workspace_of<quad<Kind>>(count);
    each(count, [=] __device__(int64_t i) {
        const int lane = (int)(i % 32), step = (int)(i % QUADS / (2 * W)), sixteen = (int)(i / 32 % (W / 16));
        quad<Kind> r;
        for (int k = 0; k < 4; k++) {
            const int64_t row = 16 * sixteen + k / 2 * 8 + lane / 4;
            const int64_t from = i / QUADS * ENGINE_SLICE + Kind::lane(step, k % 2, lane % 4);
            float x[2];
            for (int u = 0; u < Kind::WIDTH; u++) x[u] = element_or_zero(m, row, from + u);
            r.of[k] = Kind::of(x);
        }
        packed[i] = r;
    });
    return packed;
}

/* -------------------------------------------------------------------------------------------------------- a call */

/* What a tile needs of a plane: powers 0, 4, .., 28 of its transition, 1 and 32, and what is added to its input. Powers
 * are finite, so that they times zero is zero. */
struct alignas(16) engine_plane {
    cplx fours[8], a, a32, constant;
};

/* Rows of numbers: of each step, or of the state after it. That is kept in the row of the next step of its scan, which
 * in walking order is `shift` further, 1 or, in an adjoint, -1; that after all steps is in `last`, a row for a
 * sequence. */
template <class S> struct engine_rows {
    S *at, *last;
    int shift;
};

/* x (B,T,D) -> y (B,T,D) and the states (B,T,L). What the first step of a segment gets from those before, a times the
 * state, is in `between` (B,segments,N), and of a block's tile in `entering` (2,B segments,planes), where tiles take
 * turns; `last` (B,N) is the last state, or of an adjoint what it hands on. Of an adjoint, `before` has the states
 * before each step, and sums (B segments warps,L) are left; `other`, or NULL, is added to what is kept and goes on to
 * y, which may be NULL. X, H: how rows of x, and the states of this call, are stored. */
template <class X, class H> struct engine_call {
    cut c;
    int64_t D;
    int slices;
    engine_rows<const X> x;
    engine_rows<real> y;
    H *states;
    int shift; /* of states, as of rows */
    const engine_plane *planes;
    exact *between;
    cplx *entering, *last;
    const X *before;
    const real *other;
    real *sums[2];
};

/* A block's tile: its first step in walking order, of all of sequence b */
struct engine_tile {
    int64_t b, from, all;
};

/* The row of walking step i, of n numbers */
template <class S> ROT_DEVICE_ONLY S *engine_row(engine_rows<S> r, cut c, engine_tile t, int64_t i, int64_t n) {
    i += r.shift;
    if (r.shift && i == (r.shift > 0 ? t.all : -1)) return r.last + t.b * n;
    return r.at + (t.b * c.T + (c.down ? t.all - 1 - i : i)) * n;
}

template <class Kind, int W> struct engine_shared {
    quad<Kind> x[ENGINE_TILE * W / (4 * Kind::WIDTH)];
    quad<Kind> matrix[2][engine_sizes<Kind, W>::QUADS];
    cplx ends[ENGINE_WARPS][ENGINE_PLANES];
};

/* -------------------------------------------------------------------------------------------------------- products */

/* Begins to copy a slice of a packed matrix. */
template <class Kind, int W> ROT_DEVICE_ONLY void fetch(quad<Kind> *to, const quad<Kind> *packed, int slice) {
    constexpr int QUADS = engine_sizes<Kind, W>::QUADS;
    const quad<Kind> *const from = packed + (int64_t)slice * QUADS + threadIdx.x;
#pragma unroll
    for (int i = 0; i < QUADS; i += ENGINE_THREADS) copy_async(to + threadIdx.x + i, from + i);
    copy_commit();
}

/* Packs the tile's x: quads (warp, step of the product, sixteen rows, lane); zeros beyond the sequence. Row 4 g + 2 m +
 * k of a warp is row g + 8 k of its m-th sixteen. */
template <class Kind, int W, class E> ROT_DEVICE_ONLY void pack_rows(quad<Kind> *to, const E &e, engine_tile t) {
    constexpr int STEPS = engine_sizes<Kind, W>::STEPS, WIDTH = Kind::WIDTH;
    const int slot = (int)threadIdx.x % 8, half = (int)threadIdx.x / 8 % 2, g = (int)threadIdx.x / 16;
    for (int block = 0; block < 2 * ENGINE_WARPS; block++) {
        const int warp = block / 2, m = block % 2;
        const int64_t row = t.from + ENGINE_ROWS * warp + 4 * g + 2 * m + half;
        const auto from = row < t.all ? engine_row(e.x, e.c, t, row, e.D) : NULL;
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            float x[2];
#pragma unroll
            for (int u = 0; u < WIDTH; u++) {
                const int column = (8 * step + slot) * WIDTH + u;
                x[u] = from && column < e.D ? read<1>(from + column).of[0] : 0;
            }
            to[((warp * STEPS + step) * 2 + m) * 32 + 4 * g + slot % 4].of[half + slot / 4 * 2] = Kind::of(x);
        }
    }
}

/* sums += x first^T of a warp's rows and a slice's lanes: sums[m][j] are of sixteen rows and eight lanes. */
template <class Kind, int W>
ROT_DEVICE_ONLY void multiply_first(float (*sums)[4][4], const quad<Kind> *x, const quad<Kind> *first) {
#pragma unroll 2
    for (int step = 0; step < engine_sizes<Kind, W>::STEPS; step += 2) {
        quad<Kind> right[4];
#pragma unroll
        for (int j = 0; j < 4; j++) right[j] = first[(step * 2 + j) * 32];
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const quad<Kind> left = x[((step + k) * 2 + m) * 32];
#pragma unroll
                for (int j = 0; j < 4; j++) Kind::multiply(sums[m][j], left.of, right[j].of + 2 * k);
            }
    }
}

/* The left operand of the second product: what a thread has of the states, of its two rows of sixteen */
ROT_DEVICE_ONLY void left_of_states(float *a, const float (*h)[4], int step, engine_tf32) {
    const float *const c = h[step];
    a[0] = to_tf32(c[0]), a[1] = to_tf32(c[2]), a[2] = to_tf32(c[1]), a[3] = to_tf32(c[3]);
}
ROT_DEVICE_ONLY void left_of_states(uint32_t *a, const float (*h)[4], int step, engine_bf16) {
#pragma unroll
    for (int k = 0; k < 4; k++) a[k] = to_bf16(h[2 * step + k / 2][k % 2 * 2], h[2 * step + k / 2][k % 2 * 2 + 1]);
}

/* sums += h second^T of a warp's rows; h as multiply_first leaves its sums. */
template <class Kind, int W>
ROT_DEVICE_ONLY void multiply_second(float (*sums)[W / 8][4], const float (*h)[4][4], const quad<Kind> *second) {
#pragma unroll
    for (int step = 0; step < engine_sizes<Kind, W>::LANE_STEPS; step++) {
        quad<Kind> left[2];
#pragma unroll
        for (int m = 0; m < 2; m++) left_of_states(left[m].of, h[m], step, Kind());
#pragma unroll
        for (int i = 0; i < W / 16; i++) {
            const quad<Kind> right = second[(step * (W / 16) + i) * 32];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                Kind::multiply(sums[m][2 * i], left[m].of, right.of);
                Kind::multiply(sums[m][2 * i + 1], left[m].of, right.of + 2);
            }
        }
    }
}

/* y of a warp's rows, of which a thread has four, from walking step `first` on */
template <int W, class E>
ROT_DEVICE_ONLY void keep_products(const E &e, engine_tile t, const float (*y)[W / 8][4], int64_t first) {
    const int q = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (first + i >= t.all) continue;
        real *const row = engine_row(e.y, e.c, t, first + i, e.D) + 2 * q;
#pragma unroll
        for (int k = 0; k < W / 4; k++) {
            const int column = 4 * (k - k % 2) + k % 2;
            if (column + 2 * q < e.D) row[column] = y[i / 2][k / 2][i % 2 * 2 + k % 2];
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------- scan */

/* plane_step with the fewest instructions: a product and a sum in one each */
ROT_DEVICE_ONLY cplx fused_step(cplx a, cplx h, cplx x) {
    const cplx r = {fmaf(a.re, h.re, fmaf(-a.im, h.im, x.re)), fmaf(a.re, h.im, fmaf(a.im, h.re, x.im))};
    return r;
}
ROT_DEVICE_ONLY cplx times(cplx a, cplx b) {
    const cplx zero = {0, 0};
    return cplx_fma(a, b, zero);
}
ROT_DEVICE_ONLY cplx shuffle_up(cplx z, int by) {
    const cplx r = {__shfl_up_sync(~0u, z.re, by), __shfl_up_sync(~0u, z.im, by)};
    return r;
}

/* A thread's four steps of its plane of eight lanes j, in order, as the accumulators have them */
ROT_DEVICE_ONLY cplx step_of(const float (*v)[4][4], int j, int i) {
    const cplx r = {v[i / 2][j][i % 2 * 2], v[i / 2][j][i % 2 * 2 + 1]};
    return r;
}
ROT_DEVICE_ONLY void set_step(float (*v)[4][4], int j, int i, cplx x) {
    v[i / 2][j][i % 2 * 2] = x.re, v[i / 2][j][i % 2 * 2 + 1] = x.im;
}

/* Turns inputs into states, from zero at the first of the thread's four steps. before[j]: the state before that, from
 * zero at the warp's first step; ends (planes): after the warp's last step. */
ROT_DEVICE_ONLY void scan_warp(float (*v)[4][4], cplx *before, cplx *ends, const engine_plane *planes) {
    const int lane = (int)threadIdx.x % 32, q = lane % 4;
    const cplx zero = {0, 0};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const engine_plane &plane = planes[4 * j + q];
        cplx h = step_of(v, j, 0);
#pragma unroll
        for (int i = 1; i < 4; i++) h = fused_step(plane.a, h, step_of(v, j, i)), set_step(v, j, i, h);
#pragma unroll
        for (int d = 1; d < 8; d *= 2) {
            const cplx other = shuffle_up(h, 4 * d);
            if (lane >= 4 * d) h = fused_step(plane.fours[d], other, h);
        }
        if (lane >= 28) ends[4 * j + q] = h;
        const cplx other = shuffle_up(h, 4);
        before[j] = lane < 4 ? zero : other;
    }
}

/* What enters the block's warp `warp`, or the next tile if there are as many, from what enters the tile */
ROT_DEVICE_ONLY void enter_warp(cplx *enters, const cplx (*ends)[ENGINE_PLANES], const engine_plane *planes, int from,
                                int warp) {
    const int q = (int)threadIdx.x % 4;
#pragma unroll 1
    for (int w = from; w < warp; w++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const engine_plane &plane = planes[4 * j + q];
            enters[j] = fused_step(plane.a32, enters[j], times(plane.a, ends[w][4 * j + q]));
        }
}

/* Adds what comes from before the warp's and the thread's steps. */
ROT_DEVICE_ONLY void add_earlier(float (*v)[4][4], const cplx *before, const cplx *enters, const engine_plane *planes) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const engine_plane &plane = planes[4 * j + lane % 4];
        cplx here = fused_step(plane.fours[lane / 4], enters[j], times(plane.a, before[j]));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            set_step(v, j, i, cplx_add(step_of(v, j, i), here));
            here = times(plane.a, here);
        }
    }
}

/* ------------------------------------------------------------------------------------------------- states in memory */

/* Where the states of a thread's four steps are: so many are valid, and `end` is the sequence's last step, or beyond
 * the four. Their first plane is that of the thread. */
struct engine_steps {
    int valid, end;
    int64_t at, stride; /* numbers to the first step's, and from step to step */
    int64_t last;       /* planes to that of the state after all steps */
};

template <class E> ROT_DEVICE_ONLY engine_steps steps_of_thread(const E &e, engine_tile t, int64_t first) {
    const int64_t n = 2 * e.c.N, row = first + e.shift, q = threadIdx.x % 4;
    engine_steps s = {(int)most(least(t.all - first, 4), 0), (int)least(t.all - first - 1, 4), 0, e.c.down ? -n : n, 0};
    s.at = (t.b * e.c.T + (e.c.down ? t.all - 1 - row : row)) * n + 2 * q, s.last = t.b * e.c.N + q;
    return s;
}

template <class S> ROT_DEVICE_ONLY cplx plane_at(const S *p) {
    const pack<2> x = read<2>(p);
    const cplx z = {x.of[0], x.of[1]};
    return z;
}
template <class S> ROT_DEVICE_ONLY void keep_plane(S *p, cplx z) {
    const pack<2> x = {{z.re, z.im}};
    write<2>(p, x);
}

/* Keeps a slice's states in the rows of the steps after theirs. `planes` are left from the slice's first. */
template <class E>
ROT_DEVICE_ONLY void keep_states(const E &e, engine_steps s, const float (*h)[4][4], int slice, int planes) {
    const int q = (int)threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i >= s.valid) continue;
        const auto row = e.states + s.at + i * s.stride + ENGINE_SLICE * slice;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (4 * j + q >= planes) continue;
            if (i == s.end)
                e.last[s.last + ENGINE_PLANES * slice + 4 * j] = step_of(h, j, i);
            else
                keep_plane(row + 8 * j, step_of(h, j, i));
        }
    }
}

/* Sums of two numbers over the eight lanes with the same plane. Lane 4 g + q, g even, gets one of four: of the first
 * number if g < 4, the real part if g % 4 == 0. */
ROT_DEVICE_ONLY float sum_of_lanes(cplx first, cplx second) {
    const int lane = (int)threadIdx.x % 32;
    const cplx mine = lane < 16 ? first : second, others = lane < 16 ? second : first;
    const cplx both = {mine.re + __shfl_xor_sync(~0u, others.re, 16), mine.im + __shfl_xor_sync(~0u, others.im, 16)};
    const bool real_part = lane % 16 < 8;
    float sum = real_part ? both.re : both.im;
    sum += __shfl_xor_sync(~0u, real_part ? both.im : both.re, 8);
    return sum + __shfl_xor_sync(~0u, sum, 4);
}

/* Keeps those of an adjoint, with the other direction's, in the rows of their steps, and adds up its sums. */
template <class E>
ROT_DEVICE_ONLY void keep_adjoint(const E &e, engine_steps s, float (*g)[4][4], int slice, int planes) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, q = lane % 4;
    const engine_plane *const plane = e.planes + ENGINE_PLANES * slice + q;
    cplx da[4] = {}, sum[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i >= s.valid) continue;
        const int64_t at = s.at + i * s.stride + ENGINE_SLICE * slice;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (4 * j + q >= planes) continue;
            const cplx here = step_of(g, j, i);
            da[j] = plane_transition_adjoint(here, plane_at(e.before + at + 8 * j), da[j]);
            sum[j] = cplx_add(sum[j], here);
            if (i == s.end) e.last[s.last + ENGINE_PLANES * slice + 4 * j] = times(plane[4 * j].a, here);
            if (e.other) set_step(g, j, i, cplx_add(plane_at(e.other + at + 8 * j), here));
            keep_plane(e.states + at + 8 * j, step_of(g, j, i));
        }
    }
    real *const sums =
        e.sums[lane / 16] + ((int64_t)blockIdx.x * ENGINE_WARPS + warp) * 2 * e.c.N + ENGINE_SLICE * slice;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const float part = sum_of_lanes(da[j], sum[j]);
        if (lane % 8 < 4 && 4 * j + q < planes) sums[8 * j + 2 * q + lane / 8 % 2] += part;
    }
}

/* Zeros in the states of padding that lie in the segment's range of time */
template <class E> ROT_DEVICE_ONLY void clear_states(const E &e, engine_tile t, int64_t segment) {
    const int64_t n = 2 * e.c.N, to = least((segment + 1) * e.c.steps, e.c.T);
    const int64_t from = (t.b * e.c.T + most(segment * e.c.steps, t.all)) * n, end = (t.b * e.c.T + to) * n;
    const pack<1> zero = {};
    for (int64_t i = from + threadIdx.x; i < end; i += ENGINE_THREADS) write<1>(e.states + i, zero);
}

/* Zeros in the sums of the segment's block */
template <class E> ROT_DEVICE_ONLY void clear_sums(const E &e) {
    const int64_t n = ENGINE_WARPS * 2 * e.c.N;
    for (int64_t i = threadIdx.x; i < n; i += ENGINE_THREADS)
        e.sums[0][blockIdx.x * n + i] = 0, e.sums[1][blockIdx.x * n + i] = 0;
}

/* -------------------------------------------------------------------------------------------------------- kernel */

enum engine_pass { ENGINE_ENDS, ENGINE_STATES, ENGINE_ADJOINT };

template <class Kind, int W, engine_pass PASS, class H>
GLOBAL2(ENGINE_THREADS, 2)
run_engine(engine_call<typename Kind::stored, H> e, const quad<Kind> *first, const quad<Kind> *second) {
    typedef engine_sizes<Kind, W> sizes;
    engine_shared<Kind, W> &s = shared_memory<engine_shared<Kind, W>>();
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, q = lane % 4;
    const int64_t segment = blockIdx.x % e.c.segments;
    engine_tile t;
    t.b = blockIdx.x / e.c.segments, t.all = steps_of(e.c.lengths, t.b, e.c.T), t.from = segment * e.c.steps;
    const int64_t end = least(t.from + e.c.steps, t.all), width = (int64_t)e.slices * ENGINE_PLANES;
    exact *const between = e.between + blockIdx.x * e.c.N;
    cplx *entering = e.entering + blockIdx.x * width, *leaving = entering + gridDim.x * width;

    if (PASS == ENGINE_ADJOINT) clear_sums(e);
    if (PASS != ENGINE_ENDS && (const void *)e.other != e.states) clear_states(e, t, segment);
    for (int64_t n = threadIdx.x; n < width; n += ENGINE_THREADS) {
        const exact none = {0, 0};
        entering[n] = exact_rounded(PASS != ENGINE_ENDS && n < e.c.N ? between[n] : none);
        if (PASS == ENGINE_ENDS && n < e.c.N) between[n] = none;
    }
    /* from the last segment, and those of padding, nobody needs an end */
    if (t.from >= end || (PASS == ENGINE_ENDS && end == t.all)) return;

    const bool has_y = PASS == ENGINE_STATES || (PASS == ENGINE_ADJOINT && e.y.at);
    int stage = 0; /* of the matrices; in the first pass two slices of the first matrix take turns */
    fetch<Kind, W>(s.matrix[0], first, 0);
    for (; t.from < end; t.from += ENGINE_TILE) {
        const int64_t row = t.from + ENGINE_ROWS * warp + lane / 4 * 4;
        const engine_steps steps = steps_of_thread(e, t, row);
        float y[2][W / 8][4] = {};
        pack_rows<Kind, W>(s.x, e, t);
#pragma unroll 1
        for (int slice = 0; slice < e.slices; slice++) {
            const bool last = slice == e.slices - 1 && t.from + ENGINE_TILE >= end;
            const int next = slice == e.slices - 1 ? 0 : slice + 1;
            const engine_plane *const planes = e.planes + ENGINE_PLANES * slice;
            copy_wait<0>();
            __syncthreads(); /* x, what enters and the first matrix are there, and the other stage is free */
            if (PASS != ENGINE_ENDS)
                fetch<Kind, W>(s.matrix[1], second, slice);
            else if (!last)
                fetch<Kind, W>(s.matrix[1 - stage], first, next);

            float v[2][4][4];
            cplx before[4], enters[4];
#pragma unroll
            for (int j = 0; j < 16; j++) set_step(v, j / 4, j % 4, planes[j - j % 4 + q].constant);
            multiply_first<Kind, W>(v, s.x + warp * sizes::STEPS * 64 + lane, s.matrix[stage] + lane);
            scan_warp(v, before, s.ends[warp], planes);
            copy_wait<0>();
            __syncthreads(); /* ends and the second matrix are there, and x and the first stage are free */
            if (PASS == ENGINE_ENDS)
                stage = 1 - stage;
            else if (!last)
                fetch<Kind, W>(s.matrix[0], first, next);

#pragma unroll
            for (int j = 0; j < 4; j++) enters[j] = plane_at(&entering[ENGINE_PLANES * slice + 4 * j + q].re);
            enter_warp(enters, s.ends, planes, 0, warp);
            if (PASS != ENGINE_ENDS) add_earlier(v, before, enters, planes);
            if (warp == ENGINE_WARPS - 1) {
                enter_warp(enters, s.ends, planes, warp, ENGINE_WARPS);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (lane < 4) keep_plane(&leaving[ENGINE_PLANES * slice + 4 * j + q].re, enters[j]);
            }
            const int left = (int)least(e.c.N - ENGINE_PLANES * slice, ENGINE_PLANES);
            if (PASS == ENGINE_STATES) keep_states(e, steps, v, slice, left);
            if (PASS == ENGINE_ADJOINT) keep_adjoint(e, steps, v, slice, left);
            if (has_y) multiply_second<Kind, W>(y, v, s.matrix[1] + lane);
        }
        if (has_y) keep_products<W>(e, t, y, row);
        cplx *const done = entering;
        entering = leaving, leaving = done;
    }
    __syncthreads();
    for (int64_t n = threadIdx.x; PASS == ENGINE_ENDS && n < e.c.N; n += ENGINE_THREADS)
        between[n] = exact_of(entering[n]);
}

/* --------------------------------------------------------------------------------------------------------- calls */

/* A layer's one direction, on B sequences: w_in (L,D) and w_out (D,L), of an adjoint both turned round */
template <class Kind> struct engine_layer {
    int64_t B, T, D, N;
    const int64_t *lengths;
    bool down;
    strided<typename Kind::stored> w_in, w_out;
    const cplx *a, *constant;
};

static cut engine_cut(int64_t B, int64_t T, int64_t N, const int64_t *lengths, bool down) {
    const int64_t tiles = pieces_of(T, ENGINE_TILE);
    cut c = {B, T, N, least(tiles, pieces_of(ENGINE_BLOCKS, most(B, 1))), 0, lengths, false, down};
    c.steps = pieces_of(tiles, c.segments) * ENGINE_TILE;
    c.segments = pieces_of(T, c.steps);
    return c;
}
template <class Kind> static cut cut_of_engine(engine_layer<Kind> l) {
    return engine_cut(l.B, l.T, l.N, l.lengths, l.down);
}

/* How many parts the sums of an adjoint have */
static int64_t engine_parts(int64_t B, int64_t T) {
    return B * engine_cut(B, T, 0, NULL, false).segments * ENGINE_WARPS;
}

/* a^n, finite */
ROT_DEVICE_ONLY cplx finite_power(exact a, int n) {
    const float most = 3.4e38f;
    const cplx power = exact_rounded(exact_power(a, n));
    const cplx finite = {fminf(fmaxf(power.re, -most), most), fminf(fmaxf(power.im, -most), most)};
    return finite;
}

static const engine_plane *engine_planes(const cplx *a, const cplx *constant, int64_t N, int64_t count, bool adjoint) {
    engine_plane *const planes = workspace_of<engine_plane>(count);
    each(count, [=] __device__(int64_t n) {
        engine_plane p = {};
        if (n < N) {
            const exact turn = adjoint ? conjugate(exact_of(a[n])) : exact_of(a[n]);
            for (int i = 0; i < 8; i++) p.fours[i] = finite_power(turn, 4 * i);
            p.a = finite_power(turn, 1), p.a32 = finite_power(turn, 32);
            if (constant) p.constant = constant[n];
        }
        planes[n] = p;
    });
    return planes;
}

template <class Kind, int W, engine_pass PASS, class H>
static void run_passes(engine_call<typename Kind::stored, H> e, engine_layer<Kind> l, const cplx *first) {
    const size_t bytes = sizeof(engine_shared<Kind, W>);
    const int64_t blocks = e.c.B * e.c.segments;
    const quad<Kind> *const w_in = pack_first<Kind, W>(l.w_in), *const w_out = pack_second<Kind, W>(l.w_out);
    launch(run_engine<Kind, W, ENGINE_ENDS, H>, blocks, ENGINE_THREADS, bytes, e, w_in, w_out);
    launch(pass_on<cplx>, pieces_of(e.c.B * e.c.N, SCAN_THREADS), SCAN_THREADS, 0, e.c, e.between, l.a, first,
           PASS == ENGINE_ADJOINT);
    launch(run_engine<Kind, W, PASS, H>, blocks, ENGINE_THREADS, bytes, e, w_in, w_out);
}

/* `first` (B,N), or NULL: what enters the first step. */
template <class Kind, engine_pass PASS, class H>
static void run_layer(engine_call<typename Kind::stored, H> e, engine_layer<Kind> l, const cplx *first) {
    e.c = cut_of_engine(l), e.D = l.D, e.slices = (int)pieces_of(l.N, ENGINE_PLANES);
    const int64_t blocks = e.c.B * e.c.segments, planes = (int64_t)e.slices * ENGINE_PLANES;
    e.planes = engine_planes(l.a, l.constant, l.N, planes, PASS == ENGINE_ADJOINT);
    e.between = workspace_of<exact>(blocks, l.N), e.entering = workspace_of<cplx>((int64_t)2, blocks, planes);
    if (l.D <= ENGINE_CHANNELS / 2)
        run_passes<Kind, ENGINE_CHANNELS / 2, PASS>(e, l, first);
    else
        run_passes<Kind, ENGINE_CHANNELS, PASS>(e, l, first);
}

/* y, the states `before` each step (B,T,L) and the last one (B,N) from x and from the first one, or NULL for zero */
template <class Kind, class S = typename Kind::stored>
static void engine_forward(engine_layer<Kind> l, const S *x, engine_rows<real> y, S *before, cplx *last,
                           const cplx *first) {
    const cplx *const a = l.a;
    const int64_t N = l.N;
    const cut c = cut_of_engine(l);
    cplx *const enters = workspace_of<cplx>(l.B, N);
    each(l.B * N, [=] __device__(int64_t i) {
        const int64_t b = i / N, all = steps_of(c.lengths, b, c.T);
        const cplx zero = {0, 0}, h = first ? first[i] : zero;
        enters[i] = times(a[i % N], h);
        if (all)
            keep_plane(before + ((b * c.T + (c.down ? all - 1 : 0)) * N + i % N) * 2, h);
        else
            last[i] = h;
    });
    engine_call<S, S> e = {};
    e.x.at = x, e.y = y, e.states = before, e.shift = 1, e.last = last;
    run_layer<Kind, ENGINE_STATES, S>(e, l, enters);
}

/* The adjoint: g (B,T,L), to which `other` is added, unless NULL; y from that, unless NULL; dh0 (B,N), and sums da and
 * that of g alone (engine_parts,L); from the rows x, the states before each step, and the last one's gradient dhT, or
 * NULL. */
template <class Kind, class G, class S = typename Kind::stored>
static void engine_adjoint(engine_layer<Kind> l, engine_rows<const S> x, real *y, G *g, const real *other,
                           const S *before, const cplx *dhT, cplx *dh0, real *da, real *sums) {
    const int64_t N = l.N, T = l.T, *const lengths = l.lengths;
    each(l.B * N, [=] __device__(int64_t i) {
        const cplx zero = {0, 0};
        if (!steps_of(lengths, i / N, T)) dh0[i] = dhT ? dhT[i] : zero;
    });
    engine_call<S, G> e = {};
    e.x = x, e.y.at = y, e.states = g, e.last = dh0, e.before = before, e.other = other;
    e.sums[0] = da, e.sums[1] = sums;
    run_layer<Kind, ENGINE_ADJOINT, G>(e, l, dhT);
}

#endif
