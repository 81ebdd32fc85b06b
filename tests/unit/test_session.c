/* Sessions over toy models of every family: passes and threads change nothing, limits, going back, cancelling, saving;
 * and generation over them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "support/temporary.h"
#include "support/toy_open.h"
#include "veloxquant/session.h"

enum { N = 90 };

static int32_t ids[N];

static vq_model *open_model(toy_family family)
{
    toy_params p;
    toy_params_init(&p, family);
    return toy_open(&p);
}

static vq_session *open_session(const vq_model *m, uint32_t n_batch, uint32_t n_ctx, vq_pool *pool)
{
    vq_session_params params;
    vq_session *s;
    vq_error err;
    vq_session_params_init(&params);
    params.n_batch = n_batch;
    params.n_ctx = n_ctx;
    params.pool = pool;
    if (vq_session_open(&s, m, &params, &err) != VQ_OK)
        fail_msg("%s", err.text);
    return s;
}

static void eval(vq_session *s, const int32_t *what, size_t n)
{
    vq_error err;
    if (vq_session_eval(s, what, n, NULL, 0, NULL, &err) != VQ_OK)
        fail_msg("%s", err.text);
}

static void assert_logits(vq_session *s, const float *want, const char *what)
{
    const float *got = vq_session_logits(s);
    const uint32_t n = vq_model_get_info(vq_session_model(s))->n_vocab;
    assert_non_null(got);
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s, %s: logit %u is %.9g, want %.9g", vq_model_get_info(vq_session_model(s))->family, what, i,
                     (double)got[i], (double)want[i]);
}

struct rows {
    float *at; /* [N][n_vocab] */
    size_t n_vocab, expect, stop_at;
};

static bool keep(void *arg, size_t index, const float *logits)
{
    struct rows *r = arg;
    assert_int_equal(index, r->expect++);
    memcpy(r->at + index * r->n_vocab, logits, r->n_vocab * sizeof *logits);
    return index != r->stop_at;
}

static void passes_and_threads(void **state)
{
    (void)state;
    vq_pool *pool;
    assert_int_equal(vq_pool_open(&pool, 3, NULL), VQ_OK);
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        vq_model *m = open_model((toy_family)family);
        const size_t n_vocab = vq_model_get_info(m)->n_vocab;
        struct rows all = {malloc(N * n_vocab * sizeof(float)), n_vocab, 0, SIZE_MAX};
        vq_session *s = open_session(m, N, N, NULL);
        assert_int_equal(vq_session_eval(s, ids, N, keep, 0, &all, NULL), VQ_OK);
        assert_int_equal(all.expect, N);
        assert_logits(s, all.at + (N - 1) * n_vocab, "all at once");
        vq_session_close(s);
        static const uint32_t batches[] = {1, 7, 32, 64};
        for (size_t b = 0; b < 4; b++) {
            struct rows part = {malloc(N * n_vocab * sizeof(float)), n_vocab, 40, SIZE_MAX};
            s = open_session(m, batches[b], N, b % 2 ? pool : NULL);
            assert_int_equal(vq_session_eval(s, ids, N, keep, 40, &part, NULL), VQ_OK);
            assert_int_equal(part.expect, N);
            assert_memory_equal(part.at + 40 * n_vocab, all.at + 40 * n_vocab, (N - 40) * n_vocab * sizeof(float));
            assert_logits(s, all.at + (N - 1) * n_vocab, "in passes");
            free(part.at);
            vq_session_close(s);
        }
        free(all.at);
        vq_model_close(m);
    }
    vq_pool_close(pool);
}

static void limits(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_LLAMA);
    vq_session *s = open_session(m, 8, 20, NULL);
    vq_error err;
    assert_null(vq_session_logits(s));
    assert_int_equal(vq_session_eval(s, ids, 21, NULL, 0, NULL, &err), VQ_ERR_FULL);
    assert_string_equal(err.text, "21 tokens do not fit into a context of 20");
    assert_int_equal(vq_session_n_tokens(s), 0);
    eval(s, ids, 15);
    eval(s, ids, 0);
    assert_int_equal(vq_session_eval(s, ids, 6, NULL, 0, NULL, &err), VQ_ERR_FULL);
    assert_string_equal(err.text, "6 tokens after 15 do not fit into a context of 20");
    const int32_t bad[] = {4, (int32_t)vq_model_get_info(m)->n_vocab, -1};
    assert_int_equal(vq_session_eval(s, bad, 2, NULL, 0, NULL, &err), VQ_ERR_ARG);
    assert_int_equal(vq_session_eval(s, bad + 2, 1, NULL, 0, NULL, &err), VQ_ERR_ARG);
    assert_int_equal(vq_session_n_tokens(s), 15);
    assert_non_null(vq_session_logits(s));
    eval(s, ids + 15, 5);
    assert_int_equal(vq_session_n_tokens(s), 20);
    assert_memory_equal(vq_session_ids(s), ids, 20 * sizeof *ids);
    assert_int_equal(vq_session_eval(s, ids, 1, NULL, 0, NULL, &err), VQ_ERR_FULL);
    assert_int_equal(vq_session_truncate(s, 21, &err), VQ_ERR_ARG);
    vq_session_close(s);
    vq_session_close(NULL);
    vq_model_close(m);
}

