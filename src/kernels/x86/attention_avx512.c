/* Attention over rows of floats, AVX-512 tier.
 *
 * Scores and weighted sums are outer products: a tile of up to 6 queries by 4 vectors (rows of scores, channels of
 * sums) stays in registers while the other index runs, one fused multiply-add a step, so each result is one chain in
 * ascending order whatever else is in the tile.  When there are enough queries, 64 x 64 numbers are first widened to
 * f32 on the stack (16 KiB), because widening takes the ports that multiply. */
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>

#include "kernels/attention.h"
#include "kernels/vec_exp.h"

enum { LANES = 16, TILE_QUERIES = 6, TILE_VECTORS = 4, BLOCK = 64, WIDEN_FROM = 13 };
_Static_assert((int)BLOCK == (int)VQ_BLOCK_ROWS && TILE_VECTORS * LANES == BLOCK, "a tile is as wide as a block");

typedef enum kind { F16, BF16, F32 } kind;

/* gcc keeps a tile in registers only when its loops are unrolled early. */
#if defined(__clang__)
#define UNROLL
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE __mmask16 first_lanes(uint32_t n) { return n >= LANES ? 0xffff : (__mmask16)((1u << n) - 1); }

INLINE const void *at(kind t, const void *x, size_t i)
{
    return t == F32 ? (const void *)((const float *)x + i) : (const void *)((const uint16_t *)x + i);
}

INLINE __m512 widen(kind t, __m256i x)
{
    return t == F16 ? _mm512_cvtph_ps(x) : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

INLINE __m512 load(kind t, const void *x) { return t == F32 ? _mm512_loadu_ps(x) : widen(t, _mm256_loadu_si256(x)); }

INLINE __m512 load_first(kind t, const void *x, __mmask16 m)
{
    return t == F32 ? _mm512_maskz_loadu_ps(m, x) : widen(t, _mm256_maskz_loadu_epi16(m, x));
}

/* A tile that reads its rows from memory has the same bytes of what comes next fetched into L2: the processor's own
 * prefetching stops at the end of a page, and while multiply-adds wait for a row there is no room to run ahead. */
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
    __m512 acc[TILE_QUERIES][TILE_VECTORS];
    UNROLL for (uint32_t i = 0; i < nq; i++) UNROLL for (uint32_t v = 0; v < nv; v++) acc[i][v] =
        first ? _mm512_setzero_ps() : _mm512_loadu_ps(out + (size_t)i * VQ_BLOCK_ROWS + v * LANES);
    for (uint32_t c = 0; c < n_channels; c++) {
        __m512 row[TILE_VECTORS];
        fetch(t, next, (size_t)c * k_stride, nv * LANES);
        UNROLL for (uint32_t v = 0; v < nv; v++) row[v] = load(t, at(t, k, (size_t)c * k_stride + v * LANES));
        UNROLL for (uint32_t i = 0; i < nq; i++)
        {
            const __m512 x = _mm512_set1_ps(q[(size_t)i * q_stride + c]);
            UNROLL for (uint32_t v = 0; v < nv; v++) acc[i][v] = _mm512_fmadd_ps(x, row[v], acc[i][v]);
        }
    }
    UNROLL for (uint32_t i = 0; i < nq; i++) UNROLL for (uint32_t v = 0; v < nv; v++)
        _mm512_storeu_ps(out + (size_t)i * VQ_BLOCK_ROWS + v * LANES, acc[i][v]);
}

INLINE void score_width(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t k_stride,
                        uint32_t nv, uint32_t n_channels, float *out, bool first, const void *next)
{
    for (; nq >= 6; nq -= 6, q += (size_t)6 * q_stride, out += 6 * VQ_BLOCK_ROWS) {
        score_tile(t, q, q_stride, 6, k, k_stride, nv, n_channels, out, first, next);
        next = NULL;
    }
    switch (nq) {
    case 5: score_tile(t, q, q_stride, 5, k, k_stride, nv, n_channels, out, first, next); break;
    case 4: score_tile(t, q, q_stride, 4, k, k_stride, nv, n_channels, out, first, next); break;
    case 3: score_tile(t, q, q_stride, 3, k, k_stride, nv, n_channels, out, first, next); break;
    case 2: score_tile(t, q, q_stride, 2, k, k_stride, nv, n_channels, out, first, next); break;
    case 1: score_tile(t, q, q_stride, 1, k, k_stride, nv, n_channels, out, first, next); break;
    default: break;
    }
}

