/* Attention over a cache.
 *
 * The queries of a call are cut into tiles of tokens that read the same rows as codes.  For one kv head a tile's
 * queries, all of the group, go together through the rows: the sinks, the pages in blocks of 16 by page index, the
 * exact rows.  Each of these segments has a softmax of its own; segments are merged from left to right.  A query's
 * arithmetic follows from its own row alone, so neither tiles nor threads change a bit:
 *   - within a segment, blocks of up to 64 rows (four pages by page index) at fixed places, with a running maximum; one
 *     that shows a query nothing is the identity, as is a sum scaled by exactly 1;
 *   - an empty segment is skipped;
 *   - segments are merged in one order, whether one thread runs them one after the other or many threads side by side.
 */
#include <math.h>
#include <string.h>

#include "base/pool.h"
#include "kv/evict.h"
#include "kv/kv_inner.h"

/* Multiply-adds below which waking the threads costs more than it saves. */
enum { SERIAL_MACS = 1 << 17 };

typedef enum segment_kind { SINKS, PAGES, EXACT } segment_kind;

typedef struct segment {
    segment_kind kind;
    uint32_t first, end; /* rows; of PAGES: pages, counted with those that left the window */
} segment;

typedef struct attend_job {
    vq_kv *kv;
    const vq_kv_layer *l;
    const float *q;
    float *out;
    uint32_t n;                      /* queries (tokens) */
    uint32_t first_row;              /* of query 0 */
    uint32_t first_block, end_block; /* of pages */
    uint32_t n_tiles, n_segments;    /* n_segments: of the only tile, when threads share it */
    const vq_kv_rope *rope;          /* NULL, or sinks are seen from `n_missing` positions nearer */
    uint32_t n_missing;              /* rows that were evicted */
} attend_job;

typedef struct tile {
    uint32_t first, n; /* tokens, counted from the call's first */
    uint32_t coded_end;
    uint32_t first_row; /* that the oldest query sees */
    uint32_t end_row;   /* of the newest query, plus 1 */
    uint32_t n_queries; /* n x group */
} tile;

static tile make_tile(const attend_job *job, uint32_t index)
{
    const vq_kv_layer *l = job->l;
    tile t = {.first = job->kv->tiles[index]};
    t.n = job->kv->tiles[index + 1] - t.first;
    t.n_queries = t.n * job->kv->group;
    const uint32_t row = job->first_row + t.first;
    t.coded_end = vq_kv_coded_end(l, row + 1);
    t.end_row = row + t.n;
    t.first_row = l->window && row + 1 > l->window ? row + 1 - l->window : 0;
    return t;
}

/* The pages that any head has, in blocks. */
static void page_blocks(const vq_kv *kv, const vq_kv_layer *l, uint32_t *first, uint32_t *end)
{
    *first = UINT32_MAX, *end = 0;
    for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
        const vq_kv_head *h = &l->heads[i];
        const uint32_t low = h->first_index / VQ_SEGMENT_PAGES;
        const uint32_t high = (h->first_index + h->n_pages + VQ_SEGMENT_PAGES - 1) / VQ_SEGMENT_PAGES;
        *first = low < *first ? low : *first;
        *end = high > *end ? high : *end;
    }
}

/* The index-th segment of a tile; false when there are no more.  Places depend on page and row numbers alone. */
static bool get_segment(const attend_job *job, const tile *t, uint32_t index, segment *out)
{
    const vq_kv_layer *l = job->l;
    if (l->sinks > 0 && index-- == 0) {
        *out = (segment){SINKS, 0, l->sinks < t->end_row ? l->sinks : t->end_row};
        return true;
    }
    if (t->coded_end > l->sinks && t->coded_end > t->first_row) {
        if (index < job->end_block - job->first_block) {
            const uint32_t at = (job->first_block + index) * VQ_SEGMENT_PAGES;
            *out = (segment){PAGES, at, at + VQ_SEGMENT_PAGES};
            return true;
        }
        index -= job->end_block - job->first_block;
    }
    if (t->end_row > t->coded_end && index == 0) {
        *out = (segment){EXACT, t->coded_end, t->end_row};
        return true;
    }
    return false;
}

