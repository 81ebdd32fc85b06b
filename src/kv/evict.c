/* Eviction: opening what a policy needs, looking at queries as they come, compacting. */
#include "kv/evict.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/pool.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- open and close ---- */

/* Queries of a head that are weighed together: enough for a tile of the kernels. */
enum { BATCH_QUERIES = 16 };

static bool sees(const vq_evictor *e) { return e->choice.policy->sees != VQ_SEES_NOTHING; }

static void *take(vq_arena *arena, size_t a, size_t b, size_t each)
{
    size_t n = 0;
    if (!vq_mul_size(a, b, &n))
        arena->overflow = true;
    return vq_arena_take(arena, n, each);
}

static void lay_out(vq_arena *arena, const vq_kv *kv, vq_evictor *e)
{
    const vq_policy *policy = e->choice.policy;
    const size_t heads = kv->n_kv_heads, all = (size_t)kv->n_layers * heads;
    e->seen_end = vq_arena_take(arena, kv->n_layers, sizeof *e->seen_end);
    e->n_seen = vq_arena_take(arena, all, sizeof *e->n_seen);
    e->n_live = vq_arena_take(arena, heads, sizeof *e->n_live);
    e->n_scored = vq_arena_take(arena, heads, sizeof *e->n_scored);
    e->pos = take(arena, heads, e->stride, sizeof *e->pos);
    e->score = take(arena, heads, e->stride, sizeof *e->score);
    e->order = take(arena, heads, e->stride, sizeof *e->order);
    e->keep = take(arena, heads, e->stride / 64 + 1, sizeof *e->keep);
    e->rates = take(arena, heads * e->n_rates, e->stride, sizeof *e->rates);
    uint32_t most_pages = 0;
    for (uint32_t i = 0; i < kv->n_layers; i++)
        most_pages = kv->layers[i].page_room > most_pages ? kv->layers[i].page_room : most_pages;
    e->fresh = vq_arena_take(arena, most_pages, sizeof *e->fresh);
    if (!sees(e))
        return;
    e->seen = take(arena, policy->sees == VQ_SEES_LAST ? heads : all, e->stride, sizeof *e->seen);
    e->weights = take(arena, (size_t)e->n_batches * heads * e->batch_tokens * kv->group, e->stride, sizeof *e->weights);
    if (policy->sees == VQ_SEES_LAST) {
        e->ring_first = vq_arena_take(arena, kv->n_layers, sizeof *e->ring_first);
        e->ring = take(arena, (size_t)kv->n_layers * policy->n_queries, (size_t)kv->n_heads * kv->d_k, sizeof *e->ring);
    }
}

static vq_status open_policy(vq_kv *kv, vq_evictor *e, vq_error *err)
{
    const vq_policy *policy = e->choice.policy;
    if (vq_policy_renumbers(&e->choice) && !e->ropes)
        return vq_fail(err, VQ_ERR_ARG, "%s: renumber=1 needs to know how positions turn queries: ropes is NULL",
                       policy->name);
    const vq_calibration *calibration;
    VQ_TRY(
        vq_kv_calibration_of(kv, policy->name, policy->needs_calibration, 0, e->choice.calibration, &calibration, err));
    const vq_policy_env env = {.n_layers = kv->n_layers,
                               .n_heads = kv->n_heads,
                               .n_kv_heads = kv->n_kv_heads,
                               .group = kv->group,
                               .d_k = kv->d_k,
                               .d_v = kv->d_v,
                               .scale = kv->scale,
                               .seed = kv->seed,
                               .model_hash = kv->model_hash,
                               .options = e->choice.values,
                               .calibration = calibration,
                               .ropes = e->ropes,
                               .kernels = &kv->kernels};
    return policy->create ? policy->create(&e->state, &env, err) : VQ_OK;
}

