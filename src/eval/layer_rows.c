/* Keys, values and queries of one context, in the order in which layers compute them.
 *
 * The context runs as one chunk, so that the observer sees all rows of a layer at once; they are copied until the
 * attention's output comes, and one layer's copies are all that is held. */
#include "eval/layer_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/pool.h"
#include "engine/session.h"

enum { N_KINDS = VQ_ROWS_V + 1, MOST_ROWS = 8192 /* of one chunk of a session */ };

struct capture {
    const vq_layer_rows_run *run;
    vq_layer_rows rows;
    vq_vec_kernels kernels;
    float *copies[N_KINDS];
    size_t n_values[N_KINDS]; /* room of each */
    vq_status *head_status;   /* [run->n_heads] */
    vq_error *head_errors;
    vq_status status;
    vq_error *err;
};

static void head_task(void *arg, uint32_t head, uint32_t thread)
{
    struct capture *c = arg;
    c->head_status[head] = c->run->fn(c->run->fn_arg, &c->rows, head, thread, &c->head_errors[head]);
}

/* All heads of the layer whose rows are there; the first failure is the layer's. */
static vq_status run_heads(struct capture *c)
{
    const vq_layer_rows_run *run = c->run;
    vq_pool_run(run->pool, run->n_heads, head_task, c);
    for (uint32_t h = 0; h < run->n_heads; h++)
        if (c->head_status[h] != VQ_OK) {
            if (c->err)
                *c->err = c->head_errors[h];
            return c->head_status[h];
        }
    const uint32_t n_layers = run->model->hp.n_layers, done = c->rows.layer + 1;
    if (run->progress && !run->progress(run->progress_arg, done, n_layers))
        return vq_fail(c->err, VQ_ERR_CANCELLED, "cancelled after %u of %u layers", done, n_layers);
    return VQ_OK;
}

static void on_rows(void *arg, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                    uint32_t pos, uint32_t n)
{
    struct capture *c = arg;
    const size_t width = (size_t)n_heads * d;
    (void)layer;
    if (c->status == VQ_OK && (pos + n) * width > c->n_values[kind])
        c->status =
            vq_fail(c->err, VQ_ERR_UNSUPPORTED, "layer %u: rows of %zu values, unlike the model's", layer, width);
    if (c->status == VQ_OK)
        memcpy(c->copies[kind] + pos * width, x, n * width * sizeof *x);
}

static void on_input(void *arg, uint32_t layer, vq_input_kind kind, const float *x, uint32_t width, uint32_t n)
{
    struct capture *c = arg;
    if (kind != VQ_INPUT_O || c->status != VQ_OK)
        return;
    if (n != c->rows.n) {
        c->status = vq_fail(c->err, VQ_ERR_ARG, "the session takes %u tokens a pass, must be the %u of the context", n,
                            c->rows.n);
        return;
    }
    const uint32_t expected = c->rows.n_heads * c->rows.d_v;
    if (width != expected) {
        c->status = vq_fail(c->err, VQ_ERR_UNSUPPORTED, "layer %u: attention gives %u values a token, its heads %u",
                            layer, width, expected);
        return;
    }
    c->rows.layer = layer;
    c->rows.window = c->run->model->windows[layer];
    c->rows.out = x;
    c->status = run_heads(c);
}

static vq_status allocate(struct capture *c)
{
    const vq_layer_rows *r = &c->rows;
    c->head_status = calloc(c->run->n_heads, sizeof *c->head_status);
    c->head_errors = calloc(c->run->n_heads, sizeof *c->head_errors);
    if (!c->head_status || !c->head_errors)
        return vq_fail(c->err, VQ_ERR_NOMEM, "no memory for %u heads", c->run->n_heads);
    for (int kind = 0; kind < N_KINDS; kind++) {
        const bool of_queries = kind == VQ_ROWS_Q || kind == VQ_ROWS_Q_BEFORE_ROPE;
        c->n_values[kind] =
            (size_t)r->n * (of_queries ? r->n_heads : r->n_kv_heads) * (kind == VQ_ROWS_V ? r->d_v : r->d_k);
        c->copies[kind] = malloc(c->n_values[kind] * sizeof(float));
        if (!c->copies[kind])
            return vq_fail(c->err, VQ_ERR_NOMEM, "no memory for the rows of %u tokens", r->n);
    }
    c->rows.q = c->copies[VQ_ROWS_Q];
    c->rows.k = c->copies[VQ_ROWS_K];
    c->rows.v = c->copies[VQ_ROWS_V];
    c->rows.q_before = c->copies[VQ_ROWS_Q_BEFORE_ROPE];
    c->rows.k_before = c->copies[VQ_ROWS_K_BEFORE_ROPE];
    return VQ_OK;
}

