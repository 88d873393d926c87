/* Elementwise functions, norms, dropout, embedding, pooling and the loss on a GPU (csrc/kernels/pointwise.c has the
 * equations).
 *
 * Elementwise functions and their adjoints are maps (elements.h). Sums over rows are taken by channel in chunks
 * (columns.h), sums over a row's channels by a warp. The embedding's gradient sums rows sorted by their id.
 */
#include "batch_norm.h"
#include "columns.h"
#include "masks.h"
#include "moments.h"

enum {
    THREADS = 256,
    WARPS = THREADS / 32,
    NORM_ROWS = 32,     /* rows of a block in backward of row norms */
    RUN = 64,           /* sorted rows of one partial sum of the embedding's gradient */
    DIGIT_BITS = 4,     /* bits of an id in one pass of the sort */
    DIGITS = 1 << DIGIT_BITS,
    SORT_THREADS = 64,
    SORT_ITEMS = 32,    /* rows of one thread of the sort */
};

/* ------------------------------------------------------------------------------------------------ elementwise */

namespace {
/* Two or three numbers that a map loads */
struct two {
    real a, b;
};
struct three {
    real a, b, c;
};
}

template <real (*F)(real)> static void map_function(extent e, real *y, const real *x) {
    map(
        e, y, [=] __device__(place p) { return x[p.i]; }, [=] __device__(place, real value) { return F(value); });
}

KERNEL(elementwise) {
    const extent e = rows_of(B, T, D, lengths);
    switch (function) {
    case FUNCTION_EXP: map_function<vmath_exp>(e, y, x); break;
    case FUNCTION_SIGMOID: map_function<sigmoid>(e, y, x); break;
    case FUNCTION_TANH: map_function<vmath_tanh>(e, y, x); break;
    case FUNCTION_GELU: map_function<gelu>(e, y, x); break;
    case FUNCTION_SILU: map_function<silu>(e, y, x); break;
    case FUNCTION_SOFTPLUS: map_function<softplus>(e, y, x); break;
    case FUNCTION_DECAY_GAIN: map_function<decay_gain>(e, y, x); break;
    }
    return runtime_status();
}

ROT_DEVICE_ONLY real gelu_adjoint(real dy, real x) { return dy * gelu_slope(x); }
ROT_DEVICE_ONLY real silu_adjoint(real dy, real x) { return dy * silu_slope(x); }

template <real (*F)(real, real)> static void map_adjoint(extent e, real *dx, const real *dy, const real *x) {
    map(
        e, dx,
        [=] __device__(place p) {
            const two at = {dy[p.i], x[p.i]};
            return at;
        },
        [=] __device__(place, two at) { return F(at.a, at.b); });
}

KERNEL(elementwise_backward) {
    const extent e = rows_of(B, T, D, lengths);
    switch (function) {
    case FUNCTION_GELU: map_adjoint<gelu_adjoint>(e, dx, dy, x); break;
    case FUNCTION_SILU: map_adjoint<silu_adjoint>(e, dx, dy, x); break;
    case FUNCTION_SOFTPLUS: map_adjoint<softplus_adjoint>(e, dx, dy, x); break;
    case FUNCTION_DECAY_GAIN: map_adjoint<decay_gain_adjoint>(e, dx, dy, x); break;
    }
    return runtime_status();
}

KERNEL(glu_forward) {
    map_adjoint<glu>(rows_of(B, T, D, lengths), y, value, gate);
    return runtime_status();
}

KERNEL(glu_backward) {
    const glu_arrays out = {dvalue, dgate};
    map(
        rows_of(B, T, D, lengths), out,
        [=] __device__(place p) {
            const three at = {dy[p.i], value[p.i], gate[p.i]};
            return at;
        },
        [=] __device__(place, three at) { return glu_adjoint(at.a, at.b, at.c); });
    return runtime_status();
}

KERNEL(swiglu_forward) {
    map_adjoint<swiglu>(rows_of(B, T, D, lengths), y, value, gate);
    return runtime_status();
}

