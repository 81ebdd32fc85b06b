/* Packed rows with AVX-512: 16 rows in the lanes of a register.
 *
 * vpermb looks 64 codes up at once in a table of 64 bytes and reads the low 6 bits of each index: the levels stand in
 * the table as often as they fit, so that what a shift leaves above a code needs no masking.  Of 64 bytes of 4-bit
 * codes that makes one shift, two look-ups and two vpdpbusd. */
#include <immintrin.h>
#include <string.h>

#include "kernels/matmul_packed.h"

#define VQ_INLINE static inline __attribute__((always_inline))

enum { GROUP = VQ_MATMUL_GROUP, SIDE = VQ_PACKED_SIDE, AHEAD = 4096 };

VQ_INLINE __m512i broadcast4(const void *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

VQ_INLINE __m512i table_of(const uint8_t *levels, uint32_t bits)
{
    uint8_t table[64];
    for (uint32_t i = 0; i < 64; i++)
        table[i] = levels[i & ((1u << bits) - 1)];
    return _mm512_loadu_si512(table);
}

/* u of one block: q[k] holds values 4k .. 4k + 3 of 16 rows. */
VQ_INLINE void block(__m512i q[8], const uint8_t *p, __m512i table, int bits)
{
    if (bits == 4) {
        for (int j = 0; j < 4; j++) {
            const __m512i x = _mm512_loadu_si512(p + j * 64);
            q[j] = _mm512_permutexvar_epi8(x, table);
            q[j + 4] = _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), table);
        }
        return;
    }
    const __m512i high = bits == 3 ? _mm512_loadu_si512(p + 128) : _mm512_setzero_si512();
    const __m512i third = _mm512_set1_epi8(4);
    for (int j = 0; j < 2; j++) {
        const __m512i x = _mm512_loadu_si512(p + j * 64);
        for (int s = 0; s < 4; s++) {
            const int k = j + 2 * s;
            __m512i at = s ? _mm512_srli_epi16(x, (unsigned)(2 * s)) : x;
            if (bits == 3) {
                const __m512i bit =
                    k >= 2 ? _mm512_srli_epi16(high, (unsigned)(k - 2)) : _mm512_slli_epi16(high, (unsigned)(2 - k));
                at = _mm512_ternarylogic_epi32(third, bit, at, 0xca); /* third ? bit : at */
            }
            q[k] = _mm512_permutexvar_epi8(at, table);
        }
    }
}

VQ_INLINE void unpack(uint8_t *out, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels, int bits)
{
    const __m512i table = table_of(levels, (uint32_t)bits);
    for (uint32_t b = 0; b < n_blocks; b++, tile += 64 * bits, out += 512) {
        __m512i q[8];
        block(q, tile, table, bits);
        for (int k = 0; k < 8; k++)
            _mm512_storeu_si512(out + k * 64, q[k]);
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

/* sums of (u - 64) a -> sums of v a, scaled */
VQ_INLINE __m512 result(__m512i sum, int32_t sum_a, __m512 scale, float d)
{
    const __m512i both = _mm512_add_epi32(_mm512_add_epi32(sum, sum), _mm512_set1_epi32(sum_a));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(both), _mm512_mul_ps(scale, _mm512_set1_ps(d)));
}

VQ_INLINE __mmask16 rows_mask(uint32_t n_rows) { return (__mmask16)((1u << n_rows) - 1); }

VQ_INLINE void one(float *out, uint32_t n_rows, const uint8_t *tile, uint32_t n_blocks, const uint8_t *levels,
                   const float *scale, const uint8_t *token, int bits)
{
    const __m512i table = table_of(levels, (uint32_t)bits);
    const uint8_t *a = token + VQ_PACKED_HEAD;
    vq_packed_head head;
    memcpy(&head, token, sizeof head);
    __m512i sum[4];
    sum[0] = _mm512_set1_epi32(-64 * head.sum);
    sum[1] = sum[2] = sum[3] = _mm512_setzero_si512();
    for (uint32_t b = 0; b < n_blocks; b++, tile += 64 * bits, a += 32) {
        __m512i q[8];
        for (int i = 0; i < bits; i++)
            _mm_prefetch((const char *)tile + AHEAD + i * 64, _MM_HINT_T0);
        block(q, tile, table, bits);
        for (int k = 0; k < 8; k++)
            sum[k % 4] = _mm512_dpbusd_epi32(sum[k % 4], q[k], broadcast4(a + k * 4));
    }
    const __m512i all = _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]), _mm512_add_epi32(sum[2], sum[3]));
    _mm512_mask_storeu_ps(out, rows_mask(n_rows), result(all, head.sum, _mm512_loadu_ps(scale), head.d));
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

