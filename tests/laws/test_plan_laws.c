/* Caches with a plan: every head computes what it would in a cache where all have its bits, to the last bit, and takes
 * the bytes that it would take there; saved caches and forks keep their bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv_inner.h"
#include "kv_feed.h"
#include "support/temporary.h"

enum { LAYERS = 3, HEADS = 2, D = 64, N = 420, CHUNK = 77 };

static const double key_bits[LAYERS * HEADS] = {2, 4, 3, 3, 1, 2}, value_bits[LAYERS * HEADS] = {4, 3, 1, 2, 3, 3};
static const uint32_t window[LAYERS] = {0, 0, 100};

static vq_plan *make_plan(const char *keys, const char *values)
{
    vq_plan *p;
    assert_int_equal(vq_plan_new(&p, LAYERS, HEADS, NULL), VQ_OK);
    snprintf(p->keys, sizeof p->keys, "%s", keys);
    snprintf(p->values, sizeof p->values, "%s", values);
    memcpy(p->key_bits, key_bits, sizeof key_bits);
    memcpy(p->value_bits, value_bits, sizeof value_bits);
    return p;
}

static vq_kv *open_planned(const feed *f, const vq_plan *plan)
{
    return feed_open(f, (vq_kv_params){.window = window, .sinks = 3, .residual = 32, .n_batch = CHUNK, .plan = plan});
}

static vq_kv *open_uniform(const feed *f, const char *codec, int keys, int values)
{
    char k[64], v[64];
    snprintf(k, sizeof k, "%s:bits=%d", codec, keys);
    snprintf(v, sizeof v, "%s:bits=%d", codec, values);
    return feed_open(
        f, (vq_kv_params){.window = window, .sinks = 3, .residual = 32, .n_batch = CHUNK, .keys = k, .values = v});
}

static uint64_t packed(const vq_kv *kv)
{
    vq_kv_bytes b;
    vq_kv_measure(kv, &b);
    return b.codes + b.scales;
}

static void check_codec(const char *codec)
{
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 5);
    vq_plan *plan = make_plan(codec, codec);
    vq_kv *kv = open_planned(&f, plan);
    vq_plan_close(plan); /* which the cache does not need any more */
    feed_run(&f, kv, 0, N, CHUNK);
    float *got = malloc(feed_out_bytes(&f));
    memcpy(got, f.out, feed_out_bytes(&f));
    uint64_t want_bytes = 0;
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < HEADS; h++) {
            const uint32_t at = l * HEADS + h;
            vq_kv *same = open_uniform(&f, codec, (int)key_bits[at], (int)value_bits[at]);
            feed_run(&f, same, 0, N, 2 * CHUNK / 3);
            for (uint32_t i = 0; i < N; i++) {
                const size_t row = (((size_t)l * N + i) * 2 * HEADS + 2 * (size_t)h) * D;
                if (memcmp(got + row, f.out + row, 2 * D * sizeof *got) != 0)
                    fail_msg("%s: layer %u, head %u, row %u differs from a cache of %g and %g bits", codec, l, h, i,
                             key_bits[at], value_bits[at]);
            }
            const vq_kv_head *head = &same->layers[l].heads[h];
            want_bytes += head->n_pages * (head->split.codes + head->split.scales);
            vq_kv_close(same);
        }
    assert_int_equal(packed(kv), want_bytes);
    vq_kv_close(kv);
    free(got);
    feed_free(&f);
}

static void heads_are_as_with_equal_bits(void **state)
{
    (void)state;
    check_codec("turboquant-mse");
    check_codec("velox");
    check_codec("kivi");
    check_codec("optimal");
}

static void saved_caches_keep_their_bits(void **state)
{
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_file(path, "plan");
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 6);
    vq_plan *plan = make_plan("velox", "turboquant-mse");
    vq_kv *kv = open_planned(&f, plan), *again = open_planned(&f, plan);
    feed_run(&f, kv, 0, 300, CHUNK);
    assert_int_equal(vq_kv_save(kv, path, NULL), VQ_OK);
    feed_run(&f, kv, 300, N, CHUNK);
    float *want = malloc(feed_out_bytes(&f));
    memcpy(want, f.out, feed_out_bytes(&f));
    vq_error err;
    if (vq_kv_load(again, path, &err) != VQ_OK)
        fail_msg("%s", err.text);
    feed_run(&f, again, 300, N, 31);
    assert_memory_equal(f.out, want, feed_out_bytes(&f));
    assert_int_equal(packed(again), packed(kv));
    vq_kv_close(again);

    plan->value_bits[3] = 3;
    again = open_planned(&f, plan);
    assert_int_equal(vq_kv_load(again, path, &err), VQ_ERR_MISMATCH);
    const char *says = "layer 1, head 1: bits of values is 2 in the file, 3 in the cache";
    if (!strstr(err.text, says))
        fail_msg("'%s' should say '%s'", err.text, says);
    vq_kv_close(again);
    vq_kv_close(kv);
    vq_plan_close(plan);
    free(want);
    feed_free(&f);
    unlink(path);
}

static void forks_keep_their_bits(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 7);
    vq_plan *plan = make_plan("turboquant-mse", "velox");
    vq_kv *kv = open_planned(&f, plan), *alone = open_planned(&f, plan), *fork;
    vq_plan_close(plan);
    feed_run(&f, alone, 0, N, CHUNK);
    feed_run(&f, kv, 0, 290, CHUNK);
    assert_int_equal(vq_kv_fork(kv, &fork, NULL), VQ_OK);
    feed_run(&f, kv, 290, N, CHUNK);
    float *want = malloc(feed_out_bytes(&f));
    memcpy(want, f.out, feed_out_bytes(&f));
    feed_run(&f, fork, 290, N, 5);
    assert_memory_equal(f.out, want, feed_out_bytes(&f));
    vq_kv_close(kv);
    assert_int_equal(packed(fork), packed(alone));
    vq_kv_close(fork);
    vq_kv_close(alone);
    free(want);
    feed_free(&f);
}

/* Pages of three sizes are given back and taken again, and gathered when rows are evicted. */
static void plans_live_with_eviction(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, N, 8);
    vq_plan *plan = make_plan("turboquant-mse", "turboquant-mse");
    vq_kv *kv = feed_open(&f, (vq_kv_params){.window = window,
                                             .sinks = 3,
                                             .residual = 32,
                                             .n_batch = CHUNK,
                                             .plan = plan,
                                             .evict = "snapkv:budget=120,recent=20"});
    vq_plan_close(plan);
    feed_run(&f, kv, 0, 400, CHUNK);
    assert_int_equal(vq_kv_compact(kv, VQ_KV_PROMPT_END, NULL), VQ_OK);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t h = 0; h < HEADS; h++)
            assert_int_equal(vq_kv_read(kv, l, h, NULL, NULL, NULL), 120);
    feed_run(&f, kv, 400, N, CHUNK);
    vq_kv_clear(kv);
    assert_int_equal(packed(kv), 0);
    vq_kv_close(kv);
    feed_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_as_with_equal_bits),
        cmocka_unit_test(saved_caches_keep_their_bits),
        cmocka_unit_test(forks_keep_their_bits),
        cmocka_unit_test(plans_live_with_eviction),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