KERNEL(swiglu_backward) {
    const glu_arrays out = {dvalue, dgate};
    map(
        rows_of(B, T, D, lengths), out,
        [=] __device__(place p) {
            const three at = {dy[p.i], value[p.i], gate[p.i]};
            return at;
        },
        [=] __device__(place, three at) { return swiglu_adjoint(at.a, at.b, at.c); });
    return runtime_status();
}

KERNEL(mask_padding) {
    map(
        rows_of(B, T, D, lengths), y, [=] __device__(place p) { return x[p.i]; },
        [=] __device__(place, real value) { return value; });
    return runtime_status();
}

/* ---------------------------------------------------------------------------------------------------- dropout */

namespace {
/* The numbers of one Philox block, moved 16 bytes at a time */
struct quad {
    real of[4];
};
struct packets {
    float4 of[sizeof(quad) / sizeof(float4)];
};
}

ROT_DEVICE_ONLY quad read_quad(const real *p) {
    const packets in = *(const packets *)p;
    quad q;
    memcpy(&q, &in, sizeof q);
    return q;
}
ROT_DEVICE_ONLY void write_quad(real *p, quad q) {
    packets out;
    memcpy(&out, &q, sizeof out);
    *(packets *)p = out;
}

/* Draws for four numbers of a sequence in one thread. `vectors`: four numbers may be moved at once. */
GLOBAL(THREADS) dropout_kernel(extent e, real *y, const real *x, const int64_t *places, mask_key key, bool vectors) {
    const int64_t size = e.T * e.D;
    const unsigned blocks = (unsigned)pieces_of(size, 4 * THREADS);
    const int64_t b = blockIdx.x / blocks, i = 4 * ((int64_t)(blockIdx.x % blocks) * THREADS + threadIdx.x);
    const int64_t valid = steps_of(e.lengths, b, e.T) * e.D;
    real *const to = y + b * size + i;
    const real *const from = x + b * size + i;
    uint32_t words[4];
    if (i < valid) draw_words(words, key, batch_place(places, b), i);
    if (vectors && i + 4 <= valid) {
        quad q = read_quad(from);
#pragma unroll
        for (int k = 0; k < 4; k++) q.of[k] *= mask_factor(words[k], key);
        write_quad(to, q);
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i + k < size) to[k] = i + k < valid ? from[k] * mask_factor(words[k], key) : 0;
    }
}

/* masks (B,D), the same for all steps of a sequence */
static void draw_masks(real *masks, int64_t B, int64_t D, const int64_t *places, mask_key key) {
    const int64_t blocks = pieces_of(D, 4);
    each(B * blocks, [=] __device__(int64_t at) {
        const int64_t b = at / blocks, d = 4 * (at % blocks);
        uint32_t words[4];
        draw_words(words, key, batch_place(places, b), d);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (d + k < D) masks[b * D + d + k] = mask_factor(words[k], key);
    });
}

static bool can_be_vectors(const real *x) { return (uintptr_t)x % sizeof(float4) == 0; }

KERNEL(dropout) {
    const mask_key key = mask_key_of(rate, seed, step, site);
    const extent e = {B, T, D, lengths};
    if (!over_time) {
        const bool vectors = T * D % 4 == 0 && can_be_vectors(y) && can_be_vectors(x);
        launch(dropout_kernel, B * pieces_of(T * D, 4 * THREADS), THREADS, 0, e, y, x, places, key, vectors);
        return runtime_status();
    }
    real *const masks = workspace_of<real>(B, D);
    draw_masks(masks, B, D, places, key);
    map(
        e, y, [=] __device__(place p) { return x[p.i]; },
        [=] __device__(place p, real value) { return value * masks[p.b * D + p.d]; });
    return runtime_status();
}

/* ------------------------------------------------------------------------------------------------ channel norm */

