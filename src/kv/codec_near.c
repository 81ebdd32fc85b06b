#include "kv/codec_near.h"

#include <string.h>

#include "base/half.h"

enum { MEAN_BITS = 4, MOST_HALVINGS = 15 };

/* 2^(-k/4) */
static const float channel_scale[MOST_HALVINGS + 1] = {
    1,     0.84089642F, 0.70710678F, 0.59460356F, 0.5F,   0.42044821F, 0.35355339F,  0.29730178F,
    0.25F, 0.21022410F, 0.17677670F, 0.14865089F, 0.125F, 0.10511205F, 0.088388348F, 0.074325445F,
};

static size_t half_width(uint32_t d) { return (size_t)(d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP * VQ_CODES_GROUP / 2; }

static float half_at(const uint8_t *p)
{
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return vq_f32_from_f16(half);
}

vq_rowcode vq_near_code(const vq_codes_kernels *k, uint32_t d, bool keys)
{
    return vq_rowcode_make(&vq_levels_gaussian[MEAN_BITS - 1], NULL, k, d, keys, VQ_FIT_LEAST_SQUARES);
}

void vq_near_take_mean(const vq_rowcode *code, uint8_t *to, float *y, uint32_t n_rows)
{
    const uint32_t d = code->d;
    uint8_t codes[VQ_MAX_HEAD_DIM];
    float mean[VQ_MAX_HEAD_DIM] = {0};
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t j = 0; j < d; j++)
            mean[j] += y[(size_t)i * d + j];
    for (uint32_t j = 0; j < d; j++)
        mean[j] *= 1.0F / (float)n_rows;
    const uint16_t norm = vq_rowcode_encode_rotated(code, codes, mean);
    memcpy(to, &norm, sizeof norm);
    for (size_t j = 0; j < half_width(d); j++)
        to[sizeof norm + j] = (uint8_t)(codes[j] | codes[half_width(d) + j] << 4);
    memset(mean, 0, d * sizeof *mean);
    vq_rowcode_subtract(code, codes, norm, mean); /* what was stored, with its sign turned */
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t j = 0; j < d; j++)
            y[(size_t)i * d + j] += mean[j];
}

void vq_near_open_mean(const vq_rowcode *code, const uint8_t *from, vq_rowcode_mean *out)
{
    out->scale = half_at(from) * code->levels->step;
    code->k->nibbles(out->u, from + sizeof(uint16_t), code->levels->key[1], (uint32_t)half_width(code->d));
}

void vq_near_scale_channels(uint8_t *to, float *x, uint32_t d)
{
    const size_t half = half_width(d);
    float mean[VQ_MAX_HEAD_DIM] = {0}, squares[VQ_MAX_HEAD_DIM] = {0}, most = 0;
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        for (uint32_t j = 0; j < d; j++)
            mean[j] += x[(size_t)i * d + j];
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        for (uint32_t j = 0; j < d; j++) {
            const float off = x[(size_t)i * d + j] - mean[j] * (1.0F / VQ_GRANULE);
            squares[j] += off * off;
        }
    for (uint32_t j = 0; j < d; j++)
        most = squares[j] > most ? squares[j] : most;
    memset(to, 0, half);
    for (uint32_t j = 0; j < d; j++) {
        uint32_t k = 0; /* how often the largest is halved until it is nearest, in octaves */
        for (float limit = most * 0.70710678F; k < MOST_HALVINGS && squares[j] < limit; limit *= 0.5F)
            k++;
        to[j < half ? j : j - half] |= (uint8_t)(j < half ? k : k << 4);
        const float inv = 1 / channel_scale[k];
        for (uint32_t i = 0; i < VQ_GRANULE; i++)
            x[(size_t)i * d + j] *= inv;
    }
}

void vq_near_open_channels(const uint8_t *from, float *scales, uint32_t d)
{
    const size_t half = half_width(d);
    for (uint32_t j = 0; j < d; j++)
        scales[j] = channel_scale[j < half ? from[j] & 15 : from[j - half] >> 4];
}

void vq_near_pack_gains(uint8_t *bytes, uint8_t *scale, const float *gains)
{
    float most = 0;
    for (uint32_t i = 0; i < VQ_GRANULE; i++)
        most = gains[i] > most ? gains[i] : most;
    const uint16_t half = vq_f16_from_f32_clamped(most / 255);
    const float unit = vq_f32_from_f16(half), inv = unit > 0 ? 1 / unit : 0;
    memcpy(scale, &half, sizeof half);
    for (uint32_t i = 0; i < VQ_GRANULE; i++) {
        const float n = gains[i] * inv + 0.5F;
        bytes[i] = (uint8_t)(n < 255 ? n : 255);
    }
}

void vq_near_open_gains(const vq_codes_kernels *k, const uint8_t *bytes, const uint8_t *scale, float *gains)
{
    k->scale_bytes(gains, bytes, half_at(scale), VQ_GRANULE);
}
