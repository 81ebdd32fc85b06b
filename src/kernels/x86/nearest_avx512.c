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

static inline void halve_squares(float half[CODES], const float *columns, uint32_t d)
{
    for (uint32_t c = 0; c < CODES; c += LANES) {
        __m512 sum = _mm512_setzero_ps();
        for (uint32_t j = 0; j < d; j++) {
            const __m512 v = _mm512_loadu_ps(columns + j * CODES + c);
            sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_mul_ps(v, v), _mm512_set1_ps(0.5F)));
        }
        _mm512_storeu_ps(half + c, sum);
    }
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

static void centroids(uint8_t *codes, const float *columns, uint32_t d, const float *x, size_t x_stride)
{
    float half[CODES];
    halve_squares(half, columns, d);
    switch (d) {
    case 4: centroids_of(codes, columns, half, 4, x, x_stride); break;
    case 8: centroids_of(codes, columns, half, 8, x, x_stride); break;
    default: centroids_of(codes, columns, half, d, x, x_stride);
    }
}

enum { V = VQ_ATOM_VALUES, HALF = 16, TURNS = 2 };

/* What the codes of a byte mean, as the definition has it; in a vector are the 16 codes of two atoms. */
typedef struct byte_table {
    const float *z;
    __m512 low[V], high[V];
    float half[CODES / 2];
} byte_table;

static inline void add_two(__m512 out[V], const float *z)
{
    const __m512 one = _mm512_set1_ps(1), minus = _mm512_set1_ps(-1);
    const __m512 a = _mm512_mask_blend_ps(0xaaaa, minus, one), b = _mm512_mask_blend_ps(0xcccc, minus, one);
    const __m512 a2 = _mm512_mask_blend_ps(0xf0f0, minus, one), b2 = _mm512_mask_blend_ps(0xff00, minus, one);
    for (uint32_t j = 0; j < V; j += 2) {
        const __m512 re = _mm512_set1_ps(z[j]), im = _mm512_set1_ps(z[j + 1]);
        const __m512 re2 = _mm512_set1_ps(z[V + j]), im2 = _mm512_set1_ps(z[V + j + 1]);
        out[j] = _mm512_add_ps(_mm512_sub_ps(_mm512_mul_ps(a, re), _mm512_mul_ps(b, im)),
                               _mm512_sub_ps(_mm512_mul_ps(a2, re2), _mm512_mul_ps(b2, im2)));
        out[j + 1] = _mm512_add_ps(_mm512_add_ps(_mm512_mul_ps(a, im), _mm512_mul_ps(b, re)),
                                   _mm512_add_ps(_mm512_mul_ps(a2, im2), _mm512_mul_ps(b2, re2)));
    }
}

static inline void open_byte(byte_table *t, const float *z)
{
    float high[V][HALF];
    t->z = z;
    add_two(t->low, z);
    add_two(t->high, z + (size_t)2 * V);
    for (uint32_t j = 0; j < V; j++)
        _mm512_storeu_ps(high[j], t->high[j]);
    for (uint32_t h = 0; h < HALF / 2; h++) {
        __m512 squares = _mm512_setzero_ps();
        for (uint32_t j = 0; j < V; j++) {
            const __m512 v = _mm512_add_ps(t->low[j], _mm512_set1_ps(high[j][h]));
            squares = _mm512_add_ps(squares, _mm512_mul_ps(v, v));
        }
        _mm512_storeu_ps(t->half + (size_t)h * HALF, _mm512_mul_ps(squares, _mm512_set1_ps(0.5F)));
    }
}

