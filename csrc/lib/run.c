/* The instructions of a program (program.h), for one dtype and instruction set; and the loop of a push over them.
 *
 * Every number depends on its own sequence alone and is made by the same operations in the same order however many
 * steps and sequences are computed together: products by gemm_tile.h, other loops over the channels of one row.
 */
#include "run.h"

#include "exact.h"
#include "gemm_tile.h"
#include "kernels.h"
#include "rows.h"

static real *rows_of(const frame *f, rows r) { return (real *)f->scratch + r.place * f->room; }
static void *state_of(const frame *f, int64_t b, int64_t place) {
    return (char *)f->state + b * f->state_bytes + place;
}

/* ------------------------------------------------------------------------------------------- maps of each row */

static void run_dense(const op *o, const frame *f) {
    product(rows_of(f, o->y), o->y.width, o->w[1], 0, (gemm_view){rows_of(f, o->x) + o->from, o->x.width, 1}, o->w[0],
            f->B * f->n, o->count, o->y.width);
}

static void run_affine(const op *o, const frame *f) {
    affine_rows(rows_of(f, o->y), rows_of(f, o->x), o->w[1], o->w[0], o->w[2], f->B * f->n, o->y.width);
}

static void run_layer_norm(const op *o, const frame *f) {
    const int64_t D = o->y.width;
    real *y = rows_of(f, o->y);
    const real *x = rows_of(f, o->x);
    for (int64_t r = 0; r < f->B * f->n; r++, y += D, x += D)
        (void)layer_norm_row(y, x, o->w[0], o->w[1], D, (real)o->eps);
}

static void run_add(const op *o, const frame *f) {
    const int64_t D = o->y.width;
    for (int64_t r = 0; r < f->B * f->n; r++) add_row(rows_of(f, o->y) + r * D, rows_of(f, o->x) + r * D, D);
}

/* Defines an instruction by what it does to one number of y, with n the width: a loop over the numbers of each row.
 * Rows of x and z have the width of y. */
#define EACH_NUMBER(name, expression)                                                                                  \
    static void name(const op *o, const frame *f) {                                                                    \
        const int64_t n = o->y.width;                                                                                  \
        const real *restrict const w = o->w[0];                                                                        \
        (void)w;                                                                                                       \
        for (int64_t r = 0; r < f->B * f->n; r++) {                                                                    \
            real *const y = rows_of(f, o->y) + r * n;                                                                  \
            const real *const x = rows_of(f, o->x) + r * n, *const z = rows_of(f, o->z) + r * n;                       \
            (void)z;                                                                                                   \
            _Pragma("GCC ivdep") for (int64_t d = 0; d < n; d++) y[d] = (expression);                                  \
        }                                                                                                              \
    }

EACH_NUMBER(run_skip, y[d] + w[d] * x[d])
EACH_NUMBER(run_gelu, gelu(x[d]))
EACH_NUMBER(run_silu, silu(x[d]))
EACH_NUMBER(run_softplus, softplus(x[d]))
EACH_NUMBER(run_gate, y[d] * silu(x[d]))
EACH_NUMBER(run_glu, glu(z[d], x[d]))

/* ------------------------------------------------------------------------------------------------- recurrences */

/* Calls `step` for the rows of each sequence in the order of time. */
#define EACH_STEP(f, b, t)                                                                                             \
    for (int64_t b = 0; b < (f)->B; b++)                                                                               \
        for (int64_t t = 0; t < (f)->n; t++)

/* Rows (2, N): real parts, then imaginary parts. */
static void scan_row(real *restrict h, real *restrict y, const real *restrict a, int64_t N) {
    for (int64_t i = 0; i < N; i++) {
        const cplx turn = {a[i], a[N + i]}, before = {h[i], h[N + i]}, x = {y[i], y[N + i]};
        const cplx now = plane_step(turn, before, x);
        h[i] = y[i] = now.re;
        h[N + i] = y[N + i] = now.im;
    }
}

static void run_scan(const op *o, const frame *f) {
    EACH_STEP(f, b, t)
    scan_row(state_of(f, b, o->state), rows_of(f, o->y) + (b * f->n + t) * o->y.width, o->w[0], o->y.width / 2);
}