/* n rows, a multiple of 16. */
INLINE void score_block(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t k_stride,
                        uint32_t n, uint32_t n_channels, float *out, bool first, const void *next)
{
    if (n == BLOCK) {
        score_width(t, q, q_stride, nq, k, k_stride, 4, n_channels, out, first, next);
        return;
    }
    uint32_t j = 0;
    for (; j + 32 <= n; j += 32)
        score_width(t, q, q_stride, nq, at(t, k, j), k_stride, 2, n_channels, out + j, first,
                    next ? at(t, next, j) : NULL);
    if (j < n)
        score_width(t, q, q_stride, nq, at(t, k, j), k_stride, 1, n_channels, out + j, first,
                    next ? at(t, next, j) : NULL);
}

INLINE void score_cols(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t n, uint32_t d,
                       float *out, const void *next)
{
    n = (n + LANES - 1) / LANES * LANES; /* there is room for whole vectors in the block and in out */
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
                _mm512_store_ps(wide + i * BLOCK + j, load(t, at(t, k, (size_t)(c + i) * VQ_BLOCK_ROWS + j)));
        }
        score_block(F32, q + c, q_stride, nq, wide, BLOCK, n, n_channels, out, c == 0, NULL);
    }
}

static void score_cols_f16_avx512(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n,
                                  uint32_t d, float *out, const void *next)
{
    score_cols(F16, q, q_stride, nq, k, n, d, out, next);
}

static void score_cols_bf16_avx512(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n,
                                   uint32_t d, float *out, const void *next)
{
    score_cols(BF16, q, q_stride, nq, k, n, d, out, next);
}

static void score_cols_f32_avx512(const float *q, uint32_t q_stride, uint32_t nq, const float *k, uint32_t n,
                                  uint32_t d, float *out, const void *next)
{
    score_cols(F32, q, q_stride, nq, k, n, d, out, next);
}

