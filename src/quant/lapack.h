/* The few calls into OpenBLAS and LAPACK, one at a time.
 *
 * The serial build of OpenBLAS hands out its work buffers without a lock: of two threads that are inside of it at once
 * each may find the other's numbers in its buffer, and results are wrong without a word.  So nobody else calls it, and
 * all calls of the process go through one lock.  They are rare: only calibrating, quantising with feedback and
 * measures of rank need them.  A program that calls OpenBLAS itself, beside this library, is to link the build for
 * threads (the linker sees the same library). */
#ifndef VQ_QUANT_LAPACK_H
#define VQ_QUANT_LAPACK_H

#include <stdint.h>

/* matrix [d][d], its upper triangle read -> eigenvectors as rows, in the order of ascending values [d].
 * 0, or LAPACK's number of what failed. */
int vq_lapack_eigen(double *matrix, double *values, uint32_t d);
/* out [d][d], upper triangle, = x' x, x [n][d], rows `stride` apart. */
void vq_lapack_products(float *out, const float *x, uint32_t stride, uint32_t n, uint32_t d);
/* matrix [n][n], its lower triangle -> L of L L' = matrix; above the diagonal nothing changes.  0, or LAPACK's number.
 */
int vq_lapack_cholesky(float *matrix, uint32_t n);

#endif