static vq_status run_context(struct capture *c)
{
    const vq_layer_rows_run *run = c->run;
    const vq_tokenizer *t = vq_model_tokenizer(run->model);
    const vq_observer observer = {.arg = c, .rows = on_rows, .input = on_input};
    vq_session_params p;
    vq_session_params_init(&p);
    p.n_ctx = p.n_batch = run->n;
    p.exact = run->exact;
    p.pool = run->pool;
    vq_session *own = NULL, *s = run->session;
    int32_t *ids = malloc(run->n * sizeof *ids);
    if (!ids)
        return vq_fail(c->err, VQ_ERR_NOMEM, "no memory for %u tokens", run->n);
    memcpy(ids, run->ids, run->n * sizeof *ids);
    if (vq_tokenizer_adds_bos(t) && vq_tokenizer_bos(t) != VQ_NO_TOKEN)
        ids[0] = vq_tokenizer_bos(t);
    vq_status status = s ? vq_session_truncate(s, 0, c->err) : vq_session_open(&own, run->model, &p, c->err);
    if (status == VQ_OK) {
        s = s ? s : own;
        vq_session_observe(s, &observer);
        status = vq_session_eval(s, ids, run->n, NULL, 0, NULL, c->err);
        vq_session_observe(s, NULL);
    }
    vq_session_close(own);
    free(ids);
    return status == VQ_OK ? c->status : status;
}

vq_status vq_layer_rows_do(const vq_layer_rows_run *run, vq_error *err)
{
    const vq_hparams *hp = &run->model->hp;
    if (run->n < 2 || run->n > MOST_ROWS)
        return vq_fail(err, VQ_ERR_ARG, "a context of %u tokens, must be 2 to %d", run->n, MOST_ROWS);
    struct capture c = {.run = run,
                        .rows = {.model = run->model,
                                 .n = run->n,
                                 .n_heads = hp->n_heads,
                                 .n_kv_heads = hp->n_kv_heads,
                                 .d_k = hp->d_k,
                                 .d_v = hp->d_v,
                                 .scale = hp->attn_scale > 0 ? hp->attn_scale : 1 / sqrtf((float)hp->d_k)},
                        .err = err};
    vq_vec_kernels_init(&c.kernels, vq_cpu_detect());
    c.rows.kernels = &c.kernels;
    vq_status status = allocate(&c);
    if (status == VQ_OK)
        status = run_context(&c);
    for (int kind = 0; kind < N_KINDS; kind++)
        free(c.copies[kind]);
    free(c.head_status);
    free(c.head_errors);
    return status;
}

void vq_layer_rows_weights(const vq_layer_rows *r, uint32_t head, uint32_t i, uint32_t *first, float *out)
{
    const uint32_t kv_head = head / (r->n_heads / r->n_kv_heads);
    const float *q = r->q + ((size_t)i * r->n_heads + head) * r->d_k;
    *first = r->window > 0 && i + 1 > r->window ? i + 1 - r->window : 0;
    memset(out, 0, *first * sizeof *out);
    const uint32_t n = i + 1 - *first;
    float *w = out + *first;
    for (uint32_t j = 0; j < n; j++)
        w[j] = r->scale * r->kernels->dot(q, r->k + ((size_t)(*first + j) * r->n_kv_heads + kv_head) * r->d_k, r->d_k);
    const float sum = r->kernels->exp_sum(w, r->kernels->max(w, n), n);
    r->kernels->scale(w, 1 / sum, n);
}

/* ---- ranks ---- */
static int by_value(const void *a, const void *b, void *arg)
{
    const float *x = arg, p = x[*(const uint32_t *)a], q = x[*(const uint32_t *)b];
    if (isnan(p) || isnan(q))
        return isnan(q) - isnan(p);
    return p < q ? -1 : p > q;
}

static void rank_values(const float *x, uint32_t n, double *ranks, uint32_t *order)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, n, sizeof *order, by_value, (void *)(uintptr_t)x);
    for (uint32_t i = 0; i < n;) {
        uint32_t end = i + 1;
        while (end < n && x[order[end]] == x[order[i]])
            end++;
        for (uint32_t k = i; k < end; k++)
            ranks[order[k]] = 0.5 * (double)(i + end - 1);
        i = end;
    }
}

double vq_spearman(const float *a, const float *b, uint32_t n, double *ranks, uint32_t *order)
{
    double *p = ranks, *q = ranks + n, ab = 0, aa = 0, bb = 0;
    const double middle = 0.5 * ((double)n - 1);
    rank_values(a, n, p, order);
    rank_values(b, n, q, order);
    for (uint32_t i = 0; i < n; i++) {
        ab += (p[i] - middle) * (q[i] - middle);
        aa += (p[i] - middle) * (p[i] - middle);
        bb += (q[i] - middle) * (q[i] - middle);
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}
