/* A separate bank of diagonal recurrences for every channel, and its adjoint:
 *
 *   h_{d,n,t} = a_{d,n} h_{d,n,t-1} + u_{t,d}     y_{t,d} = Re sum_n c_{d,n} h_{d,n,t} + skip_d u_{t,d}
 *
 * The D N states of a step are never written to memory. SIMD goes across channels; a few n at a time stay in registers
 * over a tile of steps, with the tile's input and output in cache. Forward saves the states before each tile; backward
 * recomputes the states within a tile. Threads work on (sequence, block of channels), in backward on (slot of
 * sequences, block). The division of work depends on the shapes alone and partial sums are added in order, so results
 * have the same bits for any number of threads.
 *
 * Complex numbers are stored as (re, im) pairs. `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor
 * counted, and are written as zero. `reverse`: time runs from lengths[b]-1 down to 0, by indexing.
 */
#include "bank.h"
#include "kernels.h"
#include "lanes.h"
#include "stop.h"

enum {
    LONGEST_TILE = 64, /* most steps of a tile */
    GROUP = 4,         /* states of a channel in registers in forward */
    GROUP_BACK = 2,    /* and in backward */
};

/* Rows of a block: the coefficients of a state. */
enum { A_RE, A_IM, C_RE, C_IM, COEFFICIENTS };

/* Coefficients of `count` states, in registers; `rows` is the first state's. */
typedef struct {
    cplx_vec a[GROUP], c[GROUP];
} bank;

ROT_ALWAYS_INLINE bank bank_of(const real *rows, const int count) {
    bank k;
    for (int i = 0; i < count; i++, rows += COEFFICIENTS * CHANNELS) {
        k.a[i] = load_pair(rows + A_RE * CHANNELS);
        k.c[i] = load_pair(rows + C_RE * CHANNELS);
    }
    return k;
}

/* y += Re sum_i c_i h_i over the steps of u; advances states (count, PARTS, CHANNELS). */
ROT_ALWAYS_INLINE void run_states(vec *restrict y, real *restrict states, const real *restrict coefficients,
                                  const vec *restrict u, int64_t steps, const int count) {
    const bank k = bank_of(coefficients, count);
    cplx_vec h[GROUP];
    for (int i = 0; i < count; i++) h[i] = load_pair(states + i * PARTS * CHANNELS);
    for (int64_t t = 0; t < steps; t++) {
        vec sum = y[t];
        for (int i = 0; i < count; i++) {
            h[i] = bank_step_vec(k.a[i], h[i], u[t]);
            sum += bank_output_vec(k.c[i], h[i]);
        }
        y[t] = sum;
    }
    for (int i = 0; i < count; i++) store_pair(states + i * PARTS * CHANNELS, h[i]);
}

static void run(vec *y, real *states, const real *coefficients, const vec *u, int64_t steps, int64_t count) {
    switch (count) { /* constant counts keep the states in registers */
    case 4: run_states(y, states, coefficients, u, steps, 4); break;
    case 3: run_states(y, states, coefficients, u, steps, 3); break;
    case 2: run_states(y, states, coefficients, u, steps, 2); break;
    default: run_states(y, states, coefficients, u, steps, 1); break;
    }
}

/* y (B,T,D), hT (B,D,N), carries (B,tiles,N,2,D): the states before each tile of `tile` steps; a, c (D,N), skip (D),
 * u (B,T,D), h0 (B,D,N) or NULL. */
