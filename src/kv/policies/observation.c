#include "kv/policies/observation.h"

void vq_observation_score(const vq_policy_state *s, const vq_policy_head *h, float *out)
{
    (void)s;
    enum { HALF = VQ_OBSERVATION_POOL / 2 };
    for (uint32_t i = 0; i < h->n; i++) {
        const uint32_t first = i > HALF ? i - HALF : 0, end = h->n - i > HALF ? i + HALF + 1 : h->n;
        float most = h->seen[first];
        for (uint32_t j = first + 1; j < end; j++)
            most = h->seen[j] > most ? h->seen[j] : most;
        out[i] = most;
    }
}
