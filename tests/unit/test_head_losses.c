/* How much each head matters: what is measured is what a comparison of single plans gives. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/toy_open.h"
#include "veloxquant/eval.h"

enum { LAYERS = 2, HEADS = 2, N = 120 };

static int32_t ids[N];

static vq_model *open_model(void)
{
    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    for (int i = 0; i < N; i++)
        ids[i] = TOY_FIRST_BYTE + (i * 37 + i * i % 11) % 250;
    return toy_open(&p);
}

static vq_windows windows(void) { return (vq_windows){.ids = ids, .n = N, .n_ctx = N, .skip = 40, .any_text = true}; }

static double kl_of(const vq_model *model, const vq_plan *plan)
{
    vq_session_params p;
    vq_session_params_init(&p);
    p.n_ctx = N;
    p.exact = true;
    vq_session *reference, *tested;
    assert_int_equal(vq_session_open(&reference, model, &p, NULL), VQ_OK);
    p.plan = plan;
    assert_int_equal(vq_session_open(&tested, model, &p, NULL), VQ_OK);
    const vq_windows w = windows();
    vq_comparison c = {0};
    assert_int_equal(vq_eval_compare(reference, &tested, 1, &w, NULL, NULL, &c, NULL), VQ_OK);
    vq_session_close(reference);
    vq_session_close(tested);
    return c.kl.mean;
}

static size_t n_calls, last_done;

static bool on_progress(void *arg, size_t done, size_t all)
{
    (void)arg;
    assert_true(done >= last_done && done <= all);
    last_done = done;
    n_calls++;
    return true;
}

static bool stop(void *arg, size_t done, size_t all)
{
    (void)arg;
    (void)done;
    (void)all;
    return false;
}

static void each_head_is_measured_by_itself(void **state)
{
    (void)state;
    vq_model *model = open_model();
    double keys[LAYERS * HEADS], values[LAYERS * HEADS];
    vq_head_losses_params p = {.windows = windows(), .by_head = true, .progress = on_progress};
    vq_error err;
    if (vq_eval_head_losses(model, &p, keys, values, &err) != VQ_OK)
        fail_msg("%s", err.text);
    assert_true(n_calls > 0);
    vq_plan *plan;
    assert_int_equal(vq_plan_new(&plan, LAYERS, HEADS, NULL), VQ_OK);
    snprintf(plan->keys, sizeof plan->keys, "%s", VQ_PLAN_PROBE_METHOD);
    snprintf(plan->values, sizeof plan->values, "%s", VQ_PLAN_PROBE_METHOD);
    for (int i = 0; i < LAYERS * HEADS; i++)
        plan->key_bits[i] = plan->value_bits[i] = 8;
    const double fine = kl_of(model, plan);
    double mean = 0, got[LAYERS * HEADS];
    for (int i = 0; i < LAYERS * HEADS; i++) {
        plan->value_bits[i] = VQ_PLAN_PROBE_BITS;
        got[i] = kl_of(model, plan) - fine;
        mean += (got[i] > 0 ? got[i] : 0) / (LAYERS * HEADS);
        plan->value_bits[i] = 8;
    }
    for (int i = 0; i < LAYERS * HEADS; i++) {
        const double want = got[i] > mean / 20 ? got[i] : mean / 20;
        if (!(values[i] > 0.999 * want && values[i] < 1.001 * want))
            fail_msg("head %d: %.6g, by itself %.6g", i, values[i], want);
        assert_true(keys[i] > 0);
    }
    vq_plan_close(plan);
    vq_model_close(model);
}

static void heads_of_a_layer_may_share(void **state)
{
    (void)state;
    vq_model *model = open_model();
    double keys[LAYERS * HEADS], values[LAYERS * HEADS];
    vq_head_losses_params p = {.windows = windows()};
    assert_int_equal(vq_eval_head_losses(model, &p, keys, values, NULL), VQ_OK);
    for (int l = 0; l < LAYERS; l++)
        assert_true(keys[2 * l] == keys[2 * l + 1] && values[2 * l] == values[2 * l + 1] && keys[2 * l] > 0);
    p.progress = stop;
    vq_error err;
    assert_int_equal(vq_eval_head_losses(model, &p, keys, values, &err), VQ_ERR_CANCELLED);
    p.progress = NULL;
    p.windows.n = 10;
    assert_int_equal(vq_eval_head_losses(model, &p, keys, values, &err), VQ_ERR_ARG);
    vq_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_head_is_measured_by_itself),
        cmocka_unit_test(heads_of_a_layer_may_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
