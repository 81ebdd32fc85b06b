/* The tokenizer: opening it from GGUF metadata, and the way of a text through it: ill-formed UTF-8 replaced, special
 * tokens found, what lies between them merged. */
#include "veloxquant/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/bpe.h"
#include "tokenizer/inner.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/special.h"
#include "tokenizer/spm.h"
#include "tokenizer/utf8.h"

enum { MAX_ENDS = 16, MAX_TEXT = 1 << 30 };

struct vq_tokenizer {
    vq_vocab vocab;
    vq_special *special;
    vq_pretokenizer *pre; /* byte-level */
    vq_bpe bpe;           /* byte-level */
    vq_spm spm;
    int32_t bos, eos, unknown;
    int32_t ends[MAX_ENDS];
    uint32_t n_ends;
    bool adds_bos, space_prefix;
    char kind[32];
};

/* ---- opening ---- */

static vq_status read_flag(const vq_gguf *gguf, const char *key, bool otherwise, bool *out, vq_error *err)
{
    *out = otherwise;
    return vq_gguf_find(gguf, key) ? vq_gguf_get_bool(gguf, key, out, err) : VQ_OK;
}

static vq_status read_id(const vq_tokenizer *t, const vq_gguf *gguf, const char *key, int32_t otherwise, int32_t *out,
                         vq_error *err)
{
    *out = otherwise < (int32_t)t->vocab.n ? otherwise : VQ_NO_TOKEN;
    if (!vq_gguf_find(gguf, key))
        return VQ_OK;
    uint32_t id;
    VQ_TRY(vq_gguf_get_u32(gguf, key, &id, err));
    if (id >= t->vocab.n)
        return vq_fail(err, VQ_ERR_VOCAB, "%s: %s is %u, the vocabulary has %u tokens", vq_gguf_path(gguf), key, id,
                       t->vocab.n);
    *out = (int32_t)id;
    return VQ_OK;
}

static void add_end(vq_tokenizer *t, int32_t id)
{
    if (id != VQ_NO_TOKEN && !vq_tokenizer_ends(t, id) && t->n_ends < MAX_ENDS)
        t->ends[t->n_ends++] = id;
}

/* Files name one end; chat models stop at whichever of these they have. */
static vq_status read_ends(vq_tokenizer *t, const vq_gguf *gguf, vq_error *err)
{
    static const char *const names[] = {"<|im_end|>",    "<|eot_id|>",    "<|eom_id|>",     "<|end|>",
                                        "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>"};
    int32_t eot, eom;
    VQ_TRY(read_id(t, gguf, "tokenizer.ggml.eot_token_id", VQ_NO_TOKEN, &eot, err));
    VQ_TRY(read_id(t, gguf, "tokenizer.ggml.eom_token_id", VQ_NO_TOKEN, &eom, err));
    add_end(t, t->eos);
    add_end(t, eot);
    add_end(t, eom);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        add_end(t, vq_vocab_find_special(&t->vocab, names[i], strlen(names[i])));
    return VQ_OK;
}

static vq_status open_byte_level(vq_tokenizer *t, const vq_gguf *gguf, vq_error *err)
{
    vq_str pre = {"default", 7};
    if (vq_gguf_find(gguf, "tokenizer.ggml.pre"))
        VQ_TRY(vq_gguf_get_str(gguf, "tokenizer.ggml.pre", &pre, err));
    const vq_status status = vq_pretokenizer_open(&t->pre, pre, err);
    if (status != VQ_OK)
        return vq_fail_prefix(err, status, "%s", vq_gguf_path(gguf));
    snprintf(t->kind, sizeof t->kind, "bpe/%s", vq_pretokenizer_name(t->pre));
    return vq_bpe_open(&t->bpe, &t->vocab, gguf, vq_pretokenizer_whole_words(t->pre), err);
}

