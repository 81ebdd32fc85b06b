/* Every tier of kernels/folded.h against the plain C definition, bit for bit, between guard pages; and the definition
 * against what it stands for, in double precision. */
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
#include "kernels/folded.h"

enum { N_QUERIES = 5, N_KINDS = 7, N_GUARDS = 5, GUARD_BYTES = 1 << 14 };

static const uint32_t tier_sets[] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"c", "avx2", "avx512"};
static guard guards[N_GUARDS];
static vq_rng rng;

static int16_t draw_one(uint32_t kind, uint32_t j)
{
    switch (kind) {
    case 0: return 0;
    case 1: return j == 3 ? 32767 : 0;                   /* all of it in one channel */
    case 2: return j % 2 ? -32767 : 32767;               /* the largest everywhere, which is all in one coordinate */
    case 3: return (int16_t)(vq_rng_next(&rng) % 3 - 1); /* nearly nothing */
    case 4: return (int16_t)(vq_rng_next(&rng) % 65535 - 32767);
    default: {
        const double x = vq_rng_normal(&rng) * (kind == 5 ? 3000 : j % 17 == 5 ? 9000 : 30);
        return (int16_t)fmax(-32767, fmin(32767, x));
    }
    }
}

static void draw_bytes(uint8_t *x, size_t n, uint32_t most)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)(vq_rng_next(&rng) % (most + 1));
}

/* What the definition gives is the folded and rotated query to the precision of its rounding. */
static void check_meaning(const vq_folded *out, const int8_t *rounded, const int16_t *q, const uint8_t *channels,
                          const uint8_t *u, const int16_t *steps, uint32_t n)
{
    double y[VQ_FOLDED_MOST_N], near = 0, total = 0, most = 0;
    int32_t sum = 0;
    for (uint32_t j = 0; j < n; j++)
        y[j] = q[j] * exp2(-0.25 * (j < n / 2 ? channels[j] & 15 : channels[j - n / 2] >> 4));
    for (uint32_t h = 1; h < n; h *= 2)
        for (uint32_t j = 0; j < n; j++)
            if (!(j & h)) {
                const double a = y[j], b = y[j + h];
                y[j] = a + b;
                y[j + h] = a - b;
            }
    const double unit = 0x1p15 / out->level * (0x1p15 / 32767), root = sqrt(n);
    for (uint32_t j = 0; j < n; j++) {
        near += u[j] * y[j];
        total += y[j];
        sum += rounded[j];
        y[j] *= steps ? steps[j] / 0x1p15 : 1;
        most = fmax(most, fabs(y[j]));
    }
    assert_int_equal(sum, out->sum);
    /* Each x has an error of 1 at most, half of it from folding; most signs differ. */
    assert_true(fabs(out->near * unit - near) <= 8 * root * root * 127 * unit);
    assert_true(fabs(out->total * unit - total) <= n * 2 * unit);
    const double step = unit * 0x1p15 / out->round;
    for (uint32_t j = 0; j < n; j++)
        if (!(fabs(rounded[j] * step - y[j]) <= 0.51 * step + 8 * root * unit))
            fail_msg("n = %u, coordinate %u: %g, should be %g within %g", n, j, rounded[j] * step, y[j],
                     0.51 * step + 8 * root * unit);
    if (most > 300 * unit)
        assert_true(out->round * most / unit / 0x1p15 > 120);
}

