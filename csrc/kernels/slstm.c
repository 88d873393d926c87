/* The scalar memory of the sLSTM (Beck et al. 2024, "xLSTM", equations 8 to 17) and its adjoint; one step is in
 * steps.h.
 *
 * Sequential in time, because its gates read the last output: x_t + w h_{t-1}, where w is block diagonal, with one
 * block (4P,P) for each of H heads. Heads are therefore independent. As in rnn.c, the sequences of a block advance
 * together (abreast.h): a step of a head is a product of their outputs with packed weights. A task is a block and a
 * head. Results do not depend on the division of work.
 *
 * The call's precision sets how the products round w and h, and dx in backward; the memory stays float32.
 */
#include <math.h>

#include "abreast.h"
#include "gemm_tile.h"
#include "kernels.h"
#include "lanes.h"
#include "stop.h"
#include "workspace.h"

enum {
    GATES = 4,
    LANE_ROOM = GATES + 4, /* a channel's gates, output and memory */
    SERIAL = 1 << 19,      /* multiplications below which one thread is used */
};

typedef struct {
    const int64_t *lengths;
    int64_t B, T, H, P, rows, tasks;
    bool threads;
} plan;

static plan plan_of(const int64_t *lengths, int64_t B, int64_t T, int64_t H, int64_t P) {
    const int64_t rows = rows_of(B), tasks = pieces_of(B, rows) * H;
    const plan p = {lengths, B, T, H, P, rows, tasks, tasks > 1 && B * T * H * GATES * P * P > SERIAL};
    return p;
}

/* The memories of a head's channels at one place: c, n and m (P), or NULL before the first step. */
typedef struct {
    const real *c, *n, *m;
} memories;

static memories memories_at(const real *c, const real *n, const real *m, int64_t at) {
    const memories s = {c ? c + at : NULL, n ? n + at : NULL, m ? m + at : NULL};
    return s;
}

static slstm_memory memory_of(memories s, int64_t j) {
    const slstm_memory one = {s.c ? s.c[j] : 0, s.n ? s.n[j] : 0, s.m ? s.m[j] : 0};
    return one;
}

static lstm_gates gates_at(const real *z, int64_t row, int64_t j) {
    const lstm_gates gates = {z[j], z[row + j], z[2 * row + j], z[3 * row + j]};
    return gates;
}

/* y (4,P), rows `y_row` apart <- x (4,P), rows `x_row` apart */
static void copy_gates(real *y, int64_t y_row, const real *x, int64_t x_row, int64_t P) {
    for (int64_t gate = 0; gate < GATES; gate++) copy_row(y + gate * y_row, x + gate * x_row, P);
}

static void forward_row(real *restrict h, real *restrict c, real *restrict n, real *restrict m, const real *restrict z,
                        int64_t P, bool exponential) {
    for (int64_t j = 0; j < P; j++) {
        const slstm_memory before = {c[j], n[j], m[j]};
        const slstm_memory now = slstm_step(h + j, gates_at(z, P, j), before, exponential);
        c[j] = now.c, n[j] = now.n, m[j] = now.m;
    }
}

/* dz (4,P); dc, dn, dm (P), the gradients that reach the memory from later steps on entry, and from this step on
 * return. */
static void backward_row(real *restrict dz, real *restrict dc, real *restrict dn, real *restrict dm,
                         const real *restrict dh, const real *restrict raw, int64_t raw_row, memories now,
                         memories before, int64_t P, bool exponential) {
    for (int64_t j = 0; j < P; j++) {
        const slstm_memory later = {dc[j], dn[j], dm[j]};
        const slstm_parts d = slstm_adjoint(gates_at(raw, raw_row, j), memory_of(now, j), memory_of(before, j), dh[j],
                                            later, exponential);
        dz[j] = d.draw.i, dz[P + j] = d.draw.f, dz[2 * P + j] = d.draw.g, dz[3 * P + j] = d.draw.o;
        dc[j] = d.earlier.c, dn[j] = d.earlier.n, dm[j] = d.earlier.m;
    }
}

/* h, c, n, m (B,T,H,P), gates (B,T,4,H,P) before their functions, in the order i, f, z, o; hT, cT, nT, mT (B,H,P); w
 * (H,4P,P), x (B,T,4,H,P); h0, c0, n0, m0 (B,H,P) or NULL for zeros. */
