/* Bits on average by what was measured: the measure against two models run side by side, the shares against everything
 * that there is to choose. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/rng.h"
#include "model/quantize.h"
#include "support/temporary.h"
#include "support/toy_open.h"
#include "veloxquant/session.h"

enum { N_IDS = 64, FIRST = N_IDS / 8, MATRICES = 14, BITS = 3 };

static char folder[TEMPORARY_PATH], source[96], path[96], other[96];

static int make_folder(void **state)
{
    (void)state;
    temporary_folder(folder, "sensitivity");
    snprintf(source, sizeof source, "%s/toy.gguf", folder);
    snprintf(path, sizeof path, "%s/a.vqr", folder);
    snprintf(other, sizeof other, "%s/b.vqr", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return remove_temporary_folder(folder);
}

static void check(vq_status status, const vq_error *err)
{
    if (status != VQ_OK)
        fail_msg("%s: %s", vq_status_name(status), err->text);
}

static vq_gguf *toy(void)
{
    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    p.n_embd = 96;
    p.n_ff = 160;
    p.head_dim = 24;
    p.type = VQ_TYPE_F32;
    gguf_buffer b = toy_model_make(&p);
    assert_true(gguf_buffer_save(b, source));
    free(b.bytes);
    vq_gguf *g;
    vq_error err;
    check(vq_gguf_open(&g, source, &err), &err);
    return g;
}

static void make_ids(int32_t ids[N_IDS])
{
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(3 + (i * i * 7 + i * 13) % 250);
}

/* ---- the measure ---- */

/* log of the softmax of a row */
static void log_shares(double *out, const float *logits, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i]);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (double)logits[i] - log(sum);
}

/* Mean divergence over the tokens from FIRST on, one token at a time. */
static double divergence(const char *a, const char *b, const int32_t ids[N_IDS])
{
    vq_error err;
    vq_model *m[2];
    vq_session *s[2];
    vq_session_params p;
    vq_session_params_init(&p);
    p.exact = true;
    for (int i = 0; i < 2; i++) {
        check(vq_model_open(&m[i], i ? b : a, &err), &err);
        check(vq_session_open(&s[i], m[i], &p, &err), &err);
    }
    const uint32_t n_vocab = vq_model_get_info(m[0])->n_vocab;
    double *shares[2] = {calloc(n_vocab, sizeof(double)), calloc(n_vocab, sizeof(double))}, sum = 0;
    assert_true(shares[0] && shares[1]);
    for (uint32_t i = 0; i < N_IDS; i++) {
        for (int k = 0; k < 2; k++) {
            check(vq_session_eval(s[k], &ids[i], 1, NULL, 0, NULL, &err), &err);
            log_shares(shares[k], vq_session_logits(s[k]), n_vocab);
        }
        for (uint32_t v = 0; v < n_vocab && i >= FIRST; v++)
            sum += exp(shares[0][v]) * (shares[0][v] - shares[1][v]);
    }
    for (int i = 0; i < 2; i++) {
        vq_session_close(s[i]);
        vq_model_close(m[i]);
        free(shares[i]);
    }
    return sum / (N_IDS - FIRST);
}

typedef struct table {
    char name[MATRICES][64];
    double loss[MATRICES];
    uint32_t n;
} table;

static void note(void *user, const vq_quantized *t)
{
    table *to = user;
    if (isnan(t->loss))
        return;
    assert_true(to->n < MATRICES);
    snprintf(to->name[to->n], sizeof to->name[0], "%.*s", (int)t->name.n_bytes, t->name.at);
    to->loss[to->n++] = t->loss;
}

static void losses_are_those_of_the_model_with_one_matrix_packed(void **state)
{
    (void)state;
    vq_gguf *g = toy();
    vq_error err;
    vq_quantize_params p;
    table t = {.n = 0};
    int32_t ids[N_IDS];
    make_ids(ids);
    vq_quantize_params_init(&p);
    vq_model *m;
    check(vq_model_open(&m, source, &err), &err);
    p.model = m;
    p.sensitivity_ids = ids;
    p.n_sensitivity_ids = N_IDS;
    p.bits = 3;
    p.seed = 5;
    p.each = note;
    p.user = &t;
    check(vq_quantize(g, path, &p, &err), &err);
    assert_int_equal(t.n, MATRICES);
    p.sensitivity_ids = NULL;
    p.each = NULL;
    p.bits = 0;
    p.n_rules = 1;
    for (uint32_t i = 0; i < MATRICES; i++) {
        char rule[80];
        const char *rules = rule;
        snprintf(rule, sizeof rule, "%s=2", t.name[i]);
        p.rules = &rules;
        check(vq_quantize(g, other, &p, &err), &err);
        const double expected = divergence(source, other, ids);
        /* logits are floats, and rows came in another cut */
        if (!(expected > 0) || !(fabs(t.loss[i] - expected) < 1e-6 + 1e-3 * expected))
            fail_msg("%s: %g measured, the models are %g apart", t.name[i], t.loss[i], expected);
    }
    vq_model_close(m);
    vq_gguf_close(g);
}

