/* tokenizer.json (a BPE model) to the keys of GGUF.
 *
 * Two kinds: byte-level (pieces in GPT-2's alphabet, merges in order), and SentencePiece-like (byte_fallback, spaces as
 * U+2581).  The second kind merges by a score of the piece; merges of tokenizer.json are listed by it, so that a
 * piece's score is minus the place of the first merge that makes it. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "formats/hf.h"

enum {
    NORMAL = 1,
    UNKNOWN = 2,
    CONTROL = 3,
    USER = 4,
    UNUSED = 5,
    BYTE = 6,
    MAX_TOKENS = 1 << 24,
    MAX_MERGES = 1 << 24
};

typedef struct tokens {
    uint32_t n;
    vq_str *texts;  /* [n] */
    int32_t *kinds; /* [n] */
    float *scores;  /* [n] */
    char *made;     /* texts of padding and merges */
    size_t n_made, room;
} tokens;

static vq_str text_of(const json_t *s) { return (vq_str){json_string_value(s), json_string_length(s)}; }

/* Whether a text stands anywhere in a value: expressions of pre-tokenisers lie deep in lists. */
static bool has_text(const json_t *v, const char *what)
{
    const char *name;
    json_t *part;
    size_t i;
    if (json_is_string(v))
        return strstr(json_string_value(v), what) != NULL;
    json_array_foreach((json_t *)(uintptr_t)v, i, part) if (has_text(part, what)) return true;
    json_object_foreach((json_t *)(uintptr_t)v, name, part) if (has_text(part, what)) return true;
    return false;
}

/* ---- pieces ---- */

static vq_status add_token(tokens *t, int64_t id, vq_str text, int32_t kind, vq_error *err)
{
    if (id < 0 || id >= t->n)
        return vq_fail(err, VQ_ERR_VOCAB, "tokenizer.json: token '%.40s' has id %lld, the embedding has %u rows",
                       text.at, (long long)id, t->n);
    t->texts[id] = text;
    t->kinds[id] = kind;
    return VQ_OK;
}

static bool is_byte_piece(vq_str s)
{
    return s.n_bytes == 6 && memcmp(s.at, "<0x", 3) == 0 && s.at[5] == '>' && strspn(s.at + 3, "0123456789ABCDEF") == 2;
}

static vq_status read_pieces(tokens *t, const json_t *tokenizer, const json_t *model, bool spm, vq_error *err)
{
    const char *name;
    json_t *id;
    size_t i;
    json_t *vocab = json_object_get(model, "vocab"), *added = json_object_get(tokenizer, "added_tokens"), *one;
    if (!json_is_object(vocab))
        return vq_fail(err, VQ_ERR_MISSING_KEY, "tokenizer.json: no object 'vocab'");
    json_object_foreach(vocab, name, id)
    {
        const vq_str text = {name, strlen(name)};
        if (!json_is_integer(id))
            return vq_fail(err, VQ_ERR_TYPE, "tokenizer.json: the id of '%.40s' is no whole number", name);
        VQ_TRY(add_token(t, json_integer_value(id), text, spm && is_byte_piece(text) ? BYTE : NORMAL, err));
    }
    json_array_foreach(added, i, one)
    {
        const json_t *content = json_object_get(one, "content"), *at = json_object_get(one, "id");
        if (!json_is_string(content) || !json_is_integer(at))
            return vq_fail(err, VQ_ERR_TYPE, "tokenizer.json: added_tokens[%zu] has no 'content' or 'id'", i);
        const bool special = json_is_true(json_object_get(one, "special"));
        VQ_TRY(add_token(t, json_integer_value(at), text_of(content), special ? CONTROL : USER, err));
    }
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    id = unknown ? json_object_get(vocab, unknown) : NULL;
    if (spm && json_is_integer(id) && json_integer_value(id) < t->n)
        t->kinds[json_integer_value(id)] = UNKNOWN;
    return VQ_OK;
}

/* Rows of the embedding that no token has. */
static void fill_gaps(tokens *t, char (*names)[16])
{
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->texts[i].at)
            continue;
        snprintf(names[i], sizeof names[i], "[PAD%u]", i);
        t->texts[i] = (vq_str){names[i], strlen(names[i])};
        t->kinds[i] = UNUSED;
    }
}