KERNEL(bank_forward) {
    if (tile < 1 || tile > LONGEST_TILE) return ROT_OUT_OF_RANGE;
    const int64_t blocks = pieces_of(D, CHANNELS), tiles = pieces_of(T, tile), size = N * PARTS * CHANNELS;
    real *const packed = pack_coefficients((const real *[]){a, c}, 2, skip, D, N, N);
    real *const all_states = WORKSPACE(real, B, blocks, size);
    if (!packed || !all_states) {
        pool_give(packed), pool_give(all_states);
        return ROT_NO_MEMORY;
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (B * blocks > 1 && B * T * D * N > SERIAL)
    for (int64_t task = 0; task < B * blocks; task++) {
        const int64_t b = task / blocks, block = task % blocks, lo = block * CHANNELS, n = least(D - lo, CHANNELS);
        const int64_t all = steps_of(lengths, b, T);
        real *const states = all_states + task * size;
        const real *const rows = packed + block * N * COEFFICIENTS * CHANNELS;
        const real *const skips = packed + blocks * N * COEFFICIENTS * CHANNELS + lo;
        to_rows(states, h0 ? h0 + b * D * N * PARTS : NULL, lo, n, N);
        for (int64_t i = 0; i * tile < all && !stopped(stop); i++) {
            const walk w = walk_of(b, i, tile, all, T, reverse);
            save_states(carries + carry_of(b, i, tiles, N, D, lo), states, N, D, n);
            for (int64_t v = 0; v < n; v += LANES) {
                const int64_t lanes = least(n - v, LANES);
                vec in[LONGEST_TILE], out[LONGEST_TILE];
                gather(in, u + lo + v, w, D, lanes);
                for (int64_t t = 0; t < w.steps; t++) out[t] = load(skips + v) * in[t];
                for (int64_t m = 0; m < N; m += GROUP)
                    run(out, states + m * PARTS * CHANNELS + v, rows + m * COEFFICIENTS * CHANNELS + v, in, w.steps,
                        least(N - m, GROUP));
                scatter(y + lo + v, out, w, D, lanes);
            }
        }
        zero_rows(y + (b * T + all) * D + lo, T - all, n, D);
        from_rows(hT + b * D * N * PARTS, states, lo, n, N);
    }
    pool_give(packed), pool_give(all_states);
    return ROT_OK;
}

/* The adjoint over a tile, last step first. q is the gradient that reaches h from later steps:
 * g_t = conj(c) dy_t + q, and q <- conj(a) g_t for the step before. du += Re sum g; sums (count, COEFFICIENTS, LANES)
 * of da and dc are overwritten. */
ROT_ALWAYS_INLINE void adjoint_states(vec *restrict du, real *restrict q_rows, vec *restrict sums,
                                      const real *restrict carries, int64_t carry_row, int64_t lanes,
                                      const real *restrict coefficients, const vec *restrict u, const vec *restrict dy,
                                      int64_t steps, const int count) {
    const bank k = bank_of(coefficients, count);
    cplx_vec past[LONGEST_TILE + 1][GROUP_BACK]; /* the state before each step, and the last state */
    for (int i = 0; i < count; i++) past[0][i] = load_carry(carries + i * PARTS * carry_row, carry_row, lanes);
    cplx_vec h[GROUP_BACK], q[GROUP_BACK], da[GROUP_BACK] = {0}, dc[GROUP_BACK] = {0};
    for (int i = 0; i < count; i++) h[i] = past[0][i], q[i] = load_pair(q_rows + i * PARTS * CHANNELS);
    for (int64_t t = 0; t < steps; t++)
        for (int i = 0; i < count; i++) past[t + 1][i] = h[i] = bank_step_vec(k.a[i], h[i], u[t]);
    for (int64_t t = steps - 1; t >= 0; t--) {
        vec sum = du[t];
        for (int i = 0; i < count; i++) {
            const cplx_vec g = bank_state_adjoint_vec(k.c[i], q[i], dy[t]);
            sum += g.re;
            dc[i] = bank_output_adjoint_vec(dy[t], past[t + 1][i], dc[i]);
            da[i] = bank_transition_adjoint_vec(g, past[t][i], da[i]);
            q[i] = bank_past_adjoint_vec(k.a[i], g);
        }
        du[t] = sum;
    }
    for (int i = 0; i < count; i++) {
        store_pair(q_rows + i * PARTS * CHANNELS, q[i]);
        vec *const of = sums + i * COEFFICIENTS;
        of[A_RE] = da[i].re, of[A_IM] = da[i].im, of[C_RE] = dc[i].re, of[C_IM] = dc[i].im;
    }
}

static void adjoint(vec *du, real *q_rows, vec *sums, const real *carries, int64_t carry_row, int64_t lanes,
                    const real *coefficients, const vec *u, const vec *dy, int64_t steps, int64_t count) {
    switch (count) {
    case 2: adjoint_states(du, q_rows, sums, carries, carry_row, lanes, coefficients, u, dy, steps, 2); break;
    default: adjoint_states(du, q_rows, sums, carries, carry_row, lanes, coefficients, u, dy, steps, 1); break;
    }
}

/* du (B,T,D), da, dc (D,N), dskip (D), dh0 (B,D,N), all overwritten; dy (B,T,D), dhT (B,D,N) or NULL, carries
 * as forward wrote them, the rest as in forward. With q_T = dhT:
 *
 *   g_t = conj(c) dy_t + q_{t+1}     q_t = conj(a) g_t     dh0 = q_0
 *   du_t = Re sum_n g_t + skip dy_t,   da = sum g_t conj(h_{t-1}),   dc = sum dy_t conj(h_t),   dskip = sum dy_t u_t
 *
 * A tile's sums are added in double to its slot's sums, over sequences b = slot, slot + SLOTS, ...; then slots in
 * order.
 */
KERNEL(bank_backward) {
    if (tile < 1 || tile > LONGEST_TILE) return ROT_OUT_OF_RANGE;
    const int64_t blocks = pieces_of(D, CHANNELS), tiles = pieces_of(T, tile), size = N * PARTS * CHANNELS;
    const int64_t slots = least(B, SLOTS), sums_size = sums_of(2, N);
    real *const packed = pack_coefficients((const real *[]){a, c}, 2, skip, D, N, N);
    real *const all_q = WORKSPACE(real, slots, blocks, size);
    double *const all_sums = WORKSPACE(double, slots, blocks, sums_size);
    if (!packed || !all_q || !all_sums) {
        pool_give(packed), pool_give(all_q), pool_give(all_sums);
        return ROT_NO_MEMORY;
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (slots * blocks > 1 && B * T * D * N > SERIAL)
    for (int64_t task = 0; task < slots * blocks; task++) {
        const int64_t slot = task / blocks, block = task % blocks, lo = block * CHANNELS, n = least(D - lo, CHANNELS);
        real *const q = all_q + task * size;
        double *const sums = all_sums + task * sums_size;
        const real *const rows = packed + block * N * COEFFICIENTS * CHANNELS;
        const real *const skips = packed + blocks * N * COEFFICIENTS * CHANNELS + lo;
        memset(sums, 0, (size_t)sums_size * sizeof(double));
        for (int64_t b = slot; b < B; b += SLOTS) {
            const int64_t all = steps_of(lengths, b, T);
            to_rows(q, dhT ? dhT + b * D * N * PARTS : NULL, lo, n, N);
            for (int64_t i = pieces_of(all, tile) - 1; i >= 0 && !stopped(stop); i--) {
                const walk w = walk_of(b, i, tile, all, T, reverse);
                const real *const carry = carries + carry_of(b, i, tiles, N, D, lo);
                for (int64_t v = 0; v < n; v += LANES) {
                    const int64_t lanes = least(n - v, LANES);
                    vec in[LONGEST_TILE], dout[LONGEST_TILE], din[LONGEST_TILE], part[GROUP_BACK * COEFFICIENTS],
                        dot = {0};
                    gather(in, u + lo + v, w, D, lanes);
                    gather(dout, dy + lo + v, w, D, lanes);
                    for (int64_t t = 0; t < w.steps; t++) {
                        din[t] = load(skips + v) * dout[t];
                        dot += dout[t] * in[t];
                    }
                    add_wide(sums + N * COEFFICIENTS * CHANNELS + v, &dot);
                    for (int64_t m = 0; m < N; m += GROUP_BACK) {
                        const int64_t count = least(N - m, GROUP_BACK);
                        adjoint(din, q + m * PARTS * CHANNELS + v, part, carry + m * PARTS * D + v, D, lanes,
                                rows + m * COEFFICIENTS * CHANNELS + v, in, dout, w.steps, count);
                        for (int64_t k = 0; k < count * COEFFICIENTS; k++)
                            add_wide(sums + (m * COEFFICIENTS + k) * CHANNELS + v, part + k);
                    }
                    scatter(du + lo + v, din, w, D, lanes);
                }
            }
            zero_rows(du + (b * T + all) * D + lo, T - all, n, D);
            from_rows(dh0 + b * D * N * PARTS, q, lo, n, N);
        }
    }
    add_slots((real *[]){da, dc}, 2, dskip, all_sums, slots, D, N, N);
    pool_give(packed), pool_give(all_q), pool_give(all_sums);
    return ROT_OK;
}
