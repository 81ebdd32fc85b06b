/* Any text, and any vocabulary, through the tokenizer.
 *
 *     byte 0   bits 0-1 which of four tiny vocabularies; bit 2 control tokens; bit 3 BOS; bit 7 a vocabulary from the
 * input then     with bit 7: the vocabulary (see build); the text
 *
 * Whatever comes: ids are in the vocabulary, no control token without being asked for, and where every byte has a token
 * the ids give the text back, in one piece or as a stream. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/toy_vocab.h"
#include "tokenizer/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static void check(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

static void *take_memory(size_t n)
{
    void *p = malloc(n + 1);
    check(p != NULL, "memory");
    return p;
}

/* ---- the text ---- */

/* Cleaned text, with U+2581 as the space that it is to SentencePiece vocabularies. */
static char *expected_text(const char *text, size_t n, bool spm, size_t *n_out)
{
    char *out = take_memory(3 * n);
    size_t len = vq_utf8_clean(out, text, n);
    for (char *at = out; spm && (at = memmem(at, len - (size_t)(at - out), "\xE2\x96\x81", 3)) != NULL; at++) {
        *at = ' ';
        memmove(at + 1, at + 3, len - (size_t)(at + 3 - out));
        len -= 2;
    }
    *n_out = len;
    return out;
}

static void check_stream(const vq_tokenizer *t, const int32_t *ids, size_t n, const char *want, size_t n_want)
{
    vq_detokenizer d = {.n_held = 0};
    size_t at = 0;
    for (size_t i = 0; i <= n; i++) {
        const vq_str s = i < n ? vq_token_bytes(t, ids[i], true) : (vq_str){"", 0};
        char *out = take_memory(3 * s.n_bytes + 12);
        const size_t len = i < n ? vq_detokenizer_push(&d, s.at, s.n_bytes, out) : vq_detokenizer_finish(&d, out);
        check(vq_utf8_valid_len(out, len) == len, "streamed text is whole characters");
        check(len <= n_want - at && memcmp(out, want + at, len) == 0, "the stream gives the text");
        at += len;
        free(out);
    }
    check(at == n_want, "the stream gives all of the text");
}

static void run(const vq_tokenizer *t, const char *text, size_t n_text, unsigned flags, bool complete, bool spm)
{
    int32_t *ids;
    size_t n;
    vq_error err;
    const vq_status status = vq_tokenize(t, text, n_text, flags, &ids, &n, &err);
    check(status == VQ_OK && ids != NULL, "every text has ids");
    const bool bos = n > 0 && (flags & VQ_TOKENIZE_BOS) && vq_tokenizer_adds_bos(t);
    check(!bos || ids[0] == vq_tokenizer_bos(t), "BOS first");
    for (size_t i = 0; i < n; i++) {
        check(ids[i] >= 0 && (uint32_t)ids[i] < vq_tokenizer_n_vocab(t), "ids are in the vocabulary");
        check((flags & VQ_TOKENIZE_CONTROL) || (i == 0 && bos) || !vq_tokenizer_is_control(t, ids[i]) || !complete,
              "no control tokens in plain text");
        vq_token_bytes(t, ids[i], true);
    }
    if (complete && !bos) {
        size_t n_want;
        char *want = expected_text(text, n_text, spm, &n_want);
        check_stream(t, ids, n, want, n_want);
        free(want);
    }
    vq_free(ids);
}

/* ---- four tiny vocabularies ---- */

static const toy_token bpe_tokens[] = {
    {"<s>", TOY_CONTROL, 0},
    {"</s>", TOY_CONTROL, 0},
    {"<|x|>", TOY_CONTROL, 0},
    {"<|x", TOY_CONTROL, 0},
    {"\n\n", TOY_USER, 0},
    {"\n\n\n\n", TOY_USER, 0},
    {"ab", TOY_NORMAL, 0},
    {"aa", TOY_NORMAL, 0},
    {"aab", TOY_NORMAL, 0},
    {"\xC4\xA0"
     "a",
     TOY_NORMAL, 0},
    {"aaaa", TOY_NORMAL, 0},
    {"\xC3\x83\xC2\xA9", TOY_NORMAL, 0},
};
static const char *const bpe_merges[] = {"a b", "a a", "aa b", "\xC4\xA0 a", "aa aa", "\xC3\x83 \xC2\xA9"};
static const toy_token spm_tokens[] = {
    {"<unk>", TOY_UNKNOWN, 0},
    {"<s>", TOY_CONTROL, 0},
    {"</s>", TOY_CONTROL, 0},
    {"\n\n", TOY_USER, 0},
    {"  ", TOY_USER, 0},
    {"<|x|>", TOY_CONTROL, 0},
    {"\xE2\x96\x81", TOY_NORMAL, -5},
    {"a", TOY_NORMAL, -6},
    {"b", TOY_NORMAL, -7},
    {"aa", TOY_NORMAL, -2},
    {"ab", TOY_NORMAL, -2},
    {"\xE2\x96\x81"
     "a",
     TOY_NORMAL, -1},
    {"aab", TOY_NORMAL, -1},
    {"\xC3\xA9", TOY_NORMAL, -3},
    {"a\xE2\x96\x81", TOY_NORMAL, -4},
};

