/* veloxquant eval memory: what caches hold over length: their own account, and what the system has given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"

struct args {
    eval_args shared;
    cli_counts lengths;
    uint32_t within;
};

#define AT(field) offsetof(struct args, field)
#define SHARED_AT(field) offsetof(struct args, shared.field)

static const cli_option options[] = {
    {'c', "lengths", CLI_COUNTS, AT(lengths), "LIST", "tokens in the cache", 1, 16777216},
    {0, "within", CLI_COUNT, AT(within), "N",
     "leave out lengths that a cache would take more than N seconds to fill, by what it took until then; 0: none", 0,
     1000000},
    {0, "json", CLI_TEXT, SHARED_AT(json), "FILE", "also write the results as JSON; '-': print them", 0, 0},
};

static const char intro[] =
    "Fills each cache with rows, as many as a text of so many tokens has, and says what they take: in use is what the "
    "cache counts itself (codes, scales, exact rows, tables), resident what the system has given to its mappings "
    "(/proc/self/smaps), which also holds scratch and pages that are not full. Rows are drawn at random and the model "
    "does not run, so that 32,768 tokens take seconds: what a row takes does not depend on what is in it.\n"
    "\n"
    "Evicting caches drop rows by what a model looks at; 'eval speed' measures those.";

static const char ending[] = "Examples:\n"
                             "  veloxquant eval memory -m model.gguf --kv f16 --kv velox:bits=3\n"
                             "  veloxquant eval memory -m model.gguf --lengths 8192 --kv optimal --calibration m.vqc\n";

typedef struct cell {
    cli_cache cache;
    uint64_t resident;
} cell;

struct job {
    const struct args *args;
    cli_engine engine;
    eval_config configs[EVAL_MOST_CONFIGS];
    size_t n_configs;
    cell cells[EVAL_MOST_CONFIGS][CLI_MOST_COUNTS];
    size_t n_cells[EVAL_MOST_CONFIGS]; /* lengths that were filled */
    cli_counts lengths;                /* ascending */
    uint64_t done, all;                /* tokens */
    cli_progress progress;
};

static int run_config(struct job *j, size_t i, const cli_page *page, const cli_model_args *model)
{
    vq_session *s;
    vq_error err;
    int status = eval_session_open(&s, &j->engine, page, model, &j->configs[i]);
    double seconds = 0;
    for (size_t k = 0; k < j->lengths.n && status == CLI_FINE; k++) {
        const uint32_t n = j->lengths.at[k], held = vq_session_n_tokens(s);
        if (j->args->within > 0 && held > 0 && seconds / held * (n - held) > j->args->within) {
            cli_say("note: %s: %u tokens and more left out, they would take more than %u s", j->configs[i].name, n,
                    j->args->within);
            break;
        }
        const double start = cli_seconds();
        if (vq_eval_fill_rows(s, n, 1, &err) != VQ_OK) {
            status = cli_fail("%s: %s", j->configs[i].name, err.text);
            break;
        }
        cli_cache_measure(s, &j->cells[i][k].cache);
        j->cells[i][k].resident = eval_resident_bytes(s);
        j->n_cells[i] = k + 1;
        seconds += cli_seconds() - start;
        j->done += n - held;
        cli_progress_step(&j->progress, j->done, j->all, j->configs[i].name);
        if (cli_interrupted())
            status = CLI_INTERRUPTED;
    }
    vq_session_close(s);
    return status;
}

static void sort(cli_counts *c)
{
    for (size_t i = 1; i < c->n; i++)
        for (size_t k = i; k > 0 && c->at[k] < c->at[k - 1]; k--) {
            const uint32_t x = c->at[k];
            c->at[k] = c->at[k - 1];
            c->at[k - 1] = x;
        }
}

