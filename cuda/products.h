/* Products of float32 matrices by kernels of our own, on tensor cores: rows of sequences times weights, without those
 * that are padding. The matrix library would multiply them, too. */
#ifndef ROT_CUDA_PRODUCTS_H
#define ROT_CUDA_PRODUCTS_H

#include "device.h"

/* Rows of a matrix: step t of sequence b is row b T + t, and those from lengths[b] on, which are never read, are
 * padding. lengths (B) or NULL: there is none. */
struct sequences {
    int64_t B, T;
    const int64_t *lengths;
};

/* How operands are stored: both as float, or both as bfloat16. Results are float. */
enum storage { STORED_FLOAT, STORED_BF16 };

/* Seconds of a row of a product with weights (out,in), in the call's precision, by counts of what it moves and computes
 * on an H100: of the library's, and of those below where it is no padding. From the shapes alone. */
struct product_seconds {
    double library, own;
};
product_seconds count_product(storage stored, sequences rows, int64_t in, int64_t out);

/* Whether to take those below: for rows that may be padding, where the count says that it pays. */
bool rows_product_pays(storage stored, sequences rows, int64_t in, int64_t out);

/* y (rows,out) = x w^T for x (rows,in), w (out,in). Rows of y that are padding are not written. */
void project_rows(float *y, const void *x, const void *w, storage stored, sequences rows, int64_t in, int64_t out);

/* dx (rows,in) = dy w for dy (rows,out), likewise */
void project_rows_adjoint(float *dx, const void *dy, const void *w, storage stored, sequences rows, int64_t in,
                          int64_t out);

/* dw (out,in) = dy^T x, the sum over rows that are no padding */
void rows_weight_gradient(float *dw, const void *dy, const void *x, storage stored, sequences rows, int64_t in,
                          int64_t out);

#endif
