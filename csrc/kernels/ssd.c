/* The scan of Mamba-2 (Dao and Gu 2024, "Transformers are SSMs"), whose transition is one number for each head, and its
 * adjoint, in chunks of SSD_CHUNK steps. For a head with state h (P,N), u_t = delta_t x_t (P), and B_t, C_t (N) of the
 * head's group:
 *
 *   h_t = exp(delta_t A) h_{t-1} + u_t B_t^T,    y_t = h_t C_t + skip x_t
 *
 * With s_k the sum of delta A over the steps of a chunk up to and including k, and h the state before the chunk:
 *
 *   y_k = sum_{j<=k} W_kj u_j + e^{s_k} h C_k + skip x_k,    W_kj = e^{s_k - s_j} C_k . B_j
 *   h_last = e^{s_last} h + sum_j e^{s_last - s_j} u_j B_j^T
 *
 * These are products of matrices (gemm_tile.h). No precision rounds their operands, as in all scans. Lower triangles
 * are computed in bands of BAND rows, up to the diagonal. C B^T is the same for all heads of a group. The sums s are in
 * double, because differences of large ones matter.
 *
 * A task is a sequence and some heads of a group; it walks through time. The division of work depends on the shapes
 * alone and every sum has one order, so results have the same bits for any number of threads.
 *
 * With `log_a` (B,T,H) in place of A, log_a is the logarithm of the transition. With `later` (B,T,H), `ranks`
 * consecutive steps are one token, and only its first step decays. Later tokens see u_t = (delta_t + later_t) x_t, but
 * each step of a token reads delta_j x_j of all steps j of its own token, earlier and later. Pairs of steps of one
 * token are therefore zero in W, and their terms are added separately. y_t contains no term of a later token, not even
 * one that cancels.
 *
 * With `negative`, the size of 2 exp(delta A) - 1 takes the place of exp(delta A). The sign of that transition is in x
 * and y, which the caller multiplies by the product of the signs so far.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 * `reverse`: time runs from lengths[b]-1 down to 0, by indexing; chunks are numbered in the order of the walk.
 */
#include <math.h>

#include "chunk.h"
#include "kernels.h"
#include "stop.h"
#include "workspace.h"

enum {
    TASKS = 16,     /* least number of tasks, if there are enough heads */
    SERIAL = 16384, /* numbers (B,T,H,P,N) below which one thread is used */
};

/* Sizes of a call, and the division of a group's heads into tasks. */
typedef struct {
    int64_t B, T, H, P, G, N;
    const int64_t *lengths;
    bool reverse, negative, threads;
    int64_t chunk, ranks;         /* steps of a chunk, and with `later` of a token */
    int64_t heads, parts, chunks; /* heads of a group, tasks of a group, chunks of a sequence */
} plan;

static plan plan_of(const int64_t *lengths, int64_t B, int64_t T, int64_t H, int64_t P, int64_t G, int64_t N,
                    int64_t reverse, int64_t negative, int64_t chunk, int64_t ranks) {
    const int64_t wanted = B ? pieces_of(TASKS, B * G) : 1, parts = most(least(wanted, H / G), 1);
    const plan p = {.B = B,
                    .T = T,
                    .H = H,
                    .P = P,
                    .G = G,
                    .N = N,
                    .lengths = lengths,
                    .reverse = reverse,
                    .negative = negative,
                    .threads = B * G * parts > 1 && B * T * H * P * N > SERIAL,
                    .chunk = chunk,
                    .ranks = ranks,
                    .heads = H / G,
                    .parts = parts,
                    .chunks = pieces_of(T, chunk)};
    return p;
}

/* The heads from `first` to `end` of a group of sequence b. */
typedef struct {
    int64_t b, group, part, first, end;
} task;

static task task_of(const plan *p, int64_t i) {
    const int64_t part = i % p->parts, group = i / p->parts % p->G, head = group * p->heads;
    const task t = {i / p->parts / p->G, group, part, head + part * p->heads / p->parts,
                    head + (part + 1) * p->heads / p->parts};
    return t;
}

static walk steps_of_chunk(const plan *p, int64_t b, int64_t chunk) {
    return walk_of(b, chunk, p->chunk, steps_of(p->lengths, b, p->T), p->T, p->reverse);
}

