/* The fixed point of a step in depth, given its past, directly:  y = carried + gain (y + Q (x - y)).
 *
 * Mixers of vectors. With W (R,D) the unit vectors of Q and d = 2 alpha, I - Q is a diagonal matrix and one of rank R,
 *
 *   I - Q = W^T T W,  T^-1 = diag(1/d) + N,  N the part of W W^T above its diagonal for a product of reflections, or 0;
 *
 * low rank has I - Q = I + W^T T W with d = -alpha and N = 0. So with gain as a diagonal matrix and E = I, or I - gain
 * for low rank, the system of e = y - x has the matrix E - gain W^T T W, and by Woodbury
 *
 *   e = E^-1 (base + gain W^T c),  (I + diag(d) (N - W E^-1 gain W^T)) c = diag(d) W E^-1 base,
 *
 * with base = carried - (1 - gain) x. The adjoint of y is the transposed one, with the gradient g that comes in:
 *
 *   E^-1 (g + W^T c),  (I + diag(d) (N^T - W E^-1 gain W^T)) c = diag(d) W E^-1 gain g.
 *
 * Nothing is divided by a gain alpha, which may be 0. Of low rank no gain may be 1: else Q y = .. has no solution.
 *
 * The other mixers. I - gain (I - Q) is formed, and the system of e solved by elimination: that of each block of
 * Monarch, else of all D channels, which costs D^3 / 3 multiplications. A Kronecker product has no cheaper way: gain, a
 * diagonal matrix, is no Kronecker product, and neither is the sum. Only on the CPU.
 */
#ifndef ROT_DIRECT_H
#define ROT_DIRECT_H

#include "mixer.h"
#include "residual.h"

/* The spread of a solution y and its image. Where a system is nearly singular y is wrong, but still near to its image.
 * So the distance is at least what rounding may do to y: `growth` of solve_small times the distance of neighbours of y.
 */
ROT_ROW spread solved_spread(spread s, real growth) {
    s.apart = larger(s.apart, magnitude_of(EPSILON * growth * real_of(s.size)));
    return s;
}

/* c <- S^-1 c by elimination with partial pivoting; S (R,R) is overwritten. Not finite if S is singular. Returns by how
 * much it lets errors grow, about: the largest number of S, or of the sums of products that S comes from, which is 1 at
 * least, over the least pivot. */
ROT_INLINE real solve_small(real *S, real *c, int64_t R) {
    real largest = 1, least_pivot = INFINITY;
    for (int64_t i = 0; i < R * R; i++) largest = ROT_ABS(S[i]) > largest ? ROT_ABS(S[i]) : largest;
    for (int64_t k = 0; k < R; k++) {
        int64_t pivot = k;
        for (int64_t i = k + 1; i < R; i++)
            if (ROT_ABS(S[i * R + k]) > ROT_ABS(S[pivot * R + k])) pivot = i;
        for (int64_t j = k; j < R && pivot != k; j++) {
            const real swapped = S[k * R + j];
            S[k * R + j] = S[pivot * R + j];
            S[pivot * R + j] = swapped;
        }
        const real top = c[pivot], size = ROT_ABS(S[k * R + k]);
        least_pivot = size < least_pivot ? size : least_pivot;
        c[pivot] = c[k];
        c[k] = top;
        for (int64_t i = k + 1; i < R; i++) {
            const real factor = S[i * R + k] / S[k * R + k];
            for (int64_t j = k + 1; j < R; j++) S[i * R + j] -= factor * S[k * R + j];
            c[i] -= factor * c[k];
        }
    }
    for (int64_t k = R - 1; k >= 0; k--) {
        for (int64_t j = k + 1; j < R; j++) c[k] -= S[k * R + j] * c[j];
        c[k] /= S[k * R + k];
    }
    return largest / least_pivot;
}

/* c (R) of the systems above, given E^-1 gain (D) and what W is multiplied by on the right side (D). Returns what
 * solve_small does. room: D + R R */
