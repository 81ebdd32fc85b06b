/* The reader on files made for the purpose: every kind of value, lookups, typed reads, and files cut at every length
 * and damaged at every byte of the header. Files with known faults: tests/cases/test_gguf_bad.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/toy_model.h"

static gguf_buffer every_kind(uint32_t alignment)
{
    gguf_writer *w = gguf_writer_new(alignment);
    gguf_add_u8(w, "a.u8", 200);
    gguf_add_i8(w, "a.i8", -100);
    gguf_add_u16(w, "a.u16", 60000);
    gguf_add_i16(w, "a.i16", 30000);
    gguf_add_u32(w, "a.u32", 4000000000u);
    gguf_add_i32(w, "a.i32", -7);
    gguf_add_u64(w, "a.u64", (uint64_t)1 << 40);
    gguf_add_i64(w, "a.i64", 123456789);
    gguf_add_u64(w, "a.u64_max", UINT64_MAX);
    gguf_add_f32(w, "a.f32", 2.5f);
    gguf_add_f64(w, "a.f64", -0.125);
    gguf_add_f64(w, "a.f64_large", 1e300);
    gguf_add_f32(w, "a.nan", NAN);
    gguf_add_bool(w, "a.true", true);
    gguf_add_bool(w, "a.false", false);
    gguf_add_str(w, "a.string", "hello");
    gguf_add_str(w, "a.empty", "");
    gguf_add_raw(w, "a.nul", VQ_GGUF_STRING, "\3\0\0\0\0\0\0\0x\0y", 11);
    gguf_add_strs(w, "b.strings", 3, (const char *const[]){"one", "", "three"});
    gguf_add_strs(w, "b.no_strings", 0, NULL);
    gguf_add_array(w, "b.i32", VQ_GGUF_I32, 2, (int32_t[]){-1, 70000});
    gguf_add_array(w, "b.bool", VQ_GGUF_BOOL, 3, "\1\0\1");
    gguf_add_array(w, "b.none", VQ_GGUF_F64, 0, NULL);
    gguf_add_tensor(w, "t.f32", VQ_TYPE_F32, 2, (uint64_t[]){3, 2}, (float[]){1, 2, 3, 4, 5, 6});
    gguf_add_tensor(w, "t.f16", VQ_TYPE_F16, 1, (uint64_t[]){1}, (uint16_t[]){0x3c00});
    gguf_add_tensor(w, "t.q8_0", VQ_TYPE_Q8_0, 4, (uint64_t[]){32, 1, 2, 1}, (uint8_t[68]){0});
    return gguf_writer_finish(w);
}

static vq_gguf *open_buffer(gguf_buffer b)
{
    vq_gguf *g;
    vq_error err = {0};
    if (vq_gguf_open_memory(&g, "test", b.bytes, b.n_bytes, &err) != VQ_OK)
        fail_msg("%s", err.text);
    return g;
}

static bool is(vq_str s, const char *text, size_t n) { return s.n_bytes == n && !memcmp(s.at, text, n); }

static void values_and_tensors(void **state)
{
    (void)state;
    static const uint32_t alignments[] = {8, 32, 64, 4096};
    for (unsigned i = 0; i < 4; i++) {
        gguf_buffer b = every_kind(alignments[i]);
        vq_gguf *g = open_buffer(b);
        assert_int_equal(vq_gguf_alignment(g), alignments[i]);
        assert_int_equal(vq_gguf_version(g), 3);
        assert_int_equal(vq_gguf_file_bytes(g), b.n_bytes);
        assert_string_equal(vq_gguf_path(g), "test");
        assert_int_equal(vq_gguf_n_values(g), 23 + (alignments[i] != 32));
        assert_int_equal(vq_gguf_n_tensors(g), 3);
        assert_null(vq_gguf_value_at(g, vq_gguf_n_values(g)));
        assert_null(vq_gguf_tensor_at(g, 3));

        for (uint64_t k = 0; k < vq_gguf_n_values(g); k++) { /* each is found by its name */
            char key[64];
            const vq_gguf_value *v = vq_gguf_value_at(g, k);
            snprintf(key, sizeof key, "%.*s", (int)v->key.n_bytes, v->key.at);
            assert_ptr_equal(vq_gguf_find(g, key), v);
        }
        assert_null(vq_gguf_find(g, "a.u"));
        assert_null(vq_gguf_find(g, "a.u88"));
        assert_null(vq_gguf_find(g, ""));

        const vq_gguf_value *v = vq_gguf_find(g, "b.strings");
        assert_int_equal(v->kind, VQ_GGUF_ARRAY);
        assert_int_equal(v->array_kind, VQ_GGUF_STRING);
        assert_int_equal(v->n, 3);
        assert_true(is(v->strings[0], "one", 3) && is(v->strings[1], "", 0) && is(v->strings[2], "three", 5));
        v = vq_gguf_find(g, "b.no_strings");
        assert_int_equal(v->n, 0);
        v = vq_gguf_find(g, "b.i32");
        assert_int_equal(v->array_kind, VQ_GGUF_I32);
        assert_memory_equal(v->raw, ((int32_t[]){-1, 70000}), 8);
        v = vq_gguf_find(g, "a.string");
        assert_int_equal(v->n, 1);
        assert_true(is(v->strings[0], "hello", 5));

        const vq_tensor *t = vq_gguf_tensor(g, "t.f32");
        assert_true(is(t->name, "t.f32", 5));
        assert_int_equal(t->type, VQ_TYPE_F32);
        assert_int_equal(t->n_dims, 2);
        assert_true(t->dims[0] == 3 && t->dims[1] == 2 && t->dims[2] == 1 && t->dims[3] == 1);
        assert_int_equal(t->n_bytes, 24);
        assert_memory_equal(t->data, ((float[]){1, 2, 3, 4, 5, 6}), 24);
        assert_int_equal(((const uint8_t *)t->data - b.bytes) % alignments[i], 0);
        t = vq_gguf_tensor(g, "t.q8_0");
        assert_int_equal(t->n_bytes, 68);
        assert_null(vq_gguf_tensor(g, "t.f3"));
        vq_gguf_close(g);
        free(b.bytes);
    }
}

