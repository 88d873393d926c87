/* Causal multi-head attention, softmax(q k^T / sqrt(Dh)) v for each head, and its adjoint, in memory linear in T.
 *
 * Scores are computed a tile at a time, KEYS keys by QUERIES queries, and never stored: forward keeps each query's
 * running maximum m and sum (Milakov and Gimelshein 2018), backward recomputes them (Dao et al. 2022). Tiles hold keys
 * as rows and queries as columns, in the panels of gemm_tile.h. A tile of probabilities is then already the packed
 * matrix of the next product, keys and values are read in place, and the loop over a row is a loop over queries.
 *
 * The call's precision rounds q, k, v, dy and the tiles of probabilities and of their gradients as operands of products
 * (gemm_tile.h). The scale of the scores is then applied after the products, otherwise to the queries.
 *
 * A query visits its keys from its own key backwards: its first tile always has a key that it sees. Query t of sequence
 * b is at position past[b] + t of its keys, and sees those up to its own position, the last `window` of them.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "gemm_tile.h"
#include "kernels.h"
#include "lanes.h"
#include "stop.h"
#include "workspace.h"

enum {
    QUERIES = 64,    /* of a tile: whole panels on every instruction set */
    KEYS = 64,       /* not fewer: see above */
    MAX_GROUPS = 64, /* tasks with a workspace of their own */
    SERIAL = 1 << 14,
};
static_assert(QUERIES % NR == 0 && KEYS >= QUERIES, "a tile is whole panels, and holds its queries' own keys");

typedef struct {
    const int64_t *lengths, *past;
    int64_t B, T, S, H, D, Dh, window;
    rounding how;
    real before, after; /* factors of the queries, and of the products: one is 1/sqrt(Dh), the other is 1 */
} shape;

static shape shape_of(const int64_t *lengths, const int64_t *past, int64_t B, int64_t T, int64_t S, int64_t D,
                      int64_t H, int64_t window) {
    const int64_t Dh = D / H;
    const real scale = (real)(1 / sqrt((double)Dh));
    const rounding how = rounding_of_call();
    const bool after = how != ROUND_NONE; /* a rounded number times the scale would not be rounded */
    const shape s = {lengths, past, B, T, S, H, D, Dh, window, how, after ? 1 : scale, after ? scale : 1};
    return s;
}

/* A tile's queries: `count` of them from step t on, of one head of sequence b; the first is at position `place`. */
typedef struct {
    int64_t b, h, t, count, place;
} queries;

static queries queries_of(const shape *s, int64_t b, int64_t h, int64_t t) {
    const int64_t steps = steps_of(s->lengths, b, s->T);
    const queries q = {b, h, t, most(least(steps - t, QUERIES), 0), (s->past ? s->past[b] : 0) + t};
    return q;
}

/* Whether every sequence has a key for each of its queries. */
static bool keys_suffice(const shape *s) {
    bool suffice = true;
    for (int64_t b = 0; b < s->B; b++) suffice &= (s->past ? s->past[b] : 0) <= s->S - steps_of(s->lengths, b, s->T);
    return suffice;
}

/* The first key that any of the queries sees, and one past the last. */
static int64_t first_key(const shape *s, queries q) { return s->window ? most(q.place - s->window + 1, 0) : 0; }
static int64_t end_key(queries q) { return q.place + q.count; }

static int64_t query_row(const shape *s, queries q) { return (q.b * s->T + q.t) * s->D + q.h * s->Dh; }
static int64_t key_row(const shape *s, queries q, int64_t key) { return (q.b * s->S + key) * s->D + q.h * s->Dh; }

/* Number of panels for `count` queries, and of columns to compute in the p-th, a multiple of the vector length. */
static int64_t panels_of(int64_t count) { return pieces_of(count, NR); }
static int64_t lanes_of(int64_t count, int64_t p) { return vectors_for(least(count - p * NR, NR)) * LANES; }

