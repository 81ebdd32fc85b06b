/* The matrix product in plain C: the definition (see matmul_tier.h) and the tier of machines without a faster one.
 *
 * Exact mode keeps, per output, 8 sums of the products i = 0..7 modulo 8 (w_i x_i rounded, then added, i ascending) and
 * adds them as ((0+1) + (2+3)) + ((4+5) + (6+7)): lanes that a compiler turns into whatever vectors the machine has. */
#include "kernels/matmul_tier.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"

enum { BLOCK = VQ_MATMUL_BLOCK, LANES = 8 };

/* One block of a row: codes less their offset, scales and minima of its halves (both the same when it has but one). */
typedef struct block {
    int8_t q[BLOCK];
    float d[2], m[2];
} block;

typedef void (*unpack_fn)(block *out, const uint8_t *row, uint32_t b);

static float half_at(const uint8_t *p) { return vq_f32_from_f16((uint16_t)(p[0] | p[1] << 8)); }

static void scales(block *out, float d, float m)
{
    out->d[0] = out->d[1] = d;
    out->m[0] = out->m[1] = m;
}

static void nibbles(block *out, const uint8_t *qs, int offset)
{
    for (int i = 0; i < 16; i++) {
        out->q[i] = (int8_t)((qs[i] & 15) - offset);
        out->q[i + 16] = (int8_t)((qs[i] >> 4) - offset);
    }
}

/* Bit i of qh is bit 4 of code i. */
static void fifth_bits(block *out, const uint8_t *qh)
{
    for (int i = 0; i < BLOCK; i++)
        out->q[i] = (int8_t)(out->q[i] + (qh[i / 8] >> i % 8 & 1) * 16);
}

static void unpack_q8_0(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)b * 34;
    scales(out, half_at(p), 0);
    memcpy(out->q, p + 2, BLOCK);
}

static void unpack_q4_0(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)b * 18;
    scales(out, half_at(p), 0);
    nibbles(out, p + 2, 8);
}

static void unpack_q4_1(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)b * 20;
    scales(out, half_at(p), half_at(p + 2));
    nibbles(out, p + 4, 0);
}

static void unpack_q5_0(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)b * 22;
    scales(out, half_at(p), 0);
    nibbles(out, p + 6, 16);
    fifth_bits(out, p + 2);
}

static void unpack_q5_1(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)b * 24;
    scales(out, half_at(p), half_at(p + 2));
    nibbles(out, p + 8, 0);
    fifth_bits(out, p + 4);
}

static void unpack_iq4_nl(block *out, const uint8_t *row, uint32_t b)
{
    static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const uint8_t *p = row + (size_t)b * 18;
    scales(out, half_at(p), 0);
    for (int i = 0; i < 16; i++) {
        out->q[i] = values[p[2 + i] & 15];
        out->q[i + 16] = values[p[2 + i] >> 4];
    }
}

/* [scales 16][2-bit codes 64][d 2][dmin 2]; a scale byte is scale | minimum << 4 */
static void unpack_q2_k(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)(b / 8) * 84, *qs = p + 16 + b % 8 / 4 * 32;
    const float d = half_at(p + 80), dmin = half_at(p + 82);
    const int shift = b % 4 * 2;
    for (int h = 0; h < 2; h++) {
        const uint8_t s = p[b % 8 * 2 + (uint32_t)h];
        out->d[h] = d * (float)(s & 15);
        out->m[h] = -dmin * (float)(s >> 4);
    }
    for (int i = 0; i < BLOCK; i++)
        out->q[i] = (int8_t)(qs[i] >> shift & 3);
}

/* [bit 2 of the codes 32][2-bit codes 64][6-bit scales 12][d 2] */
static void unpack_q3_k(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)(b / 8) * 110, *qs = p + 32 + b % 8 / 4 * 32, *sc = p + 96;
    const float d = half_at(p + 108);
    const int shift = b % 4 * 2, bit = b % 8;
    for (int h = 0; h < 2; h++) {
        const int k = bit * 2 + h;
        const int low = k < 8 ? sc[k] & 15 : sc[k - 8] >> 4, high = sc[8 + k % 4] >> k / 4 * 2 & 3;
        out->d[h] = d * (float)((low | high << 4) - 32);
        out->m[h] = 0;
    }
    for (int i = 0; i < BLOCK; i++)
        out->q[i] = (int8_t)((qs[i] >> shift & 3) + (p[i] >> bit & 1) * 4 - 4);
}

/* The 6-bit scale and minimum of block j = 0..7 from 12 bytes, as Q4_K and Q5_K have them after d and dmin. */
static void scales_k(block *out, const uint8_t *p, uint32_t j)
{
    const uint8_t *s = p + 4;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
    const int min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
    scales(out, half_at(p) * (float)scale, -half_at(p + 2) * (float)min);
}

