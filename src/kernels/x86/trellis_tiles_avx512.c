/* Trellis codes with AVX-512: decoding, and products with what is decoded.  A level is a product of bit matrices
 * (GF2P8AFFINEQB) for each byte that a window touches, and one vpermb. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/trellis_inner.h"
#include "kernels/x86/trellis_avx512.h"

#define INLINE static inline __attribute__((always_inline))

/* A register is a byte of all rows, granule 0 in its lower half. */

typedef struct reader {
    const uint8_t *at[2]; /* of the granules; the same twice when there is one */
    ptrdiff_t ahead;
    __m512i before;
} reader;

INLINE __m512i both(const uint8_t *a, const uint8_t *b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)a)),
                              _mm256_loadu_si256((const __m256i *)(const void *)b), 1);
}

INLINE reader open_reader(const uint8_t *packed, const uint8_t *bits, uint32_t n_groups, uint32_t n_granules,
                          ptrdiff_t ahead)
{
    const size_t granule = (size_t)32 * vq_trellis_row_bytes(bits, n_groups);
    const uint8_t *last = vq_trellis_last(packed, bits, n_groups, 32);
    const size_t second = n_granules > 1 ? granule : 0;
    reader r = {.at = {packed, packed + second}, .ahead = ahead, .before = _mm512_setzero_si512()};
    if (granule)
        r.before = both(last, last + second);
    return r;
}

INLINE __m512i times(__m512i bytes, uint64_t matrix)
{
    return _mm512_gf2p8affine_epi64_epi8(bytes, _mm512_set1_epi64((long long)matrix), 0);
}

/* The 8 coordinates of a group, as bytes of levels, of which there are vq_trellis_n_levels. */
INLINE void read_group(reader *r, __m512i *out, const vq_trellis_table *t, const uint8_t *levels, uint32_t bits)
{
    __m512i plane[VQ_TRELLIS_MAX_BITS], table[2];
    for (uint32_t l = 0; l < bits; l++)
        plane[l] = both(r->at[0] + 32 * l, r->at[1] + 32 * l);
    if (r->ahead)
        for (uint32_t g = 0; g < 2; g++)
            for (uint32_t i = 0; i < 32 * bits; i += 64)
                _mm_prefetch((const char *)((uintptr_t)r->at[g] + (uintptr_t)r->ahead + i), _MM_HINT_T0);
    table[0] = bits == 1   ? _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)levels))
               : bits == 2 ? _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)levels))
                           : _mm512_loadu_si512(levels);
    table[1] = bits > 3 ? _mm512_loadu_si512(levels + 64) : table[0];
    for (uint32_t p = 0; p < 8; p++) {
        __m512i index = _mm512_xor_si512(times(plane[0], t->current[p]), times(r->before, t->before[p]));
        for (uint32_t l = 1; l < bits; l++)
            index = _mm512_xor_si512(index, times(plane[l], t->other[l - 1][p]));
        out[p] =
            bits > 3 ? _mm512_permutex2var_epi8(table[0], index, table[1]) : _mm512_permutexvar_epi8(index, table[0]);
    }
    r->before = plane[0];
    r->at[0] += 32 * bits;
    r->at[1] += 32 * bits;
}

INLINE void read_any(reader *r, __m512i *out, const vq_trellis_table *tables, uint32_t bits, bool keys)
{
    const vq_trellis_table *t = &tables[bits ? bits - 1 : 0];
    const uint8_t *levels = keys ? t->key : (const uint8_t *)t->value;
    switch (bits) {
    case 0:
        for (uint32_t p = 0; p < 8; p++)
            out[p] = _mm512_set1_epi8(keys ? 64 : 0);
        break;
    case 1: read_group(r, out, t, levels, 1); break;
    case 2: read_group(r, out, t, levels, 2); break;
    case 3: read_group(r, out, t, levels, 3); break;
    case 4: read_group(r, out, t, levels, 4); break;
    default: read_group(r, out, t, levels, 5);
    }
}

/* A tile's register has 8 rows of each granule: no half of one needs to be stored by itself. */
void vq_trellis_unpack_keys_avx512(uint8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                                   uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead)
{
    reader r = open_reader(packed, bits, n_groups, n_granules, ahead);
    for (uint32_t g = 0; g < n_groups; g++) {
        __m512i v[8];
        read_any(&r, v, tables, bits[g], true);
        for (uint32_t quad = 0; quad < 2; quad++, tile += 256) {
            const __m512i *q = v + (size_t)4 * quad;
            const __m512i a = _mm512_unpacklo_epi8(q[0], q[1]), b = _mm512_unpacklo_epi8(q[2], q[3]);
            const __m512i c = _mm512_unpackhi_epi8(q[0], q[1]), d = _mm512_unpackhi_epi8(q[2], q[3]);
            _mm512_storeu_si512(tile, _mm512_unpacklo_epi16(a, b));
            _mm512_storeu_si512(tile + 64, _mm512_unpackhi_epi16(a, b));
            _mm512_storeu_si512(tile + 128, _mm512_unpacklo_epi16(c, d));
            _mm512_storeu_si512(tile + 192, _mm512_unpackhi_epi16(c, d));
        }
    }
}

