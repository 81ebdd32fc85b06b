#include "kv/store.h"

#include <assert.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"

static size_t system_page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

void *vq_store_map(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void *vq_store_map_sparse(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

size_t vq_store_resident(const void *start, size_t n_bytes)
{
    const size_t unit = system_page();
    unsigned char in[1024];
    size_t n = 0;
    for (size_t at = 0; at < n_bytes; at += sizeof in * unit) {
        const size_t left = n_bytes - at, some = left < sizeof in * unit ? left : sizeof in * unit;
        if (mincore((unsigned char *)(uintptr_t)start + at, some, in) != 0)
            return n_bytes; /* all that it can be */
        for (size_t i = 0; i < (some + unit - 1) / unit; i++)
            n += in[i] & 1;
    }
    return n * unit;
}

void vq_store_wipe(void *start, size_t n_bytes) { madvise(start, n_bytes, MADV_DONTNEED); }

void vq_store_unmap(void *start, size_t n_bytes)
{
    if (start)
        munmap(start, n_bytes);
}

vq_status vq_store_open(vq_store *store, uint32_t n_areas, vq_error *err)
{
    *store = (vq_store){.n_areas = n_areas};
    store->n_area_bytes = round_up(n_areas * sizeof *store->areas, system_page());
    store->areas = vq_store_map(store->n_area_bytes);
    if (!store->areas)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a table of %u heads", n_areas);
    store->n_mapped = store->n_area_bytes;
    return VQ_OK;
}

static size_t n_words(const vq_store_area *a) { return ((size_t)a->n_pages + 63) / 64; }

vq_status vq_store_reserve(vq_store *store, vq_error *err)
{
    const size_t unit = system_page();
    size_t n_bits = 0, n_reserved = 0;
    for (uint32_t i = 0; i < store->n_areas; i++) {
        size_t n;
        if (!vq_mul_size(store->areas[i].page_bytes, store->areas[i].n_pages, &n) || !vq_add_size(n, unit, &n) ||
            !vq_add_size(n_reserved, round_up(n - unit, unit), &n_reserved))
            return vq_fail(err, VQ_ERR_NOMEM, "the pages of the cache do not fit into an address space");
        n_bits += n_words(&store->areas[i]) * sizeof(uint64_t);
    }
    store->n_bit_bytes = round_up(n_bits, unit);
    store->bits = vq_store_map(store->n_bit_bytes);
    if (!store->bits)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for a table of %zu bytes", store->n_bit_bytes);
    store->n_mapped += store->n_bit_bytes;
    void *base = vq_store_map_sparse(n_reserved);
    if (!base)
        return vq_fail(err, VQ_ERR_NOMEM, "the system refuses %zu bytes of addresses for pages", n_reserved);
    store->base = base;
    store->n_reserved = n_reserved;

    uint64_t *bits = store->bits;
    unsigned char *at = store->base;
    for (uint32_t i = 0; i < store->n_areas; i++) {
        vq_store_area *a = &store->areas[i];
        a->taken = bits;
        a->base = at;
        bits += n_words(a);
        at += round_up(a->page_bytes * a->n_pages, unit);
    }
    return VQ_OK;
}

vq_status vq_store_open_like(vq_store *store, const vq_store *model, vq_error *err)
{
    VQ_TRY(vq_store_open(store, model->n_areas, err));
    for (uint32_t i = 0; i < store->n_areas; i++) {
        store->areas[i].page_bytes = model->areas[i].page_bytes;
        store->areas[i].n_pages = model->areas[i].n_pages;
    }
    return vq_store_reserve(store, err);
}

void vq_store_close(vq_store *store)
{
    vq_store_unmap(store->base, store->n_reserved);
    vq_store_unmap(store->bits, store->n_bit_bytes);
    vq_store_unmap(store->areas, store->n_area_bytes);
    *store = (vq_store){0};
}

static bool is_taken(const vq_store_area *a, size_t page) { return a->taken[page / 64] >> page % 64 & 1; }

/* Whether a page that was taken has bytes in the area's unit-th page of the system's. */
static bool in_use(const vq_store_area *a, size_t unit, size_t unit_bytes)
{
    const size_t first = unit * unit_bytes / a->page_bytes, last = ((unit + 1) * unit_bytes - 1) / a->page_bytes;
    for (size_t i = first; i <= last && i < a->n_pages; i++)
        if (is_taken(a, i))
            return true;
    return false;
}

/* The system's pages [*first, *end) that have bytes of a page, but of no other that was taken. */
static void own_units(const vq_store_area *a, size_t page, size_t unit_bytes, size_t *first, size_t *end)
{
    *first = page * a->page_bytes / unit_bytes;
    *end = ((page + 1) * a->page_bytes + unit_bytes - 1) / unit_bytes;
    if (in_use(a, *first, unit_bytes))
        ++*first;
    if (*first < *end && in_use(a, *end - 1, unit_bytes))
        --*end;
}

void *vq_store_take(vq_store *store, uint32_t area, vq_error *err)
{
    vq_store_area *a = &store->areas[area];
    size_t word = a->low / 64;
    while (word < n_words(a) && a->taken[word] == UINT64_MAX)
        word++;
    const size_t page = word * 64 + (word < n_words(a) ? (size_t)__builtin_ctzll(~a->taken[word]) : 0);
    if (page >= a->n_pages) {
        vq_fail(err, VQ_ERR_FULL, "area %u of the cache has room for %u pages", area, a->n_pages);
        return NULL;
    }
    const size_t unit = system_page();
    size_t first, end;
    own_units(a, page, unit, &first, &end);
    store->n_mapped += (end - first) * unit;
    a->taken[word] |= (uint64_t)1 << page % 64;
    a->low = (uint32_t)page + 1;
    return a->base + page * a->page_bytes;
}

bool vq_store_has(const vq_store *store, uint32_t area, const void *page)
{
    const vq_store_area *a = &store->areas[area];
    const uintptr_t at = (uintptr_t)page - (uintptr_t)a->base;
    return at < a->page_bytes * a->n_pages;
}

void vq_store_give(vq_store *store, uint32_t area, void *page)
{
    vq_store_area *a = &store->areas[area];
    const size_t index = (size_t)((unsigned char *)page - a->base) / a->page_bytes, unit = system_page();
    assert(index < a->n_pages && is_taken(a, index));
    a->taken[index / 64] &= ~((uint64_t)1 << index % 64);
    if (index < a->low)
        a->low = (uint32_t)index;
    size_t first, end;
    own_units(a, index, unit, &first, &end);
    if (first == end)
        return;
    madvise(a->base + first * unit, (end - first) * unit, MADV_DONTNEED);
    store->n_mapped -= (end - first) * unit;
}

void vq_store_give_all(vq_store *store)
{
    madvise(store->base, store->n_reserved, MADV_DONTNEED);
    memset(store->bits, 0, store->n_bit_bytes);
    for (uint32_t i = 0; i < store->n_areas; i++)
        store->areas[i].low = 0;
    store->n_mapped = store->n_area_bytes + store->n_bit_bytes;
}

size_t vq_store_mappings(const vq_store *store, const void **starts, size_t *n_bytes, size_t most)
{
    const size_t unit = system_page();
    const void *tables[2] = {store->areas, store->bits};
    const size_t table_bytes[2] = {store->n_area_bytes, store->n_bit_bytes};
    size_t n = 0;
    for (; n < 2 && n < most; n++) {
        starts[n] = tables[n];
        n_bytes[n] = table_bytes[n];
    }
    n = 2;
    for (uint32_t i = 0; i < store->n_areas; i++) {
        const vq_store_area *a = &store->areas[i];
        const size_t end = round_up(a->page_bytes * a->n_pages, unit) / unit;
        for (size_t u = 0, first; u < end; u++) {
            for (first = u; u < end && in_use(a, u, unit); u++)
                ;
            if (u == first)
                continue;
            if (n < most) {
                starts[n] = a->base + first * unit;
                n_bytes[n] = (u - first) * unit;
            }
            n++;
        }
    }
    return n;
}