static void going_back(void **state)
{
    (void)state;
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        vq_model *m = open_model((toy_family)family);
        const size_t n_vocab = vq_model_get_info(m)->n_vocab;
        vq_session *s = open_session(m, 16, N, NULL);
        eval(s, ids, 50);
        float *want = malloc(n_vocab * sizeof *want);
        memcpy(want, vq_session_logits(s), n_vocab * sizeof *want);
        eval(s, ids, 20);
        assert_int_equal(vq_session_common(s, ids, N), 50);
        const vq_status status = vq_session_truncate(s, 49, NULL);
        if (status == VQ_ERR_UNSUPPORTED) { /* only a sliding window may say so, and nothing has changed */
            assert_true(vq_model_get_info(m)->window > 0);
            assert_int_equal(vq_session_n_tokens(s), 70);
            assert_non_null(vq_session_logits(s));
        } else {
            assert_int_equal(status, VQ_OK);
            assert_int_equal(vq_session_n_tokens(s), 49);
            assert_null(vq_session_logits(s));
            eval(s, ids + 49, 1);
            assert_logits(s, want, "after going back");
        }
        assert_int_equal(vq_session_truncate(s, 0, NULL), VQ_OK);
        eval(s, ids, 50);
        assert_logits(s, want, "anew");
        free(want);
        vq_session_close(s);
        vq_model_close(m);
    }
}

static void forking(void **state)
{
    (void)state;
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        vq_model *m = open_model((toy_family)family);
        const size_t n_vocab = vq_model_get_info(m)->n_vocab;
        vq_session *s = open_session(m, 16, N, NULL), *other = open_session(m, 16, N, NULL), *fork;
        vq_error err;
        float *prompt = malloc(n_vocab * sizeof *prompt), *answer = malloc(n_vocab * sizeof *answer);
        eval(other, ids, 50);
        memcpy(prompt, vq_session_logits(other), n_vocab * sizeof *prompt);
        eval(other, ids + 70, 20);
        memcpy(answer, vq_session_logits(other), n_vocab * sizeof *answer);
        eval(s, ids, 50);
        if (vq_session_fork(s, &fork, &err) != VQ_OK)
            fail_msg("%s", err.text);
        assert_logits(fork, prompt, "of a fork");
        assert_int_equal(vq_session_common(fork, ids, N), 50);
        eval(s, ids + 50, 20);
        eval(fork, ids + 70, 20);
        assert_logits(fork, answer, "of a fork that went its own way");
        assert_int_equal(vq_session_common(s, ids, N), 70);
        vq_session_close(s);
        assert_int_equal(vq_session_n_tokens(fork), 70);
        vq_session_close(fork);
        vq_session_close(other);
        free(prompt);
        free(answer);
        vq_model_close(m);
    }
}

static void cancelling(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_QWEN2);
    const size_t n_vocab = vq_model_get_info(m)->n_vocab;
    vq_session *s = open_session(m, 16, N, NULL);
    struct rows rows = {malloc(N * n_vocab * sizeof(float)), n_vocab, 0, 20};
    vq_error err;
    assert_int_equal(vq_session_eval(s, ids, N, keep, 0, &rows, &err), VQ_ERR_CANCELLED);
    assert_int_equal(rows.expect, 21);
    assert_int_equal(vq_session_n_tokens(s), 32); /* the pass that token 20 is in */
    assert_null(vq_session_logits(s));
    eval(s, ids + 32, N - 32);
    float *got = malloc(n_vocab * sizeof *got);
    memcpy(got, vq_session_logits(s), n_vocab * sizeof *got);
    vq_session_truncate(s, 0, NULL);
    eval(s, ids, N);
    assert_logits(s, got, "cancelled and gone on");
    free(got);
    free(rows.at);
    vq_session_close(s);
    vq_model_close(m);
}

