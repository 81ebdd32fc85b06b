/* veloxquant eval speed: prompts and decoding with caches and policies, in turns: time to the first token, percentiles
 * of a token, what is attention and what encoding, what policies cost, memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

struct args {
    eval_args shared;
    cli_counts depths;
    uint32_t n_decode, n_rounds, n_inputs;
    bool need_quiet, fill;
};

#define AT(field) offsetof(struct args, field)
#define SHARED_AT(field) offsetof(struct args, shared.field)

static const cli_option options[] = {
    {'p', "prompt", CLI_COUNTS, AT(depths), "LIST", "tokens of the prompt; several are measured one after another", 1,
     1048576},
    {'n', "decode", CLI_COUNT, AT(n_decode), "N", "tokens decoded for a sample; 0: only prompt and memory", 0, 65536},
    {'r', "rounds", CLI_COUNT, AT(n_rounds), "N", "samples of each", 1, 1000},
    {0, "fill", CLI_FLAG, AT(fill), NULL,
     "put rows straight into the caches instead of reading a prompt: for long ones, whose time is not wanted", 0, 0},
    {'f', "file", CLI_TEXTS, SHARED_AT(files), "FILE",
     "decode tokens of this text; may be given several times (default: tokens drawn at random)", 0, 0},
    {0, "inputs", CLI_COUNT, AT(n_inputs), "N", "different inputs that samples rotate through, at least 2", 1, 4096},
    {0, "need-quiet", CLI_FLAG, AT(need_quiet), NULL, "fail when other programs took CPU time meanwhile", 0, 0},
    {0, "json", CLI_TEXT, SHARED_AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const char intro[] =
    "Reads a prompt into each cache, lets its policy drop what the budget does not allow, and then decodes, all "
    "configurations in turns and the first one twice a round as a control. A sample goes on where the one before "
    "ended, so the caches grow by rounds times --decode tokens.\n"
    "\n"
    "Looking and dropping are what the policy itself took, of prompt and decoding: computing the weights that it looks "
    "at, and scores, choice and merging of pages.\n"
    "\n"
    "Attention is the share of a decoded token's time that the cache's attention takes, encoding that of storing rows, "
    "from one more sample with clocks around both. At most is what a token could gain if attention cost nothing "
    "(Amdahl): no kernel of the cache can give more.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant eval speed -m model.gguf --prompt 2048 --evict none --evict snapkv:budget=25%\n"
    "  veloxquant eval speed -m model.gguf --prompt 128,1024,8192 --fill --kv f16 --kv velox:bits=2\n"
    "  veloxquant eval speed -m model.gguf --prompt 8192 --decode 0 --kv f16 --kv velox:bits=2\n";

enum { WARM = 4 };

struct job;

/* One configuration at one depth. */
struct one {
    struct job *job;
    vq_session *session;
    double prompt_seconds, decode_seconds; /* decode: of the sample with clocks */
    vq_kv_evict_stats cost;                /* of the prompt */
    cli_cache cache;                       /* after it */
    uint64_t resident, process;            /* bytes then: of the cache's mappings, of everything */
    double *seconds;                       /* [n_rounds] of samples */
    double *token_seconds;                 /* [2 n_rounds n_decode]; of the first configuration the control's too */
    size_t n_tokens;
    uint32_t n_runs;
    vq_kv_times *prompt, *decode; /* [n_layers] */
};

struct job {
    const struct args *args;
    cli_engine engine;
    eval_config configs[EVAL_MOST_CONFIGS];
    size_t n_configs;
    uint32_t n_layers;
    int32_t *inputs;                                             /* [n_inputs][n_decode] */
    struct one *all;                                             /* [depths][n_configs] */
    double *again[CLI_MOST_COUNTS];                              /* [n_rounds] samples of the control */
    uint32_t n_done[CLI_MOST_COUNTS], depth;                     /* rounds; index of the depth that is measured */
    vq_load load[CLI_MOST_COUNTS], prompt_load[CLI_MOST_COUNTS]; /* during rounds; while prompts were read */
    cli_progress progress;
};

static struct one *one_of(const struct job *j, size_t depth, size_t config)
{
    return &j->all[depth * j->n_configs + config];
}

/* ---- inputs ---- */

