/* Coding of values one after the other, each moved first by what coding has lost of others (quant/feedback.h).
 *
 * Rows are coded side by side, one a lane: arrays are [n][n_lanes], value by value.  For value j of a lane
 *
 *     aim  = value[j] + sum over k < j of lost[k] m[j][k]                first time
 *     aim  = value[j] + (sum over k of lost[k] h[j][k]) * unit[j]        again, with what all others have lost by now
 *     code = number of bounds below aim * inverse,  got = levels[code] * scale
 *     lost[j] = value[j] - got,  left[j] = aim - got
 *
 * m and h lie in one matrix of rows of n: m below the diagonal, h, which is symmetric, above it; the diagonal is not
 * read.  Values go in blocks of VQ_CARRY_BLOCK, and one by one where fewer are left.  A sum takes first those k that
 * lie outside its block in ascending order, then those inside: single multiplications and additions, the same bits on
 * every tier. */
#ifndef VQ_KERNELS_CARRY_H
#define VQ_KERNELS_CARRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VQ_CARRY_LANES = 16, VQ_CARRY_BLOCK = 8, VQ_CARRY_MOST_LEVELS = 16 };

typedef struct vq_carry {
    uint32_t n, n_lanes;          /* n_lanes a multiple of VQ_CARRY_LANES */
    const float *matrix;          /* [n][n] */
    const float *unit;            /* [n]: again; NULL: first time */
    const float *values;          /* [n][n_lanes] */
    float *lost;                  /* [n][n_lanes]; read before it is written when coding again */
    float *left;                  /* [n][n_lanes] */
    uint8_t *codes;               /* [n][n_lanes] */
    const float *scale, *inverse; /* [n_lanes]; 1 / scale, 0 for 0 */
    uint32_t n_bounds;            /* at most VQ_CARRY_MOST_LEVELS - 1, ascending */
    float bounds[VQ_CARRY_MOST_LEVELS], levels[VQ_CARRY_MOST_LEVELS];
} vq_carry;

typedef struct vq_carry_kernels {
    void (*encode)(const vq_carry *c);
    /* sum[i][j] += x[0][i] x[0][j], then x[1][i] x[1][j] and so on, for i of [first, end) and all j from `first` on;
     * sum [n_in][n_in], x [n][n_in]. */
    void (*add_moments)(float *sum, const float *x, uint32_t n, uint32_t n_in, uint32_t first, uint32_t end);
} vq_carry_kernels;

void vq_carry_kernels_init(vq_carry_kernels *k, uint32_t cpu);
#if defined(__x86_64__)
void vq_carry_kernels_init_avx2(vq_carry_kernels *k);
void vq_carry_kernels_init_avx512(vq_carry_kernels *k);
#endif

#endif
