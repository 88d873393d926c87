/* Selective scan  h_t = a_t h_{t-1} + (delta_t x_t) B_t^T,  y_t = h_t C_t + skip x_t, and its adjoint. The transition
 * a_t is exp(delta_t A), or 2 exp(delta_t A) - 1 if `negative` (number_steps.h).
 *
 * The state of a sequence is (D, S), stored as (S, D): SIMD across channels. A task is a sequence and a group of
 * channels. It loops over tiles of SELECTIVE_TILE steps, within a tile over blocks of WIDTH channels, within a block
 * over their S states, and innermost over time, with the state in registers: the results for each step, channel and
 * state stay in level 1 cache. Forward saves the states before each tile; backward recomputes the rest. The division of
 * work depends on the shapes alone and every sum has one order, so results have the same bits for any number of
 * threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 * `reverse`: time runs from lengths[b]-1 down to 0, by indexing; tiles are numbered in the order of the walk.
 */
#include <string.h>

#include "channels.h"
#include "kernels.h"
#include "rows.h"
#include "stop.h"
#include "workspace.h"

enum {
    FORWARD = 4,  /* states that run together: a single recurrence would wait for its last step */
    BACKWARD = 2, /* the same in backward, where a state takes more of the cache */
    TILE = SELECTIVE_TILE,
    TASKS = 16,     /* least number of tasks, if there are enough blocks */
    SERIAL = 16384, /* numbers (B,T,D,S) below which one thread is used */
};

/* One number for each step of a tile and channel of a block. */
typedef real tile_array[TILE * WIDTH] __attribute__((aligned(64)));

/* Sizes of a call, and the division of its channels; `padded` is D rounded up to whole blocks. */
typedef struct {
    int64_t B, T, D, N;
    const int64_t *lengths;
    bool reverse, threads;
    int64_t blocks, groups, padded, tiles;
} plan;

static plan plan_of(const int64_t *lengths, int64_t B, int64_t T, int64_t D, int64_t N, int64_t reverse) {
    const int64_t blocks = pieces_of(D, WIDTH), wanted = B ? pieces_of(TASKS, B) : 1;
    const plan p = {.B = B,
                    .T = T,
                    .D = D,
                    .N = N,
                    .lengths = lengths,
                    .reverse = reverse,
                    .threads = B * T * D * N > SERIAL,
                    .blocks = blocks,
                    .groups = least(wanted, blocks),
                    .padded = blocks * WIDTH,
                    .tiles = pieces_of(T, TILE)};
    return p;
}

static walk steps_of_tile(const plan *p, int64_t b, int64_t tile) {
    return walk_of(b, tile, TILE, steps_of(p->lengths, b, p->T), p->T, p->reverse);
}

/* The hardware prefetcher does not find the next block: rows are far apart. An address beyond the array does no
 * harm. */
static void fetch_next_block(const real *x) { __builtin_prefetch((const void *)((uintptr_t)x + WIDTH * sizeof(real))); }

static void load_rows(real *restrict to, const real *restrict from, walk w, span s, int64_t D) {
    for (int64_t k = 0; k < w.steps; k++) {
        const real *const row = from + (w.first + k * w.stride) * D + s.lo;
        fetch_next_block(row);
        load_block(to + k * WIDTH, row, s.n);
    }
}

static void store_rows(real *restrict to, const real *restrict from, walk w, span s, int64_t D) {
    for (int64_t k = 0; k < w.steps; k++) copy_block(to + (w.first + k * w.stride) * D + s.lo, from + k * WIDTH, s.n);
}

/* to (S, padded) <- from (D, S); zero beyond D, and if `from` is NULL. */
static void load_state(real *restrict to, const real *restrict from, const plan *p) {
    zero_row(to, p->N * p->padded);
    for (int64_t d = 0; from && d < p->D; d++)
        for (int64_t s = 0; s < p->N; s++) to[s * p->padded + d] = from[d * p->N + s];
}

static void store_state(real *restrict to, const real *restrict from, const plan *p) {
    for (int64_t d = 0; d < p->D; d++)
        for (int64_t s = 0; s < p->N; s++) to[d * p->N + s] = from[s * p->padded + d];
}

/* A as (S, padded), then skip (padded), or zeros. */
static void load_constants(real *restrict to, const real *restrict A, const real *restrict skip, const plan *p) {
    load_state(to, A, p);
    zero_row(to + p->N * p->padded, p->padded);
    if (skip) copy_row(to + p->N * p->padded, skip, p->D);
}

