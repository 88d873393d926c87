/* Rotations of pairs of lanes by angles that add up over time, and the adjoint. In a head, with R(c) the rotation of
 * pair i by c_i, counter-clockwise:
 *
 *   c_t = c_{t-1} + theta_t    y_t = R(c_t) x_t    for each vector x (N) of the head
 *
 * There are `angles` pairs; pair i is (2i, 2i+1), or (i, i + N/2) of halves. Other lanes are unchanged. Angles are
 * summed in double and reduced to half a turn after each run: for T angles of at most a >= 1, rounding errors in runs
 * add up to T a RUN 2^-54, and errors of reductions to less. A task is a sequence and a run of RUN steps. Its first
 * angles are the sums of the runs before, added in order: results have the same bits for any number of threads.
 *
 * `lengths` (B) or NULL: steps at t >= lengths[b] are neither read nor counted, and are written as zero.
 * `reverse`: time runs from lengths[b]-1 down to 0, by indexing; runs are numbered in the order of the walk.
 */
#include "cuts.h"
#include "kernels.h"
#include "lanes.h"
#include "rotation.h"
#include "stop.h"
#include "vector.h"
#include "workspace.h"

enum { RUN = 128, SERIAL = 16384 };

/* Sizes of a call; `lanes`, the number of angles of a step. */
typedef struct {
    int64_t B, T, H, N, angles;
    const int64_t *lengths;
    bool halves, reverse, threads;
    int64_t lanes, runs;
} plan;

static plan plan_of(const int64_t *lengths, int64_t B, int64_t T, int64_t rows, int64_t H, int64_t N, int64_t angles,
                    int64_t pairs, int64_t reverse) {
    const plan p = {B,
                    T,
                    H,
                    N,
                    angles,
                    lengths,
                    pairs == PAIRS_HALVES,
                    reverse,
                    B * T * rows * H * N > SERIAL,
                    H * angles,
                    pieces_of(T, RUN)};
    return p;
}

static walk steps_of_run(const plan *p, int64_t b, int64_t run) {
    return walk_of(b, run, RUN, steps_of(p->lengths, b, p->T), p->T, p->reverse);
}

/* c (n) += theta */
static void add_angles(double *restrict c, const real *restrict theta, int64_t n) {
    for (int64_t i = 0; i < n; i++) c[i] += (double)theta[i];
}

/* c (n) += theta, less whole turns: beyond half a turn by rounding errors, which a unit can ignore */
static void load_units(real *restrict re, real *restrict im, double *restrict c, const real *restrict theta,
                       int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const double sum = c[i] + (double)theta[i], turns = (sum * (1 / ROT_TURN_HIGH) + 0x1.8p52) - 0x1.8p52;
        c[i] = less_turns(sum, turns) - turns * ROT_TURN_LOW;
        re[i] = clamp((real)c[i], (real)-ROT_PI, (real)ROT_PI);
    }
    for (int64_t i = 0; i < n; i++) {
        const cplx unit = unit_of(re[i]);
        re[i] = unit.re, im[i] = unit.im;
    }
}

/* starts (B, runs + 1, lanes) <- the angles before each run and after the last */
static void load_starts(double *starts, const real *theta, const real *c0, const plan *p) {
    const int64_t n = p->lanes;
#pragma omp parallel for schedule(static) if (p->threads)
    for (int64_t i = 0; i < p->B * p->runs; i++) {
        const int64_t b = i / p->runs, run = i % p->runs;
        const walk w = steps_of_run(p, b, run);
        double *const sum = starts + (b * (p->runs + 1) + run + 1) * n;
        for (int64_t j = 0; j < n; j++) sum[j] = 0;
        for (int64_t k = 0; k < w.steps; k++) add_angles(sum, theta + (w.first + k * w.stride) * n, n);
    }
    for (int64_t b = 0; b < p->B; b++) {
        double *const own = starts + b * (p->runs + 1) * n;
        const real *const before = c0 ? c0 + b * 2 * n : NULL;
        for (int64_t j = 0; j < n; j++) own[j] = before ? (double)before[j] + (double)before[n + j] : 0;
        for (int64_t i = 1; i <= p->runs; i++)
            for (int64_t j = 0; j < n; j++) own[i * n + j] = within_half_turn(own[i * n + j] + own[(i - 1) * n + j]);
    }
}

