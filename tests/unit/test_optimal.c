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
#include "formats/calibration.h"
#include "quant/trelliscode.h"
#include "support/calibration.h"
#include "support/codec.h"
#include "support/temporary.h"

enum { N_PAGES = 16, N = 64 * N_PAGES };

/* Channel i varies by (1 + i)^-power, and every other channel is heard 16 times as loudly. */
static double variance(uint32_t i, double power) { return pow(1 + (double)i, -power); }

static double loudness(uint32_t i) { return i % 2 ? 16 : 1; }

static vq_calibration *calibration(uint32_t d, double power)
{
    const vq_calibration_info info = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_k = d, .d_v = d, .n_tokens = 9};
    vq_calibration *c = toy_calibration(&info, 3);
    for (uint32_t i = 0; i < d; i++) {
        vq_calibration_edit(c, VQ_KEY_TURN_REST, 0, 0)[i] = (float)variance(i, power);
        vq_calibration_edit(c, VQ_KEY_TURN_NEAR, 0, 0)[i] = (float)variance(i, power);
        vq_calibration_edit(c, VQ_QUERY_MOMENT, 0, 0)[(size_t)i * d + i] = (float)loudness(i);
    }
    return c;
}

static void draw(uint32_t d, double power, bool shares, float *x)
{
    vq_rng rng;
    vq_rng_seed(&rng, 11);
    double shared[512] = {0};
    for (uint32_t r = 0; r < N; r++)
        for (uint32_t j = 0; j < d; j++) {
            const double sd = sqrt(variance(j, power));
            if (shares && r % 32 == 0)
                shared[j] = sd * vq_rng_normal(&rng);
            x[(size_t)r * d + j] = (float)(sd * vq_rng_normal(&rng) + shared[j]);
        }
}

static int descending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (x[0] < y[0]) - (x[0] > y[0]);
}

/* Squared error of 1 that comes back times a gain; codes are means of what they stand for. */
static double left_over(uint32_t bits, double gain)
{
    const double kept = bits ? 1 / (1 + (double)vq_trelliscode_noise(bits)) : 0;
    return 1 - kept * (2 * gain - gain * gain);
}

/* Error energy of a row of keys with n_bits bits for groups of 8.  Channels are divided by the root of how
 * loudly they are heard and ordered, and bits go one after another to where they take most off; groups of equal bits
 * share their error, those of most bits unevenly. */
static double promised_keys(uint32_t d, double power, uint32_t n_bits)
{
    double of[512][2], sum = 0; /* variance after the division, what it is divided by squared */
    const uint32_t n = d / 8;
    for (uint32_t j = 0; j < d; j++) {
        of[j][1] = 1 / loudness(j);
        of[j][0] = variance(j, power) / of[j][1];
    }
    qsort(of, d, sizeof of[0], descending);
    uint32_t has[64];
    double energy[64] = {0}, folds[64] = {0};
    for (uint32_t j = 0; j < d; j++) {
        has[j / 8] = 0;
        energy[j / 8] += of[j][0];
        folds[j / 8] += of[j][1];
    }
    for (uint32_t k = 0; k < n_bits; k++) {
        uint32_t best = 0;
        double most = -1;
        for (uint32_t g = 0; g < n; g++) {
            const double less =
                has[g] < VQ_TRELLIS_MAX_BITS
                    ? energy[g] * (double)(vq_trelliscode_noise(has[g]) - vq_trelliscode_noise(has[g] + 1))
                    : -1;
            if (less > most) {
                most = less;
                best = g;
            }
        }
        has[best]++;
    }
    double most_energy = 0, most_folds = 0, most_whole = 0, whole = 0, along = 0;
    uint32_t n_most = 0;
    for (uint32_t j = 0; j < d && has[j / 8] == VQ_TRELLIS_MAX_BITS;
         j++) { /* fourth roots of what is left are folded too */
        n_most++;
        most_energy += sqrt(of[j][0]);
        most_folds += of[j][1] * sqrt(of[j][0]);
        most_whole += of[j][0];
    }
    if (n_most) {
        whole = most_energy * sqrt(most_whole / n_most);
        along = whole / (1 + (double)vq_trelliscode_noise(VQ_TRELLIS_MAX_BITS));
    }
    for (uint32_t g = n_most / 8; g < n; g++) {
        whole += has[g] ? energy[g] : 0;
        along += has[g] ? energy[g] / (1 + (double)vq_trelliscode_noise(has[g])) : 0;
    }
    const double gain = whole / along; /* one for all groups of a row */
    if (n_most)
        sum += most_energy / n_most * most_folds * left_over(VQ_TRELLIS_MAX_BITS, gain);
    for (uint32_t g = n_most / 8, run; g < n; g += run) { /* as many as have equal bits, to a power of two, are mixed */
        double of_run = 0, folds_of_run = 0;
        uint32_t same = 1;
        while (g + same < n && has[g + same] == has[g])
            same++;
        for (run = 1; 2 * run <= same;)
            run *= 2;
        for (uint32_t i = g; i < g + run; i++) {
            of_run += energy[i] / (8 * run);
            folds_of_run += folds[i];
        }
        sum += of_run * left_over(has[g], gain) * folds_of_run;
    }
    return sum;
}

