#include "support/toy_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"

static const struct {
    const char *name, *architecture;
    bool spm;
    const char *pre;
} families[N_TOY_FAMILIES] = {
    [TOY_LLAMA] = {"llama", "llama", false, "smollm"},    [TOY_MISTRAL] = {"mistral", "llama", true, "default"},
    [TOY_QWEN2] = {"qwen2", "qwen2", false, "qwen2"},     [TOY_QWEN3] = {"qwen3", "qwen3", false, "qwen2"},
    [TOY_GEMMA3] = {"gemma3", "gemma3", true, "default"},
};

const char *toy_family_name(toy_family family) { return families[family].name; }

void toy_params_init(toy_params *p, toy_family family)
{
    *p = (toy_params){
        .family = family,
        .n_layers = 2,
        .n_embd = 32,
        .n_ff = 48,
        .n_heads = 4,
        .n_kv_heads = 2,
        .head_dim = 8,
        .n_ctx = 128,
        .n_vocab = TOY_MIN_VOCAB,
        .window = family == TOY_GEMMA3 ? 16 : 0,
        .rope_base = 10000,
        .tied = family == TOY_GEMMA3 || family == TOY_QWEN3,
        .type = VQ_TYPE_F32,
        .seed = 1,
    };
}

/* ---- vocabulary ---- */

enum { PIECE_BYTES = 24 };
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, UNUSED = 5, BYTE = 6 };

static const char *const bpe_merges[] = {"t h", "\xc4\xa0 t", "h e", "\xc4\xa0 a", "i n", "\xc4\xa0t he"};
static const char *const spm_pieces[] = {
    "\xe2\x96\x81", "\xe2\x96\x81t", "th", "he", "\xe2\x96\x81the", "in", "e", "t", "a", "h", "i", "n", "o", "s"};

/* The printable character that stands for a byte in a byte-level vocabulary: the printable ones of Latin-1 stand for
 * themselves, the others are U+0100 and up in order. */
static void byte_character(unsigned byte, char *out)
{
    unsigned code = 0x100;
    for (unsigned b = 0; b <= byte; b++) {
        const bool itself = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        if (b == byte && itself)
            code = b;
        else if (b < byte && !itself)
            code++;
    }
    if (code < 0x80)
        snprintf(out, PIECE_BYTES, "%c", (int)code);
    else
        snprintf(out, PIECE_BYTES, "%c%c", (int)(0xc0 | code >> 6), (int)(0x80 | (code & 0x3f)));
}

static void join_merge(const char *merge, char *out)
{
    const char *space = strchr(merge, ' ');
    snprintf(out, PIECE_BYTES, "%.*s%s", (int)(space - merge), merge, space + 1);
}

static void add_vocabulary(gguf_writer *w, const toy_params *p)
{
    const bool spm = families[p->family].spm;
    const uint32_t n = p->n_vocab;
    const uint32_t n_pieces = spm ? sizeof spm_pieces / sizeof *spm_pieces : sizeof bpe_merges / sizeof *bpe_merges;
    if (n < TOY_MIN_VOCAB)
        abort();
    char(*text)[PIECE_BYTES] = calloc(n, sizeof *text);
    const char **texts = calloc(n, sizeof *texts);
    int32_t *kinds = calloc(n, sizeof *kinds);
    float *scores = calloc(n, sizeof *scores);
    if (!text || !texts || !kinds || !scores)
        abort();

    static const char *const first[] = {"<unk>", "<s>", "</s>"};
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t byte = i - TOY_FIRST_BYTE, piece = byte - 256;
        texts[i] = text[i];
        scores[i] = -1000;
        if (i < TOY_FIRST_BYTE) {
            snprintf(text[i], PIECE_BYTES, "%s", first[i]);
            kinds[i] = i == TOY_UNK ? UNKNOWN : CONTROL;
        } else if (byte < 256) {
            kinds[i] = spm ? BYTE : NORMAL;
            if (spm)
                snprintf(text[i], PIECE_BYTES, "<0x%02X>", byte);
            else
                byte_character(byte, text[i]);
        } else if (piece < n_pieces) {
            kinds[i] = NORMAL;
            scores[i] = -(float)piece;
            if (spm)
                snprintf(text[i], PIECE_BYTES, "%s", spm_pieces[piece]);
            else
                join_merge(bpe_merges[piece], text[i]);
        } else {
            kinds[i] = UNUSED;
            snprintf(text[i], PIECE_BYTES, "[unused%u]", piece);
        }
    }
    gguf_add_str(w, "tokenizer.ggml.model", spm ? "llama" : "gpt2");
    gguf_add_str(w, "tokenizer.ggml.pre", families[p->family].pre);
    gguf_add_strs(w, "tokenizer.ggml.tokens", n, texts);
    gguf_add_array(w, "tokenizer.ggml.token_type", VQ_GGUF_I32, n, kinds);
    if (spm)
        gguf_add_array(w, "tokenizer.ggml.scores", VQ_GGUF_F32, n, scores);
    else
        gguf_add_strs(w, "tokenizer.ggml.merges", n_pieces, bpe_merges);
    gguf_add_u32(w, "tokenizer.ggml.unknown_token_id", TOY_UNK);
    gguf_add_u32(w, "tokenizer.ggml.bos_token_id", TOY_BOS);
    gguf_add_u32(w, "tokenizer.ggml.eos_token_id", TOY_EOS);
    gguf_add_bool(w, "tokenizer.ggml.add_bos_token", spm);
    if (p->family == TOY_GEMMA3)
        gguf_add_bool(w, "tokenizer.ggml.add_space_prefix", false);
    if (p->chat_template)
        gguf_add_str(w, "tokenizer.chat_template", p->chat_template);

    free(text);
    free(texts);
    free(kinds);
    free(scores);
}

