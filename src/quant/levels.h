/* Tables of reconstruction levels as the kernels read them: level i = step * v[i], v odd integers.
 *
 * Narrow tables (up to 4 bits of Gaussian codes) have |v| <= 127, so that u = (v + 127) / 2 fits 7 bits and the sums of
 * two byte products that AVX2 forms can't saturate; the grid is fitted to the quantiser, which costs 0.3 % of the error
 * at 4 bits and less below.  Wide tables have |v| <= 65279 and u = (v + 65535) / 2 in two bytes.
 *
 * The same levels serve keys (u as unsigned bytes, times signed bytes of the query) and values (u less 64 or 32768 as
 * signed bytes, times unsigned bytes of the weights). */
#ifndef VQ_QUANT_LEVELS_H
#define VQ_QUANT_LEVELS_H

#include <stdbool.h>
#include <stdint.h>

enum { VQ_NARROW_TOP = 127, VQ_WIDE_TOP = 65535 };

typedef struct vq_levels {
    uint32_t bits;
    bool wide;
    float step;
    uint8_t key[2][256];  /* u: high byte (wide only), low byte */
    int8_t value[2][256]; /* u - 64: [1]; u - 32768 = 256 [0] + [1] */
    int32_t v[256];
    float bounds[256]; /* 2^bits - 1; a value on a bound belongs to the lower cell */
} vq_levels;

extern const vq_levels vq_levels_gaussian[8];       /* Lloyd-Max of N(0,1), [bits - 1] */
extern const vq_levels vq_levels_two_stage_seed[4]; /* 2 x 1 .. 2 x 4 bits, [bits of a stage - 1] */
extern const vq_levels vq_levels_two_stage_fitted[4];
extern const vq_levels vq_levels_uniform[8]; /* code - (2^bits - 1) / 2, [bits - 1] */

#endif
