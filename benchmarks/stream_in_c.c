/* The time of a token in C, with matrices as float and as bfloat16, beside the time to read the model's numbers once:
 * stream_in_c FILE; see stream_in_c.py. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "rotrnn.h"

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX2__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
enum { TOKENS = 500, REPEATS = 40, TOGETHER = 8 };
typedef float vector __attribute__((vector_size(WIDTH * sizeof(float))));

static double nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The sum of `count` vectors, in enough partial sums that the addition's latency does not count. */
static vector total(const vector *x, int64_t count) {
    vector sum[TOGETHER] = {{0}};
    for (int64_t i = 0; i + TOGETHER <= count; i += TOGETHER)
        for (int k = 0; k < TOGETHER; k++) sum[k] += x[i + k];
    for (int k = 1; k < TOGETHER; k++) sum[0] += sum[k];
    return sum[0];
}

static double least(double x, double y) { return x < y ? x : y; }

static double of_tokens(rotrnn_stream *stream, const float *input, float *output) {
    const double start = nanoseconds();
    for (int i = 0; i < TOKENS; i++) rotrnn_push_features(stream, input, 1, output);
    return (nanoseconds() - start) / TOKENS;
}

int main(int argc, char **argv) {
    rotrnn_model *model, *half;
    rotrnn_stream *stream, *of_half;
    rotrnn_error error;
    if (argc != 2 || rotrnn_model_open(&model, argv[1], &error) || rotrnn_model_open_bf16(&half, argv[1], &error) ||
        rotrnn_stream_new(&stream, model, 1, 1 << 20, &error) || rotrnn_stream_new(&of_half, half, 1, 1 << 20, &error))
        return puts(argc == 2 ? error.text : "expected a file"), 1;
    const rotrnn_facts facts = rotrnn_model_facts(model);
    float *const input = calloc((size_t)facts.inputs, sizeof *input);
    float *const output = calloc((size_t)facts.outputs, sizeof *output);
    const int64_t vectors = facts.parameters / WIDTH;
    vector *const weights = aligned_alloc(sizeof(vector), (size_t)vectors * sizeof(vector));
    if (!input || !output || !weights || facts.reads_tokens || facts.is_double) return puts("cannot measure this"), 1;
    for (int64_t i = 0; i < facts.inputs; i++) input[i] = 0.5f;
    for (int64_t i = 0; i < vectors; i++) weights[i] = (vector){(float)i};
    double token = 1e30, halved = 1e30, read = 1e30;
    volatile float kept = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        token = least(token, of_tokens(stream, input, output));
        halved = least(halved, of_tokens(of_half, input, output));
        const double start = nanoseconds();
        for (int i = 0; i < TOKENS; i++) kept = total(weights, vectors)[0];
        read = least(read, (nanoseconds() - start) / TOKENS);
    }
    (void)kept;
    printf("%s %lld %.0f %.0f %.0f\n", rotrnn_model_isa(model), (long long)facts.parameters, token, read, halved);
    rotrnn_stream_free(stream);
    rotrnn_stream_free(of_half);
    rotrnn_model_free(model);
    rotrnn_model_free(half);
    return 0;
}
