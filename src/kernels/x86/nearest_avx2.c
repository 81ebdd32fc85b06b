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

static inline void halve_squares(float half[CODES], const float *columns, uint32_t d)
{
    for (uint32_t c = 0; c < CODES; c += LANES) {
        __m256 sum = _mm256_setzero_ps();
        for (uint32_t j = 0; j < d; j++) {
            const __m256 v = _mm256_loadu_ps(columns + j * CODES + c);
            sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_mul_ps(v, v), _mm256_set1_ps(0.5F)));
        }
        _mm256_storeu_ps(half + c, sum);
    }
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

static void centroids(uint8_t *codes, const float *columns, uint32_t d, const float *x, size_t x_stride)
{
    float half[CODES];
    halve_squares(half, columns, d);
    const uint32_t step = d == 4 ? 2 * LANES : LANES;
    for (uint32_t i = 0; i < VQ_NEAREST_ROWS; i += step)
        switch (d) {
        case 4: some_rows(codes + i, columns, half, 4, 2, x + i * x_stride, x_stride); break;
        case 8: some_rows(codes + i, columns, half, 8, 1, x + i * x_stride, x_stride); break;
        default: some_rows(codes + i, columns, half, d, 1, x + i * x_stride, x_stride);
        }
}

enum { V = VQ_ATOM_VALUES, HALF = 16, TURNS = 2 };

/* What the codes of a byte mean, as the definition has it. */
typedef struct byte_table {
    const float *z;
    float low[V][HALF], high[V][HALF], half[CODES / 2];
} byte_table;

static inline void add_two(float out[V][HALF], const float *z)
{
    const __m256 a = _mm256_setr_ps(-1, 1, -1, 1, -1, 1, -1, 1), b = _mm256_setr_ps(-1, -1, 1, 1, -1, -1, 1, 1);
    const __m256 a2 = _mm256_setr_ps(-1, -1, -1, -1, 1, 1, 1, 1);
    for (uint32_t j = 0; j < V; j += 2) {
        const __m256 re = _mm256_set1_ps(z[j]), im = _mm256_set1_ps(z[j + 1]);
        const __m256 re2 = _mm256_set1_ps(z[V + j]), im2 = _mm256_set1_ps(z[V + j + 1]);
        const __m256 first = _mm256_sub_ps(_mm256_mul_ps(a, re), _mm256_mul_ps(b, im));
        const __m256 second = _mm256_add_ps(_mm256_mul_ps(a, im), _mm256_mul_ps(b, re));
        for (uint32_t h = 0; h < 2; h++) {
            const __m256 b2 = _mm256_set1_ps(h ? 1 : -1);
            _mm256_storeu_ps(out[j] + (size_t)h * LANES,
                             _mm256_add_ps(first, _mm256_sub_ps(_mm256_mul_ps(a2, re2), _mm256_mul_ps(b2, im2))));
            _mm256_storeu_ps(out[j + 1] + (size_t)h * LANES,
                             _mm256_add_ps(second, _mm256_add_ps(_mm256_mul_ps(a2, im2), _mm256_mul_ps(b2, re2))));
        }
    }
}

static inline void open_byte(byte_table *t, const float *z)
{
    t->z = z;
    add_two(t->low, z);
    add_two(t->high, z + (size_t)2 * V);
    for (uint32_t c = 0; c < CODES / 2; c += LANES) {
        __m256 squares = _mm256_setzero_ps();
        for (uint32_t j = 0; j < V; j++) {
            const __m256 v = _mm256_add_ps(_mm256_loadu_ps(t->low[j] + c % HALF), _mm256_set1_ps(t->high[j][c / HALF]));
            squares = _mm256_add_ps(squares, _mm256_mul_ps(v, v));
        }
        _mm256_storeu_ps(t->half + c, _mm256_mul_ps(squares, _mm256_set1_ps(0.5F)));
    }
}

