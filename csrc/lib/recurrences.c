/* The instructions that keep a state: scans, banks of filters, convolutions, memories. What does not depend on time is
 * in arrays of the file. Planes are stored as (2, N): all real parts, then all imaginary parts.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "read.h"

/* ------------------------------------------------------------------------------------------------------- planes */

/* h <- a h + z for planes z, which become h. With a window, of the last inputs alone. */
static void emit_scan(reader *r, rows planes, const double *a, const double *lasting, int64_t window) {
    const int64_t N = planes.width / 2;
    if (!good(r->b)) return;
    op *const scan = emit(r->b, window ? OP_WINDOW_SCAN : lasting ? OP_EXACT_SCAN : OP_SCAN, planes, planes);
    scan->w[0] = lasting && !window ? stored_exact(r->b, lasting, 2 * N) : stored(r->b, a, 2 * N);
    scan->state = window ? state_for(r, (window + 3) * 2 * N) /* two sums, and a ring of window + 1 */
                         : take_state(r->b, 2 * N, lasting ? sizeof(double) : r->b->run->number);
    if (!window) return;
    double *const power = spare(r->b, 2 * N);
    for (int64_t i = 0; power && i < N; i++) {
        const exact z = exact_power((exact){a[i], a[N + i]}, window);
        power[i] = z.re, power[N + i] = z.im;
    }
    scan->w[1] = stored(r->b, power, 2 * N);
    scan->window = window;
}

/* Transitions whose rounding would add up, as they do not decay: a list of 2 N numbers; NULL where it is null. */
static const double *lasting_of(reader *r, int64_t N) {
    const json *const list = json_member(r->p.settings, "exact");
    if (list && list->kind == JSON_NULL) return NULL;
    double *const a = expect(r, list && list->kind == JSON_LIST) ? spare(r->b, 2 * N) : NULL;
    int64_t i = 0;
    for (const json *one = a ? list->first : NULL; one; one = one->next, i++) {
        if (!expect(r, i < 2 * N && one->kind == JSON_NUMBER)) return NULL;
        a[i] = one->number;
    }
    return expect(r, i == 2 * N) ? a : NULL;
}

/* w_in (2 N, D) = gain B, of the inputs 2 to 4; gain (2, N) is 1 where it is not given. */
static const double *input_of(reader *r, int64_t N, int64_t D) {
    const double *const re = doubles(r, r->in[2]), *const im = doubles(r, r->in[3]), *const gain = doubles(r, r->in[4]);
    double *const w = good(r->b) ? spare(r->b, 2 * N * D) : NULL;
    for (int64_t i = 0; w && i < N * D; i++) {
        const exact by = gain ? (exact){gain[i / D], gain[N + i / D]} : (exact){1, 0};
        const exact z = exact_mul(by, (exact){re[i], im[i]});
        w[i] = z.re, w[N * D + i] = z.im;
    }
    return w;
}

/* w_out (D, 2 N) = weight (C_re, -C_im), of the inputs 6 and 7. */
static const double *output_of(reader *r, int64_t N, int64_t D, double weight) {
    const double *const re = doubles(r, r->in[6]), *const im = doubles(r, r->in[7]);
    double *const w = good(r->b) ? spare(r->b, 2 * N * D) : NULL;
    for (int64_t i = 0; w && i < N * D; i++) {
        double *const row = w + i / N * 2 * N + i % N;
        row[0] = weight * re[i], row[N] = -weight * im[i];
    }
    return w;
}

/* h <- a h + gain (B x), y = weight Re(C h) + skip x: a (2, N), B (N, D) as two arrays, gain (2, N) or none, skip (D),
 * C (D, N) as two arrays. If `hidden`, h is a second output. */
