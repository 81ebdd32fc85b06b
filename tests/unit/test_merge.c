/* Merging and special tokens against definitions so plain that they can be read at a glance, on random vocabularies. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "support/toy_vocab.h"
#include "tokenizer/inner.h"
#include "tokenizer/special.h"

enum { N_LETTERS = 3, MAX_TOKENS = 40, MAX_TEXT = 300, PIECE = 16 };

static uint32_t below(vq_rng *rng, uint32_t n) { return (uint32_t)(vq_rng_next(rng) % n); }

/* A vocabulary over the letters a to c: the letters, and pairs of earlier tokens. */
typedef struct random_vocab {
    char texts[MAX_TOKENS][PIECE], merge_texts[MAX_TOKENS][2 * PIECE];
    const char *merges[MAX_TOKENS];
    uint32_t left[MAX_TOKENS], right[MAX_TOKENS]; /* of token i, from N_LETTERS on */
    toy_token tokens[MAX_TOKENS];
    uint32_t n;
} random_vocab;

static bool has_text(const random_vocab *v, const char *text)
{
    for (uint32_t i = 0; i < v->n; i++)
        if (strcmp(v->texts[i], text) == 0)
            return true;
    return false;
}

static void make_vocab(random_vocab *v, vq_rng *rng)
{
    v->n = 0;
    for (; v->n < N_LETTERS; v->n++)
        snprintf(v->texts[v->n], PIECE, "%c", (char)('a' + v->n));
    const uint32_t n_wanted = N_LETTERS + 1 + below(rng, MAX_TOKENS - N_LETTERS - 1);
    for (int tries = 0; tries < 500 && v->n < n_wanted; tries++) {
        const uint32_t a = below(rng, v->n), b = below(rng, v->n);
        char joined[2 * PIECE], merge[2 * PIECE];
        snprintf(joined, sizeof joined, "%s%s", v->texts[a], v->texts[b]);
        if (strlen(joined) >= PIECE || has_text(v, joined))
            continue;
        memcpy(v->texts[v->n], joined, PIECE);
        snprintf(merge, sizeof merge, "%s %s", v->texts[a], v->texts[b]);
        memcpy(v->merge_texts[v->n], merge, sizeof merge);
        v->merges[v->n - N_LETTERS] = v->merge_texts[v->n];
        v->left[v->n] = a;
        v->right[v->n++] = b;
    }
    for (uint32_t i = 0; i < v->n; i++)
        v->tokens[i] = (toy_token){v->texts[i], TOY_NORMAL, (float)below(rng, 8)}; /* many equal scores */
}

static uint32_t make_text(vq_rng *rng, char *text)
{
    const uint32_t n = 1 + below(rng, below(rng, 4) ? 30 : MAX_TEXT - 1), letters = 1 + below(rng, N_LETTERS);
    for (uint32_t i = 0; i < n; i++)
        text[i] = (char)('a' + below(rng, letters));
    return n;
}

/* The better of two pairs is the one that comes first in this order; false when they don't merge. */
typedef bool (*rank_fn)(const random_vocab *v, uint32_t left, uint32_t right, uint32_t *joined, double *rank);

static bool rank_bpe(const random_vocab *v, uint32_t left, uint32_t right, uint32_t *joined, double *rank)
{
    for (uint32_t i = N_LETTERS; i < v->n; i++)
        if (v->left[i] == left && v->right[i] == right) {
            *joined = i;
            *rank = i;
            return true;
        }
    return false;
}

static bool rank_spm(const random_vocab *v, uint32_t left, uint32_t right, uint32_t *joined, double *rank)
{
    char text[2 * PIECE];
    snprintf(text, sizeof text, "%s%s", v->texts[left], v->texts[right]);
    for (uint32_t i = 0; i < v->n; i++)
        if (strcmp(v->texts[i], text) == 0) {
            *joined = i;
            *rank = -v->tokens[i].score;
            return true;
        }
    return false;
}

