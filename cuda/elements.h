/* Elementwise functions of arrays (B,T,D). Padding is not read and becomes zero.
 *
 *   map(extent, y, load, compute)   y[i] = compute(place, load(place)) at each valid place, 0 at the others
 *
 * A thread loads a few numbers, ELEMENT_THREADS apart, before it computes with the first.
 */
#ifndef ROT_CUDA_ELEMENTS_H
#define ROT_CUDA_ELEMENTS_H

#include "device.h"

enum { ELEMENT_THREADS = 256, ELEMENTS_AT_ONCE = 4, BLOCK_ELEMENTS = 16 * ELEMENT_THREADS };

struct extent {
    int64_t B, T, D;
    const int64_t *lengths; /* (B) or NULL */
};

/* Without padding, sequences are treated as one long sequence: few blocks begin in the middle of a cache line. */
static inline extent rows_of(int64_t B, int64_t T, int64_t D, const int64_t *lengths) {
    const extent each = {B, T, D, lengths}, all = {1, B * T, D, NULL};
    return lengths ? each : all;
}

/* The place of a number: sequence b, row (of B*T) and channel d, number i of (B,T,D). */
struct place {
    int64_t b, row, d, i;
};

/* Writes at one place: a number, or a number in each of two arrays. */
ROT_DEVICE_ONLY void write_at(real *y, int64_t i, real value) { write_lane(y + i, value); }

struct glu_arrays {
    real *value, *gate;
};
ROT_DEVICE_ONLY void write_at(glu_arrays y, int64_t i, glu_parts d) {
    write_lane(y.value + i, d.value), write_lane(y.gate + i, d.gate);
}

template <class Out, class Load, class Compute>
GLOBAL(ELEMENT_THREADS) map_kernel(extent e, Out y, Load load, Compute compute) {
    const int64_t size = e.T * e.D;
    const unsigned blocks = (unsigned)pieces_of(size, BLOCK_ELEMENTS), block = blockIdx.x % blocks;
    const int64_t b = blockIdx.x / blocks, first = (int64_t)block * BLOCK_ELEMENTS + threadIdx.x, begin = b * size;
    const int64_t end = begin + least((int64_t)(block + 1) * BLOCK_ELEMENTS, size);
    const int64_t valid = least(begin + steps_of(e.lengths, b, e.T) * e.D, end);
    const int64_t more_rows = ELEMENT_THREADS / e.D, more_d = ELEMENT_THREADS % e.D;
    place p = {b, b * e.T + first / e.D, first % e.D, begin + first};
    while (p.i < end) {
        place at[ELEMENTS_AT_ONCE];
        decltype(load(p)) in[ELEMENTS_AT_ONCE] = {};
#pragma unroll
        for (int u = 0; u < ELEMENTS_AT_ONCE; u++) {
            at[u] = p;
            if (p.i < valid) in[u] = load(p);
            p.i += ELEMENT_THREADS, p.row += more_rows, p.d += more_d;
            if (p.d >= e.D) p.d -= e.D, p.row++;
        }
#pragma unroll
        for (int u = 0; u < ELEMENTS_AT_ONCE; u++) {
            if (at[u].i < valid)
                write_at(y, at[u].i, compute(at[u], in[u]));
            else if (at[u].i < end)
                write_at(y, at[u].i, decltype(compute(p, in[0])){});
        }
    }
}

template <class Out, class Load, class Compute> static void map(extent e, Out y, Load load, Compute compute) {
    launch(map_kernel<Out, Load, Compute>, e.B * pieces_of(e.T * e.D, BLOCK_ELEMENTS), ELEMENT_THREADS, 0, e, y, load,
           compute);
}

#endif
