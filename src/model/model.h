/* A model as the forward pass sees it: hyper-parameters, weights in the map, and the family that says how a layer is
 * computed.
 *
 * A family is one file in model/families/ that ends in one const struct, and one word in the list in meson.build. */
#ifndef VQ_MODEL_MODEL_H
#define VQ_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"
#include "kernels/codes.h"
#include "kernels/matmul.h"
#include "quant/linear.h"
#include "veloxquant/kv.h"
#include "veloxquant/model.h"

enum {
    VQ_MAX_LAYERS = 1024,
    VQ_MAX_HEADS = 4096,
    VQ_MAX_WIDTH = 1 << 20,      /* n_embd, n_ff: keeps every product of two of them far from overflow */
    VQ_MAX_MODEL_HEAD_DIM = 512, /* what the cache takes */
    VQ_MAX_CONTEXT = 1 << 30,
};

/* Positions turn pairs of values by pos * freq[i]. */
typedef enum vq_rope_kind { VQ_ROPE_GLOBAL, VQ_ROPE_LOCAL, VQ_N_ROPES } vq_rope_kind;

typedef struct vq_rope {
    const double *freq; /* [n_rot / 2]; NULL: no layer uses this one */
    float base;
} vq_rope;

typedef struct vq_hparams {
    uint32_t n_layers, n_embd, n_ff, n_heads, n_kv_heads, d_k, d_v, n_vocab, n_ctx_train;
    uint32_t n_rot;   /* values of a head that RoPE turns: the first ones */
    bool rope_halves; /* pairs (i, i + n_rot / 2), else (2i, 2i + 1) */
    uint32_t window;  /* of sliding layers; 0: none slides */
    float norm_eps, attn_scale, embd_scale;
} vq_hparams;

/* What a family does not have is NULL. */
typedef struct vq_layer {
    vq_matrix q, k, v, o, gate, up, down;
    const float *attn_norm, *post_attn_norm, *ffn_norm, *post_ffn_norm; /* [n_embd] */
    const float *q_norm, *k_norm;                                       /* [d_k], one for all heads */
    const float *q_bias, *k_bias, *v_bias;
    uint32_t window; /* tokens that a query sees, itself included; 0: all */
    vq_rope_kind rope;
} vq_layer;

struct vq_forward;
struct vq_binder;

typedef struct vq_family {
    const char *name; /* general.architecture */
    bool rope_halves;
    /* Reads what is special to the family and chooses the window and RoPE of each layer; hp holds the common keys. */
    vq_status (*configure)(struct vq_model *m, vq_error *err);
    void (*bind)(struct vq_binder *b, vq_layer *layer);                         /* of one layer, through bind.h */
    vq_status (*layer)(struct vq_forward *f, const vq_layer *w, vq_error *err); /* the equations, through steps.h */
} vq_family;

/* Generated from the list in src/model/families/meson.build; ends in NULL. */
extern const vq_family *const vq_families[];

struct vq_model {
    vq_gguf *gguf;
    vq_tokenizer *tokenizer;
    const vq_family *family;
    vq_hparams hp;
    vq_rope ropes[VQ_N_ROPES];
    vq_matrix embd, output; /* the same matrix when embeddings are tied */
    const float *output_norm;
    vq_layer *layers;     /* [n_layers] */
    uint32_t *windows;    /* [n_layers] for the cache */
    vq_kv_rope *kv_ropes; /* likewise */
    vq_model_info info;
    char *name;
    uint64_t hash;
    vq_arena arena;
    vq_codes_kernels codes;        /* of the rotations */
    vq_input_rotation **rotations; /* [n_rotations] of the inputs of packed matrices, one for each width; owned */
    uint32_t n_rotations;
    vq_model *grafted; /* whose layers these are, after vq_model_graft; owned */
};

/* Stages of vq_model_open, in this order. */
vq_status vq_rotations_open(vq_model *m, vq_error *err); /* rotations.c: those that a reservoir names */
void vq_rotations_close(vq_model *m);
const vq_rotation *vq_rotation_find(const vq_model *m, uint32_t width); /* NULL: none */
vq_status vq_hparams_read(vq_model *m, vq_error *err);                  /* hparams.c: family and hyper-parameters */
vq_status vq_weights_bind(vq_model *m, vq_error *err);                  /* bind.c: embedding, head, layers */
vq_status vq_weights_check_finite(const vq_model *m, vq_error *err);    /* finite.c */
vq_status vq_tensor_check_finite(const vq_tensor *t, vq_error *err);    /* packed ones: nothing to see */
vq_status vq_ropes_make(vq_model *m, double *freqs[VQ_N_ROPES], vq_error *err); /* rope.c: freqs [n_rot / 2] each */

/* Counts and hash, from the tensors that the model uses. */
void vq_model_describe(vq_model *m);
/* VQ_ERR_TRUNCATED when a file of the model is shorter now than when it was opened. */
vq_status vq_model_check_whole(const vq_model *m, vq_error *err);

#endif
