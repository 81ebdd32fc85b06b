/* Tiles of codes with AVX-512: byte products go through vpdpbusd. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/codes_inner.h"
#include "kernels/x86/codes_avx512.h"
#include "kernels/x86/codes_unpack_avx512.h"

INLINE void unpack_keys(uint8_t *tile, const uint8_t *packed, uint32_t bits, const uint8_t *table, bool plain,
                        uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    tables t;
    if (!plain)
        t = load_tables(table, bits);
    for (uint32_t r = 0; r < n_granules; r++)
        for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
            if (ahead)
                fetch(packed, vq_codes_group_bytes(bits), ahead);
            uint8_t *to = tile + ((size_t)2 * g * VQ_CODES_ROWS + r * VQ_CODES_GRANULE) * 4;
            for (int s = 0; s < 4; s++)
                _mm512_storeu_si512(to + (size_t)(s / 2) * VQ_CODES_ROWS * 4 + (size_t)(s % 2) * 64,
                                    plain ? _mm512_loadu_si512(packed + 64 * s) : unpack(packed, s, bits, &t));
        }
}

INLINE void unpack_values(uint8_t *tile, const uint8_t *packed, uint32_t bits, const uint8_t *table, bool plain,
                          uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    const size_t n_lanes = vq_codes_lanes(VQ_CODES_GROUP * n_groups);
    tables t;
    if (!plain)
        t = load_tables(table, bits);
    for (uint32_t r = 0; r < n_granules; r++)
        for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes(bits)) {
            if (ahead)
                fetch(packed, vq_codes_group_bytes(bits), ahead);
            uint8_t *to = tile + (r * 8 * n_lanes + (size_t)VQ_CODES_GROUP * g) * 4;
            for (int s = 0; s < 4; s++, to += 2 * n_lanes * 4) {
                const __m512i v = plain ? _mm512_loadu_si512(packed + 64 * s) : unpack(packed, s, bits, &t);
                _mm256_storeu_si256((__m256i *)(void *)to, _mm512_castsi512_si256(v));
                _mm256_storeu_si256((__m256i *)(void *)(to + n_lanes * 4), _mm512_extracti64x4_epi64(v, 1));
            }
        }
}

void vq_codes_unpack_keys_avx512(uint8_t *tile, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                                 uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    if (!table) {
        unpack_keys(tile, packed, 8, NULL, true, n_groups, n_granules, ahead);
        return;
    }
    switch (bits) {
    case 1: unpack_keys(tile, packed, 1, table, false, n_groups, n_granules, ahead); break;
    case 2: unpack_keys(tile, packed, 2, table, false, n_groups, n_granules, ahead); break;
    case 3: unpack_keys(tile, packed, 3, table, false, n_groups, n_granules, ahead); break;
    case 4: unpack_keys(tile, packed, 4, table, false, n_groups, n_granules, ahead); break;
    case 5: unpack_keys(tile, packed, 5, table, false, n_groups, n_granules, ahead); break;
    case 6: unpack_keys(tile, packed, 6, table, false, n_groups, n_granules, ahead); break;
    case 7: unpack_keys(tile, packed, 7, table, false, n_groups, n_granules, ahead); break;
    default: unpack_keys(tile, packed, 8, table, false, n_groups, n_granules, ahead);
    }
}

void vq_codes_unpack_values_avx512(int8_t *tile, const uint8_t *packed, uint32_t bits, const int8_t *table,
                                   uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    uint8_t *to = (uint8_t *)tile;
    const uint8_t *t = (const uint8_t *)table;
    if (!table) {
        unpack_values(to, packed, 8, NULL, true, n_groups, n_granules, ahead);
        return;
    }
    switch (bits) {
    case 1: unpack_values(to, packed, 1, t, false, n_groups, n_granules, ahead); break;
    case 2: unpack_values(to, packed, 2, t, false, n_groups, n_granules, ahead); break;
    case 3: unpack_values(to, packed, 3, t, false, n_groups, n_granules, ahead); break;
    case 4: unpack_values(to, packed, 4, t, false, n_groups, n_granules, ahead); break;
    case 5: unpack_values(to, packed, 5, t, false, n_groups, n_granules, ahead); break;
    case 6: unpack_values(to, packed, 6, t, false, n_groups, n_granules, ahead); break;
    case 7: unpack_values(to, packed, 7, t, false, n_groups, n_granules, ahead); break;
    default: unpack_values(to, packed, 8, t, false, n_groups, n_granules, ahead);
    }
}

enum { MOST_VECTORS = 4, MOST_ROWS = 6 };

/* n_vectors * 16 lanes times n_rows rows of b, all sums in registers. */
INLINE void dots_block(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_quads,
                       const uint8_t *b, size_t b_stride, int n_vectors, int n_rows, bool tile_unsigned)
{
    __m512i sum[MOST_ROWS][MOST_VECTORS];
    for (int i = 0; i < n_rows; i++)
        for (int v = 0; v < n_vectors; v++)
            sum[i][v] = _mm512_setzero_si512();
    for (uint32_t q = 0; q < n_quads; q++, tile += tile_stride, b += 4) {
        __m512i t[MOST_VECTORS];
        for (int v = 0; v < n_vectors; v++)
            t[v] = _mm512_loadu_si512(tile + 64 * v);
        for (int i = 0; i < n_rows; i++) {
            int32_t four;
            memcpy(&four, b + (size_t)i * b_stride, sizeof four);
            const __m512i c = _mm512_set1_epi32(four);
            for (int v = 0; v < n_vectors; v++)
                sum[i][v] =
                    tile_unsigned ? _mm512_dpbusd_epi32(sum[i][v], t[v], c) : _mm512_dpbusd_epi32(sum[i][v], c, t[v]);
        }
    }
    for (int i = 0; i < n_rows; i++)
        for (int v = 0; v < n_vectors; v++)
            _mm512_storeu_si512(out + (size_t)i * out_stride + 16 * v, sum[i][v]);
}

