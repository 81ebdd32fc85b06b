/* A cache's rows: open, append, truncate, read.  See kv_inner.h for where a row is. */
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "base/pool.h"
#include "kv/evict.h"
#include "kv/kv_inner.h"

/* Rows times channels below which waking the threads costs more than it saves. */
enum { SERIAL_FLOATS = 16384 };

void vq_kv_exact_from_f32(const vq_kv *kv, void *out, const float *x, size_t n)
{
    switch (kv->exact) {
    case VQ_KV_EXACT_F16: kv->kernels.vec.f32_to_f16(out, x, (uint32_t)n); break;
    case VQ_KV_EXACT_BF16: kv->kernels.vec.f32_to_bf16(out, x, (uint32_t)n); break;
    case VQ_KV_EXACT_F32: memcpy(out, x, n * sizeof *x); break;
    }
}

void vq_kv_exact_to_f32(const vq_kv *kv, float *out, const void *x, size_t n)
{
    switch (kv->exact) {
    case VQ_KV_EXACT_F16: kv->kernels.vec.f16_to_f32(out, x, (uint32_t)n); break;
    case VQ_KV_EXACT_BF16: kv->kernels.vec.bf16_to_f32(out, x, (uint32_t)n); break;
    case VQ_KV_EXACT_F32: memcpy(out, x, n * sizeof *out); break;
    }
}

const unsigned char *vq_kv_exact_rows(const vq_kv *kv, const vq_kv_layer *l, uint32_t head, bool keys, uint32_t first,
                                      uint32_t *n)
{
    const size_t row_bytes = (keys ? kv->d_k : kv->d_v) * kv->exact_bytes;
    if (first < l->n_settled) {
        const vq_kv_head *h = &l->heads[head];
        *n = l->n_settled - first;
        return (keys ? h->exact_k : h->exact_v) + (first - l->exact_first) * row_bytes;
    }
    *n = l->n_rows - first;
    return (keys ? kv->stage_k : kv->stage_v) + ((size_t)head * kv->n_batch + (first - l->n_settled)) * row_bytes;
}

uint64_t vq_kv_exact_live(const vq_kv_layer *l, uint32_t head, uint32_t first, uint32_t n)
{
    if (first >= l->n_settled)
        return vq_low_bits(n);
    uint64_t bits = 0;
    if (first + n > l->n_settled) {
        const uint32_t n_pending = first + n - l->n_settled;
        n -= n_pending;
        bits = vq_low_bits(n_pending) << n;
    }
    return bits | vq_mask_bits(l->heads[head].exact_live, first - l->exact_first, n);
}

/* ---- settle ---- */

static void drop_pages(vq_kv *kv, vq_kv_layer *l)
{
    const uint32_t seen = vq_kv_first_seen(l);
    if (seen <= l->gone)
        return;
    l->gone = seen;
    for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
        vq_kv_head *h = &l->heads[i];
        uint32_t n = 0, n_rows = 0;
        for (; n < h->n_pages && vq_kv_page_end(&h->pages[n]) <= seen; n++) {
            n_rows += (uint32_t)__builtin_popcountll(h->pages[n].live);
            vq_kv_page_give(kv, l, &h->pages[n]);
        }
        if (kv->evict && n_rows > 0)
            vq_evictor_dropped(kv, (uint32_t)(l - kv->layers), i, n_rows);
        h->n_pages -= n;
        h->first_index += n;
        memmove(h->pages, h->pages + n, h->n_pages * sizeof *h->pages);
    }
}

/* Moves the rows of one side of one head that remain exact to the front of its exact rows. */
static void settle_side(const vq_kv *kv, const vq_kv_layer *l, uint32_t head, bool keys)
{
    const size_t row_bytes = (keys ? kv->d_k : kv->d_v) * kv->exact_bytes;
    unsigned char *to = keys ? l->heads[head].exact_k : l->heads[head].exact_v;
    for (uint32_t row = l->coded_end, n; row < l->n_rows; row += n) {
        const unsigned char *from = vq_kv_exact_rows(kv, l, head, keys, row, &n);
        memmove(to, from, n * row_bytes);
        to += n * row_bytes;
    }
}

static void settle_mask(const vq_kv_layer *l, uint32_t head)
{
    uint64_t *mask = l->heads[head].exact_live;
    for (uint32_t row = l->coded_end; row < l->n_rows; row += 64) {
        const uint32_t n = l->n_rows - row < 64 ? l->n_rows - row : 64;
        mask[(row - l->coded_end) / 64] = vq_kv_exact_live(l, head, row, n);
    }
}

