/* The matrix memory of the mLSTM and its adjoint on a GPU, in chunks as on the CPU (csrc/kernels/mlstm.c has the
 * equations).
 *
 * Once the levels before all chunks are known, a chunk's term of its head's state does not depend on other chunks. The
 * same holds for its outputs, once the states before all chunks are known. Blocks therefore work on the chunks of all
 * heads in parallel, forward and backward. Between these kernels threads walk from chunk to chunk, each with one number
 * of a state. Products have tiles of TILE x TILE numbers, with EACH x EACH for a thread. Numbers of pairs of steps stay
 * in shared memory. Every sum has one order.
 */
#include "padding.h"

enum {
    CHUNK = SSD_CHUNK,
    THREADS = 256,
    WARPS = THREADS / 32,
    TILE = 64,
    SIDE = 16, /* threads along a tile */
    EACH = TILE / SIDE,
    DEPTH = 16,                                  /* terms of a tile's operands loaded at once */
    GRADIENT_BLOCKS = sizeof(real) == 4 ? 2 : 1, /* least number on a processor: with more the compiler would spill */
};
static_assert(CHUNK == (int)TILE, "a tile has the steps of a chunk");
static_assert(SIDE * SIDE == (int)THREADS, "a part of a tile for each thread");

/* Sizes of a call; R = P + 1 rows of a state. */
struct plan {
    int64_t batch, T, H, P, N, R, chunks;
    const int64_t *lengths;
};

static plan plan_of(const int64_t *lengths, int64_t batch, int64_t T, int64_t H, int64_t P, int64_t N) {
    const plan p = {batch, T, H, P, N, P + 1, pieces_of(T, CHUNK), lengths};
    return p;
}

struct inputs {
    const real *q, *k, *v, *log_i, *log_f;
};

/* A head over a chunk: its index in (batch,chunks,H), its first step in (batch,T), and its number of steps. */
struct piece {
    int64_t i, b, chunk, head, first, steps;
};

ROT_DEVICE_ONLY piece piece_of(plan p, int64_t b, int64_t chunk, int64_t head) {
    const walk w = walk_of(b, chunk, CHUNK, steps_of(p.lengths, b, p.T), p.T, false);
    const piece at = {(b * p.chunks + chunk) * p.H + head, b, chunk, head, w.first, w.steps};
    return at;
}
ROT_DEVICE_ONLY piece piece_at(plan p, int64_t i) {
    return piece_of(p, i / (p.H * p.chunks), i / p.H % p.chunks, i % p.H);
}

/* The places of step k's gates, key and value. */
ROT_DEVICE_ONLY int64_t gate_at(plan p, piece at, int64_t k) { return (at.first + k) * p.H + at.head; }
ROT_DEVICE_ONLY int64_t key_at(plan p, piece at, int64_t k) { return gate_at(p, at, k) * p.N; }
ROT_DEVICE_ONLY int64_t value_at(plan p, piece at, int64_t k) { return gate_at(p, at, k) * p.P; }

/* ---- from chunk to chunk ---- */

/* For a chunk's steps, in units of log 2: the sum b of log f, and the largest a. */
struct summary {
    double b, largest;
};

ROT_DEVICE_ONLY summary summary_of(plan p, inputs in, piece at) {
    struct gates {
        real i, f;
    };
    summary s = {0, -(double)INFINITY};
    pipelined<8>(
        at.steps,
        [&](int64_t k) {
            const gates one = {in.log_i[gate_at(p, at, k)], in.log_f[gate_at(p, at, k)]};
            return one;
        },
        [&](int64_t, gates one) {
            s.b += gate_exponent(one.f);
            const double a = gate_exponent(one.i) - s.b;
            if (a > s.largest) s.largest = a;
        });
    return s;
}

/* The summaries of all chunks (batch,chunks,H). */
static const summary *summaries_of(plan p, inputs in) {
    summary *const s = workspace_of<summary>(p.batch, p.chunks, p.H);
    each(p.batch * p.chunks * p.H, [=] __device__(int64_t i) { s[i] = summary_of(p, in, piece_at(p, i)); });
    return s;
}

/* The level after a chunk, as stored; p_last, from this level; and e^{m - p_last}. */
struct chunk_end {
    real level, whole;
    double p;
};

