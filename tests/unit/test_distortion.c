/* Distortion of attention against the textbook formula in double on rows that an observer kept, and the times of a
 * cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "engine/session.h"
#include "support/toy_open.h"
#include "veloxquant/eval.h"

enum { N = 96, QUERIES = 24, LAYERS = 2, HEADS = 4, KV_HEADS = 2, D = 8, WINDOW = 16 };

static int32_t ids[N];

static vq_session *open_session(const vq_model *m, const char *kv, uint32_t n_batch)
{
    vq_session_params params;
    vq_session *s;
    vq_error err;
    vq_session_params_init(&params);
    params.kv_keys = params.kv_values = kv;
    params.kv_exact = VQ_KV_EXACT_F32;
    params.n_ctx = N;
    params.n_batch = n_batch;
    params.sinks = params.residual = 0;
    if (vq_session_open(&s, m, &params, &err) != VQ_OK)
        fail_msg("%s", err.text);
    return s;
}

struct kept {
    float q[LAYERS][N][HEADS][D], k[LAYERS][N][KV_HEADS][D], v[LAYERS][N][KV_HEADS][D], out[LAYERS][N][HEADS][D];
};

static void keep_rows(void *arg, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                      uint32_t pos, uint32_t n)
{
    struct kept *kept = arg;
    const size_t n_bytes = (size_t)n * n_heads * d * sizeof *x;
    if (kind == VQ_ROWS_Q)
        memcpy(kept->q[layer][pos], x, n_bytes);
    else if (kind == VQ_ROWS_K)
        memcpy(kept->k[layer][pos], x, n_bytes);
    else if (kind == VQ_ROWS_V)
        memcpy(kept->v[layer][pos], x, n_bytes);
}

static void keep_input(void *arg, uint32_t layer, vq_input_kind kind, const float *x, uint32_t width, uint32_t n)
{
    struct kept *kept = arg;
    if (kind == VQ_INPUT_O)
        memcpy(kept->out[layer], x, (size_t)n * width * sizeof *x);
}

/* Of one layer, as the header says. */
static vq_distortion textbook(const struct kept *kept, uint32_t l, bool windowed)
{
    double wrong = 0, all = 0, cosines = 0;
    for (uint32_t i = N - QUERIES; i < N; i++)
        for (uint32_t h = 0; h < HEADS; h++) {
            const uint32_t kv_head = h / (HEADS / KV_HEADS), first = windowed && i >= WINDOW ? i + 1 - WINDOW : 0;
            double o[D] = {0}, sum = 0, oo = 0, ss = 0, os = 0;
            for (uint32_t r = first; r <= i; r++) {
                double score = 0;
                for (uint32_t d = 0; d < D; d++)
                    score += (double)kept->q[l][i][h][d] * (double)kept->k[l][r][kv_head][d];
                const double w = exp(score / sqrt(D));
                sum += w;
                for (uint32_t d = 0; d < D; d++)
                    o[d] += w * (double)kept->v[l][r][kv_head][d];
            }
            for (uint32_t d = 0; d < D; d++) {
                const double x = o[d] / sum, y = (double)kept->out[l][i][h][d];
                oo += x * x;
                ss += y * y;
                os += x * y;
                wrong += (x - y) * (x - y);
            }
            all += oo;
            cosines += os / sqrt(oo * ss);
        }
    return (vq_distortion){sqrt(wrong / all), cosines / (HEADS * QUERIES)};
}

static void against_formula(void **state)
{
    (void)state;
    static const toy_family families[] = {TOY_QWEN2, TOY_GEMMA3}; /* without and with BOS and windows */
    static const char *const methods[] = {"f32", "int8", "kivi:bits=2"};
    static struct kept kept;
    const vq_observer observer = {.arg = &kept, .rows = keep_rows, .input = keep_input};
    for (int f = 0; f < 2; f++) {
        toy_params p;
        toy_params_init(&p, families[f]);
        vq_model *m = toy_open(&p);
        double before = 0;
        for (size_t i = 0; i < 3; i++) {
            vq_session *s = open_session(m, methods[i], N);
            vq_error err;
            vq_distortion got[LAYERS], want[LAYERS];
            int32_t window[N];
            memcpy(window, ids, sizeof ids);
            if (vq_tokenizer_adds_bos(vq_model_tokenizer(m)))
                window[0] = vq_tokenizer_bos(vq_model_tokenizer(m));
            vq_session_observe(s, &observer);
            assert_int_equal(vq_session_eval(s, window, N, NULL, 0, NULL, &err), VQ_OK);
            const vq_distortion_params d = {.ids = ids, .n = N, .n_queries = QUERIES};
            if (vq_eval_distortion(s, &d, got, &err) != VQ_OK)
                fail_msg("%s", err.text);
            double sum = 0;
            for (uint32_t l = 0; l < LAYERS; l++) {
                want[l] = textbook(&kept, l, f == 1);
                sum += got[l].error;
                /* Scores of up to 96 rows in float, of size below 8: weights are off by 8 (d + 2) eps, outputs by a few
                 * times that. */
                if (!(fabs(got[l].error - want[l].error) <= 5e-5) || !(fabs(got[l].cosine - want[l].cosine) <= 1e-6))
                    fail_msg("family %d, %s, layer %u: error %g, cosine %.9f; the formula gives %g, %.9f", f,
                             methods[i], l, got[l].error, got[l].cosine, want[l].error, want[l].cosine);
                if (i == 0 && !(got[l].error < 5e-5))
                    fail_msg("family %d, layer %u: an f32 cache is off by %g", f, l, got[l].error);
            }
            if (!(sum >= before))
                fail_msg("family %d: %s is off by %g, the method before it, which has more bits, by %g", f, methods[i],
                         sum, before);
            before = sum;
            assert_int_equal(vq_session_n_tokens(s), N);
            vq_session_close(s);
        }
        vq_model_close(m);
    }
}