void read_system(reader *r) {
    const value *const x = steps(r, 0, 1), *const a = fixed(r, 1, 2);
    const int64_t D = x->shape[0], N = a->shape[1], window = window_of(r->b, &r->p);
    const double weight = number_of(r->b, &r->p, "weight");
    const bool hidden =
        json_member(r->p.settings, "hidden") && flag_of(r->b, &r->p, "hidden"); /* absent for one output */
    if (!expect(r, N > 0 && N < LARGEST / D && is(a, 0, 2) && r->in[2] && r->in[3] && r->in[5] && r->in[6] && r->in[7]))
        return;
    for (int64_t i = 2; i < 8; i++) {
        const bool in = i<4, whole = i> 5;
        const int64_t rows = in ? N : i == 4 ? 2 : D, columns = in ? D : whole || i == 4 ? N : 0;
        if (!expect(r, is_matrix_or_none(r, i, rows, columns))) return;
    }
    if (r->in[8]) unsupported(r->b, &r->p, " that runs in both directions");
    const double *const lasting = lasting_of(r, N);
    const rows planes = good(r->b) ? rows_for(r, 2 * N) : (rows){0, 0};
    const double *const w_in = input_of(r, N, D), *const w_out = output_of(r, N, D, weight);
    if (!good(r->b)) return;
    emit_dense(r->b, planes, x->rows, computed(w_in), NULL);
    emit_scan(r, planes, doubles(r, a), lasting, window);
    const rows y = make(r, D);
    if (!good(r->b)) return;
    emit_dense(r->b, y, planes, computed(w_out), NULL);
    emit(r->b, OP_SKIP, y, x->rows)->w[0] = stored(r->b, doubles(r, r->in[5]), D);
#if LIB_HISTORIES
    if (hidden) (void)make_adjacent(r, planes);
#else
    if (hidden) left_out(r->b, &r->p, " whose states are read", "LIB_HISTORIES");
#endif
    give_back(r, planes);
}

#if LIB_HISTORIES
/* Planes v (N, 2), which become h <- a e^{i angle} h + v, with transitions a (2, N). With decays (H), gamma_log (H) and
 * scale (H), a has the modulus 1, that of a step is exp(-exp(gamma_log + decay)), and v is multiplied by scale
 * sqrt(1 - modulus^2), by heads. In older files there is no window, and v is (2, N). */
void read_turning_scan(reader *r) {
    const value *const v = steps(r, 0, 1), *const angles = steps(r, 1, 1), *const a = fixed(r, 2, 2);
    const bool older = !json_member(r->p.settings, "window");
    const int64_t N = a->shape[1];
    if (!older && window_of(r->b, &r->p)) unsupported(r->b, &r->p, " with a window");
    if (!expect(r, N > 0 && is(a, 0, 2) && is(angles, 0, N) && v->shape[0] / 2 == N && v->shape[0] % 2 == 0)) return;
    const bool decays = r->in[3] || r->in[4] || r->in[5], bounded = flag_of(r->b, &r->p, "bounded");
    const int64_t H = decays ? steps(r, 3, 1)->shape[0] : 1;
    if (!expect(r, N % H == 0) || (decays && !expect(r, is(fixed(r, 4, 1), 0, H) && is(fixed(r, 5, 1), 0, H)))) return;
    const rows h = make_copy(r, 0);
    if (!good(r->b)) return;
    op *const scan = emit(r->b, OP_TURNING_SCAN, h, angles->rows);
    scan->w[0] = stored(r->b, doubles(r, a), 2 * N);
    scan->from = older;
    scan->state = state_for(r, 2 * N);
    if (!decays) return;
    scan->z = r->in[3]->rows;
    scan->count = H;
    scan->choice = bounded;
    scan->w[1] = stored(r->b, doubles(r, r->in[4]), H);
    scan->w[2] = stored(r->b, doubles(r, r->in[5]), H);
}

#endif

/* ------------------------------------------------------------------------------------------------------ filters */

