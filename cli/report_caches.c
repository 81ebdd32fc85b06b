/* Panels of caches: speed over depth, quality against bits, memory, distortion of attention, generated text, and peers.
 *
 * Rows of `eval` say their kind; those of bench/ that hold speeds or qualities have none, and stay apart by file,
 * because only what ran in turns, or on the same tokens, may stand side by side. */
#include <math.h>
#include <string.h>

#include "report.h"

/* ---- speed ---- */

/* Of a peer's variants only the best is marked. */
static bool is_best(const json_t *row, const char *what)
{
    const json_t *best = json_object_get(row, "best"), *each;
    size_t i;
    if (!best)
        return !json_object_get(row, "flash"); /* a variant that is not the best at anything */
    json_array_foreach(best, i, each)
    {
        const char *word = json_string_value(each);
        if (word && strcmp(word, what) == 0)
            return true;
    }
    return false;
}

/* Ours by the name of the cache, others with the system before it. */
static void system_cache(const json_t *row, char out[FIG_NAME])
{
    const char *system = row_text(row, "system");
    const bool ours = !system[0] || strcmp(system, "veloxquant") == 0;
    char kv[FIG_NAME];
    snprintf(out, FIG_NAME, "%.30s%s%.60s", ours ? "" : system, ours ? "" : " ", row_method(row, kv));
}

static size_t take_speed(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan decode = {.kind = FIG_LINES,
                                    .id = "throughput",
                                    .timed = true,
                                    .title = "Decoding",
                                    .x_label = "tokens in the cache",
                                    .y_label = "tokens a second",
                                    .note = "Medians with quartiles, all in turns on one machine. Higher is better; "
                                            "a line that falls less carries a longer conversation.",
                                    .format = "%.1f",
                                    .even_x = true,
                                    .log_y = true};
    static const fig_plan prompt = {.kind = FIG_LINES,
                                    .id = "prompt",
                                    .timed = true,
                                    .title = "Reading a prompt",
                                    .x_label = "tokens in the cache before",
                                    .y_label = "tokens a second",
                                    .note = "Medians with quartiles, all in turns on one machine. Higher is better.",
                                    .format = "%.0f",
                                    .even_x = true,
                                    .log_y = true};
    char name[FIG_NAME], part[FIG_NAME];
    const bool of_eval = row_is(row, "speed");
    if ((!of_eval && row_text(row, "kind")[0]) || !json_object_get(row, "decode_tps") ||
        (of_eval && (source->evicts || json_is_true(json_object_get(row, "again")))))
        return 0;
    const double n_threads = row_number(row, "threads"), depth = row_number(row, "depth");
    const bool others = strcmp(row_text(row, "group"), "others") == 0;
    /* depths of one evaluation may be in several files; at each depth its caches ran in turns */
    snprintf(part, sizeof part, "%.0f thread%s%s%s%.60s", n_threads, n_threads > 1 ? "s" : "",
             others ? ", other codecs" : "", of_eval ? "" : "@", of_eval ? "" : source->name);
    system_cache(row, name);
    const char *model = row_model(r, row);
    const interval d = row_interval(row, "decode_tps"), p = row_interval(row, "prompt_tps");
    if (is_best(row, "decode")) {
        figure *f = report_figure(r, &decode, model, part, source);
        if (f)
            fig_add(f, name, depth, d.value, d.low, d.high);
        if (n_threads == 1 || of_eval)
            report_note(r, model, name, FACT_DECODE, d.value, depth);
    }
    if (isfinite(p.value) && is_best(row, "prompt")) {
        figure *f = report_figure(r, &prompt, model, part, source);
        if (f)
            fig_add(f, name, depth, p.value, p.low, p.high);
    }
    return 1;
}

/* What users wait for: the first token, and each one after it. */
static size_t take_latency(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan first = {.kind = FIG_LINES,
                                   .id = "first-token",
                                   .timed = true,
                                   .title = "Time to the first token",
                                   .x_label = "tokens of the prompt",
                                   .y_label = "seconds",
                                   .note = "From an empty cache, the whole prompt read. Lower is better.",
                                   .format = "%.2f",
                                   .even_x = true,
                                   .log_y = true};
    static const fig_plan each = {.kind = FIG_LINES,
                                  .id = "token-time",
                                  .timed = true,
                                  .title = "Time of a token",
                                  .x_label = "tokens in the cache",
                                  .y_label = "milliseconds, median; whisker up to the slowest 1 %",
                                  .note = "Of tokens generated one by one. Lower is better.",
                                  .format = "%.2f",
                                  .even_x = true,
                                  .log_y = true};
    if (!row_is(row, "speed") || source->evicts || json_is_true(json_object_get(row, "again")))
        return 0;
    char part[FIG_NAME], kv[FIG_NAME];
    const double n_threads = row_number(row, "threads"), depth = row_number(row, "depth");
    snprintf(part, sizeof part, "%.0f thread%s", n_threads, n_threads > 1 ? "s" : "");
    const char *model = row_model(r, row);
    row_method(row, kv);
    const json_t *ms = json_object_get(row, "token_ms");
    const double wait = row_number(row, "first_token_seconds"), median = row_number(ms, "p50");
    figure *f = isfinite(wait) ? report_figure(r, &first, model, part, source) : NULL;
    if (f)
        fig_add(f, kv, depth, wait, wait, wait);
    figure *e = isfinite(median) ? report_figure(r, &each, model, part, source) : NULL;
    if (e)
        fig_add(e, kv, depth, median, median, row_number(ms, "p99"));
    return isfinite(wait) || isfinite(median);
}

