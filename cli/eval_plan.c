/* The steps of `eval all`: what is measured, quickly or in full. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval_all.h"

/* The sizes of everything. */
typedef struct sizes {
    const char *rounds, *decode, *depths, *prompts_read; /* of speed: tokens in the cache, and of prompts */
    const char *window, *skip, *windows;                 /* of perplexity */
    const char *lengths, *within;                        /* of memory: tokens, seconds */
    const char *context, *queries;                       /* of distortion */
    const char *prompts;                                 /* of generation */
    const char *needle_lengths, *needle_depths;
    const char *new_tokens; /* of invariance */
    const char *contexts;   /* of ranks */
    const char *processes;
    const char *calibration_tokens;
} sizes;

static const sizes quick = {
    .rounds = "5",
    .decode = "16",
    .depths = "128,1024,4096",
    .prompts_read = "1024",
    .window = "512",
    .skip = "128",
    .windows = "1",
    .lengths = "1024,4096,32768",
    .within = "20",
    .context = "512",
    .queries = "32",
    .prompts = "3",
    .needle_lengths = "512,1024",
    .needle_depths = "0,50",
    .new_tokens = "16",
    .contexts = "1",
    .processes = "2",
    .calibration_tokens = "4096",
};

static const sizes full = {
    .rounds = "7",
    .decode = "16",
    .depths = "128,2048,8192",
    .prompts_read = "2048",
    .window = "1024",
    .skip = "256",
    .windows = "2",
    .lengths = "1024,2048,4096,8192,16384,32768",
    .within = "30",
    .context = "1024",
    .queries = "64",
    .prompts = "5",
    .needle_lengths = "512,1024,2048",
    .needle_depths = "0,50,100",
    .new_tokens = "24",
    .contexts = "2",
    .processes = "4",
    .calibration_tokens = "8192",
};

/* Where nobody names caches. */
static const char *const quick_methods[] = {"f16",           "int8",        "velox:bits=4",   "velox:bits=3",
                                            "velox:bits=2",  "kivi:bits=2", "trellis:bits=2", "optimal:bits=3",
                                            "optimal:bits=2"};
static const char *const full_methods[] = {
    "f16",           "int8",           "velox:bits=4",   "velox:bits=3",          "velox:bits=2",
    "kivi:bits=2",   "trellis:bits=3", "trellis:bits=2", "turboquant-mse:bits=3", "turboquant-mse:bits=2",
    "spectralquant", "optimal:bits=4", "optimal:bits=3", "optimal:bits=2",
};
static const char *const quick_policies[] = {"snapkv", "qfilters", "streaming"};
static const char *const full_policies[] = {"streaming", "snapkv", "tova", "h2o", "expected-attention", "qfilters"};

/* ---- steps ---- */

