/* A layer that is a program (python/rotrnn/nn/program.py), as the file has it: its lines become instructions here, and
 * nothing is known of the layer. In the file a program is
 *
 *     {"parameters": ["in_proj", ...], "lines": [{"op": "Dense", "in": [0, 1, -1]}, ...], "y": 9}
 *
 * Register 0 is the input, then come the parameters, then the outputs of the lines in order; -1 stands for an input
 * that is not given. A line has the settings of its instruction (python/rotrnn/nn/instructions.py). All shapes follow
 * from those of the parameters, and each is checked by its line: `expect`. What depends on parameters alone is computed
 * here, in double.
 */
#include <math.h>
#include <string.h>

#include "build.h"
#include "cuts.h"
#include "kernels.h"

enum { MOST_INPUTS = 8, MOST_PARTS = 16, MISSING = -1, ANY = -1 };

/* A register: numbers (a weight of the file, or computed) of a shape, or the rows of each step. */
typedef struct {
    int64_t shape[MOST_AXES];
    int axes;
    bool fixed; /* whether it depends on parameters alone: */
    weights numbers;
    rows rows;
    int64_t last;  /* the last line that reads its rows */
    int64_t whole; /* the register whose rows these are: itself, or the one before a Reshape */
} value;

/* The program that is read, and the line whose instruction is emitted. */
typedef struct {
    builder *b;
    part p; /* of a line: its settings, and the layer's name */
    const char *op;
    value *registers;
    int64_t count, known; /* of registers, and of those that have been set */
    int64_t result;       /* the register with the output, */
    rows y;               /* and where its rows are */
    int64_t line;
    const value *in[MOST_INPUTS]; /* NULL for one that is not given */
    rows *free;                   /* rows that nothing reads any more */
    int64_t free_count;
    value nothing, nowhere; /* what is read, and written, after an error */
} reader;

/* ------------------------------------------------------------------------------------------------- the grammar */

/* Returns whether the shapes of a line fit; if not, there is an error, and all that follows does nothing. */
static bool expect(reader *r, bool right) {
    if (!right && good(r->b))
        failed(r->b->error, ROTRNN_DAMAGED,
               "%s has a program whose line %lld, %.40s, does not fit its inputs or settings", r->p.name,
               (long long)r->line, r->op);
    return right && good(r->b);
}

static int64_t numbers_of(const value *v) {
    int64_t count = 1;
    for (int i = 0; i < v->axes; i++) count *= v->shape[i];
    return count;
}

/* Input i: rows of a step, or fixed numbers, of so many axes, or of any for 0. */
static const value *checked(reader *r, int64_t i, bool fixed, int axes) {
    const value *const v = r->in[i];
    return expect(r, v && v->fixed == fixed && v->axes > 0 && (!axes || v->axes == axes)) ? v : &r->nothing;
}
static const value *steps(reader *r, int64_t i, int axes) { return checked(r, i, false, axes); }
static const value *fixed(reader *r, int64_t i, int axes) { return checked(r, i, true, axes); }

/* Whether input i is a vector of `size` fixed numbers, or is not given. */
static bool is_vector_or_none(const reader *r, int64_t i, int64_t size) {
    const value *const v = r->in[i];
    return !v || (v->fixed && v->axes == 1 && v->shape[0] == size);
}

/* Whether axis i of a value is so large. */
static bool is(const value *v, int i, int64_t size) { return i < v->axes && v->shape[i] == size; }

