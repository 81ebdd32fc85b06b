/* The panels of the report.  A panel looks at a row of a results file and adds a point to a figure if the row is its
 * own; a new panel is a function and a line in the table at the end. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rows ---- */
static const char *text(const json_t *row, const char *key)
{
    const char *s = json_string_value(json_object_get(row, key));
    return s ? s : "";
}

static double number(const json_t *row, const char *key)
{
    const json_t *x = json_object_get(row, key);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

static bool is(const json_t *row, const char *kind) { return strcmp(text(row, "kind"), kind) == 0; }

typedef struct interval {
    double value, low, high;
} interval;

/* [value, low, high], {"median", "q1", "q3"} or a number alone. */
static interval interval_of(const json_t *x)
{
    if (json_is_array(x))
        return (interval){json_number_value(json_array_get(x, 0)), json_number_value(json_array_get(x, 1)),
                          json_number_value(json_array_get(x, 2))};
    if (json_is_object(x))
        return (interval){number(x, "median"), number(x, "q1"), number(x, "q3")};
    const double value = json_is_number(x) ? json_number_value(x) : NAN;
    return (interval){value, value, value};
}

/* SmolLM2-135M-Instruct.Q4_1.gguf -> SmolLM2-135M-Instruct.Q4_1 */
static const char *model_of(const json_t *row, char out[FIG_NAME])
{
    snprintf(out, FIG_NAME, "%s", text(row, "model"));
    char *end = strrchr(out, '.');
    if (end && strcmp(end, ".gguf") == 0)
        *end = 0;
    return out;
}

/* "snapkv" of "snapkv:budget=25%,recent=32" */
static const char *name_of(const char *spec, char out[FIG_NAME])
{
    snprintf(out, FIG_NAME, "%.*s", (int)strcspn(spec, ":"), spec);
    return out;
}

/* A method without its number of bits: "velox:bits=2,mean=0" -> "velox:mean=0". */
static const char *family_of(const char *spec, char out[FIG_NAME])
{
    const char *at = strstr(spec, "bits=");
    if (!at || at == spec || (at[-1] != ':' && at[-1] != ',')) {
        snprintf(out, FIG_NAME, "%s", spec);
        return out;
    }
    const char *rest = at + strcspn(at, ",");
    /* what separates the option goes with it */
    snprintf(out, FIG_NAME, "%.*s%s", (int)(at - spec - (*rest ? 0 : 1)), spec, *rest ? rest + 1 : "");
    return out;
}

/* The number of an option of a policy or method; NaN without it. */
static double option_of(const char *spec, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = strchr(spec, ':'); at; at = strchr(at, ','))
        if (strncmp(++at, name, n) == 0 && at[n] == '=')
            return strtod(at + n + 1, NULL);
    return NAN;
}

static bool evicts(const json_t *row) { return text(row, "evict")[0] && strcmp(text(row, "evict"), "none") != 0; }

/* A cache as legends name it: what is not there is not said. */
static const char *cache_of(const json_t *row, char out[FIG_NAME])
{
    const char *kv = text(row, "kv"), *evict = text(row, "evict");
    char policy[FIG_NAME];
    const double budget = option_of(evict, "budget");
    if (!evicts(row))
        snprintf(out, FIG_NAME, "%s", kv);
    else if (isfinite(budget))
        snprintf(out, FIG_NAME, "%.30s%s%.30s %g%s", strcmp(kv, "f16") == 0 ? "" : kv,
                 strcmp(kv, "f16") == 0 ? "" : ", ", name_of(evict, policy), budget,
                 strchr(evict, '%') ? " %" : " tokens");
    else
        snprintf(out, FIG_NAME, "%s, %s", kv, evict);
    return out;
}

/* ---- figures ---- */

/* File names: letters, digits and dashes. */
static void make_id(char out[FIG_NAME], const char *a, const char *b, const char *c)
{
    snprintf(out, FIG_NAME, "%s%s%s%s%s", a, b[0] ? "-" : "", b, c[0] ? "-" : "", c);
    for (char *at = out; *at; at++) {
        if (*at >= 'A' && *at <= 'Z')
            *at = (char)(*at - 'A' + 'a');
        else if (!((*at >= 'a' && *at <= 'z') || (*at >= '0' && *at <= '9')))
            *at = '-';
    }
}

