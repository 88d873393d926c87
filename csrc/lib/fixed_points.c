/* The instructions that find a fixed point step by step (iterate.c): those of FixedPointRNN, and of Bedouin and
 * FPMamba. Their equations are in python/rotrnn/nn/layers/.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "anderson.h"
#include "kernels.h"
#include "members.h"
#include "read.h"

static const double FINEST = 32; /* multiple of epsilon that is the least tolerance */
static const int64_t MOST_ITERATIONS = (int64_t)1 << 20;

/* A mixer, and the sizes of its parts. */
typedef struct {
    mixing of;
    mixing_sizes sizes;
} mixer_parts;

static iteration iteration_of(builder *b, const part *p) {
    enum { ADAPTIVE, NONE, ANDERSON };          /* of damping */
    enum { SEQUENCE, QUANTILE, STEP_QUANTILE }; /* of stop */
    const double eps = b->run->number == sizeof(double) ? DBL_EPSILON : (double)FLT_EPSILON;
    iteration how = {.tol = fmax(number_of(b, p, "tol"), FINEST * eps), .most = integer_of(b, p, "max_iterations", 1)};
    const int64_t damping = choice_of(b, p, "damping", "adaptive none anderson");
    how.adaptive = damping == ADAPTIVE, how.accelerate = damping == ANDERSON;
    const int64_t stop = choice_of(b, p, "stop", "sequence quantile step_quantile");
    how.quantile = stop >= QUANTILE;
    if (stop == STEP_QUANTILE) how.floor = RESIDUAL_FLOOR;
    if (how.most > MOST_ITERATIONS) unsupported(b, p, " with so many iterations");
    return how;
}

static mixer_parts mixer_of(reader *r, int64_t N) {
    enum { POWER_STEPS = 16, GRAM_STEPS = 32 };
    static const int64_t forms[] = {MIXER_HOUSEHOLDER, MIXER_DPLR, MIXER_LOW_RANK, MIXER_KRONECKER, MIXER_MONARCH,
                                    MIXER_MATRIX,      MIXER_GRAM, MIXER_MIXTURE,  MIXER_ROTATION};
    static const char *const names = "householder dplr low_rank kronecker monarch orthogonal dense mixture rotation";
    mixer_parts m = {.of = {.rank = integer_of(r->b, &r->p, "rank", 1), .width = N}};
    const double eps = number_of(r->b, &r->p, "unit_eps");
    m.of.form = forms[choice_of(r->b, &r->p, "mixer", names)];
    if (flag_of(r->b, &r->p, "spectral")) m.of.power_steps = POWER_STEPS;
    if (N > MIXTURE_LARGEST) unsupported(r->b, &r->p, " of so many channels");
    if (!expect(r, N > 0 && m.of.rank <= N && eps >= 0)) return m;
    switch (m.of.form) {
    case MIXER_MATRIX: m.of.rank = N; break;
    case MIXER_KRONECKER: m.of.rank = rows_of_product(N); break;
    case MIXER_GRAM: m.of.rank = N, m.of.power_steps = GRAM_STEPS; break;
    default: break;
    }
    if (expect(r, mixing_fits(m.of.form, m.of.rank, N))) m.sizes = sizes_of(&m.of, eps);
    return m;
}

/* What iterates, with the mixer's settings. Low rank and dense have no direct solution where not `scaled`. */
static iterated *new_iterated(reader *r, mixer_parts *m, bool scaled) {
    iterated *const to = good(r->b) ? arena_take(r->b->memory, 1, sizeof *to) : NULL;
    if (!to) {
        failed(r->b->error, ROTRNN_NO_MEMORY, "no memory for the model");
        return NULL;
    }
    *to = (iterated){.how = iteration_of(r->b, &r->p), .mixing = m->of, .scaled = scaled};
    to->largest = number_of(r->b, &r->p, "largest");
    to->unit_eps = number_of(r->b, &r->p, "unit_eps");
    to->direct = flag_of(r->b, &r->p, "direct");
    const bool singular = m->of.form == MIXER_LOW_RANK || m->of.form == MIXER_GRAM;
    if (!expect(r, !to->direct || !singular || scaled)) return NULL;
    if (to->direct) m->sizes.scratch = direct_members_room(&m->of, m->sizes);
    return to;
}

/* Sets the mixer of constant u and alpha, inputs i and i + 1, or of the matrix, input i + 2. Gram and the matrix have
 * no alpha. */
