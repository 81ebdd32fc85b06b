/* Random orthogonal matrices that cost O(d log d) to apply and O(d) bits to keep.
 *
 * x -> (M (x) H) D x: random signs D, the Hadamard matrix H of the largest power of two 2^k that divides d, and a
 * random orthogonal m x m matrix M across the m = d / 2^k blocks (none for m = 1).  `haar` takes m = d: a matrix drawn
 * from the Haar measure.  Everything is drawn from the seed through vq_rng and applied in one order of operations, so a
 * seed means the same bits on every machine and tier. */
#ifndef VQ_QUANT_ROTATION_H
#define VQ_QUANT_ROTATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "kernels/kernels.h"

typedef struct vq_rotation {
    uint32_t d, m, n_block; /* m blocks of n_block = 2^k */
    uint8_t *signs;         /* bit i: x[i] changes its sign first */
    float *across;          /* [m][m]; NULL for m = 1 */
    const vq_codes_kernels *k;
} vq_rotation;

enum { VQ_ROTATION_MAX_D = 1 << 17, VQ_ROTATION_MAX_M = 512 };

/* Takes the rotation's memory; runs twice, like every layout (base/arena.h). */
void vq_rotation_layout(vq_rotation *r, vq_arena *arena, uint32_t d, bool haar);
/* Draws it.  VQ_ERR_NOMEM when scratch for the m x m matrix does not fit. */
vq_status vq_rotation_draw(vq_rotation *r, const vq_codes_kernels *k, uint64_t seed, vq_error *err);
/* What a cache of this seed draws its first rotation of a layer, kv head and side with. */
uint64_t vq_rotation_seed(uint64_t seed, uint32_t layer, uint32_t head, bool keys);
/* Whether signs and the first row of the m x m matrix (NULL for m = 1) are what vq_rotation_draw gives with this seed,
 * the row to 1e-6: O(d), so that a kept rotation can be held to its seed. */
bool vq_rotation_begins(uint32_t d, uint32_t m, const uint8_t *signs, const float *across, uint64_t seed);
/* The bytes that the signs and M take. */
size_t vq_rotation_bytes(const vq_rotation *r);

/* In place, x [d]; scratch [d]. */
void vq_rotation_apply(const vq_rotation *r, float *x, float *scratch);
void vq_rotation_invert(const vq_rotation *r, float *x, float *scratch);

#endif
