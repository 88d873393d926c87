/* The host side of CUDA: stream, memory, errors and cuBLAS for the call of this thread (runtime.h). */
#include "runtime.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <mutex>

#include "real.h"

namespace {

struct call {
    cudaStream_t stream;
    int precision, status;
    runtime_allocate allocate;
    void *context, *workspace; /* for cuBLAS, once a call */
    char error[256];
};
thread_local call now;
thread_local const int64_t *counter = nullptr;

void fail(const char *what, const char *why) {
    if (now.status != ROT_OK) return;
    now.status = ROT_DEVICE_FAILED;
    snprintf(now.error, sizeof now.error, "%s: %s", what, why);
}

void fail_with_status(const char *what, int status) {
    char why[32];
    snprintf(why, sizeof why, "status %d", status);
    fail(what, why);
}

void check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    cudaGetLastError(); /* clears the error: later calls would report it again */
    fail(what, cudaGetErrorString(error));
}

/* Whether a question outside of a call has an answer; else this is the failure, and no longer that of the last call. */
bool succeeds(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return true;
    now.status = ROT_OK;
    check(error, what);
    return false;
}

__global__ void empty_kernel() {}

/* ---- cuBLAS: only these functions are needed. It is loaded at the first product, from CuPy's copy ---- */

enum { FLOAT32 = 0, FLOAT64 = 1, BFLOAT16 = 14 };                                          /* cudaDataType_t */
enum { COMPUTE_32F = 68, COMPUTE_32F_BF16 = 75, COMPUTE_32F_TF32 = 77, COMPUTE_64F = 70 }; /* cublasComputeType_t */
enum { KEEP = 0, TURN = 1, DEFAULT_ALGORITHM = -1, WORKSPACE_BYTES = 32 << 20, MOST_DEVICES = 64, MOST_SPARE = 64 };
enum { SUMS_IN_COMPUTE_TYPE = 16 }; /* cublasMath_t: parts of a sum are not rounded to the result's type */
typedef void *handle;

struct library {
    int (*create)(handle *);
    int (*set_stream)(handle, cudaStream_t);
    int (*set_workspace)(handle, void *, size_t);
    int (*set_math)(handle, int);
    int (*multiply)(handle, int, int, int, int, int, const void *, const void *, int, int, long long, const void *, int,
                    int, long long, const void *, void *, int, int, long long, int, int, int);
};
char blas_path[4096] = "libcublas.so.13";
library blas;
bool blas_loaded = false;

/* Handles of threads that ended, for other threads: cublasDestroy would wait for the device. */
std::mutex shelf; /* guards the library and what follows */
handle spare[MOST_DEVICES][MOST_SPARE];
int spares[MOST_DEVICES];

/* This thread's handles, one for each device */
struct thread_handles {
    handle of[MOST_DEVICES] = {};
    ~thread_handles() {
        const std::lock_guard<std::mutex> lock(shelf);
        for (int device = 0; device < MOST_DEVICES; device++)
            if (of[device] && spares[device] < MOST_SPARE) spare[device][spares[device]++] = of[device];
    }
};
thread_local thread_handles handles;

template <class F> bool load(void *from, F &function, const char *name) {
    function = (F)dlsym(from, name);
    if (!function) fail(name, "cuBLAS has no such function");
    return function != nullptr;
}

bool load_blas() {
    if (blas_loaded) return true;
    void *const from = dlopen(blas_path, RTLD_NOW | RTLD_LOCAL);
    if (!from) {
        fail("cuBLAS", dlerror());
        return false;
    }
    blas_loaded = load(from, blas.create, "cublasCreate_v2") && load(from, blas.set_stream, "cublasSetStream_v2") &&
                  load(from, blas.set_workspace, "cublasSetWorkspace_v2") &&
                  load(from, blas.set_math, "cublasSetMathMode") &&
                  load(from, blas.multiply, "cublasGemmStridedBatchedEx");
    return blas_loaded;
}

/* Gives this thread a handle on a device, if it has none. */
bool take_handle(int device) {
    const std::lock_guard<std::mutex> lock(shelf);
    handle &mine = handles.of[device];
    if (mine) return true;
    if (!load_blas()) return false;
    if (spares[device])
        mine = spare[device][--spares[device]];
    else if (const int status = blas.create(&mine))
        fail_with_status("cublasCreate", status), mine = nullptr;
    return mine != nullptr;
}

/* This thread's handle on the current device, with the call's stream and workspace: results repeat bit for bit, and
 * products can be captured. */
