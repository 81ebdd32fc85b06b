/* Sampling: repeat penalty, top-k, top-p, min-p, temperature, draw.
 *
 * What the three filters keep is always a start of the list of tokens sorted by (logit falling, id rising), so only
 * that start is ever sorted: the top of a vocabulary of 262,144 is found by a heap in one pass.  Sums run in double
 * over that order, in which nothing depends on threads. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/rng.h"
#include "base/status.h"
#include "veloxquant/session.h"

struct candidate {
    float logit;
    int32_t id;
};

struct vq_sampler {
    vq_sampler_params params;
    uint32_t n_vocab;
    vq_rng rng;
    int32_t *recent; /* [repeat_last_n], a ring */
    uint32_t n_recent, next_recent;
    float *logits;         /* [n_vocab], penalised; NULL when there is no penalty */
    struct candidate *top; /* [n_vocab] */
    vq_arena arena;
};

void vq_sampler_params_init(vq_sampler_params *params)
{
    *params = (vq_sampler_params){
        .temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .min_p = 0.05F, .repeat_penalty = 1, .repeat_last_n = 64};
}

static bool has_penalty(const vq_sampler_params *p) { return p->repeat_penalty != 1 && p->repeat_last_n > 0; }

static void layout(vq_sampler *s)
{
    vq_arena *a = &s->arena;
    s->top = vq_arena_take(a, s->n_vocab, sizeof *s->top);
    if (has_penalty(&s->params)) {
        s->recent = vq_arena_take(a, s->params.repeat_last_n, sizeof *s->recent);
        s->logits = vq_arena_take(a, s->n_vocab, sizeof *s->logits);
    }
}

static vq_status check(const vq_sampler_params *p, uint32_t n_vocab, vq_error *err)
{
    if (n_vocab == 0 || n_vocab > INT32_MAX)
        return vq_fail(err, VQ_ERR_ARG, "a vocabulary of %u tokens, must be 1 to %d", n_vocab, INT32_MAX);
    if (!(p->temperature >= 0 && p->temperature <= 100))
        return vq_fail(err, VQ_ERR_ARG, "temperature %g, must be 0 to 100", (double)p->temperature);
    if (!(p->top_p >= 0 && p->top_p <= 1))
        return vq_fail(err, VQ_ERR_ARG, "top-p %g, must be 0 to 1", (double)p->top_p);
    if (!(p->min_p >= 0 && p->min_p <= 1))
        return vq_fail(err, VQ_ERR_ARG, "min-p %g, must be 0 to 1", (double)p->min_p);
    if (!(p->repeat_penalty > 0 && p->repeat_penalty <= 100))
        return vq_fail(err, VQ_ERR_ARG, "repeat penalty %g, must be above 0 and at most 100",
                       (double)p->repeat_penalty);
    return VQ_OK;
}

vq_status vq_sampler_open(vq_sampler **out, const vq_sampler_params *params, uint32_t n_vocab, vq_error *err)
{
    *out = NULL;
    VQ_TRY(check(params, n_vocab, err));
    vq_sampler *s = calloc(1, sizeof *s);
    if (!s)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a sampler");
    s->params = *params;
    s->n_vocab = n_vocab;
    layout(s);
    const vq_status status = vq_arena_alloc(&s->arena, err);
    if (status != VQ_OK) {
        vq_sampler_close(s);
        return status;
    }
    layout(s);
    vq_rng_seed(&s->rng, params->seed);
    *out = s;
    return VQ_OK;
}

void vq_sampler_close(vq_sampler *s)
{
    if (!s)
        return;
    vq_arena_free(&s->arena);
    free(s);
}

void vq_sampler_accept(vq_sampler *s, int32_t id)
{
    if (!s->recent || id < 0 || (uint32_t)id >= s->n_vocab)
        return;
    s->recent[s->next_recent] = id;
    s->next_recent = (s->next_recent + 1) % s->params.repeat_last_n;
    if (s->n_recent < s->params.repeat_last_n)
        s->n_recent++;
}

/* Each token that occurs among the recent ones is penalised once, however often it occurs. */
static const float *penalise(vq_sampler *s, const float *logits)
{
    if (s->n_recent == 0)
        return logits;
    memcpy(s->logits, logits, s->n_vocab * sizeof *logits);
    for (uint32_t i = 0; i < s->n_recent; i++) {
        const int32_t id = s->recent[i];
        const float from = logits[id];
        s->logits[id] = from > 0 ? from / s->params.repeat_penalty : from * s->params.repeat_penalty;
    }
    return s->logits;
}

static int32_t argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    float top = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (logits[i] > top) { /* false for NaN */
            top = logits[i];
            best = i;
        }
    }
    return (int32_t)best;
}

