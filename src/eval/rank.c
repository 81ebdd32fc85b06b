/* Do the scores that policies keep rows by agree with the attention that the rows receive?
 *
 * A context is cut in two: the first part is what a policy would see as the prompt, and the truth is the mean weight
 * that its rows receive from the queries of the second part, in f32, over the query heads of a kv head.  Scores see the
 * first part only. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "base/rng.h"
#include "eval/layer_rows.h"
#include "model/rope.h"
#include "quant/eigen.h"
#include "veloxquant/calibration.h"
#include "veloxquant/eval.h"

/* SKIP: first rows, which every policy holds as sinks. */
enum { SKIP = 4, SNAP_QUERIES = 32, SNAP_POOL = 7, NEXT_POSITIONS = 512, LEAST_ROWS = 32 };

/* Scratch of one thread. */
struct scratch {
    float *weights, *truth, *score, *sum; /* [n] */
    double *ranks;                        /* [2 n] */
    uint32_t *order;                      /* [n] */
    double *matrix, *values;              /* [d][d], [d] */
    float *sigma, *mu, *product;          /* [d][d], [d], [d] */
};

struct scorer;

struct job {
    const vq_rank_params *params;
    const vq_calibration *calibration;
    const struct scorer *scorers[VQ_RANK_MOST_SCORES];
    float *rho;
    uint32_t n_layers, n_kv_heads;
    struct scratch *scratch; /* [n_threads] */
};

/* Row j of a kv head. */
static const float *key(const vq_layer_rows *r, uint32_t j, uint32_t head)
{
    return r->k + ((size_t)j * r->n_kv_heads + head) * r->d_k;
}

/* Rates rows [0, n) of a kv head: the more attention is expected, the higher. */
typedef vq_status (*score_fn)(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n, struct scratch *s,
                              float *out, vq_error *err);

struct scorer {
    const char *name, *summary;
    bool needs_calibration;
    score_fn score;
};

/* ---- scores ---- */
static vq_status score_filter(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n, struct scratch *s,
                              float *out, vq_error *err)
{
    (void)s;
    (void)err;
    const float *filter = vq_calibration_at(j->calibration, VQ_QUERY_FILTER, r->layer, head);
    for (uint32_t i = 0; i < n; i++)
        out[i] = r->kernels->dot(filter, key(r, i, head), r->d_k);
    return VQ_OK;
}

static vq_status score_filter_before(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n,
                                     struct scratch *s, float *out, vq_error *err)
{
    (void)s;
    (void)err;
    const float *filter = vq_calibration_at(j->calibration, VQ_QUERY_BEFORE_FILTER, r->layer, head);
    for (uint32_t i = 0; i < n; i++)
        out[i] = r->kernels->dot(filter, r->k_before + ((size_t)i * r->n_kv_heads + head) * r->d_k, r->d_k);
    return VQ_OK;
}

/* Keys in the place of queries: what stands in where nothing was calibrated.  Sign as for a filter. */
static vq_status score_key_svd(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n,
                               struct scratch *s, float *out, vq_error *err)
{
    const uint32_t d = r->d_k;
    (void)j;
    memset(s->matrix, 0, (size_t)d * d * sizeof *s->matrix);
    vq_add_products(s->matrix, key(r, 0, head), r->n_kv_heads * d, n, d, s->sigma);
    VQ_TRY(vq_eigen_symmetric(s->matrix, s->values, d, err));
    double sum = 0;
    for (uint32_t i = 0; i < d; i++)
        s->mu[i] = (float)s->matrix[i];
    for (uint32_t i = 0; i < n; i++) {
        out[i] = r->kernels->dot(s->mu, key(r, i, head), d);
        sum += (double)out[i];
    }
    for (uint32_t i = 0; i < n && sum < 0; i++)
        out[i] = -out[i];
    return VQ_OK;
}

static vq_status score_knorm(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n, struct scratch *s,
                             float *out, vq_error *err)
{
    (void)j;
    (void)s;
    (void)err;
    for (uint32_t i = 0; i < n; i++)
        out[i] = -r->kernels->dot(key(r, i, head), key(r, i, head), r->d_k);
    return VQ_OK;
}

