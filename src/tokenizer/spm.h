/* SentencePiece-style BPE: characters merged in the order of the scores of what they give. */
#ifndef VQ_TOKENIZER_SPM_H
#define VQ_TOKENIZER_SPM_H

#include "tokenizer/ids.h"
#include "tokenizer/merge.h"
#include "tokenizer/vocab.h"

typedef struct vq_spm {
    const vq_vocab *vocab;
    int32_t unknown;      /* VQ_NO_TOKEN when there is none */
    uint64_t joins[1024]; /* bit (a << 8 | b): some plain token has a character ending in byte a before one
                           * beginning with byte b.  Elsewhere no merge can cross, and text is cut into words */
} vq_spm;

/* The vocabulary must outlive it. */
void vq_spm_open(vq_spm *spm, const vq_vocab *vocab, int32_t unknown);

/* Appends the ids of well-formed text [n], in which spaces stand for U+2581. */
vq_status vq_spm_text(const vq_spm *spm, vq_merger *m, const char *text, size_t n, vq_ids *ids, vq_error *err);

#endif
