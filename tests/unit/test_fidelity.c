/* The fidelity figures against rows whose errors are known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "veloxquant/eval.h"

enum { HEADS = 4, KV_HEADS = 2, TOKENS = 512, D = 128, QUERIES = 16 };

static float *normal_rows(size_t n, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)vq_rng_normal(&rng);
    return x;
}

static vq_fidelity judge(const char *keys, const char *values, uint32_t sinks, float *k_read)
{
    float *k = normal_rows((size_t)KV_HEADS * TOKENS * D, 1), *v = normal_rows((size_t)KV_HEADS * TOKENS * D, 2),
          *q = normal_rows((size_t)HEADS * QUERIES * D, 3);
    const vq_fidelity_params p = {.n_heads = HEADS,
                                  .n_kv_heads = KV_HEADS,
                                  .n_tokens = TOKENS,
                                  .n_queries = QUERIES,
                                  .d_k = D,
                                  .d_v = D,
                                  .k = k,
                                  .v = v,
                                  .q = q,
                                  .keys = keys,
                                  .values = values,
                                  .sinks = sinks,
                                  .k_read = k_read};
    vq_fidelity f;
    vq_error err;
    if (vq_eval_fidelity(&p, &f, &err) != VQ_OK)
        fail_msg("%s: %s", keys, err.text);
    free(k);
    free(v);
    free(q);
    return f;
}

static void check(const char *what, double got, double low, double high)
{
    if (!(got >= low && got <= high))
        fail_msg("%s is %g, wanted %g to %g", what, got, low, high);
}

static void exact_rows_lose_nothing(void **state)
{
    (void)state;
    const vq_fidelity f = judge("f32", "f32", 0, NULL);
    assert_int_equal(f.n_rows, KV_HEADS * TOKENS);
    check("bits", f.bits_per_value, 32, 32.01); /* and the codec states */
    check("cosine", f.key_cosine, 1 - 1e-6, 1 + 1e-6);
    check("error", f.value_error, 0, 1e-12);
    check("slope", f.product_slope, 1 - 1e-6, 1 + 1e-6);
    check("attention", f.attention_error, 0, 1e-5);
}

/* Lloyd-Max at 3 bits has a unit error of 0.03454 (d = 128: nearly that of a normal). */
static void codes_have_their_known_error(void **state)
{
    (void)state;
    const vq_fidelity f = judge("turboquant-mse:bits=3", "turboquant-mse:bits=3", 0, NULL);
    assert_int_equal(f.n_packed, KV_HEADS * TOKENS);
    check("bits", f.bits_per_value, 3.125, 3.13);
    check("value error", f.value_error, 0.0325, 0.0355);
    check("key cosine", f.key_cosine, 0.982, 0.984);
    check("product error", f.product_error, 0.17, 0.20);
    check("product slope", f.product_slope, 0.955, 0.975); /* least squares: 1 - the unit error */
    check("attention error", f.attention_error, 0.15, 0.35);
}

static void sinks_are_not_judged_as_codes(void **state)
{
    (void)state;
    float *read = malloc((size_t)KV_HEADS * TOKENS * D * sizeof *read);
    float *k = normal_rows((size_t)KV_HEADS * TOKENS * D, 1);
    const vq_fidelity f = judge("turboquant-mse:bits=1", "f16", 32, read);
    assert_int_equal(f.n_packed, KV_HEADS * (TOKENS - 32));
    for (size_t h = 0; h < KV_HEADS; h++)
        assert_memory_equal(read + h * TOKENS * D, k + h * TOKENS * D, 32 * D * sizeof *k);
    assert_memory_not_equal(read + 32 * D, k + 32 * D, D * sizeof *k);
    check("key error", f.key_error, 0.34, 0.60);
    free(read);
    free(k);
}

static void says_what_is_wrong(void **state)
{
    (void)state;
    vq_error err;
    vq_fidelity f;
    const float x[64] = {0};
    vq_fidelity_params p = {.n_heads = 3, .n_kv_heads = 2, .n_tokens = 1, .d_k = 8, .d_v = 8, .k = x, .v = x};
    assert_int_equal(vq_eval_fidelity(&p, &f, &err), VQ_ERR_ARG);
    p.n_heads = 2;
    p.keys = "no-such-method";
    assert_int_equal(vq_eval_fidelity(&p, &f, &err), VQ_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_rows_lose_nothing),
        cmocka_unit_test(codes_have_their_known_error),
        cmocka_unit_test(sinks_are_not_judged_as_codes),
        cmocka_unit_test(says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
