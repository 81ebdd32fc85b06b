/* Vector operations of the forward pass.  Any length, any alignment, nothing read or written past the ends.  On one
 * tier a row's result depends on that row alone.  Tiers agree bit for bit in rope and in the conversions (NaN stays
 * NaN), elsewhere within the bounds that vec_exp.h and tests/kernels/test_vec.c derive. */
#ifndef VQ_KERNELS_VEC_H
#define VQ_KERNELS_VEC_H

#include <stdbool.h>
#include <stdint.h>

typedef struct vq_vec_kernels {
    /* out = x / sqrt(mean(x^2) + eps) * weight; out may be x; weight NULL means ones */
    void (*rms_norm)(float *out, const float *x, const float *weight, uint32_t n, float eps);
    void (*add)(float *x, const float *y, uint32_t n);          /* x += y */
    void (*scale)(float *x, float s, uint32_t n);               /* x *= s */
    void (*silu_mul)(float *gate, const float *up, uint32_t n); /* gate = silu(gate) * up */
    void (*gelu_mul)(float *gate, const float *up, uint32_t n); /* tanh form of GELU */
    /* rotates pairs of x [n_heads][d]: (2i, 2i+1), or (i, i + n_rot/2) when `halves`; cos, sin [n_rot/2] */
    void (*rope)(float *x, const float *cos, const float *sin, uint32_t n_heads, uint32_t d, uint32_t n_rot,
                 bool halves);
    float (*max)(const float *x, uint32_t n); /* -inf for n = 0 */
    /* x = exp(x - max), returns the sum; x - max is at most 88; below -87.33 (also -inf) gives exactly 0 */
    float (*exp_sum)(float *x, float max, uint32_t n);
    float (*dot)(const float *x, const float *y, uint32_t n);
    void (*f16_to_f32)(float *out, const uint16_t *x, uint32_t n);
    void (*f32_to_f16)(uint16_t *out, const float *x, uint32_t n); /* half to even, saturating at +-65504 */
    void (*bf16_to_f32)(float *out, const uint16_t *x, uint32_t n);
    void (*f32_to_bf16)(uint16_t *out, const float *x, uint32_t n);
} vq_vec_kernels;

void vq_vec_kernels_init(vq_vec_kernels *k, uint32_t cpu);
void vq_vec_init_avx2(vq_vec_kernels *k);
void vq_vec_init_avx512(vq_vec_kernels *k);

#endif
