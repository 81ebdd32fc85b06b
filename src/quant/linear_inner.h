/* What the two encoders of quantised matrices share. */
#ifndef VQ_QUANT_LINEAR_INNER_H
#define VQ_QUANT_LINEAR_INNER_H

#include "quant/linear.h"

/* y [n_in] = a row, limited to what can be squared, rotated; other [n_in] is scratch. */
void vq_linear_rotate(const vq_linear *l, float *y, const float *x, float *other);
/* Codes [n_in] of a rotated row; returns its norm. */
uint16_t vq_linear_encode_rotated(const vq_linear *l, const float *y, uint8_t *codes, vq_row_error *error);
void vq_linear_put(const vq_linear *l, uint8_t *data, uint32_t row, const uint8_t *codes, uint16_t norm);
void vq_linear_clear_padding(const vq_linear *l, uint8_t *data);

#endif
