/* Panels of eviction, of finding again, of what policies look at, and of processes that share a model.  A panel looks
 * at a row of a results file and adds a point to a figure if the row is its own; a new one is a function and a line in
 * the table at the end.  Panels of caches are in report_caches.c. */
#include <math.h>
#include <string.h>

#include "report.h"
#include "report_draw.h"

/* ---- eviction ---- */
static size_t take_budgets(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_LINES,
                               .id = "eviction",
                               .title = "Eviction: perplexity against budget",
                               .x_label = "rows kept, % of the context",
                               .y_label = "perplexity, times that of the whole cache",
                               .note = "Generation order: the first half of a window is the prompt, the rest is scored "
                                       "token by token while the policy works. Lower is better; whiskers are 95 % "
                                       "intervals.",
                               .format = "%.3f",
                               .even_x = true,
                               .log_y = true};
    char policy[FIG_NAME];
    const double budget = option_of(row_text(row, "evict"), "budget");
    if (!row_is(row, "perplexity") || !row_evicts(row) || strcmp(row_text(row, "kv"), "f16") != 0 || !isfinite(budget))
        return 0;
    const interval y = row_interval(row, "ppl_ratio");
    figure *f = report_figure(r, &p, row_model(r, row), "", source);
    if (f)
        fig_add(f, policy_name(row_text(row, "evict"), policy), budget, y.value, y.low, y.high);
    return 1;
}

static size_t take_recent(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_LINES,
                               .id = "recent",
                               .title = "Q-Filters: how many recent rows must stay",
                               .x_label = "recent rows that always stay",
                               .y_label = "perplexity, times that of the whole cache",
                               .note = "The budget is the same along a line: recent rows take the place of rows that "
                                       "the filter would have kept. Lower is better.",
                               .format = "%.3f",
                               .even_x = true,
                               .log_y = true};
    char name[FIG_NAME], policy[FIG_NAME];
    if (!row_is(row, "recent"))
        return 0;
    const char *evict = row_text(row, "evict");
    const interval y = row_interval(row, "ppl_ratio");
    snprintf(name, sizeof name, "%.40s, budget %g%s", policy_name(evict, policy), option_of(evict, "budget"),
             strchr(evict, '%') ? " %" : " tokens");
    figure *f = report_figure(r, &p, row_model(r, row), "", source);
    if (f)
        fig_add(f, name, option_of(evict, "recent"), y.value, y.low, y.high);
    return 1;
}

static size_t take_grid(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_LINES,
                               .id = "grid",
                               .title = "Eviction times quantisation",
                               .x_label = "bytes of cache for a token of the text",
                               .y_label = "perplexity, times that of the whole f16 cache",
                               .note =
                                   "A line is one way of storing, its points are the budgets. Lower left is better: "
                                   "where a line of fewer bits lies below, quantising costs less than dropping.",
                               .format = "%.3f",
                               .log_x = true,
                               .log_y = true};
    char policy[FIG_NAME], kv[FIG_NAME];
    if (!row_is(row, "grid"))
        return 0;
    const interval y = row_interval(row, "ppl_ratio");
    figure *f = report_figure(r, &p, row_model(r, row), policy_name(row_text(row, "policy"), policy), source);
    if (f)
        fig_add(f, row_method(row, kv), row_number(row, "bytes_per_token"), y.value, y.low, y.high);
    return 1;
}

static size_t take_stream(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_LINES,
                               .id = "stream",
                               .title = "Generating on, beyond the trained context",
                               .x_label = "token of the text",
                               .y_label = "perplexity of the tokens since the last point",
                               .note =
                                   "Flat means that the text could go on for ever. Steps differ because the text does.",
                               .format = "%.2f",
                               .log_y = true};
    const json_t *step;
    size_t i;
    char cache[FIG_NAME];
    if (!row_is(row, "stream"))
        return 0;
    figure *f = report_figure(r, &p, row_model(r, row), "", source);
    json_array_foreach(json_object_get(row, "steps"), i, step)
    {
        const double y = row_number(step, "ppl"), error = row_number(step, "ppl_error");
        if (f)
            fig_add(f, row_cache(row, cache), row_number(step, "from"), y, y - 1.96 * error, y + 1.96 * error);
    }
    return 1;
}

static size_t take_evict_speed(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {
        .kind = FIG_BARS,
        .id = "eviction-speed",
        .timed = true,
        .title = "Decoding with an evicting cache",
        .x_label = "policy",
        .y_label = "tokens a second",
        .note = "Median with quartiles after a prompt, all in turns on one machine. Higher is better.",
        .format = "%.0f"};
    char column[96], name[FIG_NAME];
    if (!row_is(row, "speed") || !source->evicts || json_is_true(json_object_get(row, "again")))
        return 0;
    const char *evict = row_text(row, "evict");
    const double budget = option_of(evict, "budget");
    const interval y = row_interval(row, "decode_tps");
    if (isfinite(budget))
        snprintf(column, sizeof column, "%.40s, %g%s of %.0f", policy_name(evict, name), budget,
                 strchr(evict, '%') ? " %" : " tokens", row_number(row, "depth"));
    else
        snprintf(column, sizeof column, "no policy, all %.0f", row_number(row, "depth"));
    figure *f = report_figure(r, &p, row_model(r, row), "", source);
    if (f)
        fig_add_bar(f, row_text(row, "kv"), column, y.value, y.low, y.high);
    return 1;
}

