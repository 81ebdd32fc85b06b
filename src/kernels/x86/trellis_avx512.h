/* Between the files of the trellis kernels with AVX-512. */
#ifndef VQ_KERNELS_X86_TRELLIS_AVX512_H
#define VQ_KERNELS_X86_TRELLIS_AVX512_H

#include "kernels/trellis.h"

void vq_trellis_unpack_keys_avx512(uint8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                                   uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead);
void vq_trellis_dots_keys_avx512(int32_t *out, const uint8_t *tile, uint32_t n_groups, uint32_t n_granules,
                                 const int8_t *b, size_t low, size_t second, size_t stride, uint32_t n);
void vq_trellis_unpack_values_avx512(int8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                                     uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead);
void vq_trellis_dots_values_avx512(int32_t *out, size_t out_stride, const uint8_t *packed, const uint8_t *bits,
                                   uint32_t n_groups, uint32_t n_granules, const vq_trellis_table *tables,
                                   const uint8_t *b, size_t b_stride, uint32_t n, ptrdiff_t ahead);

#endif
