/* The report of `bench`: a table, and a JSON file from which every figure can be traced. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

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

/* JSON has no NaN. */
static json_t *real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *figures(const double *samples, size_t n)
{
    if (n == 0)
        return json_null();
    const bench_summary s = bench_summarise(samples, n);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, real(samples[i]));
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "median", real(s.median), "low_quartile", real(s.low),
                     "high_quartile", real(s.high), "noise", real(bench_noise(s)), "samples", list);
}

static json_t *row_json(const bench_args *a, const bench_row *r)
{
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:I, s:I, s:o}", "method", r->method, "threads", (int)r->n_threads,
                     "depth", (int)r->depth, "prompt_tokens_per_second",
                     figures(r->prompt, a->n_prompt ? r->n_samples : 0), "decode_tokens_per_second",
                     figures(r->decode, a->n_decode ? r->n_samples : 0), "cache_bytes", (json_int_t)r->cache.used,
                     "cache_f16_bytes", (json_int_t)r->cache.f16, "bits_per_value",
                     r->cache.f16 ? real(r->cache.bits) : json_null());
}

/* The first "model name" of /proc/cpuinfo, and of its flags those that matter for the kernels. */
static json_t *cpu_json(void)
{
    static const char *const known[] = {"avx2",     "fma",         "f16c",       "avx512f",          "avx512bw",
                                        "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_vpopcntdq", "amx_int8",
                                        "asimd",    "asimddp"};
    char line[8192], name[128] = "unknown";
    json_t *flags = json_array();
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (!value)
            continue;
        if (strncmp(line, "model name", 10) == 0)
            snprintf(name, sizeof name, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        if (strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0)
            continue;
        char *save = NULL;
        for (char *word = strtok_r(line, " \t\n", &save); word; word = strtok_r(NULL, " \t\n", &save))
            for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
                if (strcmp(word, known[i]) == 0)
                    json_array_append_new(flags, json_string(word));
        break;
    }
    if (f)
        fclose(f);
    return json_pack("{s:s, s:o}", "name", name, "features", flags);
}

static json_t *machine_json(void)
{
    struct utsname system;
    const char *ceiling = getenv("VQ_CPU");
    if (uname(&system) != 0)
        return json_null();
    return json_pack("{s:o, s:i, s:i, s:s, s:s, s:s, s:o}", "cpu", cpu_json(), "cores_allowed", (int)vq_cores_allowed(),
                     "cores_online", (int)sysconf(_SC_NPROCESSORS_ONLN), "system", system.sysname, "release",
                     system.release, "architecture", system.machine, "VQ_CPU",
                     ceiling ? json_string(ceiling) : json_null());
}

static json_t *command_json(int argc, char **argv)
{
    json_t *words = json_array();
    json_array_append_new(words, json_string("veloxquant"));
    for (int i = 0; i < argc; i++)
        json_array_append_new(words, json_string(argv[i]));
    return words;
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
                     "veloxquant bench", "version", vq_version(), "date", date, "command", command_json(argc, argv),
                     "machine", machine_json(), "model", "file", slash ? slash + 1 : model->model, "family",
                     info->family, "parameters", (json_int_t)info->n_params, "weight_bytes",
                     (json_int_t)info->weight_bytes, "n_prompt", (int)a->n_prompt, "n_decode", (int)a->n_decode,
                     "batch", (int)model->n_batch, "exact", (int)model->exact, "results", results);
}

/* A whole file or none: written beside it and renamed.  Devices and pipes are written in place. */
static int write_file(const char *path, const char *text)
{
    struct stat st;
    char temp[4096 + 32];
    const bool direct = stat(path, &st) == 0 && !S_ISREG(st.st_mode);
    const int n = direct ? snprintf(temp, sizeof temp, "%s", path)
                         : snprintf(temp, sizeof temp, "%s.tmp-%ld", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof temp)
        return cli_fail("%.60s...: the name has more than 4096 bytes", path);
    FILE *f = fopen(temp, "w");
    if (!f)
        return cli_fail("%s: cannot write: %s", path, strerror(errno));
    errno = 0;
    bool fine = fputs(text, f) >= 0 && fputc('\n', f) != EOF && fflush(f) == 0 && (direct || fsync(fileno(f)) == 0);
    int reason = errno;
    if (fclose(f) != 0 && fine) {
        fine = false;
        reason = errno;
    }
    if (fine && !direct && rename(temp, path) != 0) {
        fine = false;
        reason = errno;
    }
    if (fine)
        return CLI_FINE;
    if (!direct)
        unlink(temp);
    return cli_fail("%s: cannot write: %s", path, strerror(reason));
}

int bench_write_json(const bench_args *a, const cli_model_args *model, const vq_model *weights, const bench_row *rows,
                     size_t n_rows, int argc, char **argv)
{
    json_t *report = report_json(a, model, weights, rows, n_rows, argc, argv);
    char *text = report ? json_dumps(report, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) : NULL;
    json_decref(report);
    if (!text)
        return cli_fail("the results could not be written as JSON");
    int status = CLI_FINE;
    if (strcmp(a->json, "-") == 0)
        puts(text);
    else
        status = write_file(a->json, text);
    free(text);
    return status;
}
