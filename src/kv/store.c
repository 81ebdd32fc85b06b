#include "kv/store.h"

#include <sys/mman.h>

struct vq_store_chunk {
    vq_store_chunk *next;
    size_t n_bytes; /* of the mapping, this header included */
};

/* A new chunk is 1/64 of what is mapped, so that what is not in use stays below 2 %. */
enum { CHUNK_LEAST = 64 << 10, CHUNK_MOST = 4 << 20, CHUNK_SHARE = 64, HEADER_BYTES = 64 };

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

static vq_status grow(vq_store *store, size_t page_bytes, vq_error *err)
{
    size_t n = (size_t)(store->n_mapped / CHUNK_SHARE);
    n = n < CHUNK_LEAST ? CHUNK_LEAST : n > CHUNK_MOST ? CHUNK_MOST : n;
    if (n < page_bytes + HEADER_BYTES)
        n = page_bytes + HEADER_BYTES;
    n = (n + CHUNK_LEAST - 1) / CHUNK_LEAST * CHUNK_LEAST;
    vq_store_chunk *chunk = vq_store_map(n);
    if (!chunk)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %zu bytes more of pages after %llu", n,
                       (unsigned long long)store->n_mapped);
    *chunk = (vq_store_chunk){.next = store->chunks, .n_bytes = n};
    store->chunks = chunk;
    store->at = (unsigned char *)chunk + HEADER_BYTES;
    store->end = (unsigned char *)chunk + n;
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
    if ((!store->at || (size_t)(store->end - store->at) < c->n_bytes) && grow(store, c->n_bytes, err) != VQ_OK)
        return NULL;
    void *page = store->at;
    store->at += c->n_bytes;
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
        vq_store_unmap(c, c->n_bytes);
    }
    store->chunks = NULL;
    store->at = store->end = NULL;
    store->n_mapped = 0;
    for (uint32_t i = 0; i < store->n_classes; i++)
        store->classes[i].free = NULL;
}

size_t vq_store_mappings(const vq_store *store, const void **starts, size_t *n_bytes, size_t most)
{
    size_t n = 0;
    for (const vq_store_chunk *c = store->chunks; c; c = c->next, n++)
        if (n < most) {
            starts[n] = c;
            n_bytes[n] = c->n_bytes;
        }
    return n;
}
