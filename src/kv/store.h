/* Where the bytes of a cache come from: one fixed block and chunks of pages, each a mapping of its own, so that
 * resident memory follows use and can be seen from outside.  Given-back pages wait in a list by size. */
#ifndef VQ_KV_STORE_H
#define VQ_KV_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct vq_store_chunk vq_store_chunk;

typedef struct vq_store_class {
    size_t n_bytes;          /* of a page; a multiple of 64 */
    void *free;              /* each free page begins with the address of the next */
    unsigned char *at, *end; /* rest of the newest chunk */
} vq_store_class;

typedef struct vq_store {
    vq_store_chunk *chunks;
    uint64_t n_mapped;       /* bytes of all chunks and of their list */
    vq_store_class *classes; /* [n_classes], the owner's */
    uint32_t n_classes;
} vq_store;

/* Zeroed pages from the system; NULL when there are none. */
void *vq_store_map(size_t n_bytes);
void vq_store_unmap(void *start, size_t n_bytes);

void *vq_store_take(vq_store *store, uint32_t page_class, vq_error *err); /* NULL: VQ_ERR_NOMEM; not zeroed */
void vq_store_give(vq_store *store, uint32_t page_class, void *page);
void vq_store_release(vq_store *store); /* all chunks, whoever holds pages */
size_t vq_store_mappings(const vq_store *store, const void **starts, size_t *n_bytes, size_t most);

#endif
