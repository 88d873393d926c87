/* Sizes that kernels and the list of kernels share. */
#ifndef ROT_SIZES_H
#define ROT_SIZES_H

#include "cuts.h"
#include "kernels.h"

/* How many tiles of so many steps T steps take; -1 if that makes no sense. */
static inline int64_t tiles(int64_t T, int64_t tile) { return tile > 0 ? pieces_of(T, tile) : -1; }

/* Gates of a cell: its weights are (gates N, N). */
static inline int64_t gates_of(int64_t cell) { return cell == CELL_LSTM ? 4 : 1; }

#endif
