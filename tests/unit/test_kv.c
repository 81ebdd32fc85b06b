/* The cache's refusals: each names the field, the value and the limit, and changes nothing.  (What holds for every
 * codec is in tests/laws.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/codec.h"
#include "kv/save.h"

static const vq_kv_params base = {.n_layers = 2,
                                  .n_heads = 4,
                                  .n_kv_heads = 2,
                                  .d_k = 64,
                                  .d_v = 64,
                                  .n_ctx = 128,
                                  .n_batch = 64,
                                  .sinks = VQ_KV_DEFAULT,
                                  .residual = VQ_KV_DEFAULT};

static float rows[64 * 2 * 64], queries[64 * 4 * 64], outputs[64 * 4 * 64];

static vq_kv *open_with(const vq_kv_params *p)
{
    vq_kv *kv;
    vq_error err;
    if (vq_kv_open(&kv, p, &err) != VQ_OK)
        fail_msg("%s", err.text);
    return kv;
}

static void refuse(const vq_kv_params *p, vq_status status, const char *says)
{
    vq_kv *kv = (vq_kv *)rows;
    vq_error err = {0};
    const vq_status got = vq_kv_open(&kv, p, &err);
    if (got != status || kv || !strstr(err.text, says))
        fail_msg("status %s, expected %s; message '%s' should say '%s'", vq_status_name(got), vq_status_name(status),
                 err.text, says);
    assert_int_equal(vq_kv_open(&kv, p, NULL), status);
}

static void parameters_are_checked(void **state)
{
    (void)state;
    vq_kv_params p;
    p = base, p.n_layers = 0, refuse(&p, VQ_ERR_ARG, "n_layers is 0");
    p = base, p.d_k = 513, refuse(&p, VQ_ERR_ARG, "d_k is 513, allowed are 1 to 512");
    const double freq[8] = {1};
    vq_kv_rope odd[3] = {{freq, 3, false}, {freq, 3, false}, {freq, 3, false}};
    p = base, p.ropes = odd, refuse(&p, VQ_ERR_ARG, "ropes of layer 0: n_rot is 3, must be even");
    p = base, p.n_heads = 5, refuse(&p, VQ_ERR_ARG, "n_heads is 5, which is no multiple of n_kv_heads 2");
    p = base, p.n_batch = 0, refuse(&p, VQ_ERR_ARG, "n_batch is 0");
    p = base, p.sinks = 5000, refuse(&p, VQ_ERR_ARG, "sinks is 5000");
    p = base, p.scale = -1, refuse(&p, VQ_ERR_ARG, "scale is -1");
    p = base, p.keys = "f17", refuse(&p, VQ_ERR_ARG, "keys: no method is called 'f17'; there are: f16 ");
    p = base, p.keys = "", refuse(&p, VQ_ERR_ARG, "keys: no method is called ''");
    p = base, p.values = "f16:bits=3",
    refuse(&p, VQ_ERR_ARG, "values: f16 has no option 'bits'; it has: sinks residual");
    p = base, p.values = "f16:sinks", refuse(&p, VQ_ERR_ARG, "'sinks' is not of the form option=value");
    p = base, p.values = "f16:sinks=x", refuse(&p, VQ_ERR_ARG, "sinks is 'x', which is no number");
    p = base, p.keys = "kivi:bits=2,sinks=1,bits=4", refuse(&p, VQ_ERR_ARG, "keys: kivi: bits is given twice");
    p = base, p.values = "f16:sinks=1.5", refuse(&p, VQ_ERR_ARG, "sinks is 1.5, which is no whole number");
    p = base, p.values = "f16:residual=-1", refuse(&p, VQ_ERR_ARG, "residual is -1");
    p = base, p.layers = "0-2=f16", refuse(&p, VQ_ERR_ARG, "layers: 0-2, the model has layers 0 to 1");
    p = base, p.layers = "1=f16,0=what", refuse(&p, VQ_ERR_ARG, "layers 0-0: no method is called 'what'");
    p = base, p.layers = "x=f16", refuse(&p, VQ_ERR_ARG, "layers: 'x=f16' is not of the form");
    p = base, p.layers = "99999999999=f16", refuse(&p, VQ_ERR_ARG, "layers: ");
    /* sizes whose product does not fit, or does not fit this machine */
    p = base, p.n_layers = 4096, p.n_heads = p.n_kv_heads = 4096, p.n_ctx = p.n_batch = 1 << 28;
    p.d_k = p.d_v = 512;
    vq_kv *kv;
    vq_error err;
    p.n_layers = 1, p.n_heads = p.n_kv_heads = 64;
    const vq_status status = vq_kv_open(&kv, &p, &err);
    assert_true(status == VQ_OK || status == VQ_ERR_NOMEM);
    vq_kv_close(kv);
    vq_kv_close(NULL);
}

