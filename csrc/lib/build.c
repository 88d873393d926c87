#define _DEFAULT_SOURCE
#include "build.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "choose.h"
#include "cuts.h"
#include "platform.h"

enum { LINE = 64 }; /* bytes of a cache line */

bool good(const builder *b) { return b->error->status == ROTRNN_OK; }

/* -------------------------------------------------------------------------------------------------- settings */

static const char *kind_of(const part *p) {
    const json *const kind = json_member(p->settings, "kind");
    return kind && kind->kind == JSON_STRING ? kind->text : "part without a kind";
}

bool is_kind(const part *p, const char *kind) { return json_is(json_member(p->settings, "kind"), kind); }

bool unsupported(builder *b, const part *p, const char *what) {
    return failed(b->error, ROTRNN_UNSUPPORTED, "%s is a %.40s%s, which the library does not support yet", p->name,
                  kind_of(p), what);
}

static const json *setting_of(builder *b, const part *p, const char *key, bool right, const json *value) {
    if (!right && good(b))
        failed(b->error, ROTRNN_DAMAGED, "%s, a %.40s, has no %s, or one of a wrong type or value", p->name, kind_of(p),
               key);
    return value;
}

part part_in(builder *b, const part *of, const char *key, const char *name) {
    const json *const settings = json_member(of->settings, key);
    part p = {.settings = setting_of(b, of, key, settings && settings->kind == JSON_OBJECT, settings)};
    const char *const dot = *of->name && *name ? "." : "";
    (void)snprintf(p.name, sizeof p.name, "%.60s%s%.30s", of->name, dot, name);
    return p;
}

int64_t integer_of(builder *b, const part *p, const char *key, int64_t low) {
    const json *const value = json_member(p->settings, key);
    const bool right = value && value->whole && value->integer >= low && value->integer <= LARGEST;
    setting_of(b, p, key, right, value);
    return right ? value->integer : low;
}

double number_of(builder *b, const part *p, const char *key) {
    const json *const value = json_member(p->settings, key);
    setting_of(b, p, key, value && value->kind == JSON_NUMBER, value);
    return value ? value->number : 0;
}

bool flag_of(builder *b, const part *p, const char *key) {
    const json *const value = json_member(p->settings, key);
    setting_of(b, p, key, value && (value->kind == JSON_TRUE || value->kind == JSON_FALSE), value);
    return value && value->kind == JSON_TRUE;
}

bool is_null(builder *b, const part *p, const char *key) {
    const json *const value = json_member(p->settings, key);
    setting_of(b, p, key, value, value);
    return !value || value->kind == JSON_NULL;
}

int64_t window_of(builder *b, const part *p) { return is_null(b, p, "window") ? 0 : integer_of(b, p, "window", 1); }

int64_t choice_of(builder *b, const part *p, const char *key, const char *names) {
    const json *const value = json_member(p->settings, key);
    const bool text = value && value->kind == JSON_STRING;
    int64_t place = 0;
    for (const char *name = names; text && name; place++) {
        const char *const end = strchr(name, ' ');
        const size_t length = end ? (size_t)(end - name) : strlen(name);
        if (strlen(value->text) == length && !memcmp(value->text, name, length)) return place;
        name = end ? end + 1 : NULL;
    }
    setting_of(b, p, key, false, value);
    return 0;
}

void ignore(const part *p, const char *names) {
    char key[32];
    for (const char *name = names; name;) {
        const char *const end = strchr(name, ' ');
        (void)snprintf(key, sizeof key, "%.*s", end ? (int)(end - name) : (int)strlen(name), name);
        (void)json_member(p->settings, key);
        name = end ? end + 1 : NULL;
    }
}

void check_width(builder *b, const part *p, const char *key, int64_t width) {
    const int64_t got = integer_of(b, p, key, 1);
    if (got != width && good(b))
        failed(b->error, ROTRNN_DAMAGED, "%s, a %.40s, has %s=%lld, expected %lld", p->name, kind_of(p), key,
               (long long)got, (long long)width);
}

