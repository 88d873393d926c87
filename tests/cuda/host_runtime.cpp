/* The harness's scheduler (host_device.h), and the twin of cuda/runtime.cu on the host. */
#include "runtime.h"

#include <limits.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <vector>

#include "real.h"

#if ROT_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if ROT_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char *, int), AnnotateIgnoreReadsEnd(const char *, int);
extern "C" void AnnotateIgnoreWritesBegin(const char *, int), AnnotateIgnoreWritesEnd(const char *, int);
#endif

namespace host_device {
static void failed_launch(const char *why);

namespace {

enum { STACK = 128 << 10, RESIDENT = 3 }; /* bytes of a fiber's stack; blocks at a time */

struct warp {
    uint32_t mask = 0, arrived = 0, leaving = 0;
    int kind = 0;
    bytes in, out;
    char order; /* the thread sanitizer's name of what a collective orders */
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
    bool begun = false, done = false, waits = false;
    unsigned rank = 0, group = 0;
    block *home = nullptr;
    std::vector<copy> copies;
    void *tsan = nullptr, *asan = nullptr;
};
struct block {
    unsigned threads = 0, live = 0, arrived = 0, generation = 0;
    int votes = 0, counted = 0;
    fiber *first = nullptr;
    unsigned char *shared = nullptr;
    std::vector<warp> warps;
    char order;
};
struct grid {
    void (*body)(void *);
    void *args;
    std::vector<fiber> fibers;
    std::vector<block> blocks;
    jmp_buf back;
    ucontext_t main;
    const void *main_bottom = nullptr;
    size_t main_size = 0;
    void *tsan_main = nullptr, *asan_main = nullptr;
    uint64_t random = 0;
    bool failed = false;
    char error[200];
    char order;
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
        memory = (char *)mmap(nullptr, n * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        count = memory == MAP_FAILED ? 0 : n;
        if (!count) memory = nullptr;
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
    return s;
}

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
        to_main();
    }
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
    f->begun = true;
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

void wait() {
    running->waits = true;
    to_main();
}

void poison(void *memory, size_t size) { memset(memory, 0xff, size); } /* NaN */

void start(size_t slot, unsigned index, dim3 blocks, unsigned threads, size_t shared) {
    block &b = now->blocks[slot];
    free(b.shared);
    b = block();
    b.threads = b.live = threads;
    b.first = &now->fibers[slot * threads];
    b.warps.resize((threads + WARP - 1) / WARP);
    if (shared && posix_memalign((void **)&b.shared, 128, shared)) abort();
    if (shared) poison(b.shared, shared);
    for (unsigned t = 0; t < threads; t++) {
        fiber &f = b.first[t];
        char *const stack = kept.of(slot * threads + t);
        f.begun = f.done = f.waits = false;
        f.copies.clear();
        f.stack = stack, f.rank = t, f.group = 0, f.home = &b;
        f.at.thread = {t, 0, 0};
        f.at.block = {index % blocks.x, index / blocks.x % blocks.y, index / blocks.x / blocks.y};
        f.at.threads = dim3(threads), f.at.blocks = blocks, f.at.shared = b.shared;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = stack, f.context.uc_stack.ss_size = STACK, f.context.uc_link = nullptr;
        makecontext(&f.context, entry, 0);
#if ROT_TSAN /* what the host did before the launch is known to every thread */
        f.tsan = __tsan_create_fiber(0);
        __tsan_release(&now->order);
        __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);
        __tsan_acquire(&now->order);
        __tsan_switch_to_fiber(now->tsan_main, __tsan_switch_to_fiber_no_sync);
#endif
    }
}

void end(fiber *f) {
#if ROT_TSAN /* and what threads did, to the host after it */
    __tsan_switch_to_fiber(f->tsan, __tsan_switch_to_fiber_no_sync);
    __tsan_release(&now->order);
    __tsan_switch_to_fiber(now->tsan_main, __tsan_switch_to_fiber_no_sync);
    __tsan_destroy_fiber(f->tsan);
#endif
    block *const b = f->home;
    b->live--;
    /* as the hardware: a barrier does not wait for threads that have ended */
    if (b->live && b->arrived == b->live) {
        b->arrived = 0, b->generation++, b->counted = b->votes, b->votes = 0;
        for (unsigned t = 0; t < b->threads; t++) b->first[t].waits = false;
    }
}

uint64_t seed_of_environment() {
    const char *const seed = getenv("ROT_HOST_SEED");
    return seed ? strtoull(seed, nullptr, 10) * 0x9E3779B97F4A7C15ull : 0;
}

}

