/* What is inside a cache.
 *
 * Rows of a layer are counted from 0 in the order in which they came; row r stands at position first_pos + r, for ever.
 *
 *     0 .. S            sinks, exact
 *     S .. coded_end    codes, in the pages of each head
 *     coded_end .. n    exact
 *
 * Rows that were evicted leave a 0 in a mask: of their page, of the sinks, of the exact rows.  A head's pages are a
 * list in ascending order of rows.  A page is filled with consecutive rows; compaction (compact.c) may gather the rows
 * that are left of several pages in one, which then says of each row which one it is.
 *
 * The rows of the newest append (`pending`) wait in a stage that all layers share, because a chunk's first queries
 * still read exactly what its last ones read as codes.  The next change settles them: rows that are not codes by then
 * move into the exact rows of their head, the others are gone. */
#ifndef VQ_KV_INNER_H
#define VQ_KV_INNER_H

#include "base/arena.h"
#include "base/file.h"
#include "kv/codec_generic.h"
#include "kv/store.h"
#include "veloxquant/kv.h"

enum { VQ_SEGMENT_PAGES = 16, VQ_TILE_QUERIES = 96, VQ_NO_LAYER = UINT32_MAX, VQ_MAX_OWN = 4 };

typedef struct vq_kv_page {
    unsigned char *bytes; /* keys, then values at the head's value_at */
    uint64_t live;        /* bit i: row i counts */
    uint16_t *offsets;    /* [VQ_PAGE_ROWS] row i is row first + offsets[i], ascending; NULL: first + i */
    uint32_t first;
    uint8_t n;       /* rows that hold codes */
    bool is_recoded; /* was made from codes that lost something; such rows are not coded again */
} vq_kv_page;

typedef struct vq_kv_head {
    vq_side k, v;
    double k_bits, v_bits; /* option `bits` of each; 0: the codec has none */
    size_t value_at, page_bytes;
    vq_page_bytes split; /* of keys and values together; page_bytes has padding on top */
    vq_kv_page *pages;   /* [page_room] */
    uint32_t n_pages;
    uint32_t first_index;             /* how many pages left the window before pages[0] */
    uint32_t touched;                 /* first page that the append under way writes to */
    unsigned char *sink_k, *sink_v;   /* [S][d], exact */
    unsigned char *exact_k, *exact_v; /* [exact_room][d]: rows from exact_first on */
    uint64_t *sink_live, *exact_live; /* bits of these rows */
} vq_kv_head;

typedef struct vq_kv_layer {
    vq_method keys, values;            /* but for the bits of each head */
    uint32_t window;                   /* 0: none */
    uint32_t sinks, residual, granule; /* S, R, G */
    uint32_t exact_room, page_room;
    uint32_t first_area; /* of the store: one a head */
    uint32_t first_pos;
    uint32_t n_rows;
    uint32_t n_settled;              /* rows before the pending ones */
    uint32_t exact_first;            /* coded_end when last settled */
    uint32_t coded_end, coded_floor; /* after a truncation codes below the floor stay codes */
    uint32_t gone;     /* rows below it have left the window, but for those that share a page with others */
    vq_kv_head *heads; /* [n_kv_heads] */
} vq_kv_layer;

/* What one thread works with; sizes for VQ_TILE_QUERIES queries, or one token's group if that is more. */
typedef struct vq_kv_scratch {
    float *rows, *rows_v;        /* [VQ_PAGE_ROWS][d] each, of encode and decode */
    float *q, *q_sinks;          /* [queries][d_k], scaled; q_sinks: as the sinks see them, when that differs */
    unsigned char *prepared;     /* [queries][query_bytes] */
    float *scores;               /* [VQ_SOFTMAX_BLOCKS][queries][VQ_PAGE_ROWS] */
    float *coded, *plain, *part; /* [queries][acc_most]: sums over pages, over exact rows, of a segment */
    float *max, *sum, *part_max, *part_sum, *rescale; /* [queries] */
    uint64_t *live;                                   /* [VQ_SOFTMAX_BLOCKS][queries] */
    uint32_t *n_best;                                 /* [queries] */
    float *best,
        *least; /* [queries][retrieve_most] heaps of the largest scores; [queries] scores below it don't count */
} vq_kv_scratch;

typedef struct vq_kv_family vq_kv_family; /* kv_fork.c */
typedef struct vq_evictor vq_evictor;

