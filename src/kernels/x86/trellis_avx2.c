/* Decoding of trellis codes with AVX2: sets and levels by vpshufb, 16 entries at a time. */
#include <immintrin.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/trellis_inner.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

INLINE void store(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }

INLINE __m256i load_table(const void *p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p)); }

/* ---- decoding: a register is a byte of the 32 rows of a granule ---- */

typedef struct nibbles {
    __m256i low, high;
} nibbles;

INLINE nibbles split(__m256i v)
{
    const __m256i mask = _mm256_set1_epi8(15);
    return (nibbles){_mm256_and_si256(v, mask), _mm256_and_si256(_mm256_srli_epi16(v, 4), mask)};
}

/* Bit p of each byte to bit 3, the others 0. */
INLINE __m256i to_third(__m256i v, uint32_t p)
{
    const __m256i moved = p < 3 ? _mm256_slli_epi16(v, (int)(3 - p)) : _mm256_srli_epi16(v, (int)(p - 3));
    return _mm256_and_si256(moved, _mm256_set1_epi8(8));
}

/* The 8 coordinates of a group, as bytes of levels, of which there are vq_trellis_n_levels.  A look-up takes the four
 * lowest bits of which it is: the set or, of 8 sets, the first of the other bits too. */
INLINE void read_group(nibbles *before, __m256i *out, const uint8_t *from, const vq_trellis_table *t,
                       const uint8_t *levels, uint32_t bits)
{
    const uint32_t n_tables = vq_trellis_n_levels(bits) / 16, first_blend = bits < 5 ? 1 : 2;
    const nibbles now = split(load(from));
    __m256i table[VQ_TRELLIS_LEVELS / 16];
    for (uint32_t l = 0; l < n_tables; l++)
        table[l] = load_table(levels + (size_t)16 * l);
    for (uint32_t p = 0; p < 8; p++) {
        __m256i low = _mm256_xor_si256(
            _mm256_xor_si256(_mm256_shuffle_epi8(load_table(t->nibble[p][0]), now.low),
                             _mm256_shuffle_epi8(load_table(t->nibble[p][1]), p < 4 ? before->low : now.high)),
            _mm256_shuffle_epi8(load_table(t->nibble[p][2]), before->high));
        if (bits == 5)
            low = _mm256_or_si256(low, to_third(load(from + 32), p));
        __m256i level[VQ_TRELLIS_LEVELS / 16];
        for (uint32_t l = 0; l < n_tables; l++)
            level[l] = _mm256_shuffle_epi8(table[l], low);
        for (uint32_t b = first_blend; b < bits; b++) { /* bit p to where blends look, the top of each byte */
            const __m256i which = _mm256_slli_epi16(load(from + (size_t)32 * b), (int)(7 - p));
            for (uint32_t l = 0; l < 1u << (bits - 1 - b); l++)
                level[l] = _mm256_blendv_epi8(level[2 * l], level[2 * l + 1], which);
        }
        out[p] = level[0];
    }
    *before = now;
}

INLINE const uint8_t *read_any(nibbles *before, __m256i *out, const uint8_t *from, const vq_trellis_table *tables,
                               uint32_t bits, bool keys)
{
    const vq_trellis_table *t = &tables[bits ? bits - 1 : 0];
    const uint8_t *levels = keys ? t->key : (const uint8_t *)t->value;
    switch (bits) {
    case 0:
        for (uint32_t p = 0; p < 8; p++)
            out[p] = _mm256_set1_epi8(keys ? 64 : 0);
        break;
    case 1: read_group(before, out, from, t, levels, 1); break;
    case 2: read_group(before, out, from, t, levels, 2); break;
    case 3: read_group(before, out, from, t, levels, 3); break;
    case 4: read_group(before, out, from, t, levels, 4); break;
    default: read_group(before, out, from, t, levels, 5);
    }
    return from + (size_t)32 * bits;
}

INLINE nibbles open_granule(const uint8_t *packed, const uint8_t *bits, uint32_t n_groups)
{
    if (!vq_trellis_row_bytes(bits, n_groups))
        return (nibbles){_mm256_setzero_si256(), _mm256_setzero_si256()};
    return split(load(vq_trellis_last(packed, bits, n_groups, 32)));
}

