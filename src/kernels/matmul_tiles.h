/* The loops of a tier that keeps rows of weights in the lanes of a register: which rows a tile holds, unpacking it once
 * for all tokens, cuts along the input that fit L1, where results go.  A tier gives what runs inside.
 *
 * Unpacked codes are records of 32 values of `lanes` rows, codes with their offset as unsigned bytes:
 *
 *     codes [8][lanes][4] | scales [1 or 2][lanes] f32 | minima [0, 1 or 2][lanes] f32
 *
 * so that a dot product of 4 bytes a lane with a broadcast of 4 activations adds 4 products of each row.  Unpacked
 * floats are [n][lanes]. */
#ifndef VQ_KERNELS_MATMUL_TILES_H
#define VQ_KERNELS_MATMUL_TILES_H

#include "kernels/matmul_tier.h"

enum {
    VQ_TILE_LANES = 16,  /* most */
    VQ_TILES = 2,        /* most that are multiplied side by side */
    VQ_TILE_BLOCKS = 32, /* unpacked at once */
    VQ_TILE_FLOATS = 256,
};

/* Tiles of rows times one group of tokens.  All sizes that a kernel needs to know. */
typedef struct vq_tile {
    const void *w[VQ_TILES]; /* unpacked */
    const void *group;       /* the activations that belong to them */
    uint32_t n;              /* blocks, or values in f32 */
    uint32_t n_tokens;       /* of the group */
    uint32_t shift;          /* log2 of the codes' offset */
    bool first;              /* results start from zero, else from what a cut before left in out */
    float *out[VQ_TILES];    /* of the first lane and token */
    uint32_t skip[VQ_TILES]; /* this many lanes are another tile's: not to be written */
    size_t out_stride;
} vq_tile;

typedef void (*vq_tile_fn)(const vq_tile *tile);
/* Records of blocks [b, b + n) of `lanes` rows that are stride bytes apart; of the K types b and n are multiples of 8.
 */
typedef void (*vq_unpack_fn)(uint8_t *out, const uint8_t *rows, size_t stride, uint32_t b, uint32_t n);

typedef struct vq_tiling {
    uint32_t lanes;
    uint32_t side_int8, side_f32; /* tiles multiplied side by side */
    const vq_unpack_fn *unpack;   /* [VQ_N_TYPES] */
    /* Values [i, i + n) of rows of floats. */
    void (*unpack_floats)(vq_type type, float *out, const uint8_t *rows, size_t stride, uint32_t i, uint32_t n);
    /* One record as [32][lanes] floats. */
    void (*record_f32)(float *out, const uint8_t *record, const vq_matmul_traits *traits);
    vq_tile_fn multiply[VQ_N_TYPES], multiply_f32;
} vq_tiling;

static inline size_t vq_record_bytes(const vq_matmul_traits *t, uint32_t lanes)
{
    return (8 + (size_t)(t->halves ? 2 : 1) * (t->minima ? 2 : 1)) * lanes * 4;
}

/* The first of the `lanes` rows that a tile at `row` holds: they lie inside the matrix, which has that many. */
static inline uint32_t vq_tile_row(const vq_matmul_part *part, uint32_t row, uint32_t lanes)
{
    const uint32_t last = part->w->n_out - lanes;
    return row < last ? row : last;
}

/* Whether this part can be done in tiles. */
static inline bool vq_tiles_fit(const vq_matmul_part *part)
{
    return part->w->n_out >= VQ_TILE_LANES &&
           vq_matmul_row_bytes(part->w->type, part->w->n_in) <= INT32_MAX / VQ_TILE_LANES; /* offsets of a gather */
}

void vq_tiles_run(const vq_tiling *tiling, const vq_matmul_part *part, void *scratch);

#endif
