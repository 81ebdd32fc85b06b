/* KIVI: keys per channel over 32 consecutive tokens, values per token over 32 channels, each group with its own zero
 * and scale in f16.  With pins, a granule of keys also holds its outlying rows exactly and out of the statistics. */
#ifndef VQ_KV_CODEC_KIVI_H
#define VQ_KV_CODEC_KIVI_H

#include "kv/codec.h"

enum { VQ_KIVI_GROUP = 32, VQ_KIVI_MAX_PINS = 4 };

/* bits 1..8; pins: rows held exactly a granule of keys. */
vq_status vq_codec_kivi_create(vq_codec_state **out, const vq_codec_env *env, const char *codec, uint32_t bits,
                               uint32_t pins, vq_error *err);
void vq_codec_kivi_destroy(vq_codec_state *s);
void vq_codec_kivi_page_bytes(const vq_codec_state *s, vq_page_bytes *out);
void vq_codec_kivi_encode(const vq_codec_state *s, void *page, uint32_t first, uint32_t n, const float *x);
void vq_codec_kivi_decode(const vq_codec_state *s, const void *page, uint32_t first, uint32_t n, float *x);
size_t vq_codec_kivi_query_bytes(const vq_codec_state *s);
void vq_codec_kivi_prepare(const vq_codec_state *s, void *query, const float *q);
void vq_codec_kivi_score(const vq_codec_state *s, const void *page, const vq_rows *rows, const void *queries,
                         uint32_t n_queries, float *out);
void vq_codec_kivi_mix(const vq_codec_state *s, const void *page, const vq_rows *rows, const float *weights,
                       uint32_t n_queries, float *acc);

#endif
