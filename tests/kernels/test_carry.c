/* Every tier of kernels/carry.h against the definition, bit for bit, with guard pages on both sides of every array. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../support/guard.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/carry.h"

enum { MOST_N = 70, MOST_LANES = 48, MATRIX, VALUES, LOST, LEFT, CODES, N_GUARDS };

static const uint32_t tier_sets[] = {VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"avx2", "avx512"};

static guard guards[N_GUARDS];
static vq_rng rng;

static float draw(void)
{
    const uint32_t kind = (uint32_t)(vq_rng_next(&rng) % 24);
    const float v = (float)vq_rng_normal(&rng);
    return kind == 0 ? 0 : kind == 1 ? v * 1e-40F : kind == 2 ? v * 1e6F : v;
}

/* A tier codes for the first time, then again from what that left; the definition does the same. */
static void check(const vq_carry_kernels *tier, const char *name, uint32_t n, uint32_t n_lanes, uint32_t bits,
                  bool at_end)
{
    static float lost[MOST_N * MOST_LANES], left[MOST_N * MOST_LANES];
    static uint8_t codes[MOST_N * MOST_LANES];
    float scale[MOST_LANES], inverse[MOST_LANES], unit[MOST_N];
    const size_t all = (size_t)n * n_lanes;
    vq_carry_kernels definition;
    vq_carry_kernels_init(&definition, 0);
    float *matrix = guard_take(&guards[MATRIX], (size_t)n * n * sizeof *matrix, at_end);
    float *values = guard_take(&guards[VALUES], all * sizeof *values, at_end);
    for (uint32_t i = 0; i < n * n; i++)
        matrix[i] = draw() * 0.1F;
    for (uint32_t j = 0; j < n; j++) {
        matrix[j * n + j] = NAN; /* must not be read */
        unit[j] = 0.1F + fabsf(draw());
    }
    for (uint32_t i = 0; i < all; i++)
        values[i] = draw();
    for (uint32_t i = 0; i < n_lanes; i++) {
        scale[i] = i == 3 ? 0 : 0.01F * (float)(i + 1);
        inverse[i] = i == 3 ? 0 : 1 / scale[i];
    }
    vq_carry want = {.n = n,
                     .n_lanes = n_lanes,
                     .matrix = matrix,
                     .values = values,
                     .lost = lost,
                     .left = left,
                     .codes = codes,
                     .scale = scale,
                     .inverse = inverse,
                     .n_bounds = (1u << bits) - 1};
    for (uint32_t i = 0; i <= want.n_bounds; i++) {
        want.levels[i] = 8 * (float)i - 4 * (float)want.n_bounds;
        want.bounds[i] = want.levels[i] + 4;
    }
    vq_carry got = want;
    got.lost = guard_take(&guards[LOST], all * sizeof *lost, at_end);
    got.left = guard_take(&guards[LEFT], all * sizeof *left, at_end);
    got.codes = guard_take(&guards[CODES], all, at_end);
    memset(got.lost, 0xff, all * sizeof *lost); /* NaN: not read the first time */
    for (int again = 0; again < 3; again++) {
        definition.encode(&want);
        tier->encode(&got);
        if (memcmp(got.codes, codes, all) != 0 || memcmp(got.lost, lost, all * sizeof *lost) != 0 ||
            memcmp(got.left, left, all * sizeof *left) != 0)
            fail_msg("tier %s differs from the definition: n %u, %u lanes, %u bits, time %d", name, n, n_lanes, bits,
                     again);
        want.unit = got.unit = unit;
    }
}

