/* A whole residual block, or a linear layer alone, in one pass over tiles of time, and its adjoint.
 *
 *   xn = norm(x)     v = W_in xn     h_t = a h_{t-1} + v_t     y = W_out h + skip xn
 *   z = mask GELU(y)     out = x + mask value s(gate),   value = W_v z + b_v,  gate = W_g z + b_g
 *
 * All but the scan is pointwise in time, and the scan needs only its carry, so everything between x and out stays in
 * the tile's buffers, in cache. Backward reads x and the carry into each tile, and recomputes the rest of the tile,
 * except for arrays that forward saved on request: the layer's output, the states, the gate's products. Saved and
 * recomputed arrays have the same bits, so results do not depend on this choice. With two directions, the scan that
 * runs backwards in time comes first, in a separate pass that saves its carries.
 *
 * With many sequences, each runs tile by tile on one thread. With few, the tiles of a sequence run in parallel and only
 * the scan goes from tile to tile in turn. It is a small part of a tile's work, so dozens of threads stay busy. This
 * choice, and the place of each partial sum, depend on the shapes alone: results have the same bits for any number of
 * threads.
 *
 * Precision (precision.h): operands of products are rounded. In bf16, activations between products are stored and read
 * rounded: the states h after their scan, y if a gate follows, z, and in backward the gradient of y. The scan itself,
 * its carries, x, out, the norm and all sums are float32.
 *
 * csrc/kernels.list describes the arguments.
 */

#include <stdbool.h>
#include <string.h>

#include "exact.h"
#include "gemm_tile.h"
#include "kernels.h"
#include "rows.h"
#include "stop.h"
#include "turn.h"
#include "workspace.h"

enum {
    SLOTS = 16,       /* partial sums of every gradient */
    SERIAL = 1 << 19, /* multiplications below which one thread is used */
};

/* ------------------------------------------------------------------------------------------------ state of a call */

/* Weights as panels (gemm_tile.h): `in` is for products with W_in^T, `in_t` with W_in, and so on. */
typedef struct {
    real *in, *out[2], *value, *gate, *in_t, *out_t[2], *value_t, *gate_t;
} panels;

/* One tile's arrays, (tile,D) or (tile,L). Backward reuses forward's arrays: y for GELU's derivative, value and gate
 * for their own gradients, z for the gradient of xn. */
typedef struct {
    real *norm, *h[2], *y, *z, *value, *gate, *dy, *dz, *g, *packed;
    real *before;         /* (L), in bf16: the rounded state before the tile */
    real *forced;         /* (L), with exact transitions: the last state of a tile from zero */
    double *carry;        /* (L), with exact transitions, in a sequence's first room: the state between tiles */
    row_moments *moments; /* (tile), of the row norm */
} room;

/* A slot's part of the gradients. Gradients of vectors are double, and each tile's sum is added to them. A slot is one
 * block of partial_bytes, which begins with dw_in; the same array of the next slot is partial_bytes further on. */
typedef struct {
    real *dw_in, *dw_out, *dw_value, *dw_gate;
    double *da, *dskip, *d_norm_sum, *d_norm_product, *db_value, *db_gate;
    real *scratch; /* a tile's sum */
} partial;

typedef struct {
    const block_in *b;
    int64_t tiles, slots;      /* of T steps; of partial sums */
    int64_t tasks, threads;    /* sequences, slots or tiles that can run in parallel; threads used */
    bool backward, full, drop; /* full: the gate has its `value` */
    rounding how;              /* of operands of products */
    bool few;                  /* the tiles of a sequence run in parallel, instead of sequences */
    dropout_key keys[2];
    panels w;
    room *rooms;       /* (threads) */
    partial *partials; /* (slots) */
    int64_t partial_bytes;
    rot_stop *stop;
    real *dlayer; /* (slots, or 1 if `few`, T, D), gradients of y between the passes of two directions */
    real *g;      /* (as dlayer, T, L), of v in direction 0, if products round the sum of both directions */
    char *memory; /* of all these */
} call;

/* Rows first .. first+rows-1 of (B*T) are tile i of sequence b. */
typedef struct {
    int64_t b, i, first, rows;
} tile_of;

static int64_t valid_steps(const block_in *b, int64_t sequence) { return steps_of(b->lengths, sequence, b->T); }
static int64_t valid_tiles(const block_in *b, int64_t sequence) { return pieces_of(valid_steps(b, sequence), b->tile); }

static tile_of tile_at(const block_in *b, int64_t sequence, int64_t i) {
    const int64_t t = i * b->tile;
    const tile_of tile = {sequence, i, sequence * b->T + t, least(valid_steps(b, sequence) - t, b->tile)};
    return tile;
}

/* Divides one allocation into arrays aligned to cache lines; with `memory` NULL it only counts the bytes. */
typedef struct {
    char *memory;
    int64_t bytes;
} pieces;

static void *take(pieces *p, int64_t count, size_t size) {
    enum { LINE = 64 };
    void *const piece = p->memory ? p->memory + p->bytes : NULL;
    p->bytes += (count * (int64_t)size + LINE - 1) / LINE * LINE;
    return piece;
}

