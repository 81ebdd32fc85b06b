/* Forks: caches that go on from the same rows; and pages that lie in a saved cache's file.
 *
 * A page is never written while two caches hold it, so forks share pages.  When a cache is forked, the pages of its
 * store become a *base*: the store itself moves there, no page is taken from it any more, and how many caches hold each
 * of its pages is counted.  Cache and fork go on with empty stores.  So whatever lies in a cache's own store is its
 * alone; what it wants to write it copies there first (only ever the page that is being filled).  A page goes back to
 * the system when the last cache lets go of it, and a base when its last page does, in whatever order caches are
 * closed.
 *
 * A file is a base too, whose pages are in a map of it.
 *
 * A family is all caches that came from one by forking, and their bases.  What they share counts in the oldest that is
 * open (vq_kv_measure).  Bases are changed under the family's lock: forks may work on different threads. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv/evict.h"
#include "kv/kv_inner.h"

enum { MOST_FORKS = 64 };

struct vq_kv_base {
    vq_kv_base *next;
    size_t n_bytes; /* of the mapping that begins here */
    vq_store store; /* of a file: nothing but areas, which lie in this mapping */
    vq_file_map map;
    uint32_t n_held;    /* pages that somebody holds */
    uint8_t *holders[]; /* [n_areas], each [n_pages] */
};

struct vq_kv_family {
    pthread_mutex_t lock;
    uint32_t n_users;
    const vq_kv *users[MOST_FORKS]; /* open ones, the oldest first */
    vq_kv_base *bases;
};
_Static_assert(MOST_FORKS <= UINT8_MAX, "holders are counted in bytes");

static size_t whole_pages(size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) / page * page;
}

static size_t family_bytes(void) { return whole_pages(sizeof(vq_kv_family)); }

/* ---- bases ---- */

/* With `extra` bytes between the list of counts and the counts. */
static vq_kv_base *open_base(const vq_store_area *areas, uint32_t n_areas, size_t extra)
{
    size_t n_pages = 0;
    for (uint32_t i = 0; i < n_areas; i++)
        n_pages += areas[i].n_pages;
    const size_t at = sizeof(vq_kv_base) + n_areas * sizeof(uint8_t *) + extra, n_bytes = whole_pages(at + n_pages);
    vq_kv_base *base = vq_store_map(n_bytes);
    if (!base)
        return NULL;
    base->n_bytes = n_bytes;
    uint8_t *holders = (uint8_t *)base + at;
    for (uint32_t i = 0; i < n_areas; i++) {
        base->holders[i] = holders;
        holders += areas[i].n_pages;
    }
    return base;
}

static void fill_base(vq_kv_base *base, const vq_store *store)
{
    base->store = *store;
    for (uint32_t i = 0; i < store->n_areas; i++)
        for (uint32_t p = 0; p < store->areas[i].n_pages; p++)
            if (store->areas[i].taken[p / 64] >> p % 64 & 1) {
                base->holders[i][p] = 1;
                base->n_held++;
            }
}

static bool is_file(const vq_kv_base *base) { return base->map.bytes != NULL; }

static void close_base(vq_kv_base *base)
{
    if (is_file(base))
        vq_file_map_close(&base->map);
    else
        vq_store_close(&base->store);
    vq_store_unmap(base, base->n_bytes);
}

static bool is_empty(const vq_store *store) { return store->n_mapped == store->n_area_bytes + store->n_bit_bytes; }

/* The base and area in which a page lies, and its count. */
static uint8_t *find_holders(const vq_kv_family *f, uint32_t first_area, uint32_t n_areas, const void *page,
                             vq_kv_base **base, uint32_t *area)
{
    for (vq_kv_base *b = f->bases; b; b = b->next)
        for (uint32_t i = first_area; i < first_area + n_areas; i++)
            if (vq_store_has(&b->store, i, page)) {
                const vq_store_area *a = &b->store.areas[i];
                *base = b;
                *area = i;
                return &b->holders[i][(size_t)((const unsigned char *)page - a->base) / a->page_bytes];
            }
    return NULL;
}

static void hold(const vq_kv_family *f, uint32_t first_area, uint32_t n_areas, const void *page)
{
    vq_kv_base *base;
    uint32_t area;
    uint8_t *n = find_holders(f, first_area, n_areas, page, &base, &area);
    if (n)
        ++*n;
}

static void let_go(vq_kv_family *f, uint32_t first_area, uint32_t n_areas, void *page)
{
    vq_kv_base *base;
    uint32_t area;
    uint8_t *n = find_holders(f, first_area, n_areas, page, &base, &area);
    if (!n || --*n > 0)
        return;
    if (!is_file(base))
        vq_store_give(&base->store, area, page);
    if (--base->n_held > 0)
        return;
    vq_kv_base **at = &f->bases;
    while (*at != base)
        at = &(*at)->next;
    *at = base->next;
    close_base(base);
}

