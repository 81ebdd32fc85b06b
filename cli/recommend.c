/* veloxquant recommend: what fits into the memory at hand, and what it costs in quality. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cache_plan.h"
#include "json.h"

struct args {
    cli_model_args model;
    const char *memory;
    bool json;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'m', "model", CLI_TEXT, AT(model.model), "FILE", "the model, a GGUF file or a reservoir; may be given as a word",
     0, 0},
    {'c', "ctx-size", CLI_COUNT, AT(model.n_ctx), "N",
     "tokens of context that are wanted (default: what the model was trained for, at most 4096)", 2, 16777216},
    {0, "memory", CLI_TEXT, AT(memory), "SIZE",
     "memory for weights, cache and working room together, such as 4G (default: nine tenths of what the system has "
     "available)",
     0, 0},
    {'t', "threads", CLI_COUNT, AT(model.n_threads), "N", "threads (default: all cores that this process may use)", 1,
     1024},
    {'b', "batch-size", CLI_COUNT, AT(model.n_batch), "N", "prompt tokens a pass", 1, 8192},
    {0, "calibration", CLI_TEXT, AT(model.calibration), "FILE",
     "what 'veloxquant calibrate' made of this model: calibrated methods join", 0, 0},
    {0, "kv-losses", CLI_TEXT, AT(model.kv_losses), "FILE",
     "a plan that 'veloxquant plan --text' made of this model, which knows how much each head matters", 0, 0},
    {0, "json", CLI_FLAG, AT(json), NULL, "print the same as JSON", 0, 0},
};

static const char intro[] =
    "Says for a model, this machine and a context what fits: the weights, and the cache with each way of storing it, "
    "with the loss that is expected (KL divergence from an f16 cache, measured on two models; 0.01 costs about one "
    "percent of perplexity) and the longest context that would fit. Ends with a command line to copy.\n"
    "\n"
    "Layers with a sliding window hold no more than their window; their bytes do not grow with the context.";

static const char ending[] = "Examples:\n"
                             "  veloxquant recommend model.gguf\n"
                             "  veloxquant recommend model.gguf -c 32768 --memory 4G\n";

/* Losses up to here are not worth more memory. */
#define GOOD_LOSS 0.01
enum { MOST_ROWS = 16, MOST_CTX = 1 << 20 };

typedef struct row {
    const char *method;
    uint64_t n_bytes; /* at the context that is wanted */
    double loss;
    uint32_t fits_ctx; /* the longest context; 0: not even the shortest */
} row;

typedef struct job {
    const struct args *args;
    const vq_model *model;
    cli_engine engine;
    uint64_t memory, weights, room; /* room: activations, logits, scores */
    uint32_t n_ctx, n_trained;
    row rows[MOST_ROWS];
    size_t n_rows;
    vq_plan_candidate best; /* within what is left for the cache */
    bool has_best;
    char command[1024], reason[256];
} job;

/* ---- the machine ---- */

/* Bytes after `name` in a file of lines "name: N kB"; 0 when it is not there. */
static uint64_t kilobytes_of(const char *path, const char *name)
{
    FILE *f = fopen(path, "r");
    char line[256];
    uint64_t n = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
            n = strtoull(line + strlen(name) + 1, NULL, 10) * 1024;
    if (f)
        fclose(f);
    return n;
}

/* The number that a file holds, after `name` where it has several lines; false where there is none ("max" is none). */
static bool number_in(const char *path, const char *name, uint64_t *out)
{
    FILE *f = fopen(path, "r");
    char line[256];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        const size_t n = strlen(name);
        char *end = line;
        if (strncmp(line, name, n) == 0 && (n == 0 || line[n] == ' '))
            *out = strtoull(line + n, &end, 10);
        found = end != line && end != line + n;
    }
    if (f)
        fclose(f);
    return found;
}

