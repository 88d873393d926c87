/* A launch in the harness: the grid runs at once (host_device.h). */
#ifndef ROT_HOST_LAUNCH_H
#define ROT_HOST_LAUNCH_H

#include "host_device.h"

bool runtime_can_launch(int64_t blocks);
void runtime_launched(const char *error);

template <class... P, class... A>
static void launch_grid(void (*kernel)(P...), dim3 grid, int64_t blocks, int threads, size_t shared, A... args) {
    if (!runtime_can_launch(blocks)) return;
    host_device::call<P...> all = {kernel, std::tuple<P...>(static_cast<P>(args)...)};
    const auto body = [](void *memory) {
        const auto mine = [&] {
            const host_device::quiet q;
            return *(host_device::call<P...> *)memory;
        }();
        std::apply(mine.kernel, mine.args);
    };
    traffic::begin((const void *)kernel, &all, sizeof all);
    runtime_launched(host_device::run(body, &all, grid, (unsigned)threads, shared));
    traffic::end();
}

#endif
