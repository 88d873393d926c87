/* Elementwise functions, norms, dropout, embedding, pooling and the loss, each forward next to its backward.
 *
 * Arrays are (B, T, D). `lengths` (B) or NULL: rows at t >= lengths[b] are neither read nor counted, and are zero in
 * every output. One driver divides each sequence into chunks of rows; sums over rows are taken within a chunk, and
 * the chunks' sums are added in order, in double. Chunks depend on the shapes alone, so results have the same bits for
 * any number of threads.
 * Every output is overwritten.
 */
#include <math.h>
#include <string.h>

#include "batch_norm.h"
#include "kernels.h"
#include "rows.h"
#include "workspace.h"

enum {
    CHUNK = 16384,  /* elements of one task */
    SMALL = 32768,  /* elements below which one thread is used */
    RUN = 128,      /* rows of one partial sum of the embedding's gradient */
    MAX_ARRAYS = 3, /* of one kind in a job */
};

/* Arguments of one call, for its chunks of rows. */
typedef struct {
    int64_t B, T, D;
    const int64_t *lengths, *places; /* (B) or NULL; places: of dropout */
    int64_t longest;                 /* most rows of a chunk, or 0 */
    real *out[MAX_ARRAYS];           /* (B,T,D); the driver zeroes their padding */
    const real *in[MAX_ARRAYS];      /* (B,T,D) */
    const real *channel[4];          /* (D) */
    const real *sequence;            /* (B,D) */
    real *row_out[2];                /* (B,T) */
    const real *row_in[2];           /* (B,T) */
    real *sums;                      /* (chunks,...) */
    const int64_t *ids;              /* (B,T) */
    const real *table;               /* (V,D) */
    int64_t V;
    int64_t function;
    dropout_key key;
    real eps;
} job;

/* Works on `rows` valid rows, the first of which is row `first` of (B*T). */
typedef void body(const job *j, int64_t chunk, int64_t first, int64_t rows);

static int64_t chunk_rows(const job *j) {
    const int64_t rows = j->D < 1 ? CHUNK : j->D < CHUNK / 16 ? CHUNK / j->D : 16;
    return j->longest ? least(j->longest, rows) : rows;
}

static int64_t chunks_of(const job *j) { return pieces_of(j->T, chunk_rows(j)); }

static int64_t valid_rows(const job *j, int64_t chunk, int64_t *first, int64_t *total) {
    const int64_t per = chunk_rows(j), b = chunk / chunks_of(j), t = chunk % chunks_of(j) * per;
    *first = b * j->T + t;
    *total = least(j->T - t, per);
    return least(most(steps_of(j->lengths, b, j->T) - t, 0), *total);
}

static void each_chunk(body *f, const job *j) {
    const int64_t chunks = j->B * chunks_of(j);
#pragma omp parallel for schedule(dynamic) if (j->B * j->T * j->D > SMALL)
    for (int64_t c = 0; c < chunks; c++) {
        int64_t first, total;
        const int64_t rows = valid_rows(j, c, &first, &total);
        f(j, c, first, rows);
        for (int k = 0; k < MAX_ARRAYS; k++)
            if (j->out[k] && rows < total) zero_row(j->out[k] + (first + rows) * j->D, (total - rows) * j->D);
    }
}

/* Memory for `count` rows of sums for every chunk. */
static real *new_sums(const job *j, int64_t count) { return WORKSPACE(real, j->B, chunks_of(j), count, j->D); }

/* out[d] = factor * sum over c of sums[c*stride + d], for d < n <= COLUMNS. */
static void merge_columns(real *restrict out, const real *restrict sums, int64_t chunks, int64_t stride, int64_t n,
                          double factor) {
    double total[COLUMNS] = {0};
    for (int64_t c = 0; c < chunks; c++)
        for (int64_t d = 0; d < n; d++) total[d] += (double)sums[c * stride + d];
    for (int64_t d = 0; d < n; d++) out[d] = (real)(factor * total[d]);
}

