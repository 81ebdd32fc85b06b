/* One NaN in a matrix reaches every logit, and int8 activations would hide it: values of float tensors and scales of
 * quantised blocks are looked at once, when a GGUF model is opened (a read of the file at memory speed).  What goes
 * into a reservoir was looked at when it was written, and its sums tell whether it is still the same: of those only the
 * vectors are read at opening. */
#include <string.h>

#include "formats/reservoir.h"
#include "model/model.h"

/* Where the f16 scales of a block lie; the two are the same where there is one. */
typedef struct scale_places {
    vq_type type;
    uint32_t at[2];
} scale_places;

static const scale_places block_scales[] = {
    {VQ_TYPE_Q4_0, {0, 0}}, {VQ_TYPE_Q4_1, {0, 2}},     {VQ_TYPE_Q5_0, {0, 0}},     {VQ_TYPE_Q5_1, {0, 2}},
    {VQ_TYPE_Q8_0, {0, 0}}, {VQ_TYPE_Q2_K, {80, 82}},   {VQ_TYPE_Q3_K, {108, 108}}, {VQ_TYPE_Q4_K, {0, 2}},
    {VQ_TYPE_Q5_K, {0, 2}}, {VQ_TYPE_Q6_K, {208, 208}}, {VQ_TYPE_IQ4_NL, {0, 0}},
};

static unsigned all_ones_u16(const uint8_t *p, uint16_t mask)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return (bits & mask) == mask;
}

/* All-ones exponents among n pairs of numbers, `step` bytes apart.  Without a branch in the loop: nearly always there
 * is none. */
static bool any_all_ones_u16(const uint8_t *p, const uint8_t *q, uint64_t n, size_t step, uint16_t mask)
{
    unsigned found = 0;
    for (uint64_t i = 0; i < n; i++, p += step, q += step)
        found |= all_ones_u16(p, mask) | all_ones_u16(q, mask);
    return found;
}

static bool any_all_ones_f32(const uint8_t *p, uint64_t n)
{
    unsigned found = 0;
    for (uint64_t i = 0; i < n; i++, p += sizeof(uint32_t)) {
        uint32_t bits;
        memcpy(&bits, p, sizeof bits);
        found |= (bits & 0x7f800000) == 0x7f800000;
    }
    return found;
}

static bool is_finite(const vq_tensor *t)
{
    const uint8_t *data = t->data;
    const uint16_t f16_mask = 0x7c00, bf16_mask = 0x7f80;
    if (t->type == VQ_TYPE_F32)
        return !any_all_ones_f32(data, t->n_bytes / 4);
    if (t->type == VQ_TYPE_F16)
        return !any_all_ones_u16(data, data, t->n_bytes / 2, 2, f16_mask);
    if (t->type == VQ_TYPE_BF16)
        return !any_all_ones_u16(data, data, t->n_bytes / 2, 2, bf16_mask);
    const size_t step = vq_type_block_bytes(t->type);
    for (size_t i = 0; i < sizeof block_scales / sizeof *block_scales; i++) {
        const scale_places *s = &block_scales[i];
        if (s->type == t->type)
            return !any_all_ones_u16(data + s->at[0], data + s->at[1], t->n_bytes / step, step, f16_mask);
    }
    return true;
}

vq_status vq_tensor_check_finite(const vq_tensor *t, vq_error *err)
{
    if (is_finite(t))
        return VQ_OK;
    return vq_fail(err, VQ_ERR_NONFINITE, "tensor %.*s (%s) holds a NaN or an infinity", (int)t->name.n_bytes,
                   t->name.at, vq_type_name(t->type));
}

vq_status vq_weights_check_finite(const vq_model *m, vq_error *err)
{
    for (uint64_t i = 0; i < vq_gguf_n_tensors(m->gguf); i++) {
        const vq_tensor *t = vq_gguf_tensor_at(m->gguf, i);
        if (!m->gguf->reservoir || t->n_dims == 1)
            VQ_TRY(vq_tensor_check_finite(t, err));
    }
    return VQ_OK;
}