static void methods_of_layers_are_chosen(void **state)
{
    (void)state;
    /* 40 rows: with residual 0 a layer packs 32 of them, with 32 none */
    vq_kv_params p = base;
    p.keys = "f16:residual=32";
    p.values = "f32:residual=0";
    p.layers = "1=f16:sinks=3,residual=5,0=bf16";
    vq_kv *kv = open_with(&p);
    vq_kv_bytes one, two;
    assert_int_equal(vq_kv_append(kv, 0, 0, rows, rows, 40, NULL), VQ_OK);
    vq_kv_measure(kv, &one);
    assert_int_equal(one.n_packed_rows, 2 * 32);
    assert_int_equal(one.codes, 2 * 64 * 64 * 4);
    assert_int_equal(vq_kv_append(kv, 1, 0, rows, rows, 39, NULL), VQ_OK);
    vq_kv_measure(kv, &two);
    assert_int_equal(two.n_packed_rows, one.n_packed_rows);
    assert_int_equal(vq_kv_append(kv, 1, 39, rows, rows, 1, NULL), VQ_OK);
    vq_kv_measure(kv, &two);
    assert_int_equal(two.n_packed_rows, one.n_packed_rows + 2 * 32);
    vq_kv_close(kv);

    /* the parameter wins over the text, the larger of keys and values counts */
    p.layers = NULL;
    kv = open_with(&p);
    assert_int_equal(vq_kv_append(kv, 0, 0, rows, rows, 63, NULL), VQ_OK);
    vq_kv_measure(kv, &one);
    assert_int_equal(one.n_packed_rows, 0);
    vq_kv_close(kv);
    p.residual = 0;
    kv = open_with(&p);
    assert_int_equal(vq_kv_append(kv, 0, 0, rows, rows, 63, NULL), VQ_OK);
    vq_kv_measure(kv, &one);
    assert_int_equal(one.n_packed_rows, 2 * 32);
    vq_kv_close(kv);
}

static void rows_that_do_not_fit_change_nothing(void **state)
{
    (void)state;
    vq_kv *kv = open_with(&base);
    vq_error err;
    assert_int_equal(vq_kv_append(kv, 0, 10, rows, rows, 64, &err), VQ_OK);
    assert_int_equal(vq_kv_append(kv, 2, 0, rows, rows, 1, &err), VQ_ERR_ARG);
    assert_string_equal(err.text, "layer is 2, the cache has 2");
    assert_int_equal(vq_kv_append(kv, 0, 74, rows, rows, 65, &err), VQ_ERR_ARG);
    assert_string_equal(err.text, "65 rows in one append, n_batch is 64");
    assert_int_equal(vq_kv_append(kv, 0, 74, rows, rows, 0, &err), VQ_ERR_ARG);
    assert_int_equal(vq_kv_append(kv, 0, 75, rows, rows, 1, &err), VQ_ERR_ARG);
    assert_string_equal(err.text, "position is 75, layer 0 goes on at 74");
    assert_int_equal(vq_kv_append(kv, 0, 74, rows, rows, 64, &err), VQ_OK);
    assert_int_equal(vq_kv_append(kv, 0, 138, rows, rows, 1, &err), VQ_ERR_FULL);
    assert_string_equal(err.text, "1 rows after 128 in layer 0 exceed n_ctx 128");
    assert_int_equal(vq_kv_n_rows(kv, 0), 128);
    /* queries belong to the newest append */
    assert_int_equal(vq_kv_attend(kv, 0, queries, 64, outputs, &err), VQ_OK);
    assert_int_equal(vq_kv_attend(kv, 0, queries, 65, outputs, &err), VQ_ERR_ARG);
    assert_string_equal(err.text, "65 queries, the newest append to layer 0 had 64 rows");
    assert_int_equal(vq_kv_attend(kv, 1, queries, 1, outputs, &err), VQ_ERR_ARG);
    assert_string_equal(err.text, "layer is 1, which the newest append was not to");
    assert_int_equal(vq_kv_append(kv, 1, 0, rows, rows, 3, &err), VQ_OK);
    assert_int_equal(vq_kv_attend(kv, 0, queries, 1, outputs, &err), VQ_ERR_ARG);
    uint32_t pos[128];
    assert_int_equal(vq_kv_read(kv, 0, 1, NULL, NULL, pos), 128);
    assert_int_equal(pos[0], 10);
    assert_int_equal(pos[127], 137);
    vq_kv_close(kv);
}

