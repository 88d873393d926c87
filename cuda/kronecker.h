/* Kronecker's mixer for a warp: the functions of the same names in csrc/kernels/mixer.h, which includes this file.
 * There, loops over rows use vector registers. Here matrices are small, and each thread computes numbers of a product
 * by itself.
 */
#ifndef ROT_CUDA_KRONECKER_H
#define ROT_CUDA_KRONECKER_H

/* The numbers (i,j) of a matrix, at i columns + j, shared by the threads of the warp. */
#define EACH_OF_MATRIX(i, j, rows, columns)                                                                            \
    for (int64_t at = threadIdx.x % 32, i = 0, j = at; at < (rows) * (columns) && carry(i, j, columns);                \
         at += 32, j += 32)

ROT_DEVICE_ONLY bool carry(int64_t &i, int64_t &j, int64_t columns) {
    for (; j >= columns; j -= columns) i++;
    return true;
}

/* sum_k x[k x_apart] y[k y_apart] by one thread, in pieces */
ROT_DEVICE_ONLY real own_dot(const real *x, int64_t x_apart, const real *y, int64_t y_apart, int64_t n) {
    real total = 0;
    for (int64_t from = 0; from < n; from += MIX_SUMS) {
        real sum = 0;
        for (int64_t k = from; k < least(from + MIX_SUMS, n); k++) sum += x[k * x_apart] * y[k * y_apart];
        total += sum;
    }
    return total;
}

/* W (n,n), 1/|rows of U U^T| (n), U (n,n), its upper triangle given by rows times the power of two that follows (n):
 *   W = rownormalise(U U^T) */
ROT_DEVICE_ONLY void prepare_factor(real *w, const real *rows, int64_t n) {
    real *const inverse = w + n * n, *const U = inverse + n, *const product = U + n * n;
    const real power = power_of_row(rows, triangle(n));
    join_row();
    EACH_OF_MATRIX(i, j, n, n) U[i * n + j] = j < i ? 0 : power * rows[triangle(n) - triangle(n - i) + j - i];
    join_row();
    for (int64_t i = 0; i < n; i++) {
        EACH_OF_ROW(j, n) {
            const int64_t from = most(i, j);
            product[j] = own_dot(U + i * n + from, 1, U + j * n + from, 1, n - from);
        }
        set_one(inverse + i, normalise(w + i * n, product, n));
    }
    EACH_OF_ROW(j, n) product[j] = power;
    join_row();
}

/* rows += the gradient of the triangle, from dE for E = U U^T:  dU = (dE + dE^T) U.  The power by which U was
 * multiplied follows U. */
ROT_DEVICE_ONLY void adjoint_triangle(real *rows, const real *dE, const real *U, real *, int64_t n) {
    join_row();
    for (int64_t i = 0; i < n; rows += n - i, i++) EACH_OF_ROW(k, n - i) {
            const real *const column = U + i + k; /* zero below row i + k */
            rows[k] +=
                U[n * n] * (own_dot(dE + i * n, 1, column, n, i + k + 1) + own_dot(dE + i, n, column, n, i + k + 1));
        }
    join_row();
}

/* rows += the gradient of the triangle, from dW; dE (n,n) is scratch:
 *   E = U U^T,   dE_i = (dW_i - W_i (W_i . dW_i)) / |E_i| */
ROT_DEVICE_ONLY void adjoint_factor(real *rows, const real *dW, const real *w, real *dE, real *room, int64_t n) {
    const real *const inverse = w + n * n, *const U = inverse + n;
    join_row();
    for (int64_t i = 0; i < n; i++) {
        zero_row(dE + i * n, n);
        normalise_adjoint(dE + i * n, dW + i * n, w + i * n, inverse[i], n);
    }
    adjoint_triangle(rows, dE, U, room, n);
}

