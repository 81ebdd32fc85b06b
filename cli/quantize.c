/* veloxquant quantize: a model file to a reservoir. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json.h"

struct args {
    float bits;
    cli_texts rules;
    const char *embeddings, *rotation, *json, *feedback, *sensitivity;
    bool keep_rotation, quiet;
    int64_t seed;
    uint32_t n_threads, n_tokens, n_sensitivity, feedback_mib;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'b', "bits", CLI_REAL, AT(bits), "N",
     "bits a weight of the matrices in layers: 2, 3, 4, or an average between, such as 3.5, shared out by size, or "
     "by what was measured (--sensitivity); 0: only what --tensor names",
     0, 4},
    {0, "tensor", CLI_TEXTS, AT(rules), "GLOB=BITS",
     "2, 3, 4, 8 or keep for tensors with such names; may be given several times, the last that matches decides", 0, 0},
    {0, "embeddings", CLI_TEXT, AT(embeddings), "BITS", "8 or keep: token embeddings and the output head", 0, 0},
    {0, "rotation", CLI_TEXT, AT(rotation), "KIND",
     "hadamard: quick, drawn again from the seed in no time; qr: a full random rotation for each width", 0, 0},
    {0, "persist-rotation", CLI_FLAG, AT(keep_rotation), NULL,
     "keep qr rotations in the file: larger, opens at once; without it they are drawn at every opening", 0, 0},
    {0, "seed", CLI_WHOLE, AT(seed), "N", "of the rotations (default 0)", 0, 9007199254740992.0},
    {0, "feedback", CLI_TEXT, AT(feedback), "TEXT",
     "a text like those the model will see: values are coded so that products on it stay near, not each value alone; "
     "costs no bits, but runs of the model and a minute or two for 135M weights",
     0, 0},
    {0, "feedback-tokens", CLI_COUNT, AT(n_tokens), "N", "tokens of that text at most", 64, 1048576},
    {0, "feedback-memory", CLI_COUNT, AT(feedback_mib), "MIB",
     "for moments of inputs at a time (default 256); with less, the text runs more often: once for each input at worst",
     1, 1048576},
    {0, "sensitivity", CLI_TEXT, AT(sensitivity), "TEXT",
     "for an average of bits: a text like those the model will see. It is run once for each matrix with that one at 2 "
     "bits, and bits go where they save most KL divergence; one to three minutes for 135M weights, growing with their "
     "square",
     0, 0},
    {0, "sensitivity-tokens", CLI_COUNT, AT(n_sensitivity), "N", "tokens of that text at most", 32, 2048},
    {'t', "threads", CLI_COUNT, AT(n_threads), "N", "threads (default: all cores that this process may use)", 1, 1024},
    {'q', "quiet", CLI_FLAG, AT(quiet), NULL, "no table of tensors at the end", 0, 0},
    {0, "json", CLI_TEXT, AT(json), "FILE", "write the table, with machine and command, as JSON", 0, 0},
};

static const char ending[] = "Examples:\n"
                             "  veloxquant quantize model-f16.gguf model.vqr --bits 4\n"
                             "  veloxquant quantize model-f16.gguf model.vqr --bits 3 --tensor 'blk.*.ffn_down*=4'\n"
                             "  veloxquant quantize model-f16.gguf model.vqr --bits 3.5 --embeddings 8\n"
                             "  veloxquant quantize ./Qwen3-0.6B qwen3.vqr --bits 4 --embeddings 8\n"
                             "  veloxquant quantize model-f16.gguf model.vqr --rotation qr --persist-rotation\n"
                             "  veloxquant quantize model-f16.gguf model.vqr --bits 2 --feedback book.txt\n"
                             "  veloxquant quantize model-f16.gguf model.vqr --bits 3.5 --sensitivity book.txt\n"
                             "  veloxquant generate -m model.vqr -p \"Once upon a time\"\n";

/* ---- while it runs ---- */

typedef struct row {
    char name[72];
    vq_quantized t;
} row;

