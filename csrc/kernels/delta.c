/* The delta rule, by heads with a matrix state h (keys, values), and its adjoint. A token decays the state by a_t, one
 * number or one for each key (`lanes`), makes R Householder steps i, and reads the state:
 *
 *   h <- a_t h          h <- h + beta_i k_i (v_i - h^T k_i)^T = (I - beta_i k_i k_i^T) h + beta_i k_i v_i^T
 *   y_t = h^T q_t
 *
 * In general a step reads the state, before its decay, at a separate key e_i, and may erase the value read at f_i:
 *
 *   p = h^T e_i         h <- a_t h + beta_i k_i (v_i - p)^T     or     h <- a_t h - f_i p^T + beta_i k_i v_i^T
 *
 * Each value channel is a separate recurrence: SIMD goes across channels. Forward, a task is a block of WIDTH channels
 * of a head of a sequence, and walks through time with the block's state (keys, width) in level 1 cache; it saves the
 * state before each tile of DELTA_TILE tokens. Backward, a task is a head of a sequence, because the gradients of q, k,
 * beta and a are sums over its channels; it recomputes the states within a tile. The division of work depends on the
 * shapes alone and every sum has one order, so results have the same bits for any number of threads.
 *
 * `lengths` (B) or NULL: tokens at t >= lengths[b] are neither read nor counted, and are written as zero.
 * `reverse`: time runs from lengths[b]-1 down to 0, by indexing; the steps of a token keep their order.
 */
#include <string.h>

#define LINES (VECTOR_BYTES == 64 ? 2 : 1) /* two registers or more: sums over their channels take long */
#include "channels.h"
#include "kernels.h"
#include "rows.h"
#include "stop.h"
#include "workspace.h"

enum {
    CHAINS = VECTOR_BYTES / 16, /* sums over keys that run together: a single sum waits for its last term */
    TILE = DELTA_TILE,
    KEYS = 32,      /* keys whose sums over channels are added up together */
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
    const real *q, *k, *v, *beta, *decay, *read, *erase;
    bool lanes;
} inputs;

static bool many(const plan *p, int64_t tasks) {
    return tasks > 1 && p->B * p->T * p->R * p->H * p->keys * p->values > SERIAL;
}

static walk tokens_of_tile(const plan *p, int64_t b, int64_t tile) {
    return walk_of(b, tile, TILE, steps_of(p->lengths, b, p->T), p->T, p->reverse);
}

/* Householder step j of a tile: the row of its token (B T H) and its own row (B T R H), and its place in the token; its
 * decay, a or d by keys; its keys, where e and f may be NULL. */
typedef struct {
    int64_t token, own;
    bool first, last;
    real a, beta;
    const real *d, *k, *e, *f;
} place;

static place place_of(const plan *p, const inputs *in, walk w, int64_t head, int64_t j) {
    const int64_t row = w.first + j / p->R * w.stride, i = j % p->R;
    place here = {.token = row * p->H + head, .own = (row * p->R + i) * p->H + head, .first = i == 0};
    const bool decays = here.first && in->decay;
    here.last = i == p->R - 1;
    here.a = decays && !in->lanes ? in->decay[here.token] : 1;
    here.d = decays && in->lanes ? in->decay + here.token * p->keys : NULL;
    here.beta = in->beta ? in->beta[here.own] : 1;
    here.k = in->k + here.own * p->keys;
    here.e = in->read ? in->read + here.own * p->keys : NULL;
    here.f = in->erase ? in->erase + here.own * p->keys : NULL;
    return here;
}

/* Loops over the keys of a state take the number of registers that hold channels of the block, 1 or VECTORS: a
 * constant, so that inner loops are unrolled. A row of the state has these registers, `width` numbers. */
static bool narrow(span block) { return block.n <= LANES; }
static int64_t width_of(span block) { return narrow(block) ? LANES : WIDTH; }

