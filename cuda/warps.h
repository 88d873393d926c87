/* For kernels in which each warp works on its own rows, with the functions of csrc/kernels/lanes.h and mixer.h.
 *
 * The warps of a grid take rows in turn. Each has a room for its intermediate results: in shared memory if the rooms of
 * a block fit, else in global memory.
 */
#ifndef ROT_CUDA_WARPS_H
#define ROT_CUDA_WARPS_H

#include "device.h"

#include "mixer.h"

enum {
    WARPS = 4,                /* of a block */
    BLOCK = 32 * WARPS,       /* threads */
    BLOCKS = 4,               /* least number on a processor: limits registers of the longest kernel */
    MOST_WARPS = 2048,        /* of a grid: enough for every processor */
    MOST_WARPS_GLOBAL = 512,  /* of a grid whose rooms are in global memory */
    SHARED_BYTES = 96 * 1024, /* of a block, for rooms */
};

/* The warps of a grid: their number, and the size of a room. `memory`: the rooms, or NULL if they are in shared
 * memory. */
struct crew {
    int64_t count, room;
    real *memory;
    size_t shared;
};

static inline crew crew_of(int64_t rows, int64_t room) {
    const bool fits = room <= (int64_t)(SHARED_BYTES / WARPS / sizeof(real));
    crew c = {least(rows, fits ? MOST_WARPS : MOST_WARPS_GLOBAL), room, NULL, 0};
    if (fits)
        c.shared = (size_t)(WARPS * room) * sizeof(real);
    else
        c.memory = workspace_of<real>(c.count, room);
    return c;
}

/* Blocks of a launch: launch(kernel, crew_blocks(c), BLOCK, c.shared, c, ...). */
static inline int64_t crew_blocks(crew c) { return pieces_of(c.count, WARPS); }

/* The index of this warp in the grid; warps from `count` on are idle. */
ROT_DEVICE_ONLY int64_t warp_of() { return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; }

ROT_DEVICE_ONLY real *room_of(crew c) {
    return c.memory ? c.memory + warp_of() * c.room : &shared_memory<real>() + threadIdx.x / 32 * c.room;
}

template <class F> GLOBAL(BLOCK) each_warp_kernel(int64_t rows, F f) {
    for (int64_t row = warp_of(); row < rows; row += (int64_t)gridDim.x * WARPS) f(row, (int)(threadIdx.x % 32));
}

/* f(row, lane) for rows 0..rows-1 by the lanes of one warp each, without a room; as `each`. */
template <class F> static void each_warp(int64_t rows, F f) {
    launch(each_warp_kernel<F>, pieces_of(least(rows, MOST_WARPS), WARPS), BLOCK, 0, rows, f);
}

/* A token, step t of sequence b, of row b T + t. A warp takes every count-th token. The quotient and the remainder of
 * count by T give the next token, because a division in a loop is slow. */
struct token {
    int64_t row, b, t;
};
struct stride {
    int64_t rows, b, t, T;
};

static inline stride stride_of(crew c, int64_t T) {
    const stride s = {c.count, T ? c.count / T : 0, T ? c.count % T : 0, T};
    return s;
}
ROT_DEVICE_ONLY token first_token(stride s) {
    const token first = {warp_of(), warp_of() / s.T, warp_of() % s.T};
    return first;
}
ROT_DEVICE_ONLY token next_token(token at, stride s) {
    const bool over = at.t + s.t >= s.T;
    const token next = {at.row + s.rows, at.b + s.b + over, at.t + s.t - (over ? s.T : 0)};
    return next;
}

#endif
