/* A control: a position's score is a hash of (seed, layer, head, position), so that it does not depend on when it is
 * asked for. */
#include <stdlib.h>

#include "base/rng.h"
#include "kv/policies/policy.h"

struct random_state {
    uint64_t seed;
};

static vq_status create(vq_policy_state **out, const vq_policy_env *env, vq_error *err)
{
    struct random_state *s = malloc(sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a policy");
    s->seed = env->seed;
    *out = (vq_policy_state *)(void *)s;
    return VQ_OK;
}

static void destroy(vq_policy_state *s) { free(s); }

static void score(const vq_policy_state *state, const vq_policy_head *h, float *out)
{
    const struct random_state *s = (const struct random_state *)(const void *)state;
    for (uint32_t i = 0; i < h->n; i++)
        out[i] = (float)(vq_hash64(s->seed, h->layer, h->head, h->pos[i], 0) >> 40);
}

extern const vq_policy vq_policy_random;
const vq_policy vq_policy_random = {
    .name = "random",
    .summary = "tokens drawn by chance: a control",
    .recent_share = 0.25f,
    .create = create,
    .destroy = destroy,
    .score = score,
};
