/* veloxquant plan: bits by layer, head and side for a budget, into a file. */
#include <stdlib.h>
#include <string.h>

#include "cache_plan.h"

struct args {
    cli_model_args model;
    const char *out, *method;
    cli_texts texts;
    uint32_t n_tokens, n_window;
    bool by_layer;
};

#define AT(field) offsetof(struct args, field)

static const cli_option plan_options[] = {
    {'o', "output", CLI_TEXT, AT(out), "FILE", "where the plan goes, for --kv plan:FILE; written whole or not at all",
     0, 0},
    {0, "kv", CLI_TEXT, AT(method), "METHOD",
     "the method whose bits are chosen, or KEYS+VALUES (default: any that was measured)", 0, 0},
    {0, "kv-memory", CLI_TEXT, AT(model.kv_memory), "SIZE",
     "all that the cache may take with a full context: 200M, 1.5G", 0, 0},
    {0, "kv-bits", CLI_REAL, AT(model.kv_bits), "B",
     "bits of a packed value, with scales and tables, at a full context", 0.5, 32},
    {'c', "ctx-size", CLI_COUNT, AT(model.n_ctx), "N",
     "tokens of context (default: what the model was trained for, at most 4096)", 2, 16777216},
    {0, "calibration", CLI_TEXT, AT(model.calibration), "FILE",
     "what 'veloxquant calibrate' made of this model: calibrated methods join", 0, 0},
    {0, "kv-losses", CLI_TEXT, AT(model.kv_losses), "FILE",
     "a plan whose measured losses of heads are used instead of measuring", 0, 0},
};

static const cli_option measure_options[] = {
    {'f', "text", CLI_TEXTS, AT(texts), "FILE", "a text to measure on what each head loses; '-' is standard input", 0,
     0},
    {0, "tokens", CLI_COUNT, AT(n_tokens), "N", "tokens of the text, in windows of --window", 64, 1048576},
    {0, "window", CLI_COUNT, AT(n_window), "N", "tokens of a window, of which the first quarter is not scored", 64,
     16777216},
    {0, "by-layer", CLI_FLAG, AT(by_layer), NULL,
     "whole layers at once: as many times faster as there are kv heads, and less sharp", 0, 0},
};

static const cli_option model_options[] = {
    {'m', "model", CLI_TEXT, AT(model.model), "FILE", "the model, a GGUF file or a reservoir", 0, 0},
    {'t', "threads", CLI_COUNT, AT(model.n_threads), "N", "threads (default: all cores that this process may use)", 1,
     1024},
};

static const char intro[] =
    "Chooses how a cache stores the keys and values of a model within a budget: methods, and bits for each layer, kv "
    "head and side, such that the expected loss is smallest.\n"
    "\n"
    "With --text it is measured first what the model loses when each head alone is stored at 2 bits (KL divergence "
    "from "
    "an f16 cache). Heads differ by factors, and nothing cheaper tells how. The plan's file keeps these losses: "
    "--kv-losses FILE uses them for other budgets. Without either, all heads count alike.";

static const char ending[] = "Examples:\n"
                             "  veloxquant plan -m model.gguf --text book.txt --kv-bits 2.5 -o model.plan\n"
                             "  veloxquant generate -m model.gguf -f long.txt --kv plan:model.plan\n"
                             "  veloxquant generate -m model.gguf -f long.txt --kv auto --kv-memory 50M --kv-losses "
                             "model.plan\n";

static bool on_progress(void *arg, size_t done, size_t all)
{
    cli_progress_step(arg, done, all, "");
    return !cli_interrupted();
}

static int read_text(const struct args *a, const cli_engine *e, int32_t **ids, size_t *n)
{
    *n = 0;
    *ids = calloc(a->n_tokens, sizeof **ids);
    if (!*ids)
        return cli_fail("no memory for %u tokens", a->n_tokens);
    for (size_t i = 0; i < a->texts.n && *n < a->n_tokens; i++) {
        char *bytes;
        size_t n_bytes, n_part;
        int32_t *part;
        vq_error err;
        if (!cli_read_file(a->texts.at[i], &bytes, &n_bytes))
            return CLI_FAILED;
        const vq_status status =
            vq_tokenize(vq_model_tokenizer(e->model), bytes, n_bytes, VQ_TOKENIZE_BOS, &part, &n_part, &err);
        free(bytes);
        if (status != VQ_OK)
            return cli_fail("%s: %s", a->texts.at[i], err.text);
        for (size_t k = 0; k < n_part && *n < a->n_tokens; k++)
            (*ids)[(*n)++] = part[k];
        vq_free(part);
    }
    if (*n < 2)
        return cli_fail("%s: %zu tokens, at least 2 are needed to measure", a->texts.at[0], *n);
    return CLI_FINE;
}