static vq_status open_in(vq_tokenizer *t, const vq_gguf *gguf, vq_error *err)
{
    vq_str model;
    VQ_TRY(vq_gguf_get_str(gguf, "tokenizer.ggml.model", &model, err));
    const bool spm = model.n_bytes == 5 && memcmp(model.at, "llama", 5) == 0;
    if (!spm && !(model.n_bytes == 4 && memcmp(model.at, "gpt2", 4) == 0))
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s: tokenizer.ggml.model is %.*s, known are gpt2 and llama",
                       vq_gguf_path(gguf), model.n_bytes > 64 ? 64 : (int)model.n_bytes, model.at);
    VQ_TRY(vq_vocab_open(&t->vocab, gguf, spm, err));
    VQ_TRY(vq_special_open(&t->special, &t->vocab, err));
    /* SentencePiece files of old leave these ids out, and mean the library's defaults. */
    VQ_TRY(read_id(t, gguf, "tokenizer.ggml.bos_token_id", spm ? 1 : VQ_NO_TOKEN, &t->bos, err));
    VQ_TRY(read_id(t, gguf, "tokenizer.ggml.eos_token_id", spm ? 2 : VQ_NO_TOKEN, &t->eos, err));
    VQ_TRY(read_id(t, gguf, "tokenizer.ggml.unknown_token_id", spm ? 0 : VQ_NO_TOKEN, &t->unknown, err));
    VQ_TRY(read_ends(t, gguf, err));
    if (spm) {
        vq_spm_open(&t->spm, &t->vocab, t->unknown);
        snprintf(t->kind, sizeof t->kind, "spm");
        VQ_TRY(read_flag(gguf, "tokenizer.ggml.add_space_prefix", true, &t->space_prefix, err));
    } else {
        VQ_TRY(open_byte_level(t, gguf, err));
    }
    VQ_TRY(read_flag(gguf, "tokenizer.ggml.add_bos_token", spm || vq_pretokenizer_adds_bos(t->pre), &t->adds_bos, err));
    t->adds_bos &= t->bos != VQ_NO_TOKEN;
    t->vocab.file = NULL; /* the gguf may go */
    return VQ_OK;
}

vq_status vq_tokenizer_open(vq_tokenizer **out, const vq_gguf *gguf, vq_error *err)
{
    *out = NULL;
    vq_tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a tokenizer");
    const vq_status status = open_in(t, gguf, err);
    if (status != VQ_OK) {
        vq_tokenizer_close(t);
        return status;
    }
    *out = t;
    return VQ_OK;
}

void vq_tokenizer_close(vq_tokenizer *t)
{
    if (!t)
        return;
    vq_bpe_close(&t->bpe);
    vq_pretokenizer_close(t->pre);
    vq_special_close(t->special);
    vq_vocab_close(&t->vocab);
    free(t);
}

/* ---- what it knows ---- */

uint32_t vq_tokenizer_n_vocab(const vq_tokenizer *t) { return t->vocab.n; }

int32_t vq_tokenizer_bos(const vq_tokenizer *t) { return t->bos; }

int32_t vq_tokenizer_eos(const vq_tokenizer *t) { return t->eos; }

bool vq_tokenizer_adds_bos(const vq_tokenizer *t) { return t->adds_bos; }

bool vq_tokenizer_ends(const vq_tokenizer *t, int32_t id)
{
    for (uint32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id)
            return true;
    return false;
}

static bool in_vocab(const vq_tokenizer *t, int32_t id) { return id >= 0 && (uint32_t)id < t->vocab.n; }

bool vq_tokenizer_is_control(const vq_tokenizer *t, int32_t id)
{
    return in_vocab(t, id) && (t->vocab.type[id] == VQ_TOKEN_CONTROL || t->vocab.type[id] == VQ_TOKEN_UNKNOWN);
}

int32_t vq_tokenizer_find(const vq_tokenizer *t, const char *piece)
{
    return vq_vocab_find_piece(&t->vocab, piece, strlen(piece));
}

const char *vq_tokenizer_kind(const vq_tokenizer *t) { return t->kind; }

const vq_vocab *vq_tokenizer_vocab(const vq_tokenizer *t) { return &t->vocab; }

vq_str vq_token_bytes(const vq_tokenizer *t, int32_t id, bool control)
{
    if (!in_vocab(t, id) || (!control && vq_tokenizer_is_control(t, id)))
        return (vq_str){"", 0};
    return vq_vocab_text(&t->vocab, id);
}

