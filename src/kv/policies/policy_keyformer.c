/* H2O with noise: what is added up is softmax((logit + g) / tau), g from a Gumbel distribution, so that rows whose
 * attention was cut off by eviction keep a chance.  tau is 1 in a prompt and grows to 2 over `horizon` generated
 * tokens.
 *
 * A row's g is a hash of (seed, layer, head, query, key), so that it does not depend on how the work is cut.  With
 * weights w = softmax(logit) in hand the sum is softmax((log w + g) / tau), that is (w e^g)^(1/tau), normalised; e^g =
 * 1 / -log(u) comes from a table over u. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "kv/policies/policy.h"

enum { TABLE_BITS = 12, TABLE = 1 << TABLE_BITS };

static const vq_kv_option_info options[] = {
    {.name = "horizon",
     .help = "generated tokens over which the temperature grows from 1 to 2",
     .value = 512,
     .min = 1,
     .max = 1 << 28},
};

struct keyformer {
    uint64_t seed;
    double horizon;
    uint32_t group;
    float exp_gumbel[TABLE];
};

static vq_status create(vq_policy_state **out, const vq_policy_env *env, vq_error *err)
{
    struct keyformer *s = malloc(sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a policy");
    s->seed = env->seed;
    s->horizon = env->options[0];
    s->group = env->group;
    for (int i = 0; i < TABLE; i++)
        s->exp_gumbel[i] = (float)(-1 / log((i + 0.5) / TABLE));
    *out = (vq_policy_state *)(void *)s;
    return VQ_OK;
}

static void destroy(vq_policy_state *s) { free(s); }

/* One round of a mixing multiply: the key's position on top of a hash of everything else. */
static uint32_t noise_index(uint64_t query_hash, uint32_t pos)
{
    uint64_t x = (query_hash ^ pos) * 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return (uint32_t)(x >> (64 - TABLE_BITS));
}

static void reweigh(const vq_policy_state *state, const vq_policy_query *q)
{
    const struct keyformer *s = (const struct keyformer *)(const void *)state;
    const double part = q->step / s->horizon;
    const float inv_tau = (float)(1 / (1 + (part < 1 ? part : 1)));
    for (uint32_t g = 0; g < q->group; g++) {
        float *w = q->weights + g * q->stride;
        const uint64_t hash = vq_hash64(s->seed, q->layer, q->head * s->group + g, q->pos, 0);
        double sum = 0;
        for (uint32_t i = 0; i < q->n; i++) {
            if (w[i] == 0)
                continue;
            w[i] *= s->exp_gumbel[noise_index(hash, q->row_pos[i])];
            if (inv_tau != 1)
                w[i] = powf(w[i], inv_tau);
            sum += (double)w[i];
        }
        const float inv = sum > 0 ? (float)(1 / sum) : 0;
        for (uint32_t i = 0; i < q->n; i++)
            w[i] *= inv;
    }
}

extern const vq_policy vq_policy_keyformer;
const vq_policy vq_policy_keyformer = {
    .name = "keyformer",
    .summary = "h2o with Gumbel noise and a growing temperature",
    .paper = "Adnan et al. 2024, Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative "
             "Inference, arXiv:2403.09054",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .recent_share = 0.5f,
    .sees = VQ_SEES_ALL,
    .create = create,
    .destroy = destroy,
    .reweigh = reweigh,
};
