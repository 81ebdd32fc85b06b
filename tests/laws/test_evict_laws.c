/* Laws of eviction that hold for every registered policy: what fits is left alone, budgets are met to the row, cutting
 * and threads change nothing, what attention sees is an explicit mask, memory falls. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/codec.h"
#include "kv/kv_inner.h"
#include "kv/policies/policy.h"
#include "kv/save.h"
#include "kv_feed.h"
#include "support/calibration.h"

enum { LAYERS = 3, HEADS = 6, KV_HEADS = 2, D = 64, N = 300 };

static const uint32_t windows[LAYERS] = {0, 100, 0};
static vq_calibration *calibration;

static vq_calibration *make_calibration(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d_k,
                                        uint32_t d_v)
{
    return toy_calibration(&(vq_calibration_info){.n_layers = n_layers,
                                                  .n_heads = n_heads,
                                                  .n_kv_heads = n_kv_heads,
                                                  .d_k = d_k,
                                                  .d_v = d_v,
                                                  .n_tokens = 1000},
                           1);
}

/* A cache over f with policy i and "name:options"; `budget` and more options are the caller's. */
static vq_kv *open_with(const feed *f, size_t policy, const char *options, vq_kv_params p)
{
    char text[200];
    snprintf(text, sizeof text, "%s:%s", vq_policies[policy]->name, options);
    p.evict = text;
    p.calibration = calibration;
    p.seed = 5;
    return feed_open(f, p);
}

/* Rows [from, to) as the session runs them: a prompt with evictions after every `step` rows, or generated rows. */
static void run(const feed *f, vq_kv *kv, uint32_t from, uint32_t to, uint32_t chunk, vq_kv_phase phase)
{
    const uint32_t step = vq_kv_compact_step(kv, phase);
    vq_error err;
    vq_kv_begin(kv, phase);
    for (uint32_t at = from, end; at < to; at = end) {
        end = step && step - at % step < to - at ? at + step - at % step : to;
        feed_run(f, kv, at, end, chunk);
        if (step && end % step == 0 && vq_kv_compact(kv, phase, &err) != VQ_OK)
            fail_msg("compact: %s", err.text);
    }
    if (phase == VQ_KV_PROMPT && vq_kv_compact(kv, VQ_KV_PROMPT_END, &err) != VQ_OK)
        fail_msg("compact: %s", err.text);
}

static void assert_same_out(const feed *got, const feed *want, uint32_t from, uint32_t to, const char *what)
{
    const size_t row = (size_t)want->n_heads * want->d_v;
    for (uint32_t l = 0; l < want->n_layers; l++)
        for (uint32_t i = from; i < to; i++) {
            const size_t at = ((size_t)l * want->n + i) * row;
            if (memcmp(got->out + at, want->out + at, row * sizeof(float)) != 0)
                fail_msg("%s: layer %u, row %u differs", what, l, i);
        }
}

/* Rows of a head that the next query sees. */
static uint32_t held(const vq_kv *kv, uint32_t layer, uint32_t head)
{
    uint32_t rows[N], n_seen = 0;
    const uint32_t n = vq_kv_read(kv, layer, head, NULL, NULL, rows), next = vq_kv_n_rows(kv, layer);
    for (uint32_t i = 0; i < n; i++)
        n_seen += !windows[layer] || rows[i] + windows[layer] > next;
    return n_seen;
}

