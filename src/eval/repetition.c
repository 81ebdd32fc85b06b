/* Repetition of token sequences: texts that a model copies from itself say nothing about a cache, and generated text
 * that loops is a failure that perplexity does not show. */
#include <math.h>
#include <stdlib.h>
#include <xxhash.h>

#include "base/status.h"
#include "eval/repetition.h"

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

double vq_eval_distinct(const int32_t *ids, size_t n, uint32_t gram)
{
    if (gram == 0 || n < gram)
        return 1;
    const size_t n_grams = n - gram + 1;
    uint64_t *sums = malloc(n_grams * sizeof *sums);
    if (!sums)
        return NAN;
    for (size_t i = 0; i < n_grams; i++)
        sums[i] = XXH64(ids + i, gram * sizeof *ids, 0);
    qsort(sums, n_grams, sizeof *sums, by_value);
    size_t distinct = 1;
    for (size_t i = 1; i < n_grams; i++)
        distinct += sums[i] != sums[i - 1];
    free(sums);
    return (double)distinct / (double)n_grams;
}

size_t vq_eval_loop_start(const int32_t *ids, size_t n)
{
    enum { LEAST = 16 };
    size_t first = n;
    for (size_t period = 1; period + LEAST <= n; period++) {
        size_t at = n; /* everything from here on repeats */
        while (at > period && ids[at - 1] == ids[at - 1 - period])
            at--;
        if (n - at >= LEAST && n - at >= 2 * period && at < first)
            first = at;
    }
    return first;
}

vq_status vq_windows_check_text(const vq_windows *w, size_t n_windows, vq_error *err)
{
    if (w->any_text)
        return VQ_OK;
    const double distinct = vq_eval_distinct(w->ids, n_windows * w->n_ctx, VQ_TEXT_GRAM);
    if (isnan(distinct))
        return vq_fail(err, VQ_ERR_NOMEM, "no memory to look for repetition in %zu tokens", n_windows * w->n_ctx);
    if (distinct < VQ_TEXT_LEAST_DISTINCT)
        return vq_fail(
            err, VQ_ERR_VALUE,
            "the text repeats itself: of its sequences of %d tokens only %.0f %% are distinct (at least %.0f "
            "%%), so a model can copy and its perplexity says nothing",
            VQ_TEXT_GRAM, 100 * distinct, 100 * VQ_TEXT_LEAST_DISTINCT);
    for (size_t i = 0; i < n_windows; i++) { /* one looped window among good ones would be copied all the same */
        const double own = vq_eval_distinct(w->ids + i * w->n_ctx, w->n_ctx, VQ_TEXT_GRAM);
        if (isnan(own))
            return vq_fail(err, VQ_ERR_NOMEM, "no memory to look for repetition in %u tokens", w->n_ctx);
        if (own < VQ_TEXT_LEAST_DISTINCT)
            return vq_fail(
                err, VQ_ERR_VALUE,
                "the text repeats itself in window %zu of %zu: of its sequences of %d tokens only %.0f %% are "
                "distinct (at least %.0f %%), so a model can copy and its perplexity says nothing",
                i + 1, n_windows, VQ_TEXT_GRAM, 100 * own, 100 * VQ_TEXT_LEAST_DISTINCT);
    }
    return VQ_OK;
}

vq_status vq_windows_check_result(const vq_windows *w, const vq_moments *nll, vq_error *err)
{
    if (!w->any_text && nll->n > 0 && exp(nll->mean) < VQ_TEXT_LEAST_PERPLEXITY)
        return vq_fail(err, VQ_ERR_VALUE,
                       "perplexity %.3f is not that of prose (at least %.1f): the model knows the text or copies it",
                       exp(nll->mean), VQ_TEXT_LEAST_PERPLEXITY);
    return VQ_OK;
}
