/* What the 32 rows of a granule share in the codecs velox and trellis: the mean of keys, the scales of their channels,
 * and the scale of the rows' gains.
 *
 * Mean: its gain in f16, then 4-bit codes, dimension j in the low and j + width/2 in the high nibble of byte j.
 *
 * Channels: what rows differ by is divided by the root of its deviation in each channel, 2^(-k/4) of the largest, k in
 * nibbles as above.
 *
 * Gains: a byte each, and what 1 stands for in f16. */
#ifndef VQ_KV_CODEC_NEAR_H
#define VQ_KV_CODEC_NEAR_H

#include "kv/codec.h"
#include "quant/rowcode.h"

/* The option `channels` of codecs that scale channels: who does. */
enum { VQ_NEAR_CHANNELS_NEVER, VQ_NEAR_CHANNELS_ALWAYS, VQ_NEAR_CHANNELS_AUTO, VQ_NEAR_CHANNELS_FROM = 128 };
#define VQ_NEAR_CHANNELS_HELP                                                                                          \
    "1: every 32 keys are divided by roots of their channels' deviations (4 bits each); 0: never; 2: where heads "     \
    "have 128 dimensions or more"

/* Long heads, which is where models normalise their keys, have scales unless the option says otherwise; short ones lose
 * more by the bits than they win. */
static inline bool vq_near_scales(double option, uint32_t d)
{
    return option == VQ_NEAR_CHANNELS_AUTO ? d >= VQ_NEAR_CHANNELS_FROM : option == VQ_NEAR_CHANNELS_ALWAYS;
}

/* d: length of a row; width: d rounded up to 8. */
static inline size_t vq_near_mean_bytes(uint32_t width) { return sizeof(uint16_t) + width / 2; }

vq_rowcode vq_near_code(const vq_codes_kernels *k, uint32_t d, bool keys);

/* Takes the mean of y [n_rows][d] off all rows. */
void vq_near_take_mean(const vq_rowcode *code, uint8_t *to, float *y, uint32_t n_rows);
/* width bytes are written to out->u */
void vq_near_open_mean(const vq_rowcode *code, const uint8_t *from, vq_rowcode_mean *out);

/* Divides the channels of x [32][d] by their scales, which go to `to` [width/2]. */
void vq_near_scale_channels(uint8_t *to, float *x, uint32_t d);
void vq_near_open_channels(const uint8_t *from, float *scales, uint32_t d);

/* gains [32] -> bytes [32] and their scale */
void vq_near_pack_gains(uint8_t *bytes, uint8_t *scale, const float *gains);
void vq_near_open_gains(const vq_codes_kernels *k, const uint8_t *bytes, const uint8_t *scale, float *gains);

#endif
