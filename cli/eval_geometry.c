/* veloxquant eval attention-rank and eval anisotropy: what policies rate rows by, and the geometry behind it, on every
 * layer and head. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

struct args {
    const char *text, *calibration, *json;
    cli_texts scores;
    uint32_t n_ctx, n_prompt, n_contexts, first;
    int64_t seed;
};

#define AT(field) offsetof(struct args, field)

static const cli_option context_options[] = {
    {'f', "text", CLI_TEXT, AT(text), "FILE", "the text, UTF-8", 0, 0},
    {'c', "ctx-size", CLI_COUNT, AT(n_ctx), "N", "tokens of a context", 192, 8192},
    {0, "contexts", CLI_COUNT, AT(n_contexts), "N", "contexts, one after another in the text", 1, 4096},
    {0, "first", CLI_COUNT, AT(first), "N", "context of the text to start with (default 0)", 0, 1048576},
    {0, "json", CLI_TEXT, AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const cli_option rank_options[] = {
    {0, "calibration", CLI_TEXT, AT(calibration), "FILE",
     "what 'veloxquant calibrate' wrote, on another text; without it scores that need one are left out", 0, 0},
    {0, "score", CLI_TEXTS, AT(scores), "NAME", "a score to test; may be given several times (default: all)", 0, 0},
    {0, "prompt", CLI_COUNT, AT(n_prompt), "N",
     "tokens whose rows are rated; the queries of the rest say what they received (default: three quarters)", 64, 8191},
    {0, "seed", CLI_WHOLE, AT(seed), "N", "of the score 'random' (default 0)", 0, 9e15},
};

static const char rank_intro[] =
    "Rates the rows of a prompt by what policies keep rows by, and compares the order with the truth: the mean "
    "attention weight that each row receives from the queries of the tokens after the prompt. 1 is the same order, 0 "
    "none. Spearman's rank correlation, for each layer and kv head; four sinks are left out, as policies keep them "
    "anyway.";

static const char anisotropy_intro[] =
    "Checks what Q-Filters rest on (arXiv:2503.02812) on every layer and query head. Observation 3.1: queries lie on "
    "one side of their first singular direction, and keys on one side of it too. Observation 3.2: on all other "
    "directions their mean vanishes. Together they say that a key's projection on the direction orders keys by the "
    "attention that they receive, which the last figure measures.";

static const char rank_ending[] =
    "Examples:\n"
    "  veloxquant calibrate -m model.gguf -f one.txt -o model.calib\n"
    "  veloxquant eval attention-rank -m model.gguf -f other.txt --calibration model.calib --contexts 4\n";

static const char anisotropy_ending[] = "Examples:\n"
                                        "  veloxquant eval anisotropy -m model.gguf -f book.txt --contexts 2\n";

struct job {
    const struct args *args;
    const cli_model_args *model;
    cli_engine engine;
    eval_text text;
    vq_calibration *calibration;
    const char *names[VQ_RANK_MOST_SCORES];
    size_t n_names;
    float *rho;  /* [n_names][n_layers][n_kv_heads], sums over contexts */
    float *once; /* the same, of one context */
    uint32_t n_layers, n_heads, n_kv_heads;
    vq_anisotropy *found, *found_once; /* [n_layers][n_heads] */
    uint32_t n_done;
    cli_progress progress;
};

static bool on_layer(void *arg, size_t done, size_t all)
{
    struct job *j = arg;
    cli_progress_step(&j->progress, j->n_done * all + done, j->args->n_contexts * all, "");
    return !cli_interrupted();
}

static int open(struct job *j, const cli_page *page, const cli_model_args *model)
{
    int status = cli_engine_open(&j->engine, page, model);
    if (status == CLI_FINE)
        status = eval_text_read(&j->text, j->args->text, j->engine.model);
    if (status != CLI_FINE)
        return status;
    const vq_model_info *info = vq_model_get_info(j->engine.model);
    j->n_layers = info->n_layers;
    j->n_heads = info->n_heads;
    j->n_kv_heads = info->n_kv_heads;
    const uint64_t needed = (uint64_t)(j->args->first + j->args->n_contexts) * j->args->n_ctx;
    if (j->text.n < needed)
        return cli_fail("%s: %zu tokens, %u contexts of %u after the first %u need %llu", j->args->text, j->text.n,
                        j->args->n_contexts, j->args->n_ctx, j->args->first, (unsigned long long)needed);
    return CLI_FINE;
}

