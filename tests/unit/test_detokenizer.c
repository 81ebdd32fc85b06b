/* UTF-8: which parts are ill formed, and that a stream gives the same text whatever pieces it comes in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "support/files.h"
#include "tokenizer/utf8.h"
#include "veloxquant/tokenizer.h"

static size_t unhex(const char *hex, char *out)
{
    size_t n = 0;
    for (unsigned byte; sscanf(hex + 2 * n, "%2x", &byte) == 1; n++)
        out[n] = (char)byte;
    return n;
}

static size_t count(const char *text, size_t n, const char *what)
{
    size_t found = 0;
    const size_t len = strlen(what);
    for (size_t i = 0; i + len <= n; i++)
        found += memcmp(text + i, what, len) == 0;
    return found;
}

/* As many U+FFFD as Python's errors="replace" gives. */
static void replaces_as_python(void **state)
{
    (void)state;
    char line[4096];
    FILE *f = fopen(source_path("tests/cases/tokens_invalid_utf8.jsonl"), "r");
    assert_non_null(f);
    int n_cases = 0;
    for (; fgets(line, sizeof line, f); n_cases++) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        const char *repr = json_string_value(json_object_get(object, "py_replace"));
        char bytes[64], out[256];
        const size_t n = unhex(json_string_value(json_object_get(object, "hex")), bytes);
        const size_t len = vq_utf8_clean(out, bytes, n);
        assert_int_equal(len, vq_utf8_clean_len(bytes, n));
        assert_int_equal(count(out, len, "\xEF\xBF\xBD"), count(repr, strlen(repr), "\\ufffd"));
        assert_int_equal(vq_utf8_valid_len(out, len), len);
        json_decref(object);
    }
    fclose(f);
    assert_int_equal(n_cases, 22);
}

/* Every code point is one character; what lies between them is not. */
static void all_code_points(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char b[4];
        uint32_t n = 0, used, code;
        if (c < 0x80) {
            b[n++] = (char)c;
        } else if (c < 0x800) {
            b[n++] = (char)(0xC0 | c >> 6);
        } else if (c < 0x10000) {
            b[n++] = (char)(0xE0 | c >> 12);
            b[n++] = (char)(0x80 | (c >> 6 & 0x3F));
        } else {
            b[n++] = (char)(0xF0 | c >> 18);
            b[n++] = (char)(0x80 | (c >> 12 & 0x3F));
            b[n++] = (char)(0x80 | (c >> 6 & 0x3F));
        }
        if (c >= 0x80)
            b[n++] = (char)(0x80 | (c & 0x3F));
        if (c >= 0xD800 && c < 0xE000) {
            assert_int_equal(vq_utf8_next(b, n, &used, &code), VQ_UTF8_BAD);
            assert_int_equal(used, 1);
            continue;
        }
        assert_int_equal(vq_utf8_next(b, n, &used, &code), VQ_UTF8_CHAR);
        assert_int_equal(used, n);
        assert_int_equal(code, c);
        assert_int_equal(vq_utf8_len(b[0]), n);
        for (uint32_t k = 1; k < n; k++) {
            assert_int_equal(vq_utf8_next(b, k, &used, &code), VQ_UTF8_SHORT);
            assert_int_equal(used, k);
        }
    }
}

/* Random bytes, mostly those that begin or continue characters. */
static size_t random_bytes(vq_rng *rng, char *out, size_t most)
{
    static const uint8_t likely[] = {0x80, 0xBF, 0x9F, 0xA0, 0x90, 0x8F, 0xC2, 0xDF, 0xE0,
                                     0xE1, 0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xC0, 'a',  0};
    const size_t n = vq_rng_next(rng) % (most + 1);
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = vq_rng_next(rng);
        out[i] = (char)(r % 8 ? likely[r / 8 % sizeof likely] : r >> 32);
    }
    return n;
}

static void any_pieces_same_text(void **state)
{
    (void)state;
    vq_rng rng;
    vq_rng_seed(&rng, 4);
    for (int round = 0; round < 20000; round++) {
        char bytes[40], want[120], got[200];
        const size_t n = random_bytes(&rng, bytes, sizeof bytes);
        const size_t n_want = vq_utf8_clean(want, bytes, n);
        vq_detokenizer d = {.n_held = 0};
        size_t n_got = 0;
        for (size_t at = 0; at < n;) {
            const size_t left = n - at, piece = 1 + vq_rng_next(&rng) % (left < 7 ? left : 7);
            char *out = malloc(3 * piece + 12); /* the room that the header asks for, for sanitizers */
            const size_t len = vq_detokenizer_push(&d, bytes + at, piece, out);
            assert_int_equal(vq_utf8_valid_len(out, len), len);
            memcpy(got + n_got, out, len);
            free(out);
            n_got += len;
            at += piece;
        }
        n_got += vq_detokenizer_finish(&d, got + n_got);
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, n_want);
        assert_int_equal(vq_detokenizer_finish(&d, got), 0);
    }
}

static void strips_white_space(void **state)
{
    (void)state;
    static const struct {
        const char *text, *stripped;
    } cases[] = {
        {"", ""},
        {"  \n\t ", ""},
        {" a b ", "a b"},
        {"\xC2\xA0x\xE3\x80\x80", "x"},
        {"x\xE2\x80\xA8", "x"},
        {"\x80 ", "\x80"},
        {" \xE3\x80", "\xE3\x80"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = cases[i].text;
        size_t n = strlen(at);
        vq_utf8_strip(&at, &n);
        assert_int_equal(n, strlen(cases[i].stripped));
        assert_memory_equal(at, cases[i].stripped, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(replaces_as_python), cmocka_unit_test(all_code_points),
                                       cmocka_unit_test(any_pieces_same_text), cmocka_unit_test(strips_white_space)};
    return cmocka_run_group_tests_name("detokenizer", tests, NULL, NULL);
}
