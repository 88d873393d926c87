/* Diagonal scan  h_t = a_t h_{t-1} + x_t  over (B, T, N), and its adjoint. Compiled for real and complex lanes.
 *
 * Sequential in time, SIMD across lanes, threads over (sequence, block of lanes): the cut depends on the shapes
 * alone and every sum has one order, so results are the same bits for any number of threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 * `varying`: a is (B, T, N), else (N). `reverse`: time runs from lengths[b]-1 down to 0, by indexing.
 */
#include <string.h>

#include "kernels.h"
#include "steps.h"
#include "workspace.h"

enum {
    BLOCK = 1024 / sizeof(lane), /* lanes of one task */
    SUM_STEPS = 128,             /* steps of one partial sum */
    TILE = 64,                   /* steps that a walk down through memory fetches at a time */
    SERIAL = 32768,              /* lanes in all below which threads do not pay */
};

static const lane ZEROS[BLOCK];

/* One sequence's walk: row(k) is the offset of the k-th step in scan order. */
typedef struct {
    ptrdiff_t first, stride;
    int64_t steps;
} walk;

static walk walk_of(const int64_t *lengths, int64_t b, int64_t T, int64_t N, int64_t reverse) {
    const int64_t steps = lengths ? lengths[b] : T;
    walk w = {(b * T + (reverse && steps ? steps - 1 : 0)) * N, reverse ? -N : N, steps};
    return w;
}

static void zero_padding(lane *rows, int64_t b, int64_t T, int64_t N, int64_t from, int64_t n) {
    for (int64_t t = from; t < T; t++) memset(rows + (b * T + t) * N, 0, (size_t)n * sizeof(lane));
}

/* Reads one word of every cache line of the n lanes at `row`, where a walk down has `left` steps to go, and of up to
 * TILE - 1 rows below, from the lowest up. Hardware fetches ahead of a walk up through memory, and hardly of one down:
 * with its tiles walked up first, the walk down takes about two thirds of the time. */
static void fetch(const lane *x, ptrdiff_t row, int64_t left, int64_t N, int64_t n) {
    const int64_t rows = left < TILE ? left : TILE;
    for (int64_t t = 1 - rows; t <= 0; t++)
        for (int64_t j = 0; j < n; j += 64 / (int64_t)sizeof(lane)) (void)*(const volatile real *)(x + row + t * N + j);
}

static void step_row(lane *restrict h, const lane *restrict a, const lane *restrict prev, const lane *restrict x,
                     int64_t n) {
    for (int64_t j = 0; j < n; j++) h[j] = scan_step(a[j], prev[j], x[j]);
}

/* h (B,T,N), hT (B,N) or NULL; a (N) or (B,T,N), x (B,T,N), h0 (B,N) or NULL. */
int K(scan_forward)(lane *restrict h, lane *restrict hT, const lane *restrict a, const lane *restrict x,
                    const lane *restrict h0, const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N,
                    int64_t varying, int64_t reverse) {
    const int64_t blocks = (N + BLOCK - 1) / BLOCK;
#pragma omp parallel for collapse(2) schedule(dynamic) if (B * T * N > SERIAL)
    for (int64_t b = 0; b < B; b++) {
        for (int64_t k = 0; k < blocks; k++) {
            const int64_t lo = k * BLOCK, n = N - lo < BLOCK ? N - lo : BLOCK;
            const walk w = walk_of(lengths, b, T, N, reverse);
            const lane *prev = h0 ? h0 + b * N + lo : ZEROS;
            ptrdiff_t row = w.first + lo;
            for (int64_t s = 0; s < w.steps; s++, row += w.stride) {
                if (reverse && s % TILE == 0) {
                    fetch(x, row, w.steps - s, N, n);
                    fetch(h, row, w.steps - s, N, n);
                }
                step_row(h + row, varying ? a + row : a + lo, prev, x + row, n);
                prev = h + row;
            }
            if (hT) memcpy(hT + b * N + lo, prev, (size_t)n * sizeof(lane));
            zero_padding(h + lo, b, T, N, w.steps, n);
        }
    }
    return ROT_OK;
}

