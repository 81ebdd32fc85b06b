/* The sampler against a plain double-precision version that sorts the whole vocabulary: the same filters in the same
 * order, the same draw. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "veloxquant/session.h"

static vq_sampler *sampler_open(const vq_sampler_params *p, uint32_t n_vocab)
{
    vq_sampler *s;
    vq_error err;
    if (vq_sampler_open(&s, p, n_vocab, &err) != VQ_OK)
        fail_msg("%s", err.text);
    return s;
}

static const float *sort_logits;

static int by_logit(const void *a, const void *b)
{
    const int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
    const float x = sort_logits[i], y = sort_logits[k];
    if (x != y)
        return x > y ? -1 : 1;
    return i < k ? -1 : 1;
}

/* Which tokens the filters keep, in order; returns how many. */
static uint32_t keep(const vq_sampler_params *p, const float *logits, uint32_t n, int32_t *ids)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = (int32_t)i;
    sort_logits = logits;
    qsort(ids, n, sizeof *ids, by_logit);
    uint32_t k = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    double all = 0, sum = 0;
    for (uint32_t i = 0; i < k; i++)
        all += exp((double)logits[ids[i]] - (double)logits[ids[0]]);
    uint32_t n_p = k;
    for (uint32_t i = 0; i < k && p->top_p < 1; i++) {
        sum += exp((double)logits[ids[i]] - (double)logits[ids[0]]);
        if (sum >= (double)p->top_p * all) {
            n_p = i + 1;
            break;
        }
    }
    uint32_t n_min = 1;
    while (n_min < n_p && exp((double)logits[ids[n_min]] - (double)logits[ids[0]]) >= (double)p->min_p)
        n_min++;
    return n_min;
}

static void random_logits(vq_rng *rng, float *logits, uint32_t n, double spread)
{
    for (uint32_t i = 0; i < n; i++)
        logits[i] = (float)(spread * vq_rng_normal(rng));
    for (uint32_t i = 0; i < n / 8; i++) /* ties */
        logits[vq_rng_next(rng) % n] = logits[vq_rng_next(rng) % n];
}

/* Only kept tokens are drawn, and each of them about as often as its probability says. */
static void draws_match_probabilities(void **state)
{
    (void)state;
    enum { N = 1000, DRAWS = 8000 };
    const vq_sampler_params cases[] = {
        {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .min_p = 0.05F, .repeat_penalty = 1},
        {.temperature = 1, .top_k = 0, .top_p = 0.9F, .min_p = 0, .repeat_penalty = 1},
        {.temperature = 1.5F, .top_k = 0, .top_p = 1, .min_p = 0.2F, .repeat_penalty = 1},
        {.temperature = 0.5F, .top_k = 7, .top_p = 1, .min_p = 0, .repeat_penalty = 1},
        {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 0, .repeat_penalty = 1},
        {.temperature = 1, .top_k = 0, .top_p = 0.999F, .min_p = 0, .repeat_penalty = 1},
        {.temperature = 1, .top_k = N + 5, .top_p = 0, .min_p = 0, .repeat_penalty = 1},
        {.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 1, .repeat_penalty = 1},
    };
    static float logits[N];
    static int32_t ids[N];
    static uint32_t counts[N];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        vq_rng rng;
        vq_rng_seed(&rng, 100 + c);
        random_logits(&rng, logits, N, 2);
        vq_sampler_params p = cases[c];
        p.seed = c;
        const uint32_t n_kept = keep(&p, logits, N, ids);
        vq_sampler *s = sampler_open(&p, N);
        memset(counts, 0, sizeof counts);
        for (uint32_t i = 0; i < DRAWS; i++)
            counts[vq_sampler_next(s, logits)]++;
        vq_sampler_close(s);
        double all = 0;
        for (uint32_t i = 0; i < n_kept; i++)
            all += exp(((double)logits[ids[i]] - (double)logits[ids[0]]) / (double)p.temperature);
        uint32_t n_drawn = 0;
        for (uint32_t i = 0; i < n_kept; i++) {
            const double share = exp(((double)logits[ids[i]] - (double)logits[ids[0]]) / (double)p.temperature) / all;
            const double want = share * DRAWS, sigma = sqrt(want * (1 - share));
            n_drawn += counts[ids[i]];
            /* 5.5 standard deviations, and 6 draws where the normal law is a poor picture of rare tokens */
            if (!(fabs(counts[ids[i]] - want) <= 5.5 * sigma + 6))
                fail_msg("case %zu: token %d drawn %u times of %d, want %.1f +- %.1f (seed %zu)", c, ids[i],
                         counts[ids[i]], DRAWS, want, sigma, c);
        }
        if (n_drawn != DRAWS)
            fail_msg("case %zu: %u of %d draws were of tokens that the filters drop", c, DRAWS - n_drawn, DRAWS);
    }
}

