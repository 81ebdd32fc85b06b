#include "quant/basis.h"

#include <math.h>
#include <string.h>

void vq_basis_layout(vq_basis *b, vq_arena *arena, uint32_t d)
{
    b->d = d;
    b->width = (d + VQ_CODES_GROUP - 1) / VQ_CODES_GROUP * VQ_CODES_GROUP;
    b->entry = vq_arena_take(arena, d, b->width);
    b->scale = vq_arena_take(arena, b->width, sizeof(float));
}

void vq_basis_take(vq_basis *b, const vq_codes_kernels *k, const float *vectors, const uint16_t *order)
{
    b->k = k;
    for (uint32_t j = 0; j < b->d; j++) {
        const float *v = vectors + (size_t)(order ? order[j] : j) * b->d;
        const float most = k->largest(v, b->d);
        b->scale[j] = most / 127;
        for (uint32_t i = 0; i < b->d; i++)
            b->entry[(size_t)i * b->width + j] = (int8_t)(most > 0 ? rintf(v[i] * (127 / most)) : 0);
    }
}

size_t vq_basis_bytes(const vq_basis *b) { return (size_t)b->d * b->width + b->width * sizeof(float); }

void vq_basis_to(const vq_basis *b, const float *x, uint32_t n, float *y)
{
    b->k->project(y, x, b->entry, b->scale, b->d, b->width, n);
}

void vq_basis_from(const vq_basis *b, float *y, float *x)
{
    for (uint32_t j = 0; j < b->width; j++)
        y[j] *= b->scale[j];
    for (uint32_t i = 0; i < b->d; i++) {
        const int8_t *entry = b->entry + (size_t)i * b->width;
        float part[VQ_CODES_GROUP] = {0};
        for (uint32_t j = 0; j < b->width; j += VQ_CODES_GROUP)
            for (uint32_t p = 0; p < VQ_CODES_GROUP; p++)
                part[p] += y[j + p] * (float)entry[j + p];
        x[i] = ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
    }
}
