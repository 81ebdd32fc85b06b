/* Q-Filters: queries of a head lie around one direction, so how far a key reaches along it says how much attention it
 * gets.  The direction comes from a calibration (the first right singular vector of uncentred queries, one for a kv
 * head).  After RoPE it agrees better with true attention than before, and is the default. */
#include <stdlib.h>

#include "kv/policies/policy.h"

static const vq_kv_option_info options[] = {
    {.name = "before", .help = "1: the filter of queries before RoPE", .max = 1},
};

struct filters {
    const vq_calibration *calibration;
    vq_statistic which;
};

static vq_status create(vq_policy_state **out, const vq_policy_env *env, vq_error *err)
{
    struct filters *s = malloc(sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a policy");
    *s = (struct filters){env->calibration, env->options[0] != 0 ? VQ_QUERY_BEFORE_FILTER : VQ_QUERY_FILTER};
    *out = (vq_policy_state *)(void *)s;
    return VQ_OK;
}

static void destroy(vq_policy_state *s) { free(s); }

static void rate(const vq_policy_state *state, const vq_policy_head *h, const float *k, const float *v,
                 const uint32_t *pos, uint32_t n, float *out, size_t stride)
{
    (void)v, (void)pos, (void)stride;
    const struct filters *s = (const struct filters *)(const void *)state;
    const float *filter = vq_calibration_at(s->calibration, s->which, h->layer, h->head);
    for (uint32_t i = 0; i < n; i++) {
        float sum = 0;
        for (uint32_t j = 0; j < h->d_k; j++)
            sum += k[(size_t)i * h->d_k + j] * filter[j];
        out[i] = sum;
    }
}

extern const vq_policy vq_policy_qfilters;
const vq_policy vq_policy_qfilters = {
    .name = "qfilters",
    .summary = "the keys that reach farthest in the direction of calibrated queries",
    .paper = "Godey et al. 2025, Q-Filters: Leveraging QK Geometry for Efficient KV Cache Compression, "
             "arXiv:2503.02812",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .recent_share = 0.25f,
    .needs_calibration = true,
    .create = create,
    .destroy = destroy,
    .n_rates = 1,
    .rate = rate,
};
