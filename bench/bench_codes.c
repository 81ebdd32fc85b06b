/* Encoding, scores and weighted sums of the packed codecs: billions of multiply-adds and of bytes of codes a second,
 * for every tier of this machine.
 *
 *     bench_codes [--json] [--calibration FILE] [d] [codec ...]      a codec as --kv takes it, e.g.
 * turboquant-mse:bits=3
 *
 * Calibrated codecs get FILE and the frequencies of RoPE with base 100,000 in interleaved pairs (SmolLM2's).
 *
 * The tiers of a codec take turns on a pool of unlike pages that no second-level cache holds (veloxquant/measure.h);
 * times are CPU time, figures medians. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"
#include "kv/codec_generic.h"
#include "veloxquant/measure.h"

enum { POOL_BYTES = 24 << 20, ROUNDS = 9, N_TIERS = 3, MOST_QUERIES = 96, N_COUNTS = 4 };
#define SAMPLE_SECONDS 0.002

static const uint32_t query_counts[N_COUNTS] = {1, 3, 16, MOST_QUERIES};
static const char *const default_codecs[] = {
    "f16",
    "int8",
    "velox:bits=2",
    "kivi:bits=2",
    "kivi:bits=4",
    "turboquant-mse:bits=2",
    "turboquant-mse:bits=3",
    "turboquant-mse:bits=4",
    "turboquant-mse:bits=6",
};

/* What all tiers share: rows, queries, and a pool of pages. */
typedef struct data {
    uint32_t d, n_pages;
    size_t page_bytes;
    unsigned char *pool, *page; /* page: where encoding goes */
    float *rows;                /* [n_rows][d]: page i codes rows i on */
    float *queries_f32, *weights, *scores, *acc;
    uint32_t n_rows;
    vq_calibration *calibration; /* or NULL */
    double freq[VQ_MAX_HEAD_DIM / 2];
    vq_kv_rope rope;
} data;

typedef struct tier {
    const char *name;
    vq_kernels kernels;
    vq_side keys, values;
    unsigned char *queries; /* [MOST_QUERIES] prepared */
    data *data;
    uint32_t n_queries;
} tier;

static vq_status run_encode(void *arg, uint32_t input, vq_error *err)
{
    (void)err;
    const tier *t = arg;
    t->keys.codec->encode(t->keys.state, t->data->page, 0, VQ_PAGE_ROWS, t->data->rows + (size_t)input * t->data->d);
    return VQ_OK;
}

static vq_status run_score(void *arg, uint32_t input, vq_error *err)
{
    (void)err;
    const tier *t = arg;
    const data *x = t->data;
    const vq_rows all = {.n = VQ_PAGE_ROWS, .live = ~0ULL};
    vq_side_score(&t->keys, x->pool + (size_t)input * x->page_bytes, &all, t->queries, t->n_queries, x->scores);
    return VQ_OK;
}

static vq_status run_mix(void *arg, uint32_t input, vq_error *err)
{
    (void)err;
    const tier *t = arg;
    const data *x = t->data;
    const vq_rows all = {.n = VQ_PAGE_ROWS, .live = ~0ULL};
    vq_side_mix(&t->values, x->pool + (size_t)input * x->page_bytes, &all, x->weights, t->n_queries, x->acc);
    return VQ_OK;
}

static const void *page_of(void *arg, uint32_t input, size_t *n_bytes)
{
    const data *x = arg;
    *n_bytes = x->page_bytes;
    return x->pool + (size_t)input * x->page_bytes;
}