/* h (keys, width) <- a block of x (keys, values), or zeros; and back. */
static void load_state(real *restrict h, const real *restrict x, span block, const plan *p) {
    const int64_t width = width_of(block);
    if (!x || block.n < width) zero_row(h, p->keys * width);
    for (int64_t s = 0; x && s < p->keys; s++) copy_block(h + s * width, x + s * p->values + block.lo, block.n);
}

static void store_state(real *restrict x, const real *restrict h, span block, const plan *p) {
    const int64_t width = width_of(block);
    for (int64_t s = 0; s < p->keys; s++) copy_block(x + s * p->values + block.lo, h + s * width, block.n);
}

/* The channels of a block in x (values), or in `room` (WIDTH) with zeros after them if their registers are not full. */
static const real *channels_of(real *restrict room, const real *restrict x, span block) {
    if (block.n == LANES || block.n == WIDTH) return x + block.lo;
    load_block(room, x + block.lo, block.n);
    return room;
}

ROT_ALWAYS_INLINE void sum_over_keys(real *restrict sum, const real *restrict h, const real *restrict c, int64_t keys,
                                     int registers) {
    const int64_t width = registers * LANES;
    vec part[CHAINS][VECTORS];
    for (int i = 0; i < CHAINS; i++)
        for (int v = 0; v < registers; v++) part[i][v] = (vec){0};
    int64_t s = 0;
    for (; s + CHAINS <= keys; s += CHAINS)
        for (int i = 0; i < CHAINS; i++)
            for (int v = 0; v < registers; v++) part[i][v] += at(h + (s + i) * width, v) * c[s + i];
    for (; s < keys; s++)
        for (int v = 0; v < registers; v++) part[0][v] += at(h + s * width, v) * c[s];
    for (int v = 0; v < registers; v++) {
        for (int i = 1; i < CHAINS; i++) part[0][v] += part[i][v];
        put(sum, v, part[0][v]);
    }
}

/* sum (WIDTH) <- h^T c */
static void sum_keys(real *restrict sum, const real *restrict h, const real *restrict c, int64_t keys, span block) {
    if (narrow(block))
        sum_over_keys(sum, h, c, keys, 1);
    else
        sum_over_keys(sum, h, c, keys, VECTORS);
}

ROT_ALWAYS_INLINE void errors_of(real *restrict found, const real *restrict v, const real *restrict product, real a,
                                 bool erases, int registers) {
    for (int i = 0; i < registers; i++) {
        put(found, i, erases ? at(v, i) : delta_error_vec(at(v, i), a, at(product, i)));
        put(found + WIDTH, i, a * at(product, i));
    }
}

/* found (2, WIDTH) <- the error of a step, and the value it read, from the state h before it; room (keys) is
 * overwritten. */
static void errors(real *restrict found, const real *restrict h, const inputs *in, const place *here,
                   real *restrict room, span block, const plan *p) {
    const bool early = here->e || here->d; /* read before the decay, at e or d k */
    const real *at_key = here->e ? here->e : here->k;
    const real a = early ? 1 : here->a;
    _Alignas(64) real own[WIDTH], product[WIDTH];
    const real *const v = channels_of(own, in->v + here->own * p->values, block);
    if (here->d && !here->e) {
        for (int64_t s = 0; s < p->keys; s++) room[s] = here->d[s] * here->k[s];
        at_key = room;
    }
    sum_keys(product, h, at_key, p->keys, block);
    if (narrow(block))
        errors_of(found, v, product, a, here->f, 1);
    else
        errors_of(found, v, product, a, here->f, VECTORS);
}

/* The value that a step adds at its key, and the value it erases. */
typedef struct {
    vec u[VECTORS], p[VECTORS];
} change;

ROT_ALWAYS_INLINE change change_of(const real *found, const place *here, int registers) {
    change c;
    for (int v = 0; v < registers; v++) c.u[v] = at(found, v) * here->beta, c.p[v] = at(found + WIDTH, v);
    return c;
}