/* A setting that nothing has looked at: it may change what the model computes. */
static bool check_used(builder *b, const json *value, const char *of) {
    for (const json *one = value->first; one; one = one->next) {
        if (value->kind == JSON_OBJECT && !one->used)
            return failed(b->error, ROTRNN_UNSUPPORTED, "%.60s has a setting %.60s, which the library does not know",
                          of, one->key);
        if (!check_used(b, one, one->key ? one->key : of)) return false;
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------------- arrays */

double *spare(builder *b, int64_t count) {
    double *const numbers = arena_take(&b->spare, count, sizeof *numbers);
    if (!numbers) failed(b->error, ROTRNN_NO_MEMORY, "no memory to build the model");
    return numbers;
}

bool rotations_of(builder *b, const part *p, double *P, const double *M, int64_t G, int64_t n) {
    const int status = choose(true)->rotation(&(orthogonal_forward_args){.P = P, .M = M, .G = G, .n = n});
    if (status == ROT_NO_MEMORY) return failed(b->error, ROTRNN_NO_MEMORY, "no memory to build the model");
    return status == ROT_OK || failed(b->error, ROTRNN_DAMAGED, "%s.M has numbers that are too large", p->name);
}

/* The array of that name, which the model uses; NULL with an error if it is missing or has another shape. */
static const file_array *used_of(builder *b, const part *p, const char *name, int axes, const int64_t *shape) {
    char full[128];
    (void)snprintf(full, sizeof full, "%s.%s", p->name, name);
    if (!good(b)) return NULL;
    file_array *const array = file_find(b->file, full);
    if (!array || array->axes != axes || memcmp(array->shape, shape, (size_t)axes * sizeof *shape)) {
        failed(b->error, ROTRNN_DAMAGED, "%s is missing or does not have the shape of its %.40s", full, kind_of(p));
        return NULL;
    }
    array->used = true;
    return array;
}

weights computed(const double *numbers) { return (weights){numbers, true}; }

weights from_row(weights w, int64_t row, int64_t columns) {
    const size_t number = w.is_double ? sizeof(double) : sizeof(float);
    if (w.at) w.at = (const char *)w.at + (size_t)(row * columns) * number;
    return w;
}

void widen(double *to, weights from, int64_t count) {
    if (from.is_double) {
        memcpy(to, from.at, (size_t)count * sizeof *to);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        float narrow;
        memcpy(&narrow, (const char *)from.at + i * (int64_t)sizeof narrow, sizeof narrow);
        to[i] = (double)narrow;
    }
}

static const double *array_of(builder *b, const part *p, const char *name, int axes, const int64_t *shape) {
    const file_array *const array = used_of(b, p, name, axes, shape);
    double *const numbers = array ? spare(b, array->count) : NULL;
    if (numbers) widen(numbers, (weights){array->bytes, b->file->is_double}, array->count);
    return numbers;
}

const double *vector_of(builder *b, const part *p, const char *name, int64_t n) { return array_of(b, p, name, 1, &n); }
const double *matrix_of(builder *b, const part *p, const char *name, int64_t rows, int64_t columns) {
    return array_of(b, p, name, 2, (const int64_t[]){rows, columns});
}
const double *stack_of(builder *b, const part *p, const char *name, int64_t count, int64_t rows, int64_t columns) {
    return array_of(b, p, name, 3, (const int64_t[]){count, rows, columns});
}

weights any_weights_of(builder *b, const part *p, const char *name, int64_t *shape, int *axes) {
    char full[128];
    (void)snprintf(full, sizeof full, "%s.%s", p->name, name);
    file_array *const array = good(b) ? file_find(b->file, full) : NULL;
    *axes = 0;
    if (!array) {
        if (good(b)) failed(b->error, ROTRNN_DAMAGED, "%s is missing, which the program of its layer has", full);
        return (weights){NULL, false};
    }
    array->used = true;
    *axes = array->axes;
    memcpy(shape, array->shape, (size_t)array->axes * sizeof *shape);
    return (weights){array->bytes, b->file->is_double};
}

static weights in_place(builder *b, const file_array *array) {
    return (weights){array ? array->bytes : NULL, b->file->is_double};
}

weights weights_of(builder *b, const part *p, const char *name, int64_t rows, int64_t columns) {
    return in_place(b, used_of(b, p, name, 2, (const int64_t[]){rows, columns}));
}
weights stacked_weights_of(builder *b, const part *p, const char *name, int64_t count, int64_t rows, int64_t columns) {
    return in_place(b, used_of(b, p, name, 3, (const int64_t[]){count, rows, columns}));
}

static void *taken(builder *b, int64_t count, size_t size) {
    void *const memory = arena_take(b->memory, count, size);
    if (memory)
        platform_large_pages(memory, (size_t)count * size);
    else
        failed(b->error, ROTRNN_NO_MEMORY, "no memory for the model");
    return memory;
}

/* w (out, in), packed or as it is, by way of double, a panel of rows at a time: these stay in cache. */
static const void *by_panels(builder *b, weights w, int64_t out, int64_t in, bool packs) {
    const implementation *const run = b->run;
    const int64_t panel = run->packed(1, 1); /* rows that are packed together */
    double *const some = w.at && good(b) ? spare(b, panel * in) : NULL;
    char *const to = some ? taken(b, packs ? run->packed(out, in) : out * in, run->number) : NULL;
    for (int64_t o = 0; to && o < out; o += panel) {
        const int64_t some_rows = least(panel, out - o);
        char *const at = to + (size_t)(o * in) * run->number;
        widen(some, from_row(w, o, in), some_rows * in);
        if (packs)
            run->pack(at, some, some_rows, in);
        else
            run->convert(at, some, some_rows * in);
    }
    return to;
}

const void *packed_of(builder *b, weights w, int64_t out, int64_t in) { return by_panels(b, w, out, in, true); }
const void *table_of(builder *b, weights w, int64_t rows, int64_t columns) {
    return by_panels(b, w, rows, columns, false);
}

const void *stored(builder *b, const double *from, int64_t count) {
    void *const to = from && good(b) ? taken(b, count, b->run->number) : NULL;
    if (to) b->run->convert(to, from, count);
    return to;
}

const void *stored_exact(builder *b, const double *from, int64_t count) {
    void *const to = from && good(b) ? taken(b, count, sizeof *from) : NULL;
    if (to) memcpy(to, from, (size_t)count * sizeof *from);
    return to;
}

/* --------------------------------------------------------------------------------------- registers and state */

rows take_rows(builder *b, int64_t width) {
    const rows r = {b->taken, width};
    b->taken += pieces_of(width, LINE) * LINE;
    b->program->row = most(b->program->row, b->taken);
    return r;
}

int64_t take_state(builder *b, int64_t count, size_t size) {
    const int64_t place = b->program->state_bytes;
    if (count > (INT64_MAX / 2 - place) / (int64_t)size) {
        failed(b->error, ROTRNN_NO_MEMORY, "the state of the model is larger than any memory");
        return 0;
    }
    b->program->state_bytes += pieces_of(count * (int64_t)size, LINE) * LINE;
    return place;
}

int64_t take_history(builder *b, int64_t window, int64_t width) {
    if (window) return take_state(b, window * width, b->run->number);
    const int64_t place = b->program->step_bytes;
    b->program->step_bytes += pieces_of(width * (int64_t)b->run->number, LINE) * LINE;
    return place;
}

op *emit(builder *b, op_kind kind, rows y, rows x) {
    program *const p = b->program;
    if (p->count == b->room) {
        const int64_t room = 2 * b->room + 16;
        op *const ops = taken(b, room, sizeof *ops);
        if (!ops) return &b->nowhere;
        if (p->count) memcpy(ops, p->ops, (size_t)p->count * sizeof *ops);
        p->ops = ops;
        b->room = room;
    }
    p->ops[p->count] = (op){.kind = kind, .y = y, .x = x, .z = x, .v = x};
    return p->ops + p->count++;
}

void emit_dense(builder *b, rows y, rows x, weights w, const double *bias) {
    op *const o = emit(b, OP_DENSE, y, x);
    o->count = x.width;
    o->w[0] = packed_of(b, w, y.width, x.width);
    o->w[1] = stored(b, bias, y.width);
}

void build_map(builder *b, const part *p, const char *w, const char *shift, bool bias, rows y, rows x) {
    const weights weight = weights_of(b, p, w, y.width, x.width);
    emit_dense(b, y, x, weight, bias ? vector_of(b, p, shift, y.width) : NULL);
}

static void emit_norm(builder *b, rows y, rows x, const double *scale, const double *bias, int64_t groups, double eps,
                      bool centred) {
    op *const norm = emit(b, OP_NORM, y, x);
    norm->count = groups;
    norm->choice = centred;
    norm->eps = eps;
    norm->w[0] = stored(b, scale, x.width);
    norm->w[1] = stored(b, bias || !good(b) ? bias : spare(b, x.width), x.width);
}

void emit_rms_norm(builder *b, rows y, rows x, const double *scale, int64_t groups, double eps) {
    emit_norm(b, y, x, scale, NULL, groups, eps, false);
}

void emit_layer_norm(builder *b, rows y, rows x, const double *scale, const double *bias, int64_t groups, double eps) {
    emit_norm(b, y, x, scale, bias, groups, eps, true);
}

void emit_gated(builder *b, op_kind f, rows y, rows x, rows gate) {
    const int64_t before = b->taken;
    const rows on = take_rows(b, gate.width);
    emit(b, f, on, gate);
    emit(b, OP_PRODUCT, y, on)->z = x;
    b->taken = before;
}

void emit_conv(builder *b, rows u, rows value, const double *w, const double *shift, int64_t taps) {
    const int64_t D = u.width;
    double *const by_tap = good(b) ? spare(b, taps * D) : NULL;
    if (!good(b)) return;
    for (int64_t d = 0; d < D; d++)
        for (int64_t k = 0; k < taps; k++) by_tap[k * D + d] = w[d * taps + k];
    op *const conv = emit(b, OP_CONV, u, value);
    conv->count = taps;
    conv->w[0] = stored(b, by_tap, taps * D);
    conv->w[1] = stored(b, shift, D);
    conv->state = take_state(b, (taps - 1) * D, b->run->number);
}

void emit_silu_conv(builder *b, rows u, rows value, const double *w, const double *shift, int64_t taps) {
    if (taps) emit_conv(b, u, value, w, shift, taps);
    emit(b, OP_SILU, u, taps ? u : value);
}

void emit_skip(builder *b, rows y, rows x, const double *skip) {
    emit(b, OP_SKIP, y, x)->w[0] = stored(b, skip, y.width);
}

/* ------------------------------------------------------------------------------------------ the model's parts */

static const struct {
    const char *kind;
    build_layer *build;
} LAYERS[] = {
    {"LRU", build_lru},
    {"S5", build_s5},
    {"RotRNN", build_rotrnn},
    {"RopeMemory", build_rope_memory},
    {"S4D", build_s4d},
#if LIB_S4
    {"S4", build_s4},
    {"LiquidS4", build_liquid_s4},
#endif
    {"SelectiveRotRNN", build_selective_rotrnn},
    {"Attention", build_attention},
    {"WropeMemory", build_wrope_memory},
#if LIB_FIXED_POINTS
    {"FixedPointRNN", build_fixed_point},
    {"Bedouin", build_bedouin},
    {"FPMamba", build_fpmamba},
#endif
};

/* Marks everything in a value as used. */
static void use(const json *value) {
    for (const json *one = value->first; one; one = one->next) {
        if (value->kind == JSON_OBJECT) (void)json_member(value, one->key);
        use(one);
    }
}

/* A layer's settings matter only by its program. */
static void use_settings(const json *settings) {
    for (const json *one = settings->first; one; one = one->next)
        if (strcmp(one->key, "program")) {
            (void)json_member(settings, one->key);
            use(one);
        }
}

void build_layer_of(builder *b, const part *layer, rows y, rows x) {
    if (json_member(layer->settings, "program")) {
        check_width(b, layer, "d_model", x.width);
        use_settings(layer->settings);
        build_program(b, layer, y, x);
        return;
    }
    for (size_t i = 0; i < sizeof LAYERS / sizeof *LAYERS; i++) {
        if (!is_kind(layer, LAYERS[i].kind)) continue;
        check_width(b, layer, "d_model", x.width);
        LAYERS[i].build(b, layer, y, x);
        return;
    }
    unsupported(b, layer, " without a program");
}

static void build_batch_norm(builder *b, const part *norm, rows y, rows x) {
    const int64_t D = x.width;
    const double eps = number_of(b, norm, "eps"), *const scale = vector_of(b, norm, "scale", D);
    const double *const bias = vector_of(b, norm, "bias", D);
    const double *const mean = vector_of(b, norm, "running_mean", D);
    const double *const variance = vector_of(b, norm, "running_var", D);
    double *const gain = spare(b, D);
    ignore(norm, "momentum");
    if (!good(b)) return;
    for (int64_t d = 0; d < D; d++) gain[d] = scale[d] / sqrt(variance[d] + eps);
    op *const o = emit(b, OP_AFFINE, y, x);
    o->w[0] = stored(b, gain, D);
    o->w[1] = stored(b, mean, D);
    o->w[2] = stored(b, bias, D);
}

/* y <- norm(x) */
static void build_norm(builder *b, const part *norm, rows y, rows x) {
    const int64_t D = x.width;
    if (is_kind(norm, "BatchNorm")) {
        check_width(b, norm, "d_model", D);
        build_batch_norm(b, norm, y, x);
    } else if (is_kind(norm, "LayerNorm")) {
        check_width(b, norm, "d_model", D);
        const double *const scale = vector_of(b, norm, "scale", D), *const bias = vector_of(b, norm, "bias", D);
        emit_layer_norm(b, y, x, scale, bias, 1, number_of(b, norm, "eps"));
    } else if (is_kind(norm, "RMSNorm")) {
        check_width(b, norm, "d_model", D);
        emit_rms_norm(b, y, x, vector_of(b, norm, "scale", D), 1, number_of(b, norm, "eps"));
    } else
        unsupported(b, norm, "");
}

/* y = x w^T + bias of the arrays below `name`. */
static void build_dense(builder *b, const part *of, const char *name, rows y, rows x) {
    part dense = *of;
    (void)snprintf(dense.name, sizeof dense.name, "%.60s.%.30s", of->name, name);
    const weights w = weights_of(b, &dense, "w", y.width, x.width);
    emit_dense(b, y, x, w, vector_of(b, &dense, "bias", y.width));
}

/* The gated linear unit of GELU(y), in the place of y. */
static void build_gate(builder *b, const part *gate, rows y) {
    enum { FULL, HALF1, HALF2 };
    const int64_t D = y.width, form = choice_of(b, gate, "form", "full half1 half2");
    const rows z = take_rows(b, D), on = take_rows(b, D);
    check_width(b, gate, "d_model", D);
    ignore(gate, "dropout over_time site");
    emit(b, OP_GELU, z, y);
    build_dense(b, gate, "gate", on, z);
    if (form == FULL) build_dense(b, gate, "value", y, z);
    emit_gated(b, OP_SIGMOID, y, form == HALF1 ? z : y, on);
}

static void ignore_dropout(const part *dropout) { ignore(dropout, "rate over_time site"); }

/* y <- gate(y) */
static void build_end(builder *b, const part *gate, rows y) {
    if (is_kind(gate, "Gate"))
        build_gate(b, gate, y);
    else if (is_kind(gate, "Activation")) {
        const part dropout = part_in(b, gate, "dropout", "");
        emit(b, OP_GELU, y, y);
        ignore_dropout(&dropout);
        if (!is_kind(&dropout, "Dropout")) unsupported(b, &dropout, "");
    } else if (is_kind(gate, "Dropout"))
        ignore_dropout(gate);
    else
        unsupported(b, gate, "");
}

/* x <- x + gate(layer(norm(x))), or norm(x + gate(layer(x))). */
static void build_residual(builder *b, const part *block, rows x) {
    const rows z = take_rows(b, x.width), y = take_rows(b, x.width);
    const bool prenorm = flag_of(b, block, "prenorm");
    const part norm = part_in(b, block, "norm", "norm"), layer = part_in(b, block, "layer", "layer");
    const part gate = part_in(b, block, "gate", "gate");
    if (prenorm) build_norm(b, &norm, z, x);
    build_layer_of(b, &layer, y, prenorm ? z : x);
    build_end(b, &gate, y);
    const rows sum = prenorm ? x : y;
    emit(b, OP_SUM, sum, prenorm ? y : x)->z = sum;
    if (!prenorm) build_norm(b, &norm, x, y);
}

/* x <- x + down(GELU(up(norm2(x)))) after the residual block; GELU(up) value if gated, a setting that is not in files
 * from before there was a choice. */
static void build_feed_forward(builder *b, const part *block, rows x) {
    const part mixing = part_in(b, block, "mixing", ""), norm = part_in(b, block, "norm2", "norm2");
    const part net = part_in(b, block, "feed_forward", "feed_forward");
    if (!is_kind(&mixing, "ResidualBlock")) unsupported(b, &mixing, "");
    if (!is_kind(&net, "FeedForward")) unsupported(b, &net, "");
    if (!good(b)) return;
    const int64_t before = b->taken;
    build_residual(b, &mixing, x);
    b->taken = before;
    const bool gated = json_member(net.settings, "gated") && flag_of(b, &net, "gated");
    const rows z = take_rows(b, x.width), up = take_rows(b, integer_of(b, &net, "expand", 1) * x.width);
    check_width(b, &net, "d_model", x.width);
    ignore(&net, "dropout over_time site");
    build_norm(b, &norm, z, x);
    build_dense(b, &net, "up", up, z);
    if (gated) {
        const rows value = take_rows(b, up.width);
        build_dense(b, &net, "value", value, z);
        emit_gated(b, OP_GELU, value, value, up);
        build_dense(b, &net, "down", z, value);
    } else {
        emit(b, OP_GELU, up, up);
        build_dense(b, &net, "down", z, up);
    }
    emit(b, OP_SUM, x, z)->z = x;
}

static void build_blocks(builder *b, const part *stack, rows x) {
    const json *const blocks = json_member(stack->settings, "blocks");
    if (!is_kind(stack, "ResidualStack") || !blocks || blocks->kind != JSON_LIST) {
        failed(b->error, ROTRNN_DAMAGED, "the stack is a %.40s, expected a ResidualStack", kind_of(stack));
        return;
    }
    int64_t place = 0;
    for (const json *one = blocks->first; one && good(b); one = one->next, place++) {
        part block = {.settings = one};
        const int64_t before = b->taken;
        (void)snprintf(block.name, sizeof block.name, "blocks.%lld", (long long)place);
        if (is_kind(&block, "ResidualBlock"))
            build_residual(b, &block, x);
        else if (is_kind(&block, "FeedForwardBlock"))
            build_feed_forward(b, &block, x);
        else
            unsupported(b, &block, "");
        b->taken = before;
    }
}

static void build_encoder(builder *b, const part *encoder) {
    program *const p = b->program;
    p->tokens = is_kind(encoder, "Embedding");
    if (!p->tokens && !is_kind(encoder, "Dense")) {
        unsupported(b, encoder, "");
        return;
    }
    p->inputs = integer_of(b, encoder, p->tokens ? "vocab" : "d_in", 1);
    p->width = integer_of(b, encoder, p->tokens ? "d_model" : "d_out", 1);
    if (p->tokens)
        p->encoder[0] = table_of(b, weights_of(b, encoder, "table", p->inputs, p->width), p->inputs, p->width);
    else
        p->encoder[0] = packed_of(b, weights_of(b, encoder, "w", p->width, p->inputs), p->width, p->inputs);
    p->encoder[1] = stored(b, vector_of(b, encoder, "bias", p->width), p->width);
}

static void build_pool(builder *b, const part *model) {
    program *const p = b->program;
    const part pool = part_in(b, model, "pool", "pool");
    p->pool = is_kind(&pool, "MeanPool") ? POOL_MEAN : POOL_LAST;
    if (p->pool == POOL_LAST && !is_kind(&pool, "LastPool")) unsupported(b, &pool, "");
    p->pool_state = take_state(b, p->width, sizeof(double));
}

/* The matrix of a tied head is the table of the encoder. */
static void build_head(builder *b, const part *head, const part *encoder) {
    program *const p = b->program;
    const bool tied = is_kind(head, "TiedDense");
    if (!is_kind(head, "Dense") && !(tied && p->tokens)) unsupported(b, head, "");
    check_width(b, head, "d_in", p->width);
    p->outputs = integer_of(b, head, "d_out", 1);
    const weights w = weights_of(b, tied ? encoder : head, tied ? "table" : "w", p->outputs, p->width);
    p->head[0] = packed_of(b, w, p->outputs, p->width);
    p->head[1] = stored(b, vector_of(b, head, "bias", p->outputs), p->outputs);
}

/* Whether the model is of one of these kinds, which end with NULL. */
static bool is_one_of(const part *model, const char *const *kinds) {
    while (*kinds && !is_kind(model, *kinds)) kinds++;
    return *kinds;
}

/* Kinds of models that pool, and those with an output for each step. A stream gives the head's outputs as they are:
   what they mean, as the quantiles of a regression, is up to the caller. */
static const char *const POOLING[] = {"SequenceClassifier", "MultiLabelClassifier", "Regressor", NULL};
static const char *const STEPWISE[] = {"Tagger", "BitTagger", "LanguageModel", "StepRegressor", NULL};

static void build_model(builder *b, const part *model) {
    program *const p = b->program;
    const bool pools = is_one_of(model, POOLING);
    if (!pools && !is_one_of(model, STEPWISE)) {
        failed(b->error, ROTRNN_UNSUPPORTED, "the model is a %.40s, which the library does not support yet",
               kind_of(model));
        return;
    }
    const part encoder = part_in(b, model, "encoder", "encoder"), stack = part_in(b, model, "stack", "blocks");
    const part head = part_in(b, model, "head", "head");
    (void)take_state(b, 2, sizeof(int64_t)); /* the counts of run.h */
    build_encoder(b, &encoder);
    if (!good(b)) return;
    p->x = p->last = take_rows(b, p->width);
    build_blocks(b, &stack, p->x);
    if (!is_null(b, model, "norm")) {
        const part norm = part_in(b, model, "norm", "norm");
        p->last = take_rows(b, p->width);
        build_norm(b, &norm, p->last, p->x);
    }
    if (pools) build_pool(b, model);
    build_head(b, &head, &encoder);
    (void)json_member(model->settings, "objective");
    (void)json_member(model->settings, "quantiles");
}

bool build(builder *b) {
    const part model = {.settings = json_member(b->file->facts, "model")};
    build_model(b, &model);
    if (good(b)) check_used(b, model.settings, "the model");
    for (int64_t i = 0; i < b->file->count; i++)
        if (!b->file->arrays[i].used)
            failed(b->error, ROTRNN_DAMAGED, "the file has %.80s, which the model does not", b->file->arrays[i].name);
    arena_free(&b->spare);
    return good(b);
}
