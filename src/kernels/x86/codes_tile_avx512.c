/* Tiles of codes with AVX-512: planes become bytes through vpermb, whose six index bits make masks needless (the table
 * repeats itself), and byte products go through vpdpbusd. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/codes_inner.h"
#include "kernels/x86/codes_avx512.h"

#define INLINE static inline __attribute__((always_inline))

/* Pages of one head lie far apart, so the processor does not see the next one coming.  The address need not exist. */
INLINE void fetch(const uint8_t *p, size_t n_bytes, ptrdiff_t ahead)
{
    for (size_t i = 0; i < n_bytes; i += 64)
        _mm_prefetch((const char *)((uintptr_t)p + (uintptr_t)ahead + i), _MM_HINT_T0);
}

typedef struct tables {
    __m512i t[4];
} tables;

/* The table of 2^bits bytes, repeated to fill a register, or in up to four registers. */
INLINE tables load_tables(const uint8_t *table, uint32_t bits)
{
    tables t;
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    memcpy(&two, table, sizeof two);
    memcpy(&four, table, sizeof four);
    memcpy(&eight, table, sizeof eight);
    switch (bits) {
    case 1: t.t[0] = _mm512_set1_epi16((int16_t)two); break;
    case 2: t.t[0] = _mm512_set1_epi32((int32_t)four); break;
    case 3: t.t[0] = _mm512_set1_epi64((int64_t)eight); break;
    case 4: t.t[0] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)); break;
    case 5: t.t[0] = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)table)); break;
    default:
        for (uint32_t i = 0; i < (bits == 6 ? 1u : bits == 7 ? 2u : 4u); i++)
            t.t[i] = _mm512_loadu_si512(table + 64 * i);
    }
    return t;
}

/* Where `which` has ones a, else b. */
INLINE __m512i choose(__m512i which, __m512i a, __m512i b) { return _mm512_ternarylogic_epi32(a, b, which, 0xe4); }

/* Turns right by `low` bits in the lower half and by `high` in the upper one; bits that stay in their byte are right.
 */
INLINE __m512i turn(__m512i v, int low, int high)
{
    return _mm512_rorv_epi32(v, _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high));
}

/* Register s of a group: bytes of the table. */
INLINE __m512i unpack(const uint8_t *p, int s, uint32_t bits, const tables *t)
{
    const uint8_t *crumbs = p + (bits & 4 ? 128 : 0), *single = crumbs + (bits & 2 ? 64 : 0);
    __m512i index = _mm512_setzero_si512();
    if (bits == 8)
        index = _mm512_loadu_si512(p + 64 * s);
    if (bits & 4)
        index = _mm512_srli_epi16(_mm512_loadu_si512(p + 64 * (s / 2)), (unsigned)(4 * (s % 2)));
    if (bits & 2) {
        const __m512i v = _mm512_loadu_si512(crumbs);
        if (bits & 4)
            index = choose(_mm512_set1_epi8(15), index, turn(v, 2 * s - 4, 2 * s - 4));
        else
            index = _mm512_srli_epi16(v, (unsigned)(2 * s));
    }
    if (bits & 1) {
        const __m512i v = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)single));
        const int to = (int)bits - 1;
        const __m512i bit = turn(v, s - to, s + 4 - to);
        index = bits == 1 ? bit : choose(_mm512_set1_epi8((char)((1 << to) - 1)), index, bit);
    }
    if (bits <= 6)
        return _mm512_permutexvar_epi8(index, t->t[0]);
    const __m512i low = _mm512_permutex2var_epi8(t->t[0], index, t->t[1]);
    if (bits == 7)
        return low;
    const __m512i high = _mm512_permutex2var_epi8(t->t[2], index, t->t[3]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(index), high);
}

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
