/* Vector operations of the forward pass: the definitions.  Written so that a compiler turns the element-wise loops into
 * baseline SIMD; tiers replace what is hot.  Sums are kept in sixteen (or eight) interleaved parts for the same
 * reason. */
#include "kernels/vec.h"

#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "base/half.h"
#include "kernels/vec_exp.h"

enum { N_PARTS = 16 };

static inline float exp_f32(float x)
{
    const float t = x < VQ_EXP_LOWEST ? VQ_EXP_LOWEST : x;
    const float shifted = t * VQ_EXP_LOG2E + VQ_EXP_ROUND;
    const float n = shifted - VQ_EXP_ROUND;
    const float r = (t - n * VQ_EXP_LN2_HIGH) - n * VQ_EXP_LN2_LOW;
    const float p = 1 + r * (VQ_EXP_C1 + r * (VQ_EXP_C2 + r * (VQ_EXP_C3 + r * (VQ_EXP_C4 + r * VQ_EXP_C5))));
    uint32_t bits, exponent;
    memcpy(&bits, &p, 4);
    memcpy(&exponent, &shifted, 4);
    bits += exponent << 23;
    float y;
    memcpy(&y, &bits, 4);
    return x < VQ_EXP_LOWEST ? 0 : y;
}

/* x times the logistic function of u.  The exponential is taken of -|u|, so nothing overflows. */
static inline float gate(float x, float u)
{
    const float e = exp_f32(-fabsf(u));
    return x * (u < 0 ? e : 1) / (1 + e);
}

static void rms_norm_c(float *out, const float *x, const float *weight, uint32_t n, float eps)
{
    double part[8] = {0}; /* doubles: squares of large activations stay finite, and the order hardly matters */
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t j = 0; j < 8; j++)
            part[j] += (double)x[i + j] * x[i + j];
    for (uint32_t j = 0; i + j < n; j++)
        part[j] += (double)x[i + j] * x[i + j];
    const double sum = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
    const float inv = n == 0 ? 0 : (float)(1 / sqrt(sum / n + eps));
    if (weight == NULL)
        for (i = 0; i < n; i++)
            out[i] = x[i] * inv;
    else
        for (i = 0; i < n; i++)
            out[i] = x[i] * inv * weight[i];
}

static void add_c(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void scale_c(float *x, float s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] *= s;
}

static void silu_mul_c(float *x, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = gate(x[i], x[i]) * up[i];
}

static void gelu_mul_c(float *x, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = gate(x[i], x[i] * (VQ_GELU_A + VQ_GELU_B * (x[i] * x[i]))) * up[i];
}

static void rope_c(float *x, const float *cos, const float *sin, uint32_t n_heads, uint32_t d, uint32_t n_rot,
                   bool halves)
{
    const uint32_t n_pairs = n_rot / 2, apart = halves ? n_pairs : 1, step = halves ? 1 : 2;
    for (uint32_t h = 0; h < n_heads; h++, x += d)
        for (uint32_t i = 0; i < n_pairs; i++) {
            float *a = x + (size_t)step * i, *b = a + apart;
            const float va = *a, vb = *b;
            *a = va * cos[i] - vb * sin[i];
            *b = va * sin[i] + vb * cos[i];
        }
}

static float max_c(const float *x, uint32_t n)
{
    float most = -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

static float sum_parts(const float *part)
{
    float s[N_PARTS];
    memcpy(s, part, sizeof s);
    for (uint32_t width = N_PARTS / 2; width > 0; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            s[j] += s[j + width];
    return s[0];
}

static float exp_sum_c(float *x, float max, uint32_t n)
{
    float part[N_PARTS] = {0};
    uint32_t i = 0;
    for (; i + N_PARTS <= n; i += N_PARTS)
        for (uint32_t j = 0; j < N_PARTS; j++) {
            x[i + j] = exp_f32(x[i + j] - max);
            part[j] += x[i + j];
        }
    for (uint32_t j = 0; i + j < n; j++) {
        x[i + j] = exp_f32(x[i + j] - max);
        part[j] += x[i + j];
    }
    return sum_parts(part);
}

static float dot_c(const float *x, const float *y, uint32_t n)
{
    float part[N_PARTS] = {0};
    uint32_t i = 0;
    for (; i + N_PARTS <= n; i += N_PARTS)
        for (uint32_t j = 0; j < N_PARTS; j++)
            part[j] += x[i + j] * y[i + j];
    for (uint32_t j = 0; i + j < n; j++)
        part[j] += x[i + j] * y[i + j];
    return sum_parts(part);
}

static void f16_to_f32_c(float *out, const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = vq_f32_from_f16(x[i]);
}

static void f32_to_f16_c(uint16_t *out, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = vq_f16_from_f32_clamped(x[i]);
}

static void bf16_to_f32_c(float *out, const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = vq_f32_from_bf16(x[i]);
}

static void f32_to_bf16_c(uint16_t *out, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = vq_bf16_from_f32(x[i]);
}

void vq_vec_kernels_init(vq_vec_kernels *k, uint32_t cpu)
{
    *k = (vq_vec_kernels){
        .rms_norm = rms_norm_c,
        .add = add_c,
        .scale = scale_c,
        .silu_mul = silu_mul_c,
        .gelu_mul = gelu_mul_c,
        .rope = rope_c,
        .max = max_c,
        .exp_sum = exp_sum_c,
        .dot = dot_c,
        .f16_to_f32 = f16_to_f32_c,
        .f32_to_f16 = f32_to_f16_c,
        .bf16_to_f32 = bf16_to_f32_c,
        .f32_to_bf16 = f32_to_bf16_c,
    };
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_vec_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_vec_init_avx512(k);
#else
    (void)cpu;
#endif
}