static void what_fits_is_left_alone(void **state)
{
    (void)state;
    feed want = feed_make(LAYERS, HEADS, KV_HEADS, D, D, N, 3), got = feed_make(LAYERS, HEADS, KV_HEADS, D, D, N, 3);
    const vq_kv_params p = {
        .window = windows, .keys = "kivi:bits=2", .values = "turboquant-mse", .sinks = 2, .residual = 32};
    vq_kv_params plain = p;
    plain.seed = 5;
    vq_kv *kv = feed_open(&want, plain);
    feed_run(&want, kv, 0, N, 50);
    vq_kv_bytes before, after;
    vq_kv_measure(kv, &before);
    vq_kv_close(kv);
    static const char *const budgets[] = {"budget=100%,every=16,prompt=64", "budget=300,every=7,prompt=50"};
    for (size_t i = 0; i < vq_n_policies; i++)
        for (size_t b = 0; b < 2; b++) {
            memset(got.out, 0, feed_out_bytes(&got));
            kv = open_with(&got, i, budgets[b], p);
            run(&got, kv, 0, 200, 50, VQ_KV_PROMPT);
            run(&got, kv, 200, N, 3, VQ_KV_DECODE);
            assert_same_out(&got, &want, 0, N, vq_policies[i]->name);
            vq_kv_measure(kv, &after);
            vq_kv_evict_stats stats;
            vq_kv_get_evict_stats(kv, &stats);
            if (after.codes != before.codes || after.n_rows != before.n_rows || stats.n_evicted != 0)
                fail_msg("%s, %s: %llu rows evicted", vq_policies[i]->name, budgets[b],
                         (unsigned long long)stats.n_evicted);
            vq_kv_close(kv);
        }
    feed_free(&want);
    feed_free(&got);
}

/* The sum over the layer of rows that may be held, when every head may hold `budget`. */
static void check_budget(const vq_kv *kv, size_t policy, uint32_t budget, const char *what)
{
    const vq_policy *p = vq_policies[policy];
    uint64_t all = 0;
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t layer = 0;
        for (uint32_t h = 0; h < KV_HEADS; h++) {
            layer += held(kv, l, h);
            if (!p->is_flat && !p->layer_budget && held(kv, l, h) != budget)
                fail_msg("%s %s: layer %u, head %u holds %u rows, the budget is %u", p->name, what, l, h,
                         held(kv, l, h), budget);
        }
        if (p->is_flat && layer != budget * KV_HEADS)
            fail_msg("%s %s: layer %u holds %u rows, the budget is %u a head", p->name, what, l, layer, budget);
        all += layer;
    }
    if (all != (uint64_t)budget * LAYERS * KV_HEADS)
        fail_msg("%s %s: %llu rows are held, the budget is %u a head", p->name, what, (unsigned long long)all, budget);
}

static void budgets_are_met(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, HEADS, KV_HEADS, D, D, N, 4);
    static const uint32_t budgets[] = {1, 2, 9, 64, 90};
    for (size_t i = 0; i < vq_n_policies; i++) {
        if (vq_policies[i]->keeps_all)
            continue;
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
            char text[64];
            snprintf(text, sizeof text, "budget=%u,every=10", budgets[b]);
            const vq_kv_params p = {.window = windows, .keys = "f16", .values = "int8", .sinks = 3, .residual = 40};
            vq_kv *kv = open_with(&f, i, text, p);
            run(&f, kv, 0, 200, 64, VQ_KV_PROMPT);
            check_budget(kv, i, budgets[b], "after the prompt");
            run(&f, kv, 200, N, 1, VQ_KV_DECODE);
            check_budget(kv, i, budgets[b], "when decoding");
            vq_kv_close(kv);
        }
    }
    feed_free(&f);
}

