/* Perplexity, and several caches over the same tokens.
 *
 * A token's negative log-likelihood comes from the logits of the one before it.  Exponentials are float (the vector
 * kernel), their sums are double over blocks: what float sums over 262,144 tokens would lose is larger than the
 * differences between caches that are to be seen. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/status.h"
#include "engine/divergence.h"
#include "eval/repetition.h"
#include "kernels/vec.h"

enum { STEP = 64 }; /* tokens that sessions take in turn */

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

static size_t argmax(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

typedef struct float_rows {
    float *at;
    size_t width;
} float_rows;

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

/* Whether tokens are run as generated ones.  A single pass over a cache that evicts would show perplexities of the
 * whole cache: nothing is dropped before the end of a prompt. */
static bool generates(vq_session *s, bool asked)
{
    return asked || vq_kv_compact_step(vq_session_kv(s), VQ_KV_DECODE) > 0;
}

static vq_status check_pass(vq_session *s, const vq_windows *w, vq_error *err)
{
    if (w->one_pass && generates(s, w->decodes))
        return vq_fail(err, VQ_ERR_ARG,
                       "one pass over a cache that evicts: nothing is dropped before a prompt ends, so it would have "
                       "the perplexity of the whole cache");
    return VQ_OK;
}

/* ---- one session ---- */
struct scoring {
    vq_vec_kernels kernels;
    size_t n_vocab;
    const int32_t *ids; /* [n_ctx] of this window */
    size_t n_ctx;
    size_t before; /* tokens of the window that came in an earlier call */
    vq_moments nll;
    vq_eval_fn progress;
    void *arg;
    size_t n_scored;
};

static bool score_next(void *arg, size_t index, const float *logits)
{
    struct scoring *c = arg;
    index += c->before;
    if (index + 1 >= c->n_ctx)
        return true; /* the last token predicts one of another window */
    const double nll = vq_log_sum_exp(&c->kernels, logits, c->n_vocab) - (double)logits[c->ids[index + 1]];
    vq_moments_add(&c->nll, nll);
    return !c->progress || c->progress(c->arg, (size_t)c->nll.n, c->n_scored, nll);
}

vq_status vq_eval_perplexity(vq_session *s, const vq_windows *w, vq_eval_fn progress, void *arg, vq_moments *nll,
                             vq_error *err)
{
    size_t n_windows, n_scored;
    VQ_TRY(vq_eval_count(w, &n_windows, &n_scored, err));
    VQ_TRY(check_room(s, w, err));
    VQ_TRY(check_pass(s, w, err));
    VQ_TRY(vq_windows_check_text(w, n_windows, err));
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
        const bool decodes = generates(s, w->decodes);
        c.before = decodes ? first : 0;
        if (status == VQ_OK && decodes)
            status = vq_session_eval(s, ids, first, NULL, 0, NULL, err);
        if (status == VQ_OK && decodes)
            status = vq_session_decode(s, ids + first, w->n_ctx - 1 - first, score_next, 0, &c, err);
        else if (status == VQ_OK)
            status = vq_session_eval(s, ids, w->n_ctx - 1, score_next, first, &c, err);
    }
    free(ids);
    if (status == VQ_OK)
        status = vq_windows_check_result(w, &c.nll, err);
    if (status == VQ_OK)
        vq_moments_merge(nll, &c.nll);
    return status;
}

/* ---- a reference and others ---- */
struct row {
    double nll, log_ratio, kl;
    bool same_top;
};

static bool keep_row(void *arg, size_t index, const float *logits)
{
    const float_rows *k = arg;
    memcpy(k->at + index * k->width, logits, k->width * sizeof *logits);
    return true;
}

/* What is kept of the reference's logits while the others are compared with them. */
struct reference_row {
    double norm, nll;
    size_t top;
};

struct compare_call {
    vq_session *reference, *const *tested;
    size_t n_tested;
    vq_vec_kernels kernels;
    float_rows expected, seen; /* [STEP][n_vocab] */
    size_t first;              /* token of a window whose logits are the first to count */
    size_t n_scored;
    bool decodes;
    vq_eval_fn progress;
    void *arg;
    vq_comparison *sums; /* [n_tested] */
};

/* a, b: logits of the reference and of the tested session for the token before `target` */
static void compare_row(const struct compare_call *c, const float *a, const float *b, int32_t target,
                        const struct reference_row *known, vq_comparison *sum)
{
    const size_t n_vocab = c->seen.width;
    const double norm = vq_log_sum_exp(&c->kernels, b, n_vocab), nll = norm - (double)b[target];
    vq_moments_add(&sum->reference_nll, known->nll);
    vq_moments_add(&sum->nll, nll);
    vq_moments_add(&sum->log_ratio, nll - known->nll);
    vq_moments_add(&sum->kl, vq_kl_divergence(&c->kernels, a, known->norm, b, norm, n_vocab));
    vq_moments_add(&sum->same_top, argmax(b, n_vocab) == known->top ? 1 : 0);
}

