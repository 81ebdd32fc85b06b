/* An orthogonal basis from a calibration, one signed byte an entry under a scale for each vector: what a query meets
 * and what rows come back by are the same bytes, so their rounding is no error of a score.
 *
 * Coordinates are padded to groups of 8 (kernels/codes.h) with zeros. */
#ifndef VQ_QUANT_BASIS_H
#define VQ_QUANT_BASIS_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "kernels/kernels.h"

typedef struct vq_basis {
    uint32_t d, width; /* width: d rounded up to 8 */
    int8_t *entry;     /* [d][width]: entry i of vector j at [i][j] */
    float *scale;      /* [width], 0 past d */
    const vq_codes_kernels *k;
} vq_basis;

void vq_basis_layout(vq_basis *b, vq_arena *arena, uint32_t d);
/* vectors [d][d] as rows; vector j is row order[j] (NULL: j) */
void vq_basis_take(vq_basis *b, const vq_codes_kernels *k, const float *vectors, const uint16_t *order);
size_t vq_basis_bytes(const vq_basis *b);

/* y [n][width] = B x of rows x [n][d] */
void vq_basis_to(const vq_basis *b, const float *x, uint32_t n, float *y);
/* x [d] = B' y; y [width] is overwritten */
void vq_basis_from(const vq_basis *b, float *y, float *x);

#endif
