/* The packed codecs' kernels with AVX2: arithmetic.  Tiles are in codes_tile_avx2.c.  No fused multiply-add: the same
 * bits as the definitions.  Two registers of eight hold the sixteen parts of a sum. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/codes_inner.h"
#include "kernels/codes_sum.h"
#include "kernels/x86/codes_avx2.h"

/* Lanes of a vector of eight that a tail of n < 8 has. */
static inline __m256i tail_mask(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline __m256 load_tail(const float *x, uint32_t n) { return _mm256_maskload_ps(x, tail_mask(n)); }

static inline __m256 load_some(const float *x, uint32_t n) { return n >= 8 ? _mm256_loadu_ps(x) : load_tail(x, n); }

static inline void store_some(float *x, __m256 v, uint32_t n)
{
    if (n >= 8)
        _mm256_storeu_ps(x, v);
    else
        _mm256_maskstore_ps(x, tail_mask(n), v);
}

/* Sums and differences of neighbours, of pairs and of halves of four. */
static inline __m256 hadamard_eight(__m256 v)
{
    __m256 w = _mm256_permute_ps(v, 0xb1);
    v = _mm256_blend_ps(_mm256_add_ps(v, w), _mm256_sub_ps(w, v), 0xaa);
    w = _mm256_permute_ps(v, 0x4e);
    v = _mm256_blend_ps(_mm256_add_ps(v, w), _mm256_sub_ps(w, v), 0xcc);
    w = _mm256_permute2f128_ps(v, v, 1);
    return _mm256_blend_ps(_mm256_add_ps(v, w), _mm256_sub_ps(w, v), 0xf0);
}

void vq_codes_hadamard_avx2(float *x, uint32_t n)
{
    if (n < 8) {
        vq_codes_hadamard_c(x, n);
        return;
    }
    const __m256 scale = _mm256_set1_ps(1 / sqrtf((float)n));
    if (n == 8) {
        _mm256_storeu_ps(x, _mm256_mul_ps(hadamard_eight(_mm256_loadu_ps(x)), scale));
        return;
    }
    for (uint32_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(x + i, hadamard_eight(_mm256_loadu_ps(x + i)));
    for (uint32_t h = 8; h < n; h *= 2)
        for (uint32_t i = 0; i < n; i += 2 * h)
            for (uint32_t j = i; j < i + h; j += 8) {
                const __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + h);
                __m256 sum = _mm256_add_ps(a, b), difference = _mm256_sub_ps(a, b);
                if (2 * h == n) {
                    sum = _mm256_mul_ps(sum, scale);
                    difference = _mm256_mul_ps(difference, scale);
                }
                _mm256_storeu_ps(x + j, sum);
                _mm256_storeu_ps(x + j + h, difference);
            }
}

static void mix_blocks(float *out, const float *x, const float *by, uint32_t m, uint32_t n, bool turned)
{
    const size_t row = turned ? 1 : m, column = turned ? m : 1;
    for (uint32_t i = 0; i < m; i++, by += row)
        for (uint32_t t = 0; t < n; t += 8) {
            __m256 sum = _mm256_setzero_ps();
            for (uint32_t j = 0; j < m; j++) {
                const __m256 v = _mm256_loadu_ps(x + (size_t)j * n + t);
                sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_broadcast_ss(by + j * column), v));
            }
            _mm256_storeu_ps(out + (size_t)i * n + t, sum);
        }
}

static void flip(float *x, const uint8_t *sign_bits, uint32_t n)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i set = _mm256_and_si256(_mm256_set1_epi32(sign_bits[i / 8]), each);
        const __m256i sign = _mm256_slli_epi32(_mm256_cmpeq_epi32(set, each), 31);
        _mm256_storeu_ps(x + i, _mm256_xor_ps(_mm256_loadu_ps(x + i), _mm256_castsi256_ps(sign)));
    }
    for (; i < n; i++)
        if (sign_bits[i / 8] >> (i % 8) & 1)
            x[i] = -x[i];
}

