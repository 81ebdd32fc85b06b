/* Gemma 3: five sliding layers, then a global one, each kind with its own RoPE base; norms before and after attention
 * and FFN, norms over heads of q and k, GELU, an embedding scaled by sqrt(n_embd).  Norm weights in the file already
 * hold the +1 of the paper. */
#include <math.h>

#include "model/bind.h"
#include "model/keys.h"
#include "model/steps.h"

/* The file has no key for the scale of q.k: it is 1/sqrt(d_k) but for the 27B model (62 layers), which was trained with
 * 1/sqrt(n_embd / n_heads). */
enum { N_LAYERS_27B = 62 };

/* attention.sliding_window_pattern: a period (every n-th layer is global) or one bool a layer (true slides). */
static vq_status choose_layers(vq_model *m, vq_error *err)
{
    const vq_gguf_value *v = vq_key_find(m, "attention.sliding_window_pattern");
    const bool listed = v && v->kind == VQ_GGUF_ARRAY;
    uint32_t period = 6;
    if (listed && (v->array_kind != VQ_GGUF_BOOL || v->n != m->hp.n_layers))
        return vq_fail(err, VQ_ERR_VALUE, "gemma3.attention.sliding_window_pattern must be %u bools, one a layer",
                       m->hp.n_layers);
    if (!listed)
        VQ_TRY(vq_key_u32(m, "attention.sliding_window_pattern", period, 1, VQ_MAX_LAYERS, &period, err));
    for (uint32_t i = 0; i < m->hp.n_layers; i++) {
        const bool slides = listed ? ((const uint8_t *)v->raw)[i] != 0 : (i + 1) % period != 0;
        m->layers[i].window = slides ? m->hp.window : 0;
        m->layers[i].rope = slides ? VQ_ROPE_LOCAL : VQ_ROPE_GLOBAL;
    }
    return VQ_OK;
}

static vq_status configure(vq_model *m, vq_error *err)
{
    vq_hparams *hp = &m->hp;
    VQ_TRY(vq_key_u32(m, "attention.sliding_window", VQ_REQUIRED, 1, VQ_MAX_CONTEXT, &hp->window, err));
    VQ_TRY(vq_key_f32(m, "rope.freq_base", 1000000, 1, 1e12f, &m->ropes[VQ_ROPE_GLOBAL].base, err));
    VQ_TRY(vq_key_f32(m, "rope.freq_base_swa", 10000, 1, 1e12f, &m->ropes[VQ_ROPE_LOCAL].base, err));
    hp->embd_scale = sqrtf((float)hp->n_embd);
    if (hp->n_layers == N_LAYERS_27B)
        hp->attn_scale = 1 / sqrtf((float)hp->n_embd / (float)hp->n_heads);
    return choose_layers(m, err);
}

static void bind(vq_binder *b, vq_layer *layer)
{
    const vq_hparams *hp = &b->model->hp;
    vq_bind_attention(b, layer);
    layer->q_norm = vq_bind_vector(b, "attn_q_norm.weight", hp->d_k);
    layer->k_norm = vq_bind_vector(b, "attn_k_norm.weight", hp->d_k);
    layer->post_attn_norm = vq_bind_vector(b, "post_attention_norm.weight", hp->n_embd);
    vq_bind_ffn(b, layer);
    layer->post_ffn_norm = vq_bind_vector(b, "post_ffw_norm.weight", hp->n_embd);
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
    vq_step_norm(f, f->h, f->h, w->post_attn_norm, hp->n_embd);
    vq_step_add(f, f->h);                                       /* x += norm(Wo o)             [n][n_embd] */

    vq_step_norm(f, f->h, f->x, w->ffn_norm, hp->n_embd);       /* h = norm(x)                 [n][n_embd] */
    vq_step_gate_up(f, f->h, w);
    vq_step_gelu(f);                                            /* g = gelu(Wgate h) * Wup h   [n][n_ff] */
    vq_step_product(f, f->h, f->gate, &w->down);
    vq_step_norm(f, f->h, f->h, w->post_ffn_norm, hp->n_embd);
    vq_step_add(f, f->h);                                       /* x += norm(Wdown g)          [n][n_embd] */
    return VQ_OK;
}
/* clang-format on */

const vq_family vq_family_gemma3 = {
    .name = "gemma3",
    .rope_halves = true,
    .configure = configure,
    .bind = bind,
    .layer = layer,
};