/* Names are file names: letters, digits and dashes. */
static all_step *add_step(all_plan *p, double seconds, const char *what, const char *of)
{
    if (p->n == ALL_MOST_STEPS) {
        p->failed = true;
        return NULL;
    }
    all_step *s = &p->steps[p->n++];
    *s = (all_step){.is_json = true, .seconds = seconds};
    snprintf(s->name, sizeof s->name, "%s%s%s", what, of[0] ? "-" : "", of);
    for (char *at = s->name; *at; at++)
        if (!((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z') || (*at >= '0' && *at <= '9')))
            *at = '-';
    return s;
}

static void add_word(all_plan *p, all_step *s, const char *word)
{
    char *copy = s && word && s->n_words + 1 < ALL_MOST_WORDS ? strdup(word) : NULL;
    if (!copy)
        p->failed = true;
    else
        s->words[s->n_words++] = copy;
}

/* Words up to a NULL. */
static void add_words(all_plan *p, all_step *s, ...)
{
    va_list args;
    va_start(args, s);
    for (const char *word; (word = va_arg(args, const char *));)
        add_word(p, s, word);
    va_end(args);
}

static void add_each(all_plan *p, all_step *s, const char *option, const cli_texts *texts)
{
    for (size_t i = 0; i < texts->n; i++)
        add_words(p, s, option, texts->at[i], NULL);
}

/* What every step but sharing and the report begins with. */
static all_step *add_eval(all_plan *p, const all_subject *s, double seconds, const char *eval, const char *of)
{
    char threads[16];
    all_step *step = add_step(p, seconds, eval, of);
    add_words(p, step, "eval", eval, "-m", s->args->model, NULL);
    if (s->args->n_threads > 0) {
        snprintf(threads, sizeof threads, "%u", s->args->n_threads);
        add_words(p, step, "-t", threads, NULL);
    }
    add_words(p, step, "--calibration", s->calibration, NULL);
    return step;
}

/* ---- the plan ---- */
static void add_calibration(all_plan *p, const all_subject *s, const sizes *z)
{
    all_step *step = add_step(p, 8, "calibration", "");
    add_words(p, step, "calibrate", "-m", s->args->model, "--text", s->calibration_text, "--tokens",
              z->calibration_tokens, "-o", s->calibration, NULL);
    if (step) {
        step->is_json = false;
        step->product = strdup(s->calibration);
        p->failed |= step->product == NULL;
    }
}

/* Methods run in turns in one process: side by side is what a figure of speed means.  Decoding is measured on rows that
 * were put there, which takes a fraction of the time of prompts; prompts are measured on their own. */
static void add_speed(all_plan *p, const all_subject *s, const sizes *z, const cli_texts *kv)
{
    const double each = (double)kv->n * (s->args->full ? 9 : 3);
    all_step *decode = add_eval(p, s, each, "speed", ""), *read = add_eval(p, s, each / 2, "speed", "prompt");
    add_words(p, decode, "-p", z->depths, "--fill", "-r", z->rounds, "-n", z->decode, NULL);
    add_words(p, read, "-p", z->prompts_read, "-n", "0", NULL);
    add_each(p, decode, "--kv", kv);
    add_each(p, read, "--kv", kv);
}

static void add_cache(all_plan *p, const all_subject *s, const sizes *z, const char *kv)
{
    const bool is_full = s->args->full;
    const char *windows = s->is_large ? "1" : z->windows;
    /* a trellis is searched for every row; figures are of a quiet machine with two cores */
    const bool searches = strncmp(kv, "trellis", 7) == 0 || strncmp(kv, "optimal", 7) == 0;
    all_step *step = add_eval(p, s, is_full ? 24 : 3, "perplexity", kv);
    add_words(p, step, "--exact", "-c", z->window, "--skip", z->skip, "--windows", windows, "--kv", kv, NULL);
    add_each(p, step, "-f", &s->texts);

    step = add_eval(p, s, is_full ? (searches ? 25 : 3) : (searches ? 8 : 3), "memory", kv);
    add_words(p, step, "--lengths", z->lengths, "--within", z->within, "--kv", kv, NULL);

    step = add_eval(p, s, is_full ? 4 : 1, "distortion", kv);
    add_words(p, step, "-c", z->context, "--queries", z->queries, "--kv", kv, NULL);
    add_each(p, step, "-f", &s->texts);
}

static void add_generation(all_plan *p, const all_subject *s, const sizes *z, const cli_texts *kv)
{
    const double seconds = s->args->full ? 6 : 4;
    const char *prompts = s->is_large ? "2" : z->prompts;
    char reference[4200];
    snprintf(reference, sizeof reference, "%s/generation-f16.json", s->args->dir);
    for (size_t i = 0; i <= kv->n; i++) {
        const char *method = i ? kv->at[i - 1] : "f16";
        if (i > 0 && strcmp(method, "f16") == 0)
            continue;
        all_step *step = add_eval(p, s, seconds, "generation", method);
        add_words(p, step, "--prompts", prompts, "--kv", method, NULL);
        if (i > 0)
            add_words(p, step, "--texts-of", reference, NULL);
        add_each(p, step, "-f", &s->texts);
    }
}

static void add_policies(all_plan *p, const all_subject *s)
{
    static const char *const budgets[] = {"50%", "25%", "12.5%"};
    const char *const *policies = s->args->full ? full_policies : quick_policies;
    const size_t n = s->args->full ? sizeof full_policies / sizeof full_policies[0]
                     : s->is_large ? 2
                                   : sizeof quick_policies / sizeof quick_policies[0];
    for (size_t i = 0; i < n; i++) {
        all_step *step = add_eval(p, s, 3, "perplexity", policies[i]);
        add_words(p, step, "-c", "512", "--windows", "1", "-f", s->texts.at[0], NULL);
        for (size_t b = 0; b < sizeof budgets / sizeof budgets[0]; b++) {
            char policy[96];
            snprintf(policy, sizeof policy, "%s:budget=%s,recent=32", policies[i], budgets[b]);
            add_words(p, step, "--evict", policy, NULL);
        }
    }
}

static void add_rest(all_plan *p, const all_subject *s, const sizes *z)
{
    const bool is_full = s->args->full;
    const char *text = s->texts.at[0];
    all_step *step = add_eval(p, s, is_full ? 50 : 12, "needle", "");
    add_words(p, step, "-f", text, "--lengths", z->needle_lengths, "--depths", z->needle_depths, "--trials", "1",
              "--kv", "f16", "--kv", "velox:bits=2", "--evict", "none", "--evict", "snapkv:budget=25%", NULL);

    step = add_step(p, is_full ? 8 : 4, "attention-rank", "");
    add_words(p, step, "eval", "attention-rank", "-m", s->args->model, "-f", text, "--calibration", s->calibration,
              "--contexts", z->contexts, NULL);
    step = add_step(p, is_full ? 8 : 4, "anisotropy", "");
    add_words(p, step, "eval", "anisotropy", "-m", s->args->model, "-f", text, "--contexts", z->contexts, NULL);

    step = add_eval(p, s, is_full ? 30 : 6, "invariance", "");
    add_words(p, step, "-f", text, "--kv", "f16", "--kv", "velox:bits=3", "-p", "48", "-n", z->new_tokens, NULL);
    if (!is_full)
        add_word(p, step, "--without-c");

    step = add_step(p, is_full ? 6 : 4, "sharing", "");
    add_words(p, step, "eval", "sharing", "-m", s->args->model, "--processes", z->processes, NULL);
}

void all_plan_make(all_plan *p, const all_subject *s)
{
    const sizes *z = s->args->full ? &full : &quick;
    cli_texts kv = s->args->kv;
    if (kv.n == 0) {
        const char *const *methods = s->args->full ? full_methods : quick_methods;
        kv.n = s->args->full ? sizeof full_methods / sizeof full_methods[0]
                             : sizeof quick_methods / sizeof quick_methods[0];
        memcpy(kv.at, methods, kv.n * sizeof *methods);
    }
    add_calibration(p, s, z);
    add_speed(p, s, z, &kv);
    for (size_t i = 0; i < kv.n; i++)
        add_cache(p, s, z, kv.at[i]);
    add_generation(p, s, z, &kv);
    add_policies(p, s);
    add_rest(p, s, z);
}

void all_plan_free(all_plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        for (size_t k = 0; k < p->steps[i].n_words; k++)
            free(p->steps[i].words[k]);
        free(p->steps[i].product);
    }
    p->n = 0;
}
