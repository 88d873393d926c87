/* The fixed point of Bedouin's step in depth, and its adjoint, each in one pass over time instead of an iteration:
 *
 *   x~_t = Q_t (x_t - y_t) + y_t,   h_t = a_t h_{t-1} + (delta_t x~_t) B_t^T,   y_t = h_t C_t,
 *
 * where Q, B and C depend on y_{t-1}, which is known when t is reached, and so may delta; a_t is that of the selective
 * scan. With `feedback_norm` they depend on y_{t-1} / rms(y_{t-1}). Then y_t is a linear system, that of direct.h: with
 * k = B . C and c = (a_t h_{t-1}) C,
 *
 *   y = c + gain (y + Q (x - y)),   gain = k delta.
 *
 * The adjoint goes back in time. With g_t the gradient of y_t from outside and from the maps of the step behind it, and
 * G_t the gradient of h_t from that step, the gradient v_t of y_t in all is a linear system, the transposed one:
 *
 *   v = g + (I - Q^T) (d + gain v),   d = delta_t (G_t B_t),   dh_t = G_t + v_t C_t^T,   G_{t-1} = a_t dh_t.
 *
 * Some sequences go through time together, so that the weights of y_{t-1} are read once for all of them. Their number
 * is fixed, so results have the same bits for any number of threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 */
#include <string.h>

#include "gemm_tile.h"
#include "kernels.h"
#include "lagged.h"
#include "members.h"
#include "rows.h"
#include "stop.h"
#include "workspace.h"

enum { TOGETHER = 4, TILE = SELECTIVE_TILE };

/* to (columns, rows) <- from (rows, columns) */
static void transpose(real *restrict to, const real *restrict from, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}

/* h <- a h of one of the S states, and past += h c */
ROT_ALWAYS_INLINE void move_state(real *restrict h, real *restrict past, const real *restrict delta,
                                  const real *restrict A, real c, int64_t E, const bool negative) {
    for (int64_t n = 0; n < E; n++) {
        h[n] = selective_move(selective_decay(delta[n], A[n]), h[n], negative);
        past[n] = selective_output(past[n], h[n], c);
    }
}

/* h <- h + (delta x) b */
static void feed_state(real *restrict h, const real *restrict delta, const real *restrict x, real b, int64_t E) {
    for (int64_t n = 0; n < E; n++) h[n] = selective_step(h[n], selective_input(delta[n], x[n]), b);
}

enum { DELTA, U, ALPHA, INTO, OUT_OF, MAPS }; /* the maps, in the order of their columns; INTO is B, OUT_OF is C */

/* What all tokens share: A is (S,E); `prepared` of a mixer that does not vary, otherwise NULL; the maps' widths, first
 * columns and functions; `widest` is at least each width. */
typedef struct {
    const solve_in *in;
    mixing of;
    mixing_sizes sizes;
    const real *A, *prepared;
    int64_t width[MAPS], lo[MAPS], function[MAPS], widest;
    real largest, eps;
} step;

static step step_of(const solve_in *in, const real *A) {
    const mixing of = {in->form, in->R, in->E, in->steps};
    const int64_t direction = in->unit ? LAGGED_UNIT : LAGGED_LINEAR;
    const mixing_sizes none = {0, 0, 0, 0}, sizes = sizes_of(&of, (real)in->eps);
    step p = {in, of, in->matrix ? none : sizes, A, in->matrix, {0}, {0}, {0}, 0, (real)in->largest, (real)in->eps};
    p.width[DELTA] = in->delta ? 0 : in->E, p.function[DELTA] = LAGGED_SIGMOID;
    p.width[U] = p.sizes.u, p.function[U] = in->u_silu ? LAGGED_SILU : LAGGED_LINEAR;
    p.width[ALPHA] = p.sizes.alpha, p.function[ALPHA] = LAGGED_LINEAR;
    p.width[INTO] = p.width[OUT_OF] = in->S, p.function[INTO] = p.function[OUT_OF] = direction;
    for (int64_t j = 0; j < MAPS; j++) {
        p.lo[j] = j ? p.lo[j - 1] + p.width[j - 1] : 0;
        p.widest = most(p.widest, p.width[j]);
    }
    return p;
}

static range range_of(const step *p, const real *late, int64_t j) {
    const solve_in *const in = p->in;
    return (range){in->base,    late,     in->first,   in->lengths,    in->B, in->T,
                   in->columns, p->lo[j], p->width[j], p->function[j], p->eps};
}

/* The values of a token's maps; delta is also there if it is given. */
typedef struct {
    const real *of[MAPS];
} maps;

