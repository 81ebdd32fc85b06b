/* A vector that 32 neighbouring keys share and that turns with their positions, as RoPE turns keys.
 *
 * Row i of a granule has R(i) n of it.  Only pairs of channels that turn fast enough to matter within 32 rows are
 * turned; the others, and channels past RoPE's, have n itself.  R(i) is counted from the middle of the granule.  Every
 * head holds its own turns, so that they count: half a step of each pair.  Cosines and sines follow from it when a
 * query is prepared, as bytes: whoever takes R(i) n off a row and whoever adds it back use the same ones, so that their
 * rounding costs nothing.  Rows need not stand at neighbouring positions: the further they are, the less they share. */
#ifndef VQ_QUANT_TURNED_H
#define VQ_QUANT_TURNED_H

#include "base/arena.h"
#include "kernels/kernels.h"
#include "veloxquant/kv.h"

typedef struct vq_turned {
    const vq_turned_kernels *k;
    vq_turned_shape shape;
    float *half_step; /* [n_pairs]: sines of half a position's turn, which is a right angle at most */
} vq_turned;

/* Of a pair: cosines and sines m + 1/2 steps behind the middle. */
typedef int8_t vq_turned_steps[2][VQ_TURNED_HALF];

/* Takes the table's memory; runs twice, like every layout (base/arena.h).  rope NULL: nothing turns. */
void vq_turned_layout(vq_turned *t, vq_arena *arena, uint32_t d, const vq_kv_rope *rope);
void vq_turned_fill(vq_turned *t, const vq_kernels *k, const vq_kv_rope *rope);
size_t vq_turned_bytes(const vq_turned *t);
/* Whether channel j is turned, and which other one it turns with. */
bool vq_turned_pair(const vq_turned *t, uint32_t j, uint32_t *other);

/* sum [d] += R(i)' x(i) over a granule's rows x [32][d] */
void vq_turned_back(const vq_turned *t, const float *x, float *sum);
/* x(i) += sign R(i) n of rows [first, first + n_rows) of a granule, x [n_rows][d] */
void vq_turned_add(const vq_turned *t, uint32_t first, uint32_t n_rows, float sign, const float *n, float *x);
/* table [n_pairs] */
void vq_turned_open(const vq_turned *t, vq_turned_steps *table);
/* out [n_queries][2][32] += q . R(i) n for the vectors n [n_granules][VQ_TURNED_MAX_D] of one or two granules; queries
 * q [d] are stride floats apart */
void vq_turned_scores(const vq_turned *t, const vq_turned_steps *table, const float *n, uint32_t n_granules,
                      const float *q, size_t stride, uint32_t n_queries, float *out);

#endif
