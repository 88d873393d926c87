/* Walks over the rows of arrays (B,T,D), with sums over rows in a fixed order.
 *
 * A block takes some rows and the channels of its threads: a thread has V adjacent channels of every `lanes`-th row. V
 * is 4 if all arrays allow it, else 1. Sums go over a thread, then a block, then all blocks, by a second kernel in
 * double precision.
 */
#ifndef ROT_CUDA_ROW_WALK_H
#define ROT_CUDA_ROW_WALK_H

#include <initializer_list>
#include <type_traits>

#include "device.h"
#include "moments.h"

enum { WALK_THREADS = 256, WALK_STEPS = 16, SUM_THREADS = 512, SUM_STRIPES = SUM_THREADS / 32 };

/* ---- adjacent numbers ---- */

/* Bytes to which V numbers must be aligned to be read at once */
constexpr size_t pack_alignment(int V) { return V == 1 ? sizeof(real) : V == 2 ? 2 * sizeof(real) : 16; }

template <int V> struct alignas(pack_alignment(V)) pack {
    real of[V];
};

template <int V> ROT_DEVICE_ONLY pack<V> read(const real *p) { return *(const pack<V> *)p; }
template <int V> ROT_DEVICE_ONLY void write(real *p, pack<V> x) { *(pack<V> *)p = x; }

/* A number in 2 bytes. Such arrays are read and written like arrays of real numbers, and writing rounds. */
struct bf16 {
    uint16_t bits;
};
template <class S> constexpr bool is_rounded = sizeof(S) == sizeof(bf16);

/* Numbers in words of two, the first in the low half: rounding a word is one instruction, and widening it two. */
template <int V> using bf16_word = typename std::conditional<V == 1, uint16_t, uint32_t>::type;
template <int V> struct alignas(V * sizeof(bf16)) bf16_pack {
    bf16_word<V> two[(V + 1) / 2];
};
template <int V> ROT_DEVICE_ONLY pack<V> widened(bf16_pack<V> x) {
    pack<V> y;
#pragma unroll
    for (int i = 0; i < V; i++) y.of[i] = (real)bf16_value((uint32_t)x.two[i / 2] >> (i % 2 ? 16 : 0));
    return y;
}
template <int V> ROT_DEVICE_ONLY bf16_pack<V> narrowed(pack<V> x) {
    bf16_pack<V> y;
#pragma unroll
    for (int i = 0; i < V; i += 2)
        y.two[i / 2] = (bf16_word<V>)to_bf16((float)x.of[i], i + 1 < V ? (float)x.of[i + 1] : 0);
    return y;
}
template <int V> ROT_DEVICE_ONLY pack<V> read(const bf16 *p) { return widened(*(const bf16_pack<V> *)p); }
template <int V> ROT_DEVICE_ONLY void write(bf16 *p, pack<V> x) { *(bf16_pack<V> *)p = narrowed(x); }

/* Numbers rounded as in an array of S */
template <class S, int V> ROT_DEVICE_ONLY pack<V> as_stored(pack<V> x) {
    if constexpr (is_rounded<S>) return widened(narrowed(x));
    return x;
}

/* Whether arrays of rows of D numbers, or NULL, can be read by four. */
static bool by_four(int64_t D, std::initializer_list<const void *> arrays) {
    bool good = D % 4 == 0;
    for (const void *const p : arrays) good = good && (uintptr_t)p % pack_alignment(4) == 0;
    return good;
}

/* ---- division of rows ---- */

struct rows_cut {
    int64_t B, T, D;
    const int64_t *lengths;
    int width, groups, lanes;      /* channels of a thread; threads of a row; rows at a time */
    int64_t columns, rows, blocks; /* blocks across channels; rows of a block; blocks across rows */
};

static rows_cut cut_rows(int64_t B, int64_t T, int64_t D, const int64_t *lengths, bool fours) {
    rows_cut c = {B, T, D, lengths, fours ? 4 : 1, 1, 1, 0, 1, 0};
    c.groups = (int)most(least(D / c.width, WALK_THREADS), 1);
    c.lanes = WALK_THREADS / c.groups;
    c.columns = pieces_of(D, (int64_t)c.groups * c.width);
    c.rows = (int64_t)c.lanes * WALK_STEPS;
    c.blocks = pieces_of(B * T, c.rows);
    return c;
}

/* A thread's channels of one row: step t of sequence b, which has `steps` valid steps; `at` is the first number's place
 * in an array (B,T,D). */
struct place {
    int64_t b, t, row, column, at, steps;
    bool valid;
};