/* ---- weights ---- */

typedef struct maker {
    gguf_writer *w;
    const toy_params *p;
    uint32_t layer;
    bool in_layer;
    vq_rng rng;
} maker;

static void add_tensor(maker *m, const char *name, vq_type type, uint32_t n_in, uint32_t n_out, const void *data)
{
    char full[80];
    const uint64_t dims[2] = {n_in, n_out};
    if (m->in_layer)
        snprintf(full, sizeof full, "blk.%u.%s", m->layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    gguf_add_tensor(m->w, full, type, n_out ? 2 : 1, dims, data);
}

/* f32 values to the type of the matrices; freed by the caller. */
static void *encode(vq_type type, const float *x, size_t n)
{
    void *out = malloc(vq_type_row_bytes(type, n) + 1);
    if (!out)
        abort();
    if (type == VQ_TYPE_F32) {
        memcpy(out, x, n * sizeof *x);
    } else if (type == VQ_TYPE_F16 || type == VQ_TYPE_BF16) {
        uint16_t *h = out;
        for (size_t i = 0; i < n; i++)
            h[i] = type == VQ_TYPE_F16 ? vq_f16_from_f32(x[i]) : vq_bf16_from_f32(x[i]);
    } else if (type == VQ_TYPE_Q8_0) {
        uint8_t *b = out;
        for (size_t i = 0; i < n; i += 32, b += 34) {
            float most = 0;
            for (size_t j = 0; j < 32; j++)
                most = fmaxf(most, fabsf(x[i + j]));
            const uint16_t d = vq_f16_from_f32(most / 127);
            const float scale = vq_f32_from_f16(d);
            memcpy(b, &d, 2);
            for (size_t j = 0; j < 32; j++) {
                const float q = scale > 0 ? rintf(x[i + j] / scale) : 0;
                b[2 + j] = (uint8_t)(int8_t)fmaxf(-127, fminf(127, q));
            }
        }
    } else {
        abort();
    }
    return out;
}

/* n_out 0: a vector, always f32.  Values are mean + spread N(0, 1). */
static void add_random(maker *m, const char *name, uint32_t n_in, uint32_t n_out, double mean, double spread)
{
    const size_t n = (size_t)n_in * (n_out ? n_out : 1);
    const vq_type type = n_out ? m->p->type : VQ_TYPE_F32;
    float *x = malloc(n * sizeof *x);
    if (!x)
        abort();
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(mean + spread * vq_rng_normal(&m->rng));
    void *data = encode(type, x, n);
    add_tensor(m, name, type, n_in, n_out, data);
    free(data);
    free(x);
}

static void add_matrix(maker *m, const char *name, uint32_t n_in, uint32_t n_out)
{
    add_random(m, name, n_in, n_out, 0, 1 / sqrt(n_in)); /* keeps the size of what it multiplies */
}

static void add_norm(maker *m, const char *name, uint32_t n) { add_random(m, name, n, 0, 1, 0.1); }

static uint32_t value_dim(const toy_params *p) { return p->value_dim ? p->value_dim : p->head_dim; }

static void add_layer(maker *m)
{
    const toy_params *p = m->p;
    const uint32_t n_q = p->n_heads * p->head_dim, n_kv = p->n_kv_heads * p->head_dim;
    const uint32_t n_v = p->n_kv_heads * value_dim(p);
    add_norm(m, "attn_norm.weight", p->n_embd);
    add_matrix(m, "attn_q.weight", p->n_embd, n_q);
    add_matrix(m, "attn_k.weight", p->n_embd, n_kv);
    add_matrix(m, "attn_v.weight", p->n_embd, n_v);
    add_matrix(m, "attn_output.weight", p->n_heads * value_dim(p), p->n_embd);
    if (p->family == TOY_QWEN2) {
        add_random(m, "attn_q.bias", n_q, 0, 0, 0.2);
        add_random(m, "attn_k.bias", n_kv, 0, 0, 0.2);
        add_random(m, "attn_v.bias", n_v, 0, 0, 0.2);
    }
    if (p->family == TOY_QWEN3 || p->family == TOY_GEMMA3) {
        add_norm(m, "attn_q_norm.weight", p->head_dim);
        add_norm(m, "attn_k_norm.weight", p->head_dim);
    }
    if (p->family == TOY_GEMMA3) {
        add_norm(m, "post_attention_norm.weight", p->n_embd);
        add_norm(m, "post_ffw_norm.weight", p->n_embd);
    }
    add_norm(m, "ffn_norm.weight", p->n_embd);
    add_matrix(m, "ffn_gate.weight", p->n_embd, p->n_ff);
    add_matrix(m, "ffn_up.weight", p->n_embd, p->n_ff);
    add_matrix(m, "ffn_down.weight", p->n_ff, p->n_embd);
}

/* ---- the file ---- */

static void add_count(gguf_writer *w, const toy_params *p, const char *name, uint32_t x)
{
    char key[80];
    snprintf(key, sizeof key, "%s.%s", families[p->family].architecture, name);
    gguf_add_u32(w, key, x);
}

static void add_real(gguf_writer *w, const toy_params *p, const char *name, float x)
{
    char key[80];
    snprintf(key, sizeof key, "%s.%s", families[p->family].architecture, name);
    gguf_add_f32(w, key, x);
}

/* What converters put into rope_freqs.weight: 1, a blend, then the factor. */
static void add_rope_divisors(maker *m)
{
    const uint32_t n = m->p->head_dim / 2;
    float *divisors = malloc(n * sizeof *divisors);
    if (!divisors)
        abort();
    for (uint32_t i = 0; i < n; i++) {
        const double turns = 8192 * pow(m->p->rope_base, -2.0 * i / m->p->head_dim) / (2 * 3.14159265358979323846);
        const double keep = fmin(1, fmax(0, (turns - 1) / (4 - 1)));
        divisors[i] = (float)(1 / (keep + (1 - keep) / 32));
    }
    add_tensor(m, "rope_freqs.weight", VQ_TYPE_F32, n, 0, divisors);
    free(divisors);
}

static void add_rope_scaling(gguf_writer *w, const toy_params *p)
{
    if (p->rope == TOY_ROPE_PLAIN || p->rope == TOY_ROPE_LLAMA3_TENSOR)
        return;
    char key[80];
    snprintf(key, sizeof key, "%s.rope.scaling.type", families[p->family].architecture);
    gguf_add_str(w, key, p->rope == TOY_ROPE_LINEAR ? "linear" : "llama3");
    add_real(w, p, "rope.scaling.factor", 32);
    if (p->rope == TOY_ROPE_LLAMA3_KEYS) {
        add_real(w, p, "rope.scaling.low_freq_factor", 1);
        add_real(w, p, "rope.scaling.high_freq_factor", 4);
        add_count(w, p, "rope.scaling.original_context_length", 8192);
    }
}

gguf_buffer toy_model_make(const toy_params *p)
{
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_str(w, "general.architecture", families[p->family].architecture);
    gguf_add_str(w, "general.name", families[p->family].name);
    add_count(w, p, "block_count", p->n_layers);
    add_count(w, p, "context_length", p->n_ctx);
    add_count(w, p, "embedding_length", p->n_embd);
    add_count(w, p, "feed_forward_length", p->n_ff);
    add_count(w, p, "attention.head_count", p->n_heads);
    add_count(w, p, "attention.head_count_kv", p->n_kv_heads);
    add_count(w, p, "attention.key_length", p->head_dim);
    add_count(w, p, "attention.value_length", value_dim(p));
    if (p->family != TOY_GEMMA3)
        add_count(w, p, "rope.dimension_count", p->head_dim);
    if (p->window)
        add_count(w, p, "attention.sliding_window", p->window);
    add_real(w, p, "rope.freq_base", p->rope_base);
    add_real(w, p, "attention.layer_norm_rms_epsilon", 1e-6f);
    add_rope_scaling(w, p);
    add_vocabulary(w, p);
    if (p->more)
        p->more(w);

    maker m = {.w = w, .p = p};
    vq_rng_seed(&m.rng, p->seed);
    add_random(&m, "token_embd.weight", p->n_embd, p->n_vocab, 0, 0.5);
    m.in_layer = true;
    for (m.layer = 0; m.layer < p->n_layers; m.layer++)
        add_layer(&m);
    m.in_layer = false;
    add_norm(&m, "output_norm.weight", p->n_embd);
    if (p->rope == TOY_ROPE_LLAMA3_TENSOR)
        add_rope_divisors(&m);
    if (!p->tied)
        add_matrix(&m, "output.weight", p->n_embd, p->n_vocab);
    return gguf_writer_finish(w);
}