/* The same for any D. */
static void merge(real *restrict out, const real *restrict sums, int64_t chunks, int64_t stride, int64_t D,
                  double factor) {
#pragma omp parallel for schedule(static) if (chunks * D > SMALL)
    for (int64_t lo = 0; lo < D; lo += COLUMNS)
        merge_columns(out + lo, sums + lo, chunks, stride, least(D - lo, COLUMNS), factor);
}

#define AT(array) ((array) + first * j->D)

/* ------------------------------------------------------------------------------------------------ elementwise */

static void elementwise_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t n = rows * j->D;
    real *restrict y = AT(j->out[0]);
    const real *restrict x = AT(j->in[0]);
    (void)chunk;
    switch (j->function) {
    case FUNCTION_EXP:
        for (int64_t i = 0; i < n; i++) y[i] = vmath_exp(x[i]);
        break;
    case FUNCTION_SIGMOID:
        for (int64_t i = 0; i < n; i++) y[i] = sigmoid(x[i]);
        break;
    case FUNCTION_TANH:
        for (int64_t i = 0; i < n; i++) y[i] = vmath_tanh(x[i]);
        break;
    case FUNCTION_GELU:
        for (int64_t i = 0; i < n; i++) y[i] = gelu(x[i]);
        break;
    case FUNCTION_SILU:
        for (int64_t i = 0; i < n; i++) y[i] = silu(x[i]);
        break;
    case FUNCTION_SOFTPLUS:
        for (int64_t i = 0; i < n; i++) y[i] = softplus(x[i]);
        break;
    case FUNCTION_DECAY_GAIN:
        for (int64_t i = 0; i < n; i++) y[i] = decay_gain(x[i]);
        break;
    }
}

/* y, x (B,T,D); function: FUNCTION_EXP, ... */
KERNEL(elementwise) {
    each_chunk(elementwise_rows,
               &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {y}, .in = {x}, .function = function});
    return ROT_OK;
}

static void elementwise_backward_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t n = rows * j->D;
    real *restrict dx = AT(j->out[0]);
    const real *restrict dy = AT(j->in[0]), *restrict x = AT(j->in[1]);
    (void)chunk;
    switch (j->function) {
    case FUNCTION_GELU:
        for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * gelu_slope(x[i]);
        break;
    case FUNCTION_SILU:
        for (int64_t i = 0; i < n; i++) dx[i] = dy[i] * silu_slope(x[i]);
        break;
    case FUNCTION_SOFTPLUS:
        for (int64_t i = 0; i < n; i++) dx[i] = softplus_adjoint(dy[i], x[i]);
        break;
    case FUNCTION_DECAY_GAIN:
        for (int64_t i = 0; i < n; i++) dx[i] = decay_gain_adjoint(dy[i], x[i]);
        break;
    }
}

/* dx, dy, x (B,T,D), of a function whose derivative is computed from x: FUNCTION_GELU, FUNCTION_SILU,
 * FUNCTION_SOFTPLUS or FUNCTION_DECAY_GAIN. */
KERNEL(elementwise_backward) {
    each_chunk(elementwise_backward_rows,
               &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {dx}, .in = {dy, x}, .function = function});
    return ROT_OK;
}

static void glu_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    real *restrict y = AT(j->out[0]);
    const real *restrict value = AT(j->in[0]), *restrict gate = AT(j->in[1]);
    (void)chunk;
    for (int64_t i = 0; i < rows * j->D; i++) y[i] = glu(value[i], gate[i]);
}

/* y = value s(gate), all (B,T,D). */
KERNEL(glu_forward) {
    each_chunk(glu_rows, &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {y}, .in = {value, gate}});
    return ROT_OK;
}

static void glu_backward_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    real *restrict dvalue = AT(j->out[0]), *restrict dgate = AT(j->out[1]);
    const real *restrict dy = AT(j->in[0]), *restrict value = AT(j->in[1]), *restrict gate = AT(j->in[2]);
    (void)chunk;
    for (int64_t i = 0; i < rows * j->D; i++) {
        const glu_parts d = glu_adjoint(dy[i], value[i], gate[i]);
        dvalue[i] = d.value;
        dgate[i] = d.gate;
    }
}

