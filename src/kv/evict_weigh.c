/* The attention weights of real queries, for policies that look at them.
 *
 * A few tokens' queries at a time are scored against all rows of their kv head, as attention does it; the softmax is
 * taken once a query's scores are all there, and the weights are added to those of the queries before, one query after
 * the other.  So what is added up depends on neither threads nor the sizes of appends, and no matrix is kept. */
#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "kv/evict.h"

/* Rows of a head that one task adds up. */
enum { PART_ROWS = 1024 };

typedef struct batch {
    uint32_t first, n; /* rows of queries */
    uint32_t coded_end;
} batch;

typedef struct weigh_job {
    vq_kv *kv;
    const vq_kv_layer *l;
    uint32_t layer;
    const float *q; /* [n][n_heads][d_k] from row `q_first` on; NULL: the ring */
    uint32_t q_first;
    float *seen;
    const batch *batches;
    uint32_t n_batches, n_parts;
} weigh_job;

static const float *query_of(const weigh_job *job, uint32_t row)
{
    const vq_kv *kv = job->kv;
    const size_t width = (size_t)kv->n_heads * kv->d_k;
    if (job->q)
        return job->q + (row - job->q_first) * width;
    const uint32_t n = kv->evict->choice.policy->n_queries;
    return kv->evict->ring + ((size_t)job->layer * n + row % n) * width;
}

static float *weights_of(const vq_kv *kv, uint32_t batch_index, uint32_t head)
{
    const vq_evictor *e = kv->evict;
    return e->weights + ((size_t)batch_index * kv->n_kv_heads + head) * e->batch_tokens * kv->group * e->stride;
}

/* Columns of scores [n_queries][VQ_PAGE_ROWS] whose row counts, to row numbers from `at` on. */
static uint32_t spread(const float *scores, uint32_t n_queries, uint64_t live, float *to, size_t stride, uint32_t at)
{
    const uint32_t n = (uint32_t)__builtin_popcountll(live);
    for (uint32_t i = 0; i < n_queries; i++) {
        const float *from = scores + (size_t)i * VQ_PAGE_ROWS;
        float *x = to + i * stride + at;
        if (live == vq_low_bits(n)) {
            memcpy(x, from, n * sizeof *x);
            continue;
        }
        for (uint64_t bits = live; bits; bits &= bits - 1)
            *x++ = from[__builtin_ctzll(bits)];
    }
    return at + n;
}

static uint32_t score_exact(const weigh_job *job, uint32_t head, const float *q, uint32_t n_queries, uint32_t end,
                            bool sinks, uint32_t first, float *to, uint32_t at, vq_kv_scratch *s)
{
    const vq_kv *kv = job->kv;
    const vq_kv_layer *l = job->l;
    for (uint32_t row = first; row < end; row += VQ_PAGE_ROWS) {
        const uint32_t n = end - row < VQ_PAGE_ROWS ? end - row : VQ_PAGE_ROWS;
        const uint64_t live =
            sinks ? vq_mask_bits(l->heads[head].sink_live, row, n) : vq_kv_exact_live(l, head, row, n);
        if (!live)
            continue;
        for (uint32_t i = 0, held; i < n; i += held) {
            const unsigned char *k;
            if (sinks) {
                k = l->heads[head].sink_k + (row + i) * kv->d_k * kv->exact_bytes;
                held = n - i;
            } else {
                k = vq_kv_exact_rows(kv, l, head, true, row + i, &held);
                held = held < n - i ? held : n - i;
            }
            vq_kv_score_exact(kv, q, n_queries, k, held, s->scores + i);
        }
        at = spread(s->scores, n_queries, live, to, kv->evict->stride, at);
    }
    return at;
}

/* The first row number at or after a position. */
static uint32_t number_at(const uint32_t *pos, uint32_t n, uint32_t wanted)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        const uint32_t mid = low + (high - low) / 2;
        if (pos[mid] < wanted)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Task: the queries of one batch that share a head. */
