/* Sums over the valid rows of each channel of arrays (B,T,D), in a fixed order.
 *
 * Each sequence is cut into chunks of rows. A block takes a chunk and `width` channels: adjacent threads read adjacent
 * channels, and a thread sums ROWS_OF_THREAD rows of one channel. The chunks' sums are merged in double by a second
 * kernel.
 */
#ifndef ROT_CUDA_COLUMNS_H
#define ROT_CUDA_COLUMNS_H

#include "elements.h"

enum { COLUMN_THREADS = 256, MOST_WIDTH = 32, ROWS_OF_THREAD = 16, TERMS_AT_ONCE = 4, MERGE_WIDTH = 8 };

struct columns_cut {
    extent e;
    int width;            /* channels of a block, a power of two */
    int64_t chunk, count; /* rows of a chunk, and chunks of a sequence */
};

/* Chunks of `rows` rows; if it is 0, of as many rows as the block's threads sum */
static inline columns_cut cut_columns(extent e, int most_width, int64_t rows) {
    columns_cut c = {e, 1, rows, 0};
    while (c.width < e.D && c.width < most_width) c.width *= 2;
    if (!rows) c.chunk = COLUMN_THREADS / c.width * ROWS_OF_THREAD;
    c.count = pieces_of(e.T, c.chunk);
    return c;
}
static inline columns_cut cut_columns(extent e) { return cut_columns(e, MOST_WIDTH, 0); }

static inline int64_t tiles_of(columns_cut c) { return pieces_of(c.e.D, c.width); }

/* A chunk of rows of sequence b: its first row (of B*T), the number of rows, and of valid rows. */
struct chunk_rows {
    int64_t b, first, all, valid;
};

ROT_DEVICE_ONLY chunk_rows rows_of_chunk(columns_cut c, int64_t chunk) {
    const int64_t b = chunk / c.count, t = chunk % c.count * c.chunk, all = least(c.e.T - t, c.chunk);
    const chunk_rows rows = {b, b * c.e.T + t, all, least(most(steps_of(c.e.lengths, b, c.e.T) - t, 0), all)};
    return rows;
}

/* The rows that a thread sums: `rows` rows of a chunk, the first at `at`, `step` apart; none if d >= D. */
struct column {
    place at;
    int64_t chunk, rows, step, valid;
};

ROT_DEVICE_ONLY column column_of(columns_cut c) {
    const unsigned tiles = (unsigned)pieces_of(c.e.D, c.width);
    const int group = (int)threadIdx.x / c.width, groups = COLUMN_THREADS / c.width;
    const int64_t d = (int64_t)(blockIdx.x % tiles) * c.width + threadIdx.x % c.width;
    const chunk_rows rows = rows_of_chunk(c, blockIdx.x / tiles);
    column own = {{rows.b, rows.first + group, d, 0}, blockIdx.x / tiles, 0, groups, rows.valid};
    if (d < c.e.D) own.rows = pieces_of(most(rows.valid - group, 0), groups);
    return own;
}

ROT_DEVICE_ONLY place place_in(column own, int64_t k, int64_t D) {
    place p = own.at;
    p.row += k * own.step, p.i = p.row * D + p.d;
    return p;
}

/* Whether this thread writes the sum of the block's threads of a column. */
ROT_DEVICE_ONLY bool writes(column own, columns_cut c) { return (int)threadIdx.x < c.width && own.at.d < c.e.D; }

/* The sum of x over the threads of the same column, in all of them: a tree. `scratch` (COLUMN_THREADS) is free again
 * after the next barrier. All threads must call it. */
template <class T> ROT_DEVICE_ONLY T column_total(T x, T *scratch, int width) {
    __syncthreads();
    scratch[threadIdx.x] = x;
    for (int half = COLUMN_THREADS / 2; half >= width; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    }
    __syncthreads();
    return scratch[(int)threadIdx.x % width];
}

/* N numbers summed together */
template <int N> struct terms {
    real of[N];
};

