/* Channel mixers on a GPU (csrc/kernels/mixer.c has the equations): a warp mixes one token after the other.
 *
 * Gradients of constant u and alpha are summed by each warp over its tokens, and then over the warps, in order.
 */
#include "sums.h"
#include "warps.h"

#include "mixer_gains.h"

/* Tokens, their mixers, and the origins. `ready`: the output of mixer_prepare for a constant u, else NULL. */
struct mixing {
    mixer m;
    int64_t M;
    const real *u, *alpha, *x, *origin, *ready;
    const int64_t *lengths;
    bool alpha_varying, normalised;
};

/* v <- x - o */
ROT_DEVICE_ONLY void about(real *v, const real *x, const real *origin, int64_t D) {
    EACH_OF_ROW(j, D) v[j] = origin ? x[j] - origin[j] : x[j];
}

/* The prepared mixer of a token; in w if u varies. */
ROT_DEVICE_ONLY const real *mixer_of(const mixing &p, real *w, int64_t token) {
    if (p.ready) return p.ready;
    mixer_prepare(w, p.u + token * mixer_u(p.m), p.normalised, p.m);
    return w;
}

ROT_DEVICE_ONLY const real *gains_of(const mixing &p, int64_t token) {
    return p.alpha + (p.alpha_varying ? token * mixer_alpha(p.m) : 0);
}

/* w for a constant u, or NULL */
static const real *ready_of(const real *u, mixer m, bool u_varying, bool normalised) {
    if (u_varying) return NULL;
    real *const w = workspace_of<real>(mixer_prepared(m));
    const mixer_prepare_args args = {w, u, 1, m.R, m.D, m.form, normalised};
    K(mixer_prepare)(&args);
    return w;
}

/* Room for w, v and the mixer's scratch */
static crew crew_for(mixing p) {
    return crew_of(p.M, (p.ready ? 0 : mixer_prepared(p.m)) + p.m.D + mixer_scratch(p.m));
}

GLOBAL2(BLOCK, BLOCKS) mix_rows(crew c, mixing p, stride apart, real *y) {
    if (warp_of() >= c.count) return;
    const int64_t D = p.m.D;
    real *const v = room_of(c), *const scratch = v + D, *const w = scratch + mixer_scratch(p.m);
    for (token at = first_token(apart); at.row < p.M; at = next_token(at, apart)) {
        const int64_t t = at.row;
        if (at.t >= steps_of(p.lengths, at.b, apart.T)) {
            zero_row(y + t * D, D);
            continue;
        }
        const real *const prepared = mixer_of(p, w, t), *const origin = p.origin ? p.origin + t * D : NULL;
        about(v, p.x + t * D, origin, D);
        mixer_apply(v, prepared, gains_of(p, t), scratch, p.m);
        EACH_OF_ROW(j, D) y[t * D + j] = origin ? v[j] + origin[j] : v[j];
    }
}

KERNEL(mix_forward) {
    const mixer m = {form, R, D};
    const real *const ready = ready_of(u, m, u_varying, normalised);
    const mixing p = {m, B * T, u, alpha, x, origin, ready, lengths, (bool)alpha_varying, (bool)normalised};
    const crew c = crew_for(p);
    launch(mix_rows, crew_blocks(c), BLOCK, c.shared, c, p, stride_of(c, T), y);
    return runtime_status();
}

