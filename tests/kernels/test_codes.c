/* Every tier of kernels/codes.h against the definitions, bit for bit, with guard pages on both sides of every array;
 * and the definitions against what codes.h draws. */
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
#include "kernels/codes.h"
#include "quant/levels.h"

enum { MOST_D = 512, N_GUARDS = 6, GUARD_BYTES = 1 << 17 };

static const uint32_t tier_sets[] = {VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"avx2", "avx512"};
static const uint32_t sizes[] = {1,  2,  3,  7,  8,  9,  15, 16,  17,  23,  24,  31,  32,  33,
                                 40, 63, 64, 65, 72, 80, 96, 100, 112, 128, 200, 256, 511, 512};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static guard guards[N_GUARDS];
static vq_codes_kernels tier, definition;
static const char *tier_name;
static vq_rng rng;

static void *take(uint32_t which, size_t n_bytes, bool at_end) { return guard_take(&guards[which], n_bytes, at_end); }

/* Ordinary values, now and then zeros, denormals, large ones. */
static void draw(float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t kind = (uint32_t)(vq_rng_next(&rng) % 24);
        const float v = (float)vq_rng_normal(&rng);
        x[i] = kind == 0 ? 0 : kind == 1 ? v * 1e-40F : kind == 2 ? v * 1e6F : v;
    }
}

static void draw_bytes(uint8_t *x, size_t n, uint32_t most)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)(vq_rng_next(&rng) % (most + 1));
}

#define SAME(what, n, got, want, n_bytes)                                                                              \
    do {                                                                                                               \
        if (memcmp(got, want, n_bytes) != 0)                                                                           \
            fail_msg("%s of tier %s differs from the definition, n = %u", what, tier_name, (unsigned)(n));             \
    } while (0)

/* Any number of spacings, values on bounds of the grid and beside them. */
static void check_grid(float *x, uint32_t n, uint32_t bits)
{
    enum { MOST = 17 };
    float inv[MOST], cosines[MOST + 1], want[MOST];
    for (uint32_t n_scales = 1; n_scales <= MOST; n_scales += bits) {
        for (uint32_t s = 0; s < n_scales; s++)
            inv[s] = 0.5F + 0.125F * (float)s;
        for (uint32_t i = 0; i < n; i += 7)
            x[i] = (float)(i % 13) - 6;
        cosines[n_scales] = 77;
        tier.fit_grid(cosines, inv, n_scales, x, bits, n);
        definition.fit_grid(want, inv, n_scales, x, bits, n);
        SAME("fit_grid", n, cosines, want, n_scales * sizeof *want);
        assert_true(cosines[n_scales] == 77);
    }
}

/* Blocks of a multiple of eight, and the sum that the header states. */
static void check_mix(uint32_t m, uint32_t n, bool at_end)
{
    float *x = take(0, (size_t)m * n * sizeof *x, at_end), *by = take(1, (size_t)m * m * sizeof *by, at_end);
    float *out = take(2, (size_t)m * n * sizeof *out, at_end), want[MOST_D];
    draw(x, m * n);
    draw(by, m * m);
    for (uint32_t turned = 0; turned < 2; turned++) {
        tier.mix_blocks(out, x, by, m, n, turned);
        definition.mix_blocks(want, x, by, m, n, turned);
        SAME("mix_blocks", n, out, want, (size_t)m * n * sizeof *out);
        float sum = 0; /* of the last block's last value */
        for (uint32_t j = 0; j < m; j++)
            sum += (turned ? by[j * m + m - 1] : by[(m - 1) * m + j]) * x[j * n + n - 1];
        SAME("mix_blocks' sum", n, &sum, &want[m * n - 1], sizeof sum);
    }
}

