/* TurboQuant with two stages: b bits for the rotated coordinate, b bits for what is left of it.  Two scalar stages are
 * one quantiser of 2b bits, so this is a row code with other levels; the best it can do is the plain quantiser.
 *
 * The second stage of the method's original is one Laplacian quantiser for all residuals; ours takes the residual's
 * true deviation.  The fitted one is a quantiser of its own for every cell of the first stage. */
#include "kv/codec_rows.h"

enum { OPTION_BITS, OPTION_FITTED, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits", .help = "bits of a stage", .value = 2, .min = 1, .max = 4},
    [OPTION_FITTED] = {.name = "fitted",
                       .help = "1: second stages fitted to the cells of the first; 0: one Laplacian stage",
                       .value = 1,
                       .min = 0,
                       .max = 1},
};

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    const uint32_t bits = (uint32_t)env->options[OPTION_BITS];
    const vq_rows_plan plan = {
        .codec = "turboquant-rvq",
        .levels = env->options[OPTION_FITTED] != 0 ? &vq_levels_two_stage_fitted[bits - 1]
                                                   : &vq_levels_two_stage_seed[bits - 1],
    };
    return vq_codec_rows_create(out, env, &plan, err);
}

const vq_codec vq_codec_turboquant_rvq = {
    .name = "turboquant-rvq",
    .summary = "rotated rows, two scalar stages of b bits, one f16 norm a row",
    .paper = "VeloxQuant-MLX; after Zandieh et al.: TurboQuant, 2025 (arXiv:2504.19874)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .score_error = 0.015F,
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