static void weigh_batch(void *arg, uint32_t index, uint32_t thread)
{
    const weigh_job *job = arg;
    vq_kv *kv = job->kv;
    const vq_evictor *e = kv->evict;
    const vq_kv_layer *l = job->l;
    const uint32_t head = index % kv->n_kv_heads, batch_index = index / kv->n_kv_heads;
    const batch *b = &job->batches[batch_index];
    const vq_kv_head *h = &l->heads[head];
    const uint32_t n_queries = b->n * kv->group, n = e->n_live[head];
    const size_t query_bytes = vq_side_query_bytes(&h->k);
    vq_kv_scratch *s = &kv->scratch[thread];
    for (uint32_t i = 0; i < b->n; i++) {
        const float *from = query_of(job, b->first + i) + (size_t)head * kv->group * kv->d_k;
        for (size_t j = 0; j < (size_t)kv->group * kv->d_k; j++)
            s->q[i * kv->group * kv->d_k + j] = from[j] * kv->scale;
    }
    for (uint32_t i = 0; i < n_queries && h->n_pages > 0; i++)
        vq_side_prepare_at(&h->k, s->prepared + i * query_bytes, s->q + (size_t)i * kv->d_k,
                           l->first_pos + b->first + i / kv->group);

    float *w = weights_of(kv, batch_index, head);
    const uint32_t n_sinks = l->sinks < l->n_rows ? l->sinks : l->n_rows;
    uint32_t at = score_exact(job, head, s->q, n_queries, n_sinks, true, 0, w, 0, s);
    for (uint32_t p = 0; p < h->n_pages; p++) {
        const vq_kv_page *page = &h->pages[p];
        const uint32_t n_coded = vq_kv_page_below(page, b->coded_end);
        const uint64_t live = page->live & vq_low_bits(n_coded);
        if (!live)
            continue;
        uint32_t pos[VQ_PAGE_ROWS];
        const uint32_t n_whole = vq_kv_whole_granules(n_coded);
        for (uint32_t i = 0; i < n_whole; i++)
            pos[i] = l->first_pos + vq_kv_page_row(page, i < n_coded ? i : n_coded - 1);
        const vq_rows rows = {.pos = pos, .live = live, .n = n_whole};
        vq_side_score(&h->k, page->bytes, &rows, s->prepared, n_queries, s->scores);
        at = spread(s->scores, n_queries, live, w, e->stride, at);
    }
    at = score_exact(job, head, s->q, n_queries, l->n_rows, false, b->coded_end, w, at, s);

    const uint32_t *row_pos = e->pos + head * e->stride;
    for (uint32_t i = 0; i < b->n; i++) {
        const uint32_t query_pos = l->first_pos + b->first + i;
        const uint32_t low =
            l->window && query_pos + 1 > l->window ? number_at(row_pos, n, query_pos + 1 - l->window) : 0;
        const uint32_t end = number_at(row_pos, n, query_pos + 1);
        float *rows = w + (size_t)i * kv->group * e->stride;
        for (uint32_t g = 0; g < kv->group; g++) {
            float *x = rows + g * e->stride;
            if (low < end) {
                const float max = kv->kernels.vec.max(x + low, end - low);
                const float sum = kv->kernels.vec.exp_sum(x + low, max, end - low);
                kv->kernels.vec.scale(x + low, 1 / sum, end - low);
            }
            memset(x, 0, low * sizeof *x);
            memset(x + end, 0, (n - end) * sizeof *x);
        }
        const vq_policy *policy = e->choice.policy;
        if (policy->reweigh && low < end)
            policy->reweigh(e->state, &(vq_policy_query){.layer = job->layer,
                                                         .head = head,
                                                         .pos = query_pos,
                                                         .step = vq_evict_step(e, l->n_rows - 1 - (b->first + i)),
                                                         .n = n,
                                                         .group = kv->group,
                                                         .row_pos = row_pos,
                                                         .weights = rows,
                                                         .stride = e->stride});
    }
}

/* Task: adds up a part of a head's rows, query after query. */
static void add_part(void *arg, uint32_t index, uint32_t thread)
{
    (void)thread;
    const weigh_job *job = arg;
    const vq_kv *kv = job->kv;
    const vq_evictor *e = kv->evict;
    const uint32_t head = index / job->n_parts, first = index % job->n_parts * PART_ROWS;
    if (first >= e->n_live[head])
        return;
    const uint32_t n = e->n_live[head] - first < PART_ROWS ? e->n_live[head] - first : PART_ROWS;
    float *to = job->seen + head * e->stride + first;
    for (uint32_t b = 0; b < job->n_batches; b++) {
        const float *w = weights_of(kv, b, head) + first;
        for (uint32_t i = 0; i < job->batches[b].n * kv->group; i++, w += e->stride) {
            if (!e->choice.policy->takes_maximum) {
                kv->kernels.vec.add(to, w, n);
                continue;
            }
            for (uint32_t j = 0; j < n; j++)
                to[j] = w[j] > to[j] ? w[j] : to[j];
        }
    }
}

void vq_evict_weigh(vq_kv *kv, uint32_t layer, const float *q, uint32_t first, uint32_t n, float *seen)
{
    vq_evictor *e = kv->evict;
    const vq_kv_layer *l = &kv->layers[layer];
    batch batches[VQ_EVICT_BATCHES];
    weigh_job job = {.kv = kv, .l = l, .layer = layer, .q = q, .q_first = first, .seen = seen, .batches = batches};
    uint32_t most = 0;
    for (uint32_t h = 0; h < kv->n_kv_heads; h++)
        most = e->n_live[h] > most ? e->n_live[h] : most;
    job.n_parts = (most + PART_ROWS - 1) / PART_ROWS;
    /* The last queries are looked at again after their rows have settled: all of them see the codes that are there. */
    for (uint32_t row = first; row < first + n;) {
        for (job.n_batches = 0; job.n_batches < e->n_batches && row < first + n; job.n_batches++) {
            batch *b = &batches[job.n_batches];
            *b = (batch){.first = row, .coded_end = q ? vq_kv_coded_end(l, row + 1) : l->coded_end};
            while (b->n < e->batch_tokens && row < first + n && (!q || vq_kv_coded_end(l, row + 1) == b->coded_end)) {
                b->n++;
                row++;
            }
        }
        vq_pool_run(kv->pool, job.n_batches * kv->n_kv_heads, weigh_batch, &job);
        vq_pool_run(kv->pool, kv->n_kv_heads * job.n_parts, add_part, &job);
    }
}
