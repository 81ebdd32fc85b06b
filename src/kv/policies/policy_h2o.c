/* Heavy hitters: the rows that got most attention over all queries so far, and as many of the newest. */
#include "kv/policies/policy.h"

extern const vq_policy vq_policy_h2o;
const vq_policy vq_policy_h2o = {
    .name = "h2o",
    .summary = "the tokens that got most attention so far, and the newest",
    .paper = "Zhang et al. 2023, H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models, "
             "arXiv:2306.14048",
    .recent_share = 0.5f,
    .sees = VQ_SEES_ALL,
};