/* Fewer queries than rows were appended: the last ones, with the same bits. */
static void the_last_queries_suffice(void **state)
{
    (void)state;
    vq_kv *kv = open_with(&base);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        rows[i] = (float)(i * 7 % 31) * 0.1f - 1.5f;
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++)
        queries[i] = (float)(i * 5 % 37) * 0.1f - 1.8f;
    float last[4 * 64];
    assert_int_equal(vq_kv_append(kv, 0, 0, rows, rows, 64, NULL), VQ_OK);
    assert_int_equal(vq_kv_attend(kv, 0, queries, 64, outputs, NULL), VQ_OK);
    assert_int_equal(vq_kv_attend(kv, 0, queries + (size_t)63 * 4 * 64, 1, last, NULL), VQ_OK);
    assert_memory_equal(last, outputs + (size_t)63 * 4 * 64, sizeof last);
    vq_kv_close(kv);
}

static void dropped_rows_are_not_brought_back(void **state)
{
    (void)state;
    const uint32_t windows[2] = {0, 20};
    vq_kv_params p = base;
    p.window = windows;
    vq_kv *kv = open_with(&p);
    for (uint32_t l = 0; l < 2; l++) {
        assert_int_equal(vq_kv_append(kv, l, 0, rows, rows, 64, NULL), VQ_OK);
        assert_int_equal(vq_kv_append(kv, l, 64, rows, rows, 50, NULL), VQ_OK);
    }
    vq_error err;
    assert_int_equal(vq_kv_truncate(kv, 90, &err), VQ_OK); /* rows from 71 on are seen: page 1 */
    assert_int_equal(vq_kv_truncate(kv, 70, &err), VQ_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "truncating to 70 rows: layer 1 (window 20) has dropped the rows below 64");
    assert_int_equal(vq_kv_n_rows(kv, 0), 90);
    assert_int_equal(vq_kv_n_rows(kv, 1), 90);
    assert_int_equal(vq_kv_truncate(kv, 100, &err), VQ_OK); /* more than there are */
    assert_int_equal(vq_kv_n_rows(kv, 0), 90);
    vq_kv_clear(kv);
    assert_int_equal(vq_kv_n_rows(kv, 0), 0);
    assert_int_equal(vq_kv_append(kv, 1, 1000, rows, rows, 5, NULL), VQ_OK);
    vq_kv_close(kv);
}

