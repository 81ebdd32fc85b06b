/* Worker threads that take numbered tasks.
 *
 * A decoded token runs the pool some 200 times with gaps of microseconds, so that both ends spin briefly before they
 * sleep on a futex.  What is left of a run lives in one word, `ticket`; a thread that takes a task lowers it.  The
 * other fields are read only by a thread that holds a task, and a run ends only when all its tasks are done: a worker
 * that wakes late finds nothing to take and touches nothing, and nobody waits for it. */
#include "base/pool.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"

/* Stacks hold what tasks need (VQ_STACK_BYTES) whatever the system's default is, and as much again for what sanitizers
 * add to frames; only pages that are touched are memory. */
enum { MAX_THREADS = 1024, SPIN_NANOSECONDS = 40000, LINE = 64, STACK_BYTES = 2 * VQ_STACK_BYTES };

typedef struct worker {
    struct vq_pool *pool;
    pthread_t thread;
    uint32_t index;
} worker;

struct vq_pool {
    /* Each on its own cache line: all threads write `ticket`, the caller watches `undone`. */
    _Alignas(LINE) _Atomic uint32_t ticket; /* tasks of this run not yet taken */
    _Alignas(LINE) _Atomic uint32_t undone; /* tasks of this run not yet done; the caller sleeps on it */
    _Alignas(LINE) _Atomic uint32_t wake;   /* workers sleep on it; raised for every run */
    _Atomic uint32_t n_asleep;              /* workers that sleep or are about to */
    _Atomic bool caller_asleep, closing;

    vq_task fn;
    void *arg;
    uint32_t n_tasks;

    uint32_t n_threads, n_started;
    long spin_nanoseconds;
    worker *workers; /* [n_threads - 1] */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0); /* wakes early are harmless: callers loop */
}

static void futex_wake(_Atomic uint32_t *word, uint32_t n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, (int)n, NULL, NULL, 0);
}

/* Takes tasks until none is left. */
static void work(vq_pool *pool, uint32_t thread)
{
    uint32_t n_done = 0;
    uint32_t left = atomic_load_explicit(&pool->ticket, memory_order_relaxed);
    while (left) {
        if (!atomic_compare_exchange_weak_explicit(&pool->ticket, &left, left - 1, memory_order_acquire,
                                                   memory_order_relaxed))
            continue;
        pool->fn(pool->arg, pool->n_tasks - left, thread);
        n_done++;
        left = atomic_load_explicit(&pool->ticket, memory_order_relaxed);
    }
    /* Until here the run cannot end, so all n_done tasks belong to the same one. */
    if (n_done && atomic_fetch_sub(&pool->undone, n_done) == n_done && atomic_load(&pool->caller_asleep))
        futex_wake(&pool->undone, 1);
}

/* Spins until there is something to do, then sleeps. */
static void await_work(vq_pool *pool)
{
    const long until = pool->spin_nanoseconds ? now() + pool->spin_nanoseconds : 0;
    do {
        for (unsigned i = 0; i < 16; i++) {
            if (atomic_load_explicit(&pool->ticket, memory_order_relaxed))
                return;
            relax();
        }
    } while (until && now() < until);

    /* The order matters: announce, read the word, look again.  A run that starts after the look finds us announced and
     * either changes the word before we sleep or wakes us. */
    atomic_fetch_add(&pool->n_asleep, 1);
    for (;;) {
        const uint32_t word = atomic_load(&pool->wake);
        if (atomic_load(&pool->ticket) || atomic_load(&pool->closing))
            break;
        futex_wait(&pool->wake, word);
    }
    atomic_fetch_sub(&pool->n_asleep, 1);
}

static void *worker_main(void *arg)
{
    const worker *w = arg;
    while (!atomic_load_explicit(&w->pool->closing, memory_order_relaxed)) {
        await_work(w->pool);
        work(w->pool, w->index);
    }
    return NULL;
}

static void await_end(vq_pool *pool)
{
    const long until = pool->spin_nanoseconds ? now() + pool->spin_nanoseconds : 0;
    do {
        for (unsigned i = 0; i < 16; i++) {
            if (!atomic_load_explicit(&pool->undone, memory_order_acquire))
                return;
            relax();
        }
    } while (until && now() < until);

    atomic_store(&pool->caller_asleep, true);
    for (uint32_t left; (left = atomic_load(&pool->undone)) != 0;)
        futex_wait(&pool->undone, left);
    atomic_store(&pool->caller_asleep, false);
}

void vq_pool_run(vq_pool *pool, uint32_t n_tasks, vq_task fn, void *arg)
{
    if (!pool || !pool->n_started || n_tasks < 2) {
        for (uint32_t i = 0; i < n_tasks; i++)
            fn(arg, i, 0);
        return;
    }

    assert(!atomic_load(&pool->undone)); /* one caller at a time, not from inside a task */
    pool->fn = fn;
    pool->arg = arg;
    pool->n_tasks = n_tasks;
    atomic_store_explicit(&pool->undone, n_tasks, memory_order_relaxed);
    atomic_store(&pool->ticket, n_tasks); /* publishes the fields above */
    atomic_fetch_add(&pool->wake, 1);
    if (atomic_load(&pool->n_asleep))
        futex_wake(&pool->wake, n_tasks - 1 < pool->n_started ? n_tasks - 1 : pool->n_started);
    work(pool, 0);
    await_end(pool);
}

/* Signals go to the program's own threads; those that a thread raises itself (SIGBUS on a shrunken file map) must
 * still reach a handler. */
static int start_worker(worker *w)
{
    sigset_t blocked, before;
    sigfillset(&blocked);
    const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    for (unsigned i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&blocked, own[i]);
    pthread_attr_t attr;
    if (pthread_attr_init(&attr))
        return -1;
    int failed = pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    failed = failed ? failed : pthread_create(&w->thread, &attr, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failed;
}

vq_status vq_pool_open(vq_pool **out, uint32_t n_threads, vq_error *err)
{
    if (!out)
        return vq_fail(err, VQ_ERR_ARG, "vq_pool_open: out is NULL");
    *out = NULL;
    const uint32_t allowed = vq_cores_allowed();
    if (!n_threads)
        n_threads = allowed < MAX_THREADS ? allowed : MAX_THREADS;
    if (n_threads > MAX_THREADS)
        return vq_fail(err, VQ_ERR_ARG, "%u threads: at most %d", n_threads, MAX_THREADS);

    vq_pool *pool = aligned_alloc(LINE, sizeof *pool);
    worker *workers = calloc(n_threads, sizeof *workers);
    if (!pool || !workers) {
        free(pool);
        free(workers);
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a pool of %u threads", n_threads);
    }
    *pool = (vq_pool){.n_threads = n_threads, .workers = workers};
    /* With more threads than cores a spinning one keeps a working one off its core. */
    pool->spin_nanoseconds = n_threads <= allowed ? SPIN_NANOSECONDS : 0;

    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        workers[i] = (worker){.pool = pool, .index = i + 1};
        if (start_worker(&workers[i])) {
            vq_pool_close(pool);
            return vq_fail(err, VQ_ERR_NOMEM, "the system refused thread %u of %u", i + 2, n_threads);
        }
        pool->n_started++;
    }
    *out = pool;
    return VQ_OK;
}

void vq_pool_close(vq_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->closing, true);
    atomic_fetch_add(&pool->wake, 1);
    futex_wake(&pool->wake, MAX_THREADS);
    for (uint32_t i = 0; i < pool->n_started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool);
}

uint32_t vq_pool_n_threads(const vq_pool *pool) { return pool ? pool->n_threads : 1; }
