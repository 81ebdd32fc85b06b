/* What a forward pass shows: every layer's rows and matrix inputs once, in order, whole and right, and that looking
 * changes nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "engine/session.h"
#include "support/toy_open.h"

enum { N = 50, N_LAYERS = 2, MOST_WIDTH = 64 };

struct seen {
    uint32_t n_rows[N_LAYERS][VQ_ROWS_V + 1], n_inputs[N_LAYERS + 1][VQ_INPUT_OUTPUT + 1];
    float k_before[N_LAYERS][N][MOST_WIDTH], k[N_LAYERS][N][MOST_WIDTH];
};

static void on_rows(void *arg, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                    uint32_t pos, uint32_t n)
{
    struct seen *s = arg;
    assert_true(layer < N_LAYERS);
    assert_int_equal(pos, s->n_rows[layer][kind]);
    assert_int_equal(n_heads, kind == VQ_ROWS_Q || kind == VQ_ROWS_Q_BEFORE_ROPE ? 4 : 2);
    s->n_rows[layer][kind] += n;
    assert_true((size_t)n_heads * d <= MOST_WIDTH && pos + n <= N);
    for (uint32_t i = 0; i < n; i++) {
        if (kind == VQ_ROWS_K_BEFORE_ROPE)
            memcpy(s->k_before[layer][pos + i], x + (size_t)i * n_heads * d, (size_t)n_heads * d * sizeof *x);
        if (kind == VQ_ROWS_K)
            memcpy(s->k[layer][pos + i], x + (size_t)i * n_heads * d, (size_t)n_heads * d * sizeof *x);
    }
}

static void on_input(void *arg, uint32_t layer, vq_input_kind kind, const float *x, uint32_t width, uint32_t n)
{
    struct seen *s = arg;
    assert_int_equal(layer == N_LAYERS, kind == VQ_INPUT_OUTPUT);
    assert_int_equal(width, kind == VQ_INPUT_DOWN ? 48 : 32);
    s->n_inputs[layer][kind] += n;
    for (size_t i = 0; i < (size_t)n * width; i++)
        assert_true(isfinite(x[i]));
}

static void everything_is_shown_once(void **state)
{
    (void)state;
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        toy_params p;
        toy_params_init(&p, (toy_family)family);
        vq_model *m = toy_open(&p);
        vq_session_params params;
        vq_session_params_init(&params);
        params.n_batch = 16;
        int32_t ids[N];
        for (int i = 0; i < N; i++)
            ids[i] = TOY_FIRST_BYTE + i * 5 % 200;
        vq_session *plain, *watched;
        vq_error err;
        assert_int_equal(vq_session_open(&plain, m, &params, &err), VQ_OK);
        assert_int_equal(vq_session_open(&watched, m, &params, &err), VQ_OK);
        struct seen *s = calloc(1, sizeof *s);
        const vq_observer observer = {.arg = s, .rows = on_rows, .input = on_input};
        vq_session_observe(watched, &observer);
        assert_int_equal(vq_session_eval(plain, ids, N, NULL, 0, NULL, &err), VQ_OK);
        assert_int_equal(vq_session_eval(watched, ids, N, NULL, 0, NULL, &err), VQ_OK);
        const size_t n_vocab = vq_model_get_info(m)->n_vocab;
        assert_memory_equal(vq_session_logits(plain), vq_session_logits(watched), n_vocab * sizeof(float));

        const bool halves = family == TOY_QWEN2 || family == TOY_QWEN3 || family == TOY_GEMMA3;
        for (int layer = 0; layer < N_LAYERS; layer++) {
            for (int kind = 0; kind <= VQ_ROWS_V; kind++)
                assert_int_equal(s->n_rows[layer][kind], N);
            for (int kind = 0; kind < VQ_INPUT_OUTPUT; kind++)
                assert_int_equal(s->n_inputs[layer][kind], N);
            /* the first pair turns by one radian a position */
            for (int i = 0; i < N; i++) {
                const double a = s->k_before[layer][i][0], b = s->k_before[layer][i][halves ? 4 : 1];
                const double want = a * cos(i) - b * sin(i), got = s->k[layer][i][0];
                if (!(fabs(got - want) <= 1e-5 * (fabs(a) + fabs(b)) + 1e-6))
                    fail_msg("%s, layer %d, row %d: turned key is %g, want %g", toy_family_name((toy_family)family),
                             layer, i, got, want);
            }
        }
        assert_int_equal(s->n_inputs[N_LAYERS][VQ_INPUT_OUTPUT], 1);

        /* unset again, nothing more is shown */
        vq_session_observe(watched, NULL);
        assert_int_equal(vq_session_eval(watched, ids, 10, NULL, 0, NULL, &err), VQ_OK);
        assert_int_equal(s->n_rows[0][VQ_ROWS_V], N);
        free(s);
        vq_session_close(plain);
        vq_session_close(watched);
        vq_model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(everything_is_shown_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