/* Texts in turn, each from one piece to the next: the same text twice gives equal inputs, which are refused. */
static int read_inputs(struct job *j)
{
    const struct args *a = j->args;
    const size_t n_texts = a->shared.files.n;
    const uint32_t n_vocab = vq_model_get_info(j->engine.model)->n_vocab;
    j->inputs = calloc((size_t)a->n_inputs * (a->n_decode ? a->n_decode : 1), sizeof *j->inputs);
    if (!j->inputs)
        return cli_fail("no memory for %u inputs of %u tokens", a->n_inputs, a->n_decode);
    uint64_t state = 1;
    for (size_t i = 0; i < (size_t)a->n_inputs * a->n_decode && n_texts == 0; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        j->inputs[i] = (int32_t)((state >> 33) % n_vocab);
    }
    for (size_t t = 0; t < n_texts; t++) {
        eval_text text;
        const int status = eval_text_read(&text, a->shared.files.at[t], j->engine.model);
        const size_t n_pieces = (a->n_inputs + n_texts - 1 - t) / n_texts;
        if (status == CLI_FINE && text.n >= n_pieces * a->n_decode)
            for (size_t k = 0; k < n_pieces; k++)
                memcpy(j->inputs + (k * n_texts + t) * a->n_decode, text.ids + k * a->n_decode,
                       a->n_decode * sizeof *text.ids);
        const size_t n_ids = text.n;
        eval_text_free(&text);
        if (status != CLI_FINE)
            return status;
        if (n_ids < n_pieces * a->n_decode)
            return cli_fail("%s: %zu tokens, %zu inputs of %u need more", a->shared.files.at[t], n_ids, n_pieces,
                            a->n_decode);
    }
    return CLI_FINE;
}

static const void *input_bytes(void *arg, uint32_t input, size_t *n_bytes)
{
    const struct job *j = arg;
    *n_bytes = j->args->n_decode * sizeof *j->inputs;
    return j->inputs + (size_t)input * j->args->n_decode;
}

/* ---- running ---- */
static vq_status decode(void *arg, uint32_t input, vq_error *err)
{
    struct one *o = arg;
    const struct args *a = o->job->args;
    const int32_t *ids = o->job->inputs + (size_t)input * a->n_decode;
    const bool counts = o->n_runs++ > 0; /* the first one warms up */
    double at = cli_seconds();
    for (uint32_t i = 0; i < a->n_decode; i++) {
        CLI_TRY(vq_session_decode(o->session, ids + i, 1, NULL, 0, NULL, err));
        const double then = cli_seconds();
        if (counts && o->n_tokens < 2 * (size_t)a->n_rounds * a->n_decode)
            o->token_seconds[o->n_tokens++] = then - at;
        at = then;
    }
    return VQ_OK;
}

static vq_status read_prompt(struct job *j, struct one *o, uint32_t n, vq_error *err)
{
    if (j->args->fill)
        return vq_eval_fill_rows(o->session, n, 1, err);
    vq_kv_time(vq_session_kv(o->session), o->prompt);
    const vq_status status = vq_eval_prompt_speed(o->session, n, 1, &o->prompt_seconds, err);
    vq_kv_time(vq_session_kv(o->session), NULL);
    return status;
}

static int open_all(struct job *j, const cli_page *page, cli_model_args *model)
{
    const struct args *a = j->args;
    const uint32_t n = a->depths.at[j->depth];
    vq_error err;
    int status = CLI_FINE;
    vq_load_mark marks[EVAL_MOST_CONFIGS + 1];
    vq_load_take(&marks[0]);
    /* the control runs on the first configuration's session */
    model->n_ctx = n + WARM + a->n_decode * (2 * a->n_rounds + 3);
    for (size_t i = 0; i < j->n_configs && status == CLI_FINE; i++) {
        struct one *o = one_of(j, j->depth, i);
        double warm;
        status = eval_session_open(&o->session, &j->engine, page, model, &j->configs[i]);
        if (status != CLI_FINE)
            break;
        if (read_prompt(j, o, n, &err) != VQ_OK)
            return cli_fail("%s: %s", j->configs[i].name, err.text);
        vq_load_take(&marks[i + 1]);
        vq_kv_get_evict_stats(vq_session_kv(o->session), &o->cost);
        cli_cache_measure(o->session, &o->cache);
        o->resident = eval_resident_bytes(o->session);
        o->process = eval_process_bytes();
        if (a->n_decode > 0 && vq_eval_decode_speed(o->session, WARM, 2, &warm, &err) != VQ_OK)
            return cli_fail_with(&err);
        cli_progress_step(&j->progress, j->depth * (j->n_configs + a->n_rounds) + i + 1,
                          a->depths.n * (j->n_configs + a->n_rounds), j->configs[i].name);
        if (cli_interrupted())
            return CLI_INTERRUPTED;
    }
    if (status != CLI_FINE || a->fill)
        return status;
    j->prompt_load[j->depth] = vq_load_between(marks, j->n_configs + 1);
    if (a->need_quiet && !j->prompt_load[j->depth].quiet)
        return cli_fail("the machine was not quiet while prompts were read, and --need-quiet was given: other programs "
                        "took %.2f CPUs",
                        j->prompt_load[j->depth].others);
    return status;
}

