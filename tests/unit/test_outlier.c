/* Two streams: which channels go apart, answers against decoded rows with any other codec inside, what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "support/calibration.h"
#include "support/codec.h"
#include "support/temporary.h"

enum { D = 64, N_QUERIES = 50 };

static vq_kernels kernels;

/* Normal rows; channels 3, 10, 17 .. (k of them) vary `by` times as much. */
static void draw(float *x, uint32_t n, uint32_t d, uint32_t k, float by, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < d; i++)
            x[(size_t)r * d + i] = (float)vq_rng_normal(&rng) * (i % 7 == 3 && i / 7 < k ? by : 1);
}

static void open_codec(test_codec *t, const char *method, uint32_t d, bool keys, const vq_calibration *calibration)
{
    vq_error err = {0};
    if (test_codec_open_calibrated(t, &kernels, method, NULL, d, keys, 5, calibration, &err) != VQ_OK)
        fail_msg("%s: %s", method, err.text);
}

static double error_of(const test_codec *t, const float *x, uint32_t d)
{
    void *page = calloc(1, test_codec_page_bytes(t));
    float *y = malloc((size_t)64 * d * sizeof *y);
    double error = 0;
    for (uint32_t first = 0, n = vq_side_granule(&t->side); first < 64; first += n)
        t->codec->encode(t->state, page, first, n, x + (size_t)first * d);
    t->codec->decode(t->state, page, 0, 64, y);
    for (size_t i = 0; i < (size_t)64 * d; i++)
        error += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    free(y);
    free(page);
    return error / (64.0 * d);
}

/* With the large channels apart the others have the error that normal rows have, whatever the large ones' size. */
static void large_channels_do_not_reach_the_others(void **state)
{
    (void)state;
    float *x = malloc((size_t)64 * D * sizeof *x);
    for (uint32_t by = 10; by <= 1000; by *= 10) {
        draw(x, 64, D, 8, (float)by, 3);
        test_codec two, one;
        open_codec(&two, "outlier:k=8,bits=4", D, true, NULL);
        open_codec(&one, "turboquant-mse:bits=4", D, true, NULL);
        const double with = error_of(&two, x, D), without = error_of(&one, x, D);
        const double bytes = by * by / (127.0 * 127.0) * 8 / D; /* most over 127, and 3 times the deviation */
        if (!(with < 0.0105 + bytes && without > 0.0095 * by * by / 16))
            fail_msg("channels %u times as large: error %g in two streams, %g in one", by, with, without);
        test_codec_close(&two);
        test_codec_close(&one);
    }
    free(x);
}

/* The calibration's channels are taken even where the rows at hand have others. */
static void the_calibration_says_which(void **state)
{
    (void)state;
    const vq_calibration_info info = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_k = D, .d_v = D, .n_tokens = 9};
    vq_calibration *c = toy_calibration(&info, 1);
    for (int keys = 0; keys < 2; keys++) {
        float *moment = vq_calibration_edit(c, keys ? VQ_KEY_MOMENT : VQ_VALUE_MOMENT, 0, 0);
        for (uint32_t i = 0; i < D; i++)
            moment[(size_t)i * D + i] = i % 7 == 3 && i / 7 < 8 ? 9 : 1;
        float *x = malloc((size_t)64 * D * sizeof *x), *y = malloc((size_t)64 * D * sizeof *y);
        for (size_t i = 0; i < (size_t)64 * D; i++)
            x[i] = i % D == 5 ? 100 : (float)(i % 16);
        test_codec t;
        open_codec(&t, "outlier:k=8,bits=1", D, keys, c);
        void *page = calloc(1, test_codec_page_bytes(&t));
        t.codec->encode(t.state, page, 0, 32, x);
        t.codec->encode(t.state, page, 32, 32, x + (size_t)32 * D);
        t.codec->decode(t.state, page, 0, 64, y);
        for (uint32_t i = 0; i < D; i++) {
            double off = 0;
            for (uint32_t r = 0; r < 64; r++)
                off = fmax(off, fabs((double)y[r * D + i] - (double)x[r * D + i]));
            const bool apart = i % 7 == 3 && i / 7 < 8;
            if (apart && !(off < 0.07))
                fail_msg("%s: channel %u is %g off", keys ? "keys" : "values", i, off);
        }
        free(page);
        free(x);
        free(y);
        test_codec_close(&t);
    }
    vq_calibration_close(c);
}

static const char *const methods[] = {
    "outlier:k=8",
    "outlier:k=8,whole=1,bits=3",
    "outlier:k=12,wide=5,bits=2",
    "outlier:inner=kivi,bits=2",
    "outlier:inner=velox,bits=2,variance=1",
    "outlier:inner=polarquant,whole=1",
    "outlier:inner=qjl,k=16",
    "outlier:inner=optimal,whole=1,bits=3",
    "outlier:inner=f32",
};

