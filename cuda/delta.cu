/* The gated delta rule and its adjoint on a GPU (csrc/kernels/delta.c has the equations), in their simplest form: a
 * thread walks a value channel through time, with its state in global memory, so that threads that are neighbours read
 * neighbours. Backward goes from tile to tile: the threads of channels keep a tile's states and gradients of states,
 * and then other threads sum over channels, in one order.
 */
#include "channels.h"

enum { TILE = DELTA_TILE };

/* Sizes of a call. */
struct plan {
    int64_t B, T, R, H, keys, values;
    const int64_t *lengths;
    bool reverse;
};

struct inputs {
    const real *q, *k, *v, *beta, *decay;
};

ROT_DEVICE_ONLY walk tokens_of_tile(plan p, int64_t sequence, int64_t tile) {
    const int64_t b = sequence / p.H;
    return walk_of(b, tile, TILE, steps_of(p.lengths, b, p.T), p.T, p.reverse);
}

/* Householder step j of a tile of a head's sequence: the rows of its token (B T H) and of its own (B T R H), and its
 * place in the token; its decay and beta. */
struct place {
    int64_t token, own;
    bool last, decays;
    real a, beta;
};

ROT_DEVICE_ONLY place place_of(plan p, inputs in, walk w, int64_t sequence, int64_t j) {
    const int64_t row = w.first + j / p.R * w.stride, i = j % p.R, head = sequence % p.H;
    place here;
    here.token = row * p.H + head, here.own = (row * p.R + i) * p.H + head;
    here.last = i == p.R - 1, here.decays = i == 0 && in.decay;
    here.a = here.decays ? in.decay[here.token] : 1, here.beta = in.beta[here.own];
    return here;
}

/* The sum over keys of a channel's h, whose numbers are `apart`, and c. */
ROT_DEVICE_ONLY real sum_keys(const real *h, const real *c, int64_t keys, int64_t apart) {
    real sum = 0;
    for (int64_t s = 0; s < keys; s++) sum += h[s * apart] * c[s];
    return sum;
}

/* The error of a channel's step from h, and `to`, which may be h: the state after it. */
ROT_DEVICE_ONLY real error_of(plan p, inputs in, place here, const real *h, int64_t channel) {
    const real product = sum_keys(h, in.k + here.own * p.keys, p.keys, p.values);
    return delta_error(in.v[here.own * p.values + channel], here.a, product);
}
ROT_DEVICE_ONLY void advance(plan p, inputs in, place here, real *to, const real *h, real error) {
    const real *const k = in.k + here.own * p.keys;
    for (int64_t s = 0; s < p.keys; s++)
        to[s * p.values] = delta_step(h[s * p.values], here.a, k[s], here.beta * error);
}

/* A column of the states (keys, values), or zeros. */
ROT_DEVICE_ONLY void copy_column(plan p, real *to, const real *from) {
    for (int64_t s = 0; s < p.keys; s++) to[s * p.values] = from ? from[s * p.values] : 0;
}

KERNEL(delta_forward) {
    const plan p = {B, T, R, H, keys, values, lengths, (bool)reverse};
    const inputs in = {q, k, v, beta, decay};
    const int64_t size = keys * values, tiles = pieces_of(T, TILE);
    real *const states = workspace_of<real>(B * H, keys, values);
    if (y) runtime_zero(y, B * T * H * values * (int64_t)sizeof(real));
    each(B * H * values, [=] __device__(int64_t i) {
        const int64_t sequence = i / p.values, channel = i % p.values, place_in = sequence * size + channel;
        real *const h = states + place_in;
        copy_column(p, h, h0 ? h0 + place_in : NULL);
        for (int64_t tile = 0; tile < tiles; tile++) {
            const walk w = tokens_of_tile(p, sequence, tile);
            if (carries) copy_column(p, carries + (sequence * tiles + tile) * size + channel, h);
            for (int64_t j = 0; j < w.steps * p.R; j++) {
                const place here = place_of(p, in, w, sequence, j);
                advance(p, in, here, h, h, error_of(p, in, here, h, channel));
                if (y && here.last)
                    y[here.token * p.values + channel] = sum_keys(h, in.q + here.token * p.keys, p.keys, p.values);
            }
        }
        if (hT) copy_column(p, hT + place_in, h);
    });
    return runtime_status();
}

/* What the threads of channels keep of a tile of all heads' sequences: (B H, TILE R) Householder steps with the state
 * before each and the gradient of the state after it (keys, values), its errors and the gradient of what it adds to the
 * state (values); and the gradient of the state before the tiles so far (B H, keys, values). */
struct kept_tile {
    real *before, *after, *errors, *du, *g;
};

