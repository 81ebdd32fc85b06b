/* Encoding, scores and weighted sums of the packed codecs: billions of multiply-adds and of bytes of codes a second,
 * for every tier of this machine.
 *
 *     bench_codes [d] [codec ...]          a codec as --kv takes it, e.g. turboquant-mse:bits=3
 *
 * Pages rotate through a pool that no second-level cache holds.  Runs are interleaved, figures are medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "kv/codec_generic.h"

enum { POOL_BYTES = 24 << 20, ROUNDS = 7, MOST_SUBJECTS = 96, MOST_QUERIES = 96, N_COUNTS = 4 };
#define AT_LEAST_S 0.002

static const uint32_t query_counts[N_COUNTS] = {1, 3, 16, 96};
static const char *const default_codecs[] = {
    "f16",
    "int8",
    "kivi:bits=2",
    "kivi:bits=4",
    "turboquant-mse:bits=2",
    "turboquant-mse:bits=3",
    "turboquant-mse:bits=4",
    "turboquant-mse:bits=6",
};

typedef struct subject {
    const char *text, *tier;
    vq_kernels kernels;
    vq_side keys, values;
    size_t page_bytes;
    uint32_t n_pages;
    double score[N_COUNTS][ROUNDS], mix[N_COUNTS][ROUNDS], encode[ROUNDS]; /* seconds a page */
} subject;

static unsigned char *pool;
static float *rows, *queries_f32, *weights, *scores, *acc;
static unsigned char *queries;

/* CPU time: what else the machine does is not the kernels' */
static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x)
{
    qsort(x, ROUNDS, sizeof *x, by_value);
    return x[ROUNDS / 2];
}

static bool open_side(vq_side *side, const subject *s, const vq_method *m, uint32_t d, bool keys)
{
    vq_error err;
    const vq_codec_env env = {.d = d, .keys = keys, .seed = 1, .options = m->values, .kernels = &s->kernels};
    *side = (vq_side){.codec = m->codec, .kernels = &s->kernels, .d = d};
    if (m->codec->create(&side->state, &env, &err) == VQ_OK)
        return true;
    fprintf(stderr, "bench_codes: %s\n", err.text);
    return false;
}

/* The same page all over the pool. */
static void fill(const subject *s, const vq_side *side)
{
    side->codec->encode(side->state, pool, 0, VQ_PAGE_ROWS, rows);
    for (uint32_t i = 1; i < s->n_pages; i++)
        memcpy(pool + (size_t)i * s->page_bytes, pool, s->page_bytes);
}

static void run(subject *s, uint32_t round, uint32_t d)
{
    const vq_rows all = {.n = VQ_PAGE_ROWS, .live = ~0ULL};
    const size_t stride = vq_side_query_bytes(&s->keys);
    uint32_t page = 0;
    double start = now_s(), took;
    uint64_t n = 0;
    do {
        s->keys.codec->encode(s->keys.state, pool + n % s->n_pages * s->page_bytes, 0, VQ_PAGE_ROWS, rows);
        n++;
    } while ((took = now_s() - start) < AT_LEAST_S);
    s->encode[round] = took / (double)n;

    fill(s, &s->keys);
    for (uint32_t i = 0; i < MOST_QUERIES; i++)
        vq_side_prepare(&s->keys, queries + i * stride, queries_f32 + (size_t)i * d);
    for (uint32_t c = 0; c < N_COUNTS; c++) {
        n = 0;
        start = now_s();
        do {
            vq_side_score(&s->keys, pool + (size_t)page * s->page_bytes, &all, queries, query_counts[c], scores);
            page = page + 1 < s->n_pages ? page + 1 : 0;
            n++;
        } while ((took = now_s() - start) < AT_LEAST_S);
        s->score[c][round] = took / (double)n;
    }
    fill(s, &s->values);
    for (uint32_t c = 0; c < N_COUNTS; c++) {
        n = 0;
        start = now_s();
        do {
            vq_side_mix(&s->values, pool + (size_t)page * s->page_bytes, &all, weights, query_counts[c], acc);
            page = page + 1 < s->n_pages ? page + 1 : 0;
            n++;
        } while ((took = now_s() - start) < AT_LEAST_S);
        s->mix[c][round] = took / (double)n;
    }
}

