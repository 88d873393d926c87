/* Causal depthwise convolution and its adjoint on a GPU (csrc/kernels/conv.c has the equations).
 *
 * A thread walks a run of steps of one channel, with the last TAPS inputs in registers: more taps take more passes. The
 * gradients of the weights are sums over steps by channel, in chunks that columns.h merges.
 */
#include "columns.h"

namespace {

enum {
    THREADS = 128,
    TAPS = 4,         /* of one pass */
    AHEAD = 8,        /* inputs read ahead of their use */
    ENOUGH = 1 << 17, /* threads that a pass should have */
    LEAST_STEPS = 8,  /* of a run */
    MOST_STEPS_OF_RUN = 64,
};

/* The inputs z_0, z_1, ... of each sequence: x (B,T,D) after state (B,taps-1,D), which may be NULL for zeros. */
struct inputs {
    const real *x, *state;
    int64_t T, D, taps;
};

ROT_DEVICE_ONLY real input_at(inputs z, int64_t b, int64_t i, int64_t d) {
    const int64_t before = z.taps - 1;
    if (i < before && !z.state) return 0;
    return *(i < before ? z.state + (b * before + i) * z.D + d : z.x + (b * z.T + i - before) * z.D + d);
}

/* Division of time. */
struct runs_cut {
    extent e;
    int64_t steps, runs;
};

static runs_cut cut_runs(extent e) {
    runs_cut c = {e, least(most(e.B * e.T * e.D / ENOUGH, LEAST_STEPS), MOST_STEPS_OF_RUN), 0};
    c.runs = pieces_of(e.T, c.steps);
    return c;
}

/* y_t = start + sum_m weight(m) z_{t+m} over the taps m = high-TAPS .. high-1; start: the result of earlier passes, if
 * any. start and z take a sequence, a step or input, its channel, and the number of valid steps. */
template <class Start, class Weight, class Input>
GLOBAL(THREADS) convolve_kernel(runs_cut c, real *y, Start start, Weight weight, Input z, int64_t high, bool first) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, T = c.e.T, D = c.e.D;
    if (i >= c.e.B * c.runs * D) return;
    const int64_t d = i % D, b = i / D / c.runs, from = i / D % c.runs * c.steps, low = high - TAPS;
    const int64_t all = steps_of(c.e.lengths, b, T);
    real *const out = y + (b * T + from) * D + d;
    real w[TAPS], last[TAPS];
#pragma unroll
    for (int n = 0; n < TAPS; n++) {
        w[n] = low + n < 0 ? 0 : weight(low + n, d);
        last[n] = n == 0 || low + n < 1 || from >= all ? 0 : z(b, from + low + n - 1, d, all);
    }
    pipelined<AHEAD>(
        least(most(all - from, 0), c.steps), [&](int64_t t) { return z(b, from + t + high - 1, d, all); },
        [&](int64_t t, real newest) {
            real sum = first ? start(b, from + t, d, all) : out[t * D];
#pragma unroll
            for (int n = 0; n < TAPS; n++) {
                last[n] = n == TAPS - 1 ? newest : last[n + 1];
                if (low + n >= 0) sum += w[n] * last[n];
            }
            out[t * D] = sum;
        });
    for (int64_t t = most(all - from, 0); t < least(T - from, c.steps); t++) write_lane(out + t * D, 0);
}

template <class Start, class Weight, class Input>
static void convolve(extent e, int64_t taps, real *y, Start start, Weight weight, Input z) {
    const runs_cut c = cut_runs(e);
    for (int64_t high = taps; high > 0; high -= TAPS)
        launch(convolve_kernel<Start, Weight, Input>, pieces_of(e.B * c.runs * e.D, THREADS), THREADS, 0, c, y, start,
               weight, z, high, high == taps);
}

}

KERNEL(conv_forward) {
    const inputs in = {x, state, T, D, taps};
    const extent e = {B, T, D, lengths};
    convolve(
        e, taps, y, [=] __device__(int64_t, int64_t, int64_t d, int64_t) { return bias ? bias[d] : 0; },
        [=] __device__(int64_t k, int64_t d) { return w[d * taps + k]; },
        [=] __device__(int64_t b, int64_t i, int64_t d, int64_t) { return input_at(in, b, i, d); });
    const int64_t tail = (taps - 1) * D;
    if (final)
        each(B * tail, [=] __device__(int64_t at) {
            const int64_t b = at / tail, i = at % tail / D;
            final[at] = input_at(in, b, steps_of(lengths, b, T) + i, at % D);
        });
    return runtime_status();
}

