/* Rank correlations against values worked out by hand, attention weights against the formula in double, and that
 * neither evaluation depends on threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "eval/layer_rows.h"
#include "support/toy_open.h"
#include "veloxquant/eval.h"

static double spearman(const float *a, const float *b, uint32_t n)
{
    double ranks[64];
    uint32_t order[32];
    return vq_spearman(a, b, n, ranks, order);
}

static void assert_near(double got, double want, double most, const char *what)
{
    if (!(fabs(got - want) <= most))
        fail_msg("%s: got %.12g, want %.12g within %g", what, got, want, most);
}

static void ranks(void **state)
{
    (void)state;
    static const float up[] = {1, 2, 3, 4, 5}, scaled[] = {-3, 0, 1, 100, 1e6f}, down[] = {5, 4, 3, 2, 1},
                       same[] = {7, 7, 7, 7, 7}, swapped[] = {2, 1, 4, 3, 5}, ties[] = {1, 2, 2, 4, 5};
    assert_near(spearman(up, scaled, 5), 1, 1e-15, "the same order");
    assert_near(spearman(up, down, 5), -1, 1e-15, "the opposite order");
    assert_near(spearman(up, same, 5), 0, 0, "a constant");
    /* 1 - 6 sum d^2 / (n (n^2 - 1)) = 1 - 6 * 4 / 120 */
    assert_near(spearman(up, swapped, 5), 0.8, 1e-15, "two swaps");
    /* ranks 0, 1.5, 1.5, 3, 4 against 0 .. 4, middle 2: 9.5 / sqrt(10 * 9.5) */
    assert_near(spearman(up, ties, 5), 9.5 / sqrt(95.0), 1e-15, "ties");
    const float odd[] = {NAN, 2, 3, 4, 5};
    assert_near(spearman(up, odd, 5), 1, 1e-15, "NaN is the least");
}

enum { N = 40, HEADS = 4, KV_HEADS = 2, D = 8 };

static void weights(void **state)
{
    (void)state;
    static float q[N * HEADS * D], k[N * KV_HEADS * D];
    vq_rng rng;
    vq_rng_seed(&rng, 5);
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = (float)vq_rng_normal(&rng);
    for (size_t i = 0; i < sizeof k / sizeof *k; i++)
        k[i] = (float)vq_rng_normal(&rng);
    vq_vec_kernels kernels;
    vq_vec_kernels_init(&kernels, vq_cpu_detect());
    vq_layer_rows r = {
        .kernels = &kernels, .n = N, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .d_k = D, .q = q, .k = k, .scale = 0.7f};
    static const uint32_t windows[] = {0, 1, 7, N};
    for (size_t w = 0; w < 4; w++) {
        r.window = windows[w];
        for (uint32_t head = 0; head < HEADS; head++) {
            for (uint32_t i = 0; i < N; i++) {
                float out[N];
                uint32_t first;
                double want[N] = {0}, sum = 0;
                vq_layer_rows_weights(&r, head, i, &first, out);
                const uint32_t least = r.window > 0 && i + 1 > r.window ? i + 1 - r.window : 0;
                assert_int_equal(first, least);
                for (uint32_t j = least; j <= i; j++) {
                    double dot = 0;
                    for (uint32_t a = 0; a < D; a++)
                        dot += (double)q[(i * HEADS + head) * D + a] * (double)k[(j * KV_HEADS + head / 2) * D + a];
                    want[j] = exp(0.7 * dot);
                    sum += want[j];
                }
                /* products of 8 floats, |x| below 5, and exponentials in float: a few 1e-6 relative, below 1e-5 */
                for (uint32_t j = 0; j <= i; j++)
                    assert_near((double)out[j], want[j] / sum, 1e-5, "a weight");
            }
        }
    }
}

static vq_model *open_toy(void)
{
    toy_params p;
    toy_params_init(&p, TOY_GEMMA3);
    p.n_ctx = 512;
    p.window = 220;
    return toy_open(&p);
}

static void draw_ids(int32_t *ids, uint32_t n)
{
    vq_rng rng;
    vq_rng_seed(&rng, 9);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)(TOY_FIRST_BYTE + vq_rng_next(&rng) % 200);
}

enum { CTX = 256, PROMPT = 192 };
static const char *const scores[] = {"knorm", "key-svd", "snapkv", "recency", "random"};
enum { N_SCORES = 5 };

