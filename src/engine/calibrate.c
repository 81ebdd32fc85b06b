/* Calibrating: a text runs through the model once, and what its layers show is summed up.
 *
 * Sums are in f64, products of a chunk's rows in f32.  Chunks have a fixed length and heads are summed one by one, so
 * the result does not depend on the number of threads. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/pool.h"
#include "engine/codebooks.h"
#include "engine/session.h"
#include "formats/calibration.h"
#include "model/model.h"
#include "model/rope.h"
#include "quant/eigen.h"

enum { BATCH = 256, LEFT_OUT = 32, NEIGHBOURS = 32, DEFAULT_CTX = 2048, LEAST_CTX = 64 };

typedef struct head_sums {
    double *mean;                  /* [d] */
    double *moment;                /* [d][d] upper */
    float *least, *most;           /* [d], of keys and values */
    double *rest;                  /* [d][d] upper, of keys */
    double *turn_near, *turn_rest; /* [d], of keys */
    double *sink;                  /* [d], of keys before RoPE */
    uint64_t n, n_rest, n_sinks;
} head_sums;

typedef struct sums {
    vq_calibration_info shape;
    const vq_kv_rope *ropes; /* [n_layers] */
    vq_pool *pool;
    head_sums *of[VQ_ROWS_V + 1]; /* [n_layers][heads of the kind] */
    float *scratch;               /* [n_threads][room], room = d * d + 2 * NEIGHBOURS * d */
    size_t scratch_each;
    vq_samples samples;
    vq_arena arena;
    /* of the run */
    bool (*progress)(void *arg, size_t done, size_t all);
    void *arg;
    size_t before, all;
} sums;

static uint32_t heads_of(const sums *s, int kind)
{
    return kind == VQ_ROWS_Q || kind == VQ_ROWS_Q_BEFORE_ROPE ? s->shape.n_heads : s->shape.n_kv_heads;
}

static void lay_out(sums *s)
{
    vq_arena *a = &s->arena;
    for (int kind = 0; kind <= VQ_ROWS_V; kind++) {
        const size_t n = (size_t)s->shape.n_layers * heads_of(s, kind);
        const size_t d = kind == VQ_ROWS_V ? s->shape.d_v : s->shape.d_k;
        head_sums *heads = vq_arena_take(a, n, sizeof *heads);
        for (size_t i = 0; i < n; i++) {
            head_sums h = {.mean = vq_arena_take(a, d, sizeof(double)),
                           .moment = vq_arena_take(a, d * d, sizeof(double))};
            if (kind == VQ_ROWS_K || kind == VQ_ROWS_V) {
                h.least = vq_arena_take(a, d, sizeof(float));
                h.most = vq_arena_take(a, d, sizeof(float));
            }
            if (kind == VQ_ROWS_K) {
                h.rest = vq_arena_take(a, d * d, sizeof(double));
                h.turn_near = vq_arena_take(a, d, sizeof(double));
                h.turn_rest = vq_arena_take(a, d, sizeof(double));
            }
            if (kind == VQ_ROWS_K_BEFORE_ROPE)
                h.sink = vq_arena_take(a, d, sizeof(double));
            if (heads)
                heads[i] = h;
        }
        s->of[kind] = heads;
    }
    const size_t d = s->shape.d_k > s->shape.d_v ? s->shape.d_k : s->shape.d_v;
    s->scratch_each = d * d + 2 * (size_t)NEIGHBOURS * d;
    s->scratch = vq_arena_take(a, s->scratch_each * vq_pool_n_threads(s->pool), sizeof(float));
    vq_samples_layout(&s->samples, a, &s->shape);
}

typedef struct rows_work {
    sums *s;
    head_sums *heads; /* of the layer */
    const vq_kv_rope *rope;
    const float *x;
    uint32_t n_heads, d, n, skip; /* rows below skip do not count */
} rows_work;

/* Which of 32 rows are sinks: bit i says that row i is nearer to 0 than to the mean [d] of all. */
static uint32_t find_sinks(const float *x, size_t stride, uint32_t d, const float *mean)
{
    uint32_t sinks = 0;
    for (uint32_t i = 0; i < NEIGHBOURS; i++) {
        double along = 0, own = 0; /* |x|^2 < |x - m|^2 where 2 x.m < |m|^2 */
        for (uint32_t j = 0; j < d; j++) {
            along += (double)x[i * stride + j] * (double)mean[j];
            own += (double)mean[j] * (double)mean[j];
        }
        sinks |= (uint32_t)(2 * along < own) << i;
    }
    return sinks;
}