/* The limit of the control group, less what it holds that is no copy of files; UINT64_MAX without one. */
static uint64_t left_in_group(void)
{
    uint64_t limit, current, files = 0;
    if (number_in("/sys/fs/cgroup/memory.max", "", &limit) &&
        number_in("/sys/fs/cgroup/memory.current", "", &current)) {
        number_in("/sys/fs/cgroup/memory.stat", "file", &files);
    } else if (number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", &limit) &&
               number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes", "", &current)) {
        number_in("/sys/fs/cgroup/memory/memory.stat", "total_cache", &files);
    } else {
        return UINT64_MAX;
    }
    const uint64_t held = current > files ? current - files : 0;
    return limit > held ? limit - held : 0;
}

static uint64_t available(void)
{
    const uint64_t system = kilobytes_of("/proc/meminfo", "MemAvailable"), group = left_in_group();
    return (system && system < group ? system : group < UINT64_MAX ? group : system) / 10 * 9;
}

/* ---- sizes ---- */

static vq_status params_of(const job *j, uint32_t n_ctx, const char *method, vq_kv_params *kv, vq_error *err)
{
    vq_session_params p;
    vq_session_params_init(&p);
    p.n_ctx = n_ctx;
    p.n_batch = j->args->model.n_batch;
    p.pool = j->engine.pool;
    p.calibration = j->engine.calibration;
    p.kv_keys = p.kv_values = method;
    return vq_session_kv_params(j->model, &p, kv, err);
}

/* 0: the method is not for this model. */
static uint64_t bytes_at(const job *j, uint32_t n_ctx, const char *method)
{
    vq_kv_params p;
    vq_kv *kv;
    if (params_of(j, n_ctx, method, &p, NULL) != VQ_OK || vq_kv_open(&kv, &p, NULL) != VQ_OK)
        return 0;
    const uint64_t n = vq_kv_most_bytes(kv);
    vq_kv_close(kv);
    return n;
}

static uint64_t left_for_cache(const job *j)
{
    const uint64_t taken = j->weights + j->room;
    return j->memory > taken ? j->memory - taken : 0;
}

