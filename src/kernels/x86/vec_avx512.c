/* Vector operations, AVX-512 tier.  Tails are masked; masked-off lanes are neither read nor written. */
#include <immintrin.h>
#include <math.h>

#include "kernels/vec.h"
#include "kernels/vec_exp.h"

enum { LANES = 16 };

static inline __mmask16 first_lanes(uint32_t n) { return n >= LANES ? 0xffff : (__mmask16)((1u << n) - 1); }

static inline __m512 exp_f32(__m512 x)
{
    const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(VQ_EXP_LOWEST), _CMP_GE_OQ);
    const __m512 round = _mm512_set1_ps(VQ_EXP_ROUND);
    const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(VQ_EXP_LOG2E), round);
    const __m512 n = _mm512_sub_ps(shifted, round);
    const __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(VQ_EXP_LN2), x);
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(VQ_EXP_C5), _mm512_set1_ps(VQ_EXP_C4));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(VQ_EXP_C3));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(VQ_EXP_C2));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(VQ_EXP_C1));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(1));
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(p), exponent));
}

static inline __m512 gate(__m512 x, __m512 u)
{
    const __m512 one = _mm512_set1_ps(1);
    const __m512 e = exp_f32(_mm512_or_ps(u, _mm512_set1_ps(-0.0f)));
    const __mmask16 negative = _mm512_cmp_ps_mask(u, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_div_ps(_mm512_mul_ps(x, _mm512_mask_blend_ps(negative, one, e)), _mm512_add_ps(one, e));
}

static void rms_norm_avx512(float *out, const float *x, const float *weight, uint32_t n, float eps)
{
    __m512d s0 = _mm512_setzero_pd(), s1 = _mm512_setzero_pd();
    for (uint32_t i = 0; i < n; i += LANES) {
        const __m512 v = _mm512_maskz_loadu_ps(first_lanes(n - i), x + i);
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        s0 = _mm512_fmadd_pd(low, low, s0);
        s1 = _mm512_fmadd_pd(high, high, s1);
    }
    const double sum = _mm512_reduce_add_pd(_mm512_add_pd(s0, s1));
    const __m512 inv = _mm512_set1_ps(n == 0 ? 0 : (float)(1 / sqrt(sum / n + eps)));
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), inv);
        if (weight)
            v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(m, weight + i));
        _mm512_mask_storeu_ps(out + i, m, v);
    }
}

static void add_avx512(float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        const __m512 v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i));
        _mm512_mask_storeu_ps(x + i, m, v);
    }
}

static void scale_avx512(float *x, float s, uint32_t n)
{
    const __m512 factor = _mm512_set1_ps(s);
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), factor));
    }
}

static void silu_mul_avx512(float *x, const float *up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(gate(v, v), _mm512_maskz_loadu_ps(m, up + i)));
    }
}

static void gelu_mul_avx512(float *x, const float *up, uint32_t n)
{
    const __m512 a = _mm512_set1_ps(VQ_GELU_A), b = _mm512_set1_ps(VQ_GELU_B);
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        const __m512 u = _mm512_mul_ps(v, _mm512_fmadd_ps(b, _mm512_mul_ps(v, v), a));
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(gate(v, u), _mm512_maskz_loadu_ps(m, up + i)));
    }
}

/* The rotations don't fuse multiply and add, so they give the definition's bits. */
static void rope_halves(float *x, const float *cos, const float *sin, uint32_t n_pairs)
{
    for (uint32_t i = 0; i < n_pairs; i += LANES) {
        const __mmask16 m = first_lanes(n_pairs - i);
        const __m512 c = _mm512_maskz_loadu_ps(m, cos + i), s = _mm512_maskz_loadu_ps(m, sin + i);
        const __m512 a = _mm512_maskz_loadu_ps(m, x + i), b = _mm512_maskz_loadu_ps(m, x + n_pairs + i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s)));
        _mm512_mask_storeu_ps(x + n_pairs + i, m, _mm512_add_ps(_mm512_mul_ps(a, s), _mm512_mul_ps(b, c)));
    }
}

