/* Family and hyper-parameters from the file's keys.  Every number is checked for its range here, once, so that later
 * code multiplies and divides without looking. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/keys.h"
#include "model/model.h"

enum { KEY_BYTES = 160 };

static const char *full_key(const vq_model *m, const char *name, char *key)
{
    snprintf(key, KEY_BYTES, "%s.%s", m->family->name, name);
    return key;
}

const vq_gguf_value *vq_key_find(const vq_model *m, const char *name)
{
    char key[KEY_BYTES];
    return vq_gguf_find(m->gguf, full_key(m, name, key));
}

vq_status vq_key_u32(const vq_model *m, const char *name, uint32_t fallback, uint32_t least, uint32_t most,
                     uint32_t *out, vq_error *err)
{
    char key[KEY_BYTES];
    if (fallback != VQ_REQUIRED && !vq_gguf_find(m->gguf, full_key(m, name, key))) {
        *out = fallback;
        return VQ_OK;
    }
    VQ_TRY(vq_gguf_get_u32(m->gguf, full_key(m, name, key), out, err));
    if (*out < least || *out > most)
        return vq_fail(err, VQ_ERR_VALUE, "%s is %u, must be %u to %u", key, *out, least, most);
    return VQ_OK;
}

vq_status vq_key_f32(const vq_model *m, const char *name, float fallback, float least, float most, float *out,
                     vq_error *err)
{
    char key[KEY_BYTES];
    if (!isnan(fallback) && !vq_gguf_find(m->gguf, full_key(m, name, key))) {
        *out = fallback;
        return VQ_OK;
    }
    VQ_TRY(vq_gguf_get_f32(m->gguf, full_key(m, name, key), out, err));
    if (!(*out >= least && *out <= most))
        return vq_fail(err, VQ_ERR_VALUE, "%s is %g, must be %g to %g", key, (double)*out, (double)least, (double)most);
    return VQ_OK;
}

vq_status vq_key_absent(const vq_model *m, const char *name, vq_error *err)
{
    uint32_t n;
    VQ_TRY(vq_key_u32(m, name, 0, 0, UINT32_MAX, &n, err));
    if (n != 0)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s.%s is %u, which is not supported in this family", m->family->name,
                       name, n);
    return VQ_OK;
}

static vq_status find_family(vq_model *m, vq_error *err)
{
    vq_str name;
    VQ_TRY(vq_gguf_get_str(m->gguf, "general.architecture", &name, err));
    char known[256] = "";
    for (const vq_family *const *f = vq_families; *f; f++) {
        if (strlen((*f)->name) == name.n_bytes && memcmp((*f)->name, name.at, name.n_bytes) == 0) {
            m->family = *f;
            return VQ_OK;
        }
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", (*f)->name);
    }
    const int n = name.n_bytes < 64 ? (int)name.n_bytes : 64;
    static const char *const latent[] = {"deepseek2", "deepseek3", "minicpm3", "plm"};
    for (size_t i = 0; i < sizeof latent / sizeof *latent; i++)
        if (strlen(latent[i]) == name.n_bytes && memcmp(latent[i], name.at, name.n_bytes) == 0)
            return vq_fail(err, VQ_ERR_UNSUPPORTED, "architecture \"%.*s\" (multi-latent attention) is not supported",
                           n, name.at);
    return vq_fail(err, VQ_ERR_UNSUPPORTED, "architecture \"%.*s\" is not supported; these are: %s", n, name.at, known);
}

/* Keys that change the computation in ways that no family here has. */
static vq_status refuse_variants(const vq_model *m, vq_error *err)
{
    uint32_t n;
    VQ_TRY(vq_key_u32(m, "expert_count", 0, 0, UINT32_MAX, &n, err));
    if (n > 0)
        return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s.expert_count is %u: mixture of experts is not supported",
                       m->family->name, n);
    VQ_TRY(vq_key_u32(m, "attention.kv_lora_rank", 0, 0, UINT32_MAX, &n, err));
    if (n > 0)
        return vq_fail(err, VQ_ERR_UNSUPPORTED,
                       "%s.attention.kv_lora_rank is %u: multi-latent attention is not supported", m->family->name, n);
    static const char *const capped[] = {"attn_logit_softcapping", "final_logit_softcapping"};
    for (int i = 0; i < 2; i++) {
        float cap;
        VQ_TRY(vq_key_f32(m, capped[i], 0, 0, INFINITY, &cap, err));
        if (cap > 0)
            return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s.%s is %g: capped logits are not supported", m->family->name,
                           capped[i], (double)cap);
    }
    static const char *const multiplied[] = {"embedding_scale", "residual_scale", "logit_scale"};
    for (int i = 0; i < 3; i++)
        if (vq_key_find(m, multiplied[i]))
            return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s.%s is not supported", m->family->name, multiplied[i]);
    return VQ_OK;
}

