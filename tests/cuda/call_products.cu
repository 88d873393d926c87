/* Calls cuda/products.cu in the harness: a library for ctypes (test_products_on_harness.py). */
#include <string.h>

#include <memory>
#include <vector>

#include "products.h"

static std::vector<std::unique_ptr<char[]>> memory; /* of one call */

static void *allocate(void *, size_t bytes) {
    memory.emplace_back(new char[bytes]);
    return memset(memory.back().get(), 0xff, bytes); /* NaN */
}

#define CALLED extern "C" __attribute__((visibility("default")))

CALLED bool product_pays(int precision, bool halves, int64_t B, int64_t T, const int64_t *lengths, int64_t in,
                         int64_t out) {
    runtime_begin(nullptr, precision, allocate, nullptr);
    return rows_product_pays(halves ? STORED_BF16 : STORED_FLOAT, {B, T, lengths}, in, out);
}

/* Those of count_product */
CALLED void count(double *seconds, int precision, bool halves, int64_t T, int64_t in, int64_t out) {
    runtime_begin(nullptr, precision, allocate, nullptr);
    const product_seconds row = count_product(halves ? STORED_BF16 : STORED_FLOAT, {1, T, nullptr}, in, out);
    seconds[0] = row.library, seconds[1] = row.own;
}

/* The product `form`, "y", "dx" or "dw", of a and b. Returns NULL, or why it failed. */
CALLED const char *call_products(const char *form, int precision, bool halves, float *c, const void *a, const void *b,
                                 int64_t B, int64_t T, const int64_t *lengths, int64_t in, int64_t out) {
    const sequences rows = {B, T, lengths};
    const storage stored = halves ? STORED_BF16 : STORED_FLOAT;
    runtime_begin(nullptr, precision, allocate, nullptr);
    if (!strcmp(form, "y"))
        project_rows(c, a, b, stored, rows, in, out);
    else if (!strcmp(form, "dx"))
        project_rows_adjoint(c, a, b, stored, rows, in, out);
    else
        rows_weight_gradient(c, a, b, stored, rows, in, out);
    memory.clear();
    return runtime_status() ? runtime_error() : nullptr;
}