/* parts (chunks,3,D): mean, squares and rest (moments.h) of each chunk, with its rows in registers */
GLOBAL(COLUMN_THREADS) moments_kernel(columns_cut c, real *parts, const real *x) {
    column_scratch &s = shared_memory<column_scratch>();
    const column own = column_of(c);
    real row[ROWS_OF_THREAD], sum = 0, squares = 0, rest = 0;
#pragma unroll
    for (int u = 0; u < ROWS_OF_THREAD; u++) row[u] = u < own.rows ? x[place_in(own, u, c.e.D).i] : 0;
#pragma unroll
    for (int u = 0; u < ROWS_OF_THREAD; u++) sum += row[u];
    sum = column_total(sum, s.sums, c.width);
    const real mean = own.valid ? sum / (real)own.valid : 0;
#pragma unroll
    for (int u = 0; u < ROWS_OF_THREAD; u++) {
        const real apart = u < own.rows ? row[u] - mean : 0;
        rest += apart;
        squares += apart * apart;
    }
    squares = column_total(squares, s.sums, c.width);
    rest = column_total(rest, s.sums, c.width);
    if (!writes(own, c)) return;
    real *const part = parts + own.chunk * 3 * c.e.D + own.at.d;
    part[0] = mean, part[c.e.D] = squares, part[2 * c.e.D] = rest;
}

namespace {
struct part {
    double rows;
    real mean, squares, rest;
};
}

ROT_DEVICE_ONLY part part_of(columns_cut c, const real *parts, int64_t chunk, int64_t d) {
    const real *const at = parts + chunk * 3 * c.e.D + d;
    const part p = {(double)rows_of_chunk(c, chunk).valid, at[0], at[c.e.D], at[2 * c.e.D]};
    return p;
}

GLOBAL(COLUMN_THREADS) merge_moments(columns_cut c, real *mean, real *var, const real *parts) {
    merge_scratch &s = shared_memory<merge_scratch>();
    const merge m = merge_of(blockIdx.x);
    const int64_t d = m.column, chunks = d < c.e.D ? c.e.B * c.count : 0;
    const int64_t count = pieces_of(most(chunks - m.first, 0), m.step);
    const auto load = [&](int64_t k) { return part_of(c, parts, m.first + k * m.step, d); };
    double n = 0, sum = 0, squares = 0;
    pipelined<4>(count, load, [&](int64_t, part p) { n += p.rows, sum += part_sum(p.rows, p.mean, p.rest); });
    n = column_total(n, s.sums, MERGE_WIDTH);
    const double center = column_total(sum, s.sums, MERGE_WIDTH) / n;
    pipelined<4>(count, load,
                 [&](int64_t, part p) { squares += part_squares(p.rows, p.mean, p.squares, p.rest, center); });
    squares = column_total(squares, s.sums, MERGE_WIDTH);
    if (threadIdx.x < MERGE_WIDTH && d < c.e.D) mean[d] = (real)center, var[d] = variance_of(squares, n);
}

KERNEL(channel_moments) {
    const columns_cut c = cut_columns(rows_of(B, T, D, lengths));
    const int64_t chunks = c.e.B * c.count;
    real *const parts = workspace_of<real>(chunks, 3, D);
    launch(moments_kernel, chunks * tiles_of(c), COLUMN_THREADS, sizeof(column_scratch), c, parts, x);
    launch(merge_moments, pieces_of(D, MERGE_WIDTH), COLUMN_THREADS, sizeof(merge_scratch), c, mean, var, parts);
    return runtime_status();
}

KERNEL(channel_gain) {
    each(D, [=] __device__(int64_t d) { gain[d] = channel_gain(scale[d], var[d], (real)eps); });
    return runtime_status();
}

KERNEL(running_moments) {
    const real kept = (real)momentum, rest = (real)(1 - momentum);
    each(D, [=] __device__(int64_t d) {
        update_running(running_mean + d, running_var + d, mean[d], var[d], kept, rest);
    });
    return runtime_status();
}

KERNEL(channel_statistics_adjoint) {
    each(D, [=] __device__(int64_t d) {
        int64_t valid = lengths ? 0 : B * T;
        for (int64_t b = 0; lengths && b < B; b++) valid += steps_of(lengths, b, T);
        const real n = (real)(steps ? *steps : (double)valid);
        const channel_terms one = statistics_adjoint(scale[d], var[d], (real)eps, dscale[d], dbias[d], n);
        slope[d] = one.slope, shift[d] = one.shift;
    });
    return runtime_status();
}