/* Memory for a token: gain (E); the gains before they are changed, and after; `prepared`; bounded angles; and for a
 * direct solution, `rest`. */
typedef struct {
    real *gain, *raw, *gains, *prepared, *bounded, *rest;
    const real *w; /* `prepared`, or the matrix */
} token;

static int64_t angles_of(const step *p) { return p->of.form == MIXER_ROTATION ? p->sizes.u : 0; }
static int64_t token_room(const step *p) {
    return p->of.width + 2 * most(p->sizes.alpha, 1) + (p->prepared ? 0 : p->sizes.prepared) + angles_of(p) +
           direct_members_room(&p->of, p->sizes);
}

/* The token's memory, its gain and its mixer. */
static token open_token(const step *p, const maps *at, real *room) {
    const int64_t E = p->of.width, gains = most(p->sizes.alpha, 1), angles = angles_of(p);
    token to = {.gain = room, .raw = room + E, .gains = room + E + gains, .prepared = room + E + 2 * gains};
    to.bounded = to.prepared + (p->prepared ? 0 : p->sizes.prepared);
    to.rest = to.bounded + angles;
    to.w = p->prepared;
    const real k = dot(at->of[INTO], at->of[OUT_OF], p->in->S);
    for (int64_t n = 0; n < E; n++) to.gain[n] = k * at->of[DELTA][n];
    if (to.w) return to;
    to.raw[0] = 1; /* that of Gram */
    for (int64_t i = 0; i < p->sizes.alpha; i++) to.raw[i] = p->largest * sigmoid(at->of[ALPHA][i]);
    copy_row(to.gains, to.raw, gains);
    copy_row(to.bounded, at->of[U], angles);
    bound_angles(to.bounded, angles, p->largest, &p->of);
    prepare_members(to.prepared, angles ? to.bounded : at->of[U], to.gains, to.rest, &p->of, p->eps);
    to.w = to.prepared;
    return to;
}

/* h <- the state of a step (S,E) before its input is fed; past (E) += h C */
static void move_states(real *h, real *past, const maps *at, const step *p) {
    const int64_t E = p->of.width;
    for (int64_t s = 0; s < p->in->S; s++) {
        if (p->in->negative)
            move_state(h + s * E, past, at->of[DELTA], p->A + s * E, at->of[OUT_OF][s], E, true);
        else
            move_state(h + s * E, past, at->of[DELTA], p->A + s * E, at->of[OUT_OF][s], E, false);
    }
}

static void feed_states(real *h, const real *mixed, const maps *at, const step *p) {
    const int64_t E = p->of.width;
    for (int64_t s = 0; s < p->in->S; s++) feed_state(h + s * E, at->of[DELTA], mixed, at->of[INTO][s], E);
}

/* y, mixed (E) of one token, and h (S,E) from that of the token before it. Returns the residual. */
static real solve_token(real *y, real *mixed, real *h, const real *x, const maps *at, const step *p, real *room) {
    token to = open_token(p, at, room);
    const mixer m = solved_mixer(&to.w, to.gains, &to.rest, &p->of);
    zero_row(y, p->of.width);
    move_states(h, y, at, p);
    const spread found = direct_point(y, mixed, x, to.gain, to.w, to.gains, to.rest, m);
    feed_states(h, mixed, at, p);
    return residual_of(found, TINY);
}

/* packed: V for products with y, or `down`, with gradients of the maps' sums. rates (S,E): A */
static void pack_weights(real *packed, real *rates, const solve_in *in, bool down, rounding how) {
    if (down)
        pack_rounded(packed, in->v, in->columns, in->E, in->E, 1, how);
    else
        pack_rounded(packed, in->v, in->E, in->columns, 1, in->E, how);
    transpose(rates, in->A, in->E, in->S);
}

/* y, mixed (B,T,E), hT (B,E,S), carries (B,tiles,S,E), the states before each tile; late (B,T,columns) = V y, or
 * V (y / rms(y)); residual (B): the largest of a token (direct.h); out: the values of the maps delta (B,T,E) unless it
 * is given, u and alpha (B,T,..) of the mixer, B and C (B,T,S), one after the other, alpha before its sigmoid. All maps
 * have base_t + late_{t-1}, with first (B,columns) before the first step. delta passes through a sigmoid, u through
 * SiLU if `u_silu`; B and C have unit length if `unit`. The mixer's gains are largest * sigmoid(alpha), and change with
 * eps and `steps` (mixer_gains.h); MIXER_MATRIX has `matrix` (E,E) in place of both. x (B,T,E), v (columns,E),
 * A (E,S), h0 (B,E,S). */
