/* Folded queries in plain C: what every tier has to give, bit for bit. */
#include "kernels/folded.h"

#include <stdlib.h>

#include "base/cpu.h"
#include "kernels/codes.h"
#include "kernels/folded_inner.h"

const int16_t vq_folded_scales[16] = {32767, 27554, 23170, 19483, 16384, 13777, 11585, 9742,
                                      8192,  6888,  5792,  4871,  4096,  3444,  2896,  2435};

static int16_t high(int32_t x, int32_t y) { return (int16_t)((x * y + (1 << 14)) >> 15); }

static void turn(int16_t *x, uint32_t n)
{
    for (uint32_t h = 1; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j++) {
                const int16_t a = x[j], b = x[j + h];
                x[j] = (int16_t)(a + b);
                x[j + h] = (int16_t)(a - b);
            }
}

static void fold_one(vq_folded *out, int8_t *rounded, const int16_t *q, const uint8_t *channels, const uint8_t *u,
                     const int16_t *steps, uint32_t n)
{
    int16_t x[VQ_FOLDED_MOST_N];
    int32_t sum = 0, most = 0;
    for (uint32_t j = 0; j < n; j++) {
        x[j] = high(q[j], vq_folded_scales[j < n / 2 ? channels[j] & 15 : channels[j - n / 2] >> 4]);
        sum += abs(x[j]);
    }
    *out = (vq_folded){.level = vq_folded_level(sum)};
    for (uint32_t j = 0; j < n; j++)
        x[j] = high(x[j], out->level);
    out->total = (int32_t)n * x[0];
    turn(x, n);
    for (uint32_t j = 0; j < n; j++) {
        out->near += u[j] * x[j];
        x[j] = steps ? high(x[j], steps[j]) : x[j];
        most = abs(x[j]) > most ? abs(x[j]) : most;
    }
    out->round = vq_folded_round(most);
    for (uint32_t j = 0; j < n; j++) {
        rounded[j] = (int8_t)high(x[j], out->round);
        out->sum += rounded[j];
    }
}

static void fold_c(vq_folded *out, int8_t *rounded, size_t stride, const int16_t *q, size_t q_stride,
                   uint32_t n_queries, const uint8_t *channels, const uint8_t *u, const int16_t *steps, uint32_t n)
{
    for (uint32_t i = 0; i < n_queries; i++)
        fold_one(&out[i], rounded + i * stride, q + i * q_stride, channels, u, steps, n);
}

static void turn_back_c(float *out, const uint8_t *u, int32_t times, int32_t minus, float scale,
                        const uint8_t *sign_bits, const uint8_t *by, uint32_t n)
{
    int16_t x[VQ_FOLDED_MOST_N];
    for (uint32_t j = 0; j < n; j++)
        x[j] = (int16_t)(times * u[j] - minus);
    turn(x, n);
    for (uint32_t j = 0; j < n; j++) {
        const float y = (float)x[j] * scale;
        out[j] = (sign_bits[j / 8] >> j % 8 & 1 ? -y : y) * vq_byte_float(by[j]);
    }
}

void vq_folded_kernels_init(vq_folded_kernels *k, uint32_t cpu)
{
    *k = (vq_folded_kernels){.fold = fold_c, .turn_back = turn_back_c};
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_folded_kernels_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_folded_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
