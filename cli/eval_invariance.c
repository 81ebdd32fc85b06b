/* veloxquant eval invariance: is a text the same whatever computes it?  With other numbers of threads and other sizes
 * of a pass it must be, to the byte.  Tiers of kernels round differently: how much of a text they share is reported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval_prompts.h"

struct args {
    eval_args shared;
    uint32_t n_prompt, n_new;
    bool without_c;
};

#define AT(field) offsetof(struct args, field)
#define SHARED_AT(field) offsetof(struct args, shared.field)

static const cli_option options[] = {
    {'f', "file", CLI_TEXTS, SHARED_AT(files), "FILE", "a text, UTF-8, that the prompt is cut from", 0, 0},
    {'p', "prompt", CLI_COUNT, AT(n_prompt), "N", "tokens of the prompt", 1, 1048576},
    {'n', "predict", CLI_COUNT, AT(n_new), "N", "tokens that are written after it", 1, 65536},
    {0, "without-c", CLI_FLAG, AT(without_c), NULL, "leave out the plain C kernels, which are slow", 0, 0},
    {0, "json", CLI_TEXT, SHARED_AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const char intro[] =
    "Lets each cache go on from one prompt, always with the likeliest token, and does it again: with one thread and "
    "several, with prompts in passes of other sizes, and with the kernels of every CPU tier below this machine's. "
    "Threads and passes must not change a byte: if they do, that is said and the status is 1. Tiers may: sums come in "
    "another order.\n"
    "\n"
    "Same is the share of places with the same token; once a token differs two texts are different texts. So same "
    "given text says how often the likeliest token is the same after the same tokens.";

static const char ending[] = "Examples:\n"
                             "  veloxquant eval invariance -m model.gguf -f book.txt --kv f16 --kv velox:bits=3\n";

/* A way of computing the same. */
typedef struct way {
    char name[32];
    uint32_t n_threads, n_batch;
    const char *tier; /* ceiling; NULL: none */
    bool must_be_same;
} way;

enum { MOST_WAYS = 16 };

typedef struct finding {
    double same, same_until, same_top;
    bool identical, done;
} finding;

struct job {
    const struct args *args;
    const cli_model_args *model;
    const cli_page *page;
    int argc;
    char **argv;
    eval_config configs[EVAL_MOST_CONFIGS];
    size_t n_configs;
    way ways[MOST_WAYS]; /* the first is what the others are compared with */
    size_t n_ways;
    finding findings[EVAL_MOST_CONFIGS][MOST_WAYS];
    eval_prompts prompt;
    int32_t *ids; /* [n_prompt + n_new]: the prompt, then the first way's text */
    json_t *head; /* of the results: it also knows the machine's tiers */
    uint64_t done, all;
    cli_progress progress;
};

static bool on_token(void *arg)
{
    struct job *j = arg;
    cli_progress_step(&j->progress, ++j->done, j->all, "");
    return !cli_interrupted();
}

/* ---- ways ---- */
static void add_way(struct job *j, const char *name, uint32_t n_threads, uint32_t n_batch, const char *tier,
                    bool must_be_same)
{
    way *w = &j->ways[j->n_ways++];
    *w = (way){.n_threads = n_threads, .n_batch = n_batch, .tier = tier, .must_be_same = must_be_same};
    snprintf(w->name, sizeof w->name, "%s", name);
}

static void list_ways(struct job *j)
{
    const json_t *tiers = json_object_get(json_object_get(j->head, "machine"), "tiers"), *tier;
    const uint32_t n_batch = j->model->n_batch;
    size_t i;
    add_way(j, "1 thread", 1, n_batch, NULL, true);
    add_way(j, "2 threads", 2, n_batch, NULL, true);
    add_way(j, "3 threads, passes of 64", 3, 64, NULL, true);
    add_way(j, "passes of 7", 1, 7, NULL, true);
    add_way(j, "passes of 1", 1, 1, NULL, true);
    if (getenv("VQ_CPU")) /* somebody chose a tier */
        return;
    if (json_array_size(tiers) > 0 && !j->args->without_c)
        add_way(j, "tier c", 2, n_batch, "c", false);
    /* the last one is what the first way runs on */
    json_array_foreach(tiers, i, tier) if (i + 1 < json_array_size(tiers) && j->n_ways < MOST_WAYS)
    {
        char name[32];
        snprintf(name, sizeof name, "tier %.20s", json_string_value(tier));
        add_way(j, name, 2, n_batch, json_string_value(tier), false);
    }
}

