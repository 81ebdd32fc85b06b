/* Weights: names, types and shapes are checked, data stay in the map. */
#include "model/bind.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96 };

static const vq_tensor *find(vq_binder *b, const char *name, bool optional)
{
    if (b->status != VQ_OK)
        return NULL;
    const vq_tensor *t = vq_gguf_tensor(b->model->gguf, name);
    if (t)
        b->used[t - vq_gguf_tensor_at(b->model->gguf, 0)] = true;
    else if (!optional)
        b->status = vq_fail(b->err, VQ_ERR_MISSING_TENSOR, "tensor %s is missing", name);
    return t;
}

static void check_shape(vq_binder *b, const char *name, const vq_tensor *t, uint32_t n_in, uint32_t n_out)
{
    bool right = t->dims[0] == n_in && t->dims[1] == n_out;
    for (uint32_t i = 2; i < VQ_MAX_DIMS; i++)
        right = right && t->dims[i] == 1;
    if (!right)
        b->status = vq_fail(b->err, VQ_ERR_SHAPE, "tensor %s is %llu x %llu x %llu, must be %u x %u", name,
                            (unsigned long long)t->dims[0], (unsigned long long)t->dims[1],
                            (unsigned long long)t->dims[2], n_in, n_out);
}

static vq_matrix matrix(vq_binder *b, const char *name, uint32_t n_in, uint32_t n_out, bool optional)
{
    const vq_tensor *t = find(b, name, optional);
    if (!t)
        return (vq_matrix){0};
    check_shape(b, name, t, n_in, n_out);
    if (b->status == VQ_OK && !vq_matmul_supports(t->type, n_in))
        b->status = vq_fail(b->err, VQ_ERR_UNSUPPORTED, "tensor %s: rows of %u values of type %s are not supported",
                            name, n_in, vq_type_name(t->type));
    const uint32_t bits = vq_type_packed_bits(t->type);
    if (b->status != VQ_OK || !bits)
        return (vq_matrix){.type = t->type, .n_in = n_in, .n_out = n_out, .data = t->data};
    const vq_linear linear = {bits, n_in, n_out, vq_rotation_find(b->model, n_in), &b->model->codes};
    if (!linear.rotation)
        b->status = vq_fail(b->err, VQ_ERR_MISSING_KEY, "tensor %s: no rotation of width %u", name, n_in);
    return b->status == VQ_OK ? vq_linear_matrix(&linear, t->data) : (vq_matrix){0};
}

static const float *vector(vq_binder *b, const char *name, uint32_t n, bool optional)
{
    const vq_tensor *t = find(b, name, optional);
    if (!t)
        return NULL;
    check_shape(b, name, t, n, 1);
    if (b->status == VQ_OK && t->type != VQ_TYPE_F32)
        b->status = vq_fail(b->err, VQ_ERR_TYPE, "tensor %s is %s, must be F32", name, vq_type_name(t->type));
    if (b->status == VQ_OK && (uintptr_t)t->data % _Alignof(float) != 0)
        b->status = vq_fail(b->err, VQ_ERR_ALIGN, "tensor %s does not start at a multiple of 4 bytes", name);
    return t->data;
}

static const char *layer_name(const vq_binder *b, const char *name, char *full)
{
    snprintf(full, NAME_BYTES, "blk.%u.%s", b->layer, name);
    return full;
}

vq_matrix vq_bind_matrix(vq_binder *b, const char *name, uint32_t n_in, uint32_t n_out)
{
    char full[NAME_BYTES];
    return matrix(b, layer_name(b, name, full), n_in, n_out, false);
}

const float *vq_bind_vector(vq_binder *b, const char *name, uint32_t n)
{
    char full[NAME_BYTES];
    return vector(b, layer_name(b, name, full), n, false);
}

const float *vq_bind_optional_vector(vq_binder *b, const char *name, uint32_t n)
{
    char full[NAME_BYTES];
    return vector(b, layer_name(b, name, full), n, true);
}