/* dvalue = dy s(gate),  dgate = dy value s(gate) s(-gate), all (B,T,D). */
KERNEL(glu_backward) {
    each_chunk(glu_backward_rows,
               &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {dvalue, dgate}, .in = {dy, value, gate}});
    return ROT_OK;
}

static void swiglu_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    real *restrict y = AT(j->out[0]);
    const real *restrict value = AT(j->in[0]), *restrict gate = AT(j->in[1]);
    (void)chunk;
    for (int64_t i = 0; i < rows * j->D; i++) y[i] = swiglu(value[i], gate[i]);
}

/* y = value SiLU(gate), all (B,T,D). */
KERNEL(swiglu_forward) {
    each_chunk(swiglu_rows, &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {y}, .in = {value, gate}});
    return ROT_OK;
}

static void swiglu_backward_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    real *restrict dvalue = AT(j->out[0]), *restrict dgate = AT(j->out[1]);
    const real *restrict dy = AT(j->in[0]), *restrict value = AT(j->in[1]), *restrict gate = AT(j->in[2]);
    (void)chunk;
    for (int64_t i = 0; i < rows * j->D; i++) {
        const glu_parts d = swiglu_adjoint(dy[i], value[i], gate[i]);
        dvalue[i] = d.value;
        dgate[i] = d.gate;
    }
}

/* Its gradients (steps.h), all (B,T,D). */
KERNEL(swiglu_backward) {
    each_chunk(swiglu_backward_rows,
               &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {dvalue, dgate}, .in = {dy, value, gate}});
    return ROT_OK;
}

static void copy_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    (void)chunk;
    copy_row(AT(j->out[0]), AT(j->in[0]), rows * j->D);
}

/* y (B,T,D) is x with zeros in its padding. */
KERNEL(mask_padding) {
    each_chunk(copy_rows, &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {y}, .in = {x}});
    return ROT_OK;
}

/* ---------------------------------------------------------------------------------------------------- dropout */

static void dropout_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    real *restrict y = AT(j->out[0]);
    const real *restrict x = AT(j->in[0]);
    const int64_t b = first / j->T, from = first % j->T * j->D;
    real drawn[DRAW + 4];
    (void)chunk;
    for (int64_t lo = 0; lo < rows * j->D; lo += DRAW) {
        const int64_t n = least(rows * j->D - lo, DRAW);
        const real *restrict mask = draw_mask(drawn, &j->key, batch_place(j->places, b), from + lo, n);
        for (int64_t i = 0; i < n; i++) y[lo + i] = x[lo + i] * mask[i];
    }
}

static void scale_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    real *restrict y = AT(j->out[0]);
    const real *restrict x = AT(j->in[0]), *restrict by = j->sequence + first / j->T * j->D;
    (void)chunk;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < j->D; d++) y[r * j->D + d] = x[r * j->D + d] * by[d];
}

/* y = x mask / (1 - rate), y and x (B,T,D); its own adjoint. The random number of element i is word i % 4 of
 * Philox's block for the counter (i / 4, place, step, site): i runs over the (T,D) of its sequence, or over (D) with
 * `over_time`; place is places[b], or b if places is NULL. */
KERNEL(dropout) {
    job j = {.B = B, .T = T, .D = D, .lengths = lengths, .places = places, .out = {y}, .in = {x}};
    j.key = dropout_key_of(rate, seed, step, site);
    if (!over_time) {
        each_chunk(dropout_rows, &j);
        return ROT_OK;
    }
    real *const masks = WORKSPACE(real, B, D);
    if (!masks) return ROT_NO_MEMORY;
    for (int64_t b = 0; b < B; b++) {
        for (int64_t lo = 0; lo < D; lo += DRAW) {
            real drawn[DRAW + 4];
            const int64_t n = least(D - lo, DRAW);
            memcpy(masks + b * D + lo, draw_mask(drawn, &j.key, batch_place(places, b), lo, n),
                   (size_t)n * sizeof(real));
        }
    }
    j.sequence = masks;
    each_chunk(scale_rows, &j);
    pool_give(masks);
    return ROT_OK;
}

