/* Reads a model's program from its file (python/rotrnn/models/listing.py): each line becomes instructions. Layers are
 * unknown here. In the file a program is
 *
 *     {"tokens": false, "encoder": ["encoder.w", "encoder.bias"], "pool": "mean", "head": ["head.w", "head.bias"],
 *      "y": 9, "lines": [{"op": "Dense", "in": [0, "blocks.0.layer.W_in", null]}, ...]}
 *
 * An input is the number of a register, the name of an array, or null if not given. Register 0 is the output of the
 * encoder, then come the outputs of the lines in order; the head reads register y. A line has the settings of its
 * instruction. All shapes follow from the shapes of the arrays, and each line checks its shapes by `expect`.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cuts.h"
#include "read.h"

/* ------------------------------------------------------------------------------------------------- the grammar */

bool expect(reader *r, bool right) {
    if (!right && good(r->b))
        failed(r->b->error, ROTRNN_DAMAGED, "%s of the program, %.60s, does not fit its inputs or settings", r->p.name,
               r->op);
    return right && good(r->b);
}

int64_t numbers_of(const value *v) {
    int64_t count = 1;
    for (int i = 0; i < v->axes; i++) count *= v->shape[i];
    return count;
}

static const value *checked(reader *r, int64_t i, bool fixed, int axes) {
    const value *const v = r->in[i];
    return expect(r, v && v->fixed == fixed && v->axes > 0 && (!axes || v->axes == axes)) ? v : &r->nothing;
}
const value *steps(reader *r, int64_t i, int axes) { return checked(r, i, false, axes); }
const value *fixed(reader *r, int64_t i, int axes) { return checked(r, i, true, axes); }

bool is_matrix_or_none(const reader *r, int64_t i, int64_t rows, int64_t columns) {
    const value *const v = r->in[i];
    return !v || (v->fixed && is(v, 0, rows) && (columns ? v->axes == 2 && is(v, 1, columns) : v->axes == 1));
}

bool is(const value *v, int i, int64_t size) { return i < v->axes && v->shape[i] == size; }

bool alike(const value *x, const value *y) {
    return x->axes == y->axes && !memcmp(x->shape, y->shape, (size_t)x->axes * sizeof *x->shape);
}

const double *doubles(reader *r, const value *v) {
    if (!v || !good(r->b)) return NULL;
    double *const numbers = spare(r->b, most(numbers_of(v), 1));
    if (numbers) widen(numbers, v->numbers, numbers_of(v));
    return numbers;
}