/* Register v of key s of the state after a step. */
ROT_ALWAYS_INLINE vec after(vec h, const place *here, int64_t s, const change *c, int v, bool lanes, bool erases) {
    const vec added = delta_step_vec(h, lanes ? here->d[s] : here->a, here->k[s], c->u[v]);
    return erases ? delta_erase_vec(added, here->f[s], c->p[v]) : added;
}

ROT_ALWAYS_INLINE void advance_keys(real *to, const real *h, const place *here, const change *c, int64_t keys,
                                    int registers, bool lanes, bool erases) {
    const int64_t width = registers * LANES;
    for (int64_t s = 0; s < keys; s++)
        for (int v = 0; v < registers; v++)
            put(to + s * width, v, after(at(h + s * width, v), here, s, c, v, lanes, erases));
}

ROT_ALWAYS_INLINE void advance_registers(real *to, const real *h, const real *restrict found, const place *step,
                                         int64_t keys, int registers) {
    const place here = *step;
    const change c = change_of(found, &here, registers);
    if (here.d && here.f)
        advance_keys(to, h, &here, &c, keys, registers, true, true);
    else if (here.d)
        advance_keys(to, h, &here, &c, keys, registers, true, false);
    else if (here.f)
        advance_keys(to, h, &here, &c, keys, registers, false, true);
    else
        advance_keys(to, h, &here, &c, keys, registers, false, false);
}

/* to <- h after a step with `found`; `to` may be h. */
static void advance(real *to, const real *h, const real *restrict found, const place *step, int64_t keys, span block) {
    if (narrow(block))
        advance_registers(to, h, found, step, keys, 1);
    else
        advance_registers(to, h, found, step, keys, VECTORS);
}

/* y (B,T,H,values), hT (B,H,keys,values) and carries (B,H,tiles,keys,values), the states before each tile: each may be
 * NULL; q (B,T,H,keys), k (B,T,R,H,keys), v (B,T,R,H,values), beta (B,T,R,H), decay (B,T,H), or (B,T,H,keys) if
 * `lanes`, either NULL for ones; h0 (B,H,keys,values), and e and f, `read` and `erase` (B,T,R,H,keys), or NULL. */
KERNEL(delta_forward) {
    const plan p = {B, T, R, H, keys, values, lengths, (bool)reverse, pieces_of(values, WIDTH), pieces_of(T, TILE)};
    const inputs in = {q, k, v, beta, decay, read, erase, (bool)lanes};
    const int64_t tasks = B * H * p.blocks, size = keys * values;
    real *const states = WORKSPACE(real, most_threads(), keys, WIDTH);
    real *const rooms = WORKSPACE(real, most_threads(), keys);
    int status = ROT_NO_MEMORY;
    if (!states || !rooms) goto end;
    status = ROT_OK;
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
                const place here = place_of(&p, &in, w, head, j);
                _Alignas(64) real found[2 * WIDTH], out[WIDTH];
                errors(found, h, &in, &here, rooms + thread_number() * keys, block, &p);
                advance(h, h, found, &here, keys, block);
                if (!y || !here.last) continue;
                sum_keys(out, h, q + here.token * keys, keys, block);
                copy_block(y + here.token * values + block.lo, out, block.n);
            }
        }
        if (hT) store_state(hT + sequence * size, h, block, &p);
    }
end:
    pool_give(states), pool_give(rooms);
    return status;
}

/* A thread's memory: for each Householder step of a tile the state before it (keys, width) and `found` (2, WIDTH); g
 * (blocks, keys, width); and a key. */
typedef struct {
    real *before, *found, *g, *key;
} room;

static room room_of(real *tile, real *g, real *keys, const plan *p) {
    const int64_t i = thread_number(), steps = TILE * p->R;
    room r;
    r.before = tile + i * steps * (p->keys + 2) * WIDTH;
    r.found = r.before + steps * p->keys * WIDTH;
    r.g = g + i * p->blocks * p->keys * WIDTH;
    r.key = keys + i * p->keys;
    return r;
}

typedef struct {
    real *dq, *dk, *dv, *dbeta, *ddecay, *dread, *derase;
} gradients;