ROT_DEVICE_ONLY chunk_end end_of(summary s, real level) {
    const double before = level_exponent(level), p = s.largest > before ? s.largest : before;
    chunk_end e;
    e.level = level_of_exponent(s.b + p), e.p = level_exponent(e.level) - s.b, e.whole = exp2_of((real)(before - e.p));
    return e;
}

/* levels (batch,chunks,H) before each chunk, and mT (batch,H), from m0, NULL for zeros */
static void walk_levels(plan p, const summary *summaries, real *levels, real *mT, const real *m0) {
    each(p.batch * p.H, [=] __device__(int64_t i) {
        const int64_t b = i / p.H, head = i % p.H;
        real level = m0 ? m0[i] : 0;
        pipelined<4>(
            p.chunks, [&](int64_t chunk) { return summaries[piece_of(p, b, chunk, head).i]; },
            [&](int64_t chunk, summary s) {
                const piece at = piece_of(p, b, chunk, head);
                levels[at.i] = level;
                if (at.steps) level = end_of(s, level).level;
            });
        mT[i] = level;
    });
}

/* A state of each head, c (batch,H,P,N) and n (batch,H,N), or its gradient. */
template <class T> struct state_of_heads {
    T *c, *n;
    __device__ T *at(plan p, int64_t head, int64_t place) const { /* number `place` of R N */
        const int64_t size = p.P * p.N;
        T *const of = place < size ? c : n;
        return of ? of + (place < size ? head * size + place : head * p.N + place - size) : NULL;
    }
};

/* On entry, `states` (batch,chunks,H,R,N) has each chunk's term; on return, the states before each chunk, or with
 * `reverse` the gradients of the states after it: a chunk scales its input, and adds its term. */
static void walk_states(plan p, const summary *summaries, const real *levels, real *states,
                        state_of_heads<const real> first, state_of_heads<real> last, bool reverse) {
    struct term {
        real whole, added;
    };
    const int64_t size = p.R * p.N;
    each(p.batch * p.H * size, [=] __device__(int64_t i) {
        const int64_t b = i / size / p.H, head = i / size % p.H, place = i % size;
        const real *const from = first.at(p, i / size, place);
        const auto piece_in_order = [&](int64_t k) { return piece_of(p, b, reverse ? p.chunks - 1 - k : k, head); };
        real h = from ? *from : 0;
        pipelined<4>(
            p.chunks,
            [&](int64_t k) {
                const piece at = piece_in_order(k);
                term one = {1, 0};
                if (at.steps) {
                    one.whole = end_of(summaries[at.i], levels[at.i]).whole;
                    one.added = states[at.i * size + place];
                }
                return one;
            },
            [&](int64_t k, term one) {
                states[piece_in_order(k).i * size + place] = h;
                h = one.whole * h + one.added;
            });
        *last.at(p, i / size, place) = h;
    });
}

/* ---- a block's chunk ---- */

/* f(i) for i in 0..n-1, each by some thread of the block; f(k, i) for rows k of `width`, each by a warp. */
template <class F> ROT_DEVICE_ONLY void share(int64_t n, F f) {
    for (int64_t i = threadIdx.x; i < n; i += THREADS) f(i);
}
template <class F> ROT_DEVICE_ONLY void share_rows(int64_t n, int64_t width, F f) {
    for (int64_t k = threadIdx.x / 32; k < n; k += WARPS)
        for (int64_t i = threadIdx.x % 32; i < width; i += 32) f(k, i);
}

/* The exponents of a chunk, and the factors from them, as in csrc/kernels/mlstm.c. */
struct exponents {
    double a[CHUNK], b[CHUNK], p[CHUNK];
    real since[CHUNK], until[CHUNK], least[CHUNK];
    chunk_end end;
    int64_t largest;
};

