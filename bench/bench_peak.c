/* What limits attention on codes: the machine's read bandwidth and its rate of byte products, and how near each codec's
 * score and mix come to either.
 *
 *     bench_peak [--out FILE] [--dim N] [--queries N] [codec ...]        a codec as --kv takes it
 *
 * Pages are read from the second-level cache (8 pages, again and again) and from memory (a pool of 96 MB).  There are
 * no hardware counters to read in most virtual machines, so nothing is counted but time: figures are the best of many
 * turns (veloxquant/measure.h), which is what a peak is, and cycles are those of the time-stamp counter, whose rate is
 * fixed and is not that of the core. */
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#include <x86intrin.h>
#endif

#include "base/cpu.h"
#include "base/rng.h"
#include "kv/codec_generic.h"
#include "veloxquant/measure.h"

enum { ROUNDS = 7, COLD_BYTES = 96 << 20, HOT_PAGES = 8, HOT_BYTES = 1 << 20, MOST_THREADS = 2, MOST_QUERIES = 32 };

static const char *const default_codecs[] = {
    "f16",
    "int8",
    "velox:bits=2",
    "velox:bits=3",
    "velox:bits=4",
    "velox:bits=6",
    "kivi:bits=2",
    "kivi:bits=4",
    "turboquant-mse:bits=2",
    "turboquant-mse:bits=3",
    "turboquant-mse:bits=4",
    "turboquant-prod:bits=3",
    "polarquant",
    "rabitq",
    "qjl",
};

/* The best of many turns, seconds of one pass: what a peak is.  Other programs' time does not count on one thread; what
 * they did is added to *load. */
static double best_pass(vq_status (*run)(void *arg, uint32_t input, vq_error *err), void *arg, bool cpu_time,
                        vq_load *load)
{
    const vq_variant variant = {.name = "peak", .run = run, .arg = arg};
    const vq_turns turns = {
        .variants = &variant, .n_variants = 1, .n_inputs = 2, .n_rounds = ROUNDS, .cpu_time = cpu_time};
    double seconds[2 * ROUNDS];
    vq_load during;
    vq_error err;
    if (vq_take_turns(&turns, seconds, &during, &err) != VQ_OK) {
        fprintf(stderr, "bench_peak: %s\n", err.text);
        exit(1);
    }
    if (during.known && (!load->known || during.others > load->others))
        *load = during;
    return vq_spread_of(seconds, 2 * ROUNDS).least;
}

static double cycles_a_second(void)
{
#if defined(__x86_64__)
    const double start = vq_clock_seconds(VQ_CLOCK_WALL);
    const unsigned long long from = __rdtsc();
    double took;
    while ((took = vq_clock_seconds(VQ_CLOCK_WALL) - start) < 0.05)
        ;
    return (double)(__rdtsc() - from) / took;
#else
    return 0;
#endif
}

/* ---- the machine ---- */

/* Sums of words, in vectors where the compiler is told that there are some. */
#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static uint64_t
sum_words(const uint64_t *x, size_t n)
{
    uint64_t part[32] = {0}, sum = 0;
    for (size_t i = 0; i + 32 <= n; i += 32)
        for (size_t j = 0; j < 32; j++)
            part[j] += x[i + j];
    for (size_t j = 0; j < 32; j++)
        sum += part[j];
    return sum;
}

typedef struct reader {
    const uint64_t *words;
    size_t n;
    uint32_t times;
    volatile uint64_t sum; /* or the loop would go */
} reader;

static void *read_words(void *arg)
{
    reader *r = arg;
    for (uint32_t i = 0; i < r->times; i++)
        r->sum += sum_words(r->words, r->n);
    return NULL;
}

typedef struct readers {
    reader each[MOST_THREADS];
    uint32_t n;
} readers;

/* The first reads in this thread; starting the others is in the time, and small beside 10 ms of reading. */
static vq_status read_together(void *arg, uint32_t input, vq_error *err)
{
    (void)input;
    (void)err;
    readers *all = arg;
    pthread_t threads[MOST_THREADS];
    for (uint32_t i = 1; i < all->n; i++)
        if (pthread_create(&threads[i], NULL, read_words, &all->each[i]) != 0)
            exit(1);
    read_words(&all->each[0]);
    for (uint32_t i = 1; i < all->n; i++)
        pthread_join(threads[i], NULL);
    return VQ_OK;
}

