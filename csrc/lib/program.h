/* A model as a straight-line program: at load it becomes a list of instructions on rows of numbers. A push runs them
 * for a chunk of steps at a time. Each dtype and instruction set has an implementation of the instructions (run.h).
 *
 * A row belongs to one step of one sequence: with B sequences and n steps in a chunk, row b n + t. A register holds
 * such rows of a fixed width. Each sequence has a state, one block of bytes that persists from step to step. It begins
 * with the number of steps that the sequence has read.
 */
#ifndef ROT_PROGRAM_H
#define ROT_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels.h"
#include "mixing.h"

/* Layers in this build: S4, WropeMemory, SelectiveRotRNN and stored histories, Mamba and DeltaNet, layers with
 * exponential gates, and layers that iterate */
#ifndef LIB_S4
#define LIB_S4 1
#endif
#ifndef LIB_HISTORIES
#define LIB_HISTORIES 1
#endif
#ifndef LIB_MATRIX_STATES
#define LIB_MATRIX_STATES 1
#endif
#ifndef LIB_XLSTM
#define LIB_XLSTM 1
#endif
#ifndef LIB_FIXED_POINTS
#define LIB_FIXED_POINTS 1
#endif

typedef enum {
    OP_DENSE,        /* y = x w[0]^T + w[1] or 0, for the first `count` numbers of x */
    OP_AFFINE,       /* y = w[0] (x - w[1]) + w[2]: batch norm by running statistics */
    OP_NORM,         /* y = w[0] c / sqrt(mean c^2 + eps) + w[1] by `count` groups; c: x, or x - mean x if `choice` */
    OP_SKIP,         /* y += w[0] x, by channel */
    OP_GELU,         /* y = gelu(x) */
    OP_SILU,         /* y = silu(x) */
    OP_SOFTPLUS,     /* y = softplus(x) */
    OP_SIGMOID,      /* y = s(x) */
    OP_TANH,         /* y = tanh(x) */
    OP_DECAY,        /* y = exp(w[0] x), by channel */
    OP_LOG_DECAY,    /* y = -z max(softplus(x), eps), or with another rate if `choice` */
    OP_STEP_ANGLES,  /* y = pi tanh(x) z, each number of x with each of z */
    OP_LOG_RADIUS,   /* y = log(eps + (1 - eps) exp(-w[0] s(x))), by channel */
    OP_HEAD_ANGLES,  /* y = +-(w[1] + (w[2] - w[1]) s(w[0] + tanh(x))), by channel, + first */
    OP_OF_HEADS,     /* y = x + w[0] by groups of `choice` numbers; several of y share each of x's `count` */
    OP_DECAY_GAIN,   /* y = sqrt(1 - exp(2 x)), and 1 at a sequence's first step */
    OP_SUM,          /* y = x + z */
    OP_PRODUCT,      /* y = x z */
    OP_BONUS,        /* y = (x . z) v in each of `count` heads */
    OP_COLUMNS,      /* y = columns of x, from `from` on */
    OP_PLANES,       /* y: the planes of x, which are halves (2, N), or adjacent if `choice`, in the other layout */
    OP_PLACE,        /* columns of y, from `from` on, = x */
    OP_SCAN,         /* y: planes; h = w[0] h + y, y <- h */
    OP_EXACT_SCAN,   /* the same with states and w[0] in double */
    OP_WINDOW_SCAN,  /* the same for the last `window` inputs, with w[1] = w[0]^window */
    OP_TURNING_SCAN, /* the same with transitions turned by angles x, and decays z with w[1], w[2] (H) if H, `count`,
                      * bounded if `choice`; planes are adjacent, or halves if `from` */
    OP_BANK,         /* S4D: y from x by `count` states of a channel, with w[0] = {a, c}, and skip w[1] */
    OP_DPLR_BANK,    /* S4: the same from several inputs x; `choice` of them drive the states; weights in run.c */
    OP_PRODUCTS,     /* y: `count` rows for each row of x, the products of the last 1, 2, ... rows of x */
    OP_REAL_SCAN,    /* y <- h; h = x h + z */
    OP_OSCILLATOR,   /* y <- h (2, N); h = w[0] h + w[1] x, w[0] (2, 2, N) */
    OP_SOFTMAX,      /* y = exp(x) / its sum, in `count` groups */
    OP_POLAR,        /* y (2, N) = x (cos z, sin z), or (N, 2) if `choice` */
    OP_PERMUTED,     /* y <- h (2, N); h = P (z h) + v, P one-hot by columns, from `count` matrices w[0] mixed by x */
    OP_RNN,          /* y: inputs; y <- h = f(y + w[0] h), f by `choice` (CELL_) */
    OP_LSTM,         /* x: inputs of the gates; y <- h */
    OP_GRU,          /* x: inputs of the gates, z: memory; y <- h, with w[0] for r and z, w[1] for n, and bias w[2] */
    OP_ROTARY,       /* turns `choice` pairs of channels of y in `count` heads by position, w[0]: their frequencies */
    OP_ATTENTION,    /* y <- attention of query y in `count` heads, key x, value z in as many or fewer; v: memory */
    OP_HISTORY,   /* y: planes; y <- the sum of all states, each turned by its age, with weights by w[0] (`count` heads,
                   * `from` ages), or by queries x if they have a width; angles by `choice` (WROPE_) and length `eps` */
    OP_CONV,      /* y: causal convolution of x, with `count` taps w[0] and bias w[1] */
    OP_SELECTIVE, /* y: selective scan of x with steps z, B v and C s, `count` states of a channel, w = {A, skip} */
    OP_SSD,       /* y: the same of Mamba-2, `count` states of a head, B and C of `choice` groups */
    OP_TRAPEZOID, /* y: like OP_SSD, for Mamba-3; `from` ranks with gains w[0]; lambda t, log a e */
    OP_HOLD,      /* y: like OP_SSD, for SLinOSS; log a t, angles e, their sums f; w[0]: `from` places, weights */
    OP_ANGLES,    /* y <- the sums of angles x, less whole turns */
    OP_UNIT_SCAN, /* y = sums over `count` states of Re(w[0] e^{ix} conj(q)); q += z e^{ix}, x: angles */
    OP_TURN, /* turns the first `from` pairs of each `count` numbers of y by angles x of its head; halves if `choice` */
    OP_DELTA,       /* y: delta rule of `count` heads: queries x, keys v, values z, and where they have width betas s,
                     * decays t, by keys if `choice`, keys e that are read and f that are erased */
    OP_MLSTM,       /* y: values; y <- readout by queries x from the memory of `count` heads; keys z, gates v and s */
    OP_SLSTM,       /* x: inputs of the gates of all heads; y <- h, of `count` channels from `from` on (run.c); the
                     * forget gate is exponential if `choice` */
    OP_FIXED_POINT, /* y <- h, the fixed point of a vector-state layer; x: v, z: lambda; `iterated` */
    OP_MATRIX_FIXED_POINT, /* y <- the fixed point of a matrix-state layer; x: its input; `iterated` */
    OP_COUNT
} op_kind;

