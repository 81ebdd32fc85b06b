/* How much each head of a model matters: what it loses when keys or values of one head alone are stored coarsely. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "veloxquant/eval.h"

/* All others are stored in FINE_BITS, whose loss (measured on its own) is taken off.  AT_ONCE sessions run side by side
 * with one reference: more of them would save little of its time. */
enum { FINE_BITS = 8, AT_ONCE = 15 };

/* A part's loss is not believed to be below this share of the mean: it is the difference of two small numbers, and a
 * head that seems to cost nothing on one text would be given no bits at all. */
#define LEAST_SHARE 0.05

typedef struct job {
    const vq_model *model;
    const vq_head_losses_params *p;
    uint32_t n_layers, n_kv_heads, n_parts; /* parts: sides times layers, or times heads */
    vq_plan *plan;
    vq_session *reference, *tested[AT_ONCE + 1];
    double *losses; /* [n_parts] */
    uint32_t n_done, n_now;
} job;

/* Part i is coarse, all others fine; i = n_parts: none is coarse. */
static void write_plan(job *j, uint32_t i)
{
    const size_t n = (size_t)j->n_layers * j->n_kv_heads;
    for (size_t k = 0; k < n; k++)
        j->plan->key_bits[k] = j->plan->value_bits[k] = FINE_BITS;
    if (i == j->n_parts)
        return;
    const uint32_t n_side = j->n_parts / 2, n_each = (uint32_t)(n / n_side);
    double *bits = i < n_side ? j->plan->key_bits : j->plan->value_bits;
    for (uint32_t k = 0; k < n_each; k++)
        bits[(size_t)(i % n_side) * n_each + k] = VQ_PLAN_PROBE_BITS;
}

static vq_status open_one(vq_session **out, const job *j, bool planned, vq_error *err)
{
    vq_session_params p;
    vq_session_params_init(&p);
    p.n_ctx = j->p->windows.n_ctx;
    p.exact = true;
    p.pool = j->p->pool;
    p.plan = planned ? j->plan : NULL;
    return vq_session_open(out, j->model, &p, err);
}

static bool on_token(void *arg, size_t done, size_t all, double nll)
{
    const job *j = arg;
    (void)nll;
    if (!j->p->progress)
        return true;
    /* A batch counts by its parts. */
    const size_t of_batch = all ? j->n_now * done * 100 / all : 0;
    return j->p->progress(j->p->arg, (size_t)j->n_done * 100 + of_batch, ((size_t)j->n_parts + 1) * 100);
}

static vq_status run_batch(job *j, uint32_t first, uint32_t n, vq_error *err)
{
    vq_comparison sums[AT_ONCE + 1] = {0};
    vq_status status = VQ_OK;
    j->n_now = n;
    for (uint32_t i = 0; i < n && status == VQ_OK; i++) {
        write_plan(j, first + i);
        status = open_one(&j->tested[i], j, true, err);
    }
    if (status == VQ_OK)
        status = vq_eval_compare(j->reference, j->tested, n, &j->p->windows, on_token, j, sums, err);
    for (uint32_t i = 0; i < n; i++) {
        if (status == VQ_OK)
            j->losses[first + i] = sums[i].kl.mean;
        vq_session_close(j->tested[i]);
        j->tested[i] = NULL;
    }
    j->n_done += n;
    return status;
}

static vq_status run(job *j, vq_error *err)
{
    VQ_TRY(vq_plan_new(&j->plan, j->n_layers, j->n_kv_heads, err));
    snprintf(j->plan->keys, sizeof j->plan->keys, "%s", VQ_PLAN_PROBE_METHOD);
    snprintf(j->plan->values, sizeof j->plan->values, "%s", VQ_PLAN_PROBE_METHOD);
    VQ_TRY(open_one(&j->reference, j, false, err));
    for (uint32_t at = 0; at <= j->n_parts; at += AT_ONCE)
        VQ_TRY(run_batch(j, at, j->n_parts + 1 - at < AT_ONCE ? j->n_parts + 1 - at : AT_ONCE, err));
    return VQ_OK;
}

static void spread(const job *j, double *key_losses, double *value_losses)
{
    const uint32_t n_side = j->n_parts / 2, n_each = j->n_layers * j->n_kv_heads / n_side;
    for (uint32_t side = 0; side < 2; side++) {
        double *to = side ? value_losses : key_losses, mean = 0;
        const double *from = j->losses + (size_t)side * n_side, fine = j->losses[j->n_parts];
        for (uint32_t i = 0; i < n_side; i++)
            mean += fmax(from[i] - fine, 0) / n_side;
        const double least = fmax(LEAST_SHARE * mean, 1e-12);
        for (uint32_t i = 0; i < n_side * n_each; i++)
            to[i] = fmax(from[i / n_each] - fine, least) / n_each;
    }
}

vq_status vq_eval_head_losses(const vq_model *model, const vq_head_losses_params *params, double *key_losses,
                              double *value_losses, vq_error *err)
{
    const vq_model_info *info = vq_model_get_info(model);
    job j = {.model = model, .p = params, .n_layers = info->n_layers, .n_kv_heads = info->n_kv_heads};
    j.n_parts = 2 * info->n_layers * (params->by_head ? info->n_kv_heads : 1);
    j.losses = calloc((size_t)j.n_parts + 1, sizeof *j.losses);
    vq_status status = j.losses ? run(&j, err) : vq_fail(err, VQ_ERR_NOMEM, "no memory for %u losses", j.n_parts);
    if (status == VQ_OK)
        spread(&j, key_losses, value_losses);
    vq_session_close(j.reference);
    vq_plan_close(j.plan);
    free(j.losses);
    return status;
}
