/* Rows copied from page to page, as merging sparse pages does, over every codec that allows it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "../support/codec.h"
#include "base/cpu.h"
#include "base/rng.h"

enum { MAX_D = 256, PAGE_FLOATS = VQ_PAGE_ROWS * MAX_D, N_COPIES = 24 };

static vq_kernels kernels;

static void encode_normals(const test_codec *t, unsigned char *page, float *x, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (uint32_t i = 0; i < VQ_PAGE_ROWS * t->env.d; i++)
        x[i] = (float)vq_rng_normal(&rng) * (float)(1 + i / t->env.d % 7);
    memset(page, 0, test_codec_page_bytes(t));
    t->codec->encode(t->state, page, 0, VQ_PAGE_ROWS, x);
}

/* Random rows go from one page to another, then within one page; `want` follows what the page must decode to. */
static void check_copies(const test_codec *t, const char *setting)
{
    static float x[PAGE_FLOATS], source[PAGE_FLOATS], want[PAGE_FLOATS], got[PAGE_FLOATS];
    const uint32_t d = t->env.d;
    unsigned char *src = malloc(test_codec_page_bytes(t)), *dst = malloc(test_codec_page_bytes(t));
    encode_normals(t, src, x, 1);
    encode_normals(t, dst, x, 2);
    t->codec->decode(t->state, src, 0, VQ_PAGE_ROWS, source);
    t->codec->decode(t->state, dst, 0, VQ_PAGE_ROWS, want);
    assert_memory_not_equal(source, want, (size_t)VQ_PAGE_ROWS * d * sizeof *want);
    vq_rng rng;
    vq_rng_seed(&rng, 3);
    for (uint32_t n = 0; n < 2 * N_COPIES; n++) {
        const uint32_t i = (uint32_t)(vq_rng_next(&rng) % VQ_PAGE_ROWS),
                       j = (uint32_t)(vq_rng_next(&rng) % VQ_PAGE_ROWS);
        const bool within = n >= N_COPIES;
        t->codec->copy_row(t->state, dst, i, within ? dst : src, j);
        memmove(want + (size_t)i * d, (within ? want : source) + (size_t)j * d, d * sizeof *want);
    }
    t->codec->decode(t->state, dst, 0, VQ_PAGE_ROWS, got);
    for (size_t i = 0; i < (size_t)VQ_PAGE_ROWS * d; i++)
        if (memcmp(&got[i], &want[i], sizeof got[i]) != 0)
            fail_msg("%s d=%u %s: row %zu, value %zu is %.9g, wanted %.9g", setting, d, t->env.keys ? "keys" : "values",
                     i / d, i % d, (double)got[i], (double)want[i]);
    free(src);
    free(dst);
}

/* Every value of the option `bits`, or the defaults where there is none; n counts what was checked. */
static void check_codec(const vq_codec *codec, uint32_t *n)
{
    static const uint32_t sizes[] = {8, 11, 64, 100, 256};
    const vq_kv_option_info *bits = NULL;
    for (size_t i = 0; i < codec->n_options; i++)
        if (strcmp(codec->options[i].name, "bits") == 0)
            bits = &codec->options[i];
    for (double b = bits ? bits->min : 0; b <= (bits ? bits->max : 0); b++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
            for (uint32_t keys = 0; keys < 2; keys++) {
                const test_option set[] = {{"bits", b}, {NULL, 0}};
                char setting[64];
                snprintf(setting, sizeof setting, "%s bits=%g", codec->name, b);
                test_codec t;
                const vq_status status = test_codec_open(&t, &kernels, codec->name, set, sizes[i], keys, 5, NULL);
                if (status == VQ_OK) {
                    check_copies(&t, setting);
                    ++*n;
                } else {
                    assert_int_equal(status, VQ_ERR_UNSUPPORTED);
                }
                test_codec_close(&t);
            }
}

static void copied_rows_decode_to_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < vq_n_codecs; i++) {
        uint32_t n = 0;
        if (!vq_codecs[i]->copy_row)
            continue;
        check_codec(vq_codecs[i], &n);
        printf("%s: %u settings\n", vq_codecs[i]->name, n);
        assert_true(n > 0);
    }
}

/* Where rows stand for themselves they can be moved: only codecs that store something for several rows may do without.
 */
static void rows_that_stand_alone_can_be_copied(void **state)
{
    (void)state;
    static const char *const alone[] = {
        "f16",        "bf16",   "f32", "int8", "turboquant-mse", "turboquant-prod", "turboquant-rvq",
        "polarquant", "rabitq", "qjl"};
    for (size_t i = 0; i < sizeof alone / sizeof alone[0]; i++) {
        bool found = false;
        for (size_t j = 0; j < vq_n_codecs; j++)
            found |= strcmp(vq_codecs[j]->name, alone[i]) == 0 && vq_codecs[j]->copy_row != NULL;
        if (!found)
            fail_msg("%s does not copy rows", alone[i]);
    }
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copied_rows_decode_to_the_same_bits),
        cmocka_unit_test(rows_that_stand_alone_can_be_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