/* u <- delta x */
static void inputs(real *restrict u, const real *restrict delta, const real *restrict x, int64_t steps) {
    for (int64_t i = 0; i < steps * WIDTH; i++) u[i] = selective_input(delta[i], x[i]);
}

/* z <- c x of each row, c (WIDTH). */
static void scale_rows(real *restrict z, const real *restrict c, const real *restrict x, int64_t steps) {
    for (int64_t k = 0; k < steps; k++)
        for (int64_t j = 0; j < WIDTH; j++) z[k * WIDTH + j] = c[j] * x[k * WIDTH + j];
}

static void add_product(real *restrict z, const real *restrict x, const real *restrict y, int64_t steps) {
    for (int64_t i = 0; i < steps * WIDTH; i++) z[i] += x[i] * y[i];
}

/* A few of the S states of a block, `apart` numbers from one to the next in h and A, over a tile:
 *
 *   h <- a_k h + u_k b_k,   y_k += h c_k
 *
 * Steps of b and c are `row` apart. */
ROT_ALWAYS_INLINE void run_states(real *restrict y, real *restrict h, int64_t apart, const real *restrict delta,
                                  const real *restrict A, const real *restrict u, const real *restrict b,
                                  const real *restrict c, int64_t row, int64_t steps, const int states,
                                  const bool negative) {
    vec state[FORWARD][VECTORS];
    for (int i = 0; i < states; i++)
        for (int v = 0; v < VECTORS; v++) state[i][v] = at(h + i * apart, v);
    for (int64_t k = 0; k < steps; k++) {
        for (int v = 0; v < VECTORS; v++) {
            const vec delta_k = at(delta + k * WIDTH, v), u_k = at(u + k * WIDTH, v);
            vec out = at(y + k * WIDTH, v);
            for (int i = 0; i < states; i++) {
                const vec e = selective_decay_vec(delta_k, at(A + i * apart, v));
                state[i][v] = selective_step_vec(selective_move_vec(e, state[i][v], negative), u_k, b[k * row + i]);
                out = selective_output_vec(out, state[i][v], c[k * row + i]);
            }
            put(y + k * WIDTH, v, out);
        }
    }
    for (int i = 0; i < states; i++)
        for (int v = 0; v < VECTORS; v++) put(h + i * apart, v, state[i][v]);
}

/* y (B,T,D), hT (B,D,S) and carries (B,tiles,S,D), the states before each tile: each may be NULL; x, delta (B,T,D),
 * A (D,S), B, C (B,T,S), skip (D) or NULL, h0 (B,D,S) or NULL. */
