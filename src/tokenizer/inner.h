/* The tokenizer from inside: what chat templates need beyond the public interface. */
#ifndef VQ_TOKENIZER_INNER_H
#define VQ_TOKENIZER_INNER_H

#include "tokenizer/ids.h"
#include "tokenizer/vocab.h"

typedef enum vq_part_kind {
    VQ_PART_TEXT,    /* control tokens in it are plain text */
    VQ_PART_CONTROL, /* the text of control tokens, whole within this part, becomes control tokens */
    VQ_PART_TOKEN,   /* one token by its id */
    VQ_PART_CUT,     /* no token crosses this place, and the ids on each side don't depend on the other side */
} vq_part_kind;

typedef struct vq_part {
    vq_part_kind kind;
    int32_t id;       /* VQ_PART_TOKEN */
    const char *text; /* VQ_PART_TEXT, VQ_PART_CONTROL */
    size_t n_bytes;
} vq_part;

/* Appends the ids of the parts, tokenised as one text (words may cross from one part to the next).
 *
 * A vocabulary that puts a space before text also puts one after every control token.  With own_spaces, a space that a
 * VQ_PART_CONTROL has at such a place is that space, and not a second one. */
vq_status vq_tokenize_parts(const vq_tokenizer *t, const vq_part *parts, size_t n_parts, bool own_spaces, vq_ids *ids,
                            vq_error *err);

const vq_vocab *vq_tokenizer_vocab(const vq_tokenizer *t);

#endif