static void add_weights(const vq_layer_rows *r, uint32_t kv_head, uint32_t query, uint32_t n, struct scratch *s,
                        float *sum)
{
    const uint32_t group = r->n_heads / r->n_kv_heads;
    for (uint32_t g = 0; g < group; g++) {
        uint32_t first;
        vq_layer_rows_weights(r, kv_head * group + g, query, &first, s->weights);
        r->kernels->add(sum, s->weights, n < query + 1 ? n : query + 1);
    }
}

static vq_status score_snapkv(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n, struct scratch *s,
                              float *out, vq_error *err)
{
    (void)j;
    (void)err;
    memset(s->sum, 0, n * sizeof *s->sum);
    for (uint32_t i = n - SNAP_QUERIES; i < n; i++)
        add_weights(r, head, i, n, s, s->sum);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t from = i > SNAP_POOL / 2 ? i - SNAP_POOL / 2 : 0;
        const uint32_t to = i + SNAP_POOL / 2 < n ? i + SNAP_POOL / 2 : n - 1;
        out[i] = r->kernels->max(s->sum + from, to - from + 1);
    }
    return VQ_OK;
}

/* x [d] turned by the mean of the turns at the next positions: a rotation, shortened, for each pair. */
static void turn_mean(const vq_layer_rows *r, const float *cos, const float *sin, float *x)
{
    r->kernels->rope(x, cos, sin, 1, r->d_k, r->model->hp.n_rot, r->model->hp.rope_halves);
}

static void mean_turns(const vq_layer_rows *r, uint32_t from, float *cos, float *sin)
{
    const uint32_t n_pairs = r->model->hp.n_rot / 2;
    const double *freq = r->model->ropes[r->model->layers[r->layer].rope].freq;
    for (uint32_t i = 0; i < n_pairs; i++) {
        double c = 0, s = 0;
        for (uint32_t p = 0; p < NEXT_POSITIONS; p++) {
            c += __builtin_cos((double)(from + p) * freq[i]);
            s += __builtin_sin((double)(from + p) * freq[i]);
        }
        cos[i] = (float)(c / NEXT_POSITIONS);
        sin[i] = (float)(s / NEXT_POSITIONS);
    }
}

/* The covariance of a query head before RoPE, turned on both sides, into s->sigma; the mean into s->mu. */
static void expected_query(const struct job *j, const vq_layer_rows *r, uint32_t q_head, struct scratch *s)
{
    const uint32_t d = r->d_k;
    float cos[VQ_MAX_MODEL_HEAD_DIM / 2], sin[VQ_MAX_MODEL_HEAD_DIM / 2];
    const float *mean = vq_calibration_at(j->calibration, VQ_QUERY_BEFORE_MEAN, r->layer, q_head);
    const float *moment = vq_calibration_at(j->calibration, VQ_QUERY_BEFORE_MOMENT, r->layer, q_head);
    mean_turns(r, j->params->n_prompt, cos, sin);
    for (uint32_t a = 0; a < d; a++)
        for (uint32_t b = 0; b < d; b++)
            s->sigma[(size_t)a * d + b] = moment[(size_t)a * d + b] - mean[a] * mean[b];
    for (int side = 0; side < 2; side++) { /* R S R' = R (R S)', as S is symmetric */
        for (uint32_t a = 0; a < d; a++)
            turn_mean(r, cos, sin, s->sigma + (size_t)a * d);
        for (uint32_t a = 0; a < d; a++)
            for (uint32_t b = 0; b < a; b++) {
                const float x = s->sigma[(size_t)a * d + b];
                s->sigma[(size_t)a * d + b] = s->sigma[(size_t)b * d + a];
                s->sigma[(size_t)b * d + a] = x;
            }
    }
    memcpy(s->mu, mean, d * sizeof *s->mu);
    turn_mean(r, cos, sin, s->mu);
}

