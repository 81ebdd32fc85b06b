/* Centroids of rows: k-means after k-means++, for codebooks.
 *
 * Serial and in one order, so that a seed means the same centroids whoever runs it on how many threads; callers run
 * many at once.  Memory beside the rows is O(n + k d): no row's distances outlive it. */
#ifndef VQ_QUANT_KMEANS_H
#define VQ_QUANT_KMEANS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/nearest.h"

enum { VQ_KMEANS_MOST_D = 64 };

typedef struct vq_kmeans_rows {
    const float *x; /* n rows of d values, `stride` apart */
    size_t stride;
    uint32_t n, d;
} vq_kmeans_rows;

/* centroids [k][d].  At most n_rounds of Lloyd's iteration; a cluster without rows takes the row that is farthest from
 * its centroid.  Of fewer than k different rows some centroids are the same.  VQ_ERR_ARG without rows or for d above
 * VQ_KMEANS_MOST_D, VQ_ERR_NOMEM. */
vq_status vq_kmeans(float *centroids, uint32_t k, const vq_kmeans_rows *rows, uint32_t n_rounds, uint64_t seed,
                    vq_error *err);

#endif