static inline float sum_parts(__m256 low, __m256 high)
{
    const __m256 a = _mm256_add_ps(low, high);
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

static float sum_squares(const float *x, uint32_t n)
{
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 v = load_some(x + i, n - i);
        sum[i / 8 % 2] = _mm256_add_ps(sum[i / 8 % 2], _mm256_mul_ps(v, v));
    }
    return sum_parts(sum[0], sum[1]);
}

static float dot(const float *x, const float *y, uint32_t n)
{
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 product = _mm256_mul_ps(load_some(x + i, n - i), load_some(y + i, n - i));
        sum[i / 8 % 2] = _mm256_add_ps(sum[i / 8 % 2], product);
    }
    return sum_parts(sum[0], sum[1]);
}

static inline __m128i load_bytes(const uint8_t *x, uint32_t n)
{
    uint64_t eight = 0;
    if (n >= 8)
        memcpy(&eight, x, 8);
    else
        memcpy(&eight, x, n);
    return _mm_cvtsi64_si128((int64_t)eight);
}

static inline void store_bytes(uint8_t *x, __m256i v, uint32_t n)
{
    /* the low byte of each lane, the lanes of both halves side by side */
    const __m256i low =
        _mm256_shuffle_epi8(v, _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8,
                                                12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1));
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    const uint64_t eight = (uint64_t)_mm_cvtsi128_si64(both);
    if (n >= 8)
        memcpy(x, &eight, 8);
    else
        memcpy(x, &eight, n);
}

/* Two spacings at a time. */
static void fit_grid(float *cosines, const float *inv, uint32_t n_scales, const float *x, uint32_t bits, uint32_t n)
{
    const __m256 most = _mm256_set1_ps((float)(1u << (bits - 1))), one = _mm256_set1_ps(1);
    const __m256 least = _mm256_sub_ps(one, most);
    for (uint32_t s = 0; s < n_scales; s += 2) {
        const uint32_t now = n_scales - s < 2 ? 1 : 2;
        const __m256 by[2] = {_mm256_set1_ps(inv[s]), _mm256_set1_ps(inv[s + now - 1])};
        __m256 dot[2][2], square[2][2];
        for (uint32_t j = 0; j < 4; j++)
            dot[j / 2][j % 2] = square[j / 2][j % 2] = _mm256_setzero_ps();
        for (uint32_t i = 0; i < n; i += 16)
            for (uint32_t h = 0; h < 2 && i + 8 * h < n; h++) {
                const uint32_t left = n - i - 8 * h;
                const __m256 u = load_some(x + i + (size_t)8 * h, left);
                for (uint32_t j = 0; j < 2; j++) {
                    const __m256 up = _mm256_ceil_ps(_mm256_mul_ps(u, by[j]));
                    const __m256 within = _mm256_min_ps(_mm256_max_ps(up, least), most);
                    const __m256 v = _mm256_sub_ps(_mm256_add_ps(within, within), one);
                    const __m256 own = _mm256_mul_ps(v, v);
                    dot[j][h] = _mm256_add_ps(dot[j][h], _mm256_mul_ps(u, v));
                    square[j][h] = _mm256_add_ps(
                        square[j][h], left >= 8 ? own : _mm256_and_ps(own, _mm256_castsi256_ps(tail_mask(left))));
                }
            }
        for (uint32_t j = 0; j < now; j++)
            cosines[s + j] = sum_parts(dot[j][0], dot[j][1]) / sqrtf(sum_parts(square[j][0], square[j][1]));
    }
}

static inline float largest_of(__m256 v)
{
    const __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 b = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

static float largest(const float *x, uint32_t n)
{
    const __m256 sign = _mm256_set1_ps(-0.0F);
    __m256 most = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8)
        most = _mm256_max_ps(_mm256_andnot_ps(sign, load_some(x + i, n - i)), most); /* of NaN the second */
    return largest_of(most);
}

