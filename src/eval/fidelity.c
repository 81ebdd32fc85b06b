/* What a cache method does to rows of keys and values: the rows go through a cache of one layer, and what attention
 * then sees is compared with what went in, in double precision. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "base/status.h"
#include "veloxquant/eval.h"

enum { PER_APPEND = 256, RANDOM_QUERIES = 64 };

typedef struct job {
    const vq_fidelity_params *p;
    vq_kv *kv;
    const float *q; /* [n_heads][n_queries][d_k] */
    uint32_t n_queries, group;
    uint32_t first_packed, end_packed; /* rows of each head that are codes */
    float *k, *v;                      /* [n_kv_heads][n_tokens][d] as read */
    float *chunk_k, *chunk_v;          /* [PER_APPEND][n_kv_heads][d] */
    float *token_q, *token_out;        /* [n_heads][d_k], [n_heads][d_v] */
    double *scores;                    /* [n_tokens] */
} job;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* rows [first, first + n) of [heads][tokens][d] -> [n][heads][d] */
static void gather(float *out, const float *x, uint32_t n_heads, uint32_t n_tokens, uint32_t d, uint32_t first,
                   uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < n_heads; h++)
            memcpy(out + ((size_t)i * n_heads + h) * d, x + ((size_t)h * n_tokens + first + i) * d, d * sizeof *out);
}

static vq_status append_all(job *j, double *rows_second, vq_error *err)
{
    const vq_fidelity_params *p = j->p;
    double seconds = 0;
    for (uint32_t at = 0, n; at < p->n_tokens; at += n) {
        n = p->n_tokens - at < PER_APPEND ? p->n_tokens - at : PER_APPEND;
        gather(j->chunk_k, p->k, p->n_kv_heads, p->n_tokens, p->d_k, at, n);
        gather(j->chunk_v, p->v, p->n_kv_heads, p->n_tokens, p->d_v, at, n);
        const double start = now();
        VQ_TRY(vq_kv_append(j->kv, 0, at, j->chunk_k, j->chunk_v, n, err));
        seconds += now() - start;
    }
    *rows_second = seconds > 0 ? (double)p->n_tokens * p->n_kv_heads / seconds : 0;
    return VQ_OK;
}

/* Mean cosine and relative squared error of the packed rows of one side. */
static void compare_rows(const job *j, const float *x, const float *y, uint32_t d, double *cosine, double *error)
{
    double cosines = 0, wrong = 0, all = 0;
    for (uint32_t h = 0; h < j->p->n_kv_heads; h++)
        for (uint32_t i = j->first_packed; i < j->end_packed; i++) {
            const size_t at = ((size_t)h * j->p->n_tokens + i) * d;
            const double xx = dot(x + at, x + at, d), yy = dot(y + at, y + at, d), xy = dot(x + at, y + at, d);
            cosines += xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : xx == yy;
            wrong += xx - 2 * xy + yy;
            all += xx;
        }
    const double n = (double)j->p->n_kv_heads * (j->end_packed - j->first_packed);
    *cosine = n > 0 ? cosines / n : 1;
    *error = all > 0 ? wrong / all : 0;
}

static void compare_products(const job *j, vq_fidelity *out)
{
    const vq_fidelity_params *p = j->p;
    double wrong = 0, all = 0, both = 0;
    vq_moments slopes = {0};
    for (uint32_t h = 0; h < p->n_heads; h++)
        for (uint32_t i = 0; i < j->n_queries; i++) {
            const float *q = j->q + ((size_t)h * j->n_queries + i) * p->d_k;
            double query_all = 0, query_both = 0;
            for (uint32_t r = j->first_packed; r < j->end_packed; r++) {
                const size_t at = ((size_t)(h / j->group) * p->n_tokens + r) * p->d_k;
                const double s = dot(q, p->k + at, p->d_k), t = dot(q, j->k + at, p->d_k);
                wrong += (t - s) * (t - s);
                query_all += s * s;
                query_both += s * t;
            }
            if (query_all > 0)
                vq_moments_add(&slopes, query_both / query_all);
            all += query_all;
            both += query_both;
        }
    out->product_error = all > 0 ? sqrt(wrong / all) : 0;
    out->product_slope = all > 0 ? both / all : 1;
    out->product_slope_error = vq_moments_error(&slopes);
}