/* Sums over channels for some keys, each still spread over a register. */
typedef struct {
    _Alignas(64) real of[KEYS * LANES];
} spread;

/* sums (n) += the totals of registers; n <= KEYS. */
static void add_totals(real *restrict sums, spread *restrict x, int64_t n) {
    real totals[KEYS];
    register_totals(totals, x->of, n == KEYS ? KEYS : n);
    for (int64_t s = 0; s < n; s++) sums[s] += totals[s];
}

/* The adjoint of reading the state: g (keys, width) += q dy^T and dq += h dy, with the state after the step, computed
 * from h before it. */
ROT_ALWAYS_INLINE void read_keys_adjoint(real *restrict g, const real *restrict h, const change *c,
                                         const real *restrict dy, const real *restrict q, real *restrict dq,
                                         const place *here, int64_t keys, int registers, bool lanes, bool erases) {
    const int64_t width = registers * LANES;
    spread of_q;
    for (int64_t lo = 0; lo < keys; lo += KEYS) {
        const int64_t n = least(keys - lo, KEYS);
        for (int64_t s = lo; s < lo + n; s++) {
            vec sum = {0};
            for (int v = 0; v < registers; v++) {
                sum += after(at(h + s * width, v), here, s, c, v, lanes, erases) * at(dy, v);
                put(g + s * width, v, delta_output_adjoint_vec(at(g + s * width, v), at(dy, v), q[s]));
            }
            store(of_q.of + (s - lo) * LANES, sum);
        }
        add_totals(dq + lo, &of_q, n);
    }
}

ROT_ALWAYS_INLINE void read_adjoint(real *restrict g, const real *restrict h, const real *restrict found,
                                    const real *restrict dy, const inputs *in, const gradients *out, const place *step,
                                    int64_t keys, int registers) {
    const place here = *step;
    const real *const q = in->q + here.token * keys;
    real *const dq = out->dq + here.token * keys;
    const change c = change_of(found, &here, registers);
    if (here.d && here.f)
        read_keys_adjoint(g, h, &c, dy, q, dq, &here, keys, registers, true, true);
    else if (here.d)
        read_keys_adjoint(g, h, &c, dy, q, dq, &here, keys, registers, true, false);
    else if (here.f)
        read_keys_adjoint(g, h, &c, dy, q, dq, &here, keys, registers, false, true);
    else
        read_keys_adjoint(g, h, &c, dy, q, dq, &here, keys, registers, false, false);
}

/* The adjoint of a step over its keys: g <- the gradient of h before it, with dp the gradient of the value read. Adds
 * to the gradients of keys and of a decay by keys. Returns the gradient of a single decay, spread. */
ROT_ALWAYS_INLINE vec keys_adjoint(real *restrict g, const real *restrict h, const place *here, const change *c,
                                   const vec *dp, const gradients *out, int64_t keys, int registers, bool lanes,
                                   bool reads, bool erases) {
    const int64_t own = here->own * keys, width = registers * LANES;
    const real *const k = here->k, *const d = here->d, *const e = here->e, one_a = here->a;
    spread of_keys, of_decays, of_reads, of_erases;
    vec of_a[VECTORS];
    for (int v = 0; v < registers; v++) of_a[v] = (vec){0};
    for (int64_t lo = 0; lo < keys; lo += KEYS) {
        const int64_t n = least(keys - lo, KEYS);
        for (int64_t s = lo; s < lo + n; s++) {
            const real a = lanes ? d[s] : one_a;
            const int64_t place = (s - lo) * LANES;
            vec of_k = {0}, of_d = {0}, of_e = {0}, of_f = {0};
            for (int v = 0; v < registers; v++) {
                const vec g_s = at(g + s * width, v), h_s = at(h + s * width, v);
                vec *const decayed = lanes ? &of_d : &of_a[v];
                if (erases) of_f -= g_s * c->p[v];
                if (reads) {
                    *decayed += g_s * h_s, of_k += g_s * c->u[v], of_e += h_s * dp[v];
                    put(g + s * width, v, delta_past_adjoint_vec(g_s, a, e[s], dp[v]));
                } else {
                    const vec moved = delta_moved_adjoint_vec(g_s, k[s], -dp[v]);
                    *decayed += moved * h_s, of_k += delta_key_adjoint_vec(g_s, c->u[v], h_s, a, -dp[v]);
                    put(g + s * width, v, moved * a);
                }
            }
            store(of_keys.of + place, of_k);
            if (reads) store(of_reads.of + place, of_e);
            if (erases) store(of_erases.of + place, of_f);
            if (lanes) store(of_decays.of + place, of_d);
        }
        add_totals(out->dk + own + lo, &of_keys, n);
        if (reads) add_totals(out->dread + own + lo, &of_reads, n);
        if (erases) add_totals(out->derase + own + lo, &of_erases, n);
        if (lanes) add_totals(out->ddecay + here->token * keys + lo, &of_decays, n);
    }
    for (int v = 1; v < registers; v++) of_a[0] += of_a[v];
    return of_a[0];
}

