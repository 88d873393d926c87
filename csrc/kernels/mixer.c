/* Channel mixers  y_t = o_t + Q_t (x_t - o_t)  about an origin o (zero if NULL), and their adjoints; Q is that of a
 * form of mixer.h, and is never formed.
 *
 * The M = B*T tokens are cut into groups by the shapes alone; the gradients of constant u and alpha sum in order within
 * a group, then over groups, so results are the same bits for any number of threads. `u_varying`: u is (B,T,...), else
 * that of one token; `alpha_varying`: so is alpha. `lengths` (B) or NULL: tokens at t >= lengths[b] are neither read
 * nor counted, and are written as zero.
 */
#include "mixer.h"
#include "kernels.h"
#include "workspace.h"

enum { GROUP_ROWS = 128, MAX_GROUPS = 64, SERIAL = 32768 };

static int64_t groups_of(int64_t tokens) {
    const int64_t groups = tokens / GROUP_ROWS;
    return groups < 1 ? 1 : groups > MAX_GROUPS ? MAX_GROUPS : groups;
}

static bool is_padding(const int64_t *lengths, int64_t token, int64_t T) {
    return lengths && token % T >= lengths[token / T];
}

/* v <- x - o */
static void about(real *restrict v, const real *restrict x, const real *restrict origin, int64_t D) {
    if (!origin)
        memcpy(v, x, (size_t)D * sizeof(real));
    else
        for (int64_t j = 0; j < D; j++) v[j] = x[j] - origin[j];
}

/* y (B,T,D); u, alpha as above, x (B,T,D), origin (B,T,D) or NULL. */
KERNEL(mix_forward) {
    const mixer m = {form, R, D};
    const int64_t M = B * T, groups = groups_of(M), per_group = (M + groups - 1) / groups;
    const int64_t size = mixer_prepared(m), room = mixer_scratch(m);
    real *const prepared = WORKSPACE(real, u_varying ? groups : 1, size);
    real *const scratch = WORKSPACE(real, groups, room);
    if (!prepared || !scratch) {
        pool_give(prepared);
        pool_give(scratch);
        return ROT_NO_MEMORY;
    }
    if (!u_varying) mixer_prepare(prepared, u, m);
#pragma omp parallel for schedule(dynamic) if (M * mixer_u(m) > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        real *const w = prepared + (u_varying ? group * size : 0);
        const int64_t end = (group + 1) * per_group < M ? (group + 1) * per_group : M;
        for (int64_t t = group * per_group; t < end; t++) {
            real *const v = y + t * D;
            if (is_padding(lengths, t, T)) {
                memset(v, 0, (size_t)D * sizeof(real));
                continue;
            }
            if (u_varying) mixer_prepare(w, u + t * mixer_u(m), m);
            about(v, x + t * D, origin ? origin + t * D : NULL, D);
            mixer_apply(v, w, alpha + (alpha_varying ? t * mixer_alpha(m) : 0), scratch + group * room, m);
            if (origin) add_scaled(v, 1, origin + t * D, D);
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
    const int64_t M = B * T, groups = groups_of(M), per_group = (M + groups - 1) / groups;
    const int64_t u_size = mixer_u(m), alpha_size = mixer_alpha(m), size = mixer_prepared(m), room = mixer_scratch(m);
    const size_t row = (size_t)D * sizeof(real);
    real *const prepared = WORKSPACE(real, u_varying ? groups : 1, size);
    real *const scratch = WORKSPACE(real, groups, room + D);
    real *const sums = WORKSPACE(real, groups, u_size + alpha_size);
    if (!prepared || !scratch || !sums) {
        pool_give(prepared);
        pool_give(scratch);
        pool_give(sums);
        return ROT_NO_MEMORY;
    }
    if (u_varying) memset(du, 0, (size_t)(M * u_size) * sizeof(real));
    if (alpha_varying) memset(dalpha, 0, (size_t)(M * alpha_size) * sizeof(real));
    if (!u_varying) mixer_prepare(prepared, u, m);
#pragma omp parallel for schedule(dynamic) if (M * u_size > SERIAL)
    for (int64_t group = 0; group < groups; group++) {
        real *const w = prepared + (u_varying ? group * size : 0), *const v = scratch + group * (room + D);
        real *const sum = sums + group * (u_size + alpha_size);
        memset(sum, 0, (size_t)(u_size + alpha_size) * sizeof(real));
        const int64_t end = (group + 1) * per_group < M ? (group + 1) * per_group : M;
        for (int64_t t = group * per_group; t < end; t++) {
            real *const g = dx + t * D;
            if (is_padding(lengths, t, T)) {
                memset(g, 0, row);
                if (dorigin) memset(dorigin + t * D, 0, row);
                continue;
            }
            if (u_varying) mixer_prepare(w, u + t * u_size, m);
            about(v, x + t * D, origin ? origin + t * D : NULL, D);
            memcpy(g, dy + t * D, row);
            mixer_adjoint(g, u_varying ? du + t * u_size : sum, alpha_varying ? dalpha + t * alpha_size : sum + u_size,
                          v, w, alpha + (alpha_varying ? t * alpha_size : 0), v + D, m);
            if (dorigin) about(dorigin + t * D, dy + t * D, g, D);
        }
    }
    if (!u_varying) {
        memset(du, 0, (size_t)u_size * sizeof(real));
        for (int64_t group = 0; group < groups; group++)
            add_scaled(du, 1, sums + group * (u_size + alpha_size), u_size);
    }
    if (!alpha_varying) {
        memset(dalpha, 0, (size_t)alpha_size * sizeof(real));
        for (int64_t group = 0; group < groups; group++)
            add_scaled(dalpha, 1, sums + group * (u_size + alpha_size) + u_size, alpha_size);
    }
    pool_give(prepared);
    pool_give(scratch);
    pool_give(sums);
    return ROT_OK;
}
