/* SnapKV with budgets that fall linearly over the layers: low layers look around, high ones at few tokens.  The mean
 * over the layers is the budget. */
#include <stdlib.h>

#include "kv/policies/observation.h"

static const vq_kv_option_info options[] = {
    {.name = "beta",
     .help = "the last layer keeps the budget / beta, besides the newest tokens",
     .value = 20,
     .min = 1,
     .max = 1000,
     .fraction = true},
};

struct pyramid {
    double beta;
};

static vq_status create(vq_policy_state **out, const vq_policy_env *env, vq_error *err)
{
    struct pyramid *s = malloc(sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a policy");
    s->beta = env->options[0];
    *out = (vq_policy_state *)(void *)s;
    return VQ_OK;
}

static void destroy(vq_policy_state *s) { free(s); }

static uint32_t layer_budget(const vq_policy_state *state, uint32_t layer, uint32_t n_layers, uint32_t free_rows,
                             uint32_t most)
{
    const struct pyramid *s = (const struct pyramid *)(const void *)state;
    if (n_layers == 1)
        return free_rows;
    double low = free_rows / s->beta, high = 2.0 * free_rows - low;
    if (high > most) { /* the lowest layers have no more: the rest goes to the others */
        high = most;
        low = 2.0 * free_rows - high;
    }
    /* Layers l and n - 1 - l together get exactly twice the budget. */
    const uint32_t mirror = n_layers - 1 - layer < layer ? n_layers - 1 - layer : layer;
    if (2 * mirror + 1 == n_layers)
        return free_rows;
    const double extra = (high - low) * (0.5 - (double)mirror / (n_layers - 1));
    const uint32_t whole = extra > 0 ? (uint32_t)extra : 0;
    return layer == mirror ? free_rows + whole : free_rows - (whole < free_rows ? whole : free_rows);
}

extern const vq_policy vq_policy_pyramidkv;
const vq_policy vq_policy_pyramidkv = {
    .name = "pyramidkv",
    .summary = "snapkv with budgets that fall from the first layer to the last",
    .paper = "Cai et al. 2024, PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling, "
             "arXiv:2406.02069",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .recent = VQ_OBSERVATION_QUERIES,
    .sees = VQ_SEES_LAST,
    .n_queries = VQ_OBSERVATION_QUERIES,
    .create = create,
    .destroy = destroy,
    .score = vq_observation_score,
    .layer_budget = layer_budget,
};