static bool on_round(void *arg, uint32_t done, uint32_t all)
{
    struct job *j = arg;
    const size_t each = j->n_configs + all;
    j->n_done[j->depth] = done;
    cli_progress_step(&j->progress, j->depth * each + j->n_configs + done, j->args->depths.n * each, "");
    return !cli_interrupted();
}

/* A sample with clocks in the cache: not one of those that say how fast it is. */
static int time_layers(struct job *j)
{
    vq_error err;
    for (size_t i = 0; i < j->n_configs; i++) {
        struct one *o = one_of(j, j->depth, i);
        vq_kv_time(vq_session_kv(o->session), o->decode);
        const double start = cli_seconds();
        for (uint32_t k = 0; k < j->args->n_decode; k++)
            if (vq_session_decode(o->session, j->inputs + k, 1, NULL, 0, NULL, &err) != VQ_OK)
                return cli_fail("%s: %s", j->configs[i].name, err.text);
        o->decode_seconds = cli_seconds() - start;
        vq_kv_time(vq_session_kv(o->session), NULL);
    }
    return CLI_FINE;
}

static int run_depth(struct job *j, const cli_page *page, cli_model_args *model)
{
    const struct args *a = j->args;
    vq_error err;
    int status = open_all(j, page, model);
    if (status != CLI_FINE || a->n_decode == 0)
        return status;
    vq_variant variants[EVAL_MOST_CONFIGS];
    for (size_t i = 0; i < j->n_configs; i++)
        variants[i] = (vq_variant){j->configs[i].name, decode, one_of(j, j->depth, i)};
    double *seconds = calloc((j->n_configs + 1) * a->n_rounds, sizeof *seconds);
    if (!seconds)
        return cli_fail("no memory for %u rounds", a->n_rounds);
    const vq_turns turns = {.variants = variants,
                            .n_variants = j->n_configs,
                            .n_inputs = a->n_inputs,
                            .input = input_bytes,
                            .input_arg = j,
                            .n_rounds = a->n_rounds,
                            .need_quiet = a->need_quiet,
                            .progress = on_round,
                            .progress_arg = j};
    const vq_status taken = vq_take_turns(&turns, seconds, &j->load[j->depth], &err);
    for (size_t i = 0; i <= j->n_configs; i++)
        memcpy(i < j->n_configs ? one_of(j, j->depth, i)->seconds : j->again[j->depth], seconds + i * a->n_rounds,
               a->n_rounds * sizeof *seconds);
    free(seconds);
    if (taken == VQ_ERR_CANCELLED) {
        cli_say("stopped after %u of %u rounds at %u tokens", j->n_done[j->depth], a->n_rounds, a->depths.at[j->depth]);
        return CLI_INTERRUPTED;
    }
    return taken == VQ_OK ? time_layers(j) : cli_fail_with(&err);
}