/* ---- finding again ---- */
static size_t take_needle(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan plans[] = {
        {.kind = FIG_HEAT,
         .id = "needle-chosen",
         .title = "Needle: the right word of 64, %",
         .x_label = "tokens of the context",
         .y_label = "depth",
         .note = "Share of trials in which the hidden word was likelier than 63 others, in percent; guessing gives 2.",
         .format = "%.0f",
         .least = 0,
         .most = 100},
        {.kind = FIG_HEAT,
         .id = "needle-exact",
         .title = "Needle: exact answer, %",
         .x_label = "tokens of the context",
         .y_label = "depth",
         .note = "Share of trials in which greedy output began with the hidden word, in percent.",
         .format = "%.0f",
         .least = 0,
         .most = 100},
    };
    char part[FIG_NAME], cache[FIG_NAME], column[32], depth[32];
    if (!row_is(row, "needle"))
        return 0;
    draw_number(row_number(row, "length"), column);
    snprintf(depth, sizeof depth, "%.0f %%", row_number(row, "depth"));
    snprintf(part, sizeof part, "@%.60s", source->name); /* files differ in their lengths and in what they ask */
    for (size_t i = 0; i < 2; i++) {
        figure *f = report_figure(r, &plans[i], row_model(r, row), part, source);
        if (f)
            fig_add_cell(f, row_cache(row, cache), column, depth, 100 * row_number(row, i == 0 ? "chosen" : "exact"));
    }
    return 1;
}

static size_t take_recall(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_BARS,
                               .id = "recall",
                               .title = "Recall: the right word of 64",
                               .x_label = "cache",
                               .y_label = "answers chosen, %",
                               .note =
                                   "Several needles, and key-value pairs, asked for one after another after the policy "
                                   "has worked. Higher is better.",
                               .format = "%.0f"};
    char cache[FIG_NAME], task[64];
    if (!row_is(row, "recall"))
        return 0;
    snprintf(task, sizeof task, "%.30s, %.0f tokens", row_text(row, "task"), row_number(row, "length"));
    const double y = 100 * row_number(row, "chosen");
    figure *f = report_figure(r, &p, row_model(r, row), "", source);
    if (f)
        fig_add_bar(f, task, row_cache(row, cache), y, y, y);
    return 1;
}

/* ---- what policies look at ---- */

/* "heads": [layer][head] of rank correlations. */
static size_t take_rank(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan means = {
        .kind = FIG_BARS,
        .id = "rank",
        .title = "Rank correlation with the true attention",
        .x_label = "score",
        .y_label = "Spearman correlation, mean over heads",
        .note = "Of each policy's score with the mean attention that a row receives from later "
                "queries, on a text that was not used for calibration. Whiskers: quartiles over heads.",
        .format = "%.2f"};
    static const fig_plan layers = {.kind = FIG_LINES,
                                    .id = "rank-layers",
                                    .title = "Rank correlation by layer",
                                    .x_label = "layer",
                                    .y_label = "Spearman correlation, mean over heads",
                                    .note = "The same, layer by layer.",
                                    .format = "%.2f"};
    size_t i, k;
    const json_t *layer, *head;
    if (!row_is(row, "rank"))
        return 0;
    const interval y = row_interval(row, "spearman");
    const char *model = row_model(r, row);
    figure *f = report_figure(r, &means, "", "", source), *by_layer = report_figure(r, &layers, model, "", source);
    if (!f || !by_layer)
        return 1;
    fig_add_bar(f, model, row_text(row, "policy"), y.value, y.low, y.high);
    json_array_foreach(json_object_get(row, "heads"), i, layer)
    {
        double sum = 0;
        json_array_foreach(layer, k, head) sum += json_number_value(head);
        const double mean = sum / (double)json_array_size(layer);
        fig_add(by_layer, row_text(row, "policy"), (double)i, mean, mean, mean);
    }
    return 1;
}

enum { MOST_PERCENT = 999 }; /* what fits into a cell; a mean that vanishes makes quotients of any size */

