/* veloxquant perplexity: a model on a text, or caches against a reference on the same tokens. */
#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { MOST_METHODS = CLI_MOST_TEXTS };

struct args {
    cli_texts files, kv;
    uint32_t window, n_windows;
    bool any_text;
    const char *skip, *reference;
    uint32_t min_tokens;
    bool json;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'f', "file", CLI_TEXTS, AT(files), "FILE", "the text, UTF-8; may be given several times, '-' is standard input", 0,
     0},
    {'c', "ctx-size", CLI_COUNT, AT(window), "N", "tokens of a window", 2, 16777216},
    {0, "skip", CLI_TEXT, AT(skip), "N",
     "first tokens of each window that are not scored; 'half' is N/2 + 1 (default: a quarter of the window)", 0, 0},
    {0, "windows", CLI_COUNT, AT(n_windows), "N", "windows of each file at most (default: all)", 1, 4294967295.0},
    {0, "min-tokens", CLI_COUNT, AT(min_tokens), "N", "fail when fewer tokens than this would be scored", 0,
     4294967295.0},
    {0, "reference", CLI_TEXT, AT(reference), "METHOD",
     "also run this cache method beside --kv, on the same tokens, and print the ratio of the perplexities, the KL "
     "divergence and how often both have the same likeliest token (default with several --kv: f16)",
     0, 0},
    {0, "any-text", CLI_FLAG, AT(any_text), NULL,
     "do not refuse a text that repeats itself or on which the perplexity is below 2", 0, 0},
    {0, "json", CLI_FLAG, AT(json), NULL, "print the results as JSON", 0, 0},
};

/* The model options less -c, which means the window here. */
#define MODEL_AT(field) offsetof(cli_model_args, field)
static const cli_option model_options[] = {
    {'m', "model", CLI_TEXT, MODEL_AT(model), "FILE", "the model, a GGUF file", 0, 0},
    {'t', "threads", CLI_COUNT, MODEL_AT(n_threads), "N", "threads (default: all cores that this process may use)", 1,
     1024},
    {'b', "batch-size", CLI_COUNT, MODEL_AT(n_batch), "N", "tokens a pass; results do not depend on it", 1, 8192},
    {0, "exact", CLI_FLAG, MODEL_AT(exact), NULL,
     "f32 activations instead of int8: slower; what the quality of caches is judged in", 0, 0},
};

/* The cache options, but --kv may be given several times. */
static const cli_option kv_option = {0,
                                     "kv",
                                     CLI_TEXTS,
                                     AT(kv),
                                     "METHOD",
                                     "how keys and values are stored, as NAME:option=value,... or KEYS+VALUES; several "
                                     "are compared in one run (default f16)",
                                     0,
                                     0};

static const char intro[] =
    "Perplexity of a text, token by token as in generation: the text is cut into windows one after another, each "
    "evaluated from an empty cache, and each token after the first ones is scored by the probability that the model "
    "gave it. Lower is better. The error is the standard error of the mean log-likelihood, times the perplexity.\n"
    "\n"
    "A rest of the text that fills no window is left out. Where the model wants a beginning-of-sequence token, it "
    "takes the place of each window's first token.\n"
    "\n"
    "With --reference, both caches see the same tokens, so that the difference is much more precise than either "
    "perplexity. The reference runs once for any number of --kv. Add --exact to judge a cache: int8 activations add "
    "noise "
    "of their own.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant perplexity -m model.gguf -f book.txt\n"
    "  veloxquant perplexity -m model.gguf -f book.txt -c 512 --skip half\n"
    "      the definition of llama.cpp's perplexity program, so that figures can be compared\n"
    "  veloxquant perplexity -m model.gguf -f book.txt --reference f16 --kv turboquant-mse:bits=3 --exact\n"
    "  veloxquant perplexity -m model.gguf -f book.txt --exact --kv velox:bits=2 --kv kivi:bits=2\n"
    "\n"
    "Ctrl-C prints what has been scored so far and ends with status 130.\n";

