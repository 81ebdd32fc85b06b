/* Eigenvectors of symmetric matrices, for calibration: through LAPACK, whose last bits differ between machines; so
 * results are stored, never computed again where a cache must mean the same. */
#ifndef VQ_QUANT_EIGEN_H
#define VQ_QUANT_EIGEN_H

#include <stdint.h>

#include "base/status.h"

/* matrix [d][d], its upper triangle read -> vectors as its rows, largest eigenvalue first; values [d].  The first
 * coordinate of largest size of each vector is made positive.  VQ_ERR_VALUE when the iteration does not converge. */
vq_status vq_eigen_symmetric(double *matrix, double *values, uint32_t d, vq_error *err);

/* sum [d][d], upper triangle, += x' x, rows of x being `stride` apart; scratch [d][d]. */
void vq_add_products(double *sum, const float *x, uint32_t stride, uint32_t n, uint32_t d, float *scratch);

#endif
