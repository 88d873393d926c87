/* Causal multi-head attention and its adjoint on a GPU (csrc/kernels/attention.c has the equations and the order in
 * which a query visits its keys).
 *
 * A block computes TILE rows by TILE columns at a time: scores of queries and keys, or numbers of the result, 4 by 4 to
 * a thread. Operands pass through shared memory in panels of TILE channels: heads may have any width. A head wider than
 * a panel has a block for each panel of its results, which recomputes the scores. Backward has a pass over rows of
 * queries, for dq, and a pass over rows of keys, for dk and dv: each sum belongs to one thread.
 *
 * If the call's precision rounds operands of products, they are rounded when loaded into shared memory, and multiplied
 * as float32: tensor cores are not used.
 */
#include "device.h"

namespace {

enum {
    TILE = 64,
    SIDE = 4,                  /* rows and columns of a thread */
    ROW_THREADS = TILE / SIDE, /* threads that share their rows, half a warp */
    THREADS = ROW_THREADS * ROW_THREADS,
    PITCH = TILE + 4, /* of a panel: its rows begin in different banks */
    WARPS = THREADS / 32,
    FORWARD_BLOCKS = sizeof(real) == 4 ? 3 : 1, /* least number on a processor, limited by registers */
    BACKWARD_BLOCKS = sizeof(real) == 4 ? 2 : 1,
};

struct shape {
    const int64_t *lengths, *past;
    int64_t B, T, S, H, D, Dh, window; /* window: MOST_STEPS for none */
    real scale;
    int precision;
};

static shape shape_of(const int64_t *lengths, const int64_t *past, int64_t B, int64_t T, int64_t S, int64_t D,
                      int64_t H, int64_t window) {
    const int64_t Dh = D / H;
    const real scale = (real)(1 / sqrt((double)Dh));
    const shape s = {lengths, past, B, T, S, H, D, Dh, window ? window : MOST_STEPS, scale, precision_of_products()};
    return s;
}

/* The number of keys of sequence b before its first query; and of all keys that its queries may see. */
ROT_DEVICE_ONLY int64_t past_of(shape s, int64_t b) { return s.past ? s.past[b] : 0; }
ROT_DEVICE_ONLY int64_t keys_of(shape s, int64_t b) { return least(past_of(s, b) + steps_of(s.lengths, b, s.T), s.S); }

/* The block's work: rows from `first` on (queries, or keys) of head h of sequence b, with `count` valid rows and `all`
 * in the array; and of its results a head's channels from `lo` on. */
struct task {
    int64_t b, h, first, lo;
    int count, all;
};

static int64_t panels_of(shape s) { return most(pieces_of(s.Dh, TILE), 1); }

/* The task among tiles of `rows` rows, the last tile first: it has the most work. */
ROT_DEVICE_ONLY task task_of(shape s, int64_t rows) {
    const int64_t panels = most(pieces_of(s.Dh, TILE), 1), row_tiles = pieces_of(rows, TILE);
    const int64_t i = blockIdx.x, head = i / panels % (s.B * s.H);
    task at;
    at.lo = i % panels * TILE, at.b = head / s.H, at.h = head % s.H;
    at.first = (row_tiles - 1 - i / panels / (s.B * s.H)) * TILE;
    at.all = (int)least(rows - at.first, TILE);
    at.count = 0;
    return at;
}

/* `count` rows, D numbers apart. */
struct rows {
    const real *first;
    int count;
};
ROT_DEVICE_ONLY rows queries_at(shape s, task at, const real *x, int64_t t, int count) {
    const rows r = {x + (at.b * s.T + t) * s.D + at.h * s.Dh, count};
    return r;
}
ROT_DEVICE_ONLY rows keys_at(shape s, task at, const real *x, int64_t key, int count) {
    const rows r = {x + (at.b * s.S + key) * s.D + at.h * s.Dh, count};
    return r;
}

/* Panels of the two operands; the left operand may be a tile of scores, with its rows as columns. */
struct room {
    real left[TILE * PITCH], right[TILE * PITCH];
};

/* The thread's place in a tile: rows and columns from here on. */
ROT_DEVICE_ONLY int row_of_thread() { return (int)threadIdx.x / ROW_THREADS * SIDE; }
ROT_DEVICE_ONLY int column_of_thread() { return (int)threadIdx.x % ROW_THREADS * SIDE; }

/* panel (channel, row) <- channels lo .. lo+TILE-1 of rows, as operands, times scale; zero beyond the rows and
 * channels. `turned`: (row, channel). A warp copies 8 channels of 4 rows at once: whole sectors of memory, to different
 * banks. */
ROT_DEVICE_ONLY void load_panel(real *panel, rows x, shape s, int64_t lo, real scale, bool turned) {
    const int channel = (int)threadIdx.x / 32 * 8 + (int)threadIdx.x % 8, first = (int)threadIdx.x % 32 / 8;
    const int end = lo + channel < s.Dh ? x.count : 0;
    const real *from = x.first + first * s.D + lo + channel;
#pragma unroll 4
    for (int row = first; row < TILE; row += 4, from += 4 * s.D)
        panel[turned ? row * PITCH + channel : channel * PITCH + row] =
            row < end ? operand_of(*from, s.precision) * scale : 0;
}

struct alignas(SIDE * sizeof(real)) four {
    real at[SIDE];
};
ROT_DEVICE_ONLY four four_of(const real *p) { return *(const four *)p; }

/* sum (row, column) += left (row) right (column) */
ROT_DEVICE_ONLY void add_outer(real (&sum)[SIDE][SIDE], four left, four right) {
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) sum[i][j] += left.at[i] * right.at[j];
}

