/* The option parser: every kind, every way to write it, every way to get it wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

struct values {
    bool flag;
    uint32_t count, all;
    int64_t whole;
    float real;
    const char *text;
    cli_texts texts;
    cli_counts counts;
};

#define AT(field) offsetof(struct values, field)

static const cli_option rows[] = {
    {'q', "quiet", CLI_FLAG, AT(flag), NULL, "a flag", 0, 0},
    {'c', "ctx-size", CLI_COUNT, AT(count), "N", "a count", 2, 100},
    {'n', "n-predict", CLI_COUNT_OR_ALL, AT(all), "N", "a count or all", 0, 4294967294.0},
    {'s', "seed", CLI_WHOLE, AT(whole), "N", "a whole number", -1, 9007199254740992.0},
    {0, "temp", CLI_REAL, AT(real), "T", "a number", 0, 100},
    {'p', "prompt", CLI_TEXT, AT(text), "TEXT",
     "a text whose help is so long that it has to go on in the next line of the page", 0, 0},
    {0, "stop", CLI_TEXTS, AT(texts), "TEXT", "several texts", 0, 0},
    {'d', "depth", CLI_COUNTS, AT(counts), "LIST", "a list", 0, 9999},
};

static struct values v;
static char message[512];
static size_t n_operands;
static char *words[64];

static cli_parsed parse(const char *line, size_t most_operands)
{
    static char text[512];
    static const struct values standard = {.count = 7, .real = 0.8F, .counts = {{0, 2048}, 2}};
    v = standard;
    message[0] = 0;
    snprintf(text, sizeof text, "%s", line);
    int n = 0;
    static char name[] = "test";
    words[n++] = name;
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        words[n++] = word;
    words[n] = NULL;
    const cli_group groups[] = {{"One", rows, 4, &v}, {"Two", rows + 4, 4, &v}};
    const cli_page page = {"test", "[options]", "intro", groups, 2, NULL, 0, most_operands};
    return cli_options_parse(&page, n, words, &n_operands, message, sizeof message);
}

static void fine(const char *line)
{
    if (parse(line, 0) != CLI_PARSED)
        fail_msg("'%s': %s", line, message);
}

static void wrong(const char *line, const char *want)
{
    const cli_parsed got = parse(line, 0);
    if (got != CLI_WRONG || !strstr(message, want))
        fail_msg("'%s': got %d, '%s', want '%s'", line, got, message, want);
}

static void kinds(void **state)
{
    (void)state;
    fine("");
    assert_int_equal(v.count, 7);
    assert_false(v.flag);
    fine("-q -c 12 -n 3 -s 5 --temp 0.5 -p x --stop a --stop b -d 1,2,3");
    assert_true(v.flag);
    assert_int_equal(v.count, 12);
    assert_int_equal(v.all, 3);
    assert_int_equal(v.whole, 5);
    assert_true(v.real == 0.5F);
    assert_string_equal(v.text, "x");
    assert_int_equal(v.texts.n, 2);
    assert_string_equal(v.texts.at[1], "b");
    assert_int_equal(v.counts.n, 3);
    assert_int_equal(v.counts.at[2], 3);
    fine("--quiet --ctx-size=2 --n-predict=-1 --seed=-1 --temp=1e1 --prompt= --depth=9999");
    assert_int_equal(v.count, 2);
    assert_int_equal(v.all, UINT32_MAX);
    assert_int_equal(v.whole, -1);
    assert_true(v.real == 10);
    assert_string_equal(v.text, "");
    assert_int_equal(v.counts.n, 1);
    fine("-c12 -n-1 -p=x");
    assert_int_equal(v.count, 12);
    assert_int_equal(v.all, UINT32_MAX);
    assert_string_equal(v.text, "x");
    fine("-c 5 -c 6 -p -x"); /* the last one counts; a value may start with a dash */
    assert_int_equal(v.count, 6);
    assert_string_equal(v.text, "-x");
    fine("-n 0");
    assert_int_equal(v.all, 0);
}