/* Runs fn for each context; what was measured until Ctrl-C stays. */
static int run_contexts(struct job *j, vq_status (*fn)(struct job *j, const int32_t *ids, vq_error *err))
{
    vq_error err;
    cli_progress_start(&j->progress, "layers");
    for (; j->n_done < j->args->n_contexts; j->n_done++) {
        const vq_status status = fn(j, j->text.ids + (size_t)(j->args->first + j->n_done) * j->args->n_ctx, &err);
        if (status == VQ_OK)
            continue;
        cli_progress_end(&j->progress);
        if (status != VQ_ERR_CANCELLED)
            return cli_fail_with(&err);
        cli_say("stopped after %u of %u contexts", j->n_done, j->args->n_contexts);
        return CLI_INTERRUPTED;
    }
    cli_progress_end(&j->progress);
    return CLI_FINE;
}

static void close(struct job *j)
{
    vq_calibration_close(j->calibration);
    free(j->rho);
    free(j->once);
    free(j->found);
    free(j->found_once);
    eval_text_free(&j->text);
    cli_engine_close(&j->engine);
}

/* ---- attention-rank ---- */
static int choose_scores(struct job *j)
{
    const struct args *a = j->args;
    vq_error err;
    if (a->calibration && vq_calibration_open(&j->calibration, a->calibration, &err) != VQ_OK)
        return cli_fail_with(&err);
    for (size_t i = 0; i < a->scores.n; i++)
        j->names[j->n_names++] = a->scores.at[i];
    for (size_t i = 0; i < vq_eval_n_rank_scores() && a->scores.n == 0; i++) {
        vq_rank_score_info info;
        vq_eval_rank_score_at(i, &info);
        if (j->calibration || !info.needs_calibration)
            j->names[j->n_names++] = info.name;
        else
            cli_say("note: '%s' needs --calibration and is left out", info.name);
    }
    const size_t n = j->n_names * j->n_layers * j->n_kv_heads;
    j->rho = calloc(n, sizeof *j->rho);
    j->once = calloc(n, sizeof *j->once);
    return j->rho && j->once ? CLI_FINE : cli_fail("no memory for %zu correlations", n);
}

static vq_status rank_context(struct job *j, const int32_t *ids, vq_error *err)
{
    const vq_rank_params p = {.ids = ids,
                              .n = j->args->n_ctx,
                              .n_prompt = j->args->n_prompt,
                              .scores = j->names,
                              .n_scores = j->n_names,
                              .calibration = j->calibration,
                              .seed = (uint64_t)j->args->seed + j->n_done,
                              .exact = j->model->exact,
                              .pool = j->engine.pool,
                              .progress = on_layer,
                              .arg = j};
    CLI_TRY(vq_eval_rank(j->engine.model, &p, j->once, err));
    for (size_t i = 0; i < j->n_names * j->n_layers * j->n_kv_heads; i++)
        j->rho[i] += j->once[i];
    return VQ_OK;
}

/* Mean and quartiles over heads of n values that are sums over contexts. */
typedef struct summary {
    double mean;
    vq_spread spread;
} summary;

static summary summarise(const float *x, size_t n, size_t stride, uint32_t n_contexts)
{
    summary s = {0};
    double *sorted = malloc(n * sizeof *sorted);
    if (!sorted)
        return s;
    for (size_t i = 0; i < n; i++) {
        sorted[i] = (double)x[i * stride] / n_contexts;
        s.mean += sorted[i] / (double)n;
    }
    s.spread = vq_spread_of(sorted, n);
    free(sorted);
    return s;
}

