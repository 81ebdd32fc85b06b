/* Eviction under a whole model: what fits changes no logit, whatever the policy looks at; positions stay true; and in a
 * model of one layer, where RoPE makes it exact, dropping rows and renumbering is the same as never having had them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/policies/policy.h"
#include "support/files.h"
#include "support/toy_open.h"
#include "veloxquant/session.h"

static vq_session *open_with(const vq_model *model, const char *evict, const char *kv, uint32_t n_batch, uint32_t n_ctx)
{
    vq_session_params p;
    vq_session_params_init(&p);
    p.exact = true;
    p.n_ctx = n_ctx;
    p.n_batch = n_batch;
    p.evict = evict;
    p.kv_keys = p.kv_values = kv;
    p.kv_exact = VQ_KV_EXACT_F32;
    vq_session *s;
    vq_error err;
    if (vq_session_open(&s, model, &p, &err) != VQ_OK)
        fail_msg("%s: %s", evict ? evict : "no eviction", err.text);
    return s;
}

static void eval(vq_session *s, const int32_t *ids, size_t n, bool decode)
{
    vq_error err;
    const vq_status status =
        decode ? vq_session_decode(s, ids, n, NULL, 0, NULL, &err) : vq_session_eval(s, ids, n, NULL, 0, NULL, &err);
    if (status != VQ_OK)
        fail_msg("%s", err.text);
}

enum { PROMPT = 90, ALL = 120 };

static void make_ids(int32_t *ids, uint32_t n_vocab)
{
    for (int i = 0; i < ALL; i++)
        ids[i] = 3 + (i * 37 + i * i) % (int32_t)(n_vocab - 3);
}

static void what_fits_changes_no_logit(void **state)
{
    (void)state;
    for (int family = 0; family < N_TOY_FAMILIES; family += TOY_GEMMA3) { /* llama, and gemma3 with its windows */
        toy_params p;
        toy_params_init(&p, (toy_family)family);
        vq_model *model = toy_open(&p);
        const uint32_t n_vocab = vq_model_get_info(model)->n_vocab;
        int32_t ids[ALL];
        make_ids(ids, n_vocab);
        vq_session *plain = open_with(model, NULL, "kivi:bits=4", 32, 128);
        eval(plain, ids, PROMPT, false);
        eval(plain, ids + PROMPT, ALL - PROMPT, true);
        for (size_t i = 0; i < vq_n_policies; i++) {
            if (vq_policies[i]->needs_calibration)
                continue;
            char text[100];
            snprintf(text, sizeof text, "%s:budget=100%%,every=8,prompt=40", vq_policies[i]->name);
            vq_session *s = open_with(model, text, "kivi:bits=4", 17, 128);
            eval(s, ids, PROMPT, false);
            for (int j = PROMPT; j < ALL; j++)
                eval(s, ids + j, 1, true);
            if (memcmp(vq_session_logits(s), vq_session_logits(plain), n_vocab * sizeof(float)) != 0)
                fail_msg("%s on %s: other logits", text, toy_family_name((toy_family)family));
            vq_session_close(s);
        }
        vq_session_close(plain);
        vq_model_close(model);
    }
}

/* The same logits and the same rows however a prompt is cut, and generated tokens one by one or together; and the next
 * position is the number of tokens, not of rows that are left. */