/* Up to 15 bounds are compared one by one, more by a binary search in every lane. */
static inline __m256i cell(__m256 u, const float *bounds, uint32_t n_bounds)
{
    __m256i at = _mm256_setzero_si256();
    if (n_bounds < 16) {
        for (uint32_t b = 0; b < n_bounds; b++)
            at = _mm256_sub_epi32(at,
                                  _mm256_castps_si256(_mm256_cmp_ps(u, _mm256_broadcast_ss(bounds + b), _CMP_GT_OQ)));
        return at;
    }
    for (uint32_t step = (n_bounds + 1) / 2; step > 0; step /= 2) {
        const __m256i middle = _mm256_add_epi32(at, _mm256_set1_epi32((int32_t)step - 1));
        const __m256 above = _mm256_cmp_ps(u, _mm256_i32gather_ps(bounds, middle, 4), _CMP_GT_OQ);
        at = _mm256_add_epi32(at, _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32((int32_t)step)));
    }
    return at;
}

static void count(uint8_t *codes, const float *x, float inv, const float *bounds, uint32_t n_bounds, uint32_t n)
{
    const __m256 scale = _mm256_set1_ps(inv);
    for (uint32_t i = 0; i < n; i += 8)
        store_bytes(codes + i, cell(_mm256_mul_ps(load_some(x + i, n - i), scale), bounds, n_bounds), n - i);
}

static float count_fit(uint8_t *codes, float *squares, const float *x, float inv, const float *bounds, const int32_t *v,
                       uint32_t n_bounds, uint32_t n)
{
    const __m256 scale = _mm256_set1_ps(inv);
    __m256 dot[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, square[2] = {dot[0], dot[1]};
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 own = load_some(x + i, n - i);
        const __m256i at = cell(_mm256_mul_ps(own, scale), bounds, n_bounds);
        store_bytes(codes + i, at, n - i);
        __m256 l = _mm256_cvtepi32_ps(_mm256_i32gather_epi32(v, at, 4));
        if (n - i < 8)
            l = _mm256_and_ps(l, _mm256_castsi256_ps(tail_mask(n - i)));
        dot[i / 8 % 2] = _mm256_add_ps(dot[i / 8 % 2], _mm256_mul_ps(own, l));
        square[i / 8 % 2] = _mm256_add_ps(square[i / 8 % 2], _mm256_mul_ps(l, l));
    }
    *squares = sum_parts(square[0], square[1]);
    return sum_parts(dot[0], dot[1]);
}

static void fit_levels(float (*parts)[2][16], const float *inv, uint32_t n_scales, const float *z, const float *y,
                       const float *scale, const vq_codes_levels *levels, uint32_t n)
{
    const __m256 step = _mm256_set1_ps(levels->step), one = _mm256_set1_ps(1);
    const __m256 most = _mm256_set1_ps((float)((levels->n_bounds + 1) / 2)), least = _mm256_sub_ps(one, most);
    for (uint32_t s = 0; s < n_scales; s++)
        for (uint32_t i = 0; i < n; i += 8) {
            const uint32_t left = n - i;
            const __m256 u = _mm256_mul_ps(load_some(z + i, left), _mm256_set1_ps(inv[s]));
            float *dot = parts[s][0] + i % 16, *square = parts[s][1] + i % 16;
            __m256 l;
            if (levels->bounds) {
                l = _mm256_cvtepi32_ps(_mm256_i32gather_epi32(levels->v, cell(u, levels->bounds, levels->n_bounds), 4));
            } else {
                const __m256 within = _mm256_min_ps(_mm256_max_ps(_mm256_ceil_ps(u), least), most);
                l = _mm256_sub_ps(_mm256_add_ps(within, within), one);
            }
            l = _mm256_mul_ps(_mm256_mul_ps(l, step), load_some(scale + i, left));
            store_some(dot, _mm256_add_ps(_mm256_loadu_ps(dot), _mm256_mul_ps(load_some(y + i, left), l)), left);
            store_some(square, _mm256_add_ps(_mm256_loadu_ps(square), _mm256_mul_ps(l, l)), left);
        }
}

static void sum_rows(float *out, const float (*parts)[16], uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = sum_parts(_mm256_loadu_ps(parts[i]), _mm256_loadu_ps(parts[i] + 8));
}