/* Which of the rows [first, first + n), n <= 64, each query of a tile sees. */
static void set_live(const attend_job *job, const tile *t, uint32_t first, uint32_t n, uint64_t mask, uint64_t *live)
{
    const uint32_t group = job->kv->group, window = job->l->window;
    for (uint32_t i = 0; i < t->n; i++) {
        const uint32_t row = job->first_row + t->first + i;
        const uint32_t low = window && row + 1 > window ? row + 1 - window : 0;
        uint64_t seen = mask;
        if (row + 1 < first + n)
            seen &= row < first ? 0 : ((uint64_t)2 << (row - first)) - 1;
        else if (n < 64)
            seen &= ((uint64_t)1 << n) - 1;
        if (low > first)
            seen &= low - first < 64 ? UINT64_MAX << (low - first) : 0;
        for (uint32_t g = 0; g < group; g++)
            live[i * group + g] = seen;
    }
}

/* The same for the first n rows of a page. */
static void set_page_live(const attend_job *job, const tile *t, const vq_kv_page *page, uint32_t n, uint64_t mask,
                          uint64_t *live)
{
    const uint32_t group = job->kv->group, window = job->l->window;
    if (!page->offsets) {
        set_live(job, t, page->first, n, mask, live);
        return;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        const uint32_t row = job->first_row + t->first + i; /* not below any row of codes that the tile reads */
        const uint32_t low = window && row + 1 > window ? row + 1 - window : 0;
        for (uint32_t g = 0; g < group; g++)
            live[i * group + g] = mask & ~vq_low_bits(vq_kv_page_below(page, low));
    }
}

/* Scores of some blocks become weights, and what was summed up before is brought to the new maximum. */
static void weigh(const vq_kv *kv, const tile *t, vq_kv_scratch *s, uint32_t n_blocks, size_t acc_len)
{
    kv->kernels.attention.softmax(s->scores, n_blocks, t->n_queries, s->live, s->part_max, s->part_sum, s->rescale);
    for (uint32_t i = 0; i < t->n_queries; i++)
        if (s->rescale[i] != 1)
            kv->kernels.vec.scale(s->part + i * acc_len, s->rescale[i], (uint32_t)acc_len);
}

void vq_kv_score_exact(const vq_kv *kv, const float *q, uint32_t n_queries, const void *k, uint32_t n, float *out)
{
    const vq_attention_kernels *a = &kv->kernels.attention;
    switch (kv->exact) {
    case VQ_KV_EXACT_F16: a->score_f16(q, kv->d_k, n_queries, k, n, kv->d_k, out, VQ_PAGE_ROWS); break;
    case VQ_KV_EXACT_BF16: a->score_bf16(q, kv->d_k, n_queries, k, n, kv->d_k, out, VQ_PAGE_ROWS); break;
    case VQ_KV_EXACT_F32: a->score_f32(q, kv->d_k, n_queries, k, n, kv->d_k, out, VQ_PAGE_ROWS); break;
    }
}

static void mix_exact(const vq_kv *kv, const float *w, uint32_t n_queries, const void *v, uint32_t n, float *acc)
{
    const vq_attention_kernels *a = &kv->kernels.attention;
    switch (kv->exact) {
    case VQ_KV_EXACT_F16: a->mix_f16(w, VQ_PAGE_ROWS, n_queries, v, n, kv->d_v, acc, NULL); break;
    case VQ_KV_EXACT_BF16: a->mix_bf16(w, VQ_PAGE_ROWS, n_queries, v, n, kv->d_v, acc, NULL); break;
    case VQ_KV_EXACT_F32: a->mix_f32(w, VQ_PAGE_ROWS, n_queries, v, n, kv->d_v, acc, NULL); break;
    }
}

/* Rows of a segment that lie together from `row` on, exactly held. */
static const unsigned char *held_rows(const attend_job *job, uint32_t head, bool keys, segment_kind kind, uint32_t row,
                                      uint32_t end, uint32_t *n)
{
    const vq_kv *kv = job->kv;
    const vq_kv_head *h = &job->l->heads[head];
    const unsigned char *rows;
    if (kind == SINKS) {
        rows = (keys ? h->sink_k : h->sink_v) + row * (keys ? kv->d_k : kv->d_v) * kv->exact_bytes;
        *n = end - row;
    } else {
        rows = vq_kv_exact_rows(kv, job->l, head, keys, row, n);
    }
    *n = *n < end - row ? *n : end - row;
    return rows;
}