/* x[i] becomes column i. */
INLINE void transpose16(__m512 x[16])
{
    __m512 y[16];
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) { /* 4 x 4 within each quarter */
        x[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(y[i]), _mm512_castps_pd(y[i + 2])));
        x[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(y[i]), _mm512_castps_pd(y[i + 2])));
        x[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(y[i + 1]), _mm512_castps_pd(y[i + 3])));
        x[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(y[i + 1]), _mm512_castps_pd(y[i + 3])));
    }
    for (int i = 0; i < 4; i++) { /* quarters of rows i, i+4, i+8, i+12 */
        const __m512 a = _mm512_shuffle_f32x4(x[i], x[i + 4], 0x88), b = _mm512_shuffle_f32x4(x[i], x[i + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0x88);
        const __m512 e = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0xdd);
        y[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        y[i + 4] = _mm512_shuffle_f32x4(b, e, 0x88);
        y[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        y[i + 12] = _mm512_shuffle_f32x4(b, e, 0xdd);
    }
    for (int i = 0; i < 16; i++)
        x[i] = y[i];
}

/* Rows are turned into columns, 64 rows by 64 channels at a time, for the kernel above. */
INLINE void score_rows(kind t, const float *q, uint32_t q_stride, uint32_t nq, const void *k, uint32_t n, uint32_t d,
                       float *out, uint32_t out_stride)
{
    float wide[BLOCK * BLOCK] __attribute__((aligned(64)));
    float tile[TILE_QUERIES * VQ_BLOCK_ROWS];
    for (uint32_t first = 0; first < n; first += BLOCK) {
        const uint32_t rows = n - first < BLOCK ? n - first : BLOCK, padded = (rows + LANES - 1) / LANES * LANES;
        for (uint32_t c = 0; c < d; c += BLOCK) {
            const uint32_t n_channels = d - c < BLOCK ? d - c : BLOCK;
            for (uint32_t j = 0; j < padded; j += LANES)
                for (uint32_t e = 0; e < n_channels; e += LANES) {
                    const __mmask16 m = first_lanes(n_channels - e);
                    __m512 x[LANES];
                    for (uint32_t i = 0; i < LANES; i++) /* past the last row: the last row again, then cut off */
                        x[i] =
                            load_first(t, at(t, k, (size_t)(first + (j + i < rows ? j + i : rows - 1)) * d + c + e), m);
                    transpose16(x);
                    for (uint32_t i = 0; i < LANES; i++)
                        _mm512_store_ps(wide + (e + i) * BLOCK + j, x[i]);
                }
            for (uint32_t i = 0; i < nq; i += TILE_QUERIES) {
                const uint32_t some = nq - i < TILE_QUERIES ? nq - i : TILE_QUERIES;
                float *to = out + (size_t)i * out_stride + first;
                if (c > 0)
                    for (uint32_t g = 0; g < some; g++)
                        for (uint32_t j = 0; j < rows; j += LANES)
                            _mm512_storeu_ps(
                                tile + g * VQ_BLOCK_ROWS + j,
                                _mm512_maskz_loadu_ps(first_lanes(rows - j), to + (size_t)g * out_stride + j));
                score_block(F32, q + (size_t)i * q_stride + c, q_stride, some, wide, BLOCK, padded, n_channels, tile,
                            c == 0, NULL);
                for (uint32_t g = 0; g < some; g++)
                    for (uint32_t j = 0; j < rows; j += LANES)
                        _mm512_mask_storeu_ps(to + (size_t)g * out_stride + j, first_lanes(rows - j),
                                              _mm512_loadu_ps(tile + g * VQ_BLOCK_ROWS + j));
            }
        }
    }
}

static void score_f16_avx512(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                             float *out, uint32_t out_stride)
{
    score_rows(F16, q, q_stride, nq, k, n, d, out, out_stride);
}

static void score_bf16_avx512(const float *q, uint32_t q_stride, uint32_t nq, const uint16_t *k, uint32_t n, uint32_t d,
                              float *out, uint32_t out_stride)
{
    score_rows(BF16, q, q_stride, nq, k, n, d, out, out_stride);
}

static void score_f32_avx512(const float *q, uint32_t q_stride, uint32_t nq, const float *k, uint32_t n, uint32_t d,
                             float *out, uint32_t out_stride)
{
    score_rows(F32, q, q_stride, nq, k, n, d, out, out_stride);
}

/* ---- weighted sums ---- */

/* acc [nq][acc_stride] (nv vectors, the last one cut by m) += w [nq][n] times v [n][v_stride]. */
INLINE void mix_tile(kind t, const float *w, uint32_t w_stride, uint32_t nq, const void *v, uint32_t v_stride,
                     uint32_t n, uint32_t nv, __mmask16 m, float *acc, uint32_t acc_stride, const void *next)
{
    __m512 sum[TILE_QUERIES][TILE_VECTORS];
    UNROLL for (uint32_t i = 0; i < nq; i++) UNROLL for (uint32_t c = 0; c < nv; c++) sum[i][c] =
        _mm512_maskz_loadu_ps(c + 1 < nv ? 0xffff : m, acc + (size_t)i * acc_stride + c * LANES);
    for (uint32_t j = 0; j < n; j++) {
        __m512 row[TILE_VECTORS];
        fetch(t, next, (size_t)j * v_stride, nv * LANES);
        UNROLL for (uint32_t c = 0; c + 1 < nv; c++) row[c] = load(t, at(t, v, (size_t)j * v_stride + c * LANES));
        row[nv - 1] = load_first(t, at(t, v, (size_t)j * v_stride + (nv - 1) * LANES), m);
        UNROLL for (uint32_t i = 0; i < nq; i++)
        {
            const __m512 x = _mm512_set1_ps(w[(size_t)i * w_stride + j]);
            UNROLL for (uint32_t c = 0; c < nv; c++) sum[i][c] = _mm512_fmadd_ps(x, row[c], sum[i][c]);
        }
    }
    UNROLL for (uint32_t i = 0; i < nq; i++) UNROLL for (uint32_t c = 0; c < nv; c++)
        _mm512_mask_storeu_ps(acc + (size_t)i * acc_stride + c * LANES, c + 1 < nv ? 0xffff : m, sum[i][c]);
}

INLINE void mix_width(kind t, const float *w, uint32_t w_stride, uint32_t nq, const void *v, uint32_t v_stride,
                      uint32_t n, uint32_t nv, __mmask16 m, float *acc, uint32_t acc_stride, const void *next)
{
    for (; nq >= 6; nq -= 6, w += (size_t)6 * w_stride, acc += (size_t)6 * acc_stride) {
        mix_tile(t, w, w_stride, 6, v, v_stride, n, nv, m, acc, acc_stride, next);
        next = NULL;
    }
    switch (nq) {
    case 5: mix_tile(t, w, w_stride, 5, v, v_stride, n, nv, m, acc, acc_stride, next); break;
    case 4: mix_tile(t, w, w_stride, 4, v, v_stride, n, nv, m, acc, acc_stride, next); break;
    case 3: mix_tile(t, w, w_stride, 3, v, v_stride, n, nv, m, acc, acc_stride, next); break;
    case 2: mix_tile(t, w, w_stride, 2, v, v_stride, n, nv, m, acc, acc_stride, next); break;
    case 1: mix_tile(t, w, w_stride, 1, v, v_stride, n, nv, m, acc, acc_stride, next); break;
    default: break;
    }
}

/* Up to 64 channels. */
INLINE void mix_block(kind t, const float *w, uint32_t w_stride, uint32_t nq, const void *v, uint32_t v_stride,
                      uint32_t n, uint32_t channels, float *acc, uint32_t acc_stride, const void *next)
{
    if (channels == BLOCK) {
        mix_width(t, w, w_stride, nq, v, v_stride, n, 4, 0xffff, acc, acc_stride, next);
        return;
    }
    uint32_t c = 0;
    for (; c + 32 <= channels; c += 32)
        mix_width(t, w, w_stride, nq, at(t, v, c), v_stride, n, 2, 0xffff, acc + c, acc_stride,
                  next ? at(t, next, c) : NULL);
    for (; c < channels; c += LANES)
        mix_width(t, w, w_stride, nq, at(t, v, c), v_stride, n, 1, first_lanes(channels - c), acc + c, acc_stride,
                  next ? at(t, next, c) : NULL);
}

INLINE void mix(kind t, const float *w, uint32_t w_stride, uint32_t nq, const void *v, uint32_t n, uint32_t d,
                float *acc, const void *next)
{
    for (uint32_t c = 0; c < d; c += BLOCK) {
        const uint32_t channels = d - c < BLOCK ? d - c : BLOCK;
        if (t == F32 || nq < WIDEN_FROM) {
            mix_block(t, w, w_stride, nq, at(t, v, c), d, n, channels, acc + c, d, next ? at(t, next, c) : NULL);
            continue;
        }
        float wide[BLOCK * BLOCK] __attribute__((aligned(64)));
        for (uint32_t first = 0; first < n; first += BLOCK) {
            const uint32_t rows = n - first < BLOCK ? n - first : BLOCK;
            for (uint32_t j = 0; j < rows; j++) {
                fetch(t, next, (size_t)(first + j) * d + c, channels);
                for (uint32_t e = 0; e < channels; e += LANES)
                    _mm512_store_ps(wide + j * BLOCK + e, load_first(t, at(t, v, (size_t)(first + j) * d + c + e),
                                                                     first_lanes(channels - e)));
            }
            mix_block(F32, w + first, w_stride, nq, wide, BLOCK, rows, channels, acc + c, d, NULL);
        }
    }
}

static void mix_f16_avx512(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                           float *acc, const void *next)
{
    mix(F16, w, w_stride, nq, v, n, d, acc, next);
}

static void mix_bf16_avx512(const float *w, uint32_t w_stride, uint32_t nq, const uint16_t *v, uint32_t n, uint32_t d,
                            float *acc, const void *next)
{
    mix(BF16, w, w_stride, nq, v, n, d, acc, next);
}

static void mix_f32_avx512(const float *w, uint32_t w_stride, uint32_t nq, const float *v, uint32_t n, uint32_t d,
                           float *acc, const void *next)
{
    mix(F32, w, w_stride, nq, v, n, d, acc, next);
}

/* ---- softmax ---- */

/* exp(x), 0 below VQ_EXP_LOWEST and where m is off. */
INLINE __m512 exp_masked(__m512 x, __mmask16 m)
{
    const __mmask16 normal = _mm512_mask_cmp_ps_mask(m, x, _mm512_set1_ps(VQ_EXP_LOWEST), _CMP_GE_OQ);
    const __m512 round = _mm512_set1_ps(VQ_EXP_ROUND);
    const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(VQ_EXP_LOG2E), round);
    const __m512 r = _mm512_fnmadd_ps(_mm512_sub_ps(shifted, round), _mm512_set1_ps(VQ_EXP_LN2), x);
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(VQ_EXP_C5), _mm512_set1_ps(VQ_EXP_C4));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(VQ_EXP_C3));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(VQ_EXP_C2));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(VQ_EXP_C1));
    p = _mm512_fmadd_ps(r, p, _mm512_set1_ps(1));
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(p), exponent));
}

