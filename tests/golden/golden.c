#include "golden/golden.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/forward.h"
#include "support/files.h"

static void die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

golden golden_load(const char *name)
{
    char below[128];
    snprintf(below, sizeof below, "tests/golden/%s.golden", name);
    const char *path = source_path(below);
    FILE *f = fopen(path, "rb");
    if (!f)
        die(path, "cannot be read");
    fseek(f, 0, SEEK_END);
    const long n_bytes = ftell(f);
    rewind(f);
    golden g = {.bytes = malloc((size_t)n_bytes)};
    if (!g.bytes || fread(g.bytes, 1, (size_t)n_bytes, f) != (size_t)n_bytes || memcmp(g.bytes, "VQGOLD1\n", 8) != 0)
        die(path, "is no golden file");
    fclose(f);
    memcpy(&g.n, g.bytes + 8, 4);
    memcpy(&g.n_top, g.bytes + 12, 4);
    memcpy(&g.n_fixed, g.bytes + 16, 4);
    g.ids = (const int32_t *)(const void *)(g.bytes + 20);
    g.fixed_ids = g.ids + g.n;
    g.rows = g.bytes + 20 + 4 * (size_t)(g.n + g.n_fixed);
    const size_t row_bytes = 8 + 8 * (size_t)g.n_top + 4 * (size_t)g.n_fixed;
    if ((size_t)n_bytes != (size_t)(g.rows - g.bytes) + g.n * row_bytes)
        die(path, "has the wrong size");
    return g;
}

void golden_free(golden *g)
{
    free(g->bytes);
    *g = (golden){0};
}

static double log_sum_exp(const float *logits, uint32_t n)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        most = fmax(most, logits[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return most + log(sum);
}

static void widen(double *worst, double got, double want)
{
    const double difference = fabs(got - want);
    if (!(difference <= *worst))
        *worst = isnan(difference) ? INFINITY : difference;
}

double golden_difference(const golden *g, const float *logits, uint32_t n_vocab)
{
    double worst = 0;
    const unsigned char *at = g->rows;
    for (uint32_t i = 0; i < g->n; i++, logits += n_vocab) {
        double lse;
        memcpy(&lse, at, 8);
        widen(&worst, log_sum_exp(logits, n_vocab), lse);
        const int32_t *top_ids = (const int32_t *)(const void *)(at + 8);
        const float *top = (const float *)(const void *)(top_ids + g->n_top), *fixed = top + g->n_top;
        for (uint32_t j = 0; j < g->n_top; j++)
            widen(&worst, logits[top_ids[j]], top[j]);
        for (uint32_t j = 0; j < g->n_fixed; j++)
            widen(&worst, logits[g->fixed_ids[j]], fixed[j]);
        at += 8 + 8 * (size_t)g->n_top + 4 * (size_t)g->n_fixed;
    }
    return worst;
}

float *golden_logits(const golden_run *run, const int32_t *ids, uint32_t n)
{
    vq_error err = {0};
    const uint32_t n_vocab = vq_model_get_info(run->model)->n_vocab, chunk = run->chunk ? run->chunk : n;
    vq_kv_params params = {.n_ctx = n,
                           .n_batch = chunk,
                           .keys = run->cache,
                           .values = run->cache,
                           .exact = VQ_KV_EXACT_F32,
                           .pool = run->pool};
    params.sinks = params.residual = VQ_KV_DEFAULT;
    vq_forward_kv_params(run->model, &params);
    vq_kv *kv;
    vq_forward *f;
    float *logits = malloc((size_t)n * n_vocab * sizeof *logits);
    if (!logits)
        die("logits", "no memory");
    if (vq_kv_open(&kv, &params, &err) != VQ_OK ||
        vq_forward_open(&f, run->model, run->pool, chunk, run->exact, &err) != VQ_OK)
        die("open", err.text);
    for (uint32_t done = 0; done < n;) {
        const uint32_t now = n - done < chunk ? n - done : chunk;
        if (vq_forward_run(f, kv, ids + done, done, now, 0, &err) != VQ_OK)
            die("run", err.text);
        for (uint32_t row = 0; row < now; row += VQ_FORWARD_LOGITS) {
            const uint32_t rows = now - row < VQ_FORWARD_LOGITS ? now - row : VQ_FORWARD_LOGITS;
            vq_forward_logits(f, row, rows, logits + (size_t)(done + row) * n_vocab);
        }
        done += now;
    }
    vq_forward_close(f);
    vq_kv_close(kv);
    return logits;
}

double golden_mean_kl(const float *p, const float *q, uint32_t n, uint32_t n_vocab)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++, p += n_vocab, q += n_vocab) {
        const double lse_p = log_sum_exp(p, n_vocab), lse_q = log_sum_exp(q, n_vocab);
        for (uint32_t j = 0; j < n_vocab; j++)
            sum += exp(p[j] - lse_p) * ((p[j] - lse_p) - (q[j] - lse_q));
    }
    return sum / n;
}
