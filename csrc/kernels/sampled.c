/* Diagonal systems in continuous time, x' = lambda x + u, at uneven times, and their adjoints: each step has a size
 * sigma_t = step dt_t, with an interval dt_t of a sequence and a step size of each lane, or of each channel of a bank.
 *
 * The scan:
 *
 *   h_t = a(lambda, sigma_t) h_{t-1} + gain(lambda, sigma_t) x_t
 *   g_t = dh_t + conj(a_{t+1}) g_{t+1},  g_{T-1} = dh_{T-1} + dhT;   dh0 = conj(a_0) g_0
 *   dx_t = conj(gain_t) g_t;   da_t = g_t conj(h_{t-1}),  dgain_t = g_t conj(x_t),  which give dlambda and dsigma_t
 *
 * (sampled.h has a, gain and their adjoint). The bank has N states for each channel, with one real input u_t of a
 * channel for x_t, and outputs y_t = Re sum_n c_n h_{n,t} + skip u_t. Its states are not written to memory: forward
 * saves the states before each tile of SAMPLED_TILE steps, and backward recomputes the states within a tile.
 *
 * Complex numbers are (re, im) pairs. A task is a strip of lanes or of channels, of a sequence or, in the bank's
 * backward, of a slot of sequences. Loops over a strip are vectorised. Sums of tiles, of sequences and of strips are
 * added in double and in order, so results have the same bits for any number of threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 */
#include "sampled.h"
#include "bank.h"
#include "kernels.h"
#include "lanes.h"
#include "stop.h"

enum { STRIP = CHANNELS, FEW = 4096, SUMS = 3 }; /* SUMS: two for lambda, one for the step size */

/* Lanes of a strip. */
typedef struct {
    real re[STRIP], im[STRIP], inverse_re[STRIP], inverse_im[STRIP], still[STRIP], step[STRIP], decay[STRIP],
        turns[STRIP];
} strip;

ROT_ALWAYS_INLINE sampled_lane lane_at(const strip *k, int64_t j) {
    const sampled_lane one = {
        {k->re[j], k->im[j]}, {k->inverse_re[j], k->inverse_im[j]}, k->still[j], k->step[j], k->decay[j], k->turns[j]};
    return one;
}

static cplx pair_at(const real *x, int64_t j) {
    const cplx z = {x[2 * j], x[2 * j + 1]};
    return z;
}
static void set_pair(real *x, int64_t j, cplx z) { x[2 * j] = z.re, x[2 * j + 1] = z.im; }

/* n lanes, `stride` apart in lam, and zeros after them. */
static void load_strip(strip *k, const real *lam, int64_t stride, const real *step, int64_t n) {
    for (int64_t j = 0; j < STRIP; j++) {
        const cplx none = {0, 0};
        const sampled_lane one = sampled_lane_of(j < n ? pair_at(lam, j * stride) : none, j < n ? step[j] : (real)0);
        k->re[j] = one.lam.re, k->im[j] = one.lam.im, k->inverse_re[j] = one.inverse.re,
        k->inverse_im[j] = one.inverse.im;
        k->still[j] = one.still, k->step[j] = one.step, k->decay[j] = one.decay, k->turns[j] = one.turns;
    }
}

ROT_ALWAYS_INLINE void step_strip(const int method, real *restrict state, real *restrict out, const strip *restrict k,
                                  real dt, const real *restrict x, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const sampled_terms t = sampled_terms_of(method, lane_at(k, j), dt);
        const cplx now = plane_step(t.a, pair_at(state, j), cplx_product(t.gain, pair_at(x, j)));
        set_pair(state, j, now);
        set_pair(out, j, now);
    }
}

static void step_by(int64_t method, real *state, real *out, const strip *k, real dt, const real *x, int64_t n) {
    if (method == SAMPLING_ZOH)
        step_strip(SAMPLING_ZOH, state, out, k, dt, x, n);
    else if (method == SAMPLING_BILINEAR)
        step_strip(SAMPLING_BILINEAR, state, out, k, dt, x, n);
    else
        step_strip(SAMPLING_FIRST_ORDER, state, out, k, dt, x, n);
}

