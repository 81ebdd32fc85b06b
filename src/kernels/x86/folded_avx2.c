/* Folded queries with AVX2.  As with AVX-512 (folded_avx512.c), in pairs of registers with 32 coordinates: after four
 * steps register bit r and word p3 .. p0 hold coordinate p2 r p1 p0 p3 (highest first) of the 32. */
#include <immintrin.h>

#include "kernels/codes.h"
#include "kernels/folded_inner.h"

#define INLINE static inline __attribute__((always_inline))

enum { MOST_REGISTERS = VQ_FOLDED_MOST_N / 16 };

INLINE void butterfly(__m256i *a, __m256i *b)
{
    const __m256i sum = _mm256_add_epi16(*a, *b);
    *b = _mm256_sub_epi16(*a, *b);
    *a = sum;
}

INLINE void turn(__m256i *v, int n)
{
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j++)
                butterfly(&v[j], &v[j + h]);
    for (int i = 0; i < n; i += 2) {
        __m256i a = v[i], b = v[i + 1];
        for (int step = 0; step < 3; step++) {
            const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
            a = _mm256_add_epi16(low, high);
            b = _mm256_sub_epi16(low, high);
        }
        v[i] = _mm256_permute2x128_si256(a, b, 0x20);
        v[i + 1] = _mm256_permute2x128_si256(a, b, 0x31);
        butterfly(&v[i], &v[i + 1]);
    }
}

typedef struct beside {
    __m256i scales[MOST_REGISTERS], u[MOST_REGISTERS], steps[MOST_REGISTERS];
} beside;

INLINE __m128i load_half(const void *p) { return _mm_loadu_si128((const __m128i *)p); }

INLINE __m256i load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

/* 16 nibbles (bytes) -> scales */
INLINE __m256i open_scales(__m128i nibbles)
{
    const __m128i even = _mm_set1_epi16(0xff), a = load_half(vq_folded_scales), b = load_half(vq_folded_scales + 8);
    const __m128i low = _mm_packus_epi16(_mm_and_si128(a, even), _mm_and_si128(b, even));
    const __m128i high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
    const __m128i x = _mm_shuffle_epi8(low, nibbles), y = _mm_shuffle_epi8(high, nibbles);
    return _mm256_setr_m128i(_mm_unpacklo_epi8(x, y), _mm_unpackhi_epi8(x, y));
}

/* Words of coordinates 0 .. 31 as `turn` leaves them. */
INLINE void order_words(const int16_t *from, int16_t *first, int16_t *second)
{
    for (int p = 0; p < 16; p++) {
        const int at = (p >> 2 & 1) << 4 | (p & 3) << 1 | p >> 3;
        first[p] = from[at];
        second[p] = from[at + 8];
    }
}

INLINE void open_beside(beside *s, const uint8_t *channels, const uint8_t *u, const int16_t *steps, int n)
{
    const __m128i mask = _mm_set1_epi8(15), even = _mm_set1_epi16(0xff);
    for (int i = 0; i < n / 2; i++) {
        const __m128i both = load_half(channels + (size_t)16 * i);
        s->scales[i] = open_scales(_mm_and_si128(both, mask));
        s->scales[i + n / 2] = open_scales(_mm_and_si128(_mm_srli_epi16(both, 4), mask));
    }
    for (int i = 0; i < n; i += 2) {
        const __m128i a = load_half(u + (size_t)16 * i), b = load_half(u + (size_t)16 * i + 16);
        const __m128i low = _mm_packus_epi16(_mm_and_si128(a, even), _mm_and_si128(b, even));
        const __m128i high = _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8));
        const __m256i ordered = _mm256_shuffle_epi32(_mm256_setr_m128i(low, high), 0xd8);
        s->u[i] = _mm256_unpacklo_epi8(ordered, _mm256_setzero_si256());
        s->u[i + 1] = _mm256_unpackhi_epi8(ordered, _mm256_setzero_si256());
        if (steps) {
            _Alignas(32) int16_t words[2][16];
            order_words(steps + (size_t)16 * i, words[0], words[1]);
            s->steps[i] = load(words[0]);
            s->steps[i + 1] = load(words[1]);
        }
    }
}

