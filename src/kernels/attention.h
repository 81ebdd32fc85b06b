/* Scores and weighted sums over exact rows.  A query's result does not depend on how many are given at once. */
#ifndef VQ_KERNELS_ATTENTION_H
#define VQ_KERNELS_ATTENTION_H

#include <stdint.h>

typedef struct vq_attention_kernels {
    /* out[i][j] = q_i . k_j for q [nq][d], k [n][d]; rows of out are out_stride floats apart */
    void (*score_f16)(const float *q, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d, float *out,
                      uint32_t out_stride);
    void (*score_bf16)(const float *q, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d, float *out,
                       uint32_t out_stride);
    void (*score_f32)(const float *q, uint32_t nq, const float *k, uint32_t n, uint32_t d, float *out,
                      uint32_t out_stride);
    /* acc[i] += sum_j w[i][j] v_j for v [n][d], acc [nq][d]; rows of w are w_stride floats apart */
    void (*mix_f16)(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                    float *acc);
    void (*mix_bf16)(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                     float *acc);
    void (*mix_f32)(const float *w, uint32_t w_stride, uint32_t nq, const float *v, uint32_t n, uint32_t d, float *acc);
} vq_attention_kernels;

void vq_attention_kernels_init(vq_attention_kernels *k, uint32_t cpu);

#endif
