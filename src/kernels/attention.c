/* Attention over rows of floats: the definitions. */
#include "kernels/attention.h"

#include <math.h>
#include <stddef.h>

#include "base/cpu.h"
#include "base/half.h"

static float dot_f16(const float *q, const uint16_t *k, uint32_t d, uint32_t step)
{
    float sum = 0;
    for (uint32_t c = 0; c < d; c++)
        sum += q[c] * vq_f32_from_f16(k[(size_t)c * step]);
    return sum;
}

static float dot_bf16(const float *q, const uint16_t *k, uint32_t d, uint32_t step)
{
    float sum = 0;
    for (uint32_t c = 0; c < d; c++)
        sum += q[c] * vq_f32_from_bf16(k[(size_t)c * step]);
    return sum;
}

static float dot_f32(const float *q, const float *k, uint32_t d, uint32_t step)
{
    float sum = 0;
    for (uint32_t c = 0; c < d; c++)
        sum += q[c] * k[(size_t)c * step];
    return sum;
}

static void score_f16_c(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                        float *out, uint32_t out_stride)
{
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            out[(size_t)i * out_stride + j] = dot_f16(q + (size_t)i * q_stride, k + (size_t)j * d, d, 1);
}

static void score_bf16_c(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                         float *out, uint32_t out_stride)
{
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            out[(size_t)i * out_stride + j] = dot_bf16(q + (size_t)i * q_stride, k + (size_t)j * d, d, 1);
}

static void score_f32_c(const float *q, uint32_t q_stride, uint32_t nq, const float *k, uint32_t n, uint32_t d,
                        float *out, uint32_t out_stride)
{
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            out[(size_t)i * out_stride + j] = dot_f32(q + (size_t)i * q_stride, k + (size_t)j * d, d, 1);
}

static void score_cols_f16_c(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                             float *out, const void *next)
{
    (void)next;
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            out[(size_t)i * VQ_BLOCK_ROWS + j] = dot_f16(q + (size_t)i * q_stride, k + j, d, VQ_BLOCK_ROWS);
}

static void score_cols_bf16_c(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                              float *out, const void *next)
{
    (void)next;
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            out[(size_t)i * VQ_BLOCK_ROWS + j] = dot_bf16(q + (size_t)i * q_stride, k + j, d, VQ_BLOCK_ROWS);
}

static void score_cols_f32_c(const float *q, uint32_t q_stride, uint32_t nq, const float *k, uint32_t n, uint32_t d,
                             float *out, const void *next)
{
    (void)next;
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            out[(size_t)i * VQ_BLOCK_ROWS + j] = dot_f32(q + (size_t)i * q_stride, k + j, d, VQ_BLOCK_ROWS);
}

static void mix_f16_c(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                      float *acc, const void *next)
{
    (void)next;
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t c = 0; c < d; c++)
                acc[(size_t)i * d + c] += w[(size_t)i * w_stride + j] * vq_f32_from_f16(v[(size_t)j * d + c]);
}

static void mix_bf16_c(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                       float *acc, const void *next)
{
    (void)next;
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t c = 0; c < d; c++)
                acc[(size_t)i * d + c] += w[(size_t)i * w_stride + j] * vq_f32_from_bf16(v[(size_t)j * d + c]);
}

static void mix_f32_c(const float *w, uint32_t w_stride, uint32_t nq, const float *v, uint32_t n, uint32_t d,
                      float *acc, const void *next)
{
    (void)next;
    for (uint32_t i = 0; i < nq; i++)
        for (uint32_t j = 0; j < n; j++)
            for (uint32_t c = 0; c < d; c++)
                acc[(size_t)i * d + c] += w[(size_t)i * w_stride + j] * v[(size_t)j * d + c];
}

static void softmax_c(float *s, uint32_t n_blocks, uint32_t nq, const uint64_t *live, float *max, float *sum,
                      float *rescale)
{
    for (uint32_t i = 0; i < nq; i++) {
        float most = max[i];
        for (uint32_t b = 0; b < n_blocks; b++)
            for (uint32_t j = 0; j < VQ_BLOCK_ROWS; j++) {
                const size_t at = (size_t)b * nq + i;
                if (live[at] >> j & 1 && s[at * VQ_BLOCK_ROWS + j] > most)
                    most = s[at * VQ_BLOCK_ROWS + j];
            }
        rescale[i] = 1;
        if (most > max[i]) {
            if (max[i] != -INFINITY) /* else nothing has been summed up yet */
                rescale[i] = expf(max[i] - most);
            sum[i] *= rescale[i];
            max[i] = most;
        }
        float total = 0;
        for (uint32_t b = 0; b < n_blocks; b++) {
            const size_t at = (size_t)b * nq + i;
            float *x = s + at * VQ_BLOCK_ROWS;
            for (uint32_t j = 0; j < VQ_BLOCK_ROWS; j++) {
                x[j] = live[at] >> j & 1 ? expf(x[j] - most) : 0;
                total += x[j];
            }
        }
        sum[i] += total;
    }
}

void vq_attention_kernels_init(vq_attention_kernels *k, uint32_t cpu)
{
    *k = (vq_attention_kernels){
        .score_f16 = score_f16_c,
        .score_bf16 = score_bf16_c,
        .score_f32 = score_f32_c,
        .score_cols_f16 = score_cols_f16_c,
        .score_cols_bf16 = score_cols_bf16_c,
        .score_cols_f32 = score_cols_f32_c,
        .mix_f16 = mix_f16_c,
        .mix_bf16 = mix_bf16_c,
        .mix_f32 = mix_f32_c,
        .softmax = softmax_c,
    };
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_attention_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_attention_init_avx512(k);
#else
    (void)cpu;
#endif
}