struct text {
    int32_t *ids;
    size_t n;
};

struct job {
    const struct args *args;
    const cli_model_args *model;
    cli_engine engine;
    vq_session *reference, *tested[MOST_METHODS];
    char names[MOST_METHODS][256];
    size_t n_methods;
    struct text texts[CLI_MOST_TEXTS];
    uint32_t skip;
    size_t n_windows, n_scored; /* over all texts */
    cli_progress progress;
    size_t before;                    /* scored in earlier texts */
    vq_moments seen;                  /* what the callback saw, for a cancelled run */
    vq_comparison sums[MOST_METHODS]; /* without a reference only nll */
    double seconds;
};

static int find_skip(const cli_page *page, const struct args *a, uint32_t *skip)
{
    if (!a->skip) {
        *skip = a->window / 4;
        return CLI_FINE;
    }
    if (strcmp(a->skip, "half") == 0) {
        *skip = a->window / 2 + 1;
        return CLI_FINE;
    }
    char *end;
    errno = 0;
    const long long n = strtoll(a->skip, &end, 10);
    if (end == a->skip || *end || errno || n < 0 || n >= (long long)a->window)
        return cli_usage(page, "--skip: '%s', must be 0 to %u, or half", a->skip, a->window - 1);
    *skip = (uint32_t)n;
    return CLI_FINE;
}

static vq_windows windows_of(const struct job *j, size_t i)
{
    return (vq_windows){.ids = j->texts[i].ids,
                        .n = j->texts[i].n,
                        .n_ctx = j->args->window,
                        .skip = j->skip,
                        .any_text = j->args->any_text,
                        .most = j->args->n_windows};
}

static int read_texts(struct job *j)
{
    const vq_tokenizer *t = vq_model_tokenizer(j->engine.model);
    vq_error err;
    for (size_t i = 0; i < j->args->files.n; i++) {
        char *bytes;
        size_t n_bytes, n_windows, n_scored;
        if (!cli_read_file(j->args->files.at[i], &bytes, &n_bytes))
            return CLI_FAILED;
        const vq_status status =
            vq_tokenize(t, bytes, n_bytes, VQ_TOKENIZE_BOS, &j->texts[i].ids, &j->texts[i].n, &err);
        free(bytes);
        if (status != VQ_OK)
            return cli_fail("%s: %s", j->args->files.at[i], err.text);
        const vq_windows w = windows_of(j, i);
        if (vq_eval_count(&w, &n_windows, &n_scored, &err) != VQ_OK)
            return cli_fail("%s: %s (-c changes it)", j->args->files.at[i], err.text);
        j->n_windows += n_windows;
        j->n_scored += n_scored;
    }
    if (j->n_scored < j->args->min_tokens)
        return cli_fail("%zu tokens would be scored, --min-tokens asks for %u", j->n_scored, j->args->min_tokens);
    return CLI_FINE;
}

/* Progress counts evaluated tokens: the ones that are not scored take time too. */
static bool on_token(void *arg, size_t done, size_t all, double nll)
{
    struct job *j = arg;
    (void)all;
    char remark[64];
    vq_moments_add(&j->seen, nll);
    snprintf(remark, sizeof remark, "ppl%s so far %.4f", j->reference ? " of the reference" : "", exp(j->seen.mean));
    const size_t skip = j->skip < 1 ? 1 : j->skip, scored = j->before + done, each = j->args->window - skip;
    cli_progress_step(&j->progress, scored + (scored + each - 1) / each * skip, j->n_windows * j->args->window, remark);
    return !cli_interrupted();
}

