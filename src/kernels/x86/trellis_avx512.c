/* Trellis codes with AVX-512: the search.  The 256 metrics stay in 8 registers; what a set costs is one vpermw. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/trellis_inner.h"
#include "kernels/x86/trellis_avx512.h"

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

void vq_trellis_kernels_init_avx512(vq_trellis_kernels *k)
{
    k->costs = costs;
    k->walk = walk;
    k->unpack_keys = vq_trellis_unpack_keys_avx512;
    k->dots_keys = vq_trellis_dots_keys_avx512;
    k->unpack_values = vq_trellis_unpack_values_avx512;
    k->dots_values = vq_trellis_dots_values_avx512;
}
