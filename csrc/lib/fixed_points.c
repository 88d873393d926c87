/* The layers that are fixed points: FixedPointRNN, Bedouin and FPMamba, found step by step (iterate.c). Their equations
 * are in python/rotrnn/nn/layers/.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "build.h"
#include "choose.h"
#include "direct.h"
#include "kernels.h"
#include "members.h"

static const double CONTRACTION = 0.95; /* bound of |I - Q| of a contractive mixer */
static const double FINEST = 32;        /* multiple of epsilon that is the least tolerance */
static const int64_t MOST_ITERATIONS = (int64_t)1 << 20;
static const int64_t MOST_CHANNELS = (int64_t)1 << 20; /* so that sizes of every mixer are below 2^63 */

/* A map of a step, f(W x + U u + V y + b) with the layer's input u and its previous output y. W, U and V have `width`
 * rows; what is NULL is zero. With `from`, the numbers behind x from this place on take the place of W x. */
typedef struct {
    int64_t width, function, from;
    const double *W, *U, *V, *b;
} map;

/* A mixer, the sizes of its parts, and the bound of its gains; its memory is also enough for the direct solver. */
typedef struct {
    mixing of;
    int64_t u, alpha, prepared, scratch;
    double largest, eps;
} mixer_parts;

static bool has(const part *p, const char *key, const char *name) {
    const json *const list = json_member(p->settings, key);
    for (const json *one = list ? list->first : NULL; one; one = one->next)
        if (json_is(one, name)) return true;
    return false;
}

static iteration iteration_of(builder *b, const part *p) {
    enum { ADAPTIVE, QUANTILE = 1, STEP_QUANTILE };
    const double eps = b->run->number == sizeof(double) ? DBL_EPSILON : (double)FLT_EPSILON;
    iteration how = {.tol = fmax(number_of(b, p, "tol"), FINEST * eps), .most = integer_of(b, p, "max_iterations", 1)};
    how.adaptive = choice_of(b, p, "damping", "adaptive none") == ADAPTIVE;
    const int64_t stop = choice_of(b, p, "stop", "sequence quantile step_quantile");
    how.quantile = stop >= QUANTILE;
    if (stop == STEP_QUANTILE) how.floor = RESIDUAL_FLOOR;
    if (how.most > MOST_ITERATIONS) unsupported(b, p, " with so many iterations");
    ignore(p, "gradient train_iterations gamma_scale site tile"); /* the library solves step by step */
    return how;
}

/* The largest divisor of N up to its root. */
static int64_t rows_of_product(int64_t N) {
    int64_t rows = (int64_t)sqrt((double)N);
    while (N % rows) rows--;
    return rows;
}

/* Adds the sizes of the mixers. */
static void add_sizes(mixer_parts *m) {
    for (int64_t i = 0; i < members_of(&m->of); i++) {
        const gaining g = member_of(&m->of, m->eps, i).sizes;
        m->u += mixer_u(g.m), m->alpha += g.m.form == MIXER_GRAM ? 0 : mixer_alpha(g.m);
        m->prepared += mixer_prepared(g.m) + (g.m.form == MIXER_GRAM);
        m->scratch = most(m->scratch, most(mixer_scratch(g.m), gains_room(g)));
    }
    if (has_vectors(m->of.form)) m->scratch = most(m->scratch, direct_room(member_of(&m->of, m->eps, 0).sizes.m));
}

