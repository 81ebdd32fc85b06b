/* Caches with a plan: every head computes what it would in a cache where all have its bits, to the last bit, and takes
 * the bytes that it would take there; saved caches and forks keep their bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kv_inner.h"
#include "kv/rates.h"
#include "kv_feed.h"
#include "support/calibration.h"
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
    check_codec("outlier");
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

/* ---- choosing ---- */

static uint64_t all_bytes(const vq_kv *kv)
{
    vq_kv_bytes b;
    vq_kv_measure(kv, &b);
    return b.codes + b.scales + b.exact + b.shared + b.table + b.reserved;
}

static double packed_bits(const vq_kv *kv)
{
    vq_kv_bytes b;
    vq_kv_measure(kv, &b);
    return 8 * (double)(b.codes + b.scales + b.shared) / (double)b.n_values_packed;
}

static vq_kv_params choice_params(const feed *f, const vq_calibration *calibration)
{
    return (vq_kv_params){.n_layers = f->n_layers,
                          .n_heads = f->n_heads,
                          .n_kv_heads = f->n_kv_heads,
                          .d_k = f->d_k,
                          .d_v = f->d_v,
                          .n_ctx = f->n,
                          .n_batch = CHUNK,
                          .window = window,
                          .sinks = VQ_KV_DEFAULT,
                          .residual = VQ_KV_DEFAULT,
                          .calibration = calibration};
}

/* Fills a cache with a plan up to its last row and looks at what it takes on the way. */
static void check_filled(feed *f, const vq_kv_params *params, const vq_plan *plan, const vq_plan_wish *w,
                         const vq_plan_candidate *said)
{
    vq_kv_params p = *params;
    p.plan = plan;
    vq_kv *kv;
    assert_int_equal(vq_kv_open(&kv, &p, NULL), VQ_OK);
    assert_true(vq_kv_most_bytes(kv) == said->n_bytes);
    for (uint32_t at = 0; at < f->n; at += CHUNK) {
        feed_run(f, kv, at, at + CHUNK < f->n ? at + CHUNK : f->n, CHUNK);
        const uint64_t now = all_bytes(kv);
        if (now > said->n_bytes)
            fail_msg("%s and %s: %lu bytes were promised for %u rows, after %u there are %lu", said->keys, said->values,
                     said->n_bytes, f->n, at, now);
    }
    if (w->most_bytes)
        assert_true(all_bytes(kv) <= w->most_bytes);
    const double bits = packed_bits(kv);
    if (w->most_bits > 0 && bits > w->most_bits)
        fail_msg("%s and %s: %g bits are allowed, %g measured", said->keys, said->values, w->most_bits, bits);
    if (bits < 0.999 * said->bits || bits > 1.001 * said->bits)
        fail_msg("%s and %s: %g bits were promised, %g measured", said->keys, said->values, said->bits, bits);
    vq_kv_close(kv);
}

static void check_budget(feed *f, const vq_kv_params *params, const vq_plan_wish *w, double *loss)
{
    static vq_plan_candidate list[VQ_PLAN_MOST_CANDIDATES];
    size_t n;
    vq_plan *plan, *again;
    vq_error err;
    if (vq_plan_choose(&plan, params, w, list, &n, &err) != VQ_OK)
        fail_msg("%s", err.text);
    assert_true((w->keys ? n == 1 : n > 1) && list[0].fits);
    for (size_t i = 1; i < n; i++)
        assert_true(list[i].fits ? list[i - 1].fits && list[i].loss >= list[i - 1].loss : true);
    if (list[0].loss > *loss * (1 + 1e-9))
        fail_msg("a larger budget loses more: %g, a smaller one %g", list[0].loss, *loss);
    *loss = list[0].loss;
    check_filled(f, params, plan, w, &list[0]);
    assert_int_equal(vq_plan_choose(&again, params, w, NULL, NULL, NULL), VQ_OK);
    assert_memory_equal(again->key_bits, plan->key_bits, LAYERS * HEADS * sizeof(double));
    assert_memory_equal(again->value_bits, plan->value_bits, LAYERS * HEADS * sizeof(double));
    vq_plan_close(again);
    vq_plan_close(plan);
}

