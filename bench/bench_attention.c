/* Speed of the cache alone, without a model: tokens decoded one by one and prompt chunks at a depth, append and
 * attention, and appending alone (which is where rows are encoded).
 *
 *     bench_attention [options] [METHOD ...]
 *
 * A token goes through all layers, as in a model, so that the rows don't stay in a cache.  Methods take turns with f16,
 * which runs twice in each round as its own control, on a rotating pool of unlike rows (veloxquant/measure.h); figures
 * are medians over rounds, ratios come with a verdict.  A decode pass is a granule of 32 tokens, so that it encodes as
 * often as decoding does; after each pass the cache is cut back to the depth, which is in the time and is the same work
 * with and without attention.  Bytes are what vq_kv_measure counts as codes, scales and exact rows of the depth. */
#include <getopt.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "veloxquant/kv.h"
#include "veloxquant/measure.h"

enum { MOST_METHODS = 16, MOST_ROUNDS = 101, MOST_DEPTHS = 16, DECODED = 32, N_INPUTS = 8 };

typedef struct shape {
    uint32_t n_layers, n_heads, n_kv_heads, d, window, n_prompt, n_rounds;
    bool need_quiet;
} shape;

/* Rows of N_INPUTS inputs; every layer takes them from another place of its input. */
typedef struct data {
    float *q, *k, *v, *out;
    size_t n_q, n_kv; /* floats of an input */
} data;

typedef struct subject {
    const char *method;
    vq_kv *kv;
    const shape *shape;
    const data *data;
    uint32_t depth, n_tokens, chunk; /* of a pass, and how many go in at once */
    bool attend;
} subject;

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

/* n tokens through all layers. */
static vq_status step(const subject *b, uint32_t input, uint32_t n, bool attend, vq_error *err)
{
    const shape *s = b->shape;
    const data *x = b->data;
    const uint32_t pos = vq_kv_n_rows(b->kv, 0);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        const size_t shift_kv = input * x->n_kv + (size_t)(l * 7 % 64) * s->d;
        const size_t shift_q = input * x->n_q + (size_t)(l * 5 % 64) * s->d;
        vq_status status = vq_kv_append(b->kv, l, pos, x->k + shift_kv, x->v + shift_kv, n, err);
        if (status == VQ_OK && attend)
            status = vq_kv_attend(b->kv, l, x->q + shift_q, n, x->out, err);
        if (status != VQ_OK)
            return status;
    }
    return VQ_OK;
}

static vq_status pass(void *arg, uint32_t input, vq_error *err)
{
    const subject *b = arg;
    vq_status status = VQ_OK;
    for (uint32_t i = 0; i < b->n_tokens && status == VQ_OK; i += b->chunk)
        status = step(b, (input + i) % N_INPUTS, b->chunk, b->attend, err);
    return status == VQ_OK ? vq_kv_truncate(b->kv, b->depth, err) : status;
}

static const void *input_bytes(void *arg, uint32_t input, size_t *n_bytes)
{
    const data *x = arg;
    *n_bytes = x->n_kv * sizeof *x->k;
    return x->k + input * x->n_kv;
}

typedef struct taken {
    vq_spread seconds; /* a token */
    vq_versus versus;  /* f16 */
} taken;

