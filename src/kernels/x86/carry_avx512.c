/* Coding with error feedback, and moments, with AVX-512: eight values of sixteen rows at once, whose sums are
 * independent of one another, so that each may take its own time.  No fused multiply-add: the same bits as the
 * definition. */
#include <immintrin.h>

#include "kernels/carry.h"

typedef struct block {
    const vq_carry *c;
    uint32_t lane, first, n_rows;
} block;

static inline void add(__m512 *sum, __m512 x, const float *factor)
{
    *sum = _mm512_add_ps(*sum, _mm512_mul_ps(x, _mm512_set1_ps(*factor)));
}

static inline __m512 lost_of(const block *b, uint32_t k)
{
    return _mm512_loadu_ps(b->c->lost + (size_t)k * b->c->n_lanes + b->lane);
}

/* Factors of values k in the rows of the block. */
static inline void add_along(const block *b, __m512 *sum, uint32_t first, uint32_t end)
{
    const size_t n = b->c->n;
    const float *matrix = b->c->matrix + b->first * n;
    for (uint32_t k = first; k < end; k++) {
        const __m512 x = lost_of(b, k);
        for (uint32_t r = 0; r < b->n_rows; r++)
            add(&sum[r], x, matrix + r * n + k);
    }
}

/* The same factors in the rows of k. */
static inline void add_down(const block *b, __m512 *sum, uint32_t end)
{
    for (uint32_t k = 0; k < end; k++) {
        const float *matrix = b->c->matrix + (size_t)k * b->c->n + b->first;
        const __m512 x = lost_of(b, k);
        for (uint32_t r = 0; r < b->n_rows; r++)
            add(&sum[r], x, matrix + r);
    }
}

static inline __m512 code_value(const block *b, __m512 sum, uint32_t j)
{
    const vq_carry *c = b->c;
    const size_t at = (size_t)j * c->n_lanes + b->lane;
    const __m512 value = _mm512_loadu_ps(c->values + at), unit = _mm512_set1_ps(c->unit ? c->unit[j] : 1);
    const __m512 aim = _mm512_add_ps(value, _mm512_mul_ps(sum, unit));
    const __m512 scaled = _mm512_mul_ps(aim, _mm512_loadu_ps(c->inverse + b->lane));
    const __m512i one = _mm512_set1_epi32(1);
    __m512i code = _mm512_setzero_si512();
    for (uint32_t i = 0; i < c->n_bounds; i++) {
        const __mmask16 above = _mm512_cmp_ps_mask(scaled, _mm512_set1_ps(c->bounds[i]), _CMP_GT_OQ);
        code = _mm512_mask_add_epi32(code, above, code, one);
    }
    const __m512 level = _mm512_permutexvar_ps(code, _mm512_loadu_ps(c->levels));
    const __m512 got = _mm512_mul_ps(level, _mm512_loadu_ps(c->scale + b->lane)), lost = _mm512_sub_ps(value, got);
    _mm_storeu_si128((__m128i *)(void *)(c->codes + at), _mm512_cvtepi32_epi8(code));
    _mm512_storeu_ps(c->lost + at, lost);
    _mm512_storeu_ps(c->left + at, _mm512_sub_ps(aim, got));
    return lost;
}

static inline void encode_block(const block *b)
{
    const vq_carry *c = b->c;
    const size_t n = c->n;
    const float *square = c->matrix + b->first * n + b->first;
    __m512 sum[VQ_CARRY_BLOCK], lost[VQ_CARRY_BLOCK];
    for (uint32_t r = 0; r < b->n_rows; r++) {
        sum[r] = _mm512_setzero_ps();
        lost[r] = c->unit ? lost_of(b, b->first + r) : _mm512_setzero_ps();
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
        for (uint32_t lane = 0; lane < c->n_lanes; lane += 16)
            encode_block(&(block){c, lane, first, VQ_CARRY_BLOCK});
    for (; first < c->n; first++)
        for (uint32_t lane = 0; lane < c->n_lanes; lane += 16)
            encode_block(&(block){c, lane, first, 1});
}

enum { MOMENT_ROWS = 8 };

/* n_rows rows of sums from row i on, 16 columns from j on, of which `some` are there. */
static inline void add_tile(float *sum, const float *x, uint32_t n, size_t n_in, uint32_t i, uint32_t n_rows,
                            uint32_t j, __mmask16 some)
{
    __m512 s[MOMENT_ROWS];
    for (uint32_t r = 0; r < n_rows; r++)
        s[r] = _mm512_maskz_loadu_ps(some, sum + (i + r) * n_in + j);
    for (uint32_t t = 0; t < n; t++, x += n_in) {
        const __m512 columns = _mm512_maskz_loadu_ps(some, x + j);
        for (uint32_t r = 0; r < n_rows; r++)
            add(&s[r], columns, x + i + r);
    }
    for (uint32_t r = 0; r < n_rows; r++)
        _mm512_mask_storeu_ps(sum + (i + r) * n_in + j, some, s[r]);
}

static void add_moments(float *sum, const float *x, uint32_t n, uint32_t n_in, uint32_t first, uint32_t end)
{
    for (uint32_t j = first; j < n_in; j += 16) {
        const __mmask16 some = n_in - j >= 16 ? 0xffff : (__mmask16)((1u << (n_in - j)) - 1);
        uint32_t i = first;
        for (; i + MOMENT_ROWS <= end; i += MOMENT_ROWS)
            add_tile(sum, x, n, n_in, i, MOMENT_ROWS, j, some);
        for (; i < end; i++)
            add_tile(sum, x, n, n_in, i, 1, j, some);
    }
}

void vq_carry_kernels_init_avx512(vq_carry_kernels *k)
{
    k->encode = encode;
    k->add_moments = add_moments;
}