static void settle_rows(vq_kv *kv)
{
    if (kv->pending == VQ_NO_LAYER)
        return;
    vq_kv_layer *l = &kv->layers[kv->pending];
    for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
        settle_side(kv, l, i, true);
        settle_side(kv, l, i, false);
        settle_mask(l, i);
    }
    l->exact_first = l->coded_end;
    l->n_settled = l->n_rows;
    kv->pending = VQ_NO_LAYER;
}

void vq_kv_settle(vq_kv *kv)
{
    const uint32_t pending = kv->pending;
    settle_rows(kv);
    if (pending != VQ_NO_LAYER)
        drop_pages(kv, &kv->layers[pending]);
}

/* ---- append ---- */

typedef struct append_job {
    vq_kv *kv;
    vq_kv_layer *l;
    const float *x[2]; /* keys, values */
    uint32_t n;
    uint32_t from, to;   /* rows that become codes */
    uint32_t most_pages; /* that one head writes to */
} append_job;

/* Task: one side of one head. */
static void stage_rows(void *arg, uint32_t index, uint32_t thread)
{
    (void)thread;
    const append_job *job = arg;
    const vq_kv *kv = job->kv;
    const vq_kv_layer *l = job->l;
    const uint32_t head = index / 2, side = index % 2;
    const size_t d = side ? kv->d_v : kv->d_k, row_bytes = d * kv->exact_bytes;
    unsigned char *to = (side ? kv->stage_v : kv->stage_k) + (size_t)head * kv->n_batch * row_bytes;
    unsigned char *sinks = side ? l->heads[head].sink_v : l->heads[head].sink_k;
    for (uint32_t i = 0; i < job->n; i++, to += row_bytes) {
        vq_kv_exact_from_f32(kv, to, job->x[side] + ((size_t)i * kv->n_kv_heads + head) * d, d);
        if (l->n_settled + i < l->sinks) {
            memcpy(sinks + (l->n_settled + i) * row_bytes, to, row_bytes);
            if (!side)
                vq_mask_put(l->heads[head].sink_live, l->n_settled + i, true);
        }
    }
}

/* Task: one side of one page of one head.  Codes are made from the rows as they were held, so that it does not matter
 * which append made them due. */
static void encode_page(void *arg, uint32_t index, uint32_t thread)
{
    const append_job *job = arg;
    const vq_kv *kv = job->kv;
    const vq_kv_layer *l = job->l;
    const uint32_t head = index / (2 * job->most_pages), keys = index % 2;
    const vq_kv_head *h = &l->heads[head];
    const uint32_t page_index = h->touched + index % (2 * job->most_pages) / 2;
    if (page_index >= h->n_pages)
        return;
    const vq_kv_page *page = &h->pages[page_index];
    const uint32_t to = job->to < page->first + VQ_PAGE_ROWS ? job->to : page->first + VQ_PAGE_ROWS;
    const vq_side *side = keys ? &h->k : &h->v;
    unsigned char *bytes = page->bytes + (keys ? 0 : h->value_at);
    float *x = kv->scratch[thread].rows;
    uint32_t pos[VQ_PAGE_ROWS];
    for (uint32_t row = page->first + page->n; row < to; row += l->granule) {
        for (uint32_t i = 0; i < l->granule; i++)
            pos[i] = l->first_pos + row + i;
        for (uint32_t i = 0, n; i < l->granule; i += n) {
            const unsigned char *rows = vq_kv_exact_rows(kv, l, head, keys, row + i, &n);
            n = n < l->granule - i ? n : l->granule - i;
            vq_kv_exact_to_f32(kv, x + (size_t)i * side->d, rows, (size_t)n * side->d);
        }
        vq_side_encode(side, bytes, row - page->first, l->granule, x, pos);
    }
}

/* Whether the next granule goes into a head's last page. */
static bool is_open(const vq_kv_layer *l, const vq_kv_head *h)
{
    const vq_kv_page *last = h->n_pages ? &h->pages[h->n_pages - 1] : NULL;
    return last && !last->offsets && last->n < VQ_PAGE_ROWS && last->first + last->n == l->coded_end;
}