static bool open_side(vq_side *side, const tier *t, const vq_method *m, uint32_t d, bool keys)
{
    vq_error err;
    const vq_codec_env env = {.d = d,
                              .keys = keys,
                              .seed = 1,
                              .options = m->values,
                              .inner = m->inner,
                              .inner_options = m->inner_values,
                              .kernels = &t->kernels,
                              .calibration = t->data->calibration,
                              .rope = t->data->calibration ? &t->data->rope : NULL};
    *side = (vq_side){.codec = m->codec, .kernels = &t->kernels, .d = d};
    if (m->codec->create(&side->state, &env, &err) == VQ_OK)
        return true;
    fprintf(stderr, "bench_codes: %s\n", err.text);
    return false;
}

static void close_tiers(tier *tiers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (tiers[i].keys.state)
            tiers[i].keys.codec->destroy(tiers[i].keys.state);
        if (tiers[i].values.state)
            tiers[i].values.codec->destroy(tiers[i].values.state);
        free(tiers[i].queries);
    }
}

/* Every tier that this CPU has, C first; 0 on failure. */
static size_t open_tiers(tier *tiers, const vq_method *m, data *x)
{
    static const uint32_t sets[N_TIERS] = {0, VQ_CPU_AVX2, VQ_CPU_AVX2 | VQ_CPU_AVX512};
    const uint32_t cpu = vq_cpu_detect();
    size_t n = 0;
    for (size_t i = 0; i < N_TIERS; i++) {
        if ((cpu & sets[i]) != sets[i])
            continue;
        tier *t = &tiers[n++];
        *t = (tier){.name = vq_cpu_name(sets[i]), .data = x};
        vq_kernels_init(&t->kernels, sets[i]);
        if (!open_side(&t->keys, t, m, x->d, true) || !open_side(&t->values, t, m, x->d, false)) {
            close_tiers(tiers, n);
            return 0;
        }
        const size_t stride = vq_side_query_bytes(&t->keys);
        t->queries = aligned_alloc(64, MOST_QUERIES * stride);
        for (uint32_t q = 0; q < MOST_QUERIES; q++)
            vq_side_prepare(&t->keys, t->queries + q * stride, x->queries_f32 + (size_t)q * x->d);
    }
    return n;
}

static void fill(data *x, const vq_side *side)
{
    memset(x->pool, 0, POOL_BYTES);
    for (uint32_t i = 0; i < x->n_pages; i++)
        side->codec->encode(side->state, x->pool + (size_t)i * x->page_bytes, 0, VQ_PAGE_ROWS,
                            x->rows + (size_t)i * x->d);
}

typedef struct operation {
    const char *name;
    vq_status (*run)(void *arg, uint32_t input, vq_error *err);
    uint32_t n_queries; /* 0: rows are encoded */
} operation;

/* Seconds of an operation for each tier, and against plain C. */
static bool measure(tier *tiers, size_t n, const operation *op, vq_spread *took, vq_versus *versus, vq_load *load)
{
    double seconds[(N_TIERS + 1) * ROUNDS];
    vq_variant variants[N_TIERS];
    for (size_t i = 0; i < n; i++) {
        tiers[i].n_queries = op->n_queries;
        variants[i] = (vq_variant){tiers[i].name, op->run, &tiers[i]};
    }
    data *x = tiers[0].data;
    const vq_turns turns = {.variants = variants,
                            .n_variants = n,
                            .n_inputs = x->n_pages,
                            .input = page_of,
                            .input_arg = x,
                            .n_rounds = ROUNDS,
                            .sample_seconds = SAMPLE_SECONDS,
                            .cpu_time = true};
    vq_error err;
    if (vq_take_turns(&turns, seconds, load, &err) != VQ_OK) {
        fprintf(stderr, "bench_codes: %s\n", err.text);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        took[i] = vq_spread_of(seconds + i * ROUNDS, ROUNDS);
        versus[i] = vq_versus_of(seconds, seconds + n * ROUNDS, seconds + i * ROUNDS, ROUNDS);
    }
    return true;
}

