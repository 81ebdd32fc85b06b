/* veloxquant eval speed: decoding after a prompt with caches and policies, in turns; what policies cost; memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

struct args {
    eval_args shared;
    uint32_t n_prompt, n_decode, n_rounds;
    bool need_quiet;
};

#define AT(field) offsetof(struct args, field)
#define SHARED_AT(field) offsetof(struct args, shared.field)

static const cli_option options[] = {
    {'p', "prompt", CLI_COUNT, AT(n_prompt), "N", "tokens of the prompt", 1, 1048576},
    {'n', "decode", CLI_COUNT, AT(n_decode), "N", "tokens decoded for a sample; 0: only prompt and memory", 0, 65536},
    {'r', "rounds", CLI_COUNT, AT(n_rounds), "N", "samples of each", 1, 1000},
    {0, "need-quiet", CLI_FLAG, AT(need_quiet), NULL, "fail when other programs took CPU time meanwhile", 0, 0},
    {0, "json", CLI_TEXT, SHARED_AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const char intro[] =
    "Reads a prompt into each cache, lets its policy drop what the budget does not allow, and then decodes, all "
    "configurations in turns and the first one twice a round as a control. A sample goes on where the one before "
    "ended, so the caches grow by rounds times --decode tokens.\n"
    "\n"
    "Looking and dropping are what the policy itself took, of prompt and decoding: computing the weights that it looks "
    "at, and scores, choice and merging of pages.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant eval speed -m model.gguf --prompt 2048 --evict none --evict snapkv:budget=25%\n"
    "  veloxquant eval speed -m model.gguf --prompt 8192 --decode 0 --kv f16 --kv velox:bits=2\n";

/* INPUTS: token seeds that samples rotate through. */
enum { INPUTS = 16, WARM = 4 };

struct one {
    const struct args *args;
    vq_session *session;
    double prompt_seconds;
    vq_kv_evict_stats cost; /* of the prompt */
    cli_cache cache;        /* after it */
};

struct job {
    const struct args *args;
    cli_engine engine;
    eval_config configs[EVAL_MOST_CONFIGS];
    size_t n_configs;
    struct one all[EVAL_MOST_CONFIGS];
    double *seconds; /* [n_configs + 1][n_rounds] */
    uint32_t n_done; /* rounds */
    vq_load load;
    cli_progress progress;
};

static int open_all(struct job *j, const cli_page *page, cli_model_args *model)
{
    const struct args *a = j->args;
    vq_error err;
    int status = eval_configs(page, &a->shared, j->configs, &j->n_configs);
    if (status == CLI_FINE)
        status = cli_engine_open(&j->engine, page, model);
    /* the control runs on the first configuration's session */
    model->n_ctx = a->n_prompt + WARM + a->n_decode * (2 * a->n_rounds + 2);
    for (size_t i = 0; i < j->n_configs && status == CLI_FINE; i++) {
        struct one *o = &j->all[i];
        o->args = a;
        status = eval_session_open(&o->session, &j->engine, page, model, &j->configs[i]);
        if (status != CLI_FINE)
            break;
        if (vq_eval_prompt_speed(o->session, a->n_prompt, 1, &o->prompt_seconds, &err) != VQ_OK)
            return cli_fail_with(&err);
        vq_kv_get_evict_stats(vq_session_kv(o->session), &o->cost);
        cli_cache_measure(o->session, &o->cache);
        double warm;
        if (a->n_decode > 0 && vq_eval_decode_speed(o->session, WARM, 2, &warm, &err) != VQ_OK)
            return cli_fail_with(&err);
        if (cli_interrupted())
            return CLI_INTERRUPTED;
        cli_progress_step(&j->progress, i + 1, j->n_configs + a->n_rounds, j->configs[i].name);
    }
    return status;
}

static vq_status decode(void *arg, uint32_t input, vq_error *err)
{
    struct one *o = arg;
    double seconds;
    return vq_eval_decode_speed(o->session, o->args->n_decode, 100 + input, &seconds, err);
}

static bool on_round(void *arg, uint32_t done, uint32_t all)
{
    struct job *j = arg;
    j->n_done = done;
    cli_progress_step(&j->progress, j->n_configs + done, j->n_configs + all, "");
    return !cli_interrupted();
}

static int run(struct job *j, const cli_page *page, cli_model_args *model)
{
    const struct args *a = j->args;
    vq_error err;
    cli_progress_start(&j->progress, "prompts and rounds");
    int status = open_all(j, page, model);
    if (status != CLI_FINE || a->n_decode == 0) {
        cli_progress_end(&j->progress);
        return status;
    }
    vq_variant variants[EVAL_MOST_CONFIGS];
    for (size_t i = 0; i < j->n_configs; i++)
        variants[i] = (vq_variant){j->configs[i].name, decode, &j->all[i]};
    j->seconds = calloc((j->n_configs + 1) * a->n_rounds, sizeof *j->seconds);
    if (!j->seconds)
        return cli_fail("no memory for %u rounds", a->n_rounds);
    const vq_turns turns = {.variants = variants,
                            .n_variants = j->n_configs,
                            .n_inputs = INPUTS,
                            .n_rounds = a->n_rounds,
                            .need_quiet = a->need_quiet,
                            .progress = on_round,
                            .progress_arg = j};
    const vq_status taken = vq_take_turns(&turns, j->seconds, &j->load, &err);
    cli_progress_end(&j->progress);
    if (taken == VQ_ERR_CANCELLED) {
        cli_say("stopped after %u of %u rounds", j->n_done, a->n_rounds);
        return CLI_INTERRUPTED;
    }
    return taken == VQ_OK ? CLI_FINE : cli_fail_with(&err);
}

