#include "engine/divergence.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 1024 }; /* logits whose exponentials are summed in float */

double vq_log_sum_exp(const vq_vec_kernels *k, const float *logits, size_t n)
{
    const float max = k->max(logits, (uint32_t)n);
    double sum = 0;
    for (size_t at = 0; at < n; at += BLOCK) {
        float part[BLOCK];
        const uint32_t count = n - at < BLOCK ? (uint32_t)(n - at) : BLOCK;
        memcpy(part, logits + at, count * sizeof *part);
        sum += (double)k->exp_sum(part, max, count);
    }
    return (double)max + log(sum);
}

double vq_kl_divergence(const vq_vec_kernels *k, const float *p, double p_norm, const float *q, double q_norm, size_t n)
{
    double sum = 0;
    for (size_t at = 0; at < n; at += BLOCK) {
        float share[BLOCK];
        const uint32_t count = n - at < BLOCK ? (uint32_t)(n - at) : BLOCK;
        memcpy(share, p + at, count * sizeof *share);
        k->exp_sum(share, (float)p_norm, count);
        for (uint32_t i = 0; i < count; i++)
            sum += (double)share[i] * (((double)p[at + i] - (double)q[at + i]) - (p_norm - q_norm));
    }
    return sum;
}
