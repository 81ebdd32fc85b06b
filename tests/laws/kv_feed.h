/* What the laws of the cache share: made-up rows, feeding a cache in chunks, the definition of attention in float64. */
#ifndef VQ_TESTS_KV_FEED_H
#define VQ_TESTS_KV_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "veloxquant/kv.h"

typedef struct feed {
    uint32_t n_layers, n_heads, n_kv_heads, d_k, d_v, n; /* n rows */
    float *k, *v;                                        /* [n_layers][n][n_kv_heads][d] */
    float *q;                                            /* [n_layers][n][n_heads][d_k] */
    float *out;                                          /* [n_layers][n][n_heads][d_v]: filled by feed_run */
} feed;

/* Normal rows with a few large channels, a mean, and one row 20 times the others. */
feed feed_make(uint32_t n_layers, uint32_t n_heads, uint32_t n_kv_heads, uint32_t d_k, uint32_t d_v, uint32_t n,
               uint64_t seed);
void feed_free(feed *f);
size_t feed_out_bytes(const feed *f);

/* Opens a cache for the feed's shape, windows and rows; what is 0 or NULL in params is filled in. */
vq_kv *feed_open(const feed *f, vq_kv_params params);

/* Appends and attends rows [from, to) in calls of up to `chunk`. */
void feed_run(const feed *f, vq_kv *kv, uint32_t from, uint32_t to, uint32_t chunk);

/* Attention of query row `row` of a layer and a query head over what vq_kv_read gives, in float64: out [d_v].  Returns
 * the largest error that f32 arithmetic and the codec's stated errors can cause; see the comment in the source. */
double feed_oracle(const feed *f, const vq_kv *kv, uint32_t layer, uint32_t head, uint32_t row, uint32_t window,
                   double score_error, double mix_error, double *out);

#endif
