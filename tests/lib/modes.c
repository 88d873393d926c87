/* Opens a model and pushes steps in every mode of arithmetic: modes FILE. Prints what depends on the mode, and nothing
 * if the logits have the same bits in each and the mode is as it was. A trap ends the program.
 */
#define _GNU_SOURCE
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rotrnn.h"

enum { STEPS = 20, TRAPS = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW };
static const char *path;

/* The logits of a model that is opened and run in a mode. Returns their number. */
static size_t logits(int rounding, int traps, float **output) {
    rotrnn_model *model;
    rotrnn_stream *stream;
    rotrnn_error error;
    fesetround(rounding);
    if (traps) feenableexcept(traps);
    if (rotrnn_model_open(&model, path, &error) || rotrnn_stream_new(&stream, model, 2, STEPS, &error)) {
        fprintf(stderr, "%s\n", error.text);
        exit(1);
    }
    const rotrnn_facts facts = rotrnn_model_facts(model);
    const size_t inputs = (size_t)(2 * STEPS * facts.inputs), outputs = (size_t)(2 * STEPS * facts.outputs);
    float *const input = calloc(inputs, sizeof *input);
    *output = calloc(outputs, sizeof **output);
    for (size_t i = 0; i < inputs; i++) input[i] = (float)(i * 37 % 64) / 16 - 2;
    if (rotrnn_push_features(stream, input, STEPS, *output)) exit(1);
    if (fegetround() != rounding || fegetexcept() != traps) printf("rounding %d: another mode is left\n", rounding);
    fedisableexcept(FE_ALL_EXCEPT);
    rotrnn_stream_free(stream);
    rotrnn_model_free(model);
    free(input);
    return outputs;
}

int main(int argc, char **argv) {
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO, FE_TONEAREST};
    float *expected, *got;
    if (argc != 2) return 2;
    path = argv[1];
    const size_t count = logits(FE_TONEAREST, 0, &expected);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        logits(modes[i], TRAPS, &got);
        if (memcmp(got, expected, count * sizeof *got)) printf("rounding %d: other logits\n", modes[i]);
        free(got);
    }
    free(expected);
    return 0;
}
