/* What a cache with an eviction policy has on top.
 *
 * The rows of a head that count are numbered in ascending order of position: row number i below is the i-th of them.
 * Weights are added up under these numbers, so that they take room for what is held, and close ranks when rows go. */
#ifndef VQ_KV_EVICT_H
#define VQ_KV_EVICT_H

#include "base/cursor.h"
#include "kv/kv_inner.h"
#include "kv/policies/policy.h"

_Static_assert((int)VQ_POLICY_BLOCK == (int)VQ_PAGE_ROWS && (int)VQ_POLICY_MAX_DIM == (int)VQ_MAX_HEAD_DIM,
               "what policies are told holds");

enum { VQ_EVICT_BATCHES = 64, VQ_EVICT_SINKS = 4 };

struct vq_evictor {
    vq_policy_choice choice;
    vq_policy_state *state;
    size_t n_bytes;          /* of the mapping that this struct and all its arrays lie in */
    const vq_kv_rope *ropes; /* [n_layers] or NULL */
    size_t stride;           /* n_ctx: from one head's numbers to the next's */

    uint32_t n_rates;

    vq_kv_phase phase;
    bool is_probing;
    uint32_t n_generated; /* tokens appended while decoding */
    vq_kv_evict_stats stats;

    /* Weights seen, [n_layers or, where they are made anew each time, 1][n_kv_heads][stride]. */
    float *seen;
    uint32_t *n_seen;     /* [n_layers][n_kv_heads] how many of them are kept */
    uint32_t *seen_end;   /* [n_layers] row after the last query that was looked at */
    float *ring;          /* [n_layers][n_queries][n_heads][d_k] the last queries, row r at r % n_queries */
    uint32_t *ring_first; /* [n_layers] first row in the ring, which ends at seen_end */

    /* Of the layer that is being worked on, [n_kv_heads][stride]. */
    uint32_t *pos; /* positions of rows */
    float *score, *rates;
    uint64_t *order, *keep;      /* keep: bits, [n_kv_heads][stride / 64 + 1] */
    uint32_t *n_live, *n_scored; /* [n_kv_heads]; n_scored: of the last layer whose scores were computed */
    vq_kv_page *fresh;           /* pages that merging will fill */

    /* Weights of the queries that are being looked at. */
    uint32_t batch_tokens, n_batches;
    float *weights; /* [n_batches][n_kv_heads][batch_tokens * group][stride] */
};

/* Opens into kv->evict, once the layers are laid out. */
vq_status vq_evictor_open(vq_kv *kv, const vq_kv_rope *ropes, const vq_policy_choice *choice, vq_error *err);
void vq_evictor_close(vq_evictor *e);
/* What the policy of a cache has seen, to a cache of the same kind with the same rows. */
void vq_evictor_copy(const vq_kv *from, vq_kv *to);

/* n rows were appended to a layer; attention has run for the last n rows; rows from n on were dropped; the first n rows
 * of a head that count left the window. */
void vq_evictor_appended(vq_kv *kv, uint32_t layer, uint32_t n);
void vq_evictor_attended(vq_kv *kv, uint32_t layer, const float *q, uint32_t n);
void vq_evictor_cut(vq_kv *kv, uint32_t n);
void vq_evictor_dropped(vq_kv *kv, uint32_t layer, uint32_t head, uint32_t n);

/* evict_file.c: the policy and what it has seen, for saved caches.  Checks leave a cursor that ran out bad. */
typedef void (*vq_evict_put)(void *arg, const void *bytes, size_t n);
void vq_evictor_put_choice(const vq_kv *kv, vq_evict_put put, void *arg);
void vq_evictor_put_state(const vq_kv *kv, vq_evict_put put, void *arg);
vq_status vq_evictor_check_choice(const vq_kv *kv, const char *name, vq_cursor *c, vq_error *err);
vq_status vq_evictor_check_state(const vq_kv *kv, const vq_kv_layer *layers, const char *name, vq_cursor *c,
                                 vq_error *err);
void vq_evictor_load_state(vq_kv *kv, vq_cursor *c); /* that was checked */

static inline bool vq_policy_renumbers(const vq_policy_choice *c) { return c->policy->renumbers && c->values[0] != 0; }
/* How queries are to be turned for the sinks of a layer, and by how many positions back; NULL: not at all. */
const vq_kv_rope *vq_evictor_renumbers(const vq_kv *kv, uint32_t layer, uint32_t *n_missing);

/* What vq_policy_query.step is for a query that `rows_after` rows follow. */
uint32_t vq_evict_step(const vq_evictor *e, uint32_t rows_after);

/* evict.c: positions of the rows of a layer that count, into pos and n_live. */
void vq_evict_collect(const vq_kv *kv, uint32_t layer);
/* evict.c: what was added up for one head, of a layer that was collected; rows that came since have 0. */
float *vq_evict_seen(const vq_kv *kv, uint32_t layer, uint32_t head);

/* evict_weigh.c: adds the weights of queries at rows first .. first + n - 1 to what was seen; q [n][n_heads][d_k], or
 * the layer's ring when NULL.  Rows and heads as collected. */
void vq_evict_weigh(vq_kv *kv, uint32_t layer, const float *q, uint32_t first, uint32_t n, float *seen);

/* evict_choose.c: which rows stay, from scores and quotas, into `keep`; `is_kept` says which stay whatever their
 * score. */
typedef struct vq_evict_bounds {
    uint32_t sinks_end;   /* positions below stay */
    uint32_t recent_from; /* positions from here on stay */
    uint32_t seen_from;   /* positions below are out of the window */
} vq_evict_bounds;
uint32_t vq_evict_n_protected(const vq_evictor *e, uint32_t head, const vq_evict_bounds *b);
void vq_evict_choose(vq_evictor *e, uint32_t head, const vq_evict_bounds *b, uint32_t quota);
void vq_evict_choose_flat(vq_evictor *e, uint32_t n_heads, const vq_evict_bounds *b, uint32_t quota, float floor);

/* repack.c: drops the rows of a head whose bit in keep is 0 (row numbers as collected), then makes its pages dense. */
void vq_evict_apply(vq_kv_layer *l, uint32_t head, const uint64_t *keep);
vq_status vq_evict_repack(vq_kv *kv, vq_kv_layer *l, uint32_t head, vq_error *err);

#endif
