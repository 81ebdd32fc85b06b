/* A cache's rows: open, append, truncate, read.  See kv_inner.h for where a row is. */
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "base/pool.h"
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

/* ---- settle ---- */

static void drop_pages(vq_kv *kv, vq_kv_layer *l)
{
    for (const uint32_t end = vq_kv_first_seen_page(l); l->first_page < end; l->first_page++)
        for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
            vq_kv_page *page = vq_kv_page_at(l, &l->heads[i], l->first_page);
            vq_store_give(&kv->store, l->page_class, page->bytes);
            *page = (vq_kv_page){0};
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

static void settle_rows(vq_kv *kv)
{
    if (kv->pending == VQ_NO_LAYER)
        return;
    vq_kv_layer *l = &kv->layers[kv->pending];
    for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
        settle_side(kv, l, i, true);
        settle_side(kv, l, i, false);
    }
    l->exact_first = l->coded_end;
    l->n_settled = l->n_rows;
    kv->pending = VQ_NO_LAYER;
}

static void settle(vq_kv *kv)
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
    uint32_t from, to; /* rows that become codes */
    uint32_t first_page, n_pages;
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
        if (l->n_settled + i < l->sinks)
            memcpy(sinks + (l->n_settled + i) * row_bytes, to, row_bytes);
    }
}

/* Task: one side of one page of one head.  Codes are made from the rows as they were held, so that it does not matter
 * which append made them due. */
static void encode_page(void *arg, uint32_t index, uint32_t thread)
{
    const append_job *job = arg;
    const vq_kv *kv = job->kv;
    const vq_kv_layer *l = job->l;
    const uint32_t head = index / (2 * job->n_pages), keys = index % 2;
    const uint32_t page_index = job->first_page + index % (2 * job->n_pages) / 2;
    const uint32_t page_row = l->sinks + page_index * VQ_PAGE_ROWS;
    const uint32_t from = job->from > page_row ? job->from : page_row;
    const uint32_t to = job->to < page_row + VQ_PAGE_ROWS ? job->to : page_row + VQ_PAGE_ROWS;
    const vq_kv_head *h = &l->heads[head];
    const vq_side *side = keys ? &h->k : &h->v;
    unsigned char *page = vq_kv_page_at(l, h, page_index)->bytes + (keys ? 0 : l->value_at);
    float *x = kv->scratch[thread].rows;
    for (uint32_t row = from; row < to; row += l->granule) {
        for (uint32_t i = 0, n; i < l->granule; i += n) {
            const unsigned char *rows = vq_kv_exact_rows(kv, l, head, keys, row + i, &n);
            n = n < l->granule - i ? n : l->granule - i;
            vq_kv_exact_to_f32(kv, x + (size_t)i * side->d, rows, (size_t)n * side->d);
        }
        side->codec->encode(side->state, page, row - page_row, l->granule, x);
    }
}

/* Pages [first, end) for every head, or none. */
static vq_status take_pages(vq_kv *kv, const vq_kv_layer *l, uint32_t first, uint32_t end, vq_error *err)
{
    for (uint32_t p = first; p < end; p++)
        for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
            vq_kv_page *page = vq_kv_page_at(l, &l->heads[i], p);
            *page = (vq_kv_page){.bytes = vq_store_take(&kv->store, l->page_class, err)};
            if (page->bytes) {
                memset(page->bytes, 0, l->page_bytes);
                continue;
            }
            for (; p + 1 > first; p--, i = kv->n_kv_heads)
                while (i-- > 0) {
                    vq_kv_page *taken = vq_kv_page_at(l, &l->heads[i], p);
                    vq_store_give(&kv->store, l->page_class, taken->bytes);
                    *taken = (vq_kv_page){0};
                }
            return VQ_ERR_NOMEM;
        }
    return VQ_OK;
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

