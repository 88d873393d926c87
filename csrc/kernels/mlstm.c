/* The matrix memory of the mLSTM (Beck et al. 2024, "xLSTM", equations 19 to 27) and its adjoint, in chunks of CHUNK
 * steps. A head has queries q_t and keys k_t (N), values v_t (P), input gate i_t = exp(log_i) and forget gate f_t =
 * exp(log_f):
 *
 *   C_t = f_t C_{t-1} + i_t v_t k_t^T,    n_t = f_t n_{t-1} + i_t k_t,    y_t = C_t q_t / max(|n_t . q_t|, 1)
 *
 * The normaliser n is one more row of the matrix C, for a value that is always 1. Below, v_t means (v_t, 1), S_t is the
 * matrix (P+1,N) of both, and Y_t = S_t q_t holds the numerator and the denominator of y. This is a linear scan with
 * one transition for each head, like Mamba-2's (ssd.c), and a quotient.
 *
 * Gates may overflow, so the stored state is e^{-m_t} S_t, with a level m_t that follows the largest term:
 *
 *   m_t = max(log f_t + m_{t-1}, log i_t)
 *
 * and y_t is a quotient of equally scaled numbers, with max(|.|, e^{-m_t}) for max(|.|, 1): y does not depend on m.
 * With b_k the sum of log f over the steps of a chunk up to k, a_j = log i_j - b_j, and m, S before the chunk:
 *
 *   m_k = b_k + p_k,    p_k = max(m, a_0 .. a_k)
 *   e^{-m_k} Y_k = sum_{j<=k} W_kj v_j + e^{m - p_k} (e^{-m} S) q_k,    W_kj = e^{a_j - p_k} q_k . k_j
 *   e^{-m_last} S_last = e^{m - p_last} (e^{-m} S) + sum_j e^{a_j - p_last} v_j k_j^T
 *
 * where no exponent is positive. The exponents a, b and p are in double and in units of log 2, because differences of
 * large numbers matter. The stored level is rounded, and the rounded level scales the state after the chunk.
 *
 * A task is a head of a sequence; it walks through time. Every sum has one order, so results have the same bits for any
 * number of threads. `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as
 * zero.
 */
#include <math.h>

#include "chunk.h"
#include "kernels.h"
#include "stop.h"
#include "workspace.h"

enum { SERIAL = 16384 }; /* numbers (B,T,H,P,N) below which one thread is used */

/* Sizes of a call; R = P + 1 rows of a state. */
typedef struct {
    int64_t B, T, H, P, N, R, chunks;
    const int64_t *lengths;
    bool threads;
} plan;

static plan plan_of(const int64_t *lengths, int64_t B, int64_t T, int64_t H, int64_t P, int64_t N) {
    const plan p = {.B = B,
                    .T = T,
                    .H = H,
                    .P = P,
                    .N = N,
                    .R = P + 1,
                    .chunks = pieces_of(T, CHUNK),
                    .lengths = lengths,
                    .threads = B * H > 1 && B * T * H * P * N > SERIAL};
    return p;
}

/* A head over a chunk: its index among the heads of all sequences; the steps; the places of its keys, values and
 * gates. */
typedef struct {
    int64_t head, chunk, steps;
    place key, value, gate;
} piece;

static piece piece_of(const plan *p, int64_t i, int64_t chunk) {
    const int64_t b = i / p->H, head = i % p->H;
    const walk w = walk_of(b, chunk, CHUNK, steps_of(p->lengths, b, p->T), p->T, false);
    const piece a = {i,
                     b * p->chunks * p->H + chunk * p->H + head,
                     w.steps,
                     place_of(w, p->H * p->N, head * p->N),
                     place_of(w, p->H * p->P, head * p->P),
                     place_of(w, p->H, head)};
    return a;
}

typedef struct {
    const real *q, *k, *v, *log_i, *log_f;
} inputs;

/* A thread's memory: squares of pairs of steps, matrices of a chunk, and packed matrices (gemm_tile.h). */
typedef struct {
    real *products, *weights, *pairs;   /* squares */
    real *v, *y, *dv;                   /* (CHUNK,R) */
    real *scaled;                       /* (CHUNK,N) */
    real *packed_k, *packed_q, *packed; /* (CHUNK,N); any matrix */
} room;

