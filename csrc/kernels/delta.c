/* The gated delta rule, by heads with a matrix state h (keys, values), and its adjoint. A token decays the state by the
 * number a_t, then makes R Householder steps i, and is read:
 *
 *   h <- a_t h          h <- h + beta_i k_i (v_i - h^T k_i)^T = (I - beta_i k_i k_i^T) h + beta_i k_i v_i^T
 *   y_t = h^T q_t
 *
 * Each value channel is a recurrence of its own: SIMD across channels. Forward, a task is a block of WIDTH channels of
 * a head of a sequence, and walks through time with the block's state (keys, WIDTH) in level 1 cache; it saves the
 * state before each tile of DELTA_TILE tokens. Backward, a task is a head of a sequence, because the gradients of q, k,
 * beta and a are sums over its channels; it computes the states within a tile again. The division of work depends on
 * the shapes alone and every sum has one order, so results have the same bits for any number of threads.
 *
 * `lengths` (B) or NULL: tokens at t >= lengths[b] are neither read nor counted, and are written as zero.
 * `reverse`: time runs from lengths[b]-1 down to 0, by indexing; the steps of a token keep their order.
 */
#include <string.h>

#include "channels.h"
#include "kernels.h"
#include "rows.h"
#include "stop.h"
#include "workspace.h"

enum {
    CHAINS = VECTORS < 4 ? 4 / VECTORS : 1, /* sums over keys that run together: one alone waits for its last term */
    TILE = DELTA_TILE,
    SERIAL = 16384, /* numbers (B,T,R,H,keys,values) up to which one thread is used */
};

/* Sizes of a call, and the blocks of a head's channels. */
typedef struct {
    int64_t B, T, R, H, keys, values;
    const int64_t *lengths;
    bool reverse;
    int64_t blocks, tiles;
} plan;

typedef struct {
    const real *q, *k, *v, *beta, *decay;
} inputs;

static bool many(const plan *p, int64_t tasks) {
    return tasks > 1 && p->B * p->T * p->R * p->H * p->keys * p->values > SERIAL;
}

static walk tokens_of_tile(const plan *p, int64_t b, int64_t tile) {
    return walk_of(b, tile, TILE, steps_of(p->lengths, b, p->T), p->T, p->reverse);
}

/* Householder step j of a tile: the rows of its token (B T H) and of its own (B T R H), and its place in the token. */
typedef struct {
    int64_t token, own;
    bool first, last;
} place;

static place place_of(const plan *p, walk w, int64_t head, int64_t j) {
    const int64_t row = w.first + j / p->R * w.stride, i = j % p->R;
    const place here = {row * p->H + head, (row * p->R + i) * p->H + head, i == 0, i == p->R - 1};
    return here;
}

/* The decay before a step: that of its token, before the first. */
static real decay_of(const inputs *in, place here) { return here.first && in->decay ? in->decay[here.token] : 1; }

/* h (keys, WIDTH) <- a block of x (keys, values), or zeros; and back. */
static void load_state(real *restrict h, const real *restrict x, span block, const plan *p) {
    zero_row(h, p->keys * WIDTH);
    for (int64_t s = 0; x && s < p->keys; s++) copy_block(h + s * WIDTH, x + s * p->values + block.lo, block.n);
}

static void store_state(real *restrict x, const real *restrict h, span block, const plan *p) {
    for (int64_t s = 0; s < p->keys; s++) copy_block(x + s * p->values + block.lo, h + s * WIDTH, block.n);
}

/* sum (WIDTH) <- h^T c */
static void sum_keys(real *restrict sum, const real *restrict h, const real *restrict c, int64_t keys) {
    vec part[CHAINS][VECTORS] = {0};
    int64_t s = 0;
    for (; s + CHAINS <= keys; s += CHAINS)
        for (int i = 0; i < CHAINS; i++)
            for (int v = 0; v < VECTORS; v++) part[i][v] += at(h + (s + i) * WIDTH, v) * c[s + i];
    for (; s < keys; s++)
        for (int v = 0; v < VECTORS; v++) part[0][v] += at(h + s * WIDTH, v) * c[s];
    for (int v = 0; v < VECTORS; v++) {
        for (int i = 1; i < CHAINS; i++) part[0][v] += part[i][v];
        put(sum, v, part[0][v]);
    }
}