static real *take_reals(pieces *p, int64_t count) { return take(p, count, sizeof(real)); }

static room take_room(const call *c, pieces *p) {
    const int64_t rows = c->b->tile, D = rows * c->b->D, L = rows * c->b->L;
    const int64_t wide_d = packed_columns(c->b->D), wide_l = packed_columns(c->b->L);
    room r = {.norm = take_reals(p, c->b->norm ? D : 0), .moments = take(p, rows, sizeof(row_moments))};
    for (int64_t k = 0; k < c->b->directions; k++) r.h[k] = take_reals(p, L);
    if (c->backward && stores_bf16(c->how)) r.before = take_reals(p, c->b->L);
    r.y = take_reals(p, D);
    if (c->b->exact) r.forced = take_reals(p, c->b->L), r.carry = take(p, c->b->L, sizeof(double));
    if (c->b->gate) r.z = take_reals(p, D), r.value = take_reals(p, D), r.gate = take_reals(p, D);
    if (c->backward) {
        r.dy = take_reals(p, D), r.dz = take_reals(p, D), r.g = take_reals(p, L);
        r.packed = take_reals(p, rows * most(wide_d, wide_l));
    }
    return r;
}

static partial take_partial(const call *c, pieces *p) {
    const int64_t D = c->b->D, L = c->b->L;
    partial s = {.dw_in = take_reals(p, L * D), .dw_out = take_reals(p, c->b->directions * D * L)};
    if (c->full) s.dw_value = take_reals(p, D * D);
    if (c->b->gate) s.dw_gate = take_reals(p, D * D);
    s.da = take(p, L, sizeof(double));
    s.dskip = take(p, D, sizeof(double));
    s.d_norm_sum = take(p, D, sizeof(double));
    s.d_norm_product = take(p, D, sizeof(double));
    s.db_value = take(p, D, sizeof(double));
    s.db_gate = take(p, D, sizeof(double));
    s.scratch = take_reals(p, most(2 * D, L));
    return s;
}

/* Panels of w (out,in) for products with w^T and, in backward, with w. */
static void take_panels(const call *c, pieces *p, const real *w, int64_t in, int64_t out, real **panel,
                        real **panel_t) {
    *panel = take_reals(p, in * packed_columns(out));
    if (p->memory) pack_rounded(*panel, w, in, out, 1, in, c->how);
    if (!c->backward) return;
    *panel_t = take_reals(p, out * packed_columns(in));
    if (p->memory) pack_rounded(*panel_t, w, out, in, in, 1, c->how);
}

/* Lays out the call's workspace in `memory`, and returns its size; NULL computes the size only. */
static int64_t lay_out(call *c, char *memory) {
    const block_in *const b = c->b;
    const int64_t D = b->D, L = b->L;
    pieces p = {memory, 0};
    take_panels(c, &p, b->w_in, D, L, &c->w.in, &c->w.in_t);
    for (int64_t k = 0; k < b->directions; k++)
        take_panels(c, &p, b->w_out + k * D * L, L, D, &c->w.out[k], &c->w.out_t[k]);
    if (c->full) take_panels(c, &p, b->w_value, D, D, &c->w.value, &c->w.value_t);
    if (b->gate) take_panels(c, &p, b->w_gate, D, D, &c->w.gate, &c->w.gate_t);
    c->rooms = take(&p, c->threads, sizeof *c->rooms);
    for (int64_t i = 0; i < c->threads; i++) {
        const room r = take_room(c, &p);
        if (memory) c->rooms[i] = r;
    }
    if (!c->backward) return p.bytes;
    c->partials = take(&p, c->slots, sizeof *c->partials);
    for (int64_t i = 0; i < c->slots; i++) {
        const int64_t before = p.bytes;
        const partial s = take_partial(c, &p);
        c->partial_bytes = p.bytes - before;
        if (memory) c->partials[i] = s;
    }
    const int64_t kept = b->directions == 2 ? (c->few ? 1 : c->slots) * b->T : 0;
    if (kept) c->dlayer = take_reals(&p, kept * D);
    if (kept && c->how != ROUND_NONE) c->g = take_reals(&p, kept * L);
    return p.bytes;
}

/* Returns false if there is no memory. */
static bool open_call(call *c, const block_in *b, bool backward) {
    const int64_t tiles = pieces_of(b->T, b->tile);
    *c = (call){.b = b, .tiles = tiles, .backward = backward, .full = b->gate == GATE_FULL, .drop = b->rate > 0};
    c->few = b->B < SLOTS && b->B < tiles;
    c->how = rounding_of_call();
    c->stop = stop_of_call();
    c->slots = least(c->few ? tiles : b->B, SLOTS);
    c->tasks = c->few ? tiles : backward ? c->slots : b->B;
    c->threads = b->B * b->T * b->D * b->L > SERIAL ? least(most_threads(), most(c->tasks, 1)) : 1;
    for (int64_t k = 0; k < 2; k++) c->keys[k] = dropout_key_of(b->rate, b->seed, b->step, b->site + k);
    c->memory = WORKSPACE(char, lay_out(c, NULL));
    if (c->memory) lay_out(c, c->memory);
    return c->memory;
}

