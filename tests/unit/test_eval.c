/* Perplexity and comparison against the textbook formulas in double, on toy models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "eval/repetition.h"
#include "support/toy_open.h"
#include "veloxquant/eval.h"

enum { N = 200, WINDOW = 48 };

static int32_t ids[N];

static void assert_near(double got, double want, double most, const char *what)
{
    if (!(fabs(got - want) <= most))
        fail_msg("%s: got %.12g, want %.12g within %g", what, got, want, most);
}

static vq_session *open_session(const vq_model *m, const char *kv)
{
    vq_session_params params;
    vq_session *s;
    vq_error err;
    vq_session_params_init(&params);
    params.kv_keys = params.kv_values = kv;
    params.n_ctx = WINDOW;
    params.n_batch = 20;
    params.sinks = params.residual = 0;
    if (vq_session_open(&s, m, &params, &err) != VQ_OK)
        fail_msg("%s", err.text);
    return s;
}

static void moments(void **state)
{
    (void)state;
    vq_rng rng;
    vq_rng_seed(&rng, 3);
    double x[500], mean = 0, square = 0;
    vq_moments all = {0}, left = {0}, right = {0}, none = {0};
    for (int i = 0; i < 500; i++) {
        x[i] = 1e6 + vq_rng_normal(&rng); /* where sums of squares would fail */
        mean += x[i] / 500;
        vq_moments_add(&all, x[i]);
        vq_moments_add(i < 123 ? &left : &right, x[i]);
    }
    for (int i = 0; i < 500; i++)
        square += (x[i] - mean) * (x[i] - mean);
    vq_moments_merge(&left, &none);
    vq_moments_merge(&left, &right);
    vq_moments_merge(&none, &all);
    const vq_moments *const each[] = {&all, &left, &none};
    for (int k = 0; k < 3; k++) {
        assert_int_equal(each[k]->n, 500);
        assert_near(each[k]->mean, mean, 1e-8, "mean");
        assert_near(vq_moments_error(each[k]), sqrt(square / 499 / 500), 1e-8, "error of the mean");
    }
    vq_moments one = {0};
    assert_true(vq_moments_error(&one) == 0);
    vq_moments_add(&one, 5);
    assert_true(one.mean == 5 && vq_moments_error(&one) == 0);
}

struct rows {
    double *log_p; /* [WINDOW][n_vocab] */
    size_t n_vocab;
};

static bool keep(void *arg, size_t index, const float *logits)
{
    const struct rows *r = arg;
    double sum = 0;
    for (size_t i = 0; i < r->n_vocab; i++)
        sum += exp((double)logits[i]);
    for (size_t i = 0; i < r->n_vocab; i++)
        r->log_p[index * r->n_vocab + i] = (double)logits[i] - log(sum);
    return true;
}