vq_status vq_evictor_open(vq_kv *kv, const vq_kv_rope *ropes, const vq_policy_choice *choice, vq_error *err)
{
    if ((uint64_t)kv->n_ctx * kv->n_kv_heads > UINT32_MAX)
        return vq_fail(err, VQ_ERR_ARG, "evict: n_ctx %u times n_kv_heads %u is above %u", kv->n_ctx, kv->n_kv_heads,
                       UINT32_MAX);
    /* The struct lies in the mapping that it describes: measure with one on the stack. */
    vq_evictor draft = {.choice = *choice, .ropes = ropes, .stride = (size_t)kv->n_ctx + 1};
    draft.n_rates = choice->policy->n_rates == VQ_RATES_GROUP_AND_ONE ? kv->group + 1 : choice->policy->n_rates;
    const uint32_t tokens = BATCH_QUERIES / kv->group;
    draft.batch_tokens = tokens < 1 ? 1 : tokens < kv->tile_tokens ? tokens : kv->tile_tokens;
    const uint32_t n_batches = (kv->n_threads + kv->n_kv_heads - 1) / kv->n_kv_heads;
    draft.n_batches = n_batches < VQ_EVICT_BATCHES ? n_batches : VQ_EVICT_BATCHES;
    vq_arena arena = {0};
    vq_arena_take(&arena, 1, sizeof draft);
    lay_out(&arena, kv, &draft);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t n_bytes;
    if (arena.overflow || !vq_add_size(arena.at, page - 1, &n_bytes))
        return vq_fail(err, VQ_ERR_NOMEM, "evict: the sizes do not fit into an address space");
    n_bytes = n_bytes / page * page;
    arena = (vq_arena){.base = vq_store_map(n_bytes), .n_bytes = n_bytes};
    if (!arena.base)
        return vq_fail(err, VQ_ERR_NOMEM, "evict: no memory for %zu bytes", n_bytes);
    vq_evictor *e = vq_arena_take(&arena, 1, sizeof *e);
    *e = draft;
    e->n_bytes = n_bytes;
    lay_out(&arena, kv, e);
    kv->evict = e;
    const vq_status status = open_policy(kv, e, err);
    return status == VQ_OK ? VQ_OK : vq_fail_prefix(err, status, "evict");
}

void vq_evictor_close(vq_evictor *e)
{
    if (!e)
        return;
    if (e->state)
        e->choice.policy->destroy(e->state);
    vq_store_unmap(e, e->n_bytes);
}

void vq_evictor_copy(const vq_kv *from, vq_kv *to)
{
    const vq_evictor *e = from->evict;
    vq_evictor *f = to->evict;
    const size_t n = (size_t)from->n_layers * from->n_kv_heads;
    f->phase = e->phase;
    f->is_probing = e->is_probing;
    f->n_generated = e->n_generated;
    memcpy(f->n_seen, e->n_seen, n * sizeof *e->n_seen);
    memcpy(f->seen_end, e->seen_end, from->n_layers * sizeof *e->seen_end);
    if (e->ring) {
        const size_t all = (size_t)from->n_layers * e->choice.policy->n_queries * from->n_heads * from->d_k;
        memcpy(f->ring_first, e->ring_first, from->n_layers * sizeof *e->ring_first);
        memcpy(f->ring, e->ring, all * sizeof *e->ring);
    } else if (sees(e)) {
        for (size_t i = 0; i < n; i++)
            memcpy(f->seen + i * f->stride, e->seen + i * e->stride, e->n_seen[i] * sizeof *e->seen);
    }
}

/* ---- rows that count ---- */

static uint32_t collect_mask(uint32_t *pos, uint32_t n, uint32_t first, uint64_t live)
{
    for (; live; live &= live - 1)
        pos[n++] = first + (uint32_t)__builtin_ctzll(live);
    return n;
}

static void collect_head(const vq_kv *kv, const vq_kv_layer *l, uint32_t head)
{
    const vq_kv_head *h = &l->heads[head];
    uint32_t *pos = kv->evict->pos + head * kv->evict->stride, n = 0;
    const uint32_t n_sinks = l->sinks < l->n_rows ? l->sinks : l->n_rows;
    for (uint32_t row = 0; row < n_sinks; row += 64)
        n = collect_mask(pos, n, l->first_pos + row,
                         vq_mask_bits(h->sink_live, row, n_sinks - row < 64 ? n_sinks - row : 64));
    for (uint32_t p = 0; p < h->n_pages; p++) {
        const vq_kv_page *page = &h->pages[p];
        if (!page->offsets)
            n = collect_mask(pos, n, l->first_pos + page->first, page->live);
        else
            for (uint64_t live = page->live; live; live &= live - 1)
                pos[n++] = l->first_pos + vq_kv_page_row(page, (uint32_t)__builtin_ctzll(live));
    }
    for (uint32_t row = l->coded_end; row < l->n_rows; row += 64)
        n = collect_mask(pos, n, l->first_pos + row,
                         vq_kv_exact_live(l, head, row, l->n_rows - row < 64 ? l->n_rows - row : 64));
    kv->evict->n_live[head] = n;
}