int main(int argc, char **argv)
{
    static subject subjects[MOST_SUBJECTS];
    static const uint32_t tiers[] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
    const uint32_t d = argc > 1 ? (uint32_t)atoi(argv[1]) : 64;
    const char *const *codecs = argc > 2 ? (const char *const *)argv + 2 : default_codecs;
    const size_t n_codecs = argc > 2 ? (size_t)argc - 2 : sizeof default_codecs / sizeof default_codecs[0];
    const uint32_t cpu = vq_cpu_detect();
    uint32_t n = 0;

    for (size_t i = 0; i < n_codecs; i++)
        for (size_t t = 0; t < sizeof tiers / sizeof tiers[0] && n < MOST_SUBJECTS; t++) {
            if ((cpu & tiers[t]) != tiers[t])
                continue;
            vq_method m;
            vq_error err;
            if (vq_method_parse(&m, codecs[i], &err) != VQ_OK) {
                fprintf(stderr, "bench_codes: %s\n", err.text);
                return 2;
            }
            subject *s = &subjects[n];
            s->text = codecs[i];
            s->tier = vq_cpu_name(tiers[t]);
            vq_kernels_init(&s->kernels, tiers[t]);
            vq_page_bytes keys, values;
            if (!open_side(&s->keys, s, &m, d, true) || !open_side(&s->values, s, &m, d, false))
                return 1;
            m.codec->page_bytes(s->keys.state, &keys);
            m.codec->page_bytes(s->values.state, &values);
            const size_t k = keys.codes + keys.scales, v = values.codes + values.scales;
            s->page_bytes = ((k > v ? k : v) + 63) / 64 * 64;
            s->n_pages = (uint32_t)(POOL_BYTES / s->page_bytes);
            n++;
        }
    pool = aligned_alloc(64, POOL_BYTES);
    rows = malloc((size_t)VQ_PAGE_ROWS * d * sizeof *rows);
    queries_f32 = malloc((size_t)MOST_QUERIES * d * sizeof *rows);
    queries = aligned_alloc(64, (size_t)MOST_QUERIES * (64 + 8 * (size_t)VQ_MAX_HEAD_DIM));
    weights = malloc((size_t)MOST_QUERIES * VQ_PAGE_ROWS * sizeof *rows);
    scores = malloc((size_t)MOST_QUERIES * VQ_PAGE_ROWS * sizeof *rows);
    acc = calloc((size_t)MOST_QUERIES * 2 * VQ_MAX_HEAD_DIM, sizeof *acc);
    vq_rng rng;
    vq_rng_seed(&rng, 3);
    for (uint32_t i = 0; i < VQ_PAGE_ROWS * d; i++)
        rows[i] = (float)vq_rng_normal(&rng);
    for (uint32_t i = 0; i < MOST_QUERIES * d; i++)
        queries_f32[i] = (float)vq_rng_normal(&rng);
    for (uint32_t i = 0; i < MOST_QUERIES * VQ_PAGE_ROWS; i++)
        weights[i] = (float)vq_rng_uniform(&rng);

    for (uint32_t round = 0; round < ROUNDS; round++)
        for (uint32_t i = 0; i < n; i++)
            run(&subjects[i], round, d);
    printf("d = %u; GMAC/s of keys (score) and values (mix) by queries a page; encode in ns a row; GB/s of pages at 3 "
           "queries\n%-24s %-7s %7s",
           d, "codec", "tier", "encode");
    for (uint32_t c = 0; c < N_COUNTS; c++)
        printf(" score%-3u mix%-3u", query_counts[c], query_counts[c]);
    printf("  GB/s\n");
    for (uint32_t i = 0; i < n; i++) {
        subject *s = &subjects[i];
        printf("%-24s %-7s %7.0f", s->text, s->tier, 1e9 * median(s->encode) / VQ_PAGE_ROWS);
        for (uint32_t c = 0; c < N_COUNTS; c++) {
            const double macs = 1e-9 * VQ_PAGE_ROWS * d * query_counts[c];
            printf(" %7.1f %7.1f", macs / median(s->score[c]), macs / median(s->mix[c]));
        }
        printf(" %6.2f\n", 2e-9 * (double)s->page_bytes / (s->score[1][ROUNDS / 2] + s->mix[1][ROUNDS / 2]));
        s->keys.codec->destroy(s->keys.state);
        s->values.codec->destroy(s->values.state);
    }
    free(acc);
    free(scores);
    free(weights);
    free(queries);
    free(queries_f32);
    free(rows);
    free(pool);
    return 0;
}