static bool allocate(struct job *j)
{
    const struct args *a = j->args;
    j->all = calloc(a->depths.n * j->n_configs, sizeof *j->all);
    bool fine = j->all != NULL;
    for (size_t d = 0; d < a->depths.n && fine; d++) {
        j->again[d] = calloc(a->n_rounds, sizeof(double));
        fine = j->again[d] != NULL;
        for (size_t i = 0; i < j->n_configs && fine; i++) {
            struct one *o = one_of(j, d, i);
            o->job = j;
            o->seconds = calloc(a->n_rounds, sizeof(double));
            o->token_seconds = calloc(2 * (size_t)a->n_rounds * a->n_decode + 1, sizeof(double));
            o->prompt = calloc(j->n_layers, sizeof *o->prompt);
            o->decode = calloc(j->n_layers, sizeof *o->decode);
            fine = o->seconds && o->token_seconds && o->prompt && o->decode;
        }
    }
    return fine;
}

static int run(struct job *j, const cli_page *page, cli_model_args *model)
{
    int status = eval_configs(page, &j->args->shared, j->configs, &j->n_configs);
    if (status == CLI_FINE)
        status = cli_engine_open(&j->engine, page, model);
    if (status != CLI_FINE)
        return status;
    j->n_layers = vq_model_get_info(j->engine.model)->n_layers;
    if (!allocate(j))
        return cli_fail("no memory for %u rounds", j->args->n_rounds);
    status = read_inputs(j);
    cli_progress_start(&j->progress, "prompts and rounds");
    for (j->depth = 0; j->depth < j->args->depths.n && status == CLI_FINE; j->depth++) {
        status = run_depth(j, page, model);
        for (size_t i = 0; i < j->n_configs; i++) {
            vq_session_close(one_of(j, j->depth, i)->session);
            one_of(j, j->depth, i)->session = NULL;
        }
    }
    cli_progress_end(&j->progress);
    return status;
}

/* ---- results ---- */

/* Tokens a second of finished rounds into out [n_done]. */
static vq_spread rates(const struct job *j, size_t depth, const double *seconds, double *out)
{
    for (uint32_t i = 0; i < j->n_done[depth]; i++)
        out[i] = cli_rate(j->args->n_decode, seconds[i]);
    return vq_spread_of(out, j->n_done[depth]);
}

static double append_sum(const struct job *j, const vq_kv_times *t)
{
    double sum = 0;
    for (uint32_t l = 0; l < j->n_layers; l++)
        sum += t[l].append_seconds;
    return sum;
}

static double attend_sum(const struct job *j, const vq_kv_times *t)
{
    double sum = 0;
    for (uint32_t l = 0; l < j->n_layers; l++)
        sum += t[l].attend_seconds;
    return sum;
}

static void print_turns(const struct job *j, size_t d, int width, double *scratch)
{
    const vq_model_info *info = vq_model_get_info(j->engine.model);
    printf("%-*s %8s %10s %9s %9s %9s  %s\n", width, "cache", "rows", "in use", "prompt/s", "looking", "dropping",
           j->n_done[d] ? "decode/s (quartiles)" : "");
    for (size_t i = 0; i <= j->n_configs; i++) {
        const bool again = i == j->n_configs;
        const struct one *o = one_of(j, d, again ? 0 : i);
        char used[16];
        if (again && j->n_done[d] == 0)
            break;
        if (again)
            printf("%-*s %8s %10s %9s %9s %9s", width, "the first again", "", "", "", "", "");
        else
            printf("%-*s %8.1f %10s", width, j->configs[i].name,
                   (double)o->cache.bytes.n_rows / ((double)info->n_layers * info->n_kv_heads),
                   cli_bytes(o->cache.used, used));
        if (!again && j->args->fill)
            printf(" %9s %9s %9s", "", "", "");
        else if (!again)
            printf(" %9.1f %8.1f%% %8.1f%%", cli_rate(j->args->depths.at[d], o->prompt_seconds),
                   100 * o->cost.observe_seconds / o->prompt_seconds,
                   100 * o->cost.compact_seconds / o->prompt_seconds);
        if (j->n_done[d] > 0) {
            const vq_spread s = rates(j, d, again ? j->again[d] : o->seconds, scratch);
            printf("  %.1f (%.1f-%.1f)", s.median, s.q1, s.q3);
        }
        putchar('\n');
    }
}