/* -------------------------------------------------------------------------------------------------- rows of a tile */

static void times(real *restrict x, const real *restrict factor, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] *= factor[i];
}

/* x *= mask of dropout `which`, 0 or 1, on the rows of a tile. */
static void drop(const call *c, tile_of t, int64_t which, real *x) {
    const block_in *const b = c->b;
    real drawn[DRAW + 4];
    if (!c->drop) return;
    const int64_t columns = b->over_time ? b->D : t.rows * b->D, from = b->over_time ? 0 : t.i * b->tile * b->D;
    for (int64_t lo = 0; lo < columns; lo += DRAW) {
        const int64_t n = least(columns - lo, DRAW);
        const real *const mask = draw_mask(drawn, &c->keys[which], batch_place(b->places, t.b), from + lo, n);
        for (int64_t r = 0; r < (b->over_time ? t.rows : 1); r++) times(x + r * b->D + lo, mask, n);
    }
}

/* y = factor x;  factor (D) */
static void scale_channels(real *restrict y, const real *restrict x, const real *restrict factor, int64_t rows,
                           int64_t D) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++) y[r * D + d] = factor[d] * x[r * D + d];
}

/* y = factor x + plus */
static void add_scaled_channels(real *restrict y, const real *restrict x, const real *restrict factor,
                                const real *restrict plus, int64_t rows, int64_t D) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++) y[r * D + d] = factor[d] * x[r * D + d] + plus[r * D + d];
}

static void add_to_double(double *restrict sum, const real *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += (double)x[i];
}

/* sum (D) += the rows of x */
static void add_rows(double *restrict sum, real *restrict scratch, const real *restrict x, int64_t rows, int64_t D) {
    zero_row(scratch, D);
    for (int64_t r = 0; r < rows; r++) add_row(scratch, x + r * D, D);
    add_to_double(sum, scratch, D);
}

/* sum (D) += the rows of x (y - center); without center, of x y */
static void add_product_rows(double *restrict sum, real *restrict scratch, const real *restrict x,
                             const real *restrict y, const real *restrict center, int64_t rows, int64_t D) {
    zero_row(scratch, D);
    for (int64_t r = 0; r < rows; r++) {
        if (center)
            for (int64_t d = 0; d < D; d++) scratch[d] += x[r * D + d] * (y[r * D + d] - center[d]);
        else
            for (int64_t d = 0; d < D; d++) scratch[d] += x[r * D + d] * y[r * D + d];
    }
    add_to_double(sum, scratch, D);
}

/* Rounds x to bfloat16, in a call that stores it so */
static void store_rounded(const call *c, real *x, int64_t n) {
    if (stores_bf16(c->how))
        for (int64_t i = 0; i < n; i++) x[i] = (real)bf16_of((float)x[i]);
}

static void gelu_rows(real *restrict z, const real *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) z[i] = gelu(y[i]);
}

static void gelu_slope_rows(real *restrict slope, const real *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) slope[i] = gelu_slope(y[i]);
}

/* gate <- value s(gate) */
static void glu_rows(real *restrict gate, const real *restrict value, int64_t n) {
    for (int64_t i = 0; i < n; i++) gate[i] = glu(value[i], gate[i]);
}

/* y = x + value s(gate) */
static void glu_residual_rows(real *restrict y, const real *restrict x, const real *restrict value,
                              const real *restrict gate, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] + glu(value[i], gate[i]);
}

/* value <- dvalue,  gate <- dgate */
static void glu_adjoint_rows(real *restrict value, real *restrict gate, const real *restrict dy, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const glu_parts d = glu_adjoint(dy[i], value[i], gate[i]);
        gate[i] = d.gate;
        value[i] = d.value;
    }
}

static void sum_rows(real *restrict y, const real *restrict x, const real *restrict z, int64_t n) {
    for (int64_t i = 0; i < n; i++) y[i] = x[i] + z[i];
}

static void step_row(cplx *restrict h, const cplx *restrict a, const cplx *restrict prev, int64_t n) {
    for (int64_t j = 0; j < n; j++) h[j] = plane_step(a[j], prev[j], h[j]);
}

/* h <- the states, in place of v; `start` is the state before the tile. Returns a pointer to the last state. */
static const real *scan_tile(const block_in *b, real *h, const real *start, int64_t rows, bool reverse) {
    for (int64_t s = 0; s < rows; s++) {
        real *const row = h + (reverse ? rows - 1 - s : s) * b->L;
        step_row((cplx *)row, (const cplx *)b->a, (const cplx *)start, b->L / 2);
        start = row;
    }
    return start;
}

/* Exact transitions (exact.h): a tile's states are computed in steps, as always, but the state between tiles is in
 * double and moved by a double power of the transition:  carry <- a^rows carry + f,  where f, the last state of the
 * tile from zero, does not depend on the past. */