static void cutting_changes_nothing_and_positions_are_true(void **state)
{
    (void)state;
    toy_params p;
    toy_params_init(&p, TOY_LLAMA);
    vq_model *model = toy_open(&p);
    const uint32_t n_vocab = vq_model_get_info(model)->n_vocab;
    int32_t ids[ALL];
    make_ids(ids, n_vocab);
    for (size_t i = 0; i < vq_n_policies; i++) {
        if (vq_policies[i]->needs_calibration)
            continue;
        char text[100];
        snprintf(text, sizeof text, "%s:budget=30,every=8,prompt=40", vq_policies[i]->name);
        vq_session *a = open_with(model, text, "int8", 128, 128), *b = open_with(model, text, "int8", 7, 128);
        eval(a, ids, PROMPT, false);
        eval(a, ids + PROMPT, ALL - PROMPT, true);
        eval(b, ids, PROMPT, false);
        for (int j = PROMPT; j < ALL; j++)
            eval(b, ids + j, 1, true);
        if (memcmp(vq_session_logits(a), vq_session_logits(b), n_vocab * sizeof(float)) != 0)
            fail_msg("%s: other logits when cut otherwise", text);
        uint32_t pos[128];
        const uint32_t n = vq_kv_read(vq_session_kv(b), 0, 0, NULL, NULL, pos);
        assert_int_equal(vq_kv_n_rows(vq_session_kv(b), 0), ALL);
        assert_int_equal(vq_session_n_tokens(b), ALL);
        if (!vq_policies[i]->keeps_all && n >= ALL)
            fail_msg("%s: nothing was evicted", text);
        if (pos[n - 1] != ALL - 1 && vq_policies[i]->recent_share > 0)
            fail_msg("%s: the newest row stands at %u, expected %d", text, pos[n - 1], ALL - 1);
        vq_session_close(a);
        vq_session_close(b);
    }
    vq_model_close(model);
}

/* streaming with renumber: the sinks 0..3 and 20 recent rows of a prompt of 44 are, for a query, where they would be in
 * a prompt of those 24 tokens.  f32 throughout; turning the query back instead of never having turned it that far costs
 * a few roundings. */
static void one_layer_identity(void **state)
{
    (void)state;
    static const char *const files[] = {"hd8_h4_kv2",  "hd64_h2_kv1", "hd72_h2_kv2",  "hd80_h2_kv1",
                                        "hd96_h2_kv1", "hd96_h3_kv1", "hd100_h2_kv2", "hd128_h2_kv1"};
    enum { LONG = 44, SINKS = 4, RECENT = 20, MORE = 6 };
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char name[128];
        snprintf(name, sizeof name, "tests/cases/gguf_heads/%s.gguf", files[f]);
        vq_model *model;
        vq_error err;
        if (vq_model_open(&model, source_path(name), &err) != VQ_OK)
            fail_msg("%s", err.text);
        const uint32_t n_vocab = vq_model_get_info(model)->n_vocab;
        assert_int_equal(vq_model_get_info(model)->n_layers, 1);
        int32_t ids[LONG + MORE], kept[SINKS + RECENT + MORE];
        for (int i = 0; i < LONG + MORE; i++)
            ids[i] = 3 + (i * 7 + i * i) % (int32_t)(n_vocab - 3);
        memcpy(kept, ids, SINKS * sizeof *ids);
        memcpy(kept + SINKS, ids + LONG - RECENT, (RECENT + MORE) * sizeof *ids);
        vq_session *evicted =
            open_with(model, "streaming:budget=24,sinks=4,renumber=1,every=1000", "f32", 16, LONG + MORE);
        vq_session *true_positions = open_with(model, "streaming:budget=24,sinks=4,every=1000", "f32", 16, LONG + MORE);
        vq_session *fresh = open_with(model, NULL, "f32", 16, LONG + MORE);
        eval(evicted, ids, LONG, false);
        eval(true_positions, ids, LONG, false);
        eval(fresh, kept, SINKS + RECENT, false);
        for (int i = 0; i < MORE; i++) {
            eval(evicted, ids + LONG + i, 1, true);
            eval(true_positions, ids + LONG + i, 1, true);
            eval(fresh, kept + SINKS + RECENT + i, 1, true);
            double worst = 0, other = 0;
            for (uint32_t j = 0; j < n_vocab; j++) {
                worst = fmax(worst, fabs((double)vq_session_logits(evicted)[j] - (double)vq_session_logits(fresh)[j]));
                other = fmax(other,
                             fabs((double)vq_session_logits(true_positions)[j] - (double)vq_session_logits(fresh)[j]));
            }
            if (!(worst < 1e-4))
                fail_msg("%s, token %d: logits are off by %g", files[f], i, worst);
            if (!(other > worst))
                fail_msg("%s, token %d: without renumbering the sinks are not farther away", files[f], i);
        }
        vq_session_close(evicted);
        vq_session_close(true_positions);
        vq_session_close(fresh);
        vq_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_fits_changes_no_logit),
        cmocka_unit_test(cutting_changes_nothing_and_positions_are_true),
        cmocka_unit_test(one_layer_identity),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