static void print_shares(const struct job *j, size_t d, int width)
{
    printf("\n%-*s %11s %22s %10s %9s %8s %10s\n", width, "cache", "first token", "ms a token 50/90/99%", "attention",
           "encoding", "at most", "resident");
    for (size_t i = 0; i < j->n_configs; i++) {
        const struct one *o = one_of(j, d, i);
        char first[24] = "-", times[40] = "-", resident[16];
        if (!j->args->fill)
            snprintf(first, sizeof first, "%.3f s", o->prompt_seconds);
        if (o->n_tokens > 0)
            snprintf(times, sizeof times, "%.2f/%.2f/%.2f", 1e3 * eval_percentile(o->token_seconds, o->n_tokens, 50),
                     1e3 * eval_percentile(o->token_seconds, o->n_tokens, 90),
                     1e3 * eval_percentile(o->token_seconds, o->n_tokens, 99));
        printf("%-*s %11s %22s", width, j->configs[i].name, first, times);
        if (o->decode_seconds > 0) {
            const double attention = attend_sum(j, o->decode) / o->decode_seconds;
            printf(" %9.1f%% %8.1f%% %7.2fx", 100 * attention, 100 * append_sum(j, o->decode) / o->decode_seconds,
                   1 / (1 - attention));
        } else {
            printf(" %10s %9s %8s", "-", "-", "-");
        }
        printf(" %10s\n", cli_bytes(o->resident, resident));
    }
}

/* Prompts of all configurations were read and timed. */
static bool prompts_timed(const struct job *j, size_t d)
{
    return !j->args->fill && one_of(j, d, j->n_configs - 1)->cache.used > 0;
}

static void print_text(const struct job *j, double *scratch)
{
    const int width = eval_name_width(j->configs, j->n_configs) > 15 ? eval_name_width(j->configs, j->n_configs) : 15;
    for (size_t d = 0; d < j->args->depths.n && one_of(j, d, 0)->cache.used > 0; d++) {
        printf("%s%u tokens\n", d ? "\n" : "", j->args->depths.at[d]);
        print_turns(j, d, width, scratch);
        print_shares(j, d, width);
        if (j->n_done[d] > 0 && !j->load[d].quiet)
            puts("The machine was not quiet: trust ratios within this run at most.");
        else if (prompts_timed(j, d) && !j->prompt_load[d].quiet)
            puts("The machine was not quiet while prompts were read: times of prompts are not to be trusted.");
    }
}

/* Microseconds of one token in each layer. */
static json_t *layers_json(const struct job *j, const struct one *o)
{
    json_t *append = json_array(), *attend = json_array();
    for (uint32_t l = 0; l < j->n_layers; l++) {
        json_array_append_new(append, cli_json_real(1e6 * o->decode[l].append_seconds / j->args->n_decode));
        json_array_append_new(attend, cli_json_real(1e6 * o->decode[l].attend_seconds / j->args->n_decode));
    }
    return json_pack("{s:o, s:o}", "append_us", append, "attend_us", attend);
}

static json_t *row_json(const struct job *j, size_t d, size_t i, const char *model, double *scratch)
{
    const struct one *o = one_of(j, d, i);
    const bool fill = j->args->fill;
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:b}", "kind", "speed", "model", model, "kv",
                            j->configs[i].kv, "evict", j->configs[i].evict ? j->configs[i].evict : "none", "tokens",
                            (int)j->args->depths.at[d], "depth", (int)j->args->depths.at[d], "threads",
                            (int)vq_pool_n_threads(j->engine.pool), "filled", (int)fill);
    if (!row)
        return NULL;
    const struct {
        const char *name;
        double value;
    } of_prompt[] = {
        {"prompt_seconds", o->prompt_seconds},
        {"first_token_seconds", o->prompt_seconds},
        {"look_seconds", o->cost.observe_seconds},
        {"drop_seconds", o->cost.compact_seconds},
        {"prompt_attention_share", attend_sum(j, o->prompt) / o->prompt_seconds},
        {"prompt_encode_share", append_sum(j, o->prompt) / o->prompt_seconds},
    };
    for (size_t k = 0; k < sizeof of_prompt / sizeof of_prompt[0]; k++)
        json_object_set_new(row, of_prompt[k].name, fill ? json_null() : cli_json_real(of_prompt[k].value));
    json_object_update_new(row, json_pack("{s:I, s:o, s:o, s:I, s:I}", "bytes", (json_int_t)o->cache.used,
                                          "bits_per_value", cli_json_real(o->cache.bits), "packed_bits",
                                          eval_packed_bits(&o->cache), "resident_bytes", (json_int_t)o->resident,
                                          "process_bytes", (json_int_t)o->process));
    if (j->n_done[d] > 0) {
        rates(j, d, o->seconds, scratch);
        json_object_set_new(row, "decode_tps", cli_json_spread(scratch, j->n_done[d]));
        if (i == 0) {
            rates(j, d, j->again[d], scratch);
            json_object_set_new(row, "again_tps", cli_json_spread(scratch, j->n_done[d]));
        }
        json_object_set_new(row, "token_ms",
                            json_pack("{s:f, s:f, s:f}", "p50",
                                      1e3 * eval_percentile(o->token_seconds, o->n_tokens, 50), "p90",
                                      1e3 * eval_percentile(o->token_seconds, o->n_tokens, 90), "p99",
                                      1e3 * eval_percentile(o->token_seconds, o->n_tokens, 99)));
    }
    if (o->decode_seconds > 0) {
        const double attention = attend_sum(j, o->decode) / o->decode_seconds;
        json_object_set_new(row, "attention_share", cli_json_real(attention));
        json_object_set_new(row, "encode_share", cli_json_real(append_sum(j, o->decode) / o->decode_seconds));
        json_object_set_new(row, "most_speedup", cli_json_real(1 / (1 - attention)));
        json_object_set_new(row, "layers", layers_json(j, o));
    }
    return row;
}

