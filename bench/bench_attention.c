/* Speed of the cache alone, without a model: attention of decoded tokens and of prompt chunks at a depth, and appending
 * (which is where rows are encoded).
 *
 * A token goes through all layers, as in a model, so that the rows don't stay in a cache.  Methods take turns within
 * one round with f16, which takes two turns: what else the machine does hits all of them, and the ratio of the two f16
 * turns is the noise floor.  Figures are medians over rounds.  Bytes are what vq_kv_measure counts as codes, scales and
 * exact rows of the depth. */
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "veloxquant/kv.h"

enum { MOST_METHODS = 16, MOST_ROUNDS = 101, MOST_DEPTHS = 16 };

typedef struct shape {
    uint32_t n_layers, n_heads, n_kv_heads, d, window, n_prompt, n_tokens, n_rounds;
} shape;

typedef struct subject {
    const char *method;
    vq_kv *kv;
    double decode[MOST_ROUNDS], prompt[MOST_ROUNDS], append[MOST_ROUNDS], encode[MOST_ROUNDS]; /* seconds a token */
} subject;

typedef struct data {
    float *q, *k, *v, *out; /* rows for n_prompt tokens; every layer takes them from another place */
    size_t n_q, n_kv;       /* floats */
} data;

/* With one thread CPU time counts, so that other programs take less of it; with more, time on the wall. */
static clockid_t time_source = CLOCK_PROCESS_CPUTIME_ID;

static double now(void)
{
    struct timespec t;
    clock_gettime(time_source, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n)
{
    qsort(x, n, sizeof *x, by_value);
    return x[n / 2];
}

/* Sums of four uniform numbers: near enough to normal. */
static void fill(float *x, size_t n, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++) {
            *seed = *seed * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(*seed >> 40) * 0x1p-24f - 0.5f;
        }
        x[i] = sum * 1.7f;
    }
}

static void die(const char *what, const vq_error *err)
{
    fprintf(stderr, "bench_attention: %s: %s\n", what, err->text);
    exit(1);
}

/* n tokens through all layers; seconds of attention, and of appending. */
static double step(const shape *s, subject *b, const data *x, uint32_t n, bool attend, double *appending)
{
    vq_error err;
    const uint32_t pos = vq_kv_n_rows(b->kv, 0);
    double attending = 0;
    *appending = 0;
    for (uint32_t l = 0; l < s->n_layers; l++) {
        const size_t shift_kv = (size_t)(l * 7 % 64) * s->d, shift_q = (size_t)(l * 5 % 64) * s->d;
        const double start = now();
        if (vq_kv_append(b->kv, l, pos, x->k + shift_kv, x->v + shift_kv, n, &err) != VQ_OK)
            die(b->method, &err);
        const double middle = now();
        if (attend && vq_kv_attend(b->kv, l, x->q + shift_q, n, x->out, &err) != VQ_OK)
            die(b->method, &err);
        *appending += middle - start;
        attending += now() - middle;
    }
    return attending;
}

static void run_round(const shape *s, subject *b, const data *x, uint32_t depth, uint32_t round)
{
    vq_error err;
    double appending, all = 0, attending = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        attending += step(s, b, x, 1, true, &appending);
        all += appending;
    }
    b->decode[round] = attending / s->n_tokens;
    b->append[round] = all / s->n_tokens;
    if (vq_kv_truncate(b->kv, depth, &err) != VQ_OK)
        die(b->method, &err);
    b->prompt[round] = step(s, b, x, s->n_prompt, true, &appending) / s->n_prompt;
    b->encode[round] = appending / s->n_prompt;
    if (vq_kv_truncate(b->kv, depth, &err) != VQ_OK)
        die(b->method, &err);
}

/* Seconds to read n words once. */
static double read_all(const uint64_t *words, size_t n)
{
    const double start = now();
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= n; i += 8)
        for (size_t j = 0; j < 8; j++)
            sum[j] += words[i + j];
    volatile uint64_t kept[8]; /* or the loop would go */
    for (size_t j = 0; j < 8; j++)
        kept[j] = sum[j];
    return kept[0] == 1 ? 0 : now() - start;
}