void vq_evict_collect(const vq_kv *kv, uint32_t layer)
{
    for (uint32_t h = 0; h < kv->n_kv_heads; h++)
        collect_head(kv, &kv->layers[layer], h);
}

const vq_kv_rope *vq_evictor_renumbers(const vq_kv *kv, uint32_t layer, uint32_t *n_missing)
{
    const vq_evictor *e = kv->evict;
    const vq_kv_layer *l = &kv->layers[layer];
    if (!vq_policy_renumbers(&e->choice) || l->window || !e->ropes[layer].freq)
        return NULL;
    *n_missing = l->n_rows - vq_kv_count_live(l, 0); /* all heads keep the same rows */
    return *n_missing > 0 ? &e->ropes[layer] : NULL;
}

/* ---- queries as they come ---- */

uint32_t vq_evict_step(const vq_evictor *e, uint32_t rows_after)
{
    return e->phase != VQ_KV_DECODE ? e->n_generated : e->n_generated > rows_after ? e->n_generated - rows_after : 0;
}

float *vq_evict_seen(const vq_kv *kv, uint32_t layer, uint32_t head)
{
    vq_evictor *e = kv->evict;
    float *seen = e->seen + ((size_t)layer * kv->n_kv_heads + head) * e->stride;
    uint32_t *n = &e->n_seen[layer * kv->n_kv_heads + head];
    if (*n < e->n_live[head])
        memset(seen + *n, 0, (e->n_live[head] - *n) * sizeof *seen);
    *n = e->n_live[head];
    return seen;
}

static void keep_queries(vq_kv *kv, uint32_t layer, const float *q, uint32_t first, uint32_t n)
{
    vq_evictor *e = kv->evict;
    const uint32_t room = e->choice.policy->n_queries;
    const size_t width = (size_t)kv->n_heads * kv->d_k;
    if (e->seen_end[layer] != first)
        e->ring_first[layer] = first;
    for (uint32_t i = n > room ? n - room : 0; i < n; i++)
        memcpy(e->ring + ((size_t)layer * room + (first + i) % room) * width, q + i * width, width * sizeof *q);
    e->seen_end[layer] = first + n;
    if (first + n - e->ring_first[layer] > room)
        e->ring_first[layer] = first + n - room;
}

void vq_evictor_attended(vq_kv *kv, uint32_t layer, const float *q, uint32_t n)
{
    vq_evictor *e = kv->evict;
    const vq_kv_layer *l = &kv->layers[layer];
    const vq_policy_sees what = e->choice.policy->sees;
    uint32_t first = l->n_rows - n;
    if (what == VQ_SEES_NOTHING || (what == VQ_SEES_LATER && e->phase != VQ_KV_DECODE && !e->is_probing))
        return;
    /* A query counts once, however often it is asked. */
    if (first < e->seen_end[layer]) {
        const uint32_t skip = e->seen_end[layer] - first < n ? e->seen_end[layer] - first : n;
        first += skip;
        n -= skip;
        q += (size_t)skip * kv->n_heads * kv->d_k;
    }
    if (n == 0)
        return;
    const double start = now();
    if (what == VQ_SEES_LAST) {
        keep_queries(kv, layer, q, first, n);
    } else {
        vq_evict_collect(kv, layer);
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            vq_evict_seen(kv, layer, h);
        vq_evict_weigh(kv, layer, q, first, n, e->seen + (size_t)layer * kv->n_kv_heads * e->stride);
        e->seen_end[layer] = first + n;
    }
    e->stats.observe_seconds += now() - start;
}

