/* The packed codecs' kernels with AVX-512: arithmetic.  Tiles are in codes_tile_avx512.c.  No fused multiply-add: the
 * same bits as the definitions. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/codes_inner.h"
#include "kernels/codes_sum.h"
#include "kernels/x86/codes_avx2.h"
#include "kernels/x86/codes_avx512.h"

static inline __mmask16 tail(uint32_t n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

static inline __m512 swapped(__m512 x, __m512 other, __mmask16 upper)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(x, other), upper, other, x);
}

static void hadamard(float *x, uint32_t n)
{
    if (n < 16) {
        vq_codes_hadamard_avx2(x, n);
        return;
    }
    const __m512 scale = _mm512_set1_ps(1 / sqrtf((float)n));
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        v = swapped(v, _mm512_permute_ps(v, 0xb1), 0xaaaa);
        v = swapped(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
        v = swapped(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
        v = swapped(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00);
        _mm512_storeu_ps(x + i, n == 16 ? _mm512_mul_ps(v, scale) : v);
    }
    for (uint32_t h = 16; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j += 16) {
                const __m512 a = _mm512_loadu_ps(x + j), b = _mm512_loadu_ps(x + j + h);
                __m512 sum = _mm512_add_ps(a, b), difference = _mm512_sub_ps(a, b);
                if (2 * h == n) {
                    sum = _mm512_mul_ps(sum, scale);
                    difference = _mm512_mul_ps(difference, scale);
                }
                _mm512_storeu_ps(x + j, sum);
                _mm512_storeu_ps(x + j + h, difference);
            }
}

static void flip(float *x, const uint8_t *sign_bits, uint32_t n)
{
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint16_t bits;
        memcpy(&bits, sign_bits + i / 8, 2);
        const __m512i v = _mm512_loadu_si512(x + i);
        _mm512_storeu_si512(x + i, _mm512_mask_xor_epi32(v, bits, v, sign));
    }
    if (n - i >= 8) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        const __m256i turned = _mm256_mask_xor_epi32(v, sign_bits[i / 8], v, _mm512_castsi512_si256(sign));
        _mm256_storeu_si256((__m256i *)(void *)(x + i), turned);
        i += 8;
    }
    for (; i < n; i++)
        if (sign_bits[i / 8] >> (i % 8) & 1)
            x[i] = -x[i];
}

static inline float sum_parts(__m512 v)
{
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static float sum_squares(const float *x, uint32_t n)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __m512 v = _mm512_maskz_loadu_ps(tail(n - i), x + i);
        sum = _mm512_add_ps(sum, _mm512_mul_ps(v, v));
    }
    return sum_parts(sum);
}

static float dot(const float *x, const float *y, uint32_t n)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail(n - i);
        sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, y + i)));
    }
    return sum_parts(sum);
}

/* Sums of 16 registers, each in the order of sum_parts: register 4 q + r gives lane 4 r + q. */
static inline __m512 sums_of(const __m512 v[16])
{
    __m512 halves[8], quarters[4], pairs[2];
    for (uint32_t i = 0; i < 8; i++)
        halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                                  _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
    for (uint32_t i = 0; i < 4; i++)
        quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(halves[2 * i], halves[2 * i + 1], 0x88),
                                    _mm512_shuffle_f32x4(halves[2 * i], halves[2 * i + 1], 0xdd));
    for (uint32_t i = 0; i < 2; i++) {
        const __m512d a = _mm512_castps_pd(quarters[2 * i]), b = _mm512_castps_pd(quarters[2 * i + 1]);
        pairs[i] =
            _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    return _mm512_add_ps(_mm512_shuffle_ps(pairs[0], pairs[1], 0x88), _mm512_shuffle_ps(pairs[0], pairs[1], 0xdd));
}