static void times(real *x, real factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] *= factor;
}

/* panels[p][k][NR]: column j of rows (depth, QUERIES) is x(j, k) = x[j*D + k], zero beyond `count`; times scale. */
static void pack_queries(real *panels, const real *x, const shape *s, int64_t count, real scale) {
    pack(panels, x, s->Dh, count, 1, s->D);
    times(panels, scale, panels_of(count) * NR * s->Dh);
}

/* x(j, k) = panels' column j times factor[j]: the inverse of pack_queries. */
static void unpack_queries(real *x, const real *panels, const real *factor, const shape *s, int64_t count) {
    for (int64_t j = 0; j < count; j++) {
        const real *const column = panels + j / NR * NR * s->Dh + j % NR;
        for (int64_t k = 0; k < s->Dh; k++) x[j * s->D + k] = column[k * NR] * factor[j];
    }
}

/* tile (panel, key, NR) = x (keys, Dh) times the packed queries. */
static void tile_product(real *tile, const real *x, const real *packed, const shape *s, int64_t keys, int64_t count) {
    for (int64_t p = 0; p < panels_of(count); p++)
        product(tile + p * KEYS * NR, NR, NULL, 0, (gemm_view){x, s->D, 1}, packed + p * NR * s->Dh, keys, s->Dh,
                lanes_of(count, p), s->how);
}

/* The tile of scores, from the packed queries. */
static void scores_of(real *tile, const real *k, const real *packed, const shape *s, int64_t keys, int64_t count) {
    tile_product(tile, k, packed, s, keys, count);
    for (int64_t p = 0; s->after != 1 && p < panels_of(count); p++) times(tile + p * KEYS * NR, s->after, keys * NR);
}

/* sum (panel, Dh, NR) += x (keys, Dh)^T times the tile, which is rounded in place. */
static void add_tile_product(real *sum, const real *x, real *tile, const shape *s, int64_t keys, int64_t count) {
    for (int64_t p = 0; p < panels_of(count); p++) {
        round_packed(tile + p * KEYS * NR, keys, NR, s->how);
        real *const part = sum + p * NR * s->Dh;
        product(part, NR, part, NR, (gemm_view){x, 1, s->D}, tile + p * KEYS * NR, s->Dh, keys, lanes_of(count, p),
                s->how);
    }
}

/* dx (keys, Dh) += the tile times the rows of queries, packed panel by panel. */
static void add_transposed_product(real *dx, const real *tile, const real *packed, const shape *s, int64_t keys,
                                   int64_t count) {
    const int64_t size = NR * packed_columns(s->Dh);
    for (int64_t p = 0; p < panels_of(count); p++)
        product(dx, s->D, dx, s->D, (gemm_view){tile + p * KEYS * NR, NR, 1}, packed + p * size, keys,
                least(count - p * NR, NR), s->Dh, s->how);
}

static void pack_rows(real *packed, const real *x, const shape *s, int64_t count, real scale) {
    const int64_t size = NR * packed_columns(s->Dh);
    for (int64_t p = 0; p < panels_of(count); p++) {
        pack(packed + p * size, x + p * NR * s->D, least(count - p * NR, NR), s->Dh, s->D, 1);
        times(packed + p * size, scale, size);
        round_packed(packed + p * size, least(count - p * NR, NR), s->Dh, s->how);
    }
}

/* Sets the scores of keys (from `first` on) that a query does not see to -infinity. */
static void mask(real *tile, const shape *s, queries q, int64_t first, int64_t keys) {
    const int64_t last_of_all = first + keys - 1, window = s->window ? s->window : INT64_MAX;
    const bool causal = last_of_all > q.place, far = end_key(q) - 1 - first >= window;
    if (!causal && !far) return;
    for (int64_t p = 0; p < panels_of(q.count); p++)
        for (int64_t key = 0; key < keys; key++)
            for (int64_t j = 0; j < NR; j++) {
                const int64_t age = q.place + p * NR + j - first - key;
                if (age < 0 || age >= window) tile[(p * KEYS + key) * NR + j] = -(real)INFINITY;
            }
}