/* score and mix against decoded rows, with and without a calibration; a query's result does not depend on how many are
 * asked at once. */
static void answers_are_those_of_decoded_rows(void **state)
{
    (void)state;
    float *x = malloc((size_t)64 * D * sizeof *x), *y = malloc((size_t)64 * D * sizeof *y);
    float *w = malloc((size_t)N_QUERIES * 64 * sizeof *w), *out = malloc((size_t)N_QUERIES * 64 * sizeof *out);
    float *q = malloc((size_t)N_QUERIES * D * sizeof *q), one[64];
    const uint32_t pos[64] = {0};
    const vq_calibration_info info = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_k = D, .d_v = D, .n_tokens = 9};
    vq_calibration *calibration = toy_calibration(&info, 1);
    draw(x, 64, D, 8, 10, 4);
    draw(q, N_QUERIES, D, 0, 1, 6);
    vq_rng rng;
    vq_rng_seed(&rng, 7);
    for (size_t i = 0; i < (size_t)N_QUERIES * 64; i++)
        w[i] = (float)vq_rng_uniform(&rng) / 64;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        for (int mode = 0; mode < 4; mode++) {
            const bool keys = mode & 1, calibrated = mode & 2;
            if (!calibrated && strstr(methods[m], "optimal"))
                continue;
            test_codec t;
            open_codec(&t, methods[m], D, keys, calibrated ? calibration : NULL);
            _Alignas(64) uint8_t page[64 * D * 8] = {0};
            assert_true(test_codec_page_bytes(&t) <= sizeof page);
            for (uint32_t first = 0, n = vq_side_granule(&t.side); first < 64; first += n)
                t.codec->encode(t.state, page, first, n, x + (size_t)first * D);
            t.codec->decode(t.state, page, 0, 64, y);
            double largest = 0;
            for (uint32_t r = 0; r < 64; r++) {
                double squares = 0;
                for (uint32_t i = 0; i < D; i++)
                    squares += (double)y[r * D + i] * (double)y[r * D + i];
                largest = fmax(largest, sqrt(squares));
            }
            const vq_rows rows = {.pos = pos, .live = ~(uint64_t)0, .n = 64};
            if (keys) {
                const size_t stride = vq_side_query_bytes(&t.side);
                uint8_t *prepared = aligned_alloc(64, stride * N_QUERIES);
                for (uint32_t i = 0; i < N_QUERIES; i++)
                    vq_side_prepare(&t.side, prepared + i * stride, q + (size_t)i * D);
                vq_side_score(&t.side, page, &rows, prepared, N_QUERIES, out);
                vq_side_score(&t.side, page, &rows, prepared + 49 * stride, 1, one);
                assert_memory_equal(one, out + 49 * 64, sizeof one);
                for (uint32_t i = 0; i < N_QUERIES; i++)
                    for (uint32_t r = 0; r < 64; r++) {
                        double want = 0, squares = 0;
                        for (uint32_t j = 0; j < D; j++) {
                            want += (double)q[i * D + j] * (double)y[r * D + j];
                            squares += (double)q[i * D + j] * (double)q[i * D + j];
                        }
                        const double bound = 0.02 * sqrt(squares) * largest;
                        if (!(fabs(want - (double)out[i * 64 + r]) <= bound))
                            fail_msg("%s%s: query %u, row %u: %g, want %g +- %g", methods[m],
                                     calibrated ? ", calibrated" : "", i, r, (double)out[i * 64 + r], want, bound);
                    }
                free(prepared);
            } else {
                const size_t n = vq_side_acc_len(&t.side);
                float *acc = calloc(N_QUERIES * n, sizeof *acc), got[D];
                vq_side_mix(&t.side, page, &rows, w, N_QUERIES, acc);
                for (uint32_t i = 0; i < N_QUERIES; i++) {
                    vq_side_finish(&t.side, acc + i * n, got);
                    for (uint32_t j = 0; j < D; j++) {
                        double want = 0, sum = 0;
                        for (uint32_t r = 0; r < 64; r++) {
                            want += (double)w[i * 64 + r] * (double)y[r * D + j];
                            sum += (double)w[i * 64 + r];
                        }
                        const double bound = 0.035 * sum * largest;
                        if (!(fabs(want - (double)got[j]) <= bound))
                            fail_msg("%s%s: sum %u, channel %u: %g, want %g +- %g", methods[m],
                                     calibrated ? ", calibrated" : "", i, j, (double)got[j], want, bound);
                    }
                }
                free(acc);
            }
            test_codec_close(&t);
        }
    vq_calibration_close(calibration);
    free(x);
    free(y);
    free(q);
    free(w);
    free(out);
}

