/* One model's forward pass: scratch and kernels of one session. */
#ifndef VQ_MODEL_FORWARD_H
#define VQ_MODEL_FORWARD_H

#include "model/observer.h"
#include "veloxquant/kv.h"
#include "veloxquant/model.h"

typedef struct vq_forward vq_forward;

/* n_batch: most tokens of one run. exact: f32 activations. The model and the pool outlive it. */
vq_status vq_forward_open(vq_forward **out, const vq_model *model, vq_pool *pool, uint32_t n_batch, bool exact,
                          vq_error *err);
void vq_forward_close(vq_forward *f);

/* What later runs show; NULL: nothing, which costs nothing.  It must outlive them. */
void vq_forward_observe(vq_forward *f, const vq_observer *observer);

/* The shape of the cache that the model needs: fills layers, heads, head sizes, windows and RoPE (pointing into
 * the model), scale, model hash and RoPE base; leaves the rest of params alone. */
void vq_forward_kv_params(const vq_model *model, vq_kv_params *params);

/* Tokens ids [n] at positions pos .. pos + n - 1 through all layers, appending to kv.  Logits may then be asked for
 * rows [first, n), none when first = n: the last layer leaves out what only other rows would need.  VQ_ERR_ARG for an
 * id outside the vocabulary or more than n_batch tokens, VQ_ERR_FULL from kv; before the first append nothing has
 * changed. */
vq_status vq_forward_run(vq_forward *f, vq_kv *kv, const int32_t *ids, uint32_t pos, uint32_t n, uint32_t first,
                         vq_error *err);

/* Logits [n][n_vocab] of rows [first, first + n) of the last run, which must be among those asked for; at most
 * VQ_FORWARD_LOGITS rows a call. */
enum { VQ_FORWARD_LOGITS = 32 };
void vq_forward_logits(vq_forward *f, uint32_t first, uint32_t n, float *logits);

#endif