/* norm <- max(norm, scores),  shrink = e^(old norm - norm);  scores <- e^(score - norm);
 * total <- total shrink + scores;  sum <- sum shrink */
ROT_ALWAYS_INLINE void softmax_lanes(real *restrict tile, real *restrict norm, real *restrict total, real *restrict sum,
                                     int64_t keys, int64_t Dh, const int64_t lanes) {
    real top[NR], shrink[NR];
    memcpy(top, norm, sizeof top);
    for (int64_t key = 0; key < keys; key++)
        for (int64_t j = 0; j < lanes; j++) top[j] = tile[key * NR + j] > top[j] ? tile[key * NR + j] : top[j];
    for (int64_t j = 0; j < lanes; j++) {
        shrink[j] = vmath_exp(norm[j] - top[j]);
        total[j] *= shrink[j];
        norm[j] = top[j];
    }
    for (int64_t key = 0; key < keys; key++)
        for (int64_t j = 0; j < lanes; j++) {
            const real e = vmath_exp(tile[key * NR + j] - top[j]);
            tile[key * NR + j] = e;
            total[j] += e;
        }
    for (int64_t d = 0; d < Dh; d++)
        for (int64_t j = 0; j < lanes; j++) sum[d * NR + j] *= shrink[j];
}

/* With a constant number of lanes the compiler removes the loop over them. */
static void softmax(real *tile, real *norm, real *total, real *sum, int64_t keys, int64_t Dh, int64_t lanes) {
    if (lanes == NR)
        softmax_lanes(tile, norm, total, sum, keys, Dh, NR);
    else
        softmax_lanes(tile, norm, total, sum, keys, Dh, lanes);
}

/* Workspace of a task: panels of (Dh, QUERIES) each, tiles of (panel, KEYS, NR), packed rows, and vectors. */
typedef struct {
    real *q, *sum, *tile, *dy, *dtile, *q_rows, *dy_rows, *norm, *total, *factor;
} room;

static int64_t room_size(const shape *s, bool backward) {
    const int64_t panels = QUERIES * s->Dh, tile = KEYS * QUERIES, rows = QUERIES * packed_columns(s->Dh);
    return 2 * panels + tile + 3 * QUERIES + (backward ? panels + tile + 2 * rows : 0);
}

static room room_at(real *at, const shape *s) {
    const int64_t panels = QUERIES * s->Dh, tile = KEYS * QUERIES, rows = QUERIES * packed_columns(s->Dh);
    room r = {.norm = at, .total = at + QUERIES, .factor = at + 2 * QUERIES};
    r.q = at + 3 * QUERIES, r.sum = r.q + panels, r.tile = r.sum + panels;
    r.dy = r.tile + tile, r.dtile = r.dy + panels, r.q_rows = r.dtile + tile, r.dy_rows = r.q_rows + rows;
    return r;
}

static void forward_tile(real *y, real *norm, const real *q, const real *k, const real *v, const shape *s, queries at,
                         room r) {
    for (int64_t j = 0; j < QUERIES; j++) r.norm[j] = -(real)INFINITY, r.total[j] = 0;
    memset(r.sum, 0, (size_t)(QUERIES * s->Dh) * sizeof(real));
    pack_queries(r.q, q + query_row(s, at), s, at.count, s->before);
    round_packed(r.q, s->Dh, at.count, s->how);
    for (int64_t end = end_key(at), keys; end > first_key(s, at); end -= keys) {
        keys = least(end - first_key(s, at), KEYS);
        scores_of(r.tile, k + key_row(s, at, end - keys), r.q, s, keys, at.count);
        mask(r.tile, s, at, end - keys, keys);
        for (int64_t p = 0; p < panels_of(at.count); p++) {
            const int64_t lo = p * NR;
            softmax(r.tile + lo * KEYS, r.norm + lo, r.total + lo, r.sum + lo * s->Dh, keys, s->Dh,
                    lanes_of(at.count, p));
        }
        add_tile_product(r.sum, v + key_row(s, at, end - keys), r.tile, s, keys, at.count);
    }
    for (int64_t j = 0; j < at.count; j++) {
        norm[j] = r.norm[j] + (real)log((double)r.total[j]);
        r.factor[j] = 1 / r.total[j];
    }
    unpack_queries(y + query_row(s, at), r.sum, r.factor, s, at.count);
}