/* Squared error of all rows, in chunks of a page. */
static double error_of(const test_codec *t, uint32_t d, const float *x)
{
    float *y = malloc((size_t)64 * d * sizeof *y);
    uint8_t *page = calloc(1, test_codec_page_bytes(t));
    double error = 0;
    for (uint32_t p = 0; p < N_PAGES; p++) {
        const float *rows = x + (size_t)p * 64 * d;
        t->codec->encode(t->state, page, 0, 32, rows);
        t->codec->encode(t->state, page, 32, 32, rows + (size_t)32 * d);
        t->codec->decode(t->state, page, 0, 64, y);
        for (uint32_t i = 0; i < 64 * d; i++)
            error += ((double)rows[i] - (double)y[i]) * ((double)rows[i] - (double)y[i]);
    }
    free(page);
    free(y);
    return error;
}

static void open_codec(test_codec *t, const vq_kernels *k, double bits, uint32_t d, bool keys, const vq_calibration *c)
{
    vq_error err;
    const test_option set[] = {{"bits", bits}, {NULL, 0}};
    if (test_codec_open_calibrated(t, k, "optimal", set, d, keys, 1, c, &err) != VQ_OK)
        fail_msg("%s", err.text);
}

static uint32_t bits_of_groups(const test_codec *t) { return (uint32_t)(t->bytes.codes / 64); } /* a byte a row each */

static void error_is_what_water_filling_promises(void **state)
{
    (void)state;
    vq_kernels k;
    vq_kernels_init(&k, vq_cpu_detect());
    static const uint32_t sizes[] = {64, 128, 256};
    static const double rates[] = {1.75, 2.25, 3, 4}, powers[] = {0.5, 1};
    for (size_t s = 0; s < 3; s++)
        for (size_t w = 0; w < 2; w++) {
            const uint32_t d = sizes[s];
            vq_calibration *c = calibration(d, powers[w]);
            float *x = malloc((size_t)N * d * sizeof *x);
            for (size_t r = 0; r < 4; r++)
                for (int keys = 0; keys < 2; keys++) {
                    test_codec t;
                    draw(d, powers[w], keys, x);
                    open_codec(&t, &k, rates[r], d, keys, c);
                    const uint32_t n = bits_of_groups(&t), n_groups = d / 8;
                    double all = 0, noise = 0;
                    for (uint32_t j = 0; j < d; j++)
                        all += variance(j, powers[w]);
                    for (uint32_t g = 0; g < n_groups; g++)
                        noise += (double)vq_trelliscode_noise(n / n_groups + (g < n % n_groups)) / n_groups;
                    const double want = N * (keys ? promised_keys(d, powers[w], n) : all * noise);
                    const double error = error_of(&t, d, x);
                    /* 1/8 for the draws, for gains in bytes and mixing; rows of 64
                     * have a little more than the error of long ones */
                    if (!(error < want * 1.125 && error > want * 0.9))
                        fail_msg("d %u, power %g, %s, %g bits: error %g of what was promised", d, powers[w],
                                 keys ? "keys" : "values", rates[r], error / want);
                    test_codec_close(&t);
                }
            free(x);
            vq_calibration_close(c);
        }
}

