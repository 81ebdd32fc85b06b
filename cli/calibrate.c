/* veloxquant calibrate: statistics of a model's queries, keys and values on a text, into a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

struct args {
    const char *model, *out;
    cli_texts texts;
    uint32_t n_ctx, n_threads, most;
    const char *codebooks;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'f', "text", CLI_TEXTS, AT(texts), "FILE", "the text, UTF-8; may be given several times, '-' is standard input", 0,
     0},
    {'o', "output", CLI_TEXT, AT(out), "FILE", "where the calibration goes (*.vqc); written whole or not at all", 0, 0},
    {'c', "ctx-size", CLI_COUNT, AT(n_ctx), "N",
     "tokens of a context: the text is cut into contexts (default: 2048, or what the model was trained for)", 64,
     16777216},
    {0, "codebooks", CLI_TEXT, AT(codebooks), "METHODS",
     "also codebooks for these methods, with commas between them: vecinfer, commvq, a2ats", 0, 0},
    {0, "tokens", CLI_COUNT, AT(most), "N", "tokens of each text at most; 0: all", 0, 4294967295.0},
    {'m', "model", CLI_TEXT, AT(model), "FILE", "the model, a GGUF file; may be given as a word", 0, 0},
    {'t', "threads", CLI_COUNT, AT(n_threads), "N", "threads (default: all cores that this process may use)", 1, 1024},
};

static const char intro[] =
    "Runs a text through the model once and writes what its queries, keys and values have in common: means, second "
    "moments, ranges, principal directions. Ways of storing (--kv) and of evicting that need it take the file by "
    "--calibration FILE.\n"
    "\n"
    "A few thousand tokens of text like what the model will see are enough; 8,192 are used unless --tokens says "
    "otherwise. The first 32 tokens of each context are left out. Results do not depend on the number of threads.\n"
    "\n"
    "Codebooks are clustered from a sample of 4,096 tokens at the end; that takes about as long again for each method.";

static const char ending[] = "Examples:\n"
                             "  veloxquant calibrate model.gguf --text book.txt -o model.vqc\n"
                             "  veloxquant generate -m model.gguf -f long.txt --kv optimal --calibration model.vqc\n"
                             "\n"
                             "Ctrl-C ends with status 130 and leaves no file.\n";

/* Of the tokens, then of the codebooks. */
struct watching {
    cli_progress progress;
    bool on_codebooks;
};

static bool on_progress(void *arg, size_t done, size_t all)
{
    struct watching *w = arg;
    cli_progress_step(&w->progress, done, all, "");
    return !cli_interrupted();
}

static bool on_codebooks(void *arg, size_t done, size_t all)
{
    struct watching *w = arg;
    if (!w->on_codebooks) {
        cli_progress_end(&w->progress);
        cli_progress_start(&w->progress, "codebooks");
        w->on_codebooks = true;
    }
    return on_progress(arg, done, all);
}

/* "vecinfer,.." -> set of vq_codebooks; false for a name that is none. */
static bool read_codebooks(const char *text, uint32_t *out)
{
    static const struct {
        const char *method;
        uint32_t codebooks;
    } all[] = {{"vecinfer", VQ_CODEBOOKS_VALUES | VQ_CODEBOOKS_SMOOTH},
               {"commvq", VQ_CODEBOOKS_ATOMS},
               {"a2ats", VQ_CODEBOOKS_VALUES | VQ_CODEBOOKS_FACTOR}};
    *out = 0;
    for (const char *at = text; at && *at;) {
        const size_t n = strcspn(at, ",");
        size_t i = 0;
        while (i < sizeof all / sizeof *all && (strlen(all[i].method) != n || memcmp(at, all[i].method, n) != 0))
            i++;
        if (i == sizeof all / sizeof *all)
            return false;
        *out |= all[i].codebooks;
        at += n;
        at += *at == ',';
    }
    return true;
}