/* Eight spacings at a time: sixteen sums in registers. */
static void fit_grid(float *cosines, const float *inv, uint32_t n_scales, const float *x, uint32_t bits, uint32_t n)
{
    const __m512 most = _mm512_set1_ps((float)(1u << (bits - 1))), one = _mm512_set1_ps(1);
    const __m512 least = _mm512_sub_ps(one, most);
    for (uint32_t s = 0; s < n_scales; s += 8) {
        const uint32_t now = n_scales - s < 8 ? n_scales - s : 8;
        float by[8] = {0};
        __m512 sum[16];
        memcpy(by, inv + s, now * sizeof *by);
        for (uint32_t j = 0; j < 16; j++)
            sum[j] = _mm512_setzero_ps();
        for (uint32_t i = 0; i < n; i += 16) {
            const __mmask16 m = tail(n - i);
            const __m512 u = _mm512_maskz_loadu_ps(m, x + i);
            for (uint32_t j = 0; j < 8; j++) {
                /* scale j in register 4 (j % 4) + j / 4, so that its sum lands in lane j; its squares 2 further */
                const uint32_t at = 4 * (j % 4) + j / 4;
                const __m512 up = _mm512_roundscale_ps(_mm512_mul_ps(u, _mm512_set1_ps(by[j])),
                                                       _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
                const __m512 within = _mm512_min_ps(_mm512_max_ps(up, least), most);
                const __m512 v = _mm512_sub_ps(_mm512_add_ps(within, within), one);
                sum[at] = _mm512_add_ps(sum[at], _mm512_mul_ps(u, v));
                sum[at + 2] = _mm512_mask_add_ps(sum[at + 2], m, sum[at + 2], _mm512_mul_ps(v, v));
            }
        }
        const __m512 dots = sums_of(sum), squares = _mm512_shuffle_f32x4(dots, dots, 0x4e);
        _mm512_mask_storeu_ps(cosines + s, tail(now), _mm512_div_ps(dots, _mm512_sqrt_ps(squares)));
    }
}

static float largest(const float *x, uint32_t n)
{
    __m512 most = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16)
        most = _mm512_max_ps(_mm512_abs_ps(_mm512_maskz_loadu_ps(tail(n - i), x + i)), most); /* of NaN the second */
    return _mm512_reduce_max_ps(most);
}

/* A binary search in every lane; up to 15 bounds stay in a register. */
static inline __m512i cell(__m512 u, const float *bounds, __m512 table, uint32_t n_bounds)
{
    __m512i at = _mm512_setzero_si512();
    for (uint32_t step = (n_bounds + 1) / 2; step > 0; step /= 2) {
        const __m512i middle = _mm512_add_epi32(at, _mm512_set1_epi32((int32_t)step - 1));
        const __m512 bound =
            n_bounds < 16 ? _mm512_permutexvar_ps(middle, table) : _mm512_i32gather_ps(middle, bounds, 4);
        at = _mm512_mask_add_epi32(at, _mm512_cmp_ps_mask(u, bound, _CMP_GT_OQ), at, _mm512_set1_epi32((int32_t)step));
    }
    return at;
}

static void count(uint8_t *codes, const float *x, float inv, const float *bounds, uint32_t n_bounds, uint32_t n)
{
    const __m512 scale = _mm512_set1_ps(inv), table = _mm512_maskz_loadu_ps(tail(n_bounds), bounds);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail(n - i);
        const __m512 u = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), scale);
        _mm512_mask_cvtepi32_storeu_epi8(codes + i, m, cell(u, bounds, table, n_bounds));
    }
}

static float count_fit(uint8_t *codes, float *squares, const float *x, float inv, const float *bounds, const int32_t *v,
                       uint32_t n_bounds, uint32_t n)
{
    const __m512 scale = _mm512_set1_ps(inv), table = _mm512_maskz_loadu_ps(tail(n_bounds), bounds);
    const __m512i levels = _mm512_maskz_loadu_epi32(tail(n_bounds + 1), v);
    __m512 dot = _mm512_setzero_ps(), square = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail(n - i);
        const __m512 own = _mm512_maskz_loadu_ps(m, x + i);
        const __m512i at = cell(_mm512_mul_ps(own, scale), bounds, table, n_bounds);
        _mm512_mask_cvtepi32_storeu_epi8(codes + i, m, at);
        const __m512i level = n_bounds < 16 ? _mm512_permutexvar_epi32(at, levels) : _mm512_i32gather_epi32(at, v, 4);
        const __m512 l = _mm512_maskz_cvtepi32_ps(m, level);
        dot = _mm512_add_ps(dot, _mm512_mul_ps(own, l));
        square = _mm512_add_ps(square, _mm512_mul_ps(l, l));
    }
    *squares = sum_parts(square);
    return sum_parts(dot);
}

