/* Vocabularies that can't be right are refused with a message that names the file, the key and what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/gguf_writer.h"
#include "veloxquant/tokenizer.h"

#define KEY(name) "tokenizer.ggml." name

enum { N = 4 };
static const char *const tokens[N] = {"<unk>", "a", "b", "ab"};
static const int32_t types[N] = {2, 1, 1, 1};
static const float scores[N] = {0, -1, -2, -3};
static const char *const merges[] = {"a b"};

/* What to leave out of a good file; the test then adds its own. */
typedef struct leave {
    bool model, tokens, types, scores, merges;
} leave;

static gguf_writer *start(bool spm, leave out)
{
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_str(w, "general.architecture", "llama");
    if (!out.model)
        gguf_add_str(w, KEY("model"), spm ? "llama" : "gpt2");
    if (!out.tokens)
        gguf_add_strs(w, KEY("tokens"), N, tokens);
    if (!out.types)
        gguf_add_array(w, KEY("token_type"), VQ_GGUF_I32, N, types);
    if (!out.scores && spm)
        gguf_add_array(w, KEY("scores"), VQ_GGUF_F32, N, scores);
    if (!out.merges && !spm)
        gguf_add_strs(w, KEY("merges"), 1, merges);
    return w;
}

/* Opens and closes; returns the status with its message. */
static vq_status try_open(gguf_writer *w, vq_error *err)
{
    const gguf_buffer b = gguf_writer_finish(w);
    vq_gguf *gguf;
    vq_tokenizer *t;
    *err = (vq_error){.status = VQ_OK};
    assert_int_equal(vq_gguf_open_memory(&gguf, "bad.gguf", b.bytes, b.n_bytes, NULL), VQ_OK);
    const vq_status status = vq_tokenizer_open(&t, gguf, err);
    assert_int_equal(t == NULL, status != VQ_OK);
    vq_tokenizer_close(t);
    vq_gguf_close(gguf);
    free(b.bytes);
    return status;
}

static void refused(gguf_writer *w, vq_status want, const char *key, const char *value)
{
    vq_error err;
    assert_int_equal(try_open(w, &err), want);
    assert_int_equal(err.status, want);
    if (strncmp(err.text, "bad.gguf: ", 10) != 0 || !strstr(err.text, key) || !strstr(err.text, value))
        fail_msg("\"%s\" does not name the file, %s and %s", err.text, key, value);
}

static void opens(gguf_writer *w)
{
    vq_error err;
    if (try_open(w, &err) != VQ_OK)
        fail_msg("%s", err.text);
}

static void good(void **state)
{
    (void)state;
    opens(start(false, (leave){.types = false}));
    opens(start(true, (leave){.types = false}));
    opens(start(false, (leave){.types = true})); /* all normal */
    gguf_writer *w = start(false, (leave){.tokens = true});
    const char *const empty[N] = {"", "a", "b", "ab"}; /* an empty text is never matched */
    gguf_add_strs(w, KEY("tokens"), N, empty);
    opens(w);
    w = start(false, (leave){.merges = true});
    gguf_add_strs(w, KEY("merges"), 0, NULL);
    opens(w);
}

static void tokens_and_model(void **state)
{
    (void)state;
    refused(start(false, (leave){.model = true}), VQ_ERR_MISSING_KEY, KEY("model"), "");
    gguf_writer *w = start(false, (leave){.model = true});
    gguf_add_str(w, KEY("model"), "bert");
    refused(w, VQ_ERR_UNSUPPORTED, KEY("model"), "bert");
    w = start(false, (leave){.model = true});
    gguf_add_u32(w, KEY("model"), 7);
    refused(w, VQ_ERR_TYPE, KEY("model"), "");
    w = start(false, (leave){.types = false});
    gguf_add_str(w, KEY("pre"), "new-regex");
    refused(w, VQ_ERR_UNSUPPORTED, KEY("pre"), "new-regex");

    refused(start(false, (leave){.tokens = true}), VQ_ERR_MISSING_KEY, KEY("tokens"), "");
    w = start(false, (leave){.tokens = true, .types = true});
    gguf_add_strs(w, KEY("tokens"), 0, NULL);
    refused(w, VQ_ERR_VOCAB, KEY("tokens"), "0");
    w = start(false, (leave){.tokens = true});
    gguf_add_array(w, KEY("tokens"), VQ_GGUF_I32, N, types);
    refused(w, VQ_ERR_TYPE, KEY("tokens"), "");
    w = start(false, (leave){.tokens = true});
    gguf_add_str(w, KEY("tokens"), "a");
    refused(w, VQ_ERR_TYPE, KEY("tokens"), "");
    w = start(false, (leave){.types = false});
    const float rows[2 * 5] = {0};
    gguf_add_tensor(w, "token_embd.weight", VQ_TYPE_F32, 2, (uint64_t[]){2, 5}, rows);
    refused(w, VQ_ERR_VOCAB, "token_embd.weight", "5");
}

