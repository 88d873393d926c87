/* The scan of Mamba-2 and its adjoint on a GPU, in chunks as on the CPU (csrc/kernels/ssd.c has the equations).
 *
 * A block walks a head of a sequence through time. Its threads share the numbers of each product of a chunk. Numbers of
 * pairs of steps are in shared memory, the head's state in global memory. Each product is a plain loop over its depth,
 * without tensor cores. A second kernel adds dB and dC over the heads of a group. Every sum has one order.
 */
#include "padding.h"

enum { CHUNK = SSD_CHUNK, THREADS = 256 };
static_assert(CHUNK <= THREADS, "a thread for each step of a chunk");

/* Sizes of a call. */
struct plan {
    int64_t batch, T, H, P, G, N, chunk, ranks, chunks;
    const int64_t *lengths;
    bool reverse, negative;
};

struct inputs {
    const real *x, *delta, *A, *B, *C, *skip, *log_a, *later;
};

/* The block's head. */
struct spot {
    int64_t b, head, group;
};

ROT_DEVICE_ONLY spot spot_of(plan p) {
    const int64_t head = blockIdx.x % p.H;
    const spot at = {(int64_t)(blockIdx.x / p.H), head, head / (p.H / p.G)};
    return at;
}

/* The places of step k of a chunk: its row, and in arrays with one number, P or N for each head, or N for each
 * group. */
ROT_DEVICE_ONLY int64_t row_of(walk w, int64_t k) { return w.first + k * w.stride; }
ROT_DEVICE_ONLY int64_t one_at(plan p, spot at, walk w, int64_t k) { return row_of(w, k) * p.H + at.head; }
ROT_DEVICE_ONLY int64_t wide_at(plan p, spot at, walk w, int64_t k) { return one_at(p, at, w, k) * p.P; }
ROT_DEVICE_ONLY int64_t states_at(plan p, spot at, walk w, int64_t k) { return one_at(p, at, w, k) * p.N; }
ROT_DEVICE_ONLY int64_t group_at(plan p, spot at, walk w, int64_t k) {
    return (row_of(w, k) * p.G + at.group) * p.N;
}
ROT_DEVICE_ONLY int64_t state_of(plan p, int64_t i, int64_t head) { return (i * p.H + head) * p.P * p.N; }

ROT_DEVICE_ONLY walk steps_of_chunk(plan p, int64_t b, int64_t chunk) {
    return walk_of(b, chunk, p.chunk, steps_of(p.lengths, b, p.T), p.T, p.reverse);
}

/* f(i) for i in 0..n-1, each by some thread of the block; f(i, j) for rows i of `width`. */
template <class F> ROT_DEVICE_ONLY void share(int64_t n, F f) {
    for (int64_t i = threadIdx.x; i < n; i += THREADS) f(i);
}
template <class F> ROT_DEVICE_ONLY void share_rows(int64_t n, int64_t width, F f) {
    share(n * width, [&](int64_t i) { f(i / width, i % width); });
}

/* sum of f(i) over i from first to end-1, in order */
template <class F> ROT_DEVICE_ONLY real sum_of(int64_t first, int64_t end, F f) {
    real sum = 0;
    for (int64_t i = first; i < end; i++) sum += f(i);
    return sum;
}

/* A head's steps and decays over a chunk, as in csrc/kernels/ssd.c. */
struct decays {
    real delta[CHUNK], size[CHUNK], since[CHUNK], until[CHUNK], whole;
    double s[CHUNK];
};

