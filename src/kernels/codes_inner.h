/* What the files of the codes kernels share: the plain C definitions that tiers fall back on, and the tiers' doors. */
#ifndef VQ_KERNELS_CODES_INNER_H
#define VQ_KERNELS_CODES_INNER_H

#include "kernels/codes.h"

void vq_codes_hadamard_c(float *x, uint32_t n);
void vq_codes_count_c(uint8_t *codes, const float *x, float inv, const float *bounds, uint32_t n_bounds, uint32_t n);
void vq_codes_pack_keys_c(uint8_t *packed, const uint8_t *codes, size_t row_stride, uint32_t bits, uint32_t n_groups);
void vq_codes_pack_values_c(uint8_t *packed, const uint8_t *codes, size_t row_stride, uint32_t bits, uint32_t n_groups);
void vq_codes_unpack_keys_c(uint8_t *tile, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                            uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead);
void vq_codes_unpack_values_c(int8_t *tile, const uint8_t *packed, uint32_t bits, const int8_t *table,
                              uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead);
void vq_codes_dots_keys_c(int32_t *out, const uint8_t *packed, uint32_t bits, const uint8_t *table, uint32_t n_groups,
                          uint32_t n_granules, const int8_t *b, size_t b_stride, uint32_t n, ptrdiff_t ahead);
void vq_codes_dots_values_c(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits, const int8_t *table,
                            uint32_t n_groups, uint32_t n_granules, const uint8_t *b, size_t b_stride, uint32_t n,
                            ptrdiff_t ahead);

void vq_codes_kernels_init_avx2(vq_codes_kernels *k);
void vq_codes_kernels_init_avx512(vq_codes_kernels *k);

#endif
