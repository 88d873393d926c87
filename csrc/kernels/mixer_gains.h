/* The gains that a mixer applies, a token at a time: alpha, changed by the normalisation of the mixer's vectors.
 *
 * With c(r) = min(1, r / eps), and c = 1 for eps = 0, a vector u / max(|u|, eps) is c(|u|) times the unit vector of
 * mixer.h. Normalising with an epsilon is therefore a change of the gains:
 *   vectors     gain_i = alpha_i c(|u_i|)^2
 *   Kronecker   gain_i = alpha_i c(|G_i|) of the rows of G = U U^T, left and right; with `steps`, divided by
 *               sigma + eps, where sigma is an estimate of the largest eigenvalue of W = diag(c) rownormalise(G):
 *
 *   Monarch     gain_k = alpha_k / (the largest |column| of G_k = U_k U_k^T + eps)
 *   Gram        gain = alpha / (sigma + eps) of G = U U^T; with `steps`
 *
 * Gains of Monarch and Gram belong to U times a power of two (`normalised` in mixer.h): they are the gains above
 * divided by its square.
 *
 *   sigma = |W x_{steps-1}|,  x_0 = (1, .., 1) / sqrt(n),  x_k = W x_{k-1} / |W x_{k-1}|     (power iteration)
 */
#ifndef ROT_MIXER_GAINS_H
#define ROT_MIXER_GAINS_H

#include "mixer.h"

typedef struct {
    mixer m;
    real eps;
    int64_t steps;
} gaining;

/* c(r) for 1 / r, which is 0 for r = 0 */
ROT_INLINE real part_of_unit(real inverse, real eps) {
    if (eps == 0) return 1;
    return inverse == 0 ? 0 : inverse * eps > 1 ? 1 / (inverse * eps) : 1;
}

/* dr, given dc */
ROT_INLINE real part_of_unit_adjoint(real inverse, real eps, real dc) { return inverse * eps > 1 ? dc / eps : 0; }

/* eps for squares of `rows`, a triangle of n rows, that are multiplied by their power of two */
ROT_ROW real eps_of_squares(gaining g, const real *rows, int64_t n) {
    const real power = power_of_row(rows, triangle(n));
    return g.eps * power * power;
}

ROT_INLINE real one_over(real x) { return x == 0 ? 0 : 1 / x; }

/* ----------------------------------------------------------------------------------------------- power iteration */

/* The iterates x (steps + 1, n), 1 / |W x_{k-1}| (steps), and y (n) */
ROT_INLINE int64_t power_room(int64_t n, int64_t steps) { return steps ? (steps + 1) * n + steps + n : 0; }

/* sigma of W (n,n), n and steps at least 1; `room` receives the numbers for the adjoint. */
ROT_ROW real power_norm(real *room, const real *w, int64_t n, int64_t steps) {
    real *const x = room, *const inverse = x + (steps + 1) * n, *const y = inverse + steps;
    EACH_OF_ROW(j, n) x[j] = 1 / ROT_SQRT((real)n);
    join_row();
    for (int64_t k = 0; k < steps; k++) {
        for (int64_t i = 0; i < n; i++) set_one(y + i, dot(w + i * n, x + k * n, n));
        set_one(inverse + k, normalise(x + (k + 1) * n, y, n));
    }
    return one_over(inverse[steps - 1]);
}

/* dW (n,n) += the gradient of W; y (n), which is in room, and dx (n) are scratch. With y_k = W x_{k-1}:
 *   dy_steps = x_steps dsigma,   dy_k = (dx_k - x_k (x_k . dx_k)) / |y_k|,   dW += dy_k x_{k-1}^T,
 *   dx_{k-1} = W^T dy_k */
ROT_ROW void power_norm_adjoint(real *dW, real *dx, real dsigma, real *room, const real *w, int64_t n, int64_t steps) {
    const real *const x = room, *const inverse = x + (steps + 1) * n;
    real *const dy = room + (steps + 1) * n + steps;
    join_row();
    for (int64_t k = steps; k > 0; k--) {
        if (k == steps) {
            scale_row(dy, dsigma, x + k * n, n);
        } else {
            zero_row(dy, n);
            normalise_adjoint(dy, dx, x + k * n, inverse[k - 1], n);
        }
        join_row();
        zero_row(dx, n);
        for (int64_t i = 0; i < n; i++) {
            add_scaled(dW + i * n, dy[i], x + (k - 1) * n, n);
            add_scaled(dx, dy[i], w + i * n, n);
        }
        join_row();
    }
}

