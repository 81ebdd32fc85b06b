/* Vector operations, AVX2 tier.  Tails of float arrays use masked loads and stores, which don't touch masked-off
 * lanes; tails of 16-bit arrays go through a small buffer. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/vec.h"
#include "kernels/vec_exp.h"

enum { LANES = 8 };

static inline __m256i first_lanes(uint32_t n)
{
    const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < LANES ? (int)n : LANES), index);
}

static inline float sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

static inline __m256 exp_f32(__m256 x)
{
    const __m256 normal = _mm256_cmp_ps(x, _mm256_set1_ps(VQ_EXP_LOWEST), _CMP_GE_OQ);
    const __m256 round = _mm256_set1_ps(VQ_EXP_ROUND);
    const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(VQ_EXP_LOG2E), round);
    const __m256 n = _mm256_sub_ps(shifted, round);
    const __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(VQ_EXP_LN2), x);
    __m256 p = _mm256_fmadd_ps(r, _mm256_set1_ps(VQ_EXP_C5), _mm256_set1_ps(VQ_EXP_C4));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(VQ_EXP_C3));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(VQ_EXP_C2));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(VQ_EXP_C1));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(1));
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    const __m256i y = _mm256_add_epi32(_mm256_castps_si256(p), exponent);
    return _mm256_and_ps(normal, _mm256_castsi256_ps(y));
}

static inline __m256 gate(__m256 x, __m256 u)
{
    const __m256 one = _mm256_set1_ps(1);
    const __m256 e = exp_f32(_mm256_or_ps(u, _mm256_set1_ps(-0.0f)));
    const __m256 negative = _mm256_cmp_ps(u, _mm256_setzero_ps(), _CMP_LT_OQ);
    return _mm256_div_ps(_mm256_mul_ps(x, _mm256_blendv_ps(one, e, negative)), _mm256_add_ps(one, e));
}

static void rms_norm_avx2(float *out, const float *x, const float *weight, uint32_t n, float eps)
{
    __m256d s0 = _mm256_setzero_pd(), s1 = _mm256_setzero_pd();
    for (uint32_t i = 0; i < n; i += LANES) {
        const __m256 v = _mm256_maskload_ps(x + i, first_lanes(n - i));
        const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
        const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
        s0 = _mm256_fmadd_pd(low, low, s0);
        s1 = _mm256_fmadd_pd(high, high, s1);
    }
    s0 = _mm256_add_pd(s0, s1);
    const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(s0), _mm256_extractf128_pd(s0, 1));
    const double sum = _mm_cvtsd_f64(s) + _mm_cvtsd_f64(_mm_unpackhi_pd(s, s));
    const __m256 inv = _mm256_set1_ps(n == 0 ? 0 : (float)(1 / sqrt(sum / n + eps)));
    for (uint32_t i = 0; i < n; i += LANES) {
        const __m256i m = first_lanes(n - i);
        __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, m), inv);
        if (weight)
            v = _mm256_mul_ps(v, _mm256_maskload_ps(weight + i, m));
        _mm256_maskstore_ps(out + i, m, v);
    }
}

static void add_avx2(float *x, const float *y, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    for (; i < n; i++)
        x[i] += y[i];
}

static void scale_avx2(float *x, float s, uint32_t n)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(s)));
    for (; i < n; i++)
        x[i] *= s;
}

static void silu_mul_avx2(float *x, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const __m256i m = first_lanes(n - i);
        const __m256 v = _mm256_maskload_ps(x + i, m);
        _mm256_maskstore_ps(x + i, m, _mm256_mul_ps(gate(v, v), _mm256_maskload_ps(up + i, m)));
    }
}

static void gelu_mul_avx2(float *x, const float *up, uint32_t n)
{
    const __m256 a = _mm256_set1_ps(VQ_GELU_A), b = _mm256_set1_ps(VQ_GELU_B);
    for (uint32_t i = 0; i < n; i += LANES) {
        const __m256i m = first_lanes(n - i);
        const __m256 v = _mm256_maskload_ps(x + i, m);
        const __m256 u = _mm256_mul_ps(v, _mm256_fmadd_ps(b, _mm256_mul_ps(v, v), a));
        _mm256_maskstore_ps(x + i, m, _mm256_mul_ps(gate(v, u), _mm256_maskload_ps(up + i, m)));
    }
}

/* The rotations don't fuse multiply and add, so they give the definition's bits. */
static void rope_halves(float *x, const float *cos, const float *sin, uint32_t n_pairs)
{
    for (uint32_t i = 0; i < n_pairs; i += LANES) {
        const __m256i m = first_lanes(n_pairs - i);
        const __m256 c = _mm256_maskload_ps(cos + i, m), s = _mm256_maskload_ps(sin + i, m);
        const __m256 a = _mm256_maskload_ps(x + i, m), b = _mm256_maskload_ps(x + n_pairs + i, m);
        _mm256_maskstore_ps(x + i, m, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
        _mm256_maskstore_ps(x + n_pairs + i, m, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
    }
}

static void rope_neighbours(float *x, const float *cos, const float *sin, uint32_t n_pairs)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    for (uint32_t i = 0; i < n_pairs; i += LANES / 2) {
        const uint32_t n = n_pairs - i < LANES / 2 ? n_pairs - i : LANES / 2;
        const __m256i m = first_lanes(2 * n);
        const __m128i half = _mm256_castsi256_si128(first_lanes(n));
        const __m256 c = _mm256_castps128_ps256(_mm_maskload_ps(cos + i, half));
        const __m256 s = _mm256_castps128_ps256(_mm_maskload_ps(sin + i, half));
        const __m256 v = _mm256_maskload_ps(x + 2 * i, m);
        const __m256 own = _mm256_mul_ps(v, _mm256_permutevar8x32_ps(c, twice));
        const __m256 other = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), _mm256_permutevar8x32_ps(s, twice));
        _mm256_maskstore_ps(x + 2 * i, m, _mm256_addsub_ps(own, other));
    }
}