/* Rows of a chunk, so that they and the registers stay in cache. A batch may be larger, or not divide it: in all, a
 * stream has more than half as many. */
enum { CHUNK_ROWS = 96 };

/* A register: the place of its rows in the scratch memory, in numbers for each row, and their width. */
typedef struct {
    int64_t place, width;
} rows;

/* How to iterate to a fixed point (python/rotrnn/nn/fixed_points/iteration.py). */
typedef struct {
    double tol;
    int64_t most;            /* iterations */
    bool adaptive, quantile; /* rules of the step size, and of the end */
    bool accelerate;         /* steps are those of anderson.h */
    double floor;            /* added to the divisor of the residual; 0 for the least normal number */
} iteration;

/* A map of a step: its adjacent columns in the sums of all maps of one input and in their values; and the function
 * (LAGGED_) from a sum to a value. */
typedef struct {
    rows sums, values;
    int64_t at, width, function;
} columns;

enum { MOST_MAPS = 5 };

/* Further fields of an instruction that iterates: F(y) = carried + gain (y + Q (x - y)), normalised if `scale`. Weights
 * are like the weights of an instruction. */
typedef struct {
    iteration how;
    columns maps[MOST_MAPS];      /* of width 0 if there is none */
    rows room;                    /* memory for a step */
    mixing mixing;                /* of Q */
    double largest;               /* gain of the mixer: alpha = largest s(.) */
    double unit_eps;              /* least divisor of vectors by their length; mixer_gains.h changes the gains for it */
    const void *prepared, *alpha; /* of a mixer that does not depend on the input; otherwise NULL */
    bool direct;                  /* the fixed point is found directly (direct.h), not by iteration */
    bool scaled;                  /* a vector state's input is multiplied by 1 - |lambda| */
    bool negative;                /* transitions are in (-1, 1) */
    rows gate;                    /* F is multiplied by SiLU(gate), unless its width is 0 */
    rows sums;                    /* sums of the maps that depend on the previous output */
    int64_t driven;               /* from this column on, sums depend on it through V */
    const void *V;                /* packed; NULL if nothing depends on it */
    rows read;                    /* the previous output, normalised, which V multiplies, unless its width is 0 */
    const void *A, *skip, *scale, *bias;
    double eps; /* of the norm: an RMS norm if there is no bias */
} iterated;