/* ---- running ---- */
struct tops {
    const int32_t *ids; /* [n] what came next in the first way */
    size_t n, n_same, n_vocab;
};

static bool compare_top(void *arg, size_t index, const float *logits)
{
    struct tops *t = arg;
    size_t best = 0;
    (void)index;
    for (size_t i = 1; i < t->n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    t->n_same += (int32_t)best == *t->ids++;
    t->n++;
    return true;
}

/* The likeliest tokens after each token of the first way's text. */
static int compare_given_text(struct job *j, vq_session *s, size_t n_text, finding *f)
{
    vq_error err;
    const uint32_t n_prompt = j->args->n_prompt;
    struct tops tops = {.ids = j->ids + n_prompt, .n_vocab = vq_model_get_info(vq_session_model(s))->n_vocab};
    if (vq_session_truncate(s, 0, &err) != VQ_OK ||
        vq_session_eval(s, j->ids, n_prompt, compare_top, n_prompt - 1, &tops, &err) != VQ_OK ||
        (n_text > 1 && vq_session_decode(s, j->ids + n_prompt, n_text - 1, compare_top, 0, &tops, &err) != VQ_OK))
        return cli_fail_with(&err);
    f->same_top = (double)tops.n_same / (double)tops.n;
    return CLI_FINE;
}

/* The text of a way into *to, and what it shares with the first one's. */
static int run_way(struct job *j, size_t config, size_t i, eval_greedy *first, eval_greedy *to)
{
    const way *w = &j->ways[i];
    finding *f = &j->findings[config][i];
    cli_model_args model = *j->model;
    cli_engine e = {0};
    vq_session *s = NULL;
    model.n_threads = w->n_threads;
    model.n_batch = w->n_batch;
    model.n_ctx = j->args->n_prompt + j->args->n_new;
    /* read when objects are opened, and all of them are opened here; no other thread runs now */
    if (w->tier)
        setenv("VQ_CPU", w->tier, 1);
    int status = cli_engine_open(&e, j->page, &model);
    if (status == CLI_FINE)
        status = eval_session_open(&s, &e, j->page, &model, &j->configs[config]);
    if (w->tier)
        unsetenv("VQ_CPU");
    if (status == CLI_FINE)
        status = eval_greedy_run(to, s, j->prompt.ids, j->args->n_prompt, j->args->n_new, on_token, j);
    if (status == CLI_FINE && i == 0) {
        memcpy(j->ids, j->prompt.ids, j->args->n_prompt * sizeof *j->ids);
        memcpy(j->ids + j->args->n_prompt, to->ids, to->n * sizeof *j->ids);
    }
    if (status == CLI_FINE)
        status = compare_given_text(j, s, first->n, f);
    if (status == CLI_FINE) {
        f->same = eval_greedy_same(first, to);
        f->same_until = (double)eval_greedy_same_until(first, to);
        f->identical = first->n == to->n && f->same_until == (double)first->n && strcmp(first->text, to->text) == 0;
        f->done = true;
    }
    vq_session_close(s);
    cli_engine_close(&e);
    return status;
}

static int read_prompt(struct job *j)
{
    cli_engine e = {0};
    eval_text text = {0};
    int status = cli_engine_open(&e, j->page, j->model);
    if (status == CLI_FINE)
        status = eval_text_read(&text, j->args->shared.files.at[0], e.model);
    if (status == CLI_FINE)
        status = eval_prompts_cut(&j->prompt, &text, 1, e.model, 1, j->args->n_prompt);
    if (status == CLI_FINE) {
        j->head = eval_results("the same text by other numbers of threads, other passes and other CPU tiers", j->model,
                               e.model, j->argc, j->argv);
        status = j->head ? CLI_FINE : cli_fail("no memory for the results");
    }
    eval_text_free(&text);
    cli_engine_close(&e);
    return status;
}

static int run_all(struct job *j)
{
    eval_greedy first = {0}, other = {0};
    int status = eval_configs(j->page, &j->args->shared, j->configs, &j->n_configs);
    if (status == CLI_FINE)
        status = read_prompt(j);
    if (status != CLI_FINE)
        return status;
    list_ways(j);
    j->ids = calloc((size_t)j->args->n_prompt + j->args->n_new, sizeof *j->ids);
    if (!j->ids || !eval_greedy_open(&first, j->args->n_new) || !eval_greedy_open(&other, j->args->n_new))
        status = cli_fail("no memory for texts of %u tokens", j->args->n_new);
    j->all = (uint64_t)j->n_configs * j->n_ways * j->args->n_new;
    cli_progress_start(&j->progress, "tokens");
    for (size_t c = 0; c < j->n_configs; c++)
        for (size_t i = 0; i < j->n_ways && status == CLI_FINE; i++)
            status = run_way(j, c, i, &first, i ? &other : &first);
    cli_progress_end(&j->progress);
    if (status == CLI_INTERRUPTED)
        cli_say("stopped after %llu of %llu tokens", (unsigned long long)j->done, (unsigned long long)j->all);
    eval_greedy_free(&first);
    eval_greedy_free(&other);
    return status;
}

/* ---- results ---- */
static void print_text(const struct job *j)
{
    const int width = eval_name_width(j->configs, j->n_configs);
    printf("a prompt of %u tokens and %u more, against %s, passes of %u\n\n", j->args->n_prompt, j->args->n_new,
           j->ways[0].name, j->ways[0].n_batch);
    printf("%-*s  %-24s %8s %8s %16s\n", width, "cache", "computed with", "same", "until", "same given text");
    for (size_t c = 0; c < j->n_configs; c++)
        for (size_t i = 1; i < j->n_ways; i++) {
            const finding *f = &j->findings[c][i];
            printf("%-*s  %-24s %7.1f%% %8.0f %15.1f%%  %s\n", width, j->configs[c].name, j->ways[i].name,
                   100 * f->same, f->same_until, 100 * f->same_top,
                   f->identical              ? "identical"
                   : j->ways[i].must_be_same ? "DIFFERS, and must not"
                                             : "");
        }
}

static void add_rows(const struct job *j)
{
    for (size_t c = 0; c < j->n_configs; c++)
        for (size_t i = 1; i < j->n_ways; i++) {
            const finding *f = &j->findings[c][i];
            const eval_config *config = &j->configs[c];
            eval_add_row(j->head, json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:f, s:f, s:f, s:b, s:b}", "kind",
                                            "invariance", "model", eval_model_name(j->model->model), "kv", config->kv,
                                            "evict", config->evict ? config->evict : "none", "what", j->ways[i].name,
                                            "tokens", (int)j->args->n_new, "same_tokens", f->same, "same_until",
                                            f->same_until, "same_top", f->same_top, "identical", (int)f->identical,
                                            "must_be_identical", (int)j->ways[i].must_be_same));
        }
}

