/* S4D's bank of recurrences and its adjoint on a GPU (csrc/kernels/bank.c has the equations).
 *
 * A launch has up to FORWARD or BACKWARD states of every channel for each warp of a block; more states take more
 * launches, which add to the first one's output. A block walks its channels through all of time (channels.h), a tile at
 * a time, with the states in registers. Backward first repeats forward within a tile, from the states before it, and
 * keeps the states before every RUN steps; then it goes back over the tile run by run. The tiles' sums are added in
 * double, over time and sequences, as on the CPU, and in one order.
 */
#include "channels.h"

enum {
    LONGEST_TILE = 64, /* most steps of a tile */
    RUN = 8,           /* steps with states in registers, in backward */
    RUNS = LONGEST_TILE / RUN,
    FORWARD = sizeof(real) == 4 ? 8 : 4, /* states of a warp */
    BACKWARD = 4,
    WARPS = sizeof(real) == 4 ? 4 : 2, /* as many as fit into shared memory */
    THREADS = WARPS * 32,
};

/* Sizes of a call. */
struct plan {
    int64_t B, T, D, N, tile, tiles;
    const int64_t *lengths;
    bool reverse;
};

/* a, c (D,N), skip (D), u (B,T,D) */
struct inputs {
    const real *a, *c, *skip, *u;
};

ROT_DEVICE_ONLY walk steps_of_tile(plan p, int64_t b, int64_t i) {
    return walk_of(b, i, p.tile, steps_of(p.lengths, b, p.T), p.T, p.reverse);
}

/* Number of states of the thread's warp, at most `limit`, from state `first` on */
ROT_DEVICE_ONLY int count_of(plan p, int64_t first, int64_t limit) { return (int)least(most(p.N - first, 0), limit); }

ROT_DEVICE_ONLY cplx read_pair(const real *p) {
    const cplx z = {p[0], p[1]};
    return z;
}
ROT_DEVICE_ONLY void write_pair(real *p, cplx z) { p[0] = z.re, p[1] = z.im; }

/* The index in (B,tiles,N,2,D) of the real part of state n before a tile; the imaginary part is D further on. */
ROT_DEVICE_ONLY int64_t carry_of(plan p, spot at, int64_t tile, int64_t n) {
    return (((at.b * p.tiles + tile) * p.N + n) * 2) * p.D + at.d;
}

/* ---- forward ---- */

struct forward_room {
    real u[2][LONGEST_TILE][WIDTH]; /* of this tile and the next */
    real y[WARPS][LONGEST_TILE][WIDTH];
};
static_assert(sizeof(forward_room) <= MOST_SHARED, "too much shared memory");

/* States from `first` on. If it is not 0, y is added to. Shared memory fits four blocks. */
GLOBAL2(THREADS, 4) run_forward(plan p, inputs in, real *y, real *hT, real *carries, const real *h0, int64_t first) {
    forward_room &room = shared_memory<forward_room>();
    const spot at = spot_of(p.D);
    const int64_t n = first + at.warp * FORWARD, all = steps_of(p.lengths, at.b, p.T);
    const int64_t state = ((at.b * p.D + at.d) * p.N + n) * 2; /* the warp's first in (B,D,N,2) */
    const int count = count_of(p, n, FORWARD);
    const real skip = at.live ? in.skip[at.d] : 0;
    const cplx zero = {0, 0};
    cplx a[FORWARD], c[FORWARD], h[FORWARD];
#pragma unroll
    for (int i = 0; i < FORWARD; i++) {
        const bool some = at.live && i < count;
        a[i] = some ? read_pair(in.a + (at.d * p.N + n + i) * 2) : zero;
        c[i] = some ? read_pair(in.c + (at.d * p.N + n + i) * 2) : zero;
        h[i] = some && h0 ? read_pair(h0 + state + i * 2) : zero;
    }
    load_rows(room.u[0], in.u, steps_of_tile(p, at.b, 0), at, p.D);
    copy_commit();
    for (int64_t tile = 0; tile * p.tile < all; tile++) {
        const walk w = steps_of_tile(p, at.b, tile);
#pragma unroll
        for (int i = 0; i < FORWARD; i++) {
            if (!at.live || i >= count) continue;
            real *const before = carries + carry_of(p, at, tile, n + i);
            before[0] = h[i].re, before[p.D] = h[i].im;
        }
        copy_wait<0>();
        __syncthreads(); /* the tile is loaded, and all threads have finished the previous one */
        load_rows(room.u[(tile + 1) % 2], in.u, steps_of_tile(p, at.b, tile + 1), at, p.D);
        copy_commit();
        const real(*const u)[WIDTH] = room.u[tile % 2];
        for (int64_t k = 0; k < w.steps; k++) {
            real sum = 0;
#pragma unroll
            for (int i = 0; i < FORWARD; i++) {
                if (i >= count) continue;
                h[i] = bank_step(a[i], h[i], u[k][at.lane]);
                sum += bank_output(c[i], h[i]);
            }
            room.y[at.warp][k][at.lane] = sum;
        }
        __syncthreads();
        for (int64_t k = at.warp; at.live && k < w.steps; k += WARPS) {
            real *const out = y + (w.first + k * w.stride) * p.D + at.d;
            real sum = first ? *out : skip * u[k][at.lane];
#pragma unroll
            for (int v = 0; v < WARPS; v++) sum += room.y[v][k][at.lane];
            *out = sum;
        }
    }
#pragma unroll
    for (int i = 0; i < FORWARD; i++)
        if (at.live && i < count) write_pair(hT + state + i * 2, h[i]);
    if (!first) zero_rows(y, all, at, p.T, p.D);
}