ROT_DEVICE_ONLY void run_channel_back(plan p, inputs in, kept_tile kept, const real *dy, const real *carry, real *dv,
                                      walk w, int64_t sequence, int64_t channel) {
    const int64_t size = p.keys * p.values, first = sequence * TILE * p.R, count = w.steps * p.R;
    real *const g = kept.g + sequence * size + channel;
    if (count) copy_column(p, kept.before + first * size + channel, carry);
    for (int64_t j = 0; j < count; j++) {
        const place here = place_of(p, in, w, sequence, j);
        real *const h = kept.before + (first + j) * size + channel;
        const real error = error_of(p, in, here, h, channel);
        kept.errors[(first + j) * p.values + channel] = error;
        if (j + 1 < count) advance(p, in, here, h + size, h, error);
    }
    for (int64_t j = count - 1; j >= 0; j--) {
        const place here = place_of(p, in, w, sequence, j);
        const real *const k = in.k + here.own * p.keys, *const q = in.q + here.token * p.keys;
        const real dy_t = here.last ? dy[here.token * p.values + channel] : 0;
        real *const after = kept.after + (first + j) * size + channel;
        for (int64_t s = 0; s < p.keys; s++)
            after[s * p.values] = here.last ? delta_output_adjoint(g[s * p.values], dy_t, q[s]) : g[s * p.values];
        const real du = sum_keys(after, k, p.keys, p.values), dv_own = here.beta * du;
        kept.du[(first + j) * p.values + channel] = du;
        dv[here.own * p.values + channel] = dv_own;
        for (int64_t s = 0; s < p.keys; s++)
            g[s * p.values] = here.a * delta_moved_adjoint(after[s * p.values], k[s], dv_own);
    }
}

struct gradients {
    real *dq, *dk, *dbeta, *ddecay;
};

/* Key s of step j: its sums over channels, of dk and, after a token's last step, of dq. */
ROT_DEVICE_ONLY void sum_key(plan p, inputs in, kept_tile kept, gradients out, const real *dy, place here, int64_t step,
                             int64_t s) {
    const int64_t row = (step * p.keys + s) * p.values;
    const real k = in.k[here.own * p.keys + s];
    real of_k = 0, of_q = 0;
    for (int64_t j = 0; j < p.values; j++) {
        const real h = kept.before[row + j], u = here.beta * kept.errors[step * p.values + j];
        of_k += delta_key_adjoint(kept.after[row + j], u, h, here.a, here.beta * kept.du[step * p.values + j]);
        if (here.last) of_q += delta_step(h, here.a, k, u) * dy[here.token * p.values + j];
    }
    out.dk[here.own * p.keys + s] = of_k;
    if (here.last) out.dq[here.token * p.keys + s] = of_q;
}

/* The sums over channels of step j, of dbeta and, for a token's first step, of its decay. */
ROT_DEVICE_ONLY void sum_step(plan p, inputs in, kept_tile kept, gradients out, place here, int64_t step) {
    real of_beta = 0, of_decay = 0;
    for (int64_t j = 0; j < p.values; j++) of_beta += kept.du[step * p.values + j] * kept.errors[step * p.values + j];
    out.dbeta[here.own] = of_beta;
    if (!here.decays) return;
    for (int64_t s = 0; s < p.keys; s++) {
        const int64_t row = (step * p.keys + s) * p.values;
        const real k = in.k[here.own * p.keys + s];
        for (int64_t j = 0; j < p.values; j++)
            of_decay += delta_moved_adjoint(kept.after[row + j], k, here.beta * kept.du[step * p.values + j]) *
                        kept.before[row + j];
    }
    out.ddecay[here.token] = of_decay;
}

KERNEL(delta_backward) {
    const plan p = {B, T, R, H, keys, values, lengths, (bool)reverse};
    const inputs in = {q, k, v, beta, decay};
    const gradients out = {dq, dk, dbeta, ddecay};
    const int64_t size = keys * values, tiles = pieces_of(T, TILE), sequences = B * H, steps = TILE * R;
    const int64_t number = (int64_t)sizeof(real), tokens = B * T * H;
    const kept_tile kept = {
        workspace_of<real>(sequences, steps, keys, values), workspace_of<real>(sequences, steps, keys, values),
        workspace_of<real>(sequences, steps, values), workspace_of<real>(sequences, steps, values), dh0};
    runtime_zero(dq, tokens * keys * number), runtime_zero(dk, tokens * R * keys * number);
    runtime_zero(dv, tokens * R * values * number), runtime_zero(dbeta, tokens * R * number);
    if (ddecay) runtime_zero(ddecay, tokens * number);
    each(sequences * size, [=] __device__(int64_t i) { dh0[i] = dhT ? dhT[i] : 0; });
    for (int64_t tile = tiles - 1; tile >= 0; tile--) {
        each(sequences * values, [=] __device__(int64_t i) {
            const int64_t sequence = i / p.values, channel = i % p.values;
            run_channel_back(p, in, kept, dy, carries + (sequence * tiles + tile) * size + channel, dv,
                             tokens_of_tile(p, sequence, tile), sequence, channel);
        });
        each(sequences * steps, [=] __device__(int64_t i) {
            const walk w = tokens_of_tile(p, i / steps, tile);
            if (i % steps < w.steps * p.R) sum_step(p, in, kept, out, place_of(p, in, w, i / steps, i % steps), i);
        });
        each(sequences * steps * keys, [=] __device__(int64_t i) {
            const int64_t step = i / p.keys, sequence = step / steps;
            const walk w = tokens_of_tile(p, sequence, tile);
            if (step % steps >= w.steps * p.R) return;
            sum_key(p, in, kept, out, dy, place_of(p, in, w, sequence, step % steps), step, i % p.keys);
        });
    }
    return runtime_status();
}
