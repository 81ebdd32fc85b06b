#include "support/toy_vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

toy_vocab toy_vocab_init(const char *model, const char *pre)
{
    return (toy_vocab){.model = model,
                       .pre = pre,
                       .bos = TOY_ABSENT,
                       .eos = TOY_ABSENT,
                       .unknown = TOY_ABSENT,
                       .add_bos = TOY_ABSENT,
                       .add_space_prefix = TOY_ABSENT};
}

/* What stands for a byte: in byte-level vocabularies a printable character, in others <0xXX>. */
static void byte_text(bool byte_level, unsigned byte, char out[8])
{
    unsigned code = 0x100;
    if (!byte_level) {
        snprintf(out, 8, "<0x%02X>", byte);
        return;
    }
    for (unsigned b = 0; b <= byte; b++) {
        const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte && itself)
            code = b;
        else if (b < byte && !itself)
            code++;
    }
    if (code < 0x80)
        snprintf(out, 8, "%c", (int)code);
    else
        snprintf(out, 8, "%c%c", (int)(0xc0 | code >> 6), (int)(0x80 | (code & 0x3f)));
}

static void add_id(gguf_writer *w, const char *key, int id)
{
    if (id != TOY_ABSENT)
        gguf_add_u32(w, key, (uint32_t)id);
}

gguf_buffer toy_vocab_make(const toy_vocab *v)
{
    const bool byte_level = strcmp(v->model, "gpt2") == 0;
    const uint32_t n = v->n_tokens + (v->bytes ? 256 : 0);
    const char **texts = calloc(n + 1, sizeof *texts);
    int32_t *types = calloc(n + 1, sizeof *types);
    float *scores = calloc(n + 1, sizeof *scores);
    char(*byte_texts)[8] = calloc(256, sizeof *byte_texts);
    if (!texts || !types || !scores || !byte_texts)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        const bool byte = i >= v->n_tokens;
        if (byte)
            byte_text(byte_level, i - v->n_tokens, byte_texts[i - v->n_tokens]);
        texts[i] = byte ? byte_texts[i - v->n_tokens] : v->tokens[i].text;
        types[i] = byte ? (byte_level ? TOY_NORMAL : TOY_BYTE) : v->tokens[i].type;
        scores[i] = byte ? 0 : v->tokens[i].score;
    }
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_str(w, "general.architecture", "llama");
    gguf_add_str(w, "tokenizer.ggml.model", v->model);
    if (v->pre)
        gguf_add_str(w, "tokenizer.ggml.pre", v->pre);
    gguf_add_strs(w, "tokenizer.ggml.tokens", n, texts);
    gguf_add_array(w, "tokenizer.ggml.token_type", VQ_GGUF_I32, n, types);
    if (byte_level)
        gguf_add_strs(w, "tokenizer.ggml.merges", v->n_merges, v->merges);
    else
        gguf_add_array(w, "tokenizer.ggml.scores", VQ_GGUF_F32, n, scores);
    add_id(w, "tokenizer.ggml.bos_token_id", v->bos);
    add_id(w, "tokenizer.ggml.eos_token_id", v->eos);
    add_id(w, "tokenizer.ggml.unknown_token_id", v->unknown);
    if (v->add_bos != TOY_ABSENT)
        gguf_add_bool(w, "tokenizer.ggml.add_bos_token", v->add_bos);
    if (v->add_space_prefix != TOY_ABSENT)
        gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", v->add_space_prefix);
    if (v->chat_template)
        gguf_add_str(w, "tokenizer.chat_template", v->chat_template);
    free(texts);
    free(types);
    free(scores);
    free(byte_texts);
    return gguf_writer_finish(w);
}

vq_tokenizer *toy_vocab_open(const toy_vocab *v)
{
    const gguf_buffer b = toy_vocab_make(v);
    vq_gguf *gguf;
    vq_tokenizer *t = NULL;
    vq_error err;
    if (vq_gguf_open_memory(&gguf, "toy", b.bytes, b.n_bytes, &err) != VQ_OK ||
        vq_tokenizer_open(&t, gguf, &err) != VQ_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    vq_gguf_close(gguf); /* and the bytes: the tokenizer keeps nothing of them */
    free(b.bytes);
    return t;
}