/* A query's attention over the rows that went in: adds its squared length, and its squared distance to seen. */
static void compare_output(const job *j, uint32_t head, const float *q, const float *seen, double *wrong, double *all)
{
    const vq_fidelity_params *p = j->p;
    const float *k = p->k + (size_t)(head / j->group) * p->n_tokens * p->d_k;
    const float *v = p->v + (size_t)(head / j->group) * p->n_tokens * p->d_v;
    double most = -INFINITY, sum = 0;
    for (uint32_t r = 0; r < p->n_tokens; r++) {
        j->scores[r] = dot(q, k + (size_t)r * p->d_k, p->d_k) / sqrt((double)p->d_k);
        most = j->scores[r] > most ? j->scores[r] : most;
    }
    for (uint32_t r = 0; r < p->n_tokens; r++)
        sum += j->scores[r] = exp(j->scores[r] - most);
    for (uint32_t i = 0; i < p->d_v; i++) {
        double o = 0;
        for (uint32_t r = 0; r < p->n_tokens; r++)
            o += j->scores[r] * (double)v[(size_t)r * p->d_v + i];
        o /= sum;
        *all += o * o;
        *wrong += (o - (double)seen[i]) * (o - (double)seen[i]);
    }
}

static vq_status compare_attention(job *j, vq_fidelity *out, vq_error *err)
{
    const vq_fidelity_params *p = j->p;
    double wrong = 0, all = 0, seconds = 0;
    for (uint32_t i = 0; i < j->n_queries; i++) {
        gather(j->token_q, j->q, p->n_heads, j->n_queries, p->d_k, i, 1);
        const double start = now();
        VQ_TRY(vq_kv_attend(j->kv, 0, j->token_q, 1, j->token_out, err));
        seconds += now() - start;
        for (uint32_t h = 0; h < p->n_heads; h++)
            compare_output(j, h, j->token_q + (size_t)h * p->d_k, j->token_out + (size_t)h * p->d_v, &wrong, &all);
    }
    out->attention_error = all > 0 ? sqrt(wrong / all) : 0;
    out->attend_seconds = seconds / j->n_queries;
    return VQ_OK;
}

static vq_status run(job *j, vq_fidelity *out, vq_error *err)
{
    const vq_fidelity_params *p = j->p;
    VQ_TRY(append_all(j, &out->append_rows_second, err));
    VQ_TRY(compare_attention(j, out, err)); /* while the newest append is the last thing that happened */
    for (uint32_t h = 0; h < p->n_kv_heads; h++)
        vq_kv_read(j->kv, 0, h, j->k + (size_t)h * p->n_tokens * p->d_k, j->v + (size_t)h * p->n_tokens * p->d_v, NULL);
    vq_kv_bytes b;
    vq_kv_measure(j->kv, &b);
    out->n_rows = b.n_rows;
    out->n_packed = b.n_packed_rows;
    out->bits_per_value =
        b.n_values_packed > 0 ? 8 * (double)(b.codes + b.scales + b.shared) / (double)b.n_values_packed : 0;
    /* Packed rows follow the sinks: those are the first ones that read back as codes. */
    const uint32_t n_packed = (uint32_t)(b.n_packed_rows / p->n_kv_heads);
    j->first_packed = n_packed > 0 ? vq_kv_n_sinks(j->kv, 0) : 0;
    j->end_packed = j->first_packed + n_packed;
    compare_rows(j, p->k, j->k, p->d_k, &out->key_cosine, &out->key_error);
    compare_rows(j, p->v, j->v, p->d_v, &out->value_cosine, &out->value_error);
    compare_products(j, out);
    return VQ_OK;
}

