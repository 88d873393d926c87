/* Products of rows of sequences on tensor cores (products.h), by tiles of 128 x 128 numbers of the result.
 *
 * A block has 8 warps, with 64 x 32 numbers each. Rows are cut within a sequence, so that what is no padding of a piece
 * comes first, and pieces that are all padding cost nothing. The sum over rows is cut into parts by the shapes, and
 * their sums are added in order.
 */
#include "products.h"

#include "sums.h"
#include "tensor.h"

namespace {

enum { THREADS = 256, SIZE = 128, WARP_ROWS = 64, WARP_COLUMNS = 32, WARPS_DOWN = SIZE / WARP_ROWS };
enum { M = WARP_ROWS / 16, N = WARP_COLUMNS / 8 };
enum { PART_BLOCKS = 256, LEAST_PART = 512 }; /* of a sum over rows: blocks that fill a GPU, and rows worth a part */

/* Steps of k that a stage has: 128 bytes of each row */
template <class E> constexpr int depth_of = 128 / sizeof(E);

template <class E, bool TURNED> using operand = tile<E, SIZE, depth_of<E>, TURNED>;

template <class E, bool TURNED_A, bool TURNED_B> struct scratch {
    stage<operand<E, TURNED_A>, operand<E, TURNED_B>> stages[2];
};

/* At most `size` rows of one sequence: the first, and how many of them are no padding */
struct rows_piece {
    int64_t first, valid;
};
ROT_DEVICE_ONLY rows_piece piece_of_rows(sequences s, int64_t size, int64_t index) {
    const int64_t each = pieces_of(s.T, size), b = index / each, t = index % each * size;
    const rows_piece p = {b * s.T + t, least(most(steps_of(s.lengths, b, s.T) - t, 0), size)};
    return p;
}

/* The first row and column of this warp's part of a tile */
ROT_DEVICE_ONLY int warp_row() { return (int)threadIdx.x / 32 % WARPS_DOWN * WARP_ROWS; }
ROT_DEVICE_ONLY int warp_column() { return (int)threadIdx.x / 32 / WARPS_DOWN * WARP_COLUMNS; }

/* Writes `rows` x `columns` of this block's sums to `to`, whose rows are `apart`. */
ROT_DEVICE_ONLY void write_sums(float *to, int64_t apart, int64_t rows, int64_t columns, const float (&c)[M][N][4]) {
    const bool pairs = (uintptr_t)to % sizeof(float2) == 0 && apart % 2 == 0;
    each_pair(c, warp_row(), warp_column(), [&](int i, int j, float x, float y) {
        float *const at = to + i * apart + j;
        if (i >= rows) return;
        if (pairs && j + 1 < columns) {
            *(float2 *)at = make_float2(x, y);
        } else {
            if (j < columns) at[0] = x;
            if (j + 1 < columns) at[1] = y;
        }
    });
}

/* y (rows,columns) = x b, x (rows,inner); b is (inner,columns), or turned, (columns,inner): a block for each tile */
template <class P, class E, bool TURNED>
GLOBAL2(THREADS, 2)
multiply_rows(float *y, const E *x, const E *b, sequences rows, int64_t inner, int64_t columns) {
    const int64_t wide = pieces_of(columns, SIZE), column = blockIdx.x % wide * SIZE;
    const rows_piece piece = piece_of_rows(rows, SIZE, blockIdx.x / wide);
    if (!piece.valid) return;
    constexpr int DEPTH = depth_of<E>;
    const bool x_chunks = has_chunks(x, inner), b_chunks = has_chunks(b, TURNED ? inner : columns);
    const E *const from = x + piece.first * inner;
    int64_t k = 0;
    float c[M][N][4] = {};
    auto *const stages = shared_memory<scratch<E, false, !TURNED>>().stages;
    multiply_stream<P, DEPTH>(c, stages, warp_row(), warp_column(), [&](auto &to) {
        if (k >= inner) return false;
        bring<THREADS>(to.a, from + k, inner, piece.valid, inner - k, x_chunks);
        if (TURNED)
            bring<THREADS>(to.b, b + column * inner + k, inner, columns - column, inner - k, b_chunks);
        else
            bring<THREADS>(to.b, b + k * columns + column, columns, inner - k, columns - column, b_chunks);
        k += DEPTH;
        return true;
    });
    write_sums(y + piece.first * columns + column, columns, piece.valid, columns - column, c);
}

/* sums (parts,n,m): over parts of the rows of a^T b, a (rows,n), b (rows,m): a block for each tile of each. Parts have
 * every so many-th piece of rows, so that each has its share of the padding. */
template <class P, class E>
GLOBAL2(THREADS, 2)
multiply_columns(float *sums, const E *a, const E *b, sequences rows, int64_t parts, int64_t n, int64_t m) {
    const int64_t wide = pieces_of(m, SIZE), high = pieces_of(n, SIZE), part = blockIdx.x / (wide * high);
    const int64_t row = blockIdx.x / wide % high * SIZE, column = blockIdx.x % wide * SIZE;
    constexpr int DEPTH = depth_of<E>;
    const int64_t pieces = rows.B * pieces_of(rows.T, DEPTH);
    const bool a_chunks = has_chunks(a, n), b_chunks = has_chunks(b, m);
    int64_t next = part;
    float c[M][N][4] = {};
    auto *const stages = shared_memory<scratch<E, true, true>>().stages;
    multiply_stream<P, DEPTH>(c, stages, warp_row(), warp_column(), [&](auto &to) {
        rows_piece piece = {0, 0};
        for (; !piece.valid && next < pieces; next += parts) piece = piece_of_rows(rows, DEPTH, next);
        if (!piece.valid) return false;
        bring<THREADS>(to.a, a + piece.first * n + row, n, piece.valid, n - row, a_chunks);
        bring<THREADS>(to.b, b + piece.first * m + column, m, piece.valid, m - column, b_chunks);
        return true;
    });
    write_sums(sums + (part * n + row) * m + column, m, n - row, m - column, c);
}

/* Without padding, sequences are one after another as if they were one: few tiles are partly empty. */
sequences joined(sequences s) {
    const sequences all = {1, s.B * s.T, NULL};
    return s.lengths ? s : all;
}

template <class P, class E, bool TURNED>
void multiply_rows_by(float *y, const void *x, const void *b, sequences rows, int64_t inner, int64_t columns) {
    const int64_t blocks = rows.B * pieces_of(rows.T, SIZE) * pieces_of(columns, SIZE);
    launch(multiply_rows<P, E, TURNED>, blocks, THREADS, sizeof(scratch<E, false, !TURNED>), y, (const E *)x,
           (const E *)b, rows, inner, columns);
}

template <bool TURNED>
void multiply_rows_in(storage stored, float *y, const void *x, const void *b, sequences rows, int64_t inner,
                      int64_t columns) {
    rows = joined(rows);
    if (stored == STORED_BF16) return multiply_rows_by<as_bf16, uint16_t, TURNED>(y, x, b, rows, inner, columns);
    switch (runtime_precision()) {
    case PRECISION_BF16: return multiply_rows_by<as_bf16, float, TURNED>(y, x, b, rows, inner, columns);
    case PRECISION_TF32: return multiply_rows_by<as_tf32, float, TURNED>(y, x, b, rows, inner, columns);
    default: return multiply_rows_by<as_tf32x3, float, TURNED>(y, x, b, rows, inner, columns);
    }
}

template <class P, class E>
void sum_of_products(float *dw, const void *dy, const void *x, sequences rows, int64_t in, int64_t out) {
    const int64_t tiles = pieces_of(out, SIZE) * pieces_of(in, SIZE);
    const int64_t parts = most(least(PART_BLOCKS / most(tiles, 1), rows.B * rows.T / LEAST_PART), 1);
    float *const sums = parts > 1 ? workspace_of<float>(parts, out, in) : dw;
    launch(multiply_columns<P, E>, parts * tiles, THREADS, sizeof(scratch<E, true, true>), sums, (const E *)dy,
           (const E *)x, rows, parts, out, in);
    if (parts > 1) sum_rows(dw, sums, parts, out * in);
}

}