/* `bits` counts all that rows take, and no group of 8 for a row is given away before all have 5 bits. */
static void bits_are_what_rows_take(void **state)
{
    (void)state;
    vq_kernels k;
    vq_kernels_init(&k, vq_cpu_detect());
    static const uint32_t sizes[] = {64, 96, 128, 256};
    for (size_t s = 0; s < 4; s++) {
        const uint32_t d = sizes[s];
        vq_calibration *c = calibration(d, 0.5);
        for (double bits = 1.5; bits <= 5; bits += 0.125) {
            double got = 0;
            bool all = true; /* groups have as many bits as they can */
            for (int keys = 0; keys < 2; keys++) {
                test_codec t;
                open_codec(&t, &k, bits, d, keys, c);
                got += (double)test_codec_page_bytes(&t) * 8 / 64 / d / 2;
                all = all && bits_of_groups(&t) == VQ_TRELLIS_MAX_BITS * d / 8;
                test_codec_close(&t);
            }
            if (!(got <= bits && (got > bits - 8.0 / (2 * d) || (all && bits > 5))))
                fail_msg("d %u, %g bits: rows take %g", d, bits, got);
        }
        vq_calibration_close(c);
    }
}

/* Keys that RoPE turns: what they share is found again when the codec knows the frequencies, and scores meet it. */
static void what_turns_is_shared(void **state)
{
    (void)state;
    enum { D = 64, N_PAIRS = D / 2 };
    vq_kernels k;
    vq_kernels_init(&k, vq_cpu_detect());
    double freq[N_PAIRS];
    for (uint32_t f = 0; f < N_PAIRS; f++)
        freq[f] = pow(1e4, -(double)f / N_PAIRS);
    vq_calibration *c = calibration(D, 0.5);
    for (int halves = 0; halves < 2; halves++) {
        const vq_kv_rope rope = {freq, D, halves};
        float *x = malloc((size_t)N * D * sizeof *x), q[D], y[64 * D];
        vq_rng rng;
        vq_rng_seed(&rng, 5);
        for (uint32_t r = 0; r < N; r++)
            for (uint32_t f = 0; f < N_PAIRS; f++) {
                const uint32_t a = halves ? f : 2 * f, b = halves ? f + N_PAIRS : a + 1;
                x[(size_t)r * D + a] = (float)(3 * cos(freq[f] * (100 + r)) + 0.1 * vq_rng_normal(&rng));
                x[(size_t)r * D + b] = (float)(3 * sin(freq[f] * (100 + r)) + 0.1 * vq_rng_normal(&rng));
            }
        double error[2];
        for (int knows = 0; knows < 2; knows++) {
            test_codec t;
            open_codec(&t, &k, 3, D, true, c);
            if (knows) {
                vq_error err;
                t.codec->destroy(t.state);
                t.env.calibration = c;
                t.env.rope = &rope;
                assert_int_equal(t.codec->create(&t.state, &t.env, &err), VQ_OK);
            }
            error[knows] = error_of(&t, D, x) / ((double)N * D);
            uint8_t *page = calloc(1, test_codec_page_bytes(&t));
            t.codec->encode(t.state, page, 0, 32, x);
            t.codec->encode(t.state, page, 32, 32, x + 32 * D);
            t.codec->decode(t.state, page, 0, 64, y);
            for (uint32_t j = 0; j < D; j++)
                q[j] = (float)vq_rng_normal(&rng);
            uint8_t *query = aligned_alloc(64, t.codec->query_bytes(t.state));
            float out[64];
            const vq_rows rows = {.live = ~0ULL, .n = 64};
            t.codec->prepare(t.state, query, q);
            t.codec->score(t.state, page, &rows, query, 1, out);
            for (uint32_t r = 0; r < 64; r++) {
                double dot = 0, size = 0;
                for (uint32_t j = 0; j < D; j++) {
                    dot += (double)q[j] * (double)y[r * D + j];
                    size += fabs((double)q[j] * (double)y[r * D + j]);
                }
                /* a query has 14 bits, folded and mixed: 2^-13 of its largest value for each coordinate at most */
                if (!(fabs((double)out[r] - dot) <= size * 0x1p-9))
                    fail_msg("row %u: score %g, of the decoded row %g", r, (double)out[r], dot);
            }
            free(query);
            free(page);
            test_codec_close(&t);
        }
        /* Each channel has an energy of 4.5, of which a plain mean leaves that of the quarter that turns fast.  What is
         * shared comes back to a hundredth, and the rest has as much. */
        if (!(error[1] < 0.06 * error[0]))
            fail_msg("halves %d: error %g with and %g without the frequencies", halves, error[1], error[0]);
        free(x);
    }
    vq_calibration_close(c);
}

/* Rows that are sinks have a key of their own, wherever they stand: it is taken off where the codec is told positions,
 * leaves a row's error small, does not get into what the others share, and is met by scores. */
