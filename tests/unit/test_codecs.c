/* The packed codecs one by one: errors and bytes as their papers have them, answers against decoded rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <math.h>

#include "../support/codec.h"
#include "base/cpu.h"
#include "base/rng.h"

enum { D = 128, PAGES = 48, ROWS = PAGES * VQ_PAGE_ROWS };

static vq_kernels kernels;

static void normal_rows(float *x, size_t n, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)vq_rng_normal(&rng);
}

typedef struct measured {
    double unit_error;       /* mean over rows of |x - x^|^2 / |x|^2 */
    double slope, deviation; /* of q.x^ on q.x, and the slope's standard error */
    double bits;             /* a value */
} measured;

/* ROWS normal rows and as many queries, d values each. */
static measured measure(const char *name, const test_option *options, uint32_t d, bool keys)
{
    test_codec t;
    vq_error err = {0};
    if (test_codec_open(&t, &kernels, name, options, d, keys, 7, &err) != VQ_OK)
        fail_msg("%s d=%u: %s", name, d, err.text);
    float *x = malloc((size_t)ROWS * d * sizeof *x), *y = malloc((size_t)VQ_PAGE_ROWS * d * sizeof *y);
    void *page = malloc(test_codec_page_bytes(&t));
    normal_rows(x, (size_t)ROWS * d, 11);
    double error = 0, qq = 0, qe = 0, ee = 0;
    vq_rng rng;
    vq_rng_seed(&rng, 13);
    for (uint32_t p = 0; p < PAGES; p++) {
        const float *rows = x + (size_t)p * VQ_PAGE_ROWS * d;
        t.codec->encode(t.state, page, 0, VQ_PAGE_ROWS, rows);
        t.codec->decode(t.state, page, 0, VQ_PAGE_ROWS, y);
        for (uint32_t i = 0; i < VQ_PAGE_ROWS; i++) {
            double off = 0, all = 0, dot = 0, dot_hat = 0;
            for (uint32_t j = 0; j < d; j++) {
                const double a = rows[(size_t)i * d + j], b = y[(size_t)i * d + j];
                /* a query that leans towards the row, as those do that matter */
                const double q = vq_rng_normal(&rng) + 0.3 * a;
                off += (a - b) * (a - b);
                all += a * a;
                dot += q * a;
                dot_hat += q * b;
            }
            error += off / all / ROWS;
            qq += dot * dot;
            qe += dot * dot_hat;
            ee += dot_hat * dot_hat;
        }
    }
    measured m = {.unit_error = error, .slope = qe / qq};
    m.deviation = sqrt((ee - qe * qe / qq) / qq / (ROWS - 1));
    m.bits = 8.0 * (double)test_codec_page_bytes(&t) / (VQ_PAGE_ROWS * (double)d);
    free(page);
    free(y);
    free(x);
    test_codec_close(&t);
    return m;
}

