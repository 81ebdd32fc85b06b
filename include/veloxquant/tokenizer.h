/* Text to token ids and back: byte-level BPE (gpt-2, smollm, llama-bpe, qwen2 pre-tokenisers) and SentencePiece-style
 * BPE with scores (llama-2, gemma), from GGUF metadata.
 *
 * Invalid UTF-8 in text becomes one U+FFFD for each maximal ill-formed part (Unicode 15, chapter 3, U+FFFD
 * substitution of maximal subparts; what Python's errors="replace" does).  NUL bytes are text like any other.
 * Byte-level vocabularies may lack a few bytes (SmolLM2 has no token for 0x04): such bytes are left out, as by every
 * peer. */
#ifndef VELOXQUANT_TOKENIZER_H
#define VELOXQUANT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "veloxquant/gguf.h"
#include "veloxquant/status.h"

typedef struct vq_tokenizer vq_tokenizer;

enum { VQ_NO_TOKEN = -1 };

/* Copies what it needs: the gguf may be closed afterwards. Thread-safe once open. */
VQ_API vq_status vq_tokenizer_open(vq_tokenizer **out, const vq_gguf *gguf, vq_error *err);
VQ_API void vq_tokenizer_close(vq_tokenizer *t);

VQ_API uint32_t vq_tokenizer_n_vocab(const vq_tokenizer *t);
VQ_API int32_t vq_tokenizer_bos(const vq_tokenizer *t); /* VQ_NO_TOKEN when there is none */
VQ_API int32_t vq_tokenizer_eos(const vq_tokenizer *t);
VQ_API bool vq_tokenizer_adds_bos(const vq_tokenizer *t);
VQ_API bool vq_tokenizer_ends(const vq_tokenizer *t, int32_t id); /* end of sequence or end of turn */
VQ_API bool vq_tokenizer_is_control(const vq_tokenizer *t, int32_t id);
VQ_API int32_t vq_tokenizer_find(const vq_tokenizer *t, const char *piece); /* exact vocabulary text, or VQ_NO_TOKEN */
VQ_API const char *vq_tokenizer_kind(const vq_tokenizer *t);                /* "bpe/smollm", "spm" ... for people */

enum {
    VQ_TOKENIZE_CONTROL = 1, /* the text of control tokens becomes control tokens; otherwise it is plain text */
    VQ_TOKENIZE_BOS = 2,     /* put the BOS token first where the model wants one and the text does not begin with it */
};

/* *ids is allocated (free with vq_free), also when *n is 0.  Time is linear-logarithmic in n_bytes, the stack O(1).
 * VQ_ERR_LIMIT for texts of 1 GiB and more. */
VQ_API vq_status vq_tokenize(const vq_tokenizer *t, const char *text, size_t n_bytes, unsigned flags, int32_t **ids,
                             size_t *n, vq_error *err);

/* The bytes of a token in running text.  Control tokens give their name when `control` is set, else nothing. Points
 * into the tokenizer. */
VQ_API vq_str vq_token_bytes(const vq_tokenizer *t, int32_t id, bool control);

/* Streaming: bytes of tokens come out as valid UTF-8, never half a character. Plain value, no allocation. */
typedef struct vq_detokenizer {
    char held[8];
    uint32_t n_held;
} vq_detokenizer;

/* Adds the bytes of one token; writes whole characters to out (at least 3 * n_bytes + 12 bytes of room: every byte may
 * turn out to be invalid), invalid parts as U+FFFD, and returns how many bytes were written. */
VQ_API size_t vq_detokenizer_push(vq_detokenizer *d, const char *bytes, size_t n_bytes, char *out);
/* The end of the stream: an unfinished tail comes out as one U+FFFD (3 bytes at most). */
VQ_API size_t vq_detokenizer_finish(vq_detokenizer *d, char *out);

/* Frees what a function of this library allocated for its caller. NULL is allowed. */
VQ_API void vq_free(void *p);

#endif
