/* Speed of the matrix product: every weight type, tier, 1 and many tokens, 1 and 2 threads.
 *
 * Products rotate through unlike matrices that together exceed the L2 cache, as a model's layers do, and tiers take
 * turns (veloxquant/measure.h); figures are medians and quartiles over rounds, the noise is the interval of a tier
 * against itself.  --json prints the same as one object. */
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/half.h"
#include "base/rng.h"
#include "kernels/matmul.h"
#include "veloxquant/measure.h"

enum { MOST_ROUNDS = 101, N_TIERS = 3 };
#define SAMPLE_SECONDS 0.003

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

/* One tier: what it computes with. */
typedef struct product {
    setup *s;
    const vq_matmul_kernels *kernels;
    vq_pool *pool;
} product;

/* One product with matrix `input`, activations prepared for it. */
static vq_status run_product(void *arg, uint32_t input, vq_error *err)
{
    (void)err;
    const product *p = arg;
    setup *s = p->s;
    vq_matmul_prepare(p->kernels, p->pool, s->act, s->x, s->n_in, s->n_tokens, s->exact);
    vq_matmul(p->kernels, p->pool, &s->matrices[input], s->act, s->n_tokens, s->exact, s->out, s->n_out, s->scratch);
    return VQ_OK;
}

static const void *matrix_of(void *arg, uint32_t input, size_t *n_bytes)
{
    const setup *s = arg;
    *n_bytes = vq_type_row_bytes(s->type, s->n_in); /* the first row is enough to tell matrices apart */
    return s->matrices[input].data;
}

static void print_row(const setup *s, const char *tier, uint32_t n_threads, const vq_spread *q, const vq_versus *v,
                      const vq_load *load, bool json, bool *first_row)
{
    const double bytes = (double)vq_type_row_bytes(s->type, s->n_in) * s->n_out,
                 products = (double)s->n_in * s->n_out * s->n_tokens;
    if (json) {
        printf("%s\n    {\"type\": \"%s\", \"n_in\": %u, \"n_out\": %u, \"tokens\": %u, \"exact\": %s, "
               "\"threads\": %u, \"tier\": \"%s\", \"microseconds\": {\"least\": %.3f, \"q1\": %.3f, "
               "\"median\": %.3f, \"q3\": %.3f}, \"gb_per_s\": %.3f, \"gmac_per_s\": %.3f, "
               "\"noise\": [%.4f, %.4f], \"times_first_tier\": [%.4f, %.4f, %.4f], \"verdict\": \"%s\", "
               "\"others_cpus\": %.3f, \"quiet\": %s, \"rounds\": %zu}",
               *first_row ? "" : ",", vq_type_name(s->type), s->n_in, s->n_out, s->n_tokens,
               s->exact ? "true" : "false", n_threads, tier, q->least * 1e6, q->q1 * 1e6, q->median * 1e6, q->q3 * 1e6,
               bytes / q->median * 1e-9, products / q->median * 1e-9, v->noise_low, v->noise_high, v->speed.median,
               v->low, v->high, vq_verdict_name(v->verdict), load->others, load->quiet ? "true" : "false", q->n);
        *first_row = false;
    } else {
        printf("%-7s %5u x %-6u %4u %-5s %2u %-7s %10.1f %10.1f %10.1f %10.1f %8.2f %8.2f   %.3f .. %.3f %s\n",
               vq_type_name(s->type), s->n_in, s->n_out, s->n_tokens, s->exact ? "exact" : "int8", n_threads, tier,
               q->least * 1e6, q->q1 * 1e6, q->median * 1e6, q->q3 * 1e6, bytes / q->median * 1e-9,
               products / q->median * 1e-9, v->noise_low, v->noise_high, load->quiet ? "" : "not quiet");
    }
    fflush(stdout);
}