static void fit_levels(float (*parts)[2][16], const float *inv, uint32_t n_scales, const float *z, const float *y,
                       const float *scale, const vq_codes_levels *levels, uint32_t n)
{
    const float *bounds = levels->bounds;
    const __m512 step = _mm512_set1_ps(levels->step), one = _mm512_set1_ps(1);
    const __m512 most = _mm512_set1_ps((float)((levels->n_bounds + 1) / 2)), least = _mm512_sub_ps(one, most);
    __m512 table = _mm512_setzero_ps(), level = table;
    if (bounds) {
        table = _mm512_maskz_loadu_ps(tail(levels->n_bounds), bounds);
        level =
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_maskz_loadu_epi32(tail(levels->n_bounds + 1), levels->v)), step);
    }
    for (uint32_t s = 0; s < n_scales; s++) {
        const __m512 by = _mm512_set1_ps(inv[s]);
        __m512 dot = _mm512_loadu_ps(parts[s][0]), square = _mm512_loadu_ps(parts[s][1]);
        for (uint32_t i = 0; i < n; i += 16) {
            const __mmask16 m = tail(n - i);
            const __m512 u = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, z + i), by);
            __m512 l;
            if (bounds) {
                l = _mm512_permutexvar_ps(cell(u, bounds, table, levels->n_bounds), level);
            } else {
                const __m512 up = _mm512_roundscale_ps(u, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
                const __m512 within = _mm512_min_ps(_mm512_max_ps(up, least), most);
                l = _mm512_mul_ps(_mm512_sub_ps(_mm512_add_ps(within, within), one), step);
            }
            l = _mm512_mul_ps(l, _mm512_maskz_loadu_ps(m, scale + i));
            dot = _mm512_mask_add_ps(dot, m, dot, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, y + i), l));
            square = _mm512_mask_add_ps(square, m, square, _mm512_mul_ps(l, l));
        }
        _mm512_storeu_ps(parts[s][0], dot);
        _mm512_storeu_ps(parts[s][1], square);
    }
}

/* Row 4 r + q in register 4 q + r, whose sum lands in that lane. */
static void sum_rows(float *out, const float (*parts)[16], uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v[16];
        for (uint32_t r = 0; r < 16; r++)
            v[4 * (r % 4) + r / 4] = i + r < n ? _mm512_loadu_ps(parts[i + r]) : _mm512_setzero_ps();
        _mm512_mask_storeu_ps(out + i, tail(n - i), sums_of(v));
    }
}

/* Sixteen coordinates of some rows, a constant number where it is inlined. */
static inline __attribute__((always_inline)) void project_some(float *y, const float *x, const int8_t *entries,
                                                               const float *scale, uint32_t d, uint32_t width,
                                                               __mmask16 m, uint32_t n)
{
    __m512 sum[8];
    for (uint32_t r = 0; r < n; r++)
        sum[r] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < d; i++) {
        const __m128i bytes = _mm_maskz_loadu_epi8(m, entries + (size_t)i * width);
        const __m512 e = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
        for (uint32_t r = 0; r < n; r++)
            sum[r] = _mm512_add_ps(sum[r], _mm512_mul_ps(_mm512_set1_ps(x[(size_t)r * d + i]), e));
    }
    for (uint32_t r = 0; r < n; r++)
        _mm512_mask_storeu_ps(y + (size_t)r * width, m, _mm512_mul_ps(sum[r], _mm512_maskz_loadu_ps(m, scale)));
}

