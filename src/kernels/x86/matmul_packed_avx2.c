/* Packed rows with AVX2: a tile is two halves of 8 rows.
 *
 * vpshufb looks 32 codes up in a table of 16 bytes; u is at most 127, so that the two products that vpmaddubsw adds
 * stay below 2^15. */
#include <immintrin.h>
#include <string.h>

#include "kernels/matmul_packed.h"

#define VQ_INLINE static inline __attribute__((always_inline))

enum { GROUP = VQ_MATMUL_GROUP, AHEAD = 4096 };

VQ_INLINE __m256i broadcast4(const void *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}

VQ_INLINE __m256i table_of(const uint8_t *levels, uint32_t bits)
{
    uint8_t table[16];
    for (uint32_t i = 0; i < 16; i++)
        table[i] = levels[i & ((1u << bits) - 1)];
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
}

VQ_INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)(const void *)p); }

/* u of one block of a half: q[k] holds values 4k .. 4k + 3 of 8 rows. */
VQ_INLINE void block(__m256i q[8], const uint8_t *p, __m256i table, int bits)
{
    if (bits == 4) {
        const __m256i low = _mm256_set1_epi8(15);
        for (int j = 0; j < 4; j++) {
            const __m256i x = load(p + j * 64);
            q[j] = _mm256_shuffle_epi8(table, _mm256_and_si256(x, low));
            q[j + 4] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(x, 4), low));
        }
        return;
    }
    const __m256i high = bits == 3 ? load(p + 128) : _mm256_setzero_si256();
    const __m256i low = _mm256_set1_epi8(3), third = _mm256_set1_epi8(4);
    for (int j = 0; j < 2; j++) {
        const __m256i x = load(p + j * 64);
        for (int s = 0; s < 4; s++) {
            const int k = j + 2 * s;
            __m256i at = _mm256_and_si256(_mm256_srli_epi16(x, 2 * s), low);
            if (bits == 3) {
                const __m256i bit = k >= 2 ? _mm256_srli_epi16(high, k - 2) : _mm256_slli_epi16(high, 2 - k);
                at = _mm256_or_si256(at, _mm256_and_si256(bit, third));
            }
            q[k] = _mm256_shuffle_epi8(table, at);
        }
    }
}

VQ_INLINE void unpack(uint8_t *out, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels, int bits)
{
    const __m256i table = table_of(levels, (uint32_t)bits);
    for (uint32_t b = 0; b < n_blocks; b++, tile += 64 * bits, out += 512)
        for (int half = 0; half < 2; half++) {
            __m256i q[8];
            block(q, tile + half * 32, table, bits);
            for (int k = 0; k < 8; k++)
                _mm256_storeu_si256((__m256i *)(void *)(out + k * 64 + half * 32), q[k]);
        }
}

static void unpack_2(uint8_t *out, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels)
{
    unpack(out, tile, n_blocks, levels, 2);
}

static void unpack_3(uint8_t *out, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels)
{
    unpack(out, tile, n_blocks, levels, 3);
}

static void unpack_4(uint8_t *out, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels)
{
    unpack(out, tile, n_blocks, levels, 4);
}

VQ_INLINE __m256i add_dot(__m256i sum, __m256i u, __m256i a)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, a), _mm256_set1_epi16(1)));
}

/* sums of (u - 64) a -> sums of v a, scaled */
VQ_INLINE __m256 result(__m256i sum, int32_t sum_a, const float *scale, float d)
{
    const __m256i both = _mm256_add_epi32(_mm256_add_epi32(sum, sum), _mm256_set1_epi32(sum_a));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(both), _mm256_mul_ps(_mm256_loadu_ps(scale), _mm256_set1_ps(d)));
}

/* Lanes of the half below n_rows. */
VQ_INLINE __m256i rows_mask(uint32_t n_rows, int half)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n_rows - 8 * half), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

VQ_INLINE void one(float *out, uint32_t n_rows, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels,
                   const float *scale, const uint8_t *token, int bits)
{
    const __m256i table = table_of(levels, (uint32_t)bits);
    const uint8_t *a = token + VQ_PACKED_HEAD;
    vq_packed_head head;
    memcpy(&head, token, sizeof head);
    __m256i sum[2][2]; /* of each half */
    sum[0][0] = sum[1][0] = _mm256_set1_epi32(-64 * head.sum);
    sum[0][1] = sum[1][1] = _mm256_setzero_si256();
    for (uint32_t b = 0; b < n_blocks; b++, tile += 64 * bits, a += 32) {
        for (int i = 0; i < bits; i++)
            _mm_prefetch((const char *)tile + AHEAD + i * 64, _MM_HINT_T0);
        for (int half = 0; half < 2; half++) {
            __m256i q[8];
            block(q, tile + half * 32, table, bits);
            for (int k = 0; k < 8; k++)
                sum[half][k % 2] = add_dot(sum[half][k % 2], q[k], broadcast4(a + k * 4));
        }
    }
    for (int half = 0; half < 2; half++)
        _mm256_maskstore_ps(out + 8 * half, rows_mask(n_rows, half),
                            result(_mm256_add_epi32(sum[half][0], sum[half][1]), head.sum, scale + 8 * half, head.d));
}

static void one_2(float *out, uint32_t n_rows, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels,
                  const float *scale, const uint8_t *token)
{
    one(out, n_rows, tile, n_blocks, levels, scale, token, 2);
}

static void one_3(float *out, uint32_t n_rows, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels,
                  const float *scale, const uint8_t *token)
{
    one(out, n_rows, tile, n_blocks, levels, scale, token, 3);
}

