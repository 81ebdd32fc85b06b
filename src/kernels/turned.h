/* Kernels of a vector n that the 32 rows of a granule share and that turns with them (quant/turned.h): the products of
 * queries and R(i) n, row by row.
 *
 * With pairs of channels (a, b) that turn by an angle that is odd about the granule's middle,
 *
 *     q . R(i) n = still + sum over pairs of cos (q_a n_a + q_b n_b) + sin (q_b n_a - q_a n_b),
 *
 * so rows 15 - m and 16 + m have the same sums over cosines and opposite ones over sines, and only 16 of each are
 * formed.  Tiers agree within rounding; a query's scores do not depend on which others are computed with it. */
#ifndef VQ_KERNELS_TURNED_H
#define VQ_KERNELS_TURNED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VQ_TURNED_ROWS = 32,
    VQ_TURNED_HALF = VQ_TURNED_ROWS / 2,
    VQ_TURNED_MAX_D = 512,
    VQ_TURNED_PAIRS = VQ_TURNED_MAX_D + 32, /* floats that the products of a query may take */
};

/* Which channels turn: pairs (f, f + apart) when halves, else (2f, 2f + 1), for f < n_pairs; 2 n_pairs <= d. */
typedef struct vq_turned_shape {
    uint32_t d, n_pairs, apart;
    bool halves;
} vq_turned_shape;

/* Where the products of a pair lie among a query's: that of the cosine at f * step, that of the sine `sine` further. */
static inline uint32_t vq_turned_step(const vq_turned_shape *s) { return s->halves ? 1 : 2; }
static inline uint32_t vq_turned_sine(const vq_turned_shape *s) { return s->halves ? (s->n_pairs + 15) / 16 * 16 : 1; }

typedef struct vq_turned_kernels {
    /* pairs [VQ_TURNED_PAIRS], of which what lies between the products may be overwritten; returns still */
    float (*products)(float *pairs, const vq_turned_shape *s, const float *q, const float *n);
    /* out [n_rows] out_stride apart, 32 each, += scores; pairs VQ_TURNED_PAIRS apart, still [n_rows], table [n_pairs]:
     * 127 times cosine and sine m + 1/2 steps behind the middle */
    void (*scores)(float *out, size_t out_stride, const vq_turned_shape *s, const float *pairs, const float *still,
                   uint32_t n_rows, const int8_t (*table)[2][VQ_TURNED_HALF]);
} vq_turned_kernels;

void vq_turned_kernels_init(vq_turned_kernels *k, uint32_t cpu);

#endif