static void set_constant_mixer(reader *r, iterated *to, const mixer_parts *m, int64_t i) {
    const int64_t gains = most(m->sizes.alpha, 1), N = m->of.width;
    const bool matrix = m->of.form == MIXER_MATRIX;
    const value *const of = r->in[matrix ? i + 2 : i], *const gain = matrix ? NULL : r->in[i + 1];
    if (matrix && !expect(r, of && is_matrix_or_none(r, i + 2, N, N))) return;
    if (!matrix && (!expect(r, !r->in[i + 2] && is(fixed(r, i, 1), 0, m->sizes.u)) ||
                    !expect(r, is_matrix_or_none(r, i + 1, m->sizes.alpha, 0) && !m->sizes.alpha == !gain)))
        return;
    const double *const given = doubles(r, of), *const raw = doubles(r, gain);
    double *const u = spare(r->b, m->sizes.u), *const prepared = spare(r->b, m->sizes.prepared),
                  *const alpha = spare(r->b, gains);
    double *const room = spare(r->b, m->sizes.scratch);
    if (!good(r->b)) return;
    for (int64_t g = 0; g < gains; g++) alpha[g] = raw ? to->largest / (1 + exp(-raw[g])) : 1;
    copy_row(u, given, m->sizes.u);
    bound_angles(u, m->sizes.u, (real)to->largest, &m->of);
    prepare_members(prepared, u, alpha, room, &m->of, to->unit_eps);
    to->prepared = stored(r->b, prepared, m->sizes.prepared);
    to->alpha = stored(r->b, alpha, gains);
}

/* Sets the maps, whose widths and functions are those of `all`: adjacent columns of input `sums`, in the order of the
 * setting "maps". V, input i (late, N) if it is given, is of the last ones. */
static void set_maps(reader *r, iterated *to, const columns *all, int64_t sums, int64_t i, int64_t N) {
    static const char *const names[] = {"delta", "u", "alpha", "B", "C"};
    const json *const list = json_member(r->p.settings, "maps");
    const value *const x = steps(r, sums, 1), *const V = r->in[i];
    int64_t at = 0;
    if (!expect(r, list && list->kind == JSON_LIST)) return;
    for (const json *one = list->first; one && good(r->b); one = one->next) {
        int64_t place = 0;
        while (place < MOST_MAPS && !json_is(one, names[place])) place++;
        if (!expect(r, place < MOST_MAPS && !to->maps[place].width && all[place].width > 0)) return;
        to->maps[place] = all[place];
        to->maps[place].at = at;
        at += all[place].width;
    }
    if (!expect(r, x->shape[0] == at && (!V || (V->fixed && V->axes == 2 && V->shape[0] <= at && is(V, 1, N))))) return;
    const rows own = V ? copied(r, sums) : x->rows, values = rows_for(r, at);
    for (int64_t k = 0; k < MOST_MAPS; k++) to->maps[k].sums = own, to->maps[k].values = values;
    if (!V) return;
    to->sums = own;
    to->driven = at - V->shape[0];
    to->V = packed_input(r, i);
}

/* Appends the instruction, whose memory is given back behind it. */
static op *emit_iteration(reader *r, op_kind kind, iterated *to, const mixer_parts *m, rows y, rows x, int64_t state) {
    if (!good(r->b)) return &r->b->nowhere;
    const int64_t prepared = to->prepared ? 0 : m->sizes.prepared;
    const int64_t vectors = 6 + (to->how.accelerate ? ANDERSON_ROWS : 0);
    const int64_t step = vectors * m->of.width + prepared + m->sizes.scratch; /* of one row: all rows share it */
    to->room = rows_for(r, pieces_of(step, CHUNK_ROWS / 2));
    op *const o = emit(r->b, kind, y, x);
    o->count = prepared;
    o->iterated = to;
    o->state = state_for(r, state);
    give_back(r, to->room);
    if (to->maps[0].values.width) give_back(r, to->maps[0].values);
    if (to->V) give_back(r, to->sums);
    if (to->read.width) give_back(r, to->read);
    return o;
}

/* Whether the mixer is a function of maps, or constant: of the inputs from i on. */
static void set_mixer(reader *r, iterated *to, const mixer_parts *m, int64_t i) {
    const bool u = to->maps[MAP_U].width, alpha = to->maps[MAP_ALPHA].width;
    if (!u && expect(r, !alpha)) set_constant_mixer(r, to, m, i);
    expect(r, !u || (m->of.form != MIXER_MATRIX && alpha == !!m->sizes.alpha));
}

/* Refuses a line of an earlier version, which has the setting, and other inputs. */
static bool is_current(reader *r, const char *setting) {
    if (good(r->b) && json_member(r->p.settings, setting))
        failed(r->b->error, ROTRNN_UNSUPPORTED,
               "%s of the program, %.60s, is of an earlier version: load the model in Python and save it again",
               r->p.name, r->op);
    return good(r->b);
}

