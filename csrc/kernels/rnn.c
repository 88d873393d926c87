/* Dense recurrences, the simple recurrent network, the LSTM and the GRU, and their adjoints.
 *
 * Sequential in time. The sequences of a block advance together: a step is a matrix product (gemm_tile.h) of their
 * states with packed weights. Threads work on blocks (abreast.h). A sequence's result does not depend on other
 * sequences in its block.
 *
 * The call's precision sets how the products round w and the states, and dz in backward; states stay float32.
 *
 * z_t = x_t + w h_{t-1}, w (G N, N), with G = 1 (h_t = f(z_t)) or 4 (the LSTM's gates). The GRU has G = 3 and z_t = w
 * h_{t-1} + bias, because its reset gate comes between x_t and this product (steps.h).
 */
#include <string.h>

#include "abreast.h"
#include "gemm_tile.h"
#include "kernels.h"
#include "lanes.h"
#include "sizes.h"
#include "stop.h"
#include "workspace.h"

enum { SERIAL = 1 << 19 }; /* multiplications below which one thread is used */

/* Zeroes the padding of the block's sequences in y (B,T,n). */
static void zero_padding_of(real *y, const block *s, int64_t T, int64_t n) {
    for (int64_t r = 0; r < s->count; r++) zero_padding(y, s->b[r], s->steps[r], T, n);
}

static void activate(real *restrict h, const real *restrict z, int64_t N, int64_t cell) {
    if (cell == CELL_TANH)
        for (int64_t j = 0; j < N; j++) h[j] = vmath_tanh(z[j]);
    else if (cell == CELL_RELU)
        for (int64_t j = 0; j < N; j++) h[j] = relu(z[j]);
    else
        copy_row(h, z, N);
}

/* dz = g f'(z), from h = f(z) */
static void activate_adjoint(real *restrict dz, const real *restrict g, const real *restrict h, int64_t N,
                             int64_t cell) {
    if (cell == CELL_TANH)
        for (int64_t j = 0; j < N; j++) dz[j] = tanh_adjoint(g[j], h[j]);
    else if (cell == CELL_RELU)
        for (int64_t j = 0; j < N; j++) dz[j] = relu_adjoint(g[j], h[j]);
    else
        copy_row(dz, g, N);
}

/* gates (4,N) <- the gates from z (4,N);  advances c and h by one step */
static void lstm_step(real *restrict h, real *restrict c, real *restrict gates, const real *restrict z, int64_t N) {
    for (int64_t j = 0; j < N; j++) {
        const lstm_gates at = lstm_gates_of((lstm_gates){z[j], z[N + j], z[2 * N + j], z[3 * N + j]});
        const real now = lstm_cell(at, c[j]);
        gates[j] = at.i, gates[N + j] = at.f, gates[2 * N + j] = at.g, gates[3 * N + j] = at.o;
        c[j] = now;
        h[j] = lstm_output(at, now);
    }
}

/* dh is the total gradient of h_t; dc is the gradient that reaches c_t from later steps on entry, and c_{t-1} on
 * return. */
static void lstm_step_adjoint(real *restrict dz, real *restrict dc, const real *restrict dh, const real *restrict gates,
                              const real *restrict c, const real *restrict c_prev, int64_t N) {
    for (int64_t j = 0; j < N; j++) {
        const lstm_gates at = {gates[j], gates[N + j], gates[2 * N + j], gates[3 * N + j]};
        const lstm_parts d = lstm_adjoint(at, c[j], c_prev ? c_prev[j] : 0, dh[j], dc[j]);
        dz[j] = d.dz.i, dz[N + j] = d.dz.f, dz[2 * N + j] = d.dz.g, dz[3 * N + j] = d.dz.o;
        dc[j] = d.q;
    }
}

/* gates (4,N) <- r, z, n, u of the GRU, from x and z (3,N); advances h by one step */
static void gru_step(real *restrict h, real *restrict gates, const real *restrict x, const real *restrict z,
                     int64_t N) {
    for (int64_t j = 0; j < N; j++) {
        const gru_gates at = gru_gates_of(x[j] + z[j], x[N + j] + z[N + j], x[2 * N + j], z[2 * N + j]);
        gates[j] = at.r, gates[N + j] = at.z, gates[2 * N + j] = at.n, gates[3 * N + j] = at.u;
        h[j] = gru_output(at, h[j]);
    }
}