static void run_depth(const shape *s, const char *const *methods, uint32_t n_methods, uint32_t depth, vq_pool *pool,
                      const data *x)
{
    subject *all = calloc(n_methods, sizeof *all);
    uint32_t *window = calloc(s->n_layers, sizeof *window);
    for (uint32_t l = 0; l < s->n_layers; l++)
        window[l] = s->window;
    vq_error err;
    double ignored;
    for (uint32_t m = 0; m < n_methods; m++) {
        all[m].method = methods[m];
        const vq_kv_params p = {.n_layers = s->n_layers,
                                .n_heads = s->n_heads,
                                .n_kv_heads = s->n_kv_heads,
                                .d_k = s->d,
                                .d_v = s->d,
                                .n_ctx = depth + s->n_prompt + s->n_tokens + 64,
                                .n_batch = s->n_prompt,
                                .window = window,
                                .keys = methods[m],
                                .values = methods[m],
                                .sinks = VQ_KV_DEFAULT,
                                .residual = VQ_KV_DEFAULT,
                                .pool = pool};
        if (vq_kv_open(&all[m].kv, &p, &err) != VQ_OK)
            die(methods[m], &err);
        for (uint32_t i = 0; i < depth;) {
            const uint32_t n = depth - i < s->n_prompt ? depth - i : s->n_prompt;
            step(s, &all[m], x, n, false, &ignored);
            i += n;
        }
    }
    vq_kv_bytes full;
    vq_kv_measure(all[0].kv, &full);
    const size_t n_words = (full.codes + full.exact) / sizeof(uint64_t);
    uint64_t *words = malloc(n_words * sizeof *words);
    memset(words, 1, n_words * sizeof *words);
    double reading[MOST_ROUNDS];
    for (uint32_t r = 0; r < s->n_rounds; r++) {
        for (uint32_t m = 0; m < n_methods; m++)
            run_round(s, &all[m], x, depth, r);
        reading[r] = read_all(words, n_words);
    }
    free(words);
    printf("%6u  a plain sum on one thread     %8.1f MB  %55.2f GB/s\n", depth, (double)n_words * 8e-6,
           (double)n_words * 8e-9 / median(reading, s->n_rounds));
    const double base = median(all[0].decode, s->n_rounds), base_prompt = median(all[0].prompt, s->n_rounds);
    for (uint32_t m = 0; m < n_methods; m++) {
        subject *b = &all[m];
        vq_kv_bytes bytes;
        vq_kv_measure(b->kv, &bytes);
        const double held = (double)(bytes.codes + bytes.scales + bytes.exact);
        const double decode = median(b->decode, s->n_rounds), prompt = median(b->prompt, s->n_rounds);
        printf("%6u  %-28s %8.1f MB  decode %9.1f us %8.1f tok/s %6.2f GB/s %6.2fx  append %6.1f us   prompt %8.1f us "
               "%8.1f tok/s %6.2fx  append %6.2f us\n",
               depth, m == 1 ? "f16 again (noise)" : b->method, held * 1e-6, decode * 1e6, 1 / decode,
               held / decode * 1e-9, base / decode, median(b->append, s->n_rounds) * 1e6, prompt * 1e6, 1 / prompt,
               base_prompt / prompt, median(b->encode, s->n_rounds) * 1e6);
        fflush(stdout);
        vq_kv_close(b->kv);
    }
    free(window);
    free(all);
}

static const char usage[] = "usage: bench_attention [options] [METHOD ...]\n"
                            "  --depth N,N,..     rows in the cache (512,2048,8192)\n"
                            "  --threads N        (1)\n"
                            "  --layers N --heads N --kv-heads N --dim N   shape (30, 9, 3, 64: SmolLM2-135M)\n"
                            "  --window N         of all layers (0: none)\n"
                            "  --prompt N         tokens of a prompt chunk (256)\n"
                            "  --tokens N         decoded tokens a round (8)\n"
                            "  --rounds N         (7)\n"
                            "METHOD is what --kv of the program takes. f16 always runs, twice.\n";

int main(int argc, char **argv)
{
    shape s = {30, 9, 3, 64, 0, 256, 8, 7};
    uint32_t depths[MOST_DEPTHS] = {512, 2048, 8192}, n_depths = 3, n_threads = 1;
    const struct option options[] = {{"depth", 1, NULL, 'c'},  {"threads", 1, NULL, 't'},  {"layers", 1, NULL, 'l'},
                                     {"heads", 1, NULL, 'q'},  {"kv-heads", 1, NULL, 'k'}, {"dim", 1, NULL, 'd'},
                                     {"window", 1, NULL, 'w'}, {"prompt", 1, NULL, 'p'},   {"tokens", 1, NULL, 'n'},
                                     {"rounds", 1, NULL, 'r'}, {"help", 0, NULL, 'h'},     {0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        const uint32_t value = optarg ? (uint32_t)strtoul(optarg, NULL, 10) : 0;
        switch (c) {
        case 'c':
            n_depths = 0;
            for (char *at = strtok(optarg, ","); at && n_depths < MOST_DEPTHS; at = strtok(NULL, ","))
                depths[n_depths++] = (uint32_t)strtoul(at, NULL, 10);
            break;
        case 't': n_threads = value; break;
        case 'l': s.n_layers = value; break;
        case 'q': s.n_heads = value; break;
        case 'k': s.n_kv_heads = value; break;
        case 'd': s.d = value; break;
        case 'w': s.window = value; break;
        case 'p': s.n_prompt = value; break;
        case 'n': s.n_tokens = value; break;
        case 'r': s.n_rounds = value < MOST_ROUNDS ? value : MOST_ROUNDS; break;
        case 'h': fputs(usage, stdout); return 0;
        default: fputs(usage, stderr); return 2;
        }
    }
    if (s.n_rounds == 0 || s.n_tokens == 0 || s.n_prompt == 0) {
        fputs(usage, stderr);
        return 2;
    }
    const char *methods[MOST_METHODS] = {"f16", "f16"};
    uint32_t n_methods = 2;
    for (; optind < argc && n_methods < MOST_METHODS; optind++)
        methods[n_methods++] = argv[optind];

    data x = {.n_q = ((size_t)s.n_prompt * s.n_heads + 64) * s.d,
              .n_kv = ((size_t)s.n_prompt * s.n_kv_heads + 64) * s.d};
    x.q = malloc(x.n_q * sizeof *x.q);
    x.k = malloc(x.n_kv * sizeof *x.k);
    x.v = malloc(x.n_kv * sizeof *x.v);
    x.out = malloc(x.n_q * sizeof *x.out);
    uint64_t seed = 1;
    fill(x.q, x.n_q, &seed);
    fill(x.k, x.n_kv, &seed);
    fill(x.v, x.n_kv, &seed);
    if (n_threads != 1)
        time_source = CLOCK_MONOTONIC;
    vq_pool *pool;
    vq_error err;
    if (vq_pool_open(&pool, n_threads, &err) != VQ_OK)
        die("threads", &err);
    for (uint32_t i = 0; i < n_depths; i++)
        run_depth(&s, methods, n_methods, depths[i], pool, &x);
    vq_pool_close(pool);
    free(x.q);
    free(x.k);
    free(x.v);
    free(x.out);
    return 0;
}
