#include "cache_plan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool cli_parse_bytes(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    const double x = strtod(text, &end);
    if (end == text || errno != 0 || !(x > 0) || !isfinite(x))
        return false;
    double unit = 1;
    if (*end) {
        const char *at = strchr(units, *end >= 'a' && *end <= 'z' ? *end - 'a' + 'A' : *end);
        if (!at || (end[1] && strcmp(end + 1, "iB") != 0 && strcmp(end + 1, "B") != 0))
            return false;
        unit = pow(1024, (double)(at - units) + 1);
    }
    if (x * unit >= 0x1p63)
        return false;
    *out = (uint64_t)(x * unit);
    return *out > 0;
}

int cli_wish(vq_plan_wish *wish, vq_plan **losses, const cli_page *page, const cli_model_args *args)
{
    *wish = (vq_plan_wish){.most_bits = (double)args->kv_bits};
    *losses = NULL;
    if (!args->kv_memory && args->kv_bits <= 0)
        return cli_usage(page, "a plan needs a budget: --kv-memory 200M or --kv-bits 2.5");
    if (args->kv_memory && args->kv_bits > 0)
        return cli_usage(page, "--kv-memory and --kv-bits are two budgets: one of them");
    if (args->kv_memory && !cli_parse_bytes(args->kv_memory, &wish->most_bytes))
        return cli_usage(page, "--kv-memory: '%s' is no size such as 200M or 1.5G", args->kv_memory);
    if (!args->kv_losses)
        return CLI_FINE;
    vq_error err;
    if (vq_plan_open(losses, args->kv_losses, &err) != VQ_OK)
        return cli_fail_with(&err);
    if ((*losses)->key_losses[0] <= 0)
        return cli_fail("%s: holds no losses of heads: 'veloxquant plan' with --text measures them", args->kv_losses);
    wish->key_losses = (*losses)->key_losses;
    wish->value_losses = (*losses)->value_losses;
    return CLI_FINE;
}

const char *cli_loss(double loss, char out[32])
{
    if (isnan(loss))
        snprintf(out, 32, "not measured");
    else
        snprintf(out, 32, loss == 0 ? "KL 0" : "KL %.2g", loss);
    return out;
}

static const char *bits_text(double bits, char out[32])
{
    out[0] = 0;
    if (bits > 0)
        snprintf(out, 32, " at %.3g", bits);
    return out;
}

void cli_print_candidate(FILE *to, const vq_plan_candidate *c)
{
    char size[16], keys[32], values[32], loss[32];
    fprintf(to, "keys %s%s, values %s%s: %.2f bits a value, %s, expected loss %s\n", c->keys,
            bits_text(c->key_bits, keys), c->values, bits_text(c->value_bits, values), c->bits,
            cli_bytes(c->n_bytes, size), cli_loss(c->loss, loss));
}

static void print_layer(FILE *to, const double *bits, uint32_t n)
{
    bool alike = true;
    for (uint32_t h = 1; h < n; h++)
        alike = alike && bits[h] == bits[0];
    for (uint32_t h = 0; h < (alike ? 1 : n); h++)
        fprintf(to, "%s%g", h ? "/" : " ", bits[h]);
}

static void print_side(FILE *to, const char *name, const vq_plan *plan, const double *bits)
{
    if (bits[0] == 0)
        return;
    fprintf(to, "  bits of %s by layer:", name);
    for (uint32_t i = 0; i < plan->n_layers; i++)
        print_layer(to, bits + (size_t)i * plan->n_kv_heads, plan->n_kv_heads);
    fputc('\n', to);
}

void cli_print_plan(FILE *to, const vq_plan *plan)
{
    print_side(to, "keys", plan, plan->key_bits);
    print_side(to, "values", plan, plan->value_bits);
}

static void explain(const vq_plan *plan, const vq_plan_candidate *list, size_t n, const vq_plan_wish *wish,
                    uint32_t n_ctx, const vq_calibration *calibration)
{
    char size[16], budget[32];
    if (wish->most_bytes)
        snprintf(budget, sizeof budget, "%s", cli_bytes(wish->most_bytes, size));
    else
        snprintf(budget, sizeof budget, "%g bits a value", wish->most_bits);
    fflush(stdout);
    fprintf(stderr, "veloxquant: cache for %u tokens within %s: ", n_ctx, budget);
    cli_print_candidate(stderr, &list[0]);
    cli_print_plan(stderr, plan);
    fprintf(stderr, "  chosen from %zu pairs of methods by losses measured on two models; heads %s%s\n", n,
            wish->key_losses ? "by what each was measured to lose"
                             : "count alike ('veloxquant plan --text' measures them for --kv-losses)",
            calibration ? "" : "; --calibration FILE adds calibrated methods");
    if (n > 1 && list[1].fits) {
        fputs("  next best: ", stderr);
        cli_print_candidate(stderr, &list[1]);
    }
}

static int choose(vq_plan **plan, const cli_engine *e, const cli_page *page, const cli_model_args *args,
                  const vq_session_params *session)
{
    static vq_plan_candidate list[VQ_PLAN_MOST_CANDIDATES];
    vq_session_params own = *session;
    vq_plan_wish wish;
    vq_plan *losses;
    vq_kv_params kv;
    vq_error err;
    size_t n;
    int status = cli_wish(&wish, &losses, page, args);
    own.kv_keys = own.kv_values = NULL;
    if (status == CLI_FINE && losses && vq_plan_fits(losses, e->model, &err) != VQ_OK)
        status = cli_fail("%s: %s", args->kv_losses, err.text);
    if (status == CLI_FINE && (vq_session_kv_params(e->model, &own, &kv, &err) != VQ_OK ||
                               vq_plan_choose(plan, &kv, &wish, list, &n, &err) != VQ_OK))
        status = cli_fail("--kv auto: %s", err.text);
    if (status == CLI_FINE)
        explain(*plan, list, n, &wish, kv.n_ctx, kv.calibration);
    vq_plan_close(losses);
    return status;
}

int cli_plan_open(vq_plan **plan, const cli_engine *e, const cli_page *page, const cli_model_args *args,
                  const vq_session_params *session, const char *method)
{
    static const char prefix[] = "plan:";
    const char *text = method ? method : args->kv;
    const bool automatic = text && strcmp(text, "auto") == 0;
    const bool from_file = text && strncmp(text, prefix, sizeof prefix - 1) == 0;
    vq_error err;
    *plan = NULL;
    if (!automatic && (args->kv_memory || args->kv_bits > 0 || args->kv_losses) && !method)
        return cli_usage(page, "--kv-memory, --kv-bits and --kv-losses go with --kv auto");
    if (!automatic && !from_file)
        return CLI_FINE;
    if (!method && (args->kv_keys || args->kv_values))
        return cli_usage(page, "--kv %s says how keys and values are stored: without --kv-keys and --kv-values", text);
    if (automatic && args->kv_layers)
        return cli_usage(page, "--kv auto chooses for all layers: without --kv-layer");
    if (automatic)
        return choose(plan, e, page, args, session);
    const char *path = text + sizeof prefix - 1;
    if (!*path)
        return cli_usage(page, "--kv plan: names no file: plan:FILE");
    if (vq_plan_open(plan, path, &err) != VQ_OK)
        return cli_fail_with(&err);
    if (vq_plan_fits(*plan, e->model, &err) == VQ_OK)
        return CLI_FINE;
    vq_plan_close(*plan);
    *plan = NULL;
    return cli_fail("%s: %s", path, err.text);
}