static void check_vectors(uint32_t n, bool at_end)
{
    float *x = take(0, n * sizeof *x, at_end), *y = take(1, n * sizeof *y, at_end);
    float *z = take(2, n * sizeof *z, at_end), want[MOST_D];
    uint8_t *bytes = take(3, n, at_end), *bits = take(4, (n + 7) / 8, at_end), want_bytes[2 * MOST_D];
    int32_t sum, want_sum;
    draw(x, n);

    if ((n & (n - 1)) == 0) {
        memcpy(want, x, n * sizeof *want);
        memcpy(y, x, n * sizeof *y);
        definition.hadamard(want, n);
        tier.hadamard(y, n);
        SAME("hadamard", n, y, want, n * sizeof *y);
    }
    draw_bytes(bits, (n + 7) / 8, 255);
    memcpy(want, x, n * sizeof *want);
    memcpy(y, x, n * sizeof *y);
    definition.flip(want, bits, n);
    tier.flip(y, bits, n);
    SAME("flip", n, y, want, n * sizeof *y);

    float a = tier.sum_squares(x, n), b = definition.sum_squares(x, n);
    SAME("sum_squares", n, &a, &b, sizeof a);
    a = tier.dot(x, y, n);
    b = definition.dot(x, y, n);
    SAME("dot", n, &a, &b, sizeof a);
    a = tier.largest(x, n);
    b = definition.largest(x, n);
    SAME("largest", n, &a, &b, sizeof a);
    memcpy(y, x, n * sizeof *y);
    y[n / 2] = NAN;
    a = tier.largest(y, n);
    b = definition.largest(y, n);
    SAME("largest beside NaN", n, &a, &b, sizeof a);
    for (uint32_t bit = 1; bit <= 8; bit++) {
        const vq_levels *levels = &vq_levels_gaussian[bit - 1];
        const float inv = 0.7F;
        for (uint32_t i = 0; i < n; i += 5)
            x[i] = levels->bounds[i % (1u << bit)] / inv; /* on or beside a bound */
        tier.count(bytes, x, inv, levels->bounds, (1u << bit) - 1, n);
        definition.count(want_bytes, x, inv, levels->bounds, (1u << bit) - 1, n);
        SAME("count", n, bytes, want_bytes, n);
        float squares, want_squares;
        memset(bytes, 0xff, n);
        a = tier.count_fit(bytes, &squares, x, inv, levels->bounds, levels->v, (1u << bit) - 1, n);
        b = definition.count_fit(want_bytes, &want_squares, x, inv, levels->bounds, levels->v, (1u << bit) - 1, n);
        SAME("count_fit's codes", n, bytes, want_bytes, n);
        SAME("count_fit", n, &a, &b, sizeof a);
        SAME("count_fit's squares", n, &squares, &want_squares, sizeof squares);
        memcpy(want, x, n * sizeof *want);
        memcpy(y, x, n * sizeof *y);
        tier.subtract(y, bytes, levels->v, 0.003F, n);
        definition.subtract(want, bytes, levels->v, 0.003F, n);
        SAME("subtract", n, y, want, n * sizeof *y);
        check_grid(x, n, bit);
    }

    draw(x, n);
    draw(y, n);
    for (uint32_t i = 0; i < n; i++)
        z[i] = fabsf(x[i]);
    tier.round_signed((int8_t *)bytes, x, 31.75F, n);
    definition.round_signed((int8_t *)want_bytes, x, 31.75F, n);
    SAME("round_signed", n, bytes, want_bytes, n);
    tier.round_affine(bytes, x, y, z, 15, n);
    definition.round_affine(want_bytes, x, y, z, 15, n);
    SAME("round_affine", n, bytes, want_bytes, n);
    for (uint32_t scale = 0; scale < 3; scale++) {
        const float by[3] = {1, 1e-42F, 0};
        for (uint32_t i = 0; i < n; i++)
            y[i] = x[i] * by[scale];
        a = tier.quantise_narrow((int8_t *)bytes, &sum, y, n);
        b = definition.quantise_narrow((int8_t *)want_bytes, &want_sum, y, n);
        SAME("quantise_narrow", n, bytes, want_bytes, n);
        SAME("quantise_narrow's unit", n, &a, &b, sizeof a);
        assert_int_equal(sum, want_sum);
        int8_t *two = take(5, 2 * n, at_end);
        a = tier.quantise_wide(two, n, &sum, y, n);
        b = definition.quantise_wide((int8_t *)want_bytes, n, &want_sum, y, n);
        SAME("quantise_wide", n, two, want_bytes, 2 * n);
        SAME("quantise_wide's unit", n, &a, &b, sizeof a);
        assert_int_equal(sum, want_sum);
    }

    draw_bytes(bytes, n, 255);
    tier.scale_bytes(y, bytes, 0.013F, n);
    definition.scale_bytes(want, bytes, 0.013F, n);
    SAME("scale_bytes", n, y, want, n * sizeof *y);
    tier.centre_bytes(y, bytes, 2, 127, 0.013F, n);
    definition.centre_bytes(want, bytes, 2, 127, 0.013F, n);
    SAME("centre_bytes", n, y, want, n * sizeof *y);

    uint16_t *half = take(4, n * sizeof *half, at_end);
    draw_bytes((uint8_t *)half, 2 * (size_t)n, 255);
    for (uint32_t i = 0; i < n; i++)
        half[i] &= 0xfbff; /* no infinities, no NaN: their payloads are nobody's business */
    tier.f16_to_f32(y, half, n);
    definition.f16_to_f32(want, half, n);
    SAME("f16_to_f32", n, y, want, n * sizeof *y);
    for (uint32_t i = 0; i < n; i++)
        want[i] = y[i] = (float)vq_rng_normal(&rng);
    uint8_t *folds = take(4, n, at_end);
    draw_bytes(folds, n, 255);
    tier.times_byte_floats(y, folds, n);
    definition.times_byte_floats(want, folds, n);
    SAME("times_byte_floats", n, y, want, n * sizeof *y);

    int32_t *dots = take(5, n * sizeof *dots, at_end);
    for (uint32_t i = 0; i < n; i++)
        dots[i] = (int32_t)(vq_rng_next(&rng) % (1 << 24)) - (1 << 23);
    tier.scores(y, dots, 12345, 0.037F, z, -0.7F, n);
    definition.scores(want, dots, 12345, 0.037F, z, -0.7F, n);
    SAME("scores", n, y, want, n * sizeof *y);
    memcpy(want, x, n * sizeof *want);
    tier.add_scaled(x, dots, -777, 0.037F, n);
    definition.add_scaled(want, dots, -777, 0.037F, n);
    SAME("add_scaled", n, x, want, n * sizeof *x);
    if (n % 8 == 0) {
        int8_t *q = take(4, n, at_end);
        draw_bytes(bytes, n, 127);
        draw_bytes((uint8_t *)q, n, 254);
        for (uint32_t i = 0; i < n; i++)
            q[i] = (int8_t)((uint8_t)q[i] - 127);
        uint8_t *two = take(5, 2 * n, at_end), *table = take(2, 16, at_end);
        draw_bytes(table, 16, 255);
        tier.nibbles(two, (const uint8_t *)q, table, n);
        definition.nibbles(want_bytes, (const uint8_t *)q, table, n);
        SAME("nibbles", n, two, want_bytes, 2 * n);
        assert_int_equal(tier.dot_us(bytes, q, n), definition.dot_us(bytes, q, n));
        int8_t *high = take(5, n, at_end);
        for (uint32_t i = 0; i < n; i++) {
            high[i] = (int8_t)(i % 129 - 64);
            q[i] = (int8_t)(q[i] / 2);
        }
        assert_int_equal(tier.dot_wide(bytes, high, q, n), definition.dot_wide(bytes, high, q, n));
    }
}