static void parallel_arrays(void **state)
{
    (void)state;
    gguf_writer *w = start(false, (leave){.types = true});
    gguf_add_array(w, KEY("token_type"), VQ_GGUF_I32, N - 1, types);
    refused(w, VQ_ERR_VOCAB, KEY("token_type"), "3");
    w = start(false, (leave){.types = true});
    gguf_add_array(w, KEY("token_type"), VQ_GGUF_F32, N, scores);
    refused(w, VQ_ERR_TYPE, KEY("token_type"), "");
    const int32_t unknown_types[2][N] = {{2, 1, 1, 7}, {2, 1, 1, -1}};
    for (int i = 0; i < 2; i++) {
        w = start(false, (leave){.types = true});
        gguf_add_array(w, KEY("token_type"), VQ_GGUF_I32, N, unknown_types[i]);
        refused(w, VQ_ERR_VOCAB, KEY("token_type[3]"), i ? "4294967295" : "7");
    }

    refused(start(true, (leave){.scores = true}), VQ_ERR_MISSING_KEY, KEY("scores"), "");
    w = start(true, (leave){.scores = true});
    gguf_add_array(w, KEY("scores"), VQ_GGUF_F32, N - 1, scores);
    refused(w, VQ_ERR_VOCAB, KEY("scores"), "3");
    w = start(true, (leave){.scores = true});
    gguf_add_array(w, KEY("scores"), VQ_GGUF_I32, N, types);
    refused(w, VQ_ERR_TYPE, KEY("scores"), "");
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < 3; i++) {
        const float with_bad[N] = {0, 0, bad[i], 0};
        w = start(true, (leave){.scores = true});
        gguf_add_array(w, KEY("scores"), VQ_GGUF_F32, N, with_bad);
        refused(w, VQ_ERR_NONFINITE, KEY("scores[2]"), "");
    }
}

static void merge_lists(void **state)
{
    (void)state;
    refused(start(false, (leave){.merges = true}), VQ_ERR_MISSING_KEY, KEY("merges"), "");
    /* No separator, two, an empty part, a part or a result that is no token, a character that stands for no byte. */
    static const char *const bad[] = {"ab",  "",    "a  b", "a b c",         " b", "a ", " ",
                                      "a c", "c a", "b a",  "a \xE4\xBD\xA0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        gguf_writer *w = start(false, (leave){.merges = true});
        const char *const list[] = {"a b", bad[i]};
        gguf_add_strs(w, KEY("merges"), 2, list);
        refused(w, VQ_ERR_VOCAB, KEY("merges[1]"), bad[i]);
    }
    gguf_writer *w = start(false, (leave){.merges = true});
    gguf_add_array(w, KEY("merges"), VQ_GGUF_I32, N, types);
    refused(w, VQ_ERR_TYPE, KEY("merges"), "");
}

static void special_ids(void **state)
{
    (void)state;
    static const char *const keys[] = {KEY("bos_token_id"), KEY("eos_token_id"), KEY("unknown_token_id"),
                                       KEY("eot_token_id"), KEY("eom_token_id")};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        gguf_writer *w = start(i % 2, (leave){.types = false});
        gguf_add_u32(w, keys[i], N);
        refused(w, VQ_ERR_VOCAB, keys[i], "4");
        w = start(i % 2, (leave){.types = false});
        gguf_add_i32(w, keys[i], -1);
        refused(w, VQ_ERR_VALUE, keys[i], "");
        w = start(i % 2, (leave){.types = false});
        gguf_add_str(w, keys[i], "1");
        refused(w, VQ_ERR_TYPE, keys[i], "");
        w = start(i % 2, (leave){.types = false});
        gguf_add_u32(w, keys[i], N - 1);
        opens(w);
    }
    gguf_writer *w = start(false, (leave){.types = false});
    gguf_add_u32(w, KEY("add_bos_token"), 1);
    refused(w, VQ_ERR_TYPE, KEY("add_bos_token"), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(good), cmocka_unit_test(tokens_and_model),
                                       cmocka_unit_test(parallel_arrays), cmocka_unit_test(merge_lists),
                                       cmocka_unit_test(special_ids)};
    return cmocka_run_group_tests_name("vocab_faults", tests, NULL, NULL);
}