#if ROT_TSAN
quiet::quiet() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__), AnnotateIgnoreWritesBegin(__FILE__, __LINE__); }
quiet::~quiet() { AnnotateIgnoreWritesEnd(__FILE__, __LINE__), AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
#endif

const place &here() { return running->at; }

void fail(const char *what) {
    const quiet q;
    const place &at = running->at;
    if (!now->failed)
        snprintf(now->error, sizeof now->error, "%s (block %u,%u,%u, thread %u)", what, at.block.x, at.block.y, at.block.z,
                 at.thread.x);
    now->failed = true;
    for (;;) wait();
}

int barrier(int vote) {
    const quiet q;
    block *const b = running->home;
    const unsigned generation = b->generation;
    release(&b->order);
    b->votes += vote != 0;
    if (++b->arrived == b->live) {
        b->arrived = 0, b->generation++, b->counted = b->votes, b->votes = 0;
        for (unsigned t = 0; t < b->threads; t++) b->first[t].waits = false;
    }
    while (b->generation == generation) wait();
    acquire(&b->order);
    return b->counted;
}

void give_way() {
    const quiet q;
    to_main();
}

void meet(uint32_t mask, int kind, const void *in, size_t size_in, void *out, size_t size_out, operation op) {
    const quiet q;
    fiber *const f = running;
    warp *const w = &f->home->warps[f->rank / WARP];
    const unsigned lane = f->rank % WARP;
    const uint32_t bit = 1u << lane;
    if (!(mask & bit)) fail("a lane is not in the mask of its own warp operation");
    while (w->leaving) to_main(); /* the operation before */
    if (w->arrived && (w->mask != mask || w->kind != kind)) fail("two different warp operations meet");
    w->mask = mask, w->kind = kind;
    memcpy(w->in[lane], in, size_in);
    release(&w->order);
    w->arrived |= bit;
    if (w->arrived == mask) {
        op(mask, w->in, w->out);
        w->leaving = mask, w->arrived = 0;
        fiber *const lanes = f->home->first + f->rank / WARP * WARP;
        for (unsigned l = 0; l < WARP; l++)
            if (mask >> l & 1) lanes[l].waits = false;
    }
    while (!(w->leaving & bit)) wait();
    acquire(&w->order);
    if (size_out) memcpy(out, w->out[lane], size_out);
    w->leaving &= ~bit;
}

void copy_begin(void *to, const void *from, size_t size) {
    poison(to, size);
    const quiet q;
    running->copies.push_back({to, from, size, running->group});
}
void copy_close() {
    const quiet q;
    running->group++;
}
void copy_finish(unsigned but) {
    fiber *const f = running;
    std::vector<copy> &copies = f->copies;
    size_t left = 0, i = 0, count;
    {
        const quiet q;
        count = copies.size();
    }
    for (; i < count; i++) {
        copy one;
        {
            const quiet q;
            one = copies[i];
            if (one.group + but >= f->group) {
                copies[left++] = one;
                continue;
            }
        }
        memcpy(one.to, one.from, one.size);
    }
    const quiet q;
    copies.resize(left);
}

void run(void (*body)(void *), void *args, dim3 blocks, unsigned threads, size_t shared) {
    const quiet q;
    static thread_local grid *const own = new grid; /* not on a stack that others use later */
    grid *const before = now;
    now = own;
    now->body = body, now->args = args, now->failed = false;
    now->random = seed_of_environment();
    const size_t count = (size_t)blocks.x * blocks.y * blocks.z, resident = count < RESIDENT ? count : (size_t)RESIDENT;
    if (!kept.reserve(resident * threads)) abort();
    now->fibers.resize(resident * threads);
    now->blocks.resize(resident);
#if ROT_TSAN
    now->tsan_main = __tsan_get_current_fiber();
#endif
    unsigned next = 0;
    size_t live = 0;
    for (size_t slot = 0; slot < resident; slot++, live++) start(slot, next++, blocks, threads, shared);
    std::vector<fiber *> ready;
    while (live && !now->failed) {
        ready.clear();
        for (size_t i = 0; i < resident * threads; i++)
            if (!now->fibers[i].done && !now->fibers[i].waits) ready.push_back(&now->fibers[i]);
        if (ready.empty()) {
            snprintf(now->error, sizeof now->error, "threads of block %u,%u,%u wait for others for ever",
                     now->fibers[0].at.block.x, now->fibers[0].at.block.y, now->fibers[0].at.block.z);
            for (size_t i = 0; i < resident * threads; i++) {
                const fiber &f = now->fibers[i];
                if (!f.done)
                    snprintf(now->error, sizeof now->error, "a thread waits for others for ever (block %u,%u,%u, thread %u)",
                             f.at.block.x, f.at.block.y, f.at.block.z, f.at.thread.x);
            }
            now->failed = true;
        }
        for (size_t i = ready.size(); now->random && i > 1; i--) std::swap(ready[i - 1], ready[draw() % i]);
        for (fiber *const f : ready) {
            if (f->done || f->waits) continue;
            resume(f);
            if (now->failed) break;
            if (!f->done) continue;
            end(f);
            block *const b = f->home;
            if (b->live) continue;
            const size_t slot = (size_t)(b - now->blocks.data());
            if (next < count)
                start(slot, next++, blocks, threads, shared);
            else
                live--;
        }
    }
    for (block &b : now->blocks) free(b.shared), b.shared = nullptr;
#if ROT_TSAN
    __tsan_acquire(&now->order);
#endif
    const bool failed = now->failed;
    now = before;
    if (failed) failed_launch(own->error);
}

}