/* ---- text to ids ---- */

typedef struct job {
    const vq_tokenizer *t;
    vq_ids *ids;
    vq_merger merger;
    vq_pretokenizer_run *pre;
    vq_matches matches;
    char *fragment; /* SentencePiece: a fragment with its space before it */
    size_t n_fragment_room;
    bool after_special, own_spaces;
} job;

/* Parts up to the next cut or token, as one well-formed text with the spans where control tokens count. */
typedef struct stretch {
    const char *text;
    char *owned;
    size_t n_bytes;
    vq_span *spans;
    size_t n_spans;
} stretch;

static vq_status add_word(void *arg, const char *word, size_t n, vq_error *err)
{
    job *j = arg;
    return vq_bpe_word(&j->t->bpe, &j->merger, word, n, j->ids, err);
}

static vq_status add_spm_fragment(job *j, const char *text, size_t n, bool prefix, vq_error *err)
{
    if (!prefix && !memmem(text, n, "\xE2\x96\x81", 3))
        return vq_spm_text(&j->t->spm, &j->merger, text, n, j->ids, err);
    if (n + 1 > j->n_fragment_room) {
        char *grown = realloc(j->fragment, n + 1);
        if (!grown)
            return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu bytes of text", n);
        j->fragment = grown;
        j->n_fragment_room = n + 1;
    }
    size_t len = 0;
    if (prefix)
        j->fragment[len++] = ' ';
    for (size_t i = 0; i < n;) {
        const bool escaped = n - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
        j->fragment[len++] = escaped ? ' ' : text[i];
        i += escaped ? 3 : 1;
    }
    return vq_spm_text(&j->t->spm, &j->merger, j->fragment, len, j->ids, err);
}

/* Text between special tokens. */
static vq_status add_fragment(job *j, const stretch *s, size_t at, size_t end, vq_error *err)
{
    if (at == end)
        return VQ_OK;
    const bool special_before = j->after_special;
    j->after_special = false;
    if (!j->t->vocab.spm)
        return vq_pretokenize(j->pre, s->text + at, end - at, add_word, j, err);
    bool prefix = j->t->space_prefix && special_before;
    if (prefix && j->own_spaces && s->text[at] == ' ')
        for (size_t i = 0; i < s->n_spans; i++)
            prefix &= !(at >= s->spans[i].start && at < s->spans[i].end);
    return add_spm_fragment(j, s->text + at, end - at, prefix, err);
}

static vq_status add_stretch(job *j, const stretch *s, vq_error *err)
{
    j->matches.n = 0;
    VQ_TRY(vq_special_find(j->t->special, s->text, s->n_bytes, s->spans, s->n_spans, &j->matches, err));
    size_t at = 0;
    for (size_t i = j->matches.n; i-- > 0;) {
        const vq_match *m = &j->matches.at[i];
        if (m->at < at)
            continue;
        VQ_TRY(add_fragment(j, s, at, m->at, err));
        VQ_TRY(vq_ids_push(j->ids, m->id, err));
        j->after_special = true;
        at = m->at + vq_vocab_text(&j->t->vocab, m->id).n_bytes;
    }
    return add_fragment(j, s, at, s->n_bytes, err);
}

static bool is_text(const vq_part *p) { return p->kind == VQ_PART_TEXT || p->kind == VQ_PART_CONTROL; }

/* One part that is well formed, the common case, is not copied. */
static vq_status gather(stretch *s, const vq_part *parts, size_t n_parts, vq_error *err)
{
    *s = (stretch){.text = ""};
    size_t n_bytes = 0;
    for (size_t i = 0; i < n_parts; i++)
        n_bytes += vq_utf8_clean_len(parts[i].text, parts[i].n_bytes);
    s->spans = malloc((n_parts + 1) * sizeof *s->spans);
    const bool copy = n_parts > 1 || (n_parts == 1 && n_bytes != vq_utf8_valid_len(parts[0].text, parts[0].n_bytes));
    if (copy)
        s->text = s->owned = calloc(n_bytes + 1, 1);
    else if (n_parts == 1)
        s->text = parts[0].text;
    if (!s->spans || !s->text)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu bytes of text", n_bytes);
    for (size_t i = 0; i < n_parts; i++) {
        const size_t start = s->n_bytes;
        s->n_bytes += copy ? vq_utf8_clean(s->owned + start, parts[i].text, parts[i].n_bytes) : parts[i].n_bytes;
        if (parts[i].kind == VQ_PART_CONTROL)
            s->spans[s->n_spans++] = (vq_span){start, s->n_bytes};
    }
    return VQ_OK;
}