static uint32_t longest(const job *j, const char *method)
{
    const uint64_t most = left_for_cache(j);
    uint32_t low = 0, high = MOST_CTX;
    while (high - low > 32 && high > low + low / 64) {
        const uint32_t middle = low + (high - low) / 2;
        const uint64_t n = bytes_at(j, middle, method);
        if (n > 0 && n <= most)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* What the forward pass holds beside the cache, from the shape: a dozen rows of each size a token of a chunk, logits.
 */
static uint64_t working_room(const vq_model_info *i, uint32_t n_batch)
{
    const uint64_t a_token = 8ull * i->n_embd + 4ull * i->n_ff + 4ull * i->n_heads * i->head_dim;
    return (uint64_t)n_batch * a_token * sizeof(float) + 33ull * i->n_vocab * sizeof(float);
}

static void list_rows(job *j)
{
    static const char *const methods[] = {"f16",
                                          "velox:bits=8",
                                          "velox:bits=4",
                                          "velox:bits=3",
                                          "velox:bits=2",
                                          "trellis:bits=4",
                                          "trellis:bits=3",
                                          "trellis:bits=2",
                                          "optimal:bits=4",
                                          "optimal:bits=3",
                                          "optimal:bits=2"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        const uint64_t n = bytes_at(j, j->n_ctx, methods[i]);
        if (n == 0)
            continue;
        j->rows[j->n_rows++] = (row){.method = methods[i],
                                     .n_bytes = n,
                                     .loss = vq_plan_expected_loss(methods[i], methods[i]),
                                     .fits_ctx = longest(j, methods[i])};
    }
}

/* ---- what to do ---- */

static void common_words(const job *j, uint32_t n_ctx, char *out, size_t n)
{
    const cli_model_args *m = &j->args->model;
    snprintf(out, n, "veloxquant chat -m %s -c %u%s%s%s%s", m->model, n_ctx, m->calibration ? " --calibration " : "",
             m->calibration ? m->calibration : "", m->kv_losses ? " --kv-losses " : "",
             m->kv_losses ? m->kv_losses : "");
}

static int choose(job *j, const cli_page *page)
{
    static vq_plan_candidate list[VQ_PLAN_MOST_CANDIDATES];
    cli_model_args args = j->args->model;
    char words[640], size[32];
    const uint64_t most = left_for_cache(j);
    uint32_t n_ctx = j->n_ctx;
    common_words(j, n_ctx, words, sizeof words);
    /* f16 where nothing is gained by packing but memory that is there anyway and the loss would be felt; else the
     * smallest that is good enough; else what is best within the memory. */
    const row *good = NULL;
    for (size_t i = 0; i < j->n_rows; i++)
        if (j->rows[i].n_bytes <= most && j->rows[i].loss <= GOOD_LOSS && (!good || j->rows[i].n_bytes < good->n_bytes))
            good = &j->rows[i];
    snprintf(size, sizeof size, "%lluK", (unsigned long long)(most / 1024));
    args.kv_memory = size;
    args.kv_bits = 0;
    if (most >= 1024) {
        vq_plan_wish wish;
        vq_plan *losses, *plan = NULL;
        vq_kv_params kv;
        size_t n;
        vq_error err;
        int status = cli_wish(&wish, &losses, page, &args);
        if (status == CLI_FINE && losses && vq_plan_fits(losses, j->model, &err) != VQ_OK)
            status = cli_fail("%s: %s", args.kv_losses, err.text);
        if (status != CLI_FINE) {
            vq_plan_close(losses);
            return status;
        }
        if (params_of(j, n_ctx, NULL, &kv, &err) == VQ_OK &&
            vq_plan_choose(&plan, &kv, &wish, list, &n, &err) == VQ_OK) {
            j->best = list[0];
            j->has_best = true;
        }
        vq_plan_close(plan);
        vq_plan_close(losses);
    }
    if (good) {
        snprintf(j->command, sizeof j->command, "%s --kv %s", words, good->method);
        snprintf(j->reason, sizeof j->reason,
                 "the smallest cache whose expected loss stays below KL %g; fewer bytes are also read faster",
                 GOOD_LOSS);
        return CLI_FINE;
    }
    if (j->has_best) {
        snprintf(j->command, sizeof j->command, "%s --kv auto --kv-memory %s", words, size);
        snprintf(j->reason, sizeof j->reason, "nothing that is nearly free of loss fits: the best within the memory");
        return CLI_FINE;
    }
    const row *small = NULL;
    for (size_t i = 0; i < j->n_rows; i++)
        if (j->rows[i].fits_ctx > 0 && (!small || j->rows[i].fits_ctx > small->fits_ctx))
            small = &j->rows[i];
    if (!small) {
        snprintf(j->reason, sizeof j->reason, "not even the weights and the smallest cache fit");
        return CLI_FINE;
    }
    common_words(j, small->fits_ctx, words, sizeof words);
    snprintf(j->command, sizeof j->command, "%s --kv %s", words, small->method);
    snprintf(j->reason, sizeof j->reason, "%u tokens do not fit with any method; this many do", n_ctx);
    return CLI_FINE;
}

/* ---- output ---- */

static void print_text(const job *j)
{
    const vq_model_info *i = vq_model_get_info(j->model);
    vq_kv_params kv;
    uint32_t n_windowed = 0;
    if (params_of(j, j->n_ctx, NULL, &kv, NULL) == VQ_OK)
        for (uint32_t l = 0; kv.window && l < kv.n_layers; l++)
            n_windowed += kv.window[l] != 0;
    char a[16], b[16], loss[32];
    printf("model     %s: %u layers, %u kv heads of %u", j->args->model.model, i->n_layers, i->n_kv_heads, i->head_dim);
    if (n_windowed)
        printf("; %u layers see the last %u tokens only", n_windowed, i->window);
    printf("\nmachine   %u threads, %s\n", vq_pool_n_threads(j->engine.pool), cli_bytes(j->memory, a));
    printf("weights   %s, working room about %s\n", cli_bytes(j->weights, a), cli_bytes(j->room, b));
    printf("for cache %s\n\n", cli_bytes(left_for_cache(j), a));
    printf("%-18s %14s  %-5s %-14s %16s\n", "--kv", "bytes", "fits", "expected loss", "longest context");
    for (size_t k = 0; k < j->n_rows; k++) {
        const row *r = &j->rows[k];
        char most[32] = "none";
        if (r->fits_ctx)
            snprintf(most, sizeof most, "%s%u", r->fits_ctx > MOST_CTX - MOST_CTX / 32 ? "over " : "", r->fits_ctx);
        printf("%-18s %14s  %-5s %-14s %16s\n", r->method, cli_bytes(r->n_bytes, a),
               r->n_bytes <= left_for_cache(j) ? "yes" : "no", cli_loss(r->loss, loss), most);
    }
    printf("\nbytes: all that the cache takes with %u tokens, exact tokens, tables and scratch included\n", j->n_ctx);
    if (!j->args->model.calibration)
        printf("note: 'veloxquant calibrate' makes a file for --calibration, with which 'optimal' joins\n");
    if (j->n_ctx > j->n_trained)
        printf("note: the model was trained on %u tokens; beyond that texts get worse\n", j->n_trained);
    if (j->has_best) {
        fputs("best within the memory: ", stdout);
        cli_print_candidate(stdout, &j->best);
    }
    printf("\n%s:\n", j->reason);
    if (j->command[0])
        printf("  %s\n", j->command);
}

static int print_json(const job *j, int argc, char **argv)
{
    const vq_model_info *i = vq_model_get_info(j->model);
    json_t *o = cli_json_head("what fits into memory", argc, argv), *rows = json_object_get(o, "rows");
    for (size_t k = 0; k < j->n_rows; k++) {
        const row *r = &j->rows[k];
        json_array_append_new(rows,
                              json_pack("{s:s, s:I, s:b, s:o, s:I}", "kv", r->method, "bytes", (json_int_t)r->n_bytes,
                                        "fits", (int)(r->n_bytes <= left_for_cache(j)), "expected_kl",
                                        cli_json_real(r->loss), "longest_context", (json_int_t)r->fits_ctx));
    }
    json_t *best = json_null();
    if (j->has_best)
        best = json_pack("{s:s, s:s, s:f, s:f, s:f, s:I, s:f}", "keys", j->best.keys, "values", j->best.values,
                         "key_bits", j->best.key_bits, "value_bits", j->best.value_bits, "bits_per_value", j->best.bits,
                         "bytes", (json_int_t)j->best.n_bytes, "expected_kl", j->best.loss);
    json_t *more = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s, s:s}", "model", j->args->model.model, "family", i->family,
        "n_ctx", (json_int_t)j->n_ctx, "threads", (json_int_t)vq_pool_n_threads(j->engine.pool), "memory_bytes",
        (json_int_t)j->memory, "weight_bytes", (json_int_t)j->weights, "working_bytes", (json_int_t)j->room,
        "cache_bytes", (json_int_t)left_for_cache(j), "best", best, "command", j->command, "reason", j->reason);
    if (o && more)
        json_object_update(o, more);
    json_decref(more);
    return cli_json_write("-", o);
}

