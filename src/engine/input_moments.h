/* Second moments of what a model's matrices read, from a text: what quant/feedback.h needs. */
#ifndef VQ_ENGINE_INPUT_MOMENTS_H
#define VQ_ENGINE_INPUT_MOMENTS_H

#include "model/observer.h"
#include "veloxquant/model.h"

/* One matrix of sums.  Layers and kinds as the observer has them. */
typedef struct vq_input_moment {
    uint32_t layer;
    vq_input_kind kind;
    float *sum; /* [width][width] of vq_input_width, upper triangle; 64-byte aligned */
} vq_input_moment;

typedef struct vq_input_moments_params {
    uint32_t n_ctx; /* tokens of a context: the text is cut into contexts; 0: 1024, or the trained context if less */
    size_t most;    /* tokens at most; 0: all */
    vq_pool *pool;  /* may be NULL */
    bool (*progress)(void *arg, size_t done, size_t all); /* in tokens; may be NULL; false cancels */
    void *arg;
} vq_input_moments_params;

uint32_t vq_input_width(const vq_model *model, vq_input_kind kind);

/* Runs ids [n] through the model once and fills all of wanted [n_wanted] (any of the kinds of all layers but the output
 * head).  How many are asked for at once is a choice between memory and runs.  VQ_ERR_ARG for a layer that the model
 * does not have, or fewer than 64 tokens. */
vq_status vq_input_moments(const vq_model *model, const int32_t *ids, size_t n, const vq_input_moments_params *params,
                           const vq_input_moment *wanted, size_t n_wanted, vq_error *err);

#endif
