/* The kernels under the thread sanitizer (races.py): in several threads at once, on shared and on their own arrays,
 * with OpenMP's threads inside, and the pool of memory. Not across forks: in a child, the sanitizer's own allocator may
 * wait for ever for a lock that another thread held (LLVM 14). forks.c does that.
 *
 *   races              all of it; each result must have the bits of a single thread
 *   races threads      a race planted between two threads that write one array through a kernel
 *   races openmp       a race planted in a parallel loop
 */
#define _GNU_SOURCE /* barriers of threads */
#define ROT_RACES
#include "kernels.c"

#include <omp.h>
#include <pthread.h>
#include <string.h>

#include "pool.h"

enum { THREADS = 3, TEAM = 2, ROUNDS = 2 };

/* The same as in kernels.c, and sizes above those from which loops are parallel. */
static void test_all(void) {
    test_scan(2, 37, 19);
    test_scan(5, 400, 41);
    test_scan(1, 3001, 19);
    test_window(2, 41, 7, 5);
    test_window(3, 701, 33, 16);
#if !ROT_COMPLEX
    test_matmul(129, 67, 131);
    test_mix(290, 3, 41);
    test_functions(1001);
    test_adamw(40003);
    test_sgd(40003);
    test_adamw_groups(200003);
    test_block();
    test_philox();
#endif
}

/* ---- shared inputs ---- */

/* Outputs of kernels that read the same arrays in every thread. */
enum { SCAN_B = 2, SCAN_T = 700, SCAN_N = 40, SCAN = SCAN_B * SCAN_T * SCAN_N };
typedef struct {
    lane *a, *x, *h, *dx, *da;
} scan_job;

static void run_scan(const scan_job *j) {
    expect_status("shared scan", K(scan_forward)(&(scan_forward_args){
                                     .h = j->h, .a = j->a, .x = j->x, .B = SCAN_B, .T = SCAN_T, .N = SCAN_N}));
    expect_status(
        "shared scan",
        K(scan_backward)(&(scan_backward_args){
            .dx = j->dx, .da = j->da, .dh = j->x, .a = j->a, .h = j->h, .B = SCAN_B, .T = SCAN_T, .N = SCAN_N}));
}

static scan_job scan_outputs(const scan_job *shared) {
    return (scan_job){shared->a, shared->x, lanes(SCAN, 0), lanes(SCAN, 0), lanes(SCAN_N, 0)};
}

static int same_scan(const scan_job *one, const scan_job *other) {
    return !memcmp(one->h, other->h, SCAN * sizeof(lane)) && !memcmp(one->dx, other->dx, SCAN * sizeof(lane)) &&
           !memcmp(one->da, other->da, SCAN_N * sizeof(lane));
}

#if !ROT_COMPLEX
/* A block of many sequences, or of one whose tiles run in parallel; two directions, dropout, exact transitions. */
enum { BD = 24, BL = 32, BTILE = 24, ROOM = 1 << 20 };
typedef struct {
    int64_t B, T;
    const real *weights;
    const double *exact;
    real *out; /* (ROOM) */
} block_job;

static real *piece(real **at, int64_t n) {
    real *const here = *at;
    *at += n;
    return here;
}
static const real *given(const real **at, int64_t n) {
    const real *const here = *at;
    *at += n;
    return here;
}

static void run_block(const block_job *j) {
    const int64_t B = j->B, T = j->T, tiles = (T + BTILE - 1) / BTILE;
    const real *w = j->weights;
    real *o = j->out;
    block_in in = {.B = B,
                   .T = T,
                   .D = BD,
                   .L = BL,
                   .directions = 2,
                   .tile = BTILE,
                   .norm = NORM_CHANNEL,
                   .gate = GATE_FULL,
                   .eps = 1e-5,
                   .rate = 0.1,
                   .exact = j->exact};
    in.x = given(&w, B * T * BD), in.w_in = given(&w, BL * BD), in.a = given(&w, BL);
    in.w_out = given(&w, 2 * BD * BL), in.skip = given(&w, BD), in.center = given(&w, BD), in.gain = given(&w, BD);
    in.offset = given(&w, BD), in.w_value = given(&w, BD * BD), in.b_value = given(&w, BD);
    in.w_gate = given(&w, BD * BD), in.b_gate = given(&w, BD);
    block_out out = {.y = piece(&o, B * T * BD)};
    out.hT = piece(&o, 2 * B * BL), out.carries = piece(&o, 2 * B * tiles * BL);
    out.mean = piece(&o, BD), out.var = piece(&o, BD), out.layer = piece(&o, B * T * BD);
    const block_adjoint_in back = {.dy = in.x, .carries = out.carries, .layer = out.layer};
    block_adjoint_out d = {.dx = piece(&o, B * T * BD)};
    d.dw_in = piece(&o, BL * BD), d.da = piece(&o, BL), d.dw_out = piece(&o, 2 * BD * BL), d.dskip = piece(&o, BD);
    d.dh0 = piece(&o, 2 * B * BL), d.d_norm_sum = piece(&o, BD), d.d_norm_product = piece(&o, BD);
    d.dw_value = piece(&o, BD * BD), d.db_value = piece(&o, BD), d.dw_gate = piece(&o, BD * BD);
    d.db_gate = piece(&o, BD);
    if (o - j->out > ROOM || w - j->weights > ROOM) exit(98);
    expect_status("shared block", K(block_forward)(&(block_forward_args){.b = in, .out = out}));
    in.exact = NULL;
    expect_status("shared block", K(block_backward)(&(block_backward_args){.b = in, .in = back, .out = d}));
}
#endif

