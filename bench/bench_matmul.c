/* Speed of the matrix product: every weight type, tier, 1 and many tokens, 1 and 2 threads.
 *
 * Products rotate through matrices that together exceed the L2 cache, as a model's layers do.  Tiers take turns within
 * one round, so that what else the machine does hits all of them; figures are medians and quartiles over rounds.  The
 * noise floor is the ratio of a tier's time to its own, taken the same way.  --json prints the same as one object. */
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/half.h"
#include "base/rng.h"
#include "kernels/matmul.h"

enum { MOST_ROUNDS = 101, N_TIERS = 3 };

static const vq_type all_types[] = {VQ_TYPE_F32,  VQ_TYPE_F16,  VQ_TYPE_BF16, VQ_TYPE_Q8_0,  VQ_TYPE_Q4_0,
                                    VQ_TYPE_Q4_1, VQ_TYPE_Q5_0, VQ_TYPE_Q5_1, VQ_TYPE_Q2_K,  VQ_TYPE_Q3_K,
                                    VQ_TYPE_Q4_K, VQ_TYPE_Q5_K, VQ_TYPE_Q6_K, VQ_TYPE_IQ4_NL};
static const uint32_t tier_sets[N_TIERS] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
static const char *const tier_names[N_TIERS] = {"c", "avx2", "avx512"};

typedef struct setup {
    vq_type type;
    uint32_t n_in, n_out, n_tokens, n_matrices;
    bool exact;
    vq_matrix *matrices;
    uint8_t *weights;
    float *x, *out;
    void *act, *scratch;
} setup;

typedef struct summary {
    double least, quarter, median, three_quarters;
} summary;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static summary summarise(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, by_value);
    return (summary){x[0], x[n / 4], x[n / 2], x[n - 1 - n / 4]};
}

static void *take(size_t n_bytes)
{
    void *p = aligned_alloc(64, (n_bytes + 63) / 64 * 64);
    if (!p) {
        fprintf(stderr, "bench_matmul: no memory for %zu bytes\n", n_bytes);
        exit(1);
    }
    return p;
}

/* Random bytes are weights of any block type, once no f16 in them is infinite or not a number. */
static void fill(vq_type type, uint8_t *p, size_t n_bytes)
{
    vq_rng rng;
    vq_rng_seed(&rng, 1);
    if (type == VQ_TYPE_F32 || type == VQ_TYPE_BF16) {
        const size_t each = vq_type_block_bytes(type);
        for (size_t i = 0; i < n_bytes; i += each) {
            const float v = (float)vq_rng_uniform(&rng) - 0.5f;
            memcpy(p + i, (const char *)&v + 4 - each, each);
        }
        return;
    }
    for (size_t i = 0; i + 2 <= n_bytes; i += 2) {
        const uint16_t h = (uint16_t)(vq_rng_next(&rng) & 0xbbff);
        memcpy(p + i, &h, 2);
    }
}

static setup open_setup(vq_type type, uint32_t n_in, uint32_t n_out, uint32_t n_tokens, bool exact, uint32_t n_threads,
                        uint32_t pool_mib)
{
    setup s = {.type = type, .n_in = n_in, .n_out = n_out, .n_tokens = n_tokens, .exact = exact};
    const size_t bytes = vq_type_row_bytes(type, n_in) * n_out;
    s.n_matrices = (uint32_t)(((size_t)pool_mib << 20) / bytes) + 1;
    s.weights = take(bytes * s.n_matrices);
    s.matrices = take(s.n_matrices * sizeof *s.matrices);
    fill(type, s.weights, bytes * s.n_matrices);
    for (uint32_t i = 0; i < s.n_matrices; i++)
        s.matrices[i] = (vq_matrix){.type = type, .n_in = n_in, .n_out = n_out, .data = s.weights + i * bytes};
    s.x = take((size_t)n_in * n_tokens * 4);
    s.out = take((size_t)n_out * n_tokens * 4);
    s.act = take(vq_matmul_act_bytes(n_in, n_tokens, exact));
    s.scratch = take(vq_matmul_scratch_bytes(n_threads));
    vq_rng rng;
    vq_rng_seed(&rng, 2);
    for (size_t i = 0; i < (size_t)n_in * n_tokens; i++)
        s.x[i] = (float)vq_rng_normal(&rng);
    return s;
}