void vq_bind_attention(vq_binder *b, vq_layer *layer)
{
    const vq_hparams *hp = &b->model->hp;
    layer->attn_norm = vq_bind_vector(b, "attn_norm.weight", hp->n_embd);
    layer->q = vq_bind_matrix(b, "attn_q.weight", hp->n_embd, hp->n_heads * hp->d_k);
    layer->k = vq_bind_matrix(b, "attn_k.weight", hp->n_embd, hp->n_kv_heads * hp->d_k);
    layer->v = vq_bind_matrix(b, "attn_v.weight", hp->n_embd, hp->n_kv_heads * hp->d_v);
    layer->o = vq_bind_matrix(b, "attn_output.weight", hp->n_heads * hp->d_v, hp->n_embd);
}

void vq_bind_ffn(vq_binder *b, vq_layer *layer)
{
    const vq_hparams *hp = &b->model->hp;
    layer->ffn_norm = vq_bind_vector(b, "ffn_norm.weight", hp->n_embd);
    layer->gate = vq_bind_matrix(b, "ffn_gate.weight", hp->n_embd, hp->n_ff);
    layer->up = vq_bind_matrix(b, "ffn_up.weight", hp->n_embd, hp->n_ff);
    layer->down = vq_bind_matrix(b, "ffn_down.weight", hp->n_ff, hp->n_embd);
}

/* A weight of a layer that nothing reads means that the model computes something else than we would. */
static void refuse_unused(vq_binder *b)
{
    const vq_gguf *gguf = b->model->gguf;
    for (uint64_t i = 0; b->status == VQ_OK && i < vq_gguf_n_tensors(gguf); i++) {
        const vq_str name = vq_gguf_tensor_at(gguf, i)->name;
        if (!b->used[i] && name.n_bytes > 4 && memcmp(name.at, "blk.", 4) == 0)
            b->status = vq_fail(b->err, VQ_ERR_UNSUPPORTED, "tensor %.*s is not one that %s models with %u layers have",
                                (int)name.n_bytes, name.at, b->model->family->name, b->model->hp.n_layers);
    }
}

/* The embedding decides how many tokens there are; the vocabulary must agree. */
static vq_status bind_embedding(vq_binder *b, vq_model *m)
{
    const vq_tensor *t = find(b, "token_embd.weight", false);
    if (!t)
        return b->status;
    const uint32_t n_tokens = vq_tokenizer_n_vocab(m->tokenizer);
    if (t->dims[0] != m->hp.n_embd)
        return vq_fail(b->err, VQ_ERR_SHAPE, "tensor token_embd.weight has rows of %llu values, must be %u",
                       (unsigned long long)t->dims[0], m->hp.n_embd);
    if (t->dims[1] != n_tokens)
        return vq_fail(b->err, VQ_ERR_VOCAB, "token_embd.weight has %llu rows, but the vocabulary has %u tokens",
                       (unsigned long long)t->dims[1], n_tokens);
    m->hp.n_vocab = n_tokens;
    if (vq_type_packed_bits(t->type))
        return vq_fail(b->err, VQ_ERR_UNSUPPORTED, "token_embd.weight is %s: rows of it cannot be looked up",
                       vq_type_name(t->type));
    m->embd = matrix(b, "token_embd.weight", m->hp.n_embd, n_tokens, false);
    m->output_norm = vector(b, "output_norm.weight", m->hp.n_embd, false);
    m->output = matrix(b, "output.weight", m->hp.n_embd, n_tokens, true);
    if (!m->output.data)
        m->output = m->embd;
    return b->status;
}

vq_status vq_weights_bind(vq_model *m, vq_error *err)
{
    const uint64_t n_tensors = vq_gguf_n_tensors(m->gguf);
    vq_binder b = {.model = m, .err = err, .used = calloc(n_tensors ? n_tensors : 1, sizeof *b.used)};
    if (!b.used)
        return vq_fail(err, VQ_ERR_NOMEM, "no memory for %llu tensors", (unsigned long long)n_tensors);
    b.status = bind_embedding(&b, m);
    for (; b.status == VQ_OK && b.layer < m->hp.n_layers; b.layer++)
        m->family->bind(&b, &m->layers[b.layer]);
    refuse_unused(&b);
    free(b.used);
    return b.status;
}