/* The ids of all texts, one after the other; *ids is freed with free. */
static int read_texts(const struct args *a, const vq_model *model, int32_t **ids, size_t *n)
{
    *ids = NULL;
    *n = 0;
    for (size_t i = 0; i < a->texts.n; i++) {
        char *bytes;
        size_t n_bytes, n_part;
        int32_t *part;
        vq_error err;
        if (!cli_read_file(a->texts.at[i], &bytes, &n_bytes))
            return CLI_FAILED;
        const vq_status status =
            vq_tokenize(vq_model_tokenizer(model), bytes, n_bytes, VQ_TOKENIZE_BOS, &part, &n_part, &err);
        free(bytes);
        if (status != VQ_OK)
            return cli_fail("%s: %s", a->texts.at[i], err.text);
        if (a->most > 0 && n_part > a->most)
            n_part = a->most;
        int32_t *more = realloc(*ids, (*n + n_part + 1) * sizeof *more);
        if (more) {
            *ids = more;
            memcpy(more + *n, part, n_part * sizeof *part);
            *n += n_part;
        }
        vq_free(part);
        if (!more)
            return cli_fail("%s: no memory for %zu tokens", a->texts.at[i], n_part);
    }
    return CLI_FINE;
}

static int run(const struct args *a, uint32_t codebooks, const vq_model *model, vq_pool *pool)
{
    int32_t *ids;
    size_t n;
    vq_error err;
    int result = read_texts(a, model, &ids, &n);
    if (result == CLI_FINE) {
        struct watching w = {.on_codebooks = false};
        cli_progress_start(&w.progress, "tokens");
        const vq_calibrate_params params = {.n_ctx = a->n_ctx,
                                            .pool = pool,
                                            .codebooks = codebooks,
                                            .progress = on_progress,
                                            .codebook_progress = on_codebooks,
                                            .arg = &w};
        const vq_status status = vq_calibrate(model, ids, n, &params, a->out, &err);
        cli_progress_end(&w.progress);
        if (status == VQ_ERR_CANCELLED) {
            cli_say("stopped; %s was not written", a->out);
            result = CLI_INTERRUPTED;
        } else if (status == VQ_ERR_ARG && n < VQ_CALIBRATE_LEAST) {
            result = cli_fail("%s%s: %s", a->texts.at[0], a->texts.n > 1 ? " and the others" : "", err.text);
        } else if (status != VQ_OK) {
            result = cli_fail_with(&err);
        }
    }
    free(ids);
    if (result == CLI_FINE) {
        vq_calibration *c;
        if (vq_calibration_open(&c, a->out, &err) != VQ_OK)
            return cli_fail_with(&err);
        const vq_calibration_info *i = vq_calibration_get_info(c);
        printf("%s: %llu tokens, %u layers, %u heads, %u kv heads, head size %u, hash %016llx, for model %016llx\n",
               a->out, (unsigned long long)i->n_tokens, i->n_layers, i->n_heads, i->n_kv_heads, i->d_k,
               (unsigned long long)i->hash, (unsigned long long)i->model_hash);
        vq_calibration_close(c);
    }
    return result;
}

int cli_calibrate(int argc, char **argv)
{
    struct args a = {.most = 8192};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {"calibrate", "MODEL --text FILE -o FILE [options]", intro, groups, 1, ending, 0, 1};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (n_operands == 1)
        a.model = argv[1];
    if (!a.model)
        return cli_usage(&page, "no model: which GGUF file?");
    if (a.texts.n == 0)
        return cli_usage(&page, "no text: --text FILE says which");
    if (!a.out)
        return cli_usage(&page, "no output: -o FILE says where the calibration goes");
    for (size_t i = 0; i <= a.texts.n; i++) {
        const char *input = i < a.texts.n ? a.texts.at[i] : a.model;
        if (cli_same_file(a.out, input))
            return cli_usage(&page, "%s: is read, and would be overwritten by the output", input);
    }
    uint32_t codebooks;
    if (!read_codebooks(a.codebooks, &codebooks))
        return cli_usage(&page, "--codebooks: no method in '%s'; there are: vecinfer, commvq, a2ats", a.codebooks);
    cli_catch_interrupt(1);
    vq_pool *pool = NULL;
    vq_model *model = NULL;
    vq_error err;
    cli_signals_model(a.model);
    if (vq_pool_open(&pool, a.n_threads, &err) != VQ_OK || vq_model_open(&model, a.model, &err) != VQ_OK)
        status = cli_fail_with(&err);
    else
        status = run(&a, codebooks, model, pool);
    vq_model_close(model);
    vq_pool_close(pool);
    return status;
}
