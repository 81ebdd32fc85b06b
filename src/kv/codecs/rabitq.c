/* RaBitQ, extended to b bits: the rotated row is replaced by the grid point of largest cosine, and the factor
 * |k|^2 / <o, k> makes <q, k^> an unbiased estimate.  The centre is 0: there is no calibration here.  Values take the
 * factor of least squares instead. */
#include "kv/codec_rows.h"

enum { OPTION_BITS, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits", .help = "bits of a coordinate", .value = 4, .min = 1, .max = 8},
};

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    const uint32_t bits = (uint32_t)env->options[OPTION_BITS];
    const vq_rows_plan plan = {
        .codec = "rabitq",
        .levels = &vq_levels_uniform[bits - 1],
        .search = true,
        .keys = VQ_FIT_UNBIASED,
    };
    return vq_codec_rows_create(out, env, &plan, err);
}

const vq_codec vq_codec_rabitq = {
    .name = "rabitq",
    .summary = "rotated rows on a uniform grid, one unbiased f16 factor a row",
    .paper = "Gao, Long: RaBitQ, 2024 (arXiv:2405.12497); Gao et al.: extended RaBitQ, 2024 (arXiv:2409.09913)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .unbiased = true,
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
