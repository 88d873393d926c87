/* Scans of PD-SSM and their adjoint on a GPU (csrc/kernels/permuted.c has the equations). A thread chooses the row of a
 * column of a step. A block walks through the time of a sequence: for each lane a thread gathers the numbers that
 * columns send there, in the order of lanes. The adjoint of the choice stores only three numbers for each column and
 * step. A thread then recomputes the entries of M_t, for a number of dw, or for a number of dm over all steps, in
 * order.
 */
#include "device.h"

namespace {

enum { THREADS = 256 };

/* Entry (i, j) of M_t; `m` points to it in M[0] */
ROT_DEVICE_ONLY real mixed(const real *w, const real *m, int64_t choices, int64_t N) {
    real sum = 0;
    for (int64_t k = 0; k < choices; k++) sum += w[k] * m[k * N * N];
    return sum;
}

ROT_DEVICE_ONLY cplx pair_of(const real *x, int64_t N, int64_t j) {
    const cplx one = {x[j], x[N + j]};
    return one;
}
ROT_DEVICE_ONLY cplx no_pair() {
    const cplx zero = {0, 0};
    return zero;
}
ROT_DEVICE_ONLY const real *state_before(const real *h, const real *h0, int64_t b, int64_t t, int64_t T, int64_t N) {
    return t ? h + (b * T + t - 1) * 2 * N : h0 ? h0 + b * 2 * N : NULL;
}
ROT_DEVICE_ONLY cplx lane_before(const real *h_prev, int64_t N, int64_t j) {
    return h_prev ? pair_of(h_prev, N, j) : no_pair();
}

GLOBAL(THREADS)
scatter(real *h, real *hT, const int64_t *p, const real *lost, const real *d, const real *x, const real *h0, const int64_t *lengths,
        int64_t T, int64_t N) {
    const int64_t b = blockIdx.x, all = steps_of(lengths, b, T);
    for (int64_t t = 0; t < T; t++) {
        const int64_t at = b * T + t;
        const real *const h_prev = state_before(h, h0, b, t, T, N), *const own = d + at * 2 * N;
        for (int64_t i = threadIdx.x; i < N; i += THREADS) {
            cplx now = t < all ? pair_of(x + at * 2 * N, N, i) : no_pair();
            for (int64_t j = 0; j < N && t < all; j++)
                if (p[at * N + j] == i) now = cplx_fma(pair_of(own, N, j), lane_before(h_prev, N, j), now);
            for (int64_t j = 0; j < N && t < all; j++) now.re += lost[at * N + j], now.im += lost[at * N + j];
            h[at * 2 * N + i] = now.re, h[at * 2 * N + N + i] = now.im;
        }
        __syncthreads();
    }
    const real *const last = state_before(h, h0, b, all, T, N);
    for (int64_t i = threadIdx.x; i < 2 * N; i += THREADS) hT[b * 2 * N + i] = last ? last[i] : 0;
}

GLOBAL2(THREADS, 1)
gather(real *dd, real *dx, real *dh0, const real *dh, const real *dhT, const real *d, const real *h, const int64_t *p,
       const real *h0, const int64_t *lengths, int64_t T, int64_t N) {
    const int64_t b = blockIdx.x, all = steps_of(lengths, b, T);
    real *const g = dh0 + b * 2 * N;
    for (int64_t i = threadIdx.x; i < 2 * N; i += THREADS) g[i] = dhT ? dhT[b * 2 * N + i] : 0;
    for (int64_t t = T - 1; t >= 0; t--) {
        const int64_t at = b * T + t, row = at * 2 * N;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < 2 * N; i += THREADS) dx[row + i] = t < all ? dh[row + i] + g[i] : 0;
        __syncthreads();
        const real *const h_prev = state_before(h, h0, b, t, T, N);
        for (int64_t j = threadIdx.x; j < N; j += THREADS) {
            const int64_t i =
                t < all ? p[at * N + j] : -1; /* the host has not checked p: an invalid row has no gradient */
            const cplx now = i >= 0 && i < N ? pair_of(dx + row, N, i) : no_pair();
            const cplx dlane = t < all ? cplx_fma_conj(lane_before(h_prev, N, j), now, no_pair()) : no_pair();
            dd[row + j] = dlane.re, dd[row + N + j] = dlane.im;
            if (t >= all) continue;
            const cplx past = cplx_fma_conj(pair_of(d + row, N, j), now, no_pair());
            g[j] = past.re, g[N + j] = past.im;
        }
    }
}

