/* What a kernel calls before each access if it is compiled with -fsanitize=thread (host_traffic.h). */
#include "host_traffic.h"

extern "C" {
#define ACCESS_OF(size)                                                                                                \
    void __tsan_read##size(const void *from) { traffic::read(from, size); }                                            \
    void __tsan_write##size(void *to) { traffic::write(to, size); }
ACCESS_OF(1)
ACCESS_OF(2)
ACCESS_OF(4)
ACCESS_OF(8)
ACCESS_OF(16)
void __tsan_read_range(const void *from, size_t size) { traffic::read(from, size); }
void __tsan_write_range(void *to, size_t size) { traffic::write(to, size); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void *) {}
void __tsan_init() {}
}