/* Needs a barrier before and after, like the following functions. All threads must call them. */
ROT_DEVICE_ONLY void load_exponents(exponents &e, plan p, inputs in, piece at, real level) {
    const double before = level_exponent(level);
    share(at.steps, [&](int64_t k) {
        e.a[k] = gate_exponent(in.log_i[gate_at(p, at, k)]), e.b[k] = gate_exponent(in.log_f[gate_at(p, at, k)]);
    });
    __syncthreads();
    if (threadIdx.x == 0) {
        summary s = {0, before};
        e.largest = -1;
        for (int64_t k = 0; k < at.steps; k++) {
            e.b[k] = s.b += e.b[k];
            e.a[k] -= s.b;
            if (e.a[k] > s.largest) s.largest = e.a[k], e.largest = k;
            e.p[k] = s.largest;
        }
        e.end = end_of(s, level);
    }
    __syncthreads();
    share(at.steps, [&](int64_t k) {
        e.since[k] = exp2_of((real)(before - e.p[k])), e.until[k] = exp2_of((real)(e.a[k] - e.end.p));
        e.least[k] = least_denominator(e.b[k] + e.p[k]);
    });
    __syncthreads();
}

/* e^{a_j - p_k} */
ROT_DEVICE_ONLY real weight_of(const exponents &e, int64_t k, int64_t j) { return exp2_of((real)(e.a[j] - e.p[k])); }

/* v_k, followed by a 1 */
ROT_DEVICE_ONLY real value_of(plan p, inputs in, piece at, int64_t k, int64_t i) {
    return i < p.P ? in.v[value_at(p, at, k) + i] : 1;
}

/* Numbers of pairs of steps (k,j); rows are padded: each thread can read a column. */
typedef real square[CHUNK][CHUNK + 1];

/* ---- products ---- */

/* Operands of a product over a few terms, and a thread's part of the result: rows and columns SIDE apart. */
struct operand_tiles {
    real a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
};
struct sums {
    real of[EACH][EACH];
};
ROT_DEVICE_ONLY int row_of(int u) { return (int)threadIdx.x / SIDE + SIDE * u; }
ROT_DEVICE_ONLY int column_of(int u) { return (int)threadIdx.x % SIDE + SIDE * u; }

/* The order of an operand's numbers f(i, d) in memory: numbers of one i, or of one d, are adjacent. */
enum order { BY_ROW, BY_TERM };

template <order ORDER, class F>
ROT_DEVICE_ONLY void bring(real (*to)[TILE + 1], int64_t width, int64_t first, int64_t depth, F f) {
#pragma unroll 2
    for (int u = 0; u < TILE * DEPTH / THREADS; u++) {
        const int n = (int)threadIdx.x + u * THREADS;
        const int i = ORDER == BY_ROW ? n / DEPTH : n % TILE, d = ORDER == BY_ROW ? n % DEPTH : n / TILE;
        to[d][i] = i < width && first + d < depth ? f(i, first + d) : 0;
    }
}

/* sum (i,j) += a(i,d) b(j,d) over d in 0..depth-1, of a tile that begins `rows` and `columns` before the matrices'
 * ends. All threads must call it. It has a barrier before the first call of a or b. */
template <order A, order B, class FA, class FB>
ROT_DEVICE_ONLY void add_product(sums &s, operand_tiles &t, int64_t rows, int64_t columns, int64_t depth, FA a, FB b) {
    for (int64_t first = 0; first < depth; first += DEPTH) {
        __syncthreads();
        bring<A>(t.a, rows, first, depth, a);
        bring<B>(t.b, columns, first, depth, b);
        __syncthreads();
#pragma unroll 4
        for (int d = 0; d < DEPTH; d++) {
            real x[EACH], y[EACH];
#pragma unroll
            for (int u = 0; u < EACH; u++) x[u] = t.a[d][row_of(u)], y[u] = t.b[d][column_of(u)];
#pragma unroll
            for (int u = 0; u < EACH; u++)
#pragma unroll
                for (int v = 0; v < EACH; v++) s.of[u][v] += x[u] * y[v];
        }
    }
}

/* f(i, j, sum) for the thread's sums of a tile */
template <class F> ROT_DEVICE_ONLY void each_sum(const sums &s, int64_t rows, int64_t columns, F f) {
#pragma unroll
    for (int u = 0; u < EACH; u++)
#pragma unroll
        for (int v = 0; v < EACH; v++)
            if (row_of(u) < rows && column_of(v) < columns) f(row_of(u), column_of(v), s.of[u][v]);
}

