/* f16 and bf16: every value, and for every pair of neighbours the point half-way and what lies beside it.  Rounding is
 * monotone, so this covers every f32. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/half.h"

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* The definition of the format. */
static double f16_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double sign = h & 0x8000 ? -1 : 1;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static void f16_values(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float x = vq_f32_from_f16((uint16_t)h);
        if ((h & 0x7fff) > 0x7c00) {
            assert_true(isnan(x));
            assert_int_equal(bits(x) >> 31, h >> 15);
            assert_int_equal(vq_f16_from_f32(x), h | 0x200); /* quiet, the payload kept */
        } else if ((h & 0x7fff) == 0x7c00) {
            assert_true(x == (h >> 15 ? -INFINITY : INFINITY));
            assert_int_equal(vq_f16_from_f32(x), h);
        } else {
            assert_true(x == f16_value((uint16_t)h));
            assert_int_equal(bits(x) >> 31, h >> 15);
            assert_int_equal(vq_f16_from_f32(x), h);
            assert_int_equal(vq_f16_from_f32_clamped(x), h);
        }
    }
}

static void check_f16(float x, uint32_t want)
{
    assert_int_equal(vq_f16_from_f32(x), want);
    assert_int_equal(vq_f16_from_f32(-x), want | 0x8000);
    const uint32_t clamped = want == 0x7c00 ? 0x7bff : want;
    assert_int_equal(vq_f16_from_f32_clamped(x), clamped);
    assert_int_equal(vq_f16_from_f32_clamped(-x), clamped | 0x8000);
}

static void f16_rounds_half_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) { /* the last neighbour of 65504 is 65536, which is infinity */
        const double above = h == 0x7bff ? 65536 : f16_value((uint16_t)(h + 1));
        const float half = (float)((f16_value((uint16_t)h) + above) / 2); /* exact: one bit more than f16 */
        check_f16(nextafterf(half, 0), h);
        check_f16(half, h & 1 ? h + 1 : h);
        check_f16(nextafterf(half, INFINITY), h + 1);
    }
    check_f16(1e30f, 0x7c00);
    check_f16(INFINITY, 0x7c00);
    check_f16(from_bits(1), 0);
    assert_true(isnan(vq_f32_from_f16(vq_f16_from_f32_clamped(NAN))));
    assert_int_equal(vq_f16_from_f32(from_bits(0x7f800001)) & 0x7fff, 0x7e00); /* NaN whose payload is all cut off */
}

static void bf16_values(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const float x = vq_f32_from_bf16((uint16_t)h);
        assert_int_equal(bits(x), h << 16);
        assert_int_equal(vq_bf16_from_f32(x), (h & 0x7fff) > 0x7f80 ? h | 0x40 : h);
    }
}

static void bf16_rounds_half_to_even(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x7f80; h++) {
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            const uint32_t half = (sign | h) << 16 | 0x8000;
            assert_int_equal(vq_bf16_from_f32(from_bits(half - 1)), sign | h);
            assert_int_equal(vq_bf16_from_f32(from_bits(half)), sign | (h & 1 ? h + 1 : h));
            assert_int_equal(vq_bf16_from_f32(from_bits(half + 1)), sign | (h + 1));
        }
    }
    assert_int_equal(vq_bf16_from_f32(from_bits(0x7f800001)), 0x7fc0); /* would round to infinity */
    assert_int_equal(vq_bf16_from_f32(from_bits(0xffffffff)), 0xffff); /* would wrap to +0 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_values),
        cmocka_unit_test(f16_rounds_half_to_even),
        cmocka_unit_test(bf16_values),
        cmocka_unit_test(bf16_rounds_half_to_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