static void cutting_and_threads_change_nothing(void **state)
{
    (void)state;
    feed want = feed_make(LAYERS, HEADS, KV_HEADS, D, D, N, 5), got = feed_make(LAYERS, HEADS, KV_HEADS, D, D, N, 5);
    vq_pool *pools[4] = {NULL};
    for (uint32_t t = 2; t <= 3; t++)
        assert_int_equal(vq_pool_open(&pools[t], t, NULL), VQ_OK);
    static const struct {
        uint32_t chunk, threads;
    } cuts[] = {{7, 1}, {40, 3}, {200, 2}};
    for (size_t i = 0; i < vq_n_policies; i++) {
        vq_kv_params p = {
            .window = windows, .keys = "turboquant-prod", .values = "kivi:bits=4", .sinks = 2, .residual = 20};
        static const char options[] = "budget=40%,every=16,prompt=96";
        vq_kv *kv = open_with(&want, i, options, p);
        run(&want, kv, 0, 200, 1, VQ_KV_PROMPT);
        run(&want, kv, 200, N, 1, VQ_KV_DECODE);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            memset(got.out, 0, feed_out_bytes(&got));
            p.pool = pools[cuts[c].threads];
            vq_kv *other = open_with(&got, i, options, p);
            run(&got, other, 0, 200, cuts[c].chunk, VQ_KV_PROMPT);
            run(&got, other, 200, N, cuts[c].chunk, VQ_KV_DECODE);
            char what[120];
            snprintf(what, sizeof what, "%s, chunks of %u, %u threads", vq_policies[i]->name, cuts[c].chunk,
                     cuts[c].threads);
            assert_same_out(&got, &want, 0, N, what);
            for (uint32_t l = 0; l < LAYERS; l++)
                for (uint32_t h = 0; h < KV_HEADS; h++) {
                    uint32_t a[N], b[N];
                    const uint32_t n = vq_kv_read(kv, l, h, NULL, NULL, a);
                    if (vq_kv_read(other, l, h, NULL, NULL, b) != n || memcmp(a, b, n * sizeof *a) != 0)
                        fail_msg("%s: layer %u, head %u keeps other rows", what, l, h);
                }
            vq_kv_close(other);
        }
        vq_kv_close(kv);
    }
    feed_free(&want);
    feed_free(&got);
    for (uint32_t t = 2; t <= 3; t++)
        vq_pool_close(pools[t]);
}

/* Attention of one query in float64 over rows of the feed itself: those at `kept` [n], and rows from `from` to its own.
 */
static void masked(const feed *f, uint32_t layer, uint32_t head, uint32_t row, uint32_t window, const uint32_t *kept,
                   uint32_t n_kept, uint32_t from, double *out)
{
    const uint32_t kv_head = head / (f->n_heads / f->n_kv_heads);
    const float *q = f->q + (((size_t)layer * f->n + row) * f->n_heads + head) * f->d_k;
    double weight[N], sum = 0, most = -INFINITY;
    uint32_t rows[N], n = 0;
    for (uint32_t i = 0; i < n_kept; i++)
        rows[n++] = kept[i];
    for (uint32_t i = from; i <= row; i++)
        rows[n++] = i;
    for (uint32_t i = 0; i < n; i++) {
        const float *k = f->k + (((size_t)layer * f->n + rows[i]) * f->n_kv_heads + kv_head) * f->d_k;
        double dot = 0;
        for (uint32_t c = 0; c < f->d_k; c++)
            dot += (double)q[c] * k[c];
        weight[i] = window && rows[i] + window <= row ? -INFINITY : dot / sqrt(f->d_k);
        most = weight[i] > most ? weight[i] : most;
    }
    for (uint32_t i = 0; i < n; i++)
        sum += weight[i] = exp(weight[i] - most);
    memset(out, 0, f->d_v * sizeof *out);
    for (uint32_t i = 0; i < n; i++) {
        const float *v = f->v + (((size_t)layer * f->n + rows[i]) * f->n_kv_heads + kv_head) * f->d_v;
        for (uint32_t c = 0; c < f->d_v; c++)
            out[c] += weight[i] / sum * v[c];
    }
}

/* Evicting in the middle of a prompt: every query sees what was kept before it and what came since, and nothing else.
 * Codecs lose nothing here, so f32 against float64 on values up to 240 leaves 240 (n + d) 2^-24 times the slope of exp
 * on scores up to 1000: 1e-2 is far above that and far below what one wrong row does. */
