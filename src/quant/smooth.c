#include "quant/smooth.h"

#include <assert.h>
#include <math.h>

#include "base/rng.h"

enum { SEED = 0x5eed };

void vq_smooth_layout(vq_smooth *s, vq_arena *arena, uint32_t d)
{
    s->d = d;
    s->scale = vq_arena_take(arena, d, sizeof *s->scale);
    vq_rotation_layout(&s->rotation, arena, d, false);
}

vq_status vq_smooth_make(vq_smooth *s, const vq_codes_kernels *k, const float *least, const float *most, uint32_t layer,
                         uint32_t head, vq_error *err)
{
    assert(s->d <= VQ_SMOOTH_MOST_D);
    for (uint32_t j = 0; j < s->d; j++) {
        const float size = fmaxf(fabsf(least[j]), fabsf(most[j]));
        s->scale[j] = size > 0x1p-60F ? sqrtf(size) : 1;
    }
    return vq_rotation_draw(&s->rotation, k, vq_hash64(SEED, layer, head, 0, 0), err);
}

size_t vq_smooth_bytes(const vq_smooth *s) { return s->d * sizeof *s->scale + vq_rotation_bytes(&s->rotation); }

void vq_smooth_key(const vq_smooth *s, float *x)
{
    float scratch[VQ_SMOOTH_MOST_D];
    for (uint32_t j = 0; j < s->d; j++)
        x[j] /= s->scale[j];
    vq_rotation_apply(&s->rotation, x, scratch);
}

void vq_smooth_query(const vq_smooth *s, float *x)
{
    float scratch[VQ_SMOOTH_MOST_D];
    for (uint32_t j = 0; j < s->d; j++)
        x[j] *= s->scale[j];
    vq_rotation_apply(&s->rotation, x, scratch);
}

void vq_smooth_back(const vq_smooth *s, float *x)
{
    float scratch[VQ_SMOOTH_MOST_D];
    vq_rotation_invert(&s->rotation, x, scratch);
    for (uint32_t j = 0; j < s->d; j++)
        x[j] *= s->scale[j];
}