void vq_kv_observe(vq_kv *kv, uint32_t layer, const float *q, uint32_t n)
{
    if (kv->evict && layer == kv->pending && n <= kv->layers[layer].n_rows - kv->layers[layer].n_settled)
        vq_evictor_attended(kv, layer, q, n);
}

/* Of the rows from n on nothing is known any more. */
void vq_evictor_cut(vq_kv *kv, uint32_t n)
{
    vq_evictor *e = kv->evict;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        if (sees(e) && e->choice.policy->sees != VQ_SEES_LAST) {
            vq_evict_collect(kv, i);
            for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
                uint32_t *n_seen = &e->n_seen[i * kv->n_kv_heads + h];
                *n_seen = *n_seen < e->n_live[h] ? *n_seen : e->n_live[h];
            }
        }
        e->seen_end[i] = e->seen_end[i] < n ? e->seen_end[i] : n;
        if (e->ring_first && e->ring_first[i] > n)
            e->ring_first[i] = n;
    }
    if (n == 0)
        e->n_generated = 0;
}

void vq_evictor_dropped(vq_kv *kv, uint32_t layer, uint32_t head, uint32_t n)
{
    vq_evictor *e = kv->evict;
    if (!sees(e) || e->choice.policy->sees == VQ_SEES_LAST)
        return;
    uint32_t *n_seen = &e->n_seen[layer * kv->n_kv_heads + head];
    const uint32_t gone = n < *n_seen ? n : *n_seen;
    float *seen = e->seen + ((size_t)layer * kv->n_kv_heads + head) * e->stride;
    *n_seen -= gone;
    memmove(seen, seen + gone, *n_seen * sizeof *seen);
}

void vq_evictor_appended(vq_kv *kv, uint32_t layer, uint32_t n)
{
    if (layer == 0 && kv->evict->phase == VQ_KV_DECODE && !kv->evict->is_probing)
        kv->evict->n_generated += n;
}

/* ---- compacting ---- */

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Rows that a head of this layer may hold. */
static uint32_t budget_of(const vq_evictor *e, const vq_kv_layer *l)
{
    const vq_policy_choice *c = &e->choice;
    if (!c->is_percent)
        return (uint32_t)c->budget;
    const uint32_t n = l->window && l->window < l->n_rows ? l->window : l->n_rows;
    const uint32_t share = (uint32_t)(c->budget / 100 * n);
    return share > 1 ? share : 1;
}

static vq_evict_bounds bounds_of(const vq_evictor *e, const vq_kv_layer *l, uint32_t budget)
{
    const vq_policy_choice *c = &e->choice;
    const uint32_t sinks = least(c->sinks != VQ_KV_DEFAULT ? c->sinks : least(VQ_EVICT_SINKS, budget / 8), budget);
    uint32_t recent = c->recent;
    if (recent == VQ_KV_DEFAULT)
        recent = c->policy->recent ? least(c->policy->recent, budget / 2)
                                   : (uint32_t)(c->policy->recent_share * (float)budget);
    recent = least(least(recent, budget - sinks), l->n_rows);
    vq_evict_bounds b = {.sinks_end = l->first_pos + sinks, .recent_from = l->first_pos + l->n_rows - recent};
    b.seen_from = l->first_pos + (l->window && l->n_rows + 1 > l->window ? l->n_rows + 1 - l->window : 0);
    return b;
}

typedef struct compact_job {
    vq_kv *kv;
    vq_kv_layer *l;
    uint32_t layer, budget;
    vq_evict_bounds bounds;
} compact_job;

static vq_policy_head head_of(const compact_job *job, uint32_t head)
{
    const vq_kv *kv = job->kv;
    const vq_evictor *e = kv->evict;
    const vq_policy *policy = e->choice.policy;
    const size_t slot = policy->sees == VQ_SEES_LAST ? head : (size_t)job->layer * kv->n_kv_heads + head;
    return (vq_policy_head){.layer = job->layer,
                            .head = head,
                            .n = e->n_live[head],
                            .d_k = kv->d_k,
                            .d_v = kv->d_v,
                            .next_pos = job->l->first_pos + job->l->n_rows,
                            .pos = e->pos + head * e->stride,
                            .seen = sees(e) ? e->seen + slot * e->stride : NULL,
                            .rates = e->n_rates ? e->rates + (size_t)head * e->n_rates * e->stride : NULL,
                            .stride = e->stride};
}