/* du and dalpha have a row for each token, or if they are constant, for each warp. */
GLOBAL2(BLOCK, BLOCKS)
mix_rows_backward(crew c, mixing p, stride apart, real *dx, real *du, real *dalpha, real *dorigin, const real *dy) {
    if (warp_of() >= c.count) return;
    const int64_t D = p.m.D, u_size = mixer_u(p.m), alpha_size = mixer_alpha(p.m);
    real *const v = room_of(c), *const scratch = v + D, *const w = scratch + mixer_scratch(p.m);
    if (p.ready) zero_row(du + warp_of() * u_size, u_size);
    if (!p.alpha_varying) zero_row(dalpha + warp_of() * alpha_size, alpha_size);
    for (token at = first_token(apart); at.row < p.M; at = next_token(at, apart)) {
        const int64_t t = at.row;
        real *const g = dx + t * D;
        real *const du_sum = du + (p.ready ? warp_of() : t) * u_size;
        real *const dalpha_sum = dalpha + (p.alpha_varying ? t : warp_of()) * alpha_size;
        if (!p.ready) zero_row(du_sum, u_size);
        if (p.alpha_varying) zero_row(dalpha_sum, alpha_size);
        if (at.t >= steps_of(p.lengths, at.b, apart.T)) {
            zero_row(g, D);
            if (dorigin) zero_row(dorigin + t * D, D);
            continue;
        }
        const real *const prepared = mixer_of(p, w, t);
        about(v, p.x + t * D, p.origin ? p.origin + t * D : NULL, D);
        copy_row(g, dy + t * D, D);
        join_row();
        mixer_adjoint(g, du_sum, dalpha_sum, v, prepared, gains_of(p, t), scratch, p.m);
        if (dorigin) about(dorigin + t * D, dy + t * D, g, D);
    }
}

KERNEL(mix_backward) {
    const mixer m = {form, R, D};
    const real *const ready = ready_of(u, m, u_varying, normalised);
    const mixing p = {m, B * T, u, alpha, x, origin, ready, lengths, (bool)alpha_varying, (bool)normalised};
    const crew c = crew_for(p);
    real *const du_rows = u_varying ? du : workspace_of<real>(c.count, mixer_u(m));
    real *const dalpha_rows = alpha_varying ? dalpha : workspace_of<real>(c.count, mixer_alpha(m));
    launch(mix_rows_backward, crew_blocks(c), BLOCK, c.shared, c, p, stride_of(c, T), dx, du_rows, dalpha_rows, dorigin,
           dy);
    if (!u_varying) sum_rows(du, du_rows, c.count, mixer_u(m));
    if (!alpha_varying) sum_rows(dalpha, dalpha_rows, c.count, mixer_alpha(m));
    return runtime_status();
}

/* ---- gains ---- */

GLOBAL2(BLOCK, BLOCKS) gain_rows(crew c, gaining g, int64_t M, real *gains, const real *u, const real *alpha) {
    if (warp_of() >= c.count) return;
    const int64_t u_size = mixer_u(g.m), size = mixer_alpha(g.m);
    for (int64_t t = warp_of(); t < M; t += c.count) {
        join_row();
        mixer_gain(gains + t * size, u + t * u_size, alpha + t * size, room_of(c), g);
    }
}

KERNEL(mixer_gains_forward) {
    const gaining g = {{form, R, D}, (real)eps, steps};
    const crew c = crew_of(M, gains_room(g));
    launch(gain_rows, crew_blocks(c), BLOCK, c.shared, c, g, M, gains, u, alpha);
    return runtime_status();
}

GLOBAL2(BLOCK, BLOCKS)
gain_rows_backward(crew c, gaining g, int64_t M, real *du, real *dalpha, const real *dgains, const real *u,
                   const real *alpha) {
    if (warp_of() >= c.count) return;
    const int64_t u_size = mixer_u(g.m), size = mixer_alpha(g.m);
    for (int64_t t = warp_of(); t < M; t += c.count) {
        join_row();
        mixer_gain_adjoint(du + t * u_size, dalpha + t * size, dgains + t * size, u + t * u_size, alpha + t * size,
                           room_of(c), g);
    }
}

KERNEL(mixer_gains_backward) {
    const gaining g = {{form, R, D}, (real)eps, steps};
    const crew c = crew_of(M, gains_room(g));
    launch(gain_rows_backward, crew_blocks(c), BLOCK, c.shared, c, g, M, du, dalpha, dgains, u, alpha);
    return runtime_status();
}
