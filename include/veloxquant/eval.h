/* Measuring: perplexity in generation order, speed. */
#ifndef VELOXQUANT_EVAL_H
#define VELOXQUANT_EVAL_H

#include "veloxquant/session.h"

typedef struct vq_perplexity {
    uint64_t n_tokens;         /* scored */
    double nll;                /* mean negative log-likelihood a token, nats */
    double ppl, ppl_error;     /* exp(nll) and its standard error */
} vq_perplexity;

/* Called after each scored token; false cancels. */
typedef bool (*vq_perplexity_fn)(void *arg, size_t done, size_t all, double nll_of_token);

/* Teacher-forced over ids [n] cut into windows of n_ctx tokens (each with the BOS where the model wants one), true
 * positions; in each window the first `skip` tokens are not scored.  The session is cleared before each window. */
VQ_API vq_status vq_eval_perplexity(vq_session *s, const int32_t *ids, size_t n, uint32_t n_ctx, uint32_t skip,
                                    vq_perplexity_fn progress, void *arg, vq_perplexity *out, vq_error *err);

typedef struct vq_bench_sample {
    double prompt_tps, decode_tps;     /* tokens a second */
} vq_bench_sample;

/* One sample: fills the cache to `depth` tokens (untimed), times n_prompt prompt tokens, goes back, times n_decode
 * tokens one at a time.  Token ids are drawn from `seed`, so samples rotate through different inputs. */
VQ_API vq_status vq_eval_speed(vq_session *s, uint32_t depth, uint32_t n_prompt, uint32_t n_decode, uint64_t seed,
                               vq_bench_sample *out, vq_error *err);

#endif
