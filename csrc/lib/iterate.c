/* The instructions that find the fixed point y = F(y) of each step: FixedPointRNN, Bedouin and FPMamba by their
 * sequential inference (python/rotrnn/nn/fixed_points/). Within a step, the maps and the mixer Q are constant, and
 *
 *   F(y) = carried + gain (y + Q (x - y)),   times SiLU(gate) if a gate is in it, and normalised if there is a norm,
 *
 * where `carried` is what comes from the state. It is found by iteration, where each sequence ends on its own, or
 * directly, without gate and norm.
 */
#include <math.h>

#include "depth.h"
#include "kernels.h"
#include "lagged.h"
#include "members.h"
#include "residual.h"
#include "rows.h"
#include "run.h"

enum { PATIENCE = 15, CYCLE = 1000 }; /* iterations without a new lowest residual, and without a tenth of it */
static const double FIRST_STEP = 0.99, SHRINK = 0.9, LEAST_STEP = 1e-3;

/* F of one step: x, carried, gain and, if it is in F, gate (N); w and alpha of the mixer; and memory: `apart` (N), with
 * acceleration `rows` (ANDERSON_ROWS, N), and the mixer's. */
typedef struct {
    const iterated *how;
    int64_t N;
    const real *x, *carried, *gain, *gate, *w, *alpha;
    real *apart, *rows, *scratch;
} image;

/* v <- y + Q (x - y) */
static void mix(const image *F, real *restrict v, const real *restrict y) {
    const int64_t N = F->N;
    EACH(i, N) v[i] = F->x[i] - y[i];
    apply_members(v, F->w, F->alpha, F->scratch, &F->how->mixing);
    add_row(v, y, N);
}

/* f <- F(y) for what was mixed, f <- y + Q (x - y) */
static void finish(const image *F, real *restrict f) {
    EACH(i, F->N) f[i] = F->carried[i] + F->gain[i] * f[i];
    if (F->gate) EACH(i, F->N) f[i] *= silu(F->gate[i]);
    if (!F->how->scale) return;
    copy_row(F->apart, f, F->N);
    if (F->how->bias)
        (void)layer_norm_row(f, F->apart, F->how->scale, F->how->bias, F->N, (real)F->how->eps);
    else
        (void)rms_norm_row(f, F->apart, F->how->scale, F->N, (real)F->how->eps);
}

/* What an iteration knows of its sequence, as Progress of iteration.py. */
typedef struct {
    real s;
    double lowest, before, residual;
    int64_t waited;
} progress;

/* Adds the residual of an iteration. */
static void add_residual(progress *p, const iteration *how, double residual) {
    const bool better = residual < p->lowest;
    p->residual = residual;
    p->lowest = better ? residual : p->lowest;
    p->waited = better ? 0 : p->waited + 1;
    if (!how->adaptive || p->waited < PATIENCE) return;
    p->s *= (real)SHRINK;
    p->waited = 0;
}

/* After `count` iterations: damping begins anew unless the lowest residual has fallen to a tenth in this cycle. */
static void begin_anew(progress *p, const iteration *how, int64_t count) {
    if (!how->adaptive || how->quantile || count % CYCLE) return;
    if (p->lowest > p->before / 10) p->s = (real)FIRST_STEP, p->waited = 0;
    p->before = p->lowest;
}

static bool is_settled(const progress *p, const iteration *how) {
    return (how->quantile ? p->lowest : p->residual) < how->tol;
}

/* y (N), from zero, becomes the last iterate; f (N) is memory. Returns whether it is at the fixed point. */
static bool solve(const image *F, real *restrict y, real *restrict f) {
    const iteration *const how = &F->how->how;
    progress p = {.s = how->adaptive ? (real)FIRST_STEP : !how->accelerate, .lowest = INFINITY, .before = 1};
    anderson steps = {0, {0}};
    zero_row(y, F->N);
    for (int64_t i = 0; i < how->most; i++) {
        mix(F, f, y);
        finish(F, f);
        const real floor = how->floor > 0 ? (real)how->floor : TINY;
        real residual = residual_of(relax_row(y, f, p.s, F->N), floor);
        if (how->accelerate) residual = anderson_step(&steps, y, f, residual, F->N, F->rows);
        add_residual(&p, how, (double)residual);
        if (isnan(p.residual)) return false;
        if (is_settled(&p, how)) return true;
        begin_anew(&p, how, i + 1);
        if (how->quantile && how->adaptive && (double)p.s < LEAST_STEP) return false;
    }
    return false;
}