static void evicting_is_a_mask(void **state)
{
    (void)state;
    feed f = feed_make(LAYERS, HEADS, KV_HEADS, D, D, N, 6);
    for (size_t i = 0; i < vq_n_policies; i++) {
        const vq_kv_params p = {
            .window = windows, .keys = "f32", .values = "f32", .sinks = 2, .residual = 20, .exact = VQ_KV_EXACT_F32};
        vq_kv *kv = open_with(&f, i, "budget=50,prompt=60,every=30", p);
        static uint32_t kept[LAYERS][KV_HEADS][N];
        uint32_t n_kept[LAYERS][KV_HEADS] = {{0}}, from = 0;
        for (uint32_t to = 60; to <= N; from = to, to += to < 240 ? 60 : 30) {
            run(&f, kv, from, to, 13, to <= 240 ? VQ_KV_PROMPT : VQ_KV_DECODE);
            for (uint32_t l = 0; l < LAYERS; l++)
                for (uint32_t h = 0; h < HEADS; h++)
                    for (uint32_t row = from; row < to; row += 7) {
                        double want[D];
                        const uint32_t kv_head = h / (HEADS / KV_HEADS);
                        masked(&f, l, h, row, windows[l], kept[l][kv_head], n_kept[l][kv_head], from, want);
                        const float *got = f.out + (((size_t)l * N + row) * HEADS + h) * D;
                        for (uint32_t c = 0; c < D; c++)
                            if (!(fabs(got[c] - want[c]) < 1e-2))
                                fail_msg("%s: layer %u, head %u, row %u, channel %u: %g, expected %g",
                                         vq_policies[i]->name, l, h, row, c, (double)got[c], want[c]);
                    }
            for (uint32_t l = 0; l < LAYERS; l++)
                for (uint32_t h = 0; h < KV_HEADS; h++)
                    n_kept[l][h] = vq_kv_read(kv, l, h, NULL, NULL, kept[l][h]);
        }
        vq_kv_close(kv);
    }
    feed_free(&f);
}

/* Every policy on every codec of keys and values: runs, holds its budget, stays finite, and where rows can be copied
 * its pages take at most 1.25 times the bytes of the rows in them and one page a head. */
static void every_policy_runs_on_every_codec(void **state)
{
    (void)state;
    enum { SHORT = 160 };
    feed f = feed_make(2, 4, 2, D, D, SHORT, 7);
    vq_calibration *small = make_calibration(2, 4, 2, D, D);
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (size_t i = 0; i < vq_n_policies; i++) {
            char text[100];
            snprintf(text, sizeof text, "%s:budget=25%%,every=16,prompt=64", vq_policies[i]->name);
            vq_kv *kv = feed_open(&f, (vq_kv_params){.keys = vq_codecs[c]->name,
                                                     .values = vq_codecs[c]->name,
                                                     .sinks = 0,
                                                     .residual = 0,
                                                     .evict = text,
                                                     .calibration = small});
            run(&f, kv, 0, 128, 50, VQ_KV_PROMPT);
            run(&f, kv, 128, SHORT, 1, VQ_KV_DECODE);
            for (size_t at = 0; at < feed_out_bytes(&f) / sizeof(float); at++)
                if (!isfinite(f.out[at]))
                    fail_msg("%s on %s: output %zu is not finite", vq_policies[i]->name, vq_codecs[c]->name, at);
            vq_kv_bytes b;
            vq_kv_measure(kv, &b);
            const uint64_t want = vq_policies[i]->keeps_all ? SHORT * 4 : SHORT / 4 * 4;
            if (b.n_rows != want)
                fail_msg("%s on %s: %llu rows, expected %llu", vq_policies[i]->name, vq_codecs[c]->name,
                         (unsigned long long)b.n_rows, (unsigned long long)want);
            vq_kv_close(kv);
        }
    vq_calibration_close(small);
    feed_free(&f);
}