typedef struct plan {
    fig_kind kind;
    const char *id, *title, *x_label, *y_label, *note, *format;
    bool log_x, log_y;
    double least, most;
} plan;

/* The figure of a plan for a model (and a further part of its name), made when it is new; NULL when there is no room.
 */
static figure *figure_of(report *r, const plan *p, const char *model, const char *part, const char *source)
{
    char id[FIG_NAME];
    make_id(id, p->id, model, part);
    figure *f = NULL;
    for (size_t i = 0; i < r->n_figures && !f; i++)
        if (strcmp(r->figures[i]->id, id) == 0)
            f = r->figures[i];
    if (!f) {
        f = r->n_figures < REPORT_MOST_FIGURES ? calloc(1, sizeof *f) : NULL;
        if (!f) {
            r->failed = true;
            return NULL;
        }
        *f = (figure){.kind = p->kind,
                      .x_label = p->x_label,
                      .y_label = p->y_label,
                      .note = p->note,
                      .log_x = p->log_x,
                      .log_y = p->log_y,
                      .format = p->format,
                      .least = p->least,
                      .most = p->most};
        memcpy(f->id, id, sizeof f->id);
        snprintf(f->title, sizeof f->title, "%s%s%s%s%s", p->title, model[0] ? ": " : "", model, part[0] ? ", " : "",
                 part);
        r->figures[r->n_figures++] = f;
    }
    fig_name(f, &f->sources, source);
    return f;
}

/* ---- eviction ---- */
static bool take_budgets(report *r, const json_t *row, const char *source)
{
    static const plan p = {FIG_LINES,
                           "eviction",
                           "Eviction: perplexity against budget",
                           "rows kept, % of the context",
                           "perplexity, times that of the whole cache",
                           "Generation order: the first half of a window is the prompt, the rest is scored token by "
                           "token while the policy works. Lower is better; bars are 95 % intervals.",
                           "%.3f",
                           true,
                           true,
                           0,
                           0};
    char model[FIG_NAME], policy[FIG_NAME];
    const double budget = option_of(text(row, "evict"), "budget");
    if (!is(row, "perplexity") || !evicts(row) || strcmp(text(row, "kv"), "f16") != 0 || !isfinite(budget))
        return false;
    const interval y = interval_of(json_object_get(row, "ppl_ratio"));
    figure *f = figure_of(r, &p, model_of(row, model), "", source);
    if (f)
        fig_add(f, name_of(text(row, "evict"), policy), budget, y.value, y.low, y.high);
    return true;
}

static bool take_recent(report *r, const json_t *row, const char *source)
{
    static const plan p = {FIG_LINES,
                           "recent",
                           "Q-Filters: how many recent rows must stay",
                           "recent rows that always stay",
                           "perplexity, times that of the whole cache",
                           "The budget is the same along a line: recent rows take the place of rows that the filter "
                           "would have kept. Lower is better.",
                           "%.3f",
                           false,
                           true,
                           0,
                           0};
    char model[FIG_NAME], name[FIG_NAME], policy[FIG_NAME];
    if (!is(row, "recent"))
        return false;
    const char *evict = text(row, "evict");
    const interval y = interval_of(json_object_get(row, "ppl_ratio"));
    snprintf(name, sizeof name, "%.40s, budget %g%s", name_of(evict, policy), option_of(evict, "budget"),
             strchr(evict, '%') ? " %" : " tokens");
    figure *f = figure_of(r, &p, model_of(row, model), "", source);
    if (f)
        fig_add(f, name, option_of(evict, "recent"), y.value, y.low, y.high);
    return true;
}

static bool take_grid(report *r, const json_t *row, const char *source)
{
    static const plan p = {FIG_LINES,
                           "grid",
                           "Eviction times quantisation",
                           "bytes of cache for a token of the text",
                           "perplexity, times that of the whole f16 cache",
                           "A line is one way of storing, its points are the budgets. Lower left is better: where a "
                           "line of fewer bits lies below, quantising costs less than dropping.",
                           "%.3f",
                           true,
                           true,
                           0,
                           0};
    char model[FIG_NAME], policy[FIG_NAME];
    if (!is(row, "grid"))
        return false;
    const interval y = interval_of(json_object_get(row, "ppl_ratio"));
    figure *f = figure_of(r, &p, model_of(row, model), name_of(text(row, "policy"), policy), source);
    if (f)
        fig_add(f, text(row, "kv"), number(row, "bytes_per_token"), y.value, y.low, y.high);
    return true;
}