namespace {

/* Gradients that reach the inputs: dy (B,T,D) through the weights w (D,taps), and dfinal (B,taps-1,D) or NULL. */
struct gradients {
    const real *dy, *dfinal, *w;
    int64_t T, D, taps;
};

/* Row i - all of dfinal if z_i is in the final state */
ROT_DEVICE_ONLY real final_adjoint(gradients g, int64_t b, int64_t i, int64_t d, int64_t all) {
    return g.dfinal && i >= all ? g.dfinal[(b * (g.taps - 1) + i - all) * g.D + d] : 0;
}

/* dz_i = sum_k w_k dy_{i-k} over the valid steps, for an input before the first step */
ROT_DEVICE_ONLY real state_adjoint(gradients g, int64_t b, int64_t i, int64_t d, int64_t all) {
    real dz = final_adjoint(g, b, i, d, all);
    for (int64_t k = most(i - all + 1, 0); k <= i; k++) dz += g.w[d * g.taps + k] * g.dy[(b * g.T + i - k) * g.D + d];
    return dz;
}

struct step_of_sum {
    real dy, newest;
};

/* sums (chunks,TAPS+1,D): of dy_t z_{t+k} over the taps k = high-TAPS .. high-1, and of dy */
GLOBAL(COLUMN_THREADS) sum_taps(columns_cut c, real *sums, inputs in, const real *dy, int64_t high) {
    column_scratch &s = shared_memory<column_scratch>();
    const column own = column_of(c);
    const int64_t b = own.at.b, d = own.at.d, T = in.T, D = in.D, low = high - TAPS;
    const int64_t group = (int)threadIdx.x / c.width, first = own.at.row - group - b * T + group * ROWS_OF_THREAD;
    const int64_t steps = d < D ? least(steps_of(c.e.lengths, b, T) - first, ROWS_OF_THREAD) : 0;
    real last[TAPS] = {}, sum[TAPS + 1] = {};
#pragma unroll
    for (int n = 1; n < TAPS; n++)
        if (steps > 0 && low + n >= 1) last[n] = input_at(in, b, first + low + n - 1, d);
    pipelined<AHEAD>(
        steps,
        [&](int64_t t) {
            const step_of_sum step = {dy[(b * T + first + t) * D + d], input_at(in, b, first + t + high - 1, d)};
            return step;
        },
        [&](int64_t, step_of_sum step) {
#pragma unroll
            for (int n = 0; n < TAPS; n++) {
                last[n] = n == TAPS - 1 ? step.newest : last[n + 1];
                sum[n] += step.dy * last[n];
            }
            sum[TAPS] += step.dy;
        });
#pragma unroll
    for (int n = 0; n <= TAPS; n++) {
        const real total = column_total(sum[n], s.sums, c.width);
        if (writes(own, c)) sums[(own.chunk * (TAPS + 1) + n) * D + d] = total;
    }
}

static void weights_adjoint(extent e, inputs in, real *dw, real *dbias, const real *dy, int64_t high) {
    const columns_cut c = cut_columns(e);
    const int64_t chunks = e.B * c.count, taps = in.taps, D = in.D;
    real *const sums = workspace_of<real>(chunks, TAPS + 1, D);
    launch(sum_taps, chunks * tiles_of(c), COLUMN_THREADS, sizeof(column_scratch), c, sums, in, dy, high);
    merge_chunks(sums, 1, chunks, (TAPS + 1) * D, [=] __device__(int64_t, int64_t at, double total) {
        const int64_t n = at / D, d = at % D, k = high - TAPS + n;
        if (n == TAPS)
            dbias[d] = (real)total;
        else if (k >= 0)
            dw[d * taps + k] = (real)total;
    });
}

}

KERNEL(conv_backward) {
    const gradients g = {dy, dfinal, w, T, D, taps};
    const inputs in = {x, state, T, D, taps};
    const extent e = {B, T, D, lengths};
    convolve( /* the gradient of input t + taps-1, from dy_t .. dy_{t+taps-1} */
        e, taps, dx,
        [=] __device__(int64_t b, int64_t t, int64_t d, int64_t all) {
            return final_adjoint(g, b, t + taps - 1, d, all);
        },
        [=] __device__(int64_t m, int64_t d) { return w[d * taps + taps - 1 - m]; },
        [=] __device__(int64_t b, int64_t i, int64_t d, int64_t all) { return i < all ? dy[(b * T + i) * D + d] : 0; });
    const int64_t tail = (taps - 1) * D;
    each(B * tail, [=] __device__(int64_t at) {
        const int64_t b = at / tail;
        dstate[at] = state_adjoint(g, b, at % tail / D, at % D, steps_of(lengths, b, T));
    });
    for (int64_t high = taps; high > 0; high -= TAPS) weights_adjoint(e, in, dw, dbias, dy, high);
    return runtime_status();
}
