/* Any conversation through any chat template, and any bytes as a template text.
 *
 *     byte 0   template (modulo their number), or 255: the rest is a template text to recognise
 *     then     messages: a byte (bits 0-1 role, bits 2-7 length, up to 63) and the text
 *
 * A message never becomes a control token, and rendering from any message on gives the end of the whole. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/toy_vocab.h"
#include "veloxquant/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

enum { MAX_MESSAGES = 12 };

static void check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

/* Control tokens of all families, byte-level and SentencePiece-style (with a space after control tokens). */
static const toy_token tokens[] = {
    {"<unk>", TOY_UNKNOWN, 0},
    {"<s>", TOY_CONTROL, 0},
    {"</s>", TOY_CONTROL, 0},
    {"<|im_start|>", TOY_CONTROL, 0},
    {"<|im_end|>", TOY_CONTROL, 0},
    {"<|start_header_id|>", TOY_CONTROL, 0},
    {"<|end_header_id|>", TOY_CONTROL, 0},
    {"<|eot_id|>", TOY_CONTROL, 0},
    {"<start_of_turn>", TOY_USER, 0},
    {"<end_of_turn>", TOY_USER, 0},
    {"[INST]", TOY_CONTROL, 0},
    {"[/INST]", TOY_CONTROL, 0},
    {"[SYSTEM_PROMPT]", TOY_CONTROL, 0},
    {"[/SYSTEM_PROMPT]", TOY_CONTROL, 0},
    {"<|user|>", TOY_CONTROL, 0},
    {"<|assistant|>", TOY_CONTROL, 0},
    {"<|end|>", TOY_CONTROL, 0},
    {"\n\n", TOY_USER, 0},
};

static const vq_tokenizer *vocabulary(bool spm)
{
    static vq_tokenizer *opened[2];
    if (!opened[spm]) {
        toy_vocab v = toy_vocab_init(spm ? "llama" : "gpt2", "smollm");
        v.tokens = tokens;
        v.n_tokens = sizeof tokens / sizeof *tokens;
        v.bytes = true;
        v.bos = 1;
        v.eos = 2;
        v.add_bos = 1;
        opened[spm] = toy_vocab_open(&v);
    }
    return opened[spm];
}

static size_t count_control(const vq_tokenizer *t, const int32_t *ids, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += vq_tokenizer_is_control(t, ids[i]);
    return found;
}

/* Control tokens of the same conversation with nothing in its messages. */
static size_t control_of_frame(const vq_chat_template *tmpl, const vq_tokenizer *t, const vq_chat_message *messages,
                               size_t n)
{
    vq_chat_message empty[MAX_MESSAGES];
    for (size_t i = 0; i < n; i++)
        empty[i] = (vq_chat_message){messages[i].role, "", 0};
    int32_t *ids;
    size_t n_ids;
    check(vq_chat_render(tmpl, t, empty, n, 0, &ids, &n_ids, NULL) == VQ_OK, "a frame renders when the whole does");
    const size_t found = count_control(t, ids, n_ids);
    vq_free(ids);
    return found;
}

static void render(const vq_chat_template *tmpl, const vq_tokenizer *t, const vq_chat_message *messages, size_t n)
{
    int32_t *ids, *rest;
    size_t n_ids, n_rest;
    vq_error err;
    const vq_status status = vq_chat_render(tmpl, t, messages, n, 0, &ids, &n_ids, &err);
    if (status != VQ_OK) {
        check(status == VQ_ERR_ARG && ids == NULL && err.text[0], "only what a family can't express is refused");
        return;
    }
    check(n_ids > 0 && ids[0] == vq_tokenizer_bos(t), "BOS first");
    check(n_ids == 1 || ids[1] != vq_tokenizer_bos(t), "BOS once");
    check(count_control(t, ids, n_ids) == control_of_frame(tmpl, t, messages, n), "content is plain text");
    for (size_t from = 1; from <= n; from++) {
        check(vq_chat_render(tmpl, t, messages, n, from, &rest, &n_rest, &err) == VQ_OK, "from any message");
        check(n_rest <= n_ids && memcmp(rest, ids + n_ids - n_rest, n_rest * sizeof *ids) == 0, "the end of the whole");
        vq_free(rest);
    }
    vq_free(ids);
}

static void recognise(const uint8_t *text, size_t n)
{
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_str(w, "general.architecture", "llama");
    uint8_t *value = malloc(8 + n);
    check(value != NULL, "memory");
    const uint64_t len = n;
    memcpy(value, &len, 8);
    memcpy(value + 8, text, n);
    gguf_add_raw(w, "tokenizer.chat_template", VQ_GGUF_STRING, value, 8 + n);
    free(value);
    const gguf_buffer b = gguf_writer_finish(w);
    vq_gguf *gguf;
    const vq_chat_template *tmpl;
    vq_error err;
    check(vq_gguf_open_memory(&gguf, "toy", b.bytes, b.n_bytes, &err) == VQ_OK, "the file opens");
    const vq_status status = vq_chat_template_detect(&tmpl, gguf, &err);
    check(status == VQ_OK ? tmpl != NULL : status == VQ_ERR_UNSUPPORTED && tmpl == NULL, "a family or unsupported");
    vq_gguf_close(gguf);
    free(b.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < 2)
        return 0;
    if (bytes[0] == 255) {
        recognise(bytes + 1, n_bytes - 1);
        return 0;
    }
    size_t n_templates = 0;
    while (vq_chat_template_at(n_templates))
        n_templates++;
    vq_chat_message messages[MAX_MESSAGES];
    size_t n = 0;
    for (size_t at = 1; at < n_bytes && n < MAX_MESSAGES;) {
        const uint8_t head = bytes[at++];
        const size_t len = (size_t)(head >> 2) < n_bytes - at ? (size_t)(head >> 2) : n_bytes - at;
        messages[n++] = (vq_chat_message){(vq_chat_role)(head & 3), (const char *)bytes + at, len};
        at += len;
    }
    for (int spm = 0; spm < 2; spm++)
        render(vq_chat_template_at(bytes[0] % n_templates), vocabulary(spm), messages, n);
    return 0;
}