ROT_DEVICE_ONLY void clear(real (&sum)[SIDE][SIDE]) {
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) sum[i][j] = 0;
}

/* product (row, column) = sum over the channels of a head of  scale x (row) y (column) */
ROT_DEVICE_ONLY void multiply_rows(real (&product)[SIDE][SIDE], room &m, rows x, rows y, shape s, real scale) {
    clear(product);
    for (int64_t lo = 0; lo < s.Dh; lo += TILE) {
        __syncthreads();
        load_panel(m.left, x, s, lo, scale, false);
        load_panel(m.right, y, s, lo, 1, false);
        __syncthreads();
        const int channels = (int)least(s.Dh - lo, TILE);
        for (int k = 0; k < channels; k++)
            add_outer(product, four_of(m.left + k * PITCH + row_of_thread()),
                      four_of(m.right + k * PITCH + column_of_thread()));
    }
}

/* The place of the four rows from `row` on of a column of the tile: spread over banks for writes by threads of a
 * row. */
ROT_DEVICE_ONLY int tile_at(int row, int column) { return column * TILE + (row ^ (column & (TILE - SIDE))); }

/* sum (row, channel) += sum over columns of  tile (row, column) y (column) scale,  channels from lo on */
ROT_DEVICE_ONLY void add_product(real (&sum)[SIDE][SIDE], room &m, const real (&tile)[SIDE][SIDE], rows y, shape s,
                                 int64_t lo, real scale) {
    __syncthreads();
    load_panel(m.right, y, s, lo, scale, true);
#pragma unroll
    for (int j = 0; j < SIDE; j++)
#pragma unroll
        for (int i = 0; i < SIDE; i++)
            m.left[tile_at(row_of_thread(), column_of_thread() + j) + i] = operand_of(tile[i][j], s.precision);
    __syncthreads();
    for (int k = 0; k < y.count; k++)
        add_outer(sum, four_of(m.left + tile_at(row_of_thread(), k)),
                  four_of(m.right + k * PITCH + column_of_thread()));
}

/* Writes the tile's rows of a result, times the row's factor; zero beyond the valid rows. */
ROT_DEVICE_ONLY void write_rows(real *first, const real (&sum)[SIDE][SIDE], const real (&factor)[SIDE], shape s,
                                task at) {
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            const int row = row_of_thread() + i;
            const int64_t channel = at.lo + column_of_thread() + j;
            if (row < at.all && channel < s.Dh) first[row * s.D + channel] = row < at.count ? sum[i][j] * factor[i] : 0;
        }
}

/* Whether a query at position `place` sees a key. */
ROT_DEVICE_ONLY bool sees(shape s, int64_t place, int64_t key) { return key <= place && place - key < s.window; }

/* The largest of x over the threads that share their rows. */
ROT_DEVICE_ONLY real largest_of_row(real x) {
    for (int d = ROW_THREADS / 2; d; d /= 2) {
        const real other = __shfl_xor_sync(~0u, x, d);
        x = other > x ? other : x;
    }
    return x;
}
ROT_DEVICE_ONLY real sum_of_row(real x) {
    for (int d = ROW_THREADS / 2; d; d /= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
}

/* The keys that a tile of queries sees, the last keys first. */
struct keys_seen {
    int64_t first, end;
};
ROT_DEVICE_ONLY keys_seen keys_of_queries(shape s, task at, int64_t place) {
    const keys_seen k = {most(place - s.window + 1, 0), least(place + at.count, s.S)};
    return k;
}

/* ---- forward ---- */

/* A thread's part of the running softmax of its rows: the largest score, and the sum over its columns. */
struct softmax {
    real norm[SIDE], total[SIDE];
};

/* Scores become e^(score - norm), for the new norm; sum and total are scaled to it. */
ROT_DEVICE_ONLY void softmax_step(softmax &r, real (&score)[SIDE][SIDE], real (&sum)[SIDE][SIDE]) {
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        real top = r.norm[i];
#pragma unroll
        for (int j = 0; j < SIDE; j++) top = score[i][j] > top ? score[i][j] : top;
        top = largest_of_row(top);
        const real shrink = vmath_exp(r.norm[i] - top);
        r.norm[i] = top, r.total[i] *= shrink;
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            score[i][j] = vmath_exp(score[i][j] - top);
            r.total[i] += score[i][j];
            sum[i][j] *= shrink;
        }
    }
}

