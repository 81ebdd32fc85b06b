/* Folders of safetensors: a toy model written as Hugging Face has it opens as the toy itself: same keys in effect, same
 * rows, same tokens, and the same reservoir to the last bit of its logits. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "formats/rows.h"
#include "support/temporary.h"
#include "support/toy_open.h"
#include "veloxquant/reservoir.h"
#include "veloxquant/session.h"

static char folder[TEMPORARY_PATH], source[96], a_path[96], b_path[96];

static int make_folder(void **state)
{
    (void)state;
    temporary_folder(folder, "hf");
    snprintf(source, sizeof source, "%s/toy.gguf", folder);
    snprintf(a_path, sizeof a_path, "%s/a.vqr", folder);
    snprintf(b_path, sizeof b_path, "%s/b.vqr", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return remove_temporary_folder(folder);
}

static void check(vq_status status, const vq_error *err)
{
    if (status != VQ_OK)
        fail_msg("%s: %s", vq_status_name(status), err->text);
}

static const char *in_folder(const char *name)
{
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put_json(const char *name, json_t *value)
{
    assert_non_null(value);
    assert_int_equal(json_dump_file(value, in_folder(name), JSON_INDENT(1)), 0);
    json_decref(value);
}

/* ---- a toy as a folder ---- */

static vq_gguf *open_toy(toy_family family)
{
    toy_params p;
    toy_params_init(&p, family);
    p.type = VQ_TYPE_F32;
    gguf_buffer b = toy_model_make(&p);
    assert_true(gguf_buffer_save(b, source));
    free(b.bytes);
    vq_gguf *g;
    vq_error err;
    check(vq_gguf_open(&g, source, &err), &err);
    return g;
}

static json_t *config_of(toy_family family)
{
    static const char *const types[] = {"llama", "mistral", "qwen2", "qwen3", "gemma3_text"};
    const bool tied = family == TOY_QWEN3 || family == TOY_GEMMA3;
    json_t *c = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:i, s:[i, i], s:n}", "model_type",
                          types[family], "num_hidden_layers", 2, "max_position_embeddings", 128, "hidden_size", 32,
                          "intermediate_size", 48, "num_attention_heads", 4, "num_key_value_heads", 2, "head_dim", 8,
                          "rms_norm_eps", 1e-6, "rope_theta", 10000.0, "tie_word_embeddings", tied, "bos_token_id",
                          TOY_BOS, "eos_token_id", TOY_EOS, 100, "rope_scaling");
    if (family == TOY_GEMMA3)
        json_object_update_new(c, json_pack("{s:i, s:i, s:s, s:[s, s]}", "sliding_window", 16, "query_pre_attn_scalar",
                                            8, "hidden_activation", "gelu_pytorch_tanh", "layer_types",
                                            "sliding_attention", "sliding_attention"));
    return c;
}

static json_t *tokenizer_of(const vq_gguf *g, toy_family family)
{
    const vq_gguf_value *texts = vq_gguf_find(g, "tokenizer.ggml.tokens"),
                        *kinds = vq_gguf_find(g, "tokenizer.ggml.token_type"),
                        *merges = vq_gguf_find(g, "tokenizer.ggml.merges");
    const bool spm = !merges;
    json_t *vocab = json_object(), *added = json_array(), *list = json_array();
    for (uint64_t i = 0; i < texts->n; i++) {
        int32_t kind;
        memcpy(&kind, (const char *)kinds->raw + 4 * i, 4);
        json_t *text = json_stringn(texts->strings[i].at, texts->strings[i].n_bytes);
        if (kind == 5) { /* unused: no token of theirs */
            json_decref(text);
            continue;
        }
        json_object_set_new(vocab, json_string_value(text), json_integer((json_int_t)i));
        if (kind == 3)
            json_array_append_new(added, json_pack("{s:i, s:O, s:b}", "id", (int)i, "content", text, "special", 1));
        json_decref(text);
    }
    static const char *const spm_merges[][2] = {
        {"\xe2\x96\x81", "t"}, {"t", "h"}, {"h", "e"}, {"\xe2\x96\x81t", "he"}, {"i", "n"}};
    for (size_t i = 0; spm && i < 5; i++)
        json_array_append_new(list, json_pack("[s, s]", spm_merges[i][0], spm_merges[i][1]));
    for (uint64_t i = 0; !spm && i < merges->n; i++)
        json_array_append_new(list, json_stringn(merges->strings[i].at, merges->strings[i].n_bytes));
    json_t *pre = spm ? json_null()
                  : family == TOY_LLAMA
                      ? json_pack("{s:s, s:[{s:s, s:b}, {s:s}]}", "type", "Sequence", "pretokenizers", "type", "Digits",
                                  "individual_digits", 1, "type", "ByteLevel")
                      : json_pack("{s:s, s:[{s:s, s:{s:s}}, {s:s}]}", "type", "Sequence", "pretokenizers", "type",
                                  "Split", "pattern", "Regex",
                                  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}]+",
                                  "type", "ByteLevel");
    json_t *normalizer =
        family == TOY_MISTRAL ? json_pack("{s:s, s:s}", "type", "Prepend", "prepend", "\xe2\x96\x81") : json_null();
    return json_pack("{s:{s:s, s:o, s:o, s:b, s:s}, s:o, s:o, s:o}", "model", "type", "BPE", "vocab", vocab, "merges",
                     list, "byte_fallback", spm, "unk_token", "<unk>", "added_tokens", added, "pre_tokenizer", pre,
                     "normalizer", normalizer);
}