static inline void turn_pairs(real *restrict y, const real *restrict x, const real *restrict re,
                              const real *restrict im, int64_t angles, int64_t apart, bool halves) {
    for (int64_t i = 0; i < angles; i++) {
        const int64_t at = pair_first(i, halves);
        const cplx unit = {re[i], im[i]}, pair = {x[at], x[at + apart]}, turned = turn_step(unit, pair);
        y[at] = turned.re, y[at + apart] = turned.im;
    }
}

/* dx <- dy turned back, and dc (angles) += the adjoints of the angles of y */
static inline void turn_pairs_back(real *restrict dx, real *restrict dc, const real *restrict y,
                                   const real *restrict dy, const real *restrict re, const real *restrict im,
                                   int64_t angles, int64_t apart, bool halves) {
    for (int64_t i = 0; i < angles; i++) {
        const int64_t at = pair_first(i, halves);
        const cplx back = {re[i], -im[i]}, pair = {y[at], y[at + apart]}, gradient = {dy[at], dy[at + apart]};
        const cplx turned = turn_step(back, gradient);
        dx[at] = turned.re, dx[at + apart] = turned.im;
        dc[i] += turn_angle_adjoint(pair, gradient);
    }
}

/* y (n) <- x. A call of memcpy takes longer for the few lanes of a row; the empty asm keeps compilers from it. */
static inline void copy_lanes(real *restrict y, const real *restrict x, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        store(y + i, load(x + i));
        __asm__ volatile("" ::: "memory");
    }
    for (; i < n; i++) y[i] = x[i];
}

/* y (N) <- the lanes of x that do not turn */
static inline void copy_others(real *restrict y, const real *restrict x, const plan *p) {
    const int64_t end = p->angles + (p->halves ? p->N / 2 : p->angles);
    if (p->halves) copy_lanes(y + p->angles, x + p->angles, p->N / 2 - p->angles);
    copy_lanes(y + end, x + end, p->N - end);
}

/* y (vectors,H,N) <- x turned by units of the heads (lanes) */
static void turn_rows(real *restrict y, const real *restrict x, const real *re, const real *im, const plan *p,
                      int64_t vectors) {
    for (int64_t v = 0; v < vectors; v++)
        for (int64_t own = 0, h = 0; h < p->H; h++, own += p->angles, y += p->N, x += p->N) {
            if (p->halves)
                turn_pairs(y, x, re + own, im + own, p->angles, p->N / 2, true);
            else
                turn_pairs(y, x, re + own, im + own, p->angles, 1, false);
            copy_others(y, x, p);
        }
}

/* dx (vectors,H,N) <- dy turned back by units of the heads (lanes), and dc (lanes) += the adjoints of the angles */
static void turn_rows_back(real *restrict dx, real *restrict dc, const real *restrict y, const real *restrict dy,
                           const real *re, const real *im, const plan *p, int64_t vectors) {
    for (int64_t v = 0; v < vectors; v++)
        for (int64_t own = 0, h = 0; h < p->H; h++, own += p->angles, dx += p->N, y += p->N, dy += p->N) {
            if (p->halves)
                turn_pairs_back(dx, dc + own, y, dy, re + own, im + own, p->angles, p->N / 2, true);
            else
                turn_pairs_back(dx, dc + own, y, dy, re + own, im + own, p->angles, 1, false);
            copy_others(dx, dy, p);
        }
}

/* y (B,T,vectors,H,N), w (B,T,others,H,N) or NULL, cT (B,2,H,angles) or NULL; theta (B,T,H,angles); x like y, z like w,
 * c0 like cT. A state is the angles within half a turn, and their rounding errors. */
KERNEL(turn_forward) {
    const plan p = plan_of(lengths, B, T, vectors + others, H, N, angles, pairs, reverse);
    const int64_t n = p.lanes, wide = vectors * H * N, other = others * H * N;
    double *const starts = WORKSPACE(double, B, p.runs + 1, H, angles);
    real *const units = WORKSPACE(real, most_threads(), 2, H, angles);
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!starts || !units) goto end;
    status = ROT_OK;
    load_starts(starts, theta, c0, &p);
    for (int64_t b = 0; cT && b < B; b++)
        for (int64_t j = 0; j < n; j++) {
            const double c = within_half_turn(starts[(b * (p.runs + 1) + p.runs) * n + j]);
            cT[b * 2 * n + j] = (real)c, cT[(b * 2 + 1) * n + j] = angle_rest(c);
        }