static mixer_parts mixer_of(builder *b, const part *p, int64_t N, bool contractive) {
    enum { POWER_STEPS = 16, GRAM_STEPS = 32 };
    static const int64_t forms[] = {MIXER_HOUSEHOLDER, MIXER_DPLR,   MIXER_LOW_RANK, MIXER_KRONECKER,
                                    MIXER_MONARCH,     MIXER_MATRIX, MIXER_GRAM,     MIXER_MIXTURE};
    static const char *const names = "householder dplr low_rank kronecker monarch orthogonal dense mixture";
    mixer_parts m = {.of = {.rank = integer_of(b, p, "rank", 1), .width = N}, .largest = 1};
    const int64_t R = m.of.rank;
    m.eps = number_of(b, p, "unit_eps");
    m.of.form = forms[choice_of(b, p, "mixer", names)];
    if (flag_of(b, p, "spectral")) m.of.power_steps = POWER_STEPS;
    if (R > N) failed(b->error, ROTRNN_DAMAGED, "%s has a rank above its width", p->name);
    if (N > MOST_CHANNELS) unsupported(b, p, " of so many channels");
    if (!(m.eps >= 0)) failed(b->error, ROTRNN_DAMAGED, "%s has a negative unit_eps", p->name);
    if (contractive && (m.of.form == MIXER_LOW_RANK || m.of.form == MIXER_GRAM || m.of.form == MIXER_MIXTURE))
        failed(b->error, ROTRNN_DAMAGED, "%s is contractive, which its mixer cannot be", p->name);
    switch (m.of.form) {
    case MIXER_MATRIX: return m;
    case MIXER_LOW_RANK: m.largest = 1 / (double)R; break;
    case MIXER_KRONECKER:
        m.of.rank = rows_of_product(N);
        m.largest = contractive ? sqrt(CONTRACTION / (2 * sqrt((double)N))) : 1;
        break;
    case MIXER_MONARCH: m.largest = contractive ? CONTRACTION / sqrt((double)R) : 1; break;
    case MIXER_GRAM: m.of.rank = N, m.of.power_steps = GRAM_STEPS; break;
    case MIXER_MIXTURE:
        m.of.rows = rows_of_product(N);
        if (R < 2) failed(b->error, ROTRNN_DAMAGED, "%s is a mixture of fewer than two mixers", p->name);
        break;
    default: m.largest = contractive ? CONTRACTION / (2 * (double)R) : 1;
    }
    for (int64_t i = 0; i < members_of(&m.of) && i < 2; i++) {
        const mixer one = member_of(&m.of, m.eps, i).sizes.m;
        if (!mixer_fits(one.form, one.R, N))
            failed(b->error, ROTRNN_DAMAGED, "%s has a rank that does not fit", p->name);
    }
    if (good(b)) add_sizes(&m);
    return m;
}

/* The array PREFIXname (count, width, columns), without the axes that are 0. */
static const double *array_of(builder *b, const part *p, const char *prefix, const char *name, int64_t count,
                              int64_t width, int64_t columns) {
    char full[32];
    (void)snprintf(full, sizeof full, "%s%s", prefix, name);
    if (count && columns) return stack_of(b, p, full, count, width, columns);
    if (count || columns) return matrix_of(b, p, full, count ? count : width, count ? width : columns);
    return vector_of(b, p, full, width);
}

/* The rows of two arrays, one after the other: `first` numbers and `second`. */
static const double *joined(builder *b, const double *one, int64_t first, const double *two, int64_t second) {
    double *const all = spare(b, first + second);
    if (!good(b)) return NULL;
    memcpy(all, one, (size_t)first * sizeof *all);
    memcpy(all + first, two, (size_t)second * sizeof *all);
    return all;
}

/* The part u of a mixer, and its alpha, (m->u, columns) and (m->alpha, columns), as arrays of the file whose names
 * begin with the prefix; without the last axis where columns is 0. A mixture has four such arrays. */
static const double *vectors_of(builder *b, const part *p, const char *prefix, const mixer_parts *m, int64_t columns) {
    const int64_t N = m->of.width, R = m->of.rank, each = columns ? columns : 1;
    if (m->of.form != MIXER_MIXTURE) {
        const bool rows = has_vectors(m->of.form);
        return array_of(b, p, prefix, "u", rows ? R : 0, rows ? N : m->u, columns);
    }
    if (!good(b)) return NULL;
    const int64_t all = (R + 1) / 2 * N, other = m->u - all;
    const double *const u = array_of(b, p, prefix, "u", (R + 1) / 2, N, columns);
    const double *const factors = array_of(b, p, prefix, "factors", R / 2, other / (R / 2), columns);
    return good(b) ? joined(b, u, all * each, factors, other * each) : NULL;
}

static const double *gains_of(builder *b, const part *p, const char *prefix, const mixer_parts *m, int64_t columns) {
    const int64_t R = m->of.rank, all = (R + 1) / 2, other = m->alpha - all, each = columns ? columns : 1;
    if (m->of.form != MIXER_MIXTURE) return array_of(b, p, prefix, "alpha", 0, m->alpha, columns);
    if (!good(b)) return NULL;
    const double *const alpha = array_of(b, p, prefix, "alpha", 0, all, columns);
    const double *const gains = array_of(b, p, prefix, "gains", R / 2, other / (R / 2), columns);
    return good(b) ? joined(b, alpha, all * each, gains, other * each) : NULL;
}

