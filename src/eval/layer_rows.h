/* The rows that attention works on, layer by layer, for evaluations that look at them rather than at logits. */
#ifndef VQ_EVAL_LAYER_ROWS_H
#define VQ_EVAL_LAYER_ROWS_H

#include "base/status.h"
#include "kernels/vec.h"
#include "model/model.h"
#include "veloxquant/session.h"

typedef struct vq_layer_rows {
    const vq_model *model;
    const vq_vec_kernels *kernels;
    uint32_t layer, n, n_heads, n_kv_heads, d_k, d_v;
    uint32_t window; /* tokens that a query sees, itself included; 0: all */
    float scale;
    /* Row i stands at position i; rows of all heads side by side. */
    const float *q, *k, *q_before, *k_before; /* [n][heads][d_k]; before: before RoPE */
    const float *v;                           /* [n][n_kv_heads][d_v] */
    const float *out;                         /* [n][n_heads][d_v]: what attention made of them */
} vq_layer_rows;

/* One head of one layer; on a thread of the pool, several heads at once. */
typedef vq_status (*vq_layer_head_fn)(void *arg, const vq_layer_rows *rows, uint32_t head, uint32_t thread,
                                      vq_error *err);

/* Runs ids [n] as a prompt from an empty cache, with the BOS in the first one's place where the model wants one, and
 * calls fn for heads [0, n_heads) of every layer; *progress counts layers and cancels with false. */
typedef struct vq_layer_rows_run {
    const vq_model *model;
    const int32_t *ids;
    uint32_t n, n_heads;
    vq_session *session; /* cleared first; takes n tokens in one pass.  NULL: one of its own, with an f16 cache */
    bool exact;          /* of its own one */
    vq_pool *pool;       /* of its own one, and what heads run on */
    vq_layer_head_fn fn;
    void *fn_arg;
    bool (*progress)(void *arg, size_t done, size_t all); /* may be NULL */
    void *progress_arg;
} vq_layer_rows_run;
vq_status vq_layer_rows_do(const vq_layer_rows_run *run, vq_error *err);

/* Normalised attention weights of query row i of a query head over rows [*first, i]: out [i + 1], those below *first
 * being 0. */
void vq_layer_rows_weights(const vq_layer_rows *r, uint32_t head, uint32_t i, uint32_t *first, float *out);

/* Spearman's rank correlation of a and b [n]: equal values share the mean of their ranks.  0 when one is constant. NaN
 * in the input counts as the least.  ranks [2 n] and order [n] are scratch. */
double vq_spearman(const float *a, const float *b, uint32_t n, double *ranks, uint32_t *order);

#endif
