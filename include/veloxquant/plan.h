/* Plans: how a cache stores the keys and values of one model, with bits that differ by layer and kv head.
 *
 * A plan names one method for keys and one for values, and of methods with an option `bits` how many each head has.
 * Pages of heads then differ in size, and so does what a value costs; everything else is as with equal bits.  A saved
 * cache can be loaded with the same bits only. */
#ifndef VELOXQUANT_PLAN_H
#define VELOXQUANT_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/status.h"

struct vq_kv_params; /* veloxquant/kv.h */

enum { VQ_PLAN_METHOD_BYTES = 256, VQ_PLAN_PROBE_BITS = 2 };
#define VQ_PLAN_PROBE_METHOD "velox"

typedef struct vq_plan {
    uint32_t n_layers, n_kv_heads;
    uint64_t model_hash; /* of the model that it was made for; 0: any of this shape */
    char keys[VQ_PLAN_METHOD_BYTES], values[VQ_PLAN_METHOD_BYTES]; /* as vq_kv_params; their own bits are the default */
    double *key_bits, *value_bits;     /* [n_layers][n_kv_heads]; 0: what the method's text says */
    double *key_losses, *value_losses; /* [n_layers][n_kv_heads] what the model loses when this head alone is stored
                                          with VQ_PLAN_PROBE_METHOD, for choosing other plans; all 0: not measured */
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

/* ---- choosing one ----
 * Methods, and the bits of each layer, kv head and side, such that the expected loss is the smallest within a budget.
 * The loss is the KL divergence of the next token's distribution from that with an f16 cache, in nats: measured for
 * each method on two models (results/, tools/generate-rates), and shared out over heads.  How much each head of the
 * model at hand matters can be measured (vq_eval_head_losses); nothing cheaper was found to tell.  With a calibration
 * calibrated methods join; a method that was not measured counts by its errors on rows that the calibration describes.
 */
typedef struct vq_plan_wish {
    uint64_t most_bytes; /* what the cache takes from the system with n_ctx rows: codes, exact rows, tables, bases,
                            scratch; 0: no limit */
    double most_bits;    /* of a packed value, with scales and what a method holds once, at n_ctx rows; 0: no limit */
    const char *keys, *values; /* methods to keep to, whose bits alone are chosen; NULL: any that was measured */
    const double *key_losses, *value_losses; /* as in vq_plan; NULL: all heads count alike */
} vq_plan_wish;

typedef struct vq_plan_candidate {
    char keys[VQ_PLAN_METHOD_BYTES], values[VQ_PLAN_METHOD_BYTES];
    double key_bits, value_bits; /* the option, on average over heads; 0: the method has none */
    double bits;                 /* of a packed value, measured */
    uint64_t n_bytes;            /* vq_kv_most_bytes */
    double loss;
    bool fits; /* else these are the smallest that the methods can do */
} vq_plan_candidate;

/* What a cache with these methods, bits included, is expected to lose; NaN for what was not measured. */
VQ_API double vq_plan_expected_loss(const char *keys, const char *values);

enum { VQ_PLAN_MOST_CANDIDATES = 64 };

/* For a cache of these parameters, whose own methods and plan do not matter.  One of the two limits must be set.
 * candidates [VQ_PLAN_MOST_CANDIDATES] (may be NULL) get the best of each pair of methods: those that fit, with the
 * smallest loss first, then the others by size.  VQ_ERR_FULL, naming the smallest possible, when nothing fits. */
VQ_API vq_status vq_plan_choose(vq_plan **out, const struct vq_kv_params *params, const vq_plan_wish *wish,
                                vq_plan_candidate *candidates, size_t *n_candidates, vq_error *err);

#endif