#pragma omp parallel for schedule(static) if (p.threads)
    for (int64_t i = 0; i < B * p.runs; i++) {
        if (stopped(stop)) continue;
        const int64_t b = i / p.runs, run = i % p.runs;
        const walk own = steps_of_run(&p, b, run);
        double *const c = starts + (b * (p.runs + 1) + run) * n;
        real *const re = units + thread_number() * 2 * n, *const im = re + n;
        for (int64_t k = 0; k < own.steps; k++) {
            const int64_t row = own.first + k * own.stride;
            load_units(re, im, c, theta + row * n, n);
            turn_rows(y + row * wide, x + row * wide, re, im, &p, vectors);
            if (w) turn_rows(w + row * other, z + row * other, re, im, &p, others);
        }
    }
    for (int64_t b = 0; b < B; b++) {
        zero_padding(y, b, steps_of(lengths, b, T), T, wide);
        if (w) zero_padding(w, b, steps_of(lengths, b, T), T, other);
    }
end:
    pool_give(starts), pool_give(units);
    return status;
}

/* dtheta (B,T,H,angles), dx (B,T,vectors,H,N), dz (B,T,others,H,N) or NULL, dc0 (B,2,H,angles), all overwritten; dy, dw
 * like dx, dz; dcT (B,2,H,angles) or NULL; theta, c0, lengths as in forward, y and w as written by it. With gc_t the
 * gradient of c_t through y_t:
 *
 *   dx_t = R(-c_t) dy_t    gc_t = sum over vectors of y_0 dy_1 - y_1 dy_0    for each pair
 *   dtheta_t = gc_t + dtheta_{t+1}    with boundary dtheta_{T-1} = gc_{T-1} + dcT    dc0 = dtheta_0  (dcT if no steps)
 *
 * The rounding errors in cT are constants: their gradient dcT[:, 1] is not used. */
KERNEL(turn_backward) {
    const plan p = plan_of(lengths, B, T, vectors + others, H, N, angles, pairs, reverse);
    const int64_t n = p.lanes, wide = vectors * H * N, other = others * H * N;
    double *const starts = WORKSPACE(double, B, p.runs + 1, H, angles);
    real *const units = WORKSPACE(real, most_threads(), 2, H, angles);
    rot_stop *const stop = stop_of_call();
    int status = ROT_NO_MEMORY;
    if (!starts || !units) goto end;
    status = ROT_OK;
    load_starts(starts, theta, c0, &p);
#pragma omp parallel for schedule(static) if (p.threads)
    for (int64_t i = 0; i < B * p.runs; i++) {
        if (stopped(stop)) continue;
        const int64_t b = i / p.runs, run = i % p.runs;
        const walk own = steps_of_run(&p, b, run);
        double *const c = starts + (b * (p.runs + 1) + run) * n;
        real *const re = units + thread_number() * 2 * n, *const im = re + n;
        for (int64_t k = 0; k < own.steps; k++) {
            const int64_t row = own.first + k * own.stride;
            load_units(re, im, c, theta + row * n, n);
            zero_row(dtheta + row * n, n);
            turn_rows_back(dx + row * wide, dtheta + row * n, y + row * wide, dy + row * wide, re, im, &p, vectors);
            if (w)
                turn_rows_back(dz + row * other, dtheta + row * n, w + row * other, dw + row * other, re, im, &p,
                               others);
        }
    }
#pragma omp parallel for schedule(static) if (p.threads)
    for (int64_t b = 0; b < B; b++) {
        const int64_t all = steps_of(lengths, b, T);
        double *const sum = starts + b * (p.runs + 1) * n;
        for (int64_t j = 0; j < n; j++) sum[j] = dcT ? (double)dcT[b * 2 * n + j] : 0;
        for (int64_t k = all - 1; k >= 0; k--) {
            real *const own = dtheta + (b * T + (reverse ? all - 1 - k : k)) * n;
            for (int64_t j = 0; j < n; j++) own[j] = (real)(sum[j] += (double)own[j]);
        }
        for (int64_t j = 0; j < n; j++) dc0[b * 2 * n + j] = dc0[(b * 2 + 1) * n + j] = (real)sum[j];
        zero_padding(dtheta, b, all, T, n);
        zero_padding(dx, b, all, T, wide);
        if (w) zero_padding(dz, b, all, T, other);
    }
end:
    pool_give(starts), pool_give(units);
    return status;
}