static const vq_tokenizer *tiny(unsigned which)
{
    static vq_tokenizer *opened[4];
    if (opened[which])
        return opened[which];
    toy_vocab v = toy_vocab_init(which < 2 ? "gpt2" : "llama", which == 0   ? "smollm"
                                                               : which == 1 ? "llama-bpe"
                                                                            : "default");
    v.tokens = which < 2 ? bpe_tokens : spm_tokens;
    v.n_tokens = which < 2 ? sizeof bpe_tokens / sizeof *bpe_tokens : sizeof spm_tokens / sizeof *spm_tokens;
    v.bytes = which != 3;
    v.merges = bpe_merges;
    v.n_merges = sizeof bpe_merges / sizeof *bpe_merges;
    v.bos = which < 2 ? 0 : 1;
    v.eos = v.bos + 1;
    v.add_space_prefix = which == 3;
    return opened[which] = toy_vocab_open(&v);
}

/* ---- a vocabulary from the input ---- */

typedef struct input {
    const uint8_t *at, *end;
} input;

static uint8_t next(input *in) { return in->at < in->end ? *in->at++ : 0; }

typedef struct buffer {
    uint8_t bytes[1 << 16];
    size_t n;
} buffer;

static void put(buffer *b, const void *bytes, size_t n)
{
    if (n > sizeof b->bytes - b->n)
        n = sizeof b->bytes - b->n;
    memcpy(b->bytes + b->n, bytes, n);
    b->n += n;
}

/* An array of strings: n, each a length byte (of which 4 bits count) and its bytes. */
static void put_strings(buffer *b, input *in, uint64_t n)
{
    const uint32_t kind = VQ_GGUF_STRING;
    put(b, &kind, 4);
    put(b, &n, 8);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t len = next(in) & 15;
        if (len > (size_t)(in->end - in->at))
            len = (uint64_t)(in->end - in->at);
        put(b, &len, 8);
        put(b, in->at, len);
        in->at += len;
    }
}

/* byte: kind and what is absent or odd; counts of tokens and merges; texts; types; scores; ids */
static gguf_buffer build(input *in)
{
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe", "qwen2", "default", "starcoder", "x", ""};
    buffer b;
    const uint8_t what = next(in);
    const bool spm = what & 1;
    const uint64_t n_tokens = next(in) & 63, n_merges = next(in) & 31;
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_str(w, "general.architecture", "llama");
    gguf_add_str(w, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    gguf_add_str(w, "tokenizer.ggml.pre", pres[what >> 1 & 7]);
    b.n = 0;
    put_strings(&b, in, n_tokens);
    gguf_add_raw(w, "tokenizer.ggml.tokens", VQ_GGUF_ARRAY, b.bytes, b.n);
    b.n = 0;
    put_strings(&b, in, n_merges);
    gguf_add_raw(w, "tokenizer.ggml.merges", VQ_GGUF_ARRAY, b.bytes, b.n);
    int32_t types[64];
    float scores[64];
    for (uint64_t i = 0; i < n_tokens; i++) {
        const uint8_t byte = next(in);
        types[i] = byte & 7;
        scores[i] = (float)(int8_t)byte / 8;
    }
    if (what & 16)
        gguf_add_array(w, "tokenizer.ggml.token_type", VQ_GGUF_I32, n_tokens, types);
    if (spm)
        gguf_add_array(w, "tokenizer.ggml.scores", VQ_GGUF_F32, n_tokens, scores);
    if (what & 32)
        gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", what & 64);
    gguf_add_u32(w, "tokenizer.ggml.bos_token_id", next(in) & 31);
    gguf_add_u32(w, "tokenizer.ggml.eos_token_id", next(in) & 31);
    if (what & 128)
        gguf_add_bool(w, "tokenizer.ggml.add_bos_token", true);
    return gguf_writer_finish(w);
}

static void run_built(input *in, unsigned flags)
{
    const gguf_buffer b = build(in);
    vq_gguf *gguf = NULL;
    vq_tokenizer *t = NULL;
    vq_error err;
    if (vq_gguf_open_memory(&gguf, "toy", b.bytes, b.n_bytes, &err) == VQ_OK &&
        vq_tokenizer_open(&t, gguf, &err) == VQ_OK) {
        /* The unknown token may be a control token here: `complete` is false. */
        run(t, (const char *)in->at, (size_t)(in->end - in->at), flags, false, false);
    } else {
        check(t == NULL && err.status != VQ_OK && err.text[0], "a refusal says why");
    }
    vq_tokenizer_close(t);
    vq_gguf_close(gguf);
    free(b.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes == 0)
        return 0;
    const unsigned flags = (bytes[0] & 4 ? VQ_TOKENIZE_CONTROL : 0) | (bytes[0] & 8 ? VQ_TOKENIZE_BOS : 0);
    if (bytes[0] & 128) {
        input in = {bytes + 1, bytes + n_bytes};
        run_built(&in, flags);
        return 0;
    }
    const unsigned which = bytes[0] & 3;
    run(tiny(which), (const char *)bytes + 1, n_bytes - 1, flags, which < 3, which == 2);
    return 0;
}