/* As add_rest, in a frame that turns with the positions: a pair of channels is turned by minus as many steps as its row
 * is away from the first of the 32.  Sinks are left out. */
static void add_turned_rest(const rows_work *w, head_sums *h, const float *x, size_t stride, float *scratch)
{
    const uint32_t n_pairs = w->rope->n_rot / 2, halves = w->rope->halves;
    float *cosine = scratch, *sine = scratch + (size_t)NEIGHBOURS * n_pairs;
    float *turned = scratch + (size_t)NEIGHBOURS * w->d, mean[VQ_MAX_MODEL_HEAD_DIM];
    for (uint32_t i = 0; i < NEIGHBOURS; i++)
        vq_rope_turn(w->rope->freq, n_pairs, i, cosine + (size_t)i * n_pairs, sine + (size_t)i * n_pairs);
    for (uint32_t first = w->skip; first + NEIGHBOURS <= w->n; first += NEIGHBOURS) {
        for (uint32_t j = 0; j < w->d; j++) {
            const bool turns = j < 2 * n_pairs;
            const uint32_t pair = halves ? j % (n_pairs ? n_pairs : 1) : j / 2;
            const bool second = halves ? j >= n_pairs : j % 2;
            const uint32_t other = halves ? (second ? j - n_pairs : j + n_pairs) : j ^ 1;
            double sum = 0;
            for (uint32_t i = 0; i < NEIGHBOURS; i++) {
                const float *row = x + (first + i) * stride;
                const double co = turns ? (double)cosine[(size_t)i * n_pairs + pair] : 1;
                const double si = turns ? (double)sine[(size_t)i * n_pairs + pair] : 0;
                const double there = turns ? (double)row[other] : 0;
                const double y = co * (double)row[j] + (second ? -si : si) * there;
                turned[(size_t)i * w->d + j] = (float)y;
                sum += y;
            }
            mean[j] = (float)(sum / NEIGHBOURS);
        }
        const uint32_t sinks = find_sinks(turned, w->d, w->d, mean);
        const double n = NEIGHBOURS - __builtin_popcount(sinks);
        for (uint32_t j = 0; j < w->d && n > 0; j++) {
            double sum = 0, squares = 0;
            for (uint32_t i = 0; i < NEIGHBOURS; i++) {
                const double y = sinks >> i & 1 ? 0 : (double)turned[(size_t)i * w->d + j];
                sum += y;
                squares += y * y;
            }
            h->turn_near[j] += sum / n * sum / n;
            h->turn_rest[j] += (squares - sum * sum / n) * NEIGHBOURS / n;
        }
    }
}

static void add_sinks(const rows_work *w, head_sums *h, const float *x, size_t stride)
{
    float mean[VQ_MAX_MODEL_HEAD_DIM];
    for (uint32_t first = w->skip; first + NEIGHBOURS <= w->n; first += NEIGHBOURS) {
        for (uint32_t j = 0; j < w->d; j++) {
            float sum = 0;
            for (uint32_t i = 0; i < NEIGHBOURS; i++)
                sum += x[(first + i) * stride + j];
            mean[j] = sum * (1.0F / NEIGHBOURS);
        }
        for (uint32_t sinks = find_sinks(x + first * stride, stride, w->d, mean); sinks; sinks &= sinks - 1) {
            const float *row = x + (first + (uint32_t)__builtin_ctz(sinks)) * stride;
            for (uint32_t j = 0; j < w->d; j++)
                h->sink[j] += (double)row[j];
            h->n_sinks++;
        }
    }
}

/* Products of rows less the mean of the 32 that they stand among. */
static void add_rest(const rows_work *w, head_sums *h, const float *x, size_t stride, float *scratch)
{
    float *rest = scratch + (size_t)w->d * w->d;
    for (uint32_t first = w->skip; first + NEIGHBOURS <= w->n; first += NEIGHBOURS) {
        for (uint32_t j = 0; j < w->d; j++) {
            float mean = 0;
            for (uint32_t i = 0; i < NEIGHBOURS; i++)
                mean += x[(first + i) * stride + j];
            mean *= 1.0F / NEIGHBOURS;
            for (uint32_t i = 0; i < NEIGHBOURS; i++)
                rest[(size_t)i * w->d + j] = x[(first + i) * stride + j] - mean;
        }
        vq_add_products(h->rest, rest, w->d, NEIGHBOURS, w->d, scratch);
        h->n_rest += NEIGHBOURS;
    }
}