/* Pages at the end of every head's list for the rows that become codes, or none. */
static vq_status take_pages(append_job *job, vq_error *err)
{
    vq_kv *kv = job->kv;
    const vq_kv_layer *l = job->l;
    vq_status status = VQ_OK;
    uint32_t i = 0;
    for (; i < kv->n_kv_heads && status == VQ_OK; i++) {
        vq_kv_head *h = &l->heads[i];
        const bool open = is_open(l, h);
        if (open)
            status = vq_kv_page_make_own(kv, l, i, &h->pages[h->n_pages - 1], err);
        uint32_t row = open ? h->pages[h->n_pages - 1].first + VQ_PAGE_ROWS : job->from;
        h->touched = h->n_pages - open;
        for (; status == VQ_OK && row < job->to; row += VQ_PAGE_ROWS) {
            vq_kv_page page = {.first = row};
            if (h->n_pages == l->page_room) /* a loaded cache may have many pages of few rows */
                status = vq_fail(err, VQ_ERR_FULL, "no room for another page after %u", h->n_pages);
            else
                page.bytes = vq_store_take(&kv->store, l->first_area + i, err);
            if (status == VQ_OK && !page.bytes)
                status = VQ_ERR_NOMEM;
            if (status != VQ_OK)
                break;
            memset(page.bytes, 0, h->page_bytes);
            h->pages[h->n_pages++] = page;
        }
        const uint32_t n = h->n_pages - h->touched;
        job->most_pages = n > job->most_pages ? n : job->most_pages;
    }
    while (status != VQ_OK && i-- > 0) {
        vq_kv_head *h = &l->heads[i];
        while (h->n_pages > h->touched && h->pages[h->n_pages - 1].n == 0)
            vq_kv_page_give(kv, l, &h->pages[--h->n_pages]);
    }
    return status;
}

/* The pages' new rows count, but for those that were evicted while they were exact. */
static void show_rows(const append_job *job)
{
    const vq_kv_layer *l = job->l;
    for (uint32_t i = 0; i < job->kv->n_kv_heads; i++)
        for (uint32_t p = l->heads[i].touched; p < l->heads[i].n_pages; p++) {
            vq_kv_page *page = &l->heads[i].pages[p];
            const uint32_t first = page->first + page->n;
            const uint32_t room = (uint32_t)VQ_PAGE_ROWS - page->n, n = job->to - first < room ? job->to - first : room;
            if (n == 0)
                continue;
            page->live |= vq_kv_exact_live(l, i, first, n) << page->n;
            page->n = (uint8_t)(page->n + n);
        }
}

#ifndef NDEBUG
static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}
#endif

static vq_status append(vq_kv *kv, uint32_t layer, uint32_t pos, const float *k, const float *v, uint32_t n,
                        vq_error *err)
{
    if (layer >= kv->n_layers)
        return vq_fail(err, VQ_ERR_ARG, "layer is %u, the cache has %u", layer, kv->n_layers);
    vq_kv_layer *l = &kv->layers[layer];
    if (n == 0 || n > kv->n_batch)
        return vq_fail(err, VQ_ERR_ARG, "%u rows in one append, n_batch is %u", n, kv->n_batch);
    if (n > kv->n_ctx - l->n_rows)
        return vq_fail(err, VQ_ERR_FULL, "%u rows after %u in layer %u exceed n_ctx %u", n, l->n_rows, layer,
                       kv->n_ctx);
    if (l->n_rows > 0 ? pos != l->first_pos + l->n_rows : pos > UINT32_MAX - kv->n_ctx)
        return vq_fail(err, VQ_ERR_ARG, "position is %u, layer %u goes on at %u", pos, layer,
                       l->n_rows > 0 ? l->first_pos + l->n_rows : 0);
#ifndef NDEBUG
    if (!all_finite(k, (size_t)n * kv->n_kv_heads * kv->d_k) || !all_finite(v, (size_t)n * kv->n_kv_heads * kv->d_v))
        return vq_fail(err, VQ_ERR_NONFINITE, "a row for layer %u, positions %u to %u, is not finite", layer, pos,
                       pos + n - 1);
#endif
    vq_kv_settle(kv);
    const uint32_t end = vq_kv_coded_end(l, l->n_rows + n);
    append_job job = {.kv = kv, .l = l, .x = {k, v}, .n = n, .from = l->coded_end, .to = end};
    if (job.from < job.to)
        VQ_TRY(take_pages(&job, err));

    if (l->n_rows == 0)
        l->first_pos = pos;
    l->n_rows += n;
    l->coded_end = end;
    kv->pending = layer;
    if (kv->evict)
        vq_evictor_appended(kv, layer, n);
    const size_t n_floats = (size_t)n * kv->n_kv_heads * (kv->d_k + kv->d_v);
    vq_pool_run(n_floats < SERIAL_FLOATS ? NULL : kv->pool, 2 * kv->n_kv_heads, stage_rows, &job);
    if (job.from == job.to)
        return VQ_OK;

    vq_pool_run(kv->pool, 2 * kv->n_kv_heads * job.most_pages, encode_page, &job);
    show_rows(&job);
    return VQ_OK;
}