/* ---- the pool ---- */

/* Takes, resizes and gives blocks of all sizes, each marked at both ends. */
static void use_pool(int rounds) {
    enum { BLOCKS = 6, MOST = 5 << 20 };
    unsigned char *held[BLOCKS] = {0};
    size_t sizes[BLOCKS] = {0};
    for (int round = 0; round < rounds; round++) {
        const int i = (int)((uniform() + 1) / 2 * BLOCKS);
        const size_t bytes = 16 + (size_t)((uniform() + 1) / 2 * MOST);
        if (!held[i]) {
            held[i] = pool_take(bytes);
        } else if (round % 3) {
            expect("pool", round, held[i][0] == i && held[i][sizes[i] - 1] == i, 1, 0);
            pool_give(held[i]);
            held[i] = NULL;
        } else {
            held[i] = pool_resize(held[i], bytes);
            expect("pool resized", round, held[i][0], i, 0);
        }
        sizes[i] = bytes;
        if (held[i]) held[i][0] = held[i][bytes - 1] = (unsigned char)i;
        if (round % 17 == 0) (void)pool_release();
    }
    for (int i = 0; i < BLOCKS; i++) pool_give(held[i]);
}

/* ---- threads ---- */

static const scan_job *scan_shared;
#if !ROT_COMPLEX
static const block_job *few_shared, *many_shared;
#endif
static pthread_barrier_t together;

static void *work(void *seed) {
    state = (uint64_t)(uintptr_t)seed;
    omp_set_num_threads(TEAM);
    const scan_job mine = scan_outputs(scan_shared);
    (void)pthread_barrier_wait(&together);
    for (int round = 0; round < ROUNDS; round++) {
        run_scan(&mine);
        if (!same_scan(&mine, scan_shared)) report("bits of the scan", round, 0, 1);
#if !ROT_COMPLEX
        for (int k = 0; k < 2; k++) {
            const block_job *const shared = k ? few_shared : many_shared;
            block_job own = *shared;
            own.out = room(ROOM, sizeof(real));
            run_block(&own);
            if (memcmp(own.out, shared->out, ROOM * sizeof(real))) report("bits of the block", k, 0, 1);
            free(own.out);
        }
#endif
        use_pool(150);
    }
    test_all();
    return (void *)(uintptr_t)failures;
}

static void *write_shared(void *nothing) {
    (void)pthread_barrier_wait(&together);
    run_scan(scan_shared);
    return nothing;
}

static int in_threads(void *(*body)(void *), int count) {
    pthread_t threads[THREADS];
    int failed = 0;
    (void)pthread_barrier_init(&together, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        if (pthread_create(&threads[i], NULL, body, (void *)(uintptr_t)(i + 2))) exit(97);
    }
    for (int i = 0; i < count; i++) {
        void *result = NULL;
        (void)pthread_join(threads[i], &result);
        failed += (int)(uintptr_t)result;
    }
    return failed;
}

int main(int count, char **arguments) {
    const char *const planted = count > 1 ? arguments[1] : "";
    omp_set_num_threads(1);
    scan_job scan = {lanes(SCAN_N, 0.7), lanes(SCAN, 1), NULL, NULL, NULL};
    scan = scan_outputs(&scan);
    run_scan(&scan);
    scan_shared = &scan;
    if (!strcmp(planted, "threads")) return in_threads(write_shared, 2);
    if (!strcmp(planted, "openmp")) {
        double sum = 0;
#pragma omp parallel for num_threads(TEAM)
        for (int64_t i = 0; i < SCAN; i++) sum += widen(scan.x[i]).re;
        return sum > SCAN;
    }
#if !ROT_COMPLEX
    real *const weights = lanes(ROOM, 0.4);
    double *const exact = room(BL, sizeof(double));
    for (int64_t i = 0; i < BL; i++) exact[i] = 0.7 * uniform();
    block_job few = {1, 1500, weights, exact, room(ROOM, sizeof(real))},
              many = {40, 50, weights, NULL, room(ROOM, sizeof(real))};
    run_block(&few);
    run_block(&many);
    few_shared = &few, many_shared = &many;
#endif
    failures += in_threads(work, THREADS);
    printf("%d threads: %d failures\n", THREADS, failures);
    return failures != 0;
}