INLINE __m512i four_bytes(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

enum { KEY_ROWS = 6 }; /* halves of queries whose sums stay in registers */

/* second: the rows of the second granule, which are the upper half of each register, meet integers of their own. */
INLINE void keys_block(int32_t *out, const uint8_t *tile, uint32_t n_quads, uint32_t n_granules, const int8_t *b,
                       size_t low, size_t second, size_t stride, int n, int n_halves)
{
    __m512i sum[KEY_ROWS][4];
    for (int i = 0; i < n * n_halves; i++)
        for (int v = 0; v < 4; v++)
            sum[i][v] = _mm512_setzero_si512();
    for (uint32_t q = 0; q < n_quads; q++, tile += 256, b += 4) {
        __m512i t[4];
        for (int v = 0; v < 4; v++)
            t[v] = _mm512_loadu_si512(tile + 64 * v);
        for (int i = 0; i < n; i++)
            for (int h = 0; h < n_halves; h++) {
                const int8_t *own = b + (size_t)i * stride + (size_t)h * low;
                __m512i c = four_bytes(own);
                if (second)
                    c = _mm512_mask_mov_epi32(c, 0xff00, four_bytes(own + second));
                for (int v = 0; v < 4; v++)
                    sum[i * n_halves + h][v] = _mm512_dpbusd_epi32(sum[i * n_halves + h][v], t[v], c);
            }
    }
    for (int i = 0; i < n; i++, out += 64) {
        __m512i s[4];
        for (int v = 0; v < 4; v++)
            s[v] = n_halves == 1 ? sum[i][v] : _mm512_add_epi32(_mm512_slli_epi32(sum[2 * i][v], 7), sum[2 * i + 1][v]);
        for (int v = 0; v < 2; v++)
            _mm512_storeu_si512(out + 16 * v, _mm512_shuffle_i64x2(s[2 * v], s[2 * v + 1], 0x44));
        for (int v = 0; v < 2 && n_granules > 1; v++)
            _mm512_storeu_si512(out + 32 + 16 * v, _mm512_shuffle_i64x2(s[2 * v], s[2 * v + 1], 0xee));
    }
}

INLINE void keys_narrow(int32_t *out, const uint8_t *tile, uint32_t n_quads, uint32_t n_granules, const int8_t *b,
                        size_t second, size_t stride, uint32_t n)
{
    for (; n >= 6; n -= 6, out += 6 * 64, b += 6 * stride)
        keys_block(out, tile, n_quads, n_granules, b, 0, second, stride, 6, 1);
    switch (n) {
    case 5: keys_block(out, tile, n_quads, n_granules, b, 0, second, stride, 5, 1); break;
    case 4: keys_block(out, tile, n_quads, n_granules, b, 0, second, stride, 4, 1); break;
    case 3: keys_block(out, tile, n_quads, n_granules, b, 0, second, stride, 3, 1); break;
    case 2: keys_block(out, tile, n_quads, n_granules, b, 0, second, stride, 2, 1); break;
    case 1: keys_block(out, tile, n_quads, n_granules, b, 0, second, stride, 1, 1); break;
    default: break;
    }
}

void vq_trellis_dots_keys_avx512(int32_t *out, const uint8_t *tile, uint32_t n_groups, uint32_t n_granules,
                                 const int8_t *b, size_t low, size_t second, size_t stride, uint32_t n)
{
    if (low == 0) {
        if (second && n_granules > 1)
            keys_narrow(out, tile, 2 * n_groups, n_granules, b, second, stride, n);
        else
            keys_narrow(out, tile, 2 * n_groups, n_granules, b, 0, stride, n);
        return;
    }
    for (; n >= 5 || n == 3; n -= 3, out += 3 * 64, b += 3 * stride)
        keys_block(out, tile, 2 * n_groups, n_granules, b, low, 0, stride, 3, 2);
    for (; n >= 2; n -= 2, out += 2 * 64, b += 2 * stride)
        keys_block(out, tile, 2 * n_groups, n_granules, b, low, 0, stride, 2, 2);
    if (n)
        keys_block(out, tile, 2 * n_groups, n_granules, b, low, 0, stride, 1, 2);
}

/* Four dimensions: out[k] has in each quarter the rows 4k..4k+3 of that quarter of v[0..3]. */
INLINE void turn(__m512i *out, const __m512i *v)
{
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
    const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(a, b);
    out[1] = _mm512_unpackhi_epi64(a, b);
    out[2] = _mm512_unpacklo_epi64(c, d);
    out[3] = _mm512_unpackhi_epi64(c, d);
}

INLINE void store_halves(uint8_t *first, uint8_t *second, __m512i v, uint32_t n)
{
    _mm256_storeu_si256((__m256i *)(void *)first, _mm512_castsi512_si256(v));
    if (n > 1)
        _mm256_storeu_si256((__m256i *)(void *)second, _mm512_extracti64x4_epi64(v, 1));
}

void vq_trellis_unpack_values_avx512(int8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                                     uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead)
{
    const size_t line = (size_t)4 * ((8 * n_groups + 15) / 16 * 16); /* bytes of a quad of rows */
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    reader r = open_reader(packed, bits, n_groups, n_granules, ahead);
    for (uint32_t g = 0; g < n_groups; g++) {
        __m512i v[8], low[4], high[4];
        read_any(&r, v, tables, bits[g], false);
        turn(low, v);
        turn(high, v + 4);
        for (uint32_t k = 0; k < 4; k++) {
            uint8_t *to = (uint8_t *)tile + 2 * k * line + (size_t)32 * g;
            store_halves(to, to + line, _mm512_permutex2var_epi64(low[k], first, high[k]), 2);
            if (n_granules > 1)
                store_halves(to + 8 * line, to + 9 * line, _mm512_permutex2var_epi64(low[k], second, high[k]), 2);
        }
    }
    if (n_groups % 2)
        for (uint32_t q = 0; q < 8 * n_granules; q++)
            memset((uint8_t *)tile + q * line + (size_t)32 * n_groups, 0, 32);
}

/* ---- few queries: values meet weights in registers ---- */

/* Weights for `turn`: register k has in each quarter the quad of rows that quarter of out[k] has. */
INLINE void open_weights(__m512i *w, const uint8_t *b, uint32_t n_granules)
{
    const __m512i quads = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 8, 8, 8, 8, 9, 9, 9, 9);
    const __m512i all = n_granules == 2 ? _mm512_loadu_si512(b)
                                        : _mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)b));
    for (int k = 0; k < 4; k++)
        w[k] = _mm512_permutexvar_epi32(_mm512_add_epi32(quads, _mm512_set1_epi32(2 * k)), all);
}