static size_t argmax(const double *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static void against_formulas(void **state)
{
    (void)state;
    static const toy_family families[] = {TOY_QWEN2, TOY_GEMMA3}; /* without and with BOS */
    for (int f = 0; f < 2; f++) {
        toy_params p;
        toy_params_init(&p, families[f]);
        vq_model *m = toy_open(&p);
        const vq_tokenizer *t = vq_model_tokenizer(m);
        const size_t n_vocab = vq_model_get_info(m)->n_vocab, n_windows = N / WINDOW;
        const uint32_t skip = 11;
        assert_int_equal(vq_tokenizer_adds_bos(t), f);
        vq_session *a = open_session(m, "f32"), *b = open_session(m, "bf16");
        struct rows pa = {malloc(WINDOW * n_vocab * sizeof(double)), n_vocab};
        struct rows pb = {malloc(WINDOW * n_vocab * sizeof(double)), n_vocab};
        double nll_a = 0, nll_b = 0, kl = 0, same = 0, n = 0;
        for (size_t w = 0; w < n_windows; w++) {
            int32_t window[WINDOW];
            memcpy(window, ids + w * WINDOW, sizeof window);
            if (f == 1)
                window[0] = vq_tokenizer_bos(t);
            vq_session_truncate(a, 0, NULL);
            vq_session_truncate(b, 0, NULL);
            assert_int_equal(vq_session_eval(a, window, WINDOW, keep, 0, &pa, NULL), VQ_OK);
            assert_int_equal(vq_session_eval(b, window, WINDOW, keep, 0, &pb, NULL), VQ_OK);
            for (size_t i = skip; i < WINDOW; i++) {
                const double *x = pa.log_p + (i - 1) * n_vocab, *y = pb.log_p + (i - 1) * n_vocab;
                nll_a -= x[window[i]];
                nll_b -= y[window[i]];
                for (size_t k = 0; k < n_vocab; k++)
                    kl += exp(x[k]) * (x[k] - y[k]);
                same += argmax(x, n_vocab) == argmax(y, n_vocab);
                n++;
            }
        }
        const vq_windows windows = {.ids = ids, .n = N, .n_ctx = WINDOW, .skip = skip};
        vq_moments nll = {0};
        vq_comparison c = {0};
        vq_error err;
        if (vq_eval_perplexity(a, &windows, NULL, NULL, &nll, &err) != VQ_OK)
            fail_msg("%s", err.text);
        if (vq_eval_compare(a, &b, 1, &windows, NULL, NULL, &c, &err) != VQ_OK)
            fail_msg("%s", err.text);
        assert_int_equal(nll.n, (uint64_t)n);
        assert_int_equal(c.kl.n, (uint64_t)n);
        /* float exponentials: each within a few 1e-7, so is their sum's logarithm */
        assert_near(nll.mean, nll_a / n, 1e-6, "nll");
        assert_near(c.reference_nll.mean, nll_a / n, 1e-6, "nll of the reference");
        assert_near(c.nll.mean, nll_b / n, 1e-6, "nll of the other");
        assert_near(c.log_ratio.mean, (nll_b - nll_a) / n, 1e-6, "log of the ratio");
        assert_near(c.kl.mean, kl / n, 1e-6 + 1e-4 * kl / n, "KL");
        assert_true(kl / n > 1e-7); /* the caches do differ */
        assert_near(c.same_top.mean, same / n, 1e-12, "same top");
        /* no bit may depend on how the tokens are cut, so one by one gives the very same figures */
        vq_windows singly = windows;
        singly.decodes = true;
        vq_moments single_nll = {0};
        vq_comparison single = {0};
        assert_int_equal(vq_eval_perplexity(a, &singly, NULL, NULL, &single_nll, NULL), VQ_OK);
        assert_int_equal(vq_eval_compare(a, &b, 1, &singly, NULL, NULL, &single, NULL), VQ_OK);
        assert_memory_equal(&single_nll, &nll, sizeof nll);
        assert_memory_equal(&single, &c, sizeof c);
        free(pa.log_p);
        free(pb.log_p);
        vq_session_close(a);
        vq_session_close(b);
        vq_model_close(m);
    }
}

/* The figures of a cache that evicts are those of generation, whatever is asked for: a single pass, in which nothing is
 * dropped before the end, would flatter it. */
static void evicting(void **state)
{
    (void)state;
    toy_params p;
    toy_params_init(&p, TOY_QWEN2);
    vq_model *m = toy_open(&p);
    vq_session_params params;
    vq_session *whole = open_session(m, "f32"), *s;
    vq_error err;
    vq_session_params_init(&params);
    params.n_ctx = WINDOW;
    params.kv_keys = params.kv_values = "f32";
    params.evict = "streaming:budget=10,sinks=1,recent=4,every=2";
    if (vq_session_open(&s, m, &params, &err) != VQ_OK)
        fail_msg("%s", err.text);
    vq_windows w = {.ids = ids, .n = N, .n_ctx = WINDOW, .skip = 24};
    vq_moments pass = {0}, singly = {0}, by_hand = {0};
    vq_comparison compared = {0};
    assert_int_equal(vq_eval_perplexity(s, &w, NULL, NULL, &pass, &err), VQ_OK);
    assert_int_equal(vq_eval_compare(whole, &s, 1, &w, NULL, NULL, &compared, &err), VQ_OK);
    w.decodes = true;
    assert_int_equal(vq_eval_perplexity(s, &w, NULL, NULL, &singly, &err), VQ_OK);
    assert_memory_equal(&pass, &singly, sizeof pass);
    assert_memory_equal(&compared.nll, &singly, sizeof singly);
    assert_true(compared.kl.mean > 1e-4); /* what was dropped is missed */

    /* and they are those of tokens that come one by one */
    const size_t n_vocab = vq_model_get_info(m)->n_vocab;
    for (size_t i = 0; i < N / WINDOW; i++) {
        const int32_t *at = ids + i * WINDOW;
        assert_int_equal(vq_session_truncate(s, 0, &err), VQ_OK);
        assert_int_equal(vq_session_eval(s, at, 23, NULL, 0, NULL, &err), VQ_OK);
        for (size_t k = 23; k + 1 < WINDOW; k++) {
            assert_int_equal(vq_session_decode(s, at + k, 1, NULL, 0, NULL, &err), VQ_OK);
            const float *logits = vq_session_logits(s);
            double sum = 0;
            for (size_t v = 0; v < n_vocab; v++)
                sum += exp((double)logits[v]);
            vq_moments_add(&by_hand, log(sum) - (double)logits[at[k + 1]]);
        }
    }
    assert_int_equal(by_hand.n, singly.n);
    assert_near(singly.mean, by_hand.mean, 1e-6, "nll of generated tokens");
    vq_session_close(s);
    vq_session_close(whole);
    vq_model_close(m);
}

struct watch {
    size_t n, all, stop_at;
};

static bool on_token(void *arg, size_t done, size_t all, double nll)
{
    struct watch *w = arg;
    assert_true(nll > 0);
    assert_int_equal(done, ++w->n);
    w->all = all;
    return done != w->stop_at;
}

static void windows_and_progress(void **state)
{
    (void)state;
    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    vq_model *m = toy_open(&p);
    vq_session *s = open_session(m, "f16");
    vq_windows w = {.ids = ids, .n = N, .n_ctx = WINDOW, .skip = 0};
    size_t n_windows, n_scored;
    vq_error err;
    assert_int_equal(vq_eval_count(&w, &n_windows, &n_scored, &err), VQ_OK);
    assert_int_equal(n_windows, 4);
    assert_int_equal(n_scored, 4 * (WINDOW - 1)); /* the first token has nothing before it */
    struct watch watch = {0};
    vq_moments nll = {0};
    w.most = 2;
    w.skip = WINDOW / 2 + 1;
    assert_int_equal(vq_eval_perplexity(s, &w, on_token, &watch, &nll, &err), VQ_OK);
    assert_int_equal(watch.n, 2 * (WINDOW / 2 - 1));
    assert_int_equal(watch.all, watch.n);
    assert_int_equal(nll.n, watch.n);
    watch = (struct watch){.stop_at = 5};
    const vq_moments before = nll;
    assert_int_equal(vq_eval_perplexity(s, &w, on_token, &watch, &nll, &err), VQ_ERR_CANCELLED);
    assert_memory_equal(&before, &nll, sizeof nll);
    w.n = WINDOW - 1;
    assert_int_equal(vq_eval_count(&w, &n_windows, &n_scored, &err), VQ_ERR_ARG);
    assert_string_equal(err.text, "the text has 47 tokens, one window takes 48");
    w = (vq_windows){.ids = ids, .n = N, .n_ctx = WINDOW, .skip = WINDOW};
    assert_int_equal(vq_eval_count(&w, &n_windows, &n_scored, &err), VQ_ERR_ARG);
    w = (vq_windows){.ids = ids, .n = N, .n_ctx = WINDOW + 1};
    assert_int_equal(vq_eval_perplexity(s, &w, NULL, NULL, &nll, &err), VQ_ERR_FULL);
    vq_session_close(s);
    vq_model_close(m);
}

static void speed(void **state)
{
    (void)state;
    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    vq_model *m = toy_open(&p);
    vq_session *s = open_session(m, "f16");
    double seconds = -1;
    assert_int_equal(vq_eval_fill(s, 20, 1, NULL), VQ_OK);
    assert_int_equal(vq_session_n_tokens(s), 20);
    assert_int_equal(vq_eval_fill(s, 19, 1, NULL), VQ_ERR_ARG);
    assert_int_equal(vq_eval_prompt_speed(s, 10, 2, &seconds, NULL), VQ_OK);
    assert_true(seconds > 0);
    assert_int_equal(vq_eval_decode_speed(s, 3, 2, &seconds, NULL), VQ_OK);
    assert_int_equal(vq_session_n_tokens(s), 33);
    assert_int_equal(vq_eval_prompt_speed(s, 16, 2, &seconds, NULL), VQ_ERR_FULL);
    vq_session_close(s);
    vq_model_close(m);
}

/* A paragraph again and again: what once gave a perplexity of 1.24. */
static void looped_texts_are_refused(void **state)
{
    (void)state;
    int32_t looped[N];
    for (int i = 0; i < N; i++)
        looped[i] = ids[i % 40];
    assert_near(vq_eval_distinct(looped, N, 8), 40.0 / (N - 7), 1e-12, "distinct sequences");
    assert_near(vq_eval_distinct(looped, 4, 8), 1, 0, "fewer than one sequence");
    toy_params p;
    toy_params_init(&p, TOY_QWEN2);
    vq_model *m = toy_open(&p);
    vq_session *a = open_session(m, "f32"), *b = open_session(m, "bf16");
    vq_windows w = {.ids = looped, .n = N, .n_ctx = WINDOW, .skip = 11};
    vq_moments nll = {0};
    vq_comparison c = {0};
    vq_error err;
    assert_int_equal(vq_eval_perplexity(a, &w, NULL, NULL, &nll, &err), VQ_ERR_VALUE);
    assert_non_null(strstr(err.text, "repeats itself"));
    assert_int_equal(vq_eval_compare(a, &b, 1, &w, NULL, NULL, &c, &err), VQ_ERR_VALUE);
    assert_int_equal(nll.n + c.nll.n, 0);
    /* the last window alone loops: of all sequences enough are distinct */
    int32_t mixed[N];
    const size_t n_whole = N / WINDOW, last = (n_whole - 1) * WINDOW;
    for (size_t i = 0; i < N; i++)
        mixed[i] = i < last ? ids[i] : ids[i % 8];
    assert_true(n_whole >= 3 && vq_eval_distinct(mixed, n_whole * WINDOW, VQ_TEXT_GRAM) >= VQ_TEXT_LEAST_DISTINCT);
    w.ids = mixed;
    assert_int_equal(vq_eval_perplexity(a, &w, NULL, NULL, &nll, &err), VQ_ERR_VALUE);
    assert_non_null(strstr(err.text, "repeats itself in window"));
    w.ids = looped;
    w.any_text = true;
    assert_int_equal(vq_eval_perplexity(a, &w, NULL, NULL, &nll, &err), VQ_OK);
    vq_session_close(a);
    vq_session_close(b);
    vq_model_close(m);
}

int main(void)
{
    vq_rng rng;
    vq_rng_seed(&rng, 21);
    for (size_t i = 0; i < N; i++)
        ids[i] = (int32_t)(3 + vq_rng_next(&rng) % 250);
    const struct CMUnitTest tests[] = {cmocka_unit_test(looped_texts_are_refused),
                                       cmocka_unit_test(evicting),
                                       cmocka_unit_test(moments),
                                       cmocka_unit_test(against_formulas),
                                       cmocka_unit_test(windows_and_progress),
                                       cmocka_unit_test(speed)};
    return cmocka_run_group_tests_name("eval", tests, NULL, NULL);
}
