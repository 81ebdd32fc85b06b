/* Tiny vocabularies in memory, and tokenizers opened on them. */
#ifndef TESTS_SUPPORT_TOY_VOCAB_H
#define TESTS_SUPPORT_TOY_VOCAB_H

#include "support/gguf_writer.h"
#include "veloxquant/tokenizer.h"

enum { TOY_NORMAL = 1, TOY_UNKNOWN, TOY_CONTROL, TOY_USER, TOY_UNUSED, TOY_BYTE }; /* token types of the format */
enum { TOY_ABSENT = -1 };                                                          /* a key that is not written */

typedef struct toy_token {
    const char *text; /* as it stands in the file */
    int type;
    float score;
} toy_token;

typedef struct toy_vocab {
    const char *model, *pre; /* "gpt2" or "llama"; pre may be NULL */
    const toy_token *tokens; /* [n_tokens] ids 0 .. */
    uint32_t n_tokens;
    bool bytes;                /* 256 tokens for the single bytes follow, ids n_tokens + byte */
    const char *const *merges; /* [n_merges] gpt2 */
    uint32_t n_merges;
    int bos, eos, unknown, add_bos, add_space_prefix; /* or TOY_ABSENT */
    const char *chat_template;                        /* may be NULL */
} toy_vocab;

/* model "gpt2" or "llama", everything else absent. */
toy_vocab toy_vocab_init(const char *model, const char *pre);
gguf_buffer toy_vocab_make(const toy_vocab *v);
/* Aborts, with the message, when it does not open. */
vq_tokenizer *toy_vocab_open(const toy_vocab *v);

#endif