/* f = a f + v */
static void add_step(cplx *restrict f, const cplx *restrict a, const cplx *restrict v, int64_t n) {
    for (int64_t j = 0; j < n; j++) f[j] = plane_step(a[j], f[j], v[j]);
}

/* f <- the last state of the tile with inputs v, from zero. */
static void force_tile(const block_in *b, real *f, const real *v, int64_t rows, bool reverse) {
    zero_row(f, b->L);
    for (int64_t s = 0; s < rows; s++)
        add_step((cplx *)f, (const cplx *)b->a, (const cplx *)(v + (reverse ? rows - 1 - s : s) * b->L), b->L / 2);
}

/* state <- carry <- a^rows carry + f */
static void carry_exactly(const block_in *b, real *state, double *carry, const real *f, int64_t rows) {
    for (int64_t j = 0; j < b->L; j += 2) {
        const exact a = {b->exact[j], b->exact[j + 1]}, before = {carry[j], carry[j + 1]};
        const cplx forced = {f[j], f[j + 1]};
        const exact after = exact_step(exact_power(a, rows), before, forced);
        carry[j] = after.re, carry[j + 1] = after.im;
        state[j] = (real)carry[j], state[j + 1] = (real)carry[j + 1];
    }
}

/* g <- g + c, in place of dh;  da += g conj(h_prev);  c <- conj(a) g */
static void adjoint_row(cplx *restrict g, cplx *restrict c, cplx *restrict da, const cplx *restrict a,
                        const cplx *restrict h_prev, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const cplx gj = cplx_add(g[j], c[j]), zero = {0, 0};
        g[j] = gj;
        da[j] = plane_transition_adjoint(gj, h_prev[j], da[j]);
        c[j] = plane_step_adjoint(a[j], gj, zero);
    }
}

/* `start` is the state before the tile; c (L) is the gradient of the state after it, and on return of `start`. */
static void adjoint_tile(const block_in *b, real *g, const real *h, const real *start, real *c, const partial *sums,
                         int64_t rows, bool reverse) {
    real *const da = sums->scratch;
    zero_row(da, b->L);
    for (int64_t s = rows - 1; s >= 0; s--) {
        const int64_t row = reverse ? rows - 1 - s : s, before = reverse ? row + 1 : row - 1;
        const real *const h_prev = s ? h + before * b->L : start;
        adjoint_row((cplx *)(g + row * b->L), (cplx *)c, (cplx *)da, (const cplx *)b->a, (const cplx *)h_prev,
                    b->L / 2);
    }
    add_to_double(sums->da, da, b->L);
}

/* ------------------------------------------------------------------------------------------------------ one tile */

/* xn: the rows of x itself without a norm */
static const real *normed(const call *c, tile_of t, const room *r) {
    return c->b->norm ? r->norm : c->b->x + t.first * c->b->D;
}

/* xn = norm(x) */
static void normalise(const call *c, tile_of t, const room *r) {
    const block_in *const b = c->b;
    const int64_t D = b->D;
    const real *const x = b->x + t.first * D;
    if (b->norm == NORM_CHANNEL)
        affine_rows(r->norm, x, b->center, b->gain, b->offset, t.rows, D);
    else if (b->norm == NORM_ROW)
        for (int64_t i = 0; i < t.rows; i++)
            r->moments[i] = layer_norm_row(r->norm + i * D, x + i * D, b->gain, b->offset, D, (real)b->eps);
}

/* h[0] = W_in xn */
static void project(const call *c, tile_of t, const room *r) {
    const int64_t D = c->b->D, L = c->b->L;
    product(r->h[0], L, NULL, 0, (gemm_view){normed(c, t, r), D, 1}, c->w.in, t.rows, D, L, c->how);
}

/* The place in `carries` of the state that enters a tile in direction k. */
static int64_t carry_at(const call *c, int64_t k, tile_of t) {
    return ((k * c->b->B + t.b) * c->tiles + t.i) * c->b->L;
}

/* h[1] <- the states of the reverse direction, from v in h[0] and the saved carries. */
static void reverse_states(const call *c, tile_of t, const room *r, const real *carries) {
    const block_in *const b = c->b;
    copy_row(r->h[1], r->h[0], t.rows * b->L);
    scan_tile(b, r->h[1], carries + carry_at(c, 1, t), t.rows, true);
}

/* y = x, with stores that bypass the caches: they neither read y's lines first, nor evict lines in use. */
static void copy_past_caches(real *y, const real *x, int64_t n) {
    int64_t i = 0;
    while (i < n && (uintptr_t)(y + i) % VECTOR_BYTES) y[i] = x[i], i++;
    for (; i + LANES <= n; i += LANES) store_past_caches(y + i, load(x + i));
    for (; i < n; i++) y[i] = x[i];
    end_of_stores_past_caches();
}

/* Saves numbers `from` to from + n - 1 of an array for backward, exactly or in bfloat16; does nothing if both arrays
 * are NULL. Only backward reads them: they bypass the caches. */