KERNEL(bank_forward) {
    if (tile < 1 || tile > LONGEST_TILE) return ROT_OUT_OF_RANGE;
    const plan p = {B, T, D, N, tile, pieces_of(T, tile), lengths, (bool)reverse};
    const inputs in = {a, c, skip, u};
    int64_t first = 0;
    do { /* at least once, even without states */
        launch(run_forward, B * pieces_of(D, WIDTH), THREADS, sizeof(forward_room), p, in, y, hT, carries, h0, first);
        first += WARPS * FORWARD;
    } while (first < N);
    return runtime_status();
}

/* ---- backward ---- */

struct warp_room {
    cplx before[RUNS][BACKWARD][WIDTH]; /* the states before each run */
    real du[LONGEST_TILE][WIDTH];
};
struct backward_room {
    real u[LONGEST_TILE][WIDTH], dy[LONGEST_TILE][WIDTH];
    warp_room of[WARPS];
};
static_assert(sizeof(backward_room) <= MOST_SHARED, "too much shared memory");

/* One state of a channel, and its gradients in backward: q reaches h from later steps; da, dc are sums over the
 * tile. */
struct bank_state {
    cplx a, c, q, da, dc;
};

/* Sums over a sequence: of da and dc (B,N,2,D) pairs, as re and im of da, then of dc; of dskip (B,D). */
struct sums {
    double *coefficients, *skip;
};

/* The adjoint over a run of `steps` steps, last step first, from the state before them. */
ROT_DEVICE_ONLY void run_adjoint(real *du, bank_state &s, cplx h, const real *u, const real *dy, int steps) {
    cplx past[RUN];
#pragma unroll
    for (int k = 0; k < RUN; k++) {
        past[k] = h;
        if (k < steps) h = bank_step(s.a, h, u[k]);
    }
#pragma unroll
    for (int k = RUN - 1; k >= 0; k--) {
        if (k >= steps) continue;
        const cplx g = bank_state_adjoint(s.c, s.q, dy[k]);
        du[k] += g.re;
        s.dc = bank_output_adjoint(dy[k], h, s.dc);
        s.da = bank_transition_adjoint(g, past[k], s.da);
        s.q = bank_past_adjoint(s.a, g);
        h = past[k];
    }
}