/* The numbers of a fixed value in double; NULL with an error, or if there is no value. */
static const double *doubles(reader *r, const value *v) {
    if (!v || !good(r->b)) return NULL;
    double *const numbers = spare(r->b, most(numbers_of(v), 1));
    if (numbers) widen(numbers, v->numbers, numbers_of(v));
    return numbers;
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

/* Rows of a register, or of a line alone, which are given back behind it. */
static rows rows_for(reader *r, int64_t width) {
    for (int64_t i = 0; i < r->free_count; i++) {
        const rows found = r->free[i];
        if (found.width != width) continue;
        r->free[i] = r->free[--r->free_count];
        return found;
    }
    return take_rows(r->b, width);
}
static void give_back(reader *r, rows some) {
    if (good(r->b)) r->free[r->free_count++] = some;
}

/* The rows of a new register with the shape of another value, or of one axis. */
static rows make_like(reader *r, const value *like) {
    value *const v = next(r, like->shape, like->axes);
    const bool is_result = v - r->registers == r->result && numbers_of(v) == r->y.width; /* or the end refuses it */
    if (good(r->b)) v->rows = is_result ? r->y : rows_for(r, numbers_of(v));
    return v->rows;
}

static rows make(reader *r, int64_t width) {
    const value like = {.shape = {width}, .axes = 1};
    return make_like(r, &like);
}

/* A new register of fixed numbers. */
static double *make_fixed(reader *r, const int64_t *shape, int axes) {
    value *const v = next(r, shape, axes);
    double *const numbers = good(r->b) ? spare(r->b, most(numbers_of(v), 1)) : NULL;
    v->fixed = true;
    v->numbers = computed(numbers);
    return numbers;
}

/* y <- columns `from` to from + y.width of x. */
static void emit_columns(builder *b, rows y, rows x, int64_t from) { emit(b, OP_COLUMNS, y, x)->from = from; }

/* Copies the numbers of input i. */
static rows copied(reader *r, int64_t i, rows to) {
    if (good(r->b)) emit_columns(r->b, to, r->in[i]->rows, 0);
    return to;
}

/* ------------------------------------------------------------------------------------------------ maps of a step */

static void read_dense(reader *r) {
    const value *const x = steps(r, 0, 1), *const w = fixed(r, 1, 2);
    if (!expect(r, is(w, 1, x->shape[0]) && is_vector_or_none(r, 2, w->shape[0]))) return;
    const rows y = make(r, w->shape[0]);
    if (good(r->b)) emit_dense(r->b, y, x->rows, w->numbers, doubles(r, r->in[2]));
}

/* y = scale x + shift, with numbers for each channel. */
static void emit_affine(reader *r, rows y, rows x, const double *scale, double shift) {
    if (!good(r->b)) return;
    double *const center = spare(r->b, y.width), *const shifts = spare(r->b, y.width);
    op *const o = emit(r->b, OP_AFFINE, y, x);
    for (int64_t i = 0; shifts && i < y.width; i++) shifts[i] = shift;
    o->w[0] = stored(r->b, scale, y.width);
    o->w[1] = stored(r->b, center, y.width);
    o->w[2] = stored(r->b, shifts, y.width);
}

static void read_skip(reader *r) {
    const value *const x = steps(r, 0, 1), *const d = fixed(r, 1, 1);
    if (expect(r, is(d, 0, x->shape[0]))) emit_affine(r, make_like(r, x), x->rows, doubles(r, d), 0);
}

static void read_affine(reader *r) {
    const value *const x = r->in[0];
    const double scale = number_of(r->b, &r->p, "scale"), shift = number_of(r->b, &r->p, "shift");
    if (!expect(r, x) || !good(r->b)) return;
    const int64_t count = numbers_of(x);
    if (x->fixed) {
        const double *const from = doubles(r, x);
        double *const to = make_fixed(r, x->shape, x->axes);
        for (int64_t i = 0; good(r->b) && i < count; i++) to[i] = scale * from[i] + shift;
        return;
    }
    double *const scales = spare(r->b, count);
    for (int64_t i = 0; scales && i < count; i++) scales[i] = scale;
    if (scales) emit_affine(r, make_like(r, x), x->rows, scales, shift);
}

/* The scales of a norm over the last axis, for each channel: those of input 1, or one number. */
static const double *scales_of(reader *r, const value *x, double otherwise) {
    const int64_t count = good(r->b) ? numbers_of(x) : 1, width = good(r->b) ? x->shape[x->axes - 1] : 1;
    if (!expect(r, is_vector_or_none(r, 1, width))) return NULL;
    const double *const given = doubles(r, r->in[1]);
    double *const scales = good(r->b) ? spare(r->b, count) : NULL;
    for (int64_t i = 0; scales && i < count; i++) scales[i] = given ? given[i % width] : otherwise;
    return scales;
}

static void read_rms_norm(reader *r) {
    const value *const x = steps(r, 0, 0);
    const double eps = number_of(r->b, &r->p, "eps");
    const double *const scales = scales_of(r, x, number_of(r->b, &r->p, "gain"));
    if (good(r->b)) emit_rms_norm(r->b, make_like(r, x), x->rows, scales, numbers_of(x) / x->shape[x->axes - 1], eps);
}

static void read_layer_norm(reader *r) {
    const value *const x = steps(r, 0, 0);
    const double eps = number_of(r->b, &r->p, "eps"), *const scales = scales_of(r, x, 1);
    if (good(r->b))
        emit_layer_norm(r->b, make_like(r, x), x->rows, scales, NULL, numbers_of(x) / x->shape[x->axes - 1], eps);
}

/* A function of each number. */
static void read_function(reader *r, op_kind kind) {
    const value *const x = steps(r, 0, 0);
    if (good(r->b)) emit(r->b, kind, make_like(r, x), x->rows);
}
static void read_silu(reader *r) { read_function(r, OP_SILU); }
static void read_gelu(reader *r) { read_function(r, OP_GELU); }
static void read_sigmoid(reader *r) { read_function(r, OP_SIGMOID); }
static void read_softplus(reader *r) { read_function(r, OP_SOFTPLUS); }

/* log s(x) = -softplus(-x) */
static void read_log_sigmoid(reader *r) {
    const value *const x = steps(r, 0, 0);
    double *const scales = good(r->b) ? spare(r->b, numbers_of(x)) : NULL;
    const rows y = make_like(r, x);
    for (int64_t i = 0; scales && i < y.width; i++) scales[i] = -1;
    emit_affine(r, y, x->rows, scales, 0);
    if (!good(r->b)) return;
    emit(r->b, OP_SOFTPLUS, y, y);
    emit_affine(r, y, y, scales, 0);
}

static void read_decay(reader *r) {
    const value *const x = steps(r, 0, 1), *const rates = fixed(r, 1, 1);
    if (!expect(r, is(rates, 0, x->shape[0]))) return;
    emit(r->b, OP_DECAY, make_like(r, x), x->rows)->w[0] = stored(r->b, doubles(r, rates), x->shape[0]);
}

static bool alike(const value *x, const value *y) {
    return x->axes == y->axes && !memcmp(x->shape, y->shape, (size_t)x->axes * sizeof *x->shape);
}

/* A function of the numbers of two registers. */
static void read_pair(reader *r, op_kind kind) {
    const value *const x = steps(r, 0, 0), *const z = steps(r, 1, 0);
    if (!expect(r, alike(x, z))) return;
    op *const o = emit(r->b, kind, make_like(r, x), z->rows);
    o->z = x->rows;
}
static void read_product(reader *r) { read_pair(r, OP_PRODUCT); }

/* y = x f(gate) */
static void read_gated(reader *r, op_kind function) {
    const value *const x = steps(r, 0, 0), *const gate = steps(r, 1, 0);
    if (expect(r, alike(x, gate))) emit_gated(r->b, function, make_like(r, x), x->rows, gate->rows);
}
static void read_glu(reader *r) { read_gated(r, OP_SIGMOID); }
static void read_swiglu(reader *r) { read_gated(r, OP_SILU); }

static void read_sum(reader *r) {
    const value *const x = r->in[0], *const z = r->in[1];
    if (!expect(r, x && z && x->fixed == z->fixed)) return;
    if (!x->fixed) {
        read_pair(r, OP_SUM);
        return;
    }
    if (!expect(r, alike(x, z))) return;
    const double *const one = doubles(r, x), *const other = doubles(r, z);
    double *const sum = make_fixed(r, x->shape, x->axes);
    for (int64_t i = 0; good(r->b) && i < numbers_of(x); i++) sum[i] = one[i] + other[i];
}

/* ------------------------------------------------------------------------------------------------------ layouts */

/* Integers of a setting that is a list; -1 with an error if it is none. */
static int integers_of(reader *r, const char *key, int64_t *to, int most_of_them) {
    const json *const list = json_member(r->p.settings, key);
    int count = 0;
    if (!expect(r, list && list->kind == JSON_LIST)) return 0;
    for (const json *one = list->first; one; one = one->next, count++) {
        if (!expect(r, count < most_of_them && one->whole && one->integer > 0 && one->integer < INT32_MAX)) return 0;
        to[count] = one->integer;
    }
    return expect(r, count) ? count : 0;
}

/* Parts along an axis that is counted from the end; of rows, along their first axis. */
static void read_split(reader *r) {
    const value *const x = r->in[0];
    const json *const axis = json_member(r->p.settings, "axis");
    int64_t sizes[MOST_PARTS], total = 0, shape[MOST_AXES], from = 0;
    const int count = integers_of(r, "sizes", sizes, MOST_PARTS);
    for (int i = 0; i < count; i++) total += sizes[i];
    if (good(r->b) && x && axis && axis->whole && axis->integer < 0 && axis->integer > -x->axes)
        failed(r->b->error, ROTRNN_UNSUPPORTED, "%s has a program with a Split of another axis than the first",
               r->p.name);
    /* parts of the first axis lie one behind the other */
    if (!expect(r, x && axis && axis->whole && axis->integer == -x->axes && is(x, 0, total)) || !good(r->b)) return;
    const value whole = *x; /* registers move on */
    const int64_t inside = numbers_of(&whole) / total;
    memcpy(shape, whole.shape, sizeof shape);
    for (int i = 0; i < count; i++) {
        value like = {.axes = whole.axes};
        memcpy(like.shape, shape, sizeof shape);
        like.shape[0] = sizes[i];
        if (whole.fixed) {
            value *const v = next(r, like.shape, like.axes);
            v->fixed = true;
            v->numbers = from_row(whole.numbers, from, inside);
        } else
            emit_columns(r->b, make_like(r, &like), whole.rows, from * inside);
        from += sizes[i];
    }
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

/* ------------------------------------------------------------------------------------------ of parameters alone */

static void read_rates(reader *r) {
    const value *const A_log = fixed(r, 0, 0);
    const double *const from = doubles(r, A_log);
    double *const rates = good(r->b) ? make_fixed(r, A_log->shape, A_log->axes) : NULL;
    for (int64_t i = 0; good(r->b) && i < numbers_of(A_log); i++) rates[i] = -exp(from[i]);
}

static void read_columns(reader *r) {
    const value *const w = fixed(r, 0, 2), *const scale = fixed(r, 1, 1);
    if (!expect(r, is(w, 1, scale->shape[0]))) return;
    const double *const from = doubles(r, w), *const scales = doubles(r, scale);
    double *const to = make_fixed(r, w->shape, 2);
    for (int64_t i = 0; good(r->b) && i < numbers_of(w); i++) to[i] = from[i] * scales[i % w->shape[1]];
}

/* --------------------------------------------------------------------------------------------------- recurrences */

static int64_t state_for(reader *r, int64_t count) { return take_state(r->b, count, r->b->run->number); }

static void read_conv(reader *r) {
    const value *const x = steps(r, 0, 1);
    if (!r->in[1]) { /* x itself */
        if (expect(r, !r->in[2])) emit_columns(r->b, make_like(r, x), x->rows, 0);
        return;
    }
    const value *const w = fixed(r, 1, 2);
    if (!expect(r, is(w, 0, x->shape[0]) && w->shape[1] > 0 && is_vector_or_none(r, 2, x->shape[0]))) return;
    emit_conv(r->b, make_like(r, x), x->rows, doubles(r, w), doubles(r, r->in[2]), w->shape[1]);
}

static void read_scan(reader *r) {
    const value *const a = steps(r, 0, 1), *const x = steps(r, 1, 1);
    if (!expect(r, alike(a, x))) return;
    op *const o = emit(r->b, OP_REAL_SCAN, make_like(r, x), a->rows);
    o->z = x->rows;
    o->state = state_for(r, x->shape[0]);
}

static void read_selective(reader *r) {
    const value *const x = steps(r, 0, 1), *const delta = steps(r, 1, 1), *const A = fixed(r, 2, 2);
    const value *const B = steps(r, 3, 1), *const C = steps(r, 4, 1), *const skip = fixed(r, 5, 1);
    const int64_t D = x->shape[0], S = A->shape[1];
    if (!is_null(r->b, &r->p, "window")) unsupported(r->b, &r->p, " with a window");
    if (!expect(r, alike(x, delta) && is(A, 0, D) && is(B, 0, S) && is(C, 0, S) && is(skip, 0, D))) return;
    const double *const rates = doubles(r, A);
    double *const by_state = good(r->b) ? spare(r->b, S * D) : NULL; /* (S, D) */
    if (!good(r->b)) return;
    for (int64_t d = 0; d < D; d++)
        for (int64_t s = 0; s < S; s++) by_state[s * D + d] = rates[d * S + s];
    op *const o = emit(r->b, OP_SELECTIVE, make_like(r, x), x->rows);
    o->z = delta->rows, o->v = B->rows, o->s = C->rows;
    o->count = S;
    o->w[0] = stored(r->b, by_state, S * D);
    o->w[1] = stored(r->b, doubles(r, skip), D);
    o->negative = flag_of(r->b, &r->p, "negative");
    o->state = state_for(r, S * D);
}

static void read_elman(reader *r) {
    static const int64_t cells[] = {CELL_IDENTITY, CELL_TANH, CELL_RELU};
    const value *const x = steps(r, 0, 1), *const A = fixed(r, 1, 2);
    const int64_t N = x->shape[0], cell = cells[choice_of(r->b, &r->p, "activation", "identity tanh relu")];
    if (flag_of(r->b, &r->p, "reverse")) unsupported(r->b, &r->p, " that runs in both directions");
    if (!expect(r, is(A, 0, N) && is(A, 1, N))) return;
    const rows h = copied(r, 0, make(r, N));
    op *const o = emit(r->b, OP_RNN, h, h);
    o->w[0] = packed_of(r->b, A->numbers, N, N);
    o->choice = cell;
    o->state = state_for(r, N);
}

static void read_lstm(reader *r) {
    const value *const x = steps(r, 0, 1), *const w = fixed(r, 1, 2);
    const int64_t N = w->shape[1];
    if (!expect(r, N <= INT32_MAX && is(w, 0, 4 * N) && is(x, 0, 4 * N))) return;
    const rows h = make(r, N), gates = copied(r, 0, rows_for(r, 4 * N));
    op *const o = emit(r->b, OP_LSTM, h, gates);
    o->w[0] = packed_of(r->b, w->numbers, 4 * N, N);
    o->state = state_for(r, 2 * N);
    give_back(r, gates);
}

#if LIB_MATRIX_STATES
static void read_ssd(reader *r) {
    const value *const x = steps(r, 0, 2), *const delta = steps(r, 1, 1), *const A = fixed(r, 2, 1);
    const value *const B = steps(r, 3, 2), *const C = steps(r, 4, 2), *const skip = fixed(r, 5, 1);
    const int64_t H = x->shape[0], G = B->shape[0], N = B->shape[1];
    if (!expect(r, is(delta, 0, H) && is(A, 0, H) && is(skip, 0, H) && alike(B, C) && G && H % G == 0)) return;
    op *const o = emit(r->b, OP_SSD, make_like(r, x), x->rows);
    o->z = delta->rows, o->v = B->rows, o->s = C->rows;
    o->count = N;
    o->choice = G;
    o->negative = flag_of(r->b, &r->p, "negative");
    o->w[0] = stored(r->b, doubles(r, A), H);
    o->w[1] = stored(r->b, doubles(r, skip), H);
    o->state = state_for(r, N * numbers_of(x));
}

static void read_delta(reader *r) {
    const value *const q = steps(r, 0, 2), *const k = steps(r, 1, 3), *const v = steps(r, 2, 3);
    const value *const beta = steps(r, 3, 2), *const decay = r->in[4];
    const int64_t n = k->shape[0], H = q->shape[0], K = q->shape[1], V = v->shape[2];
    if (!expect(r, n && is(k, 1, H) && is(k, 2, K) && is(v, 0, n) && is(v, 1, H) && is(beta, 0, n) && is(beta, 1, H)) ||
        !expect(r, !decay || (!decay->fixed && decay->axes == 1 && is(decay, 0, H))))
        return;
    const value like = {.shape = {H, V}, .axes = 2};
    op *const o = emit(r->b, OP_DELTA, make_like(r, &like), q->rows);
    o->z = v->rows, o->v = k->rows, o->s = beta->rows;
    o->t = decay ? decay->rows : (rows){0, 0};
    o->count = H;
    o->state = state_for(r, H * K * V);
}
#endif

#if LIB_XLSTM
static void read_matrix_memory(reader *r) {
    const value *const q = steps(r, 0, 2), *const k = steps(r, 1, 2), *const v = steps(r, 2, 2);
    const value *const i = steps(r, 3, 1), *const f = steps(r, 4, 1);
    const int64_t H = q->shape[0], N = q->shape[1], P = v->shape[1];
    if (!expect(r, alike(q, k) && is(v, 0, H) && is(i, 0, H) && is(f, 0, H))) return;
    const rows read = copied(r, 2, make_like(r, v)), keys = copied(r, 1, rows_for(r, H * N));
    op *const o = emit(r->b, OP_MLSTM, read, q->rows);
    o->z = keys, o->v = i->rows, o->s = f->rows;
    o->count = H;
    o->state = state_for(r, H * (N * (P + 1) + 1));
    give_back(r, keys);
}

static void read_scalar_memory(reader *r) {
    const value *const x = steps(r, 0, 3), *const w = fixed(r, 1, 3);
    const int64_t H = x->shape[1], P = x->shape[2], N = H * P;
    const bool exponential = choice_of(r->b, &r->p, "forget", "sigmoid exp");
    if (!expect(r, is(x, 0, 4) && is(w, 0, H) && is(w, 1, 4 * P) && is(w, 2, P))) return;
    const value like = {.shape = {H, P}, .axes = 2};
    const rows h = make_like(r, &like), gates = copied(r, 0, rows_for(r, 4 * N));
    for (int64_t head = 0; head < H; head++) {
        op *const o = emit(r->b, OP_SLSTM, h, gates);
        o->from = head * P;
        o->count = P;
        o->choice = exponential;
        for (int64_t i = 0; i < 4; i++) o->w[i] = packed_of(r->b, from_row(w->numbers, (4 * head + i) * P, P), P, P);
        o->state = state_for(r, 4 * P);
    }
    give_back(r, gates);
}
#endif

/* Another layer, whose arrays have the names of its own. */
static void read_inner(reader *r) {
    part layer = part_in(r->b, &r->p, "layer", "");
    const value *const x = steps(r, 0, 1);
    const rows y = make_like(r, x);
    if (good(r->b)) build_layer_of(r->b, &layer, y, x->rows);
}

/* ------------------------------------------------------------------------------------------------------ a program */

static const struct {
    const char *name;
    void (*read)(reader *r);
    int64_t inputs;
} INSTRUCTIONS[] = {
    {"Dense", read_dense, 3},
    {"Skip", read_skip, 2},
    {"RMSNorm", read_rms_norm, 2},
    {"LayerNorm", read_layer_norm, 1},
    {"SiLU", read_silu, 1},
    {"GELU", read_gelu, 1},
    {"Sigmoid", read_sigmoid, 1},
    {"LogSigmoid", read_log_sigmoid, 1},
    {"Softplus", read_softplus, 1},
    {"Affine", read_affine, 1},
    {"Decay", read_decay, 2},
    {"Product", read_product, 2},
    {"Sum", read_sum, 2},
    {"GLU", read_glu, 2},
    {"SwiGLU", read_swiglu, 2},
    {"Split", read_split, 1},
    {"Reshape", read_reshape, 1},
    {"Rates", read_rates, 1},
    {"Columns", read_columns, 2},
    {"Conv", read_conv, 3},
    {"Inner", read_inner, ANY},
    {"Scan", read_scan, 2},
    {"Elman", read_elman, 2},
    {"LSTMCells", read_lstm, 2},
    {"SelectiveScan", read_selective, 6},
#if LIB_MATRIX_STATES
    {"SsdScan", read_ssd, 6},
    {"DeltaRule", read_delta, 5},
#endif
#if LIB_XLSTM
    {"MatrixMemory", read_matrix_memory, 5},
    {"ScalarMemory", read_scalar_memory, 2},
#endif
};

static int64_t length_of(const json *list) {
    int64_t count = 0;
    for (const json *one = list ? list->first : NULL; one; one = one->next) count++;
    return count;
}

/* The registers of a line's inputs, which are set already. Returns false with an error if they are not. */
static bool read_inputs(reader *r, const json *list) {
    int64_t i = 0;
    memset(r->in, 0, sizeof r->in);
    if (!expect(r, list && list->kind == JSON_LIST)) return false;
    for (const json *one = list->first; one; one = one->next, i++) {
        if (!expect(r, one->whole && one->integer >= MISSING && one->integer < r->known)) return false;
        if (one->integer != MISSING && i < MOST_INPUTS) r->in[i] = r->registers + one->integer;
    }
    return true;
}

static void read_line(reader *r) {
    const json *const op = json_member(r->p.settings, "op");
    r->op = op && op->kind == JSON_STRING ? op->text : "without an op";
    const json *const list = json_member(r->p.settings, "in");
    if (!read_inputs(r, list)) return;
    for (size_t i = 0; i < sizeof INSTRUCTIONS / sizeof *INSTRUCTIONS; i++)
        if (!strcmp(INSTRUCTIONS[i].name, r->op)) {
            const int64_t inputs = INSTRUCTIONS[i].inputs;
            if (expect(r, inputs == ANY || inputs == length_of(list))) INSTRUCTIONS[i].read(r);
            return;
        }
    failed(r->b->error, ROTRNN_UNSUPPORTED, "%s has a program with a %.40s, which the library does not support yet",
           r->p.name, r->op);
}

/* Notes where each register is read last: those of the layer's input and output are never free. */
static void find_ends(reader *r, const json *lines) {
    int64_t line = 0;
    for (const json *one = lines->first; one; one = one->next, line++) {
        const json *const list = json_member(one, "in");
        for (const json *at = list ? list->first : NULL; at; at = at->next)
            if (at->whole && at->integer >= 0 && at->integer < r->count) r->registers[at->integer].last = line;
    }
    r->registers[0].last = r->registers[r->result].last = INT64_MAX;
}

/* Frees the rows that no later line reads. A Reshape shares rows: they end where the last of its registers does. */
static void free_ended(reader *r) {
    for (int64_t i = 0; i < r->known; i++) {
        const value *const v = r->registers + i;
        value *const whole = r->registers + v->whole;
        if (!v->fixed && whole->last < v->last) whole->last = v->last;
    }
    for (int64_t i = 0; i < r->known; i++) {
        value *const v = r->registers + i;
        if (v->fixed || v->whole != i || v->last > r->line || !v->rows.width) continue;
        give_back(r, v->rows);
        v->last = INT64_MAX;
    }
}

void build_program(builder *b, const part *layer, rows y, rows x) {
    const json *const program = json_member(layer->settings, "program");
    const json *const names = json_member(program, "parameters"), *const lines = json_member(program, "lines");
    const json *const result = json_member(program, "y");
    const bool right =
        names && names->kind == JSON_LIST && lines && lines->kind == JSON_LIST && result && result->whole;
    reader r = {.b = b, .p = *layer, .op = "its beginning", .y = y};
    r.count = 1 + length_of(names) + MOST_PARTS * length_of(lines);
    if (!expect(&r, right && result->integer >= 0 && result->integer < r.count)) return;
    r.result = result->integer;
    r.registers = arena_take(&b->spare, r.count, sizeof *r.registers);
    r.free = arena_take(&b->spare, r.count + length_of(lines), sizeof *r.free);
    if (!r.registers || !r.free) {
        failed(b->error, ROTRNN_NO_MEMORY, "no memory to build the model");
        return;
    }
    r.registers[r.known++] = (value){.shape = {x.width}, .axes = 1, .rows = x};
    for (const json *one = names->first; one && good(b); one = one->next) {
        value *const v = r.registers + r.known;
        v->fixed = true;
        v->whole = r.known++;
        if (expect(&r, one->kind == JSON_STRING)) v->numbers = any_weights_of(b, layer, one->text, v->shape, &v->axes);
    }
    find_ends(&r, lines);
    for (const json *one = lines->first; one && good(b); one = one->next, r.line++) {
        r.p.settings = one;
        read_line(&r);
        if (good(b)) free_ended(&r);
    }
    const value *const last = r.registers + r.result;
    if (!expect(&r, r.result < r.known && !last->fixed && last->axes == 1 && last->shape[0] == y.width)) return;
    if (last->rows.place != y.place) emit_columns(b, y, last->rows, 0);
}
