/* The geometry that Q-Filters rests on (arXiv:2503.02812, Observations 3.1 and 3.2), head by head.
 *
 * The direction u is the first right singular vector of a head's queries, uncentred, with the sign that makes their
 * mean projection positive. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "eval/layer_rows.h"
#include "quant/eigen.h"
#include "veloxquant/eval.h"

enum { SKIP = 32, LEAST_ROWS = 64 }; /* first rows: attention sinks are unlike the rest */

struct scratch {
    float *weights, *received, *projection, *u; /* [n], u [d] */
    double *ranks, *matrix, *values;
    float *products; /* [d][d] */
    uint32_t *order;
};

struct job {
    vq_anisotropy *out;
    struct scratch *scratch; /* [n_threads] */
};

static const float *query(const vq_layer_rows *r, uint32_t i, uint32_t head)
{
    return r->q + ((size_t)i * r->n_heads + head) * r->d_k;
}

/* Mean projections of queries on every singular direction: all but the first should vanish. */
static void directions(const vq_layer_rows *r, uint32_t head, struct scratch *s, vq_anisotropy *out)
{
    const uint32_t d = r->d_k;
    double mean[VQ_MAX_MODEL_HEAD_DIM] = {0}, total = 0, rest = 0, first = 0;
    for (uint32_t i = SKIP; i < r->n; i++)
        for (uint32_t a = 0; a < d; a++)
            mean[a] += (double)query(r, i, head)[a] / (r->n - SKIP);
    for (uint32_t m = 0; m < d; m++) {
        double along = 0;
        for (uint32_t a = 0; a < d; a++)
            along += mean[a] * s->matrix[(size_t)m * d + a];
        total += s->values[m] > 0 ? s->values[m] : 0;
        if (m == 0)
            first = along;
        else
            rest = fmax(rest, fabs(along));
    }
    for (uint32_t a = 0; a < d; a++)
        s->u[a] = (float)(first < 0 ? -s->matrix[a] : s->matrix[a]);
    out->explained = (float)(total > 0 ? s->values[0] / total : 0);
    out->rest = (float)(first != 0 ? rest / fabs(first) : INFINITY);
}

static vq_status measure_head(void *arg, const vq_layer_rows *r, uint32_t head, uint32_t thread, vq_error *err)
{
    const struct job *j = arg;
    struct scratch *s = &j->scratch[thread];
    const uint32_t d = r->d_k, kv_head = head / (r->n_heads / r->n_kv_heads);
    vq_anisotropy *out = &j->out[(size_t)r->layer * r->n_heads + head];
    memset(s->matrix, 0, (size_t)d * d * sizeof *s->matrix);
    vq_add_products(s->matrix, query(r, SKIP, head), r->n_heads * d, r->n - SKIP, d, s->products);
    VQ_TRY(vq_eigen_symmetric(s->matrix, s->values, d, err));
    directions(r, head, s, out);

    uint32_t n_positive = 0, n_keys_positive = 0;
    double keys = 0;
    for (uint32_t i = SKIP; i < r->n; i++) {
        n_positive += r->kernels->dot(s->u, query(r, i, head), d) > 0;
        s->projection[i] = r->kernels->dot(s->u, r->k + ((size_t)i * r->n_kv_heads + kv_head) * d, d);
        n_keys_positive += s->projection[i] > 0;
        keys += (double)s->projection[i];
    }
    const uint32_t n = r->n - SKIP;
    out->query_share = (float)n_positive / (float)n;
    out->key_sign = keys < 0 ? -1 : 1;
    out->key_share = (float)(keys < 0 ? n - n_keys_positive : n_keys_positive) / (float)n;

    /* What keys receive from later queries, each query's weights counting once.  A row is compared only when all
     * queries of the last quarter see it. */
    const uint32_t from = r->n - r->n / 4;
    uint32_t least = SKIP;
    if (r->window > 0 && r->n > r->window && r->n - r->window > least)
        least = r->n - r->window;
    if (least + LEAST_ROWS > from)
        return vq_fail(err, VQ_ERR_ARG, "layer %u: a window of %u tokens leaves too few rows of a context of %u",
                       r->layer, r->window, r->n);
    memset(s->received, 0, r->n * sizeof *s->received);
    for (uint32_t i = from; i < r->n; i++) {
        uint32_t first;
        vq_layer_rows_weights(r, head, i, &first, s->weights);
        r->kernels->add(s->received, s->weights, from);
    }
    out->rank = (float)vq_spearman(s->projection + least, s->received + least, from - least, s->ranks, s->order);
    return VQ_OK;
}

static bool allocate_scratch(struct scratch *s, size_t n, size_t d)
{
    s->weights = malloc((3 * n + d) * sizeof(float));
    s->ranks = malloc(2 * n * sizeof(double));
    s->order = malloc(n * sizeof(uint32_t));
    s->matrix = malloc((d * d + d) * sizeof(double));
    s->products = malloc(d * d * sizeof(float));
    if (!s->weights || !s->ranks || !s->order || !s->matrix || !s->products)
        return false;
    s->received = s->weights + n;
    s->projection = s->received + n;
    s->u = s->projection + n;
    s->values = s->matrix + d * d;
    return true;
}

static void free_scratch(struct scratch *s)
{
    free(s->weights);
    free(s->ranks);
    free(s->order);
    free(s->matrix);
    free(s->products);
}

vq_status vq_eval_anisotropy(const vq_model *model, const vq_anisotropy_params *p, vq_anisotropy *out, vq_error *err)
{
    const vq_hparams *hp = &model->hp;
    const uint32_t n_threads = vq_pool_n_threads(p->pool);
    const size_t n_out = (size_t)hp->n_layers * hp->n_heads;
    if (p->n < 2 * (SKIP + LEAST_ROWS))
        return vq_fail(err, VQ_ERR_ARG, "a context of %u tokens, must be %d or more", p->n, 2 * (SKIP + LEAST_ROWS));
    struct job j = {.out = calloc(n_out, sizeof *j.out), .scratch = calloc(n_threads, sizeof *j.scratch)};
    bool fine = j.out && j.scratch;
    for (uint32_t i = 0; i < n_threads && fine; i++)
        fine = allocate_scratch(&j.scratch[i], p->n, hp->d_k);
    vq_status status = fine ? VQ_OK : vq_fail(err, VQ_ERR_NOMEM, "no memory for the rows of %u tokens", p->n);
    if (fine)
        status = vq_layer_rows_do(&(vq_layer_rows_run){.model = model,
                                                       .ids = p->ids,
                                                       .n = p->n,
                                                       .exact = p->exact,
                                                       .pool = p->pool,
                                                       .n_heads = hp->n_heads,
                                                       .fn = measure_head,
                                                       .fn_arg = &j,
                                                       .progress = p->progress,
                                                       .progress_arg = p->arg},
                                  err);
    if (status == VQ_OK)
        memcpy(out, j.out, n_out * sizeof *out);
    for (uint32_t i = 0; i < n_threads && j.scratch; i++)
        free_scratch(&j.scratch[i]);
    free(j.scratch);
    free(j.out);
    return status;
}
