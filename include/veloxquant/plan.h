/* Plans: how a cache stores the keys and values of one model, with bits that differ by layer and kv head.
 *
 * A plan names one method for keys and one for values, and of methods with an option `bits` how many each head has.
 * Pages of heads then differ in size, and so does what a value costs; everything else is as with equal bits.  A saved
 * cache can be loaded with the same bits only. */
#ifndef VELOXQUANT_PLAN_H
#define VELOXQUANT_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "veloxquant/status.h"

enum { VQ_PLAN_METHOD_BYTES = 256 };

typedef struct vq_plan {
    uint32_t n_layers, n_kv_heads;
    uint64_t model_hash; /* of the model that it was made for; 0: any of this shape */
    char keys[VQ_PLAN_METHOD_BYTES], values[VQ_PLAN_METHOD_BYTES]; /* as vq_kv_params; their own bits are the default */
    double *key_bits, *value_bits; /* [n_layers][n_kv_heads]; 0: what the method's text says */
} vq_plan;

/* All bits 0, methods "f16", any model.  VQ_ERR_ARG for a shape that no model has. */
VQ_API vq_status vq_plan_new(vq_plan **out, uint32_t n_layers, uint32_t n_kv_heads, vq_error *err);
VQ_API void vq_plan_close(vq_plan *plan);

/* A plan is a small JSON file (docs/formats.md).  Names and bits are checked when a cache is opened with it. */
VQ_API vq_status vq_plan_open(vq_plan **out, const char *path, vq_error *err);
/* The same from bytes; `name` is used in messages. */
VQ_API vq_status vq_plan_read(vq_plan **out, const char *name, const void *bytes, size_t n_bytes, vq_error *err);
/* Written whole or not at all. */
VQ_API vq_status vq_plan_save(const vq_plan *plan, const char *path, vq_error *err);

#endif