/* Levels with bounds and of a uniform grid; rows of integers in a basis. */
static void check_levels(uint32_t n, bool at_end)
{
    enum { N_SCALES = 7 };
    float *z = take(0, n * sizeof *z, at_end), *y = take(1, n * sizeof *y, at_end);
    float *scale = take(2, n * sizeof *scale, at_end), inv[N_SCALES];
    float(*parts)[2][16] = take(3, N_SCALES * sizeof *parts, at_end), want[N_SCALES][2][16];
    for (uint32_t bits = 1; bits <= 7; bits++) {
        const vq_levels *from = bits > 4 ? &vq_levels_uniform[bits - 1] : &vq_levels_gaussian[bits - 1];
        const vq_codes_levels bounded = {from->bounds, from->v, 0.013F, (1u << bits) - 1};
        const vq_codes_levels uniform = {NULL, NULL, 0.013F, (1u << bits) - 1};
        draw(z, n);
        draw(y, n);
        draw(scale, n);
        draw(want[0][0], sizeof want / sizeof(float));
        memcpy(parts, want, sizeof want);
        for (uint32_t s = 0; s < N_SCALES; s++)
            inv[s] = 0.5F + 0.25F * (float)s;
        for (uint32_t i = 0; i < n; i += 5)
            z[i] = bits > 4 ? (float)(i % 17) - 8 : from->bounds[i % (1u << bits) % bounded.n_bounds];
        tier.fit_levels(parts, inv, N_SCALES, z, y, scale, bits > 4 ? &uniform : &bounded, n);
        definition.fit_levels(want, inv, N_SCALES, z, y, scale, bits > 4 ? &uniform : &bounded, n);
        SAME("fit_levels", n, parts, want, sizeof want);
        if (bits > 4) { /* the grid's own bounds say the same */
            uint8_t codes[MOST_D];
            float sums[2][16] = {{0}};
            definition.count(codes, z, inv[2], from->bounds, bounded.n_bounds, n);
            for (uint32_t i = 0; i < n; i++) {
                const float l = (float)from->v[codes[i]] * 0.013F * scale[i];
                sums[0][i % 16] += y[i] * l;
                sums[1][i % 16] += l * l;
            }
            memset(want, 0, sizeof want);
            definition.fit_levels(want, inv + 2, 1, z, y, scale, &uniform, n);
            SAME("fit_levels' grid", n, sums, want[0], sizeof sums);
        }
    }
}