/* The adjoint of a Householder step, with the state h before it and `found`: g <- the gradient of h. */
ROT_ALWAYS_INLINE void step_adjoint(real *restrict g, const real *restrict h, const real *restrict found,
                                    const gradients *out, const place *here, span block, const plan *p, int registers) {
    const int64_t keys = p->keys;
    const change c = change_of(found, here, registers);
    const bool lanes = here->d, reads = here->e, erases = here->f;
    vec dp[VECTORS], of_beta = {0}, of_d;
    _Alignas(64) real du[WIDTH], erased[WIDTH];
    sum_keys(du, g, here->k, keys, block);
    if (erases) sum_keys(erased, g, here->f, keys, block);
    for (int v = 0; v < registers; v++) {
        of_beta += at(du, v) * at(found, v);
        put(du, v, at(du, v) * here->beta);
        dp[v] = erases ? -at(erased, v) : -at(du, v);
    }
    if (!reads && !erases) /* the compiler makes a separate loop of each */
        of_d = lanes ? keys_adjoint(g, h, here, &c, dp, out, keys, registers, true, false, false)
                     : keys_adjoint(g, h, here, &c, dp, out, keys, registers, false, false, false);
    else if (!erases)
        of_d = lanes ? keys_adjoint(g, h, here, &c, dp, out, keys, registers, true, true, false)
                     : keys_adjoint(g, h, here, &c, dp, out, keys, registers, false, true, false);
    else if (lanes && reads)
        of_d = keys_adjoint(g, h, here, &c, dp, out, keys, registers, true, true, true);
    else
        of_d = keys_adjoint(g, h, here, &c, dp, out, keys, registers, lanes, reads, true);
    if (out->ddecay && here->first && !lanes) out->ddecay[here->token] += lane_total(of_d);
    if (out->dbeta) out->dbeta[here->own] += lane_total(of_beta);
    copy_block(out->dv + here->own * p->values + block.lo, du, block.n);
}

/* The adjoint of a Householder step, and of reading the state after it if it is the last of a token; dy (B,T,H,values).
 */
static void adjoint(real *restrict g, const real *restrict h, const real *restrict found, const real *restrict dy,
                    const inputs *in, const gradients *out, const place *here, span block, const plan *p) {
    _Alignas(64) real own[WIDTH];
    const real *const dy_t = here->last ? channels_of(own, dy + here->token * p->values, block) : NULL;
    if (narrow(block)) {
        if (here->last) read_adjoint(g, h, found, dy_t, in, out, here, p->keys, 1);
        step_adjoint(g, h, found, out, here, block, p, 1);
    } else {
        if (here->last) read_adjoint(g, h, found, dy_t, in, out, here, p->keys, VECTORS);
        step_adjoint(g, h, found, out, here, block, p, VECTORS);
    }
}