/* Adds what comes from the previous outputs at `state` to the sums of step t, before `apply_maps`. */
static void add_previous(const op *o, const frame *f, int64_t t, int64_t state) {
    const iterated *const how = o->iterated;
    const int64_t N = o->y.width, columns = how->sums.width - how->driven;
    if (!how->V) return;
    if (!how->read.width) {
        add_recurrence(f, how->sums, how->driven, columns, t, how->V, state, N);
        return;
    }
    real *const read = rows_of(f, how->read) + t * N;
    for (int64_t b = 0; b < f->B; b++) unit_rms_row(read + b * f->n * N, state_of(f, b, state), N);
    add_product(f, how->sums, how->driven, columns, t, how->V, (gemm_view){read, f->n * N, 1}, N);
}

static real *values_of(const frame *f, const columns *c, int64_t row) {
    return rows_of(f, c->values) + row * c->values.width + c->at;
}

/* The values of the maps of a row, from their sums. */
static void apply_maps(const iterated *how, const frame *f, int64_t row) {
    for (const columns *c = how->maps; c < how->maps + MOST_MAPS; c++) {
        const real *const sums = rows_of(f, c->sums) + row * c->sums.width + c->at;
        if (c->function == LAGGED_LINEAR)
            copy_row(values_of(f, c, row), sums, c->width);
        else
            map_row(values_of(f, c, row), sums, c->width, c->function, (real)how->unit_eps);
    }
}

/* The memory of a step behind its six vectors, from `rows` on: what is prepared, and the mixer's. */
static real *divide_room(image *F, const op *o, real *rows) {
    F->rows = rows;
    real *const prepared = rows + (F->how->how.accelerate ? ANDERSON_ROWS * F->N : 0);
    F->scratch = prepared + o->count;
    return prepared;
}

/* Sets the mixer of a row, from the values of its maps or as it always is. */
static void set_mixer(image *F, const op *o, const frame *f, int64_t row, real *prepared) {
    const iterated *const how = F->how;
    F->w = how->prepared, F->alpha = how->alpha;
    if (how->prepared) return;
    const columns *const alpha = how->maps + MAP_ALPHA;
    real *const gains = alpha->width ? values_of(f, alpha, row) : prepared + o->count - 1;
    if (!alpha->width) gains[0] = 1; /* that of Gram, behind what is prepared */
    EACH(i, alpha->width) gains[i] = (real)how->largest * gains[i];
    const columns *const vectors = how->maps + MAP_U;
    real *const u = values_of(f, vectors, row);
    bound_angles(u, vectors->width, (real)how->largest, &how->mixing);
    prepare_members(prepared, u, gains, F->scratch, &how->mixing, (real)how->unit_eps);
    F->w = prepared, F->alpha = gains;
}

static bool is_solved(const iterated *how, spread s) { return (double)residual_of(s, TINY) < how->how.tol; }

/* y <- the fixed point of a vector state, directly, with the state h before it. Returns what solve_small does. */
static real solve_vector(const image *F, real *y, const real *lambda, const real *h) {
    depth step = {.scaled = F->how->scaled, .x = F->x, .lam = lambda, .w = F->w, .alpha = F->alpha};
    real *room = F->scratch;
    step.m = solved_mixer(&step.w, F->alpha, &room, &F->how->mixing);
    return direct_token(&step, 0, y, h, NULL, room);
}

/* Step `row` of sequence b: h_t = lambda h_{t-1} + gain [y + Q (v - y)]. */
static void vector_step(const op *o, const frame *f, int64_t b, int64_t row) {
    const iterated *const how = o->iterated;
    const int64_t N = o->y.width;
    real *const room = rows_of(f, how->room), *const carried = room, *const gain = carried + N, *const y = gain + N;
    real *const next = y + N, *const apart = next + N, *const h = state_of(f, b, o->state);
    const real *const v = rows_of(f, o->x) + row * N, *const lambda = rows_of(f, o->z) + row * N;
    image F = {.how = how, .N = N, .x = v, .carried = carried, .gain = gain, .apart = apart};
    real *const prepared = divide_room(&F, o, apart + N);
    apply_maps(how, f, row);
    EACH(i, N) carried[i] = lambda[i] * h[i];
    EACH(i, N) gain[i] = depth_input(lambda[i], 1, how->scaled);
    set_mixer(&F, o, f, row, prepared);
    bool settled = true;
    real growth = 1;
    if (how->direct)
        growth = solve_vector(&F, y, lambda, h);
    else
        settled = solve(&F, y, next);
    mix(&F, h, y);
    finish(&F, h);
    if (how->direct) settled = is_solved(how, solved_spread(relax_row(y, h, 0, N), growth));
    *steps_unsettled(f, b) += !settled;
    copy_row(rows_of(f, o->y) + row * N, h, N);
}