/* ---- pages of a cache ---- */

/* Whether a page lies in the cache's own store, and in which of the areas. */
static bool find_own(const vq_kv *kv, uint32_t first_area, uint32_t n_areas, const void *page, uint32_t *area)
{
    for (*area = first_area; *area < first_area + n_areas; ++*area)
        if (vq_store_has(&kv->store, *area, page))
            return true;
    return false;
}

static void give(vq_kv *kv, uint32_t first_area, uint32_t n_areas, void *page)
{
    uint32_t area;
    if (find_own(kv, first_area, n_areas, page, &area)) {
        vq_store_give(&kv->store, area, page);
        return;
    }
    pthread_mutex_lock(&kv->family->lock);
    let_go(kv->family, first_area, n_areas, page);
    pthread_mutex_unlock(&kv->family->lock);
}

void vq_kv_page_give(vq_kv *kv, const vq_kv_layer *l, vq_kv_page *page)
{
    give(kv, l->first_area, kv->n_kv_heads, page->bytes);
    if (page->offsets)
        give(kv, kv->offset_area, 1, page->offsets);
    *page = (vq_kv_page){0};
}

bool vq_kv_page_is_own(const vq_kv *kv, const vq_kv_layer *l, const vq_kv_page *page)
{
    uint32_t area;
    return !kv->family || find_own(kv, l->first_area, kv->n_kv_heads, page->bytes, &area);
}

vq_status vq_kv_page_make_own(vq_kv *kv, const vq_kv_layer *l, uint32_t head, vq_kv_page *page, vq_error *err)
{
    if (vq_kv_page_is_own(kv, l, page))
        return VQ_OK;
    unsigned char *bytes = vq_store_take(&kv->store, l->first_area + head, err);
    if (!bytes)
        return VQ_ERR_NOMEM;
    memcpy(bytes, page->bytes, l->heads[head].page_bytes);
    give(kv, l->first_area, kv->n_kv_heads, page->bytes);
    page->bytes = bytes;
    return VQ_OK;
}

void vq_kv_let_go(vq_kv *kv)
{
    if (kv->family)
        for (uint32_t i = 0; i < kv->n_layers; i++)
            for (uint32_t h = 0; h < kv->n_kv_heads; h++)
                for (uint32_t p = 0; p < kv->layers[i].heads[h].n_pages; p++)
                    vq_kv_page_give(kv, &kv->layers[i], &kv->layers[i].heads[h].pages[p]);
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            kv->layers[i].heads[h].n_pages = 0;
    vq_store_give_all(&kv->store);
}

/* ---- families ---- */

static vq_kv_family *open_family(vq_kv *kv)
{
    vq_kv_family *f = vq_store_map(family_bytes());
    if (!f)
        return NULL;
    pthread_mutex_init(&f->lock, NULL);
    f->users[f->n_users++] = kv;
    return f;
}

static void close_family(vq_kv_family *f)
{
    for (vq_kv_base *b = f->bases, *next; b; b = next) {
        next = b->next;
        close_base(b);
    }
    pthread_mutex_destroy(&f->lock);
    vq_store_unmap(f, family_bytes());
}

void vq_kv_leave_family(vq_kv *kv)
{
    vq_kv_family *f = kv->family;
    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    uint32_t at = 0;
    while (f->users[at] != kv)
        at++;
    f->n_users--;
    memmove(f->users + at, f->users + at + 1, (f->n_users - at) * sizeof f->users[0]);
    const bool last = f->n_users == 0;
    pthread_mutex_unlock(&f->lock);
    kv->family = NULL;
    if (last)
        close_family(f);
}

/* ---- fork ---- */

/* Everything but pages: where rows are, and those that are held exactly. */
static void copy_head(const vq_kv *from, const vq_kv_layer *l, uint32_t head, vq_kv_head *to)
{
    const vq_kv_head *h = &l->heads[head];
    const size_t k = from->d_k * from->exact_bytes, v = from->d_v * from->exact_bytes;
    const uint32_t n_sinks = l->n_rows < l->sinks ? l->n_rows : l->sinks;
    const uint32_t n_exact = l->n_settled > l->exact_first ? l->n_settled - l->exact_first : 0;
    memcpy(to->sink_k, h->sink_k, n_sinks * k);
    memcpy(to->sink_v, h->sink_v, n_sinks * v);
    memcpy(to->exact_k, h->exact_k, n_exact * k);
    memcpy(to->exact_v, h->exact_v, n_exact * v);
    memcpy(to->sink_live, h->sink_live, (l->sinks / 64 + 1) * sizeof *h->sink_live);
    memcpy(to->exact_live, h->exact_live, (l->exact_room / 64 + 1) * sizeof *h->exact_live);
    memcpy(to->pages, h->pages, h->n_pages * sizeof *h->pages);
    to->n_pages = h->n_pages;
    to->first_index = h->first_index;
}

