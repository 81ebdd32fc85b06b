/* veloxquant generate: a prompt goes on. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "sampling.h"

struct args {
    const char *prompt, *file, *save_cache, *load_cache;
    uint32_t n_predict;
    cli_texts stops;
    bool escape, control, ignore_end, show_control, stats, quiet;
};

#define AT(field) offsetof(struct args, field)

static const cli_option text_options[] = {
    {'p', "prompt", CLI_TEXT, AT(prompt), "TEXT", "the text to go on from (default: standard input, when piped)", 0, 0},
    {'f', "file", CLI_TEXT, AT(file), "FILE", "take the prompt from a file; one line end at its end is dropped", 0, 0},
    {'n', "n-predict", CLI_COUNT_OR_ALL, AT(n_predict), "N",
     "new tokens at most; -1: until the context is full; 0: only evaluate the prompt", 0, 4294967294.0},
    {0, "stop", CLI_TEXTS, AT(stops), "TEXT", "end the text just before this string; may be given several times", 0, 0},
    {0, "ignore-eos", CLI_FLAG, AT(ignore_end), NULL, "never draw a token that ends the text", 0, 0},
    {'e', "escape", CLI_FLAG, AT(escape), NULL, "understand \\n, \\t, \\r, \\\\ and \\\" in -p and --stop", 0, 0},
    {0, "control", CLI_FLAG, AT(control), NULL,
     "names of control tokens in the prompt, such as <|im_start|>, mean those tokens; otherwise they are plain text", 0,
     0},
    {0, "show-control", CLI_FLAG, AT(show_control), NULL, "print control tokens by name", 0, 0},
};

static const cli_option other_options[] = {
    {0, "save-cache", CLI_TEXT, AT(save_cache), "FILE",
     "when done, save the evaluated tokens and their cache (with -n 0: those of the prompt)", 0, 0},
    {0, "load-cache", CLI_TEXT, AT(load_cache), "FILE",
     "start from a saved cache: what the prompt has in common with it is not evaluated again; without a prompt, go on "
     "from its end",
     0, 0},
    {0, "stats", CLI_FLAG, AT(stats), NULL, "also print where the bytes of the cache are", 0, 0},
    {'q', "quiet", CLI_FLAG, AT(quiet), NULL, "no summary at the end", 0, 0},
};

static const char intro[] =
    "Goes on from a prompt. The new text, and nothing else, goes to standard output as it appears; a summary of two "
    "lines goes to standard error.\n"
    "\n"
    "The prompt is taken as it is, without a chat template ('veloxquant chat' applies one). An empty prompt starts "
    "from "
    "the model's beginning-of-sequence token or, where it has none, its end-of-sequence token. A prompt that does not "
    "fit into the context is an error; nothing is cut silently.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant generate -m model.gguf -p \"The capital of France is\" -n 32 --temp 0\n"
    "  veloxquant generate -m model.gguf -f essay.txt --kv turboquant-mse:bits=3 -c 8192\n"
    "  git log -5 | veloxquant generate -m model.gguf --stop \"commit\" -n 200 --seed 1\n"
    "  veloxquant generate -m model.gguf -f rules.txt -n 0 --save-cache rules.vq\n"
    "  veloxquant generate -m model.gguf -p \"$(cat rules.txt) Q: ...\" --load-cache rules.vq\n"
    "\n"
    "Sampling works in the order penalty, top-k, top-p, min-p, temperature. The same seed\n"
    "gives the same text, whatever the number of threads.\n"
    "\n"
    "Exit status: 0 fine, 1 failure, 2 wrong usage, 130 stopped by Ctrl-C (what was\n"
    "generated until then has been printed).\n";

/* ---- what the callbacks see ---- */
struct output {
    bool failed; /* standard output does not take it */
    char last;   /* byte written last */
    cli_progress progress;
};

static bool on_prompt(void *arg, size_t done, size_t all)
{
    struct output *o = arg;
    cli_progress_step(&o->progress, done, all, "");
    return !cli_interrupted();
}

static bool on_token(void *arg, int32_t id)
{
    struct output *o = arg;
    (void)id;
    cli_progress_end(&o->progress);
    return !cli_interrupted();
}

static bool on_text(void *arg, const char *utf8, size_t n_bytes)
{
    struct output *o = arg;
    o->failed = !cli_write(utf8, n_bytes);
    o->last = utf8[n_bytes - 1];
    return !o->failed && !cli_interrupted();
}

/* ---- the prompt ---- */