static void project(float *y, const float *x, const int8_t *entries, const float *scale, uint32_t d, uint32_t width,
                    uint32_t n)
{
    for (uint32_t j = 0; j < width; j += 16) {
        const __mmask16 m = tail(width - j);
        uint32_t r = 0;
        for (; r + 8 <= n; r += 8)
            project_some(y + (size_t)r * width + j, x + (size_t)r * d, entries + j, scale + j, d, width, m, 8);
        for (; r < n; r++)
            project_some(y + (size_t)r * width + j, x + (size_t)r * d, entries + j, scale + j, d, width, m, 1);
    }
}

static void subtract(float *x, const uint8_t *codes, const int32_t *v, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail(n - i);
        const __m512i at = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, codes + i));
        const __m512 level = _mm512_cvtepi32_ps(_mm512_mask_i32gather_epi32(_mm512_setzero_si512(), m, at, v, 4));
        const __m512 own = _mm512_maskz_loadu_ps(m, x + i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_sub_ps(own, _mm512_mul_ps(level, _mm512_set1_ps(scale))));
    }
}

/* What follows is written and read again at once.  A load waits for a store that does not hand its bytes on, and masked
 * ones need not, nor several that make up one load; so whole vectors go without masks, and 64 bytes in one piece. */
static inline void scale_some(float *out, __m128i bytes, __m512 scale, __mmask16 m)
{
    const __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes)), scale);
    if (m == 0xffff)
        _mm512_storeu_ps(out, v);
    else
        _mm512_mask_storeu_ps(out, m, v);
}

static void nibbles(uint8_t *out, const uint8_t *packed, const uint8_t *table, uint32_t n_bytes)
{
    const __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    const __m256i low = _mm256_set1_epi8(15);
    if (n_bytes == 32) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)packed);
        const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_and_si256(v, low)),
                                                _mm256_and_si256(_mm256_srli_epi16(v, 4), low), 1);
        _mm512_storeu_si512(out, _mm512_shuffle_epi8(_mm512_broadcast_i64x4(t), both));
        return;
    }
    uint32_t i = 0;
    for (; i + 32 <= n_bytes; i += 32) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(packed + i));
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_shuffle_epi8(t, _mm256_and_si256(v, low)));
        _mm256_storeu_si256((__m256i *)(void *)(out + n_bytes + i), _mm256_shuffle_epi8(t, high));
    }
    if (i < n_bytes) {
        const __mmask32 m = ((__mmask32)1 << (n_bytes - i)) - 1;
        const __m256i v = _mm256_maskz_loadu_epi8(m, packed + i);
        const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        _mm256_mask_storeu_epi8(out + i, m, _mm256_shuffle_epi8(t, _mm256_and_si256(v, low)));
        _mm256_mask_storeu_epi8(out + n_bytes + i, m, _mm256_shuffle_epi8(t, high));
    }
}

static void scale_bytes(float *out, const uint8_t *bytes, float scale, uint32_t n)
{
    const __m512 s = _mm512_set1_ps(scale);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        scale_some(out + i, _mm_loadu_si128((const __m128i *)(const void *)(bytes + i)), s, 0xffff);
    if (i < n)
        scale_some(out + i, _mm_maskz_loadu_epi8(tail(n - i), bytes + i), s, tail(n - i));
}

static void centre_bytes(float *out, const uint8_t *bytes, int32_t times, int32_t minus, float scale, uint32_t n)
{
    const __m512i t = _mm512_set1_epi32(times), less = _mm512_set1_epi32(minus);
    const __m512 s = _mm512_set1_ps(scale);
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = n - i >= 16 ? 0xffff : tail(n - i);
        const __m512i v = _mm512_mullo_epi32(_mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, bytes + i)), t);
        const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(v, less)), s);
        if (m == 0xffff)
            _mm512_storeu_ps(out + i, x);
        else
            _mm512_mask_storeu_ps(out + i, m, x);
    }
}

static void times_byte_floats(float *x, const uint8_t *by, uint32_t n)
{
    const __m512i least = _mm512_set1_epi32(VQ_BYTE_FLOAT_LEAST);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(by + i)));
        const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(codes, least), VQ_BYTE_FLOAT_SHIFT);
        _mm512_storeu_ps(x + i, _mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_castsi512_ps(bits)));
    }
    if (i < n) {
        const __mmask16 m = tail(n - i);
        const __m512i codes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, by + i));
        const __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(codes, least), VQ_BYTE_FLOAT_SHIFT);
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_castsi512_ps(bits)));
    }
}