/* ---- merges ---- */

/* "a b", or ["a", "b"]; both halves. */
static bool halves(const json_t *merge, vq_str *a, vq_str *b)
{
    if (json_is_array(merge)) {
        *a = text_of(json_array_get(merge, 0));
        *b = text_of(json_array_get(merge, 1));
        return json_array_size(merge) == 2 && a->at && b->at;
    }
    const char *text = json_string_value(merge), *space = text ? strchr(text + (*text == ' '), ' ') : NULL;
    if (!space)
        return false;
    *a = (vq_str){text, (size_t)(space - text)};
    *b = (vq_str){space + 1, strlen(space + 1)};
    return true;
}

static vq_status put_merges(vq_key_records *r, const json_t *merges, vq_error *err)
{
    const size_t n = json_array_size(merges);
    size_t n_text = 1, at = 0;
    vq_str a, b;
    for (size_t i = 0; i < n; i++) {
        if (!halves(json_array_get(merges, i), &a, &b))
            return vq_fail(err, VQ_ERR_VOCAB, "tokenizer.json: merges[%zu] is not two pieces", i);
        n_text += a.n_bytes + b.n_bytes + 1;
    }
    char *text = malloc(n_text);
    vq_str *texts = calloc(n + 1, sizeof *texts);
    if (!text || !texts) {
        free(text);
        free(texts);
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu merges", n);
    }
    for (size_t i = 0; i < n; i++) {
        (void)halves(json_array_get(merges, i), &a, &b);
        texts[i] = (vq_str){text + at, a.n_bytes + b.n_bytes + 1};
        memcpy(text + at, a.at, a.n_bytes);
        text[at + a.n_bytes] = ' ';
        memcpy(text + at + a.n_bytes + 1, b.at, b.n_bytes);
        at += texts[i].n_bytes;
    }
    vq_put_texts(r, "tokenizer.ggml.merges", n, texts);
    free(text);
    free(texts);
    return VQ_OK;
}

static vq_status read_scores(tokens *t, const json_t *model, const json_t *merges, vq_error *err)
{
    const json_t *vocab = json_object_get(model, "vocab");
    const size_t n = json_array_size(merges);
    char *joined = NULL;
    size_t room = 0;
    for (uint32_t i = 0; i < t->n; i++)
        t->scores[i] = t->kinds[i] == NORMAL ? -(float)n - 1 : 0; /* those that no merge makes: single characters */
    for (size_t i = n; i-- > 0;) {
        vq_str a, b;
        if (!halves(json_array_get(merges, i), &a, &b)) {
            free(joined);
            return vq_fail(err, VQ_ERR_VOCAB, "tokenizer.json: merges[%zu] is not two pieces", i);
        }
        if (a.n_bytes + b.n_bytes + 1 > room) {
            room = 2 * (a.n_bytes + b.n_bytes + 1);
            free(joined);
            joined = malloc(room);
            if (!joined)
                return vq_fail(err, VQ_ERR_NOMEM, "no memory for a piece of %zu bytes", room);
        }
        memcpy(joined, a.at, a.n_bytes);
        memcpy(joined + a.n_bytes, b.at, b.n_bytes);
        joined[a.n_bytes + b.n_bytes] = 0;
        const json_t *id = json_object_get(vocab, joined);
        if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < t->n)
            t->scores[json_integer_value(id)] = -(float)i;
    }
    free(joined);
    return VQ_OK;
}

/* ---- the rest ---- */

/* The pre-tokeniser's name in GGUF, by what its expressions say. */
static const char *pre_of(const json_t *tokenizer)
{
    const json_t *pre = json_object_get(tokenizer, "pre_tokenizer");
    if (has_text(pre, "\\p{N}{1,3}") && has_text(pre, "(?i:'s|'t|'re|'ve|'m|'ll|'d)"))
        return "llama-bpe";
    if (has_text(pre, "\\p{N}|") && has_text(pre, "(?i:'s|'t|'re|'ve|'m|'ll|'d)"))
        return "qwen2";
    if (has_text(pre, "Split") || has_text(pre, "Metaspace"))
        return NULL;
    return has_text(pre, "Digits") ? "smollm" : "gpt-2";
}