/* The text of the prompt; *bytes stays NULL when there is none at all (only with a loaded cache). */
static int read_prompt(const cli_page *page, const struct args *a, char **bytes, size_t *n_bytes)
{
    if (a->prompt && a->file)
        return cli_usage(page, "both -p and -f: one prompt is enough");
    if (a->prompt) {
        *bytes = strdup(a->prompt);
        if (!*bytes)
            return cli_fail("no memory for the prompt");
        if (a->escape)
            cli_unescape(*bytes);
        *n_bytes = strlen(*bytes);
        return CLI_FINE;
    }
    if (!a->file && isatty(STDIN_FILENO))
        return a->load_cache ? CLI_FINE : cli_usage(page, "no prompt: give -p TEXT or -f FILE, or pipe it in");
    if (!cli_read_file(a->file ? a->file : "-", bytes, n_bytes))
        return cli_interrupted() ? CLI_INTERRUPTED : CLI_FAILED;
    if (*n_bytes > 0 && (*bytes)[*n_bytes - 1] == '\n')
        --*n_bytes;
    if (*n_bytes == 0 && a->load_cache) { /* nothing was piped in: go on from the end of the cache */
        free(*bytes);
        *bytes = NULL;
    }
    return CLI_FINE;
}

static int tokenize_prompt(const cli_engine *e, const struct args *a, const char *bytes, size_t n_bytes, int32_t **ids,
                           size_t *n)
{
    const vq_tokenizer *t = vq_model_tokenizer(e->model);
    vq_error err;
    const unsigned flags = VQ_TOKENIZE_BOS | (a->control ? VQ_TOKENIZE_CONTROL : 0U);
    if (vq_tokenize(t, bytes, n_bytes, flags, ids, n, &err) != VQ_OK)
        return cli_fail_with(&err);
    if (*n > 0)
        return CLI_FINE;
    const int32_t start = vq_tokenizer_bos(t) != VQ_NO_TOKEN ? vq_tokenizer_bos(t) : vq_tokenizer_eos(t);
    if (start == VQ_NO_TOKEN)
        return cli_fail("the prompt is empty, and the model has no token to start a text from");
    const vq_str name = vq_token_bytes(t, start, true);
    cli_say("the prompt is empty: starting from token %d, %.*s", start, (int)name.n_bytes, name.at);
    vq_free(*ids);
    *ids = malloc(sizeof **ids);
    if (!*ids)
        return cli_fail("no memory for the prompt");
    (*ids)[0] = start;
    *n = 1;
    return CLI_FINE;
}

/* ---- saved caches ---- */

/* Goes back to what the loaded cache and the prompt have in common, less the last token, whose logits are needed. */
static int reuse_cache(vq_session *s, const int32_t *ids, size_t n, size_t *n_reused)
{
    vq_error err;
    size_t common = vq_session_common(s, ids, n);
    if (common == n)
        common--;
    vq_status status = vq_session_truncate(s, (uint32_t)common, &err);
    if (status == VQ_ERR_UNSUPPORTED) {
        cli_say("the saved cache cannot go back to %zu of its %u tokens (%s): starting anew", common,
                vq_session_n_tokens(s), err.text);
        common = 0;
        status = vq_session_truncate(s, 0, &err);
    }
    *n_reused = common;
    return status == VQ_OK ? CLI_FINE : cli_fail_with(&err);
}

/* ---- running ---- */

static void print_summary(const vq_generate_result *r, const cli_engine *e, size_t n_reused, uint64_t seed, bool drawn,
                          bool details)
{
    static const char *const reasons[] = {"-n reached", "end of text", "stop string", "context full", "stopped"};
    cli_cache cache;
    char used[16], f16[16], random[48] = "", reused[64] = "", rate[32] = "";
    cli_cache_measure(e->session, &cache);
    if (drawn)
        snprintf(random, sizeof random, "; seed %" PRIu64, seed);
    if (n_reused)
        snprintf(reused, sizeof reused, " (%zu more from the saved cache)", n_reused);
    if (r->n_new > 1) /* the first one comes with the prompt */
        snprintf(rate, sizeof rate, ", %.1f/s", cli_rate(r->n_new - 1, r->decode_seconds));
    fprintf(stderr, "[prompt %zu token%s%s, %.1f/s; first token after %.3f s; %zu new%s: %s]\n", r->n_prompt,
            r->n_prompt == 1 ? "" : "s", reused, cli_rate(r->n_prompt, r->prompt_seconds), r->first_token_seconds,
            r->n_new, rate, reasons[r->finish]);
    const uint32_t n = vq_session_n_tokens(e->session);
    fprintf(stderr, "[cache %s for %u token%s, %.2f bits a value; f16 would need %s%s]\n", cli_bytes(cache.used, used),
            n, n == 1 ? "" : "s", cache.bits, cli_bytes(cache.f16, f16), random);
    if (details)
        cli_cache_print(&cache);
}

