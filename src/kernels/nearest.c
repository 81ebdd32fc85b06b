/* Nearest codewords: the definitions. */
#include "kernels/nearest.h"

#include <math.h>

#include "base/cpu.h"

enum { LANES = VQ_NEAREST_LANES };

/* `d` is a constant where it is inlined for the usual lengths, so that the loop over it unrolls. */
static inline __attribute__((always_inline)) uint32_t nearest_of(const float *columns, const float *half, uint32_t k,
                                                                 uint32_t d, const float *x, float *score)
{
    float best[LANES];
    uint32_t at[LANES];
    for (uint32_t l = 0; l < LANES; l++) {
        best[l] = INFINITY;
        at[l] = 0;
    }
    for (uint32_t c = 0; c < k; c += LANES) {
        float v[LANES];
        for (uint32_t l = 0; l < LANES; l++)
            v[l] = half[c + l];
        for (uint32_t j = 0; j < d; j++)
            for (uint32_t l = 0; l < LANES; l++)
                v[l] -= x[j] * columns[(size_t)j * k + c + l];
        for (uint32_t l = 0; l < LANES; l++) {
            at[l] = v[l] < best[l] ? c : at[l];
            best[l] = v[l] < best[l] ? v[l] : best[l];
        }
    }
    uint32_t lane = 0;
    for (uint32_t l = 1; l < LANES; l++)
        if (best[l] < best[lane] || (best[l] == best[lane] && at[l] + l < at[lane] + lane))
            lane = l;
    *score = best[lane];
    return best[lane] < INFINITY ? at[lane] + lane : 0;
}

uint32_t vq_nearest(const float *columns, const float *half, uint32_t k, uint32_t d, const float *x, float *score)
{
    switch (d) {
    case 4: return nearest_of(columns, half, k, 4, x, score);
    case 8: return nearest_of(columns, half, k, 8, x, score);
    default: return nearest_of(columns, half, k, d, x, score);
    }
}

static void centroids_c(uint8_t *codes, const float *columns, const float *half, uint32_t d, const float *x,
                        size_t x_stride)
{
    float score;
    for (size_t i = 0; i < VQ_NEAREST_ROWS; i++)
        codes[i] = (uint8_t)vq_nearest(columns, half, VQ_NEAREST_CODES, d, x + i * x_stride, &score);
}

void vq_nearest_kernels_init(vq_nearest_kernels *k, uint32_t cpu)
{
    *k = (vq_nearest_kernels){.centroids = centroids_c};
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_nearest_kernels_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_nearest_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
