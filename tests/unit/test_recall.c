/* Contexts with facts: exact lengths, every fact once and where it should be, the same for the same seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/recall_task.h"
#include "support/toy_vocab.h"

enum { N_LETTERS = 26, N_TOKENS = N_LETTERS + 4, N_PROSE = 6000 };

/* Bytes, and a token for a space with each letter after it: short words with different initials are then answers.
 * Without the letters there are none. */
static vq_tokenizer *open_tokenizer(bool letters)
{
    static char texts[N_LETTERS][5];
    static toy_token tokens[N_TOKENS] = {
        {"<s>", TOY_CONTROL, 0}, {"</s>", TOY_CONTROL, 0}, {"<unk>", TOY_UNKNOWN, 0}, {"\xe2\x96\x81", TOY_NORMAL, -1}};
    for (int i = 0; i < N_LETTERS; i++) {
        snprintf(texts[i], sizeof texts[i], "\xe2\x96\x81%c", 'a' + i);
        tokens[4 + i] = (toy_token){texts[i], TOY_NORMAL, -2};
    }
    toy_vocab v = toy_vocab_init("llama", NULL);
    v.tokens = tokens;
    v.n_tokens = letters ? N_TOKENS : 4;
    v.bytes = true;
    v.bos = 0;
    v.eos = 1;
    v.unknown = 2;
    v.add_bos = 1;
    v.add_space_prefix = 0;
    return toy_vocab_open(&v);
}

/* Sentences of digits, so that nothing in them looks like a fact. */
static int32_t *make_prose(const vq_tokenizer *t, size_t *n)
{
    char *text = malloc(N_PROSE + 1);
    for (int i = 0; i < N_PROSE; i++)
        text[i] = i % 20 == 19 ? ' ' : i % 20 == 18 ? '.' : (char)('0' + i % 7);
    text[N_PROSE] = 0;
    int32_t *ids;
    assert_int_equal(vq_tokenize(t, text, N_PROSE, VQ_TOKENIZE_BOS, &ids, n, NULL), VQ_OK);
    free(text);
    return ids;
}

