/* Panels of what only scripts in bench/ measure: all methods by measured bits, kernels against the machine's peaks,
 * trellis codes against the bound, bits shared out, keys and values by themselves, texts of calibrations, encoding,
 * and perplexity beside llama.cpp. */
#include <math.h>
#include <string.h>

#include "report.h"

/* ---- all methods ---- */

/* What was asked of the calibrated methods: at so many bits, so much loss at most. */
static const fig_mark asked_kl[] = {{4, 0.003}, {3, 0.010}, {2.25, 0.040}},
                      asked_ratio[] = {{4, 0.003}, {3, 0.01}, {2.25, 0.04}, {1.5, 0.15}};

/* Rows of bench/rate-quality: bits at 1,024 tokens, everything counted. */
static size_t take_all_methods(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan kl = {.kind = FIG_FACETS,
                                .id = "all-methods-kl",
                                .title = "All methods: loss by bits a value",
                                .x_label = "bits a value at 1,024 tokens: codes, scales, shared tables",
                                .y_label = "KL divergence from f16, nats a token",
                                .note = "Every method on the same tokens, keys and values together, paired with an f16 "
                                        "cache. Lower left is better. Small grey marks are what was asked of "
                                        "calibrated methods. Whiskers are 95 % intervals.",
                                .format = "%.5f",
                                .log_y = true,
                                .x_least = 1,
                                .x_most = 9.2,
                                .y_least = 4e-4,
                                .y_most = 3,
                                .strong = "optimal",
                                .marks = asked_kl,
                                .n_marks = sizeof asked_kl / sizeof asked_kl[0]};
    static const fig_plan ratio = {.kind = FIG_FACETS,
                                   .id = "all-methods-ppl",
                                   .title = "All methods: perplexity lost by bits a value",
                                   .x_label = "bits a value at 1,024 tokens: codes, scales, shared tables",
                                   .y_label = "perplexity over that of f16, less 1",
                                   .note = "The same rows by perplexity: 0.01 is 1 % more than with an f16 cache. What "
                                           "lies beyond the axis is drawn at its edge.",
                                   .format = "%.5f",
                                   .log_y = true,
                                   .x_least = 1,
                                   .x_most = 9.2,
                                   .y_least = 5e-4,
                                   .y_most = 10,
                                   .strong = "optimal",
                                   .marks = asked_ratio,
                                   .n_marks = sizeof asked_ratio / sizeof asked_ratio[0]};
    char method[FIG_NAME], family[FIG_NAME];
    const double bits = row_number(json_object_get(row, "bits_per_value_at"), "1024");
    if (!isfinite(bits) || row_text(row, "kind")[0] || !row_method(row, method)[0])
        return 0;
    const char *model = row_model(r, row);
    const interval d = row_interval(row, "kl"), p = row_interval(row, "ppl_ratio");
    method_family(method, family);
    figure *f = report_figure(r, &kl, "", "", source), *g = report_figure(r, &ratio, "", "", source);
    if (f && d.value > 0)
        fig_add_facet(f, model, family, bits, d.value, d.low, d.high);
    if (g)
        fig_add_facet(g, model, family, bits, p.value - 1, p.low - 1, p.high - 1);
    return 1;
}

