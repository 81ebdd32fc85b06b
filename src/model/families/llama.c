/* Llama 2 and 3, SmolLM, Mistral (with attention.sliding_window): RMS norms, grouped heads, SwiGLU.  Converters reorder
 * the rows of Wq and Wk so that RoPE turns neighbours. */
#include "model/bind.h"
#include "model/keys.h"
#include "model/steps.h"

static vq_status configure(vq_model *m, vq_error *err)
{
    VQ_TRY(vq_key_u32(m, "attention.sliding_window", 0, 0, VQ_MAX_CONTEXT, &m->hp.window, err));
    for (uint32_t i = 0; i < m->hp.n_layers; i++)
        m->layers[i].window = m->hp.window;
    return VQ_OK;
}

static void bind(vq_binder *b, vq_layer *layer)
{
    const vq_hparams *hp = &b->model->hp;
    vq_bind_attention(b, layer);
    layer->q_bias = vq_bind_optional_vector(b, "attn_q.bias", hp->n_heads * hp->d_k);
    layer->k_bias = vq_bind_optional_vector(b, "attn_k.bias", hp->n_kv_heads * hp->d_k);
    layer->v_bias = vq_bind_optional_vector(b, "attn_v.bias", hp->n_kv_heads * hp->d_v);
    vq_bind_ffn(b, layer);
}

/* clang-format off */
static vq_status layer(vq_forward *f, const vq_layer *w, vq_error *err)
{
    const vq_hparams *hp = &f->model->hp;

    vq_step_norm(f, f->h, f->x, w->attn_norm, hp->n_embd);      /* h = norm(x)                 [n][n_embd] */
    vq_step_qkv(f, f->h, w);                                    /* q, k, v = Wq h, Wk h, Wv h  [n][heads][d] */
    vq_step_bias(f, f->q, w->q_bias, w->q.n_out);
    vq_step_bias(f, f->k, w->k_bias, w->k.n_out);
    vq_step_bias(f, f->v, w->v_bias, w->v.n_out);
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

const vq_family vq_family_llama = {
    .name = "llama",
    .rope_halves = false,
    .configure = configure,
    .bind = bind,
    .layer = layer,
};