static int32_t dot_us(const uint8_t *u, const int8_t *q, uint32_t n)
{
    __m512i sum = _mm512_setzero_si512();
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64)
        sum = _mm512_dpbusd_epi32(sum, _mm512_loadu_si512(u + i), _mm512_loadu_si512(q + i));
    if (i < n) {
        const __mmask64 m = ((__mmask64)1 << (n - i)) - 1;
        sum = _mm512_dpbusd_epi32(sum, _mm512_maskz_loadu_epi8(m, u + i), _mm512_maskz_loadu_epi8(m, q + i));
    }
    return _mm512_reduce_add_epi32(sum);
}

static int32_t dot_wide(const uint8_t *u, const int8_t *high, const int8_t *low, uint32_t n)
{
    __m512i first = _mm512_setzero_si512(), second = first;
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const __m512i x = _mm512_loadu_si512(u + i);
        first = _mm512_dpbusd_epi32(first, x, _mm512_loadu_si512(high + i));
        second = _mm512_dpbusd_epi32(second, x, _mm512_loadu_si512(low + i));
    }
    if (i < n) {
        const __mmask64 m = ((__mmask64)1 << (n - i)) - 1;
        const __m512i x = _mm512_maskz_loadu_epi8(m, u + i);
        first = _mm512_dpbusd_epi32(first, x, _mm512_maskz_loadu_epi8(m, high + i));
        second = _mm512_dpbusd_epi32(second, x, _mm512_maskz_loadu_epi8(m, low + i));
    }
    return _mm512_reduce_add_epi32(_mm512_add_epi32(_mm512_slli_epi32(first, 7), second));
}

static void scores(float *out, const int32_t *dots, int32_t centre, float scale, const float *norms, float base,
                   uint32_t n)
{
    const __m512i c = _mm512_set1_epi32(centre);
    const __m512 s = _mm512_set1_ps(scale), b = _mm512_set1_ps(base);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i d = _mm512_loadu_si512(dots + i);
        const __m512 f = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_add_epi32(d, d), c));
        _mm512_storeu_ps(out + i, _mm512_add_ps(_mm512_mul_ps(_mm512_mul_ps(f, s), _mm512_loadu_ps(norms + i)), b));
    }
    if (i < n) {
        const __mmask16 m = tail(n - i);
        const __m512i d = _mm512_maskz_loadu_epi32(m, dots + i);
        const __m512 f = _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_add_epi32(d, d), c));
        const __m512 product = _mm512_mul_ps(_mm512_mul_ps(f, s), _mm512_maskz_loadu_ps(m, norms + i));
        _mm512_mask_storeu_ps(out + i, m, _mm512_add_ps(product, b));
    }
}

static void join_wide(float *out, const int32_t *dots, size_t stride, int64_t plus, uint32_t n)
{
    const __m512i p = _mm512_set1_epi64(plus);
    for (uint32_t i = 0; i < n; i += 8) {
        const __mmask8 m = n - i >= 8 ? 0xff : (__mmask8)((1u << (n - i)) - 1);
        __m512i x[4];
        for (uint32_t part = 0; part < 4; part++)
            x[part] = _mm512_cvtepi32_epi64(_mm256_maskz_loadu_epi32(m, dots + part * stride + i));
        const __m512i high = _mm512_add_epi64(_mm512_slli_epi64(x[0], 8), x[1]);
        const __m512i low = _mm512_add_epi64(_mm512_slli_epi64(x[2], 8), x[3]);
        const __m512i twice = _mm512_slli_epi64(_mm512_add_epi64(_mm512_slli_epi64(high, 7), low), 1);
        _mm256_mask_storeu_ps(out + i, m, _mm512_cvtepi64_ps(_mm512_add_epi64(twice, p)));
    }
}

