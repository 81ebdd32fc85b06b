/* Between the files of the kernels of folded queries. */
#ifndef VQ_KERNELS_FOLDED_INNER_H
#define VQ_KERNELS_FOLDED_INNER_H

#include "kernels/folded.h"

/* 32767 times 2^(-k/4) */
extern const int16_t vq_folded_scales[16];

/* The largest factor that brings sizes which add up to `sum` within 16 bits: each of up to 512 may be rounded up. */
static inline int32_t vq_folded_level(int32_t sum)
{
    const float level = 1.05e9F / (float)(sum > 32045 ? sum : 32045);
    return (int32_t)level;
}

/* The largest that brings `most` to 127.  A quotient in float may not pass the exact one by so much that this shows:
 * 127 * 2^15 and `most` are exact, and what is cut off is an integer. */
static inline int32_t vq_folded_round(int32_t most)
{
    const float round = 127 * 0x1p15F / (float)(most > 128 ? most : 128);
    return (int32_t)round;
}

void vq_folded_kernels_init_avx2(vq_folded_kernels *k);
void vq_folded_kernels_init_avx512(vq_folded_kernels *k);

#endif
