/* veloxquant eval needle and eval recall: does the model find facts of its context again, under every cache and policy?
 *
 * Both run contexts that are generated from a seed; all configurations see the same ones. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

struct args {
    eval_args shared;
    const char *text;
    cli_counts lengths, depths;
    uint32_t n_trials, n_questions;
    int64_t seed;
    bool asked_first;
};

#define AT(field) offsetof(struct args, field)
#define SHARED_AT(field) offsetof(struct args, shared.field)

static const cli_option needle_options[] = {
    {'f', "text", CLI_TEXT, AT(text), "FILE", "the prose that needles are hidden in, UTF-8", 0, 0},
    {0, "lengths", CLI_COUNTS, AT(lengths), "LIST", "tokens of the context", 64, 1048576},
    {0, "depths", CLI_COUNTS, AT(depths), "LIST", "where the needle stands, in percent of the context", 0, 100},
    {0, "trials", CLI_COUNT, AT(n_trials), "N", "contexts for each length and depth", 1, 10000},
};

static const cli_option recall_options[] = {
    {'f', "text", CLI_TEXT, AT(text), "FILE", "the prose that needles are hidden in, UTF-8", 0, 0},
    {0, "lengths", CLI_COUNTS, AT(lengths), "LIST", "tokens of the context", 64, 1048576},
    {0, "questions", CLI_COUNT, AT(n_questions), "N", "facts asked for in one context", 1, VQ_RECALL_MOST_QUESTIONS},
    {0, "trials", CLI_COUNT, AT(n_trials), "N", "contexts for each length and task", 1, 10000},
};

static const cli_option common_options[] = {
    {0, "asked-first", CLI_FLAG, AT(asked_first), NULL,
     "put the questions at the end of the context, so that policies see them before they drop anything", 0, 0},
    {0, "seed", CLI_WHOLE, AT(seed), "N", "of facts and places (default 1)", 0, 9e15},
    {0, "reference", CLI_TEXT, SHARED_AT(reference), "METHOD", "the cache that runs first, without a policy", 0, 0},
    {0, "json", CLI_TEXT, SHARED_AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const char needle_intro[] =
    "Hides one sentence in real prose, \"The secret word of the brave doctor is tiger.\", and asks for it after the "
    "context: a grid over the context's length and the sentence's depth. The answer comes after a policy has dropped "
    "what its budget does not allow; with --asked-first it knew the question by then.\n"
    "\n"
    "Two figures, since small models often know the word and still do not write it at once: how often the greedy "
    "output begins with the answer, and how often the answer is likelier than each of some 60 other words that "
    "could be it. The margin is the difference of these logits.";

static const char recall_intro[] =
    "Tasks after RULER (arXiv:2404.06654), sized for small models and generated from a seed: 'needles' hides a "
    "sentence for every question in real prose; 'pairs' fills the context with lines \"brave doctor: tiger\" and asks "
    "for some of them. Questions come one after another, after a policy has dropped what its budget does not allow; "
    "with --asked-first it knew them by then. Each is followed by its true answer.\n"
    "\n"
    "Exact: the greedy output begins with the answer. Chosen: the answer is likelier than each of some 60 other words "
    "that could be it. The margin is the difference of these logits.";

static const char needle_ending[] =
    "Examples:\n"
    "  veloxquant eval needle -m model.gguf -f book.txt --lengths 512,1024,2048 --kv velox:bits=2\n"
    "  veloxquant eval needle -m model.gguf -f book.txt --evict snapkv:budget=25% --asked-first\n";

static const char recall_ending[] =
    "Examples:\n"
    "  veloxquant eval recall -m model.gguf -f book.txt --lengths 1024 --questions 16 --kv velox:bits=2\n";

/* One length, depth and task under one configuration. */
typedef struct cell {
    vq_recall_task task;
    uint32_t length, depth; /* depth in percent; not used by recall */
    vq_recall_score score;
    bool whole; /* all trials were run */
} cell;

