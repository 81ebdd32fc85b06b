/* The cache that fuzz_kv_file loads into and corpus_kv_file saves. */
#ifndef VQ_TESTS_KV_SHAPE_H
#define VQ_TESTS_KV_SHAPE_H

#include "veloxquant/kv.h"

#define SHAPE_EVICT "budget=30,sinks=2,recent=5"

enum { SHAPE_LAYERS = 2, SHAPE_HEADS = 2, SHAPE_KV_HEADS = 1, SHAPE_DIM = 64, SHAPE_BATCH = 150 };

static inline vq_kv_params shape_params(const char *method)
{
    static const uint32_t windows[SHAPE_LAYERS] = {0, 40};
    return (vq_kv_params){.n_layers = SHAPE_LAYERS,
                          .n_heads = SHAPE_HEADS,
                          .n_kv_heads = SHAPE_KV_HEADS,
                          .d_k = SHAPE_DIM,
                          .d_v = SHAPE_DIM,
                          .n_ctx = 200,
                          .n_batch = SHAPE_BATCH,
                          .window = windows,
                          .keys = method,
                          .values = method,
                          .sinks = 2,
                          .residual = 0};
}

#endif
