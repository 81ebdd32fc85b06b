/* Laws of the cache that hold for every registered codec, as codec of keys, of values and of both.  A codec that is
 * added to the list is tested here without a line of its own. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/codec.h"
#include "kv_feed.h"
#include "support/calibration.h"

enum { N = 200 };

static const uint32_t windows[3] = {0, 70, 20};

/* The codecs of keys and values in the three combinations. */
static void pair_of(size_t codec, int combination, const char **keys, const char **values)
{
    *keys = combination == 1 ? "f16" : vq_codecs[codec]->name;
    *values = combination == 0 ? "f16" : vq_codecs[codec]->name;
}

static void assert_same_bits(const feed *got, const feed *want, const char *what)
{
    const size_t n = feed_out_bytes(want) / sizeof(float);
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got->out[i], &want->out[i], sizeof(float)) != 0) {
            const size_t at = i / want->d_v / want->n_heads;
            fail_msg("%s: layer %zu, row %zu, head %zu, channel %zu: %.9g, expected %.9g", what, at / want->n,
                     at % want->n, i / want->d_v % want->n_heads, i % want->d_v, (double)got->out[i],
                     (double)want->out[i]);
        }
}

static void chunks_and_threads_change_nothing(void **state)
{
    (void)state;
    const uint32_t exact[][2] = {{VQ_KV_DEFAULT, VQ_KV_DEFAULT}, {4, 0}, {70, 33}};
    feed want = feed_make(3, 6, 2, 64, 64, N, 11), got = feed_make(3, 6, 2, 64, 64, N, 11);
    vq_pool *pools[4] = {NULL};
    for (uint32_t t = 2; t <= 3; t++)
        assert_int_equal(vq_pool_open(&pools[t], t, NULL), VQ_OK);
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (int combination = 0; combination < 3; combination++)
            for (size_t e = 0; e < 3; e++) {
                vq_kv_params p = {.window = windows, .sinks = exact[e][0], .residual = exact[e][1], .seed = 5};
                pair_of(c, combination, &p.keys, &p.values);
                vq_kv *kv = feed_open(&want, p);
                feed_run(&want, kv, 0, N, 1);
                vq_kv_close(kv);
                const struct {
                    uint32_t chunk, threads;
                } cuts[] = {{1, 2}, {7, 1}, {7, 3}, {40, 2}, {40, 3}, {N, 1}, {N, 2}};
                for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
                    memset(got.out, 0, feed_out_bytes(&got));
                    p.pool = pools[cuts[i].threads];
                    kv = feed_open(&got, p);
                    feed_run(&got, kv, 0, N, cuts[i].chunk);
                    vq_kv_close(kv);
                    char what[160];
                    snprintf(what, sizeof what, "keys %s, values %s, sinks %d, residual %d, chunk %u, threads %u",
                             p.keys, p.values, (int)p.sinks, (int)p.residual, cuts[i].chunk, cuts[i].threads);
                    assert_same_bits(&got, &want, what);
                }
            }
    feed_free(&want);
    feed_free(&got);
    for (uint32_t t = 2; t <= 3; t++)
        vq_pool_close(pools[t]);
}

static void check_against_oracle(const feed *f, const vq_kv *kv, const vq_kv_params *p, uint32_t row)
{
    vq_method keys, values;
    assert_int_equal(vq_method_parse(&keys, p->keys, NULL), VQ_OK);
    assert_int_equal(vq_method_parse(&values, p->values, NULL), VQ_OK);
    double want[VQ_MAX_HEAD_DIM];
    for (uint32_t l = 0; l < f->n_layers; l++)
        for (uint32_t h = 0; h < f->n_heads; h++) {
            const double bound = feed_oracle(f, kv, l, h, row, p->window ? p->window[l] : 0,
                                             (double)keys.codec->score_error, (double)values.codec->mix_error, want);
            const float *got = f->out + (((size_t)l * f->n + row) * f->n_heads + h) * f->d_v;
            for (uint32_t c = 0; c < f->d_v; c++)
                if (!(fabs(got[c] - want[c]) <= bound))
                    fail_msg("keys %s, values %s, layer %u, row %u, head %u, channel %u: %.9g, expected %.9g +- %.3g",
                             p->keys, p->values, l, row, h, c, (double)got[c], want[c], bound);
        }
}