/* error (WIDTH) <- v - h^T k, of the decayed state */
static void errors(real *restrict error, const real *restrict h, const inputs *in, place here, span block,
                   const plan *p) {
    const real a = decay_of(in, here);
    real v[WIDTH], product[WIDTH];
    load_block(v, in->v + here.own * p->values + block.lo, block.n);
    sum_keys(product, h, in->k + here.own * p->keys, p->keys);
    for (int j = 0; j < WIDTH; j++) error[j] = delta_error(v[j], a, product[j]);
}

/* to <- h after a step with these errors; `to` may be h. */
static void advance(real *to, const real *h, const real *restrict error, const inputs *in, place here, int64_t keys) {
    const real a = decay_of(in, here), beta = in->beta[here.own];
    const real *const k = in->k + here.own * keys;
    vec u[VECTORS];
    for (int v = 0; v < VECTORS; v++) u[v] = at(error, v) * beta;
    for (int64_t s = 0; s < keys; s++)
        for (int v = 0; v < VECTORS; v++) put(to + s * WIDTH, v, delta_step_vec(at(h + s * WIDTH, v), a, k[s], u[v]));
}

/* y (B,T,H,values), hT (B,H,keys,values) and carries (B,H,tiles,keys,values), the states before each tile: each may be
 * NULL; q (B,T,H,keys), k (B,T,R,H,keys), v (B,T,R,H,values), beta (B,T,R,H), decay (B,T,H) or NULL for ones, h0
 * (B,H,keys,values) or NULL. */
KERNEL(delta_forward) {
    const plan p = {B, T, R, H, keys, values, lengths, (bool)reverse, pieces_of(values, WIDTH), pieces_of(T, TILE)};
    const inputs in = {q, k, v, beta, decay};
    const int64_t tasks = B * H * p.blocks, size = keys * values;
    real *const states = WORKSPACE(real, most_threads(), keys, WIDTH);
    if (!states) return ROT_NO_MEMORY;
    for (int64_t b = 0; y && b < B; b++) zero_padding(y, b, steps_of(lengths, b, T), T, H * values);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (many(&p, tasks))
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t sequence = task / p.blocks, b = sequence / H, head = sequence % H; /* of a head */
        const span block = span_of(values, task % p.blocks);
        real *const h = states + thread_number() * keys * WIDTH;
        load_state(h, h0 ? h0 + sequence * size : NULL, block, &p);
        for (int64_t tile = 0; tile < p.tiles && !stopped(stop); tile++) {
            const walk w = tokens_of_tile(&p, b, tile);
            if (carries) store_state(carries + (sequence * p.tiles + tile) * size, h, block, &p);
            for (int64_t j = 0; j < w.steps * R; j++) {
                const place here = place_of(&p, w, head, j);
                real error[WIDTH], out[WIDTH];
                errors(error, h, &in, here, block, &p);
                advance(h, h, error, &in, here, keys);
                if (!y || !here.last) continue;
                sum_keys(out, h, q + here.token * keys, keys);
                copy_block(y + here.token * values + block.lo, out, block.n);
            }
        }
        if (hT) store_state(hT + sequence * size, h, block, &p);
    }
    pool_give(states);
    return ROT_OK;
}

/* A thread's memory: of a tile's Householder steps the state before each (keys, WIDTH) and its errors (WIDTH); g
 * (blocks, keys, WIDTH); and sums over channels that are still spread over a register, (keys, LANES) of k and of q,
 * with as much for adding them up. */