/* Status 1 and the first thing that differs where nothing may. */
static int judge(const struct job *j)
{
    for (size_t c = 0; c < j->n_configs; c++)
        for (size_t i = 0; i < j->n_ways; i++) {
            const finding *f = &j->findings[c][i];
            if (j->ways[i].must_be_same && (!f->identical || f->same_top < 1))
                return cli_fail("%s: with %s the text differs after %.0f tokens; it must not depend on threads and "
                                "passes",
                                j->configs[c].name, j->ways[i].name, f->same_until);
        }
    return CLI_FINE;
}

int eval_invariance(int argc, char **argv)
{
    struct args a = {.n_prompt = 96, .n_new = 64};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"Text", options, sizeof options / sizeof options[0], &a},
        {"Caches", eval_cache_options, eval_n_cache_options, &a.shared},
        {"Model", eval_model_options, eval_n_model_options, &model},
    };
    const cli_page page = {"eval invariance", "-m MODEL -f FILE [options]", intro, groups, 3, ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (a.shared.files.n == 0)
        return cli_usage(&page, "no text: -f FILE says which");
    cli_catch_interrupt(1);
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = &a;
    j->model = &model;
    j->page = &page;
    j->argc = argc;
    j->argv = argv;
    status = run_all(j);
    if (status == CLI_FINE) {
        if (!a.shared.json || strcmp(a.shared.json, "-") != 0)
            print_text(j);
        add_rows(j);
        if (a.shared.json)
            status = cli_json_write(a.shared.json, json_incref(j->head));
        const int judged = judge(j);
        status = status == CLI_FINE ? judged : status;
    }
    json_decref(j->head);
    eval_prompts_free(&j->prompt);
    free(j->ids);
    free(j);
    return status;
}