/* to[i] += the sum of f(i, j, sum) over the columns of row i. All threads must call it. */
template <class F> ROT_DEVICE_ONLY void add_rows(real *to, const sums &s, int64_t rows, int64_t columns, F f) {
#pragma unroll
    for (int u = 0; u < EACH; u++) {
        real total = 0;
#pragma unroll
        for (int v = 0; v < EACH; v++)
            if (row_of(u) < rows && column_of(v) < columns) total += f(row_of(u), column_of(v), s.of[u][v]);
        for (int d = SIDE / 2; d; d /= 2) total += __shfl_xor_sync(~0u, total, d);
        if (column_of(0) == 0 && row_of(u) < rows) to[row_of(u)] += total;
    }
}

/* x (R,N) = the sum of a(i, k) b(s, k) over the chunk's steps k; both are stored by step. */
template <class FA, class FB>
ROT_DEVICE_ONLY void outer_products(real *x, operand_tiles &t, plan p, int64_t steps, FA a, FB b) {
    for (int64_t i = 0; i < p.R; i += TILE)
        for (int64_t j = 0; j < p.N; j += TILE) {
            sums s = {};
            add_product<BY_TERM, BY_TERM>(
                s, t, p.R - i, p.N - j, steps, [&](int64_t row, int64_t k) { return a(i + row, k); },
                [&](int64_t column, int64_t k) { return b(j + column, k); });
            each_sum(s, p.R - i, p.N - j,
                     [&](int64_t row, int64_t column, real sum) { x[(i + row) * p.N + j + column] = sum; });
        }
}

/* ---- forward ---- */

struct adding_room {
    exponents e;
    operand_tiles t;
};

/* carries <- each chunk's term of its head's state */
GLOBAL(THREADS) run_states(plan p, inputs in, const real *levels, real *carries) {
    adding_room &room = shared_memory<adding_room>();
    const exponents &e = room.e;
    const piece at = piece_at(p, blockIdx.x);
    if (!at.steps) return;
    load_exponents(room.e, p, in, at, levels[at.i]);
    outer_products(
        carries + at.i * p.R * p.N, room.t, p, at.steps,
        [&](int64_t i, int64_t k) { return e.until[k] * value_of(p, in, at, k, i); },
        [&](int64_t s, int64_t k) { return in.k[key_at(p, at, k) + s]; });
}

struct output_room {
    exponents e;
    operand_tiles t;
    square weights;
    real den[CHUNK];
};
static_assert(sizeof(output_room) <= MOST_SHARED, "too much shared memory");

GLOBAL(THREADS)
run_outputs(plan p, inputs in, const real *levels, const real *carries, real *y, real *den) {
    output_room &room = shared_memory<output_room>();
    const exponents &e = room.e;
    const piece at = piece_at(p, blockIdx.x);
    const int64_t n = at.steps;
    const real *const state = carries + at.i * p.R * p.N;
    if (!n) return;
    load_exponents(room.e, p, in, at, levels[at.i]);
    sums pairs = {};
    add_product<BY_ROW, BY_ROW>(
        pairs, room.t, n, n, p.N, [&](int64_t k, int64_t s) { return in.q[key_at(p, at, k) + s]; },
        [&](int64_t j, int64_t s) { return in.k[key_at(p, at, j) + s]; });
    each_sum(pairs, n, n,
             [&](int64_t k, int64_t j, real sum) { room.weights[k][j] = j <= k ? weight_of(e, k, j) * sum : 0; });
    for (int64_t i = 0; i < p.R; i += TILE) {
        sums s = {};
        add_product<BY_ROW, BY_ROW>(
            s, room.t, n, p.R - i, p.N, [&](int64_t k, int64_t d) { return e.since[k] * in.q[key_at(p, at, k) + d]; },
            [&](int64_t row, int64_t d) { return state[(i + row) * p.N + d]; });
        add_product<BY_ROW, BY_TERM>(
            s, room.t, n, p.R - i, n, [&](int64_t k, int64_t j) { return room.weights[k][j]; },
            [&](int64_t row, int64_t j) { return value_of(p, in, at, j, i + row); });
        each_sum(s, n, p.R - i, [&](int64_t k, int64_t row, real sum) {
            if (i + row < p.P)
                y[value_at(p, at, k) + i + row] = sum;
            else
                room.den[k] = sum;
        });
    }
    __syncthreads();
    share(n, [&](int64_t k) { den[gate_at(p, at, k)] = room.den[k]; });
    share_rows(n, p.P,
               [&](int64_t k, int64_t i) { y[value_at(p, at, k) + i] *= 1 / denominator_of(room.den[k], e.least[k]); });
}

