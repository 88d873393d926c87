/* Rotations of pairs of lanes by angles that add up over time, and the adjoint, on a GPU (csrc/kernels/turn.c has the
 * equations). A thread walks one angle of a sequence, or of a segment, through time, and turns its pair in all vectors
 * of the head. The angles before each segment come from sums over the segments, added in order.
 */
#include "padding.h"
#include "rotation.h"
#include "scan.h"

/* Sizes of a call, and its division: `time` in lanes, the angles of all heads. */
struct plan {
    cut time;
    int64_t H, N, A;
    bool halves;
};

static plan plan_of(const int64_t *lengths, int64_t B, int64_t T, int64_t H, int64_t N, int64_t A, int64_t pairs,
                    int64_t reverse) {
    const plan p = {cut_of(B, T, H * A, lengths, reverse), H, N, A, pairs == PAIRS_HALVES};
    return p;
}

/* f(piece) for each lane of each segment, by a thread. */
template <class F> static void each_piece(cut c, F f) {
    each(c.B * c.segments * c.N, [=] __device__(int64_t i) { f(piece_of(c, i)); });
}
ROT_DEVICE_ONLY int64_t place_of(cut c, piece p) { return (p.b * c.segments + p.segment) * c.N + p.n; }

/* Vectors of each step, and their results. */
struct rows {
    real *y;
    const real *x;
    int64_t count;
};

/* The place of the piece's pair in vector j of a step, from the place `lane` of its angle. */
ROT_DEVICE_ONLY int64_t pair_of(plan p, piece own, int64_t lane, int64_t count, int64_t j) {
    const int64_t row = lane / p.time.N, head = own.n / p.A;
    return ((row * count + j) * p.H + head) * p.N + pair_first(own.n % p.A, p.halves);
}

ROT_DEVICE_ONLY void turn_pair(plan p, piece own, int64_t lane, rows r, cplx unit) {
    const int64_t apart = pair_apart(p.N, p.halves);
    for (int64_t j = 0; j < r.count; j++) {
        const int64_t at = pair_of(p, own, lane, r.count, j);
        const cplx pair = {r.x[at], r.x[at + apart]}, turned = turn_step(unit, pair);
        r.y[at] = turned.re, r.y[at + apart] = turned.im;
    }
}

/* The part of the angle's gradient that comes through y, from dy. */
ROT_DEVICE_ONLY real angle_adjoint(plan p, piece own, int64_t lane, const real *y, const real *dy, int64_t count) {
    const int64_t apart = pair_apart(p.N, p.halves);
    real sum = 0;
    for (int64_t j = 0; j < count; j++) {
        const int64_t at = pair_of(p, own, lane, count, j);
        const cplx pair = {y[at], y[at + apart]}, gradient = {dy[at], dy[at + apart]};
        sum += turn_angle_adjoint(pair, gradient);
    }
    return sum;
}

/* Lanes that do not turn, and padding. */
static void copy_others(plan p, rows r) {
    const int64_t width = r.count * p.H * p.N, T = p.time.T, half = p.N / 2;
    each(p.time.B * T * width, [=] __device__(int64_t i) {
        const int64_t lane = i % p.N, row = i / width, b = row / T;
        const int64_t pair = !p.halves ? lane / 2 : lane < half ? lane : lane - half;
        const bool turns = pair < p.A && lane < 2 * half, valid = row - b * T < steps_of(p.time.lengths, b, T);
        if (!valid)
            r.y[i] = 0;
        else if (!turns)
            r.y[i] = r.x[i];
    });
}

/* sums (B,segments,lanes) <- the sums of x (B,T,lanes) over each piece */
static void sum_pieces(double *sums, const real *x, cut c) {
    each_piece(c, [=] __device__(piece own) {
        double sum = 0;
        for (int64_t k = 0; k < own.w.steps; k++) sum += (double)x[own.w.first + k * own.w.stride];
        sums[place_of(c, own)] = sum;
    });
}

/* Angles before each piece, which replace the sums of theta; and the state after the last step. */
static double *starts_of(const real *theta, const real *c0, real *cT, plan p) {
    const cut c = p.time;
    double *const starts = workspace_of<double>(c.B, c.segments, c.N);
    sum_pieces(starts, theta, c);
    each(c.B * c.N, [=] __device__(int64_t i) {
        const int64_t b = i / c.N, n = i % c.N, at = b * 2 * c.N + n;
        double sum = c0 ? (double)c0[at] + (double)c0[at + c.N] : 0;
        for (int64_t s = 0; s < c.segments; s++) {
            double &own = starts[(b * c.segments + s) * c.N + n];
            const double added = own;
            own = sum, sum = within_half_turn(sum + added);
        }
        sum = within_half_turn(sum);
        if (cT) cT[at] = (real)sum, cT[at + c.N] = angle_rest(sum);
    });
    return starts;
}

KERNEL(turn_forward) {
    const plan p = plan_of(lengths, B, T, H, N, angles, pairs, reverse);
    const rows own = {y, x, vectors}, second = {w, z, w ? others : 0};
    const double *const starts = starts_of(theta, c0, cT, p);
    each_piece(p.time, [=] __device__(piece at) {
        double c = starts[place_of(p.time, at)];
        for (int64_t k = 0; k < at.w.steps; k++) {
            const int64_t lane = at.w.first + k * at.w.stride;
            c = within_half_turn(c + (double)theta[lane]);
            const cplx unit = unit_of((real)c);
            turn_pair(p, at, lane, own, unit);
            turn_pair(p, at, lane, second, unit);
        }
    });
    copy_others(p, own);
    if (w) copy_others(p, second);
    return runtime_status();
}

KERNEL(turn_backward) {
    const plan p = plan_of(lengths, B, T, H, N, angles, pairs, reverse);
    const rows own = {dx, dy, vectors}, second = {dz, dw, w ? others : 0};
    const double *const starts = starts_of(theta, c0, NULL, p);
    each_piece(p.time, [=] __device__(piece at) {
        double c = starts[place_of(p.time, at)];
        for (int64_t k = 0; k < at.w.steps; k++) {
            const int64_t lane = at.w.first + k * at.w.stride;
            c = within_half_turn(c + (double)theta[lane]);
            const cplx unit = unit_of((real)c), back = {unit.re, -unit.im};
            turn_pair(p, at, lane, own, back);
            turn_pair(p, at, lane, second, back);
            dtheta[lane] =
                angle_adjoint(p, at, lane, y, dy, own.count) + angle_adjoint(p, at, lane, w, dw, second.count);
        }
    });
    copy_others(p, own);
    if (w) copy_others(p, second);
    const cut c = p.time;
    double *const later = workspace_of<double>(c.B, c.segments, c.N);
    sum_pieces(later, dtheta, c);
    each(c.B * c.N, [=] __device__(int64_t i) {
        const int64_t b = i / c.N, n = i % c.N, at = b * 2 * c.N + n;
        double sum = dcT ? (double)dcT[at] : 0;
        for (int64_t s = c.segments - 1; s >= 0; s--) {
            double &here = later[(b * c.segments + s) * c.N + n];
            const double added = here;
            here = sum, sum += added;
        }
        dc0[at] = dc0[at + c.N] = (real)sum;
    });
    each_piece(c, [=] __device__(piece at) {
        double sum = later[place_of(c, at)];
        for (int64_t k = at.w.steps - 1; k >= 0; k--) {
            real &here = dtheta[at.w.first + k * at.w.stride];
            here = (real)(sum += (double)here);
        }
        zero_padding(dtheta, c, at);
    });
    return runtime_status();
}
