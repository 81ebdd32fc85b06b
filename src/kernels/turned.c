/* Vectors that turn, in plain C. */
#include "kernels/turned.h"

#include "base/cpu.h"
#include "kernels/turned_inner.h"

static float dot(const float *x, const float *y, uint32_t n)
{
    float part[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t p = 0; p < 8; p++)
            part[p] += x[i + p] * y[i + p];
    for (; i < n; i++)
        part[0] += x[i] * y[i];
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

static float products_c(float *pairs, const vq_turned_shape *s, const float *q, const float *n)
{
    const uint32_t step = vq_turned_step(s), sine = vq_turned_sine(s), apart = s->halves ? s->apart : 1;
    for (uint32_t f = 0; f < s->n_pairs; f++) {
        const uint32_t a = f * step, b = a + apart;
        pairs[a] = q[a] * n[a] + q[b] * n[b];
        pairs[a + sine] = q[b] * n[a] - q[a] * n[b];
    }
    if (!s->halves)
        return dot(q + 2 * s->n_pairs, n + 2 * s->n_pairs, s->d - 2 * s->n_pairs);
    const uint32_t first = s->n_pairs, second = s->apart + s->n_pairs;
    return dot(q + first, n + first, s->apart - first) + dot(q + second, n + second, s->d - second);
}

static void scores_c(float *out, size_t out_stride, const vq_turned_shape *s, const float *pairs, const float *still,
                     uint32_t n_rows, const int8_t (*table)[2][VQ_TURNED_HALF])
{
    const uint32_t step = vq_turned_step(s), sine = vq_turned_sine(s);
    for (uint32_t i = 0; i < n_rows; i++, out += out_stride, pairs += VQ_TURNED_PAIRS) {
        float even[VQ_TURNED_HALF] = {0}, odd[VQ_TURNED_HALF] = {0};
        for (uint32_t f = 0; f < s->n_pairs; f++)
            for (uint32_t m = 0; m < VQ_TURNED_HALF; m++) {
                even[m] += pairs[f * step] * (float)table[f][0][m];
                odd[m] += pairs[f * step + sine] * (float)table[f][1][m];
            }
        for (uint32_t m = 0; m < VQ_TURNED_HALF; m++) {
            out[VQ_TURNED_HALF - 1 - m] += (even[m] - odd[m]) * (1.0F / 127) + still[i];
            out[VQ_TURNED_HALF + m] += (even[m] + odd[m]) * (1.0F / 127) + still[i];
        }
    }
}

void vq_turned_kernels_init(vq_turned_kernels *k, uint32_t cpu)
{
    *k = (vq_turned_kernels){.products = products_c, .scores = scores_c};
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_turned_kernels_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_turned_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
