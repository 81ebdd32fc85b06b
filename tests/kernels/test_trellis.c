/* Every tier of kernels/trellis.h against the definitions, bit for bit, with guard pages on both sides of every array;
 * and the definitions against what trellis.h draws. */
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
#include "kernels/trellis.h"

enum { MOST_GROUPS = 64, MOST_COORDINATES = 64, N_GUARDS = 5, GUARD_BYTES = 1 << 17 };

static const uint32_t tier_sets[] = {VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[] = {"avx2", "avx512"};

static guard guards[N_GUARDS];
static vq_trellis_kernels tier, definition;
static const char *tier_name;
static vq_rng rng;

static void *take(uint32_t which, size_t n_bytes, bool at_end) { return guard_take(&guards[which], n_bytes, at_end); }

static void draw_bytes(uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (uint8_t)vq_rng_next(&rng);
}

#define SAME(what, n, got, want, n_bytes)                                                                              \
    do {                                                                                                               \
        if (memcmp(got, want, n_bytes) != 0)                                                                           \
            fail_msg("%s of tier %s differs from the definition, n = %u", what, tier_name, (unsigned)(n));             \
    } while (0)

static void check_costs(uint32_t bits, uint32_t n, bool at_end)
{
    const size_t n_values = (size_t)n * VQ_TRELLIS_ROWS, n_costs = n_values * vq_trellis_sets(bits);
    static uint16_t want[MOST_COORDINATES * VQ_TRELLIS_ROWS * VQ_TRELLIS_SETS];
    float *x = take(0, n_values * sizeof *x, at_end);
    uint16_t *cost = take(1, n_costs * sizeof *cost, at_end);
    const vq_trellis_table *t = &definition.tables[bits - 1];
    for (size_t i = 0; i < n_values; i++) {
        const uint32_t kind = (uint32_t)(vq_rng_next(&rng) % 16);
        x[i] = kind == 0   ? 0
               : kind == 1 ? 1e-40F
               : kind == 2 ? 1e30F /* squares overflow */
               : kind == 3 ? t->level[vq_rng_next(&rng) % 16]
               : kind == 4 ? -40
                           : (float)vq_rng_normal(&rng);
    }
    tier.costs(cost, x, t, n);
    definition.costs(want, x, t, n);
    SAME("costs", n, cost, want, n_costs * sizeof *cost);
}

/* Metrics all over the range, so that sums saturate, or as near as they are when nothing does; few different costs, so
 * that many are equal. */
static void check_walk(uint32_t bits, bool at_end)
{
    enum { N_METRICS = VQ_TRELLIS_STATES * VQ_TRELLIS_ROWS };
    const uint32_t n_costs = 8 * vq_trellis_sets(bits) * VQ_TRELLIS_ROWS;
    static uint16_t want[N_METRICS];
    static uint32_t want_back[8 * VQ_TRELLIS_STATES];
    uint16_t *cost = take(0, n_costs * sizeof *cost, at_end), *metric = take(1, N_METRICS * sizeof *metric, at_end);
    uint32_t *back = take(2, sizeof want_back, at_end);
    const uint32_t modes = (uint32_t)(vq_rng_next(&rng) % 4);
    const bool far = modes > 1;
    for (uint32_t i = 0; i < N_METRICS; i++) {
        const uint16_t any = (uint16_t)vq_rng_next(&rng);
        want[i] = metric[i] = (uint16_t)(modes == 0   ? 0
                                         : modes == 1 ? any % (8 * VQ_TRELLIS_TOP_COST + 1)
                                         : modes == 2 ? any
                                         : any == 77  ? 0
                                                      : UINT16_MAX);
    }
    for (uint32_t i = 0; i < n_costs; i++)
        cost[i] = (uint16_t)(vq_rng_next(&rng) % 5 * (VQ_TRELLIS_TOP_COST / 4));
    tier.walk(back, metric, cost, &definition.tables[bits - 1], far);
    definition.walk(want_back, want, cost, &definition.tables[bits - 1], far);
    SAME("walk's metric", bits, metric, want, sizeof want);
    SAME("walk's bits", bits, back, want_back, sizeof want_back);
}

/* Any states and lost bits; coordinates on levels, between two, and far away. */
static void check_trace(uint32_t bits, bool at_end)
{
    enum { N = VQ_TRELLIS_ROWS, N_X = 8 * N };
    const vq_trellis_table *t = &definition.tables[bits - 1];
    const size_t n_other = (size_t)N * (bits - 1);
    uint8_t want_state[N], want_other[(VQ_TRELLIS_MAX_BITS - 1) * N] = {0};
    float want_x[N_X];
    uint32_t *back = take(0, sizeof *back * 8 * VQ_TRELLIS_STATES, at_end);
    float *x = take(1, sizeof want_x, at_end);
    uint8_t *state = take(2, N, at_end), *other = take(3, n_other, at_end);
    draw_bytes((uint8_t *)back, sizeof *back * 8 * VQ_TRELLIS_STATES);
    draw_bytes(state, N);
    memcpy(want_state, state, N);
    for (uint32_t i = 0; i < N_X; i++) {
        const float *level = &t->level[vq_rng_next(&rng) % t->sets];
        const uint32_t kind = (uint32_t)(vq_rng_next(&rng) % 8);
        want_x[i] = x[i] = kind == 0   ? *level
                           : kind == 1 ? 0.5F * (level[0] + level[bits > 1 ? t->sets : 0])
                           : kind == 2 ? -40
                                       : (float)vq_rng_normal(&rng);
    }
    tier.trace(state, x, other, back, t);
    definition.trace(want_state, want_x, want_other, back, t);
    SAME("trace's states", bits, state, want_state, sizeof want_state);
    SAME("trace's levels", bits, x, want_x, sizeof want_x);
    SAME("trace's bits", bits, other, want_other, n_other);
}

static void check_tiles(uint32_t n_groups, uint32_t n_granules, uint32_t pattern, bool at_end)
{
    static uint8_t want[64 * 8 * MOST_GROUPS];
    uint8_t *bits = take(0, n_groups, at_end);
    for (uint32_t g = 0; g < n_groups; g++)
        bits[g] = (uint8_t)(pattern <= VQ_TRELLIS_MAX_BITS ? pattern : vq_rng_next(&rng) % (VQ_TRELLIS_MAX_BITS + 1));
    const size_t packed_bytes = (size_t)32 * n_granules * vq_trellis_row_bytes(bits, n_groups);
    uint8_t *packed = take(1, packed_bytes, at_end);
    draw_bytes(packed, packed_bytes);
    const ptrdiff_t ahead = vq_rng_next(&rng) % 2 ? 4096 : 0;

    /* Tiles of keys lie as their tier likes: its products say what is in them. */
    const uint32_t n_queries = 1 + (uint32_t)(vq_rng_next(&rng) % 8), width = 8 * n_groups;
    static int32_t want_dots[8 * 512];
    uint8_t *tile = take(2, (size_t)512 * n_groups, at_end);
    int8_t *b = take(3, (size_t)2 * n_queries * width, at_end);
    int32_t *dots = take(4, (size_t)64 * n_queries * sizeof *dots, at_end);
    tier.unpack_keys(tile, packed, bits, n_groups, n_granules, tier.tables, ahead);
    definition.unpack_keys(want, packed, bits, n_groups, n_granules, definition.tables, 0);
    for (uint32_t time = 0; time < 6; time++) { /* single coordinates, the largest, any; one half; a half a granule */
        const size_t low = time < 4 ? width : 0, second = time < 5 ? 0 : width;
        for (uint32_t i = 0; i < 2 * n_queries * width; i++) {
            const int any = (int)(vq_rng_next(&rng) % (time >= 4 ? 255 : 129)) - (time >= 4 ? 127 : 64);
            b[i] = (int8_t)(time == 0 ? i % width == i / width * 3 % width : time == 1 ? -64 : time == 2 ? 64 : any);
        }
        tier.dots_keys(dots, tile, n_groups, n_granules, b, low, second, (size_t)2 * width, n_queries);
        definition.dots_keys(want_dots, want, n_groups, n_granules, b, low, second, (size_t)2 * width, n_queries);
        for (uint32_t i = 0; i < n_queries; i++)
            SAME("dots_keys", n_groups, dots + (size_t)64 * i, want_dots + (size_t)64 * i,
                 32 * n_granules * sizeof *dots);
    }

    const uint32_t n_fused = 1 + n_queries % VQ_TRELLIS_FUSED;
    uint8_t *weights = take(3, (size_t)32 * n_granules * n_fused, at_end);
    draw_bytes(weights, (size_t)32 * n_granules * n_fused);
    dots = take(4, width * n_fused * sizeof *dots, at_end);
    tier.dots_values(dots, width, packed, bits, n_groups, n_granules, tier.tables, weights, (size_t)32 * n_granules,
                     n_fused, ahead);
    definition.dots_values(want_dots, width, packed, bits, n_groups, n_granules, definition.tables, weights,
                           (size_t)32 * n_granules, n_fused, 0);
    SAME("dots_values", n_groups, dots, want_dots, width * n_fused * sizeof *dots);

    const size_t tile_bytes = (size_t)32 * n_granules * ((8 * n_groups + 15) / 16 * 16);
    int8_t *values = take(3, tile_bytes, at_end);
    memset(values, 99, tile_bytes);
    memset(want, 99, sizeof want);
    tier.unpack_values(values, packed, bits, n_groups, n_granules, tier.tables, ahead);
    definition.unpack_values((int8_t *)want, packed, bits, n_groups, n_granules, definition.tables, 0);
    SAME("unpack_values", n_groups, values, want, tile_bytes);
}

static void tiers_give_the_definitions(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 7, 8, 15, 16, 32, 33, 64};
    const uint32_t cpu = vq_cpu_detect();
    for (uint32_t t = 0; t < 2; t++) {
        if ((cpu & tier_sets[t]) != tier_sets[t]) {
            printf("no %s here\n", tier_names[t]);
            continue;
        }
        tier_name = tier_names[t];
        vq_trellis_kernels_init(&tier, tier_sets[t]);
        for (uint32_t at_end = 0; at_end < 2; at_end++) {
            for (uint32_t bits = 1; bits <= VQ_TRELLIS_MAX_BITS; bits++)
                for (uint32_t i = 0; i < 32; i++) {
                    check_costs(bits, 1 + i, at_end);
                    check_walk(bits, at_end);
                    check_trace(bits, at_end);
                }
            for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
                for (uint32_t pattern = 0; pattern < 9; pattern++)
                    for (uint32_t n_granules = 1; n_granules <= 2; n_granules++)
                        check_tiles(sizes[i], n_granules, pattern, at_end);
        }
    }
}