/* States from `first` on. If it is not 0, du is added to. Shared memory fits two blocks. */
GLOBAL2(THREADS, 2)
run_backward(plan p, inputs in, real *du, real *dh0, sums out, const real *dy, const real *dhT, const real *carries,
             int64_t first) {
    backward_room &room = shared_memory<backward_room>();
    const spot at = spot_of(p.D);
    warp_room &own = room.of[at.warp];
    const int64_t n = first + at.warp * BACKWARD, all = steps_of(p.lengths, at.b, p.T);
    const int64_t state = ((at.b * p.D + at.d) * p.N + n) * 2;
    const int count = count_of(p, n, BACKWARD), lane = at.lane;
    const real skip = at.live ? in.skip[at.d] : 0;
    const cplx zero = {0, 0};
    bank_state s[BACKWARD];
    double total[BACKWARD][4] = {{0}}, total_skip = 0;
#pragma unroll
    for (int i = 0; i < BACKWARD; i++) {
        const bool some = at.live && i < count;
        s[i].a = some ? read_pair(in.a + (at.d * p.N + n + i) * 2) : zero;
        s[i].c = some ? read_pair(in.c + (at.d * p.N + n + i) * 2) : zero;
        s[i].q = some && dhT ? read_pair(dhT + state + i * 2) : zero;
    }
    for (int64_t tile = pieces_of(all, p.tile) - 1; tile >= 0; tile--) {
        const walk w = steps_of_tile(p, at.b, tile);
        const int steps = (int)w.steps, runs = (int)pieces_of(w.steps, RUN);
        load_rows(room.u, in.u, w, at, p.D);
        load_rows(room.dy, dy, w, at, p.D);
        copy_commit();
        cplx h[BACKWARD];
#pragma unroll
        for (int i = 0; i < BACKWARD; i++) {
            h[i] = s[i].da = s[i].dc = zero;
            if (!at.live || i >= count) continue;
            const real *const before = carries + carry_of(p, at, tile, n + i);
            h[i].re = before[0], h[i].im = before[p.D];
        }
        copy_wait<0>();
        __syncthreads();
        for (int run = 0; run < runs; run++) {
#pragma unroll
            for (int i = 0; i < BACKWARD; i++) own.before[run][i][lane] = h[i];
            for (int k = run * RUN; k < steps && k < (run + 1) * RUN; k++) {
#pragma unroll
                for (int i = 0; i < BACKWARD; i++) h[i] = bank_step(s[i].a, h[i], room.u[k][lane]);
            }
        }
        for (int run = runs - 1; run >= 0; run--) {
            const int from = run * RUN, some = (int)least(steps - from, RUN);
            real in_run[RUN], dy_run[RUN], du_run[RUN];
#pragma unroll
            for (int k = 0; k < RUN; k++) {
                in_run[k] = k < some ? room.u[from + k][lane] : 0;
                dy_run[k] = k < some ? room.dy[from + k][lane] : 0;
                du_run[k] = 0;
            }
#pragma unroll
            for (int i = 0; i < BACKWARD; i++)
                if (i < count) run_adjoint(du_run, s[i], own.before[run][i][lane], in_run, dy_run, some);
#pragma unroll
            for (int k = 0; k < RUN; k++)
                if (k < some) own.du[from + k][lane] = du_run[k];
        }
#pragma unroll
        for (int i = 0; i < BACKWARD; i++) {
            total[i][0] += (double)s[i].da.re, total[i][1] += (double)s[i].da.im;
            total[i][2] += (double)s[i].dc.re, total[i][3] += (double)s[i].dc.im;
        }
        real dot = 0;
        for (int k = 0; at.warp == 0 && k < steps; k++) dot += room.dy[k][lane] * room.u[k][lane];
        total_skip += (double)dot;
        __syncthreads();
        for (int k = at.warp; at.live && k < steps; k += WARPS) {
            real *const to = du + (w.first + k * w.stride) * p.D + at.d;
            real sum = first ? *to : skip * room.dy[k][lane];
#pragma unroll
            for (int v = 0; v < WARPS; v++) sum += room.of[v].du[k][lane];
            *to = sum;
        }
        __syncthreads();
    }
    if (!at.live) return;
#pragma unroll
    for (int i = 0; i < BACKWARD; i++) {
        if (i >= count) continue;
        write_pair(dh0 + state + i * 2, s[i].q);
        for (int part = 0; part < 4; part++)
            out.coefficients[((at.b * p.N + n + i) * 4 + part) * p.D + at.d] = total[i][part];
    }
    if (first) return;
    if (at.warp == 0) out.skip[at.b * p.D + at.d] = total_skip;
    zero_rows(du, all, at, p.T, p.D);
}

KERNEL(bank_backward) {
    if (tile < 1 || tile > LONGEST_TILE) return ROT_OUT_OF_RANGE;
    const plan p = {B, T, D, N, tile, pieces_of(T, tile), lengths, (bool)reverse};
    const inputs in = {a, c, skip, u};
    const sums out = {workspace_of<double>(B, N, 4, D), workspace_of<double>(B, D)};
    int64_t first = 0;
    do { /* at least once, even without states */
        launch(run_backward, B * pieces_of(D, WIDTH), THREADS, sizeof(backward_room), p, in, du, dh0, out, dy, dhT,
               carries, first);
        first += WARPS * BACKWARD;
    } while (first < N);
    each(N * 4 * D, [=] __device__(int64_t i) {
        const int64_t d = i % p.D, part = i / p.D % 4, n = i / p.D / 4;
        real *const to = (part < 2 ? da : dc) + (d * p.N + n) * 2;
        to[part % 2] = (real)ordered_sum(out.coefficients + i, p.B, p.N * 4 * p.D);
    });
    each(D, [=] __device__(int64_t d) { dskip[d] = (real)ordered_sum(out.skip + d, p.B, p.D); });
    return runtime_status();
}
