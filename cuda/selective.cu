/* Selective scan and its adjoint on a GPU (csrc/kernels/selective.c has the equations).
 *
 * A launch has up to STATES states of every channel; more states take more launches, which add to the first one's
 * output. A block walks its channels through all of time (channels.h), a tile of steps at a time, with the tile's
 * inputs in shared memory, and in forward the states in registers. Backward first repeats forward within a tile, from
 * the states before it, then goes back. Sums over channels are taken by a warp's lanes, one step each, and added over
 * blocks by a second kernel. Every sum has one order.
 */
#include "channels.h"

enum {
    TILE = SELECTIVE_TILE,
    EACH = 4,                          /* states of a warp */
    WARPS = sizeof(real) == 4 ? 4 : 2, /* as many as fit into shared memory */
    THREADS = WARPS * 32,
    STATES = WARPS * EACH,
};
static_assert(TILE == 32, "sums over channels give each lane one step of a tile");

/* Sizes of a call. */
struct plan {
    int64_t batch, T, D, S, tiles;
    const int64_t *lengths;
    bool reverse, negative;
};

struct inputs {
    const real *x, *delta, *A, *B, *C, *skip;
};

struct tile_of_inputs {
    real x[TILE][WIDTH], delta[TILE][WIDTH], B[TILE][STATES], C[TILE][STATES];
};

ROT_DEVICE_ONLY walk steps_of_tile(plan p, int64_t b, int64_t tile) {
    return walk_of(b, tile, TILE, steps_of(p.lengths, b, p.T), p.T, p.reverse);
}

/* Number of states of the thread's warp, from state `first` on */
ROT_DEVICE_ONLY int count_of(plan p, int64_t first) { return (int)least(most(p.S - first, 0), EACH); }

/* The inputs of a tile, of the launch's states from `first` on; asynchronous. */
ROT_DEVICE_ONLY void load_tile(tile_of_inputs &to, plan p, inputs from, spot at, walk w, int64_t first) {
    load_rows(to.x, from.x, w, at, p.D);
    load_rows(to.delta, from.delta, w, at, p.D);
    for (int64_t i = threadIdx.x; i < w.steps * STATES; i += THREADS) {
        const int64_t k = i / STATES, s = i % STATES, row = (w.first + k * w.stride) * p.S + first + s;
        if (first + s >= p.S) continue;
        copy_async(&to.B[k][s], from.B + row);
        copy_async(&to.C[k][s], from.C + row);
    }
    copy_commit();
}

/* ---- forward ---- */

struct forward_room {
    tile_of_inputs tiles[2]; /* this tile and the next */
    real y[WARPS][TILE][WIDTH];
};
static_assert(sizeof(forward_room) <= MOST_SHARED, "too much shared memory");

