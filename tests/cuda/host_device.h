/* The harness: CUDA's names for plain C++, so that a `.cu` file runs on the host (cuda/device.h includes this).
 *
 * A block's threads are fibers of one thread of the operating system, and a few blocks are resident at a time. Between
 * two waits a thread runs alone; which one runs next is drawn by ROT_HOST_SEED (0: in order), and now and then some
 * warps are held back, so that others run far ahead. A call ends with an error that names block and thread if
 *   - not all lanes of a warp operation's mask reach it, two different ones meet, a lane is not in its own mask, or a
 *     shuffle reads a lane outside it,
 *   - threads of a block wait for a barrier that others never reach, or meet at two different ones,
 *   - a thread ends before its asynchronous copies have come,
 *   - the launch has more threads, shared memory or blocks than a GPU allows.
 * Values are wrong (NaN) if shared memory, a workspace, or what copy_async has not yet brought, is read before it is
 * written; and some orders give other values if a barrier is missing. The address sanitizer finds what is read or
 * written beyond shared memory, the undefined-behaviour sanitizer misaligned vectors, and the thread sanitizer, to
 * which each fiber is a thread, every data race between two threads of a grid, since only barriers and warp operations
 * order them. tests/cuda/faults.cu has a kernel with each of these faults.
 */
#ifndef ROT_HOST_DEVICE_H
#define ROT_HOST_DEVICE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <tuple>

#include "host_traffic.h"
#include "precision.h"

#define __host__
#define __device__
#define __global__
#define GLOBAL(threads)         static void
#define GLOBAL2(threads, least) static void
#define ROT_DEVICE_ONLY         static inline __attribute__((unused))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline double2 make_double2(double x, double y) { return {x, y}; }

namespace host_device {

enum { WARP = 32, MOST_BYTES = 32 };
enum kind { SYNC = 1, UP, DOWN, XOR, INDEX, BALLOT };

/* Where the running thread is. */
struct place {
    uint3 thread, block;
    dim3 threads, blocks;
    void *shared;
};
const place &here();

/* Ends the launch with an error. */
[[noreturn]] void fail(const char *what);

/* All threads of the block meet, at one line of the source; the number of votes. */
int barrier(int vote, int line);

/* All lanes of the mask meet: each leaves bytes, and the last to come runs `op` on all of them. */
typedef unsigned char bytes[WARP][MOST_BYTES];
typedef void (*operation)(uint32_t mask, const bytes &from, bytes &to);
void meet(uint32_t mask, int kind, const void *in, size_t size_in, void *out, size_t size_out, operation op);

/* Asynchronous copies of the running thread: what they bring is poisoned until it is waited for. */
void copy_begin(void *to, const void *from, size_t size);
void copy_close();
void copy_finish(unsigned but);

/* Whether memory is the running thread's own: its stack, its block's shared memory, or where it is. */
bool own(const void *memory);

/* Runs a grid: body(args) in each thread. Returns NULL, or why it failed, until the next launch. */
const char *run(void (*body)(void *), void *args, dim3 grid, unsigned threads, size_t shared);

#if defined(__has_feature)
#define ROT_TSAN __has_feature(thread_sanitizer)
#define ROT_ASAN __has_feature(address_sanitizer)
#else
#ifdef __SANITIZE_THREAD__
#define ROT_TSAN 1
#else
#define ROT_TSAN 0
#endif
#ifdef __SANITIZE_ADDRESS__
#define ROT_ASAN 1
#else
#define ROT_ASAN 0
#endif
#endif

/* While one lives, the thread sanitizer does not look at what the harness itself reads and writes. */
#if ROT_TSAN
struct quiet {
    quiet();
    ~quiet();
};
#else
struct quiet {
    quiet() {}
    ~quiet() {}
};
#endif

/* The lane that a lane reads, as PTX has it for shfl.sync: each lane chooses. */
struct choice {
    int by, width;
};
static inline int source_of(int kind, int lane, choice c) {
    const int low = lane / c.width * c.width, high = low + c.width - 1;
    switch (kind) {
    case UP: return lane - c.by < low ? lane : lane - c.by;
    case DOWN: return lane + c.by > high ? lane : lane + c.by;
    case XOR: return (lane ^ c.by) > high ? lane : lane ^ c.by; /* may read the lanes before its own `width` */
    default: return low + (c.by & (c.width - 1));
    }
}

template <class T, int KIND> T shuffle(uint32_t mask, T value, int by, int width) {
    static_assert(sizeof(T) <= 16, "a shuffle moves up to 16 bytes");
    if (width < 1 || width > WARP || (width & (width - 1))) fail("a shuffle's width is not a power of two up to 32");
    if (KIND != INDEX && (by < 0 || by >= WARP)) fail("a shuffle's distance is not in 0..31");
    unsigned char in[16 + sizeof(choice)] = {};
    const choice mine = {by, width};
    T result;
    memcpy(in, &value, sizeof value), memcpy(in + 16, &mine, sizeof mine);
    meet(mask, KIND, in, sizeof in, &result, sizeof result, [](uint32_t lanes, const bytes &from, bytes &to) {
        for (int lane = 0; lane < WARP; lane++) {
            if (!(lanes >> lane & 1)) continue;
            choice c;
            memcpy(&c, from[lane] + 16, sizeof c);
            const int source = source_of(KIND, lane, c);
            if (!(lanes >> source & 1)) fail("a shuffle reads a lane that is not in its mask");
            memcpy(to[lane], from[source], sizeof(T));
        }
    });
    return result;
}

template <class... P> struct call {
    void (*kernel)(P...);
    std::tuple<P...> args;
};

} // namespace host_device