KERNEL(slstm_forward) {
    const plan p = plan_of(lengths, B, T, H, P);
    const int64_t N = H * P, size = packed_columns(GATES * P) * P;
    real *const packed = WORKSPACE(real, H, packed_columns(GATES * P), P);
    real *const room = WORKSPACE(real, p.tasks, p.rows, LANE_ROOM, P);
    rot_stop *const stop = stop_of_call();
    const rounding how = rounding_of_call();
    int status = ROT_NO_MEMORY;
    if (!packed || !room) goto end;
    status = ROT_OK;
    for (int64_t head = 0; head < H; head++)
        pack_rounded(packed + head * size, w + head * GATES * P * P, P, GATES * P, 1, P, how);
#pragma omp parallel for schedule(dynamic) if (p.threads)
    for (int64_t task = 0; task < p.tasks; task++) {
        const int64_t head = task % H, wide = p.rows * P;
        const block s = block_of(task / H, B, T, lengths);
        real *const hs = room + task * wide * LANE_ROOM, *const cs = hs + wide, *const ns = cs + wide,
                    *const ms = ns + wide, *const z = ms + wide;
        for (int64_t r = 0; r < s.count; r++) {
            const int64_t from = s.b[r] * N + head * P;
            copy_or_zero_row(hs + r * P, h0 ? h0 + from : NULL, P);
            copy_or_zero_row(cs + r * P, c0 ? c0 + from : NULL, P);
            copy_or_zero_row(ns + r * P, n0 ? n0 + from : NULL, P);
            copy_or_zero_row(ms + r * P, m0 ? m0 + from : NULL, P);
        }
        for (int64_t k = 0; k < s.steps[0] && !(k % STOP_STEPS == 0 && stopped(stop)); k++) {
            const int64_t count = active_at(&s, k);
            for (int64_t r = 0; r < count; r++) {
                const int64_t at = place_of(&s, r, k, T, 0) * GATES * N + head * P;
                copy_gates(z + r * GATES * P, P, x + at, N, P);
            }
            product(z, GATES * P, z, GATES * P, (gemm_view){hs, P, 1}, packed + head * size, count, P, GATES * P, how);
            for (int64_t r = 0; r < count; r++) {
                const int64_t step = place_of(&s, r, k, T, 0), at = step * N + head * P;
                real *const own = z + r * GATES * P;
                forward_row(hs + r * P, cs + r * P, ns + r * P, ms + r * P, own, P, exponential);
                copy_row(h + at, hs + r * P, P);
                copy_row(c + at, cs + r * P, P);
                copy_row(n + at, ns + r * P, P);
                copy_row(m + at, ms + r * P, P);
                copy_gates(gates + step * GATES * N + head * P, N, own, P, P);
            }
        }
        for (int64_t r = 0; r < s.count; r++) {
            const int64_t to = s.b[r] * N + head * P;
            copy_row(hT + to, hs + r * P, P);
            copy_row(cT + to, cs + r * P, P);
            copy_row(nT + to, ns + r * P, P);
            copy_row(mT + to, ms + r * P, P);
        }
    }
    for (int64_t b = 0; b < B; b++) {
        const int64_t all = steps_of(lengths, b, T);
        zero_padding(h, b, all, T, N);
        zero_padding(c, b, all, T, N);
        zero_padding(n, b, all, T, N);
        zero_padding(m, b, all, T, N);
        zero_padding(gates, b, all, T, GATES * N);
    }
end:
    pool_give(packed), pool_give(room);
    return status;
}

/* dx (B,T,4,H,P), dh0, dc0, dn0, dm0 (B,H,P), overwritten; dh (B,T,H,P); dhT, dcT, dnT, dmT (B,H,P) or NULL for zeros;
 * w, c0, n0, m0, lengths as in forward; c, n, m, gates as written by it.
 *
 *   g_t = dh_t + w^T dx_{t+1}   with boundary  g_{T-1} = dh_{T-1} + dhT
 *   dx_t, the adjoint of the step, applied to g_t (steps.h),   dh0 = w^T dx_0   (dhT if there is no step)
 *
 * The final memory is e^{-m_T} times the unscaled memory, so m_T has the additional gradient -(dcT cT + dnT nT).
 * Likewise m0 has dc0 c0 + dn0 n0. The caller computes dw = sum dx_t h_{t-1}^T by matmul_weight_grad. */
