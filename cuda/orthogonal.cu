/* Rotations P = expm(M - M^T) on a GPU, and the adjoint, in double for every dtype (csrc/kernels/orthogonal.c has the
 * method).
 *
 * The method is a sequence of stages, each of which computes matrices from the matrices of earlier stages. For a small
 * matrix one block runs all stages. For a larger matrix, blocks compute tiles, and each stage is a launch. The number
 * of squarings depends on data that the host does not see: surplus launches do nothing, and if a matrix needs more than
 * LAUNCHED squarings, one block does the rest.
 *
 * A number of M beyond ORTHOGONAL_LARGEST makes the result NaN, because the host cannot raise an error in time.
 */
#include "device.h"

#include "orthogonal.h"

enum {
    TILE = 32,         /* rows and columns of a tile */
    SIDE = 8,          /* of the block's square of threads */
    OWN = TILE / SIDE, /* rows and columns of a thread's part */
    THREADS = SIDE * SIDE,
    HORNER = TERMS / 2 - 1, /* steps of the series, two terms each, after the first two terms */
    LAUNCHED = 8,
    SQUARINGS = 64, /* LAUNCHED: squarings with a launch each; SQUARINGS: an upper bound */
};
enum { LOAD, SQUARE, SCALE, SERIES, BACK = SERIES + HORNER, DEFECT = BACK + SQUARINGS, STORE, STAGES };

/* Matrices (G,n,n), or of one g. E and dE swap buffers at each step. norms (G, tiles): of X's tiles; squarings (G).
 * With dA the result is dE, else E. */
struct stack {
    int64_t n;
    double *A, *X, *E[2], *dA, *dX, *dE[2], *norms;
    int *squarings;
    const real *M, *dP;
    real *out;
    double sign;
};

/* One of a pair, without an index: a variable index would keep the pair in memory. */
ROT_DEVICE_ONLY double *one_of(double *const *pair, bool second) { return second ? pair[1] : pair[0]; }

/* A tile, and a thread's numbers in it: rows and columns SIDE apart. */
struct tile {
    int64_t row, column;
    double sum[OWN][OWN];
};

/* Tiles of the operands of a product. */
struct operands {
    double x[TILE][TILE + 1], y[TILE][TILE + 1], scratch[32];
};

/* use(i, j, sum) for each of the thread's numbers in the matrix, with the tile's own sum */
template <class F> ROT_DEVICE_ONLY void each_own(tile &t, int64_t n, F use) {
#pragma unroll
    for (int a = 0; a < OWN; a++)
#pragma unroll
        for (int b = 0; b < OWN; b++) {
            const int64_t i = t.row + threadIdx.x / SIDE + a * SIDE, j = t.column + threadIdx.x % SIDE + b * SIDE;
            if (i < n && j < n) use(i, j, t.sum[a][b]);
        }
}

ROT_DEVICE_ONLY void clear(tile &t) {
#pragma unroll
    for (int a = 0; a < OWN; a++)
#pragma unroll
        for (int b = 0; b < OWN; b++) t.sum[a][b] = 0;
}

/* sum += x y, or x^T y if `turned` */
ROT_DEVICE_ONLY void add_product(tile &t, const double *x, const double *y, int64_t n, bool turned = false) {
    operands &s = shared_memory<operands>();
    const int r = (int)threadIdx.x / SIDE, c = (int)threadIdx.x % SIDE;
    for (int64_t k0 = 0; k0 < n; k0 += TILE) {
        const int some = (int)least(n - k0, TILE);
        __syncthreads();
        for (int at = (int)threadIdx.x; at < TILE * TILE; at += THREADS) {
            const int64_t i = at / TILE, k = at % TILE, row = t.row + i, column = k0 + k;
            s.x[i][k] = row < n && column < n ? x[turned ? column * n + row : row * n + column] : 0;
            s.y[i][k] = k0 + i < n && t.column + k < n ? y[(k0 + i) * n + t.column + k] : 0;
        }
        __syncthreads();
        for (int k = 0; k < some; k++) {
            double right[OWN];
#pragma unroll
            for (int b = 0; b < OWN; b++) right[b] = s.y[k][c + b * SIDE];
#pragma unroll
            for (int a = 0; a < OWN; a++)
#pragma unroll
                for (int b = 0; b < OWN; b++) t.sum[a][b] += s.x[r + a * SIDE][k] * right[b];
        }
    }
}