static bool take_stream(report *r, const json_t *row, const char *source)
{
    static const plan p = {FIG_LINES,
                           "stream",
                           "Generating on, beyond the trained context",
                           "token of the text",
                           "perplexity of the tokens since the last point",
                           "Flat means that the text could go on for ever. Steps differ because the text does.",
                           "%.2f",
                           false,
                           true,
                           0,
                           0};
    char model[FIG_NAME];
    const json_t *steps = json_object_get(row, "steps"), *step;
    size_t i;
    if (!is(row, "stream"))
        return false;
    figure *f = figure_of(r, &p, model_of(row, model), "", source);
    json_array_foreach(steps, i, step)
    {
        const double y = number(step, "ppl"), error = number(step, "ppl_error");
        if (f)
            fig_add(f, evicts(row) ? text(row, "evict") : text(row, "kv"), number(step, "from"), y, y - 1.96 * error,
                    y + 1.96 * error);
    }
    return true;
}

/* ---- finding again ---- */
static bool take_needle(report *r, const json_t *row, const char *source)
{
    static const plan plans[] = {
        {FIG_HEAT, "needle-chosen", "Needle: the right word of 64", "tokens of the context", "depth",
         "Share of trials in which the hidden word was likelier than 63 others, in percent; guessing gives 2.", "%.0f",
         false, false, 0, 100},
        {FIG_HEAT, "needle-exact", "Needle: exact answer", "tokens of the context", "depth",
         "Share of trials in which greedy output began with the hidden word, in percent.", "%.0f", false, false, 0,
         100},
    };
    char model[FIG_NAME], cache[FIG_NAME], column[32], depth[32];
    if (!is(row, "needle"))
        return false;
    snprintf(column, sizeof column, "%.0f", number(row, "length"));
    snprintf(depth, sizeof depth, "%.0f %%", number(row, "depth"));
    for (size_t i = 0; i < 2; i++) {
        figure *f = figure_of(r, &plans[i], model_of(row, model), "", source);
        if (f)
            fig_add_cell(f, cache_of(row, cache), column, depth, 100 * number(row, i == 0 ? "chosen" : "exact"));
    }
    return true;
}

static bool take_recall(report *r, const json_t *row, const char *source)
{
    static const plan p = {FIG_BARS,
                           "recall",
                           "Recall: the right word of 64",
                           "task and tokens of the context",
                           "answers chosen, %",
                           "Several needles, and key-value pairs, asked for one after another after the policy has "
                           "worked. Higher is better.",
                           "%.0f",
                           false,
                           false,
                           0,
                           0};
    char model[FIG_NAME], cache[FIG_NAME], column[64];
    if (!is(row, "recall"))
        return false;
    snprintf(column, sizeof column, "%s, %.0f", text(row, "task"), number(row, "length"));
    const double y = 100 * number(row, "chosen");
    figure *f = figure_of(r, &p, model_of(row, model), "", source);
    if (f)
        fig_add_bar(f, cache_of(row, cache), column, y, y, y);
    return true;
}

/* ---- what policies look at ---- */