static void check_sums(uint32_t n, bool at_end)
{
    float(*parts)[16] = take(0, n * sizeof *parts, at_end), *out = take(1, n * sizeof *out, at_end), want[MOST_D];
    draw(parts[0], 16 * n);
    tier.sum_parts(out, (const float(*)[16])parts, n);
    definition.sum_parts(want, (const float(*)[16])parts, n);
    SAME("sum_parts", n, out, want, n * sizeof *out);
}

static void check_project(uint32_t d, uint32_t n, bool at_end)
{
    const uint32_t width = (d + 7) / 8 * 8;
    const size_t n_x = (size_t)n * d, n_y = (size_t)n * width;
    float *x = take(0, n_x * sizeof *x, at_end), *y = take(1, n_y * sizeof *y, at_end);
    float *scale = take(2, width * sizeof *scale, at_end), *want = malloc(n_y * sizeof *want);
    int8_t *entries = take(3, (size_t)d * width, at_end);
    draw(x, (uint32_t)n_x);
    draw(scale, width);
    draw_bytes((uint8_t *)entries, (size_t)d * width, 255);
    tier.project(y, x, entries, scale, d, width, n);
    definition.project(want, x, entries, scale, d, width, n);
    SAME("project", d, y, want, n_y * sizeof *y);
    float sum = 0; /* of the last row's first coordinate */
    for (uint32_t i = 0; i < d; i++)
        sum += x[n_x - d + i] * (float)entries[(size_t)i * width];
    sum *= scale[0];
    SAME("project's sum", d, &sum, &want[n_y - width], sizeof sum);
    free(want);
}

