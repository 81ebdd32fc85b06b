#include "kv/dense.h"

#include <stdlib.h>
#include <string.h>

vq_status vq_dense_create(vq_codec_state **out, const vq_codec_env *env, vq_error *err)
{
    vq_dense *s = malloc(sizeof *s);
    *out = (vq_codec_state *)(void *)s;
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu bytes", sizeof *s);
    *s = (vq_dense){.kernels = env->kernels, .d = env->d, .keys = env->keys};
    return VQ_OK;
}

void vq_dense_destroy(vq_codec_state *s) { free(s); }

size_t vq_dense_shared_bytes(const vq_codec_state *s)
{
    (void)s;
    return sizeof(vq_dense);
}

uint32_t vq_dense_query_stride(const vq_codec_state *s) { return (vq_dense_of(s)->d + 15) / 16 * 16; }

size_t vq_dense_query_bytes(const vq_codec_state *s) { return vq_dense_query_stride(s) * sizeof(float); }

void vq_dense_prepare(const vq_codec_state *s, void *query, const float *q)
{
    memcpy(query, q, vq_dense_of(s)->d * sizeof(float));
}

void vq_dense_copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j, size_t value_bytes)
{
    const vq_dense *dense = vq_dense_of(s);
    const size_t row_step = (dense->keys ? 1 : dense->d) * value_bytes;
    const size_t column_step = (dense->keys ? VQ_PAGE_ROWS : 1) * value_bytes;
    unsigned char *to = (unsigned char *)dst + i * row_step;
    const unsigned char *from = (const unsigned char *)src + j * row_step;
    for (size_t c = 0; c < dense->d; c++)
        memmove(to + c * column_step, from + c * column_step, value_bytes);
}
