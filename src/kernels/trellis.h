/* Kernels of trellis codes (quant/trelliscode.h): the search for a row's best path, and tiles of decoded rows.
 *
 * A row of coordinates is coded in groups of 8, each with its own number of bits b, 1 to 5; groups with 0 are left out.
 * One bit of each coordinate belongs to the trellis, the other b - 1 choose a level.  A group is b bytes: the trellis
 * bits, coordinate p in bit p, then one byte for each of the other bits, the lowest first.
 *
 * What a trellis bit means depends on the 8 before it.  With the group's byte c and that of the group before, a,
 * coordinate p has the window ((c << 8 | a) >> p) & 511, newest bit highest.  A GF(2)-linear map takes the window to
 * one of 16 sets (a convolutional code; of 8 with 5 bits, so that levels stay 128); a set has 2^(b-1) levels, and the
 * other bits say which.  The group before the first is the last: the path bites its tail, so that a row has no start to
 * pay for.  Every coordinate may thus take one of 2^(b+3) levels (2^7 with 5 bits), of which 2^b are allowed by what
 * came before.
 *
 * A granule (32 rows) stores groups one after the other, byte after byte of a group: 32 bytes, row r at 16 (r/4 % 2)
 * + 4 (r/8) + r%4, which is the order in which tiles come out of byte shuffles.
 *
 * Everything is the same bits on every tier. */
#ifndef VQ_KERNELS_TRELLIS_H
#define VQ_KERNELS_TRELLIS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VQ_TRELLIS_MAX_BITS = 5,
    VQ_TRELLIS_STATES = 256,
    VQ_TRELLIS_WINDOWS = 2 * VQ_TRELLIS_STATES,
    VQ_TRELLIS_SETS = 16,    /* most */
    VQ_TRELLIS_LEVELS = 128, /* most */
    VQ_TRELLIS_TOP_COST = 4095,
    VQ_TRELLIS_MAX_GROUPS = 64, /* of a row that is searched */
    VQ_TRELLIS_ROWS = 32,       /* that are searched side by side */
    VQ_TRELLIS_FUSED = 4,
    VQ_TRELLIS_MAX_TILE = 512 * 64, /* bytes of what dots_values reads as one */
};

/* Of a code of b bits. */
static inline uint32_t vq_trellis_sets(uint32_t bits) { return bits < 5 ? VQ_TRELLIS_SETS : VQ_TRELLIS_SETS / 2; }
static inline uint32_t vq_trellis_n_levels(uint32_t bits) { return vq_trellis_sets(bits) << (bits - 1); }

/* A code of b bits for N(0, 1).  Level sets * other + set is step * (2 value + 1), |2 value + 1| <= 127, as in
 * quant/levels.h. */
typedef struct vq_trellis_code {
    float step, error; /* mean squared error on long rows */
    uint16_t taps[4];  /* bit i of the set is the parity of window & taps[i]; with 8 sets the last is 0 */
    int8_t value[VQ_TRELLIS_LEVELS];
} vq_trellis_code;

extern const vq_trellis_code vq_trellis_gaussian[VQ_TRELLIS_MAX_BITS]; /* [b - 1] */

/* The same, as kernels read it. */
typedef struct vq_trellis_table {
    uint32_t bits, sets;
    float unit; /* of costs: so many to the squared error 1 */
    float level[VQ_TRELLIS_LEVELS];
    uint8_t key[VQ_TRELLIS_LEVELS]; /* value + 64 */
    int8_t value[VQ_TRELLIS_LEVELS];
    uint8_t set[VQ_TRELLIS_WINDOWS];
    /* States 2i and 2i + 1 lead to i and i + 128.  The i by their set[2i]: those of set t from first[t] on. */
    uint8_t first[VQ_TRELLIS_SETS + 1], order[VQ_TRELLIS_STATES / 2];
    /* Of coordinate p, what each nibble adds (xor) to the set: p < 4: low of c, low of a, high of a; else low of c,
     * high of c, high of a. */
    uint8_t nibble[8][3][16];
    /* Of coordinate p, what c, a and the other bits' bytes add to sets * other + set: a bit matrix as GF2P8AFFINEQB has
     * them, the row of bit i in byte 7 - i. */
    uint64_t current[8], before[8], other[VQ_TRELLIS_MAX_BITS - 1][8];
} vq_trellis_table;