/* A page from a file may have a map of too many or too few channels: there are k all the same. */
static void any_map_is_read(void **state)
{
    (void)state;
    float *x = malloc((size_t)64 * D * sizeof *x), *y = malloc((size_t)64 * D * sizeof *y);
    draw(x, 64, D, 8, 10, 4);
    test_codec t;
    open_codec(&t, "outlier", D, true, NULL);
    const size_t n = test_codec_page_bytes(&t);
    uint8_t *page = calloc(1, n);
    t.codec->encode(t.state, page, 0, 32, x);
    for (int fill = 0; fill < 2; fill++) {
        memset(page + n - D / 8, fill ? 0xFF : 0, D / 8);
        t.codec->decode(t.state, page, 0, 32, y);
        for (size_t i = 0; i < (size_t)32 * D; i++)
            assert_true(isfinite(y[i]));
    }
    free(page);
    free(x);
    free(y);
    test_codec_close(&t);
}

static void refused(const char *method, uint32_t d, vq_status status, const char *says)
{
    test_codec t;
    vq_error err = {0};
    const vq_status got = test_codec_open_calibrated(&t, &kernels, method, NULL, d, true, 5, NULL, &err);
    if (got != status || !strstr(err.text, says))
        fail_msg("%s: status %s, \"%s\", want %s and \"%s\"", method, vq_status_name(got), err.text,
                 vq_status_name(status), says);
}

static void texts_are_checked(void **state)
{
    (void)state;
    refused("outlier:inner=outlier", D, VQ_ERR_ARG, "hands rows on itself");
    refused("outlier:inner=nobody", D, VQ_ERR_ARG, "outlier: inner: no method is called 'nobody'");
    refused("outlier:inner=kivi,haar=1", D, VQ_ERR_ARG, "no option 'haar'; it has: k wide whole variance inner bits");
    refused("outlier:bits=9", D, VQ_ERR_ARG, "bits");
    refused("turboquant-mse:inner=kivi", D, VQ_ERR_ARG, "no option 'inner'");
    refused("outlier:k=57", D, VQ_ERR_UNSUPPORTED, "outlier: k is 57, of rows of 64 at most 56 can go apart");
    refused("outlier:inner=optimal", D, VQ_ERR_UNSUPPORTED, "whole is 0, must be 1");
    vq_method m;
    assert_int_equal(vq_method_parse(&m, "outlier:bits=3,inner=turboquant-mse,k=9,residual=7", NULL), VQ_OK);
    assert_string_equal(m.inner->name, "turboquant-mse");
    assert_true(m.inner_values[0] == 4 && m.values[0] == 9 && m.residual == 7); /* bits were an older inner's */
}

/* A saved cache carries the other codec and its options. */
static void saved_caches_know_the_other_codec(void **state)
{
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_file(path, "outlier");
    vq_kv_params p = {.n_layers = 1,
                      .n_heads = 1,
                      .n_kv_heads = 1,
                      .d_k = D,
                      .d_v = D,
                      .n_ctx = 200,
                      .n_batch = 150,
                      .sinks = 0,
                      .residual = 0,
                      .keys = "outlier:inner=kivi,bits=3",
                      .values = "f16"};
    float *x = malloc((size_t)150 * D * sizeof *x);
    draw(x, 150, D, 8, 10, 4);
    vq_kv *kv;
    vq_error err;
    assert_int_equal(vq_kv_open(&kv, &p, &err), VQ_OK);
    assert_int_equal(vq_kv_append(kv, 0, 0, x, x, 150, &err), VQ_OK);
    assert_int_equal(vq_kv_save(kv, path, &err), VQ_OK);
    vq_kv_close(kv);
    static const struct {
        const char *keys, *says;
    } others[] = {{"outlier:inner=kivi,bits=3", NULL},
                  {"outlier:inner=kivi,bits=4", "option bits of kivi is 3 in the file, 4 in the cache"},
                  {"outlier:inner=velox,bits=3", "kivi in the file, velox in the cache"},
                  {"outlier:k=9,inner=kivi,bits=3", "option k of outlier is 8 in the file, 9 in the cache"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        p.keys = others[i].keys;
        assert_int_equal(vq_kv_open(&kv, &p, &err), VQ_OK);
        const vq_status status = vq_kv_load(kv, path, &err);
        if (others[i].says ? status != VQ_ERR_MISMATCH || !strstr(err.text, others[i].says) : status != VQ_OK)
            fail_msg("%s: %s, \"%s\"", p.keys, vq_status_name(status), err.text);
        vq_kv_close(kv);
    }
    unlink(path);
    free(x);
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_channels_do_not_reach_the_others),
        cmocka_unit_test(the_calibration_says_which),
        cmocka_unit_test(answers_are_those_of_decoded_rows),
        cmocka_unit_test(any_map_is_read),
        cmocka_unit_test(texts_are_checked),
        cmocka_unit_test(saved_caches_know_the_other_codec),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