static void memory_falls(void **state)
{
    (void)state;
    enum { LONG = 3000 };
    feed f = feed_make(1, 2, 2, D, D, LONG, 8);
    for (size_t c = 0; c < vq_n_codecs; c++) {
        if (!vq_codecs[c]->copy_row)
            continue;
        vq_kv_params p = {
            .keys = vq_codecs[c]->name, .values = vq_codecs[c]->name, .sinks = 0, .residual = 0, .seed = 5};
        vq_calibration *small = make_calibration(1, 2, 2, D, D);
        p.calibration = small;
        vq_kv *plain = feed_open(&f, p);
        feed_run(&f, plain, 0, 64, 64);
        vq_kv_bytes one, after;
        vq_kv_measure(plain, &one); /* one page a head, full */
        vq_kv_close(plain);
        p.evict = "random:budget=12%,every=50,recent=0,sinks=0";
        vq_kv *kv = feed_open(&f, p);
        feed_run(&f, kv, 0, 2800, 500);
        const uint64_t mapped = kv->store.n_mapped, page = (one.codes + one.scales) / 2;
        vq_error err;
        for (uint32_t n = 2800; n <= LONG; n += 50) {
            if (vq_kv_compact(kv, n == 2800 ? VQ_KV_PROMPT_END : VQ_KV_DECODE, &err) != VQ_OK)
                fail_msg("%s: %s", vq_codecs[c]->name, err.text);
            vq_kv_measure(kv, &after);
            const double most = 1.25 * (double)after.n_packed_rows / 64 * (double)page + 2.0 * (double)page;
            if ((double)(after.codes + after.scales) > most)
                fail_msg("%s at %u rows: pages take %llu bytes for %llu rows, at most %g", vq_codecs[c]->name, n,
                         (unsigned long long)(after.codes + after.scales), (unsigned long long)after.n_packed_rows,
                         most);
            if (n < LONG)
                feed_run(&f, kv, n, n + 50, 50);
        }
        /* A small page shares a page of the system's with neighbours that may stay. */
        if (page >= 4096 && kv->store.n_mapped > mapped / 2)
            fail_msg("%s: %llu bytes of pages are mapped, %llu before", vq_codecs[c]->name,
                     (unsigned long long)kv->store.n_mapped, (unsigned long long)mapped);
        vq_kv_close(kv);
        vq_calibration_close(small);
    }
    feed_free(&f);
}

/* Forks, saved and truncated caches go on as if nothing had happened. */
static void evicted_caches_fork_save_and_load(void **state)
{
    (void)state;
    feed want = feed_make(LAYERS, HEADS, KV_HEADS, D, D, N, 9), got = feed_make(LAYERS, HEADS, KV_HEADS, D, D, N, 9);
    static const char path[] = "test_evict_laws.cache", options[] = "budget=30%,every=16";
    for (size_t i = 0; i < vq_n_policies; i++) {
        vq_error err;
        const vq_kv_params p = {
            .window = windows, .keys = "turboquant-mse:bits=3", .values = "kivi", .sinks = 2, .residual = 20};
        vq_kv *kv = open_with(&want, i, options, p), *fork, *loaded = open_with(&got, i, options, p);
        run(&want, kv, 0, 200, 50, VQ_KV_PROMPT);
        run(&want, kv, 200, 233, 1, VQ_KV_DECODE);
        if (vq_kv_fork(kv, &fork, &err) != VQ_OK || vq_kv_save(kv, path, &err) != VQ_OK ||
            vq_kv_load(loaded, path, &err) != VQ_OK)
            fail_msg("%s: %s", vq_policies[i]->name, err.text);
        run(&want, kv, 233, N, 1, VQ_KV_DECODE);
        memset(got.out, 0, feed_out_bytes(&got));
        run(&got, fork, 233, N, 1, VQ_KV_DECODE);
        assert_same_out(&got, &want, 233, N, vq_policies[i]->name);
        memset(got.out, 0, feed_out_bytes(&got));
        run(&got, loaded, 233, N, 5, VQ_KV_DECODE);
        assert_same_out(&got, &want, 233, N, vq_policies[i]->name);

        /* Dropping rows leaves those that were kept below. */
        uint32_t rows[N], left[N];
        const uint32_t n = vq_kv_read(fork, 0, 0, NULL, NULL, rows);
        uint32_t expected = 0;
        while (expected < n && rows[expected] < 292)
            expected++;
        assert_int_equal(vq_kv_truncate(fork, 292, &err), VQ_OK);
        assert_int_equal(vq_kv_read(fork, 0, 0, NULL, NULL, left), expected);
        assert_memory_equal(left, rows, expected * sizeof *rows);
        run(&got, fork, 292, N, 1, VQ_KV_DECODE);
        vq_kv_clear(fork);
        run(&got, fork, 0, 100, 50, VQ_KV_PROMPT);
        vq_kv_close(kv);
        vq_kv_close(fork);
        vq_kv_close(loaded);
        remove(path);
    }
    feed_free(&want);
    feed_free(&got);
}

