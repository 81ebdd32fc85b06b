/* veloxquant eval perplexity: caches and eviction policies on the same tokens as a reference, in generation order. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

struct args {
    eval_args shared;
    uint32_t window, skip, n_windows, steps;
    bool any_text, one_pass;
};

#define AT(field) offsetof(struct args, field)
#define SHARED_AT(field) offsetof(struct args, shared.field)

static const cli_option options[] = {
    {'f', "file", CLI_TEXTS, SHARED_AT(files), "FILE", "the text, UTF-8; may be given several times", 0, 0},
    {'c', "ctx-size", CLI_COUNT, AT(window), "N", "tokens of a window", 2, 16777216},
    {0, "skip", CLI_COUNT, AT(skip), "N",
     "first tokens of a window: they are the prompt and are not scored (default: half of the window)", 1, 16777215},
    {0, "windows", CLI_COUNT, AT(n_windows), "N", "windows of each file at most (default: all)", 1, 4294967295.0},
    {0, "reference", CLI_TEXT, SHARED_AT(reference), "METHOD",
     "the cache that the others are held against; it never evicts. 'none' measures perplexities alone", 0, 0},
    {0, "steps", CLI_COUNT, AT(steps), "N",
     "with --reference none: also the perplexity of every N tokens of a window, to see whether it stays flat", 1,
     16777216},
    {0, "any-text", CLI_FLAG, AT(any_text), NULL,
     "do not refuse a text that repeats itself or on which the perplexity is below 2", 0, 0},
    {0, "one-pass", CLI_FLAG, AT(one_pass), NULL,
     "read each window in one pass, as programs do that know no eviction; refused when a cache evicts", 0, 0},
    {0, "json", CLI_TEXT, SHARED_AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const char intro[] =
    "Perplexity as in generation. Each window of the text starts from an empty cache: its first tokens are read as a "
    "prompt, the policy then drops what its budget does not allow, and the rest comes one token at a time, each scored "
    "by the probability that the model gave it, while the policy goes on working. Without a policy a window is read "
    "in one pass, which gives the same figures. Every cache and every policy sees the same tokens as the reference, so "
    "that ratios are paired: their 95 % intervals are much narrower than those "
    "of the perplexities.\n"
    "\n"
    "Rows are what a head holds on average at the end of a window; bits a value and bytes a token of the text count "
    "everything that the cache has in use. Add --exact to judge a codec; without it int8 activations add "
    "the same noise to all.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant eval perplexity -m model.gguf -f book.txt --kv velox:bits=2 --kv velox:bits=3 --exact\n"
    "  veloxquant eval perplexity -m model.gguf -f book.txt --evict streaming:budget=25%,recent=32 \\\n"
    "      --evict snapkv:budget=25%,recent=32 --windows 4 --json eviction.json\n";

enum { MOST_STEPS = 4096 };

struct job {
    const struct args *args;
    cli_engine engine;
    eval_config configs[EVAL_MOST_CONFIGS];
    size_t n_configs;
    vq_session *reference, *tested[EVAL_MOST_CONFIGS];
    eval_text texts[CLI_MOST_TEXTS];
    vq_comparison sums[EVAL_MOST_CONFIGS];
    vq_moments steps[MOST_STEPS]; /* of the configuration that runs */
    vq_moments *step_sums;        /* [n_configs][MOST_STEPS]; NULL without --steps */
    size_t n_windows, n_done;     /* over all texts */
    cli_progress progress;
};

static vq_windows window_of(const struct job *j, const eval_text *t, size_t i)
{
    const uint32_t n = j->args->window;
    return (vq_windows){.ids = t->ids + i * n,
                        .n = n,
                        .n_ctx = n,
                        .skip = j->args->skip,
                        .one_pass = j->args->one_pass,
                        .any_text = j->args->any_text};
}

