/* Nearest codewords, AVX2 tier: rows side by side, one in each lane; codewords are tried one after the other.  No fused
 * multiply-add: the same bits as the definitions. */
#include <immintrin.h>

#include "kernels/nearest.h"

enum { LANES = 8, CODES = VQ_NEAREST_CODES, MOST_VECTORS = 2 };

/* Value j of eight rows. */
static inline __m256 load_column(const float *x, size_t x_stride)
{
    const __m256i row = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_i32gather_ps(x, _mm256_mullo_epi32(row, _mm256_set1_epi32((int32_t)x_stride)), 4);
}

static inline void store_codes(uint8_t *codes, __m256i at)
{
    const __m128i two = _mm_packus_epi32(_mm256_castsi256_si128(at), _mm256_extracti128_si256(at, 1));
    _mm_storel_epi64((__m128i *)(void *)codes, _mm_packus_epi16(two, two));
}

/* `d` and the number of vectors are constants where it is inlined for the usual lengths: x stays in registers. */
static inline __attribute__((always_inline)) void some_rows(uint8_t *codes, const float *columns, const float *half,
                                                            uint32_t d, uint32_t n_vectors, const float *x,
                                                            size_t x_stride)
{
    __m256 rows[VQ_NEAREST_MOST_D][MOST_VECTORS], best[MOST_VECTORS];
    __m256i at[MOST_VECTORS], code = _mm256_setzero_si256();
    for (uint32_t h = 0; h < n_vectors; h++) {
        for (uint32_t j = 0; j < d; j++)
            rows[j][h] = load_column(x + h * LANES * x_stride + j, x_stride);
        best[h] = _mm256_set1_ps(__builtin_inff());
        at[h] = code;
    }
    for (uint32_t c = 0; c < CODES; c++) {
        for (uint32_t h = 0; h < n_vectors; h++) {
            __m256 v = _mm256_set1_ps(half[c]);
            for (uint32_t j = 0; j < d; j++)
                v = _mm256_sub_ps(v, _mm256_mul_ps(rows[j][h], _mm256_set1_ps(columns[j * CODES + c])));
            const __m256 less = _mm256_cmp_ps(v, best[h], _CMP_LT_OQ);
            at[h] = _mm256_blendv_epi8(at[h], code, _mm256_castps_si256(less));
            best[h] = _mm256_min_ps(v, best[h]); /* the second where one is NaN */
        }
        code = _mm256_add_epi32(code, _mm256_set1_epi32(1));
    }
    for (uint32_t h = 0; h < n_vectors; h++)
        store_codes(codes + (size_t)h * LANES, at[h]);
}

static void centroids(uint8_t *codes, const float *columns, const float *half, uint32_t d, const float *x,
                      size_t x_stride)
{
    const uint32_t step = d == 4 ? 2 * LANES : LANES;
    for (uint32_t i = 0; i < VQ_NEAREST_ROWS; i += step)
        switch (d) {
        case 4: some_rows(codes + i, columns, half, 4, 2, x + i * x_stride, x_stride); break;
        case 8: some_rows(codes + i, columns, half, 8, 1, x + i * x_stride, x_stride); break;
        default: some_rows(codes + i, columns, half, d, 1, x + i * x_stride, x_stride);
        }
}

void vq_nearest_kernels_init_avx2(vq_nearest_kernels *k) { k->centroids = centroids; }