/* Bytes a second that n threads read together, each its own n_bytes. */
static double bandwidth(unsigned char *pool, size_t n_bytes, uint32_t times, uint32_t n_threads, vq_load *load)
{
    readers all = {.n = n_threads};
    for (uint32_t i = 0; i < n_threads; i++)
        all.each[i] = (reader){.words = (const uint64_t *)(const void *)(pool + i * n_bytes),
                               .n = n_bytes / sizeof(uint64_t),
                               .times = times};
    return (double)n_bytes * times * n_threads / best_pass(read_together, &all, n_threads == 1, load);
}

enum { PRODUCT_PASSES = 200000, CHAINS = 12 };

#if defined(__x86_64__)
/* Multiply-adds of bytes in registers alone, twelve chains that do not wait for each other. */
__attribute__((target("avx512f,avx512vnni,avx512bw"))) static uint64_t products_vnni(void)
{
    __m512i sum[CHAINS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_setzero_si512();
    for (int n = 0; n < PRODUCT_PASSES; n++) {
        __asm__ volatile("" : "+v"(a), "+v"(b));
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, b);
    }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    volatile int kept = _mm512_reduce_add_epi32(sum[0]);
    (void)kept;
    return (uint64_t)PRODUCT_PASSES * CHAINS * 64;
}

__attribute__((target("avx2"))) static uint64_t products_avx2(void)
{
    __m256i sum[CHAINS], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_setzero_si256();
    for (int n = 0; n < PRODUCT_PASSES; n++)
        for (int i = 0; i < CHAINS; i++) {
            __asm__ volatile("" : "+x"(a), "+x"(b));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        }
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_epi32(sum[0], sum[i]);
    volatile int kept = _mm256_extract_epi32(sum[0], 0);
    (void)kept;
    return (uint64_t)PRODUCT_PASSES * CHAINS * 32;
}
#endif

static vq_status run_products(void *arg, uint32_t input, vq_error *err)
{
    (void)input;
    (void)err;
    uint64_t *n = arg;
    *n = 0;
#if defined(__x86_64__)
    const uint32_t cpu = vq_cpu_detect();
    if (cpu & VQ_CPU_AVX2)
        *n = cpu & VQ_CPU_AVX512 ? products_vnni() : products_avx2();
#endif
    return VQ_OK;
}

/* Multiply-adds a second of one thread; 0: no vectors of bytes here. */
static double product_peak(vq_load *load)
{
    uint64_t n;
    const double seconds = best_pass(run_products, &n, true, load);
    return (double)n / seconds;
}

/* ---- codecs ---- */

typedef struct machine {
    double cycles, peak, memory, cache; /* a second; bandwidths of one thread */
} machine;

typedef struct subject {
    vq_side side;
    bool keys;
    unsigned char *pool, *queries;
    size_t page_bytes;
    uint32_t n_queries;
    float *weights, *scores, *acc;
} subject;

/* Pages [0, n_pages), so often. */
typedef struct read_pages {
    const subject *subject;
    uint32_t n_pages, times;
} read_pages;

static vq_status run_pages(void *arg, uint32_t input, vq_error *err)
{
    (void)input;
    (void)err;
    const read_pages *r = arg;
    const subject *s = r->subject;
    for (uint32_t t = 0; t < r->times; t++)
        for (uint32_t p = 0; p < r->n_pages; p++) {
            const unsigned char *page = s->pool + p * s->page_bytes;
            const vq_rows rows = {.n = VQ_PAGE_ROWS, .live = UINT64_MAX, .next = page + 4 * s->page_bytes};
            if (s->keys)
                vq_side_score(&s->side, page, &rows, s->queries, s->n_queries, s->scores);
            else
                vq_side_mix(&s->side, page, &rows, s->weights, s->n_queries, s->acc);
        }
    return VQ_OK;
}

static double pass(const subject *s, uint32_t n_pages, uint32_t times, vq_load *load)
{
    read_pages r = {s, n_pages, times};
    return best_pass(run_pages, &r, true, load) / times;
}