static void check_u32(const vq_gguf *g, const char *key, vq_status status, uint32_t want)
{
    uint32_t x = 12;
    vq_error err;
    assert_int_equal(vq_gguf_get_u32(g, key, &x, &err), status);
    assert_int_equal(x, status == VQ_OK ? want : 12);
    if (status != VQ_OK)
        assert_true(strstr(err.text, key) && strstr(err.text, "test: "));
}

static void check_f32(const vq_gguf *g, const char *key, vq_status status, float want)
{
    float x = 12;
    vq_error err;
    assert_int_equal(vq_gguf_get_f32(g, key, &x, &err), status);
    assert_true(x == (status == VQ_OK ? want : 12));
    if (status != VQ_OK)
        assert_true(strstr(err.text, key) && strstr(err.text, "test: "));
}

static void typed_reads(void **state)
{
    (void)state;
    gguf_buffer b = every_kind(32);
    vq_gguf *g = open_buffer(b);
    check_u32(g, "a.u8", VQ_OK, 200);
    check_u32(g, "a.i8", VQ_ERR_VALUE, 0);
    check_u32(g, "a.u16", VQ_OK, 60000);
    check_u32(g, "a.i16", VQ_OK, 30000);
    check_u32(g, "a.u32", VQ_OK, 4000000000u);
    check_u32(g, "a.i32", VQ_ERR_VALUE, 0);
    check_u32(g, "a.u64", VQ_ERR_VALUE, 0);
    check_u32(g, "a.u64_max", VQ_ERR_VALUE, 0);
    check_u32(g, "a.i64", VQ_OK, 123456789);
    check_u32(g, "a.f32", VQ_ERR_TYPE, 0);
    check_u32(g, "a.true", VQ_ERR_TYPE, 0);
    check_u32(g, "b.i32", VQ_ERR_TYPE, 0);
    check_u32(g, "a.gone", VQ_ERR_MISSING_KEY, 0);

    check_f32(g, "a.f32", VQ_OK, 2.5f);
    check_f32(g, "a.f64", VQ_OK, -0.125f);
    check_f32(g, "a.f64_large", VQ_ERR_VALUE, 0);
    check_f32(g, "a.nan", VQ_ERR_VALUE, 0);
    check_f32(g, "a.u32", VQ_ERR_TYPE, 0);
    check_f32(g, "a.gone", VQ_ERR_MISSING_KEY, 0);

    bool flag = false;
    assert_int_equal(vq_gguf_get_bool(g, "a.true", &flag, NULL), VQ_OK);
    assert_true(flag);
    assert_int_equal(vq_gguf_get_bool(g, "a.false", &flag, NULL), VQ_OK);
    assert_false(flag);
    assert_int_equal(vq_gguf_get_bool(g, "a.u8", &flag, NULL), VQ_ERR_TYPE);
    assert_int_equal(vq_gguf_get_bool(g, "a.gone", &flag, NULL), VQ_ERR_MISSING_KEY);

    vq_str s;
    assert_int_equal(vq_gguf_get_str(g, "a.string", &s, NULL), VQ_OK);
    assert_true(is(s, "hello", 5));
    assert_int_equal(vq_gguf_get_str(g, "a.empty", &s, NULL), VQ_OK);
    assert_int_equal(s.n_bytes, 0);
    assert_int_equal(vq_gguf_get_str(g, "a.nul", &s, NULL), VQ_OK);
    assert_true(is(s, "x\0y", 3));
    assert_int_equal(vq_gguf_get_str(g, "b.strings", &s, NULL), VQ_ERR_TYPE);
    assert_int_equal(vq_gguf_get_str(g, "a.gone", &s, NULL), VQ_ERR_MISSING_KEY);
    vq_gguf_close(g);
    free(b.bytes);
}

