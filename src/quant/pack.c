#include "quant/pack.h"

size_t vq_pack_bytes(size_t n, uint32_t bits) { return (n * bits + 7) / 8; }

void vq_pack_put(uint8_t *stream, size_t at, uint32_t bits, uint32_t code)
{
    const uint32_t shift = at % 8, mask = ((1u << bits) - 1) << shift;
    uint8_t *p = stream + at / 8;
    p[0] = (uint8_t)((p[0] & ~mask) | (code << shift & mask));
    if (shift + bits > 8)
        p[1] = (uint8_t)((p[1] & ~(mask >> 8)) | (code << shift & mask) >> 8);
}

uint32_t vq_pack_get(const uint8_t *stream, size_t at, uint32_t bits)
{
    const uint32_t shift = at % 8;
    uint32_t v = stream[at / 8];
    if (shift + bits > 8)
        v |= (uint32_t)stream[at / 8 + 1] << 8;
    return v >> shift & ((1u << bits) - 1);
}