static int read_texts(struct job *j)
{
    vq_error err;
    for (size_t i = 0; i < j->args->shared.files.n; i++) {
        const char *path = j->args->shared.files.at[i];
        const int status = eval_text_read(&j->texts[i], path, j->engine.model);
        if (status != CLI_FINE)
            return status;
        size_t n_windows, n_scored;
        const vq_windows all = {.ids = j->texts[i].ids,
                                .n = j->texts[i].n,
                                .n_ctx = j->args->window,
                                .skip = j->args->skip,
                                .most = j->args->n_windows};
        if (vq_eval_count(&all, &n_windows, &n_scored, &err) != VQ_OK)
            return cli_fail("%s: %s (-c changes it)", path, err.text);
        j->n_windows += n_windows;
        j->texts[i].n = n_windows * j->args->window;
    }
    return CLI_FINE;
}

static int open_sessions(struct job *j, const cli_page *page, const cli_model_args *model)
{
    int status = CLI_FINE;
    if (strcmp(j->args->shared.reference, "none") != 0) {
        const eval_config reference = {.kv = j->args->shared.reference};
        status = eval_session_open(&j->reference, &j->engine, page, model, &reference);
    }
    for (size_t i = 0; i < j->n_configs && status == CLI_FINE; i++)
        status = eval_session_open(&j->tested[i], &j->engine, page, model, &j->configs[i]);
    return status;
}

static bool on_token(void *arg, size_t done, size_t all, double nll)
{
    struct job *j = arg;
    (void)nll;
    cli_progress_step(&j->progress, j->n_done * 1000 + done * 1000 / all, j->n_windows * 1000, "");
    return !cli_interrupted();
}

struct one {
    struct job *job;
    size_t config;
};

static bool on_single(void *arg, size_t done, size_t all, double nll)
{
    struct one *o = arg;
    struct job *j = o->job;
    if (j->args->steps > 0)
        vq_moments_add(&j->steps[(j->args->skip + done - 1) / j->args->steps], nll);
    cli_progress_step(&j->progress, (j->n_done * j->n_configs + o->config) * 1000 + done * 1000 / all,
                      j->n_windows * j->n_configs * 1000, "");
    return !cli_interrupted();
}

static vq_status run_window(struct job *j, const vq_windows *w, vq_error *err)
{
    if (j->reference) {
        vq_comparison sums[EVAL_MOST_CONFIGS];
        memcpy(sums, j->sums, sizeof sums);
        CLI_TRY(vq_eval_compare(j->reference, j->tested, j->n_configs, w, on_token, j, sums, err));
        memcpy(j->sums, sums, sizeof sums);
        return VQ_OK;
    }
    for (size_t i = 0; i < j->n_configs; i++) {
        memset(j->steps, 0, sizeof j->steps);
        CLI_TRY(vq_eval_perplexity(j->tested[i], w, on_single, &(struct one){j, i}, &j->sums[i].nll, err));
        for (size_t k = 0; j->step_sums && k < MOST_STEPS; k++)
            vq_moments_merge(&j->step_sums[i * MOST_STEPS + k], &j->steps[k]);
    }
    return VQ_OK;
}

static int run(struct job *j)
{
    vq_error err;
    cli_progress_start(&j->progress, "thousandths of a window");
    for (size_t t = 0; t < j->args->shared.files.n; t++) {
        for (size_t i = 0; i < j->texts[t].n / j->args->window; i++) {
            const vq_windows w = window_of(j, &j->texts[t], i);
            const vq_status status = run_window(j, &w, &err);
            if (status != VQ_OK)
                cli_progress_end(&j->progress);
            if (status == VQ_ERR_CANCELLED) {
                cli_say("stopped after %zu of %zu windows", j->n_done, j->n_windows);
                return CLI_INTERRUPTED;
            }
            if (status != VQ_OK)
                return cli_fail_with(&err);
            j->n_done++;
        }
    }
    cli_progress_end(&j->progress);
    return CLI_FINE;
}