static int run(struct job *j)
{
    vq_error err;
    const double start = cli_seconds();
    cli_progress_start(&j->progress, "tokens");
    for (size_t i = 0; i < j->args->files.n; i++) {
        const vq_windows w = windows_of(j, i);
        const vq_status status =
            j->reference ? vq_eval_compare(j->reference, j->tested, j->n_methods, &w, on_token, j, j->sums, &err)
                         : vq_eval_perplexity(j->tested[0], &w, on_token, j, &j->sums[0].nll, &err);
        if (status == VQ_ERR_CANCELLED) {
            cli_progress_end(&j->progress);
            cli_say("stopped after %zu of %zu tokens: ppl%s so far %.4f +- %.4f", (size_t)j->seen.n, j->n_scored,
                    j->reference ? " of the reference" : "", exp(j->seen.mean),
                    exp(j->seen.mean) * vq_moments_error(&j->seen));
            return CLI_INTERRUPTED;
        }
        if (status != VQ_OK) {
            cli_progress_end(&j->progress);
            return cli_fail_with(&err);
        }
        j->before = (size_t)j->seen.n;
    }
    cli_progress_end(&j->progress);
    j->seconds = cli_seconds() - start;
    return CLI_FINE;
}

/* ---- results ---- */

static void print_text(const struct job *j)
{
    const vq_comparison *c = &j->sums[0];
    cli_cache cache;
    char used[16];
    printf("tokens     %llu scored, in %zu window%s of %u of which the first %u are not\n",
           (unsigned long long)c->nll.n, j->n_windows, j->n_windows == 1 ? "" : "s", j->args->window, j->skip);
    if (j->reference) {
        cli_cache_measure(j->reference, &cache);
        printf("reference  %s: %.3f bits a value, %s a window\n", j->args->reference, cache.bits,
               cli_bytes(cache.used, used));
    }
    cli_cache_measure(j->tested[0], &cache);
    printf("cache      %s: %.3f bits a value, %s a window\n", j->names[0], cache.bits, cli_bytes(cache.used, used));
    if (j->reference)
        printf("reference  nll %.5f, ppl %.4f +- %.4f\n", c->reference_nll.mean, exp(c->reference_nll.mean),
               exp(c->reference_nll.mean) * vq_moments_error(&c->reference_nll));
    printf("nll        %.5f +- %.5f\n", c->nll.mean, vq_moments_error(&c->nll));
    printf("ppl        %.4f +- %.4f\n", exp(c->nll.mean), exp(c->nll.mean) * vq_moments_error(&c->nll));
    if (j->reference) {
        const double ratio = 1.96 * vq_moments_error(&c->log_ratio), kl = 1.96 * vq_moments_error(&c->kl),
                     top = 1.96 * vq_moments_error(&c->same_top);
        printf("ratio      %.5f of the perplexities, 95 %% interval %.5f to %.5f\n", exp(c->log_ratio.mean),
               exp(c->log_ratio.mean - ratio), exp(c->log_ratio.mean + ratio));
        printf("KL         %.6f nats a token, 95 %% interval %.6f to %.6f\n", c->kl.mean, c->kl.mean - kl,
               c->kl.mean + kl);
        printf("same top   %.2f %% of tokens, 95 %% interval %.2f to %.2f\n", 100 * c->same_top.mean,
               100 * (c->same_top.mean - top), 100 * (c->same_top.mean + top));
    }
    printf("speed      %.1f tokens a second\n",
           j->seconds > 0 ? (double)j->n_windows * (j->args->window - 1) / j->seconds : 0);
}

static double packed_bits(const cli_cache *c) { return c->packed_bits > 0 ? c->packed_bits : c->bits; }

