/* Byte-level BPE: words of bytes, merged in the order of a list of merges. */
#ifndef VQ_TOKENIZER_BPE_H
#define VQ_TOKENIZER_BPE_H

#include "tokenizer/ids.h"
#include "tokenizer/merge.h"
#include "tokenizer/vocab.h"

typedef struct vq_bpe {
    const vq_vocab *vocab;
    struct vq_bpe_merge *merges; /* open addressing by pair of ids, at most half full */
    uint32_t merge_mask;
    bool whole_words; /* a word that is a token is not merged */
} vq_bpe;

/* The vocabulary must outlive it. */
vq_status vq_bpe_open(vq_bpe *bpe, const vq_vocab *vocab, const vq_gguf *gguf, bool whole_words, vq_error *err);
void vq_bpe_close(vq_bpe *bpe);

/* Appends the ids of one word [n] (n >= 1); bytes that have no token are left out. */
vq_status vq_bpe_word(const vq_bpe *bpe, vq_merger *m, const char *word, size_t n, vq_ids *ids, vq_error *err);

#endif
