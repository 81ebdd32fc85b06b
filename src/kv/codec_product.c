#include "kv/codec_product.h"

static const vq_product_state *state(const vq_codec_state *s) { return (const vq_product_state *)(const void *)s; }

vq_status vq_codec_product_sub(uint32_t *sub, const vq_codec_env *env, double bits, const char *codec, vq_error *err)
{
    *sub = bits < 1.5 ? 8 : 4;
    if (env->d % *sub)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s: head size %u is no multiple of %u", codec, env->d, *sub);
    return VQ_OK;
}

void vq_codec_product_layout(vq_product_state *s, vq_arena *arena, const vq_codec_env *env, uint32_t sub,
                             uint16_t **centroids)
{
    s->d = env->d;
    s->keys = env->keys;
    *centroids = vq_arena_take(arena, (size_t)env->d * VQ_CENTROIDS, sizeof **centroids);
    s->product = (vq_product){.sub = sub, .n_sub = env->d / sub, .centroids = *centroids, .k = env->kernels};
}

void vq_codec_product_destroy(vq_codec_state *s)
{
    if (!s)
        return;
    vq_arena arena = state(s)->arena;
    vq_arena_free(&arena);
}

void vq_codec_product_page_bytes(const vq_codec_state *s, vq_page_bytes *out)
{
    *out = (vq_page_bytes){.codes = 2 * vq_product_granule_bytes(&state(s)->product)};
}

size_t vq_codec_product_table_floats(const vq_codec_state *s) { return (size_t)state(s)->product.n_sub * VQ_CENTROIDS; }

void vq_codec_product_encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x)
{
    const vq_product *p = &state(s)->product;
    for (uint32_t row = first; row < first + n; row += VQ_GRANULE, x += (size_t)VQ_GRANULE * state(s)->d)
        vq_product_encode(p, (uint8_t *)page + row / VQ_GRANULE * vq_product_granule_bytes(p), x);
}

size_t vq_codec_product_acc_len(const vq_codec_state *s) { return vq_codec_product_table_floats(s); }

void vq_codec_product_mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                          uint32_t n_queries, float *acc)
{
    for (uint32_t i = 0; i < n_queries; i++)
        vq_product_mix(&state(s)->product, page, rows->n, weights + (size_t)i * VQ_PAGE_ROWS,
                       acc + i * vq_codec_product_table_floats(s));
}

void vq_codec_product_finish(const vq_codec_state *s, const float *acc, float *out)
{
    vq_product_sum(&state(s)->product, acc, out);
}

void vq_codec_product_copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j)
{
    vq_product_copy_row(&state(s)->product, dst, i, src, j);
}