KERNEL(channel_affine) {
    map(
        rows_of(B, T, D, lengths), y, [=] __device__(place p) { return x[p.i]; },
        [=] __device__(place p, real value) { return channel_norm(value, center[p.d], gain[p.d], offset[p.d]); });
    return runtime_status();
}

KERNEL(channel_sums) {
    sum_columns<2>(
        rows_of(B, T, D, lengths), false,
        [=] __device__(place p) {
            const real g = dy[p.i];
            const terms<2> one = {{g, g * (x[p.i] - center[p.d])}};
            return one;
        },
        [=] __device__(int64_t, int64_t at, double total) { (at < D ? sum : product - D)[at] = (real)total; });
    return runtime_status();
}

KERNEL(channel_adjoint) {
    map(
        rows_of(B, T, D, lengths), dx,
        [=] __device__(place p) {
            const two at = {dy[p.i], x[p.i]};
            return at;
        },
        [=] __device__(place p, two at) {
            return channel_norm_adjoint(gain[p.d] * at.a, at.b, center[p.d], slope[p.d], offset[p.d]);
        });
    return runtime_status();
}

/* ------------------------------------------------------------------------------- layer norm, and RMS norm: mean 0 */

/* A warp for each row; mean and bias are NULL for RMS norm. */
GLOBAL(THREADS) row_norm_forward(extent e, real *y, real *mean, real *rstd, const real *x, const real *scale,
                                 const real *bias, real eps) {
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, D = e.D;
    const int lane = (int)threadIdx.x % 32;
    if (row >= e.B * e.T) return;
    const real *const in = x + row * D;
    real *const out = y + row * D;
    if (row % e.T >= steps_of(e.lengths, row / e.T, e.T)) {
        for (int64_t d = lane; d < D; d += 32) write_lane(out + d, 0);
        return;
    }
    real sum = 0, squares = 0;
    if (mean)
        for (int64_t d = lane; d < D; d += 32) sum += in[d];
    const real center = mean ? row_mean(sum, in, D) : 0;
    for (int64_t d = lane; d < D; d += 32) squares += (in[d] - center) * (in[d] - center);
    const real scaling = row_rstd(squares, in, center, D, eps);
    for (int64_t d = lane; d < D; d += 32)
        write_lane(out + d, layer_norm_step(layer_norm_xhat(in[d], center, scaling), scale[d], bias ? bias[d] : 0));
    if (lane) return;
    if (mean) mean[row] = center;
    rstd[row] = scaling;
}

static void forward_of_rows(extent e, real *y, real *mean, real *rstd, const real *x, const real *scale,
                            const real *bias, double eps) {
    launch(row_norm_forward, pieces_of(e.B * e.T, WARPS), THREADS, 0, e, y, mean, rstd, x, scale, bias, (real)eps);
}

KERNEL(layer_norm_forward) {
    forward_of_rows(rows_of(B, T, D, lengths), y, mean, rstd, x, scale, bias, eps);
    return runtime_status();
}

KERNEL(rms_norm_forward) {
    forward_of_rows(rows_of(B, T, D, lengths), y, NULL, rstd, x, scale, NULL, eps);
    return runtime_status();
}

namespace {
/* The statistics of a block's rows: as forward wrote them, <g> and <g xhat> */
struct norm_rows {
    real mean[NORM_ROWS], rstd[NORM_ROWS], g[NORM_ROWS], g_xhat[NORM_ROWS], sums[COLUMN_THREADS];
};
}

/* The means over channels of each row, by warps. */
ROT_DEVICE_ONLY void means_of_rows(norm_rows &s, chunk_rows rows, int64_t D, const real *dy, const real *x,
                                   const real *scale, const real *mean, const real *rstd) {
    const int lane = (int)threadIdx.x % 32;
    for (int64_t r = threadIdx.x / 32; r < rows.valid; r += WARPS) {
        const int64_t row = rows.first + r;
        const real center = mean ? mean[row] : 0, scaling = rstd[row];
        real sum = 0, product = 0;
        for (int64_t d = lane; d < D; d += 32) {
            const real g = dy[row * D + d] * scale[d];
            if (mean) sum += g;
            product += g * layer_norm_xhat(x[row * D + d], center, scaling);
        }
        sum = warp_sum(sum) / (real)D, product = warp_sum(product) / (real)D;
        if (lane == 0) s.mean[r] = center, s.rstd[r] = scaling, s.g[r] = sum, s.g_xhat[r] = product;
    }
}

