/* KIVI whose sink tokens stay exact: the first rows of the text, and in every granule of keys the rows of largest norm
 * (the rule of the original), which would stretch the range of every channel they share a group with.  Values need
 * no pins: their groups are a token's own. */
#include "kv/codec_kivi.h"

enum { OPTION_BITS, OPTION_PINS, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits", .help = "bits of a code", .value = 4, .min = 1, .max = 8},
    [OPTION_PINS] = {.name = "pins",
                     .help = "rows of largest norm held exactly in every 32 keys (half a bit a value each)",
                     .value = 1,
                     .min = 0,
                     .max = VQ_KIVI_MAX_PINS},
};

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    return vq_codec_kivi_create(out, env, "kivi-sink", (uint32_t)env->options[OPTION_BITS],
                                (uint32_t)env->options[OPTION_PINS], err);
}

const vq_codec vq_codec_kivi_sink = {
    .name = "kivi-sink",
    .summary = "KIVI with the first rows and the outlying keys held exactly",
    .paper = "Su, Yuan: KVSink, 2025 (arXiv:2508.04257), on KIVI (arXiv:2402.02750)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .score_error = 5e-4F,
    .mix_error = 5e-4F,
    .create = create,
    .destroy = vq_codec_kivi_destroy,
    .page_bytes = vq_codec_kivi_page_bytes,
    .encode = vq_codec_kivi_encode,
    .decode = vq_codec_kivi_decode,
    .query_bytes = vq_codec_kivi_query_bytes,
    .prepare = vq_codec_kivi_prepare,
    .score = vq_codec_kivi_score,
    .mix = vq_codec_kivi_mix,
};
