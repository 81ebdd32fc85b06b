/* Keys of small norm get much attention (the sinks above all), so those stay. */
#include <math.h>

#include "kv/policies/policy.h"

static void rate(const vq_policy_state *s, const vq_policy_head *h, const float *k, const float *v, const uint32_t *pos,
                 uint32_t n, float *out, size_t stride)
{
    (void)s, (void)v, (void)pos, (void)stride;
    for (uint32_t i = 0; i < n; i++) {
        float sum = 0;
        for (uint32_t j = 0; j < h->d_k; j++)
            sum += k[(size_t)i * h->d_k + j] * k[(size_t)i * h->d_k + j];
        out[i] = -sqrtf(sum);
    }
}

extern const vq_policy vq_policy_knorm;
const vq_policy vq_policy_knorm = {
    .name = "knorm",
    .summary = "the keys of smallest norm",
    .paper = "Devoto et al. 2024, A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, "
             "arXiv:2406.11430",
    .recent_share = 0.25f,
    .n_rates = 1,
    .rate = rate,
};
