/* The mixers that a layer applies one after the other: one mixer of mixer.h, or the members of a mixture, reflections
 * and Kronecker products in turn (python/rotrnn/nn/fixed_points/mixer.py). In each array of a mixture (u, alpha,
 * prepared) the numbers of all its reflections come first, then the numbers of all its Kronecker products.
 */
#ifndef ROT_MEMBERS_H
#define ROT_MEMBERS_H

#include "direct.h"
#include "mixer_gains.h"
#include "mixing.h"

/* A member, and the places where its numbers begin. */
typedef struct {
    gaining sizes;
    int64_t u, alpha, prepared;
} member;

enum { MIXTURE_LARGEST = 1 << 20 }; /* channels, so that sizes of every mixture are below 2^63 */

/* The largest divisor of N up to its root: rows of a token as a matrix, for the products of a mixture. */
static inline int64_t rows_of_product(int64_t N) {
    int64_t rows = (int64_t)sqrt((double)N);
    while (rows > 1 && N % rows) rows--;
    return rows;
}

static inline int64_t members_of(const mixing *m) { return m->form == MIXER_MIXTURE ? m->rank : 1; }

/* Member i; member 0 acts first. */
static inline member member_of(const mixing *m, real eps, int64_t i) {
    const bool alone = m->form != MIXER_MIXTURE;
    const mixer whole = {m->form, m->rank, m->width}, reflection = {MIXER_HOUSEHOLDER, 1, m->width};
    const mixer product = {MIXER_KRONECKER, alone ? 1 : rows_of_product(m->width), m->width};
    const mixer own = alone ? whole : i % 2 ? product : reflection;
    const int64_t at = alone ? 0 : i / 2,
                  before = alone || i % 2 == 0 ? 0 : (m->rank + 1) / 2; /* reflections before it */
    const gaining sizes = {own, eps, alone || i % 2 ? m->power_steps : 0};
    const member one = {sizes, before * mixer_u(reflection) + at * mixer_u(own),
                        before * mixer_alpha(reflection) + at * mixer_alpha(own),
                        before * mixer_prepared(reflection) + at * mixer_prepared(own)};
    return one;
}

/* Numbers of u, alpha and `prepared`, and room for each call below but the direct solution. Gram has no alpha; its gain
 * of 1 has a place behind what is prepared. */
typedef struct {
    int64_t u, alpha, prepared, scratch;
} mixing_sizes;

static inline mixing_sizes sizes_of(const mixing *m, real eps) {
    const int64_t all = members_of(m);
    mixing_sizes sizes = {0, 0, 0, 0};
    for (int64_t i = 0; i < all && i < 2; i++) {
        const gaining g = member_of(m, eps, i).sizes;
        const int64_t count = all > 1 ? (all + 1 - i) / 2 : 1;
        sizes.u += count * mixer_u(g.m);
        sizes.alpha += g.m.form == MIXER_GRAM ? 0 : count * mixer_alpha(g.m);
        sizes.prepared += count * mixer_prepared(g.m);
        sizes.scratch = most(sizes.scratch, most(mixer_scratch(g.m), changes_gains(g) ? gains_room(g) : 0));
    }
    sizes.prepared += !sizes.alpha;
    return sizes;
}

static inline bool mixing_fits(int64_t form, int64_t R, int64_t D) {
    return form == MIXER_MIXTURE ? R >= 2 && R <= D && D <= MIXTURE_LARGEST : mixer_fits(form, R, D);
}

/* Bounds the `count` numbers of u if they are angles. */
static inline void bound_angles(real *u, int64_t count, real largest, const mixing *m) {
    for (int64_t n = 0; n < count && m->form == MIXER_ROTATION; n++) u[n] = bounded_angle(u[n], largest);
}

/* Computes `prepared` from u, whose angles are bounded already, and the gains from alpha, in place. */
static inline void prepare_members(real *prepared, const real *u, real *alpha, real *scratch, const mixing *m,
                                   real eps) {
    for (int64_t i = 0; i < members_of(m); i++) {
        const member one = member_of(m, eps, i);
        if (changes_gains(one.sizes)) mixer_gain(alpha + one.alpha, u + one.u, alpha + one.alpha, scratch, one.sizes);
        mixer_prepare(prepared + one.prepared, u + one.u, true, one.sizes.m);
    }
}

