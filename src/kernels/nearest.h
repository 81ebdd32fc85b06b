/* Kernels that find nearest codewords: centroids of product codes (quant/product.h), atoms (quant/atoms.h).
 *
 * Everything is the same bits on every tier: values that are compared are sums of products in one order, and ties go to
 * what is tried first. */
#ifndef VQ_KERNELS_NEAREST_H
#define VQ_KERNELS_NEAREST_H

#include <stddef.h>
#include <stdint.h>

enum {
    VQ_NEAREST_LANES = 8,
    VQ_NEAREST_ROWS = 32,
    VQ_NEAREST_CODES = 256,
    VQ_NEAREST_MOST_D = 8,
    VQ_ATOM_VALUES = 8,
    VQ_ATOMS_A_BYTE = 4,
    VQ_ATOM_MOST_BITS = 2, /* bytes of a sub-vector */
};

/* The index of the centroid nearest to x [d], the lowest where several are; *score is |c|^2/2 - x.c of it.  `columns`
 * [d][k]: entry j of centroid i at [j][i]; half [k]: |c|^2/2; k a multiple of VQ_NEAREST_LANES (INFINITY in `half`
 * fills up).  The same on every tier and for any bytes; where nothing compares, 0. */
uint32_t vq_nearest(const float *columns, const float *half, uint32_t k, uint32_t d, const float *x, float *score);

typedef struct vq_nearest_kernels {
    /* Of 32 rows x of d values each, d at most VQ_NEAREST_MOST_D and rows x_stride apart, what vq_nearest says of
     * VQ_NEAREST_CODES centroids; their |c|^2/2 is the sum of value * value * 1/2, one value after the other. */
    void (*centroids)(uint8_t *codes, const float *columns, uint32_t d, const float *x, size_t x_stride);
    /* Of 32 rows x of VQ_ATOM_VALUES values each, the codes [n_bytes][32] of atoms z [n_bytes][VQ_ATOMS_A_BYTE]
     * [VQ_ATOM_VALUES], as quant/atoms.h says what they mean: of one byte the nearest, of two each the nearest beside
     * the other, chosen twice.  A byte says what is added of its first two atoms in its low half, of the others in its
     * high half; the product of a row with a code's sum of atoms is the sum of its products with these. */
    void (*atoms)(uint8_t *codes, const float *z, uint32_t n_bytes, const float *x, size_t x_stride);
} vq_nearest_kernels;

void vq_nearest_kernels_init(vq_nearest_kernels *k, uint32_t cpu);
void vq_nearest_kernels_init_avx2(vq_nearest_kernels *k);
void vq_nearest_kernels_init_avx512(vq_nearest_kernels *k);

#endif