static void greedy_and_ties(void **state)
{
    (void)state;
    const float logits[] = {1, 5, -2, 5, 5, 0};
    vq_sampler_params p;
    vq_sampler_params_init(&p);
    p.temperature = 0;
    vq_sampler *s = sampler_open(&p, 6);
    assert_int_equal(vq_sampler_next(s, logits), 1);
    const float odd[] = {NAN, -INFINITY, -3, NAN, -3, -4};
    assert_int_equal(vq_sampler_next(s, odd), 2);
    const float nothing[] = {NAN, NAN, -INFINITY, NAN, NAN, NAN};
    assert_int_equal(vq_sampler_next(s, nothing), 0);
    vq_sampler_close(s);
    p.temperature = 1;
    p.top_k = 2; /* of three equal tokens the two lower ids stay */
    p.top_p = 1;
    p.min_p = 0;
    s = sampler_open(&p, 6);
    unsigned seen = 0;
    for (int i = 0; i < 200; i++)
        seen |= 1U << vq_sampler_next(s, logits);
    assert_int_equal(seen, 1U << 1 | 1U << 3);
    for (int i = 0; i < 50; i++)
        assert_int_equal(vq_sampler_next(s, odd) & ~6, 0); /* 2 or 4, never a NaN */
    vq_sampler_close(s);
}

static void penalty(void **state)
{
    (void)state;
    const float logits[] = {2.0F, 1.9F, -1, -1.1F};
    vq_sampler_params p;
    vq_sampler_params_init(&p);
    p.temperature = 0;
    p.repeat_penalty = 1.5F;
    p.repeat_last_n = 2;
    vq_sampler *s = sampler_open(&p, 4);
    assert_int_equal(vq_sampler_next(s, logits), 0);
    vq_sampler_accept(s, 0);
    vq_sampler_accept(s, 0); /* twice counts once: 2 / 1.5 = 1.33 */
    assert_int_equal(vq_sampler_next(s, logits), 1);
    vq_sampler_accept(s, 1); /* 1.33 against 1.27 */
    assert_int_equal(vq_sampler_next(s, logits), 0);
    vq_sampler_accept(s, 2);
    vq_sampler_accept(s, 3); /* 0 and 1 have left the window */
    assert_int_equal(vq_sampler_next(s, logits), 0);
    vq_sampler_accept(s, -1); /* no token: ignored */
    vq_sampler_accept(s, 4);
    vq_sampler_close(s);
    const float negative[] = {-1, -1.2F};
    s = sampler_open(&p, 2);
    vq_sampler_accept(s, 0); /* -1 * 1.5 = -1.5: a penalty lowers negative logits too */
    assert_int_equal(vq_sampler_next(s, negative), 1);
    vq_sampler_close(s);
}

static void seeds(void **state)
{
    (void)state;
    enum { N = 5000, DRAWS = 64 };
    static float logits[N];
    vq_rng rng;
    vq_rng_seed(&rng, 7);
    random_logits(&rng, logits, N, 1);
    int32_t first[DRAWS];
    unsigned differ = 0;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        vq_sampler_params p;
        vq_sampler_params_init(&p);
        p.seed = seed == 3 ? 1 : seed;
        vq_sampler *s = sampler_open(&p, N);
        for (int i = 0; i < DRAWS; i++) {
            const int32_t id = vq_sampler_next(s, logits);
            if (seed == 1)
                first[i] = id;
            else if (seed == 2)
                differ += id != first[i];
            else
                assert_int_equal(id, first[i]);
        }
        vq_sampler_close(s);
    }
    assert_true(differ > DRAWS / 2);
}

static void refused(void **state)
{
    (void)state;
    const vq_sampler_params good = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};
    for (int i = 0; i < 9; i++) {
        vq_sampler_params p = good;
        uint32_t n_vocab = 10;
        switch (i) {
        case 0: p.temperature = -1; break;
        case 1: p.temperature = NAN; break;
        case 2: p.top_p = 1.01F; break;
        case 3: p.top_p = -0.5F; break;
        case 4: p.min_p = 2; break;
        case 5: p.repeat_penalty = 0; break;
        case 6: p.repeat_penalty = NAN; break;
        case 7: n_vocab = 0; break;
        default: p.temperature = INFINITY; break;
        }
        vq_sampler *s = (vq_sampler *)1;
        vq_error err;
        assert_int_equal(vq_sampler_open(&s, &p, n_vocab, &err), VQ_ERR_ARG);
        assert_null(s);
        assert_non_null(strstr(err.text, "must be"));
    }
    vq_sampler_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(draws_match_probabilities), cmocka_unit_test(greedy_and_ties),
                                       cmocka_unit_test(penalty), cmocka_unit_test(seeds), cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