/* inner (a,b) = X Right^T without the right gains, and gained = diag(left) inner diag(right) */
ROT_DEVICE_ONLY void kronecker_inner(real *inner, real *gained, const real *x, const real *right_w, const real *left,
                                     const real *right, int64_t a, int64_t b) {
    join_row();
    EACH_OF_MATRIX(i, k, a, b) {
        inner[at] = own_dot(x + i * b, 1, right_w + k * b, 1, b);
        gained[at] = left[i] * inner[at] * right[k];
    }
    join_row();
}

ROT_DEVICE_ONLY void apply_kronecker(real *v, const real *w, const real *alpha, real *scratch, mixer m) {
    const int64_t a = m.R, b = mixer_columns(m);
    const real *const left_w = w, *const right_w = w + factor_room(a);
    real *const inner = scratch, *const gained = scratch + m.D;
    kronecker_inner(inner, gained, v, right_w, alpha, alpha + a, a, b);
    EACH_OF_MATRIX(p, k, a, b) v[at] -= 2 * own_dot(left_w + p, a, gained + k, b, a);
    join_row();
}

/* Q^T X = X - 2 Left X Right;  outer (a,b) = Left X diag(right) */
ROT_DEVICE_ONLY void apply_kronecker_transposed(real *v, const real *w, const real *alpha, real *scratch, mixer m) {
    const int64_t a = m.R, b = mixer_columns(m);
    const real *const left_w = w, *const right_w = w + factor_room(a);
    real *const outer = scratch;
    join_row();
    EACH_OF_MATRIX(i, k, a, b) outer[at] = alpha[i] * own_dot(left_w + i * a, 1, v + k, b, a) * alpha[a + k];
    join_row();
    EACH_OF_MATRIX(i, j, a, b) v[at] -= 2 * own_dot(outer + i * b, 1, right_w + j, b, b);
    join_row();
}

/* g <- Q^T g; du and dalpha are added to; v is the input of Q. With Y = Left^T X Right^T, dY = -2 g:
 *   dgained = W_left dY,  dinner = diag(left) dgained diag(right),  dX = dinner W_right
 *   dW_left = gained dY^T,  dW_right = dinner^T X,   `product` = inner dgained, whose sums are dalpha */
ROT_DEVICE_ONLY void adjoint_kronecker(real *g, real *du, real *dalpha, const real *v, const real *w, const real *alpha,
                                       real *scratch, mixer m) {
    const int64_t a = m.R, b = mixer_columns(m), D = m.D;
    const real *const left_w = w, *const right_w = w + factor_room(a), *const left = alpha, *const right = alpha + a;
    real *const inner = scratch, *const gained = inner + D, *const dinner = gained + D;
    real *const product = dinner + D, *const dW_left = product + D, *const dW_right = dW_left + a * a;
    real *const spare = dW_right + b * b; /* 2 (a a + b b) */
    kronecker_inner(inner, gained, v, right_w, left, right, a, b);
    EACH_OF_MATRIX(i, k, a, b) {
        const real dgained = -2 * own_dot(left_w + i * a, 1, g + k, b, a);
        product[at] = inner[at] * dgained;
        dinner[at] = left[i] * dgained * right[k];
    }
    EACH_OF_MATRIX(i, p, a, a) dW_left[at] = -2 * own_dot(gained + i * b, 1, g + p * b, 1, b);
    join_row();
    EACH_OF_ROW(i, a) dalpha[i] += own_dot(product + i * b, 1, right, 1, b);
    EACH_OF_ROW(k, b) dalpha[a + k] += own_dot(product + k, b, left, 1, a);
    EACH_OF_MATRIX(k, j, b, b) dW_right[at] = own_dot(dinner + k, b, v + j, b, a);
    EACH_OF_MATRIX(i, j, a, b) g[at] += own_dot(dinner + i * b, 1, right_w + j, b, b);
    join_row();
    adjoint_factor(du, dW_left, left_w, spare, spare + a * a, a);
    adjoint_factor(du + triangle(a), dW_right, right_w, spare, spare + b * b, b);
}

#endif
