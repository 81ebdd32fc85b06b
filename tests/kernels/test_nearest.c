/* Every tier of kernels/nearest.h against the definitions, bit for bit, with guard pages on both sides of every array;
 * and the definitions against a search in double precision. */
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
#include "kernels/nearest.h"

enum { ROWS = VQ_NEAREST_ROWS, CODES = VQ_NEAREST_CODES, MOST_D = VQ_NEAREST_MOST_D, N_GUARDS = 4 };

static const uint32_t tier_sets[] = {VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"avx2", "avx512"};
static guard guards[N_GUARDS];
static vq_nearest_kernels definition;
static vq_rng rng;

/* Few different values make ties; rows are now and then huge, zero or no numbers at all. */
static void draw(float *x, size_t n, uint32_t kind)
{
    for (size_t i = 0; i < n; i++)
        x[i] = kind % 2 ? (float)(int)(vq_rng_next(&rng) % 5) - 2 : (float)vq_rng_normal(&rng);
}

typedef struct book {
    float *columns, *half;
} book;

static book draw_book(uint32_t d, uint32_t kind, bool at_end)
{
    book b = {guard_take(&guards[0], (size_t)d * CODES * sizeof(float), at_end),
              guard_take(&guards[1], CODES * sizeof(float), at_end)};
    draw(b.columns, (size_t)d * CODES, kind);
    for (uint32_t c = 0; c < CODES; c++) {
        float squares = 0;
        for (uint32_t j = 0; j < d; j++)
            squares += b.columns[(size_t)j * CODES + c] * b.columns[(size_t)j * CODES + c];
        b.half[c] = kind == 5 ? INFINITY : squares / 2;
    }
    return b;
}

static void check_centroids(const vq_nearest_kernels *tier, const char *name, uint32_t d, uint32_t kind, bool at_end)
{
    const size_t stride = d + kind, n = (ROWS - 1) * stride + d;
    const book b = draw_book(d, kind, at_end);
    float *x = guard_take(&guards[2], n * sizeof *x, at_end);
    uint8_t *codes = guard_take(&guards[3], ROWS, at_end), want[ROWS];
    draw(x, n, kind);
    x[3 * stride] = NAN;
    x[5 * stride] = INFINITY;
    x[7 * stride] = -1e38F;
    memset(x + 9 * stride, 0, d * sizeof *x);
    definition.centroids(want, b.columns, b.half, d, x, stride);
    tier->centroids(codes, b.columns, b.half, d, x, stride);
    if (memcmp(codes, want, ROWS) != 0)
        fail_msg("centroids of tier %s differ from the definition, d = %u, kind %u", name, d, kind);
}

static void tiers_equal_the_definitions(void **state)
{
    (void)state;
    for (uint32_t t = 0; t < 2; t++) {
        if ((vq_cpu_detect() & tier_sets[t]) != tier_sets[t]) {
            printf("no %s here: skipped\n", tier_names[t]);
            continue;
        }
        vq_nearest_kernels tier;
        vq_nearest_kernels_init(&tier, tier_sets[t]);
        for (uint32_t kind = 0; kind < 6; kind++)
            for (uint32_t end = 0; end < 2; end++)
                for (uint32_t d = 1; d <= MOST_D; d++)
                    check_centroids(&tier, tier_names[t], d, kind, end);
    }
}

/* Centroids that are told apart by more than roundings, and the lowest of those that are the same. */
static void the_nearest_is_found(void **state)
{
    (void)state;
    for (uint32_t d = 1; d <= MOST_D; d++) {
        const book b = draw_book(d, 0, true);
        float x[ROWS * MOST_D];
        uint8_t codes[ROWS];
        for (uint32_t j = 0; j < d; j++) /* 200 is 7 once more */
            b.columns[(size_t)j * CODES + 200] = b.columns[(size_t)j * CODES + 7];
        b.half[200] = b.half[7];
        draw(x, (size_t)ROWS * d, 0);
        for (uint32_t j = 0; j < d; j++)
            x[j] = b.columns[(size_t)j * CODES + 7];
        definition.centroids(codes, b.columns, b.half, d, x, d);
        for (uint32_t i = 0; i < ROWS; i++) {
            double off[CODES], least = INFINITY;
            for (uint32_t c = 0; c < CODES; c++) {
                off[c] = 0;
                for (uint32_t j = 0; j < d; j++)
                    off[c] += pow((double)x[i * d + j] - (double)b.columns[(size_t)j * CODES + c], 2);
                least = off[c] < least ? off[c] : least;
            }
            assert_true(off[codes[i]] < least + 1e-5);
            assert_int_not_equal(codes[i], 200);
        }
        if (d > 2)
            assert_int_equal(codes[0], 7);
    }
}

int main(void)
{
    vq_rng_seed(&rng, 5);
    vq_nearest_kernels_init(&definition, 0);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guards[i] = guard_open(1 << 14);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_nearest_is_found),
        cmocka_unit_test(tiers_equal_the_definitions),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guard_close(&guards[i]);
    return failed;
}
