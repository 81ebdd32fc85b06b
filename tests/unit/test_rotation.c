/* Rotations of every head size: orthogonal, inverted by their inverse, one seed one matrix; and streams of bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "quant/pack.h"
#include "quant/rotation.h"

static vq_kernels kernels;

static void open_rotation(vq_rotation *r, vq_arena *arena, uint32_t d, bool haar, uint64_t seed)
{
    *arena = (vq_arena){0};
    vq_rotation_layout(r, arena, d, haar);
    assert_int_equal(vq_arena_alloc(arena, NULL), VQ_OK);
    vq_rotation_layout(r, arena, d, haar);
    assert_int_equal(vq_rotation_draw(r, &kernels.codes, seed, NULL), VQ_OK);
}

static void rotations_are_orthogonal(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {8, 9, 64, 72, 80, 96, 100, 128, 500, 512};
    for (uint32_t haar = 0; haar < 2; haar++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            const uint32_t d = sizes[s];
            if (haar && d > 128)
                continue;
            vq_rotation r;
            vq_arena arena;
            open_rotation(&r, &arena, d, haar, 5);
            static float columns[512 * 512], scratch[512];
            memset(columns, 0, sizeof columns);
            for (uint32_t i = 0; i < d; i++) {
                columns[i * d + i] = 1;
                vq_rotation_apply(&r, columns + (size_t)i * d, scratch);
            }
            double worst = 0;
            for (uint32_t i = 0; i < d; i++)
                for (uint32_t j = 0; j <= i; j += d > 200 && i - j > 8 ? 7 : 1) {
                    double dot = 0;
                    for (uint32_t k = 0; k < d; k++)
                        dot += (double)columns[i * d + k] * columns[j * d + k];
                    worst = fmax(worst, fabs(dot - (i == j)));
                }
            for (uint32_t i = 0; i < d; i++) {
                vq_rotation_invert(&r, columns + (size_t)i * d, scratch);
                for (uint32_t k = 0; k < d; k++)
                    worst = fmax(worst, fabs(columns[i * d + k] - (i == k)));
            }
            if (!(worst <= 1e-6))
                fail_msg("d=%u haar=%u: off by %g", d, haar, worst);
            vq_arena_free(&arena);
        }
}

static void one_seed_means_one_rotation(void **state)
{
    (void)state;
    float x[3][72], scratch[72];
    for (uint32_t t = 0; t < 3; t++) {
        vq_rotation r;
        vq_arena arena;
        open_rotation(&r, &arena, 72, false, t == 2 ? 9 : 8);
        for (uint32_t i = 0; i < 72; i++)
            x[t][i] = (float)i - 30;
        vq_rotation_apply(&r, x[t], scratch);
        vq_arena_free(&arena);
    }
    assert_memory_equal(x[0], x[1], sizeof x[0]);
    assert_memory_not_equal(x[0], x[2], sizeof x[0]);
}

static void streams_keep_codes_and_waste_nothing(void **state)
{
    (void)state;
    enum { N = 77 };
    vq_rng rng;
    vq_rng_seed(&rng, 4);
    for (uint32_t bits = 1; bits <= 8; bits++) {
        uint8_t stream[N + 1], codes[N];
        memset(stream, 0xa5, sizeof stream);
        assert_int_equal(vq_pack_bytes(N, bits), (N * bits + 7) / 8);
        for (uint32_t i = 0; i < N; i++) {
            codes[i] = (uint8_t)(vq_rng_next(&rng) & ((1u << bits) - 1));
            vq_pack_put(stream, (size_t)i * bits, bits, codes[i]);
        }
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(vq_pack_get(stream, (size_t)i * bits, bits), codes[i]);
        for (uint32_t bit = 0; bit < N * bits; bit++) /* the least significant bit first */
            assert_int_equal(stream[bit / 8] >> (bit % 8) & 1, codes[bit / bits] >> (bit % bits) & 1);
        assert_int_equal(stream[vq_pack_bytes(N, bits)], 0xa5);
    }
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rotations_are_orthogonal),
        cmocka_unit_test(one_seed_means_one_rotation),
        cmocka_unit_test(streams_keep_codes_and_waste_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
