/* The system of a diagonal layer from its parameters, and the adjoint, on a GPU (csrc/kernels/diagonal.c has the
 * equations). A thread computes an entry of a matrix; a warp sums over the inputs of a state.
 */
#include "diagonal.h"

#include "warps.h"

KERNEL(polar_forward) {
    each(N, [=] __device__(int64_t n) {
        const double first = rate_of(nu[n], nu_log), second = rate_of(theta[n], theta_log);
        const cplx one = polar(first, second);
        a[2 * n] = one.re, a[2 * n + 1] = one.im;
        rates[n] = (real)first, rates[N + n] = (real)second;
    });
    return runtime_status();
}

KERNEL(polar_backward) {
    each(N, [=] __device__(int64_t n) {
        const cplx own = {a[2 * n], a[2 * n + 1]}, g = {da[2 * n], da[2 * n + 1]}, d = polar_adjoint(own, g);
        dnu[n] = nu_log ? d.re * rates[n] : d.re, dtheta[n] = theta_log ? d.im * rates[N + n] : d.im;
    });
    return runtime_status();
}

KERNEL(diagonal_weights_forward) {
    const int64_t size = N * D;
    const real by = (real)weight;
    each((1 + directions) * size, [=] __device__(int64_t i) {
        if (i < size) {
            const int64_t n = i / D, d = i % D;
            const cplx b = {B_re[i], B_im[i]}, own = with_gain(gain, turn, n, b);
            w_in[2 * n * D + d] = own.re, w_in[(2 * n + 1) * D + d] = own.im;
            return;
        }
        const int64_t j = i - size, at = j % size;
        w_out[2 * j] = by * (j < size ? C_re : C_re_reverse)[at];
        w_out[2 * j + 1] = -by * (j < size ? C_im : C_im_reverse)[at];
    });
    return runtime_status();
}

KERNEL(diagonal_weights_backward) {
    const int64_t size = N * D;
    const real by = (real)weight;
    each_warp(N, [=] __device__(int64_t n, int lane) {
        double re = 0, im = 0;
        for (int64_t d = lane; d < D; d += 32) {
            const cplx g = {dw_in[2 * n * D + d], dw_in[(2 * n + 1) * D + d]};
            const cplx b = {B_re[n * D + d], B_im[n * D + d]}, own = with_gain_adjoint(gain, turn, n, g);
            dB_re[n * D + d] = own.re, dB_im[n * D + d] = own.im;
            re += (double)b.re * (double)g.re + (double)b.im * (double)g.im;
            im += (double)b.re * (double)g.im - (double)b.im * (double)g.re;
        }
        re = warp_sum(re), im = warp_sum(im);
        if (lane) return;
        if (dgain) dgain[n] = (real)re;
        if (dturn) dturn[2 * n] = (real)re, dturn[2 * n + 1] = (real)im;
    });
    each(directions * size, [=] __device__(int64_t j) {
        const int64_t at = j % size;
        (j < size ? dC_re : dC_re_reverse)[at] = by * dw_out[2 * j];
        (j < size ? dC_im : dC_im_reverse)[at] = -by * dw_out[2 * j + 1];
    });
    return runtime_status();
}