static void rank_run(void **state)
{
    (void)state;
    vq_model *m = open_toy();
    const vq_model_info *info = vq_model_get_info(m);
    const size_t n = (size_t)N_SCORES * info->n_layers * info->n_kv_heads;
    int32_t ids[CTX];
    draw_ids(ids, CTX);
    float *rho[3] = {calloc(n, sizeof(float)), calloc(n, sizeof(float)), calloc(n, sizeof(float))};
    for (int run = 0; run < 2; run++) {
        vq_pool *pool = NULL;
        assert_int_equal(vq_pool_open(&pool, run == 0 ? 1 : 3, NULL), VQ_OK);
        const vq_rank_params p = {.ids = ids,
                                  .n = CTX,
                                  .n_prompt = PROMPT,
                                  .scores = scores,
                                  .n_scores = N_SCORES,
                                  .exact = true,
                                  .pool = pool};
        vq_error err;
        if (vq_eval_rank(m, &p, rho[run], &err) != VQ_OK)
            fail_msg("%s", err.text);
        vq_pool_close(pool);
    }
    assert_memory_equal(rho[0], rho[1], n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        assert_true(rho[0][i] >= -1 && rho[0][i] <= 1 && rho[0][i] != 0);
    /* what the last queries of the prompt weigh is nearer to what the next ones do than chance is */
    double snapkv = 0, chance = 0;
    const size_t each = n / N_SCORES;
    for (size_t i = 0; i < each; i++) {
        snapkv += (double)rho[0][2 * each + i] / (double)each;
        chance += (double)rho[0][4 * each + i] / (double)each;
    }
    if (!(snapkv > fabs(chance)))
        fail_msg("snapkv %.3f, random %.3f", snapkv, chance);

    static const char *const wrong[] = {"nothing"}, *const calibrated[] = {"qfilters"};
    vq_error err;
    vq_rank_params p = {.ids = ids, .n = CTX, .n_prompt = PROMPT, .scores = wrong, .n_scores = 1};
    assert_int_equal(vq_eval_rank(m, &p, rho[2], &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "no score 'nothing'"));
    p.scores = calibrated;
    assert_int_equal(vq_eval_rank(m, &p, rho[2], &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "needs a calibration"));
    p.scores = scores;
    p.n_prompt = CTX;
    assert_int_equal(vq_eval_rank(m, &p, rho[2], &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "a prompt of 256"));
    for (size_t i = 0; i < n; i++)
        assert_true(rho[2][i] == 0); /* unchanged by failures */
    for (int i = 0; i < 3; i++)
        free(rho[i]);
    vq_model_close(m);
}

static bool stop_at_once(void *arg, size_t done, size_t all)
{
    (void)arg;
    (void)done;
    (void)all;
    return false;
}

static void anisotropy_run(void **state)
{
    (void)state;
    vq_model *m = open_toy();
    const vq_model_info *info = vq_model_get_info(m);
    const size_t n = (size_t)info->n_layers * info->n_heads;
    int32_t ids[CTX];
    draw_ids(ids, CTX);
    vq_anisotropy *out = calloc(n, sizeof *out);
    vq_anisotropy_params p = {.ids = ids, .n = CTX, .exact = true};
    vq_error err;
    if (vq_eval_anisotropy(m, &p, out, &err) != VQ_OK)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < n; i++) {
        const vq_anisotropy *a = &out[i];
        assert_true(a->query_share >= 0.3f && a->query_share <= 1 && a->key_share >= 0 && a->key_share <= 1);
        /* the first of 8 directions holds at least an eighth of the energy */
        assert_true(a->explained >= 0.125f && a->explained <= 1 && a->rest >= 0);
        assert_true(a->rank >= -1 && a->rank <= 1 && (a->key_sign == 1 || a->key_sign == -1));
    }
    p.progress = stop_at_once;
    assert_int_equal(vq_eval_anisotropy(m, &p, out, &err), VQ_ERR_CANCELLED);
    p.n = 100;
    assert_int_equal(vq_eval_anisotropy(m, &p, out, &err), VQ_ERR_ARG);
    free(out);
    vq_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks),
        cmocka_unit_test(weights),
        cmocka_unit_test(rank_run),
        cmocka_unit_test(anisotropy_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
