/* Folded queries with AVX-512: all of a query in registers.
 *
 * A pair of registers has 64 coordinates, and a step of the matrix over a bit of their index is a sum and a difference
 * of the pair once that bit tells one register from the other.  Unpacking and choosing quarters turns bits of the place
 * in a register into that, one shuffle a register and step, and moves the bits on: after five steps register bit r and
 * word p4 .. p0 of it hold coordinate p2 p4 r p1 p0 p3 (highest first) of the 64.  What comes in beside the query is
 * brought into that order once for all queries, and bytes leave it by one vpermb for 64. */
#include <immintrin.h>

#include "kernels/codes.h"
#include "kernels/folded_inner.h"

#define INLINE static inline __attribute__((always_inline))

enum { MOST_REGISTERS = VQ_FOLDED_MOST_N / 32 };

/* Packed byte b (p4 p3 r p2 p1 p0) has coordinate ..; coordinate i stands in byte .. */
#define COORDINATE(b) (((b) >> 2 & 1) << 5 | ((b) >> 5 & 1) << 4 | ((b) >> 3 & 1) << 3 | ((b)&3) << 1 | ((b) >> 4 & 1))
#define BYTE(i) (((i) >> 4 & 1) << 5 | ((i)&1) << 4 | ((i) >> 3 & 1) << 3 | ((i) >> 5 & 1) << 2 | ((i) >> 1 & 3))
#define EIGHT(f, i) f(i), f((i) + 1), f((i) + 2), f((i) + 3), f((i) + 4), f((i) + 5), f((i) + 6), f((i) + 7)
#define ALL(f)                                                                                                         \
    {                                                                                                                  \
        EIGHT(f, 0), EIGHT(f, 8), EIGHT(f, 16), EIGHT(f, 24), EIGHT(f, 32), EIGHT(f, 40), EIGHT(f, 48), EIGHT(f, 56)   \
    }
static const uint8_t coordinates[64] = ALL(COORDINATE), bytes[64] = ALL(BYTE);

INLINE void butterfly(__m512i *a, __m512i *b)
{
    const __m512i sum = _mm512_add_epi16(*a, *b);
    *b = _mm512_sub_epi16(*a, *b);
    *a = sum;
}

INLINE void turn(__m512i *v, int n)
{
    for (int h = 1; h < n; h *= 2)
        for (int i = 0; i < n; i += 2 * h)
            for (int j = i; j < i + h; j++)
                butterfly(&v[j], &v[j + h]);
    for (int i = 0; i < n; i += 2) {
        __m512i a = v[i], b = v[i + 1];
        for (int step = 0; step < 3; step++) {
            const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
            a = _mm512_add_epi16(low, high);
            b = _mm512_sub_epi16(low, high);
        }
        __m512i low = _mm512_shuffle_i64x2(a, b, 0x44), high = _mm512_shuffle_i64x2(a, b, 0xee);
        butterfly(&low, &high);
        v[i] = _mm512_shuffle_i64x2(low, high, 0x88);
        v[i + 1] = _mm512_shuffle_i64x2(low, high, 0xdd);
        butterfly(&v[i], &v[i + 1]);
    }
}

/* What all queries meet, in registers' order: scales as they come, the others as `turn` leaves them. */
typedef struct beside {
    __m512i scales[MOST_REGISTERS], u[MOST_REGISTERS], steps[MOST_REGISTERS];
} beside;

INLINE void open_beside(beside *s, const uint8_t *channels, const uint8_t *u, const int16_t *steps, int n)
{
    const __m512i table = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)vq_folded_scales));
    const __m512i order = _mm512_loadu_si512(coordinates), none = _mm512_setzero_si512();
    for (int i = 0; i < n; i++) {
        const int byte = 32 * i % (16 * n), shift = 32 * i < 16 * n ? 0 : 4;
        const __m512i nibbles =
            _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(channels + byte)));
        s->scales[i] = _mm512_permutexvar_epi16(
            _mm512_and_si512(_mm512_srli_epi16(nibbles, (unsigned)shift), _mm512_set1_epi16(15)), table);
    }
    for (int i = 0; i < n; i += 2) {
        const __m512i ordered = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(u + 32 * i));
        s->u[i] = _mm512_unpacklo_epi8(ordered, none);
        s->u[i + 1] = _mm512_unpackhi_epi8(ordered, none);
        if (steps) {
            const __m512i a = _mm512_loadu_si512(steps + 32 * i), b = _mm512_loadu_si512(steps + 32 * i + 32);
            s->steps[i] = _mm512_permutex2var_epi16(a, _mm512_unpacklo_epi8(order, none), b);
            s->steps[i + 1] = _mm512_permutex2var_epi16(a, _mm512_unpackhi_epi8(order, none), b);
        }
    }
}