static void exact_scan_row(double *restrict h, real *restrict y, const double *restrict a, int64_t N) {
    for (int64_t i = 0; i < N; i++) {
        const exact turn = {a[i], a[N + i]}, before = {h[i], h[N + i]};
        const cplx x = {y[i], y[N + i]};
        const exact now = exact_step(turn, before, x);
        const cplx rounded = exact_rounded(now);
        h[i] = now.re, h[N + i] = now.im;
        y[i] = rounded.re, y[N + i] = rounded.im;
    }
}

static void run_exact_scan(const op *o, const frame *f) {
    EACH_STEP(f, b, t)
    exact_scan_row(state_of(f, b, o->state), rows_of(f, o->y) + (b * f->n + t) * o->y.width, o->w[0], o->y.width / 2);
}

/* One state of each channel: h (2, D) of it, coefficients (4, D), a and c. */
static void bank_row(real *restrict y, real *restrict h, const real *restrict k, const real *restrict u, int64_t D) {
    for (int64_t d = 0; d < D; d++) {
        const cplx a = {k[d], k[D + d]}, c = {k[2 * D + d], k[3 * D + d]}, before = {h[d], h[D + d]};
        const cplx now = bank_step(a, before, u[d]);
        h[d] = now.re, h[D + d] = now.im;
        y[d] += bank_output(c, now);
    }
}

static void run_bank(const op *o, const frame *f) {
    const int64_t D = o->y.width;
    const real *const coefficients = o->w[0], *const skip = o->w[1];
    EACH_STEP(f, b, t) {
        real *const y = rows_of(f, o->y) + (b * f->n + t) * D, *const h = state_of(f, b, o->state);
        const real *const u = rows_of(f, o->x) + (b * f->n + t) * D;
        for (int64_t d = 0; d < D; d++) y[d] = skip[d] * u[d];
        for (int64_t i = 0; i < o->count; i++) bank_row(y, h + i * 2 * D, coefficients + i * 4 * D, u, D);
    }
}

static void min_gru_row(real *restrict h, real *restrict y, const real *restrict gate, int64_t N) {
    for (int64_t i = 0; i < N; i++) {
        const real z = sigmoid(gate[i]);
        h[i] = y[i] = scan_step(1 - z, h[i], z * y[i]);
    }
}

static void run_min_gru(const op *o, const frame *f) {
    const int64_t N = o->y.width;
    EACH_STEP(f, b, t) {
        const int64_t at = (b * f->n + t) * N;
        min_gru_row(state_of(f, b, o->state), rows_of(f, o->y) + at, rows_of(f, o->x) + at, N);
    }
}

static void activate_row(real *restrict h, real *restrict y, int64_t N, int64_t cell) {
    if (cell == CELL_TANH)
        for (int64_t j = 0; j < N; j++) y[j] = vmath_tanh(y[j]);
    else if (cell == CELL_RELU)
        for (int64_t j = 0; j < N; j++) y[j] = relu(y[j]);
    copy_row(h, y, N);
}

/* z += w h for step t of all sequences at once, z (B n, width) */
static void add_recurrence(const op *o, const frame *f, rows z, int64_t t, int64_t N) {
    real *const at = rows_of(f, z) + t * z.width;
    const int64_t row = f->n * z.width, states = f->state_bytes / (int64_t)sizeof(real);
    product(at, row, at, row, (gemm_view){state_of(f, 0, o->state), states, 1}, o->w[0], f->B, N, z.width);
}

static void run_rnn(const op *o, const frame *f) {
    const int64_t N = o->y.width;
    for (int64_t t = 0; t < f->n; t++) {
        add_recurrence(o, f, o->y, t, N);
        for (int64_t b = 0; b < f->B; b++)
            activate_row(state_of(f, b, o->state), rows_of(f, o->y) + (b * f->n + t) * N, N, o->choice);
    }
}