/* dz (3,N), the gradient of w h_{t-1} + bias, and dx (3,N), the gradient of x_t. dh is the total gradient of h_t, and
 * becomes the part of h_{t-1}'s gradient that does not come through the product. */
static void gru_step_adjoint(real *restrict dz, real *restrict dx, real *restrict dh, const real *restrict gates,
                             const real *restrict h_prev, int64_t N) {
    for (int64_t j = 0; j < N; j++) {
        const gru_gates at = {gates[j], gates[N + j], gates[2 * N + j], gates[3 * N + j]};
        const gru_parts d = gru_adjoint(at, h_prev ? h_prev[j] : 0, dh[j]);
        dx[j] = dz[j] = d.dx.r, dx[N + j] = dz[N + j] = d.dx.z, dx[2 * N + j] = d.dx.n, dz[2 * N + j] = d.dx.u;
        dh[j] = d.h;
    }
}

/* h (B,T,N), hT (B,N); w (G N,N), x (B,T,G N), h0 (B,N) or NULL. Only for the LSTM, else NULL: c (B,T,N), cT (B,N),
 * gates (B,T,4N) after their nonlinearities, c0 (B,N) or NULL. Gates are in the order i, f, g, o; the GRU's are r, z,
 * n, and u_n of steps.h, with bias (3N). */
KERNEL(rnn_forward) {
    const int64_t G = gates_of(cell), rows = rows_of(B), blocks = pieces_of(B, rows);
    real *const packed = WORKSPACE(real, packed_columns(G * N), N);
    real *const room = WORKSPACE(real, blocks, rows, G + 2, N);
    if (!packed || !room) {
        pool_give(packed);
        pool_give(room);
        return ROT_NO_MEMORY;
    }
    const rounding how = rounding_of_call();
    pack_rounded(packed, w, N, G * N, 1, N, how);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (blocks > 1 && B * T * G * N * N > SERIAL)
    for (int64_t index = 0; index < blocks; index++) {
        const block s = block_of(index, B, T, lengths);
        real *const state = room + index * rows * (G + 2) * N, *const memory = state + rows * N,
                    *const z = memory + rows * N;
        for (int64_t r = 0; r < s.count; r++) {
            copy_or_zero_row(state + r * N, h0 ? h0 + s.b[r] * N : NULL, N);
            copy_or_zero_row(memory + r * N, c0 ? c0 + s.b[r] * N : NULL, N);
        }
        for (int64_t k = 0; k < s.steps[0] && !(k % STOP_STEPS == 0 && stopped(stop)); k++) {
            const int64_t n = active_at(&s, k);
            for (int64_t r = 0; r < n; r++)
                copy_row(z + r * G * N, cell == CELL_GRU ? bias : x + place_of(&s, r, k, T, reverse) * G * N, G * N);
            product(z, G * N, z, G * N, (gemm_view){state, N, 1}, packed, n, N, G * N, how);
            for (int64_t r = 0; r < n; r++) {
                const int64_t at = place_of(&s, r, k, T, reverse);
                if (cell == CELL_LSTM) {
                    lstm_step(state + r * N, memory + r * N, gates + at * 4 * N, z + r * 4 * N, N);
                    copy_row(c + at * N, memory + r * N, N);
                } else if (cell == CELL_GRU)
                    gru_step(state + r * N, gates + at * 4 * N, x + at * 3 * N, z + r * 3 * N, N);
                else
                    activate(state + r * N, z + r * N, N, cell);
                copy_row(h + at * N, state + r * N, N);
            }
        }
        for (int64_t r = 0; r < s.count; r++) {
            copy_row(hT + s.b[r] * N, state + r * N, N);
            if (cell == CELL_LSTM) copy_row(cT + s.b[r] * N, memory + r * N, N);
        }
        zero_padding_of(h, &s, T, N);
        if (cell == CELL_LSTM) zero_padding_of(c, &s, T, N);
        if (cell == CELL_LSTM || cell == CELL_GRU) zero_padding_of(gates, &s, T, 4 * N);
    }
    pool_give(packed);
    pool_give(room);
    return ROT_OK;
}

