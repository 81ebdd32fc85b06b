/* Finding tensors by name and checking type and shape.  The first fault is kept; later calls do nothing, so that a
 * family's bind is a list. */
#ifndef VQ_MODEL_BIND_H
#define VQ_MODEL_BIND_H

#include "model/model.h"

typedef struct vq_binder {
    const vq_model *model;
    uint32_t layer;
    bool *used; /* [tensors of the file] */
    vq_status status;
    vq_error *err;
} vq_binder;

/* "blk.N.NAME.weight" as a matrix of n_out rows of n_in values. */
vq_matrix vq_bind_matrix(vq_binder *b, const char *name, uint32_t n_in, uint32_t n_out);
/* "blk.N.NAME" (give ".weight" or ".bias") as n floats, all finite. */
const float *vq_bind_vector(vq_binder *b, const char *name, uint32_t n);
/* The same; NULL when the file does not have it. */
const float *vq_bind_optional_vector(vq_binder *b, const char *name, uint32_t n);

/* What all families share: attn_norm, q, k, v, o; ffn_norm, gate, up, down. */
void vq_bind_attention(vq_binder *b, vq_layer *layer);
void vq_bind_ffn(vq_binder *b, vq_layer *layer);

#endif
