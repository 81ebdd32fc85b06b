/* Perplexity, and two caches over the same tokens.
 *
 * A token's negative log-likelihood comes from the logits of the one before it.  Exponentials are float (the vector
 * kernel), their sums are double over blocks: what float sums over 262,144 tokens would lose is larger than the
 * differences between caches that are to be seen. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/status.h"
#include "kernels/vec.h"
#include "veloxquant/eval.h"

/* BLOCK: logits whose exponentials are summed in float.  STEP: tokens that two sessions take in turn. */
enum { BLOCK = 1024, STEP = 64 };

vq_status vq_eval_count(const vq_windows *w, size_t *n_windows, size_t *n_scored, vq_error *err)
{
    *n_windows = *n_scored = 0;
    if (w->n_ctx < 2)
        return vq_fail(err, VQ_ERR_ARG, "windows of %u tokens, must be at least 2", w->n_ctx);
    const uint32_t skip = w->skip < 1 ? 1 : w->skip;
    if (skip >= w->n_ctx)
        return vq_fail(err, VQ_ERR_ARG, "%u tokens not scored of windows of %u: nothing is left", w->skip, w->n_ctx);
    size_t n = w->n / w->n_ctx;
    if (n == 0)
        return vq_fail(err, VQ_ERR_ARG, "the text has %zu tokens, one window takes %u", w->n, w->n_ctx);
    if (w->most > 0 && n > w->most)
        n = w->most;
    *n_windows = n;
    *n_scored = n * (w->n_ctx - skip);
    return VQ_OK;
}

/* log of the sum of exp(logits) */
static double log_sum_exp(const vq_vec_kernels *k, const float *logits, size_t n)
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

/* sum of p (log p - log q) */
static double kl_divergence(const vq_vec_kernels *k, const float *p, double p_norm, const float *q, double q_norm,
                            size_t n)
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

