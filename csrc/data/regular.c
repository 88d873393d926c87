/* Regular languages of "Neural networks and the Chomsky hierarchy" (Delétang et al. 2023): strings of tokens and the
 * class of the whole string.
 *
 *   REGULAR_PARITY      bits; the number of ones, modulo 2
 *   REGULAR_EVEN_PAIRS  bits; the number of places where a bit differs from the next, modulo 2
 *   REGULAR_CYCLE       steps 0 left, 1 stay, 2 right on a cycle of m places; the place reached from place 0
 *   REGULAR_ARITHMETIC  digit op digit op ... digit modulo m, where tokens m, m + 1, m + 2 are + - *, and * has
 * precedence; the value. Strings have odd length: an even length is reduced by one.
 */
#include "kernels.h"
#include "philox.h"

enum { PLUS, MINUS, TIMES, OPERATORS };
enum { SERIAL = 1 << 14 };

static uint32_t below(philox_stream *random, int64_t n) { return philox_below(philox_draw(random), (uint32_t)n); }

static int64_t bits(int64_t *tokens, int64_t n, philox_stream *random, int64_t language) {
    int64_t ones = 0;
    for (int64_t t = 0; t < n; t++) ones += tokens[t] = below(random, 2);
    return language == REGULAR_PARITY ? ones % 2 : tokens[0] ^ tokens[n - 1];
}

static int64_t cycle(int64_t *tokens, int64_t n, philox_stream *random, int64_t m) {
    int64_t place = 0;
    for (int64_t t = 0; t < n; t++) place += (tokens[t] = below(random, 3)) - 1;
    return (place % m + m) % m;
}

static int64_t arithmetic(int64_t *tokens, int64_t n, philox_stream *random, int64_t m) {
    int64_t sum = 0, product = tokens[0] = below(random, m); /* product: the term not yet added */
    for (int64_t t = 1; t < n; t += 2) {
        const int64_t op = below(random, OPERATORS), digit = below(random, m);
        tokens[t] = m + op;
        tokens[t + 1] = digit;
        if (op == TIMES)
            product = product * digit % m;
        else {
            sum += product;
            product = op == PLUS ? digit : m - digit;
        }
    }
    return (sum + product) % m;
}

/* tokens, labels (n,T), sizes (n): strings of length[i] tokens, or of a uniform length from low to high if `length` is
 * NULL. The label of the last token is the class, other labels are -1; tokens after it are 0. */
KERNEL(regular_sample) {
#pragma omp parallel for schedule(static) if (n * T > SERIAL)
    for (int64_t i = 0; i < n; i++) {
        philox_stream random = {.seed = (uint64_t)seed, .number = (uint64_t)stream[i]};
        int64_t *const row = tokens + i * T, *const wanted = labels + i * T;
        int64_t size = length ? length[i] : low + below(&random, high - low + 1);
        if (language == REGULAR_ARITHMETIC && size % 2 == 0) size--;
        for (int64_t t = 0; t < T; t++) {
            row[t] = 0;
            wanted[t] = -1;
        }
        wanted[size - 1] = language == REGULAR_CYCLE        ? cycle(row, size, &random, modulus)
                           : language == REGULAR_ARITHMETIC ? arithmetic(row, size, &random, modulus)
                                                            : bits(row, size, &random, language);
        sizes[i] = size;
    }
    return ROT_OK;
}
