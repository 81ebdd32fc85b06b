/* Keeps everything: a control that goes through the same calls as the others. */
#include "kv/policies/policy.h"

extern const vq_policy vq_policy_none;
const vq_policy vq_policy_none = {
    .name = "none",
    .summary = "keeps every token, whatever the budget: a control",
    .keeps_all = true,
};
