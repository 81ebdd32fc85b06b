/* Every tier of kernels/turned.h against R(i) n multiplied out in double precision; q and n between guard pages. */
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
#include "kernels/turned.h"

enum { N_ROWS = 9, MOST_PAIRS = VQ_TURNED_MAX_D / 2, GUARD_BYTES = 1 << 14 };

static const uint32_t tier_sets[] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"c", "avx2", "avx512"};
static guard guards[2];
static vq_rng rng;
static int8_t table[MOST_PAIRS][2][VQ_TURNED_HALF];
static float pairs[N_ROWS * VQ_TURNED_PAIRS], still[N_ROWS], out[N_ROWS][VQ_TURNED_ROWS];

static void draw(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)vq_rng_normal(&rng) * (i % 7 == 3 ? 30 : 1);
}

/* q . R(i) n, and the sum of the sizes of what is added up. */
static double product(const vq_turned_shape *s, const float *q, const float *n, uint32_t i, double *size)
{
    const uint32_t after = i >= VQ_TURNED_HALF, m = after ? i - VQ_TURNED_HALF : VQ_TURNED_HALF - 1 - i;
    double turned[VQ_TURNED_MAX_D], sum = 0;
    for (uint32_t j = 0; j < s->d; j++)
        turned[j] = (double)n[j];
    *size = 0;
    for (uint32_t f = 0; f < s->n_pairs; f++) {
        const uint32_t a = s->halves ? f : 2 * f, b = a + (s->halves ? s->apart : 1);
        const double c = table[f][0][m] / 127.0, t = (after ? 1 : -1) * table[f][1][m] / 127.0;
        turned[a] = c * (double)n[a] - t * (double)n[b];
        turned[b] = t * (double)n[a] + c * (double)n[b];
        *size += fabs((double)q[a] * (double)n[b]) + fabs((double)q[b] * (double)n[a]);
    }
    for (uint32_t j = 0; j < s->d; j++) {
        sum += (double)q[j] * turned[j];
        *size += fabs((double)q[j] * (double)n[j]);
    }
    return sum;
}

static void check(const vq_turned_kernels *k, const char *tier, const vq_turned_shape *s, bool at_end)
{
    float *n = guard_take(&guards[0], s->d * sizeof *n, at_end);
    double want[N_ROWS][VQ_TURNED_ROWS], bound[N_ROWS][VQ_TURNED_ROWS];
    draw(n, s->d);
    for (uint32_t r = 0; r < N_ROWS; r++) {
        float *q = guard_take(&guards[1], s->d * sizeof *q, at_end);
        draw(q, s->d);
        draw(out[r], VQ_TURNED_ROWS);
        for (uint32_t i = 0; i < VQ_TURNED_ROWS; i++) {
            want[r][i] = product(s, q, n, i, &bound[r][i]) + (double)out[r][i];
            bound[r][i] += fabs((double)out[r][i]);
        }
        still[r] = k->products(pairs + (size_t)r * VQ_TURNED_PAIRS, s, q, n);
    }
    float alone[VQ_TURNED_ROWS];
    memcpy(alone, out[4], sizeof alone);
    k->scores(alone, VQ_TURNED_ROWS, s, pairs + 4 * (size_t)VQ_TURNED_PAIRS, still + 4, 1,
              (const int8_t(*)[2][VQ_TURNED_HALF])table);
    k->scores(out[0], VQ_TURNED_ROWS, s, pairs, still, N_ROWS, (const int8_t(*)[2][VQ_TURNED_HALF])table);
    assert_memory_equal(alone, out[4], sizeof alone);
    /* A term passes at most d / 8 + 10 additions and products, each of which loses 2^-24 of what it gives. */
    const double part = (s->d / 8.0 + s->n_pairs + 16) * 0x1p-24;
    for (uint32_t r = 0; r < N_ROWS; r++)
        for (uint32_t i = 0; i < VQ_TURNED_ROWS; i++)
            if (!(fabs((double)out[r][i] - want[r][i]) <= part * bound[r][i]))
                fail_msg("%s, d = %u, %u pairs%s, row %u: %g, should be %g within %g", tier, s->d, s->n_pairs,
                         s->halves ? " of halves" : "", i, (double)out[r][i], want[r][i], part * bound[r][i]);
}

static void tiers_give_the_products(void **state)
{
    (void)state;
    static const uint32_t sizes[][2] = {{1, 0},   {2, 1},    {6, 2},    {7, 3},     {16, 8},    {40, 9},
                                        {64, 12}, {64, 32},  {80, 17},  {96, 33},   {128, 40},  {130, 65},
                                        {255, 7}, {256, 50}, {256, 77}, {300, 150}, {512, 101}, {512, 256}};
    const uint32_t cpu = vq_cpu_detect();
    for (uint32_t f = 0; f < MOST_PAIRS; f++)
        for (uint32_t m = 0; m < VQ_TURNED_HALF; m++) {
            table[f][0][m] = (int8_t)rint(127 * cos(f * 0.1 * (m + 0.5)));
            table[f][1][m] = (int8_t)rint(127 * sin(f * 0.1 * (m + 0.5)));
        }
    for (uint32_t t = 0; t < 3; t++) {
        if ((cpu & tier_sets[t]) != tier_sets[t]) {
            printf("no %s here\n", tier_names[t]);
            continue;
        }
        vq_turned_kernels k;
        vq_turned_kernels_init(&k, tier_sets[t]);
        for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (uint32_t kind = 0; kind < 6; kind++) {
                const uint32_t d = sizes[i][0], n_pairs = sizes[i][1], half = d / 2;
                const vq_turned_shape s = {.d = d,
                                           .n_pairs = n_pairs,
                                           .apart = kind / 2 == 0   ? 1
                                                    : kind / 2 == 1 ? half
                                                                    : (half + n_pairs) / 2,
                                           .halves = kind / 2 > 0 && n_pairs > 0};
                check(&k, tier_names[t], &s, kind % 2);
            }
    }
}

int main(void)
{
    for (uint32_t i = 0; i < 2; i++)
        guards[i] = guard_open(GUARD_BYTES);
    vq_rng_seed(&rng, 5);
    const struct CMUnitTest tests[] = {cmocka_unit_test(tiers_give_the_products)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < 2; i++)
        guard_close(&guards[i]);
    return failed;
}