KERNEL(mlstm_forward) {
    const plan p = plan_of(lengths, batch, T, H, P, N);
    const inputs in = {q, k, v, log_i, log_f};
    const int64_t pieces = batch * p.chunks * H;
    const summary *const summaries = summaries_of(p, in);
    walk_levels(p, summaries, levels, mT, m0);
    launch(run_states, pieces, THREADS, sizeof(adding_room), p, in, levels, carries);
    walk_states(p, summaries, levels, carries, {c0, n0}, {cT, nT}, false);
    launch(run_outputs, pieces, THREADS, sizeof(output_room), p, in, levels, carries, y, den);
    zero_padding(y, lengths, batch, T, H * P);
    zero_padding(den, lengths, batch, T, H);
    return runtime_status();
}

/* ---- backward ---- */

/* The outputs of forward, and the gradient of y. */
struct outputs {
    const real *dy, *y, *den, *carries, *levels;
};

/* g (batch,chunks,H,R,N): of the scaled states after each chunk. largest (batch,chunks,H): as in `exponents`. */
struct gradients {
    real *dq, *dk, *dv, *dlog_i, *dlog_f, *dm0, *g;
    int64_t *largest;
};

/* dY of a chunk, the adjoint of the quotient: dy over the denominator, and the gradient of the denominator. */
struct quotient {
    real inverse[CHUNK], last[CHUNK];
};

ROT_DEVICE_ONLY void load_quotient(quotient &of, const exponents &e, plan p, outputs out, piece at) {
    for (int64_t k = threadIdx.x / 32; k < at.steps; k += WARPS) {
        const real den = out.den[gate_at(p, at, k)], inverse = 1 / denominator_of(den, e.least[k]);
        const int64_t own = value_at(p, at, k);
        real product = 0;
        for (int64_t i = threadIdx.x % 32; i < p.P; i += 32) product += out.dy[own + i] * out.y[own + i];
        product = warp_sum(product);
        if (threadIdx.x % 32) continue;
        of.inverse[k] = inverse;
        of.last[k] = ROT_ABS(den) > e.least[k] ? -ROT_COPYSIGN(inverse, den) * product : 0;
    }
    __syncthreads();
}
ROT_DEVICE_ONLY real adjoint_of(const quotient &of, plan p, outputs out, piece at, int64_t k, int64_t i) {
    return i < p.P ? of.inverse[k] * out.dy[value_at(p, at, k) + i] : of.last[k];
}

struct adjoint_room {
    exponents e;
    operand_tiles t;
    quotient dY;
};

/* g <- each chunk's term of the gradient of its head's state */
GLOBAL(THREADS) run_states_back(plan p, inputs in, outputs out, real *g) {
    adjoint_room &room = shared_memory<adjoint_room>();
    const exponents &e = room.e;
    const piece at = piece_at(p, blockIdx.x);
    if (!at.steps) return;
    load_exponents(room.e, p, in, at, out.levels[at.i]);
    load_quotient(room.dY, e, p, out, at);
    outer_products(
        g + at.i * p.R * p.N, room.t, p, at.steps,
        [&](int64_t i, int64_t k) { return e.since[k] * adjoint_of(room.dY, p, out, at, k, i); },
        [&](int64_t s, int64_t k) { return in.q[key_at(p, at, k) + s]; });
}

/* pairs: q_k . k_j. adjoint: e^{a_j - p_k} dY_k . v_j, at the end the sums over later rows of its products with pairs.
 * since, until: as in chunk.h's decays_adjoint. */
struct backward_room {
    exponents e;
    operand_tiles t;
    quotient dY;
    square pairs, adjoint;
    real since[CHUNK], until[CHUNK], scratch[32];
};
static_assert(sizeof(backward_room) <= MOST_SHARED, "too much shared memory");