static void emit_conv(reader *r, rows y, rows x, const double *by_tap, const double *shift, int64_t taps) {
    if (!good(r->b)) return;
    op *const conv = emit(r->b, OP_CONV, y, x);
    conv->count = taps;
    conv->w[0] = stored(r->b, by_tap, taps * y.width);
    conv->w[1] = stored(r->b, shift, y.width);
    conv->state = state_for(r, (taps - 1) * y.width);
}

/* x (D), w (D, taps) and a bias (D), or none of both: x itself. */
void read_conv(reader *r) {
    const value *const x = steps(r, 0, 1);
    const int64_t D = x->shape[0];
    if (!r->in[1]) {
        if (expect(r, !r->in[2])) (void)make_copy(r, 0);
        return;
    }
    const value *const w = fixed(r, 1, 2);
    const int64_t taps = w->shape[1];
    if (!expect(r, is(w, 0, D) && taps > 0 && is_matrix_or_none(r, 2, D, 0))) return;
    const double *const by_tap = transposed(r, w), *const shift = doubles(r, r->in[2]);
    emit_conv(r, make_like(r, x), x->rows, by_tap, shift, taps);
}

/* A bank with a window is a convolution with the response of its filters, Re sum_n c_n a_n^lag + skip at lag 0. */
static void emit_response(reader *r, rows y, rows x, const double *k, const double *skip, int64_t N, int64_t window) {
    const int64_t D = x.width, longest = (int64_t)1 << 26; /* numbers of a response */
    if (window > longest / D)
        failed(r->b->error, ROTRNN_UNSUPPORTED, "%s, a Bank, has window %lld, expected at most %lld", r->p.name,
               (long long)window, (long long)(longest / D));
    double *const taps = good(r->b) ? spare(r->b, window * D) : NULL; /* oldest first */
    if (!good(r->b)) return;
    for (int64_t d = 0; d < D; d++) {
        for (int64_t n = 0; n < N; n++) {
            const double *const at = k + n * 4 * D + d;
            exact term = {at[2 * D], at[3 * D]};
            for (int64_t lag = 0; lag < window; lag++, term = exact_mul(term, (exact){at[0], at[D]}))
                taps[(window - 1 - lag) * D + d] += term.re;
        }
        taps[(window - 1) * D + d] += skip[d];
    }
    emit_conv(r, y, x, taps, NULL, window);
}

/* The filters of each channel, k (1, N, 4, D): a and c of the states; skip (D). */
void read_bank(reader *r) {
    const value *const x = steps(r, 0, 1), *const k = fixed(r, 1, 4), *const skip = fixed(r, 2, 1);
    const int64_t D = x->shape[0], N = k->shape[1], window = window_of(r->b, &r->p);
    if (!expect(r, is(k, 2, 4) && is(k, 3, D) && N > 0 && is(skip, 0, D))) return;
    if (k->shape[0] != 1) unsupported(r->b, &r->p, " that runs in both directions");
    const rows y = make(r, D);
    const double *const filters = doubles(r, k), *const skips = doubles(r, skip);
    if (!good(r->b)) return;
    if (window) {
        emit_response(r, y, x->rows, filters, skips, N, window);
        return;
    }
    op *const bank = emit(r->b, OP_BANK, y, x->rows);
    bank->count = N;
    bank->w[0] = stored(r->b, filters, 4 * N * D);
    bank->w[1] = stored(r->b, skips, D);
    bank->state = state_for(r, 2 * N * D);
}

