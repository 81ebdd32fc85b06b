/* VecInfer: sub-vectors of 4 or 8 values, each coded by one byte that names the nearest of 256 centroids of its place
 * (quant/product.h).  Codebooks are those of the calibration, for each layer, head and place.
 *
 * Keys are smoothed and rotated first (quant/smooth.h), queries the other way round.  A query makes a table of its
 * products with all centroids once; a row is then d / sub look-ups.  Values are coded as they are; their weights are
 * added up by centroid, and one product at the end makes a row of that.
 *
 * Page: the codes of two granules. */
#include <string.h>

#include "kv/codec_product.h"
#include "kv/codec_rows.h"
#include "quant/smooth.h"

enum { OPTION_BITS, N_OPTIONS };

static const vq_kv_option_info options[N_OPTIONS] = {
    [OPTION_BITS] = {.name = "bits",
                     .help = "bits of a value: 2 is 256 centroids for 4 values, 1 for 8",
                     .value = 2,
                     .min = 1,
                     .max = 2},
};

struct vecinfer_state {
    vq_product_state base;
    vq_smooth smooth; /* of keys */
};

static const struct vecinfer_state *state(const vq_codec_state *s)
{
    return (const struct vecinfer_state *)(const void *)s;
}

static struct vecinfer_state *layout(vq_arena *arena, const vq_codec_env *env, uint32_t sub, uint16_t **centroids)
{
    struct vecinfer_state *s = vq_arena_take(arena, 1, sizeof *s), at = {0};
    vq_codec_product_layout(&at.base, arena, env, sub, centroids);
    if (env->keys)
        vq_smooth_layout(&at.smooth, arena, env->d);
    if (s)
        *s = at;
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    uint32_t sub;
    VQ_TRY(vq_codec_check_d(env, "vecinfer", err));
    VQ_TRY(vq_codec_product_sub(&sub, env, env->options[OPTION_BITS], "vecinfer", err));
    const vq_calibration *c = env->calibration;
    const vq_statistic book = env->keys ? (sub == 4 ? VQ_KEY_SMOOTH_CODEBOOK_4 : VQ_KEY_SMOOTH_CODEBOOK_8)
                                        : (sub == 4 ? VQ_VALUE_CODEBOOK_4 : VQ_VALUE_CODEBOOK_8);
    vq_arena arena = {0};
    uint16_t *centroids;
    layout(&arena, env, sub, &centroids);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct vecinfer_state *s = layout(&arena, env, sub, &centroids);
    s->base.arena = arena;
    vq_product_take(centroids, sub, env->d / sub, vq_calibration_at(c, book, env->layer, env->head));
    const vq_status status =
        env->keys ? vq_smooth_make(&s->smooth, &env->kernels->codes,
                                   vq_calibration_at(c, VQ_KEY_LEAST, env->layer, env->head),
                                   vq_calibration_at(c, VQ_KEY_MOST, env->layer, env->head), env->layer, env->head, err)
                  : VQ_OK;
    if (status != VQ_OK) {
        vq_arena_free(&arena);
        return status;
    }
    *out = (vq_codec_state *)s;
    return VQ_OK;
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct vecinfer_state *c = state(s);
    return vq_product_bytes(&c->base.product) + (c->base.keys ? vq_smooth_bytes(&c->smooth) : 0);
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct vecinfer_state *c = state(s);
    const uint32_t d = c->base.d;
    if (!c->base.keys) {
        vq_codec_product_encode(s, page, first, n, x);
        return;
    }
    float smooth[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * d) {
        memcpy(smooth, x, (size_t)VQ_GRANULE * d * sizeof *x);
        for (uint32_t i = 0; i < VQ_GRANULE; i++)
            vq_smooth_key(&c->smooth, smooth + (size_t)i * d);
        vq_codec_product_encode(s, page, row, VQ_GRANULE, smooth);
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct vecinfer_state *c = state(s);
    vq_product_decode(&c->base.product, page, first, n, x);
    for (uint32_t i = 0; c->base.keys && i < n; i++)
        vq_smooth_back(&c->smooth, x + (size_t)i * c->base.d);
}

static size_t query_bytes(const vq_codec_state *s) { return vq_codec_product_table_floats(s) * sizeof(float); }

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct vecinfer_state *c = state(s);
    float x[VQ_MAX_HEAD_DIM];
    memcpy(x, q, c->base.d * sizeof *q);
    vq_smooth_query(&c->smooth, x);
    vq_product_table(&c->base.product, x, query);
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    for (uint32_t i = 0; i < n_queries; i++)
        vq_product_score(&state(s)->base.product, page, rows->n,
                         (const float *)queries + i * vq_codec_product_table_floats(s), out + (size_t)i * VQ_PAGE_ROWS);
}

const vq_codec vq_codec_vecinfer = {
    .name = "vecinfer",
    .summary = "product quantisation of smoothed keys and of values, scored by look-ups; needs codebooks",
    .paper = "Yao et al. 2025, VecInfer (arXiv 2510.06175)",
    .options = options,
    .n_options = N_OPTIONS,
    .sinks = 4,
    .residual = 32,
    .calibrated = true,
    .key_codebooks = VQ_CODEBOOKS_SMOOTH,
    .value_codebooks = VQ_CODEBOOKS_VALUES,
    .create = create,
    .destroy = vq_codec_product_destroy,
    .page_bytes = vq_codec_product_page_bytes,
    .shared_bytes = shared_bytes,
    .encode = encode,
    .decode = decode,
    .query_bytes = query_bytes,
    .prepare = prepare,
    .score = score,
    .acc_len = vq_codec_product_acc_len,
    .mix = vq_codec_product_mix,
    .finish = vq_codec_product_finish,
    .copy_row = vq_codec_product_copy_row,
};
