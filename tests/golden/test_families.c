/* Toy models of every family: logits against the NumPy reference, the same bits for any chunking and number of threads,
 * and where a sliding window ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "golden/golden.h"
#include "golden/toys.h"
#include "model/forward.h"
#include "support/toy_open.h"

/* Toys have 8 layers and widths of 48 at most; f32 against float64 keeps 1e-4 with room to spare. */
static const double MOST_DIFFERENCE = 1e-4;

static void logits_equal_the_reference(void **state)
{
    const toy *t = *state;
    golden g = golden_load(t->name);
    vq_model *model = toy_open(&t->params);
    const uint32_t n_vocab = vq_model_get_info(model)->n_vocab;
    float *logits = golden_logits(&(golden_run){.model = model, .exact = true, .cache = "f32"}, g.ids, g.n);
    const double difference = golden_difference(&g, logits, n_vocab);
    print_message("%s: largest difference %.3g\n", t->name, difference);
    assert_true(difference < MOST_DIFFERENCE);
    free(logits);
    vq_model_close(model);
    golden_free(&g);
}

static void chunks_and_threads_give_the_same_bits(void **state)
{
    const toy *t = *state;
    golden g = golden_load(t->name);
    vq_model *model = toy_open(&t->params);
    const size_t n_bytes = (size_t)g.n * vq_model_get_info(model)->n_vocab * sizeof(float);
    static const uint32_t chunks[] = {1, 3, 17, 40};
    for (int exact = 0; exact < 2; exact++) {
        golden_run run = {.model = model, .exact = exact, .cache = "f32"};
        float *want = golden_logits(&run, g.ids, g.n);
        for (uint32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
            assert_int_equal(vq_pool_open(&run.pool, n_threads, NULL), VQ_OK);
            for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
                run.chunk = chunks[i];
                float *got = golden_logits(&run, g.ids, g.n);
                if (memcmp(got, want, n_bytes) != 0)
                    fail_msg("%s: %s, chunks of %u, %u threads: other bits than all at once", t->name,
                             exact ? "exact" : "int8", chunks[i], n_threads);
                free(got);
            }
            vq_pool_close(run.pool);
            run.pool = NULL;
        }
        free(want);
    }
    vq_model_close(model);
    golden_free(&g);
}

/* Rows of the last run that were not asked for must not change those that were. */
static void unwanted_rows_change_nothing(void **state)
{
    const toy *t = *state;
    golden g = golden_load(t->name);
    vq_model *model = toy_open(&t->params);
    vq_error err = {0};
    const uint32_t n_vocab = vq_model_get_info(model)->n_vocab, n_batch = 20;
    float *want = golden_logits(&(golden_run){.model = model, .cache = "f32"}, g.ids, g.n);
    float *got = malloc(n_vocab * sizeof *got);
    assert_non_null(got);
    for (uint32_t first = 0; first < n_batch; first += 19) {
        vq_kv_params params = {.n_ctx = g.n, .n_batch = n_batch, .keys = "f32", .values = "f32"};
        params.exact = VQ_KV_EXACT_F32;
        params.sinks = params.residual = VQ_KV_DEFAULT;
        vq_forward_kv_params(model, &params);
        vq_kv *kv;
        vq_forward *f;
        assert_int_equal(vq_kv_open(&kv, &params, &err), VQ_OK);
        assert_int_equal(vq_forward_open(&f, model, NULL, n_batch, false, &err), VQ_OK);
        assert_int_equal(vq_forward_run(f, kv, g.ids, 0, n_batch, n_batch, &err), VQ_OK); /* none wanted */
        assert_int_equal(vq_forward_run(f, kv, g.ids + n_batch, n_batch, n_batch, first, &err), VQ_OK);
        vq_forward_logits(f, n_batch - 1, 1, got);
        assert_memory_equal(got, want + (size_t)(2 * n_batch - 1) * n_vocab, n_vocab * sizeof *got);
        assert_int_equal(vq_forward_run(f, kv, g.ids, 2 * n_batch, n_batch + 1, 0, &err), VQ_ERR_ARG);
        assert_int_equal(vq_forward_run(f, kv, (int32_t[]){-1}, 2 * n_batch, 1, 0, &err), VQ_ERR_ARG);
        assert_int_equal(vq_forward_run(f, kv, (int32_t[]){(int32_t)n_vocab}, 2 * n_batch, 1, 0, &err), VQ_ERR_ARG);
        vq_forward_close(f);
        vq_kv_close(kv);
    }
    free(got);
    free(want);
    vq_model_close(model);
    golden_free(&g);
}

/* Window W is the query and W - 1 earlier keys: in one layer with W = 4, the last of 7 tokens sees the token 3 before
 * it and not the one 4 before it, however the prompt is cut. */
static void window_is_the_query_and_w_minus_1_keys(void **state)
{
    (void)state;
    enum { N = 7, W = 4 };
    static const toy_family sliding[] = {TOY_MISTRAL, TOY_GEMMA3};
    for (int i = 0; i < 2; i++) {
        toy_params params;
        toy_params_init(&params, sliding[i]);
        params.n_layers = 1;
        params.window = W;
        vq_model *model = toy_open(&params);
        const uint32_t n_vocab = vq_model_get_info(model)->n_vocab, chunks[] = {0, 1, 3};
        assert_int_equal(vq_model_get_info(model)->window, W);
        const size_t last = (size_t)(N - 1) * n_vocab, row_bytes = n_vocab * sizeof(float);
        for (int c = 0; c < 3; c++) {
            const golden_run run = {.model = model, .exact = true, .cache = "f32", .chunk = chunks[c]};
            int32_t ids[N] = {11, 22, 33, 44, 55, 66, 77};
            float *base = golden_logits(&run, ids, N);
            ids[N - 1 - W] = 99;
            float *outside = golden_logits(&run, ids, N);
            ids[N - 1 - W] = 33;
            ids[N - W] = 99;
            float *inside = golden_logits(&run, ids, N);
            assert_memory_equal(outside + last, base + last, row_bytes);
            assert_memory_not_equal(inside + last, base + last, row_bytes);
            free(base);
            free(outside);
            free(inside);
        }
        vq_model_close(model);
    }
}

int main(int argc, char **argv)
{
    if (argc == 2)
        setenv("VQ_CPU", argv[1], 1); /* the ceiling, for one run a tier */
    static toy toys[N_TOYS];
    toys_make(toys);
    struct CMUnitTest tests[3 * N_TOYS + 1];
    size_t n = 0;
    for (int i = 0; i < N_TOYS; i++) {
        tests[n++] = (struct CMUnitTest){toys[i].name, logits_equal_the_reference, NULL, NULL, &toys[i]};
        tests[n++] = (struct CMUnitTest){toys[i].name, chunks_and_threads_give_the_same_bits, NULL, NULL, &toys[i]};
        tests[n++] = (struct CMUnitTest){toys[i].name, unwanted_rows_change_nothing, NULL, NULL, &toys[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(window_is_the_query_and_w_minus_1_keys);
    return _cmocka_run_group_tests("families", tests, n, NULL, NULL);
}
