/* What quantize.c and quantize_plan.c share: the type that each tensor of a file gets. */
#ifndef VQ_MODEL_QUANTIZE_H
#define VQ_MODEL_QUANTIZE_H

#include "formats/gguf_object.h"
#include "veloxquant/reservoir.h"

/* types [n_tensors]: VQ_TYPE_VQ2 .. 4, VQ_TYPE_Q8_0, or the tensor's own (kept). */
vq_status vq_quantize_plan(vq_type *types, const vq_gguf *source, const vq_quantize_params *params, vq_error *err);

/* Relative error of n values at 2, 3, 4 bits when they are normal: what rows look like once they are rotated. */
double vq_quantize_error(uint32_t bits);

#endif