static void close_setup(setup *s)
{
    free(s->weights);
    free(s->matrices);
    free(s->x);
    free(s->out);
    free(s->act);
    free(s->scratch);
}

/* Seconds of one pass over n matrices, activations prepared for each. */
static double pass(setup *s, const vq_matmul_kernels *k, vq_pool *pool, uint32_t first, uint32_t n)
{
    const double start = now();
    for (uint32_t i = 0; i < n; i++) {
        vq_matmul_prepare(k, pool, s->act, s->x, s->n_in, s->n_tokens, s->exact);
        vq_matmul(k, pool, &s->matrices[(first + i) % s->n_matrices], s->act, s->n_tokens, s->exact, s->out, s->n_out,
                  s->scratch);
    }
    return now() - start;
}

static void measure(vq_type type, uint32_t n_in, uint32_t n_out, uint32_t n_tokens, bool exact, uint32_t n_threads,
                    unsigned tiers, double seconds, uint32_t pool_mib, bool json, bool *first_row)
{
    setup s = open_setup(type, n_in, n_out, n_tokens, exact, n_threads, pool_mib);
    vq_pool *pool = NULL;
    if (vq_pool_open(&pool, n_threads, NULL) != VQ_OK)
        exit(1);
    /* Slot N_TIERS is the highest tier again: against itself it shows the noise. */
    static double times[N_TIERS + 1][MOST_ROUNDS], ratio[MOST_ROUNDS];
    uint32_t each[N_TIERS + 1] = {0}, best = 0, n_rounds = 0, at = 0;
    vq_matmul_kernels k[N_TIERS + 1];
    for (uint32_t t = 0; t < N_TIERS; t++) {
        if (!(tiers >> t & 1))
            continue;
        vq_matmul_kernels_init(&k[t], tier_sets[t]);
        const double one = pass(&s, &k[t], pool, 0, 1);
        each[t] = one * 3000 < 1 ? 16 : one * 300 < 1 ? 4 : 1;
        best = t;
    }
    k[N_TIERS] = k[best];
    each[N_TIERS] = each[best];
    const double end = now() + seconds;
    for (; n_rounds < MOST_ROUNDS && (n_rounds < 5 || now() < end); n_rounds++)
        for (uint32_t t = 0; t <= N_TIERS; t++)
            if (each[t]) {
                times[t][n_rounds] = pass(&s, &k[t], pool, at, each[t]) / each[t];
                at = (at + each[t]) % s.n_matrices;
            }
    for (uint32_t i = 0; i < n_rounds; i++)
        ratio[i] = times[N_TIERS][i] / times[best][i];
    const summary noise = summarise(ratio, n_rounds);
    const double bytes = (double)vq_type_row_bytes(type, n_in) * n_out, products = (double)n_in * n_out * n_tokens;
    for (uint32_t t = 0; t < N_TIERS; t++) {
        if (!each[t])
            continue;
        const summary q = summarise(times[t], n_rounds);
        if (json) {
            printf("%s\n    {\"type\": \"%s\", \"n_in\": %u, \"n_out\": %u, \"tokens\": %u, \"exact\": %s, "
                   "\"threads\": %u, \"tier\": \"%s\", \"microseconds\": {\"least\": %.3f, \"quarter\": %.3f, "
                   "\"median\": %.3f, \"three_quarters\": %.3f}, \"gb_per_s\": %.3f, \"gmac_per_s\": %.3f, "
                   "\"noise_quartiles\": [%.4f, %.4f], \"rounds\": %u}",
                   *first_row ? "" : ",", vq_type_name(type), n_in, n_out, n_tokens, exact ? "true" : "false",
                   n_threads, tier_names[t], q.least * 1e6, q.quarter * 1e6, q.median * 1e6, q.three_quarters * 1e6,
                   bytes / q.median * 1e-9, products / q.median * 1e-9, noise.quarter, noise.three_quarters, n_rounds);
            *first_row = false;
        } else {
            printf("%-7s %5u x %-6u %4u %-5s %2u %-7s %10.1f %10.1f %10.1f %10.1f %8.2f %8.2f   %.3f .. %.3f\n",
                   vq_type_name(type), n_in, n_out, n_tokens, exact ? "exact" : "int8", n_threads, tier_names[t],
                   q.least * 1e6, q.quarter * 1e6, q.median * 1e6, q.three_quarters * 1e6, bytes / q.median * 1e-9,
                   products / q.median * 1e-9, noise.quarter, noise.three_quarters);
        }
        fflush(stdout);
    }
    vq_pool_close(pool);
    close_setup(&s);
}

