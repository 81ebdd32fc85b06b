/* Queries of 14 bits against tiles of key codes (kernels/codes.h): for codes whose scales are folded into the query,
 * where coordinates differ more than those of a rotated one and 7 bits would lose the small ones.
 *
 * Prepared: a head of 64 bytes, then the query's integers as two halves of whole vectors, high first. */
#ifndef VQ_QUANT_WIDE_QUERY_H
#define VQ_QUANT_WIDE_QUERY_H

#include "kernels/kernels.h"

enum { VQ_WIDE_QUERY_HEAD = 64 };

static inline size_t vq_wide_query_half(uint32_t width) { return ((size_t)width + 63) / 64 * 64; }
static inline size_t vq_wide_query_bytes(uint32_t width) /* a multiple of 64 */
{
    return VQ_WIDE_QUERY_HEAD + 2 * vq_wide_query_half(width);
}
static inline size_t vq_narrow_query_bytes(uint32_t width) { return VQ_WIDE_QUERY_HEAD + vq_wide_query_half(width); }
/* x [width], a multiple of 8 */
void vq_wide_query_prepare(const vq_codes_kernels *k, void *query, const float *x, uint32_t width);
/* The same in 8 bits, one half, which is enough for rotated coordinates of one scale. */
void vq_narrow_query_prepare(const vq_codes_kernels *k, void *query, const float *x, uint32_t width);
/* out [n][64] = bases [n][2] (one a granule; NULL: 0) + gains [64] * dots of n queries, stride bytes apart, and the
 * rows of a tile of n_granules granules; rows past them become 0. */
void vq_wide_query_score(const vq_codes_kernels *k, const uint8_t *tile, uint32_t width, uint32_t n_granules,
                         const void *queries, size_t stride, uint32_t n, const float *gains, const float *bases,
                         float *out);
/* The same from dots [n][64], the products of the rows with the query's integers, wide or narrow. */
void vq_wide_query_finish(const vq_codes_kernels *k, const int32_t *dots, uint32_t n_granules, const void *queries,
                          size_t stride, uint32_t n, const float *gains, const float *bases, float *out);
/* Its product with one row of values 2 u - 127, u [width], at most 127 each. */
float vq_wide_query_dot(const vq_codes_kernels *k, const void *query, const uint8_t *u, uint32_t width);

#endif