static void keep(real *kept, uint16_t *kept_bf16, int64_t from, const real *x, int64_t n) {
    if (kept) copy_past_caches(kept + from, x, n);
    if (kept_bf16)
        for (int64_t i = 0; i < n; i++) kept_bf16[from + i] = (uint16_t)bf16_bits((float)x[i]);
}

/* x <- the same numbers. Returns false if they were not saved. */
static bool recall(real *x, const real *kept, const uint16_t *kept_bf16, int64_t from, int64_t n) {
    if (kept) copy_row(x, kept + from, n);
    if (kept_bf16)
        for (int64_t i = 0; i < n; i++) x[i] = (real)bf16_value(kept_bf16[from + i]);
    return kept || kept_bf16;
}

/* The places in the saved arrays of a tile's states in direction k, and of product `which` of its gate. */
static int64_t states_at(const call *c, int64_t k, tile_of t) { return (k * c->b->B * c->b->T + t.first) * c->b->L; }
static int64_t product_at(const call *c, int64_t which, tile_of t) {
    return (which * c->b->B * c->b->T + t.first) * c->b->D;
}

/* y = W_out h + skip xn; y is written once, because it may not be in cache. */
static void layer_output(const call *c, tile_of t, const room *r, real *y) {
    const block_in *const b = c->b;
    scale_channels(r->y, normed(c, t, r), b->skip, t.rows, b->D);
    for (int64_t k = b->directions - 1; k >= 0; k--)
        product(k ? r->y : y, b->D, r->y, b->D, (gemm_view){r->h[k], b->L, 1}, c->w.out[k], t.rows, b->L, b->D, c->how);
    if (b->gate) store_rounded(c, y, t.rows * b->D);
}

/* gate = W_g z + b_g, and for the full form value = W_v z + b_v */
static void gate_products(const call *c, tile_of t, const room *r) {
    const int64_t D = c->b->D;
    const gemm_view z = {r->z, D, 1};
    product(r->gate, D, c->b->b_gate, 0, z, c->w.gate, t.rows, D, D, c->how);
    if (c->full) product(r->value, D, c->b->b_value, 0, z, c->w.value, t.rows, D, D, c->how);
}

/* Computes the rows of the output from the states, and their moments. */
static void leave_tile(const call *c, tile_of t, const room *r, const block_out *out, real *moments) {
    const block_in *const b = c->b;
    const int64_t D = b->D, n = t.rows * D;
    real *const y = out->y + t.first * D;
    if (!b->gate) {
        layer_output(c, t, r, y);
        return;
    }
    real *const layer = out->layer ? out->layer + t.first * D : r->y;
    layer_output(c, t, r, layer);
    keep(NULL, out->layer_bf16, t.first * D, layer, n);
    gelu_rows(r->z, layer, n);
    drop(c, t, 0, r->z);
    store_rounded(c, r->z, n);
    gate_products(c, t, r);
    keep(out->products, NULL, product_at(c, 0, t), r->gate, n);
    if (c->full) keep(out->products, NULL, product_at(c, 1, t), r->value, n);
    const real *const value = b->gate == GATE_FULL ? r->value : b->gate == GATE_HALF1 ? r->z : layer;
    const real *const x = b->x + t.first * D;
    if (c->drop) {
        glu_rows(r->gate, value, n);
        drop(c, t, 1, r->gate);
        sum_rows(y, x, r->gate, n);
    } else {
        glu_residual_rows(y, x, value, r->gate, n);
    }
    if (moments) moments_rows(moments + (t.b * c->tiles + t.i) * 3 * D, y, t.rows, D);
}

/* The gradient of the output's rows: rows of dy, or in the room's buffer their sum with the terms of `later`. */
static const real *incoming(const call *c, tile_of t, const room *r, const block_adjoint_in *in) {
    const int64_t D = c->b->D, at = t.first * D;
    if (!in->later_y) return in->dy + at;
    add_statistics_adjoint(r->dy, in->dy + at, in->later_y + at, in->later_center, in->later_slope, in->later_shift,
                           t.rows, D);
    return r->dy;
}