/* Rows [first, end) of the triangle; what lies before column `first` and in other rows stays. */
static void check_moments(const vq_carry_kernels *tier, const char *name, uint32_t n, uint32_t n_in, bool at_end)
{
    static float want[MOST_N * MOST_N];
    vq_carry_kernels definition;
    vq_carry_kernels_init(&definition, 0);
    const uint32_t first = n_in / 3, end = n_in - n_in / 4;
    float *x = guard_take(&guards[VALUES], (size_t)n * n_in * sizeof *x, at_end);
    float *sum = guard_take(&guards[MATRIX], (size_t)n_in * n_in * sizeof *sum, at_end);
    for (uint32_t i = 0; i < n * n_in; i++)
        x[i] = draw();
    for (uint32_t i = 0; i < n_in * n_in; i++)
        want[i] = sum[i] = draw();
    definition.add_moments(want, x, n, n_in, first, end);
    tier->add_moments(sum, x, n, n_in, first, end);
    if (memcmp(want, sum, (size_t)n_in * n_in * sizeof *sum) != 0)
        fail_msg("moments of tier %s differ from the definition: %u rows of %u", name, n, n_in);
}

static void tiers_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 2; t++) {
        if ((vq_cpu_detect() & tier_sets[t]) != tier_sets[t]) {
            print_message("%s: not on this CPU\n", tier_names[t]);
            continue;
        }
        vq_carry_kernels tier;
        vq_carry_kernels_init(&tier, tier_sets[t]);
        for (uint32_t n_in = 1; n_in <= MOST_N; n_in++)
            for (uint32_t n = 1; n <= 30; n += 7)
                check_moments(&tier, tier_names[t], n, n_in, n % 2);
        for (uint32_t n = 1; n <= MOST_N; n += n < 20 ? 1 : 7)
            for (uint32_t n_lanes = 16; n_lanes <= MOST_LANES; n_lanes += 16)
                for (uint32_t bits = 1; bits <= 4; bits++)
                    check(&tier, tier_names[t], n, n_lanes, bits, (n + bits) % 2);
    }
}

/* With a matrix of zeros every value goes to its nearest level; what is lost of the first value moves the second. */
static void the_definition_does_what_it_says(void **state)
{
    (void)state;
    vq_carry_kernels k;
    vq_carry_kernels_init(&k, 0);
    float matrix[4] = {0}, values[2 * 16], lost[2 * 16], left[2 * 16], scale[16], inverse[16], unit[2] = {1, 0.5F};
    uint8_t codes[2 * 16];
    for (uint32_t i = 0; i < 16; i++) {
        values[i] = 0.25F * (float)i - 2;
        values[16 + i] = 0.5F;
        scale[i] = inverse[i] = 1;
    }
    vq_carry c = {.n = 2,
                  .n_lanes = 16,
                  .matrix = matrix,
                  .values = values,
                  .lost = lost,
                  .left = left,
                  .codes = codes,
                  .scale = scale,
                  .inverse = inverse,
                  .n_bounds = 1,
                  .levels = {-1, 1}};
    k.encode(&c);
    for (uint32_t i = 0; i < 16; i++) {
        assert_int_equal(codes[i], values[i] > 0);
        assert_true(lost[i] == values[i] - (values[i] > 0 ? 1.0F : -1.0F) && left[i] == lost[i]);
    }
    matrix[2] = 4;  /* m[1][0] */
    matrix[1] = -6; /* h[0][1] */
    k.encode(&c);
    for (uint32_t i = 0; i < 16; i++) {
        const float aim = 0.5F + 4 * lost[i];
        assert_int_equal(codes[16 + i], aim > 0);
        assert_true(left[16 + i] == aim - (aim > 0 ? 1.0F : -1.0F));
    }
    c.unit = unit;
    float before[2 * 16];
    memcpy(before, lost, sizeof before);
    k.encode(&c);
    for (uint32_t i = 0; i < 16; i++) {
        const float first = values[i] - 6 * before[16 + i], got = first > 0 ? 1 : -1;
        assert_true(left[i] == first - got && lost[i] == values[i] - got);
        const float second = 0.5F - 6 * lost[i] * 0.5F;
        assert_int_equal(codes[16 + i], second > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_definition_does_what_it_says),
        cmocka_unit_test(tiers_give_the_same_bits),
    };
    vq_rng_seed(&rng, 11);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guards[i] = guard_open(MOST_N * MOST_N * sizeof(float) + MOST_N * MOST_LANES * sizeof(float));
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guard_close(&guards[i]);
    return failed;
}
