/* Additive codes that commute with rotary positions (CommVQ).
 *
 * A row is a list of pairs, each a complex number that positions turn; sub-vectors are 4 pairs long.  A sub-vector is
 * coded as y^ = sum of s_n Z_n over 4 atoms Z_n in C^4 for each bit a value, with s_n one of +-1 +- i, two bits.  s_n
 * Z_n as a real matrix is a column of 2x2 blocks (a, -b; b, a), which commute with turns: turning every pair of every
 * atom turns whatever is coded with them.  The atoms are all of the codebook: 16 bytes a value and bit. */
#ifndef VQ_QUANT_ATOMS_H
#define VQ_QUANT_ATOMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/nearest.h"

enum { VQ_ATOM_ROWS = VQ_NEAREST_ROWS };

typedef struct vq_atoms {
    uint32_t n_sub, bits; /* bytes of a sub-vector */
    const float *z;       /* [n_sub][4 * bits][8]: real and imaginary parts of 4 pairs */
    const vq_nearest_kernels *k;
} vq_atoms;

static inline size_t vq_atoms_floats(uint32_t n_sub, uint32_t bits)
{
    return (size_t)n_sub * bits * VQ_ATOMS_A_BYTE * VQ_ATOM_VALUES;
}

/* Which channel of a row of d values stands at each place of a list of pairs: pairs that positions turn first (n_rot of
 * the values; (i, i + n_rot/2) when `halves`, else neighbours), then the rest. d is even. */
void vq_atoms_order(uint16_t *order, uint32_t d, uint32_t n_rot, bool halves);

/* Atoms z for pairs x [n][n_sub * 8], by expectation and maximisation: codes for the atoms, atoms by least squares for
 * the codes, from quantisers of single values on.  VQ_ERR_NOMEM. */
vq_status vq_atoms_train(float *z, const vq_nearest_kernels *k, uint32_t n_sub, uint32_t bits, const float *x,
                         uint32_t n, vq_error *err);

/* VQ_ATOM_ROWS rows of pairs x are a granule: codes [n_sub * bits][VQ_ATOM_ROWS], one byte each. */
static inline size_t vq_atoms_granule_bytes(const vq_atoms *a) { return (size_t)a->n_sub * a->bits * VQ_ATOM_ROWS; }
void vq_atoms_encode(const vq_atoms *a, uint8_t *granule, const float *x);
/* Rows [first, first + n) of granules, x [n][n_sub * 8]. */
void vq_atoms_decode(const vq_atoms *a, const uint8_t *granules, uint32_t first, uint32_t n, float *x);
/* Where a row's byte is. */
static inline size_t vq_atoms_at(const vq_atoms *a, uint32_t row, uint32_t byte)
{
    return row / VQ_ATOM_ROWS * vq_atoms_granule_bytes(a) + byte * VQ_ATOM_ROWS + row % VQ_ATOM_ROWS;
}

#endif
