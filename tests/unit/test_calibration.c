/* Calibrating a toy model: the numbers against sums made here, threads, what a file refuses, and whose it is. */
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

#include "engine/session.h"
#include "formats/calibration.h"
#include "model/model.h"
#include "quant/factor.h"
#include "support/calibration.h"
#include "support/temporary.h"
#include "support/toy_open.h"

enum { N = 340, N_CTX = 128, D = 8, SKIP = 32 };

static int32_t ids[N];

static vq_model *open_model(toy_family family, uint64_t seed)
{
    toy_params p;
    toy_params_init(&p, family);
    p.seed = seed;
    return toy_open(&p);
}

static vq_calibration *calibrate_with(const vq_model *m, uint32_t n_threads, uint32_t codebooks)
{
    char path[TEMPORARY_PATH];
    vq_pool *pool = NULL;
    vq_calibration *c = NULL;
    vq_error err;
    temporary_file(path, "calibration");
    if (n_threads > 1)
        assert_int_equal(vq_pool_open(&pool, n_threads, NULL), VQ_OK);
    const vq_calibrate_params params = {.n_ctx = N_CTX, .pool = pool, .codebooks = codebooks};
    if (vq_calibrate(m, ids, N, &params, path, &err) != VQ_OK || vq_calibration_open(&c, path, &err) != VQ_OK)
        fail_msg("%s", err.text);
    unlink(path);
    vq_pool_close(pool);
    return c;
}

static vq_calibration *calibrate(const vq_model *m, uint32_t n_threads) { return calibrate_with(m, n_threads, 0); }

/* What the second kv head and fourth query head of the last layer showed. */
struct seen {
    double k_mean[D], k_moment[D][D], rest[D][D], v_mean[D], q_before[D][D], least[D];
    double n, n_rest;
};

static void on_rows(void *arg, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                    uint32_t pos, uint32_t n)
{
    struct seen *s = arg;
    assert_int_equal(d, D);
    if (layer != 1)
        return;
    for (uint32_t i = 0; i < n; i++) {
        const float *row = x + ((size_t)i * n_heads + n_heads - 1) * D;
        if (pos + i < SKIP)
            continue;
        for (int a = 0; a < D; a++) {
            if (kind == VQ_ROWS_V)
                s->v_mean[a] += (double)row[a];
            if (kind == VQ_ROWS_K)
                s->k_mean[a] += (double)row[a];
            if (kind == VQ_ROWS_K && (double)row[a] < s->least[a])
                s->least[a] = (double)row[a];
            for (int b = 0; b < D; b++) {
                if (kind == VQ_ROWS_K)
                    s->k_moment[a][b] += (double)row[a] * (double)row[b];
                if (kind == VQ_ROWS_Q_BEFORE_ROPE)
                    s->q_before[a][b] += (double)row[a] * (double)row[b];
            }
        }
        if (kind == VQ_ROWS_K)
            s->n++;
    }
    /* whole groups of 32 from position 32 on; chunks here are contexts */
    for (uint32_t first = SKIP; kind == VQ_ROWS_K && first + 32 <= n; first += 32) {
        double mean[D] = {0};
        for (uint32_t i = 0; i < 32; i++)
            for (int a = 0; a < D; a++)
                mean[a] += (double)x[((size_t)(first + i) * n_heads + n_heads - 1) * D + a] / 32;
        for (uint32_t i = 0; i < 32; i++)
            for (int a = 0; a < D; a++)
                for (int b = 0; b < D; b++) {
                    const float *row = x + ((size_t)(first + i) * n_heads + n_heads - 1) * D;
                    s->rest[a][b] += ((double)row[a] - mean[a]) * ((double)row[b] - mean[b]);
                }
        s->n_rest += 32;
    }
}

static void assert_floats(const char *what, const float *got, const double *want, double by, size_t n, double size)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i] / by) <= 1e-5 * size))
            fail_msg("%s: number %zu is %.9g, want %.9g", what, i, (double)got[i], want[i] / by);
}

static double trace(const float *m, int d)
{
    double sum = 0;
    for (int i = 0; i < d; i++)
        sum += (double)m[i * d + i];
    return sum;
}