static void attention_is_a_softmax_over_the_rows_that_are_read(void **state)
{
    (void)state;
    feed f = feed_make(3, 6, 2, 64, 64, N, 12);
    /* Small queries: with large ones a softmax is a maximum, and the bound says nothing. */
    for (size_t i = 0; i < (size_t)3 * N * 6 * 64; i++)
        f.q[i] *= 0.05f;
    const uint32_t sinks[2] = {VQ_KV_DEFAULT, 5};
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (int combination = 0; combination < 3; combination++)
            for (int exact = 0; exact < 2; exact++) {
                vq_kv_params p = {.window = windows,
                                  .sinks = sinks[exact],
                                  .residual = exact ? 0 : VQ_KV_DEFAULT,
                                  .exact = exact ? VQ_KV_EXACT_F32 : VQ_KV_EXACT_F16};
                pair_of(c, combination, &p.keys, &p.values);
                vq_kv *kv = feed_open(&f, p);
                for (uint32_t row = 0; row < N; row++) {
                    feed_run(&f, kv, row, row + 1, 1);
                    if (row % 8 == 0 || row % 32 >= 30 || (row + 5) % 32 >= 30)
                        check_against_oracle(&f, kv, &p, row);
                }
                vq_kv_close(kv);
            }
    feed_free(&f);
}

static void odd_rows_stay_finite(void **state)
{
    (void)state;
    const float kinds[] = {0.0f, -0.0f, 100.0f, 6e-8f, 1e-41f, 6e4f, -6e4f};
    enum { CONSTANTS = sizeof kinds / sizeof kinds[0] };
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (size_t kind = 0; kind < CONSTANTS + 3; kind++) {
            feed f = feed_make(1, 2, 1, 64, 64, 100, 13);
            for (size_t i = 0; i < (size_t)100 * 64; i++) {
                float x = kind < CONSTANTS ? kinds[kind] : 0;
                if (kind == CONSTANTS) /* one value and zeros */
                    x = i % 64 == 9 ? 65504.0f : 0;
                if (kind == CONSTANTS + 1) /* two values, one ulp apart */
                    x = i % 2 ? 1.0f : nextafterf(1.0f, 2.0f);
                if (kind == CONSTANTS + 2) /* one row that is not like the others */
                    x = i / 64 == 20 ? 6e4f : (i / 64 == 21 ? 0 : f.k[i]);
                f.k[i] = f.v[i] = x;
            }
            memset(f.q, 0, (size_t)50 * 2 * 64 * sizeof *f.q); /* and zero queries */
            vq_kv_params p = {.sinks = 0, .residual = 0, .keys = vq_codecs[c]->name, .values = vq_codecs[c]->name};
            vq_kv *kv = feed_open(&f, p);
            feed_run(&f, kv, 0, f.n, 9);
            float k[100 * 64], v[100 * 64];
            assert_int_equal(vq_kv_read(kv, 0, 0, k, v, NULL), 100);
            for (size_t i = 0; i < (size_t)100 * 64; i++)
                if (!isfinite(k[i]) || !isfinite(v[i]))
                    fail_msg("%s, kind %zu: row %zu is read as %g and %g", p.keys, kind, i / 64, (double)k[i],
                             (double)v[i]);
            for (size_t i = 0; i < feed_out_bytes(&f) / sizeof(float); i++)
                if (!isfinite(f.out[i]) || fabsf(f.out[i]) > 1.5f * 65504)
                    fail_msg("%s, kind %zu: row %zu has the output %g", p.keys, kind, i / 128, (double)f.out[i]);
            if (kind < 2)
                for (size_t i = 0; i < (size_t)100 * 64; i++)
                    assert_true(k[i] == 0 && v[i] == 0);
            vq_kv_close(kv);
            feed_free(&f);
        }
}

