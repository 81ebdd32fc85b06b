/* k-means, product codebooks and the codecs that are made of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <math.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "quant/factor.h"
#include "quant/kmeans.h"
#include "quant/product.h"
#include "support/codec.h"
#include "support/sanitizer.h"

extern const vq_codec vq_codec_a2ats;

static vq_kernels kernels;

static void normal_rows(float *x, size_t n, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)vq_rng_normal(&rng);
}

static double error_of(const float *centroids, uint32_t k, const float *x, uint32_t n, uint32_t d)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        double best = INFINITY;
        for (uint32_t c = 0; c < k; c++) {
            double off = 0;
            for (uint32_t j = 0; j < d; j++) {
                const double e = (double)x[i * d + j] - (double)centroids[c * d + j];
                off += e * e;
            }
            best = off < best ? off : best;
        }
        sum += best;
    }
    return sum / n / d;
}

/* Blobs that are far apart are found, each once; the same seed gives the same bits. */
static void blobs_are_found(void **state)
{
    (void)state;
    enum { K = 20, N = 2000, D = 5 };
    static float at[K * D], x[N * D], c[K * D], again[K * D];
    normal_rows(at, K * D, 1);
    normal_rows(x, N * D, 2);
    for (uint32_t i = 0; i < N; i++)
        for (uint32_t j = 0; j < D; j++)
            x[i * D + j] = 0.001F * x[i * D + j] + at[i % K * D + j];
    const vq_kmeans_rows rows = {.x = x, .stride = D, .n = N, .d = D};
    assert_int_equal(vq_kmeans(c, K, &rows, 20, 8, NULL), VQ_OK);
    const double error = error_of(c, K, x, N, D);
    if (!(error < 1.1e-6)) /* the blobs' own variance is 1e-6 */
        fail_msg("error %g", error);
    assert_int_equal(vq_kmeans(again, K, &rows, 20, 8, NULL), VQ_OK);
    assert_memory_equal(c, again, sizeof c);
}

/* 256 centroids of normal rows: the error that Lloyd's algorithm reaches, 4 values at 2 bits and 8 at 1. */
static void normal_rows_reach_the_rate(void **state)
{
    (void)state;
    enum { N = 16384 };
    float *x = malloc((size_t)N * 8 * sizeof *x), c[256 * 8];
    normal_rows(x, (size_t)N * 8, 3);
    /* scalar Lloyd-Max has 0.1175 and 0.3634, the rate-distortion bound 0.0625 and 0.25 */
    static const double most[2] = {0.106, 0.345};
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t d = i ? 8 : 4;
        const vq_kmeans_rows rows = {.x = x, .stride = d, .n = N / 2, .d = d};
        assert_int_equal(vq_kmeans(c, 256, &rows, 16, 5, NULL), VQ_OK);
        const double error = error_of(c, 256, x + (size_t)N / 2 * d, N / 2, d); /* rows that it has not seen */
        printf("%u values, 256 centroids: error %.4f\n", d, error);
        if (!(error < most[i]))
            fail_msg("%u values: error %g, wanted below %g", d, error, most[i]);
    }
    free(x);
}

/* More centroids than different rows: nothing is lost, nothing is NaN. */
static void few_rows_are_kept(void **state)
{
    (void)state;
    static float x[300 * 3], c[64 * 3];
    for (uint32_t i = 0; i < 300 * 3; i++)
        x[i] = (float)(i / 3 % 10);
    const vq_kmeans_rows rows = {.x = x, .stride = 3, .n = 300, .d = 3};
    assert_int_equal(vq_kmeans(c, 64, &rows, 10, 1, NULL), VQ_OK);
    assert_true(error_of(c, 64, x, 300, 3) == 0);
    for (uint32_t i = 0; i < 64 * 3; i++)
        assert_true(isfinite(c[i]));
    assert_int_equal(vq_kmeans(c, 4, &(vq_kmeans_rows){.x = x, .stride = 3, .d = 3}, 10, 1, NULL), VQ_ERR_ARG);
}

