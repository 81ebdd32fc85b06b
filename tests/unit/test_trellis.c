/* Trellis codes: how far from the bound of rate and distortion, against all paths where these can be counted, and that
 * pages say what rows were coded as. */
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
#include "quant/trelliscode.h"

static vq_kernels kernels;

static void draw(float *x, uint32_t n, vq_rng *rng)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)vq_rng_normal(rng);
}

static double squared_error(const float *x, const uint8_t *codes, const uint8_t *bits, uint32_t n_groups)
{
    float level[8 * VQ_TRELLIS_MAX_GROUPS];
    double sum = 0;
    vq_trellis_levels(&kernels.trellis, level, codes, bits, n_groups);
    for (uint32_t j = 0; j < 8 * n_groups; j++)
        sum += pow((double)x[j] - (double)level[j], 2);
    return sum;
}

/* x [n_rows][8 n_groups], at most 32 rows -> codes, vq_trellis_row_bytes a row */
static void search(uint8_t *codes, const float *x, uint32_t n_rows, const uint8_t *bits, uint32_t n_groups)
{
    static float lanes[8 * VQ_TRELLIS_MAX_GROUPS * VQ_TRELLIS_ROWS];
    static uint8_t all[VQ_TRELLIS_ROWS * VQ_TRELLIS_MAX_BITS * VQ_TRELLIS_MAX_GROUPS];
    const uint32_t d = 8 * n_groups, row_bytes = vq_trellis_row_bytes(bits, n_groups);
    memset(lanes, 0, sizeof lanes);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t j = 0; j < d; j++)
            lanes[j * VQ_TRELLIS_ROWS + r] = x[(size_t)r * d + j];
    vq_trellis_search(&kernels.trellis, all, lanes, bits, n_groups);
    memcpy(codes, all, (size_t)n_rows * row_bytes);
    float level[8 * VQ_TRELLIS_MAX_GROUPS];
    for (uint32_t r = 0; r < n_rows; r++) { /* what the search leaves is what its codes stand for */
        vq_trellis_levels(&kernels.trellis, level, codes + (size_t)r * row_bytes, bits, n_groups);
        for (uint32_t j = 0; j < d; j++)
            if (lanes[j * VQ_TRELLIS_ROWS + r] != level[j])
                fail_msg("row %u, coordinate %u: %g, its codes stand for %g", r, j, lanes[j * VQ_TRELLIS_ROWS + r],
                         level[j]);
    }
}

/* dB above the bound 4^-rate of n_rows rows; bits [d / 8] */
static double above_bound(const uint8_t *bits, uint32_t d, uint32_t n_rows)
{
    static float x[VQ_TRELLIS_ROWS * 8 * VQ_TRELLIS_MAX_GROUPS];
    static uint8_t codes[VQ_TRELLIS_ROWS * VQ_TRELLIS_MAX_BITS * VQ_TRELLIS_MAX_GROUPS];
    const uint32_t row_bytes = vq_trellis_row_bytes(bits, d / 8);
    double sum = 0;
    vq_rng rng;
    vq_rng_seed(&rng, 5 + d);
    assert_int_equal(n_rows % VQ_TRELLIS_ROWS, 0);
    for (uint32_t done = 0; done < n_rows; done += VQ_TRELLIS_ROWS) {
        draw(x, VQ_TRELLIS_ROWS * d, &rng);
        search(codes, x, VQ_TRELLIS_ROWS, bits, d / 8);
        for (uint32_t r = 0; r < VQ_TRELLIS_ROWS; r++)
            sum += squared_error(x + (size_t)r * d, codes + (size_t)r * row_bytes, bits, d / 8);
    }
    const double rate = 8.0 * vq_trellis_row_bytes(bits, d / 8) / d;
    return 10 * log10(sum / ((double)n_rows * d)) + 20 * log10(2) * rate;
}

/* Scalar codes are 1.6, 2.7, 3.4, 3.9 and 4.1 dB above it.  With 32,768 values the standard error is 0.03 dB. */
static void codes_come_near_the_bound(void **state)
{
    (void)state;
    static const double most[VQ_TRELLIS_MAX_BITS] = {0.8, 1.2, 1.5, 1.5, 2};
    for (uint32_t b = 1; b <= VQ_TRELLIS_MAX_BITS; b++) {
        uint8_t bits[VQ_TRELLIS_MAX_GROUPS];
        memset(bits, (int)b, sizeof bits);
        const double rows = above_bound(bits, 64, 512), long_rows = above_bound(bits, 512, 64);
        printf("%u bits: %.2f dB at d=64, %.2f dB at d=1024, table %.2f dB\n", b, rows, long_rows,
               10 * log10((double)vq_trellis_gaussian[b - 1].error) + 20 * log10(2) * b);
        assert_true(rows < most[b - 1] && long_rows < most[b - 1] - 0.1);
        assert_true(fabs(10 * log10((double)vq_trellis_gaussian[b - 1].error) + 20 * log10(2) * b - long_rows) < 0.15);
    }
}