static void add_scaled(float *acc, const int32_t *dots, int32_t sum, float scale, uint32_t n)
{
    const __m512i c = _mm512_set1_epi32(sum);
    const __m512 s = _mm512_set1_ps(scale);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512i d = _mm512_loadu_si512(dots + i);
        const __m512 f = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_add_epi32(d, d), c));
        _mm512_storeu_ps(acc + i, _mm512_add_ps(_mm512_loadu_ps(acc + i), _mm512_mul_ps(f, s)));
    }
    if (i < n) {
        const __mmask16 m = tail(n - i);
        const __m512i d = _mm512_maskz_loadu_epi32(m, dots + i);
        const __m512 f = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_add_epi32(d, d), c));
        _mm512_mask_storeu_ps(acc + i, m, _mm512_add_ps(_mm512_maskz_loadu_ps(m, acc + i), _mm512_mul_ps(f, s)));
    }
}

/* 64 integers as bytes, in one piece. */
static inline void store_bytes(uint8_t *out, const __m512i x[4])
{
    __m512i all = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(x[0]));
    all = _mm512_inserti32x4(all, _mm512_cvtepi32_epi8(x[1]), 1);
    all = _mm512_inserti32x4(all, _mm512_cvtepi32_epi8(x[2]), 2);
    all = _mm512_inserti32x4(all, _mm512_cvtepi32_epi8(x[3]), 3);
    _mm512_storeu_si512(out, all);
}

static inline float products(__m512 p[4], const float *weights, const float *norms)
{
    for (uint32_t i = 0; i < 4; i++)
        p[i] = _mm512_mul_ps(_mm512_loadu_ps(weights + 16 * i), _mm512_loadu_ps(norms + 16 * i));
    return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(p[0], p[1]), _mm512_max_ps(p[2], p[3])));
}

static float weigh_narrow(uint8_t *out, int32_t *sum, const float *weights, const float *norms)
{
    __m512 p[4];
    const float most = products(p, weights, norms);
    if (!(most >= VQ_CODES_SMALLEST)) {
        memset(out, 0, VQ_CODES_ROWS);
        *sum = 0;
        return 0;
    }
    const __m512 inv = _mm512_set1_ps(254 / most);
    __m512 carry = _mm512_loadu_ps(vq_codes_dither);
    __m512i total = _mm512_setzero_si512(), r[4];
    for (uint32_t i = 0; i < 4; i++) {
        const __m512 x = _mm512_add_ps(_mm512_mul_ps(p[i], inv), carry);
        r[i] = _mm512_cvtps_epi32(x);
        carry = _mm512_sub_ps(x, _mm512_cvtepi32_ps(r[i]));
        total = _mm512_add_epi32(total, r[i]);
    }
    store_bytes(out, r);
    *sum = _mm512_reduce_add_epi32(total);
    return most / 254;
}

static float weigh_wide(uint8_t *out, int32_t *sum, const float *weights, const float *norms)
{
    __m512 p[4];
    const float most = products(p, weights, norms);
    if (!(most >= VQ_CODES_SMALLEST)) {
        memset(out, 0, 2 * VQ_CODES_ROWS);
        *sum = 0;
        return 0;
    }
    const __m512 inv = _mm512_set1_ps(16383 / most), top = _mm512_set1_ps(16383);
    __m512i total = _mm512_setzero_si512(), high[4], low[4];
    for (uint32_t i = 0; i < 4; i++) {
        const __m512i r = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(p[i], inv), top));
        total = _mm512_add_epi32(total, r);
        high[i] = _mm512_srli_epi32(r, 7);
        low[i] = _mm512_and_si512(r, _mm512_set1_epi32(127));
    }
    store_bytes(out, high);
    store_bytes(out + VQ_CODES_ROWS, low);
    *sum = _mm512_reduce_add_epi32(total);
    return most / 16383;
}

static void f16_to_f32(float *out, const uint16_t *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(x + i))));
    if (i < n) {
        const __mmask16 m = tail(n - i);
        _mm512_mask_storeu_ps(out + i, m, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, x + i)));
    }
}

