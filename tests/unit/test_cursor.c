/* The bounded reader: little-endian values, a sticky error, nothing read behind the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cursor.h"

static void reads_little_endian(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {0x81, 0x34, 0x12, 0x78, 0x56, 0x34, 0x92, 8, 7, 6, 5, 4, 3,   2,
                                    0xf1, 0,    0,    0xc0, 0x3f, 0,    0,    0, 0, 0, 0, 4, 0xc0};
    vq_cursor c = vq_cursor_make(bytes, sizeof bytes);
    assert_int_equal(vq_cursor_left(&c), sizeof bytes);
    assert_int_equal(vq_cursor_u8(&c), 0x81);
    assert_int_equal(vq_cursor_u16(&c), 0x1234);
    assert_int_equal(vq_cursor_u32(&c), 0x92345678);
    assert_int_equal(vq_cursor_offset(&c), 7);
    assert_int_equal(vq_cursor_u64(&c), 0xf102030405060708);
    assert_true(vq_cursor_f32(&c) == 1.5f);
    assert_true(vq_cursor_f64(&c) == -2.5);
    assert_int_equal(vq_cursor_left(&c), 0);
    assert_false(c.bad);
    assert_non_null(vq_cursor_take(&c, 0)); /* nothing, at the end, is there */
    assert_int_equal(vq_cursor_u8(&c), 0);
    assert_true(c.bad);
}

static void error_is_sticky(void **state)
{
    (void)state;
    uint8_t *bytes = malloc(5); /* sanitizers watch its ends */
    memset(bytes, 0xff, 5);
    vq_cursor c = vq_cursor_make(bytes, 5);
    assert_int_equal(vq_cursor_u8(&c), 0xff);
    assert_int_equal(vq_cursor_u64(&c), 0); /* 4 are left */
    assert_true(c.bad);
    assert_int_equal(vq_cursor_offset(&c), 1); /* nothing moved */
    assert_int_equal(vq_cursor_left(&c), 4);
    assert_int_equal(vq_cursor_u8(&c), 0); /* would fit, but the record is lost */
    assert_null(vq_cursor_take(&c, 1));
    assert_true(vq_cursor_f32(&c) == 0);
    assert_int_equal(vq_cursor_offset(&c), 1);
    free(bytes);
}

static void huge_takes_do_not_wrap(void **state)
{
    (void)state;
    static const uint8_t bytes[16];
    static const uint64_t huge[] = {17, UINT32_MAX, (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        vq_cursor c = vq_cursor_make(bytes, sizeof bytes);
        vq_cursor_u64(&c);
        assert_null(vq_cursor_take(&c, huge[i]));
        assert_true(c.bad);
    }
    vq_cursor c = vq_cursor_make(bytes, sizeof bytes);
    assert_ptr_equal(vq_cursor_take(&c, 16), bytes);
    assert_false(c.bad);
}

static void may_be_empty(void **state)
{
    (void)state;
    vq_cursor c = vq_cursor_make(NULL, 0);
    assert_int_equal(vq_cursor_left(&c), 0);
    assert_int_equal(vq_cursor_offset(&c), 0);
    assert_int_equal(vq_cursor_u16(&c), 0);
    assert_true(c.bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_little_endian),
        cmocka_unit_test(error_is_sticky),
        cmocka_unit_test(huge_takes_do_not_wrap),
        cmocka_unit_test(may_be_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