/* ---- results ---- */
static void print_steps(const struct job *j, size_t config)
{
    const uint32_t steps = j->args->steps;
    for (size_t k = 0; k < MOST_STEPS; k++) {
        const vq_moments *m = &j->step_sums[config * MOST_STEPS + k];
        if (m->n > 0)
            printf("  tokens %7zu to %7zu  ppl %9.3f +- %.3f\n", k * steps, (k + 1) * steps - 1, exp(m->mean),
                   exp(m->mean) * vq_moments_error(m));
    }
}

static void print_text(const struct job *j)
{
    const int width = eval_name_width(j->configs, j->n_configs);
    const vq_comparison *first = &j->sums[0];
    printf("%zu window%s of %u tokens, the first %u not scored: %llu tokens\n", j->n_done, j->n_done == 1 ? "" : "s",
           j->args->window, j->args->skip, (unsigned long long)first->nll.n);
    if (j->reference)
        printf("reference %s: ppl %.3f +- %.3f\n", j->args->shared.reference, exp(first->reference_nll.mean),
               exp(first->reference_nll.mean) * vq_moments_error(&first->reference_nll));
    printf("\n%-*s %8s %10s %8s %9s  %-24s  %s\n", width, "cache", "rows", "B a token", "bits/val", "ppl",
           j->reference ? "ratio (95 %)" : "", j->reference ? "KL (95 %)" : "");
    for (size_t i = 0; i < j->n_configs; i++) {
        const vq_comparison *c = &j->sums[i];
        const vq_model_info *info = vq_model_get_info(j->engine.model);
        cli_cache cache;
        cli_cache_measure(j->tested[i], &cache);
        printf("%-*s %8.1f %10.0f %8.3f %9.3f", width, j->configs[i].name,
               (double)cache.bytes.n_rows / ((double)info->n_layers * info->n_kv_heads),
               (double)cache.used / vq_session_n_tokens(j->tested[i]), cache.bits, exp(c->nll.mean));
        if (j->reference) {
            const double ratio = 1.96 * vq_moments_error(&c->log_ratio), kl = 1.96 * vq_moments_error(&c->kl);
            printf("  %.4f (%.4f-%.4f)  %.5f (%.5f-%.5f)", exp(c->log_ratio.mean), exp(c->log_ratio.mean - ratio),
                   exp(c->log_ratio.mean + ratio), c->kl.mean, c->kl.mean - kl, c->kl.mean + kl);
        }
        putchar('\n');
        if (j->step_sums)
            print_steps(j, i);
    }
}

static json_t *steps_json(const struct job *j, size_t config)
{
    json_t *list = json_array();
    for (size_t k = 0; k < MOST_STEPS; k++) {
        const vq_moments *m = &j->step_sums[config * MOST_STEPS + k];
        if (m->n > 0)
            json_array_append_new(list, json_pack("{s:I, s:I, s:o, s:o}", "from", (json_int_t)(k * j->args->steps),
                                                  "tokens", (json_int_t)m->n, "ppl", cli_json_real(exp(m->mean)),
                                                  "ppl_error", cli_json_real(exp(m->mean) * vq_moments_error(m))));
    }
    return list;
}

static json_t *row_json(const struct job *j, size_t i, const char *model)
{
    const eval_config *config = &j->configs[i];
    const vq_comparison *c = &j->sums[i];
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:I, s:o, s:o}", "kind", "perplexity", "model", model,
                            "kv", config->kv, "evict", config->evict ? config->evict : "none", "window",
                            (int)j->args->window, "skip", (int)j->args->skip, "windows", (json_int_t)j->n_done,
                            "tokens", (json_int_t)c->nll.n, "ppl", cli_json_real(exp(c->nll.mean)), "ppl_error",
                            cli_json_real(exp(c->nll.mean) * vq_moments_error(&c->nll)));
    if (row && j->reference) {
        json_object_set_new(row, "reference", json_string(j->args->shared.reference));
        json_object_set_new(row, "reference_ppl", cli_json_real(exp(c->reference_nll.mean)));
        json_object_set_new(row, "ppl_ratio", eval_interval(c->log_ratio.mean, vq_moments_error(&c->log_ratio), true));
        json_object_set_new(row, "kl", eval_interval(c->kl.mean, vq_moments_error(&c->kl), false));
        json_object_set_new(row, "same_top", eval_interval(c->same_top.mean, vq_moments_error(&c->same_top), false));
    }
    if (row)
        eval_add_cache(row, j->tested[i]);
    if (row && j->step_sums)
        json_object_set_new(row, "steps", steps_json(j, i));
    return row;
}

