/* Byte-level BPE. */
#include "tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#define KEY_MERGES "tokenizer.ggml.merges"

typedef struct vq_bpe_merge {
    int32_t left, right;
    uint32_t rank;
    int32_t id; /* VQ_NO_TOKEN in an empty slot */
} vq_bpe_merge;

static uint32_t slot_of(const vq_bpe *bpe, int32_t left, int32_t right)
{
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t i = (uint32_t)((pair * 0x9E3779B97F4A7C15u ^ pair >> 29) * 0xBF58476D1CE4E5B9u >> 32) & bpe->merge_mask;
    while (bpe->merges[i].id != VQ_NO_TOKEN && (bpe->merges[i].left != left || bpe->merges[i].right != right))
        i = (i + 1) & bpe->merge_mask;
    return i;
}

/* A part of a merge, or what the merge gives: a plain token; or an added one whose text is in the file as it is. */
static int32_t find_part(const vq_vocab *v, const char *bytes, size_t n)
{
    const int32_t id = vq_vocab_find_plain(v, bytes, n);
    return id != VQ_NO_TOKEN ? id : vq_vocab_find_special(v, bytes, n);
}

static vq_status add_merge(vq_bpe *bpe, const vq_str *text, uint32_t rank, char *buffer, vq_error *err)
{
    const vq_vocab *v = bpe->vocab;
    const char *space = memchr(text->at, ' ', text->n_bytes), *end = text->at + text->n_bytes;
    const bool two_parts =
        space && space > text->at && space + 1 < end && !memchr(space + 1, ' ', (size_t)(end - space - 1));
    size_t n_left, n_right;
    if (!two_parts || !vq_vocab_decode(text->at, (size_t)(space - text->at), buffer, &n_left) ||
        !vq_vocab_decode(space + 1, (size_t)(end - space - 1), buffer + n_left, &n_right))
        return vq_fail(err, VQ_ERR_VOCAB, "%s: %s[%u] is \"%.*s\", not two parts with one space between", v->file,
                       KEY_MERGES, rank, text->n_bytes > 64 ? 64 : (int)text->n_bytes, text->at);
    const int32_t left = find_part(v, buffer, n_left), right = find_part(v, buffer + n_left, n_right);
    const int32_t id = find_part(v, buffer, n_left + n_right);
    if (left == VQ_NO_TOKEN || right == VQ_NO_TOKEN || id == VQ_NO_TOKEN)
        return vq_fail(err, VQ_ERR_VOCAB, "%s: %s[%u] is \"%.*s\": %s is no token", v->file, KEY_MERGES, rank,
                       text->n_bytes > 64 ? 64 : (int)text->n_bytes, text->at,
                       left == VQ_NO_TOKEN    ? "the left part"
                       : right == VQ_NO_TOKEN ? "the right part"
                                              : "what it gives");
    /* Text must never become a control token by merging. */
    if (v->type[id] == VQ_TOKEN_CONTROL || v->type[id] == VQ_TOKEN_UNKNOWN)
        return VQ_OK;
    const uint32_t slot = slot_of(bpe, left, right);
    if (bpe->merges[slot].id == VQ_NO_TOKEN)
        bpe->merges[slot] = (vq_bpe_merge){left, right, rank, id};
    return VQ_OK;
}

static vq_status read_merges(vq_bpe *bpe, const vq_gguf_value *merges, vq_error *err)
{
    size_t longest = 0;
    for (uint64_t i = 0; i < merges->n; i++)
        if (merges->strings[i].n_bytes > longest)
            longest = merges->strings[i].n_bytes;
    char *buffer = malloc(longest + 1);
    if (!buffer)
        return vq_fail(err, VQ_ERR_NOMEM, "%s: no memory for a merge of %zu bytes", bpe->vocab->file, longest);
    vq_status status = VQ_OK;
    for (uint32_t i = 0; status == VQ_OK && i < merges->n; i++)
        status = add_merge(bpe, &merges->strings[i], i, buffer, err);
    free(buffer);
    return status;
}

vq_status vq_bpe_open(vq_bpe *bpe, const vq_vocab *vocab, const vq_gguf *gguf, bool whole_words, vq_error *err)
{
    *bpe = (vq_bpe){.vocab = vocab, .whole_words = whole_words};
    const vq_gguf_value *merges = vq_gguf_find(gguf, KEY_MERGES);
    if (!merges)
        return vq_fail(err, VQ_ERR_MISSING_KEY, "%s: no key %s", vocab->file, KEY_MERGES);
    if (merges->kind != VQ_GGUF_ARRAY || (merges->n > 0 && merges->array_kind != VQ_GGUF_STRING))
        return vq_fail(err, VQ_ERR_TYPE, "%s: %s is not an array of strings", vocab->file, KEY_MERGES);
    if (merges->n > 1u << 28)
        return vq_fail(err, VQ_ERR_VOCAB, "%s: %s has %llu entries, more than 2^28", vocab->file, KEY_MERGES,
                       (unsigned long long)merges->n);
    uint32_t n_slots = 16;
    while (n_slots < 2 * merges->n)
        n_slots *= 2;
    bpe->merge_mask = n_slots - 1;
    bpe->merges = malloc(n_slots * sizeof *bpe->merges);
    if (!bpe->merges)
        return vq_fail(err, VQ_ERR_NOMEM, "%s: no memory for %u merges", vocab->file, (uint32_t)merges->n);
    for (uint32_t i = 0; i < n_slots; i++)
        bpe->merges[i].id = VQ_NO_TOKEN;
    const vq_status status = read_merges(bpe, merges, err);
    if (status != VQ_OK)
        vq_bpe_close(bpe);
    return status;
}

void vq_bpe_close(vq_bpe *bpe)
{
    free(bpe->merges);
    bpe->merges = NULL;
}

static void pair_of(const void *arg, const vq_merger *m, vq_merge_node *left, const vq_merge_node *right)
{
    (void)m;
    const vq_bpe *bpe = arg;
    left->key = VQ_MERGE_NONE;
    if (left->id == VQ_NO_TOKEN || right->id == VQ_NO_TOKEN)
        return;
    const vq_bpe_merge *merge = &bpe->merges[slot_of(bpe, left->id, right->id)];
    if (merge->id == VQ_NO_TOKEN)
        return;
    left->key = merge->rank;
    left->pair_id = merge->id;
}

vq_status vq_bpe_word(const vq_bpe *bpe, vq_merger *m, const char *word, size_t n, vq_ids *ids, vq_error *err)
{
    if (bpe->whole_words) {
        const int32_t id = vq_vocab_find_plain(bpe->vocab, word, n);
        if (id != VQ_NO_TOKEN)
            return vq_ids_push(ids, id, err);
    }
    VQ_TRY(vq_merger_reserve(m, n, err));
    VQ_TRY(vq_ids_reserve(ids, n, err));
    m->word = word;
    m->n_bytes = (uint32_t)n;
    for (uint32_t i = 0; i < n; i++) {
        m->nodes[i].start = i;
        m->nodes[i].id = bpe->vocab->byte_id[(uint8_t)word[i]];
    }
    VQ_TRY(vq_merger_run(m, (uint32_t)n, pair_of, bpe, err));
    for (uint32_t i = 0; i != VQ_MERGE_END; i = m->nodes[i].next)
        if (m->nodes[i].id != VQ_NO_TOKEN)
            ids->at[ids->n++] = m->nodes[i].id;
    return VQ_OK;
}
