/* Taking rows out of a cache, and getting their memory back: empty pages are returned, sparse ones merged.
 *
 * Afterwards a head's pages take at most 1.25 times the bytes of its rows and one page, where both of its codecs copy
 * rows.  Where one has to code rows again, that happens to a row once: a page that was made so is only emptied. */
#include <string.h>

#include "kv/evict.h"

/* ---- masks ---- */

typedef struct dropping {
    const uint64_t *keep;
    uint32_t number; /* of the next row that counts */
} dropping;

/* Of the rows in `live`, those that stay. */
static uint64_t sift(dropping *d, uint64_t live)
{
    uint64_t left = 0;
    for (; live; live &= live - 1)
        if (vq_mask_bit(d->keep, d->number++))
            left |= live & -live;
    return left;
}

static void sift_mask(dropping *d, uint64_t *mask, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 64) {
        const uint64_t bits = vq_low_bits(n - i < 64 ? n - i : 64);
        mask[i / 64] = (mask[i / 64] & ~bits) | sift(d, mask[i / 64] & bits);
    }
}

void vq_evict_apply(vq_kv_layer *l, uint32_t head, const uint64_t *keep)
{
    vq_kv_head *h = &l->heads[head];
    dropping d = {.keep = keep};
    sift_mask(&d, h->sink_live, l->n_rows < l->sinks ? l->n_rows : l->sinks);
    for (uint32_t p = 0; p < h->n_pages; p++)
        h->pages[p].live = sift(&d, h->pages[p].live);
    if (l->n_rows > l->coded_end)
        sift_mask(&d, h->exact_live, l->n_rows - l->coded_end);
}

/* ---- merging ---- */

typedef struct row_ref {
    const unsigned char *bytes;
    uint32_t row;
    uint8_t index; /* in its page */
} row_ref;

typedef struct merging {
    vq_kv *kv;
    const vq_kv_layer *l;
    vq_kv_head *h;
    uint32_t area;              /* of the store */
    row_ref refs[VQ_PAGE_ROWS]; /* of the page under way */
    uint32_t n_refs;
    vq_kv_page done[VQ_PAGE_ROWS]; /* whose rows are all among refs */
    uint32_t n_done;
    uint32_t n_out;    /* pages of the new list */
    vq_kv_page *fresh; /* that were taken before, the last first */
    uint32_t n_fresh;
} merging;

static bool copies_rows(const vq_kv_head *h) { return vq_side_copies_rows(&h->k) && vq_side_copies_rows(&h->v); }

static void build_side(const merging *m, const vq_side *side, unsigned char *to, size_t at)
{
    if (vq_side_copies_rows(side)) {
        for (uint32_t i = 0; i < m->n_refs; i++)
            side->codec->copy_row(side->state, to, i, m->refs[i].bytes + at, m->refs[i].index);
        return;
    }
    /* What is missing of the last granule repeats the last row, so that it does not widen any range. */
    const uint32_t granule = vq_side_granule(side), d = side->d;
    const uint32_t n = (m->n_refs + granule - 1) / granule * granule;
    float *x = m->kv->scratch[0].rows;
    uint32_t pos[VQ_PAGE_ROWS];
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = m->l->first_pos + m->refs[i < m->n_refs ? i : m->n_refs - 1].row;
        if (i < m->n_refs)
            vq_side_decode(side, m->refs[i].bytes + at, m->refs[i].index, 1, x + (size_t)i * d, &pos[i]);
        else
            memcpy(x + (size_t)i * d, x + (size_t)(m->n_refs - 1) * d, d * sizeof *x);
    }
    for (uint32_t i = 0; i < n; i += granule)
        vq_side_encode(side, to, i, granule, x + (size_t)i * d, pos + i);
}

/* The rows gathered so far become a page; those whose rows are all in it go. */
static void flush(merging *m)
{
    if (m->n_refs > 0) {
        vq_kv_page page = m->fresh[--m->n_fresh];
        memset(page.bytes, 0, m->h->page_bytes);
        memset(page.offsets, 0, VQ_PAGE_ROWS * sizeof *page.offsets);
        build_side(m, &m->h->k, page.bytes, 0);
        build_side(m, &m->h->v, page.bytes + m->h->value_at, m->h->value_at);
        page.first = m->refs[0].row;
        for (uint32_t i = 0; i < m->n_refs; i++)
            page.offsets[i] = (uint16_t)(m->refs[i].row - page.first);
        page.n = (uint8_t)m->n_refs;
        page.live = vq_low_bits(m->n_refs);
        page.is_recoded = !copies_rows(m->h);
        m->h->pages[m->n_out++] = page;
    }
    for (uint32_t i = 0; i < m->n_done; i++)
        vq_kv_page_give(m->kv, m->l, &m->done[i]);
    m->n_refs = m->n_done = 0;
}