/* Passes of one kind by all subjects in turns; *load is the worst of all kinds. */
static void take(subject *all, uint32_t n, const shape *s, uint32_t n_threads, uint32_t n_tokens, uint32_t chunk,
                 bool attend, taken *out, vq_load *load)
{
    static double seconds[(MOST_METHODS + 1) * MOST_ROUNDS];
    vq_variant variants[MOST_METHODS];
    vq_load during;
    vq_error err;
    for (uint32_t m = 0; m < n; m++) {
        all[m].n_tokens = n_tokens;
        all[m].chunk = chunk;
        all[m].attend = attend;
        variants[m] = (vq_variant){all[m].method, pass, &all[m]};
    }
    const vq_turns turns = {.variants = variants,
                            .n_variants = n,
                            .n_inputs = N_INPUTS,
                            .input = input_bytes,
                            .input_arg = (void *)(uintptr_t)all[0].data,
                            .n_rounds = s->n_rounds,
                            .cpu_time = n_threads == 1,
                            .need_quiet = s->need_quiet};
    if (vq_take_turns(&turns, seconds, &during, &err) != VQ_OK)
        die("taking turns", &err);
    const double *control = seconds + (size_t)n * s->n_rounds;
    for (uint32_t m = 0; m < n; m++) {
        double *mine = seconds + (size_t)m * s->n_rounds;
        out[m].versus = vq_versus_of(seconds, control, mine, s->n_rounds);
        double each[MOST_ROUNDS];
        for (uint32_t r = 0; r < s->n_rounds; r++)
            each[r] = mine[r] / n_tokens;
        out[m].seconds = vq_spread_of(each, s->n_rounds);
    }
    if (!during.quiet)
        *load = during;
}

static void open_subject(subject *b, const shape *s, const uint32_t *window, vq_pool *pool)
{
    vq_error err;
    const vq_kv_params p = {.n_layers = s->n_layers,
                            .n_heads = s->n_heads,
                            .n_kv_heads = s->n_kv_heads,
                            .d_k = s->d,
                            .d_v = s->d,
                            .n_ctx = b->depth + s->n_prompt + DECODED + 64,
                            .n_batch = s->n_prompt,
                            .window = window,
                            .keys = b->method,
                            .values = b->method,
                            .sinks = VQ_KV_DEFAULT,
                            .residual = VQ_KV_DEFAULT,
                            .pool = pool};
    if (vq_kv_open(&b->kv, &p, &err) != VQ_OK)
        die(b->method, &err);
    for (uint32_t i = 0, n; i < b->depth; i += n) {
        n = b->depth - i < s->n_prompt ? b->depth - i : s->n_prompt;
        if (step(b, i / s->n_prompt % N_INPUTS, n, false, &err) != VQ_OK)
            die(b->method, &err);
    }
}

static void print_kind(const char *what, const taken *with, const taken *append, bool first)
{
    printf("  %s %8.1f us (append %6.1f)", what, with->seconds.median * 1e6, append->seconds.median * 1e6);
    if (first)
        printf(" noise %.2f-%.2f%14s", with->versus.noise_low, with->versus.noise_high, "");
    else
        printf(" %5.2fx (%.2f-%.2f) %s", with->versus.speed.median, with->versus.low, with->versus.high,
               vq_verdict_name(with->versus.verdict));
}

static void run_depth(const shape *s, const char *const *methods, uint32_t n, uint32_t depth, uint32_t n_threads,
                      vq_pool *pool, const data *x)
{
    subject all[MOST_METHODS];
    taken decode[MOST_METHODS], append[MOST_METHODS], prompt[MOST_METHODS], encode[MOST_METHODS];
    vq_load load = {.known = true, .quiet = true};
    uint32_t *window = calloc(s->n_layers, sizeof *window);
    for (uint32_t l = 0; window && l < s->n_layers; l++)
        window[l] = s->window;
    for (uint32_t m = 0; m < n; m++) {
        all[m] = (subject){.method = methods[m], .shape = s, .data = x, .depth = depth};
        open_subject(&all[m], s, window, pool);
    }
    take(all, n, s, n_threads, DECODED, 1, true, decode, &load);
    take(all, n, s, n_threads, DECODED, 1, false, append, &load);
    take(all, n, s, n_threads, s->n_prompt, s->n_prompt, true, prompt, &load);
    take(all, n, s, n_threads, s->n_prompt, s->n_prompt, false, encode, &load);
    for (uint32_t m = 0; m < n; m++) {
        vq_kv_bytes bytes;
        vq_kv_measure(all[m].kv, &bytes);
        printf("%6u  %-24s %7.1f MB", depth, all[m].method, (double)(bytes.codes + bytes.scales + bytes.exact) * 1e-6);
        print_kind("decode", &decode[m], &append[m], m == 0);
        print_kind("prompt", &prompt[m], &encode[m], m == 0);
        putchar('\n');
        vq_kv_close(all[m].kv);
    }
    if (!load.quiet)
        printf(
            "        not quiet: other programs took %.2f CPUs, the host %.2f; trust ratios within this run at most\n",
            load.others, load.steal);
    fflush(stdout);
    free(window);
}