static void one_4(float *out, uint32_t n_rows, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels,
                  const float *scale, const uint8_t *token)
{
    one(out, n_rows, tile, n_blocks, levels, scale, token, 4);
}

/* One half of a tile times n tokens.  Inner loops unroll; arrays are registers. */
VQ_INLINE void multiply_half(const vq_packed_step *s, uint32_t n, int g, int half)
{
    const __m256i rows = rows_mask(s->n_rows[g], half);
    const uint8_t *w = s->w[g] + half * 32, *a[GROUP];
    vq_packed_head head[GROUP];
    __m256i sum[GROUP];
    for (uint32_t t = 0; t < n; t++) {
        const uint8_t *token = s->tokens + t * s->token_bytes;
        memcpy(&head[t], token, sizeof head[t]);
        a[t] = token + VQ_PACKED_HEAD + (size_t)s->first_dword * 4;
        const int *before = (const int *)(const void *)(s->out[g] + t * s->out_stride + 8 * half);
        sum[t] = s->first ? _mm256_set1_epi32(-64 * head[t].sum) : _mm256_maskload_epi32(before, rows);
    }
    for (size_t k = 0; k < s->n_dwords; k++) {
        const __m256i q = load(w + k * 64);
        for (uint32_t t = 0; t < n; t++)
            sum[t] = add_dot(sum[t], q, broadcast4(a[t] + k * 4));
    }
    for (uint32_t t = 0; t < n; t++) {
        float *out = s->out[g] + t * s->out_stride + 8 * half;
        if (s->last)
            _mm256_maskstore_ps(out, rows, result(sum[t], head[t].sum, s->scale[g] + 8 * half, head[t].d));
        else
            _mm256_maskstore_epi32((int *)(void *)out, rows, sum[t]);
    }
}

VQ_INLINE void multiply_n(const vq_packed_step *s, uint32_t n)
{
    for (int g = 0; g < VQ_PACKED_SIDE; g++)
        for (int half = 0; half < 2; half++)
            if (s->n_rows[g] > 8 * (uint32_t)half)
                multiply_half(s, n, g, half);
}

static void multiply(const vq_packed_step *s)
{
    switch (s->n_tokens) {
    case 1: multiply_n(s, 1); break;
    case 2: multiply_n(s, 2); break;
    case 3: multiply_n(s, 3); break;
    case 4: multiply_n(s, 4); break;
    case 5: multiply_n(s, 5); break;
    default: multiply_n(s, 6); break;
    }
}

static void floats(float *out, const uint8_t *u, uint32_t n_dwords, const float *scale)
{
    const __m256i byte = _mm256_set1_epi32(255), top = _mm256_set1_epi32(127);
    for (uint32_t k = 0; k < n_dwords; k++, u += 64, out += 64)
        for (int half = 0; half < 2; half++) {
            const __m256i x = load(u + half * 32);
            for (int j = 0; j < 4; j++) {
                const __m256i value = _mm256_and_si256(_mm256_srli_epi32(x, 8 * j), byte);
                const __m256i v = _mm256_sub_epi32(_mm256_add_epi32(value, value), top);
                _mm256_storeu_ps(out + j * 16 + half * 8,
                                 _mm256_mul_ps(_mm256_cvtepi32_ps(v), _mm256_loadu_ps(scale + half * 8)));
            }
        }
}

VQ_INLINE void multiply_f32_n(const vq_packed_step *s, uint32_t n)
{
    const float *w = (const float *)(const void *)s->w[0], *x = (const float *)(const void *)s->tokens;
    __m256 acc[2][GROUP];
    for (int half = 0; half < 2; half++)
        for (uint32_t t = 0; t < n; t++)
            acc[half][t] =
                s->first ? _mm256_setzero_ps()
                         : _mm256_maskload_ps(s->out[0] + t * s->out_stride + 8 * half, rows_mask(s->n_rows[0], half));
    for (uint32_t i = 0; i < s->n_dwords; i++, w += 16, x += n) {
        const __m256 v0 = _mm256_loadu_ps(w), v1 = _mm256_loadu_ps(w + 8);
        for (uint32_t t = 0; t < n; t++) {
            const __m256 v = _mm256_set1_ps(x[t]);
            acc[0][t] = _mm256_fmadd_ps(v0, v, acc[0][t]);
            acc[1][t] = _mm256_fmadd_ps(v1, v, acc[1][t]);
        }
    }
    for (int half = 0; half < 2; half++)
        for (uint32_t t = 0; t < n; t++)
            _mm256_maskstore_ps(s->out[0] + t * s->out_stride + 8 * half, rows_mask(s->n_rows[0], half), acc[half][t]);
}

static void multiply_f32(const vq_packed_step *s)
{
    switch (s->n_tokens) {
    case 1: multiply_f32_n(s, 1); break;
    case 2: multiply_f32_n(s, 2); break;
    case 3: multiply_f32_n(s, 3); break;
    case 4: multiply_f32_n(s, 4); break;
    case 5: multiply_f32_n(s, 5); break;
    default: multiply_f32_n(s, 6); break;
    }
}

void vq_packed_run_avx2(const vq_matmul_part *part, void *scratch)
{
    static const vq_packed_tier tier = {
        .unpack = {unpack_2, unpack_3, unpack_4},
        .floats = floats,
        .multiply = multiply,
        .multiply_f32 = multiply_f32,
        .one = {one_2, one_3, one_4},
    };
    vq_packed_run_tiles(&tier, part, scratch);
}