static place wide_of(const plan *p, walk w, int64_t head) { return place_of(w, p->H * p->P, head * p->P); }
static place head_of(const plan *p, walk w, int64_t head) { return place_of(w, p->H, head); }
static place group_of(const plan *p, walk w, int64_t group) { return place_of(w, p->G * p->N, group * p->N); }

/* The states of a head, in arrays (count, H, P, N). */
static int64_t state_of(const plan *p, int64_t i, int64_t head) { return (i * p->H + head) * p->P * p->N; }

typedef struct {
    const real *x, *delta, *A, *B, *C, *skip, *log_a, *later;
} inputs;

/* A thread's memory: matrices of a chunk, and packed matrices (gemm_tile.h). Squares are (CHUNK,CHUNK); only the lower
 * triangle counts. */
typedef struct {
    real *products, *weights, *pairs, *sum; /* squares: C B^T of a group; of a head; summed over heads */
    real *u, *dy, *du;                      /* (CHUNK,P) */
    real *scaled, *part, *dB, *dC;          /* (CHUNK,N) */
    real *packed_B, *packed_C, *packed;     /* (CHUNK,N); any matrix */
} room;

/* Numbers of the largest packed matrix. */
static int64_t packed_size(const plan *p) {
    const int64_t P = packed_columns(p->P), N = packed_columns(p->N), rows = most(most(p->P, p->N), CHUNK);
    return rows * most(most(P, N), packed_columns(CHUNK));
}

static int64_t room_size(const plan *p) {
    return 4 * SQUARE + 3 * CHUNK * p->P + 4 * CHUNK * p->N + 2 * CHUNK * packed_columns(p->N) + packed_size(p);
}

static room room_at(real *at, const plan *p) {
    const int64_t wide = CHUNK * p->P, states = CHUNK * p->N, packed = CHUNK * packed_columns(p->N);
    room r = {.products = at, .weights = at + SQUARE, .pairs = at + 2 * SQUARE, .sum = at + 3 * SQUARE};
    r.u = at + 4 * SQUARE, r.dy = r.u + wide, r.du = r.dy + wide;
    r.scaled = r.du + wide, r.part = r.scaled + states, r.dB = r.part + states, r.dC = r.dB + states;
    r.packed_B = r.dC + states, r.packed_C = r.packed_B + packed, r.packed = r.packed_C + packed;
    return r;
}

static void add_square(real *restrict sum, const real *restrict x, int64_t n) {
    for (int64_t k = 0; k < n; k++) add_row(sum + k * CHUNK, x + k * CHUNK, band_of(k, n));
}

/* A head's steps and decays over a chunk: delta_k, for the step's own token; delta_k + later_k in `size`; s_k, in units
 * of log 2; e^{s_k}, from the state before the chunk to step k; e^{s_last - s_k}, from step k to the state after it;
 * and e^{s_last}. */
typedef struct {
    real delta[CHUNK], size[CHUNK], since[CHUNK], until[CHUNK], whole;
    double s[CHUNK];
} decays;

static void decays_of(decays *d, const inputs *in, place one, int64_t head, int64_t n, bool negative) {
    const real *const delta = in->delta + one.first, *const log_a = in->log_a ? in->log_a + one.first : NULL;
    double s = 0;
    for (int64_t k = 0; k < n; k++) {
        d->delta[k] = delta[k * one.row];
        d->size[k] = in->later ? d->delta[k] + in->later[one.first + k * one.row] : d->delta[k];
        d->s[k] = s += log_a ? ssd_exponent(log_a[k * one.row], 1) : ssd_size(d->delta[k], in->A[head], negative);
    }
    d->whole = exp2_of((real)s);
    for (int64_t k = 0; k < n; k++) {
        d->since[k] = exp2_of((real)d->s[k]);
        d->until[k] = exp2_of((real)(s - d->s[k]));
    }
}

/* square_kj <- e^{s_k - s_j}, zero above the diagonal */
static void load_decays(real *restrict square, const double *restrict s, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        real *const row = square + k * CHUNK;
        for (int64_t j = 0; j <= k; j++) row[j] = (real)(s[k] - s[j]);
        for (int64_t j = k + 1; j < whole_band(k); j++) row[j] = -(real)INFINITY;
        for (int64_t j = 0; j < whole_band(k); j += LANES) store(row + j, exp2_of_vec(load(row + j)));
    }
}