static void sums_are_right(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_QWEN3, 5);
    vq_calibration *c = calibrate(m, 1);
    struct seen *s = calloc(1, sizeof *s);
    for (int i = 0; i < D; i++)
        s->least[i] = INFINITY;
    const vq_observer observer = {.arg = s, .rows = on_rows};
    vq_session_params p;
    vq_session *session;
    vq_session_params_init(&p);
    p.n_ctx = p.n_batch = N_CTX;
    p.exact = true;
    p.kv_exact = VQ_KV_EXACT_F32;
    p.kv_keys = p.kv_values = "f32";
    assert_int_equal(vq_session_open(&session, m, &p, NULL), VQ_OK);
    vq_session_observe(session, &observer);
    for (size_t at = 0; at < N; at += N_CTX) {
        assert_int_equal(vq_session_truncate(session, 0, NULL), VQ_OK);
        assert_int_equal(vq_session_eval(session, ids + at, N - at < N_CTX ? N - at : N_CTX, NULL, 0, NULL, NULL),
                         VQ_OK);
    }
    assert_int_equal(vq_calibration_get_info(c)->n_tokens, (uint64_t)s->n);
    const float *k = vq_calibration_at(c, VQ_KEY_MOMENT, 1, 1);
    const double size = trace(k, D);
    assert_true(size > 0);
    assert_floats("key mean", vq_calibration_at(c, VQ_KEY_MEAN, 1, 1), s->k_mean, s->n, D, sqrt(size));
    assert_floats("key moment", k, &s->k_moment[0][0], s->n, D * D, size);
    assert_floats("rest", vq_calibration_at(c, VQ_KEY_REST_MOMENT, 1, 1), &s->rest[0][0], s->n_rest, D * D, size);
    assert_floats("least key", vq_calibration_at(c, VQ_KEY_LEAST, 1, 1), s->least, 1, D, sqrt(size));
    assert_floats("value mean", vq_calibration_at(c, VQ_VALUE_MEAN, 1, 1), s->v_mean, s->n, D, 1);
    const float *q = vq_calibration_at(c, VQ_QUERY_BEFORE_MOMENT, 1, 3);
    assert_floats("query moment before RoPE", q, &s->q_before[0][0], s->n, D * D, trace(q, D));

    /* the basis turns the moment into its spectrum: B M B' = diag */
    const float *basis = vq_calibration_at(c, VQ_KEY_BASIS, 1, 1),
                *spectrum = vq_calibration_at(c, VQ_KEY_SPECTRUM, 1, 1);
    for (int a = 0; a < D; a++)
        for (int b = 0; b < D; b++) {
            double sum = 0;
            for (int i = 0; i < D; i++)
                for (int j = 0; j < D; j++)
                    sum += (double)basis[a * D + i] * (double)k[i * D + j] * (double)basis[b * D + j];
            const double want = a == b ? (double)spectrum[a] : 0;
            if (!(fabs(sum - want) <= 1e-5 * size))
                fail_msg("B M B' [%d][%d] is %g, want %g", a, b, sum, want);
            assert_true(a == 0 || spectrum[a] <= spectrum[a - 1]);
        }
    free(s);
    vq_session_close(session);
    vq_calibration_close(c);
    vq_model_close(m);
}

/* Q-Filters' definition: of each query head the first right singular vector v, uncentred, with sum(Q v) >= 0; the mean
 * of the group at unit length.  v maximises the energy, checked by power iteration from the moment in the file. */