int cli_recommend(int argc, char **argv)
{
    struct args a = {.memory = NULL};
    cli_model_args_init(&a.model);
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof *options, &a}};
    const cli_page page = {"recommend", "MODEL [options]", intro, groups, 1, ending, 0, 1};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (n_operands && a.model.model)
        return cli_usage(&page, "the model is given twice: '%s' and --model", argv[1]);
    if (n_operands)
        a.model.model = argv[1];
    job j = {.args = &a, .memory = available()};
    if (a.memory && !cli_parse_bytes(a.memory, &j.memory))
        return cli_usage(&page, "--memory: '%s' is no size such as 800M or 4G", a.memory);
    status = cli_engine_open(&j.engine, &page, &a.model);
    if (status == CLI_FINE) {
        const vq_model_info *i = vq_model_get_info(j.engine.model);
        j.model = j.engine.model;
        j.n_trained = i->n_ctx_train;
        j.n_ctx = a.model.n_ctx ? a.model.n_ctx : i->n_ctx_train < 4096 ? i->n_ctx_train : 4096;
        j.weights = i->weight_bytes;
        j.room = working_room(i, a.model.n_batch);
        list_rows(&j);
        status = choose(&j, &page);
    }
    if (status == CLI_FINE && a.json)
        status = print_json(&j, argc, argv);
    else if (status == CLI_FINE)
        print_text(&j);
    cli_engine_close(&j.engine);
    return status;
}
