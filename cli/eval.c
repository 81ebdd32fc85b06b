/* veloxquant eval: the family of measurements, and what its members share. */
#include "eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A new measurement is one line here. */
static const cli_command evals[] = {
    {"all", "every measurement, and the report: one command, resumable", eval_all},
    {"perplexity", "caches and eviction policies on a text, in generation order, against f16", eval_perplexity},
    {"needle", "one sentence hidden in prose, by length and depth", eval_needle},
    {"recall", "many needles, and key-value pairs", eval_recall},
    {"attention-rank", "what policies rate rows by, against the attention that rows receive", eval_attention_rank},
    {"speed", "decoding after a prompt, what policies cost, memory", eval_speed},
    {"anisotropy", "the geometry of queries and keys that Q-Filters rest on", eval_anisotropy},
    {"generation", "greedy texts: how far they come, how much they repeat", eval_generation},
    {"invariance", "the same text by other threads, passes and CPU tiers", eval_invariance},
    {"distortion", "error of attention's output, layer by layer", eval_distortion},
    {"memory", "what caches take over length", eval_memory},
    {"sharing", "memory and start of processes that run one model at once", eval_sharing},
};
enum { N_EVALS = sizeof evals / sizeof evals[0] };

static const char ending[] = "\n"
                             "Examples:\n"
                             "  veloxquant eval perplexity -m model.gguf -f book.txt --evict snapkv:budget=25%\n"
                             "  veloxquant eval needle -m model.gguf -f book.txt --kv velox:bits=2\n"
                             "  veloxquant eval attention-rank -m model.gguf -f book.txt\n"
                             "\n"
                             "'veloxquant eval NAME --help' explains a measurement and its options. They print\n"
                             "a table; --json FILE also writes every figure with machine and command, which\n"
                             "'veloxquant report' draws. Ctrl-C ends with what was measured so far.\n";

static void print_help(FILE *to)
{
    fputs("usage: veloxquant eval NAME -m MODEL [options]\n"
          "\n"
          "Measures what a cache or an eviction policy does to a model's work.\n"
          "\n"
          "Measurements:\n",
          to);
    for (size_t i = 0; i < N_EVALS; i++)
        fprintf(to, "  %-15s %s\n", evals[i].name, evals[i].summary);
    fputs(ending, to);
}

int cli_eval(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help(stdout);
        return CLI_FINE;
    }
    const char *names[N_EVALS];
    for (size_t i = 0; i < N_EVALS; i++) {
        names[i] = evals[i].name;
        if (strcmp(names[i], argv[1]) == 0)
            return evals[i].run(argc - 1, argv + 1);
    }
    const char *near = cli_nearest(argv[1], names, N_EVALS);
    cli_say("unknown measurement '%s'%s%s%s", argv[1], near ? "; did you mean '" : "", near ? near : "",
            near ? "'?" : "");
    fputs("Try 'veloxquant eval --help'.\n", stderr);
    return CLI_USAGE;
}

/* ---- what is tested ---- */
#define AT(field) offsetof(eval_args, field)
#define MODEL_AT(field) offsetof(cli_model_args, field)

const cli_option eval_cache_options[] = {
    {0, "kv", CLI_TEXTS, AT(kv), "METHOD",
     "a cache to test, as NAME:option=value,... or KEYS+VALUES; may be given several times (default f16)", 0, 0},
    {0, "evict", CLI_TEXTS, AT(evict), "POLICY",
     "an eviction policy to test with every --kv, as NAME:budget=25%,option=value,... or none; may be given several "
     "times (default none)",
     0, 0},
};
const size_t eval_n_cache_options = sizeof eval_cache_options / sizeof eval_cache_options[0];

const cli_option eval_model_options[] = {
    {'m', "model", CLI_TEXT, MODEL_AT(model), "FILE", "the model, a GGUF file or a reservoir", 0, 0},
    {'t', "threads", CLI_COUNT, MODEL_AT(n_threads), "N", "threads (default: all cores that this process may use)", 1,
     1024},
    {0, "exact", CLI_FLAG, MODEL_AT(exact), NULL, "f32 activations instead of int8: slower; what quality is judged in",
     0, 0},
    {'b', "batch-size", CLI_COUNT, MODEL_AT(n_batch), "N", "prompt tokens a pass; results do not depend on it", 1,
     8192},
    {0, "sinks", CLI_COUNT, MODEL_AT(sinks), "N", "first tokens that stay exact (default: as the method asks)", 0,
     65536},
    {0, "residual", CLI_COUNT, MODEL_AT(residual), "N", "newest tokens that stay exact (default: as the method asks)",
     0, 1048576},
    {0, "calibration", CLI_TEXT, MODEL_AT(calibration), "FILE",
     "what 'veloxquant calibrate' made of this model; for methods and policies that need it", 0, 0},
    {0, "kv-exact", CLI_TEXT, MODEL_AT(kv_exact), "TYPE", "f16, bf16 or f32: the type of tokens that stay exact", 0, 0},
};
const size_t eval_n_short_model_options = 3;
const size_t eval_n_model_options = sizeof eval_model_options / sizeof eval_model_options[0];

