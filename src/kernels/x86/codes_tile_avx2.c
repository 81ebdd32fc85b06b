/* Tiles of codes with AVX2: planes of up to 4 bits become bytes through vpshufb, wider codes through a table in memory;
 * byte products are vpmaddubsw, whose 16-bit sums can't saturate within the ranges that codes.h asks for. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/codes_inner.h"
#include "kernels/x86/codes_avx2.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }
INLINE void store(uint8_t *p, __m256i v) { _mm256_storeu_si256((__m256i *)(void *)p, v); }

/* Pages of one head lie far apart, so the processor does not see the next one coming.  The address need not exist. */
INLINE void fetch(const uint8_t *p, size_t n_bytes, ptrdiff_t ahead)
{
    for (size_t i = 0; i < n_bytes; i += 64)
        _mm_prefetch((const char *)((uintptr_t)p + (uintptr_t)ahead + i), _MM_HINT_T0);
}

/* (v >> n) & mask in every byte; n may be negative. */
INLINE __m256i field(__m256i v, int n, int mask)
{
    const __m256i moved = n >= 0 ? _mm256_srli_epi16(v, n) : _mm256_slli_epi16(v, -n);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)mask));
}

/* Half h (32 bytes) of register s of a group: codes. */
INLINE __m256i unpack(const uint8_t *p, int s, int h, int bits)
{
    const uint8_t *crumbs = p + (bits & 4 ? 128 : 0), *single = crumbs + (bits & 2 ? 64 : 0);
    __m256i code = _mm256_setzero_si256();
    int at = 0;
    if (bits == 8)
        return load(p + 64 * s + 32 * h);
    if (bits & 4) {
        code = field(load(p + 64 * (s / 2) + 32 * h), 4 * (s % 2), 15);
        at = 4;
    }
    if (bits & 2) {
        code = _mm256_or_si256(code, field(load(crumbs + 32 * h), 2 * s - at, 3 << at));
        at += 2;
    }
    if (bits & 1)
        code = _mm256_or_si256(code, field(load(single), s + 4 * h - at, 1 << at));
    return code;
}

/* Where half h of register s of group g goes. */
INLINE uint8_t *place(uint8_t *tile, bool keys, size_t n_lanes, uint32_t r, uint32_t g, int s, int h)
{
    if (keys)
        return tile + (((size_t)2 * g + (size_t)(s / 2)) * VQ_CODES_ROWS + r * VQ_CODES_GRANULE) * 4 +
               (size_t)(s % 2) * 64 + (size_t)h * 32;
    return tile + ((r * 8 + (size_t)(2 * s + h)) * n_lanes + (size_t)VQ_CODES_GROUP * g) * 4;
}

INLINE void unpack_tile(uint8_t *tile, const uint8_t *packed, int bits, const uint8_t *table, bool keys,
                        uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    const size_t n_lanes = vq_codes_lanes(VQ_CODES_GROUP * n_groups);
    __m256i t = _mm256_setzero_si256();
    if (bits <= 4) {
        uint8_t sixteen[16] = {0};
        memcpy(sixteen, table, (size_t)1 << bits);
        t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)sixteen));
    }
    for (uint32_t r = 0; r < n_granules; r++)
        for (uint32_t g = 0; g < n_groups; g++, packed += vq_codes_group_bytes((uint32_t)bits)) {
            if (ahead)
                fetch(packed, vq_codes_group_bytes((uint32_t)bits), ahead);
            for (int s = 0; s < 4; s++)
                for (int h = 0; h < 2; h++) {
                    uint8_t *to = place(tile, keys, n_lanes, r, g, s, h);
                    const __m256i code = unpack(packed, s, h, bits);
                    if (bits <= 4) {
                        store(to, _mm256_shuffle_epi8(t, code));
                        continue;
                    }
                    store(to, code);
                    if (table)
                        for (uint32_t i = 0; i < 32; i++)
                            to[i] = table[to[i]];
                }
        }
}

void vq_codes_unpack_keys_avx2(uint8_t *tile, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                               uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    switch (bits) {
    case 1: unpack_tile(tile, packed, 1, table, true, n_groups, n_granules, ahead); break;
    case 2: unpack_tile(tile, packed, 2, table, true, n_groups, n_granules, ahead); break;
    case 3: unpack_tile(tile, packed, 3, table, true, n_groups, n_granules, ahead); break;
    case 4: unpack_tile(tile, packed, 4, table, true, n_groups, n_granules, ahead); break;
    case 5: unpack_tile(tile, packed, 5, table, true, n_groups, n_granules, ahead); break;
    case 6: unpack_tile(tile, packed, 6, table, true, n_groups, n_granules, ahead); break;
    case 7: unpack_tile(tile, packed, 7, table, true, n_groups, n_granules, ahead); break;
    default: unpack_tile(tile, packed, 8, table, true, n_groups, n_granules, ahead);
    }
}

void vq_codes_unpack_values_avx2(int8_t *tile, const uint8_t *packed, uint32_t bits, const int8_t *table,
                                 uint32_t n_groups, uint32_t n_granules, ptrdiff_t ahead)
{
    uint8_t *to = (uint8_t *)tile;
    const uint8_t *t = (const uint8_t *)table;
    switch (bits) {
    case 1: unpack_tile(to, packed, 1, t, false, n_groups, n_granules, ahead); break;
    case 2: unpack_tile(to, packed, 2, t, false, n_groups, n_granules, ahead); break;
    case 3: unpack_tile(to, packed, 3, t, false, n_groups, n_granules, ahead); break;
    case 4: unpack_tile(to, packed, 4, t, false, n_groups, n_granules, ahead); break;
    case 5: unpack_tile(to, packed, 5, t, false, n_groups, n_granules, ahead); break;
    case 6: unpack_tile(to, packed, 6, t, false, n_groups, n_granules, ahead); break;
    case 7: unpack_tile(to, packed, 7, t, false, n_groups, n_granules, ahead); break;
    default: unpack_tile(to, packed, 8, t, false, n_groups, n_granules, ahead);
    }
}