/* ------------------------------------------------------------------------------------------------------ Kronecker */

/* Room for a factor of n rows: the output of prepare_factor, W (n,n), the power iteration; then for the adjoint dW
 * (n,n), and scratch. */
ROT_INLINE int64_t factor_gains_room(int64_t n, int64_t steps) {
    return factor_room(n) + n * n + power_room(n, steps) + 2 * n * n + 3 * n;
}

/* gain (n) of a factor with its triangle given by rows; returns 1 / (sigma + eps), or 1 without `steps`. */
ROT_ROW real factor_gains(real *gain, const real *rows, const real *alpha, real *room, int64_t n, gaining g) {
    real *const unit = room, *const w = unit + factor_room(n), *const power = w + n * n;
    const real *const inverse = unit + n * n, eps = eps_of_squares(g, rows, n);
    prepare_factor(unit, rows, n);
    real scale = 1;
    if (g.steps) {
        for (int64_t i = 0; i < n; i++) scale_row(w + i * n, part_of_unit(inverse[i], eps), unit + i * n, n);
        scale = one_over(power_norm(power, w, n, g.steps) + g.eps);
    }
    EACH_OF_ROW(i, n) gain[i] = alpha[i] * part_of_unit(inverse[i], eps) * scale;
    return scale;
}

/* Adds to the gradients of the triangle; overwrites dalpha. */
ROT_ROW void factor_gains_adjoint(real *drows, real *dalpha, const real *dgain, const real *rows, const real *alpha,
                                  real *room, int64_t n, gaining g) {
    real *const unit = room, *const w = unit + factor_room(n), *const power = w + n * n;
    const real *const inverse = unit + n * n, *const U = inverse + n;
    real *const dW = power + power_room(n, g.steps), *const dE = dW + n * n, *const dx = dE + n * n;
    real *const dc = dx + n, *const spare = dc + n;
    const real scale = factor_gains(spare, rows, alpha, room, n, g), eps = eps_of_squares(g, rows, n);
    EACH_OF_ROW(i, n) {
        const real c = part_of_unit(inverse[i], eps);
        dalpha[i] = dgain[i] * c * scale;
        dc[i] = dgain[i] * alpha[i] * scale;
        spare[i] = dc[i] * c;
    }
    join_row();
    zero_row(dW, n * n);
    join_row();
    if (g.steps) {
        EACH_OF_ROW(i, n) dx[i] = 1;
        join_row();
        const real dsigma = -scale * dot(spare, dx, n);
        power_norm_adjoint(dW, dx, dsigma, power, w, n, g.steps);
    }
    zero_row(dE, n * n);
    join_row();
    for (int64_t i = 0; i < n; i++) { /* W_i = c_i unit_i: the length of a row is its length along the unit vector */
        const real c = part_of_unit(inverse[i], eps), along = dot(dW + i * n, unit + i * n, n);
        EACH_OF_ROW(j, n) dW[i * n + j] *= c;
        normalise_adjoint(dE + i * n, dW + i * n, unit + i * n, inverse[i], n);
        add_scaled(dE + i * n, part_of_unit_adjoint(inverse[i], eps, dc[i] + along), unit + i * n, n);
    }
    adjoint_triangle(drows, dE, U, spare, n);
}

/* -------------------------------------------------------------------------------------------------- Monarch, Gram */

/* Room for a block: the output of prepare_gram; for Gram the power iteration; dG (n,n), and scratch. */
ROT_INLINE int64_t gram_gains_room(int64_t n, int64_t steps) {
    return gram_room(n) + n * n + power_room(n, steps) + 2 * n;
}

/* sigma of a block with its triangle given by rows; or the largest |row|, and its index in `at`. */
ROT_ROW real gram_size(real *room, const real *rows, int64_t *at, int64_t n, gaining g) {
    real *const G = room, *const scratch = room + gram_room(n) + n * n;
    prepare_gram(G, rows, true, n);
    if (g.m.form == MIXER_GRAM) return g.steps ? power_norm(scratch, G, n, g.steps) : 1;
    real largest = 0;
    *at = 0;
    for (int64_t i = 0; i < n; i++) {
        const real length = one_over(normalise(scratch, G + i * n, n));
        *at = length > largest ? i : *at;
        largest = length > largest ? length : largest;
    }
    return largest;
}