/* The steps from `first` to `end` whose inputs reach step k without the state: with `later` all steps of its token,
 * else k.
 */
typedef struct {
    int64_t first, end;
} steps_of_token;

static steps_of_token token_of(const inputs *in, const plan *p, int64_t k, int64_t n) {
    const int64_t first = k / p->ranks * p->ranks;
    return in->later ? (steps_of_token){first, least(first + p->ranks, n)} : (steps_of_token){k, k + 1};
}

/* The gain by which x_j reaches y_k without the state. */
static real direct_gain(const inputs *in, const decays *d, const real *products, int64_t head, int64_t k, int64_t j) {
    const real skip = in->skip && j == k ? in->skip[head] : 0;
    return in->later ? skip + d->delta[j] * products[k * CHUNK + j] : skip;
}

/* With `later`, zeroes the pairs of a token's own steps in the square. */
static void leave_out_tokens(real *square, const inputs *in, const plan *p, int64_t n) {
    for (int64_t k = 0; in->later && k < n; k++) {
        const int64_t first = token_of(in, p, k, n).first;
        zero_row(square + k * CHUNK + first, k + 1 - first);
    }
}

/* C B^T of a group, with the pairs of a token's own steps above the diagonal, and B packed. */
static void load_group(const room *r, const inputs *in, const plan *p, place at, int64_t n) {
    const real *const B = in->B + at.first, *const C = in->C + at.first;
    pack(r->packed, B, p->N, n, 1, at.row);
    lower_product(r->products, (gemm_view){C, at.row, 1}, r->packed, n, p->N);
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = k + 1; j < token_of(in, p, k, n).end; j++)
            r->products[k * CHUNK + j] = dot(C + k * at.row, B + j * at.row, p->N);
    pack(r->packed_B, B, n, p->N, at.row, 1);
}

/* ---- forward ---- */

/* Computes y of a head, unless it is NULL, and advances h from before the chunk to after it. */
static void forward_head(real *y, real *h, const inputs *in, const plan *p, const room *r, int64_t head, walk w) {
    const int64_t P = p->P, N = p->N, n = w.steps;
    const place wide = wide_of(p, w, head), one = head_of(p, w, head), group = group_of(p, w, head / p->heads);
    const real *const x = in->x + wide.first;
    decays d;
    decays_of(&d, in, one, head, n, p->negative);
    scale_rows(r->u, d.size, x, wide.row, n, P);
    if (y) {
        real *const out = y + wide.first;
        scale_rows(r->scaled, d.since, in->C + group.first, group.row, n, N);
        pack(r->packed, h, N, P, 1, N);
        unrounded_product(out, wide.row, NULL, 0, (gemm_view){r->scaled, N, 1}, r->packed, n, N, P);
        load_decays(r->weights, d.s, n);
        multiply_lower(r->weights, r->weights, r->products, n);
        leave_out_tokens(r->weights, in, p, n);
        pack(r->packed, r->u, n, P, P, 1);
        add_lower(out, wide.row, r->weights, r->packed, n, P);
        for (int64_t k = 0; (in->skip || in->later) && k < n; k++) {
            const steps_of_token own = token_of(in, p, k, n);
            for (int64_t j = own.first; j < own.end; j++)
                add_scaled(out + k * wide.row, direct_gain(in, &d, r->products, head, k, j), x + j * wide.row, P);
        }
    }
    scale_rows(r->u, d.until, r->u, P, n, P);
    scale_state(h, d.whole, P * N);
    unrounded_product(h, N, h, N, (gemm_view){r->u, 1, P}, r->packed_B, P, n, N);
}

/* y (B,T,H,P), hT (B,H,P,N) and carries (B,chunks,H,P,N), the states before each chunk: each may be NULL; x (B,T,H,P),
 * delta (B,T,H), A (H) or NULL, B, C (B,T,G,N), skip (H) or NULL, h0 (B,H,P,N) or NULL, log_a (B,T,H) if A is NULL,
 * later (B,T,H) or NULL. */