/* h (B,T,N,2), hT (B,N,2); lam (N,2), step (N), dt (B,T), x (B,T,N,2), h0 (B,N,2) or NULL for zeros. */
KERNEL(sampled_scan_forward) {
    const int64_t strips = pieces_of(N, STRIP);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (B * T * N > FEW)
    for (int64_t task = 0; task < B * strips; task++) {
        if (stopped(stop)) continue;
        const int64_t b = task / strips, lo = task % strips * STRIP, n = least(N - lo, STRIP);
        const int64_t all = steps_of(lengths, b, T);
        strip k;
        real state[2 * STRIP];
        load_strip(&k, lam + 2 * lo, 1, step + lo, n);
        copy_or_zero_row(state, h0 ? h0 + 2 * (b * N + lo) : NULL, 2 * n);
        for (int64_t t = 0; t < T; t++) {
            const int64_t at = 2 * ((b * T + t) * N + lo);
            if (t < all)
                step_by(method, state, h + at, &k, dt[b * T + t], x + at, n);
            else
                copy_or_zero_row(h + at, NULL, 2 * n);
        }
        copy_or_zero_row(hT + 2 * (b * N + lo), state, 2 * n);
    }
    return ROT_OK;
}

/* g: the gradient that reaches h_t from later steps, replaced by the gradient that reaches h_{t-1}; sums (SUMS, N).
 * Returns the gradient of dt_t. */
ROT_ALWAYS_INLINE double step_back(const int method, real *restrict g, double *restrict sums, real *restrict dx,
                                   const real *restrict dh, const strip *restrict k, real dt, const real *restrict x,
                                   const real *restrict before, int64_t N, int64_t n) {
    double of_step[STRIP], total = 0;
    for (int64_t j = 0; j < n; j++) {
        const sampled_terms t = sampled_terms_of(method, lane_at(k, j), dt);
        const cplx now = cplx_add(pair_at(dh, j), pair_at(g, j));
        const cplx da = cplx_conj_product(pair_at(before, j), now), dgain = cplx_conj_product(pair_at(x, j), now);
        const sampled_adjoints d = sampled_adjoint(method, lane_at(k, j), dt, t, da, dgain);
        set_pair(dx, j, cplx_conj_product(t.gain, now));
        set_pair(g, j, cplx_conj_product(t.a, now));
        sums[j] += (double)d.dlam.re;
        sums[N + j] += (double)d.dlam.im;
        sums[2 * N + j] += (double)d.dsigma * (double)dt;
        of_step[j] = (double)d.dsigma * (double)k->step[j];
    }
    for (int64_t j = 0; j < n; j++) total += of_step[j];
    return total;
}

static double back_by(int64_t method, real *g, double *sums, real *dx, const real *dh, const strip *k, real dt,
                      const real *x, const real *before, int64_t N, int64_t n) {
    if (method == SAMPLING_ZOH) return step_back(SAMPLING_ZOH, g, sums, dx, dh, k, dt, x, before, N, n);
    if (method == SAMPLING_BILINEAR) return step_back(SAMPLING_BILINEAR, g, sums, dx, dh, k, dt, x, before, N, n);
    return step_back(SAMPLING_FIRST_ORDER, g, sums, dx, dh, k, dt, x, before, N, n);
}

/* dlam (N,2), dstep (N), ddt (B,T), dx (B,T,N,2), dh0 (B,N,2), all overwritten; dh (B,T,N,2), dhT (B,N,2) or NULL, and
 * forward's inputs and outputs. */
