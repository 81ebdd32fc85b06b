/* Rows of a matrix in a model file, in the order in which our models want them. */
#ifndef VQ_FORMATS_ROWS_H
#define VQ_FORMATS_ROWS_H

#include "veloxquant/gguf.h"

/* Row `row` of tensor `index` as it lies in the file. */
const void *vq_gguf_raw_row(const vq_gguf *gguf, uint64_t index, uint64_t row);
/* Whether rows lie one after the other in that order. */
bool vq_gguf_rows_in_order(const vq_gguf *gguf, uint64_t index);

#endif