/* Any head size works, or is refused when the cache is opened, by name. */
static void head_sizes_work_or_are_refused_at_open(void **state)
{
    (void)state;
    const uint32_t sizes[] = {1, 8, 64, 72, 80, 96, 100, 128, 256, 512};
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            const uint32_t d = sizes[i];
            vq_kv_params p = {.n_layers = 1,
                              .n_heads = 2,
                              .n_kv_heads = 1,
                              .d_k = d,
                              .d_v = d,
                              .n_ctx = 100,
                              .n_batch = 100,
                              .sinks = 0,
                              .residual = 0,
                              .keys = vq_codecs[c]->name,
                              .values = vq_codecs[c]->name};
            p.calibration = toy_calibration_of(&p);
            vq_kv *kv;
            vq_error err = {0};
            const vq_status status = vq_kv_open(&kv, &p, &err);
            if (status != VQ_OK) {
                char number[16];
                snprintf(number, sizeof number, "%u", d);
                assert_int_equal(status, VQ_ERR_UNSUPPORTED);
                assert_null(kv);
                if (!strstr(err.text, vq_codecs[c]->name) || !strstr(err.text, number))
                    fail_msg("the refusal of %s at head size %u says: %s", vq_codecs[c]->name, d, err.text);
                continue;
            }
            vq_kv_close(kv);
            feed f = feed_make(1, 2, 1, d, d, 100, 14 + d);
            for (size_t j = 0; j < (size_t)100 * 2 * d; j++)
                f.q[j] *= 0.05f;
            kv = feed_open(&f, p);
            for (uint32_t row = 0; row < 100; row++) {
                feed_run(&f, kv, row, row + 1, 1);
                if (row >= 60)
                    check_against_oracle(&f, kv, &p, row);
            }
            vq_kv_close(kv);
            feed_free(&f);
        }
}

/* The exact rows never outgrow the residual window and a granule, whether rows come one by one or at once. */
static void exact_rows_stay_bounded(void **state)
{
    (void)state;
    for (size_t c = 0; c < vq_n_codecs; c++) {
        feed f = feed_make(1, 2, 1, 64, 64, N, 15);
        vq_kv_params p = {.sinks = 0, .residual = 32, .keys = vq_codecs[c]->name, .values = vq_codecs[c]->name};
        vq_kv *kv = feed_open(&f, p);
        uint64_t n_exact = 0;
        for (uint32_t row = 0; row < N;) {
            const uint32_t n = row == 0 ? 8 : 1;
            feed_run(&f, kv, row, row + n, n);
            row += n;
            vq_kv_bytes b;
            vq_kv_measure(kv, &b);
            assert_int_equal(b.n_rows, row);
            n_exact = b.n_rows - b.n_packed_rows;
            assert_true(n_exact <= 32 + VQ_PAGE_ROWS - 1);
            assert_true(row < 32 || n_exact >= 32);
        }
        vq_kv_close(kv);
        kv = feed_open(&f, p);
        feed_run(&f, kv, 0, N, N);
        vq_kv_bytes b;
        vq_kv_measure(kv, &b);
        assert_int_equal(b.n_rows - b.n_packed_rows, n_exact);
        /* the newest rows are exact: read as appended, but for the type of exact rows */
        float k[N * 64];
        assert_int_equal(vq_kv_read(kv, 0, 0, k, NULL, NULL), N);
        for (size_t i = (N - 32) * 64; i < N * 64; i++)
            assert_true(fabsf(k[i] - f.k[i]) <= fabsf(f.k[i]) * 0x1p-11f + 0x1p-25f);
        vq_kv_close(kv);
        feed_free(&f);
    }
}

/* ---- truncate ---- */

static bool loses_nothing(const vq_codec *c)
{
    return strcmp(c->name, "f16") == 0 || strcmp(c->name, "bf16") == 0 || strcmp(c->name, "f32") == 0;
}

