/* The instructions of a program (program.h), for one dtype and instruction set; and the loop of a push over the
 * instructions.
 *
 * Every number depends on its own sequence alone, and comes from the same operations in the same order however many
 * steps and sequences are computed together: products by gemm_tile.h, other loops over the channels of one row.
 */
#include "run.h"

#include "exact.h"
#include "float_mode.h"
#include "half.h"
#include "kernels.h"
#include "permuted.h"
#include "rotation.h"
#include "rows.h"
#include "stop.h"

/* ------------------------------------------------------------------------------------------- maps of each row */

enum { PIECE = 48, SERIAL = 1 << 20 }; /* rows of a thread's task; products up to this many run on one thread */

/* y (rows, out) = x w^T + bias for the first `in` numbers of rows of x, w (out, in) packed, in bfloat16 if `half`. */
static void dense(real *y, const real *x, int64_t x_row, const void *w, const real *bias, bool half, int64_t rows,
                  int64_t in, int64_t out) {
    const gemm_view from = {x, x_row, 1};
#if !ROT_DOUBLE
    if (half) {
        half_product(y, out, bias, from, w, rows, in, out);
        return;
    }
#endif
    (void)half;
    unrounded_product(y, out, bias, 0, from, w, rows, in, out);
}

/* The rows from r on, at most `count` of them. */
static void dense_rows(const op *o, const frame *f, int64_t r, int64_t count) {
    const int64_t out = o->y.width, in = o->x.width;
    dense(rows_of(f, o->y) + r * out, rows_of(f, o->x) + r * in, in, o->w[0], o->w[1], o->half,
          least(count, f->B * f->n - r), o->count, out);
}

#ifdef _OPENMP
/* In the Python module, threads share the rows of a chunk. Within the loop they use the push's mode of arithmetic.
 * Outside it they have the usual mode, in which kernels run: new threads inherit it. */
static void share_rows(const op *o, const frame *f, int64_t rows) {
    const float_mode mode = float_mode_now(), usual = mode & ~(float_mode)FLOAT_MODE_BITS;
    float_mode_set(usual);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r += PIECE) {
        float_mode_set(mode);
        dense_rows(o, f, r, PIECE);
        float_mode_set(usual);
    }
    float_mode_set(mode);
}
#endif

static void run_dense(const op *o, const frame *f) {
    const int64_t rows = f->B * f->n;
#ifdef _OPENMP
    if (rows * o->count * o->y.width > SERIAL) {
        share_rows(o, f, rows);
        return;
    }
#endif
    dense_rows(o, f, 0, rows);
}

static void run_affine(const op *o, const frame *f) {
    affine_rows(rows_of(f, o->y), rows_of(f, o->x), o->w[1], o->w[0], o->w[2], f->B * f->n, o->y.width);
}

/* y holds the squares first. A compiler's options decide which products it fuses with a sum. Here there are no such
 * products unless squares are out of range, so the library and Python's extension have the same bits. */
static void run_norm(const op *o, const frame *f) {
    const int64_t width = o->y.width / o->count;
    real *restrict y = rows_of(f, o->y);
    const real *restrict x = rows_of(f, o->x), *const scales = o->w[0], *const shifts = o->w[1];
    for (int64_t r = 0; r < f->B * f->n * o->count; r++, y += width, x += width) {
        const int64_t at = r % o->count * width;
        const real *restrict scale = scales + at, *restrict shift = shifts + at;
        const real mean = o->choice ? row_mean(x, width) : 0;
        EACH(d, width) y[d] = (x[d] - mean) * (x[d] - mean);
        const real rstd = rstd_of(row_sum(y, width) / (real)width, x, mean, width, (real)o->eps);
        EACH(d, width) y[d] = layer_norm_step(layer_norm_xhat(x[d], mean, rstd), scale[d], shift[d]);
    }
}

/* Defines an elementwise instruction by its expression for one number of y, with n the width. It also works in place.
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
            EACH(d, n) y[d] = (expression);                                                                            \
        }                                                                                                              \
    }

EACH_NUMBER(run_skip, y[d] + w[d] * x[d])
EACH_NUMBER(run_gelu, gelu(x[d]))
EACH_NUMBER(run_silu, silu(x[d]))
EACH_NUMBER(run_softplus, softplus(x[d]))
EACH_NUMBER(run_sigmoid, sigmoid(x[d]))
EACH_NUMBER(run_decay, vmath_exp(w[d] * x[d]))
EACH_NUMBER(run_sum, x[d] + z[d])
EACH_NUMBER(run_product, x[d] * z[d])

#if LIB_MATRIX_STATES
/* Rates of forgetting of Mamba-3: softplus, or this function; at least `least`. */
static real rational_rate(real x) { return x < 0 ? 1 / (1 - x) : 1 + x; }
static real least_rate(real rate, real least) { return rate < least ? least : rate; }

EACH_NUMBER(run_tanh, vmath_tanh(x[d]))

/* log(least + (1 - least) exp(-rate)) from half the argument: 1 - e^{-rate} = 2 t / (1 + t), t = tanh(rate / 2). */
static void run_log_radius(const op *o, const frame *f) {
    const int64_t n = o->y.width;
    const real *const w = o->w[0], least = (real)o->eps;
    for (int64_t r = 0; r < f->B * f->n; r++) {
        real *const y = rows_of(f, o->y) + r * n;
        const real *const x = rows_of(f, o->x) + r * n;
        for (int64_t i = 0; i < n; i++) {
            const real t = vmath_tanh(w[i] * sigmoid(x[i]) / 2);
            y[i] = (real)log1p(-(double)((1 - least) * (2 * t / (1 + t))));
        }
    }
}

static void run_signed_angles(const op *o, const frame *f) {
    const int64_t n = o->y.width;
    const real *const shift = o->w[0], *const least = o->w[1], *const most = o->w[2];
    for (int64_t r = 0; r < f->B * f->n; r++) {
        real *const y = rows_of(f, o->y) + r * n;
        const real *const x = rows_of(f, o->x) + r * n;
        for (int64_t i = 0; i < n; i++) {
            const real size = least[i] + (most[i] - least[i]) * sigmoid(shift[i] + vmath_tanh(x[i]));
            y[i] = i % 2 ? -size : size;
        }
    }
}

EACH_NUMBER(run_log_decay, -z[d] * least_rate(o->choice ? rational_rate(x[d]) : softplus(x[d]), (real)o->eps))

static void run_step_angles(const op *o, const frame *f) {
    const int64_t A = o->x.width, H = o->z.width;
    for (int64_t r = 0; r < f->B * f->n; r++) {
        real *const y = rows_of(f, o->y) + r * H * A;
        const real *const x = rows_of(f, o->x) + r * A, *const delta = rows_of(f, o->z) + r * H;
        for (int64_t h = 0; h < H; h++) EACH(i, A) y[h * A + i] = delta[h] * (vmath_tanh(x[i]) * (real)ROT_PI);
    }
}

static void run_of_heads(const op *o, const frame *f) {
    const int64_t width = o->y.width, N = o->choice, heads = width / N / o->count;
    const real *const shift = o->w[0];
    for (int64_t r = 0; r < f->B * f->n; r++)
        for (int64_t h = 0; h < width / N; h++) {
            real *const y = rows_of(f, o->y) + r * width + h * N;
            const real *const x = rows_of(f, o->x) + r * o->x.width + h / heads * N, *const b = shift + h * N;
            EACH(j, N) y[j] = x[j] + b[j];
        }
}
#endif

