/* Nearest codewords, AVX-512 tier: sixteen rows side by side, one in each lane; codewords are tried one after the
 * other. No fused multiply-add: the same bits as the definitions. */
#include <immintrin.h>

#include "kernels/nearest.h"

enum { LANES = 16, CODES = VQ_NEAREST_CODES, HALVES = VQ_NEAREST_ROWS / LANES };

/* Value j of all rows: out [HALVES]. */
static inline void load_column(__m512 *out, const float *x, size_t x_stride)
{
    const __m512i row = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(row, _mm512_set1_epi32((int32_t)x_stride));
    for (size_t h = 0; h < HALVES; h++)
        out[h] = _mm512_i32gather_ps(at, x + h * LANES * x_stride, 4);
}

static inline void store_codes(uint8_t *codes, const __m512i *at)
{
    for (size_t h = 0; h < HALVES; h++)
        _mm_storeu_si128((__m128i *)(void *)(codes + h * LANES), _mm512_cvtepi32_epi8(at[h]));
}

/* `d` is a constant where it is inlined for the usual lengths, so that all of x stays in registers. */
static inline __attribute__((always_inline)) void centroids_of(uint8_t *codes, const float *columns, const float *half,
                                                               uint32_t d, const float *x, size_t x_stride)
{
    __m512 rows[VQ_NEAREST_MOST_D][HALVES], best[HALVES];
    __m512i at[HALVES], code = _mm512_setzero_si512();
    for (uint32_t j = 0; j < d; j++)
        load_column(rows[j], x + j, x_stride);
    for (uint32_t h = 0; h < HALVES; h++) {
        best[h] = _mm512_set1_ps(__builtin_inff());
        at[h] = code;
    }
    for (uint32_t c = 0; c < CODES; c++) {
        for (uint32_t h = 0; h < HALVES; h++) {
            __m512 v = _mm512_set1_ps(half[c]);
            for (uint32_t j = 0; j < d; j++)
                v = _mm512_sub_ps(v, _mm512_mul_ps(rows[j][h], _mm512_set1_ps(columns[j * CODES + c])));
            at[h] = _mm512_mask_mov_epi32(at[h], _mm512_cmp_ps_mask(v, best[h], _CMP_LT_OQ), code);
            best[h] = _mm512_min_ps(v, best[h]); /* the second where one is NaN */
        }
        code = _mm512_add_epi32(code, _mm512_set1_epi32(1));
    }
    store_codes(codes, at);
}

static void centroids(uint8_t *codes, const float *columns, const float *half, uint32_t d, const float *x,
                      size_t x_stride)
{
    switch (d) {
    case 4: centroids_of(codes, columns, half, 4, x, x_stride); break;
    case 8: centroids_of(codes, columns, half, 8, x, x_stride); break;
    default: centroids_of(codes, columns, half, d, x, x_stride);
    }
}

void vq_nearest_kernels_init_avx512(vq_nearest_kernels *k) { k->centroids = centroids; }
