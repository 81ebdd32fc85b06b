/* VecInfer's transform of keys: channels are divided by the root of their largest size, so that none dwarfs the others,
 * and rotated; queries are multiplied instead, so that products stay what they are: (R L q) . (R k / L) = q . k. */
#ifndef VQ_QUANT_SMOOTH_H
#define VQ_QUANT_SMOOTH_H

#include "quant/rotation.h"

typedef struct vq_smooth {
    uint32_t d;
    float *scale; /* [d] L */
    vq_rotation rotation;
} vq_smooth;

/* Runs twice, like every layout. */
void vq_smooth_layout(vq_smooth *s, vq_arena *arena, uint32_t d);
/* From the ranges of channels, least and most [d].  The rotation is one for each (layer, head), not for each cache: a
 * codebook is trained behind it. */
vq_status vq_smooth_make(vq_smooth *s, const vq_codes_kernels *k, const float *least, const float *most, uint32_t layer,
                         uint32_t head, vq_error *err);
size_t vq_smooth_bytes(const vq_smooth *s);

/* In place, x [d], d <= VQ_SMOOTH_MOST_D. */
enum { VQ_SMOOTH_MOST_D = 512 };
void vq_smooth_key(const vq_smooth *s, float *x);
void vq_smooth_query(const vq_smooth *s, float *x);
void vq_smooth_back(const vq_smooth *s, float *x); /* a smoothed key to what it was */

#endif
