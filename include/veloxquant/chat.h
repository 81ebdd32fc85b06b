/* Chat templates of the known families, recognised from the model's own template text.  The template's control tokens
 * become tokens; message content never does, whatever it spells. */
#ifndef VELOXQUANT_CHAT_H
#define VELOXQUANT_CHAT_H

#include "veloxquant/tokenizer.h"

typedef enum vq_chat_role { VQ_CHAT_SYSTEM, VQ_CHAT_USER, VQ_CHAT_ASSISTANT } vq_chat_role;

typedef struct vq_chat_message {
    vq_chat_role role;
    const char *text;
    size_t n_bytes;
} vq_chat_message;

typedef struct vq_chat_template vq_chat_template; /* a constant of the library; never freed */

/* The family of the file's `tokenizer.chat_template`. VQ_ERR_MISSING_KEY without one, VQ_ERR_UNSUPPORTED (showing its
 * first characters and the names below) when no known family matches. */
VQ_API vq_status vq_chat_template_detect(const vq_chat_template **out, const vq_gguf *gguf, vq_error *err);
/* By name ("chatml", "smollm2", "qwen2.5", "llama-3", "gemma", "mistral-v3", ...); VQ_ERR_ARG lists the names. */
VQ_API vq_status vq_chat_template_named(const vq_chat_template **out, const char *name, vq_error *err);
VQ_API const char *vq_chat_template_name(const vq_chat_template *tmpl);
/* All of them, in order; NULL from the first index on that there is none for. */
VQ_API const vq_chat_template *vq_chat_template_at(size_t index);

/* Token ids of a conversation of at least one message, ending in the header of the assistant's turn: what the model's
 * own template gives, its default system message included.  There is one BOS at the start where the model wants one
 * (vq_tokenizer_adds_bos), none doubled; llama-2 has one before each of the user's later turns too.  *ids is freed with
 * vq_free.
 *
 * `from` messages at the start are in the cache already: everything up to and including the text of message from - 1,
 * not yet what closes its turn (which a model's own reply does not hold either).  Only what follows is rendered, and
 * that is exactly the end of the ids of the whole conversation.  0 renders all.
 *
 * VQ_ERR_ARG when the family can't express the conversation (llama-2, mistral and gemma want user and assistant to
 * alternate); VQ_ERR_UNSUPPORTED when the vocabulary lacks a token that the template needs. */
VQ_API vq_status vq_chat_render(const vq_chat_template *tmpl, const vq_tokenizer *t, const vq_chat_message *messages,
                                size_t n_messages, size_t from, int32_t **ids, size_t *n, vq_error *err);

#endif
