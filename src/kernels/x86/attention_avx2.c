/* Attention over rows of floats, AVX2 tier: as the AVX-512 tier, in tiles of up to 3 queries by 4 vectors. */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "kernels/attention.h"
#include "kernels/vec_exp.h"

enum { LANES = 8, TILE_QUERIES = 3, TILE_VECTORS = 4, WIDTH = 32, BLOCK = 64, WIDEN_FROM = 7 };
_Static_assert((int)BLOCK == (int)VQ_BLOCK_ROWS && TILE_VECTORS * LANES == WIDTH, "two tiles are as wide as a block");

typedef enum kind { F16, BF16, F32 } kind;

/* gcc keeps a tile in registers only when its loops are unrolled early. */
#if defined(__clang__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE const void *at(kind t, const void *x, size_t i)
{
    return t == F32 ? (const void *)((const float *)x + i) : (const void *)((const uint16_t *)x + i);
}

INLINE __m256 widen(kind t, __m128i x)
{
    return t == F16 ? _mm256_cvtph_ps(x) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

INLINE __m256 load(kind t, const void *x) { return t == F32 ? _mm256_loadu_ps(x) : widen(t, _mm_loadu_si128(x)); }

INLINE __m256i first_lanes(uint32_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The first n of 8; the others are 0 and not read. */
INLINE __m256 load_first(kind t, const void *x, uint32_t n)
{
    if (n >= LANES)
        return load(t, x);
    if (t == F32)
        return _mm256_maskload_ps(x, first_lanes(n));
    uint16_t some[LANES] = {0};
    memcpy(some, x, n * sizeof some[0]);
    return widen(t, _mm_loadu_si128((const __m128i *)(const void *)some));
}

INLINE void store_first(float *x, uint32_t n, __m256 v)
{
    if (n >= LANES)
        _mm256_storeu_ps(x, v);
    else
        _mm256_maskstore_ps(x, first_lanes(n), v);
}

/* See the AVX-512 tier. */
INLINE void fetch(kind t, const void *next, size_t i, uint32_t n)
{
    if (!next)
        return;
    const char *p = at(t, next, i);
    for (uint32_t b = 0; b < n * (t == F32 ? 4 : 2); b += 64)
        _mm_prefetch(p + b, _MM_HINT_T1);
}

/* ---- scores ---- */

/* out [nq][64] (nv vectors) += q [nq][n_channels] times k [n_channels][k_stride]. */
INLINE void score_tile(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t k_stride,
                       uint32_t nv, uint32_t n_channels, float *out, bool first, const void *next)
{
    __m256 acc[TILE_QUERIES][TILE_VECTORS];
    UNROLL for (uint32_t i = 0; i < nq; i++) UNROLL for (uint32_t v = 0; v < nv; v++) acc[i][v] =
        first ? _mm256_setzero_ps() : _mm256_loadu_ps(out + (size_t)i * VQ_BLOCK_ROWS + v * LANES);
    for (uint32_t c = 0; c < n_channels; c++) {
        __m256 x[TILE_QUERIES];
        fetch(t, next, (size_t)c * k_stride, nv * LANES);
        UNROLL for (uint32_t i = 0; i < nq; i++) x[i] = _mm256_broadcast_ss(q + (size_t)i * q_stride + c);
        UNROLL for (uint32_t v = 0; v < nv; v++)
        {
            const __m256 row = load(t, at(t, k, (size_t)c * k_stride + v * LANES));
            UNROLL for (uint32_t i = 0; i < nq; i++) acc[i][v] = _mm256_fmadd_ps(x[i], row, acc[i][v]);
        }
    }
    UNROLL for (uint32_t i = 0; i < nq; i++) UNROLL for (uint32_t v = 0; v < nv; v++)
        _mm256_storeu_ps(out + (size_t)i * VQ_BLOCK_ROWS + v * LANES, acc[i][v]);
}

INLINE void score_width(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t k_stride,
                        uint32_t nv, uint32_t n_channels, float *out, bool first, const void *next)
{
    for (; nq >= 3; nq -= 3, q += (size_t)3 * q_stride, out += 3 * VQ_BLOCK_ROWS, next = NULL)
        score_tile(t, q, q_stride, 3, k, k_stride, nv, n_channels, out, first, next);
    if (nq == 2)
        score_tile(t, q, q_stride, 2, k, k_stride, nv, n_channels, out, first, next);
    else if (nq == 1)
        score_tile(t, q, q_stride, 1, k, k_stride, nv, n_channels, out, first, next);
}

/* n rows, a multiple of 8. */
INLINE void score_block(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t k_stride,
                        uint32_t n, uint32_t n_channels, float *out, bool first, const void *next)
{
    uint32_t j = 0;
    for (; j + WIDTH <= n; j += WIDTH)
        score_width(t, q, q_stride, nq, at(t, k, j), k_stride, 4, n_channels, out + j, first,
                    next ? at(t, next, j) : NULL);
    for (; j < n; j += LANES)
        score_width(t, q, q_stride, nq, at(t, k, j), k_stride, 1, n_channels, out + j, first, NULL);
}

INLINE void score_cols(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t n, uint32_t d,
                       float *out, const void *next)
{
    if (t == F32 || nq < WIDEN_FROM) {
        score_block(t, q, q_stride, nq, k, VQ_BLOCK_ROWS, n, d, out, true, next);
        return;
    }
    float wide[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (uint32_t c = 0; c < d; c += BLOCK) {
        const uint32_t n_channels = d - c < BLOCK ? d - c : BLOCK;
        for (uint32_t i = 0; i < n_channels; i++) {
            fetch(t, next, (size_t)(c + i) * VQ_BLOCK_ROWS, n);
            for (uint32_t j = 0; j < n; j += LANES)
                _mm256_store_ps(wide + i * BLOCK + j, load(t, at(t, k, (size_t)(c + i) * VQ_BLOCK_ROWS + j)));
        }
        score_block(F32, q + c, q_stride, nq, wide, BLOCK, n, n_channels, out, c == 0, NULL);
    }
}

static void score_cols_f16_avx2(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n,
                                uint32_t d, float *out, const void *next)
{
    score_cols(F16, q, q_stride, nq, k, n, d, out, next);
}

static void score_cols_bf16_avx2(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n,
                                 uint32_t d, float *out, const void *next)
{
    score_cols(BF16, q, q_stride, nq, k, n, d, out, next);
}

static void score_cols_f32_avx2(const float *q, uint32_t q_stride, uint32_t nq, const float *k, uint32_t n, uint32_t d,
                                float *out, const void *next)
{
    score_cols(F32, q, q_stride, nq, k, n, d, out, next);
}

/* x[i] becomes column i. */
INLINE void transpose8(__m256 x[8])
{
    __m256 y[8];
    UNROLL for (int i = 0; i < 8; i += 2)
    {
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4)
    {
        x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    UNROLL for (int i = 0; i < 8; i++) x[i] = y[i];
}

/* Up to 64 rows by 64 channels become wide [channels][64]; rows past the last one repeat it. */
INLINE void turn(kind t, const void *k, uint32_t d, uint32_t rows, uint32_t n_channels, float *wide)
{
    for (uint32_t j = 0; j < rows; j += LANES)
        for (uint32_t e = 0; e < n_channels; e += LANES) {
            __m256 x[LANES];
            for (uint32_t i = 0; i < LANES; i++)
                x[i] = load_first(t, at(t, k, (size_t)(j + i < rows ? j + i : rows - 1) * d + e), n_channels - e);
            transpose8(x);
            for (uint32_t i = 0; i < LANES; i++)
                _mm256_store_ps(wide + (e + i) * BLOCK + j, x[i]);
        }
}

INLINE void score_rows(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t n, uint32_t d,
                       float *out, uint32_t out_stride)
{
    float wide[BLOCK * BLOCK] __attribute__((aligned(64)));
    float tile[TILE_QUERIES * VQ_BLOCK_ROWS];
    for (uint32_t first = 0; first < n; first += BLOCK) {
        const uint32_t rows = n - first < BLOCK ? n - first : BLOCK, padded = (rows + LANES - 1) / LANES * LANES;
        for (uint32_t c = 0; c < d; c += BLOCK) {
            const uint32_t n_channels = d - c < BLOCK ? d - c : BLOCK;
            turn(t, at(t, k, (size_t)first * d + c), d, rows, n_channels, wide);
            for (uint32_t i = 0; i < nq; i += TILE_QUERIES) {
                const uint32_t some = nq - i < TILE_QUERIES ? nq - i : TILE_QUERIES;
                float *to = out + (size_t)i * out_stride + first;
                for (uint32_t g = 0; c > 0 && g < some; g++)
                    memcpy(tile + g * VQ_BLOCK_ROWS, to + (size_t)g * out_stride, rows * sizeof *tile);
                score_block(F32, q + (size_t)i * q_stride + c, q_stride, some, wide, BLOCK, padded, n_channels, tile,
                            c == 0, NULL);
                for (uint32_t g = 0; g < some; g++)
                    memcpy(to + (size_t)g * out_stride, tile + g * VQ_BLOCK_ROWS, rows * sizeof *tile);
            }
        }
    }
}

static void score_f16_avx2(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                           float *out, uint32_t out_stride)
{
    score_rows(F16, q, q_stride, nq, k, n, d, out, out_stride);
}

static void score_bf16_avx2(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                            float *out, uint32_t out_stride)
{
    score_rows(BF16, q, q_stride, nq, k, n, d, out, out_stride);
}

static void score_f32_avx2(const float *q, uint32_t q_stride, uint32_t nq, const float *k, uint32_t n, uint32_t d,
                           float *out, uint32_t out_stride)
{
    score_rows(F32, q, q_stride, nq, k, n, d, out, out_stride);
}

/* ---- weighted sums ---- */

/* acc [nq][acc_stride] (nv vectors, the last one with n_last lanes) += w [nq][n] times v [n][v_stride]. */
INLINE void mix_tile(kind t, const float *w, uint32_t w_stride, uint32_t nq, const void *v, uint32_t v_stride,
                     uint32_t n, uint32_t nv, uint32_t n_last, float *acc, uint32_t acc_stride, const void *next)
{
    __m256 sum[TILE_QUERIES][TILE_VECTORS];
    UNROLL for (uint32_t i = 0; i < nq; i++) UNROLL for (uint32_t c = 0; c < nv; c++) sum[i][c] =
        load_first(F32, acc + (size_t)i * acc_stride + c * LANES, c + 1 < nv ? LANES : n_last);
    for (uint32_t j = 0; j < n; j++) {
        __m256 x[TILE_QUERIES];
        fetch(t, next, (size_t)j * v_stride, nv * LANES);
        UNROLL for (uint32_t i = 0; i < nq; i++) x[i] = _mm256_broadcast_ss(w + (size_t)i * w_stride + j);
        UNROLL for (uint32_t c = 0; c < nv; c++)
        {
            const __m256 row = load_first(t, at(t, v, (size_t)j * v_stride + c * LANES), c + 1 < nv ? LANES : n_last);
            UNROLL for (uint32_t i = 0; i < nq; i++) sum[i][c] = _mm256_fmadd_ps(x[i], row, sum[i][c]);
        }
    }
    UNROLL for (uint32_t i = 0; i < nq; i++) UNROLL for (uint32_t c = 0; c < nv; c++)
        store_first(acc + (size_t)i * acc_stride + c * LANES, c + 1 < nv ? LANES : n_last, sum[i][c]);
}

INLINE void mix_width(kind t, const float *w, uint32_t w_stride, uint32_t nq, const void *v, uint32_t v_stride,
                      uint32_t n, uint32_t nv, uint32_t n_last, float *acc, uint32_t acc_stride, const void *next)
{
    for (; nq >= 3; nq -= 3, w += (size_t)3 * w_stride, acc += (size_t)3 * acc_stride, next = NULL)
        mix_tile(t, w, w_stride, 3, v, v_stride, n, nv, n_last, acc, acc_stride, next);
    if (nq == 2)
        mix_tile(t, w, w_stride, 2, v, v_stride, n, nv, n_last, acc, acc_stride, next);
    else if (nq == 1)
        mix_tile(t, w, w_stride, 1, v, v_stride, n, nv, n_last, acc, acc_stride, next);
}

INLINE void mix_block(kind t, const float *w, uint32_t w_stride, uint32_t nq, const void *v, uint32_t v_stride,
                      uint32_t n, uint32_t channels, float *acc, uint32_t acc_stride, const void *next)
{
    uint32_t c = 0;
    for (; c + WIDTH <= channels; c += WIDTH)
        mix_width(t, w, w_stride, nq, at(t, v, c), v_stride, n, 4, LANES, acc + c, acc_stride,
                  next ? at(t, next, c) : NULL);
    for (; c + LANES <= channels; c += LANES)
        mix_width(t, w, w_stride, nq, at(t, v, c), v_stride, n, 1, LANES, acc + c, acc_stride, NULL);
    if (c < channels)
        mix_width(t, w, w_stride, nq, at(t, v, c), v_stride, n, 1, channels - c, acc + c, acc_stride, NULL);
}

INLINE void mix(kind t, const float *w, uint32_t w_stride, uint32_t nq, const void *v, uint32_t n, uint32_t d,
                float *acc, const void *next)
{
    if (t == F32 || nq < WIDEN_FROM) {
        mix_block(t, w, w_stride, nq, v, d, n, d, acc, d, next);
        return;
    }
    float wide[BLOCK * BLOCK] __attribute__((aligned(64)));
    for (uint32_t c = 0; c < d; c += BLOCK) {
        const uint32_t channels = d - c < BLOCK ? d - c : BLOCK;
        for (uint32_t first = 0; first < n; first += BLOCK) {
            const uint32_t rows = n - first < BLOCK ? n - first : BLOCK;
            for (uint32_t j = 0; j < rows; j++) {
                fetch(t, next, (size_t)(first + j) * d + c, channels);
                for (uint32_t e = 0; e < channels; e += LANES)
                    _mm256_store_ps(wide + j * BLOCK + e,
                                    load_first(t, at(t, v, (size_t)(first + j) * d + c + e), channels - e));
            }
            mix_block(F32, w + first, w_stride, nq, wide, BLOCK, rows, channels, acc + c, d, NULL);
        }
    }
}

static void mix_f16_avx2(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                         float *acc, const void *next)
{
    mix(F16, w, w_stride, nq, v, n, d, acc, next);
}

static void mix_bf16_avx2(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                          float *acc, const void *next)
{
    mix(BF16, w, w_stride, nq, v, n, d, acc, next);
}

static void mix_f32_avx2(const float *w, uint32_t w_stride, uint32_t nq, const float *v, uint32_t n, uint32_t d,
                         float *acc, const void *next)
{
    mix(F32, w, w_stride, nq, v, n, d, acc, next);
}

/* ---- softmax ---- */

/* exp(x), 0 below VQ_EXP_LOWEST, which NaN and -inf are taken for. */
INLINE __m256 exp_f32(__m256 x)
{
    const __m256 normal = _mm256_cmp_ps(x, _mm256_set1_ps(VQ_EXP_LOWEST), _CMP_GE_OQ);
    const __m256 round = _mm256_set1_ps(VQ_EXP_ROUND);
    const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(VQ_EXP_LOG2E), round);
    const __m256 r = _mm256_fnmadd_ps(_mm256_sub_ps(shifted, round), _mm256_set1_ps(VQ_EXP_LN2), x);
    __m256 p = _mm256_fmadd_ps(r, _mm256_set1_ps(VQ_EXP_C5), _mm256_set1_ps(VQ_EXP_C4));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(VQ_EXP_C3));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(VQ_EXP_C2));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(VQ_EXP_C1));
    p = _mm256_fmadd_ps(r, p, _mm256_set1_ps(1));
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_and_ps(_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent)), normal);
}