/* Inputs: v and lambda (N); the sums of the mixer's maps, and V; or a constant mixer's u, alpha and matrix. */
void read_fixed_point(reader *r) {
    if (!is_current(r, "width")) return;
    const value *const v = steps(r, 0, 1), *const lambda = steps(r, 1, 1);
    const int64_t N = v->shape[0];
    const bool scaled = flag_of(r->b, &r->p, "scaled"), silu = flag_of(r->b, &r->p, "silu");
    if (!expect(r, N > 0 && is(lambda, 0, N))) return;
    mixer_parts m = mixer_of(r, N);
    const columns all[MOST_MAPS] = {[MAP_U] = {.width = m.sizes.u, .function = silu ? LAGGED_SILU : LAGGED_LINEAR},
                                    [MAP_ALPHA] = {.width = m.sizes.alpha, .function = LAGGED_SIGMOID}};
    iterated *const to = new_iterated(r, &m, scaled);
    if (!good(r->b)) return;
    if (r->in[2]) set_maps(r, to, all, 2, 3, N);
    set_mixer(r, to, &m, 4);
    if (!expect(r, !to->V || !to->direct) || !expect(r, r->in[2] || !r->in[3])) return;
    const rows h = make(r, N);
    emit_iteration(r, OP_FIXED_POINT, to, &m, h, v->rows, N)->z = lambda->rows;
}

/* Inputs: x (E); the sums of the maps; a gate (E) in the step; A (E, S), skip (E); V; scale and bias (E) of a norm; and
 * the matrix of a constant mixer. */
void read_matrix_fixed_point(reader *r) {
    if (!is_current(r, "gated") || !expect(r, !r->in[9])) return;
    const value *const x = steps(r, 0, 1), *const A = fixed(r, 3, 2);
    const int64_t E = A->shape[0], S = A->shape[1];
    if (!expect(r, E > 0 && S > 0 && S < LARGEST / E - 1 && is(x, 0, E)) ||
        !expect(r, (!r->in[2] || is(steps(r, 2, 1), 0, E)) && is_matrix_or_none(r, 4, E, 0)) ||
        !expect(r, is_matrix_or_none(r, 6, E, 0) && is_matrix_or_none(r, 7, E, 0) && (r->in[6] || !r->in[7])))
        return;
    mixer_parts m = mixer_of(r, E);
    const bool silu = flag_of(r->b, &r->p, "silu"), softplus = flag_of(r->b, &r->p, "softplus");
    const int64_t direction = flag_of(r->b, &r->p, "unit") ? LAGGED_UNIT : LAGGED_LINEAR;
    const bool negative = flag_of(r->b, &r->p, "negative");
    const double eps = number_of(r->b, &r->p, "eps");
    const columns all[MOST_MAPS] = {[MAP_DELTA] = {.width = E, .function = softplus ? LAGGED_SOFTPLUS : LAGGED_SIGMOID},
                                    [MAP_U] = {.width = m.sizes.u, .function = silu ? LAGGED_SILU : LAGGED_LINEAR},
                                    [MAP_ALPHA] = {.width = m.sizes.alpha, .function = LAGGED_SIGMOID},
                                    [MAP_B] = {.width = S, .function = direction},
                                    [MAP_C] = {.width = S, .function = direction}};
    iterated *const to = new_iterated(r, &m, true);
    if (!good(r->b)) return;
    set_maps(r, to, all, 1, 5, E);
    set_mixer(r, to, &m, 6);
    if (!expect(r, to->maps[MAP_DELTA].width && to->maps[MAP_B].width && to->maps[MAP_C].width) ||
        !expect(r, !to->direct || (!r->in[2] && !r->in[4] && !r->in[6])))
        return;
    to->A = stored(r->b, transposed(r, A), S * E);
    to->skip = stored(r->b, doubles(r, r->in[4]), E);
    to->scale = stored(r->b, doubles(r, r->in[6]), E), to->bias = stored(r->b, doubles(r, r->in[7]), E);
    to->eps = eps, to->negative = negative;
    if (json_member(r->p.settings, "feedback_norm") && flag_of(r->b, &r->p, "feedback_norm")) to->read = rows_for(r, E);
    if (to->scale) to->how.floor = RESIDUAL_FLOOR;
    if (r->in[2]) to->gate = r->in[2]->rows;
    emit_iteration(r, OP_MATRIX_FIXED_POINT, to, &m, make(r, E), x->rows, (S + 1) * E);
}