static void budgets_are_held(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, 2 * HEADS, HEADS, D, D, 1500, 9);
    vq_kv_params like = choice_params(&f, NULL);
    const vq_calibration *calibrations[] = {NULL, toy_calibration_of(&like)};
    for (int c = 0; c < 2; c++) {
        const vq_kv_params p = choice_params(&f, calibrations[c]);
        static vq_plan_candidate list[VQ_PLAN_MOST_CANDIDATES];
        size_t n;
        vq_plan *plan;
        vq_error err = {0};
        /* The smallest possible is named, and possible. */
        vq_plan_wish w = {.most_bytes = 1000};
        assert_int_equal(vq_plan_choose(&plan, &p, &w, list, &n, &err), VQ_ERR_FULL);
        assert_null(plan);
        char text[32];
        snprintf(text, sizeof text, "takes %lu", list[0].n_bytes);
        if (!strstr(err.text, text))
            fail_msg("'%s' should say '%s'", err.text, text);
        w.most_bytes = list[0].n_bytes;
        double loss = 1e9;
        check_budget(&f, &p, &w, &loss);
        w.most_bytes = list[0].n_bytes - 1;
        assert_int_equal(vq_plan_choose(&plan, &p, &w, NULL, NULL, &err), VQ_ERR_FULL);
        for (uint64_t more = 1 << 14; more < (uint64_t)1 << 21; more *= 4) {
            w.most_bytes = list[0].n_bytes + more;
            check_budget(&f, &p, &w, &loss);
        }
        assert_true(loss < 1e-4);

        w = (vq_plan_wish){.most_bits = 0.5};
        assert_int_equal(vq_plan_choose(&plan, &p, &w, NULL, NULL, &err), VQ_ERR_FULL);
        loss = 1e9;
        for (double bits = 2.2; bits < 9; bits += 0.9) {
            w.most_bits = bits;
            check_budget(&f, &p, &w, &loss);
        }
        static const char *const named[] = {"trellis", "optimal"};
        for (int i = 0; i <= c; i++) /* optimal needs the calibration */
            for (uint64_t more = 1 << 14; more < (uint64_t)1 << 18; more *= 4) {
                w = (vq_plan_wish){.most_bytes = 1, .keys = named[i], .values = named[i]};
                assert_int_equal(vq_plan_choose(&plan, &p, &w, list, &n, &err), VQ_ERR_FULL);
                w.most_bytes = list[0].n_bytes + more;
                loss = 1e9;
                check_budget(&f, &p, &w, &loss);
            }
        w = (vq_plan_wish){.most_bits = 2.4, .keys = named[c], .values = named[c]};
        loss = 1e9;
        check_budget(&f, &p, &w, &loss);
        /* Where all layers cost the same and nothing is known about heads, they get the same. */
        vq_kv_params flat = p;
        flat.window = NULL;
        w = (vq_plan_wish){.most_bits = 1, .keys = "trellis", .values = "trellis"};
        assert_int_equal(vq_plan_choose(&plan, &flat, &w, list, &n, &err), VQ_ERR_FULL);
        w.most_bits = list[0].bits + 3.05 - list[0].key_bits;
        assert_int_equal(vq_plan_choose(&plan, &flat, &w, NULL, NULL, NULL), VQ_OK);
        for (int i = 0; i < LAYERS * HEADS; i++)
            assert_true(plan->key_bits[i] == 3 && plan->value_bits[i] == 3);
        vq_plan_close(plan);
        /* Heads that matter more get more bits than others whose bits cost as much. */
        double keys[LAYERS * HEADS], values[LAYERS * HEADS];
        for (int i = 0; i < LAYERS * HEADS; i++)
            keys[i] = values[i] = i == 3 ? 0.05 : 0.001;
        w = (vq_plan_wish){
            .most_bits = 3, .keys = "velox", .values = "velox", .key_losses = keys, .value_losses = values};
        assert_int_equal(vq_plan_choose(&plan, &p, &w, NULL, NULL, NULL), VQ_OK);
        for (int i = 0; i < LAYERS * HEADS; i++)
            assert_true(i == 3 || i >= 4 ||
                        (plan->key_bits[3] > plan->key_bits[i] && plan->value_bits[3] > plan->value_bits[i]));
        vq_plan_close(plan);
        w.value_losses = NULL;
        assert_int_equal(vq_plan_choose(&plan, &p, &w, NULL, NULL, &err), VQ_ERR_ARG);
        w = (vq_plan_wish){.most_bits = 3, .most_bytes = 1 << 20};
        assert_int_equal(vq_plan_choose(&plan, &p, &w, NULL, NULL, &err), VQ_ERR_ARG);
    }
    feed_free(&f);
}

static void losses_are_known_for_what_was_measured(void **state)
{
    (void)state;
    const double two = vq_plan_expected_loss("velox:bits=2", "velox:bits=2"),
                 three = vq_plan_expected_loss("velox:bits=3", "velox:bits=3");
    assert_true(three > 0 && two > 2 * three);
    assert_true(vq_plan_expected_loss("f16", "f16") == 0);
    assert_true(isnan(vq_plan_expected_loss("no-such", "f16")));
    for (size_t i = 0; i < vq_n_rate_curves; i++) {
        vq_method m;
        const vq_kv_option_info *info;
        const vq_rate_curve *c = &vq_rate_curves[i];
        if (vq_method_parse(&m, c->method, NULL) != VQ_OK)
            fail_msg("rates_table.c: no method is %s", c->method);
        vq_method_bits(&m, &info);
        for (uint32_t k = 0; k < c->n; k++)
            assert_true(info ? c->keys[k].bits >= info->min && c->keys[k].bits <= info->max : c->n == 1);
        for (uint32_t k = 1; k < c->n; k++)
            assert_true(c->keys[k].bits > c->keys[k - 1].bits && c->keys[k].loss < c->keys[k - 1].loss &&
                        c->values[k].loss < c->values[k - 1].loss);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_as_with_equal_bits),
        cmocka_unit_test(saved_caches_keep_their_bits),
        cmocka_unit_test(forks_keep_their_bits),
        cmocka_unit_test(plans_live_with_eviction),
        cmocka_unit_test(budgets_are_held),
        cmocka_unit_test(losses_are_known_for_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