static void saving(void **state)
{
    (void)state;
    char path[TEMPORARY_PATH];
    temporary_file(path, "session");
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        vq_model *m = open_model((toy_family)family);
        vq_session *s = open_session(m, 16, N, NULL), *t = open_session(m, 5, N, NULL);
        vq_error err;
        const size_t n_vocab = vq_model_get_info(m)->n_vocab;
        eval(s, ids, 77);
        if (vq_session_save(s, path, &err) != VQ_OK)
            fail_msg("%s", err.text);
        eval(s, ids + 77, N - 77);
        float *want = malloc(n_vocab * sizeof *want);
        memcpy(want, vq_session_logits(s), n_vocab * sizeof *want);
        eval(t, ids, 3);
        if (vq_session_load(t, path, &err) != VQ_OK)
            fail_msg("%s: %s", toy_family_name((toy_family)family), err.text);
        assert_int_equal(vq_session_n_tokens(t), 77);
        assert_memory_equal(vq_session_ids(t), ids, 77 * sizeof *ids);
        assert_null(vq_session_logits(t));
        assert_int_equal(vq_session_common(t, ids, N), 77);
        eval(t, ids + 77, N - 77);
        assert_logits(t, want, "after loading");
        vq_session_close(t);

        t = open_session(m, 5, 70, NULL); /* too small a context: unchanged */
        eval(t, ids, 9);
        assert_int_equal(vq_session_load(t, path, &err), VQ_ERR_FULL);
        assert_non_null(strstr(err.text, "77 tokens"));
        assert_int_equal(vq_session_n_tokens(t), 9);
        assert_non_null(vq_session_logits(t));
        vq_session_close(t);
        free(want);
        vq_session_close(s);
        vq_model_close(m);
    }
    vq_model *m = open_model(TOY_LLAMA); /* the last family's file */
    vq_session *s = open_session(m, 5, N, NULL);
    vq_error err;
    eval(s, ids, 9);
    assert_int_equal(vq_session_load(s, path, &err), VQ_ERR_MISMATCH);
    assert_int_equal(vq_session_n_tokens(s), 9);
    unlink(path);
    assert_int_equal(vq_session_load(s, path, &err), VQ_ERR_IO);
    assert_non_null(strstr(err.text, path));
    vq_session_close(s);
    vq_model_close(m);
}

/* ---- generation ---- */
struct heard {
    char text[4096];
    size_t n_text, n_tokens, cancel_at;
    int32_t tokens[256];
};

static bool hear_token(void *arg, int32_t id)
{
    struct heard *h = arg;
    h->tokens[h->n_tokens++] = id;
    return h->n_tokens != h->cancel_at;
}

static bool hear_text(void *arg, const char *utf8, size_t n_bytes)
{
    struct heard *h = arg;
    assert_true(n_bytes > 0);
    memcpy(h->text + h->n_text, utf8, n_bytes);
    h->n_text += n_bytes;
    return true;
}

static vq_generate_result generate(vq_session *s, vq_generate_params params, const int32_t *prompt, size_t n,
                                   struct heard *h)
{
    vq_sampler_params sp;
    vq_sampler *sampler;
    vq_generate_result result;
    vq_error err;
    vq_sampler_params_init(&sp);
    sp.temperature = 2;
    sp.top_k = 0;
    sp.top_p = 1;
    sp.min_p = 0;
    sp.seed = 5;
    const size_t cancel_at = h->cancel_at;
    *h = (struct heard){.cancel_at = cancel_at};
    params.token = hear_token;
    params.text = hear_text;
    params.arg = h;
    assert_int_equal(vq_sampler_open(&sampler, &sp, vq_model_get_info(vq_session_model(s))->n_vocab, &err), VQ_OK);
    if (vq_generate(s, sampler, prompt, n, &params, &result, &err) != VQ_OK)
        fail_msg("%s", err.text);
    vq_sampler_close(sampler);
    return result;
}

