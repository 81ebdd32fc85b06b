/* SnapKV's scores summed over chunks of neighbouring positions, which stay or go together (the last one that fits is
 * cut at its end).  With reuse=N, N layers in a row keep what the first of them keeps. */
#include <stdlib.h>

#include "kv/policies/observation.h"

static const vq_kv_option_info options[] = {
    {.name = "chunk", .help = "tokens that stay or go together", .value = 10, .min = 1, .max = 1024},
    {.name = "reuse", .help = "layers in a row that keep the same tokens", .value = 1, .min = 1, .max = 1024},
};

struct chunks {
    uint32_t size, reuse;
};

static vq_status create(vq_policy_state **out, const vq_policy_env *env, vq_error *err)
{
    struct chunks *s = malloc(sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a policy");
    *s = (struct chunks){(uint32_t)env->options[0], (uint32_t)env->options[1]};
    *out = (vq_policy_state *)(void *)s;
    return VQ_OK;
}

static void destroy(vq_policy_state *s) { free(s); }

static const struct chunks *chunks_of(const vq_policy_state *s) { return (const struct chunks *)(const void *)s; }

static void score(const vq_policy_state *s, const vq_policy_head *h, float *out)
{
    const uint32_t size = chunks_of(s)->size;
    vq_observation_score(s, h, out);
    for (uint32_t i = 0, end; i < h->n; i = end) {
        float sum = 0;
        for (end = i; end < h->n && h->pos[end] / size == h->pos[i] / size; end++)
            sum += out[end];
        for (uint32_t j = i; j < end; j++)
            out[j] = sum;
    }
}

static uint32_t leader(const vq_policy_state *s, uint32_t layer) { return layer - layer % chunks_of(s)->reuse; }

extern const vq_policy vq_policy_chunkkv;
const vq_policy vq_policy_chunkkv = {
    .name = "chunkkv",
    .summary = "snapkv by chunks of neighbouring tokens",
    .paper = "Liu et al. 2025, ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM "
             "Inference, arXiv:2502.00299",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .recent = VQ_OBSERVATION_QUERIES,
    .sees = VQ_SEES_LAST,
    .n_queries = VQ_OBSERVATION_QUERIES,
    .create = create,
    .destroy = destroy,
    .score = score,
    .leader = leader,
};
