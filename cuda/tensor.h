/* Products of tiles on tensor cores: a block's threads bring tiles of two matrices to shared memory while they multiply
 * those before, and keep the sums in registers.
 *
 *   c (i,j) += sum over k of a (i,k) b (j,k)
 *
 *   tile<E, WIDTH, DEPTH, TURNED>    WIDTH of an operand's i or j times DEPTH of k, stored as E: float, or the bits of
 *                                    bfloat16
 *   bring<threads>(tile, from, ...)  copies a part of a matrix to it, with zeros where the matrix ends
 *   multiply_tiles<P>                a warp's part of the product of two tiles
 *   multiply_stream<P>               the sum of such products over tiles that come one after another
 *   each_pair                        what a lane has of the result
 *
 * P says how operands are rounded:
 *
 *   as_tf32    to TF32, ties away from zero
 *   as_bf16    to bfloat16, ties to even; or they are stored so
 *   as_tf32x3  x = big + small, both TF32, and a b = big big + big small + small big. big = tf32(x) is off by at most
 *              2^-11 |x|, x - big is exact, and small = tf32(x - big) by at most 2^-22 |x|. So with the product of two
 *              small parts, which is left out, a product is off by at most 3 2^-22 |a b| (1 + 2^-10), as a float32
 *              sum of a dozen numbers may be.
 *              (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
 *              theoretical peak performance", IJHPCA 2022.) An infinite number gives NaN; so does one that TF32 rounds
 * to infinity.
 *
 * Sums are float32; tensor cores may cut where float32 rounds, so each addition is off by up to 2^-23 of its sum. All
 * cuts go towards zero, and do not cancel as roundings do. An instruction adds 8 products to a sum at once, and
 * as_tf32x3 has three of them for 8 products: so the sum may be too small by (3 k / 8) 2^-23 of it, 2e-5 for k = 512,
 * whatever a product's own error is.
 */
#ifndef ROT_CUDA_TENSOR_H
#define ROT_CUDA_TENSOR_H

#include "device.h"

/* ---- operand tiles ---- */

/* Rows of memory are the operand's, with k along them; or turned, they are k's. They are so far apart that the lanes of
 * a warp read a fragment from 32 different banks: rows begin 4 banks after each other, or turned 8 of them (floats; of
 * bfloat16, two at a time, 4). */
template <class E, int WIDTH, int DEPTH, bool TURNED> struct tile {
    enum { ROWS = TURNED ? DEPTH : WIDTH, COLUMNS = TURNED ? WIDTH : DEPTH, CHUNK = 16 / sizeof(E) };
    enum { GAP = TURNED && sizeof(E) == 4 ? 2 * CHUNK : CHUNK };
    static_assert(COLUMNS % (128 / sizeof(E)) == 0, "rows are whole walks through the banks");
    alignas(16) E of[ROWS][COLUMNS + GAP];

    __device__ E at(int i, int k) const { return TURNED ? of[k][i] : of[i][k]; }
};

/* Numbers that are copied at once, and two neighbours in bfloat16 */
struct alignas(16) chunk {
    uint32_t of[4];
};
struct alignas(4) neighbours {
    uint16_t low, high;
};

ROT_DEVICE_ONLY void copy_one(float *to, const float *from) { copy_async(to, from); }
ROT_DEVICE_ONLY void copy_one(uint16_t *to, const uint16_t *from) { *to = *from; } /* too short for copy_async */

/* The same, number by number: count of them, then zeros */
template <class E> ROT_DEVICE_ONLY void copy_each(E *to, const E *from, int count) {
#pragma unroll 1
    for (int e = 0; e < (int)(sizeof(chunk) / sizeof(E)); e++) {
        if (e < count)
            copy_one(to + e, from + e);
        else
            to[e] = 0;
    }
}

/* Whether rows of n numbers, one after another, can be copied by chunks. */
template <class E> ROT_DEVICE_ONLY bool has_chunks(const E *p, int64_t n) {
    return (uintptr_t)p % sizeof(chunk) == 0 && n * (int64_t)sizeof(E) % (int64_t)sizeof(chunk) == 0;
}

/* Begins to copy `rows` x `columns` numbers, or as many as there is room for, to a tile, and sets what it has beyond
 * them to zero. Rows are `apart` in memory. All threads of the block call it; the tile is there after copy_wait and a
 * barrier. The loop is not unrolled: addresses of many rows at once would take the registers of the sums. */
template <int THREADS, class E, int WIDTH, int DEPTH, bool TURNED>
ROT_DEVICE_ONLY void bring(tile<E, WIDTH, DEPTH, TURNED> &to, const E *from, int64_t apart, int64_t rows,
                           int64_t columns, bool chunks) {
    typedef tile<E, WIDTH, DEPTH, TURNED> T;
    constexpr int WIDE = T::COLUMNS / T::CHUNK, STEP = THREADS / WIDE;
    static_assert(THREADS % WIDE == 0 && T::ROWS % STEP == 0, "threads have as many chunks each, of one column");
    const int column = (int)threadIdx.x % WIDE * T::CHUNK, first = (int)threadIdx.x / WIDE;
    const int high = (int)least(rows, T::ROWS), count = (int)least(columns - column, T::CHUNK);
    const E *here = from + first * apart + column;
#pragma unroll 1
    for (int row = first; row < T::ROWS; row += STEP, here += STEP * apart) {
        E *const there = &to.of[row][column];
        if (chunks && row < high && count == T::CHUNK)
            copy_async((chunk *)there, (const chunk *)here);
        else
            copy_each(there, here, row < high ? count : 0);
    }
}