static json_t *row_of(const char *name, const subject *s, const machine *m, const char *from, double seconds,
                      uint32_t n_pages)
{
    const double codes = (double)n_pages * VQ_PAGE_ROWS * s->side.d, bytes = (double)n_pages * (double)s->page_bytes;
    const double macs = codes * s->n_queries, read = from[0] == 'm' ? m->memory : m->cache;
    printf("%-24s %-5s %-6s %7.2f GB/s (%3.0f %%) %8.1f Gmac/s (%3.0f %%) %7.4f cycles a code\n", name,
           s->keys ? "score" : "mix", from, bytes / seconds * 1e-9, 100 * bytes / seconds / read, macs / seconds * 1e-9,
           m->peak > 0 ? 100 * macs / seconds / m->peak : 0, m->cycles * seconds / codes);
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "codec", name, "operation",
                     s->keys ? "score" : "mix", "from", from, "d", (int)s->side.d, "queries", (int)s->n_queries, "gb_s",
                     bytes / seconds * 1e-9, "share_of_bandwidth", bytes / seconds / read, "gmac_s",
                     macs / seconds * 1e-9, "share_of_products", m->peak > 0 ? macs / seconds / m->peak : 0,
                     "cycles_a_code", m->cycles * seconds / codes);
}

static bool bench(const char *name, bool keys, uint32_t d, uint32_t n_queries, const machine *m, json_t *out,
                  vq_load *load)
{
    vq_error err;
    vq_method method;
    vq_kernels kernels;
    vq_kernels_init(&kernels, vq_cpu_detect());
    subject s = {.keys = keys, .n_queries = n_queries};
    s.side = (vq_side){.kernels = &kernels, .d = d};
    if (vq_method_parse(&method, name, &err) != VQ_OK) {
        fprintf(stderr, "bench_peak: %s\n", err.text);
        return false;
    }
    const vq_codec_env env = {.d = d,
                              .keys = keys,
                              .seed = 1,
                              .options = method.values,
                              .inner = method.inner,
                              .inner_options = method.inner_values,
                              .kernels = &kernels};
    s.side.codec = method.codec;
    if (method.codec->create(&s.side.state, &env, &err) != VQ_OK) {
        fprintf(stderr, "bench_peak: %s\n", err.text);
        return false;
    }
    vq_page_bytes bytes;
    method.codec->page_bytes(s.side.state, &bytes);
    s.page_bytes = (bytes.codes + bytes.scales + 63) / 64 * 64;
    const uint32_t n_pages = (uint32_t)(COLD_BYTES / s.page_bytes), n_rows = VQ_PAGE_ROWS + 512;
    const size_t stride = vq_side_query_bytes(&s.side), n_acc = vq_side_acc_len(&s.side);
    s.pool = aligned_alloc(64, n_pages * s.page_bytes);
    s.queries = aligned_alloc(64, n_queries * stride);
    s.weights = aligned_alloc(64, n_queries * VQ_PAGE_ROWS * sizeof(float));
    s.scores = aligned_alloc(64, n_queries * VQ_PAGE_ROWS * sizeof(float));
    s.acc = calloc(n_queries * n_acc, sizeof *s.acc);
    float *x = malloc((size_t)n_rows * d * sizeof *x);
    vq_rng rng;
    vq_rng_seed(&rng, 1);
    for (size_t i = 0; i < (size_t)n_rows * d; i++)
        x[i] = (float)vq_rng_normal(&rng);
    for (uint32_t i = 0; i < n_queries * VQ_PAGE_ROWS; i++)
        s.weights[i] = (float)vq_rng_uniform(&rng);
    for (uint32_t i = 0; keys && i < n_queries; i++)
        vq_side_prepare(&s.side, s.queries + i * stride, x + (size_t)i * d);
    enum { UNLIKE = 64 }; /* pages are encoded once, then repeated: reading them is what is timed */
    memset(s.pool, 0, n_pages * s.page_bytes);
    for (uint32_t p = 0; p < UNLIKE; p++)
        method.codec->encode(s.side.state, s.pool + p * s.page_bytes, 0, VQ_PAGE_ROWS, x + (size_t)8 * p * d);
    for (uint32_t p = UNLIKE; p < n_pages; p++)
        memcpy(s.pool + p * s.page_bytes, s.pool + p % UNLIKE * s.page_bytes, s.page_bytes);

    json_array_append_new(out, row_of(name, &s, m, "cache", pass(&s, HOT_PAGES, 50, load), HOT_PAGES));
    json_array_append_new(out, row_of(name, &s, m, "memory", pass(&s, n_pages, 1, load), n_pages));
    fflush(stdout);
    method.codec->destroy(s.side.state);
    free(x);
    free(s.acc);
    free(s.scores);
    free(s.weights);
    free(s.queries);
    free(s.pool);
    return true;
}