KERNEL(sampled_scan_backward) {
    const int64_t strips = pieces_of(N, STRIP);
    double *const sums = WORKSPACE(double, B, SUMS, N), *const of_dt = WORKSPACE(double, B, strips, T);
    if (!sums || !of_dt) {
        pool_give(sums);
        pool_give(of_dt);
        return ROT_NO_MEMORY;
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (B * T * N > FEW)
    for (int64_t task = 0; task < B * strips; task++) {
        if (stopped(stop)) continue;
        const int64_t b = task / strips, lo = task % strips * STRIP, n = least(N - lo, STRIP);
        const int64_t all = steps_of(lengths, b, T);
        double *const sum = sums + b * SUMS * N + lo;
        strip k;
        real g[2 * STRIP], first[2 * STRIP];
        load_strip(&k, lam + 2 * lo, 1, step + lo, n);
        copy_or_zero_row(g, dhT ? dhT + 2 * (b * N + lo) : NULL, 2 * n);
        copy_or_zero_row(first, h0 ? h0 + 2 * (b * N + lo) : NULL, 2 * n);
        for (int i = 0; i < SUMS; i++) memset(sum + i * N, 0, (size_t)n * sizeof *sum);
        for (int64_t t = T - 1; t >= 0; t--) {
            const int64_t at = 2 * ((b * T + t) * N + lo);
            double *const of_step = of_dt + task * T + t;
            *of_step = 0;
            if (t < all)
                *of_step = back_by(method, g, sum, dx + at, dh + at, &k, dt[b * T + t], x + at,
                                   t ? h + at - 2 * N : first, N, n);
            else
                copy_or_zero_row(dx + at, NULL, 2 * n);
        }
        copy_or_zero_row(dh0 + 2 * (b * N + lo), g, 2 * n);
    }
    for (int64_t i = 0; i < N; i++) {
        double total[SUMS] = {0, 0, 0};
        for (int64_t b = 0; b < B; b++)
            for (int s = 0; s < SUMS; s++) total[s] += sums[(b * SUMS + s) * N + i];
        dlam[2 * i] = (real)total[0], dlam[2 * i + 1] = (real)total[1], dstep[i] = (real)total[2];
    }
    for (int64_t i = 0; i < B * T; i++) {
        double total = 0;
        for (int64_t s = 0; s < strips; s++) total += of_dt[(i / T * strips + s) * T + i % T];
        ddt[i] = (real)total;
    }
    pool_give(sums);
    pool_give(of_dt);
    return ROT_OK;
}

/* ---- the bank ---- */

/* Numbers of the channels of a strip, for the steps of a tile. */
typedef real tile_rows[SAMPLED_TILE][STRIP];

static void load_rows(tile_rows to, const real *restrict x, int64_t steps, int64_t D, int64_t n) {
    for (int64_t t = 0; t < steps; t++, x += D) {
        memcpy(to[t], x, (size_t)n * sizeof *x);
        for (int64_t j = n; j < STRIP; j++) to[t][j] = 0;
    }
}

static void store_rows(real *restrict x, tile_rows from, int64_t steps, int64_t D, int64_t n) {
    for (int64_t t = 0; t < steps; t++, x += D) memcpy(x, from[t], (size_t)n * sizeof *x);
}

/* A number of each channel of a strip, at j: a state, or a coefficient (PARTS, STRIP). */
ROT_ALWAYS_INLINE cplx of_channel(const real *rows, int64_t j) {
    const cplx z = {rows[RE * STRIP + j], rows[IM * STRIP + j]};
    return z;
}
ROT_ALWAYS_INLINE void set_channel(real *rows, int64_t j, cplx z) {
    rows[RE * STRIP + j] = z.re, rows[IM * STRIP + j] = z.im;
}

/* Runs a state h (PARTS, STRIP) over the steps of u, and adds its part of the output to y. */
ROT_ALWAYS_INLINE void run_state(const int method, tile_rows y, real *restrict h, const strip *restrict k,
                                 const real *restrict c, const real *restrict dt, tile_rows u, int64_t steps) {
    for (int64_t t = 0; t < steps; t++) {
        const real by = dt[t], *restrict const in = u[t];
        real *restrict const out = y[t];
        for (int64_t j = 0; j < STRIP; j++) {
            const sampled_terms terms = sampled_terms_of(method, lane_at(k, j), by);
            const cplx now = plane_step(terms.a, of_channel(h, j), cplx_scaled(in[j], terms.gain));
            set_channel(h, j, now);
            out[j] += bank_output(of_channel(c, j), now);
        }
    }
}

static void run_by(int64_t method, tile_rows y, real *h, const strip *k, const real *c, const real *dt, tile_rows u,
                   int64_t steps) {
    if (method == SAMPLING_ZOH)
        run_state(SAMPLING_ZOH, y, h, k, c, dt, u, steps);
    else if (method == SAMPLING_BILINEAR)
        run_state(SAMPLING_BILINEAR, y, h, k, c, dt, u, steps);
    else
        run_state(SAMPLING_FIRST_ORDER, y, h, k, c, dt, u, steps);
}

/* The lanes of each state of a strip of channels (strips, N), and the readouts (strips, N, PARTS, STRIP). */
typedef struct {
    strip *lanes;
    real *c;
} packed_bank;

static void give_bank(packed_bank k) { pool_give(k.lanes), pool_give(k.c); }

/* Without memory, a part is NULL. */
static packed_bank pack_bank(const real *lam, const real *step, const real *c, int64_t D, int64_t N) {
    const int64_t strips = pieces_of(D, STRIP);
    const packed_bank k = {WORKSPACE(strip, strips, N), WORKSPACE(real, strips, N, PARTS, STRIP)};
    for (int64_t i = 0; k.lanes && k.c && i < strips; i++) {
        const int64_t lo = i * STRIP, n = least(D - lo, STRIP);
        to_rows(k.c + i * N * PARTS * STRIP, c, lo, n, N);
        for (int64_t m = 0; m < N; m++) load_strip(k.lanes + i * N + m, lam + 2 * (lo * N + m), N, step + lo, n);
    }
    return k;
}

/* y (B,T,D), hT (B,D,N), carries (B,tiles,N,2,D): the states before each tile; lam, c (D,N), skip, step (D), dt (B,T),
 * u (B,T,D), h0 (B,D,N) or NULL for zeros. */
KERNEL(sampled_bank_forward) {
    const int64_t strips = pieces_of(D, STRIP), tiles = pieces_of(T, SAMPLED_TILE), size = N * PARTS * STRIP;
    const packed_bank bank = pack_bank(lam, step, c, D, N);
    real *const all_states = WORKSPACE(real, B, strips, size);
    if (!bank.lanes || !bank.c || !all_states) {
        give_bank(bank), pool_give(all_states);
        return ROT_NO_MEMORY;
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (B * strips > 1 && B * T * D * N > FEW)
    for (int64_t task = 0; task < B * strips; task++) {
        const int64_t b = task / strips, i = task % strips, lo = i * STRIP, n = least(D - lo, STRIP);
        const int64_t all = steps_of(lengths, b, T);
        real *const states = all_states + task * size;
        to_rows(states, h0 ? h0 + b * D * N * PARTS : NULL, lo, n, N);
        for (int64_t tile = 0; tile * SAMPLED_TILE < all && !stopped(stop); tile++) {
            const walk w = walk_of(b, tile, SAMPLED_TILE, all, T, false);
            tile_rows in, out;
            save_states(carries + carry_of(b, tile, tiles, N, D, lo), states, N, D, n);
            load_rows(in, u + w.first * D + lo, w.steps, D, n);
            for (int64_t t = 0; t < w.steps; t++)
                for (int64_t j = 0; j < STRIP; j++) out[t][j] = j < n ? skip[lo + j] * in[t][j] : 0;
            for (int64_t m = 0; m < N; m++)
                run_by(method, out, states + m * PARTS * STRIP, bank.lanes + i * N + m,
                       bank.c + (i * N + m) * PARTS * STRIP, dt + w.first, in, w.steps);
            store_rows(y + w.first * D + lo, out, w.steps, D, n);
        }
        zero_rows(y + (b * T + all) * D + lo, T - all, n, D);
        from_rows(hT + b * D * N * PARTS, states, lo, n, N);
    }
    give_bank(bank), pool_give(all_states);
    return ROT_OK;
}

/* A state before a step of a tile, and the terms of the step. */
typedef struct {
    real h[PARTS * STRIP], a[PARTS * STRIP], gain[PARTS * STRIP];
} moment;

/* Rows of the sums of a state over a tile; add_slots takes the first four. */
enum { LAM_RE, LAM_IM, C_RE, C_IM, STEP, ROWS, COEFFICIENTS = 2 };

/* The adjoint of a state over a tile, whose first moment has the state before it. q (PARTS, STRIP) is the gradient that
 * reaches h_t from later steps; du is added to, sums (ROWS, STRIP) are overwritten. */
ROT_ALWAYS_INLINE void adjoint_state(const int method, tile_rows du, real *restrict q, real *restrict sums,
                                     moment *restrict past, const strip *restrict k, const real *restrict c,
                                     const real *restrict dt, tile_rows u, tile_rows dy, int64_t steps) {
    for (int64_t t = 0; t < steps; t++) {
        const real by = dt[t], *restrict const in = u[t];
        moment *restrict const from = past + t, *restrict const to = past + t + 1;
        for (int64_t j = 0; j < STRIP; j++) {
            const sampled_terms terms = sampled_terms_of(method, lane_at(k, j), by);
            set_channel(from->a, j, terms.a), set_channel(from->gain, j, terms.gain);
            set_channel(to->h, j, plane_step(terms.a, of_channel(from->h, j), cplx_scaled(in[j], terms.gain)));
        }
    }
    memset(sums, 0, ROWS * STRIP * sizeof *sums);
    for (int64_t t = steps - 1; t >= 0; t--) {
        const real by = dt[t], *restrict const in = u[t], *restrict const dout = dy[t];
        const moment *restrict const from = past + t;
        const real *restrict const after = past[t + 1].h;
        real *restrict const din = du[t];
        for (int64_t j = 0; j < STRIP; j++) {
            const sampled_terms terms = {of_channel(from->a, j), of_channel(from->gain, j)};
            const cplx g = bank_state_adjoint(of_channel(c, j), of_channel(q, j), dout[j]);
            const cplx sum = {sums[C_RE * STRIP + j], sums[C_IM * STRIP + j]};
            const cplx dc = bank_output_adjoint(dout[j], of_channel(after, j), sum);
            const cplx da = cplx_conj_product(of_channel(from->h, j), g), dgain = cplx_scaled(in[j], g);
            const sampled_adjoints d = sampled_adjoint(method, lane_at(k, j), by, terms, da, dgain);
            sums[C_RE * STRIP + j] = dc.re, sums[C_IM * STRIP + j] = dc.im;
            sums[LAM_RE * STRIP + j] += d.dlam.re, sums[LAM_IM * STRIP + j] += d.dlam.im;
            sums[STEP * STRIP + j] += by * d.dsigma;
            din[j] += cplx_conj_product(terms.gain, g).re;
            set_channel(q, j, bank_past_adjoint(terms.a, g));
        }
    }
}

static void adjoint_by(int64_t method, tile_rows du, real *q, real *sums, moment *past, const strip *k, const real *c,
                       const real *dt, tile_rows u, tile_rows dy, int64_t steps) {
    if (method == SAMPLING_ZOH)
        adjoint_state(SAMPLING_ZOH, du, q, sums, past, k, c, dt, u, dy, steps);
    else if (method == SAMPLING_BILINEAR)
        adjoint_state(SAMPLING_BILINEAR, du, q, sums, past, k, c, dt, u, dy, steps);
    else
        adjoint_state(SAMPLING_FIRST_ORDER, du, q, sums, past, k, c, dt, u, dy, steps);
}

/* dlam, dc (D,N), dskip, dstep (D), du (B,T,D), dh0 (B,D,N), all overwritten; dy (B,T,D), dhT (B,D,N) or NULL, carries
 * as forward wrote them, the rest as in forward. With q_T = dhT:
 *
 *   g_t = conj(c) dy_t + q_{t+1}     q_t = conj(a_t) g_t     dh0 = q_0     da_t = g_t conj(h_{t-1})    dgain_t = g_t
 * u_t du_t = Re sum_n conj(gain_t) g_t + skip dy_t     dc = sum dy_t conj(h_t)     dskip = sum dy_t u_t
 *
 * A tile's sums are added in double to its slot's sums, over sequences b = slot, slot + SLOTS, ...; then slots in
 * order. */
KERNEL(sampled_bank_backward) {
    const int64_t strips = pieces_of(D, STRIP), tiles = pieces_of(T, SAMPLED_TILE), size = N * PARTS * STRIP;
    const int64_t slots = least(B, SLOTS), sums_size = sums_of(COEFFICIENTS, N);
    const packed_bank bank = pack_bank(lam, step, c, D, N);
    real *const all_q = WORKSPACE(real, slots, strips, size);
    double *const all_sums = WORKSPACE(double, slots, strips, sums_size);
    double *const of_steps = WORKSPACE(double, slots, strips, STRIP);
    if (!bank.lanes || !bank.c || !all_q || !all_sums || !of_steps) {
        give_bank(bank), pool_give(all_q), pool_give(all_sums), pool_give(of_steps);
        return ROT_NO_MEMORY;
    }
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (slots * strips > 1 && B * T * D * N > FEW)
    for (int64_t task = 0; task < slots * strips; task++) {
        const int64_t slot = task / strips, i = task % strips, lo = i * STRIP, n = least(D - lo, STRIP);
        real *const q = all_q + task * size;
        double *const sums = all_sums + task * sums_size, *const of_step = of_steps + task * STRIP;
        memset(sums, 0, (size_t)sums_size * sizeof *sums);
        memset(of_step, 0, STRIP * sizeof *of_step);
        for (int64_t b = slot; b < B; b += SLOTS) {
            const int64_t all = steps_of(lengths, b, T);
            to_rows(q, dhT ? dhT + b * D * N * PARTS : NULL, lo, n, N);
            for (int64_t tile = pieces_of(all, SAMPLED_TILE) - 1; tile >= 0 && !stopped(stop); tile--) {
                const walk w = walk_of(b, tile, SAMPLED_TILE, all, T, false);
                const real *const carry = carries + carry_of(b, tile, tiles, N, D, lo);
                tile_rows in, dout, din;
                moment past[SAMPLED_TILE + 1];
                real of[ROWS * STRIP];
                load_rows(in, u + w.first * D + lo, w.steps, D, n);
                load_rows(dout, dy + w.first * D + lo, w.steps, D, n);
                for (int64_t t = 0; t < w.steps; t++)
                    for (int64_t j = 0; j < STRIP; j++) {
                        din[t][j] = j < n ? skip[lo + j] * dout[t][j] : 0;
                        sums[N * COEFFICIENTS * PARTS * STRIP + j] += (double)dout[t][j] * (double)in[t][j];
                    }
                for (int64_t m = 0; m < N; m++) {
                    memset(past->h, 0, sizeof past->h);
                    for (int part = 0; part < PARTS; part++)
                        memcpy(past->h + part * STRIP, carry + (m * PARTS + part) * D, (size_t)n * sizeof *carry);
                    adjoint_by(method, din, q + m * PARTS * STRIP, of, past, bank.lanes + i * N + m,
                               bank.c + (i * N + m) * PARTS * STRIP, dt + w.first, in, dout, w.steps);
                    double *const to = sums + m * COEFFICIENTS * PARTS * STRIP;
                    for (int64_t j = 0; j < COEFFICIENTS * PARTS * STRIP; j++) to[j] += (double)of[j];
                    for (int64_t j = 0; j < STRIP; j++) of_step[j] += (double)of[STEP * STRIP + j];
                }
                store_rows(du + w.first * D + lo, din, w.steps, D, n);
            }
            zero_rows(du + (b * T + all) * D + lo, T - all, n, D);
            from_rows(dh0 + b * D * N * PARTS, q, lo, n, N);
        }
    }
    add_slots((real *[]){dlam, dc}, COEFFICIENTS, dskip, all_sums, slots, D, N, N);
    for (int64_t d = 0; d < D; d++) {
        double total = 0;
        for (int64_t slot = 0; slot < slots; slot++) total += of_steps[slot * strips * STRIP + d];
        dstep[d] = (real)total;
    }
    give_bank(bank), pool_give(all_q), pool_give(all_sums), pool_give(of_steps);
    return ROT_OK;
}
