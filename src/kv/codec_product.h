/* What codecs of product codes (quant/product.h) share.  A page is the codes of its two granules.  Weighted sums are
 * kept by centroid until the query is finished. */
#ifndef VQ_KV_CODEC_PRODUCT_H
#define VQ_KV_CODEC_PRODUCT_H

#include "base/arena.h"
#include "kv/codec.h"
#include "quant/product.h"

/* The beginning of such a codec's state. */
typedef struct vq_product_state {
    vq_arena arena; /* holds the whole state */
    uint32_t d;
    bool keys;
    vq_product product;
} vq_product_state;

/* Sub-vectors for the option bits, 1 or 2; VQ_ERR_UNSUPPORTED where they don't divide the head size. */
vq_status vq_codec_product_sub(uint32_t *sub, const vq_codec_env *env, double bits, const char *codec, vq_error *err);
/* Takes the centroids' room. Runs twice, like every layout. */
void vq_codec_product_layout(vq_product_state *s, vq_arena *arena, const vq_codec_env *env, uint32_t sub,
                             uint16_t **centroids);

void vq_codec_product_destroy(vq_codec_state *s);
void vq_codec_product_page_bytes(const vq_codec_state *s, vq_page_bytes *out);
size_t vq_codec_product_table_floats(const vq_codec_state *s);
/* Of whole granules of rows as they are coded. */
void vq_codec_product_encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x);
size_t vq_codec_product_acc_len(const vq_codec_state *s);
void vq_codec_product_mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                          uint32_t n_queries, float *acc);
void vq_codec_product_finish(const vq_codec_state *s, const float *acc, float *out);
void vq_codec_product_copy_row(const vq_codec_state *s, void *dst, uint32_t i, const void *src, uint32_t j);

#endif