static const struct {
    const char *ours, *theirs, *gemma;
} parts[] = {
    {"attn_q", "self_attn.q_proj", NULL},
    {"attn_k", "self_attn.k_proj", NULL},
    {"attn_v", "self_attn.v_proj", NULL},
    {"attn_output", "self_attn.o_proj", NULL},
    {"attn_q_norm", "self_attn.q_norm", NULL},
    {"attn_k_norm", "self_attn.k_norm", NULL},
    {"ffn_gate", "mlp.gate_proj", NULL},
    {"ffn_up", "mlp.up_proj", NULL},
    {"ffn_down", "mlp.down_proj", NULL},
    {"attn_norm", "input_layernorm", NULL},
    {"post_attention_norm", "post_attention_layernorm", NULL},
    {"ffn_norm", "post_attention_layernorm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm", NULL},
};

static void their_name(const vq_tensor *t, toy_family family, char out[128])
{
    char name[96];
    snprintf(name, sizeof name, "%.*s", (int)t->name.n_bytes, t->name.at);
    unsigned layer;
    int used = 0;
    if (sscanf(name, "blk.%u.%n", &layer, &used) != 1) {
        snprintf(out, 128, "%s",
                 strcmp(name, "token_embd.weight") == 0    ? "model.embed_tokens.weight"
                 : strcmp(name, "output_norm.weight") == 0 ? "model.norm.weight"
                                                           : "lm_head.weight");
        return;
    }
    const char *end = strrchr(name, '.');
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strlen(parts[i].ours) != (size_t)(end - name - used) ||
            memcmp(parts[i].ours, name + used, strlen(parts[i].ours)) != 0)
            continue;
        snprintf(out, 128, "model.layers.%u.%s%s", layer,
                 family == TOY_GEMMA3 && parts[i].gemma ? parts[i].gemma : parts[i].theirs, end);
        return;
    }
    fail_msg("%s", name);
}

/* The rows of q and k of a head of d by halves: theirs [i + j d/2] = ours [2 i + j]. */
static void write_rows(FILE *f, const vq_tensor *t, bool by_halves, bool less_one)
{
    const uint64_t n = t->dims[0], rows = t->n_dims == 2 ? t->dims[1] : 1, d = 8;
    for (uint64_t r = 0; r < rows; r++) {
        const uint64_t in = r % d, ours = by_halves ? r / d * d + in % (d / 2) * 2 + in / (d / 2) : r;
        for (uint64_t c = 0; c < n; c++) {
            const float x = ((const float *)t->data)[ours * n + c] - (less_one ? 1.0F : 0.0F);
            assert_int_equal(fwrite(&x, sizeof x, 1, f), 1);
        }
    }
}

