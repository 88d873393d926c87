/* Continues a text with a language model whose tokens are the characters of ASCII:
 *
 *     complete [-t TEMPERATURE] [-s SEED] MODEL COUNT [TEXT]
 *
 * reads TEXT, or standard input if there is none, and writes COUNT more characters. Logits are divided by the
 * temperature: 0 always takes the most probable character, 1 draws as the model learnt. The same seed gives the same
 * text.
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "rotrnn.h"

enum { CHARACTERS = 128 };

static const char *const usage =
    "usage: complete [-t TEMPERATURE] [-s SEED] MODEL COUNT [TEXT]\n"
    "Continues TEXT, or standard input, by COUNT characters. TEMPERATURE (0.5): 0 is the most probable text.\n"
    "COUNT and SEED are whole numbers.\n";

/* A number in [0, 1) from a counter (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators"). */
static double uniform(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Draws a character from softmax(logits / temperature). */
static int32_t draw(const float *logits, double temperature, uint64_t *state) {
    int32_t best = 0;
    for (int32_t i = 1; i < CHARACTERS; i++)
        if (logits[i] > logits[best]) best = i;
    if (temperature <= 0) return best;
    double weights[CHARACTERS], sum = 0;
    for (int32_t i = 0; i < CHARACTERS; i++) sum += weights[i] = exp((double)(logits[i] - logits[best]) / temperature);
    double left = uniform(state) * sum;
    for (int32_t i = 0; i < CHARACTERS; i++)
        if ((left -= weights[i]) < 0) return i;
    return best; /* rounding may leave no choice above */
}

/* Reads a number of a command line that ends where its text ends. Returns whether it is one in [low, high]. */
static int number(const char *text, double low, double high, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && !*end && *value >= low && *value <= high;
}

/* The same for whole numbers. */
static int whole(const char *text, double high, double *value) {
    return number(text, 0, high, value) && *value == floor(*value);
}

/* The next character of the text or, if that is NULL, of standard input; EOF at the end. */
static int next(const char **text) {
    if (!*text) return getchar();
    return **text ? (unsigned char)*(*text)++ : EOF;
}

int main(int argc, char **argv) {
    double temperature = 0.5, seed = 0, count;
    for (int option; (option = getopt(argc, argv, "t:s:")) != -1;) {
        const int good = option == 't'   ? number(optarg, 0, 1000, &temperature)
                         : option == 's' ? whole(optarg, 1e15, &seed)
                                         : 0;
        if (!good) return fputs(usage, stderr), 2;
    }
    const int left = argc - optind;
    if (left < 2 || left > 3 || !whole(argv[optind + 1], 1e9, &count)) return fputs(usage, stderr), 2;
    const char *text = left == 3 ? argv[optind + 2] : NULL;

    rotrnn_model *model;
    rotrnn_stream *stream;
    rotrnn_error error;
    if (rotrnn_model_open(&model, argv[optind], &error)) return fprintf(stderr, "complete: %s\n", error.text), 1;
    const rotrnn_facts facts = rotrnn_model_facts(model);
    if (!facts.reads_tokens || facts.is_double || !facts.gives_each || facts.needs_capacity ||
        facts.inputs != CHARACTERS || facts.outputs != CHARACTERS)
        return fprintf(stderr, "complete: %s is not a language model of 128 characters\n", argv[optind]), 1;
    if (rotrnn_stream_new(&stream, model, 1, 0, &error)) return fprintf(stderr, "complete: %s\n", error.text), 1;

    float logits[CHARACTERS];
    int32_t character = '\n'; /* a text begins on a new line */
    (void)rotrnn_push_tokens(stream, &character, 1, logits);
    for (int c; (c = next(&text)) != EOF;) {
        character = c < CHARACTERS ? c : '?';
        (void)rotrnn_push_tokens(stream, &character, 1, logits);
    }
    uint64_t state = (uint64_t)seed;
    for (int64_t i = 0; i < (int64_t)count; i++) {
        character = draw(logits, temperature, &state);
        putchar(character);
        (void)rotrnn_push_tokens(stream, &character, 1, logits);
    }
    putchar('\n');
    rotrnn_stream_free(stream);
    rotrnn_model_free(model);
    if (fflush(stdout) || ferror(stdout)) return fputs("complete: the text cannot be written\n", stderr), 1;
    return 0;
}
