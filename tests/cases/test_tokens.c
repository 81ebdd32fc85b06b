/* Exact token ids of the real vocabularies, on cases that three independent tokenisers agree about; one model a run,
 * named by the first argument.  Without the model: skipped (77). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "support/files.h"
#include "veloxquant/tokenizer.h"

static vq_tokenizer *tokenizer;

static void print_ids(const char *what, const int32_t *ids, size_t n)
{
    print_error("  %s (%zu):", what, n);
    for (size_t i = 0; i < n && i < 40; i++)
        print_error(" %d", ids[i]);
    print_error("\n");
}

/* Tokenises and compares; returns whether the ids are those of the JSON array. */
static bool same_ids(const char *text, size_t n_bytes, unsigned flags, const json_t *wanted)
{
    int32_t *ids, want[1024];
    size_t n;
    vq_error err;
    if (vq_tokenize(tokenizer, text, n_bytes, flags, &ids, &n, &err) != VQ_OK)
        fail_msg("%s", err.text);
    const size_t n_want = json_array_size(wanted);
    assert_true(n_want <= sizeof want / sizeof *want);
    for (size_t i = 0; i < n_want; i++)
        want[i] = (int32_t)json_integer_value(json_array_get(wanted, i));
    const bool same = n == n_want && memcmp(ids, want, n * sizeof *ids) == 0;
    if (!same) {
        print_error("flags %u, text \"%.*s\":\n", flags, (int)n_bytes, text);
        print_ids("got", ids, n);
        print_ids("want", want, n_want);
    }
    vq_free(ids);
    return same;
}

/* Calls `check` for each line of a file under tests/cases. */
static void each_case(const char *name, int at_least, bool (*check)(const json_t *))
{
    char path[256], line[65536];
    snprintf(path, sizeof path, "tests/cases/%s", name);
    FILE *f = fopen(source_path(path), "r");
    assert_non_null(f);
    int n_cases = 0, n_wrong = 0;
    while (fgets(line, sizeof line, f)) {
        json_error_t bad;
        json_t *object = json_loads(line, JSON_ALLOW_NUL, &bad);
        if (!object)
            fail_msg("%s: %s", name, bad.text);
        n_wrong += !check(object);
        n_cases++;
        json_decref(object);
    }
    fclose(f);
    print_message("%s: %d cases, %d wrong\n", name, n_cases, n_wrong);
    assert_true(n_cases >= at_least);
    assert_int_equal(n_wrong, 0);
}

static bool check_ids(const json_t *object)
{
    const json_t *text = json_object_get(object, "text"), *ids = json_object_get(object, "ids");
    const json_t *plain = json_object_get(object, "ids_nospecial");
    const char *s = json_string_value(text);
    const size_t n = json_string_length(text);
    const bool parsed = same_ids(s, n, VQ_TOKENIZE_CONTROL, ids);
    return same_ids(s, n, 0, plain ? plain : ids) && parsed;
}

static size_t unhex(const char *hex, char *out)
{
    size_t n = 0;
    for (unsigned byte; sscanf(hex + 2 * n, "%2x", &byte) == 1; n++)
        out[n] = (char)byte;
    return n;
}

static bool check_invalid(const json_t *object)
{
    char bytes[64];
    const size_t n = unhex(json_string_value(json_object_get(object, "hex")), bytes);
    return same_ids(bytes, n, VQ_TOKENIZE_CONTROL, json_object_get(object, "hf_on_replacement"));
}

