/* Kernels of PolarQuant's blocks (kv/codecs/polarquant.c): 16 coordinates as a radius and 15 angles.
 *
 * Level 1 has the angles of 8 pairs on the circle (4 bits each), levels 2, 3 and 4 those between the radii of the level
 * below (2 bits each).  The 46 bits of a block, lowest first: 8 angles of level 1, then 4, 2 and 1.
 *
 * Everything is the same bits on every tier: no arc tangent, whose last bit differs from library to library, but
 * products of the two coordinates with the edges' cosines and sines; and sums in one order. */
#ifndef VQ_KERNELS_POLAR_H
#define VQ_KERNELS_POLAR_H

#include <stdbool.h>
#include <stdint.h>

enum { VQ_POLAR_BLOCK = 16, VQ_POLAR_CIRCLE_BITS = 4, VQ_POLAR_QUARTER_BITS = 2, VQ_POLAR_BITS = 8 * 4 + 7 * 2 };

/* Cosines and sines, generated (polar_tables.c). */
extern const float vq_polar_circle[16][2];       /* level 1: middles of sixteen sectors; k + 8 is k turned by half */
extern const float vq_polar_circle_edges[16][2]; /* where sector k begins */
extern const float vq_polar_quarter[3][4][2];    /* levels 2..4: angles between radii */
extern const float vq_polar_quarter_bounds[3][3][2];

typedef struct vq_polar_kernels {
    /* Blocks y [n][16] -> codes [n] and radii [n], of which the one of least squares, or the one that makes the block's
     * product with itself exact (unbiased); 0 where the angles fit nothing. */
    void (*encode)(uint64_t *codes, float *radii, const float *y, uint32_t n, bool unbiased);
    /* A stream of n codes of 46 bits, one after the other -> codes [n] */
    void (*unpack)(uint64_t *codes, const uint8_t *stream, uint32_t n);
    /* y [n][16] = radii times the unit vectors that codes stand for; bits of a code above VQ_POLAR_BITS may be set */
    void (*decode)(float *y, const uint64_t *codes, const float *radii, uint32_t n);
} vq_polar_kernels;

void vq_polar_kernels_init(vq_polar_kernels *k, uint32_t cpu);

/* The definitions, which tiers take for the blocks that fill no vector; and the tiers' doors. */
void vq_polar_encode_c(uint64_t *codes, float *radii, const float *y, uint32_t n, bool unbiased);
void vq_polar_unpack_c(uint64_t *codes, const uint8_t *stream, uint32_t n);
void vq_polar_decode_c(float *y, const uint64_t *codes, const float *radii, uint32_t n);
void vq_polar_kernels_init_avx2(vq_polar_kernels *k);
void vq_polar_kernels_init_avx512(vq_polar_kernels *k);

#endif