struct vq_kv {
    vq_kernels kernels;
    vq_pool *pool;
    uint32_t n_threads;
    uint32_t n_layers, n_heads, n_kv_heads, group, d_k, d_v, n_ctx, n_batch;
    float scale, rope_base;
    const vq_kv_rope *ropes; /* [n_layers] or NULL */
    vq_kv_exact exact;
    size_t exact_bytes; /* of a value */
    uint64_t seed, model_hash;
    const vq_calibration *calibration; /* the caller's */
    vq_calibration *own[VQ_MAX_OWN];   /* opened because methods name them */
    char *artifact_dir;                /* own; NULL: none */
    uint64_t calibration_hash;         /* of those that codecs use; 0: none */
    vq_kv_layer *layers;               /* [n_layers] */
    vq_store store;
    vq_kv_family *family;                /* caches that share pages with this one; NULL: none */
    void *rows_block;                    /* page tables, exact rows and scratch: one mapping */
    size_t n_rows_bytes, n_struct_bytes; /* of that mapping and of the one that begins with this struct */
    size_t n_shared;                     /* codecs' own */
    uint32_t offset_area;                /* of the store: offsets of pages */

    vq_evictor *evict;  /* NULL: nothing is evicted (kv/evict.h) */
    vq_kv_times *times; /* [n_layers], the caller's; NULL: nothing is timed */

    uint32_t pending;                 /* layer of the newest append, or VQ_NO_LAYER */
    unsigned char *stage_k, *stage_v; /* [n_kv_heads][n_batch][d], exact: rows from n_settled on */

    uint32_t tile_tokens, tile_most; /* most tokens in a tile, and queries (tokens x group) */
    size_t query_most, acc_most;     /* bytes of a prepared query; floats of an accumulator */
    uint32_t retrieve_most;          /* coded rows that a codec lets into a softmax; 0: all */
    vq_kv_scratch *scratch;          /* [n_threads] */
    uint32_t *tiles;                 /* [n_batch + 1]: first query of each tile */
    /* Partial results of segments that several threads share: [part_room]. */
    size_t part_room;
    float *part_acc, *part_max, *part_sum;
    float *token_q, *token_q_sinks; /* [n_heads][d_k], scaled queries of a token that threads share */
    unsigned char *token_prepared;  /* [n_heads][query_most] */
    float *token_least;             /* [n_heads] */
};

/* Rows [0, coded_end(n)) but the sinks are codes for a query after whose append the layer holds n rows. */
static inline uint32_t vq_kv_coded_end(const vq_kv_layer *l, uint32_t n)
{
    uint32_t end = l->sinks;
    if (n > l->sinks + l->residual)
        end += (n - l->sinks - l->residual) / l->granule * l->granule;
    return end > l->coded_floor ? end : l->coded_floor;
}

/* The first row of codes that a query from n_rows on can see or whose page is still being filled, rounded down to where
 * pages begin; those before it can go. */
static inline uint32_t vq_kv_first_seen(const vq_kv_layer *l)
{
    if (!l->window || l->n_rows < l->window)
        return 0;
    /* Query n sees rows above n - window. */
    const uint32_t unseen = (l->n_rows + 1 - l->window) / VQ_PAGE_ROWS, full = l->coded_end / VQ_PAGE_ROWS;
    return (unseen < full ? unseen : full) * VQ_PAGE_ROWS;
}

/* Row i of a page. */
static inline uint32_t vq_kv_page_row(const vq_kv_page *p, uint32_t i)
{
    return p->first + (p->offsets ? p->offsets[i] : i);
}

/* The row after a page's last one. */
static inline uint32_t vq_kv_page_end(const vq_kv_page *p)
{
    return p->n ? vq_kv_page_row(p, p->n - 1u) + 1 : p->first;
}

/* How many of a page's rows lie below `row`. */
static inline uint32_t vq_kv_page_below(const vq_kv_page *p, uint32_t row)
{
    if (row <= p->first)
        return 0;
    if (!p->offsets)
        return row - p->first < p->n ? row - p->first : p->n;
    uint32_t n = 0;
    while (n < p->n && vq_kv_page_row(p, n) < row)
        n++;
    return n;
}

/* How many rows kernels are told of: whole granules.  What lies behind a merged page's last row is zeros or old codes;
 * no mask has its bits. */
static inline uint32_t vq_kv_whole_granules(uint32_t n) { return (n + VQ_GRANULE - 1) / VQ_GRANULE * VQ_GRANULE; }

/* The lowest n bits, n <= 64. */
static inline uint64_t vq_low_bits(uint32_t n) { return n < 64 ? ((uint64_t)1 << n) - 1 : UINT64_MAX; }