/* ---- kernels ---- */
static size_t take_peaks(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan bandwidth = {
        .kind = FIG_BARS,
        .id = "peak-bandwidth",
        .timed = true,
        .title = "Reading codes from memory",
        .x_label = "codec",
        .y_label = "% of the bandwidth that one thread has",
        .note = "Scores of keys and weighted sums of values over codes that are in no cache, one thread. 100 % means "
                "that the memory cannot give more: what is left to gain there is smaller codes.",
        .format = "%.0f"};
    static const fig_plan products = {
        .kind = FIG_BARS,
        .id = "peak-products",
        .timed = true,
        .title = "Codes from the cache",
        .x_label = "codec",
        .y_label = "% of the byte products that one thread can make",
        .note = "The same over codes that lie in L1 or L2: what unpacking costs beside the products themselves.",
        .format = "%.1f"};
    const bool from_memory = strcmp(row_text(row, "from"), "memory") == 0;
    char part[FIG_NAME];
    if (!isfinite(row_number(row, "share_of_bandwidth")) || !row_text(row, "operation")[0])
        return 0;
    snprintf(part, sizeof part, "heads of %.0f, %.0f queries", row_number(row, "d"), row_number(row, "queries"));
    const double share = 100 * row_number(row, from_memory ? "share_of_bandwidth" : "share_of_products");
    figure *f = report_figure(r, from_memory ? &bandwidth : &products, "", part, source);
    if (f)
        fig_add_bar(f, strcmp(row_text(row, "operation"), "mix") == 0 ? "sums of values" : "scores of keys",
                    row_text(row, "codec"), share, share, share);
    return 1;
}

/* ---- codes ---- */
static size_t take_bound(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_LINES,
                               .id = "bound",
                               .title = "Codes against the bound on normal variables",
                               .x_label = "bits a value",
                               .y_label = "dB above the bound of rate and distortion",
                               .note = "No code gets below 0; 6 dB are one bit. A row of d values is coded by itself. "
                                       "Half bits are a mix of the whole ones beside them. Scalar codes "
                                       "(Lloyd-Max) are the same at any length.",
                               .format = "%.2f"};
    char name[FIG_NAME];
    const double trellis = row_number(row, "db_above_bound"), scalar = row_number(row, "db_above_bound_scalar");
    if (!isfinite(trellis))
        return 0;
    figure *f = report_figure(r, &p, "", "", source);
    if (f && row_number(row, "d") == 64) /* the scalar code's distance does not depend on d */
        fig_add(f, "scalar", row_number(row, "bits"), scalar, scalar, scalar);
    snprintf(name, sizeof name, "trellis, d = %.0f", row_number(row, "d"));
    if (f)
        fig_add(f, name, row_number(row, "bits"), trellis, trellis, trellis);
    return 1;
}

/* "turboquant-mse:bits=3", "by layer, head and side" */
static size_t take_shared_out(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_LINES,
                               .id = "shared-out",
                               .title = "Bits shared out over layers, heads, keys and values",
                               .x_label = "bits a value",
                               .y_label = "KL divergence from f16, nats a token",
                               .note = "The same method with the same bytes, shared out by measured losses. Lower is "
                                       "better; whiskers are 95 % intervals.",
                               .format = "%.5f",
                               .log_y = true};
    char method[FIG_NAME], family[FIG_NAME], name[2 * FIG_NAME + 4];
    const json_t *head = source->json;
    const interval y = row_interval(row, "kl");
    const double bits = row_number(row, "bits_per_value");
    if (!json_is_string(json_object_get(row, "bits")) || row_text(row, "kind")[0] || !(y.value > 0) ||
        !row_method(row, method)[0])
        return 0;
    snprintf(name, sizeof name, "%s, %s", method_family(method, family), row_text(row, "bits"));
    figure *f = report_figure(r, &p, row_model(r, row_text(row, "model")[0] ? row : head), "", source);
    if (f)
        fig_add(f, name, bits, y.value, y.low > 0 ? y.low : y.value, y.high);
    return 1;
}

/* One side packed and the other in f16: "velox:bits=2+f16". */
static size_t take_sides(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_BARS,
                               .id = "sides",
                               .title = "Keys and values by themselves",
                               .x_label = "method",
                               .y_label = "KL divergence from f16, nats a token",
                               .note = "One side packed, the other in f16. Lower is better.",
                               .format = "%.4f"};
    char method[FIG_NAME], side[FIG_NAME];
    const interval y = row_interval(row, "kl");
    row_method(row, method);
    char *plus = strchr(method, '+');
    if (!plus || row_text(row, "kind")[0] || !isfinite(y.value))
        return 0;
    *plus = 0;
    const bool values = strcmp(method, "f16") == 0, keys = strcmp(plus + 1, "f16") == 0;
    if (values == keys)
        return 0;
    snprintf(side, sizeof side, "%s", values ? plus + 1 : method);
    figure *f = report_figure(r, &p, row_model(r, row), "", source);
    if (f)
        fig_add_bar(f, values ? "values alone" : "keys alone", side, y.value, y.low, y.high);
    return 1;
}

