/* What packing a prompt's keys and values costs, beside the prompt itself.
 *
 *     kv_encode MODEL TEXT TOKENS ROUNDS CALIBRATION|- METHOD..
 *
 * Two prompts of TOKENS tokens run through an f16 session on one thread; their keys and values are kept.  In each round
 * every METHOD stores those rows in a cache of the model's shape, in the chunks that a prompt comes in, and the f16
 * session runs a prompt: in turns, in CPU time of the thread (veloxquant/measure.h).  The share of a method is its time
 * over that of a prompt in which it stands in the place of f16.  Prints one JSON object a method; "noise" is the f16
 * cache against itself. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "veloxquant/veloxquant.h"

enum { MOST_METHODS = 62, N_PROMPTS = 2, CHUNK = 256 };

typedef struct prompt {
    int32_t *ids;
    float *k, *v; /* [n_layers][n][n_kv_heads][d] */
} prompt;

typedef struct bench {
    const vq_model_info *model;
    uint32_t n; /* tokens of a prompt */
    prompt prompts[N_PROMPTS];
    vq_session *session;
} bench;

typedef struct cache {
    const bench *b;
    vq_kv *kv;
} cache;

static int fail(const char *what, const vq_error *err)
{
    fprintf(stderr, "kv_encode: %s%s%s\n", what, err ? ": " : "", err ? err->text : "");
    return 1;
}

static char *read_file(const char *path, size_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    char *bytes = NULL;
    if (fseek(f, 0, SEEK_END) == 0) {
        const long n = ftell(f);
        rewind(f);
        bytes = n > 0 ? malloc((size_t)n) : NULL;
        *n_bytes = bytes ? fread(bytes, 1, (size_t)n, f) : 0;
    }
    fclose(f);
    return bytes;
}

static vq_status run_prompt(void *arg, uint32_t input, vq_error *err)
{
    const bench *b = arg;
    vq_status status = vq_session_truncate(b->session, 0, err);
    if (status == VQ_OK)
        status = vq_session_eval(b->session, b->prompts[input].ids, b->n, NULL, 0, NULL, err);
    return status;
}

/* One row more than the prompt has, so that what the last chunk made due is packed. */
static vq_status run_cache(void *arg, uint32_t input, vq_error *err)
{
    const cache *c = arg;
    const bench *b = c->b;
    const size_t row = (size_t)b->model->n_kv_heads * b->model->head_dim;
    vq_kv_clear(c->kv);
    for (uint32_t at = 0; at <= b->n; at += CHUNK) {
        const uint32_t left = b->n - at, now = left == 0 ? 1 : left < CHUNK ? left : CHUNK;
        for (uint32_t l = 0; l < b->model->n_layers; l++) {
            const size_t from = ((size_t)l * b->n + (left ? at : 0)) * row;
            const vq_status status =
                vq_kv_append(c->kv, l, at, b->prompts[input].k + from, b->prompts[input].v + from, now, err);
            if (status != VQ_OK)
                return status;
        }
    }
    return VQ_OK;
}

static const void *input_bytes(void *arg, uint32_t input, size_t *n_bytes)
{
    const bench *b = arg;
    *n_bytes = b->n * sizeof *b->prompts[input].ids;
    return b->prompts[input].ids;
}

/* The session's rows of all layers and heads, which lie head by head, in the order in which they are appended. */
static bool keep_rows(const bench *b, prompt *p)
{
    const uint32_t heads = b->model->n_kv_heads, d = b->model->head_dim;
    const size_t n_floats = (size_t)b->model->n_layers * b->n * heads * d;
    float *k = malloc(sizeof(float) * b->n * d), *v = malloc(sizeof(float) * b->n * d);
    p->k = malloc(n_floats * sizeof *p->k);
    p->v = malloc(n_floats * sizeof *p->v);
    bool fine = k && v && p->k && p->v;
    for (uint32_t l = 0; fine && l < b->model->n_layers; l++)
        for (uint32_t h = 0; fine && h < heads; h++) {
            fine = vq_kv_read(vq_session_kv(b->session), l, h, k, v, NULL) == b->n;
            for (size_t i = 0; fine && i < b->n; i++) {
                const size_t to = (((size_t)l * b->n + i) * heads + h) * d;
                memcpy(p->k + to, k + i * d, d * sizeof *k);
                memcpy(p->v + to, v + i * d, d * sizeof *v);
            }
        }
    free(k);
    free(v);
    return fine;
}

static json_t *spread(const double *samples, size_t n)
{
    const vq_spread s = vq_spread_of(samples, n);
    return json_pack("[f, f, f]", s.q1, s.median, s.q3);
}

