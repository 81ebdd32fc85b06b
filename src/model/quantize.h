/* What quantize.c and quantize_plan.c share: the type that each tensor of a file gets. */
#ifndef VQ_MODEL_QUANTIZE_H
#define VQ_MODEL_QUANTIZE_H

#include "formats/gguf_object.h"
#include "model/observer.h"
#include "quant/linear.h"
#include "veloxquant/reservoir.h"

/* types [n_tensors]: VQ_TYPE_VQ2 .. 4, VQ_TYPE_Q8_0, or the tensor's own (kept). */
vq_status vq_quantize_plan(vq_type *types, const vq_gguf *source, const vq_quantize_params *params, vq_error *err);

/* Relative error of n values at 2, 3, 4 bits when they are normal: what rows look like once they are rotated. */
double vq_quantize_error(uint32_t bits);

/* Where the factors of error feedback come from (quant/feedback.h).  The engine fills it: moments need runs of the
 * model.
 */
typedef struct vq_feedback_source {
    void *arg;
    /* The factor for inputs of one kind of a layer, good until the next call. */
    vq_status (*factor)(void *arg, uint32_t layer, vq_input_kind kind, const vq_rotation *rotation, const float **out,
                        vq_error *err);
} vq_feedback_source;

/* vq_quantize with feedback from there, or NULL. Tensors then go layer by layer. */
vq_status vq_quantize_file(const vq_gguf *source, const char *path, const vq_quantize_params *params,
                           const vq_feedback_source *feedback, vq_error *err);

#endif