/* The places of the maps; a vector state has those of the mixer alone. */
enum { MAP_DELTA, MAP_U, MAP_ALPHA, MAP_B, MAP_C };

/* Coefficients of a state of OP_DPLR_BANK, rows (2, D) each; after the gain of the first input come the gains of the
 * others. */
enum { DPLR_A, DPLR_P, DPLR_Q, DPLR_C, DPLR_GAIN };

/* One instruction: op_kind says what its rows, weights and numbers are. Weights have the program's dtype and the layout
 * of its implementation. */
typedef struct {
    op_kind kind;
    rows y, x, z, v, s, t, e, f;
    int64_t count;  /* states of a channel, heads, groups, taps, or inputs of a product */
    int64_t state;  /* place in a sequence's state, in bytes; if all steps are kept, in bytes per step */
    int64_t window; /* number of kept steps; 0 for all */
    int64_t kept;   /* bytes of a row that is kept of each step; 0 if not of all */
    int64_t from;   /* a first column; a number of pairs, ages, ranks or places; whether planes are halves */
    int64_t choice; /* selects a formula or a layout; or a number of groups, pairs or inputs */
    bool negative;  /* transitions a are replaced by 2 a - 1 */
    bool half;      /* the matrix of OP_DENSE is in bfloat16 */
    double eps;     /* of a norm; the least rate or radius; the typical length of a sequence */
    const void *w[4];
    const iterated *iterated;
} op;

/* Bounds of -log gamma_t, like in python/rotrnn/nn/instructions/rotations.py. */
#define SLOWEST_DECAY 1e-30
#define FASTEST_DECAY 1e3

/* Angles by age (python/rotrnn/ops/memory.py); by the step of a state, warped; none. Names of a line, the first four in
 * older files. */
enum { WROPE_UNIFORM, WROPE_WARPED, WROPE_BLEND, WROPE_BLEND_PRINTED, WROPE_REVERSED, WROPE_NONE };
#define WROPE_LINE_NAMES "uniform warped blend blend_printed"
#define WROPE_NAMES      WROPE_LINE_NAMES " reversed none"

typedef enum { POOL_NONE, POOL_MEAN, POOL_LAST } pool_kind;

typedef struct {
    op *ops;
    int64_t count;
    int64_t row;            /* numbers of scratch memory for a row: all registers */
    int64_t state_bytes;    /* of a sequence */
    int64_t step_bytes;     /* of a sequence, for each step of the capacity */
    rows x;                 /* the encoder's output, to which blocks add */
    rows last;              /* the head's input */
    const void *encoder[2]; /* packed weight, or table, and bias */
    const void *head[2];    /* packed weight and bias */
    int64_t inputs, outputs, width;
    bool tokens;
    bool half; /* the matrices, or table, of the encoder and the head are in bfloat16 */
    pool_kind pool;
    double cap;         /* of the logits; 0 for none */
    int64_t pool_state; /* place in a sequence's state: sums in double, or the last row */
} program;

/* Bytes of a sequence's state: first the parts of fixed size, then a block for each instruction that keeps all
 * steps. */
static inline bool state_size(const program *p, int64_t capacity, int64_t *bytes) {
    return !__builtin_mul_overflow(p->step_bytes, capacity, bytes) &&
           !__builtin_add_overflow(*bytes, p->state_bytes, bytes);
}

/* The data of a push. */
typedef struct {
    void *scratch, *state; /* state: (B, state_bytes) */
    int64_t room;          /* rows of a register */
    int64_t B, n;          /* sequences, and steps of the chunk */
    int64_t state_bytes;   /* of a sequence, in all */
    int64_t fixed_bytes;   /* of its parts that do not depend on the capacity */
    int64_t capacity;
} frame;

/* A push: n steps of input for each sequence, and the output for the logits. */
typedef struct {
    const void *features;
    const int32_t *tokens;
    const int64_t *lengths; /* of each sequence; NULL if all are n */
    void *output;
    int64_t n;
    bool last; /* logits of the last step of each sequence alone: output is (batch, outputs) */
} pushed;

/* The implementation of a dtype and instruction set. */
typedef struct implementation {
    const char *isa;
    size_t number; /* bytes of a number */
    int64_t (*packed)(int64_t out, int64_t in);
    void (*pack)(void *to, const double *w, int64_t out, int64_t in);      /* w (out, in) for a product */
    void (*pack_half)(void *to, const double *w, int64_t out, int64_t in); /* in bfloat16; NULL in double */
    void (*convert)(void *to, const double *from, int64_t count);
    void (*push)(const program *p, frame *f, const pushed *call);
} implementation;

#endif
