/* Plans: their files, and what opening a cache with one refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/temporary.h"
#include "veloxquant/kv.h"

static void plans_come_back_from_their_files(void **state)
{
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_file(path, "plan");
    vq_plan *p, *q = NULL;
    assert_int_equal(vq_plan_new(&p, 2, 3, NULL), VQ_OK);
    p->model_hash = 0x00f0123456789abcULL;
    snprintf(p->keys, sizeof p->keys, "velox:mean=64");
    snprintf(p->values, sizeof p->values, "int8");
    for (size_t i = 0; i < 6; i++)
        p->key_bits[i] = 1 + 0.25 * (double)i;
    vq_error err;
    if (vq_plan_save(p, path, &err) != VQ_OK || vq_plan_open(&q, path, &err) != VQ_OK)
        fail_msg("%s", err.text);
    assert_int_equal(q->n_layers, 2);
    assert_int_equal(q->n_kv_heads, 3);
    assert_true(q->model_hash == p->model_hash);
    assert_string_equal(q->keys, p->keys);
    assert_string_equal(q->values, p->values);
    assert_memory_equal(q->key_bits, p->key_bits, 6 * sizeof(double));
    assert_memory_equal(q->value_bits, p->value_bits, 6 * sizeof(double));
    p->key_losses[0] = 0.25;
    assert_int_equal(vq_plan_save(p, path, &err), VQ_ERR_ARG);
    p->key_losses[0] = 0;
    p->key_bits[4] = 0;
    assert_int_equal(vq_plan_save(p, path, &err), VQ_ERR_ARG);
    vq_plan_close(p);
    vq_plan_close(q);
    unlink(path);
}

static void bad_files_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        vq_status status;
        const char *says;
    } cases[] = {
        {"", VQ_ERR_VALUE, "is no plan"},
        {"{}", VQ_ERR_MAGIC, "veloxquant_plan"},
        {"[1]", VQ_ERR_MAGIC, "veloxquant_plan"},
        {"{\"veloxquant_plan\": 2}", VQ_ERR_VERSION, "is 2, this library reads 1"},
        {"{\"veloxquant_plan\": 1}", VQ_ERR_VALUE, "layers must be a whole number from 1 to 4096"},
        {"{\"veloxquant_plan\": 1, \"bits\": 3}", VQ_ERR_VALUE, "plans have no 'bits'"},
        {"{\"veloxquant_plan\": 1, \"layers\": 1, \"layers\": 1}", VQ_ERR_VALUE, "duplicate"},
        {"{\"veloxquant_plan\": 1, \"layers\": 5000, \"kv_heads\": 1}", VQ_ERR_VALUE, "layers must"},
        {"{\"veloxquant_plan\": 1, \"layers\": 1, \"kv_heads\": 1}", VQ_ERR_VALUE, "keys must be the text of a method"},
        {"{\"veloxquant_plan\": 1, \"layers\": 1, \"kv_heads\": 1, \"keys\": \"f16\", \"values\": 3}", VQ_ERR_VALUE,
         "values must be"},
        {"{\"veloxquant_plan\": 1, \"layers\": 1, \"kv_heads\": 2, \"keys\": \"velox\", \"values\": \"velox\", "
         "\"key_bits\": [[1]]}",
         VQ_ERR_VALUE, "key_bits: layer 0 is no list of 2 heads"},
        {"{\"veloxquant_plan\": 1, \"layers\": 1, \"kv_heads\": 1, \"keys\": \"velox\", \"values\": \"velox\", "
         "\"value_bits\": [[0]]}",
         VQ_ERR_VALUE, "value_bits: layer 0, head 0 must be a number above 0, at most 64"},
        {"{\"veloxquant_plan\": 1, \"layers\": 1, \"kv_heads\": 1, \"keys\": \"velox\", \"values\": \"velox\", "
         "\"model\": \"12\"}",
         VQ_ERR_VALUE, "16 hexadecimal digits"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        vq_plan *p;
        vq_error err = {0};
        const vq_status status = vq_plan_read(&p, "x.plan", cases[i].text, strlen(cases[i].text), &err);
        if (status != cases[i].status || p || !strstr(err.text, cases[i].says) || !strstr(err.text, "x.plan"))
            fail_msg("%s: %s, '%s' should say '%s'", cases[i].text, vq_status_name(status), err.text, cases[i].says);
    }
    vq_plan *p;
    assert_int_equal(vq_plan_open(&p, "no such file", NULL), VQ_ERR_IO);
    assert_int_equal(vq_plan_new(&p, 0, 1, NULL), VQ_ERR_ARG);
    assert_null(p);
}

static void refuse(const vq_kv_params *p, vq_status status, const char *says)
{
    vq_kv *kv;
    vq_error err = {0};
    const vq_status got = vq_kv_open(&kv, p, &err);
    if (got != status || kv || !strstr(err.text, says))
        fail_msg("status %s; '%s' should say '%s'", vq_status_name(got), err.text, says);
}

static void caches_refuse_what_does_not_fit(void **state)
{
    (void)state;
    vq_plan *p;
    assert_int_equal(vq_plan_new(&p, 2, 1, NULL), VQ_OK);
    snprintf(p->keys, sizeof p->keys, "velox");
    p->key_bits[0] = p->key_bits[1] = 3;
    vq_kv_params params = {
        .n_layers = 2, .n_heads = 2, .n_kv_heads = 1, .d_k = 64, .d_v = 64, .n_ctx = 100, .n_batch = 10, .plan = p};
    vq_kv *kv;
    assert_int_equal(vq_kv_open(&kv, &params, NULL), VQ_OK);
    vq_kv_close(kv);

    vq_kv_params other = params;
    other.keys = "f16", refuse(&other, VQ_ERR_ARG, "one too many");
    other = params, other.n_layers = 3;
    refuse(&other, VQ_ERR_MISMATCH, "is for 2 layers with 1 kv heads, the model has 3 with 1");
    p->model_hash = 7;
    other = params, other.model_hash = 8, refuse(&other, VQ_ERR_MISMATCH, "hash 0000000000000007");
    p->key_bits[1] = 9;
    refuse(&params, VQ_ERR_ARG, "keys of layer 1, head 0 have 9 bits, velox takes whole numbers from 1 to 8");
    p->key_bits[1] = 2.5;
    refuse(&params, VQ_ERR_ARG, "keys of layer 1, head 0 have 2.5 bits");
    p->key_bits[1] = 3, p->value_bits[0] = 2;
    refuse(&params, VQ_ERR_ARG, "values of layer 0, head 0 have 2 bits, but f16 has no option 'bits'");
    snprintf(p->values, sizeof p->values, "no-such");
    refuse(&params, VQ_ERR_ARG, "no-such");

    /* Exceptions by layer are exceptions from the plan. */
    snprintf(p->values, sizeof p->values, "velox");
    params.layers = "0=f16";
    assert_int_equal(vq_kv_open(&kv, &params, NULL), VQ_OK);
    vq_kv_close(kv);
    vq_plan_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_come_back_from_their_files),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test(caches_refuse_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