static bool stop_at_three(void *user, uint64_t done, uint64_t all)
{
    assert_int_equal(all, MATRICES - 2);
    ++*(uint64_t *)user;
    return done < 3;
}

static void bytes_do_not_depend_on_threads_and_stopping_leaves_none(void **state)
{
    (void)state;
    vq_gguf *g = toy();
    vq_error err;
    vq_quantize_params p;
    int32_t ids[N_IDS];
    make_ids(ids);
    vq_quantize_params_init(&p);
    vq_model *m;
    check(vq_model_open(&m, source, &err), &err);
    p.model = m;
    p.sensitivity_ids = ids;
    p.n_sensitivity_ids = N_IDS;
    p.bits = 2.7F;
    check(vq_quantize(g, path, &p, &err), &err);
    check(vq_pool_open(&p.pool, 3, &err), &err);
    check(vq_quantize(g, other, &p, &err), &err);
    vq_pool_close(p.pool);
    p.pool = NULL;
    char command[256];
    snprintf(command, sizeof command, "cmp %s %s", path, other);
    assert_int_equal(system(command), 0);

    static const char *const rules[] = {"blk.*.ffn_down*=4"};
    uint64_t n = 0;
    p.rules = rules;
    p.n_rules = 1;
    p.measured = stop_at_three;
    p.user = &n;
    unlink(other);
    assert_int_equal(vq_quantize(g, other, &p, &err), VQ_ERR_CANCELLED);
    assert_int_equal(n, 3);
    assert_int_equal(access(other, F_OK), -1);
    p.measured = NULL;
    p.n_sensitivity_ids = 31;
    assert_int_equal(vq_quantize(g, other, &p, &err), VQ_ERR_ARG);
    p.n_sensitivity_ids = N_IDS;
    p.bits = 4;
    assert_int_equal(vq_quantize(g, other, &p, &err), VQ_ERR_ARG);
    assert_non_null(strstr(err.text, "nothing to share"));
    vq_model_close(m);
    vq_gguf_close(g);
}

/* ---- the shares ---- */

static const double errors[BITS] = {1, 0.2941, 0.0808}; /* squares to that at 2 bits */

typedef struct search {
    uint64_t size[MATRICES];
    double loss[MATRICES], best;
} search;

static void try_all(search *s, uint32_t i, uint64_t left, double loss)
{
    if (loss >= s->best)
        return;
    if (i == MATRICES) {
        s->best = loss;
        return;
    }
    for (uint32_t b = 0; b < BITS; b++)
        if (b * s->size[i] <= left)
            try_all(s, i + 1, left - b * s->size[i], loss + s->loss[i] * errors[b]);
}

static vq_status given(void *arg, const vq_gguf *g, const bool *wanted, double *losses, vq_error *err)
{
    (void)err;
    search *s = arg;
    uint32_t n = 0;
    for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
        if (!wanted[i])
            continue;
        s->size[n] = g->tensors[i].dims[0] * g->tensors[i].dims[1];
        losses[i] = s->loss[n++];
    }
    assert_int_equal(n, MATRICES);
    return VQ_OK;
}

static void shares_are_near_the_best_there_are(void **state)
{
    (void)state;
    vq_gguf *g = toy();
    vq_error err;
    vq_quantize_params p;
    vq_quantize_params_init(&p);
    vq_type types[64];
    double losses[64];
    assert_true(vq_gguf_n_tensors(g) <= 64);
    vq_rng rng;
    vq_rng_seed(&rng, 3);
    double worst = 1;
    for (int round = 0; round < 12; round++) {
        search s = {.best = INFINITY};
        const vq_sensitivity_source from = {&s, given};
        double most = 0;
        for (uint32_t i = 0; i < MATRICES; i++) {
            const double u = vq_rng_uniform(&rng);
            s.loss[i] = 0.001 + u * u * u * u;
            most = fmax(most, s.loss[i]);
        }
        p.bits = 2.2F + 0.3F * (float)(round % 6);
        check(vq_quantize_plan(types, losses, g, &p, &from, &err), &err);
        uint64_t budget = 0, spent = 0, all = 0;
        double loss = 0;
        for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
            const uint64_t n = g->tensors[i].dims[0] * g->tensors[i].dims[1];
            const uint32_t bits = vq_type_packed_bits(types[i]);
            assert_true(bits > 0 ? !isnan(losses[i]) : isnan(losses[i]));
            if (!bits)
                continue;
            all += n;
            spent += (bits - 2) * n;
            loss += losses[i] * errors[bits - 2];
        }
        budget = (uint64_t)(((double)p.bits - 2) * (double)all + 0.5);
        assert_true(spent <= budget);
        try_all(&s, 0, budget, 0);
        if (loss > s.best + 0.71 * most || loss < s.best * (1 - 1e-3))
            fail_msg("%g bits: %g lost, the best is %g", (double)p.bits, loss, s.best);
        worst = fmax(worst, loss / s.best);
    }
    printf("at worst %.3f times the least loss\n", worst);
    assert_true(worst < 1.2);
    vq_gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_the_model_with_one_matrix_packed),
        cmocka_unit_test(bytes_do_not_depend_on_threads_and_stopping_leaves_none),
        cmocka_unit_test(shares_are_near_the_best_there_are),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
