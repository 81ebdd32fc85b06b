/* Inverse frequencies of rotary positions, in double: freq[i] = base^(-2i / n_rot), and what long-context versions make
 * of it.
 *
 * Llama 3.1 and later stretch long wavelengths: with w = 2 pi / freq and the trained context L, freq stays as it is for
 * w < L / high, becomes freq / factor for w > L / low, and in between goes over linearly in L / w.  Files say so by
 * keys (rope.scaling.type "llama3") or, as converters do, by a tensor of divisors, rope_freqs.weight. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/keys.h"
#include "model/model.h"
#include "model/rope.h"

static bool is(vq_str s, const char *text) { return s.n_bytes == strlen(text) && memcmp(s.at, text, s.n_bytes) == 0; }

void vq_rope_llama3(double *freq, uint32_t n_pairs, double factor, double low, double high, double n_ctx)
{
    for (uint32_t i = 0; i < n_pairs; i++) {
        const double turns = n_ctx * freq[i] / (2 * M_PI); /* L / w */
        const double keep = (turns - low) / (high - low);
        if (turns < low)
            freq[i] /= factor;
        else if (turns <= high)
            freq[i] = keep * freq[i] + (1 - keep) * freq[i] / factor;
    }
}

static vq_status scale_llama3(const vq_model *m, double *freq, float factor, vq_error *err)
{
    float low, high;
    uint32_t n_ctx;
    VQ_TRY(vq_key_f32(m, "rope.scaling.low_freq_factor", 1, 0.001f, 1000, &low, err));
    VQ_TRY(vq_key_f32(m, "rope.scaling.high_freq_factor", 4, 0.001f, 1000, &high, err));
    VQ_TRY(vq_key_u32(m, "rope.scaling.original_context_length", 8192, 1, VQ_MAX_CONTEXT, &n_ctx, err));
    if (!(low < high))
        return vq_fail(err, VQ_ERR_VALUE, "%s.rope.scaling.low_freq_factor %g must be below high_freq_factor %g",
                       m->family->name, (double)low, (double)high);
    vq_rope_llama3(freq, m->hp.n_rot / 2, factor, low, high, n_ctx);
    return VQ_OK;
}

static vq_status divide_by_tensor(const vq_model *m, double *freq, vq_error *err)
{
    const vq_tensor *t = vq_gguf_tensor(m->gguf, "rope_freqs.weight");
    if (!t)
        return VQ_OK;
    if (t->type != VQ_TYPE_F32)
        return vq_fail(err, VQ_ERR_TYPE, "tensor rope_freqs.weight is %s, must be F32", vq_type_name(t->type));
    if (t->dims[0] != m->hp.n_rot / 2 || t->n_bytes != m->hp.n_rot / 2 * sizeof(float))
        return vq_fail(err, VQ_ERR_SHAPE, "tensor rope_freqs.weight has %llu values, must be %u",
                       (unsigned long long)t->dims[0], m->hp.n_rot / 2);
    for (uint32_t i = 0; i < m->hp.n_rot / 2; i++) {
        float divisor;
        memcpy(&divisor, (const char *)t->data + i * sizeof divisor, sizeof divisor);
        if (!isfinite(divisor))
            return vq_fail(err, VQ_ERR_NONFINITE, "tensor rope_freqs.weight: value %u is not finite", i);
        if (!(divisor > 0))
            return vq_fail(err, VQ_ERR_VALUE, "tensor rope_freqs.weight: value %u is %g, must be above 0", i,
                           (double)divisor);
        freq[i] /= divisor;
    }
    return VQ_OK;
}

/* Scaling by keys; of global layers only, local ones never look farther than they were trained. */
static vq_status scale_by_keys(const vq_model *m, double *freq, vq_error *err)
{
    vq_str type = {0};
    if (vq_key_find(m, "rope.scaling.type")) {
        char key[96];
        snprintf(key, sizeof key, "%s.rope.scaling.type", m->family->name);
        VQ_TRY(vq_gguf_get_str(m->gguf, key, &type, err));
    }
    float factor;
    VQ_TRY(vq_key_f32(m, "rope.scale_linear", 1, 1e-3f, 1e6f, &factor, err)); /* what old files call it */
    VQ_TRY(vq_key_f32(m, "rope.scaling.factor", factor, 0, 1e6f, &factor, err));
    if (factor == 0) /* written by converters for "none" */
        factor = 1;
    if (type.n_bytes == 0 || is(type, "linear")) {
        for (uint32_t i = 0; i < m->hp.n_rot / 2; i++)
            freq[i] /= factor;
        return VQ_OK;
    }
    if (is(type, "llama3"))
        return scale_llama3(m, freq, factor, err);
    if (is(type, "none"))
        return VQ_OK;
    return vq_fail(err, VQ_ERR_UNSUPPORTED, "%s.rope.scaling.type \"%.*s\" is not supported (none, linear, llama3)",
                   m->family->name, (int)(type.n_bytes < 32 ? type.n_bytes : 32), type.at);
}

vq_status vq_ropes_make(vq_model *m, double *freqs[VQ_N_ROPES], vq_error *err)
{
    for (int rope = 0; rope < VQ_N_ROPES; rope++) {
        if (m->ropes[rope].base == 0)
            continue;
        for (uint32_t i = 0; i < m->hp.n_rot / 2; i++)
            freqs[rope][i] = pow(m->ropes[rope].base, -2.0 * i / m->hp.n_rot);
        m->ropes[rope].freq = freqs[rope];
    }
    VQ_TRY(scale_by_keys(m, freqs[VQ_ROPE_GLOBAL], err));
    return divide_by_tensor(m, freqs[VQ_ROPE_GLOBAL], err);
}

void vq_rope_turn(const double *freq, uint32_t n_pairs, uint32_t pos, float *cosine, float *sine)
{
    for (uint32_t i = 0; i < n_pairs; i++) {
        double c, s;
        sincos(pos * freq[i], &s, &c);
        cosine[i] = (float)c;
        sine[i] = (float)s;
    }
}