static int run(const cli_page *page, const struct args *a, const cli_sampling *sampling, cli_engine *e,
               const int32_t *ids, size_t n)
{
    vq_error err;
    size_t n_reused = 0;
    if (a->load_cache) {
        if (vq_session_load(e->session, a->load_cache, &err) != VQ_OK)
            return cli_fail_with(&err);
        if (!ids) { /* go on from its end: its last token gives the first logits */
            n = vq_session_n_tokens(e->session);
            if (n == 0)
                return cli_fail("%s: holds no tokens to go on from", a->load_cache);
            ids = vq_session_ids(e->session);
        }
    }
    const uint32_t n_ctx = vq_session_n_ctx(e->session);
    if (n > n_ctx)
        return cli_fail("the prompt has %zu tokens, the context %u (-c N changes it; the model was trained on %u)", n,
                        n_ctx, vq_model_get_info(e->model)->n_ctx_train);
    if (a->load_cache) {
        const int status = reuse_cache(e->session, ids, n, &n_reused);
        if (status != CLI_FINE)
            return status;
    }

    vq_sampler *sampler;
    vq_sampler_params params;
    cli_sampling_params(sampling, &params);
    if (vq_sampler_open(&sampler, &params, vq_model_get_info(e->model)->n_vocab, &err) != VQ_OK)
        return cli_usage(page, "%s", err.text);
    for (size_t i = 0; i < n_reused; i++)
        vq_sampler_accept(sampler, ids[i]);
    struct output output = {.last = '\n'};
    cli_progress_start(&output.progress, "prompt");
    const vq_generate_params generate = {
        .n_predict = a->n_predict,
        .stops = a->stops.at,
        .n_stops = a->stops.n,
        .ignore_end = a->ignore_end,
        .show_control = a->show_control,
        .prompt_progress = on_prompt,
        .token = on_token,
        .text = on_text,
        .arg = &output,
    };
    vq_generate_result result;
    const vq_status status = vq_generate(e->session, sampler, ids + n_reused, n - n_reused, &generate, &result, &err);
    vq_sampler_close(sampler);
    cli_progress_end(&output.progress);
    if (status != VQ_OK)
        return status == VQ_ERR_ARG ? cli_usage(page, "%s", err.text) : cli_fail_with(&err);
    if (output.failed)
        return CLI_FAILED; /* cli_finish_output says why */
    if (output.last != '\n' && isatty(STDOUT_FILENO))
        cli_write("\n", 1);
    if (a->save_cache && (result.finish == VQ_FINISH_LENGTH || result.finish == VQ_FINISH_CANCELLED) &&
        result.pending != VQ_NO_TOKEN) /* shown, so that it belongs to what is saved; without room it stays out */
        vq_session_eval(e->session, &result.pending, 1, NULL, 0, NULL, NULL);
    if (!a->quiet)
        print_summary(&result, e, n_reused, params.seed, params.temperature > 0, a->stats);
    if (a->save_cache && vq_session_save(e->session, a->save_cache, &err) != VQ_OK)
        return cli_fail_with(&err);
    return cli_interrupted() ? CLI_INTERRUPTED : CLI_FINE;
}

int cli_generate(int argc, char **argv)
{
    struct args a = {.n_predict = 256};
    cli_model_args model;
    cli_sampling sampling;
    cli_model_args_init(&model);
    cli_sampling_init(&sampling);
    const cli_group groups[] = {
        {"Model", cli_model_options, cli_n_model_options, &model},
        {"Text", text_options, sizeof text_options / sizeof text_options[0], &a},
        {"Sampling", cli_sampling_options, cli_n_sampling_options, &sampling},
        {"Cache", cli_cache_options, cli_n_cache_options, &model},
        {"Saved caches and figures", other_options, sizeof other_options / sizeof other_options[0], &a},
    };
    const cli_page page = {
        "generate", "-m MODEL [-p PROMPT] [options]", intro, groups, sizeof groups / sizeof groups[0], ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (cli_same_file(a.save_cache, model.model) || cli_same_file(a.save_cache, a.file))
        return cli_usage(&page, "%s: is read, and would be overwritten by --save-cache", a.save_cache);
    char *stops[CLI_MOST_TEXTS] = {0};
    if (a.escape) {
        for (size_t i = 0; i < a.stops.n; i++) {
            stops[i] = strdup(a.stops.at[i]);
            if (!stops[i])
                return cli_fail("no memory for stop strings");
            cli_unescape(stops[i]);
            a.stops.at[i] = stops[i];
        }
    }
    cli_catch_interrupt(1);
    char *prompt = NULL;
    size_t n_bytes = 0, n = 0;
    int32_t *ids = NULL;
    cli_engine e = {0};
    status = model.model ? read_prompt(&page, &a, &prompt, &n_bytes) : CLI_FINE;
    if (status == CLI_FINE)
        status = cli_engine_open(&e, &page, &model);
    if (status == CLI_FINE && prompt)
        status = tokenize_prompt(&e, &a, prompt, n_bytes, &ids, &n);
    if (status == CLI_FINE)
        status = cli_session_open(&e.session, &e, &page, &model, NULL);
    if (status == CLI_FINE)
        status = run(&page, &a, &sampling, &e, ids, n);
    cli_engine_close(&e);
    vq_free(ids);
    free(prompt);
    for (size_t i = 0; i < CLI_MOST_TEXTS; i++)
        free(stops[i]);
    return status;
}