static json_t *measure_machine(machine *m, vq_load *load)
{
    unsigned char *pool = aligned_alloc(64, (size_t)MOST_THREADS * COLD_BYTES);
    memset(pool, 1, (size_t)MOST_THREADS * COLD_BYTES);
    m->cycles = cycles_a_second();
    m->peak = product_peak(load);
    m->memory = bandwidth(pool, COLD_BYTES, 1, 1, load);
    m->cache = bandwidth(pool, HOT_BYTES, 1000, 1, load);
    const double memory2 = bandwidth(pool, COLD_BYTES, 1, 2, load), cache2 = bandwidth(pool, HOT_BYTES, 1000, 2, load);
    free(pool);
    printf("memory %.1f GB/s, two threads %.1f; second-level cache %.1f, %.1f; %.0f G byte products a second, %.1f a "
           "cycle of the time-stamp counter (%.2f GHz)\n",
           m->memory * 1e-9, memory2 * 1e-9, m->cache * 1e-9, cache2 * 1e-9, m->peak * 1e-9, m->peak / m->cycles,
           m->cycles * 1e-9);
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:s}", "memory_gb_s", m->memory * 1e-9, "memory_gb_s_two_threads",
                     memory2 * 1e-9, "cache_gb_s", m->cache * 1e-9, "cache_gb_s_two_threads", cache2 * 1e-9,
                     "byte_products_g_s", m->peak * 1e-9, "tsc_ghz", m->cycles * 1e-9, "counters",
                     "none in this machine: cycles are those of the time-stamp counter");
}

int main(int argc, char **argv)
{
    const struct option options[] = {{"out", 1, NULL, 'o'}, {"dim", 1, NULL, 'd'}, {"queries", 1, NULL, 'q'}, {0}};
    const char *path = NULL;
    uint32_t d = 64, n_queries = 3;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case 'o': path = optarg; break;
        case 'd': d = (uint32_t)strtoul(optarg, NULL, 10); break;
        case 'q': n_queries = (uint32_t)strtoul(optarg, NULL, 10); break;
        default: fputs("usage: bench_peak [--out FILE] [--dim N] [--queries N] [codec ...]\n", stderr); return 2;
        }
    if (d < 8 || d > VQ_MAX_HEAD_DIM || n_queries < 1 || n_queries > MOST_QUERIES) {
        fprintf(stderr, "bench_peak: a head of %u values, allowed are 8 to %d; %u queries, 1 to %d\n", d,
                VQ_MAX_HEAD_DIM, n_queries, MOST_QUERIES);
        return 2;
    }
    vq_load load = {0}; /* the busiest that any of the runs saw */
    machine m;
    json_t *about = measure_machine(&m, &load), *rows = json_array();
    const size_t n = optind < argc ? (size_t)(argc - optind) : sizeof default_codecs / sizeof default_codecs[0];
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++)
        for (int keys = 1; keys >= 0 && ok; keys--)
            ok = bench(optind < argc ? argv[optind + (int)i] : default_codecs[i], keys, d, n_queries, &m, rows, &load);
    json_t *all = json_pack("{s:o, s:o, s:b, s:f}", "machine", about, "rows", rows, "quiet", (int)load.quiet,
                            "others_cpus", load.others);
    if (path && json_dump_file(all, path, JSON_INDENT(1) | JSON_REAL_PRECISION(5)) != 0) {
        fprintf(stderr, "bench_peak: %s could not be written\n", path);
        ok = false;
    }
    json_decref(all);
    return ok ? 0 : 1;
}
