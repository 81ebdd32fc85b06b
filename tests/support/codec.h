/* Making a codec by name with a few options set, for tests. */
#ifndef TESTS_SUPPORT_CODEC_H
#define TESTS_SUPPORT_CODEC_H

#include <stdlib.h>
#include <string.h>

#include "kv/codec_generic.h"
#include "support/calibration.h"

typedef struct test_codec {
    const vq_codec *codec;
    vq_codec_state *state;
    vq_side side; /* the same with generic hooks where the codec has none */
    vq_page_bytes bytes;
    vq_method method;
    vq_codec_env env;
} test_codec;

typedef struct test_option {
    const char *name;
    double value;
} test_option;

/* A name, or the text of a method, and NULL-terminated options; returns what create says. */
static inline vq_status test_codec_open_calibrated(test_codec *t, const vq_kernels *k, const char *name,
                                                   const test_option *set, uint32_t d, bool keys, uint64_t seed,
                                                   const vq_calibration *calibration, vq_error *err)
{
    memset(t, 0, sizeof *t);
    VQ_TRY(vq_method_parse(&t->method, name, err));
    t->codec = t->method.codec;
    for (size_t i = 0; i < t->codec->n_options; i++)
        for (const test_option *o = set; o && o->name; o++)
            if (strcmp(o->name, t->codec->options[i].name) == 0)
                t->method.values[i] = o->value;
    t->env = (vq_codec_env){.d = d,
                            .keys = keys,
                            .seed = seed,
                            .options = t->method.values,
                            .calibration = calibration,
                            .inner = t->method.inner,
                            .inner_options = t->method.inner_values,
                            .kernels = k};
    VQ_TRY(t->codec->create(&t->state, &t->env, err));
    t->codec->page_bytes(t->state, &t->bytes);
    t->side = (vq_side){.codec = t->codec, .state = t->state, .kernels = k, .d = d};
    return VQ_OK;
}

/* Where a codec needs a calibration it gets a synthetic one, which is gone when create has returned. */
static inline vq_status test_codec_open(test_codec *t, const vq_kernels *k, const char *name, const test_option *set,
                                        uint32_t d, bool keys, uint64_t seed, vq_error *err)
{
    vq_method m;
    VQ_TRY(vq_method_parse(&m, name, err));
    const vq_codec *asks = m.inner ? m.inner : m.codec;
    const vq_calibration_info info = {.n_layers = 1,
                                      .n_heads = 1,
                                      .n_kv_heads = 1,
                                      .d_k = d,
                                      .d_v = d,
                                      .codebooks = keys ? asks->key_codebooks : asks->value_codebooks};
    vq_calibration *calibration = d <= VQ_MAX_HEAD_DIM ? toy_calibration(&info, 1) : NULL;
    const vq_status status = test_codec_open_calibrated(t, k, name, set, d, keys, seed, calibration, err);
    vq_calibration_close(calibration);
    return status;
}

static inline void test_codec_close(test_codec *t)
{
    if (t->codec)
        t->codec->destroy(t->state);
    t->state = NULL;
}

static inline size_t test_codec_page_bytes(const test_codec *t) { return t->bytes.codes + t->bytes.scales; }

#endif
