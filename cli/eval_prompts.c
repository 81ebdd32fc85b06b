/* Prompts cut from texts, and greedy texts that go on from them: what evaluations of generated text share. */
#include "eval_prompts.h"

#include <stdlib.h>
#include <string.h>

/* The start of a paragraph at or after byte `at`, or `at` where none follows within a page of text. */
static size_t paragraph_after(const eval_text *t, size_t at)
{
    enum { PAGE = 4096 };
    const size_t end = t->n_bytes - at < PAGE ? t->n_bytes : at + PAGE;
    for (size_t i = at; i + 1 < end; i++)
        if (t->bytes[i] == '\n' && t->bytes[i + 1] == '\n')
            return i + 2;
    while (at < t->n_bytes && ((unsigned char)t->bytes[at] & 0xc0) == 0x80) /* not within a character */
        at++;
    return at;
}

int eval_prompts_cut(eval_prompts *p, const eval_text *texts, size_t n_texts, const vq_model *model, uint32_t n,
                     uint32_t n_tokens)
{
    vq_error err;
    *p = (eval_prompts){.n_tokens = n_tokens, .ids = calloc((size_t)n * n_tokens, sizeof *p->ids)};
    if (!p->ids)
        return cli_fail("no memory for %u prompts", n);
    for (uint32_t i = 0; i < n; i++) {
        const eval_text *t = &texts[i % n_texts];
        const size_t of_text = (n + n_texts - 1 - i % n_texts) / n_texts, k = i / n_texts;
        const size_t at = paragraph_after(t, t->n_bytes * (2 * k + 1) / (2 * of_text + 1));
        /* a token is rarely more than 16 bytes; what is too much is cut */
        const size_t most = (size_t)n_tokens * 16 + 64, n_bytes = t->n_bytes - at < most ? t->n_bytes - at : most;
        int32_t *ids;
        size_t n_ids;
        if (vq_tokenize(vq_model_tokenizer(model), t->bytes + at, n_bytes, VQ_TOKENIZE_BOS, &ids, &n_ids, &err) !=
            VQ_OK)
            return cli_fail("%s: %s", t->path, err.text);
        const bool fine = n_ids >= n_tokens;
        if (fine)
            memcpy(p->ids + (size_t)i * n_tokens, ids, n_tokens * sizeof *ids);
        vq_free(ids);
        if (!fine)
            return cli_fail("%s: too short for %zu prompts of %u tokens", t->path, of_text, n_tokens);
        p->n++;
    }
    return CLI_FINE;
}

void eval_prompts_free(eval_prompts *p)
{
    free(p->ids);
    *p = (eval_prompts){0};
}

/* ---- greedy texts ---- */
bool eval_greedy_open(eval_greedy *g, uint32_t most)
{
    *g = (eval_greedy){.ids = calloc(most ? most : 1, sizeof *g->ids)};
    return g->ids != NULL;
}

void eval_greedy_free(eval_greedy *g)
{
    free(g->ids);
    free(g->text);
    *g = (eval_greedy){0};
}

struct listener {
    eval_greedy *g;
    FILE *text;
    bool (*progress)(void *arg);
    void *arg;
};

static bool on_token(void *arg, int32_t id)
{
    struct listener *l = arg;
    l->g->ids[l->g->n++] = id;
    return l->progress(l->arg);
}

static bool on_text(void *arg, const char *utf8, size_t n_bytes)
{
    struct listener *l = arg;
    fwrite(utf8, 1, n_bytes, l->text);
    return true;
}

int eval_greedy_run(eval_greedy *g, vq_session *s, const int32_t *prompt, size_t n_prompt, uint32_t most,
                    bool (*progress)(void *arg), void *arg)
{
    vq_error err;
    vq_sampler *sampler;
    vq_sampler_params greedy;
    vq_sampler_params_init(&greedy);
    greedy.temperature = 0;
    size_t n_bytes;
    struct listener l = {.g = g, .progress = progress, .arg = arg};
    g->n = 0;
    free(g->text);
    g->text = NULL;
    if (vq_session_truncate(s, 0, &err) != VQ_OK ||
        vq_sampler_open(&sampler, &greedy, vq_model_get_info(vq_session_model(s))->n_vocab, &err) != VQ_OK)
        return cli_fail_with(&err);
    l.text = open_memstream(&g->text, &n_bytes);
    if (!l.text) {
        vq_sampler_close(sampler);
        return cli_fail("no memory for a text");
    }
    const vq_generate_params params = {.n_predict = most, .token = on_token, .text = on_text, .arg = &l};
    vq_generate_result result;
    const vq_status status = vq_generate(s, sampler, prompt, n_prompt, &params, &result, &err);
    fclose(l.text);
    vq_sampler_close(sampler);
    if (status != VQ_OK && status != VQ_ERR_CANCELLED)
        return cli_fail_with(&err);
    g->ended = result.finish == VQ_FINISH_END;
    return status == VQ_ERR_CANCELLED || result.finish == VQ_FINISH_CANCELLED ? CLI_INTERRUPTED : CLI_FINE;
}

size_t eval_greedy_same_until(const eval_greedy *a, const eval_greedy *b)
{
    size_t i = 0;
    while (i < a->n && i < b->n && a->ids[i] == b->ids[i])
        i++;
    return i;
}

double eval_greedy_same(const eval_greedy *a, const eval_greedy *b)
{
    const size_t least = a->n < b->n ? a->n : b->n, most = a->n < b->n ? b->n : a->n;
    size_t same = 0;
    for (size_t i = 0; i < least; i++)
        same += a->ids[i] == b->ids[i];
    return most ? (double)same / (double)most : 1;
}