/* The newest rows have pushed page 0 out of the window; dropped before another append, they give it back. */
static void pages_go_by_the_rows_that_are_left(void **state)
{
    (void)state;
    const uint32_t windows[2] = {20, 20};
    vq_kv_params p = base;
    p.window = windows;
    vq_kv *kv = open_with(&p);
    for (uint32_t l = 0; l < 2; l++) {
        assert_int_equal(vq_kv_append(kv, l, 0, rows, rows, 64, NULL), VQ_OK);
        assert_int_equal(vq_kv_append(kv, l, 64, rows, rows, 10, NULL), VQ_OK);
    }
    assert_int_equal(vq_kv_append(kv, 0, 74, rows, rows, 40, NULL), VQ_OK);
    assert_int_equal(vq_kv_truncate(kv, 70, NULL), VQ_OK);
    assert_int_equal(vq_kv_read(kv, 0, 0, NULL, NULL, NULL), 70);
    assert_int_equal(vq_kv_append(kv, 0, 70, rows, rows, 1, NULL), VQ_OK);
    assert_int_equal(vq_kv_attend(kv, 0, queries, 1, outputs, NULL), VQ_OK);
    vq_kv_close(kv);
}

/* ---- saved under other settings ---- */

static const char *const saved_path = "test_kv.vqcache";

static void load_is_refused(const vq_kv_params *p, vq_status status, const char *says)
{
    vq_kv *kv = open_with(p);
    assert_int_equal(vq_kv_append(kv, 0, 5, rows, rows, 3, NULL), VQ_OK);
    vq_error err = {0};
    const vq_status got = vq_kv_load(kv, saved_path, &err);
    if (got != status || !strstr(err.text, says) || !strstr(err.text, saved_path))
        fail_msg("status %s, expected %s; message '%s' should say '%s'", vq_status_name(got), vq_status_name(status),
                 err.text, says);
    assert_int_equal(vq_kv_n_rows(kv, 0), 3);
    /* not even the newest append is disturbed */
    assert_int_equal(vq_kv_attend(kv, 0, queries, 3, outputs, NULL), VQ_OK);
    vq_kv_close(kv);
}

static void mismatches_are_named(void **state)
{
    (void)state;
    vq_kv_params saved = base, p;
    saved.keys = "kivi:bits=2";
    saved.model_hash = 7;
    saved.rope_base = 10000;
    vq_kv *kv = open_with(&saved);
    for (uint32_t l = 0; l < 2; l++) {
        assert_int_equal(vq_kv_append(kv, l, 0, rows, rows, 64, NULL), VQ_OK);
        assert_int_equal(vq_kv_append(kv, l, 64, rows, rows, 40, NULL), VQ_OK);
    }
    assert_int_equal(vq_kv_save(kv, saved_path, NULL), VQ_OK);
    vq_kv_close(kv);

    const uint32_t windows[2] = {0, 40};
    p = saved, p.d_v = 32, load_is_refused(&p, VQ_ERR_MISMATCH, "d_v is 64 in the file, 32 in the cache");
    p = saved, p.seed = 1, load_is_refused(&p, VQ_ERR_MISMATCH, "seed is 0 in the file, 1 in the cache");
    p = saved, p.model_hash = 8, load_is_refused(&p, VQ_ERR_MISMATCH, "model_hash is 7 in the file, 8 in the cache");
    p = saved, p.rope_base = 1e6f, load_is_refused(&p, VQ_ERR_MISMATCH, "rope_base is 10000 in the file, 1000000 in");
    p = saved, p.scale = 1, load_is_refused(&p, VQ_ERR_MISMATCH, "scale is 0.125 in the file, 1 in the cache");
    p = saved, p.exact = VQ_KV_EXACT_F32, load_is_refused(&p, VQ_ERR_MISMATCH, "exact is 0 in the file, 2 in");
    p = saved, p.n_layers = 1, load_is_refused(&p, VQ_ERR_MISMATCH, "n_layers is 2 in the file, 1 in the cache");
    p = saved, p.n_heads = 2, load_is_refused(&p, VQ_ERR_MISMATCH, "n_heads is 4 in the file, 2 in the cache");
    p = saved, p.keys = "f16", load_is_refused(&p, VQ_ERR_MISMATCH, "layer 0: keys are kivi in the file, f16 in");
    p = saved, p.values = "bf16", load_is_refused(&p, VQ_ERR_MISMATCH, "layer 0: values are f16 in the file, bf16 in");
    p = saved, p.layers = "1=f16", load_is_refused(&p, VQ_ERR_MISMATCH, "layer 1: keys are kivi in the file");
    p = saved, p.keys = "kivi:bits=4",
    load_is_refused(&p, VQ_ERR_MISMATCH,
                    "option bits of kivi is 2 in the file, 4 in the cache: open the cache with bits=2");
    p = saved, p.sinks = 9, load_is_refused(&p, VQ_ERR_MISMATCH, "layer 0: sinks is ");
    p = saved, p.residual = 64, load_is_refused(&p, VQ_ERR_MISMATCH, "layer 0: residual is ");
    p = saved, p.window = windows, load_is_refused(&p, VQ_ERR_MISMATCH, "layer 1: window is 0 in the file, 40 in");
    p = saved, p.n_ctx = 100, load_is_refused(&p, VQ_ERR_MISMATCH, "n_rows is 104, n_ctx of the cache is 100");

    /* what determines no meaning may differ */
    p = saved, p.n_ctx = 104, p.n_batch = 7;
    vq_error err;
    kv = open_with(&p);
    if (vq_kv_load(kv, saved_path, &err) != VQ_OK)
        fail_msg("%s", err.text);
    assert_int_equal(vq_kv_n_rows(kv, 1), 104);
    vq_kv_close(kv);
}

