/* Several files of one model against a reference file, all on the same tokens in one run.
 *
 *     weights_quality REFERENCE WINDOWS N_CTX SKIP THREADS EXACT TEXT[,TEXT..] FILE..
 *
 * WINDOWS of N_CTX tokens of each text, the first SKIP of each unscored; EXACT 1: f32 activations.  Files are GGUF or
 * reservoirs.  The cache is f16.  Prints one JSON object a file. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "veloxquant/veloxquant.h"

enum { MOST_FILES = 32 };

static int fail(const char *what, const vq_error *err)
{
    fprintf(stderr, "weights_quality: %s%s%s\n", what, err ? ": " : "", err ? err->text : "");
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

typedef struct setup {
    vq_pool *pool;
    vq_model *models[MOST_FILES + 1]; /* the reference first */
    vq_session *sessions[MOST_FILES + 1];
    size_t n;
    vq_windows windows;
    vq_comparison results[MOST_FILES];
} setup;

static int compare_on(setup *s, const char *path)
{
    vq_error err;
    size_t n_bytes = 0, n_ids = 0;
    int32_t *ids = NULL;
    char *text = read_file(path, &n_bytes);
    if (!text)
        return fail(path, NULL);
    vq_status status = vq_tokenize(vq_model_tokenizer(s->models[0]), text, n_bytes, 0, &ids, &n_ids, &err);
    free(text);
    if (status == VQ_OK) {
        s->windows.ids = ids;
        s->windows.n = n_ids;
        status = vq_eval_compare(s->sessions[0], s->sessions + 1, s->n - 1, &s->windows, NULL, NULL, s->results, &err);
    }
    vq_free(ids);
    return status == VQ_OK ? 0 : fail(path, &err);
}

static void print_result(const vq_model *m, const char *path, const vq_comparison *c)
{
    const vq_model_info *info = vq_model_get_info(m);
    json_t *row = json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "file", path, "weight_bytes",
                            (json_int_t)info->weight_bytes, "reference_ppl", exp(c->reference_nll.mean), "ppl",
                            exp(c->nll.mean), "ppl_ratio", exp(c->log_ratio.mean), "ppl_ratio_error",
                            exp(c->log_ratio.mean) * vq_moments_error(&c->log_ratio), "kl", c->kl.mean, "kl_error",
                            vq_moments_error(&c->kl), "same_top", c->same_top.mean, "tokens", (json_int_t)c->nll.n);
    char *text = row ? json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    puts(text ? text : "{}");
    free(text);
    json_decref(row);
}

int main(int argc, char **argv)
{
    if (argc < 9 || argc > 8 + MOST_FILES) {
        fprintf(stderr, "usage: weights_quality REFERENCE WINDOWS N_CTX SKIP THREADS EXACT TEXT[,TEXT..] FILE..\n");
        return 2;
    }
    static setup s;
    vq_error err;
    vq_session_params p;
    vq_session_params_init(&p);
    s.windows = (vq_windows){.most = strtoul(argv[2], NULL, 10),
                             .n_ctx = (uint32_t)strtoul(argv[3], NULL, 10),
                             .skip = (uint32_t)strtoul(argv[4], NULL, 10)};
    if (vq_pool_open(&s.pool, (uint32_t)strtoul(argv[5], NULL, 10), &err) != VQ_OK)
        return fail("pool", &err);
    p.n_ctx = s.windows.n_ctx;
    p.exact = argv[6][0] == '1';
    p.pool = s.pool;
    for (int i = 0; i < argc - 7; i++, s.n++) {
        const char *path = i == 0 ? argv[1] : argv[7 + i];
        if (vq_model_open(&s.models[i], path, &err) != VQ_OK ||
            vq_session_open(&s.sessions[i], s.models[i], &p, &err) != VQ_OK)
            return fail(path, &err);
    }
    int result = 0;
    for (char *text = strtok(argv[7], ","); text && result == 0; text = strtok(NULL, ","))
        result = compare_on(&s, text);
    for (size_t i = 1; i < s.n && result == 0; i++)
        print_result(s.models[i], argv[7 + i], &s.results[i - 1]);
    for (size_t i = 0; i < s.n; i++) {
        vq_session_close(s.sessions[i]);
        vq_model_close(s.models[i]);
    }
    vq_pool_close(s.pool);
    return result;
}
