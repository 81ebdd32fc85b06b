/* Trellis codes with AVX-512.  The 256 metrics stay in 8 registers; what a set costs is one vpermw.  Decoding is a
 * product of bit matrices (GF2P8AFFINEQB) for each byte that a window touches, and one vpermb for the level. */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/trellis_inner.h"

#define INLINE static inline __attribute__((always_inline))

static void costs(uint16_t *cost, uint8_t *other, const float *x, const vq_trellis_table *t, uint32_t n)
{
    const uint32_t n_others = 1u << (t->bits - 1);
    const __m512 unit = _mm512_set1_ps(t->unit), top = _mm512_set1_ps(VQ_TRELLIS_TOP_COST);
    for (uint32_t j = 0; j < n; j++, cost += VQ_TRELLIS_SETS, other += VQ_TRELLIS_SETS) {
        const __m512 v = _mm512_set1_ps(x[j]);
        __m512 best = _mm512_set1_ps(INFINITY);
        __m512i which = _mm512_setzero_si512();
        for (uint32_t l = 0; l < n_others; l++) {
            const __m512 off = _mm512_sub_ps(v, _mm512_loadu_ps(t->level + (size_t)VQ_TRELLIS_SETS * l));
            const __m512 squared = _mm512_mul_ps(off, off);
            const __mmask16 less = _mm512_cmp_ps_mask(squared, best, _CMP_LT_OQ);
            best = _mm512_mask_mov_ps(best, less, squared);
            which = _mm512_mask_set1_epi32(which, less, (int)l);
        }
        const __m512 least = _mm512_set1_ps(_mm512_reduce_min_ps(best));
        const __m512 units = _mm512_mul_ps(_mm512_sub_ps(best, least), unit);
        const __m512i rounded = _mm512_mask_cvttps_epi32(_mm512_set1_epi32(VQ_TRELLIS_TOP_COST),
                                                         _mm512_cmp_ps_mask(units, top, _CMP_LT_OQ), units);
        _mm256_storeu_si256((__m256i *)(void *)cost, _mm512_cvtepi32_epi16(rounded));
        _mm_storeu_si128((__m128i *)(void *)other, _mm512_cvtepi32_epi8(which));
    }
}

INLINE __m512i load16(const uint16_t *p) { return _mm512_loadu_si512(p); }

/* Takes the least of 256 off all. */
INLINE void rebase(__m512i *m)
{
    __m512i least = m[0];
    for (uint32_t i = 1; i < 8; i++)
        least = _mm512_min_epu16(least, m[i]);
    const __m256i half = _mm256_min_epu16(_mm512_castsi512_si256(least), _mm512_extracti64x4_epi64(least, 1));
    const __m128i quarter = _mm_min_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m512i off = _mm512_broadcastw_epi16(_mm_minpos_epu16(quarter));
    for (uint32_t i = 0; i < 8; i++)
        m[i] = _mm512_sub_epi16(m[i], off);
}

static void walk(uint8_t *back, uint16_t *metric, const uint16_t *cost, const vq_trellis_table *t)
{
    static const uint16_t lanes[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                       32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    const __m512i even = load16(lanes), odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
    __m512i m[8], next[8];
    for (uint32_t i = 0; i < 8; i++)
        m[i] = load16(metric + (size_t)32 * i);
    for (uint32_t p = 0; p < 8; p++, cost += VQ_TRELLIS_SETS, back += VQ_TRELLIS_STATES / 8) {
        const __m512i price = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)cost));
        for (uint32_t i = 0; i < 4; i++) {
            const __m512i from_even = _mm512_permutex2var_epi16(m[2 * i], even, m[2 * i + 1]);
            const __m512i from_odd = _mm512_permutex2var_epi16(m[2 * i], odd, m[2 * i + 1]);
            for (uint32_t h = i; h < 8; h += 4) {
                const __m512i a =
                    _mm512_adds_epu16(from_even, _mm512_permutexvar_epi16(load16(t->even + (size_t)32 * h), price));
                const __m512i b =
                    _mm512_adds_epu16(from_odd, _mm512_permutexvar_epi16(load16(t->odd + (size_t)32 * h), price));
                const uint32_t lost = _cvtmask32_u32(_mm512_cmplt_epu16_mask(b, a));
                memcpy(back + (size_t)4 * h, &lost, sizeof lost);
                next[h] = _mm512_min_epu16(a, b);
            }
        }
        if (p % 4 == 3)
            rebase(next);
        memcpy(m, next, sizeof m);
    }
    for (uint32_t i = 0; i < 8; i++)
        _mm512_storeu_si512(metric + (size_t)32 * i, m[i]);
}

/* ---- decoding: a register is a byte of all rows, granule 0 in its lower half ---- */

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

/* The 8 coordinates of a group, as bytes of levels [16 << (bits - 1)]. */
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
    default: read_group(r, out, t, levels, 4);
    }
}

INLINE void store_halves(uint8_t *first, uint8_t *second, __m512i v, uint32_t n)
{
    _mm256_storeu_si256((__m256i *)(void *)first, _mm512_castsi512_si256(v));
    if (n > 1)
        _mm256_storeu_si256((__m256i *)(void *)second, _mm512_extracti64x4_epi64(v, 1));
}

static void unpack_keys(uint8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
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
            store_halves(tile, tile + 128, _mm512_unpacklo_epi16(a, b), n_granules);
            store_halves(tile + 32, tile + 160, _mm512_unpackhi_epi16(a, b), n_granules);
            store_halves(tile + 64, tile + 192, _mm512_unpacklo_epi16(c, d), n_granules);
            store_halves(tile + 96, tile + 224, _mm512_unpackhi_epi16(c, d), n_granules);
        }
    }
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

static void unpack_values(int8_t *tile, const uint8_t *packed, const uint8_t *bits, uint32_t n_groups,
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

void vq_trellis_kernels_init_avx512(vq_trellis_kernels *k)
{
    k->costs = costs;
    k->walk = walk;
    k->unpack_keys = unpack_keys;
    k->unpack_values = unpack_values;
}
