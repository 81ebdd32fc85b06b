/* Lloyd-Max quantisers of N(0,1): boundaries are midpoints, levels conditional means, both to 1e-9.  The tables are
 * generated; kernels read the ones of quant/levels.h, which put the same levels on integer grids. */
#ifndef VQ_QUANT_LLOYD_MAX_H
#define VQ_QUANT_LLOYD_MAX_H

#include <stdint.h>

enum { VQ_LLOYD_MAX_BITS = 8 };

/* [bits - 1][i]: level i of the positive half, ascending; the negative half mirrors it. */
extern const double vq_lloyd_max_half[VQ_LLOYD_MAX_BITS][128];

/* Level `code` of 2^bits, from the most negative upwards. */
double vq_lloyd_max_level(uint32_t bits, uint32_t code);

#endif
