/* One codec state with what is needed to use it: the hooks that the codec has, and for those that it lacks the generic
 * ones, which decode a tile of rows into L1 and run the f32 kernels on it. */
#ifndef VQ_KV_CODEC_GENERIC_H
#define VQ_KV_CODEC_GENERIC_H

#include "kv/codec.h"

typedef struct vq_side {
    const vq_codec *codec;
    vq_codec_state *state;
    const vq_kernels *kernels;
    uint32_t d;
    const vq_kv_rope *rope; /* of keys that the codec holds as they were before RoPE; NULL: of no others */
} vq_side;

uint32_t vq_side_granule(const vq_side *side);
size_t vq_side_shared_bytes(const vq_side *side);
size_t vq_side_query_bytes(const vq_side *side); /* a multiple of 64 */
size_t vq_side_acc_len(const vq_side *side);
bool vq_side_copies_rows(const vq_side *side);
uint32_t vq_side_retrieves(const vq_side *side);
/* Turns rows x [n][d] to their positions, or back; and one row by any angle, in positions. */
void vq_turn_rows(const vq_kv_rope *rope, const vq_kernels *k, const uint32_t *pos, uint32_t n, bool back, uint32_t d,
                  float *x);
void vq_turn_by(const vq_kv_rope *rope, const vq_kernels *k, double n_positions, uint32_t d, float *x);

/* Rows as attention sees them, which stand at pos [n]; x is overwritten by encode. */
void vq_side_encode(const vq_side *side, void *page, uint32_t first, uint32_t n, float *x, const uint32_t *pos);
void vq_side_decode(const vq_side *side, const void *page, uint32_t first, uint32_t n, float *x, const uint32_t *pos);
void vq_side_prepare(const vq_side *side, void *query, const float *q); /* of codecs that don't ask where it stands */
void vq_side_prepare_at(const vq_side *side, void *query, const float *q, uint32_t pos);
void vq_side_score(const vq_side *side, const void *page, const vq_rows *rows, const void *queries, uint32_t n_queries,
                   float *out);
void vq_side_mix(const vq_side *side, const void *page, const vq_rows *rows, const float *weights, uint32_t n_queries,
                 float *acc);
void vq_side_finish(const vq_side *side, const float *acc, float *out);

#endif
