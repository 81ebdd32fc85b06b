/* Every tier of kernels/polar.h against the definitions, bit for bit, with guard pages on both sides of every array;
 * and the definitions against angles. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../support/guard.h"
#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/polar.h"

enum { BLOCK = VQ_POLAR_BLOCK, MOST = 67, GUARD_BYTES = 1 << 14, N_ROUNDS = 40 };

static const uint32_t tier_sets[] = {VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"avx2", "avx512"};
static guard guards[3];
static vq_polar_kernels definition;
static vq_rng rng;

/* Ordinary values; zeros of both signs, denormals, large ones, pairs on edges of sectors and radii on bounds. */
static void draw(float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n * BLOCK; i++) {
        const uint32_t kind = (uint32_t)(vq_rng_next(&rng) % 24), k = (uint32_t)(vq_rng_next(&rng) % 16);
        const float v = (float)vq_rng_normal(&rng);
        y[i] = kind == 0 ? 0 : kind == 1 ? -0.0F : kind == 2 ? v * 1e-40F : kind == 3 ? v * 0x1p40F : v;
        if (i % 2 == 1 && kind >= 16) {
            y[i - 1] = vq_polar_circle_edges[k][0] * (kind % 2 ? 1 : 0.37F);
            y[i] = vq_polar_circle_edges[k][1] * (kind % 2 ? 1 : 0.37F);
        }
        if (i % BLOCK == BLOCK - 1 && kind == 23)
            memset(y + i - (BLOCK - 1), 0, BLOCK * sizeof *y);
        if (i % BLOCK == BLOCK - 1 && kind == 22)
            for (uint32_t j = i - (BLOCK - 1); j <= i; j++)
                y[j] = j % 2 ? 0 : vq_polar_quarter_bounds[k % 3][k % 4 % 3][j / 2 % 2];
        if (i % BLOCK == BLOCK - 1 && kind == 21)
            y[i - k] = NAN;
    }
}

static void check(const vq_polar_kernels *tier, const char *name, uint32_t n, bool at_end)
{
    float *y = guard_take(&guards[0], (size_t)n * BLOCK * sizeof *y, at_end);
    uint64_t *codes = guard_take(&guards[1], n * sizeof *codes, at_end), want_codes[MOST];
    float *radii = guard_take(&guards[2], n * sizeof *radii, at_end), want_radii[MOST], want[MOST * BLOCK];
    draw(y, n);
    for (uint32_t unbiased = 0; unbiased < 2; unbiased++) {
        definition.encode(want_codes, want_radii, y, n, unbiased);
        tier->encode(codes, radii, y, n, unbiased);
        if (memcmp(codes, want_codes, n * sizeof *codes) != 0 || memcmp(radii, want_radii, n * sizeof *radii) != 0)
            fail_msg("encode of tier %s differs from the definition, n = %u", name, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        codes[i] = vq_rng_next(&rng); /* bits above the block's too */
        radii[i] = (float)vq_rng_normal(&rng);
    }
    const size_t n_bytes = ((size_t)n * VQ_POLAR_BITS + 7) / 8;
    uint8_t *stream = guard_take(&guards[0], n_bytes, at_end);
    memset(stream, 0, n_bytes);
    for (size_t i = 0; i < n; i++) {
        want_codes[i] = codes[i] & ((UINT64_C(1) << VQ_POLAR_BITS) - 1);
        for (size_t bit = 0; bit < VQ_POLAR_BITS; bit++)
            stream[(i * VQ_POLAR_BITS + bit) / 8] |=
                (uint8_t)((want_codes[i] >> bit & 1) << (i * VQ_POLAR_BITS + bit) % 8);
    }
    uint64_t got[MOST];
    definition.unpack(got, stream, n);
    assert_memory_equal(got, want_codes, n * sizeof *got);
    memset(got, 0xff, sizeof got);
    tier->unpack(got, stream, n);
    if (memcmp(got, want_codes, n * sizeof *got) != 0)
        fail_msg("unpack of tier %s differs from the definition, n = %u", name, n);
    y = guard_take(&guards[0], (size_t)n * BLOCK * sizeof *y, at_end);
    definition.decode(want, codes, radii, n);
    tier->decode(y, codes, radii, n);
    if (memcmp(y, want, (size_t)n * BLOCK * sizeof *y) != 0)
        fail_msg("decode of tier %s differs from the definition, n = %u", name, n);
}

static void tiers_equal_the_definitions(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 2; t++) {
        if ((vq_cpu_detect() & tier_sets[t]) != tier_sets[t]) {
            printf("no %s here: skipped\n", tier_names[t]);
            continue;
        }
        vq_polar_kernels tier;
        vq_polar_kernels_init(&tier, tier_sets[t]);
        for (uint32_t round = 0; round < N_ROUNDS; round++)
            for (uint32_t n = 0; n <= MOST; n++)
                check(&tier, tier_names[t], n, (round + n) % 2);
    }
}

/* Sectors are those of arc tangents, and a block comes back near: the cosine of the angle between is large. */
static void codes_are_angles(void **state)
{
    (void)state;
    float y[BLOCK], back[BLOCK], radius;
    uint64_t code;
    for (uint32_t i = 0; i < 2000; i++) {
        double dot = 0, own = 0, other = 0;
        for (uint32_t j = 0; j < BLOCK; j++)
            y[j] = (float)vq_rng_normal(&rng);
        definition.encode(&code, &radius, y, 1, false);
        assert_true(code >> VQ_POLAR_BITS == 0);
        for (uint32_t p = 0; p < 8; p++) {
            const double turn = atan2((double)y[2 * p + 1], (double)y[2 * p]) / acos(-1.0) * 8, cell = floor(turn);
            if (fabs(turn - rint(turn)) > 1e-5)
                assert_int_equal(code >> 4 * p & 15, (uint32_t)(cell < 0 ? cell + 16 : cell));
        }
        definition.decode(back, &code, &radius, 1);
        for (uint32_t j = 0; j < BLOCK; j++) {
            dot += (double)y[j] * (double)back[j];
            own += (double)y[j] * (double)y[j];
            other += (double)back[j] * (double)back[j];
        }
        assert_true(dot / sqrt(own * other) > 0.9);
    }
}

int main(void)
{
    vq_rng_seed(&rng, 3);
    vq_polar_kernels_init(&definition, 0);
    for (uint32_t i = 0; i < 3; i++)
        guards[i] = guard_open(GUARD_BYTES);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_angles),
        cmocka_unit_test(tiers_equal_the_definitions),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < 3; i++)
        guard_close(&guards[i]);
    return failed;
}
