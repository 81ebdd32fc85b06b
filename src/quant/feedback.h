/* Error feedback: codes that know of each other.
 *
 * With H = E[x x'] of a matrix's inputs, the error that matters of a row is (w - q) H (w - q)'.  In the rotated space
 * H = M D M' with M unit upper triangular; values are coded one after the other, each moved first by what the ones
 * before it have lost:
 *
 *     q_j = nearest(w_j + sum over k < j of (w_k - q_k) M[k][j])        error = sum over j of D_j (what rounding
 * left)^2
 *
 * (GPTQ, Frantar et al. 2023, in the form of LDLQ, Chee et al. 2023).  A row's norm is one of a few around the plain
 * one, the one with the smallest error once it is fitted to its codes.  Then every value is coded again, twice, to
 * where the error of the row is least while all its other codes stay, and norms are fitted again.  Rows are
 * independent, as in vq_linear_encode, and the bytes are the same on every tier. */
#ifndef VQ_QUANT_FEEDBACK_H
#define VQ_QUANT_FEEDBACK_H

#include "kernels/carry.h"
#include "quant/linear.h"

/* Floats of a matrix of moments, and of the factor that takes its place. */
static inline size_t vq_feedback_floats(uint32_t n_in) { return (size_t)n_in * n_in + n_in; }

/* sum [n_in][n_in], upper triangle, += x' x, x [n][n_in].  The bits are the same however the rows are cut. */
void vq_feedback_add(const vq_carry_kernels *k, float *sum, vq_pool *pool, const float *x, uint32_t n, uint32_t n_in);

/* moment [vq_feedback_floats], of [n_in][n_in] the upper triangle read: E[x x'] or a multiple -> the factor, in place:
 * row j holds M[k][j] for k < j, then D_j, then R H R' above the diagonal; after the rows, 1 / diagonal of R H R'.
 * scratch [n_in].  One part in 100 of the mean of the diagonal is added to it, more where that is not enough.
 * VQ_ERR_NONFINITE for a matrix that is not finite, VQ_ERR_VALUE when it can't be factored.
 *
 * Through LAPACK: the last bits differ between machines, and with them codes. */
vq_status vq_feedback_factor(float *moment, const vq_rotation *rotation, float *scratch, vq_error *err);

size_t vq_feedback_scratch_bytes(uint32_t n_in, uint32_t n_threads);

/* As vq_linear_encode, with the factor of the matrix's input. */
void vq_feedback_encode(const vq_linear *l, const vq_carry_kernels *k, vq_pool *pool, void *data, uint32_t first,
                        uint32_t n, const float *x, const float *factor, vq_row_error *errors, void *scratch);

#endif