static void filters_are_the_first_singular_vectors(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_LLAMA, 6);
    vq_calibration *c = calibrate(m, 1);
    static const vq_statistic of[2][3] = {{VQ_QUERY_MEAN, VQ_QUERY_MOMENT, VQ_QUERY_FILTER},
                                          {VQ_QUERY_BEFORE_MEAN, VQ_QUERY_BEFORE_MOMENT, VQ_QUERY_BEFORE_FILTER}};
    for (int way = 0; way < 2; way++)
        for (uint32_t layer = 0; layer < 2; layer++)
            for (uint32_t kv_head = 0; kv_head < 2; kv_head++) {
                double sum[D] = {0}, length = 0, cosine = 0;
                for (uint32_t h = 2 * kv_head; h < 2 * kv_head + 2; h++) {
                    const float *mean = vq_calibration_at(c, of[way][0], layer, h);
                    const float *moment = vq_calibration_at(c, of[way][1], layer, h);
                    double v[D], along = 0;
                    for (int i = 0; i < D; i++)
                        v[i] = 1 + 0.1 * i;
                    for (int step = 0; step < 20000; step++) {
                        double w[D] = {0}, n = 0;
                        for (int i = 0; i < D; i++)
                            for (int j = 0; j < D; j++)
                                w[i] += (double)moment[i * D + j] * v[j];
                        for (int i = 0; i < D; i++)
                            n += w[i] * w[i];
                        for (int i = 0; i < D; i++)
                            v[i] = w[i] / sqrt(n);
                    }
                    for (int i = 0; i < D; i++)
                        along += v[i] * (double)mean[i];
                    for (int i = 0; i < D; i++)
                        sum[i] += along < 0 ? -v[i] : v[i];
                }
                const float *filter = vq_calibration_at(c, of[way][2], layer, kv_head);
                double own = 0;
                for (int i = 0; i < D; i++) {
                    length += sum[i] * sum[i];
                    cosine += sum[i] * (double)filter[i];
                    own += (double)filter[i] * (double)filter[i];
                }
                if (!(fabs(own - 1) < 1e-5 && cosine / sqrt(length) > 1 - 1e-5))
                    fail_msg("filter of layer %u, head %u, way %d: length %g, cosine %g", layer, kv_head, way, own,
                             cosine / sqrt(length));
            }
    vq_calibration_close(c);
    vq_model_close(m);
}

static void threads_change_nothing(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_GEMMA3, 7);
    vq_calibration *a = calibrate_with(m, 1, VQ_CODEBOOKS_ALL), *b = calibrate_with(m, 3, VQ_CODEBOOKS_ALL);
    assert_true(vq_calibration_get_info(a)->hash == vq_calibration_get_info(b)->hash);
    assert_int_equal(vq_calibration_get_info(a)->codebooks, VQ_CODEBOOKS_ALL);
    vq_calibration_close(a);
    vq_calibration_close(b);
    vq_model_close(m);
}

/* The factor of the queries' moment, seen from A2ATS' offset: L L' = R H R' and a hundredth of its mean on the
 * diagonal. */
static void factors_are_those_of_far_queries(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_QWEN3, 5);
    vq_calibration *c = calibrate_with(m, 1, VQ_CODEBOOKS_FACTOR);
    const vq_kv_rope *rope = &m->kv_ropes[1];
    const float *l = vq_calibration_at(c, VQ_KEY_FACTOR, 1, 0);
    double h[D][D] = {{0}}, trace_h = 0;
    double r[D][D] = {{0}};
    for (uint32_t i = 0; i < D; i++)
        r[i][i] = 1;
    for (uint32_t p = 0; p < rope->n_rot / 2; p++) {
        const uint32_t a = rope->halves ? p : 2 * p, b = rope->halves ? p + rope->n_rot / 2 : 2 * p + 1;
        const double angle = VQ_A2ATS_OFFSET * rope->freq[p];
        r[a][a] = r[b][b] = cos(angle);
        r[a][b] = -sin(angle);
        r[b][a] = sin(angle);
    }
    for (uint32_t g = 0; g < 2; g++)
        for (int i = 0; i < D; i++)
            for (int j = 0; j < D; j++)
                for (int k = 0; k < D; k++)
                    for (int n = 0; n < D; n++)
                        h[i][j] += r[i][k] * (double)vq_calibration_at(c, VQ_QUERY_BEFORE_MOMENT, 1, g)[k * D + n] *
                                   r[j][n] / 2;
    for (int i = 0; i < D; i++)
        trace_h += h[i][i];
    for (int i = 0; i < D; i++)
        for (int j = 0; j < D; j++) {
            double sum = 0;
            for (int k = 0; k < D; k++)
                sum += (double)l[i * D + k] * (double)l[j * D + k];
            assert_true(j <= i || l[i * D + j] == 0);
            if (!(fabs(sum - h[i][j] - (i == j ? 0.01 * trace_h / D : 0)) < 1e-4 * trace_h))
                fail_msg("L L' [%d][%d] is %g, R H R' %g", i, j, sum, h[i][j]);
        }
    vq_calibration_close(c);
    vq_model_close(m);
}