/* Rates rows that lie decoded in x and y. */
static void rate_rows(const compact_job *job, const vq_policy_head *h, const float *k, const float *v, uint32_t at,
                      uint32_t n)
{
    const vq_evictor *e = job->kv->evict;
    const vq_policy *policy = e->choice.policy;
    policy->rate(e->state, h, k, v, h->pos + at, n, e->rates + (size_t)h->head * e->n_rates * e->stride + at,
                 e->stride);
}

/* Rows of x [n][d] whose bit is set, together. */
static void gather(float *x, uint32_t d, uint64_t live)
{
    for (uint32_t to = 0; live; live &= live - 1, to++) {
        const uint32_t from = (uint32_t)__builtin_ctzll(live);
        if (from != to)
            memcpy(x + (size_t)to * d, x + (size_t)from * d, d * sizeof *x);
    }
}

static uint32_t rate_exact(const compact_job *job, const vq_policy_head *h, const unsigned char *k,
                           const unsigned char *v, uint32_t n, uint64_t live, uint32_t at, vq_kv_scratch *s)
{
    const vq_kv *kv = job->kv;
    vq_kv_exact_to_f32(kv, s->rows, k, (size_t)n * kv->d_k);
    vq_kv_exact_to_f32(kv, s->rows_v, v, (size_t)n * kv->d_v);
    gather(s->rows, kv->d_k, live);
    gather(s->rows_v, kv->d_v, live);
    const uint32_t n_live = (uint32_t)__builtin_popcountll(live);
    rate_rows(job, h, s->rows, s->rows_v, at, n_live);
    return at + n_live;
}

/* Shows the policy all rows of a head, keys and values as attention sees them. */
static void rate_head(const compact_job *job, uint32_t head, vq_kv_scratch *s)
{
    const vq_kv *kv = job->kv;
    const vq_kv_layer *l = job->l;
    const vq_kv_head *h = &l->heads[head];
    const vq_policy_head view = head_of(job, head);
    const size_t row_k = kv->d_k * kv->exact_bytes, row_v = kv->d_v * kv->exact_bytes;
    const uint32_t n_sinks = least(l->sinks, l->n_rows);
    uint32_t at = 0;
    for (uint32_t row = 0; row < n_sinks; row += 64) {
        const uint32_t n = least(n_sinks - row, 64);
        at = rate_exact(job, &view, h->sink_k + row * row_k, h->sink_v + row * row_v, n,
                        vq_mask_bits(h->sink_live, row, n), at, s);
    }
    for (uint32_t p = 0; p < h->n_pages; p++) {
        const vq_kv_page *page = &h->pages[p];
        const uint32_t n = (uint32_t)__builtin_popcountll(page->live);
        uint32_t pos[VQ_PAGE_ROWS];
        for (uint32_t i = 0; i < page->n; i++)
            pos[i] = l->first_pos + vq_kv_page_row(page, i);
        vq_side_decode(&h->k, page->bytes, 0, page->n, s->rows, pos);
        vq_side_decode(&h->v, page->bytes + h->value_at, 0, page->n, s->rows_v, pos);
        gather(s->rows, kv->d_k, page->live);
        gather(s->rows_v, kv->d_v, page->live);
        rate_rows(job, &view, s->rows, s->rows_v, at, n);
        at += n;
    }
    for (uint32_t row = l->coded_end, n; row < l->n_rows; row += n) {
        const unsigned char *k = vq_kv_exact_rows(kv, l, head, true, row, &n);
        const unsigned char *v = vq_kv_exact_rows(kv, l, head, false, row, &n);
        n = least(n, 64);
        at = rate_exact(job, &view, k, v, n, vq_kv_exact_live(l, head, row, n), at, s);
    }
}