static void run_columns(const op *o, const frame *f) {
    const int64_t n = o->y.width, width = o->x.width;
    for (int64_t r = 0; r < f->B * f->n; r++)
        copy_row(rows_of(f, o->y) + r * n, rows_of(f, o->x) + r * width + o->from, n);
}

#if LIB_HISTORIES
static void run_planes(const op *o, const frame *f) {
    const int64_t width = o->y.width, N = width / 2;
    for (int64_t r = 0; r < f->B * f->n; r++) {
        real *const y = rows_of(f, o->y) + r * width;
        const real *const x = rows_of(f, o->x) + r * width;
        if (o->choice)
            EACH(i, N) y[i] = x[2 * i], y[N + i] = x[2 * i + 1];
        else
            EACH(i, N) y[2 * i] = x[i], y[2 * i + 1] = x[N + i];
    }
}

#endif

static void run_place(const op *o, const frame *f) {
    const int64_t n = o->x.width, width = o->y.width;
    for (int64_t r = 0; r < f->B * f->n; r++)
        copy_row(rows_of(f, o->y) + r * width + o->from, rows_of(f, o->x) + r * n, n);
}

/* ------------------------------------------------------------------------------------------------- recurrences */

/* A loop over the rows of each sequence in the order of time. */
#define EACH_STEP(f, b, t)                                                                                             \
    for (int64_t b = 0; b < (f)->B; b++)                                                                               \
        for (int64_t t = 0; t < (f)->n; t++)