static inline __m512i round_within(__m512 x, float least, float most)
{
    return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(least)), _mm512_set1_ps(most)));
}

static void round_signed(int8_t *out, const float *x, float inv, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail(n - i);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_set1_ps(inv));
        _mm512_mask_cvtepi32_storeu_epi8(out + i, m, round_within(v, -127, 127));
    }
}

static void round_affine(uint8_t *out, const float *x, const float *zero, const float *inv, uint32_t most, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail(n - i);
        const __m512 off = _mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_maskz_loadu_ps(m, zero + i));
        const __m512 v = _mm512_mul_ps(off, _mm512_maskz_loadu_ps(m, inv + i));
        _mm512_mask_cvtepi32_storeu_epi8(out + i, m, round_within(v, 0, (float)most));
    }
}

/* 16 integers as bytes, of which the first n count: without a mask where all do, since they are read again at once. */
static inline void store_some(int8_t *out, __m512i x, uint32_t n)
{
    if (n >= 16)
        _mm_storeu_si128((__m128i *)(void *)out, _mm512_cvtepi32_epi8(x));
    else
        _mm512_mask_cvtepi32_storeu_epi8(out, tail(n), x);
}

static float quantise_narrow(int8_t *out, int32_t *sum, const float *x, uint32_t n)
{
    const float most = largest(x, n);
    const float inv = most >= VQ_CODES_SMALLEST ? 127 / most : 0;
    __m512i total = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail(n - i);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_set1_ps(inv));
        const __m512i r = round_within(v, -127, 127);
        total = _mm512_add_epi32(total, r);
        store_some(out + i, r, n - i);
    }
    *sum = _mm512_reduce_add_epi32(total);
    return inv > 0 ? most / 127 : 0;
}

static float quantise_wide(int8_t *out, size_t stride, int32_t *sum, const float *x, uint32_t n)
{
    const float most = largest(x, n);
    const float inv = most >= VQ_CODES_SMALLEST ? 8191 / most : 0;
    __m512i total = _mm512_setzero_si512();
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = tail(n - i);
        const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), _mm512_set1_ps(inv));
        const __m512i r = round_within(v, -8191, 8191);
        const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(r, _mm512_set1_epi32(64)), 7);
        total = _mm512_add_epi32(total, r);
        store_some(out + i, high, n - i);
        store_some(out + stride + i, _mm512_sub_epi32(r, _mm512_slli_epi32(high, 7)), n - i);
    }
    *sum = _mm512_reduce_add_epi32(total);
    return inv > 0 ? most / 8191 : 0;
}

void vq_codes_kernels_init_avx512(vq_codes_kernels *k)
{
    k->hadamard = hadamard;
    k->flip = flip;
    k->sum_squares = sum_squares;
    k->dot = dot;
    k->largest = largest;
    k->count = count;
    k->count_fit = count_fit;
    k->fit_grid = fit_grid;
    k->fit_levels = fit_levels;
    k->sum_parts = sum_rows;
    k->project = project;
    k->subtract = subtract;
    k->unpack_keys = vq_codes_unpack_keys_avx512;
    k->unpack_values = vq_codes_unpack_values_avx512;
    k->dots_us = vq_codes_dots_us_avx512;
    k->dots_su = vq_codes_dots_su_avx512;
    k->dots_keys = vq_codes_dots_keys_avx512;
    k->dots_values = vq_codes_dots_values_avx512;
    k->nibbles = nibbles;
    k->scale_bytes = scale_bytes;
    k->centre_bytes = centre_bytes;
    k->times_byte_floats = times_byte_floats;
    k->dot_us = dot_us;
    k->dot_wide = dot_wide;
    k->scores = scores;
    k->join_wide = join_wide;
    k->add_scaled = add_scaled;
    k->weigh_narrow = weigh_narrow;
    k->weigh_wide = weigh_wide;
    k->f16_to_f32 = f16_to_f32;
    k->round_signed = round_signed;
    k->round_affine = round_affine;
    k->quantise_narrow = quantise_narrow;
    k->quantise_wide = quantise_wide;
}