int eval_configs(const cli_page *page, const eval_args *a, eval_config *out, size_t *n)
{
    const size_t n_kv = a->kv.n ? a->kv.n : 1, n_evict = a->evict.n ? a->evict.n : 1;
    *n = 0;
    if (n_kv * n_evict > EVAL_MOST_CONFIGS)
        return cli_usage(page, "%zu caches with %zu policies each, at most %d in all", n_kv, n_evict,
                         EVAL_MOST_CONFIGS);
    for (size_t i = 0; i < n_kv; i++) {
        for (size_t k = 0; k < n_evict; k++) {
            eval_config *c = &out[(*n)++];
            c->kv = a->kv.n ? a->kv.at[i] : "f16";
            c->evict = a->evict.n && strcmp(a->evict.at[k], "none") != 0 ? a->evict.at[k] : NULL;
            snprintf(c->name, sizeof c->name, "%s%s%s", c->kv, c->evict ? " " : "", c->evict ? c->evict : "");
        }
    }
    return CLI_FINE;
}

int eval_session_open(vq_session **out, const cli_engine *e, const cli_page *page, const cli_model_args *model,
                      const eval_config *c)
{
    cli_model_args args = *model;
    char keys[200];
    const char *plus = strchr(c->kv, '+');
    args.kv = c->kv;
    args.evict = c->evict;
    if (plus) {
        snprintf(keys, sizeof keys, "%.*s", (int)(plus - c->kv), c->kv);
        args.kv_keys = keys;
        args.kv_values = plus + 1;
    }
    return cli_session_open(out, e, page, &args, NULL);
}

int eval_name_width(const eval_config *c, size_t n)
{
    size_t width = 10;
    for (size_t i = 0; i < n; i++)
        if (strlen(c[i].name) > width)
            width = strlen(c[i].name);
    return (int)width;
}

/* ---- texts ---- */
int eval_text_read(eval_text *t, const char *path, const vq_model *model)
{
    vq_error err;
    *t = (eval_text){.path = path};
    if (!cli_read_file(path, &t->bytes, &t->n_bytes))
        return CLI_FAILED;
    if (vq_tokenize(vq_model_tokenizer(model), t->bytes, t->n_bytes, VQ_TOKENIZE_BOS, &t->ids, &t->n, &err) != VQ_OK)
        return cli_fail("%s: %s", path, err.text);
    return CLI_FINE;
}

void eval_text_free(eval_text *t)
{
    free(t->bytes);
    vq_free(t->ids);
    *t = (eval_text){0};
}

/* ---- results ---- */
const char *eval_model_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* argv is the measurement's part of the command line: "eval" stands before it. */
json_t *eval_results(const char *what, const cli_model_args *model, const vq_model *weights, int argc, char **argv)
{
    const vq_model_info *info = vq_model_get_info(weights);
    json_t *results = cli_json_head(what, argc + 1, argv - 1);
    if (results)
        json_object_update_new(results, json_pack("{s:{s:s, s:s, s:I}, s:b}", "model", "file",
                                                  eval_model_name(model->model), "family", info->family, "parameters",
                                                  (json_int_t)info->n_params, "exact", (int)model->exact));
    return results;
}

void eval_add_row(json_t *results, json_t *row) { json_array_append_new(json_object_get(results, "rows"), row); }

json_t *eval_interval(double mean, double error, bool of_log)
{
    const double at[] = {mean, mean - 1.96 * error, mean + 1.96 * error};
    json_t *list = json_array();
    for (size_t i = 0; i < 3; i++)
        json_array_append_new(list, cli_json_real(of_log ? exp(at[i]) : at[i]));
    return list;
}

json_t *eval_packed_bits(const cli_cache *c)
{
    return c->packed_bits > 0 ? cli_json_real(c->packed_bits) : json_null();
}

uint64_t eval_resident_bytes(vq_session *s)
{
    enum { MOST = 64 };
    const void *starts[MOST];
    size_t n_bytes[MOST];
    const size_t n = vq_kv_mappings(vq_session_kv(s), starts, n_bytes, MOST);
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[4352];
    uint64_t sum = 0;
    bool ours = false;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long from, to;
        unsigned long long kib;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            ours = false;
            for (size_t i = 0; i < n && i < MOST && !ours; i++)
                ours = from >= (uintptr_t)starts[i] && from < (uintptr_t)starts[i] + n_bytes[i];
        } else if (ours && sscanf(line, "Rss: %llu kB", &kib) == 1) {
            sum += kib * 1024;
        }
    }
    if (f)
        fclose(f);
    return sum;
}

uint64_t eval_process_bytes(void)
{
    unsigned long long pages, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%llu %llu", &pages, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double eval_percentile(const double *x, size_t n, uint32_t percent)
{
    double *sorted = malloc(n * sizeof *sorted);
    if (!sorted || n == 0) {
        free(sorted);
        return NAN;
    }
    memcpy(sorted, x, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    const double value = sorted[(n * percent + 99) / 100 - 1];
    free(sorted);
    return value;
}

void eval_add_cache(json_t *row, vq_session *s)
{
    const vq_model_info *info = vq_model_get_info(vq_session_model(s));
    const uint32_t n = vq_session_n_tokens(s);
    cli_cache c;
    cli_cache_measure(s, &c);
    json_object_set_new(row, "rows_per_head",
                        json_real((double)c.bytes.n_rows / ((double)info->n_layers * info->n_kv_heads)));
    json_object_set_new(row, "bytes", json_integer((json_int_t)c.used));
    json_object_set_new(row, "bytes_per_token", cli_json_real(n ? (double)c.used / n : 0));
    json_object_set_new(row, "bits_per_value", cli_json_real(c.bits));
    json_object_set_new(row, "packed_bits", eval_packed_bits(&c));
}