#define threadIdx (host_device::here().thread)
#define blockIdx  (host_device::here().block)
#define blockDim  (host_device::here().threads)
#define gridDim   (host_device::here().blocks)

template <class T> static inline T &shared_memory() { return *(T *)host_device::here().shared; }

static inline void __syncthreads(int line = __builtin_LINE()) { host_device::barrier(0, line); }
static inline int __syncthreads_or(int vote, int line = __builtin_LINE()) {
    return host_device::barrier(vote, line) != 0;
}
static inline int __syncthreads_count(int vote, int line = __builtin_LINE()) {
    return host_device::barrier(vote, line);
}
static inline void __syncwarp(uint32_t mask = ~0u) {
    host_device::meet(mask, host_device::SYNC, "", 0, nullptr, 0,
                      [](uint32_t, const host_device::bytes &, host_device::bytes &) {});
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32) {
    return host_device::shuffle<T, host_device::UP>(mask, value, (int)by, width);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32) {
    return host_device::shuffle<T, host_device::DOWN>(mask, value, (int)by, width);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T value, int by, int width = 32) {
    return host_device::shuffle<T, host_device::XOR>(mask, value, by, width);
}
template <class T> static inline T __shfl_sync(uint32_t mask, T value, int lane, int width = 32) {
    return host_device::shuffle<T, host_device::INDEX>(mask, value, lane, width);
}
static inline uint32_t __ballot_sync(uint32_t mask, int vote) {
    uint32_t in = vote != 0, out;
    host_device::meet(mask, host_device::BALLOT, &in, 4, &out, 4,
                      [](uint32_t lanes, const host_device::bytes &from, host_device::bytes &to) {
                          uint32_t all = 0;
                          for (int l = 0; l < 32; l++) all |= (lanes >> l & 1) && from[l][0] ? 1u << l : 0;
                          for (int l = 0; l < 32; l++)
                              if (lanes >> l & 1) memcpy(to[l], &all, 4);
                      });
    return out;
}
static inline int __any_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) != 0; }
static inline int __all_sync(uint32_t mask, int vote) { return __ballot_sync(mask, vote) == mask; }
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T value) { *p = value; }

template <class T> static inline void copy_async(T *to, const T *from) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "cp.async copies 4, 8 or 16 bytes");
    if ((uintptr_t)to % sizeof(T) || (uintptr_t)from % sizeof(T)) host_device::fail("copy_async of misaligned memory");
    host_device::copy_begin(to, from, sizeof(T));
}
static inline void copy_commit() { host_device::copy_close(); }
template <int N> static inline void copy_wait() { host_device::copy_finish(N); }

/* ---- rounding ---- */

static inline float to_tf32(float x) { return tf32_of(x); }
static inline uint32_t to_bf16(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }

#endif
