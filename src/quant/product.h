/* Product quantisation: a row is cut into sub-vectors of 4 or 8 values, and each is coded by the nearest of 256
 * centroids of its place.  Centroid 0 is zero, so that a row of zeros stays one.
 *
 * Nothing is ever expanded to rows x centroids: encoding looks at one sub-vector's distances, scores are look-ups in a
 * table that a query makes once, and weighted sums add weights up by centroid first. */
#ifndef VQ_QUANT_PRODUCT_H
#define VQ_QUANT_PRODUCT_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/kernels.h"

enum { VQ_CENTROIDS = 256, VQ_PRODUCT_ROWS = 32, VQ_PRODUCT_MOST_SUB = 8 };

typedef struct vq_product {
    uint32_t sub, n_sub;       /* a row has n_sub * sub values */
    const uint16_t *centroids; /* f16 [n_sub][sub][VQ_CENTROIDS] */
    const vq_kernels *k;
} vq_product;

/* Values of a codebook for rows of d: d rounded up to whole sub-vectors, times VQ_CENTROIDS. */
size_t vq_product_floats(uint32_t d, uint32_t sub);
static inline size_t vq_product_bytes(const vq_product *p)
{
    return (size_t)p->n_sub * p->sub * VQ_CENTROIDS * sizeof(uint16_t);
}

/* A codebook [n_sub][VQ_CENTROIDS][sub] for rows x [n][n_sub * sub].  VQ_ERR_NOMEM. */
vq_status vq_product_train(float *codebook, uint32_t sub, uint32_t n_sub, const float *x, uint32_t n, uint64_t seed,
                           vq_error *err);
/* Such a codebook as vq_product holds it. */
void vq_product_take(uint16_t *centroids, uint32_t sub, uint32_t n_sub, const float *codebook);

/* VQ_PRODUCT_ROWS rows are a granule: codes [n_sub][VQ_PRODUCT_ROWS], one byte each, granules one after the other. */
static inline size_t vq_product_granule_bytes(const vq_product *p) { return (size_t)p->n_sub * VQ_PRODUCT_ROWS; }
void vq_product_encode(const vq_product *p, uint8_t *granule, const float *x);
void vq_product_decode(const vq_product *p, const uint8_t *granules, uint32_t first, uint32_t n, float *x);
void vq_product_copy_row(const vq_product *p, uint8_t *dst, uint32_t i, const uint8_t *src, uint32_t j);

/* table [n_sub][VQ_CENTROIDS] = q . centroid; out [n] = q . row of the first n rows, whole granules. */
void vq_product_table(const vq_product *p, const float *q, float *table);
void vq_product_score(const vq_product *p, const uint8_t *granules, uint32_t n, const float *table, float *out);
/* acc [n_sub][VQ_CENTROIDS] += weights [n] by centroid; out [n_sub * sub] = what they add up to. */
void vq_product_mix(const vq_product *p, const uint8_t *granules, uint32_t n, const float *weights, float *acc);
void vq_product_sum(const vq_product *p, const float *acc, float *out);

#endif
