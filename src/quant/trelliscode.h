/* Rows of trellis codes (kernels/trellis.h) whose bits differ by dimension: what a calibrated basis asks for, and, with
 * the same bits everywhere or one of two numbers, any rate in between for rotated rows.
 *
 * Dimensions go in groups of 8, each with a scale and 0 to 5 bits, in any order: a dimension stands for gain * scale *
 * level, level being one of a code for N(0, 1).  Scales and the steps of the levels are folded into the query (keys)
 * and into what is summed (values), so that a row costs what a row of equal bits costs.
 *
 * At 1 to 4 bits the error of a row of 64 is 0.65 to 1.05 dB above the bound of rate and distortion, and 0.2 dB less on
 * long rows, at 5 bits 1.45 dB and 0.25 less; Lloyd-Max quantisers are at 1.6, 2.7, 3.4, 3.9 and 4.1 dB.
 *
 * The gain is stored fitted to the codes, <y,y>/<y,l>: rows then come back unshrunk, and what codes lose averages out
 * over the rows that attention sums up, which a shrinkage does not. */
#ifndef VQ_QUANT_TRELLISCODE_H
#define VQ_QUANT_TRELLISCODE_H

#include "kernels/kernels.h"
#include "quant/rowcode.h"

enum { VQ_TRELLISCODE_MAX_GROUPS = VQ_ROWCODE_MAX_D / VQ_CODES_GROUP };

typedef struct vq_trelliscode {
    const vq_codes_kernels *k;
    const vq_trellis_kernels *trellis;
    const float *scale; /* [n_groups] */
    uint32_t d, n_groups;
    uint32_t width; /* 8 n_groups */
    uint32_t row_bytes;
    size_t page_bytes; /* codes of two granules */
    bool keys;
    bool narrow; /* queries of 8 bits instead of 14 */
    uint8_t bits[VQ_TRELLISCODE_MAX_GROUPS];
    uint8_t alike[VQ_TRELLISCODE_MAX_GROUPS]; /* how many groups from this one on have its bits */
} vq_trelliscode;

/* Squared error of rows of `bits` bits (0 to 5) to that of 1, when gains do not shrink them: for sharing bits out. */
float vq_trelliscode_noise(uint32_t bits);
/* Reverse water-filling: n_bits over groups that vary by energy [n_groups] -> bits [n_groups]; one after another goes
 * to where it takes most off the error. */
void vq_trelliscode_fill(uint8_t *bits, const float *energy, uint32_t n_groups, uint32_t n_bits);

/* bits and scale [(d + 7) / 8]; scale is kept, bits are not.  narrow: 8 bits of a query will do, as its
 * coordinates are rotated and have one scale, or as bits are few. */
void vq_trelliscode_make(vq_trelliscode *m, const uint8_t *bits, const float *scale, const vq_kernels *k, uint32_t d,
                         bool keys, bool narrow);

/* A granule: rows y [32][d], `stride` floats apart -> codes [32][row_bytes] and gains [32], 0 for rows that vanish. */
void vq_trelliscode_encode(const vq_trelliscode *m, uint8_t *codes, float *gains, const float *y, size_t stride);
/* codes [32][row_bytes] into granule 0 or 1 of a page's codes */
void vq_trelliscode_pack(const vq_trelliscode *m, uint8_t *page, uint32_t granule, const uint8_t *codes);
/* Row i of dst's codes becomes row j of src's, both pages. */
void vq_trelliscode_copy_row(const vq_trelliscode *m, uint8_t *dst, uint32_t i, const uint8_t *src, uint32_t j);
/* Rows [first, first + n) -> y [n][width]; gains [64]. */
void vq_trelliscode_decode(const vq_trelliscode *m, const uint8_t *page, const float *gains, uint32_t first, uint32_t n,
                           float *y);

/* Scores: the query is q [width] in the basis. */
size_t vq_trelliscode_query_bytes(const vq_trelliscode *m); /* a multiple of 64 */
void vq_trelliscode_prepare(const vq_trelliscode *m, void *query, const float *q);
/* out [n][64] = bases [n][2] (one a granule; NULL: 0) + gain * dot; gains [64].  n_granules granules (1 or 2) are
 * there; lanes past them become 0.  next: the page that will be read after this, or NULL. */
void vq_trelliscode_score(const vq_trelliscode *m, const uint8_t *page, const uint8_t *next, const float *gains,
                          uint32_t n_granules, const void *queries, size_t stride, uint32_t n, const float *bases,
                          float *out);
/* For queries that are integers already and differ by granule: the page's codes as a tile [width * 64], and dots
 * [n][64] of its rows with b [n] of width bytes, `stride` apart, those for the second granule `second` bytes further.
 * What 1 of the codes stands for is what vq_trelliscode_steps returns times steps[j] / 32767 at coordinate j; steps
 * [width].
 */
float vq_trelliscode_steps(const vq_trelliscode *m, int16_t *steps);
void vq_trelliscode_unpack_keys(const vq_trelliscode *m, const uint8_t *page, const uint8_t *next, uint32_t n_granules,
                                uint8_t *tile);
void vq_trelliscode_dots(const vq_trelliscode *m, const uint8_t *tile, uint32_t n_granules, const int8_t *b,
                         size_t second, size_t stride, uint32_t n, int32_t *dots);
/* acc [n] acc_stride apart, [width] each, += weights [n][64] times rows, to be multiplied by the scales once; gains 0
 * past the granules. */
void vq_trelliscode_mix(const vq_trelliscode *m, const uint8_t *page, const uint8_t *next, const float *gains,
                        uint32_t n_granules, const float *weights, uint32_t n, float *acc, size_t acc_stride);

#endif