static int write_results(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    json_t *results =
        eval_results("perplexity in generation order, paired with a reference", model, j->engine.model, argc, argv);
    for (size_t i = 0; results && i < j->n_configs; i++)
        eval_add_row(results, row_json(j, i, eval_model_name(model->model)));
    return cli_json_write(j->args->shared.json, results);
}

static int check(const cli_page *page, struct args *a)
{
    if (a->shared.files.n == 0)
        return cli_usage(page, "no text: -f FILE says which");
    if (a->skip == 0)
        a->skip = a->window / 2;
    if (a->skip >= a->window)
        return cli_usage(page, "--skip: %u, must be below the window of %u tokens", a->skip, a->window);
    if (a->steps > 0 && strcmp(a->shared.reference, "none") != 0)
        return cli_usage(page, "--steps needs --reference none");
    if (a->steps > 0 && a->window / a->steps >= MOST_STEPS)
        return cli_usage(page, "--steps: %u of %u tokens are %u steps, at most %d", a->steps, a->window,
                         a->window / a->steps + 1, MOST_STEPS);
    return CLI_FINE;
}

static int run_all(struct job *j, const cli_page *page, cli_model_args *model)
{
    int status = eval_configs(page, &j->args->shared, j->configs, &j->n_configs);
    if (status == CLI_FINE)
        status = cli_engine_open(&j->engine, page, model);
    if (status == CLI_FINE)
        status = read_texts(j);
    model->n_ctx = j->args->window;
    if (status == CLI_FINE)
        status = open_sessions(j, page, model);
    if (status == CLI_FINE && j->args->steps > 0) {
        j->step_sums = calloc(j->n_configs * MOST_STEPS, sizeof *j->step_sums);
        if (!j->step_sums)
            status = cli_fail("no memory for %zu x %d steps", j->n_configs, MOST_STEPS);
    }
    return status == CLI_FINE ? run(j) : status;
}

int eval_perplexity(int argc, char **argv)
{
    struct args a = {.window = 1024, .shared = {.reference = "f16"}};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"Text", options, sizeof options / sizeof options[0], &a},
        {"Caches", eval_cache_options, eval_n_cache_options, &a.shared},
        {"Model", eval_model_options, eval_n_model_options, &model},
    };
    const cli_page page = {
        "eval perplexity", "-m MODEL -f FILE [options]", intro, groups, sizeof groups / sizeof groups[0], ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    status = check(&page, &a);
    if (status != CLI_FINE)
        return status;
    cli_catch_interrupt(1);
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = &a;
    status = run_all(j, &page, &model);
    if ((status == CLI_FINE || status == CLI_INTERRUPTED) && j->n_done > 0) {
        if (!a.shared.json || strcmp(a.shared.json, "-") != 0)
            print_text(j);
        if (a.shared.json && write_results(j, &model, argc, argv) != CLI_FINE)
            status = CLI_FAILED;
    }
    for (size_t i = 0; i < j->n_configs; i++)
        vq_session_close(j->tested[i]);
    vq_session_close(j->reference);
    for (size_t i = 0; i < CLI_MOST_TEXTS; i++)
        eval_text_free(&j->texts[i]);
    free(j->step_sums);
    cli_engine_close(&j->engine);
    free(j);
    return status;
}