/* g <- dh + conj(a_next) g, or dh + g without a_next;  dx <- g;  da += g conj(h_prev). */
static void adjoint_row(lane *restrict g, lane *restrict dx, lane *restrict da, const lane *restrict a_next,
                        const lane *restrict dh, const lane *restrict h_prev, int64_t n) {
    for (int64_t j = 0; j < n; j++) {
        const lane gj = a_next ? scan_step_adjoint(a_next[j], g[j], dh[j]) : lane_add(dh[j], g[j]);
        g[j] = gj;
        dx[j] = gj;
        da[j] = scan_transition_adjoint(gj, h_prev[j], da[j]);
    }
}

static void add_row(lane *restrict sum, const lane *restrict x, int64_t n) {
    for (int64_t j = 0; j < n; j++) sum[j] = lane_add(sum[j], x[j]);
}

/* dx (B,T,N), da like a, dh0 (B,N) or NULL, all overwritten; dh (B,T,N), dhT (B,N) or NULL, h as forward wrote it.
 *
 *   g_t = dh_t + conj(a_{t+1}) g_{t+1}     with boundary g_{T-1} = dh_{T-1} + dhT
 *   dx_t = g_t,   da_t = g_t conj(h_{t-1})  with h_{-1} = h0,   dh0 = conj(a_0) g_0   (dh0 = dhT if no steps)
 *
 * A constant `a` sums da over b and t: runs of SUM_STEPS, then t, then b, always in that order. */
int K(scan_backward)(lane *restrict dx, lane *restrict da, lane *restrict dh0, const lane *restrict dh,
                     const lane *restrict dhT, const lane *restrict a, const lane *restrict h, const lane *restrict h0,
                     const int64_t *restrict lengths, int64_t B, int64_t T, int64_t N, int64_t varying,
                     int64_t reverse) {
    const int64_t blocks = (N + BLOCK - 1) / BLOCK;
    lane *const sums = varying ? NULL : WORKSPACE(lane, B, N);
    if (!varying && !sums) return ROT_NO_MEMORY;
#pragma omp parallel for collapse(2) schedule(dynamic) if (B * T * N > SERIAL)
    for (int64_t b = 0; b < B; b++) {
        for (int64_t k = 0; k < blocks; k++) {
            const int64_t lo = k * BLOCK, n = N - lo < BLOCK ? N - lo : BLOCK;
            const walk w = walk_of(lengths, b, T, N, reverse);
            const lane *const start = h0 ? h0 + b * N + lo : ZEROS;
            lane g[BLOCK], run[BLOCK];
            const lane *a_next = NULL; /* dhT enters g_{T-1} as it is */
            if (dhT)
                memcpy(g, dhT + b * N + lo, (size_t)n * sizeof(lane));
            else
                memset(g, 0, sizeof g);
            memset(run, 0, sizeof run);
            if (!varying) memset(sums + b * N + lo, 0, (size_t)n * sizeof(lane));
            ptrdiff_t row = w.first + (w.steps - 1) * w.stride + lo;
            for (int64_t s = w.steps - 1; s >= 0; s--, row -= w.stride) {
                if (!reverse && (w.steps - 1 - s) % TILE == 0) {
                    fetch(dh, row, s + 1, N, n);
                    fetch(h, row, s + 1, N, n);
                    fetch(dx, row, s + 1, N, n);
                }
                const lane *const h_prev = s ? h + row - w.stride : start;
                if (varying) {
                    memset(da + row, 0, (size_t)n * sizeof(lane));
                    adjoint_row(g, dx + row, da + row, a_next, dh + row, h_prev, n);
                } else {
                    adjoint_row(g, dx + row, run, a_next, dh + row, h_prev, n);
                    if (s % SUM_STEPS == 0) {
                        add_row(sums + b * N + lo, run, n);
                        memset(run, 0, sizeof run);
                    }
                }
                a_next = varying ? a + row : a + lo;
            }
            if (dh0)
                for (int64_t j = 0; j < n; j++)
                    dh0[b * N + lo + j] = a_next ? lane_fma_conj(a_next[j], g[j], ZEROS[j]) : g[j];
            zero_padding(dx + lo, b, T, N, w.steps, n);
            if (varying) zero_padding(da + lo, b, T, N, w.steps, n);
        }
    }
    if (!varying) {
        memset(da, 0, (size_t)N * sizeof(lane));
        for (int64_t b = 0; b < B; b++) add_row(da, sums + b * N, N);
    }
    pool_give(sums);
    return ROT_OK;
}