static int64_t packed_size(const plan *p) {
    const int64_t R = packed_columns(p->R), N = packed_columns(p->N), rows = most(most(p->R, p->N), CHUNK);
    return rows * most(most(R, N), packed_columns(CHUNK));
}

static int64_t room_size(const plan *p) {
    return 3 * SQUARE + 3 * CHUNK * p->R + CHUNK * p->N + 2 * CHUNK * packed_columns(p->N) + packed_size(p);
}

static room room_at(real *at, const plan *p) {
    const int64_t wide = CHUNK * p->R, states = CHUNK * p->N, packed = CHUNK * packed_columns(p->N);
    room r = {.products = at, .weights = at + SQUARE, .pairs = at + 2 * SQUARE, .v = at + 3 * SQUARE};
    r.y = r.v + wide, r.dv = r.y + wide, r.scaled = r.dv + wide;
    r.packed_k = r.scaled + states, r.packed_q = r.packed_k + packed, r.packed = r.packed_q + packed;
    return r;
}

/* The exponents of a chunk, in units of log 2, and the factors: e^{m - p_k}, from the state before the chunk to step k;
 * e^{a_k - p_last}, from step k to the state after it; e^{m - p_last}; e^{-m_k}, the least denominator; the level after
 * the chunk; and the step whose gate sets that level, -1 if none does. */
typedef struct {
    double a[CHUNK], p[CHUNK];
    real since[CHUNK], until[CHUNK], whole, least[CHUNK], level;
    int64_t largest;
} exponents;

static void exponents_of(exponents *e, const inputs *in, const piece *at, real level) {
    const double before = level_exponent(level);
    double b = 0, p = before;
    e->largest = -1;
    for (int64_t k = 0; k < at->steps; k++) {
        const int64_t gate = at->gate.first + k * at->gate.row;
        b += gate_exponent(in->log_f[gate]);
        e->a[k] = gate_exponent(in->log_i[gate]) - b;
        if (e->a[k] > p) p = e->a[k], e->largest = k;
        e->p[k] = p;
        e->since[k] = exp2_of((real)(before - p));
        e->least[k] = least_denominator(b + p);
    }
    e->level = level_of_exponent(b + p);
    p = level_exponent(e->level) - b;
    e->whole = exp2_of((real)(before - p));
    for (int64_t k = 0; k < at->steps; k++) e->until[k] = exp2_of((real)(e->a[k] - p));
}

/* square_kj <- e^{a_j - p_k}, zero above the diagonal */
static void load_weights(real *restrict square, const exponents *e, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        real *const row = square + k * CHUNK;
        for (int64_t j = 0; j <= k; j++) row[j] = (real)(e->a[j] - e->p[k]);
        for (int64_t j = k + 1; j < whole_band(k); j++) row[j] = -(real)INFINITY;
        for (int64_t j = 0; j < whole_band(k); j += LANES) store(row + j, exp2_of_vec(load(row + j)));
    }
}

/* q k^T, the values with a 1 after each, and the keys packed. */
static void load_chunk(const room *r, const inputs *in, const plan *p, const piece *at) {
    const int64_t n = at->steps, N = p->N, row = at->key.row;
    const real *const k = in->k + at->key.first;
    pack(r->packed, k, N, n, 1, row);
    lower_product(r->products, (gemm_view){in->q + at->key.first, row, 1}, r->packed, n, N);
    pack(r->packed_k, k, n, N, row, 1);
    for (int64_t t = 0; t < n; t++) {
        copy_row(r->v + t * p->R, in->v + at->value.first + t * at->value.row, p->P);
        r->v[t * p->R + p->P] = 1;
    }
}

/* ---- forward ---- */

/* y, the scaled denominators n . q, and the scaled state and its level, which advance from before the chunk to after
 * it. */
