/* PolarQuant's blocks, AVX-512 tier: sixteen blocks side by side, one in each lane. */
#include <immintrin.h>
#include <stddef.h>

#include "kernels/polar.h"

enum { LANES = 16 };

static inline void transpose(__m512 v[LANES])
{
    __m512 t[LANES];
    for (uint32_t i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (uint32_t i = 0; i < LANES; i += 4)
        for (uint32_t h = 0; h < 2; h++) {
            const __m512d a = _mm512_castps_pd(t[i + h]), b = _mm512_castps_pd(t[i + 2 + h]);
            v[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            v[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    for (uint32_t i = 0; i < 4; i++) { /* now blocks of 4 x 4 */
        t[i] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
    }
    for (uint32_t i = 0; i < 8; i++) {
        v[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    }
}

typedef struct tables {
    __m512 circle[2], quarter[3][2]; /* cosines, sines; of quarters four times the same */
} tables;

static inline tables load_tables(void)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i each = _mm512_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6);
    const __m512i one = _mm512_set1_epi32(1);
    const __m512 low = _mm512_loadu_ps(vq_polar_circle[0]), high = _mm512_loadu_ps(vq_polar_circle[8]);
    tables t;
    t.circle[0] = _mm512_permutex2var_ps(low, even, high);
    t.circle[1] = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, one), high);
    for (uint32_t level = 0; level < 3; level++) {
        const __m512 all = _mm512_castps256_ps512(_mm256_loadu_ps(vq_polar_quarter[level][0]));
        t.quarter[level][0] = _mm512_permutexvar_ps(each, all);
        t.quarter[level][1] = _mm512_permutexvar_ps(_mm512_add_epi32(each, one), all);
    }
    return t;
}

/* A look-up reads the low four bits of a lane, so codes need no mask. */
static inline void split(__m512 out[2], __m512 r, const __m512 table[2], __m512i code)
{
    out[0] = _mm512_mul_ps(r, _mm512_permutexvar_ps(code, table[0]));
    out[1] = _mm512_mul_ps(r, _mm512_permutexvar_ps(code, table[1]));
}

/* low: the circle's codes, high: those above */
static inline void values(__m512 y[LANES], const tables *t, __m512i low, __m512i high, __m512 radius)
{
    __m512 top[2], r[4], fine[8];
    split(top, radius, t->quarter[2], _mm512_srli_epi32(high, 12));
    split(r, top[0], t->quarter[1], _mm512_srli_epi32(high, 8));
    split(r + 2, top[1], t->quarter[1], _mm512_srli_epi32(high, 10));
    for (uint32_t i = 0; i < 4; i++)
        split(fine + (size_t)2 * i, r[i], t->quarter[0], _mm512_srli_epi32(high, 2 * i));
    for (uint32_t i = 0; i < 8; i++)
        split(y + (size_t)2 * i, fine[i], t->circle, _mm512_srli_epi32(low, 4 * i));
}

static inline __m512i sector(__m512 a, __m512 b)
{
    const __m512 zero = _mm512_setzero_ps();
    const __m512i one = _mm512_set1_epi32(1), sign = _mm512_set1_epi32(INT32_MIN);
    /* the lower half plane turned by half, which changes signs only */
    const __mmask16 on = _mm512_cmp_ps_mask(b, zero, _CMP_EQ_OQ);
    const __mmask16 lower =
        (__mmask16)(_mm512_cmp_ps_mask(b, zero, _CMP_LT_OQ) | _mm512_mask_cmp_ps_mask(on, a, zero, _CMP_LT_OQ));
    a = _mm512_castsi512_ps(_mm512_mask_xor_epi32(_mm512_castps_si512(a), lower, _mm512_castps_si512(a), sign));
    b = _mm512_castsi512_ps(_mm512_mask_xor_epi32(_mm512_castps_si512(b), lower, _mm512_castps_si512(b), sign));
    __m512i k = _mm512_maskz_set1_epi32(lower, 8);
    for (uint32_t e = 1; e < 8; e++) {
        const __m512 over = _mm512_mul_ps(_mm512_set1_ps(vq_polar_circle_edges[e][0]), b);
        const __m512 under = _mm512_mul_ps(_mm512_set1_ps(vq_polar_circle_edges[e][1]), a);
        k = _mm512_mask_add_epi32(k, _mm512_cmp_ps_mask(over, under, _CMP_GE_OQ), k, one);
    }
    return k;
}

static inline __m512i quarter(uint32_t level, __m512 a, __m512 b)
{
    __m512i k = _mm512_setzero_si512();
    for (uint32_t e = 0; e < 3; e++) {
        const __m512 over = _mm512_mul_ps(b, _mm512_set1_ps(vq_polar_quarter_bounds[level][e][0]));
        const __m512 under = _mm512_mul_ps(a, _mm512_set1_ps(vq_polar_quarter_bounds[level][e][1]));
        k = _mm512_mask_add_epi32(k, _mm512_cmp_ps_mask(over, under, _CMP_GT_OQ), k, _mm512_set1_epi32(1));
    }
    return k;
}

static inline __m512 length(__m512 a, __m512 b)
{
    return _mm512_sqrt_ps(_mm512_add_ps(_mm512_mul_ps(a, a), _mm512_mul_ps(b, b)));
}

static inline void encode_some(uint64_t *codes, float *radii, const float *y, const tables *t, bool unbiased)
{
    __m512 v[LANES], r[8], unit[LANES], dot = _mm512_setzero_ps(), squares = dot;
    __m512i low = _mm512_setzero_si512(), high = low;
    for (uint32_t i = 0; i < LANES; i++)
        v[i] = _mm512_loadu_ps(y + (size_t)i * VQ_POLAR_BLOCK);
    transpose(v);
    for (uint32_t i = 0; i < 8; i++) {
        low = _mm512_or_si512(low, _mm512_slli_epi32(sector(v[2 * i], v[2 * i + 1]), 4 * i));
        r[i] = length(v[2 * i], v[2 * i + 1]);
    }
    for (uint32_t level = 0, n = 4, at = 0; level < 3; level++, n /= 2)
        for (uint32_t i = 0; i < n; i++, at += VQ_POLAR_QUARTER_BITS) {
            high = _mm512_or_si512(high, _mm512_slli_epi32(quarter(level, r[2 * i], r[2 * i + 1]), at));
            r[i] = length(r[2 * i], r[2 * i + 1]);
        }
    values(unit, t, low, high, _mm512_set1_ps(1));
    for (uint32_t j = 0; j < LANES; j++) {
        dot = _mm512_add_ps(dot, _mm512_mul_ps(v[j], unit[j]));
        squares = _mm512_add_ps(squares, _mm512_mul_ps(v[j], v[j]));
    }
    const __mmask16 fits = _mm512_cmp_ps_mask(dot, _mm512_setzero_ps(), _CMP_GT_OQ);
    _mm512_storeu_ps(radii, unbiased ? _mm512_maskz_div_ps(fits, squares, dot) : _mm512_maskz_mov_ps(fits, dot));
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_storeu_si512(codes, _mm512_permutex2var_epi32(low, first, high));
    _mm512_storeu_si512(codes + 8, _mm512_permutex2var_epi32(low, second, high));
}

static void encode(uint64_t *codes, float *radii, const float *y, uint32_t n, bool unbiased)
{
    const tables t = load_tables();
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        encode_some(codes + i, radii + i, y + (size_t)i * VQ_POLAR_BLOCK, &t, unbiased);
    vq_polar_encode_c(codes + i, radii + i, y + (size_t)i * VQ_POLAR_BLOCK, n - i, unbiased);
}

/* Eight codes are 46 bytes. */
static void unpack(uint64_t *codes, const uint8_t *stream, uint32_t n)
{
    enum { CODES = 8, BYTES = CODES * VQ_POLAR_BITS / 8 };
    const __mmask64 own = ((__mmask64)1 << BYTES) - 1;
    const __m512i eight = _mm512_set1_epi64(0x0706050403020100), code = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i at = _mm512_mullo_epi64(code, _mm512_set1_epi64(VQ_POLAR_BITS));
    const __m512i first = _mm512_mullo_epi64(_mm512_srli_epi64(at, 3), _mm512_set1_epi64(0x0101010101010101));
    const __m512i from = _mm512_add_epi8(first, eight), shift = _mm512_and_si512(at, _mm512_set1_epi64(7));
    const __m512i mask = _mm512_set1_epi64((INT64_C(1) << VQ_POLAR_BITS) - 1);
    uint32_t i = 0;
    for (; i + CODES <= n; i += CODES, stream += BYTES) {
        const __m512i bits = _mm512_permutexvar_epi8(from, _mm512_maskz_loadu_epi8(own, stream));
        _mm512_storeu_si512(codes + i, _mm512_and_si512(_mm512_srlv_epi64(bits, shift), mask));
    }
    vq_polar_unpack_c(codes + i, stream, n - i);
}

static void decode(float *y, const uint64_t *codes, const float *radii, uint32_t n)
{
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const tables t = load_tables();
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m512i a = _mm512_loadu_si512(codes + i), b = _mm512_loadu_si512(codes + i + 8);
        const __m512i low = _mm512_permutex2var_epi32(a, even, b);
        const __m512i high = _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(1)), b);
        __m512 v[LANES];
        values(v, &t, low, high, _mm512_loadu_ps(radii + i));
        transpose(v);
        for (uint32_t j = 0; j < LANES; j++)
            _mm512_storeu_ps(y + (size_t)(i + j) * VQ_POLAR_BLOCK, v[j]);
    }
    vq_polar_decode_c(y + (size_t)i * VQ_POLAR_BLOCK, codes + i, radii + i, n - i);
}

void vq_polar_kernels_init_avx512(vq_polar_kernels *k)
{
    k->encode = encode;
    k->unpack = unpack;
    k->decode = decode;
}
