/* Rotations P = expm(M - M^T) of square matrices, and the adjoint; computed in double for every dtype.
 *
 * Only matrix products, each matrix by one thread in one order: unlike LAPACK's, results have the same bits for any
 * number of threads. Matrices are padded in the workspace, rows to a multiple of TILE and columns to a multiple of
 * DOUBLES; the padding does not affect results.
 */
#include <math.h>
#include <string.h>

#include "cuts.h"
#include "kernels.h"
#include "orthogonal.h"
#include "stop.h"
#include "vector.h"
#include "workspace.h"

enum {
    DOUBLES = VECTOR_BYTES / sizeof(double),
    TILE = 4,         /* rows of a product computed at once */
    SERIAL = 1 << 15, /* numbers of all products below which one thread is used */
};
typedef double doubles __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(double)), may_alias));

/* Workspace of one matrix: its size n, and buffers (rows, row); `next` and `dnext` receive the new E and dE. */
typedef struct {
    int64_t n, rows, row;
    double *A, *X, *E, *next, *dA, *dX, *dE, *dnext;
} task;

enum { BUFFERS = 8 };

static int64_t padded(int64_t n, int64_t to) { return pieces_of(n, to) * to; }

static double *new_tasks(int64_t G, int64_t n) {
    return WORKSPACE(double, G, BUFFERS, padded(n, TILE), padded(n, DOUBLES));
}

/* The task of matrix g in the workspace, all zero. */
static task task_of(double *work, int64_t g, int64_t n) {
    const int64_t rows = padded(n, TILE), row = padded(n, DOUBLES), size = rows * row;
    double *const at = work + g * BUFFERS * size;
    memset(at, 0, (size_t)(BUFFERS * size) * sizeof(double));
    return (task){.n = n,
                  .rows = rows,
                  .row = row,
                  .A = at,
                  .X = at + size,
                  .E = at + 2 * size,
                  .next = at + 3 * size,
                  .dA = at + 4 * size,
                  .dX = at + 5 * size,
                  .dE = at + 6 * size,
                  .dnext = at + 7 * size};
}

/* y += x w */
static void add_product(const task *t, double *restrict y, const double *x, const double *w) {
    const int64_t row = t->row;
    for (int64_t i = 0; i < t->rows; i += TILE) {
        for (int64_t j = 0; j < row; j += DOUBLES) {
            doubles sum[TILE];
            for (int r = 0; r < TILE; r++) sum[r] = *(const doubles *)(y + (i + r) * row + j);
            for (int64_t k = 0; k < t->n; k++) {
                const doubles b = *(const doubles *)(w + k * row + j);
                for (int r = 0; r < TILE; r++) sum[r] += x[(i + r) * row + k] * b;
            }
            for (int r = 0; r < TILE; r++) *(doubles *)(y + (i + r) * row + j) = sum[r];
        }
    }
}

static void multiply(const task *t, double *restrict y, const double *x, const double *w) {
    memset(y, 0, (size_t)(t->rows * t->row) * sizeof(double));
    add_product(t, y, x, w);
}

/* y = factor x + unit I */
static void affine(const task *t, double *y, double factor, const double *x, double unit) {
    for (int64_t i = 0; i < t->rows * t->row; i++) y[i] = factor * x[i];
    for (int64_t i = 0; i < t->n; i++) y[i * t->row + i] += unit;
}

static void swap(double **x, double **y) {
    double *const other = *x;
    *x = *y;
    *y = other;
}

static int halvings(const task *t) {
    double sum = 0;
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t j = 0; j < t->n; j++) sum += t->X[i * t->row + j] * t->X[i * t->row + j];
    return halvings_of(sum);
}

/* E = expm(A) for A = -A^T, and dE, its Frechet derivative in direction dA, if `derivative`. A and dA are overwritten.
 *
 * Scaling and squaring of the series sum_k A^k / k!, by Horner's rule in X = A^2 with two terms per coefficient.
 * The derivative follows by the product rule. */
