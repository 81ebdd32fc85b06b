#include "kv/store.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

/* Chunks are listed beside their memory, so that pages fill them without a rest. */
struct vq_store_chunk {
    vq_store_chunk *next; /* block of the list */
    uint32_t n;
    struct {
        unsigned char *start;
        size_t n_bytes;
    } at[];
};

/* A new chunk is 1/64 of what is mapped, so that what is not in use stays below 2 %, and holds whole pages.  From
 * HUGE_FROM on chunks are huge pages of the system's: attention reads pages far apart, and with small ones a fifth of
 * its time goes into address translation. */
enum {
    CHUNK_LEAST = 64 << 10,
    CHUNK_SHARE = 64,
    WHOLE_MOST = 256 << 10,
    HUGE_BYTES = 2 << 20,
    HUGE_FROM = 32 << 20,

    LIST_BYTES = 4096
};
enum { LIST_ROOM = (LIST_BYTES - sizeof(vq_store_chunk)) / (2 * sizeof(void *)) };

void *vq_store_map(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

void vq_store_unmap(void *start, size_t n_bytes)
{
    if (start)
        munmap(start, n_bytes);
}

/* n_bytes, a multiple of HUGE_BYTES, that begin at one. */
static unsigned char *map_huge(size_t n_bytes)
{
    unsigned char *p = vq_store_map(n_bytes + HUGE_BYTES);
    if (!p)
        return NULL;
    const size_t before = (size_t)(-(uintptr_t)p % HUGE_BYTES);
    if (before)
        munmap(p, before);
    if (before < HUGE_BYTES)
        munmap(p + before + n_bytes, HUGE_BYTES - before);
#if defined(MADV_HUGEPAGE)
    madvise(p + before, n_bytes, MADV_HUGEPAGE); /* a wish: without it all works, slower */
#endif
    return p + before;
}

static size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

/* Bytes of a chunk of at least `least` that pages of n_bytes fill without a rest, or with one of less than a page of
 * the system's where that would take too many of them. */
static size_t chunk_bytes(size_t least, size_t n_bytes)
{
    const size_t system_page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = n_bytes;
    while (whole % system_page && whole <= WHOLE_MOST)
        whole *= 2; /* n_bytes is a multiple of 64: 6 times for pages of 4 KiB */
    const size_t step = whole % system_page ? n_bytes : whole;
    return round_up(round_up(least, step), system_page);
}

static vq_status grow(vq_store *store, vq_store_class *c, vq_error *err)
{
    if (!store->chunks || store->chunks->n == LIST_ROOM) {
        vq_store_chunk *list = vq_store_map(LIST_BYTES);
        if (!list)
            return vq_fail(err, VQ_ERR_NOMEM, "no memory for a list of chunks");
        list->next = store->chunks;
        store->chunks = list;
        store->n_mapped += LIST_BYTES;
    }
    const bool huge = store->n_mapped >= HUGE_FROM;
    size_t n = (size_t)(store->n_mapped / CHUNK_SHARE);
    n = huge ? round_up(c->n_bytes, HUGE_BYTES) : chunk_bytes(n > CHUNK_LEAST ? n : CHUNK_LEAST, c->n_bytes);
    unsigned char *chunk = huge ? map_huge(n) : vq_store_map(n);
    if (!chunk)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu bytes more of pages after %llu", n,
                       (unsigned long long)store->n_mapped);
    vq_store_chunk *list = store->chunks;
    list->at[list->n].start = chunk;
    list->at[list->n++].n_bytes = n;
    c->at = chunk;
    c->end = chunk + n;
    store->n_mapped += n;
    return VQ_OK;
}

void *vq_store_take(vq_store *store, uint32_t page_class, vq_error *err)
{
    vq_store_class *c = &store->classes[page_class];
    if (c->free) {
        void *page = c->free;
        c->free = *(void **)page;
        return page;
    }
    if ((!c->at || (size_t)(c->end - c->at) < c->n_bytes) && grow(store, c, err) != VQ_OK)
        return NULL;
    void *page = c->at;
    c->at += c->n_bytes;
    return page;
}

void vq_store_give(vq_store *store, uint32_t page_class, void *page)
{
    vq_store_class *c = &store->classes[page_class];
    *(void **)page = c->free;
    c->free = page;
}

void vq_store_release(vq_store *store)
{
    for (vq_store_chunk *c = store->chunks, *next; c; c = next) {
        next = c->next;
        for (uint32_t i = 0; i < c->n; i++)
            vq_store_unmap(c->at[i].start, c->at[i].n_bytes);
        vq_store_unmap(c, LIST_BYTES);
    }
    store->chunks = NULL;
    store->n_mapped = 0;
    for (uint32_t i = 0; i < store->n_classes; i++)
        store->classes[i] = (vq_store_class){.n_bytes = store->classes[i].n_bytes};
}

static void list_one(const void *start, size_t bytes, const void **starts, size_t *n_bytes, size_t at, size_t most)
{
    if (at < most) {
        starts[at] = start;
        n_bytes[at] = bytes;
    }
}

size_t vq_store_mappings(const vq_store *store, const void **starts, size_t *n_bytes, size_t most)
{
    size_t n = 0;
    for (const vq_store_chunk *c = store->chunks; c; c = c->next) {
        list_one(c, LIST_BYTES, starts, n_bytes, n++, most);
        for (uint32_t i = 0; i < c->n; i++)
            list_one(c->at[i].start, c->at[i].n_bytes, starts, n_bytes, n++, most);
    }
    return n;
}