/* dz <- the gradient of the layer's output, from dy: back through dropout, GLU, dropout and GELU. */
static void gate_adjoint(const call *c, tile_of t, const room *r, const real *dy, const block_adjoint_in *in,
                         const partial *sums) {
    const block_in *const b = c->b;
    const int64_t D = b->D, n = t.rows * D;
    const real *const layer = in->layer ? in->layer + t.first * D : r->dz;
    if (!in->layer && !recall(r->dz, NULL, in->layer_bf16, t.first * D, n)) layer_output(c, t, r, r->dz);
    if (b->gate == GATE_HALF2) copy_row(r->value, layer, n);
    gelu_rows(r->z, layer, n); /* like forward, whose products with z may be saved */
    gelu_slope_rows(r->y, layer, n);
    drop(c, t, 0, r->z);
    store_rounded(c, r->z, n);
    if (!recall(r->gate, in->products, NULL, product_at(c, 0, t), n))
        gate_products(c, t, r);
    else if (c->full)
        recall(r->value, in->products, NULL, product_at(c, 1, t), n);
    if (c->drop) {
        copy_row(r->dz, dy, n);
        drop(c, t, 1, r->dz);
        dy = r->dz;
    }
    if (b->gate == GATE_HALF1) copy_row(r->value, r->z, n);
    glu_adjoint_rows(r->value, r->gate, dy, n);

    pack_rounded(r->packed, r->z, t.rows, D, D, 1, c->how);
    add_weight_grad(sums->dw_gate, r->gate, r->packed, t.rows, D, D, c->how);
    add_rows(sums->db_gate, sums->scratch, r->gate, t.rows, D);
    product(r->dz, D, NULL, 0, (gemm_view){r->gate, D, 1}, c->w.gate_t, t.rows, D, D, c->how);
    if (c->full) {
        add_weight_grad(sums->dw_value, r->value, r->packed, t.rows, D, D, c->how);
        add_rows(sums->db_value, sums->scratch, r->value, t.rows, D);
        product(r->dz, D, r->dz, D, (gemm_view){r->value, D, 1}, c->w.value_t, t.rows, D, D, c->how);
    } else if (b->gate == GATE_HALF1) {
        add_row(r->dz, r->value, n);
    }
    drop(c, t, 0, r->dz);
    times(r->dz, r->y, n);
    if (b->gate == GATE_HALF2) add_row(r->dz, r->value, n);
}

/* From dy to g = W_out^T dz of direction 0; adds the tile's terms of the gradients of W_out and skip. */
static void enter_adjoint(const call *c, tile_of t, const room *r, const block_adjoint_in *in, const partial *sums) {
    const block_in *const b = c->b;
    const int64_t D = b->D, L = b->L;
    const real *const dy = incoming(c, t, r, in);
    if (b->gate)
        gate_adjoint(c, t, r, dy, in, sums);
    else
        copy_row(r->dz, dy, t.rows * D);
    store_rounded(c, r->dz, t.rows * D);
    add_product_rows(sums->dskip, sums->scratch, r->dz, normed(c, t, r), NULL, t.rows, D);
    for (int64_t k = 0; k < b->directions; k++) {
        pack_rounded(r->packed, r->h[k], t.rows, L, L, 1, c->how);
        add_weight_grad(sums->dw_out + k * D * L, r->dz, r->packed, t.rows, L, D, c->how);
    }
    product(r->g, L, NULL, 0, (gemm_view){r->dz, D, 1}, c->w.out_t[0], t.rows, D, L, c->how);
}

/* dxn = before + W_in^T g, with g the gradient of v in one direction; adds the tile's term of W_in's gradient. */
static void add_input_adjoint(const call *c, tile_of t, const room *r, const real *before, real *dxn,
                              const partial *sums) {
    const block_in *const b = c->b;
    const int64_t D = b->D, L = b->L;
    pack_rounded(r->packed, normed(c, t, r), t.rows, D, D, 1, c->how);
    add_weight_grad(sums->dw_in, r->g, r->packed, t.rows, D, L, c->how);
    product(dxn, D, before, D, (gemm_view){r->g, L, 1}, c->w.in_t, t.rows, L, D, c->how);
}

/* The states of every direction as stored: saved, or recomputed. Direction 1's pass needs only its own states. */
static void states_again(const call *c, int64_t k, tile_of t, const room *r, const block_adjoint_in *in) {
    const block_in *const b = c->b;
    const int64_t n = t.rows * b->L;
    const bool kept = in->states || in->states_bf16;
    if (!kept) project(c, t, r);
    if (!kept && b->directions == 2) reverse_states(c, t, r, in->carries);
    if (!kept && k == 0) scan_tile(b, r->h[0], in->carries + carry_at(c, 0, t), t.rows, false);
    for (int64_t j = k; j < b->directions; j++)
        if (!recall(r->h[j], in->states, in->states_bf16, states_at(c, j, t), n)) store_rounded(c, r->h[j], n);
}

/* The state before a tile, rounded like stored states. */
static const real *stored_state(const call *c, const room *r, const real *start) {
    if (!stores_bf16(c->how)) return start;
    copy_row(r->before, start, c->b->L);
    store_rounded(c, r->before, c->b->L);
    return r->before;
}

/* The rows of dx from dxn, the gradient of xn, and dy */
static void leave_adjoint(const call *c, tile_of t, const room *r, const block_adjoint_in *in, const real *dxn,
                          real *dx, const partial *sums) {
    const block_in *const b = c->b;
    const int64_t D = b->D;
    const real *const x = b->x + t.first * D, *const dy = in->later_y ? r->dy : in->dy + t.first * D;
    if (b->norm == NORM_CHANNEL) {
        add_rows(sums->d_norm_sum, sums->scratch, dxn, t.rows, D);
        add_product_rows(sums->d_norm_product, sums->scratch, dxn, x, b->center, t.rows, D);
        add_scaled_channels(dx, dxn, b->gain, dy, t.rows, D);
    } else if (b->norm == NORM_ROW) {
        real *const dscale = sums->scratch, *const dbias = dscale + D;
        zero_row(dscale, 2 * D);
        for (int64_t i = 0; i < t.rows; i++)
            layer_norm_row_adjoint(dx + i * D, dscale, dbias, dxn + i * D, x + i * D, b->gain, r->moments[i], D);
        add_to_double(sums->d_norm_product, dscale, D);
        add_to_double(sums->d_norm_sum, dbias, D);
        add_row(dx, dy, t.rows * D);
    } else {
        sum_rows(dx, dxn, dy, t.rows * D);
    }
}