static int write_results(const struct job *j, const cli_model_args *model, double *scratch, int argc, char **argv)
{
    json_t *results = eval_results("speed after a prompt, shares of attention and encoding, cost of policies, memory",
                                   model, j->engine.model, argc, argv);
    json_t *loads = json_array(), *prompts = json_array();
    for (size_t d = 0; results && d < j->args->depths.n && one_of(j, d, 0)->cache.used > 0; d++) {
        for (size_t i = 0; i < j->n_configs; i++)
            eval_add_row(results, row_json(j, d, i, eval_model_name(model->model), scratch));
        if (j->n_done[d] > 0)
            json_array_append_new(loads, cli_json_load(&j->load[d]));
        if (prompts_timed(j, d))
            json_array_append_new(prompts, cli_json_load(&j->prompt_load[d]));
    }
    if (results && json_array_size(prompts) > 0)
        json_object_set(results, "prompt_loads", prompts);
    json_decref(prompts);
    if (results && json_array_size(loads) > 0)
        json_object_set(results, json_array_size(loads) == 1 ? "load" : "loads",
                        json_array_size(loads) == 1 ? json_array_get(loads, 0) : loads);
    json_decref(loads);
    return cli_json_write(j->args->shared.json, results);
}

static int finish(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    double *scratch = malloc((j->args->n_rounds + 1) * sizeof *scratch);
    if (!scratch)
        return cli_fail("no memory for %u rounds", j->args->n_rounds);
    if (!j->args->shared.json || strcmp(j->args->shared.json, "-") != 0)
        print_text(j, scratch);
    const int status = j->args->shared.json ? write_results(j, model, scratch, argc, argv) : CLI_FINE;
    free(scratch);
    return status;
}

static void free_job(struct job *j)
{
    for (size_t k = 0; j->all && k < j->args->depths.n * j->n_configs; k++) {
        struct one *o = &j->all[k];
        vq_session_close(o->session);
        free(o->seconds);
        free(o->token_seconds);
        free(o->prompt);
        free(o->decode);
    }
    for (size_t d = 0; d < CLI_MOST_COUNTS; d++)
        free(j->again[d]);
    free(j->all);
    free(j->inputs);
    cli_engine_close(&j->engine);
    free(j);
}

int eval_speed(int argc, char **argv)
{
    struct args a = {.depths = {{2048}, 1}, .n_decode = 32, .n_rounds = 7, .n_inputs = 16};
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
    if (a.fill && a.shared.evict.n > 0)
        return cli_usage(&page, "--fill with --evict: a policy needs a prompt to look at");
    cli_catch_interrupt(1);
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = &a;
    status = run(j, &page, &model);
    if ((status == CLI_FINE || (status == CLI_INTERRUPTED && j->n_done[0] > 0)) &&
        finish(j, &model, argc, argv) != CLI_FINE)
        status = CLI_FAILED;
    free_job(j);
    return status;
}