/* Of two codes, in halves: no worse than the mean of their errors, to a tenth of a dB, each with its own. */
static void mixed_bits_cost_nothing(void **state)
{
    (void)state;
    enum { D = 128, N = VQ_TRELLIS_ROWS };
    static float x[N * D];
    uint8_t codes[N * D / 2], bits[16], alike[16];
    double mixed[2] = {0}, own[2] = {0};
    vq_rng rng;
    vq_rng_seed(&rng, 9);
    for (uint32_t g = 0; g < 16; g++)
        bits[g] = g < 8 ? 3 : 2;
    for (uint32_t batch = 0; batch < 8; batch++) {
        float level[D];
        draw(x, N * D, &rng);
        for (uint32_t half = 0; half < 2; half++) {
            memset(alike, 3 - (int)half, sizeof alike);
            search(codes, x, N, alike, 16);
            for (uint32_t r = 0; r < N; r++) {
                vq_trellis_levels(&kernels.trellis, level, codes + r * vq_trellis_row_bytes(alike, 16), alike, 16);
                for (uint32_t j = 64 * half; j < 64 * half + 64; j++)
                    own[half] += pow((double)x[r * D + j] - (double)level[j], 2);
            }
        }
        search(codes, x, N, bits, 16);
        for (uint32_t r = 0; r < N; r++) {
            vq_trellis_levels(&kernels.trellis, level, codes + r * vq_trellis_row_bytes(bits, 16), bits, 16);
            for (uint32_t j = 0; j < D; j++)
                mixed[j / 64] += pow((double)x[r * D + j] - (double)level[j], 2);
        }
    }
    for (uint32_t half = 0; half < 2; half++) {
        const double worse = 10 * log10(mixed[half] / own[half]);
        printf("%u bits among 3 and 2: %+.3f dB\n", 3 - half, worse);
        assert_true(worse < 0.1);
    }
}

/* Least error of all paths that have this state at both ends, x [n], all of `bits` bits. */
static double best_path(const float *x, uint32_t n, uint32_t bits, uint32_t state)
{
    const vq_trellis_table *t = &kernels.trellis.tables[bits - 1];
    double metric[VQ_TRELLIS_STATES], next[VQ_TRELLIS_STATES];
    for (uint32_t s = 0; s < VQ_TRELLIS_STATES; s++)
        metric[s] = s == state ? 0 : INFINITY;
    for (uint32_t j = 0; j < n; j++) {
        double error[VQ_TRELLIS_SETS];
        for (uint32_t i = 0; i < t->sets; i++) {
            error[i] = INFINITY;
            for (uint32_t l = i; l < vq_trellis_n_levels(bits); l += t->sets)
                error[i] = fmin(error[i], pow((double)x[j] - (double)t->level[l], 2));
        }
        for (uint32_t s = 0; s < VQ_TRELLIS_STATES; s++)
            next[s] =
                fmin(metric[2 * s % 256] + error[t->set[2 * s]], metric[2 * s % 256 + 1] + error[t->set[2 * s + 1]]);
        memcpy(metric, next, sizeof metric);
    }
    return metric[state];
}

/* Given the state at the cut, which is the last byte, the search is exact up to the rounding of costs, a unit each.
 * Which state that should be is guessed, and the loss has to be small; the best one by trying all 256. */