const double *transposed(reader *r, const value *w) {
    const double *const from = doubles(r, w);
    const int64_t rows = w->shape[0], columns = w->shape[1];
    double *const to = good(r->b) ? spare(r->b, rows * columns) : NULL;
    for (int64_t i = 0; to && i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
    return to;
}

/* `count` times the same number; NULL with an error. */
static const double *repeated(reader *r, double number, int64_t count) {
    double *const numbers = good(r->b) ? spare(r->b, count) : NULL;
    for (int64_t i = 0; numbers && i < count; i++) numbers[i] = number;
    return numbers;
}

const void *packed_input(reader *r, int64_t i) {
    const value *const w = r->in[i];
    return w && good(r->b) ? packed_of(r->b, w->numbers, w->shape[0], w->shape[1]) : NULL;
}

int integers_of(reader *r, const char *key, int64_t *to, int most_of_them) {
    const json *const list = json_member(r->p.settings, key);
    int count = 0;
    if (!expect(r, list && list->kind == JSON_LIST)) return 0;
    for (const json *one = list->first; one; one = one->next, count++) {
        if (count == most_of_them) {
            failed(r->b->error, ROTRNN_UNSUPPORTED,
                   "%s of the program, %.60s, has too many numbers in %s, expected at most %d", r->p.name, r->op, key,
                   most_of_them);
            return 0;
        }
        if (!expect(r, one->whole && one->integer > 0 && one->integer < INT32_MAX)) return 0;
        to[count] = one->integer;
    }
    return expect(r, count) ? count : 0;
}

/* ----------------------------------------------------------------------------------------------------- outputs */

/* The next register, of a shape without zeros. */
static value *next(reader *r, const int64_t *shape, int axes) {
    int64_t count = 1;
    bool fits = r->known < r->count && axes > 0 && axes <= MOST_AXES;
    for (int i = 0; fits && i < axes; i++)
        fits = shape[i] > 0 && !__builtin_mul_overflow(count, shape[i], &count) && count <= LARGEST;
    if (!expect(r, fits)) return &r->nowhere;
    value *const v = r->registers + r->known++;
    v->axes = axes;
    v->whole = v - r->registers;
    memcpy(v->shape, shape, (size_t)axes * sizeof *shape);
    return v;
}

rows rows_for(reader *r, int64_t width) {
    for (int64_t i = 0; i < r->free_count; i++) {
        const rows found = r->free[i];
        if (found.width != width) continue;
        r->free[i] = r->free[--r->free_count];
        return found;
    }
    return take_rows(r->b, width);
}
void give_back(reader *r, rows some) {
    if (good(r->b) && some.width) r->free[r->free_count++] = some;
}

rows make_like(reader *r, const value *like) {
    value *const v = next(r, like->shape, like->axes);
    if (good(r->b)) v->rows = rows_for(r, numbers_of(v));
    return v->rows;
}
rows make(reader *r, int64_t width) { return make_like(r, &(value){.shape = {width}, .axes = 1}); }
rows make_matrix(reader *r, int64_t count, int64_t width) {
    return make_like(r, &(value){.shape = {count, width}, .axes = 2});
}

void emit_columns(builder *b, rows y, rows x, int64_t from) { emit(b, OP_COLUMNS, y, x)->from = from; }

/* Whether no other input of the line and no later line reads the rows of input i. */
static bool is_over(const reader *r, int64_t i) {
    const value *const v = r->in[i];
    for (int64_t j = 0; j < MOST_INPUTS; j++)
        if (j != i && r->in[j] && !r->in[j]->fixed && r->in[j]->whole == v->whole) return false;
    return r->registers[v->whole].last <= r->line;
}

rows make_copy(reader *r, int64_t i) {
    const value *const x = r->in[i];
    if (!good(r->b)) return (rows){0, 0};
    if (!is_over(r, i)) {
        const rows to = make_like(r, x);
        if (good(r->b)) emit_columns(r->b, to, x->rows, 0);
        return to;
    }
    value *const v = next(r, x->shape, x->axes);
    if (good(r->b)) v->rows = x->rows, v->whole = x->whole;
    return v->rows;
}

rows copied(reader *r, int64_t i) {
    if (!good(r->b)) return (rows){0, 0};
    const rows to = rows_for(r, r->in[i]->rows.width);
    emit_columns(r->b, to, r->in[i]->rows, 0);
    return to;
}

#if LIB_HISTORIES
rows make_adjacent(reader *r, rows x) {
    const rows y = make(r, x.width);
    if (good(r->b)) (void)emit(r->b, OP_PLANES, y, x);
    return y;
}
rows halves_for(reader *r, rows x) {
    if (!good(r->b)) return (rows){0, 0};
    const rows y = rows_for(r, x.width);
    emit(r->b, OP_PLANES, y, x)->choice = 1;
    return y;
}
#endif

int64_t state_for(reader *r, int64_t count) { return take_state(r->b, count, r->b->run->number); }

/* ------------------------------------------------------------------------------------------------ maps of a step */

static void read_dense(reader *r) {
    const value *const x = steps(r, 0, 1), *const w = fixed(r, 1, 2);
    if (!expect(r, is(w, 1, x->shape[0]) && is_matrix_or_none(r, 2, w->shape[0], 0))) return;
    const rows y = make(r, w->shape[0]);
    if (good(r->b)) emit_dense(r->b, y, x->rows, w->numbers, doubles(r, r->in[2]));
}

/* The same by blocks: w (H, O, I), x (H I), b (H O). */
static void read_block_dense(reader *r) {
    const value *const x = steps(r, 0, 1), *const w = fixed(r, 1, 3);
    const int64_t H = w->shape[0], O = w->shape[1], I = w->shape[2];
    if (!expect(r, O && O <= LARGEST / most(H, 1) && I && x->shape[0] / I == H && x->shape[0] % I == 0) ||
        !expect(r, is_matrix_or_none(r, 2, H * O, 0)))
        return;
    const rows y = make(r, H * O), from = rows_for(r, I), to = rows_for(r, O);
    const double *const b = doubles(r, r->in[2]);
    for (int64_t h = 0; good(r->b) && h < H; h++) {
        emit_columns(r->b, from, x->rows, h * I);
        emit_dense(r->b, to, from, from_row(w->numbers, h * O, I), b ? b + h * O : NULL);
        if (good(r->b)) emit(r->b, OP_PLACE, y, to)->from = h * O;
    }
    give_back(r, from);
    give_back(r, to);
}

/* y = gain (x - center) + shift, by channel. A missing center is 0, a missing shift is `shift`. */
static void emit_affine(reader *r, rows y, rows x, const double *gain, const double *center, const double *shifts,
                        double shift) {
    if (!good(r->b)) return;
    op *const o = emit(r->b, OP_AFFINE, y, x);
    o->w[0] = stored(r->b, gain, y.width);
    o->w[1] = stored(r->b, center ? center : repeated(r, 0, y.width), y.width);
    o->w[2] = stored(r->b, shifts ? shifts : repeated(r, shift, y.width), y.width);
}

/* y = d x, or z + d x. */
static void read_skip(reader *r) {
    const value *const x = steps(r, 0, 1), *const d = fixed(r, 1, 1);
    if (!expect(r, is(d, 0, x->shape[0]))) return;
    if (!r->in[2]) {
        emit_affine(r, make_like(r, x), x->rows, doubles(r, d), NULL, NULL, 0);
        return;
    }
    if (!expect(r, alike(steps(r, 2, 1), x))) return;
    const rows y = make_copy(r, 2);
    if (good(r->b)) emit(r->b, OP_SKIP, y, x->rows)->w[0] = stored(r->b, doubles(r, d), y.width);
}

static void read_batch_norm(reader *r) {
    const value *const x = steps(r, 0, 1);
    const int64_t D = x->shape[0];
    for (int64_t i = 1; i < 4; i++)
        if (!expect(r, is(fixed(r, i, 1), 0, D))) return;
    const double *const gain = doubles(r, r->in[1]), *const mean = doubles(r, r->in[2]);
    emit_affine(r, make_like(r, x), x->rows, gain, mean, doubles(r, r->in[3]), 0);
}

static void read_affine(reader *r) {
    const value *const x = steps(r, 0, 0);
    const double scale = number_of(r->b, &r->p, "scale"), shift = number_of(r->b, &r->p, "shift");
    const double *const scales = repeated(r, scale, numbers_of(x));
    if (scales) emit_affine(r, make_like(r, x), x->rows, scales, NULL, NULL, shift);
}

#if LIB_MATRIX_STATES
/* y_i = base^{-i/P} x_i along the last axis, of P numbers. */
static void read_frequencies(reader *r) {
    const value *const x = steps(r, 0, 0);
    const double base = number_of(r->b, &r->p, "base");
    double *const scales = good(r->b) ? spare(r->b, numbers_of(x)) : NULL;
    const int64_t P = scales ? x->shape[x->axes - 1] : 1;
    for (int64_t i = 0; scales && i < numbers_of(x); i++) scales[i] = pow(base, -(double)(i % P) / (double)P);
    if (scales) emit_affine(r, make_like(r, x), x->rows, scales, NULL, NULL, 0);
}
#endif

/* Numbers for each channel of a norm over the last axis: input i, or one number for all. */
static const double *spread_of(reader *r, const value *x, int64_t i, double otherwise) {
    const int64_t count = good(r->b) ? numbers_of(x) : 1, width = good(r->b) ? x->shape[x->axes - 1] : 1;
    if (!expect(r, is_matrix_or_none(r, i, width, 0))) return NULL;
    const double *const given = doubles(r, r->in[i]);
    double *const all = good(r->b) ? spare(r->b, count) : NULL;
    for (int64_t j = 0; all && j < count; j++) all[j] = given ? given[j % width] : otherwise;
    return all;
}

/* y = scale c / sqrt(mean c^2 + eps) + bias over the last axis, where c is x, or `centred` x - mean x. */
static void read_norm(reader *r, bool centred, double gain) {
    const value *const x = steps(r, 0, 0);
    const double eps = number_of(r->b, &r->p, "eps"), *const scales = spread_of(r, x, 1, gain);
    const double *const bias = spread_of(r, x, 2, 0);
    if (!good(r->b)) return;
    op *const norm = emit(r->b, OP_NORM, make_like(r, x), x->rows);
    norm->count = numbers_of(x) / x->shape[x->axes - 1];
    norm->choice = centred;
    norm->eps = eps;
    norm->w[0] = stored(r->b, scales, numbers_of(x));
    norm->w[1] = stored(r->b, bias, numbers_of(x));
}
static void read_rms_norm(reader *r) { read_norm(r, false, number_of(r->b, &r->p, "gain")); }
static void read_layer_norm(reader *r) { read_norm(r, true, 1); }

/* A function of each number. */
static void read_function(reader *r, op_kind kind) {
    const value *const x = steps(r, 0, 0);
    if (good(r->b)) emit(r->b, kind, make_like(r, x), x->rows);
}
static void read_silu(reader *r) { read_function(r, OP_SILU); }
static void read_gelu(reader *r) { read_function(r, OP_GELU); }
static void read_sigmoid(reader *r) { read_function(r, OP_SIGMOID); }
static void read_softplus(reader *r) { read_function(r, OP_SOFTPLUS); }
#if LIB_MATRIX_STATES
static void read_tanh(reader *r) { read_function(r, OP_TANH); }
#endif
static void read_decay_gain(reader *r) { read_function(r, OP_DECAY_GAIN); }

/* log s(x) = -softplus(-x) */
static void read_log_sigmoid(reader *r) {
    const value *const x = steps(r, 0, 0);
    const double *const scales = repeated(r, -1, numbers_of(x));
    const rows y = make_like(r, x);
    emit_affine(r, y, x->rows, scales, NULL, NULL, 0);
    if (!good(r->b)) return;
    emit(r->b, OP_SOFTPLUS, y, y);
    emit_affine(r, y, y, scales, NULL, NULL, 0);
}

/* y = e^{r x}, a rate r for each number along the first axis, or one for all. */
static void read_decay(reader *r) {
    const value *const x = steps(r, 0, 0);
    const bool older = r->in[1] && !json_member(r->p.settings, "rate"); /* files without the setting */
    const double rate = older ? 0 : number_of(r->b, &r->p, "rate");
    if (!good(r->b) || !expect(r, is_matrix_or_none(r, 1, x->shape[0], 0))) return;
    const double *const given = doubles(r, r->in[1]);
    const int64_t count = numbers_of(x), inner = count / x->shape[0];
    double *const rates = good(r->b) ? spare(r->b, count) : NULL;
    if (!rates) return;
    for (int64_t i = 0; i < count; i++) rates[i] = given ? given[i / inner] : rate;
    emit(r->b, OP_DECAY, make_like(r, x), x->rows)->w[0] = stored(r->b, rates, count);
}

#if LIB_MATRIX_STATES
static void read_log_decay(reader *r) {
    const value *const delta = steps(r, 0, 1), *const x = steps(r, 1, 1);
    if (!expect(r, alike(delta, x))) return;
    op *const o = emit(r->b, OP_LOG_DECAY, make_like(r, x), x->rows);
    o->z = delta->rows;
    o->choice = choice_of(r->b, &r->p, "rate", "softplus rational");
    o->eps = number_of(r->b, &r->p, "least");
}

static void read_step_angles(reader *r) {
    const value *const x = steps(r, 0, 1), *const delta = steps(r, 1, 1);
    if (!good(r->b)) return;
    op *const o = emit(r->b, OP_STEP_ANGLES, make_matrix(r, delta->shape[0], x->shape[0]), x->rows);
    o->z = delta->rows;
}

/* Rows filled with the number of a setting. */
static const void *repeated_setting(reader *r, const char *key, int64_t count) {
    return stored(r->b, repeated(r, number_of(r->b, &r->p, key), count), count);
}

static void read_log_radius(reader *r) {
    const value *const x = steps(r, 0, 1);
    const double least = number_of(r->b, &r->p, "least");
    if (!good(r->b)) return;
    op *const o = emit(r->b, OP_LOG_RADIUS, make_like(r, x), x->rows);
    o->eps = least;
    o->w[0] = repeated_setting(r, "rate", numbers_of(x));
}

static void read_signed_angles(reader *r) {
    const value *const x = steps(r, 0, 1), *const b = fixed(r, 1, 1);
    if (!expect(r, alike(x, b))) return;
    op *const o = emit(r->b, OP_HEAD_ANGLES, make_like(r, x), x->rows);
    o->w[0] = stored(r->b, doubles(r, b), numbers_of(b));
    o->w[1] = repeated_setting(r, "least", numbers_of(b));
    o->w[2] = repeated_setting(r, "most", numbers_of(b));
}

static void read_of_heads(reader *r) {
    const value *const x = steps(r, 0, 2), *const b = fixed(r, 1, 2);
    if (!good(r->b) || !expect(r, b->shape[0] % x->shape[0] == 0 && is(b, 1, x->shape[1]))) return;
    op *const o = emit(r->b, OP_OF_HEADS, make_like(r, b), x->rows);
    o->count = x->shape[0];
    o->choice = x->shape[1];
    o->w[0] = stored(r->b, doubles(r, b), numbers_of(b));
}
#endif

/* A function of the numbers of two registers. */
static void read_pair(reader *r, op_kind kind) {
    const value *const x = steps(r, 0, 0), *const z = steps(r, 1, 0);
    if (!expect(r, alike(x, z))) return;
    op *const o = emit(r->b, kind, make_like(r, x), z->rows);
    o->z = x->rows;
}
static void read_product(reader *r) { read_pair(r, OP_PRODUCT); }
static void read_sum(reader *r) { read_pair(r, OP_SUM); }

#if LIB_MATRIX_STATES
static void read_softmax(reader *r) {
    const value *const x = steps(r, 0, 0);
    if (good(r->b)) emit(r->b, OP_SOFTMAX, make_like(r, x), x->rows)->count = numbers_of(x) / x->shape[x->axes - 1];
}

static void read_polar(reader *r) {
    const value *const size = steps(r, 0, 0), *const angle = steps(r, 1, 0);
    const bool pairs = json_member(r->p.settings, "pairs") && flag_of(r->b, &r->p, "pairs"); /* absent in older files */
    if (!expect(r, alike(size, angle) && (pairs ? size->axes < MOST_AXES : size->axes == 1))) return;
    value like = *size;
    like.shape[like.axes++] = 2;
    if (!pairs) like.shape[0] = 2, like.shape[1] = size->shape[0];
    op *const o = emit(r->b, OP_POLAR, make_like(r, &like), size->rows);
    o->z = angle->rows;
    o->choice = pairs;
}

/* y = (q . k) v by heads */
static void read_bonus(reader *r) {
    const value *const q = steps(r, 0, 2), *const k = steps(r, 1, 2), *const v = steps(r, 2, 2);
    if (!expect(r, alike(q, k) && is(v, 0, q->shape[0]))) return;
    op *const o = emit(r->b, OP_BONUS, make_like(r, v), q->rows);
    o->z = k->rows, o->v = v->rows;
    o->count = q->shape[0];
}
#endif

/* y = x f(gate) */
static void read_gated(reader *r, op_kind function) {
    const value *const x = steps(r, 0, 0), *const gate = steps(r, 1, 0);
    if (expect(r, alike(x, gate))) emit_gated(r->b, function, make_like(r, x), x->rows, gate->rows);
}
static void read_glu(reader *r) { read_gated(r, OP_SIGMOID); }
static void read_swiglu(reader *r) { read_gated(r, OP_SILU); }
static void read_geglu(reader *r) { read_gated(r, OP_GELU); }

/* ------------------------------------------------------------------------------------------------------ layouts */

/* Parts along the first axis, which is counted from the end. */
static void read_split(reader *r) {
    const value *const x = steps(r, 0, 0);
    const json *const axis = json_member(r->p.settings, "axis");
    int64_t sizes[MOST_PARTS], total = 0, from = 0;
    const int count = integers_of(r, "sizes", sizes, MOST_PARTS);
    for (int i = 0; i < count; i++) total += sizes[i];
    if (!expect(r, axis && axis->whole && axis->integer < 0 && is(x, 0, total))) return;
    if (axis->integer != -x->axes) unsupported(r->b, &r->p, " along an axis other than the first");
    const int64_t inside = numbers_of(x) / total;
    value like = *x;
    for (int i = 0; i < count; i++) {
        like.shape[0] = sizes[i];
        const rows y = make_like(r, &like);
        if (good(r->b)) emit_columns(r->b, y, x->rows, from * inside);
        from += sizes[i];
    }
}

/* Vectors one after the other. */
static void read_concat(reader *r) {
    int64_t total = 0, at = 0, count = 0;
    while (count < MOST_INPUTS && r->in[count]) total += steps(r, count++, 1)->shape[0];
    if (!expect(r, count)) return;
    const rows y = make(r, total);
    for (int64_t i = 0; good(r->b) && i < count; at += r->in[i]->rows.width, i++)
        emit(r->b, OP_PLACE, y, r->in[i]->rows)->from = at;
}

static void read_reshape(reader *r) {
    const value *const x = steps(r, 0, 0);
    value like = {.axes = 0};
    like.axes = integers_of(r, "shape", like.shape, 4);
    value *const v = next(r, like.shape, like.axes);
    if (!expect(r, numbers_of(v) == numbers_of(x))) return;
    v->rows = x->rows;
    v->whole = x->whole;
}

/* ------------------------------------------------------------------------------------------------------ a program */

/* The reader of a line, or in a build without it a function that says so. */
#if LIB_HISTORIES
#define HISTORIES(read) read
#else
static void without_histories(reader *r) { left_out(r->b, &r->p, "", "LIB_HISTORIES"); }
#define HISTORIES(read) without_histories
#endif
#if LIB_S4
#define S4(read) read
#else
static void without_s4(reader *r) { left_out(r->b, &r->p, "", "LIB_S4"); }
#define S4(read) without_s4
#endif
#if LIB_MATRIX_STATES
#define MATRIX_STATES(read) read
#else
static void without_matrix_states(reader *r) { left_out(r->b, &r->p, "", "LIB_MATRIX_STATES"); }
#define MATRIX_STATES(read) without_matrix_states
#endif
#if LIB_XLSTM
#define XLSTM(read) read
#else
static void without_xlstm(reader *r) { left_out(r->b, &r->p, "", "LIB_XLSTM"); }
#define XLSTM(read) without_xlstm
#endif
#if LIB_FIXED_POINTS
#define FIXED_POINTS(read) read
#else
static void without_fixed_points(reader *r) { left_out(r->b, &r->p, "", "LIB_FIXED_POINTS"); }
#define FIXED_POINTS(read) without_fixed_points
#endif

static const struct {
    const char *name;
    read_line *read;
    int64_t least, most; /* of inputs */
} INSTRUCTIONS[] = {
    {"Dense", read_dense, 2, 3},
    {"BlockDense", read_block_dense, 2, 3},
    {"Skip", read_skip, 2, 3},
    {"BatchNorm", read_batch_norm, 4, 4},
    {"RMSNorm", read_rms_norm, 1, 2},
    {"LayerNorm", read_layer_norm, 1, 3},
    {"SiLU", read_silu, 1, 1},
    {"GELU", read_gelu, 1, 1},
    {"Sigmoid", read_sigmoid, 1, 1},
    {"LogSigmoid", read_log_sigmoid, 1, 1},
    {"Softplus", read_softplus, 1, 1},
    {"Affine", read_affine, 1, 1},
    {"Decay", read_decay, 1, 2},
    {"DecayGain", read_decay_gain, 1, 1},
    {"Product", read_product, 2, 2},
    {"Sum", read_sum, 2, 2},
    {"GLU", read_glu, 2, 2},
    {"SwiGLU", read_swiglu, 2, 2},
    {"GeGLU", read_geglu, 2, 2},
    {"Split", read_split, 1, 1},
    {"Concat", read_concat, 1, MOST_INPUTS},
    {"Reshape", read_reshape, 1, 1},
    {"Conv", read_conv, 1, 3},
    {"Scan", read_scan, 2, 2},
    {"System", read_system, 8, 10},
    {"Bank", read_bank, 3, 3},
    {"Rotary", read_rotary, 1, 1},
    {"Attention", read_attention, 3, 3},
    {"Elman", read_elman, 2, 2},
    {"LSTMCells", read_lstm, 2, 2},
    {"GRUCells", read_gru, 3, 3},
    {"TurningScan", HISTORIES(read_turning_scan), 6, 6},
    {"History", HISTORIES(read_history), 1, 3},
    {"Wrope", HISTORIES(read_wrope), 1, 1},
    {"OscillatorScan", S4(read_oscillator_scan), 3, 3},
    {"DplrBank", S4(read_dplr_bank), 3, 3},
    {"Products", S4(read_products), 1, 1},
    {"SelectiveScan", MATRIX_STATES(read_selective), 6, 6},
    {"UnitScan", MATRIX_STATES(read_unit_scan), 3, 3},
    {"Softmax", MATRIX_STATES(read_softmax), 1, 1},
    {"Polar", MATRIX_STATES(read_polar), 2, 2},
    {"PermutedScan", MATRIX_STATES(read_permuted_scan), 4, 4},
    {"SsdScan", MATRIX_STATES(read_ssd), 6, 6},
    {"TrapezoidScan", MATRIX_STATES(read_trapezoid), 7, 8},
    {"HoldScan", MATRIX_STATES(read_hold), 7, 7},
    {"Tanh", MATRIX_STATES(read_tanh), 1, 1},
    {"LogRadius", MATRIX_STATES(read_log_radius), 1, 1},
    {"SignedAngles", MATRIX_STATES(read_signed_angles), 2, 2},
    {"Frequencies", MATRIX_STATES(read_frequencies), 1, 1},
    {"LogDecay", MATRIX_STATES(read_log_decay), 2, 2},
    {"StepAngles", MATRIX_STATES(read_step_angles), 2, 2},
    {"OfHeads", MATRIX_STATES(read_of_heads), 2, 2},
    {"Turn", MATRIX_STATES(read_turn), 2, 3},
    {"Bonus", MATRIX_STATES(read_bonus), 3, 3},
    {"DeltaRule", MATRIX_STATES(read_delta), 5, 7},
    {"MatrixMemory", XLSTM(read_matrix_memory), 5, 5},
    {"ScalarMemory", XLSTM(read_scalar_memory), 2, 2},
    {"FixedPoint", FIXED_POINTS(read_fixed_point), 7, 7},
    {"MatrixFixedPoint", FIXED_POINTS(read_matrix_fixed_point), 9, 10},
};
enum { INSTRUCTION_COUNT = sizeof INSTRUCTIONS / sizeof *INSTRUCTIONS };

int line_count(void) { return INSTRUCTION_COUNT; }
const char *line_name(int i) { return INSTRUCTIONS[i].name; }

static int64_t length_of(const json *list) {
    int64_t count = 0;
    for (const json *one = list ? list->first : NULL; one; one = one->next) count++;
    return count;
}

/* Sets the inputs of a line: registers already set, and arrays. Returns their number, -1 with an error. */
static int64_t read_inputs(reader *r, const json *list) {
    int64_t i = 0;
    memset(r->in, 0, sizeof r->in);
    if (!expect(r, list && list->kind == JSON_LIST)) return -1;
    for (const json *one = list->first; one; one = one->next, i++) {
        if (!expect(r, i < MOST_INPUTS)) return -1;
        if (one->kind == JSON_NULL) continue;
        if (one->kind == JSON_STRING) {
            value *const v = r->arrays + i;
            *v = (value){.fixed = true};
            v->numbers = weights_of(r->b, one->text, v->shape, &v->axes);
            if (!good(r->b)) return -1;
            r->in[i] = v;
            continue;
        }
        if (!expect(r, one->whole && one->integer >= 0 && one->integer < r->known)) return -1;
        r->in[i] = r->registers + one->integer;
    }
    return i;
}

/* An unused setting is an error: it may change the model's output. */
static void check_used(reader *r) {
    for (const json *one = r->p.settings->first; one && good(r->b); one = one->next)
        if (!one->used)
            failed(r->b->error, ROTRNN_UNSUPPORTED,
                   "%s of the program, %.60s, has a setting %.60s, which the library does not know", r->p.name, r->op,
                   one->key);
}

static void read_next_line(reader *r, const json *settings) {
    r->p.settings = settings;
    (void)snprintf(r->p.name, sizeof r->p.name, "line %lld", (long long)r->line);
    const json *const op = json_member(settings, "op");
    r->op = op && op->kind == JSON_STRING ? op->text : "without an op";
    const int64_t inputs = read_inputs(r, json_member(settings, "in"));
    for (int i = 0; good(r->b) && i < INSTRUCTION_COUNT; i++)
        if (!strcmp(INSTRUCTIONS[i].name, r->op)) {
            if (expect(r, inputs >= INSTRUCTIONS[i].least && inputs <= INSTRUCTIONS[i].most)) INSTRUCTIONS[i].read(r);
            if (good(r->b)) check_used(r);
            return;
        }
    if (good(r->b)) unsupported(r->b, &r->p, "");
}

/* Sets the last line that reads each register. */
static void find_ends(reader *r, const json *lines, int64_t result) {
    int64_t line = 0;
    for (const json *one = lines->first; one; one = one->next, line++) {
        const json *const list = json_member(one, "in");
        for (const json *at = list ? list->first : NULL; at; at = at->next)
            if (at->whole && at->integer >= 0 && at->integer < r->count) r->registers[at->integer].last = line;
    }
    r->registers[result].last = INT64_MAX;
}

/* Frees the rows that no later line reads. Registers may share rows: these are freed after the last line that reads any
 * of them.
 */
static void free_ended(reader *r) {
    for (int64_t i = 0; i < r->known; i++) {
        const value *const v = r->registers + i;
        value *const whole = r->registers + v->whole;
        if (whole->last < v->last) whole->last = v->last;
    }
    for (int64_t i = 0; i < r->known; i++) {
        value *const v = r->registers + i;
        if (v->whole != i || v->last > r->line || !v->rows.width) continue;
        give_back(r, v->rows);
        v->last = INT64_MAX;
    }
}

/* The matrix and the bias named by a member of the program: w (out, in), bias (out). */
static weights read_map(builder *b, const json *program, const char *key, int64_t *out, int64_t *in,
                        const void **bias) {
    const json *const names = json_member(program, key);
    int64_t shape[MOST_AXES], length[MOST_AXES];
    int axes, of_bias;
    *out = *in = 1;
    if (length_of(names) != 2 || names->first->kind != JSON_STRING || names->first->next->kind != JSON_STRING) {
        failed(b->error, ROTRNN_DAMAGED, "the program has no %s, or it is not two names", key);
        return (weights){NULL, false};
    }
    const weights w = weights_of(b, names->first->text, shape, &axes);
    const weights shift = weights_of(b, names->first->next->text, length, &of_bias);
    if (!good(b)) return w;
    const bool tokens = !strcmp(key, "encoder") && json_member(program, "tokens")->kind == JSON_TRUE;
    if (axes != 2 || of_bias != 1 || shape[0] < 1 || shape[1] < 1 || shape[0] > LARGEST || shape[1] > LARGEST ||
        length[0] != shape[tokens]) {
        failed(b->error, ROTRNN_DAMAGED, "the %s of the program has arrays whose shapes do not fit", key);
        return w;
    }
    *out = shape[0], *in = shape[1];
    double *const numbers = spare(b, length[0]);
    if (numbers) widen(numbers, shift, length[0]);
    *bias = stored(b, numbers, length[0]);
    return w;
}

/* The encoder: w (width, inputs), or for tokens a table (inputs, width). */
static void read_encoder(builder *b, const json *from) {
    program *const p = b->program;
    const json *const tokens = json_member(from, "tokens");
    if (!tokens || (tokens->kind != JSON_TRUE && tokens->kind != JSON_FALSE)) {
        failed(b->error, ROTRNN_DAMAGED, "the program does not say whether it reads tokens");
        return;
    }
    p->tokens = tokens->kind == JSON_TRUE;
    int64_t *const out = p->tokens ? &p->inputs : &p->width, *const in = p->tokens ? &p->width : &p->inputs;
    const weights w = read_map(b, from, "encoder", out, in, &p->encoder[1]);
    if (good(b)) p->encoder[0] = p->tokens ? table_of(b, w, *out, *in) : dense_of(b, w, *out, *in);
}

static void read_pool(builder *b, const json *from) {
    program *const p = b->program;
    const json *const pool = json_member(from, "pool");
    const bool mean = json_is(pool, "mean");
    if (!pool || (pool->kind != JSON_NULL && !mean && !json_is(pool, "last")))
        failed(b->error, ROTRNN_DAMAGED, "the program has no pool, or an unknown one");
    if (!good(b) || pool->kind == JSON_NULL) return;
    p->pool = mean ? POOL_MEAN : POOL_LAST;
    p->pool_state = take_state(b, p->last.width, sizeof(double));
}

static void read_head(builder *b, const json *from) {
    program *const p = b->program;
    int64_t in;
    const weights w = read_map(b, from, "head", &p->outputs, &in, &p->head[1]);
    if (good(b) && in != p->last.width)
        failed(b->error, ROTRNN_DAMAGED, "the head of the program has arrays whose shapes do not fit");
    if (good(b)) p->head[0] = dense_of(b, w, p->outputs, in);
    const json *const cap = json_member(from, "cap");
    if (!good(b) || !cap || cap->kind == JSON_NULL) return;
    if (cap->kind != JSON_NUMBER || !(cap->number > 0) || !isfinite(cap->number))
        failed(b->error, ROTRNN_DAMAGED, "the program has a cap that is no positive number");
    p->cap = cap->number;
}

static void read_lines(builder *b, const json *lines, int64_t result) {
    reader r = {.b = b, .op = "", .p = {.name = "the beginning"}, .count = 1 + MOST_PARTS * length_of(lines)};
    for (int i = 0; i < MOST_AXES; i++) r.nothing.shape[i] = 1; /* sizes are divisors, after an error, too */
    if (!expect(&r, result < r.count)) return;
    r.registers = arena_take(&b->spare, r.count, sizeof *r.registers);
    r.free = arena_take(&b->spare, r.count + MOST_INPUTS * length_of(lines), sizeof *r.free);
    if (!r.registers || !r.free) {
        failed(b->error, ROTRNN_NO_MEMORY, "no memory to build the model");
        return;
    }
    b->program->x = take_rows(b, b->program->width);
    r.registers[r.known++] = (value){.shape = {b->program->width}, .axes = 1, .rows = b->program->x};
    find_ends(&r, lines, result);
    for (const json *one = lines->first; one && good(b); one = one->next, r.line++) {
        read_next_line(&r, one);
        if (good(b)) free_ended(&r);
    }
    const value *const last = r.registers + result;
    if (!expect(&r, result < r.known && last->axes == 1)) return;
    b->program->last = last->rows;
}

static void read_program(builder *b) {
    const json *const from = json_member(b->file->facts, "program");
    if (from && from->kind == JSON_STRING) { /* the reason why there is no program */
        failed(b->error, ROTRNN_UNSUPPORTED, "%.120s", *from->text ? from->text : "the file has no program");
        return;
    }
    if (!from) {
        failed(b->error, ROTRNN_UNSUPPORTED, "the file is of an earlier version: load the model in Python and save it");
        return;
    }
    const json *const lines = json_member(from, "lines"), *const result = json_member(from, "y");
    if (!lines || lines->kind != JSON_LIST || !result || !result->whole || result->integer < 0) {
        failed(b->error, ROTRNN_DAMAGED, "the program has no lines, or no output");
        return;
    }
    (void)take_state(b, 2, sizeof(int64_t)); /* the counts of run.h */
    read_encoder(b, from);
    if (good(b)) read_lines(b, lines, result->integer);
    if (good(b)) read_pool(b, from);
    if (good(b)) read_head(b, from);
}

bool build(builder *b) {
    enum { FACTOR = 64 };
    const int64_t few = (int64_t)5 << 25; /* numbers that any program may allocate: a long window, for example */
    int64_t count = 0;
    for (int64_t i = 0; i < b->file->count; i++) count += b->file->arrays[i].count;
    b->left = FACTOR * count + few;
    b->program->half = b->half;
    read_program(b);
    arena_free(&b->spare);
    return good(b);
}
