/* The delta rule and its adjoint on a GPU (csrc/kernels/delta.c has the equations), in their simplest form. A thread
 * walks a value channel through time, with its state in global memory: adjacent threads read adjacent numbers. Backward
 * goes from tile to tile: the threads of channels keep a tile's states and their gradients, and then other threads sum
 * over channels, in one order.
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
    const real *q, *k, *v, *beta, *decay, *read, *erase;
    bool lanes;
};

ROT_DEVICE_ONLY walk tokens_of_tile(plan p, int64_t sequence, int64_t tile) {
    const int64_t b = sequence / p.H;
    return walk_of(b, tile, TILE, steps_of(p.lengths, b, p.T), p.T, p.reverse);
}

/* Householder step j of a tile of a head's sequence: the row of its token (B T H) and its own row (B T R H), and its
 * place in the token; its decay, a or d by keys, and beta; its keys, where e and f may be NULL. */
struct place {
    int64_t token, own;
    bool last, decays;
    real a, beta;
    const real *d, *k, *e, *f;
};

ROT_DEVICE_ONLY place place_of(plan p, inputs in, walk w, int64_t sequence, int64_t j) {
    const int64_t row = w.first + j / p.R * w.stride, i = j % p.R, head = sequence % p.H;
    place here;
    here.token = row * p.H + head, here.own = (row * p.R + i) * p.H + head;
    here.last = i == p.R - 1, here.decays = i == 0 && in.decay;
    here.a = here.decays && !in.lanes ? in.decay[here.token] : 1;
    here.d = here.decays && in.lanes ? in.decay + here.token * p.keys : NULL;
    here.beta = in.beta ? in.beta[here.own] : 1;
    here.k = in.k + here.own * p.keys;
    here.e = in.read ? in.read + here.own * p.keys : NULL;
    here.f = in.erase ? in.erase + here.own * p.keys : NULL;
    return here;
}
ROT_DEVICE_ONLY real decay_of(place here, int64_t s) { return here.d ? here.d[s] : here.a; }

/* The sum over keys of c times a channel's h, with numbers `apart`. */
ROT_DEVICE_ONLY real sum_keys(const real *h, const real *c, int64_t keys, int64_t apart) {
    real sum = 0;
    for (int64_t s = 0; s < keys; s++) sum += h[s * apart] * c[s];
    return sum;
}

/* The number that a channel's step reads from h; and the error from it and the channel's value. */
ROT_DEVICE_ONLY real read_of(plan p, place here, const real *h) {
    if (here.e || !here.d) return (here.e ? 1 : here.a) * sum_keys(h, here.e ? here.e : here.k, p.keys, p.values);
    real sum = 0;
    for (int64_t s = 0; s < p.keys; s++) sum += h[s * p.values] * (here.d[s] * here.k[s]);
    return sum;
}
ROT_DEVICE_ONLY real error_of(plan p, inputs in, place here, real read, int64_t channel) {
    const real v = in.v[here.own * p.values + channel];
    return here.f ? v : delta_error(v, 1, read);
}

/* Key s of a channel's state after a step that adds u and erases `read`. */
ROT_DEVICE_ONLY real after(place here, int64_t s, real h, real u, real read) {
    const real added = delta_step(h, decay_of(here, s), here.k[s], u);
    return here.f ? delta_erase(added, here.f[s], read) : added;
}
/* to <- the state after the step; `to` may be h. */
ROT_DEVICE_ONLY void advance(plan p, place here, real *to, const real *h, real error, real read) {
    for (int64_t s = 0; s < p.keys; s++) to[s * p.values] = after(here, s, h[s * p.values], here.beta * error, read);
}

/* A column of the states (keys, values), or zeros. */
ROT_DEVICE_ONLY void copy_column(plan p, real *to, const real *from) {
    for (int64_t s = 0; s < p.keys; s++) to[s * p.values] = from ? from[s * p.values] : 0;
}