INLINE int32_t sum_of(__m256i v)
{
    const __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i b = _mm_add_epi32(a, _mm_shuffle_epi32(a, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

INLINE int32_t largest(__m256i most)
{
    const __m128i a = _mm_max_epu16(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    return 0xffff - _mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(a, _mm_set1_epi32(-1))), 0);
}

INLINE void fold_one(vq_folded *out, int8_t *rounded, const int16_t *q, const beside *s, int n, int stepped)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i v[MOST_REGISTERS], sum = _mm256_setzero_si256(), near = sum, most = sum;
    for (int i = 0; i < n; i++) {
        v[i] = _mm256_mulhrs_epi16(load(q + (size_t)16 * i), s->scales[i]);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_abs_epi16(v[i]), ones));
    }
    out->level = vq_folded_level(sum_of(sum));
    const __m256i level = _mm256_set1_epi16((int16_t)out->level);
    for (int i = 0; i < n; i++)
        v[i] = _mm256_mulhrs_epi16(v[i], level);
    out->total = 16 * n * (int16_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(v[0]));
    turn(v, n);
    for (int i = 0; i < n; i++) {
        near = _mm256_add_epi32(near, _mm256_madd_epi16(v[i], s->u[i]));
        v[i] = stepped ? _mm256_mulhrs_epi16(v[i], s->steps[i]) : v[i];
        most = _mm256_max_epu16(most, _mm256_abs_epi16(v[i]));
    }
    out->near = sum_of(near);
    out->round = vq_folded_round(largest(most));
    const __m256i round = _mm256_set1_epi16((int16_t)out->round);
    sum = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 2) {
        const __m256i a = _mm256_mulhrs_epi16(v[i], round), b = _mm256_mulhrs_epi16(v[i + 1], round);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(a, b), ones));
        const __m256i both = _mm256_shuffle_epi32(_mm256_packs_epi16(a, b), 0xd8);
        const __m128i x = _mm256_castsi256_si128(both), y = _mm256_extracti128_si256(both, 1);
        _mm_storeu_si128((__m128i *)(void *)(rounded + (size_t)16 * i), _mm_unpacklo_epi8(x, y));
        _mm_storeu_si128((__m128i *)(void *)(rounded + (size_t)16 * i + 16), _mm_unpackhi_epi8(x, y));
    }
    out->sum = sum_of(sum);
}

INLINE void fold_all(vq_folded *out, int8_t *rounded, size_t stride, const int16_t *q, size_t q_stride,
                     uint32_t n_queries, const uint8_t *channels, const uint8_t *u, const int16_t *steps, int n)
{
    beside s;
    open_beside(&s, channels, u, steps, n);
    for (uint32_t i = 0; i < n_queries; i++, rounded += stride, q += q_stride)
        if (steps)
            fold_one(&out[i], rounded, q, &s, n, 1);
        else
            fold_one(&out[i], rounded, q, &s, n, 0);
}

static void fold(vq_folded *out, int8_t *rounded, size_t stride, const int16_t *q, size_t q_stride, uint32_t n_queries,
                 const uint8_t *channels, const uint8_t *u, const int16_t *steps, uint32_t n)
{
    switch (n) {
    case 64: fold_all(out, rounded, stride, q, q_stride, n_queries, channels, u, steps, 4); break;
    case 128: fold_all(out, rounded, stride, q, q_stride, n_queries, channels, u, steps, 8); break;
    case 256: fold_all(out, rounded, stride, q, q_stride, n_queries, channels, u, steps, 16); break;
    default: fold_all(out, rounded, stride, q, q_stride, n_queries, channels, u, steps, 32);
    }
}

/* 8 coordinates from words of them. */
INLINE void put_floats(float *out, __m128i words, __m256 scale, uint8_t sign_bits, const uint8_t *by)
{
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(sign_bits), lane), lane);
    const __m256 y = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(words)), scale);
    const __m256 flipped = _mm256_xor_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(set, 31)));
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)by));
    const __m256i times =
        _mm256_slli_epi32(_mm256_add_epi32(codes, _mm256_set1_epi32(VQ_BYTE_FLOAT_LEAST)), VQ_BYTE_FLOAT_SHIFT);
    _mm256_storeu_ps(out, _mm256_mul_ps(flipped, _mm256_castsi256_ps(times)));
}

INLINE void turn_all_back(float *out, const uint8_t *u, int32_t times, int32_t minus, float scale,
                          const uint8_t *sign_bits, const uint8_t *by, int n)
{
    const __m256i t = _mm256_set1_epi16((int16_t)times), less = _mm256_set1_epi16((int16_t)minus);
    const __m256 s = _mm256_set1_ps(scale);
    __m256i v[MOST_REGISTERS];
    for (int i = 0; i < n; i++)
        v[i] = _mm256_sub_epi16(_mm256_mullo_epi16(_mm256_cvtepu8_epi16(load_half(u + (size_t)16 * i)), t), less);
    turn(v, n);
    for (int i = 0; i < n; i += 2)
        for (int r = 0; r < 2; r++) { /* coordinates 8 r to 8 r + 7, and those 16 further */
            const __m128i even = _mm256_castsi256_si128(v[i + r]), odd = _mm256_extracti128_si256(v[i + r], 1);
            const size_t at = (size_t)16 * (size_t)i + (size_t)8 * (size_t)r;
            put_floats(out + at, _mm_unpacklo_epi16(even, odd), s, sign_bits[at / 8], by + at);
            put_floats(out + at + 16, _mm_unpackhi_epi16(even, odd), s, sign_bits[at / 8 + 2], by + at + 16);
        }
}

static void turn_back(float *out, const uint8_t *u, int32_t times, int32_t minus, float scale, const uint8_t *sign_bits,
                      const uint8_t *by, uint32_t n)
{
    switch (n) {
    case 64: turn_all_back(out, u, times, minus, scale, sign_bits, by, 4); break;
    case 128: turn_all_back(out, u, times, minus, scale, sign_bits, by, 8); break;
    case 256: turn_all_back(out, u, times, minus, scale, sign_bits, by, 16); break;
    default: turn_all_back(out, u, times, minus, scale, sign_bits, by, 32);
    }
}

void vq_folded_kernels_init_avx2(vq_folded_kernels *k) { *k = (vq_folded_kernels){fold, turn_back}; }
