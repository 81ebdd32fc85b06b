/* Options that every command with a model takes, and what they open. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache_plan.h"

#define AT(field) offsetof(cli_model_args, field)

const cli_option cli_model_options[] = {
    {'m', "model", CLI_TEXT, AT(model), "FILE", "the model, a GGUF file or a reservoir", 0, 0},
    {'c', "ctx-size", CLI_COUNT, AT(n_ctx), "N",
     "tokens of context that there is room for (default: what the model was trained for, at most 4096)", 2, 16777216},
    {'t', "threads", CLI_COUNT, AT(n_threads), "N", "threads (default: all cores that this process may use)", 1, 1024},
    {'b', "batch-size", CLI_COUNT, AT(n_batch), "N", "prompt tokens a pass; results do not depend on it", 1, 8192},
    {0, "exact", CLI_FLAG, AT(exact), NULL, "f32 activations instead of int8: slower; what quality is judged in", 0, 0},
};
const size_t cli_n_model_options = sizeof cli_model_options / sizeof cli_model_options[0];

const cli_option cli_cache_options[] = {
    {0, "kv", CLI_TEXT, AT(kv), "METHOD",
     "how keys and values are stored, as NAME or NAME:option=value,...; 'veloxquant methods' lists them (default f16); "
     "plan:FILE: as the plan says, with bits for each layer and head; auto: whatever loses least within --kv-memory or "
     "--kv-bits",
     0, 0},
    {0, "kv-memory", CLI_TEXT, AT(kv_memory), "SIZE",
     "for --kv auto: all that the cache may take with a full context (-c), such as 200M or 1.5G", 0, 0},
    {0, "kv-bits", CLI_REAL, AT(kv_bits), "B",
     "for --kv auto: bits of a packed value, with scales and tables, at a full context", 0.5, 32},
    {0, "kv-losses", CLI_TEXT, AT(kv_losses), "FILE",
     "for --kv auto: a plan that 'veloxquant plan --text' made of this model, which knows how much each head matters",
     0, 0},
    {0, "kv-keys", CLI_TEXT, AT(kv_keys), "METHOD", "the same for keys alone", 0, 0},
    {0, "kv-values", CLI_TEXT, AT(kv_values), "METHOD", "the same for values alone", 0, 0},
    {0, "kv-layer", CLI_TEXT, AT(kv_layers), "LIST", "exceptions by layer, such as 0-1=f16,17=int8", 0, 0},
    {0, "calibration", CLI_TEXT, AT(calibration), "FILE",
     "what 'veloxquant calibrate' made of this model; for methods that need it and name none themselves", 0, 0},
    {0, "artifact-dir", CLI_TEXT, AT(artifact_dir), "DIR",
     "folder of what 'veloxquant precompute' made: dense rotations are read there, not drawn; results are the same", 0,
     0},
    {0, "evict", CLI_TEXT, AT(evict), "POLICY",
     "which tokens stay in the cache, as NAME or NAME:budget=25%,option=value,...; 'veloxquant methods' lists them "
     "(default: all of them)",
     0, 0},
    {0, "sinks", CLI_COUNT, AT(sinks), "N", "first tokens that stay exact (default: as the method asks)", 0, 65536},
    {0, "residual", CLI_COUNT, AT(residual), "N", "newest tokens that stay exact (default: as the method asks)", 0,
     1048576},
    {0, "kv-exact", CLI_TEXT, AT(kv_exact), "TYPE", "f16, bf16 or f32: the type of tokens that stay exact", 0, 0},
    {0, "kv-seed", CLI_WHOLE, AT(kv_seed), "N", "of random rotations and sketches (default 0)", 0, 9007199254740992.0},
};
const size_t cli_n_cache_options = sizeof cli_cache_options / sizeof cli_cache_options[0];

void cli_model_args_init(cli_model_args *args)
{
    *args = (cli_model_args){.n_batch = 256, .sinks = VQ_KV_DEFAULT, .residual = VQ_KV_DEFAULT, .kv_exact = "f16"};
}

int cli_engine_open(cli_engine *e, const cli_page *page, const cli_model_args *args)
{
    vq_error err;
    if (!args->model)
        return cli_usage(page, "no model: -m FILE says which");
    if (vq_pool_open(&e->pool, args->n_threads, &err) != VQ_OK)
        return cli_fail_with(&err);
    cli_signals_model(args->model);
    if (vq_model_open(&e->model, args->model, &err) != VQ_OK)
        return cli_fail_with(&err);
    if (args->calibration && (vq_calibration_open(&e->calibration, args->calibration, &err) != VQ_OK ||
                              vq_calibration_check(e->calibration, e->model, &err) != VQ_OK))
        return cli_fail_with(&err);
    return CLI_FINE;
}

static bool exact_type(const char *name, vq_kv_exact *out)
{
    static const char *const names[] = {"f16", "bf16", "f32"};
    static const vq_kv_exact types[] = {VQ_KV_EXACT_F16, VQ_KV_EXACT_BF16, VQ_KV_EXACT_F32};
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = types[i];
            return true;
        }
    }
    return false;
}

int cli_session_open(vq_session **out, const cli_engine *e, const cli_page *page, const cli_model_args *args,
                     const char *method)
{
    vq_session_params params;
    vq_error err;
    *out = NULL;
    vq_session_params_init(&params);
    if (!exact_type(args->kv_exact, &params.kv_exact))
        return cli_usage(page, "--kv-exact: '%s', must be f16, bf16 or f32", args->kv_exact);
    params.n_ctx = args->n_ctx;
    params.n_batch = args->n_batch;
    params.exact = args->exact;
    params.kv_layers = method ? NULL : args->kv_layers;
    params.evict = args->evict;
    params.sinks = args->sinks;
    params.residual = args->residual;
    params.seed = (uint64_t)args->kv_seed;
    params.pool = e->pool;
    params.calibration = e->calibration;
    params.artifact_dir = args->artifact_dir;
    vq_plan *plan;
    const int planned = cli_plan_open(&plan, e, page, args, &params, method);
    if (planned != CLI_FINE)
        return planned;
    params.plan = plan;
    if (!plan) {
        params.kv_keys = method ? method : args->kv_keys ? args->kv_keys : args->kv;
        params.kv_values = method ? method : args->kv_values ? args->kv_values : args->kv;
    }
    const uint32_t trained = vq_model_get_info(e->model)->n_ctx_train;
    if (!method && args->n_ctx > trained)
        cli_say("note: a context of %u tokens, the model was trained on %u; beyond that texts get worse", args->n_ctx,
                trained);
    const vq_status status = vq_session_open(out, e->model, &params, &err);
    vq_plan_close(plan);
    if (status == VQ_ERR_ARG)
        return cli_usage(page, "%s", err.text);
    return status == VQ_OK ? CLI_FINE : cli_fail_with(&err);
}

void cli_engine_close(cli_engine *e)
{
    vq_session_close(e->session);
    vq_calibration_close(e->calibration);
    vq_model_close(e->model);
    vq_pool_close(e->pool);
    *e = (cli_engine){0};
}

void cli_cache_measure(vq_session *s, cli_cache *out)
{
    const vq_model_info *info = vq_model_get_info(vq_session_model(s));
    vq_kv_bytes b;
    vq_kv_measure(vq_session_kv(s), &b);
    const uint64_t values = b.n_rows * 2 * info->head_dim, coded = b.codes + b.scales + b.shared;
    *out = (cli_cache){.bytes = b, .used = coded + b.exact + b.table, .f16 = values * 2};
    if (values > 0)
        out->bits = 8 * (double)out->used / (double)values;
    if (b.n_values_packed > 0)
        out->packed_bits = 8 * (double)coded / (double)b.n_values_packed;
}

void cli_cache_print(const cli_cache *c)
{
    const struct {
        const char *name;
        uint64_t n_bytes;
    } rows[] = {
        {"codes", c->bytes.codes},
        {"scales and norms", c->bytes.scales},
        {"exact tokens", c->bytes.exact},
        {"codebooks, rotations", c->bytes.shared},
        {"masks, positions", c->bytes.table},
        {"in use", c->used},
        {"reserved beyond that", c->bytes.reserved},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        fprintf(stderr, "  %-22s %14llu B\n", rows[i].name, (unsigned long long)rows[i].n_bytes);
    if (c->packed_bits > 0)
        fprintf(stderr, "  %-22s %14.3f bits a value (codes, scales, codebooks)\n", "packed tokens", c->packed_bits);
}
