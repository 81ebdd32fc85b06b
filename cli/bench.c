/* veloxquant bench: prompt and decode speed at several depths, of several cache methods that take turns.
 *
 * A sample times n_prompt prompt tokens and then n_decode single ones, both after `depth` tokens.  Going back to that
 * depth is a truncation where the cache allows it; a cache with sliding windows does not, and then the state is loaded
 * from a temporary file. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AT(field) offsetof(bench_args, field)
#define MODEL_AT(field) offsetof(cli_model_args, field)

static const cli_option options[] = {
    {'p', "n-prompt", CLI_COUNT, AT(n_prompt), "N", "prompt tokens of a sample; 0: none", 0, 1048576},
    {'n', "n-gen", CLI_COUNT, AT(n_decode), "N", "tokens decoded one at a time; 0: none", 0, 1048576},
    {'d', "depth", CLI_COUNTS, AT(depths), "LIST", "tokens in the cache before", 0, 16777216},
    {'r', "repetitions", CLI_COUNT, AT(n_samples), "N", "samples of each kind", 1, 1000},
    {'t', "threads", CLI_COUNTS, AT(threads), "LIST", "threads (default: all cores that this process may use)", 1,
     1024},
    {0, "kv", CLI_TEXTS, AT(methods), "METHOD",
     "how keys and values are stored; may be given several times: the methods take turns (default f16)", 0, 0},
    {0, "need-quiet", CLI_FLAG, AT(need_quiet), NULL,
     "fail when other programs took CPU time meanwhile (the result says so in any case)", 0, 0},
    {0, "json", CLI_TEXT, AT(json), "FILE", "also write machine, settings and every sample as JSON; '-': print it", 0,
     0},
};

static const cli_option model_options[] = {
    {'m', "model", CLI_TEXT, MODEL_AT(model), "FILE", "the model, a GGUF file", 0, 0},
    {'b', "batch-size", CLI_COUNT, MODEL_AT(n_batch), "N", "prompt tokens a pass", 1, 8192},
    {0, "exact", CLI_FLAG, MODEL_AT(exact), NULL, "f32 activations instead of int8", 0, 0},
    {0, "sinks", CLI_COUNT, MODEL_AT(sinks), "N", "first tokens that stay exact (default: as the method asks)", 0,
     65536},
    {0, "residual", CLI_COUNT, MODEL_AT(residual), "N", "newest tokens that stay exact (default: as the method asks)",
     0, 1048576},
};

static const char ending[] = "Examples:\n"
                             "  veloxquant bench -m model.gguf\n"
                             "  veloxquant bench -m model.gguf -d 8192 --kv f16 --kv turboquant-mse:bits=3 -t 1 -r 9\n"
                             "  veloxquant bench -m model.gguf -p 0 -n 128 -d 0,4096 --json speed.json\n"
                             "\n"
                             "Figures are tokens a second: the median, in brackets the quartiles. Below, each\n"
                             "method against the first one, from samples of the same rounds, with an interval of\n"
                             "at least 95 %; the first one runs twice a round, and its ratio to itself is the noise.\n"
                             "What lies within the noise is called not distinguishable, and so is everything below\n"
                             "6 repetitions. Times of a token are percentiles over all samples.\n"
                             "Ctrl-C prints what has been measured so far and ends with status 130.\n";

enum { WARM_PROMPT = 32, WARM_DECODE = 4 };

struct job {
    const bench_args *args;
    const cli_model_args *model;
    const cli_page *page;
    vq_model *weights;
    vq_pool *pools[CLI_MOST_COUNTS];
    bench_row *rows; /* [n_rows], by depth, then method, then threads */
    size_t n_rows, n_done;
    double *samples;     /* of all rows */
    vq_load_mark *marks; /* [n_marks]: before the first sample, and after each round */
    size_t n_marks;
    char *snapshots[CLI_MOST_TEXTS]; /* the state of each method at the present depth; NULL: none yet */
    cli_progress progress;
};

/* ---- depth ---- */

static vq_status fill(struct job *j, bench_row *row, vq_error *err)
{
    if (row->depth == 0)
        return VQ_OK;
    const char *snapshot = j->snapshots[row->method_index];
    return snapshot ? vq_session_load(row->session, snapshot, err) : vq_eval_fill(row->session, row->depth, 1, err);
}

static vq_status go_back(struct job *j, bench_row *row, vq_error *err)
{
    const vq_status status = vq_session_truncate(row->session, row->depth, err);
    if (status != VQ_ERR_UNSUPPORTED)
        return status;
    CLI_TRY(vq_session_truncate(row->session, 0, err));
    return fill(j, row, err);
}