/* Task: rates and scores one head. */
static void score_head(void *arg, uint32_t head, uint32_t thread)
{
    const compact_job *job = arg;
    const vq_evictor *e = job->kv->evict;
    const vq_policy *policy = e->choice.policy;
    if (policy->rate)
        rate_head(job, head, &job->kv->scratch[thread]);
    const vq_policy_head h = head_of(job, head);
    float *score = e->score + head * e->stride;
    if (policy->score)
        policy->score(e->state, &h, score);
    else
        memcpy(score, h.seen ? h.seen : h.rates, h.n * sizeof *score);
}

/* One mask for all heads: each gets the sum of their scores. */
static void share_scores(const vq_kv *kv)
{
    const vq_evictor *e = kv->evict;
    for (uint32_t h = 1; h < kv->n_kv_heads; h++)
        kv->kernels.vec.add(e->score, e->score + h * e->stride, e->n_live[0]);
    for (uint32_t h = 1; h < kv->n_kv_heads; h++)
        memcpy(e->score + h * e->stride, e->score, e->n_live[0] * sizeof *e->score);
}

static void weigh_last(const compact_job *job)
{
    vq_kv *kv = job->kv;
    vq_evictor *e = kv->evict;
    const double start = now();
    for (uint32_t h = 0; h < kv->n_kv_heads; h++)
        memset(e->seen + h * e->stride, 0, e->n_live[h] * sizeof *e->seen);
    const uint32_t first = e->ring_first[job->layer], end = e->seen_end[job->layer];
    if (first < end)
        vq_evict_weigh(kv, job->layer, NULL, first, end - first, e->seen);
    e->stats.observe_seconds += now() - start;
}

static bool scores_are_there(const compact_job *job)
{
    const vq_kv *kv = job->kv;
    const vq_evictor *e = kv->evict;
    const vq_policy *policy = e->choice.policy;
    return policy->leader && policy->leader(e->state, job->layer) != job->layer &&
           memcmp(e->n_live, e->n_scored, kv->n_kv_heads * sizeof *e->n_live) == 0;
}

static void score_layer(compact_job *job)
{
    vq_kv *kv = job->kv;
    vq_evictor *e = kv->evict;
    const vq_policy *policy = e->choice.policy;
    if (scores_are_there(job))
        return;
    if (policy->sees == VQ_SEES_LAST)
        weigh_last(job);
    else if (sees(e))
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            vq_evict_seen(kv, job->layer, h);
    vq_pool_run(kv->pool, kv->n_kv_heads, score_head, job);
    if (policy->one_mask)
        share_scores(kv);
    memcpy(e->n_scored, e->n_live, kv->n_kv_heads * sizeof *e->n_live);
}

/* Rows that one head of the layer keeps. */
static uint32_t quota_of(const compact_job *job)
{
    const vq_evictor *e = job->kv->evict;
    const vq_policy *policy = e->choice.policy;
    if (!policy->layer_budget)
        return job->budget;
    /* Rows that there were, not those that are left: so that the layers' budgets fit together. */
    const vq_kv_layer *l = job->l;
    const uint32_t n_protected = job->bounds.sinks_end + l->n_rows - job->bounds.recent_from;
    const uint32_t n = l->window && l->window < l->n_rows ? l->window : l->n_rows;
    if (n_protected >= job->budget || n_protected >= n)
        return job->budget;
    return n_protected +
           policy->layer_budget(e->state, job->layer, job->kv->n_layers, job->budget - n_protected, n - n_protected);
}

/* Whether the layer holds more than it may. */
static bool is_over(const compact_job *job)
{
    const vq_kv *kv = job->kv;
    const vq_evictor *e = kv->evict;
    uint64_t all = 0;
    bool over = false;
    for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
        /* Rows that have left the window do not count: for them alone nothing is moved. */
        const uint32_t *pos = e->pos + h * e->stride;
        uint32_t n = e->n_live[h];
        for (uint32_t i = 0; i < e->n_live[h] && pos[i] < job->bounds.seen_from; i++)
            n--;
        all += n;
        over |= !e->choice.policy->is_flat && n > quota_of(job);
    }
    return e->choice.policy->is_flat ? all > (uint64_t)job->budget * kv->n_kv_heads : over;
}