/* What a faster cache can give at most, and where the time goes by layer. */
static size_t take_shares(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan share = {.kind = FIG_LINES,
                                   .id = "attention-share",
                                   .timed = true,
                                   .title = "Attention's share of a token",
                                   .x_label = "tokens in the cache",
                                   .y_label = "% of the time of a decoded token",
                                   .note =
                                       "Amdahl's line: with a share of s, making attention free speeds a token up by "
                                       "1 / (1 - s) and no more. At 50 % that is a factor of 2.",
                                   .format = "%.1f",
                                   .even_x = true};
    static const fig_plan encode = {
        .kind = FIG_BARS,
        .id = "encode-share",
        .timed = true,
        .title = "Packing's share of a decoded token",
        .x_label = "cache",
        .y_label = "% of the time",
        .note = "Storing its rows, codes included, at the greatest depth measured. Lower is better.",
        .format = "%.2f"};
    static const fig_plan prompts = {
        .kind = FIG_BARS,
        .id = "prompt-share",
        .timed = true,
        .title = "Where the time of a prompt goes",
        .x_label = "cache",
        .y_label = "% of the time",
        .note = "Attention, and storing rows, codes included, of the longest prompt measured; the rest is the model's "
                "matrices. Packing should be a few percent.",
        .format = "%.1f"};
    static const fig_plan layers = {.kind = FIG_LINES,
                                    .id = "attend-layers",
                                    .timed = true,
                                    .title = "Attention by layer",
                                    .x_label = "layer",
                                    .y_label = "microseconds of one decoded token",
                                    .note = "At the greatest depth measured. Layers with a window cost less.",
                                    .format = "%.1f"};
    const double depth = row_number(row, "depth"), s = 100 * row_number(row, "attention_share"),
                 decode = 100 * row_number(row, "encode_share"), prompt = 100 * row_number(row, "prompt_encode_share"),
                 attend = 100 * row_number(row, "prompt_attention_share");
    if (!row_is(row, "speed") || source->evicts || json_is_true(json_object_get(row, "again")))
        return 0;
    char kv[FIG_NAME];
    row_method(row, kv);
    const char *model = row_model(r, row);
    figure *p = isfinite(prompt) ? report_figure(r, &prompts, model, "", source) : NULL;
    if (p && fig_keep_rank(p, depth)) {
        fig_add_bar(p, "attention", kv, attend, attend, attend);
        fig_add_bar(p, "packing", kv, prompt, prompt, prompt);
    }
    if (!isfinite(s))
        return isfinite(prompt);
    figure *f = report_figure(r, &share, model, "", source), *e = report_figure(r, &encode, model, "", source),
           *l = report_figure(r, &layers, model, "", source);
    if (!f || !e || !l)
        return 1;
    fig_add(f, kv, depth, s, s, s);
    if (isfinite(decode) && fig_keep_rank(e, depth))
        fig_add_bar(e, "share", kv, decode, decode, decode);
    const json_t *layer;
    size_t i;
    if (fig_keep_rank(l, depth))
        json_array_foreach(json_object_get(json_object_get(row, "layers"), "attend_us"), i, layer)
        {
            const double us = json_number_value(layer);
            fig_add(l, kv, (double)i, us, us, us);
        }
    return 1;
}