static size_t take_calibration_text(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {
        .kind = FIG_BARS,
        .id = "calibration-text",
        .title = "Calibrated on a text of another kind",
        .x_label = "method",
        .y_label = "KL divergence from f16, nats a token",
        .note = "Judged on English prose, calibrated on what the legend says. Whiskers are 95 % intervals. Lower is "
                "better.",
        .format = "%.4f"};
    char method[FIG_NAME];
    const interval y = row_interval(row, "kl");
    if (!row_text(row, "calibrated_on")[0] || !row_text(row, "kind")[0] || !isfinite(y.value))
        return 0;
    figure *f = report_figure(r, &p, row_model(r, row), "", source);
    if (f)
        fig_add_bar(f, row_text(row, "kind"), row_method(row, method), y.value, y.low, y.high);
    return 1;
}

/* Rows of bench/kv-encode: CPU time of a prompt's encoding on one thread. */
static size_t take_encode(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {.kind = FIG_BARS,
                               .id = "encode",
                               .timed = true,
                               .title = "Packing a prompt",
                               .x_label = "method",
                               .y_label = "% of the prompt's time",
                               .note = "Storing its rows, codes included; CPU time of one thread, in turns. Whiskers "
                                       "are quartiles. Lower is better; f16 stores rows too.",
                               .format = "%.1f"};
    char method[FIG_NAME], part[FIG_NAME];
    const json_t *share = json_object_get(row, "share");
    double at[3];
    if (row_text(row, "kind")[0] || json_array_size(share) != 3 || !isfinite(row_number(row, "over_f16")))
        return 0;
    for (size_t i = 0; i < 3; i++)
        at[i] = 100 * json_number_value(json_array_get(share, i));
    snprintf(part, sizeof part, "%.0f tokens", row_number(row, "tokens"));
    const json_t *of = row_text(row, "model")[0] ? row : source->json;
    figure *f = report_figure(r, &p, row_model(r, of), part, source);
    if (f)
        fig_add_bar(f, "share", row_method(row, method), at[1], at[0], at[2]);
    return 1;
}

/* ---- llama.cpp ---- */
static size_t take_same_perplexity(report *r, const json_t *row, const report_file *source)
{
    static const fig_plan p = {
        .kind = FIG_BARS,
        .id = "peer-perplexity",
        .title = "Beside llama.cpp: the same perplexity",
        .x_label = "model",
        .y_label = "perplexity",
        .note =
            "The same file, the same tokens, f16 caches. Whiskers are standard errors over tokens, which both share; "
            "the interval of 95 % beside a model's name is that of the ratio, which is paired.",
        .format = "%.2f"};
    const json_t *ours = json_object_get(row, "ours"), *theirs = json_object_get(row, "llama.cpp");
    char name[FIG_NAME];
    if (!json_is_object(ours) || !json_is_object(theirs) || !isfinite(row_number(row, "ratio")))
        return 0;
    snprintf(name, sizeof name, "%.40s, ratio %.4f to %.4f", row_model(r, row), row_number(row, "ratio_low"),
             row_number(row, "ratio_high"));
    figure *f = report_figure(r, &p, "", "", source);
    const double a = row_number(ours, "ppl"), b = row_number(theirs, "ppl"), da = row_number(ours, "ppl_error"),
                 db = row_number(theirs, "ppl_error");
    if (f) {
        fig_add_bar(f, "veloxquant", name, a, a - da, a + da);
        fig_add_bar(f, "llama.cpp", name, b, b - db, b + db);
    }
    return 1;
}

report_panel *const report_bench_panels[] = {take_all_methods, take_peaks,           take_bound,
                                             take_shared_out,  take_sides,           take_calibration_text,
                                             take_encode,      take_same_perplexity, NULL};
