/* How many handles of cuBLAS the products of many threads create, and what the runtime says of failures:
 * cuda/runtime.cu, which the harness replaces, with stand-ins for CUDA (stand_in) and for cuBLAS (below; the program is
 * its own library).
 */
#include <stdio.h>

#include <atomic>
#include <barrier>
#include <thread>
#include <vector>

#include "runtime.cu"

static std::atomic<int> made{0};

extern "C" {
int cublasCreate_v2(void **handle) {
    static char handles[1000];
    *handle = handles + made++;
    return 0;
}
int cublasSetStream_v2(void *, void *) { return 0; }
int cublasSetWorkspace_v2(void *, void *, size_t) { return 0; }
int cublasSetMathMode(void *, int) { return 0; }
int cublasGemmStridedBatchedEx() { return 0; }
}

static void begin() {
    static char memory[1];
    runtime_begin(
        nullptr, 0, [](void *, size_t) -> void * { return memory; }, nullptr);
}

static void product() {
    runtime_product p = {};
    p.rows = p.columns = p.inner = p.count = 1;
    begin();
    runtime_multiply(&p);
    runtime_multiply(&p);
    if (runtime_status() != ROT_OK) fprintf(stderr, "%s\n", runtime_error());
}

static void failures() {
    begin();
    runtime_memory(-1); /* the call fails without a reason */
    stand_in_error = 999;
    printf("%d: %s\n", runtime_device(), runtime_error());
    printf("%d: %s\n", runtime_runs(), runtime_error());
    stand_in_error = 0;
    printf("%d, %d\n", runtime_device(), runtime_runs());
    stand_in_device = MOST_DEVICES;
    product();
}

int main() {
    runtime_use_blas(""); /* this program */
    for (int i = 0; i < 100; i++) std::thread(product).join();
    printf("one after the other: %d\n", made.load());
    for (int round = 0; round < 3; round++) {
        std::barrier all(4);
        std::vector<std::thread> four;
        for (int i = 0; i < 4; i++) four.emplace_back([&] { product(), all.arrive_and_wait(); });
        for (std::thread &one : four) one.join();
    }
    printf("four at once: %d\n", made.load());
    failures();
    return 0;
}