/* ---- quality ---- */
static size_t take_rate(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan kl = {
        .kind = FIG_LINES,
        .id = "rate-kl",
        .title = "Bits a value against quality",
        .x_label = "bits a packed value: codes, scales, shared tables",
        .y_label = "KL divergence from f16, nats a token",
        .note = "Paired with an f16 cache on the same tokens. A line is a method, its points are its "
                "numbers of bits. Lower left is better; whiskers are 95 % intervals.",
        .format = "%.5f",
        .log_x = true,
        .log_y = true};
    static const fig_plan ppl = {.kind = FIG_LINES,
                                 .id = "rate-ppl",
                                 .title = "Bits a value against perplexity",
                                 .x_label = "bits a packed value: codes, scales, shared tables",
                                 .y_label = "perplexity, times that of f16",
                                 .note = "The same for the ratio of perplexities.",
                                 .format = "%.4f",
                                 .log_x = true,
                                 .log_y = true,
                                 .y_least = 1};
    char name[FIG_NAME], cache[FIG_NAME], part[FIG_NAME];
    const bool of_eval = row_is(row, "perplexity");
    const double packed = row_number(row, "packed_bits"),
                 at_1k = row_number(json_object_get(row, "bits_per_value_at"), "1024");
    const double bits = packed > 0 ? packed : at_1k > 0 ? at_1k : row_number(row, "bits_per_value");
    if ((row_text(row, "kind")[0] && !of_eval) || row_evicts(row) || !isfinite(bits) || !json_object_get(row, "kl") ||
        !row_text(row, "model")[0] || !row_method(row, cache)[0] || strstr(cache, "+f16") ||
        strncmp(cache, "f16+", 4) == 0) /* one side alone: report_bench.c */
        return 0;
    snprintf(part, sizeof part, "@%.60s", of_eval ? "" : source->name);
    const char *model = row_model(r, row);
    const interval d = row_interval(row, "kl"), p = row_interval(row, "ppl_ratio"), t = row_interval(row, "same_top");
    const double tokens = row_number(row, "tokens"); /* of several measurements of a cache the longest counts */
    method_family(cache, name);
    figure *f = d.value > 0 ? report_figure(r, &kl, model, part, source) : NULL;
    if (f)
        fig_add(f, name, bits, d.value, d.low > 0 ? d.low : d.value, d.high);
    figure *g = d.value > 0 && p.value > 0 ? report_figure(r, &ppl, model, part, source) : NULL;
    if (g)
        fig_add(g, name, bits, p.value, p.low > 0 ? p.low : p.value, p.high);
    report_note(r, model, cache, FACT_BITS, bits, tokens);
    report_note(r, model, cache, FACT_RATIO, p.value, tokens);
    report_note(r, model, cache, FACT_KL, d.value, tokens);
    report_note(r, model, cache, FACT_SAME_TOP, 100 * t.value, tokens);
    return 1;
}

static size_t take_distortion(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan mean = {
        .kind = FIG_LINES,
        .id = "distortion",
        .title = "Distortion of attention",
        .x_label = "bits a packed value",
        .y_label = "relative error of attention's output",
        .note = "Root of the summed squared error over the summed square, all layers. Lower left is "
                "better.",
        .format = "%.4f",
        .log_x = true,
        .log_y = true};
    static const fig_plan layers = {.kind = FIG_LINES,
                                    .id = "distortion-layers",
                                    .title = "Distortion of attention by layer",
                                    .x_label = "layer",
                                    .y_label = "relative error of attention's output",
                                    .note =
                                        "Each layer reads what a model with an f16 cache hands it. Lower is better.",
                                    .format = "%.4f",
                                    .log_y = true};
    const json_t *layer;
    size_t i;
    char name[FIG_NAME], kv[FIG_NAME];
    if (!row_is(row, "distortion"))
        return 0;
    const char *model = row_model(r, row);
    row_method(row, kv);
    const double error = row_number(row, "error"), bits = row_number(row, "packed_bits");
    report_note(r, model, kv, FACT_DISTORTION, error, NAN);
    figure *f = error > 0 && bits > 0 ? report_figure(r, &mean, model, "", source) : NULL;
    if (f)
        fig_add(f, method_family(kv, name), bits, error, error, error);
    figure *l = error > 0 ? report_figure(r, &layers, model, "", source) : NULL;
    json_array_foreach(json_object_get(row, "layers"), i, layer)
    {
        const double y = json_is_number(layer) ? json_number_value(layer) : NAN;
        if (l && y > 0)
            fig_add(l, kv, (double)i, y, y, y);
    }
    return 1;
}

/* ---- memory ---- */
static size_t take_memory(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_LINES,
                               .id = "memory",
                               .title = "Memory of the cache over length",
                               .x_label = "tokens of the text",
                               .y_label = "MiB in use",
                               .note = "What the cache has in use: codes, scales, exact rows, tables. Lower is better.",
                               .format = "%.2f",
                               .log_x = true,
                               .log_y = true};
    char cache[FIG_NAME];
    if (!row_is(row, "memory"))
        return 0;
    const double mib = row_number(row, "bytes") / 1048576, n = row_number(row, "tokens");
    const char *model = row_model(r, row);
    row_cache(row, cache);
    figure *f = report_figure(r, &p, model, "", source);
    if (f)
        fig_add(f, cache, n, mib, mib, mib);
    if (!row_evicts(row))
        report_note(r, model, cache, FACT_BYTES, mib, n);
    return 1;
}

