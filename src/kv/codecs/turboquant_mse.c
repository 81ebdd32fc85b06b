/* TurboQuant, the variant that minimises the squared error: a random rotation makes the coordinates of a unit vector
 * nearly independent normals, and each is coded by the Lloyd-Max quantiser of N(0, 1). */
#include "kv/codec_rows.h"

enum { OPTION_BITS, OPTION_HAAR, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits", .help = "bits of a coordinate", .value = 4, .min = 1, .max = 8},
    [OPTION_HAAR] = {.name = "haar",
                     .help = "1: a dense random orthogonal matrix instead of a Hadamard one; 'veloxquant precompute' "
                             "makes it quick to open",
                     .value = 0,
                     .min = 0,
                     .max = 1},
};

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    const uint32_t bits = (uint32_t)env->options[OPTION_BITS];
    const vq_rows_plan plan = {
        .codec = "turboquant-mse",
        .levels = &vq_levels_gaussian[bits - 1],
        .haar = env->options[OPTION_HAAR] != 0,
        /* Without bias, keys of 2 bits lose twice as much (KL divergence): a softmax feels the variance. */
        .keys = VQ_FIT_LEAST_SQUARES,
    };
    return vq_codec_rows_create(out, env, &plan, err);
}

const vq_codec vq_codec_turboquant_mse = {
    .name = "turboquant-mse",
    .summary = "rotated rows, Lloyd-Max codes, one f16 norm a row",
    .paper = "Zandieh, Daliri, Hadian, Mirrokni: TurboQuant, 2025 (arXiv:2504.19874)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .score_error = 0.015F, /* queries and weights of 8 bits, up to 4 bits of codes */
    .mix_error = 0.03F,
    .create = create,
    .destroy = vq_codec_rows_destroy,
    .page_bytes = vq_codec_rows_page_bytes,
    .shared_bytes = vq_codec_rows_shared_bytes,
    .encode = vq_codec_rows_encode,
    .decode = vq_codec_rows_decode,
    .query_bytes = vq_codec_rows_query_bytes,
    .prepare = vq_codec_rows_prepare,
    .score = vq_codec_rows_score,
    .mix = vq_codec_rows_mix,
    .finish = vq_codec_rows_finish,
    .copy_row = vq_codec_rows_copy_row,
};