/* ---------------------------------------------------------------------------------------------------- a sequence */

/* `rooms`: the workspaces of the threads that work on this sequence. */
static void forward_sequence(const call *c, int64_t sequence, const room *rooms, const block_out *out, real *moments) {
    const block_in *const b = c->b;
    const int64_t tiles = valid_tiles(b, sequence);
    for (int64_t k = b->directions - 1; k >= 0; k--) {
        const int64_t at = (k * b->B + sequence) * b->L;
        real *const carry = out->hT + at;
        rot_turn turn = 0;
        copy_or_zero_row(carry, b->h0 ? b->h0 + at : NULL, b->L);
        for (int64_t j = 0; b->exact && j < b->L; j++) rooms->carry[j] = (double)carry[j];
#pragma omp parallel for schedule(static, 1) num_threads((int)c->threads) if (c->few && c->threads > 1)
        for (int64_t q = 0; q < tiles; q++) {
            const tile_of t = tile_at(b, sequence, k ? tiles - 1 - q : q);
            const room *const r = rooms + thread_number();
            if (stopped(c->stop)) {
                await(&turn, q);
                pass_turn(&turn, q + 1);
                continue;
            }
            normalise(c, t, r);
            project(c, t, r);
            if (b->directions == 2 && k == 0) reverse_states(c, t, r, out->carries);
            if (b->exact) force_tile(b, r->forced, r->h[0], t.rows, k);
            await(&turn, q);
            real *const saved = out->carries + carry_at(c, k, t);
            copy_row(saved, carry, b->L);
            const real *const last = scan_tile(b, r->h[0], saved, t.rows, k);
            if (b->exact)
                carry_exactly(b, carry, rooms->carry, r->forced, t.rows);
            else
                copy_row(carry, last, b->L);
            pass_turn(&turn, q + 1);
            keep(out->states, out->states_bf16, states_at(c, k, t), r->h[0], t.rows * b->L);
            if (k == 0) leave_tile(c, t, r, out, moments);
        }
    }
    zero_padding(out->y, sequence, valid_steps(b, sequence), b->T, b->D);
}

/* Direction 0 comes first and does everything but direction 1's own scan and input; each runs opposite to its scan.
 * With few sequences, consecutive tiles go to consecutive slots, and the tiles of a slot are added in turn. */
static void backward_sequence(const call *c, int64_t sequence, const room *rooms, int64_t slot,
                              const block_adjoint_in *in, const block_adjoint_out *out) {
    const block_in *const b = c->b;
    const int64_t tiles = valid_tiles(b, sequence), D = b->D, L = b->L;
    const int64_t kept = (c->few ? 0 : slot) * b->T;
    real *const dlayer = c->dlayer ? c->dlayer + kept * D : NULL, *const both = c->g ? c->g + kept * L : NULL;
    for (int64_t k = 0; k < b->directions; k++) {
        const int64_t at = (k * b->B + sequence) * L;
        const bool last = k == b->directions - 1;
        real *const carry = out->dh0 + at;
        rot_turn turn = 0, done[SLOTS] = {0};
        copy_or_zero_row(carry, in->dhT ? in->dhT + at : NULL, L);
#pragma omp parallel for schedule(static, 1) num_threads((int)c->threads) if (c->few && c->threads > 1)
        for (int64_t q = 0; q < tiles; q++) {
            const tile_of t = tile_at(b, sequence, k ? q : tiles - 1 - q);
            const room *const r = rooms + thread_number();
            const int64_t own = c->few ? q % c->slots : slot, round = c->few ? q / c->slots : q;
            const partial *const sums = c->partials + own;
            const real *const start = in->carries + carry_at(c, k, t);
            real *const dx = out->dx + t.first * D, *const dxn = b->gate && last ? r->z : dx;
            real *const between = dlayer ? dlayer + t.i * b->tile * D : NULL;
            real *const g = both ? both + t.i * b->tile * L : NULL;

            await(&done[own], round);
            if (stopped(c->stop)) {
                await(&turn, q);
                pass_turn(&turn, q + 1);
                pass_turn(&done[own], round + 1);
                continue;
            }
            normalise(c, t, r);
            states_again(c, k, t, r, in);
            if (k == 0) {
                enter_adjoint(c, t, r, in, sums);
            } else {
                incoming(c, t, r, in);
                product(r->g, L, NULL, 0, (gemm_view){between, D, 1}, c->w.out_t[1], t.rows, D, L, c->how);
            }
            await(&turn, q);
            adjoint_tile(b, r->g, r->h[k], stored_state(c, r, start), carry, sums, t.rows, k);
            pass_turn(&turn, q + 1);
            if (k == 0) scale_channels(r->y, r->dz, b->skip, t.rows, D);
            if (k == 0 && between) copy_row(between, r->dz, t.rows * D);
            if (k == 0 && g) {
                copy_row(g, r->g, t.rows * L);
                copy_row(dx, r->y, t.rows * D);
            } else {
                if (g) add_row(r->g, g, t.rows * L);
                add_input_adjoint(c, t, r, k ? dx : r->y, dxn, sums);
            }
            if (b->gate && last) leave_adjoint(c, t, r, in, dxn, dx, sums);
            pass_turn(&done[own], round + 1);
        }
    }
    zero_padding(out->dx, sequence, valid_steps(b, sequence), b->T, D);
}

