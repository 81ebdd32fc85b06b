/* Coding with error feedback, and moments, with AVX2: eight values of eight rows at once, whose sums are independent of
 * one another, so that each may take its own time.  No fused multiply-add: the same bits as the definition. */
#include <immintrin.h>

#include "kernels/carry.h"

typedef struct block {
    const vq_carry *c;
    uint32_t lane, first, n_rows;
} block;

static inline void add(__m256 *sum, __m256 x, const float *factor)
{
    *sum = _mm256_add_ps(*sum, _mm256_mul_ps(x, _mm256_set1_ps(*factor)));
}

static inline __m256 lost_of(const block *b, uint32_t k)
{
    return _mm256_loadu_ps(b->c->lost + (size_t)k * b->c->n_lanes + b->lane);
}

/* Factors of values k in the rows of the block. */
static inline void add_along(const block *b, __m256 *sum, uint32_t first, uint32_t end)
{
    const size_t n = b->c->n;
    const float *matrix = b->c->matrix + b->first * n;
    for (uint32_t k = first; k < end; k++) {
        const __m256 x = lost_of(b, k);
        for (uint32_t r = 0; r < b->n_rows; r++)
            add(&sum[r], x, matrix + r * n + k);
    }
}

/* The same factors in the rows of k. */
static inline void add_down(const block *b, __m256 *sum, uint32_t end)
{
    for (uint32_t k = 0; k < end; k++) {
        const float *matrix = b->c->matrix + (size_t)k * b->c->n + b->first;
        const __m256 x = lost_of(b, k);
        for (uint32_t r = 0; r < b->n_rows; r++)
            add(&sum[r], x, matrix + r);
    }
}

static inline __m256 code_value(const block *b, __m256 sum, uint32_t j)
{
    const vq_carry *c = b->c;
    const size_t at = (size_t)j * c->n_lanes + b->lane;
    const __m256 value = _mm256_loadu_ps(c->values + at), unit = _mm256_set1_ps(c->unit ? c->unit[j] : 1);
    const __m256 aim = _mm256_add_ps(value, _mm256_mul_ps(sum, unit));
    const __m256 scaled = _mm256_mul_ps(aim, _mm256_loadu_ps(c->inverse + b->lane));
    __m256i code = _mm256_setzero_si256();
    for (uint32_t i = 0; i < c->n_bounds; i++) { /* true is -1 */
        const __m256 above = _mm256_cmp_ps(scaled, _mm256_set1_ps(c->bounds[i]), _CMP_GT_OQ);
        code = _mm256_sub_epi32(code, _mm256_castps_si256(above));
    }
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(c->levels), code);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(c->levels + 8), code);
    const __m256i upper = _mm256_cmpgt_epi32(code, _mm256_set1_epi32(7));
    const __m256 level = _mm256_blendv_ps(low, high, _mm256_castsi256_ps(upper));
    const __m256 got = _mm256_mul_ps(level, _mm256_loadu_ps(c->scale + b->lane)), lost = _mm256_sub_ps(value, got);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64((__m128i *)(void *)(c->codes + at), _mm_packus_epi16(words, words));
    _mm256_storeu_ps(c->lost + at, lost);
    _mm256_storeu_ps(c->left + at, _mm256_sub_ps(aim, got));
    return lost;
}

static inline void encode_block(const block *b)
{
    const vq_carry *c = b->c;
    const size_t n = c->n;
    const float *square = c->matrix + b->first * n + b->first;
    __m256 sum[VQ_CARRY_BLOCK], lost[VQ_CARRY_BLOCK];
    for (uint32_t r = 0; r < b->n_rows; r++) {
        sum[r] = _mm256_setzero_ps();
        lost[r] = c->unit ? lost_of(b, b->first + r) : _mm256_setzero_ps();
    }
    if (c->unit) {
        add_down(b, sum, b->first);
        add_along(b, sum, b->first + b->n_rows, c->n);
    } else {
        add_along(b, sum, 0, b->first);
    }
    for (uint32_t r = 0; r < b->n_rows; r++) {
        for (uint32_t k = 0; k < r; k++)
            add(&sum[r], lost[k], c->unit ? square + k * n + r : square + r * n + k);
        for (uint32_t k = r + 1; c->unit && k < b->n_rows; k++)
            add(&sum[r], lost[k], square + r * n + k);
        lost[r] = code_value(b, sum[r], b->first + r);
    }
}

static void encode(const vq_carry *c)
{
    uint32_t first = 0;
    for (; first + VQ_CARRY_BLOCK <= c->n; first += VQ_CARRY_BLOCK)
        for (uint32_t lane = 0; lane < c->n_lanes; lane += 8)
            encode_block(&(block){c, lane, first, VQ_CARRY_BLOCK});
    for (; first < c->n; first++)
        for (uint32_t lane = 0; lane < c->n_lanes; lane += 8)
            encode_block(&(block){c, lane, first, 1});
}

enum { MOMENT_ROWS = 8 };

/* n_rows rows of sums from row i on, 8 columns from j on. */
static inline void add_tile(float *sum, const float *x, uint32_t n, size_t n_in, uint32_t i, uint32_t n_rows,
                            uint32_t j)
{
    __m256 s[MOMENT_ROWS];
    for (uint32_t r = 0; r < n_rows; r++)
        s[r] = _mm256_loadu_ps(sum + (i + r) * n_in + j);
    for (uint32_t t = 0; t < n; t++, x += n_in) {
        const __m256 columns = _mm256_loadu_ps(x + j);
        for (uint32_t r = 0; r < n_rows; r++)
            add(&s[r], columns, x + i + r);
    }
    for (uint32_t r = 0; r < n_rows; r++)
        _mm256_storeu_ps(sum + (i + r) * n_in + j, s[r]);
}

static void add_moments(float *sum, const float *x, uint32_t n, uint32_t n_in, uint32_t first, uint32_t end)
{
    uint32_t j = first;
    for (; j + 8 <= n_in; j += 8) {
        uint32_t i = first;
        for (; i + MOMENT_ROWS <= end; i += MOMENT_ROWS)
            add_tile(sum, x, n, n_in, i, MOMENT_ROWS, j);
        for (; i < end; i++)
            add_tile(sum, x, n, n_in, i, 1, j);
    }
    for (uint32_t i = first; i < end; i++)
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t c = j; c < n_in; c++)
                sum[(size_t)i * n_in + c] += x[(size_t)t * n_in + i] * x[(size_t)t * n_in + c];
}

void vq_carry_kernels_init_avx2(vq_carry_kernels *k)
{
    k->encode = encode;
    k->add_moments = add_moments;
}
