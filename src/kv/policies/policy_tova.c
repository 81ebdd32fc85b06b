/* Drops what the newest query looks at least, averaged over all heads of the layer: one mask a layer.  The paper drops
 * one row a step, which is every=1. */
#include "kv/policies/policy.h"

extern const vq_policy vq_policy_tova;
const vq_policy vq_policy_tova = {
    .name = "tova",
    .summary = "the tokens that the newest query looks at, all heads together",
    .paper = "Oren et al. 2024, Transformers are Multi-State RNNs, arXiv:2401.06104",
    .sees = VQ_SEES_LAST,
    .n_queries = 1,
    .one_mask = true,
};