/* Window by window from the codes of a row, as the header tells it, against both tiles and vq_trellis_levels. */
static void definitions_follow_the_drawing(void **state)
{
    (void)state;
    enum { GROUPS = 7, ROWS = 64, WIDTH = 8 * GROUPS, LANES = WIDTH + 8 };
    static const uint8_t bits[GROUPS] = {3, 0, 1, 4, 2, 5, 0}, at[GROUPS] = {0, 0, 3, 4, 8, 10, 0};
    static const uint8_t before[GROUPS] = {5, 0, 0, 2, 3, 4, 0};
    enum { BYTES = 15 };
    uint8_t codes[ROWS][BYTES], packed[ROWS * BYTES];
    static uint8_t keys[ROWS * LANES];
    static int8_t values[ROWS * LANES];
    draw_bytes(codes[0], sizeof codes);
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < BYTES; i++)
            packed[r / 32 * 32 * BYTES + 32 * i + 16 * (r % 32 / 4 % 2) + 4 * (r % 32 / 8) + r % 4] = codes[r][i];
    definition.unpack_keys(keys, packed, bits, GROUPS, 2, definition.tables, 0);
    definition.unpack_values(values, packed, bits, GROUPS, 2, definition.tables, 0);
    for (uint32_t r = 0; r < ROWS; r++) {
        float level[WIDTH];
        vq_trellis_levels(&definition, level, codes[r], bits, GROUPS);
        for (uint32_t j = 0; j < WIDTH; j++) {
            const uint32_t g = j / 8, p = j % 8;
            const uint8_t key = keys[((size_t)j / 4 * 64 + r) * 4 + j % 4];
            const int8_t value = values[((size_t)r / 4 * LANES + j) * 4 + r % 4];
            if (!bits[g]) {
                assert_true(key == 64 && value == 0 && level[j] == 0);
                continue;
            }
            const vq_trellis_code *code = &vq_trellis_gaussian[bits[g] - 1];
            const uint32_t window = ((uint32_t)codes[r][at[g]] << 8 | codes[r][at[before[g]]]) >> p & 511;
            const uint32_t n_taps = bits[g] < 5 ? 4 : 3; /* 16 sets or 8 */
            uint32_t which = 0;
            for (uint32_t i = 0; i < n_taps; i++)
                which |= (uint32_t)__builtin_parity(window & code->taps[i]) << i;
            for (uint32_t l = 1; l < bits[g]; l++)
                which |= (uint32_t)(codes[r][at[g] + l] >> p & 1) << (n_taps - 1 + l);
            assert_int_equal(value, code->value[which]);
            assert_int_equal(key, code->value[which] + 64);
            assert_true(level[j] == code->step * (float)(2 * value + 1));
        }
    }
}

