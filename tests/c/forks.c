/* A child that is forked while another thread holds the pool's lock can allocate (test_threads.py). */
#define _GNU_SOURCE /* barriers of threads */
#include "pool.c"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t held;

static void *hold(void *nothing) {
    lock();
    (void)pthread_barrier_wait(&held);
    (void)usleep(100000);
    unlock();
    return nothing;
}

int main(void) {
    pthread_t holder;
    pool_survive_fork();
    if (pthread_barrier_init(&held, NULL, 2) || pthread_create(&holder, NULL, hold, NULL)) return 97;
    (void)pthread_barrier_wait(&held);
    const pid_t child = fork();
    if (!child) {
        (void)alarm(30); /* ends a child that waits for ever */
        void *const memory = pool_take(4 << 20);
        pool_give(memory);
        _exit(!memory);
    }
    int status = -1;
    const int lost = waitpid(child, &status, 0) != child || status;
    return pthread_join(holder, NULL) || lost;
}