#if LIB_S4
/* Inputs (inputs D), of which some drive the states: k (N, DPLR_GAIN + drives.., 2, D), skips (inputs, D). */
void read_dplr_bank(reader *r) {
    const value *const x = steps(r, 0, 1), *const k = fixed(r, 1, 4), *const skips = fixed(r, 2, 2);
    const int64_t N = k->shape[0], inputs = skips->shape[0], D = skips->shape[1];
    const int64_t drives = integer_of(r->b, &r->p, "drives", 1);
    if (!expect(r, N > 0 && D > 0 && inputs > 0 && inputs <= INT32_MAX && is(k, 1, DPLR_GAIN + inputs)) ||
        !expect(r, is(k, 2, 2) && is(k, 3, D) && x->shape[0] / D == inputs && x->shape[0] % D == 0) ||
        !expect(r, drives <= inputs))
        return;
    const rows y = make(r, D), room = rows_for(r, D);
    if (!good(r->b)) return;
    op *const bank = emit(r->b, OP_DPLR_BANK, y, x->rows);
    bank->z = room;
    bank->count = N;
    bank->choice = drives;
    bank->w[0] = stored(r->b, doubles(r, k), numbers_of(k));
    bank->w[1] = stored(r->b, doubles(r, skips), inputs * D);
    bank->state = state_for(r, 2 * N * D);
    give_back(r, room);
}

/* The products of the last 1, 2, ... `degree` inputs. */
void read_products(reader *r) {
    const value *const x = steps(r, 0, 1);
    const int64_t degree = integer_of(r->b, &r->p, "degree", 2), D = x->shape[0];
    const rows y = good(r->b) && expect(r, degree <= LARGEST / D) ? make(r, degree * D) : (rows){0, 0};
    if (!good(r->b)) return;
    op *const products = emit(r->b, OP_PRODUCTS, y, x->rows);
    products->count = degree;
    products->state = state_for(r, (degree - 1) * D);
}
#endif

/* ----------------------------------------------------------------------------------------------------- histories */

/* x (D) in `heads`, each of pairs that turn by the position, with frequencies base^(-i / pairs): of the first `rotated`
 * channels of a head, or of all of them. */
void read_rotary(reader *r) {
    const value *const x = steps(r, 0, 1);
    const int64_t D = x->shape[0], heads = integer_of(r->b, &r->p, "heads", 1), width = D / heads;
    const bool part = json_member(r->p.settings, "rotated");
    const int64_t rotated = part ? integer_of(r->b, &r->p, "rotated", 2) : width, pairs = rotated / 2;
    const double base = number_of(r->b, &r->p, "base");
    if (!expect(r, width * heads == D && pairs && pairs * 2 == rotated && rotated <= width)) return;
    double *const frequencies = spare(r->b, pairs);
    for (int64_t i = 0; frequencies && i < pairs; i++) frequencies[i] = pow(base, -(double)i / (double)pairs);
    const rows y = make_copy(r, 0);
    if (!good(r->b)) return;
    op *const turn = emit(r->b, OP_ROTARY, y, y);
    turn->count = heads;
    turn->choice = pairs;
    turn->w[0] = stored_exact(r->b, frequencies, pairs);
}

#if LIB_MATRIX_STATES
/* The sums of angles over the steps so far, in rows for this line only. */
static rows summed_angles(reader *r, const value *theta) {
    const rows c = rows_for(r, numbers_of(theta));
    emit(r->b, OP_ANGLES, c, theta->rows)->state = take_state(r->b, c.width, sizeof(double));
    return c;
}

/* x (..., H, N) and z alike, whose pairs of lanes turn by the sums of angles theta (H, A). */
void read_turn(reader *r) {
    const value *const theta = steps(r, 0, 2);
    const bool halves = choice_of(r->b, &r->p, "pairs", PAIRS_NAMES) == PAIRS_HALVES;
    const int64_t H = theta->shape[0], A = theta->shape[1];
    if (!good(r->b)) return;
    const rows c = summed_angles(r, theta);
    for (int64_t i = 1; i < 2 + (r->in[2] != NULL); i++) {
        const value *const x = steps(r, i, 0);
        if (!expect(r, x->axes > 1 && is(x, x->axes - 2, H) && A <= x->shape[x->axes - 1] / 2)) return;
        const int64_t N = x->shape[x->axes - 1];
        op *const o = emit(r->b, OP_TURN, make_copy(r, i), c);
        o->count = N;
        o->from = A;
        o->choice = halves;
    }
    give_back(r, c);
}
#endif