typedef struct run {
    cli_progress progress;
    bool measuring; /* that is what the progress shows */
    double measured_seconds;
    row *rows;
    size_t n, room;
    bool no_memory;
} run;

static bool work(void *user, uint64_t done, uint64_t all)
{
    run *r = user;
    if (r->measuring) {
        r->measuring = false;
        cli_progress_start(&r->progress, "quantize");
    }
    cli_progress_step(&r->progress, done >> 20, all >> 20, "MiB");
    return !cli_interrupted() && !r->no_memory;
}

static bool measured(void *user, uint64_t done, uint64_t all)
{
    run *r = user;
    cli_progress_step(&r->progress, done, all, "matrices");
    if (done == all) {
        r->measured_seconds = cli_seconds() - r->progress.start;
        cli_progress_end(&r->progress);
    }
    return !cli_interrupted();
}

static void each(void *user, const vq_quantized *t)
{
    run *r = user;
    if (r->n == r->room) {
        r->room = 2 * r->room + 256;
        row *more = realloc(r->rows, r->room * sizeof *more);
        r->no_memory = !more;
        if (!more)
            return;
        r->rows = more;
    }
    row *out = &r->rows[r->n++];
    out->t = *t;
    snprintf(out->name, sizeof out->name, "%.*s", (int)t->name.n_bytes, t->name.at);
}

static bool is_float(vq_type type) { return type == VQ_TYPE_F32 || type == VQ_TYPE_F16 || type == VQ_TYPE_BF16; }

/* What was rounded before gets a second error on top of the first. */
static void warn_of_quantised(const vq_gguf *g)
{
    uint64_t most = 0;
    vq_type type = VQ_TYPE_F32;
    uint64_t n_values[VQ_N_TYPES] = {0};
    for (uint64_t i = 0; i < vq_gguf_n_tensors(g); i++) {
        const vq_tensor *t = vq_gguf_tensor_at(g, i);
        n_values[t->type] += t->dims[0] * t->dims[1];
        if (t->n_dims == 2 && !is_float(t->type) && n_values[t->type] > most) {
            most = n_values[t->type];
            type = t->type;
        }
    }
    if (most > 0)
        cli_say(
            "warning: %s is quantised already (mostly %s): errors add up; an f16, bf16 or f32 file makes a better one",
            vq_gguf_path(g), vq_type_name(type));
}

/* ---- afterwards ---- */

typedef struct sums {
    uint64_t n_kept, kept_bytes, n_values, n_packed_values, before, after, packed_bytes;
} sums;

static sums add_up(const run *r)
{
    sums s = {0};
    for (size_t i = 0; i < r->n; i++) {
        const vq_quantized *t = &r->rows[i].t;
        const uint64_t n = t->dims[0] * t->dims[1];
        s.n_values += n;
        s.before += t->n_bytes_before;
        s.after += t->n_bytes;
        if (t->from == t->to) {
            s.n_kept++;
            s.kept_bytes += t->n_bytes;
        } else {
            s.n_packed_values += n;
            s.packed_bytes += t->n_bytes;
        }
    }
    return s;
}

static double bits_a_value(uint64_t n_bytes, uint64_t n) { return n ? 8 * (double)n_bytes / (double)n : 0; }

static void print_table(const run *r)
{
    printf("%-32s %-5s %-5s %8s %10s %14s\n", "tensor", "from", "to", "bits", "rel. error", "bytes");
    for (size_t i = 0; i < r->n; i++) {
        const vq_quantized *t = &r->rows[i].t;
        if (t->from != t->to)
            printf("%-32s %-5s %-5s %8.3f %10.4f %14" PRIu64 "\n", r->rows[i].name, vq_type_name(t->from),
                   vq_type_name(t->to), bits_a_value(t->n_bytes, t->dims[0] * t->dims[1]), t->error, t->n_bytes);
    }
}