/* ------------------------------------------------------------------------------------------------ channel norm */

/* sums (chunks, 3, D) */
static void moments_chunk(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    moments_rows(j->sums + chunk * 3 * j->D, AT(j->in[0]), rows, j->D);
}

/* mean, var (D) of x (B,T,D) over its n > 0 valid rows; var is biased. */
KERNEL(channel_moments) {
    job j = {.B = B, .T = T, .D = D, .lengths = lengths, .in = {x}};
    const int64_t chunks = B * chunks_of(&j);
    int64_t *const rows = WORKSPACE(int64_t, chunks);
    j.sums = new_sums(&j, 3);
    if (!j.sums || !rows) {
        pool_give(j.sums);
        pool_give(rows);
        return ROT_NO_MEMORY;
    }
    each_chunk(moments_chunk, &j);
    for (int64_t c = 0; c < chunks; c++) {
        int64_t first, total;
        rows[c] = valid_rows(&j, c, &first, &total);
    }
    merge_moments(mean, var, j.sums, rows, chunks, D);
    pool_give(j.sums);
    pool_give(rows);
    return ROT_OK;
}

/* gain = scale / sqrt(var + eps), all (D) */
KERNEL(channel_gain) {
    for (int64_t d = 0; d < D; d++) gain[d] = channel_gain(scale[d], var[d], (real)eps);
    return ROT_OK;
}

/* running <- momentum running + (1 - momentum) batch, of both moments, all (D), in channels where both are finite */
KERNEL(running_moments) {
    const real kept = (real)momentum, rest = (real)(1 - momentum);
    for (int64_t d = 0; d < D; d++) update_running(running_mean + d, running_var + d, mean[d], var[d], kept, rest);
    return ROT_OK;
}

/* slope, shift (D): the gradient of x through its moments is slope (x - mean) + shift */
KERNEL(channel_statistics_adjoint) {
    int64_t valid = lengths ? 0 : B * T;
    for (int64_t b = 0; lengths && b < B; b++) valid += lengths[b];
    const real n = (real)(steps ? *steps : (double)valid);
    for (int64_t d = 0; d < D; d++) {
        const channel_terms one = statistics_adjoint(scale[d], var[d], (real)eps, dscale[d], dbias[d], n);
        slope[d] = one.slope, shift[d] = one.shift;
    }
    return ROT_OK;
}

static void affine_chunk(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    (void)chunk;
    affine_rows(AT(j->out[0]), AT(j->in[0]), j->channel[0], j->channel[1], j->channel[2], rows, j->D);
}

/* y = gain (x - center) + offset; y, x (B,T,D), the others (D). */
KERNEL(channel_affine) {
    each_chunk(
        affine_chunk,
        &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {y}, .in = {x}, .channel = {center, gain, offset}});
    return ROT_OK;
}

static void channel_sums_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    const real *restrict dy = AT(j->in[0]), *restrict x = AT(j->in[1]), *restrict center = j->channel[0];
    real *restrict sum = j->sums + chunk * 2 * D, *restrict product = sum + D;
    zero_row(sum, 2 * D);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t d = 0; d < D; d++) {
            sum[d] += dy[r * D + d];
            product[d] += dy[r * D + d] * (x[r * D + d] - center[d]);
        }
    }
}

/* sum, product (D): sums of dy and of dy (x - center); dy, x (B,T,D), center (D). */
KERNEL(channel_sums) {
    job j = {.B = B, .T = T, .D = D, .lengths = lengths, .in = {dy, x}, .channel = {center}};
    j.sums = new_sums(&j, 2);
    if (!j.sums) return ROT_NO_MEMORY;
    each_chunk(channel_sums_rows, &j);
    merge(sum, j.sums, B * chunks_of(&j), 2 * D, D, 1);
    merge(product, j.sums + D, B * chunks_of(&j), 2 * D, D, 1);
    pool_give(j.sums);
    return ROT_OK;
}

