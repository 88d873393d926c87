/* ListOps (Nangia & Bowman 2018) as in Long Range Arena (Tay et al. 2021): sampling, evaluation, the text form.
 *
 * An expression is a string of tokens in prefix order, `[MAX 3 [MIN 1 2 ] ]`: ids 0 to 9 are the digits, then come
 * the four operators and the closing bracket. As text it is binarised to the left and fully parenthesised: an operator
 * is paired with its first argument, that pair with the second, ..., and finally with `]`; each pair is `( l r )`.
 */
#include <string.h>

#include "kernels.h"
#include "philox.h"

enum { DIGITS = 10, MIN = 10, MAX, MED, SM, CLOSE, TOKENS, LEFT = TOKENS, RIGHT, UNKNOWN };
enum { MAX_DEPTH = LISTOPS_MAX_DEPTH, MAX_SYMBOL = 4 };

static const char SYMBOLS[UNKNOWN][MAX_SYMBOL + 1] = {"0", "1",    "2",    "3",    "4",   "5", "6", "7", "8",
                                                      "9", "[MIN", "[MAX", "[MED", "[SM", "]", "(", ")"};

/* ---- value ---- */

typedef struct {
    int op;
    int64_t arguments, count[DIGITS]; /* number of arguments, and of arguments with each value */
} node;

static int ranked(const node *f, int64_t rank) {
    int digit = 0;
    while (rank >= f->count[digit]) rank -= f->count[digit++];
    return digit;
}

static int node_value(const node *f) {
    const int64_t n = f->arguments;
    int64_t sum = 0;
    switch (f->op) {
    case MIN: return ranked(f, 0);
    case MAX: return ranked(f, n - 1);
    case MED: return (ranked(f, (n - 1) / 2) + ranked(f, n / 2)) / 2; /* the mean of the middle two, rounded down */
    default:
        for (int digit = 0; digit < DIGITS; digit++) sum += digit * f->count[digit];
        return (int)(sum % 10);
    }
}

/* The value of a well-formed expression of at most MAX_DEPTH nested operators. */
static int value_of(const uint8_t *tokens, int64_t n) {
    node stack[MAX_DEPTH];
    int depth = 0, value = 0;
    for (int64_t i = 0; i < n; i++) {
        const int token = tokens[i];
        if (token >= MIN && token <= SM) {
            memset(&stack[depth], 0, sizeof(node));
            stack[depth++].op = token;
            continue;
        }
        value = token == CLOSE ? node_value(&stack[--depth]) : token;
        if (depth) {
            stack[depth - 1].arguments++;
            stack[depth - 1].count[value]++;
        }
    }
    return value;
}

/* ---- sampling ---- */

/* A random expression of min_length < length < max_length, or 0 if this stream's length is outside. Below max_depth
 * a node is an operator with probability 1/4, with 2 to max_args arguments; else, and always at max_depth, a digit. */
static int64_t sample_tree(uint8_t *tokens, philox_stream *s, int64_t max_depth, int64_t max_args, int64_t min_length,
                           int64_t max_length) {
    int64_t missing[MAX_DEPTH]; /* number of arguments that each open operator still needs */
    int64_t n = 0, depth = 0;
    do {
        if (n + 1 + depth >= max_length) return 0; /* this token and the closing brackets are too many */
        if (depth + 1 < max_depth && philox_uniform(philox_draw(s)) <= (real)0.25) {
            tokens[n++] = (uint8_t)(MIN + philox_below(philox_draw(s), 4));
            missing[depth++] = 2 + philox_below(philox_draw(s), (uint32_t)max_args - 1);
        } else {
            tokens[n++] = (uint8_t)philox_below(philox_draw(s), DIGITS);
            while (depth && --missing[depth - 1] == 0) {
                tokens[n++] = CLOSE;
                depth--;
            }
        }
    } while (depth);
    return n > min_length ? n : 0;
}

/* tokens (n,max_length), lengths (n), values (n): candidates first .. first+n-1 of this seed. Candidates whose length
 * is not strictly between the limits have length 0. max_depth <= MAX_DEPTH, max_args >= 2. */
KERNEL(listops_sample) {
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t i = 0; i < n; i++) {
        uint8_t *const row = tokens + i * max_length;
        philox_stream s = {.seed = (uint64_t)seed, .number = (uint64_t)(first + i)};
        lengths[i] = sample_tree(row, &s, max_depth, max_args, min_length, max_length);
        values[i] = (uint8_t)value_of(row, lengths[i]);
    }
    return ROT_OK;
}