/* seconds [n_methods + 2][n_rounds]: f16 first, the prompt second, f16 again last */
static void print_rows(char **methods, size_t n_methods, const double *seconds, size_t n_rounds, uint32_t n_tokens,
                       bool quiet)
{
    const double *f16 = seconds, *prompts = seconds + n_rounds, *again = seconds + (n_methods + 2) * n_rounds;
    double *share = malloc(n_rounds * sizeof *share), *noise = malloc(n_rounds * sizeof *noise);
    for (size_t m = 0; share && noise && m <= n_methods; m++) {
        const double *own = m == 0 ? f16 : seconds + (m + 1) * n_rounds;
        for (size_t r = 0; r < n_rounds; r++) {
            share[r] = own[r] / (prompts[r] - f16[r] + own[r]);
            noise[r] = again[r] / f16[r];
        }
        json_t *row = json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o, s:b}", "method", m ? methods[m - 1] : "f16",
                                "tokens", (json_int_t)n_tokens, "rounds", (json_int_t)n_rounds, "seconds",
                                spread(own, n_rounds), "prompt_seconds", spread(prompts, n_rounds), "share",
                                spread(share, n_rounds), "noise", spread(noise, n_rounds), "quiet", (int)quiet);
        char *text = json_dumps(row, JSON_REAL_PRECISION(5));
        puts(text);
        free(text);
        json_decref(row);
    }
    free(share);
    free(noise);
}

static vq_status open_cache(cache *c, const bench *b, const char *method, const vq_calibration *calibration,
                            vq_error *err)
{
    const vq_kv_params p = {.n_layers = b->model->n_layers,
                            .n_heads = b->model->n_heads,
                            .n_kv_heads = b->model->n_kv_heads,
                            .d_k = b->model->head_dim,
                            .d_v = b->model->head_dim,
                            .n_ctx = b->n + 1,
                            .n_batch = CHUNK,
                            .keys = method,
                            .values = method,
                            .sinks = VQ_KV_DEFAULT,
                            .residual = VQ_KV_DEFAULT,
                            .calibration = calibration};
    c->b = b;
    return vq_kv_open(&c->kv, &p, err);
}

static bool progress(void *arg, uint32_t done, uint32_t all)
{
    (void)arg;
    fprintf(stderr, "round %u of %u\n", done, all);
    return true;
}

static int run(char **argv, size_t n_methods)
{
    char **methods = argv + 6;
    const size_t n_rounds = (size_t)atoi(argv[4]);
    bench b = {.n = (uint32_t)atoi(argv[3])};
    vq_error err;
    vq_model *model = NULL;
    vq_calibration *calibration = NULL;
    cache caches[MOST_METHODS + 1] = {0};
    vq_variant variants[MOST_METHODS + 2] = {0};
    double *seconds = calloc((n_methods + 3) * n_rounds, sizeof *seconds);
    size_t n_bytes = 0, n_ids = 0;
    int32_t *ids = NULL;
    int status = 1;
    char *text = read_file(argv[2], &n_bytes);
    if (!text || !seconds) {
        fail(argv[2], NULL);
        goto done;
    }
    if (vq_model_open(&model, argv[1], &err) != VQ_OK ||
        (strcmp(argv[5], "-") != 0 && vq_calibration_open(&calibration, argv[5], &err) != VQ_OK) ||
        vq_tokenize(vq_model_tokenizer(model), text, n_bytes, VQ_TOKENIZE_BOS, &ids, &n_ids, &err) != VQ_OK) {
        fail("opening", &err);
        goto done;
    }
    if (n_ids < (size_t)N_PROMPTS * b.n || b.n == 0) {
        fail("the text is too short, or TOKENS is 0", NULL);
        goto done;
    }
    b.model = vq_model_get_info(model);
    vq_session_params p;
    vq_session_params_init(&p);
    p.n_ctx = b.n;
    if (vq_session_open(&b.session, model, &p, &err) != VQ_OK) {
        fail("session", &err);
        goto done;
    }
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        b.prompts[i].ids = ids + (size_t)i * b.n;
        if (run_prompt(&b, i, &err) != VQ_OK || !keep_rows(&b, &b.prompts[i])) {
            fail("prompt", &err);
            goto done;
        }
    }
    for (size_t m = 0; m <= n_methods; m++) {
        const char *name = m ? methods[m - 1] : "f16";
        if (open_cache(&caches[m], &b, name, calibration, &err) != VQ_OK) {
            fail(name, &err);
            goto done;
        }
        variants[m ? m + 1 : 0] = (vq_variant){.name = name, .run = run_cache, .arg = &caches[m]};
    }
    variants[1] = (vq_variant){.name = "prompt", .run = run_prompt, .arg = &b};
    const vq_turns turns = {.variants = variants,
                            .n_variants = n_methods + 2,
                            .n_inputs = N_PROMPTS,
                            .input = input_bytes,
                            .input_arg = &b,
                            .n_rounds = (uint32_t)n_rounds,
                            .sample_seconds = 0.1,
                            .cpu_time = true,
                            .progress = progress};
    vq_load load;
    if (vq_take_turns(&turns, seconds, &load, &err) != VQ_OK) {
        fail("turns", &err);
        goto done;
    }
    print_rows(methods, n_methods, seconds, n_rounds, b.n, load.quiet);
    status = 0;
done:
    for (size_t m = 0; m <= n_methods; m++)
        vq_kv_close(caches[m].kv);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        free(b.prompts[i].k);
        free(b.prompts[i].v);
    }
    vq_free(ids);
    free(text);
    free(seconds);
    vq_session_close(b.session);
    vq_calibration_close(calibration);
    vq_model_close(model);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 7 || argc - 6 > MOST_METHODS || atoi(argv[4]) < 1)
        return fail("MODEL TEXT TOKENS ROUNDS CALIBRATION|- METHOD.. (62 methods at most)", NULL);
    return run(argv, (size_t)argc - 6);
}
