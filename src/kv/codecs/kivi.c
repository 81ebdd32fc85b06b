/* KIVI: keys are quantised per channel, since their outliers sit in channels, values per token. */
#include "kv/codec_kivi.h"

enum { OPTION_BITS, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits", .help = "bits of a code", .value = 4, .min = 1, .max = 8},
};

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    return vq_codec_kivi_create(out, env, "kivi", (uint32_t)env->options[OPTION_BITS], 0, err);
}

const vq_codec vq_codec_kivi = {
    .name = "kivi",
    .summary = "keys per channel over 32 tokens, values per token over 32 channels",
    .paper = "Liu, Yuan, Jin, Zhong, Xu, Braverman, Chen, Hu: KIVI, 2024 (arXiv:2402.02750)",
    .options = options,
    .n_options = N_OPTIONS,
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
