/* A folder with a tokenizer.json of a real vocabulary, SmolLM2's: written from the keys of its GGUF file in the form
 * that Hugging Face gives it, it must tokenise every case to the ids that three independent tokenisers agree about. The
 * embedding is zeros.  Without the model: skipped (77). */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/files.h"
#include "support/temporary.h"
#include "veloxquant/tokenizer.h"

enum { N_EMBD = 8 };

static vq_gguf *source;
static char folder[TEMPORARY_PATH];

static const char *in_folder(const char *name)
{
    static char path[TEMPORARY_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put_json(const char *name, json_t *value)
{
    assert_non_null(value);
    assert_int_equal(json_dump_file(value, in_folder(name), 0), 0);
    json_decref(value);
}

static const vq_gguf_value *value_of(const char *key)
{
    const vq_gguf_value *v = vq_gguf_find(source, key);
    if (!v)
        fail_msg("%s is not in the file", key);
    return v;
}

static json_t *tokenizer_json(void)
{
    const vq_gguf_value *texts = value_of("tokenizer.ggml.tokens"), *kinds = value_of("tokenizer.ggml.token_type"),
                        *merges = value_of("tokenizer.ggml.merges");
    json_t *vocab = json_object(), *added = json_array(), *list = json_array();
    for (uint64_t i = 0; i < texts->n; i++) {
        int32_t kind;
        memcpy(&kind, (const char *)kinds->raw + 4 * i, 4);
        json_t *text = json_stringn(texts->strings[i].at, texts->strings[i].n_bytes);
        assert_non_null(text);
        json_object_set_new(vocab, json_string_value(text), json_integer((json_int_t)i));
        if (kind != 1)
            json_array_append_new(added,
                                  json_pack("{s:i, s:O, s:b}", "id", (int)i, "content", text, "special", kind == 3));
        json_decref(text);
    }
    for (uint64_t i = 0; i < merges->n; i++)
        json_array_append_new(list, json_stringn(merges->strings[i].at, merges->strings[i].n_bytes));
    return json_pack("{s:s, s:o, s:n, s:{s:s, s:[{s:s, s:b}, {s:s, s:b, s:b}]}, s:{s:s, s:n, s:b, s:o, s:o}}",
                     "version", "1.0", "added_tokens", added, "normalizer", "pre_tokenizer", "type", "Sequence",
                     "pretokenizers", "type", "Digits", "individual_digits", 1, "type", "ByteLevel", "add_prefix_space",
                     0, "use_regex", 1, "model", "type", "BPE", "unk_token", "byte_fallback", 0, "vocab", vocab,
                     "merges", list);
}

/* One tensor: n rows of zeros, a hole in the file. */
static void put_embedding(uint64_t n)
{
    char header[256], padded[264];
    snprintf(header, sizeof header,
             "{\"model.embed_tokens.weight\":{\"dtype\":\"F16\",\"shape\":[%llu,%d],\"data_offsets\":[0,%llu]}}",
             (unsigned long long)n, N_EMBD, (unsigned long long)n * N_EMBD * 2);
    const uint64_t n_bytes = (strlen(header) + 7) / 8 * 8;
    snprintf(padded, sizeof padded, "%-*s", (int)n_bytes, header);
    FILE *f = fopen(in_folder("model.safetensors"), "wb");
    assert_non_null(f);
    assert_true(fwrite(&n_bytes, sizeof n_bytes, 1, f) == 1 && fwrite(padded, n_bytes, 1, f) == 1);
    assert_true(fflush(f) == 0 && ftruncate(fileno(f), (off_t)(8 + n_bytes + n * N_EMBD * 2)) == 0);
    fclose(f);
}

static vq_tokenizer *open_folder(void)
{
    put_json("config.json",
             json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:b, s:i}", "model_type", "llama",
                       "num_hidden_layers", 1, "max_position_embeddings", 2048, "hidden_size", N_EMBD,
                       "intermediate_size", 16, "num_attention_heads", 1, "num_key_value_heads", 1, "rms_norm_eps",
                       1e-5, "rope_theta", 10000.0, "tie_word_embeddings", 1, "eos_token_id", 2));
    put_json("tokenizer.json", tokenizer_json());
    put_embedding(value_of("tokenizer.ggml.tokens")->n);
    vq_gguf *g;
    vq_tokenizer *t = NULL;
    vq_error err;
    if (vq_gguf_open(&g, folder, &err) != VQ_OK || vq_tokenizer_open(&t, g, &err) != VQ_OK)
        fail_msg("%s", err.text);
    vq_gguf_close(g);
    return t;
}

static bool same(const vq_tokenizer *t, const json_t *text, const json_t *want, unsigned flags)
{
    int32_t *ids;
    size_t n;
    vq_error err;
    if (vq_tokenize(t, json_string_value(text), json_string_length(text), flags, &ids, &n, &err) != VQ_OK)
        fail_msg("%s", err.text);
    bool equal = n == json_array_size(want);
    for (size_t i = 0; equal && i < n; i++)
        equal = ids[i] == (int32_t)json_integer_value(json_array_get(want, i));
    if (!equal)
        print_error("flags %u: \"%s\" gives %zu ids, wanted %zu\n", flags, json_string_value(text), n,
                    json_array_size(want));
    vq_free(ids);
    return equal;
}

static void a_real_tokenizer_json_gives_the_known_ids(void **state)
{
    (void)state;
    vq_tokenizer *t = open_folder();
    char line[65536];
    FILE *f = fopen(source_path("tests/cases/tokens_smollm2.jsonl"), "r");
    assert_non_null(f);
    int n = 0, n_wrong = 0;
    for (; fgets(line, sizeof line, f); n++) {
        json_error_t bad;
        json_t *one = json_loads(line, JSON_ALLOW_NUL, &bad);
        assert_non_null(one);
        const json_t *ids = json_object_get(one, "ids"), *plain = json_object_get(one, "ids_nospecial");
        n_wrong += !same(t, json_object_get(one, "text"), ids, VQ_TOKENIZE_CONTROL);
        n_wrong += !same(t, json_object_get(one, "text"), plain ? plain : ids, 0);
        json_decref(one);
    }
    fclose(f);
    print_message("%d cases, %d wrong\n", n, n_wrong);
    assert_true(n >= 80);
    assert_int_equal(n_wrong, 0);
    vq_tokenizer_close(t);
}

int main(void)
{
    const char *path = model_path(SMOLLM2);
    vq_error err;
    if (!path) {
        fprintf(stderr, "skipped: no %s in models/ or $VQ_MODELS\n", SMOLLM2);
        return TEST_SKIPPED;
    }
    if (vq_gguf_open(&source, path, &err) != VQ_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    temporary_folder(folder, "hf-tokens");
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_real_tokenizer_json_gives_the_known_ids)};
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_temporary_folder(folder);
    vq_gguf_close(source);
    return n_failed;
}