ROT_ROW real direct_correction(real *c, const real *gain, const real *right, const real *w, const real *alpha,
                               bool transposed, real *room, mixer m) {
    const int64_t R = m.R, D = m.D;
    const bool product = m.form == MIXER_HOUSEHOLDER;
    real *const gained = room, *const S = gained + D;
    for (int64_t i = 0; i < R; i++) {
        const real *const w_i = w + i * D;
        const real d_i = 2 * mixer_unit(m) * alpha[i];
        EACH_OF_ROW(n, D) gained[n] = gain[n] * w_i[n];
        set_one(S + i * R + i, 1 - d_i * dot(gained, w_i, D));
        for (int64_t j = i + 1; j < R; j++) {
            const real d_j = 2 * mixer_unit(m) * alpha[j], K = dot(gained, w + j * D, D);
            const real above = product ? dot(w_i, w + j * D, D) : 0;
            set_one(S + i * R + j, d_i * ((transposed ? 0 : above) - K));
            set_one(S + j * R + i, d_j * ((transposed ? above : 0) - K));
        }
        set_one(c + i, d_i * dot(w_i, right, D));
    }
    EACH_OF_ROW(once, 1) gained[0] = solve_small(S, c, R);
    join_row();
    return gained[0];
}

/* Channels of a block of a mixer without vectors. */
ROT_INLINE int64_t direct_block(mixer m) { return m.form == MIXER_MONARCH ? m.R : m.D; }

ROT_INLINE int64_t direct_room(mixer m) {
    const int64_t n = direct_block(m);
    return has_vectors(m.form) ? 4 * m.D + m.R * (m.R + 1) : 3 * m.D + n * n + mixer_scratch(m);
}

#if !ROT_DEVICE
/* Row i of block k (n,n) of Q, or of Q^T; the mixer has no vectors. scratch: mixer_scratch */
static inline void matrix_row(real *restrict row, int64_t i, int64_t k, const real *w, const real *alpha,
                              bool transposed, real *scratch, mixer m) {
    const int64_t n = direct_block(m);
    zero_row(row, n);
    switch (m.form) {
    case MIXER_MATRIX:
        for (int64_t j = 0; j < n; j++) row[j] = transposed ? w[j * n + i] : w[i * n + j];
        break;
    case MIXER_MONARCH:
    case MIXER_GRAM: /* symmetric */
        row[i] = gram_kept(m);
        add_scaled(row, gram_factor(m) * alpha[k], w + k * gram_room(n) + i * n, n);
        break;
    default: /* a row of Q is Q^T of a unit vector */
        row[i] = 1;
        if (transposed)
            mixer_apply(row, w, alpha, scratch, m);
        else
            mixer_apply_transposed(row, w, alpha, scratch, m);
    }
}

/* c (D) <- the solution of S c = c with S = kept + gain Q, kept = 1 - gain, or of S^T. Returns the most that
 * solve_small does. room: n n + mixer_scratch, n = direct_block */
static inline real solve_formed(real *c, const real *kept, const real *gain, const real *w, const real *alpha,
                                bool transposed, real *room, mixer m) {
    const int64_t n = direct_block(m);
    real *const S = room, *const scratch = S + n * n;
    real growth = 1;
    for (int64_t k = 0; k * n < m.D; k++) {
        const real *const g = gain + k * n;
        for (int64_t i = 0; i < n; i++) {
            real *const row = S + i * n;
            matrix_row(row, i, k, w, alpha, transposed, scratch, m);
            for (int64_t j = 0; j < n; j++) row[j] *= transposed ? g[j] : g[i];
            row[i] += kept[k * n + i];
        }
        const real own = solve_small(S, c + k * n, n);
        growth = own > growth ? own : growth;
    }
    return growth;
}
#endif

/* W^T c (D), written over the room's first row, given E^-1 gain and what W is multiplied by on the right side; `growth`
 * is what direct_correction returns. */