/* [d 2][dmin 2][scales 12][4-bit codes 128] */
static void unpack_q4_k(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)(b / 8) * 144, *qs = p + 16 + b % 8 / 2 * 32;
    scales_k(out, p, b % 8);
    for (int i = 0; i < BLOCK; i++)
        out->q[i] = (int8_t)(qs[i] >> b % 2 * 4 & 15);
}

/* [d 2][dmin 2][scales 12][bit 4 of the codes 32][low 4 bits 128] */
static void unpack_q5_k(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)(b / 8) * 176, *qh = p + 16, *qs = p + 48 + b % 8 / 2 * 32;
    scales_k(out, p, b % 8);
    for (int i = 0; i < BLOCK; i++)
        out->q[i] = (int8_t)((qs[i] >> b % 2 * 4 & 15) | (qh[i] >> b % 8 & 1) << 4);
}

/* [low 4 bits 128][high 2 bits 64][scales 16, signed][d 2] */
static void unpack_q6_k(block *out, const uint8_t *row, uint32_t b)
{
    const uint8_t *p = row + (size_t)(b / 8) * 210;
    const uint32_t n = b % 8 / 4, j = b % 4;
    const uint8_t *ql = p + 64 * n + 32 * (j % 2), *qh = p + 128 + 32 * n;
    const float d = half_at(p + 208);
    for (uint32_t h = 0; h < 2; h++) {
        out->d[h] = d * (float)(int8_t)p[192 + b % 8 * 2 + h];
        out->m[h] = 0;
    }
    for (int i = 0; i < BLOCK; i++)
        out->q[i] = (int8_t)(((ql[i] >> j / 2 * 4 & 15) | (qh[i] >> j * 2 & 3) << 4) - 32);
}

static const unpack_fn unpacks[VQ_N_TYPES] = {
    [VQ_TYPE_Q8_0] = unpack_q8_0, [VQ_TYPE_Q4_0] = unpack_q4_0, [VQ_TYPE_Q4_1] = unpack_q4_1,
    [VQ_TYPE_Q5_0] = unpack_q5_0, [VQ_TYPE_Q5_1] = unpack_q5_1, [VQ_TYPE_IQ4_NL] = unpack_iq4_nl,
    [VQ_TYPE_Q2_K] = unpack_q2_k, [VQ_TYPE_Q3_K] = unpack_q3_k, [VQ_TYPE_Q4_K] = unpack_q4_k,
    [VQ_TYPE_Q5_K] = unpack_q5_k, [VQ_TYPE_Q6_K] = unpack_q6_k,
};

/* One block of one token. */
typedef struct act_block {
    int8_t *codes;
    float *d, *d_sum;
    int32_t *minus_sum, *minus_sum0;
} act_block;

static act_block act_block_at(const uint8_t *group, uint32_t n, uint32_t t, uint32_t b)
{
    /* Also written through, by quantize, which owns the group. */
    char *p = (char *)(uintptr_t)group + (size_t)b * n * VQ_MATMUL_TOKEN_BYTES;
    float *words = (float *)(void *)(p + (size_t)n * BLOCK) + t;
    return (act_block){.codes = (int8_t *)p + (size_t)t * BLOCK,
                       .d = words,
                       .d_sum = words + n,
                       .minus_sum = (int32_t *)(void *)(words + 2 * n),
                       .minus_sum0 = (int32_t *)(void *)(words + 3 * n)};
}

static void quantize(uint8_t *group, uint32_t n, uint32_t t, const float *x, uint32_t n_in)
{
    for (uint32_t at = 0, b = 0; at < n_in; at += BLOCK, b++) {
        const uint32_t len = n_in - at < BLOCK ? n_in - at : BLOCK;
        const act_block out = act_block_at(group, n, t, b);
        float max = 0;
        for (uint32_t i = 0; i < len; i++) {
            const float abs = fabsf(x[at + i]);
            max = abs > max ? abs : max;
        }
        const float d = max / 127.0f;
        memset(out.codes, 0, BLOCK);
        *out.d = *out.d_sum = 0;
        *out.minus_sum = *out.minus_sum0 = 0;
        if (!(d >= FLT_MIN)) /* its inverse may be infinite */
            continue;
        const float inverse = 127.0f / max;
        for (uint32_t i = 0; i < len; i++) {
            out.codes[i] = (int8_t)lrintf(x[at + i] * inverse);
            *out.minus_sum -= out.codes[i];
            *out.minus_sum0 -= i < 16 ? out.codes[i] : 0;
        }
        *out.d = d;
        *out.d_sum = d * (float)-*out.minus_sum;
    }
}

static int32_t dot16(const int8_t *q, const int8_t *a)
{
    int32_t sum = 0;
    for (int i = 0; i < 16; i++)
        sum += q[i] * a[i];
    return sum;
}