static vq_status score_expected(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n,
                                struct scratch *s, float *out, vq_error *err)
{
    const uint32_t d = r->d_k, group = r->n_heads / r->n_kv_heads;
    (void)err;
    memset(out, 0, n * sizeof *out);
    for (uint32_t g = 0; g < group; g++) {
        expected_query(j, r, head * group + g, s);
        for (uint32_t i = 0; i < n; i++) {
            const float *k = key(r, i, head);
            for (uint32_t a = 0; a < d; a++)
                s->product[a] = r->kernels->dot(s->sigma + (size_t)a * d, k, d);
            s->sum[i] = r->scale * r->kernels->dot(s->mu, k, d) +
                        0.5f * r->scale * r->scale * r->kernels->dot(s->product, k, d);
        }
        const float total = r->kernels->exp_sum(s->sum, r->kernels->max(s->sum, n), n);
        r->kernels->scale(s->sum, 1 / total, n);
        r->kernels->add(out, s->sum, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        const float *v = r->v + ((size_t)i * r->n_kv_heads + head) * r->d_v;
        out[i] *= sqrtf(r->kernels->dot(v, v, r->d_v));
    }
    return VQ_OK;
}

static vq_status score_random(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n, struct scratch *s,
                              float *out, vq_error *err)
{
    (void)s;
    (void)err;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(vq_hash64(j->params->seed, r->layer, head, i, 0) >> 40);
    return VQ_OK;
}

static vq_status score_recency(const struct job *j, const vq_layer_rows *r, uint32_t head, uint32_t n,
                               struct scratch *s, float *out, vq_error *err)
{
    (void)j;
    (void)r;
    (void)head;
    (void)s;
    (void)err;
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)i;
    return VQ_OK;
}

static const struct scorer scorers[] = {
    {"qfilters", "projection of the key on the calibrated direction of the queries", true, score_filter},
    {"qfilters-before", "the same before RoPE, for keys and queries", true, score_filter_before},
    {"key-svd", "projection on the first singular direction of the keys themselves", false, score_key_svd},
    {"knorm", "small norms of keys first", false, score_knorm},
    {"snapkv", "weights from the last 32 queries of the prompt, the maximum of 7 neighbours", false, score_snapkv},
    {"expected-attention",
     "expected weight of calibrated queries at the next 512 positions, times the norm of the "
     "value",
     true, score_expected},
    {"recency", "the newest first, as streaming does", false, score_recency},
    {"random", "a control", false, score_random},
};
enum { N_SCORERS = sizeof scorers / sizeof scorers[0] };

size_t vq_eval_n_rank_scores(void) { return N_SCORERS; }

void vq_eval_rank_score_at(size_t index, vq_rank_score_info *out)
{
    *out = (vq_rank_score_info){scorers[index].name, scorers[index].summary, scorers[index].needs_calibration};
}

/* ---- the run ---- */

/* Rows that all queries of the second part see: a window cuts the oldest ones off. */
static uint32_t first_row(const vq_layer_rows *r)
{
    const uint32_t seen = r->window > 0 && r->n > r->window ? r->n - r->window : 0;
    return seen > SKIP ? seen : SKIP;
}

static vq_status rank_head(void *arg, const vq_layer_rows *r, uint32_t head, uint32_t thread, vq_error *err)
{
    const struct job *j = arg;
    struct scratch *s = &j->scratch[thread];
    const uint32_t n = j->params->n_prompt, first = first_row(r);
    if (first + LEAST_ROWS > n)
        return vq_fail(err, VQ_ERR_ARG,
                       "layer %u: a window of %u tokens leaves %u rows of a prompt of %u to a context of %u", r->layer,
                       r->window, first < n ? n - first : 0, n, r->n);
    memset(s->truth, 0, n * sizeof *s->truth);
    for (uint32_t i = n; i < r->n; i++)
        add_weights(r, head, i, n, s, s->truth);
    for (size_t k = 0; k < j->params->n_scores; k++) {
        VQ_TRY(j->scorers[k]->score(j, r, head, n, s, s->score, err));
        j->rho[(k * j->n_layers + r->layer) * j->n_kv_heads + head] =
            (float)vq_spearman(s->score + first, s->truth + first, n - first, s->ranks, s->order);
    }
    return VQ_OK;
}

