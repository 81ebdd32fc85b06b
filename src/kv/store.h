/* Where the pages of a cache lie.
 *
 * Each (layer, kv head) has an area: a stretch of reserved addresses with room for all pages that it can ever hold,
 * which lie in it one after the other.  A processor that reads through a head then sees the next page coming, and few
 * translations of addresses cover it: scores of scattered pages took up to twice as long.  Reserved addresses cost
 * nothing; a page of the system's is there from the moment that one of its bytes belongs to a page that was taken, and
 * goes back when none does, so resident memory follows use and can be seen from outside. */
#ifndef VQ_KV_STORE_H
#define VQ_KV_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct vq_store_area {
    size_t page_bytes; /* set by the owner: of a page, a multiple of 64 */
    uint32_t n_pages;  /* set by the owner: room */
    uint32_t low;      /* pages below are taken */
    unsigned char *base;
    uint64_t *taken; /* bit i: page i */
} vq_store_area;

typedef struct vq_store {
    vq_store_area *areas; /* [n_areas] */
    uint32_t n_areas;
    uint64_t n_mapped; /* bytes that the system gave: tables, and the system's pages that are in use */
    size_t n_area_bytes, n_bit_bytes, n_reserved;
    void *bits;          /* of all areas */
    unsigned char *base; /* of the reservation */
} vq_store;

/* Zeroed memory from the system; NULL when there is none. */
void *vq_store_map(size_t n_bytes);
/* The same of which not all may ever be used: only what was touched counts (vq_store_resident), until it is wiped. */
void *vq_store_map_sparse(size_t n_bytes);
size_t vq_store_resident(const void *start, size_t n_bytes);
void vq_store_wipe(void *start, size_t n_bytes);
void vq_store_unmap(void *start, size_t n_bytes);

/* Opening has two steps: after the first the owner sets page_bytes and n_pages of every area.  A store that is all
 * zeros, or that failed to open, may be closed. */
vq_status vq_store_open(vq_store *store, uint32_t n_areas, vq_error *err);
vq_status vq_store_reserve(vq_store *store, vq_error *err);
/* An empty one of the same shape. */
vq_status vq_store_open_like(vq_store *store, const vq_store *model, vq_error *err);
void vq_store_close(vq_store *store);

/* The lowest free page of an area; its bytes are anything.  NULL, VQ_ERR_FULL: no room. */
void *vq_store_take(vq_store *store, uint32_t area, vq_error *err);
bool vq_store_has(const vq_store *store, uint32_t area, const void *page);
void vq_store_give(vq_store *store, uint32_t area, void *page);
void vq_store_give_all(vq_store *store);

/* The ranges that n_mapped counts; returns how many there are. */
size_t vq_store_mappings(const vq_store *store, const void **starts, size_t *n_bytes, size_t most);

#endif