handle blas_handle() {
    const int device = runtime_device();
    if (device >= MOST_DEVICES) fail("cuBLAS", "the current GPU's number is too large");
    if (device < 0 || device >= MOST_DEVICES || !take_handle(device)) return nullptr;
    handle const mine = handles.of[device];
    if (now.workspace) return mine;
    now.workspace = runtime_memory(WORKSPACE_BYTES);
    if (!now.workspace) return nullptr;
    if (blas.set_stream(mine, now.stream) || blas.set_workspace(mine, now.workspace, WORKSPACE_BYTES) ||
        blas.set_math(mine, SUMS_IN_COMPUTE_TYPE)) {
        fail("cuBLAS", "refused the stream, the workspace or the mode of sums");
        return nullptr;
    }
    return mine;
}

} // namespace

void runtime_begin(void *stream, int precision, runtime_allocate allocate, void *context) {
    now.stream = (cudaStream_t)stream;
    now.precision = precision, now.status = ROT_OK, now.allocate = allocate, now.context = context,
    now.workspace = nullptr;
    now.error[0] = 0;
}

void runtime_use_counter(const int64_t *given) { counter = given; }
const int64_t *runtime_counter(void) { return counter; }

int runtime_status(void) { return now.status; }
int runtime_precision(void) { return now.precision; }
const char *runtime_error(void) { return now.error; }
cudaStream_t runtime_stream(void) { return now.stream; }

int runtime_device(void) {
    int device = -1;
    return succeeds(cudaGetDevice(&device), "cudaGetDevice") ? device : -1;
}

bool runtime_runs(void) {
    cudaFuncAttributes attributes;
    return succeeds(cudaFuncGetAttributes(&attributes, empty_kernel), "cudaFuncGetAttributes");
}

void runtime_use_blas(const char *path) { snprintf(blas_path, sizeof blas_path, "%s", path); }

bool runtime_can_launch(int64_t blocks) {
    if (blocks > INT_MAX) fail("launch", "more blocks than a grid may have: the arrays are too large");
    return now.status == ROT_OK && blocks > 0;
}
void runtime_launched(cudaError_t error, const char *what) { check(error, what); }

void *runtime_memory(int64_t bytes) {
    if (now.status != ROT_OK) return nullptr;
    void *const memory = bytes < 0 ? nullptr : now.allocate(now.context, (size_t)(bytes ? bytes : 1));
    if (!memory) now.status = ROT_NO_MEMORY;
    return memory;
}

void runtime_zero(void *memory, int64_t bytes) {
    if (now.status == ROT_OK && bytes) check(cudaMemsetAsync(memory, 0, (size_t)bytes, now.stream), "cudaMemsetAsync");
}

void runtime_copy(void *to, const void *from, int64_t bytes) {
    if (now.status == ROT_OK && bytes)
        check(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, now.stream), "cudaMemcpyAsync");
}

void runtime_multiply(const runtime_product *p) {
    static const int COMPUTE[PRECISIONS] = {COMPUTE_32F, COMPUTE_32F_TF32, COMPUTE_32F_BF16};
    static const float ONE = 1, ZERO = 0;
    static const double WIDE_ONE = 1, WIDE_ZERO = 0;
    if (!p->rows || !p->columns || !p->count || now.status != ROT_OK) return;
    if (p->rows > INT_MAX || p->columns > INT_MAX || p->inner > INT_MAX || p->count > INT_MAX)
        return fail("cuBLAS", "a matrix has more rows or columns than it can index");
    handle const mine = blas_handle();
    if (!mine) return;
    const int type = p->wide ? FLOAT64 : FLOAT32, operands = p->bf16 ? BFLOAT16 : type;
    const int result = p->bf16_result ? BFLOAT16 : type;
    const int compute = p->wide ? COMPUTE_64F : p->bf16 ? COMPUTE_32F : COMPUTE[now.precision];
    const void *const one = p->wide ? (const void *)&WIDE_ONE : &ONE;
    const void *const keep = p->keep ? one : p->wide ? (const void *)&WIDE_ZERO : &ZERO;
    /* cuBLAS is column-major: c' = b' a' */
    const int status = blas.multiply(mine, p->b_turned ? TURN : KEEP, p->a_turned ? TURN : KEEP, (int)p->columns,
                                     (int)p->rows, (int)p->inner, one, p->b, operands, (int)p->ldb, p->b_apart, p->a,
                                     operands, (int)p->lda, p->a_apart, keep, p->c, result, (int)p->ldc, p->c_apart,
                                     (int)p->count, compute, DEFAULT_ALGORITHM);
    if (status) fail_with_status("cublasGemmStridedBatchedEx", status);
}