static vq_status compare_rows(struct compare_call *c, vq_session *s, const int32_t *ids, size_t n,
                              const struct reference_row *known, vq_comparison *sum, vq_error *err)
{
    const size_t n_vocab = c->seen.width;
    if (generates(s, c->decodes))
        VQ_TRY(vq_session_decode(s, ids, n, keep_row, 0, &c->seen, err));
    else
        VQ_TRY(vq_session_eval(s, ids, n, keep_row, 0, &c->seen, err));
    for (size_t i = 0; i < n; i++)
        compare_row(c, c->expected.at + i * n_vocab, c->seen.at + i * n_vocab, ids[i + 1], &known[i], sum);
    return VQ_OK;
}

static vq_status compare_step(struct compare_call *c, const int32_t *ids, size_t n, vq_error *err)
{
    struct reference_row known[STEP];
    const size_t n_vocab = c->seen.width;
    VQ_TRY(vq_session_eval(c->reference, ids, n, keep_row, 0, &c->expected, err));
    for (size_t i = 0; i < n; i++) {
        const float *a = c->expected.at + i * n_vocab;
        const double norm = vq_log_sum_exp(&c->kernels, a, n_vocab);
        known[i] = (struct reference_row){norm, norm - (double)a[ids[i + 1]], argmax(a, n_vocab)};
    }
    for (size_t t = 0; t < c->n_tested; t++)
        VQ_TRY(compare_rows(c, c->tested[t], ids, n, known, &c->sums[t], err));
    for (size_t i = 0; i < n; i++)
        if (c->progress && !c->progress(c->arg, (size_t)c->sums[0].nll.n - n + i + 1, c->n_scored, known[i].nll))
            return vq_fail(err, VQ_ERR_CANCELLED, "cancelled after %zu of %zu tokens", (size_t)c->sums[0].nll.n,
                           c->n_scored);
    return VQ_OK;
}

static vq_status compare_window(struct compare_call *c, const int32_t *ids, size_t n_ctx, vq_error *err)
{
    for (size_t t = 0; t <= c->n_tested; t++) {
        vq_session *s = t < c->n_tested ? c->tested[t] : c->reference;
        VQ_TRY(vq_session_truncate(s, 0, err));
        VQ_TRY(vq_session_eval(s, ids, c->first, NULL, 0, NULL, err));
    }
    for (size_t at = c->first; at < n_ctx - 1; at += STEP)
        VQ_TRY(compare_step(c, ids + at, n_ctx - 1 - at < STEP ? n_ctx - 1 - at : STEP, err));
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

vq_status vq_eval_compare(vq_session *reference, vq_session *const *tested, size_t n_tested, const vq_windows *w,
                          vq_eval_fn progress, void *arg, vq_comparison *out, vq_error *err)
{
    size_t n_windows, n_scored;
    VQ_TRY(vq_eval_count(w, &n_windows, &n_scored, err));
    VQ_TRY(check_room(reference, w, err));
    VQ_TRY(vq_windows_check_text(w, n_windows, err));
    const vq_model *model = vq_session_model(reference);
    const size_t n_vocab = vq_model_get_info(model)->n_vocab;
    if (n_tested == 0)
        return vq_fail(err, VQ_ERR_ARG, "no session to compare with the reference");
    for (size_t i = 0; i < n_tested; i++) {
        VQ_TRY(check_room(tested[i], w, err));
        VQ_TRY(check_pass(tested[i], w, err));
        const size_t n = vq_model_get_info(vq_session_model(tested[i]))->n_vocab;
        if (n != n_vocab)
            return vq_fail(err, VQ_ERR_MISMATCH, "vocabularies of %zu and %zu tokens cannot be compared", n_vocab, n);
    }

    struct compare_call call = {.reference = reference,
                                .tested = tested,
                                .n_tested = n_tested,
                                .first = w->skip < 1 ? 0 : w->skip - 1,
                                .n_scored = n_scored,
                                .decodes = w->decodes,
                                .progress = progress,
                                .arg = arg,
                                .sums = calloc(n_tested, sizeof(vq_comparison))};
    call.expected = (float_rows){malloc(STEP * n_vocab * sizeof(float)), n_vocab};
    call.seen = (float_rows){malloc(STEP * n_vocab * sizeof(float)), n_vocab};
    int32_t *ids = malloc(w->n_ctx * sizeof *ids);
    vq_vec_kernels_init(&call.kernels, vq_cpu_detect());
    vq_status status = VQ_OK;
    if (!ids || !call.sums || !call.expected.at || !call.seen.at)
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for 2 x %d rows of %zu logits", STEP, n_vocab);
    for (size_t i = 0; i < n_windows && status == VQ_OK; i++) {
        window_ids(w, i, vq_model_tokenizer(model), ids);
        status = compare_window(&call, ids, w->n_ctx, err);
    }
    if (status == VQ_OK)
        status = vq_windows_check_result(w, &call.sums[0].reference_nll, err);
    for (size_t i = 0; i < n_tested && status == VQ_OK; i++)
        merge(&out[i], &call.sums[i]);
    free(ids);
    free(call.sums);
    free(call.expected.at);
    free(call.seen.at);
    return status;
}