static size_t argmax(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* The window's tokens into ids [n_ctx], with the BOS in the first one's place where the model wants one. */
static void window_ids(const vq_windows *w, size_t index, const vq_tokenizer *t, int32_t *ids)
{
    memcpy(ids, w->ids + index * w->n_ctx, w->n_ctx * sizeof *ids);
    if (vq_tokenizer_adds_bos(t) && vq_tokenizer_bos(t) != VQ_NO_TOKEN)
        ids[0] = vq_tokenizer_bos(t);
}

static vq_status check_room(const vq_session *s, const vq_windows *w, vq_error *err)
{
    if (vq_session_n_ctx(s) < w->n_ctx)
        return vq_fail(err, VQ_ERR_FULL, "windows of %u tokens do not fit into a context of %u", w->n_ctx,
                       vq_session_n_ctx(s));
    return VQ_OK;
}

/* ---- one session ---- */
struct scoring {
    vq_vec_kernels kernels;
    size_t n_vocab;
    const int32_t *ids; /* [n_ctx] of this window */
    size_t n_ctx;
    vq_moments nll;
    vq_eval_fn progress;
    void *arg;
    size_t n_scored;
};

static bool score_next(void *arg, size_t index, const float *logits)
{
    struct scoring *c = arg;
    if (index + 1 >= c->n_ctx)
        return true; /* the last token predicts one of another window */
    const double nll = log_sum_exp(&c->kernels, logits, c->n_vocab) - (double)logits[c->ids[index + 1]];
    vq_moments_add(&c->nll, nll);
    return !c->progress || c->progress(c->arg, (size_t)c->nll.n, c->n_scored, nll);
}

vq_status vq_eval_perplexity(vq_session *s, const vq_windows *w, vq_eval_fn progress, void *arg, vq_moments *nll,
                             vq_error *err)
{
    size_t n_windows, n_scored;
    VQ_TRY(vq_eval_count(w, &n_windows, &n_scored, err));
    VQ_TRY(check_room(s, w, err));
    int32_t *ids = malloc(w->n_ctx * sizeof *ids);
    if (!ids)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a window of %u tokens", w->n_ctx);
    const vq_model *model = vq_session_model(s);
    struct scoring c = {.n_vocab = vq_model_get_info(model)->n_vocab,
                        .ids = ids,
                        .n_ctx = w->n_ctx,
                        .progress = progress,
                        .arg = arg,
                        .n_scored = n_scored};
    vq_vec_kernels_init(&c.kernels, vq_cpu_detect());
    const size_t first = w->skip < 1 ? 0 : w->skip - 1;
    vq_status status = VQ_OK;
    for (size_t i = 0; i < n_windows && status == VQ_OK; i++) {
        window_ids(w, i, vq_model_tokenizer(model), ids);
        status = vq_session_truncate(s, 0, err);
        /* the last token predicts nothing that is scored, so it is not evaluated */
        if (status == VQ_OK)
            status = vq_session_eval(s, ids, w->n_ctx - 1, score_next, first, &c, err);
    }
    free(ids);
    if (status == VQ_OK)
        vq_moments_merge(nll, &c.nll);
    return status;
}

/* ---- two sessions ---- */
struct pair_row {
    double reference_nll, nll, kl;
    bool same_top;
};

struct pairing {
    vq_vec_kernels kernels;
    size_t n_vocab;
    float *reference, *tested; /* [STEP][n_vocab] */
    const int32_t *targets;    /* [STEP]: the token after each */
    struct pair_row rows[STEP];
};

struct keeper {
    float *rows;
    size_t n_vocab;
};

static bool keep_row(void *arg, size_t index, const float *logits)
{
    const struct keeper *k = arg;
    memcpy(k->rows + index * k->n_vocab, logits, k->n_vocab * sizeof *logits);
    return true;
}

static void compare_row(struct pairing *p, size_t index)
{
    const float *a = p->reference + index * p->n_vocab, *b = p->tested + index * p->n_vocab;
    const double a_norm = log_sum_exp(&p->kernels, a, p->n_vocab), b_norm = log_sum_exp(&p->kernels, b, p->n_vocab);
    const int32_t target = p->targets[index];
    p->rows[index] = (struct pair_row){
        .reference_nll = a_norm - (double)a[target],
        .nll = b_norm - (double)b[target],
        .kl = kl_divergence(&p->kernels, a, a_norm, b, b_norm, p->n_vocab),
        .same_top = argmax(a, p->n_vocab) == argmax(b, p->n_vocab),
    };
}

static void add_row(vq_comparison *c, const struct pair_row *row)
{
    vq_moments_add(&c->reference_nll, row->reference_nll);
    vq_moments_add(&c->nll, row->nll);
    vq_moments_add(&c->log_ratio, row->nll - row->reference_nll);
    vq_moments_add(&c->kl, row->kl);
    vq_moments_add(&c->same_top, row->same_top ? 1 : 0);
}

struct compare_call {
    vq_session *reference, *tested;
    struct pairing *pairing;
    size_t first; /* token of a window whose logits are the first to count */
    size_t n_scored;
    vq_eval_fn progress;
    void *arg;
    vq_comparison *sum;
};

static vq_status compare_window(struct compare_call *c, const int32_t *ids, size_t n_ctx, vq_error *err)
{
    struct pairing *p = c->pairing;
    VQ_TRY(vq_session_truncate(c->reference, 0, err));
    VQ_TRY(vq_session_truncate(c->tested, 0, err));
    VQ_TRY(vq_session_eval(c->reference, ids, c->first, NULL, 0, NULL, err));
    VQ_TRY(vq_session_eval(c->tested, ids, c->first, NULL, 0, NULL, err));
    for (size_t at = c->first; at < n_ctx - 1; at += STEP) {
        const size_t n = n_ctx - 1 - at < STEP ? n_ctx - 1 - at : STEP;
        struct keeper keep = {p->reference, p->n_vocab};
        VQ_TRY(vq_session_eval(c->reference, ids + at, n, keep_row, 0, &keep, err));
        keep.rows = p->tested;
        VQ_TRY(vq_session_eval(c->tested, ids + at, n, keep_row, 0, &keep, err));
        p->targets = ids + at + 1;
        for (size_t i = 0; i < n; i++)
            compare_row(p, i);
        for (size_t i = 0; i < n; i++) {
            add_row(c->sum, &p->rows[i]);
            if (c->progress && !c->progress(c->arg, (size_t)c->sum->nll.n, c->n_scored, p->rows[i].nll))
                return vq_fail(err, VQ_ERR_CANCELLED, "cancelled after %zu of %zu tokens", (size_t)c->sum->nll.n,
                               c->n_scored);
        }
    }
    return VQ_OK;
}

static void merge(vq_comparison *to, const vq_comparison *from)
{
    vq_moments_merge(&to->reference_nll, &from->reference_nll);
    vq_moments_merge(&to->nll, &from->nll);
    vq_moments_merge(&to->log_ratio, &from->log_ratio);
    vq_moments_merge(&to->kl, &from->kl);
    vq_moments_merge(&to->same_top, &from->same_top);
}

vq_status vq_eval_compare(vq_session *reference, vq_session *tested, const vq_windows *w, vq_eval_fn progress,
                          void *arg, vq_comparison *out, vq_error *err)
{
    size_t n_windows, n_scored;
    VQ_TRY(vq_eval_count(w, &n_windows, &n_scored, err));
    VQ_TRY(check_room(reference, w, err));
    VQ_TRY(check_room(tested, w, err));
    const vq_model *model = vq_session_model(reference);
    const size_t n_vocab = vq_model_get_info(model)->n_vocab;
    const size_t n_tested = vq_model_get_info(vq_session_model(tested))->n_vocab;
    if (n_vocab != n_tested)
        return vq_fail(err, VQ_ERR_MISMATCH, "vocabularies of %zu and %zu tokens cannot be compared", n_vocab,
                       n_tested);

    struct pairing pairing = {.n_vocab = n_vocab};
    vq_vec_kernels_init(&pairing.kernels, vq_cpu_detect());
    vq_comparison sum = {0};
    struct compare_call call = {reference, tested,   &pairing, w->skip < 1 ? 0 : w->skip - 1,
                                n_scored,  progress, arg,      &sum};
    int32_t *ids = malloc(w->n_ctx * sizeof *ids);
    pairing.reference = malloc(STEP * n_vocab * sizeof(float));
    pairing.tested = malloc(STEP * n_vocab * sizeof(float));
    vq_status status = VQ_OK;
    if (!ids || !pairing.reference || !pairing.tested)
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for 2 x %d rows of %zu logits", STEP, n_vocab);
    for (size_t i = 0; i < n_windows && status == VQ_OK; i++) {
        window_ids(w, i, vq_model_tokenizer(model), ids);
        status = compare_window(&call, ids, w->n_ctx, err);
    }
    free(ids);
    free(pairing.reference);
    free(pairing.tested);
    if (status == VQ_OK)
        merge(out, &sum);
    return status;
}