/* Queries q (D) in `heads`; keys k and values v (K), whose heads are as wide and may be shared. */
void read_attention(reader *r) {
    const value *const q = steps(r, 0, 1), *const k = steps(r, 1, 1), *const v = steps(r, 2, 1);
    const int64_t D = q->shape[0], K = k->shape[0], heads = integer_of(r->b, &r->p, "heads", 1), width = D / heads;
    const int64_t window = window_of(r->b, &r->p);
    if (!expect(r, width && width * heads == D && K % width == 0 && K && heads % (K / width) == 0 && alike(k, v)))
        return;
    const rows y = make_copy(r, 0), room = rows_for(r, width);
    if (!good(r->b)) return;
    op *const attend = emit(r->b, OP_ATTENTION, y, k->rows);
    attend->z = v->rows, attend->v = room;
    attend->count = heads;
    keep_steps(r->b, attend, window, 2 * K);
    give_back(r, room);
}

#if LIB_HISTORIES
/* Planes (2, N), which become the sum of all of them so far, each turned by its age. */
static op *emit_history(reader *r, rows planes, int64_t form, int64_t heads) {
    const int64_t length = integer_of(r->b, &r->p, "length", 1), window = window_of(r->b, &r->p);
    op *const read = emit(r->b, OP_HISTORY, planes, (rows){0, 0});
    read->choice = form;
    read->eps = (double)length;
    read->count = heads;
    keep_steps(r->b, read, window, planes.width + 2); /* a state, and the weight of the age that is new */
    return read;
}

/* The line of older files for a sum of planes (2, N). */
void read_wrope(reader *r) {
    const value *const x = steps(r, 0, 1);
    const int64_t form = choice_of(r->b, &r->p, "form", WROPE_LINE_NAMES);
    if (!expect(r, x->shape[0] % 2 == 0)) return;
    const rows y = make_copy(r, 0);
    if (good(r->b)) (void)emit_history(r, y, form, 1);
}

/* Planes h (N, 2), and weights by age w (heads, A), or queries q (N, 2), or none of both. */
void read_history(reader *r) {
    const value *const h = steps(r, 0, 1), *const w = r->in[1], *const q = r->in[2];
    const int64_t form = choice_of(r->b, &r->p, "angles", WROPE_NAMES);
    const int64_t heads = integer_of(r->b, &r->p, "heads", 1), N = h->shape[0] / 2;
    (void)flag_of(r->b, &r->p, "counted"); /* the library counts the steps of every sequence */
    if (!expect(r, N * 2 == h->shape[0] && N && N % heads == 0 && !(w && q)) ||
        (w && !expect(r, is(fixed(r, 1, 2), 0, heads) && w->shape[1] > 0)) ||
        (q && !expect(r, alike(steps(r, 2, 1), h))))
        return;
    const rows planes = halves_for(r, h->rows), queries = q ? halves_for(r, q->rows) : (rows){0, 0};
    if (!good(r->b)) return;
    op *const read = emit_history(r, planes, form, heads);
    read->x = queries;
    if (w) {
        read->from = w->shape[1];
        read->w[0] = stored(r->b, doubles(r, w), numbers_of(w));
    }
    (void)make_adjacent(r, planes);
    give_back(r, planes);
    give_back(r, queries);
}

#endif

/* ------------------------------------------------------------------------------------------------------ memories */

void read_scan(reader *r) {
    const value *const a = steps(r, 0, 1), *const x = steps(r, 1, 1);
    if (!expect(r, alike(a, x))) return;
    op *const o = emit(r->b, OP_REAL_SCAN, make_like(r, x), a->rows);
    o->z = x->rows;
    o->state = state_for(r, x->shape[0]);
}

