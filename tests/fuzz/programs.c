/* Programs for the C library, under libFuzzer: make fuzz-c. The bytes are lines (csrc/lib/lines.c): an op, its inputs,
 * and its settings. Programs that fit read two sequences of three steps.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { ARRAYS = 16, ROOM = 1 << 14 };

static const struct {
    const char *name;
    int inputs;
} OPS[] = {
    {"Dense", 3},
    {"Skip", 3},
    {"RMSNorm", 2},
    {"LayerNorm", 3},
    {"SiLU", 1},
    {"GELU", 1},
    {"Sigmoid", 1},
    {"LogSigmoid", 1},
    {"Softplus", 1},
    {"Affine", 1},
    {"Decay", 2},
    {"Product", 2},
    {"Sum", 2},
    {"Bonus", 3},
    {"GLU", 2},
    {"SwiGLU", 2},
    {"GeGLU", 2},
    {"Split", 1},
    {"Concat", 2},
    {"Reshape", 1},
    {"BatchNorm", 4},
    {"Conv", 3},
    {"Scan", 2},
    {"Elman", 2},
    {"LSTMCells", 2},
    {"GRUCells", 3},
    {"SelectiveScan", 6},
    {"SsdScan", 6},
    {"DeltaRule", 7},
    {"MatrixMemory", 5},
    {"ScalarMemory", 2},
    {"System", 8},
    {"Bank", 3},
    {"DplrBank", 3},
    {"Products", 1},
    {"TurningScan", 6},
    {"Rotary", 1},
    {"Attention", 3},
    {"Wrope", 1},
    {"FixedPoint", 7},
    {"MatrixFixedPoint", 9},
    {"Frequencies", 1},
    {"LogDecay", 2},
    {"StepAngles", 2},
    {"OfHeads", 2},
    {"Turn", 3},
    {"TrapezoidScan", 8},
    {"BlockDense", 3},
    {"DecayGain", 1},
    {"OscillatorScan", 3},
    {"UnitScan", 3},
    {"Softmax", 1},
    {"Polar", 2},
    {"PermutedScan", 4},
    {"HoldScan", 7},
    {"Tanh", 1},
    {"LogRadius", 1},
    {"SignedAngles", 2},
    {"History", 3},
};
enum { OP_KINDS = sizeof OPS / sizeof *OPS };

/* Shapes of the arrays; 0 ends one. */
static const int64_t SHAPES[ARRAYS][4] = {{4, 4},    {4},       {8, 4}, {8},    {16, 4},      {4, 3},
                                          {2},       {2, 8, 2}, {4, 2}, {2, 4}, {1, 2, 4, 4}, {2, 6, 2, 4},
                                          {2, 4, 2}, {22, 4},   {5},    {9, 4}};

typedef struct {
    char text[ROOM];
    size_t length;
} writer;

static void say(writer *w, const char *format, ...) {
    va_list values;
    va_start(values, format);
    const int count = vsnprintf(w->text + w->length, sizeof w->text - w->length, format, values);
    va_end(values);
    if (count > 0 && (size_t)count < sizeof w->text - w->length) w->length += (size_t)count;
}

typedef struct {
    const uint8_t *at, *end;
} input;

static int byte_of(input *in) { return in->at < in->end ? *in->at++ : 0; }

/* The settings of a fixed point. */
static void say_iteration(writer *w, int first, int second, bool vector) {
    static const char *const mixers[] = {"householder", "dplr",  "low_rank", "kronecker", "monarch",
                                         "orthogonal",  "dense", "mixture",  "rotation"};
    static const char *const flags[] = {"false", "true"};
    static const char *const maps[] = {"\"delta\",\"u\",\"alpha\",\"B\",\"C\"", "\"delta\",\"C\"",
                                       "\"delta\",\"B\",\"C\",\"u\"", "\"delta\",\"B\",\"C\""};
    static const char *const of_mixer[] = {",\"maps\":[\"u\",\"alpha\"]", ",\"maps\":[\"u\"]", "", ""};
    say(w, ",\"mixer\":\"%s\",\"rank\":%d,\"largest\":1,\"unit_eps\":%d,\"spectral\":%s", mixers[first % 9],
        1 + first / 9 % 3, first / 27 % 2, flags[first / 54 % 2]);
    say(w, ",\"tol\":0.1,\"max_iterations\":5,\"damping\":\"adaptive\",\"stop\":\"%s\",\"silu\":%s,\"direct\":%s",
        second & 1 ? "quantile" : "sequence", flags[second / 8 % 2], flags[second / 32 % 2]);
    if (vector)
        say(w, "%s,\"scaled\":%s", of_mixer[second / 2 % 4], flags[second / 64 % 2]);
    else
        say(w, ",\"maps\":[%s],\"negative\":%s,\"softplus\":true,\"unit\":true,\"eps\":1", maps[second / 2 % 4],
            flags[second / 16 % 2]);
}