/* y = sum + factor x + unit I; clears the sum */
ROT_DEVICE_ONLY void finish(tile &t, double *y, double factor, const double *x, double unit, int64_t n) {
    each_own(t, n, [&](int64_t i, int64_t j, double sum) {
        y[i * n + j] = sum + (factor != 0 ? factor * x[i * n + j] : 0) + (i == j ? unit : 0);
    });
    clear(t);
}

/* A number of M, or NaN */
ROT_DEVICE_ONLY double in_range(real x) { return fabs((double)x) <= ORTHOGONAL_LARGEST ? (double)x : (double)NAN; }

ROT_DEVICE_ONLY void load(const stack &s, tile &t) {
    const int64_t n = s.n;
    each_own(t, n, [&](int64_t i, int64_t j, double) {
        s.A[i * n + j] = s.sign * (in_range(s.M[i * n + j]) - in_range(s.M[j * n + i]));
        if (s.dA) s.dA[i * n + j] = (double)s.dP[i * n + j];
    });
}

/* X = A^2 and dX, and this tile's part of |X|^2 */
ROT_DEVICE_ONLY void square(const stack &s, tile &t, double *norm) {
    const int64_t n = s.n;
    double own = 0;
    add_product(t, s.A, s.A, n);
    each_own(t, n, [&](int64_t, int64_t, double sum) { own += sum * sum; });
    finish(t, s.X, 0, NULL, 0, n);
    own = block_sum(own, shared_memory<operands>().scratch, THREADS);
    if (threadIdx.x == 0) *norm = own;
    if (!s.dA) return;
    add_product(t, s.dA, s.A, n);
    add_product(t, s.A, s.dA, n);
    finish(t, s.dX, 0, NULL, 0, n);
}

/* 1 / k! */
ROT_DEVICE_ONLY double inverse_factorial(int k) {
    double inverse = 1;
    for (int i = 2; i <= k; i++) inverse /= i;
    return inverse;
}

/* Halvings of A, and the first terms of the series. Every block computes the number of halvings. */
ROT_DEVICE_ONLY void scale(const stack &s, tile &t, int64_t count) {
    const int64_t n = s.n;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += THREADS) sum += s.norms[i];
    const int squarings = halvings_of(block_sum(sum, shared_memory<operands>().scratch, THREADS));
    const double half = ldexp(1.0, -squarings), last = inverse_factorial(TERMS - 1);
    if (t.row == 0 && t.column == 0 && threadIdx.x == 0) *s.squarings = squarings;
    each_own(t, n, [&](int64_t i, int64_t j, double) {
        const int64_t at = i * n + j;
        s.A[at] *= half, s.X[at] *= half * half;
        s.E[0][at] = last * s.A[at] + (i == j ? inverse_factorial(TERMS - 2) : 0);
        if (s.dA) s.dA[at] *= half, s.dX[at] *= half * half, s.dE[0][at] = last * s.dA[at];
    });
}

/* E <- E X + its next two terms, two powers of A lower; dE by the product rule. */
ROT_DEVICE_ONLY void add_terms(const stack &s, tile &t, int step) {
    const int64_t n = s.n;
    const int k = TERMS - 4 - 2 * step, from = step % 2;
    add_product(t, s.X, one_of(s.E, from), n);
    finish(t, one_of(s.E, !from), inverse_factorial(k + 1), s.A, inverse_factorial(k), n);
    if (!s.dA) return;
    add_product(t, s.dX, one_of(s.E, from), n);
    add_product(t, s.X, one_of(s.dE, from), n);
    finish(t, one_of(s.dE, !from), inverse_factorial(k + 1), s.dA, 0, n);
}

/* E <- E^2 */
ROT_DEVICE_ONLY void square_back(const stack &s, tile &t, int from) {
    const int64_t n = s.n;
    const double *const E = one_of(s.E, from), *const dE = one_of(s.dE, from);
    add_product(t, E, E, n);
    finish(t, one_of(s.E, !from), 0, NULL, 0, n);
    if (!s.dA) return;
    add_product(t, E, dE, n);
    add_product(t, dE, E, n);
    finish(t, one_of(s.dE, !from), 0, NULL, 0, n);
}