static void copy_rows(const vq_kv *from, vq_kv *to)
{
    for (uint32_t i = 0; i < from->n_layers; i++) {
        vq_kv_head *heads = to->layers[i].heads;
        to->layers[i] = from->layers[i];
        to->layers[i].heads = heads;
        for (uint32_t h = 0; h < from->n_kv_heads; h++)
            copy_head(from, &from->layers[i], h, &heads[h]);
    }
    to->pending = from->pending;
    if (from->pending == VQ_NO_LAYER)
        return;
    const vq_kv_layer *l = &from->layers[from->pending];
    const size_t n = l->n_rows - l->n_settled, k = from->d_k * from->exact_bytes, v = from->d_v * from->exact_bytes;
    for (uint32_t h = 0; h < from->n_kv_heads; h++) {
        memcpy(to->stage_k + h * from->n_batch * k, from->stage_k + h * from->n_batch * k, n * k);
        memcpy(to->stage_v + h * from->n_batch * v, from->stage_v + h * from->n_batch * v, n * v);
    }
}

static void hold_pages(const vq_kv *kv)
{
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++)
            for (uint32_t p = 0; p < kv->layers[i].heads[h].n_pages; p++) {
                const vq_kv_page *page = &kv->layers[i].heads[h].pages[p];
                hold(kv->family, kv->layers[i].first_area, kv->n_kv_heads, page->bytes);
                if (page->offsets)
                    hold(kv->family, kv->offset_area, 1, page->offsets);
            }
}

vq_status vq_kv_fork(vq_kv *kv, vq_kv **out, vq_error *err)
{
    *out = NULL;
    vq_kv_family *f = kv->family;
    if (f) {
        pthread_mutex_lock(&f->lock);
        const uint32_t n = f->n_users;
        pthread_mutex_unlock(&f->lock);
        if (n == MOST_FORKS)
            return vq_fail(err, VQ_ERR_FULL, "%u forks of one cache are open, at most %d", n, MOST_FORKS);
    }
    vq_kv *fork;
    VQ_TRY(vq_kv_open_like(&fork, kv, err));
    if (fork->calibration_hash != kv->calibration_hash) {
        vq_kv_close(fork);
        return vq_fail(err, VQ_ERR_MISMATCH, "a calibration that a method names is not the one that the cache opened");
    }
    vq_kv_base *base = NULL;
    vq_store fresh = {0};
    vq_status status = VQ_OK;
    const bool has_pages = !is_empty(&kv->store);
    if (!f && !(f = open_family(kv)))
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory for a fork");
    if (status == VQ_OK && has_pages && !(base = open_base(kv->store.areas, kv->store.n_areas, 0)))
        status = vq_fail(err, VQ_ERR_NOMEM, "no memory to count who holds a page");
    if (status == VQ_OK && has_pages)
        status = vq_store_open_like(&fresh, &kv->store, err);
    if (status != VQ_OK) {
        vq_store_close(&fresh);
        if (base)
            vq_store_unmap(base, base->n_bytes);
        if (f && f != kv->family)
            close_family(f);
        vq_kv_close(fork);
        return status;
    }

    pthread_mutex_lock(&f->lock);
    if (has_pages) {
        fill_base(base, &kv->store);
        base->next = f->bases;
        f->bases = base;
        kv->store = fresh;
    }
    copy_rows(kv, fork);
    if (kv->evict)
        vq_evictor_copy(kv, fork);
    kv->family = fork->family = f;
    hold_pages(fork);
    f->users[f->n_users++] = fork;
    pthread_mutex_unlock(&f->lock);
    *out = fork;
    return VQ_OK;
}

/* ---- files ---- */