static json_t *heads_json(const float *x, uint32_t n_layers, uint32_t n_heads, size_t stride, uint32_t n_contexts)
{
    json_t *layers = json_array();
    for (uint32_t l = 0; l < n_layers; l++) {
        json_t *heads = json_array();
        for (uint32_t h = 0; h < n_heads; h++) {
            const double value = (double)x[((size_t)l * n_heads + h) * stride] / n_contexts;
            json_array_append_new(heads, cli_json_real(isfinite(value) ? round(value * 1e4) / 1e4 : value));
        }
        json_array_append_new(layers, heads);
    }
    return layers;
}

static json_t *figure_json(summary s)
{
    return json_pack("[o, o, o]", cli_json_real(s.mean), cli_json_real(s.spread.q1), cli_json_real(s.spread.q3));
}

static int finish_rank(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    const size_t each = (size_t)j->n_layers * j->n_kv_heads;
    json_t *results = eval_results("rank correlation of scores with the attention that rows receive later", model,
                                   j->engine.model, argc, argv);
    printf("%u context%s of %u tokens, %u of them rated; over %zu heads:\n\n%-20s %8s %8s %8s %8s\n", j->n_done,
           j->n_done == 1 ? "" : "s", j->args->n_ctx, j->args->n_prompt, each, "score", "mean", "quarter", "median",
           "quarter");
    for (size_t i = 0; i < j->n_names; i++) {
        const float *rho = j->rho + i * each;
        const summary s = summarise(rho, each, 1, j->n_done);
        printf("%-20s %8.3f %8.3f %8.3f %8.3f\n", j->names[i], s.mean, s.spread.q1, s.spread.median, s.spread.q3);
        json_t *row =
            json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:f, s:o}", "kind", "rank", "model",
                      eval_model_name(model->model), "policy", j->names[i], "contexts", (int)j->n_done, "tokens",
                      (int)j->args->n_ctx, "prompt", (int)j->args->n_prompt, "spearman", figure_json(s), "median",
                      s.spread.median, "heads", heads_json(rho, j->n_layers, j->n_kv_heads, 1, j->n_done));
        eval_add_row(results, row);
    }
    if (j->args->json)
        return cli_json_write(j->args->json, results);
    json_decref(results);
    return CLI_FINE;
}

/* ---- anisotropy ---- */
static vq_status anisotropy_context(struct job *j, const int32_t *ids, vq_error *err)
{
    const vq_anisotropy_params p = {.ids = ids,
                                    .n = j->args->n_ctx,
                                    .exact = j->model->exact,
                                    .pool = j->engine.pool,
                                    .progress = on_layer,
                                    .arg = j};
    CLI_TRY(vq_eval_anisotropy(j->engine.model, &p, j->found_once, err));
    for (size_t i = 0; i < (size_t)j->n_layers * j->n_heads; i++) {
        vq_anisotropy *sum = &j->found[i];
        const vq_anisotropy *a = &j->found_once[i];
        sum->query_share += a->query_share;
        sum->explained += a->explained;
        sum->rest += a->rest;
        sum->key_sign += a->key_sign;
        sum->key_share += a->key_share;
        sum->rank += a->rank;
    }
    return VQ_OK;
}

static int finish_anisotropy(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    static const struct {
        const char *name, *text;
        size_t offset;
    } figures[] = {
        {"queries on one side", "3.1: share of queries on their side of the direction",
         offsetof(vq_anisotropy, query_share)},
        {"energy", "     share of the queries' energy that it explains", offsetof(vq_anisotropy, explained)},
        {"keys on one side", "3.1: share of keys on their side of it", offsetof(vq_anisotropy, key_share)},
        {"other directions", "3.2: largest mean projection on another one, over this", offsetof(vq_anisotropy, rest)},
        {"keys against attention", "rank correlation: key's projection, attention", offsetof(vq_anisotropy, rank)},
    };
    const size_t n = (size_t)j->n_layers * j->n_heads, stride = sizeof(vq_anisotropy) / sizeof(float);
    json_t *results = eval_results("anisotropy of queries and keys, Observations 3.1 and 3.2 of arXiv:2503.02812",
                                   model, j->engine.model, argc, argv);
    printf("%u context%s of %u tokens, %zu query heads:\n\n%-56s %8s %8s %8s %8s %8s\n", j->n_done,
           j->n_done == 1 ? "" : "s", j->args->n_ctx, n, "", "mean", "quarter", "median", "quarter", "least");
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        const float *x = (const float *)(const void *)((const char *)j->found + figures[i].offset);
        const summary s = summarise(x, n, stride, j->n_done);
        printf("%-56s %8.3f %8.3f %8.3f %8.3f %8.3f\n", figures[i].text, s.mean, s.spread.q1, s.spread.median,
               s.spread.q3, s.spread.least);
        json_t *row =
            json_pack("{s:s, s:s, s:s, s:i, s:i, s:o, s:f, s:f, s:o}", "kind", "anisotropy", "model",
                      eval_model_name(model->model), "observation", figures[i].name, "contexts", (int)j->n_done,
                      "tokens", (int)j->args->n_ctx, "mean", figure_json(s), "median", s.spread.median, "least",
                      s.spread.least, "heads", heads_json(x, j->n_layers, j->n_heads, stride, j->n_done));
        eval_add_row(results, row);
    }
    if (j->args->json)
        return cli_json_write(j->args->json, results);
    json_decref(results);
    return CLI_FINE;
}