/* Several methods: one line each. */
static void print_table(const struct job *j)
{
    const vq_comparison *c = &j->sums[0];
    cli_cache cache;
    int width = 9;
    for (size_t i = 0; i < j->n_methods; i++)
        width = (int)strlen(j->names[i]) > width ? (int)strlen(j->names[i]) : width;
    cli_cache_measure(j->reference, &cache);
    printf("%llu tokens scored, in %zu window%s of %u of which the first %u are not; intervals are 95 %%\n\n",
           (unsigned long long)c->nll.n, j->n_windows, j->n_windows == 1 ? "" : "s", j->args->window, j->skip);
    printf("%-*s  %10s %10s  %-28s %-24s %8s\n", width, "cache", "bits/value", "ppl", "ratio", "KL", "same top");
    printf("%-*s  %10.3f %10.4f  %-28s %-24s %8s\n", width, j->args->reference, packed_bits(&cache),
           exp(c->reference_nll.mean), "reference", "", "");
    for (size_t i = 0; i < j->n_methods; i++) {
        char ratio[64], kl[64];
        c = &j->sums[i];
        const double e = 1.96 * vq_moments_error(&c->log_ratio);
        snprintf(ratio, sizeof ratio, "%.5f (%.5f to %.5f)", exp(c->log_ratio.mean), exp(c->log_ratio.mean - e),
                 exp(c->log_ratio.mean + e));
        snprintf(kl, sizeof kl, "%.6f +- %.6f", c->kl.mean, 1.96 * vq_moments_error(&c->kl));
        cli_cache_measure(j->tested[i], &cache);
        printf("%-*s  %10.3f %10.4f  %-28s %-24s %6.2f %%\n", width, j->names[i], packed_bits(&cache), exp(c->nll.mean),
               ratio, kl, 100 * c->same_top.mean);
    }
}