/* A searched row's codes are the same on every tier. */
static void rows_are_the_same(void **state)
{
    (void)state;
    const uint32_t cpu = vq_cpu_detect();
    for (uint32_t t = 0; t < 2; t++) {
        if ((cpu & tier_sets[t]) != tier_sets[t])
            continue;
        tier_name = tier_names[t];
        vq_trellis_kernels_init(&tier, tier_sets[t]);
        for (uint32_t n_groups = 1; n_groups <= MOST_GROUPS; n_groups += n_groups < 10 ? 1 : 27) {
            enum { ROW = VQ_TRELLIS_MAX_BITS * MOST_GROUPS, N = VQ_TRELLIS_ROWS };
            static uint8_t got[N * ROW], want[N * ROW];
            static float x[2][8 * MOST_GROUPS * N];
            uint8_t bits[MOST_GROUPS];
            for (uint32_t g = 0; g < n_groups; g++)
                bits[g] = (uint8_t)(vq_rng_next(&rng) % (VQ_TRELLIS_MAX_BITS + 1));
            for (uint32_t j = 0; j < 8 * n_groups * N; j++)
                x[0][j] = x[1][j] = (float)vq_rng_normal(&rng) * (j % 50 == 9 ? 20 : 1);
            vq_trellis_search(&tier, got, x[0], bits, n_groups);
            vq_trellis_search(&definition, want, x[1], bits, n_groups);
            SAME("search", n_groups, got, want, (size_t)N * vq_trellis_row_bytes(bits, n_groups));
            SAME("search's levels", n_groups, x[0], x[1], (size_t)8 * n_groups * N * sizeof x[0][0]);
        }
    }
}

int main(void)
{
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guards[i] = guard_open(GUARD_BYTES);
    vq_rng_seed(&rng, 1);
    vq_trellis_kernels_init(&definition, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(definitions_follow_the_drawing),
        cmocka_unit_test(tiers_give_the_definitions),
        cmocka_unit_test(rows_are_the_same),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guard_close(&guards[i]);
    return failed;
}