INLINE int32_t largest(__m512i most)
{
    const __m256i a = _mm256_max_epu16(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
    const __m128i b = _mm_max_epu16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return 0xffff - _mm_extract_epi16(_mm_minpos_epu16(_mm_xor_si128(b, _mm_set1_epi32(-1))), 0);
}

INLINE void fold_one(vq_folded *out, int8_t *rounded, const int16_t *q, const beside *s, int n, int stepped)
{
    const __m512i ones = _mm512_set1_epi16(1), order = _mm512_loadu_si512(bytes);
    const __m512i none = _mm512_setzero_si512();
    __m512i v[MOST_REGISTERS], sum[2] = {none, none}, near[2] = {none, none}, most = none; /* two: shorter chains */
    for (int i = 0; i < n; i++) {
        v[i] = _mm512_mulhrs_epi16(_mm512_loadu_si512(q + (size_t)32 * i), s->scales[i]);
        sum[i % 2] = _mm512_dpwssd_epi32(sum[i % 2], _mm512_abs_epi16(v[i]), ones);
    }
    out->level = vq_folded_level(_mm512_reduce_add_epi32(_mm512_add_epi32(sum[0], sum[1])));
    const __m512i level = _mm512_set1_epi16((int16_t)out->level);
    for (int i = 0; i < n; i++)
        v[i] = _mm512_mulhrs_epi16(v[i], level);
    out->total = 32 * n * (int16_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(v[0]));
    turn(v, n);
    for (int i = 0; i < n; i++) {
        near[i % 2] = _mm512_dpwssd_epi32(near[i % 2], v[i], s->u[i]);
        v[i] = stepped ? _mm512_mulhrs_epi16(v[i], s->steps[i]) : v[i];
        most = _mm512_max_epu16(most, _mm512_abs_epi16(v[i]));
    }
    out->near = _mm512_reduce_add_epi32(_mm512_add_epi32(near[0], near[1]));
    out->round = vq_folded_round(largest(most));
    const __m512i round = _mm512_set1_epi16((int16_t)out->round);
    sum[0] = sum[1] = none;
    for (int i = 0; i < n; i += 2) {
        const __m512i both = _mm512_packs_epi16(_mm512_mulhrs_epi16(v[i], round), _mm512_mulhrs_epi16(v[i + 1], round));
        sum[i / 2 % 2] = _mm512_dpbusd_epi32(sum[i / 2 % 2], _mm512_set1_epi8(1), both);
        _mm512_storeu_si512(rounded + (size_t)32 * i, _mm512_permutexvar_epi8(order, both));
    }
    out->sum = _mm512_reduce_add_epi32(_mm512_add_epi32(sum[0], sum[1]));
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
    case 64: fold_all(out, rounded, stride, q, q_stride, n_queries, channels, u, steps, 2); break;
    case 128: fold_all(out, rounded, stride, q, q_stride, n_queries, channels, u, steps, 4); break;
    case 256: fold_all(out, rounded, stride, q, q_stride, n_queries, channels, u, steps, 8); break;
    default: fold_all(out, rounded, stride, q, q_stride, n_queries, channels, u, steps, 16);
    }
}

/* 16 coordinates from words of them. */
INLINE void put_floats(float *out, __m256i words, __m512 scale, const uint8_t *sign_bits, const uint8_t *by)
{
    uint16_t signs;
    __builtin_memcpy(&signs, sign_bits, sizeof signs);
    const __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(words)), scale);
    const __m512i flipped =
        _mm512_mask_xor_epi32(_mm512_castps_si512(y), signs, _mm512_castps_si512(y), _mm512_set1_epi32(INT32_MIN));
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)by));
    const __m512i times =
        _mm512_slli_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(VQ_BYTE_FLOAT_LEAST)), VQ_BYTE_FLOAT_SHIFT);
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_castsi512_ps(flipped), _mm512_castsi512_ps(times)));
}

INLINE void turn_all_back(float *out, const uint8_t *u, int32_t times, int32_t minus, float scale,
                          const uint8_t *sign_bits, const uint8_t *by, int n)
{
    const __m512i t = _mm512_set1_epi16((int16_t)times), less = _mm512_set1_epi16((int16_t)minus);
    const __m512i places = _mm512_loadu_si512(bytes), ones = _mm512_set1_epi16(1);
    const __m512 s = _mm512_set1_ps(scale);
    __m512i v[MOST_REGISTERS], place[2];
    for (int i = 0; i < n; i++) {
        const __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(u + (size_t)32 * i)));
        v[i] = _mm512_sub_epi16(_mm512_mullo_epi16(x, t), less);
    }
    turn(v, n);
    /* A byte's place p4 p3 r p2 p1 p0 is that of a word r p4 p3 p2 p1 p0 in two registers. */
    for (int i = 0; i < 2; i++) {
        const __m512i p =
            _mm512_cvtepu8_epi16(i ? _mm512_extracti64x4_epi64(places, 1) : _mm512_castsi512_si256(places));
        const __m512i r = _mm512_and_si512(_mm512_srli_epi16(p, 3), ones);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(p, 1), _mm512_set1_epi16(24));
        const __m512i low = _mm512_and_si512(p, _mm512_set1_epi16(7));
        place[i] = _mm512_or_si512(_mm512_or_si512(_mm512_slli_epi16(r, 5), high), low);
    }
    for (int i = 0; i < n; i++) {
        const __m512i words = _mm512_permutex2var_epi16(v[i & ~1], place[i & 1], v[i | 1]);
        const size_t at = (size_t)32 * (size_t)i;
        put_floats(out + at, _mm512_castsi512_si256(words), s, sign_bits + at / 8, by + at);
        put_floats(out + at + 16, _mm512_extracti64x4_epi64(words, 1), s, sign_bits + at / 8 + 2, by + at + 16);
    }
}

static void turn_back(float *out, const uint8_t *u, int32_t times, int32_t minus, float scale, const uint8_t *sign_bits,
                      const uint8_t *by, uint32_t n)
{
    switch (n) {
    case 64: turn_all_back(out, u, times, minus, scale, sign_bits, by, 2); break;
    case 128: turn_all_back(out, u, times, minus, scale, sign_bits, by, 4); break;
    case 256: turn_all_back(out, u, times, minus, scale, sign_bits, by, 8); break;
    default: turn_all_back(out, u, times, minus, scale, sign_bits, by, 16);
    }
}

void vq_folded_kernels_init_avx512(vq_folded_kernels *k) { *k = (vq_folded_kernels){fold, turn_back}; }
