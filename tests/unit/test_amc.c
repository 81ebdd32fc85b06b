/* Tiers by saliency: how many rows each has, which rows these are, what they cost, bytes that say something else. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "support/calibration.h"
#include "support/codec.h"

enum { D = 64 };

static vq_kernels kernels;

static vq_calibration *calibrate(void)
{
    const vq_calibration_info info = {.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .d_k = D, .d_v = D, .n_tokens = 9};
    vq_calibration *c = toy_calibration(&info, 3);
    /* queries lie along channel 5 */
    for (uint32_t h = 0; h < 2; h++) {
        float *mean = vq_calibration_edit(c, VQ_QUERY_MEAN, 0, h),
              *moment = vq_calibration_edit(c, VQ_QUERY_MOMENT, 0, h);
        for (uint32_t i = 0; i < D; i++) {
            mean[i] = i == 5 ? 8 : 0;
            for (uint32_t j = 0; j < D; j++)
                moment[i * D + j] = i == 5 && j == 5 ? 64 : 0;
        }
    }
    return c;
}

static void open_codec(test_codec *t, const char *method, bool keys, const vq_calibration *c)
{
    vq_error err = {0};
    if (test_codec_open_calibrated(t, &kernels, method, NULL, D, keys, 1, c, &err) != VQ_OK)
        fail_msg("%s: %s", method, err.text);
}

static void normal_rows(float *x, float by)
{
    vq_rng rng;
    vq_rng_seed(&rng, 4);
    for (size_t i = 0; i < (size_t)64 * D; i++)
        x[i] = by * (float)vq_rng_normal(&rng);
}

static double error_of(const float *a, const float *b)
{
    double off = 0, all = 0;
    for (uint32_t j = 0; j < D; j++) {
        off += ((double)a[j] - (double)b[j]) * ((double)a[j] - (double)b[j]);
        all += (double)a[j] * (double)a[j];
    }
    return off / all;
}

static uint32_t tier_of(const uint8_t *granule, uint32_t row) { return granule[row / 4] >> row % 4 * 2 & 3; }

/* The rows along which the queries lie are the precise ones, at any size of rows: nothing saturates. */
static void the_rows_that_queries_look_at_are_precise(void **state)
{
    (void)state;
    vq_calibration *c = calibrate();
    float x[64 * D], y[64 * D];
    for (float by = 1e-3F; by < 1e4F; by *= 100) {
        normal_rows(x, by);
        test_codec t;
        open_codec(&t, "amc:bits=2.5,high=4,low=12", true, c);
        for (uint32_t i = 0; i < 64; i++) /* rows 3, 11, 19 .. lie along, 0, 1, 2 of 8 against */
            x[i * D + 5] = i % 8 == 3 ? 4 * by : i % 8 < 3 ? -4 * by : 0;
        uint8_t *page = calloc(1, test_codec_page_bytes(&t));
        t.codec->encode(t.state, page, 0, 32, x);
        t.codec->encode(t.state, page, 32, 32, x + 32 * D);
        t.codec->decode(t.state, page, 0, 64, y);
        double error[3] = {0};
        uint32_t n[3] = {0};
        for (uint32_t i = 0; i < 64; i++) {
            const uint32_t tier = tier_of(page + i / 32 * (test_codec_page_bytes(&t) / 2), i % 32);
            assert_true(tier < 3);
            assert_true((tier == 0) == (i % 8 == 3));
            n[tier]++;
            error[tier] += error_of(x + i * D, y + i * D);
        }
        assert_true(n[0] == 8 && n[1] == 32 && n[2] == 24);
        if (!(error[0] / n[0] < 0.6 * error[1] / n[1] && error[1] / n[1] < 0.6 * error[2] / n[2]))
            fail_msg("rows times %g: errors %g, %g, %g", (double)by, error[0] / n[0], error[1] / n[1], error[2] / n[2]);
        free(page);
        test_codec_close(&t);
    }
    vq_calibration_close(c);
}

/* Values by energy; the average of bits is what was asked for, whatever the shares. */
static void bits_are_those_asked_for(void **state)
{
    (void)state;
    vq_calibration *c = calibrate();
    static const char *const methods[] = {
        "amc:bits=3",          "amc:bits=3,high=4,low=12", "amc:bits=3,spread=2",
        "amc:bits=3,spread=0", "amc:bits=3,high=0,low=0",  "amc:bits=3,high=16,low=16"};
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++)
        for (int keys = 0; keys < 2; keys++) {
            test_codec t;
            open_codec(&t, methods[m], keys, c);
            const double bits = 8.0 * (double)t.bytes.codes / (64 * D);
            if (!(fabs(bits - 3) <= 0.5 * 8 / D + 1e-9)) /* half a group's bit by rounding */
                fail_msg("%s: %g bits", methods[m], bits);
            test_codec_close(&t);
        }
    vq_calibration_close(c);
}

/* Rows that the calibration does not expect come back no longer than they are. */
static void unlike_rows_stay_in_bounds(void **state)
{
    (void)state;
    const vq_calibration_info info = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_k = D, .d_v = D, .n_tokens = 9};
    for (uint64_t seed = 1; seed < 20; seed++)
        for (int keys = 0; keys < 2; keys++) {
            vq_calibration *c = toy_calibration(&info, seed);
            test_codec t;
            open_codec(&t, "amc", keys, c);
            float x[32 * D], y[32 * D];
            for (size_t i = 0; i < (size_t)32 * D; i++)
                x[i] = i / D == 20 && seed % 2 ? 1 : 6e4F;
            uint8_t *page = calloc(1, test_codec_page_bytes(&t));
            t.codec->encode(t.state, page, 0, 32, x);
            t.codec->decode(t.state, page, 0, 32, y);
            for (size_t i = 0; i < (size_t)32 * D; i++)
                if (!(fabsf(y[i]) < 2 * 65504))
                    fail_msg("%s, seed %d: row %zu has %g", keys ? "keys" : "values", (int)seed, i / D, (double)y[i]);
            free(page);
            test_codec_close(&t);
            vq_calibration_close(c);
        }
}

static void any_bytes_are_read(void **state)
{
    (void)state;
    vq_calibration *c = calibrate();
    test_codec t;
    open_codec(&t, "amc", true, c);
    const size_t n = test_codec_page_bytes(&t);
    uint8_t *page = malloc(n); /* exactly: sanitizers see the end */
    float y[64 * D];
    vq_rng rng;
    vq_rng_seed(&rng, 9);
    for (uint32_t round = 0; round < 100; round++) {
        for (size_t i = 0; i < n; i++)
            page[i] = round < 4 ? (uint8_t)(round * 0x55) : (uint8_t)vq_rng_next(&rng);
        t.codec->decode(t.state, page, 0, 64, y);
    }
    free(page);
    test_codec_close(&t);
    vq_calibration_close(c);
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rows_that_queries_look_at_are_precise),
        cmocka_unit_test(bits_are_those_asked_for),
        cmocka_unit_test(unlike_rows_stay_in_bounds),
        cmocka_unit_test(any_bytes_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