static void print_sums(const run *r, const char *path, double seconds)
{
    const sums s = add_up(r);
    char before[16], after[16], kept[16];
    printf("%zu tensors quantised: %.3f bits a weight with norms; %" PRIu64 " kept: %s\n", r->n - (size_t)s.n_kept,
           bits_a_value(s.packed_bytes, s.n_packed_values), s.n_kept, cli_bytes(s.kept_bytes, kept));
    printf("%s: weights %s, were %s: %.3f bits a weight in all, %.1f s\n", path, cli_bytes(s.after, after),
           cli_bytes(s.before, before), bits_a_value(s.after, s.n_values), seconds);
}

static int write_json(const run *r, const struct args *a, double seconds, int argc, char **argv)
{
    const sums s = add_up(r);
    json_t *all = cli_json_head("a model quantised to a reservoir", argc, argv), *rows = json_array();
    for (size_t i = 0; i < r->n; i++) {
        const vq_quantized *t = &r->rows[i].t;
        json_array_append_new(rows,
                              json_pack("{s:s, s:s, s:s, s:[I, I], s:I, s:o, s:o}", "tensor", r->rows[i].name, "from",
                                        vq_type_name(t->from), "to", vq_type_name(t->to), "shape",
                                        (json_int_t)t->dims[0], (json_int_t)t->dims[1], "bytes", (json_int_t)t->n_bytes,
                                        "error", cli_json_real(t->error), "kl_at_2_bits", cli_json_real(t->loss)));
    }
    json_object_update_new(all, json_pack("{s:f, s:f, s:I, s:I, s:f, s:f}", "seconds", seconds, "sensitivity_seconds",
                                          r->measured_seconds, "bytes_before", (json_int_t)s.before, "bytes",
                                          (json_int_t)s.after, "bits_per_weight", bits_a_value(s.after, s.n_values),
                                          "bits_per_packed_weight", bits_a_value(s.packed_bytes, s.n_packed_values)));
    json_object_set_new(all, "rows", rows);
    return cli_json_write(a->json, all);
}

/* The first ids of a text, at most *n. */
static vq_status read_ids(const vq_model *model, const char *path, const char *option, int32_t **ids, size_t *n,
                          vq_error *err)
{
    char *text;
    size_t n_bytes, n_ids;
    if (!cli_read_file(path, &text, &n_bytes)) {
        err->status = VQ_ERR_IO;
        snprintf(err->text, sizeof err->text, "%s: no text", option);
        return VQ_ERR_IO;
    }
    const vq_status status = vq_tokenize(vq_model_tokenizer(model), text, n_bytes, VQ_TOKENIZE_BOS, ids, &n_ids, err);
    free(text);
    *n = status == VQ_OK && n_ids < *n ? n_ids : *n;
    return status;
}

typedef struct texts {
    vq_model *model; /* the source */
    int32_t *feedback, *sensitivity;
} texts;

static vq_status open_texts(texts *t, vq_quantize_params *p, const struct args *a, const char *from, vq_error *err)
{
    if (!a->feedback && !a->sensitivity)
        return VQ_OK;
    p->n_ids = a->n_tokens;
    p->feedback_bytes = (size_t)a->feedback_mib << 20;
    p->n_sensitivity_ids = a->n_sensitivity;
    vq_status status = vq_model_open(&t->model, from, err);
    if (status == VQ_OK && a->feedback)
        status = read_ids(t->model, a->feedback, "--feedback", &t->feedback, &p->n_ids, err);
    if (status == VQ_OK && a->sensitivity)
        status = read_ids(t->model, a->sensitivity, "--sensitivity", &t->sensitivity, &p->n_sensitivity_ids, err);
    p->model = t->model;
    p->ids = t->feedback;
    p->sensitivity_ids = t->sensitivity;
    return status;
}