/* v <- Q v */
static inline void apply_members(real *v, const real *prepared, const real *alpha, real *scratch, const mixing *m) {
    for (int64_t i = 0; i < members_of(m); i++) {
        const member one = member_of(m, 0, i);
        mixer_apply(v, prepared + one.prepared, alpha + one.alpha, scratch, one.sizes.m);
    }
}

/* Room for `adjoint_members`: the inputs of a mixture's members, what mixer_gain_adjoint writes, and scratch. */
static inline int64_t adjoint_members_room(const mixing *m, mixing_sizes sizes) {
    return members_of(m) * m->width + sizes.u + most(sizes.alpha, 1) + sizes.scratch;
}

/* g (D) <- Q^T g, and the gradients du and dalpha of u (that of angles is of the bounded ones) and of `raw`, the gains
 * before prepare_members changed them to alpha. v (D) is the input of Q. */
static inline void adjoint_members(real *g, real *du, real *dalpha, const real *v, const real *prepared,
                                   const real *alpha, const real *u, const real *raw, real *room, const mixing *m,
                                   mixing_sizes sizes, real eps) {
    const int64_t D = m->width, all = members_of(m);
    real *const inputs = room, *const through_u = inputs + all * D, *const through = through_u + sizes.u;
    real *const scratch = through + most(sizes.alpha, 1);
    zero_row(du, sizes.u), zero_row(dalpha, most(sizes.alpha, 1));
    copy_row(inputs, v, D);
    for (int64_t i = 1; i < all; i++) {
        const member before = member_of(m, eps, i - 1);
        copy_row(inputs + i * D, inputs + (i - 1) * D, D);
        mixer_apply(inputs + i * D, prepared + before.prepared, alpha + before.alpha, scratch, before.sizes.m);
    }
    for (int64_t i = all - 1; i >= 0; i--) {
        const member one = member_of(m, eps, i);
        real *const own_u = du + one.u, *const own = dalpha + one.alpha;
        mixer_adjoint(g, own_u, own, inputs + i * D, prepared + one.prepared, alpha + one.alpha, scratch, one.sizes.m);
        if (!changes_gains(one.sizes)) continue;
        mixer_gain_adjoint(through_u, through, own, u + one.u, raw + one.alpha, scratch, one.sizes);
        add_scaled(own_u, 1, through_u, mixer_u(one.sizes.m));
        copy_row(own, through, mixer_alpha(one.sizes.m));
    }
}

/* Room for `prepare_members`, and for `solved_mixer` and a direct solution with it. */
static inline int64_t direct_members_room(const mixing *m, mixing_sizes sizes) {
    const int64_t N = m->width, scratch = sizes.scratch;
    const mixer own = {m->form, m->rank, N}, matrix = {MIXER_MATRIX, N, N};
    if (m->form != MIXER_MIXTURE) return most(scratch, direct_room(own));
    return N * N + most(scratch, direct_room(matrix));
}

/* The mixer that direct.h solves with, and its `prepared`: a mixture's is its matrix, formed at `room`, which then
 * begins behind it. The rows of Q are Q^T of the unit vectors. */
static inline mixer solved_mixer(const real **prepared, const real *alpha, real **room, const mixing *m) {
    const int64_t N = m->width;
    if (m->form != MIXER_MIXTURE) return member_of(m, 0, 0).sizes.m;
    real *const Q = *room;
    *room += N * N;
    zero_row(Q, N * N);
    for (int64_t n = 0; n < N; n++) {
        Q[n * N + n] = 1;
        for (int64_t i = members_of(m) - 1; i >= 0; i--) {
            const member one = member_of(m, 0, i);
            mixer_apply_transposed(Q + n * N, *prepared + one.prepared, alpha + one.alpha, *room, one.sizes.m);
        }
    }
    *prepared = Q;
    const mixer matrix = {MIXER_MATRIX, N, N};
    return matrix;
}

#endif
