/* Planes of codes and tiles: the definitions (drawn in codes.h). */
#include <string.h>

#include "kernels/codes_inner.h"

/* The 256 codes of a group in register order -> planes. */
static void pack_group(uint8_t *packed, const uint8_t *reg, uint32_t bits)
{
    if (bits == 8) {
        memcpy(packed, reg, 256);
        return;
    }
    uint32_t done = 0;
    if (bits & 4) {
        for (uint32_t i = 0; i < 64; i++) {
            packed[i] = (uint8_t)((reg[i] & 15) | (reg[64 + i] & 15) << 4);
            packed[64 + i] = (uint8_t)((reg[128 + i] & 15) | (reg[192 + i] & 15) << 4);
        }
        packed += 128;
        done = 4;
    }
    if (bits & 2) {
        for (uint32_t i = 0; i < 64; i++)
            packed[i] = (uint8_t)((reg[i] >> done & 3) | (reg[64 + i] >> done & 3) << 2 |
                                  (reg[128 + i] >> done & 3) << 4 | (reg[192 + i] >> done & 3) << 6);
        packed += 64;
        done += 2;
    }
    if (bits & 1)
        for (uint32_t i = 0; i < 32; i++) {
            uint32_t byte = 0;
            for (uint32_t s = 0; s < 4; s++)
                byte |= (uint32_t)(reg[64 * s + i] >> done & 1) << s | (uint32_t)(reg[64 * s + 32 + i] >> done & 1)
                                                                           << (s + 4);
            packed[i] = (uint8_t)byte;
        }
}

/* Planes -> 256 codes in register order, each replaced by its table entry if there is a table. */
static void unpack_group(uint8_t *reg, const uint8_t *packed, uint32_t bits, const uint8_t *table)
{
    const uint8_t *nibbles = packed, *crumbs = packed + (bits & 4 ? 128 : 0), *single = crumbs + (bits & 2 ? 64 : 0);
    const uint32_t crumbs_at = bits & 4 ? 4 : 0, single_at = crumbs_at + (bits & 2 ? 2 : 0);
    for (uint32_t s = 0; s < 4; s++)
        for (uint32_t i = 0; i < 64; i++) {
            uint32_t code = 0;
            if (bits == 8)
                code = packed[64 * s + i];
            if (bits & 4)
                code |= nibbles[64 * (s / 2) + i] >> 4 * (s % 2) & 15u;
            if (bits & 2)
                code |= (crumbs[i] >> 2 * s & 3u) << crumbs_at;
            if (bits & 1)
                code |= (single[i % 32] >> (s + 4 * (i / 32)) & 1u) << single_at;
            reg[64 * s + i] = table ? table[code] : (uint8_t)code;
        }
}

void vq_codes_pack_keys_c(uint8_t *packed, const uint8_t *codes, size_t row_stride, uint32_t bits, uint32_t n_groups)
{
    uint8_t reg[256];
    for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
        for (uint32_t row = 0; row < VQ_CODES_GRANULE; row++) {
            const uint8_t *from = codes + row * row_stride + (size_t)VQ_CODES_GROUP * g;
            uint8_t *to = reg + 64 * (row / 16) + 4 * (row % 16);
            memcpy(to, from, 4);
            memcpy(to + 128, from + 4, 4);
        }
        pack_group(packed, reg, bits);
    }
}

void vq_codes_pack_values_c(uint8_t *packed, const uint8_t *codes, size_t row_stride, uint32_t bits, uint32_t n_groups)
{
    uint8_t reg[256];
    for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
        for (uint32_t row = 0; row < VQ_CODES_GRANULE; row++) {
            const uint8_t *from = codes + row * row_stride + (size_t)VQ_CODES_GROUP * g;
            for (uint32_t j = 0; j < VQ_CODES_GROUP; j++)
                reg[32 * (row / 4) + 4 * j + row % 4] = from[j];
        }
        pack_group(packed, reg, bits);
    }
}

void vq_codes_unpack_keys_c(uint8_t *tile, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                            uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    (void)ahead;
    uint8_t reg[256];
    for (uint32_t r = 0; r < n_granules; r++)
        for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
            unpack_group(reg, packed, bits, table);
            for (uint32_t a = 0; a < 2; a++)
                memcpy(tile + ((size_t)(2 * g + a) * VQ_CODES_ROWS + r * VQ_CODES_GRANULE) * 4, reg + 128 * a, 128);
        }
}

void vq_codes_unpack_values_c(int8_t *tile, const uint8_t *packed, uint32_t bits, const int8_t *table,
                              uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    (void)ahead;
    const size_t n_lanes = vq_codes_lanes(VQ_CODES_GROUP * n_groups);
    uint8_t reg[256];
    for (uint32_t r = 0; r < n_granules; r++)
        for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
            unpack_group(reg, packed, bits, (const uint8_t *)table);
            for (uint32_t quad = 0; quad < 8; quad++)
                memcpy(tile + ((r * 8 + quad) * n_lanes + (size_t)VQ_CODES_GROUP * g) * 4, reg + 32 * quad, 32);
        }
}

void vq_codes_dots_keys_c(int32_t *out, const uint8_t *packed, uint32_t bits, const uint8_t *table, uint32_t n_groups,
                          uint32_t n_granules, const int8_t *b, size_t b_stride, uint32_t n, ptrdiff_t ahead)
{
    (void)ahead;
    uint8_t reg[256];
    for (uint32_t i = 0; i < n; i++)
        memset(out + (size_t)i * VQ_CODES_ROWS, 0, n_granules * VQ_CODES_GRANULE * sizeof *out);
    for (uint32_t r = 0; r < n_granules; r++)
        for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
            unpack_group(reg, packed, bits, table);
            for (uint32_t i = 0; i < n; i++)
                for (size_t at = 0; at < sizeof reg; at++) {
                    const size_t row = at / 4 % VQ_CODES_GRANULE, dim = at / 128 * 4 + at % 4;
                    out[(size_t)i * VQ_CODES_ROWS + r * VQ_CODES_GRANULE + row] +=
                        reg[at] * b[i * b_stride + (size_t)VQ_CODES_GROUP * g + dim];
                }
        }
}

void vq_codes_dots_values_c(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits, const int8_t *table,
                            uint32_t n_groups, uint32_t n_granules, const uint8_t *b, size_t b_stride, uint32_t n,
                            ptrdiff_t ahead)
{
    (void)ahead;
    uint8_t reg[256];
    for (uint32_t i = 0; i < n; i++)
        memset(out + i * out_stride, 0, (size_t)VQ_CODES_GROUP * n_groups * sizeof *out);
    for (uint32_t r = 0; r < n_granules; r++)
        for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
            unpack_group(reg, packed, bits, (const uint8_t *)table);
            for (uint32_t i = 0; i < n; i++)
                for (size_t at = 0; at < sizeof reg; at++) {
                    const size_t row = at / 32 * 4 + at % 4, dim = at / 4 % VQ_CODES_GROUP;
                    out[i * out_stride + (size_t)VQ_CODES_GROUP * g + dim] +=
                        (int8_t)reg[at] * b[i * b_stride + r * VQ_CODES_GRANULE + row];
                }
        }
}