static void rope_neighbours(float *x, const float *cos, const float *sin, uint32_t n_pairs)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __mmask16 even = 0x5555;
    for (uint32_t i = 0; i < n_pairs; i += LANES / 2) {
        const uint32_t n = n_pairs - i < LANES / 2 ? n_pairs - i : LANES / 2;
        const __mmask16 m = first_lanes(2 * n), half = first_lanes(n);
        const __m512 c = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(half, cos + i));
        const __m512 s = _mm512_permutexvar_ps(twice, _mm512_maskz_loadu_ps(half, sin + i));
        const __m512 v = _mm512_maskz_loadu_ps(m, x + 2 * i);
        const __m512 own = _mm512_mul_ps(v, c), other = _mm512_mul_ps(_mm512_permute_ps(v, 0xb1), s);
        const __m512 turned = _mm512_mask_sub_ps(_mm512_add_ps(own, other), even, own, other);
        _mm512_mask_storeu_ps(x + 2 * i, m, turned);
    }
}

static void rope_avx512(float *x, const float *cos, const float *sin, uint32_t n_heads, uint32_t d, uint32_t n_rot,
                        bool halves)
{
    for (uint32_t h = 0; h < n_heads; h++, x += d)
        if (halves)
            rope_halves(x, cos, sin, n_rot / 2);
        else
            rope_neighbours(x, cos, sin, n_rot / 2);
}

static float max_avx512(const float *x, uint32_t n)
{
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    __m512 most = lowest;
    for (uint32_t i = 0; i < n; i += LANES)
        most = _mm512_max_ps(most, _mm512_mask_loadu_ps(lowest, first_lanes(n - i), x + i));
    return _mm512_reduce_max_ps(most);
}

static float exp_sum_avx512(float *x, float max, uint32_t n)
{
    const __m512 top = _mm512_set1_ps(max);
    __m512 s0 = _mm512_setzero_ps(), s1 = _mm512_setzero_ps();
    uint32_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const __m512 a = exp_f32(_mm512_sub_ps(_mm512_loadu_ps(x + i), top));
        const __m512 b = exp_f32(_mm512_sub_ps(_mm512_loadu_ps(x + i + LANES), top));
        _mm512_storeu_ps(x + i, a);
        _mm512_storeu_ps(x + i + LANES, b);
        s0 = _mm512_add_ps(s0, a);
        s1 = _mm512_add_ps(s1, b);
    }
    for (; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        const __m512 a = exp_f32(_mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), top));
        _mm512_mask_storeu_ps(x + i, m, a);
        s0 = _mm512_mask_add_ps(s0, m, s0, a);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(s0, s1));
}

static float dot_avx512(const float *x, const float *y, uint32_t n)
{
    __m512 s0 = _mm512_setzero_ps(), s1 = _mm512_setzero_ps();
    uint32_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        s0 = _mm512_fmadd_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(y + i), s0);
        s1 = _mm512_fmadd_ps(_mm512_loadu_ps(x + i + LANES), _mm512_loadu_ps(y + i + LANES), s1);
    }
    for (; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        s0 = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i), s0);
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(s0, s1));
}

static void f16_to_f32_avx512(float *out, const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        _mm512_mask_storeu_ps(out + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, x + i)));
    }
}

static void f32_to_f16_avx512(uint16_t *out, const float *x, uint32_t n)
{
    const __m512 high = _mm512_set1_ps(65504), low = _mm512_set1_ps(-65504);
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        /* min and max return their second operand when one is NaN, so NaN stays NaN */
        const __m512 v = _mm512_max_ps(low, _mm512_min_ps(high, _mm512_maskz_loadu_ps(m, x + i)));
        _mm256_mask_storeu_epi16(out + i, m, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

static void bf16_to_f32_avx512(float *out, const uint16_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        const __m512i v = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, x + i)), 16);
        _mm512_mask_storeu_epi32(out + i, m, v);
    }
}

static void f32_to_bf16_avx512(uint16_t *out, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 m = first_lanes(n - i);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
        const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
        const __m512i half = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
        _mm256_mask_storeu_epi16(out + i, m, _mm512_cvtepi32_epi16(half));
    }
}

void vq_vec_init_avx512(vq_vec_kernels *k)
{
    k->rms_norm = rms_norm_avx512;
    k->add = add_avx512;
    k->scale = scale_avx512;
    k->silu_mul = silu_mul_avx512;
    k->gelu_mul = gelu_mul_avx512;
    k->rope = rope_avx512;
    k->max = max_avx512;
    k->exp_sum = exp_sum_avx512;
    k->dot = dot_avx512;
    k->f16_to_f32 = f16_to_f32_avx512;
    k->f32_to_f16 = f32_to_f16_avx512;
    k->bf16_to_f32 = bf16_to_f32_avx512;
    k->f32_to_bf16 = f32_to_bf16_avx512;
}
