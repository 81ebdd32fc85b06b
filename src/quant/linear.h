/* Quantised weight matrices: rows of Lloyd-Max codes of 2, 3 or 4 bits in a rotated input space, one f16 norm a row.
 *
 *     w x = (R w)(R x)      R orthogonal: the rows are rotated once, here; the input when it is multiplied
 *
 * so that the columns of a row, also outliers, become values of one normal distribution, for which the levels are
 * made.  kernels/matmul_packed.h says how a matrix lies in memory and what a product is.
 *
 * All matrices of one model with the same n_in share one rotation.  It is drawn from a seed (signs and a small matrix,
 * O(n_in) bytes), or drawn once from the Haar measure and kept: [n_in][n_in] floats.
 *
 * Encoding depends on a row alone: rows may come in any order, in pieces and on any number of threads.  The bytes are
 * the same on every tier. */
#ifndef VQ_QUANT_LINEAR_H
#define VQ_QUANT_LINEAR_H

#include "base/pool.h"
#include "kernels/matmul.h"
#include "quant/rotation.h"

/* ---- the rotation of an input ---- */
typedef struct vq_input_rotation {
    vq_rotation r;
    bool haar;
    const float *matrix; /* of haar: [n_in][n_in], row major; given by the caller or own */
    vq_arena arena;
} vq_input_rotation;

enum { VQ_INPUT_HAAR_MOST = 8192 }; /* n_in of a Haar matrix */

/* Whether n_in can be rotated without a matrix of its own: its odd factor is at most VQ_ROTATION_MAX_M. */
bool vq_input_rotation_fits(uint32_t n_in);

/* Draws the rotation of n_in from the seed (which may be the same for all n_in of a model).  haar: the time grows with
 * n_in^3.  VQ_ERR_ARG when n_in does not fit. */
vq_status vq_input_rotation_open(vq_input_rotation **out, const vq_codes_kernels *k, uint32_t n_in, bool haar,
                                 uint64_t seed, vq_error *err);
/* The same from a Haar matrix that was kept: the caller's, mapped or copied, outliving the rotation. */
vq_status vq_input_rotation_map(vq_input_rotation **out, const vq_codes_kernels *k, uint32_t n_in, const float *matrix,
                                vq_error *err);
void vq_input_rotation_close(vq_input_rotation *rotation);
/* Of all that was drawn: tells whether a rotation drawn again, by another build or machine, is the same. */
uint64_t vq_input_rotation_hash(const vq_input_rotation *rotation);

/* ---- a matrix ---- */
typedef struct vq_linear {
    uint32_t bits, n_in, n_out; /* bits 2, 3, 4 */
    const vq_rotation *rotation;
    const vq_codes_kernels *k;
} vq_linear;

enum { VQ_LINEAR_MOST_OUT = 1 << 24 };

/* The type that holds codes of so many bits, 2 to 4. */
vq_type vq_linear_type(uint32_t bits);

/* VQ_ERR_ARG for bits other than 2, 3, 4, for n_in of 0 or above VQ_PACKED_MOST_IN or of no rotation, for n_out of 0 or
 * above VQ_LINEAR_MOST_OUT. */
vq_status vq_linear_check(uint32_t bits, uint32_t n_in, uint32_t n_out, vq_error *err);

/* Bytes of the matrix, a multiple of 64.  Within the limits of vq_linear_check. */
size_t vq_linear_bytes(uint32_t bits, uint32_t n_in, uint32_t n_out);

/* Squares of a row and of what encoding lost of it. */
typedef struct vq_row_error {
    double squares, error;
} vq_row_error;

/* Scratch of encode and decode for a pool of so many threads. */
size_t vq_linear_scratch_bytes(uint32_t n_in, uint32_t n_threads);

/* Rows [first, first + n) of the matrix from x [n][n_in], which are finite, into data (64-byte aligned,
 * vq_linear_bytes).  The call that ends with the last row also clears what is padding.  errors [n] or NULL.  scratch:
 * vq_linear_scratch_bytes, 64-byte aligned. */
void vq_linear_encode(const vq_linear *l, vq_pool *pool, void *data, uint32_t first, uint32_t n, const float *x,
                      vq_row_error *errors, void *scratch);

/* The matrix that products see (rotated back), rows [first, first + n) -> x [n][n_in]. */
void vq_linear_decode(const vq_linear *l, vq_pool *pool, const void *data, uint32_t first, uint32_t n, float *x,
                      void *scratch);

/* For products.  The rotation, and data, outlive it. */
vq_matrix vq_linear_matrix(const vq_linear *l, const void *data);

#endif