static void tiers_give_the_definition(void **state)
{
    (void)state;
    const uint32_t cpu = vq_cpu_detect();
    vq_folded_kernels definition;
    vq_folded_kernels_init(&definition, 0);
    for (uint32_t t = 0; t < 3; t++) {
        vq_folded_kernels k;
        if ((cpu & tier_sets[t]) != tier_sets[t]) {
            printf("no %s here\n", tier_names[t]);
            continue;
        }
        vq_folded_kernels_init(&k, tier_sets[t]);
        for (uint32_t time = 0; time < 400; time++) {
            const uint32_t n = VQ_FOLDED_LEAST_N << time % 4;
            const bool at_end = time & 4, stepped = time & 8;
            int16_t *q = guard_take(&guards[0], N_QUERIES * n * sizeof *q, at_end);
            uint8_t *channels = guard_take(&guards[1], n / 2, at_end), *u = guard_take(&guards[2], n, at_end);
            int16_t *steps = guard_take(&guards[3], n * sizeof *steps, at_end);
            int8_t *rounded = guard_take(&guards[4], (size_t)N_QUERIES * n, at_end);
            int8_t want[N_QUERIES * VQ_FOLDED_MOST_N];
            vq_folded out[N_QUERIES], want_out[N_QUERIES];
            for (uint32_t i = 0; i < N_QUERIES; i++)
                for (uint32_t j = 0; j < n; j++)
                    q[(size_t)i * n + j] = draw_one((time / 16 + i) % N_KINDS, j);
            draw_bytes(channels, n / 2, time % 3 ? 255 : 0);
            draw_bytes(u, n, 127);
            for (uint32_t j = 0; j < n; j++)
                steps[j] = (int16_t)(j < n / 2 ? 32767 : vq_rng_next(&rng) % 32768);
            k.fold(out, rounded, n, q, n, N_QUERIES, channels, u, stepped ? steps : NULL, n);
            definition.fold(want_out, want, n, q, n, N_QUERIES, channels, u, stepped ? steps : NULL, n);
            for (uint32_t i = 0; i < N_QUERIES; i++) {
                const size_t at = (size_t)i * n;
                check_meaning(&want_out[i], want + at, q + at, channels, u, stepped ? steps : NULL, n);
                if (memcmp(&out[i], &want_out[i], sizeof *out) != 0 || memcmp(rounded + at, want + at, n) != 0)
                    fail_msg("%s differs from c at n = %u, query %u, time %u", tier_names[t], n, i, time);
            }
        }
    }
}

/* Every coordinate is a sum of integers times floats that are rounded three times. */
static void vectors_turn_back(void **state)
{
    (void)state;
    static const int32_t centres[][2] = {{1, 128}, {2, 127}};
    const uint32_t cpu = vq_cpu_detect();
    vq_folded_kernels definition;
    vq_folded_kernels_init(&definition, 0);
    for (uint32_t t = 0; t < 3; t++) {
        vq_folded_kernels k;
        if ((cpu & tier_sets[t]) != tier_sets[t])
            continue;
        vq_folded_kernels_init(&k, tier_sets[t]);
        for (uint32_t time = 0; time < 200; time++) {
            const uint32_t n = VQ_FOLDED_LEAST_N << time % 4;
            const int32_t *centre = centres[time / 4 % 2];
            const bool at_end = time & 8;
            uint8_t *u = guard_take(&guards[0], n, at_end), *signs = guard_take(&guards[1], n / 8, at_end);
            uint8_t *by = guard_take(&guards[2], n, at_end);
            float *out = guard_take(&guards[3], n * sizeof *out, at_end), want[VQ_FOLDED_MOST_N];
            const int32_t middle = centre[1] / centre[0], most = (n > 256 ? 63 : 126) / centre[0];
            for (uint32_t j = 0; j < n; j++) { /* the largest sums, nearly none, any */
                const int32_t any = (int32_t)(vq_rng_next(&rng) % (2 * (uint32_t)most + 1)) - most;
                u[j] = (uint8_t)(middle + (time < 16 ? (j & 1 ? -most : most) : time < 32 ? 0 : any));
            }
            draw_bytes(signs, n / 8, 255);
            draw_bytes(by, n, 255);
            k.turn_back(out, u, centre[0], centre[1], 0.37F, signs, by, n);
            definition.turn_back(want, u, centre[0], centre[1], 0.37F, signs, by, n);
            if (memcmp(out, want, n * sizeof *out) != 0)
                fail_msg("%s differs from c at n = %u, time %u", tier_names[t], n, time);
            for (uint32_t j = 0; j < n; j++) {
                double sum = 0;
                for (uint32_t i = 0; i < n; i++)
                    sum += (__builtin_parity(i & j) ? -1 : 1) * (centre[0] * u[i] - centre[1]);
                const double whole =
                    sum * (double)0.37F * (signs[j / 8] >> j % 8 & 1 ? -1 : 1) * ldexp(8 + by[j] % 8, by[j] / 8 - 19);
                assert_true(fabs((double)out[j] - whole) <= fabs(whole) * 0x1p-22);
            }
        }
    }
}

int main(void)
{
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guards[i] = guard_open(GUARD_BYTES);
    vq_rng_seed(&rng, 11);
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiers_give_the_definition),
                                       cmocka_unit_test(vectors_turn_back)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guard_close(&guards[i]);
    return failed;
}
