/* What quantize.c and quantize_plan.c share: the type that each tensor of a file gets. */
#ifndef VQ_MODEL_QUANTIZE_H
#define VQ_MODEL_QUANTIZE_H

#include "formats/gguf_object.h"
#include "model/observer.h"
#include "quant/linear.h"
#include "veloxquant/reservoir.h"

/* Where a matrix of a layer stands in vq_layer (an offset), and what it reads; false for any other tensor. */
bool vq_quantize_place(vq_str name, uint32_t *layer, vq_input_kind *kind, size_t *at);

/* What quantising each matrix alone costs: losses [n_tensors] at VQ_SENSITIVITY_BITS, finite and not negative, of those
 * that are wanted [n_tensors].  The engine fills it: it takes runs of the model. */
typedef struct vq_sensitivity_source {
    void *arg;
    vq_status (*measure)(void *arg, const vq_gguf *source, const bool *wanted, double *losses, vq_error *err);
} vq_sensitivity_source;

enum { VQ_SENSITIVITY_BITS = 2 };

/* types [n_tensors]: VQ_TYPE_VQ2 .. 4, VQ_TYPE_Q8_0, or the tensor's own (kept).  losses [n_tensors]: what was
 * measured, NAN where nothing was.  sensitivity NULL: averages look at sizes alone. */
vq_status vq_quantize_plan(vq_type *types, double *losses, const vq_gguf *source, const vq_quantize_params *params,
                           const vq_sensitivity_source *sensitivity, vq_error *err);

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

/* vq_quantize with feedback (tensors then go layer by layer) and sensitivity from there; NULL: without. */
vq_status vq_quantize_file(const vq_gguf *source, const char *path, const vq_quantize_params *params,
                           const vq_feedback_source *feedback, const vq_sensitivity_source *sensitivity, vq_error *err);

#endif