/* One row times a group of tokens, int8 activations. */
static void row_int8(const vq_matmul_part *part, const uint8_t *row, const uint8_t *group, uint32_t n, float *acc)
{
    const vq_matmul_traits *traits = &vq_matmul_traits_of[part->w->type];
    for (uint32_t b = 0; b < part->act->n_blocks; b++) {
        block w;
        unpacks[part->w->type](&w, row, b);
        for (uint32_t t = 0; t < n; t++) {
            const act_block a = act_block_at(group, n, t, b);
            const int32_t sum[2] = {dot16(w.q, a.codes), dot16(w.q + 16, a.codes + 16)};
            if (!traits->halves) {
                acc[t] = fmaf((float)(sum[0] + sum[1]), w.d[0] * *a.d, acc[t]);
                if (traits->minima)
                    acc[t] = fmaf(w.m[0], *a.d_sum, acc[t]);
                continue;
            }
            const int32_t ones[2] = {-*a.minus_sum0, *a.minus_sum0 - *a.minus_sum};
            for (int h = 0; h < 2; h++) {
                acc[t] = fmaf((float)sum[h], w.d[h] * *a.d, acc[t]);
                if (traits->minima)
                    acc[t] = fmaf(w.m[h], *a.d * (float)ones[h], acc[t]);
            }
        }
    }
}

/* Values [32 b, 32 b + n) of a row of weights. */
static void weights_f32(vq_type type, float out[BLOCK], const uint8_t *row, uint32_t b, uint32_t n)
{
    const uint32_t first = b * BLOCK;
    block w;
    switch (type) {
    case VQ_TYPE_F32: memcpy(out, row + (size_t)first * 4, n * sizeof *out); return;
    case VQ_TYPE_F16:
        for (uint32_t i = 0; i < n; i++)
            out[i] = half_at(row + (size_t)(first + i) * 2);
        return;
    case VQ_TYPE_BF16:
        for (uint32_t i = 0; i < n; i++) {
            const uint8_t *p = row + (size_t)(first + i) * 2;
            out[i] = vq_f32_from_bf16((uint16_t)(p[0] | p[1] << 8));
        }
        return;
    default:
        unpacks[type](&w, row, b);
        for (uint32_t i = 0; i < n; i++)
            out[i] = w.d[i / 16] * (float)w.q[i] + w.m[i / 16];
    }
}

/* One row times a group of tokens in f32. */
static void row_f32(const vq_matmul_part *part, const uint8_t *row, const uint8_t *group, uint32_t n, float *acc)
{
    const vq_matmul_act *act = part->act;
    float sums[VQ_MATMUL_GROUP][LANES] = {{0}};
    for (uint32_t b = 0; b < act->n_blocks; b++) {
        const uint32_t left = act->n_in - b * BLOCK, len = left < BLOCK ? left : BLOCK;
        float w[BLOCK] = {0}, x[BLOCK] = {0};
        weights_f32(part->w->type, w, row, b, len);
        for (uint32_t t = 0; t < n; t++) {
            if (act->kind == VQ_ACT_EXACT) {
                const float *from = (const float *)(const void *)group + (size_t)b * BLOCK * n + t;
                for (uint32_t i = 0; i < len; i++)
                    x[i] = from[(size_t)i * n];
            } else {
                const act_block a = act_block_at(group, n, t, b);
                for (uint32_t i = 0; i < len; i++)
                    x[i] = *a.d * (float)a.codes[i];
            }
            for (uint32_t i = 0; i < BLOCK; i += LANES)
                for (uint32_t j = 0; j < LANES; j++)
                    sums[t][j] += w[i + j] * x[i + j];
        }
    }
    for (uint32_t t = 0; t < n; t++) {
        const float *s = sums[t];
        acc[t] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}

static void run(const vq_matmul_part *part, void *scratch)
{
    const size_t row_bytes = vq_matmul_row_bytes(part->w->type, part->w->n_in);
    const bool f32 = part->act->kind == VQ_ACT_EXACT || vq_matmul_traits_of[part->w->type].floats;
    (void)scratch;
    for (uint32_t r = part->row; r < part->row_end; r++) {
        const uint8_t *row = (const uint8_t *)part->w->data + r * row_bytes;
        for (uint32_t t = part->token; t < part->token_end; t += VQ_MATMUL_GROUP) {
            uint32_t n;
            const uint8_t *group = vq_matmul_group(part->act, t, &n);
            float acc[VQ_MATMUL_GROUP] = {0};
            (f32 ? row_f32 : row_int8)(part, row, group, n, acc);
            for (uint32_t i = 0; i < n; i++)
                part->out[(t + i) * part->out_stride + r] = acc[i];
        }
    }
}

const vq_matmul_tier vq_matmul_tier_c = {.quantize = quantize, .run = run};
