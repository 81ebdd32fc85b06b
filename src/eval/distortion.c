/* What a cache does to the output of attention, layer by layer, in a model that runs with it.
 *
 * The observer sees the rows as they went into the cache and the output that came back.  The same queries over the same
 * rows, unrounded, say what should have come: so a layer is charged with its own error only, and a codec that turns,
 * scales or predicts rows is judged by what matters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "engine/session.h"
#include "eval/layer_rows.h"
#include "veloxquant/eval.h"

struct sums {
    double wrong, all; /* squared lengths */
    double cosines;
};

struct job {
    uint32_t n_queries, n_heads;
    struct sums *sums; /* [n_layers][n_heads] */
    float *weights;    /* [n_threads][n] */
    double *output;    /* [n_threads][d_v] */
};

static vq_status compare_head(void *arg, const vq_layer_rows *r, uint32_t head, uint32_t thread, vq_error *err)
{
    const struct job *j = arg;
    const uint32_t kv_head = head / (r->n_heads / r->n_kv_heads);
    struct sums *sums = &j->sums[(size_t)r->layer * j->n_heads + head];
    float *weights = j->weights + (size_t)thread * r->n;
    double *o = j->output + (size_t)thread * r->d_v;
    (void)err;
    for (uint32_t i = r->n - j->n_queries; i < r->n; i++) {
        uint32_t first;
        vq_layer_rows_weights(r, head, i, &first, weights);
        memset(o, 0, r->d_v * sizeof *o);
        for (uint32_t row = first; row <= i; row++) {
            const float *v = r->v + ((size_t)row * r->n_kv_heads + kv_head) * r->d_v;
            for (uint32_t d = 0; d < r->d_v; d++)
                o[d] += (double)(weights[row] * v[d]);
        }
        const float *seen = r->out + ((size_t)i * r->n_heads + head) * r->d_v;
        double oo = 0, ss = 0, os = 0, wrong = 0;
        for (uint32_t d = 0; d < r->d_v; d++) {
            const double s = (double)seen[d];
            oo += o[d] * o[d];
            ss += s * s;
            os += o[d] * s;
            wrong += (o[d] - s) * (o[d] - s);
        }
        sums->wrong += wrong;
        sums->all += oo;
        sums->cosines += oo > 0 && ss > 0 ? os / sqrt(oo * ss) : oo == ss;
    }
    return VQ_OK;
}

static void sum_up(const struct job *j, uint32_t n_layers, vq_distortion *out)
{
    for (uint32_t l = 0; l < n_layers; l++) {
        struct sums all = {0};
        for (uint32_t h = 0; h < j->n_heads; h++) {
            const struct sums *one = &j->sums[(size_t)l * j->n_heads + h];
            all.wrong += one->wrong;
            all.all += one->all;
            all.cosines += one->cosines;
        }
        out[l].error = all.all > 0 ? sqrt(all.wrong / all.all) : 0;
        out[l].cosine = all.cosines / ((double)j->n_heads * j->n_queries);
    }
}

vq_status vq_eval_distortion(vq_session *s, const vq_distortion_params *p, vq_distortion *out, vq_error *err)
{
    const vq_model *model = vq_session_model(s);
    const vq_hparams *hp = &model->hp;
    vq_pool *pool = vq_session_pool(s);
    const uint32_t n_threads = vq_pool_n_threads(pool);
    if (p->n_queries < 1 || p->n_queries > p->n)
        return vq_fail(err, VQ_ERR_ARG, "%u queries of a context of %u tokens, must be 1 to all", p->n_queries, p->n);
    struct job j = {.n_queries = p->n_queries,
                    .n_heads = hp->n_heads,
                    .sums = calloc((size_t)hp->n_layers * hp->n_heads, sizeof *j.sums),
                    .weights = malloc((size_t)n_threads * p->n * sizeof *j.weights),
                    .output = malloc((size_t)n_threads * hp->d_v * sizeof *j.output)};
    vq_status status = VQ_OK;
    if (!j.sums || !j.weights || !j.output)
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for the output of %u tokens", p->n);
    else
        status = vq_layer_rows_do(&(vq_layer_rows_run){.model = model,
                                                       .ids = p->ids,
                                                       .n = p->n,
                                                       .n_heads = hp->n_heads,
                                                       .session = s,
                                                       .pool = pool,
                                                       .fn = compare_head,
                                                       .fn_arg = &j,
                                                       .progress = p->progress,
                                                       .progress_arg = p->arg},
                                  err);
    if (status == VQ_OK)
        sum_up(&j, hp->n_layers, out);
    free(j.sums);
    free(j.weights);
    free(j.output);
    return status;
}
