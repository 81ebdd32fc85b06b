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

enum { ROWS = VQ_NEAREST_ROWS, CODES = VQ_NEAREST_CODES, MOST_D = VQ_NEAREST_MOST_D, N_GUARDS = 3 };

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

static void check_centroids(const vq_nearest_kernels *tier, const char *name, uint32_t d, uint32_t kind, bool at_end)
{
    const size_t stride = d + kind, n = (ROWS - 1) * stride + d;
    float *columns = guard_take(&guards[0], (size_t)d * CODES * sizeof *columns, at_end);
    float *x = guard_take(&guards[1], n * sizeof *x, at_end);
    uint8_t *codes = guard_take(&guards[2], ROWS, at_end), want[ROWS];
    draw(columns, (size_t)d * CODES, kind);
    draw(x, n, kind);
    for (uint32_t c = 0; c < CODES && kind == 5; c++)
        columns[c] = c % 3 ? NAN : INFINITY;
    x[3 * stride] = NAN;
    x[5 * stride] = INFINITY;
    x[7 * stride] = -1e38F;
    memset(x + 9 * stride, 0, d * sizeof *x);
    definition.centroids(want, columns, d, x, stride);
    tier->centroids(codes, columns, d, x, stride);
    if (memcmp(codes, want, ROWS) != 0)
        fail_msg("centroids of tier %s differ from the definition, d = %u, kind %u", name, d, kind);
}

static void check_atoms(const vq_nearest_kernels *tier, const char *name, uint32_t n_bytes, uint32_t kind, bool at_end)
{
    const size_t stride = VQ_ATOM_VALUES + kind, n = (ROWS - 1) * stride + VQ_ATOM_VALUES;
    const size_t n_atoms = (size_t)n_bytes * VQ_ATOMS_A_BYTE * VQ_ATOM_VALUES;
    float *z = guard_take(&guards[0], n_atoms * sizeof *z, at_end), *x = guard_take(&guards[1], n * sizeof *x, at_end);
    uint8_t *codes = guard_take(&guards[2], (size_t)n_bytes * ROWS, at_end), want[VQ_ATOM_MOST_BITS * ROWS];
    draw(z, n_atoms, kind);
    draw(x, n, kind);
    x[3 * stride] = NAN;
    x[5 * stride] = INFINITY;
    x[7 * stride] = -1e38F;
    memset(x + 9 * stride, 0, VQ_ATOM_VALUES * sizeof *x);
    if (kind == 5)
        z[n_atoms - 1] = NAN;
    definition.atoms(want, z, n_bytes, x, stride);
    tier->atoms(codes, z, n_bytes, x, stride);
    if (memcmp(codes, want, (size_t)n_bytes * ROWS) != 0)
        fail_msg("atoms of tier %s differ from the definition, %u bytes, kind %u", name, n_bytes, kind);
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
        for (uint32_t round = 0; round < 60; round++)
            for (uint32_t n_bytes = 1; n_bytes <= VQ_ATOM_MOST_BITS; n_bytes++)
                check_atoms(&tier, tier_names[t], n_bytes, round % 6, round / 6 % 2);
    }
}

/* Centroids that are told apart by more than roundings, and the lowest of those that are the same. */
static void the_nearest_is_found(void **state)
{
    (void)state;
    for (uint32_t d = 1; d <= MOST_D; d++) {
        float columns[MOST_D * CODES], x[ROWS * MOST_D];
        uint8_t codes[ROWS];
        draw(columns, (size_t)d * CODES, 0);
        for (uint32_t j = 0; j < d; j++) /* 200 is 7 once more */
            columns[(size_t)j * CODES + 200] = columns[(size_t)j * CODES + 7];
        draw(x, (size_t)ROWS * d, 0);
        for (uint32_t j = 0; j < d; j++)
            x[j] = columns[(size_t)j * CODES + 7];
        definition.centroids(codes, columns, d, x, d);
        for (uint32_t i = 0; i < ROWS; i++) {
            double off[CODES], least = INFINITY;
            for (uint32_t c = 0; c < CODES; c++) {
                off[c] = 0;
                for (uint32_t j = 0; j < d; j++)
                    off[c] += pow((double)x[i * d + j] - (double)columns[(size_t)j * CODES + c], 2);
                least = off[c] < least ? off[c] : least;
            }
            assert_true(off[codes[i]] < least + 1e-5);
            assert_int_not_equal(codes[i], 200);
        }
        if (d > 2)
            assert_int_equal(codes[0], 7);
    }
}

/* What a byte's code adds to y, spelled out. */
static void add_atoms(double *y, const float *z, uint32_t code)
{
    for (uint32_t n = 0; n < VQ_ATOMS_A_BYTE; n++, z += VQ_ATOM_VALUES) {
        const double a = code >> 2 * n & 1 ? 1 : -1, b = code >> (2 * n + 1) & 1 ? 1 : -1;
        for (uint32_t j = 0; j < VQ_ATOM_VALUES; j += 2) {
            y[j] += a * (double)z[j] - b * (double)z[j + 1];
            y[j + 1] += a * (double)z[j + 1] + b * (double)z[j];
        }
    }
}

static double off(const float *x, const double *y)
{
    double sum = 0;
    for (uint32_t j = 0; j < VQ_ATOM_VALUES; j++)
        sum += ((double)x[j] - y[j]) * ((double)x[j] - y[j]);
    return sum;
}

/* One byte is the best of all; of two the second is the best beside the first. */
static void the_nearest_atoms_are_found(void **state)
{
    (void)state;
    enum { V = VQ_ATOM_VALUES };
    for (uint32_t n_bytes = 1; n_bytes <= VQ_ATOM_MOST_BITS; n_bytes++) {
        float z[VQ_ATOM_MOST_BITS * VQ_ATOMS_A_BYTE * V], x[ROWS * V];
        uint8_t codes[VQ_ATOM_MOST_BITS * ROWS];
        draw(z, sizeof z / sizeof *z, 0);
        draw(x, sizeof x / sizeof *x, 0);
        definition.atoms(codes, z, n_bytes, x, V);
        for (uint32_t i = 0; i < ROWS; i++) {
            double least = INFINITY, got = 0;
            for (uint32_t c = 0; c < CODES; c++) {
                double y[V] = {0};
                if (n_bytes > 1)
                    add_atoms(y, z, codes[i]);
                add_atoms(y, z + (size_t)(n_bytes - 1) * VQ_ATOMS_A_BYTE * V, c);
                const double now = off(x + (size_t)i * V, y);
                least = now < least ? now : least;
                got = c == codes[(n_bytes - 1) * ROWS + i] ? now : got;
            }
            assert_true(got < least + 1e-4);
        }
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
        cmocka_unit_test(the_nearest_atoms_are_found),
        cmocka_unit_test(tiers_equal_the_definitions),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (uint32_t i = 0; i < N_GUARDS; i++)
        guard_close(&guards[i]);
    return failed;
}
