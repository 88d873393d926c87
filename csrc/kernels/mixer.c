/* Channel mixers  y_t = o_t + Q_t (x_t - o_t)  about an origin o (zero if NULL), and their adjoints. Q has one of the
 * forms of mixer.h, and is never formed as a matrix.
 *
 * The M = B*T tokens are divided into groups by the shapes alone; the gradients of constant u and alpha are summed in
 * order within a group, then over groups, so results have the same bits for any number of threads. `u_varying`: u is
 * (B,T,...), else u of one token for all; `alpha_varying`: the same for alpha. `normalised`: the
 * gains are those of mixer_gains. `lengths` (B) or NULL: tokens at t >=
 * lengths[b] are neither read nor counted, and are written as zero.
 */
#include "mixer.h"
#include "kernels.h"
#include "lanes.h"
#include "mixer_gains.h"
#include "stop.h"
#include "workspace.h"

enum { GROUP_ROWS = 128, MAX_GROUPS = 64, SERIAL = 32768 };

static int64_t groups_of(int64_t tokens) { return parts_of(tokens, GROUP_ROWS, MAX_GROUPS); }

static bool is_padding(const int64_t *lengths, int64_t token, int64_t T) {
    return lengths && token % T >= lengths[token / T];
}

/* v <- x - o */
static void about(real *restrict v, const real *restrict x, const real *restrict origin, int64_t D) {
    if (!origin)
        copy_row(v, x, D);
    else
        for (int64_t j = 0; j < D; j++) v[j] = x[j] - origin[j];
}

/* y (B,T,D); u, alpha as above, x (B,T,D), origin (B,T,D) or NULL. */
KERNEL(mix_forward) {
    const mixer m = {form, R, D};
    const int64_t M = B * T, groups = groups_of(M), per_group = pieces_of(M, groups);
    const int64_t size = mixer_prepared(m), room = mixer_scratch(m);
    real *const prepared = WORKSPACE(real, u_varying ? groups : 1, size);
    real *const scratch = WORKSPACE(real, groups, room);
    if (!prepared || !scratch) {
        pool_give(prepared);
        pool_give(scratch);
        return ROT_NO_MEMORY;
    }
    if (!u_varying) mixer_prepare(prepared, u, normalised, m);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (M * mixer_u(m) > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        if (stopped(stop)) continue;
        real *const w = prepared + (u_varying ? group * size : 0);
        const int64_t end = least((group + 1) * per_group, M);
        for (int64_t t = group * per_group; t < end; t++) {
            real *const v = y + t * D;
            if (is_padding(lengths, t, T)) {
                zero_row(v, D);
                continue;
            }
            if (u_varying) mixer_prepare(w, u + t * mixer_u(m), normalised, m);
            about(v, x + t * D, origin ? origin + t * D : NULL, D);
            mixer_apply(v, w, alpha + (alpha_varying ? t * mixer_alpha(m) : 0), scratch + group * room, m);
            if (origin) add_row(v, origin + t * D, D);
        }
    }
    pool_give(prepared);
    pool_give(scratch);
    return ROT_OK;
}

/* dx (B,T,D), du like u, dalpha like alpha, dorigin (B,T,D) or NULL, all overwritten; dy (B,T,D), the rest as in
 * forward:  dx = Q^T dy,  dorigin = dy - dx. */
KERNEL(mix_backward) {
    const mixer m = {form, R, D};
    const int64_t M = B * T, groups = groups_of(M), per_group = pieces_of(M, groups);
    const int64_t u_size = mixer_u(m), alpha_size = mixer_alpha(m), size = mixer_prepared(m), room = mixer_scratch(m);
    real *const prepared = WORKSPACE(real, u_varying ? groups : 1, size);
    real *const scratch = WORKSPACE(real, groups, room + D);
    real *const sums = WORKSPACE(real, groups, u_size + alpha_size);
    if (!prepared || !scratch || !sums) {
        pool_give(prepared);
        pool_give(scratch);
        pool_give(sums);
        return ROT_NO_MEMORY;
    }
    if (u_varying) zero_row(du, M * u_size);
    if (alpha_varying) zero_row(dalpha, M * alpha_size);
    if (!u_varying) mixer_prepare(prepared, u, normalised, m);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (M * u_size > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        if (stopped(stop)) continue;
        real *const w = prepared + (u_varying ? group * size : 0), *const v = scratch + group * (room + D);
        real *const sum = sums + group * (u_size + alpha_size);
        zero_row(sum, u_size + alpha_size);
        const int64_t end = least((group + 1) * per_group, M);
        for (int64_t t = group * per_group; t < end; t++) {
            real *const g = dx + t * D;
            if (is_padding(lengths, t, T)) {
                zero_row(g, D);
                if (dorigin) zero_row(dorigin + t * D, D);
                continue;
            }
            if (u_varying) mixer_prepare(w, u + t * u_size, normalised, m);
            about(v, x + t * D, origin ? origin + t * D : NULL, D);
            copy_row(g, dy + t * D, D);
            mixer_adjoint(g, u_varying ? du + t * u_size : sum, alpha_varying ? dalpha + t * alpha_size : sum + u_size,
                          v, w, alpha + (alpha_varying ? t * alpha_size : 0), v + D, m);
            if (dorigin) about(dorigin + t * D, dy + t * D, g, D);
        }
    }
    if (!u_varying) {
        zero_row(du, u_size);
        for (int64_t group = 0; group < groups; group++) add_row(du, sums + group * (u_size + alpha_size), u_size);
    }
    if (!alpha_varying) {
        zero_row(dalpha, alpha_size);
        for (int64_t group = 0; group < groups; group++)
            add_row(dalpha, sums + group * (u_size + alpha_size) + u_size, alpha_size);
    }
    pool_give(prepared);
    pool_give(scratch);
    pool_give(sums);
    return ROT_OK;
}

/* gains of M tokens, each with its u and alpha (mixer_gains.h) */
KERNEL(mixer_gains_forward) {
    const gaining g = {{form, R, D}, (real)eps, steps};
    const int64_t groups = groups_of(M), per_group = pieces_of(M, groups), room = gains_room(g);
    const int64_t u_size = mixer_u(g.m), size = mixer_alpha(g.m);
    real *const rooms = WORKSPACE(real, groups, room);
    if (!rooms) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(dynamic) if (M * u_size > SERIAL)
    for (int64_t group = 0; group < groups; group++)
        for (int64_t t = group * per_group; t < least((group + 1) * per_group, M); t++)
            mixer_gain(gains + t * size, u + t * u_size, alpha + t * size, rooms + group * room, g);
    pool_give(rooms);
    return ROT_OK;
}

/* du and dalpha, overwritten */
KERNEL(mixer_gains_backward) {
    const gaining g = {{form, R, D}, (real)eps, steps};
    const int64_t groups = groups_of(M), per_group = pieces_of(M, groups), room = gains_room(g);
    const int64_t u_size = mixer_u(g.m), size = mixer_alpha(g.m);
    real *const rooms = WORKSPACE(real, groups, room);
    if (!rooms) return ROT_NO_MEMORY;
#pragma omp parallel for schedule(dynamic) if (M * u_size > SERIAL)
    for (int64_t group = 0; group < groups; group++)
        for (int64_t t = group * per_group; t < least((group + 1) * per_group, M); t++)
            mixer_gain_adjoint(du + t * u_size, dalpha + t * size, dgains + t * size, u + t * u_size, alpha + t * size,
                               rooms + group * room, g);
    pool_give(rooms);
    return ROT_OK;
}
