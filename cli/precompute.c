/* veloxquant precompute: rotations and codebooks that depend on a seed alone, into files that caches read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"

struct args {
    const char *model, *dir, *rotation, *bits;
    cli_counts head_sizes;
    uint32_t n_layers, n_kv_heads;
    int64_t seed;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'o', "output", CLI_TEXT, AT(dir), "DIR", "the folder, made when it is not there; each file whole or not at all", 0,
     0},
    {'m', "model", CLI_TEXT, AT(model), "FILE",
     "take head size, layers and kv heads from this model; may be given as a word", 0, 0},
    {0, "head-sizes", CLI_COUNTS, AT(head_sizes), "LIST", "instead of a model: 64 or 64,128,256; a file for each", 1,
     512},
    {0, "layers", CLI_COUNT, AT(n_layers), "N", "layers; a cache draws those that the file lacks (default 32)", 1,
     1024},
    {0, "kv-heads", CLI_COUNT, AT(n_kv_heads), "N", "kv heads; likewise (default 8)", 1, 4096},
    {0, "rotation", CLI_TEXT, AT(rotation), "KIND",
     "qr: dense matrices, which caches read; hadamard: signs (and small matrices), which only other programs need", 0,
     0},
    {0, "bits", CLI_TEXT, AT(bits), "RANGE", "which Lloyd-Max codebooks: 1-4, or 3", 0, 0},
    {0, "seed", CLI_WHOLE, AT(seed), "N", "what the cache's --kv-seed is (default 0)", 0, 9007199254740992.0},
};

static const char intro[] =
    "Writes what depends on a seed alone: for each head size a file with the random rotation of every layer, kv head "
    "and side, and the Lloyd-Max codebooks of N(0, 1). Results are the same with such files as without.\n"
    "\n"
    "They are worth having for --kv turboquant-mse:haar=1, whose dense matrices take long to draw: give the folder "
    "with --artifact-dir DIR, and opening a cache reads them. All else is drawn faster than a file is opened, and "
    "caches do not look for it. docs/formats.md has the format, for other programs.\n"
    "\n"
    "Sizes: a qr file holds 8 bytes x head size squared for each kv head of each layer, such as 0.5 MiB x layers x kv "
    "heads for head size 256. Reading that takes 20 to 60 times less than drawing it.";

static const char ending[] =
    "Examples:\n"
    "  veloxquant precompute model.gguf -o tables\n"
    "  veloxquant generate -m model.gguf -f long.txt --kv turboquant-mse:haar=1 --artifact-dir tables\n"
    "  veloxquant precompute --head-sizes 64,128,256 --layers 32 --kv-heads 8 -o tables\n"
    "  veloxquant verify tables/qr-d64-seed0.vqa\n"
    "\n"
    "A file that is cut, altered or of another version is refused by name; one that is not there is not\n"
    "missed.\n"
    "Ctrl-C ends with status 130 and leaves no part of a file.\n";

static bool on_progress(void *arg, size_t done, size_t all)
{
    cli_progress_step(arg, done, all, "");
    return !cli_interrupted();
}

/* "3" or "1-4". */
static bool read_bits(const char *text, uint32_t *least, uint32_t *most)
{
    char *end;
    if (*text < '1' || *text > '8')
        return false;
    *least = *most = (uint32_t)strtoul(text, &end, 10);
    if (*end == '-' && end[1] >= '1' && end[1] <= '8')
        *most = (uint32_t)strtoul(end + 1, &end, 10);
    return *end == '\0' && *least <= *most && *most <= 8;
}

static int make(const struct args *a, vq_artifact_info *info)
{
    cli_progress progress;
    vq_error err;
    char path[4096], size[16];
    cli_progress_start(&progress, "rotations");
    const vq_status status = vq_precompute(info, a->dir, on_progress, &progress, &err);
    cli_progress_end(&progress);
    if (status == VQ_ERR_CANCELLED) {
        cli_say("stopped; head size %u was not written", info->d);
        return CLI_INTERRUPTED;
    }
    if (status != VQ_OK || vq_artifact_path(path, sizeof path, a->dir, info, &err) != VQ_OK)
        return cli_fail_with(&err);
    printf("%s: %u layers, %u kv heads, codebooks of %u to %u bits, %s\n", path, info->n_layers, info->n_kv_heads,
           info->least_bits, info->most_bits, cli_bytes(info->n_bytes, size));
    return CLI_FINE;
}

/* Shape from the model's head. */
static int ask_model(struct args *a)
{
    vq_model *model;
    vq_error err;
    cli_signals_model(a->model);
    if (vq_model_open(&model, a->model, &err) != VQ_OK)
        return cli_fail_with(&err);
    const vq_model_info *info = vq_model_get_info(model);
    a->head_sizes = (cli_counts){.at = {info->head_dim}, .n = 1};
    if (!a->n_layers)
        a->n_layers = info->n_layers;
    if (!a->n_kv_heads)
        a->n_kv_heads = info->n_kv_heads;
    vq_model_close(model);
    return CLI_FINE;
}

int cli_precompute(int argc, char **argv)
{
    struct args a = {.rotation = "qr", .bits = "1-4"};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {"precompute", "MODEL|--head-sizes LIST -o DIR [options]", intro, groups, 1, ending, 0, 1};
    size_t n_operands;
    int status = CLI_FINE;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    if (n_operands == 1)
        a.model = argv[1];
    if (!a.model == !a.head_sizes.n)
        return cli_usage(&page, a.model ? "a model and --head-sizes: one says which head sizes"
                                        : "no head sizes: a model, or --head-sizes LIST");
    if (!a.dir)
        return cli_usage(&page, "no output: -o DIR says where the files go");
    vq_artifact_info info = {.qr = strcmp(a.rotation, "qr") == 0, .seed = (uint64_t)a.seed};
    if (!info.qr && strcmp(a.rotation, "hadamard") != 0)
        return cli_usage(&page, "--rotation: '%s', must be hadamard or qr", a.rotation);
    if (!read_bits(a.bits, &info.least_bits, &info.most_bits))
        return cli_usage(&page, "--bits: '%s', must be a number or a range within 1-8", a.bits);
    cli_catch_interrupt(1);
    status = a.model ? ask_model(&a) : CLI_FINE;
    if (status != CLI_FINE)
        return status;
    if (mkdir(a.dir, 0777) != 0 && errno != EEXIST)
        return cli_fail("%s: cannot make the folder: %s", a.dir, strerror(errno));
    info.n_layers = a.n_layers ? a.n_layers : 32;
    info.n_kv_heads = a.n_kv_heads ? a.n_kv_heads : 8;
    for (size_t i = 0; i < a.head_sizes.n && status == CLI_FINE; i++) {
        info.d = a.head_sizes.at[i];
        status = make(&a, &info);
    }
    return status;
}
