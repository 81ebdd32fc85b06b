/* Queries that meet rows whose channels were divided by scales before they were rotated (kv/codec_near.h): folded by
 * the scales, rotated and rounded, once for every granule, which is why all of it is done in integers of 16 bits.
 *
 * A Hadamard matrix adds n numbers up, so that 16 bits hold its sums if the sizes of its input add up to what 16 bits
 * hold.  What is folded is multiplied to that; it then has 7 bits more than rounding leaves.  With h(x, y) the high
 * half of 2 x y, rounded, (x y + 2^14) >> 15:
 *
 *     folded    f = h(query, scale), scale 2^15 times that of the channel
 *     leveled   x = h(f, level), level such that the sizes of all x add up to less than 2^15
 *     turned    y = H x, H the Sylvester-Hadamard matrix, not divided by sqrt(n)
 *     stepped   z = h(y, step), where steps of codes differ by coordinate
 *     rounded   r = h(z, round), round such that no |r| passes 127
 *
 * Everything is the same bits on every tier. */
#ifndef VQ_KERNELS_FOLDED_H
#define VQ_KERNELS_FOLDED_H

#include <stddef.h>
#include <stdint.h>

enum { VQ_FOLDED_LEAST_N = 64, VQ_FOLDED_MOST_N = 512 };

/* What became of one query. */
typedef struct vq_folded {
    int32_t level, round; /* 0 < .. < 2^15 */
    int32_t sum;          /* of r */
    int32_t total;        /* of y */
    int32_t near;         /* sum of u y */
} vq_folded;

typedef struct vq_folded_kernels {
    /* n: a power of two, VQ_FOLDED_LEAST_N to VQ_FOLDED_MOST_N.  Queries q [n_queries], q_stride apart, n integers
     * within +-32767 each -> rounded [n_queries], `stride` bytes apart, n each, and out [n_queries].  channels [n/2]:
     * channel j in the low, j + n/2 in the high nibble of byte j, k standing for 2^(-k/4).  u [n], at most 127.  steps
     * [n], not below 0; NULL: z = y. */
    void (*fold)(vq_folded *out, int8_t *rounded, size_t stride, const int16_t *q, size_t q_stride, uint32_t n_queries,
                 const uint8_t *channels, const uint8_t *u, const int16_t *steps, uint32_t n);

    /* The way back, for a vector of bytes that many queries will meet: with y = H (times u - minus), whose sums must be
     * within 16 bits, out[j] = (float)y[j] * scale, its sign turned where bit j is set, * vq_byte_float(by[j]).  n as
     * above. */
    void (*turn_back)(float *out, const uint8_t *u, int32_t times, int32_t minus, float scale, const uint8_t *sign_bits,
                      const uint8_t *by, uint32_t n);
} vq_folded_kernels;

void vq_folded_kernels_init(vq_folded_kernels *k, uint32_t cpu);

#endif
