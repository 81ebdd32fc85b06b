/* make_shape SHAPE gguf FILE         a GGUF file of the shape of a real model, f16 weights, all of them holes of the
 * file make_shape SHAPE BITS FILE         a reservoir of that shape, zeros that are really written
 *
 * SHAPE is 4b (36 layers of 2560, heads 32/8 of 128, 151,936 tokens, tied) or 7b (32 layers of 4096, 32,000 tokens).
 * For measuring what depends on sizes and not on values: peak memory of quantising, time to open. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"
#include "formats/reservoir.h"
#include "quant/linear.h"
#include "support/gguf_writer.h"

typedef struct shape {
    const char *name, *family;
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    bool tied, head_norms;
} shape;

static const shape shapes[] = {
    {"4b", "qwen3", 36, 2560, 9728, 32, 8, 128, 151936, true, true},
    {"7b", "llama", 32, 4096, 11008, 32, 32, 128, 32000, false, false},
};

/* What a tensor becomes: a hole in GGUF, zeros in a reservoir. */
typedef struct maker {
    gguf_writer *w;
    vq_reservoir_writer *r;
    uint32_t bits;
} maker;

static void die(const char *what)
{
    fprintf(stderr, "make_shape: %s\n", what);
    exit(1);
}

static void check(vq_status status, const vq_error *err)
{
    if (status != VQ_OK)
        die(err->text);
}

static void add(maker *m, const char *name, uint32_t n_in, uint32_t n_out, bool pack)
{
    static const uint8_t zeros[1 << 20];
    const uint64_t dims[2] = {n_in, n_out ? n_out : 1};
    vq_tensor t = {.name = {name, strlen(name)}, .n_dims = n_out ? 2 : 1, .dims = {n_in, dims[1], 1, 1}};
    t.type = !n_out ? VQ_TYPE_F32 : m->r && pack ? vq_linear_type(m->bits) : VQ_TYPE_F16;
    if (!m->r) {
        gguf_add_tensor(m->w, name, t.type, t.n_dims, dims, NULL);
        return;
    }
    vq_error err;
    t.n_bytes =
        vq_type_packed_bits(t.type) ? vq_linear_bytes(m->bits, n_in, n_out) : dims[1] * vq_type_row_bytes(t.type, n_in);
    check(vq_reservoir_writer_begin(m->r, &t, &err), &err);
    for (uint64_t at = 0; at < t.n_bytes; at += sizeof zeros)
        check(vq_reservoir_writer_add(m->r, zeros, t.n_bytes - at < sizeof zeros ? t.n_bytes - at : sizeof zeros, &err),
              &err);
    check(vq_reservoir_writer_end(m->r, (double)NAN, &err), &err);
}

static void add_tensors(maker *m, const shape *s)
{
    const uint32_t n_q = s->n_heads * s->head_dim, n_kv = s->n_kv_heads * s->head_dim;
    const struct {
        const char *name;
        uint32_t n_in, n_out;
    } parts[] = {
        {"attn_norm.weight", s->n_embd, 0},      {"attn_q.weight", s->n_embd, n_q},
        {"attn_k.weight", s->n_embd, n_kv},      {"attn_v.weight", s->n_embd, n_kv},
        {"attn_output.weight", n_q, s->n_embd},  {"ffn_norm.weight", s->n_embd, 0},
        {"ffn_gate.weight", s->n_embd, s->n_ff}, {"ffn_up.weight", s->n_embd, s->n_ff},
        {"ffn_down.weight", s->n_ff, s->n_embd}, {"attn_q_norm.weight", s->head_dim, 0},
        {"attn_k_norm.weight", s->head_dim, 0},
    };
    const size_t n = sizeof parts / sizeof *parts - (s->head_norms ? 0 : 2);
    add(m, "token_embd.weight", s->n_embd, s->n_vocab, false);
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        for (size_t i = 0; i < n; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s", layer, parts[i].name);
            add(m, name, parts[i].n_in, parts[i].n_out, true);
        }
    add(m, "output_norm.weight", s->n_embd, 0, false);
    if (!s->tied)
        add(m, "output.weight", s->n_embd, s->n_vocab, false);
}

