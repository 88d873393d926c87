/* The states between the segments of a divided scan, in double precision. */
#ifndef ROT_CUDA_CARRIES_H
#define ROT_CUDA_CARRIES_H

#include "exact.h"
#include "scan.h"

enum { SCAN_THREADS = 64 }; /* of a block: even few planes then give every processor a block */

ROT_DEVICE_ONLY exact widened(cplx h) { return exact_of(h); }
ROT_DEVICE_ONLY exact widened(exact h) { return h; }

ROT_DEVICE_ONLY exact conjugate(exact a) {
    const exact r = {a.re, -a.im};
    return r;
}

/* between <- the states before each segment, from `first` (B,N) or NULL; backward, with the conjugate transition */
template <class S> GLOBAL(SCAN_THREADS) pass_on(cut c, exact *between, const S *a, const cplx *first, bool backward) {
    const int64_t i = (int64_t)blockIdx.x * SCAN_THREADS + threadIdx.x;
    if (i >= c.B * c.N) return;
    const int64_t b = i / c.N, n = i % c.N;
    const exact turn = exact_power(backward ? conjugate(widened(a[n])) : widened(a[n]), c.steps);
    exact h = {0, 0};
    if (first) h = exact_of(first[i]);
    exact *const mine = between + b * c.segments * c.N + n;
    pipelined<8>(
        c.segments, [&](int64_t k) { return mine[k * c.N]; },
        [&](int64_t k, exact last) {
            mine[k * c.N] = h;
            h = h.re == 0 && h.im == 0 ? last : exact_add(exact_mul(turn, h), last); /* the power may be infinite */
        });
}

#endif