KERNEL(ssd_forward) {
    const plan p = plan_of(lengths, batch, T, H, P, G, N, reverse, negative, chunk, ranks);
    const inputs in = {x, delta, A, B, C, skip, log_a, later};
    real *const states = WORKSPACE(real, batch, H, P, N), *const rooms = WORKSPACE(real, most_threads(), room_size(&p));
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!states || !rooms) goto end;
    status = ROT_OK;
    copy_or_zero_row(states, h0, batch * H * P * N);
    for (int64_t b = 0; y && b < batch; b++) zero_padding(y, b, steps_of(lengths, b, T), T, H * P);
#pragma omp parallel for schedule(dynamic) if (p.threads)
    for (int64_t i = 0; i < batch * G * p.parts; i++) {
        const task t = task_of(&p, i);
        const room r = room_at(rooms + thread_number() * room_size(&p), &p);
        const int64_t size = (t.end - t.first) * P * N;
        real *const own = states + state_of(&p, t.b, t.first);
        for (int64_t chunk = 0; chunk < p.chunks && !stopped(stop); chunk++) {
            const walk w = steps_of_chunk(&p, t.b, chunk);
            if (carries) copy_row(carries + state_of(&p, t.b * p.chunks + chunk, t.first), own, size);
            if (!w.steps) continue;
            load_group(&r, &in, &p, group_of(&p, w, t.group), w.steps);
            for (int64_t head = t.first; head < t.end; head++)
                forward_head(y, states + state_of(&p, t.b, head), &in, &p, &r, head, w);
        }
    }
    if (hT) copy_row(hT, states, batch * H * P * N);
end:
    pool_give(states), pool_give(rooms);
    return status;
}

/* ---- backward ---- */

/* Gradients; dA and dskip (B,H) of each sequence, dB and dC (B,T,G,N) of each part of a group. */
typedef struct {
    real *dx, *ddelta, *dA, *dskip, *dB, *dC, *dlog_a, *dlater;
} gradients;

/* A head over a chunk: h is the state before it; g is on entry the gradient of the state after it, then of h. Adds to
 * the room's dB, dC and `sum`, the sum over heads of the decays times dy u^T. */
