/* Qwen 3 (dense): as llama, with a norm over each head of q and k before RoPE, which turns halves.  Heads have their
 * own size (attention.key_length), so that n_heads d_k need not be n_embd. */
#include "model/bind.h"
#include "model/keys.h"
#include "model/steps.h"

static vq_status configure(vq_model *m, vq_error *err) { return vq_key_absent(m, "attention.sliding_window", err); }

static void bind(vq_binder *b, vq_layer *layer)
{
    vq_bind_attention(b, layer);
    layer->q_norm = vq_bind_vector(b, "attn_q_norm.weight", b->model->hp.d_k);
    layer->k_norm = vq_bind_vector(b, "attn_k_norm.weight", b->model->hp.d_k);
    vq_bind_ffn(b, layer);
}

/* clang-format off */
static vq_status layer(vq_forward *f, const vq_layer *w, vq_error *err)
{
    const vq_hparams *hp = &f->model->hp;

    vq_step_norm(f, f->h, f->x, w->attn_norm, hp->n_embd);      /* h = norm(x)                 [n][n_embd] */
    vq_step_qkv(f, f->h, w);                                    /* q, k, v = Wq h, Wk h, Wv h  [n][heads][d] */
    vq_step_head_norm(f, f->q, w->q_norm, hp->n_heads);         /* q = norm(Wq h)              [n][n_heads][d_k] */
    vq_step_head_norm(f, f->k, w->k_norm, hp->n_kv_heads);      /* k = norm(Wk h)              [n][n_kv_heads][d_k] */
    vq_step_rope(f, f->q, w->rope, hp->n_heads);
    vq_step_rope(f, f->k, w->rope, hp->n_kv_heads);
    VQ_TRY(vq_step_attend(f, err));                             /* o = attention(q; k, v)      [n][n_heads][d_v] */
    vq_step_product(f, f->h, f->o, &w->o);
    vq_step_add(f, f->h);                                       /* x += Wo o                   [n][n_embd] */

    vq_step_norm(f, f->h, f->x, w->ffn_norm, hp->n_embd);       /* h = norm(x)                 [n][n_embd] */
    vq_step_gate_up(f, f->h, w);
    vq_step_silu(f);                                            /* g = silu(Wgate h) * Wup h   [n][n_ff] */
    vq_step_product(f, f->h, f->gate, &w->down);
    vq_step_add(f, f->h);                                       /* x += Wdown g                [n][n_embd] */
    return VQ_OK;
}
/* clang-format on */

const vq_family vq_family_qwen3 = {
    .name = "qwen3",
    .rope_halves = true,
    .configure = configure,
    .bind = bind,
    .layer = layer,
};
