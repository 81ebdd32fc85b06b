/* f16 and bf16 in integer arithmetic: the same bits as the F16C instructions, whatever the process has set for
 * denormals. */
#include "base/half.h"

#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* x >> n, round half to even; 0 < n < 32. */
static uint32_t shift_round(uint32_t x, unsigned n)
{
    const uint32_t kept = x >> n, lost = x & ((1u << n) - 1), half = 1u << (n - 1);
    return kept + (lost > half || (lost == half && (kept & 1)));
}

uint16_t vq_f16_from_f32(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    uint32_t h;
    if (a > 0x7f800000)
        h = 0x7e00 | (a >> 13 & 0x3ff); /* NaN, made quiet */
    else if (a >= 0x47800000)
        h = 0x7c00; /* 65536 and more */
    else if (a >= 0x38800000)
        h = shift_round(a - 0x38000000, 13); /* a carry into the exponent is right, up to inf */
    else if (a >= 0x33000000)
        h = shift_round((a & 0x7fffff) | 0x800000, 126 - (a >> 23)); /* subnormal: units of 2^-24 */
    else
        h = 0; /* less than half of the smallest */
    return (uint16_t)(sign | h);
}

uint16_t vq_f16_from_f32_clamped(float x)
{
    const uint16_t h = vq_f16_from_f32(x);
    return (h & 0x7fff) == 0x7c00 ? h - 1 : h; /* infinity to the largest finite value */
}

float vq_f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 0x1f, m = h & 0x3ff;
    if (exponent == 31)
        return float_of(sign | 0x7f800000 | m << 13 | (m ? 0x400000 : 0));
    if (exponent)
        return float_of(sign | (exponent + 112) << 23 | m << 13);
    if (!m)
        return float_of(sign);
    const unsigned top = 31 - (unsigned)__builtin_clz(m); /* m 2^-24 = 1.xx 2^(top - 24) */
    return float_of(sign | (top + 103) << 23 | (m << (23 - top) & 0x7fffff));
}

uint16_t vq_bf16_from_f32(float x)
{
    const uint32_t u = bits_of(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)shift_round(u, 16);
}

float vq_f32_from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }
