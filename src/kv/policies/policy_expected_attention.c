/* Expected attention: the weight that a key will get from the queries to come, and how much its value then moves.
 *
 * Queries before RoPE are taken as normal, with the mean and covariance of a calibration; at position t they are turned
 * by R(t), over the next 512 positions on average by Rm (a rotation and a shrinking of each pair).  So
 *
 *     E[exp(q.k scale)] = exp(scale mu.y + scale^2 y' Sigma y / 2),   y = Rm' k
 *
 * which, normalised over the keys, plus epsilon, times |v|, is the score; the mean over the query heads of the group.
 * epsilon is 0 unless asked for: weights are about 1 / n, and the 0.02 of the paper's code drowned them here. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kv/policies/policy.h"

enum { AHEAD = 512 };

static const vq_kv_option_info options[] = {
    {.name = "epsilon", .help = "added to each expected weight", .max = 1, .fraction = true},
};

struct expected {
    const vq_calibration *calibration;
    const vq_kernels *kernels;
    const vq_kv_rope *ropes;
    uint32_t group;
    float scale, epsilon;
};

static vq_status create(vq_policy_state **out, const vq_policy_env *env, vq_error *err)
{
    struct expected *s = malloc(sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a policy");
    *s = (struct expected){.calibration = env->calibration,
                           .kernels = env->kernels,
                           .ropes = env->ropes,
                           .group = env->group,
                           .scale = env->scale,
                           .epsilon = (float)env->options[0]};
    *out = (vq_policy_state *)(void *)s;
    return VQ_OK;
}

static void destroy(vq_policy_state *s) { free(s); }

static const struct expected *expected_of(const vq_policy_state *s) { return (const struct expected *)(const void *)s; }

/* The mean over AHEAD positions from `pos` on of e^(i pos freq): a geometric sum. */
static void mean_turn(double freq, uint32_t pos, float *cosine, float *sine)
{
    const double half = freq / 2, ratio = sin(half) == 0 ? 1 : sin(AHEAD * half) / (AHEAD * sin(half));
    const double angle = freq * (pos + (AHEAD - 1) / 2.0);
    *cosine = (float)(ratio * cos(angle));
    *sine = (float)(ratio * sin(angle));
}

/* y = Rm' k for keys [n][d], in place of y [n][d]. */
static void turn_back(const vq_kv_rope *r, uint32_t pos, const float *k, uint32_t n, uint32_t d, float *y)
{
    memcpy(y, k, (size_t)n * d * sizeof *y);
    for (uint32_t i = 0; r && i < r->n_rot / 2; i++) {
        const uint32_t a = r->halves ? i : 2 * i, b = r->halves ? i + r->n_rot / 2 : 2 * i + 1;
        float c, s;
        mean_turn(r->freq[i], pos, &c, &s);
        for (uint32_t j = 0; j < n; j++) {
            const float x0 = k[(size_t)j * d + a], x1 = k[(size_t)j * d + b];
            y[(size_t)j * d + a] = x0 * c + x1 * s;
            y[(size_t)j * d + b] = x1 * c - x0 * s;
        }
    }
}

/* Rates: the logarithm of the expected weight for each query head of the group, and |v|. */
static void rate(const vq_policy_state *state, const vq_policy_head *h, const float *k, const float *v,
                 const uint32_t *pos, uint32_t n, float *out, size_t stride)
{
    (void)pos;
    const struct expected *s = expected_of(state);
    const uint32_t d = h->d_k;
    float y[VQ_POLICY_BLOCK * VQ_POLICY_MAX_DIM];
    turn_back(s->ropes ? &s->ropes[h->layer] : NULL, h->next_pos, k, n, d, y);
    for (uint32_t g = 0; g < s->group; g++) {
        const uint32_t head = h->head * s->group + g;
        const float *mean = vq_calibration_at(s->calibration, VQ_QUERY_BEFORE_MEAN, h->layer, head);
        const float *moment = vq_calibration_at(s->calibration, VQ_QUERY_BEFORE_MOMENT, h->layer, head);
        for (uint32_t j = 0; j < n; j++) {
            const float *x = y + (size_t)j * d;
            const float along = s->kernels->vec.dot(mean, x, d);
            float spread = -along * along;
            for (uint32_t i = 0; i < d; i++)
                spread += x[i] * s->kernels->vec.dot(moment + (size_t)i * d, x, d);
            out[g * stride + j] = s->scale * along + s->scale * s->scale / 2 * spread;
        }
    }
    for (uint32_t j = 0; j < n; j++)
        out[s->group * stride + j] = sqrtf(s->kernels->vec.dot(v + (size_t)j * h->d_v, v + (size_t)j * h->d_v, h->d_v));
}

static void score(const vq_policy_state *state, const vq_policy_head *h, float *out)
{
    const struct expected *s = expected_of(state);
    for (uint32_t i = 0; i < h->n; i++)
        out[i] = 0;
    for (uint32_t g = 0; g < s->group; g++) {
        const float *x = h->rates + g * h->stride;
        float most = -INFINITY;
        double sum = 0;
        for (uint32_t i = 0; i < h->n; i++)
            most = x[i] > most ? x[i] : most;
        for (uint32_t i = 0; i < h->n; i++)
            sum += exp((double)x[i] - most);
        for (uint32_t i = 0; i < h->n; i++)
            out[i] += (float)(exp((double)x[i] - most) / sum) + s->epsilon;
    }
    for (uint32_t i = 0; i < h->n; i++)
        out[i] *= h->rates[s->group * h->stride + i] / (float)s->group;
}

extern const vq_policy vq_policy_expected_attention;
const vq_policy vq_policy_expected_attention = {
    .name = "expected-attention",
    .summary = "the tokens that future queries are expected to need, by calibrated statistics",
    .paper = "Devoto et al. 2025, Expected Attention: KV Cache Compression by Estimating Attention from Future Queries "
             "Distribution, arXiv:2510.00636",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .recent_share = 0.25f,
    .needs_calibration = true,
    .create = create,
    .destroy = destroy,
    .n_rates = VQ_RATES_GROUP_AND_ONE,
    .rate = rate,
    .score = score,
};
