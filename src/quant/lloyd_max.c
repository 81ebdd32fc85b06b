#include "quant/lloyd_max.h"

#include <assert.h>

double vq_lloyd_max_level(uint32_t bits, uint32_t code)
{
    assert(bits >= 1 && bits <= VQ_LLOYD_MAX_BITS && code < 1u << bits);
    const uint32_t half = 1u << (bits - 1);
    return code >= half ? vq_lloyd_max_half[bits - 1][code - half] : -vq_lloyd_max_half[bits - 1][half - 1 - code];
}
