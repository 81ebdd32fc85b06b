/* Rows of codes whose bits differ by dimension: what a calibrated basis asks for, where the first dimensions vary much
 * and the last ones little.
 *
 * Dimension j of a row stands for gain * scale[j] * level[code], in groups of 8 dimensions with 1 to 7 bits each (from
 * 5 on uniform levels, which fit the narrow grid of levels.h and lose a third of a bit at 7).
 * Groups with the same bits form a segment; bits never rise from group to group, so there are few.  Scales and the
 * steps of the levels are folded into the query (keys) and into what is summed (values), so that a row costs what a row
 * of equal bits costs.
 *
 * Levels are those of Lloyd-Max divided by 1 - their error, so that each coordinate comes back unshrunk on average:
 * what codes lose then averages out over the rows that attention sums up, which a shrinkage does not.  The gain is
 * stored fitted to the codes, <y,y>/<y,l>, for the same reason. */
#ifndef VQ_QUANT_MIXCODE_H
#define VQ_QUANT_MIXCODE_H

#include "quant/levels.h"
#include "quant/rowcode.h"

enum { VQ_MIXCODE_MAX_BITS = 4, VQ_MIXCODE_TOP_BITS = 7, VQ_MIXCODE_MAX_GROUPS = VQ_ROWCODE_MAX_D / VQ_CODES_GROUP };

typedef struct vq_mix_segment {
    uint32_t bits, first_group, n_groups;
    size_t at; /* of its two granules in a page's codes */
} vq_mix_segment;

typedef struct vq_mixcode {
    const vq_codes_kernels *k;
    const float *scale; /* [width], 0 past d */
    uint32_t d, n_groups;
    uint32_t width; /* 8 n_groups */
    uint32_t n_segments;
    vq_mix_segment segments[VQ_MIXCODE_TOP_BITS];
    size_t page_bytes; /* codes of two granules */
    bool keys;
} vq_mixcode;

/* Bits by reverse water-filling: each group of 8 dimensions has one, and of the other of n_bits bits one after another
 * goes to where it takes most off the error, variance[] [8 n_groups] times that of a level.  variance must not rise
 * from group to group.  Up to VQ_MIXCODE_MAX_BITS each.  bits [n_groups], n_bits at least n_groups. */
void vq_mix_allocate(uint8_t *bits, const float *variance, uint32_t n_groups, uint32_t n_bits);

/* The same from nothing upwards: groups whose variance lies below the water get no bits, and others up to `most`, at
 * most VQ_MIXCODE_TOP_BITS.  Returns how many groups have any; they come first. */
uint32_t vq_mix_fill(uint8_t *bits, const float *variance, uint32_t n_groups, uint32_t n_bits, uint32_t most);

/* bits [(d + 7) / 8], at least 1 each */
void vq_mixcode_make(vq_mixcode *m, const uint8_t *bits, const float *scale, const vq_codes_kernels *k, uint32_t d,
                     bool keys);

/* y [width] -> codes [width]; returns the gain, 0 for a row that vanishes. */
float vq_mixcode_encode(const vq_mixcode *m, uint8_t *codes, const float *y);
/* What codes [width] and the gain of one row stand for: y [width]. */
void vq_mixcode_row(const vq_mixcode *m, const uint8_t *codes, float gain, float *y);
/* codes [32][width] into granule 0 or 1 of a page's codes */
void vq_mixcode_pack(const vq_mixcode *m, uint8_t *page, uint32_t granule, const uint8_t *codes);
/* Rows [first, first + n) -> y [n][width]; gains [64]. */
void vq_mixcode_decode(const vq_mixcode *m, const uint8_t *page, const float *gains, uint32_t n_granules,
                       uint32_t first, uint32_t n, float *y);

/* Scores: the query is q [width] in the basis. */
size_t vq_mixcode_query_bytes(const vq_mixcode *m); /* a multiple of 64 */
void vq_mixcode_prepare(const vq_mixcode *m, void *query, const float *q);
/* out [n][64] = bases [n][2] (one a granule; NULL: 0) + gain * dot */
void vq_mixcode_score(const vq_mixcode *m, const uint8_t *page, const uint8_t *next, const float *gains,
                      uint32_t n_granules, const void *queries, size_t stride, uint32_t n, const float *bases,
                      float *out);
/* acc [n] acc_stride apart, [width] each, += weights [n][64] times rows, to be multiplied by the scales once. */
void vq_mixcode_mix(const vq_mixcode *m, const uint8_t *page, const uint8_t *next, const float *gains,
                    uint32_t n_granules, const float *weights, uint32_t n, float *acc, size_t acc_stride);

#endif