/* Rows of b in blocks: enough sums at once to hide the latency of a product, few enough to stay in registers. */
INLINE void dots_rows(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_quads,
                      const uint8_t *b, size_t b_stride, uint32_t n, int n_vectors, bool us)
{
    for (; n >= 6; n -= 6, out += 6 * out_stride, b += 6 * b_stride)
        dots_block(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n_vectors, 6, us);
    switch (n) {
    case 5: dots_block(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n_vectors, 5, us); break;
    case 4: dots_block(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n_vectors, 4, us); break;
    case 3: dots_block(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n_vectors, 3, us); break;
    case 2: dots_block(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n_vectors, 2, us); break;
    case 1: dots_block(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n_vectors, 1, us); break;
    default: break;
    }
}

INLINE void dots(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_lanes,
                 uint32_t n_quads, const uint8_t *b, size_t b_stride, uint32_t n, bool us)
{
    for (; n_lanes >= 64; n_lanes -= 64, out += 64, tile += 256)
        dots_rows(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n, 4, us);
    if (n_lanes >= 32) {
        dots_rows(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n, 2, us);
        n_lanes -= 32;
        out += 32;
        tile += 128;
    }
    if (n_lanes >= 16)
        dots_rows(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n, 1, us);
}

void vq_codes_dots_us_avx512(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_lanes,
                             uint32_t n_quads, const int8_t *b, size_t b_stride, uint32_t n)
{
    dots(out, out_stride, tile, tile_stride, n_lanes, n_quads, (const uint8_t *)b, b_stride, n, true);
}

void vq_codes_dots_su_avx512(int32_t *out, size_t out_stride, const int8_t *tile, size_t tile_stride, uint32_t n_lanes,
                             uint32_t n_quads, const uint8_t *b, size_t b_stride, uint32_t n)
{
    dots(out, out_stride, (const uint8_t *)tile, tile_stride, n_lanes, n_quads, b, b_stride, n, false);
}
