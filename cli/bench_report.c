/* The report of `bench`: a table, and a JSON file from which every figure can be traced. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "json.h"

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Linear between neighbours, as most programs do it. */
static double quantile(const double *sorted, size_t n, double q)
{
    const double at = q * (double)(n - 1);
    const size_t i = (size_t)at;
    return i + 1 < n ? sorted[i] + (at - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

bench_summary bench_summarise(const double *samples, size_t n)
{
    double *sorted = n ? malloc(n * sizeof *sorted) : NULL;
    if (!sorted)
        return (bench_summary){0};
    memcpy(sorted, samples, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    const bench_summary s = {quantile(sorted, n, 0.5), quantile(sorted, n, 0.25), quantile(sorted, n, 0.75)};
    free(sorted);
    return s;
}

double bench_noise(bench_summary s) { return s.median > 0 ? (s.high - s.low) / 2 / s.median : 0; }

static void print_figure(const double *samples, size_t n, bool wanted)
{
    char text[48] = "-";
    if (wanted && n > 0) {
        const bench_summary s = bench_summarise(samples, n);
        snprintf(text, sizeof text, "%.1f (%.1f-%.1f) %2.0f%%", s.median, s.low, s.high, 100 * bench_noise(s));
    }
    printf("  %28s", text);
}

void bench_print(const bench_args *a, const bench_row *rows, size_t n_rows)
{
    int width = 6;
    for (size_t i = 0; i < n_rows; i++)
        if ((int)strlen(rows[i].method) > width)
            width = (int)strlen(rows[i].method);
    char prompt[32], decode[32], bytes[16];
    snprintf(prompt, sizeof prompt, "prompt %u", a->n_prompt);
    snprintf(decode, sizeof decode, "decode %u", a->n_decode);
    printf("%-*s  threads   depth  %28s  %28s  %10s  %10s\n", width, "method", prompt, decode, "cache", "bits/value");
    for (size_t i = 0; i < n_rows; i++) {
        const bench_row *r = &rows[i];
        printf("%-*s  %7u  %6u", width, r->method, r->n_threads, r->depth);
        print_figure(r->prompt, r->n_samples, a->n_prompt > 0);
        print_figure(r->decode, r->n_samples, a->n_decode > 0);
        if (r->cache.f16 > 0)
            printf("  %10s  %10.3f\n", cli_bytes(r->cache.used, bytes), r->cache.bits);
        else
            printf("  %10s  %10s\n", "-", "-");
    }
}

/* ---- JSON ---- */

static json_t *figures(const double *samples, size_t n)
{
    if (n == 0)
        return json_null();
    const bench_summary s = bench_summarise(samples, n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, cli_json_real(samples[i]));
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "median", cli_json_real(s.median), "low_quartile",
                     cli_json_real(s.low), "high_quartile", cli_json_real(s.high), "noise",
                     cli_json_real(bench_noise(s)), "samples", list);
}

static json_t *row_json(const bench_args *a, const bench_row *r)
{
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:I, s:I, s:o}", "method", r->method, "threads", (int)r->n_threads,
                     "depth", (int)r->depth, "prompt_tokens_per_second",
                     figures(r->prompt, a->n_prompt ? r->n_samples : 0), "decode_tokens_per_second",
                     figures(r->decode, a->n_decode ? r->n_samples : 0), "cache_bytes", (json_int_t)r->cache.used,
                     "cache_f16_bytes", (json_int_t)r->cache.f16, "bits_per_value",
                     r->cache.f16 ? cli_json_real(r->cache.bits) : json_null());
}

static json_t *report_json(const bench_args *a, const cli_model_args *model, const vq_model *weights,
                           const bench_row *rows, size_t n_rows, int argc, char **argv)
{
    const vq_model_info *info = vq_model_get_info(weights);
    char date[32];
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    json_t *results = json_array();
    for (size_t i = 0; i < n_rows; i++)
        json_array_append_new(results, row_json(a, &rows[i]));
    const char *slash = strrchr(model->model, '/');
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:{s:s, s:s, s:I, s:I}, s:i, s:i, s:i, s:b, s:o}", "what",
                     "veloxquant bench", "version", vq_version(), "date", date, "command", cli_json_command(argc, argv),
                     "machine", cli_json_machine(), "model", "file", slash ? slash + 1 : model->model, "family",
                     info->family, "parameters", (json_int_t)info->n_params, "weight_bytes",
                     (json_int_t)info->weight_bytes, "n_prompt", (int)a->n_prompt, "n_decode", (int)a->n_decode,
                     "batch", (int)model->n_batch, "exact", (int)model->exact, "results", results);
}

int bench_write_json(const bench_args *a, const cli_model_args *model, const vq_model *weights, const bench_row *rows,
                     size_t n_rows, int argc, char **argv)
{
    json_t *report = report_json(a, model, weights, rows, n_rows, argc, argv);
    return cli_json_write(a->json, report);
}