static void toy_models_open(void **state)
{
    (void)state;
    for (toy_family f = 0; f < N_TOY_FAMILIES; f++) {
        toy_params p;
        toy_params_init(&p, f);
        gguf_buffer b = toy_model_make(&p);
        vq_gguf *g = open_buffer(b);
        assert_int_equal(vq_gguf_find(g, "tokenizer.ggml.tokens")->n, TOY_MIN_VOCAB);
        assert_non_null(vq_gguf_tensor(g, "blk.1.ffn_down.weight"));
        vq_gguf_close(g);
        free(b.bytes);
    }
}

static volatile uint8_t sink; /* what is accepted can be read */

static vq_status open_status(const uint8_t *bytes, size_t n, vq_error *err)
{
    /* A fresh block of exactly n bytes: sanitizers watch its end. */
    uint8_t *copy = malloc(n + !n);
    assert_non_null(copy);
    if (n)
        memcpy(copy, bytes, n);
    vq_gguf *g = (vq_gguf *)(uintptr_t)8;
    const vq_status status = vq_gguf_open_memory(&g, "damaged", copy, n, err);
    if (status == VQ_OK) {
        for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
            const vq_tensor *t = vq_gguf_tensor_at(g, i);
            sink = ((const uint8_t *)t->data)[0] ^ ((const uint8_t *)t->data)[t->n_bytes - 1];
        }
        vq_gguf_close(g);
    } else {
        assert_null(g);
        assert_int_equal(err->status, status);
        assert_int_equal(strncmp(err->text, "damaged: ", 9), 0);
    }
    free(copy);
    return status;
}

