/* What calibrated codecs read of a calibration: directions by the energy that rows have along them, not centred. */
#ifndef VQ_KV_CODEC_SPECTRUM_H
#define VQ_KV_CODEC_SPECTRUM_H

#include "kv/codec.h"

/* The calibration's directions [d][d] of this layer, head and side: of keys those of their second moment, of values
 * those of their covariance. */
const float *vq_codec_directions(const vq_codec_env *env);
/* Second moments [d] along `directions`, largest first, and the direction [d] that each belongs to. */
void vq_codec_spectrum(const vq_codec_env *env, const float *directions, float *moments, uint16_t *order);

#endif
