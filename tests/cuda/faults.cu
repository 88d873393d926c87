/* Kernels with one fault each, which the harness must find (test_harness.py), and their right versions; and kernels
 * that show what warp operations, barriers and roundings compute.
 *
 *     faults NAME wrong|right < x > y      float32 numbers; an error of the harness goes to standard error, with exit
 * code 3
 *
 * Each of the first kind turns round the numbers of every block of 64. The thread sanitizer must see no race, and plain
 * runs no wrong value, where RIGHT.
 */
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "device.h"

enum { THREADS = 64, LAST = THREADS - 1 };

struct two_rows {
    float one[THREADS], two[THREADS];
};
struct four_numbers {
    float4 at[THREADS / 4];
};

/* ---- barriers ---- */

template <bool RIGHT> GLOBAL(THREADS) missing_barrier(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    s.one[t] = x[i];
    if (RIGHT) __syncthreads();
    y[i] = s.one[LAST - t];
}

template <bool RIGHT> GLOBAL(THREADS) write_after_read(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    for (int round = 0; round < 2; round++) {
        s.one[t] = x[i] + (float)round;
        __syncthreads();
        if (round == 0) y[i] = s.one[LAST - t];
        if (RIGHT) __syncthreads();
    }
}

/* The other warp may be far behind, although warp operations follow */
template <bool RIGHT> GLOBAL(THREADS) missing_barrier_after_shuffles(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    s.one[t] = x[i];
    if (RIGHT) __syncthreads();
    float sum = 0;
    for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(~0u, x[i], d);
    y[i] = s.one[LAST - t] + 0 * sum;
}

template <bool RIGHT> GLOBAL(THREADS) barrier_in_a_branch(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    s.one[t] = x[i];
    if (RIGHT || t < 32)
        __syncthreads();
    else
        __syncthreads();
    y[i] = s.one[LAST - t];
}

template <bool RIGHT> GLOBAL(THREADS) barrier_not_reached(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    s.one[t] = x[i];
    if (RIGHT || t != 5) __syncthreads();
    y[i] = s.one[LAST - __shfl_sync(~0u, t, (int)t)];
}

/* A barrier does not wait for threads that have ended, but nor does it order what they wrote. */
template <bool RIGHT> GLOBAL(THREADS) threads_that_leave(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    s.one[t] = x[i];
    if (RIGHT) __syncthreads();
    if (t >= 32) return;
    __syncthreads();
    y[i] = s.one[LAST - t], y[i + LAST - 2 * t] = s.one[t];
}

/* ---- warp operations ---- */

template <bool RIGHT> GLOBAL(THREADS) missing_syncwarp(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    s.one[t] = x[i];
    if (RIGHT) __syncwarp();
    y[i ^ 32] = s.one[t ^ 31];
}

template <bool RIGHT> GLOBAL(THREADS) lane_gone(float *y, const float *x) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (!RIGHT && threadIdx.x == 40) return;
    y[i ^ 32] = __shfl_xor_sync(~0u, x[i], 31);
}

template <bool RIGHT> GLOBAL(THREADS) different_operations(float *y, const float *x) {
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    if (RIGHT || t % 32 < 16)
        y[i ^ 32] = __shfl_xor_sync(~0u, x[i], 31);
    else
        y[i ^ 32] = (float)__ballot_sync(~0u, x[i] > 0);
}

template <bool RIGHT> GLOBAL(THREADS) different_sizes(float *y, const float *x) {
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    if (RIGHT || t % 32 < 16)
        y[i ^ 32] = __shfl_xor_sync(~0u, x[i], 31);
    else
        y[i ^ 32] = (float)__shfl_xor_sync(~0u, (double)x[i], 31);
}

/* Right: each half of a warp by itself, in its own mask */
template <bool RIGHT> GLOBAL(THREADS) source_outside_the_mask(float *y, const float *x) {
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    const uint32_t half = t % 32 < 16 ? 0xffff : 0xffff0000;
    if (t % 32 < 16)
        y[i ^ 48] = __shfl_xor_sync(half, x[i], RIGHT ? 15 : 31);
    else
        y[i ^ 48] = __shfl_xor_sync(half, x[i], 15);
}

template <bool RIGHT> GLOBAL(THREADS) lane_outside_its_mask(float *y, const float *x) {
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    y[i ^ 32] = __shfl_xor_sync(RIGHT ? ~0u : 0xffff, x[i], 31);
}

/* ---- memory ---- */

/* Wrong: launched with the memory of one number less */
template <bool RIGHT> GLOBAL(THREADS) beyond_shared_memory(float *y, const float *x) {
    float *const s = &shared_memory<float>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    s[t] = x[i];
    __syncthreads();
    y[i] = s[LAST - t];
}

template <bool RIGHT> GLOBAL(THREADS) shared_memory_not_written(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    if (RIGHT || t != 7) s.one[t] = x[i];
    __syncthreads();
    y[i] = s.one[LAST - t];
}

