/* Vectors that turn, with AVX2: 16 rows on one side of the middle are two registers. */
#include <immintrin.h>

#include "kernels/turned_inner.h"

#define INLINE static inline __attribute__((always_inline))

enum { AT_ONCE = 2 };

INLINE float sum_of(__m256 v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

INLINE float dot(const float *x, const float *y, uint32_t n)
{
    __m256 sum = _mm256_setzero_ps();
    float rest = 0;
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), sum);
    for (; i < n; i++)
        rest += x[i] * y[i];
    return sum_of(sum) + rest;
}

static float products(float *pairs, const vq_turned_shape *s, const float *q, const float *n)
{
    const uint32_t step = vq_turned_step(s), sine = vq_turned_sine(s), apart = s->halves ? s->apart : 1;
    uint32_t f = 0;
    if (s->halves)
        for (; f + 8 <= s->n_pairs; f += 8) {
            const __m256 qa = _mm256_loadu_ps(q + f), qb = _mm256_loadu_ps(q + apart + f);
            const __m256 na = _mm256_loadu_ps(n + f), nb = _mm256_loadu_ps(n + apart + f);
            _mm256_storeu_ps(pairs + f, _mm256_add_ps(_mm256_mul_ps(qa, na), _mm256_mul_ps(qb, nb)));
            _mm256_storeu_ps(pairs + sine + f, _mm256_sub_ps(_mm256_mul_ps(qb, na), _mm256_mul_ps(qa, nb)));
        }
    else
        for (; f + 4 <= s->n_pairs; f += 4) { /* even lanes: cosines' products; odd ones: sines' */
            const __m256 x = _mm256_loadu_ps(q + (size_t)2 * f), y = _mm256_loadu_ps(n + (size_t)2 * f);
            const __m256 straight = _mm256_mul_ps(x, y), across = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), y);
            const __m256 first = _mm256_blend_ps(straight, _mm256_permute_ps(across, 0xb1), 0xaa);
            const __m256 second = _mm256_blend_ps(_mm256_permute_ps(straight, 0xb1), across, 0xaa);
            _mm256_storeu_ps(pairs + (size_t)2 * f, _mm256_fmsubadd_ps(first, _mm256_set1_ps(1), second));
        }
    for (; f < s->n_pairs; f++) {
        const uint32_t a = f * step, b = a + apart;
        pairs[a] = q[a] * n[a] + q[b] * n[b];
        pairs[a + sine] = q[b] * n[a] - q[a] * n[b];
    }
    if (!s->halves)
        return dot(q + 2 * (size_t)s->n_pairs, n + 2 * (size_t)s->n_pairs, s->d - 2 * s->n_pairs);
    const uint32_t first = s->n_pairs, second = apart + s->n_pairs;
    return dot(q + first, n + first, apart - first) + dot(q + second, n + second, s->d - second);
}

INLINE __m256 bytes(const int8_t *from)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)from)));
}

INLINE void add(float *to, __m256 x) { _mm256_storeu_ps(to, _mm256_add_ps(_mm256_loadu_ps(to), x)); }

INLINE void scores_block(float *out, size_t out_stride, const vq_turned_shape *s, const float *pairs,
                         const float *still, const int8_t (*table)[2][VQ_TURNED_HALF], int n)
{
    const __m256i reverse = _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    const uint32_t step = vq_turned_step(s), sine = vq_turned_sine(s);
    const __m256 unit = _mm256_set1_ps(1.0F / 127);
    __m256 even[AT_ONCE][2], odd[AT_ONCE][2];
    for (int i = 0; i < n; i++)
        for (int h = 0; h < 2; h++)
            even[i][h] = odd[i][h] = _mm256_setzero_ps();
    for (uint32_t f = 0; f < s->n_pairs; f++) {
        const float *at = pairs + (size_t)f * step;
        for (int h = 0; h < 2; h++) {
            const __m256 c = bytes(table[f][0] + 8 * h), t = bytes(table[f][1] + 8 * h);
            for (int i = 0; i < n; i++) {
                const float *own = at + (size_t)i * VQ_TURNED_PAIRS;
                even[i][h] = _mm256_fmadd_ps(_mm256_set1_ps(own[0]), c, even[i][h]);
                odd[i][h] = _mm256_fmadd_ps(_mm256_set1_ps(own[sine]), t, odd[i][h]);
            }
        }
    }
    for (int i = 0; i < n; i++, out += out_stride) {
        const __m256 base = _mm256_set1_ps(still[i]);
        for (int h = 0; h < 2; h++) {
            const __m256 before = _mm256_fmadd_ps(_mm256_sub_ps(even[i][h], odd[i][h]), unit, base);
            add(out + 8 * (1 - h), _mm256_permutevar8x32_ps(before, reverse));
            add(out + VQ_TURNED_HALF + 8 * h, _mm256_fmadd_ps(_mm256_add_ps(even[i][h], odd[i][h]), unit, base));
        }
    }
}

static void scores(float *out, size_t out_stride, const vq_turned_shape *s, const float *pairs, const float *still,
                   uint32_t n_rows, const int8_t (*table)[2][VQ_TURNED_HALF])
{
    for (; n_rows >= 2; n_rows -= 2, out += 2 * out_stride, pairs += 2 * (size_t)VQ_TURNED_PAIRS, still += 2)
        scores_block(out, out_stride, s, pairs, still, table, 2);
    if (n_rows)
        scores_block(out, out_stride, s, pairs, still, table, 1);
}

void vq_turned_kernels_init_avx2(vq_turned_kernels *k) { *k = (vq_turned_kernels){products, scores}; }