/* Tokens a second of row k's finished rounds into out [n_done]. */
static void rates(const struct job *j, size_t k, double *out)
{
    for (uint32_t i = 0; i < j->n_done; i++)
        out[i] = cli_rate(j->args->n_decode, j->seconds[k * j->args->n_rounds + i]);
}

static void print_text(const struct job *j, double *scratch)
{
    const int width = eval_name_width(j->configs, j->n_configs);
    const vq_model_info *info = vq_model_get_info(j->engine.model);
    printf("%-*s %8s %10s %9s %9s %9s  %s\n", width, "cache", "rows", "in use", "prompt/s", "looking", "dropping",
           j->n_done ? "decode/s (quartiles)" : "");
    for (size_t i = 0; i <= j->n_configs; i++) {
        const bool again = i == j->n_configs;
        const struct one *o = &j->all[again ? 0 : i];
        char used[16];
        if (again && j->n_done == 0)
            break;
        if (again)
            printf("%-*s %8s %10s %9s %9s %9s", width, "the first again", "", "", "", "", "");
        else
            printf("%-*s %8.1f %10s %9.1f %8.1f%% %8.1f%%", width, j->configs[i].name,
                   (double)o->cache.bytes.n_rows / ((double)info->n_layers * info->n_kv_heads),
                   cli_bytes(o->cache.used, used), cli_rate(j->args->n_prompt, o->prompt_seconds),
                   100 * o->cost.observe_seconds / o->prompt_seconds,
                   100 * o->cost.compact_seconds / o->prompt_seconds);
        if (j->n_done > 0) {
            rates(j, i, scratch);
            const vq_spread s = vq_spread_of(scratch, j->n_done);
            printf("  %.1f (%.1f-%.1f)", s.median, s.q1, s.q3);
        }
        putchar('\n');
    }
    if (j->n_done > 0 && !j->load.quiet)
        puts("The machine was not quiet: trust ratios within this run at most.");
}

static json_t *row_json(const struct job *j, size_t i, const char *model, double *scratch)
{
    const struct one *o = &j->all[i];
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:o, s:I, s:o}", "kind", "speed", "model",
                            model, "kv", j->configs[i].kv, "evict", j->configs[i].evict ? j->configs[i].evict : "none",
                            "tokens", (int)j->args->n_prompt, "depth", (int)j->args->n_prompt, "threads",
                            (int)vq_pool_n_threads(j->engine.pool), "prompt_seconds", cli_json_real(o->prompt_seconds),
                            "look_seconds", cli_json_real(o->cost.observe_seconds), "drop_seconds",
                            cli_json_real(o->cost.compact_seconds), "bytes", (json_int_t)o->cache.used,
                            "bits_per_value", cli_json_real(o->cache.bits));
    if (row && j->n_done > 0) {
        rates(j, i, scratch);
        json_object_set_new(row, "decode_tps", cli_json_spread(scratch, j->n_done));
    }
    return row;
}

static int write_results(const struct job *j, const cli_model_args *model, double *scratch, int argc, char **argv)
{
    json_t *results =
        eval_results("decode speed after a prompt, cost of policies, memory", model, j->engine.model, argc, argv);
    for (size_t i = 0; results && i < j->n_configs; i++)
        eval_add_row(results, row_json(j, i, eval_model_name(model->model), scratch));
    if (results && j->n_done > 0)
        json_object_set_new(results, "load", cli_json_load(&j->load));
    return cli_json_write(j->args->shared.json, results);
}

static int finish(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    double *scratch = malloc((j->args->n_rounds + 1) * sizeof *scratch);
    if (!scratch)
        return cli_fail("no memory for %u rounds", j->args->n_rounds);
    print_text(j, scratch);
    const int status = j->args->shared.json ? write_results(j, model, scratch, argc, argv) : CLI_FINE;
    free(scratch);
    return status;
}

int eval_speed(int argc, char **argv)
{
    struct args a = {.n_prompt = 2048, .n_decode = 32, .n_rounds = 7};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"What is measured", options, sizeof options / sizeof options[0], &a},
        {"Caches", eval_cache_options, eval_n_cache_options, &a.shared},
        {"Model", eval_model_options, eval_n_model_options, &model},
    };
    const cli_page page = {"eval speed", "-m MODEL [options]", intro, groups, 3, ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    cli_catch_interrupt(1);
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = &a;
    status = run(j, &page, &model);
    if ((status == CLI_FINE || (status == CLI_INTERRUPTED && j->n_done > 0)) &&
        finish(j, &model, argc, argv) != CLI_FINE)
        status = CLI_FAILED;
    for (size_t i = 0; i < j->n_configs; i++)
        vq_session_close(j->all[i].session);
    free(j->seconds);
    cli_engine_close(&j->engine);
    free(j);
    return status;
}
