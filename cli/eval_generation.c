/* veloxquant eval generation: greedy texts of several prompts: how far they come before they loop, how much they
 * repeat, and how much of them is the text that the f16 cache writes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval_prompts.h"

struct args {
    eval_args shared;
    const char *texts_of;
    uint32_t n_prompts, n_prompt, n_new;
};

#define AT(field) offsetof(struct args, field)
#define SHARED_AT(field) offsetof(struct args, shared.field)

static const cli_option options[] = {
    {'f', "file", CLI_TEXTS, SHARED_AT(files), "FILE",
     "a text, UTF-8, that prompts are cut from; may be given several times", 0, 0},
    {0, "prompts", CLI_COUNT, AT(n_prompts), "N", "prompts, spread over the texts", 1, 1024},
    {'p', "prompt", CLI_COUNT, AT(n_prompt), "N", "tokens of a prompt", 1, 1048576},
    {'n', "predict", CLI_COUNT, AT(n_new), "N", "tokens that are written after each", 1, 65536},
    {0, "reference", CLI_TEXT, SHARED_AT(reference), "METHOD",
     "the cache whose texts are compared with; it never evicts. 'none' compares with nothing", 0, 0},
    {0, "texts-of", CLI_TEXT, AT(texts_of), "FILE",
     "take the reference's texts from the JSON that an earlier run with the same prompts wrote", 0, 0},
    {0, "json", CLI_TEXT, SHARED_AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const char intro[] =
    "Lets each cache go on from the same prompts, always with the likeliest token, and counts what perplexity does not "
    "show: texts that fall into a loop.\n"
    "\n"
    "A text is completed up to the token at which it begins to repeat itself to its end (two periods and 16 tokens at "
    "least), or up to its last one. Distinct is the share of sequences of 1, 2, 3 and 4 tokens that occur only once "
    "counted: low for text that repeats itself. Greedy texts of small models loop with any cache: the line of the "
    "reference says how often. The same as the reference counts places with the same token; after the first "
    "difference two texts are different texts, so `until' says when that was.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant eval generation -m model.gguf -f book.txt --kv f16 --kv velox:bits=3 --kv velox:bits=2\n"
    "  veloxquant eval generation -m model.gguf -f book.txt --prompts 16 --evict snapkv:budget=25%\n";

enum { N_GRAMS = 4 };

/* Of one configuration, over prompts. */
typedef struct counts {
    vq_moments completed, distinct[N_GRAMS], same, same_until;
    uint32_t n_ended, n_looped;
    double *each; /* [n_prompts] tokens completed */
    char *text;   /* of the first prompt */
    json_t *ids;  /* of every text */
} counts;

struct job {
    const struct args *args;
    cli_engine engine;
    eval_config configs[EVAL_MOST_CONFIGS];
    size_t n_configs;
    eval_text texts[CLI_MOST_TEXTS];
    eval_prompts prompts;
    eval_greedy *references;              /* [n_prompts]; ids NULL without a reference */
    counts counts[EVAL_MOST_CONFIGS + 1]; /* the last: the reference */
    uint64_t done, all;                   /* tokens */
    cli_progress progress;
};

static bool on_token(void *arg)
{
    struct job *j = arg;
    cli_progress_step(&j->progress, ++j->done, j->all, "");
    return !cli_interrupted();
}

static bool is_reference(const struct job *j, const eval_config *c)
{
    return !c->evict && strcmp(c->kv, j->args->shared.reference) == 0;
}

static bool has_reference(const struct job *j) { return strcmp(j->args->shared.reference, "none") != 0; }

/* The reference is compared with its texts of another run. */
static bool is_compared(const struct job *j, const eval_config *c)
{
    return has_reference(j) && (j->args->texts_of || !is_reference(j, c));
}

static void count_text(struct job *j, counts *c, const eval_greedy *g, uint32_t prompt)
{
    const size_t loop = vq_eval_loop_start(g->ids, g->n);
    c->n_looped += loop < g->n;
    c->n_ended += g->ended;
    c->each[prompt] = (double)loop;
    vq_moments_add(&c->completed, (double)loop);
    for (uint32_t k = 0; k < N_GRAMS; k++)
        vq_moments_add(&c->distinct[k], vq_eval_distinct(g->ids, g->n, k + 1));
    if (has_reference(j)) {
        vq_moments_add(&c->same, eval_greedy_same(&j->references[prompt], g));
        vq_moments_add(&c->same_until, (double)eval_greedy_same_until(&j->references[prompt], g));
    }
    if (prompt == 0 && g->text)
        c->text = strdup(g->text);
    json_t *ids = json_array();
    for (size_t i = 0; i < g->n; i++)
        json_array_append_new(ids, json_integer(g->ids[i]));
    json_array_append_new(c->ids, ids);
}

