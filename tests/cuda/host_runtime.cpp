/* The twin of cuda/runtime.cu for the harness: memory and matrix products on the host. */
#include "runtime.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "host_traffic.h"
#include "real.h"

namespace {
struct {
    int precision, status;
    runtime_allocate allocate;
    void *context;
    char error[256];
} thread_local current;
thread_local const int64_t *counter = nullptr;
} // namespace

void runtime_launched(const char *error) {
    if (!error || current.status != ROT_OK) return;
    snprintf(current.error, sizeof current.error, "%s", error);
    current.status = ROT_DEVICE_FAILED;
}

void runtime_begin(void *, int precision, runtime_allocate allocate, void *context) {
    current = {precision, ROT_OK, allocate, context, ""};
}
void runtime_use_counter(const int64_t *given) { counter = given; }
const int64_t *runtime_counter(void) { return counter; }
int runtime_status(void) { return current.status; }
int runtime_precision(void) { return current.precision; }
const char *runtime_error(void) { return current.error; }
int runtime_device(void) { return 0; }
bool runtime_runs(void) { return true; }
void runtime_use_blas(const char *) {}

bool runtime_can_launch(int64_t blocks) {
    if (blocks > INT_MAX) runtime_launched("more blocks than a grid may have: the arrays are too large");
    return current.status == ROT_OK && blocks > 0;
}

void *runtime_memory(int64_t bytes) {
    if (current.status != ROT_OK) return nullptr;
    void *const memory = bytes < 0 ? nullptr : current.allocate(current.context, (size_t)(bytes ? bytes : 1));
    if (!memory) current.status = ROT_NO_MEMORY;
    return memory;
}
void runtime_zero(void *memory, int64_t bytes) {
    if (current.status != ROT_OK || !bytes) return;
    traffic::operation({(const void *)runtime_zero, 0, bytes, bytes, 0});
    memset(memory, 0, (size_t)bytes);
}
void runtime_copy(void *to, const void *from, int64_t bytes) {
    if (current.status != ROT_OK || !bytes) return;
    traffic::operation({(const void *)runtime_copy, bytes, bytes, 2 * bytes, 0});
    memcpy(to, from, (size_t)bytes);
}

namespace {
/* A number as an operand of a product. */
float rounded(float x) {
    if (current.precision == PRECISION_TF32) return to_tf32(x);
    if (current.precision == PRECISION_BF16) return bf16_value(bf16_bits(x));
    return x;
}
double operand(double x) { return x; }
float operand(float x) { return rounded(x); }
float operand(uint16_t bits) { return bf16_value(bits); }

/* A sum, in the kind of the operands, as a number of the result. */
void store(double *c, double sum) { *c = sum; }
void store(float *c, float sum) { *c = sum; }
void store(uint16_t *c, float sum) { *c = (uint16_t)bf16_bits(sum); }
double stored(double c) { return c; }
float stored(float c) { return c; }
float stored(uint16_t c) { return bf16_value(c); }

/* c of C, operands stored as S */
template <class C, class S> void multiply(const runtime_product *p) {
    for (int64_t g = 0; g < p->count; g++) {
        const S *const a = (const S *)p->a + g * p->a_apart, *const b = (const S *)p->b + g * p->b_apart;
        C *const c = (C *)p->c + g * p->c_apart;
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->columns; j++) {
                decltype(operand(S())) sum = p->keep ? stored(c[i * p->ldc + j]) : 0;
                for (int64_t k = 0; k < p->inner; k++) {
                    const S x = p->a_turned ? a[k * p->lda + i] : a[i * p->lda + k];
                    const S y = p->b_turned ? b[j * p->ldb + k] : b[k * p->ldb + j];
                    sum += operand(x) * operand(y);
                }
                store(c + i * p->ldc + j, sum);
            }
    }
}

/* What the best product would move: each operand once, and the result. A matrix that all products share is one. */
traffic::launch moved_by(const runtime_product *p) {
    const int64_t size = p->wide ? 8 : p->bf16 ? 2 : 4, number = p->wide ? 8 : p->bf16_result ? 2 : 4;
    const int64_t result = number * p->count * p->rows * p->columns;
    const int64_t a = size * p->rows * p->inner * (p->a_apart ? p->count : 1);
    const int64_t b = size * p->inner * p->columns * (p->b_apart ? p->count : 1);
    const int64_t read = a + b + (p->keep ? result : 0);
    return {(const void *)runtime_multiply, read, result, read + result,
            2 * p->count * p->rows * p->columns * p->inner};
}
} // namespace

/* Why cublasGemmStridedBatchedEx would refuse a product that runtime.cu gives it (cuBLAS's manual, section 2.8), or
 * NULL. It is column-major, so that the leading dimensions are between our rows. */
extern "C" __attribute__((visibility("default"))) const char *host_product_fault(const runtime_product *p) {
    const int64_t sizes[] = {p->rows, p->columns, p->inner, p->count, p->lda, p->ldb, p->ldc};
    for (const int64_t size : sizes)
        if (size < 1 || size > INT_MAX) return "cuBLAS: a size or a leading dimension is not from 1 to INT_MAX";
    if (p->lda < (p->a_turned ? p->rows : p->inner)) return "cuBLAS: lda is less than a row of a";
    if (p->ldb < (p->b_turned ? p->inner : p->columns)) return "cuBLAS: ldb is less than a row of b";
    if (p->ldc < p->columns) return "cuBLAS: ldc is less than a row of c";
    if (p->count > 1 && p->c_apart < (p->rows - 1) * p->ldc + p->columns) return "cuBLAS: results overlap";
    if (p->a_apart < 0 || p->b_apart < 0) return "cuBLAS: a stride is negative";
    if (p->wide && p->bf16) return "cuBLAS: operands of bfloat16 have no result in double";
    if (p->bf16_result && !p->bf16) return "cuBLAS: a result in bfloat16 needs operands of bfloat16";
    const uintptr_t type = p->wide ? 8 : 4, operand = p->bf16 ? 2 : type, result = p->bf16_result ? 2 : type;
    if ((uintptr_t)p->a % operand || (uintptr_t)p->b % operand || (uintptr_t)p->c % result)
        return "cuBLAS: an address is not a multiple of a number's size";
    return nullptr;
}

void runtime_multiply(const runtime_product *p) {
    if (!p->rows || !p->columns || !p->count || current.status != ROT_OK) return;
    if (const char *const fault = host_product_fault(p)) return runtime_launched(fault);
    traffic::operation(moved_by(p));
    if (p->wide)
        multiply<double, double>(p);
    else if (p->bf16_result)
        multiply<uint16_t, uint16_t>(p);
    else if (p->bf16)
        multiply<float, uint16_t>(p);
    else
        multiply<float, float>(p);
}