static void check_weights(bool at_end)
{
    float *weights = take(0, 64 * sizeof *weights, at_end), *norms = take(1, 64 * sizeof *norms, at_end);
    uint8_t *bytes = take(2, 128, at_end), want[128];
    for (uint32_t kind = 0; kind < 40; kind++) {
        for (uint32_t i = 0; i < 64; i++) {
            weights[i] = kind == 0 ? 0 : (float)exp(vq_rng_normal(&rng) * (kind % 7));
            norms[i] = kind == 1 ? 1e-40F : (float)fabs(vq_rng_normal(&rng));
        }
        int32_t sum, want_sum;
        float a = tier.weigh_narrow(bytes, &sum, weights, norms);
        float b = definition.weigh_narrow(want, &want_sum, weights, norms);
        SAME("weigh_narrow", kind, bytes, want, 64);
        SAME("weigh_narrow's unit", kind, &a, &b, sizeof a);
        assert_int_equal(sum, want_sum);
        a = tier.weigh_wide(bytes, &sum, weights, norms);
        b = definition.weigh_wide(want, &want_sum, weights, norms);
        SAME("weigh_wide", kind, bytes, want, 128);
        SAME("weigh_wide's unit", kind, &a, &b, sizeof a);
        assert_int_equal(sum, want_sum);
    }
}

/* Packing on every tier, unpacking through a random table, products of tiles. */
static void check_tiles(uint32_t bits, uint32_t n_groups, uint32_t n_granules, bool at_end)
{
    const size_t row = 8 * (size_t)n_groups, n_packed = n_groups * n_granules * vq_codes_group_bytes(bits);
    const size_t n_lanes = vq_codes_lanes((uint32_t)row), n_keys = row * 64, n_values = n_lanes * 64;
    uint8_t *codes = take(0, 32 * row, at_end), *packed = take(1, n_packed, at_end), *want = malloc(n_values);
    uint8_t *table = take(2, 256, at_end), *tile;
    const ptrdiff_t t_ahead = n_granules == 1 ? 0 : 1 << 20; /* fetching touches nothing */
    for (uint32_t keys = 0; keys < 2; keys++) {
        const size_t n_tile = keys ? n_keys : n_values;
        tile = take(3, n_tile, at_end);
        for (uint32_t r = 0; r < n_granules; r++) {
            uint8_t *to = packed + r * n_packed / n_granules;
            draw_bytes(codes, 32 * row, (1u << bits) - 1);
            (keys ? tier.pack_keys : tier.pack_values)(to, codes, row, bits, n_groups);
            (keys ? definition.pack_keys : definition.pack_values)(want, codes, row, bits, n_groups);
            SAME("pack", row, to, want, n_packed / n_granules);
        }
        for (uint32_t plain = 0; plain <= (bits == 8); plain++) {
            draw_bytes(table, 256, keys ? 127 : 255);
            memset(tile, 3, n_tile);
            memset(want, 3, n_tile);
            if (keys) {
                tier.unpack_keys(tile, packed, bits, plain ? NULL : table, n_groups, n_granules, t_ahead);
                definition.unpack_keys(want, packed, bits, plain ? NULL : table, n_groups, n_granules, t_ahead);
            } else {
                const int8_t *t = (const int8_t *)table;
                tier.unpack_values((int8_t *)tile, packed, bits, plain ? NULL : t, n_groups, n_granules, t_ahead);
                definition.unpack_values((int8_t *)want, packed, bits, plain ? NULL : t, n_groups, n_granules, t_ahead);
            }
            SAME("unpack", row, tile, want, n_tile);
        }
    }
    free(want);
}