/* All inner loops unroll; arrays are registers. */
VQ_INLINE void multiply_n(const vq_packed_step *s, uint32_t n)
{
    const uint8_t *w0 = s->w[0], *w1 = s->w[1], *a[GROUP];
    vq_packed_head head[GROUP];
    __m512i sum[SIDE][GROUP];
    for (uint32_t t = 0; t < n; t++) {
        const uint8_t *token = s->tokens + t * s->token_bytes;
        memcpy(&head[t], token, sizeof head[t]);
        a[t] = token + VQ_PACKED_HEAD + (size_t)s->first_dword * 4;
        for (int g = 0; g < SIDE; g++)
            sum[g][t] = s->first ? _mm512_set1_epi32(-64 * head[t].sum)
                                 : _mm512_maskz_loadu_epi32(rows_mask(s->n_rows[g]), s->out[g] + t * s->out_stride);
    }
    for (size_t k = 0; k < s->n_dwords; k++) {
        const __m512i q0 = _mm512_loadu_si512(w0 + k * 64), q1 = _mm512_loadu_si512(w1 + k * 64);
        for (uint32_t t = 0; t < n; t++) {
            const __m512i x = broadcast4(a[t] + k * 4);
            sum[0][t] = _mm512_dpbusd_epi32(sum[0][t], q0, x);
            sum[1][t] = _mm512_dpbusd_epi32(sum[1][t], q1, x);
        }
    }
    for (int g = 0; g < SIDE; g++)
        for (uint32_t t = 0; t < n; t++) {
            float *out = s->out[g] + t * s->out_stride;
            if (s->last)
                _mm512_mask_storeu_ps(out, rows_mask(s->n_rows[g]),
                                      result(sum[g][t], head[t].sum, _mm512_loadu_ps(s->scale[g]), head[t].d));
            else
                _mm512_mask_storeu_epi32(out, rows_mask(s->n_rows[g]), sum[g][t]);
        }
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
    const __m512i byte = _mm512_set1_epi32(255), top = _mm512_set1_epi32(127);
    const __m512 s = _mm512_loadu_ps(scale);
    for (uint32_t k = 0; k < n_dwords; k++, u += 64, out += 64) {
        const __m512i x = _mm512_loadu_si512(u);
        for (int j = 0; j < 4; j++) {
            const __m512i value = _mm512_and_si512(_mm512_srli_epi32(x, (unsigned)(8 * j)), byte);
            const __m512i v = _mm512_sub_epi32(_mm512_add_epi32(value, value), top);
            _mm512_storeu_ps(out + j * 16, _mm512_mul_ps(_mm512_cvtepi32_ps(v), s));
        }
    }
}

VQ_INLINE void multiply_f32_n(const vq_packed_step *s, uint32_t n)
{
    const float *w = (const float *)(const void *)s->w[0], *x = (const float *)(const void *)s->tokens;
    const __mmask16 rows = rows_mask(s->n_rows[0]);
    __m512 acc[GROUP];
    for (uint32_t t = 0; t < n; t++)
        acc[t] = s->first ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(rows, s->out[0] + t * s->out_stride);
    for (uint32_t i = 0; i < s->n_dwords; i++, w += 16, x += n) {
        const __m512 v = _mm512_loadu_ps(w);
        for (uint32_t t = 0; t < n; t++)
            acc[t] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[t]), acc[t]);
    }
    for (uint32_t t = 0; t < n; t++)
        _mm512_mask_storeu_ps(s->out[0] + t * s->out_stride, rows, acc[t]);
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

void vq_packed_run_avx512(const vq_matmul_part *part, void *scratch)
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