/* Q = exp(M - M^T), where a contractive M is first made smaller (python/rotrnn/nn/fixed_points/mixer.py). */
static const void *orthogonal_of(builder *b, const part *p, int64_t N, bool contractive) {
    const double *const M = matrix_of(b, p, "M", N, N);
    double *const scaled = good(b) ? spare(b, N * N) : NULL, *const Q = good(b) ? spare(b, N * N) : NULL;
    double squares = 0;
    if (!good(b)) return NULL;
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < N; j++) squares += (M[i * N + j] - M[j * N + i]) * (M[i * N + j] - M[j * N + i]);
    const double scale = contractive ? 2 * asin(CONTRACTION / 2) / (1 + sqrt(squares / 2)) : 1;
    for (int64_t i = 0; i < N * N; i++) scaled[i] = scale * M[i];
    if (!rotations_of(b, p, Q, scaled, 1, N)) return NULL;
    return packed_of(b, computed(Q), N, N);
}

/* Sets the mixer of constant u and alpha. */
static void set_constant_mixer(builder *b, const part *p, iterated *to, const mixer_parts *m) {
    const int64_t gains = m->of.form == MIXER_GRAM ? 1 : m->alpha;
    const double *const u = vectors_of(b, p, "", m, 0), *const raw = m->alpha ? gains_of(b, p, "", m, 0) : NULL;
    double *const prepared = good(b) ? spare(b, m->prepared) : NULL, *const alpha = good(b) ? spare(b, gains) : NULL;
    double *const room = good(b) ? spare(b, m->scratch) : NULL;
    if (!good(b)) return;
    for (int64_t i = 0; i < gains; i++) alpha[i] = raw ? m->largest / (1 + exp(-raw[i])) : 1;
    for (int64_t i = 0; i < members_of(&m->of); i++) {
        const member one = member_of(&m->of, m->eps, i);
        mixer_prepare(prepared + one.prepared, u + one.u, one.sizes.m);
        if (changes_gains(one.sizes)) mixer_gain(alpha + one.alpha, u + one.u, alpha + one.alpha, room, one.sizes);
    }
    to->prepared = stored(b, prepared, m->prepared);
    to->alpha = stored(b, alpha, gains);
}

/* Copies rows, or leaves zeros, of a weight (width, in) of a map into the weights of all, of `wide` numbers each. */
static void stack(double *all, const double *w, const columns *of, int64_t first, int64_t in, int64_t wide) {
    for (int64_t i = 0; w && i < of->width; i++)
        memcpy(all + (of->at - first + i) * wide, w + i * in, (size_t)in * sizeof *all);
}

/* Appends the sums W x + b of the maps from `first` to `end`, and sets their V, for a previous output of N numbers.
 * Those that depend on it come last; all of these have the same x. It has `in` channels that W multiplies, and may have
 * more behind them. */
static void emit_maps(builder *b, iterated *to, const map *maps, int first, int end, rows x, int64_t in, int64_t N) {
    int64_t width = 0, driven = 0;
    for (int late = 0; late < 2; late++) {
        if (late) driven = width;
        for (int i = first; i < end; i++) {
            if (late != !!maps[i].V) continue;
            to->maps[i] = (columns){.at = width, .width = maps[i].width, .function = maps[i].function};
            width += maps[i].width;
        }
    }
    if (!width) return;
    const int64_t late = width - driven, D = x.width;
    double *const W = spare(b, width * D), *const V = spare(b, late * N), *const bias = spare(b, width);
    const rows sums = take_rows(b, width), values = take_rows(b, width);
    if (!good(b)) return;
    for (int i = first; i < end; i++) {
        columns *const of = to->maps + i;
        of->sums = sums, of->values = values;
        stack(W, maps[i].W, of, 0, in, D);
        stack(bias, maps[i].b, of, 0, 1, 1);
        stack(V, maps[i].V, of, driven, N, N);
        for (int64_t j = 0; maps[i].from && j < of->width; j++) W[(of->at + j) * D + maps[i].from + j] = 1;
    }
    emit_dense(b, sums, x, computed(W), bias);
    if (late) to->sums = sums, to->driven = driven, to->V = packed_of(b, computed(V), late, N);
}