KERNEL(selective_solve) {
    const int64_t B = in->B, T = in->T, E = in->E, S = in->S, columns = in->columns;
    real *const rates = WORKSPACE(real, S, E);
    const step p = step_of(in, rates);
    const int64_t groups = pieces_of(B, TOGETHER), tiles_all = pieces_of(T, TILE), own_room = token_room(&p);
    const int64_t room = own_room + p.widest + TOGETHER * (S * E + E), threads = least(groups, most_threads());
    real *const packed = WORKSPACE(real, packed_columns(columns), E), *const rooms = WORKSPACE(real, threads, room);
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!packed || !rates || !rooms) goto end;
    status = ROT_OK;
    const rounding how = rounding_of_call();
    pack_weights(packed, rates, in, false, how);
#pragma omp parallel for schedule(static)
    for (int64_t group = 0; group < groups; group++) {
        const int64_t first_b = group * TOGETHER, count = least(B - first_b, TOGETHER);
        real *const own = rooms + thread_number() * room, *const scratch = own + own_room;
        real *const states = scratch + p.widest, *const read = states + TOGETHER * S * E;
        for (int64_t i = 0; i < count; i++) {
            const int64_t b = first_b + i;
            transpose(states + i * S * E, h0 + b * E * S, E, S);
            residual[b] = 0;
            zero_padding(y, b, steps_of(in->lengths, b, T), T, E);
            zero_padding(mixed, b, steps_of(in->lengths, b, T), T, E);
        }
        for (int64_t t = 0; t < T && !stopped(stop); t++) {
            if (t) {
                const int64_t before = first_b * T + t - 1;
                gemm_view last = {y + before * E, T * E, 1};
                if (in->feedback_norm) {
                    for (int64_t i = 0; i < count; i++) unit_rms_row(read + i * E, y + (before + i * T) * E, E);
                    last = (gemm_view){read, E, 1};
                }
                product(late + before * columns, T * columns, NULL, 0, last, packed, count, E, columns, how);
            }
            for (int64_t i = 0; i < count && !stopped(stop); i++) {
                const int64_t b = first_b + i, row = b * T + t;
                real *const h = states + i * S * E;
                maps at;
                for (int64_t j = 0; j < MAPS; j++) {
                    const range r = range_of(&p, late, j);
                    real *const value = out + B * T * p.lo[j] + row * p.width[j];
                    lagged_row(value, scratch, &r, b, t);
                    at.of[j] = j == DELTA && in->delta ? in->delta + row * E : value;
                }
                if (t % TILE == 0) copy_row(carries + (b * tiles_all + t / TILE) * S * E, h, S * E);
                if (t >= steps_of(in->lengths, b, T)) continue;
                const real found = solve_token(y + row * E, mixed + row * E, h, in->x + row * E, &at, &p, own);
                residual[b] = real_of(larger(magnitude_of(residual[b]), magnitude_of(found)));
            }
        }
        for (int64_t i = 0; i < count; i++) transpose(hT + (first_b + i) * E * S, states + i * S * E, S, E);
    }
end:
    pool_give(packed), pool_give(rates), pool_give(rooms);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- the adjoint
 */

/* Memory for a token's adjoint, besides open_token's: values, sums and scratch of the maps (columns each, and widest),
 * their gradients (columns), the step's moved state (E), and of E: d, mixed adjoint, the mixer's input, du. */
static int64_t adjoint_room(const step *p) {
    return token_room(p) + 3 * p->in->columns + p->widest + 4 * p->of.width + most(p->sizes.alpha, 1) +
           adjoint_members_room(&p->of, p->sizes);
}

/* The values of the maps of step t of sequence b, and their sums, both (columns). */
static maps maps_of(real *values, real *sums, const step *p, const real *late, int64_t b, int64_t t) {
    maps at;
    for (int64_t j = 0; j < MAPS; j++) {
        const range r = range_of(p, late, j);
        real *const value = values + p->lo[j], *const sum = sums + p->lo[j];
        sum_row(sum, &r, b, t);
        if (r.function == LAGGED_LINEAR)
            copy_row(value, sum, r.n);
        else
            map_row(value, sum, r.n, r.function, r.eps);
        at.of[j] = value;
    }
    if (p->in->delta) at.of[DELTA] = p->in->delta + (b * p->in->T + t) * p->of.width;
    return at;
}