static void forward_chunk(real *y, real *den, real *state, real *level, const inputs *in, const plan *p, const room *r,
                          const piece *at) {
    const int64_t n = at->steps, P = p->P, N = p->N, R = p->R;
    exponents e;
    exponents_of(&e, in, at, *level);
    load_chunk(r, in, p, at);
    scale_rows(r->scaled, e.since, in->q + at->key.first, at->key.row, n, N);
    pack(r->packed, state, N, R, 1, N);
    unrounded_product(r->y, R, NULL, 0, (gemm_view){r->scaled, N, 1}, r->packed, n, N, R);
    load_weights(r->weights, &e, n);
    multiply_lower(r->weights, r->weights, r->products, n);
    pack(r->packed, r->v, n, R, R, 1);
    add_lower(r->y, R, r->weights, r->packed, n, R);
    for (int64_t k = 0; k < n; k++) {
        const real dot_n = r->y[k * R + P], inverse = 1 / denominator_of(dot_n, e.least[k]);
        scale_row(y + at->value.first + k * at->value.row, inverse, r->y + k * R, P);
        den[at->gate.first + k * at->gate.row] = dot_n;
    }
    scale_rows(r->v, e.until, r->v, R, n, R);
    scale_state(state, e.whole, R * N);
    unrounded_product(state, N, state, N, (gemm_view){r->v, 1, R}, r->packed_k, R, n, N);
    *level = e.level;
}

/* y (B,T,H,P), den (B,T,H), cT (B,H,P,N), nT (B,H,N), mT (B,H); carries (B,chunks,H,P+1,N) and levels (B,chunks,H), the
 * scaled states before each chunk and their levels; q, k (B,T,H,N), v (B,T,H,P), log_i, log_f (B,T,H); c0, n0, m0 like
 * cT, nT, mT, or NULL for zeros. */
KERNEL(mlstm_forward) {
    const plan p = plan_of(lengths, batch, T, H, P, N);
    const inputs in = {q, k, v, log_i, log_f};
    const int64_t size = p.R * N;
    real *const states = WORKSPACE(real, batch, H, p.R, N), *const rooms =
                                                                WORKSPACE(real, most_threads(), room_size(&p));
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!states || !rooms) goto end;
    status = ROT_OK;
#pragma omp parallel for schedule(dynamic) if (p.threads)
    for (int64_t i = 0; i < batch * H; i++) {
        const room r = room_at(rooms + thread_number() * room_size(&p), &p);
        real *const state = states + i * size;
        copy_or_zero_row(state, c0 ? c0 + i * P * N : NULL, P * N);
        copy_or_zero_row(state + P * N, n0 ? n0 + i * N : NULL, N);
        mT[i] = m0 ? m0[i] : 0;
        for (int64_t chunk = 0; chunk < p.chunks && !stopped(stop); chunk++) {
            const piece at = piece_of(&p, i, chunk);
            copy_row(carries + at.chunk * size, state, size);
            levels[at.chunk] = mT[i];
            if (at.steps) forward_chunk(y, den, state, mT + i, &in, &p, &r, &at);
        }
        copy_row(cT + i * P * N, state, P * N);
        copy_row(nT + i * N, state + P * N, N);
    }
    for (int64_t b = 0; b < batch; b++) {
        zero_padding(y, b, steps_of(lengths, b, T), T, H * P);
        zero_padding(den, b, steps_of(lengths, b, T), T, H);
    }
end:
    pool_give(states), pool_give(rooms);
    return status;
}

/* ---- backward ---- */

typedef struct {
    real *dq, *dk, *dv, *dlog_i, *dlog_f;
} gradients;

/* The outputs of forward, and the gradient of y. */
typedef struct {
    const real *dy, *y, *den;
} outputs;

/* dY of the quotient y = Y / max(|Y_P|, least), scaled like Y:  dY = dy / max,  dY_P = -sign(Y_P) dy . y / max, or 0
 * where `least` is larger. */
static void quotient_adjoint(real *restrict dY, const outputs *out, const exponents *e, const plan *p,
                             const piece *at) {
    for (int64_t k = 0; k < at->steps; k++) {
        const int64_t value = at->value.first + k * at->value.row;
        const real den = out->den[at->gate.first + k * at->gate.row], inverse = 1 / denominator_of(den, e->least[k]);
        real *const row = dY + k * p->R;
        scale_row(row, inverse, out->dy + value, p->P);
        row[p->P] = 0;
        if (ROT_ABS(den) > e->least[k])
            row[p->P] = -ROT_COPYSIGN(inverse, den) * dot(out->dy + value, out->y + value, p->P);
    }
}