static void generating(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_LLAMA);
    vq_session *s = open_session(m, 16, 60, NULL);
    static struct heard whole, h;
    vq_error err;
    vq_generate_result r = generate(s, (vq_generate_params){.n_predict = 30, .ignore_end = true}, ids, 10, &whole);
    assert_int_equal(r.finish, VQ_FINISH_LENGTH);
    assert_int_equal(r.n_prompt, 10);
    assert_int_equal(r.n_new, 30);
    assert_int_equal(whole.n_tokens, 30);
    assert_int_equal(r.pending, whole.tokens[29]);
    assert_int_equal(vq_session_n_tokens(s), 39); /* the last one is not in the cache */
    assert_memory_equal(vq_session_ids(s) + 10, whole.tokens, 29 * sizeof(int32_t));
    for (size_t i = 0; i < whole.n_tokens; i++)
        assert_false(vq_tokenizer_ends(vq_model_tokenizer(m), whole.tokens[i]));

    vq_session_truncate(s, 0, NULL); /* until the context is full: 60 tokens in it, and one more drawn */
    r = generate(s, (vq_generate_params){.n_predict = UINT32_MAX, .ignore_end = true}, ids, 10, &h);
    assert_int_equal(r.finish, VQ_FINISH_CONTEXT);
    assert_int_equal(r.n_new, 51);
    assert_int_equal(vq_session_n_tokens(s), 60);

    vq_session_truncate(s, 0, NULL); /* nothing new */
    r = generate(s, (vq_generate_params){.n_predict = 0}, ids, 10, &h);
    assert_int_equal(r.finish, VQ_FINISH_LENGTH);
    assert_int_equal(r.n_new, 0);
    assert_int_equal(r.pending, VQ_NO_TOKEN);
    assert_true(r.first_token_seconds == 0);
    assert_int_equal(vq_session_n_tokens(s), 10);
    /* and on from there without a prompt: the same text */
    r = generate(s, (vq_generate_params){.n_predict = 30, .ignore_end = true}, NULL, 0, &h);
    assert_int_equal(h.n_text, whole.n_text);
    assert_memory_equal(h.text, whole.text, whole.n_text);

    vq_session_truncate(s, 0, NULL);
    h.cancel_at = 4; /* the token is drawn and shown; it is not in the cache */
    r = generate(s, (vq_generate_params){.n_predict = 30, .ignore_end = true}, ids, 10, &h);
    assert_int_equal(r.finish, VQ_FINISH_CANCELLED);
    assert_int_equal(r.n_new, 4);
    assert_int_equal(vq_session_n_tokens(s), 13);
    assert_int_equal(r.pending, whole.tokens[3]);
    h.cancel_at = 0;

    vq_session_truncate(s, 0, NULL);
    vq_generate_params none = {.n_predict = 1};
    vq_generate_result result;
    vq_sampler *sampler;
    vq_sampler_params sp;
    vq_sampler_params_init(&sp);
    assert_int_equal(vq_sampler_open(&sampler, &sp, vq_model_get_info(m)->n_vocab, &err), VQ_OK);
    assert_int_equal(vq_generate(s, sampler, NULL, 0, &none, &result, &err), VQ_ERR_ARG);
    vq_sampler_close(sampler);
    vq_session_close(s);
    vq_model_close(m);
}

/* Stop strings cut out of the text itself, at every place and of several lengths: the text always ends just before the
 * first occurrence. */
static void stopping(void **state)
{
    (void)state;
    vq_model *m = open_model(TOY_LLAMA);
    vq_session *s = open_session(m, 16, 120, NULL);
    static struct heard whole, h;
    generate(s, (vq_generate_params){.n_predict = 60, .ignore_end = true}, ids, 10, &whole);
    assert_in_range(whole.n_text, 40, sizeof whole.text);
    size_t n_cases = 0;
    for (size_t at = 0; at < whole.n_text; at += 3) {
        for (size_t length = 1; length <= 9 && at + length <= whole.n_text; length += 4) {
            char stop[16] = "";
            memcpy(stop, whole.text + at, length);
            const bool half = (whole.text[at] & 0xC0) == 0x80 ||
                              (at + length < whole.n_text && (whole.text[at + length] & 0xC0) == 0x80);
            if (half || memchr(stop, 0, length))
                continue; /* not UTF-8: refused; a NUL cannot be given */
            const char *const stops[] = {stop};
            const char *first = memmem(whole.text, whole.n_text, stop, length);
            vq_session_truncate(s, 0, NULL);
            const vq_generate_result r =
                generate(s, (vq_generate_params){.n_predict = 60, .ignore_end = true, .stops = stops, .n_stops = 1},
                         ids, 10, &h);
            assert_int_equal(r.finish, VQ_FINISH_STOP);
            assert_int_equal(h.n_text, first - whole.text);
            assert_memory_equal(h.text, whole.text, h.n_text);
            n_cases++;
        }
    }
    assert_in_range(n_cases, 20, 1000);
    vq_session_close(s);
    vq_model_close(m);
}

int main(void)
{
    vq_rng rng;
    vq_rng_seed(&rng, 12);
    for (size_t i = 0; i < N; i++)
        ids[i] = (int32_t)(3 + vq_rng_next(&rng) % 250);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_and_threads), cmocka_unit_test(limits),
        cmocka_unit_test(going_back),         cmocka_unit_test(forking),
        cmocka_unit_test(cancelling),         cmocka_unit_test(saving),
        cmocka_unit_test(generating),         cmocka_unit_test(stopping),
    };
    return cmocka_run_group_tests_name("session", tests, NULL, NULL);
}