/* "heads": [layer][head] of one observation. */
static size_t take_anisotropy(report *r, const json_t *row, const report_file *source)
{
    static const char note[] =
        "In percent. Observation 3.1: queries, and keys, lie on one side of the queries' first singular direction. "
        "Observation 3.2: the largest mean projection on another direction, over that on this one, vanishes (999: that "
        "and more). Then a key's projection orders keys by the attention that they receive (rank correlation, -100 to "
        "100).";
    static const fig_plan shares = {.kind = FIG_HEAT,
                                    .id = "anisotropy",
                                    .title = "Anisotropy of queries and keys, %",
                                    .x_label = "layer",
                                    .y_label = "head",
                                    .note = note,
                                    .format = "%.0f",
                                    .least = 0,
                                    .most = 100};
    static const fig_plan correlations = {.kind = FIG_HEAT,
                                          .id = "anisotropy",
                                          .title = "Anisotropy of queries and keys, %",
                                          .x_label = "layer",
                                          .y_label = "head",
                                          .note = note,
                                          .format = "%.0f",
                                          .least = -100,
                                          .most = 100};
    char column[32], name[32];
    size_t i, k;
    const json_t *layer, *head;
    if (!row_is(row, "anisotropy"))
        return 0;
    const bool of_ranks = strcmp(row_text(row, "observation"), "keys against attention") == 0;
    figure *f =
        report_figure(r, of_ranks ? &correlations : &shares, row_model(r, row), row_text(row, "observation"), source);
    json_array_foreach(json_object_get(row, "heads"), i, layer)
    {
        json_array_foreach(layer, k, head)
        {
            snprintf(column, sizeof column, "%zu", i);
            snprintf(name, sizeof name, "%zu", k);
            const double percent = fmin(round(100 * json_number_value(head)) + 0.0, MOST_PERCENT); /* + 0: no "-0" */
            if (f)
                fig_add_cell(f, row_text(row, "observation"), column, name, percent);
        }
    }
    return 1;
}

/* ---- processes that share a model ---- */
static size_t take_sharing(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan memory = {
        .kind = FIG_BARS,
        .id = "sharing",
        .title = "Memory of processes that run one model",
        .x_label = "weights",
        .y_label = "MiB, proportional set size",
        .note = "All processes together, as the system counts pages that they share, and one of "
                "them alone. Lower is better; what is mapped from a file counts once.",
        .format = "%.0f"};
    static const fig_plan start = {.kind = FIG_BARS,
                                   .id = "sharing-start",
                                   .timed = true,
                                   .title = "From start to ready",
                                   .x_label = "weights",
                                   .y_label = "seconds until model and session are open, slowest process",
                                   .note = "Processes that start at once. Lower is better.",
                                   .format = "%.3f"};
    char together[64];
    const json_t *one, *list = json_object_get(row, "together");
    size_t i;
    if (!json_object_get(row, "pss_together") || !json_is_array(list))
        return 0;
    const char *name = row_text(row, "case")[0] ? row_text(row, "case") : row_model(r, row);
    snprintf(together, sizeof together, "%zu processes", json_array_size(list));
    figure *f = report_figure(r, &memory, "", "", source), *s = report_figure(r, &start, "", "", source);
    double slowest = 0;
    json_array_foreach(list, i, one) slowest = fmax(slowest, row_number(one, "seconds_to_ready"));
    if (!f || !s)
        return 1;
    const json_t *alone = json_object_get(row, "alone");
    const double all = row_number(row, "pss_together") / 1048576, single = row_number(alone, "pss") / 1048576;
    fig_add_bar(f, together, name, all, all, all);
    fig_add_bar(f, "one alone", name, single, single, single);
    fig_add_bar(s, together, name, slowest, slowest, slowest);
    return 1;
}

static size_t take_weights(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_LINES,
                               .id = "weights",
                               .title = "Bits a weight against quality",
                               .x_label = "bits a weight of the layers' matrices, everything counted",
                               .y_label = "KL divergence from f16 weights, nats a token",
                               .note = "Paired with the f16 file on the same tokens. Lower left is better.",
                               .format = "%.4f",
                               .log_y = true};
    char name[FIG_NAME];
    const char *weights = row_text(row, "weights");
    const interval y = row_interval(row, "kl");
    if (!weights[0] || !isfinite(row_number(row, "bits_a_weight")) || !(y.value > 0))
        return 0;
    /* "vq2 feedback" to "vq4 feedback" are one line, and llama.cpp's types another */
    if (strncmp(weights, "vq", 2) == 0)
        snprintf(name, sizeof name, "packed%.60s", weights + 2 + strspn(weights + 2, "0123456789."));
    else
        snprintf(name, sizeof name, "llama.cpp");
    figure *f = report_figure(r, &p, row_model(r, row), "", source);
    if (f)
        fig_add(f, name, row_number(row, "bits_a_weight"), y.value, y.low, y.high);
    return 1;
}

report_panel *const report_other_panels[] = {take_budgets,     take_recent,  take_grid,    take_stream,
                                             take_evict_speed, take_needle,  take_recall,  take_rank,
                                             take_anisotropy,  take_sharing, take_weights, NULL};
