/* Sizes that kernels and the list of kernels share. */
#ifndef ROT_SIZES_H
#define ROT_SIZES_H

#include "cuts.h"
#include "kernels.h"

/* Number of tiles of `tile` steps that cover T steps; -1 if `tile` is not positive. */
static inline int64_t tiles(int64_t T, int64_t tile) { return tile > 0 ? pieces_of(T, tile) : -1; }

/* Number of gates of a cell, whose weights are (gates N, N). */
static inline int64_t gates_of(int64_t cell) { return cell == CELL_LSTM ? 4 : cell == CELL_GRU ? 3 : 1; }

/* Whether a string of `length` letters has room for a question and its answer (csrc/data/string_copy.c). */
static inline bool copy_fits(int64_t length, int64_t variant, int64_t gram, int64_t answer) {
    const int64_t rest = length - gram - answer;
    return variant == COPY_COPY ? length >= answer : rest >= 3;
}

/* Room that a part of n numbers takes in a vector whose parts begin at multiples of PART_ALIGNMENT. */
static inline int64_t part_room(int64_t n) { return PART_ALIGNMENT * pieces_of(n, PART_ALIGNMENT); }
static inline int64_t parts(int64_t a, int64_t b, int64_t c, int64_t d) {
    return part_room(a) + part_room(b) + part_room(c) + part_room(d);
}

#endif