/* dx, and sums (chunks,2,D) of dscale and dbias. A block takes a chunk of rows: first the means of each row, then,
 * while the rows are in cache, the sums over rows for its channels. */
GLOBAL(THREADS) row_norm_backward(columns_cut c, real *dx, real *sums, const real *dy, const real *x, const real *scale,
                                  const real *mean, const real *rstd) {
    norm_rows &s = shared_memory<norm_rows>();
    const int64_t chunk = blockIdx.x, D = c.e.D;
    const int group = (int)threadIdx.x / c.width, groups = THREADS / c.width;
    const chunk_rows rows = rows_of_chunk(c, chunk);
    means_of_rows(s, rows, D, dy, x, scale, mean, rstd);
    __syncthreads();
    for (int64_t tile = 0; tile < D; tile += c.width) {
        const int64_t d = tile + threadIdx.x % c.width, end = d < D ? rows.all : 0;
        real dscale = 0, dbias = 0;
#pragma unroll 4
        for (int64_t r = group; r < least(end, rows.valid); r += groups) {
            const int64_t at = (rows.first + r) * D + d;
            const real xhat = layer_norm_xhat(x[at], s.mean[r], s.rstd[r]), g = dy[at];
            write_lane(dx + at, layer_norm_step_adjoint(g * scale[d], xhat, s.rstd[r], s.g[r], s.g_xhat[r]));
            dscale += g * xhat;
            dbias += g;
        }
        for (int64_t r = rows.valid + group; r < end; r += groups) write_lane(dx + (rows.first + r) * D + d, 0);
        dscale = column_total(dscale, s.sums, c.width);
        dbias = column_total(dbias, s.sums, c.width);
        if (group == 0 && d < D) sums[chunk * 2 * D + d] = dscale, sums[(chunk * 2 + 1) * D + d] = dbias;
    }
}

static void backward_of_rows(extent e, real *dx, real *dscale, real *dbias, const real *dy, const real *x,
                             const real *scale, const real *mean, const real *rstd) {
    const columns_cut c = cut_columns(e, THREADS, NORM_ROWS);
    const int64_t chunks = e.B * c.count, D = e.D;
    real *const sums = workspace_of<real>(chunks, 2, D);
    launch(row_norm_backward, chunks, THREADS, sizeof(norm_rows), c, dx, sums, dy, x, scale, mean, rstd);
    merge_chunks(sums, 1, chunks, 2 * D, [=] __device__(int64_t, int64_t at, double total) {
        if (at < D)
            dscale[at] = (real)total;
        else if (dbias)
            dbias[at - D] = (real)total;
    });
}

KERNEL(layer_norm_backward) {
    backward_of_rows(rows_of(B, T, D, lengths), dx, dscale, dbias, dy, x, scale, mean, rstd);
    return runtime_status();
}

KERNEL(rms_norm_backward) {
    backward_of_rows(rows_of(B, T, D, lengths), dx, dscale, NULL, dy, x, scale, NULL, rstd);
    return runtime_status();
}

/* --------------------------------------------------------------------------------------------------- embedding */

/* The host cannot check ids on the device: an id that is no row of the table gives NaN, and no gradient. */
ROT_DEVICE_ONLY bool is_row(int64_t id, int64_t V) { return id >= 0 && id < V; }

KERNEL(embedding_forward) {
    map(
        rows_of(B, T, D, lengths), y,
        [=] __device__(place p) {
            const int64_t id = ids[p.row];
            return is_row(id, V) ? table[id * D + p.d] : (real)NAN;
        },
        [=] __device__(place p, real entry) { return bias ? entry + bias[p.d] : entry; });
    return runtime_status();
}

namespace {
/* A row of (B*T) and its id; V for rows without one */
struct alignas(16) entry {
    int64_t id, row;
};

/* Counters of the sort: of each digit, and each run of SORT_ITEMS entries, in this order (DIGITS,runs). */
struct sort_pass {
    int64_t n, runs;
    int shift;
};
struct sort_scratch {
    int64_t counts[DIGITS][SORT_THREADS];
};
}