static int64_t groups_of(int64_t tasks) { return least(tasks, MAX_GROUPS); }

/* y (B,T,D), norm (B,H,T), the logarithm of each softmax's denominator; q (B,T,D), k, v (B,S,D), D = H Dh; lengths,
 * past (B) or NULL; window 0 for none. Keys of sequence b beyond past[b] + lengths[b] are not read. */
KERNEL(attention_forward) {
    const shape s = shape_of(lengths, past, B, T, S, D, H, window);
    if (!keys_suffice(&s)) return ROT_OUT_OF_RANGE;
    const int64_t tiles = (T + QUERIES - 1) / QUERIES, tasks = B * H * tiles, groups = groups_of(tasks);
    const int64_t size = room_size(&s, false);
    real *const rooms = WORKSPACE(real, groups, size);
    if (!rooms) return ROT_NO_MEMORY;
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (groups > 1 && B * T * D > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        for (int64_t i = group; i < tasks && !stopped(stop); i += groups) {
            const int64_t t = i % tiles * QUERIES;
            const queries at = queries_of(&s, i / tiles / H, i / tiles % H, t);
            real *const norms = norm + (at.b * H + at.h) * T + t;
            if (at.count) forward_tile(y, norms, q, k, v, &s, at, room_at(rooms + group * size, &s));
            for (int64_t j = at.count; j < least(T - t, QUERIES); j++) {
                memset(y + query_row(&s, at) + j * D, 0, (size_t)s.Dh * sizeof(real));
                norms[j] = 0;
            }
        }
    }
    pool_give(rooms);
    return ROT_OK;
}

/* tile <- p = e^(score - norm);  dtile <- p (dtile - delta) */
ROT_ALWAYS_INLINE void softmax_adjoint_lanes(real *restrict tile, real *restrict dtile, const real *restrict norm,
                                             const real *restrict delta, int64_t keys, const int64_t lanes) {
    for (int64_t key = 0; key < keys; key++)
        for (int64_t j = 0; j < lanes; j++) {
            const real p = vmath_exp(tile[key * NR + j] - norm[j]);
            tile[key * NR + j] = p;
            dtile[key * NR + j] = p * (dtile[key * NR + j] - delta[j]);
        }
}

static void softmax_adjoint(real *tile, real *dtile, const real *norm, const real *delta, int64_t keys, int64_t lanes) {
    if (lanes == NR)
        softmax_adjoint_lanes(tile, dtile, norm, delta, keys, NR);
    else
        softmax_adjoint_lanes(tile, dtile, norm, delta, keys, lanes);
}

/* dot[j] = sum_k x(k, j) y(k, j) of two panels */
static void dot_columns(real *restrict dot, const real *restrict x, const real *restrict y, int64_t depth) {
    memset(dot, 0, NR * sizeof(real));
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = 0; j < NR; j++) dot[j] += x[k * NR + j] * y[k * NR + j];
}