/* Scores and sums of a page through tables against its decoded rows; zero rows stay zero; special ones finite. */
static void answers_are_those_of_decoded_rows(void **state)
{
    (void)state;
    static const char *names[] = {"vecinfer", "commvq", "a2ats"};
    static const uint32_t sizes[] = {8, 64, 72, 256};
    for (size_t c = 0; c < sizeof names / sizeof *names; c++)
        for (uint32_t bits = 1; bits <= 2; bits++)
            for (size_t i = 0; i < 4; i++)
                for (int keys = 0; keys < 2; keys++) {
                    const uint32_t d = sizes[i];
                    const test_option set[] = {{"bits", bits}, {NULL, 0}};
                    test_codec t;
                    vq_error err;
                    if (test_codec_open(&t, &kernels, names[c], set, d, keys, 3, &err) != VQ_OK)
                        fail_msg("%s", err.text);
                    float *x = calloc((size_t)64 * d, sizeof *x), *y = calloc((size_t)64 * d, sizeof *y);
                    void *page = malloc(test_codec_page_bytes(&t));
                    normal_rows(x, (size_t)62 * d, d); /* the last two are zero */
                    t.codec->encode(t.state, page, 0, 32, x);
                    t.codec->encode(t.state, page, 32, 32, x + (size_t)32 * d);
                    t.codec->decode(t.state, page, 0, 64, y);
                    for (uint32_t j = 62 * d; j < 64 * d; j++)
                        assert_true(y[j] == 0);
                    assert_true(t.bytes.codes + t.bytes.scales == (size_t)64 * d * bits / 8);
                    float q[256], w[64], out[64], sum[256];
                    const vq_rows rows = {.n = 64, .live = ~0ULL};
                    normal_rows(q, d, 9);
                    if (keys) {
                        void *query = aligned_alloc(64, vq_side_query_bytes(&t.side));
                        vq_side_prepare(&t.side, query, q);
                        vq_side_score(&t.side, page, &rows, query, 1, out);
                        for (uint32_t r = 0; r < 64; r++) {
                            double want = 0, size = 0;
                            for (uint32_t j = 0; j < d; j++) {
                                want += (double)q[j] * (double)y[r * d + j];
                                size += fabs((double)q[j] * (double)y[r * d + j]);
                            }
                            if (!(fabs((double)out[r] - want) <= 1e-4 * (size + 1)))
                                fail_msg("%s d=%u row %u: %g, want %g", names[c], d, r, (double)out[r], want);
                        }
                        free(query);
                    } else {
                        float *acc = calloc(vq_side_acc_len(&t.side), sizeof *acc);
                        for (uint32_t r = 0; r < 64; r++)
                            w[r] = r == 9 ? 0 : 1 / (1 + (float)r);
                        vq_side_mix(&t.side, page, &rows, w, 1, acc);
                        vq_side_finish(&t.side, acc, sum);
                        for (uint32_t j = 0; j < d; j++) {
                            double want = 0;
                            for (uint32_t r = 0; r < 64; r++)
                                want += (double)w[r] * (double)y[r * d + j];
                            if (!(fabs((double)sum[j] - want) <= 1e-4))
                                fail_msg("%s d=%u value %u: %g, want %g", names[c], d, j, (double)sum[j], want);
                        }
                        free(acc);
                    }
                    for (uint32_t j = 0; j < 64 * d; j++)
                        x[j] = j % 3 ? 3e38F : -3e38F;
                    t.codec->encode(t.state, page, 0, 32, x);
                    t.codec->decode(t.state, page, 0, 32, y);
                    for (uint32_t j = 0; j < 32 * d; j++)
                        assert_true(isfinite(y[j]));
                    free(page);
                    free(x);
                    free(y);
                    test_codec_close(&t);
                }
}

/* What a child process needs at most beyond what it has after a warm-up: n rows of 256 values, clustered by 256
 * centroids for each 4 values from a sample of 4,096, then all of them coded a granule at a time. */
static size_t peak_of(uint32_t n)
{
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) {
        enum { D = 256, SUB = 4, SAMPLE = 4096 };
        struct rusage before, after;
        getrusage(RUSAGE_SELF, &before);
        float *x = malloc((size_t)SAMPLE * D * sizeof *x), *book = malloc(vq_product_floats(D, SUB) * sizeof *book);
        uint16_t *centroids = malloc(vq_product_floats(D, SUB) * sizeof *centroids);
        normal_rows(x, (size_t)SAMPLE * D, 1);
        if (vq_product_train(book, SUB, D / SUB, x, 512, 1, NULL) != VQ_OK ||
            vq_kmeans(book, 256, &(vq_kmeans_rows){.x = x, .stride = D, .n = SAMPLE, .d = SUB}, 2, 1, NULL) != VQ_OK)
            _exit(1);
        vq_product_take(centroids, SUB, D / SUB, book);
        const vq_product p = {.sub = SUB, .n_sub = D / SUB, .centroids = centroids, .k = &kernels};
        uint8_t granule[D / SUB * VQ_PRODUCT_ROWS];
        for (uint32_t i = 0; i < n; i += VQ_PRODUCT_ROWS)
            vq_product_encode(&p, granule, x + (size_t)(i % SAMPLE) * D);
        getrusage(RUSAGE_SELF, &after);
        const size_t n_bytes = (size_t)(after.ru_maxrss - before.ru_maxrss) * 1024;
        _exit(write(pipes[1], &n_bytes, sizeof n_bytes) == sizeof n_bytes ? 0 : 1);
    }
    size_t n_bytes = 0;
    int status = 1;
    assert_int_equal(read(pipes[0], &n_bytes, sizeof n_bytes), sizeof n_bytes);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(pipes[0]);
    close(pipes[1]);
    return n_bytes;
}