static void add_head(void *arg, uint32_t head, uint32_t thread)
{
    const rows_work *w = arg;
    head_sums *h = &w->heads[head];
    const size_t stride = (size_t)w->n_heads * w->d;
    const float *x = w->x + (size_t)head * w->d;
    float *scratch = w->s->scratch + thread * w->s->scratch_each;
    const uint32_t n = w->n - w->skip;
    vq_add_products(h->moment, x + w->skip * stride, (uint32_t)stride, n, w->d, scratch);
    for (uint32_t i = w->skip; i < w->n; i++)
        for (uint32_t j = 0; j < w->d; j++)
            h->mean[j] += (double)x[i * stride + j];
    for (uint32_t i = w->skip; h->least && i < w->n; i++)
        for (uint32_t j = 0; j < w->d; j++) {
            const float v = x[i * stride + j];
            h->least[j] = h->n == 0 && i == w->skip ? v : v < h->least[j] ? v : h->least[j];
            h->most[j] = h->n == 0 && i == w->skip ? v : v > h->most[j] ? v : h->most[j];
        }
    h->n += n;
    if (h->rest) {
        add_rest(w, h, x, stride, scratch);
        add_turned_rest(w, h, x, stride, scratch);
    }
    if (h->sink)
        add_sinks(w, h, x, stride);
}

static void on_rows(void *arg, uint32_t layer, vq_rows_kind kind, const float *x, uint32_t n_heads, uint32_t d,
                    uint32_t pos, uint32_t n)
{
    sums *s = arg;
    rows_work w = {.s = s,
                   .heads = s->of[kind] + (size_t)layer * n_heads,
                   .x = x,
                   .n_heads = n_heads,
                   .d = d,
                   .n = n,
                   .rope = &s->ropes[layer]};
    w.skip = pos >= LEFT_OUT ? 0 : LEFT_OUT - pos;
    if (w.skip >= n)
        return;
    /* One head after the other: the serial build of OpenBLAS must not be called by two threads at once. */
    vq_pool_run(NULL, n_heads, add_head, &w);
    vq_samples_add(&s->samples, layer, kind, x, n_heads, d, w.skip, n);
}

static bool on_progress(void *arg, size_t done, size_t all)
{
    const sums *s = arg;
    (void)all;
    return !s->progress || s->progress(s->arg, s->before + done, s->all);
}

/* ---- what the file says of the sums ---- */

static void put_mean(vq_calibration *c, vq_statistic what, uint32_t layer, uint32_t head, const head_sums *h,
                     uint32_t d)
{
    float *to = vq_calibration_edit(c, what, layer, head);
    for (uint32_t j = 0; j < d; j++)
        to[j] = (float)(h->mean[j] / (double)h->n);
}

/* Makes the sum a whole matrix of means, in place. */
static void complete(double *sum, uint64_t n, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t j = i; j < d; j++) {
            sum[(size_t)i * d + j] /= n > 0 ? (double)n : 1;
            sum[(size_t)j * d + i] = sum[(size_t)i * d + j];
        }
}

static void put(vq_calibration *c, vq_statistic what, uint32_t layer, uint32_t head, const double *x, size_t n)
{
    float *to = vq_calibration_edit(c, what, layer, head);
    for (size_t i = 0; i < n; i++)
        to[i] = (float)x[i];
}

static void put_range(vq_calibration *c, vq_statistic least, vq_statistic most, uint32_t layer, uint32_t head,
                      const head_sums *h, uint32_t d)
{
    memcpy(vq_calibration_edit(c, least, layer, head), h->least, d * sizeof(float));
    memcpy(vq_calibration_edit(c, most, layer, head), h->most, d * sizeof(float));
}

/* Replaces a moment by its eigenvectors. */
static vq_status put_basis(vq_calibration *c, vq_statistic spectrum, vq_statistic basis, uint32_t layer, uint32_t head,
                           double *moment, uint32_t d, vq_error *err)
{
    double values[VQ_MAX_MODEL_HEAD_DIM];
    VQ_TRY(vq_eigen_symmetric(moment, values, d, err));
    for (uint32_t j = 0; j < d; j++)
        values[j] = values[j] > 0 ? values[j] : 0;
    put(c, spectrum, layer, head, values, d);
    put(c, basis, layer, head, moment, (size_t)d * d);
    return VQ_OK;
}

