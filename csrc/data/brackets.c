/* Modular arithmetic with brackets (Delétang et al. 2023; Grazzi et al. 2025): expressions with an exact number of
 * tokens.
 *
 * Ids for modulus m: the digits 0 .. m-1, then + - * ( ) = and padding. For n = 1 to 4, an expression of n tokens is d,
 * -d, (d) or (-d) with a digit d. Longer ones are (left op right): left has 1 to n-4 tokens, right the remaining
 * n - 3 - left, and op is one of the first `operators` of + - *. All choices are uniform.
 */
#include "kernels.h"
#include "philox.h"

enum { PLUS, MINUS, TIMES, OPEN, CLOSE, EQUALS, PAD }; /* ids above the digits */
enum { SERIAL = 1 << 14 };

/* Writes n >= 1 tokens and returns their value, from 0 to m-1. Recursion depth is at most n / 4. */
static int64_t expression(int64_t *tokens, int64_t n, philox_stream *random, int64_t m, int64_t operators) {
    if (n < 5) {
        const int64_t digit = philox_below(philox_draw(random), (uint32_t)m);
        const int bracketed = n > 2, negative = n % 2 == 0;
        if (bracketed) *tokens++ = m + OPEN;
        if (negative) *tokens++ = m + MINUS;
        *tokens++ = digit;
        if (bracketed) *tokens = m + CLOSE;
        return negative ? (m - digit) % m : digit;
    }
    const int64_t size = 1 + philox_below(philox_draw(random), (uint32_t)(n - 4));
    const int64_t op = philox_below(philox_draw(random), (uint32_t)operators);
    tokens[0] = m + OPEN;
    tokens[1 + size] = m + op;
    tokens[n - 1] = m + CLOSE;
    const int64_t left = expression(tokens + 1, size, random, m, operators);
    const int64_t right = expression(tokens + 2 + size, n - 3 - size, random, m, operators);
    switch (op) {
    case PLUS: return (left + right) % m;
    case MINUS: return (left - right + m) % m;
    default: return left * right % m;
    }
}

/* tokens, labels (n,T), sizes (n): an expression of t - 3 tokens, `=`, the digit 0 in place of the value, and
 * padding from sizes[i] = t - 1 on. The value is the label of `=`; other labels are -1. t is uniform on low .. high <=
 * T, but at least 5. */
KERNEL(brackets_sample) {
#pragma omp parallel for schedule(static) if (n * T > SERIAL)
    for (int64_t i = 0; i < n; i++) {
        philox_stream random = {.seed = (uint64_t)seed, .number = (uint64_t)stream[i]};
        int64_t *const row = tokens + i * T, *const wanted = labels + i * T;
        const int64_t drawn = low + philox_below(philox_draw(&random), (uint32_t)(high - low + 1));
        const int64_t equals = (drawn < 5 ? 5 : drawn) - 3;
        for (int64_t t = 0; t < T; t++) {
            row[t] = modulus + PAD;
            wanted[t] = -1;
        }
        wanted[equals] = expression(row, equals, &random, modulus, operators);
        row[equals] = modulus + EQUALS;
        row[equals + 1] = 0;
        sizes[i] = equals + 2;
    }
    return ROT_OK;
}
