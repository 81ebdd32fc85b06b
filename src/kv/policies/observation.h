/* Scores of an observation window, which several policies share: the weights that the last queries gave, smoothed over
 * neighbours. */
#ifndef VQ_KV_OBSERVATION_H
#define VQ_KV_OBSERVATION_H

#include "kv/policies/policy.h"

enum { VQ_OBSERVATION_QUERIES = 32, VQ_OBSERVATION_POOL = 7 };

/* out [n]: the largest of the VQ_OBSERVATION_POOL weights around each row. */
void vq_observation_score(const vq_policy_state *s, const vq_policy_head *h, float *out);

#endif