/* Of the row of the reference in an earlier run's results. */
static int take_text(eval_greedy *g, const json_t *row, uint32_t prompt, uint32_t most)
{
    const json_t *ids = json_array_get(json_object_get(row, "ids"), prompt);
    if (!ids || json_array_size(ids) > most || !eval_greedy_open(g, most))
        return CLI_FAILED;
    for (; g->n < json_array_size(ids); g->n++)
        g->ids[g->n] = (int32_t)json_integer_value(json_array_get(ids, g->n));
    return CLI_FINE;
}

static bool is_count(const json_t *row, const char *key, uint32_t n)
{
    return json_integer_value(json_object_get(row, key)) == (json_int_t)n;
}

static int read_texts(struct job *j, const char *model)
{
    const struct args *a = j->args;
    json_error_t error;
    json_t *results = json_load_file(a->texts_of, 0, &error), *found = NULL, *row;
    size_t i;
    if (!results)
        return cli_fail("%s: line %d: %s", a->texts_of, error.line, error.text);
    json_array_foreach(json_object_get(results, "rows"), i, row)
    {
        const char *kv = json_string_value(json_object_get(row, "kv"));
        const char *of = json_string_value(json_object_get(row, "model"));
        if (kv && of && strcmp(kv, a->shared.reference) == 0 && strcmp(of, model) == 0 &&
            is_count(row, "prompts", a->n_prompts) && is_count(row, "prompt_tokens", a->n_prompt) &&
            is_count(row, "predict", a->n_new))
            found = row;
    }
    int status = found ? CLI_FINE : CLI_FAILED;
    for (uint32_t k = 0; k < a->n_prompts && status == CLI_FINE; k++)
        status = take_text(&j->references[k], found, k, a->n_new);
    json_decref(results);
    return status == CLI_FINE ? CLI_FINE
                              : cli_fail("%s: no texts of %s with %s, %u prompts of %u tokens and %u more", a->texts_of,
                                         model, a->shared.reference, a->n_prompts, a->n_prompt, a->n_new);
}

/* All prompts with one cache; the reference's texts are kept. */
static int run_config(struct job *j, const cli_page *page, const cli_model_args *model, const eval_config *config,
                      counts *c, bool keep)
{
    const struct args *a = j->args;
    vq_session *s = NULL;
    eval_greedy own = {0};
    c->each = calloc(a->n_prompts, sizeof *c->each);
    c->ids = json_array();
    int status = eval_session_open(&s, &j->engine, page, model, config);
    if (status == CLI_FINE && (!c->each || (!keep && !eval_greedy_open(&own, a->n_new))))
        status = cli_fail("no memory for texts of %u tokens", a->n_new);
    for (uint32_t i = 0; i < a->n_prompts && status == CLI_FINE; i++) {
        eval_greedy *g = keep ? &j->references[i] : &own;
        const uint64_t before = j->done;
        if (keep && !eval_greedy_open(g, a->n_new))
            status = cli_fail("no memory for texts of %u tokens", a->n_new);
        if (status == CLI_FINE)
            status =
                eval_greedy_run(g, s, j->prompts.ids + (size_t)i * a->n_prompt, a->n_prompt, a->n_new, on_token, j);
        if (status == CLI_FINE)
            count_text(j, c, g, i);
        j->done = before + a->n_new;
    }
    eval_greedy_free(&own);
    vq_session_close(s);
    return status;
}

static int run_all(struct job *j, const cli_page *page, cli_model_args *model)
{
    const struct args *a = j->args;
    int status = eval_configs(page, &a->shared, j->configs, &j->n_configs);
    if (status == CLI_FINE)
        status = cli_engine_open(&j->engine, page, model);
    for (size_t i = 0; i < a->shared.files.n && status == CLI_FINE; i++)
        status = eval_text_read(&j->texts[i], a->shared.files.at[i], j->engine.model);
    if (status == CLI_FINE)
        status = eval_prompts_cut(&j->prompts, j->texts, a->shared.files.n, j->engine.model, a->n_prompts, a->n_prompt);
    model->n_ctx = a->n_prompt + a->n_new;
    j->references = calloc(a->n_prompts, sizeof *j->references);
    if (status == CLI_FINE && !j->references)
        status = cli_fail("no memory for %u prompts", a->n_prompts);
    const bool known = a->texts_of != NULL;
    if (status == CLI_FINE && known)
        status = read_texts(j, eval_model_name(model->model));
    size_t n_run = has_reference(j) && !known;
    for (size_t i = 0; i < j->n_configs; i++)
        n_run += known || !is_reference(j, &j->configs[i]);
    j->all = (uint64_t)n_run * a->n_prompts * a->n_new;
    cli_progress_start(&j->progress, "tokens");
    if (status == CLI_FINE && has_reference(j) && !known) {
        const eval_config reference = {.kv = a->shared.reference};
        status = run_config(j, page, model, &reference, &j->counts[EVAL_MOST_CONFIGS], true);
    }
    for (size_t i = 0; i < j->n_configs && status == CLI_FINE; i++)
        if (known || !is_reference(j, &j->configs[i]))
            status = run_config(j, page, model, &j->configs[i], &j->counts[i], false);
    cli_progress_end(&j->progress);
    if (status == CLI_INTERRUPTED)
        cli_say("stopped after %llu of %llu tokens", (unsigned long long)j->done, (unsigned long long)j->all);
    return status;
}