#if LIB_S4
void read_oscillator_scan(reader *r) {
    const value *const m = fixed(r, 0, 3), *const f = fixed(r, 1, 2), *const u = steps(r, 2, 1);
    const int64_t N = u->shape[0];
    if (!expect(r, is(m, 0, 2) && is(m, 1, 2) && is(m, 2, N) && is(f, 0, 2) && is(f, 1, N))) return;
    op *const o = emit(r->b, OP_OSCILLATOR, make_matrix(r, 2, N), u->rows);
    o->w[0] = stored(r->b, doubles(r, m), 4 * N);
    o->w[1] = stored(r->b, doubles(r, f), 2 * N);
    o->state = state_for(r, 2 * N);
}
#endif

#if LIB_MATRIX_STATES
void read_unit_scan(reader *r) {
    const value *const v = steps(r, 0, 1), *const theta = steps(r, 1, 2), *const w = fixed(r, 2, 2);
    const int64_t I = v->shape[0], N = theta->shape[1];
    if (!expect(r, is(theta, 0, I) && is(w, 0, 2) && is(w, 1, N))) return;
    const rows c = summed_angles(r, theta);
    op *const o = emit(r->b, OP_UNIT_SCAN, make_like(r, v), c);
    o->z = v->rows;
    o->count = N;
    o->w[0] = stored(r->b, doubles(r, w), 2 * N);
    o->state = state_for(r, 2 * I * N);
    give_back(r, c);
}

void read_permuted_scan(reader *r) {
    const value *const w = steps(r, 0, 1), *const m = fixed(r, 1, 3), *const d = steps(r, 2, 2),
                       *const x = steps(r, 3, 2);
    const int64_t N = x->shape[1];
    if (!expect(r, alike(d, x) && is(x, 0, 2) && is(m, 0, w->shape[0]) && is(m, 1, N) && is(m, 2, N))) return;
    op *const o = emit(r->b, OP_PERMUTED, make_like(r, x), w->rows);
    o->z = d->rows, o->v = x->rows;
    o->count = w->shape[0];
    o->w[0] = stored(r->b, doubles(r, m), numbers_of(m));
    o->state = state_for(r, 2 * N);
}

void read_selective(reader *r) {
    const value *const x = steps(r, 0, 1), *const delta = steps(r, 1, 1), *const A = fixed(r, 2, 2);
    const value *const B = steps(r, 3, 1), *const C = steps(r, 4, 1), *const skip = fixed(r, 5, 1);
    const int64_t D = x->shape[0], S = A->shape[1];
    if (json_member(r->p.settings, "window") && window_of(r->b, &r->p)) /* in older files, null */
        unsupported(r->b, &r->p, " with a window");
    if (!expect(r, alike(x, delta) && is(A, 0, D) && is(B, 0, S) && is(C, 0, S) && is(skip, 0, D))) return;
    op *const o = emit(r->b, OP_SELECTIVE, make_like(r, x), x->rows);
    o->z = delta->rows, o->v = B->rows, o->s = C->rows;
    o->count = S;
    o->w[0] = stored(r->b, transposed(r, A), S * D);
    o->w[1] = stored(r->b, doubles(r, skip), D);
    o->negative = flag_of(r->b, &r->p, "negative");
    o->state = state_for(r, S * D);
}
#endif

void read_elman(reader *r) {
    const value *const x = steps(r, 0, 1), *const A = fixed(r, 1, 2);
    const int64_t N = x->shape[0], cell = choice_of(r->b, &r->p, "activation", CELL_NAMES);
    if (cell > CELL_RELU) unsupported(r->b, &r->p, " with the activation of a gated cell");
    if (flag_of(r->b, &r->p, "reverse")) unsupported(r->b, &r->p, " that runs in both directions");
    if (!expect(r, is(A, 0, N) && is(A, 1, N))) return;
    const rows h = make_copy(r, 0);
    op *const o = emit(r->b, OP_RNN, h, h);
    o->w[0] = packed_of(r->b, A->numbers, N, N);
    o->choice = cell;
    o->state = state_for(r, N);
}

