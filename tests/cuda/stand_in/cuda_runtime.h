/* What cuda/runtime.cu uses of CUDA's runtime, without a GPU: handles.cpp. */
#include <stddef.h>

#define __global__
typedef int cudaError_t;
typedef void *cudaStream_t;
struct cudaFuncAttributes {};
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
static int stand_in_error = 0, stand_in_device = 0; /* what questions are answered with */
static inline const char *cudaGetErrorString(int error) { return error == stand_in_error ? "the stand-in's" : "none"; }
static inline int cudaGetDevice(int *device) { return *device = stand_in_device, stand_in_error; }
static inline int cudaFuncGetAttributes(cudaFuncAttributes *, void (*)()) { return stand_in_error; }
static inline int cudaMemsetAsync(void *, int, size_t, void *) { return 0; }
static inline int cudaMemcpyAsync(void *, const void *, size_t, int, void *) { return 0; }