/* Two files, so that a model in parts is read too. */
static void write_tensors(const vq_gguf *g, toy_family family)
{
    for (int part = 0; part < 2; part++) {
        json_t *header = json_object();
        uint64_t at = 0;
        for (uint64_t i = (uint64_t)part; i < vq_gguf_n_tensors(g); i += 2) {
            const vq_tensor *t = vq_gguf_tensor_at(g, i);
            char name[128];
            their_name(t, family, name);
            json_t *shape = t->n_dims == 2 ? json_pack("[I, I]", (json_int_t)t->dims[1], (json_int_t)t->dims[0])
                                           : json_pack("[I]", (json_int_t)t->dims[0]);
            json_object_set_new(header, name,
                                json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets",
                                          (json_int_t)at, (json_int_t)(at + t->n_bytes)));
            at += t->n_bytes;
        }
        char *text = json_dumps(header, 0), padded[64];
        uint64_t n = strlen(text) + (8 - strlen(text) % 8) % 8;
        snprintf(padded, sizeof padded, "model-%d-of-2.safetensors", part + 1);
        FILE *f = fopen(in_folder(padded), "wb");
        assert_non_null(f);
        fwrite(&n, sizeof n, 1, f);
        fprintf(f, "%-*s", (int)n, text);
        for (uint64_t i = (uint64_t)part; i < vq_gguf_n_tensors(g); i += 2) {
            const vq_tensor *t = vq_gguf_tensor_at(g, i);
            char name[128];
            their_name(t, family, name);
            write_rows(f, t, family <= TOY_MISTRAL && (strstr(name, "q_proj.weight") || strstr(name, "k_proj.weight")),
                       family == TOY_GEMMA3 && t->n_dims == 1);
        }
        fclose(f);
        free(text);
        json_decref(header);
    }
}

static void write_folder(const vq_gguf *g, toy_family family)
{
    put_json("config.json", config_of(family));
    put_json("tokenizer.json", tokenizer_of(g, family));
    write_tensors(g, family);
}

/* ---- what must hold ---- */

static void assert_same_tensors(const vq_gguf *a, const vq_gguf *b)
{
    assert_int_equal(vq_gguf_n_tensors(a), vq_gguf_n_tensors(b));
    for (uint64_t i = 0; i < vq_gguf_n_tensors(b); i++) {
        const vq_tensor *y = vq_gguf_tensor_at(b, i);
        char name[96];
        snprintf(name, sizeof name, "%.*s", (int)y->name.n_bytes, y->name.at);
        const vq_tensor *x = vq_gguf_tensor(a, name);
        if (!x || x->n_dims != y->n_dims || x->dims[0] != y->dims[0] || x->dims[1] != y->dims[1])
            fail_msg("%s: %s", name, x ? "other dimensions" : "not in the toy");
        for (uint64_t r = 0; r < y->dims[1]; r++)
            if (memcmp((const char *)x->data + r * 4 * x->dims[0], vq_gguf_raw_row(b, i, r), 4 * x->dims[0]) != 0)
                fail_msg("%s: row %llu differs", name, (unsigned long long)r);
    }
}

static void assert_same_tokens(const vq_gguf *a, const vq_gguf *b)
{
    static const char *const texts[] = {"the thin hat then in", " heathen  tin 123 \xc3\xa9t\xc3\xa9", "in</s>the<s>",
                                        "\n\tthe\xe2\x96\x81the"};
    vq_tokenizer *x, *y;
    vq_error err;
    check(vq_tokenizer_open(&x, a, &err), &err);
    check(vq_tokenizer_open(&y, b, &err), &err);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int32_t *p, *q;
        size_t n, m;
        check(vq_tokenize(x, texts[i], strlen(texts[i]), VQ_TOKENIZE_CONTROL | VQ_TOKENIZE_BOS, &p, &n, &err), &err);
        check(vq_tokenize(y, texts[i], strlen(texts[i]), VQ_TOKENIZE_CONTROL | VQ_TOKENIZE_BOS, &q, &m, &err), &err);
        if (n != m || memcmp(p, q, n * sizeof *p) != 0)
            fail_msg("'%s': %zu tokens, the toy has %zu, or others", texts[i], m, n);
        vq_free(p);
        vq_free(q);
    }
    assert_string_equal(vq_tokenizer_kind(x), vq_tokenizer_kind(y));
    assert_int_equal(vq_tokenizer_eos(x), vq_tokenizer_eos(y));
    vq_tokenizer_close(x);
    vq_tokenizer_close(y);
}