static void memory_is_flat_in_tokens(void **state)
{
    (void)state;
    const size_t few = peak_of(4096), many = peak_of(16384);
    printf("head size 256, 256 centroids of 4: %.1f MB at 4,096 tokens, %.1f MB at 16,384\n", (double)few / 1e6,
           (double)many / 1e6);
    assert_true(few < (SANITIZED ? 4 : 1) * (size_t)12000000); /* with the sanitizer's shadow of it */
    assert_true(many < few + 1000000);
}

/* Keys beyond the window of A2ATS are seen from its offset, nearer ones from where they stand: against the definition
 * in double, on decoded rows. */
static void far_keys_are_seen_from_one_distance(void **state)
{
    (void)state;
    enum { HEAD = 32, WINDOW = 40, AT = 1000 };
    double freq[HEAD / 2];
    for (uint32_t i = 0; i < HEAD / 2; i++)
        freq[i] = pow(10000, -2.0 * i / HEAD);
    const vq_kv_rope rope = {.freq = freq, .n_rot = HEAD, .halves = true};
    const vq_calibration_info info = {.n_layers = 1,
                                      .n_heads = 1,
                                      .n_kv_heads = 1,
                                      .d_k = HEAD,
                                      .d_v = HEAD,
                                      .codebooks = VQ_CODEBOOKS_FACTOR | VQ_CODEBOOKS_VALUES};
    vq_calibration *c = toy_calibration(&info, 5);
    const vq_codec *codec = &vq_codec_a2ats;
    const double options[] = {2, WINDOW, 0};
    const vq_codec_env env = {
        .d = HEAD, .keys = true, .options = options, .calibration = c, .rope = &rope, .kernels = &kernels};
    vq_codec_state *s;
    assert_int_equal(codec->create(&s, &env, NULL), VQ_OK);
    const vq_side side = {.codec = codec, .state = s, .kernels = &kernels, .d = HEAD, .rope = &rope};
    float x[64 * HEAD], q[HEAD], turned[HEAD], out[64];
    uint32_t pos[64], seen[2] = {0};
    uint8_t page[64 * HEAD / 4];
    normal_rows(x, 64 * HEAD, 1);
    normal_rows(q, HEAD, 2);
    codec->encode(s, page, 0, 64, x);
    codec->decode(s, page, 0, 64, x);
    for (uint32_t i = 0; i < 64; i++)
        pos[i] = AT - 70 + i; /* 64 rows, of which the newer half is near */
    memcpy(turned, q, sizeof q);
    vq_turn_by(&rope, &kernels, AT, HEAD, turned);
    void *query = aligned_alloc(64, vq_side_query_bytes(&side));
    vq_side_prepare_at(&side, query, turned, AT);
    vq_side_score(&side, page, &(vq_rows){.pos = pos, .live = ~0ULL, .n = 64}, query, 1, out);
    for (uint32_t r = 0; r < 64; r++) {
        const uint32_t apart = AT - pos[r];
        const double angle = apart < WINDOW ? apart : VQ_A2ATS_OFFSET;
        double want = 0;
        for (uint32_t i = 0; i < HEAD / 2; i++) {
            const double co = cos(angle * freq[i]), si = sin(angle * freq[i]);
            const double a = (double)q[i], b = (double)q[i + HEAD / 2];
            want +=
                (co * a - si * b) * (double)x[r * HEAD + i] + (si * a + co * b) * (double)x[r * HEAD + HEAD / 2 + i];
        }
        seen[apart < WINDOW]++;
        if (!(fabs((double)out[r] - want) < 1e-3))
            fail_msg("row %u, %u positions away: %g, want %g", r, apart, (double)out[r], want);
    }
    assert_true(seen[0] > 20 && seen[1] > 20);
    free(query);
    codec->destroy(s);
    vq_calibration_close(c);
}