static void paths_are_the_best(void **state)
{
    (void)state;
    enum { D = 64, N_ROWS = 24 };
    static const uint32_t tried[] = {1, 2, 3, 5};
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t b = tried[i];
        const double rounding = D / (double)kernels.trellis.tables[b - 1].unit;
        uint8_t bits[D / 8], all_codes[N_ROWS * D];
        float rows[N_ROWS * D];
        memset(bits, (int)b, sizeof bits);
        double all = 0, found = 0;
        vq_rng rng;
        vq_rng_seed(&rng, b);
        draw(rows, N_ROWS * D, &rng);
        search(all_codes, rows, N_ROWS, bits, D / 8);
        for (uint32_t r = 0; r < N_ROWS; r++) {
            const float *x = rows + (size_t)r * D;
            const uint8_t *codes = all_codes + (size_t)r * D / 8 * b;
            const double e = squared_error(x, codes, bits, D / 8);
            const double through = best_path(x, D, b, codes[(D / 8 - 1) * b]);
            if (e > through + rounding || e < through - 1e-3)
                fail_msg("%u bits, row %u: error %.5f, best through its state %.5f", b, r, e, through);
            double best = INFINITY;
            for (uint32_t s = 0; s < VQ_TRELLIS_STATES; s++)
                best = fmin(best, best_path(x, D, b, s));
            all += best;
            found += e;
        }
        printf("%u bits: %.3f dB above the best of all paths\n", b, 10 * log10(found / all));
        assert_true(found < 1.05 * all);
    }
}

/* ---- pages ---- */

typedef struct setup {
    vq_trelliscode code;
    uint32_t d;
    float of_group[VQ_TRELLISCODE_MAX_GROUPS], scale[VQ_ROWCODE_MAX_D], gains[64];
    float y[64 * VQ_ROWCODE_MAX_D], decoded[64 * VQ_ROWCODE_MAX_D];
    uint8_t page[64 * VQ_ROWCODE_MAX_D / 8 * VQ_TRELLIS_MAX_BITS];
} setup;

static void encode(setup *s, uint32_t d, uint32_t pattern, bool keys)
{
    uint8_t bits[VQ_TRELLISCODE_MAX_GROUPS], codes[32 * VQ_ROWCODE_MAX_D / 8 * VQ_TRELLIS_MAX_BITS];
    vq_rng rng;
    vq_rng_seed(&rng, d + pattern);
    const uint32_t n_groups = (d + 7) / 8;
    for (uint32_t g = 0; g < n_groups; g++)
        bits[g] = (uint8_t)(pattern <= VQ_TRELLIS_MAX_BITS ? pattern : vq_rng_next(&rng) % (VQ_TRELLIS_MAX_BITS + 1));
    memset(s->scale, 0, sizeof s->scale);
    for (uint32_t g = 0; g < n_groups; g++)
        s->of_group[g] = 1 + (float)(g % 5);
    for (uint32_t j = 0; j < d; j++)
        s->scale[j] = s->of_group[j / 8];
    vq_trelliscode_make(&s->code, bits, s->of_group, &kernels, d, keys, pattern == 3);
    s->d = d;
    const uint32_t width = s->code.width;
    memset(s->y, 0, sizeof s->y);
    for (uint32_t r = 0; r < 64; r++)
        for (uint32_t j = 0; j < d; j++)
            s->y[r * width + j] = r == 7 ? 0 : (float)vq_rng_normal(&rng) * s->scale[j] * (float)(r + 1);
    memset(s->page, 0, sizeof s->page);
    for (uint32_t g = 0; g < 2; g++) {
        vq_trelliscode_encode(&s->code, codes, s->gains + 32 * g, s->y + (size_t)32 * g * width, width);
        vq_trelliscode_pack(&s->code, s->page, g, codes);
    }
    vq_trelliscode_decode(&s->code, s->page, s->gains, 0, 64, s->decoded);
}

static void rows_come_back(void **state)
{
    (void)state;
    static setup s;
    static const double rate_error[] = {1, 0.33, 0.087, 0.0235, 0.0062, 0.00174};
    /* 1.2 dB above the bound, 2.5 with 5 bits */
    for (uint32_t b = 1; b <= VQ_TRELLIS_MAX_BITS; b++) {
        encode(&s, 128, b, true);
        double error = 0, whole = 0, along = 0;
        for (uint32_t r = 0; r < 64; r++)
            for (uint32_t j = 0; j < 128; j++) {
                const double scale = (double)s.scale[j] * (r + 1), want = (double)s.y[r * 128 + j] / scale;
                const double got = (double)s.decoded[r * 128 + j] / scale;
                error += (got - want) * (got - want);
                whole += want * want;
                along += (double)(s.y[r * 128 + j] * s.decoded[r * 128 + j]) / (scale * scale);
            }
        /* unshrunk rows have D / (1 - D) */
        printf("%u bits: error %.4f, slope %.4f\n", b, error / whole, along / whole);
        assert_true(error / whole < rate_error[b] / (1 - rate_error[b]));
        assert_true(fabs(along / whole - 1) < 0.02);
        assert_true(s.gains[7] == 0);
    }
}