static void another_model_is_refused(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_LLAMA, 8), *other = open_model(TOY_LLAMA, 9);
    vq_calibration *c = calibrate(m, 1);
    vq_error err;
    assert_int_equal(vq_calibration_check(c, m, &err), VQ_OK);
    assert_int_equal(vq_calibration_check(c, other, &err), VQ_ERR_MISMATCH);
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)vq_model_hash(m));
    assert_non_null(strstr(err.text, hash));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)vq_model_hash(other));
    assert_non_null(strstr(err.text, hash));
    vq_calibration_close(c);
    vq_model_close(m);
    vq_model_close(other);
}

static bool stop_at_once(void *arg, size_t done, size_t all)
{
    size_t *calls = arg;
    assert_true(done > 0 && done <= all && all == N);
    ++*calls;
    return false;
}

static void cancelling_leaves_no_file(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_LLAMA, 8);
    char path[TEMPORARY_PATH];
    vq_error err;
    size_t calls = 0;
    temporary_file(path, "calibration");
    unlink(path);
    vq_calibrate_params params = {.n_ctx = N_CTX, .progress = stop_at_once, .arg = &calls};
    assert_int_equal(vq_calibrate(m, ids, N, &params, path, &err), VQ_ERR_CANCELLED);
    assert_int_equal(calls, 1);
    assert_int_not_equal(access(path, F_OK), 0);
    params.progress = NULL;
    assert_int_equal(vq_calibrate(m, ids, VQ_CALIBRATE_LEAST - 1, &params, path, &err), VQ_ERR_ARG);
    assert_int_not_equal(access(path, F_OK), 0);
    vq_model_close(m);
}

/* Every cut and every changed byte is refused; with the checksum put right only numbers can change. */
static void damage_is_refused(void **state)
{
    (void)state;
    const vq_calibration_info info = {.n_layers = 1, .n_heads = 2, .n_kv_heads = 1, .d_k = 5, .d_v = 3, .n_tokens = 9};
    vq_calibration *c = toy_calibration(&info, 3), *again;
    const void *sealed;
    size_t n;
    vq_error err;
    assert_int_equal(vq_calibration_seal(c, &sealed, &n, &err), VQ_OK);
    uint8_t *bytes = malloc(n + 1);
    memcpy(bytes, sealed, n);
    bytes[n] = 0;
    assert_int_equal(vq_calibration_read(&again, "file", bytes, n, &err), VQ_OK);
    assert_memory_equal(vq_calibration_at(again, VQ_KEY_BASIS, 0, 0), vq_calibration_at(c, VQ_KEY_BASIS, 0, 0),
                        25 * sizeof(float));
    vq_calibration_close(again);
    for (size_t i = 0; i < n; i += i < 100 ? 1 : 97)
        assert_int_not_equal(vq_calibration_read(&again, "file", bytes, i, &err), VQ_OK);
    assert_int_not_equal(vq_calibration_read(&again, "file", bytes, n + 1, &err), VQ_OK);
    for (size_t i = 0; i < n; i += i < 100 ? 1 : 31) {
        bytes[i] ^= 0x40;
        const vq_status status = vq_calibration_read(&again, "file", bytes, n, &err);
        if (status == VQ_OK || again || !strstr(err.text, "file"))
            fail_msg("byte %zu changed: %s", i, status == VQ_OK ? "accepted" : err.text);
        bytes[i] ^= 0x40;
    }
    const float bad[] = {NAN, INFINITY, -1};
    for (int i = 0; i < 3; i++) { /* in the spectrum, where also -1 is wrong */
        float *to = vq_calibration_edit(c, VQ_KEY_SPECTRUM, 0, 0) + 2, kept = *to;
        *to = bad[i];
        assert_int_not_equal(vq_calibration_seal(c, &sealed, &n, &err), VQ_OK);
        assert_non_null(strstr(err.text, "key spectrum"));
        *to = kept;
    }
    free(bytes);
    vq_calibration_close(c);
}

int main(void)
{
    for (int i = 0; i < N; i++)
        ids[i] = TOY_FIRST_BYTE + i * 37 % 211;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_right),           cmocka_unit_test(filters_are_the_first_singular_vectors),
        cmocka_unit_test(threads_change_nothing),   cmocka_unit_test(factors_are_those_of_far_queries),
        cmocka_unit_test(another_model_is_refused), cmocka_unit_test(cancelling_leaves_no_file),
        cmocka_unit_test(damage_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