/* Adds U u of the maps, which have one input x, to their sums. */
static void emit_of_input(builder *b, const iterated *to, const map *maps, rows u) {
    const rows sums = to->maps[MAP_DELTA].sums;
    double *const U = spare(b, sums.width * u.width);
    bool any = false;
    for (int i = 0; good(b) && i < MOST_MAPS; i++) {
        stack(U, maps[i].U, to->maps + i, 0, u.width, u.width);
        any |= !!maps[i].U;
    }
    if (!any) return;
    const rows more = take_rows(b, sums.width);
    emit_dense(b, more, u, computed(U), NULL);
    emit(b, OP_SUM, sums, more)->z = sums;
}

/* Whether the mixer is a function of x + y with the previous output y, and so V its W. */
static bool is_symmetric(builder *b, const part *p) {
    const bool symmetric = flag_of(b, p, "symmetric");
    if (symmetric && !has(p, "feedback", "mixer"))
        failed(b->error, ROTRNN_DAMAGED, "%s is symmetric without feedback to its mixer", p->name);
    return symmetric;
}

static int64_t function_of_vectors(builder *b, const part *p) {
    return flag_of(b, p, "mixer_silu") ? LAGGED_SILU : LAGGED_LINEAR;
}

/* Sets the maps of the parts of a mixer that can vary, of x (D) and, with feedback, of the previous output. */
static void set_mixer_maps(builder *b, const part *p, map *maps, const mixer_parts *m, int64_t D) {
    const bool symmetric = is_symmetric(b, p), driven = has(p, "feedback", "mixer") && !symmetric;
    const int64_t vectors = function_of_vectors(b, p), N = m->of.width;
    map *const u = maps + MAP_U, *const alpha = maps + MAP_ALPHA;
    if (m->of.form == MIXER_MATRIX) return;
    *u = (map){.width = m->u, .function = vectors, .W = vectors_of(b, p, "W_", m, D)};
    if (driven) u->V = vectors_of(b, p, "V_", m, N);
    if (m->alpha) {
        *alpha = (map){.width = m->alpha, .function = LAGGED_SIGMOID, .W = gains_of(b, p, "W_", m, D)};
        if (driven) alpha->V = gains_of(b, p, "V_", m, N);
    }
    if (symmetric) u->V = u->W, alpha->V = alpha->W;
}

/* Whether the fixed point is found directly: of mixers of vectors, with low rank in the scaled form alone. `refused`:
 * other settings with which the layer has no direct solver. */
static bool is_direct(builder *b, const part *p, const mixer_parts *m, bool scaled, bool refused) {
    if (!choice_of(b, p, "solver", "iteration direct")) return false;
    if (refused || !has_vectors(m->of.form) || (m->of.form == MIXER_LOW_RANK && !scaled))
        failed(b->error, ROTRNN_DAMAGED, "%s has a direct solver, which its other settings exclude", p->name);
    return true;
}

static iterated *new_iterated(builder *b, const part *p, const mixer_parts *m) {
    iterated *const to = good(b) ? arena_take(b->memory, 1, sizeof *to) : NULL;
    if (!to) {
        failed(b->error, ROTRNN_NO_MEMORY, "no memory for the model");
        return NULL;
    }
    *to = (iterated){.how = iteration_of(b, p), .mixing = m->of, .largest = m->largest, .unit_eps = m->eps};
    to->negative = flag_of(b, p, "negative");
    return to;
}

/* x <- SiLU(conv(v)), if the layer has a short convolution, whose arrays' names end in `of`; else x is v. */
static rows convolved(builder *b, const part *p, rows v, const char *of) {
    char w[32], bias[32];
    const int64_t taps = integer_of(b, p, "d_conv", 0);
    if (!taps) return v;
    const rows x = take_rows(b, v.width);
    (void)snprintf(w, sizeof w, "conv_w%s", of);
    (void)snprintf(bias, sizeof bias, "conv_bias%s", of);
    emit_silu_conv(b, x, v, matrix_of(b, p, w, v.width, taps), vector_of(b, p, bias, v.width), taps);
    return x;
}

static void emit_iteration(builder *b, op *o, iterated *to, const mixer_parts *m) {
    to->room = take_rows(b, 6 * m->of.width + m->prepared + m->scratch);
    o->count = m->prepared;
    o->iterated = to;
}