/* A line. A register is counted from the next one down, so that inputs are near and lines stay what they are where
 * others are added; from 192 on, an array, and 255 is missing. */
static void say_line(writer *w, input *in, int *next) {
    const int op = byte_of(in) % OP_KINDS;
    say(w, "%s{\"op\":\"%s\",\"in\":[", *next > 1 ? "," : "", OPS[op].name);
    for (int i = 0; i < OPS[op].inputs; i++) {
        const int from = byte_of(in);
        say(w, i ? "," : "");
        if (from == 255)
            say(w, "null");
        else if (from >= 192)
            say(w, "\"p%02d\"", from % ARRAYS);
        else
            say(w, "%d", from % 32 == 31 ? 0 : *next - 1 - from % 32);
    }
    say(w, "]");
    const int first = byte_of(in), second = byte_of(in);
    int made = 1;
    if (!strcmp(OPS[op].name, "Split")) {
        made = 2;
        say(w, ",\"sizes\":[%d,%d],\"axis\":%d", first % 9, second % 9, -1 - first / 64);
    } else if (!strcmp(OPS[op].name, "Reshape"))
        say(w,
            first & 128  ? ",\"shape\":[%d]"
            : first & 64 ? ",\"shape\":[%d,%d]"
                         : ",\"shape\":[%d,%d,%d]",
            first % 9, second % 9, second / 16);
    else if (!strcmp(OPS[op].name, "Decay"))
        say(w, ",\"rate\":-%d.5", first);
    else if (!strcmp(OPS[op].name, "Affine"))
        say(w, ",\"scale\":%d,\"shift\":%d.5", first - 128, second - 128);
    else if (!strcmp(OPS[op].name, "RMSNorm"))
        say(w, ",\"eps\":%d.5,\"gain\":%d", first, second);
    else if (!strcmp(OPS[op].name, "LayerNorm"))
        say(w, ",\"eps\":%d.5", first);
    else if (!strcmp(OPS[op].name, "Elman"))
        say(w, ",\"activation\":\"%s\",\"reverse\":%s", first & 1 ? "tanh" : "relu", second & 1 ? "true" : "false");
    else if (!strcmp(OPS[op].name, "SelectiveScan"))
        say(w, ",\"negative\":false%s", first == 1 ? ",\"window\":3" : "");
    else if (!strcmp(OPS[op].name, "SsdScan"))
        say(w, ",\"negative\":%s", first & 1 ? "true" : "false");
    else if (!strcmp(OPS[op].name, "Frequencies"))
        say(w, ",\"base\":%d", first);
    else if (!strcmp(OPS[op].name, "LogDecay"))
        say(w, ",\"rate\":\"%s\",\"least\":%d", first & 1 ? "softplus" : "rational", second);
    else if (!strcmp(OPS[op].name, "Turn"))
        say(w, ",\"pairs\":\"%s\"", first & 1 ? "adjacent" : "halves");
    else if (!strcmp(OPS[op].name, "System")) {
        say(w, ",\"window\":%s,\"exact\":%s,\"weight\":%d", first & 1 ? "3" : "null",
            second & 1 ? "[1,0.5,0.25,0.5]" : "null", first);
        if (second & 2) {
            made = 2;
            say(w, ",\"hidden\":true");
        }
    } else if (!strcmp(OPS[op].name, "Bank"))
        say(w, ",\"window\":%s", first & 1 ? "3" : "null");
    else if (!strcmp(OPS[op].name, "TurningScan"))
        say(w, ",\"bounded\":%s,\"window\":%s", first & 1 ? "true" : "false", first == 2 ? "2" : "null");
    else if (!strcmp(OPS[op].name, "DplrBank"))
        say(w, ",\"drives\":%d", first % 4);
    else if (!strcmp(OPS[op].name, "Products"))
        say(w, ",\"degree\":%d", first % 5);
    else if (!strcmp(OPS[op].name, "Rotary"))
        say(w, ",\"heads\":%d,\"base\":%d.5", first % 5, second);
    else if (!strcmp(OPS[op].name, "Attention"))
        say(w, ",\"heads\":%d,\"window\":%s", first % 5, second & 1 ? "2" : "null");
    else if (!strcmp(OPS[op].name, "Wrope"))
        say(w, ",\"form\":\"%s\",\"length\":%d,\"window\":%s", first & 1 ? "warped" : "blend", first,
            second & 1 ? "2" : "null");
    else if (!strcmp(OPS[op].name, "History")) {
        static const char *const angles[] = {"uniform", "warped", "blend", "blend_printed", "reversed", "none"};
        say(w, ",\"angles\":\"%s\",\"length\":%d,\"window\":%s,\"heads\":%d,\"counted\":true", angles[first % 6],
            1 + first / 6, second & 1 ? "2" : "null", second / 2 % 4);
    } else if (strstr(OPS[op].name, "FixedPoint"))
        say_iteration(w, first, second, OPS[op].inputs == 7);
    else if (!strcmp(OPS[op].name, "ScalarMemory"))
        say(w, ",\"forget\":\"%s\"", first & 1 ? "exp" : "sigmoid");
    say(w, "}");
    *next += made;
}