void read_lstm(reader *r) {
    const value *const x = steps(r, 0, 1), *const w = fixed(r, 1, 2);
    const int64_t N = w->shape[1];
    if (!expect(r, N <= INT32_MAX && is(w, 0, 4 * N) && is(x, 0, 4 * N))) return;
    const rows h = make(r, N), gates = copied(r, 0);
    op *const o = emit(r->b, OP_LSTM, h, gates);
    o->w[0] = packed_of(r->b, w->numbers, 4 * N, N);
    o->state = state_for(r, 2 * N);
    give_back(r, gates);
}

void read_gru(reader *r) {
    const value *const x = steps(r, 0, 1), *const w = fixed(r, 1, 2), *const bias = fixed(r, 2, 1);
    const int64_t N = w->shape[1];
    if (!expect(r, N <= INT32_MAX && is(w, 0, 3 * N) && is(x, 0, 3 * N) && is(bias, 0, 3 * N))) return;
    const rows h = make(r, N), gates = copied(r, 0), u = rows_for(r, N);
    op *const o = emit(r->b, OP_GRU, h, gates);
    o->z = u;
    o->w[0] = packed_of(r->b, w->numbers, 2 * N, N);
    o->w[1] = packed_of(r->b, from_row(w->numbers, 2 * N, N), N, N);
    o->w[2] = stored(r->b, doubles(r, bias), 3 * N);
    o->state = state_for(r, N);
    give_back(r, gates);
    give_back(r, u);
}