void project_rows(float *y, const void *x, const void *w, storage stored, sequences rows, int64_t in, int64_t out) {
    multiply_rows_in<true>(stored, y, x, w, rows, in, out);
}

void project_rows_adjoint(float *dx, const void *dy, const void *w, storage stored, sequences rows, int64_t in,
                          int64_t out) {
    multiply_rows_in<false>(stored, dx, dy, w, rows, out, in);
}

void rows_weight_gradient(float *dw, const void *dy, const void *x, storage stored, sequences rows, int64_t in,
                          int64_t out) {
    rows = joined(rows);
    if (stored == STORED_BF16) return sum_of_products<as_bf16, uint16_t>(dw, dy, x, rows, in, out);
    switch (runtime_precision()) {
    case PRECISION_BF16: return sum_of_products<as_bf16, float>(dw, dy, x, rows, in, out);
    case PRECISION_TF32: return sum_of_products<as_tf32, float>(dw, dy, x, rows, in, out);
    default: return sum_of_products<as_tf32x3, float>(dw, dy, x, rows, in, out);
    }
}

/* Seconds of a row on an H100 by a count: the longer of moving it, at the 3.0 TB/s of a copy, and of so many products
 * of two numbers at a rate (flops a second). */
static double seconds_of_row(double bytes, double products, double rate) {
    return fmax(bytes / 3.0e12, 2 * products / rate);
}

product_seconds count_product(storage stored, sequences rows, int64_t in, int64_t out) {
    /* Flops a second of the library, and of mma.sync at 60 % of that (tests/cuda/count_products.py): as_tf32x3 has
     * three for one, and bfloat16 waits for shared memory. */
    static const double LIBRARY[PRECISIONS] = {60e12, 400e12, 790e12}, OWN[PRECISIONS] = {80e12, 240e12, 316e12};
    const int precision = stored == STORED_BF16 ? (int)PRECISION_BF16 : runtime_precision();
    const double bytes = (stored == STORED_BF16 ? 2.0 : 4.0) * (double)in + 4.0 * (double)out;
    const auto filled = [](int64_t n) { return (double)(pieces_of(n, SIZE) * SIZE); };
    const double products = filled(in) * filled(out) * filled(rows.T) / (double)most(rows.T, 1);
    const product_seconds row = {seconds_of_row(bytes, (double)in * (double)out, LIBRARY[precision]),
                                 seconds_of_row(bytes, products, OWN[precision])};
    return row;
}

bool rows_product_pays(storage stored, sequences rows, int64_t in, int64_t out) {
    static const double VALID = 0.5,
                        GAIN = 1.3; /* rows of ragged batches that are no padding; what a count leaves out */
    const product_seconds row = count_product(stored, rows, in, out);
    return rows.lengths && GAIN * VALID * row.own < row.library; /* without padding, 80 to 60 at most, in float32 */
}