static void backward_head(const gradients *out, real *g, const real *dy, const real *h, const inputs *in, const plan *p,
                          const room *r, int64_t b, int64_t head, walk w) {
    const int64_t P = p->P, N = p->N, n = w.steps;
    const place wide = wide_of(p, w, head), one = head_of(p, w, head), group = group_of(p, w, head / p->heads);
    const real *const x = in->x + wide.first, *const B = in->B + group.first, *const C = in->C + group.first;
    decays d;
    real since[CHUNK], until[CHUNK], dlog[CHUNK];
    dy += wide.first;
    decays_of(&d, in, one, head, n, p->negative);
    scale_rows(r->u, d.size, x, wide.row, n, P);

    pack(r->packed, r->u, P, n, 1, P);
    lower_product(r->pairs, (gemm_view){dy, wide.row, 1}, r->packed, n, P);
    load_decays(r->weights, d.s, n);
    leave_out_tokens(r->weights, in, p, n);
    multiply_lower(r->pairs, r->pairs, r->weights, n);
    add_square(r->sum, r->pairs, n);
    multiply_lower(r->pairs, r->pairs, r->products, n);
    multiply_lower(r->weights, r->weights, r->products, n);

    scale_rows(r->scaled, d.until, B, group.row, n, N); /* du = W^T dy + e^{s_last - s} B g^T */
    pack(r->packed, g, N, P, 1, N);
    unrounded_product(r->du, P, NULL, 0, (gemm_view){r->scaled, N, 1}, r->packed, n, N, P);
    pack(r->packed, dy, n, P, wide.row, 1);
    add_lower_transposed(r->du, P, r->weights, r->packed, n, P);

    scale_rows(r->dy, d.since, dy, wide.row, n, P); /* dC += e^s dy h */
    pack(r->packed, h, P, N, N, 1);
    unrounded_product(r->part, N, NULL, 0, (gemm_view){r->dy, P, 1}, r->packed, n, P, N);
    for (int64_t k = 0; k < n; k++) since[k] = dot(r->part + k * N, C + k * group.row, N);
    add_row(r->dC, r->part, n * N);

    scale_rows(r->u, d.until, r->u, P, n, P); /* dB += e^{s_last - s} u g */
    pack(r->packed, g, P, N, N, 1);
    unrounded_product(r->part, N, NULL, 0, (gemm_view){r->u, P, 1}, r->packed, n, P, N);
    for (int64_t k = 0; k < n; k++) until[k] = dot(r->part + k * N, B + k * group.row, N);
    add_row(r->dB, r->part, n * N);

    decays_adjoint(dlog, r->pairs, since, until, d.whole * dot(h, g, P * N), n);
    scale_state(g, d.whole, P * N); /* g <- e^{s_last} g + dy^T e^s C */
    unrounded_product(g, N, g, N, (gemm_view){r->dy, 1, P}, r->packed_C, P, n, N);

    for (int64_t k = 0; p->negative && k < n; k++) dlog[k] *= (real)ssd_slope(d.delta[k], in->A[head], true);
    for (int64_t j = 0; j < n; j++) {
        const real *const du = r->du + j * P, *const x_j = x + j * wide.row;
        real *const dx = out->dx + wide.first + j * wide.row;
        const real gain = direct_gain(in, &d, r->products, head, j, j), through = dot(x_j, du, P);
        const steps_of_token own = token_of(in, p, j, n);
        const int64_t at = one.first + j * one.row;
        real direct = 0; /* gradient of delta_j from the outputs of its own token */
        for (int64_t i = 0; i < P; i++) dx[i] = d.size[j] * du[i] + gain * dy[j * wide.row + i];
        for (int64_t k = own.first; k < own.end; k++) {
            const real *const dy_k = dy + k * wide.row;
            const real pair = dot(dy_k, x_j, P), weight = d.delta[j] * pair;
            if (k == j) out->dskip[b * p->H + head] += pair;
            if (k != j) add_scaled(dx, direct_gain(in, &d, r->products, head, k, j), dy_k, P);
            if (!in->later) continue;
            direct += r->products[k * CHUNK + j] * pair;
            add_scaled(r->dB + j * N, weight, C + k * group.row, N);
            add_scaled(r->dC + k * N, weight, B + j * group.row, N);
        }
        out->ddelta[at] = through + direct + (in->A ? in->A[head] * dlog[j] : 0);
        out->dA[b * p->H + head] += d.delta[j] * dlog[j];
        if (in->log_a) out->dlog_a[at] = dlog[j];
        if (in->later) out->dlater[at] = through;
    }
}

/* A task's heads over a chunk. */
static void backward_chunk(const gradients *out, real *g, const real *dy, const real *carries, const inputs *in,
                           const plan *p, const room *r, const task *t, int64_t chunk, walk w) {
    const int64_t N = p->N, n = w.steps;
    const place at = group_of(p, w, t->group);
    load_group(r, in, p, at, n);
    pack(r->packed_C, in->C + at.first, n, N, at.row, 1);
    zero_row(r->sum, SQUARE);
    zero_row(r->dB, n * N);
    zero_row(r->dC, n * N);
    for (int64_t head = t->first; head < t->end; head++)
        backward_head(out, g + state_of(p, t->b, head), dy, carries + state_of(p, t->b * p->chunks + chunk, head), in,
                      p, r, t->b, head, w);
    add_lower(r->dC, N, r->sum, r->packed_B, n, N);
    add_lower_transposed(r->dB, N, r->sum, r->packed_C, n, N);
    for (int64_t k = 0; k < n; k++) {
        copy_row(out->dB + at.first + k * at.row, r->dB + k * N, N);
        copy_row(out->dC + at.first + k * at.row, r->dC + k * N, N);
    }
}

/* The valid steps of sequence b in y (B,T,width) <- the sum of `parts` arrays like y, in order. */
static void sum_parts(real *y, const real *parts, const plan *p, int64_t b, int64_t width) {
    const int64_t first = b * p->T * width, size = steps_of(p->lengths, b, p->T) * width;
    zero_row(y + first, size);
    for (int64_t i = 0; i < p->parts; i++) add_row(y + first, parts + i * p->B * p->T * width + first, size);
}