/* gain (1) */
ROT_ROW void gram_gain(real *gain, const real *rows, real alpha, real *room, int64_t n, gaining g) {
    int64_t at;
    set_one(gain, alpha * one_over(gram_size(room, rows, &at, n, g) + eps_of_squares(g, rows, n)));
}

/* Adds to the gradients of the triangle; overwrites dalpha (1). */
ROT_ROW void gram_gain_adjoint(real *drows, real *dalpha, real dgain, const real *rows, real alpha, real *room,
                               int64_t n, gaining g) {
    real *const G = room, *const dG = G + gram_room(n), *const scratch = dG + n * n;
    real *const dx = scratch + power_room(n, g.steps), *const spare = dx + n;
    int64_t at = 0;
    const real scale = one_over(gram_size(room, rows, &at, n, g) + eps_of_squares(g, rows, n)),
               dsize = -dgain * alpha * scale * scale;
    set_one(dalpha, dgain * scale);
    zero_row(dG, n * n);
    join_row();
    if (g.m.form == MIXER_GRAM) {
        if (g.steps) power_norm_adjoint(dG, dx, dsize, scratch, G, n, g.steps);
    } else {
        (void)normalise(spare, G + at * n, n);
        scale_row(dG + at * n, dsize, spare, n);
    }
    join_row();
    adjoint_triangle(drows, dG, G + n * n, spare, n);
}

/* -------------------------------------------------------------------------------------------------------- any form */

ROT_INLINE int64_t gains_room(gaining g) {
    const int64_t a = g.m.R, b = mixer_columns(g.m);
    return g.m.form == MIXER_KRONECKER ? factor_gains_room(a > b ? a : b, g.steps)
           : has_vectors(g.m.form)     ? g.m.D
                                       : gram_gains_room(a, g.steps);
}

/* Whether gains differ from alpha. */
ROT_INLINE bool changes_gains(gaining g) {
    return mixer_alpha(g.m) && (g.eps > 0 || g.steps || g.m.form == MIXER_MONARCH || g.m.form == MIXER_GRAM);
}

/* gain, which may be alpha itself, from alpha */
ROT_ROW void mixer_gain(real *gain, const real *u, const real *alpha, real *room, gaining g) {
    const int64_t a = g.m.R, D = g.m.D;
    if (g.m.form == MIXER_KRONECKER) {
        (void)factor_gains(gain, u, alpha, room, a, g);
        (void)factor_gains(gain + a, u + triangle(a), alpha + a, room, mixer_columns(g.m), g);
        return;
    }
    if (!has_vectors(g.m.form)) {
        for (int64_t k = 0; k < mixer_columns(g.m); k++) gram_gain(gain + k, u + k * triangle(a), alpha[k], room, a, g);
        return;
    }
    for (int64_t i = 0; i < a; i++) {
        const real c = part_of_unit(normalise(room, u + i * D, D), g.eps);
        set_one(gain + i, alpha[i] * c * c);
    }
}

/* du and dalpha are overwritten. */
ROT_ROW void mixer_gain_adjoint(real *du, real *dalpha, const real *dgain, const real *u, const real *alpha, real *room,
                                gaining g) {
    const int64_t a = g.m.R, D = g.m.D;
    zero_row(du, mixer_u(g.m));
    join_row();
    if (g.m.form == MIXER_KRONECKER) {
        const int64_t b = mixer_columns(g.m);
        factor_gains_adjoint(du, dalpha, dgain, u, alpha, room, a, g);
        factor_gains_adjoint(du + triangle(a), dalpha + a, dgain + a, u + triangle(a), alpha + a, room, b, g);
        return;
    }
    if (!has_vectors(g.m.form)) {
        for (int64_t k = 0; k < mixer_columns(g.m); k++)
            gram_gain_adjoint(du + k * triangle(a), dalpha + k, dgain[k], u + k * triangle(a), alpha[k], room, a, g);
        return;
    }
    for (int64_t i = 0; i < a; i++) {
        const real inverse = normalise(room, u + i * D, D), c = part_of_unit(inverse, g.eps);
        set_one(dalpha + i, dgain[i] * c * c);
        add_scaled(du + i * D, part_of_unit_adjoint(inverse, g.eps, 2 * c * alpha[i] * dgain[i]), room, D);
    }
}

#endif
