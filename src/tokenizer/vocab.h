/* The vocabulary: texts, types and scores of all tokens in one block, and a hash table from text to id.
 *
 * Texts are kept as they appear in running text: the printable characters that stand for bytes in byte-level
 * vocabularies, U+2581 in SentencePiece ones and <0xXX> are resolved once, here. */
#ifndef VQ_TOKENIZER_VOCAB_H
#define VQ_TOKENIZER_VOCAB_H

#include "base/arena.h"
#include "base/status.h"
#include "veloxquant/gguf.h"
#include "veloxquant/tokenizer.h"

/* Numbers of the file format. User-defined tokens are matched in text before anything else. */
typedef enum vq_token_type {
    VQ_TOKEN_NORMAL = 1,
    VQ_TOKEN_UNKNOWN = 2,
    VQ_TOKEN_CONTROL = 3,
    VQ_TOKEN_USER = 4,
    VQ_TOKEN_UNUSED = 5,
    VQ_TOKEN_BYTE = 6,
} vq_token_type;

typedef struct vq_vocab {
    bool spm; /* SentencePiece-style, else byte-level */
    uint32_t n;
    uint32_t longest; /* bytes of the longest plain token */
    const char *file; /* for messages while opening */
    char *text;
    uint32_t *start; /* [n + 1] offsets into text */
    uint8_t *type;   /* [n] vq_token_type */
    uint32_t *key;   /* [n] spm: the lower the earlier a pair is merged (its score, turned into an integer) */
    struct vq_vocab_slot *slots; /* open addressing, at most half full */
    uint32_t slot_mask;
    int32_t byte_id[256]; /* the token of a single byte, or VQ_NO_TOKEN */
    vq_arena arena;
} vq_vocab;

vq_status vq_vocab_open(vq_vocab *v, const vq_gguf *gguf, bool spm, vq_error *err);
void vq_vocab_close(vq_vocab *v);

static inline vq_str vq_vocab_text(const vq_vocab *v, int32_t id)
{
    return (vq_str){v->text + v->start[id], v->start[id + 1] - v->start[id]};
}

/* The plain token (one that merging may produce: normal or unused) of exactly these bytes, or VQ_NO_TOKEN. */
int32_t vq_vocab_find_plain(const vq_vocab *v, const char *bytes, size_t n);
/* The control, unknown or user-defined token of exactly these bytes, or VQ_NO_TOKEN. */
int32_t vq_vocab_find_special(const vq_vocab *v, const char *bytes, size_t n);
/* By the text that stands in the file (1 KiB of it at most: vocabularies have nothing nearly as long). */
int32_t vq_vocab_find_piece(const vq_vocab *v, const char *piece, size_t n);

/* The bytes that a piece of a byte-level vocabulary stands for, to out (as long as the piece at most); false when it
 * holds a character that stands for no byte. */
bool vq_vocab_decode(const char *piece, size_t n, char *out, size_t *n_out);

#endif