static inline void multiply_two(__m512 *out, uint32_t n, const float *z, const __m512 y[V])
{
    const __m512 sign = _mm512_set1_ps(-0.0F);
    __m512 each[2][4];
    for (uint32_t i = 0; i < 2; i++, z += V) {
        __m512 real = _mm512_setzero_ps(), turned = real;
        for (uint32_t j = 0; j < V; j += 2) {
            const __m512 re = _mm512_set1_ps(z[j]), im = _mm512_set1_ps(z[j + 1]);
            real = _mm512_add_ps(real, _mm512_mul_ps(y[j], re));
            real = _mm512_add_ps(real, _mm512_mul_ps(y[j + 1], im));
            turned = _mm512_add_ps(turned, _mm512_mul_ps(y[j + 1], re));
            turned = _mm512_sub_ps(turned, _mm512_mul_ps(y[j], im));
        }
        each[i][3] = _mm512_add_ps(real, turned);
        each[i][1] = _mm512_sub_ps(real, turned);
        each[i][2] = _mm512_xor_ps(each[i][1], sign);
        each[i][0] = _mm512_xor_ps(each[i][3], sign);
    }
    for (uint32_t c = 0; c < n; c++)
        out[c] = _mm512_add_ps(each[0][c % 4], each[1][c / 4]);
}

static inline __m512i nearest_byte(const byte_table *t, const __m512 y[V])
{
    __m512 low[HALF], high[HALF / 2], best = _mm512_set1_ps(-__builtin_inff()), chosen = _mm512_setzero_ps();
    __m512i code = _mm512_setzero_si512(), at = code;
    multiply_two(low, HALF, t->z, y);
    multiply_two(high, HALF / 2, t->z + (size_t)2 * V, y);
    for (uint32_t h = 0; h < HALF / 2; h++)
        for (uint32_t l = 0; l < HALF; l++) {
            const __m512 product = _mm512_add_ps(low[l], high[h]);
            const __m512 gain = _mm512_sub_ps(_mm512_abs_ps(product), _mm512_set1_ps(t->half[h * HALF + l]));
            const __mmask16 more = _mm512_cmp_ps_mask(gain, best, _CMP_GT_OQ);
            best = _mm512_max_ps(gain, best); /* the second where one is NaN */
            chosen = _mm512_mask_mov_ps(chosen, more, product);
            code = _mm512_mask_mov_epi32(code, more, at);
            at = _mm512_add_epi32(at, _mm512_set1_epi32(1));
        }
    const __mmask16 below = _mm512_cmp_ps_mask(chosen, _mm512_setzero_ps(), _CMP_LT_OQ);
    return _mm512_mask_xor_epi32(code, below, code, _mm512_set1_epi32(CODES - 1));
}

/* A look-up reads the low four bits of a lane. */
static inline void less(__m512 out[V], const __m512 x[V], const byte_table *t, __m512i code)
{
    const __m512i upper = _mm512_srli_epi32(code, 4);
    for (uint32_t j = 0; j < V; j++)
        out[j] = _mm512_sub_ps(
            x[j], _mm512_add_ps(_mm512_permutexvar_ps(code, t->low[j]), _mm512_permutexvar_ps(upper, t->high[j])));
}

static void atoms(uint8_t *codes, const float *z, uint32_t n_bytes, const float *x, size_t x_stride)
{
    byte_table t[VQ_ATOM_MOST_BITS];
    __m512 rows[V][HALVES];
    __m512i at[VQ_ATOM_MOST_BITS][HALVES];
    for (uint32_t b = 0; b < n_bytes; b++)
        open_byte(&t[b], z + (size_t)b * VQ_ATOMS_A_BYTE * V);
    for (uint32_t j = 0; j < V; j++)
        load_column(rows[j], x + j, x_stride);
    for (uint32_t h = 0; h < HALVES; h++) {
        __m512 y[V], rest[V];
        for (uint32_t j = 0; j < V; j++)
            y[j] = rows[j][h];
        at[0][h] = nearest_byte(&t[0], y);
        for (uint32_t turn = 0; turn < TURNS && n_bytes > 1; turn++) {
            if (turn > 0) {
                less(rest, y, &t[1], at[1][h]);
                at[0][h] = nearest_byte(&t[0], rest);
            }
            less(rest, y, &t[0], at[0][h]);
            at[1][h] = nearest_byte(&t[1], rest);
        }
    }
    for (uint32_t b = 0; b < n_bytes; b++)
        store_codes(codes + (size_t)b * VQ_NEAREST_ROWS, at[b]);
}

void vq_nearest_kernels_init_avx512(vq_nearest_kernels *k)
{
    k->centroids = centroids;
    k->atoms = atoms;
}
