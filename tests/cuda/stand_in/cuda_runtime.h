/* What cuda/runtime.cu uses of CUDA's runtime, without a GPU: handles.cpp. */
#include <stddef.h>

typedef int cudaError_t;
typedef void *cudaStream_t;
enum { cudaSuccess, cudaMemcpyDeviceToDevice, cudaFuncAttributeMaxDynamicSharedMemorySize };
struct dim3 {
    unsigned x;
    explicit dim3(unsigned x) : x(x) {}
};
struct cudaLaunchConfig_t {
    dim3 gridDim{1}, blockDim{1};
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
};
static inline int cudaGetLastError() { return 0; }
static inline const char *cudaGetErrorString(int) { return "none"; }
static inline int cudaGetDevice(int *device) { return *device = 0; }
static inline int cudaMemsetAsync(void *, int, size_t, void *) { return 0; }
static inline int cudaMemcpyAsync(void *, const void *, size_t, int, void *) { return 0; }
