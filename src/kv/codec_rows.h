/* Codecs that are one row code (quant/rowcode.h): everything but create and the names.  A page is the codes of its two
 * granules, one after the other, then 64 norms in f16. */
#ifndef VQ_KV_CODEC_ROWS_H
#define VQ_KV_CODEC_ROWS_H

#include "kv/codec.h"
#include "quant/rowcode.h"

typedef struct vq_rows_state {
    vq_arena arena; /* holds this struct too */
    vq_rotation rotation;
    vq_rowcode code;
} vq_rows_state;

typedef struct vq_rows_plan {
    const char *codec; /* its name, for messages */
    const vq_levels *levels;
    bool haar;           /* vq_rotation_layout */
    bool search;         /* vq_rowcode */
    vq_rowcode_fit keys; /* of the norms of keys; values take least squares */
} vq_rows_plan;

/* VQ_ERR_UNSUPPORTED outside of head sizes 8..512. */
vq_status vq_codec_rows_create(vq_codec_state **out, const vq_codec_env *env, const vq_rows_plan *plan, vq_error *err);
/* The head sizes that packed codecs take. */
vq_status vq_codec_check_d(const vq_codec_env *env, const char *codec, vq_error *err);

void vq_codec_rows_destroy(vq_codec_state *s);
void vq_codec_rows_page_bytes(const vq_codec_state *s, vq_page_bytes *out);
size_t vq_codec_rows_shared_bytes(const vq_codec_state *s);
void vq_codec_rows_encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x);
void vq_codec_rows_decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x);
size_t vq_codec_rows_query_bytes(const vq_codec_state *s);
void vq_codec_rows_prepare(const vq_codec_state *s, void *query, const float *q);
void vq_codec_rows_score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                         uint32_t n_queries, float *out);
void vq_codec_rows_mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                       uint32_t n_queries, float *acc);
void vq_codec_rows_copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j);
void vq_codec_rows_finish(const vq_codec_state *s, const float *acc, float *out);

#endif
