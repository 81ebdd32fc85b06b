/* Stop strings: the result is a function of the text, whatever pieces it comes in.  The oracle looks at the whole text:
 * the first byte at which a string is complete ends it, before the longest string that is complete there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/stops.h"

struct got {
    char text[4096];
    size_t n;
    bool stopped;
};

/* Feeds `text` in pieces: of `piece` bytes, or of random lengths when it is 0. */
static struct got feed(const char *const *strings, size_t n, const char *text, size_t n_text, size_t piece, vq_rng *rng)
{
    vq_stops *s;
    vq_error err;
    struct got got = {.n = 0};
    assert_int_equal(vq_stops_open(&s, strings, n, &err), VQ_OK);
    char *out = malloc(n_text + vq_stops_most_held(s) + 1);
    size_t at = 0;
    while (at < n_text && !got.stopped) {
        size_t take = piece ? piece : vq_rng_next(rng) % 5;
        if (take > n_text - at)
            take = n_text - at;
        char *bytes = malloc(take ? take : 1); /* its own block: an over-read is seen by the sanitizer */
        memcpy(bytes, text + at, take);
        size_t n_out;
        got.stopped = vq_stops_push(s, bytes, take, out, &n_out);
        assert_true(n_out <= take + vq_stops_most_held(s));
        memcpy(got.text + got.n, out, n_out);
        got.n += n_out;
        free(bytes);
        at += take;
    }
    if (!got.stopped) {
        const size_t held = vq_stops_finish(s, out);
        assert_true(held <= vq_stops_most_held(s));
        memcpy(got.text + got.n, out, held);
        got.n += held;
    }
    free(out);
    vq_stops_close(s);
    return got;
}

static size_t oracle(const char *const *strings, size_t n, const char *text, size_t n_text, bool *stopped)
{
    *stopped = true;
    for (size_t end = 1; end <= n_text; end++) {
        size_t longest = 0;
        for (size_t k = 0; k < n; k++) {
            const size_t length = strlen(strings[k]);
            if (length <= end && length > longest && memcmp(text + end - length, strings[k], length) == 0)
                longest = length;
        }
        if (longest)
            return end - longest;
    }
    *stopped = false;
    return n_text;
}

static void check(const char *const *strings, size_t n, const char *text, size_t n_text, uint64_t seed)
{
    bool stopped;
    const size_t want = oracle(strings, n, text, n_text, &stopped);
    vq_rng rng;
    vq_rng_seed(&rng, seed);
    for (size_t piece = 0; piece <= n_text; piece++) {
        const struct got got = feed(strings, n, text, n_text, piece, &rng);
        if (got.n != want || got.stopped != stopped || memcmp(got.text, text, want) != 0)
            fail_msg("\"%.*s\" in pieces of %zu: got %zu bytes, stopped %d; want %zu, %d (seed %llu)", (int)n_text,
                     text, piece, got.n, got.stopped, want, stopped, (unsigned long long)seed);
    }
}

static void examples(void **state)
{
    (void)state;
    const struct {
        const char *text, *want, *stops[3];
        size_t n;
    } cases[] = {
        {"I J K L M N O P Q R", "I J K L M N ", {"O P Q"}, 1},
        {"The quick brown fox", "The quick br", {"own fox"}, 1},
        {"Yes.\nUser: no", "Yes.", {"\nUser:"}, 1},
        {"abcd", "", {"abc", "abcd"}, 2}, /* one is the start of another: the shorter is complete first */
        {"xabc", "x", {"bc", "abc"}, 2},  /* both complete at the same byte: the longer */
        {"abcd", "a", {"abcd", "bc"}, 2}, /* complete first counts, not starting first */
        {"aaab", "a", {"aab"}, 1},
        {"ababac", "ab", {"abac"}, 1},
        {"na\xc3\xafve caf\xc3\xa9!", "na\xc3\xafve caf", {"\xc3\xa9"}, 1},
        {"\xf0\x9f\x98\x80\xf0\x9f\x98\x81", "\xf0\x9f\x98\x80", {"\xf0\x9f\x98\x81"}, 1},
        {"no stop her", "no stop her", {"here"}, 1}, /* the held-back tail comes out at the end */
        {"nothing to find", "nothing to find", {NULL}, 0},
        {"\nUser\nUser:", "\nUser", {"\nUser:"}, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool stopped;
        const size_t n_text = strlen(cases[i].text), want = strlen(cases[i].want);
        assert_int_equal(oracle(cases[i].stops, cases[i].n, cases[i].text, n_text, &stopped), want);
        check(cases[i].stops, cases[i].n, cases[i].text, n_text, i);
    }
}

/* Two letters, so that strings overlap themselves and one another all the time. */
static void random_texts(void **state)
{
    (void)state;
    size_t n_stopped = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        vq_rng rng;
        vq_rng_seed(&rng, seed);
        char strings[4][8], text[40];
        const char *list[4];
        const size_t n = 1 + vq_rng_next(&rng) % 4, n_text = vq_rng_next(&rng) % sizeof text;
        for (size_t k = 0; k < n; k++) {
            const size_t length = 2 + vq_rng_next(&rng) % 6;
            for (size_t i = 0; i < length; i++)
                strings[k][i] = (char)('a' + vq_rng_next(&rng) % 2);
            strings[k][length < 8 ? length : 7] = 0;
            list[k] = strings[k];
        }
        for (size_t i = 0; i < n_text; i++)
            text[i] = (char)('a' + vq_rng_next(&rng) % 2);
        bool stopped;
        oracle(list, n, text, n_text, &stopped);
        n_stopped += stopped;
        check(list, n, text, n_text, seed);
    }
    assert_in_range(n_stopped, 100, 390); /* both outcomes were tried */
}

static void refused(void **state)
{
    (void)state;
    const char *const bad[] = {"", "\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        vq_stops *s = (vq_stops *)1;
        vq_error err;
        assert_int_equal(vq_stops_open(&s, &bad[i], 1, &err), VQ_ERR_ARG);
        assert_null(s);
        assert_non_null(strstr(err.text, "stop string 1"));
    }
    const char *const good[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        vq_stops *s;
        assert_int_equal(vq_stops_open(&s, &good[i], 1, NULL), VQ_OK);
        vq_stops_close(s);
    }
    vq_stops_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(examples), cmocka_unit_test(random_texts),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("stops", tests, NULL, NULL);
}