/* Adds the gradient `dlevel` of the level after a chunk to its gates: the input gate that set the level and the later
 * forget gates; or, if no gate set it, all forget gates. Returns the gradient of the level before the chunk. */
static real level_adjoint(real *restrict dlog_i, real *restrict dlog_f, real dlevel, int64_t largest, int64_t n) {
    for (int64_t k = largest + 1; k < n; k++) dlog_f[k] += dlevel;
    if (largest < 0) return dlevel;
    dlog_i[largest] += dlevel;
    return 0;
}

/* A head over a chunk. `state` (scaled) and `level` are from before the chunk. g is on entry the gradient of the scaled
 * state after the chunk, then of the scaled state before it; dlevel likewise for the level, at fixed unscaled states.
 * In the last chunk dlevel is on entry the gradient at fixed scaled states. */
static void backward_chunk(const gradients *d, real *g, real *dlevel, const outputs *out, const real *state, real level,
                           const inputs *in, const plan *p, const room *r, const piece *at, bool last) {
    const int64_t n = at->steps, P = p->P, N = p->N, R = p->R, row = at->key.row;
    const real *const q = in->q + at->key.first, *const k = in->k + at->key.first;
    real since[CHUNK], until[CHUNK], dlog_i[CHUNK], dlog_f[CHUNK];
    exponents e;
    exponents_of(&e, in, at, level);
    load_chunk(r, in, p, at);
    pack(r->packed_q, q, n, N, row, 1);
    quotient_adjoint(r->y, out, &e, p, at);

    pack(r->packed, r->v, R, n, 1, R);
    lower_product(r->pairs, (gemm_view){r->y, R, 1}, r->packed, n, R);
    load_weights(r->weights, &e, n);
    multiply_lower(r->pairs, r->pairs, r->weights, n);
    multiply_lower(r->weights, r->weights, r->products, n);
    multiply_lower(r->products, r->products, r->pairs, n);

    scale_rows(r->scaled, e.until, k, row, n, N); /* dv = W^T dY + e^{a - p_last} k g^T */
    pack(r->packed, g, N, R, 1, N);
    unrounded_product(r->dv, R, NULL, 0, (gemm_view){r->scaled, N, 1}, r->packed, n, N, R);
    pack(r->packed, r->y, n, R, R, 1);
    add_lower_transposed(r->dv, R, r->weights, r->packed, n, R);
    for (int64_t t = 0; t < n; t++) {
        dlog_i[t] = dot(r->v + t * R, r->dv + t * R, R);
        copy_row(d->dv + at->value.first + t * at->value.row, r->dv + t * R, P);
    }

    scale_rows(r->v, e.until, r->v, R, n, R); /* dk = e^{a - p_last} v g + (e^{a - p} dY . v)^T q */
    pack(r->packed, g, R, N, N, 1);
    unrounded_product(r->scaled, N, NULL, 0, (gemm_view){r->v, R, 1}, r->packed, n, R, N);
    for (int64_t t = 0; t < n; t++) until[t] = dot(r->scaled + t * N, k + t * row, N);
    add_lower_transposed(r->scaled, N, r->pairs, r->packed_q, n, N);
    for (int64_t t = 0; t < n; t++) copy_row(d->dk + at->key.first + t * row, r->scaled + t * N, N);

    scale_rows(r->y, e.since, r->y, R, n, R); /* dq = e^{m - p} dY S + (e^{a - p} dY . v) k */
    pack(r->packed, state, R, N, N, 1);
    unrounded_product(r->scaled, N, NULL, 0, (gemm_view){r->y, R, 1}, r->packed, n, R, N);
    for (int64_t t = 0; t < n; t++) since[t] = dot(r->scaled + t * N, q + t * row, N);
    add_lower(r->scaled, N, r->pairs, r->packed_k, n, N);
    for (int64_t t = 0; t < n; t++) copy_row(d->dq + at->key.first + t * row, r->scaled + t * N, N);

    const real whole = e.whole * dot(state, g, R * N);
    decays_adjoint(dlog_f, r->products, since, until, whole, n);
    if (last) *dlevel -= whole + row_sum(until, n); /* <scaled state, its gradient> */
    *dlevel = level_adjoint(dlog_i, dlog_f, *dlevel, e.largest, n);
    for (int64_t t = 0; t < n; t++) {
        d->dlog_i[at->gate.first + t * at->gate.row] = dlog_i[t];
        d->dlog_f[at->gate.first + t * at->gate.row] = dlog_f[t];
    }
    scale_state(g, e.whole, R * N); /* g <- e^{m - p_last} g + dY^T e^{m - p} q */
    unrounded_product(g, N, g, N, (gemm_view){r->y, 1, R}, r->packed_q, R, n, N);
}

