/* A separate bank of recurrences for every channel whose transition is diagonal plus rank one, like S4's after its
 * discretisation, and its adjoint:
 *
 *   s_{d,t} = Re sum_n q_{d,n} h_{d,n,t-1}
 *   h_{d,n,t} = a_{d,n} h_{d,n,t-1} + p_{d,n} s_{d,t} + gain_{d,n} u_{t,d}
 *   y_{t,d} = Re sum_n c_{d,n} h_{d,n,t} + skip_d u_{t,d}
 *
 * All states of a channel need s, so a step updates all of them, in level 1 cache, before the next step begins. This
 * takes O(N) a step, like a diagonal transition. The rest is as in bank.c: SIMD goes across channels; forward saves the
 * states before each tile of DPLR_TILE steps, and backward recomputes the states within a tile. The division of work
 * depends on the shapes alone and partial sums are added in order, so results have the same bits for any number of
 * threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero. `reverse`:
 * time runs from lengths[b]-1 down to 0, by indexing.
 */
#include "bank.h"
#include "kernels.h"
#include "lanes.h"
#include "stop.h"

enum {
    TILE = DPLR_TILE,
    GROUP = 4, /* partial sums over states: a single sum would wait for each addition */
};

/* The coefficients of a state; each has a row for each of its parts. */
enum { A, P, Q, GAIN, C, COEFFICIENTS };
enum { ROW = COEFFICIENTS * PARTS * CHANNELS, STATE = PARTS * CHANNELS };

/* Sizes of a call. `states`: N rounded up to whole groups; states beyond N are zero. */
typedef struct {
    int64_t B, T, D, N, states, blocks, tiles;
    const int64_t *lengths;
    bool reverse;
} plan;

static plan plan_of(const int64_t *lengths, int64_t B, int64_t T, int64_t D, int64_t N, int64_t reverse) {
    const plan p = {B,       T,      D, N, pieces_of(N, GROUP) * GROUP, pieces_of(D, CHANNELS), pieces_of(T, TILE),
                    lengths, reverse};
    return p;
}

ROT_ALWAYS_INLINE cplx_vec coefficient(const real *rows, int64_t n, int which) {
    return load_pair(rows + n * ROW + which * STATE);
}
ROT_ALWAYS_INLINE vec sum_of_group(const vec *part) { return (part[0] + part[1]) + (part[2] + part[3]); }

/* Re sum_n q_n h_n */
ROT_ALWAYS_INLINE vec feedback(const real *states, const real *rows, int64_t count) {
    vec part[GROUP] = {{0}};
    for (int64_t n = 0; n < count; n += GROUP)
        for (int i = 0; i < GROUP; i++)
            part[i] = dplr_output_vec(part[i], coefficient(rows, n + i, Q), load_pair(states + (n + i) * STATE));
    return sum_of_group(part);
}

/* Runs the states (count, PARTS, CHANNELS) over the steps of u; s: the feedback of each step. With y, y += Re sum_n c_n
 * h_n; with `past` (count, TILE + 1), stores the state before each step, and the last state. */
ROT_ALWAYS_INLINE void run(vec *restrict y, cplx_vec *restrict past, vec *restrict s, real *restrict states,
                           const real *restrict rows, const vec *restrict u, int64_t steps, int64_t count) {
    vec fed = feedback(states, rows, count);
    for (int64_t n = 0; past && n < count; n++) past[n * (TILE + 1)] = load_pair(states + n * STATE);
    for (int64_t t = 0; t < steps; t++) {
        vec out[GROUP] = {{0}}, next[GROUP] = {{0}};
        for (int64_t n = 0; n < count; n += GROUP) {
            for (int i = 0; i < GROUP; i++) {
                real *const state = states + (n + i) * STATE;
                const cplx_vec h = dplr_step_vec(coefficient(rows, n + i, A), coefficient(rows, n + i, P),
                                                 coefficient(rows, n + i, GAIN), load_pair(state), fed, u[t]);
                store_pair(state, h);
                if (y) out[i] = dplr_output_vec(out[i], coefficient(rows, n + i, C), h);
                if (past) past[(n + i) * (TILE + 1) + t + 1] = h;
                next[i] = dplr_output_vec(next[i], coefficient(rows, n + i, Q), h);
            }
        }
        s[t] = fed;
        fed = sum_of_group(next);
        if (y) y[t] += sum_of_group(out);
    }
}

/* y (B,T,D), hT (B,D,N), carries (B,tiles,N,2,D): the states before each tile; a, p, q, gain, c (D,N), skip (D),
 * u (B,T,D), h0 (B,D,N) or NULL. */
