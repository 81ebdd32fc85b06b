/* f16 and bf16 conversions in plain C, round half to even, exact on every tier.  NaN stays NaN, overflow becomes
 * infinity; vq_f16_from_f32_clamped saturates at +-65504 instead (what codecs store as scales and norms). */
#ifndef VQ_BASE_HALF_H
#define VQ_BASE_HALF_H

#include <stdint.h>

uint16_t vq_f16_from_f32(float x);
uint16_t vq_f16_from_f32_clamped(float x);
float vq_f32_from_f16(uint16_t h);
uint16_t vq_bf16_from_f32(float x);
float vq_f32_from_bf16(uint16_t h);

#endif