static void squared_errors_are_those_of_the_quantisers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        double bits, error, bits_per_value;
    } rows[] = {
        {"int8", 0, 0.0000560, 8.125}, /* largest of 128 normals / 127, squared, over 12 */
        {"kivi", 2, 0.1720, 3},
        {"kivi", 4, 0.0070, 5},
        {"polarquant", 0, 0.0325, 3.875}, /* 0.0128 of the circle, 0.0105, 0.0065, 0.0031 of the levels above */
        {"rabitq", 1, 0.3634, 1.125},
        {"rabitq", 2, 0.1189, 2.125}, /* the best uniform quantisers of N(0, 1) */
        {"rabitq", 3, 0.03744, 3.125},
        {"rabitq", 4, 0.01154, 4.125},
        {"rabitq", 8, 0.0001006, 8.125},
        {"qjl", 0, 0.3634, 1.125},
        /* rows that are not shrunk: e / (1 - e) where a least-squares norm has e */
        {"velox", 2, 0.1175 / (1 - 0.1175), 2 + 8.0 / 128 + 16.0 / (32 * 128)},
        {"velox", 4, 0.00953 / (1 - 0.00953), 4 + 8.0 / 128 + 16.0 / (32 * 128)},
        {"trellis", 1, 0.283 / (1 - 0.283), 1 + 8.0 / 128 + 16.0 / (32 * 128)},
        {"trellis", 2, 0.0735 / (1 - 0.0735), 2 + 8.0 / 128 + 16.0 / (32 * 128)},
        {"trellis", 3, 0.0190 / (1 - 0.0190), 3 + 8.0 / 128 + 16.0 / (32 * 128)},
        {"trellis", 4, 0.00488 / (1 - 0.00488), 4 + 8.0 / 128 + 16.0 / (32 * 128)},
        {"trellis", 5, 0.0014 / (1 - 0.0014), 5 + 8.0 / 128 + 16.0 / (32 * 128)},
        {"turboquant-rvq", 1, 0.1175, 2.125},
        {"turboquant-rvq", 2, 0.00977, 4.125},
        {"turboquant-rvq", 4, 0.0000430, 8.125},
        {"turboquant-prod", 1, 0.3634, 1.125},
        {"turboquant-prod", 2, 0.3634 * 0.3634, 2.25},
        {"turboquant-prod", 4, 0.03454 * 0.3634, 4.25},
        {"turboquant-mse", 1, 0.3634, 1.125},
        {"turboquant-mse", 2, 0.1175, 2.125},
        {"turboquant-mse", 3, 0.03454, 3.125},
        {"turboquant-mse", 4, 0.00950, 4.125},
        {"turboquant-mse", 5, 0.002505, 5.125},
        {"turboquant-mse", 6, 0.000644, 6.125},
        {"turboquant-mse", 7, 0.0001635, 7.125},
        {"turboquant-mse", 8, 0.0000412, 8.125},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const test_option options[] = {{"bits", rows[i].bits}, {NULL, 0}};
        const measured m = measure(rows[i].name, options, D, false);
        printf("%s bits=%g: unit error %.6f (%.6f), %.3f bits a value (%.3f)\n", rows[i].name, rows[i].bits,
               m.unit_error, rows[i].error, m.bits, rows[i].bits_per_value);
        if (!(m.unit_error <= 1.01 * rows[i].error))
            fail_msg("unit error %g, wanted at most %g", m.unit_error, 1.01 * rows[i].error);
        if (m.bits != rows[i].bits_per_value)
            fail_msg("%g bits a value, wanted %g", m.bits, rows[i].bits_per_value);
    }
}

/* Every packed codec and setting whose answers are checked.  `heard`: the part of |q| |x^| that its rounding of queries
 * and weights may add; 8 bits leave about 1/127 at worst, 14 bits 1/8191. */
typedef struct setting {
    const char *name;
    test_option options[3];
    double heard;
} setting;

