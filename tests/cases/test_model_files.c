/* gguf_ok: unusual but valid files load and give the right logits; gguf_heads: head sizes 8 to 128 run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "golden/golden.h"
#include "support/files.h"

static vq_status open_case(vq_model **out, const char *folder, const char *file, vq_error *err)
{
    char name[192];
    snprintf(name, sizeof name, "tests/cases/%s/%s", folder, file);
    return vq_model_open(out, source_path(name), err);
}

static void unusual_files_load(void **state)
{
    (void)state;
    static const char *const same[] = {"base_valid",          "ok1_align64_key",           "ok2_version2",
                                       "ok3_many_unknown_kv", "ok4_tensor_order_shuffled", "ok7_data_order_reversed",
                                       "ok8_trailing_bytes",  "ok6_tied_embeddings"};
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const bool tied = strstr(same[i], "tied") != NULL;
        char file[64];
        snprintf(file, sizeof file, "%s.gguf", same[i]);
        vq_model *model;
        vq_error err;
        if (open_case(&model, "gguf_ok", file, &err) != VQ_OK)
            fail_msg("%s", err.text);
        const uint32_t n_vocab = vq_model_get_info(model)->n_vocab;
        const int32_t ids[] = {3, 4, 5};
        float *logits = golden_logits(&(golden_run){.model = model, .exact = true, .cache = "f32"}, ids, 3);
        const float *last = logits + 2 * (size_t)n_vocab;
        uint32_t best = 0;
        for (uint32_t j = 1; j < n_vocab; j++)
            best = last[j] > last[best] ? j : best;
        /* reference.py in float64; with an f16 cache, other programs are 2e-4 away */
        if (best != (tied ? 5 : 31) || !(fabs(last[0] - (tied ? -0.81516527 : -0.21429747)) < 1e-5))
            fail_msg("%s: argmax %u, logit[0] %.6f", file, best, (double)last[0]);
        if (i == 0)
            hash = vq_model_hash(model);
        assert_true((vq_model_hash(model) == hash) == !tied); /* order, alignment and version are not the model */
        free(logits);
        vq_model_close(model);
    }
    vq_model *model;
    vq_error err = {0};
    assert_int_equal(open_case(&model, "gguf_ok", "ok5_metadata_only.gguf", &err), VQ_ERR_MISSING_TENSOR);
    assert_non_null(strstr(err.text, "token_embd.weight"));
}

static void all_head_sizes_run(void **state)
{
    (void)state;
    static const char *const files[] = {"hd8_h4_kv2",  "hd64_h2_kv1", "hd72_h2_kv2",  "hd80_h2_kv1", "hd80_h2_kv2",
                                        "hd96_h2_kv1", "hd96_h3_kv1", "hd100_h2_kv2", "hd128_h2_kv1"};
    const int32_t ids[] = {3, 7, 12, 9, 30, 3, 4, 5, 21, 17, 2, 8};
    enum { N = sizeof ids / sizeof *ids };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char file[64];
        snprintf(file, sizeof file, "%s.gguf", files[i]);
        vq_model *model;
        vq_error err;
        if (open_case(&model, "gguf_heads", file, &err) != VQ_OK)
            fail_msg("%s", err.text);
        golden_run run = {.model = model, .exact = true, .cache = "f32"};
        const size_t n_bytes = (size_t)N * vq_model_get_info(model)->n_vocab * sizeof(float);
        float *at_once = golden_logits(&run, ids, N);
        run.chunk = 5;
        float *in_chunks = golden_logits(&run, ids, N);
        assert_memory_equal(at_once, in_chunks, n_bytes);
        for (size_t j = 0; j < n_bytes / sizeof(float); j++)
            assert_true(isfinite(at_once[j]));
        free(at_once);
        free(in_chunks);
        vq_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unusual_files_load),
        cmocka_unit_test(all_head_sizes_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