ROT_DEVICE_ONLY int digit_of(entry e, int shift) { return (int)(e.id >> shift) & (DIGITS - 1); }

GLOBAL(SORT_THREADS) count_digits(sort_pass pass, int64_t *counts, const entry *from) {
    sort_scratch &s = shared_memory<sort_scratch>();
    const int64_t run = (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x;
    for (int k = 0; k < DIGITS; k++) s.counts[k][threadIdx.x] = 0;
    for (int64_t i = run * SORT_ITEMS; i < least((run + 1) * SORT_ITEMS, pass.n); i++)
        s.counts[digit_of(from[i], pass.shift)][threadIdx.x]++;
    if (run < pass.runs)
        for (int k = 0; k < DIGITS; k++) counts[k * pass.runs + run] = s.counts[k][threadIdx.x];
}

namespace {
struct scan_scratch {
    int64_t totals[WARPS];
};
}

/* counts (n) <- the sums of all counts before each; by one block, of which a warp has a share, 32 counts at a time */
GLOBAL(THREADS) sum_before(int64_t *counts, int64_t n) {
    enum { AHEAD = 4 };
    scan_scratch &s = shared_memory<scan_scratch>();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int64_t share = pieces_of(n, WARPS), from = least(warp * share, n), to = least(from + share, n);
    int64_t sum = 0;
    for (int64_t i = from + lane; i < to; i += 32) sum += counts[i];
    sum = warp_sum(sum);
    if (lane == 0) s.totals[warp] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < warp; w++) sum += s.totals[w];
    pipelined<AHEAD>(
        pieces_of(to - from, 32),
        [&](int64_t t) {
            const int64_t i = from + t * 32 + lane;
            return i < to ? counts[i] : 0;
        },
        [&](int64_t t, int64_t count) {
            const int64_t i = from + t * 32 + lane;
            int64_t through = count;
            for (int d = 1; d < 32; d *= 2) {
                const int64_t before = __shfl_up_sync(~0u, through, (unsigned)d);
                if (lane >= d) through += before;
            }
            if (i < to) counts[i] = sum + through - count;
            sum += __shfl_sync(~0u, through, 31);
        });
}

GLOBAL(SORT_THREADS) move_entries(sort_pass pass, entry *to, const int64_t *counts, const entry *from) {
    sort_scratch &s = shared_memory<sort_scratch>();
    const int64_t run = (int64_t)blockIdx.x * SORT_THREADS + threadIdx.x;
    if (run >= pass.runs) return;
    for (int k = 0; k < DIGITS; k++) s.counts[k][threadIdx.x] = counts[k * pass.runs + run];
    for (int64_t i = run * SORT_ITEMS; i < least((run + 1) * SORT_ITEMS, pass.n); i++)
        to[s.counts[digit_of(from[i], pass.shift)][threadIdx.x]++] = from[i];
}

/* Returns the n rows sorted by id, and in order for each id: a stable sort by one digit after the other. */
static const entry *sort_rows(const int64_t *ids, const int64_t *lengths, int64_t n, int64_t T, int64_t V) {
    entry *from = workspace_of<entry>(n), *to = workspace_of<entry>(n), *const first = from;
    each(n, [=] __device__(int64_t row) {
        const bool valid = row % T < steps_of(lengths, row / T, T) && is_row(ids[row], V);
        const entry e = {valid ? ids[row] : V, row};
        first[row] = e;
    });
    sort_pass pass = {n, pieces_of(n, SORT_ITEMS), 0};
    int64_t *const counts = workspace_of<int64_t>(DIGITS, pass.runs);
    const int64_t blocks = pieces_of(pass.runs, SORT_THREADS);
    for (; pass.shift < 63 && V >> pass.shift; pass.shift += DIGIT_BITS) {
        launch(count_digits, blocks, SORT_THREADS, sizeof(sort_scratch), pass, counts, from);
        launch(sum_before, 1, THREADS, sizeof(scan_scratch), counts, DIGITS * pass.runs);
        launch(move_entries, blocks, SORT_THREADS, sizeof(sort_scratch), pass, to, counts, from);
        entry *const done = to;
        to = from, from = done;
    }
    return from;
}

