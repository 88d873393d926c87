/* The harness's scheduler (host_device.h): a block's threads are fibers, which change places where they wait. */
#include "host_device.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <numeric>
#include <vector>

#if ROT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if ROT_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char *, int), AnnotateIgnoreReadsEnd(const char *, int);
extern "C" void AnnotateIgnoreWritesBegin(const char *, int), AnnotateIgnoreWritesEnd(const char *, int);
#endif

namespace host_device {
namespace {

enum {
    STACK = 128 << 10, /* bytes of a fiber's stack */
    GUARD = 4096,      /* of which the lowest cannot be accessed */
    RESIDENT = 3,      /* blocks at a time */
    MEETINGS = 64,     /* after so many warp operations a name of what they order comes again */
    MOST_THREADS = 1024,
    SHARED_LIMIT = 99 << 10, /* MOST_SHARED of runtime.h */
};

/* Lanes that wait for each other at a warp operation. */
struct meeting {
    uint32_t mask, arrived;
    int kind;
    size_t size;
    char *order;
};
struct warp {
    uint32_t waiting = 0, ended = 0;
    bool held = false; /* others run ahead of it */
    unsigned meetings = 0;
    std::vector<meeting> open;
    bytes in, out;
    char order[MEETINGS]; /* the thread sanitizer's names of what each operation orders */
};
struct copy {
    void *to;
    const void *from;
    size_t size;
    unsigned group;
};
struct block;
struct fiber {
    place at;
    jmp_buf saved;
    ucontext_t context;
    char *stack = nullptr;
    bool begun = false, done = true, waits = false;
    const char *waits_for = "";
    unsigned rank = 0, group = 0;
    block *home = nullptr;
    std::vector<copy> copies;
    void *tsan = nullptr, *asan = nullptr;
    warp *own_warp();
};
struct block {
    unsigned threads = 0, live = 0, arrived = 0, generation = 0;
    int votes = 0, counted = 0, line = 0;
    fiber *first = nullptr;
    unsigned char *shared = nullptr;
    std::vector<warp> warps;
    char order[2]; /* of even and odd barriers: a thread that is late must not learn of what others did after it */
};
warp *fiber::own_warp() { return &home->warps[rank / WARP]; }

struct grid {
    void (*body)(void *);
    void *args;
    dim3 size;
    unsigned threads;
    size_t shared;
    std::vector<unsigned> queue; /* the blocks, in the order in which they begin */
    std::vector<fiber> fibers;
    std::vector<block> blocks;
    jmp_buf back;
    ucontext_t main;
    const void *main_bottom = nullptr;
    size_t main_size = 0;
    void *tsan_main = nullptr, *asan_main = nullptr;
    uint64_t random = 0;
    unsigned rounds = 0; /* until other warps are held back */
    bool failed = false,
         unordered = false; /* a test of the tests: what barriers order, the thread sanitizer is not told */
    char error[200];
    char begins, ends; /* what the launch orders: the host before the threads, and these before the host */
};
thread_local grid *now;
thread_local fiber *running;

/* The stacks of all fibers, kept from launch to launch. */
struct stacks {
    char *memory = nullptr;
    size_t count = 0;
    char *of(size_t i) { return memory + i * STACK; }
    bool reserve(size_t n) {
        if (n <= count) return true;
        if (memory) munmap(memory, count * STACK);
        memory = (char *)mmap(nullptr, n * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                              -1, 0);
        count = memory == MAP_FAILED ? 0 : n;
        for (size_t i = 0; i < count; i++)
            if (mprotect(of(i), GUARD, PROT_NONE)) return false;
        return count;
    }
};
thread_local stacks kept;

void release(void *order) {
#if ROT_TSAN
    __tsan_release(order);
#else
    (void)order;
#endif
}
void acquire(void *order) {
#if ROT_TSAN
    __tsan_acquire(order);
#else
    (void)order;
#endif
}

uint64_t draw() {
    uint64_t &s = now->random;
    s ^= s << 13, s ^= s >> 7, s ^= s << 17;
    return s >> 16;
}
template <class T> void shuffled(std::vector<T> &all) {
    for (size_t i = all.size(); now->random && i > 1; i--) std::swap(all[i - 1], all[draw() % i]);
}

/* ---- fibers ---- */

void to_main() {
    fiber *const f = running;
#if ROT_ASAN
    __sanitizer_start_switch_fiber(f->done ? nullptr : &f->asan, now->main_bottom, now->main_size);
#endif
#if ROT_TSAN
    __tsan_switch_to_fiber(now->tsan_main, __tsan_switch_to_fiber_no_sync);
#endif
#if ROT_TSAN || ROT_ASAN
    swapcontext(&f->context, &now->main);
#else
    if (!_setjmp(f->saved)) _longjmp(now->back, 1);
#endif
#if ROT_ASAN
    __sanitizer_finish_switch_fiber(f->asan, nullptr, nullptr);
#endif
}

void entry() {
#if ROT_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &now->main_bottom, &now->main_size);
#endif
    now->body(now->args);
    {
        const quiet q;
        if (running->copies.size()) fail("a thread ends before its asynchronous copies have come");
        running->done = true;
    }
    to_main();
    abort();
}

void resume(fiber *f) {
    running = f;
#if ROT_ASAN
    __sanitizer_start_switch_fiber(&now->asan_main, f->stack, STACK);
#endif
#if ROT_TSAN
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if ROT_TSAN || ROT_ASAN
    swapcontext(&now->main, &f->context);
#else
    if (!_setjmp(now->back)) {
        if (f->begun) _longjmp(f->saved, 1);
        f->begun = true;
        setcontext(&f->context);
    }
#endif
#if ROT_ASAN
    __sanitizer_finish_switch_fiber(now->asan_main, nullptr, nullptr);
#endif
}

/* What a fiber before left on the stack is nothing to the sanitizers. */
void forget(char *stack) {
#if ROT_ASAN
    __asan_unpoison_memory_region(stack, STACK);
#endif
#if ROT_TSAN
    if (mmap(stack + GUARD, STACK - GUARD, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        abort();
#endif
    (void)stack;
}

void begin(fiber *f) {
    forget(f->stack);
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack, f->context.uc_stack.ss_size = STACK, f->context.uc_link = nullptr;
    makecontext(&f->context, entry, 0);
#if ROT_TSAN
    f->tsan = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
    __tsan_acquire(&now->begins);
    __tsan_switch_to_fiber(now->tsan_main, __tsan_switch_to_fiber_no_sync);
#endif
}

/* What a thread did is known to the host after the launch. Those of a launch that failed end in the middle of
 * something, which the thread sanitizer would report: it is not told. */
void end(fiber *f) {
#if ROT_TSAN
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
    __tsan_release(&now->ends);
    __tsan_switch_to_fiber(now->tsan_main, __tsan_switch_to_fiber_no_sync);
    if (f->done) __tsan_destroy_fiber(f->tsan);
#endif
    (void)f;
}

void wait(const char *what) {
    running->waits = true, running->waits_for = what;
    to_main();
}

void failed(const fiber *f, const char *what) {
    const place &at = f->at;
    if (!now->failed)
        snprintf(now->error, sizeof now->error, "%s (block %u,%u,%u, thread %u)", what, at.block.x, at.block.y,
                 at.block.z, at.thread.x);
    now->failed = true;
}

/* ---- blocks ---- */

void poison(void *memory, size_t size) { memset(memory, 0xff, size); } /* NaN */

void start(size_t slot) {
    const unsigned index = now->queue.back(), threads = now->threads;
    now->queue.pop_back();
    block &b = now->blocks[slot];
    b = block();
    b.threads = b.live = threads;
    b.first = &now->fibers[slot * threads];
    b.warps.resize(threads / WARP);
    if (now->shared && posix_memalign((void **)&b.shared, 128, now->shared)) abort();
    if (now->shared) poison(b.shared, now->shared);
    const dim3 n = now->size;
    for (unsigned t = 0; t < threads; t++) {
        fiber &f = b.first[t];
        f.begun = f.done = f.waits = false;
        f.copies.clear();
        f.stack = kept.of(slot * threads + t), f.rank = t, f.group = 0, f.home = &b;
        f.at = {{t, 0, 0}, {index % n.x, index / n.x % n.y, index / n.x / n.y}, dim3(threads), n, b.shared};
        begin(&f);
    }
}

void open_barrier(block *b) {
    b->arrived = 0, b->generation++, b->counted = b->votes, b->votes = 0;
    for (unsigned t = 0; t < b->threads; t++) b->first[t].waits = false;
}

/* After a thread has ended: as on the hardware, a barrier does not wait for it. */
void leave(fiber *f) {
    block *const b = f->home;
    f->own_warp()->ended |= 1u << f->rank % WARP;
    if (--b->live && b->arrived == b->live) open_barrier(b);
    if (b->live) return;
    free(b->shared);
    b->shared = nullptr;
}

/* The threads that do not wait, in random order. For a few rounds at a time half of the warps are held back, as long as
 * others can run: on a GPU a warp may be far ahead of another. */
void find_ready(std::vector<fiber *> &ready, std::vector<fiber *> &held) {
    ready.clear(), held.clear();
    if (now->random && now->rounds-- == 0) {
        now->rounds = draw() % 16;
        for (block &b : now->blocks)
            for (warp &w : b.warps) w.held = draw() & 1;
    }
    for (fiber &f : now->fibers)
        if (!f.done && !f.waits) (f.own_warp()->held ? held : ready).push_back(&f);
    if (ready.empty()) ready.swap(held);
    shuffled(ready);
}

void run_blocks() {
    for (size_t slot = 0; slot < now->blocks.size(); slot++) start(slot);
    std::vector<fiber *> ready, held;
    for (size_t live = now->blocks.size(); live && !now->failed;) {
        find_ready(ready, held);
        if (ready.empty()) {
            for (const fiber &f : now->fibers)
                if (!f.done) failed(&f, f.waits_for);
        }
        for (fiber *const f : ready) {
            if (now->failed) break;
            resume(f);
            if (!f->done) continue;
            end(f);
            leave(f);
            if (f->home->live) continue;
            if (now->queue.empty())
                live--;
            else
                start((size_t)(f->home - now->blocks.data()));
        }
    }
}

const char *refused(dim3 blocks, unsigned threads, size_t shared) {
    if (blocks.y > 65535 || blocks.z > 65535) return "a grid has more than 65535 blocks along y or z";
    if (!threads || threads > MOST_THREADS || threads % WARP)
        return "a block's threads are not a multiple of 32 up to 1024";
    if (shared > SHARED_LIMIT) return "a block has more than 99 KiB of shared memory";
    return nullptr;
}

/* ROT_HOST_SEED, spread over all bits; 0 if there is none */
uint64_t seed_of_environment() {
    const char *const seed = getenv("ROT_HOST_SEED");
    return seed ? strtoull(seed, nullptr, 10) * 0x9E3779B97F4A7C15ull : 0;
}

} // namespace

/* ---- what kernels call ---- */

#if ROT_TSAN
quiet::quiet() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
quiet::~quiet() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#endif

const place &here() { return running->at; }

bool own(const void *memory) {
    const char *const at = (const char *)memory, *const stack = running->stack;
    const char *const shared = (const char *)running->at.shared, *const place = (const char *)&running->at;
    return (at >= stack && at < stack + STACK) || (at >= shared && at < shared + now->shared) ||
           (at >= place && at < place + sizeof running->at);
}

void fail(const char *what) {
    const quiet q;
    failed(running, what);
    for (;;) to_main();
}

int barrier(int vote, int line) {
    const quiet q;
    block *const b = running->home;
    const unsigned generation = b->generation;
    if (b->arrived && b->line != line) fail("a barrier in a branch: threads of a block meet at two different ones");
    b->line = line;
    release(&b->order[generation % 2]);
    b->votes += vote != 0;
    if (++b->arrived == b->live) open_barrier(b);
    while (b->generation == generation) wait("a thread waits for ever at a barrier that others do not reach");
    if (!now->unordered) acquire(&b->order[generation % 2]);
    return b->counted;
}

void meet(uint32_t mask, int kind, const void *in, size_t size_in, void *out, size_t size_out, operation op) {
    const quiet q;
    fiber *const f = running;
    warp *const w = f->own_warp();
    const unsigned lane = f->rank % WARP;
    const uint32_t bit = 1u << lane;
    if (!(mask & bit)) fail("a lane is not in the mask of its own warp operation");
    if (mask & w->ended) fail("a lane in the mask of a warp operation has ended");
    size_t own = w->open.size();
    for (size_t i = 0; i < w->open.size(); i++) {
        const meeting &m = w->open[i];
        const bool same = m.mask == mask && m.kind == kind && m.size == size_out;
        if (same)
            own = i;
        else if ((m.mask & bit) && (m.arrived & mask))
            fail("two different warp operations meet");
    }
    if (own == w->open.size()) w->open.push_back({mask, 0, kind, size_out, &w->order[w->meetings++ % MEETINGS]});
    char *const order = w->open[own].order;
    memcpy(w->in[lane], in, size_in);
    release(order);
    w->open[own].arrived |= bit, w->waiting |= bit;
    if (w->open[own].arrived == mask) {
        {
            const traffic::pause p;
            op(mask, w->in, w->out);
        }
        w->open[own] = w->open.back(), w->open.pop_back();
        w->waiting &= ~mask;
        fiber *const lanes = f->home->first + f->rank / WARP * WARP;
        for (unsigned l = 0; l < WARP; l++)
            if (mask >> l & 1) lanes[l].waits = false;
    }
    while (w->waiting & bit) wait("a lane waits for ever at a warp operation that others of its mask do not reach");
    acquire(order);
    if (size_out) memcpy(out, w->out[lane], size_out);
}

void copy_begin(void *to, const void *from, size_t size) {
    poison(to, size);
    const quiet q;
    traffic::read(from, size);
    running->copies.push_back({to, from, size, running->group});
}
void copy_close() {
    const quiet q;
    running->group++;
}
void copy_finish(unsigned but) {
    std::vector<copy> come;
    {
        const quiet q;
        fiber *const f = running;
        const auto waits = [&](const copy &one) { return one.group + but >= f->group; };
        const auto first = std::stable_partition(f->copies.begin(), f->copies.end(), waits);
        come.assign(first, f->copies.end());
        f->copies.erase(first, f->copies.end());
    }
    for (const copy &one : come) memcpy(one.to, one.from, one.size);
}

const char *run(void (*body)(void *), void *args, dim3 blocks, unsigned threads, size_t shared) {
    const quiet q;
    static thread_local grid *const own = new grid; /* not on a stack that others use later */
    if (const char *const why = refused(blocks, threads, shared)) return why;
    now = own;
    now->body = body, now->args = args, now->size = blocks, now->threads = threads, now->shared = shared;
    now->failed = false, now->unordered = getenv("ROT_HOST_UNORDERED"), now->random = seed_of_environment(),
    now->rounds = 0;
    now->queue.resize((size_t)blocks.x * blocks.y * blocks.z);
    std::iota(now->queue.rbegin(), now->queue.rend(), 0u);
    shuffled(now->queue);
    const size_t resident = std::min(now->queue.size(), (size_t)RESIDENT);
    if (!kept.reserve(resident * threads)) return "there is no memory for the stacks of the harness";
    now->fibers.resize(resident * threads);
    now->blocks.assign(resident, block());
#if ROT_TSAN
    now->tsan_main = __tsan_get_current_fiber();
#endif
    release(&now->begins);
    run_blocks();
    for (fiber &f : now->fibers)
        if (!f.done) end(&f);
    acquire(&now->ends);
    for (block &b : now->blocks) free(b.shared), b.shared = nullptr;
    return now->failed ? now->error : nullptr;
}

} // namespace host_device