ROT_DEVICE_ONLY void load_decays(decays &d, plan p, inputs in, spot at, walk w) {
    share(w.steps, [&](int64_t k) {
        const int64_t own = one_at(p, at, w, k);
        d.delta[k] = in.delta[own];
        d.size[k] = in.later ? d.delta[k] + in.later[own] : d.delta[k];
    });
    __syncthreads();
    if (threadIdx.x == 0) {
        double s = 0;
        for (int64_t k = 0; k < w.steps; k++)
            d.s[k] = s += in.log_a ? ssd_exponent(in.log_a[one_at(p, at, w, k)], 1)
                                   : ssd_size(d.delta[k], in.A[at.head], p.negative);
        d.whole = exp2_of((real)s);
    }
    __syncthreads();
    share(w.steps, [&](int64_t k) {
        d.since[k] = exp2_of((real)d.s[k]);
        d.until[k] = exp2_of((real)(d.s[w.steps - 1] - d.s[k]));
    });
}
ROT_DEVICE_ONLY real decay_of(const decays &d, int64_t k, int64_t j) { return exp2_of((real)(d.s[k] - d.s[j])); }

/* The steps from `first` to `end` whose inputs reach step k without the state and the earlier steps, and the gain of
 * their x_j, with B_j . C_k, as in csrc/kernels/ssd.c. */
struct steps_of_token {
    int64_t first, end;
};

ROT_DEVICE_ONLY steps_of_token token_of(plan p, inputs in, int64_t k, int64_t n) {
    const int64_t first = k / p.ranks * p.ranks;
    const steps_of_token own = {in.later ? first : k, in.later ? least(first + p.ranks, n) : k + 1};
    return own;
}

ROT_DEVICE_ONLY real direct_gain(spot at, inputs in, const decays &d, int64_t k, int64_t j, real product) {
    const real skip = in.skip && j == k ? in.skip[at.head] : 0;
    return in.later ? skip + d.delta[j] * product : skip;
}

/* The number of steps up to k whose inputs reach step k through the pairs' weights. */
ROT_DEVICE_ONLY int64_t passed(plan p, inputs in, int64_t k) { return in.later ? k / p.ranks * p.ranks : k + 1; }

/* Numbers of pairs of steps (k,j), j <= k; rows are padded: each thread can read a column. */
typedef real square[CHUNK][CHUNK + 1];

/* ---- forward ---- */

struct forward_room {
    decays d;
    square weights;
};
static_assert(sizeof(forward_room) <= MOST_SHARED, "too much shared memory");

GLOBAL(THREADS) run_forward(plan p, inputs in, real *y, real *states, real *carries) {
    forward_room &room = shared_memory<forward_room>();
    const decays &d = room.d;
    const spot at = spot_of(p);
    real *const h = states + state_of(p, at.b, at.head);
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        const walk w = steps_of_chunk(p, at.b, chunk);
        real *const carry = carries ? carries + state_of(p, at.b * p.chunks + chunk, at.head) : NULL;
        if (carry) share(p.P * p.N, [&](int64_t i) { carry[i] = h[i]; });
        if (!w.steps) continue;
        load_decays(room.d, p, in, at, w);
        __syncthreads();
        share_rows(w.steps, w.steps,
                   [&](int64_t k,
                       int64_t j) { /* pairs of a token's own steps, without a decay */
                                    const real *const C = in.C + group_at(p, at, w, k), *const B =
                                                                                            in.B +
                                                                                            group_at(p, at, w, j);
                                    if (j >= token_of(p, in, k, w.steps).end) return;
                                    const real decay = j < passed(p, in, k) ? decay_of(d, k, j) : 1;
                                    room.weights[k][j] = decay * sum_of(0, p.N, [&](int64_t s) { return C[s] * B[s]; });
                   });
        __syncthreads();
        if (y)
            share_rows(w.steps, p.P, [&](int64_t k, int64_t i) {
                const real *const C = in.C + group_at(p, at, w, k);
                const int64_t own = wide_at(p, at, w, k) + i;
                const real before = sum_of(0, p.N, [&](int64_t s) { return C[s] * h[i * p.N + s]; });
                const real within = sum_of(0, passed(p, in, k), [&](int64_t j) {
                    return room.weights[k][j] * selective_input(d.size[j], in.x[wide_at(p, at, w, j) + i]);
                });
                y[own] = d.since[k] * before + within;
                const steps_of_token token = token_of(p, in, k, w.steps);
                if (in.skip || in.later)
                    y[own] += sum_of(token.first, token.end, [&](int64_t j) {
                        return direct_gain(at, in, d, k, j, room.weights[k][j]) * in.x[wide_at(p, at, w, j) + i];
                    });
            });
        __syncthreads();
        share_rows(p.P, p.N, [&](int64_t i, int64_t s) {
            h[i * p.N + s] = d.whole * h[i * p.N + s] + sum_of(0, w.steps, [&](int64_t k) {
                                 return d.until[k] * selective_input(d.size[k], in.x[wide_at(p, at, w, k) + i]) *
                                        in.B[group_at(p, at, w, k) + s];
                             });
        });
        __syncthreads();
    }
}