/* ---- the runtime's twin ---- */

namespace {
struct {
    int precision, status;
    runtime_allocate allocate;
    void *context;
    char error[256];
} thread_local current;
const int64_t *counter = nullptr;
}

namespace host_device {
static void failed_launch(const char *why) {
    if (current.status == ROT_OK) snprintf(current.error, sizeof current.error, "%s", why);
    current.status = ROT_DEVICE_FAILED;
}
}

void runtime_begin(void *, int precision, runtime_allocate allocate, void *context) {
    current = {precision, ROT_OK, allocate, context, ""};
}
void runtime_use_counter(const int64_t *given) { counter = given; }
const int64_t *runtime_counter(void) { return counter; }
int runtime_status(void) { return current.status; }
const char *runtime_error(void) { return current.error; }
int runtime_device(void) { return 0; }
void runtime_use_blas(const char *) {}

bool runtime_can_launch(int64_t blocks) {
    if (blocks > INT_MAX) host_device::failed_launch("more blocks than a grid may have: the arrays are too large");
    return current.status == ROT_OK && blocks > 0;
}

void *runtime_memory(int64_t bytes) {
    if (current.status != ROT_OK) return nullptr;
    void *const memory = bytes < 0 ? nullptr : current.allocate(current.context, (size_t)(bytes ? bytes : 1));
    if (!memory) current.status = ROT_NO_MEMORY;
    return memory;
}
void runtime_zero(void *memory, int64_t bytes) {
    if (current.status == ROT_OK && bytes) memset(memory, 0, (size_t)bytes);
}
void runtime_copy(void *to, const void *from, int64_t bytes) {
    if (current.status == ROT_OK && bytes) memcpy(to, from, (size_t)bytes);
}

namespace {
template <class T> T rounded(T x) {
    if (current.precision == PRECISION_TF32) return (T)to_tf32((float)x);
    if (current.precision == PRECISION_BF16) return (T)bf16_value(bf16_bits((float)x));
    return x;
}
template <class T> void multiply(const runtime_product *p) {
    for (int64_t g = 0; g < p->count; g++) {
        const T *const a = (const T *)p->a + g * p->a_apart, *const b = (const T *)p->b + g * p->b_apart;
        T *const c = (T *)p->c + g * p->c_apart;
        for (int64_t i = 0; i < p->rows; i++)
            for (int64_t j = 0; j < p->columns; j++) {
                T sum = p->keep ? c[i * p->ldc + j] : 0;
                for (int64_t k = 0; k < p->inner; k++) {
                    const T x = p->a_turned ? a[k * p->lda + i] : a[i * p->lda + k];
                    const T y = p->b_turned ? b[j * p->ldb + k] : b[k * p->ldb + j];
                    sum += sizeof(T) == 8 ? x * y : rounded(x) * rounded(y);
                }
                c[i * p->ldc + j] = sum;
            }
    }
}
}

void runtime_multiply(const runtime_product *p) {
    if (current.status != ROT_OK) return;
    if (p->wide)
        multiply<double>(p);
    else
        multiply<float>(p);
}
