/* The key that sinks inside of a text have.
 *
 * Some tokens, one in a hundred, become sinks wherever they stand: much attention rests on them in most layers, and
 * their keys are all alike before RoPE, small, and unlike those around them.  What a head knows of its sinks' key,
 * turned to where a row stands, is all but a little of such a row; what its neighbours share is worse than nothing.
 *
 * The turned key is the same bits everywhere: whoever takes it off a row and whoever adds it back get the same one. */
#ifndef VQ_QUANT_SINK_H
#define VQ_QUANT_SINK_H

#include "base/arena.h"
#include "veloxquant/kv.h"

enum { VQ_SINK_MAX_D = 512 };

typedef struct vq_sink {
    uint32_t d, n_pairs; /* n_pairs 0: nothing is known of sinks */
    bool halves;
    float scale;
    int8_t *key; /* [d], before RoPE, over scale */
    float *freq; /* [n_pairs] */
} vq_sink;

/* Takes the memory; runs twice, like every layout (base/arena.h).  rope NULL: nothing will be known. */
void vq_sink_layout(vq_sink *s, vq_arena *arena, uint32_t d, const vq_kv_rope *rope);
/* key [d] before RoPE, all zero where a text had no sinks. */
void vq_sink_fill(vq_sink *s, const vq_kv_rope *rope, const float *key);
size_t vq_sink_bytes(const vq_sink *s);
/* x [d]: the key at a position.  Only where something is known. */
void vq_sink_at(const vq_sink *s, uint32_t pos, float *x);
/* Bit i: row i of x [n][d], n <= 32, which stands at pos[i], is nearer to the key there than to row i of others. */
uint32_t vq_sink_find(const vq_sink *s, const float *x, const float *others, const uint32_t *pos, uint32_t n);

#endif