static void channel_adjoint_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    real *restrict dx = AT(j->out[0]);
    const real *restrict dy = AT(j->in[0]), *restrict x = AT(j->in[1]);
    const real *restrict center = j->channel[0], *restrict gain = j->channel[1];
    const real *restrict slope = j->channel[2], *restrict shift = j->channel[3];
    (void)chunk;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++)
            dx[r * D + d] = channel_norm_adjoint(gain[d] * dy[r * D + d], x[r * D + d], center[d], slope[d], shift[d]);
}

/* dx = gain dy + slope (x - center) + offset; dx, dy, x (B,T,D), the others (D). */
KERNEL(channel_adjoint) {
    each_chunk(channel_adjoint_rows, &(job){.B = B,
                                            .T = T,
                                            .D = D,
                                            .lengths = lengths,
                                            .out = {dx},
                                            .in = {dy, x},
                                            .channel = {center, gain, slope, offset}});
    return ROT_OK;
}

/* -------------------------------------------------------------------------------------------------- layer norm */

static void layer_norm_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    (void)chunk;
    for (int64_t row = first; row < first + rows; row++) {
        real *restrict y = j->out[0] + row * D;
        const real *restrict x = j->in[0] + row * D;
        const row_moments m = layer_norm_row(y, x, j->channel[0], j->channel[1], D, j->eps);
        j->row_out[0][row] = m.mean;
        j->row_out[1][row] = m.rstd;
    }
}

/* y (B,T,D), mean, rstd (B,T; not written at padding); x (B,T,D), scale, bias (D).
 *   y = (x - mean) rstd scale + bias,   rstd = 1 / sqrt(var + eps), over the D channels of each row. */
KERNEL(layer_norm_forward) {
    each_chunk(layer_norm_rows, &(job){.B = B,
                                       .T = T,
                                       .D = D,
                                       .lengths = lengths,
                                       .out = {y},
                                       .in = {x},
                                       .channel = {scale, bias},
                                       .row_out = {mean, rstd},
                                       .eps = (real)eps});
    return ROT_OK;
}

static void layer_norm_backward_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    real *const dscale = j->sums + chunk * 2 * D, *const dbias = dscale + D;
    zero_row(dscale, 2 * D);
    for (int64_t row = first; row < first + rows; row++) {
        real *restrict dx = j->out[0] + row * D;
        const real *restrict x = j->in[1] + row * D;
        const row_moments m = {j->row_in[0][row], j->row_in[1][row]};
        layer_norm_row_adjoint(dx, dscale, dbias, j->in[0] + row * D, x, j->channel[0], m, D);
    }
}

/* dx (B,T,D), dscale, dbias (D); dy, x (B,T,D), scale (D), mean, rstd (B,T) as forward wrote them.
 *   With xhat = (x - mean) rstd and g = dy scale:  dx = rstd (g - <g> - xhat <g xhat>),  <> the mean over channels;
 *   dscale = sum dy xhat,  dbias = sum dy  over all valid rows. */
KERNEL(layer_norm_backward) {
    job j = {.B = B, .T = T, .D = D, .lengths = lengths, .out = {dx}, .in = {dy, x}, .channel = {scale}};
    j.row_in[0] = mean;
    j.row_in[1] = rstd;
    j.sums = new_sums(&j, 2);
    if (!j.sums) return ROT_NO_MEMORY;
    each_chunk(layer_norm_backward_rows, &j);
    merge(dscale, j.sums, B * chunks_of(&j), 2 * D, D, 1);
    merge(dbias, j.sums + D, B * chunks_of(&j), 2 * D, D, 1);
    pool_give(j.sums);
    return ROT_OK;
}

/* ---------------------------------------------------------------------------------------------------- RMS norm */

static void rms_norm_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    (void)chunk;
    for (int64_t row = first; row < first + rows; row++)
        j->row_out[0][row] = rms_norm_row(j->out[0] + row * D, j->in[0] + row * D, j->channel[0], D, j->eps);
}