static void expm(task *t, bool derivative) {
    double inverse[TERMS] = {1}; /* of k! */
    for (int k = 1; k < TERMS; k++) inverse[k] = inverse[k - 1] / k;
    multiply(t, t->X, t->A, t->A);
    const int squarings = halvings(t);
    const double half = ldexp(1, -squarings);
    affine(t, t->A, half, t->A, 0);
    affine(t, t->X, half * half, t->X, 0);
    affine(t, t->E, inverse[TERMS - 1], t->A, inverse[TERMS - 2]);
    if (derivative) {
        affine(t, t->dA, half, t->dA, 0);
        multiply(t, t->dX, t->dA, t->A);
        add_product(t, t->dX, t->A, t->dA);
        affine(t, t->dE, inverse[TERMS - 1], t->dA, 0);
    }
    for (int k = TERMS - 4; k >= 0; k -= 2) {
        if (derivative) {
            affine(t, t->dnext, inverse[k + 1], t->dA, 0);
            add_product(t, t->dnext, t->dX, t->E);
            add_product(t, t->dnext, t->X, t->dE);
            swap(&t->dE, &t->dnext);
        }
        affine(t, t->next, inverse[k + 1], t->A, inverse[k]);
        add_product(t, t->next, t->X, t->E);
        swap(&t->E, &t->next);
    }
    for (int k = 0; k < squarings; k++) {
        if (derivative) {
            multiply(t, t->dnext, t->E, t->dE);
            add_product(t, t->dnext, t->dE, t->E);
            swap(&t->dE, &t->dnext);
        }
        multiply(t, t->next, t->E, t->E);
        swap(&t->E, &t->next);
    }
}

/* A = sign (m - m^T), m (n,n) */
static void load_skew(const task *t, const real *restrict m, double sign) {
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t j = 0; j < t->n; j++)
            t->A[i * t->row + j] = sign * ((double)m[i * t->n + j] - (double)m[j * t->n + i]);
}

/* E <- E (3 I - E^T E) / 2 = E + E (I - E^T E) / 2, which squares the error I - E^T E of orthogonality. */
static void newton(task *t) {
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t j = 0; j < t->n; j++) t->A[i * t->row + j] = t->E[j * t->row + i];
    multiply(t, t->X, t->A, t->E);
    affine(t, t->X, -0.5, t->X, 0.5);
    affine(t, t->next, 1, t->E, 0);
    add_product(t, t->next, t->E, t->X);
    swap(&t->E, &t->next);
}

/* Whether squaring back loses no more than a Newton step restores; false for NaN. */
static bool in_range(const real *M, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)M[i]) <= ORTHOGONAL_LARGEST)) return false;
    return true;
}

/* P (G,n,n) = expm(M - M^T) after one Newton step; M (G,n,n), its numbers at most ORTHOGONAL_LARGEST in magnitude. */
KERNEL(orthogonal_forward) {
    if (!in_range(M, G * n * n)) return ROT_OUT_OF_RANGE;
    double *const work = new_tasks(G, n);
    if (!work) return ROT_NO_MEMORY;
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (G * n * n * n > SERIAL)
    for (int64_t g = 0; g < G; g++) {
        if (stopped(stop)) continue;
        task t = task_of(work, g, n);
        load_skew(&t, M + g * n * n, 1);
        expm(&t, false);
        newton(&t);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) P[(g * n + i) * n + j] = (real)t.E[i * t.row + j];
    }
    pool_give(work);
    return ROT_OK;
}

/* dM = L - L^T with L the Frechet derivative of expm at (M - M^T)^T in direction dP; dM, dP, M (G,n,n).
 *
 * This derivative is the adjoint of the derivative at M - M^T. The Newton step needs no adjoint: it is the identity on
 * orthogonal matrices, and the part of dP normal to them, P times a symmetric matrix, adds a symmetric matrix to L,
 * which cancels in L - L^T. */
KERNEL(orthogonal_backward) {
    if (!in_range(M, G * n * n)) return ROT_OUT_OF_RANGE;
    double *const work = new_tasks(G, n);
    if (!work) return ROT_NO_MEMORY;
    rot_stop *const stop = stop_of_call();
#pragma omp parallel for schedule(static) if (G * n * n * n > SERIAL)
    for (int64_t g = 0; g < G; g++) {
        if (stopped(stop)) continue;
        task t = task_of(work, g, n);
        load_skew(&t, M + g * n * n, -1);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) t.dA[i * t.row + j] = (double)dP[(g * n + i) * n + j];
        expm(&t, true);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) dM[(g * n + i) * n + j] = (real)(t.dE[i * t.row + j] - t.dE[j * t.row + i]);
    }
    pool_give(work);
    return ROT_OK;
}