/* Adds `times` mean mean' to a whole matrix of means. */
static void add_mean(double *moment, double times, const head_sums *h, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++)
        for (uint32_t j = 0; j < d; j++)
            moment[(size_t)i * d + j] += times * h->mean[i] * h->mean[j] / ((double)h->n * (double)h->n);
}

/* Keys less their neighbours vary by `rest`, all keys by `all`: the neighbours' means by the difference, of which the
 * diagonal along the rest's basis is kept. */
static void put_near(vq_calibration *c, uint32_t layer, uint32_t head, const double *all, const double *rest_basis,
                     const float *rest_spectrum, uint32_t d)
{
    float *to = vq_calibration_edit(c, VQ_KEY_NEAR_VARIANCE, layer, head);
    for (uint32_t b = 0; b < d; b++) {
        const double *v = rest_basis + (size_t)b * d;
        double sum = 0;
        for (uint32_t i = 0; i < d; i++) {
            double row = 0;
            for (uint32_t j = 0; j < d; j++)
                row += all[(size_t)i * d + j] * v[j];
            sum += row * v[i];
        }
        sum -= (double)rest_spectrum[b];
        to[b] = sum > 0 ? (float)sum : 0;
    }
}

static void put_turned(vq_calibration *c, uint32_t layer, uint32_t head, const head_sums *h, uint32_t d)
{
    float *near = vq_calibration_edit(c, VQ_KEY_TURN_NEAR, layer, head);
    float *rest = vq_calibration_edit(c, VQ_KEY_TURN_REST, layer, head);
    const double n = h->n_rest ? (double)h->n_rest : 1;
    for (uint32_t j = 0; j < d; j++) {
        near[j] = (float)(h->turn_near[j] * NEIGHBOURS / n);
        rest[j] = (float)fmax(h->turn_rest[j] / n, 0);
    }
}

static void put_sink(vq_calibration *c, uint32_t layer, uint32_t head, const head_sums *h, uint32_t d)
{
    float *to = vq_calibration_edit(c, VQ_KEY_SINK, layer, head);
    for (uint32_t j = 0; j < d; j++)
        to[j] = h->n_sinks ? (float)(h->sink[j] / (double)h->n_sinks) : 0;
}

/* The group's filter; the moments of its query heads become eigenvectors. */
static vq_status put_filter(vq_calibration *c, vq_statistic what, uint32_t layer, uint32_t kv_head, head_sums *heads,
                            uint32_t n_heads, uint32_t d, double *values, vq_error *err)
{
    double sum[VQ_MAX_MODEL_HEAD_DIM] = {0}, squares = 0;
    for (uint32_t i = 0; i < n_heads; i++) {
        VQ_TRY(vq_eigen_symmetric(heads[i].moment, values, d, err));
        double along = 0; /* sum of the left singular vector, times its singular value */
        for (uint32_t j = 0; j < d; j++)
            along += heads[i].mean[j] * heads[i].moment[j];
        for (uint32_t j = 0; j < d; j++)
            sum[j] += along < 0 ? -heads[i].moment[j] : heads[i].moment[j];
    }
    for (uint32_t j = 0; j < d; j++)
        squares += sum[j] * sum[j];
    for (uint32_t j = 0; j < d; j++)
        sum[j] /= squares > DBL_MIN ? sqrt(squares) : 1;
    put(c, what, layer, kv_head, sum, d);
    return VQ_OK;
}

