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

typedef struct vq_chat_template vq_chat_template;   /* a constant of the library; never freed */

/* The family of the file's `tokenizer.chat_template`. VQ_ERR_MISSING_KEY without one, VQ_ERR_UNSUPPORTED (naming the
 * first characters) when no known family matches. */
VQ_API vq_status vq_chat_template_detect(const vq_chat_template **out, const vq_gguf *gguf, vq_error *err);
/* By name ("chatml", "llama-2", "llama-3", "gemma", "mistral", ...); VQ_ERR_ARG lists the names. */
VQ_API vq_status vq_chat_template_named(const vq_chat_template **out, const char *name, vq_error *err);
VQ_API const char *vq_chat_template_name(const vq_chat_template *tmpl);

/* Token ids of a conversation, with exactly one BOS where the model wants one, ending in the header of the assistant's
 * turn.  `from` messages at the start are already in the cache: only what follows them is rendered (0 for all). *ids is
 * freed with vq_free. */
VQ_API vq_status vq_chat_render(const vq_chat_template *tmpl, const vq_tokenizer *t, const vq_chat_message *messages,
                                size_t n_messages, size_t from, int32_t **ids, size_t *n, vq_error *err);

#endif
