/* Between the AVX2 files of the codes kernels (kernels/codes.h says what these do). */
#ifndef VQ_KERNELS_X86_CODES_AVX2_H
#define VQ_KERNELS_X86_CODES_AVX2_H

#include <stddef.h>
#include <stdint.h>

void vq_codes_hadamard_avx2(float *x, uint32_t n);
void vq_codes_unpack_keys_avx2(uint8_t *tile, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                               uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead);
void vq_codes_unpack_values_avx2(int8_t *tile, const uint8_t *packed, uint32_t bits, const int8_t *table,
                                 uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead);
void vq_codes_dots_us_avx2(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_lanes,
                           uint32_t n_quads, const int8_t *b, size_t b_stride, uint32_t n);
void vq_codes_dots_su_avx2(int32_t *out, size_t out_stride, const int8_t *tile, size_t tile_stride, uint32_t n_lanes,
                           uint32_t n_quads, const uint8_t *b, size_t b_stride, uint32_t n);

void vq_codes_dots_keys_avx2(int32_t *out, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                             uint32_t n_groups, uint32_t n_granules, const int8_t *b, size_t b_stride, uint32_t n,
                             ptrdiff_t ahead);
void vq_codes_dots_values_avx2(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits,
                               const int8_t *table, uint32_t n_groups, uint32_t n_granules, const uint8_t *b,
                               size_t b_stride, uint32_t n, ptrdiff_t ahead);

#endif