/* Eight coordinates of some rows, a constant number where it is inlined. */
static inline __attribute__((always_inline)) void project_some(float *y, const float *x, const int8_t *entries,
                                                               const float *scale, uint32_t d, uint32_t width,
                                                               uint32_t n)
{
    __m256 sum[8];
    for (uint32_t r = 0; r < n; r++)
        sum[r] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < d; i++) {
        const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)(entries + (size_t)i * width));
        const __m256 e = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        for (uint32_t r = 0; r < n; r++)
            sum[r] = _mm256_add_ps(sum[r], _mm256_mul_ps(_mm256_broadcast_ss(x + (size_t)r * d + i), e));
    }
    for (uint32_t r = 0; r < n; r++)
        _mm256_storeu_ps(y + (size_t)r * width, _mm256_mul_ps(sum[r], _mm256_loadu_ps(scale)));
}

static void project(float *y, const float *x, const int8_t *entries, const float *scale, uint32_t d, uint32_t width,
                    uint32_t n)
{
    for (uint32_t j = 0; j < width; j += 8) {
        uint32_t r = 0;
        for (; r + 8 <= n; r += 8)
            project_some(y + (size_t)r * width + j, x + (size_t)r * d, entries + j, scale + j, d, width, 8);
        for (; r < n; r++)
            project_some(y + (size_t)r * width + j, x + (size_t)r * d, entries + j, scale + j, d, width, 1);
    }
}

static void subtract(float *x, const uint8_t *codes, const int32_t *v, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i at = _mm256_cvtepu8_epi32(load_bytes(codes + i, n - i));
        const __m256 level = _mm256_cvtepi32_ps(_mm256_i32gather_epi32(v, at, 4));
        store_some(x + i, _mm256_sub_ps(load_some(x + i, n - i), _mm256_mul_ps(level, _mm256_set1_ps(scale))), n - i);
    }
}

static inline __m256i load_ints(const int32_t *x, uint32_t n)
{
    return n >= 8 ? _mm256_loadu_si256((const __m256i *)(const void *)x) : _mm256_maskload_epi32(x, tail_mask(n));
}

static inline int32_t total_of(__m256i v)
{
    const __m128i a = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    const __m128i b = _mm_add_epi32(a, _mm_unpackhi_epi64(a, a));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 1)));
}

static void nibbles(uint8_t *out, const uint8_t *packed, const uint8_t *table, uint32_t n_bytes)
{
    const __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table), low = _mm_set1_epi8(15);
    uint32_t i = 0;
    for (; i + 16 <= n_bytes; i += 16) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(packed + i));
        const __m128i high = _mm_and_si128(_mm_srli_epi16(v, 4), low);
        _mm_storeu_si128((__m128i *)(void *)(out + i), _mm_shuffle_epi8(t, _mm_and_si128(v, low)));
        _mm_storeu_si128((__m128i *)(void *)(out + n_bytes + i), _mm_shuffle_epi8(t, high));
    }
    for (; i < n_bytes; i++) {
        out[i] = table[packed[i] & 15];
        out[n_bytes + i] = table[packed[i] >> 4];
    }
}

static void scale_bytes(float *out, const uint8_t *bytes, float scale, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_bytes(bytes + i, n - i)));
        store_some(out + i, _mm256_mul_ps(v, _mm256_set1_ps(scale)), n - i);
    }
}

static void centre_bytes(float *out, const uint8_t *bytes, int32_t times, int32_t minus, float scale, uint32_t n)
{
    const __m256i t = _mm256_set1_epi32(times), less = _mm256_set1_epi32(minus);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i v = _mm256_mullo_epi32(_mm256_cvtepu8_epi32(load_bytes(bytes + i, n - i)), t);
        const __m256 x = _mm256_cvtepi32_ps(_mm256_sub_epi32(v, less));
        store_some(out + i, _mm256_mul_ps(x, _mm256_set1_ps(scale)), n - i);
    }
}