static void check_dots(uint32_t n_lanes, uint32_t n_quads, uint32_t n, bool at_end)
{
    const size_t stride = (size_t)n_lanes * 4;
    uint8_t *tile = take(0, stride * n_quads, at_end), *b = take(1, (size_t)n * n_quads * 4, at_end);
    int32_t *out = take(2, (size_t)n * n_lanes * 4, at_end), *want = malloc((size_t)n * n_lanes * 4);
    for (uint32_t kind = 0; kind < 6; kind++) {
        /* us: 7 bits times 8, 8 times 7; su: 8 times 7, 7 times 8 (drawn from -64..63); at the edges too */
        const uint32_t tile_most = kind % 2 ? 255 : 127, b_most = kind % 2 ? 128 : 254;
        draw_bytes(tile, stride * n_quads, tile_most);
        draw_bytes(b, (size_t)n * n_quads * 4, b_most);
        for (size_t i = 0; i < (size_t)n * n_quads * 4; i++)
            b[i] = (uint8_t)(b[i] - b_most / 2);
        if (kind >= 4) {
            memset(tile, (int)tile_most, stride * n_quads);
            memset(b, (int)(b_most / 2), (size_t)n * n_quads * 4);
        }
        tier.dots_us(out, n_lanes, tile, stride, n_lanes, n_quads, (const int8_t *)b, (size_t)n_quads * 4, n);
        definition.dots_us(want, n_lanes, tile, stride, n_lanes, n_quads, (const int8_t *)b, (size_t)n_quads * 4, n);
        SAME("dots_us", n, out, want, (size_t)n * n_lanes * 4);

        const uint32_t su_tile = kind % 2 ? 254 : 128, su_b = kind % 2 ? 127 : 255;
        draw_bytes(tile, stride * n_quads, su_tile);
        draw_bytes(b, (size_t)n * n_quads * 4, su_b);
        for (size_t i = 0; i < stride * n_quads; i++)
            tile[i] = (uint8_t)(tile[i] - su_tile / 2);
        if (kind >= 4) {
            memset(tile, kind % 2 ? -127 : -64, stride * n_quads);
            memset(b, (int)su_b, (size_t)n * n_quads * 4);
        }
        tier.dots_su(out, n_lanes, (const int8_t *)tile, stride, n_lanes, n_quads, b, (size_t)n_quads * 4, n);
        definition.dots_su(want, n_lanes, (const int8_t *)tile, stride, n_lanes, n_quads, b, (size_t)n_quads * 4, n);
        SAME("dots_su", n, out, want, (size_t)n * n_lanes * 4);
    }
    free(want);
}

/* Four sums of products as one. */
static void check_join(uint32_t n, bool at_end)
{
    const int64_t plus = n % 2 ? -(INT64_C(1) << 33) : 12345;
    int32_t *dots = take(0, (size_t)4 * n * sizeof *dots, at_end);
    float *out = take(1, n * sizeof *out, at_end), *want = malloc((n + 1) * sizeof *want);
    draw_bytes((uint8_t *)dots, (size_t)4 * n * sizeof *dots, 255);
    tier.join_wide(out, dots, n, plus, n);
    definition.join_wide(want, dots, n, plus, n);
    SAME("join_wide", n, out, want, n * sizeof *out);
    free(want);
}