KERNEL(delta_forward) {
    const plan p = {B, T, R, H, keys, values, lengths, (bool)reverse};
    const inputs in = {q, k, v, beta, decay, read, erase, (bool)lanes};
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
                const real found = read_of(p, here, h);
                advance(p, here, h, h, error_of(p, in, here, found, channel), found);
                if (y && here.last)
                    y[here.token * p.values + channel] = sum_keys(h, in.q + here.token * p.keys, p.keys, p.values);
            }
        }
        if (hT) copy_column(p, hT + place_in, h);
    });
    return runtime_status();
}

/* Arrays of a tile of all heads' sequences, stored by the threads of channels. For each of (B H, TILE R) Householder
 * steps: the state before it and the gradient of the state after it (keys, values); its errors, the numbers it read and
 * their gradient, and the gradient of the numbers it adds to the state (values). And the gradient of the state before
 * the tiles so far (B H, keys, values). */
struct kept_tile {
    real *before, *after, *errors, *reads, *dreads, *du, *g;
};

ROT_DEVICE_ONLY void run_channel_back(plan p, inputs in, kept_tile kept, const real *dy, const real *carry, real *dv,
                                      walk w, int64_t sequence, int64_t channel) {
    const int64_t size = p.keys * p.values, first = sequence * TILE * p.R, count = w.steps * p.R;
    real *const g = kept.g + sequence * size + channel;
    if (count) copy_column(p, kept.before + first * size + channel, carry);
    for (int64_t j = 0; j < count; j++) {
        const place here = place_of(p, in, w, sequence, j);
        real *const h = kept.before + (first + j) * size + channel;
        const real read = read_of(p, here, h), error = error_of(p, in, here, read, channel);
        kept.errors[(first + j) * p.values + channel] = error;
        kept.reads[(first + j) * p.values + channel] = read;
        if (j + 1 < count) advance(p, here, h + size, h, error, read);
    }
    for (int64_t j = count - 1; j >= 0; j--) {
        const place here = place_of(p, in, w, sequence, j);
        const real *const q = in.q + here.token * p.keys;
        const real dy_t = here.last ? dy[here.token * p.values + channel] : 0;
        real *const after = kept.after + (first + j) * size + channel;
        for (int64_t s = 0; s < p.keys; s++)
            after[s * p.values] = here.last ? delta_output_adjoint(g[s * p.values], dy_t, q[s]) : g[s * p.values];
        const real du = sum_keys(after, here.k, p.keys, p.values), dv_own = here.beta * du;
        const real dread = here.f ? -sum_keys(after, here.f, p.keys, p.values) : -dv_own;
        kept.du[(first + j) * p.values + channel] = du;
        kept.dreads[(first + j) * p.values + channel] = dread;
        dv[here.own * p.values + channel] = dv_own;
        for (int64_t s = 0; s < p.keys; s++) {
            const real of_after = after[s * p.values], a = decay_of(here, s);
            g[s * p.values] = here.e ? delta_past_adjoint(of_after, a, here.e[s], dread)
                                     : a * delta_moved_adjoint(of_after, here.k[s], -dread);
        }
    }
}

struct gradients {
    real *dq, *dk, *dbeta, *ddecay, *dread, *derase;
};

/* The sum over channels of a decay's gradient at key s of a step. */
ROT_DEVICE_ONLY real sum_decay(plan p, kept_tile kept, place here, int64_t step, int64_t s) {
    const int64_t row = (step * p.keys + s) * p.values;
    real sum = 0;
    for (int64_t j = 0; j < p.values; j++) {
        const real g = kept.after[row + j], dread = kept.dreads[step * p.values + j];
        sum += (here.e ? g : delta_moved_adjoint(g, here.k[s], -dread)) * kept.before[row + j];
    }
    return sum;
}

/* Sums over channels for key s of step j: gradients of its keys, of a decay by keys and, after a token's last step, of
 * q. */