/* du (E) = dh B of all states */
static void input_adjoint(real *restrict du, const real *restrict dh, const real *restrict B, int64_t S, int64_t E) {
    zero_row(du, E);
    for (int64_t s = 0; s < S; s++)
        for (int64_t n = 0; n < E; n++) du[n] = selective_input_adjoint(du[n], dh[s * E + n], B[s]);
}

/* One state: G, which is dh, becomes the gradient of the state before; ddelta += its part through the transition. */
ROT_ALWAYS_INLINE void past_adjoint(real *restrict G, real *restrict ddelta, const real *restrict h,
                                    const real *restrict delta, const real *restrict A, int64_t E,
                                    const bool negative) {
    for (int64_t n = 0; n < E; n++) {
        const real decay = selective_decay(delta[n], A[n]), moved = selective_move(decay, h[n], negative);
        ddelta[n] += selective_exponent_adjoint(G[n], moved, decay, h[n], negative) * A[n];
        G[n] = selective_past_adjoint(decay, G[n], negative);
    }
}

/* v (E) of step t of sequence b, from the gradient of y (dy, and `behind` of the step behind it); G <- that of the
 * state before; dsums (columns): the gradient of the sums of the maps. h (S,E) is the state before the step. */
static void pull_token(real *v, real *dsums, real *G, const real *dy, const real *behind, const real *h, const real *x,
                       const real *y, const real *mixed, const real *late, int64_t b, int64_t t, const step *p,
                       real *room) {
    const int64_t E = p->of.width, S = p->in->S, columns = p->in->columns, gains = most(p->sizes.alpha, 1);
    real *const values = room, *const sums = values + columns, *const grads = sums + columns;
    real *const scratch = grads + columns, *const du = scratch + p->widest, *const dmixed = du + E;
    real *const input = dmixed + E, *const moved = input + E, *const dalpha = moved + E, *const own = dalpha + gains;
    real *const of_mixer = own + token_room(p);
    const maps at = maps_of(values, sums, p, late, b, t);
    const token to = open_token(p, &at, own);
    const real *w = to.w, *const delta = at.of[DELTA];
    real *rest = to.rest;
    const mixer m = solved_mixer(&w, to.gains, &rest, &p->of);

    input_adjoint(du, G, at.of[INTO], S, E);
    for (int64_t n = 0; n < E; n++) dmixed[n] = input[n] = delta[n] * du[n];
    mixer_apply_transposed(input, w, to.gains, rest, m);
    for (int64_t n = 0; n < E; n++) v[n] = dy[n] + behind[n] + (dmixed[n] - input[n]);
    direct_point_adjoint(v, to.gain, w, to.gains, rest, m);

    zero_row(grads, columns);
    real *const fed = input;
    for (int64_t n = 0; n < E; n++) fed[n] = selective_input(delta[n], mixed[n]);
    for (int64_t s = 0; s < S; s++) {
        const real c = at.of[OUT_OF][s], into = at.of[INTO][s];
        real *const g = G + s * E;
        for (int64_t n = 0; n < E; n++) {
            const real before =
                selective_move(selective_decay(delta[n], p->A[s * E + n]), h[s * E + n], p->in->negative);
            g[n] = selective_state_adjoint(g[n], v[n], c);
            moved[n] = selective_step(before, fed[n], into);
        }
        grads[p->lo[INTO] + s] = dot(g, fed, E);
        grads[p->lo[OUT_OF] + s] = dot(v, moved, E);
    }
    input_adjoint(du, G, at.of[INTO], S, E);
    real *const ddelta = p->in->delta ? moved : grads + p->lo[DELTA];
    for (int64_t n = 0; n < E; n++) {
        dmixed[n] = delta[n] * du[n];
        ddelta[n] = mixed[n] * du[n];
        input[n] = x[n] - y[n];
    }
    for (int64_t s = 0; s < S; s++) {
        if (p->in->negative)
            past_adjoint(G + s * E, ddelta, h + s * E, delta, p->A + s * E, E, true);
        else
            past_adjoint(G + s * E, ddelta, h + s * E, delta, p->A + s * E, E, false);
    }
    if (!p->prepared) {
        real *const of_u = grads + p->lo[U], *const of_alpha = grads + p->lo[ALPHA];
        const int64_t angles = angles_of(p);
        adjoint_members(dmixed, of_u, dalpha, input, to.w, to.gains, at.of[U], to.raw, of_mixer, &p->of, p->sizes,
                        p->eps);
        for (int64_t i = 0; i < angles; i++) {
            const real part = to.bounded[i] / p->largest;
            of_u[i] *= 1 - part * part;
        }
        for (int64_t i = 0; i < p->sizes.alpha; i++) of_alpha[i] = dalpha[i] * to.raw[i] * (1 - to.raw[i] / p->largest);
    }
    for (int64_t j = 0; j < MAPS; j++) {
        const int64_t lo = p->lo[j], n = p->width[j], function = p->function[j];
        if (function == LAGGED_LINEAR)
            copy_row(dsums + lo, grads + lo, n);
        else
            map_row_adjoint(dsums + lo, grads + lo, sums + lo, scratch, n, function, p->eps);
    }
}