static vq_status check(const vq_fidelity_params *p, vq_error *err)
{
    if (p->n_tokens == 0 || p->n_kv_heads == 0 || p->n_heads == 0 || p->n_heads % p->n_kv_heads != 0)
        return vq_fail(err, VQ_ERR_ARG, "%u tokens, %u heads over %u kv heads: must be at least 1, and a multiple",
                       p->n_tokens, p->n_heads, p->n_kv_heads);
    if (p->q && p->n_queries == 0)
        return vq_fail(err, VQ_ERR_ARG, "no queries");
    return VQ_OK;
}

vq_status vq_eval_fidelity(const vq_fidelity_params *params, vq_fidelity *out, vq_error *err)
{
    *out = (vq_fidelity){0};
    const vq_fidelity_params *p = params;
    VQ_TRY(check(p, err));
    job j = {.p = p, .n_queries = p->q ? p->n_queries : RANDOM_QUERIES, .group = p->n_heads / p->n_kv_heads};
    const vq_kv_params kv_params = {
        .n_layers = 1,
        .n_heads = p->n_heads,
        .n_kv_heads = p->n_kv_heads,
        .d_k = p->d_k,
        .d_v = p->d_v,
        .n_ctx = p->n_tokens,
        .n_batch = PER_APPEND,
        .keys = p->keys,
        .values = p->values,
        .sinks = p->sinks,
        .residual = p->residual,
        .exact = VQ_KV_EXACT_F32,
        .seed = p->seed,
        .pool = p->pool,
    };
    VQ_TRY(vq_kv_open(&j.kv, &kv_params, err));

    const size_t n_k = (size_t)p->n_kv_heads * p->n_tokens * p->d_k, n_v = (size_t)p->n_kv_heads * p->n_tokens * p->d_v;
    const size_t n_q = (size_t)p->n_heads * j.n_queries * p->d_k;
    float *draws = p->q ? NULL : malloc(n_q * sizeof *draws);
    j.k = p->k_read ? p->k_read : malloc(n_k * sizeof *j.k);
    j.v = p->v_read ? p->v_read : malloc(n_v * sizeof *j.v);
    j.chunk_k = malloc((size_t)PER_APPEND * p->n_kv_heads * p->d_k * sizeof *j.chunk_k);
    j.chunk_v = malloc((size_t)PER_APPEND * p->n_kv_heads * p->d_v * sizeof *j.chunk_v);
    j.token_q = malloc((size_t)p->n_heads * p->d_k * sizeof *j.token_q);
    j.token_out = malloc((size_t)p->n_heads * p->d_v * sizeof *j.token_out);
    j.scores = malloc(p->n_tokens * sizeof *j.scores);
    vq_status status = VQ_OK;
    if (!j.k || !j.v || !j.chunk_k || !j.chunk_v || !j.token_q || !j.token_out || !j.scores || (!p->q && !draws))
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for %u tokens of %u heads", p->n_tokens, p->n_heads);
    if (status == VQ_OK && draws) {
        vq_rng rng;
        vq_rng_seed(&rng, p->seed);
        for (size_t i = 0; i < n_q; i++)
            draws[i] = (float)vq_rng_normal(&rng);
    }
    j.q = p->q ? p->q : draws;
    vq_fidelity result = {0};
    if (status == VQ_OK)
        status = run(&j, &result, err);
    if (status == VQ_OK)
        *out = result;
    if (!p->k_read)
        free(j.k);
    if (!p->v_read)
        free(j.v);
    free(draws);
    free(j.chunk_k);
    free(j.chunk_v);
    free(j.token_q);
    free(j.token_out);
    free(j.scores);
    vq_kv_close(j.kv);
    return status;
}