/* Maps of a vector state of the input v, which is convolved to x. With separate convolutions, each part that varies has
 * one of its own. */
static void emit_vector_maps(builder *b, const part *p, iterated *to, const map *maps, rows v, rows x, int64_t N) {
    static const int first[] = {MAP_LAMBDA, MAP_U, MAP_GATE, MAP_DRIVE};
    static const char *const of[] = {"_lambda", "_mixer", "_B"};
    if (!flag_of(b, p, "separate_convs")) {
        emit_maps(b, to, maps, 0, MOST_MAPS, x, v.width, N);
        return;
    }
    for (int i = 0; i < 3; i++)
        emit_maps(b, to, maps, first[i], first[i + 1], maps[first[i]].W ? convolved(b, p, v, of[i]) : x, v.width, N);
    emit_maps(b, to, maps, MAP_DRIVE, MOST_MAPS, x, v.width, N);
}

void build_fixed_point(builder *b, const part *p, rows y, rows x) {
    const int64_t N = integer_of(b, p, "d_state", 1), D = x.width;
    const bool contractive = flag_of(b, p, "contractive"), scaled = flag_of(b, p, "scaled");
    const mixer_parts m = mixer_of(b, p, N, contractive);
    const bool varying = m.of.form != MIXER_MATRIX && has(p, "selective", "mixer");
    const bool gated = has(p, "feedback", "output");
    ignore(p, "selective lambda_init accelerated"); /* within one step there is nothing to accelerate */
    const bool direct = is_direct(b, p, &m, scaled, has(p, "feedback", "mixer"));
    if (contractive && !scaled) failed(b->error, ROTRNN_DAMAGED, "%s is contractive without being scaled", p->name);
    if (!varying && (has(p, "feedback", "mixer") || function_of_vectors(b, p) != LAGGED_LINEAR))
        failed(b->error, ROTRNN_DAMAGED, "%s has feedback to a constant mixer, or its vectors pass SiLU", p->name);
    if (is_symmetric(b, p)) check_width(b, p, "d_state", D);
    map maps[MOST_MAPS] = {[MAP_LAMBDA] = {.width = N, .function = LAGGED_SIGMOID, .b = vector_of(b, p, "b_lambda", N)},
                           [MAP_DRIVE] = {.width = N, .W = matrix_of(b, p, "B", N, D)}};
    if (has(p, "selective", "lambda")) maps[MAP_LAMBDA].W = matrix_of(b, p, "W_lambda", N, D);
    if (has(p, "selective", "B"))
        maps[MAP_GATE] = (map){
            .width = N, .function = LAGGED_SIGMOID, .W = matrix_of(b, p, "W_B", N, D), .b = vector_of(b, p, "b_B", N)};
    if (varying) set_mixer_maps(b, p, maps, &m, D);
    const weights C = weights_of(b, p, "C", D, N);
    const weights W_c = gated ? weights_of(b, p, "W_c", N, D) : computed(NULL);
    const weights V_c = gated ? weights_of(b, p, "V_c", N, N) : computed(NULL);
    const double *const skip = vector_of(b, p, "D", D);
    iterated *const to = new_iterated(b, p, &m);
    if (!good(b)) return;
    to->scaled = scaled, to->direct = direct;
    if (m.of.form == MIXER_MATRIX)
        to->matrix = orthogonal_of(b, p, N, contractive);
    else if (!varying)
        set_constant_mixer(b, p, to, &m);
    const rows u = convolved(b, p, x, ""), gate = take_rows(b, gated ? N : 0), h = take_rows(b, N);
    emit_vector_maps(b, p, to, maps, x, u, N);
    if (gated) emit_dense(b, gate, u, W_c, NULL);
    to->V_gate = packed_of(b, V_c, N, N);
    op *const step = emit(b, OP_FIXED_POINT, h, h);
    emit_iteration(b, step, to, &m);
    step->z = gate;
    step->state = take_state(b, N, b->run->number);
    if (gated) emit_gated(b, OP_SILU, h, h, gate);
    emit_dense(b, y, h, C, NULL);
    emit_skip(b, y, u, skip);
}

/* What a matrix-state layer has beside its maps: A (E, S), skip (E) and V_gate (E, E) or NULL; `further` rows `more` of
 * W_in, behind those of x, for what maps take `from` there; and whether z, without V_gate y, is a gate in F. */