static void softmax_avx512(float *s, uint32_t n_blocks, uint32_t nq, const uint64_t *live, float *max, float *sum,
                           float *rescale)
{
    const __m512 lowest = _mm512_set1_ps(-INFINITY);
    for (uint32_t i = 0; i < nq; i++) {
        __m512 high[4] = {lowest, lowest, lowest, lowest};
        for (uint32_t b = 0; b < n_blocks; b++)
            for (int v = 0; v < 4; v++) {
                const size_t at = (size_t)b * nq + i;
                const __mmask16 m = (__mmask16)(live[at] >> (v * LANES));
                const __m512 x = _mm512_loadu_ps(s + at * VQ_BLOCK_ROWS + v * LANES);
                high[v] = _mm512_mask_max_ps(high[v], m, high[v], x);
            }
        const float here =
            _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(high[0], high[1]), _mm512_max_ps(high[2], high[3])));
        const float old = max[i], most = here > old ? here : old;
        rescale[i] = 1;
        if (most > old) {
            if (old != -INFINITY)
                rescale[i] = _mm512_cvtss_f32(exp_masked(_mm512_set1_ps(old - most), 1));
            sum[i] *= rescale[i];
            max[i] = most;
        }
        const __m512 top = _mm512_set1_ps(most);
        __m512 total[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        for (uint32_t b = 0; b < n_blocks; b++)
            for (int v = 0; v < 4; v++) {
                const size_t at = (size_t)b * nq + i;
                float *x = s + at * VQ_BLOCK_ROWS + v * LANES;
                const __m512 e =
                    exp_masked(_mm512_sub_ps(_mm512_loadu_ps(x), top), (__mmask16)(live[at] >> (v * LANES)));
                _mm512_storeu_ps(x, e);
                total[v] = _mm512_add_ps(total[v], e);
            }
        sum[i] +=
            _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(total[0], total[1]), _mm512_add_ps(total[2], total[3])));
    }
}

void vq_attention_init_avx512(vq_attention_kernels *k)
{
    *k = (vq_attention_kernels){
        .score_f16 = score_f16_avx512,
        .score_bf16 = score_bf16_avx512,
        .score_f32 = score_f32_avx512,
        .score_cols_f16 = score_cols_f16_avx512,
        .score_cols_bf16 = score_cols_bf16_avx512,
        .score_cols_f32 = score_cols_f32_avx512,
        .mix_f16 = mix_f16_avx512,
        .mix_bf16 = mix_bf16_avx512,
        .mix_f32 = mix_f32_avx512,
        .softmax = softmax_avx512,
    };
}
