/* Hyper-parameters by key: "ARCHITECTURE.NAME" with range checks.  Messages name key, value and limits. */
#ifndef VQ_MODEL_KEYS_H
#define VQ_MODEL_KEYS_H

#include "model/model.h"

/* `fallback` is taken when the key is absent; VQ_REQUIRED makes absence an error. */
#define VQ_REQUIRED UINT32_MAX
vq_status vq_key_u32(const vq_model *m, const char *name, uint32_t fallback, uint32_t least, uint32_t most,
                     uint32_t *out, vq_error *err);
/* NAN as fallback: required. */
vq_status vq_key_f32(const vq_model *m, const char *name, float fallback, float least, float most, float *out,
                     vq_error *err);
/* VQ_ERR_UNSUPPORTED when the key is there and not 0. */
vq_status vq_key_absent(const vq_model *m, const char *name, vq_error *err);
/* The value, or NULL. */
const vq_gguf_value *vq_key_find(const vq_model *m, const char *name);

#endif
