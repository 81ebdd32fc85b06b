/* Between the files of the trellis kernels. */
#ifndef VQ_KERNELS_TRELLIS_INNER_H
#define VQ_KERNELS_TRELLIS_INNER_H

#include "kernels/trellis.h"

/* The last group that has bits, whose bytes are `stride` apart. */
const uint8_t *vq_trellis_last(const uint8_t *packed, const uint8_t *bits, uint32_t n_groups, size_t stride);

void vq_trellis_costs_c(uint16_t *cost, const float *x, const vq_trellis_table *t, uint32_t n);
void vq_trellis_walk_c(uint32_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t, bool far);

void vq_trellis_trace_c(uint8_t *state, float *x, uint8_t *other, const uint32_t *back, const vq_trellis_table *t);

/* The tiers; with AVX2 the search has a door of its own. */
void vq_trellis_search_init_avx2(vq_trellis_kernels *k);
void vq_trellis_kernels_init_avx2(vq_trellis_kernels *k);
void vq_trellis_kernels_init_avx512(vq_trellis_kernels *k);

#endif
