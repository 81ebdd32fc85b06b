/* KVzip: a row is worth the largest weight that it gets while the model repeats the context, which it is asked to do at
 * the end of a prompt, on a fork that is dropped (engine/probe.c).  Rows that are generated have the largest weight
 * that later tokens gave them. */
#include "kv/policies/policy.h"

extern const vq_policy vq_policy_kvzip;
const vq_policy vq_policy_kvzip = {
    .name = "kvzip",
    .summary = "the tokens that the model needs to repeat the prompt: takes the time of a second prompt",
    .paper =
        "Kim et al. 2025, KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction, arXiv:2505.23416",
    .recent_share = 0.25f,
    .sees = VQ_SEES_LATER,
    .takes_maximum = true,
    .needs_probe = true,
};
