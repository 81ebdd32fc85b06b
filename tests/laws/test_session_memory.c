/* A decode step of a session allocates nothing: activations, logits and tables are there from the start, and pages lie
 * in addresses that were reserved.  The allocator's calls are counted (the linker's --wrap). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/rng.h"
#include "support/toy_open.h"
#include "veloxquant/session.h"

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t each);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
int __real_posix_memalign(void **p, size_t align, size_t n);
void __real_free(void *p);
void *__real_mmap64(void *start, size_t n, int protection, int flags, int file, off_t offset);
int __real_munmap(void *start, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t each);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
int __wrap_posix_memalign(void **p, size_t align, size_t n);
void __wrap_free(void *p);
void *__wrap_mmap64(void *start, size_t n, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void *start, size_t n);

static size_t n_calls;

void *__wrap_malloc(size_t n)
{
    n_calls++;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t each)
{
    n_calls++;
    return __real_calloc(n, each);
}

void *__wrap_realloc(void *p, size_t n)
{
    n_calls++;
    return __real_realloc(p, n);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    n_calls++;
    return __real_aligned_alloc(align, n);
}

int __wrap_posix_memalign(void **p, size_t align, size_t n)
{
    n_calls++;
    return __real_posix_memalign(p, align, n);
}

void __wrap_free(void *p)
{
    n_calls++;
    __real_free(p);
}

void *__wrap_mmap64(void *start, size_t n, int protection, int flags, int file, off_t offset)
{
    n_calls++;
    return __real_mmap64(start, n, protection, flags, file, offset);
}

int __wrap_munmap(void *start, size_t n)
{
    n_calls++;
    return __real_munmap(start, n);
}

enum { PROMPT = 100, N = 400 };

static void decoding_allocates_nothing(void **state)
{
    (void)state;
    static const char *const caches[] = {"f16", "velox:bits=3", "turboquant-mse:bits=2", "kivi:bits=4"};
    vq_pool *pools[2] = {NULL};
    uint32_t n_sessions = 0;
    assert_int_equal(vq_pool_open(&pools[1], 2, NULL), VQ_OK);
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        toy_params toy;
        toy_params_init(&toy, (toy_family)family);
        vq_model *m = toy_open(&toy);
        vq_rng rng;
        int32_t ids[N];
        vq_rng_seed(&rng, 3);
        for (int i = 0; i < N; i++)
            ids[i] = (int32_t)(vq_rng_next(&rng) % vq_model_get_info(m)->n_vocab);
        for (size_t c = 0; c < sizeof caches / sizeof caches[0]; c++)
            for (int threads = 0; threads < 2; threads++) {
                vq_session_params p;
                vq_session *s;
                vq_error err;
                vq_session_params_init(&p);
                p.n_ctx = N;
                p.pool = pools[threads];
                p.kv_keys = p.kv_values = caches[c];
                if (vq_session_open(&s, m, &p, &err) == VQ_ERR_UNSUPPORTED)
                    continue; /* a head size that the method can't do */
                assert_int_equal(vq_session_eval(s, ids, PROMPT, NULL, 0, NULL, &err), VQ_OK);
                const size_t before = n_calls;
                for (int i = PROMPT; i < N; i++)
                    if (vq_session_eval(s, ids + i, 1, NULL, 0, NULL, &err) != VQ_OK)
                        fail_msg("%s", err.text);
                if (n_calls != before)
                    fail_msg("%s, %s: %d decode steps called the allocator %zu times", vq_model_get_info(m)->family,
                             caches[c], N - PROMPT, n_calls - before);
                assert_non_null(vq_session_logits(s));
                n_sessions++;
                vq_session_close(s);
            }
        vq_model_close(m);
    }
    vq_pool_close(pools[1]);
    assert_true(n_calls > 0);
    printf("%u sessions of %d families\n", n_sessions, N_TOY_FAMILIES);
    assert_true(n_sessions >= 2 * 3 * N_TOY_FAMILIES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decoding_allocates_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
