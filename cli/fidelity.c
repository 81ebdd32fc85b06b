/* veloxquant fidelity: what a method does to keys and values from NumPy files. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct args {
    const char *kv, *kv_keys, *kv_values, *out_keys, *out_values;
    uint32_t sinks, residual, n_threads;
    int64_t seed;
    bool json;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {0, "kv", CLI_TEXT, AT(kv), "METHOD",
     "how keys and values are stored, as NAME or NAME:option=value,...; 'veloxquant methods' lists them", 0, 0},
    {0, "kv-keys", CLI_TEXT, AT(kv_keys), "METHOD", "the same for keys alone", 0, 0},
    {0, "kv-values", CLI_TEXT, AT(kv_values), "METHOD", "the same for values alone", 0, 0},
    {0, "sinks", CLI_COUNT, AT(sinks), "N", "first tokens that stay exact", 0, 1024},
    {0, "residual", CLI_COUNT, AT(residual), "N", "newest tokens that stay exact", 0, 65536},
    {0, "seed", CLI_WHOLE, AT(seed), "N", "of random rotations, sketches and, without Q.npy, of the queries", 0, 9e15},
    {0, "out-keys", CLI_TEXT, AT(out_keys), "FILE", "write the keys as attention sees them, a .npy file", 0, 0},
    {0, "out-values", CLI_TEXT, AT(out_values), "FILE", "the same for values", 0, 0},
    {'t', "threads", CLI_COUNT, AT(n_threads), "N", "threads (default: all cores that this process may use)", 0, 1024},
    {0, "json", CLI_FLAG, AT(json), NULL, "print the results as JSON", 0, 0},
};

static const char intro[] =
    "Puts rows of keys and values through a cache and compares what attention then sees with what went in. K.npy and "
    "V.npy hold floats of shape [kv heads, tokens, head size]; Q.npy [heads, queries, head size], a multiple of the kv "
    "heads. Without Q.npy, 64 queries a head are drawn from N(0, 1).\n"
    "\n"
    "Each query attends to all tokens. Errors are relative: 0.1 is a tenth of the length of what should have come out. "
    "A slope of 1 means that products q.k are not shrunk.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant fidelity --kv turboquant-mse:bits=3 K.npy V.npy Q.npy\n"
    "  veloxquant fidelity --kv-keys kivi:bits=2 --kv-values velox:bits=2 K.npy V.npy --out-keys K2.npy\n"
    "  python3 -c \"import numpy as np; np.save('K.npy', np.random.randn(2, 1024, 128).astype('f4'))\"\n";

enum { KEYS, VALUES, QUERIES, N_ARRAYS };

static int read_arrays(vq_npy *arrays, char **paths, size_t n)
{
    vq_error err;
    for (size_t i = 0; i < n; i++) {
        if (vq_npy_read(&arrays[i], paths[i], &err) != VQ_OK)
            return cli_fail_with(&err);
        const vq_npy *a = &arrays[i];
        if (a->n_dims != 3)
            return cli_fail("%s: %u dimensions, must be 3: [heads, tokens, head size]", paths[i], a->n_dims);
        for (uint32_t d = 0; d < 3; d++)
            if (a->dims[d] == 0 || a->dims[d] > 1u << 30)
                return cli_fail("%s: dimension %u is %llu, must be 1 to %u", paths[i], d,
                                (unsigned long long)a->dims[d], 1u << 30);
    }
    const uint64_t *k = arrays[KEYS].dims, *v = arrays[VALUES].dims, *q = arrays[QUERIES].dims;
    if (k[0] != v[0] || k[1] != v[1])
        return cli_fail("%s is [%llu, %llu, ..], %s [%llu, %llu, ..]: heads and tokens must agree", paths[KEYS],
                        (unsigned long long)k[0], (unsigned long long)k[1], paths[VALUES], (unsigned long long)v[0],
                        (unsigned long long)v[1]);
    if (n > QUERIES && (q[0] % k[0] != 0 || q[2] != k[2]))
        return cli_fail("%s is [%llu, .., %llu], must be [a multiple of %llu, .., %llu]", paths[QUERIES],
                        (unsigned long long)q[0], (unsigned long long)q[2], (unsigned long long)k[0],
                        (unsigned long long)k[2]);
    return CLI_FINE;
}

static void print_text(const vq_fidelity *f)
{
    printf("rows       %llu keys and as many values, %llu of each packed\n", (unsigned long long)f->n_rows,
           (unsigned long long)f->n_packed);
    printf("bits       %.3f a packed value\n", f->bits_per_value);
    printf("keys       cosine %.5f, squared error %.5f\n", f->key_cosine, f->key_error);
    printf("values     cosine %.5f, squared error %.5f\n", f->value_cosine, f->value_error);
    printf("products   error %.5f, slope %.5f +- %.5f\n", f->product_error, f->product_slope, f->product_slope_error);
    printf("attention  error %.5f\n", f->attention_error);
    printf("speed      %.0f rows appended a second; %.1f us to attend, a query token\n", f->append_rows_second,
           1e6 * f->attend_seconds);
}

static int print_json(const vq_fidelity *f, const char *keys, const char *values)
{
    json_t *all =
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "keys", keys, "values",
                  values, "rows", (json_int_t)f->n_rows, "packed", (json_int_t)f->n_packed, "bits_per_value",
                  f->bits_per_value, "key_cosine", f->key_cosine, "value_cosine", f->value_cosine, "key_error",
                  f->key_error, "value_error", f->value_error, "product_error", f->product_error, "product_slope",
                  f->product_slope, "product_slope_error", f->product_slope_error, "attention_error",
                  f->attention_error, "append_rows_second", f->append_rows_second, "attend_seconds", f->attend_seconds);
    char *text = all ? json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(all);
    if (!text)
        return cli_fail("the results could not be written as JSON");
    puts(text);
    free(text);
    return CLI_FINE;
}

static int write_rows(const char *path, const float *rows, const uint64_t *dims)
{
    vq_error err;
    return path && vq_npy_write(path, rows, dims, 3, &err) != VQ_OK ? cli_fail_with(&err) : CLI_FINE;
}

static int run(const struct args *a, const vq_npy *arrays, bool has_queries)
{
    const vq_npy *k = &arrays[KEYS], *v = &arrays[VALUES], *q = &arrays[QUERIES];
    const char *both = a->kv ? a->kv : "f16";
    vq_fidelity_params p = {
        .n_heads = (uint32_t)(has_queries ? q->dims[0] : k->dims[0]),
        .n_kv_heads = (uint32_t)k->dims[0],
        .n_tokens = (uint32_t)k->dims[1],
        .n_queries = has_queries ? (uint32_t)q->dims[1] : 0,
        .d_k = (uint32_t)k->dims[2],
        .d_v = (uint32_t)v->dims[2],
        .k = k->data,
        .v = v->data,
        .q = has_queries ? q->data : NULL,
        .keys = a->kv_keys ? a->kv_keys : both,
        .values = a->kv_values ? a->kv_values : both,
        .sinks = a->sinks,
        .residual = a->residual,
        .seed = (uint64_t)a->seed,
    };
    vq_error err;
    vq_fidelity f;
    if (vq_pool_open(&p.pool, a->n_threads, &err) != VQ_OK)
        return cli_fail_with(&err);
    p.k_read = malloc(k->dims[0] * k->dims[1] * k->dims[2] * sizeof(float));
    p.v_read = malloc(v->dims[0] * v->dims[1] * v->dims[2] * sizeof(float));
    int status = CLI_FINE;
    if (!p.k_read || !p.v_read)
        status = cli_fail("no memory for %llu tokens", (unsigned long long)k->dims[1]);
    else if (vq_eval_fidelity(&p, &f, &err) != VQ_OK)
        status = cli_fail_with(&err);
    if (status == CLI_FINE)
        status = write_rows(a->out_keys, p.k_read, k->dims);
    if (status == CLI_FINE)
        status = write_rows(a->out_values, p.v_read, v->dims);
    if (status == CLI_FINE && a->json)
        status = print_json(&f, p.keys, p.values);
    else if (status == CLI_FINE)
        print_text(&f);
    free(p.k_read);
    free(p.v_read);
    vq_pool_close(p.pool);
    return status;
}

int cli_fidelity(int argc, char **argv)
{
    struct args a = {0};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {"fidelity", "[options] K.npy V.npy [Q.npy]", intro, groups, 1, ending, 2, N_ARRAYS};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    vq_npy arrays[N_ARRAYS] = {0};
    status = read_arrays(arrays, argv + 1, n_operands);
    if (status == CLI_FINE)
        status = run(&a, arrays, n_operands == N_ARRAYS);
    for (size_t i = 0; i < N_ARRAYS; i++)
        vq_npy_free(&arrays[i]);
    return status;
}
