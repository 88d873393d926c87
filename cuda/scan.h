/* How scans divide their work: one thread walks one lane of a sequence, or of a segment of a sequence, through time. */
#ifndef ROT_CUDA_SCAN_H
#define ROT_CUDA_SCAN_H

#include "device.h"

enum {
    MANY = 4096,        /* from this number of sequences times lanes on, time is not divided */
    ENOUGH = 32768,     /* threads that a divided scan should have */
    SEGMENT_STEPS = 64, /* smallest number of steps of a segment */
};

/* Division of time. */
struct cut {
    int64_t B, T, N, segments, steps;
    const int64_t *lengths;
    bool down;
};

static cut cut_of(int64_t B, int64_t T, int64_t N, const int64_t *lengths, bool down) {
    cut c = {B, T, N, 1, T, lengths, down};
    if (B * N == 0 || B * N >= MANY || T < 2 * SEGMENT_STEPS) return c;
    c.steps = most(SEGMENT_STEPS, pieces_of(T, pieces_of(ENOUGH, B * N)));
    c.segments = pieces_of(T, c.steps);
    return c;
}

/* One lane of a segment: its walk, in lanes; first, last: whether it is the first or last of the sequence's segments
 * with steps, in walking order. */
struct piece {
    int64_t b, n, segment;
    walk w;
    bool first, last;
};

ROT_DEVICE_ONLY piece piece_of(cut c, int64_t i) {
    piece p;
    p.n = i % c.N, p.segment = i / c.N % c.segments, p.b = i / c.N / c.segments;
    const int64_t all = steps_of(c.lengths, p.b, c.T), from = p.segment * c.steps;
    p.w.steps = least(most(all - from, 0), c.steps);
    p.w.first = (p.b * c.T + (c.down ? all - 1 - from : from)) * c.N + p.n;
    p.w.stride = c.down ? -c.N : c.N;
    p.first = p.segment == 0;
    p.last = from + p.w.steps == all && (p.w.steps || p.first);
    return p;
}

/* Zeros in the steps of padding that lie in the segment's range of time. */
template <class T> ROT_DEVICE_ONLY void zero_padding(T *rows, cut c, piece p) {
    const int64_t all = steps_of(c.lengths, p.b, c.T), to = least((p.segment + 1) * c.steps, c.T);
    const T zero = {};
    for (int64_t t = most(p.segment * c.steps, all); t < to; t++) rows[(p.b * c.T + t) * c.N + p.n] = zero;
}

#endif