/* n <= 64 bits of a mask from bit `first` on. */
static inline uint64_t vq_mask_bits(const uint64_t *mask, uint32_t first, uint32_t n)
{
    const uint32_t at = first / 64, shift = first % 64;
    uint64_t bits = mask[at] >> shift;
    if (shift && n > 64 - shift)
        bits |= mask[at + 1] << (64 - shift);
    return bits & vq_low_bits(n);
}

static inline bool vq_mask_bit(const uint64_t *mask, uint32_t i) { return mask[i / 64] >> i % 64 & 1; }

static inline void vq_mask_put(uint64_t *mask, uint32_t i, bool on)
{
    mask[i / 64] = (mask[i / 64] & ~((uint64_t)1 << i % 64)) | (uint64_t)on << i % 64;
}

/* Rows of the newest append go where they belong; nothing is pending afterwards. */
void vq_kv_settle(vq_kv *kv);

/* Gives back what a page holds, or lets go of it where others hold it too. */
void vq_kv_page_give(vq_kv *kv, const vq_kv_layer *l, vq_kv_page *page);
/* All pages of all heads. */
void vq_kv_let_go(vq_kv *kv);
/* A page is written only when it is the cache's own: forks share pages.  VQ_ERR_NOMEM, and it is as before. */
bool vq_kv_page_is_own(const vq_kv *kv, const vq_kv_layer *l, const vq_kv_page *page);
vq_status vq_kv_page_make_own(vq_kv *kv, const vq_kv_layer *l, uint32_t head, vq_kv_page *page, vq_error *err);

/* Shape and counts; methods are read when a cache is opened. */
vq_status vq_kv_check_params(const vq_kv_params *params, vq_error *err);
/* A cache of the same kind without rows. */
vq_status vq_kv_open_like(vq_kv **out, const vq_kv *like, vq_error *err);
void vq_kv_leave_family(vq_kv *kv);
/* Adds what is shared and counts here; false when it counts elsewhere, or there is nothing. */
bool vq_kv_measure_shared(const vq_kv *kv, vq_kv_bytes *out, uint64_t *n_mapped);
size_t vq_kv_shared_mappings(const vq_kv *kv, const void **starts, size_t *n_bytes, size_t most);
/* Pages that lie in a saved cache, n_pages [n_layers * n_kv_heads].  Opening is all that can fail; once the tables name
 * the pages, adding makes the map the cache's (*map becomes zeros). */
typedef struct vq_kv_base vq_kv_base;
vq_status vq_kv_open_file_base(vq_kv_base **out, vq_kv *kv, const uint32_t *n_pages, vq_error *err);
void vq_kv_add_file_base(vq_kv *kv, vq_kv_base *base, vq_file_map *map);

/* Which of the exact rows [first, first + n), n <= 64, count; those of the newest append all do. */
uint64_t vq_kv_exact_live(const vq_kv_layer *l, uint32_t head, uint32_t first, uint32_t n);

/* The exact rows of a head are in up to two pieces: settled ones and pending ones.  The piece that holds row `first`
 * (at or after exact_first, below n_rows) and how many rows follow in it, itself included. */
const unsigned char *vq_kv_exact_rows(const vq_kv *kv, const vq_kv_layer *l, uint32_t head, bool keys, uint32_t first,
                                      uint32_t *n);

/* kv_calibration.c.  The calibration that a method or policy of this cache uses, opened, checked and counted in
 * calibration_hash; NULL for one that needs none.  `named` is the path that its text names, or ""; codebooks: a set of
 * vq_codebooks that it has to have. */
vq_status vq_kv_calibration_of(vq_kv *kv, const char *method, bool needed, uint32_t codebooks, const char *named,
                               const vq_calibration **out, vq_error *err);
void vq_kv_close_calibrations(vq_kv *kv);

/* Pages that a head has at most with n_ctx rows, when nothing was truncated. */
uint32_t vq_kv_most_pages(const vq_kv *kv, const vq_kv_layer *l);

/* Rows of a head that count. */
uint32_t vq_kv_count_live(const vq_kv_layer *l, uint32_t head);

/* Scores of exactly held keys [n][d_k]: out [n_queries][VQ_PAGE_ROWS]. */
void vq_kv_score_exact(const vq_kv *kv, const float *q, uint32_t n_queries, const void *k, uint32_t n, float *out);

void vq_kv_exact_from_f32(const vq_kv *kv, void *out, const float *x, size_t n);
void vq_kv_exact_to_f32(const vq_kv *kv, float *out, const void *x, size_t n);

/* Seconds of a clock that only goes forward, for vq_kv_times. */
double vq_kv_clock(void);

#endif
