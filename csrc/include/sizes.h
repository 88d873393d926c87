/* Sizes that kernels and the list of kernels share. */
#ifndef ROT_SIZES_H
#define ROT_SIZES_H

#include "cuts.h"
#include "kernels.h"

/* Number of tiles of `tile` steps that cover T steps; -1 if `tile` is not positive. */
static inline int64_t tiles(int64_t T, int64_t tile) { return tile > 0 ? pieces_of(T, tile) : -1; }

/* Number of gates of a cell, whose weights are (gates N, N). */
static inline int64_t gates_of(int64_t cell) { return cell == CELL_LSTM ? 4 : 1; }

#endif
