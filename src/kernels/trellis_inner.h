/* Between the files of the trellis kernels. */
#ifndef VQ_KERNELS_TRELLIS_INNER_H
#define VQ_KERNELS_TRELLIS_INNER_H

#include "kernels/trellis.h"

/* The last group that has bits, whose bytes are `stride` apart. */
const uint8_t *vq_trellis_last(const uint8_t *packed, const uint8_t *bits, uint32_t n_groups, size_t stride);

void vq_trellis_kernels_init_avx2(vq_trellis_kernels *k);
void vq_trellis_kernels_init_avx512(vq_trellis_kernels *k);

#endif
