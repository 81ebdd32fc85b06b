/* The calibrated codec on rows that are distributed as its calibration says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "support/calibration.h"
#include "support/codec.h"
#include "support/temporary.h"

enum { N_PAGES = 16, N = 64 * N_PAGES };

/* Rows with covariance B' diag(1/(1+i)) B around what 32 of them share, which has the same covariance. */
static void draw(const vq_calibration *c, bool keys, uint32_t d, float *x)
{
    const float *basis = vq_calibration_at(c, keys ? VQ_KEY_REST_BASIS : VQ_VALUE_BASIS, 0, 0);
    vq_rng rng;
    vq_rng_seed(&rng, 11);
    double shared[512];
    for (uint32_t r = 0; r < N; r++) {
        double y[512];
        for (uint32_t j = 0; j < d; j++) {
            const double sd = sqrt(1 / (1 + (double)j));
            if (r % 32 == 0)
                shared[j] = keys ? sd * vq_rng_normal(&rng) : 0;
            y[j] = sd * vq_rng_normal(&rng) + shared[j];
        }
        for (uint32_t i = 0; i < d; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < d; j++)
                sum += y[j] * (double)basis[(size_t)j * d + i];
            x[(size_t)r * d + i] = (float)sum;
        }
    }
}

/* Error energy of a row, from the errors D of Lloyd-Max quantisers: unshrunk levels have D / (1 - D).  Keys: bits of a
 * group of 8 by brute force.  Values: rotated, so that all dimensions vary alike. */
static double promised(uint32_t d, bool keys, double bits)
{
    static const double unit[] = {1, 0.36338, 0.11748, 0.03454, 0.009497};
    const uint32_t n = d / 8, n_bits = (uint32_t)rint(bits * n);
    double of[64] = {0}, all = 0, sum = 0, noise[5];
    uint32_t has[64];
    for (uint32_t b = 1; b < 5; b++)
        noise[b] = unit[b] / (1 - unit[b]);
    for (uint32_t j = 0; j < d; j++) {
        of[j / 8] += 1 / (1 + (double)j);
        all += 1 / (1 + (double)j);
    }
    for (uint32_t g = 0; g < n; g++)
        has[g] = keys ? 1 : n_bits / n + (g < n_bits % n);
    for (uint32_t k = n; keys && k < n_bits; k++) {
        double most = 0;
        uint32_t best = 0;
        for (uint32_t g = 0; g < n; g++)
            if (has[g] < 4 && of[g] * (noise[has[g]] - noise[has[g] + 1]) > most) {
                most = of[g] * (noise[has[g]] - noise[has[g] + 1]);
                best = g;
            }
        has[best]++;
    }
    for (uint32_t g = 0; g < n; g++)
        sum += (keys ? of[g] : all / n) * noise[has[g]];
    return sum;
}

static void error_is_what_water_filling_promises(void **state)
{
    (void)state;
    vq_kernels k;
    vq_kernels_init(&k, vq_cpu_detect());
    static const uint32_t sizes[] = {64, 128, 256};
    static const double rates[] = {1.5, 2, 3, 4};
    for (size_t s = 0; s < 3; s++) {
        const uint32_t d = sizes[s];
        const vq_calibration_info info = {
            .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_k = d, .d_v = d, .n_tokens = 9};
        vq_calibration *c = toy_calibration(&info, 3);
        float *x = malloc(N * d * sizeof *x), *y = malloc(N * d * sizeof *y);
        for (size_t r = 0; r < 4; r++)
            for (int keys = 0; keys < 2; keys++) {
                draw(c, keys, d, x);
                test_codec t;
                vq_error err;
                const test_option set[] = {{"bits", rates[r]}, {"values", rates[r]}, {NULL, 0}};
                if (test_codec_open_calibrated(&t, &k, "optimal", set, d, keys, 1, c, &err) != VQ_OK)
                    fail_msg("%s", err.text);
                uint8_t *page = calloc(1, test_codec_page_bytes(&t));
                double error = 0;
                for (uint32_t p = 0; p < N_PAGES; p++) {
                    const float *rows = x + (size_t)p * 64 * d;
                    t.codec->encode(t.state, page, 0, 32, rows);
                    t.codec->encode(t.state, page, 32, 32, rows + (size_t)32 * d);
                    t.codec->decode(t.state, page, 0, 64, y);
                    for (uint32_t i = 0; i < 64 * d; i++)
                        error += ((double)rows[i] - (double)y[i]) * ((double)rows[i] - (double)y[i]);
                }
                const double want = promised(d, keys, rates[r]) * N;
                /* 1/8 above for the draws and for gains in 8 bits, and what rows share, which has its own error
                 * (0.0095 of as much variance as the rest has here); 1/4 below, which the search of gains can take off.
                 */
                const double own = keys ? 0.0095 * N * promised(d, true, 1) / (0.36338 / (1 - 0.36338)) : 0;
                if (!(error < want * 1.125 + 1.5 * own && error > want * 0.75))
                    fail_msg("d %u, %s, %g bits: error %g of what was promised", d, keys ? "keys" : "values", rates[r],
                             error / want);
                free(page);
                test_codec_close(&t);
            }
        free(x);
        free(y);
        vq_calibration_close(c);
    }
}

