/* One system under measurement as a process: it opens a model once, then does what lines on its standard input say and
 * answers each with one line of JSON.  bench/peers/llama_cpp_worker.py speaks the same language for llama.cpp, so that
 * bench/peers/speed can hold both at the same depth and take samples in turns.
 *
 *     clear                  an empty context                                     {}
 *     fill N SEED            evaluates N tokens after what is there               {"seconds"}
 *     rows N SEED            the same without evaluating: rows that cost as much to attend to     {"seconds"}
 *     prompt N SEED          the same in one call                                 {"seconds", "cpu_seconds"}
 *     decode N SEED          the same one token a call, logits each               {"seconds", "cpu_seconds"}
 *     nll IDS OUT SKIP       clears; IDS is a file of int32 token ids; writes the -log p of each token after the first
 *                            1 + SKIP ones to OUT as float64                      {"n"}
 *     status                 cache: vq_kv_bytes by name and what smaps has for its mappings   {"tokens", "cache_bytes",
 *                            "rss_bytes", "cache"}
 *
 * Token i of a command is hash(SEED, i) modulo the vocabulary.  Failures answer {"error"}. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "veloxquant/veloxquant.h"

typedef struct worker {
    vq_pool *pool;
    vq_model *model;
    vq_session *session;
    uint32_t n_vocab;
} worker;

/* splitmix64 of seed + i: the same ids in every worker. */
static void draw_ids(int32_t *ids, size_t n, uint64_t seed, uint32_t n_vocab)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t z = (seed + i + 1) * UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        ids[i] = (int32_t)((z ^ (z >> 31)) % n_vocab);
    }
}

static vq_status run_tokens(worker *w, size_t n, uint64_t seed, bool one_by_one, vq_error *err)
{
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids) {
        snprintf(err->text, sizeof err->text, "out of memory");
        return VQ_ERR_NOMEM;
    }
    draw_ids(ids, n, seed, w->n_vocab);
    vq_status status = VQ_OK;
    for (size_t i = 0; i < n && status == VQ_OK;) {
        const size_t step = one_by_one ? 1 : n;
        status = vq_session_eval(w->session, ids + i, step, NULL, 0, NULL, err);
        i += step;
    }
    free(ids);
    return status;
}

static vq_status timed(worker *w, size_t n, uint64_t seed, bool one_by_one, vq_error *err)
{
    const double wall = vq_clock_seconds(VQ_CLOCK_WALL), cpu = vq_clock_seconds(VQ_CLOCK_PROCESS);
    const vq_status status = run_tokens(w, n, seed, one_by_one, err);
    if (status == VQ_OK)
        printf("{\"seconds\": %.9f, \"cpu_seconds\": %.9f}\n", vq_clock_seconds(VQ_CLOCK_WALL) - wall,
               vq_clock_seconds(VQ_CLOCK_PROCESS) - cpu);
    return status;
}

typedef struct nll_sum {
    const int32_t *ids;
    size_t n;
    uint32_t n_vocab;
    FILE *out;
} nll_sum;

static bool add_nll(void *arg, size_t index, const float *logits)
{
    const nll_sum *sum = arg;
    if (index + 1 >= sum->n)
        return true;
    double max = -INFINITY, total = 0;
    for (uint32_t i = 0; i < sum->n_vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < sum->n_vocab; i++)
        total += exp(logits[i] - max);
    const double nll = log(total) + max - logits[sum->ids[index + 1]];
    return fwrite(&nll, sizeof nll, 1, sum->out) == 1;
}

static vq_status run_nll(worker *w, const char *ids_path, const char *out_path, size_t skip, vq_error *err)
{
    nll_sum sum = {.n_vocab = w->n_vocab};
    int32_t *ids = NULL;
    vq_status status = VQ_ERR_IO;
    FILE *in = fopen(ids_path, "rb");
    sum.out = fopen(out_path, "wb");
    if (!in || !sum.out || fseek(in, 0, SEEK_END) != 0)
        goto io;
    const long n_bytes = ftell(in);
    rewind(in);
    sum.n = n_bytes > 0 ? (size_t)n_bytes / sizeof *ids : 0;
    ids = malloc(sum.n * sizeof *ids + 1);
    if (!ids || fread(ids, sizeof *ids, sum.n, in) != sum.n)
        goto io;
    sum.ids = ids;
    status = vq_session_truncate(w->session, 0, err);
    if (status == VQ_OK)
        status = vq_session_eval(w->session, ids, sum.n, add_nll, skip, &sum, err);
    if (status == VQ_OK)
        printf("{\"n\": %zu}\n", sum.n > skip + 1 ? sum.n - skip - 1 : 0);
    goto out;
io:
    snprintf(err->text, sizeof err->text, "reading the ids or writing the results: %s", strerror(errno));
out:
    free(ids);
    if (in)
        fclose(in);
    if (sum.out)
        fclose(sum.out);
    return status;
}