template <int N> ROT_DEVICE_ONLY void add_terms(terms<N> &total, terms<N> one) {
#pragma unroll
    for (int n = 0; n < N; n++) total.of[n] += one.of[n];
}

struct column_scratch {
    real sums[COLUMN_THREADS];
};

/* sums (chunks,N,D) of the terms at each place */
template <int N, class Term> GLOBAL(COLUMN_THREADS) sum_columns_kernel(columns_cut c, real *sums, Term term) {
    column_scratch &s = shared_memory<column_scratch>();
    const column own = column_of(c);
    terms<N> total = {};
    int64_t k = 0;
    for (; k + TERMS_AT_ONCE <= own.rows; k += TERMS_AT_ONCE) { /* without conditions: loads come first */
        terms<N> one[TERMS_AT_ONCE];
#pragma unroll
        for (int u = 0; u < TERMS_AT_ONCE; u++) one[u] = term(place_in(own, k + u, c.e.D));
#pragma unroll
        for (int u = 0; u < TERMS_AT_ONCE; u++) add_terms(total, one[u]);
    }
    for (; k < own.rows; k++) add_terms(total, term(place_in(own, k, c.e.D)));
#pragma unroll
    for (int n = 0; n < N; n++) {
        const real sum = column_total(total.of[n], s.sums, c.width);
        if (writes(own, c)) sums[(own.chunk * N + n) * c.e.D + own.at.d] = sum;
    }
}

struct merge_scratch {
    double sums[COLUMN_THREADS];
};

/* This block's columns and chunks, for kernels that merge chunks: a thread has every `step`-th from `first` on. */
struct merge {
    int64_t column, first, step;
};

ROT_DEVICE_ONLY merge merge_of(int64_t tile) {
    const merge m = {tile * MERGE_WIDTH + threadIdx.x % MERGE_WIDTH, threadIdx.x / MERGE_WIDTH,
                     COLUMN_THREADS / MERGE_WIDTH};
    return m;
}

/* write(g, column, sum over c of sums[g,c,column]) for sums (groups, chunks, columns) */
template <class Write>
GLOBAL(COLUMN_THREADS) merge_kernel(const real *sums, int64_t chunks, int64_t columns, Write write) {
    merge_scratch &s = shared_memory<merge_scratch>();
    const unsigned tiles = (unsigned)pieces_of(columns, MERGE_WIDTH);
    const int64_t g = blockIdx.x / tiles;
    const merge m = merge_of(blockIdx.x % tiles);
    double total = 0;
    if (m.column < columns)
        pipelined<8>(
            pieces_of(most(chunks - m.first, 0), m.step),
            [&](int64_t k) { return sums[(g * chunks + m.first + k * m.step) * columns + m.column]; },
            [&](int64_t, real one) { total += (double)one; });
    total = column_total(total, s.sums, MERGE_WIDTH);
    if (threadIdx.x < MERGE_WIDTH && m.column < columns) write(g, m.column, total);
}

template <class Write>
static void merge_chunks(const real *sums, int64_t groups, int64_t chunks, int64_t columns, Write write) {
    launch(merge_kernel<Write>, groups * pieces_of(columns, MERGE_WIDTH), COLUMN_THREADS, sizeof(merge_scratch), sums,
           chunks, columns, write);
}

/* write(b, n D + d, sum of term n at channel d): over each sequence's rows if `apart`, else over all, with b = 0 */
template <int N, class Term, class Write> static void sum_columns(extent e, bool apart, Term term, Write write) {
    const columns_cut c = cut_columns(e);
    const int64_t chunks = e.B * c.count;
    real *const sums = workspace_of<real>(chunks, N, e.D);
    launch(sum_columns_kernel<N, Term>, chunks * tiles_of(c), COLUMN_THREADS, sizeof(column_scratch), c, sums, term);
    merge_chunks(sums, apart ? e.B : 1, apart ? c.count : chunks, N * e.D, write);
}

#endif