struct job {
    const struct args *args;
    bool needle;
    cli_engine engine;
    eval_config configs[EVAL_MOST_CONFIGS + 1]; /* the reference first */
    size_t n_configs;
    json_t *caches[EVAL_MOST_CONFIGS + 1]; /* what each held at the end of its last context */
    cell *cells;                           /* [n_configs][n_cells] */
    size_t n_cells;
    eval_text text;
    cli_progress progress;
    uint64_t done, all; /* tokens */
};

static const char *task_name(vq_recall_task task) { return task == VQ_RECALL_PAIRS ? "pairs" : "needles"; }

/* ---- running ---- */
static void lay_out(struct job *j)
{
    const struct args *a = j->args;
    const size_t n_kinds = j->needle ? a->depths.n : 2;
    j->n_cells = a->lengths.n * n_kinds;
    for (size_t i = 0; i < j->n_configs * j->n_cells; i++) {
        const size_t kind = i % j->n_cells % n_kinds;
        cell *c = &j->cells[i];
        c->length = a->lengths.at[i % j->n_cells / n_kinds];
        c->task = !j->needle && kind == 1 ? VQ_RECALL_PAIRS : VQ_RECALL_NEEDLES;
        c->depth = j->needle ? a->depths.at[kind] : 0;
        j->all += (uint64_t)c->length * a->n_trials;
    }
}

static int run_cell(struct job *j, vq_session *s, cell *c)
{
    const struct args *a = j->args;
    vq_error err;
    for (uint32_t i = 0; i < a->n_trials; i++) {
        const vq_recall_params p = {
            .task = c->task,
            .n_tokens = c->length,
            .n_questions = a->n_questions,
            .depth = (float)c->depth / 100,
            .asked_first = a->asked_first,
            .seed = (uint64_t)a->seed + i,
            .prose = j->text.ids,
            .n_prose = j->text.n,
        };
        if (cli_interrupted())
            return CLI_INTERRUPTED;
        if (vq_eval_recall(s, &p, &c->score, &err) != VQ_OK)
            return cli_fail_with(&err);
        j->done += c->length;
        cli_progress_step(&j->progress, j->done, j->all, "");
    }
    c->whole = true;
    return CLI_FINE;
}

static int run_config(struct job *j, size_t config, const cli_page *page, const cli_model_args *model)
{
    vq_session *s = NULL;
    int status = eval_session_open(&s, &j->engine, page, model, &j->configs[config]);
    for (size_t i = 0; i < j->n_cells && status == CLI_FINE; i++)
        status = run_cell(j, s, &j->cells[config * j->n_cells + i]);
    if (s && vq_session_n_tokens(s) > 0) {
        j->caches[config] = json_object();
        eval_add_cache(j->caches[config], s);
    }
    vq_session_close(s);
    return status;
}

static int run(struct job *j, const cli_page *page, cli_model_args *model)
{
    const struct args *a = j->args;
    int status = eval_configs(page, &a->shared, j->configs + 1, &j->n_configs);
    if (status != CLI_FINE)
        return status;
    /* the reference also stands for itself: a configuration without a policy and with its cache would repeat it */
    j->configs[0] = (eval_config){.kv = a->shared.reference};
    snprintf(j->configs[0].name, sizeof j->configs[0].name, "%s", a->shared.reference);
    size_t n = 1;
    for (size_t i = 1; i <= j->n_configs; i++)
        if (j->configs[i].evict || strcmp(j->configs[i].kv, a->shared.reference) != 0)
            j->configs[n++] = j->configs[i];
    j->n_configs = n;
    j->cells = calloc(n * a->lengths.n * (j->needle ? a->depths.n : 2), sizeof *j->cells);
    if (!j->cells)
        return cli_fail("no memory for the results of %zu configurations", n);
    lay_out(j);
    status = cli_engine_open(&j->engine, page, model);
    if (status == CLI_FINE)
        status = eval_text_read(&j->text, a->text, j->engine.model);
    uint32_t most = 0;
    for (size_t i = 0; i < a->lengths.n; i++)
        most = a->lengths.at[i] > most ? a->lengths.at[i] : most;
    model->n_ctx = most + a->n_questions * VQ_RECALL_QUESTION_ROOM;
    cli_progress_start(&j->progress, "tokens");
    for (size_t i = 0; i < j->n_configs && status == CLI_FINE; i++)
        status = run_config(j, i, page, model);
    cli_progress_end(&j->progress);
    if (status == CLI_INTERRUPTED)
        cli_say("stopped after %llu of %llu tokens", (unsigned long long)j->done, (unsigned long long)j->all);
    return status;
}

