/* StreamingLLM: the sinks and the newest rows, however many there are.
 *
 * With renumber=1 queries look at the sinks as if nothing lay between them and the newest rows, so that no distance
 * exceeds the budget and generation may go on beyond the trained context (kv_attend.c turns the query; stored keys are
 * never touched). */
#include "kv/policies/policy.h"

static const vq_kv_option_info options[] = {
    {.name = "renumber",
     .help = "1: sinks are seen from the number of rows kept, not from the true position",
     .max = 1},
};

static void score(const vq_policy_state *s, const vq_policy_head *h, float *out)
{
    (void)s;
    for (uint32_t i = 0; i < h->n; i++)
        out[i] = (float)i;
}

extern const vq_policy vq_policy_streaming;
const vq_policy vq_policy_streaming = {
    .name = "streaming",
    .summary = "the first tokens and the newest",
    .paper = "Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .renumbers = true,
    .score = score,
};