GLOBAL2(THREADS, GRADIENT_BLOCKS) run_gradients(plan p, inputs in, outputs out, gradients d) {
    backward_room &room = shared_memory<backward_room>();
    const exponents &e = room.e;
    const piece at = piece_at(p, blockIdx.x);
    const int64_t n = at.steps, size = p.R * p.N;
    const real *const state = out.carries + at.i * size, *const g = d.g + at.i * size;
    if (!n) return;
    const auto q = [&](int64_t k, int64_t s) { return in.q[key_at(p, at, k) + s]; };
    const auto key = [&](int64_t k, int64_t s) { return in.k[key_at(p, at, k) + s]; };
    const auto value = [&](int64_t k, int64_t i) { return value_of(p, in, at, k, i); };
    const auto dY = [&](int64_t k, int64_t i) { return adjoint_of(room.dY, p, out, at, k, i); };
    share(n, [&](int64_t k) { room.since[k] = 0, room.until[k] = 0; });
    load_exponents(room.e, p, in, at, out.levels[at.i]);
    load_quotient(room.dY, e, p, out, at);
    sums pairs = {}, adjoint = {};
    add_product<BY_ROW, BY_ROW>(pairs, room.t, n, n, p.N, q, key);
    each_sum(pairs, n, n, [&](int64_t k, int64_t j, real sum) { room.pairs[k][j] = j <= k ? sum : 0; });
    add_product<BY_ROW, BY_ROW>(adjoint, room.t, n, n, p.R, dY, value);
    each_sum(adjoint, n, n,
             [&](int64_t k, int64_t j, real sum) { room.adjoint[k][j] = j <= k ? weight_of(e, k, j) * sum : 0; });
    for (int64_t s = 0; s < p.N; s += TILE) { /* dq = e^{m - p} dY S + (e^{a - p} dY . v) k */
        sums dq = {};
        add_product<BY_ROW, BY_TERM>(
            dq, room.t, n, p.N - s, p.R, [&](int64_t k, int64_t i) { return e.since[k] * dY(k, i); },
            [&](int64_t column, int64_t i) { return state[i * p.N + s + column]; });
        add_rows(room.since, dq, n, p.N - s,
                 [&](int64_t k, int64_t column, real sum) { return sum * q(k, s + column); });
        add_product<BY_ROW, BY_TERM>(
            dq, room.t, n, p.N - s, n, [&](int64_t k, int64_t j) { return room.adjoint[k][j]; },
            [&](int64_t column, int64_t j) { return key(j, s + column); });
        each_sum(dq, n, p.N - s,
                 [&](int64_t k, int64_t column, real sum) { d.dq[key_at(p, at, k) + s + column] = sum; });
    }
    for (int64_t s = 0; s < p.N; s += TILE) { /* dk = e^{a - p_last} v g + (e^{a - p} dY . v)^T q */
        sums dk = {};
        add_product<BY_ROW, BY_TERM>(
            dk, room.t, n, p.N - s, p.R, [&](int64_t j, int64_t i) { return e.until[j] * value(j, i); },
            [&](int64_t column, int64_t i) { return g[i * p.N + s + column]; });
        add_rows(room.until, dk, n, p.N - s,
                 [&](int64_t j, int64_t column, real sum) { return sum * key(j, s + column); });
        add_product<BY_TERM, BY_TERM>(
            dk, room.t, n, p.N - s, n, [&](int64_t j, int64_t k) { return room.adjoint[k][j]; },
            [&](int64_t column, int64_t k) { return q(k, s + column); });
        each_sum(dk, n, p.N - s,
                 [&](int64_t j, int64_t column, real sum) { d.dk[key_at(p, at, j) + s + column] = sum; });
    }
    for (int64_t i = 0; i < p.P; i += TILE) { /* dv = W^T dY + e^{a - p_last} k g^T */
        sums dv = {};
        add_product<BY_ROW, BY_ROW>(
            dv, room.t, n, p.P - i, p.N, [&](int64_t j, int64_t s) { return e.until[j] * key(j, s); },
            [&](int64_t row, int64_t s) { return g[(i + row) * p.N + s]; });
        add_product<BY_TERM, BY_TERM>(
            dv, room.t, n, p.P - i, n,
            [&](int64_t j, int64_t k) { return j <= k ? room.pairs[k][j] * weight_of(e, k, j) : 0; },
            [&](int64_t row, int64_t k) { return dY(k, i + row); });
        each_sum(dv, n, p.P - i, [&](int64_t j, int64_t row, real sum) { d.dv[value_at(p, at, j) + i + row] = sum; });
    }
    real product = 0;
    share(size, [&](int64_t i) { product += state[i] * g[i]; });
    const real whole = e.end.whole * block_sum(product, room.scratch, THREADS);
    share(n, [&](int64_t j) {
        real sum = 0;
        for (int64_t k = n - 1; k >= j; k--) room.adjoint[k][j] = sum += room.pairs[k][j] * room.adjoint[k][j];
    });
    __syncthreads();
    share(n, [&](int64_t i) {
        real sum = whole;
        for (int64_t k = i; k < n; k++) sum += room.since[k];
        for (int64_t j = 0; j < i; j++) sum += room.adjoint[i][j] + room.until[j];
        d.dlog_f[gate_at(p, at, i)] = sum;
        d.dlog_i[gate_at(p, at, i)] = room.until[i] + room.adjoint[i][i]; /* v . dv */
    });
    if (threadIdx.x) return;
    d.largest[at.i] = e.largest;
    if (at.chunk != pieces_of(steps_of(p.lengths, at.b, p.T), CHUNK) - 1) return;
    real scaled = whole; /* <scaled final state, its gradient> */
    for (int64_t k = 0; k < n; k++) scaled += room.until[k];
    d.dm0[at.b * p.H + at.head] -= scaled;
}

