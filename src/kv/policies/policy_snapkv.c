/* What the last 32 queries look at, smoothed over neighbours. */
#include "kv/policies/observation.h"

extern const vq_policy vq_policy_snapkv;
const vq_policy vq_policy_snapkv = {
    .name = "snapkv",
    .summary = "the tokens that the last 32 queries look at, and their neighbours",
    .paper = "Li et al. 2024, SnapKV: LLM Knows What You are Looking for Before Generation, arXiv:2404.14469",
    .recent = VQ_OBSERVATION_QUERIES,
    .sees = VQ_SEES_LAST,
    .n_queries = VQ_OBSERVATION_QUERIES,
    .score = vq_observation_score,
};