vq_status vq_hparams_read(vq_model *m, vq_error *err)
{
    vq_hparams *hp = &m->hp;
    VQ_TRY(find_family(m, err));
    VQ_TRY(refuse_variants(m, err));
    VQ_TRY(vq_key_u32(m, "block_count", VQ_REQUIRED, 1, VQ_MAX_LAYERS, &hp->n_layers, err));
    VQ_TRY(vq_key_u32(m, "context_length", VQ_REQUIRED, 1, VQ_MAX_CONTEXT, &hp->n_ctx_train, err));
    VQ_TRY(vq_key_u32(m, "embedding_length", VQ_REQUIRED, 1, VQ_MAX_WIDTH, &hp->n_embd, err));
    VQ_TRY(vq_key_u32(m, "feed_forward_length", VQ_REQUIRED, 1, VQ_MAX_WIDTH, &hp->n_ff, err));
    VQ_TRY(vq_key_u32(m, "attention.head_count", VQ_REQUIRED, 1, VQ_MAX_HEADS, &hp->n_heads, err));
    VQ_TRY(vq_key_u32(m, "attention.head_count_kv", hp->n_heads, 1, hp->n_heads, &hp->n_kv_heads, err));
    if (hp->n_heads % hp->n_kv_heads != 0)
        return vq_fail(err, VQ_ERR_VALUE, "%s.attention.head_count %u is no multiple of head_count_kv %u",
                       m->family->name, hp->n_heads, hp->n_kv_heads);
    const bool divides = hp->n_embd % hp->n_heads == 0;
    const uint32_t d = hp->n_embd / hp->n_heads;
    if (!divides && !vq_key_find(m, "attention.key_length"))
        return vq_fail(err, VQ_ERR_VALUE,
                       "%s.embedding_length %u is no multiple of attention.head_count %u, and attention.key_length is "
                       "missing",
                       m->family->name, hp->n_embd, hp->n_heads);
    VQ_TRY(vq_key_u32(m, "attention.key_length", d, 1, VQ_MAX_MODEL_HEAD_DIM, &hp->d_k, err));
    VQ_TRY(vq_key_u32(m, "attention.value_length", divides ? d : hp->d_k, 1, VQ_MAX_MODEL_HEAD_DIM, &hp->d_v, err));
    if (hp->d_k > VQ_MAX_MODEL_HEAD_DIM || hp->d_v > VQ_MAX_MODEL_HEAD_DIM)
        return vq_fail(err, VQ_ERR_VALUE,
                       "heads of %u values (%s.embedding_length / head_count), at most %u can be done", d,
                       m->family->name, (unsigned)VQ_MAX_MODEL_HEAD_DIM);
    VQ_TRY(vq_key_u32(m, "rope.dimension_count", hp->d_k, 2, hp->d_k, &hp->n_rot, err));
    if (hp->n_rot % 2 != 0 || hp->n_rot > hp->d_k)
        return vq_fail(err, VQ_ERR_VALUE, "%s.rope.dimension_count is %u, must be even and at most the head size %u",
                       m->family->name, hp->n_rot, hp->d_k);
    VQ_TRY(vq_key_f32(m, "attention.layer_norm_rms_epsilon", NAN, 0, 1, &hp->norm_eps, err));
    VQ_TRY(vq_key_f32(m, "rope.freq_base", 10000, 1, 1e12f, &m->ropes[VQ_ROPE_GLOBAL].base, err));
    hp->rope_halves = m->family->rope_halves;
    hp->attn_scale = 1 / sqrtf((float)hp->d_k);
    hp->embd_scale = 1;
    return VQ_OK;
}