static json_t *row_of(const char *codec, const data *x, const tier *t, const operation *op, const vq_spread *took,
                      const vq_versus *v, const vq_load *load)
{
    const double products = 1e-9 * VQ_PAGE_ROWS * x->d * op->n_queries, bytes = 1e-9 * (double)x->page_bytes;
    json_t *row =
        json_pack("{s:s, s:i, s:s, s:s, s:i, s:{s:f, s:f, s:f}, s:[f, f, f], s:[f, f, f], s:s, s:b, s:f}", "codec",
                  codec, "d", (int)x->d, "tier", t->name, "operation", op->name, "queries", (int)op->n_queries,
                  "microseconds_a_page", "median", 1e6 * took->median, "q1", 1e6 * took->q1, "q3", 1e6 * took->q3,
                  "times_c", v->speed.median, v->low, v->high, "noise", v->noise.median, v->noise_low, v->noise_high,
                  "verdict", vq_verdict_name(v->verdict), "quiet", (int)load->quiet, "others_cpus", load->others);
    if (op->n_queries) {
        json_object_set_new(row, "gmac_s", json_real(products / took->median));
        json_object_set_new(row, "gb_s", json_real(bytes / took->median));
    }
    return row;
}

static bool bench(const char *text, data *x, bool json, bool *quiet)
{
    static const operation operations[] = {
        {"encode", run_encode, 0}, {"score", run_score, 1},  {"score", run_score, 3},
        {"score", run_score, 16},  {"score", run_score, 96}, {"mix", run_mix, 1},
        {"mix", run_mix, 3},       {"mix", run_mix, 16},     {"mix", run_mix, 96},
    };
    enum { N_OPERATIONS = sizeof operations / sizeof operations[0] };
    tier tiers[N_TIERS];
    vq_method m;
    vq_error err;
    if (vq_method_parse(&m, text, &err) != VQ_OK) {
        fprintf(stderr, "bench_codes: %s\n", err.text);
        return false;
    }
    const size_t n = open_tiers(tiers, &m, x);
    if (n == 0)
        return false;
    vq_page_bytes keys, values;
    m.codec->page_bytes(tiers[0].keys.state, &keys);
    m.codec->page_bytes(tiers[0].values.state, &values);
    const size_t k = keys.codes + keys.scales, v = values.codes + values.scales;
    x->page_bytes = ((k > v ? k : v) + 63) / 64 * 64;
    x->n_pages = (uint32_t)(POOL_BYTES / x->page_bytes);
    if (x->n_pages + VQ_PAGE_ROWS > x->n_rows)
        x->n_pages = x->n_rows - VQ_PAGE_ROWS;
    bool fine = true;
    static vq_spread took[N_OPERATIONS][N_TIERS];
    for (size_t o = 0; o < N_OPERATIONS && fine; o++) {
        if (o == 0 || operations[o].run != operations[o - 1].run)
            fill(x, operations[o].run == run_mix ? &tiers[n - 1].values : &tiers[n - 1].keys);
        vq_versus versus[N_TIERS];
        vq_load load;
        fine = measure(tiers, n, &operations[o], took[o], versus, &load);
        *quiet &= fine && load.quiet;
        for (size_t i = 0; i < n && fine && json; i++) {
            json_t *row = row_of(text, x, &tiers[i], &operations[o], &took[o][i], &versus[i], &load);
            char *line = json_dumps(row, JSON_REAL_PRECISION(5));
            puts(line);
            free(line);
            json_decref(row);
        }
    }
    for (size_t i = 0; i < n && fine && !json; i++) {
        printf("%-24s %-7s %7.0f", text, tiers[i].name, 1e9 * took[0][i].median / VQ_PAGE_ROWS);
        for (uint32_t c = 0; c < N_COUNTS; c++) {
            const double products = 1e-9 * VQ_PAGE_ROWS * x->d * query_counts[c];
            printf(" %7.1f %7.1f", products / took[1 + c][i].median, products / took[1 + N_COUNTS + c][i].median);
        }
        printf(" %6.2f\n", 2e-9 * (double)x->page_bytes / (took[2][i].median + took[2 + N_COUNTS][i].median));
    }
    fflush(stdout);
    close_tiers(tiers, n);
    return fine;
}