/* Tokens one by one: what has come out is always whole characters, and at the end the text. */
static bool check_streaming(const json_t *object)
{
    const json_t *text = json_object_get(object, "text"), *ids = json_object_get(object, "ids");
    const json_t *pieces = json_object_get(object, "pieces_hex");
    bool good = same_ids(json_string_value(text), json_string_length(text), 0, ids);
    char out[256];
    size_t n = 0;
    vq_detokenizer d = {0};
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const vq_str s = vq_token_bytes(tokenizer, (int32_t)json_integer_value(json_array_get(ids, i)), false);
        char piece[64];
        const size_t n_piece = unhex(json_string_value(json_array_get(pieces, i)), piece);
        good &= s.n_bytes == n_piece && memcmp(s.at, piece, n_piece) == 0;
        n += vq_detokenizer_push(&d, s.at, s.n_bytes, out + n);
        out[n] = '\0';
        json_t *valid = json_stringn(out, n); /* NULL for invalid UTF-8 */
        good &= valid != NULL && memcmp(out, json_string_value(text), n) == 0;
        json_decref(valid);
    }
    n += vq_detokenizer_finish(&d, out + n);
    return good && n == json_string_length(text) && memcmp(out, json_string_value(text), n) == 0;
}

static void smollm2_ids(void **state)
{
    (void)state;
    each_case("tokens_smollm2.jsonl", 80, check_ids);
}

static void gemma3_ids(void **state)
{
    (void)state;
    each_case("tokens_gemma3.jsonl", 80, check_ids);
}

static void invalid_utf8(void **state)
{
    (void)state;
    each_case("tokens_invalid_utf8.jsonl", 22, check_invalid);
}

static void streaming(void **state)
{
    (void)state;
    each_case("tokens_streaming.jsonl", 7, check_streaming);
}

/* The end of the stream after the first piece of an emoji: one U+FFFD. */
static void unfinished_stream(void **state)
{
    (void)state;
    vq_detokenizer d = {0};
    char out[64];
    const vq_str s = vq_token_bytes(tokenizer, 10813, false);
    assert_int_equal(s.n_bytes, 2);
    assert_int_equal(vq_detokenizer_push(&d, s.at, s.n_bytes, out), 0);
    assert_int_equal(vq_detokenizer_finish(&d, out), 3);
    assert_memory_equal(out, "\xEF\xBF\xBD", 3);
    assert_int_equal(vq_detokenizer_finish(&d, out), 0);
}

typedef struct run_case {
    const char *piece;
    size_t times, n_ids;
    int32_t first;
} run_case;

typedef struct run_result {
    const run_case *c;
    vq_status status;
    size_t n;
    int32_t first;
    double seconds;
} run_result;

static void *tokenize_run(void *arg)
{
    run_result *r = arg;
    const run_case *c = r->c;
    const size_t len = strlen(c->piece), n_bytes = len * c->times;
    char *text = malloc(n_bytes);
    for (size_t i = 0; i < n_bytes; i++)
        text[i] = c->piece[i % len];
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    int32_t *ids;
    r->status = vq_tokenize(tokenizer, text, n_bytes, VQ_TOKENIZE_CONTROL, &ids, &r->n, NULL);
    clock_gettime(CLOCK_MONOTONIC, &b);
    r->seconds = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    r->first = r->n > 0 ? ids[0] : VQ_NO_TOKEN;
    vq_free(ids);
    free(text);
    return NULL;
}

/* Peers overflowed the stack or took quadratic time here. */
static void long_runs_small_stack(void **state)
{
    (void)state;
    static const run_case cases[] = {
        {"A", 43000, 5375, 44843}, {"us", 20000, 20000, 376},   {"ab", 100000, 100000, 369},
        {" ", 50000, 782, 40686},  {"\n", 50000, 12500, 22342}, {"9", 50000, 50000, 41},
    };
    pthread_attr_t attr;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, 256 << 10), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const run_case *c = &cases[i];
        run_result r = {.c = c};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, &attr, tokenize_run, &r), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        print_message("\"%s\" x %zu: %zu ids, first %d, %.4f s\n", c->piece[0] == '\n' ? "\\n" : c->piece, c->times,
                      r.n, r.first, r.seconds);
        assert_int_equal(r.status, VQ_OK);
        assert_int_equal(r.n, c->n_ids);
        assert_int_equal(r.first, c->first);
        assert_true(r.seconds < 1.0);
    }
    pthread_attr_destroy(&attr);
}

