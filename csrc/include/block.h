/* Arguments of the fused kernels of block.c: a whole residual block, or its linear layer alone. */
#ifndef ROT_BLOCK_H
#define ROT_BLOCK_H

#include "real.h"

/* NORM_CHANNEL: gain (x - center) + offset of each channel; NORM_ROW: layer norm with scale `gain`, bias `offset`. */
enum { NORM_NONE, NORM_CHANNEL, NORM_ROW };
/* GATE_NONE: the layer alone, without norm and residual. The others are the forms of the gated linear unit. */
enum { GATE_NONE, GATE_FULL, GATE_HALF1, GATE_HALF2 };

/* Arrays are C-contiguous. L = 2N real lanes, lanes (2i, 2i+1) one plane; K directions; carries for each of the
 * ceil(T / tile) tiles. Complex arrays are (re, im) pairs. */
typedef struct {
    const real *x;                                   /* (B,T,D) */
    const real *w_in, *a, *w_out, *skip;             /* (L,D), (N) complex, (K,D,L), (D) */
    const real *h0;                                  /* (K,B,L) or NULL */
    const real *center, *gain, *offset;              /* (D) or NULL */
    const real *w_value, *b_value, *w_gate, *b_gate; /* (D,D), (D), or NULL */
    const int64_t *lengths, *places;                 /* (B) or NULL; `places` as dropout has them */
    int64_t B, T, D, L, K, tile, norm, gate;
    double eps, rate; /* of the row norm, of dropout */
    int64_t seed, step, site, over_time;
} block_in;

typedef struct {
    real *y;          /* (B,T,D) */
    real *hT;         /* (K,B,L); the running state until then */
    real *carries;    /* (K,B,tiles,L): the state before each tile; those beyond lengths[b] are not written */
    real *mean, *var; /* (D) or NULL: moments of y over valid steps */
    real *layer;      /* (B,T,D) or NULL: the layer's output, kept so that backward need not make it again */
} block_out;

/* dy (B,T,D); carries and `layer` as forward wrote them, `layer` or NULL; dhT (K,B,L) or NULL. With the `later_`
 * arrays, dy lacks the part through the statistics of the next block's channel norm, and the gradient of y is dy +
 * slope (y - center) + shift. */
typedef struct {
    const real *dy, *carries, *dhT, *layer;
    const real *y, *later_center, *later_slope, *later_shift; /* (B,T,D), (D), (D), (D), or all NULL */
} block_adjoint_in;

/* Gradients, each of its input's shape, all overwritten; NULL where the input is NULL.
 * NORM_CHANNEL: d_norm_sum = sum of g, d_norm_product = sum of g (x - center), g the gradient of the norm's output, and
 * dx has only the direct part gain g. NORM_ROW: the gradients of bias and scale. */
typedef struct {
    real *dx, *dw_in, *da, *dw_out, *dskip, *dh0, *d_norm_sum, *d_norm_product;
    real *dw_value, *db_value, *dw_gate, *db_gate;
} block_adjoint_out;

#endif
