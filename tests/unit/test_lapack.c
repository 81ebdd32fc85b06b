/* What is computed through LAPACK while other threads do the same is what one thread computes, to the last bit. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "quant/eigen.h"
#include "quant/lapack.h"

enum { D = 96, N = 128, THREADS = 4, ROUNDS = 200 };

typedef struct numbers {
    float x[N * D], products[D * D], factor[D * D];
    double sum[D * D], values[D];
} numbers;

/* From rows that a seed draws; returns whether LAPACK was content. */
static bool compute(numbers *a, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < sizeof a->x / sizeof *a->x; i++)
        a->x[i] = (float)vq_rng_normal(&rng);
    vq_add_products(a->sum, a->x, D, N, D, a->products);
    for (uint32_t i = 0; i < D; i++)
        for (uint32_t j = 0; j <= i; j++)
            a->factor[(size_t)i * D + j] = (float)a->sum[(size_t)j * D + i];
    return vq_lapack_cholesky(a->factor, D) == 0 && vq_eigen_symmetric(a->sum, a->values, D, NULL) == VQ_OK;
}

typedef struct worker {
    pthread_t thread;
    const numbers *want;
    pthread_barrier_t *start;
    uint64_t seed;
    uint32_t n_wrong;
} worker;

static void *work(void *arg)
{
    worker *w = arg;
    numbers *got = malloc(sizeof *got);
    pthread_barrier_wait(w->start);
    for (int round = 0; round < ROUNDS; round++)
        w->n_wrong += !got || !compute(got, w->seed) || memcmp(got, w->want, sizeof *got) != 0;
    free(got);
    return NULL;
}

static void threads_do_not_meet(void **state)
{
    (void)state;
    static numbers want[THREADS];
    worker workers[THREADS];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, THREADS);
    for (uint32_t i = 0; i < THREADS; i++) {
        assert_true(compute(&want[i], 100 + i));
        workers[i] = (worker){.want = &want[i], .start = &start, .seed = 100 + i};
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (uint32_t i = 0; i < THREADS; i++)
        if (workers[i].n_wrong)
            fail_msg("thread %u: %u of %d rounds differ from what one thread computes", i, workers[i].n_wrong, ROUNDS);
    pthread_barrier_destroy(&start);
}

/* The products by themselves, and the factor multiplied out again. */
static void results_are_right(void **state)
{
    (void)state;
    static numbers a;
    assert_true(compute(&a, 7));
    for (uint32_t i = 0; i < D; i++)
        for (uint32_t j = i; j < D; j++) {
            double product = 0, again = 0;
            for (uint32_t k = 0; k < N; k++)
                product += (double)a.x[(size_t)k * D + i] * a.x[(size_t)k * D + j];
            for (uint32_t k = 0; k <= i; k++)
                again += (double)a.factor[(size_t)i * D + k] * a.factor[(size_t)j * D + k];
            assert_float_equal(a.products[(size_t)i * D + j], product, 1e-3);
            assert_float_equal(again, product, 1e-3);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_right),
        cmocka_unit_test(threads_do_not_meet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
