/* What is inside a cache.
 *
 * Rows of a layer are counted from 0 in the order in which they came; row r stands at position first_pos + r.
 *
 *     0 .. S            sinks, exact
 *     S .. coded_end    pages: page p holds rows S + 64 p ..; those below first_page have left the window
 *     coded_end .. n    exact
 *
 * The rows of the newest append (`pending`) wait in a stage that all layers share, because a chunk's first queries
 * still read exactly what its last ones read as codes.  The next change settles them: rows that are not codes by then
 * move into the exact rows of their head, the others are gone. */
#ifndef VQ_KV_INNER_H
#define VQ_KV_INNER_H

#include "base/arena.h"
#include "kv/codec_generic.h"
#include "kv/store.h"
#include "veloxquant/kv.h"

enum { VQ_SEGMENT_PAGES = 16, VQ_TILE_QUERIES = 96, VQ_NO_LAYER = UINT32_MAX };

typedef struct vq_kv_page {
    unsigned char *bytes; /* keys, then values at value_at */
    uint64_t live;        /* bit i: row i holds codes and counts */
} vq_kv_page;

typedef struct vq_kv_head {
    vq_side k, v;
    vq_kv_page *pages;                /* [page_room], a ring: page p is at p % page_room */
    unsigned char *sink_k, *sink_v;   /* [S][d], exact */
    unsigned char *exact_k, *exact_v; /* [exact_room][d]: rows from exact_first on */
} vq_kv_head;

typedef struct vq_kv_layer {
    vq_method keys, values;
    uint32_t window;                   /* 0: none */
    uint32_t sinks, residual, granule; /* S, R, G */
    uint32_t exact_room, page_room;
    size_t value_at, page_bytes;
    vq_page_bytes split; /* of keys and values together; page_bytes has padding on top */
    uint32_t page_class;
    uint32_t first_pos;
    uint32_t n_rows;
    uint32_t n_settled;              /* rows before the pending ones */
    uint32_t exact_first;            /* coded_end when last settled */
    uint32_t coded_end, coded_floor; /* after a truncation codes below the floor stay codes */
    uint32_t first_page;
    vq_kv_head *heads; /* [n_kv_heads] */
} vq_kv_layer;

/* What one thread works with; sizes for VQ_TILE_QUERIES queries, or one token's group if that is more. */
typedef struct vq_kv_scratch {
    float *rows;                 /* [granule][d], of encode and decode */
    float *q;                    /* [queries][d_k], scaled */
    unsigned char *prepared;     /* [queries][query_bytes] */
    float *scores;               /* [queries][VQ_PAGE_ROWS] */
    float *coded, *plain, *part; /* [queries][acc_most]: sums over pages, over exact rows, of a segment */
    float *max, *sum, *part_max, *part_sum, *rescale; /* [queries] */
    uint64_t *live;                                   /* [queries] */
} vq_kv_scratch;

struct vq_kv {
    vq_kernels kernels;
    vq_pool *pool;
    uint32_t n_threads;
    uint32_t n_layers, n_heads, n_kv_heads, group, d_k, d_v, n_ctx, n_batch;
    float scale, rope_base;
    vq_kv_exact exact;
    size_t exact_bytes; /* of a value */
    uint64_t seed, model_hash;
    vq_kv_layer *layers; /* [n_layers] */
    vq_store store;
    void *rows_block;                    /* page tables, exact rows and scratch: one mapping */
    size_t n_rows_bytes, n_struct_bytes; /* of that mapping and of the one that begins with this struct */
    size_t n_shared;                     /* codecs' own */

    uint32_t pending;                 /* layer of the newest append, or VQ_NO_LAYER */
    unsigned char *stage_k, *stage_v; /* [n_kv_heads][n_batch][d], exact: rows from n_settled on */

    uint32_t tile_tokens, tile_most; /* most tokens in a tile, and queries (tokens x group) */
    size_t query_most, acc_most;     /* bytes of a prepared query; floats of an accumulator */
    vq_kv_scratch *scratch;          /* [n_threads] */
    uint32_t *tiles;                 /* [n_batch + 1]: first query of each tile */
    /* Partial results of segments that several threads share: [part_room]. */
    size_t part_room;
    float *part_acc, *part_max, *part_sum;
    float *token_q;                /* [n_heads][d_k], scaled queries of a token that threads share */
    unsigned char *token_prepared; /* [n_heads][query_most] */
};

/* Rows [0, coded_end(n)) but the sinks are codes for a query after whose append the layer holds n rows. */
static inline uint32_t vq_kv_coded_end(const vq_kv_layer *l, uint32_t n)
{
    uint32_t end = l->sinks;
    if (n > l->sinks + l->residual)
        end += (n - l->sinks - l->residual) / l->granule * l->granule;
    return end > l->coded_floor ? end : l->coded_floor;
}

/* Pages [first_page, end_page) are there when the codes end at row `end`. */
static inline uint32_t vq_kv_end_page(const vq_kv_layer *l, uint32_t end)
{
    return (end - l->sinks + VQ_PAGE_ROWS - 1) / VQ_PAGE_ROWS;
}

/* The first page that a query from n_rows on can see or that is still being filled; those before it can go. */
static inline uint32_t vq_kv_first_seen_page(const vq_kv_layer *l)
{
    if (!l->window || l->n_rows < l->window)
        return 0;
    /* Query n sees rows above n - window. */
    const uint32_t unseen = (l->n_rows + 1 - l->window) / VQ_PAGE_ROWS, full = l->coded_end / VQ_PAGE_ROWS;
    return unseen < full ? unseen : full;
}

static inline vq_kv_page *vq_kv_page_at(const vq_kv_layer *l, const vq_kv_head *h, uint32_t page)
{
    return &h->pages[page % l->page_room];
}

/* The exact rows of a head are in up to two pieces: settled ones and pending ones.  The piece that holds row `first`
 * (at or after exact_first, below n_rows) and how many rows follow in it, itself included. */
const unsigned char *vq_kv_exact_rows(const vq_kv *kv, const vq_kv_layer *l, uint32_t head, bool keys, uint32_t first,
                                      uint32_t *n);

void vq_kv_exact_from_f32(const vq_kv *kv, void *out, const float *x, size_t n);
void vq_kv_exact_to_f32(const vq_kv *kv, float *out, const void *x, size_t n);

#endif