static void unpack_keys(uint8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                        uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead)
{
    (void)ahead;
    for (uint32_t granule = 0; granule < n_granules; granule++) {
        uint8_t *to = tile + (size_t)128 * granule;
        nibbles before = open_granule(packed, bits, n_groups);
        for (uint32_t g = 0; g < n_groups; g++) {
            __m256i v[8];
            packed = read_any(&before, v, packed, tables, bits[g], true);
            for (uint32_t quad = 0; quad < 2; quad++, to += 256) {
                const __m256i *q = v + (size_t)4 * quad;
                const __m256i a = _mm256_unpacklo_epi8(q[0], q[1]), b = _mm256_unpacklo_epi8(q[2], q[3]);
                const __m256i c = _mm256_unpackhi_epi8(q[0], q[1]), d = _mm256_unpackhi_epi8(q[2], q[3]);
                store(to, _mm256_unpacklo_epi16(a, b));
                store(to + 32, _mm256_unpackhi_epi16(a, b));
                store(to + 64, _mm256_unpacklo_epi16(c, d));
                store(to + 96, _mm256_unpackhi_epi16(c, d));
            }
        }
    }
}

/* Four dimensions: out[k] has in each half the rows 4k..4k+3 of that half of v[0..3]. */
INLINE void turn(__m256i *out, const __m256i *v)
{
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
    const __m256i c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, b);
    out[1] = _mm256_unpackhi_epi64(a, b);
    out[2] = _mm256_unpacklo_epi64(c, d);
    out[3] = _mm256_unpackhi_epi64(c, d);
}

static void unpack_values(int8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                          uint32_t n_granules, const vq_trellis_table *tables, ptrdiff_t ahead)
{
    const size_t line = (size_t)4 * ((8 * n_groups + 15) / 16 * 16); /* bytes of a quad of rows */
    (void)ahead;
    for (uint32_t granule = 0; granule < n_granules; granule++) {
        uint8_t *lines = (uint8_t *)tile + 8 * line * granule;
        nibbles before = open_granule(packed, bits, n_groups);
        for (uint32_t g = 0; g < n_groups; g++) {
            __m256i v[8], low[4], high[4];
            packed = read_any(&before, v, packed, tables, bits[g], false);
            turn(low, v);
            turn(high, v + 4);
            for (uint32_t k = 0; k < 4; k++) {
                uint8_t *to = lines + 2 * k * line + (size_t)32 * g;
                store(to, _mm256_permute2x128_si256(low[k], high[k], 0x20));
                store(to + line, _mm256_permute2x128_si256(low[k], high[k], 0x31));
            }
        }
        for (uint32_t q = 0; n_groups % 2 && q < 8; q++)
            memset(lines + q * line + (size_t)32 * n_groups, 0, 32);
    }
}

/* ---- products ---- */

/* 32 rows times n queries: eight sums and their operands fill the sixteen registers. */
INLINE void keys_block(int32_t *out, const uint8_t *tile, uint32_t n_quads, const int8_t *b, size_t low, size_t stride,
                       int n, bool wide)
{
    const __m256i ones = _mm256_set1_epi16(1), high = _mm256_set1_epi16(wide ? 128 : 1);
    __m256i sum[2][4];
    for (int i = 0; i < n; i++)
        for (int v = 0; v < 4; v++)
            sum[i][v] = _mm256_setzero_si256();
    for (uint32_t q = 0; q < n_quads; q++, tile += 256, b += 4)
        for (int i = 0; i < n; i++) {
            int32_t four[2];
            memcpy(&four[0], b + (size_t)i * stride, sizeof four[0]);
            memcpy(&four[1], b + (size_t)i * stride + low, sizeof four[1]);
            const __m256i c = _mm256_set1_epi32(four[0]), d = _mm256_set1_epi32(four[1]);
            for (int v = 0; v < 4; v++) {
                const __m256i t = load(tile + 32 * v);
                const __m256i x = _mm256_madd_epi16(_mm256_maddubs_epi16(t, c), high);
                sum[i][v] = _mm256_add_epi32(sum[i][v], x);
                if (wide)
                    sum[i][v] = _mm256_add_epi32(sum[i][v], _mm256_madd_epi16(_mm256_maddubs_epi16(t, d), ones));
            }
        }
    for (int i = 0; i < n; i++)
        for (int v = 0; v < 4; v++)
            store(out + 64 * i + 8 * v, sum[i][v]);
}