static void run_exact(const attend_job *job, const tile *t, uint32_t head, const segment *seg, const float *q,
                      vq_kv_scratch *s)
{
    const vq_kv *kv = job->kv;
    for (uint32_t first = seg->first; first < seg->end; first += VQ_PAGE_ROWS) {
        const uint32_t end = seg->end - first < VQ_PAGE_ROWS ? seg->end : first + VQ_PAGE_ROWS;
        if (end <= t->first_row)
            continue;
        const uint64_t live = seg->kind == SINKS ? vq_mask_bits(job->l->heads[head].sink_live, first, end - first)
                                                 : vq_kv_exact_live(job->l, head, first, end - first);
        if (!live)
            continue;
        for (uint32_t row = first, n; row < end; row += n) {
            const unsigned char *k = held_rows(job, head, true, seg->kind, row, end, &n);
            vq_kv_score_exact(kv, q, t->n_queries, k, n, s->scores + (row - first));
        }
        set_live(job, t, first, end - first, live, s->live);
        weigh(kv, t, s, 1, kv->d_v);
        for (uint32_t row = first, n; row < end; row += n) {
            const unsigned char *v = held_rows(job, head, false, seg->kind, row, end, &n);
            mix_exact(kv, s->scores + (row - first), t->n_queries, v, n, s->part);
        }
    }
}

/* pos [n_whole]: positions of a page's rows; those past n, which a granule fills up with, repeat the last. */
static void set_positions(const vq_kv_layer *l, const vq_kv_page *page, uint32_t n, uint32_t n_whole, uint32_t *pos)
{
    const uint32_t first = l->first_pos + page->first;
    for (uint32_t i = 0; i < n_whole && !page->offsets; i++)
        pos[i] = first + (i < n ? i : n - 1);
    for (uint32_t i = 0; i < n_whole && page->offsets; i++)
        pos[i] = first + page->offsets[i < n ? i : n - 1];
}

/* How many pages further what is read next lies: far enough to come from memory in time, near enough to stay in L1. */
static uint32_t pages_ahead(const vq_kv_head *h)
{
    enum { BYTES_AHEAD = 8192 };
    const size_t n = BYTES_AHEAD / h->page_bytes;
    return n < 1 ? 1 : n > VQ_SOFTMAX_BLOCKS ? VQ_SOFTMAX_BLOCKS : (uint32_t)n;
}