static void refused(const vq_kv_params *p, vq_status status, const char *says)
{
    vq_kv *kv;
    vq_error err = {0};
    const vq_status got = vq_kv_open(&kv, p, &err);
    if (got != status || kv || !strstr(err.text, says))
        fail_msg("status %s, \"%s\", want %s and \"%s\"", vq_status_name(got), err.text, vq_status_name(status), says);
}

/* Without a calibration the command that makes one is named; one of another model or shape is refused; the one that a
 * method names is opened; saved caches carry which it was. */
static void calibrations_are_asked_for_and_checked(void **state)
{
    (void)state;
    vq_kv_params p = {.n_layers = 2,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .d_k = 16,
                      .d_v = 16,
                      .n_ctx = 200,
                      .n_batch = 100,
                      .sinks = 0,
                      .residual = 0,
                      .model_hash = 77,
                      .keys = "optimal:bits=2",
                      .values = "f16"};
    refused(&p, VQ_ERR_ARG, "veloxquant calibrate MODEL --text FILE -o FILE.vqc");
    vq_calibration_info info = {
        .model_hash = 78, .n_layers = 2, .n_heads = 2, .n_kv_heads = 1, .d_k = 16, .d_v = 16, .n_tokens = 1};
    vq_calibration *other = toy_calibration(&info, 1);
    p.calibration = other;
    refused(&p, VQ_ERR_MISMATCH, "hash 000000000000004e, this one has 000000000000004d");
    p.model_hash = 78;
    p.d_k = 32;
    refused(&p, VQ_ERR_MISMATCH, "has 16 values a key, the cache has 32");
    p.d_k = 16;
    p.keys = "velox:calibration=x.vqc";
    refused(&p, VQ_ERR_ARG, "velox: takes no calibration");
    p.keys = "optimal:calibration=/nowhere/x.vqc";
    refused(&p, VQ_ERR_IO, "/nowhere/x.vqc");

    char path[TEMPORARY_PATH], cache[TEMPORARY_PATH], method[64 + TEMPORARY_PATH];
    temporary_file(path, "optimal");
    temporary_file(cache, "optimal");
    vq_error err;
    assert_int_equal(vq_calibration_write(other, path, &err), VQ_OK);
    snprintf(method, sizeof method, "optimal:bits=2,calibration=%s", path);
    p.keys = method;
    p.calibration = NULL;
    vq_kv *kv;
    if (vq_kv_open(&kv, &p, &err) != VQ_OK)
        fail_msg("%s", err.text);
    assert_int_equal(vq_kv_save(kv, cache, &err), VQ_OK);
    vq_kv_close(kv);
    info.n_tokens = 2; /* another calibration of the same model */
    vq_calibration *again = toy_calibration(&info, 2);
    p.keys = "optimal:bits=2";
    p.calibration = again;
    assert_int_equal(vq_kv_open(&kv, &p, &err), VQ_OK);
    assert_int_equal(vq_kv_load(kv, cache, &err), VQ_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "calibration"));
    vq_kv_close(kv);
    p.calibration = other; /* the same as the file's */
    assert_int_equal(vq_kv_open(&kv, &p, &err), VQ_OK);
    if (vq_kv_load(kv, cache, &err) != VQ_OK)
        fail_msg("%s", err.text);
    vq_kv_close(kv);
    unlink(path);
    unlink(cache);
    vq_calibration_close(other);
    vq_calibration_close(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_what_water_filling_promises),
        cmocka_unit_test(calibrations_are_asked_for_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