/* ---- precisions: a lane's part of an operand of mma is 4 or 2 words; P::read gets one from a tile, P::add is mma ----
 */

/* The lane's place in a fragment, as mma has it (device.h) */
ROT_DEVICE_ONLY int lane_row() { return (int)(threadIdx.x % 32) / 4; }
ROT_DEVICE_ONLY int lane_k() { return (int)threadIdx.x % 4; }

/* Each P has DEPTH of k in one mma, and of them in the words of one half, 0 or 1, the lane reads one or two. Which
 * those are is the same for both operands; their order in the sum may be any. */
struct as_tf32 {
    enum { DEPTH = 8 };
    typedef float word;
    template <class Tile> ROT_DEVICE_ONLY word read(const Tile &x, int i, int k, int half) {
        return to_tf32(x.at(i, k + 4 * half + lane_k()));
    }
    ROT_DEVICE_ONLY void add(float *c, const word *a, const word *b) { mma_tf32(c, a, b); }
};

struct as_bf16 {
    enum { DEPTH = 16 };
    typedef uint32_t word;
    template <int WIDTH, int D, bool TURNED>
    ROT_DEVICE_ONLY word read(const tile<float, WIDTH, D, TURNED> &x, int i, int k, int half) {
        const int first = k + 8 * half + lane_k();
        return to_bf16(x.at(i, first), x.at(i, first + 4)); /* these, and not neighbours, for the banks */
    }
    template <int WIDTH, int D, bool TURNED>
    ROT_DEVICE_ONLY word read(const tile<uint16_t, WIDTH, D, TURNED> &x, int i, int k, int half) {
        const int first = k + 8 * half + 2 * lane_k();
        neighbours two = {x.at(i, first), 0};
        if (TURNED)
            two.high = x.at(i, first + 1);
        else
            two = *(const neighbours *)&x.of[i][first];
        return (uint32_t)two.low | (uint32_t)two.high << 16;
    }
    ROT_DEVICE_ONLY void add(float *c, const word *a, const word *b) { mma_bf16(c, a, b); }
};

struct as_tf32x3 {
    enum { DEPTH = 8 };
    struct word {
        float big, small;
    };
    ROT_DEVICE_ONLY word split(float x) {
        const float big = to_tf32(x);
        const word w = {big, to_tf32(x - big)};
        return w;
    }
    template <class Tile> ROT_DEVICE_ONLY word read(const Tile &x, int i, int k, int half) {
        return split(x.at(i, k + 4 * half + lane_k()));
    }
    /* The smaller products come first. */
    ROT_DEVICE_ONLY void add(float *c, const word *a, const word *b) {
        const float a_big[4] = {a[0].big, a[1].big, a[2].big, a[3].big}, b_big[2] = {b[0].big, b[1].big};
        const float a_small[4] = {a[0].small, a[1].small, a[2].small, a[3].small},
                    b_small[2] = {b[0].small, b[1].small};
        mma_tf32(c, a_small, b_big);
        mma_tf32(c, a_big, b_small);
        mma_tf32(c, a_big, b_big);
    }
};

/* ---- products ---- */

/* c += the product of M 16 rows of a, from `row` on, and N 8 of b, from `column` on: this warp's part */
template <class P, int M, int N, class A, class B>
ROT_DEVICE_ONLY void multiply_tiles(float (&c)[M][N][4], const A &a, const B &b, int depth, int row, int column) {
#pragma unroll 1 /* more would spill registers */
    for (int k = 0; k < depth; k += P::DEPTH) {
        typename P::word right[N][2];
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) right[n][r] = P::read(b, column + 8 * n + lane_row(), k, r);
#pragma unroll
        for (int m = 0; m < M; m++) {
            typename P::word left[4];
#pragma unroll
            for (int r = 0; r < 4; r++) left[r] = P::read(a, row + 16 * m + r % 2 * 8 + lane_row(), k, r / 2);
#pragma unroll
            for (int n = 0; n < N; n++) P::add(c[m][n], left, right[n]);
        }
    }
}

/* Tiles of both operands that are multiplied together */
template <class A, class B> struct stage {
    A a;
    B b;
};

/* c += the products of the tiles that load(stage) brings, until it returns false instead. All threads of the block call
 * it. `stages` (2): one is filled while the other is used. */
template <class P, int DEPTH, int M, int N, class Stage, class Load>
ROT_DEVICE_ONLY void multiply_stream(float (&c)[M][N][4], Stage *stages, int row, int column, Load load) {
    bool more = load(stages[0]);
    copy_commit();
    for (int here = 0; more; here ^= 1) {
        more = load(stages[here ^ 1]);
        copy_commit();
        copy_wait<1>();
        __syncthreads();
        multiply_tiles<P>(c, stages[here].a, stages[here].b, DEPTH, row, column);
        __syncthreads();
    }
}

/* use(i, j, x, y) for the numbers (i,j) and (i,j+1) that this lane has of its warp's part */
template <int M, int N, class Use>
ROT_DEVICE_ONLY void each_pair(const float (&c)[M][N][4], int row, int column, Use use) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                use(row + 16 * m + 8 * half + lane_row(), column + 8 * n + 2 * lane_k(), c[m][n][2 * half],
                    c[m][n][2 * half + 1]);
}

#endif
