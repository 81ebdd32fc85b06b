/* SentencePiece-style BPE. */
#include "tokenizer/spm.h"

#include "tokenizer/utf8.h"

void vq_spm_open(vq_spm *spm, const vq_vocab *vocab, int32_t unknown)
{
    *spm = (vq_spm){.vocab = vocab, .unknown = unknown};
    for (uint32_t id = 0; id < vocab->n; id++) {
        if (vocab->type[id] != VQ_TOKEN_NORMAL && vocab->type[id] != VQ_TOKEN_UNUSED)
            continue;
        const vq_str text = vq_vocab_text(vocab, (int32_t)id);
        for (size_t i = 1; i < text.n_bytes; i++) {
            const uint32_t a = (uint8_t)text.at[i - 1], b = (uint8_t)text.at[i];
            spm->joins[(a << 8 | b) / 64] |= (uint64_t)1 << b % 64;
        }
    }
}

static bool joins(const vq_spm *spm, char before, char after)
{
    const uint32_t a = (uint8_t)before, b = (uint8_t)after;
    return spm->joins[(a << 8 | b) / 64] >> b % 64 & 1;
}

static void pair_of(const void *arg, const vq_merger *m, vq_merge_node *left, const vq_merge_node *right)
{
    const vq_vocab *v = arg;
    const uint32_t n = vq_merge_node_end(m, right) - left->start;
    const int32_t id = vq_vocab_find_plain(v, m->word + left->start, n);
    left->key = id == VQ_NO_TOKEN ? VQ_MERGE_NONE : v->key[id];
    left->pair_id = id;
}

/* A character that no merge took and that may have no token. A space is U+2581 here, of three bytes. */
static vq_status push_char(const vq_spm *spm, const char *bytes, uint32_t n, vq_ids *ids, vq_error *err)
{
    const vq_vocab *v = spm->vocab;
    const int32_t id = vq_vocab_find_plain(v, bytes, n);
    if (id != VQ_NO_TOKEN)
        return vq_ids_push(ids, id, err);
    if (n == 1 && *bytes == ' ') {
        bytes = "\xE2\x96\x81";
        n = 3;
    }
    bool all = true;
    for (uint32_t i = 0; i < n; i++)
        all &= v->byte_id[(uint8_t)bytes[i]] != VQ_NO_TOKEN;
    if (all) {
        for (uint32_t i = 0; i < n; i++)
            VQ_TRY(vq_ids_push(ids, v->byte_id[(uint8_t)bytes[i]], err));
        return VQ_OK;
    }
    return spm->unknown == VQ_NO_TOKEN ? VQ_OK : vq_ids_push(ids, spm->unknown, err);
}

static vq_status add_word(const vq_spm *spm, vq_merger *m, const char *word, size_t n, vq_ids *ids, vq_error *err)
{
    VQ_TRY(vq_merger_reserve(m, n, err));
    m->word = word;
    m->n_bytes = (uint32_t)n;
    uint32_t n_chars = 0;
    for (uint32_t at = 0; at < n; at += vq_utf8_len(word[at])) {
        m->nodes[n_chars].start = at;
        m->nodes[n_chars++].id = VQ_NO_TOKEN;
    }
    VQ_TRY(vq_merger_run(m, n_chars, pair_of, spm->vocab, err));
    for (uint32_t i = 0; i != VQ_MERGE_END; i = m->nodes[i].next) {
        const vq_merge_node *node = &m->nodes[i];
        if (node->id != VQ_NO_TOKEN)
            VQ_TRY(vq_ids_push(ids, node->id, err));
        else
            VQ_TRY(push_char(spm, word + node->start, vq_merge_node_end(m, node) - node->start, ids, err));
    }
    return VQ_OK;
}

vq_status vq_spm_text(const vq_spm *spm, vq_merger *m, const char *text, size_t n, vq_ids *ids, vq_error *err)
{
    for (size_t start = 0, at = 0; start < n; start = at) {
        do
            at += vq_utf8_len(text[at]);
        while (at < n && joins(spm, text[at - 1], text[at]));
        VQ_TRY(add_word(spm, m, text + start, at - start, ids, err));
    }
    return VQ_OK;
}