typedef struct vq_trellis_kernels {
    vq_trellis_table tables[VQ_TRELLIS_MAX_BITS]; /* [b - 1] */

    /* cost [n][sets][32]: of x [n][32], the squared distance to the nearest level of each set, less that of the nearest
     * set, in units, at most VQ_TRELLIS_TOP_COST. */
    void (*costs)(uint16_t *cost, const float *x, const vq_trellis_table *t, uint32_t n);
    /* 8 coordinates of cost: metric [256][32] of paths to each state (the 8 newest bits, newest highest) before ->
     * after; sums saturate, in the end the least of a row is taken off.  back [8][256]: bit r is the bit that row
     * r's path to the state lost; 0 of equal ones.  Unless `far`, the metrics of a row differ by 8 TOP_COST at most. */
    void (*walk)(uint32_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t, bool far);

    /* Back through what was walked: state [32] after the 8 coordinates -> before them.  x [8][32] becomes the levels of
     * the sets on the way that are nearest to it, the first of equal ones; other [bits - 1][32]: bit p of byte l is bit
     * l of which level of its set that is for coordinate p. */
    void (*trace)(uint8_t *state, float *x, uint8_t *other, const uint32_t *back, const vq_trellis_table *t);

    /* Tiles as in kernels/codes.h, of n_granules (1 or 2) granules of n_groups groups with bits[] each; those of keys
     * have their rows in an order of the tier's own, for its dots_keys.  Groups with 0 bits become 64 (keys) or 0
     * (values), lanes past the groups 0.  What will be read next lies `ahead` bytes further on; 0: not known. */
    void (*unpack_keys)(uint8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                        uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead);
    void (*unpack_values)(int8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                          uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead);
    /* out [n][64], 32 n_granules lanes of each: the rows of a tile times 128 b[..] + b[low + ..], exactly, b [8
     * n_groups] within -64..64; or, low being 0, times b, within -127..127, rows of the second granule times b[second +
     * ..].  Queries are `stride` apart. */
    void (*dots_keys)(int32_t *out, const uint8_t *tile, uint32_t n_groups, uint32_t n_granules, const int8_t *b,
                      size_t low, size_t second, size_t stride, uint32_t n);
    /* For few queries (n <= VQ_TRELLIS_FUSED), without a tile: out [n][8 n_groups] = sums of values times weights
     * b [32 n_granules]. */
    void (*dots_values)(int32_t *out, size_t out_stride, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                        uint32_t n_granules, const vq_trellis_table *tables, const uint8_t *b, size_t b_stride,
                        uint32_t n, ptrdiff_t ahead);
} vq_trellis_kernels;

/* Where row r of a granule stands among the 32 bytes of each of its bytes. */
static inline uint32_t vq_trellis_place(uint32_t r) { return 16 * (r / 4 % 2) + 4 * (r / 8) + r % 4; }

/* Bytes of one row. */
static inline uint32_t vq_trellis_row_bytes(const uint8_t *bits, uint32_t n_groups)
{
    uint32_t n = 0;
    for (uint32_t g = 0; g < n_groups; g++)
        n += bits[g];
    return n;
}

/* The paths of least cost through 32 rows x [8 n_groups][32], n_groups at most VQ_TRELLIS_MAX_GROUPS -> codes
 * [32][vq_trellis_row_bytes].  x becomes what they stand for, 0 where there are none. */
void vq_trellis_search(const vq_trellis_kernels *k, uint8_t *codes, float *x, const uint8_t *bits, uint32_t n_groups);
/* What the codes of a row stand for: level [8 n_groups], 0 where there are none. */
void vq_trellis_levels(const vq_trellis_kernels *k, float *level, const uint8_t *codes, const uint8_t *bits,
                       uint32_t n_groups);

/* For searching codes: the tables of `code`, of b bits. */
void vq_trellis_table_make(vq_trellis_table *t, const vq_trellis_code *code, uint32_t bits);
void vq_trellis_kernels_init(vq_trellis_kernels *k, uint32_t cpu);

#endif