static void cut_at_every_length(void **state)
{
    (void)state;
    gguf_buffer b = every_kind(32);
    vq_error err;
    assert_int_equal(open_status(b.bytes, b.n_bytes, &err), VQ_OK);
    for (size_t n = 0; n < b.n_bytes; n++) {
        const vq_status status = open_status(b.bytes, n, &err);
        if (status != VQ_ERR_TRUNCATED && status != VQ_ERR_BOUNDS)
            fail_msg("cut to %zu of %zu bytes: %s", n, b.n_bytes, status ? err.text : "accepted");
    }
    free(b.bytes);
}

static void damaged_at_every_byte(void **state)
{
    (void)state;
    static const uint8_t wrong[] = {0, 1, 0x7f, 0x80, 0xff};
    gguf_buffer b = every_kind(32);
    vq_error err;
    unsigned n_refused = 0;
    for (size_t i = 0; i < b.n_bytes; i++) {
        const uint8_t right = b.bytes[i];
        for (unsigned k = 0; k < sizeof wrong; k++) {
            b.bytes[i] = wrong[k];
            n_refused += open_status(b.bytes, b.n_bytes, &err) != VQ_OK;
        }
        b.bytes[i] = right;
    }
    print_message("%u of %zu damaged files refused\n", n_refused, b.n_bytes * sizeof wrong);
    assert_true(n_refused > b.n_bytes);
    free(b.bytes);
}

static void check_refused(gguf_writer *w, vq_status want, const char *word)
{
    gguf_buffer b = gguf_writer_finish(w);
    vq_error err = {0};
    assert_int_equal(open_status(b.bytes, b.n_bytes, &err), want);
    if (!strstr(err.text, word))
        fail_msg("'%s' does not say '%s'", err.text, word);
    free(b.bytes);
}

static gguf_writer *with_alignment(uint32_t alignment)
{
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_u32(w, "general.alignment", alignment);
    return w;
}

static gguf_writer *with_tensor(vq_type type, uint32_t n_dims, const uint64_t *dims)
{
    static const uint8_t zeros[1024];
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_tensor(w, "t", type, n_dims, dims, zeros);
    return w;
}

/* Faults that the collection in tests/cases does not have. */
static void more_faults(void **state)
{
    (void)state;
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_u32(w, "same", 1);
    gguf_add_u32(w, "other", 1);
    gguf_add_f32(w, "same", 1);
    check_refused(w, VQ_ERR_DUPLICATE, "'same' occurs twice");

    w = with_tensor(VQ_TYPE_F32, 1, (uint64_t[]){1});
    gguf_add_tensor(w, "t", VQ_TYPE_F32, 1, (uint64_t[]){1}, (float[]){1});
    check_refused(w, VQ_ERR_DUPLICATE, "'t' occurs twice");

    w = gguf_writer_new(32);
    gguf_add_u32(w, "", 1);
    check_refused(w, VQ_ERR_KEY, "empty");
    w = gguf_writer_new(32);
    gguf_add_u32(w, "with space", 1);
    check_refused(w, VQ_ERR_KEY, "0x20 at 4");
    w = gguf_writer_new(32);
    gguf_add_u32(w, "a\nb", 1);
    check_refused(w, VQ_ERR_KEY, "'a?b'");

    check_refused(with_alignment(48), VQ_ERR_ALIGN, "48");
    check_refused(with_alignment(4), VQ_ERR_ALIGN, "power of two in 8 ..");
    check_refused(with_alignment(1u << 31), VQ_ERR_ALIGN, "2147483648");

    check_refused(with_tensor(VQ_TYPE_Q8_0, 1, (uint64_t[]){48}), VQ_ERR_SHAPE, "48 values are no multiple of the 32");
    check_refused(with_tensor(VQ_TYPE_Q4_K, 2, (uint64_t[]){128, 2}), VQ_ERR_SHAPE, "multiple of the 256 in a Q4_K");
    check_refused(with_tensor(VQ_TYPE_F32, 0, (uint64_t[]){1}), VQ_ERR_SHAPE, "0 dimensions");

    w = gguf_writer_new(32);
    gguf_add_raw(w, "b", VQ_GGUF_ARRAY, "\7\0\0\0\2\0\0\0\0\0\0\0\1\2", 14);
    check_refused(w, VQ_ERR_VALUE, "'b' holds a bool of 2");
    w = gguf_writer_new(32);
    gguf_add_u16(w, "split.count", 3);
    gguf_add_u16(w, "split.no", 1);
    check_refused(w, VQ_ERR_SPLIT, "part 2 of a model in 3 files");
    w = gguf_writer_new(32);
    gguf_add_str(w, "split.count", "3");
    check_refused(w, VQ_ERR_TYPE, "split.count");

    char key[70000];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    w = gguf_writer_new(32);
    gguf_add_u32(w, key, 1);
    check_refused(w, VQ_ERR_LIMIT, "69999 bytes, at most 65535");
    key[65535] = 0; /* the longest key, and a message about it still says what is wrong */
    w = gguf_writer_new(32);
    gguf_add_raw(w, key, 13, NULL, 0);
    check_refused(w, VQ_ERR_TYPE, "value type 13");
}