/* ---- what policies keep is what their papers say: against weights in float64 ---- */

enum { TRUTH = 150 };

/* Weights of query `row` of one head over rows 0..row, in float64. */
static void true_weights(const feed *f, uint32_t head, uint32_t row, double *w)
{
    const uint32_t kv_head = head / (f->n_heads / f->n_kv_heads);
    const float *q = f->q + ((size_t)row * f->n_heads + head) * f->d_k;
    double most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i <= row; i++) {
        const float *k = f->k + ((size_t)i * f->n_kv_heads + kv_head) * f->d_k;
        double dot = 0;
        for (uint32_t c = 0; c < f->d_k; c++)
            dot += (double)q[c] * k[c];
        w[i] = dot / sqrt(f->d_k);
        most = w[i] > most ? w[i] : most;
    }
    for (uint32_t i = 0; i <= row; i++)
        sum += w[i] = exp(w[i] - most);
    for (uint32_t i = 0; i <= row; i++)
        w[i] /= sum;
}

/* score [TRUTH] of one kv head: weights of queries from `first` on, of `n_heads` query heads from `head` on. */
static void true_scores(const feed *f, uint32_t head, uint32_t n_heads, uint32_t first, double *score)
{
    memset(score, 0, TRUTH * sizeof *score);
    for (uint32_t h = head; h < head + n_heads; h++)
        for (uint32_t row = first; row < TRUTH; row++) {
            double w[TRUTH];
            true_weights(f, h, row, w);
            for (uint32_t i = 0; i <= row; i++)
                score[i] += w[i];
        }
}

static void pool7(double *score)
{
    double out[TRUTH];
    for (int i = 0; i < TRUTH; i++) {
        out[i] = 0;
        for (int j = i - 3; j <= i + 3; j++)
            if (j >= 0 && j < TRUTH && score[j] > out[i])
                out[i] = score[j];
    }
    memcpy(score, out, sizeof out);
}