#if LIB_MATRIX_STATES
void read_ssd(reader *r) {
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

/* With input 7, what x is multiplied by to be the input of each rank, B, C and y have a first axis of ranks. */
void read_trapezoid(reader *r) {
    const bool ranked = r->in[7] != NULL;
    const value *const x = steps(r, 0, 2), *const delta = steps(r, 1, 1), *const lam = steps(r, 2, 1);
    const value *const log_a = steps(r, 3, 1), *const B = steps(r, 4, 2 + ranked), *const C = steps(r, 5, 2 + ranked);
    const value *const skip = fixed(r, 6, 1), *const gain = ranked ? fixed(r, 7, 3) : NULL;
    const int64_t H = x->shape[0], P = x->shape[1], R = ranked ? B->shape[0] : 1;
    const int64_t G = B->shape[ranked], N = B->shape[1 + ranked];
    if (!expect(r, is(delta, 0, H) && alike(delta, lam) && alike(delta, log_a) && is(skip, 0, H) && alike(B, C)) ||
        !expect(r, G && H % G == 0) || (ranked && !expect(r, is(gain, 0, H) && is(gain, 1, R) && is(gain, 2, P))))
        return;
    const value like = ranked ? (value){.shape = {R, H, P}, .axes = 3} : *x;
    op *const o = emit(r->b, OP_TRAPEZOID, make_like(r, &like), x->rows);
    o->z = delta->rows, o->v = B->rows, o->s = C->rows, o->t = lam->rows, o->e = log_a->rows;
    o->count = N;
    o->choice = G;
    o->from = R;
    if (ranked) o->w[0] = stored(r->b, doubles(r, gain), numbers_of(gain));
    o->w[1] = stored(r->b, doubles(r, skip), H);
    o->state = state_for(r, (N + 1) * numbers_of(x) + R * G * N);
}

/* Input 6: places and weights of a quadrature. */
void read_hold(reader *r) {
    const value *const x = steps(r, 0, 2), *const delta = steps(r, 1, 1), *const log_a = steps(r, 2, 1);
    const value *const theta = steps(r, 3, 1), *const B = steps(r, 4, 2), *const C = steps(r, 5, 2);
    const value *const rule = fixed(r, 6, 2);
    const int64_t H = x->shape[0], N = B->shape[1];
    if (!expect(r, is(delta, 0, H) && alike(delta, log_a) && alike(delta, theta) && alike(B, C) && is(B, 0, H)) ||
        !expect(r, N % 2 == 0 && is(rule, 0, 2)))
        return;
    const rows c = summed_angles(r, theta);
    op *const o = emit(r->b, OP_HOLD, make_like(r, x), x->rows);
    o->z = delta->rows, o->v = B->rows, o->s = C->rows, o->t = log_a->rows, o->e = theta->rows, o->f = c;
    o->count = N;
    o->from = rule->shape[1];
    o->w[0] = stored_exact(r->b, doubles(r, rule), numbers_of(rule));
    o->state = state_for(r, (N + 1) * numbers_of(x) + H * N);
    give_back(r, c);
}

/* Whether input i of a step has the shape (a, b, c), whose zeros are no axes; or it is not given and `rows` is empty.
 */
static bool optional_rows(reader *r, int64_t i, rows *to, const int64_t *shape) {
    const value *const v = r->in[i];
    bool fits = !v || !v->fixed;
    for (int axis = 0; v && fits && axis < 3; axis++)
        fits = shape[axis] ? axis < v->axes && is(v, axis, shape[axis]) : axis >= v->axes;
    *to = v && fits ? v->rows : (rows){0, 0};
    return expect(r, fits && (!v || v->axes <= 3));
}

void read_delta(reader *r) {
    const value *const q = steps(r, 0, 2), *const k = steps(r, 1, 3), *const v = steps(r, 2, 3),
                       *const decay = r->in[4];
    const int64_t n = k->shape[0], H = q->shape[0], K = q->shape[1], V = v->shape[2];
    const int64_t by_keys = decay && decay->axes == 2, keys[] = {n, H, K};
    rows beta, decays, read, erase;
    if (!expect(r, n && is(k, 1, H) && is(k, 2, K) && is(v, 0, n) && is(v, 1, H)) ||
        !optional_rows(r, 3, &beta, (int64_t[]){n, H, 0}) ||
        !optional_rows(r, 4, &decays, (int64_t[]){H, by_keys ? K : 0, 0}) || !optional_rows(r, 5, &read, keys) ||
        !optional_rows(r, 6, &erase, keys))
        return;
    op *const o = emit(r->b, OP_DELTA, make_matrix(r, H, V), q->rows);
    o->z = v->rows, o->v = k->rows, o->s = beta, o->t = decays, o->e = read, o->f = erase;
    o->count = H;
    o->choice = by_keys;
    o->state = state_for(r, H * K * V);
}
#endif

#if LIB_XLSTM
void read_matrix_memory(reader *r) {
    const value *const q = steps(r, 0, 2), *const k = steps(r, 1, 2), *const v = steps(r, 2, 2);
    const value *const i = steps(r, 3, 1), *const f = steps(r, 4, 1);
    const int64_t H = q->shape[0], N = q->shape[1], P = v->shape[1];
    if (!expect(r, alike(q, k) && is(v, 0, H) && is(i, 0, H) && is(f, 0, H))) return;
    const rows read = make_copy(r, 2), keys = copied(r, 1);
    op *const o = emit(r->b, OP_MLSTM, read, q->rows);
    o->z = keys, o->v = i->rows, o->s = f->rows;
    o->count = H;
    o->state = state_for(r, H * (N * (P + 1) + 1));
    give_back(r, keys);
}

void read_scalar_memory(reader *r) {
    const value *const x = steps(r, 0, 3), *const w = fixed(r, 1, 3);
    const int64_t H = x->shape[1], P = x->shape[2];
    const bool exponential = choice_of(r->b, &r->p, "forget", "sigmoid exp");
    if (!expect(r, is(x, 0, 4) && is(w, 0, H) && is(w, 1, 4 * P) && is(w, 2, P))) return;
    const rows h = make_matrix(r, H, P), gates = copied(r, 0);
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
