/* Makes src/kernels/trellis_tables.c: levels by Lloyd's iterations, on what vq_trellis_search chooses for normal
 * variables, rounded to the grid of kernels.
 *
 *     generate_trellis > src/kernels/trellis_tables.c                  the taps that are there
 *     generate_trellis SECONDS SEED > src/kernels/trellis_tables.c     better ones, searched for so long a number of
 * bits
 *
 * The search draws taps at random, keeps the ten best, and changes a few bits of one of these as long as time lasts.
 * A number of bits as a third argument leaves the other codes as they are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "kernels/trellis.h"

enum { D = 512, GROUPS = D / 8, KEPT = 10, ROWS = 256, FEW_ROWS = 16 };

static vq_trellis_kernels kernels;
static float x[ROWS * D];

static double normal_quantile(double p)
{
    double low = -10, high = 10;
    for (int i = 0; i < 100; i++) {
        const double middle = 0.5 * (low + high);
        *(0.5 * erfc(-middle / sqrt(2)) < p ? &low : &high) = middle;
    }
    return low;
}

/* Levels in one ascending order, which goes through the sets again and again. */
static void start(vq_trellis_code *code, double *level, uint32_t bits, double width)
{
    const uint32_t n = vq_trellis_n_levels(bits);
    code->error = (float)(1.15 * pow(4, -(double)bits));
    for (uint32_t i = 0; i < n; i++)
        level[i] = width * normal_quantile((i + 0.5) / n);
}

/* The code's table with the levels as they are, off the grid. */
static void open_table(const vq_trellis_code *code, const double *level, uint32_t bits)
{
    vq_trellis_table *t = &kernels.tables[bits - 1];
    vq_trellis_table_make(t, code, bits);
    for (uint32_t i = 0; i < vq_trellis_n_levels(bits); i++)
        t->level[i] = (float)level[i];
}

/* Codes n_rows; returns the error.  Moves level to the means of what was coded with it, unless it is NULL. */
static double pass(uint32_t bits, double *level, uint32_t n_rows)
{
    const vq_trellis_table *t = &kernels.tables[bits - 1];
    const uint32_t n = vq_trellis_n_levels(bits);
    double error = 0, sum[VQ_TRELLIS_LEVELS] = {0}, count[VQ_TRELLIS_LEVELS] = {0};
    static float lanes[D * VQ_TRELLIS_ROWS];
    static uint8_t found[VQ_TRELLIS_ROWS * D];
    uint8_t per_group[GROUPS];
    memset(per_group, (int)bits, sizeof per_group);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (r % VQ_TRELLIS_ROWS == 0) {
            memset(lanes, 0, sizeof lanes);
            for (uint32_t i = 0; i < VQ_TRELLIS_ROWS && r + i < n_rows; i++)
                for (uint32_t j = 0; j < D; j++)
                    lanes[j * VQ_TRELLIS_ROWS + i] = x[(size_t)(r + i) * D + j];
            vq_trellis_search(&kernels, found, lanes, per_group, GROUPS);
        }
        const float *row = x + (size_t)r * D;
        const uint8_t *codes = found + (size_t)(r % VQ_TRELLIS_ROWS) * GROUPS * bits;
        for (uint32_t j = 0; j < D; j++) {
            const uint8_t *group = codes + (size_t)j / 8 * bits;
            const uint32_t before = codes[(j / 8 + GROUPS - 1) % GROUPS * bits];
            uint32_t at = t->set[((uint32_t)group[0] << 8 | before) >> j % 8 & (VQ_TRELLIS_WINDOWS - 1)];
            for (uint32_t l = 1; l < bits; l++)
                at += (uint32_t)(group[l] >> j % 8 & 1) * (t->sets << (l - 1));
            const double off = (double)row[j] - (double)t->level[at];
            error += off * off;
            sum[at] += (double)row[j];
            count[at]++;
        }
    }
    for (uint32_t i = 0; level && i < n / 2; i++) {
        const double both = count[i] + count[n - 1 - i];
        if (both > 0)
            level[i] = (sum[i] - sum[n - 1 - i]) / both;
        level[n - 1 - i] = -level[i];
    }
    return error / ((double)n_rows * D);
}

static double fit(const vq_trellis_code *code, double *level, uint32_t bits, uint32_t n_rows, uint32_t n_passes)
{
    for (uint32_t i = 0; i < n_passes; i++) {
        open_table(code, level, bits);
        pass(bits, level, n_rows);
    }
    open_table(code, level, bits);
    return pass(bits, NULL, n_rows);
}

static int32_t odd_within(double v)
{
    const int32_t value = (int32_t)floor(v / 2);
    return value < -64 ? -64 : value > 63 ? 63 : value;
}

/* Levels of 5 bits lie closer than the grid, so that each by itself is not rounded best: a step up or down of one and
 * its mirror image is kept where it helps. */
static void settle_levels(vq_trellis_code *code, uint32_t bits)
{
    const uint32_t n = vq_trellis_n_levels(bits);
    vq_trellis_table *t = &kernels.tables[bits - 1];
    vq_trellis_table_make(t, code, bits);
    double least = pass(bits, NULL, ROWS);
    for (bool better = true; better;) {
        better = false;
        for (uint32_t i = 0; i < n; i++) {
            const int32_t up = i < n / 2 ? 1 : -1, half = (int32_t)(i < n / 2 ? i : n - 1 - i);
            vq_trellis_code tried = *code;
            const int32_t value = tried.value[half] + up;
            if (value < -64 || value > 63)
                continue;
            tried.value[half] = (int8_t)value;
            tried.value[(int32_t)n - 1 - half] = (int8_t)(-1 - value);
            vq_trellis_table_make(t, &tried, bits);
            const double error = pass(bits, NULL, ROWS);
            if (error < least * (1 - 1e-5)) {
                least = error;
                *code = tried;
                better = true;
            }
        }
    }
}