/* y (B,T,D), rstd (B,T; not written at padding); x (B,T,D), scale (D). Layer norm with mean 0 and no bias:
 *   y = x rstd scale,   rstd = 1 / sqrt(mean x^2 + eps), over the D channels of each row. */
KERNEL(rms_norm_forward) {
    each_chunk(rms_norm_rows, &(job){.B = B,
                                     .T = T,
                                     .D = D,
                                     .lengths = lengths,
                                     .out = {y},
                                     .in = {x},
                                     .channel = {scale},
                                     .row_out = {rstd},
                                     .eps = (real)eps});
    return ROT_OK;
}

static void rms_norm_backward_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    real *restrict dscale = j->sums + chunk * D;
    const real *restrict scale = j->channel[0];
    zero_row(dscale, D);
    for (int64_t row = first; row < first + rows; row++) {
        real *restrict dx = j->out[0] + row * D;
        const real *restrict dy = j->in[0] + row * D, *restrict x = j->in[1] + row * D;
        const real rstd = j->row_in[0][row];
        double product = 0;
        for (int64_t d = 0; d < D; d++) {
            const real xhat = layer_norm_xhat(x[d], 0, rstd);
            dscale[d] += dy[d] * xhat;
            product += (double)(dy[d] * scale[d] * xhat);
        }
        const real mean = (real)(product / (double)D);
        for (int64_t d = 0; d < D; d++)
            dx[d] = layer_norm_step_adjoint(dy[d] * scale[d], layer_norm_xhat(x[d], 0, rstd), rstd, 0, mean);
    }
}

/* dx (B,T,D), dscale (D); dy, x (B,T,D), scale (D), rstd (B,T) as forward wrote it. With xhat = x rstd and g = dy
 * scale: dx = rstd (g - xhat <g xhat>),  <> the mean over channels;   dscale = sum dy xhat  over all valid rows. */
KERNEL(rms_norm_backward) {
    job j = {.B = B, .T = T, .D = D, .lengths = lengths, .out = {dx}, .in = {dy, x}, .channel = {scale}};
    j.row_in[0] = rstd;
    j.sums = new_sums(&j, 1);
    if (!j.sums) return ROT_NO_MEMORY;
    each_chunk(rms_norm_backward_rows, &j);
    merge(dscale, j.sums, B * chunks_of(&j), D, D, 1);
    pool_give(j.sums);
    return ROT_OK;
}

/* --------------------------------------------------------------------------------------------------- embedding */

static void embedding_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    const real *restrict bias = j->channel[0];
    (void)chunk;
    for (int64_t row = first; row < first + rows; row++) {
        real *restrict y = j->out[0] + row * D;
        const real *restrict entry = j->table + j->ids[row] * D;
        if (bias)
            for (int64_t d = 0; d < D; d++) y[d] = entry[d] + bias[d];
        else
            copy_row(y, entry, D);
    }
}

/* y (B,T,D) = table[ids] + bias; ids (B,T), each a row of table (V,D), bias (D) or NULL. */
KERNEL(embedding_forward) {
    (void)V; /* the ids are below V: checked by rotrnn.ops */
    each_chunk(
        embedding_rows,
        &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {y}, .channel = {bias}, .ids = ids, .table = table});
    return ROT_OK;
}

/* The valid rows of (B*T), sorted by their id and cut into runs of one id. */
typedef struct {
    int64_t *rows;      /* (B*T) row numbers, in order for each id */
    int64_t *start;     /* (V+1) the place where an id's rows begin */
    int64_t *first_run; /* (V+1) the place where an id's runs begin */
    int64_t *run_id;    /* (runs) */
} grouping;

static void group_by_id(const grouping *g, const int64_t *ids, const int64_t *lengths, int64_t B, int64_t T,
                        int64_t V) {
    memset(g->start, 0, (size_t)(V + 1) * sizeof(int64_t));
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < steps_of(lengths, b, T); t++) g->start[ids[b * T + t] + 1]++;
    int64_t run = 0;
    for (int64_t v = 0; v < V; v++) {
        g->first_run[v] = run;
        for (int64_t i = 0; i < g->start[v + 1]; i += RUN) g->run_id[run++] = v;
        g->start[v + 1] += g->start[v];
    }
    g->first_run[V] = run;
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < steps_of(lengths, b, T); t++) g->rows[g->start[ids[b * T + t]]++] = b * T + t;
    for (int64_t v = V; v > 0; v--) g->start[v] = g->start[v - 1]; /* each had advanced to the start of the next */
    g->start[0] = 0;
}