static void say_model(writer *w, input *in) {
    int next = 1;
    say(w, "{\"program\":{\"tokens\":false,\"encoder\":[\"p08\",\"p01\"],\"head\":[\"p09\",\"p06\"],\"pool\":%s",
        byte_of(in) & 1 ? "\"mean\"" : "null");
    say(w, ",\"lines\":[");
    while (in->at < in->end && w->length < ROOM - 1024) say_line(w, in, &next);
    say(w, "],\"y\":%d}}", next - 1);
}

/* The arrays of the file, sorted by name, of numbers that repeat. */
static int64_t fill(file_array *arrays) {
    static char names[ARRAYS][8];
    static float numbers[512];
    for (int i = 0; i < 512; i++) numbers[i] = (float)(i * 37 % 64 - 32) / 32;
    for (int i = 0; i < ARRAYS; i++) {
        file_array *const a = arrays + i;
        *a = (file_array){.name = names[i], .bytes = numbers, .count = 1};
        (void)snprintf(names[i], sizeof names[i], "p%02d", i);
        for (int k = 0; k < 4 && SHAPES[i][k]; k++) {
            a->shape[a->axes++] = SHAPES[i][k];
            a->count *= SHAPES[i][k];
        }
    }
    return ARRAYS;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static writer text;
    file_array arrays[ARRAYS];
    file f = {.arrays = arrays, .count = fill(arrays), .numbers = 1};
    rotrnn_error error = {0};
    arena memory = {0};
    input in = {data, data + size};
    text.length = 0;
    say_model(&text, &in);
    f.facts = json_read(&memory, text.text, text.length, &error);
    if (!f.facts) abort();                                      /* it is JSON */
    rotrnn_model *const model = model_of(&f, size % 2, &error); /* with matrices in bfloat16, too */
    rotrnn_stream *stream = NULL;
    if (model && !rotrnn_stream_new(&stream, model, 2, 3, &error)) {
        float x[2 * 3 * 2], y[2 * 3 * 2];
        for (int i = 0; i < 12; i++) x[i] = (float)i / 8 - 1;
        if (rotrnn_push_features(stream, x, 3, y)) abort();
    } else if (error.status != ROTRNN_DAMAGED && error.status != ROTRNN_UNSUPPORTED && error.status != ROTRNN_NO_MEMORY)
        abort();
    rotrnn_stream_free(stream);
    rotrnn_model_free(model);
    arena_free(&memory);
    return 0;
}