namespace {
/* A warp's channel d of task `at` */
struct lane_of_task {
    int64_t at, d;
};
}

ROT_DEVICE_ONLY lane_of_task task_of_warp(int64_t D) {
    const int64_t tiles = pieces_of(D, 32), warp = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const lane_of_task task = {warp / tiles, warp % tiles * 32 + threadIdx.x % 32};
    return task;
}
static int64_t blocks_of_tasks(int64_t n, int64_t D) { return pieces_of(n * pieces_of(D, 32), WARPS); }

/* Channel d of dy, summed over sorted places from .. to-1 */
ROT_DEVICE_ONLY real sum_of_entries(const real *dy, const entry *sorted, int64_t from, int64_t to, int64_t d,
                                    int64_t D) {
    real sum = 0;
    pipelined<8>(
        most(to - from, 0), [&](int64_t k) { return dy[sorted[from + k].row * D + d]; },
        [&](int64_t, real one) { sum += one; });
    return sum;
}

/* sums (runs,D) of runs of RUN sorted places with a single id; other runs are not written */
GLOBAL(THREADS) sum_runs(real *sums, const real *dy, const entry *sorted, int64_t runs, int64_t D, int64_t V) {
    const lane_of_task task = task_of_warp(D);
    const int64_t from = task.at * RUN;
    if (task.at >= runs || task.d >= D || sorted[from].id == V || sorted[from].id != sorted[from + RUN - 1].id) return;
    sums[task.at * D + task.d] = sum_of_entries(dy, sorted, from, from + RUN, task.d, D);
}