KERNEL(ssd_forward) {
    const plan p = {batch, T, H, P, G, N, chunk, ranks, pieces_of(T, chunk), lengths, (bool)reverse, (bool)negative};
    const inputs in = {x, delta, A, B, C, skip, log_a, later};
    real *const states = hT ? hT : workspace_of<real>(batch, H, P, N);
    copy_or_zero(states, h0, batch * H * P * N);
    launch(run_forward, batch * H, THREADS, sizeof(forward_room), p, in, y, states, carries);
    if (y) zero_padding(y, lengths, batch, T, H * P);
    return runtime_status();
}

/* ---- backward ---- */

/* pairs: C_k . B_j, later times the decay. adjoint: the decay times dy_k . u_j. Between a token's own steps there is no
 * decay, and delta_j x_j takes the place of u_j. since, until, dlog: as in csrc/kernels/ssd.c. */
struct backward_room {
    decays d;
    square pairs, adjoint;
    real since[CHUNK], until[CHUNK], dlog[CHUNK], scratch[32];
};
static_assert(sizeof(backward_room) <= MOST_SHARED, "too much shared memory");

/* Gradients; g (batch,H,P,N), which becomes dh0; dA and dskip of each sequence, (batch,H); dB and dC of each head,
 * (batch,T,H,N). */
struct gradients {
    real *dx, *ddelta, *g, *dA, *dskip, *dB, *dC, *dlog_a, *dlater;
};

/* The gradient of delta_i A, through all decays past step i. */
ROT_DEVICE_ONLY real exponent_adjoint(const backward_room &room, plan p, inputs in, real whole, int64_t i, int64_t n) {
    const real later = sum_of(i, n, [&](int64_t k) { return room.since[k]; });
    const real earlier = sum_of(0, i, [&](int64_t j) { return room.until[j]; });
    return whole + later + earlier + sum_of(i, n, [&](int64_t k) {
               return sum_of(0, least(i, passed(p, in, k)),
                             [&](int64_t j) { return room.pairs[k][j] * room.adjoint[k][j]; });
           });
}