static const setting settings[] = {
    {"int8", {{NULL, 0}}, 5e-4},
    {"kivi", {{"bits", 1}}, 5e-4},
    {"kivi", {{"bits", 2}}, 5e-4},
    {"kivi", {{"bits", 3}}, 5e-4},
    {"kivi", {{"bits", 5}}, 5e-4},
    {"kivi", {{"bits", 8}}, 5e-4},
    {"kivi-sink", {{"bits", 2}}, 5e-4},
    {"kivi-sink", {{"bits", 4}, {"pins", 3}}, 5e-4},
    {"polarquant", {{NULL, 0}}, 1e-6},
    {"qjl", {{NULL, 0}}, 0.02},
    {"qjl", {{"m", 40}, {"gaussian", 1}}, 0.04},
    {"qjl", {{"outliers", 6}}, 0.03},
    {"rabitq", {{"bits", 1}}, 0.01},
    {"rabitq", {{"bits", 4}}, 0.01},
    {"rabitq", {{"bits", 6}}, 5e-4},
    {"rabitq", {{"bits", 8}}, 5e-4},
    {"turboquant-prod", {{"bits", 1}}, 0.01},
    {"turboquant-prod", {{"bits", 3}}, 0.02},
    {"turboquant-prod", {{"bits", 7}}, 5e-4},
    {"turboquant-rvq", {{"bits", 1}}, 0.01},
    {"turboquant-rvq", {{"bits", 2}, {"fitted", 0}}, 0.01},
    {"turboquant-rvq", {{"bits", 3}}, 5e-4},
    {"trellis", {{"bits", 1}}, 0.01},
    {"trellis", {{"bits", 2.4}, {"values", 3.5}}, 0.01},
    {"trellis", {{"bits", 4.6}, {"values", 5}}, 0.01},
    {"trellis", {{"bits", 2}, {"channels", 1}}, 0.01},
    {"trellis", {{"bits", 2.25}, {"channels", 1}}, 0.01},
    {"velox", {{"bits", 1}}, 0.015},
    {"velox", {{"bits", 3}, {"values", 5}}, 0.015},
    {"velox", {{"bits", 6}, {"values", 2}}, 0.01},
    {"velox", {{"bits", 2}, {"mean", 0}}, 0.015},
    {"velox", {{"bits", 2}, {"mean", 64}}, 0.015},
    {"velox", {{"bits", 3}, {"channels", 1}}, 0.015},
    {"velox", {{"bits", 6}, {"channels", 1}}, 0.01},
    {"turboquant-mse", {{"bits", 1}}, 0.01},
    {"turboquant-mse", {{"bits", 2}}, 0.01},
    {"turboquant-mse", {{"bits", 3}, {"haar", 1}}, 0.01},
    {"turboquant-mse", {{"bits", 4}}, 0.01},
    {"turboquant-mse", {{"bits", 5}}, 5e-4},
    {"turboquant-mse", {{"bits", 6}}, 5e-4},
    {"turboquant-mse", {{"bits", 7}}, 5e-4},
    {"turboquant-mse", {{"bits", 8}}, 5e-4},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0], MOST_QUERIES = 29 };

static double norm2(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sqrt(sum);
}

/* Scores of a page against dot products with its decoded rows; alone or with others, the same bits. */
static void check_scores(const setting *s, uint32_t d, uint32_t n_rows)
{
    test_codec t;
    vq_error err = {0};
    if (test_codec_open(&t, &kernels, s->name, s->options, d, true, 3, &err) != VQ_OK)
        fail_msg("%s d=%u: %s", s->name, d, err.text);
    if (n_rows % vq_side_granule(&t.side)) {
        test_codec_close(&t);
        return;
    }
    const size_t stride = vq_side_query_bytes(&t.side);
    float *x = malloc((size_t)VQ_PAGE_ROWS * d * sizeof *x), *q = malloc((size_t)MOST_QUERIES * d * sizeof *q);
    void *page = malloc(test_codec_page_bytes(&t)), *queries = aligned_alloc(64, MOST_QUERIES * stride);
    memset(page, 0xff, test_codec_page_bytes(&t)); /* what was not encoded reads as NaN norms */
    float out[MOST_QUERIES * VQ_PAGE_ROWS] = {0}, alone[VQ_PAGE_ROWS];
    normal_rows(x, (size_t)n_rows * d, 100 + d);
    normal_rows(q, (size_t)MOST_QUERIES * d, 200 + d);
    t.codec->encode(t.state, page, 0, n_rows, x);
    t.codec->decode(t.state, page, 0, n_rows, x);
    for (uint32_t i = 0; i < MOST_QUERIES; i++)
        vq_side_prepare(&t.side, (char *)queries + i * stride, q + (size_t)i * d);
    const vq_rows rows = {.n = n_rows, .live = n_rows == 64 ? ~0ULL : (1ULL << n_rows) - 1};
    vq_side_score(&t.side, page, &rows, queries, MOST_QUERIES, out);
    for (uint32_t i = 0; i < MOST_QUERIES; i++) {
        vq_side_score(&t.side, page, &rows, (char *)queries + i * stride, 1, alone);
        assert_memory_equal(alone, out + (size_t)i * VQ_PAGE_ROWS, n_rows * sizeof *out);
        for (uint32_t r = 0; r < VQ_PAGE_ROWS; r++)
            assert_true(isfinite(out[(size_t)i * VQ_PAGE_ROWS + r]));
        for (uint32_t r = 0; r < n_rows; r++) {
            double want = 0;
            for (uint32_t j = 0; j < d; j++)
                want += (double)q[(size_t)i * d + j] * x[(size_t)r * d + j];
            const double got = out[(size_t)i * VQ_PAGE_ROWS + r];
            const double most = s->heard * norm2(q + (size_t)i * d, d) * norm2(x + (size_t)r * d, d);
            if (!(fabs(got - want) <= most))
                fail_msg("%s d=%u rows=%u query %u row %u: score %g, decoded rows give %g, allowed %g", s->name, d,
                         n_rows, i, r, got, want, most);
        }
    }
    free(queries);
    free(page);
    free(q);
    free(x);
    test_codec_close(&t);
}