static void mistakes(void **state)
{
    (void)state;
    wrong("--tmp 1", "unknown option --tmp; did you mean --temp?");
    wrong("--tepm=1", "did you mean --temp?");
    wrong("--temperature 1", "did you mean --temp?");
    wrong("--ctxsize 3", "did you mean --ctx-size?");
    wrong("--xyzzyx", "unknown option --xyzzyx");
    assert_null(strstr(message, "mean"));
    wrong("-z", "unknown option -z");
    wrong("-temp 1", "unknown option -temp; did you mean --temp?");
    wrong("-qz", "unknown option -qz");
    wrong("-c", "--ctx-size needs a value: N");
    wrong("--prompt", "--prompt needs a value: TEXT");
    wrong("-c 1", "--ctx-size: 1, must be 2 to 100");
    wrong("-c 101", "must be 2 to 100");
    wrong("-c 12x", "'12x' is not a whole number");
    wrong("-c 1.5", "is not a whole number");
    wrong("-c 99999999999999999999", "must be 2 to 100");
    wrong("-n -2", "must be 0 to 4294967294");
    wrong("-n 4294967295", "must be 0 to 4294967294");
    wrong("--temp nan", "'nan' is not a number");
    wrong("--temp inf", "'inf' is not a number");
    wrong("--temp -1", "--temp: -1, must be 0 to 100");
    wrong("--temp x", "is not a number");
    wrong("--quiet=1", "--quiet takes no value");
    wrong("-d 1,,2", "is not a list");
    wrong("-d ,", "is not a list");
    wrong("-d 1,10000", "must be 0 to 9999");
    wrong("-d 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17", "more than 16 numbers");
    wrong("word", "unexpected word 'word'");
}

static void operands(void **state)
{
    (void)state;
    assert_int_equal(parse("one -c 5 two", 2), CLI_PARSED);
    assert_int_equal(n_operands, 2);
    assert_string_equal(words[1], "one");
    assert_string_equal(words[2], "two");
    assert_int_equal(v.count, 5);
    assert_int_equal(parse("-- -c", 2), CLI_PARSED);
    assert_int_equal(n_operands, 1);
    assert_string_equal(words[1], "-c");
    assert_int_equal(v.count, 7);
    assert_int_equal(parse("- -q", 1), CLI_PARSED); /* a lone dash is a word */
    assert_string_equal(words[1], "-");
    assert_int_equal(parse("one two three", 2), CLI_WRONG);
    assert_int_equal(parse("-c bad --help", 0), CLI_HELP);
    assert_int_equal(parse("-h", 0), CLI_HELP);
    assert_int_equal(parse("-- --help", 1), CLI_PARSED);
}

static void help(void **state)
{
    (void)state;
    parse("", 0);
    const cli_group groups[] = {{"One", rows, 4, &v}, {"Two", rows + 4, 4, &v}};
    const cli_page page = {"test", "[options]", "First paragraph.\n\nSecond.", groups, 2, "Examples:\n  x\n", 0, 0};
    char *text = NULL;
    size_t n_bytes = 0;
    FILE *f = open_memstream(&text, &n_bytes);
    assert_non_null(f);
    cli_options_help(&page, f);
    fclose(f);
    assert_non_null(strstr(text, "usage: veloxquant test [options]\n\nFirst paragraph.\n\nSecond.\n\nOne:\n"));
    assert_non_null(strstr(text, "  -c, --ctx-size N           a count (default 7)\n"));
    assert_non_null(strstr(text, "      --temp T               a number (default 0.8)\n"));
    assert_non_null(strstr(text, "a list (default 0,2048)\n"));
    assert_non_null(strstr(text, "\nExamples:\n  x\n"));
    size_t column = 0, longest = 0;
    for (const char *at = text; *at; at++) {
        column = *at == '\n' ? 0 : column + 1;
        longest = column > longest ? column : longest;
    }
    assert_in_range(longest, 60, 80);
    free(text);
}

static void nearest(void **state)
{
    (void)state;
    const char *const names[] = {"generate", "chat", "perplexity", "bench"};
    assert_string_equal(cli_nearest("genrate", names, 4), "generate");
    assert_string_equal(cli_nearest("caht", names, 4), "chat");
    assert_string_equal(cli_nearest("perp", names, 4), "perplexity");
    assert_null(cli_nearest("quantize", names, 4));
    assert_null(cli_nearest("", names, 4));
    char endless[400];
    memset(endless, 'g', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    assert_null(cli_nearest(endless, names, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(kinds), cmocka_unit_test(mistakes), cmocka_unit_test(operands),
                                       cmocka_unit_test(help), cmocka_unit_test(nearest)};
    return cmocka_run_group_tests_name("options", tests, NULL, NULL);
}