static inline void multiply_two(__m256 *out, uint32_t n, const float *z, const __m256 y[V])
{
    const __m256 sign = _mm256_set1_ps(-0.0F);
    __m256 each[2][4];
    for (uint32_t i = 0; i < 2; i++, z += V) {
        __m256 real = _mm256_setzero_ps(), turned = real;
        for (uint32_t j = 0; j < V; j += 2) {
            const __m256 re = _mm256_set1_ps(z[j]), im = _mm256_set1_ps(z[j + 1]);
            real = _mm256_add_ps(real, _mm256_mul_ps(y[j], re));
            real = _mm256_add_ps(real, _mm256_mul_ps(y[j + 1], im));
            turned = _mm256_add_ps(turned, _mm256_mul_ps(y[j + 1], re));
            turned = _mm256_sub_ps(turned, _mm256_mul_ps(y[j], im));
        }
        each[i][3] = _mm256_add_ps(real, turned);
        each[i][1] = _mm256_sub_ps(real, turned);
        each[i][2] = _mm256_xor_ps(each[i][1], sign);
        each[i][0] = _mm256_xor_ps(each[i][3], sign);
    }
    for (uint32_t c = 0; c < n; c++)
        out[c] = _mm256_add_ps(each[0][c % 4], each[1][c / 4]);
}

static inline __m256i nearest_byte(const byte_table *t, const __m256 y[V])
{
    const __m256 sign = _mm256_set1_ps(-0.0F);
    __m256 low[HALF], high[HALF / 2], best = _mm256_set1_ps(-__builtin_inff()), chosen = _mm256_setzero_ps();
    __m256i code = _mm256_setzero_si256(), at = code;
    multiply_two(low, HALF, t->z, y);
    multiply_two(high, HALF / 2, t->z + (size_t)2 * V, y);
    for (uint32_t h = 0; h < HALF / 2; h++)
        for (uint32_t l = 0; l < HALF; l++) {
            const __m256 product = _mm256_add_ps(low[l], high[h]);
            const __m256 gain = _mm256_sub_ps(_mm256_andnot_ps(sign, product), _mm256_set1_ps(t->half[h * HALF + l]));
            const __m256 more = _mm256_cmp_ps(gain, best, _CMP_GT_OQ);
            best = _mm256_max_ps(gain, best); /* the second where one is NaN */
            chosen = _mm256_blendv_ps(chosen, product, more);
            code = _mm256_blendv_epi8(code, at, _mm256_castps_si256(more));
            at = _mm256_add_epi32(at, _mm256_set1_epi32(1));
        }
    const __m256i below = _mm256_castps_si256(_mm256_cmp_ps(chosen, _mm256_setzero_ps(), _CMP_LT_OQ));
    return _mm256_xor_si256(code, _mm256_and_si256(below, _mm256_set1_epi32(CODES - 1)));
}

static inline void less(__m256 out[V], const __m256 x[V], const byte_table *t, __m256i code)
{
    const __m256i lower = _mm256_and_si256(code, _mm256_set1_epi32(HALF - 1)), upper = _mm256_srli_epi32(code, 4);
    for (uint32_t j = 0; j < V; j++)
        out[j] = _mm256_sub_ps(
            x[j], _mm256_add_ps(_mm256_i32gather_ps(t->low[j], lower, 4), _mm256_i32gather_ps(t->high[j], upper, 4)));
}

static void atoms(uint8_t *codes, const float *z, uint32_t n_bytes, const float *x, size_t x_stride)
{
    byte_table t[VQ_ATOM_MOST_BITS];
    for (uint32_t b = 0; b < n_bytes; b++)
        open_byte(&t[b], z + (size_t)b * VQ_ATOMS_A_BYTE * V);
    for (uint32_t i = 0; i < VQ_NEAREST_ROWS; i += LANES, codes += LANES) {
        __m256 y[V], rest[V];
        for (uint32_t j = 0; j < V; j++)
            y[j] = load_column(x + i * x_stride + j, x_stride);
        __m256i first = nearest_byte(&t[0], y);
        for (uint32_t turn = 0; turn < TURNS && n_bytes > 1; turn++) {
            less(rest, y, &t[0], first);
            const __m256i second = nearest_byte(&t[1], rest);
            store_codes(codes + VQ_NEAREST_ROWS, second);
            if (turn + 1 == TURNS)
                break;
            less(rest, y, &t[1], second);
            first = nearest_byte(&t[0], rest);
        }
        store_codes(codes, first);
    }
}

void vq_nearest_kernels_init_avx2(vq_nearest_kernels *k)
{
    k->centroids = centroids;
    k->atoms = atoms;
}