KERNEL(slstm_backward) {
    const plan p = plan_of(lengths, B, T, H, P);
    const int64_t N = H * P, size = packed_columns(P) * GATES * P;
    real *const packed = WORKSPACE(real, H, packed_columns(P), GATES * P);
    real *const room = WORKSPACE(real, p.tasks, p.rows, LANE_ROOM, P);
    rot_stop *const stop = stop_of_call();
    const rounding how = rounding_of_call();
    int status = ROT_NO_MEMORY;
    if (!packed || !room) goto end;
    status = ROT_OK;
    for (int64_t head = 0; head < H; head++)
        pack_rounded(packed + head * size, w + head * GATES * P * P, GATES * P, P, P, 1, how);
#pragma omp parallel for schedule(dynamic) if (p.threads)
    for (int64_t task = 0; task < p.tasks; task++) {
        const int64_t head = task % H, wide = p.rows * P;
        const block s = block_of(task / H, B, T, lengths);
        real *const g = room + task * wide * LANE_ROOM, *const dcs = g + wide, *const dns = dcs + wide,
                    *const dms = dns + wide, *const dz = dms + wide;
        const gemm_view all = {dz, GATES * P, 1};
        for (int64_t r = 0; r < s.count; r++) {
            const int64_t to = s.b[r] * N + head * P;
            copy_or_zero_row(dcs + r * P, dcT ? dcT + to : NULL, P);
            copy_or_zero_row(dns + r * P, dnT ? dnT + to : NULL, P);
            copy_or_zero_row(dms + r * P, dmT ? dmT + to : NULL, P);
        }
        for (int64_t k = s.steps[0] - 1; k >= 0 && !(k % STOP_STEPS == 0 && stopped(stop)); k--) {
            const int64_t count = active_at(&s, k), later = active_at(&s, k + 1);
            for (int64_t r = 0; r < count; r++) copy_row(g + r * P, dh + place_of(&s, r, k, T, 0) * N + head * P, P);
            for (int64_t r = later; r < count; r++) { /* the sequence's last step */
                const int64_t at = place_of(&s, r, k, T, 0) * N + head * P;
                if (dhT) add_row(g + r * P, dhT + s.b[r] * N + head * P, P);
                for (int64_t j = 0; j < P; j++)
                    dms[r * P + j] -= dcs[r * P + j] * c[at + j] + dns[r * P + j] * n[at + j];
            }
            product(g, P, g, P, all, packed + head * size, later, GATES * P, P, how);
            for (int64_t r = 0; r < count; r++) {
                const int64_t step = place_of(&s, r, k, T, 0), at = step * N + head * P;
                const memories before = k ? memories_at(c, n, m, place_of(&s, r, k - 1, T, 0) * N + head * P)
                                          : memories_at(c0, n0, m0, s.b[r] * N + head * P);
                backward_row(dz + r * GATES * P, dcs + r * P, dns + r * P, dms + r * P, g + r * P,
                             gates + step * GATES * N + head * P, N, memories_at(c, n, m, at), before, P, exponential);
                copy_gates(dx + step * GATES * N + head * P, N, dz + r * GATES * P, P, P);
            }
        }
        const int64_t count = active_at(&s, 0);
        product(g, P, NULL, 0, all, packed + head * size, count, GATES * P, P, how);
        for (int64_t r = 0; r < s.count; r++) {
            const int64_t to = s.b[r] * N + head * P;
            const memories before = memories_at(c0, n0, m0, to);
            copy_or_zero_row(dh0 + to, r < count ? g + r * P : dhT ? dhT + to : NULL, P);
            copy_row(dc0 + to, dcs + r * P, P);
            copy_row(dn0 + to, dns + r * P, P);
            copy_row(dm0 + to, dms + r * P, P);
            for (int64_t j = 0; r < count && j < P; j++) {
                const slstm_memory first = memory_of(before, j);
                dm0[to + j] += dc0[to + j] * first.c + dn0[to + j] * first.n;
            }
        }
    }
    for (int64_t b = 0; b < B; b++) zero_padding(dx, b, steps_of(lengths, b, T), T, GATES * N);
end:
    pool_give(packed), pool_give(room);
    return status;
}