/* The inputs of the choice's adjoint for a column of a step */
struct column {
    real re, im;          /* (D h_prev)_j */
    real high, sum, mean; /* the largest M_t[i, j]; 1 / sum of exp(M_t[i, j] - high); the mean of G under the softmax */
};

ROT_DEVICE_ONLY real dmixed(column c, real m, cplx g) {
    return vmath_exp(m - c.high) * c.sum * (g.re * c.re + g.im * c.im - c.mean);
}

} // namespace

KERNEL(permuted_scan_forward) {
    real *const lost = workspace_of<real>(B, T, N);
    each(B * T * N, [=] __device__(int64_t i) {
        const int64_t at = i / N, j = i % N;
        int64_t row = 0;
        real unknown = 0; /* NaN if some number of the column is NaN */
        if (at % T < steps_of(lengths, at / T, T)) {
            real best = mixed(w + at * choices, m + j, choices, N);
            if (isnan(best)) unknown = best;
            for (int64_t r = 1; r < N; r++) {
                const real one = mixed(w + at * choices, m + r * N + j, choices, N);
                if (isnan(one)) unknown = one;
                if (one > best) best = one, row = r;
            }
        }
        p[i] = row, lost[i] = unknown;
    });
    launch(scatter, B, THREADS, 0, h, hT, (const int64_t *)p, (const real *)lost, d, x, h0, lengths, T, N);
    return runtime_status();
}

KERNEL(permuted_scan_backward) {
    launch(gather, B, THREADS, 0, dd, dx, dh0, dh, dhT, d, h, p, h0, lengths, T, N);
    column *const columns = workspace_of<column>(B, T, N);
    const real *const g = dx;
    each(B * T * N, [=] __device__(int64_t i) {
        const int64_t at = i / N, j = i % N, b = at / T, t = at % T;
        if (t >= steps_of(lengths, b, T)) return;
        const real *const own = w + at * choices;
        const cplx z =
            cplx_fma(pair_of(d + at * 2 * N, N, j), lane_before(state_before(h, h0, b, t, T, N), N, j), no_pair());
        column c = {z.re, z.im, mixed(own, m + j, choices, N), 0, 0};
        for (int64_t r = 1; r < N; r++) {
            const real one = mixed(own, m + r * N + j, choices, N);
            c.high = one > c.high ? one : c.high;
        }
        for (int64_t r = 0; r < N; r++) {
            const real e = vmath_exp(mixed(own, m + r * N + j, choices, N) - c.high);
            const cplx now = pair_of(g + at * 2 * N, N, r);
            c.sum += e, c.mean += e * (now.re * z.re + now.im * z.im);
        }
        c.sum = 1 / c.sum, c.mean *= c.sum;
        columns[i] = c;
    });
    each(B * T * choices, [=] __device__(int64_t i) {
        const int64_t at = i / choices, k = i % choices;
        double total = 0;
        if (at % T < steps_of(lengths, at / T, T))
            for (int64_t r = 0; r < N; r++) {
                const cplx now = pair_of(g + at * 2 * N, N, r);
                for (int64_t j = 0; j < N; j++) {
                    const real one = mixed(w + at * choices, m + r * N + j, choices, N);
                    total += (double)(dmixed(columns[at * N + j], one, now) * m[(k * N + r) * N + j]);
                }
            }
        dw[i] = (real)total;
    });
    each(choices * N * N, [=] __device__(int64_t i) {
        const int64_t k = i / (N * N), r = i / N % N, j = i % N;
        double total = 0;
        for (int64_t b = 0; b < B; b++)
            for (int64_t t = 0; t < steps_of(lengths, b, T); t++) {
                const int64_t at = b * T + t;
                const real *const own = w + at * choices;
                const real one = mixed(own, m + r * N + j, choices, N);
                total += (double)(own[k] * dmixed(columns[at * N + j], one, pair_of(g + at * 2 * N, N, r)));
            }
        dm[i] = (real)total;
    });
    return runtime_status();
}