/* States from `first` on. If it is not 0, y is added to. */
GLOBAL(THREADS) run_forward(plan p, inputs in, real *y, real *hT, real *carries, const real *h0, int64_t first) {
    forward_room &room = shared_memory<forward_room>();
    const spot at = spot_of(p.D);
    const int own = at.warp * EACH, count = count_of(p, first + own);
    const int64_t state = (at.b * p.D + at.d) * p.S + first + own; /* the warp's first in (batch,D,S) */
    const real skip = in.skip && at.live ? in.skip[at.d] : 0;
    real A[EACH], h[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const bool some = at.live && i < count;
        A[i] = some ? in.A[at.d * p.S + first + own + i] : 0;
        h[i] = some && h0 ? h0[state + i] : 0;
    }
    load_tile(room.tiles[0], p, in, at, steps_of_tile(p, at.b, 0), first);
    for (int64_t tile = 0; tile < p.tiles; tile++) {
        const walk w = steps_of_tile(p, at.b, tile);
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (carries && at.live && i < count)
                carries[((at.b * p.tiles + tile) * p.S + first + own + i) * p.D + at.d] = h[i];
        if (!w.steps) continue;
        copy_wait<0>();
        __syncthreads(); /* the tile is loaded, and all threads have finished the previous one */
        load_tile(room.tiles[(tile + 1) % 2], p, in, at, steps_of_tile(p, at.b, tile + 1), first);
        const tile_of_inputs &here = room.tiles[tile % 2];
        for (int64_t k = 0; k < w.steps; k++) {
            const real delta = here.delta[k][at.lane], u = selective_input(delta, here.x[k][at.lane]);
            real sum = 0;
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                if (i >= count) continue;
                const real moved = selective_move(selective_decay(delta, A[i]), h[i], p.negative);
                h[i] = selective_step(moved, u, here.B[k][own + i]);
                sum = selective_output(sum, h[i], here.C[k][own + i]);
            }
            room.y[at.warp][k][at.lane] = sum;
        }
        __syncthreads();
        for (int64_t k = at.warp; y && at.live && k < w.steps; k += WARPS) {
            real *const out = y + (w.first + k * w.stride) * p.D + at.d;
            real sum = first ? *out : skip * here.x[k][at.lane];
#pragma unroll
            for (int v = 0; v < WARPS; v++) sum += room.y[v][k][at.lane];
            *out = sum;
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (hT && at.live && i < count) hT[state + i] = h[i];
    if (y && !first) zero_rows(y, steps_of(p.lengths, at.b, p.T), at, p.T, p.D);
}

KERNEL(selective_forward) {
    const plan p = {batch, T, D, S, pieces_of(T, TILE), lengths, (bool)reverse, (bool)negative};
    const inputs in = {x, delta, A, B, C, skip};
    int64_t first = 0;
    do { /* at least once, even without states */
        launch(run_forward, batch * pieces_of(D, WIDTH), THREADS, sizeof(forward_room), p, in, y, hT, carries, h0,
               first);
        first += STATES;
    } while (first < S);
    return runtime_status();
}

/* ---- backward ---- */

struct warp_room {
    real du[TILE][WIDTH], ddelta[TILE][WIDTH]; /* sums over the warp's states */
    /* for one state, each step's e and moved, later its terms of dB and dC; padded: each lane can read a row */
    real e[TILE][WIDTH + 1], moved[TILE][WIDTH + 1];
};
struct backward_room {
    tile_of_inputs in;
    real dy[TILE][WIDTH];
    real h[STATES][WIDTH], g[STATES][WIDTH], dA[STATES][WIDTH];
    warp_room of[WARPS];
};
static_assert(sizeof(backward_room) <= MOST_SHARED, "too much shared memory");

/* Gradients, and partial sums of some: dA (batch,S,D), dskip (batch,D), dB and dC (groups of channels, batch, states of
 * a launch, T). */
struct gradients {
    real *dx, *ddelta, *dh0, *sum_A, *sum_skip, *part_B, *part_C;
    int64_t width; /* states of a launch */
};

/* The sum of a row of WIDTH numbers */
ROT_DEVICE_ONLY real row_total(const real *row) {
    real sum[4] = {0};
    for (int j = 0; j < WIDTH; j += 4)
        for (int i = 0; i < 4; i++) sum[i] += row[j + i];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* State s of the launch over a tile: forward for e and moved, then backward with g, which on entry is a_{k+1} g_{k+1}
 * of the following step. Each lane computes its channel. */
ROT_DEVICE_ONLY void run_state_adjoint(backward_room &room, warp_room &own, spot at, int s, real A, int64_t steps,
                                       bool negative) {
    const tile_of_inputs &in = room.in;
    const int j = at.lane;
    real h = room.h[s][j], g = room.g[s][j], sum = 0;
    for (int64_t k = 0; k < steps; k++) {
        const real delta = in.delta[k][j], e = selective_decay(delta, A), moved = selective_move(e, h, negative);
        own.e[k][j] = e, own.moved[k][j] = moved;
        h = selective_step(moved, selective_input(delta, in.x[k][j]), in.B[k][s]);
    }
    for (int64_t k = steps - 1; k >= 0; k--) {
        const real delta = in.delta[k][j], u = selective_input(delta, in.x[k][j]), dy = room.dy[k][j], b = in.B[k][s];
        const real e = own.e[k][j], moved = own.moved[k][j];
        const real gk = selective_state_adjoint(g, dy, in.C[k][s]);
        real before = room.h[s][j];
        if (negative && k)
            before = selective_step(own.moved[k - 1][j], selective_input(in.delta[k - 1][j], in.x[k - 1][j]),
                                    in.B[k - 1][s]);
        const real exponent = selective_exponent_adjoint(gk, moved, e, before, negative);
        own.du[k][j] = selective_input_adjoint(own.du[k][j], gk, b);
        own.ddelta[k][j] += exponent * A;
        sum += exponent * delta;
        g = selective_past_adjoint(e, gk, negative);
        own.e[k][j] = at.live ? gk * u : 0;
        own.moved[k][j] = at.live ? dy * selective_step(moved, u, b) : 0;
    }
    room.g[s][j] = g, room.dA[s][j] += sum;
}

/* States from `first` on. If it is not 0, dx and ddelta are added to. Shared memory fits two blocks. */
GLOBAL2(THREADS, 2)
run_backward(plan p, inputs in, gradients out, const real *dy, const real *dhT, const real *carries, int64_t first) {
    backward_room &room = shared_memory<backward_room>();
    const spot at = spot_of(p.D);
    warp_room &own = room.of[at.warp];
    const int s0 = at.warp * EACH, count = count_of(p, first + s0), j = at.lane;
    const int64_t all = steps_of(p.lengths, at.b, p.T), state = (at.b * p.D + at.d) * p.S + first + s0;
    const int64_t part = (at.d / WIDTH * p.batch + at.b) * out.width + s0; /* row (T) of the warp's first state */
    const real skip = in.skip && at.live ? in.skip[at.d] : 0;
    real sum_skip = 0;
    for (int i = 0; i < count; i++) {
        room.g[s0 + i][j] = dhT && at.live ? dhT[state + i] : 0;
        room.h[s0 + i][j] = room.dA[s0 + i][j] = 0;
    }
    for (int64_t tile = pieces_of(all, TILE) - 1; tile >= 0; tile--) {
        const walk w = steps_of_tile(p, at.b, tile);
        load_rows(room.dy, dy, w, at, p.D);
        for (int i = 0; at.live && i < count; i++)
            copy_async(&room.h[s0 + i][j], carries + ((at.b * p.tiles + tile) * p.S + first + s0 + i) * p.D + at.d);
        load_tile(room.in, p, in, at, w, first);
        for (int64_t k = 0; k < w.steps; k++) own.du[k][j] = own.ddelta[k][j] = 0;
        copy_wait<0>();
        __syncthreads();
        for (int i = 0; i < count; i++) {
            const real A = at.live ? in.A[at.d * p.S + first + s0 + i] : 0;
            run_state_adjoint(room, own, at, s0 + i, A, w.steps, p.negative);
            __syncwarp();
            if (j < w.steps) {
                const int64_t t = w.first + j * w.stride - at.b * p.T;
                out.part_B[(part + i) * p.T + t] = row_total(own.e[j]);
                out.part_C[(part + i) * p.T + t] = row_total(own.moved[j]);
            }
            __syncwarp();
        }
        real tile_skip = 0;
        for (int64_t k = 0; at.warp == 0 && k < w.steps; k++) tile_skip += room.dy[k][j] * room.in.x[k][j];
        sum_skip += tile_skip;
        __syncthreads();
        for (int64_t k = at.warp; at.live && k < w.steps; k += WARPS) {
            const int64_t row = (w.first + k * w.stride) * p.D + at.d;
            real du = 0, ddelta = first ? out.ddelta[row] : 0;
#pragma unroll
            for (int v = 0; v < WARPS; v++) du += room.of[v].du[k][j], ddelta += room.of[v].ddelta[k][j];
            out.dx[row] = (first ? out.dx[row] : skip * room.dy[k][j]) + room.in.delta[k][j] * du;
            out.ddelta[row] = ddelta + room.in.x[k][j] * du;
        }
        __syncthreads();
    }
    if (!at.live) return;
    for (int i = 0; i < count; i++) {
        out.dh0[state + i] = room.g[s0 + i][j];
        out.sum_A[(at.b * p.S + first + s0 + i) * p.D + at.d] = room.dA[s0 + i][j];
    }
    if (first) return;
    if (at.warp == 0) out.sum_skip[at.b * p.D + at.d] = sum_skip;
    zero_rows(out.dx, all, at, p.T, p.D);
    zero_rows(out.ddelta, all, at, p.T, p.D);
}

/* dB and dC of the launch's states from `first` on: the sums over groups of channels; zero in padding */
static void sum_channels(real *dB, real *dC, plan p, gradients of, int64_t first) {
    const int64_t states = least(p.S - first, of.width), groups = pieces_of(p.D, WIDTH),
                  apart = p.batch * of.width * p.T;
    each(p.batch * states * p.T, [=] __device__(int64_t i) {
        const int64_t t = i % p.T, s = i / p.T % states, b = i / p.T / states;
        const int64_t from = (b * of.width + s) * p.T + t, to = (b * p.T + t) * p.S + first + s;
        const int64_t count = t < steps_of(p.lengths, b, p.T) ? groups : 0;
        dB[to] = ordered_sum(of.part_B + from, count, apart);
        dC[to] = ordered_sum(of.part_C + from, count, apart);
    });
}

KERNEL(selective_backward) {
    const plan p = {batch, T, D, S, pieces_of(T, TILE), lengths, (bool)reverse, (bool)negative};
    const inputs in = {x, delta, A, B, C, skip};
    const int64_t groups = pieces_of(D, WIDTH), width = least(S, STATES);
    const gradients out = {dx,
                           ddelta,
                           dh0,
                           workspace_of<real>(batch, S, D),
                           workspace_of<real>(batch, D),
                           workspace_of<real>(groups, batch, width, T),
                           workspace_of<real>(groups, batch, width, T),
                           width};
    int64_t first = 0;
    do { /* at least once, even without states */
        launch(run_backward, batch * groups, THREADS, sizeof(backward_room), p, in, out, dy, dhT, carries, first);
        sum_channels(dB, dC, p, out, first);
        first += STATES;
    } while (first < S);
    each(S * D,
         [=] __device__(int64_t i) { dA[i % p.D * p.S + i / p.D] = ordered_sum(out.sum_A + i, p.batch, p.S * p.D); });
    if (dskip) each(D, [=] __device__(int64_t d) { dskip[d] = ordered_sum(out.sum_skip + d, p.batch, p.D); });
    return runtime_status();
}