/* a comes after b in the order (logit falling, id rising) */
static bool behind(struct candidate a, struct candidate b)
{
    return a.logit < b.logit || (a.logit == b.logit && a.id > b.id);
}

/* top [n] is a heap with the hindmost candidate in front; its first element has been replaced. */
static void sift_down(struct candidate *top, uint32_t n, uint32_t at)
{
    const struct candidate moving = top[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && behind(top[child + 1], top[child]))
            child++;
        if (!behind(top[child], moving))
            break;
        top[at] = top[child];
        at = child;
    }
    top[at] = moving;
}

/* The first k of the order, sorted, into s->top. */
static void select_top(vq_sampler *s, const float *logits, uint32_t k)
{
    struct candidate *top = s->top;
    assert(k >= 1 && k <= s->n_vocab);
    for (uint32_t i = 0; i < k; i++)
        top[i] = (struct candidate){isnan(logits[i]) ? -INFINITY : logits[i], (int32_t)i};
    for (uint32_t i = k / 2; i-- > 0;)
        sift_down(top, k, i);
    for (uint32_t i = k; i < s->n_vocab; i++) {
        if (logits[i] > top[0].logit) { /* an equal logit has the higher id, so it stays out */
            top[0] = (struct candidate){logits[i], (int32_t)i};
            sift_down(top, k, 0);
        }
    }
    for (uint32_t n = k; n > 1; n--) { /* hindmost first: taking them off leaves the order */
        const struct candidate last = top[0];
        top[0] = top[n - 1];
        top[n - 1] = last;
        sift_down(top, n - 1, 0);
    }
}

/* Sum over the vocabulary of exp(logit - max), in the order of ids. */
static double sum_all(const float *logits, uint32_t n, float max)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!isnan(logits[i]))
            sum += exp((double)logits[i] - (double)max);
    return sum;
}

/* Without a filter nothing needs an order: the draw walks the ids. */
static int32_t draw_unfiltered(vq_sampler *s, const float *logits, float max)
{
    const double per_degree = 1 / (double)s->params.temperature;
    double all = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        if (!isnan(logits[i]))
            all += exp(((double)logits[i] - (double)max) * per_degree);
    double left = vq_rng_uniform(&s->rng) * all;
    int32_t last = 0;
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        if (!(logits[i] > -INFINITY))
            continue;
        last = (int32_t)i;
        left -= exp(((double)logits[i] - (double)max) * per_degree);
        if (left < 0)
            break;
    }
    return last;
}

/* How many of the sorted top [n] top-p and min-p keep. `all` is the sum that shares refer to. */
static uint32_t count_kept(const vq_sampler *s, uint32_t n, double all)
{
    const double max = (double)s->top[0].logit;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double weight = exp((double)s->top[i].logit - max);
        if (i > 0 && weight < (double)s->params.min_p)
            return i;
        sum += weight;
        if (s->params.top_p < 1 && sum >= (double)s->params.top_p * all)
            return i + 1;
    }
    return n;
}

int32_t vq_sampler_next(vq_sampler *s, const float *logits)
{
    const vq_sampler_params *p = &s->params;
    if (has_penalty(p))
        logits = penalise(s, logits);
    const int32_t best = argmax(logits, s->n_vocab);
    const float max = logits[best];
    if (p->temperature == 0 || p->top_k == 1 || !isfinite(max))
        return best;

    const bool limited = p->top_k > 0 && p->top_k < s->n_vocab;
    if (!limited && p->top_p >= 1 && p->min_p <= 0)
        return draw_unfiltered(s, logits, max);

    uint32_t n = limited ? p->top_k : s->n_vocab < 256 ? s->n_vocab : 256, n_kept;
    const double whole = limited || p->top_p >= 1 ? 0 : sum_all(logits, s->n_vocab, max);
    for (;;) {
        select_top(s, logits, n);
        double all = whole;
        if (limited) {
            for (uint32_t i = 0; i < n; i++)
                all += exp((double)s->top[i].logit - (double)max);
        }
        n_kept = count_kept(s, n, all);
        /* the filters may reach beyond what is sorted so far, unless top-k set the end */
        if (limited || n_kept < n || n == s->n_vocab)
            break;
        n = n > s->n_vocab / 16 ? s->n_vocab : n * 16;
    }

    const double per_degree = 1 / (double)p->temperature;
    double all = 0;
    for (uint32_t i = 0; i < n_kept; i++)
        all += exp(((double)s->top[i].logit - (double)max) * per_degree);
    double left = vq_rng_uniform(&s->rng) * all;
    uint32_t i = 0;
    for (; i + 1 < n_kept; i++) {
        left -= exp(((double)s->top[i].logit - (double)max) * per_degree);
        if (left < 0)
            break;
    }
    return s->top[i].id;
}