/* dx (B,T,H,P), ddelta (B,T,H), dA (H), dB, dC (B,T,G,N), dskip (H), dh0 (B,H,P,N), dlog_a and dlater (B,T,H), all
 * overwritten, dA, dskip, dlog_a and dlater NULL where forward had no such input; dy
 * (B,T,H,P), dhT (B,H,P,N) or NULL, carries as forward wrote them, the rest as in forward. With e_t = exp(delta_t A):
 *
 *   g_t = dy_t C_t^T + e_{t+1} g_{t+1}    with boundary g_{T-1} = dy_{T-1} C_{T-1}^T + dhT
 *   du_t = g_t B_t,    dB_t = g_t^T u_t,    dC_t = h_t^T dy_t,    dh0 = e_0 g_0  (dhT if no steps)
 *   dx_t = delta_t du_t + skip dy_t,    dskip = sum dy_t . x_t,    dA = sum delta_t e_t g_t . h_{t-1}
 *   ddelta_t = x_t . du_t + A e_t g_t . h_{t-1},    dlog_a = e_t g_t . h_{t-1}
 *   with `later`: u_t = (delta_t + later_t) x_t, dlater_t = x_t . du_t, where g_t has no outputs of t's own token; the
 *   pairs of its steps k and j add terms to dx_j, ddelta_j, dB_j and dC_k
 *
 * dB and dC are sums over a group's heads. In chunks these are the adjoints of the products above; each sum over pairs
 * of steps is again a product with a lower triangle. With `negative`, e_t is the size of the transition in g_t and dh0,
 * and its derivative by delta A elsewhere. */
KERNEL(ssd_backward) {
    const plan p = plan_of(lengths, batch, T, H, P, G, N, reverse, negative, chunk, ranks);
    const inputs in = {x, delta, A, B, C, skip, log_a, later};
    const int64_t rows = batch * T * G * N;
    const bool several = p.parts > 1;
    real *const sums = WORKSPACE(real, 2, batch, H), *const rooms = WORKSPACE(real, most_threads(), room_size(&p));
    real *const parts = several ? WORKSPACE(real, 2, p.parts, batch, T, G, N) : NULL;
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!sums || !rooms || (several && !parts)) goto end;
    status = ROT_OK;
    copy_or_zero_row(dh0, dhT, batch * H * P * N);
    zero_row(sums, 2 * batch * H);
#pragma omp parallel for schedule(dynamic) if (p.threads)
    for (int64_t i = 0; i < batch * G * p.parts; i++) {
        const task t = task_of(&p, i);
        const room r = room_at(rooms + thread_number() * room_size(&p), &p);
        const gradients out = {dx,
                               ddelta,
                               sums,
                               sums + batch * H,
                               several ? parts + t.part * rows : dB,
                               several ? parts + (p.parts + t.part) * rows : dC,
                               dlog_a,
                               dlater};
        for (int64_t chunk = p.chunks - 1; chunk >= 0 && !stopped(stop); chunk--) {
            const walk w = steps_of_chunk(&p, t.b, chunk);
            if (w.steps) backward_chunk(&out, dh0, dy, carries, &in, &p, &r, &t, chunk, w);
        }
    }
#pragma omp parallel for schedule(static) if (p.threads)
    for (int64_t b = 0; b < batch; b++) {
        const int64_t all = steps_of(lengths, b, T);
        if (several) {
            sum_parts(dB, parts, &p, b, G * N);
            sum_parts(dC, parts + p.parts * rows, &p, b, G * N);
        }
        zero_padding(dx, b, all, T, H * P);
        zero_padding(ddelta, b, all, T, H);
        if (dlog_a) zero_padding(dlog_a, b, all, T, H);
        if (dlater) zero_padding(dlater, b, all, T, H);
        zero_padding(dB, b, all, T, G * N);
        zero_padding(dC, b, all, T, G * N);
    }
    if (dA) zero_row(dA, H);
    if (dskip) zero_row(dskip, H);
    for (int64_t b = 0; b < batch; b++) {
        if (dA) add_row(dA, sums + b * H, H);
        if (dskip) add_row(dskip, sums + (batch + b) * H, H);
    }
end:
    pool_give(sums), pool_give(rooms), pool_give(parts);
    return status;
}