typedef struct {
    const double *A, *skip, *V_gate, *more;
    int64_t further;
    bool gated;
} matrix_layer;

/* v <- [W_in's first rows for x; more] u */
static void emit_source(builder *b, const part *p, rows v, rows u, weights W_in, const matrix_layer *l) {
    const int64_t D = u.width, E = v.width - l->further;
    if (!l->further) {
        emit_dense(b, v, u, W_in, NULL);
        return;
    }
    const double *const first = matrix_of(b, p, "W_in", 2 * E, D);
    double *const all = good(b) ? spare(b, v.width * D) : NULL;
    if (!good(b)) return;
    memcpy(all, first, (size_t)(E * D) * sizeof *all);
    memcpy(all + E * D, l->more, (size_t)(l->further * D) * sizeof *all);
    emit_dense(b, v, u, computed(all), NULL);
}

/* A matrix-state layer between its projections, with the maps of its step. */
static void emit_matrix_layer(builder *b, const part *p, rows y, rows u, iterated *to, const mixer_parts *m,
                              const map *maps, const matrix_layer *l) {
    const int64_t D = u.width, E = integer_of(b, p, "expand", 1) * D, S = maps[MAP_B].width;
    const weights W_in = weights_of(b, p, "W_in", 2 * E, D), W_out = weights_of(b, p, "W_out", D, E);
    double *const by_state = good(b) ? spare(b, S * E) : NULL;
    if (m->of.form == MIXER_MATRIX) to->matrix = orthogonal_of(b, p, E, false);
    if (!good(b)) return;
    for (int64_t e = 0; e < E; e++)
        for (int64_t s = 0; s < S; s++) by_state[s * E + e] = l->A[e * S + s];
    to->A = stored(b, by_state, S * E);
    to->skip = stored(b, l->skip, E);
    to->V_gate = packed_of(b, computed(l->V_gate), E, E);
    const rows v = take_rows(b, E + l->further), gate = take_rows(b, E), out = take_rows(b, E);
    emit_source(b, p, v, u, W_in, l);
    const rows x = convolved(b, p, v, "");
    emit_dense(b, gate, u, from_row(W_in, E, D), NULL);
    if (l->gated) {
        to->gate = take_rows(b, E);
        emit_dense(b, to->gate, u, from_row(W_in, E, D), NULL);
    }
    emit_maps(b, to, maps, 0, MOST_MAPS, x, E, E);
    emit_of_input(b, to, maps, u);
    op *const step = emit(b, OP_MATRIX_FIXED_POINT, out, x);
    emit_iteration(b, step, to, m);
    step->z = gate;
    step->state = take_state(b, (S + 1) * E, b->run->number);
    emit_dense(b, y, out, W_out, NULL);
}

void build_bedouin(builder *b, const part *p, rows y, rows x) {
    const int64_t E = integer_of(b, p, "expand", 1) * x.width, S = integer_of(b, p, "d_state", 1);
    const mixer_parts m = mixer_of(b, p, E, false);
    const int64_t direction = flag_of(b, p, "normalise") ? LAGGED_UNIT : LAGGED_LINEAR;
    const bool fed = has(p, "feedback", "lambda"), silu = function_of_vectors(b, p) != LAGGED_LINEAR;
    const bool direct = is_direct(b, p, &m, true, fed || silu || m.eps > 0);
    map maps[MOST_MAPS] = {[MAP_DELTA] = {.width = E,
                                          .function = LAGGED_SIGMOID,
                                          .W = matrix_of(b, p, "W_delta", E, E),
                                          .b = vector_of(b, p, "b_delta", E)},
                           [MAP_B] = {.width = S, .function = direction, .W = matrix_of(b, p, "W_B", S, E)},
                           [MAP_C] = {.width = S, .function = direction, .W = matrix_of(b, p, "W_C", S, E)}};
    if (fed) maps[MAP_DELTA].V = matrix_of(b, p, "V_delta", E, E);
    if (has(p, "feedback", "B")) maps[MAP_B].V = matrix_of(b, p, "V_B", S, E);
    if (has(p, "feedback", "C")) maps[MAP_C].V = matrix_of(b, p, "V_C", S, E);
    set_mixer_maps(b, p, maps, &m, E);
    const double *const V_gate = has(p, "feedback", "gate") ? matrix_of(b, p, "V_gate", E, E) : NULL;
    const double *const omega = matrix_of(b, p, "omega", E, S), rate = 8; /* the constant c of its transition */
    iterated *const to = new_iterated(b, p, &m);
    double *const A = good(b) ? spare(b, E * S) : NULL;
    if (!good(b)) return;
    to->direct = direct;
    for (int64_t i = 0; i < E * S; i++) A[i] = -rate * (fmax(omega[i], 0) + log1p(exp(-fabs(omega[i]))));
    emit_matrix_layer(b, p, y, x, to, &m, maps,
                      &(matrix_layer){.A = A, .skip = vector_of(b, p, "D", E), .V_gate = V_gate});
}

