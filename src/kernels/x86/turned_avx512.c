/* Vectors that turn, with AVX-512: 16 rows on one side of the middle are one register. */
#include <immintrin.h>

#include "kernels/turned_inner.h"

#define INLINE static inline __attribute__((always_inline))

enum { AT_ONCE = 6 };

INLINE __mmask16 tail(uint32_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

/* Up to 16 floats. */
INLINE __m512 some(const float *x, uint32_t n)
{
    return n >= 16 ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(tail(n), x);
}

INLINE __m512 add_dot(__m512 sum, const float *x, const float *y, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16)
        sum = _mm512_fmadd_ps(some(x + i, n - i), some(y + i, n - i), sum);
    return sum;
}

/* Channels that do not turn are summed up in the registers that they lie in, beside those that do. */
static float products(float *pairs, const vq_turned_shape *s, const float *q, const float *n)
{
    const __m512 none = _mm512_setzero_ps();
    __m512 sum = none;
    if (!s->halves) {
        const uint32_t n_turned = 2 * s->n_pairs;
        uint32_t j = 0;
        for (; j < n_turned; j += 16) { /* even lanes: cosines' products; odd ones: sines' */
            const __m512 x = some(q + j, s->d - j), y = some(n + j, s->d - j);
            const __m512 straight = _mm512_mul_ps(x, y);                        /* q_a n_a, q_b n_b */
            const __m512 across = _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), y); /* q_b n_a, q_a n_b */
            const __m512 first = _mm512_mask_mov_ps(straight, 0xaaaa, _mm512_permute_ps(across, 0xb1));
            const __m512 second = _mm512_mask_mov_ps(_mm512_permute_ps(straight, 0xb1), 0xaaaa, across);
            _mm512_storeu_ps(pairs + j, _mm512_fmsubadd_ps(first, _mm512_set1_ps(1), second));
            if (j + 16 > n_turned)
                sum = _mm512_mask_mov_ps(straight, tail(n_turned - j), none);
        }
        return j < s->d ? _mm512_reduce_add_ps(add_dot(sum, q + j, n + j, s->d - j)) : _mm512_reduce_add_ps(sum);
    }
    __m512 other = none;
    for (uint32_t f = 0; f < s->apart; f += 16) {
        const uint32_t left = s->apart - f;
        const __m512 qa = some(q + f, left), qb = some(q + s->apart + f, left);
        const __m512 na = some(n + f, left), nb = some(n + s->apart + f, left);
        const __mmask16 turned = f < s->n_pairs ? tail(s->n_pairs - f) : 0;
        if (turned) {
            _mm512_storeu_ps(pairs + f, _mm512_fmadd_ps(qa, na, _mm512_mul_ps(qb, nb)));
            _mm512_storeu_ps(pairs + vq_turned_sine(s) + f, _mm512_fmsub_ps(qb, na, _mm512_mul_ps(qa, nb)));
        }
        sum = _mm512_mask3_fmadd_ps(qa, na, sum, (__mmask16)~turned);
        other = _mm512_mask3_fmadd_ps(qb, nb, other, (__mmask16)~turned);
    }
    const uint32_t rest = 2 * s->apart;
    return _mm512_reduce_add_ps(add_dot(_mm512_add_ps(sum, other), q + rest, n + rest, s->d - rest));
}

INLINE __m512 bytes(const int8_t *from)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from)));
}

INLINE void add(float *to, __m512 x) { _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), x)); }

INLINE void scores_block(float *out, size_t out_stride, const vq_turned_shape *s, const float *pairs,
                         const float *still, const int8_t (*table)[2][VQ_TURNED_HALF], int n)
{
    const __m512i reverse = _mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const uint32_t step = vq_turned_step(s), sine = vq_turned_sine(s);
    const __m512 unit = _mm512_set1_ps(1.0F / 127);
    __m512 even[AT_ONCE], odd[AT_ONCE];
    for (int i = 0; i < n; i++)
        even[i] = odd[i] = _mm512_setzero_ps();
    for (uint32_t f = 0; f < s->n_pairs; f++) {
        const __m512 c = bytes(table[f][0]), t = bytes(table[f][1]);
        const float *at = pairs + (size_t)f * step;
        for (int i = 0; i < n; i++, at += VQ_TURNED_PAIRS) {
            even[i] = _mm512_fmadd_ps(_mm512_set1_ps(at[0]), c, even[i]);
            odd[i] = _mm512_fmadd_ps(_mm512_set1_ps(at[sine]), t, odd[i]);
        }
    }
    for (int i = 0; i < n; i++, out += out_stride) {
        const __m512 base = _mm512_set1_ps(still[i]);
        const __m512 before = _mm512_fmadd_ps(_mm512_sub_ps(even[i], odd[i]), unit, base);
        add(out, _mm512_permutexvar_ps(reverse, before));
        add(out + VQ_TURNED_HALF, _mm512_fmadd_ps(_mm512_add_ps(even[i], odd[i]), unit, base));
    }
}

static void scores(float *out, size_t out_stride, const vq_turned_shape *s, const float *pairs, const float *still,
                   uint32_t n_rows, const int8_t (*table)[2][VQ_TURNED_HALF])
{
    for (; n_rows >= 6; n_rows -= 6, out += 6 * out_stride, pairs += 6 * (size_t)VQ_TURNED_PAIRS, still += 6)
        scores_block(out, out_stride, s, pairs, still, table, 6);
    for (; n_rows >= 2; n_rows -= 2, out += 2 * out_stride, pairs += 2 * (size_t)VQ_TURNED_PAIRS, still += 2)
        scores_block(out, out_stride, s, pairs, still, table, 2);
    if (n_rows)
        scores_block(out, out_stride, s, pairs, still, table, 1);
}

void vq_turned_kernels_init_avx512(vq_turned_kernels *k) { *k = (vq_turned_kernels){products, scores}; }