/* dtable (V,D) from the rows sorted by id: each id's rows in order in runs of RUN, then its runs in order. */
static int sum_by_id(real *restrict dtable, const real *restrict dy, const int64_t *restrict ids,
                     const int64_t *restrict lengths, int64_t B, int64_t T, int64_t D, int64_t V) {
    const int64_t places = B * T, most_runs = places / RUN + least(places, V);
    int64_t *const work = WORKSPACE(int64_t, places + 2 * (V + 1) + most_runs);
    real *const sums = WORKSPACE(real, most_runs, D);
    if (!work || !sums) {
        pool_give(work);
        pool_give(sums);
        return ROT_NO_MEMORY;
    }
    const grouping g = {work, work + places, work + places + V + 1, work + places + 2 * (V + 1)};
    group_by_id(&g, ids, lengths, B, T, V);
#pragma omp parallel if (places * D > SMALL)
    {
#pragma omp for schedule(dynamic, 16)
        for (int64_t run = 0; run < g.first_run[V]; run++) {
            const int64_t v = g.run_id[run], begin = g.start[v] + (run - g.first_run[v]) * RUN;
            const int64_t end = least(begin + RUN, g.start[v + 1]);
            real *restrict sum = g.start[v + 1] - g.start[v] > RUN ? sums + run * D : dtable + v * D;
            zero_row(sum, D);
            for (int64_t i = begin; i < end; i++) add_row(sum, dy + g.rows[i] * D, D);
        }
#pragma omp for schedule(static)
        for (int64_t v = 0; v < V; v++) {
            const int64_t runs = g.first_run[v + 1] - g.first_run[v];
            if (runs == 1) continue; /* already written */
            for (int64_t lo = 0; lo < D; lo += COLUMNS)
                merge_columns(dtable + v * D + lo, sums + g.first_run[v] * D + lo, runs, D, least(D - lo, COLUMNS), 1);
        }
    }
    pool_give(work);
    pool_give(sums);
    return ROT_OK;
}

/* sums (chunks,V,D) */
static void embedding_sum_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    real *const sums = j->sums + chunk * j->V * D;
    zero_row(sums, j->V * D);
    for (int64_t row = first; row < first + rows; row++) add_row(sums + j->ids[row] * D, j->in[0] + row * D, D);
}

/* dtable (V,D); dy (B,T,D), ids (B,T).  dtable[v] = sum of dy over the valid steps with id v. If the table is small
 * compared with a chunk, each chunk of at most RUN rows has a table of sums, and dy is read in order. */
KERNEL(embedding_backward) {
    job j = {.B = B, .T = T, .D = D, .V = V, .lengths = lengths, .longest = RUN, .in = {dy}, .ids = ids};
    if (V > chunk_rows(&j) / 4) return sum_by_id(dtable, dy, ids, lengths, B, T, D, V);
    j.sums = new_sums(&j, V);
    if (!j.sums) return ROT_NO_MEMORY;
    each_chunk(embedding_sum_rows, &j);
    merge(dtable, j.sums, B * chunks_of(&j), V * D, V * D, 1);
    pool_give(j.sums);
    return ROT_OK;
}

/* ----------------------------------------------------------------------------------------------------- pooling */

static void sum_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D;
    const real *restrict x = AT(j->in[0]);
    real *restrict sum = j->sums + chunk * D;
    zero_row(sum, D);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++) sum[d] += x[r * D + d];
}

static double share_of(const job *j, int64_t b) {
    const int64_t steps = steps_of(j->lengths, b, j->T);
    return steps ? 1 / (double)steps : 0;
}

