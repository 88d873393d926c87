/* Word problems of finite groups (Merrill, Petty, Sabharwal 2024): sequences of elements, and their running products.
 *
 * Row i of the sequences of one length does not depend on other rows. If there are few sequences, N = order^T < 2^62,
 * row i has the digits of p(i) in base `order`, for a random permutation p of 0 .. N-1, so no two rows are equal. If
 * there are more, elements are drawn from stream (T, i), and equal rows are improbable.
 */
#include "kernels.h"
#include "philox.h"

enum { ROUNDS = 8, SERIAL = 1 << 13, THINGS = 12 };

/* A random word of stream `stream` for each x < 2^32. */
static uint64_t scramble(uint64_t x, uint64_t seed, uint64_t stream) {
    uint32_t words[4 * PHILOX_LANES];
    philox_at(words, seed, stream, x);
    return words[0];
}

/* Permutes 0 .. count-1 by a Feistel network over the 2 half bits that hold count-1, repeated until the value is
 * below count: at most four times on average. Each stream, a multiple of 2^8, has its own permutation. */
static uint64_t permuted(uint64_t i, uint64_t count, uint64_t seed, uint64_t stream) {
    int half = 1;
    while ((count - 1) >> (2 * half)) half++;
    const uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            const uint64_t next = left ^ (scramble(right, seed, stream + round) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= count);
    return i;
}

/* elements (n,T): rows row[0..n-1] of the sequences of length T with the key `seed`; 0 <= row < 2^48, and row < count,
 * which is order^T, or 0 if that is not below 2^62. 0 < T < 2^16. */
KERNEL(word_sample) {
#pragma omp parallel for schedule(static) if (n * T > SERIAL)
    for (int64_t i = 0; i < n; i++) {
        int64_t *const x = elements + i * T;
        const uint64_t stream = (uint64_t)T << 48;
        if (count) {
            int64_t digits = (int64_t)permuted((uint64_t)row[i], (uint64_t)count, (uint64_t)seed, stream);
            for (int64_t t = T - 1; t >= 0; t--) {
                x[t] = digits % order;
                digits /= order;
            }
        } else {
            philox_stream s = {.seed = (uint64_t)seed, .number = stream | (uint64_t)row[i]};
            for (int64_t t = 0; t < T; t++) x[t] = philox_below(philox_draw(&s), (uint32_t)order);
        }
    }
    return ROT_OK;
}

/* Permutations of n things are numbered in lexicographic order: in the factorial number system, the digit
 * at a position counts the later things that are smaller. Numbers 2k and 2k+1 differ only in the last two things, so
 * one of them is an even permutation: number k among the even ones. */
static void permutation(int64_t *p, int64_t number, int64_t n, int64_t kind) {
    int64_t smaller[THINGS], left[THINGS], inversions = 0;
    if (kind == GROUP_ALTERNATING) number *= 2;
    for (int64_t k = n - 1; k >= 0; k--) {
        left[k] = k;
        smaller[k] = number % (n - k);
        number /= n - k;
        inversions += smaller[k];
    }
    if (kind == GROUP_ALTERNATING && inversions % 2) smaller[n - 2] = 1;
    for (int64_t k = 0; k < n; k++) {
        p[k] = left[smaller[k]];
        for (int64_t j = smaller[k]; j < n - k - 1; j++) left[j] = left[j + 1];
    }
}

static int64_t permutation_number(const int64_t *p, int64_t n, int64_t kind) {
    int64_t number = 0;
    for (int64_t k = 0; k < n; k++) {
        int64_t smaller = 0;
        for (int64_t j = k + 1; j < n; j++) smaller += p[j] < p[k];
        number = number * (n - k) + smaller;
    }
    return kind == GROUP_ALTERNATING ? number / 2 : number;
}

/* Adds place times the products of the components (x / place) mod order of elements x (T) to states (T). */
static void products(int64_t *restrict states, const int64_t *restrict elements, int64_t T, int64_t kind, int64_t n,
                     int64_t order, int64_t place) {
    int64_t product[THINGS], next[THINGS], one[THINGS], sum = 0;
    if (kind != GROUP_CYCLIC) permutation(product, 0, n, kind);
    for (int64_t t = 0; t < T; t++) {
        const int64_t x = elements[t] / place % order;
        if (kind == GROUP_CYCLIC) {
            sum = (sum + x) % order;
        } else {
            permutation(one, x, n, kind);
            for (int64_t k = 0; k < n; k++) next[k] = product[one[k]];
            for (int64_t k = 0; k < n; k++) product[k] = next[k];
            sum = permutation_number(product, n, kind);
        }
        states[t] += place * sum;
    }
}

/* Whether each factor is a group of at most THINGS things (a cyclic one of any number), and their product has a number
 * for each element. */
static bool valid_factors(const int64_t *factors, int64_t F) {
    int64_t all = 1;
    for (int64_t f = 0; f < F; f++) {
        const int64_t kind = factors[3 * f], n = factors[3 * f + 1], order = factors[3 * f + 2];
        if (kind > GROUP_ALTERNATING || (kind != GROUP_CYCLIC && (n < 1 || n > THINGS))) return false;
        if (order < 1 || __builtin_mul_overflow(all, order, &all)) return false;
    }
    return true;
}

/* states (n,T) from elements (n,T): s_t = s_{t-1} x_t, s_0 = 0 the identity, in the direct product of F groups, the
 * first component varying slowest. factors (F,3): kind, number n of things (<= 12 unless cyclic), order. */
KERNEL(word_states) {
    if (!valid_factors(factors, F)) return ROT_OUT_OF_RANGE;
#pragma omp parallel for schedule(static) if (n * T > SERIAL)
    for (int64_t i = 0; i < n; i++) {
        for (int64_t t = i * T; t < (i + 1) * T; t++) states[t] = 0;
        for (int64_t f = F - 1, place = 1; f >= 0; place *= factors[3 * f + 2], f--) {
            const int64_t *const of = factors + 3 * f;
            products(states + i * T, elements + i * T, T, of[0], of[1], of[2], place);
        }
    }
    return ROT_OK;
}
