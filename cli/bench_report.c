/* The report of `bench`: tables, and a JSON file from which every figure can be traced. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "json.h"

const bench_row *bench_base(const bench_args *a, const bench_row *rows, size_t i)
{
    const size_t each_depth = a->methods.n * a->threads.n;
    return &rows[i / each_depth * each_depth + i % a->threads.n];
}

/* What is compared: rounds that both have. */
static vq_versus against_base(const bench_args *a, const bench_row *rows, size_t i, bool decode)
{
    const bench_row *r = &rows[i], *base = bench_base(a, rows, i);
    const size_t n = r->taken.n < base->again.n ? r->taken.n : base->again.n;
    if (decode)
        return vq_versus_of(base->taken.decode, base->again.decode, r->taken.decode, n);
    return vq_versus_of(base->taken.prompt, base->again.prompt, r->taken.prompt, n);
}

/* ---- tables ---- */

static int width_of_methods(const bench_row *rows, size_t n_rows)
{
    int width = 6;
    for (size_t i = 0; i < n_rows; i++)
        if ((int)strlen(rows[i].method) > width)
            width = (int)strlen(rows[i].method);
    return width;
}

/* Tokens a second: n_tokens in each of seconds [n]. */
static void print_speed(const double *seconds, size_t n, uint32_t n_tokens)
{
    char text[48] = "-";
    if (n_tokens > 0 && n > 0) {
        const vq_spread s = vq_spread_of(seconds, n);
        snprintf(text, sizeof text, "%.1f (%.1f-%.1f)", n_tokens / s.median, n_tokens / s.q3, n_tokens / s.q1);
    }
    printf("  %24s", text);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of times [n], which are sorted meanwhile, in milliseconds: the least one that `share` of all do not exceed. */
typedef struct percentiles {
    double p50, p90, p99;
} percentiles;

static percentiles percentiles_of(const bench_samples *s, uint32_t n_decode)
{
    const size_t n = s->n * n_decode;
    double *x = n ? malloc(n * sizeof *x) : NULL;
    if (!x)
        return (percentiles){0};
    memcpy(x, s->token, n * sizeof *x);
    qsort(x, n, sizeof *x, by_value);
    const percentiles p = {1e3 * x[(n - 1) / 2], 1e3 * x[(n * 9 + 9) / 10 - 1], 1e3 * x[(n * 99 + 99) / 100 - 1]};
    free(x);
    return p;
}

static void print_versus(const char *kind, const vq_versus *v)
{
    printf("  %s %.2fx (%.2f-%.2f) %s", kind, v->speed.median, v->low, v->high, vq_verdict_name(v->verdict));
}

static void print_comparisons(const bench_args *a, const bench_row *rows, size_t n_rows, int width)
{
    printf("\nAgainst %s, round by round:\n", a->methods.at[0]);
    for (size_t i = 0; i < n_rows; i++) {
        const bench_row *r = &rows[i];
        if (r->taken.n == 0 || (r->method_index == 0 && r->again.n == 0))
            continue;
        const vq_versus prompt = against_base(a, rows, i, false), decode = against_base(a, rows, i, true);
        printf("%-*s  %7u  %6u", width, r->method_index ? r->method : "noise", r->n_threads, r->depth);
        if (r->method_index == 0) {
            if (a->n_prompt > 0)
                printf("  prompt %.2f (%.2f-%.2f)", prompt.noise.median, prompt.noise_low, prompt.noise_high);
            if (a->n_decode > 0)
                printf("  decode %.2f (%.2f-%.2f)", decode.noise.median, decode.noise_low, decode.noise_high);
        } else {
            if (a->n_prompt > 0)
                print_versus("prompt", &prompt);
            if (a->n_decode > 0)
                print_versus("decode", &decode);
        }
        printf("\n");
    }
}

void bench_print(const bench_args *a, const bench_row *rows, size_t n_rows, const vq_load *load)
{
    const int width = width_of_methods(rows, n_rows);
    char prompt[32], decode[32], bytes[16];
    snprintf(prompt, sizeof prompt, "prompt %u", a->n_prompt);
    snprintf(decode, sizeof decode, "decode %u", a->n_decode);
    printf("%-*s  threads   depth  %24s  %24s  %20s  %10s  %10s\n", width, "method", prompt, decode,
           "ms a token 50/90/99%", "cache", "bits/value");
    for (size_t i = 0; i < n_rows; i++) {
        const bench_row *r = &rows[i];
        printf("%-*s  %7u  %6u", width, r->method, r->n_threads, r->depth);
        print_speed(r->taken.prompt, r->taken.n, a->n_prompt);
        print_speed(r->taken.decode, r->taken.n, a->n_decode);
        char times[32] = "-";
        const percentiles p = percentiles_of(&r->taken, a->n_decode);
        if (p.p50 > 0)
            snprintf(times, sizeof times, "%.1f/%.1f/%.1f", p.p50, p.p90, p.p99);
        printf("  %20s", times);
        if (r->cache.f16 > 0)
            printf("  %10s  %10.3f\n", cli_bytes(r->cache.used, bytes), r->cache.bits);
        else
            printf("  %10s  %10s\n", "-", "-");
    }
    if (n_rows > 0 && rows[0].taken.n > 0)
        print_comparisons(a, rows, n_rows, width);
    if (!load->known)
        printf("\nWhat else the machine did is not known.\n");
    else if (!load->quiet)
        printf("\nThe machine was not quiet: other programs took %.2f CPUs, its host %.2f; %.1f processes waited.\n"
               "Trust the ratios, not the absolute figures.\n",
               load->others, load->steal, load->waiting);
}

/* ---- JSON ---- */

static json_t *versus_json(const vq_versus *v)
{
    return json_pack("{s:[f, f, f], s:[f, f, f], s:s}", "times", v->speed.median, v->low, v->high, "noise",
                     v->noise.median, v->noise_low, v->noise_high, "verdict", vq_verdict_name(v->verdict));
}

/* {"prompt_tps": ..}: tokens a second of each sample */
static void add_speed(json_t *row, const char *key, const double *seconds, size_t n, uint32_t n_tokens)
{
    double *tps = n && n_tokens ? malloc(n * sizeof *tps) : NULL;
    for (size_t i = 0; tps && i < n; i++)
        tps[i] = n_tokens / seconds[i];
    json_object_set_new(row, key, cli_json_spread(tps, tps ? n : 0));
    free(tps);
}

static json_t *row_json(const bench_args *a, const bench_row *rows, size_t i, const char *model)
{
    const bench_row *r = &rows[i];
    json_t *row = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i}", "model", model, "system", "veloxquant", "kv",
                            r->method, "threads", (int)r->n_threads, "depth", (int)r->depth, "n_prompt",
                            (int)a->n_prompt, "n_decode", (int)a->n_decode);
    add_speed(row, "prompt_tps", r->taken.prompt, r->taken.n, a->n_prompt);
    add_speed(row, "decode_tps", r->taken.decode, r->taken.n, a->n_decode);
    json_object_set_new(row, "first_token_s", cli_json_spread(r->taken.prompt, a->n_prompt ? r->taken.n : 0));
    if (a->n_decode > 0 && r->taken.n > 0) {
        const percentiles p = percentiles_of(&r->taken, a->n_decode);
        json_object_set_new(row, "token_ms", json_pack("{s:f, s:f, s:f}", "p50", p.p50, "p90", p.p90, "p99", p.p99));
    }
    json_object_set_new(row, "cache_bytes", json_integer((json_int_t)r->cache.used));
    json_object_set_new(row, "cache_f16_bytes", json_integer((json_int_t)r->cache.f16));
    json_object_set_new(row, "bits_per_value", r->cache.f16 ? cli_json_real(r->cache.bits) : json_null());
    const vq_versus prompt = against_base(a, rows, i, false), decode = against_base(a, rows, i, true);
    if (prompt.speed.n > 0 && a->n_prompt > 0)
        json_object_set_new(row, "prompt_against_first", versus_json(&prompt));
    if (decode.speed.n > 0 && a->n_decode > 0)
        json_object_set_new(row, "decode_against_first", versus_json(&decode));
    return row;
}

int bench_write_json(const bench_args *a, const cli_model_args *model, const vq_model *weights, const bench_row *rows,
                     size_t n_rows, const vq_load *load, int argc, char **argv)
{
    const vq_model_info *info = vq_model_get_info(weights);
    const char *slash = strrchr(model->model, '/'), *file = slash ? slash + 1 : model->model;
    json_t *report = cli_json_head("prompt and decode speed, methods in turns", argc, argv);
    if (report) {
        json_object_update_new(
            report, json_pack("{s:{s:s, s:s, s:I, s:I}, s:i, s:b, s:o}", "model", "file", file, "family", info->family,
                              "parameters", (json_int_t)info->n_params, "weight_bytes", (json_int_t)info->weight_bytes,
                              "batch", (int)model->n_batch, "exact", (int)model->exact, "load", cli_json_load(load)));
        for (size_t i = 0; i < n_rows; i++)
            json_array_append_new(json_object_get(report, "rows"), row_json(a, rows, i, file));
    }
    return cli_json_write(a->json, report);
}