static void truncated_caches_go_on(void **state)
{
    (void)state;
    enum { BEFORE = 150 };
    const uint32_t wide[3] = {0, 120, 100}, cuts[] = {149, 130, 128, 97, 96, 65, 64, 63, 33, 5, 3, 0};
    feed whole = feed_make(3, 4, 2, 64, 64, N, 16), one = feed_make(3, 4, 2, 64, 64, N, 16),
         many = feed_make(3, 4, 2, 64, 64, N, 16);
    vq_pool *pool;
    assert_int_equal(vq_pool_open(&pool, 2, NULL), VQ_OK);
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++)
            for (uint32_t residual = 0; residual <= 32; residual += 32) {
                const uint32_t cut = cuts[i];
                const char *name = vq_codecs[c]->name;
                vq_kv_params p = {.window = wide, .sinks = 4, .residual = residual, .keys = name, .values = name};
                p.exact = strcmp(name, "f32") == 0    ? VQ_KV_EXACT_F32
                          : strcmp(name, "bf16") == 0 ? VQ_KV_EXACT_BF16
                                                      : VQ_KV_EXACT_F16;
                vq_kv *a = feed_open(&one, p);
                feed_run(&one, a, 0, BEFORE, 50);
                float before[BEFORE * 64], after[BEFORE * 64];
                vq_kv_bytes bytes;
                vq_kv_read(a, 0, 1, before, NULL, NULL);
                assert_int_equal(vq_kv_truncate(a, cut, NULL), VQ_OK);
                assert_int_equal(vq_kv_n_rows(a, 0), cut);
                assert_int_equal(vq_kv_read(a, 0, 1, after, NULL, NULL), cut);
                vq_kv_measure(a, &bytes);
                /* what is left reads as before, but that fewer than a granule of rows are rounded to the exact type */
                for (uint32_t j = 0; j < cut * 64; j++)
                    if (!(fabsf(after[j] - before[j]) <= fabsf(before[j]) * 0x1p-8f + 0x1p-25f))
                        fail_msg("%s cut to %u: row %u reads as %g, before %g", name, cut, j / 64, (double)after[j],
                                 (double)before[j]);
                feed_run(&one, a, cut, N, 1);
                vq_kv_close(a);

                p.pool = pool;
                a = feed_open(&many, p);
                feed_run(&many, a, 0, BEFORE, BEFORE);
                assert_int_equal(vq_kv_truncate(a, cut, NULL), VQ_OK);
                feed_run(&many, a, cut, N, 41);
                vq_kv_close(a);
                char what[128];
                snprintf(what, sizeof what, "%s, residual %u, cut to %u", name, residual, cut);
                assert_same_bits(&many, &one, what);
                if (loses_nothing(vq_codecs[c]) && residual == 0) {
                    a = feed_open(&whole, p);
                    feed_run(&whole, a, 0, N, N);
                    vq_kv_close(a);
                    assert_same_bits(&one, &whole, what);
                }
            }
    feed_free(&whole);
    feed_free(&one);
    feed_free(&many);
    vq_pool_close(pool);
}

/* Cut between granules and given the same rows again, a cache holds the same codes as before: an encoder that counts on
 * zeroed bytes does not. */
static void granules_are_encoded_again(void **state)
{
    (void)state;
    feed f = feed_make(1, 2, 1, 64, 64, N, 18);
    for (size_t c = 0; c < vq_n_codecs; c++)
        for (uint32_t cut = 0; cut <= 128; cut += 32) {
            const char *name = vq_codecs[c]->name;
            const vq_kv_params p = {.sinks = 3, .residual = 0, .keys = name, .values = name};
            vq_kv *kv = feed_open(&f, p), *other = feed_open(&f, p);
            feed_run(&f, kv, 0, N, N);
            feed_run(&f, other, 0, N, N);
            /* other rows in between, so that other codes lie where the granules go */
            assert_int_equal(vq_kv_truncate(kv, 3 + cut, NULL), VQ_OK);
            vq_error err;
            if (vq_kv_append(kv, 0, 3 + cut, f.v, f.q, 64, &err) != VQ_OK)
                fail_msg("%s", err.text);
            assert_int_equal(vq_kv_truncate(kv, 3 + cut, NULL), VQ_OK);
            vq_kv_bytes b;
            vq_kv_measure(kv, &b);
            if (b.n_packed_rows != cut) { /* a codec with granules of 64 */
                assert_int_equal(b.n_packed_rows, cut - 32);
                vq_kv_close(kv);
                vq_kv_close(other);
                continue;
            }
            feed_run(&f, kv, 3 + cut, N, 50);
            static float k[2][N * 64], v[2][N * 64];
            assert_int_equal(vq_kv_read(kv, 0, 0, k[0], v[0], NULL), N);
            assert_int_equal(vq_kv_read(other, 0, 0, k[1], v[1], NULL), N);
            if (memcmp(k[0], k[1], sizeof k[0]) != 0 || memcmp(v[0], v[1], sizeof v[0]) != 0)
                fail_msg("%s: rows cut at %u and appended again are not what they were", name, 3 + cut);
            vq_kv_close(kv);
            vq_kv_close(other);
        }
    feed_free(&f);
}

