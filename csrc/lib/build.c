#define _DEFAULT_SOURCE
#include "build.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "choose.h"
#include "cuts.h"
#include "platform.h"
#include "precision.h"

enum { LINE = 64 }; /* bytes of a cache line */

bool good(const builder *b) { return b->error->status == ROTRNN_OK; }

/* -------------------------------------------------------------------------------------------------- settings */

static const char *kind_of(const part *p) {
    const json *const kind = json_member(p->settings, "op");
    return kind && kind->kind == JSON_STRING ? kind->text : "line without an op";
}

bool unsupported(builder *b, const part *p, const char *what) {
    return failed(b->error, ROTRNN_UNSUPPORTED, "%s is a %.60s%s, which the library does not support yet", p->name,
                  kind_of(p), what);
}

bool left_out(builder *b, const part *p, const char *what, const char *option) {
    return failed(b->error, ROTRNN_UNSUPPORTED, "%s is a %.60s%s, which this build leaves out (%s=0)", p->name,
                  kind_of(p), what, option);
}

static const json *setting_of(builder *b, const part *p, const char *key, bool right, const json *value) {
    if (!right && good(b))
        failed(b->error, ROTRNN_DAMAGED, "%s, a %.40s, has no %s, or one of a wrong type or value", p->name, kind_of(p),
               key);
    return value;
}

int64_t integer_of(builder *b, const part *p, const char *key, int64_t low) {
    const json *const value = json_member(p->settings, key);
    if (value && value->whole && value->integer > LARGEST && good(b))
        failed(b->error, ROTRNN_UNSUPPORTED, "%s, a %.40s, has %.40s %lld, expected at most %lld", p->name, kind_of(p),
               key, (long long)value->integer, (long long)LARGEST);
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

/* ---------------------------------------------------------------------------------------------------- arrays */

/* Whether `count` numbers are left: a small file cannot ask for gigabytes, even if its lines read the same arrays again
 * and again. */
static bool charge(builder *b, int64_t count) {
    if (count <= b->left) {
        b->left -= count;
        return true;
    }
    b->left = 0;
    return failed(b->error, ROTRNN_NO_MEMORY, "the program asks for more memory than a file of its size may");
}

double *spare(builder *b, int64_t count) {
    if (!good(b) || !charge(b, count)) return NULL;
    double *const numbers = arena_take(&b->spare, count, sizeof *numbers);
    if (!numbers) failed(b->error, ROTRNN_NO_MEMORY, "no memory to build the model");
    return numbers;
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

weights weights_of(builder *b, const char *name, int64_t *shape, int *axes) {
    const file_array *const array = good(b) ? file_find(b->file, name) : NULL;
    *axes = 0;
    if (!array) {
        if (good(b)) failed(b->error, ROTRNN_DAMAGED, "%.80s, named in the program, is missing", name);
        return (weights){NULL, false};
    }
    *axes = array->axes;
    memcpy(shape, array->shape, (size_t)array->axes * sizeof *shape);
    return (weights){array->bytes, b->file->is_double};
}

static void *taken(builder *b, int64_t count, size_t size) {
    if (!charge(b, count)) return NULL;
    void *const memory = arena_take(b->memory, count, size);
    if (memory)
        platform_large_pages(memory, (size_t)count * size);
    else
        failed(b->error, ROTRNN_NO_MEMORY, "no memory for the model");
    return memory;
}

typedef enum { UNCHANGED, HALVED_ROWS, PACKED, HALVED } layout;

/* Whether bfloat16 has numbers as large; an error if not. */
static bool fit_half(builder *b, const double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(bf16_of((float)x[i])))
            return failed(b->error, ROTRNN_UNSUPPORTED, "a matrix has the number %g, which bfloat16 does not have",
                          x[i]);
    return true;
}

/* w (out, in) in a layout, converted through double, a panel of rows at a time to stay in cache. */
static const void *by_panels(builder *b, weights w, int64_t out, int64_t in, layout how) {
    const implementation *const run = b->run;
    const int64_t panel = run->packed(1, 1); /* rows that are packed together */
    double *const some = w.at && good(b) ? spare(b, panel * in) : NULL;
    const int64_t row = how == HALVED ? pieces_of(in, 2) * 2 : in; /* numbers of a row in memory */
    const size_t size = how == HALVED || how == HALVED_ROWS ? sizeof(uint16_t) : run->number;
    char *const to = some ? taken(b, how < PACKED ? out * in : run->packed(out, row), size) : NULL;
    for (int64_t o = 0; to && o < out; o += panel) {
        const int64_t some_rows = least(panel, out - o);
        char *const at = to + (size_t)(o * row) * size;
        widen(some, from_row(w, o, in), some_rows * in);
        if ((how == HALVED || how == HALVED_ROWS) && !fit_half(b, some, some_rows * in)) return NULL;
        if (how == UNCHANGED)
            run->convert(at, some, some_rows * in);
        else if (how == HALVED_ROWS)
            for (int64_t i = 0; i < some_rows * in; i++) ((uint16_t *)at)[i] = (uint16_t)bf16_bits((float)some[i]);
        else
            (how == PACKED ? run->pack : run->pack_half)(at, some, some_rows, in);
    }
    return to;
}

const void *packed_of(builder *b, weights w, int64_t out, int64_t in) { return by_panels(b, w, out, in, PACKED); }
const void *dense_of(builder *b, weights w, int64_t out, int64_t in) {
    return by_panels(b, w, out, in, b->half ? HALVED : PACKED);
}
const void *table_of(builder *b, weights w, int64_t rows, int64_t columns) {
    return by_panels(b, w, rows, columns, b->half ? HALVED_ROWS : UNCHANGED);
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
    (void)charge(b, CHUNK_ROWS * width);
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

void keep_steps(builder *b, op *o, int64_t window, int64_t width) {
    o->window = window;
    if (window) {
        o->state = take_state(b, window * width, b->run->number);
        return;
    }
    o->kept = width * (int64_t)b->run->number;
    o->state = b->program->step_bytes;
    b->program->step_bytes += pieces_of(o->kept, LINE) * LINE;
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
    o->half = b->half;
    o->w[0] = dense_of(b, w, y.width, x.width);
    o->w[1] = stored(b, bias, y.width);
}

void emit_gated(builder *b, op_kind f, rows y, rows x, rows gate) {
    const int64_t before = b->taken;
    const rows on = take_rows(b, gate.width);
    emit(b, f, on, gate);
    emit(b, OP_PRODUCT, y, on)->z = x;
    b->taken = before;
}
