/* veloxquant eval distortion: what caches do to the output of attention, layer by layer, in a running model. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

struct args {
    eval_args shared;
    uint32_t n_ctx, n_contexts, n_queries;
};

#define AT(field) offsetof(struct args, field)
#define SHARED_AT(field) offsetof(struct args, shared.field)

static const cli_option options[] = {
    {'f', "file", CLI_TEXTS, SHARED_AT(files), "FILE", "a text, UTF-8; may be given several times", 0, 0},
    {'c', "ctx-size", CLI_COUNT, AT(n_ctx), "N", "tokens of a context", 64, 8192},
    {0, "contexts", CLI_COUNT, AT(n_contexts), "N", "contexts of each text", 1, 4096},
    {0, "queries", CLI_COUNT, AT(n_queries), "N", "last tokens of a context whose attention is compared", 1, 8192},
    {0, "json", CLI_TEXT, SHARED_AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const char intro[] =
    "Reads a context into each cache and compares the output of attention with that of the same queries over the same "
    "rows before they were stored. The error is relative: 0.1 is a tenth of the length of what should have come out. "
    "Each layer is charged with its own error, on the rows that it gets from the layers below.\n"
    "\n"
    "A context is a prompt, so no policy has dropped anything: errors are those of the way of storing.";

static const char ending[] = "Examples:\n"
                             "  veloxquant eval distortion -m model.gguf -f book.txt --kv velox:bits=2 --kv int8\n";

struct job {
    const struct args *args;
    cli_engine engine;
    eval_config configs[EVAL_MOST_CONFIGS];
    size_t n_configs;
    eval_text texts[CLI_MOST_TEXTS];
    uint32_t n_layers;
    vq_distortion *sums, *once; /* [n_configs][n_layers] of squared errors and of cosines; [n_layers] */
    cli_cache caches[EVAL_MOST_CONFIGS];
    size_t n_done, n_all; /* contexts, over configurations */
    cli_progress progress;
};

static bool on_layer(void *arg, size_t done, size_t all)
{
    struct job *j = arg;
    cli_progress_step(&j->progress, j->n_done * all + done, j->n_all * all, "");
    return !cli_interrupted();
}

static int run_context(struct job *j, size_t i, vq_session *s, const int32_t *ids)
{
    vq_error err;
    const vq_distortion_params p = {
        .ids = ids, .n = j->args->n_ctx, .n_queries = j->args->n_queries, .progress = on_layer, .arg = j};
    const vq_status status = vq_eval_distortion(s, &p, j->once, &err);
    if (status == VQ_ERR_CANCELLED)
        return CLI_INTERRUPTED;
    if (status != VQ_OK)
        return cli_fail("%s: %s", j->configs[i].name, err.text);
    for (uint32_t l = 0; l < j->n_layers; l++) {
        vq_distortion *sum = &j->sums[i * j->n_layers + l];
        sum->error += j->once[l].error * j->once[l].error;
        sum->cosine += j->once[l].cosine;
    }
    j->n_done++;
    return CLI_FINE;
}

static int run_config(struct job *j, size_t i, const cli_page *page, const cli_model_args *model)
{
    const struct args *a = j->args;
    vq_session *s;
    int status = eval_session_open(&s, &j->engine, page, model, &j->configs[i]);
    for (size_t t = 0; t < a->shared.files.n && status == CLI_FINE; t++)
        for (uint32_t k = 0; k < a->n_contexts && status == CLI_FINE; k++)
            status = run_context(j, i, s, j->texts[t].ids + (size_t)k * a->n_ctx);
    if (status == CLI_FINE)
        cli_cache_measure(s, &j->caches[i]);
    vq_session_close(s);
    return status;
}

static int run_all(struct job *j, const cli_page *page, cli_model_args *model)
{
    const struct args *a = j->args;
    int status = eval_configs(page, &a->shared, j->configs, &j->n_configs);
    if (status == CLI_FINE)
        status = cli_engine_open(&j->engine, page, model);
    for (size_t i = 0; i < a->shared.files.n && status == CLI_FINE; i++) {
        status = eval_text_read(&j->texts[i], a->shared.files.at[i], j->engine.model);
        if (status == CLI_FINE && j->texts[i].n < (size_t)a->n_contexts * a->n_ctx)
            status = cli_fail("%s: %zu tokens, %u contexts of %u need more", a->shared.files.at[i], j->texts[i].n,
                              a->n_contexts, a->n_ctx);
    }
    if (status != CLI_FINE)
        return status;
    j->n_layers = vq_model_get_info(j->engine.model)->n_layers;
    j->sums = calloc(j->n_configs * j->n_layers, sizeof *j->sums);
    j->once = calloc(j->n_layers, sizeof *j->once);
    if (!j->sums || !j->once)
        return cli_fail("no memory for %u layers", j->n_layers);
    model->n_ctx = model->n_batch = a->n_ctx;
    j->n_all = j->n_configs * a->shared.files.n * a->n_contexts;
    cli_progress_start(&j->progress, "layers");
    for (size_t i = 0; i < j->n_configs && status == CLI_FINE; i++)
        status = run_config(j, i, page, model);
    cli_progress_end(&j->progress);
    if (status == CLI_INTERRUPTED)
        cli_say("stopped after %zu of %zu contexts", j->n_done, j->n_all);
    return status;
}

