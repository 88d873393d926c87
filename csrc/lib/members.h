/* The mixers that a layer applies one after the other: one mixer of mixer.h, or the members of a mixture
 * (python/rotrnn/nn/fixed_points/mixer.py). In each array of a mixture (u, alpha, prepared) the numbers of all its
 * reflections come first, then the numbers of all its Kronecker products.
 */
#ifndef ROT_MEMBERS_H
#define ROT_MEMBERS_H

#include "mixer_gains.h"
#include "program.h"

/* A member, and the places where its numbers begin. */
typedef struct {
    gaining sizes;
    int64_t u, alpha, prepared;
} member;

static inline int64_t members_of(const mixing *m) { return m->form == MIXER_MIXTURE ? m->rank : 1; }

/* Member i; member 0 acts first. */
static inline member member_of(const mixing *m, real eps, int64_t i) {
    if (m->form != MIXER_MIXTURE) return (member){.sizes = {{m->form, m->rank, m->width}, eps, m->power_steps}};
    const mixer one = {MIXER_HOUSEHOLDER, 1, m->width}, product = {MIXER_KRONECKER, m->rows, m->width};
    const int64_t at = i / 2, all = (m->rank + 1) / 2;
    if (i % 2 == 0) return (member){{one, eps, 0}, at * mixer_u(one), at * mixer_alpha(one), at * mixer_prepared(one)};
    return (member){{product, eps, m->power_steps},
                    all * mixer_u(one) + at * mixer_u(product),
                    all * mixer_alpha(one) + at * mixer_alpha(product),
                    all * mixer_prepared(one) + at * mixer_prepared(product)};
}

/* Computes `prepared` from u, with angles bounded in place, and the gains from alpha, in place. room: gains_room */
static inline void prepare_members(real *prepared, real *u, real *alpha, real *room, const mixing *m, real eps,
                                   real largest) {
    for (int64_t i = 0; i < members_of(m); i++) {
        const member one = member_of(m, eps, i);
        const int64_t angles = one.sizes.m.form == MIXER_ROTATION ? mixer_u(one.sizes.m) : 0;
        for (int64_t n = 0; n < angles; n++) u[n] = bounded_angle(u[n], largest);
        if (changes_gains(one.sizes)) mixer_gain(alpha + one.alpha, u + one.u, alpha + one.alpha, room, one.sizes);
        mixer_prepare(prepared + one.prepared, u + one.u, one.sizes.m);
    }
}

#endif