/* ---- both ---- */
static int check(const cli_page *page, struct args *a)
{
    if (!a->text)
        return cli_usage(page, "no text: -f FILE says which");
    if (a->n_prompt == 0)
        a->n_prompt = a->n_ctx / 4 * 3;
    if (a->n_prompt >= a->n_ctx)
        return cli_usage(page, "--prompt: %u, must be below the context of %u tokens", a->n_prompt, a->n_ctx);
    if (a->scores.n > VQ_RANK_MOST_SCORES)
        return cli_usage(page, "--score: given %zu times, at most %d", a->scores.n, VQ_RANK_MOST_SCORES);
    return CLI_FINE;
}

int eval_attention_rank(int argc, char **argv)
{
    struct args a = {.n_ctx = 1024, .n_contexts = 2};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"Text", context_options, sizeof context_options / sizeof context_options[0], &a},
        {"Scores", rank_options, sizeof rank_options / sizeof rank_options[0], &a},
        {"Model", eval_model_options, eval_n_short_model_options, &model},
    };
    const cli_page page = {
        "eval attention-rank", "-m MODEL -f TEXT [options]", rank_intro, groups, 3, rank_ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    status = check(&page, &a);
    if (status != CLI_FINE)
        return status;
    cli_catch_interrupt(1);
    struct job j = {.args = &a, .model = &model};
    status = open(&j, &page, &model);
    if (status == CLI_FINE)
        status = choose_scores(&j);
    if (status == CLI_FINE)
        status = run_contexts(&j, rank_context);
    if ((status == CLI_FINE || status == CLI_INTERRUPTED) && j.n_done > 0 &&
        finish_rank(&j, &model, argc, argv) != CLI_FINE)
        status = CLI_FAILED;
    close(&j);
    return status;
}

int eval_anisotropy(int argc, char **argv)
{
    struct args a = {.n_ctx = 1024, .n_contexts = 2};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"Text", context_options, sizeof context_options / sizeof context_options[0], &a},
        {"Model", eval_model_options, eval_n_short_model_options, &model},
    };
    const cli_page page = {
        "eval anisotropy", "-m MODEL -f TEXT [options]", anisotropy_intro, groups, 2, anisotropy_ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    status = check(&page, &a);
    if (status != CLI_FINE)
        return status;
    cli_catch_interrupt(1);
    struct job j = {.args = &a, .model = &model};
    status = open(&j, &page, &model);
    if (status == CLI_FINE) {
        j.found = calloc((size_t)j.n_layers * j.n_heads, sizeof *j.found);
        j.found_once = calloc((size_t)j.n_layers * j.n_heads, sizeof *j.found_once);
        if (!j.found || !j.found_once)
            status = cli_fail("no memory for %u heads", j.n_layers * j.n_heads);
    }
    if (status == CLI_FINE)
        status = run_contexts(&j, anisotropy_context);
    if ((status == CLI_FINE || status == CLI_INTERRUPTED) && j.n_done > 0 &&
        finish_anisotropy(&j, &model, argc, argv) != CLI_FINE)
        status = CLI_FAILED;
    close(&j);
    return status;
}