/* The first sorted place whose id is at least v */
ROT_DEVICE_ONLY int64_t place_of_id(const entry *sorted, int64_t n, int64_t v) {
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (sorted[middle].id < v)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* dtable[v]: sums over the places of v before its whole runs, over these runs, and over the places after them */
GLOBAL(THREADS) sum_ids(real *dtable, const real *dy, const entry *sorted, const int64_t *starts, const real *sums,
                        int64_t D, int64_t V) {
    const lane_of_task task = task_of_warp(D);
    if (task.at >= V || task.d >= D) return;
    const int64_t from = starts[task.at], to = starts[task.at + 1];
    const int64_t end = to / RUN, run = least(pieces_of(from, RUN), end);
    const int64_t before = run < end ? run * RUN : to;
    double total = (double)sum_of_entries(dy, sorted, from, before, task.d, D);
    pipelined<8>(
        end - run, [&](int64_t k) { return sums[(run + k) * D + task.d]; },
        [&](int64_t, real one) { total += (double)one; });
    if (run < end) total += (double)sum_of_entries(dy, sorted, end * RUN, to, task.d, D);
    write_lane(dtable + task.at * D + task.d, (real)total);
}

KERNEL(embedding_backward) {
    if (!D) return runtime_status(); /* the table may be very large */
    const int64_t n = B * T, runs = n / RUN;
    const entry *const sorted = sort_rows(ids, lengths, n, T, V);
    int64_t *const starts = workspace_of<int64_t>(V + 1);
    real *const sums = workspace_of<real>(runs, D);
    each(V + 1, [=] __device__(int64_t v) { starts[v] = place_of_id(sorted, n, v); });
    launch(sum_runs, blocks_of_tasks(runs, D), THREADS, 0, sums, dy, sorted, runs, D, V);
    launch(sum_ids, blocks_of_tasks(V, D), THREADS, 0, dtable, dy, sorted, starts, sums, D, V);
    return runtime_status();
}

/* ----------------------------------------------------------------------------------------------------- pooling */

ROT_DEVICE_ONLY double share_of(const int64_t *lengths, int64_t b, int64_t T) {
    const int64_t steps = steps_of(lengths, b, T);
    return steps ? 1 / (double)steps : 0;
}

KERNEL(mean_pool_forward) {
    const extent e = {B, T, D, lengths};
    sum_columns<1>(
        e, true,
        [=] __device__(place p) {
            const terms<1> one = {{x[p.i]}};
            return one;
        },
        [=] __device__(int64_t b, int64_t d, double total) {
            y[b * D + d] = (real)(share_of(lengths, b, T) * total);
        });
    return runtime_status();
}

KERNEL(mean_pool_backward) {
    const extent e = {B, T, D, lengths};
    real *const shares = workspace_of<real>(B);
    each(B, [=] __device__(int64_t b) { shares[b] = (real)share_of(lengths, b, T); });
    map(
        e, dx, [=] __device__(place p) { return dy[p.b * D + p.d]; },
        [=] __device__(place p, real g) { return g * shares[p.b]; });
    return runtime_status();
}

/* -------------------------------------------------------------------------------------------------------- loss */

ROT_DEVICE_ONLY real warp_largest(real x) {
    for (int d = 16; d; d /= 2) {
        const real other = __shfl_xor_sync(~0u, x, d);
        x = other > x ? other : x;
    }
    return x;
}

namespace {
struct entropy_terms {
    const real *targets, *weights, *row_weights;
    double smoothing;
};
}

/* A warp for each row of logits. A label of -1 does not count, if `count` is given; any other label that is no class
 * gives NaN. */
GLOBAL(THREADS) cross_entropy_kernel(real *loss, real *dlogits, const real *logits, const int64_t *labels,
                                     const int64_t *count, int64_t B, int64_t C, entropy_terms of) {
    const int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = (int)threadIdx.x % 32;
    if (b >= B) return;
    const real *const z = logits + b * C;
    real *const e = dlogits + b * C;
    const int64_t label = labels ? labels[b] : 0;
    const double of_row = of.row_weights ? (double)of.row_weights[b] : 1;
    if ((label == -1 && count) || of_row == 0) {
        if (lane == 0) loss[b] = 0;
        for (int64_t c = lane; c < C; c += 32) e[c] = 0;
        return;
    }
    const double n = (double)(count ? count[0] : B);
    const bool one = !of.targets && of.smoothing == 0, known = is_row(label, C);
    real largest = C ? z[0] : 0;
    double others = 0;
    for (int64_t c = lane; c < C; c += 32) largest = z[c] > largest ? z[c] : largest;
    largest = warp_largest(largest);
    for (int64_t c = lane; c < C; c += 32) {
        const real shifted = vmath_exp(z[c] - largest);
        e[c] = shifted;
        others += one && c == label ? 0 : (double)shifted;
    }
    others = warp_sum(others);
    if (one) {
        const real at_label = known ? z[label] : (real)NAN;
        const double weight = of_row * (of.weights && known ? (double)of.weights[label] : 1);
        const double sum = others + (double)vmath_exp(at_label - largest), share = weight / (sum * n);
        if (lane == 0) loss[b] = (real)(weight * (log(sum) + ((double)largest - (double)at_label)));
        for (int64_t c = lane; c < C; c += 32) /* not softmax - 1: it cancels */
            e[c] = c == label ? (real)(-others * share) : (real)((double)e[c] * share);
        return;
    }
    double whole = 0, total = known ? 0 : (double)NAN;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t c = lane; c < C; c += 32) {
            const double share = of.targets ? (double)of.targets[b * C + c] : c == label;
            const double target = entropy_target(share, of.weights ? (double)of.weights[c] : 1, of.smoothing, C);
            if (pass) {
                e[c] = (real)(of_row / n * entropy_adjoint(whole, (double)e[c], others, target));
            } else if (target != 0) { /* 0 times an infinite logit is taken as 0 */
                whole += target;
                total += target * (log(others) + ((double)largest - (double)z[c]));
            }
        }
        if (!pass) {
            whole = known ? warp_sum(whole) : (double)NAN;
            total = warp_sum(total);
        }
    }
    if (lane == 0) loss[b] = (real)(of_row * total);
}

KERNEL(cross_entropy) {
    const entropy_terms of = {targets, weights, row_weights, smoothing};
    launch(cross_entropy_kernel, pieces_of(B, WARPS), THREADS, 0, loss, dlogits, logits, labels, count, B, C, of);
    return runtime_status();
}