/* Into *losses, a plan without bits. */
static int measure(vq_plan **losses, const struct args *a, const cli_engine *e)
{
    const vq_model_info *info = vq_model_get_info(e->model);
    cli_progress progress;
    vq_error err;
    int32_t *ids;
    size_t n;
    int status = read_text(a, e, &ids, &n);
    if (status == CLI_FINE && vq_plan_new(losses, info->n_layers, info->n_kv_heads, &err) != VQ_OK)
        status = cli_fail_with(&err);
    if (status == CLI_FINE) {
        const uint32_t window = a->n_window < n ? a->n_window : (uint32_t)n;
        const vq_head_losses_params p = {.windows = {.ids = ids, .n = n, .n_ctx = window, .skip = window / 4},
                                         .by_head = !a->by_layer,
                                         .pool = e->pool,
                                         .progress = on_progress,
                                         .arg = &progress};
        cli_catch_interrupt(1);
        cli_progress_start(&progress, a->by_layer ? "percent of a layer" : "percent of a head");
        const vq_status got = vq_eval_head_losses(e->model, &p, (*losses)->key_losses, (*losses)->value_losses, &err);
        cli_progress_end(&progress);
        if (got == VQ_ERR_CANCELLED) {
            cli_say("stopped; nothing was written");
            status = CLI_INTERRUPTED;
        } else if (got != VQ_OK) {
            status = cli_fail_with(&err);
        }
    }
    free(ids);
    return status;
}

static int choose(const struct args *a, const cli_engine *e, const cli_page *page, const vq_plan *losses,
                  vq_plan_wish *wish)
{
    static vq_plan_candidate list[VQ_PLAN_MOST_CANDIDATES];
    char keys[256];
    const char *plus = a->method ? strchr(a->method, '+') : NULL;
    if (a->method) {
        snprintf(keys, sizeof keys, "%.*s", plus ? (int)(plus - a->method) : (int)strlen(a->method), a->method);
        wish->keys = keys;
        wish->values = plus ? plus + 1 : keys;
    }
    if (losses) {
        wish->key_losses = losses->key_losses;
        wish->value_losses = losses->value_losses;
    }
    vq_session_params session;
    vq_session_params_init(&session);
    session.n_ctx = a->model.n_ctx;
    session.pool = e->pool;
    session.calibration = e->calibration;
    vq_kv_params kv;
    vq_plan *plan = NULL;
    vq_error err;
    size_t n;
    if (vq_session_kv_params(e->model, &session, &kv, &err) != VQ_OK)
        return cli_fail_with(&err);
    const vq_status got = vq_plan_choose(&plan, &kv, wish, list, &n, &err);
    if (got == VQ_ERR_ARG)
        return cli_usage(page, "%s", err.text);
    if (got != VQ_OK)
        return cli_fail_with(&err);
    if (losses) {
        const size_t n_bytes = (size_t)plan->n_layers * plan->n_kv_heads * sizeof(double);
        memcpy(plan->key_losses, losses->key_losses, n_bytes);
        memcpy(plan->value_losses, losses->value_losses, n_bytes);
    }
    int status = CLI_FINE;
    if (vq_plan_save(plan, a->out, &err) != VQ_OK)
        status = cli_fail_with(&err);
    if (status == CLI_FINE) {
        printf("%s: for %u tokens: ", a->out, kv.n_ctx);
        cli_print_candidate(stdout, &list[0]);
        cli_print_plan(stdout, plan);
    }
    vq_plan_close(plan);
    return status;
}

int cli_plan(int argc, char **argv)
{
    struct args a = {.n_tokens = 1024, .n_window = 512};
    cli_model_args_init(&a.model);
    const cli_group groups[] = {
        {"Plan", plan_options, sizeof plan_options / sizeof *plan_options, &a},
        {"Measuring heads", measure_options, sizeof measure_options / sizeof *measure_options, &a},
        {"Model", model_options, sizeof model_options / sizeof *model_options, &a},
    };
    const cli_page page = {
        "plan", "-m MODEL (--kv-bits B | --kv-memory SIZE) -o FILE [options]", intro, groups, 3, ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (!a.out)
        return cli_usage(&page, "no output: -o FILE says where the plan goes");
    if (a.texts.n > 0 && a.model.kv_losses)
        return cli_usage(&page, "--text measures losses and --kv-losses reads them: one of them");
    for (size_t i = 0; i <= a.texts.n; i++) {
        const char *input = i < a.texts.n ? a.texts.at[i] : a.model.model;
        if (cli_same_file(a.out, input))
            return cli_usage(&page, "%s: is read, and would be overwritten by the output", input);
    }
    vq_plan_wish wish;
    vq_plan *losses;
    vq_error err;
    status = cli_wish(&wish, &losses, &page, &a.model);
    cli_engine e = {0};
    if (status == CLI_FINE)
        status = cli_engine_open(&e, &page, &a.model);
    if (status == CLI_FINE && losses && vq_plan_fits(losses, e.model, &err) != VQ_OK)
        status = cli_fail("%s: %s", a.model.kv_losses, err.text);
    if (status == CLI_FINE && a.texts.n > 0)
        status = measure(&losses, &a, &e);
    if (status == CLI_FINE)
        status = choose(&a, &e, &page, losses, &wish);
    vq_plan_close(losses);
    cli_engine_close(&e);
    return status;
}