/* dq, dk, dv, dbeta, ddecay, dread, derase (NULL if the input is), dh0, all overwritten, with the shapes of their
 * arrays; dy (B,T,H,values), dhT (B,H,keys,values) or NULL, carries as forward wrote them, the rest as in forward. With
 * g the gradient of the state after a Householder step (after the last step: dhT, or zero):
 *
 *   g <- g + q_t dy_t^T,   dq_t = h dy_t                              after the last step of a token
 *   du = g^T k,   dv = beta du,   dbeta = du . error,   error = v - h^T k  of the decayed state h
 *   dk = g (beta error) - h dv,   g <- g - k dv^T
 *   da_t = sum over the state of g h_{t-1},   g <- a_t g              after the first step of a token
 *
 * and dh0 = g before the first step (dhT if there is none). number_steps.h has a step in general. */
KERNEL(delta_backward) {
    const plan p = {B, T, R, H, keys, values, lengths, (bool)reverse, pieces_of(values, WIDTH), pieces_of(T, TILE)};
    const inputs in = {q, k, v, beta, decay, read, erase, (bool)lanes};
    const gradients out = {dq, dk, dv, dbeta, ddecay, dread, derase};
    const int64_t size = keys * values, tokens = B * T * H;
    real *const of_tile = WORKSPACE(real, most_threads(), TILE, R, keys + 2, WIDTH);
    real *const of_heads = WORKSPACE(real, most_threads(), p.blocks, keys, WIDTH);
    real *const of_keys = WORKSPACE(real, most_threads(), keys);
    const struct {
        real *of;
        int64_t count;
    } cleared[] = {{dq, tokens * keys},
                   {dk, tokens * R * keys},
                   {dv, tokens * R * values},
                   {dbeta, tokens * R},
                   {ddecay, tokens * (lanes ? keys : 1)},
                   {dread, tokens * R * keys},
                   {derase, tokens * R * keys}};
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!of_tile || !of_heads || !of_keys) goto end;
    status = ROT_OK;
    for (size_t i = 0; i < sizeof cleared / sizeof *cleared; i++)
        if (cleared[i].of) zero_row(cleared[i].of, cleared[i].count);
#pragma omp parallel for schedule(dynamic) if (many(&p, B * H))
    for (int64_t sequence = 0; sequence < B * H; sequence++) { /* of a head */
        const int64_t b = sequence / H, head = sequence % H;
        const room r = room_of(of_tile, of_heads, of_keys, &p);
        for (int64_t i = 0; i < p.blocks; i++)
            load_state(r.g + i * keys * WIDTH, dhT ? dhT + sequence * size : NULL, span_of(values, i), &p);
        for (int64_t tile = p.tiles - 1; tile >= 0 && !stopped(stop); tile--) {
            const walk w = tokens_of_tile(&p, b, tile);
            const int64_t steps = w.steps * R;
            for (int64_t i = 0; steps && i < p.blocks; i++) {
                const span block = span_of(values, i);
                const int64_t width = width_of(block);
                real *const g = r.g + i * keys * WIDTH;
                load_state(r.before, carries + (sequence * p.tiles + tile) * size, block, &p);
                for (int64_t j = 0; j < steps; j++) {
                    const place here = place_of(&p, &in, w, head, j);
                    real *const h = r.before + j * keys * width, *const found = r.found + j * 2 * WIDTH;
                    errors(found, h, &in, &here, r.key, block, &p);
                    if (j + 1 < steps) advance(h + keys * width, h, found, &here, keys, block);
                }
                for (int64_t j = steps - 1; j >= 0; j--) {
                    const place here = place_of(&p, &in, w, head, j);
                    const real *const h = r.before + j * keys * width, *const found = r.found + j * 2 * WIDTH;
                    adjoint(g, h, found, dy, &in, &out, &here, block, &p);
                }
            }
        }
        for (int64_t i = 0; i < p.blocks; i++)
            store_state(dh0 + sequence * size, r.g + i * keys * WIDTH, span_of(values, i), &p);
    }
end:
    pool_give(of_tile), pool_give(of_heads), pool_give(of_keys);
    return status;
}
