/* Matrices whose rows are codes of 2, 3 or 4 bits into one table of levels, with one norm a row: how they lie in memory
 * and what a product with them is.
 *
 *     w[r][i] = norm[r] * step * v[code[r][i]]        v = 2 u - 127, u = levels[code] in 0..127
 *
 * Memory, every part padded to 64 bytes with zeros:
 *
 *     norms  [n_out rounded up to 16] f16
 *     tiles  of 16 rows, one after the other; rows past n_out are zeros
 *
 * A tile is read from start to end: for each block of 32 values `bits` registers of 64 bytes, of which dword r belongs
 * to row r.  Value i = 4k + j of a block (k < 8, j < 4) is in byte j of that dword:
 *
 *     4 bits    register k % 4, bits 4 (k / 4) ..
 *     2 bits    register k % 2, bits 2 (k / 2) ..
 *     3 bits    the two low bits as above, the third in register 2, bit k
 *
 * Values past n_in are codes 0; what multiplies them is zero.
 *
 * Activations (VQ_ACT_ROWS): bytes a = x (127 / max|x|) to nearest even with one scale a token, since a rotated input
 * has values of one size.  A product is then one sum of integers over the whole row, with any order and any tier the
 * same bits:
 *
 *     out = (float)(sum v a) * ((norm * step) * d)        |sum| <= 127 * 127 * 2^17 < 2^31
 *
 * In exact mode w = (float)v * (norm * step), rounded once, and out is as matmul_tier.h says of f32 products. */
#ifndef VQ_KERNELS_MATMUL_PACKED_H
#define VQ_KERNELS_MATMUL_PACKED_H

#include "kernels/matmul_tier.h"

enum {
    VQ_PACKED_LANES = 16, /* rows of a tile */
    VQ_PACKED_MOST_IN = 1 << 17,
    VQ_PACKED_HEAD = 64, /* bytes before the codes of a token's activations */
};

typedef struct vq_packed_head {
    float d;
    int32_t sum; /* of the codes */
} vq_packed_head;

static inline uint32_t vq_packed_bits(vq_type type)
{
    return type == VQ_TYPE_VQ2 ? 2 : type == VQ_TYPE_VQ3 ? 3 : type == VQ_TYPE_VQ4 ? 4 : 0;
}

static inline uint32_t vq_packed_blocks(uint32_t n_in) { return n_in / 32 + (n_in % 32 != 0); }

static inline size_t vq_packed_norm_bytes(uint32_t n_out) { return ((size_t)n_out + 31) / 32 * 64; }

static inline size_t vq_packed_tile_bytes(uint32_t bits, uint32_t n_in)
{
    return (size_t)vq_packed_blocks(n_in) * 64 * bits;
}

/* Bytes of prepared activations of one token. */
static inline size_t vq_packed_token_bytes(uint32_t n_in) { return VQ_PACKED_HEAD + ((size_t)n_in + 63) / 64 * 64; }

/* The tile that holds row `row`. */
static inline const uint8_t *vq_packed_tile(const vq_matrix *w, uint32_t row)
{
    return (const uint8_t *)w->data + vq_packed_norm_bytes(w->n_out) +
           row / VQ_PACKED_LANES * vq_packed_tile_bytes(vq_packed_bits(w->type), w->n_in);
}

/* Row r of a tile from codes [n_in] and back; other rows' bytes are not touched. */
void vq_packed_put(uint8_t *tile, uint32_t r, uint32_t bits, const uint8_t *codes, uint32_t n_in);
void vq_packed_get(uint8_t *codes, const uint8_t *tile, uint32_t r, uint32_t bits, uint32_t n_in);

/* A part of a product whose rows begin at a multiple of 32 and end at one or with the matrix.  scratch:
 * VQ_MATMUL_SCRATCH bytes. */
void vq_packed_run_c(const vq_matmul_part *part, void *scratch);
#if defined(__x86_64__)
void vq_packed_run_avx2(const vq_matmul_part *part, void *scratch);
void vq_packed_run_avx512(const vq_matmul_part *part, void *scratch);
#endif

/* ---- what a tier with 16 rows in its lanes gives, for the loops of vq_packed_run_tiles ---- */

enum {
    VQ_PACKED_SIDE = 2,   /* tiles side by side */
    VQ_PACKED_CUT = 1024, /* values of a row that are unpacked at once, for many tokens: two tiles of them fit L1 */
};

/* Tiles times a group of at most VQ_MATMUL_GROUP tokens, over a cut along the input. */
typedef struct vq_packed_step {
    const uint8_t *w[VQ_PACKED_SIDE]; /* [n_dwords][16 rows][4]: u of each value; exact: floats [n][16] in w[0] */
    float scale[VQ_PACKED_SIDE][VQ_PACKED_LANES]; /* norm * step */
    float *out[VQ_PACKED_SIDE];                   /* of the tile's first row and the group's first token */
    uint32_t n_rows[VQ_PACKED_SIDE];              /* to be written; 0 where there is no tile */
    size_t out_stride;
    const uint8_t *tokens; /* the group's first token; exact: [n][n_tokens] floats of the cut */
    size_t token_bytes;
    uint32_t n_tokens, first_dword, n_dwords; /* of the cut; exact: n_dwords counts values */
    bool first, last; /* cuts; between them out holds sums: integers of (u - 64) a, exact: floats */
} vq_packed_step;

typedef struct vq_packed_tier {
    /* n_blocks blocks of a tile as u [8 n_blocks][16][4], [bits - 2] */
    void (*unpack[3])(uint8_t *out, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels);
    /* u as floats (float)(2 u - 127) * scale: [4 n_dwords][16] */
    void (*floats)(float *out, const uint8_t *u, uint32_t n_dwords, const float *scale);
    void (*multiply)(const vq_packed_step *step);
    void (*multiply_f32)(const vq_packed_step *step);
    /* A whole tile times one token, [bits - 2]; scale [16], n_rows of out are written */
    void (*one[3])(float *out, uint32_t n_rows, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels,
                   const float *scale, const uint8_t *token);
} vq_packed_tier;

void vq_packed_run_tiles(const vq_packed_tier *tier, const vq_matmul_part *part, void *scratch);

#endif
