/* Fuzzes the C functions of csrc/data without Python, by libFuzzer (`make fuzz-c`): the parser and the writer of
 * ListOps on any text, products in groups on any elements, and the generators on any numbers in the ranges of
 * kernels.list.
 *
 * The first byte picks the function, the next ones are its numbers, the rest is its text. Arrays lie on the heap, in
 * exactly their sizes, so that the sanitizer sees each step beyond them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct {
    const uint8_t *at, *end;
} input;

/* A number in low .. high from the next two bytes; a shorter input reads as zeros. */
static int64_t number(input *in, int64_t low, int64_t high) {
    uint64_t n = 0;
    for (int i = 0; i < 2; i++) n = n << 8 | (in->at < in->end ? *in->at++ : 0);
    return low + (int64_t)(n % (uint64_t)(high - low + 1));
}

static void *room(int64_t count, size_t size) {
    void *const memory = malloc((size_t)count * size);
    if (!memory) abort();
    return memset(memory, 0xa5, (size_t)count * size);
}

static int64_t *numbers(input *in, int64_t count, int64_t low, int64_t high) {
    int64_t *const all = room(count, sizeof *all);
    for (int64_t i = 0; i < count; i++) all[i] = number(in, low, high);
    return all;
}

static void require(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "parsers.c: %s\n", what);
    abort();
}

/* Text that is read as an expression is written as one that is read as the same. */
static void listops_text(const uint8_t *text, int64_t size) {
    uint8_t *const copy = room(size, 1), *const tokens = room(size, 1);
    int64_t result[4], again[4], start;
    memcpy(copy, text, (size_t)size);
    K(listops_parse)(&(listops_parse_args){.tokens = tokens, .result = result, .text = copy, .size = size});
    require(result[0] >= 0 && result[0] <= size, "as many tokens as bytes at most");
    require(result[3] >= 0 && result[3] <= size + 1, "the place of a fault is in the text");
    require((result[2] == EXPECTED_NOTHING) == (result[1] >= 0), "a value or a fault");
    if (result[2] == EXPECTED_NOTHING) {
        const int64_t n = result[0];
        uint8_t *const written = room(8 * n, 1), *const back = room(8 * n, 1);
        const int status =
            K(listops_render)(&(listops_render_args){.text = written, .start = &start, .tokens = tokens, .n = n});
        require(status == ROT_OK, "what was read can be written");
        const int64_t length = 8 * n - start - 1; /* without the space at the end */
        K(listops_parse)
        (&(listops_parse_args){.tokens = back, .result = again, .text = written + start, .size = length});
        require(again[2] == EXPECTED_NOTHING && again[0] == n && again[1] == result[1], "and read again");
        require(memcmp(back, tokens, (size_t)n) == 0, "as the same tokens");
        free(written);
        free(back);
    }
    free(copy);
    free(tokens);
}

static void listops_tokens(const uint8_t *tokens, int64_t n) {
    uint8_t *const copy = room(n, 1), *const text = room(8 * n, 1);
    int64_t start;
    for (int64_t i = 0; i < n; i++) copy[i] = tokens[i] % 17;
    K(listops_render)(&(listops_render_args){.text = text, .start = &start, .tokens = copy, .n = n});
    free(copy);
    free(text);
}

static void word_states(input *in) {
    static const int64_t FACTORIALS[] = {1, 1, 2, 6, 24, 120, 720, 5040};
    const int64_t n = number(in, 0, 4), T = number(in, 0, 9), F = number(in, 0, 3);
    int64_t *const factors = room(3 * F, sizeof *factors), *const states = room(n * T, sizeof *states);
    for (int64_t f = 0; f < F; f++) {
        const int64_t kind = number(in, 0, GROUP_ALTERNATING), things = number(in, 2, 7);
        const int64_t all = FACTORIALS[things];
        const int64_t order = kind == GROUP_CYCLIC ? things : kind == GROUP_SYMMETRIC ? all : all / 2;
        memcpy(factors + 3 * f, (int64_t[]){kind, things, order}, 3 * sizeof *factors);
    }
    int64_t *const elements = numbers(in, n * T, 0, 65535);
    K(word_states)
    (&(word_states_args){.states = states, .elements = elements, .factors = factors, .n = n, .T = T, .F = F});
    free(factors);
    free(states);
    free(elements);
}