vq_status vq_kv_append(vq_kv *kv, uint32_t layer, uint32_t pos, const float *k, const float *v, uint32_t n,
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
    settle(kv);
    const uint32_t end = vq_kv_coded_end(l, l->n_rows + n);
    append_job job = {.kv = kv, .l = l, .x = {k, v}, .n = n, .from = l->coded_end, .to = end};
    VQ_TRY(take_pages(kv, l, vq_kv_end_page(l, l->coded_end), vq_kv_end_page(l, end), err));

    if (l->n_rows == 0)
        l->first_pos = pos;
    l->n_rows += n;
    l->coded_end = end;
    kv->pending = layer;
    const size_t n_floats = (size_t)n * kv->n_kv_heads * (kv->d_k + kv->d_v);
    vq_pool_run(n_floats < SERIAL_FLOATS ? NULL : kv->pool, 2 * kv->n_kv_heads, stage_rows, &job);
    if (job.from == job.to)
        return VQ_OK;

    job.first_page = (job.from - l->sinks) / VQ_PAGE_ROWS;
    job.n_pages = vq_kv_end_page(l, job.to) - job.first_page;
    vq_pool_run(kv->pool, 2 * kv->n_kv_heads * job.n_pages, encode_page, &job);
    for (uint32_t p = job.first_page; p < job.first_page + job.n_pages; p++) {
        const uint32_t n_coded = job.to - l->sinks - p * VQ_PAGE_ROWS;
        const uint64_t live = n_coded < VQ_PAGE_ROWS ? ((uint64_t)1 << n_coded) - 1 : UINT64_MAX;
        for (uint32_t i = 0; i < kv->n_kv_heads; i++)
            vq_kv_page_at(l, &l->heads[i], p)->live = live;
    }
    return VQ_OK;
}

/* ---- truncate, clear, read ---- */

/* Rows [first, n) of a page, decoded and held exactly: the cut went through their granule. */
static void thaw(vq_kv *kv, vq_kv_layer *l, uint32_t first, uint32_t n)
{
    const uint32_t page_index = (first - l->sinks) / VQ_PAGE_ROWS, at = (first - l->sinks) % VQ_PAGE_ROWS;
    float *x = kv->scratch[0].rows;
    for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
        const vq_kv_head *h = &l->heads[i];
        const unsigned char *page = vq_kv_page_at(l, h, page_index)->bytes;
        h->k.codec->decode(h->k.state, page, at, n - first, x);
        vq_kv_exact_from_f32(kv, h->exact_k, x, (size_t)(n - first) * kv->d_k);
        h->v.codec->decode(h->v.state, page + l->value_at, at, n - first, x);
        vq_kv_exact_from_f32(kv, h->exact_v, x, (size_t)(n - first) * kv->d_v);
    }
}

static void truncate_layer(vq_kv *kv, vq_kv_layer *l, uint32_t n)
{
    uint32_t end = l->coded_end;
    if (n < end) {
        end = n > l->sinks ? l->sinks + (n - l->sinks) / l->granule * l->granule : l->sinks;
        if (end < n && n > l->sinks)
            thaw(kv, l, end, n);
        for (uint32_t p = vq_kv_end_page(l, end); p < vq_kv_end_page(l, l->coded_end); p++)
            for (uint32_t i = 0; i < kv->n_kv_heads; i++) {
                vq_kv_page *page = vq_kv_page_at(l, &l->heads[i], p);
                vq_store_give(&kv->store, l->page_class, page->bytes);
                *page = (vq_kv_page){0};
            }
        if ((end - l->sinks) % VQ_PAGE_ROWS)
            for (uint32_t i = 0; i < kv->n_kv_heads; i++)
                vq_kv_page_at(l, &l->heads[i], (end - l->sinks) / VQ_PAGE_ROWS)->live &=
                    ((uint64_t)1 << (end - l->sinks) % VQ_PAGE_ROWS) - 1;
    }
    l->coded_end = l->coded_floor = l->exact_first = end;
    l->n_rows = l->n_settled = n;
}