vq_status vq_kv_open_file_base(vq_kv_base **out, vq_kv *kv, const uint32_t *n_pages, vq_error *err)
{
    const uint32_t n_areas = kv->n_layers * kv->n_kv_heads;
    const size_t n_bytes = (n_areas + 1) * sizeof(vq_store_area);
    *out = NULL;
    vq_store_area *areas = calloc(n_areas + 1, sizeof *areas); /* the last one: offsets, of which files hold none */
    for (uint32_t i = 0; areas && i < n_areas; i++) {
        areas[i].page_bytes = kv->layers[i / kv->n_kv_heads].heads[i % kv->n_kv_heads].page_bytes;
        areas[i].n_pages = n_pages[i];
    }
    vq_kv_base *base = areas ? open_base(areas, n_areas + 1, n_bytes) : NULL;
    if (base && !kv->family && !(kv->family = open_family(kv))) {
        vq_store_unmap(base, base->n_bytes);
        base = NULL;
    }
    if (base) {
        base->store.areas = (vq_store_area *)(void *)&base->holders[n_areas + 1];
        base->store.n_areas = n_areas + 1;
        memcpy(base->store.areas, areas, n_bytes);
    }
    free(areas);
    *out = base;
    return base ? VQ_OK : vq_fail(err, VQ_ERR_NOMEM, "no memory for a table of pages");
}

void vq_kv_add_file_base(vq_kv *kv, vq_kv_base *base, vq_file_map *map)
{
    for (uint32_t i = 0; i < kv->n_layers * kv->n_kv_heads; i++) {
        vq_store_area *a = &base->store.areas[i];
        if (a->n_pages == 0)
            continue;
        a->base = kv->layers[i / kv->n_kv_heads].heads[i % kv->n_kv_heads].pages[0].bytes; /* the others follow */
        memset(base->holders[i], 1, a->n_pages);
        base->n_held += a->n_pages;
    }
    base->map = *map;
    *map = (vq_file_map){0};
    pthread_mutex_lock(&kv->family->lock);
    base->next = kv->family->bases;
    kv->family->bases = base;
    pthread_mutex_unlock(&kv->family->lock);
}

/* ---- what is shared, for measuring ---- */

static uint32_t n_held(const vq_kv_base *base, uint32_t area)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < base->store.areas[area].n_pages; i++)
        n += base->holders[area][i] > 0;
    return n;
}

static void measure_base(const vq_kv *kv, const vq_kv_base *base, vq_kv_bytes *out)
{
    for (uint32_t i = 0; i < kv->n_layers; i++)
        for (uint32_t h = 0; h < kv->n_kv_heads; h++) {
            const vq_page_bytes *split = &kv->layers[i].heads[h].split;
            const uint64_t n = n_held(base, kv->layers[i].first_area + h);
            out->codes += n * split->codes;
            out->scales += n * split->scales;
            out->mapped += is_file(base) ? n * (split->codes + split->scales) : 0;
        }
    out->table += n_held(base, kv->offset_area) * VQ_PAGE_ROWS * sizeof(uint16_t);
}

bool vq_kv_measure_shared(const vq_kv *kv, vq_kv_bytes *out, uint64_t *n_mapped)
{
    vq_kv_family *f = kv->family;
    if (!f)
        return false;
    pthread_mutex_lock(&f->lock);
    const bool is_oldest = f->users[0] == kv;
    if (is_oldest) {
        *n_mapped += family_bytes();
        out->table += family_bytes();
        for (const vq_kv_base *b = f->bases; b; b = b->next) {
            *n_mapped += b->n_bytes + b->store.n_mapped;
            measure_base(kv, b, out);
        }
        *n_mapped += out->mapped;
    }
    pthread_mutex_unlock(&f->lock);
    return is_oldest;
}

size_t vq_kv_shared_mappings(const vq_kv *kv, const void **starts, size_t *n_bytes, size_t most)
{
    vq_kv_family *f = kv->family;
    size_t n = 0;
    if (!f)
        return 0;
    pthread_mutex_lock(&f->lock);
    if (f->users[0] == kv) {
        if (n++ < most) {
            starts[0] = f;
            n_bytes[0] = family_bytes();
        }
        for (const vq_kv_base *b = f->bases; b; b = b->next) {
            if (n < most) {
                starts[n] = b;
                n_bytes[n] = b->n_bytes;
            }
            n++;
            const size_t skip = n < most ? n : most;
            if (!is_file(b))
                n += vq_store_mappings(&b->store, starts + skip, n_bytes + skip, most - skip);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return n;
}

size_t vq_kv_files(const vq_kv *kv, const void **starts, size_t *n_bytes, size_t most)
{
    vq_kv_family *f = kv->family;
    size_t n = 0;
    if (!f)
        return 0;
    pthread_mutex_lock(&f->lock);
    for (const vq_kv_base *b = f->bases; b; b = b->next) {
        if (!is_file(b))
            continue;
        if (n < most) {
            starts[n] = b->map.bytes;
            n_bytes[n] = b->map.n_bytes;
        }
        n++;
    }
    pthread_mutex_unlock(&f->lock);
    return n;
}