static float *logits_of(const char *file, size_t *n_bytes)
{
    static const int32_t ids[] = {1, 40, 41, 42, 100, 7, 260, 9};
    vq_error err;
    vq_model *m;
    vq_session *s;
    vq_session_params p;
    vq_session_params_init(&p);
    check(vq_model_open(&m, file, &err), &err);
    check(vq_session_open(&s, m, &p, &err), &err);
    check(vq_session_eval(s, ids, sizeof ids / sizeof *ids, NULL, 0, NULL, &err), &err);
    *n_bytes = vq_model_get_info(m)->n_vocab * sizeof(float);
    float *out = malloc(*n_bytes);
    assert_non_null(out);
    memcpy(out, vq_session_logits(s), *n_bytes);
    vq_session_close(s);
    vq_model_close(m);
    return out;
}

static void a_folder_is_the_model_that_it_was_made_of(void **state)
{
    (void)state;
    vq_error err;
    for (int family = 0; family < N_TOY_FAMILIES; family++) {
        vq_gguf *toy = open_toy((toy_family)family), *g;
        write_folder(toy, (toy_family)family);
        check(vq_gguf_open(&g, folder, &err), &err);
        assert_same_tensors(toy, g);
        assert_same_tokens(toy, g);

        vq_quantize_params p;
        vq_quantize_params_init(&p);
        check(vq_quantize(toy, a_path, &p, &err), &err);
        check(vq_quantize(g, b_path, &p, &err), &err);
        size_t n, m;
        float *x = logits_of(a_path, &n), *y = logits_of(b_path, &m);
        assert_int_equal(n, m);
        assert_memory_equal(x, y, n);
        free(x);
        free(y);

        /* all kept: q and k go over row by row */
        p.bits = 0;
        check(vq_quantize(g, b_path, &p, &err), &err);
        x = logits_of(source, &n);
        y = logits_of(b_path, &m);
        assert_memory_equal(x, y, n);
        free(x);
        free(y);

        vq_model *model;
        assert_int_equal(vq_model_open(&model, folder, &err), VQ_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.text, "quantize"));
        vq_gguf_close(g);
        vq_gguf_close(toy);
    }
}

static void what_is_not_ours_is_refused_by_name(void **state)
{
    (void)state;
    vq_gguf *toy = open_toy(TOY_LLAMA), *g;
    vq_error err;
    write_folder(toy, TOY_LLAMA);
    static const struct {
        const char *key, *value; /* NULL: taken away */
        vq_status want;
        const char *named;
    } faults[] = {
        {"model_type", "\"mamba\"", VQ_ERR_UNSUPPORTED, "mamba"},
        {"hidden_act", "\"relu\"", VQ_ERR_UNSUPPORTED, "relu"},
        {"num_hidden_layers", "1", VQ_ERR_UNSUPPORTED, "model.layers.1"},
        {"num_hidden_layers", "-1", VQ_ERR_VALUE, "num_hidden_layers"},
        {"hidden_size", NULL, VQ_ERR_MISSING_KEY, "hidden_size"},
        {"rms_norm_eps", "\"x\"", VQ_ERR_VALUE, "rms_norm_eps"},
        {"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}", VQ_ERR_UNSUPPORTED, "yarn"},
        {"quantization_config", "{\"quant_method\": \"gptq\"}", VQ_ERR_UNSUPPORTED, "quantization_config"},
        {"num_experts", "8", VQ_ERR_UNSUPPORTED, "num_experts"},
        {"head_dim", "5", VQ_ERR_SHAPE, "attn"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        json_t *c = config_of(TOY_LLAMA);
        if (faults[i].value)
            json_object_set_new(c, faults[i].key, json_loads(faults[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(c, faults[i].key);
        put_json("config.json", c);
        const vq_status got = vq_gguf_open(&g, folder, &err);
        if (got != faults[i].want || !strstr(err.text, faults[i].named))
            fail_msg("%s = %s: want %s naming \"%s\", got %s: %s", faults[i].key, faults[i].value,
                     vq_status_name(faults[i].want), faults[i].named, vq_status_name(got), got ? err.text : "");
        assert_null(g);
    }
    put_json("config.json", config_of(TOY_LLAMA));
    put_json("tokenizer.json", json_pack("{s:{s:s}}", "model", "type", "Unigram"));
    assert_int_equal(vq_gguf_open(&g, folder, &err), VQ_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "Unigram"));
    unlink(in_folder("tokenizer.json"));
    assert_int_equal(vq_gguf_open(&g, folder, &err), VQ_ERR_IO);
    assert_non_null(strstr(err.text, "tokenizer.json"));
    vq_gguf_close(toy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_is_the_model_that_it_was_made_of),
        cmocka_unit_test(what_is_not_ours_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