static void usage(FILE *f)
{
    fputs("usage: bench_matmul [--type NAME] [--n-in N] [--n-out N] [--tokens N] [--threads N] [--exact] [--tier "
          "c|avx2|avx512]\n"
          "                    [--seconds S] [--mib N] [--json]\n"
          "Without a choice: every type, 1 and 128 tokens, 1 and 2 threads, int8, avx2 and avx512, 0.3 s each,\n"
          "rotating through matrices of 48 MiB together.\n",
          f);
}

int main(int argc, char **argv)
{
    enum { TYPE = 256, N_IN, N_OUT, TOKENS, THREADS, EXACT, TIER, SECONDS, MIB, JSON, HELP };
    static const struct option options[] = {
        {"type", required_argument, NULL, TYPE},
        {"n-in", required_argument, NULL, N_IN},
        {"n-out", required_argument, NULL, N_OUT},
        {"tokens", required_argument, NULL, TOKENS},
        {"threads", required_argument, NULL, THREADS},
        {"exact", no_argument, NULL, EXACT},
        {"tier", required_argument, NULL, TIER},
        {"seconds", required_argument, NULL, SECONDS},
        {"mib", required_argument, NULL, MIB},
        {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, HELP},
        {0},
    };
    const char *type = NULL;
    uint32_t n_in = 1536, n_out = 768, tokens = 0, threads = 0, pool_mib = 48;
    bool exact = false, json = false, first_row = true;
    double seconds = 0.3;
    unsigned tiers = 0;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case TYPE: type = optarg; break;
        case N_IN: n_in = (uint32_t)strtoul(optarg, NULL, 10); break;
        case N_OUT: n_out = (uint32_t)strtoul(optarg, NULL, 10); break;
        case TOKENS: tokens = (uint32_t)strtoul(optarg, NULL, 10); break;
        case THREADS: threads = (uint32_t)strtoul(optarg, NULL, 10); break;
        case EXACT: exact = true; break;
        case TIER:
            for (int t = 0; t < N_TIERS; t++)
                tiers |= strcmp(optarg, tier_names[t]) ? 0 : 1u << t;
            break;
        case SECONDS: seconds = strtod(optarg, NULL); break;
        case MIB: pool_mib = (uint32_t)strtoul(optarg, NULL, 10); break;
        case JSON: json = true; break;
        case HELP: usage(stdout); return 0;
        default: usage(stderr); return 2;
        }
    }
    if (n_in == 0 || n_out == 0) {
        usage(stderr);
        return 2;
    }
    if (!tiers)
        tiers = 6;
    for (int t = 0; t < N_TIERS; t++)
        if ((vq_cpu_detect() & tier_sets[t]) != tier_sets[t])
            tiers &= ~(1u << t);
    if (json)
        printf("{\"benchmark\": \"matmul\", \"cpu\": \"%s\", \"rows\": [", vq_cpu_name(vq_cpu_detect()));
    else
        printf("type     n_in x n_out  tokens mode threads tier   us least       25 %%     median       75 %%     GB/s "
               "  GMAC/s   "
               "noise\n");
    for (uint32_t i = 0; i < sizeof all_types / sizeof *all_types; i++) {
        if ((type && strcmp(type, vq_type_name(all_types[i])) != 0) || !vq_matmul_supports(all_types[i], n_in))
            continue;
        for (uint32_t n_tokens = tokens ? tokens : 1; n_tokens <= (tokens ? tokens : 128); n_tokens += 127)
            for (uint32_t n = threads ? threads : 1; n <= (threads ? threads : 2); n++)
                measure(all_types[i], n_in, n_out, n_tokens, exact, n, tiers, seconds, pool_mib, json, &first_row);
    }
    if (json)
        printf("\n]}\n");
    return 0;
}