/* x[i] has 4 dimensions in each quarter: their sums, 16 dimensions */
INLINE __m512i sum_quarters(const __m512i *x)
{
    const __m512i a = _mm512_add_epi32(_mm512_shuffle_i64x2(x[0], x[1], 0x44), _mm512_shuffle_i64x2(x[0], x[1], 0xee));
    const __m512i b = _mm512_add_epi32(_mm512_shuffle_i64x2(x[2], x[3], 0x44), _mm512_shuffle_i64x2(x[2], x[3], 0xee));
    return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

INLINE void values_rows(int32_t *out, size_t out_stride, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                        uint32_t n_granules, const vq_trellis_table *tables, const uint8_t *b, size_t b_stride, int n,
                        ptrdiff_t ahead)
{
    __m512i w[VQ_TRELLIS_FUSED][4], sum[VQ_TRELLIS_FUSED][4];
    reader r = open_reader(packed, bits, n_groups, n_granules, ahead);
    for (int i = 0; i < n; i++)
        open_weights(w[i], b + (size_t)i * b_stride, n_granules);
    for (uint32_t g = 0; g < n_groups; g += 2, out += 16) {
        const uint32_t now = n_groups - g < 2 ? 1 : 2;
        for (int i = 0; i < n; i++)
            for (int s = 0; s < 4; s++)
                sum[i][s] = _mm512_setzero_si512();
        for (uint32_t t = 0; t < now; t++) {
            __m512i v[8], low[4], high[4];
            read_any(&r, v, tables, bits[g + t], false);
            turn(low, v);
            turn(high, v + 4);
            for (int i = 0; i < n; i++) {
                __m512i first = _mm512_setzero_si512(), second = first;
                for (int k = 0; k < 4; k++) {
                    first = _mm512_dpbusd_epi32(first, w[i][k], low[k]);
                    second = _mm512_dpbusd_epi32(second, w[i][k], high[k]);
                }
                sum[i][2 * t] = first;
                sum[i][2 * t + 1] = second;
            }
        }
        for (int i = 0; i < n; i++) {
            const __m512i all = sum_quarters(sum[i]);
            if (now == 2)
                _mm512_storeu_si512(out + (size_t)i * out_stride, all);
            else
                _mm256_storeu_si256((__m256i *)(void *)(out + (size_t)i * out_stride), _mm512_castsi512_si256(all));
        }
    }
}

void vq_trellis_dots_values_avx512(int32_t *out, size_t out_stride, const uint8_t *packed, const uint8_t *bits,
                                   uint32_t n_groups, uint32_t n_granules, const vq_trellis_table *tables,
                                   const uint8_t *b, size_t b_stride, uint32_t n, ptrdiff_t ahead)
{
    switch (n) {
    case 1: values_rows(out, out_stride, packed, bits, n_groups, n_granules, tables, b, b_stride, 1, ahead); break;
    case 2: values_rows(out, out_stride, packed, bits, n_groups, n_granules, tables, b, b_stride, 2, ahead); break;
    case 3: values_rows(out, out_stride, packed, bits, n_groups, n_granules, tables, b, b_stride, 3, ahead); break;
    default: values_rows(out, out_stride, packed, bits, n_groups, n_granules, tables, b, b_stride, 4, ahead);
    }
}