static int run_all(struct job *j, const cli_page *page, cli_model_args *model)
{
    int status = eval_configs(page, &j->args->shared, j->configs, &j->n_configs);
    if (status == CLI_FINE)
        status = cli_engine_open(&j->engine, page, model);
    j->lengths = j->args->lengths;
    sort(&j->lengths);
    model->n_ctx = j->lengths.at[j->lengths.n - 1];
    j->all = (uint64_t)j->n_configs * model->n_ctx;
    cli_progress_start(&j->progress, "tokens");
    for (size_t i = 0; i < j->n_configs && status == CLI_FINE; i++)
        status = run_config(j, i, page, model);
    cli_progress_end(&j->progress);
    if (status == CLI_INTERRUPTED)
        cli_say("stopped after %llu of %llu tokens", (unsigned long long)j->done, (unsigned long long)j->all);
    return status;
}

static void print_text(const struct job *j)
{
    const int width = eval_name_width(j->configs, j->n_configs);
    printf("%-*s %8s %12s %12s %12s %10s %12s\n", width, "cache", "tokens", "in use", "resident", "f16 rows",
           "bits/val", "packed rows");
    for (size_t i = 0; i < j->n_configs; i++)
        for (size_t k = 0; k < j->n_cells[i]; k++) {
            const cell *c = &j->cells[i][k];
            char used[16], resident[16], f16[16];
            printf("%-*s %8u %12s %12s %12s %10.3f", width, j->configs[i].name, j->lengths.at[k],
                   cli_bytes(c->cache.used, used), cli_bytes(c->resident, resident), cli_bytes(c->cache.f16, f16),
                   c->cache.bits);
            if (c->cache.packed_bits > 0)
                printf(" %12.3f", c->cache.packed_bits);
            putchar('\n');
        }
}

static json_t *row_json(const struct job *j, size_t i, size_t k, const char *model)
{
    const cell *c = &j->cells[i][k];
    const vq_kv_bytes *b = &c->cache.bytes;
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:I, s:I, s:I, s:o, s:o}", "kind", "memory", "model", model,
                            "kv", j->configs[i].kv, "evict", "none", "tokens", (int)j->lengths.at[k], "bytes",
                            (json_int_t)c->cache.used, "resident_bytes", (json_int_t)c->resident, "f16_bytes",
                            (json_int_t)c->cache.f16, "bits_per_value", cli_json_real(c->cache.bits), "packed_bits",
                            eval_packed_bits(&c->cache));
    if (row)
        json_object_update_new(row, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "codes", (json_int_t)b->codes, "scales",
                                              (json_int_t)b->scales, "exact", (json_int_t)b->exact, "shared",
                                              (json_int_t)b->shared, "table", (json_int_t)b->table, "reserved",
                                              (json_int_t)b->reserved));
    return row;
}

static int write_results(const struct job *j, const cli_model_args *model, int argc, char **argv)
{
    json_t *results = eval_results("bytes of caches over length", model, j->engine.model, argc, argv);
    for (size_t i = 0; results && i < j->n_configs; i++)
        for (size_t k = 0; k < j->n_cells[i]; k++)
            eval_add_row(results, row_json(j, i, k, eval_model_name(model->model)));
    return cli_json_write(j->args->shared.json, results);
}

int eval_memory(int argc, char **argv)
{
    struct args a = {.lengths = {{1024, 2048, 4096, 8192, 16384, 32768}, 6}};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"What is measured", options, sizeof options / sizeof options[0], &a},
        {"Caches", eval_cache_options, 1, &a.shared}, /* --kv alone */
        {"Model", eval_model_options, eval_n_model_options, &model},
    };
    const cli_page page = {"eval memory", "-m MODEL [options]", intro, groups, 3, ending, 0, 0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    cli_catch_interrupt(1);
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        return cli_fail("no memory");
    j->args = &a;
    status = run_all(j, &page, &model);
    if (status == CLI_FINE) {
        if (!a.shared.json || strcmp(a.shared.json, "-") != 0)
            print_text(j);
        if (a.shared.json)
            status = write_results(j, &model, argc, argv);
    }
    cli_engine_close(&j->engine);
    free(j);
    return status;
}