template <bool RIGHT> GLOBAL(THREADS) to_workspace(float *w, const float *x) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (RIGHT || i != 9) w[i] = x[i];
}
GLOBAL(THREADS) from_workspace(float *y, const float *w) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x;
    y[i] = w[i ^ LAST];
}

/* Blocks pass numbers to each other: right in two launches */
GLOBAL(THREADS) between_blocks(float *y, float *w, const float *x) {
    const unsigned i = blockIdx.x * THREADS + threadIdx.x, other = (gridDim.x - 1 - blockIdx.x) * THREADS + threadIdx.x;
    w[i] = x[i];
    y[other] = w[other ^ LAST];
}

/* Two threads write the same number: only the thread sanitizer sees it */
template <bool RIGHT> GLOBAL(THREADS) written_twice(float *y, const float *x) {
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    y[i] = x[i ^ LAST];
    if (!RIGHT && t == 33) y[i ^ 1] = x[i ^ 1 ^ LAST];
}

/* Wrong: x begins a number after a boundary of 16 bytes */
template <bool RIGHT> GLOBAL(THREADS) misaligned(float *y, const float *x) {
    four_numbers &s = shared_memory<four_numbers>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS;
    if (t < THREADS / 4) s.at[t] = *(const float4 *)(x + i + 4 * t);
    __syncthreads();
    y[i + t] = (&s.at[0].x)[LAST - t];
}

/* ---- asynchronous copies ---- */

template <bool RIGHT> GLOBAL(THREADS) copy_not_waited_for(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    copy_async(&s.one[t], &x[i]);
    copy_commit();
    if (RIGHT) copy_wait<0>();
    __syncthreads();
    y[i] = s.one[LAST - t];
    copy_wait<0>();
}

template <bool RIGHT> GLOBAL(THREADS) one_group_too_many(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    copy_async(&s.one[t], &x[i]);
    copy_commit();
    copy_async(&s.two[t], &x[i]);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    y[i] = RIGHT ? s.one[LAST - t] : s.two[LAST - t];
    copy_wait<0>();
}

template <bool RIGHT> GLOBAL(THREADS) copy_without_barrier(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    copy_async(&s.one[t], &x[i]);
    copy_commit();
    copy_wait<0>();
    if (RIGHT) __syncthreads();
    y[i] = s.one[LAST - t];
}

template <bool RIGHT> GLOBAL(THREADS) copy_never_waited_for(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    copy_async(&s.one[t], &x[i]);
    if (RIGHT) copy_commit(), copy_wait<0>(), __syncthreads();
    y[i] = RIGHT ? s.one[LAST - t] : x[i ^ LAST];
}

template <bool RIGHT> GLOBAL(THREADS) copy_not_committed(float *y, const float *x) {
    two_rows &s = shared_memory<two_rows>();
    const unsigned t = threadIdx.x, i = blockIdx.x * THREADS + t;
    copy_async(&s.one[t], &x[i]);
    if (RIGHT) copy_commit();
    copy_wait<0>();
    __syncthreads();
    y[i] = s.one[LAST - t];
}

/* ---- what operations compute: each of one block ---- */

/* y (64, 9): sums of votes and of lanes, at a barrier and over masks */
GLOBAL(THREADS) votes(float *y, const float *x) {
    const unsigned t = threadIdx.x;
    float *const row = y + 9 * t;
    const bool vote = x[t] > 0;
    const uint32_t even = 0x55555555u << t % 2; /* the lanes of the same parity */
    row[0] = (float)__syncthreads_count(vote);
    row[1] = (float)__syncthreads_or(vote);
    row[2] = (float)__syncthreads_or(x[t] > 100);
    row[3] = (float)(__ballot_sync(~0u, vote) >> 8 & 0xffff);
    row[4] = (float)__any_sync(even, t % 32 == 6), row[5] = (float)__all_sync(even, t % 2 == 0);
    row[6] = warp_sum(x[t]);
    row[7] = block_sum(x[t], shared_memory<two_rows>().one, THREADS);
    row[8] = block_sum(2 * x[t], shared_memory<two_rows>().two, THREADS);
}

/* y (4, 6, 32, 32): __shfl_up, down, xor and from a lane, by 0..31, of widths 1..32 */
GLOBAL(32) shuffles(float *y, const float *x) {
    const unsigned t = threadIdx.x;
    for (int log = 0; log < 6; log++)
        for (int by = 0; by < 32; by++) {
            float *const row = y + (log * 32 + by) * 32 + t;
            row[0] = __shfl_up_sync(~0u, x[t], (unsigned)by, 1 << log);
            row[6 * 1024] = __shfl_down_sync(~0u, x[t], (unsigned)by, 1 << log);
            row[12 * 1024] = __shfl_xor_sync(~0u, x[t], by, 1 << log);
            row[18 * 1024] = (float)__shfl_sync(~0u, (double)x[t], by, 1 << log);
        }
}

