/* Tokens a second of a stream of many sequences, and the time to swap one: sessions FILE BATCH ...; see sessions.py. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "rotrnn.h"

enum { REPEATS = 5, TOKENS = 2048 }; /* the least of so many turns, each of about so many tokens */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double least(double x, double y) { return x < y ? x : y; }

int main(int argc, char **argv) {
    rotrnn_model *model;
    rotrnn_error error;
    if (argc < 3 || rotrnn_model_open(&model, argv[1], &error))
        return puts(argc < 3 ? "expected FILE BATCH ..." : error.text), 1;
    for (int i = 2; i < argc; i++) {
        const int64_t batch = strtoll(argv[i], NULL, 10), outputs = rotrnn_model_facts(model).outputs;
        rotrnn_stream *stream;
        if (rotrnn_stream_new(&stream, model, batch, 0, &error)) return puts(error.text), 1;
        const size_t size = rotrnn_sequence_size(stream);
        int32_t *const tokens = calloc((size_t)batch, sizeof *tokens);
        float *const logits = calloc((size_t)(batch * outputs), sizeof *logits);
        void *const state = malloc(size);
        if (!tokens || !logits || !state) return puts("no memory"), 1;
        double push = 1e30, swap = 1e30;
        for (int repeat = 0; repeat < REPEATS; repeat++) {
            const int64_t turns = TOKENS / batch;
            double start = seconds();
            for (int64_t t = 0; t < turns; t++)
                if (rotrnn_push_tokens(stream, tokens, 1, logits)) return puts("cannot measure this"), 1;
            push = least(push, (seconds() - start) / (double)turns);
            start = seconds();
            for (int t = 0; t < TOKENS; t++) {
                (void)rotrnn_sequence_save(stream, t % batch, state, size);
                (void)rotrnn_sequence_load(stream, t % batch, state, size, NULL);
            }
            swap = least(swap, (seconds() - start) / TOKENS);
        }
        printf("%lld %zu %.0f %.3f\n", (long long)batch, size, (double)batch / push, 1e6 * swap);
        rotrnn_stream_free(stream);
        free(tokens);
        free(logits);
        free(state);
    }
    rotrnn_model_free(model);
    return 0;
}