/* Weighted sums of a page against sums of its decoded rows, with weights as a softmax has them. */
static void check_sums(const setting *s, uint32_t d, uint32_t n_rows)
{
    test_codec t;
    vq_error err = {0};
    if (test_codec_open(&t, &kernels, s->name, s->options, d, false, 3, &err) != VQ_OK)
        fail_msg("%s d=%u: %s", s->name, d, err.text);
    const size_t len = vq_side_acc_len(&t.side);
    float *x = malloc((size_t)VQ_PAGE_ROWS * d * sizeof *x), *acc = calloc(MOST_QUERIES * len, sizeof *acc);
    float *alone = calloc(len, sizeof *alone), weights[MOST_QUERIES * VQ_PAGE_ROWS] = {0}, out[VQ_MAX_HEAD_DIM];
    void *page = malloc(test_codec_page_bytes(&t));
    memset(page, 0xff, test_codec_page_bytes(&t));
    normal_rows(x, (size_t)n_rows * d, 300 + d);
    t.codec->encode(t.state, page, 0, n_rows, x);
    t.codec->decode(t.state, page, 0, n_rows, x);
    vq_rng rng;
    vq_rng_seed(&rng, d);
    for (uint32_t i = 0; i < MOST_QUERIES; i++)
        for (uint32_t r = 0; r < n_rows; r++)
            weights[(size_t)i * VQ_PAGE_ROWS + r] = r == 5 ? 0 : (float)exp(3 * vq_rng_normal(&rng) - 2);
    const vq_rows rows = {.n = n_rows, .live = n_rows == 64 ? ~0ULL : (1ULL << n_rows) - 1};
    vq_side_mix(&t.side, page, &rows, weights, MOST_QUERIES, acc);
    for (uint32_t i = 0; i < MOST_QUERIES; i++) {
        const float *w = weights + (size_t)i * VQ_PAGE_ROWS;
        memset(alone, 0, len * sizeof *alone);
        vq_side_mix(&t.side, page, &rows, w, 1, alone);
        assert_memory_equal(alone, acc + i * len, len * sizeof *alone);
        vq_side_finish(&t.side, acc + i * len, out);
        /* every weight is off by at most one unit, in all directions: the sum by less than a few times the largest */
        double off = 0, most = 0;
        for (uint32_t r = 0; r < n_rows; r++)
            most += 2 * w[r] * norm2(x + (size_t)r * d, d);
        for (uint32_t j = 0; j < d; j++) {
            double want = 0;
            for (uint32_t r = 0; r < n_rows; r++)
                want += (double)w[r] * x[(size_t)r * d + j];
            off += (out[j] - want) * (out[j] - want);
        }
        if (!(sqrt(off) <= s->heard * most))
            fail_msg("%s d=%u rows=%u query %u: sum is off by %g, allowed %g", s->name, d, n_rows, i, sqrt(off),
                     s->heard * most);
    }
    free(page);
    free(alone);
    free(acc);
    free(x);
    test_codec_close(&t);
}

