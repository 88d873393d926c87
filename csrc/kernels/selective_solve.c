/* The fixed point of Bedouin's step in depth, in one pass over time instead of an iteration:
 *
 *   x~_t = Q_t (x_t - y_t) + y_t,   h_t = a_t h_{t-1} + (delta_t x~_t) B_t^T,   y_t = h_t C_t,
 *
 * where Q, B and C depend on y_{t-1}, which is known when t is reached, and so may delta; a_t is that of the selective
 * scan. Then y_t is a linear system, that of direct.h: with k = B . C and c = (a_t h_{t-1}) C,
 *
 *   y = c + gain (y + Q (x - y)),   gain = k delta.
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

/* What all tokens share: A is (S,E); and `prepared` of a mixer that does not vary, otherwise NULL. */
typedef struct {
    mixing of;
    mixing_sizes sizes;
    int64_t S;
    real largest, eps;
    bool negative;
    const real *A, *prepared;
} step;

/* The values of a token's maps. */
typedef struct {
    const real *delta, *alpha, *B, *C;
    real *u;
} maps;

static int64_t token_room(const step *p) {
    const int64_t angles = p->of.form == MIXER_ROTATION ? p->sizes.u : 0;
    return p->of.width + most(p->sizes.alpha, 1) + p->sizes.prepared + angles + direct_members_room(&p->of, p->sizes);
}

/* y, mixed (E) of one token, and h (S,E) from that of the token before it. Returns the residual. */
static real solve_token(real *y, real *mixed, real *h, const real *x, maps at, const step *p, real *room) {
    const int64_t E = p->of.width, angles = p->of.form == MIXER_ROTATION ? p->sizes.u : 0;
    real *const gain = room, *const gains = gain + E, *const prepared = gains + most(p->sizes.alpha, 1);
    real *const bounded = prepared + p->sizes.prepared, *rest = bounded + angles;
    zero_row(y, E);
    for (int64_t s = 0; s < p->S; s++) {
        if (p->negative)
            move_state(h + s * E, y, at.delta, p->A + s * E, at.C[s], E, true);
        else
            move_state(h + s * E, y, at.delta, p->A + s * E, at.C[s], E, false);
    }
    const real *w = p->prepared;
    if (!w) {
        gains[0] = 1; /* that of Gram */
        for (int64_t i = 0; i < p->sizes.alpha; i++) gains[i] = p->largest * sigmoid(at.alpha[i]);
        copy_row(bounded, at.u, angles);
        prepare_members(prepared, angles ? bounded : at.u, gains, rest, &p->of, p->eps, p->largest);
        w = prepared;
    }
    const real k = dot(at.B, at.C, p->S);
    for (int64_t n = 0; n < E; n++) gain[n] = k * at.delta[n];
    const mixer m = solved_mixer(&w, gains, &rest, &p->of);
    const spread found = direct_point(y, mixed, x, gain, w, gains, rest, m);
    for (int64_t s = 0; s < p->S; s++) feed_state(h + s * E, at.delta, mixed, at.B[s], E);
    return residual_of(found, TINY);
}

/* y, mixed (B,T,E), hT (B,E,S), carries (B,tiles,S,E), the states before each tile; late (B,T,columns) = V y;
 * residual (B): the largest of a token (direct.h); out: the values of the maps delta (B,T,E) unless it is given, u and
 * alpha (B,T,..) of the mixer, B and C (B,T,S), one after the other, alpha before its sigmoid. All maps have base_t +
 * late_{t-1}, with first (B,columns) before the first step. delta passes through a sigmoid, u through SiLU if `u_silu`;
 * B and C have unit length if `unit`. The mixer's gains are largest * sigmoid(alpha), and change with eps and `steps`
 * (mixer_gains.h); MIXER_MATRIX has `matrix` (E,E) in place of both. x (B,T,E), v (columns,E), A (E,S), h0 (B,E,S). */
KERNEL(selective_solve) {
    const mixing of = {form, R, E, steps};
    step p = {of, sizes_of(&of, (real)eps), S, (real)largest, (real)eps, negative, NULL, matrix};
    const int64_t groups = pieces_of(B, TOGETHER), tiles_all = pieces_of(T, TILE), widest = most(S, E);
    const int64_t own_room = token_room(&p), room = own_room + most(widest, p.sizes.u);
    real *const packed = WORKSPACE(real, packed_columns(columns), E), *const rates = WORKSPACE(real, S, E);
    real *const states = WORKSPACE(real, B, S, E), *const rooms = WORKSPACE(real, groups, room);
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!packed || !rates || !states || !rooms) goto end;
    status = ROT_OK;
    const rounding how = rounding_of_call();
    pack_rounded(packed, v, E, columns, 1, E, how);
    transpose(rates, A, E, S);
    p.A = rates;
    const int64_t direction = unit ? LAGGED_UNIT : LAGGED_LINEAR;
    const int64_t widths[] = {delta ? 0 : E, matrix ? 0 : p.sizes.u, p.sizes.alpha, S, S};
    const int64_t functions[] = {LAGGED_SIGMOID, u_silu ? LAGGED_SILU : LAGGED_LINEAR, LAGGED_LINEAR, direction,
                                 direction};
#pragma omp parallel for schedule(static)
    for (int64_t group = 0; group < groups; group++) {
        const int64_t first_b = group * TOGETHER, count = least(B - first_b, TOGETHER);
        real *const own = rooms + group * room;
        for (int64_t i = 0; i < count; i++) {
            const int64_t b = first_b + i;
            transpose(states + b * S * E, h0 + b * E * S, E, S);
            residual[b] = 0;
            zero_padding(y, b, steps_of(lengths, b, T), T, E);
            zero_padding(mixed, b, steps_of(lengths, b, T), T, E);
        }
        for (int64_t t = 0; t < T && !stopped(stop); t++) {
            if (t) {
                const int64_t before = first_b * T + t - 1;
                const gemm_view last = {y + before * E, T * E, 1};
                product(late + before * columns, T * columns, NULL, 0, last, packed, count, E, columns, how);
            }
            for (int64_t i = 0; i < count; i++) {
                const int64_t b = first_b + i, token = b * T + t;
                real *const h = states + b * S * E, *values[5];
                for (int64_t j = 0, lo = 0; j < 5; lo += widths[j++]) {
                    const range r = {base, late, first, lengths, B, T, columns, lo, widths[j], functions[j], (real)eps};
                    values[j] = out + B * T * lo + token * widths[j];
                    lagged_row(values[j], own + own_room, &r, b, t);
                }
                if (t % TILE == 0) copy_row(carries + (b * tiles_all + t / TILE) * S * E, h, S * E);
                if (t >= steps_of(lengths, b, T)) continue;
                const maps at = {delta ? delta + token * E : values[0], values[2], values[3], values[4], values[1]};
                const real found = solve_token(y + token * E, mixed + token * E, h, x + token * E, at, &p, own);
                residual[b] = real_of(larger(magnitude_of(residual[b]), magnitude_of(found)));
            }
        }
        for (int64_t b = first_b; b < first_b + count; b++) transpose(hT + b * E * S, states + b * S * E, S, E);
    }
end:
    pool_give(packed), pool_give(rates), pool_give(states), pool_give(rooms);
    return status;
}