enum { MOST_VECTORS = 4, MOST_ROWS = 2, MOST_TILE = 512 * VQ_CODES_ROWS };

/* n_vectors * 8 lanes times n_rows rows of b: eight sums and their operands fill the sixteen registers. */
INLINE void dots_block(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_quads,
                       const uint8_t *b, size_t b_stride, int n_vectors, int n_rows, bool tile_unsigned)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[MOST_ROWS][MOST_VECTORS];
    for (int i = 0; i < n_rows; i++)
        for (int v = 0; v < n_vectors; v++)
            sum[i][v] = _mm256_setzero_si256();
    for (uint32_t q = 0; q < n_quads; q++, tile += tile_stride, b += 4) {
        __m256i c[MOST_ROWS];
        for (int i = 0; i < n_rows; i++) {
            int32_t four;
            memcpy(&four, b + (size_t)i * b_stride, sizeof four);
            c[i] = _mm256_set1_epi32(four);
        }
        for (int v = 0; v < n_vectors; v++) {
            const __m256i t = load(tile + 32 * v);
            for (int i = 0; i < n_rows; i++) {
                const __m256i two = tile_unsigned ? _mm256_maddubs_epi16(t, c[i]) : _mm256_maddubs_epi16(c[i], t);
                sum[i][v] = _mm256_add_epi32(sum[i][v], _mm256_madd_epi16(two, ones));
            }
        }
    }
    for (int i = 0; i < n_rows; i++)
        for (int v = 0; v < n_vectors; v++)
            _mm256_storeu_si256((__m256i *)(void *)(out + (size_t)i * out_stride + 8 * v), sum[i][v]);
}

INLINE void dots_rows(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_quads,
                      const uint8_t *b, size_t b_stride, uint32_t n, int n_vectors, bool us)
{
    for (; n >= 2; n -= 2, out += 2 * out_stride, b += 2 * b_stride)
        dots_block(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n_vectors, 2, us);
    if (n > 0)
        dots_block(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n_vectors, 1, us);
}

INLINE void dots(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_lanes,
                 uint32_t n_quads, const uint8_t *b, size_t b_stride, uint32_t n, bool us)
{
    for (; n_lanes >= 32; n_lanes -= 32, out += 32, tile += 128)
        dots_rows(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n, 4, us);
    if (n_lanes >= 16)
        dots_rows(out, out_stride, tile, tile_stride, n_quads, b, b_stride, n, 2, us);
}

void vq_codes_dots_us_avx2(int32_t *out, size_t out_stride, const uint8_t *tile, size_t tile_stride, uint32_t n_lanes,
                           uint32_t n_quads, const int8_t *b, size_t b_stride, uint32_t n)
{
    dots(out, out_stride, tile, tile_stride, n_lanes, n_quads, (const uint8_t *)b, b_stride, n, true);
}

void vq_codes_dots_su_avx2(int32_t *out, size_t out_stride, const int8_t *tile, size_t tile_stride, uint32_t n_lanes,
                           uint32_t n_quads, const uint8_t *b, size_t b_stride, uint32_t n)
{
    dots(out, out_stride, (const uint8_t *)tile, tile_stride, n_lanes, n_quads, b, b_stride, n, false);
}

/* Sixteen registers don't hold the sums and what is unpacked: rows of a tile in L1 are as good. */
void vq_codes_dots_keys_avx2(int32_t *out, const uint8_t *packed, uint32_t bits, const uint8_t *table,
                             uint32_t n_groups, uint32_t n_granules, const int8_t *b, size_t b_stride, uint32_t n,
                             ptrdiff_t ahead)
{
    uint8_t tile[MOST_TILE];
    vq_codes_unpack_keys_avx2(tile, packed, bits, table, n_groups, n_granules, ahead);
    vq_codes_dots_us_avx2(out, VQ_CODES_ROWS, tile, VQ_CODES_ROWS * 4, n_granules * VQ_CODES_GRANULE, 2 * n_groups, b,
                          b_stride, n);
}

void vq_codes_dots_values_avx2(int32_t *out, size_t out_stride, const uint8_t *packed, uint32_t bits,
                               const int8_t *table, uint32_t n_groups, uint32_t n_granules, const uint8_t *b,
                               size_t b_stride, uint32_t n, ptrdiff_t ahead)
{
    uint8_t tile[MOST_TILE];
    const uint32_t n_lanes = vq_codes_lanes(VQ_CODES_GROUP * n_groups), n_used = VQ_CODES_GROUP * n_groups;
    vq_codes_unpack_values_avx2((int8_t *)tile, packed, bits, table, n_groups, n_granules, ahead);
    const uint32_t lane = n_used / 16 * 16;
    if (lane > 0)
        vq_codes_dots_su_avx2(out, out_stride, (const int8_t *)tile, (size_t)n_lanes * 4, lane, n_granules * 8, b,
                              b_stride, n);
    if (lane == n_used)
        return;
    int32_t last[VQ_CODES_FUSED][16];
    vq_codes_dots_su_avx2(last[0], 16, (const int8_t *)tile + (size_t)lane * 4, (size_t)n_lanes * 4, 16, n_granules * 8,
                          b, b_stride, n);
    for (uint32_t i = 0; i < n; i++)
        memcpy(out + i * out_stride + lane, last[i], VQ_CODES_GROUP * sizeof *out);
}