ROT_DEVICE_ONLY void sum_key(plan p, kept_tile kept, gradients out, const real *dy, place here, int64_t step,
                             int64_t s) {
    const int64_t row = (step * p.keys + s) * p.values, own = here.own * p.keys + s;
    const real a = decay_of(here, s);
    real of_k = 0, of_q = 0, of_e = 0, of_f = 0;
    for (int64_t j = 0; j < p.values; j++) {
        const real h = kept.before[row + j], g = kept.after[row + j], u = here.beta * kept.errors[step * p.values + j];
        const real read = kept.reads[step * p.values + j], dread = kept.dreads[step * p.values + j];
        of_k += here.e ? g * u : delta_key_adjoint(g, u, h, a, -dread);
        of_e += h * dread;
        of_f -= g * read;
        if (here.last) of_q += after(here, s, h, u, read) * dy[here.token * p.values + j];
    }
    out.dk[own] = of_k;
    if (here.e) out.dread[own] = of_e;
    if (here.f) out.derase[own] = of_f;
    if (here.d) out.ddecay[here.token * p.keys + s] = sum_decay(p, kept, here, step, s);
    if (here.last) out.dq[here.token * p.keys + s] = of_q;
}

/* Sums over channels for step j: dbeta and, for a token's first step, the gradient of a decay of its head. */
ROT_DEVICE_ONLY void sum_step(plan p, kept_tile kept, gradients out, place here, int64_t step) {
    real of_beta = 0, of_decay = 0;
    for (int64_t j = 0; j < p.values; j++) of_beta += kept.du[step * p.values + j] * kept.errors[step * p.values + j];
    if (out.dbeta) out.dbeta[here.own] = of_beta;
    if (!here.decays || here.d) return;
    for (int64_t s = 0; s < p.keys; s++) of_decay += sum_decay(p, kept, here, step, s);
    out.ddecay[here.token] = of_decay;
}

KERNEL(delta_backward) {
    const plan p = {B, T, R, H, keys, values, lengths, (bool)reverse};
    const inputs in = {q, k, v, beta, decay, read, erase, (bool)lanes};
    const gradients out = {dq, dk, dbeta, ddecay, dread, derase};
    const int64_t size = keys * values, tiles = pieces_of(T, TILE), sequences = B * H, steps = TILE * R;
    const int64_t number = (int64_t)sizeof(real), tokens = B * T * H;
    const kept_tile kept = {workspace_of<real>(sequences, steps, keys, values),
                            workspace_of<real>(sequences, steps, keys, values),
                            workspace_of<real>(sequences, steps, values),
                            workspace_of<real>(sequences, steps, values),
                            workspace_of<real>(sequences, steps, values),
                            workspace_of<real>(sequences, steps, values),
                            dh0};
    runtime_zero(dq, tokens * keys * number), runtime_zero(dk, tokens * R * keys * number);
    runtime_zero(dv, tokens * R * values * number);
    if (dbeta) runtime_zero(dbeta, tokens * R * number);
    if (ddecay) runtime_zero(ddecay, tokens * (lanes ? keys : 1) * number);
    if (dread) runtime_zero(dread, tokens * R * keys * number);
    if (derase) runtime_zero(derase, tokens * R * keys * number);
    each(sequences * size, [=] __device__(int64_t i) { dh0[i] = dhT ? dhT[i] : 0; });
    for (int64_t tile = tiles - 1; tile >= 0; tile--) {
        each(sequences * values, [=] __device__(int64_t i) {
            const int64_t sequence = i / p.values, channel = i % p.values;
            run_channel_back(p, in, kept, dy, carries + (sequence * tiles + tile) * size + channel, dv,
                             tokens_of_tile(p, sequence, tile), sequence, channel);
        });
        each(sequences * steps, [=] __device__(int64_t i) {
            const walk w = tokens_of_tile(p, i / steps, tile);
            if (i % steps < w.steps * p.R) sum_step(p, kept, out, place_of(p, in, w, i / steps, i % steps), i);
        });
        each(sequences * steps * keys, [=] __device__(int64_t i) {
            const int64_t step = i / p.keys, sequence = step / steps;
            const walk w = tokens_of_tile(p, sequence, tile);
            if (step % steps >= w.steps * p.R) return;
            sum_key(p, kept, out, dy, place_of(p, in, w, sequence, step % steps), step, i % p.keys);
        });
    }
    return runtime_status();
}
