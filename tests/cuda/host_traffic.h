/* Counts what a launch reads and writes (tests/traffic.py).
 *
 * A kernel that is compiled with -fsanitize=thread calls __tsan_read4(address) and its like before each access. Here
 * these functions are not the thread sanitizer's but ours: they count, byte by byte. What is not the running thread's
 * own memory is the GPU's, since a kernel can read nothing else.
 */
#ifndef ROT_HOST_TRAFFIC_H
#define ROT_HOST_TRAFFIC_H

#include <stddef.h>
#include <stdint.h>

namespace traffic {

/* What a kernel, or a function of runtime.h, moves: bytes of the GPU's memory that are read, and that are written, each
 * byte once; bytes of all loads and stores; flops of products. */
struct launch {
    const void *what;
    int64_t read, written, requested, flops;
};

/* A launch begins and ends. Its arguments are read from elsewhere than the GPU's memory. */
void begin(const void *what, const void *arguments, size_t size);
void end();

/* An access of the running thread */
void read(const void *from, size_t size);
void write(const void *to, size_t size);

/* An operation of runtime.h that is no kernel */
void operation(const launch &done);

/* While one lives, nothing is counted: the harness does what is an instruction on a GPU. */
struct pause {
    pause();
    ~pause();
    bool before;
};

} // namespace traffic

#endif