static void sinks_are_told_apart(void **state)
{
    (void)state;
    enum { D = 64, N_PAIRS = D / 2, FIRST = 100000 };
    vq_kernels k;
    vq_kernels_init(&k, vq_cpu_detect());
    double freq[N_PAIRS];
    for (uint32_t f = 0; f < N_PAIRS; f++)
        freq[f] = pow(1e4, -(double)f / N_PAIRS);
    vq_calibration *c = calibration(D, 0);
    float *sink = vq_calibration_edit(c, VQ_KEY_SINK, 0, 0);
    for (uint32_t j = 0; j < D; j++)
        sink[j] = j % 3 ? 0.5F : -1;
    const uint64_t sinks = 1ULL << 3 | 1ULL << 17 | 1ULL << 40 | 1ULL << 63;
    for (int halves = 0; halves < 2; halves++) {
        const vq_kv_rope rope = {freq, D, halves};
        test_codec t;
        open_codec(&t, &k, 3, D, true, c);
        vq_error err;
        t.codec->destroy(t.state);
        t.env.calibration = c;
        t.env.rope = &rope;
        assert_int_equal(t.codec->create(&t.state, &t.env, &err), VQ_OK);
        float x[64 * D], y[64 * D], q[D], out[64];
        uint32_t pos[64];
        vq_rng rng;
        vq_rng_seed(&rng, 6);
        for (uint32_t r = 0; r < 64; r++) {
            const bool is = sinks >> r & 1;
            pos[r] = FIRST + r;
            for (uint32_t f = 0; f < N_PAIRS; f++) {
                const uint32_t a = halves ? f : 2 * f, b = halves ? f + N_PAIRS : a + 1;
                const double angle = freq[f] * pos[r], one = is ? (double)sink[a] : 4, two = is ? (double)sink[b] : -4;
                const double noise = is ? 0.05 : 1;
                x[r * D + a] = (float)(one * cos(angle) - two * sin(angle) + noise * vq_rng_normal(&rng));
                x[r * D + b] = (float)(one * sin(angle) + two * cos(angle) + noise * vq_rng_normal(&rng));
            }
        }
        uint8_t *page = calloc(1, test_codec_page_bytes(&t));
        t.codec->encode_at(t.state, page, 0, 32, x, pos);
        t.codec->encode_at(t.state, page, 32, 32, x + 32 * D, pos + 32);
        t.codec->decode_at(t.state, page, 0, 64, y, pos);
        double of_sinks = 0, of_others = 0;
        for (uint32_t i = 0; i < 64 * D; i++)
            *(sinks >> i / D & 1 ? &of_sinks : &of_others) += pow((double)x[i] - (double)y[i], 2);
        /* 1/40 of the variance at three bits, and what the key and the gains lose by their bytes */
        if (!(of_sinks / (4 * D) < 0.0025 * 0.06 && of_others / (60 * D) < 0.06))
            fail_msg("halves %d: errors %g of sinks, %g of others", halves, of_sinks / (4 * D), of_others / (60 * D));
        for (uint32_t r = 0; r < 64; r += 7) { /* any part decodes alike */
            float row[2 * D];
            const uint32_t n = r == 63 ? 1 : 2;
            t.codec->decode_at(t.state, page, r, n, row, pos + r);
            assert_memory_equal(row, y + r * D, n * D * sizeof *row);
        }
        for (uint32_t j = 0; j < D; j++)
            q[j] = (float)vq_rng_normal(&rng);
        uint8_t *query = aligned_alloc(64, t.codec->query_bytes(t.state));
        const vq_rows rows = {.live = ~0ULL, .n = 64, .pos = pos};
        t.codec->prepare(t.state, query, q);
        t.codec->score(t.state, page, &rows, query, 1, out);
        for (uint32_t r = 0; r < 64; r++) {
            double dot = 0, size = 0;
            for (uint32_t j = 0; j < D; j++) {
                dot += (double)q[j] * (double)y[r * D + j];
                size += fabs((double)q[j] * (double)y[r * D + j]);
            }
            /* of a sink, what others share was taken off a score that had it: rounded as that is */
            if (!(fabs((double)out[r] - dot) <= size * 0x1p-9 + 1e-3))
                fail_msg("row %u: score %g, of the decoded row %g", r, (double)out[r], dot);
        }
        free(query);
        free(page);
        test_codec_close(&t);
    }
    vq_calibration_close(c);
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
        cmocka_unit_test(bits_are_what_rows_take),
        cmocka_unit_test(what_turns_is_shared),
        cmocka_unit_test(sinks_are_told_apart),
        cmocka_unit_test(calibrations_are_asked_for_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