/* dq, dk (B,T,H,N), dv (B,T,H,P), dlog_i, dlog_f (B,T,H), dc0 (B,H,P,N), dn0 (B,H,N), dm0 (B,H), all overwritten; dy
 * (B,T,H,P); dcT, dnT, dmT like cT, nT, mT, or NULL for zeros; the rest as given to forward or written by it. With dY_t
 * the adjoint of the quotient, for unscaled states:
 *
 *   g_t = dY_t q_t^T + f_{t+1} g_{t+1}    with boundary g_T = e^{-m_T} (dcT, dnT) for the state after the last step
 *   dq_t = S_t^T dY_t,    dv_t = i_t g_t k_t,    dk_t = i_t g_t^T v_t
 *   dlog_i_t = v_t . dv_t,    dlog_f_t = f_t g_t . S_{t-1},    (dc0, dn0) = e^{m0} f_0 g_0  (dcT, dnT if no steps)
 *
 * The levels matter only for the final state e^{-m_T} S_T, which gives mT the additional gradient -(dcT, dnT) . (cT,
 * nT). The gradient of m_T goes to the gates that set m_T. dm0 also has (dc0, dn0) . (c0, n0), because S_{-1} = e^{m0}
 * (c0, n0). Everything is computed scaled, g_t by e^{m_t}, in chunks like forward. */
KERNEL(mlstm_backward) {
    const plan p = plan_of(lengths, batch, T, H, P, N);
    const inputs in = {q, k, v, log_i, log_f};
    const outputs out = {dy, y, den};
    const gradients d = {dq, dk, dv, dlog_i, dlog_f};
    const int64_t size = p.R * N;
    real *const states = WORKSPACE(real, batch, H, p.R, N), *const rooms =
                                                                WORKSPACE(real, most_threads(), room_size(&p));
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!states || !rooms) goto end;
    status = ROT_OK;
#pragma omp parallel for schedule(dynamic) if (p.threads)
    for (int64_t i = 0; i < batch * H; i++) {
        const room r = room_at(rooms + thread_number() * room_size(&p), &p);
        real *const g = states + i * size;
        bool last = true;
        copy_or_zero_row(g, dcT ? dcT + i * P * N : NULL, P * N);
        copy_or_zero_row(g + P * N, dnT ? dnT + i * N : NULL, N);
        dm0[i] = dmT ? dmT[i] : 0;
        for (int64_t chunk = p.chunks - 1; chunk >= 0 && !stopped(stop); chunk--) {
            const piece at = piece_of(&p, i, chunk);
            if (!at.steps) continue;
            backward_chunk(&d, g, dm0 + i, &out, carries + at.chunk * size, levels[at.chunk], &in, &p, &r, &at, last);
            last = false;
        }
        if (!last) dm0[i] += dot(carries + piece_of(&p, i, 0).chunk * size, g, size);
        copy_row(dc0 + i * P * N, g, P * N);
        copy_row(dn0 + i * N, g + P * N, N);
    }
    for (int64_t b = 0; b < batch; b++) {
        const int64_t all = steps_of(lengths, b, T);
        zero_padding(dq, b, all, T, H * N);
        zero_padding(dk, b, all, T, H * N);
        zero_padding(dv, b, all, T, H * P);
        zero_padding(dlog_i, b, all, T, H);
        zero_padding(dlog_f, b, all, T, H);
    }
end:
    pool_give(states), pool_give(rooms);
    return status;
}
