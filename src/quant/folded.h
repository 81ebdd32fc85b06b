/* Queries of rows whose channels have scales (kernels/folded.h): kept as 16-bit integers in the order of channels, then
 * folded, rotated and rounded to 8 bits for every granule that they meet.
 *
 * For rotations that are one Hadamard matrix behind signs; signs commute with scales and go to the query once. */
#ifndef VQ_QUANT_FOLDED_H
#define VQ_QUANT_FOLDED_H

#include "kernels/kernels.h"
#include "quant/rotation.h"
#include "quant/rowcode.h"

enum { VQ_FOLDED_AT_ONCE = 12 };

typedef struct vq_folding {
    const vq_folded_kernels *fold;
    const vq_codes_kernels *k;
    const vq_rotation *rotation;
    uint32_t d;
    float step;           /* what 1 of the rows' codes stands for .. */
    const int16_t *steps; /* [d]: .. times this over 32767; NULL: everywhere */
} vq_folding;

/* What queries became that meet the granules of a page. */
typedef struct vq_folded_page {
    int8_t rounded[VQ_FOLDED_AT_ONCE][2][VQ_FOLDED_MOST_N]; /* granule by granule */
    int32_t centre[VQ_FOLDED_AT_ONCE][2];
    float scale[VQ_FOLDED_AT_ONCE][2], base[VQ_FOLDED_AT_ONCE][2];
} vq_folded_page;

/* Whether rows of d channels under this rotation can be met so. */
bool vq_folding_fits(const vq_rotation *rotation);

size_t vq_folding_query_bytes(const vq_folding *f); /* a multiple of 64 */
void vq_folding_prepare(const vq_folding *f, void *query, const float *q);
/* n queries, at most VQ_FOLDED_AT_ONCE, stride bytes apart, for one granule (0 or 1): its channels' nibbles and what
 * was taken off its rows. */
void vq_folding_meet(const vq_folding *f, vq_folded_page *page, uint32_t granule, const void *queries, size_t stride,
                     uint32_t n, const uint8_t *channels, const vq_rowcode_mean *mean);
/* out [n][64] from dots [n][64] of rows and rounded queries; gains [64]; rows past the granules become 0 */
void vq_folding_finish(const vq_folding *f, const vq_folded_page *page, const int32_t *dots, uint32_t n_granules,
                       uint32_t n, const float *gains, float *out);

#endif
