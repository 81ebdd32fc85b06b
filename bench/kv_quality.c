/* Several cache methods against a reference cache, all on the same tokens in one run (the reference runs once).
 *
 *     kv_quality MODEL WINDOWS N_CTX SKIP THREADS TEXT[,TEXT..] REFERENCE METHOD..
 *
 * WINDOWS of N_CTX tokens of each text, the first SKIP of each unscored; exact mode (f32 activations).  A METHOD is
 * "KEYS" for keys and values alike, "KEYS+VALUES", or "plan:FILE" or "plan:FILE,calibration=FILE" for a plan.  Prints
 * one JSON object a method; progress goes to standard error.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "veloxquant/veloxquant.h"

enum { MOST_METHODS = 64 };

static int fail(const char *what, const vq_error *err)
{
    fprintf(stderr, "kv_quality: %s%s%s\n", what, err ? ": " : "", err ? err->text : "");
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

/* A session and what it borrows. */
typedef struct contender {
    vq_session *session;
    vq_plan *plan;
    vq_calibration *calibration;
} contender;

static void close_contender(contender *c)
{
    vq_session_close(c->session);
    vq_plan_close(c->plan);
    vq_calibration_close(c->calibration);
}

static vq_status open_plan(contender *c, char *path, vq_error *err)
{
    static const char option[] = ",calibration=";
    char *calibration = strstr(path, option);
    if (calibration) {
        *calibration = 0;
        const vq_status s = vq_calibration_open(&c->calibration, calibration + sizeof option - 1, err);
        if (s != VQ_OK)
            return s;
    }
    return vq_plan_open(&c->plan, path, err);
}

static vq_status open_contender(contender *c, const vq_model *model, vq_pool *pool, const char *method, uint32_t n_ctx,
                                vq_error *err)
{
    static const char plan[] = "plan:";
    char both[1024];
    snprintf(both, sizeof both, "%s", method);
    vq_session_params p;
    vq_session_params_init(&p);
    p.n_ctx = n_ctx;
    p.exact = true;
    p.pool = pool;
    if (strncmp(both, plan, sizeof plan - 1) == 0) {
        const vq_status s = open_plan(c, both + sizeof plan - 1, err);
        if (s != VQ_OK)
            return s;
        p.plan = c->plan;
        p.calibration = c->calibration;
        p.kv_keys = p.kv_values = NULL;
    } else {
        char *values = strchr(both, '+');
        if (values)
            *values++ = 0;
        p.kv_keys = both;
        p.kv_values = values ? values : both;
    }
    return vq_session_open(&c->session, model, &p, err);
}

static bool on_token(void *arg, size_t done, size_t all, double nll)
{
    (void)arg;
    (void)nll;
    if (done % 768 == 0)
        fprintf(stderr, "%zu of %zu tokens\n", done, all);
    return true;
}

/* Mean and 95 % interval; of exp(mean) when of_log. */
static json_t *interval(const vq_moments *m, bool of_log)
{
    const double e = 1.96 * vq_moments_error(m), at[] = {m->mean, m->mean - e, m->mean + e};
    json_t *out = json_array();
    for (int i = 0; i < 3; i++)
        json_array_append_new(out, json_real(of_log ? exp(at[i]) : at[i]));
    return out;
}

static void print_row(const char *method, const vq_comparison *c, vq_session *s)
{
    vq_kv_bytes b;
    vq_kv_measure(vq_session_kv(s), &b);
    const double per_value = b.n_values_packed ? 8.0 / (double)b.n_values_packed : 0;
    json_t *row = json_pack("{s:s, s:I, s:f, s:f, s:f, s:o, s:o, s:o}", "method", method, "tokens",
                            (json_int_t)c->nll.n, "bits_per_value", per_value * (double)(b.codes + b.scales + b.shared),
                            "shared_bits_per_value", per_value * (double)b.shared, "reference_ppl",
                            exp(c->reference_nll.mean), "ppl_ratio", interval(&c->log_ratio, true), "kl",
                            interval(&c->kl, false), "same_top", interval(&c->same_top, false));
    char *text = json_dumps(row, JSON_REAL_PRECISION(7));
    puts(text);
    fflush(stdout);
    free(text);
    json_decref(row);
}

static int run(char **argv, size_t n_methods)
{
    char **methods = argv + 8;
    const uint32_t n_ctx = (uint32_t)atoi(argv[3]);
    vq_error err;
    vq_pool *pool = NULL;
    vq_model *model = NULL;
    contender reference = {0}, contenders[MOST_METHODS] = {0};
    vq_session *tested[MOST_METHODS];
    vq_comparison sums[MOST_METHODS] = {0};
    int status = 1;
    if (vq_pool_open(&pool, (uint32_t)atoi(argv[5]), &err) != VQ_OK || vq_model_open(&model, argv[1], &err) != VQ_OK ||
        open_contender(&reference, model, pool, argv[7], n_ctx, &err) != VQ_OK) {
        fail("opening", &err);
        goto done;
    }
    for (size_t i = 0; i < n_methods; i++) {
        if (open_contender(&contenders[i], model, pool, methods[i], n_ctx, &err) != VQ_OK) {
            fail(methods[i], &err);
            goto done;
        }
        tested[i] = contenders[i].session;
    }
    for (char *text = strtok(argv[6], ","); text; text = strtok(NULL, ",")) {
        size_t n_bytes;
        char *bytes = read_file(text, &n_bytes);
        vq_windows w = {.n_ctx = n_ctx, .skip = (uint32_t)atoi(argv[4]), .most = (size_t)atoi(argv[2])};
        int32_t *ids = NULL;
        if (!bytes) {
            fail(text, NULL);
            goto done;
        }
        vq_status s = vq_tokenize(vq_model_tokenizer(model), bytes, n_bytes, VQ_TOKENIZE_BOS, &ids, &w.n, &err);
        w.ids = ids;
        if (s == VQ_OK)
            s = vq_eval_compare(reference.session, tested, n_methods, &w, on_token, NULL, sums, &err);
        vq_free(ids);
        free(bytes);
        if (s != VQ_OK) {
            fail(text, &err);
            goto done;
        }
    }
    for (size_t i = 0; i < n_methods; i++)
        print_row(methods[i], &sums[i], tested[i]);
    status = 0;
done:
    for (size_t i = 0; i < n_methods; i++)
        close_contender(&contenders[i]);
    close_contender(&reference);
    vq_model_close(model);
    vq_pool_close(pool);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 9 || argc - 8 > MOST_METHODS)
        return fail("MODEL WINDOWS N_CTX SKIP THREADS TEXT[,TEXT..] REFERENCE METHOD.. (64 methods at most)", NULL);
    return run(argv, (size_t)argc - 8);
}
