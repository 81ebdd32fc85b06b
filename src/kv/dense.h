/* Pages of floats, shared by the codecs f16, bf16 and f32, which lose nothing but the precision of their type.
 *
 *     keys     [d][VQ_PAGE_ROWS]    by columns: a score is a chain of multiply-adds over channels, for 16 rows at once
 *     values   [VQ_PAGE_ROWS][d]    by rows
 */
#ifndef VQ_KV_DENSE_H
#define VQ_KV_DENSE_H

#include "kv/codec.h"

/* What the three structs behind vq_codec_state are. */
typedef struct vq_dense {
    const vq_kernels *kernels;
    uint32_t d;
    bool keys;
} vq_dense;

vq_status vq_dense_create(vq_codec_state **out, const vq_codec_env *env, vq_error *err);
void vq_dense_destroy(vq_codec_state *s);
static inline const vq_dense *vq_dense_of(const vq_codec_state *s) { return (const vq_dense *)(const void *)s; }
size_t vq_dense_shared_bytes(const vq_codec_state *s);
size_t vq_dense_query_bytes(const vq_codec_state *s);
uint32_t vq_dense_query_stride(const vq_codec_state *s); /* in floats */
void vq_dense_prepare(const vq_codec_state *s, void *query, const float *q);
/* vq_codec.copy_row for values of value_bytes. */
void vq_dense_copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j, size_t value_bytes);

#endif