static void damaged_files_are_refused(void **state)
{
    (void)state;
    FILE *f = fopen(saved_path, "rb");
    assert_non_null(f);
    static unsigned char bytes[1 << 20];
    const size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    vq_kv_params p = base;
    p.keys = "kivi:bits=2";
    p.model_hash = 7;
    p.rope_base = 10000;
    vq_kv *kv = open_with(&p);
    vq_error err;
    assert_int_equal(vq_kv_restore(kv, "x", bytes, n, NULL, &err), VQ_OK);
    assert_int_equal(vq_kv_restore(kv, "x", bytes, 0, NULL, &err), VQ_ERR_MAGIC);
    for (size_t cut = 1; cut < n; cut += cut < 700 ? 1 : 997) {
        const vq_status status = vq_kv_restore(kv, "x", bytes, cut, NULL, &err);
        if (status != VQ_ERR_TRUNCATED && status != VQ_ERR_MAGIC)
            fail_msg("cut to %zu of %zu bytes: %s", cut, n, status == VQ_OK ? "loaded" : err.text);
    }
    for (size_t i = 0; i < n; i += i < 700 ? 1 : 499) {
        bytes[i] ^= 0x10;
        if (vq_kv_restore(kv, "x", bytes, n, NULL, &err) == VQ_OK)
            fail_msg("byte %zu changed: loaded", i);
        bytes[i] ^= 0x10;
    }
    bytes[n] = 0;
    assert_int_equal(vq_kv_restore(kv, "x", bytes, n + 1, NULL, &err), VQ_ERR_BOUNDS);
    bytes[n / 2] ^= 1;
    assert_int_equal(vq_kv_restore(kv, "x", bytes, n, NULL, &err), VQ_ERR_CHECKSUM);
    bytes[8] = 1;
    assert_int_equal(vq_kv_restore(kv, "x", bytes, n, NULL, &err), VQ_ERR_VERSION);
    assert_string_equal(err.text, "x: version is 1, this library reads 5");
    assert_int_equal(vq_kv_n_rows(kv, 0), 104); /* of the first, good one */
    assert_int_equal(vq_kv_load(kv, "no such file", &err), VQ_ERR_IO);
    assert_int_equal(vq_kv_save(kv, "no such folder/x", &err), VQ_ERR_IO);
    vq_kv_close(kv);
    remove(saved_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_checked),
        cmocka_unit_test(methods_of_layers_are_chosen),
        cmocka_unit_test(rows_that_do_not_fit_change_nothing),
        cmocka_unit_test(the_last_queries_suffice),
        cmocka_unit_test(dropped_rows_are_not_brought_back),
        cmocka_unit_test(pages_go_by_the_rows_that_are_left),
        cmocka_unit_test(mismatches_are_named),
        cmocka_unit_test(damaged_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