/* ---- results ---- */
static double n_each(const struct job *j) { return (double)j->n_all / (double)j->n_configs; }

static double error_of(const struct job *j, size_t i, uint32_t l)
{
    return sqrt(j->sums[i * j->n_layers + l].error / n_each(j));
}

/* Root of the mean square over layers. */
static double error_over_layers(const struct job *j, size_t i)
{
    double sum = 0;
    for (uint32_t l = 0; l < j->n_layers; l++)
        sum += j->sums[i * j->n_layers + l].error / n_each(j);
    return sqrt(sum / j->n_layers);
}

static void print_text(const struct job *j)
{
    const int width = eval_name_width(j->configs, j->n_configs);
    printf("%.0f context%s of %u tokens, attention of the last %u\n\n", n_each(j), n_each(j) > 1 ? "s" : "",
           j->args->n_ctx, j->args->n_queries);
    printf("%-*s %8s %9s %9s  %s\n", width, "cache", "bits/val", "error", "cosine", "worst layers");
    for (size_t i = 0; i < j->n_configs; i++) {
        double cosine = 0;
        uint32_t worst[3] = {0};
        for (uint32_t l = 0; l < j->n_layers; l++) {
            cosine += j->sums[i * j->n_layers + l].cosine / n_each(j) / j->n_layers;
            for (size_t k = 0; k < 3; k++)
                if (l == 0 || error_of(j, i, l) > error_of(j, i, worst[k])) {
                    memmove(worst + k + 1, worst + k, (2 - k) * sizeof *worst);
                    worst[k] = l;
                    break;
                }
        }
        printf("%-*s ", width, j->configs[i].name);
        if (j->caches[i].packed_bits > 0)
            printf("%8.3f", j->caches[i].packed_bits);
        else
            printf("%8s", "");
        printf(" %9.5f %9.6f ", error_over_layers(j, i), cosine);
        for (size_t k = 0; k < 3 && k < j->n_layers; k++)
            printf(" %u: %.5f", worst[k], error_of(j, i, worst[k]));
        putchar('\n');
    }
}

static json_t *row_json(const struct job *j, size_t i, const char *model)
{
    json_t *errors = json_array(), *cosines = json_array();
    for (uint32_t l = 0; l < j->n_layers; l++) {
        json_array_append_new(errors, cli_json_real(error_of(j, i, l)));
        json_array_append_new(cosines, cli_json_real(j->sums[i * j->n_layers + l].cosine / n_each(j)));
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:o}", "kind", "distortion", "model", model,
                     "kv", j->configs[i].kv, "evict", "none", "context", (int)j->args->n_ctx, "contexts",
                     (int)n_each(j), "queries", (int)j->args->n_queries, "packed_bits", eval_packed_bits(&j->caches[i]),
                     "error", cli_json_real(error_over_layers(j, i)), "layers", errors, "cosine", cosines);
}

static int write_results(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    json_t *results = eval_results("error of attention's output, layer by layer", model, j->engine.model, argc, argv);
    for (size_t i = 0; results && i < j->n_configs; i++)
        eval_add_row(results, row_json(j, i, eval_model_name(model->model)));
    return cli_json_write(j->args->shared.json, results);
}

int eval_distortion(int argc, char **argv)
{
    struct args a = {.n_ctx = 1024, .n_contexts = 1, .n_queries = 64};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"Text", options, sizeof options / sizeof options[0], &a},
        {"Caches", eval_cache_options, 1, &a.shared}, /* --kv alone */
        {"Model", eval_model_options, eval_n_model_options, &model},
    };
    const cli_page page = {"eval distortion", "-m MODEL -f FILE [options]", intro, groups, 3, ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (a.shared.files.n == 0)
        return cli_usage(&page, "no text: -f FILE says which");
    if (a.n_queries > a.n_ctx)
        return cli_usage(&page, "--queries: %u, must be at most the %u tokens of a context", a.n_queries, a.n_ctx);
    cli_catch_interrupt(1);
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = &a;
    status = run_all(j, &page, &model);
    if (status == CLI_FINE) {
        if (!a.shared.json || strcmp(a.shared.json, "-") != 0)
            print_text(j);
        if (a.shared.json)
            status = write_results(j, &model, argc, argv);
    }
    for (size_t i = 0; i < CLI_MOST_TEXTS; i++)
        eval_text_free(&j->texts[i]);
    free(j->sums);
    free(j->once);
    cli_engine_close(&j->engine);
    free(j);
    return status;
}