/* h (2, N): the state and the cell. Gates in the order i, f, g, o. */
static void lstm_row(real *restrict h, real *restrict y, const real *restrict z, int64_t N) {
    real *restrict const c = h + N;
    for (int64_t j = 0; j < N; j++) {
        const lstm_gates at = lstm_gates_of((lstm_gates){z[j], z[N + j], z[2 * N + j], z[3 * N + j]});
        c[j] = lstm_cell(at, c[j]);
        y[j] = h[j] = lstm_output(at, c[j]);
    }
}

static void run_lstm(const op *o, const frame *f) {
    const int64_t N = o->y.width;
    for (int64_t t = 0; t < f->n; t++) {
        add_recurrence(o, f, o->x, t, N);
        for (int64_t b = 0; b < f->B; b++) {
            const int64_t at = b * f->n + t;
            lstm_row(state_of(f, b, o->state), rows_of(f, o->y) + at * N, rows_of(f, o->x) + at * 4 * N, N);
        }
    }
}

/* The state holds the last count-1 inputs, oldest first. */
static void run_conv(const op *o, const frame *f) {
    const int64_t D = o->y.width, taps = o->count, past = taps - 1;
    const real *const w = o->w[0];
    for (int64_t b = 0; b < f->B; b++) {
        real *const before = state_of(f, b, o->state);
        const real *const x = rows_of(f, o->x) + b * f->n * D;
        for (int64_t t = 0; t < f->n; t++) {
            real *const y = rows_of(f, o->y) + (b * f->n + t) * D;
            copy_or_zero_row(y, o->w[1], D);
            for (int64_t k = 0; k < taps; k++) {
                const real *const input = t + k < past ? before + (t + k) * D : x + (t + k - past) * D;
                for (int64_t d = 0; d < D; d++) y[d] += w[k * D + d] * input[d];
            }
        }
        const int64_t kept = most(past - f->n, 0), new = past - kept;
        memmove(before, before + new * D, (size_t)(kept * D) * sizeof(real));
        if (new) memcpy(before + kept * D, x + (f->n - new) * D, (size_t)(new * D) * sizeof(real));
    }
}

/* One state of each channel. */
static void selective_row(real *restrict y, real *restrict h, const real *restrict A, const real *restrict delta,
                          const real *restrict x, real b, real c, int64_t D) {
    for (int64_t d = 0; d < D; d++) {
        const real moved = selective_move(selective_transition(delta[d], A[d]), h[d]);
        h[d] = selective_step(moved, selective_input(delta[d], x[d]), b);
        y[d] = selective_output(y[d], h[d], c);
    }
}

static void run_selective(const op *o, const frame *f) {
    const int64_t D = o->y.width, S = o->count;
    const real *const A = o->w[0], *const skip = o->w[1];
    EACH_STEP(f, b, t) {
        const int64_t at = b * f->n + t;
        real *const y = rows_of(f, o->y) + at * D, *const h = state_of(f, b, o->state);
        const real *const x = rows_of(f, o->x) + at * D, *const delta = rows_of(f, o->z) + at * D;
        const real *const B = rows_of(f, o->v) + at * o->v.width + o->from, *const C = B + S;
        for (int64_t d = 0; d < D; d++) y[d] = skip[d] * x[d];
        for (int64_t s = 0; s < S; s++) selective_row(y, h + s * D, A + s * D, delta, x, B[s], C[s], D);
    }
}

/* ------------------------------------------------------------------------------------------------------- a push */

typedef void instruction(const op *o, const frame *f);

static instruction *const INSTRUCTIONS[OP_COUNT] = {
    [OP_DENSE] = run_dense,       [OP_AFFINE] = run_affine, [OP_LAYER_NORM] = run_layer_norm,
    [OP_ADD] = run_add,           [OP_SKIP] = run_skip,     [OP_GELU] = run_gelu,
    [OP_SILU] = run_silu,         [OP_GATE] = run_gate,     [OP_SOFTPLUS] = run_softplus,
    [OP_GLU] = run_glu,           [OP_SCAN] = run_scan,     [OP_EXACT_SCAN] = run_exact_scan,
    [OP_BANK] = run_bank,         [OP_RNN] = run_rnn,       [OP_MIN_GRU] = run_min_gru,
    [OP_LSTM] = run_lstm,         [OP_CONV] = run_conv,     [OP_SELECTIVE] = run_selective,
};