typedef struct {
    real *before, *errors, *g, *spread_k, *spread_q, *other;
} room;

enum { SPREADS = 3 };

static room room_of(real *tile, real *g, real *spreads, const plan *p) {
    const int64_t i = thread_number(), steps = TILE * p->R, spread = p->keys * LANES;
    room r;
    r.before = tile + i * steps * (p->keys + 1) * WIDTH;
    r.errors = r.before + steps * p->keys * WIDTH;
    r.g = g + i * p->blocks * p->keys * WIDTH;
    r.spread_k = spreads + i * SPREADS * spread;
    r.spread_q = r.spread_k + spread, r.other = r.spread_q + spread;
    return r;
}

typedef struct {
    real *dq, *dk, *dv, *dbeta, *ddecay;
} gradients;

/* sums (keys) += the totals of the registers of `spread`, which is overwritten. */
static void add_totals(real *restrict sums, real *restrict spread, real *restrict other, int64_t keys) {
    const real *const totals = register_totals(spread, other, keys);
    for (int64_t s = 0; s < keys; s++) sums[s] += totals[s];
}

/* What reading the state does backward: g (keys, WIDTH) += q dy^T, and dq += h dy, of the state h after the step. */
static void read_adjoint(real *restrict g, const room *r, const real *restrict h, const real *restrict error,
                         const real *restrict dy, const inputs *in, const gradients *out, place here, int64_t keys) {
    const real a = decay_of(in, here), beta = in->beta[here.own];
    const real *const k = in->k + here.own * keys, *const q = in->q + here.token * keys;
    for (int64_t s = 0; s < keys; s++) {
        vec sum = {0};
        for (int v = 0; v < VECTORS; v++) {
            const vec after = delta_step_vec(at(h + s * WIDTH, v), a, k[s], at(error, v) * beta);
            sum += after * at(dy, v);
            put(g + s * WIDTH, v, delta_output_adjoint_vec(at(g + s * WIDTH, v), at(dy, v), q[s]));
        }
        store(r->spread_q + s * LANES, sum);
    }
    add_totals(out->dq + here.token * keys, r->spread_q, r->other, keys);
}

/* A Householder step backward, with the state h before it and its errors: g <- the gradient of h. */
static void step_adjoint(real *restrict g, const room *r, const real *restrict h, const real *restrict error,
                         const inputs *in, const gradients *out, place here, span block, const plan *p) {
    const real a = decay_of(in, here), beta = in->beta[here.own];
    const real *const k = in->k + here.own * p->keys;
    vec u[VECTORS], dv[VECTORS], of_beta = {0}, of_decay = {0};
    real du[WIDTH];
    sum_keys(du, g, k, p->keys);
    for (int v = 0; v < VECTORS; v++) {
        of_beta += at(du, v) * at(error, v);
        u[v] = at(error, v) * beta, dv[v] = at(du, v) * beta;
    }
    for (int64_t s = 0; s < p->keys; s++) {
        vec sum = {0};
        for (int v = 0; v < VECTORS; v++) {
            const vec g_s = at(g + s * WIDTH, v), h_s = at(h + s * WIDTH, v);
            const vec moved = delta_moved_adjoint_vec(g_s, k[s], dv[v]);
            sum += delta_key_adjoint_vec(g_s, u[v], h_s, a, dv[v]);
            of_decay += moved * h_s;
            put(g + s * WIDTH, v, moved * a);
        }
        store(r->spread_k + s * LANES, sum);
    }
    add_totals(out->dk + here.own * p->keys, r->spread_k, r->other, p->keys);
    out->dbeta[here.own] += lane_total(of_beta);
    if (out->ddecay && here.first) out->ddecay[here.token] += lane_total(of_decay);
    for (int v = 0; v < VECTORS; v++) put(du, v, dv[v]);
    copy_block(out->dv + here.own * p->values + block.lo, du, block.n);
}

