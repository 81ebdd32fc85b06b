/* What it costs when one matrix of a model has few bits: measured, by a run of a text for each. */
#ifndef VQ_ENGINE_SENSITIVITY_H
#define VQ_ENGINE_SENSITIVITY_H

#include "model/quantize.h"

enum { VQ_SENSITIVITY_LEAST = 32, VQ_SENSITIVITY_MOST = 2048 }; /* tokens */

/* As vq_sensitivity_source wants it; params: the model and the text.  losses [tensors of source]: the mean over tokens
 * of the KL divergence, in nats, from the source to the model in which that matrix alone has VQ_SENSITIVITY_BITS bits,
 * plainly rounded, with the rotation that params ask for. */
vq_status vq_sensitivity(const vq_quantize_params *params, const vq_gguf *source, const bool *wanted, double *losses,
                         vq_error *err);

#endif