/* Steps first .. first+n-1 of each sequence through the encoder. */
static void encode(const program *p, const frame *f, const pushed *call, int64_t first) {
    const int64_t D = p->width;
    const real *const weight = p->encoder[0], *const bias = p->encoder[1];
    for (int64_t b = 0; b < f->B; b++) {
        real *const x = rows_of(f, p->x) + b * f->n * D;
        const int64_t from = b * call->n + first;
        if (!p->tokens) {
            const gemm_view input = {(const real *)call->features + from * p->inputs, p->inputs, 1};
            product(x, D, bias, 0, input, weight, f->n, p->inputs, D);
            continue;
        }
        for (int64_t t = 0; t < f->n; t++) {
            copy_row(x + t * D, bias, D);
            add_row(x + t * D, weight + call->tokens[from + t] * D, D);
        }
    }
}

/* Adds a chunk to the sums of the mean, in double, or keeps its last row. */
static void extend_pool(const program *p, const frame *f) {
    const int64_t D = p->width;
    for (int64_t b = 0; b < f->B; b++) {
        const real *const x = rows_of(f, p->x) + b * f->n * D;
        double *const sum = state_of(f, b, p->pool_state);
        if (p->pool == POOL_LAST) copy_row(state_of(f, b, p->pool_state), x + (f->n - 1) * D, D);
        for (int64_t t = 0; p->pool == POOL_MEAN && t < f->n; t++)
            for (int64_t d = 0; d < D; d++) sum[d] += (double)x[t * D + d];
    }
}

/* The logits of `count` rows of x. */
static void read_out(const program *p, real *output, const real *x, int64_t count) {
    product(output, p->outputs, p->head[1], 0, (gemm_view){x, p->width, 1}, p->head[0], count, p->width, p->outputs);
}

static void read_pool(const program *p, const frame *f, real *output) {
    const int64_t D = p->width;
    for (int64_t b = 0; b < f->B; b++) {
        real *const x = rows_of(f, p->x) + b * D;
        const double *const sum = state_of(f, b, p->pool_state);
        if (p->pool == POOL_LAST) copy_row(x, state_of(f, b, p->pool_state), D);
        for (int64_t d = 0; p->pool == POOL_MEAN && d < D; d++) x[d] = (real)(sum[d] / (double)most(f->before, 1));
    }
    read_out(p, output, rows_of(f, p->x), f->B);
}

static void push(const program *p, frame *f, const pushed *call) {
    const int64_t chunk = most(f->room / f->B, 1);
    real *const output = call->output;
    for (int64_t first = 0; first < call->n; first += f->n) {
        f->n = least(chunk, call->n - first);
        encode(p, f, call, first);
        for (int64_t i = 0; i < p->count; i++) INSTRUCTIONS[p->ops[i].kind](p->ops + i, f);
        f->before += f->n;
        if (p->pool) {
            extend_pool(p, f);
            continue;
        }
        for (int64_t b = 0; b < f->B; b++)
            read_out(p, output + (b * call->n + first) * p->outputs, rows_of(f, p->x) + b * f->n * p->width, f->n);
    }
    if (p->pool) read_pool(p, f, output);
}

/* -------------------------------------------------------------------------------------------------- to be loaded */

static int64_t packed(int64_t out, int64_t in) { return packed_columns(out) * in; }

static void convert(void *to, const double *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) ((real *)to)[i] = (real)from[i];
}

static void pack_weight(void *to, const double *w, int64_t out, int64_t in) {
    real *const panels = to;
    for (int64_t k = 0; k < in; k++)
        for (int64_t o = 0; o < out; o++) panels[(o / NR * in + k) * NR + o % NR] = (real)w[o * in + k];
}

#define ROT_TEXT_(name) #name
#define ROT_TEXT(name)  ROT_TEXT_(name)

#if ROT_DOUBLE
#define ROTATION K(orthogonal_forward)
#else
#define ROTATION NULL
#endif

const implementation K(rot_run) = {ROT_TEXT(ROT_ISA), sizeof(real), packed, pack_weight, convert, push, ROTATION};
