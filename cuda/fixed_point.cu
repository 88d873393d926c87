/* Fixed points in depth on a GPU (csrc/kernels/fixed_point.c has the equations).
 *
 * In depth_pass, F mixes tokens of the old iterate, which warps do for all tokens at once; then a thread walks through
 * time for each channel. Maxima are those of threads, then of warps, then of a sequence. depth_solve goes from step to
 * step, so it uses a warp for each sequence alone.
 */
#include "warps.h"

#include "depth.h"
#include "residual.h"

enum {
    PIECE = 1024,                      /* numbers of a row, where rows are not steps */
    ROWS = 4,                          /* of a warp */
    WALKERS = 64,                      /* threads of a block that walk through time */
    AHEAD = sizeof(real) == 4 ? 8 : 4, /* steps read ahead of their use */
};

/* residual (B) from the maxima of `count` warps of each sequence; with `each_step`, `apart` holds a residual. */
GLOBAL(BLOCK) finish(real *residual, const spread *widest, int64_t B, int64_t count, bool each_step) {
    const int64_t b = warp_of();
    if (b >= B) return;
    spread all = {0, 0};
    EACH_OF_ROW(i, count) widen_spread(&all, widest[b * count + i]);
    all = row_widest(all);
    set_one(residual + b, each_step ? real_of(all.apart) : residual_of(all, TINY));
}

/* ---- relax: rows of `row` numbers, with each_step those of a step; `blocks` of a sequence ---- */

GLOBAL(BLOCK)
relax_rows(spread *widest, real *y, const real *f, const real *s, const int64_t *lengths, int64_t T, int64_t D,
           int64_t row, unsigned blocks, bool each_step) {
    const int64_t b = blockIdx.x / blocks, all = steps_of(lengths, b, T) * D, warp = threadIdx.x / 32;
    const int64_t from = ((int64_t)(blockIdx.x % blocks) * WARPS + warp) * ROWS * row,
                  to = least(from + ROWS * row, all);
    const real damping = s[b];
    spread own = {0, 0};
    y += b * T * D;
    f += b * T * D;
    for (int64_t at = from; at < to; at += row) {
        spread here = {0, 0};
        real *const y_row = y + at;
        const real *const f_row = f + at;
        EACH_OF_ROW(i, least(row, to - at)) y_row[i] = relax(&here, y_row[i], f_row[i], damping);
        if (each_step) {
            here = row_widest(here);
            here.apart = magnitude_of(residual_of(here, (real)RESIDUAL_FLOOR));
        }
        widen_spread(&own, here);
    }
    own = row_widest(own);
    if (threadIdx.x % 32 == 0) widest[warp_of()] = own;
}

KERNEL(relax) {
    const int64_t row = each_step ? D : (int64_t)PIECE, rows = each_step ? T : pieces_of(T * D, row);
    const int64_t blocks = pieces_of(rows, WARPS * ROWS);
    spread *const widest = workspace_of<spread>(B, blocks, WARPS);
    launch(relax_rows, B * blocks, BLOCK, 0, widest, y, f, s, lengths, T, D, row, blocks, each_step);
    launch(finish, pieces_of(B, WARPS), BLOCK, 0, residual, widest, B, blocks * WARPS, each_step);
    return runtime_status();
}

/* ---- mixers ---- */

GLOBAL2(BLOCK, BLOCKS) prepare_rows(crew c, real *w, const real *u, int64_t M, bool normalised, mixer m) {
    if (warp_of() >= c.count) return;
    for (int64_t t = warp_of(); t < M; t += c.count)
        mixer_prepare(w + t * mixer_prepared(m), u + t * mixer_u(m), normalised, m);
}

KERNEL(mixer_prepare) {
    const mixer m = {form, R, D};
    const crew c = crew_of(M, 0);
    launch(prepare_rows, crew_blocks(c), BLOCK, 0, c, w, u, M, normalised, m);
    return runtime_status();
}

/* ---- depth_pass ---- */

/* A step in depth, and its sequences. */
struct sequences {
    depth p;
    int64_t B, T;
    const int64_t *lengths;
};

/* pull (B,T,D): what F_t adds to lam F of the step before it, gain (y + Q (x - y)) or x + (I - Q^T) gain y. */
GLOBAL2(BLOCK, BLOCKS) pull_rows(crew c, sequences all, stride apart, real *pull, const real *y) {
    if (warp_of() >= c.count) return;
    const depth p = all.p;
    const int64_t D = p.m.D;
    real *const v = room_of(c), *const scratch = v + D;
    for (token at = first_token(apart); at.row < all.B * all.T; at = next_token(at, apart)) {
        if (at.t >= steps_of(all.lengths, at.b, all.T)) continue;
        const real *const y_t = y + at.row * D, *const x_t = p.x + at.row * D, *const a = p.lam + at.row * p.lam_size;
        const real *const w_t = p.w + at.row * p.w_size, *const alpha_t = p.alpha + at.row * p.alpha_size;
        real *const pull_t = pull + at.row * D;
        if (p.adjoint) {
            EACH_OF_ROW(i, D) v[i] = depth_input(a[i], y_t[i], p.scaled);
            mixer_apply_transposed(v, w_t, alpha_t, scratch, p.m);
            EACH_OF_ROW(i, D) pull_t[i] = x_t[i] + (depth_input(a[i], y_t[i], p.scaled) - v[i]);
        } else {
            EACH_OF_ROW(i, D) v[i] = x_t[i] - y_t[i];
            mixer_apply(v, w_t, alpha_t, scratch, p.m);
            EACH_OF_ROW(i, D) pull_t[i] = depth_input(a[i], v[i] + y_t[i], p.scaled);
        }
    }
}

