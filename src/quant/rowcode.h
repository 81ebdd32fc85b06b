/* Rows of codes: keys, values and weight matrices as rows of level codes in a rotated space, with one f16 norm a row.
 *
 * A row x becomes y = R x and codes of y / rms(y); x^ = R' (g level[code]).  The stored norm g is not the rms but
 * fitted to the codes, which costs nothing: least squares, <y,l>/<l,l>, makes the best reconstruction; the unbiased
 * one, <y,y>/<y,l>, makes <x,x^> = <x,x>, so that inner products with a row are not shrunk.  Values take the first; for
 * keys each codec chooses.
 *
 * A query is rotated once, quantised once, and then meets codes only; sums of rows are formed in the rotated space and
 * rotated back once.  Everything is the same bits on every tier.
 *
 * Rows of all zeros, and rows whose norm rounds to zero in f16, decode to zeros; norms saturate at 65504. */
#ifndef VQ_QUANT_ROWCODE_H
#define VQ_QUANT_ROWCODE_H

#include "quant/levels.h"
#include "quant/rotation.h"

enum { VQ_ROWCODE_MAX_D = 512, VQ_ROWCODE_SCALAR_BYTES = 64 };

typedef enum vq_rowcode_fit {
    VQ_FIT_LEAST_SQUARES,
    VQ_FIT_UNBIASED,
    VQ_FIT_SKETCH, /* signs only: |y| sqrt(pi / 2d), which is unbiased over rotations (QJL) */
} vq_rowcode_fit;

typedef struct vq_rowcode {
    const vq_levels *levels;
    const vq_rotation *rotation; /* NULL: rows are coded as they are */
    const vq_codes_kernels *k;
    uint32_t d, n_groups; /* length; groups of 8 dimensions */
    bool keys;            /* packed for products over dimensions, else over rows */
    bool search;          /* uniform levels: the scale of each row is searched for the largest cosine */
    bool wide_query;      /* queries as 14 bits; always with wide levels */
    vq_rowcode_fit fit;
} vq_rowcode;

/* d in 1..VQ_ROWCODE_MAX_D; the query is wide from 5 bits on, where 8 would be heard. */
vq_rowcode vq_rowcode_make(const vq_levels *levels, const vq_rotation *rotation, const vq_codes_kernels *k, uint32_t d,
                           bool keys, vq_rowcode_fit fit);

/* Bytes of codes of one granule of 32 rows. */
size_t vq_rowcode_granule_bytes(const vq_rowcode *rc);

/* y [d], within +-2^40: past that, squares overflow, and the norm saturates long before. */
void vq_rowcode_limit(const vq_rowcode *rc, float *y);
/* One row that is limited and rotated: y [d] -> codes [8 n_groups], zeros past d; returns the norm.  subtract takes the
 * coded row away: y -= y^. */
uint16_t vq_rowcode_encode_rotated(const vq_rowcode *rc, uint8_t *codes, const float *y);
void vq_rowcode_subtract(const vq_rowcode *rc, const uint8_t *codes, uint16_t norm, float *y);
/* 32 rows of codes, 8 n_groups apart -> a granule */
void vq_rowcode_pack(const vq_rowcode *rc, uint8_t *packed, const uint8_t *codes);
/* Row i of dst's codes becomes row j of src's: two granules each, one after the other. */
void vq_rowcode_copy_row(const vq_rowcode *rc, uint8_t *dst, uint32_t i, const uint8_t *src, uint32_t j);
/* x [32][d] -> a granule of codes and norms [32] */
void vq_rowcode_encode(const vq_rowcode *rc, uint8_t *packed, uint16_t *norms, const float *x);
/* Rows [first, first + n) of n_granules granules -> y [n][d], rotated still (norms [64] as floats), or x [n][d] */
void vq_rowcode_decode_rotated(const vq_rowcode *rc, const uint8_t *packed, const float *norms, uint32_t n_granules,
                               uint32_t first, uint32_t n, float *y);
void vq_rowcode_decode(const vq_rowcode *rc, const uint8_t *packed, const uint16_t *norms, uint32_t n_granules,
                       uint32_t first, uint32_t n, float *x);

/* A multiple of 64. */
size_t vq_rowcode_query_bytes(const vq_rowcode *rc);
void vq_rowcode_prepare_rotated(const vq_rowcode *rc, void *query, const float *y);
void vq_rowcode_prepare(const vq_rowcode *rc, void *query, const float *q);
/* A vector that was taken off all rows of a granule (keys), as narrow levels: its product with the query is added back
 * to every score. */
typedef struct vq_rowcode_mean {
    uint8_t u[VQ_ROWCODE_MAX_D]; /* narrow levels as unsigned bytes, anything past d */
    float scale;                 /* what one v (quant/levels.h) stands for */
} vq_rowcode_mean;

/* Codes and norms of a page, of which n_granules (1 or 2) are there.  `next`: the codes that will be read after these,
 * or NULL. */
typedef struct vq_rowcode_page {
    const uint8_t *packed, *next;
    const float *norms;           /* [64], zeros from row 32 n_granules on */
    const vq_rowcode_mean *means; /* [n_granules]; NULL: rows are all there is */
    uint32_t n_granules;
} vq_rowcode_page;

/* out [n][64] = q . x^ for the rows of the granules, zeros past them; queries stride bytes apart */
void vq_rowcode_score(const vq_rowcode *rc, const vq_rowcode_page *page, const void *queries, size_t stride, uint32_t n,
                      float *out);
/* For queries that are integers already and differ by granule: the page's codes as a tile [d * 64], and dots [n][64] of
 * one granule's rows (in their 32 lanes) with b [n] of 8 n_groups bytes, `stride` apart; tile NULL: at most 4 queries.
 * Narrow levels and queries only. */
void vq_rowcode_unpack_keys(const vq_rowcode *rc, const vq_rowcode_page *page, uint8_t *tile);
void vq_rowcode_dots(const vq_rowcode *rc, const vq_rowcode_page *page, const uint8_t *tile, uint32_t granule,
                     const int8_t *b, size_t stride, uint32_t n, int32_t *dots);
/* acc [n] rows acc_stride apart, d each += sum over rows of weights [n][64] * norms * level, in the rotated space;
 * weights must be 0, not just absent, past the last row */
void vq_rowcode_mix(const vq_rowcode *rc, const vq_rowcode_page *page, const float *weights, uint32_t n, float *acc,
                    size_t acc_stride);

/* norms [64] of a page as floats, zeros from row 32 * n_granules on */
void vq_rowcode_norms(const vq_rowcode *rc, float *out, const uint16_t *norms, uint32_t n_granules);

#endif
