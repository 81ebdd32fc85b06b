/* A single row among packed codes (drawn in codes.h).  It is needed when sparse pages are merged, a few rows at a time,
 * so there is one plain version. */
#include "kernels/codes.h"

/* Where a row's code of dimension `at` of a group lies: register and byte. */
typedef struct place {
    uint32_t reg, byte;
} place;

static place place_of(uint32_t row, uint32_t at, bool keys)
{
    if (keys)
        return (place){2 * (at / 4) + row / 16, 4 * (row % 16) + at % 4};
    return (place){row / 8, 32 * (row % 8 / 4) + 4 * at + row % 4};
}

static void copy_bits(uint8_t *to, uint32_t to_shift, const uint8_t *from, uint32_t from_shift, uint32_t mask)
{
    *to = (uint8_t)((*to & ~(mask << to_shift)) | (*from >> from_shift & mask) << to_shift);
}

static void copy_code(uint8_t *dst, place t, const uint8_t *src, place f, uint32_t bits)
{
    if (bits == 8) {
        dst[64 * t.reg + t.byte] = src[64 * f.reg + f.byte];
        return;
    }
    if (bits & 4) {
        copy_bits(dst + 64 * (t.reg / 2) + t.byte, 4 * (t.reg % 2), src + 64 * (f.reg / 2) + f.byte, 4 * (f.reg % 2),
                  15);
        dst += 128;
        src += 128;
    }
    if (bits & 2) {
        copy_bits(dst + t.byte, 2 * t.reg, src + f.byte, 2 * f.reg, 3);
        dst += 64;
        src += 64;
    }
    if (bits & 1)
        copy_bits(dst + t.byte % 32, t.reg + 4 * (t.byte / 32), src + f.byte % 32, f.reg + 4 * (f.byte / 32), 1);
}

void vq_codes_copy_row(uint8_t *dst, uint32_t i, const uint8_t *src, uint32_t j, uint32_t bits, uint32_t n_groups,
                       bool keys)
{
    const size_t group_bytes = vq_codes_group_bytes(bits);
    dst += i / VQ_CODES_GRANULE * n_groups * group_bytes;
    src += j / VQ_CODES_GRANULE * n_groups * group_bytes;
    for (uint32_t g = 0; g < n_groups; g++, dst += group_bytes, src += group_bytes)
        for (uint32_t at = 0; at < VQ_CODES_GROUP; at++)
            copy_code(dst, place_of(i % VQ_CODES_GRANULE, at, keys), src, place_of(j % VQ_CODES_GRANULE, at, keys),
                      bits);
}