static bool allocate_scratch(struct scratch *s, size_t n, size_t d)
{
    s->weights = malloc(4 * n * sizeof(float));
    s->ranks = malloc(2 * n * sizeof(double));
    s->order = malloc(n * sizeof(uint32_t));
    s->matrix = malloc((d * d + d) * sizeof(double));
    s->sigma = malloc((d * d + 2 * d) * sizeof(float));
    if (!s->weights || !s->ranks || !s->order || !s->matrix || !s->sigma)
        return false;
    s->truth = s->weights + n;
    s->score = s->truth + n;
    s->sum = s->score + n;
    s->values = s->matrix + d * d;
    s->mu = s->sigma + d * d;
    s->product = s->mu + d;
    return true;
}

static void free_scratch(struct scratch *s)
{
    free(s->weights);
    free(s->ranks);
    free(s->order);
    free(s->matrix);
    free(s->sigma);
}

static vq_status choose_scorers(struct job *j, const vq_model *model, vq_error *err)
{
    const vq_rank_params *p = j->params;
    if (p->n_scores < 1 || p->n_scores > VQ_RANK_MOST_SCORES)
        return vq_fail(err, VQ_ERR_ARG, "%zu scores, must be 1 to %d", p->n_scores, VQ_RANK_MOST_SCORES);
    if (p->n_prompt < SNAP_QUERIES + LEAST_ROWS || p->n_prompt >= p->n)
        return vq_fail(err, VQ_ERR_ARG, "a prompt of %u in a context of %u tokens, must be %d to %u", p->n_prompt, p->n,
                       SNAP_QUERIES + LEAST_ROWS, p->n - 1);
    if (p->calibration)
        VQ_TRY(vq_calibration_check(p->calibration, model, err));
    for (size_t i = 0; i < p->n_scores; i++) {
        for (size_t k = 0; k < N_SCORERS && !j->scorers[i]; k++)
            if (strcmp(scorers[k].name, p->scores[i]) == 0)
                j->scorers[i] = &scorers[k];
        if (!j->scorers[i])
            return vq_fail(err, VQ_ERR_ARG,
                           "no score '%s'; there are qfilters, qfilters-before, key-svd, knorm, "
                           "snapkv, expected-attention, recency and random",
                           p->scores[i]);
        if (j->scorers[i]->needs_calibration && !p->calibration)
            return vq_fail(err, VQ_ERR_ARG, "the score '%s' needs a calibration", p->scores[i]);
    }
    return VQ_OK;
}

vq_status vq_eval_rank(const vq_model *model, const vq_rank_params *p, float *rho, vq_error *err)
{
    const vq_hparams *hp = &model->hp;
    const uint32_t n_threads = vq_pool_n_threads(p->pool);
    struct job j = {.params = p, .calibration = p->calibration, .n_layers = hp->n_layers, .n_kv_heads = hp->n_kv_heads};
    VQ_TRY(choose_scorers(&j, model, err));
    const size_t n_rho = p->n_scores * hp->n_layers * hp->n_kv_heads;
    j.rho = calloc(n_rho, sizeof *j.rho);
    j.scratch = calloc(n_threads, sizeof *j.scratch);
    bool fine = j.rho && j.scratch;
    for (uint32_t i = 0; i < n_threads && fine; i++)
        fine = allocate_scratch(&j.scratch[i], p->n, hp->d_k);
    vq_status status = fine ? VQ_OK : vq_fail(err, VQ_ERR_NOMEM, "no memory for the ranks of %u tokens", p->n);
    if (fine)
        status = vq_layer_rows_do(&(vq_layer_rows_run){.model = model,
                                                       .ids = p->ids,
                                                       .n = p->n,
                                                       .exact = p->exact,
                                                       .pool = p->pool,
                                                       .n_heads = hp->n_kv_heads,
                                                       .fn = rank_head,
                                                       .fn_arg = &j,
                                                       .progress = p->progress,
                                                       .progress_arg = p->arg},
                                  err);
    if (status == VQ_OK)
        memcpy(rho, j.rho, n_rho * sizeof *rho);
    for (uint32_t i = 0; i < n_threads && j.scratch; i++)
        free_scratch(&j.scratch[i]);
    free(j.scratch);
    free(j.rho);
    return status;
}