KERNEL(selective_forward) {
    const plan p = plan_of(lengths, batch, T, D, S, reverse);
    real *const states = WORKSPACE(real, batch, S, p.padded), *const constants = WORKSPACE(real, S + 1, p.padded);
    if (!states || !constants) {
        pool_give(states), pool_give(constants);
        return ROT_NO_MEMORY;
    }
    load_constants(constants, A, skip, &p);
#pragma omp parallel for schedule(static) if (p.threads)
    for (int64_t b = 0; b < batch; b++) {
        load_state(states + b * S * p.padded, h0 ? h0 + b * D * S : NULL, &p);
        if (y) zero_padding(y, b, steps_of(lengths, b, T), T, D);
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (p.threads)
    for (int64_t task = 0; task < batch * p.groups; task++) {
        const int64_t b = task / p.groups, group = task % p.groups;
        tile_array step, in, u, out;
        for (int64_t tile = 0; tile < p.tiles && !stopped(stop); tile++) {
            const walk w = steps_of_tile(&p, b, tile);
            for (int64_t i = group * p.blocks / p.groups; i < (group + 1) * p.blocks / p.groups; i++) {
                const span block = span_of(p.D, i);
                real *const h = states + b * S * p.padded + block.lo, *const rates = constants + block.lo;
                for (int64_t s = 0; carries && s < S; s++)
                    copy_block(carries + ((b * p.tiles + tile) * S + s) * D + block.lo, h + s * p.padded, block.n);
                load_rows(step, delta, w, block, D);
                load_rows(in, x, w, block, D);
                inputs(u, step, in, w.steps);
                scale_rows(out, rates + S * p.padded, in, w.steps);
                for (int64_t s = 0, n; w.steps && s < S; s += n) {
                    const real *const b_s = B + w.first * S + s, *const c_s = C + w.first * S + s;
                    real *const h_s = h + s * p.padded;
                    const real *const A_s = rates + s * p.padded;
                    n = s + FORWARD <= S ? FORWARD : 1;
                    if (negative && n == FORWARD)
                        run_states(out, h_s, p.padded, step, A_s, u, b_s, c_s, w.stride * S, w.steps, FORWARD, true);
                    else if (negative)
                        run_states(out, h_s, p.padded, step, A_s, u, b_s, c_s, w.stride * S, w.steps, 1, true);
                    else if (n == FORWARD)
                        run_states(out, h_s, p.padded, step, A_s, u, b_s, c_s, w.stride * S, w.steps, FORWARD, false);
                    else
                        run_states(out, h_s, p.padded, step, A_s, u, b_s, c_s, w.stride * S, w.steps, 1, false);
                }
                if (y) store_rows(y, out, w, block, D);
            }
        }
    }
#pragma omp parallel for schedule(static) if (p.threads)
    for (int64_t b = 0; b < batch; b++)
        if (hT) store_state(hT + b * D * S, states + b * S * p.padded, &p);
    pool_give(states), pool_give(constants);
    return ROT_OK;
}

/* For each step, sums over a task's channels, still spread over a register: first all dB, then all dC. */
typedef real tile_sums[2 * TILE * LANES] __attribute__((aligned(64)));

/* A few states over a tile: forward for  e_k = exp(step_k A)  and  q_k = a_k h_{k-1}  (so h_k = q_k + u_k b_k), then
 * backward with g, which on entry is a_{k+1} g_{k+1} of the step after:
 *
 *   g_k = dy_k c_k + g,   du_k += g_k b_k,   dstep_k += p_k A,   dA += p_k step_k,   g <- a_k g_k
 *   p_k = g_k q_k, or g_k 2 e_k h_{k-1};     db_k += g_k . u_k,    dc_k += dy_k . h_k,    spread over a register each
 */
ROT_ALWAYS_INLINE void run_states_adjoint(real *restrict du, real *restrict dstep, real *restrict dA, real *restrict g,
                                          int64_t apart, tile_sums *restrict spread, tile_array *restrict q,
                                          const real *restrict dy, const real *restrict h, tile_array *restrict e,
                                          const real *restrict u, const real *restrict step, const real *restrict A,
                                          const real *restrict b, const real *restrict c, int64_t row, int64_t steps,
                                          const int states, const bool negative) {
    vec state[BACKWARD][VECTORS], sum[BACKWARD][VECTORS] = {0};
    for (int i = 0; i < states; i++)
        for (int v = 0; v < VECTORS; v++) state[i][v] = at(h + i * WIDTH, v);
    for (int64_t k = 0; k < steps; k++) {
        for (int i = 0; i < states; i++) {
            for (int v = 0; v < VECTORS; v++) {
                const vec decay = selective_decay_vec(at(step + k * WIDTH, v), at(A + i * apart, v));
                const vec moved = selective_move_vec(decay, state[i][v], negative);
                put(e[i] + k * WIDTH, v, decay);
                put(q[i] + k * WIDTH, v, moved);
                state[i][v] = selective_step_vec(moved, at(u + k * WIDTH, v), b[k * row + i]);
            }
        }
    }
    for (int i = 0; i < states; i++)
        for (int v = 0; v < VECTORS; v++) state[i][v] = at(g + i * apart, v);
    for (int64_t k = steps - 1; k >= 0; k--) {
        const int64_t at_k = k * WIDTH;
        vec du_k[VECTORS], dstep_k[VECTORS];
        for (int v = 0; v < VECTORS; v++) du_k[v] = at(du + at_k, v), dstep_k[v] = at(dstep + at_k, v);
        for (int i = 0; i < states; i++) {
            const real bk = b[k * row + i], ck = c[k * row + i];
            vec dbk = at(spread[i], (int)k), dck = at(spread[i], (int)(TILE + k));
            for (int v = 0; v < VECTORS; v++) {
                const vec moved = at(q[i] + at_k, v), decay = at(e[i] + at_k, v),
                          gk = selective_state_adjoint_vec(state[i][v], at(dy + at_k, v), ck);
                vec before = moved;
                if (negative && k)
                    before =
                        selective_step_vec(at(q[i] + at_k - WIDTH, v), at(u + at_k - WIDTH, v), b[(k - 1) * row + i]);
                else if (negative)
                    before = at(h + i * WIDTH, v);
                const vec gq = selective_exponent_adjoint_vec(gk, moved, decay, before, negative);
                dck += at(dy + at_k, v) * selective_step_vec(moved, at(u + at_k, v), bk);
                dbk += gk * at(u + at_k, v);
                du_k[v] = selective_input_adjoint_vec(du_k[v], gk, bk);
                dstep_k[v] += gq * at(A + i * apart, v);
                sum[i][v] += gq * at(step + at_k, v);
                state[i][v] = selective_past_adjoint_vec(decay, gk, negative);
            }
            put(spread[i], (int)k, dbk);
            put(spread[i], (int)(TILE + k), dck);
        }
        for (int v = 0; v < VECTORS; v++) put(du + at_k, v, du_k[v]), put(dstep + at_k, v, dstep_k[v]);
    }
    for (int i = 0; i < states; i++) {
        for (int v = 0; v < VECTORS; v++) {
            put(g + i * apart, v, state[i][v]);
            put(dA + i * apart, v, at(dA + i * apart, v) + sum[i][v]);
        }
    }
}

/* db[k row] and dc[k row] <- the totals of the registers of `spread`, which is overwritten. */
static void store_totals(real *restrict db, real *restrict dc, int64_t row, real *restrict spread, int64_t steps) {
    real sums[2 * TILE];
    register_totals(sums, spread, 2 * TILE);
    for (int64_t k = 0; k < steps; k++) {
        db[k * row] = sums[k];
        dc[k * row] = sums[TILE + k];
    }
}

/* dx, ddelta (B,T,D), dA (D,S), dB, dC (B,T,S), dskip (D) or NULL, dh0 (B,D,S), all overwritten; dy (B,T,D), dhT
 * (B,D,S) or NULL, carries as forward wrote them, the rest as in forward. With u_t = delta_t x_t, e_t = exp(delta_t A),
 * the transition a_t and its derivative a'_t by the exponent, e_t or 2 e_t:
 *
 *   g_t = dy_t C_t^T + a_{t+1} g_{t+1}    with boundary g_{T-1} = dy_{T-1} C_{T-1}^T + dhT
 *   du_t = g_t B_t,    dB_t = g_t^T u_t,    dC_t = h_t^T dy_t,    dh0 = a_0 g_0  (dhT if no steps)
 *   dx_t = delta_t du_t + skip dy_t,    dskip = sum dy_t x_t,    dA = sum delta_t a'_t g_t h_{t-1}
 *   ddelta_t = x_t du_t + sum over states of A a'_t g_t h_{t-1}
 *
 * dA and dskip are sums over tiles, then over b; dB and dC over the blocks of a group, then over groups. */
KERNEL(selective_backward) {
    const plan p = plan_of(lengths, batch, T, D, S, reverse);
    const int64_t size = S * p.padded, slab = T * S;
    const bool several = p.groups > 1;
    /* g; sums of dA and dskip; with several groups, each group's part of dB and dC */
    real *const states = WORKSPACE(real, batch, size), *const constants = WORKSPACE(real, S + 1, p.padded);
    real *const sums = WORKSPACE(real, batch, S + 1, p.padded);
    real *const parts = several ? WORKSPACE(real, 2, batch, p.groups, slab) : NULL;
    tile_sums *const spreads = (tile_sums *)WORKSPACE(real, most_threads(), S, 2 * TILE * LANES);
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!states || !constants || !sums || !spreads || (several && !parts)) goto end;
    status = ROT_OK;
    load_constants(constants, A, skip, &p);
#pragma omp parallel for schedule(static) if (p.threads)
    for (int64_t b = 0; b < batch; b++) {
        load_state(states + b * size, dhT ? dhT + b * D * S : NULL, &p);
        memset(sums + b * (size + p.padded), 0, (size_t)(size + p.padded) * sizeof(real));
        zero_row(dB + b * slab, slab);
        zero_row(dC + b * slab, slab);
        zero_padding(dx, b, steps_of(lengths, b, T), T, D);
        zero_padding(ddelta, b, steps_of(lengths, b, T), T, D);
    }
#pragma omp parallel for schedule(dynamic) if (p.threads)
    for (int64_t task = 0; task < batch * p.groups; task++) {
        const int64_t b = task / p.groups, group = task % p.groups;
        /* rows of (B*T, S), of the task's sequence */
        real *const own_dB = several ? parts + (task - b) * slab : dB;
        real *const own_dC = several ? parts + ((batch * p.groups) + task - b) * slab : dC;
        if (several) {
            zero_row(own_dB + b * slab, slab);
            zero_row(own_dC + b * slab, slab);
        }
        tile_array step, in, u, out, du, dstep, e[BACKWARD], q[BACKWARD];
        tile_sums *const spread = spreads + thread_number() * S;
        for (int64_t tile = p.tiles - 1; tile >= 0 && !stopped(stop); tile--) {
            const walk w = steps_of_tile(&p, b, tile);
            if (!w.steps) continue;
            memset(spread, 0, (size_t)S * sizeof(tile_sums));
            for (int64_t i = group * p.blocks / p.groups; i < (group + 1) * p.blocks / p.groups; i++) {
                const span block = span_of(p.D, i);
                real *const g = states + b * size + block.lo, *const rates = constants + block.lo;
                real *const sum = sums + b * (size + p.padded) + block.lo;
                load_rows(step, delta, w, block, D);
                load_rows(in, x, w, block, D);
                load_rows(out, dy, w, block, D);
                inputs(u, step, in, w.steps);
                memset(du, 0, sizeof du);
                memset(dstep, 0, sizeof dstep);
                for (int64_t s = 0, n; s < S; s += n) {
                    const real *const b_s = B + w.first * S + s, *const c_s = C + w.first * S + s;
                    const real *const A_s = rates + s * p.padded;
                    real *const g_s = g + s * p.padded, *const sum_s = sum + s * p.padded;
                    real h[BACKWARD * WIDTH] = {0};
                    n = s + BACKWARD <= S ? BACKWARD : 1;
                    for (int64_t j = 0; j < n; j++) {
                        const real *const before = carries + ((b * p.tiles + tile) * S + s + j) * D + block.lo;
                        fetch_next_block(before);
                        copy_block(h + j * WIDTH, before, block.n);
                    }
                    if (negative && n == BACKWARD)
                        run_states_adjoint(du, dstep, sum_s, g_s, p.padded, spread + s, q, out, h, e, u, step, A_s, b_s,
                                           c_s, w.stride * S, w.steps, BACKWARD, true);
                    else if (negative)
                        run_states_adjoint(du, dstep, sum_s, g_s, p.padded, spread + s, q, out, h, e, u, step, A_s, b_s,
                                           c_s, w.stride * S, w.steps, 1, true);
                    else if (n == BACKWARD)
                        run_states_adjoint(du, dstep, sum_s, g_s, p.padded, spread + s, q, out, h, e, u, step, A_s, b_s,
                                           c_s, w.stride * S, w.steps, BACKWARD, false);
                    else
                        run_states_adjoint(du, dstep, sum_s, g_s, p.padded, spread + s, q, out, h, e, u, step, A_s, b_s,
                                           c_s, w.stride * S, w.steps, 1, false);
                }
                add_product(dstep, du, in, w.steps);
                store_rows(ddelta, dstep, w, block, D);
                scale_rows(e[0], rates + size, out, w.steps);
                add_product(e[0], du, step, w.steps);
                store_rows(dx, e[0], w, block, D);
                for (int64_t k = 0; k < w.steps; k++) add_product(sum + size, out + k * WIDTH, in + k * WIDTH, 1);
            }
            for (int64_t s = 0; s < S; s++)
                store_totals(own_dB + w.first * S + s, own_dC + w.first * S + s, w.stride * S, spread[s], w.steps);
        }
    }
#pragma omp parallel for schedule(static) if (p.threads)
    for (int64_t b = 0; b < batch; b++) {
        store_state(dh0 + b * D * S, states + b * size, &p);
        for (int64_t group = 0; several && group < p.groups; group++) {
            add_row(dB + b * slab, parts + (b * p.groups + group) * slab, slab);
            add_row(dC + b * slab, parts + ((batch + b) * p.groups + group) * slab, slab);
        }
    }
    zero_row(constants, size + p.padded);
    for (int64_t b = 0; b < batch; b++) add_row(constants, sums + b * (size + p.padded), size + p.padded);
    store_state(dA, constants, &p);
    if (dskip) memcpy(dskip, constants + size, (size_t)D * sizeof(real));
end:
    pool_give(states), pool_give(constants), pool_give(sums), pool_give(parts), pool_give(spreads);
    return status;
}