/* y: x in TF32, the two halves of to_bf16(x[i], x[i ^ 1]) as numbers; 32 a warp */
GLOBAL(32) rounded(float *y, const float *x) {
    const unsigned i = blockIdx.x * 32 + threadIdx.x;
    const uint32_t two = to_bf16(x[i], x[i ^ 1]), low = two << 16, high = two & 0xffff0000u;
    y[3 * i] = to_tf32(x[i]);
    memcpy(y + 3 * i + 1, &low, 4), memcpy(y + 3 * i + 2, &high, 4);
}

/* ---- the program ---- */

#ifdef ROT_HOST_DEVICE
typedef std::vector<float> numbers;
enum { SPACE = sizeof(two_rows) };

/* Launches `kernel` with a block for every 64 numbers. */
template <class... P> static void turn(void (*kernel)(P...), numbers &y, const float *x, size_t shared = SPACE) {
    y.resize(y.size(), NAN);
    launch(kernel, (int64_t)y.size() / THREADS, THREADS, shared, y.data(), x);
}

static void run_between_blocks(bool right, numbers &y, const float *x) {
    const int64_t blocks = (int64_t)y.size() / THREADS;
    float *const w = workspace_of<float>((int64_t)y.size());
    if (!right) return launch(between_blocks, blocks, THREADS, 0, y.data(), w, x);
    launch(to_workspace<true>, blocks, THREADS, 0, w, x);
    launch(from_workspace, blocks, THREADS, 0, y.data(), w);
}

static void run_workspace(bool right, numbers &y, const float *x) {
    const int64_t blocks = (int64_t)y.size() / THREADS;
    float *const w = workspace_of<float>((int64_t)y.size());
    launch(right ? to_workspace<true> : to_workspace<false>, blocks, THREADS, 0, w, x);
    launch(from_workspace, blocks, THREADS, 0, y.data(), w);
}

static void run_misaligned(bool right, numbers &y, const float *x) {
    float *const w = workspace_of<float>((int64_t)y.size() + 1) + !right;
    memcpy(w, x, y.size() * sizeof(float));
    turn(misaligned<true>, y, w, sizeof(four_numbers));
}

static void run_one(void (*kernel)(float *, const float *), size_t count, int64_t blocks, int threads, numbers &y,
                    const float *x) {
    y.assign(count, NAN);
    launch(kernel, blocks, threads, SPACE, y.data(), x);
}

static bool run(const char *name, bool right, numbers &y, const float *x) {
#define NAMED(text) (!strcmp(name, text))
#define TURNED(kernel)                                                                                                 \
    if (NAMED(#kernel)) return turn(right ? kernel<true> : kernel<false>, y, x), true
    TURNED(missing_barrier);
    TURNED(write_after_read);
    TURNED(missing_barrier_after_shuffles);
    TURNED(barrier_in_a_branch);
    TURNED(barrier_not_reached);
    TURNED(threads_that_leave);
    TURNED(missing_syncwarp);
    TURNED(lane_gone);
    TURNED(different_operations);
    TURNED(different_sizes);
    TURNED(source_outside_the_mask);
    TURNED(lane_outside_its_mask);
    TURNED(shared_memory_not_written);
    TURNED(written_twice);
    TURNED(copy_not_waited_for);
    TURNED(one_group_too_many);
    TURNED(copy_without_barrier);
    TURNED(copy_never_waited_for);
    TURNED(copy_not_committed);
    const size_t row = THREADS * sizeof(float);
    if (NAMED("beyond_shared_memory")) return turn(beyond_shared_memory<true>, y, x, right ? row : row - 4), true;
    if (NAMED("too_much_shared_memory")) return turn(missing_barrier<true>, y, x, right ? SPACE : 256 << 10), true;
    if (NAMED("race_between_blocks")) return run_between_blocks(right, y, x), true;
    if (NAMED("workspace_not_written")) return run_workspace(right, y, x), true;
    if (NAMED("misaligned")) return run_misaligned(right, y, x), true;
    const int64_t warps = (int64_t)y.size() / 32;
    if (NAMED("votes")) return run_one(votes, 9 * THREADS, 1, THREADS, y, x), true;
    if (NAMED("shuffles")) return run_one(shuffles, 24 * 1024, 1, 32, y, x), true;
    if (NAMED("rounded")) return run_one(rounded, 3 * y.size(), warps, 32, y, x), true;
    return false;
}

int main(int count, char **arguments) {
    if (count != 3) return fputs("faults NAME wrong|right\n", stderr), 2;
    numbers x;
    float one;
    while (fread(&one, sizeof one, 1, stdin)) x.push_back(one);
    numbers y(x.size(), NAN);
    runtime_begin(
        nullptr, PRECISION_FLOAT32,
        [](void *, size_t bytes) {
            void *const memory = malloc(bytes); /* the program ends soon */
            return memory ? memset(memory, 0xff, bytes) : nullptr;
        },
        nullptr);
    if (!run(arguments[1], !strcmp(arguments[2], "right"), y, x.data())) return fputs("no such kernel\n", stderr), 2;
    if (runtime_status()) return fprintf(stderr, "%s\n", runtime_error()), 3;
    fwrite(y.data(), sizeof one, y.size(), stdout);
    return 0;
}
#endif
