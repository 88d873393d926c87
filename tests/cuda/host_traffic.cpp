/* Counts what a launch reads and writes (host_traffic.h). */
#include "host_traffic.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "host_device.h"

extern "C" __attribute__((visibility("hidden"))) const char __ehdr_start, _end; /* this library's own constants */

namespace {

enum { PAGE = 4096, WORD = 64 }; /* bytes of a page of memory; bytes that have their bits in one number */

/* A bit for each byte of a page */
struct page {
    uint64_t read[PAGE / WORD] = {}, written[PAGE / WORD] = {};
};

struct {
    bool counting = false, running = false; /* on demand; in a launch */
    const char *arguments, *arguments_end;
    traffic::launch now;
    std::unordered_map<uintptr_t, page> pages;
    uintptr_t last = 0; /* the page of the last access */
    page *last_page = nullptr;
    std::vector<traffic::launch> launches;
} all;

page &page_of(uintptr_t number) {
    if (!all.last_page || all.last != number) all.last = number, all.last_page = &all.pages[number];
    return *all.last_page;
}

bool of_the_gpu(const char *at) {
    if (at >= all.arguments && at < all.arguments_end) return false;
    if (at >= &__ehdr_start && at < &_end) return false;
    return !host_device::own(at);
}

void access(const void *at, size_t size, uint64_t (page::*bits)[PAGE / WORD]) {
    if (!all.running || !of_the_gpu((const char *)at)) return;
    all.now.requested += (int64_t)size;
    for (uintptr_t from = (uintptr_t)at, end = from + size; from < end;) {
        const uintptr_t offset = from % PAGE, count = std::min(end - from, WORD - from % WORD);
        const uint64_t ones = count == WORD ? ~0ull : (1ull << count) - 1;
        (page_of(from / PAGE).*bits)[offset / WORD] |= ones << offset % WORD;
        from += count;
    }
}

int64_t bytes_of(const uint64_t *bits) {
    int64_t sum = 0;
    for (int i = 0; i < PAGE / WORD; i++) sum += __builtin_popcountll(bits[i]);
    return sum;
}

} // namespace

namespace traffic {

void begin(const void *what, const void *arguments, size_t size) {
    if (!all.counting) return;
    all.now = {what, 0, 0, 0, 0};
    all.arguments = (const char *)arguments, all.arguments_end = all.arguments + size;
    all.running = true;
}

void end() {
    if (!all.running) return;
    all.running = false;
    for (const auto &one : all.pages)
        all.now.read += bytes_of(one.second.read), all.now.written += bytes_of(one.second.written);
    all.pages.clear();
    all.last_page = nullptr;
    all.launches.push_back(all.now);
}

void read(const void *from, size_t size) { access(from, size, &page::read); }
void write(const void *to, size_t size) { access(to, size, &page::written); }

void operation(const launch &done) {
    if (all.counting) all.launches.push_back(done);
}

pause::pause() : before(all.running) {
    if (before) all.running = false;
}
pause::~pause() {
    if (before) all.running = true;
}

} // namespace traffic

/* ---- what tests call ---- */

#define TO_TESTS extern "C" __attribute__((visibility("default")))

TO_TESTS void traffic_start() {
    all.launches.clear();
    all.counting = true;
}

/* The launches since the start, until the next one; their number. */
TO_TESTS int64_t traffic_stop(const traffic::launch **launches) {
    all.counting = false;
    *launches = all.launches.data();
    return (int64_t)all.launches.size();
}

/* Where the library is: functions are so far from it as its table of symbols says. */
TO_TESTS const void *traffic_base() { return &__ehdr_start; }
