/* Trellis codes on normal variables: how far their error is from the bound of rate and distortion, beside that of
 * Lloyd-Max codes of the same bits, and how many values a second of one thread they code and decode.
 *
 *     bench_trellis [ROWS_OF_64]        (default 4,096; longer rows are as many values)
 *
 * Prints one JSON object a kind of row.  Errors are those of rows as they are, without a gain; the bound is 4^-bits.
 * Times are CPU time, the best of several rounds: encoding is everything that makes codes and gain of a row; decoding
 * is a page of 64 rows to a tile, of keys and of values, from the second-level cache. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "quant/trelliscode.h"

enum { ROUNDS = 7, N_PAGES = 8, MAX_D = 512, TABLE_ROWS = 64 };

typedef struct kind {
    double bits;
    uint32_t d, n_groups;
    uint8_t of[MAX_D / 8];
} kind;

static double own_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double scalar_error(const vq_codes_kernels *k, const float *x, const kind *w)
{
    double sum = 0;
    for (uint32_t g = 0; g < w->n_groups; g++) {
        const vq_levels *l = &vq_levels_gaussian[w->of[g] - 1];
        uint8_t codes[8];
        k->count(codes, x + (size_t)8 * g, 1, l->bounds, (1u << w->of[g]) - 1, 8);
        for (uint32_t p = 0; p < 8; p++)
            sum += pow((double)x[8 * g + p] - (double)l->v[codes[p]] * (double)l->step, 2);
    }
    return sum;
}

/* Mean squared errors of trellis and scalar codes. */
static void measure_errors(const vq_kernels *k, const kind *w, uint32_t n_values, double error[2])
{
    enum { N = VQ_TRELLIS_ROWS };
    static float lanes[MAX_D * N];
    static uint8_t codes[N * MAX_D / 8 * VQ_TRELLIS_MAX_BITS];
    float x[N][MAX_D];
    vq_rng rng;
    vq_rng_seed(&rng, 1000 + w->d);
    error[0] = error[1] = 0;
    const uint32_t n_rows = n_values / w->d / N * N;
    for (uint32_t done = 0; done < n_rows; done += N) {
        for (uint32_t r = 0; r < N; r++)
            for (uint32_t j = 0; j < w->d; j++)
                lanes[j * N + r] = x[r][j] = (float)vq_rng_normal(&rng);
        vq_trellis_search(&k->trellis, codes, lanes, w->of, w->n_groups);
        for (uint32_t r = 0; r < N; r++) {
            for (uint32_t j = 0; j < w->d; j++)
                error[0] += pow((double)x[r][j] - (double)lanes[j * N + r], 2);
            error[1] += scalar_error(&k->codes, x[r], w);
        }
    }
    error[0] /= (double)n_rows * w->d;
    error[1] /= (double)n_rows * w->d;
}

/* Values a second: encoded, decoded for keys, decoded for values. */
static void measure_speed(const vq_kernels *k, const kind *w, double speed[3])
{
    static float x[TABLE_ROWS * MAX_D], scale[VQ_TRELLISCODE_MAX_GROUPS];
    static uint8_t codes[TABLE_ROWS * MAX_D / 8 * VQ_TRELLIS_MAX_BITS],
        pages[N_PAGES * 64 * MAX_D / 8 * VQ_TRELLIS_MAX_BITS], tile[64 * MAX_D];
    float gains[VQ_TRELLIS_ROWS];
    vq_rng rng;
    vq_rng_seed(&rng, 1);
    for (uint32_t j = 0; j < w->d; j++)
        scale[j / 8] = 1;
    for (uint32_t i = 0; i < TABLE_ROWS * w->d; i++)
        x[i] = (float)vq_rng_normal(&rng);
    for (size_t i = 0; i < sizeof pages; i++)
        pages[i] = (uint8_t)vq_rng_next(&rng);
    vq_trelliscode code;
    vq_trelliscode_make(&code, w->of, scale, k, w->d, true, false);
    double best[3] = {INFINITY, INFINITY, INFINITY};
    for (uint32_t round = 0; round < ROUNDS; round++) {
        enum { TIMES = 50 };
        double start = own_time();
        for (uint32_t r = 0; r < TABLE_ROWS; r += VQ_TRELLIS_ROWS)
            vq_trelliscode_encode(&code, codes + (size_t)r * code.row_bytes, gains, x + (size_t)r * w->d, w->d);
        best[0] = fmin(best[0], own_time() - start);
        start = own_time();
        for (uint32_t i = 0; i < TIMES * N_PAGES; i++)
            k->trellis.unpack_keys(tile, pages + i % N_PAGES * code.page_bytes, code.bits, code.n_groups, 2,
                                   k->trellis.tables, 0);
        best[1] = fmin(best[1], (own_time() - start) / (TIMES * N_PAGES));
        start = own_time();
        for (uint32_t i = 0; i < TIMES * N_PAGES; i++)
            k->trellis.unpack_values((int8_t *)tile, pages + i % N_PAGES * code.page_bytes, code.bits, code.n_groups, 2,
                                     k->trellis.tables, 0);
        best[2] = fmin(best[2], (own_time() - start) / (TIMES * N_PAGES));
    }
    for (uint32_t i = 0; i < 3; i++)
        speed[i] = 64.0 * w->d / best[i];
}

static double decibels(double error, double bits) { return 10 * log10(error) + 20 * log10(2) * bits; }

int main(int argc, char **argv)
{
    static const double rates[] = {1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5};
    static const uint32_t sizes[] = {64, 128, 256, 512};
    const unsigned long n_rows = argc > 1 ? strtoul(argv[1], NULL, 10) : 4096;
    if (n_rows < 16 || n_rows > 1 << 20) {
        fputs("bench_trellis: ROWS_OF_64 must be 16 to 1048576\n", stderr);
        return 1;
    }
    static vq_kernels k;
    vq_kernels_init(&k, vq_cpu_detect());
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t r = 0; r < sizeof rates / sizeof *rates; r++) {
            kind w = {.bits = rates[r], .d = sizes[s], .n_groups = sizes[s] / 8};
            const uint32_t n = (uint32_t)(w.bits * w.n_groups);
            for (uint32_t g = 0; g < w.n_groups; g++)
                w.of[g] = (uint8_t)(n / w.n_groups + (g < n % w.n_groups));
            double error[2], speed[3] = {0};
            measure_errors(&k, &w, 64 * (uint32_t)n_rows, error);
            json_t *row = json_pack("{s:f, s:i, s:i, s:f, s:f, s:f}", "bits", w.bits, "d", (int)w.d, "states",
                                    VQ_TRELLIS_STATES, "error", error[0], "db_above_bound", decibels(error[0], w.bits),
                                    "db_above_bound_scalar", decibels(error[1], w.bits));
            if (w.d <= VQ_ROWCODE_MAX_D) {
                measure_speed(&k, &w, speed);
                json_object_set_new(row, "encode_m_values_s", json_real(speed[0] * 1e-6));
                json_object_set_new(row, "decode_keys_g_values_s", json_real(speed[1] * 1e-9));
                json_object_set_new(row, "decode_values_g_values_s", json_real(speed[2] * 1e-9));
            }
            char *text = json_dumps(row, JSON_REAL_PRECISION(4));
            puts(text);
            fflush(stdout);
            free(text);
            json_decref(row);
        }
    return 0;
}
