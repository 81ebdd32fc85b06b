/* VecInfer: sub-vectors of 4 or 8 values, each coded by one byte that names the nearest of 256 centroids of its place
 * (quant/product.h).  Codebooks are those of the calibration, for each layer, head and place.
 *
 * Keys are smoothed and rotated first (quant/smooth.h), queries the other way round.  A query makes a table of its
 * products with all centroids once; a row is then d / sub look-ups.  Values are coded as they are; their weights are
 * added up by centroid, and one product at the end makes a row of that.
 *
 * Page: the codes of two granules. */
#include <stdlib.h>
#include <string.h>

#include "kv/codec_rows.h"
#include "quant/product.h"
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
    vq_arena arena; /* holds this struct too */
    uint32_t d;
    bool keys;
    vq_smooth smooth; /* of keys */
    vq_product product;
};

static const struct vecinfer_state *state(const vq_codec_state *s)
{
    return (const struct vecinfer_state *)(const void *)s;
}

static struct vecinfer_state *layout(vq_arena *arena, const vq_codec_env *env, uint32_t sub, uint16_t **centroids)
{
    struct vecinfer_state *s = vq_arena_take(arena, 1, sizeof *s), at = {.d = env->d, .keys = env->keys};
    at.product = (vq_product){.sub = sub, .n_sub = env->d / sub, .k = &env->kernels->vec};
    *centroids = vq_arena_take(arena, (size_t)env->d * VQ_CENTROIDS, sizeof **centroids);
    at.product.centroids = *centroids;
    if (env->keys)
        vq_smooth_layout(&at.smooth, arena, env->d);
    if (s)
        *s = at;
    return s;
}

static vq_status create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    *out = NULL;
    VQ_TRY(vq_codec_check_d(env, "vecinfer", err));
    const uint32_t sub = env->options[OPTION_BITS] < 1.5 ? 8 : 4;
    if (env->d % sub)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "vecinfer: head size %u is no multiple of %u", env->d, sub);
    const vq_calibration *c = env->calibration;
    const vq_statistic book = env->keys ? (sub == 4 ? VQ_KEY_SMOOTH_CODEBOOK_4 : VQ_KEY_SMOOTH_CODEBOOK_8)
                                        : (sub == 4 ? VQ_VALUE_CODEBOOK_4 : VQ_VALUE_CODEBOOK_8);
    vq_arena arena = {0};
    uint16_t *centroids;
    layout(&arena, env, sub, &centroids);
    VQ_TRY(vq_arena_alloc(&arena, err));
    struct vecinfer_state *s = layout(&arena, env, sub, &centroids);
    s->arena = arena;
    vq_product_take(centroids, sub, s->product.n_sub, vq_calibration_at(c, book, env->layer, env->head));
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

static void destroy(vq_codec_state *s)
{
    if (!s)
        return;
    vq_arena arena = state(s)->arena;
    vq_arena_free(&arena);
}

static void page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){.codes = 2 * vq_product_granule_bytes(&state(s)->product)};
}

static size_t shared_bytes(const vq_codec_state *s)
{
    const struct vecinfer_state *c = state(s);
    return vq_product_bytes(&c->product) + (c->keys ? vq_smooth_bytes(&c->smooth) : 0);
}

static void encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const struct vecinfer_state *c = state(s);
    float smooth[VQ_GRANULE * VQ_MAX_HEAD_DIM];
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * c->d) {
        if (c->keys) {
            memcpy(smooth, x, (size_t)VQ_GRANULE * c->d * sizeof *x);
            for (uint32_t i = 0; i < VQ_GRANULE; i++)
                vq_smooth_key(&c->smooth, smooth + (size_t)i * c->d);
        }
        vq_product_encode(&c->product, (uint8_t *)page + row / VQ_GRANULE * vq_product_granule_bytes(&c->product),
                          c->keys ? smooth : x);
    }
}

static void decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x)
{
    const struct vecinfer_state *c = state(s);
    vq_product_decode(&c->product, page, first, n, x);
    for (uint32_t i = 0; c->keys && i < n; i++)
        vq_smooth_back(&c->smooth, x + (size_t)i * c->d);
}

static size_t table_floats(const struct vecinfer_state *c) { return (size_t)c->product.n_sub * VQ_CENTROIDS; }

static size_t query_bytes(const vq_codec_state *s) { return table_floats(state(s)) * sizeof(float); }

static void prepare(const vq_codec_state *s, void *query, const float *q)
{
    const struct vecinfer_state *c = state(s);
    float x[VQ_MAX_HEAD_DIM];
    memcpy(x, q, c->d * sizeof *q);
    vq_smooth_query(&c->smooth, x);
    vq_product_table(&c->product, x, query);
}

static void score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                  uint32_t n_queries, float *out)
{
    const struct vecinfer_state *c = state(s);
    for (uint32_t i = 0; i < n_queries; i++)
        vq_product_score(&c->product, page, rows->n, (const float *)queries + i * table_floats(c),
                         out + (size_t)i * VQ_PAGE_ROWS);
}

static size_t acc_len(const vq_codec_state *s) { return table_floats(state(s)); }

static void mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                uint32_t n_queries, float *acc)
{
    const struct vecinfer_state *c = state(s);
    for (uint32_t i = 0; i < n_queries; i++)
        vq_product_mix(&c->product, page, rows->n, weights + (size_t)i * VQ_PAGE_ROWS, acc + i * table_floats(c));
}

static void finish(const vq_codec_state *s, const float *acc, float *out)
{
    vq_product_sum(&state(s)->product, acc, out);
}

static void copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    vq_product_copy_row(&state(s)->product, dst, i, src, j);
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
    .destroy = destroy,
    .page_bytes = page_bytes,
    .shared_bytes = shared_bytes,
    .encode = encode,
    .decode = decode,
    .query_bytes = query_bytes,
    .prepare = prepare,
    .score = score,
    .acc_len = acc_len,
    .mix = mix,
    .finish = finish,
    .copy_row = copy_row,
};