ROT_ROW const real *direct_sum(real *growth, const real *gain, const real *right, const real *w, const real *alpha,
                               bool transposed, real *room, mixer m) {
    real *const sum = room, *const c = sum + m.D;
    *growth = direct_correction(c, gain, right, w, alpha, transposed, c + m.R, m);
    zero_row(sum, m.D);
    for (int64_t i = 0; i < m.R; i++) add_scaled(sum, c[i], w + i * m.D, m.D);
    return sum;
}

#if !ROT_DEVICE
/* direct_point of a mixer without vectors. */
static inline spread formed_point(real *y, real *mixed, const real *x, const real *gain, const real *w,
                                  const real *alpha, real *room, mixer m) {
    real *const kept = room, *const apart = kept + m.D, *const carried = apart + m.D, *const rest = carried + m.D;
    spread s = {0, 0};
    for (int64_t n = 0; n < m.D; n++) {
        carried[n] = y[n];
        kept[n] = 1 - gain[n];
        apart[n] = y[n] - kept[n] * x[n];
    }
    const real growth = solve_formed(apart, kept, gain, w, alpha, false, rest, m);
    for (int64_t n = 0; n < m.D; n++) {
        y[n] = x[n] + apart[n];
        mixed[n] = -apart[n];
    }
    mixer_apply(mixed, w, alpha, rest, m);
    for (int64_t n = 0; n < m.D; n++) {
        mixed[n] += y[n];
        (void)relax(&s, y[n], carried[n] + gain[n] * mixed[n], 0);
    }
    return solved_spread(s, growth);
}
#endif

/* y (D), which is `carried` on entry, and mixed (D) = y + Q (x - y), at the fixed point; gain is not yet divided by E.
 * Returns the spread of y and its image, which are the same but for rounding. room: direct_room */
ROT_ROW spread direct_point(real *y, real *mixed, const real *x, const real *gain, const real *w, const real *alpha,
                            real *room, mixer m) {
    const int64_t D = m.D;
    const bool low = m.form == MIXER_LOW_RANK;
#if !ROT_DEVICE
    if (!has_vectors(m.form)) return formed_point(y, mixed, x, gain, w, alpha, room, m);
#endif
    real *const shared = room, *const right = shared + D;
    spread s = {0, 0};
    real growth = 1;
    EACH_OF_ROW(n, D) {
        const real share = low ? 1 / (1 - gain[n]) : 1;
        shared[n] = share * gain[n];
        right[n] = share * (y[n] - (1 - gain[n]) * x[n]);
    }
    const real *const sum = direct_sum(&growth, shared, right, w, alpha, false, right + D, m);
    EACH_OF_ROW(n, D) {
        const real apart = right[n] + shared[n] * sum[n];
        y[n] = x[n] + apart;
        mixed[n] = x[n] + sum[n] + (low ? apart : 0);
        s.size = larger(s.size, magnitude_of(y[n]));
    }
    return solved_spread(s, growth);
}

/* v (D), which is g on entry, at the fixed point v = g + (I - Q^T) gain v, the adjoint of y. room: direct_room */
ROT_ROW void direct_point_adjoint(real *v, const real *gain, const real *w, const real *alpha, real *room, mixer m) {
    const int64_t D = m.D;
    const bool low = m.form == MIXER_LOW_RANK;
    real *const shared = room, *const right = shared + D;
#if !ROT_DEVICE
    if (!has_vectors(m.form)) {
        for (int64_t n = 0; n < D; n++) shared[n] = 1 - gain[n];
        (void)solve_formed(v, shared, gain, w, alpha, true, right, m);
        return;
    }
#endif
    real growth = 1;
    EACH_OF_ROW(n, D) {
        shared[n] = low ? gain[n] / (1 - gain[n]) : gain[n];
        right[n] = shared[n] * v[n];
    }
    const real *const sum = direct_sum(&growth, shared, right, w, alpha, true, right + D, m);
    EACH_OF_ROW(n, D) v[n] = low ? (v[n] + sum[n]) / (1 - gain[n]) : v[n] + sum[n];
}

#endif