/* With top=k exactly k coded rows get weight, those with the largest scores: values that name their row show which. */
static void the_best_rows_are_retrieved(void **state)
{
    (void)state;
    enum { ROWS = 256, HEAD = 64, TOP = 20 };
    vq_kv_params p = {.n_layers = 1,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .d_k = HEAD,
                      .d_v = ROWS,
                      .n_ctx = ROWS + 64,
                      .n_batch = ROWS,
                      .keys = "a2ats:top=20",
                      .values = "f32",
                      .sinks = 0,
                      .residual = 0};
    const vq_calibration_info info = {.n_layers = 1,
                                      .n_heads = 2,
                                      .n_kv_heads = 1,
                                      .d_k = HEAD,
                                      .d_v = ROWS,
                                      .codebooks = VQ_CODEBOOKS_FACTOR | VQ_CODEBOOKS_VALUES};
    vq_calibration *c = toy_calibration(&info, 1);
    p.calibration = c;
    vq_pool *pool;
    assert_int_equal(vq_pool_open(&pool, 2, NULL), VQ_OK);
    static float k[ROWS * HEAD], v[ROWS * ROWS], q[ROWS * 2 * HEAD], out[2][2 * ROWS], held[ROWS * HEAD];
    normal_rows(k, ROWS * HEAD, 4);
    normal_rows(q, ROWS * 2 * HEAD, 5);
    for (uint32_t i = 0; i < ROWS; i++)
        v[i * ROWS + i] = 1;
    for (int threads = 0; threads < 2; threads++) {
        vq_kv *kv;
        vq_error err;
        p.pool = threads ? pool : NULL;
        if (vq_kv_open(&kv, &p, &err) != VQ_OK)
            fail_msg("%s", err.text);
        assert_int_equal(vq_kv_append(kv, 0, 0, k, v, ROWS, NULL), VQ_OK);
        assert_int_equal(vq_kv_attend(kv, 0, q + (ROWS - 1) * 2 * HEAD, 1, out[threads], NULL), VQ_OK);
        assert_int_equal(vq_kv_read(kv, 0, 0, held, NULL, NULL), ROWS);
        vq_kv_close(kv);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    for (uint32_t h = 0; h < 2; h++) {
        float least = INFINITY, most = -INFINITY;
        uint32_t n = 0;
        for (uint32_t i = 0; i < ROWS; i++) {
            float score = 0;
            for (uint32_t j = 0; j < HEAD; j++)
                score += q[((ROWS - 1) * 2 + h) * HEAD + j] * held[i * HEAD + j];
            const bool in = out[0][h * ROWS + i] > 0;
            n += in;
            least = in && score < least ? score : least;
            most = !in && score > most ? score : most;
        }
        if (n != TOP || !(least > most - 1e-3F))
            fail_msg("head %u: %u rows have weight; the least of them scores %g, the best of the others %g", h, n,
                     (double)least, (double)most);
    }
    vq_pool_close(pool);
    vq_calibration_close(c);
}

/* A calibration without codebooks, or none, is refused with the command that makes one. */
static void what_is_missing_is_said(void **state)
{
    (void)state;
    static const char *names[] = {"vecinfer", "commvq", "a2ats"};
    const vq_calibration_info info = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .d_k = 8, .d_v = 8};
    vq_calibration *c = toy_calibration(&info, 1);
    for (int i = 0; i < 6; i++) {
        const vq_kv_params p = {.n_layers = 1,
                                .n_heads = 1,
                                .n_kv_heads = 1,
                                .d_k = 8,
                                .d_v = 8,
                                .n_ctx = 64,
                                .n_batch = 64,
                                .keys = names[i / 2],
                                .calibration = i % 2 ? c : NULL};
        vq_kv *kv;
        vq_error err;
        char command[32];
        snprintf(command, sizeof command, "--codebooks %s", names[i / 2]);
        assert_int_equal(vq_kv_open(&kv, &p, &err), VQ_ERR_ARG);
        assert_null(kv);
        if (!strstr(err.text, command) || !strstr(err.text, "veloxquant calibrate"))
            fail_msg("%s", err.text);
    }
    vq_calibration_close(c);
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blobs_are_found),
        cmocka_unit_test(normal_rows_reach_the_rate),
        cmocka_unit_test(few_rows_are_kept),
        cmocka_unit_test(answers_are_those_of_decoded_rows),
        cmocka_unit_test(far_keys_are_seen_from_one_distance),
        cmocka_unit_test(the_best_rows_are_retrieved),
        cmocka_unit_test(what_is_missing_is_said),
        cmocka_unit_test(memory_is_flat_in_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
