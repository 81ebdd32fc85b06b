/* Tiers and their ceiling. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/cpu.h"

static uint32_t detect_under(const char *ceiling)
{
    if (ceiling)
        setenv("VQ_CPU", ceiling, 1);
    else
        unsetenv("VQ_CPU");
    return vq_cpu_detect();
}

static void ceiling_holds(void **state)
{
    (void)state;
    const uint32_t all = detect_under(NULL);
    assert_int_equal(detect_under("c"), 0);
    assert_int_equal(detect_under("avx2"), all & VQ_CPU_AVX2);
    assert_int_equal(detect_under("avx512"), all & (VQ_CPU_AVX2 | VQ_CPU_AVX512 | VQ_CPU_VPOPCNT));
    assert_int_equal(detect_under("neon"), all & VQ_CPU_NEON);
    assert_int_equal(detect_under("avx1024"), all); /* unknown words set no ceiling */
    assert_int_equal(detect_under(""), all);
}

static void tiers_contain_the_lower_ones(void **state)
{
    (void)state;
    const uint32_t all = detect_under(NULL);
    if (all & VQ_CPU_AVX512)
        assert_true(all & VQ_CPU_AVX2);
    if (all & VQ_CPU_VPOPCNT)
        assert_true(all & VQ_CPU_AVX512);
}

/* The compiler's own detection. */
static void agrees_with_the_compiler(void **state)
{
    (void)state;
#if defined(__x86_64__)
    const uint32_t all = detect_under(NULL);
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                     __builtin_cpu_supports("bmi2");
    const int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
    assert_int_equal(!!(all & VQ_CPU_AVX2), avx2);
    assert_int_equal(!!(all & VQ_CPU_AVX512), avx512);
    assert_int_equal(!!(all & VQ_CPU_VPOPCNT), avx512 && __builtin_cpu_supports("avx512vpopcntdq"));
#elif defined(__aarch64__)
    assert_int_equal(detect_under(NULL), VQ_CPU_NEON);
#else
    skip();
#endif
}

static void names(void **state)
{
    (void)state;
    assert_string_equal(vq_cpu_name(0), "c");
    assert_string_equal(vq_cpu_name(VQ_CPU_AVX2), "avx2");
    assert_string_equal(vq_cpu_name(VQ_CPU_AVX2 | VQ_CPU_AVX512 | VQ_CPU_VPOPCNT), "avx512");
    assert_string_equal(vq_cpu_name(VQ_CPU_NEON), "neon");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ceiling_holds),
        cmocka_unit_test(tiers_contain_the_lower_ones),
        cmocka_unit_test(agrees_with_the_compiler),
        cmocka_unit_test(names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
