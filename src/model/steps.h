/* The steps that a layer's equations are made of.
 *
 * Buffers hold one row a token of the run in progress; shapes are in brackets.  Row-wise steps and products give a row
 * the same bits whatever the number of rows and threads. */
#ifndef VQ_MODEL_STEPS_H
#define VQ_MODEL_STEPS_H

#include "kernels/kernels.h"
#include "model/forward.h"
#include "model/model.h"
#include "model/observer.h"

struct vq_forward {
    const vq_model *model;
    vq_pool *pool;
    vq_kernels kernels;
    uint32_t n_batch;
    bool exact;
    const vq_observer *observer; /* may be NULL */
    vq_arena arena;

    /* the run in progress */
    vq_kv *kv;
    uint32_t layer, pos;
    uint32_t n;       /* rows */
    uint32_t n_skip;  /* leading rows that the last layer need not finish */
    uint32_t n_valid; /* rows [n_skip, n_valid) of the last run have logits */
    float *x;         /* [n][n_embd] the residual stream; moves on by n_skip rows in the last layer */

    float *stream;                            /* [n_batch][n_embd] where x begins */
    float *h;                                 /* [n_batch][n_embd] */
    float *q;                                 /* [n_batch][n_heads][d_k] */
    float *k;                                 /* [n_batch][n_kv_heads][d_k] */
    float *v;                                 /* [n_batch][n_kv_heads][d_v] */
    float *o;                                 /* [n_batch][n_heads][d_v] */
    float *gate, *up;                         /* [n_batch][n_ff] */
    float *cos[VQ_N_ROPES], *sin[VQ_N_ROPES]; /* [n_batch][n_rot / 2] */
    float *rotated;                           /* [n_batch][widest input] the input of packed matrices */
    float *turn_scratch;                      /* [threads][widest input] of rotating it */
    uint32_t widest;
    void *act;     /* the input of products, prepared */
    void *scratch; /* of the products */
};

/* out = x / rms(x) * weight, rows of `width` values */
void vq_step_norm(vq_forward *f, float *out, const float *x, const float *weight, uint32_t width);
/* each head of x [n][n_heads][d_k] likewise, in place */
void vq_step_head_norm(vq_forward *f, float *x, const float *weight, uint32_t n_heads);
/* x [n][width] += bias [width]; nothing when bias is NULL */
void vq_step_bias(vq_forward *f, float *x, const float *bias, uint32_t width);
/* turns each head of x [n][n_heads][d_k] to its row's position */
void vq_step_rope(vq_forward *f, float *x, vq_rope_kind rope, uint32_t n_heads);
/* out [n][w->n_out] = w times x [n][w->n_in]; out may be x */
void vq_step_product(vq_forward *f, float *out, const float *x, const vq_matrix *w);
/* f->q, f->k, f->v = q, k, v of the layer times x [n][n_embd] */
void vq_step_qkv(vq_forward *f, const float *x, const vq_layer *layer);
/* f->gate, f->up likewise */
void vq_step_gate_up(vq_forward *f, const float *x, const vq_layer *layer);
/* f->o = attention of f->q after f->k and f->v were appended.  In the last layer the rows whose logits nobody wants end
 * here: n shrinks (to 0, perhaps), x moves on to the first row that is wanted, and o begins with it. */
vq_status vq_step_attend(vq_forward *f, vq_error *err);
/* f->x += y [n][n_embd] */
void vq_step_add(vq_forward *f, const float *y);
/* f->gate = act(f->gate) * f->up, [n][n_ff] */
void vq_step_silu(vq_forward *f);
void vq_step_gelu(vq_forward *f);

#endif