/* The step with the least error once levels are rounded. */
static void round_levels(vq_trellis_code *code, const double *level, uint32_t bits)
{
    const uint32_t most_cut = bits < 5 ? 24 : 60;
    const uint32_t n = vq_trellis_n_levels(bits);
    double most = 0, least = INFINITY;
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, fabs(level[i]));
    for (uint32_t i = 0; i <= most_cut; i++) {
        vq_trellis_code tried = *code;
        tried.step = (float)(most / (127 - i));
        for (uint32_t l = 0; l < n; l++)
            tried.value[l] = (int8_t)odd_within(level[l] / (double)tried.step);
        vq_trellis_table_make(&kernels.tables[bits - 1], &tried, bits);
        const double error = pass(bits, NULL, ROWS / 4);
        if (error < least) {
            least = error;
            *code = tried;
        }
    }
    if (bits == 5)
        settle_levels(code, bits);
    vq_trellis_table_make(&kernels.tables[bits - 1], code, bits);
    code->error = (float)pass(bits, NULL, ROWS);
}

static double width_of(uint32_t bits) { return bits == 1 ? 1.1 : 1.2; }

static double try_taps(vq_trellis_code *code, uint32_t bits, uint32_t n_rows, uint32_t n_passes)
{
    double level[VQ_TRELLIS_LEVELS];
    start(code, level, bits, width_of(bits));
    return fit(code, level, bits, n_rows, n_passes);
}

static void search(vq_trellis_code *code, uint32_t bits, double seconds, vq_rng *rng)
{
    vq_trellis_code kept[KEPT], tried = {0};
    double error[KEPT];
    uint32_t n = 0, n_taps = vq_trellis_sets(bits) < VQ_TRELLIS_SETS ? 3 : 4;
    const time_t since = time(NULL);
    for (uint32_t i = 0; i < KEPT; i++)
        error[i] = INFINITY;
    while (difftime(time(NULL), since) < 0.4 * seconds) {
        uint32_t worst = 0;
        for (uint32_t i = 0; i < n_taps; i++)
            tried.taps[i] = n ? (uint16_t)(vq_rng_next(rng) % VQ_TRELLIS_WINDOWS) : code->taps[i];
        const double e = try_taps(&tried, bits, FEW_ROWS, 4);
        for (uint32_t i = 1; i < KEPT; i++)
            worst = error[i] > error[worst] ? i : worst;
        if (e < error[worst]) {
            error[worst] = e;
            kept[worst] = tried;
        }
        n++;
    }
    while (difftime(time(NULL), since) < seconds) {
        uint32_t i = (uint32_t)(vq_rng_next(rng) % KEPT);
        const uint32_t j = (uint32_t)(vq_rng_next(rng) % KEPT);
        i = error[j] < error[i] ? j : i;
        if (!(error[i] < INFINITY))
            continue;
        tried = kept[i];
        for (uint64_t flips = 1 + vq_rng_next(rng) % 3; flips > 0; flips--)
            tried.taps[vq_rng_next(rng) % n_taps] ^= (uint16_t)(1u << vq_rng_next(rng) % 9);
        const double e = try_taps(&tried, bits, FEW_ROWS, 4);
        if (e < error[i]) {
            error[i] = e;
            kept[i] = tried;
        }
        n++;
    }
    double least = INFINITY;
    for (uint32_t i = 0; i < KEPT; i++) {
        const double e = error[i] < INFINITY ? try_taps(&kept[i], bits, ROWS / 2, 12) : INFINITY;
        if (e < least) {
            least = e;
            *code = kept[i];
        }
    }
    fprintf(stderr, "%u bits: %u codes tried\n", bits, n);
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 0;
    const uint32_t only = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0;
    vq_rng rng;
    vq_trellis_kernels_init(&kernels, vq_cpu_detect());
    vq_rng_seed(&rng, argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    for (uint32_t i = 0; i < ROWS * D; i++)
        x[i] = (float)vq_rng_normal(&rng);
    puts("/* Generated by tools/generate_trellis.c: don't edit.  How far a code is above the bound of rate and "
         "distortion, on "
         "rows\n * of 512, stands beside it. */\n/* clang-format off */\n#include \"kernels/trellis.h\"\n\n"
         "const vq_trellis_code vq_trellis_gaussian[VQ_TRELLIS_MAX_BITS] = {");
    for (uint32_t b = 1; b <= VQ_TRELLIS_MAX_BITS; b++) {
        vq_trellis_code code = vq_trellis_gaussian[b - 1];
        double level[VQ_TRELLIS_LEVELS];
        if (!only || only == b) {
            if (seconds > 0)
                search(&code, b, seconds, &rng);
            start(&code, level, b, width_of(b));
            fit(&code, level, b, ROWS, 24);
            round_levels(&code, level, b);
        }
        const double above = 10 * log10((double)code.error) + 20 * log10(2) * b;
        fprintf(stderr, "%u bits: error %.5f, %.3f dB\n", b, (double)code.error, above);
        printf("    {/* %u bit%s: %.2f dB */\n     .step = %.9gF, .error = %.6gF,\n     .taps = {0x%x, 0x%x, 0x%x, "
               "0x%x},\n"
               "     .value = {",
               b, b > 1 ? "s" : "", above, (double)code.step, (double)code.error, code.taps[0], code.taps[1],
               code.taps[2], code.taps[3]);
        for (uint32_t i = 0; i < vq_trellis_n_levels(b); i++)
            printf("%s%d", i % 16 ? ", " : i ? ",\n      " : "\n      ", code.value[i]);
        puts("}},");
    }
    puts("};");
    return 0;
}
