/* Dequantisation in plain C: the definition of every weight type.  Products are rounded in the order that is written
 * (scale times group scale, then times the code, then the minimum): other readers of GGUF round the same way, and
 * results agree bit for bit. */
#include "formats/blocks.h"

#include <string.h>

#include "base/half.h"

/* The code book of iq4_nl. */
static const int8_t iq4_nl_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void vq_dequantize_f32(const void *src, float *out, uint64_t n) { memcpy(out, src, n * sizeof *out); }

void vq_dequantize_f16(const void *src, float *out, uint64_t n)
{
    const uint16_t *x = src;
    for (uint64_t i = 0; i < n; i++)
        out[i] = vq_f32_from_f16(x[i]);
}

void vq_dequantize_bf16(const void *src, float *out, uint64_t n)
{
    const uint16_t *x = src;
    for (uint64_t i = 0; i < n; i++)
        out[i] = vq_f32_from_bf16(x[i]);
}

/* ---- 32 values ---- */

void vq_dequantize_q4_0(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q4_0 *b = src;
    for (const vq_block_q4_0 *end = b + n_blocks; b < end; b++, out += VQ_BLOCK) {
        const float d = vq_f32_from_f16(b->d);
        for (unsigned i = 0; i < 16; i++) {
            out[i] = (float)((b->qs[i] & 15) - 8) * d;
            out[i + 16] = (float)((b->qs[i] >> 4) - 8) * d;
        }
    }
}

void vq_dequantize_q4_1(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q4_1 *b = src;
    for (const vq_block_q4_1 *end = b + n_blocks; b < end; b++, out += VQ_BLOCK) {
        const float d = vq_f32_from_f16(b->d), m = vq_f32_from_f16(b->m);
        for (unsigned i = 0; i < 16; i++) {
            out[i] = (float)(b->qs[i] & 15) * d + m;
            out[i + 16] = (float)(b->qs[i] >> 4) * d + m;
        }
    }
}

/* The five bits of value i. */
static int q5(const uint8_t *qh, const uint8_t *qs, unsigned i)
{
    const unsigned low = i < 16 ? qs[i] & 15u : qs[i - 16] >> 4u;
    return (int)(low | (qh[i / 8] >> i % 8 & 1u) << 4);
}

void vq_dequantize_q5_0(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q5_0 *b = src;
    for (const vq_block_q5_0 *end = b + n_blocks; b < end; b++, out += VQ_BLOCK) {
        const float d = vq_f32_from_f16(b->d);
        for (unsigned i = 0; i < VQ_BLOCK; i++)
            out[i] = (float)(q5(b->qh, b->qs, i) - 16) * d;
    }
}

void vq_dequantize_q5_1(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q5_1 *b = src;
    for (const vq_block_q5_1 *end = b + n_blocks; b < end; b++, out += VQ_BLOCK) {
        const float d = vq_f32_from_f16(b->d), m = vq_f32_from_f16(b->m);
        for (unsigned i = 0; i < VQ_BLOCK; i++)
            out[i] = (float)q5(b->qh, b->qs, i) * d + m;
    }
}

void vq_dequantize_q8_0(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q8_0 *b = src;
    for (const vq_block_q8_0 *end = b + n_blocks; b < end; b++, out += VQ_BLOCK) {
        const float d = vq_f32_from_f16(b->d);
        for (unsigned i = 0; i < VQ_BLOCK; i++)
            out[i] = (float)b->qs[i] * d;
    }
}

void vq_dequantize_iq4_nl(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_iq4_nl *b = src;
    for (const vq_block_iq4_nl *end = b + n_blocks; b < end; b++, out += VQ_BLOCK) {
        const float d = vq_f32_from_f16(b->d);
        for (unsigned i = 0; i < 16; i++) {
            out[i] = (float)iq4_nl_values[b->qs[i] & 15] * d;
            out[i + 16] = (float)iq4_nl_values[b->qs[i] >> 4] * d;
        }
    }
}

/* ---- 256 values ---- */

void vq_dequantize_q2_k(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q2_k *b = src;
    for (const vq_block_q2_k *end = b + n_blocks; b < end; b++, out += VQ_SUPER_BLOCK) {
        const float d = vq_f32_from_f16(b->d), m = vq_f32_from_f16(b->m);
        for (unsigned group = 0; group < 16; group++) {
            const unsigned half = group / 8, shift = group % 8 / 2 * 2;
            const uint8_t *q = b->qs + 32 * half + group % 2 * 16;
            const float scale = d * (float)(b->scales[group] & 15), minimum = m * (float)(b->scales[group] >> 4);
            for (unsigned i = 0; i < 16; i++)
                out[16 * group + i] = scale * (float)(q[i] >> shift & 3) - minimum;
        }
    }
}