static void add_vocabulary(gguf_writer *w, uint32_t n)
{
    char(*text)[16] = calloc(n, sizeof *text);
    const char **texts = calloc(n, sizeof *texts);
    int32_t *kinds = calloc(n, sizeof *kinds);
    float *scores = calloc(n, sizeof *scores);
    if (!text || !texts || !kinds || !scores)
        die("no memory");
    for (uint32_t i = 0; i < n; i++) {
        texts[i] = text[i];
        kinds[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1;
        scores[i] = -(float)i;
        if (i < 3)
            snprintf(text[i], sizeof text[i], "<%u>", i);
        else if (i < 259)
            snprintf(text[i], sizeof text[i], "<0x%02X>", i - 3);
        else
            snprintf(text[i], sizeof text[i], "w%u", i);
    }
    gguf_add_str(w, "tokenizer.ggml.model", "llama");
    gguf_add_strs(w, "tokenizer.ggml.tokens", n, texts);
    gguf_add_array(w, "tokenizer.ggml.token_type", VQ_GGUF_I32, n, kinds);
    gguf_add_array(w, "tokenizer.ggml.scores", VQ_GGUF_F32, n, scores);
    free(text);
    free(texts);
    free(kinds);
    free(scores);
}

static void add_count(gguf_writer *w, const shape *s, const char *name, uint32_t x)
{
    char key[80];
    snprintf(key, sizeof key, "%s.%s", s->family, name);
    gguf_add_u32(w, key, x);
}

static gguf_writer *begin(const shape *s)
{
    gguf_writer *w = gguf_writer_new(32);
    char key[80];
    gguf_add_str(w, "general.architecture", s->family);
    gguf_add_str(w, "general.name", s->name);
    add_count(w, s, "block_count", s->n_layers);
    add_count(w, s, "context_length", 4096);
    add_count(w, s, "embedding_length", s->n_embd);
    add_count(w, s, "feed_forward_length", s->n_ff);
    add_count(w, s, "attention.head_count", s->n_heads);
    add_count(w, s, "attention.head_count_kv", s->n_kv_heads);
    add_count(w, s, "attention.key_length", s->head_dim);
    add_count(w, s, "attention.value_length", s->head_dim);
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->family);
    gguf_add_f32(w, key, 1e-6F);
    add_vocabulary(w, s->n_vocab);
    return w;
}

static void add_rotation(maker *m, uint32_t width)
{
    vq_error err;
    vq_codes_kernels k;
    vq_input_rotation *r;
    vq_codes_kernels_init(&k, vq_cpu_detect());
    check(vq_input_rotation_open(&r, &k, width, false, 0, &err), &err);
    const vq_stored_rotation stored = {.width = width, .hash = vq_input_rotation_hash(r)};
    check(vq_reservoir_writer_rotation(m->r, &stored, &err), &err);
    vq_input_rotation_close(r);
}

static void write_gguf(const shape *s, const char *path)
{
    maker m = {.w = begin(s)};
    add_tensors(&m, s);
    const uint64_t total = gguf_writer_total(m.w);
    gguf_buffer b = gguf_writer_finish(m.w);
    if (!gguf_buffer_save(b, path) || truncate(path, (off_t)total) != 0)
        die("cannot write the file");
    free(b.bytes);
}

static void write_reservoir(const shape *s, uint32_t bits, const char *path)
{
    vq_error err;
    vq_gguf *keys;
    gguf_buffer b = gguf_writer_finish(begin(s));
    check(vq_gguf_open_memory(&keys, s->name, b.bytes, b.n_bytes, &err), &err);
    maker m = {.bits = bits};
    check(vq_reservoir_writer_open(&m.r, path, keys, &err), &err);
    const uint32_t n_q = s->n_heads * s->head_dim;
    add_rotation(&m, s->n_embd);
    if (n_q != s->n_embd)
        add_rotation(&m, n_q);
    add_rotation(&m, s->n_ff);
    add_tensors(&m, s);
    check(vq_reservoir_writer_commit(m.r, &err), &err);
    vq_gguf_close(keys);
    free(b.bytes);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        die("usage: make_shape 4b|7b gguf|2|3|4 FILE");
    const shape *s = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (strcmp(shapes[i].name, argv[1]) == 0)
            s = &shapes[i];
    const uint32_t bits = (uint32_t)atoi(argv[2]);
    if (!s || (strcmp(argv[2], "gguf") != 0 && (bits < 2 || bits > 4)))
        die("usage: make_shape 4b|7b gguf|2|3|4 FILE");
    if (bits)
        write_reservoir(s, bits, argv[3]);
    else
        write_gguf(s, argv[3]);
    return 0;
}