/* "heads": [layer][head] of rank correlations. */
static bool take_rank(report *r, const json_t *row, const char *source)
{
    static const plan means = {FIG_BARS,
                               "rank",
                               "Rank correlation with the true attention",
                               "score",
                               "Spearman correlation, mean over heads",
                               "Of each policy's score with the mean attention that a row receives from later queries, "
                               "on a text that was not used for calibration. Whiskers: quartiles over heads.",
                               "%.2f",
                               false,
                               false,
                               0,
                               0};
    static const plan layers = {FIG_LINES,
                                "rank-layers",
                                "Rank correlation by layer",
                                "layer",
                                "Spearman correlation, mean over heads",
                                "As above, layer by layer.",
                                "%.2f",
                                false,
                                false,
                                0,
                                0};
    char model[FIG_NAME];
    size_t i, k;
    const json_t *layer, *head;
    if (!is(row, "rank"))
        return false;
    const interval y = interval_of(json_object_get(row, "spearman"));
    model_of(row, model);
    figure *f = figure_of(r, &means, "", "", source), *by_layer = figure_of(r, &layers, model, "", source);
    if (!f || !by_layer)
        return true;
    fig_add_bar(f, model, text(row, "policy"), y.value, y.low, y.high);
    json_array_foreach(json_object_get(row, "heads"), i, layer)
    {
        double sum = 0;
        json_array_foreach(layer, k, head) sum += json_number_value(head);
        const double mean = sum / (double)json_array_size(layer);
        fig_add(by_layer, text(row, "policy"), (double)i, mean, mean, mean);
    }
    return true;
}

/* "heads": [layer][head] of one observation. */
static bool take_anisotropy(report *r, const json_t *row, const char *source)
{
    static const plan p = {
        FIG_HEAT,
        "anisotropy",
        "Anisotropy of queries and keys",
        "layer",
        "head",
        "In percent. Observation 3.1: queries, and keys, lie on one side of the queries' first singular "
        "direction. Observation 3.2: the largest mean projection on another direction, over that "
        "on this one, vanishes. Then a key's projection orders keys by the attention that they "
        "receive (rank correlation).",
        "%.0f",
        false,
        false,
        -100,
        100};
    char model[FIG_NAME], column[32], name[32];
    size_t i, k;
    const json_t *layer, *head;
    if (!is(row, "anisotropy"))
        return false;
    figure *f = figure_of(r, &p, model_of(row, model), text(row, "observation"), source);
    json_array_foreach(json_object_get(row, "heads"), i, layer)
    {
        json_array_foreach(layer, k, head)
        {
            snprintf(column, sizeof column, "%zu", i);
            snprintf(name, sizeof name, "%zu", k);
            if (f)
                fig_add_cell(f, text(row, "observation"), column, name, 100 * json_number_value(head));
        }
    }
    return true;
}

/* ---- caches ---- */
static bool take_rate(report *r, const json_t *row, const char *source)
{
    static const plan plans[] = {
        {FIG_LINES, "rate-kl", "Rate against quality", "bits a value, everything counted",
         "KL divergence from f16, nats a token",
         "Paired with an f16 cache on the same tokens. A line is a method, its points are its numbers of bits. Lower "
         "left is better; bars are 95 % intervals.",
         "%.5f", false, true, 0, 0},
        {FIG_LINES, "rate-ppl", "Rate against perplexity", "bits a value, everything counted",
         "perplexity, times that of f16", "The same for the ratio of perplexities.", "%.4f", false, true, 0, 0},
    };
    char model[FIG_NAME], name[FIG_NAME];
    const char *method = text(row, "method")[0] ? text(row, "method") : text(row, "kv");
    const double bits = number(row, "bits_per_value");
    if (text(row, "kind")[0] || evicts(row) || !method[0] || !isfinite(bits) || !json_object_get(row, "kl"))
        return false;
    for (size_t i = 0; i < 2; i++) {
        const interval y = interval_of(json_object_get(row, i == 0 ? "kl" : "ppl_ratio"));
        figure *f = figure_of(r, &plans[i], model_of(row, model), "", source);
        if (f && y.value > 0)
            fig_add(f, family_of(method, name), bits, y.value, y.low > 0 ? y.low : y.value, y.high);
    }
    return true;
}

/* Of a peer's variants only the best is marked. */
static bool is_best(const json_t *row, const char *what)
{
    const json_t *best = json_object_get(row, "best"), *each;
    size_t i;
    if (!best)
        return !json_object_get(row, "flash"); /* a variant that is not the best at anything */
    json_array_foreach(best, i,
                       each) if (strcmp(json_string_value(each) ? json_string_value(each) : "", what) == 0) return true;
    return false;
}