/* Products without a tile: every tier equals the definition, and that equals its own tile and products over it. */
static void check_fused(uint32_t bits, uint32_t n_groups, uint32_t n_granules, uint32_t n, bool at_end)
{
    const size_t row = 8 * (size_t)n_groups, n_packed = n_groups * n_granules * vq_codes_group_bytes(bits);
    const size_t n_lanes = vq_codes_lanes((uint32_t)row), n_out = (size_t)n * (row > 64 ? row : 64);
    const ptrdiff_t t_ahead = n % 2 ? 0 : 1 << 20;
    uint8_t *packed = take(0, n_packed, at_end), *table = take(1, 256, at_end);
    int32_t *want = malloc(n_out * sizeof *want), *tiled = malloc((size_t)n * (n_lanes > 64 ? n_lanes : 64) * 4);
    uint8_t *tile = malloc(n_lanes * 64);
    draw_bytes(packed, n_packed, 255);

    uint8_t *b = take(2, n * row, at_end);
    int32_t *out = take(3, (size_t)n * 64 * sizeof *out, at_end);
    draw_bytes(table, 256, 127);
    draw_bytes(b, n * row, 254);
    for (size_t i = 0; i < n * row; i++)
        b[i] = (uint8_t)(b[i] - 127);
    memset(out, 7, (size_t)n * 64 * sizeof *out);
    memset(want, 7, (size_t)n * 64 * sizeof *out);
    memset(tiled, 7, (size_t)n * 64 * sizeof *out);
    tier.dots_keys(out, packed, bits, table, n_groups, n_granules, (const int8_t *)b, row, n, t_ahead);
    definition.dots_keys(want, packed, bits, table, n_groups, n_granules, (const int8_t *)b, row, n, t_ahead);
    definition.unpack_keys(tile, packed, bits, table, n_groups, n_granules, 0);
    definition.dots_us(tiled, 64, tile, 256, 32 * n_granules, 2 * n_groups, (const int8_t *)b, row, n);
    SAME("dots_keys", row, out, want, (size_t)n * 64 * sizeof *out);
    SAME("dots_us of a tile", row, tiled, want, (size_t)n * 64 * sizeof *out);

    b = take(2, n * (size_t)32 * n_granules, at_end);
    out = take(3, n * row * sizeof *out, at_end);
    draw_bytes(table, 256, 128);
    for (size_t i = 0; i < 256; i++)
        table[i] = (uint8_t)(table[i] - 64);
    draw_bytes(b, n * (size_t)32 * n_granules, 255);
    const int8_t *t = (const int8_t *)table;
    tier.dots_values(out, row, packed, bits, t, n_groups, n_granules, b, (size_t)32 * n_granules, n, t_ahead);
    definition.dots_values(want, row, packed, bits, t, n_groups, n_granules, b, (size_t)32 * n_granules, n, t_ahead);
    definition.unpack_values((int8_t *)tile, packed, bits, t, n_groups, n_granules, 0);
    definition.dots_su(tiled, n_lanes, (const int8_t *)tile, n_lanes * 4, (uint32_t)n_lanes, 8 * n_granules, b,
                       (size_t)32 * n_granules, n);
    SAME("dots_values", row, out, want, n * row * sizeof *out);
    for (uint32_t i = 0; i < n; i++)
        SAME("dots_su of a tile", row, tiled + i * n_lanes, want + i * row, row * sizeof *out);
    free(tile);
    free(tiled);
    free(want);
}

static void tiers_equal_the_definitions(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof tier_sets / sizeof tier_sets[0]; t++) {
        if ((vq_cpu_detect() & tier_sets[t]) != tier_sets[t]) {
            printf("SKIP: no %s here\n", tier_names[t]);
            continue;
        }
        tier_name = tier_names[t];
        vq_codes_kernels_init(&tier, tier_sets[t]);
        for (uint32_t end = 0; end < 2; end++) {
            for (size_t i = 0; i < N_SIZES; i++) {
                check_vectors(sizes[i], end);
                check_join(sizes[i], end);
            }
            for (uint32_t n = 8; n <= 128; n *= 2)
                for (uint32_t m = 1; m * n <= MOST_D; m += 2)
                    check_mix(m, n, end);
            for (size_t i = 0; i < N_SIZES; i++)
                check_levels(sizes[i], end);
            for (uint32_t n = 1; n <= 40; n++)
                check_sums(n, end);
            for (uint32_t d = 8; d <= 100; d += 23)
                for (uint32_t n = 1; n <= 17; n += 4)
                    check_project(d, n, end);
            check_weights(end);
            for (uint32_t bits = 1; bits <= 8; bits++)
                for (uint32_t groups = 1; groups <= 64; groups = groups < 5 ? groups + 1 : groups * 2 + 1)
                    for (uint32_t granules = 1; granules <= 2; granules++) {
                        check_tiles(bits, groups, granules, end);
                        for (uint32_t n = 1; n <= VQ_CODES_FUSED; n++)
                            check_fused(bits, groups, granules, n, end);
                    }
            for (uint32_t lanes = 16; lanes <= 160; lanes += 16)
                for (uint32_t n = 1; n <= 14; n++)
                    check_dots(lanes, n % 3 ? 8 * n : 5, n, end);
        }
    }
}

