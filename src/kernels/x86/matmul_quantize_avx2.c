/* int8 activations, four blocks at a time: their maxima meet in the lanes of one register, so that the divisions are
 * done once for all, and so do their sums. */
#include "kernels/x86/matmul_avx2.h"

#include <float.h>
#include <string.h>

enum { BLOCK = VQ_MATMUL_BLOCK, AT_ONCE = 4 };

/* The greatest of four lanes of each. */
VQ_INLINE __m128 max_of_each(const __m128 x[4])
{
    const __m128 a = _mm_max_ps(_mm_unpacklo_ps(x[0], x[1]), _mm_unpackhi_ps(x[0], x[1]));
    const __m128 b = _mm_max_ps(_mm_unpacklo_ps(x[2], x[3]), _mm_unpackhi_ps(x[2], x[3]));
    return _mm_max_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
}

static void quantize_4(uint8_t *out, uint32_t n, uint32_t t, const float *x, uint32_t n_blocks)
{
    const __m256 abs = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 v[AT_ONCE][4];
    __m128 most[AT_ONCE];
    for (int b = 0; b < AT_ONCE; b++) {
        for (int i = 0; i < 4; i++)
            v[b][i] = _mm256_loadu_ps(x + b * BLOCK + 8 * i);
        const __m256 m = _mm256_max_ps(_mm256_max_ps(_mm256_and_ps(v[b][0], abs), _mm256_and_ps(v[b][1], abs)),
                                       _mm256_max_ps(_mm256_and_ps(v[b][2], abs), _mm256_and_ps(v[b][3], abs)));
        most[b] = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    }
    const __m128 max = max_of_each(most), most_code = _mm_set1_ps(127.0f);
    const __m128 scale = _mm_div_ps(max, most_code);
    const __m128 usable = _mm_cmpge_ps(scale, _mm_set1_ps(FLT_MIN)); /* below, the inverse may be infinite */
    const __m128 d = _mm_and_ps(usable, scale), inverse = _mm_and_ps(usable, _mm_div_ps(most_code, max));
    float inverses[AT_ONCE];
    _mm_storeu_ps(inverses, inverse);

    __m256i sums[AT_ONCE];
    const size_t record_bytes = (size_t)n * VQ_MATMUL_TOKEN_BYTES;
    for (uint32_t b = 0; b < AT_ONCE; b++) {
        const __m256 by = _mm256_set1_ps(inverses[b]);
        __m256i a[4];
        for (int i = 0; i < 4; i++)
            a[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[b][i], by));
        /* packing works within 128-bit lanes: dwords come out as 0 2 4 6 1 3 5 7 */
        const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(a[0], a[1]), _mm256_packs_epi32(a[2], a[3]));
        const __m256i codes = _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        if (b < n_blocks)
            _mm256_storeu_si256((__m256i *)(void *)(out + b * record_bytes + (size_t)t * BLOCK), codes);
        sums[b] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), codes), _mm256_set1_epi16(1));
    }
    /* per half: blocks 0 1 2 3 */
    const __m256i halves = _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    const __m128i sum0 = _mm256_castsi256_si128(halves);
    const __m128i sum = _mm_add_epi32(sum0, _mm256_extracti128_si256(halves, 1));
    const __m128i zero = _mm_setzero_si128();
    uint32_t words[4][AT_ONCE]; /* the words of a record */
    _mm_storeu_si128((__m128i *)words[0], _mm_castps_si128(d));
    _mm_storeu_si128((__m128i *)words[1], _mm_castps_si128(_mm_mul_ps(d, _mm_cvtepi32_ps(sum))));
    _mm_storeu_si128((__m128i *)words[2], _mm_sub_epi32(zero, sum));
    _mm_storeu_si128((__m128i *)words[3], _mm_sub_epi32(zero, sum0));
    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t i = 0; i < 4; i++)
            memcpy(out + b * record_bytes + (size_t)n * BLOCK + (i * n + t) * 4, &words[i][b], 4);
}

void vq_quantize_avx2(uint8_t *group, uint32_t n, uint32_t t, const float *x, uint32_t n_in)
{
    enum { STEP = AT_ONCE * BLOCK };
    const size_t step_bytes = (size_t)AT_ONCE * n * VQ_MATMUL_TOKEN_BYTES;
    uint32_t i = 0;
    for (; n_in - i >= STEP; i += STEP, group += step_bytes)
        quantize_4(group, n, t, x + i, AT_ONCE);
    if (i < n_in) {
        float last[STEP] = {0};
        memcpy(last, x + i, (n_in - i) * sizeof *x);
        quantize_4(group, n, t, last, (n_in - i + BLOCK - 1) / BLOCK);
    }
}