static bool take_speed(report *r, const json_t *row, const char *source)
{
    static const plan plans[] = {
        {FIG_BARS, "decode", "Decoding", "tokens in the cache", "tokens a second",
         "Medians with quartiles, systems in turns on one machine. Higher is better.", "%.0f", false, false, 0, 0},
        {FIG_BARS, "prompt", "Reading a prompt", "tokens in the cache before", "tokens a second",
         "Medians with quartiles, systems in turns on one machine. Higher is better.", "%.0f", false, false, 0, 0},
    };
    static const char *const keys[] = {"decode_tps", "prompt_tps"}, *const words[] = {"decode", "prompt"};
    char model[FIG_NAME], column[64], name[FIG_NAME], part[FIG_NAME];
    if (text(row, "kind")[0] || !json_object_get(row, "decode_tps"))
        return false;
    /* only what ran in turns may stand side by side: a figure for each file */
    const double n_threads = number(row, "threads");
    const bool others = strcmp(text(row, "group"), "others") == 0;
    snprintf(part, sizeof part, "%.0f thread%s, %s%.40s", n_threads, n_threads > 1 ? "s" : "",
             others ? "other codecs, " : "", source);
    snprintf(column, sizeof column, "%.0f", number(row, "depth"));
    const bool ours = strcmp(text(row, "system"), "veloxquant") == 0;
    snprintf(name, sizeof name, "%s%s%s", ours ? "" : text(row, "system"), ours ? "" : " ", text(row, "kv"));
    for (size_t i = 0; i < 2; i++) {
        const interval y = interval_of(json_object_get(row, keys[i]));
        if (!is_best(row, words[i]))
            continue;
        figure *f = figure_of(r, &plans[i], model_of(row, model), part, source);
        if (f)
            fig_add_bar(f, name, column, y.value, y.low, y.high);
    }
    return true;
}

/* Decode speed and memory of evicting caches. */
static bool take_evict_speed(report *r, const json_t *row, const char *source)
{
    static const plan p = {FIG_BARS,
                           "eviction-speed",
                           "Decoding with an evicting cache",
                           "rows kept",
                           "tokens a second",
                           "Median with quartiles after a prompt, all in turns on one machine. Higher is better.",
                           "%.0f",
                           false,
                           false,
                           0,
                           0};
    char model[FIG_NAME], column[64], name[FIG_NAME];
    if (!is(row, "speed"))
        return false;
    const char *evict = text(row, "evict");
    const double budget = option_of(evict, "budget");
    const interval y = interval_of(json_object_get(row, "decode_tps"));
    if (isfinite(budget))
        snprintf(column, sizeof column, "%g%s of %.0f", budget, strchr(evict, '%') ? " %" : " tokens",
                 number(row, "depth"));
    else
        snprintf(column, sizeof column, "all %.0f", number(row, "depth"));
    name_of(evicts(row) ? evict : "no policy", name);
    figure *f = figure_of(r, &p, model_of(row, model), "", source);
    if (f)
        fig_add_bar(f, name, column, y.value, y.low, y.high);
    return true;
}

static bool take_memory(report *r, const json_t *row, const char *source)
{
    static const plan p = {FIG_LINES,
                           "memory",
                           "Memory of the cache over length",
                           "tokens of the text",
                           "MiB in use",
                           "What the cache has in use: codes, scales, exact rows, tables. Lower is better.",
                           "%.2f",
                           false,
                           false,
                           0,
                           0};
    char model[FIG_NAME], cache[FIG_NAME];
    if (!is(row, "memory"))
        return false;
    const double mib = number(row, "bytes") / 1048576;
    figure *f = figure_of(r, &p, model_of(row, model), "", source);
    if (f)
        fig_add(f, cache_of(row, cache), number(row, "tokens"), mib, mib, mib);
    return true;
}

static bool (*const panels[])(report *r, const json_t *row, const char *source) = {
    take_rate,   take_speed,  take_memory, take_budgets,    take_recent,      take_grid,
    take_needle, take_recall, take_rank,   take_anisotropy, take_evict_speed, take_stream,
};

size_t report_take(report *r, const json_t *row, const char *source)
{
    size_t n = 0;
    for (size_t i = 0; i < sizeof panels / sizeof panels[0]; i++)
        n += panels[i](r, row, source);
    return n;
}

void report_free(report *r)
{
    for (size_t i = 0; i < r->n_figures; i++) {
        fig_free(r->figures[i]);
        free(r->figures[i]);
    }
    *r = (report){0};
}