static float *draws(size_t n, vq_rng *rng, bool normal)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n && x; i++)
        x[i] = (float)(normal ? vq_rng_normal(rng) : vq_rng_uniform(rng));
    return x;
}

int main(int argc, char **argv)
{
    const bool json = argc > 1 && strcmp(argv[1], "--json") == 0;
    argv += json;
    argc -= json;
    data x = {0};
    if (argc > 2 && strcmp(argv[1], "--calibration") == 0) {
        vq_error err;
        if (vq_calibration_open(&x.calibration, argv[2], &err) != VQ_OK) {
            fprintf(stderr, "bench_codes: %s\n", err.text);
            return 1;
        }
        argv += 2;
        argc -= 2;
    }
    x.d = argc > 1 ? (uint32_t)atoi(argv[1]) : 64;
    const char *const *codecs = argc > 2 ? (const char *const *)argv + 2 : default_codecs;
    const size_t n_codecs = argc > 2 ? (size_t)argc - 2 : sizeof default_codecs / sizeof default_codecs[0];
    if (x.d < 1 || x.d > VQ_MAX_HEAD_DIM) {
        fprintf(stderr, "usage: bench_codes [--json] [--calibration FILE] [d] [codec ...]      d: 1 to %d\n",
                VQ_MAX_HEAD_DIM);
        return 2;
    }
    for (uint32_t f = 0; f < x.d / 2; f++)
        x.freq[f] = pow(100000, -2.0 * f / x.d);
    x.rope = (vq_kv_rope){.freq = x.freq, .n_rot = x.d / 2 * 2};
    vq_rng rng;
    vq_rng_seed(&rng, 3);
    x.n_rows = 1 << 14;
    x.pool = aligned_alloc(64, POOL_BYTES);
    x.page = aligned_alloc(64, (size_t)VQ_PAGE_ROWS * 4 * VQ_MAX_HEAD_DIM);
    x.rows = draws((size_t)x.n_rows * x.d, &rng, true);
    x.queries_f32 = draws((size_t)MOST_QUERIES * x.d, &rng, true);
    x.weights = draws((size_t)MOST_QUERIES * VQ_PAGE_ROWS, &rng, false);
    x.scores = draws((size_t)MOST_QUERIES * VQ_PAGE_ROWS, &rng, false);
    x.acc = calloc((size_t)MOST_QUERIES * 2 * VQ_MAX_HEAD_DIM, sizeof *x.acc);
    if (!x.pool || !x.page || !x.rows || !x.queries_f32 || !x.weights || !x.scores || !x.acc) {
        fprintf(stderr, "bench_codes: no memory for a pool of %d MiB\n", POOL_BYTES >> 20);
        return 1;
    }
    if (!json) {
        printf(
            "d = %u; GMAC/s of keys (score) and values (mix) by queries a page; encode in ns a row; GB/s of pages at "
            "3 queries\n%-24s %-7s %7s",
            x.d, "codec", "tier", "encode");
        for (uint32_t c = 0; c < N_COUNTS; c++)
            printf(" score%-3u mix%-3u", query_counts[c], query_counts[c]);
        printf("  GB/s\n");
    }
    bool quiet = true, fine = true;
    for (size_t i = 0; i < n_codecs && fine; i++)
        fine = bench(codecs[i], &x, json, &quiet);
    if (fine && !quiet)
        fprintf(stderr, "bench_codes: the machine was not quiet; trust ratios of one row only\n");
    vq_calibration_close(x.calibration);
    free(x.acc);
    free(x.scores);
    free(x.weights);
    free(x.queries_f32);
    free(x.rows);
    free(x.page);
    free(x.pool);
    return fine ? 0 : 1;
}