GLOBAL(THREADS) run_backward(plan p, inputs in, gradients out, const real *dy, const real *carries) {
    backward_room &room = shared_memory<backward_room>();
    const decays &d = room.d;
    const spot at = spot_of(p);
    const real A = in.A ? in.A[at.head] : 0;
    real *const g = out.g + state_of(p, at.b, at.head);
    real sum_A = 0, sum_skip = 0; /* sums of the first thread */
    for (int64_t chunk = p.chunks - 1; chunk >= 0; chunk--) {
        const walk w = steps_of_chunk(p, at.b, chunk);
        const int64_t n = w.steps;
        if (!n) continue;
        const real *const h = carries + state_of(p, at.b * p.chunks + chunk, at.head);
        load_decays(room.d, p, in, at, w);
        __syncthreads();
        share_rows(n, n, [&](int64_t k, int64_t j) {
            if (j >= token_of(p, in, k, n).end) return;
            const bool own = j >= passed(p, in, k);
            const real size = own ? d.delta[j] : d.size[j], decay = own ? 1 : decay_of(d, k, j);
            const real *const C = in.C + group_at(p, at, w, k), *const B = in.B + group_at(p, at, w, j);
            const real *const dy_k = dy + wide_at(p, at, w, k), *const x = in.x + wide_at(p, at, w, j);
            room.pairs[k][j] = sum_of(0, p.N, [&](int64_t s) { return C[s] * B[s]; });
            room.adjoint[k][j] =
                decay * sum_of(0, p.P, [&](int64_t i) { return dy_k[i] * selective_input(size, x[i]); });
        });
        share_rows(n, p.N,
                   [&](int64_t k,
                       int64_t s) { /* terms of the states before and after the chunk */
                                    const real *const dy_k = dy + wide_at(p, at, w, k), *const x =
                                                                                            in.x + wide_at(p, at, w, k);
                                    const int64_t own = states_at(p, at, w, k) + s;
                                    out.dC[own] = d.since[k] *
                                                  sum_of(0, p.P, [&](int64_t i) { return dy_k[i] * h[i * p.N + s]; });
                                    out.dB[own] = d.until[k] * sum_of(0, p.P, [&](int64_t i) {
                                                      return selective_input(d.size[k], x[i]) * g[i * p.N + s];
                                                  });
                   });
        real product = 0;
        share(p.P * p.N, [&](int64_t i) { product += h[i] * g[i]; });
        const real whole = d.whole * block_sum(product, room.scratch, THREADS);
        __syncthreads();
        share(n, [&](int64_t k) {
            const real *const C = in.C + group_at(p, at, w, k), *const B = in.B + group_at(p, at, w, k);
            const int64_t own = states_at(p, at, w, k);
            room.since[k] = sum_of(0, p.N, [&](int64_t s) { return C[s] * out.dC[own + s]; });
            room.until[k] = sum_of(0, p.N, [&](int64_t s) { return B[s] * out.dB[own + s]; });
        });
        __syncthreads();
        share(n, [&](int64_t i) {
            room.dlog[i] = exponent_adjoint(room, p, in, whole, i, n) * (real)ssd_slope(d.delta[i], A, p.negative);
            if (in.log_a) out.dlog_a[one_at(p, at, w, i)] = room.dlog[i];
        });
        __syncthreads();
        share(n, [&](int64_t k) {
            const int64_t wide = wide_at(p, at, w, k);
            room.since[k] = sum_of(0, p.P, [&](int64_t i) { return dy[wide + i] * in.x[wide + i]; });
        });
        share_rows(n, p.N, [&](int64_t k, int64_t s) { /* and terms from step to step within the chunk */
                                                       const int64_t own = states_at(p, at, w, k) + s;
                                                       const steps_of_token token = token_of(p, in, k, n);
                                                       out.dC[own] += sum_of(0, token.end, [&](int64_t j) {
                                                           return room.adjoint[k][j] * in.B[group_at(p, at, w, j) + s];
                                                       });
                                                       out.dB[own] += sum_of(token.first, n, [&](int64_t i) {
                                                           return room.adjoint[i][k] * in.C[group_at(p, at, w, i) + s];
                                                       });
        });
        __syncthreads();
        share_rows(n, n, [&](int64_t k, int64_t j) {
            if (j < passed(p, in, k)) room.pairs[k][j] *= decay_of(d, k, j);
        });
        __syncthreads();
        share_rows(n, p.P, [&](int64_t j, int64_t i) { /* du */
                                                       const real *const B = in.B + group_at(p, at, w, j);
                                                       const real later = sum_of(
                                                           0, p.N, [&](int64_t s) { return B[s] * g[i * p.N + s]; });
                                                       const int64_t next = in.later ? token_of(p, in, j, n).end : j;
                                                       out.dx[wide_at(p, at, w, j) + i] =
                                                           d.until[j] * later + sum_of(next, n, [&](int64_t k) {
                                                               return room.pairs[k][j] * dy[wide_at(p, at, w, k) + i];
                                                           });
        });
        __syncthreads();
        share(n, [&](int64_t k) {
            const int64_t own = wide_at(p, at, w, k), one = one_at(p, at, w, k);
            const steps_of_token token = token_of(p, in, k, n);
            const real through = sum_of(0, p.P, [&](int64_t i) { return in.x[own + i] * out.dx[own + i]; });
            const real direct = sum_of(token.first, in.later ? token.end : token.first, [&](int64_t j) {
                const real *const dy_j = dy + wide_at(p, at, w, j);
                return room.pairs[j][k] * sum_of(0, p.P, [&](int64_t i) { return dy_j[i] * in.x[own + i]; });
            });
            out.ddelta[one] = through + direct + A * room.dlog[k];
            if (in.later) out.dlater[one] = through;
            room.dlog[k] *= d.delta[k]; /* from here on the terms of dA and of dskip */
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            sum_A += sum_of(0, n, [&](int64_t k) { return room.dlog[k]; });
            sum_skip += sum_of(0, n, [&](int64_t k) { return room.since[k]; });
        }
        share_rows(n, p.P, [&](int64_t k, int64_t i) {
            const int64_t own = wide_at(p, at, w, k) + i;
            const steps_of_token token = token_of(p, in, k, n);
            out.dx[own] = d.size[k] * out.dx[own] + sum_of(token.first, token.end, [&](int64_t j) {
                              return direct_gain(at, in, d, j, k, room.pairs[j][k]) * dy[wide_at(p, at, w, j) + i];
                          });
        });
        share_rows(p.P, p.N, [&](int64_t i, int64_t s) {
            g[i * p.N + s] = d.whole * g[i * p.N + s] + sum_of(0, n, [&](int64_t k) {
                                 return d.since[k] * dy[wide_at(p, at, w, k) + i] * in.C[group_at(p, at, w, k) + s];
                             });
        });
        __syncthreads();
    }
    if (threadIdx.x == 0) out.dA[blockIdx.x] = sum_A, out.dskip[blockIdx.x] = sum_skip;
}

/* sum (batch,T,G,N) <- the sums over the heads of each group, zero in the padding */
static void sum_heads(real *sum, const real *of_head, plan p) {
    each(p.batch * p.T * p.G * p.N, [=] __device__(int64_t i) {
        const int64_t row = i / (p.G * p.N), heads = p.H / p.G, head = i / p.N % p.G * heads;
        const bool counts = row % p.T < steps_of(p.lengths, row / p.T, p.T);
        const real *const first = of_head + (row * p.H + head) * p.N + i % p.N;
        sum[i] = counts ? sum_of(0, heads, [&](int64_t j) { return first[j * p.N]; }) : 0;
    });
}

static void sum_sequences(real *sum, const real *of_sequence, plan p) {
    each(p.H, [=] __device__(int64_t i) {
        sum[i] = sum_of(0, p.batch, [&](int64_t b) { return of_sequence[b * p.H + i]; });
    });
}

KERNEL(ssd_backward) {
    const plan p = {batch, T, H, P, G, N, chunk, ranks, pieces_of(T, chunk), lengths, (bool)reverse, (bool)negative};
    const inputs in = {x, delta, A, B, C, skip, log_a, later};
    const gradients out = {dx,
                           ddelta,
                           dh0,
                           workspace_of<real>(batch, H),
                           workspace_of<real>(batch, H),
                           workspace_of<real>(batch, T, H, N),
                           workspace_of<real>(batch, T, H, N),
                           dlog_a,
                           dlater};
    copy_or_zero(dh0, dhT, batch * H * P * N);
    launch(run_backward, batch * H, THREADS, sizeof(backward_room), p, in, out, dy, carries);
    zero_padding(dx, lengths, batch, T, H * P);
    zero_padding(ddelta, lengths, batch, T, H);
    if (dlog_a) zero_padding(dlog_a, lengths, batch, T, H);
    if (dlater) zero_padding(dlater, lengths, batch, T, H);
    sum_heads(dB, out.dB, p);
    sum_heads(dC, out.dC, p);
    if (dA) sum_sequences(dA, out.dA, p);
    if (dskip) sum_sequences(dskip, out.dskip, p);
    return runtime_status();
}