KERNEL(dplr_bank_forward) {
    const plan z = plan_of(lengths, B, T, D, N, reverse);
    const int64_t size = z.states * STATE;
    real *const packed = pack_coefficients((const real *[]){a, p, q, gain, c}, COEFFICIENTS, skip, D, N, z.states);
    real *const all_states = WORKSPACE(real, B, z.blocks, size);
    if (!packed || !all_states) {
        pool_give(packed), pool_give(all_states);
        return ROT_NO_MEMORY;
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (B * z.blocks > 1 && B * T * D * N > SERIAL)
    for (int64_t task = 0; task < B * z.blocks; task++) {
        const int64_t b = task / z.blocks, block = task % z.blocks, lo = block * CHANNELS, n = least(D - lo, CHANNELS);
        const int64_t all = steps_of(lengths, b, T);
        real *const states = all_states + task * size;
        const real *const rows = packed + block * z.states * ROW, *const skips =
                                                                      packed + z.blocks * z.states * ROW + lo;
        to_rows(states, h0 ? h0 + b * D * N * PARTS : NULL, lo, n, N);
        zero_row(states + N * STATE, size - N * STATE);
        for (int64_t i = 0; i * TILE < all && !stopped(stop); i++) {
            const walk w = walk_of(b, i, TILE, all, T, reverse);
            save_states(carries + carry_of(b, i, z.tiles, N, D, lo), states, N, D, n);
            for (int64_t v = 0; v < n; v += LANES) {
                const int64_t lanes = least(n - v, LANES);
                vec in[TILE], out[TILE], s[TILE];
                gather(in, u + lo + v, w, D, lanes);
                for (int64_t t = 0; t < w.steps; t++) out[t] = load(skips + v) * in[t];
                run(out, NULL, s, states + v, rows + v, in, w.steps, z.states);
                scatter(y + lo + v, out, w, D, lanes);
            }
        }
        zero_rows(y + (b * T + all) * D + lo, T - all, n, D);
        from_rows(hT + b * D * N * PARTS, states, lo, n, N);
    }
    pool_give(packed), pool_give(all_states);
    return ROT_OK;
}

/* A thread's memory for LANES channels over a tile: states (states, TILE + 1) as stored by `run`, and the gradients
 * that reach them, with step t's at t. */
typedef struct {
    cplx_vec *past, *g;
    real *states; /* (states, PARTS, CHANNELS) */
} room;

static int64_t room_size(const plan *z) { return z->states * (2 * (TILE + 1) * PARTS * LANES + STATE); }

static room room_at(real *at, const plan *z) {
    const int64_t size = z->states * (TILE + 1) * PARTS * LANES;
    const room k = {(cplx_vec *)at, (cplx_vec *)(at + size), at + 2 * size};
    return k;
}

/* The gradients g of the tile's steps, last step first. r_rows: the gradient that reaches the state from later steps;
 * on return, from this tile's steps too. du += Re sum_n conj(gain_n) g_n; ds is overwritten. */
ROT_ALWAYS_INLINE void adjoint(vec *restrict du, vec *restrict ds, cplx_vec *restrict g, real *restrict r_rows,
                               const real *restrict rows, const vec *restrict dy, int64_t steps, int64_t count) {
    for (int64_t t = steps - 1; t >= 0; t--) {
        vec in[GROUP] = {{0}}, fed[GROUP] = {{0}};
        for (int64_t n = 0; n < count; n += GROUP) {
            for (int i = 0; i < GROUP; i++) {
                const cplx_vec r = load_pair(r_rows + (n + i) * STATE);
                const cplx_vec now = bank_state_adjoint_vec(coefficient(rows, n + i, C), r, dy[t]);
                g[(n + i) * (TILE + 1) + t] = now;
                in[i] = dplr_input_adjoint_vec(in[i], coefficient(rows, n + i, GAIN), now);
                fed[i] = dplr_input_adjoint_vec(fed[i], coefficient(rows, n + i, P), now);
            }
        }
        du[t] += sum_of_group(in);
        ds[t] = sum_of_group(fed);
        for (int64_t n = 0; n < count; n++) {
            const cplx_vec direct = bank_past_adjoint_vec(coefficient(rows, n, A), g[n * (TILE + 1) + t]);
            store_pair(r_rows + n * STATE, bank_state_adjoint_vec(coefficient(rows, n, Q), direct, ds[t]));
        }
    }
}

/* A tile's terms of the gradients of a state's coefficients, added to sums (COEFFICIENTS, PARTS, CHANNELS). */
ROT_ALWAYS_INLINE void add_gradients(double *restrict sums, const cplx_vec *restrict past, const cplx_vec *restrict g,
                                     const vec *restrict u, const vec *restrict dy, const vec *restrict s,
                                     const vec *restrict ds, int64_t steps) {
    cplx_vec d[COEFFICIENTS] = {{{0}, {0}}};
    for (int64_t t = 0; t < steps; t++) {
        d[A] = bank_transition_adjoint_vec(g[t], past[t], d[A]);
        d[P] = dplr_product_vec(d[P], g[t], s[t]);
        d[Q] = bank_output_adjoint_vec(ds[t], past[t], d[Q]);
        d[GAIN] = dplr_product_vec(d[GAIN], g[t], u[t]);
        d[C] = bank_output_adjoint_vec(dy[t], past[t + 1], d[C]);
    }
    for (int k = 0; k < COEFFICIENTS; k++) {
        add_wide(sums + k * STATE, &d[k].re);
        add_wide(sums + k * STATE + CHANNELS, &d[k].im);
    }
}

/* du (B,T,D), da, dp, dq, dgain, dc (D,N), dskip (D), dh0 (B,D,N), all overwritten; dy (B,T,D), dhT (B,D,N) or NULL,
 * carries as forward wrote them, the rest as in forward. With r_T = dhT:
 *
 *   g_t = conj(c) dy_t + r_{t+1}      ds_t = Re sum_n conj(p) g_t      r_t = conj(a) g_t + conj(q) ds_t      dh0 = r_0
 *   du_t = Re sum_n conj(gain) g_t + skip dy_t,   dskip = sum dy_t u_t,   dc = sum dy_t conj(h_t)
 *   da = sum g_t conj(h_{t-1}),   dp = sum g_t s_t,   dq = sum ds_t conj(h_{t-1}),   dgain = sum g_t u_t
 *
 * A tile's sums are added in double to its slot's sums, over sequences b = slot, slot + SLOTS, ...; then slots in
 * order.
 */
KERNEL(dplr_bank_backward) {
    const plan z = plan_of(lengths, B, T, D, N, reverse);
    const int64_t size = z.states * STATE, slots = least(B, SLOTS), sums_size = sums_of(COEFFICIENTS, z.states);
    real *const packed = pack_coefficients((const real *[]){a, p, q, gain, c}, COEFFICIENTS, skip, D, N, z.states);
    real *const all_r = WORKSPACE(real, slots, z.blocks, size), *const rooms =
                                                                    WORKSPACE(real, most_threads(), room_size(&z));
    double *const all_sums = WORKSPACE(double, slots, z.blocks, sums_size);
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!packed || !all_r || !rooms || !all_sums) goto end;
    status = ROT_OK;
#pragma omp parallel for schedule(dynamic) if (slots * z.blocks > 1 && B * T * D * N > SERIAL)
    for (int64_t task = 0; task < slots * z.blocks; task++) {
        const int64_t slot = task / z.blocks, block = task % z.blocks, lo = block * CHANNELS;
        const int64_t n = least(D - lo, CHANNELS);
        const room k = room_at(rooms + thread_number() * room_size(&z), &z);
        real *const r = all_r + task * size;
        double *const sums = all_sums + task * sums_size;
        const real *const rows = packed + block * z.states * ROW, *const skips =
                                                                      packed + z.blocks * z.states * ROW + lo;
        memset(sums, 0, (size_t)sums_size * sizeof(double));
        zero_row(k.states, size);
        for (int64_t b = slot; b < B; b += SLOTS) {
            const int64_t all = steps_of(lengths, b, T);
            to_rows(r, dhT ? dhT + b * D * N * PARTS : NULL, lo, n, N);
            zero_row(r + N * STATE, size - N * STATE);
            for (int64_t i = pieces_of(all, TILE) - 1; i >= 0 && !stopped(stop); i--) {
                const walk w = walk_of(b, i, TILE, all, T, reverse);
                const real *const carry = carries + carry_of(b, i, z.tiles, N, D, lo);
                for (int64_t v = 0; v < n; v += LANES) {
                    const int64_t lanes = least(n - v, LANES);
                    vec in[TILE], dout[TILE], din[TILE], s[TILE], ds[TILE], dot = {0};
                    gather(in, u + lo + v, w, D, lanes);
                    gather(dout, dy + lo + v, w, D, lanes);
                    for (int64_t t = 0; t < w.steps; t++) {
                        din[t] = load(skips + v) * dout[t];
                        dot += dout[t] * in[t];
                    }
                    add_wide(sums + z.states * ROW + v, &dot);
                    for (int64_t m = 0; m < N; m++)
                        store_pair(k.states + m * STATE, load_carry(carry + m * PARTS * D + v, D, lanes));
                    run(NULL, k.past, s, k.states, rows + v, in, w.steps, z.states);
                    adjoint(din, ds, k.g, r + v, rows + v, dout, w.steps, z.states);
                    for (int64_t m = 0; m < N; m++)
                        add_gradients(sums + m * ROW + v, k.past + m * (TILE + 1), k.g + m * (TILE + 1), in, dout, s,
                                      ds, w.steps);
                    scatter(du + lo + v, din, w, D, lanes);
                }
            }
            zero_rows(du + (b * T + all) * D + lo, T - all, n, D);
            from_rows(dh0 + b * D * N * PARTS, r, lo, n, N);
        }
    }
    add_slots((real *[]){da, dp, dq, dgain, dc}, COEFFICIENTS, dskip, all_sums, slots, D, N, z.states);
end:
    pool_give(packed), pool_give(all_r), pool_give(rooms), pool_give(all_sums);
    return status;
}