/* dq, dk, dv, dbeta, ddecay (NULL without decay), dh0, all overwritten, with the shapes of what they are gradients of;
 * dy (B,T,H,values), dhT (B,H,keys,values) or NULL, carries as forward wrote them, the rest as in forward. With g the
 * gradient of the state after a Householder step, which is dhT, or zero, after the last one of all:
 *
 *   g <- g + q_t dy_t^T,   dq_t = h dy_t                              after the last step of a token
 *   du = g^T k,   dv = beta du,   dbeta = du . error,   error = v - h^T k  of the decayed state h
 *   dk = g (beta error) - h dv,   g <- g - k dv^T
 *   da_t = sum over the state of g h_{t-1},   g <- a_t g              after the first step of a token
 *
 * and dh0 = g before the first one of all (dhT if there is none). */
KERNEL(delta_backward) {
    const plan p = {B, T, R, H, keys, values, lengths, (bool)reverse, pieces_of(values, WIDTH), pieces_of(T, TILE)};
    const inputs in = {q, k, v, beta, decay};
    const gradients out = {dq, dk, dv, dbeta, ddecay};
    const int64_t size = keys * values, tokens = B * T * H;
    real *const of_tile = WORKSPACE(real, most_threads(), TILE, R, keys + 1, WIDTH);
    real *const of_heads = WORKSPACE(real, most_threads(), p.blocks, keys, WIDTH);
    real *const spreads = WORKSPACE(real, most_threads(), SPREADS, keys, LANES);
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!of_tile || !of_heads || !spreads) goto end;
    status = ROT_OK;
    zero_row(dq, tokens * keys), zero_row(dk, tokens * R * keys), zero_row(dv, tokens * R * values);
    zero_row(dbeta, tokens * R);
    if (ddecay) zero_row(ddecay, tokens);
#pragma omp parallel for schedule(dynamic) if (many(&p, B * H))
    for (int64_t sequence = 0; sequence < B * H; sequence++) { /* of a head */
        const int64_t b = sequence / H, head = sequence % H;
        const room r = room_of(of_tile, of_heads, spreads, &p);
        for (int64_t i = 0; i < p.blocks; i++)
            load_state(r.g + i * keys * WIDTH, dhT ? dhT + sequence * size : NULL, span_of(values, i), &p);
        for (int64_t tile = p.tiles - 1; tile >= 0 && !stopped(stop); tile--) {
            const walk w = tokens_of_tile(&p, b, tile);
            const int64_t steps = w.steps * R;
            for (int64_t i = 0; steps && i < p.blocks; i++) {
                const span block = span_of(values, i);
                real *const g = r.g + i * keys * WIDTH;
                load_state(r.before, carries + (sequence * p.tiles + tile) * size, block, &p);
                for (int64_t j = 0; j < steps; j++) {
                    const place here = place_of(&p, w, head, j);
                    real *const h = r.before + j * keys * WIDTH, *const error = r.errors + j * WIDTH;
                    errors(error, h, &in, here, block, &p);
                    if (j + 1 < steps) advance(h + keys * WIDTH, h, error, &in, here, keys);
                }
                for (int64_t j = steps - 1; j >= 0; j--) {
                    const place here = place_of(&p, w, head, j);
                    const real *const h = r.before + j * keys * WIDTH, *const error = r.errors + j * WIDTH;
                    real dy_t[WIDTH];
                    if (here.last) {
                        load_block(dy_t, dy + here.token * values + block.lo, block.n);
                        read_adjoint(g, &r, h, error, dy_t, &in, &out, here, keys);
                    }
                    step_adjoint(g, &r, h, error, &in, &out, here, block, &p);
                }
            }
        }
        for (int64_t i = 0; i < p.blocks; i++)
            store_state(dh0 + sequence * size, r.g + i * keys * WIDTH, span_of(values, i), &p);
    }
end:
    pool_give(of_tile), pool_give(of_heads), pool_give(spreads);
    return status;
}