/* Whether a setting can't do this head size; it has to say so. */
static bool refused(const setting *s, uint32_t d)
{
    test_codec t;
    vq_error err = {0};
    const vq_status status = test_codec_open(&t, &kernels, s->name, s->options, d, true, 3, &err);
    test_codec_close(&t);
    if (status == VQ_OK)
        return false;
    char size[16];
    snprintf(size, sizeof size, "%u", d);
    if (status != VQ_ERR_UNSUPPORTED || !strstr(err.text, s->name) || !strstr(err.text, size))
        fail_msg("%s, head size %u: status %d, '%s'", s->name, d, status, err.text);
    return true;
}

static void answers_are_those_of_decoded_rows(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {8, 11, 64, 72, 100, 256, 500};
    for (size_t i = 0; i < N_SETTINGS; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++)
            for (uint32_t n_rows = 32; n_rows <= 64 && !refused(&settings[i], sizes[j]); n_rows += 32) {
                check_scores(&settings[i], sizes[j], n_rows);
                check_sums(&settings[i], sizes[j], n_rows);
            }
}

/* Rows that have killed other implementations: they stay finite, and zero rows stay zero. */
static void special_rows_stay_finite(void **state)
{
    (void)state;
    enum { N_KINDS = 8 };
    for (size_t i = 0; i < N_SETTINGS; i++)
        for (uint32_t keys = 0; keys < 2; keys++)
            for (uint32_t kind = 0; kind < N_KINDS; kind++) {
                const uint32_t d = 96;
                test_codec t;
                assert_int_equal(test_codec_open(&t, &kernels, settings[i].name, settings[i].options, d, keys, 1, NULL),
                                 VQ_OK);
                float x[VQ_PAGE_ROWS * 96], y[VQ_PAGE_ROWS * 96];
                for (uint32_t j = 0; j < VQ_PAGE_ROWS * d; j++) {
                    const float alike[N_KINDS] = {0,
                                                  -0.0F,
                                                  100,
                                                  6e-8F,
                                                  j % d ? 0 : 65504,
                                                  j % 2 ? 1 : 0x1.000002p0F,
                                                  1e-42F,
                                                  j % 3 ? 3e38F : -3e38F};
                    x[j] = alike[kind];
                }
                void *page = malloc(test_codec_page_bytes(&t));
                t.codec->encode(t.state, page, 0, VQ_PAGE_ROWS, x);
                t.codec->decode(t.state, page, 0, VQ_PAGE_ROWS, y);
                for (uint32_t j = 0; j < VQ_PAGE_ROWS * d; j++) {
                    if (!isfinite(y[j]))
                        fail_msg("%s, rows of kind %u: value %u decodes to %g", settings[i].name, kind, j,
                                 (double)y[j]);
                    if (kind < 2 && y[j] != 0)
                        fail_msg("%s: a zero row decodes to %g", settings[i].name, (double)y[j]);
                }
                free(page);
                test_codec_close(&t);
            }
}

static void head_sizes_out_of_range_are_refused_by_name(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 7, 513};
    for (size_t i = 0; i < N_SETTINGS; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++) {
            test_codec t;
            vq_error err = {0};
            assert_int_equal(
                test_codec_open(&t, &kernels, settings[i].name, settings[i].options, sizes[j], true, 1, &err),
                VQ_ERR_UNSUPPORTED);
            assert_null(t.state);
            assert_non_null(strstr(err.text, settings[i].name));
        }
}