static void generators(input *in) {
    enum { LISTOPS, WORDS, ROWS, DELAYED, BRACKETS, LANGUAGES, COUNT };
    const int64_t which = number(in, 0, COUNT - 1), n = number(in, 0, 3), T = number(in, 4, 60);
    const int64_t low = number(in, 1, T), high = number(in, low, T), seed = number(in, 0, 65535);
    const int64_t least = number(in, 1, 40), more = number(in, 0, 100), choice = number(in, 0, 3);
    int64_t *const stream = numbers(in, n, 0, 65535), *const sizes = room(n, sizeof *sizes);
    int64_t *const tokens = room(n * T, sizeof *tokens), *const labels = room(n * T, sizeof *labels);
    if (which == LISTOPS) {
        uint8_t *const text = room(n * T, 1), *const values = room(n, 1);
        K(listops_sample)
        (&(listops_sample_args){.tokens = text,
                                .lengths = sizes,
                                .values = values,
                                .n = n,
                                .seed = seed,
                                .first = more,
                                .max_depth = number(in, 1, 128),
                                .max_args = least + 1,
                                .min_length = low,
                                .max_length = T});
        for (int64_t i = 0; i < n; i++)
            if (sizes[i]) listops_tokens(text + i * T, sizes[i]);
        free(text);
        free(values);
    } else if (which == WORDS) {
        K(word_sample)
        (&(word_sample_args){
            .elements = tokens, .row = stream, .n = n, .T = T, .order = least, .count = 0, .seed = seed});
    } else if (which == ROWS) {
        const int64_t gram = number(in, 1, 9), answer = number(in, 0, 9), fewest = gram + answer + 3;
        K(copy_rows)
        (&(copy_rows_args){.tokens = tokens,
                           .labels = labels,
                           .stream = stream,
                           .n = n,
                           .T = T,
                           .seed = seed,
                           .letters = least,
                           .variant = choice,
                           .gram = gram,
                           .answer = answer,
                           .low = fewest,
                           .high = fewest + more});
    } else if (which == DELAYED) {
        const int64_t bits = number(in, 1, 32), steps = 2 * low + more + 1;
        uint8_t *const inputs = room(n * steps * (bits + 1), 1);
        int64_t *const wanted = room(n * steps * bits, sizeof *wanted);
        K(delayed_copy)
        (&(delayed_copy_args){.inputs = inputs,
                              .labels = wanted,
                              .stream = stream,
                              .n = n,
                              .length = low,
                              .delay = more,
                              .bits = bits,
                              .seed = seed});
        free(inputs);
        free(wanted);
    } else if (which == BRACKETS) {
        K(brackets_sample)
        (&(brackets_sample_args){.tokens = tokens,
                                 .labels = labels,
                                 .sizes = sizes,
                                 .stream = stream,
                                 .n = n,
                                 .T = T,
                                 .seed = seed,
                                 .low = low,
                                 .high = high,
                                 .modulus = least,
                                 .operators = 1 + choice % 3});
    } else {
        int64_t *const length = more % 2 ? numbers(in, n, 1, T) : NULL;
        K(regular_sample)
        (&(regular_sample_args){.tokens = tokens,
                                .labels = labels,
                                .sizes = sizes,
                                .stream = stream,
                                .length = length,
                                .n = n,
                                .T = T,
                                .seed = seed,
                                .low = low,
                                .high = high,
                                .language = choice,
                                .modulus = least});
        free(length);
    }
    free(stream);
    free(sizes);
    free(tokens);
    free(labels);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    input in = {data + 1, data + size};
    switch (data[0] % 4) {
    case 0: listops_text(in.at, in.end - in.at); break;
    case 1: listops_tokens(in.at, in.end - in.at); break;
    case 2: word_states(&in); break;
    default: generators(&in); break;
    }
    return 0;
}
