/* PolarQuant's blocks, AVX2 tier: eight blocks side by side, one in each lane. */
#include <immintrin.h>
#include <stddef.h>

#include "kernels/polar.h"

enum { LANES = 8, BLOCK = VQ_POLAR_BLOCK };

static inline void transpose(__m256 v[LANES])
{
    __m256 t[LANES], u[LANES];
    for (uint32_t i = 0; i < LANES; i += 2) {
        t[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    for (uint32_t i = 0; i < LANES; i += 4)
        for (uint32_t h = 0; h < 2; h++) {
            const __m256d a = _mm256_castps_pd(t[i + h]), b = _mm256_castps_pd(t[i + 2 + h]);
            u[i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            u[i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    for (uint32_t i = 0; i < 4; i++) {
        v[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        v[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

typedef struct tables {
    __m256 circle[2], quarter[3][2]; /* cosines, sines: of the upper half circle; of quarters twice the same */
} tables;

static inline tables load_tables(void)
{
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), each = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    const __m256i one = _mm256_set1_epi32(1);
    tables t;
    for (uint32_t part = 0; part < 2; part++)
        t.circle[part] = _mm256_i32gather_ps(vq_polar_circle[0] + part, even, 4);
    for (uint32_t level = 0; level < 3; level++) {
        const __m256 all = _mm256_loadu_ps(vq_polar_quarter[level][0]);
        t.quarter[level][0] = _mm256_permutevar8x32_ps(all, each);
        t.quarter[level][1] = _mm256_permutevar8x32_ps(all, _mm256_add_epi32(each, one));
    }
    return t;
}

/* A look-up reads the low three bits of a lane, so codes need no mask. */
static inline void split(__m256 out[2], __m256 r, const __m256 table[2], __m256i code)
{
    out[0] = _mm256_mul_ps(r, _mm256_permutevar8x32_ps(table[0], code));
    out[1] = _mm256_mul_ps(r, _mm256_permutevar8x32_ps(table[1], code));
}

/* low: the circle's codes, high: those above */
static inline void values(__m256 y[BLOCK], const tables *t, __m256i low, __m256i high, __m256 radius)
{
    const __m256 sign = _mm256_set1_ps(-0.0F);
    __m256 top[2], r[4], fine[8];
    split(top, radius, t->quarter[2], _mm256_srli_epi32(high, 12));
    split(r, top[0], t->quarter[1], _mm256_srli_epi32(high, 8));
    split(r + 2, top[1], t->quarter[1], _mm256_srli_epi32(high, 10));
    for (uint32_t i = 0; i < 4; i++)
        split(fine + (size_t)2 * i, r[i], t->quarter[0], _mm256_srli_epi32(high, (int)(2 * i)));
    for (uint32_t i = 0; i < 8; i++) { /* the code's highest bit turns by half */
        const __m256 turned = _mm256_and_ps(sign, _mm256_castsi256_ps(_mm256_slli_epi32(low, (int)(28 - 4 * i))));
        split(y + (size_t)2 * i, _mm256_xor_ps(fine[i], turned), t->circle, _mm256_srli_epi32(low, (int)(4 * i)));
    }
}

static inline __m256i sector(__m256 a, __m256 b)
{
    const __m256 zero = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0F);
    /* the lower half plane turned by half, which changes signs only */
    const __m256 on = _mm256_and_ps(_mm256_cmp_ps(b, zero, _CMP_EQ_OQ), _mm256_cmp_ps(a, zero, _CMP_LT_OQ));
    const __m256 lower = _mm256_or_ps(_mm256_cmp_ps(b, zero, _CMP_LT_OQ), on);
    a = _mm256_xor_ps(a, _mm256_and_ps(lower, sign));
    b = _mm256_xor_ps(b, _mm256_and_ps(lower, sign));
    __m256i k = _mm256_and_si256(_mm256_castps_si256(lower), _mm256_set1_epi32(8));
    for (uint32_t e = 1; e < 8; e++) {
        const __m256 over = _mm256_mul_ps(_mm256_set1_ps(vq_polar_circle_edges[e][0]), b);
        const __m256 under = _mm256_mul_ps(_mm256_set1_ps(vq_polar_circle_edges[e][1]), a);
        k = _mm256_sub_epi32(k, _mm256_castps_si256(_mm256_cmp_ps(over, under, _CMP_GE_OQ)));
    }
    return k;
}

static inline __m256i quarter(uint32_t level, __m256 a, __m256 b)
{
    __m256i k = _mm256_setzero_si256();
    for (uint32_t e = 0; e < 3; e++) {
        const __m256 over = _mm256_mul_ps(b, _mm256_set1_ps(vq_polar_quarter_bounds[level][e][0]));
        const __m256 under = _mm256_mul_ps(a, _mm256_set1_ps(vq_polar_quarter_bounds[level][e][1]));
        k = _mm256_sub_epi32(k, _mm256_castps_si256(_mm256_cmp_ps(over, under, _CMP_GT_OQ)));
    }
    return k;
}

static inline __m256 length(__m256 a, __m256 b)
{
    return _mm256_sqrt_ps(_mm256_add_ps(_mm256_mul_ps(a, a), _mm256_mul_ps(b, b)));
}

/* Eight codes of 64 bits from their halves, and back. */
static inline void store_codes(uint64_t *codes, __m256i low, __m256i high)
{
    const __m256i a = _mm256_unpacklo_epi32(low, high), b = _mm256_unpackhi_epi32(low, high);
    _mm256_storeu_si256((__m256i *)(void *)codes, _mm256_permute2x128_si256(a, b, 0x20));
    _mm256_storeu_si256((__m256i *)(void *)(codes + 4), _mm256_permute2x128_si256(a, b, 0x31));
}

static inline void load_codes(__m256i *low, __m256i *high, const uint64_t *codes)
{
    const __m256 a = _mm256_loadu_ps((const float *)(const void *)codes);
    const __m256 b = _mm256_loadu_ps((const float *)(const void *)(codes + 4));
    const __m256 evens = _mm256_shuffle_ps(a, b, 0x88), odds = _mm256_shuffle_ps(a, b, 0xdd);
    *low = _mm256_permute4x64_epi64(_mm256_castps_si256(evens), 0xd8);
    *high = _mm256_permute4x64_epi64(_mm256_castps_si256(odds), 0xd8);
}

static inline void encode_some(uint64_t *codes, float *radii, const float *y, const tables *t, bool unbiased)
{
    __m256 v[BLOCK], r[8], unit[BLOCK], dot = _mm256_setzero_ps(), squares = dot;
    __m256i low = _mm256_setzero_si256(), high = low;
    for (uint32_t i = 0; i < BLOCK; i++)
        v[i] = _mm256_loadu_ps(y + (size_t)i % LANES * BLOCK + i / LANES * LANES);
    transpose(v);
    transpose(v + LANES);
    for (uint32_t i = 0; i < 8; i++) {
        low = _mm256_or_si256(low, _mm256_slli_epi32(sector(v[2 * i], v[2 * i + 1]), (int)(4 * i)));
        r[i] = length(v[2 * i], v[2 * i + 1]);
    }
    for (uint32_t level = 0, n = 4, at = 0; level < 3; level++, n /= 2)
        for (uint32_t i = 0; i < n; i++, at += VQ_POLAR_QUARTER_BITS) {
            high = _mm256_or_si256(high, _mm256_slli_epi32(quarter(level, r[2 * i], r[2 * i + 1]), (int)at));
            r[i] = length(r[2 * i], r[2 * i + 1]);
        }
    values(unit, t, low, high, _mm256_set1_ps(1));
    for (uint32_t j = 0; j < BLOCK; j++) {
        dot = _mm256_add_ps(dot, _mm256_mul_ps(v[j], unit[j]));
        squares = _mm256_add_ps(squares, _mm256_mul_ps(v[j], v[j]));
    }
    const __m256 fits = _mm256_cmp_ps(dot, _mm256_setzero_ps(), _CMP_GT_OQ);
    _mm256_storeu_ps(radii, _mm256_and_ps(fits, unbiased ? _mm256_div_ps(squares, dot) : dot));
    store_codes(codes, low, high);
}

static void encode(uint64_t *codes, float *radii, const float *y, uint32_t n, bool unbiased)
{
    const tables t = load_tables();
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        encode_some(codes + i, radii + i, y + (size_t)i * BLOCK, &t, unbiased);
    vq_polar_encode_c(codes + i, radii + i, y + (size_t)i * BLOCK, n - i, unbiased);
}

static void decode(float *y, const uint64_t *codes, const float *radii, uint32_t n)
{
    const tables t = load_tables();
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256 v[BLOCK];
        __m256i low, high;
        load_codes(&low, &high, codes + i);
        values(v, &t, low, high, _mm256_loadu_ps(radii + i));
        transpose(v);
        transpose(v + LANES);
        for (uint32_t j = 0; j < BLOCK; j++)
            _mm256_storeu_ps(y + ((size_t)i + j % LANES) * BLOCK + j / LANES * LANES, v[j]);
    }
    vq_polar_decode_c(y + (size_t)i * BLOCK, codes + i, radii + i, n - i);
}

void vq_polar_kernels_init_avx2(vq_polar_kernels *k)
{
    k->encode = encode;
    k->decode = decode;
}