static const char usage[] = "usage: bench_attention [options] [METHOD ...]\n"
                            "  --depth N,N,..     rows in the cache (512,2048,8192)\n"
                            "  --threads N        (1; times are then CPU time)\n"
                            "  --layers N --heads N --kv-heads N --dim N   shape (30, 9, 3, 64: SmolLM2-135M)\n"
                            "  --window N         of all layers (0: none)\n"
                            "  --prompt N         tokens of a prompt chunk (256)\n"
                            "  --rounds N         (9)\n"
                            "  --need-quiet       fail when the machine does other things\n"
                            "METHOD is what --kv of the program takes. f16 always runs, twice in each round.\n";

int main(int argc, char **argv)
{
    shape s = {.n_layers = 30, .n_heads = 9, .n_kv_heads = 3, .d = 64, .n_prompt = 256, .n_rounds = 9};
    uint32_t depths[MOST_DEPTHS] = {512, 2048, 8192}, n_depths = 3, n_threads = 1;
    const struct option options[] = {{"depth", 1, NULL, 'c'},  {"threads", 1, NULL, 't'},    {"layers", 1, NULL, 'l'},
                                     {"heads", 1, NULL, 'q'},  {"kv-heads", 1, NULL, 'k'},   {"dim", 1, NULL, 'd'},
                                     {"window", 1, NULL, 'w'}, {"prompt", 1, NULL, 'p'},     {"rounds", 1, NULL, 'r'},
                                     {"help", 0, NULL, 'h'},   {"need-quiet", 0, NULL, 'n'}, {0}};
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
        case 'r': s.n_rounds = value < MOST_ROUNDS ? value : MOST_ROUNDS; break;
        case 'n': s.need_quiet = true; break;
        case 'h': fputs(usage, stdout); return 0;
        default: fputs(usage, stderr); return 2;
        }
    }
    if (s.n_rounds == 0 || s.n_prompt == 0 || s.n_layers == 0) {
        fputs(usage, stderr);
        return 2;
    }
    const char *methods[MOST_METHODS] = {"f16"};
    uint32_t n = 1;
    for (; optind < argc && n < MOST_METHODS; optind++)
        methods[n++] = argv[optind];

    data x = {.n_q = ((size_t)s.n_prompt * s.n_heads + 64) * s.d,
              .n_kv = ((size_t)s.n_prompt * s.n_kv_heads + 64) * s.d};
    x.q = malloc(N_INPUTS * x.n_q * sizeof *x.q);
    x.k = malloc(N_INPUTS * x.n_kv * sizeof *x.k);
    x.v = malloc(N_INPUTS * x.n_kv * sizeof *x.v);
    x.out = malloc(x.n_q * sizeof *x.out);
    vq_pool *pool = NULL;
    vq_error err = {.text = "no memory"};
    if (!x.q || !x.k || !x.v || !x.out)
        die("rows", &err);
    uint64_t seed = 1;
    fill(x.q, N_INPUTS * x.n_q, &seed);
    fill(x.k, N_INPUTS * x.n_kv, &seed);
    fill(x.v, N_INPUTS * x.n_kv, &seed);
    if (vq_pool_open(&pool, n_threads, &err) != VQ_OK)
        die("threads", &err);
    for (uint32_t i = 0; i < n_depths; i++)
        run_depth(&s, methods, n, depths[i], n_threads, pool, &x);
    vq_pool_close(pool);
    free(x.q);
    free(x.k);
    free(x.v);
    free(x.out);
    return 0;
}