static void backward_tile(real *dq, real *dk, real *dv, const real *dy, const real *q, const real *k, const real *v,
                          const real *y, const real *norm, const shape *s, queries at, room r) {
    const int64_t row = query_row(s, at);
    pack_queries(r.q, q + row, s, at.count, s->before);
    round_packed(r.q, s->Dh, at.count, s->how);
    pack_queries(r.dy, dy + row, s, at.count, 1);
    pack_queries(r.sum, y + row, s, at.count, 1);
    for (int64_t j = 0; j < QUERIES; j++) { /* beyond the last query, probabilities are 0 */
        r.norm[j] = j < at.count ? norm[j] : (real)INFINITY;
        r.factor[j] = s->before * s->after;
    }
    for (int64_t p = 0; p < panels_of(at.count); p++)
        dot_columns(r.total + p * NR, r.dy + p * NR * s->Dh, r.sum + p * NR * s->Dh, s->Dh);
    round_packed(r.dy, s->Dh, at.count, s->how);
    memset(r.sum, 0, (size_t)(QUERIES * s->Dh) * sizeof(real));
    pack_rows(r.q_rows, q + row, s, at.count, s->before);
    pack_rows(r.dy_rows, dy + row, s, at.count, 1);
    for (int64_t end = end_key(at), keys; end > first_key(s, at); end -= keys) {
        keys = least(end - first_key(s, at), KEYS);
        const int64_t key = key_row(s, at, end - keys);
        scores_of(r.tile, k + key, r.q, s, keys, at.count);
        mask(r.tile, s, at, end - keys, keys);
        tile_product(r.dtile, v + key, r.dy, s, keys, at.count);
        for (int64_t p = 0; p < panels_of(at.count); p++)
            softmax_adjoint(r.tile + p * KEYS * NR, r.dtile + p * KEYS * NR, r.norm + p * NR, r.total + p * NR, keys,
                            lanes_of(at.count, p));
        add_transposed_product(dk + key, r.dtile, r.q_rows, s, keys, at.count);
        add_transposed_product(dv + key, r.tile, r.dy_rows, s, keys, at.count);
        add_tile_product(r.sum, k + key, r.dtile, s, keys, at.count);
    }
    unpack_queries(dq + row, r.sum, r.factor, s, at.count);
}

/* dq (B,T,D), dk, dv (B,S,D), overwritten; dy (B,T,D), y and norm as forward wrote them, the rest as in forward. With p
 * = softmax(c q k^T), c = 1/sqrt(Dh), and e = p * (dy v^T - sum(dy * y)):
 *   dv = p^T dy,   dq = c e k,   dk = c e^T q */
KERNEL(attention_backward) {
    const shape s = shape_of(lengths, past, B, T, S, D, H, window);
    if (!keys_suffice(&s)) return ROT_OUT_OF_RANGE;
    const int64_t groups = groups_of(B * H), size = room_size(&s, true);
    real *const rooms = WORKSPACE(real, groups, size);
    if (!rooms) return ROT_NO_MEMORY;
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (groups > 1 && B * T * D > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        for (int64_t i = group; i < B * H; i += groups) { /* a task per head: all its queries add to its keys */
            const queries head = queries_of(&s, i / H, i % H, 0);
            for (int64_t key = 0; key < S; key++) {
                memset(dk + key_row(&s, head, key), 0, (size_t)s.Dh * sizeof(real));
                memset(dv + key_row(&s, head, key), 0, (size_t)s.Dh * sizeof(real));
            }
            for (int64_t t = 0; t < T && !stopped(stop); t += QUERIES) {
                const queries at = queries_of(&s, head.b, head.h, t);
                const real *const norms = norm + i * T + t;
                if (at.count)
                    backward_tile(dq, dk, dv, dy, q, k, v, y, norms, &s, at, room_at(rooms + group * size, &s));
                for (int64_t j = at.count; j < least(T - t, QUERIES); j++)
                    memset(dq + query_row(&s, at) + j * D, 0, (size_t)s.Dh * sizeof(real));
            }
            for (int64_t key = 0; s.after != 1 && key < S; key++) times(dk + key_row(&s, head, key), s.after, s.Dh);
        }
    }
    pool_give(rooms);
    return ROT_OK;
}