/* The definition: look at all pairs, join the best one (the leftmost of equals), again. */
static uint32_t merge_plainly(const random_vocab *v, rank_fn rank, const char *text, uint32_t n, int32_t *ids)
{
    for (uint32_t i = 0; i < n; i++)
        ids[i] = text[i] - 'a';
    for (;;) {
        uint32_t best = n, id = 0;
        double best_rank = 0;
        for (uint32_t i = 0; i + 1 < n; i++) {
            uint32_t joined;
            double r;
            if (rank(v, (uint32_t)ids[i], (uint32_t)ids[i + 1], &joined, &r) && (best == n || r < best_rank)) {
                best = i;
                best_rank = r;
                id = joined;
            }
        }
        if (best == n)
            return n;
        ids[best] = (int32_t)id;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void check_merging(const char *model, rank_fn rank, uint64_t seed)
{
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (int round = 0; round < 60; round++) {
        random_vocab v;
        make_vocab(&v, &rng);
        toy_vocab toy = toy_vocab_init(model, "gpt-2");
        toy.tokens = v.tokens;
        toy.n_tokens = v.n;
        toy.merges = v.merges;
        toy.n_merges = v.n - N_LETTERS;
        toy.add_space_prefix = 0;
        vq_tokenizer *t = toy_vocab_open(&toy);
        for (int k = 0; k < 40; k++) {
            char text[MAX_TEXT];
            int32_t want[MAX_TEXT], *got;
            const uint32_t n = make_text(&rng, text);
            const uint32_t n_want = merge_plainly(&v, rank, text, n, want);
            size_t n_got;
            assert_int_equal(vq_tokenize(t, text, n, 0, &got, &n_got, NULL), VQ_OK);
            if (n_got != n_want || memcmp(got, want, n_want * sizeof *want) != 0)
                fail_msg("%s, seed %d, round %d: \"%.*s\" gives %zu ids, not the %u of the definition", model,
                         (int)seed, round, (int)n, text, n_got, n_want);
            vq_free(got);
        }
        vq_tokenizer_close(t);
    }
}

static void bpe_equals_definition(void **state)
{
    (void)state;
    check_merging("gpt2", rank_bpe, 1);
}

static void spm_equals_definition(void **state)
{
    (void)state;
    check_merging("llama", rank_spm, 2);
}

/* ---- special tokens ---- */

/* The longest special token at `at` that counts there, or VQ_NO_TOKEN. */
static int32_t find_plainly(const random_vocab *v, const char *text, size_t n, size_t at, const vq_span *spans,
                            size_t n_spans)
{
    int32_t best = VQ_NO_TOKEN;
    size_t best_len = 0;
    for (uint32_t i = N_LETTERS; i < v->n; i++) {
        const size_t len = strlen(v->texts[i]);
        if (len > n - at || memcmp(text + at, v->texts[i], len) != 0)
            continue;
        bool counts = v->tokens[i].type == TOY_USER;
        for (size_t k = 0; k < n_spans; k++)
            counts |= at >= spans[k].start && at + len <= spans[k].end;
        if (counts && len > best_len) {
            best = (int32_t)i;
            best_len = len;
        }
    }
    return best;
}

static void special_equals_definition(void **state)
{
    (void)state;
    vq_rng rng;
    vq_rng_seed(&rng, 3);
    for (int round = 0; round < 200; round++) {
        random_vocab v;
        make_vocab(&v, &rng);
        for (uint32_t i = N_LETTERS; i < v.n; i++)
            v.tokens[i].type = below(&rng, 2) ? TOY_USER : below(&rng, 5) ? TOY_CONTROL : TOY_UNKNOWN;
        toy_vocab toy = toy_vocab_init("llama", NULL);
        toy.tokens = v.tokens;
        toy.n_tokens = v.n;
        vq_tokenizer *t = toy_vocab_open(&toy);
        vq_special *special;
        assert_int_equal(vq_special_open(&special, vq_tokenizer_vocab(t), NULL), VQ_OK);
        for (int k = 0; k < 20; k++) {
            char text[MAX_TEXT];
            const uint32_t n = make_text(&rng, text);
            vq_span spans[3];
            size_t n_spans = 0, at = 0;
            while (n_spans < 3 && at < n) {
                spans[n_spans].start = at + below(&rng, n - (uint32_t)at);
                at = spans[n_spans].end = spans[n_spans].start + below(&rng, n - (uint32_t)spans[n_spans].start + 1);
                n_spans++;
            }
            vq_matches found = {0};
            assert_int_equal(vq_special_find(special, text, n, spans, n_spans, &found, NULL), VQ_OK);
            for (size_t i = n; i-- > 0;) {
                const int32_t want = find_plainly(&v, text, n, i, spans, n_spans);
                const bool here = found.n > 0 && found.at[0].at == i;
                const int32_t got = here ? found.at[0].id : VQ_NO_TOKEN;
                assert_int_equal(got, want);
                if (here)
                    memmove(found.at, found.at + 1, --found.n * sizeof *found.at);
            }
            assert_int_equal(found.n, 0);
            free(found.at);
        }
        vq_special_close(special);
        vq_tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bpe_equals_definition), cmocka_unit_test(spm_equals_definition),
                                       cmocka_unit_test(special_equals_definition)};
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