static vq_status put_layer(vq_calibration *c, const sums *s, uint32_t layer, vq_error *err)
{
    const uint32_t d_k = s->shape.d_k, d_v = s->shape.d_v, n_kv = s->shape.n_kv_heads;
    const uint32_t n_q = s->shape.n_heads, group = n_q / n_kv;
    const size_t square = (size_t)d_k * d_k;
    double values[VQ_MAX_MODEL_HEAD_DIM];
    for (uint32_t h = 0; h < n_kv; h++) {
        head_sums *k = &s->of[VQ_ROWS_K][(size_t)layer * n_kv + h], *v = &s->of[VQ_ROWS_V][(size_t)layer * n_kv + h];
        head_sums *before = &s->of[VQ_ROWS_K_BEFORE_ROPE][(size_t)layer * n_kv + h];
        complete(k->moment, k->n, d_k);
        complete(k->rest, k->n_rest, d_k);
        complete(before->moment, before->n, d_k);
        complete(v->moment, v->n, d_v);
        put_mean(c, VQ_KEY_MEAN, layer, h, k, d_k);
        put(c, VQ_KEY_MOMENT, layer, h, k->moment, square);
        put(c, VQ_KEY_REST_MOMENT, layer, h, k->rest, square);
        put_range(c, VQ_KEY_LEAST, VQ_KEY_MOST, layer, h, k, d_k);
        put_mean(c, VQ_KEY_BEFORE_MEAN, layer, h, before, d_k);
        put(c, VQ_KEY_BEFORE_MOMENT, layer, h, before->moment, square);
        put_mean(c, VQ_VALUE_MEAN, layer, h, v, d_v);
        put(c, VQ_VALUE_MOMENT, layer, h, v->moment, (size_t)d_v * d_v);
        put_range(c, VQ_VALUE_LEAST, VQ_VALUE_MOST, layer, h, v, d_v);
        put_turned(c, layer, h, k, d_k);
        put_sink(c, layer, h, before, d_k);
        VQ_TRY(put_basis(c, VQ_KEY_REST_SPECTRUM, VQ_KEY_REST_BASIS, layer, h, k->rest, d_k, err));
        add_mean(k->moment, -1, k, d_k);
        put_near(c, layer, h, k->moment, k->rest, vq_calibration_at(c, VQ_KEY_REST_SPECTRUM, layer, h), d_k);
        add_mean(k->moment, 1, k, d_k);
        VQ_TRY(put_basis(c, VQ_KEY_SPECTRUM, VQ_KEY_BASIS, layer, h, k->moment, d_k, err));
        add_mean(v->moment, -1, v, d_v);
        VQ_TRY(put_basis(c, VQ_VALUE_SPECTRUM, VQ_VALUE_BASIS, layer, h, v->moment, d_v, err));
    }
    const struct {
        vq_rows_kind kind;
        vq_statistic mean, moment, filter;
    } queries[2] = {{VQ_ROWS_Q, VQ_QUERY_MEAN, VQ_QUERY_MOMENT, VQ_QUERY_FILTER},
                    {VQ_ROWS_Q_BEFORE_ROPE, VQ_QUERY_BEFORE_MEAN, VQ_QUERY_BEFORE_MOMENT, VQ_QUERY_BEFORE_FILTER}};
    for (int i = 0; i < 2; i++) {
        head_sums *heads = s->of[queries[i].kind] + (size_t)layer * n_q;
        for (uint32_t h = 0; h < n_q; h++) {
            complete(heads[h].moment, heads[h].n, d_k);
            put_mean(c, queries[i].mean, layer, h, &heads[h], d_k);
            put(c, queries[i].moment, layer, h, heads[h].moment, square);
        }
        for (uint32_t h = 0; h < n_kv; h++)
            VQ_TRY(put_filter(c, queries[i].filter, layer, h, heads + (size_t)h * group, group, d_k, values, err));
    }
    return VQ_OK;
}

static vq_status write_file(sums *s, const vq_model *model, const vq_calibrate_params *params, const char *path,
                            vq_error *err)
{
    vq_calibration *c;
    s->shape.n_tokens = s->of[VQ_ROWS_K][0].n;
    VQ_TRY(vq_calibration_make(&c, &s->shape, err));
    vq_status status = VQ_OK;
    for (uint32_t layer = 0; layer < s->shape.n_layers && status == VQ_OK; layer++)
        status = put_layer(c, s, layer, err);
    if (status == VQ_OK)
        status = vq_codebooks_make(&(vq_codebooks_job){.samples = &s->samples,
                                                       .calibration = c,
                                                       .ropes = model->kv_ropes,
                                                       .pool = s->pool,
                                                       .progress = params->codebook_progress,
                                                       .arg = params->arg},
                                   err);
    if (status == VQ_OK)
        status = vq_calibration_write(c, path, err);
    vq_calibration_close(c);
    return status;
}

/* ---- the run ---- */