static void put_template(vq_key_records *r, const json_t *settings, vq_str text)
{
    const json_t *given = json_object_get(settings, "chat_template");
    json_t *one;
    size_t i;
    if (json_is_string(given))
        text = text_of(given);
    json_array_foreach((json_t *)(uintptr_t)given, i, one)
    {
        const char *name = json_string_value(json_object_get(one, "name"));
        if (name && strcmp(name, "default") == 0 && json_is_string(json_object_get(one, "template")))
            text = text_of(json_object_get(one, "template"));
    }
    if (text.n_bytes)
        vq_put_text(r, "tokenizer.chat_template", text);
}

static vq_status put_all(vq_key_records *r, tokens *t, char (*names)[16], const json_t *tokenizer,
                         const json_t *settings, vq_str template_text, vq_error *err)
{
    const json_t *model = json_object_get(tokenizer, "model"), *merges = json_object_get(model, "merges");
    const char *kind = json_string_value(json_object_get(model, "type"));
    if ((kind && strcmp(kind, "BPE") != 0) || !json_is_array(merges))
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "tokenizer.json: a model of type '%.40s'; only BPE with merges is read",
                       kind ? kind : "none");
    if (json_array_size(merges) > MAX_MERGES)
        return vq_fail(err, VQ_ERR_LIMIT, "tokenizer.json: %zu merges, at most %d are read", json_array_size(merges),
                       MAX_MERGES);
    const bool spm = json_is_true(json_object_get(model, "byte_fallback"));
    VQ_TRY(read_pieces(t, tokenizer, model, spm, err));
    fill_gaps(t, names);
    const char *model_name = spm ? "llama" : "gpt2", *pre = spm ? "default" : pre_of(tokenizer);
    if (!pre)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "tokenizer.json: its pre-tokeniser is none of those that are known");
    vq_put_text(r, "tokenizer.ggml.model", (vq_str){model_name, strlen(model_name)});
    vq_put_text(r, "tokenizer.ggml.pre", (vq_str){pre, strlen(pre)});
    vq_put_texts(r, "tokenizer.ggml.tokens", t->n, t->texts);
    vq_put_array(r, "tokenizer.ggml.token_type", VQ_GGUF_I32, t->n, t->kinds, sizeof *t->kinds);
    if (spm) {
        VQ_TRY(read_scores(t, model, merges, err));
        vq_put_array(r, "tokenizer.ggml.scores", VQ_GGUF_F32, t->n, t->scores, sizeof *t->scores);
        vq_put_bool(
            r, "tokenizer.ggml.add_space_prefix",
            has_text(json_object_get(tokenizer, "normalizer"), "Prepend") ||
                has_text(json_object_get(json_object_get(tokenizer, "pre_tokenizer"), "prepend_scheme"), "first"));
    } else {
        VQ_TRY(put_merges(r, merges, err));
    }
    const json_t *adds = json_object_get(settings, "add_bos_token");
    if (json_is_boolean(adds))
        vq_put_bool(r, "tokenizer.ggml.add_bos_token", json_is_true(adds));
    put_template(r, settings, template_text);
    return VQ_OK;
}

vq_status vq_hf_read_tokenizer(vq_key_records *r, const json_t *tokenizer, const json_t *settings, vq_str template_text,
                               uint32_t n_rows, vq_error *err)
{
    if (n_rows > MAX_TOKENS)
        return vq_fail(err, VQ_ERR_LIMIT, "an embedding of %u rows, at most %d are read", n_rows, MAX_TOKENS);
    tokens t = {.n = n_rows};
    t.texts = calloc(n_rows + 1u, sizeof *t.texts);
    t.kinds = calloc(n_rows + 1u, sizeof *t.kinds);
    t.scores = calloc(n_rows + 1u, sizeof *t.scores);
    char(*names)[16] = calloc(n_rows + 1u, sizeof *names);
    const vq_status status = t.texts && t.kinds && t.scores && names
                                 ? put_all(r, &t, names, tokenizer, settings, template_text, err)
                                 : vq_fail(err, VQ_ERR_NOMEM, "no memory for %u tokens", n_rows);
    free(t.texts);
    free(t.kinds);
    free(t.scores);
    free(names);
    return status;
}