GLOBAL2(THREADS, FORWARD_BLOCKS) forward(shape s, real *y, real *norm, const real *q, const real *k, const real *v) {
    room &m = shared_memory<room>();
    task at = task_of(s, s.T);
    at.count = (int)least(most(steps_of(s.lengths, at.b, s.T) - at.first, 0), TILE);
    const int64_t place = past_of(s, at.b) + at.first;
    const keys_seen seen = keys_of_queries(s, at, place);
    softmax r;
    real sum[SIDE][SIDE], score[SIDE][SIDE], factor[SIDE];
    clear(sum);
#pragma unroll
    for (int i = 0; i < SIDE; i++) r.norm[i] = -(real)INFINITY, r.total[i] = 0;
    int count;
    for (int64_t end = at.count ? seen.end : seen.first; end > seen.first; end -= count) {
        count = (int)least(end - seen.first, TILE);
        const int64_t first = end - count;
        multiply_rows(score, m, queries_at(s, at, q, at.first, at.count), keys_at(s, at, k, first, count), s, s.scale);
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++) {
                const int column = column_of_thread() + j;
                const bool there = column < count && sees(s, place + row_of_thread() + i, first + column);
                if (!there) score[i][j] = -(real)INFINITY;
            }
        softmax_step(r, score, sum);
        add_product(sum, m, score, keys_at(s, at, v, first, count), s, at.lo, 1);
    }
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        const real total = sum_of_row(r.total[i]);
        const int row = row_of_thread() + i;
        factor[i] = 1 / total;
        if (at.lo == 0 && column_of_thread() == 0 && row < at.all)
            norm[(at.b * s.H + at.h) * s.T + at.first + row] =
                row < at.count ? r.norm[i] + (real)log((double)total) : 0;
    }
    write_rows(y + (at.b * s.T + at.first) * s.D + at.h * s.Dh, sum, factor, s, at);
}

}

KERNEL(attention_forward) {
    const shape s = shape_of(lengths, past, B, T, S, D, H, window);
    launch(forward, panels_of(s) * B * H * pieces_of(T, TILE), THREADS, sizeof(room), s, y, norm, q, k, v);
    return runtime_status();
}

namespace {

/* ---- backward ---- */

/* delta (B,H,T) = the sum of dy * y over a head: a warp for each. */
GLOBAL(THREADS) dot_rows(shape s, real *delta, const real *dy, const real *y) {
    const int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= s.B * s.T * s.H) return;
    const int64_t h = i % s.H, t = i / s.H % s.T, b = i / s.H / s.T, first = (b * s.T + t) * s.D + h * s.Dh;
    real sum = 0;
    if (t < steps_of(s.lengths, b, s.T))
        for (int64_t d = lane; d < s.Dh; d += 32) sum += dy[first + d] * y[first + d];
    sum = warp_sum(sum);
    if (lane == 0) delta[(b * s.H + h) * s.T + t] = sum;
}

/* The inputs of the adjoint; norm, delta (B,H,T). */
struct saved {
    const real *dy, *q, *k, *v, *norm, *delta;
};

/* The norm and delta of one query; for an invalid query, values that make its probabilities 0. */
struct query {
    real norm, delta;
};
ROT_DEVICE_ONLY query query_of(shape s, task at, saved in, int64_t t, bool there) {
    const int64_t i = (at.b * s.H + at.h) * s.T + t;
    query one = {(real)INFINITY, 0};
    if (there) one.norm = in.norm[i], one.delta = in.delta[i];
    return one;
}

/* The probability of a key; and the gradient of its score, from the gradient of the probability. */
ROT_DEVICE_ONLY real probability(real score, query one) { return vmath_exp(score - one.norm); }
ROT_DEVICE_ONLY real score_adjoint(real p, real dp, query one) { return p * (dp - one.delta); }