INLINE void keys_rows(int32_t *out, const uint8_t *tile, uint32_t n_groups, uint32_t n_granules, const int8_t *b,
                      size_t low, size_t second, size_t stride, uint32_t n, bool wide)
{
    for (; n >= 2; n -= 2, out += 2 * 64, b += 2 * stride)
        for (uint32_t g = 0; g < n_granules; g++)
            keys_block(out + 32 * g, tile + (size_t)128 * g, 2 * n_groups, b + g * second, low, stride, 2, wide);
    for (uint32_t g = 0; n && g < n_granules; g++)
        keys_block(out + 32 * g, tile + (size_t)128 * g, 2 * n_groups, b + g * second, low, stride, 1, wide);
}

static void dots_keys(int32_t *out, const uint8_t *tile, uint32_t n_groups, uint32_t n_granules, const int8_t *b,
                      size_t low, size_t second, size_t stride, uint32_t n)
{
    if (low)
        keys_rows(out, tile, n_groups, n_granules, b, low, 0, stride, n, true);
    else
        keys_rows(out, tile, n_groups, n_granules, b, 0, second, stride, n, false);
}

/* 32 dimensions, or 8, times n queries. */
INLINE void values_block(int32_t *out, size_t out_stride, const uint8_t *tile, size_t line, uint32_t n_quads,
                         const uint8_t *b, size_t b_stride, int n, int n_vectors)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[2][4];
    for (int i = 0; i < n; i++)
        for (int v = 0; v < n_vectors; v++)
            sum[i][v] = _mm256_setzero_si256();
    for (uint32_t q = 0; q < n_quads; q++, tile += line, b += 4)
        for (int i = 0; i < n; i++) {
            int32_t four;
            memcpy(&four, b + (size_t)i * b_stride, sizeof four);
            const __m256i c = _mm256_set1_epi32(four);
            for (int v = 0; v < n_vectors; v++)
                sum[i][v] =
                    _mm256_add_epi32(sum[i][v], _mm256_madd_epi16(_mm256_maddubs_epi16(c, load(tile + 32 * v)), ones));
        }
    for (int i = 0; i < n; i++)
        for (int v = 0; v < n_vectors; v++)
            store(out + (size_t)i * out_stride + 8 * v, sum[i][v]);
}

static void dots_values(int32_t *out, size_t out_stride, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
                        uint32_t n_granules, const vq_trellis_table *tables, const uint8_t *b, size_t b_stride,
                        uint32_t n, ptrdiff_t ahead)
{
    uint8_t tile[VQ_TRELLIS_MAX_TILE];
    const size_t line = (size_t)4 * ((8 * n_groups + 15) / 16 * 16);
    const uint32_t n_quads = 8 * n_granules;
    unpack_values((int8_t *)tile, packed, bits, n_groups, n_granules, tables, ahead);
    for (uint32_t now; n > 0; n -= now, out += now * out_stride, b += now * b_stride) {
        uint32_t g = 0;
        now = n > 1 ? 2 : 1;
        for (; g + 4 <= n_groups; g += 4)
            if (now == 2)
                values_block(out + (size_t)8 * g, out_stride, tile + (size_t)32 * g, line, n_quads, b, b_stride, 2, 4);
            else
                values_block(out + (size_t)8 * g, out_stride, tile + (size_t)32 * g, line, n_quads, b, b_stride, 1, 4);
        for (; g < n_groups; g++)
            if (now == 2)
                values_block(out + (size_t)8 * g, out_stride, tile + (size_t)32 * g, line, n_quads, b, b_stride, 2, 1);
            else
                values_block(out + (size_t)8 * g, out_stride, tile + (size_t)32 * g, line, n_quads, b, b_stride, 1, 1);
    }
}

void vq_trellis_kernels_init_avx2(vq_trellis_kernels *k)
{
    k->unpack_keys = unpack_keys;
    k->unpack_values = unpack_values;
    k->dots_keys = dots_keys;
    k->dots_values = dots_values;
}
