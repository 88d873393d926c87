/* Programs of layers for the C library, under libFuzzer: make fuzz-c. The bytes are lines (csrc/lib/lines.c): an op,
 * its inputs, and its settings. Programs that fit read two sequences of three steps.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WIDTH = 4, PARAMETERS = 10, ROOM = 1 << 14 };

static const struct {
    const char *name;
    int inputs;
} OPS[] = {
    {"Dense", 3},   {"Skip", 2},       {"RMSNorm", 2},      {"LayerNorm", 1},    {"SiLU", 1},      {"GELU", 1},
    {"Sigmoid", 1}, {"LogSigmoid", 1}, {"Softplus", 1},     {"Affine", 1},       {"Decay", 2},     {"Product", 2},
    {"Sum", 2},     {"GLU", 2},        {"SwiGLU", 2},       {"Split", 1},        {"Reshape", 1},   {"Rates", 1},
    {"Columns", 2}, {"Conv", 3},       {"Scan", 2},         {"Elman", 2},        {"LSTMCells", 2}, {"SelectiveScan", 6},
    {"SsdScan", 6}, {"DeltaRule", 5},  {"MatrixMemory", 5}, {"ScalarMemory", 2},
};
enum { OP_KINDS = sizeof OPS / sizeof *OPS };

/* Shapes of the layer's parameters; 0 ends one. */
static const int64_t SHAPES[PARAMETERS][3] = {{4, 4}, {4}, {8, 4},    {8},    {16, 4},
                                              {4, 3}, {2}, {2, 8, 2}, {4, 2}, {2, 4}};

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

/* A line. A register is counted from the next one down, so that inputs are near and lines stay what they are where
 * others are added; from 224 on, a parameter, and 255 is missing. */
static void say_line(writer *w, input *in, int *next) {
    const int op = byte_of(in) % OP_KINDS;
    say(w, "%s{\"op\":\"%s\",\"in\":[", *next > 1 + PARAMETERS ? "," : "", OPS[op].name);
    for (int i = 0; i < OPS[op].inputs; i++) {
        const int from = byte_of(in);
        const int at = from == 255       ? -1
                       : from >= 224     ? 1 + from % PARAMETERS
                       : from % 32 == 31 ? 0
                                         : *next - 1 - from % 32;
        say(w, "%s%d", i ? "," : "", at);
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
    else if (!strcmp(OPS[op].name, "Affine"))
        say(w, ",\"scale\":%d,\"shift\":%d.5", first - 128, second - 128);
    else if (!strcmp(OPS[op].name, "RMSNorm"))
        say(w, ",\"eps\":%d.5,\"gain\":%d", first, second);
    else if (!strcmp(OPS[op].name, "LayerNorm"))
        say(w, ",\"eps\":%d.5", first);
    else if (!strcmp(OPS[op].name, "Elman"))
        say(w, ",\"activation\":\"%s\",\"reverse\":%s", first & 1 ? "tanh" : "relu", second & 1 ? "true" : "false");
    else if (!strcmp(OPS[op].name, "SelectiveScan"))
        say(w, ",\"window\":%s,\"negative\":false", first == 1 ? "3" : "null");
    else if (!strcmp(OPS[op].name, "SsdScan"))
        say(w, ",\"negative\":%s", first & 1 ? "true" : "false");
    else if (!strcmp(OPS[op].name, "ScalarMemory"))
        say(w, ",\"forget\":\"%s\"", first & 1 ? "exp" : "sigmoid");
    say(w, "}");
    *next += made;
}

static void say_model(writer *w, input *in) {
    int next = 1 + PARAMETERS;
    say(w, "{\"model\":{\"kind\":\"Tagger\",\"encoder\":{\"kind\":\"Dense\",\"d_in\":2,\"d_out\":4},\"norm\":null,"
           "\"head\":{\"kind\":\"Dense\",\"d_in\":4,\"d_out\":2},\"stack\":{\"kind\":\"ResidualStack\",\"blocks\":"
           "[{\"kind\":\"ResidualBlock\",\"prenorm\":true,\"norm\":{\"kind\":\"RMSNorm\",\"d_model\":4,\"eps\":1},"
           "\"gate\":{\"kind\":\"Dropout\",\"rate\":0},\"layer\":{\"kind\":\"Own\",\"d_model\":4,\"program\":{"
           "\"parameters\":[");
    for (int i = 0; i < PARAMETERS; i++) say(w, "%s\"p%d\"", i ? "," : "", i);
    say(w, "],\"lines\":[");
    while (in->at < in->end && w->length < ROOM - 1024) say_line(w, in, &next);
    say(w, "],\"y\":%d}}}]}}}", next - 1);
}

/* The arrays of the file, sorted by name, of numbers that repeat. */
static int64_t fill(file_array *arrays) {
    static char names[PARAMETERS][32];
    static float numbers[256];
    static const file_array AROUND[] = {
        {.name = "blocks.0.norm.scale", .shape = {4}, .count = 4, .axes = 1},
        {.name = "encoder.bias", .shape = {4}, .count = 4, .axes = 1},
        {.name = "encoder.w", .shape = {4, 2}, .count = 8, .axes = 2},
        {.name = "head.bias", .shape = {2}, .count = 2, .axes = 1},
        {.name = "head.w", .shape = {2, 4}, .count = 8, .axes = 2},
    };
    int64_t count = 0;
    for (int i = 0; i < 256; i++) numbers[i] = (float)(i * 37 % 64 - 32) / 32;
    for (int i = 0; i < PARAMETERS; i++) {
        file_array *const a = arrays + count++;
        *a = (file_array){.name = names[i], .bytes = numbers, .count = 1};
        (void)snprintf(names[i], sizeof names[i], "blocks.0.layer.p%d", i);
        for (int k = 0; k < 3 && SHAPES[i][k]; k++) {
            a->shape[a->axes++] = SHAPES[i][k];
            a->count *= SHAPES[i][k];
        }
    }
    for (size_t i = 0; i < sizeof AROUND / sizeof *AROUND; i++) {
        arrays[count] = AROUND[i];
        arrays[count++].bytes = numbers;
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static writer text;
    file_array arrays[PARAMETERS + 8];
    file f = {.arrays = arrays, .count = fill(arrays), .numbers = 1};
    rotrnn_error error = {0};
    arena memory = {0};
    input in = {data, data + size};
    text.length = 0;
    say_model(&text, &in);
    f.facts = json_read(&memory, text.text, text.length, &error);
    if (!f.facts) abort(); /* it is JSON */
    rotrnn_model *const model = model_of(&f, &error);
    rotrnn_stream *stream = NULL;
    if (model && !rotrnn_stream_new(&stream, model, 2, 0, &error)) {
        float x[2 * 3 * 2], y[2 * 3 * 2];
        for (int i = 0; i < 12; i++) x[i] = (float)i / 8 - 1;
        if (rotrnn_push_features(stream, x, 3, y)) abort();
    } else if (error.status != ROTRNN_DAMAGED && error.status != ROTRNN_UNSUPPORTED)
        abort();
    rotrnn_stream_free(stream);
    rotrnn_model_free(model);
    arena_free(&memory);
    return 0;
}