static int q3_scale(const uint8_t *s, unsigned group)
{
    const unsigned low = group < 8 ? s[group] & 15u : s[group - 8] >> 4u;
    const unsigned high = s[8 + group % 4] >> group / 4 * 2 & 3u;
    return (int)(low | high << 4) - 32;
}

void vq_dequantize_q3_k(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q3_k *b = src;
    for (const vq_block_q3_k *end = b + n_blocks; b < end; b++, out += VQ_SUPER_BLOCK) {
        const float d = vq_f32_from_f16(b->d);
        for (unsigned group = 0; group < 16; group++) {
            const unsigned half = group / 8, shift = group % 8 / 2 * 2, column = group % 2 * 16;
            const uint8_t *q = b->qs + 32 * half + column, *h = b->hmask + column;
            const float scale = d * (float)q3_scale(b->scales, group);
            for (unsigned i = 0; i < 16; i++) {
                const int code = (q[i] >> shift & 3) | (h[i] >> group / 2 & 1) << 2;
                out[16 * group + i] = scale * (float)(code - 4);
            }
        }
    }
}

/* Groups 0 .. 3: six bits of s[g] and s[g + 4].  Groups 4 .. 7: nibbles of s[g + 4], and above them the two top bits of
 * s[g - 4] (scale) and s[g] (minimum). */
static void k4_scale(const uint8_t *s, unsigned g, unsigned *scale, unsigned *minimum)
{
    if (g < 4) {
        *scale = s[g] & 63u;
        *minimum = s[g + 4] & 63u;
    } else {
        *scale = (s[g + 4] & 15u) | (s[g - 4] >> 6u) << 4;
        *minimum = (s[g + 4] >> 4u) | (s[g] >> 6u) << 4;
    }
}

void vq_dequantize_q4_k(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q4_k *b = src;
    for (const vq_block_q4_k *end = b + n_blocks; b < end; b++, out += VQ_SUPER_BLOCK) {
        const float d = vq_f32_from_f16(b->d), m = vq_f32_from_f16(b->m);
        for (unsigned group = 0; group < 8; group++) {
            unsigned s, low;
            k4_scale(b->scales, group, &s, &low);
            const float scale = d * (float)s, minimum = m * (float)low;
            const uint8_t *q = b->qs + group / 2 * 32;
            const unsigned shift = group % 2 * 4;
            for (unsigned i = 0; i < 32; i++)
                out[32 * group + i] = scale * (float)(q[i] >> shift & 15) - minimum;
        }
    }
}

void vq_dequantize_q5_k(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q5_k *b = src;
    for (const vq_block_q5_k *end = b + n_blocks; b < end; b++, out += VQ_SUPER_BLOCK) {
        const float d = vq_f32_from_f16(b->d), m = vq_f32_from_f16(b->m);
        for (unsigned group = 0; group < 8; group++) {
            unsigned s, low;
            k4_scale(b->scales, group, &s, &low);
            const float scale = d * (float)s, minimum = m * (float)low;
            const uint8_t *q = b->qs + group / 2 * 32;
            const unsigned shift = group % 2 * 4;
            for (unsigned i = 0; i < 32; i++) {
                const int code = (q[i] >> shift & 15) | (b->qh[i] >> group & 1) << 4;
                out[32 * group + i] = scale * (float)code - minimum;
            }
        }
    }
}

void vq_dequantize_q6_k(const void *src, float *out, uint64_t n_blocks)
{
    const vq_block_q6_k *b = src;
    for (const vq_block_q6_k *end = b + n_blocks; b < end; b++, out += VQ_SUPER_BLOCK) {
        const float d = vq_f32_from_f16(b->d);
        for (unsigned row = 0; row < 8; row++) { /* 32 values each */
            const unsigned half = row / 4, quarter = row % 4;
            const uint8_t *low = b->ql + 64 * half + quarter % 2 * 32, *high = b->qh + 32 * half;
            const unsigned nibble = quarter / 2 * 4, pair = quarter * 2;
            for (unsigned i = 0; i < 32; i++) {
                const float scale = d * (float)b->scales[2 * row + i / 16];
                const int code = (low[i] >> nibble & 15) | (high[i] >> pair & 3) << 4;
                out[32 * row + i] = scale * (float)(code - 32);
            }
        }
    }
}
