/* veloxquant verify: reads a whole file and says whether it is what was written. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

struct args {
    const char *file;
    bool quiet;
};

#define AT(field) offsetof(struct args, field)

static const cli_option options[] = {
    {'q', "quiet", CLI_FLAG, AT(quiet), NULL, "no line when all is well", 0, 0},
};

static const char ending[] = "Examples:\n"
                             "  veloxquant verify model.vqr\n"
                             "  veloxquant verify -q model.gguf && echo fine\n";

static bool work(void *user, uint64_t done, uint64_t all)
{
    cli_progress_step(user, done >> 20, all >> 20, "MiB read");
    return !cli_interrupted();
}

/* The first bytes of a file; zeros where there are none. */
static void read_magic(const char *path, char out[8])
{
    memset(out, 0, 8);
    FILE *f = fopen(path, "rb");
    if (!f)
        return;
    if (fread(out, 1, 8, f) < 8)
        memset(out, 0, 8);
    fclose(f);
}

static int verify_prompt(const struct args *a)
{
    vq_error err;
    uint64_t n;
    if (vq_session_verify(a->file, &n, &err) != VQ_OK)
        return cli_fail_with(&err);
    if (!a->quiet)
        printf("%s: saved prompt, %llu tokens: fine, all sums are right\n", a->file, (unsigned long long)n);
    return CLI_FINE;
}

static int verify_calibration(const struct args *a)
{
    vq_error err;
    vq_calibration *c;
    if (vq_calibration_open(&c, a->file, &err) != VQ_OK)
        return cli_fail_with(&err);
    if (!a->quiet)
        printf("%s: calibration, %llu tokens: fine, its sum is right\n", a->file,
               (unsigned long long)vq_calibration_get_info(c)->n_tokens);
    vq_calibration_close(c);
    return CLI_FINE;
}

static int verify_artifact(const struct args *a)
{
    vq_error err;
    vq_artifact *file;
    if (vq_artifact_open(&file, a->file, &err) != VQ_OK)
        return cli_fail_with(&err);
    const vq_artifact_info *i = vq_artifact_get_info(file);
    if (!a->quiet)
        printf("%s: %s rotations of head size %u for seed %llu, %u layers, %u kv heads, codebooks of %u to %u bits: "
               "fine, its sum is right\n",
               a->file, i->qr ? "qr" : "hadamard", i->d, (unsigned long long)i->seed, i->n_layers, i->n_kv_heads,
               i->least_bits, i->most_bits);
    vq_artifact_close(file);
    return CLI_FINE;
}

static int verify_model(const struct args *a)
{
    vq_error err;
    vq_gguf *g;
    char bytes[16];
    if (vq_gguf_open(&g, a->file, &err) != VQ_OK)
        return cli_fail_with(&err);
    cli_progress progress;
    cli_progress_start(&progress, "verify");
    const vq_status status = vq_gguf_verify(g, work, &progress, &err);
    cli_progress_end(&progress);
    int result = status == VQ_OK ? CLI_FINE : status == VQ_ERR_CANCELLED ? CLI_INTERRUPTED : cli_fail_with(&err);
    const char *kind = vq_gguf_is_reservoir(g) ? "reservoir" : vq_gguf_version(g) ? "GGUF" : "folder of safetensors";
    if (status == VQ_OK && !a->quiet)
        printf("%s: %s, %llu tensors, %s: fine%s\n", a->file, kind, (unsigned long long)vq_gguf_n_tensors(g),
               cli_bytes(vq_gguf_file_bytes(g), bytes),
               vq_gguf_is_reservoir(g) ? ", all sums are right" : " (structure and finite values; it has no sums)");
    vq_gguf_close(g);
    return result;
}

int cli_verify(int argc, char **argv)
{
    struct args a = {0};
    const cli_group groups[] = {{"Options", options, sizeof options / sizeof options[0], &a}};
    const cli_page page = {
        "verify",
        "FILE [options]",
        "Reads a whole model file once. A reservoir is held to the sums that were written with it. A "
        "GGUF file has none: its structure is checked, and that no weight is a NaN or an infinity.",
        groups,
        1,
        ending,
        1,
        1};
    size_t n_operands;
    int status;
    if (!cli_parse(&page, argc, argv, &n_operands, &status))
        return status;
    a.file = argv[1];
    cli_signals_model(a.file);
    cli_catch_interrupt(1);
    char magic[8];
    read_magic(a.file, magic);
    if (memcmp(magic, "VQSESS01", 8) == 0)
        return verify_prompt(&a);
    if (memcmp(magic, "VQARTIF1", 8) == 0)
        return verify_artifact(&a);
    return memcmp(magic, "VQCALIB1", 8) == 0 ? verify_calibration(&a) : verify_model(&a);
}
