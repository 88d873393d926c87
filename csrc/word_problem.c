/* Word problems of finite groups (Merrill, Petty, Sabharwal 2024): sequences of elements, and the products so far.
 *
 * Row i of the sequences of one length needs no other row. Where there are few sequences, N = order^T < 2^62, row i is
 * the sequence whose digits are those of p(i) in base `order`, for a random permutation p of 0 .. N-1: no two rows are
 * the same. Where there are more, elements are drawn from stream (T, i), and it is improbable that any two are.
 */
#include "kernels.h"
#include "philox.h"

enum { ROUNDS = 8, SERIAL = 1 << 13 };

/* A word of stream `stream` for each number < 2^32. */
static uint64_t scramble(uint64_t x, uint64_t seed, uint64_t stream) {
    uint32_t words[4 * PHILOX_LANES];
    philox_at(words, seed, stream, x);
    return words[0];
}

/* Permutes 0 .. count-1 by a Feistel network over the 2 half bits that hold count-1, gone through again until its
 * value is below count: four times at most on average. A permutation for each stream, a multiple of 2^8. */
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

/* elements (n,T): rows row[0..n-1] of the sequences of length T under the key `seed`; 0 <= row < 2^48, and row < count,
 * which is order^T, or 0 if that is not below 2^62. 0 < T < 2^16. */
int K(word_sample)(int64_t *restrict elements, const int64_t *restrict row, int64_t n, int64_t T, int64_t order,
                   int64_t count, int64_t seed) {
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

/* states (n,T) from elements (n,T): s_t = s_{t-1} x_t, s_0 = 0 the identity; table (order,order) holds a b at (a, b).
 */
int K(word_states)(int64_t *restrict states, const int64_t *restrict elements, const int64_t *restrict table, int64_t n,
                   int64_t T, int64_t order) {
#pragma omp parallel for schedule(static) if (n * T > SERIAL)
    for (int64_t i = 0; i < n; i++) {
        int64_t state = 0;
        for (int64_t t = i * T; t < (i + 1) * T; t++) states[t] = state = table[state * order + elements[t]];
    }
    return ROT_OK;
}