/* ---- results ---- */
static const cell *cell_at(const struct job *j, size_t config, size_t length, size_t kind)
{
    const size_t n_kinds = j->n_cells / j->args->lengths.n;
    return &j->cells[config * j->n_cells + length * n_kinds + kind];
}

/* A row for each depth or task, a column for each length. */
static void print_grid(const struct job *j, size_t config)
{
    const struct args *a = j->args;
    const size_t n_kinds = j->n_cells / a->lengths.n;
    printf("%s: exact, chosen, margin by %s and tokens of the context\n  %-8s", j->configs[config].name,
           j->needle ? "depth" : "task", "");
    for (size_t l = 0; l < a->lengths.n; l++)
        printf("  %20u", a->lengths.at[l]);
    putchar('\n');
    for (size_t k = 0; k < n_kinds; k++) {
        char name[16];
        if (j->needle)
            snprintf(name, sizeof name, "%u %%", a->depths.at[k]);
        else
            snprintf(name, sizeof name, "%s", k == 1 ? "pairs" : "needles");
        printf("  %-8s", name);
        for (size_t l = 0; l < a->lengths.n; l++) {
            const vq_recall_score *s = &cell_at(j, config, l, k)->score;
            char text[40] = "-";
            if (s->exact.n > 0)
                snprintf(text, sizeof text, "%3.0f %% %3.0f %% %6.2f", 100 * s->exact.mean, 100 * s->chosen.mean,
                         s->margin.mean);
            printf("  %20s", text);
        }
        putchar('\n');
    }
}

/* A model that does not find the needle with all of its cache says nothing about a policy. */
static void print_limit(const struct job *j)
{
    const size_t n_kinds = j->n_cells / j->args->lengths.n;
    printf("%s without a policy:", j->configs[0].name);
    for (size_t k = 0; k < (j->needle ? 1 : n_kinds); k++) {
        uint32_t exact = 0, chosen = 0; /* longest lengths up to which half of the answers are right */
        bool exact_ends = false, chosen_ends = false;
        for (size_t l = 0; l < j->args->lengths.n; l++) {
            vq_recall_score all = {0};
            for (size_t i = 0; i < (j->needle ? n_kinds : 1); i++) {
                vq_moments_merge(&all.exact, &cell_at(j, 0, l, k + i)->score.exact);
                vq_moments_merge(&all.chosen, &cell_at(j, 0, l, k + i)->score.chosen);
            }
            exact_ends = exact_ends || all.exact.n == 0 || all.exact.mean < 0.5;
            chosen_ends = chosen_ends || all.chosen.n == 0 || all.chosen.mean < 0.5;
            exact = exact_ends ? exact : j->args->lengths.at[l];
            chosen = chosen_ends ? chosen : j->args->lengths.at[l];
        }
        printf("\n  %s%shalf of the answers are exact up to %u tokens%s, chosen up to %u%s",
               j->needle ? "" : task_name(cell_at(j, 0, 0, k)->task), j->needle ? "" : ": ", exact,
               exact_ends ? "" : " and maybe beyond", chosen, chosen_ends ? "" : " and maybe beyond");
    }
    printf("\n  guessing among %u words chooses 1 in %u.\n", j->cells[0].score.n_words, j->cells[0].score.n_words);
}