/* All ones where a bit of the byte is set. */
INLINE __m256 lanes_of(uint32_t bits)
{
    const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32((int)bits), each), each));
}

INLINE float highest(__m256 x)
{
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

INLINE float total(__m256 x)
{
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

static void softmax_avx2(float *s, uint32_t n_blocks, uint32_t nq, const uint64_t *live, float *max, float *sum,
                         float *rescale)
{
    const __m256 lowest = _mm256_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < nq; i++) {
        __m256 high[2] = {lowest, lowest};
        for (uint32_t b = 0; b < n_blocks; b++)
            for (int v = 0; v < 8; v++) {
                const size_t at = (size_t)b * nq + i;
                float *x = s + at * VQ_BLOCK_ROWS + v * LANES;
                const __m256 shown =
                    _mm256_blendv_ps(lowest, _mm256_loadu_ps(x), lanes_of(live[at] >> (v * LANES) & 0xff));
                _mm256_storeu_ps(x, shown);
                high[v % 2] = _mm256_max_ps(high[v % 2], shown);
            }
        const float here = highest(_mm256_max_ps(high[0], high[1])), old = max[i], most = here > old ? here : old;
        rescale[i] = 1;
        if (most > old) {
            if (old != -INFINITY)
                rescale[i] = _mm256_cvtss_f32(exp_f32(_mm256_set1_ps(old - most)));
            sum[i] *= rescale[i];
            max[i] = most;
        }
        /* where nothing has been seen yet all is -inf - -inf, which is taken for 0 */
        const __m256 top = _mm256_set1_ps(most);
        __m256 part[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        for (uint32_t b = 0; b < n_blocks; b++)
            for (int v = 0; v < 8; v++) {
                float *x = s + ((size_t)b * nq + i) * VQ_BLOCK_ROWS + v * LANES;
                const __m256 e = exp_f32(_mm256_sub_ps(_mm256_loadu_ps(x), top));
                _mm256_storeu_ps(x, e);
                part[v % 2] = _mm256_add_ps(part[v % 2], e);
            }
        sum[i] += total(_mm256_add_ps(part[0], part[1]));
    }
}

void vq_attention_init_avx2(vq_attention_kernels *k)
{
    *k = (vq_attention_kernels){
        .score_f16 = score_f16_avx2,
        .score_bf16 = score_bf16_avx2,
        .score_f32 = score_f32_avx2,
        .score_cols_f16 = score_cols_f16_avx2,
        .score_cols_bf16 = score_cols_bf16_avx2,
        .score_cols_f32 = score_cols_f32_avx2,
        .mix_f16 = mix_f16_avx2,
        .mix_bf16 = mix_bf16_avx2,
        .mix_f32 = mix_f32_avx2,
        .softmax = softmax_avx2,
    };
}
