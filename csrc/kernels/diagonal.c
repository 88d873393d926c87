/* The system of a diagonal layer of N complex states from its parameters (diagonal.h), and the adjoint:
 *
 *   a = exp(-nu + i theta)    W_in = gain B    W_out = weight C of each direction
 *
 * W_in and W_out are real matrices: rows (2n, 2n+1) of W_in are the real and the imaginary part of row n of gain B;
 * columns (2n, 2n+1) of W_out are the real part of column n of weight C, and minus its imaginary part, since a layer's
 * output is the real part of weight C h. Every output is overwritten.
 */
#include "diagonal.h"

#include "kernels.h"

enum { SERIAL = 65536 }; /* numbers of a matrix below which one thread is used */

KERNEL(polar_forward) {
    for (int64_t n = 0; n < N; n++) {
        const double own[2] = {rate_of(nu[n], nu_log), rate_of(theta[n], theta_log)};
        const cplx one = polar(own[0], own[1]);
        a[2 * n] = one.re, a[2 * n + 1] = one.im;
        rates[n] = (real)own[0], rates[N + n] = (real)own[1];
    }
    return ROT_OK;
}

KERNEL(polar_backward) {
    for (int64_t n = 0; n < N; n++) {
        const cplx own = {a[2 * n], a[2 * n + 1]}, g = {da[2 * n], da[2 * n + 1]}, d = polar_adjoint(own, g);
        dnu[n] = nu_log ? d.re * rates[n] : d.re, dtheta[n] = theta_log ? d.im * rates[N + n] : d.im;
    }
    return ROT_OK;
}

KERNEL(diagonal_weights_forward) {
    const real *const re[2] = {C_re, C_re_reverse}, *const im[2] = {C_im, C_im_reverse};
    const real by = (real)weight;
#pragma omp parallel for schedule(static) if (N * D > SERIAL)
    for (int64_t n = 0; n < N; n++)
        for (int64_t d = 0; d < D; d++) {
            const cplx b = {B_re[n * D + d], B_im[n * D + d]}, own = with_gain(gain, turn, n, b);
            w_in[2 * n * D + d] = own.re, w_in[(2 * n + 1) * D + d] = own.im;
        }
    for (int64_t k = 0; k < directions; k++)
#pragma omp parallel for schedule(static) if (N * D > SERIAL)
        for (int64_t i = 0; i < D * N; i++) {
            real *const to = w_out + 2 * (k * D * N + i);
            to[0] = by * re[k][i], to[1] = -by * im[k][i];
        }
    return ROT_OK;
}

KERNEL(diagonal_weights_backward) {
    real *const re[2] = {dC_re, dC_re_reverse}, *const im[2] = {dC_im, dC_im_reverse};
    const real by = (real)weight;
#pragma omp parallel for schedule(static) if (N * D > SERIAL)
    for (int64_t n = 0; n < N; n++) {
        double sum[2] = {0, 0};
        for (int64_t d = 0; d < D; d++) {
            const cplx g = {dw_in[2 * n * D + d], dw_in[(2 * n + 1) * D + d]};
            const cplx b = {B_re[n * D + d], B_im[n * D + d]}, own = with_gain_adjoint(gain, turn, n, g);
            dB_re[n * D + d] = own.re, dB_im[n * D + d] = own.im;
            sum[0] += (double)b.re * (double)g.re + (double)b.im * (double)g.im;
            sum[1] += (double)b.re * (double)g.im - (double)b.im * (double)g.re;
        }
        if (dgain) dgain[n] = (real)sum[0];
        if (dturn) dturn[2 * n] = (real)sum[0], dturn[2 * n + 1] = (real)sum[1];
    }
    for (int64_t k = 0; k < directions; k++)
#pragma omp parallel for schedule(static) if (N * D > SERIAL)
        for (int64_t i = 0; i < D * N; i++) {
            const real *const from = dw_out + 2 * (k * D * N + i);
            re[k][i] = by * from[0], im[k][i] = -by * from[1];
        }
    return ROT_OK;
}