vq_status vq_kv_append(vq_kv *kv, uint32_t layer, uint32_t pos, const float *k, const float *v, uint32_t n,
                       vq_error *err)
{
    if (!kv->times)
        return append(kv, layer, pos, k, v, n, err);
    const double start = vq_kv_clock();
    VQ_TRY(append(kv, layer, pos, k, v, n, err));
    kv->times[layer].append_seconds += vq_kv_clock() - start;
    return VQ_OK;
}

/* ---- truncate, clear, read ---- */

/* Rows [first, n) of every head, decoded and held exactly: the cut went through their granule. */
static void thaw(vq_kv *kv, vq_kv_layer *l, uint32_t first, uint32_t n)
{
    float *x = kv->scratch[0].rows;
    for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
        const vq_kv_head *h = &l->heads[i];
        memset(h->exact_k, 0, (n - first) * kv->d_k * kv->exact_bytes); /* rows whose codes are gone */
        memset(h->exact_v, 0, (n - first) * kv->d_v * kv->exact_bytes);
        h->exact_live[0] = 0;
        for (uint32_t p = 0; p < h->n_pages; p++) {
            const vq_kv_page *page = &h->pages[p];
            for (uint32_t at = vq_kv_page_below(page, first); at < vq_kv_page_below(page, n); at++) {
                const size_t to = vq_kv_page_row(page, at) - first;
                const uint32_t pos = l->first_pos + vq_kv_page_row(page, at);
                vq_side_decode(&h->k, page->bytes, at, 1, x, &pos);
                vq_kv_exact_from_f32(kv, h->exact_k + to * kv->d_k * kv->exact_bytes, x, kv->d_k);
                vq_side_decode(&h->v, page->bytes + h->value_at, at, 1, x, &pos);
                vq_kv_exact_from_f32(kv, h->exact_v + to * kv->d_v * kv->exact_bytes, x, kv->d_v);
                h->exact_live[0] |= (page->live >> at & 1) << to;
            }
        }
    }
}

/* Codes end at row `end`. */
static void cut_pages(vq_kv *kv, const vq_kv_layer *l, vq_kv_head *h, uint32_t end)
{
    while (h->n_pages > 0 && h->pages[h->n_pages - 1].first >= end)
        vq_kv_page_give(kv, l, &h->pages[--h->n_pages]);
    if (h->n_pages == 0)
        return;
    vq_kv_page *last = &h->pages[h->n_pages - 1];
    last->n = (uint8_t)vq_kv_page_below(last, end);
    last->live &= vq_low_bits(last->n);
}

static void truncate_layer(vq_kv *kv, vq_kv_layer *l, uint32_t n)
{
    uint32_t end = l->coded_end;
    if (n < end) {
        end = n > l->sinks ? l->sinks + (n - l->sinks) / l->granule * l->granule : l->sinks;
        if (end < n && n > l->sinks)
            thaw(kv, l, end, n);
        for (uint32_t i = 0; i < kv->n_kv_heads; i++)
            cut_pages(kv, l, &l->heads[i], end);
    }
    l->coded_end = l->coded_floor = l->exact_first = end;
    l->n_rows = l->n_settled = n;
}

vq_status vq_kv_truncate(vq_kv *kv, uint32_t n, vq_error *err)
{
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        const vq_kv_layer *l = &kv->layers[i];
        /* Query n would see rows from n - window + 1 on. */
        if (n < l->n_rows && l->gone > 0 && (uint64_t)l->gone + l->window > (uint64_t)n + 1)
            return vq_fail(err, VQ_ERR_UNSUPPORTED,
                           "truncating to %u rows: layer %u (window %u) has dropped the rows below %u", n, i, l->window,
                           l->gone);
    }
    /* Pages that only the dropped rows had pushed out of a window are still there: they go by what is left. */
    settle_rows(kv);
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        if (n < kv->layers[i].n_rows)
            truncate_layer(kv, &kv->layers[i], n);
        drop_pages(kv, &kv->layers[i]);
    }
    if (kv->evict)
        vq_evictor_cut(kv, n);
    return VQ_OK;
}

