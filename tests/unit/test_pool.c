/* The pool: every task once, in order, on threads of their own, whether workers spin or sleep. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/pool.h"

enum { MAX_TASKS = 5000, MAX_THREADS = 8 };

typedef struct job {
    uint32_t n_tasks, n_threads;
    _Atomic uint32_t times[MAX_TASKS];
    _Atomic bool busy[MAX_THREADS]; /* two tasks at once with the same thread number share scratch */
    uint32_t last[MAX_THREADS];     /* plain: a thread number is one thread at a time, in ascending order */
    uint64_t sum[MAX_THREADS];
    _Atomic uint32_t n_faults;
} job;

static void task(void *arg, uint32_t index, uint32_t thread)
{
    job *j = arg;
    if (index >= j->n_tasks || thread >= j->n_threads || atomic_exchange(&j->busy[thread], true)) {
        j->n_faults++;
        return;
    }
    if (j->last[thread] && j->last[thread] > index)
        j->n_faults++;
    j->last[thread] = index + 1;
    j->times[index]++;
    j->sum[thread] += index;
    atomic_store(&j->busy[thread], false);
}

static void check_run(vq_pool *pool, job *j, uint32_t n_tasks)
{
    memset(j, 0, sizeof *j);
    j->n_tasks = n_tasks;
    j->n_threads = vq_pool_n_threads(pool);
    vq_pool_run(pool, n_tasks, task, j);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < MAX_TASKS; i++)
        assert_int_equal(j->times[i], i < n_tasks);
    for (uint32_t i = 0; i < MAX_THREADS; i++)
        sum += j->sum[i];
    assert_int_equal(sum, (uint64_t)n_tasks * (n_tasks ? n_tasks - 1 : 0) / 2);
    assert_int_equal(j->n_faults, 0);
}

static void pause_for(long nanoseconds) { nanosleep(&(struct timespec){.tv_nsec = nanoseconds}, NULL); }

static void every_task_once(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, 1, 2, 3, 7, 8, 9, 100, MAX_TASKS};
    job *j = malloc(sizeof *j);
    for (uint32_t n_threads = 1; n_threads <= MAX_THREADS; n_threads++) {
        vq_pool *pool;
        assert_int_equal(vq_pool_open(&pool, n_threads, NULL), VQ_OK);
        assert_int_equal(vq_pool_n_threads(pool), n_threads);
        for (unsigned round = 0; round < 3; round++) {
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                check_run(pool, j, counts[i]);
            pause_for(1000000); /* longer than they spin: the next run has to wake them */
        }
        vq_pool_close(pool);
    }
    check_run(NULL, j, 100);
    free(j);
}

static void count_task(void *arg, uint32_t index, uint32_t thread)
{
    (void)index;
    (void)thread;
    atomic_fetch_add_explicit((_Atomic uint64_t *)arg, 1, memory_order_relaxed);
}

/* Runs of two to four tasks at the rate of decoding, with gaps around the time that workers spin: what a lost wake-up
 * or a worker that takes a task of the next run would break. */
static void many_short_runs(void **state)
{
    (void)state;
    for (uint32_t n_threads = 2; n_threads <= MAX_THREADS; n_threads += 2) {
        vq_pool *pool;
        assert_int_equal(vq_pool_open(&pool, n_threads, NULL), VQ_OK);
        _Atomic uint64_t n = 0;
        uint64_t want = 0;
        for (uint32_t run = 0; run < 5000; run++) {
            const uint32_t n_tasks = 2 + run % 3;
            vq_pool_run(pool, n_tasks, count_task, &n);
            want += n_tasks;
            assert_int_equal(n, want);
            if (run % 100 == 99)
                pause_for(20000 + 500 * (run % 150));
        }
        vq_pool_close(pool);
    }
}

static void slow_task(void *arg, uint32_t index, uint32_t thread)
{
    if (index == 1)
        pause_for(2000000);
    count_task(arg, index, thread);
}

/* The caller itself has to sleep for the end of a run. */
static void waits_for_the_slowest(void **state)
{
    (void)state;
    vq_pool *pool;
    assert_int_equal(vq_pool_open(&pool, 3, NULL), VQ_OK);
    for (unsigned i = 1; i <= 20; i++) {
        _Atomic uint64_t n = 0;
        vq_pool_run(pool, 3, slow_task, &n);
        assert_int_equal(n, 3);
    }
    vq_pool_close(pool);
}

static void opens_and_closes(void **state)
{
    (void)state;
    vq_error err;
    vq_pool *pool;
    for (unsigned i = 0; i < 50; i++) { /* closed while workers are still starting */
        assert_int_equal(vq_pool_open(&pool, 1 + i % 8, NULL), VQ_OK);
        vq_pool_close(pool);
    }
    assert_int_equal(vq_pool_open(&pool, 0, NULL), VQ_OK);
    assert_int_equal(vq_pool_n_threads(pool), vq_cores_allowed());
    vq_pool_close(pool);

    pool = (vq_pool *)&err;
    assert_int_equal(vq_pool_open(&pool, 1000000, &err), VQ_ERR_ARG);
    assert_null(pool);
    assert_non_null(strstr(err.text, "1000000"));
    assert_int_equal(vq_pool_open(NULL, 1, &err), VQ_ERR_ARG);
    assert_int_equal(vq_pool_n_threads(NULL), 1);
    vq_pool_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_task_once),
        cmocka_unit_test(many_short_runs),
        cmocka_unit_test(waits_for_the_slowest),
        cmocka_unit_test(opens_and_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
