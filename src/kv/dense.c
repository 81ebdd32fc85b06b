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