/* Rows of w (rows, columns), from column `first` on `width` of each, that are normalised as a whole and multiplied by
 * gains. */
static const double *weight_normed(builder *b, const double *w, const double *gains, int64_t rows, int64_t columns,
                                   int64_t first, int64_t width) {
    double *const to = good(b) ? spare(b, rows * width) : NULL;
    for (int64_t r = 0; good(b) && r < rows; r++) {
        double square = 0;
        for (int64_t j = 0; j < columns; j++) square += w[r * columns + j] * w[r * columns + j];
        for (int64_t j = 0; j < width; j++) to[r * width + j] = gains[r] * (w[r * columns + first + j] / sqrt(square));
    }
    return to;
}

/* Sets W and V of a part of the mixer from its weights P (rows, columns): over the input and the previous output, over
 * their sum if `symmetric`, or else over the input alone. */
static void set_normed(builder *b, map *to, const double *P, const double *gains, int64_t E, int64_t columns,
                       bool symmetric) {
    to->W = weight_normed(b, P, gains, to->width, columns, 0, E);
    if (columns > E) to->V = weight_normed(b, P, gains, to->width, columns, E, E);
    if (symmetric) to->V = to->W;
}

/* The weights NAME (rows, columns) with the gains "g_NAME". */
static const double *normed_matrix(builder *b, const part *p, const char *name, const char *gain, int64_t rows,
                                   int64_t columns) {
    const double *const w = matrix_of(b, p, name, rows, columns), *const gains = vector_of(b, p, gain, rows);
    return weight_normed(b, w, gains, rows, columns, 0, columns);
}

/* Sets delta, B and C, and what the layer has of the two forms of FPMamba: Mamba's, by channels, */
static void set_channels(builder *b, const part *p, map *maps, matrix_layer *l, int64_t D, int64_t E, int64_t S) {
    const int64_t R = (D + 15) / 16;
    const double *const W_d = matrix_of(b, p, "W_d", R, E), *const W_dt = matrix_of(b, p, "W_dt", E, R);
    const double *const A_log = matrix_of(b, p, "A_log", E, S);
    double *const A = good(b) ? spare(b, E * S) : NULL, *const W_delta = good(b) ? spare(b, E * E) : NULL;
    maps[MAP_DELTA].b = vector_of(b, p, "b_dt", E);
    maps[MAP_B].W = matrix_of(b, p, "W_B", S, E), maps[MAP_C].W = matrix_of(b, p, "W_C", S, E);
    l->skip = vector_of(b, p, "D", E);
    if (!good(b)) return;
    for (int64_t i = 0; i < E * S; i++) A[i] = -exp(A_log[i]);
    for (int64_t i = 0; i < E; i++)
        for (int64_t r = 0; r < R; r++)
            for (int64_t j = 0; j < E; j++) W_delta[i * E + j] += W_dt[i * R + r] * W_d[r * E + j];
    maps[MAP_DELTA].W = W_delta;
    l->A = A;
}