vq_status vq_kv_truncate(vq_kv *kv, uint32_t n, vq_error *err)
{
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        const vq_kv_layer *l = &kv->layers[i];
        /* Query n would see rows from n - window + 1 on. */
        if (n < l->n_rows && l->first_page > 0 && (uint64_t)l->first_page * VQ_PAGE_ROWS + l->window > (uint64_t)n + 1)
            return vq_fail(err, VQ_ERR_UNSUPPORTED,
                           "truncating to %u rows: layer %u (window %u) has dropped the rows below %u", n, i, l->window,
                           l->first_page * VQ_PAGE_ROWS);
    }
    /* Pages that only the dropped rows had pushed out of a window are still there: they go by what is left. */
    settle_rows(kv);
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        if (n < kv->layers[i].n_rows)
            truncate_layer(kv, &kv->layers[i], n);
        drop_pages(kv, &kv->layers[i]);
    }
    return VQ_OK;
}

void vq_kv_clear(vq_kv *kv)
{
    kv->pending = VQ_NO_LAYER;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        vq_kv_layer *l = &kv->layers[i];
        l->n_rows = l->n_settled = l->first_page = 0;
        l->coded_end = l->coded_floor = l->exact_first = l->sinks;
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            memset(l->heads[h].pages, 0, l->page_room * sizeof *l->heads[h].pages);
    }
    vq_store_release(&kv->store);
}

uint32_t vq_kv_n_rows(const vq_kv *kv, uint32_t layer) { return layer < kv->n_layers ? kv->layers[layer].n_rows : 0; }

uint32_t vq_kv_n_sinks(const vq_kv *kv, uint32_t layer) { return layer < kv->n_layers ? kv->layers[layer].sinks : 0; }

/* Rows of one side from `first` on to x. */
static void read_side(const vq_kv *kv, const vq_kv_layer *l, uint32_t head, bool keys, uint32_t first, float *x)
{
    const vq_kv_head *h = &l->heads[head];
    const vq_side *side = keys ? &h->k : &h->v;
    for (uint32_t row = first, n; row < l->n_rows; row += n, x += (size_t)n * side->d) {
        if (row < l->sinks) {
            n = (l->sinks < l->n_rows ? l->sinks : l->n_rows) - row;
            vq_kv_exact_to_f32(kv, x, (keys ? h->sink_k : h->sink_v) + row * side->d * kv->exact_bytes,
                               (size_t)n * side->d);
        } else if (row < l->coded_end) {
            const uint32_t page_index = (row - l->sinks) / VQ_PAGE_ROWS, at = (row - l->sinks) % VQ_PAGE_ROWS;
            n = l->coded_end - row < VQ_PAGE_ROWS - at ? l->coded_end - row : VQ_PAGE_ROWS - at;
            side->codec->decode(side->state, vq_kv_page_at(l, h, page_index)->bytes + (keys ? 0 : l->value_at), at, n,
                                x);
        } else {
            const unsigned char *rows = vq_kv_exact_rows(kv, l, head, keys, row, &n);
            vq_kv_exact_to_f32(kv, x, rows, (size_t)n * side->d);
        }
    }
}

uint32_t vq_kv_read(const vq_kv *kv, uint32_t layer, uint32_t head, float *k, float *v, uint32_t *pos)
{
    if (layer >= kv->n_layers || head >= kv->n_kv_heads)
        return 0;
    const vq_kv_layer *l = &kv->layers[layer];
    const uint32_t first = l->first_page * VQ_PAGE_ROWS; /* layers that drop pages have no sinks */
    if (k)
        read_side(kv, l, head, true, first, k);
    if (v)
        read_side(kv, l, head, false, first, v);
    for (uint32_t row = first; pos && row < l->n_rows; row++)
        pos[row - first] = l->first_pos + row;
    return l->n_rows - first;
}