/* Rows (2, N): real parts, then imaginary parts. */
static void scan_row(real *restrict h, real *restrict y, const real *restrict a, int64_t N) {
    EACH(i, N) {
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
    EACH(i, N) {
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

/* The state: two sums (2, N), the sum that is read and the sum that will replace it (window.c), then a ring of the last
 * window + 1 inputs. */
static void window_row(real *restrict read, real *restrict next, real *restrict kept, real *restrict y,
                       const real *restrict oldest, const real *restrict a, const real *restrict power, int64_t N) {
    EACH(i, N) {
        const cplx turn = {a[i], a[N + i]}, last = {power[i], power[N + i]}, x = {y[i], y[N + i]};
        const cplx old = {oldest[i], oldest[N + i]}, before = {read[i], read[N + i]}, sum = {next[i], next[N + i]};
        const cplx now = plane_tiir_step(turn, last, before, x, old), begun = plane_step(turn, sum, x);
        kept[i] = x.re, kept[N + i] = x.im;
        next[i] = begun.re, next[N + i] = begun.im;
        read[i] = y[i] = now.re, read[N + i] = y[N + i] = now.im;
    }
}

static void run_window_scan(const op *o, const frame *f) {
    const int64_t width = o->y.width, L = o->window;
    EACH_STEP(f, b, t) {
        real *const read = state_of(f, b, o->state), *const next = read + width, *const ring = next + width;
        const int64_t k = *steps_read(f, b) + t;
        window_row(read, next, ring + k % (L + 1) * width, rows_of(f, o->y) + (b * f->n + t) * width,
                   ring + (k + 1) % (L + 1) * width, o->w[0], o->w[1], width / 2);
        if ((k + 1) % L) continue;
        copy_row(read, next, width);
        zero_row(next, width);
    }
}

#if LIB_HISTORIES
/* The decay gamma of a head, from the logarithm of its mean and a term of the input, and the gain of its input: `scale`
 * times sqrt(1 - gamma^2), or times 1 - gamma (`bounded`). */
typedef struct {
    real modulus, gain;
} decay;

static decay decay_of(real gamma_log, real added, real scale, bool bounded) {
    const real x = vmath_exp(gamma_log + added), above = x < (real)SLOWEST_DECAY ? (real)SLOWEST_DECAY : x;
    const real varying = above > (real)FASTEST_DECAY ? (real)FASTEST_DECAY : above;
    const double rate = varying, gain = bounded ? -expm1(-rate) : sqrt(-expm1(-2 * rate));
    return (decay){vmath_exp(-varying), scale * (real)gain};
}

static void run_turning_scan(const op *o, const frame *f) {
    const int64_t N = o->y.width / 2, H = most(o->count, 1), apart = pair_apart(2 * N, o->from);
    const real *const a = o->w[0], *const gamma_log = o->w[1], *const scale = o->w[2];
    EACH_STEP(f, b, t) {
        const int64_t row = b * f->n + t;
        real *const h = state_of(f, b, o->state), *const y = rows_of(f, o->y) + row * 2 * N;
        const real *const angles = rows_of(f, o->x) + row * N, *const added = rows_of(f, o->z) + row * H;
        for (int64_t i = 0; i < N; i++) {
            const int64_t head = i / (N / H), at = pair_first(i, o->from);
            const decay d = o->count ? decay_of(gamma_log[head], added[head], scale[head], o->choice) : (decay){1, 1};
            const real angle = angles[i];
            const cplx turn = {(real)cos((double)angle) * d.modulus, (real)sin((double)angle) * d.modulus};
            const cplx x = {d.gain * y[at], d.gain * y[at + apart]}, none = {0, 0};
            const cplx moved = cplx_fma((cplx){a[i], a[N + i]}, turn, none);
            const cplx now = plane_step(moved, (cplx){h[i], h[N + i]}, x);
            y[at] = h[i] = now.re, y[at + apart] = h[N + i] = now.im;
        }
    }
}

#endif

static void run_decay_gain(const op *o, const frame *f) {
    const int64_t N = o->y.width;
    EACH_STEP(f, b, t) {
        real *const y = rows_of(f, o->y) + (b * f->n + t) * N;
        const real *const x = rows_of(f, o->x) + (b * f->n + t) * N;
        const bool first = *steps_read(f, b) + t == 0;
        EACH(i, N) y[i] = first ? 1 : decay_gain(x[i]);
    }
}

/* --------------------------------------------------------------------------------------------------- histories */

/* The rows (width) that an instruction keeps of a sequence, for the last `window` steps or for all; and the row of step
 * k. */
static real *history_of(const op *o, const frame *f, int64_t b) {
    return state_of(f, b, o->window ? o->state : f->fixed_bytes + f->capacity * o->state);
}
static int64_t kept_row(const op *o, int64_t k) { return o->window ? k % o->window : k; }
static int64_t first_kept(const op *o, int64_t k) { return o->window ? most(k - o->window + 1, 0) : 0; }

/* Turns channels (2i, 2i+1) of each head at position k by k w_i. */
static void run_rotary(const op *o, const frame *f) {
    const int64_t D = o->y.width, pairs = o->choice;
    const double *const frequencies = o->w[0];
    EACH_STEP(f, b, t) {
        real *const y = rows_of(f, o->y) + (b * f->n + t) * D;
        for (int64_t i = 0; i < pairs; i++) {
            const double angle = (double)(*steps_read(f, b) + t) * frequencies[i];
            const cplx turn = {(real)cos(angle), (real)sin(angle)}, none = {0, 0};
            for (int64_t at = 2 * i; at < D; at += D / o->count) {
                const cplx before = {y[at], y[at + 1]}, turned = cplx_fma(turn, before, none);
                y[at] = turned.re, y[at + 1] = turned.im;
            }
        }
    }
}

#if LIB_MATRIX_STATES
/* The sums are in double, within half a turn. */
static void run_angles(const op *o, const frame *f) {
    const int64_t n = o->y.width;
    EACH_STEP(f, b, t) {
        double *const c = state_of(f, b, o->state);
        const real *const theta = rows_of(f, o->x) + (b * f->n + t) * n;
        real *const y = rows_of(f, o->y) + (b * f->n + t) * n;
        for (int64_t i = 0; i < n; i++) y[i] = (real)(c[i] = within_half_turn(c[i] + (double)theta[i]));
    }
}

/* Heads of y, of `count` numbers, by angles of a row (heads, pairs). */
static void run_turn(const op *o, const frame *f) {
    const int64_t N = o->count, angles = o->x.width, apart = pair_apart(N, o->choice);
    const int64_t heads = o->y.width / N, pairs = o->from;
    for (int64_t r = 0; r < f->B * f->n * heads; r++) {
        real *const y = rows_of(f, o->y) + r * N;
        const real *const c = rows_of(f, o->x) + r / heads * angles + r % heads * pairs % angles;
        for (int64_t i = 0; i < pairs; i++) {
            real *const at = y + pair_first(i, o->choice);
            const cplx x = {at[0], at[apart]}, turned = turn_step(unit_of(c[i]), x);
            at[0] = turned.re, at[apart] = turned.im;
        }
    }
}
#endif

static real dot(const real *restrict x, const real *restrict y, int64_t n) {
    real sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * y[i];
    return sum;
}

/* One head. q (width) becomes the mean of the values from step `first` to k, weighted by the softmax of its products
 * with the keys. Rows of `kept` have K numbers of keys, then K of values. The sums are kept relative to the largest
 * score so far. */
static void attend(const op *o, real *restrict q, real *restrict mean, const real *kept, int64_t k, int64_t K,
                   int64_t width) {
    const real scale = (real)(1 / sqrt((double)width));
    real largest = -(real)INFINITY, total = 0;
    zero_row(mean, width);
    for (int64_t i = first_kept(o, k); i <= k; i++) {
        const real *const key = kept + kept_row(o, i) * 2 * K, *const value = key + K;
        const real score = scale * dot(q, key, width), top = score > largest ? score : largest;
        const real shrink = vmath_exp(largest - top), share = vmath_exp(score - top);
        EACH(d, width) mean[d] = mean[d] * shrink + share * value[d];
        total = total * shrink + share;
        largest = top;
    }
    EACH(d, width) q[d] = mean[d] / total;
}

static void run_attention(const op *o, const frame *f) {
    const int64_t D = o->y.width, K = o->x.width, width = D / o->count, shared = D / K;
    EACH_STEP(f, b, t) {
        const int64_t row = b * f->n + t, k = *steps_read(f, b) + t;
        real *const kept = history_of(o, f, b), *const at = kept + kept_row(o, k) * 2 * K;
        real *const q = rows_of(f, o->y) + row * D, *const mean = rows_of(f, o->v) + row * width;
        copy_row(at, rows_of(f, o->x) + row * K, K);
        copy_row(at + K, rows_of(f, o->z) + row * K, K);
        for (int64_t h = 0; h < o->count; h++) attend(o, q + h * width, mean, kept + h / shared * width, k, K, width);
    }
}

#if LIB_HISTORIES
/* The angle of an age, where L is the typical length of a sequence (python/rotrnn/ops/memory.py). */
static double wrope_angle(double age, double L, int64_t form) {
    if (form == WROPE_REVERSED || form == WROPE_NONE) return 0;
    if (form == WROPE_UNIFORM) return 2 * ROT_PI * age / L;
    if (form == WROPE_WARPED) return 2 * ROT_PI * age / (age + L);
    if (age < L) return ROT_PI * age / L;
    return ROT_PI + ROT_PI * (form == WROPE_BLEND ? (age - L) / age : age / (age + 1));
}

static cplx wrope_turn(int64_t age, double L, int64_t form) {
    const double angle = wrope_angle((double)age, L, form);
    return (cplx){(real)cos(angle), (real)sin(angle)};
}

/* y += turn h, of n of the N planes */
static void add_turned(real *restrict y, const real *restrict h, cplx turn, int64_t n, int64_t N) {
    EACH(i, n) {
        const cplx before = {h[i], h[N + i]}, sum = {y[i], y[N + i]}, now = cplx_fma(turn, before, sum);
        y[i] = now.re, y[N + i] = now.im;
    }
}

static void turn_row(real *y, cplx turn, int64_t n, int64_t N) {
    EACH(i, n) {
        const cplx before = {y[i], y[N + i]}, none = {0, 0}, now = cplx_fma(turn, before, none);
        y[i] = now.re, y[N + i] = now.im;
    }
}

/* Rows (2N + 2): row i has the state of a step, and the weight of age i. */
static const real *stored_row(const op *o, const real *kept, int64_t i) {
    return kept + kept_row(o, i) * (o->y.width + 2);
}
static cplx age_weight(const op *o, const real *kept, int64_t age) {
    const real *const weight = kept + age * (o->y.width + 2) + o->y.width;
    return (cplx){weight[0], weight[1]};
}

/* The n planes of a head, from its first, of y: the sum of the states up to step k, with weights by age if w. */
static void sum_history(const op *o, real *y, const real *kept, const real *w, int64_t first, int64_t n, int64_t k) {
    const int64_t N = o->y.width / 2;
    for (int64_t i = first_kept(o, k); i <= k; i++) {
        const cplx turn = age_weight(o, kept, k - i);
        const real by = w ? w[least(k - i, o->from - 1)] : 1;
        add_turned(y + first, stored_row(o, kept, i) + first, (cplx){by * turn.re, by * turn.im}, n, N);
    }
}

/* The same with the softmax of the products of a query q with the turned states: sums as in `attend`. */
static void read_history(const op *o, real *y, const real *kept, const real *q, int64_t first, int64_t n, int64_t k) {
    const int64_t N = o->y.width / 2;
    const real scale = (real)(1 / sqrt(2 * (double)n));
    real largest = -(real)INFINITY, total = 0;
    for (int64_t i = first_kept(o, k); i <= k; i++) {
        const cplx turn = age_weight(o, kept, k - i);
        const real *const re = stored_row(o, kept, i) + first, *const im = re + N;
        const real along = dot(q + first, re, n) + dot(q + N + first, im, n);
        const real across = dot(q + N + first, re, n) - dot(q + first, im, n);
        const real score = scale * (turn.re * along + turn.im * across), top = score > largest ? score : largest;
        const real shrink = vmath_exp(largest - top), share = vmath_exp(score - top);
        turn_row(y + first, (cplx){shrink, 0}, n, N);
        add_turned(y + first, re, (cplx){share * turn.re, share * turn.im}, n, N);
        total = total * shrink + share;
        largest = top;
    }
    turn_row(y + first, (cplx){1 / total, 0}, n, N);
}

static void run_history(const op *o, const frame *f) {
    const int64_t N = o->y.width / 2, width = 2 * N + 2, n = N / o->count;
    const real *const w = o->w[0];
    EACH_STEP(f, b, t) {
        const int64_t k = *steps_read(f, b) + t, row = (b * f->n + t) * 2 * N;
        real *const y = rows_of(f, o->y) + row, *const kept = history_of(o, f, b);
        if (o->choice == WROPE_REVERSED) turn_row(y, wrope_turn(k, o->eps, WROPE_WARPED), N, N);
        copy_row(kept + kept_row(o, k) * width, y, 2 * N);
        if (!o->window || k < o->window) {
            const cplx turn = wrope_turn(k, o->eps, o->choice);
            real *const weight = kept + k * width + 2 * N;
            weight[0] = turn.re, weight[1] = turn.im;
        }
        zero_row(y, 2 * N);
        for (int64_t head = 0; head < o->count; head++)
            if (o->x.width)
                read_history(o, y, kept, rows_of(f, o->x) + row, head * n, n, k);
            else
                sum_history(o, y, kept, w ? w + head * o->from : NULL, head * n, n, k);
    }
}

#endif

/* ---------------------------------------------------------------------------------------- banks and gated layers */

/* One state of each channel: h (2, D), and coefficients (4, D), a and c. */
static void bank_row(real *restrict y, real *restrict h, const real *restrict k, const real *restrict u, int64_t D) {
    EACH(d, D) {
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
        EACH(d, D) y[d] = skip[d] * u[d];
        for (int64_t i = 0; i < o->count; i++) bank_row(y, h + i * 2 * D, coefficients + i * 4 * D, u, D);
    }
}

#if LIB_S4
/* One state of each channel: h (2, D), and its coefficients k. */

static void dplr_feed_row(real *restrict s, const real *restrict h, const real *restrict k, int64_t D) {
    const real *const q = k + 2 * DPLR_Q * D;
    EACH(d, D) s[d] = dplr_output(s[d], (cplx){q[d], q[D + d]}, (cplx){h[d], h[D + d]});
}

static void dplr_move_row(real *restrict h, const real *restrict s, const real *restrict k, const real *restrict u,
                          int64_t D) {
    const real *const a = k + 2 * DPLR_A * D, *const p = k + 2 * DPLR_P * D, *const gain = k + 2 * DPLR_GAIN * D;
    EACH(d, D) {
        const cplx now = dplr_step((cplx){a[d], a[D + d]}, (cplx){p[d], p[D + d]}, (cplx){gain[d], gain[D + d]},
                                   (cplx){h[d], h[D + d]}, s[d], u[d]);
        h[d] = now.re, h[D + d] = now.im;
    }
}

static void dplr_drive_row(real *restrict h, const real *restrict gain, const real *restrict u, int64_t D) {
    EACH(d, D) {
        const cplx now = dplr_product((cplx){h[d], h[D + d]}, (cplx){gain[d], gain[D + d]}, u[d]);
        h[d] = now.re, h[D + d] = now.im;
    }
}

static void dplr_read_row(real *restrict y, const real *restrict h, const real *restrict k, int64_t D) {
    const real *const c = k + 2 * DPLR_C * D;
    EACH(d, D) y[d] = dplr_output(y[d], (cplx){c[d], c[D + d]}, (cplx){h[d], h[D + d]});
}

/* w: the coefficients, and the gains of the direct paths (inputs, D); z: memory for s. */
static void run_dplr_bank(const op *o, const frame *f) {
    const int64_t D = o->y.width, inputs = o->x.width / D, width = 2 * (DPLR_GAIN + inputs) * D;
    const real *const coefficients = o->w[0], *const skip = o->w[1];
    EACH_STEP(f, b, t) {
        const int64_t at = b * f->n + t;
        real *const y = rows_of(f, o->y) + at * D, *const s = rows_of(f, o->z) + at * D;
        real *const states = state_of(f, b, o->state);
        const real *const u = rows_of(f, o->x) + at * inputs * D;
        zero_row(s, D);
        zero_row(y, D);
        for (int64_t n = 0; n < o->count; n++) dplr_feed_row(s, states + n * 2 * D, coefficients + n * width, D);
        for (int64_t m = 0; m < inputs; m++) EACH(d, D) y[d] += skip[m * D + d] * u[m * D + d];
        for (int64_t n = 0; n < o->count; n++) {
            real *const h = states + n * 2 * D;
            const real *const k = coefficients + n * width;
            dplr_move_row(h, s, k, u, D);
            for (int64_t m = 1; m < o->choice; m++) dplr_drive_row(h, k + 2 * (DPLR_GAIN + m) * D, u + m * D, D);
            dplr_read_row(y, h, k, D);
        }
    }
}

/* The state: the last count - 1 inputs, the most recent one first. */
static void run_products(const op *o, const frame *f) {
    const int64_t D = o->x.width, past = o->count - 1;
    EACH_STEP(f, b, t) {
        const int64_t at = b * f->n + t;
        const real *const x = rows_of(f, o->x) + at * D;
        real *const y = rows_of(f, o->y) + at * o->count * D, *const before = state_of(f, b, o->state);
        copy_row(y, x, D);
        for (int64_t i = 0; i < past; i++) EACH(d, D) y[(i + 1) * D + d] = y[i * D + d] * before[i * D + d];
        memmove(before + D, before, (size_t)((past - 1) * D) * sizeof(real));
        copy_row(before, x, D);
    }
}
#endif

static void real_scan_row(real *restrict h, real *restrict y, const real *restrict a, const real *restrict x,
                          int64_t N) {
    EACH(i, N) h[i] = y[i] = scan_step(a[i], h[i], x[i]);
}

static void run_real_scan(const op *o, const frame *f) {
    const int64_t N = o->y.width;
    EACH_STEP(f, b, t) {
        const int64_t at = (b * f->n + t) * N;
        real_scan_row(state_of(f, b, o->state), rows_of(f, o->y) + at, rows_of(f, o->x) + at, rows_of(f, o->z) + at, N);
    }
}

#if LIB_S4
static void oscillator_row(real *restrict h, real *restrict y, const real *restrict m, const real *restrict f,
                           const real *restrict u, int64_t N) {
    EACH(j, N) {
        const oscillator_map by = {m[j], m[N + j], m[2 * N + j], m[3 * N + j]};
        const oscillator_pair before = {h[j], h[N + j]}, in = {f[j], f[N + j]};
        const oscillator_pair now = oscillator_step(by, before, in, u[j]);
        h[j] = y[j] = now.z;
        h[N + j] = y[N + j] = now.x;
    }
}

static void run_oscillator(const op *o, const frame *f) {
    const int64_t N = o->x.width;
    EACH_STEP(f, b, t) {
        const int64_t at = (b * f->n + t) * N;
        oscillator_row(state_of(f, b, o->state), rows_of(f, o->y) + 2 * at, o->w[0], o->w[1], rows_of(f, o->x) + at, N);
    }
}
#endif

#if LIB_MATRIX_STATES
static void run_softmax(const op *o, const frame *f) {
    const int64_t width = o->y.width / o->count;
    real *restrict y = rows_of(f, o->y);
    const real *restrict x = rows_of(f, o->x);
    for (int64_t r = 0; r < f->B * f->n * o->count; r++, y += width, x += width) {
        real high = x[0], sum = 0;
        for (int64_t i = 1; i < width; i++) high = x[i] > high ? x[i] : high;
        for (int64_t i = 0; i < width; i++) sum += y[i] = vmath_exp(x[i] - high);
        EACH(i, width) y[i] /= sum;
    }
}

static void run_polar(const op *o, const frame *f) {
    const int64_t N = o->x.width, apart = pair_apart(2 * N, !o->choice);
    for (int64_t r = 0; r < f->B * f->n; r++) {
        real *restrict const y = rows_of(f, o->y) + r * 2 * N;
        const real *restrict const size = rows_of(f, o->x) + r * N, *restrict const angle = rows_of(f, o->z) + r * N;
        EACH(j, N) {
            const cplx unit = unit_of((real)within_half_turn((double)angle[j]));
            const int64_t at = pair_first(j, !o->choice);
            y[at] = size[j] * unit.re, y[at + apart] = size[j] * unit.im;
        }
    }
}

static void run_unit_scan(const op *o, const frame *f) {
    const int64_t width = o->y.width, N = o->count;
    const real *restrict const w = o->w[0];
    EACH_STEP(f, b, t) {
        const int64_t at = b * f->n + t;
        real *restrict q = state_of(f, b, o->state), *restrict const y = rows_of(f, o->y) + at * width;
        const real *restrict c = rows_of(f, o->x) + at * width * N, *restrict const v = rows_of(f, o->z) + at * width;
        for (int64_t i = 0; i < width; i++, q += 2 * N, c += N) {
            real sum = 0;
            for (int64_t j = 0; j < N; j++) {
                const cplx e = unit_of(c[j]), now = {q[2 * j] + v[i] * e.re, q[2 * j + 1] + v[i] * e.im};
                q[2 * j] = now.re, q[2 * j + 1] = now.im;
                sum += w[j] * (e.re * now.re + e.im * now.im) - w[N + j] * (e.im * now.re - e.re * now.im);
            }
            y[i] = sum;
        }
    }
}

/* Works on a strip of columns at a time, and needs no memory for the chosen rows. */
static void run_permuted(const op *o, const frame *f) {
    const int64_t N = o->y.width / 2;
    EACH_STEP(f, b, t) {
        const int64_t at = b * f->n + t;
        real *const y = rows_of(f, o->y) + at * 2 * N, *const h = state_of(f, b, o->state);
        const real *const w = rows_of(f, o->x) + at * o->x.width, *const d = rows_of(f, o->z) + at * 2 * N;
        bool numbers = true;
        copy_row(y, rows_of(f, o->v) + at * 2 * N, 2 * N);
        for (int64_t lo = 0; lo < N; lo += STRIP) {
            const int64_t n = least(N - lo, STRIP);
            int64_t p[STRIP];
            numbers &= choose_rows(p, w, (const real *)o->w[0] + lo, o->count, N, n);
            scatter_lanes(y, h + lo, p, d + lo, N, n);
        }
        if (!numbers) lose_lanes(y, N);
        copy_row(h, y, 2 * N);
    }
}
#endif

static void activate_row(real *restrict h, real *restrict y, int64_t N, int64_t cell) {
    if (cell == CELL_TANH)
        EACH(j, N) y[j] = vmath_tanh(y[j]);
    else if (cell == CELL_RELU)
        EACH(j, N) y[j] = relu(y[j]);
    copy_row(h, y, N);
}

static void run_rnn(const op *o, const frame *f) {
    const int64_t N = o->y.width;
    for (int64_t t = 0; t < f->n; t++) {
        add_recurrence(f, o->y, 0, N, t, o->w[0], o->state, N);
        for (int64_t b = 0; b < f->B; b++)
            activate_row(state_of(f, b, o->state), rows_of(f, o->y) + (b * f->n + t) * N, N, o->choice);
    }
}

/* Gates in the order i, f, g, o. */
static void lstm_row(real *restrict h, real *restrict c, real *restrict y, const real *restrict z, int64_t N) {
    EACH(j, N) {
        const lstm_gates at = lstm_gates_of((lstm_gates){z[j], z[N + j], z[2 * N + j], z[3 * N + j]});
        c[j] = lstm_cell(at, c[j]);
        y[j] = h[j] = lstm_output(at, c[j]);
    }
}

static void run_lstm(const op *o, const frame *f) {
    const int64_t N = o->y.width;
    for (int64_t t = 0; t < f->n; t++) {
        add_recurrence(f, o->x, 0, 4 * N, t, o->w[0], o->state, N);
        for (int64_t b = 0; b < f->B; b++) {
            const int64_t at = b * f->n + t;
            real *const h = state_of(f, b, o->state); /* followed by the cell */
            lstm_row(h, h + N, rows_of(f, o->y) + at * N, rows_of(f, o->x) + at * 4 * N, N);
        }
    }
}

static void gru_row(real *restrict h, real *restrict y, const real *restrict x, const real *restrict u,
                    const real *restrict b, int64_t N) {
    EACH(j, N) {
        const gru_gates at = gru_gates_of(x[j] + b[j], x[N + j] + b[N + j], x[2 * N + j], u[j] + b[2 * N + j]);
        y[j] = h[j] = gru_output(at, h[j]);
    }
}

static void run_gru(const op *o, const frame *f) {
    const int64_t N = o->y.width;
    for (int64_t t = 0; t < f->n; t++) {
        for (int64_t b = 0; b < f->B; b++) zero_row(rows_of(f, o->z) + (b * f->n + t) * N, N);
        add_recurrence(f, o->x, 0, 2 * N, t, o->w[0], o->state, N);
        add_recurrence(f, o->z, 0, N, t, o->w[1], o->state, N);
        for (int64_t b = 0; b < f->B; b++) {
            const int64_t at = b * f->n + t;
            gru_row(state_of(f, b, o->state), rows_of(f, o->y) + at * N, rows_of(f, o->x) + at * 3 * N,
                    rows_of(f, o->z) + at * N, o->w[2], N);
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
                EACH(d, D) y[d] += w[k * D + d] * input[d];
            }
        }
        const int64_t kept = most(past - f->n, 0), new = past - kept;
        memmove(before, before + new *D, (size_t)(kept * D) * sizeof(real));
        if (new) memcpy(before + kept * D, x + (f->n - new) * D, (size_t)(new *D) * sizeof(real));
    }
}

#if LIB_MATRIX_STATES
/* y = (q . k) v in each head. */
static void run_bonus(const op *o, const frame *f) {
    const int64_t heads = o->count, keys = o->x.width / heads, values = o->y.width / heads;
    EACH_STEP(f, b, t) {
        const int64_t row = b * f->n + t;
        for (int64_t head = 0; head < heads; head++) {
            const real *const q = rows_of(f, o->x) + row * o->x.width + head * keys;
            const real *const k = rows_of(f, o->z) + row * o->z.width + head * keys;
            const real *const v = rows_of(f, o->v) + row * o->v.width + head * values;
            real *const y = rows_of(f, o->y) + row * o->y.width + head * values, size = 0;
            for (int64_t s = 0; s < keys; s++) size += q[s] * k[s];
            EACH(j, values) y[j] = size * v[j];
        }
    }
}

/* One state of each channel. By vectors: a compiler does not vectorise the ends of the exponential. */
static void selective_row(real *restrict y, real *restrict h, const real *restrict A, const real *restrict delta,
                          const real *restrict x, real b, real c, int64_t D, bool negative) {
    int64_t d = 0;
    for (; d + LANES <= D; d += LANES) {
        const vec step = load(delta + d), decay = selective_decay_vec(step, load(A + d));
        const vec moved = selective_move_vec(decay, load(h + d), negative);
        store(h + d, selective_step_vec(moved, selective_input_vec(step, load(x + d)), b));
        store(y + d, selective_output_vec(load(y + d), load(h + d), c));
    }
    for (; d < D; d++) {
        const real moved = selective_move(selective_decay(delta[d], A[d]), h[d], negative);
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
        const real *const B = rows_of(f, o->v) + at * S, *const C = rows_of(f, o->s) + at * S;
        EACH(d, D) y[d] = skip[d] * x[d];
        for (int64_t s = 0; s < S; s++) selective_row(y, h + s * D, A + s * D, delta, x, B[s], C[s], D, o->negative);
    }
}

/* One state of each channel of a head, with e = exp(delta A). */
static void head_row(real *restrict y, real *restrict h, real e, bool negative, real delta, const real *restrict x,
                     real b, real c, int64_t P) {
    EACH(j, P) {
        h[j] = selective_step(selective_move(e, h[j], negative), selective_input(delta, x[j]), b);
        y[j] = selective_output(y[j], h[j], c);
    }
}

/* The same with the transition a and two taps: for the last input, which decays too, and for the current input. */
static void trapezoid_row(real *restrict y, real *restrict h, real a, real older, real newer, const real *restrict last,
                          const real *restrict x, real c, int64_t P) {
    EACH(j, P) {
        h[j] = a * (h[j] + older * last[j]) + newer * x[j];
        y[j] = selective_output(y[j], h[j], c);
    }
}

/* The two taps of one rank, with inputs multiplied by g; and the readout of one rank. */
static void rank_taps(real *restrict h, real older, real newer, const real *restrict last, const real *restrict x,
                      const real *restrict g, int64_t P) {
    EACH(j, P) h[j] += g[j] * (older * last[j] + newer * x[j]);
}
static void rank_read(real *restrict y, const real *restrict h, real c, int64_t P) {
    EACH(j, P) y[j] = selective_output(y[j], h[j], c);
}

/* The state of a head is (N,P). */
static void run_ssd(const op *o, const frame *f) {
    const int64_t D = o->y.width, H = o->z.width, N = o->count, G = o->choice, P = D / H;
    const real *const A = o->w[0], *const skip = o->w[1];
    EACH_STEP(f, b, t) {
        const int64_t at = b * f->n + t;
        real *const y = rows_of(f, o->y) + at * D, *const h = state_of(f, b, o->state);
        const real *const x = rows_of(f, o->x) + at * D, *const delta = rows_of(f, o->z) + at * H;
        const real *const in = rows_of(f, o->v) + at * G * N, *const out = rows_of(f, o->s) + at * G * N;
        for (int64_t i = 0; i < H; i++) {
            const real e = exp2_of((real)ssd_exponent(delta[i], A[i]));
            const real *const B = in + i / (H / G) * N, *const C = out + i / (H / G) * N;
            EACH(j, P) y[i * P + j] = skip[i] * x[i * P + j];
            for (int64_t s = 0; s < N; s++)
                head_row(y + i * P, h + (i * N + s) * P, e, o->negative, delta[i], x + i * P, B[s], C[s], P);
        }
    }
}

/* The state: like run_ssd's, then the last B and x. Each of `from` ranks has its own B, C and y, and gains if w[0] is
 * given. */
static void run_trapezoid(const op *o, const frame *f) {
    const int64_t D = o->x.width, H = o->z.width, N = o->count, G = o->choice, P = D / H, R = o->from;
    const real *const gain = o->w[0], *const skip = o->w[1];
    EACH_STEP(f, b, t) {
        const int64_t at = b * f->n + t;
        real *const y = rows_of(f, o->y) + at * R * D, *const h = state_of(f, b, o->state);
        real *const B_last = h + N * D, *const x_last = B_last + R * G * N;
        const real *const x = rows_of(f, o->x) + at * D, *const delta = rows_of(f, o->z) + at * H;
        const real *const in = rows_of(f, o->v) + at * R * G * N, *const out = rows_of(f, o->s) + at * R * G * N;
        const real *const lam = rows_of(f, o->t) + at * H, *const log_a = rows_of(f, o->e) + at * H;
        for (int64_t i = 0; i < H; i++) {
            const int64_t group = i / (H / G) * N;
            const real *const now = x + i * P, *const last = x_last + i * P;
            const real a = exp2_of((real)ssd_exponent(log_a[i], 1)), newer = lam[i] * delta[i],
                       older = delta[i] - newer;
            for (int64_t q = 0; q < R; q++) {
                const real *const g = gain ? gain + (i * R + q) * P : NULL;
                EACH(j, P) y[q * D + i * P + j] = skip[i] * (g ? g[j] * now[j] : now[j]);
            }
            for (int64_t s = 0; s < N; s++) {
                real *const own = h + (i * N + s) * P;
                if (!gain) {
                    trapezoid_row(y + i * P, own, a, older * B_last[group + s], newer * in[group + s], last, now,
                                  out[group + s], P);
                    continue;
                }
                EACH(j, P) own[j] *= a;
                for (int64_t q = 0; q < R; q++) {
                    const int64_t B = q * G * N + group + s;
                    rank_taps(own, a * older * B_last[B], newer * in[B], last, now, gain + (i * R + q) * P, P);
                }
                for (int64_t q = 0; q < R; q++) rank_read(y + q * D + i * P, own, out[q * G * N + group + s], P);
            }
        }
        copy_row(B_last, in, R * G * N);
        copy_row(x_last, x, D);
    }
}

/* The taps of first-order hold over delta: p e^{-i(c - theta)} / rho for the last input, which decays afterwards, and q
 * e^{-ic} for the current input. p and q are integrals of s e^{ws} and (1 - s) e^{ws} (python/rotrnn/ops/hold.py); in
 * double, because p is divided by |rho|. */
typedef struct {
    cplx older, newer;
} hold_taps;

static hold_taps hold_taps_of(double log_a, double theta, double c, double delta, const double *rule, int64_t places) {
    double p[2] = {0, 0}, q[2] = {0, 0};
    for (int64_t j = 0; j < places; j++) {
        const double s = rule[j], size = rule[places + j] * exp(log_a * s), re = size * cos(theta * s),
                     im = size * sin(theta * s);
        p[0] += s * re, p[1] += s * im, q[0] += (1 - s) * re, q[1] += (1 - s) * im;
    }
    const double back = delta * exp(-log_a), cos_c = cos(c), sin_c = sin(c), cos_w = cos(theta), sin_w = sin(theta);
    return (hold_taps){
        .older = {(real)(back * (p[0] * cos_w + p[1] * sin_w)), (real)(back * (p[1] * cos_w - p[0] * sin_w))},
        .newer = {(real)(delta * (q[0] * cos_c + q[1] * sin_c)), (real)(delta * (q[1] * cos_c - q[0] * sin_c))}};
}

/* The state: like run_ssd's, turned back by the sums c of the angles, then the last B, turned back likewise, and x. */
static void run_hold(const op *o, const frame *f) {
    const int64_t D = o->x.width, H = o->z.width, N = o->count, P = D / H, places = o->from;
    const double *const rule = o->w[0];
    EACH_STEP(f, b, t) {
        const int64_t at = b * f->n + t;
        real *const y = rows_of(f, o->y) + at * D, *const h = state_of(f, b, o->state);
        real *const B_last = h + N * D, *const x_last = B_last + H * N;
        const real *const x = rows_of(f, o->x) + at * D, *const delta = rows_of(f, o->z) + at * H;
        const real *const in = rows_of(f, o->v) + at * H * N, *const out = rows_of(f, o->s) + at * H * N;
        const real *const log_a = rows_of(f, o->t) + at * H, *const theta = rows_of(f, o->e) + at * H;
        const real *const c = rows_of(f, o->f) + at * H;
        for (int64_t i = 0; i < H; i++) {
            const hold_taps taps =
                hold_taps_of((double)log_a[i], (double)theta[i], (double)c[i], (double)delta[i], rule, places);
            const cplx back = {unit_of(c[i]).re, -unit_of(c[i]).im};
            const real a = exp2_of((real)ssd_exponent(log_a[i], 1));
            zero_row(y + i * P, P);
            for (int64_t s = 0; s < N; s += 2) {
                real *const last = B_last + i * N + s;
                const real *const B = in + i * N + s, *const C = out + i * N + s;
                const cplx older = turn_step(taps.older, (cplx){last[0], last[1]});
                const cplx newer = turn_step(taps.newer, (cplx){B[0], B[1]});
                const cplx read = turn_step(back, (cplx){C[0], C[1]}), kept = turn_step(back, (cplx){B[0], B[1]});
                real *const own = h + (i * N + s) * P;
                trapezoid_row(y + i * P, own, a, older.re, newer.re, x_last + i * P, x + i * P, read.re, P);
                trapezoid_row(y + i * P, own + P, a, older.im, newer.im, x_last + i * P, x + i * P, read.im, P);
                last[0] = kept.re, last[1] = kept.im;
            }
        }
        copy_row(x_last, x, D);
    }
}

#endif

#if LIB_MATRIX_STATES || LIB_XLSTM
/* sum (values) <- h^T c of a head's state h (keys, values); with d, h^T (d c) */
static void state_product(real *restrict sum, const real *restrict h, const real *restrict c, const real *restrict d,
                          int64_t keys, int64_t values) {
    zero_row(sum, values);
    for (int64_t s = 0; s < keys; s++) {
        const real by = d ? d[s] * c[s] : c[s];
        EACH(j, values) sum[j] += h[s * values + j] * by;
    }
}
#endif

#if LIB_MATRIX_STATES
/* A Householder step (delta.c): its decay, a or d by keys, and its keys; e and f may be NULL. */
typedef struct {
    const real *k, *v, *d, *e, *f;
    real a, beta;
} householder_step;

/* read (values) is overwritten. */
static void householder_row(real *restrict h, real *restrict read, householder_step i, int64_t keys, int64_t values) {
    const real a = i.e || i.d ? 1 : i.a;
    state_product(read, h, i.e ? i.e : i.k, i.e ? NULL : i.d, keys, values);
    EACH(j, values) read[j] = i.f ? a * read[j] : i.beta * delta_error(i.v[j], a, read[j]);
    for (int64_t s = 0; s < keys; s++) {
        real *const row = h + s * values;
        const real decay = i.d ? i.d[s] : i.a, k = i.k[s];
        if (i.f)
            EACH(j, values) row[j] = delta_erase(delta_step(row[j], decay, k, i.beta * i.v[j]), i.f[s], read[j]);
        else
            EACH(j, values) row[j] = delta_step(row[j], decay, k, read[j]);
    }
}

/* Rows of keys, values and betas are by Householder step, then by head. */
static void run_delta(const op *o, const frame *f) {
    const int64_t heads = o->count, values = o->y.width / heads, steps = o->z.width / o->y.width;
    const int64_t keys = o->x.width / heads;
    EACH_STEP(f, b, t) {
        const int64_t row = b * f->n + t;
        real *y = rows_of(f, o->y) + row * o->y.width, *h = state_of(f, b, o->state);
        const real *const q = rows_of(f, o->x) + row * o->x.width, *const k = rows_of(f, o->v) + row * o->v.width;
        const real *const v = rows_of(f, o->z) + row * o->z.width;
        const real *const beta = o->s.width ? rows_of(f, o->s) + row * o->s.width : NULL;
        const real *const decay = o->t.width ? rows_of(f, o->t) + row * o->t.width : NULL;
        const real *const e = o->e.width ? rows_of(f, o->e) + row * o->e.width : NULL;
        const real *const erase = o->f.width ? rows_of(f, o->f) + row * o->f.width : NULL;
        for (int64_t head = 0; head < heads; head++, y += values, h += keys * values) {
            for (int64_t i = 0; i < steps; i++) {
                const int64_t own = i * heads + head;
                const bool decays = decay && i == 0;
                householder_step one = {k + own * keys, v + own * values, .a = 1, .beta = beta ? beta[own] : 1};
                if (decays && o->choice) one.d = decay + head * keys;
                if (decays && !o->choice) one.a = decay[head];
                if (e) one.e = e + own * keys;
                if (erase) one.f = erase + own * keys;
                householder_row(h, y, one, keys, values);
            }
            state_product(y, h, q + head * keys, NULL, keys, values);
        }
    }
}
#endif

#if LIB_XLSTM
/* A step of a head (mlstm.c): its memory c (keys, values) and n (keys), scaled by e^{-m}, and y: values, then the
 * readout. Exponents are of 2. At the end k holds the terms of n . q: products without a sum, like in run_norm. */
static void mlstm_row(real *restrict y, real *restrict c, real *restrict n, real *restrict m, const real *restrict q,
                      real *restrict k, real log_i, real log_f, int64_t keys, int64_t values) {
    const double past = level_exponent(*m) + gate_exponent(log_f), new = gate_exponent(log_i);
    *m = level_of_exponent(past > new ? past : new);
    const double level = level_exponent(*m);
    const real kept = exp2_of((real)(past - level)), taken = exp2_of((real)(new - level));
    for (int64_t s = 0; s < keys; s++) {
        const real gain = taken * k[s];
        EACH(j, values) c[s * values + j] = scan_step(kept, c[s * values + j], gain * y[j]);
    }
    EACH(s, keys) n[s] = scan_step(kept, n[s], taken * k[s]);
    EACH(s, keys) k[s] = n[s] * q[s];
    state_product(y, c, q, NULL, keys, values);
    const real inverse = 1 / denominator_of(row_sum(k, keys), least_denominator(level));
    EACH(j, values) y[j] *= inverse;
}

/* The state of a head: c, n and m. */
static void run_mlstm(const op *o, const frame *f) {
    const int64_t heads = o->count, values = o->y.width / heads, keys = o->x.width / heads;
    EACH_STEP(f, b, t) {
        const int64_t row = b * f->n + t;
        real *y = rows_of(f, o->y) + row * o->y.width, *c = state_of(f, b, o->state);
        real *k = rows_of(f, o->z) + row * o->x.width;
        const real *q = rows_of(f, o->x) + row * o->x.width;
        const real *const log_i = rows_of(f, o->v) + row * heads, *const log_f = rows_of(f, o->s) + row * heads;
        for (int64_t i = 0; i < heads; i++, y += values, q += keys, k += keys) {
            real *const n = c + keys * values, *const m = n + keys;
            mlstm_row(y, c, n, m, q, k, log_i[i], log_f[i], keys, values);
            c = m + 1;
        }
    }
}

/* Rows of z, N apart: gates in the order i, f, z, o. The state: h, c, n and m. */
static void slstm_row(real *restrict state, real *restrict y, const real *restrict z, int64_t N, int64_t P,
                      bool exponential) {
    real *restrict const h = state, *restrict const c = h + P, *restrict const n = c + P, *restrict const m = n + P;
    EACH(j, P) {
        const lstm_gates raw = {z[j], z[N + j], z[2 * N + j], z[3 * N + j]};
        const slstm_memory before = {c[j], n[j], m[j]};
        const slstm_memory now = slstm_step(h + j, raw, before, exponential);
        c[j] = now.c, n[j] = now.n, m[j] = now.m;
        y[j] = h[j];
    }
}

/* One head, w: the matrices of its gates. */
static void run_slstm(const op *o, const frame *f) {
    const int64_t N = o->y.width, P = o->count;
    for (int64_t t = 0; t < f->n; t++) {
        for (int64_t i = 0; i < 4; i++) add_recurrence(f, o->x, i * N + o->from, P, t, o->w[i], o->state, P);
        for (int64_t b = 0; b < f->B; b++) {
            const int64_t at = b * f->n + t;
            slstm_row(state_of(f, b, o->state), rows_of(f, o->y) + at * N + o->from,
                      rows_of(f, o->x) + at * 4 * N + o->from, N, P, o->choice);
        }
    }
}
#endif

/* ------------------------------------------------------------------------------------------------------- a push */

static instruction *const INSTRUCTIONS[OP_COUNT] = {
    [OP_DENSE] = run_dense,
    [OP_AFFINE] = run_affine,
    [OP_NORM] = run_norm,
    [OP_SKIP] = run_skip,
    [OP_GELU] = run_gelu,
    [OP_SILU] = run_silu,
    [OP_SIGMOID] = run_sigmoid,
    [OP_DECAY] = run_decay,
    [OP_SUM] = run_sum,
    [OP_PRODUCT] = run_product,
    [OP_COLUMNS] = run_columns,
    [OP_PLACE] = run_place,
    [OP_SOFTPLUS] = run_softplus,
    [OP_DECAY_GAIN] = run_decay_gain,
    [OP_SCAN] = run_scan,
    [OP_EXACT_SCAN] = run_exact_scan,
    [OP_BANK] = run_bank,
    [OP_RNN] = run_rnn,
    [OP_REAL_SCAN] = run_real_scan,
    [OP_LSTM] = run_lstm,
    [OP_GRU] = run_gru,
    [OP_CONV] = run_conv,
    [OP_ROTARY] = run_rotary,
    [OP_ATTENTION] = run_attention,
    [OP_WINDOW_SCAN] = run_window_scan,
#if LIB_HISTORIES
    [OP_PLANES] = run_planes,
    [OP_HISTORY] = run_history,
    [OP_TURNING_SCAN] = run_turning_scan,
#endif
#if LIB_S4
    [OP_OSCILLATOR] = run_oscillator,
    [OP_DPLR_BANK] = run_dplr_bank,
    [OP_PRODUCTS] = run_products,
#endif
#if LIB_MATRIX_STATES
    [OP_SELECTIVE] = run_selective,
    [OP_UNIT_SCAN] = run_unit_scan,
    [OP_SOFTMAX] = run_softmax,
    [OP_POLAR] = run_polar,
    [OP_PERMUTED] = run_permuted,
    [OP_SSD] = run_ssd,
    [OP_TRAPEZOID] = run_trapezoid,
    [OP_HOLD] = run_hold,
    [OP_TANH] = run_tanh,
    [OP_LOG_RADIUS] = run_log_radius,
    [OP_HEAD_ANGLES] = run_signed_angles,
    [OP_LOG_DECAY] = run_log_decay,
    [OP_STEP_ANGLES] = run_step_angles,
    [OP_OF_HEADS] = run_of_heads,
    [OP_ANGLES] = run_angles,
    [OP_TURN] = run_turn,
    [OP_BONUS] = run_bonus,
    [OP_DELTA] = run_delta,
#endif
#if LIB_XLSTM
    [OP_MLSTM] = run_mlstm,
    [OP_SLSTM] = run_slstm,
#endif
#if LIB_FIXED_POINTS
    [OP_FIXED_POINT] = K(rot_run_fixed_point),
    [OP_MATRIX_FIXED_POINT] = K(rot_run_matrix_fixed_point),
#endif
};

/* Steps first .. first+n-1 of each sequence through the encoder. */
static void encode(const program *p, const frame *f, const pushed *call, int64_t first) {
    const int64_t D = p->width;
    const real *const weight = p->encoder[0], *const bias = p->encoder[1];
    for (int64_t b = 0; b < f->B; b++) {
        real *const x = rows_of(f, p->x) + b * f->n * D;
        const int64_t from = b * call->n + first;
        if (!p->tokens) {
            dense(x, (const real *)call->features + from * p->inputs, p->inputs, weight, bias, p->half, f->n, p->inputs,
                  D);
            continue;
        }
        for (int64_t t = 0; t < f->n; t++) {
            const int64_t row = call->tokens[from + t] * D;
            copy_row(x + t * D, bias, D);
            if (p->half)
                add_half_row(x + t * D, (const uint16_t *)p->encoder[0] + row, D);
            else
                add_row(x + t * D, weight + row, D);
        }
    }
}

/* Adds a chunk to the sums of the mean, in double, or saves its last row. */
static void extend_pool(const program *p, const frame *f) {
    const int64_t D = p->last.width;
    for (int64_t b = 0; b < f->B; b++) {
        const real *const x = rows_of(f, p->last) + b * f->n * D;
        double *const sum = state_of(f, b, p->pool_state);
        if (p->pool == POOL_LAST) copy_row(state_of(f, b, p->pool_state), x + (f->n - 1) * D, D);
        for (int64_t t = 0; p->pool == POOL_MEAN && t < f->n; t++) EACH(d, D) sum[d] += (double)x[t * D + d];
    }
}

/* The logits of `count` rows of x: cap tanh(logit / cap) if there is a cap. */
static void read_out(const program *p, real *output, const real *x, int64_t count) {
    const int64_t D = p->last.width;
    dense(output, x, D, p->head[0], p->head[1], p->half, count, D, p->outputs);
    const real cap = (real)p->cap;
    for (int64_t i = 0; p->cap > 0 && i < count * p->outputs; i++) output[i] = cap * vmath_tanh(output[i] / cap);
}

static void read_pool(const program *p, const frame *f, real *output) {
    const int64_t D = p->last.width;
    for (int64_t b = 0; b < f->B; b++) {
        real *const x = rows_of(f, p->last) + b * D;
        const double *const sum = state_of(f, b, p->pool_state);
        if (p->pool == POOL_LAST) copy_row(x, state_of(f, b, p->pool_state), D);
        const double steps = (double)most(*steps_read(f, b), 1);
        for (int64_t d = 0; p->pool == POOL_MEAN && d < D; d++) x[d] = (real)(sum[d] / steps);
    }
    read_out(p, output, rows_of(f, p->last), f->B);
}

/* A stopped push leaves the state between two chunks. */
static void push(const program *p, frame *f, const pushed *call) {
    const int64_t chunk = most(f->room / f->B, 1);
    real *const output = call->output;
    rot_stop *const stop = stop_of_call();
    for (int64_t first = 0; first < call->n && !stopped(stop); first += f->n) {
        f->n = least(chunk, call->n - first);
        encode(p, f, call, first);
        for (int64_t i = 0; i < p->count; i++) INSTRUCTIONS[p->ops[i].kind](p->ops + i, f);
        for (int64_t b = 0; b < f->B; b++) *steps_read(f, b) += f->n;
        if (p->pool) {
            extend_pool(p, f);
            continue;
        }
        const int64_t rows = call->last ? first + f->n == call->n : f->n; /* the last rows of the chunk */
        for (int64_t b = 0; b < f->B; b++)
            read_out(p, output + (call->last ? b : b * call->n + first) * p->outputs,
                     rows_of(f, p->last) + ((b + 1) * f->n - rows) * p->last.width, rows);
    }
    if (p->pool)
        read_pool(p, f, output);
    else if (call->last && !call->n)
        memset(output, 0, (size_t)(f->B * p->outputs) * sizeof *output);
}

/* -------------------------------------------------------------------------------------------------- to be loaded */

static int64_t packed(int64_t out, int64_t in) { return packed_columns(out) * in; }

static void convert(void *to, const double *from, int64_t count) {
    for (int64_t i = 0; i < count; i++) ((real *)to)[i] = (real)from[i];
}

static void pack_weight(void *to, const double *w, int64_t out, int64_t in) {
    real *panels = to;
    for (int64_t o = 0; o < out; o += NR, panels += in * NR) { /* a panel is written from front to back */
        const int64_t columns = least(NR, out - o);
        for (int64_t k = 0; k < in; k++)
            for (int64_t j = 0; j < columns; j++) panels[k * NR + j] = (real)w[(o + j) * in + k];
    }
}

#define ROT_TEXT_(name) #name
#define ROT_TEXT(name)  ROT_TEXT_(name)

const implementation K(rot_run) = {ROT_TEXT(ROT_ISA), sizeof(real), packed, pack_weight, pack_half, convert, push};
