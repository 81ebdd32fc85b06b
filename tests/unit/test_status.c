/* Error messages: one line of printable UTF-8, with the part that says what is wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static void names_are_unique(void **state)
{
    (void)state;
    for (int i = 0; i < VQ_N_STATUS; i++) {
        assert_non_null(vq_status_name(i));
        assert_string_not_equal(vq_status_name(i), "unknown status");
        for (int j = 0; j < i; j++)
            assert_string_not_equal(vq_status_name(i), vq_status_name(j));
    }
    assert_string_equal(vq_status_name(VQ_N_STATUS), "unknown status");
    assert_string_equal(vq_status_name((vq_status)-1), "unknown status");
    assert_int_equal(VQ_OK, 0);
}

static void fail_fills_the_error(void **state)
{
    (void)state;
    vq_error err;
    assert_int_equal(vq_fail(&err, VQ_ERR_FULL, "%d tokens, room for %d", 5, 4), VQ_ERR_FULL);
    assert_int_equal(err.status, VQ_ERR_FULL);
    assert_string_equal(err.text, "5 tokens, room for 4");
    assert_int_equal(vq_fail(NULL, VQ_ERR_IO, "%s", "x"), VQ_ERR_IO);
    assert_int_equal(vq_fail_prefix(NULL, VQ_ERR_IO, "%s", "x"), VQ_ERR_IO);
}

static void check_text(const char *in, const char *want)
{
    vq_error err;
    vq_fail(&err, VQ_ERR_KEY, "%s", in);
    assert_string_equal(err.text, want);
}

static void text_is_printable(void **state)
{
    (void)state;
    check_text("a\nb\x1b[31mc\x7f\t", "a?b?[31mc??");
    check_text("K\xc3\xa4se \xe2\x82\xac \xf0\x9f\x99\x82", "K\xc3\xa4se \xe2\x82\xac \xf0\x9f\x99\x82");
    check_text("\xc0\x80 \xe0\x80\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xff", "?? ??? ??? ???? ?"); /* ill-formed */
    check_text("\xc2\x9b", "??");                                                                /* a control: CSI */
    check_text("\xe2\x82", "??");                                                                /* ends too early */
}

static void long_text_is_cut(void **state)
{
    (void)state;
    char in[2000];
    vq_error err;
    memset(in, 'x', sizeof in - 1);
    in[sizeof in - 1] = 0;
    vq_fail(&err, VQ_ERR_KEY, "%s", in);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);

    /* Cut in the middle of a character: the rest of it does not stay. */
    for (size_t i = 0; i + 2 < sizeof in; i += 2)
        memcpy(in + i, "\xc3\xa4", 2);
    vq_fail(&err, VQ_ERR_KEY, "%s", in);
    assert_int_equal(err.text[sizeof err.text - 2], '?');
}

static void prefix_keeps_the_message(void **state)
{
    (void)state;
    vq_error err;
    vq_fail(&err, VQ_ERR_BOUNDS, "offset 7");
    assert_int_equal(vq_fail_prefix(&err, VQ_ERR_BOUNDS, "file%d", 1), VQ_ERR_BOUNDS);
    assert_int_equal(err.status, VQ_ERR_BOUNDS);
    assert_string_equal(err.text, "file1: offset 7");
    vq_fail_prefix(&err, VQ_ERR_BOUNDS, "file1"); /* two layers name the same file: once is enough */
    assert_string_equal(err.text, "file1: offset 7");
    vq_fail_prefix(&err, VQ_ERR_BOUNDS, "file");
    assert_string_equal(err.text, "file: file1: offset 7");
    vq_fail(&err, VQ_ERR_KEY, "a?b: no");
    vq_fail_prefix(&err, VQ_ERR_KEY, "a\nb");
    assert_string_equal(err.text, "a?b: no");

    char path[1000];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = 0;
    vq_fail(&err, VQ_ERR_BOUNDS, "offset 7");
    vq_fail_prefix(&err, VQ_ERR_BOUNDS, "%s", path);
    assert_non_null(strstr(err.text, ": offset 7"));

    char message[600];
    memset(message, 'm', sizeof message - 1);
    message[sizeof message - 1] = 0;
    vq_fail(&err, VQ_ERR_BOUNDS, "%s", message);
    vq_fail_prefix(&err, VQ_ERR_BOUNDS, "%s", path);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
}

static vq_status try(vq_status status, int *n)
{
    VQ_TRY(status);
    (*n)++;
    return VQ_OK;
}

static void try_returns_early(void **state)
{
    (void)state;
    int n = 0;
    assert_int_equal(try(VQ_ERR_TYPE, &n), VQ_ERR_TYPE);
    assert_int_equal(n, 0);
    assert_int_equal(try(VQ_OK, &n), VQ_OK);
    assert_int_equal(n, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique),         cmocka_unit_test(fail_fills_the_error),
        cmocka_unit_test(text_is_printable),        cmocka_unit_test(long_text_is_cut),
        cmocka_unit_test(prefix_keeps_the_message), cmocka_unit_test(try_returns_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