/* The weights of rows that stay move up. */
static void close_ranks(const vq_kv *kv, uint32_t layer, uint32_t head, const uint64_t *keep)
{
    vq_evictor *e = kv->evict;
    if (!sees(e) || e->choice.policy->sees == VQ_SEES_LAST)
        return;
    float *seen = e->seen + ((size_t)layer * kv->n_kv_heads + head) * e->stride;
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->n_live[head]; i++)
        if (vq_mask_bit(keep, i))
            seen[n++] = seen[i];
    e->n_seen[layer * kv->n_kv_heads + head] = n;
}

static uint64_t n_kept(const uint64_t *keep, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += vq_mask_bit(keep, i);
    return sum;
}

/* Brings one layer down to its budget; *n_evicted counts. */
static vq_status compact_layer(compact_job *job, uint64_t *n_evicted, vq_error *err)
{
    vq_kv *kv = job->kv;
    vq_evictor *e = kv->evict;
    vq_evict_collect(kv, job->layer);
    job->budget = budget_of(e, job->l);
    job->bounds = bounds_of(e, job->l, job->budget);
    if (!is_over(job))
        return VQ_OK;
    score_layer(job);
    if (e->choice.policy->is_flat)
        vq_evict_choose_flat(e, kv->n_kv_heads, &job->bounds, job->budget, e->choice.policy->floor);
    for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
        if (!e->choice.policy->is_flat)
            vq_evict_choose(e, h, &job->bounds, quota_of(job));
        const uint64_t *keep = e->keep + h * (e->stride / 64 + 1);
        *n_evicted += e->n_live[h] - n_kept(keep, e->n_live[h]);
        close_ranks(kv, job->layer, h, keep);
        vq_evict_apply(job->l, h, keep);
    }
    for (uint32_t h = 0; h < kv->n_kv_heads; h++)
        VQ_TRY(vq_evict_repack(kv, job->l, h, err));
    return VQ_OK;
}

void vq_kv_begin(vq_kv *kv, vq_kv_phase phase)
{
    if (kv->evict)
        kv->evict->phase = phase;
}

vq_status vq_kv_compact(vq_kv *kv, vq_kv_phase phase, vq_error *err)
{
    vq_evictor *e = kv->evict;
    if (!e)
        return VQ_OK;
    for (uint32_t i = 1; i < kv->n_layers; i++)
        if (kv->layers[i].n_rows != kv->layers[0].n_rows)
            return vq_fail(err, VQ_ERR_ARG, "layer %u has %u rows and layer 0 has %u: nothing can be evicted", i,
                           kv->layers[i].n_rows, kv->layers[0].n_rows);
    if (phase == VQ_KV_PROMPT_END)
        e->phase = VQ_KV_DECODE;
    if (e->choice.policy->keeps_all)
        return VQ_OK;
    const double start = now(), observed = e->stats.observe_seconds;
    vq_kv_settle(kv);
    memset(e->n_scored, 0, kv->n_kv_heads * sizeof *e->n_scored);
    uint64_t n_evicted = 0;
    vq_status status = VQ_OK;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        vq_error ignored;
        compact_job job = {.kv = kv, .l = &kv->layers[i], .layer = i};
        /* Out of memory: the other layers are still evicted. */
        const vq_status got = compact_layer(&job, &n_evicted, status == VQ_OK ? err : &ignored);
        status = status == VQ_OK ? got : status;
    }
    e->stats.n_evicted += n_evicted;
    e->stats.n_compactions += n_evicted > 0;
    e->stats.compact_seconds += now() - start - (e->stats.observe_seconds - observed);
    return status;
}

uint32_t vq_kv_compact_step(const vq_kv *kv, vq_kv_phase phase)
{
    if (!kv->evict || kv->evict->choice.policy->keeps_all)
        return 0;
    return phase == VQ_KV_DECODE ? kv->evict->choice.every : phase == VQ_KV_PROMPT ? kv->evict->choice.prompt : 0;
}

void vq_kv_get_evict_stats(const vq_kv *kv, vq_kv_evict_stats *out)
{
    *out = kv->evict ? kv->evict->stats : (vq_kv_evict_stats){0};
}