static void drop_snapshots(struct job *j)
{
    for (size_t i = 0; i < CLI_MOST_TEXTS; i++) {
        if (j->snapshots[i])
            unlink(j->snapshots[i]);
        free(j->snapshots[i]);
        j->snapshots[i] = NULL;
    }
}

/* Filling 8,192 tokens takes a minute; other thread counts of the same method load what the first one computed.  Where
 * nothing can be written they fill anew. */
static void take_snapshot(struct job *j, bench_row *row)
{
    const char *folder = getenv("TMPDIR");
    char path[512];
    const int n = snprintf(path, sizeof path, "%s/veloxquant-bench-%ld-%zu.tmp", folder ? folder : "/tmp",
                           (long)getpid(), row->method_index);
    if (n > 0 && (size_t)n < sizeof path && vq_session_save(row->session, path, NULL) == VQ_OK)
        j->snapshots[row->method_index] = strdup(path);
}

static int open_rows(struct job *j, bench_row *rows, size_t n)
{
    vq_error err;
    cli_model_args model = *j->model;
    for (size_t i = 0; i < n; i++) {
        bench_row *row = &rows[i];
        const cli_engine e = {.pool = j->pools[i % j->args->threads.n], .model = j->weights};
        model.n_ctx = row->depth + j->args->n_prompt + j->args->n_decode + WARM_PROMPT + WARM_DECODE;
        const int status = cli_session_open(&row->session, &e, j->page, &model, row->method);
        if (status != CLI_FINE)
            return status;
        if (fill(j, row, &err) != VQ_OK)
            return cli_fail_with(&err);
        if (row->depth > 0 && !j->snapshots[row->method_index])
            take_snapshot(j, row);
        cli_cache_measure(row->session, &row->cache);
        if (cli_interrupted())
            return CLI_INTERRUPTED;
    }
    return CLI_FINE;
}

/* ---- samples ---- */

/* The first pass over the weights reads them from the disk, and threads wake up. */
static vq_status warm_up(struct job *j, bench_row *row, vq_error *err)
{
    double seconds;
    CLI_TRY(vq_eval_prompt_speed(row->session, WARM_PROMPT, 4, &seconds, err));
    CLI_TRY(vq_eval_decode_speed(row->session, WARM_DECODE, 5, &seconds, err));
    return go_back(j, row, err);
}

/* All rows of a depth see the same tokens in round i. */
static vq_status take_sample(struct job *j, bench_row *row, bench_samples *to, size_t i, vq_error *err)
{
    const bench_args *a = j->args;
    if (a->n_prompt > 0) {
        CLI_TRY(vq_eval_prompt_speed(row->session, a->n_prompt, 1000 + 2 * i, &to->prompt[to->n], err));
        CLI_TRY(go_back(j, row, err));
    }
    if (a->n_decode > 0) {
        double *token = to->token + to->n * a->n_decode;
        CLI_TRY(vq_eval_decode_times(row->session, a->n_decode, 1001 + 2 * i, token, err));
        to->decode[to->n] = 0;
        for (uint32_t k = 0; k < a->n_decode; k++)
            to->decode[to->n] += token[k];
        CLI_TRY(go_back(j, row, err));
    }
    to->n++;
    return VQ_OK;
}

static int take_and_count(struct job *j, bench_row *row, bench_samples *to, size_t i)
{
    vq_error err;
    if (take_sample(j, row, to, i, &err) != VQ_OK)
        return cli_fail_with(&err);
    cli_progress_step(&j->progress, ++j->n_done,
                      (j->n_rows + j->args->depths.n * j->args->threads.n) * j->args->n_samples, row->method);
    return cli_interrupted() ? CLI_INTERRUPTED : CLI_FINE;
}

/* A round: every row, then the first method's ones again. */
static int take_round(struct job *j, bench_row *rows, size_t n, size_t i)
{
    int status = CLI_FINE;
    for (size_t k = 0; k < n && status == CLI_FINE; k++)
        status = take_and_count(j, &rows[k], &rows[k].taken, i);
    for (size_t k = 0; k < j->args->threads.n && status == CLI_FINE; k++)
        status = take_and_count(j, &rows[k], &rows[k].again, i);
    vq_load_take(&j->marks[j->n_marks++]);
    return status;
}

static int run_depth(struct job *j, bench_row *rows, size_t n)
{
    vq_error err;
    int status = open_rows(j, rows, n);
    for (size_t k = 0; k < n && status == CLI_FINE; k++)
        if (warm_up(j, &rows[k], &err) != VQ_OK)
            status = cli_fail_with(&err);
    if (j->n_marks == 0)
        vq_load_take(&j->marks[j->n_marks++]);
    for (size_t i = 0; i < j->args->n_samples && status == CLI_FINE; i++)
        status = take_round(j, rows, n, i);
    return status;
}

