/* PolarQuant's blocks: the definitions. */
#include "kernels/polar.h"

#include <endian.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/cpu.h"

/* Sector of (a, b): the half plane first, then the edges that the point has passed. */
static uint32_t sector(float a, float b)
{
    const uint32_t start = b < 0 || (b == 0 && a < 0) ? 8 : 0;
    uint32_t k = start;
    for (uint32_t e = start + 1; e < start + 8; e++)
        k += vq_polar_circle_edges[e][0] * b >= vq_polar_circle_edges[e][1] * a;
    return k;
}

/* Cell of the angle between radii a and b. */
static uint32_t quarter(uint32_t level, float a, float b)
{
    uint32_t k = 0;
    for (uint32_t e = 0; e < 3; e++)
        k += b * vq_polar_quarter_bounds[level][e][0] > a * vq_polar_quarter_bounds[level][e][1];
    return k;
}

static uint64_t block_codes(const float *y)
{
    uint64_t codes = 0;
    uint32_t at = 0;
    float r[8];
    for (uint32_t i = 0; i < 8; i++, at += VQ_POLAR_CIRCLE_BITS) {
        codes |= (uint64_t)sector(y[2 * i], y[2 * i + 1]) << at;
        r[i] = sqrtf(y[2 * i] * y[2 * i] + y[2 * i + 1] * y[2 * i + 1]);
    }
    for (uint32_t level = 0, n = 4; level < 3; level++, n /= 2)
        for (uint32_t i = 0; i < n; i++, at += VQ_POLAR_QUARTER_BITS) {
            codes |= (uint64_t)quarter(level, r[2 * i], r[2 * i + 1]) << at;
            r[i] = sqrtf(r[2 * i] * r[2 * i] + r[2 * i + 1] * r[2 * i + 1]);
        }
    return codes;
}

static void block_values(float y[VQ_POLAR_BLOCK], uint64_t codes, float radius)
{
    const float *top = vq_polar_quarter[2][codes >> 44 & 3];
    const float *left = vq_polar_quarter[1][codes >> 40 & 3], *right = vq_polar_quarter[1][codes >> 42 & 3];
    const float first = radius * top[0], second = radius * top[1];
    const float r[4] = {first * left[0], first * left[1], second * right[0], second * right[1]};
    for (uint32_t i = 0; i < 4; i++) {
        const float *q = vq_polar_quarter[0][codes >> (32 + 2 * i) & 3];
        const float *a = vq_polar_circle[codes >> (8 * i) & 15], *b = vq_polar_circle[codes >> (8 * i + 4) & 15];
        const float even = r[i] * q[0], odd = r[i] * q[1];
        y[4 * i] = even * a[0];
        y[4 * i + 1] = even * a[1];
        y[4 * i + 2] = odd * b[0];
        y[4 * i + 3] = odd * b[1];
    }
}

void vq_polar_encode_c(uint64_t *codes, float *radii, const float *y, uint32_t n, bool unbiased)
{
    for (uint32_t i = 0; i < n; i++, y += VQ_POLAR_BLOCK) {
        float unit[VQ_POLAR_BLOCK], dot = 0, squares = 0;
        codes[i] = block_codes(y);
        block_values(unit, codes[i], 1);
        for (uint32_t j = 0; j < VQ_POLAR_BLOCK; j++) {
            dot += y[j] * unit[j];
            squares += y[j] * y[j];
        }
        radii[i] = !(dot > 0) ? 0 : unbiased ? squares / dot : dot;
    }
}

void vq_polar_unpack_c(uint64_t *codes, const uint8_t *stream, uint32_t n)
{
    const size_t n_bytes = ((size_t)n * VQ_POLAR_BITS + 7) / 8;
    for (size_t i = 0; i < n; i++) {
        const size_t at = i * VQ_POLAR_BITS, left = n_bytes - at / 8;
        uint64_t bits = 0;
        if (left >= sizeof bits)
            memcpy(&bits, stream + at / 8, sizeof bits);
        else
            memcpy(&bits, stream + at / 8, left);
        codes[i] = le64toh(bits) >> at % 8 & ((UINT64_C(1) << VQ_POLAR_BITS) - 1);
    }
}

void vq_polar_decode_c(float *y, const uint64_t *codes, const float *radii, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        block_values(y + (size_t)i * VQ_POLAR_BLOCK, codes[i], radii[i]);
}

void vq_polar_kernels_init(vq_polar_kernels *k, uint32_t cpu)
{
    *k = (vq_polar_kernels){.encode = vq_polar_encode_c, .unpack = vq_polar_unpack_c, .decode = vq_polar_decode_c};
#if defined(__x86_64__)
    if (cpu & VQ_CPU_AVX2)
        vq_polar_kernels_init_avx2(k);
    if (cpu & VQ_CPU_AVX512)
        vq_polar_kernels_init_avx512(k);
#else
    (void)cpu;
#endif
}