/* dx (B,T,G N), dh0 (B,N), overwritten; dh (B,T,N), dhT (B,N) or NULL; w, c0, lengths as in forward; h, c, gates as
 * written by it. Only for the LSTM, else NULL: dc0, dcT (or NULL), c, gates, c0. For the GRU: gates, and c0 is h0.
 *
 *   g_t = dh_t + w^T dz_{t+1}   with boundary  g_{T-1} = dh_{T-1} + dhT
 *   dx_t = dz_t, the cell's adjoint of g_t,   dh0 = w^T dz_0   (dhT if there is no step)
 *
 * The caller computes dw = sum dz_t h_{t-1}^T by matmul_weight_grad. For the GRU, g_t also has the direct term of h_t
 * in h_{t+1}, and dx_t and dz_t differ by the reset gate. */
KERNEL(rnn_backward) {
    const int64_t G = gates_of(cell), rows = rows_of(B), blocks = pieces_of(B, rows);
    real *const packed = WORKSPACE(real, packed_columns(N), G * N);
    real *const room = WORKSPACE(real, blocks, rows, G + 2, N);
    if (!packed || !room) {
        pool_give(packed);
        pool_give(room);
        return ROT_NO_MEMORY;
    }
    const rounding how = rounding_of_call();
    pack_rounded(packed, w, G * N, N, N, 1, how);
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(dynamic) if (blocks > 1 && B * T * G * N * N > SERIAL)
    for (int64_t index = 0; index < blocks; index++) {
        const block s = block_of(index, B, T, lengths);
        real *const g = room + index * rows * (G + 2) * N, *const dc = g + rows * N, *const dz = dc + rows * N;
        for (int64_t r = 0; r < s.count; r++) copy_or_zero_row(dc + r * N, dcT ? dcT + s.b[r] * N : NULL, N);
        for (int64_t k = s.steps[0] - 1; k >= 0 && !(k % STOP_STEPS == 0 && stopped(stop)); k--) {
            const int64_t n = active_at(&s, k), later = active_at(&s, k + 1);
            for (int64_t r = 0; r < n; r++) {
                copy_row(g + r * N, dh + place_of(&s, r, k, T, reverse) * N, N);
                if (r >= later && dhT) add_row(g + r * N, dhT + s.b[r] * N, N);
            }
            product(g, N, g, N, (gemm_view){dz, G * N, 1}, packed, later, G * N, N, how);
            for (int64_t r = 0; r < n; r++) {
                const int64_t at = place_of(&s, r, k, T, reverse);
                const real *const before = c0 ? c0 + s.b[r] * N : NULL;
                if (cell == CELL_GRU) {
                    const real *const h_prev = k ? h + place_of(&s, r, k - 1, T, reverse) * N : before;
                    add_row(dc + r * N, g + r * N, N);
                    gru_step_adjoint(dz + r * 3 * N, dx + at * 3 * N, dc + r * N, gates + at * 4 * N, h_prev, N);
                    continue;
                }
                if (cell == CELL_LSTM) {
                    const real *const c_prev = k ? c + place_of(&s, r, k - 1, T, reverse) * N : before;
                    lstm_step_adjoint(dz + r * 4 * N, dc + r * N, g + r * N, gates + at * 4 * N, c + at * N, c_prev, N);
                } else
                    activate_adjoint(dz + r * N, g + r * N, h + at * N, N, cell);
                copy_row(dx + at * G * N, dz + r * G * N, G * N);
            }
        }
        const int64_t n = active_at(&s, 0);
        product(g, N, NULL, 0, (gemm_view){dz, G * N, 1}, packed, n, G * N, N, how);
        for (int64_t r = 0; r < s.count; r++) {
            if (cell == CELL_GRU && r < n) add_row(g + r * N, dc + r * N, N);
            copy_or_zero_row(dh0 + s.b[r] * N, r < n ? g + r * N : dhT ? dhT + s.b[r] * N : NULL, N);
            if (cell == CELL_LSTM) copy_row(dc0 + s.b[r] * N, dc + r * N, N);
        }
        zero_padding_of(dx, &s, T, G * N);
    }
    pool_give(packed);
    pool_give(room);
    return ROT_OK;
}