static int run(struct job *j)
{
    int status = CLI_FINE;
    const size_t n = j->args->methods.n * j->args->threads.n;
    cli_progress_start(&j->progress, "samples");
    for (size_t at = 0; at < j->n_rows && status == CLI_FINE; at += n) {
        status = run_depth(j, j->rows + at, n);
        for (size_t k = 0; k < n; k++) {
            vq_session_close(j->rows[at + k].session);
            j->rows[at + k].session = NULL;
        }
        drop_snapshots(j);
    }
    cli_progress_end(&j->progress);
    return status;
}

/* Room for n samples at *at, which moves on. */
static bench_samples place_samples(const bench_args *a, double **at)
{
    const bench_samples s = {.prompt = *at, .decode = *at + a->n_samples, .token = *at + 2 * a->n_samples};
    *at += (size_t)a->n_samples * (2 + a->n_decode);
    return s;
}

static bool make_rows(struct job *j)
{
    const bench_args *a = j->args;
    j->n_rows = a->depths.n * a->methods.n * a->threads.n;
    j->rows = calloc(j->n_rows, sizeof *j->rows);
    j->samples = calloc(2 * j->n_rows * a->n_samples, (2 + (size_t)a->n_decode) * sizeof *j->samples);
    j->marks = calloc(1 + a->depths.n * a->n_samples, sizeof *j->marks);
    if (!j->rows || !j->samples || !j->marks)
        return false;
    double *at = j->samples;
    for (size_t i = 0; i < j->n_rows; i++) {
        const size_t k = i / a->threads.n, method = k % a->methods.n;
        j->rows[i] = (bench_row){
            .method = a->methods.at[method],
            .method_index = method,
            .n_threads = a->threads.at[i % a->threads.n],
            .depth = a->depths.at[k / a->methods.n],
            .taken = place_samples(a, &at),
            .again = place_samples(a, &at),
        };
    }
    return true;
}

static int open_all(struct job *j)
{
    vq_error err;
    for (size_t i = 0; i < j->args->threads.n; i++)
        if (vq_pool_open(&j->pools[i], j->args->threads.at[i], &err) != VQ_OK)
            return cli_fail_with(&err);
    cli_signals_model(j->model->model);
    if (vq_model_open(&j->weights, j->model->model, &err) != VQ_OK)
        return cli_fail_with(&err);
    return make_rows(j) ? CLI_FINE : cli_fail("no memory for the samples");
}

int cli_bench(int argc, char **argv)
{
    bench_args a = {.n_prompt = 512, .n_decode = 64, .n_samples = 5, .depths = {{0, 2048, 8192}, 3}};
    cli_model_args model;
    cli_model_args_init(&model);
    const cli_group groups[] = {
        {"What is measured", options, sizeof options / sizeof options[0], &a},
        {"Model", model_options, sizeof model_options / sizeof model_options[0], &model},
    };
    const cli_page page = {"bench",
                           "-m MODEL [options]",
                           "Measures speed: prompt tokens a second in one go, and tokens a second one at a time, after "
                           "so many tokens in the cache. Depths, methods and threads may be lists; within a depth, "
                           "samples of all methods and threads take turns, so that a disturbance meets all of them.",
                           groups,
                           2,
                           ending,
                           0,
                           0};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (!model.model)
        return cli_usage(&page, "no model: -m FILE says which");
    if (a.methods.n == 0)
        a.methods.at[a.methods.n++] = "f16";
    if (a.threads.n == 0)
        a.threads.at[a.threads.n++] = vq_cores_allowed();
    if (a.n_prompt == 0 && a.n_decode == 0)
        return cli_usage(&page, "both -p 0 and -n 0: nothing to measure");
    cli_catch_interrupt(1);
    struct job j = {.args = &a, .model = &model, .page = &page};
    status = open_all(&j);
    if (status == CLI_FINE)
        status = run(&j);
    if (status == CLI_FINE || status == CLI_INTERRUPTED) {
        const vq_load load = vq_load_between(j.marks, j.n_marks);
        if (!a.json || strcmp(a.json, "-") != 0)
            bench_print(&a, j.rows, j.n_rows, &load);
        if (a.json) {
            const int written = bench_write_json(&a, &model, j.weights, j.rows, j.n_rows, &load, argc, argv);
            status = written == CLI_FINE ? status : written;
        }
        if (a.need_quiet && status == CLI_FINE && !load.quiet)
            status = cli_fail("the machine was not quiet, and --need-quiet was given");
    }
    free(j.rows);
    free(j.samples);
    free(j.marks);
    vq_model_close(j.weights);
    for (size_t i = 0; i < a.threads.n; i++)
        vq_pool_close(j.pools[i]);
    return status;
}