static bool may_merge(const vq_kv_head *h, const vq_kv_page *p) { return copies_rows(h) || !p->is_recoded; }

/* How many pages merging will write, from page `first` on: the same steps without their work. */
static uint32_t count_merged(const vq_kv_head *h, uint32_t first)
{
    uint32_t n_pages = 0, n = 0, start = 0;
    for (uint32_t p = first; p < h->n_pages; p++) {
        if (!may_merge(h, &h->pages[p])) {
            n = 0;
            continue;
        }
        for (uint64_t live = h->pages[p].live; live; live &= live - 1) {
            const uint32_t row = vq_kv_page_row(&h->pages[p], (uint32_t)__builtin_ctzll(live));
            if (n == 0 || n == VQ_PAGE_ROWS || row - start > UINT16_MAX) {
                n_pages++;
                start = row;
                n = 0;
            }
            n++;
        }
    }
    return n_pages;
}

static vq_status take_fresh(merging *m, uint32_t n, vq_error *err)
{
    for (m->n_fresh = 0; m->n_fresh < n; m->n_fresh++) {
        vq_kv_page page = {.bytes = vq_store_take(&m->kv->store, m->area, err)};
        if (page.bytes)
            page.offsets = vq_store_take(&m->kv->store, m->kv->offset_area, err);
        m->fresh[m->n_fresh] = page;
        if (page.bytes && page.offsets)
            continue;
        if (page.bytes)
            vq_store_give(&m->kv->store, m->area, page.bytes);
        while (m->n_fresh > 0)
            vq_kv_page_give(m->kv, m->l, &m->fresh[--m->n_fresh]);
        return VQ_ERR_NOMEM;
    }
    return VQ_OK;
}

static void merge_from(merging *m, uint32_t first)
{
    vq_kv_head *h = m->h;
    m->n_out = first;
    for (uint32_t p = first; p < h->n_pages; p++) {
        const vq_kv_page page = h->pages[p]; /* its entry may be written over */
        if (!may_merge(h, &page)) {
            flush(m);
            h->pages[m->n_out++] = page;
            continue;
        }
        for (uint64_t live = page.live; live; live &= live - 1) {
            const uint32_t i = (uint32_t)__builtin_ctzll(live), row = vq_kv_page_row(&page, i);
            if (m->n_refs == VQ_PAGE_ROWS || (m->n_refs > 0 && row - m->refs[0].row > UINT16_MAX))
                flush(m);
            m->refs[m->n_refs++] = (row_ref){page.bytes, row, (uint8_t)i};
        }
        m->done[m->n_done++] = page;
    }
    flush(m);
    h->n_pages = m->n_out;
}

vq_status vq_evict_repack(vq_kv *kv, vq_kv_layer *l, uint32_t head, vq_error *err)
{
    vq_kv_head *h = &l->heads[head];
    uint32_t n = 0;
    for (uint32_t p = 0; p < h->n_pages; p++) {
        if (h->pages[p].live)
            h->pages[n++] = h->pages[p];
        else
            vq_kv_page_give(kv, l, &h->pages[p]);
    }
    h->n_pages = n;

    uint64_t n_rows = 0, n_pages = 0;
    uint32_t first = UINT32_MAX;
    for (uint32_t p = 0; p < n; p++) {
        const uint32_t n_live = (uint32_t)__builtin_popcountll(h->pages[p].live);
        if (!may_merge(h, &h->pages[p]))
            continue;
        n_rows += n_live;
        n_pages++;
        if (n_live < VQ_PAGE_ROWS && first == UINT32_MAX)
            first = p;
    }
    if (4 * n_pages * VQ_PAGE_ROWS <= 5 * n_rows + 4 * VQ_PAGE_ROWS)
        return VQ_OK;
    merging m = {.kv = kv, .l = l, .h = h, .area = l->first_area + head, .fresh = kv->evict->fresh};
    VQ_TRY(take_fresh(&m, count_merged(h, first), err));
    merge_from(&m, first);
    return VQ_OK;
}