/* ---- text ---- */

static int symbol_id(const uint8_t *text, int64_t size) {
    if (size == 1 && text[0] >= '0' && text[0] <= '9') return text[0] - '0';
    int id = MIN;
    while (id < UNKNOWN && !((size_t)size == strlen(SYMBOLS[id]) && memcmp(text, SYMBOLS[id], (size_t)size) == 0)) id++;
    return id;
}

/* tokens (size), result (4): number of tokens, value, the missing element (EXPECTED_NOTHING if the text is valid), and
 * its place; text (size). */
KERNEL(listops_parse) {
    int64_t missing[MAX_DEPTH];
    int64_t n = 0, depth = 0, parentheses = 0, at = 0;
    int expected = EXPECTED_ARGUMENT, failed = EXPECTED_NOTHING;
    while (at <= size) {
        const uint8_t *const space = memchr(text + at, ' ', (size_t)(size - at));
        const int64_t end = space ? space - text : size;
        const int id = symbol_id(text + at, end - at);
        if (expected == EXPECTED_ARGUMENT && id < DIGITS) {
            tokens[n++] = (uint8_t)id;
            expected = depth ? EXPECTED_ARGUMENT_END : EXPECTED_THE_END;
        } else if ((expected == EXPECTED_ARGUMENT || expected == EXPECTED_OPERATOR) && id == LEFT) {
            parentheses = expected == EXPECTED_ARGUMENT ? 1 : parentheses + 1;
            expected = EXPECTED_OPERATOR;
        } else if (expected == EXPECTED_OPERATOR && id >= MIN && id <= SM) {
            if (parentheses < 2)
                failed = EXPECTED_MORE_PARENTHESES;
            else if (depth == MAX_DEPTH)
                failed = EXPECTED_LESS_DEPTH;
            else {
                tokens[n++] = (uint8_t)id;
                missing[depth++] = parentheses - 1;
                expected = EXPECTED_ARGUMENT;
            }
        } else if (expected == EXPECTED_ARGUMENT_END && id == RIGHT) {
            expected = --missing[depth - 1] ? EXPECTED_ARGUMENT : EXPECTED_BRACKET;
        } else if (expected == EXPECTED_BRACKET && id == CLOSE) {
            tokens[n++] = CLOSE;
            expected = EXPECTED_NODE_END;
        } else if (expected == EXPECTED_NODE_END && id == RIGHT) {
            expected = --depth ? EXPECTED_ARGUMENT_END : EXPECTED_THE_END;
        } else
            failed = expected;
        if (failed) break;
        at = end + 1;
    }
    if (!failed && expected != EXPECTED_THE_END) failed = expected;
    result[0] = n;
    result[1] = failed ? -1 : value_of(tokens, n);
    result[2] = failed;
    result[3] = at;
    return ROT_OK;
}

/* Writes from the end of a buffer towards its start. */
static uint8_t *put(uint8_t *end, int id) {
    const size_t size = strlen(SYMBOLS[id]);
    *--end = ' ';
    return memcpy(end - size, SYMBOLS[id], size);
}

/* text (8 n), where the expression and a space fill the tail from start[0] on; tokens (n). Runs from the last token to
 * the first, because an operator's parentheses come before it and their number depends on its arguments. */
KERNEL(listops_render) {
    int64_t arguments[MAX_DEPTH];
    int depth = 0;
    uint8_t *at = text + 8 * n;
    for (int64_t i = n - 1; i >= 0; i--) {
        const int token = tokens[i];
        if (token >= TOKENS || (!depth && i < n - 1)) return ROT_OUT_OF_RANGE;
        if (token >= MIN && token <= SM) {
            if (!depth || !arguments[--depth]) return ROT_OUT_OF_RANGE;
            at = put(at, token);
            for (int64_t k = 0; k <= arguments[depth]; k++) at = put(at, LEFT);
            continue;
        }
        if (depth) {
            at = put(at, RIGHT);
            arguments[depth - 1]++;
        }
        if (token == CLOSE) {
            if (depth == MAX_DEPTH) return ROT_OUT_OF_RANGE;
            arguments[depth++] = 0;
            at = put(at, RIGHT);
        }
        at = put(at, token);
    }
    *start = at - text;
    return depth || !n ? ROT_OUT_OF_RANGE : ROT_OK;
}