static void weights_are_those_of_real_queries(void **state)
{
    (void)state;
    feed f = feed_make(1, HEADS, KV_HEADS, D, D, TRUTH, 10);
    static const struct {
        const char *name;
        uint32_t first; /* query */
        bool layer, pool;
    } cases[] = {{"h2o", 0, false, false}, {"tova", TRUTH - 1, true, false}, {"snapkv", TRUTH - 32, false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (uint32_t chunk = 20; chunk <= TRUTH; chunk += 130) {
            char text[100];
            snprintf(text, sizeof text, "%s:budget=40,sinks=0,recent=0", cases[i].name);
            vq_kv *kv = feed_open(
                &f, (vq_kv_params){
                        .keys = "f32", .values = "f32", .exact = VQ_KV_EXACT_F32, .residual = 30, .evict = text});
            run(&f, kv, 0, TRUTH, chunk, VQ_KV_PROMPT);
            for (uint32_t h = 0; h < KV_HEADS; h++) {
                const uint32_t group = HEADS / KV_HEADS;
                double score[TRUTH], least = INFINITY, most = 0;
                true_scores(&f, cases[i].layer ? 0 : h * group, cases[i].layer ? HEADS : group, cases[i].first, score);
                if (cases[i].pool)
                    pool7(score);
                uint32_t rows[TRUTH];
                bool kept[TRUTH] = {false};
                assert_int_equal(vq_kv_read(kv, 0, h, NULL, NULL, rows), 40);
                for (uint32_t j = 0; j < 40; j++)
                    kept[rows[j]] = true;
                for (uint32_t j = 0; j < TRUTH; j++) {
                    least = kept[j] && score[j] < least ? score[j] : least;
                    most = !kept[j] && score[j] > most ? score[j] : most;
                }
                if (least < most * (1 - 1e-4) - 1e-9)
                    fail_msg("%s, head %u: kept a row of weight %g, evicted one of %g", cases[i].name, h, least, most);
            }
            vq_kv_close(kv);
        }
    feed_free(&f);
}

/* ---- errors ---- */

static void wrong_texts_are_named(void **state)
{
    (void)state;
    feed f = feed_make(1, 2, 1, D, D, 8, 1);
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"snap", "evict: no policy is called 'snap'; there are: none random streaming"},
        {"h2o:budget=0", "h2o: budget is 0, which is no whole number from 1"},
        {"h2o:budget=0%", "h2o: budget is 0%, must be above"},
        {"h2o:budget=101%", "h2o: budget is 101, which is no number from 0 to 100"},
        {"h2o:budget=1.5", "h2o: budget is 1.5, which is no whole number"},
        {"h2o:budget=x", "h2o: budget is 'x', which is no number"},
        {"h2o:budget=8,sinks=9", "h2o: sinks is 9, more than the budget 8"},
        {"h2o:budget=8,recent=9", "h2o: recent is 9, more than the budget 8"},
        {"h2o:budget=8,sinks=4,recent=5", "h2o: sinks and recent are 4 and 5, together more than the budget 8"},
        {"h2o:every=0", "h2o: every is 0"},
        {"h2o:beta=2", "h2o has no option 'beta'; it has: budget sinks recent every prompt"},
        {"h2o:budget", "h2o: 'budget' is not of the form option=value"},
        {"pyramidkv:beta=0.5", "pyramidkv: beta is 0.5, which is no number from 1"},
        {"qfilters", "qfilters needs a calibration"},
        {"expected-attention:budget=10", "'veloxquant calibrate MODEL --text FILE -o FILE.vqc' makes it"},
        {"streaming:renumber=1", "streaming: renumber=1 needs to know how positions turn queries"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const vq_kv_params p = {.n_layers = 1,
                                .n_heads = 2,
                                .n_kv_heads = 1,
                                .d_k = D,
                                .d_v = D,
                                .n_ctx = 8,
                                .n_batch = 8,
                                .evict = cases[i].text};
        vq_kv *kv = (vq_kv *)&f;
        vq_error err = {0};
        if (vq_kv_open(&kv, &p, &err) != VQ_ERR_ARG || kv || !strstr(err.text, cases[i].says))
            fail_msg("%s: '%s' should say '%s'", cases[i].text, err.text, cases[i].says);
    }
    feed_free(&f);
}

static int open_calibration(void **state)
{
    (void)state;
    calibration = make_calibration(LAYERS, HEADS, KV_HEADS, D, D);
    return 0;
}

static int close_calibration(void **state)
{
    (void)state;
    vq_calibration_close(calibration);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_is_left_alone),
        cmocka_unit_test(budgets_are_met),
        cmocka_unit_test(cutting_and_threads_change_nothing),
        cmocka_unit_test(evicting_is_a_mask),
        cmocka_unit_test(every_policy_runs_on_every_codec),
        cmocka_unit_test(memory_falls),
        cmocka_unit_test(weights_are_those_of_real_queries),
        cmocka_unit_test(evicted_caches_fork_save_and_load),
        cmocka_unit_test(wrong_texts_are_named),
    };
    return cmocka_run_group_tests(tests, open_calibration, close_calibration);
}