/* The k largest scores so far, the least of them first (a heap); n are there. */
static void keep_best(float *heap, uint32_t *n, uint32_t k, float x)
{
    uint32_t at;
    if (*n < k) {
        for (at = (*n)++; at > 0 && x < heap[(at - 1) / 2]; at = (at - 1) / 2)
            heap[at] = heap[(at - 1) / 2];
        heap[at] = x;
        return;
    }
    if (!(x > heap[0]))
        return;
    at = 0;
    for (uint32_t child; (child = 2 * at + 1) < k; at = child) {
        child += child + 1 < k && heap[child + 1] < heap[child];
        if (heap[child] >= x)
            break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

/* Retrieval: which scores of coded rows are large enough for each query of a tile, least [n_queries].  All coded rows
 * that it sees are scored once for that, so that neither tiles nor threads change what is retrieved. */
static void find_least(const attend_job *job, const tile *t, uint32_t head, const void *prepared, vq_kv_scratch *s,
                       float *least)
{
    const vq_kv_layer *l = job->l;
    const vq_kv_head *h = &l->heads[head];
    const uint32_t k = vq_side_retrieves(&h->k);
    uint32_t pos[VQ_PAGE_ROWS];
    for (uint32_t i = 0; i < t->n_queries; i++) {
        least[i] = -INFINITY;
        s->n_best[i] = 0;
    }
    if (k == 0)
        return;
    for (uint32_t p = 0; p < h->n_pages; p++) {
        const vq_kv_page *page = &h->pages[p];
        const uint32_t n = vq_kv_page_below(page, t->coded_end);
        const uint64_t live = page->live & vq_low_bits(n);
        if (!live || vq_kv_page_end(page) <= t->first_row)
            continue;
        const uint32_t n_whole = vq_kv_whole_granules(n);
        set_positions(l, page, n, n_whole, pos);
        const vq_rows rows = {.pos = pos, .live = live, .n = n_whole};
        vq_side_score(&h->k, page->bytes, &rows, prepared, t->n_queries, s->scores);
        set_page_live(job, t, page, n, live, s->live);
        for (uint32_t i = 0; i < t->n_queries; i++)
            for (uint64_t seen = s->live[i]; seen; seen &= seen - 1)
                keep_best(s->best + (size_t)i * k, &s->n_best[i], k,
                          s->scores[(size_t)i * VQ_PAGE_ROWS + (uint32_t)__builtin_ctzll(seen)]);
    }
    for (uint32_t i = 0; i < t->n_queries; i++)
        if (s->n_best[i] == k)
            least[i] = s->best[(size_t)i * k];
}

/* Of the rows that each query sees, those whose score is large enough. */
static void drop_small(const tile *t, const float *scores, const float *least, uint64_t *live)
{
    for (uint32_t i = 0; i < t->n_queries; i++)
        for (uint64_t seen = live[i]; seen; seen &= seen - 1)
            if (scores[(size_t)i * VQ_PAGE_ROWS + (uint32_t)__builtin_ctzll(seen)] < least[i])
                live[i] &= ~(seen & -seen);
}

/* Pages go through the softmax in blocks of VQ_SOFTMAX_BLOCKS by page index: scores of all, then weights, then sums.
 * Keys and values stay near, and what one step waits for is hidden by the others. */
static void run_pages(const attend_job *job, const tile *t, uint32_t head, const segment *seg, const void *prepared,
                      const float *least, vq_kv_scratch *s)
{
    const vq_kv_layer *l = job->l;
    const vq_kv_head *h = &l->heads[head];
    const size_t acc_len = vq_side_acc_len(&h->v), n_scores = (size_t)t->n_queries * VQ_PAGE_ROWS;
    const uint32_t end_page = h->first_index + h->n_pages, end = seg->end < end_page ? seg->end : end_page;
    const uint32_t far = pages_ahead(h);
    uint32_t pos[VQ_SOFTMAX_BLOCKS][VQ_PAGE_ROWS];
    for (uint32_t p = seg->first > h->first_index ? seg->first : h->first_index; p < end;) {
        const vq_kv_page *pages[VQ_SOFTMAX_BLOCKS];
        vq_rows rows[VQ_SOFTMAX_BLOCKS];
        uint32_t n_blocks = 0;
        const uint32_t whole = (p / VQ_SOFTMAX_BLOCKS + 1) * VQ_SOFTMAX_BLOCKS, until = whole < end ? whole : end;
        for (; p < until; p++) {
            const vq_kv_page *page = &h->pages[p - h->first_index];
            const uint32_t n = vq_kv_page_below(page, t->coded_end);
            const uint64_t live = page->live & vq_low_bits(n);
            if (!live || vq_kv_page_end(page) <= t->first_row)
                continue;
            const uint32_t n_whole = vq_kv_whole_granules(n);
            set_positions(l, page, n, n_whole, pos[n_blocks]);
            const vq_kv_page *next = p + far < end_page ? page + far : NULL;
            rows[n_blocks] =
                (vq_rows){.pos = pos[n_blocks], .live = live, .n = n_whole, .next = next ? next->bytes : NULL};
            vq_side_score(&h->k, page->bytes, &rows[n_blocks], prepared, t->n_queries, s->scores + n_blocks * n_scores);
            set_page_live(job, t, page, n, live, s->live + (size_t)n_blocks * t->n_queries);
            if (job->kv->retrieve_most > 0)
                drop_small(t, s->scores + n_blocks * n_scores, least, s->live + (size_t)n_blocks * t->n_queries);
            pages[n_blocks++] = page;
        }
        if (n_blocks == 0)
            continue;
        weigh(job->kv, t, s, n_blocks, acc_len);
        for (uint32_t b = 0; b < n_blocks; b++) {
            if (rows[b].next)
                rows[b].next = (const unsigned char *)rows[b].next + h->value_at;
            vq_side_mix(&h->v, pages[b]->bytes + h->value_at, &rows[b], s->scores + b * n_scores, t->n_queries,
                        s->part);
        }
    }
}

/* A segment's own softmax, into the scratch's part. */
static void run_segment(const attend_job *job, const tile *t, uint32_t head, const segment *seg, const float *q,
                        const void *prepared, const float *least, vq_kv_scratch *s)
{
    const size_t acc_len = seg->kind == PAGES ? vq_side_acc_len(&job->l->heads[head].v) : job->kv->d_v;
    memset(s->part, 0, t->n_queries * acc_len * sizeof(float));
    for (uint32_t i = 0; i < t->n_queries; i++) {
        s->part_max[i] = -INFINITY;
        s->part_sum[i] = 0;
    }
    if (seg->kind == PAGES)
        run_pages(job, t, head, seg, prepared, least, s);
    else
        run_exact(job, t, head, seg, q, s);
}

/* A query's running result: what the pages gave is in the space of the value codec until the end. */
typedef struct running {
    float *max, *sum, *coded, *plain;
    size_t n_coded, n_plain;
} running;

static void merge(const running *r, segment_kind kind, float max, float sum, const float *acc)
{
    if (max == -INFINITY)
        return;
    float old = 1, new = 1;
    if (max > *r->max)
        old = *r->max == -INFINITY ? 0 : expf(*r->max - max);
    else
        new = expf(max - *r->max);
    if (max > *r->max)
        *r->max = max;
    if (old != 1) {
        for (size_t i = 0; i < r->n_coded; i++)
            r->coded[i] *= old;
        for (size_t i = 0; i < r->n_plain; i++)
            r->plain[i] *= old;
    }
    *r->sum = *r->sum * old + sum * new;
    float *to = kind == PAGES ? r->coded : r->plain;
    const size_t n = kind == PAGES ? r->n_coded : r->n_plain;
    for (size_t i = 0; i < n; i++)
        to[i] += acc[i] * new;
}

/* out [d_v]. Adding 0 makes -0 to 0: rows of weight 0 may have added either. */
static void finish(const vq_kv *kv, const vq_side *side, const running *r, bool any_coded, float *out)
{
    const float inv = *r->sum > 0 ? 1 / *r->sum : 0;
    if (!any_coded) {
        for (uint32_t i = 0; i < kv->d_v; i++)
            out[i] = r->plain[i] * inv + 0.0f;
        return;
    }
    vq_side_finish(side, r->coded, out);
    for (uint32_t i = 0; i < kv->d_v; i++)
        out[i] = (r->plain[i] + out[i]) * inv + 0.0f;
}

/* Queries turned back by as many positions as rows are missing before them: as the sinks see them. */
static void turn_back(const attend_job *job, const tile *t, const float *q, float *out)
{
    const vq_kv *kv = job->kv;
    const uint32_t n_pairs = job->rope->n_rot / 2;
    float cosine[VQ_MAX_HEAD_DIM / 2], sine[VQ_MAX_HEAD_DIM / 2];
    memcpy(out, q, (size_t)t->n_queries * kv->d_k * sizeof *q);
    for (uint32_t i = 0; i < n_pairs; i++) {
        double c, s;
        sincos(-(double)job->n_missing * job->rope->freq[i], &s, &c);
        cosine[i] = (float)c;
        sine[i] = (float)s;
    }
    kv->kernels.vec.rope(out, cosine, sine, t->n_queries, kv->d_k, job->rope->n_rot, job->rope->halves);
}

/* Queries of a tile and a head: q [n_queries][d_k] scaled, the same for the sinks, and prepared for the codec of the
 * keys. */
static void gather(const attend_job *job, const tile *t, uint32_t head, float *q, float *q_sinks,
                   unsigned char *prepared)
{
    const vq_kv *kv = job->kv;
    const vq_side *side = &job->l->heads[head].k;
    const size_t n = (size_t)kv->group * kv->d_k, query_bytes = vq_side_query_bytes(side);
    for (uint32_t i = 0; i < t->n; i++) {
        const float *from = job->q + ((size_t)(t->first + i) * kv->n_heads + head * kv->group) * kv->d_k;
        for (size_t j = 0; j < n; j++)
            q[i * n + j] = from[j] * kv->scale;
    }
    if (job->rope)
        turn_back(job, t, q, q_sinks);
    if (t->coded_end > job->l->sinks)
        for (uint32_t i = 0; i < t->n_queries; i++)
            vq_side_prepare_at(side, prepared + i * query_bytes, q + (size_t)i * kv->d_k,
                               job->l->first_pos + job->first_row + t->first + i / kv->group);
}

static float *out_of(const attend_job *job, const tile *t, uint32_t head, uint32_t query)
{
    const vq_kv *kv = job->kv;
    const uint32_t token = t->first + query / kv->group;
    return job->out + ((size_t)token * kv->n_heads + head * kv->group + query % kv->group) * kv->d_v;
}

/* Task: a tile and a head, all segments. */
static void attend_tile(void *arg, uint32_t index, uint32_t thread)
{
    const attend_job *job = arg;
    const vq_kv *kv = job->kv;
    const uint32_t head = index % kv->n_kv_heads;
    const tile t = make_tile(job, index / kv->n_kv_heads);
    const vq_side *values = &job->l->heads[head].v;
    const size_t acc_len = vq_side_acc_len(values);
    vq_kv_scratch *s = &kv->scratch[thread];
    gather(job, &t, head, s->q, s->q_sinks, s->prepared);
    memset(s->coded, 0, t.n_queries * acc_len * sizeof(float));
    memset(s->plain, 0, (size_t)t.n_queries * kv->d_v * sizeof(float));
    for (uint32_t i = 0; i < t.n_queries; i++) {
        s->max[i] = -INFINITY;
        s->sum[i] = 0;
    }
    if (kv->retrieve_most > 0)
        find_least(job, &t, head, s->prepared, s, s->least);
    segment seg;
    bool any_coded = false;
    for (uint32_t k = 0; get_segment(job, &t, k, &seg); k++) {
        run_segment(job, &t, head, &seg, seg.kind == SINKS && job->rope ? s->q_sinks : s->q, s->prepared, s->least, s);
        any_coded |= seg.kind == PAGES;
        const size_t n = seg.kind == PAGES ? acc_len : kv->d_v;
        for (uint32_t i = 0; i < t.n_queries; i++) {
            const running r = {s->max + i, s->sum + i, s->coded + i * acc_len, s->plain + (size_t)i * kv->d_v,
                               acc_len,    kv->d_v};
            merge(&r, seg.kind, s->part_max[i], s->part_sum[i], s->part + i * n);
        }
    }
    for (uint32_t i = 0; i < t.n_queries; i++) {
        const running r = {s->max + i, s->sum + i, s->coded + i * acc_len, s->plain + (size_t)i * kv->d_v,
                           acc_len,    kv->d_v};
        finish(kv, values, &r, any_coded, out_of(job, &t, head, i));
    }
}

/* ---- one tile shared by threads ---- */

static size_t part_at(const attend_job *job, const tile *t, uint32_t head, uint32_t seg)
{
    return ((size_t)head * job->n_segments + seg) * t->n_queries;
}

/* Task: a head and a segment. */
static void attend_segment(void *arg, uint32_t index, uint32_t thread)
{
    const attend_job *job = arg;
    vq_kv *kv = job->kv;
    const uint32_t head = index / job->n_segments, k = index % job->n_segments;
    const tile t = make_tile(job, 0);
    const vq_side *keys = &job->l->heads[head].k;
    vq_kv_scratch *s = &kv->scratch[thread];
    segment seg = {0};
    get_segment(job, &t, k, &seg);
    const float *q = seg.kind == SINKS && job->rope ? kv->token_q_sinks : kv->token_q;
    run_segment(job, &t, head, &seg, q + (size_t)head * t.n_queries * kv->d_k,
                kv->token_prepared + head * t.n_queries * vq_side_query_bytes(keys),
                kv->token_least + (size_t)head * t.n_queries, s);
    const size_t n = seg.kind == PAGES ? vq_side_acc_len(&job->l->heads[head].v) : kv->d_v;
    const size_t at = part_at(job, &t, head, k);
    for (uint32_t i = 0; i < t.n_queries; i++) {
        kv->part_max[at + i] = s->part_max[i];
        kv->part_sum[at + i] = s->part_sum[i];
        memcpy(kv->part_acc + (at + i) * kv->acc_most, s->part + i * n, n * sizeof(float));
    }
}

/* Task: what a head's queries retrieve. */
static void find_token_least(void *arg, uint32_t head, uint32_t thread)
{
    const attend_job *job = arg;
    const vq_kv *kv = job->kv;
    const tile t = make_tile(job, 0);
    find_least(job, &t, head, kv->token_prepared + head * t.n_queries * vq_side_query_bytes(&job->l->heads[head].k),
               &kv->scratch[thread], kv->token_least + (size_t)head * t.n_queries);
}

static void merge_head(const attend_job *job, const tile *t, uint32_t head)
{
    const vq_kv *kv = job->kv;
    const vq_side *values = &job->l->heads[head].v;
    const size_t acc_len = vq_side_acc_len(values);
    vq_kv_scratch *s = &kv->scratch[0];
    for (uint32_t i = 0; i < t->n_queries; i++) {
        const running r = {s->max, s->sum, s->coded, s->plain, acc_len, kv->d_v};
        *r.max = -INFINITY;
        *r.sum = 0;
        memset(r.coded, 0, acc_len * sizeof(float));
        memset(r.plain, 0, kv->d_v * sizeof(float));
        segment seg;
        bool any_coded = false;
        for (uint32_t k = 0; get_segment(job, t, k, &seg); k++) {
            const size_t at = part_at(job, t, head, k) + i;
            merge(&r, seg.kind, kv->part_max[at], kv->part_sum[at], kv->part_acc + at * kv->acc_most);
            any_coded |= seg.kind == PAGES;
        }
        finish(kv, values, &r, any_coded, out_of(job, t, head, i));
    }
}

/* ---- */

static void cut_tiles(attend_job *job)
{
    const vq_kv *kv = job->kv;
    uint32_t n = 0;
    for (uint32_t i = 0; i < job->n; n++) {
        kv->tiles[n] = i;
        const uint32_t coded_end = vq_kv_coded_end(job->l, job->first_row + i + 1), first = i;
        while (i < job->n && i - first < kv->tile_tokens &&
               vq_kv_coded_end(job->l, job->first_row + i + 1) == coded_end)
            i++;
    }
    kv->tiles[n] = job->n;
    job->n_tiles = n;
}

static vq_status attend(vq_kv *kv, uint32_t layer, const float *q, uint32_t n, float *out, vq_error *err)
{
    if (layer >= kv->n_layers || layer != kv->pending)
        return vq_fail(err, VQ_ERR_ARG, "layer is %u, which the newest append was not to", layer);
    const vq_kv_layer *l = &kv->layers[layer];
    if (n == 0 || n > l->n_rows - l->n_settled)
        return vq_fail(err, VQ_ERR_ARG, "%u queries, the newest append to layer %u had %u rows", n, layer,
                       l->n_rows - l->n_settled);
    attend_job job = {.kv = kv, .l = l, .q = q, .out = out, .n = n, .first_row = l->n_rows - n};
    cut_tiles(&job);
    if (kv->evict)
        job.rope = vq_evictor_renumbers(kv, layer, &job.n_missing);
    page_blocks(kv, l, &job.first_block, &job.end_block);
    const uint32_t seen = l->window && l->window < l->n_rows ? l->window : l->n_rows;
    const uint64_t macs = (uint64_t)n * kv->n_heads * seen * (kv->d_k + kv->d_v);
    vq_pool *pool = macs < SERIAL_MACS ? NULL : kv->pool;

    const tile t = make_tile(&job, 0);
    segment seg;
    while (get_segment(&job, &t, job.n_segments, &seg))
        job.n_segments++;
    const size_t n_queries = (size_t)n * kv->n_heads;
    if (vq_pool_n_threads(pool) == 1 || job.n_tiles > 1 || n_queries > kv->n_heads ||
        n_queries * job.n_segments > kv->part_room) {
        vq_pool_run(pool, job.n_tiles * kv->n_kv_heads, attend_tile, &job);
    } else {
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            gather(&job, &t, h, kv->token_q + (size_t)h * t.n_queries * kv->d_k,
                   kv->token_q_sinks + (size_t)h * t.n_queries * kv->d_k,
                   kv->token_prepared + h * t.n_queries * vq_side_query_bytes(&l->heads[h].k));
        if (kv->retrieve_most > 0)
            vq_pool_run(pool, kv->n_kv_heads, find_token_least, &job);
        vq_pool_run(pool, kv->n_kv_heads * job.n_segments, attend_segment, &job);
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            merge_head(&job, &t, h);
    }
    if (kv->evict)
        vq_evictor_attended(kv, layer, q, n);
    return VQ_OK;
}

vq_status vq_kv_attend(vq_kv *kv, uint32_t layer, const float *q, uint32_t n, float *out, vq_error *err)
{
    if (!kv->times)
        return attend(kv, layer, q, n, out, err);
    const double start = vq_kv_clock();
    VQ_TRY(attend(kv, layer, q, n, out, err));
    kv->times[layer].attend_seconds += vq_kv_clock() - start;
    return VQ_OK;
}