void vq_kv_clear(vq_kv *kv)
{
    vq_kv_let_go(kv);
    kv->pending = VQ_NO_LAYER;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        vq_kv_layer *l = &kv->layers[i];
        l->n_rows = l->n_settled = l->gone = 0;
        l->coded_end = l->coded_floor = l->exact_first = l->sinks;
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            l->heads[h].first_index = 0;
    }
    vq_store_wipe(kv->rows_block, kv->n_rows_bytes); /* masks of no rows, and scratch */
    if (kv->evict) {
        vq_evictor_cut(kv, 0);
        kv->evict->phase = VQ_KV_PROMPT;
    }
}

uint32_t vq_kv_n_rows(const vq_kv *kv, uint32_t layer) { return layer < kv->n_layers ? kv->layers[layer].n_rows : 0; }

uint32_t vq_kv_n_sinks(const vq_kv *kv, uint32_t layer) { return layer < kv->n_layers ? kv->layers[layer].sinks : 0; }

typedef struct read_call {
    const vq_kv *kv;
    const vq_kv_layer *l;
    uint32_t head, n; /* n rows were passed on */
    float *k, *v;
    uint32_t *pos;
} read_call;

/* Exact rows that lie together and of which those in `live` (bit 0: the first) count. */
static void read_exact(read_call *c, uint32_t row, const unsigned char *k, const unsigned char *v, uint64_t live)
{
    const vq_kv *kv = c->kv;
    for (; live; live &= live - 1, c->n++) {
        const size_t i = (size_t)__builtin_ctzll(live);
        if (c->k)
            vq_kv_exact_to_f32(kv, c->k + (size_t)c->n * kv->d_k, k + i * kv->d_k * kv->exact_bytes, kv->d_k);
        if (c->v)
            vq_kv_exact_to_f32(kv, c->v + (size_t)c->n * kv->d_v, v + i * kv->d_v * kv->exact_bytes, kv->d_v);
        if (c->pos)
            c->pos[c->n] = c->l->first_pos + row + (uint32_t)i;
    }
}

static void read_page(read_call *c, const vq_kv_page *page)
{
    const vq_kv *kv = c->kv;
    const vq_kv_head *h = &c->l->heads[c->head];
    for (uint64_t live = page->live; live; live &= live - 1, c->n++) {
        const uint32_t i = (uint32_t)__builtin_ctzll(live), pos = c->l->first_pos + vq_kv_page_row(page, i);
        if (c->k)
            vq_side_decode(&h->k, page->bytes, i, 1, c->k + (size_t)c->n * kv->d_k, &pos);
        if (c->v)
            vq_side_decode(&h->v, page->bytes + h->value_at, i, 1, c->v + (size_t)c->n * kv->d_v, &pos);
        if (c->pos)
            c->pos[c->n] = pos;
    }
}

uint32_t vq_kv_read(const vq_kv *kv, uint32_t layer, uint32_t head, float *k, float *v, uint32_t *pos)
{
    if (layer >= kv->n_layers || head >= kv->n_kv_heads)
        return 0;
    const vq_kv_layer *l = &kv->layers[layer];
    const vq_kv_head *h = &l->heads[head];
    read_call c = {.kv = kv, .l = l, .head = head, .k = k, .v = v, .pos = pos};
    const uint32_t n_sinks = l->sinks < l->n_rows ? l->sinks : l->n_rows;
    for (uint32_t row = 0, n; row < n_sinks; row += n) {
        n = n_sinks - row < 64 ? n_sinks - row : 64;
        read_exact(&c, row, h->sink_k + row * kv->d_k * kv->exact_bytes, h->sink_v + row * kv->d_v * kv->exact_bytes,
                   vq_mask_bits(h->sink_live, row, n));
    }
    for (uint32_t p = 0; p < h->n_pages; p++)
        read_page(&c, &h->pages[p]);
    for (uint32_t row = l->coded_end, n; row < l->n_rows; row += n) {
        const unsigned char *rows_k = vq_kv_exact_rows(kv, l, head, true, row, &n);
        const unsigned char *rows_v = vq_kv_exact_rows(kv, l, head, false, row, &n);
        n = n < 64 ? n : 64;
        read_exact(&c, row, rows_k, rows_v, vq_kv_exact_live(l, head, row, n));
    }
    return c.n;
}
