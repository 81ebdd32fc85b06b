/* Toy models as open models: through a file that is gone when the function returns. */
#ifndef TESTS_SUPPORT_TOY_OPEN_H
#define TESTS_SUPPORT_TOY_OPEN_H

#include "support/toy_model.h"
#include "veloxquant/model.h"

/* Says why and aborts when it does not open. */
vq_model *toy_open(const toy_params *p);

/* Any bytes; takes and frees b. */
vq_status toy_open_bytes(vq_model **out, gguf_buffer b, vq_error *err);

#endif