static void times_byte_floats(float *x, const uint8_t *by, uint32_t n)
{
    const __m256i least = _mm256_set1_epi32(VQ_BYTE_FLOAT_LEAST);
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(by + i)));
        const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(codes, least), VQ_BYTE_FLOAT_SHIFT);
        _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_castsi256_ps(bits)));
    }
    for (; i < n; i++)
        x[i] *= vq_byte_float(by[i]);
}

static int32_t dot_us(const uint8_t *u, const int8_t *q, uint32_t n)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i two = _mm256_maddubs_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(u + i)),
                                                 _mm256_loadu_si256((const __m256i *)(const void *)(q + i)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two, ones));
    }
    int32_t total = total_of(sum);
    for (; i < n; i++)
        total += u[i] * q[i];
    return total;
}

static int32_t dot_wide(const uint8_t *u, const int8_t *high, const int8_t *low, uint32_t n)
{
    return 128 * dot_us(u, high, n) + dot_us(u, low, n);
}

static void scores(float *out, const int32_t *dots, int32_t centre, float scale, const float *norms, float base,
                   uint32_t n)
{
    const __m256i c = _mm256_set1_epi32(centre);
    const __m256 s = _mm256_set1_ps(scale);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i d = load_ints(dots + i, n - i);
        const __m256 f = _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_add_epi32(d, d), c));
        const __m256 product = _mm256_mul_ps(_mm256_mul_ps(f, s), load_some(norms + i, n - i));
        store_some(out + i, _mm256_add_ps(product, _mm256_set1_ps(base)), n - i);
    }
}

static void add_scaled(float *acc, const int32_t *dots, int32_t sum, float scale, uint32_t n)
{
    const __m256i c = _mm256_set1_epi32(sum);
    const __m256 s = _mm256_set1_ps(scale);
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i d = load_ints(dots + i, n - i);
        const __m256 f = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_add_epi32(d, d), c));
        store_some(acc + i, _mm256_add_ps(load_some(acc + i, n - i), _mm256_mul_ps(f, s)), n - i);
    }
}

static inline float products(__m256 p[8], const float *weights, const float *norms)
{
    __m256 most = _mm256_setzero_ps();
    for (uint32_t i = 0; i < 8; i++) {
        p[i] = _mm256_mul_ps(_mm256_loadu_ps(weights + 8 * i), _mm256_loadu_ps(norms + 8 * i));
        most = _mm256_max_ps(p[i], most);
    }
    return largest_of(most);
}

static float weigh_narrow(uint8_t *out, int32_t *sum, const float *weights, const float *norms)
{
    __m256 p[8];
    const float most = products(p, weights, norms);
    if (!(most >= VQ_CODES_SMALLEST)) {
        memset(out, 0, VQ_CODES_ROWS);
        *sum = 0;
        return 0;
    }
    const __m256 inv = _mm256_set1_ps(254 / most);
    __m256 carry[2] = {_mm256_loadu_ps(vq_codes_dither), _mm256_loadu_ps(vq_codes_dither + 8)};
    __m256i total = _mm256_setzero_si256();
    for (uint32_t i = 0; i < 8; i++) {
        const __m256 x = _mm256_add_ps(_mm256_mul_ps(p[i], inv), carry[i % 2]);
        const __m256i r = _mm256_cvtps_epi32(x);
        carry[i % 2] = _mm256_sub_ps(x, _mm256_cvtepi32_ps(r));
        total = _mm256_add_epi32(total, r);
        store_bytes(out + 8 * i, r, 8);
    }
    *sum = total_of(total);
    return most / 254;
}

static float weigh_wide(uint8_t *out, int32_t *sum, const float *weights, const float *norms)
{
    __m256 p[8];
    const float most = products(p, weights, norms);
    if (!(most >= VQ_CODES_SMALLEST)) {
        memset(out, 0, 2 * VQ_CODES_ROWS);
        *sum = 0;
        return 0;
    }
    const __m256 inv = _mm256_set1_ps(16383 / most), top = _mm256_set1_ps(16383);
    __m256i total = _mm256_setzero_si256();
    for (uint32_t i = 0; i < 8; i++) {
        const __m256i r = _mm256_cvtps_epi32(_mm256_min_ps(_mm256_mul_ps(p[i], inv), top));
        total = _mm256_add_epi32(total, r);
        store_bytes(out + 8 * i, _mm256_srli_epi32(r, 7), 8);
        store_bytes(out + VQ_CODES_ROWS + 8 * i, _mm256_and_si256(r, _mm256_set1_epi32(127)), 8);
    }
    *sum = total_of(total);
    return most / 16383;
}