/* -------------------------------------------------------------------------------------------------------- a call */

static void moments_of_output(const call *c, const block_out *out, const real *parts, int64_t *rows) {
    const block_in *const b = c->b;
    int64_t count = 0;
    for (int64_t s = 0; s < b->B; s++)
        for (int64_t i = 0; i < c->tiles; i++, count++) rows[count] = i < valid_tiles(b, s) ? tile_at(b, s, i).rows : 0;
    merge_moments(out->mean, out->var, parts, rows, count, b->D);
}

/* With out->mean, at least one step of the batch must be valid. */
KERNEL(block_forward) {
    if (!out->carries || out->gated) return ROT_NO_KERNEL; /* what only a GPU saves */
    call c;
    if (!open_call(&c, b, false)) return ROT_NO_MEMORY;
    const int64_t parts = b->B * c.tiles;
    real *const moments = out->mean ? WORKSPACE(real, parts, 3, b->D) : NULL;
    int64_t *const rows = out->mean ? WORKSPACE(int64_t, parts) : NULL;
    const bool memory = !out->mean || (moments && rows);
    if (memory) {
        if (moments) zero_row(moments, parts * 3 * b->D); /* some tiles may have no rows */
#pragma omp parallel for schedule(dynamic) num_threads((int)c.threads) if (!c.few && c.threads > 1)
        for (int64_t s = 0; s < b->B; s++) forward_sequence(&c, s, c.rooms + thread_number(), out, moments);
        if (moments) moments_of_output(&c, out, moments, rows);
    }
    pool_give(moments);
    pool_give(rows);
    pool_give(c.memory);
    return memory ? ROT_OK : ROT_NO_MEMORY;
}

/* out[i] = the sum over slots, in order; `first` is slot 0's part. */
static void merge(const call *c, real *restrict out, const real *restrict first, int64_t n) {
    enum { CHUNK = 4096 };
    const int64_t stride = c->partial_bytes / (int64_t)sizeof(real);
    if (!out) return;
#pragma omp parallel for schedule(static) if (c->threads > 1 && n > CHUNK)
    for (int64_t lo = 0; lo < n; lo += CHUNK) {
        const int64_t width = least(n - lo, CHUNK);
        zero_row(out + lo, width);
        for (int64_t s = 0; s < c->slots; s++) add_row(out + lo, first + s * stride + lo, width);
    }
}

static void merge_double(const call *c, real *restrict out, const double *restrict first, int64_t n) {
    const int64_t stride = c->partial_bytes / (int64_t)sizeof(double);
    for (int64_t i = 0; out && i < n; i++) {
        double sum = 0;
        for (int64_t s = 0; s < c->slots; s++) sum += first[s * stride + i];
        out[i] = (real)sum;
    }
}

KERNEL(block_backward) {
    if (!in->carries || in->gated) return ROT_NO_KERNEL;
    call c;
    if (!open_call(&c, b, true)) return ROT_NO_MEMORY;
    const int64_t tasks = c.few ? 1 : c.slots, D = b->D, L = b->L;
#pragma omp parallel for schedule(static) if (c.threads > 1)
    for (int64_t slot = 0; slot < c.slots; slot++) memset(c.partials[slot].dw_in, 0, (size_t)c.partial_bytes);
#pragma omp parallel for schedule(dynamic) num_threads((int)c.threads) if (!c.few && c.threads > 1)
    for (int64_t task = 0; task < tasks; task++)
        for (int64_t s = task; s < b->B; s += tasks) backward_sequence(&c, s, c.rooms + thread_number(), task, in, out);
    const partial none = {0}, sums = c.slots ? c.partials[0] : none;
    merge(&c, out->dw_in, sums.dw_in, L * D);
    merge(&c, out->dw_out, sums.dw_out, b->directions * D * L);
    merge(&c, out->dw_value, sums.dw_value, D * D);
    merge(&c, out->dw_gate, sums.dw_gate, D * D);
    merge_double(&c, out->da, sums.da, L);
    merge_double(&c, out->dskip, sums.dskip, D);
    merge_double(&c, out->d_norm_sum, sums.d_norm_sum, D);
    merge_double(&c, out->d_norm_product, sums.d_norm_product, D);
    merge_double(&c, out->db_value, sums.db_value, D);
    merge_double(&c, out->db_gate, sums.db_gate, D);
    pool_give(c.memory);
    return ROT_OK;
}