static json_t *row_json(const struct job *j, size_t config, const cell *c, const char *model)
{
    const eval_config *e = &j->configs[config];
    const vq_recall_score *s = &c->score;
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:b, s:i, s:i}", "kind", j->needle ? "needle" : "recall",
                            "model", model, "kv", e->kv, "evict", e->evict ? e->evict : "none", "length",
                            (int)c->length, "answers", (json_int_t)s->exact.n, "asked_first", (int)j->args->asked_first,
                            "words", (int)s->n_words, "facts", (int)s->n_facts);
    if (!row)
        return NULL;
    if (j->needle)
        json_object_set_new(row, "depth", json_integer(c->depth));
    else
        json_object_set_new(row, "task", json_string(task_name(c->task)));
    json_object_set_new(row, "exact", cli_json_real(s->exact.mean));
    json_object_set_new(row, "chosen", cli_json_real(s->chosen.mean));
    json_object_set_new(row, "log_p", eval_interval(s->log_p.mean, vq_moments_error(&s->log_p), false));
    json_object_set_new(row, "margin", eval_interval(s->margin.mean, vq_moments_error(&s->margin), false));
    if (j->caches[config])
        json_object_update(row, j->caches[config]);
    return row;
}

static int write_results(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    json_t *results = eval_results(j->needle ? "one needle in prose, by length and depth"
                                             : "needles in prose and key-value pairs, asked one after another",
                                   model, j->engine.model, argc, argv);
    for (size_t i = 0; results && i < j->n_configs * j->n_cells; i++)
        if (j->cells[i].whole)
            eval_add_row(results, row_json(j, i / j->n_cells, &j->cells[i], eval_model_name(model->model)));
    return cli_json_write(j->args->shared.json, results);
}

static int run_and_print(const cli_page *page, const struct args *a, cli_model_args *model, bool needle, int argc,
                         char **argv)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = a;
    j->needle = needle;
    int status = run(j, page, model);
    if ((status == CLI_FINE || status == CLI_INTERRUPTED) && j->done > 0) {
        for (size_t i = 0; i < j->n_configs; i++)
            print_grid(j, i);
        print_limit(j);
        if (a->shared.json && write_results(j, model, argc, argv) != CLI_FINE)
            status = CLI_FAILED;
    }
    for (size_t i = 0; i < j->n_configs; i++)
        json_decref(j->caches[i]);
    free(j->cells);
    eval_text_free(&j->text);
    cli_engine_close(&j->engine);
    free(j);
    return status;
}

static int command(const char *name, bool needle, struct args *a, const cli_option *options, size_t n_options,
                   const char *intro, const char *ending, int argc, char **argv)
{
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"Contexts", options, n_options, a},
        {"Run", common_options, sizeof common_options / sizeof common_options[0], a},
        {"Caches", eval_cache_options, eval_n_cache_options, &a->shared},
        {"Model", eval_model_options, eval_n_model_options, &model},
    };
    const cli_page page = {
        name, "-m MODEL -f TEXT [options]", intro, groups, sizeof groups / sizeof groups[0], ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (!a->text)
        return cli_usage(&page, "no text: -f FILE says which");
    cli_catch_interrupt(1);
    return run_and_print(&page, a, &model, needle, argc, argv);
}

int eval_needle(int argc, char **argv)
{
    struct args a = {.shared = {.reference = "f16"},
                     .lengths = {{512, 1024, 2048}, 3},
                     .depths = {{0, 25, 50, 75, 100}, 5},
                     .n_trials = 4,
                     .n_questions = 1,
                     .seed = 1};
    return command("eval needle", true, &a, needle_options, sizeof needle_options / sizeof needle_options[0],
                   needle_intro, needle_ending, argc, argv);
}

int eval_recall(int argc, char **argv)
{
    struct args a = {
        .shared = {.reference = "f16"}, .lengths = {{512, 1024, 2048}, 3}, .n_trials = 4, .n_questions = 8, .seed = 1};
    return command("eval recall", false, &a, recall_options, sizeof recall_options / sizeof recall_options[0],
                   recall_intro, recall_ending, argc, argv);
}