static void one_file_is_no_split(void **state)
{
    (void)state;
    gguf_writer *w = gguf_writer_new(32);
    gguf_add_u16(w, "split.count", 1);
    gguf_buffer b = gguf_writer_finish(w);
    vq_gguf_close(open_buffer(b));
    free(b.bytes);
}

static void overlap_is_found_in_any_order(void **state)
{
    (void)state;
    gguf_writer *w = gguf_writer_new(32);
    float data[64] = {0};
    gguf_add_tensor(w, "t.a", VQ_TYPE_F32, 1, (uint64_t[]){16}, data);
    gguf_add_tensor(w, "t.b", VQ_TYPE_F32, 1, (uint64_t[]){16}, data);
    gguf_add_tensor(w, "t.c", VQ_TYPE_F32, 1, (uint64_t[]){16}, data);
    gguf_buffer b = gguf_writer_finish(w);
    vq_error err;
    /* Records of 8 + 3 + 4 + 8 + 4 + 8 bytes behind a header of 24; the offset is the last 8. */
    for (uint64_t offset = 0; offset <= 192; offset += 32) {
        for (unsigned i = 0; i < 3; i++) {
            uint64_t right;
            uint8_t *at = b.bytes + 24 + 35 * (i + 1) - 8;
            memcpy(&right, at, 8);
            memcpy(at, &offset, 8);
            const vq_status want = offset == right ? VQ_OK
                                   : offset == 192 ? VQ_ERR_BOUNDS
                                   : offset == 160 ? VQ_ERR_BOUNDS
                                                   : VQ_ERR_OVERLAP;
            assert_int_equal(open_status(b.bytes, b.n_bytes, &err), want);
            memcpy(at, &right, 8);
        }
    }
    free(b.bytes);
}

static void product_of_dimensions(void **state)
{
    (void)state;
    static const uint64_t large[][4] = {
        {(uint64_t)1 << 32, (uint64_t)1 << 32, 1, 1},
        {(uint64_t)1 << 62, 1, 1, 4},
        {32, (uint64_t)1 << 59, 1, 1},
        {INT64_MAX, 1, 1, 1},
        {(uint64_t)1 << 31, (uint64_t)1 << 31, 1 << 30, 16},
        {4, 1, (uint64_t)1 << 62, 1},
    };
    gguf_buffer b = gguf_writer_finish(with_tensor(VQ_TYPE_F32, 4, (uint64_t[]){1, 1, 1, 1}));
    vq_error err;
    for (unsigned i = 0; i < sizeof large / sizeof *large; i++) {
        memcpy(b.bytes + 24 + 8 + 1 + 4, large[i], 32);
        assert_int_equal(open_status(b.bytes, b.n_bytes, &err), VQ_ERR_OVERFLOW);
        assert_non_null(strstr(err.text, "'t'"));
    }
    memcpy(b.bytes + 24 + 8 + 1 + 4, (uint64_t[]){1, 1, 1, (uint64_t)1 << 59}, 32);
    assert_int_equal(open_status(b.bytes, b.n_bytes, &err), VQ_ERR_BOUNDS); /* fits in a number, not in the file */
    free(b.bytes);
}