/* Where codes.h says that a code lies. */
static void codes_lie_where_the_drawing_says(void **state)
{
    (void)state;
    enum { ROW = 24 };
    uint8_t codes[32 * ROW], packed[3 * 256], tile[64 * 32], identity[256];
    for (uint32_t i = 0; i < 256; i++)
        identity[i] = (uint8_t)i;
    for (uint32_t bits = 1; bits <= 8; bits++) {
        draw_bytes(codes, sizeof codes, (1u << bits) - 1);
        definition.pack_keys(packed, codes, ROW, bits, 3);
        for (uint32_t g = 0; g < 3; g++)
            for (uint32_t s = 0; s < 4; s++)
                for (uint32_t i = 0; i < 64; i++) {
                    const uint8_t want = codes[(16 * (s & 1) + i / 4) * ROW + 8 * g + 4 * (s / 2) + i % 4];
                    const uint8_t *p = packed + g * vq_codes_group_bytes(bits);
                    uint32_t got = 0, at = 0;
                    if (bits == 8)
                        got = p[64 * s + i];
                    if (bits & 4) {
                        got |= (uint32_t)(p[64 * (s / 2) + i] >> (4 * (s % 2)) & 15);
                        at = 4;
                        p += 128;
                    }
                    if (bits & 2) {
                        got |= (uint32_t)(p[i] >> (2 * s) & 3) << at;
                        at += 2;
                        p += 64;
                    }
                    if (bits & 1)
                        got |= (uint32_t)(p[i % 32] >> (s + 4 * (i / 32)) & 1) << at;
                    assert_int_equal(got, want);
                }
        definition.unpack_keys(tile, packed, bits, identity, 3, 1, 0);
        for (uint32_t row = 0; row < 32; row++)
            for (uint32_t j = 0; j < ROW; j++)
                assert_int_equal(tile[(j / 4 * 64 + row) * 4 + j % 4], codes[row * ROW + j]);
        definition.pack_values(packed, codes, ROW, bits, 3);
        definition.unpack_values((int8_t *)tile, packed, bits, (const int8_t *)identity, 3, 1, 0);
        for (uint32_t row = 0; row < 32; row++)
            for (uint32_t j = 0; j < ROW; j++)
                assert_int_equal(tile[(row / 4 * 32 + j) * 4 + row % 4], codes[row * ROW + j]);
    }
}

/* Many small weights beside a large one keep their total. */
static void narrow_weights_keep_their_total(void **state)
{
    (void)state;
    float weights[64], norms[64];
    uint8_t bytes[64];
    for (uint32_t i = 0; i < 64; i++) {
        weights[i] = i == 21 ? 1 : 0.0013F;
        norms[i] = 1;
    }
    int32_t sum;
    const float unit = definition.weigh_narrow(bytes, &sum, weights, norms);
    double total = 0;
    for (uint32_t i = 0; i < 64; i++)
        total += weights[i];
    printf("total %.4f, kept %.4f\n", total, (double)unit * sum);
    assert_true(fabs((double)unit * sum - total) < 8.0 / 254); /* sixteen remainders below half a unit each */
    assert_true(fabs((double)unit * sum - total) < 0.25 * 63 * 0.0013);
}

int main(void)
{
    vq_rng_seed(&rng, 20);
    vq_codes_kernels_init(&definition, 0);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guards[i] = guard_open(GUARD_BYTES);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_lie_where_the_drawing_says),
        cmocka_unit_test(narrow_weights_keep_their_total),
        cmocka_unit_test(tiers_equal_the_definitions),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guard_close(&guards[i]);
    return failed;
}