static void measure(vq_type type, uint32_t n_in, uint32_t n_out, uint32_t n_tokens, bool exact, uint32_t n_threads,
                    unsigned tiers, uint32_t n_rounds, uint32_t pool_mib, bool json, bool *first_row)
{
    setup s = open_setup(type, n_in, n_out, n_tokens, exact, n_threads, pool_mib);
    vq_pool *pool = NULL;
    if (vq_pool_open(&pool, n_threads, NULL) != VQ_OK)
        exit(1);
    static double seconds[(N_TIERS + 1) * MOST_ROUNDS];
    vq_matmul_kernels kernels[N_TIERS];
    product products[N_TIERS];
    vq_variant variants[N_TIERS];
    uint32_t n = 0;
    for (uint32_t t = 0; t < N_TIERS; t++) {
        if (!(tiers >> t & 1))
            continue;
        vq_matmul_kernels_init(&kernels[n], tier_sets[t]);
        products[n] = (product){&s, &kernels[n], pool};
        variants[n] = (vq_variant){tier_names[t], run_product, &products[n]};
        n++;
    }
    const vq_turns turns = {.variants = variants,
                            .n_variants = n,
                            .n_inputs = s.n_matrices,
                            .input = matrix_of,
                            .input_arg = &s,
                            .n_rounds = n_rounds,
                            .sample_seconds = SAMPLE_SECONDS};
    vq_load load;
    vq_error err;
    if (vq_take_turns(&turns, seconds, &load, &err) != VQ_OK) {
        fprintf(stderr, "bench_matmul: %s\n", err.text);
        exit(1);
    }
    for (uint32_t i = 0; i < n; i++) {
        const double *took = seconds + (size_t)i * n_rounds;
        const vq_spread q = vq_spread_of(took, n_rounds);
        const vq_versus v = vq_versus_of(seconds, seconds + (size_t)n * n_rounds, took, n_rounds);
        print_row(&s, variants[i].name, n_threads, &q, &v, &load, json, first_row);
    }
    vq_pool_close(pool);
    close_setup(&s);
}

static void usage(FILE *f)
{
    fputs("usage: bench_matmul [--type NAME] [--n-in N] [--n-out N] [--tokens N] [--threads N] [--exact] [--tier "
          "c|avx2|avx512]\n"
          "                    [--rounds N] [--mib N] [--json]\n"
          "Without a choice: every type, 1 and 128 tokens, 1 and 2 threads, int8, avx2 and avx512, 15 rounds,\n"
          "rotating through matrices of 48 MiB together.\n",
          f);
}

int main(int argc, char **argv)
{
    enum { TYPE = 256, N_IN, N_OUT, TOKENS, THREADS, EXACT, TIER, ROUNDS, MIB, JSON, HELP };
    static const struct option options[] = {
        {"type", required_argument, NULL, TYPE},
        {"n-in", required_argument, NULL, N_IN},
        {"n-out", required_argument, NULL, N_OUT},
        {"tokens", required_argument, NULL, TOKENS},
        {"threads", required_argument, NULL, THREADS},
        {"exact", no_argument, NULL, EXACT},
        {"tier", required_argument, NULL, TIER},
        {"rounds", required_argument, NULL, ROUNDS},
        {"mib", required_argument, NULL, MIB},
        {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, HELP},
        {0},
    };
    const char *type = NULL;
    uint32_t n_in = 1536, n_out = 768, tokens = 0, threads = 0, pool_mib = 48, n_rounds = 15;
    bool exact = false, json = false, first_row = true;
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
        case ROUNDS: n_rounds = (uint32_t)strtoul(optarg, NULL, 10); break;
        case MIB: pool_mib = (uint32_t)strtoul(optarg, NULL, 10); break;
        case JSON: json = true; break;
        case HELP: usage(stdout); return 0;
        default: usage(stderr); return 2;
        }
    }
    if (n_in == 0 || n_out == 0 || n_rounds == 0 || n_rounds > MOST_ROUNDS) {
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
                measure(all_types[i], n_in, n_out, n_tokens, exact, n, tiers, n_rounds, pool_mib, json, &first_row);
    }
    if (json)
        printf("\n]}\n");
    return 0;
}
