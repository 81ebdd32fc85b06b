/* What cache methods do to synthetic keys, without a model: goals as papers state them.
 *
 *     kv_synthetic METHOD..
 *
 * Keys, values and queries are N(0, 1), d = 128: 4 heads, 1,024 tokens, 64 queries a head, and no row is kept exactly.
 * Keys go through the method, values through f32, so that errors are those of the keys.  Then the same with 4
 * channels of the keys times 10.  A METHOD is "KEYS" or "KEYS+VALUES", whose values are ignored.  Prints one JSON
 * object a method. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "veloxquant/veloxquant.h"

enum { N_HEADS = 4, N_TOKENS = 1024, N_QUERIES = 64, D = 128, N_OUTLIERS = 4, OUTLIER = 10 };

/* SplitMix64 and Box-Muller: the figures need no better generator, only the same one every time. */
static double uniform(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return ((double)((z ^ z >> 31) >> 11) + 0.5) * 0x1p-53;
}

static float *normals(size_t n, uint64_t seed)
{
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; x && i < n; i++) {
        const double radius = sqrt(-2 * log(uniform(&seed)));
        x[i] = (float)(radius * cos(6.283185307179586 * uniform(&seed)));
    }
    return x;
}

static json_t *figures(const vq_fidelity *f)
{
    return json_pack("{s:f, s:f, s:f, s:f}", "cosine", f->key_cosine, "product_error", f->product_error,
                     "product_slope", f->product_slope, "attention_error", f->attention_error);
}

static int run(vq_fidelity_params *p, const char *method, const float *const keys[2])
{
    char name[256];
    vq_fidelity f[2];
    vq_error err;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(method, "+"), method);
    p->keys = name;
    p->values = "f32";
    for (int i = 0; i < 2; i++) {
        p->k = keys[i];
        if (vq_eval_fidelity(p, &f[i], &err) != VQ_OK) {
            fprintf(stderr, "kv_synthetic: %s: %s\n", method, err.text);
            return 1;
        }
    }
    json_t *row = json_pack("{s:s, s:o, s:o}", "method", method, "plain", figures(&f[0]), "outliers", figures(&f[1]));
    char *text = json_dumps(row, JSON_REAL_PRECISION(5));
    puts(text);
    free(text);
    json_decref(row);
    return 0;
}

int main(int argc, char **argv)
{
    const size_t n = (size_t)N_HEADS * N_TOKENS * D;
    float *plain = normals(n, 1), *outlying = normals(n, 1), *v = normals(n, 2);
    float *q = normals((size_t)N_HEADS * N_QUERIES * D, 3);
    int status = 1;
    if (plain && outlying && v && q) {
        for (size_t i = 0; i < n; i++)
            if (i % D % (D / N_OUTLIERS) == 5)
                outlying[i] *= OUTLIER;
        vq_fidelity_params p = {.n_heads = N_HEADS,
                                .n_kv_heads = N_HEADS,
                                .n_tokens = N_TOKENS,
                                .n_queries = N_QUERIES,
                                .d_k = D,
                                .d_v = D,
                                .v = v,
                                .q = q};
        status = 0;
        for (int i = 1; i < argc && status == 0; i++)
            status = run(&p, argv[i], (const float *const[2]){plain, outlying});
    }
    free(plain);
    free(outlying);
    free(v);
    free(q);
    return status;
}