/* ---- save and load ---- */

static void loaded_caches_go_on(void **state)
{
    (void)state;
    const char *path = "kv_laws.vqcache";
    feed want = feed_make(3, 4, 2, 64, 72, N, 17), got = feed_make(3, 4, 2, 64, 72, N, 17);
    for (size_t c = 0; c < vq_n_codecs; c++) {
        const char *name = vq_codecs[c]->name;
        const vq_kv_params p = {.window = windows, .sinks = 3, .keys = name, .values = name, .seed = 9};
        vq_kv_params probe = p;
        probe.n_layers = 1, probe.n_heads = probe.n_kv_heads = 1, probe.d_k = 64, probe.d_v = 72;
        probe.n_ctx = probe.n_batch = N, probe.window = NULL;
        vq_kv *kv;
        if (vq_kv_open(&kv, &probe, NULL) == VQ_ERR_UNSUPPORTED)
            continue; /* not at head size 72 */
        vq_kv_close(kv);
        for (uint32_t at = 0; at <= 180; at += 20) {
            vq_error err = {0};
            kv = feed_open(&want, p);
            vq_kv *other = feed_open(&got, p);
            feed_run(&got, other, 0, 33, 33); /* which the loaded rows replace */
            feed_run(&want, kv, 0, at, 37);
            if (vq_kv_save(kv, path, &err) != VQ_OK || vq_kv_load(other, path, &err) != VQ_OK)
                fail_msg("%s, %u rows: %s", name, at, err.text);
            feed_run(&want, kv, at, N, 1);
            memcpy(got.out, want.out, feed_out_bytes(&got));
            for (uint32_t l = 0; l < 3; l++)
                memset(got.out + ((size_t)l * N + at) * 4 * 72, 0, (size_t)(N - at) * 4 * 72 * sizeof(float));
            feed_run(&got, other, at, N, 13);
            char what[64];
            snprintf(what, sizeof what, "%s, loaded after %u rows", name, at);
            assert_same_bits(&got, &want, what);
            assert_int_equal(vq_kv_truncate(kv, N, NULL), VQ_OK); /* settles, so that both have dropped what they can */
            assert_int_equal(vq_kv_truncate(other, N, NULL), VQ_OK);
            vq_kv_bytes a, b;
            vq_kv_measure(kv, &a);
            vq_kv_measure(other, &b);
            assert_int_equal(a.n_packed_rows, b.n_packed_rows);
            assert_int_equal(a.codes + a.scales + a.exact, b.codes + b.scales + b.exact);
            vq_kv_close(kv);
            vq_kv_close(other);
        }
    }
    remove(path);
    feed_free(&want);
    feed_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_threads_change_nothing),
        cmocka_unit_test(attention_is_a_softmax_over_the_rows_that_are_read),
        cmocka_unit_test(odd_rows_stay_finite),
        cmocka_unit_test(head_sizes_work_or_are_refused_at_open),
        cmocka_unit_test(exact_rows_stay_bounded),
        cmocka_unit_test(truncated_caches_go_on),
        cmocka_unit_test(granules_are_encoded_again),
        cmocka_unit_test(loaded_caches_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