/* Scores and sums against what decode gives.  14-bit queries: 1/8191 of the largest coordinate at most, half of that on
 * average; weights as bytes: 1/255 of the largest, carried on to other rows. */
static void check_products(setup *s)
{
    static float acc[2 * VQ_ROWCODE_MAX_D];
    const uint32_t width = s->code.width, n = 2;
    _Alignas(64) uint8_t queries[2 * (64 + 2 * VQ_ROWCODE_MAX_D)];
    float q[2 * VQ_ROWCODE_MAX_D] = {0}, bases[4] = {1, 2, 3, 4}, out[128], weights[128];
    const size_t stride = vq_trelliscode_query_bytes(&s->code);
    vq_rng rng;
    vq_rng_seed(&rng, 1);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < s->d; j++)
            q[i * width + j] = (float)vq_rng_normal(&rng);
        vq_trelliscode_prepare(&s->code, queries + i * stride, q + (size_t)i * width);
    }
    for (uint32_t i = 0; i < 128; i++)
        weights[i] = (float)vq_rng_uniform(&rng);
    if (s->code.keys) {
        vq_trelliscode_score(&s->code, s->page, NULL, s->gains, 2, queries, stride, n, bases, out);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t r = 0; r < 64; r++) {
                double want = (double)bases[2 * i + r / 32], size = 0, most = 0, squares = 0;
                for (uint32_t j = 0; j < s->d; j++) {
                    want += (double)q[i * width + j] * (double)s->decoded[r * width + j];
                    size += pow((double)s->decoded[r * width + j], 2) + 25 * pow((double)s->gains[r], 2);
                    most = fmax(most, fabs((double)q[i * width + j] * (double)s->scale[j]));
                    squares += pow((double)s->decoded[r * width + j] / (double)s->scale[j], 2);
                }
                /* narrow: a step is 1/127 of the largest scaled coordinate, and errors are uniform within one */
                const double narrow = s->code.narrow ? 6 * most / 127 / sqrt(12) * sqrt(squares) : 0;
                if (!(fabs((double)out[64 * i + r] - want) <= 2e-3 * sqrt(size) * 4 + narrow + 1e-5))
                    fail_msg("d=%u: score %u of row %u is %g, wanted %g", s->d, i, r, (double)out[64 * i + r], want);
            }
        return;
    }
    memset(acc, 0, sizeof acc);
    vq_trelliscode_mix(&s->code, s->page, NULL, s->gains, 2, weights, n, acc, width);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < s->d; j++) {
            double want = 0, most = 0;
            for (uint32_t r = 0; r < 64; r++) {
                want += (double)weights[64 * i + r] * (double)s->decoded[r * width + j];
                most = fmax(most, (double)s->gains[r] * (double)s->scale[j] * 3);
            }
            const double got = (double)acc[i * width + j] * (double)s->scale[j];
            if (!(fabs(got - want) <= most * 8 / 255))
                fail_msg("d=%u: sum %u of dimension %u is %g, wanted %g", s->d, i, j, got, want);
        }
}

static void products_meet_decoded_rows(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {8, 20, 64, 80, 128, 256, 512};
    static setup s;
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint32_t pattern = 0; pattern <= 7; pattern++)
            for (uint32_t keys = 0; keys < 2; keys++) {
                encode(&s, sizes[i], pattern, keys);
                check_products(&s);
            }
}

static void rows_move(void **state)
{
    (void)state;
    static setup a, b;
    static float got[64 * VQ_ROWCODE_MAX_D];
    encode(&a, 80, 6, true);
    encode(&b, 80, 6, true);
    for (uint32_t r = 0; r < 64; r++)
        vq_trelliscode_copy_row(&a.code, b.page, 63 - r, a.page, r);
    for (uint32_t r = 0; r < 64; r++)
        b.gains[63 - r] = a.gains[r];
    vq_trelliscode_decode(&b.code, b.page, b.gains, 0, 64, got);
    for (uint32_t r = 0; r < 64; r++)
        assert_memory_equal(got + (size_t)(63 - r) * 80, a.decoded + (size_t)r * 80, 80 * sizeof *got);
}

int main(void)
{
    vq_kernels_init(&kernels, vq_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_come_near_the_bound),  cmocka_unit_test(mixed_bits_cost_nothing),
        cmocka_unit_test(paths_are_the_best),         cmocka_unit_test(rows_come_back),
        cmocka_unit_test(products_meet_decoded_rows), cmocka_unit_test(rows_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