struct step_of_depth {
    real pull, lam, y;
};

/* F along the walk, of 32 channels by each warp, `warps` of a sequence; y <- s F + (1 - s) y. */
GLOBAL(WALKERS)
walk_depth(sequences all, spread *widest, real *y, const real *pull, const real *h0, const real *s, int64_t warps) {
    const depth p = all.p;
    const int64_t warp = (int64_t)blockIdx.x * (WALKERS / 32) + threadIdx.x / 32, b = warp / warps, D = p.m.D;
    const int64_t i = warp % warps * 32 + threadIdx.x % 32;
    if (b >= all.B) return;
    const int64_t steps = i < D ? steps_of(all.lengths, b, all.T) : 0, row = b * all.T + (p.adjoint ? steps - 1 : 0);
    const int64_t down = p.adjoint ? -1 : 1;
    const real damping = s[b];
    spread own = {0, 0};
    real h = h0 && i < D ? h0[b * D + i] : 0;
    pipelined<AHEAD>(
        steps,
        [&](int64_t k) {
            const int64_t t = row + k * down, of = p.adjoint ? t + 1 : t; /* the transition into step t */
            const bool joined = !(p.adjoint && k == 0);
            const step_of_depth step = {pull[t * D + i], joined ? p.lam[of * p.lam_size + i] : 0, y[t * D + i]};
            return step;
        },
        [&](int64_t k, step_of_depth step) {
            if (p.adjoint)
                h = k ? scan_step_adjoint(step.lam, h, step.pull) : step.pull;
            else
                h = scan_step(step.lam, h, step.pull);
            y[(row + k * down) * D + i] = relax(&own, step.y, h, damping);
        });
    own = row_widest(own);
    if (threadIdx.x % 32 == 0) widest[warp] = own;
}

KERNEL(depth_pass) {
    const mixer m = {form, R, D};
    const depth p = {m,
                     (bool)scaled,
                     (bool)adjoint,
                     x,
                     lam,
                     w,
                     alpha,
                     varying ? D : 0,
                     w_varying ? mixer_prepared(m) : 0,
                     alpha_varying ? mixer_alpha(m) : 0,
                     NULL};
    const sequences all = {p, B, T, lengths};
    const crew c = crew_of(B * T, D + mixer_scratch(m));
    const int64_t warps = pieces_of(D, 32);
    real *const pull = workspace_of<real>(B, T, D);
    spread *const widest = workspace_of<spread>(B, warps);
    launch(pull_rows, crew_blocks(c), BLOCK, c.shared, c, all, stride_of(c, T), pull, y);
    launch(walk_depth, pieces_of(B * warps * 32, WALKERS), WALKERS, 0, all, widest, y, pull, h0, s, warps);
    launch(finish, pieces_of(B, WARPS), BLOCK, 0, residual, widest, B, warps, false);
    return runtime_status();
}

/* ---- depth_solve: a warp solves a sequence, from step to step ---- */

GLOBAL2(BLOCK, 1)
solve_rows(crew c, sequences all, depth_rules rules, int64_t tile, bool direct, real *y, real *h, const real *h0,
           real *memories, int64_t each, int64_t *iterations, int64_t *applied, real *residual) {
    if (warp_of() >= c.count) return;
    const int64_t D = all.p.m.D;
    for (int64_t b = warp_of(); b < all.B; b += c.count) {
        const int64_t steps = steps_of(all.lengths, b, all.T);
        const real *const before = h0 ? h0 + b * D : NULL;
        real *const memory = each ? memories + warp_of() * each : NULL;
        const depth_report report =
            solve_sequence(&all.p, b, all.T, steps, tile, rules, direct, y, h, before, memory, room_of(c));
        EACH_OF_ROW(once, 1) {
            iterations[b] = report.iterations;
            applied[b] = report.applied;
            residual[b] = real_of(report.residual);
        }
        if (h) zero_padding(h, b, steps, all.T, D);
    }
}

KERNEL(depth_solve) {
    if (direct && !has_vectors(form)) return ROT_NO_KERNEL; /* a large system is no work for a warp */
    const mixer m = {form, R, D};
    const depth p = {m,
                     (bool)scaled,
                     (bool)adjoint,
                     x,
                     lam,
                     w,
                     alpha,
                     varying ? D : 0,
                     w_varying ? mixer_prepared(m) : 0,
                     alpha_varying ? mixer_alpha(m) : 0,
                     NULL};
    const sequences all = {p, B, T, lengths};
    const depth_rules rules = {tol, (real)first, (real)shrink, limit, patience, cycle};
    const crew c = crew_of(B, solve_room(m, direct));
    const int64_t together = accelerate && !direct ? least(tile, T) : 0;
    real *const memories = workspace_of<real>(c.count, DEPTH_MEMORY, together, D);
    launch(solve_rows, crew_blocks(c), BLOCK, c.shared, c, all, rules, tile, (bool)direct, y, h, h0, memories,
           c.count ? DEPTH_MEMORY * together * D : 0, iterations, applied, residual);
    return runtime_status();
}