static vq_status run(sums *s, vq_session *session, const int32_t *ids, size_t n, uint32_t n_ctx, vq_error *err)
{
    const vq_tokenizer *t = vq_model_tokenizer(vq_session_model(session));
    const vq_observer observer = {.arg = s, .rows = on_rows};
    int32_t *window = malloc(n_ctx * sizeof *window);
    if (!window)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %u tokens", n_ctx);
    vq_session_observe(session, &observer);
    vq_status status = VQ_OK;
    for (s->before = 0; s->before < n && status == VQ_OK;) {
        const size_t part = n - s->before < n_ctx ? n - s->before : n_ctx;
        if (part < LEAST_CTX && s->before > 0)
            break;
        memcpy(window, ids + s->before, part * sizeof *ids);
        if (vq_tokenizer_adds_bos(t) && vq_tokenizer_bos(t) != VQ_NO_TOKEN)
            window[0] = vq_tokenizer_bos(t);
        status = vq_session_truncate(session, 0, err);
        if (status == VQ_OK)
            status = vq_session_run(session, window, part, &(vq_run){.progress = on_progress, .arg = s}, err);
        s->before += part;
    }
    free(window);
    return status;
}

vq_status vq_calibrate(const vq_model *model, const int32_t *ids, size_t n, const vq_calibrate_params *params,
                       const char *path, vq_error *err)
{
    const vq_hparams *hp = &model->hp;
    uint32_t n_ctx = params->n_ctx;
    if (n_ctx == 0)
        n_ctx = hp->n_ctx_train < DEFAULT_CTX ? hp->n_ctx_train : DEFAULT_CTX;
    if (n_ctx < LEAST_CTX)
        return vq_fail(err, VQ_ERR_ARG, "contexts of %u tokens, must be %d or more", n_ctx, LEAST_CTX);
    if (params->most > 0 && n > params->most)
        n = params->most;
    if (n < VQ_CALIBRATE_LEAST)
        return vq_fail(err, VQ_ERR_ARG, "%zu tokens to calibrate on, must be %d or more", n, VQ_CALIBRATE_LEAST);
    sums s = {.shape = {.model_hash = model->hash,
                        .n_layers = hp->n_layers,
                        .n_heads = hp->n_heads,
                        .n_kv_heads = hp->n_kv_heads,
                        .d_k = hp->d_k,
                        .d_v = hp->d_v,
                        .codebooks = params->codebooks},
              .ropes = model->kv_ropes,
              .samples = {.codebooks = params->codebooks},
              .pool = params->pool,
              .progress = params->progress,
              .arg = params->arg,
              .all = n};
    lay_out(&s);
    VQ_TRY(vq_arena_alloc(&s.arena, err));
    lay_out(&s);
    vq_session_params p;
    vq_session_params_init(&p);
    p.n_ctx = n_ctx < n ? n_ctx : (uint32_t)n;
    p.n_batch = BATCH;
    p.exact = true;
    p.kv_exact = VQ_KV_EXACT_F32;
    p.kv_keys = p.kv_values = "f32";
    p.pool = params->pool;
    vq_session *session = NULL;
    vq_status status = vq_session_open(&session, model, &p, err);
    if (status == VQ_OK)
        status = run(&s, session, ids, n, p.n_ctx, err);
    vq_session_close(session);
    if (status == VQ_OK)
        status = write_file(&s, model, params, path, err);
    vq_arena_free(&s.arena);
    return status;
}

vq_status vq_calibration_check(const vq_calibration *c, const vq_model *model, vq_error *err)
{
    const vq_calibration_info *i = vq_calibration_get_info(c);
    const vq_hparams *hp = &model->hp;
    if (i->model_hash != model->hash)
        return vq_fail(err, VQ_ERR_MISMATCH,
                       "%s: belongs to the model with hash %016llx, this one (%s) has %016llx; calibrate again",
                       vq_calibration_path(c), (unsigned long long)i->model_hash, model->info.name,
                       (unsigned long long)model->hash);
    const struct {
        const char *name;
        uint32_t file, model;
    } fields[] = {{"layers", i->n_layers, hp->n_layers},
                  {"heads", i->n_heads, hp->n_heads},
                  {"kv heads", i->n_kv_heads, hp->n_kv_heads},
                  {"values a key", i->d_k, hp->d_k},
                  {"values a value", i->d_v, hp->d_v}};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        if (fields[f].file != fields[f].model)
            return vq_fail(err, VQ_ERR_MISMATCH, "%s: has %u %s, the model has %u", vq_calibration_path(c),
                           fields[f].file, fields[f].name, fields[f].model);
    return VQ_OK;
}