static const counts *counts_of(const struct job *j, size_t i)
{
    return &j->counts[is_reference(j, &j->configs[i]) && !j->args->texts_of ? EVAL_MOST_CONFIGS : i];
}

static void print_text(const struct job *j)
{
    const struct args *a = j->args;
    const int width = eval_name_width(j->configs, j->n_configs);
    printf("%u prompt%s of %u tokens, %u more of each\n\n", a->n_prompts, a->n_prompts == 1 ? "" : "s", a->n_prompt,
           a->n_new);
    printf("%-*s %10s %6s %6s  %-27s", width, "cache", "completed", "ended", "looped", "distinct 1, 2, 3, 4-grams");
    printf("  %s\n", has_reference(j) ? "same as the reference (until)" : "");
    for (size_t i = 0; i < j->n_configs; i++) {
        const counts *c = counts_of(j, i);
        printf("%-*s %10.1f %6u %6u ", width, j->configs[i].name, c->completed.mean, c->n_ended, c->n_looped);
        for (uint32_t k = 0; k < N_GRAMS; k++)
            printf(" %5.1f%%", 100 * c->distinct[k].mean);
        if (is_compared(j, &j->configs[i]))
            printf("  %5.1f %% (%.1f)", 100 * c->same.mean, c->same_until.mean);
        putchar('\n');
    }
}

static json_t *row_json(const struct job *j, size_t i, const char *model)
{
    const struct args *a = j->args;
    const eval_config *config = &j->configs[i];
    const counts *c = counts_of(j, i);
    json_t *each = json_array(), *distinct = json_array();
    for (uint32_t k = 0; k < a->n_prompts; k++)
        json_array_append_new(each, json_integer((json_int_t)c->each[k]));
    for (uint32_t k = 0; k < N_GRAMS; k++)
        json_array_append_new(distinct, cli_json_real(c->distinct[k].mean));
    const bool compared = is_compared(j, config);
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:s, s:O}", "kind", "generation",
        "model", model, "kv", config->kv, "evict", config->evict ? config->evict : "none", "prompts", (int)a->n_prompts,
        "prompt_tokens", (int)a->n_prompt, "predict", (int)a->n_new, "completed", each, "completed_mean",
        cli_json_real(c->completed.mean), "ended", (int)c->n_ended, "looped", (int)c->n_looped, "distinct", distinct,
        "same_tokens", compared ? cli_json_real(c->same.mean) : json_null(), "same_until",
        compared ? cli_json_real(c->same_until.mean) : json_null(), "text", c->text ? c->text : "", "ids", c->ids);
}

static int write_results(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    json_t *results = eval_results("greedy texts: tokens before a loop, repetition, tokens like those of a reference",
                                   model, j->engine.model, argc, argv);
    for (size_t i = 0; results && i < j->n_configs; i++)
        eval_add_row(results, row_json(j, i, eval_model_name(model->model)));
    return cli_json_write(j->args->shared.json, results);
}

int eval_generation(int argc, char **argv)
{
    struct args a = {.n_prompts = 8, .n_prompt = 96, .n_new = 200, .shared = {.reference = "f16"}};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"Text", options, sizeof options / sizeof options[0], &a},
        {"Caches", eval_cache_options, eval_n_cache_options, &a.shared},
        {"Model", eval_model_options, eval_n_model_options, &model},
    };
    const cli_page page = {"eval generation", "-m MODEL -f FILE [options]", intro, groups, 3, ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (a.shared.files.n == 0)
        return cli_usage(&page, "no text: -f FILE says which");
    if (a.texts_of && strcmp(a.shared.reference, "none") == 0)
        return cli_usage(&page, "--texts-of with --reference none: there is nothing to compare with");
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
    for (size_t i = 0; i <= EVAL_MOST_CONFIGS; i++) {
        free(j->counts[i].each);
        free(j->counts[i].text);
        json_decref(j->counts[i].ids);
    }
    for (uint32_t i = 0; i < a.n_prompts && j->references; i++)
        eval_greedy_free(&j->references[i]);
    free(j->references);
    eval_prompts_free(&j->prompts);
    for (size_t i = 0; i < CLI_MOST_TEXTS; i++)
        eval_text_free(&j->texts[i]);
    cli_engine_close(&j->engine);
    free(j);
    return status;
}