/* step(place) for each of the thread's rows */
template <class Step> ROT_DEVICE_ONLY void walk_rows(rows_cut c, Step step) {
    const int64_t block = (int64_t)(blockIdx.x / (unsigned)c.columns), column = blockIdx.x % (unsigned)c.columns;
    const int lane = (int)threadIdx.x / c.groups;
    const int64_t end = least((block + 1) * c.rows, c.B * c.T);
    place p;
    p.column = (column * c.groups + (int)threadIdx.x % c.groups) * c.width;
    p.row = block * c.rows + lane;
    if (lane >= c.lanes || p.column >= c.D || p.row >= end) return;
    p.b = p.row / c.T, p.t = p.row % c.T;
    while (true) {
        p.steps = steps_of(c.lengths, p.b, c.T);
        p.at = p.row * c.D + p.column;
        p.valid = p.t < p.steps;
        step(p);
        p.row += c.lanes;
        if (p.row >= end) return;
        for (p.t += c.lanes; p.t >= c.T; p.t -= c.T) p.b++;
    }
}

/* ---- sums ---- */

template <int V, int SUMS> struct walk_scratch {
    real of[SUMS][WALK_THREADS * V]; /* empty in a walk without sums */
};

/* parts (blocks,SUMS,D): the sums of the block's threads, in the order of their rows */
template <int V, int SUMS> ROT_DEVICE_ONLY void leave_sums(rows_cut c, real *parts, const pack<V> *sums) {
    walk_scratch<V, SUMS> &s = shared_memory<walk_scratch<V, SUMS>>();
    const int width = c.groups * V;
#pragma unroll
    for (int k = 0; k < SUMS; k++)
#pragma unroll
        for (int i = 0; i < V; i++) s.of[k][(int)threadIdx.x * V + i] = sums[k].of[i];
    __syncthreads();
    for (int q = (int)threadIdx.x; q < SUMS * width; q += WALK_THREADS) {
        const int64_t block = blockIdx.x / (unsigned)c.columns, k = q / width;
        const int64_t column = (int64_t)(blockIdx.x % (unsigned)c.columns) * width + q % width;
        if (column >= c.D) continue;
        double total = 0;
        for (int lane = 0; lane < c.lanes; lane++) total += (double)s.of[k][lane * width + q % width];
        parts[(block * SUMS + k) * c.D + column] = (real)total;
    }
}

/* f.step(place, sums) for each row, with f::SUMS sums */
template <int V, class F> GLOBAL(WALK_THREADS) walk_kernel(rows_cut c, F f, real *parts) {
    pack<V> sums[F::SUMS > 0 ? F::SUMS : 1] = {};
    walk_rows(c, [&](place p) { f.template step<V>(p, sums); });
    if constexpr (F::SUMS > 0) leave_sums<V, F::SUMS>(c, parts, sums);
}

/* Outputs for one or two sums (D); NULL: not written. */
struct outputs {
    real *first, *second;
};

/* One column of `rows` rows, divided among the block's warps. */
struct stripe {
    int64_t column, first, steps;
};
ROT_DEVICE_ONLY stripe stripe_of(int64_t rows, int64_t columns) {
    stripe s = {(int64_t)blockIdx.x * 32 + threadIdx.x % 32, threadIdx.x / 32, 0};
    if (s.column < columns) s.steps = pieces_of(most(rows - s.first, 0), SUM_STRIPES);
    return s;
}

struct sum_scratch {
    double of[SUM_STRIPES][32];
};

/* The sum of x over the stripes of this thread's column, in every thread. All threads must call it. */
ROT_DEVICE_ONLY double sum_of_stripes(sum_scratch &s, double x) {
    __syncthreads();
    s.of[threadIdx.x / 32][threadIdx.x % 32] = x;
    __syncthreads();
    double total = 0;
    for (int i = 0; i < SUM_STRIPES; i++) total += s.of[i][threadIdx.x % 32];
    return total;
}

/* out: the sums (n) of parts (rows,sums,n) */
GLOBAL(SUM_THREADS) sum_kernel(outputs out, const real *parts, int64_t rows, int sums, int64_t n) {
    sum_scratch &s = shared_memory<sum_scratch>();
    const int64_t width = sums * n;
    const stripe mine = stripe_of(rows, width);
    double total = 0;
    pipelined<8>(
        mine.steps, [&](int64_t k) { return parts[(mine.first + k * SUM_STRIPES) * width + mine.column]; },
        [&](int64_t, real x) { total += (double)x; });
    total = sum_of_stripes(s, total);
    if (threadIdx.x >= 32 || mine.column >= width) return;
    real *const to = mine.column < n ? out.first : out.second;
    if (to) to[mine.column % n] = (real)total;
}

static void sum_parts(outputs out, const real *parts, int64_t rows, int sums, int64_t n) {
    launch(sum_kernel, pieces_of(sums * n, 32), SUM_THREADS, sizeof(sum_scratch), out, parts, rows, sums, n);
}