/* JSON has no NaN. */
static json_t *real(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static json_t *interval(double mean, double error, bool of_log)
{
    const double low = mean - 1.96 * error, high = mean + 1.96 * error;
    return json_pack("{s:o, s:o, s:o}", "value", real(of_log ? exp(mean) : mean), "low", real(of_log ? exp(low) : low),
                     "high", real(of_log ? exp(high) : high));
}

static json_t *cache_json(vq_session *s, const char *method)
{
    cli_cache c;
    cli_cache_measure(s, &c);
    return json_pack("{s:s, s:o, s:o, s:I, s:I}", "method", method, "bits_per_value", real(c.bits),
                     "packed_bits_per_value", c.packed_bits > 0 ? real(c.packed_bits) : json_null(), "bytes",
                     (json_int_t)c.used, "f16_bytes", (json_int_t)c.f16);
}

/* What one method gave, into an object. */
static void put_result(json_t *to, const struct job *j, size_t i)
{
    const vq_comparison *c = &j->sums[i];
    json_object_set_new(to, "cache", cache_json(j->tested[i], j->names[i]));
    json_object_set_new(to, "nll", real(c->nll.mean));
    json_object_set_new(to, "nll_error", real(vq_moments_error(&c->nll)));
    json_object_set_new(to, "ppl", real(exp(c->nll.mean)));
    json_object_set_new(to, "ppl_error", real(exp(c->nll.mean) * vq_moments_error(&c->nll)));
    if (j->reference) {
        json_object_set_new(to, "ppl_ratio", interval(c->log_ratio.mean, vq_moments_error(&c->log_ratio), true));
        json_object_set_new(to, "kl", interval(c->kl.mean, vq_moments_error(&c->kl), false));
        json_object_set_new(to, "same_top", interval(c->same_top.mean, vq_moments_error(&c->same_top), false));
    }
}

/* One method's figures stand at the top; those of several in a list `methods`. */
static int print_json(const struct job *j)
{
    const vq_comparison *c = &j->sums[0];
    json_t *files = json_array();
    for (size_t i = 0; i < j->args->files.n; i++)
        json_array_append_new(files, json_string(j->args->files.at[i]));
    json_t *all =
        json_pack("{s:s, s:s, s:o, s:b, s:i, s:i, s:I, s:I, s:o}", "version", vq_version(), "model", j->model->model,
                  "files", files, "exact", (int)j->model->exact, "window", (int)j->args->window, "skip", (int)j->skip,
                  "windows", (json_int_t)j->n_windows, "tokens", (json_int_t)c->nll.n, "seconds", real(j->seconds));
    if (all && j->reference) {
        json_object_set_new(all, "reference", cache_json(j->reference, j->args->reference));
        json_object_set_new(all, "reference_ppl", real(exp(c->reference_nll.mean)));
    }
    if (all && j->n_methods == 1) {
        put_result(all, j, 0);
    } else if (all) {
        json_t *methods = json_array();
        for (size_t i = 0; i < j->n_methods; i++) {
            json_t *one = json_object();
            put_result(one, j, i);
            json_array_append_new(methods, one);
        }
        json_object_set_new(all, "methods", methods);
    }
    char *text = all ? json_dumps(all, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(all);
    if (!text)
        return cli_fail("the results could not be written as JSON");
    puts(text);
    free(text);
    return CLI_FINE;
}

/* The i-th cache, as --kv and the other cache options say, and its name. */
static int open_tested(struct job *j, const cli_page *page, size_t i)
{
    cli_model_args m = *j->model;
    char keys[256];
    const char *both = i < j->args->kv.n ? j->args->kv.at[i] : "f16", *plus = strchr(both, '+');
    m.kv = both;
    snprintf(j->names[i], sizeof j->names[i], "%s", both);
    if (plus) {
        snprintf(keys, sizeof keys, "%.*s", (int)(plus - both), both);
        m.kv_keys = keys;
        m.kv_values = plus + 1;
    } else if (m.kv_keys || m.kv_values) {
        snprintf(j->names[i], sizeof j->names[i], "%s/%s", m.kv_keys ? m.kv_keys : both,
                 m.kv_values ? m.kv_values : both);
    }
    return cli_session_open(&j->tested[i], &j->engine, page, &m, NULL);
}

int cli_perplexity(int argc, char **argv)
{
    struct args a = {.window = 1024};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"Text", options, sizeof options / sizeof options[0], &a},
        {"Model", model_options, sizeof model_options / sizeof model_options[0], &model},
        {"Caches", &kv_option, 1, &a},
        {"Of every cache", cli_cache_options + 1, cli_n_cache_options - 1, &model},
    };
    const cli_page page = {
        "perplexity", "-m MODEL -f FILE [options]", intro, groups, sizeof groups / sizeof groups[0], ending, 0, 0};
    size_t n_operands;
    int status;
    struct job j = {.args = &a, .model = &model};
    assert(strcmp(cli_cache_options[0].name, "kv") == 0);
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (a.files.n == 0)
        return cli_usage(&page, "no text: -f FILE says which");
    j.n_methods = a.kv.n > 0 ? a.kv.n : 1;
    if (j.n_methods > 1 && !a.reference)
        a.reference = "f16";
    if (j.n_methods > 1 && (model.kv_keys || model.kv_values))
        return cli_usage(&page, "--kv-keys and --kv-values go with one --kv; write --kv KEYS+VALUES");
    status = find_skip(&page, &a, &j.skip);
    if (status != CLI_FINE)
        return status;
    cli_catch_interrupt(1);
    model.n_ctx = a.window;
    status = cli_engine_open(&j.engine, &page, &model);
    if (status == CLI_FINE)
        status = read_texts(&j);
    for (size_t i = 0; i < j.n_methods && status == CLI_FINE; i++)
        status = open_tested(&j, &page, i);
    if (status == CLI_FINE && a.reference)
        status = cli_session_open(&j.reference, &j.engine, &page, &model, a.reference);
    if (status == CLI_FINE)
        status = run(&j);
    if (status == CLI_FINE && a.json)
        status = print_json(&j);
    else if (status == CLI_FINE && j.n_methods > 1)
        print_table(&j);
    else if (status == CLI_FINE)
        print_text(&j);
    for (size_t i = 0; i < j.n_methods; i++)
        vq_session_close(j.tested[i]);
    vq_session_close(j.reference);
    cli_engine_close(&j.engine);
    for (size_t i = 0; i < a.files.n; i++)
        vq_free(j.texts[i].ids);
    return status;
}