/* Whole texts as tools/fetch-models leaves them, lines joined: number and hash of the ids that llama.cpp gives as well.
 */
static void whole_texts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t n[2];
        uint64_t hash[2]; /* of smollm2, gemma3 */
    } texts[] = {
        {"texts/alice29.txt", {37055, 35803}, {0x830b1d0a71bf2f1b, 0xabf38385316e729f}},
        {"texts/lcet10.txt", {84058, 80814}, {0xfc2d9d031a7f5a13, 0xeb2f9559b378a9e7}},
        {"texts/plrabn12.txt", {109092, 105032}, {0xe44010e82c344692, 0x505fd294c22d5702}},
    };
    const bool gemma = strcmp(vq_tokenizer_kind(tokenizer), "spm") == 0;
    char *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    int n_found = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        FILE *f = fopen(source_path(texts[i].name), "rb");
        if (!f)
            continue;
        const size_t n_bytes = fread(bytes, 1, 1 << 20, f);
        fclose(f);
        int32_t *ids;
        size_t n;
        assert_int_equal(vq_tokenize(tokenizer, bytes, n_bytes, VQ_TOKENIZE_CONTROL, &ids, &n, NULL), VQ_OK);
        const uint64_t hash = XXH3_64bits(ids, n * sizeof *ids);
        print_message("%s: %zu ids, hash %#llx\n", texts[i].name, n, (unsigned long long)hash);
        assert_int_equal(n, texts[i].n[gemma]);
        assert_true(hash == texts[i].hash[gemma]);
        vq_free(ids);
        n_found++;
    }
    free(bytes);
    if (n_found == 0)
        skip();
}

static void bos(void **state)
{
    (void)state;
    int32_t *ids;
    size_t n;
    const bool adds = vq_tokenizer_adds_bos(tokenizer);
    assert_int_equal(vq_tokenize(tokenizer, "", 0, VQ_TOKENIZE_BOS, &ids, &n, NULL), VQ_OK);
    assert_int_equal(n, adds);
    vq_free(ids);
    if (!adds)
        return;
    assert_int_equal(vq_tokenize(tokenizer, "<bos>hello", 10, VQ_TOKENIZE_BOS | VQ_TOKENIZE_CONTROL, &ids, &n, NULL),
                     VQ_OK);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], vq_tokenizer_bos(tokenizer));
    assert_int_equal(ids[1], 23391);
    vq_free(ids);
}

int main(int argc, char **argv)
{
    const bool gemma = argc > 1 && strcmp(argv[1], "gemma3") == 0;
    const char *path = model_path(gemma ? GEMMA3 : SMOLLM2);
    if (!path) {
        fprintf(stderr, "skipped: no %s in models/ or $VQ_MODELS\n", gemma ? GEMMA3 : SMOLLM2);
        return TEST_SKIPPED;
    }
    vq_gguf *gguf;
    vq_error err;
    if (vq_gguf_open(&gguf, path, &err) != VQ_OK || vq_tokenizer_open(&tokenizer, gguf, &err) != VQ_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    vq_gguf_close(gguf);
    const struct CMUnitTest smollm2_tests[] = {
        cmocka_unit_test(smollm2_ids),
        cmocka_unit_test(invalid_utf8),
        cmocka_unit_test(streaming),
        cmocka_unit_test(unfinished_stream),
        cmocka_unit_test(long_runs_small_stack),
        cmocka_unit_test(whole_texts),
        cmocka_unit_test(bos),
    };
    const struct CMUnitTest gemma3_tests[] = {cmocka_unit_test(gemma3_ids), cmocka_unit_test(whole_texts),
                                              cmocka_unit_test(bos)};
    const int n_failed = gemma ? cmocka_run_group_tests_name("gemma3", gemma3_tests, NULL, NULL)
                               : cmocka_run_group_tests_name("smollm2", smollm2_tests, NULL, NULL);
    vq_tokenizer_close(tokenizer);
    return n_failed != 0;
}