/* Runs f on every row, and adds the sums. */
template <class F> static void walk_through(rows_cut c, F f, outputs out) {
    constexpr int SUMS = F::SUMS;
    const int64_t blocks = c.blocks * c.columns;
    const size_t fours = sizeof(walk_scratch<4, SUMS>), ones = sizeof(walk_scratch<1, SUMS>);
    real *const parts = SUMS > 0 ? workspace_of<real>(c.blocks, SUMS, c.D) : NULL;
    if (c.width == 4)
        launch(walk_kernel<4, F>, blocks, WALK_THREADS, fours, c, f, parts);
    else
        launch(walk_kernel<1, F>, blocks, WALK_THREADS, ones, c, f, parts);
    if (SUMS > 0) sum_parts(out, parts, c.blocks, SUMS, c.D);
}

/* ---- moments (moments.h) of a walk's outputs ---- */

/* A part's number of rows, mean, squares and rest */
struct moments {
    real rows, mean, squares, rest;
};

template <int V> struct moments_scratch {
    moments of[WALK_THREADS * V];
};

/* Adds one number, by its distance from the first: a slightly wrong mean does not change the result. */
ROT_DEVICE_ONLY void add_moment(moments &m, real x) {
    if (m.rows == 0) m.mean = x;
    const real apart = x - m.mean;
    m.rows += 1, m.rest += apart, m.squares += apart * apart;
}

/* parts (blocks,D): moments of the results of f.step over valid rows */
template <int V, class F> GLOBAL(WALK_THREADS) walk_moments_kernel(rows_cut c, F f, moments *parts) {
    moments_scratch<V> &s = shared_memory<moments_scratch<V>>();
    moments mine[V] = {};
    walk_rows(c, [&](place p) {
        const pack<V> x = f.template step<V>(p);
        if (!p.valid) return;
#pragma unroll
        for (int i = 0; i < V; i++) add_moment(mine[i], x.of[i]);
    });
    if (!parts) return;
#pragma unroll
    for (int i = 0; i < V; i++) s.of[(int)threadIdx.x * V + i] = mine[i];
    __syncthreads();
    const int width = c.groups * V;
    for (int q = (int)threadIdx.x; q < width; q += WALK_THREADS) {
        const int64_t block = blockIdx.x / (unsigned)c.columns;
        const int64_t column = (int64_t)(blockIdx.x % (unsigned)c.columns) * width + q;
        if (column >= c.D) continue;
        double rows = 0, sum = 0, squares = 0;
        for (int lane = 0; lane < c.lanes; lane++) {
            const moments m = s.of[lane * width + q];
            rows += (double)m.rows, sum += part_sum((double)m.rows, m.mean, m.rest);
        }
        const real mean = rows ? (real)(sum / rows) : 0;
        for (int lane = 0; lane < c.lanes; lane++) {
            const moments m = s.of[lane * width + q];
            squares += part_squares((double)m.rows, m.mean, m.squares, m.rest, (double)mean);
        }
        const moments all = {(real)rows, mean, (real)squares, (real)(sum - rows * (double)mean)};
        parts[block * c.D + column] = all;
    }
}

/* mean, var (D) of parts (rows,D) */
GLOBAL(SUM_THREADS) merge_moments_kernel(real *mean, real *var, const moments *parts, int64_t rows, int64_t D) {
    sum_scratch &s = shared_memory<sum_scratch>();
    const stripe mine = stripe_of(rows, D);
    const auto part = [&](int64_t k) { return parts[(mine.first + k * SUM_STRIPES) * D + mine.column]; };
    double n = 0, sum = 0, squares = 0;
    pipelined<4>(mine.steps, part,
                 [&](int64_t, moments m) { n += (double)m.rows, sum += part_sum((double)m.rows, m.mean, m.rest); });
    n = sum_of_stripes(s, n);
    const double center = sum_of_stripes(s, sum) / n;
    pipelined<4>(mine.steps, part, [&](int64_t, moments m) {
        squares += part_squares((double)m.rows, m.mean, m.squares, m.rest, center);
    });
    squares = sum_of_stripes(s, squares);
    if (threadIdx.x >= 32 || mine.column >= D) return;
    mean[mine.column] = (real)center;
    var[mine.column] = variance_of(squares, n);
}

/* Runs f on every row, and computes mean, var (D) of the results, unless they are NULL. */
template <class F> static void walk_with_moments(rows_cut c, F f, real *mean, real *var) {
    moments *const parts = mean ? workspace_of<moments>(c.blocks, c.D) : NULL;
    if (c.width == 4)
        launch(walk_moments_kernel<4, F>, c.blocks * c.columns, WALK_THREADS, sizeof(moments_scratch<4>), c, f, parts);
    else
        launch(walk_moments_kernel<1, F>, c.blocks * c.columns, WALK_THREADS, sizeof(moments_scratch<1>), c, f, parts);
    if (mean)
        launch(merge_moments_kernel, pieces_of(c.D, 32), SUM_THREADS, sizeof(sum_scratch), mean, var,
               (const moments *)parts, c.blocks, c.D);
}

#endif
