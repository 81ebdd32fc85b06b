/* SnapKV where the kv heads of a layer share its budget: a fifth of an even share is each one's, the rest goes to the
 * rows with the highest scores, whosever they are. */
#include "kv/policies/observation.h"

extern const vq_policy vq_policy_adakv;
const vq_policy vq_policy_adakv = {
    .name = "adakv",
    .summary = "snapkv with a budget that the heads of a layer share",
    .paper = "Feng et al. 2024, Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation, arXiv:2407.11550",
    .recent = VQ_OBSERVATION_QUERIES,
    .sees = VQ_SEES_LAST,
    .n_queries = VQ_OBSERVATION_QUERIES,
    .is_flat = true,
    .floor = 0.2f,
    .score = vq_observation_score,
};