void K(rot_run_fixed_point)(const op *o, const frame *f) {
    for (int64_t t = 0; t < f->n; t++) {
        add_previous(o, f, t, o->state);
        for (int64_t b = 0; b < f->B; b++) vector_step(o, f, b, b * f->n + t);
    }
}

/* One state of each channel: h <- a h, with the transition a, and its part of the output. By vectors: a compiler does
 * not vectorise the ends of the exponential. */
static void move_row(real *restrict carried, real *restrict h, const real *restrict A, const real *restrict delta,
                     real c, int64_t E, bool negative) {
    int64_t e = 0;
    for (; e + LANES <= E; e += LANES) {
        const vec decay = selective_decay_vec(load(delta + e), load(A + e));
        store(h + e, selective_move_vec(decay, load(h + e), negative));
        store(carried + e, selective_output_vec(load(carried + e), load(h + e), c));
    }
    for (; e < E; e++) {
        h[e] = selective_move(selective_decay(delta[e], A[e]), h[e], negative);
        carried[e] = selective_output(carried[e], h[e], c);
    }
}

/* h <- h + (delta x) b */
static void take_row(real *restrict h, const real *restrict delta, const real *restrict x, real b, int64_t E) {
    EACH(e, E) h[e] = selective_step(h[e], selective_input(delta[e], x[e]), b);
}

/* y <- the fixed point of a matrix state, directly, and `mixed` as `mix` does. Returns whether it is at it. */
static bool solve_matrix(const image *F, real *y, real *mixed) {
    const real *w = F->w;
    real *room = F->scratch;
    const mixer m = solved_mixer(&w, F->alpha, &room, &F->how->mixing);
    copy_row(y, F->carried, F->N);
    return is_solved(F->how, direct_point(y, mixed, F->x, F->gain, w, F->alpha, room, m));
}

/* Step `row` of sequence b. The state: h (S, E), then the previous output y (E). */
static void matrix_step(const op *o, const frame *f, int64_t b, int64_t row) {
    const iterated *const how = o->iterated;
    const int64_t E = o->y.width, S = how->maps[MAP_B].width;
    const real *const A = how->A, *const skip = how->skip, *const x = rows_of(f, o->x) + row * o->x.width;
    real *const h = state_of(f, b, o->state), *const output = h + S * E;
    real *const room = rows_of(f, how->room), *const carried = room, *const gain = carried + E, *const y = gain + E;
    real *const next = y + E, *const apart = next + E;
    image F = {.how = how, .N = E, .x = x, .carried = carried, .gain = gain, .apart = apart};
    F.gate = how->gate.width ? rows_of(f, how->gate) + row * E : NULL;
    real *const prepared = divide_room(&F, o, apart + E);
    apply_maps(how, f, row);
    const real *const delta = values_of(f, how->maps + MAP_DELTA, row);
    const real *const B = values_of(f, how->maps + MAP_B, row), *const C = values_of(f, how->maps + MAP_C, row);
    set_mixer(&F, o, f, row, prepared);
    const real along = dot(B, C, S);
    EACH(e, E) gain[e] = delta[e] * along + (skip ? skip[e] : 0);
    zero_row(carried, E);
    for (int64_t s = 0; s < S; s++) move_row(carried, h + s * E, A + s * E, delta, C[s], E, how->negative);
    *steps_unsettled(f, b) += !(how->direct ? solve_matrix(&F, y, next) : solve(&F, y, next));
    if (!how->direct) mix(&F, next, y);
    for (int64_t s = 0; s < S; s++) take_row(h + s * E, delta, next, B[s], E);
    finish(&F, next);
    copy_row(output, next, E);
    copy_row(rows_of(f, o->y) + row * E, next, E);
}

void K(rot_run_matrix_fixed_point)(const op *o, const frame *f) {
    const iterated *const how = o->iterated;
    const int64_t E = o->y.width, output = o->state + how->maps[MAP_B].width * E * (int64_t)sizeof(real);
    for (int64_t t = 0; t < f->n; t++) {
        add_previous(o, f, t, output);
        for (int64_t b = 0; b < f->B; b++) matrix_step(o, f, b, b * f->n + t);
    }
}