/* The states before the steps of a tile, from the one before the tile. */
static void recall_states(real *states, const real *carry, const real *mixed, const real *late, int64_t b, int64_t low,
                          int64_t steps, const step *p, real *room) {
    const int64_t E = p->of.width, size = p->in->S * E;
    real *const values = room, *const sums = values + p->in->columns, *const nothing = sums + p->in->columns;
    copy_row(states, carry, size);
    zero_row(nothing, E);
    for (int64_t k = 0; k + 1 < steps; k++) {
        const maps at = maps_of(values, sums, p, late, b, low + k);
        real *const h = states + (k + 1) * size;
        copy_row(h, h - size, size);
        move_states(h, nothing, &at, p);
        feed_states(h, mixed + (b * p->in->T + low + k) * E, &at, p);
    }
}

/* total (B,T,E): the gradient of y through the fixed point, (I - J^T)^-1 applied to the gradient dy (B,T,E) of y and
 * the gradient dhT (B,E,S) or NULL of the last state; J is the derivative of the step in depth of all y by all y. The
 * other arrays are those of selective_solve, which wrote y, mixed, carries and late. */
KERNEL(selective_solve_adjoint) {
    const int64_t B = in->B, T = in->T, E = in->E, S = in->S, columns = in->columns;
    real *const rates = WORKSPACE(real, S, E);
    const step p = step_of(in, rates);
    const int64_t groups = pieces_of(B, TOGETHER), tiles_all = pieces_of(T, TILE), own_room = adjoint_room(&p);
    const int64_t room = own_room + TOGETHER * ((TILE + 1) * S * E + columns + E);
    const int64_t threads = least(groups, most_threads());
    real *const packed = WORKSPACE(real, packed_columns(E), columns), *const rooms = WORKSPACE(real, threads, room);
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!packed || !rates || !rooms) goto end;
    status = ROT_OK;
    const rounding how = rounding_of_call();
    pack_weights(packed, rates, in, true, how);
#pragma omp parallel for schedule(static)
    for (int64_t group = 0; group < groups; group++) {
        const int64_t first_b = group * TOGETHER, count = least(B - first_b, TOGETHER);
        real *const own = rooms + thread_number() * room, *const states = own + own_room;
        real *const G = states + TOGETHER * TILE * S * E, *const dsums = G + TOGETHER * S * E;
        real *const behind = dsums + TOGETHER * columns;
        zero_row(behind, TOGETHER * E), zero_row(dsums, TOGETHER * columns);
        for (int64_t i = 0; i < count; i++) {
            const int64_t b = first_b + i;
            zero_padding(total, b, steps_of(in->lengths, b, T), T, E);
            if (dhT)
                transpose(G + i * S * E, dhT + b * E * S, E, S);
            else
                zero_row(G + i * S * E, S * E);
        }
        for (int64_t t = T - 1; t >= 0 && !stopped(stop); t--) {
            const int64_t low = t / TILE * TILE;
            for (int64_t i = 0; i < count && !stopped(stop); i++) {
                const int64_t b = first_b + i, row = b * T + t, steps = steps_of(in->lengths, b, T);
                if (t >= steps) continue;
                real *const before = states + i * TILE * S * E;
                const real *const carry = carries + (b * tiles_all + t / TILE) * S * E;
                if (t == steps - 1 || t == low + TILE - 1)
                    recall_states(before, carry, mixed, late, b, low, t - low + 1, &p, own);
                pull_token(total + row * E, dsums + i * columns, G + i * S * E, dy + row * E, behind + i * E,
                           before + (t - low) * S * E, in->x + row * E, y + row * E, mixed + row * E, late, b, t, &p,
                           own);
            }
            if (!t) break;
            const gemm_view sums = {dsums, columns, 1};
            product(behind, E, NULL, 0, sums, packed, count, columns, E, how);
            for (int64_t i = 0; i < count && in->feedback_norm; i++)
                unit_rms_row_adjoint(behind + i * E, y + ((first_b + i) * T + t - 1) * E, E);
        }
    }
end:
    pool_give(packed), pool_give(rates), pool_give(rooms);
    return status;
}