static void f16_to_f32(float *out, const uint16_t *x, uint32_t n)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(x + i))));
    for (; i < n; i++)
        out[i] = _cvtsh_ss(x[i]);
}

static inline __m256i round_within(__m256 x, float least, float most)
{
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(x, _mm256_set1_ps(least)), _mm256_set1_ps(most)));
}

static void round_signed(int8_t *out, const float *x, float inv, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_mul_ps(load_some(x + i, n - i), _mm256_set1_ps(inv));
        store_bytes((uint8_t *)out + i, round_within(v, -127, 127), n - i);
    }
}

static void round_affine(uint8_t *out, const float *x, const float *zero, const float *inv, uint32_t most, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 off = _mm256_sub_ps(load_some(x + i, n - i), load_some(zero + i, n - i));
        store_bytes(out + i, round_within(_mm256_mul_ps(off, load_some(inv + i, n - i)), 0, (float)most), n - i);
    }
}

static float quantise_narrow(int8_t *out, int32_t *sum, const float *x, uint32_t n)
{
    const float most = largest(x, n);
    const float inv = most >= VQ_CODES_SMALLEST ? 127 / most : 0;
    __m256i total = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i r = round_within(_mm256_mul_ps(load_some(x + i, n - i), _mm256_set1_ps(inv)), -127, 127);
        total = _mm256_add_epi32(total, r);
        store_bytes((uint8_t *)out + i, r, n - i);
    }
    *sum = total_of(total);
    return inv > 0 ? most / 127 : 0;
}

static float quantise_wide(int8_t *out, size_t stride, int32_t *sum, const float *x, uint32_t n)
{
    const float most = largest(x, n);
    const float inv = most >= VQ_CODES_SMALLEST ? 8191 / most : 0;
    __m256i total = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i r = round_within(_mm256_mul_ps(load_some(x + i, n - i), _mm256_set1_ps(inv)), -8191, 8191);
        const __m256i high = _mm256_srai_epi32(_mm256_add_epi32(r, _mm256_set1_epi32(64)), 7);
        total = _mm256_add_epi32(total, r);
        store_bytes((uint8_t *)out + i, high, n - i);
        store_bytes((uint8_t *)out + stride + i, _mm256_sub_epi32(r, _mm256_slli_epi32(high, 7)), n - i);
    }
    *sum = total_of(total);
    return inv > 0 ? most / 8191 : 0;
}

void vq_codes_kernels_init_avx2(vq_codes_kernels *k)
{
    k->hadamard = vq_codes_hadamard_avx2;
    k->mix_blocks = mix_blocks;
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
    k->unpack_keys = vq_codes_unpack_keys_avx2;
    k->unpack_values = vq_codes_unpack_values_avx2;
    k->dots_us = vq_codes_dots_us_avx2;
    k->dots_su = vq_codes_dots_su_avx2;
    k->dots_keys = vq_codes_dots_keys_avx2;
    k->dots_values = vq_codes_dots_values_avx2;
    k->nibbles = nibbles;
    k->scale_bytes = scale_bytes;
    k->centre_bytes = centre_bytes;
    k->times_byte_floats = times_byte_floats;
    k->dot_us = dot_us;
    k->dot_wide = dot_wide;
    k->scores = scores;
    k->add_scaled = add_scaled;
    k->weigh_narrow = weigh_narrow;
    k->weigh_wide = weigh_wide;
    k->f16_to_f32 = f16_to_f32;
    k->round_signed = round_signed;
    k->round_affine = round_affine;
    k->quantise_narrow = quantise_narrow;
    k->quantise_wide = quantise_wide;
}