/* The gradient dm0 of the level after the last step goes to the gates that set this level, or else to m0; m0 also has
 * the gradient through the state. A block for each head. */
GLOBAL(THREADS) run_levels_back(plan p, gradients d, const real *carries, state_of_heads<const real> d0) {
    real &scratch = shared_memory<real>();
    const int64_t i = blockIdx.x, b = i / p.H, head = i % p.H, size = p.R * p.N;
    const int64_t chunks = pieces_of(steps_of(p.lengths, b, p.T), CHUNK);
    if (!chunks) return;
    real dlevel = d.dm0[i], product = 0;
    for (int64_t chunk = chunks - 1; chunk >= 0 && dlevel != 0; chunk--) {
        const piece at = piece_of(p, b, chunk, head);
        const int64_t largest = d.largest[at.i];
        share(at.steps, [&](int64_t k) {
            if (k == largest) d.dlog_i[gate_at(p, at, k)] += dlevel;
            if (k > largest) d.dlog_f[gate_at(p, at, k)] += dlevel;
        });
        if (largest >= 0) dlevel = 0;
    }
    const real *const first = carries + piece_of(p, b, 0, head).i * size;
    share(size, [&](int64_t place) { product += first[place] * *d0.at(p, i, place); });
    product = block_sum(product, &scratch, THREADS);
    if (threadIdx.x == 0) d.dm0[i] = dlevel + product;
}

KERNEL(mlstm_backward) {
    const plan p = plan_of(lengths, batch, T, H, P, N);
    const inputs in = {q, k, v, log_i, log_f};
    const outputs out = {dy, y, den, carries, levels};
    const int64_t pieces = batch * p.chunks * H;
    const gradients d = {
        dq, dk, dv, dlog_i, dlog_f, dm0, workspace_of<real>(pieces, p.R, N), workspace_of<int64_t>(pieces)};
    copy_or_zero(dm0, dmT, batch * H);
    launch(run_states_back, pieces, THREADS, sizeof(adjoint_room), p, in, out, d.g);
    walk_states(p, summaries_of(p, in), levels, d.g, {dcT, dnT}, {dc0, dn0}, true);
    launch(run_gradients, pieces, THREADS, sizeof(backward_room), p, in, out, d);
    launch(run_levels_back, batch * H, THREADS, 32 * sizeof(real), p, d, carries, state_of_heads<const real>{dc0, dn0});
    zero_padding(dq, lengths, batch, T, H * N);
    zero_padding(dk, lengths, batch, T, H * N);
    zero_padding(dv, lengths, batch, T, H * P);
    zero_padding(dlog_i, lengths, batch, T, H);
    zero_padding(dlog_f, lengths, batch, T, H);
    return runtime_status();
}