static uint64_t resident_bytes(void)
{
    unsigned long all = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f) {
        if (fscanf(f, "%lu %lu", &all, &resident) != 2)
            resident = 0;
        fclose(f);
    }
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Resident bytes of the entries of smaps that the cache's mappings lie in. */
static uint64_t smaps_of(const vq_kv *kv)
{
    enum { MOST = 65536 };
    const void **starts = malloc(MOST * sizeof *starts);
    size_t *n_bytes = malloc(MOST * sizeof *n_bytes);
    const size_t n = starts && n_bytes ? vq_kv_mappings(kv, starts, n_bytes, MOST) : 0;
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[512];
    bool ours = false;
    uint64_t sum = 0;
    while (f && fgets(line, sizeof line, f)) {
        uint64_t start, end, kib;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2) {
            ours = false;
            for (size_t i = 0; i < n && i < MOST && !ours; i++)
                ours = (uintptr_t)starts[i] >= start && (uintptr_t)starts[i] < end;
        } else if (ours && sscanf(line, "Rss: %" SCNu64 " kB", &kib) == 1) {
            sum += kib * 1024;
        }
    }
    if (f)
        fclose(f);
    free(starts);
    free(n_bytes);
    return sum;
}

static vq_status fill_rows(worker *w, size_t n, uint64_t seed, vq_error *err)
{
    const double wall = vq_clock_seconds(VQ_CLOCK_WALL);
    const vq_status status = vq_eval_fill_rows(w->session, vq_session_n_tokens(w->session) + (uint32_t)n, seed, err);
    if (status == VQ_OK)
        printf("{\"seconds\": %.9f}\n", vq_clock_seconds(VQ_CLOCK_WALL) - wall);
    return status;
}

static vq_status obey(worker *w, const char *line, vq_error *err)
{
    size_t n = 0, skip = 0;
    uint64_t seed = 0;
    char in[512], out[512];
    if (strncmp(line, "clear", 5) == 0) {
        const vq_status status = vq_session_truncate(w->session, 0, err);
        if (status == VQ_OK)
            puts("{}");
        return status;
    }
    if (sscanf(line, "fill %zu %" SCNu64, &n, &seed) == 2 || sscanf(line, "prompt %zu %" SCNu64, &n, &seed) == 2)
        return timed(w, n, seed, false, err);
    if (sscanf(line, "rows %zu %" SCNu64, &n, &seed) == 2)
        return fill_rows(w, n, seed, err);
    if (sscanf(line, "decode %zu %" SCNu64, &n, &seed) == 2)
        return timed(w, n, seed, true, err);
    if (sscanf(line, "nll %511s %511s %zu", in, out, &skip) == 3)
        return run_nll(w, in, out, skip, err);
    if (strncmp(line, "status", 6) == 0) {
        vq_kv_bytes bytes;
        vq_kv_measure(vq_session_kv(w->session), &bytes);
        printf("{\"tokens\": %" PRIu32 ", \"cache_bytes\": %" PRIu64 ", \"rss_bytes\": %" PRIu64
               ", \"cache\": {\"codes\": %" PRIu64 ", \"scales\": %" PRIu64 ", \"exact\": %" PRIu64
               ", \"shared\": %" PRIu64 ", \"table\": %" PRIu64 ", \"reserved\": %" PRIu64 ", \"smaps\": %" PRIu64
               "}}\n",
               vq_session_n_tokens(w->session), bytes.codes + bytes.scales + bytes.exact + bytes.shared + bytes.table,
               resident_bytes(), bytes.codes, bytes.scales, bytes.exact, bytes.shared, bytes.table, bytes.reserved,
               smaps_of(vq_session_kv(w->session)));
        return VQ_OK;
    }
    snprintf(err->text, sizeof err->text, "unknown command");
    return VQ_ERR_ARG;
}

static int usage(void)
{
    fputs("usage: vq-worker MODEL THREADS CONTEXT KEYS VALUES [exact]\n", stderr);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 6 || argc > 7 || (argc == 7 && strcmp(argv[6], "exact") != 0))
        return usage();
    worker w = {0};
    vq_error err = {0};
    vq_session_params params;
    vq_session_params_init(&params);
    params.n_ctx = (uint32_t)strtoul(argv[3], NULL, 10);
    params.kv_keys = argv[4];
    params.kv_values = argv[5];
    params.exact = argc == 7;
    vq_status status = vq_pool_open(&w.pool, (uint32_t)strtoul(argv[2], NULL, 10), &err);
    params.pool = w.pool;
    if (status == VQ_OK)
        status = vq_model_open(&w.model, argv[1], &err);
    if (status == VQ_OK)
        status = vq_session_open(&w.session, w.model, &params, &err);
    if (status == VQ_OK) {
        const vq_model_info *info = vq_model_get_info(w.model);
        w.n_vocab = info->n_vocab;
        printf("{\"system\": \"veloxquant\", \"version\": \"%s\", \"n_vocab\": %" PRIu32 "}\n", vq_version(),
               w.n_vocab);
        fflush(stdout);
        char line[2048];
        while (fgets(line, sizeof line, stdin)) {
            const vq_status failed = obey(&w, line, &err);
            if (failed != VQ_OK) {
                printf("{\"error\": \"%s\"}\n", vq_status_name(failed));
                fprintf(stderr, "vq-worker: %s\n", err.text);
            }
            fflush(stdout);
        }
    } else {
        fprintf(stderr, "vq-worker: %s\n", err.text);
    }
    vq_session_close(w.session);
    vq_model_close(w.model);
    vq_pool_close(w.pool);
    return status == VQ_OK ? 0 : 1;
}
