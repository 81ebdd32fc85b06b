/* Does the model find facts of its context again?
 *
 * The context is a prompt; then a policy compacts it, and questions come one token at a time, each followed by its true
 * answer, so that a wrong one does not spoil those after it.  The answer is the greedy output exactly when each of its
 * tokens is the likeliest one at its place: nothing needs to be generated. */
#include <math.h>

#include "base/status.h"
#include "eval/recall_task.h"

/* Logarithm of the probability of `id`, in double over the whole vocabulary. */
static double log_p(const float *logits, size_t n_vocab, int32_t id)
{
    double max = -INFINITY, sum = 0;
    for (size_t i = 0; i < n_vocab; i++)
        max = logits[i] > max ? (double)logits[i] : max;
    for (size_t i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - max);
    return (double)logits[id] - max - log(sum);
}

static int32_t likeliest(const float *logits, size_t n_vocab)
{
    size_t best = 0;
    for (size_t i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static vq_status run_one_by_one(vq_session *s, const int32_t *ids, size_t n, vq_error *err)
{
    for (size_t i = 0; i < n; i++)
        VQ_TRY(vq_session_decode(s, ids + i, 1, NULL, 0, NULL, err));
    return VQ_OK;
}

static vq_status ask(vq_session *s, const vq_recall_built *b, const vq_recall_question *q, vq_recall_score *sum,
                     vq_error *err)
{
    const size_t n_vocab = vq_model_get_info(vq_session_model(s))->n_vocab;
    VQ_TRY(run_one_by_one(s, b->ids + q->ask.at, q->ask.n, err));

    const float *logits = vq_session_logits(s);
    float other = -INFINITY;
    for (uint32_t i = 0; i < b->n_firsts; i++)
        if (b->firsts[i] != q->first && logits[b->firsts[i]] > other)
            other = logits[b->firsts[i]];
    const double margin = (double)logits[q->first] - (double)other;

    bool exact = true;
    double sum_log_p = 0;
    for (uint32_t i = 0; i < q->answer.n; i++) {
        const int32_t id = b->ids[q->answer.at + i];
        logits = vq_session_logits(s);
        exact = exact && likeliest(logits, n_vocab) == id;
        sum_log_p += log_p(logits, n_vocab, id);
        VQ_TRY(vq_session_decode(s, &id, 1, NULL, 0, NULL, err));
    }
    vq_moments_add(&sum->exact, exact ? 1 : 0);
    vq_moments_add(&sum->chosen, margin > 0 ? 1 : 0);
    vq_moments_add(&sum->log_p, sum_log_p);
    vq_moments_add(&sum->margin, margin);
    return VQ_OK;
}

static vq_status run(vq_session *s, const vq_recall_built *b, vq_recall_score *sum, vq_error *err)
{
    if (b->n_ids > vq_session_n_ctx(s))
        return vq_fail(err, VQ_ERR_FULL, "context and questions are %zu tokens, the session holds %u", b->n_ids,
                       vq_session_n_ctx(s));
    VQ_TRY(vq_session_truncate(s, 0, err));
    VQ_TRY(vq_session_eval(s, b->ids + b->context.at, b->context.n, NULL, 0, NULL, err));
    for (uint32_t i = 0; i < b->n_questions; i++)
        VQ_TRY(ask(s, b, &b->questions[i], sum, err));
    return VQ_OK;
}

vq_status vq_eval_recall(vq_session *s, const vq_recall_params *p, vq_recall_score *score, vq_error *err)
{
    vq_recall_built b;
    VQ_TRY(vq_recall_build(&b, vq_model_tokenizer(vq_session_model(s)), p, err));
    vq_recall_score sum = *score;
    const vq_status status = run(s, &b, &sum, err);
    sum.n_words = b.n_firsts;
    sum.n_facts = b.n_facts;
    vq_recall_built_free(&b);
    if (status == VQ_OK)
        *score = sum;
    return status;
}