static void refuses(void **state)
{
    (void)state;
    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    vq_model *m = toy_open(&p);
    vq_session *s = open_session(m, "f16", 32);
    vq_error err;
    vq_distortion got[LAYERS];
    vq_distortion_params d = {.ids = ids, .n = N, .n_queries = N + 1};
    assert_int_equal(vq_eval_distortion(s, &d, got, &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "97 queries of a context of 96"));
    d.n_queries = QUERIES;
    assert_int_equal(vq_eval_distortion(s, &d, got, &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "takes 32 tokens a pass, must be the 96"));
    vq_session_close(s);
    vq_model_close(m);
}

/* Times are added for the layers that ran and no others, and nothing is added once they are off; results don't change.
 */
static void times(void **state)
{
    (void)state;
    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    vq_model *m = toy_open(&p);
    vq_session *a = open_session(m, "int8", N), *b = open_session(m, "int8", N);
    const size_t n_vocab = vq_model_get_info(m)->n_vocab;
    vq_kv_times all[LAYERS + 1] = {{0}};
    vq_kv_time(vq_session_kv(a), all);
    assert_int_equal(vq_session_eval(a, ids, N / 2, NULL, 0, NULL, NULL), VQ_OK);
    for (uint32_t l = 0; l < LAYERS; l++)
        if (!(all[l].append_seconds > 0) || !(all[l].attend_seconds > 0))
            fail_msg("layer %u: appending took %g s, attention %g s", l, all[l].append_seconds, all[l].attend_seconds);
    assert_true(all[LAYERS].append_seconds == 0 && all[LAYERS].attend_seconds == 0);
    vq_kv_times before[LAYERS];
    memcpy(before, all, sizeof before);
    vq_kv_time(vq_session_kv(a), NULL);
    assert_int_equal(vq_session_eval(a, ids + N / 2, N / 2, NULL, 0, NULL, NULL), VQ_OK);
    assert_memory_equal(before, all, sizeof before);
    assert_int_equal(vq_session_eval(b, ids, N, NULL, 0, NULL, NULL), VQ_OK);
    assert_memory_equal(vq_session_logits(a), vq_session_logits(b), n_vocab * sizeof(float));
    vq_session_close(a);
    vq_session_close(b);
    vq_model_close(m);
}

static void loops(void **state)
{
    (void)state;
    int32_t text[200];
    for (int i = 0; i < 200; i++)
        text[i] = i;
    assert_int_equal(vq_eval_loop_start(text, 200), 200); /* nothing repeats */
    assert_int_equal(vq_eval_loop_start(text, 0), 0);
    for (int i = 50; i < 200; i++) /* 0 .. 49, then a loop of 7 that begins at 43 */
        text[i] = text[i - 7];
    assert_int_equal(vq_eval_loop_start(text, 200), 50);
    assert_int_equal(vq_eval_loop_start(text, 50 + 15), 65); /* two periods, but not yet 16 tokens */
    assert_int_equal(vq_eval_loop_start(text, 50 + 16), 50);
    text[199] = 1000; /* it gets out of it at the last moment */
    assert_int_equal(vq_eval_loop_start(text, 200), 200);
    for (int i = 0; i < 200; i++) /* a period of 60 comes three times and a bit */
        text[i] = i % 60;
    assert_int_equal(vq_eval_loop_start(text, 200), 60);
    assert_int_equal(vq_eval_loop_start(text, 179), 179); /* not twice again */
    for (int i = 0; i < 200; i++)
        text[i] = i < 30 ? i : 5;
    assert_int_equal(vq_eval_loop_start(text, 200), 31); /* one token for ever */
}

int main(void)
{
    vq_rng rng;
    vq_rng_seed(&rng, 5);
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)(TOY_FIRST_BYTE + vq_rng_next(&rng) % 256);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_formula),
        cmocka_unit_test(refuses),
        cmocka_unit_test(times),
        cmocka_unit_test(loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