static char *text_of(const vq_tokenizer *t, const vq_recall_built *b, vq_id_span span)
{
    char *text = calloc(span.n + 1, 8);
    size_t n = 0;
    for (uint32_t i = 0; i < span.n; i++) {
        const vq_str s = vq_token_bytes(t, b->ids[span.at + i], false);
        memcpy(text + n, s.at, s.n_bytes);
        n += s.n_bytes;
    }
    return text;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

static vq_recall_built build(const vq_tokenizer *t, const vq_recall_params *p)
{
    vq_recall_built b;
    vq_error err;
    if (vq_recall_build(&b, t, p, &err) != VQ_OK)
        fail_msg("%s", err.text);
    return b;
}

/* Each question's answer must be what the context says of the person it asks for. */
static void check_answers(const vq_tokenizer *t, const vq_recall_built *b, bool pairs)
{
    char *context = text_of(t, b, b->context);
    for (uint32_t i = 0; i < b->n_questions; i++) {
        const vq_recall_question *q = &b->questions[i];
        char *ask = text_of(t, b, q->ask), *answer = text_of(t, b, q->answer), fact[200];
        const char *who = pairs ? ask + 1 : strrchr(ask, '\n') + strlen("\nAnswer: The");
        if (pairs)
            snprintf(fact, sizeof fact, "\n%s%s", who, answer);
        else
            snprintf(fact, sizeof fact, " The%s%s.", who, answer);
        if (count(context, fact) != 1)
            fail_msg("'%s' stands %zu times in the context, must be once", fact, count(context, fact));
        assert_int_equal(q->first, b->ids[q->answer.at]);
        free(ask);
        free(answer);
    }
    free(context);
}

static void needles(void **state)
{
    (void)state;
    vq_tokenizer *t = open_tokenizer(true);
    size_t n;
    int32_t *prose = make_prose(t, &n);
    for (uint64_t seed = 0; seed < 20; seed++) {
        const vq_recall_params p = {
            .n_tokens = 1000, .n_questions = 1 + seed % 4, .depth = 0.5f, .seed = seed, .prose = prose, .n_prose = n};
        vq_recall_built a = build(t, &p), b = build(t, &p);
        assert_int_equal(a.context.n, p.n_tokens);
        assert_int_equal(a.ids[0], vq_tokenizer_bos(t));
        assert_int_equal(a.n_firsts, 9); /* salt iron lion gold fire oil road tree wine */
        assert_int_equal(a.n_ids, b.n_ids);
        assert_memory_equal(a.ids, b.ids, a.n_ids * sizeof *a.ids);
        check_answers(t, &a, false);
        vq_recall_built_free(&a);
        vq_recall_built_free(&b);
    }
    vq_free(prose);
    vq_tokenizer_close(t);
}

/* A needle stands where it was asked for, after the sentence's end before that place. */
static void depth(void **state)
{
    (void)state;
    vq_tokenizer *t = open_tokenizer(true);
    size_t n;
    int32_t *prose = make_prose(t, &n);
    static const double depths[] = {0, 0.25, 0.5, 0.75, 1};
    for (int i = 0; i < 5; i++) {
        const vq_recall_params p = {
            .n_tokens = 2000, .n_questions = 1, .depth = (float)depths[i], .seed = 7, .prose = prose, .n_prose = n};
        vq_recall_built b = build(t, &p);
        char *text = text_of(t, &b, b.context);
        const char *at = strstr(text, " The secret word");
        assert_non_null(at);
        const double seen = (double)(at - text), all = (double)strlen(text) - (double)strcspn(at + 1, ".") - 2;
        /* a sentence is 20 characters, half as many tokens at most are looked through */
        if (!(seen <= depths[i] * all + 1 && seen >= depths[i] * all - 21))
            fail_msg("depth %g: at character %g of %g", depths[i], seen, all);
        assert_true(at == text || at[-1] == '.');
        free(text);
        vq_recall_built_free(&b);
    }
    vq_free(prose);
    vq_tokenizer_close(t);
}

static void pairs(void **state)
{
    (void)state;
    vq_tokenizer *t = open_tokenizer(true);
    for (uint32_t n_tokens = 500; n_tokens < 4000; n_tokens += 700) {
        const vq_recall_params p = {.task = VQ_RECALL_PAIRS, .n_tokens = n_tokens, .n_questions = 8, .seed = n_tokens};
        vq_recall_built b = build(t, &p);
        assert_true(b.context.n <= n_tokens && b.context.n + 40 > n_tokens); /* no line has 40 bytes */
        char *text = text_of(t, &b, b.context);
        assert_int_equal(count(text, "\n"), b.n_facts);
        free(text);
        check_answers(t, &b, true);
        vq_recall_built_free(&b);
    }
    vq_tokenizer_close(t);
}

static void asked_first(void **state)
{
    (void)state;
    vq_tokenizer *t = open_tokenizer(true);
    size_t n;
    int32_t *prose = make_prose(t, &n);
    const vq_recall_params p = {
        .n_tokens = 1500, .n_questions = 3, .asked_first = true, .seed = 3, .prose = prose, .n_prose = n};
    vq_recall_built b = build(t, &p);
    char *text = text_of(t, &b, b.context);
    assert_int_equal(count(text, "What is the secret word of the "), 3);
    assert_int_equal(count(text, " The secret word of the "), 3);
    check_answers(t, &b, false);
    free(text);
    vq_recall_built_free(&b);
    vq_free(prose);
    vq_tokenizer_close(t);
}

static void refuse(const vq_tokenizer *t, vq_recall_params p, vq_status want, const char *needle)
{
    vq_recall_built b;
    vq_error err;
    const vq_status got = vq_recall_build(&b, t, &p, &err);
    if (got != want || !strstr(err.text, needle))
        fail_msg("got %s '%s', want %s with '%s'", vq_status_name(got), got ? err.text : "", vq_status_name(want),
                 needle);
    assert_null(b.ids);
    assert_null(b.questions);
}

static void refusals(void **state)
{
    (void)state;
    vq_tokenizer *t = open_tokenizer(true), *plain = open_tokenizer(false);
    size_t n;
    int32_t *prose = make_prose(t, &n);
    vq_recall_params p = {.n_tokens = 1000, .n_questions = 2, .depth = 0.5f, .prose = prose, .n_prose = n};
    refuse(plain, p, VQ_ERR_UNSUPPORTED, "at least 8");
    p.n_questions = 0;
    refuse(t, p, VQ_ERR_ARG, "0 questions");
    p.n_questions = VQ_RECALL_MOST_QUESTIONS + 1;
    refuse(t, p, VQ_ERR_ARG, "65 questions");
    p.n_questions = 30;
    refuse(t, p, VQ_ERR_ARG, "do not fit");
    p.n_questions = 2;
    p.depth = 1.5f;
    refuse(t, p, VQ_ERR_ARG, "depth 1.5");
    p.depth = 0;
    p.n_prose = 300;
    refuse(t, p, VQ_ERR_ARG, "the text has 299 tokens");
    p.task = VQ_RECALL_PAIRS;
    p.n_tokens = 100;
    p.n_questions = 10;
    refuse(t, p, VQ_ERR_ARG, "a context of 100 tokens holds");
    vq_free(prose);
    vq_tokenizer_close(t);
    vq_tokenizer_close(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(needles),     cmocka_unit_test(depth),    cmocka_unit_test(pairs),
        cmocka_unit_test(asked_first), cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
