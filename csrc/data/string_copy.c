/* Strings to copy (Jelassi, Brandfonbrener, Kakade, Malach 2024), one token per character: the letters a, b, ... are 0,
 * 1,
 * ..., letters-1, then come `$`, `|` and `.`. An example for a string s and, except in COPY_COPY, a substring q of it:
 *
 *   COPY_COPY       $s|s.           the first letters of s, or all
 *   COPY_PREFIX     $q|s|r.         the letters after the first occurrence of q in s: the first ones, or all
 *   COPY_SUFFIX     $s|qr.          the same
 *   COPY_DUPLICATE  $s|s.           where one substring of s is replaced by a copy of another, unless they overlap
 *
 * The answer is the text after the prompt, `.` included.
 */
#include <string.h>

#include "kernels.h"
#include "philox.h"
#include "sizes.h"

enum { START, SEPARATOR, END }; /* ids above the letters */
enum { MAX_EXAMPLE = 3 * COPY_MAX_LENGTH + 4 };
enum { SERIAL = 1 << 14 };

/* Settings of all examples: the variant, and the numbers of letters in q and in an answer (0 for all). */
typedef struct {
    int64_t letters, variant, gram, answer;
} form;

typedef struct {
    int64_t size, prompt; /* number of tokens, and of tokens before the answer */
    uint8_t tokens[MAX_EXAMPLE];
} example;

/* Index of the first occurrence of the substring s[at .. at+gram-1]. */
static int64_t first_place(const uint8_t *s, int64_t at, int64_t gram) {
    int64_t place = 0;
    while (memcmp(s + place, s + at, (size_t)gram) != 0) place++;
    return place;
}

/* Replaces each occurrence of the substring at `target` by the substring at `source`, left to right, without
 * overlap. */
static void duplicate(uint8_t *s, int64_t length, int64_t source, int64_t target, int64_t gram) {
    uint8_t stale[COPY_MAX_LENGTH], fresh[COPY_MAX_LENGTH];
    memcpy(stale, s + target, (size_t)gram);
    memcpy(fresh, s + source, (size_t)gram);
    for (int64_t at = 0; at + gram <= length;) {
        if (memcmp(s + at, stale, (size_t)gram) == 0) {
            memcpy(s + at, fresh, (size_t)gram);
            at += gram;
        } else
            at++;
    }
}

static void put(example *e, const uint8_t *tokens, int64_t n) {
    memcpy(e->tokens + e->size, tokens, (size_t)n);
    e->size += n;
}

static void sample(example *e, philox_stream *random, const form *f, int64_t length) {
    const uint8_t start = (uint8_t)(f->letters + START), separator = (uint8_t)(f->letters + SEPARATOR),
                  end = (uint8_t)(f->letters + END);
    uint8_t s[COPY_MAX_LENGTH];
    for (int64_t i = 0; i < length; i++) s[i] = (uint8_t)philox_below(philox_draw(random), (uint32_t)f->letters);

    int64_t gram = 0, from = 0;
    if (f->variant == COPY_DUPLICATE) {
        const uint32_t places = (uint32_t)(length - f->gram - f->answer - 1);
        const uint32_t source = philox_below(philox_draw(random), places);
        const uint32_t target = philox_below(philox_draw(random), places - 1);
        duplicate(s, length, source, target + (target >= source), f->gram);
    } else if (f->variant != COPY_COPY) {
        const uint32_t places = (uint32_t)(length - f->gram - f->answer - 2);
        gram = f->gram;
        from = first_place(s, philox_below(philox_draw(random), places), gram);
    }

    e->size = 0;
    put(e, &start, 1);
    if (f->variant == COPY_PREFIX) {
        put(e, s + from, gram);
        put(e, &separator, 1);
    }
    put(e, s, length);
    put(e, &separator, 1);
    if (f->variant == COPY_SUFFIX) put(e, s + from, gram);
    e->prompt = e->size;
    put(e, s + from + gram, f->answer ? f->answer : length - from - gram);
    put(e, &end, 1);
}

/* Sets the label of each token of the row whose next token is among first .. last-1 of the example. */
static void label(int64_t *labels, const example *e, int64_t first, int64_t last) {
    for (int64_t t = first; t < last; t++) labels[t - 1] = e->tokens[t];
}

/* tokens, labels (n,T): each row holds examples one after another, the last one cut at the row's end. Answers of
 * whole examples are labelled. Strings are of `low` to `high` <= COPY_MAX_LENGTH letters. */
KERNEL(copy_rows) {
    const form f = {.letters = letters, .variant = variant, .gram = gram, .answer = answer};
#pragma omp parallel for schedule(static) if (n * T > SERIAL)
    for (int64_t i = 0; i < n; i++) {
        philox_stream random = {.seed = (uint64_t)seed, .number = (uint64_t)stream[i]};
        int64_t *const row = tokens + i * T, *const wanted = labels + i * T;
        example e;
        for (int64_t t = 0; t < T; t++) wanted[t] = -1;
        for (int64_t at = 0; at < T; at += e.size) {
            const int64_t length = low + philox_below(philox_draw(&random), (uint32_t)(high - low + 1));
            sample(&e, &random, &f, length);
            if (e.size > T - at) {
                e.size = T - at;
                e.prompt = e.size;
            }
            for (int64_t t = 0; t < e.size; t++) row[at + t] = e.tokens[t];
            label(wanted + at, &e, e.prompt, e.size);
        }
    }
    return ROT_OK;
}

/* tokens, labels (n,T), sizes (n): one example per row, of a string of length[i] <= COPY_MAX_LENGTH letters, then `.`
 * up to T, which must be at least the longest example. Answers are labelled, except their last `.`. */
KERNEL(copy_strings) {
    const form f = {.letters = letters, .variant = variant, .gram = gram, .answer = answer};
    bool failed = false;
#pragma omp parallel for schedule(static) if (n * T > SERIAL) reduction(|| : failed)
    for (int64_t i = 0; i < n; i++) {
        philox_stream random = {.seed = (uint64_t)seed, .number = (uint64_t)stream[i]};
        int64_t *const row = tokens + i * T, *const wanted = labels + i * T;
        example e;
        e.size = T + 1;
        if (copy_fits(length[i], variant, gram, answer)) sample(&e, &random, &f, length[i]);
        if (e.size > T) {
            failed = true;
            continue;
        }
        for (int64_t t = 0; t < T; t++) {
            row[t] = t < e.size ? e.tokens[t] : letters + END;
            wanted[t] = -1;
        }
        label(wanted, &e, e.prompt, e.size - 1);
        sizes[i] = e.size;
    }
    return failed ? ROT_OUT_OF_RANGE : ROT_OK;
}