/* and Mamba-2's, by heads of P channels. */
static void set_heads(builder *b, const part *p, map *maps, matrix_layer *l, int64_t D, int64_t E, int64_t S,
                      int64_t P) {
    const int64_t H = E / P;
    const double *const W_dt = matrix_of(b, p, "W_dt", H, D), *const b_dt = vector_of(b, p, "b_dt", H);
    const double *const A_log = vector_of(b, p, "A_log", H), *const skip = vector_of(b, p, "D", H);
    const double *const W_B = matrix_of(b, p, "W_B", S, D), *const W_C = matrix_of(b, p, "W_C", S, D);
    double *const A = good(b) ? spare(b, E * S) : NULL, *const skips = good(b) ? spare(b, E) : NULL;
    double *const biases = good(b) ? spare(b, E) : NULL, *const U = good(b) ? spare(b, E * D) : NULL;
    double *const more = good(b) ? spare(b, 2 * S * D) : NULL;
    if (!good(b)) return;
    for (int64_t e = 0; e < E; e++) {
        for (int64_t s = 0; s < S; s++) A[e * S + s] = -exp(A_log[e / P]);
        skips[e] = skip[e / P], biases[e] = b_dt[e / P];
        memcpy(U + e * D, W_dt + e / P * D, (size_t)D * sizeof *U);
    }
    memcpy(more, W_B, (size_t)(S * D) * sizeof *more);
    memcpy(more + S * D, W_C, (size_t)(S * D) * sizeof *more);
    maps[MAP_DELTA].U = U, maps[MAP_DELTA].b = biases;
    maps[MAP_B].from = E, maps[MAP_C].from = E + S;
    l->A = A, l->skip = skips, l->more = more, l->further = 2 * S;
}

void build_fpmamba(builder *b, const part *p, rows y, rows x) {
    const int64_t E = integer_of(b, p, "expand", 1) * x.width, S = integer_of(b, p, "d_state", 1);
    const int64_t P = integer_of(b, p, "d_head", 0);
    const mixer_parts m = mixer_of(b, p, E, false);
    const int64_t direction = flag_of(b, p, "normalise") ? LAGGED_UNIT : LAGGED_LINEAR;
    const int64_t vectors = function_of_vectors(b, p);
    const bool symmetric = is_symmetric(b, p), plain = flag_of(b, p, "gate_in_loop");
    const double eps = number_of(b, p, "norm_eps");
    ignore(p, "dt_min dt_max");
    if (P && E % P) failed(b->error, ROTRNN_DAMAGED, "%s has heads that do not divide its width", p->name);
    map maps[MOST_MAPS] = {[MAP_DELTA] = {.width = E, .function = LAGGED_SOFTPLUS},
                           [MAP_B] = {.width = S, .function = direction},
                           [MAP_C] = {.width = S, .function = direction}};
    matrix_layer layer = {.gated = plain || P};
    if (!good(b)) return;
    if (P)
        set_heads(b, p, maps, &layer, x.width, E, S, P);
    else
        set_channels(b, p, maps, &layer, x.width, E, S);
    if (has(p, "feedback", "B")) maps[MAP_B].V = normed_matrix(b, p, "V_B", "g_V_B", S, E);
    if (has(p, "feedback", "C")) maps[MAP_C].V = normed_matrix(b, p, "V_C", "g_V_C", S, E);
    if (m.of.form != MIXER_MATRIX) {
        const int64_t columns = has(p, "feedback", "mixer") && !symmetric ? 2 * E : E;
        maps[MAP_U] = (map){.width = m.u, .function = vectors};
        const double *const P_u = vectors_of(b, p, "P_", &m, columns), *const g_u = vectors_of(b, p, "g_P_", &m, 0);
        set_normed(b, maps + MAP_U, P_u, g_u, E, columns, symmetric);
        if (m.alpha) {
            maps[MAP_ALPHA] = (map){.width = m.alpha, .function = LAGGED_SIGMOID, .b = gains_of(b, p, "b_", &m, 0)};
            const double *const P_alpha = gains_of(b, p, "P_", &m, columns);
            set_normed(b, maps + MAP_ALPHA, P_alpha, gains_of(b, p, "g_P_", &m, 0), E, columns, symmetric);
        }
    }
    if (has(p, "feedback", "gate")) layer.V_gate = normed_matrix(b, p, "V_gate", "g_V_gate", E, E);
    const double *const scale = vector_of(b, p, "scale", E), *const bias = P ? NULL : vector_of(b, p, "bias", E);
    iterated *const to = new_iterated(b, p, &m);
    if (!good(b)) return;
    to->how.floor = RESIDUAL_FLOOR;
    to->plain = plain;
    to->scale = stored(b, scale, E), to->bias = stored(b, bias, E), to->eps = eps;
    emit_matrix_layer(b, p, y, x, to, &m, maps, &layer);
}