static int quantize(const struct args *a, const cli_page *page, const char *from, const char *to, int argc, char **argv)
{
    vq_error err;
    vq_gguf *g = NULL;
    vq_pool *pool = NULL;
    run r = {.n = 0};
    vq_quantize_params p;
    char embeddings[2][64];
    const char *rules[CLI_MOST_TEXTS + 2];
    vq_quantize_params_init(&p);
    p.bits = a->bits;
    p.seed = (uint64_t)a->seed;
    p.qr = strcmp(a->rotation, "qr") == 0;
    if (!p.qr && strcmp(a->rotation, "hadamard") != 0)
        return cli_usage(page, "--rotation: '%s', must be hadamard or qr", a->rotation);
    p.keep_rotations = a->keep_rotation;
    if (strcmp(a->embeddings, "keep") != 0 && strcmp(a->embeddings, "8") != 0)
        return cli_usage(page, "--embeddings: '%s', must be keep or 8", a->embeddings);
    if (vq_gguf_open(&g, from, &err) != VQ_OK)
        return cli_fail_with(&err);
    static const char *const tables[] = {"token_embd.weight", "output.weight"};
    for (size_t i = 0; i < 2 && strcmp(a->embeddings, "keep") != 0; i++) {
        if (!vq_gguf_tensor(g, tables[i]))
            continue;
        snprintf(embeddings[i], sizeof embeddings[i], "%s=%s", tables[i], a->embeddings);
        rules[p.n_rules++] = embeddings[i];
    }
    for (size_t i = 0; i < a->rules.n; i++)
        rules[p.n_rules++] = a->rules.at[i];
    p.rules = rules;
    p.work = work;
    p.each = each;
    p.user = &r;
    vq_status status = vq_pool_open(&pool, a->n_threads, &err);
    p.pool = pool;
    texts t = {0};
    if (status == VQ_OK)
        status = open_texts(&t, &p, a, from, &err);
    warn_of_quantised(g);
    r.measuring = a->sensitivity != NULL;
    p.measured = measured;
    cli_progress_start(&r.progress, r.measuring ? "sensitivity" : "quantize");
    const double start = cli_seconds();
    if (status == VQ_OK)
        status = vq_quantize(g, to, &p, &err);
    const double seconds = cli_seconds() - start;
    cli_progress_end(&r.progress);
    int result = CLI_FINE;
    if (status == VQ_OK) {
        if (!a->quiet)
            print_table(&r);
        print_sums(&r, to, seconds);
        if (a->json)
            result = write_json(&r, a, seconds, argc, argv);
    } else if (status == VQ_ERR_CANCELLED && cli_interrupted()) {
        cli_say("stopped; no file was written");
        result = CLI_INTERRUPTED;
    } else {
        result = status == VQ_ERR_ARG ? cli_usage(page, "%s", err.text) : cli_fail_with(&err);
    }
    free(r.rows);
    vq_free(t.feedback);
    vq_free(t.sensitivity);
    vq_model_close(t.model);
    vq_pool_close(pool);
    vq_gguf_close(g);
    return result;
}

int cli_quantize(int argc, char **argv)
{
    struct args a = {.bits = 4, .n_tokens = 8192, .n_sensitivity = 192, .embeddings = "keep", .rotation = "hadamard"};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {
        "quantize",
        "MODEL OUT [options]",
        "Packs the weights of a model once, into one file (a reservoir, .vqr) that every process "
        "maps and shares. MODEL is a GGUF file, or a folder with config.json, tokenizer.json and "
        "safetensors of a llama, mistral, qwen2, qwen3 or gemma3_text model. Rows are rotated, so that outliers "
        "spread, and become codes of 2, 3 or 4 bits with one norm a row; embeddings, norms and the "
        "output head stay as they are unless asked. The file appears whole under its name, or not "
        "at all.",
        groups,
        1,
        ending,
        2,
        2};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    const char *const inputs[] = {argv[1], a.feedback, a.sensitivity};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        if (cli_same_file(argv[2], inputs[i]))
            return cli_usage(&page, "%s: is read, and would be overwritten by the output", inputs[i]);
    cli_signals_model(argv[1]);
    cli_catch_interrupt(2);
    return quantize(&a, &page, argv[1], argv[2], argc, argv);
}