static void a_mean_is_taken_over_whole_granules(void **state)
{
    (void)state;
    test_codec t;
    vq_error err = {0};
    const test_option options[] = {{"mean", 33}, {NULL, 0}};
    assert_int_equal(test_codec_open(&t, &kernels, "velox", options, D, true, 1, &err), VQ_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "velox: mean is 33, must be 0, 32 or 64");
    const test_option both[] = {{"mean", 64}, {"channels", 1}, {NULL, 0}};
    assert_int_equal(test_codec_open(&t, &kernels, "velox", both, D, true, 1, &err), VQ_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "velox: channels=1 goes with mean=32, not 64");
}

/* Scales of channels: long heads have them unless the option says otherwise, where they go with the mean; values never.
 */
static void channels_of_long_heads_are_scaled(void **state)
{
    (void)state;
    static const struct {
        const char *codec;
        uint32_t d;
        bool keys;
        test_option options[3], same[3];
    } cases[] = {
        {"trellis", 120, true, {{NULL, 0}}, {{"channels", 0}, {NULL, 0}}},
        {"trellis", 128, true, {{NULL, 0}}, {{"channels", 1}, {NULL, 0}}},
        {"trellis", 128, false, {{NULL, 0}}, {{"channels", 0}, {NULL, 0}}},
        {"velox", 64, true, {{NULL, 0}}, {{"channels", 0}, {NULL, 0}}},
        {"velox", 120, true, {{NULL, 0}}, {{"channels", 0}, {NULL, 0}}},
        {"velox", 128, true, {{NULL, 0}}, {{"channels", 1}, {NULL, 0}}},
        {"velox", 256, true, {{"channels", 2}, {NULL, 0}}, {{"channels", 1}, {NULL, 0}}},
        {"velox", 128, true, {{"mean", 64}, {NULL, 0}}, {{"mean", 64}, {"channels", 0}, {NULL, 0}}},
        {"velox", 128, true, {{"mean", 0}, {NULL, 0}}, {{"mean", 0}, {"channels", 0}, {NULL, 0}}},
        {"velox", 128, false, {{NULL, 0}}, {{"channels", 0}, {NULL, 0}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t d = cases[i].d;
        test_codec t[2];
        uint8_t *pages[2];
        float x[VQ_PAGE_ROWS * VQ_MAX_HEAD_DIM];
        normal_rows(x, (size_t)VQ_PAGE_ROWS * d, 3 + i);
        for (uint32_t c = 0; c < 2; c++) {
            const test_option *options = c ? cases[i].same : cases[i].options;
            assert_int_equal(test_codec_open(&t[c], &kernels, cases[i].codec, options, d, cases[i].keys, 1, NULL),
                             VQ_OK);
            pages[c] = calloc(1, test_codec_page_bytes(&t[c]));
            t[c].codec->encode(t[c].state, pages[c], 0, VQ_PAGE_ROWS, x);
        }
        if (test_codec_page_bytes(&t[0]) != test_codec_page_bytes(&t[1]) ||
            memcmp(pages[0], pages[1], test_codec_page_bytes(&t[0])) != 0)
            fail_msg("%s, case %zu, d=%u: pages of %zu and %zu bytes differ", cases[i].codec, i, d,
                     test_codec_page_bytes(&t[0]), test_codec_page_bytes(&t[1]));
        for (uint32_t c = 0; c < 2; c++) {
            free(pages[c]);
            test_codec_close(&t[c]);
        }
    }
    test_codec with, without;
    const test_option off[] = {{"channels", 0}, {NULL, 0}};
    assert_int_equal(test_codec_open(&with, &kernels, "velox", NULL, 128, true, 1, NULL), VQ_OK);
    assert_int_equal(test_codec_open(&without, &kernels, "velox", off, 128, true, 1, NULL), VQ_OK);
    assert_int_equal(test_codec_page_bytes(&with), test_codec_page_bytes(&without) + 2 * 128 / 2);
    test_codec_close(&with);
    test_codec_close(&without);
}

/* Keys that have much in common, as those of models do: what is common must cost velox nothing. */
static void velox_spends_its_bits_on_differences(void **state)
{
    (void)state;
    enum { N = VQ_PAGE_ROWS };
    static const char *const names[] = {"velox", "turboquant-mse"};
    double error[2] = {0};
    float x[N * D], y[N * D], mean[D];
    normal_rows(mean, D, 1);
    normal_rows(x, (size_t)N * D, 2);
    for (uint32_t i = 0; i < N * D; i++)
        x[i] += 3 * mean[i % D];
    for (uint32_t c = 0; c < 2; c++) {
        test_codec t;
        const test_option options[] = {{"bits", 2}, {NULL, 0}};
        assert_int_equal(test_codec_open(&t, &kernels, names[c], options, D, true, 1, NULL), VQ_OK);
        void *page = malloc(test_codec_page_bytes(&t));
        t.codec->encode(t.state, page, 0, N, x);
        t.codec->decode(t.state, page, 0, N, y);
        for (uint32_t i = 0; i < N * D; i++)
            error[c] += ((double)x[i] - y[i]) * ((double)x[i] - y[i]) / (N * D);
        free(page);
        test_codec_close(&t);
    }
    printf("squared error of keys with a mean of 3: velox %.4f, turboquant-mse %.4f\n", error[0], error[1]);
    /* 0.1175 of a variance of 1 and of what the codes of the mean leave, 0.0095 * 9; against 0.1175 of 10; unbiased
     * norms add their part */
    if (!(error[0] < 0.16 && error[0] > 0.08))
        fail_msg("velox's error is %g", error[0]);
    if (!(error[1] > 1.0))
        fail_msg("the comparison's error is %g: the test proves nothing", error[1]);
}

static void check_slope(const char *name, const test_option *options)
{
    for (uint32_t d = 64; d <= 128; d += 64) {
        const measured m = measure(name, options, d, true);
        printf("%s %s=%g d=%u: slope %.4f +- %.4f\n", name, options[0].name ? options[0].name : "default",
               options[0].value, d, m.slope, m.deviation);
        /* one fixed matrix of projections is one draw: its own deviation is about as large again */
        if (!(fabs(m.slope - 1) <= 4 * m.deviation + 0.004))
            fail_msg("%s d=%u: slope %g, deviation %g", name, d, m.slope, m.deviation);
    }
}

/* B16 and the papers: estimates of inner products have slope 1; a constant that is wrong shows at once. */
static void unbiased_codecs_have_slope_one(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        test_option options[3];
    } rows[] = {
        {"qjl", {{NULL, 0}}},
        {"qjl", {{"gaussian", 1}}},
        {"qjl", {{"m", 32}}},
        {"qjl", {{"outliers", 8}}},
        {"rabitq", {{"bits", 1}}},
        {"rabitq", {{"bits", 2}}},
        {"rabitq", {{"bits", 4}}},
        {"turboquant-prod", {{"bits", 1}}},
        {"turboquant-prod", {{"bits", 2}}},
        {"turboquant-prod", {{"bits", 4}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        check_slope(rows[i].name, rows[i].options);
    /* and whatever is registered as unbiased, with its defaults */
    static const test_option none[] = {{NULL, 0}};
    size_t n = 0;
    for (size_t i = 0; i < vq_n_codecs; i++)
        if (vq_codecs[i]->unbiased) {
            check_slope(vq_codecs[i]->name, none);
            n++;
        }
    assert_true(n > 0);
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(squared_errors_are_those_of_the_quantisers),
        cmocka_unit_test(velox_spends_its_bits_on_differences),
        cmocka_unit_test(unbiased_codecs_have_slope_one),
        cmocka_unit_test(answers_are_those_of_decoded_rows),
        cmocka_unit_test(special_rows_stay_finite),
        cmocka_unit_test(head_sizes_out_of_range_are_refused_by_name),
        cmocka_unit_test(a_mean_is_taken_over_whole_granules),
        cmocka_unit_test(channels_of_long_heads_are_scaled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