/* ---- text ---- */
static size_t take_generation(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan completed = {
        .kind = FIG_BARS,
        .id = "finished",
        .title = "Tokens finished",
        .x_label = "cache",
        .y_label = "tokens before the text ended or began to repeat itself, mean",
        .note = "Greedy text of the same prompts, judged as tokens completed without falling "
                "into a loop. Higher is better; f16 says what the model itself reaches.",
        .format = "%.0f"};
    static const fig_plan distinct = {.kind = FIG_BARS,
                                      .id = "distinct",
                                      .title = "Variety of the text",
                                      .x_label = "cache",
                                      .y_label = "share of n-grams that differ",
                                      .note = "A text that repeats itself has few. As high as f16 is good.",
                                      .format = "%.2f"};
    static const fig_plan same = {.kind = FIG_BARS,
                                  .id = "same-text",
                                  .title = "How long the text is that of f16",
                                  .x_label = "cache",
                                  .y_label = "tokens before the first difference, mean",
                                  .note =
                                      "Greedy text of the same prompts. Any later difference in one token changes all "
                                      "that follow, so this falls fast.",
                                  .format = "%.0f"};
    if (!row_is(row, "generation"))
        return 0;
    char kv[FIG_NAME];
    row_method(row, kv);
    const char *model = row_model(r, row);
    const double n = row_number(row, "completed_mean"), until = row_number(row, "same_until");
    const json_t *share, *list = json_object_get(row, "distinct");
    size_t i;
    char series[32];
    report_note(r, model, kv, FACT_COMPLETED, n, NAN);
    report_note(r, model, kv, FACT_SAME_TOKENS, 100 * row_number(row, "same_tokens"), NAN);
    figure *f = report_figure(r, &completed, model, "", source);
    if (f)
        fig_add_bar(f, "tokens", kv, n, n, n);
    figure *d = json_array_size(list) ? report_figure(r, &distinct, model, "", source) : NULL;
    json_array_foreach(list, i, share)
    {
        const double y = json_number_value(share);
        snprintf(series, sizeof series, "%zu-grams", i + 1);
        if (d && i != 2) /* what 3 says, 2 and 4 say */
            fig_add_bar(d, series, kv, y, y, y);
    }
    figure *s = isfinite(until) ? report_figure(r, &same, model, "", source) : NULL;
    if (s)
        fig_add_bar(s, "tokens", kv, until, until, until);
    return 1;
}

/* ---- peers ---- */
static size_t take_peer(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan quality = {.kind = FIG_BARS,
                                     .id = "peer-quality",
                                     .title = "Beside VeloxQuant-MLX: perplexity",
                                     .x_label = "cache",
                                     .y_label = "perplexity, times that of the system's own f16 cache",
                                     .note =
                                         "The same weights and tokens through both, f32 activations, generation order. "
                                         "Whiskers are 95 % intervals. Lower is better.",
                                     .format = "%.3f"};
    static const fig_plan held = {.kind = FIG_BARS,
                                  .id = "peer-held",
                                  .title = "Beside VeloxQuant-MLX: bytes really held",
                                  .x_label = "cache",
                                  .y_label = "KiB a token",
                                  .note =
                                      "Of all arrays that hang on the cache after the window; ours are the cache's own "
                                      "count. On a CPU MLX keeps rows as f32. Lower is better.",
                                  .format = "%.1f"};
    char name[FIG_NAME];
    if (!row_is(row, "peer") || json_object_get(row, "error"))
        return 0;
    system_cache(row, name);
    const char *model = row_model(r, row);
    const interval y = row_interval(row, "ppl_ratio"), b = row_interval(row, "held_bytes_per_token");
    figure *f = report_figure(r, &quality, model, "", source), *h = report_figure(r, &held, model, "", source);
    if (f)
        fig_add_bar(f, "ratio", name, y.value, y.low, y.high);
    if (h)
        fig_add_bar(h, "KiB", name, b.value / 1024, b.low / 1024, b.high / 1024);
    return 1;
}

/* Rows that the page shows as tables of their own. */
static size_t take_tables(report *r, const json_t *row, const report_file *source)
{
    (void)r;
    (void)source;
    return row_is(row, "step") || row_is(row, "invariance");
}

report_panel *const report_cache_panels[] = {take_speed,  take_latency,    take_shares, take_rate,   take_distortion,
                                             take_memory, take_generation, take_peer,   take_tables, NULL};