/* dq = c e k */
GLOBAL2(THREADS, BACKWARD_BLOCKS) backward_queries(shape s, real *dq, saved in) {
    room &m = shared_memory<room>();
    task at = task_of(s, s.T);
    at.count = (int)least(most(steps_of(s.lengths, at.b, s.T) - at.first, 0), TILE);
    const int64_t place = past_of(s, at.b) + at.first;
    const keys_seen seen = keys_of_queries(s, at, place);
    real sum[SIDE][SIDE], score[SIDE][SIDE], e[SIDE][SIDE], factor[SIDE];
    query own[SIDE];
    clear(sum);
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        const int row = row_of_thread() + i;
        own[i] = query_of(s, at, in, at.first + row, row < at.count);
        factor[i] = s.scale;
    }
    int count;
    for (int64_t end = at.count ? seen.end : seen.first; end > seen.first; end -= count) {
        count = (int)least(end - seen.first, TILE);
        const int64_t first = end - count;
        const rows k = keys_at(s, at, in.k, first, count), v = keys_at(s, at, in.v, first, count);
        multiply_rows(score, m, queries_at(s, at, in.q, at.first, at.count), k, s, s.scale);
        multiply_rows(e, m, queries_at(s, at, in.dy, at.first, at.count), v, s, 1);
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++) {
                const int column = column_of_thread() + j;
                const bool there = column < count && sees(s, place + row_of_thread() + i, first + column);
                e[i][j] = there ? score_adjoint(probability(score[i][j], own[i]), e[i][j], own[i]) : 0;
            }
        add_product(sum, m, e, k, s, at.lo, 1);
    }
    write_rows(dq + (at.b * s.T + at.first) * s.D + at.h * s.Dh, sum, factor, s, at);
}

/* dk = c e^T q,  dv = p^T dy */
GLOBAL2(THREADS, BACKWARD_BLOCKS) backward_keys(shape s, real *dk, real *dv, saved in) {
    room &m = shared_memory<room>();
    task at = task_of(s, s.S);
    at.count = (int)least(most(keys_of(s, at.b) - at.first, 0), TILE);
    const int64_t past = past_of(s, at.b), steps = steps_of(s.lengths, at.b, s.T);
    const int64_t end =
        at.count ? least(steps, at.first + at.count - 1 + s.window - past) : 0; /* of the queries that see them */
    real dk_sum[SIDE][SIDE], dv_sum[SIDE][SIDE], p[SIDE][SIDE], e[SIDE][SIDE];
    const real factor[SIDE] = {1, 1, 1, 1};
    clear(dk_sum), clear(dv_sum);
    for (int64_t t = most(at.first - past, 0); t < end; t += TILE) {
        const int count = (int)least(end - t, TILE);
        const rows q = queries_at(s, at, in.q, t, count), dy = queries_at(s, at, in.dy, t, count);
        multiply_rows(p, m, keys_at(s, at, in.k, at.first, at.count), q, s, s.scale);
        multiply_rows(e, m, keys_at(s, at, in.v, at.first, at.count), dy, s, 1);
#pragma unroll
        for (int j = 0; j < SIDE; j++) {
            const int column = column_of_thread() + j;
            const query one = query_of(s, at, in, t + column, column < count);
#pragma unroll
            for (int i = 0; i < SIDE; i++) {
                const bool there = column < count && sees(s, past + t + column, at.first + row_of_thread() + i);
                p[i][j] = there ? probability(p[i][j], one) : 0;
                e[i][j] = there ? score_adjoint(p[i][j], e[i][j], one) : 0;
            }
        }
        add_product(dv_sum, m, p, dy, s, at.lo, 1);
        add_product(dk_sum, m, e, q, s, at.lo, s.scale);
    }
    const int64_t first = (at.b * s.S + at.first) * s.D + at.h * s.Dh;
    write_rows(dk + first, dk_sum, factor, s, at);
    write_rows(dv + first, dv_sum, factor, s, at);
}

}

KERNEL(attention_backward) {
    const shape s = shape_of(lengths, past, B, T, S, D, H, window);
    real *const delta = workspace_of<real>(B, H, T);
    const saved in = {dy, q, k, v, norm, delta};
    const int64_t heads = panels_of(s) * B * H;
    launch(dot_rows, pieces_of(B * T * H, WARPS), THREADS, 0, s, delta, dy, y);
    launch(backward_queries, heads * pieces_of(T, TILE), THREADS, sizeof(room), s, dq, in);
    launch(backward_keys, heads * pieces_of(S, TILE), THREADS, sizeof(room), s, dk, dv, in);
    return runtime_status();
}