/* y (B,D), the mean over the valid rows of x (B,T,D); zero if there are none. */
KERNEL(mean_pool_forward) {
    job j = {.B = B, .T = T, .D = D, .lengths = lengths, .in = {x}};
    const int64_t chunks = chunks_of(&j);
    j.sums = new_sums(&j, 1);
    if (!j.sums) return ROT_NO_MEMORY;
    each_chunk(sum_rows, &j);
    for (int64_t b = 0; b < B; b++) merge(y + b * D, j.sums + b * chunks * D, chunks, D, D, share_of(&j, b));
    pool_give(j.sums);
    return ROT_OK;
}

static void spread_rows(const job *j, int64_t chunk, int64_t first, int64_t rows) {
    const int64_t D = j->D, b = first / j->T;
    real *restrict dx = AT(j->out[0]);
    const real *restrict dy = j->sequence + b * D;
    const real share = (real)share_of(j, b);
    (void)chunk;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < D; d++) dx[r * D + d] = dy[d] * share;
}

/* dx (B,T,D): dy (B,D) divided equally among a sequence's valid rows. */
KERNEL(mean_pool_backward) {
    each_chunk(spread_rows, &(job){.B = B, .T = T, .D = D, .lengths = lengths, .out = {dx}, .sequence = dy});
    return ROT_OK;
}

/* -------------------------------------------------------------------------------------------------------- loss */

/* loss (B), dlogits (B,C); logits (B,C), labels (B) in [0, C), or -1: the row does not count, its logits are not read,
 * and its loss and gradient are zero. The same holds for a row of weight 0.  With m the largest logit, S = sum_c e^(z_c
 * - m), n = count and w the weight of row and class,
 *   loss_b = w (log S + m - z_label),   dlogits = w (softmax - onehot) / n: of the mean loss.
 * Targets (B,C) in place of labels, and smoothed targets: entropy_target. */
KERNEL(cross_entropy) {
    const double n = (double)(count ? count[0] : B);
#pragma omp parallel for schedule(static) if (B * C > SMALL)
    for (int64_t b = 0; b < B; b++) {
        const real *restrict z = logits + b * C;
        real *restrict e = dlogits + b * C;
        const int64_t label = labels ? labels[b] : 0;
        const double of_row = row_weights ? (double)row_weights[b] : 1;
        if (label < 0 || of_row == 0) {
            loss[b] = 0;
            memset(e, 0, (size_t)C * sizeof(real));
            continue;
        }
        real largest = C ? z[0] : 0;
        double others = 0;
        for (int64_t c = 1; c < C; c++) largest = z[c] > largest ? z[c] : largest;
        for (int64_t c = 0; c < C; c++) e[c] = vmath_exp(z[c] - largest);
        if (!targets && smoothing == 0) {
            for (int64_t c = 0; c < C; c++) others += c == label ? 0 : (double)e[c];
            const double weight = of_row * (weights ? (double)weights[label] : 1);
            const double sum = others + (double)e[label], share = weight / (sum * n);
            loss[b] = (real)(weight * (log(sum) + ((double)largest - (double)z[label])));
            for (int64_t c = 0; c < C; c++) e[c] = (real)((double)e[c] * share);
            e[label] = (real)(-others * share); /* not softmax - 1, which would cancel */
            continue;
        }
        double sum = 0, whole = 0, total = 0;
        for (int64_t c = 0; c < C; c++) sum += (double)e[c];
        for (int64_t pass = 0; pass < 2; pass++) {
            for (int64_t c = 0; c < C; c++) {
                const double share = targets ? (double)targets[b * C + c] : c == label;
                const double target = entropy_target(share, weights ? (double)weights[c] : 1, smoothing, C);
                if (pass) {
                    e[c] = (real)(of_row / n * entropy_adjoint(whole, (double)e[c], sum, target));
                } else if (target != 0) { /* 0 times an infinite logit is taken as 0 */
                    whole += target;
                    total += target * (log(sum) + ((double)largest - (double)z[c]));
                }
            }
        }
        loss[b] = (real)(of_row * total);
    }
    return ROT_OK;
}