static void rope_avx2(float *x, const float *cos, const float *sin, uint32_t n_heads, uint32_t d, uint32_t n_rot,
                      bool halves)
{
    for (uint32_t h = 0; h < n_heads; h++, x += d)
        if (halves)
            rope_halves(x, cos, sin, n_rot / 2);
        else
            rope_neighbours(x, cos, sin, n_rot / 2);
}

static float max_avx2(const float *x, uint32_t n)
{
    __m256 most = _mm256_set1_ps(-INFINITY);
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        most = _mm256_max_ps(most, _mm256_loadu_ps(x + i));
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    float out = _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
    for (; i < n; i++)
        out = x[i] > out ? x[i] : out;
    return out;
}

static float exp_sum_avx2(float *x, float max, uint32_t n)
{
    const __m256 top = _mm256_set1_ps(max);
    __m256 s0 = _mm256_setzero_ps(), s1 = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const __m256 a = exp_f32(_mm256_sub_ps(_mm256_loadu_ps(x + i), top));
        const __m256 b = exp_f32(_mm256_sub_ps(_mm256_loadu_ps(x + i + LANES), top));
        _mm256_storeu_ps(x + i, a);
        _mm256_storeu_ps(x + i + LANES, b);
        s0 = _mm256_add_ps(s0, a);
        s1 = _mm256_add_ps(s1, b);
    }
    for (; i < n; i += LANES) {
        const __m256i m = first_lanes(n - i);
        const __m256 a = exp_f32(_mm256_sub_ps(_mm256_maskload_ps(x + i, m), top));
        _mm256_maskstore_ps(x + i, m, a);
        s0 = _mm256_add_ps(s0, _mm256_and_ps(a, _mm256_castsi256_ps(m)));
    }
    return sum8(_mm256_add_ps(s0, s1));
}

static float dot_avx2(const float *x, const float *y, uint32_t n)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = _mm256_setzero_ps();
    uint32_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        s0 = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), s0);
        s1 = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + LANES), _mm256_loadu_ps(y + i + LANES), s1);
    }
    for (; i < n; i += LANES) {
        const __m256i m = first_lanes(n - i);
        s0 = _mm256_fmadd_ps(_mm256_maskload_ps(x + i, m), _mm256_maskload_ps(y + i, m), s0);
    }
    return sum8(_mm256_add_ps(s0, s1));
}

static inline __m128i load_u16(const uint16_t *x, uint32_t n)
{
    if (n >= LANES)
        return _mm_loadu_si128((const __m128i *)x);
    uint16_t few[LANES] = {0};
    memcpy(few, x, n * sizeof *few);
    return _mm_loadu_si128((const __m128i *)few);
}

static inline void store_u16(uint16_t *out, __m128i v, uint32_t n)
{
    if (n >= LANES) {
        _mm_storeu_si128((__m128i *)out, v);
        return;
    }
    uint16_t few[LANES];
    _mm_storeu_si128((__m128i *)few, v);
    memcpy(out, few, n * sizeof *few);
}

static void f16_to_f32_avx2(float *out, const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES)
        _mm256_maskstore_ps(out + i, first_lanes(n - i), _mm256_cvtph_ps(load_u16(x + i, n - i)));
}

static void f32_to_f16_avx2(uint16_t *out, const float *x, uint32_t n)
{
    const __m256 high = _mm256_set1_ps(65504), low = _mm256_set1_ps(-65504);
    for (uint32_t i = 0; i < n; i += LANES) {
        /* min and max return their second operand when one is NaN, so NaN stays NaN */
        const __m256 v = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_maskload_ps(x + i, first_lanes(n - i))));
        store_u16(out + i, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), n - i);
    }
}

static void bf16_to_f32_avx2(float *out, const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const __m256i v = _mm256_slli_epi32(_mm256_cvtepu16_epi32(load_u16(x + i, n - i)), 16);
        _mm256_maskstore_ps(out + i, first_lanes(n - i), _mm256_castsi256_ps(v));
    }
}

static void f32_to_bf16_avx2(uint16_t *out, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const __m256 v = _mm256_maskload_ps(x + i, first_lanes(n - i));
        const __m256i bits = _mm256_castps_si256(v);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
        const __m256i half = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 0x08);
        store_u16(out + i, _mm256_castsi256_si128(packed), n - i);
    }
}

void vq_vec_init_avx2(vq_vec_kernels *k)
{
    k->rms_norm = rms_norm_avx2;
    k->add = add_avx2;
    k->scale = scale_avx2;
    k->silu_mul = silu_mul_avx2;
    k->gelu_mul = gelu_mul_avx2;
    k->rope = rope_avx2;
    k->max = max_avx2;
    k->exp_sum = exp_sum_avx2;
    k->dot = dot_avx2;
    k->f16_to_f32 = f16_to_f32_avx2;
    k->f32_to_f16 = f32_to_f16_avx2;
    k->bf16_to_f32 = bf16_to_f32_avx2;
    k->f32_to_bf16 = f32_to_bf16_avx2;
}