static vq_status add_parts(job *j, const vq_part *parts, size_t n_parts, vq_error *err)
{
    for (size_t i = 0; i < n_parts;) {
        if (!is_text(&parts[i])) {
            if (parts[i].kind == VQ_PART_TOKEN)
                VQ_TRY(vq_ids_push(j->ids, parts[i].id, err));
            j->after_special = parts[i].kind == VQ_PART_TOKEN;
            i++;
            continue;
        }
        size_t end = i + 1;
        while (end < n_parts && is_text(&parts[end]))
            end++;
        stretch s;
        vq_status status = gather(&s, parts + i, end - i, err);
        if (status == VQ_OK)
            status = add_stretch(j, &s, err);
        free(s.owned);
        free(s.spans);
        VQ_TRY(status);
        i = end;
    }
    return VQ_OK;
}

vq_status vq_tokenize_parts(const vq_tokenizer *t, const vq_part *parts, size_t n_parts, bool own_spaces, vq_ids *ids,
                            vq_error *err)
{
    size_t n_bytes = 0;
    for (size_t i = 0; i < n_parts; i++) {
        if (!is_text(&parts[i]))
            continue;
        if (parts[i].n_bytes >= MAX_TEXT || (n_bytes += parts[i].n_bytes) >= MAX_TEXT)
            return vq_fail(err, VQ_ERR_LIMIT, "text of %zu bytes or more, the limit is %d", parts[i].n_bytes, MAX_TEXT);
    }
    job j = {.t = t, .ids = ids, .after_special = true, .own_spaces = own_spaces};
    vq_status status = t->pre ? vq_pretokenizer_run_open(&j.pre, t->pre, err) : VQ_OK;
    if (status == VQ_OK)
        status = add_parts(&j, parts, n_parts, err);
    vq_pretokenizer_run_close(j.pre);
    vq_merger_free(&j.merger);
    free(j.matches.at);
    free(j.fragment);
    return status;
}

vq_status vq_tokenize(const vq_tokenizer *t, const char *text, size_t n_bytes, unsigned flags, int32_t **ids, size_t *n,
                      vq_error *err)
{
    *ids = NULL;
    *n = 0;
    if (flags & ~(unsigned)(VQ_TOKENIZE_CONTROL | VQ_TOKENIZE_BOS))
        return vq_fail(err, VQ_ERR_ARG, "flags of vq_tokenize are %#x, known are %#x", flags,
                       VQ_TOKENIZE_CONTROL | VQ_TOKENIZE_BOS);
    const vq_part parts[2] = {
        {.kind = VQ_PART_TOKEN, .id = t->bos},
        {.kind = flags & VQ_TOKENIZE_CONTROL ? VQ_PART_CONTROL : VQ_PART_TEXT,
         .text = text ? text : "",
         .n_bytes = n_bytes},
    };
    const bool bos = (flags & VQ_TOKENIZE_BOS) && t->adds_bos;
    vq_ids list = {0};
    vq_status status = vq_ids_reserve(&list, n_bytes / 4 + 2, err);
    if (status == VQ_OK)
        status = vq_tokenize_parts(t, bos ? parts : parts + 1, bos ? 2 : 1, false, &list, err);
    if (status != VQ_OK) {
        free(list.at);
        return status;
    }
    if (bos && list.n > 1 && list.at[1] == t->bos)
        memmove(list.at, list.at + 1, --list.n * sizeof *list.at);
    *ids = list.at;
    *n = list.n;
    return VQ_OK;
}