/* X = (I - E^T E) / 2 of Newton's step, which is E + E X */
ROT_DEVICE_ONLY void defect(const stack &s, tile &t, const double *E) {
    add_product(t, E, E, s.n, true);
    each_own(t, s.n, [&](int64_t i, int64_t j, double sum) { s.X[i * s.n + j] = -0.5 * sum + (i == j ? 0.5 : 0); });
    clear(t);
}

ROT_DEVICE_ONLY void store(const stack &s, tile &t, const double *E, const double *dE) {
    const int64_t n = s.n;
    if (!s.dA) add_product(t, E, s.X, n);
    each_own(t, n, [&](int64_t i, int64_t j, double sum) {
        s.out[i * n + j] = (real)(s.dA ? dE[i * n + j] - dE[j * n + i] : E[i * n + j] + sum);
    });
}

/* The matrices of g. */
ROT_DEVICE_ONLY stack matrix_of(stack s, int64_t g, int64_t count) {
    const int64_t at = g * s.n * s.n;
    s.A += at, s.X += at, s.E[0] += at, s.E[1] += at;
    if (s.dA) s.dA += at, s.dX += at, s.dE[0] += at, s.dE[1] += at, s.dP += at;
    s.norms += g * count, s.squarings += g, s.M += at, s.out += at;
    return s;
}

/* Stages from..to-1, with `blocks` blocks for each matrix. */
GLOBAL(THREADS) run_stages(stack all, int64_t blocks, int from, int to) {
    const int64_t side = pieces_of(all.n, TILE), count = side * side;
    const stack s = matrix_of(all, blockIdx.x / blocks, count);
    for (int stage = from; stage < to; stage++) {
        const int squarings = stage < BACK ? 0 : *s.squarings, last = (HORNER + squarings) % 2;
        if (stage >= BACK + squarings && stage < DEFECT) continue;
        for (int64_t i = blockIdx.x % blocks; i < count; i += blocks) {
            tile t;
            t.row = i / side * TILE, t.column = i % side * TILE;
            clear(t);
            if (stage == LOAD)
                load(s, t);
            else if (stage == SQUARE)
                square(s, t, s.norms + i);
            else if (stage == SCALE)
                scale(s, t, count);
            else if (stage < BACK)
                add_terms(s, t, stage - SERIES);
            else if (stage < DEFECT)
                square_back(s, t, (HORNER + stage - BACK) % 2);
            else if (stage == STORE)
                store(s, t, one_of(s.E, last), one_of(s.dE, last));
            else if (!s.dA)
                defect(s, t, one_of(s.E, last));
        }
        __syncthreads();
    }
}

/* out (G,n,n); dP for the derivative, or NULL */
static int exponential(real *out, const real *M, const real *dP, int64_t G, int64_t n, double sign) {
    stack s = {};
    s.n = n, s.M = M, s.dP = dP, s.out = out, s.sign = sign;
    const int64_t tiles_of_one = pieces_of(n, TILE) * pieces_of(n, TILE);
    double **const matrices[] = {&s.A, &s.X, &s.E[0], &s.E[1], &s.dA, &s.dX, &s.dE[0], &s.dE[1]};
    for (int i = 0; i < (dP ? 8 : 4); i++) *matrices[i] = workspace_of<double>(G, n, n);
    s.norms = workspace_of<double>(G, tiles_of_one);
    s.squarings = workspace_of<int>(G);
    const size_t shared = sizeof(operands);
    if (n <= TILE) {
        launch(run_stages, n ? G : 0, THREADS, shared, s, (int64_t)1, (int)LOAD, (int)STAGES);
        return runtime_status();
    }
    for (int stage = LOAD; stage < STAGES; stage++) {
        const bool rest = stage == BACK + LAUNCHED;
        const int to = rest ? (int)DEFECT : stage + 1;
        const int64_t blocks = rest ? 1 : tiles_of_one;
        launch(run_stages, G * blocks, THREADS, shared, s, blocks, stage, to);
        stage = to - 1;
    }
    return runtime_status();
}

KERNEL(orthogonal_forward) { return exponential(P, M, NULL, G, n, 1); }

/* The derivative of the exponential at (M - M^T)^T is the adjoint of the derivative at M - M^T. */
KERNEL(orthogonal_backward) { return exponential(dM, M, dP, G, n, -1); }