/* Checks must not make real vocabularies slow: 262144 tokens open in 2 ms, names in reverse order are sorted in time,
 * and the limits here leave room for sanitizers and a busy machine. */
static void large_files_are_fast(void **state)
{
    (void)state;
    enum { N_TOKENS = 262144, N_KEYS = 100000, TEXT_BYTES = 16 };
    const char **texts = malloc(N_TOKENS * sizeof *texts);
    char(*text)[TEXT_BYTES] = malloc(N_TOKENS * sizeof *text);
    assert_true(texts && text);
    gguf_writer *w = gguf_writer_new(32);
    for (unsigned i = 0; i < N_TOKENS; i++) {
        snprintf(text[i], TEXT_BYTES, "token%u", i);
        texts[i] = text[i];
    }
    gguf_add_strs(w, "tokens", N_TOKENS, texts);
    for (unsigned i = N_KEYS; i-- > 0;) {
        char key[32];
        snprintf(key, sizeof key, "key.%06u", i);
        gguf_add_u8(w, key, 1);
    }
    gguf_buffer b = gguf_writer_finish(w);
    free(texts);
    free(text);

    const clock_t start = clock();
    vq_gguf *g = open_buffer(b);
    const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    print_message("%.1f ms\n", 1e3 * seconds);
    assert_true(seconds < 2);
    assert_true(is(vq_gguf_find(g, "tokens")->strings[N_TOKENS - 1], "token262143", 11));
    assert_non_null(vq_gguf_find(g, "key.000000"));
    vq_gguf_close(g);
    free(b.bytes);
}

static void arguments(void **state)
{
    (void)state;
    vq_gguf *g = (vq_gguf *)(uintptr_t)8;
    vq_error err;
    _Alignas(8) uint8_t bytes[64] = {0};
    assert_int_equal(vq_gguf_open(&g, "/nonexistent/model.gguf", &err), VQ_ERR_IO);
    assert_null(g);
    assert_non_null(strstr(err.text, "/nonexistent/model.gguf"));
    assert_int_equal(vq_gguf_open(&g, "/tmp", &err), VQ_ERR_IO);
    assert_int_equal(vq_gguf_open(NULL, "x", &err), VQ_ERR_ARG);
    assert_int_equal(vq_gguf_open(&g, NULL, &err), VQ_ERR_ARG);
    assert_int_equal(vq_gguf_open_memory(&g, "x", NULL, 3, &err), VQ_ERR_ARG);
    assert_int_equal(vq_gguf_open_memory(&g, "x", NULL, 0, &err), VQ_ERR_TRUNCATED);
    assert_int_equal(vq_gguf_open_memory(&g, "x", bytes + 1, 63, &err), VQ_ERR_ARG);
    assert_null(g);
    vq_gguf_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_tensors),
        cmocka_unit_test(typed_reads),
        cmocka_unit_test(toy_models_open),
        cmocka_unit_test(cut_at_every_length),
        cmocka_unit_test(damaged_at_every_byte),
        cmocka_unit_test(more_faults),
        cmocka_unit_test(one_file_is_no_split),
        cmocka_unit_test(overlap_is_found_in_any_order),
        cmocka_unit_test(product_of_dimensions),
        cmocka_unit_test(large_files_are_fast),
        cmocka_unit_test(arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
